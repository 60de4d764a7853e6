"""`vg prepare pdtb` and `vua`, and fine-tuning on what they write."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny import save_encoder
from tests.tiny.tasks import save_tags
from tests.tiny.vtasks import save_grounding, save_nlvr2, save_vcr, save_vqa
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
        "vg prepare: 2 tagged sentences in train.jsonl; 1 line had bytes that are not UTF-8, "
        "replaced; left out: sentence without a noun: 1",
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


SNLI = (
    '{"captionID":"77.jpg#2","gold_label":"-","pairID":"77.jpg#2r1n","sentence1":"A dog .",'
    '"sentence2":"No agreement ."}\n'
    '{"captionID":"77.jpg#2","gold_label":"neutral","pairID":"77.jpg#2r1e","sentence1":"A dog .",'
    '"sentence2":"It is\u2028old ."}\n'
)


def test_the_texts_of_a_task_are_one_row_per_example_of_every_split(
    vg: Runner, tmp_path: Path
) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"snli_1.0_{split}.jsonl").write_text(SNLI)
    row = {
        "id": "77.jpg#2r1e",
        "split": "train",
        "text": "A dog . It is\u2028old .",
        "image": "77.jpg",
    }
    done = vg("prepare", "task", "snli", ".", "-o", "t.jsonl", cwd=tmp_path)
    assert done.stderr.decode() == "vg prepare: 3 texts in t.jsonl\n"
    found = [json.loads(line) for line in (tmp_path / "t.jsonl").read_bytes().splitlines()]
    assert found == [row | {"split": split} for split in ("train", "dev", "test")]
    again = vg("prepare", "task", "snli", ".", "-o", "t.jsonl", cwd=tmp_path)
    assert again.stderr.decode() == "vg prepare: 3 texts in t.jsonl (up to date)\n"
    piped = vg(
        *("prepare", "task", "SNLI", ".", "--no-test", "--train", "-", "-q"),
        cwd=tmp_path,
        input=SNLI.replace("neutral", "entailment").encode(),
    )
    assert [json.loads(line)["split"] for line in piped.stdout.splitlines()] == ["train", "dev"]


def test_texts_of_tasks_with_pictures_name_them(vg: Runner, tmp_path: Path) -> None:
    """What a VisualBERT learns from before the task, of one split."""
    for name, save in (
        ("nlvr2", save_nlvr2),
        ("vqa", save_vqa),
        ("vcr", save_vcr),
        ("flickr", save_grounding),
    ):
        save(tmp_path / name, 2)

    def rows(task: str, folder: str, split: str = "train") -> list[dict[str, object]]:
        done = vg("prepare", "task", task, folder, "--split", split, "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert rows("nlvr2", "nlvr2")[1] == {
        "id": "train-0-1-0",
        "split": "train",
        "images": ["train-0-1-img0", "train-0-1-img1"],
        "text": "bam dun",
    }
    assert rows("vqa", "vqa", "dev")[1] == {
        "id": "1001",
        "split": "dev",
        "image": "COCO_val2014_000000000102",
        "text": "bam 2 dogs",  # nine annotators' answer
    }
    answers = rows("vcr-qa", "vcr")
    assert [row["id"] for row in answers[:5]] == [f"train-0-{i}" for i in range(4)] + ["train-1-0"]
    assert [row["text"] for row in answers[:2]] == ["bam Casey ? dun ban", "bam Casey ? dun bar"]
    assert answers[0]["image"] == "lsmdc_3015_TINY/train-0@0.jpg"
    rationales = rows("vcr-qar", "vcr")
    assert len(rationales) == len(answers) == 8
    assert rationales[0]["text"] == "bam Casey ? dun ban kin Riley bat"
    assert len(rows("flickr30k-grounding", "flickr")) == 2, "a caption counts once"
    wrong = vg("prepare", "task", "vqa", "vqa", "--split", "val", cwd=tmp_path)
    assert (wrong.returncode, b"expected one of train, dev, got 'val'" in wrong.stderr) == (2, True)


def test_texts_are_made_again_when_only_the_annotations_change(vg: Runner, tmp_path: Path) -> None:
    """VQA's questions end in answers, which are in a file of their own."""
    save_vqa(tmp_path / "vqa", 2)
    call = ("prepare", "task", "vqa", "vqa", "--split", "dev", "-o", "texts.jsonl")
    assert vg(*call, cwd=tmp_path).returncode == 0
    assert (tmp_path / "texts.jsonl").read_text().count("bam 2 dogs") == 1
    annotations = tmp_path / "vqa" / "v2_mscoco_val2014_annotations.json"
    annotations.write_text(annotations.read_text().replace("two dogs", "red cat"))
    done = vg(*call, cwd=tmp_path)
    assert (done.returncode, b"up to date" in done.stderr) == (0, False)
    assert (tmp_path / "texts.jsonl").read_text().count("bam red cat") == 1
    inputs = json.loads((tmp_path / "texts.json").read_text())["inputs"]
    assert str(annotations.relative_to(tmp_path)) in [entry["path"] for entry in inputs]


def test_one_file_in_two_roles_is_not_taken_for_another(vg: Runner, tmp_path: Path) -> None:
    for name, text in (("a", "dull"), ("b", "fine")):
        (tmp_path / f"{name}.tsv").write_text(f"sentence\tlabel\n{text} one\t0\n{text} two\t1\n")
    for dev in ("b.tsv", "a.tsv"):
        files = ("--train", "a.tsv", "--dev", dev, "--test", "b.tsv")
        done = vg("prepare", "task", "sst-2", *files, "-o", "t.jsonl", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
        said = {row["text"].split()[0] for row in rows if row["split"] == "dev"}
        assert said == {{"b.tsv": "fine", "a.tsv": "dull"}[dev]}


def test_texts_of_other_kinds(vg: Runner, tmp_path: Path) -> None:
    save_tags(tmp_path / "vuan", count=2)
    done = vg("prepare", "task", "vuan", "vuan", "-q", cwd=tmp_path)
    (train, _, dev, _) = [json.loads(line) for line in done.stdout.splitlines()]
    first = json.loads((tmp_path / "vuan" / "train.jsonl").read_text().splitlines()[0])
    assert train == {"id": "0", "split": "train", "text": first["text"]}
    assert dev["split"] == "dev"


def test_what_is_wrong_with_a_task_s_texts_is_said(vg: Runner, tmp_path: Path) -> None:
    for args, code, said in (
        (("task", "glue"), 2, b"unknown task 'glue'"),
        (("task", "snli", "."), 66, b"has no snli_1.0_train.jsonl"),
        (("task", "snli", "--train", "-", "--dev", "-"), 2, b"only one file can come from a pipe"),
    ):
        done = vg("prepare", *args, cwd=tmp_path)
        assert done.returncode == code
        assert said in done.stderr.replace(b"\n", b" ")
