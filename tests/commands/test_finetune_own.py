"""`vg finetune classify`, `regress`, `tag`, `choice`, `answer`: a table of one's own is learned by
the path of the built-in tasks, and its runs are scored and compared like theirs.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.tiny import save_encoder, save_feats
from tests.tiny import tasks as tiny_tasks
from tests.tiny import vtasks as tiny_vtasks
from tests.tiny.tasks import NO, YES, sentences
from vgtools import cli
from vgtools.io.errors import DataError, Exit
from vgtools.models.runs import read_run
from vgtools.tasks.dispatch import is_held_out, read_examples
from vgtools.tasks.examples import VisualExample
from vgtools.tasks.table import Columns, find_task

FAST = ["--epochs", 1, "--lr", 3e-3, "--batch-size", 8, "--max-length", 40, "--device", "cpu"]


def vg(*words: object) -> int:
    return cli.run([str(word) for word in words])


def jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    with open(path, "w", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("model") / "encoder", positions=64)


# --------------------------------------------------------------------- the path of built-in tasks


def sst2(data: Path) -> tuple[list[object], list[object]]:
    tiny_tasks.save_sst2(data)
    flags = ["--text", "sentence", "--labels", "negative,positive", "--dev", data / "dev.tsv"]
    return ["sst-2", data], ["classify", data / "train.tsv", *flags]


def stsb(data: Path) -> tuple[list[object], list[object]]:
    tiny_tasks.save_stsb(data)
    flags = ["--text", "sentence1,sentence2", "--label", "score", "--id", "index"]
    return ["sts-b", data], ["regress", data / "train.tsv", *flags, "--dev", data / "dev.tsv"]


def ner(data: Path) -> tuple[list[object], list[object]]:
    """Return IOB1 in CoNLL columns; one's own are words and tags in columns 2 and 3."""
    data.mkdir()
    for seed, name in enumerate(("eng.train", "eng.testa")):
        found = [_tagged(text) for text, _ in sentences(12, seed)]
        for file, line in ((name, "{} x {}\n"), (f"{name}.own", "x {} {} x\n")):
            parts = ("".join(line.format(*pair) for pair in pairs) for pairs in found)
            (data / file).write_text("\n".join(parts))
    own = [data / "eng.train.own", "--text", 2, "--label", 3, "--dev", data / "eng.testa.own"]
    return ["conll-2003", data], ["tag", *own, "--labels", ",".join(find_task("conll-2003").labels)]


def ner_lists(data: Path) -> tuple[list[object], list[object]]:
    """Return lists of words and of the numbers of tags, as data hubs have them."""
    built_in, own = ner(data)
    labels = find_task("conll-2003").labels
    for seed, name in enumerate(("train", "dev")):
        found = [_tagged(text) for text, _ in sentences(12, seed)]
        made = [
            {"tokens": [w for w, _ in pairs], "ner": [labels.index(tag) for _, tag in pairs]}
            for pairs in found
        ]
        jsonl(data / f"{name}.jsonl", made)
    flags = ["--text", "tokens", "--label", "ner", "--dev", data / "dev.jsonl"]
    return built_in, ["tag", data / "train.jsonl", *flags, *own[-2:]]


def _tagged(text: str) -> list[tuple[str, str]]:
    return [(w, {YES: "I-PER", NO: "I-ORG"}.get(w, "O")) for w in text.split()]


def codah(data: Path) -> tuple[list[object], list[object]]:
    tiny_tasks.save_codah(data)
    header = "category\tprompt\te0\te1\te2\te3\tright\n"
    for name in ("train", "dev"):
        (data / f"own.{name}.tsv").write_text(header + (data / f"{name}.tsv").read_text())
    flags = ["--text", "prompt", "--choices", "e0,e1,e2,e3", "--label", "right"]
    own = ["choice", data / "own.train.tsv", *flags, "--dev", data / "own.dev.tsv"]
    return ["codah", data], own


def squad(data: Path) -> tuple[list[object], list[object]]:
    """Return SQuAD 2.0 in the form that data hubs have it in."""
    tiny_tasks.save_squad(data, "2.0")
    for name in ("train", "dev"):
        examples = list(read_examples("squad-2.0", data / f"{name}-v2.0.json"))
        answers = [{"text": [a.text for a in e.answers]} for e in examples]
        for one, e in zip(answers, examples, strict=True):
            one["answer_start"] = [a.start for a in e.answers]  # type: ignore[misc]
        found = [
            {"id": e.id, "question": e.question, "context": e.context, "answers": a}
            for e, a in zip(examples, answers, strict=True)
        ]
        jsonl(data / f"own.{name}.jsonl", found)
    own = ["answer", data / "own.train.jsonl", "--dev", data / "own.dev.jsonl", "--id", "id"]
    return ["squad-2.0", data], [*own, "--unanswerable"]


