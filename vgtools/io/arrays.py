"""The array type of every signature; not in `vgtools.io`, which must not import numpy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

Array = np.ndarray[Any, Any]


def padded(rows: Sequence[Any], fill: Any, dtype: Any, *width: int) -> Array:
    """Return rows of unlike length as one array, filled up at their ends: (rows, longest, *width).

    Args:
        width: shape of an entry of a row; none for numbers.
    """
    array = np.full((len(rows), max(map(len, rows), default=0), *width), fill, dtype)
    for place, row in zip(array, rows, strict=True):
        place[: len(row)] = row
    return array


def ranges(starts: Array, counts: Array) -> Array:
    """Return starts[i], starts[i] + 1, …, counts[i] of them, of all i, one after the other."""
    first = np.cumsum(counts) - counts
    numbers: Array = np.arange(int(counts.sum())) + np.repeat(starts - first, counts)
    return numbers


class _Stacked:
    """Arrays of one row shape, one after the other, read by rows without being joined.

    A slice is a view, and a list of rows is gathered; `np.asarray` makes one array of all.
    """

    def __init__(self, parts: Sequence[Array]) -> None:
        self._parts = parts
        self._starts = np.cumsum([0, *map(len, parts)])  # first row of each part, and their end
        self.shape: tuple[int, ...] = (int(self._starts[-1]), *parts[0].shape[1:])
        self.dtype = np.result_type(*{part.dtype for part in parts})  # no part is rounded
        self.ndim = len(self.shape)
        self.size = math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        return (row for part in self._parts for row in part)

    def __getitem__(self, key: Any) -> Any:
        first, *rest = key if isinstance(key, tuple) else (key,)
        if isinstance(first, slice) and first.step in (None, 1) and not rest:
            start, stop, _ = first.indices(len(self))
            edges = zip(self._parts, self._starts[:-1].tolist(), strict=True)
            parts = [part[max(0, start - edge) : max(0, stop - edge)] for part, edge in edges]
            return stacked([part for part in parts if len(part)] or parts[:1])
        # numpy itself resolves negative numbers, lists and masks, over all parts together.
        rows = np.arange(len(self))[first]
        if not rows.ndim:
            part = int(np.searchsorted(self._starts, rows, "right")) - 1
            return self._parts[part][(int(rows - self._starts[part]), *rest)]
        found = np.empty((*rows.shape, *self.shape[1:]), self.dtype)
        owner = np.searchsorted(self._starts, rows, "right") - 1
        for part in np.unique(owner):
            here = owner == part
            found[here] = self._parts[part][rows[here] - self._starts[part]]
        return found[(slice(None),) * rows.ndim + tuple(rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.concatenate(self._parts).astype(dtype or self.dtype, copy=False)

    def astype(self, dtype: Any) -> Array:
        """Return all rows as one array of a type."""
        return self.__array__(dtype)


def stacked(parts: Sequence[Array]) -> Array:
    """Return arrays of one row shape as one, which is read by rows; a single array as it is."""
    return parts[0] if len(parts) == 1 else cast(Array, _Stacked(parts))
