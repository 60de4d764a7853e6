"""Voken rows of very long lines: parsed into arrays and written in pieces, with the same bytes."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from vgtools.io.errors import DataError
from vgtools.io.files import dumps
from vgtools.io.streams import Window
from vgtools.text import vokens
from vgtools.text.vokens import VokenWriter, check_rows, parse_row, parse_rows

SEPARATORS = ((",", ":"), (", ", ": "), (" ,\t", " : "))


def row_of(count: int, k: int = 0) -> dict[str, Any]:
    rng = random.Random(count)

    def numbers(draw: Any) -> list[Any]:
        return [[draw() for _ in range(k)] if k else draw() for _ in range(count)]

    return {
        "id": {"b": [1, "]"]},
        "text": 'é" x ' * count,
        "spans": [[i, i + 1] for i in range(count)],
        "vokens": numbers(lambda: rng.randrange(-1, 99)),
        "scores": numbers(lambda: round(rng.random(), 4)),
        "more": None,
    }


@pytest.fixture
def everything_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vokens, "_LONG", 10)
    monkeypatch.setattr(vokens, "_PIECE", 17)


def lists(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()}


@pytest.mark.usefixtures("everything_is_long")
@pytest.mark.parametrize("separators", SEPARATORS)
@pytest.mark.parametrize("k", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 2, 5, 100])
def test_a_long_line_is_the_same_row_and_the_same_line(
    count: int, k: int, separators: tuple[str, str]
) -> None:
    row = row_of(count, k)
    line = json.dumps(row, separators=separators, ensure_ascii=count % 2 == 0)
    found = parse_row(line, "x", 1)
    assert all(isinstance(found[key], np.ndarray) for key in ("spans", "vokens", "scores"))
    assert list(found) == list(row)
    assert lists(found) == row
    assert b"".join(vokens._write_long(found)) == dumps(row)
    checked = parse_rows([line, line], "x")
    assert checked.spans.tolist() == row["spans"] * 2
    assert checked.starts.tolist() == [0, count, 2 * count]


@pytest.mark.usefixtures("everything_is_long")
def test_a_damaged_long_line_is_what_the_usual_parser_says() -> None:
    line = json.dumps(row_of(5, 0))
    rng = random.Random(0)
    for _ in range(2000):
        at = rng.randrange(len(line))
        bad = line[:at] + rng.choice(',[]{}":0 1.eN-\\') + line[at + rng.randrange(2) :]
        try:
            expected = orjson.loads(bad)
        except orjson.JSONDecodeError:
            expected = None
        if isinstance(expected, dict):
            assert lists(parse_row(bad, "x", 1)) == expected
        else:
            with pytest.raises(DataError, match=r"^x:1: "):
                parse_row(bad, "x", 1)


@pytest.mark.usefixtures("everything_is_long")
@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("spans", [[0, 1], [0, 99]], r'x:7: "spans" entry 1 is \[0, 99\], not inside the text'),
        ("spans", [[0, 1], [2, 1]], r'"spans" entry 1 is \[2, 1\]'),
        ("spans", [[0, 1, 2], [0, 1, 2]], r'"spans" entry 0 must be \[start, end\]'),
        ("spans", [[0.5, 1.5], [0.5, 1.5]], r'"spans" entry 0 must be \[start, end\]'),
        ("vokens", [1, 2**31], r'"vokens" entry 1 must be a row'),
        ("vokens", [-2, 1], r'"vokens" entry 0 must be a row'),
        ("vokens", [1], r'"vokens" has 1 entries, "spans" has 2'),
        ("vokens", [0.5, 1.5], r'"vokens" entry 0 must be a row'),
        ("scores", [0.5], r'"scores" has 1 entries'),
        ("scores", [[0.5], [0.5]], r'"scores" entry 0 must be a number'),
    ],
)
def test_wrong_numbers_of_a_long_line_are_named(key: str, value: Any, why: str) -> None:
    row = row_of(2) | {key: value}
    with pytest.raises(DataError, match=why):
        parse_rows([json.dumps(row)], "x", 7)


@pytest.mark.usefixtures("everything_is_long")
def test_scores_of_several_types_stay_as_they_are() -> None:
    for scores in ([1, 0.5], [1, 2], []):
        row = row_of(len(scores)) | {"scores": scores}
        checked = check_rows([parse_row(json.dumps(row), "x", 1)])
        assert dumps(checked.rows[0]) == dumps(row)


def test_the_memory_of_a_long_line_is_that_of_its_numbers() -> None:
    count = 150_000
    row = row_of(0) | {
        "text": "ab " * count,
        "spans": [[3 * i, 3 * i + 2] for i in range(count)],
        "vokens": [i % 99_991 for i in range(count)],
        "scores": [i / count for i in range(count)],
    }
    line = orjson.dumps(row).decode()
    assert len(line) > vokens._LONG
    del row
    tracemalloc.start()
    parse_rows([line], "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Four numbers of 8 bytes per token; one array of two at a time exists twice, as pieces and
    # joined; a piece's lists, at most 100 bytes per code point; the text, twice.
    bound = (4 + 2) * 8 * count + 100 * 2 * vokens._PIECE + 2 * 3 * count
    assert peak < bound, (peak, bound)


def test_a_row_that_is_too_deep_to_be_written_is_named(tmp_path: Path) -> None:
    row = row_of(2)
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with VokenWriter(str(tmp_path / "o.jsonl"), {}) as out:
        window = Window("in.jsonl", 2, [""], "")
        with pytest.raises(DataError, match=r"^in\.jsonl:2: is nested too deeply to be written"):
            out.write([row | {"more": deep}], np.zeros(2, np.int32), window)
