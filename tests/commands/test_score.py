"""`vg score`: scores on stdout, any threshold, VCR's two runs and its leaderboard; no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.conftest import Runner
from vgtools import cli
from vgtools.tasks.table import find_task

SQUAD = [
    {"id": "a", "prediction": "Bo", "label": ["Bo"], "no_answer": -2.0, "answer": "Bo"},
    {"id": "b", "prediction": "", "label": [], "no_answer": 1.0, "answer": "Rome"},
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def score(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.run(["score", *words]) == 0
    found: dict[str, Any] = json.loads(capfd.readouterr().out)
    return found


def test_a_stream_becomes_a_record(vg: Runner) -> None:
    rows = (
        b'{"id":"0","prediction":"entailment","label":"entailment"}\n'
        b'{"id":"1","prediction":0,"label":1}\n'
    )
    done = vg("score", "rte", "-", input=rows)
    assert done.stdout == b'{"task":"rte","accuracy":50.0,"headline":50.0,"total":2}\n'
    assert (done.stderr, done.returncode) == (b"", 0)


def test_a_bad_row_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "p.jsonl", [{"id": "0", "prediction": 1, "label": 1}, {"id": "1"}])
    assert cli.run(["score", "rte", path]) == 65
    out = capfd.readouterr()
    assert out.out == ""
    assert f'{path}:2: the key "prediction" is missing or null; the row has id' in out.err


def test_the_gold_and_the_other_predictions_are_not_overwritten(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.en").write_text("a dog\n")
    Path("a.de").write_text("ein Hund\n")
    assert cli.run(["prepare", "pairs", "a.en", "a.de", "-o", "dev.jsonl", "-q"]) == 0
    before = Path("dev.jsonl").read_bytes()
    write(tmp_path / "p.jsonl", [{"id": "0", "prediction": "ein Hund"}])
    Path("link.jsonl").symlink_to("dev.jsonl")
    for output in ("dev.jsonl", "link.jsonl"):
        call = ["score", "translation", "p.jsonl", "--gold", "dev.jsonl", "-o", output]
        assert cli.run(call) == 73
        assert "is an input of this command" in capfd.readouterr().err
    assert Path("dev.jsonl").read_bytes() == before


def test_numbers_of_a_csv_file_are_scored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [("0", 1.5, 2.0), ("1", 3.0, 2.5), ("2", 0.25, 1.0)]
    made = [{"id": name, "prediction": said, "label": gold} for name, said, gold in rows]
    expected = score(capfd, "sts-b", write(tmp_path / "p.jsonl", made))
    table = tmp_path / "p.csv"
    lines = [("id", "prediction", "label"), *rows]
    table.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
    assert score(capfd, "sts-b", str(table)) == expected
    rows_again = str(tmp_path / "again.jsonl")
    assert score(capfd, "sts-b", str(table), "-o", rows_again) == expected
    assert score(capfd, "sts-b", rows_again) == expected
    table.write_text("id,prediction,label,score\n0,1,1,\n1,0,0,0.5\n2,0,1,\n")
    assert score(capfd, "rte", str(table))["accuracy"] == pytest.approx(100 * 2 / 3)


def test_rows_there_and_back_as_a_table(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "p.jsonl", SQUAD)
    table = str(tmp_path / "p.parquet")
    expected = score(capfd, "squad-2.0", path)
    for _ in range(2):  # the second time it is up to date
        assert score(capfd, "squad-2.0", path, "-o", table) == expected
    found = parquet.read_table(table)
    assert found.column_names == [*SQUAD[0]]
    assert found["label"].to_pylist() == [["Bo"], []]
    made = json.loads((tmp_path / "p.json").read_text())
    assert (made["kind"], made["task"], made["rows"]) == ("predictions", "squad-2.0", 2)
    assert score(capfd, "squad-2.0", table) == expected
    assert score(capfd, "squad-2.0", table, "-o", str(tmp_path / "again.jsonl")) == expected
    assert [*map(json.loads, (tmp_path / "again.jsonl").read_text().splitlines())] == SQUAD
    assert cli.run(["score", "squad-2.0", path, "-o", path]) != 0
    assert cli.run(["score", "squad-2.0", path, "-o", str(tmp_path / "x.csv")]) == 2


def test_any_threshold_can_be_tried(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "p.jsonl", SQUAD)
    exact = {
        x: score(capfd, "squad-2.0", path, "--null-threshold", x)["exact"] for x in ("-9", "0", "9")
    }
    assert exact == {"-9": 50.0, "0": 100.0, "9": 50.0}
    assert score(capfd, "squad-2.0", path)["exact"] == 100.0
    without = [{k: v for k, v in row.items() if k != "no_answer"} for row in SQUAD]
    assert score(capfd, "squad-2.0", write(tmp_path / "q.jsonl", without))["exact"] == 50.0


def test_gold_is_a_file_or_a_folder(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "p.jsonl", [{"id": "4", "prediction": 1}, {"id": "9", "prediction": 1}])
    folder = tmp_path / "RTE"
    folder.mkdir()
    gold = folder / "dev.tsv"
    gold.write_text(
        "index\tsentence1\tsentence2\tlabel\n4\tA\tB\tnot_entailment\n9\tC\tD\tentailment\n"
    )
    expected = {"task": "rte", "accuracy": 50.0, "headline": 50.0, "total": 2}
    assert score(capfd, "rte", path, "--gold", str(gold)) == expected
    assert score(capfd, "rte", path, "--gold", str(folder)) == expected
    assert cli.run(["score", "rte", path]) == 65
    assert "the id '4' has no label" in capfd.readouterr().err


def vcr(folder: Path, task: str, rows: list[dict[str, Any]]) -> str:
    """Write predictions of VCR and the run.json that names their task."""
    path = write(folder / "seed-1" / "predictions.jsonl", rows)
    (folder / "run.json").write_text(json.dumps({"task": task}))
    return path


def test_answers_and_rationales_together(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def rows(*right: bool) -> list[dict[str, Any]]:
        return [
            {"id": f"v{i}", "prediction": int(good), "label": 1} for i, good in enumerate(right)
        ]

    qa = vcr(tmp_path / "qa", "vcr-qa", rows(True, True, False))
    qar = vcr(tmp_path / "qar", "vcr-qar", rows(True, False, True))
    found = score(capfd, "vcr-qar", qar, "--joint", qa)
    assert found["qa_accuracy"] == found["accuracy"] == pytest.approx(200 / 3)
    assert found["q2ar_accuracy"] == pytest.approx(100 / 3)
    assert cli.run(["score", "vcr-qar", qa, "--joint", qar]) == 65
    assert "expected predictions of vcr-qar, got vcr-qa" in capfd.readouterr().err
    assert cli.run(["score", "vcr-qa", qar]) == 65
    assert "expected predictions of vcr-qa, got vcr-qar" in capfd.readouterr().err
    link = tmp_path / "p.jsonl"  # has the run.json of its file
    link.symlink_to(qar)
    assert cli.run(["score", "vcr-qa", str(link)]) == 65
    assert "expected predictions of vcr-qa, got vcr-qar" in capfd.readouterr().err


@pytest.mark.parametrize("split", ["dev", "test"])
def test_answers_and_rationales_of_one_file_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], split: str
) -> None:
    name = "predictions.jsonl" if split == "dev" else "predictions.test.jsonl"
    row = {"prediction": 1, "label": 1, "logits": [0.0] * 4}
    paths = []
    for task, ids in (("vcr-qa", ["t0"]), ("vcr-qar", [f"t0-a{i}" for i in range(4)])):
        ids = ids if split == "test" else ["t0"]
        vcr(tmp_path / task, task, [])
        paths.append(write(tmp_path / task / "seed-1" / name, [{"id": x, **row} for x in ids]))
        data = {split: {"file": f"/{task}/{split}.jsonl"}}
        inputs = [{"path": f"/{task}/{split}.jsonl", "sha256": "b" if task == "vcr-qa" else task}]
        info = {"task": task, "data": data, "inputs": inputs}
        (tmp_path / task / "run.json").write_text(json.dumps(info))
    args = ["score", "vcr-qar", paths[1], "--joint", paths[0]]
    args += ["--submission", "-"] if split == "test" else []
    assert cli.run(args) == 65
    assert f"its {split} file has sha256 vcr-qar, the file of vcr-qa b" in capfd.readouterr().err
    run = tmp_path / "vcr-qar" / "run.json"
    run.write_text(run.read_text().replace('"sha256": "vcr-qar"', '"sha256": "b"'))
    assert cli.run(args) == 0


def test_the_leaderboard_s_csv(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    even = {"prediction": 0, "logits": [0.0, 0.0, 0.0, 0.0]}
    qa = vcr(tmp_path / "qa", "vcr-qa", [{"id": "t0", **even}])
    qar = vcr(tmp_path / "qar", "vcr-qar", [{"id": f"t0-a{i}", **even} for i in range(4)])
    assert cli.run(["score", "vcr-qar", qar, "--joint", qa, "--submission", "-"]) == 0
    head, row = capfd.readouterr().out.splitlines()
    assert head.startswith(
        "annot_id,answer_0,answer_1,answer_2,answer_3,rationale_conditioned_on_a0_0"
    )
    assert row == "t0" + ",0.25" * 20


def test_what_other_servers_take(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Rows of a test file, without labels: a JSON list with whole numbers, and lines of a CSV."""
    asked = [{"id": "262144", "prediction": "café"}, {"id": "7", "prediction": "2"}]
    vqa = write(tmp_path / "vqa.jsonl", asked)
    assert cli.run(["score", "vqa", vqa, "--submission", str(tmp_path / "s.json")]) == 0
    assert json.loads((tmp_path / "s.json").read_text()) == [
        {"question_id": 262144, "answer": "café"},
        {"question_id": 7, "answer": "2"},
    ]
    pair = [{"id": "test2-0-1-0", "prediction": "True"}, {"id": "test2-0-2-0", "prediction": 0}]
    nlvr2 = write(tmp_path / "nlvr2.jsonl", pair)
    capfd.readouterr()
    assert cli.run(["score", "nlvr2", nlvr2, "--submission", "-"]) == 0
    assert capfd.readouterr().out == "test2-0-1-0,True\ntest2-0-2-0,False\n"
    odd = write(tmp_path / "odd.jsonl", [{"id": "q7", "prediction": "2"}])
    assert cli.run(["score", "vqa", odd, "--submission", "-"]) == 65
    why = "odd.jsonl: expected the number of a question of VQA 2.0 as id, got 'q7'"
    assert why in capfd.readouterr().err
    # 07 would be question 7 again; a comma or an end of line would break the CSV.
    for task, name in (
        ("vqa", "07"),
        ("vqa", "9" * 5000),
        ("nlvr2", "a,b"),
        ("nlvr2", "a-1-2-3\n"),
    ):
        odd = write(tmp_path / "odd.jsonl", [{"id": name, "prediction": "False"}])
        assert cli.run(["score", task, odd, "--submission", "-"]) == 65
        assert "odd.jsonl: expected" in capfd.readouterr().err
    assert cli.run(["score", "vqa", vqa, "--submission", "-", "--gold", vqa]) == 2
    assert cli.run(["score", "rte", nlvr2, "--submission", "-"]) == 2
    assert "is for vqa, nlvr2; vcr-qar needs --joint" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["rte", "p.jsonl", "--joint", "q.jsonl"],
            "joins predictions of vcr-qa to predictions of vcr-qar",
        ),
        (["vcr-qar", "p.jsonl", "--submission", "s.csv"], "needs --joint"),
        (["squad", "p.jsonl", "--null-threshold", "1"], "applies to squad-2.0"),
        (["glue", "p.jsonl"], "unknown task 'glue'"),
        (["rte", "-", "--gold", "-"], "only one file can come from a pipe"),
    ],
)
def test_wrong_flags_are_refused(
    words: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["score", *words]) == 2
    assert said in capfd.readouterr().err


