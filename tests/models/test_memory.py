"""Batches that are halved when memory runs out."""

from __future__ import annotations

import numpy as np
import pytest

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.models.memory import in_batches


def test_parts_are_halved_and_stay_so() -> None:
    sizes = []

    def work(numbers: Array) -> int:
        sizes.append(len(numbers))
        if len(numbers) > 2:
            raise MemoryError
        return int(numbers.sum())

    order = np.array([4, 0, 3, 1, 2, 5, 6])
    found = list(in_batches(order, 5, work, str))
    assert sizes == [5, 2, 2, 2, 1]
    assert [numbers.tolist() for numbers, _ in found] == [[4, 0], [3, 1], [2, 5], [6]]
    assert [result for _, result in found] == [4, 4, 7, 6]


def test_a_single_item_that_does_not_fit_is_named() -> None:
    def work(numbers: Array) -> None:
        raise MemoryError

    with pytest.raises(DataError, match="out of memory with item 7") as caught:
        list(in_batches(np.array([7, 8]), 2, work, lambda number: f"item {number}"))
    assert caught.value.code == 70
    with pytest.raises(ValueError, match="other"):
        list(in_batches(np.array([7]), 2, lambda numbers: _other(), str))


def _other() -> None:
    raise ValueError("other")
