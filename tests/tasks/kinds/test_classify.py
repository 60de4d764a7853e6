"""NLVR2: its files, and consistency."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vgtools.io.errors import DataError
from vgtools.tasks.dispatch import prediction_row, read_examples, score_predictions
from vgtools.tasks.examples import VisualExample
from vgtools.tasks.table import find_task


def nlvr2(path: Path, *rows: dict[str, Any], **more: Any) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_examples("nlvr2", path, **more))


ROW = {
    "identifier": "dev-850-0-1",
    "sentence": "Two dogs.",
    "label": "True",
    "left_url": "http://x/1.jpg",
}


def test_a_row_of_nlvr2(tmp_path: Path) -> None:
    found = nlvr2(tmp_path / "dev.json", ROW, ROW | {"identifier": "dev-850-1-1", "label": "False"})
    assert [(e.id, e.text, e.label, e.line) for e in found] == [
        ("dev-850-0-1", "Two dogs.", 1, 1),
        ("dev-850-1-1", "Two dogs.", 0, 2),
    ]
    assert found[0].images == ("dev-850-0-img0", "dev-850-0-img1")
    bare = {key: value for key, value in ROW.items() if key != "label"}
    assert nlvr2(tmp_path / "test1.json", bare, unlabelled=True)[0].label is None


def test_bad_rows_of_nlvr2(tmp_path: Path) -> None:
    def said(**change: Any) -> str:
        with pytest.raises(DataError) as caught:
            nlvr2(
                tmp_path / "dev.json",
                ROW,
                {k: v for k, v in (ROW | change).items() if v is not None},
            )
        return str(caught.value)

    assert "split-set-pair-sentence" in said(identifier="dev-850")
    assert "duplicate id 'dev-850-0-1'" in said()
    assert "'Maybe' in \"label\"" in said(identifier="dev-1-1-1", label="Maybe")
    assert '"label" is missing' in said(identifier="dev-1-1-1", label=None)
    assert "dev.json:2" in said(identifier="dev-1-1-1", label=None)


def test_consistency_wants_all_pairs_of_a_sentence() -> None:
    task = find_task("nlvr2")
    names = ["dev-1-0-0", "dev-1-1-0", "dev-1-0-1", "dev-2-0-0"]  # three sentences
    rows = [
        prediction_row(task, VisualExample(name, "", label=1), said)
        for name, said in zip(names, [1, 0, 1, 1], strict=True)
    ]
    assert score_predictions(task, rows) == {
        "accuracy": 75, "consistency": pytest.approx(200 / 3), "headline": 75, "total": 4,
    }  # fmt: skip
