"""Masks of objects, in the forms of MS COCO: polygons, and lengths of runs (RLE)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from vgtools.io.arrays import Array

_MOST = 1 << 28  # pixels of a picture


@dataclass(frozen=True)
class Outline:
    """An object's mask before it is drawn: polygons, or runs."""

    polygons: tuple[Array, ...] = ()  # (V, 2) x, y in pixels each
    runs: Array | None = None  # lengths of runs of 0, 1, 0, … down each column in turn
    size: tuple[int, int] | None = None  # width and height of the picture of runs, px


def parse_outline(segmentation: Any) -> Outline:
    """Return the "segmentation" of an annotation.

    Args:
        segmentation: polygons [[x1, y1, x2, y2, …], …]; or {"size": [h, w], "counts"}, with counts
            a list, or a string as COCO compresses it.

    Raises:
        ValueError: it is of another form, or its runs do not have its size.
    """
    if isinstance(segmentation, dict):
        runs = _runs(segmentation.get("counts"))
        size = segmentation.get("size")
        sides = size if isinstance(size, list) and len(size) == 2 else [0, 0]
        if not all(type(n) is int for n in sides) or int(runs.sum()) != sides[0] * sides[1]:
            raise ValueError(f"expected {size!r:.40} pixels in its runs, got {int(runs.sum()):,}")
        return Outline(runs=runs, size=(sides[1], sides[0]))
    polygons = list[Array]()
    if not isinstance(segmentation, list):
        raise ValueError(f"expected polygons or runs, got {segmentation!r:.60}")
    for points in segmentation:
        good = isinstance(points, list) and len(points) >= 6 and len(points) % 2 == 0
        if not good or not all(type(v) in (int, float) and abs(v) < 1e9 for v in points):
            raise ValueError(f"expected polygons [x1, y1, x2, y2, x3, y3, …], got {points!r:.60}")
        polygons.append(np.array(points, np.float32).reshape(-1, 2))
    return Outline(tuple(polygons))


def _runs(counts: Any) -> Array:
    """Return the lengths of runs, from a list or from COCO's string of them."""
    if isinstance(counts, str):
        counts = _unpacked(counts)
    good = isinstance(counts, list) and all(type(n) is int and 0 <= n <= _MOST for n in counts)
    if not good:
        raise ValueError(f'expected the lengths of runs as "counts", got {counts!r:.60}')
    return np.array(counts, np.int64)


def _unpacked(text: str) -> list[int]:
    """Return the numbers of a compressed string.

    A character holds five bits of a number, the lowest first, and whether more follow; the last bit
    of a number is its sign. From the fourth on, a number is the difference to the last but one.

    Source: the MS COCO API, `rleFrString`.
    """
    numbers = list[int]()
    value = shift = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64:
            raise ValueError(f'"counts" has the character {character!r}')
        value |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            if shift > 60:
                raise ValueError('"counts" has a number beyond 60 bits')
            continue
        if bits & 16:
            value -= 1 << shift
        numbers.append(value + (numbers[-2] if len(numbers) > 2 else 0))
        value = shift = 0
    if shift:
        raise ValueError('"counts" ends inside a number')
    return numbers


def draw(outlines: Iterable[Outline], width: int, height: int) -> Array:
    """Return the union of masks, (H, W) bool.

    A pixel belongs to a polygon if its centre is inside.

    Deviation: the MS COCO API rounds edges on a grid of a fifth of a pixel; masks differ in
        pixels on their edge.
    """
    mask = np.zeros((height, width), bool)
    for outline in outlines:
        if outline.runs is not None:
            ones = np.arange(len(outline.runs)) % 2 == 1
            mask |= np.repeat(ones, outline.runs).reshape(width, height).T
        for polygon in outline.polygons:
            _fill(mask, polygon.astype(np.float64))
    return mask


def _fill(mask: Array, polygon: Array) -> None:
    """Add a polygon to a mask, by the even-odd rule, row by row."""
    height, width = mask.shape
    following = np.roll(polygon, -1, axis=0)
    top = max(0, math.ceil(polygon[:, 1].min() - 0.5))
    bottom = min(height - 1, math.floor(polygon[:, 1].max() - 0.5))
    for row in range(top, bottom + 1):
        y = row + 0.5
        # `<=` on one side only counts a corner at exactly this height once, so that the number of
        # crossings is even and the edges pair up.
        crossing = (polygon[:, 1] <= y) != (following[:, 1] <= y)
        x1, y1 = polygon[crossing].T
        x2, y2 = following[crossing].T
        edges = np.sort(x1 + (y - y1) / (y2 - y1) * (x2 - x1))
        # The first pixel whose centre is at or right of an edge.
        columns = np.clip(np.ceil(edges - 0.5), 0, width).astype(int)
        for left, right in columns.reshape(-1, 2).tolist():
            mask[row, left:right] = True
