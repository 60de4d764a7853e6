"""`vg pretrain xdbert` as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, CLIPTextModelWithProjection

from tests.tiny.clip import clip_tokenizer, new_tower, save_tower
from tests.tiny.lm import sentences
from tests.tiny.runs import hashes, records, refused, stop_and_resume
from tests.tiny.visual import encoder_of
from tests.training.test_processes import ended, start
from vgtools import cli
from vgtools.io.errors import Exit
from vgtools.models.clip import load_teacher
from vgtools.models.encoder import load_encoder, load_masked_lm, save_pretrained
from vgtools.models.references import fingerprint
from vgtools.models.runs import read_run
from vgtools.systems.xdbert.model import is_xdbert, open_xdbert

FAST = ["--batch-size", 4, "--block", 16, "--lr", "1e-3", "--log-every", 2, "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `student`, `clip` and texts."""
    folder = tmp_path_factory.mktemp("xdbert")
    save_pretrained(folder / "student", encoder_of(hidden_dropout_prob=0.1))
    save_tower(folder / "clip")
    for name, seed in (("text", 0), ("valid", 1)):
        lines = sentences(60 if name == "text" else 30, seed)
        (folder / f"{name}.txt").write_text("".join(line + "\n" for line in lines))
    return folder


def pretrain(data: Path, output: Path, *flags: object, student: str = "student") -> int:
    args: list[Any] = ["pretrain", "xdbert", data / "text.txt", "-o", output, "-e", data / student]
    args += ["--teacher", data / "clip", *FAST, *flags]
    return cli.run([str(a) for a in args])


def test_a_run_that_is_an_encoder(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert pretrain(data, run, "--epochs", 2, "--valid", data / "valid.txt") == 0
    out = capfd.readouterr()
    printed = [json.loads(line) for line in out.out.splitlines()]
    assert (printed, out.err) == (records(run), "")
    last = printed[-1]
    losses = {"mlm", "match", "clip_token"}
    assert last["loss"] == pytest.approx(sum(last[name] for name in losses), rel=1e-5)
    more = {"perplexity", "mlm_same", "mlm_other", "copied", "copied_low", "copied_high"}
    assert set(last["valid"]) == losses | more | {"match_accuracy", "match_low", "match_high"}
    valid = last["valid"]
    assert valid["mlm"] == pytest.approx((valid["mlm_same"] + valid["mlm_other"]) / 2)
    assert valid["copied"] == pytest.approx(valid["mlm_other"] - valid["mlm_same"])
    assert valid["match_low"] <= valid["match_accuracy"] <= valid["match_high"]
    files = ["encoder", "metrics.jsonl", "run.json", "teacher", "xdbert.safetensors"]
    assert sorted(p.name for p in run.iterdir()) == files

    info = read_run(run, "xdbert")
    config = info["config"]
    assert (config["warmup"], config["freeze_teacher"], config["weights"]) == (
        0.05, False, dict.fromkeys(["mlm", "match", "clip_token"], 1.0),
    )  # fmt: skip
    assert info["xdbert"] == {"cross_layers": 2}
    assert set(info["teacher_blocks"].items()) >= {("cut", 0), ("empty", 0)}
    opened = open_xdbert(str(run))
    assert info["teacher"]["fingerprint"] == fingerprint(opened.teacher.model)
    assert info["encoder"]["fingerprint"] == fingerprint(opened.student.model)
    started = [load_encoder(str(data / "student")), load_teacher(str(data / "clip"))]
    assert [one["fingerprint"] for one in info["start"]] == [one.fingerprint for one in started]
    assert info["parameters"] == {
        "student": sum(p.numel() for p in opened.student.model.parameters()),
        "teacher": sum(p.numel() for p in opened.teacher.model.parameters()),
        "cross": sum(p.numel() for p in opened.cross.layers.parameters()),
    }
    assert is_xdbert(str(run))
    assert not is_xdbert(str(data / "student"))

    bare = AutoModel.from_pretrained(run / "encoder")
    assert type(bare).__name__ == "BertModel"
    assert not any("pooler" in name for name in load_file(run / "encoder" / "model.safetensors"))
    assert fingerprint(bare) == fingerprint(load_encoder(str(run)).model), "a run is an encoder"
    tower = CLIPTextModelWithProjection.from_pretrained(run / "teacher")
    assert fingerprint(tower) != fingerprint(new_tower()), "the teacher learns, too"
    own = load_file(run / "xdbert.safetensors")
    assert {name.split(".")[0] for name in own} == {"cross", "match", "clip_token", "mlm"}
    assert load_masked_lm(str(run)).model.config.vocab_size, "its head of masked words is new"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["signal", "kill"])
