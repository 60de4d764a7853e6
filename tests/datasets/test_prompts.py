"""Prompts of CoDa and of ViComTe, in the form of their official files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vgtools.datasets.prompts import prompts
from vgtools.io.errors import DataError, Tally

LABEL = [0.2, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.3, 0.0, 0.0]
CODA = {
    "text": "All rulers are [MASK].", "label": LABEL, "template_group": 1, "template_idx": 0,
    "class_id": "/m/0hdln", "display_name": "Ruler", "object_group": 2, "ngram": "ruler",
}  # fmt: skip
CLIP = CODA | {"text": "a photo of a ruler.", "template_group": 0}


def write(path: Path, *rows: Any) -> str:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def test_coda(tmp_path: Path) -> None:
    tally = Tally()
    cup = CODA | {"class_id": "/m/02p5f1q", "ngram": "cup", "object_group": 0, "text": "[MASK]"}
    more = CODA | {"text": "Most rulers are [MASK].", "template_idx": 1}
    rows = list(prompts(write(tmp_path / "coda.jsonl", CLIP, CODA, cup, more), tally))
    assert tally.left_out == {"row without a mask": 1}
    assert [(row["item"], row["group"]) for row in rows] == [("ruler", "Any"), ("cup", "Single")]
    assert rows[0]["prompts"] == ["All rulers are [MASK].", "Most rulers are [MASK]."]
    named = dict(zip((answer for (answer,) in rows[0]["answers"]), rows[0]["values"], strict=True))
    assert {colour: n for colour, n in named.items() if n} == {
        "black": 0.2, "brown": 0.5, "red": 0.3,
    }  # fmt: skip


@pytest.fixture
def vicomte(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "words.txt").write_text("round\ncircle: round\nsquare\nring: round\nheart\n")
    counts = {"window": [1, 0, 7], "moon": [0, 9, 0], "box": [0, 0, 3]}
    lines = ({"template": text} for text in ("[X] is [Y] .", "This is a [Y] [X] ."))
    return {
        "path": write(tmp_path / "shape-dist.jsonl", counts),
        "words": str(tmp_path / "words.txt"),
        "templates": write(tmp_path / "shape.jsonl", *lines),
        "subjects": write(
            tmp_path / "test.jsonl",
            {"sub": "moon", "obj": "round", "alt": "heart"},
            {"sub": "box", "obj": "square", "alt": "heart"},
        ),
    }


def test_distributions_of_vicomte(vicomte: dict[str, str]) -> None:
    tally = Tally()
    moon, box = prompts(tally=tally, **vicomte)
    assert moon == {
        "item": "moon",
        "prompts": ["moon is [MASK] .", "This is a [MASK] moon ."],
        "answers": [["heart"], ["round", "circle", "ring"], ["square"]],
        "values": [0, 9, 0],
    }
    assert box["values"] == [0, 0, 3]
    assert tally.left_out == {"subject that --subjects lacks": 1}
    none = write(Path(vicomte["subjects"]).with_name("none.jsonl"))
    assert not list(prompts(tally=tally, **vicomte | {"subjects": none}))


def test_sizes_of_vicomte(tmp_path: Path, vicomte: dict[str, str]) -> None:
    sizes = write(tmp_path / "s.jsonl", {"sub": "bikes", "obj": "cars", "alt": "skates"})
    (row,) = prompts(sizes, Tally(), vicomte["templates"])
    assert (row["answers"], row["values"]) == ([["cars"], ["skates"]], [1, 0])
    assert row["prompts"][0] == "bikes is [MASK] ."
    tally = Tally()
    kept = write(tmp_path / "kept.jsonl", {"sub": "moon"})
    assert not list(prompts(sizes, tally, vicomte["templates"], subjects=kept))
    assert tally.left_out == {"subject that --subjects lacks": 1}


def test_files_that_rows_have_no_use_for_are_refused(
    tmp_path: Path, vicomte: dict[str, str]
) -> None:
    sizes = write(tmp_path / "s.jsonl", {"sub": "bikes", "obj": "cars", "alt": "skates"})
    coda = write(tmp_path / "coda.jsonl", CODA)
    given = {key: vicomte[key] for key in ("templates", "words")}
    for path, flag in ((sizes, "words"), (coda, "templates")):
        with pytest.raises(DataError, match=f"no use for --{flag}") as caught:
            list(prompts(path, Tally(), **given))
        assert caught.value.code == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"label": LABEL[1:]}, r'c\.jsonl:2: expected a "label" of 11 numbers'),
        ({"object_group": 3}, r'c\.jsonl:2: .* an "object_group" below 3'),
        ({"label": LABEL[::-1]}, r"c\.jsonl:2: /m/0hdln has another label than in its rows before"),
    ],
)
def test_another_row_of_coda_stops_with_its_line(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    with pytest.raises(DataError, match=why):
        list(prompts(write(tmp_path / "c.jsonl", CODA, CODA | change), Tally()))


def test_another_file_of_vicomte_is_refused(tmp_path: Path, vicomte: dict[str, str]) -> None:
    short = write(tmp_path / "d.jsonl", {"moon": [0, 9]})
    two = write(tmp_path / "e.jsonl", {"moon": [0, 9, 0]}, {"box": [0, 0, 3]})
    for change, why in (
        ({"path": short}, r"d\.jsonl:1: expected 3 counts of 'moon', one per class of"),
        ({"path": two}, r"e\.jsonl:2: expected one object of all distributions"),
        ({"templates": None}, "needs? its templates"),
        ({"words": None}, "need the words of the relation, --words FILE"),
        ({"templates": write(tmp_path / "t.jsonl", {"template": "[X]"})}, r"one \[X\] and one"),
    ):
        with pytest.raises(DataError, match=why):
            list(prompts(tally=Tally(), **(vicomte | change)))
