"""`vg pretrain` as its users run it: a run that transformers opens, resumed to the bit, bad input
refused by line.
"""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import save_feats
from tests.tiny.lm import (
    make_tokenizer,
    save_packed,
    save_rows,
    save_shape,
    save_tokenizer,
    sentences,
    voken_rows,
)
from tests.tiny.runs import hashes, records, refused, stop_and_resume
from vgtools import cli
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import sha256_file, write_manifest
from vgtools.models.encoder import load_encoder
from vgtools.models.references import fingerprint
from vgtools.models.runs import open_run
from vgtools.systems.vokenization import objectives, voken_lm
from vgtools.training import session

FAST = ["--block", 16, "--batch-size", 8, "--device", "cpu", "-q", "--log-every", 2]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `shape.json`, a tokenizer `t`, voken rows `rows.jsonl`, their text `text.txt`
    and `valid.jsonl`.
    """
    folder = tmp_path_factory.mktemp("data")
    save_shape(folder / "shape.json")
    save_tokenizer(folder / "t")
    texts = sentences(60)
    save_rows(folder / "rows.jsonl", voken_rows(texts, 11))
    (folder / "text.txt").write_text("".join(t + "\n" for t in texts))
    save_rows(folder / "valid.jsonl", voken_rows(sentences(20, seed=9), 11))
    return folder


def pretrain(
    data: Path, output: Path, *flags: object, file: object = None, start: bool = True
) -> int:
    """Run `vg pretrain` in this process and return its exit code."""
    begin = ["--shape", data / "shape.json", "--tokenizer", data / "t"] if start else []
    return cli.run(
        [
            str(a)
            for a in ["pretrain", file or data / "rows.jsonl", *begin, "-o", output, *FAST, *flags]
        ]
    )


def test_a_run_that_transformers_opens(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer, BertForMaskedLM

    run = tmp_path / "run"
    assert pretrain(data, run, "--epochs", 2, "--valid", data / "valid.jsonl", "--vokens", 13) == 0
    out = capfd.readouterr()
    printed = [json.loads(line) for line in out.out.splitlines()]
    assert (printed, out.err) == (records(run), "")
    assert [r["epoch"] for r in printed if "valid" in r] == [1, 2]
    last = printed[-1]
    assert last["loss"] == pytest.approx(last["mlm"] + last["voken_cls"], rel=1e-5)
    assert last["valid"]["perplexity"] == pytest.approx(math.exp(last["valid"]["mlm"]))
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "run"
    ]  # neither packed inputs nor a lock stay
    assert sorted(p.name for p in run.iterdir()) == [
        "encoder",
        "metrics.jsonl",
        "run.json",
        "voken_lm.safetensors",
    ]

    found = open_run(run, "voken_lm")
    assert found.info["config"]["weights"] == {"mlm": 1.0, "voken_cls": 1.0}
    assert found.weights["heads.voken_cls.decoder.weight"].shape == (13, 16)
    # What transformers opens is what was evaluated last.
    lm = AutoModelForMaskedLM.from_pretrained(run / "encoder").eval()
    assert type(lm) is BertForMaskedLM
    tokenizer = AutoTokenizer.from_pretrained(run / "encoder")
    text = "bam den fis"
    assert tokenizer(text)["input_ids"] == make_tokenizer().encode(text).ids
    head = voken_lm.VisuallySupervisedLM(lm, voken_lm.VokenLMConfig(vokens=13))
    missing, unexpected = head.load_state_dict(found.weights, strict=False)
    assert not unexpected
    assert all(name.startswith("lm.") for name in missing)
    encoder = load_encoder(str(run))
    assert encoder.fingerprint == found.info["encoder"]["fingerprint"] == fingerprint(lm.base_model)


def test_the_encoder_of_every_nth_step_is_kept(data: Path, tmp_path: Path) -> None:
    steps = ["--steps", 5, "--schedule", "constant", "--warmup", 0]
    assert pretrain(data, tmp_path / "run", *steps, "--keep-every", 2) == 0
    run = tmp_path / "run"
    assert sorted(path.name for path in run.glob("step-*")) == ["step-2", "step-4"]
    # Without a schedule a run that is as long as that ends with the same weights.
    for number in (2, 4):
        shorter = tmp_path / f"{number}"
        assert pretrain(data, shorter, "--steps", number, *steps[2:]) == 0
        kept = load_encoder(str(run / f"step-{number}"))
        assert kept.fingerprint == load_encoder(str(shorter)).fingerprint
    assert load_encoder(str(run)).fingerprint != kept.fingerprint
    # run.json has their hashes.
    weights = run / "step-4/model.safetensors"
    weights.write_bytes((run / "step-2/model.safetensors").read_bytes())
    with pytest.raises(DataError, match="is damaged or from another run"):
        load_encoder(str(run / "step-4"))
    # It may be the user's, and stays.
    assert pretrain(data, run, *steps, "--keep-every", 4, "--restart") == Exit.CANNOT_CREATE
    weights.unlink()
    assert pretrain(data, run, *steps, "--keep-every", 4, "--restart") == 0
    assert sorted(path.name for path in run.glob("step-*")) == ["step-4"]
    load_encoder(str(run / "step-4"))


def test_steps_that_were_not_kept_are_missed(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    steps = ["--steps", 5, "--checkpoint-steps", 3]
    with monkeypatch.context() as patch:
        patch.setattr(
            session.TrainingRun, "finish", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert pretrain(data, run, *steps) == Exit.INTERRUPTED
    monkeypatch.setitem(globals(), "FAST", [flag for flag in FAST if flag != "-q"])
    assert pretrain(data, run, *steps, "--keep-every", 2) == 0
    note = "resumes a run that did not keep step 2 (--keep-every 2), and is at step 5 now"
    assert note in capsys.readouterr().err
    before = hashes(run)
    assert pretrain(data, run, *steps, "--keep-every", 4) == Exit.CONFIG
    why = "is a finished run that did not keep step 4 (--keep-every 4); --restart trains it again"
    assert why in capsys.readouterr().err
    assert hashes(run) == before
    assert pretrain(data, run, *steps, "--keep-every", 6) == 0, "there is no such step"
    assert pretrain(data, run, *steps, "--keep-every", 4, "--restart") == 0
    assert pretrain(data, run, *steps, "--keep-every", 4) == 0, "it is up to date"


def test_text_alone_trains_a_masked_language_model(data: Path, tmp_path: Path) -> None:
    assert pretrain(data, tmp_path / "run", "--steps", 3, file=data / "text.txt") == 0
    assert [(r["step"], "mlm" in r, "voken_cls" in r) for r in records(tmp_path / "run")] == [
        (2, True, False),
        (3, True, False),
    ]
    assert open_run(tmp_path / "run", "voken_lm").weights == {}


def test_rows_packed_files_and_a_pipe_give_the_same_weights(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.loads(line) for line in (data / "rows.jsonl").read_text().splitlines()]
    tokenizer = make_tokenizer()
    ids = [tokenizer.encode(r["text"], add_special_tokens=False).ids for r in rows]
    packed = save_packed(
        tmp_path / "x.npy",
        [list(zip(i, r["vokens"], strict=True)) for i, r in zip(ids, rows, strict=True)],
    )
    halves = [save_rows(tmp_path / f"{i}.jsonl", rows[i * 30 : i * 30 + 30]) for i in range(2)]
    assert pretrain(data, tmp_path / "a", "--steps", 3) == 0
    assert pretrain(data, tmp_path / "b", "--steps", 3, file=packed) == 0
    assert pretrain(data, tmp_path / "c", halves[1], "--steps", 3, file=halves[0]) == 0
    with (data / "rows.jsonl").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert pretrain(data, tmp_path / "d", "--steps", 3, file="-", start=True) == 0
    wanted = hashes(tmp_path / "a")
    assert [hashes(tmp_path / name) == wanted for name in "bcd"] == [True, True, True]


def test_evaluating_on_what_is_learned_from_is_noted(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(f"{__name__}.FAST", [flag for flag in FAST if flag != "-q"])
    text = tmp_path / "text.txt"
    text.write_text("a b c d\n" * 40)
    copy = tmp_path / "copy.txt"
    copy.write_bytes(text.read_bytes())
    other = tmp_path / "other.txt"
    other.write_text("a b c e\n" * 40)
    valid = ["--valid", copy, "--valid", other, "--weight", "mlm=1", "--steps", 1]
    assert pretrain(data, tmp_path / "run", *valid, file=text) == 0
    said = capfd.readouterr().err
    assert f"vg pretrain: {copy}: is to evaluate on, and also learned from\n" in said
    assert f"{other}: is to evaluate on" not in said


@pytest.mark.parametrize("way", ["signal", "kill"])
def test_resumed_equals_unbroken(data: Path, tmp_path: Path, way: str) -> None:
    flags = [
        "--epochs",
        2,
        "--valid",
        data / "valid.jsonl",
        "--eval-every",
        3,
        "--checkpoint-steps",
        2,
        "--micro-batch",
        3,
    ]
    cut, whole = stop_and_resume(
        lambda run: pretrain(data, run, *flags), tmp_path, way, 5
    )  # between two records
    assert hashes(cut) == hashes(whole)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut", "whole"]


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert pretrain(data, run, "--steps", 2) == 0
    first, before = capfd.readouterr().out, hashes(run)
    assert pretrain(data, run, "--steps", 2) == 0
    assert (capfd.readouterr().out, hashes(run)) == (first, before)
    assert pretrain(data, run, "--steps", 3) == 78
    assert "steps was 2, is now 3" in capfd.readouterr().err
    assert pretrain(data, run, "--steps", 3, "--restart") == 0


def test_another_column_of_the_same_table_is_another_input(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "x.csv"
    table.write_text("a,b\n" + "".join(f"{t},{t[::-1]}\n" for t in sentences(40, seed=3)))
    run = tmp_path / "run"
    assert pretrain(data, run, "--epochs", 1, file=f"{table}#text=a") == 0
    capfd.readouterr()
    assert pretrain(data, run, "--epochs", 1, file=f"{table}#text=b") == Exit.CONFIG
    assert "a finished run used different settings: inputs was " in capfd.readouterr().err


def test_goes_on_from_a_run_and_voken_only_leaves_the_mlm_head(data: Path, tmp_path: Path) -> None:
    assert pretrain(data, tmp_path / "a", "--steps", 2, "--weight", "mlm=1") == 0
    flags = [
        "--encoder",
        tmp_path / "a",
        "--weight",
        "mlm=0",
        "--weight",
        "voken_cls=0.5",
        "--steps",
        2,
    ]
    assert pretrain(data, tmp_path / "b", *flags, start=False) == 0
    last = records(tmp_path / "b")[-1]
    assert "mlm" not in last
    assert last["loss"] == pytest.approx(0.5 * last["voken_cls"])
    sides = [load_state(tmp_path / name) for name in "ab"]
    same = {name for name in sides[0] if torch.equal(sides[0][name], sides[1][name])}
    assert {name for name in same if name.startswith("cls.")} == {
        name for name in sides[0] if name.startswith("cls.")
    }
    assert "bert.encoder.layer.0.attention.self.query.weight" not in same


def test_another_head_to_start_from_is_another_start(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import save_file

    flags = ["--encoder", tmp_path / "a" / "encoder", "--steps", 1]
    assert pretrain(data, tmp_path / "a", "--steps", 1) == 0
    (tmp_path / "a" / "run.json").unlink()
    assert pretrain(data, tmp_path / "b", *flags, start=False) == 0
    state = load_state(tmp_path / "a")
    state["cls.predictions.bias"] += 1
    save_file(state, tmp_path / "a" / "encoder" / "model.safetensors", {"format": "pt"})
    capfd.readouterr()
    assert pretrain(data, tmp_path / "b", *flags, start=False) == Exit.CONFIG
    assert "a finished run used different settings: start was " in capfd.readouterr().err


def load_state(run: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    return load((run / "encoder" / "model.safetensors").read_bytes())


@pytest.mark.parametrize("control", ["random", "shuffle", "reverse", "tokens"])
def test_controls_train_on_other_labels(data: Path, tmp_path: Path, control: str) -> None:
    assert pretrain(data, tmp_path / "run", "--steps", 2, "--control", control) == 0
    found = open_run(tmp_path / "run", "voken_lm")
    size = make_tokenizer().get_vocab_size() if control == "tokens" else 11
    assert found.weights["heads.voken_cls.decoder.bias"].shape == (size,)
    (record,) = records(tmp_path / "run")
    assert record["voken_cls"] == pytest.approx(
        math.log(size), rel=0.1
    )  # an untrained head knows nothing


def test_regression_and_contrast_with_the_images_features(data: Path, tmp_path: Path) -> None:
    feats = save_feats(tmp_path / "feats.npy", np.random.default_rng(0).standard_normal((11, 6)))
    flags = ["--feats", feats, "--weight", "voken_reg=1", "--weight", "voken_ctr=1", "--steps", 2]
    assert pretrain(data, tmp_path / "run", *flags) == 0
    assert {"voken_reg", "voken_ctr"} <= records(tmp_path / "run")[0].keys()
    names = open_run(tmp_path / "run", "voken_lm").weights
    assert "image.weight" in names
    assert not any("feats" in name for name in names)


def named_rows(path: Path, *ids: Path) -> Path:
    """Write voken rows whose manifest names their images, in one part or several."""
    save_rows(path, voken_rows(sentences(40), 11))
    files = {f"{i}:{file.name}": {"sha256": sha256_file(file)} for i, file in enumerate(ids)}
    write_manifest(path, [path], kind="vokens", count=11, config={"index_sha256": files})
    return path


def test_features_are_of_the_images_and_in_the_order_that_vokens_count(
    data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    feats = save_feats(tmp_path / "feats.npy", np.random.default_rng(0).standard_normal((11, 6)))
    names = feats.with_suffix(".ids").read_text().splitlines(keepends=True)
    first, rest, other = (tmp_path / f"{name}.ids" for name in ("first", "rest", "other"))
    first.write_text("".join(names[:4]))
    rest.write_text("".join(names[4:]))
    other.write_text("".join(reversed(names)))
    own = sha256_file(feats.with_suffix(".ids"))
    usual = ["--feats", feats, "--weight", "voken_reg=1", "--steps", 1]

    whole = named_rows(tmp_path / "v.jsonl", feats.with_suffix(".ids"))
    parts = named_rows(tmp_path / "p.jsonl", first, rest)
    assert pretrain(data, tmp_path / "a", *usual, file=whole) == 0
    assert pretrain(data, tmp_path / "b", *usual, file=parts) == 0
    assert (records(tmp_path / "a"), capfd.readouterr().err) == (records(tmp_path / "b"), "")

    for ids in ([other], [rest, first], [first]):
        rows = named_rows(tmp_path / "w.jsonl", *ids)
        assert pretrain(data, tmp_path / "c", *usual, file=rows) == 65
        made = f"{rows}: its vokens count images with ids of sha256 {sha256_file(ids[0])}"
        refused(capfd, made, f"{feats} has {own}")
    rows = named_rows(tmp_path / "w.jsonl", other)
    valid = ["--steps", 1, "--valid", rows]
    assert pretrain(data, tmp_path / "c", *valid, file=whole) == 65
    refused(capfd, f"{rows}: its vokens", f"{whole} with {own}")
    monkeypatch.setattr(f"{__name__}.FAST", [flag for flag in FAST if flag != "-q"])
    assert pretrain(data, tmp_path / "d", *usual) == 0
    assert "no manifest names the images that its vokens count: row i of" in capfd.readouterr().err


@pytest.mark.parametrize(
    "flag",
    [
        "--gradient-checkpointing",
        "--dtype=bfloat16",
        "--pack=document",
        "--label=first",
        "--shared-head",
    ],
)
def test_flags_train(data: Path, tmp_path: Path, flag: str) -> None:
    assert pretrain(data, tmp_path / "run", "--steps", 2, flag) == 0
    assert all(math.isfinite(r["loss"]) for r in records(tmp_path / "run"))


def test_gradient_checkpointing_changes_no_number(data: Path, tmp_path: Path) -> None:
    assert pretrain(data, tmp_path / "a", "--steps", 2) == 0
    assert pretrain(data, tmp_path / "b", "--steps", 2, "--gradient-checkpointing") == 0
    a, b = load_state(tmp_path / "a"), load_state(tmp_path / "b")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-6)


def test_compiling_changes_no_number(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = list[str]()
    monkeypatch.setattr(
        torch.nn.Module, "compile", lambda self: compiled.append(type(self).__name__)
    )
    assert pretrain(data, tmp_path / "a", "--steps", 2) == 0
    assert pretrain(data, tmp_path / "b", "--steps", 2, "--compile") == 0
    assert compiled == ["BertModel"]
    assert hashes(tmp_path / "a") == hashes(tmp_path / "b")


def test_a_lack_of_memory_halves_the_batches_and_is_recorded(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--steps", 4, "--valid", data / "valid.jsonl"]
    shape = save_shape(
        tmp_path / "still.json", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    start = ["--shape", shape, "--tokenizer", data / "t"]
    assert pretrain(data, tmp_path / "whole", *start, *flags, start=False) == 0
    real = voken_lm.VisuallySupervisedLM.forward

    def small(
        self: voken_lm.VisuallySupervisedLM, batch: voken_lm.VokenBatch
    ) -> dict[str, torch.Tensor]:
        if len(batch.ids) > 2:
            raise torch.OutOfMemoryError("out of memory")
        return real(self, batch)

    monkeypatch.setattr(voken_lm.VisuallySupervisedLM, "forward", small)
    capfd.readouterr()
    assert pretrain(data, tmp_path / "small", *start, *flags, start=False) == 0
    assert "step 1: out of memory: batches are now split into 4" in capfd.readouterr().err
    assert open_run(tmp_path / "small", "voken_lm").info["pieces"] == 4
    for mine, wanted in zip(records(tmp_path / "small"), records(tmp_path / "whole"), strict=True):
        assert mine["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
    a, b = load_state(tmp_path / "small"), load_state(tmp_path / "whole")
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-3, atol=1e-4)


def test_roberta_trains_and_counts_positions_from_its_padding(data: Path, tmp_path: Path) -> None:
    shape = save_shape(tmp_path / "roberta.json", model_type="roberta")
    words = save_tokenizer(tmp_path / "t", marks=("<s>", "<pad>", "</s>", "<mask>", "<unk>"))
    flags = ["--shape", shape, "--tokenizer", words, "--steps", 2]
    assert pretrain(data, tmp_path / "run", *flags, file=data / "text.txt", start=False) == 0
    encoder = load_encoder(str(tmp_path / "run"))
    assert type(encoder.model).__name__ == "RobertaModel"
    assert encoder.model.config.pad_token_id == 1


def test_a_loss_that_is_no_number_stops_with_the_last_good_checkpoint(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--epochs", 30, "--lr", 1e18, "--clip", 0, "--warmup", 0, "--checkpoint-steps", 1]
    assert pretrain(data, tmp_path / "run", *flags) == 70
    error = capfd.readouterr().err
    assert "is no longer a number in step" in error
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    assert f"the last good checkpoint is {checkpoint}" in error
    from safetensors.torch import load

    state = load(checkpoint.read_bytes())
    assert all(
        bool(torch.isfinite(t).all()) for name, t in state.items() if name.startswith("model.")
    )


@pytest.mark.parametrize(
    ("change", "code", "parts"),
    [
        (
            {"vokens": [11, 0]},
            65,
            ["rows.jsonl:61:", "expected a voken from -1 to 10 (there are 11 images), got 11"],
        ),
        ({"vokens": [1]}, 65, ["rows.jsonl:61:", '"vokens" has 1 entries, "spans" has 2']),
        (
            {"spans": [[0, 3], [4, 6]]},
            65,
            ["rows.jsonl:61:", "spans of other tokens", "vg revokenize"],
        ),
        (
            {"text": "bam den fis"},
            65,
            ["rows.jsonl:61:", "has 2 tokens, the encoder's tokenizer makes 3"],
        ),
    ],
)
def test_rows_that_do_not_align_are_refused_before_training(
    data: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    change: dict[str, Any],
    code: int,
    parts: list[str],
) -> None:
    rows = [json.loads(line) for line in (data / "rows.jsonl").read_text().splitlines()]
    path = save_rows(tmp_path / "rows.jsonl", [*rows, voken_rows(["bam den"], 11)[0] | change])
    assert pretrain(data, tmp_path / "run", "--vokens", 11, file=path) == code
    refused(capfd, *parts)
    assert not (tmp_path / "run").exists()


def test_other_refusals(data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    packed = save_packed(tmp_path / "x.npy", [[(9, 1)]], tokenizer={"sha256": "e" * 64})
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    nomask = save_tokenizer(tmp_path / "nomask", marks=("[PAD]", "[UNK]", "[CLS]", "[SEP]"))
    shape = data / "shape.json"
    usual: list[object] = ["--shape", shape, "--tokenizer", data / "t"]
    run = tmp_path / "run"
    for file, output, flags, code, part in (
        (packed, run, usual, 65, "e" * 64),
        (empty, run, usual, 65, "empty.txt: holds no token"),
        (tmp_path / "none.txt", run, usual, 66, "none.txt: cannot be read"),
        (
            data / "text.txt",
            run,
            [*usual, "--weight", "voken_cls=1"],
            65,
            "text.txt: holds no voken to learn",
        ),
        (
            data / "text.txt",
            run,
            [*usual, "--weight", "cls=1"],
            2,
            "'cls' is not one of mlm, voken_cls",
        ),
        (data / "text.txt", run, [*usual, "--weight", "mlm=x"], 2, "expected NAME=NUMBER"),
        (data / "text.txt", run, [*usual, "--weight", "mlm=0"], 2, "at least one is positive"),
        (data / "text.txt", run, [*usual, "--weight", "voken_reg=1"], 2, "--feats"),
        (
            data / "text.txt",
            run,
            [*usual, "--block", 65],
            78,
            "--block 65: the encoder takes 64 tokens",
        ),
        (data / "text.txt", run, ["--shape", shape], 2, "--tokenizer"),
        (data / "text.txt", run, [*usual, "--encoder", "x"], 2, "--shape/--encoder"),
        (
            data / "text.txt",
            run,
            ["--shape", "bert-huge", "--tokenizer", data / "t"],
            2,
            "'bert-huge' is neither one of",
        ),
        (
            data / "text.txt",
            run,
            ["--shape", shape, "--tokenizer", nomask],
            78,
            "no [MASK] or <mask>",
        ),
        (data / "text.txt", run, [*usual, "--epochs", 1, "--steps", 1], 2, "cannot be combined"),
        (data / "text.txt", tmp_path / "full", usual, 73, "full: is neither empty nor a run of vg"),
        (data / "text.txt", data / "text.txt", usual, 73, "is a file, expected a run folder"),
        (data / "text.txt", tmp_path / "no" / "run", usual, 73, "cannot be created"),
        (
            data / "text.txt",
            run,
            ["--encoder", tmp_path / "full"],
            66,
            "holds no *.safetensors weights",
        ),
    ):
        assert pretrain(data, output, *flags, file=file, start=False) == code, part
        refused(capfd, part)
    assert not run.exists() or not list(run.iterdir())


def test_a_damaged_checkpoint_is_named(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    begin = b"\x50" + bytes(7) + b'{"__metadata__":{"vg":'  # by which it is known for one of vg
    (run / "checkpoint.safetensors").write_bytes(begin + bytes(100))
    assert pretrain(data, run, "--steps", 2) == 65
    refused(capfd, "checkpoint.safetensors: is not a readable checkpoint", "--restart")
    assert pretrain(data, run, "--steps", 2, "--restart") == 0


def test_rows_that_changed_since_vg_wrote_them_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes((data / "rows.jsonl").read_bytes())
    write_manifest(rows, [rows], kind="vokens", count=11)
    assert pretrain(data, tmp_path / "a", "--steps", 2, file=rows) == 0
    capfd.readouterr()
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(True)[::-1]))  # as many bytes
    assert pretrain(data, tmp_path / "b", "--steps", 2, file=rows) == 65
    refused(capfd, f"{rows}: ", "sha256")


def test_a_restart_that_is_refused_leaves_the_old_run(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, cache = tmp_path / "run", tmp_path / "cache"
    assert pretrain(data, run, "--steps", 2, "--cache", cache) == 0
    before = hashes(run)
    capfd.readouterr()
    for file in cache.glob("*.json"):
        file.write_text("mine\n")
    assert pretrain(data, run, "--steps", 3, "--cache", cache, "--restart") == 73
    refused(capfd, "is where the manifest goes, and vg did not write or cannot read it")
    assert hashes(run) == before


def test_the_packed_inputs_can_be_kept_for_other_runs(data: Path, tmp_path: Path) -> None:
    assert pretrain(data, tmp_path / "a", "--steps", 2, "--cache", tmp_path / "cache") == 0
    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}
    assert len(stamps) == 3
    shutil.rmtree(tmp_path / "a")
    assert pretrain(data, tmp_path / "a", "--steps", 2, "--cache", tmp_path / "cache") == 0
    assert stamps == {p: p.stat().st_mtime_ns for p in (tmp_path / "cache").iterdir()}


def test_files_beside_the_packed_inputs_stay(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "run.packed" / "thesis.tex"
    mine.parent.mkdir()
    mine.write_text("x")
    assert pretrain(data, tmp_path / "run", "--steps", 2) == 0
    assert [p.name for p in mine.parent.iterdir()] == ["thesis.tex"]
    (tmp_path / "wiki.tokens").write_text("")  # WikiText's files are called so
    assert pretrain(data, tmp_path / "wiki", "--steps", 2) == 0
    (tmp_path / "other.packed").write_text("")
    assert pretrain(data, tmp_path / "other", "--steps", 2) == 73
    refused(capfd, "other.packed: cannot be written: File exists")


def test_runs_that_are_no_encoder_are_named(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "checkpoint.safetensors").write_bytes(b"")
    (tmp_path / "tuned" / "seed-3" / "model").mkdir(parents=True)
    (tmp_path / "tuned" / "run.json").write_text("{}")
    for name, part in (
        ("half", "half: is a run that has not finished"),
        ("tuned", "name one, as "),
    ):
        assert pretrain(data, tmp_path / "run", "--encoder", tmp_path / name, start=False) == 66
        refused(capfd, part)


def test_from_text_to_vokens_to_another_tokenizer_to_a_model(
    tiny: Path, data: Path, tmp_path: Path
) -> None:
    rows, packed = tmp_path / "v.jsonl", tmp_path / "p.npy"
    for line in (
        [
            "vokenize",
            data / "text.txt",
            "--index",
            tiny / "vg.faiss",
            "-o",
            rows,
            "--device",
            "cpu",
            "-q",
        ],
        ["revokenize", rows, "--tokenizer", data / "t", "-o", packed, "-q"],
    ):
        assert cli.run([str(a) for a in line]) == 0
    assert pretrain(data, tmp_path / "run", "--steps", 2, "--vokens", 60, file=packed) == 0
    assert open_run(tmp_path / "run", "voken_lm").weights["heads.voken_cls.decoder.bias"].shape == (
        60,
    )


def test_a_full_disk_at_the_end_loses_no_step(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    assert pretrain(data, tmp_path / "whole", "--steps", 2) == 0
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise SafetensorError("I/O error: No space left on device (os error 28)")

        patch.setattr(PreTrainedModel, "save_pretrained", full)
        assert pretrain(data, tmp_path / "run", "--steps", 2) == 74
    refused(capfd, "No space left on device; free some space")
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "run" / "run.json").exists()
    monkeypatch.setattr(voken_lm, "collate", None)  # nothing is trained again
    assert pretrain(data, tmp_path / "run", "--steps", 2) == 0
    assert hashes(tmp_path / "run") == hashes(tmp_path / "whole")


def test_a_run_is_written_into_the_folder_one_is_in_and_through_a_link(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "link").symlink_to("new")
    monkeypatch.chdir(tmp_path / "new")
    assert pretrain(data, Path(), "--steps", 2) == 0
    first = capfd.readouterr().out
    assert pretrain(data, tmp_path / "link", "--steps", 2) == 0
    assert capfd.readouterr().out == first, "it is the same run, finished"
    assert (tmp_path / "new" / "run.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "new"]
    assert pretrain(data, Path("/"), "--steps", 2) == 73
    refused(capfd, "expected a folder for a run")


def test_the_content_of_a_shape_file_is_one_of_the_settings(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shape = tmp_path / "shape.json"
    flags = ["--shape", shape, "--tokenizer", data / "t", "--steps", 1]
    save_shape(shape)
    assert pretrain(data, tmp_path / "run", *flags, start=False) == 0
    save_shape(shape, intermediate_size=24)
    assert pretrain(data, tmp_path / "run", *flags, start=False) == 78
    assert "start was" in capfd.readouterr().err
    shape.rename(tmp_path / "other.json")
    save_shape(tmp_path / "other.json")
    flags[1] = tmp_path / "other.json"
    assert pretrain(data, tmp_path / "run", *flags, start=False) == 0


def test_an_objective_is_a_line_of_the_table_and_a_method(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def toy(_: object, head: Any, rows: torch.Tensor, vokens: torch.Tensor) -> torch.Tensor:
        assert head.decoder(rows).shape == (len(vokens), 11)
        return 3.0 * len(vokens) + 0.0 * head.decoder(rows).sum()

    flags = ("--weight", "toy=1", "--vokens", 11, "--steps", 1)
    assert pretrain(data, tmp_path / "run", *flags) == 2
    monkeypatch.setitem(objectives.OBJECTIVES, "toy", objectives.Objective("vokens"))
    monkeypatch.setattr(voken_lm.VisuallySupervisedLM, "_toy", toy, raising=False)
    assert pretrain(data, tmp_path / "run", *flags) == 0
    assert records(tmp_path / "run")[-1]["toy"] == pytest.approx(3.0)
    assert "heads.toy.decoder.weight" in open_run(tmp_path / "run", "voken_lm").weights


def test_further_labels_are_learned_as_vokens_are(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = data / "rows.jsonl"
    how = ("--epochs", 2, "--valid", data / "valid.jsonl")
    assert pretrain(data, tmp_path / "vokens", *how, "--vokens", 11) == 0
    # The same labels by the other head, next to a text without any: every number is the same.
    weight = ("--weight", "mlm=1", "--weight", "also=1")
    flags = (*how, "--also", rows, *weight)
    assert pretrain(data, tmp_path / "also", *flags, file=data / "text.txt") == 0
    pairs = zip(records(tmp_path / "vokens"), records(tmp_path / "also"), strict=True)
    for one, other in pairs:
        assert (one["loss"], one["voken_cls"]) == (other["loss"], other["also"])
    packed = tmp_path / "rows.npy"
    carry = ["revokenize", str(rows), "-t", str(data / "t"), "-q", "-o", str(packed)]
    assert cli.run(carry) == 0
    flags = (*how, "--also", packed, *weight)
    assert pretrain(data, tmp_path / "packed", *flags, file=data / "text.txt") == 0
    assert [r["loss"] for r in records(tmp_path / "packed")] == [
        r["loss"] for r in records(tmp_path / "also")
    ]
    both = tmp_path / "both"
    assert pretrain(data, both, *how, "--also", rows, "--vokens", 13) == 0
    run = open_run(both, "voken_lm")
    assert run.info["config"]["weights"] == {"mlm": 1.0, "voken_cls": 1.0, "also": 1.0}
    assert run.info["config"]["also"] == [sha256_file(rows)]
    assert run.weights["heads.also.decoder.weight"].shape == (11, 16)
    last = records(both)[-1]
    assert last["loss"] == pytest.approx(last["mlm"] + last["voken_cls"] + last["also"], rel=1e-5)
    assert "also" not in last["valid"]
    capfd.readouterr()
    other = save_rows(tmp_path / "other.jsonl", voken_rows(sentences(60, seed=4), 11))
    for flags, code, why in (
        (("--also", other), 65, "expected the tokens of"),
        (("--weight", "also=1"), 2, "need one another"),
        (("--also", rows, "--weight", "mlm=1"), 2, "need one another"),
    ):
        assert pretrain(data, tmp_path / "wrong", *flags) == code
        assert why in capfd.readouterr().err


def test_binary_input_is_refused_and_replaced_bytes_are_told(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(b"\x08\x00\x00{}\n" * 9)
    assert pretrain(data, tmp_path / "binary", file=file) == 65
    refused(capfd, "x.txt: is not text: byte 0 in line 1; expected")
    file.write_bytes((data / "text.txt").read_bytes() + b"\xff a\nb \xfe\n")
    # Not `pretrain`, which is quiet.
    start = ["--shape", data / "shape.json", "--tokenizer", data / "t", "--block", 16]
    run = ["pretrain", file, *start, "--steps", 1, "--device", "cpu", "-o", tmp_path / "run"]
    assert cli.run([str(arg) for arg in run]) == 0
    assert "x.txt: 2 lines had bytes that are not UTF-8, replaced\n" in capfd.readouterr().err