def test_resumed_equals_unbroken(data: Path, tmp_path: Path, way: str) -> None:
    """To the bit: student, teacher, cross-modal layers, records."""
    flags = ["--epochs", 2, "--valid", data / "valid.txt", "--checkpoint-steps", 2]
    flags += ["--micro-batch", 2]
    cut, whole = stop_and_resume(lambda run: pretrain(data, run, *flags), tmp_path, way, 5)
    assert hashes(cut) == hashes(whole)
    assert "teacher/model.safetensors" in hashes(cut)


def test_the_schedule_can_be_ended_early(data: Path, tmp_path: Path) -> None:
    """The rate is that of all epochs, for the baseline as well."""
    flags: list[object] = ["--epochs", 4, "--warmup", 0.5, "--log-every", 1]
    assert pretrain(data, tmp_path / "a", *flags, "--stop-epoch", 2) == 0
    rows = records(tmp_path / "a")
    info = read_run(tmp_path / "a")
    assert (info["steps"], info["scheduled"]) == (len(rows), 2 * len(rows))
    assert rows[-1]["epoch"] == 2
    assert rows[-1]["lr"] == pytest.approx(1e-3), "the end of the warm-up of two epochs"
    args = ["pretrain", data / "text.txt", "-e", data / "student", "-o", tmp_path / "b"]
    assert cli.run([str(a) for a in [*args, *FAST, *flags, "--stop-epoch", 2]]) == 0
    assert [row["lr"] for row in records(tmp_path / "b")] == [row["lr"] for row in rows]


def test_a_frozen_teacher_stays_as_it_is(data: Path, tmp_path: Path) -> None:
    flags = ["--steps", 2, "--freeze-teacher", "--cross-layers", 1, "--gradient-checkpointing"]
    assert pretrain(data, tmp_path / "a", *flags) == 0
    opened = open_xdbert(str(tmp_path / "a"))
    assert fingerprint(opened.teacher.model) == fingerprint(new_tower())
    assert len(opened.cross.layers) == 1


def test_new_layers_can_learn_faster(data: Path, tmp_path: Path) -> None:
    """A first step of Adam moves each weight by its rate; the encoder has no decay here."""
    save_pretrained(tmp_path / "still", encoder_of())
    flags = ["--steps", 1, "--warmup", 0, "--weight-decay", 0, "--schedule", "constant"]
    flags += ["--encoder", tmp_path / "still", "--lr", "1e-5", "--log-every", 1]
    moved = {}
    for name, more in {"same": [], "faster": ["--cross-lr", "1e-3"]}.items():
        assert pretrain(data, tmp_path / name, *flags, *more) == 0
        moved[name] = load_file(tmp_path / name / "xdbert.safetensors")
    assert read_run(tmp_path / "faster")["config"]["cross_lr"] == 1e-3
    bias = "cross.layers.0.student.up.bias"
    for name, rate in {"same": 1e-5, "faster": 1e-3}.items():
        assert moved[name][bias].abs().max().item() == pytest.approx(rate, rel=1e-3)
    one, other = (open_xdbert(str(tmp_path / name)) for name in moved)
    assert fingerprint(one.student.model) == fingerprint(other.student.model)
    assert pretrain(data, tmp_path / "a", "--lr", 0, "--cross-lr", "1e-3") == Exit.USAGE


def test_products_in_bfloat16_learn_as_well(data: Path, tmp_path: Path) -> None:
    flags = ["--steps", 4, "--valid", data / "valid.txt"]
    for dtype in ("float32", "bfloat16"):
        assert pretrain(data, tmp_path / dtype, *flags, "--dtype", dtype) == 0
    high, low = (records(tmp_path / name)[-1]["valid"] for name in ("float32", "bfloat16"))
    for name in ("mlm", "match", "clip_token"):
        assert low[name] == pytest.approx(high[name], rel=0.03)


def test_losses_can_be_chosen(data: Path, tmp_path: Path) -> None:
    """Without match every block is read beside its own text: the rows of table 3."""
    held = ["--valid", data / "valid.txt"]
    assert pretrain(data, tmp_path / "a", "--steps", 2, "--weight", "mlm=1", *held) == 0
    last = records(tmp_path / "a")[-1]
    assert set(last["valid"]) == {"mlm", "perplexity"}
    assert "match" not in last
    own = load_file(tmp_path / "a" / "xdbert.safetensors")
    assert {name.split(".")[0] for name in own} == {"cross", "mlm"}


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a"
    assert pretrain(data, run, "--steps", 2) == 0
    before = hashes(run)
    first = capfd.readouterr().out
    assert pretrain(data, run, "--steps", 2) == 0
    assert capfd.readouterr().out == first
    assert hashes(run) == before
    for flags, what in (
        (["--cross-layers", 3], "cross_layers was 2, is now 3"),
        (["--pack", "row"], 'pack was "stream", is now "row"'),
        (["--freeze-teacher"], "freeze_teacher was false, is now true"),
        (["--stop-epoch", 1], "stop_epoch was null, is now 1"),
    ):
        assert pretrain(data, run, "--steps", 2, *flags) == Exit.CONFIG
        refused(capfd, what)
    assert pretrain(data, run, "--steps", 3, "--restart") == 0
    assert read_run(run)["steps"] == 3