def nlvr2(data: Path) -> tuple[list[object], list[object]]:
    pictures = tiny_vtasks.save_nlvr2(data)
    _save_seen(data, pictures)
    for name in ("train", "dev"):
        found = read_examples("nlvr2", data / f"{name}.json")
        made = [{"id": e.id, "text": e.text, "label": bool(e.label)} for e in found]
        for row in made:
            pair = str(row["id"])[:-2]
            row |= {"left": f"{pair}-img0", "right": f"{pair}-img1"}
        jsonl(data / f"own.{name}.jsonl", made)
    own = ["classify", data / "own.train.jsonl", "--dev", data / "own.dev.jsonl", "--id", "id"]
    return ["nlvr2", data], [*own, "--image", "left,right", "--labels", "false,true"]


def vqa(data: Path) -> tuple[list[object], list[object]]:
    _save_seen(data, tiny_vtasks.save_vqa(data))
    for name, split in (("train", "train2014"), ("dev", "val2014")):
        file = data / f"v2_OpenEnded_mscoco_{split}_questions.json"
        found = cast("Iterable[VisualExample]", read_examples("vqa", file))
        made = [
            {
                "id": e.id,
                "question": e.text,
                "photo": e.images[0],
                "answers": [a.text for a in e.answers],
            }
            for e in found
        ]
        jsonl(data / f"own.{name}.jsonl", made)
    own = ["answer", data / "own.train.jsonl", "--dev", data / "own.dev.jsonl", "--id", "id"]
    own += ["--text", "question", "--image", "photo", "--answers", 2]
    return ["vqa", data, "--answers", 2], own


def _save_seen(data: Path, pictures: dict[str, list[int]]) -> None:
    tiny_vtasks.save_pictures(data / "regions.npy", pictures)
    tiny_vtasks.save_visualbert(data / "visualbert", data / "regions.npy")


