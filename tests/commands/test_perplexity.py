"""`vg perplexity` as a user runs it, against the model's own losses."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.tiny import save_feats
from tests.tiny.grounded import IMAGES, D, save_images, save_texts, sentences
from tests.tiny.lm import make_tokenizer
from tests.tiny.runs import refused
from tests.tiny.visual import BACKBONE, encoder_of, save_regions
from vgtools import cli
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import Exit
from vgtools.models.encoder import as_encoder, load_masked_lm, save_pretrained
from vgtools.models.masked_lm import new_lm
from vgtools.systems.grounding.inputs import GroundedExamples, GroundedMasking
from vgtools.systems.grounding.pictures import open_pictures
from vgtools.systems.grounding.scoring import shown
from vgtools.systems.grounding.texts import read_texts

QUICK = ["--device", "cpu", "-q", "--samples", 50, "--mask-rate", 0.5, "--block", 24]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `encoder`, `none`, `i2t`, `c.jsonl` (40 captions of 20 images), `f.npy`."""
    folder = tmp_path_factory.mktemp("perplexity")
    save_pretrained(folder / "encoder", encoder_of())
    own = {i: f"image{i % 20:03}" for i in range(40)}
    save_texts(folder / "c.jsonl", sentences(40), own)
    save_images(folder / "f.npy")
    for strategy, flags in (("none", []), ("i2t", ["--feats", str(folder / "f.npy")])):
        args = ["pretrain", "grounding", folder / "c.jsonl", "--strategy", strategy, *flags]
        args += ["-e", folder / "encoder", "-o", folder / strategy, "--steps", 8, "--batch-size", 8]
        args += ["--lr", "1e-2", "--device", "cpu", "-q"]
        assert cli.run([str(a) for a in args]) == 0
    return folder


def perplexity(
    data: Path, capfd: pytest.CaptureFixture[str], *flags: object, text: str | Path = "c.jsonl"
) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert cli.run([str(a) for a in ["perplexity", data / text, *QUICK, *flags]]) == 0
    out = capfd.readouterr()
    assert out.err == ""
    return [json.loads(line) for line in out.out.splitlines()]


def test_a_model_without_finite_losses_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(data / "encoder", tmp_path / "e")
    config = tmp_path / "e" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"layer_norm_eps": -50.0}))
    args = ["perplexity", data / "c.jsonl", *QUICK, "-e", tmp_path / "e"]
    assert cli.run([str(a) for a in args]) == Exit.DATA
    refused(capfd, f"{tmp_path}/e: computes a loss that is not a number")