def test_what_cannot_be_adapted_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for flags, code, why in (
        (["--teacher", data / "student"], Exit.DATA, "is a bert, expected a CLIP"),
        (["--encoder", data / "clip"], Exit.USAGE, "name it with --teacher"),
        (["--block", 99], Exit.CONFIG, "--block 99: the encoder takes 64 tokens"),
        (["--weight", "voken_cls=1"], Exit.USAGE, "not one of mlm, match, clip_token"),
    ):
        assert pretrain(data, tmp_path / "a", "--steps", 1, *flags) == code
        refused(capfd, why)
    assert pretrain(data, tmp_path / "a", "--epochs", 2, "--stop-epoch", 3) == Exit.USAGE
    refused(capfd, "--stop-epoch", "3 is after the last of the 2 that --epochs schedules")
    (tmp_path / "one.txt").write_text("bam den\n")
    args = ["pretrain", "xdbert", tmp_path / "one.txt", "-e", data / "student", "-o"]
    args += [tmp_path / "b", "--teacher", data / "clip", *FAST]
    assert cli.run([str(a) for a in args]) == Exit.DATA
    refused(capfd, "one block of 2 tokens: nothing to tell apart", "--weight mlm=1")
    assert cli.run([str(a) for a in [*args, "--steps", 1, "--weight", "mlm=1"]]) == 0


def test_a_tower_of_which_nothing_fits_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_tower(tmp_path / "odd", projection_dim=7)
    flags = ["--steps", 1, "--teacher", tmp_path / "odd"]
    assert pretrain(data, tmp_path / "a", *flags) == Exit.CONFIG
    refused(capfd, "projection to 7 numbers is not a multiple of its 2 attention heads")


def test_a_damaged_part_of_a_run_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a"
    assert pretrain(data, run, "--steps", 1) == 0
    weights = run / "teacher" / "model.safetensors"
    body = bytearray(weights.read_bytes())
    body[-1] ^= 1
    weights.write_bytes(body)
    flags = ["--steps", 1, "--teacher", run / "teacher"]
    assert pretrain(data, tmp_path / "b", *flags) == Exit.DATA
    refused(capfd, "teacher/model.safetensors", "is damaged or from another run")
    shutil.copy(data / "clip" / "tokenizer.json", run / "encoder" / "tokenizer.json")
    assert pretrain(data, tmp_path / "b", "--steps", 1, "--encoder", run) == Exit.DATA
    refused(capfd, "encoder/tokenizer.json", "is damaged or from another run")


def test_memory_that_runs_out_halves_the_rows(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vgtools.systems.xdbert.model import XDBert

    real = XDBert.outputs

    def small(self: XDBert, batch: Any) -> Any:
        if len(batch.ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, batch)

    still = encoder_of()
    save_pretrained(tmp_path / "still", still)
    args = ["--steps", 2, "--encoder", tmp_path / "still"]
    assert pretrain(data, tmp_path / "whole", *args) == 0
    monkeypatch.setattr(XDBert, "outputs", small)
    assert pretrain(data, tmp_path / "cut", *args) == 0
    assert read_run(tmp_path / "cut")["pieces"] == 2
    whole, cut = (records(tmp_path / name)[-1] for name in ("whole", "cut"))
    for name in ("mlm", "match", "clip_token", "gradient"):
        assert cut[name] == pytest.approx(whole[name], rel=1e-4)


@pytest.mark.slow
def test_two_processes_agree_with_one(data: Path, tmp_path: Path) -> None:
    """Pairs, masks and choices of a step do not depend on the processes that share it."""
    save_pretrained(tmp_path / "still", encoder_of())
    args: list[Any] = ["pretrain", "xdbert", data / "text.txt", "-e", tmp_path / "still"]
    args += ["--teacher", data / "clip", "--epochs", "2", *FAST, "--log-every", "1"]
    args = [str(a) for a in [*args, "--valid", data / "valid.txt"]]
    assert cli.run([*args, "-o", str(tmp_path / "one")]) == 0
    ended(start(*args, "-o", str(tmp_path / "two")))
    one, two = (records(tmp_path / name) for name in ("one", "two"))
    assert len(one) == len(two) > 4
    for mine, theirs in zip(one, two, strict=True):
        for name in ("mlm", "match", "clip_token"):
            assert theirs[name] == pytest.approx(mine[name], rel=1e-3)
    assert one[-1]["valid"] == pytest.approx(two[-1]["valid"], rel=1e-3, abs=1e-3)


def test_tiny_tokenizers_are_what_they_seem() -> None:
    assert clip_tokenizer().encode("the").ids[0] == 514
