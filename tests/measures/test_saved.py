"""Kept items: damaged rows are refused with the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vgtools.io.errors import DataError
from vgtools.io.files import write_manifest
from vgtools.measures.compare import compare
from vgtools.measures.saved import KIND, read_items

ROW = {"evaluation": "x", "kind": "k", "statistic": "pearson", "item": "a", "gold": 1.0}


def save(folder: Path, *rows: dict[str, Any], name: str = "items.jsonl", **facts: Any) -> str:
    path = folder / name
    path.write_text("".join(json.dumps(ROW | row) + "\n" for row in rows))
    encoders = [{"encoder": name} for name in ("p", "q")]
    write_manifest(
        path, [path], kind=KIND, **{"encoders": encoders, "contents": {"x": "aa"}, **facts}
    )
    return str(path)


def test_an_unknown_item_and_an_encoder_that_was_not_asked(tmp_path: Path) -> None:
    rows = ({"predictions": [1, None]}, {"item": "b", "predictions": [None, None]})
    (found,), names = read_items([save(tmp_path, *rows)])
    assert names == ["p", "q"]
    first, second = found.predictions
    assert first is not None
    assert (first[0], first[1] != first[1], second) == (1, True, None)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"predictions": [1]}, r"items\.jsonl:2: \"gold\" and 2 \"predictions\" must be numbers"),
        ({"predictions": [1, "a"]}, "must be numbers"),
        ({"predictions": [1, True]}, "must be numbers"),
        ({"gold": "a", "predictions": ["a", 1]}, "must be names of classes"),
        ({"gold": None, "predictions": [1, 1]}, "must be numbers"),
        ({"gold": "a", "predictions": ["a", "b"]}, "\"gold\" is 'a', of another item 1.0"),
        ({"statistic": "luck", "predictions": [1, 1]}, "\"statistic\" is 'luck', expected one of"),
        ({"folds": -1, "predictions": [1, 1]}, '"folds" is -1, expected 0 to 1000'),
        ({"folds": True, "predictions": [1, 1]}, '"folds" is True, expected 0 to 1000'),
    ],
)
def test_refusals(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    path = save(tmp_path, {"predictions": [1, 2]}, {"item": "b"} | row)
    with pytest.raises(DataError, match=why):
        read_items([path])


def test_items_that_are_learned_from_one_another_keep_their_wider_intervals(
    tmp_path: Path,
) -> None:
    """The variance of cross-validated predictions counts 1 + 10 / 9 times."""
    rng = np.random.default_rng(0)
    rows = [
        {"item": f"w{n}", "statistic": "mean", "predictions": rng.normal(0, 1, 2).tolist()}
        for n in range(300)
    ]
    widths = []
    needed = []
    for folds in ({}, {"folds": 10}):
        path = save(tmp_path, *(row | folds for row in rows), name=f"{len(folds)}.jsonl")
        measured, _ = read_items([path])
        first, second = compare(measured, {"p": [0], "q": [1]}, 2000)
        change = second["difference"]
        needed.append(change["items_for_point"])
        widths.append([first["high"] - first["low"], change["high"] - change["low"]])
    assert needed[1] == pytest.approx(needed[0] * (1 + 10 / 9), rel=1e-4)
    assert np.divide(widths[1], widths[0]) == pytest.approx(np.sqrt(1 + 10 / 9), rel=1e-6)


def test_other_items_under_the_same_keys_are_refused(tmp_path: Path) -> None:
    row = {"predictions": [1, 2]}
    one, same, other = (
        save(tmp_path, row, name=f"{name}.jsonl", contents={"x": content})
        for name, content in (("one", "aa"), ("same", "aa"), ("other", "bb"))
    )
    assert len(read_items([one, same])[1]) == 4
    why = r"other\.jsonl:1: x is of other items than in .*one\.jsonl, .* \(sha256 bb, there aa\)"
    with pytest.raises(DataError, match=why):
        read_items([one, other])
    # Files of an earlier version lack the hash: nothing shows that their items are the same.
    old, older = (save(tmp_path, row, name=f"{name}.jsonl", contents={}) for name in ("a", "b"))
    for pair in ([one, old], [older, old], [old, one]):
        why = rf"may be of other items than in {pair[0]}: {old} has no sha256; measure these"
        with pytest.raises(DataError, match=why):
            read_items(pair)
    assert read_items([old])[1] == ["p", "q"]


@pytest.mark.parametrize(
    "facts",
    [
        {"encoders": ["p", "q"]},
        {"contents": ["aa"]},
        {"config": []},
        {"inputs": ["a"]},
    ],
)
def test_a_manifest_of_another_form_is_refused(tmp_path: Path, facts: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"expected an object, got .*; measure again"):
        read_items([save(tmp_path, {"predictions": [1, 2]}, **facts)])


@pytest.mark.parametrize(
    ("fact", "one", "two"), [("group", "low", "high"), ("grounded", True, False)]
)
def test_items_of_other_groups_are_refused(tmp_path: Path, fact: str, one: Any, two: Any) -> None:
    values: list[dict[str, Any]] = [{fact: one}, {fact: two}, {}]
    first, other, without = (
        save(tmp_path, {"predictions": [1, 2], **value}, name=f"{number}.jsonl")
        for number, value in enumerate(values)
    )
    with pytest.raises(DataError, match=rf"1\.jsonl:1: 'a' has {fact} .*, in an earlier file"):
        read_items([first, other])
    assert len(read_items([first, without, first])[1]) == 6


CONFIG = {"contexts": "a.txt", "per_word": 30, "seed": 0}


def reading(**changes: Any) -> dict[str, Any]:
    return {"vectors": "contexts", "config": {**CONFIG, **changes}}


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"vectors": "alone"}, "--vectors alone, in {one} of --vectors contexts, --contexts aa"),
        (reading(per_word=5), "--per-word 5, --seed 0, in {one} of .* --per-word 30, --seed 0"),
        (reading(contexts="b.txt"), "--contexts bb, .*, in {one} of .* --contexts aa"),
        (reading(seed=1), "--seed 1, in {one} of .*--seed 0"),
        (reading(contexts="also-a.txt"), ""),
    ],
)
def test_vectors_that_were_read_in_another_way_are_refused(
    tmp_path: Path, facts: dict[str, Any], why: str
) -> None:
    named = {"a.txt": "aa", "b.txt": "bb", "also-a.txt": "aa"}
    inputs = [{"path": path, "sha256": sha256} for path, sha256 in named.items()]
    row = {"kind": "word pairs", "predictions": [1, 2]}
    one = save(tmp_path, row, name="one.jsonl", inputs=inputs, **reading())
    other = save(tmp_path, row, name="other.jsonl", inputs=inputs, **facts)
    if why:
        with pytest.raises(DataError, match=r"other\.jsonl: x is of .*" + why.format(one=one)):
            read_items([one, other])
    else:
        assert len(read_items([one, other])[1]) == 4


def test_only_the_reading_that_an_evaluation_needs_is_compared(tmp_path: Path) -> None:
    def two(kind: str, vectors: str) -> list[str]:
        row = {"kind": kind, "predictions": [1, 2]}
        first = save(tmp_path, row, name="one.jsonl", **reading())
        return [first, save(tmp_path, row, name="other.jsonl", vectors=vectors)]

    assert len(read_items(two("prompts", "input"))[1]) == 4
    assert len(read_items(two("sentence pairs", "alone"))[1]) == 4
    with pytest.raises(DataError, match=r"of vectors of --vectors input, in .*one\.jsonl of"):
        read_items(two("sentence pairs", "input"))
