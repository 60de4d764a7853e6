"""Minimal pairs in the form of BLiMP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vgtools.datasets.minimal_pairs import minimal_pairs
from vgtools.io.errors import DataError, Tally

ROW = {
    "sentence_good": "Who hugs?", "sentence_bad": "Who hug?", "field": "syntax", "pairID": "0",
    "linguistics_term": "agreement", "UID": "agreement_1",
}  # fmt: skip


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_rows_of_several_files(tmp_path: Path) -> None:
    tally = Tally()
    one = write(tmp_path / "a.jsonl", ROW, ROW | {"sentence_bad": "Who hugs?"})
    two = write(tmp_path / "b.jsonl", ROW | {"UID": "agreement_2"})
    row = {"good": "Who hugs?", "bad": "Who hug?", "phenomenon": "agreement"}
    assert list(minimal_pairs([one, two], tally)) == [
        row | {"paradigm": "agreement_1"},
        row | {"paradigm": "agreement_2"},
    ]
    assert tally.left_out == {"pair of equal sentences": 1}


def test_the_first_pairs_of_each_paradigm(tmp_path: Path) -> None:
    tally = Tally()
    rows = [ROW | {"UID": name, "sentence_good": name + x} for x in "ab" for name in ("p", "q")]
    found = list(minimal_pairs([write(tmp_path / "a.jsonl", *rows)], tally, most=1))
    assert [row["good"] for row in found] == ["pa", "qa"]
    assert tally.left_out == {"pair after the first 1 of its paradigm": 2}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"UID": 3}, r'a\.jsonl:2: .*"UID"'),
        ({"sentence_bad": " "}, r"a\.jsonl:2: a sentence is empty; leave the pair out"),
    ],
)
def test_a_row_of_another_form_stops_with_its_line(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    path = write(tmp_path / "a.jsonl", ROW, ROW | change)
    with pytest.raises(DataError, match=why):
        list(minimal_pairs([path], Tally()))
