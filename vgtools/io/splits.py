"""Rows that are not to be learned from, because a data set validates or tests on them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, amount
from vgtools.io.names import file_of, is_shards, is_url
from vgtools.io.written import is_made, manifest_beside

# Such a word is first in dev_matched, val2014, testA, minival, newstest2014, held-out, trial, and a
# word of its own in public_test, ood-testB, unseen_validation, ted.tst2013; not in restval, latest.
_NEWS = r"news(discuss)?(dev|test)"
_WORD = rf"dev|development|val|valid|validation|test|testing|tst|eval|evaluation|{_NEWS}"
_HELD_OUT = re.compile(
    rf"[^a-z]*(mini[\W_]?)?(dev|val|test|tst|{_NEWS}|eval|trial|(held|hold)[\W_]?out)"
    rf"|.*[^a-z+](mini)?({_WORD}|trial|(held|hold)[\W_]?out)[ab]?([^a-z]|$)",
    re.IGNORECASE | re.DOTALL,
)


def is_held_out(row: Mapping[str, Any]) -> bool:
    """Return whether the "split" of a row is for validation or testing."""
    split = row.get("split")
    return isinstance(split, str) and _HELD_OUT.match(split) is not None


def split_of(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the "split" of a row, for the row that is made of it; {} where there is none."""
    split = row.get("split")
    return {"split": split} if isinstance(split, str) else {}


def held_out_in(path: str | Path) -> int:
    """Return how many rows to evaluate on a file was made of, by its manifest; 0 without one.

    A link has the manifest of its file, a shard the one of its folder.
    """
    if is_url(path):
        folder = os.path.dirname(file_of(path))
        above = [f"{folder}/"] if os.path.splitext(folder)[1] else []  # as folders of shards have
        return max(manifest_beside(place).get("held_out") or 0 for place in (path, *above))
    real = os.path.realpath(file_of(path))
    places = {file_of(path), real, os.path.dirname(real)}
    # A file that is not vg's, in a folder that is not, has no manifest to read.
    made = [place for place in places if is_shards(place) or is_made(place)]
    return max((manifest_beside(place).get("held_out") or 0 for place in made), default=0)


def inherited(texts: Iterable[str | Path]) -> dict[str, int]:
    """Return how many rows to evaluate on texts were made of, by their manifests.

    Lines have no splits: an output that is made of them has the count in its manifest as well.

    Returns:
        {"held_out": rows}; {} without any.
    """
    count = sum(map(held_out_in, texts))
    return {"held_out": count} if count else {}


def refuse_made_of_held_out(path: str | Path) -> None:
    """Refuse to learn from a file of vg's that has rows to evaluate on, which its manifest counts.

    Raises:
        DataError: it has such rows (65).
    """
    if held_out := held_out_in(path):
        why = f"was made of {amount(held_out, 'row')} of splits to evaluate on"
        way_out = "make it again from those to learn from: jq -c 'select(.split == \"train\")'"
        raise DataError(f"{why}; {way_out}", path)


def refuse_held_out(row: Mapping[str, Any], path: str | Path, line: int) -> None:
    """Refuse to learn from a row whose "split" is for validation or testing.

    With the first row the whole file is checked as `refuse_made_of_held_out` does: lines of a text
    have no splits.

    Raises:
        DataError: the row is of such a split, or "split" is of another type (65).
    """
    if line == 1:
        refuse_made_of_held_out(path)
    if not isinstance(row.get("split"), str | int | None):  # a number has no meaning
        raise DataError(f'"split": expected a name, got {row["split"]!r:.40}', path, line)
    if is_held_out(row):
        why = f'"split" is {row["split"]!r:.40}: expected rows to learn from, such as "train"'
        way_out = "leave those out"
        if str(path).endswith(".jsonl") and not is_shards(path):
            way_out += f""": jq -c 'select(.split == "train")' {path}"""
        raise DataError(f"{why}; {way_out}", path, line)