def test_a_plain_language_model_gets_what_its_own_loss_says(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (record,) = perplexity(data, capfd, "-e", data / "encoder")
    text = load_masked_lm(str(data / "encoder"))
    texts = read_texts([str(data / "c.jsonl")], text.tokenizer, 22)
    examples = GroundedExamples(texts, GroundedMasking.of(text.tokenizer, rate=0.5))
    total = count = 0.0
    for number in range(len(texts)):
        (batch,) = examples.collate(np.array([number]), None)
        with torch.inference_mode():
            logits = text.model.eval()(input_ids=batch.ids).logits.flatten(0, 1)
        total += float(F.cross_entropy(logits[batch.masked], batch.tokens, reduction="sum"))
        count += len(batch.tokens)
    assert record["tokens"] == count > 60
    assert record["nll"] == pytest.approx(total / count, rel=1e-5)
    assert record["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)
    assert record["low"] < record["perplexity"] < record["high"]
    assert (record["texts"], record["groups"], record["pictures"]) == (40, 20, "none")


def test_models_and_images_are_compared_with_the_first(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kinds = ["--pictures", "own", "--pictures", "other", "--pictures", "none"]
    flags = ["-e", data / "none", "-e", data / "i2t", "--feats", data / "f.npy", *kinds]
    output = tmp_path / "nll.jsonl"
    found = perplexity(data, capfd, *flags, "-o", output)
    assert [(Path(r["encoder"]).name, r["pictures"]) for r in found] == [
        ("none", "none"), ("i2t", "own"), ("i2t", "other"), ("i2t", "none"),
    ]  # fmt: skip
    shown_from = [record.get("feats") for record in found]
    assert shown_from == [None, str(data / "f.npy"), str(data / "f.npy"), None]
    assert "difference" not in found[0]
    args = ["perplexity", data / "text.jsonl", *flags, "-o", data / "f.npy"]
    assert cli.run(list(map(str, args))) == 73
    assert "is an input of this command" in capfd.readouterr().err
    assert len({r["nll"] for r in found}) == 4
    rows = [json.loads(line) for line in output.read_bytes().splitlines()]
    tokens = np.array([row["tokens"] for row in rows])
    nll = np.array([row["nll"] for row in rows])
    assert nll.shape == (40, 4)
    assert (nll.sum(0) / tokens.sum()).tolist() == pytest.approx([r["nll"] for r in found])
    for record in found[1:]:
        change = record["nll"] - found[0]["nll"]
        assert record["difference"]["nll"] == pytest.approx(change)
        assert record["difference"]["low"] < change < record["difference"]["high"]
        assert record["content"]["tokens"] < record["tokens"]
    assert read_manifest(output, "perplexities")["records"][1]["pictures"] == "own"
    again = perplexity(data, capfd, *flags[:6], "--batch-size", 1)
    assert again[1]["pictures"] == "own", "what the run was trained with"
    assert again[1]["nll"] == pytest.approx(found[1]["nll"], rel=1e-5)


def test_images_that_no_model_reads_are_noted(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loud = [flag for flag in QUICK if flag != "-q"]
    args = ["perplexity", data / "c.jsonl", *loud, "-e", data / "none"]
    assert cli.run(list(map(str, [*args, "--feats", data / "f.npy", "--pictures", "own"]))) == 0
    assert "no model reads images with its text" in capfd.readouterr().err
    assert cli.run(list(map(str, [*args, "--pictures", "none"]))) == 0
    assert "no model reads images" not in capfd.readouterr().err


def test_a_table_has_the_rows_of_the_paper(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    flags = ["-e", data / "none", "-e", data / "i2t", "--feats", data / "f.npy", "--table"]
    args = ["perplexity", data / "c.jsonl", *QUICK, *flags, "--reported", "grounding:2"]
    assert cli.run([str(a) for a in args]) == 0
    lines = capfd.readouterr().out.splitlines()
    first, second = lines[2].split(" | "), lines[3].split(" | ")
    assert (first[0], first[1], first[3:]) == (f"| {data / 'none'}", "none", ["–", "–", "– |"])
    assert second[:2] == [f"| {data / 'i2t'}", "own"]
    assert re.fullmatch(r"[+-]\d\.\d{3} \([+-]\d\.\d{3} to [+-]\d\.\d{3}\)", second[3])
    expected = "| Transferred i2t (reported) | 0/1 | Wiki-BC 30.0, COCO 4.6 | – | – | – |"
    assert lines[5] == expected
    assert "40 texts, drawn in 20 groups for the intervals; 50% of the tokens masked." in lines[-5]
    assert "the spread of training seeds is not counted" in lines[-3]
    assert lines[-1] == "Reported in Sileo 2021, Table 2; its models and data are its own."
    assert cli.run(["perplexity", "x", "-e", "y", "--reported", "grounding:3"]) == Exit.USAGE
    refused(capfd, "no table 'grounding:3' of perplexities; known are grounding:1, 2")


def test_runs_take_regions_or_features_as_they_were_trained(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    regions = save_regions(tmp_path / "r.npy", 20)
    texts = save_texts(
        tmp_path / "c.jsonl", sentences(40), {i: f"image{i % 20}" for i in range(40)}
    )
    args = ["pretrain", "grounding", texts, "--strategy", "i2t", "-o", tmp_path / "r3"]
    args += ["--regions", regions, "--boxes", 3, "-e", data / "encoder", "--steps", 2]
    assert cli.run([str(a) for a in [*args, "--device", "cpu", "-q"]]) == 0
    both = ["--feats", data / "f.npy", "--regions", regions]
    for run, text, alone in (
        (data / "i2t", data / "c.jsonl", both[:2]),
        (tmp_path / "r3", texts, both[2:]),
    ):
        found = [
            perplexity(data, capfd, "-e", run, *flags, text=text)[0] for flags in (both, alone)
        ]
        assert found[0] == found[1]
        assert found[0]["pictures"] == "own"


def test_text_without_images_is_read_with_the_placeholder(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (data / "t.txt").write_text("\n".join([*sentences(10, 3), "", "bam"]) + "\n")
    flags = ["-e", data / "i2t", "--pictures", "none"]
    (record,) = perplexity(data, capfd, *flags, text="t.txt")
    assert record["texts"] == record["groups"] == 12, "an empty line is a text, too"


def test_what_cannot_be_compared_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(code: int, *parts: str, flags: list[object], text: str = "c.jsonl") -> None:
        capfd.readouterr()
        assert cli.run([str(a) for a in ["perplexity", data / text, *QUICK, *flags]]) == code
        refused(capfd, *parts)

    run = data / "i2t"
    fails(Exit.USAGE, "was trained with i2t: name its --feats", flags=["-e", run])
    fails(Exit.USAGE, "'mine' is not one of own", flags=["-e", run, "--pictures", "mine"])
    save_images(tmp_path / "g.npy", backbone={**BACKBONE, "fingerprint": "c" * 64})
    fails(
        Exit.DATA, "g.npy: was made with the backbone", "b" * 64, "c" * 64,
        flags=["-e", run, "--feats", tmp_path / "g.npy"],
    )  # fmt: skip
    save_feats(tmp_path / "h.npy", np.ones((IMAGES, D + 1)))
    fails(
        Exit.DATA, f"h.npy: has {D + 1} numbers per feature, the model was trained with {D}",
        flags=["-e", run, "--feats", tmp_path / "h.npy"],
    )  # fmt: skip
    words = make_tokenizer(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[X]"))
    from tests.tiny.lm import SHAPE

    save_pretrained(tmp_path / "other", as_encoder(new_lm(SHAPE, words), words, "tiny"))
    flags: list[object] = ["-e", data / "encoder", "-e", tmp_path / "other"]
    fails(Exit.CONFIG, "has the tokenizer", "compare models of one tokenizer", flags=flags)
    (data / "empty.txt").write_text("\n")
    flags = ["-e", data / "encoder"]
    fails(Exit.DATA, "empty.txt: no word of it is masked", flags=flags, text="empty.txt")
    save_texts(data / "alone.jsonl", ["bam bet", "bin"], {0: "image001", 1: "image001"})
    flags = ["-e", run, "--feats", data / "f.npy", "--pictures", "other"]
    fails(Exit.DATA, "no other text of another image", flags=flags, text="alone.jsonl")
    fails(Exit.CONFIG, "--block 99: the encoder takes 64", flags=[*flags, "--block", 99])


def test_texts_without_images_need_no_features(
    data: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (data / "u.txt").write_text("\n".join(sentences(10, 3)) + "\n")
    flags = ["-e", data / "none", "-e", data / "i2t"]
    without = perplexity(data, capfd, *flags, text="u.txt")
    assert [r["pictures"] for r in without] == ["none", "none"]
    given = perplexity(data, capfd, *flags, "--feats", data / "f.npy", text="u.txt")
    assert given == without


def test_a_model_without_a_head_is_refused(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = load_masked_lm(str(data / "encoder"))
    bare = as_encoder(text.model.base_model, text.tokenizer, "bare")
    save_pretrained(tmp_path / "bare", bare)
    args = ["perplexity", data / "c.jsonl", *QUICK, "-e", tmp_path / "bare"]
    assert cli.run([str(a) for a in args]) == Exit.CONFIG
    refused(capfd, "bare: has no masked language model's head, only an encoder")


def test_controls_never_show_the_own_image(tmp_path: Path) -> None:
    save_images(tmp_path / "f.npy")
    own = {i: f"image{i % 2:03}" for i in range(30)}
    save_texts(tmp_path / "c.jsonl", sentences(30), own)
    save_pretrained(tmp_path / "encoder", encoder_of())
    text = load_masked_lm(str(tmp_path / "encoder"))
    pictures = open_pictures(str(tmp_path / "f.npy"), None, 1)
    texts = read_texts([str(tmp_path / "c.jsonl")], text.tokenizer, 22)
    examples = GroundedExamples(texts, GroundedMasking.of(text.tokenizer), pictures)
    for kind in ("random", "other"):
        rows = shown(examples, kind)
        assert rows.shape == (30, 1)
        assert (rows >= 0).mean() > 0.5
        assert (rows != examples.own[:, None]).all()
