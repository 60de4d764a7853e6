"""A kind is complete by itself: what one file, one line and one row add works everywhere."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.tiny import save_encoder
from tests.tiny.examples import token_rows, tokenizer
from vgtools import cli
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.tasks import table
from vgtools.tasks.dispatch import encode, majority, predictions, read_examples, read_predictions
from vgtools.tasks.examples import Example
from vgtools.tasks.kinds import KINDS, Kind
from vgtools.tasks.predictions import NetworkOutputs, make_row, score_items
from vgtools.tasks.sequences import encode_texts
from vgtools.tasks.table import TASKS, Hyper, Task


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_keeps_the_contract(name: str) -> None:
    wanted = {
        k: f for k, f in vars(Kind).items() if inspect.isfunction(f) and not k.startswith("_")
    }
    assert len(wanted) == 9
    for key, function in wanted.items():
        _, *parameters = inspect.signature(function).parameters.values()
        theirs = inspect.signature(getattr(KINDS[name], key)).parameters.values()
        assert [p.kind for p in theirs] == [p.kind for p in parameters], key


def test_every_task_has_a_kind() -> None:
    assert {task.kind for task in TASKS} == set(KINDS)


# -------------------------------------------------------------------------------- a kind of its own


def parity() -> Any:
    """Return a kind: is the number of words odd? It is learnt from jsonl of `text` and `odd`."""

    def read(task: Task, path: str | Path, unlabelled: bool, stats: Any) -> Iterator[Any]:
        for line, row in read_jsonl(path, {"text": str}):
            yield (
                line,
                Example(str(line), row["text"], label=int(row["odd"]) if "odd" in row else None),
            )

    def gold(task: Task, example: Example) -> str | None:
        return None if example.label is None else ("even", "odd")[int(example.label)]

    def loss(outputs: Any, batch: Any) -> Any:
        return (outputs[:, 0] - batch.labels).square().sum()

    def rows(task: Task, examples: Any, made: NetworkOutputs) -> Any:
        for example, value in zip(examples, made.outputs[:, 0], strict=True):
            yield make_row(example.id, "odd" if value > 0.5 else "even", gold(task, example))

    def parse(task: Task, key: str, value: Any, file: Any, line: Any) -> str:
        if value not in ("even", "odd"):
            raise DataError(f'"{key}" must be even or odd, got {value!r}', file, line)
        return str(value)

    def score(task: Task, joined: Any, threshold: float | None = None) -> Any:
        pairs = zip(joined.predicted, joined.gold, strict=True)
        each = np.array([float(a == b) for a, b in pairs])
        return score_items(joined, each, {"parity": float(each.mean())})

    return SimpleNamespace(
        read=read, gold=gold, encode=encode_texts, loss=loss, rows=rows, parse=parse, score=score,
        head=lambda task: ("SequenceClassification", {"num_labels": 1}),
        majority=lambda task, learnt: "even",
    )  # fmt: skip


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> Task:
    hyper = Hyper(1, 1e-3, 2, "invented")
    task = Task(
        "parity",
        "Parity",
        "parity",
        {"train": "train.jsonl", "dev": "dev.jsonl"},
        ("parity",),
        hyper,
    )
    monkeypatch.setitem(KINDS, "parity", parity())
    monkeypatch.setattr(table, "TASKS", (*TASKS, task))
    return task


def save(path: Path, *texts: str) -> Path:
    rows = [{"text": text, "odd": len(text.split()) % 2} for text in texts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_new_kind_reads_encodes_predicts_and_scores(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    examples = list(read_examples("Parity", save(tmp_path / "dev.jsonl", "bam", "bam den", "dun")))
    assert [e.label for e in examples] == [1, 0, 1]
    own = tokenizer()
    inputs = encode(task, examples, own, max_length=9)
    assert token_rows(inputs) == [own.encode(e.text).ids for e in examples]
    rows = predictions(task, examples, inputs, np.array([[0.9], [0.8], [0.1]]))
    assert [(row["prediction"], row["label"]) for row in rows] == [
        ("odd", "odd"),
        ("odd", "even"),
        ("even", "odd"),
    ]
    assert majority(task, examples, examples) == {
        "parity": pytest.approx(100 / 3), "headline": pytest.approx(100 / 3), "total": 3,
    }  # fmt: skip

    path = tmp_path / "predictions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.run(["score", "parity", str(path)]) == 0
    assert json.loads(capfd.readouterr().out)["parity"] == pytest.approx(100 / 3)
    path.write_text('{"id": "0", "prediction": "perhaps"}\n')
    with pytest.raises(DataError, match="must be even or odd, got 'perhaps'"):
        list(read_predictions("parity", path))


def test_a_new_kind_is_fine_tuned(
    task: Task, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_encoder(tmp_path / "encoder", positions=64)
    save(tmp_path / "train.jsonl", "bam", "bam den", "dun", "dun den")
    save(tmp_path / "dev.jsonl", "den", "den bam")
    words = [
        "finetune",
        "parity",
        tmp_path,
        "-e",
        tmp_path / "encoder",
        "-o",
        tmp_path / "run",
        "-q",
    ]
    assert cli.run([*map(str, words), "--max-length", "20", "--device", "cpu"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert (record["epoch"], record["step"], record["total"]) == (1, 2, 2)
    assert record["parity"] in (0.0, 50.0, 100.0)
    rows = (tmp_path / "run" / "seed-9595" / "predictions.jsonl").read_text().splitlines()
    assert [json.loads(row)["label"] for row in rows] == ["odd", "even"]
