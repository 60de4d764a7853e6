"""`vg pretrain grounding` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.tiny.grounded import captions, save_images, save_scene, save_texts, sentences
from tests.tiny.runs import hashes, records, refused, stop_and_resume
from tests.tiny.visual import encoder_of, save_regions
from tests.training.test_processes import ended, start
from vgtools import cli
from vgtools.io.errors import Exit
from vgtools.models.encoder import load_masked_lm, save_pretrained
from vgtools.models.layers import LayerStack
from vgtools.models.references import fingerprint
from vgtools.models.runs import read_run
from vgtools.systems.grounding.model import open_grounding

FAST = ["--batch-size", 8, "--block", 24, "--lr", "1e-3", "--log-every", 2, "--device", "cpu", "-q"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `encoder`, texts, captions, features, and an index of captions."""
    folder = tmp_path_factory.mktemp("grounding")
    save_pretrained(folder / "encoder", encoder_of(hidden_dropout_prob=0.1))
    save_texts(folder / "text.jsonl", sentences(20))
    own = {i: f"image{i % 20:03}" for i in range(20)}
    save_texts(folder / "captions.jsonl", sentences(20, 1), own)
    save_texts(folder / "valid.jsonl", sentences(12, 2), {i: f"image0{20 + i}" for i in range(6)})
    save_images(folder / "f.npy", 26)
    save_scene(folder / "scene.faiss")
    return folder


SHOWN: dict[str, list[str]] = {
    "none": [],
    "i2t": ["--feats", "f.npy"],
    "t2i": ["--feats", "f.npy"],
    "both": ["--feats", "f.npy", "--drop-images", "0.2"],
    "scene": ["--feats", "f.npy", "--index", "scene.faiss", "-k", "3"],
}


def pretrain(data: Path, output: Path, strategy: str, *flags: object) -> int:
    args = ["pretrain", "grounding", data / "text.jsonl", data / "captions.jsonl", "-o", output]
    args += ["-e", data / "encoder", "--strategy", strategy]
    files = [data / a if (data / a).is_file() else a for a in SHOWN.get(strategy, [])]
    return cli.run([str(a) for a in [*args, *files, *FAST, *flags]])


@pytest.mark.parametrize("strategy", SHOWN)
def test_a_run_that_can_be_opened_again(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], strategy: str
) -> None:
    run = tmp_path / "run"
    flags = ["--epochs", 2, "--valid", data / "valid.jsonl", "--cross-layers", 1]
    assert pretrain(data, run, strategy, *flags) == 0
    out = capfd.readouterr()
    printed = [json.loads(line) for line in out.out.splitlines()]
    assert (printed, out.err) == (records(run), "")
    last = printed[-1]
    losses = {"jmlm", "jmrm"} if strategy in ("t2i", "both") else {"jmlm"}
    assert set(last["valid"]) == {*losses, "perplexity"}
    assert last["loss"] == pytest.approx(sum(last[name] for name in losses), rel=1e-5)
    files = ["encoder", "grounding.safetensors", "metrics.jsonl", "run.json"]
    assert sorted(p.name for p in run.iterdir()) == files
    info = read_run(run, "grounding")
    assert (info["texts"], info["captions"], info["steps"]) == (40, 20, 10)
    assert info["config"]["warmup"] == 0.05, "LXMERT's"
    assert info["grounding"]["strategy"] == strategy
    assert info["grounding"]["images"] == {"none": 0, "scene": 3}.get(strategy, 1)
    if strategy == "scene":
        assert info["index"]["keys"] == "captions"
        assert 0 <= info["without_query"] < 0.5

    start = load_masked_lm(str(data / "encoder"))
    again = load_masked_lm(str(run))
    assert fingerprint(again.model) == fingerprint(start.model), "the text encoder stays as it is"
    opened = open_grounding(str(run))
    assert not opened.model.training
    ids = torch.tensor([[2, 7, 8, 9, 3]])
    mask = torch.ones_like(ids, dtype=torch.bool)
    with torch.inference_mode():
        states = opened.encoder().eval()(ids, mask)
    assert states.shape == (1, 5, 16)
    assert torch.isfinite(states).all()


