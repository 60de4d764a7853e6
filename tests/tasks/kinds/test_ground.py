"""Phrases with boxes: their files, and recall."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vgtools.io.errors import DataError
from vgtools.tasks.dispatch import prediction_row, read_examples, score_predictions
from vgtools.tasks.examples import VisualExample
from vgtools.tasks.table import find_task


def phrases(path: Path, *rows: dict[str, Any]) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_examples("flickr30k-grounding", path))


PHRASE = {"start": 2, "end": 5, "boxes": [[0, 0, 10, 10]], "type": "people"}

CAPTION = {
    "image": "1.jpg",
    "text": "A man runs.",
    "width": 100,
    "height": 80,
    "phrases": [PHRASE, PHRASE | {"boxes": []}],
}


def test_phrases_with_boxes_are_examples(tmp_path: Path) -> None:
    found = phrases(tmp_path / "val.jsonl", CAPTION, CAPTION)
    assert [(e.id, e.span, e.boxes, e.size, e.images) for e in found] == [
        (f"{line}-1", (2, 5), ((0, 0, 10, 10),), (100, 80), ("1.jpg",)) for line in (1, 2)
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"end": 40}, "span 2 to 40, the text has 11 characters"),
        ({"boxes": [[0, 0, 10]]}, "must be a list of [x1, y1, x2, y2]"),
        ({"boxes": [[0, 0, 200, 10]]}, "leaves its picture of 100×80"),
        ({"boxes": [[5, 5, 5, 10]]}, "has no area"),
    ],
)
def test_bad_phrases(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        phrases(tmp_path / "val.jsonl", CAPTION, CAPTION | {"phrases": [PHRASE, PHRASE | change]})
    assert said in str(caught.value)
    assert "val.jsonl:2: phrase 2" in str(caught.value)


def test_recall_among_the_best_boxes() -> None:
    task, far = find_task("flickr30k-grounding"), [[50.0, 50, 60, 60]]
    asked = [VisualExample(str(i), "", boxes=((0, 0, 10, 10), (20, 20, 30, 30))) for i in range(4)]
    ranks = [[[20.0, 20, 30, 29]], [*far, [0.0, 0, 10, 10]], far * 7 + [[0.0, 0, 10, 5]], far * 10]
    rows = [
        prediction_row(task, e, boxes) | {"reachable": i < 3}
        for i, (e, boxes) in enumerate(zip(asked, ranks, strict=True))
    ]
    wanted = {
        "recall_1": 25,
        "recall_5": 50,
        "recall_10": 75,
        "upper_bound": 75,
        "headline": 25,
        "total": 4,
    }
    assert score_predictions(task, rows) == wanted
    assert score_predictions(task, rows, asked) == wanted
    with pytest.raises(DataError, match="list of boxes"):
        score_predictions(task, [rows[0] | {"prediction": [[1, 2, 3]]}])


def test_a_reversed_box_is_no_prediction() -> None:
    row = {"id": "0", "prediction": [[0, 0, 10, 10], [20, 20, 10, 30]], "label": [[0, 0, 10, 10]]}
    with pytest.raises(DataError, match=r"x1 <= x2 and y1 <= y2 of a box, got \[20, 20, 10, 30\]"):
        score_predictions("flickr30k-entities", [row])