def test_every_kind_is_scored_without_torch(tmp_path: Path) -> None:
    box = [[0.0, 0.0, 9.0, 9.0]]
    cases = {
        "rte": (1, 1),
        "sts-b": (2.0, 1.0),
        "squad": ("a", ["a"]),
        "swag": (1, 1),
        "vqa": ("a", ["a"] * 10),
    }
    cases |= {"flickr30k-grounding": (box, box)}
    lines = []
    for name, (prediction, label) in cases.items():
        path = write(
            tmp_path / f"{name}.jsonl", [{"id": "0", "prediction": prediction, "label": label}]
        )
        lines.append(f"assert run(['score', {name!r}, {path!r}]) == 0")
    heavy = "{'torch', 'transformers', 'tokenizers', 'PIL'}"
    code = "import sys; from vgtools.cli import run\n" + "\n".join(lines)
    code += f"\nprint(sorted({heavy} & set(sys.modules)), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert [json.loads(line)["task"] for line in done.stdout.splitlines()] == [
        find_task(name).name for name in cases
    ]


def test_a_run_without_a_task_is_no_file_without_a_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    row = {"id": "v0", "prediction": 1, "label": 1}
    qa, qar = (vcr(tmp_path / name, f"vcr-{name}", [row]) for name in ("qa", "qar"))
    (tmp_path / "qar" / "run.json").write_text("{}")
    assert cli.run(["score", "vcr-qar", qar, "--joint", qa]) == 65
    assert "expected predictions of vcr-qar, got None" in capfd.readouterr().err
