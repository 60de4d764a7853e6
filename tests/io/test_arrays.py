"""Arrays in parts that are read as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vgtools.io.arrays import Array, padded, stacked


@pytest.mark.parametrize("shape", [(3,), (2, 4)])
def test_a_stack_is_read_as_the_joined_array(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((n, *shape)).astype(np.float32) for n in (3, 1, 0, 5)]
    whole = np.concatenate(parts)
    found = stacked(parts)
    facts = (len(found), found.shape, found.ndim, found.dtype, found.size)
    assert facts == (9, whole.shape, whole.ndim, "f4", whole.size)

    def same(key: Any) -> None:
        got: Array = np.asarray(found[key])
        assert np.array_equal(got, whole[key])
        assert got.shape == whole[key].shape

    for row in range(9):
        same(row)
        same(row - 9)
    for start in (None, 0, 2, 3, 4, 9, -4):
        for stop in (None, 0, 3, 4, 7, 9, 20, -1):
            same(slice(start, stop))
    same([8, 0, 3, 3, 2])
    same(np.array([[0, 8], [4, 3]]))
    same(np.zeros(0, np.int64))
    same(np.arange(9) % 2 == 0)
    same((slice(2, 8), slice(1, None)))
    same((5, 1))
    assert np.array_equal(np.asarray(found, np.float64), whole.astype(np.float64))
    assert np.array_equal(found.astype("float16"), whole.astype("float16"))
    assert np.array_equal([*found], whole)
    for wrong in (9, -10, [3, 9]):
        with pytest.raises(IndexError):
            found[wrong]


def test_one_part_is_not_wrapped_and_slices_are_views() -> None:
    part = np.arange(6).reshape(3, 2)
    assert stacked([part]) is part
    both = stacked([part, part])
    assert np.shares_memory(both[1:3], part)


def test_rows_of_unlike_length_are_filled_up() -> None:
    assert padded([[1, 2], [3]], -1, np.int32).tolist() == [[1, 2], [3, -1]]
    assert padded([], 0, np.float32).shape == (0, 0)


def test_no_part_is_rounded_to_the_type_of_another() -> None:
    parts = [np.ones((2, 3), np.float16), np.full((2, 3), 70001, np.float32)]
    both = stacked(parts)
    assert both.dtype == np.float32
    assert np.array_equal(both[np.array([3, 0])], [[70001] * 3, [1] * 3])
    assert np.array_equal(np.asarray(both), np.concatenate(parts))
