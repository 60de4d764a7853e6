"""Fragments for notebooks: whose pictures, escaped, dimmed, and what is shown without."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.tiny.images import save_photo
from vgtools.reports.strips import ShownRows, strip

EVIL = "<img src=x onerror=alert(1)>"
TEXT = f"a {EVIL} b"
ROW: dict[str, Any] = {
    "text": TEXT,
    "spans": [[0, 1], [2, 2 + len(EVIL)], [len(TEXT) - 1, len(TEXT)]],
    "vokens": [0, 1, -1],
    "scores": [0.75, 0.25, 0],
}


def tags(html: str) -> set[str]:
    return set(re.findall(r"<([a-z]+)", html.partition("</style>")[2]))


def test_texts_and_names_are_escaped(tmp_path: Path) -> None:
    save_photo(tmp_path / "one.png", 1)
    shown = ShownRows(["one.png", f"{EVIL}\u202e"], str(tmp_path), True)
    html = strip([ROW], shown)
    assert EVIL not in html
    assert tags(html) == {"p", "span", "img", "b"}
    assert html.count("<img ") == 1
    assert "\u202e" not in html
    assert "\\u202e" in html, "a control that turns the text is written out"
    for row in (
        {"text": TEXT, "images": [0, 1], "scores": [0.5, 0.25]},
        {"text": TEXT, "image": EVIL, "grid": [1, 2], "heat": [0, 1], "point": [0.75, 0.5]},
    ):
        drawn = strip([row], shown)
        assert EVIL not in drawn
        assert tags(drawn) <= {"p", "span", "img"}


def test_pictures_that_are_probably_wrong_are_dimmed(tmp_path: Path) -> None:
    save_photo(tmp_path / "one.png", 1)
    ids = ["one.png", "two.png"]
    parts = strip([ROW], ShownRows(ids, str(tmp_path), True)).split('<span class="vg-t')[1:]
    assert [part.partition('"')[0] for part in parts] == ["", " vg-low", " vg-bare"]
    assert ["width:75%" in parts[0], "width:25%" in parts[1]] == [True, True]
    assert "data:image/webp" in parts[0]
    assert '<span class="vg-gone">two.png</span>' in parts[1], "its picture is not there"
    relevance = strip([ROW], ShownRows(ids, str(tmp_path), False))
    assert "vg-low" not in relevance.partition("</style>")[2]
    assert "width:100%" in relevance
    assert "width:0%" in relevance


def test_rows_without_pictures_are_drawn(tmp_path: Path) -> None:
    assert "an empty line" in strip([{"text": "", "spans": [], "vokens": []}], ShownRows())
    assert "<p" not in strip([], ShownRows()).partition("</style>")[2]
    html = strip([{"text": "a", "spans": [[0, 1]], "vokens": [5]}], ShownRows())
    assert '<span class="vg-gone">5</span>' in html
    several = {"text": "a", "spans": [[0, 1]], "vokens": [[5, 6]], "scores": [[0.5, 0.25]]}
    assert '<span class="vg-gone">5</span>' in strip([several], ShownRows())
