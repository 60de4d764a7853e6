"""Voken rows: a wrong value is named with its place, and a right row stays as it is."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vgtools.io.errors import DataError
from vgtools.io.files import dumps
from vgtools.io.streams import Window
from vgtools.io.written import seal
from vgtools.text.vokens import VokenWriter, parse_rows


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
def test_wrong_numbers_are_named(key: str, value: Any, why: str) -> None:
    row = row_of(2) | {key: value}
    with pytest.raises(DataError, match=why):
        parse_rows([json.dumps(row)], "x", 7)


def test_scores_of_several_types_stay_as_they_are() -> None:
    for scores in ([1, 0.5], [1, 2], []):
        row = row_of(len(scores)) | {"scores": scores}
        checked = parse_rows([json.dumps(row)], "x")
        assert dumps(checked.rows[0]) == dumps(row)


def test_a_row_that_is_too_deep_to_be_written_is_named(tmp_path: Path) -> None:
    row = row_of(2)
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with VokenWriter(str(tmp_path / "o.jsonl"), {}) as out:
        window = Window("in.jsonl", 2, [""], "")
        with pytest.raises(DataError, match=r"^in\.jsonl:2: is nested too deeply to be written"):
            out.write([row | {"more": deep}], np.zeros(2, np.int32), window)


def test_a_text_that_is_too_long_to_be_tokenised_is_named() -> None:
    most = row_of(2) | {"text": "x " * 500_000}
    assert parse_rows([json.dumps(most)], "x").starts.tolist() == [0, 2]
    more = most | {"text": most["text"] + "x"}
    why = r"^x:8: has a text of 1,000,001 characters, expected at most 1,000,000; vg prepare sent"
    with pytest.raises(DataError, match=why):
        parse_rows([json.dumps(most), json.dumps(more)], "x", 7)


@pytest.mark.parametrize("key", ["rows", "tokens"])
@pytest.mark.parametrize("name", ["o.jsonl", "o.parquet", "o.npy"])
def test_a_journal_without_a_count_is_refused(tmp_path: Path, name: str, key: str) -> None:
    """Whoever edits it may seal it again; packed rows would end elsewhere."""
    path = tmp_path / name
    row = row_of(3) | {"id": "a", "more": 1}
    with pytest.raises(KeyboardInterrupt), VokenWriter(str(path), {}) as out:
        out.write([row], np.array([1, 2, 3]))
        out.commit("")
        raise KeyboardInterrupt
    journal = tmp_path / f"{name}.journal"
    body = json.loads(journal.read_bytes())
    del body["sha256"], body["state"]["counts"][key]
    journal.write_bytes(dumps(body | {"sha256": seal(body)}))
    with (
        pytest.raises(DataError, match=f'"{key}" is missing; --restart starts over'),
        VokenWriter(str(path), {}),
    ):
        pass
