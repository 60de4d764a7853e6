"""`vg prepare pdtb` and `vua`, and fine-tuning on what they write."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import save_encoder
from tests.tiny.tasks import save_tags
from vgtools import cli

Runner = Callable[..., "subprocess.CompletedProcess[bytes]"]
PDTB = (
    "Relation,Section,ConnHeadSemClass1,Arg1_RawText,Arg2_RawText\n"
    'Implicit,2,Expansion.List,"One,\ntwo",three\n'
    "Implicit,0,Contingency.Cause.Reason,four,five\n"
    "Explicit,2,Expansion.List,six,seven\n"
)
VUA = (
    "sentence,label_seq,pos_seq\n"
    "the root of it,\"[0, 1, 1, 0]\",\"['DET', 'NOUN', 'ADP', 'PRON']\"\n"
    "it \udcff\udca3 fell,\"[0, 0, 0]\",\"['PRON', 'NOUN', 'VERB']\"\n"
    "it fell,\"[0, 0]\",\"['PRON', 'VERB']\"\n"
)


def test_pdtb_by_split(vg: Runner, tmp_path: Path) -> None:
    (tmp_path / "pdtb2.csv").write_text(PDTB)
    done = vg("prepare", "pdtb", "pdtb2.csv", "--split", "train", "-o", "train.jsonl", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.decode() == (
        "vg prepare: 1 relation in train.jsonl; left out: relation of another section: 1, relation "
        "that is not implicit: 1\n"
    )
    assert json.loads((tmp_path / "train.jsonl").read_text()) == {
        "sentence1": "One, two",
        "sentence2": "three",
        "label": "Expansion.List",
        "split": "train",
    }
    piped = vg("prepare", "pdtb", "-", "-q", input=PDTB.encode())
    assert [json.loads(line)["split"] for line in piped.stdout.splitlines()] == ["train", "dev"]
    assert vg("prepare", "pdtb", "pdtb2.csv", "--split", "valid", cwd=tmp_path).returncode == 2
    (tmp_path / "short.csv").write_text(PDTB.replace("Section,", ""))
    done = vg("prepare", "pdtb", "short.csv", cwd=tmp_path)
    assert done.returncode == 65
    assert b"short.csv:1: the header is Relation, ConnHeadSemClass1" in done.stderr


def test_vua_is_read_again_as_it_was_written(vg: Runner, tmp_path: Path) -> None:
    (tmp_path / "vua.csv").write_bytes(VUA.encode("utf-8", "surrogateescape"))
    call = ("prepare", "vua", "vua.csv", "-o", "train.jsonl")
    done = vg(*call, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.decode().splitlines() == [
        "vg prepare: 2 tagged sentences in train.jsonl; left out: sentence without a noun: 1",
        "vg prepare: 1 lines are not UTF-8; bad bytes were replaced",
    ]
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    assert rows == [
        {"text": "the root of it", "tags": [None, "metaphor", None, None]},
        {"text": "it \ufffd\ufffd fell", "tags": [None, "literal", None]},
    ]
    assert b"up to date" in vg(*call, cwd=tmp_path).stderr
    listed = vg("finetune", "vuan", "--list", "--train", "train.jsonl", "--dev", "train.jsonl",
                cwd=tmp_path)  # fmt: skip
    first, second = map(json.loads, listed.stdout.splitlines())
    assert (first["split"], second["split"], first["examples"]) == ("train", "dev", 2)
    assert first["labels"] == [
        {"label": "metaphor", "count": 1, "share": 0.5},
        {"label": "literal", "count": 1, "share": 0.5},
    ]
    assert first["notes"] == []


def test_tags_are_fine_tuned_and_scored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_encoder(tmp_path / "encoder", positions=64)
    data = save_tags(tmp_path / "vuan", 12)
    words = ["finetune", "vuan", data, "-e", tmp_path / "encoder", "-o", tmp_path / "run", "-q"]
    flags = ["--dev", data / "train.jsonl", "--epochs", 2, "--batch-size", 4]
    assert cli.run([*map(str, [*words, *flags, "--device", "cpu"])]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(records) == 2
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    base = info["majority"]["accuracy"]
    assert records[-1]["accuracy"] == info["seeds"]["9595"]["accuracy"]
    assert 50 <= base < 100
    predictions = tmp_path / "run" / "seed-9595" / "predictions.jsonl"
    rows = [json.loads(line) for line in predictions.read_text().splitlines()]
    pairs = [
        pair for row in rows for pair in zip(row["prediction"], row["label"], strict=True)
        if pair[1]
    ]  # fmt: skip
    right = sum(said == label for said, label in pairs)
    assert records[-1]["accuracy"] == pytest.approx(100 * right / len(pairs))
    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(predictions.parent / "model")
    assert model.config.id2label == {0: "literal", 1: "metaphor"}
    assert cli.run(["score", "vuan", str(predictions)]) == 0
    assert json.loads(capfd.readouterr().out)["accuracy"] == records[-1]["accuracy"]
    assert cli.run(["compare", str(tmp_path / "run"), "--majority"]) == 0
    run, common = map(json.loads, capfd.readouterr().out.splitlines())
    assert common["tasks"]["vuan"]["mean"] == base
    assert run["tasks"]["vuan"]["mean"] == records[-1]["accuracy"]