@pytest.mark.parametrize(("strategy", "way"), [("both", "signal"), ("scene", "kill")])
def test_resumed_equals_unbroken(data: Path, tmp_path: Path, strategy: str, way: str) -> None:
    flags = ["--epochs", 2, "--valid", data / "valid.jsonl", "--checkpoint-steps", 2]
    flags += ["--micro-batch", 3]
    cut, whole = stop_and_resume(
        lambda run: pretrain(data, run, strategy, *flags), tmp_path, way, 5
    )
    assert hashes(cut) == hashes(whole)


def test_regions_in_place_of_vectors(data: Path, tmp_path: Path) -> None:
    save_regions(tmp_path / "r.npy", images=6)
    save_texts(tmp_path / "c.jsonl", sentences(12), {i: f"image{i % 6}" for i in range(12)})
    args = ["pretrain", "grounding", tmp_path / "c.jsonl", "--strategy", "t2i", "--boxes", 3]
    args += ["--regions", tmp_path / "r.npy", "-e", data / "encoder", "-o", tmp_path / "run"]
    assert cli.run([str(a) for a in [*args, "--steps", 2, *FAST]]) == 0
    assert read_run(tmp_path / "run")["grounding"]["regions"] == 3
    assert records(tmp_path / "run")[-1]["jmlm"] == 0, "t2i learns no words of captions"


def test_a_finished_run_is_left_alone_and_other_settings_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a"
    assert pretrain(data, run, "scene", "--steps", 2) == 0
    before = hashes(run)
    first = capfd.readouterr().out
    assert pretrain(data, run, "scene", "--steps", 2) == 0
    assert capfd.readouterr().out == first
    assert hashes(run) == before
    for flags, what in (
        (["--query", "whole"], "index was"),
        (["-k", 2], "grounding was"),
        (["--drop-images", 0.5], "drop_images was 0.0, is now 0.5"),
        (["--dropout", 0.5], "dropout was null, is now 0.5"),
    ):
        assert pretrain(data, run, "scene", "--steps", 2, *flags) == Exit.CONFIG
        refused(capfd, what)


