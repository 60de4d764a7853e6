"""Masks of polygons and runs against brute force."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from vgtools.images.masks import draw, parse_outline
from vgtools.io.arrays import Array


def contains(polygon: list[tuple[float, float]], x: float, y: float) -> bool:
    """Return whether a point is inside a polygon, by its winding angles' parity."""
    odd = False
    for (x1, y1), (x2, y2) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
        if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
            odd = not odd
    return odd


def test_polygons_are_filled_where_pixel_centres_are_inside() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        count = int(rng.integers(3, 9))
        points = rng.uniform(-5, 25, (count, 2)).round(2)  # some leave the picture
        mask = draw([parse_outline([points.reshape(-1).tolist()])], 20, 15)
        shape = [(float(x), float(y)) for x, y in points.astype(np.float32)]
        expected = [[contains(shape, x + 0.5, y + 0.5) for x in range(20)] for y in range(15)]
        assert mask.tolist() == expected


def test_a_rectangle_has_its_area() -> None:
    mask = draw([parse_outline([[2, 1, 7, 1, 7, 4, 2, 4]])], 10, 6)
    assert mask.sum() == 15
    assert mask[1:4, 2:7].all()


def runs_of(mask: Array) -> list[int]:
    """Return COCO's runs of a mask: down each column, zeros first."""
    flat = mask.T.reshape(-1).tolist()
    counts = [len(list(group)) for _, group in groupby(flat)]
    return [0, *counts] if flat[0] else counts


def packed(counts: list[int]) -> str:
    """Return runs as COCO compresses them (`rleToString` of its API)."""
    text = ""
    for i, count in enumerate(counts):
        x = count - (counts[i - 2] if i > 2 else 0)
        more = True
        while more:
            bits = x & 31
            x >>= 5
            more = x != -1 if bits & 16 else x != 0
            text += chr((bits | 32 if more else bits) + 48)
    return text


def test_runs_are_read_as_lists_and_as_strings() -> None:
    rng = np.random.default_rng(1)
    for share in (0.02, 0.5, 0.98):
        mask = rng.random((37, 53)) < share
        mask[:, 10:40] = share > 0.5  # long runs, and differences below zero
        counts = runs_of(mask)
        for form in (counts, packed(counts)):
            outline = parse_outline({"size": [37, 53], "counts": form})
            assert outline.size == (53, 37)
            assert (draw([outline], 53, 37) == mask).all()


def test_a_string_of_the_official_api() -> None:
    # A 2×2 square at row 1, column 1 of 4×4: runs 5, 2, 2, 2, 5; the fourth and fifth as
    # differences to the second and third: 0 and 3.
    outline = parse_outline({"size": [4, 4], "counts": "52203"})
    mask = draw([outline], 4, 4)
    assert mask.tolist() == [[1 <= x <= 2 and 1 <= y <= 2 for x in range(4)] for y in range(4)]


def test_the_union_of_outlines() -> None:
    one = parse_outline([[0, 0, 2, 0, 2, 2, 0, 2], [4, 0, 6, 0, 6, 2, 4, 2]])
    two = parse_outline({"size": [2, 6], "counts": [4, 2, 6]})
    expected = [[True, True, True, False, True, True]] * 2
    assert draw([one, two], 6, 2).tolist() == expected
    assert not draw([], 3, 2).any()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (None, "expected polygons or runs, got None"),
        ([[1, 2, 3, 4]], "expected polygons"),
        ([[1, 2, 3, 4, 5]], "expected polygons"),
        ([[1, 2, 3, 4, 5, math.inf]], "expected polygons"),
        ([[1, 2, 3, 4, 5, "6"]], "expected polygons"),
        ([1, 2], "expected polygons"),
        ({"size": [2, 2], "counts": [1, 2]}, r"expected \[2, 2\] pixels in its runs, got 3"),
        ({"size": [2], "counts": [4]}, "pixels in its runs"),
        ({"counts": [4]}, "pixels in its runs"),
        ({"size": [2, 2], "counts": [5, -1]}, "expected the lengths of runs"),
        ({"size": [2, 2], "counts": [True, 3]}, "expected the lengths of runs"),
        ({"size": [2, 2], "counts": "4\x00"}, "has the character"),
        ({"size": [2, 2], "counts": "P"}, "ends inside a number"),
        ({"size": [2, 2], "counts": "o" * 99}, "beyond 60 bits"),
        ({"size": [2, 2]}, "expected the lengths of runs"),
    ],
)
def test_other_forms_are_refused(given: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_outline(given)
