"""Near-equal pictures of a bank: the first stays, the others are left out.

A picture is left out if its cosine with one that stays, computed in float64 and rounded to six
decimals, reaches a limit. Pictures are compared block by block in their order; the vectors of those
that stay are in a file, so that memory does not grow with the bank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.names import manifest_path
from vgtools.io.streams import read_jsonl
from vgtools.io.written import check_file, manifest_beside
from vgtools.retrieval.build import IndexPlan

_STEP = 1024  # pictures that are compared at a time
_KEPT = 1 << 14  # with that many of those that stay
_DECIMALS = 6


def rows_by_name(ids: Sequence[str], indexes: Sequence[str]) -> dict[str, int]:
    """Return the row of each picture in a bank; a picture that was left out has its twin's row.

    Args:
        ids: the bank's pictures.
        indexes: the index, or the parts of the bank.

    Raises:
        DataError: the list of pictures that were left out is missing (66), has changed since, or
            names pictures that the bank does not have (65).
    """
    rows = {name: row for row, name in enumerate(ids)}
    for index in indexes:
        manifest = manifest_beside(index)
        if "duplicates" in manifest:
            file = Path(index).with_suffix(".duplicates.jsonl")
            facts = manifest["files"].get(file.name)
            if not isinstance(facts, dict):
                why = f'"files" does not name {file.name}; build the index again'
                raise DataError(why, manifest_path(index))
            way_out = "restore it, or build the index again"
            check_file(file, facts, "the index's manifest", way_out)
            for line, row in read_jsonl(file, {"image": str, "kept": str}):
                if row["kept"] not in rows:
                    why = f'"kept" is {row["kept"]!r:.80}, which the index does not have'
                    raise DataError(why, file, line)
                rows.setdefault(row["image"], rows[row["kept"]])
    return rows


class Twin(NamedTuple):
    """A picture that is left out."""

    row: int
    kept: int  # the first picture that stays and is near-equal
    cosine: float


@dataclass(frozen=True)
class Distinct:
    """The pictures that stay."""

    plan: IndexPlan  # over these alone
    rows: Array  # (K,) their rows in the bank
    twins: list[Twin]


def distinct(
    plan: IndexPlan, limit: float, file: IO[bytes], each: Callable[[Array], None]
) -> Distinct:
    """Return the pictures that stay, in their order.

    Args:
        plan: the bank.
        limit: the cosine from which on pictures are near-equal.
        file: empty; takes the vectors that stay, and is open as long as the plan is used.
        each: called with the vectors of some pictures after the others.
    """
    rows = np.zeros(0, np.int64)
    twins = list[Twin]()
    for start in range(0, plan.count, _STEP):
        here = np.arange(start, min(start + _STEP, plan.count))
        emb = np.ascontiguousarray(plan.embed(here))
        stays = np.ones(len(here), bool)
        for first, kept in _blocks(file, len(rows), plan.dim):
            left = np.flatnonzero(stays)
            for at, other, cosine in _twins(emb[left], kept, limit):
                twins.append(Twin(int(here[left[at]]), int(rows[first + other]), cosine))
                stays[left[at]] = False
        _among(emb, here, stays, limit, twins)
        file.seek(0, 2)
        file.write(emb[stays].data)
        rows = np.concatenate([rows, here[stays]])
        each(emb)
    file.flush()
    vectors = np.memmap(file, np.float32, "r", shape=(len(rows), plan.dim))
    one = replace(plan, embed=vectors.__getitem__, count=len(rows))
    return Distinct(one, rows, sorted(twins))


def _blocks(file: IO[bytes], count: int, dim: int) -> Iterator[tuple[int, Array]]:
    """Yield the vectors that stay so far, with the number of the first."""
    file.seek(0)
    for first in range(0, count, _KEPT):
        size = min(_KEPT, count - first)
        yield first, np.frombuffer(file.read(4 * size * dim), np.float32).reshape(size, dim)


def _near(emb: Array, others: Array, limit: float) -> Array:
    """Return which pairs may reach the limit, (n, m): float32 products and their error."""
    margin = 2.0 * (emb.shape[1] + 4) * 2.0**-24 + 10.0**-_DECIMALS
    near: Array = emb @ others.T >= np.float32(limit - margin)
    return near


def _cosines(a: Array, b: Array) -> Array:
    """Return the cosines of (n, E) pairs of vectors, rounded."""
    a = a.astype(np.float64)
    b = b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    cosines: Array = np.round((a * b).sum(1) / lengths, _DECIMALS)
    return cosines


def _twins(emb: Array, others: Array, limit: float) -> Iterator[tuple[int, int, float]]:
    """Yield (row, first near-equal row of the others, cosine) of the rows that have one."""
    near = _near(emb, others, limit)
    asked = np.flatnonzero(near.any(1))
    while len(asked):
        first = near[asked].argmax(1)
        cosines = _cosines(emb[asked], others[first])
        sure = cosines >= limit
        yield from zip(
            asked[sure].tolist(), first[sure].tolist(), cosines[sure].tolist(), strict=True
        )
        near[asked, first] = False
        asked = asked[~sure]
        asked = asked[near[asked].any(1)]


def _among(emb: Array, here: Array, stays: Array, limit: float, twins: list[Twin]) -> None:
    """Leave out the pictures of a block that are near-equal to one before them in it."""
    near = np.tril(_near(emb, emb, limit), -1)
    for row in np.flatnonzero(near.any(1) & stays).tolist():
        before = np.flatnonzero(near[row, :row] & stays[:row])
        cosines = _cosines(emb[[row] * len(before)], emb[before])
        reached = np.flatnonzero(cosines >= limit)
        if len(reached):
            first = reached[0]
            twins.append(Twin(int(here[row]), int(here[before[first]]), float(cosines[first])))
            stays[row] = False