def test_images_under_another_name_than_the_index_has_are_reported(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # Their own captions would find them; retrieve --not-own reports them in the same words.
    texts = [str(text) for _, row in captions() for text in [row["text"]]]
    why = f'with an "image" that {data}/scene.faiss does not have by this name'
    shown = ["--feats", data / "f.npy", "--index", data / "scene.faiss"]
    exact = {i: f"image{i:03}" for i in range(20)}
    other = exact | {i: f"photos/image{i:03}.jpg" for i in range(5)}
    for names, expected in ((exact, ""), (other, f"c.jsonl: 5 texts {why}")):
        rows = save_texts(tmp_path / "c.jsonl", texts, names)
        run = tmp_path / f"run{len(expected)}"
        loud = FAST[: FAST.index("-q")]
        args = ["pretrain", "grounding", rows, "-o", run, "-e", data / "encoder", *shown, *loud]
        assert cli.run([str(a) for a in [*args, "--strategy", "scene", "--steps", 2]]) == 0
        err = capfd.readouterr().err
        assert (why in err, expected in err) == (bool(expected), True)
        args = ["perplexity", rows, "-e", run, *shown, "--samples", 50, "--pictures", "found"]
        assert cli.run([str(a) for a in [*args, "--device", "cpu"]]) == 0
        printed = capfd.readouterr()
        assert (why in printed.err, expected in printed.err) == (bool(expected), True)
        record = json.loads(printed.out)
        shown_from = (record["feats"], record["index"])
        assert shown_from == (str(data / "f.npy"), str(data / "scene.faiss"))


def test_dropout_is_the_encoders_or_what_is_asked_for(data: Path, tmp_path: Path) -> None:
    own = LayerStack(load_masked_lm(str(data / "encoder")).model.base_model)
    assert {m.p for m in own.modules() if isinstance(m, torch.nn.Dropout)} == {0.0, 0.1}
    for name, flags in {"own": [], "none": ["--dropout", 0]}.items():
        assert pretrain(data, tmp_path / name, "none", "--steps", 2, *flags) == 0
    assert records(tmp_path / "own")[0]["jmlm"] != records(tmp_path / "none")[0]["jmlm"]


@pytest.mark.parametrize(
    ("strategy", "flags", "code", "why"),
    [
        ("synthesis", [], Exit.USAGE, "the paper tried images drawn by a network and dropped them"),
        ("i3t", [], Exit.USAGE, "'i3t' is not one of none, i2t, t2i, both, scene, object, keyword"),
        ("none", ["--feats", "f.npy"], Exit.USAGE, "none shows no image"),
        ("i2t", ["--regions", "r.npy"], Exit.USAGE, "i2t needs exactly one of them"),
        ("object", ["--feats", "f.npy"], Exit.USAGE, "object finds images in an index"),
        ("i2t", ["--index", "x.faiss"], Exit.USAGE, "i2t finds no image"),
        ("i2t", ["-k", "4"], Exit.USAGE, "i2t finds no image"),
        ("none", ["--query", "whole"], Exit.USAGE, "none finds no image"),
        ("none", ["--clusters", "3"], Exit.USAGE, "none clusters no nouns"),
        ("none", ["--tagger", "builtin:spacy-sm"], Exit.USAGE, "none clusters no nouns"),
        ("none", ["--boxes", "3"], Exit.USAGE, "belongs to --regions"),
        ("none", ["--drop-images", "0.5"], Exit.USAGE, "none shows no image"),
        ("i2t", ["--weight", "jmrm=1"], Exit.USAGE, "'jmrm' is not one of jmlm"),
        ("both", ["--weight", "jmrm=1"], Exit.USAGE, "both learns jmlm and jmrm"),
        ("none", ["--block", "999"], Exit.CONFIG, "--block 999: the encoder takes 64 tokens"),
        ("none", ["--cross-layers", "3"], Exit.CONFIG, "expected 1 to 2 layers"),
    ],
)
def test_refusals(
    data: Path,
    tmp_path: Path,
    strategy: str,
    flags: list[str],
    code: int,
    why: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert pretrain(data, tmp_path / "a", strategy, *flags) == code
    refused(capfd, why)


def test_more_clusters_than_images_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--feats", data / "f.npy", "--index", data / "scene.faiss", "-k", 2]
    assert pretrain(data, tmp_path / "a", "object", *flags, "--clusters", 3) == Exit.USAGE
    refused(capfd, "more clusters (3) than images per text (2)")
    assert pretrain(data, tmp_path / "a", "object", *flags) == Exit.USAGE  # clusters follow -k
    refused(capfd, "its images are found by captions; object needs nouns")


def test_photos_to_train_and_to_validate_on_are_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--valid", data / "captions.jsonl"]
    assert pretrain(data, tmp_path / "a", "i2t", *flags) == Exit.DATA
    why = "captions.jsonl: 20 images are in both training and validation; split by image"
    refused(capfd, why)


@pytest.mark.slow
def test_two_processes_agree_with_one(data: Path, tmp_path: Path) -> None:
    """Which texts, masks and images a step has does not depend on the processes that share it."""
    save_pretrained(tmp_path / "still", encoder_of(attention_probs_dropout_prob=0.0))
    args = ["pretrain", "grounding", data / "text.jsonl", data / "captions.jsonl"]
    args += ["-e", tmp_path / "still", "--strategy", "both", "--feats", data / "f.npy"]
    args += ["--epochs", "2", *map(str, FAST), "--log-every", "1", "--valid", data / "valid.jsonl"]
    assert cli.run([str(a) for a in [*args, "-o", tmp_path / "one"]]) == 0
    ended(start(*args, "-o", tmp_path / "two"))
    one, two = (records(tmp_path / name) for name in ("one", "two"))
    assert len(one) == len(two) == 10
    for mine, theirs in zip(one, two, strict=True):
        assert theirs["jmlm"] == pytest.approx(mine["jmlm"], rel=1e-3)
        assert theirs["jmrm"] == pytest.approx(mine["jmrm"], rel=1e-3)
    assert one[-1]["valid"] == pytest.approx(two[-1]["valid"], rel=1e-3)
