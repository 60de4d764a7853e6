"""Where the boxes of pictures come from: detector output, annotations of data sets, a grid.

A box source is a function: `source(image id, picture)` returns the `Boxes` of a picture in its own
pixels. Files are read once into a table; the grid needs none; a detector
(`vgtools/images/region_features.py`) looks at the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vgtools.io.arrays import Array

if TYPE_CHECKING:
    from PIL.Image import Image

GRID_SCALES = 3  # 1 + 9 + 25 boxes: close to the 36 of many detectors


@dataclass(frozen=True)
class Boxes:
    """Boxes of one picture, not yet pooled."""

    boxes: Array  # (R, 4) float64 pixels of the picture
    confidence: Array  # (R,) float32
    labels: list[str]  # R; "" where nothing is known
    faults: tuple[str, ...] = ()  # why boxes of the source were left out
    measured: bool = True  # the confidences are a detector's, not placeholders

    def __len__(self) -> int:
        return len(self.boxes)


BoxSource = Callable[[str, "Image"], Boxes]


def placeholder_confidence(boxes: Array, width: float, height: float) -> Array:
    """Return a placeholder for the confidence of boxes without a detector.

    Large and central boxes have more: it is sqrt(area share of the picture) × (1 - distance of the
    centres / half the picture's diagonal), which is 1 for the whole picture. It does not depend on
    the picture's content, and a baseline of "the most confident box" then measures position.

    Returns:
        (R,) float32 in [0, 1].
    """
    size = np.array([width, height], np.float64)
    low = boxes[:, :2] / size
    high = boxes[:, 2:] / size
    share = (high - low).clip(0, 1).prod(1)
    offset = ((low + high) / 2 - 0.5) * size
    distance = (offset**2).sum(1) ** 0.5 / (0.5 * float(np.hypot(*size)))
    return np.asarray(np.sqrt(share) * (1 - distance).clip(0, 1), np.float32)


def grid(image: str, picture: Image, scales: int = GRID_SCALES) -> Boxes:
    """Return overlapping windows of the picture at several scales.

    At scale s from 1 to `scales` a window has 1/s of the picture's width and height, and there is
    one at every half window.
    """
    windows = [
        (x / (2 * s), y / (2 * s), (x + 2) / (2 * s), (y + 2) / (2 * s))
        for s in range(1, scales + 1)
        for y in range(2 * s - 1)
        for x in range(2 * s - 1)
    ]
    boxes = np.array(windows, np.float64) * np.array(picture.size * 2, np.float64)
    confidence = placeholder_confidence(boxes, *picture.size)
    return Boxes(boxes, confidence, ["grid"] * len(boxes), measured=False)


def concat_sources(
    sources: Sequence[BoxSource], most: int | None = None, least: float = 0.0
) -> BoxSource:
    """Return a source that gives the boxes of several sources, one after another.

    Args:
        sources: in order.
        most: keep only the `most` most confident boxes, in their order.
        least: leave out boxes of less confidence.

    Next to confidences of a detector, placeholders are scaled to stay below all of them: the most
    confident box is then a box that the detector is sure of.
    """

    def concatenated(image: str, picture: Image) -> Boxes:
        parts = [source(image, picture) for source in sources]
        boxes = np.concatenate([part.boxes for part in parts])
        confidence = np.concatenate([part.confidence for part in parts])
        labels = [label for part in parts for label in part.labels]
        faults = tuple(fault for part in parts for fault in part.faults)
        measured = np.repeat([part.measured for part in parts], [len(part) for part in parts])
        kept = np.flatnonzero(confidence >= least)
        lowest = confidence[kept][measured[kept]].min(initial=np.inf)
        # A placeholder is at most 1, so that half of the lowest confidence stays below all others.
        if np.isfinite(lowest):
            confidence = np.where(measured, confidence, confidence * lowest / 2)
        if most is not None and len(kept) > most:
            # A stable order keeps the first of equally confident boxes, on every machine.
            kept = np.sort(kept[np.argsort(-confidence[kept], kind="stable")[:most]])
        return Boxes(boxes[kept], confidence[kept], [labels[i] for i in kept.tolist()], faults)

    return concatenated


# Pixels by which a box may leave its picture: annotations are rounded, and some count from 1.
_SLACK = 1.0


def iou(boxes_a: Array, boxes_b: Array) -> Array:
    """Return the intersection over union of every box of A with every box of B.

    Args:
        boxes_a: (A, 4) x1, y1, x2, y2 with x1 < x2 and y1 < y2.
        boxes_b: (B, 4).

    Returns:
        (A, B) float64 in [0, 1].

    Deviation: areas are (x2 - x1) × (y2 - y1); code of the Pascal VOC family adds one pixel to
    each side.
    """
    a = np.asarray(boxes_a, np.float64).reshape(-1, 4)
    b = np.asarray(boxes_b, np.float64).reshape(-1, 4)
    lower = np.maximum(a[:, None, :2], b[None, :, :2])
    upper = np.minimum(a[:, None, 2:], b[None, :, 2:])
    shared = (upper - lower).clip(min=0).prod(2)  # (A, B)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(1) for x in (a, b))
    return np.asarray(shared / (area_a[:, None] + area_b[None] - shared))


def size_ratio(declared: tuple[float, float], size: tuple[float, float]) -> tuple[float, float]:
    """Return the factors from the declared (width, height) of a picture to its real one.

    Data sets are often passed on with smaller photos.

    Raises:
        ValueError: the two sizes have different shapes.
    """
    x = size[0] / declared[0]
    y = size[1] / declared[1]
    if abs(size[0] - declared[0] * y) > 2 + 0.02 * size[0]:  # rounding a side to pixels gives less
        raise ValueError(
            f"is {size[0]:g}×{size[1]:g}, but its annotation is for "
            f"{declared[0]:g}×{declared[1]:g}: another picture, or cropped"
        )
    return x, y


def box_fault(boxes: Array, width: float, height: float) -> str | None:
    """Return the fault of the first box that cannot be a region of a picture, or None.

    Boxes are (R, 4) x1, y1, x2, y2 in pixels; width and height are the picture's.
    """
    size = np.array([width, height, width, height], np.float64)
    inside = (boxes >= -_SLACK).all(1) & (boxes <= size + _SLACK).all(1)
    clipped = clip(boxes, width, height)
    for fault, good in (
        ("contains NaN or infinity", np.isfinite(boxes).all(1)),
        (f"leaves its picture of {width:g}×{height:g}", inside),
        ("has no area", (clipped[:, 2:] > clipped[:, :2]).all(1)),
    ):
        if not good.all():
            number = int(np.argmin(good))
            return f"box {number + 1}, {[round(float(v), 2) for v in boxes[number]]}, {fault}"
    return None


def clip(boxes: Array, width: float, height: float) -> Array:
    """Return boxes cut off at the edges of their picture; (R, 4)."""
    return np.asarray(np.clip(boxes, 0, np.array([width, height, width, height], np.float64)))