@pytest.mark.parametrize("make", [sst2, stsb, ner, ner_lists, codah, squad, nlvr2, vqa])
def test_a_table_teaches_the_weights_of_the_official_files(
    make: Callable[[Path], tuple[list[object], list[object]]],
    encoder: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    data = tmp_path / "data"
    built_in, own = make(data)
    start = ["-e", encoder]
    if (data / "regions.npy").exists():
        start = ["-e", data / "visualbert", "--regions", data / "regions.npy"]
    for name, words in (("built-in", built_in), ("own", own)):
        assert vg("finetune", *words, *start, *FAST, "-q", "-o", tmp_path / name) == 0
    seeds = [tmp_path / name / "seed-9595" for name in ("built-in", "own")]
    weights = [(seed / "model/model.safetensors").read_bytes() for seed in seeds]
    assert weights[0] == weights[1]
    official, ours = (rows(seed / "predictions.jsonl") for seed in seeds)
    # The first text of one's own table makes no groups, nor are its pictures a set of NLVR2's.
    groups = [[row.pop("group", None) for row in said] for said in (official, ours)]
    assert (groups[0] == groups[1]) is (make not in (stsb, codah, nlvr2))
    if make is nlvr2:  # true and false as JSON writes them
        for row in official:
            row |= {key: row[key].lower() for key in ("prediction", "label")}
    assert ours == official
    capfd.readouterr()
    texts = list[list[str]]()
    for name in ("built-in", "own"):
        assert vg("prepare", "task", tmp_path / name, "--split", "dev", "-q") == 0
        texts.append([row["text"] for row in printed(capfd)])
    assert texts[0] == texts[1] != []
    if make in (stsb, nlvr2, vqa):  # have scores of their own
        return
    records = [rows(seed.parent / "metrics.jsonl") for seed in seeds]
    assert records[0] == records[1]
    majorities = [read_run(seed.parent)["majority"] for seed in seeds]
    assert majorities[0] == majorities[1]


# -------------------------------------------------------------------------- runs, scored, compared


@pytest.fixture(scope="module")
def runs(encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of two seeds that were learned from 40 rows, and tested on 6 and on 3 others."""
    folder = tmp_path_factory.mktemp("runs")
    name = {0: "dull", 1: "lively, odd"}
    table(folder / "moods.csv", ("t", "mood"), ((t, name[i]) for t, i in sentences(40, longest=3)))
    table(folder / "test.csv", ("t", "mood"), ((t, name[i]) for t, i in sentences(6, 2, longest=3)))
    for run, epochs in (("a", 1), ("b", 15)):
        words = ["classify", folder / "moods.csv", "--text", "t", "--label", "mood"]
        words += ["--hold-out", 0.3, "--test", folder / "test.csv", "-e", encoder, *FAST]
        words += ["--seeds", 2, "--no-models", "--epochs", epochs, "-q"]
        assert vg("finetune", *words, "--metric", "macro-f1", "-o", folder / run) == 0
    return folder


def printed(capfd: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_a_run_is_scored_without_the_command_that_made_it(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    scores = read_run(runs / "b")["seeds"]["9595"]
    predictions = runs / "b/seed-9595/predictions.jsonl"
    assert {row["label"] for row in rows(predictions)} == {"dull", "lively, odd"}
    assert vg("score", runs / "b", predictions) == 0
    (found,) = printed(capfd)
    assert found == {"task": "moods", **{key: scores[key] for key in found if key != "task"}}
    assert found["macro_f1"] > 80
    other = [{"id": str(i), "prediction": "dull"} for i in range(6)]
    args = ["score", runs / "a", jsonl(tmp_path / "p.jsonl", other), "--gold"]
    assert vg(*args, runs / "test.csv") == 0
    assert printed(capfd)[0]["macro_f1"] == pytest.approx(100 * (2 * 3 / 9) / 2)
    assert vg(*args, runs) == 2
    assert "moods has no official files; name a file" in capfd.readouterr().err
    for wrong in ("sad", 0):  # labels that were found have no numbers
        jsonl(tmp_path / "p.jsonl", [{"id": "0", "prediction": wrong, "label": "dull"}])
        assert vg(*args[:-1]) == 65
        expected = f"""{str(wrong)!r} in "prediction"; expected one of dull, lively, odd; the"""
        assert expected in capfd.readouterr().err


def test_runs_are_compared_with_p_values_and_the_most_frequent_label(
    runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for split, count in (("dev", len(rows(runs / "a/seed-9595/predictions.jsonl"))), ("test", 6)):
        words = [
            "compare",
            runs / "a",
            runs / "b",
            "--samples",
            200,
            "--majority",
            "--split",
            split,
        ]
        assert vg(*words, "-q") == 0
        first, second, constant = (record["tasks"]["moods"] for record in printed(capfd))
        assert second["difference"]["value"] == pytest.approx(second["mean"] - first["mean"])
        assert second["difference"]["value"] > 20
        assert second["difference"]["p"] < 1
        assert 0 < constant["mean"] < second["mean"]
        infos = [read_run(runs / name)["data"][split]["examples"] for name in ("a", "b")]
        assert infos == [count, count]
    assert vg("compare", runs / "a", runs / "b", "--table", "--samples", 200, "-q") == 0
    shown = capfd.readouterr().out
    assert "| Run | moods | Avg. |" in shown
    assert "moods: macro F1." in shown
    assert vg("compare", "examples", runs / "a", runs / "b", "--samples", 200) == 0
    assert printed(capfd)[0]["improved"] > 0
    assert vg("compare", runs / "a", "--task", "other") == 2
    assert "no run is of 'other'; they are of moods" in capfd.readouterr().err


def test_two_tasks_of_one_name_are_not_compared(
    runs: Path, encoder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["classify", runs / "moods.csv", "--text", "t", "--label", "mood", "--hold-out", 0.3]
    words += ["-e", encoder, *FAST, "--no-models", "-q", "-o", tmp_path / "c"]
    assert vg("finetune", *words) == 0
    assert vg("compare", runs / "a", tmp_path / "c") == 65
    err = capfd.readouterr().err
    assert "its task 'moods' is not the one of" in err
    assert "accuracy, dull, lively, odd and classify, macro_f1, dull, lively, odd" in err
    assert "give one of them another --name" in err


def test_a_definition_that_was_edited_is_refused(
    runs: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from vgtools.tasks.own import task_of

    info = read_run(runs / "a")
    own = info["config"]["own"]
    for changes, why in (
        ({"labels": "dull"}, '"labels": expected a list'),
        ({"kind": "ground"}, "of kind 'ground'"),
        ({"metrics": ["bleu"]}, "which vg does not make"),
        ({"own": {}}, 'the key "own.texts" is missing'),
        ({"images": 1, "kind": "tag", "metrics": ["f1"]}, "of kind 'tag'"),
    ):
        with pytest.raises(DataError, match=re.escape(why)) as caught:
            task_of(info | {"config": {"own": own | changes}}, "run.json")
        assert caught.value.code == Exit.DATA
    extra = own | {"more": 1, "own": own["own"] | {"more": 1}}
    assert task_of(info | {"config": {"own": extra}}, "run.json").labels == ("dull", "lively, odd")


# ------------------------------------------------------------------------------------------ images


def test_retrieved_images_are_fused_for_the_texts_of_a_run(
    encoder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The texts of pairs, which images belong to, are those of the control's run."""
    pairs = ((text, "den", ["no", "yes"][i]) for text, i in sentences(16))
    table(tmp_path / "pairs.csv", ("a", "b", "label"), pairs)
    words = ["finetune", "classify", tmp_path / "pairs.csv", "--text", "a,b", "--hold-out", 0.4]
    words += ["-e", encoder, *FAST, "-q"]
    assert vg(*words, "-o", tmp_path / "text") == 0
    capfd.readouterr()
    assert vg("prepare", "task", tmp_path / "text", "-q") == 0
    texts = printed(capfd)
    whole = [f"{text} den" for text, _ in sentences(16)]
    dev = [is_held_out(str(i), 0.4) for i in range(len(whole))]
    assert [row["text"] for row in texts if row["split"] == "train"] == [
        text for text, held_out in zip(whole, dev, strict=True) if not held_out
    ]
    assert [row["text"] for row in texts if row["split"] == "dev"] == list(compress(whole, dev))
    jsonl(tmp_path / "found.jsonl", ({"text": row["text"], "images": [1]} for row in texts))
    save_feats(tmp_path / "feats.npy")
    seen = ["--retrieved", tmp_path / "found.jsonl", "--feats", tmp_path / "feats.npy"]
    seen += ["--index", tmp_path / "feats.npy"]
    assert vg(*words, *seen, "-o", tmp_path / "seen") == 0
    assert (tmp_path / "seen/seed-9595/model/fusion.json").exists()
    assert vg("compare", tmp_path / "text", tmp_path / "seen", "--samples", 100, "-q") == 0
    jsonl(tmp_path / "found.jsonl", [{"text": "other", "images": [1]}])
    capfd.readouterr()
    assert vg(*words, *seen, "-o", tmp_path / "lost") == 65
    assert "vg prepare task RUN (of this task, without images)" in capfd.readouterr().err


def test_choices_about_a_picture(tmp_path: Path) -> None:
    pictures = {f"p{i}": [i % 2, 3] for i in range(12)}
    tiny_vtasks.save_pictures(tmp_path / "r.npy", pictures)
    tiny_vtasks.save_visualbert(tmp_path / "model", tmp_path / "r.npy")
    same = {"text": "what", "choices": ["cat", "dog"]}
    made = ({**same, "photo": name, "label": "AB"[seen[0]]} for name, seen in pictures.items())
    words = ["choice", jsonl(tmp_path / "d.jsonl", made), "--image", "photo", "--labels", "A,B"]
    words += ["--regions", tmp_path / "r.npy", "--boxes", 1, "--hold-out", 0.4]
    assert vg("finetune", *words, "-e", tmp_path / "model", *FAST, "-q", "-o", tmp_path / "r") == 0
    found = rows(tmp_path / "r/seed-9595/predictions.jsonl")
    assert {row["label"] for row in found} == {"A", "B"}
    assert len({tuple(row["logits"]) for row in found}) == 2, "the texts of all rows are equal"


# ------------------------------------------------------------------------------------------- files


def test_labels_are_listed_before_anything_is_learned(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = [("x", f"l{i % 30:02}") for i in range(120)]
    table(tmp_path / "many.csv", ("text", "label"), data)
    assert vg("finetune", "classify", tmp_path / "many.csv", "--hold-out", 0.4, "--list") == 0
    train, dev = printed(capfd)
    assert train["examples"] + dev["examples"] == 120
    assert sum(row["count"] for row in train["labels"]) == train["examples"]
    assert {row["label"] for row in (*train["labels"], *dev["labels"])} == {y for _, y in data}
    assert vg("finetune", "classify", tmp_path / "many.csv", "--list") == 66
    expected = "vg: name the file to measure on: --dev FILE, --hold-out SHARE\n"
    assert capfd.readouterr().err == expected


def test_one_set_of_rows_in_every_form_of_table(tmp_path: Path) -> None:
    """Strings, numbers and booleans of a form are the same labels, and the digests are equal."""
    from vgtools.tasks.examples import hash_of
    from vgtools.tasks.own import define

    found = [{"t": text, "label": i, "id": f"r{n}"} for n, (text, i) in enumerate(sentences(6))]
    jsonl(tmp_path / "x.jsonl", found)
    table(tmp_path / "x.csv", ("id", "label", "t"), ((r["id"], r["label"], r["t"]) for r in found))
    (tmp_path / "x.tsv").write_text(
        "label\tid\tt\n" + "".join(f"{r['label']}\t{r['id']}\t{r['t']}\n" for r in found)
    )
    columns = {"t": [r["t"] for r in found], "label": [1.0 * i for _, i in sentences(6)]}
    arrow = pa.table({**columns, "id": [r["id"] for r in found]})
    parquet.write_table(arrow, tmp_path / "x.parquet")
    with gzip.open(tmp_path / "x.jsonl.gz", "wb") as stream:
        stream.write((tmp_path / "x.jsonl").read_bytes())
    digests = set()
    for name in ("x.jsonl", "x.csv", "x.tsv", "x.parquet", "x.jsonl.gz"):
        task = define("classify", str(tmp_path / name), Columns(("t",), "label", id="id"))
        assert (task.name, task.labels) == ("x", ("0", "1"))
        digests.add(hash_of(read_examples(task, tmp_path / name)))
    assert len(digests) == 1
    again = define("classify", f"{tmp_path / 'x.csv'}#text=t", Columns(("text",), "label", id="id"))
    assert hash_of(read_examples(again, f"{tmp_path / 'x.csv'}#text=t")) in digests


GOOD = "text,label\n" + "".join(f"w{i},{'ab'[i % 2]}\n" for i in range(8))
QA = '{"question": "q", "context": "x y", "answers": %s}\n'


@pytest.mark.parametrize(
    ("kind", "name", "content", "flags", "code", "why"),
    [
        *(
            ("classify", "d.csv", *row)
            for row in [
                ("t,y\na,1\n", "", 65, "d.csv:1: there is no column 'text'; the columns are t, y"),
                ("text,y\na,1\n", "", 65, "the columns are text, y; --label names one of them"),
                ("text,label\na,1\nb,\n", "", 65, 'd.csv:2: "label" is empty, expected a label'),
                ("text,label\na,1\nb,NaN\n", "", 65, "d.csv:2: 'NaN' in \"label\"; expected a"),
                ("text,label\na,1\n ,2\n", "", 65, "d.csv:2: there is no text in text"),
                ("text,label\na,1\nb,1\n", "", 65, "no label but 1, expected two or more"),
                ("text,label\na,1\nb,2.5\n", "", 65, "d.csv:2: 2.5 is a number, not a label; vg"),
                ("text,label\n", "", 65, '"label" has no label, expected two or more'),
                ("text,label,label\na,1,2\n", "", 65, "two columns of one name"),
                ("text,label\na,1,2\n", "", 65, "expected 2 cells as in the header, got 3"),
                ('text,label\n"a,1\n', "", 65, "d.csv:1: line 2 of the file: not valid quoted"),
                ('"text,label\na,1\n', "", 65, "d.csv: line 1 of the file: not valid quoted"),
                (GOOD, "--label text", 2, "the column 'text' is named twice"),
                (GOOD, "--text text,text", 2, "the column 'text' is named twice"),
                (GOOD, "--text a,b,c", 2, "--text: expected 1 or 2 columns, got 'a,b,c'"),
                (GOOD, "--text ,", 2, "--text: expected 1 or 2 columns"),
                (GOOD, "--metric bleu", 2, "'bleu' is not one of 'accuracy', 'macro-f1', 'f1'"),
                (GOOD, "--labels 1,2", 65, "d.csv:1: 'a' in \"label\"; expected one of 1, 2"),
                (GOOD, "--labels a", 2, "expected two or more different names"),
                (GOOD, "--labels a,a", 2, "expected two or more different names"),
                (GOOD, "--labels a,c", 65, "d.csv:2: 'b' in \"label\"; expected one of a (0), c"),
                (GOOD.replace("w0,a", "w0,c"), "--metric f1", 2, "of two labels, got a, b, c"),
                (GOOD, "--id nope", 65, "no column 'nope'; the columns are text, label; --id"),
                (GOOD, "--name SST2", 2, "'SST2' is a built-in task; --name NAME calls"),
                (GOOD, "--dev d.csv", 2, "--hold-out makes a dev set of the training file"),
            ]
        ),
        ("classify", "sst-2.csv", GOOD, "", 2, "'sst-2' is a built-in task"),
        ("classify", "d.txt", GOOD, "", 65, "d.txt: expected a table: .csv, .tsv, .jsonl,"),
        *(
            ("classify", "d.jsonl", *row)
            for row in [
                ('{"text": "a", "label": [1]}\n', "", 65, 'd.jsonl:1: [1] in "label"; expected'),
                ('{"text": "a", "label": {"b": 1}}\n', "", 65, "{'b': 1} in \"label\"; expected"),
                ('{"text": 5, "label": 1}\n', "", 65, 'd.jsonl:1: "text" must be a text, got 5'),
                ('{"text": "a", "label": 1, "split": "dev"}\n', "", 65, "\"split\" is 'dev'"),
                (f'{{"text": "{"x" * 1_000_001}", "label": 1}}\n', "", 65, "1,000,001 characters"),
            ]
        ),
        *(
            ("regress", "d.csv", *row)
            for row in [
                ("text,label\na,1\nb,nan\n", "", 65, "d.csv:2: 'nan' in \"label\"; expected a num"),
                ("text,label\na,1\nb,inf\n", "", 65, "expected a number from -1e+09 to 1e+09"),
                ("text,label\na,1_0\nb,2\n", "", 65, "d.csv:1: '1_0' in \"label\"; expected a"),
                ("text,label\na,١\nb,2\n", "", 65, "d.csv:1: '١' in \"label\"; expected a"),
                ("text,label\na,x\nb,2\n", "", 65, "d.csv:1: 'x' in \"label\"; expected a number"),
            ]
        ),
        *(
            ("tag", "d.conll", *row)
            for row in [
                ("A B-X\nb O\n\nc S-X\n", "", 65, "d.conll:4: tags of entities, scored by f1,"),
                (
                    "A N\nb V\n",
                    "--metric f1",
                    65,
                    "got N, V; --metric accuracy scores word by word",
                ),
                ("A N\nb\n", "", 65, "d.conll:2: expected 2 columns"),
                ("A N\nb V\n", "--label 5", 65, "d.conll:1: expected 5 columns"),
                ("A N\nb V\n", "--text tokens", 65, "--text is the number of one, from 1, got"),
            ]
        ),
        *(
            ("tag", "d.jsonl", *row)
            for row in [
                ('{"text": ["a", "b"], "tags": ["O"]}\n', "", 65, '"tags" has 1 items, but "text"'),
                ('{"text": ["a b"], "tags": ["O"]}\n', "", 65, "words without a blank, got 'a b'"),
                (
                    '{"text": ["a"], "tags": [["O"]]}\n',
                    "",
                    65,
                    "['O'] in \"tags\"; expected a label",
                ),
                ('{"text": ["a"], "tags": 5}\n', "", 65, '"tags" must be a list of tags'),
                ('{"text": "a", "tags": []}\n', "", 65, 'd.jsonl:1: "tags" is empty'),
            ]
        ),
        *(
            ("tag", "d.csv", *row)
            for row in [
                ("text,tags\n['a' 'b'],['O' 'B-X']\n", "", 65, 'd.csv:1: "tags": expected tags'),
                ("text,tags\na b,\"['O', 'B-X']\"\n", "", 65, "got a printed list, \"['O', 'B-X']"),
                ("text,tags\na b,[0 3]\n", "", 65, "with lists as .parquet or .jsonl"),
                ("text,tags\na b,[X] [Y] 5\n", "", 65, '"tags" has 3 items, but "text" has 2'),
            ]
        ),
        *(
            ("choice", "d.csv", *row)
            for row in [
                ("text,a,b,label\nx,1,2,2\n", "--choices a,b", 65, "d.csv:1: '2' in \"label\""),
                ("text,a,b,label\nx,1,2,A\n", "--choices a,b", 65, "--labels names them: A,B,C"),
                (
                    "text,a,b,label\nx,1,,0\n",
                    "--choices a,b",
                    65,
                    "d.csv:1: expected a text for each",
                ),
                (
                    "text,a,label\nx,1,0\n",
                    "--choices a",
                    65,
                    "expected a text for each choice in a",
                ),
                (
                    "text,a,b,label\nx,1,2,A\n",
                    "--choices a,b --labels A,B,C",
                    65,
                    "expected 3 choices in a row, got 2",
                ),
            ]
        ),
        (
            "choice",
            "d.jsonl",
            '{"text": "q", "choices": ["a", "b"], "label": 0}\n'
            '{"text": "q", "choices": ["a", "b", "c"], "label": 0}\n',
            "",
            65,
            'd.jsonl:2: "choices" has 3 choices, expected 2 as in the first row',
        ),
        *(
            ("answer", "d.jsonl", *row)
            for row in [
                (QA % '""', "", 65, 'd.jsonl:1: "answers" is empty, expected a label'),
                (QA % "[]", "", 65, "questions without an answer are learned with --unanswerable"),
                (QA % "5", "", 65, "expected an answer, a list of answers, or text and"),
                (
                    QA % '{"text": ["x"], "answer_start": []}',
                    "",
                    65,
                    '"answer_start" must have 1 numbers, got []',
                ),
                (QA % '"x"', "--image image", 2, "--text: expected 1 column"),
                (QA % "[]", "--text question --image i --unanswerable", 2, "with a context: one"),
            ]
        ),
    ],
)
def test_bad_input_is_named_with_its_row_and_the_way_out(
    kind: str,
    name: str,
    content: str,
    flags: str,
    code: int,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)
    assert vg("finetune", kind, name, *flags.split(), "--hold-out", 0.5, "--list") == code
    out, err = capfd.readouterr()
    assert out == ""
    assert why in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(("kind", "each"), [("tag", 2), ("answer", 1)])
def test_labels_that_are_listed_are_those_of_the_part(
    kind: str, each: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    row = {"text": "a b", "tags": ["X", "Y"], "question": "a", "context": "a b", "answers": ["b"]}
    (tmp_path / "d.jsonl").write_text("".join(f"{json.dumps(row | {'id': i})}\n" for i in "01234"))
    assert vg("finetune", kind, tmp_path / "d.jsonl", "--hold-out", 0.5, "--list") == 0
    train, dev = printed(capfd)
    assert train["examples"] + dev["examples"] == 5
    for part in (train, dev):
        assert sum(row["count"] for row in part["labels"]) == part["examples"] * each


def test_a_label_that_only_the_dev_set_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.csv").write_text(GOOD)
    Path("dev.csv").write_text(GOOD + "w9,c\n")
    words = ["finetune", "classify", "d.csv", "--dev", "dev.csv", "--list"]
    assert vg(*words) == 65
    assert (
        "vg: dev.csv:9: 'c' in \"label\"; expected one of a, b; the training file has all "
        "labels, or --labels names them" in capfd.readouterr().err
    )
    assert vg(*words, "--labels", "a,b,c") == 0
    counts = [{row["label"]: row["count"] for row in record["labels"]} for record in printed(capfd)]
    assert counts == [{"a": 4, "b": 4}, {"a": 4, "b": 4, "c": 1}]


def test_answers_that_are_not_in_their_text_are_counted(
    tmp_path: Path, encoder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text("".join(QA % json.dumps(text) for text in ("x", "no", ["y", "x"], "nor")))
    assert vg("finetune", "answer", data, "--dev", data, "--list") == 0
    noted = printed(capfd)[0]["notes"]
    assert noted == [
        "2 answers do not occur in their context; they are scored, but not learned from, the first"
        " on line 2"
    ]
    data.write_text(QA % '"no"')
    words = ["finetune", "answer", data, "--dev", data, "-e", encoder, *FAST, "-o", tmp_path / "r"]
    assert vg(*words) == 65
    assert "nothing can be learned from it: no answer occurs" in capfd.readouterr().err


def test_examples_that_are_learned_from_are_counted_where_they_are_asked_again(
    tmp_path: Path, encoder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.csv").write_text(GOOD)
    (tmp_path / "dev.csv").write_text("text,label\nw1,a\nnew,b\nw1,b\n")
    (tmp_path / "test.csv").write_text("text\nother\n")
    words = ["finetune", "classify", tmp_path / "d.csv", "--dev", tmp_path / "dev.csv"]
    words += ["--test", tmp_path / "test.csv", "-e", encoder, *FAST, "-o", tmp_path / "r"]
    assert vg(*words) == 0
    noted = [line for line in capfd.readouterr().err.splitlines() if "also in" in line]
    assert noted == ["vg finetune: dev: 2 of 3 examples are also in the training file"]


def test_rows_without_labels_are_predicted(encoder: Path, tmp_path: Path) -> None:
    for kind, train, test in (
        ("classify", GOOD, "text\nw1\nw2\n"),
        ("regress", "text,label\na,1\nb,2\n", "text,label\na,\nb,\n"),
        ("tag", "text,tags\na b,N V\nc,N\n", "text\nb a\nc\n"),
    ):
        (tmp_path / "d.csv").write_text(train)
        (tmp_path / "t.csv").write_text(test)
        words = ["finetune", kind, tmp_path / "d.csv", "--dev", tmp_path / "d.csv", "-e", encoder]
        words += ["--test", tmp_path / "t.csv", *FAST, "-q", "-o", tmp_path / kind]
        assert vg(*words) == 0
        found = rows(tmp_path / kind / "seed-9595/predictions.test.jsonl")
        assert [(row["id"], "label" in row) for row in found] == [("0", False), ("1", False)]


def test_rows_that_have_only_numbers_are_scored_in_their_order(
    encoder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Labels that come later have the texts that were predicted, as the run's hash says."""
    for kind, names, given in (
        ("classify", ("text", "label"), [("a", "x"), ("b", "y"), ("c", "x")]),
        ("regress", ("text", "label"), [("a", "1"), ("b", "2"), ("c", "4")]),
        ("tag", ("text", "tags"), [("a b", "N V"), ("c", "N"), ("d", "V")]),
    ):
        gold = table(tmp_path / "gold.csv", names, given)
        bare = table(tmp_path / "bare.csv", names[:1], (row[:1] for row in given))
        words = ["finetune", kind, gold, "--dev", gold, "--test", bare, "-e", encoder, *FAST]
        assert vg(*words, "-q", "-o", tmp_path / kind) == 0
        made = tmp_path / kind / "seed-9595/predictions.test.jsonl"
        capfd.readouterr()
        assert vg("score", tmp_path / kind, made, "--gold", gold) == 0
        reverse = table(tmp_path / "reverse.csv", names, given[::-1])
        assert vg("score", tmp_path / kind, made, "--gold", reverse) == 65
        out = capfd.readouterr()
        assert f"{reverse}: its texts have sha256 " in out.err
        assert read_run(tmp_path / kind)["data"]["test"]["sha256"] in out.err
        assert len(out.out.splitlines()) == 1


def test_a_pipe_needs_labels_that_are_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["finetune", "classify", "-", "--hold-out", "0.5", "-e", "x", "-o", "y"]
    assert vg(*words) == 2
    assert "is read twice, and a pipe can be read only once" in capfd.readouterr().err


def treebank(path: Path, *rows: str) -> Path:
    """Write CoNLL-U of rows "id form tag", given without the columns between them."""
    lines = ["# newdoc", "# text = …"]
    for row in rows:
        number, form, tag = row.split("|") if row else ("", "", "")
        cells = [number, form, "_", tag, "_", "_", "_", "_", "_", "Gloss=a b"]
        lines.append("\t".join(cells) if row else "\n# sent_id = 2")
    path.write_text("\n".join(lines) + "\n\n")
    return path


UD = ("1|Dogs|NOUN", "2-3|don't|_", "2|do|AUX", "3|n't|PART", "4|eat|VERB", "5|10 000|NUM")
UD += ("", "1|#|SYM", "2|1|NUM", "2.1|is|AUX")


def test_a_treebank_of_universal_dependencies(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = treebank(tmp_path / "ud.conllu", *UD)
    columns = ("--text", 2, "--label", 4, "--dev", data, "--list")
    assert vg("finetune", "tag", data, *columns) == 0
    train, dev = printed(capfd)
    assert train["examples"] == dev["examples"] == 2
    counts = {row["label"]: row["count"] for row in train["labels"]}
    assert counts == {"NOUN": 1, "AUX": 1, "PART": 1, "VERB": 1, "NUM": 2, "SYM": 1}
    # A blind test set has no tags, or its words alone.
    for row in (("1|Dogs|_", "2|run|_"), ()):
        blind = treebank(tmp_path / "blind.conllu", *row)
        if not row:
            blind.write_text("Dogs\nrun\n\nCats\n")
        assert vg("finetune", "tag", data, *columns, "--test", blind) == 0
        assert len(printed(capfd)) == 3
    for rows, code in ((("1|a|_", "", "1|b|X"), 65), (("1|a|NUM", "", "1|b|_"), 65)):
        half = treebank(tmp_path / "half.conllu", *rows)
        assert vg("finetune", "tag", data, *columns, "--test", half) == code
        said = capfd.readouterr().err
        assert "half.conllu:6: has the tag 'X'" in said or "half.conllu:6: '_'" in said
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("1 Dogs\n2 run\n\n")
    for flags in (("--text", 2), ("--label", 1)):
        assert vg("finetune", "tag", pairs, *flags, "--dev", pairs, "--list") in (2, 65)
        assert re.search("expected 3 columns|a column has one use", capfd.readouterr().err)
    data.write_text(data.read_text().replace("4\teat", "4 eat"))
    assert vg("finetune", "tag", data, *columns) == 65
    assert "ud.conllu:7: expected 10 columns" in capfd.readouterr().err
    treebank(data, *UD[:4], "4||VERB", *UD[5:])
    assert vg("finetune", "tag", data, *columns) == 65
    assert "ud.conllu:7: column 2 is empty; expected a word" in capfd.readouterr().err
    # The line of a tag is its own, whatever was left out before it.
    treebank(data, *UD[:4], "4|eat|VREB", *UD[5:])
    assert vg("finetune", "tag", data, *columns, "--labels", "NOUN,AUX,PART,VERB,NUM,SYM") == 65
    assert "ud.conllu:7: 'VREB'" in capfd.readouterr().err


@pytest.mark.parametrize("number", ["0.25", "1-1"])
def test_columns_that_only_look_like_a_treebank_keep_all_their_words(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], number: str
) -> None:
    (tmp_path / "align.txt").write_text(
        f"{number}\ta dog\n{number}\t#\tX\n\n#\tran\tY\n".replace(" ", "\t")
    )
    columns = ("--text", 2, "--label", 3, "--dev", tmp_path / "align.txt", "--list")
    assert vg("finetune", "tag", tmp_path / "align.txt", *columns) == 0
    counts = {row["label"]: row["count"] for row in printed(capfd)[0]["labels"]}
    assert counts == {"dog": 1, "X": 1, "Y": 1}
