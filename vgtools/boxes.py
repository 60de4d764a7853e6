"""Where the boxes of pictures come from: detector output, annotations of data sets, a regular grid.

A box source is a function: `source(image id, picture)` returns the `Boxes` of a picture in its own pixels. Files are read once
into a table; the grid needs none; a detector (`vgtools/region_features.py`) looks at the picture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.errors import amount
from vgtools.io import DataError, read_jsonl, require
from vgtools.prepare import Tally, coco
from vgtools.regions import box_fault, clip, parse_boxes
from vgtools.sources import ImageError

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]

GRID_SCALES = 3  # 1 + 9 + 25 boxes: close to the 36 of many detectors


@dataclass(frozen=True)
class Boxes:
    """Boxes of one picture, not yet pooled."""

    boxes: Array  # (R, 4) float64 pixels of the picture
    confidence: Array  # (R,) float32
    labels: list[str]  # R; "" where nothing is known
    faults: tuple[str, ...] = ()  # why boxes of the source were left out

    def __len__(self) -> int:
        return len(self.boxes)


BoxSource = Callable[[str, "Image"], Boxes]


def prior(boxes: Array, width: float, height: float) -> Array:
    """Return a stand-in for the confidence of boxes that no detector found: large and central ones have more.

    It is sqrt(area share of the picture) × (1 - distance of the centres / half the picture's diagonal): 1 for the whole
    picture. It knows nothing of what the picture shows, and a baseline of "the most confident box" then measures position.

    Returns:
        (R,) float32 in [0, 1].
    """
    size = np.array([width, height], np.float64)
    low, high = boxes[:, :2] / size, boxes[:, 2:] / size
    share = (high - low).clip(0, 1).prod(1)
    away = ((((low + high) / 2 - 0.5) * size) ** 2).sum(1) ** 0.5 / (0.5 * float(np.hypot(*size)))
    return np.asarray(np.sqrt(share) * (1 - away).clip(0, 1), np.float32)


def grid(image: str, picture: Image, scales: int = GRID_SCALES) -> Boxes:
    """Return windows of 1/s of the picture's width and height at every half window, for each scale s from 1 to `scales`."""
    found = [
        (x / (2 * s), y / (2 * s), (x + 2) / (2 * s), (y + 2) / (2 * s))
        for s in range(1, scales + 1)
        for y in range(2 * s - 1)
        for x in range(2 * s - 1)
    ]
    boxes = np.array(found, np.float64) * np.array([*picture.size, *picture.size], np.float64)
    return Boxes(boxes, prior(boxes, *picture.size), ["grid"] * len(boxes))


def together(sources: Sequence[BoxSource], most: int | None = None, least: float = 0.0) -> BoxSource:
    """Return a source that gives the boxes of several behind one another.

    Args:
        sources: in order.
        most: keep only the so many most confident, in their order.
        least: leave out boxes of less confidence.
    """

    def every(image: str, picture: Image) -> Boxes:
        parts = [source(image, picture) for source in sources]
        boxes, confidence = (np.concatenate([getattr(p, name) for p in parts]) for name in ("boxes", "confidence"))
        labels, faults = ([x for p in parts for x in getattr(p, name)] for name in ("labels", "faults"))
        kept = np.flatnonzero(confidence >= least)
        if most is not None and len(kept) > most:
            kept = np.sort(kept[np.argsort(-confidence[kept], kind="stable")[:most]])
        return Boxes(boxes[kept], confidence[kept], [labels[i] for i in kept.tolist()], tuple(faults))

    return every


# ------------------------------------------------------------------------------------------------------------------ files


class FileBoxes:
    """The boxes of a file, found by image id and brought to the size of the picture at hand.

    Args:
        path: jsonl (`.gz`, `.zst`) of one of these rows, or COCO's `instances_*.json`:
            {"image", "boxes", "confidence"?, "label"?}: detector output, one row an image, boxes [x1, y1, x2, y2];
            {"image", "boxes", "labels", …}: what `vg prepare coco` writes;
            {"image", "phrases": [{"boxes", "type"}]}: what `vg prepare flickr30k-entities` writes, several rows an image:
            each different box counts once, its label is the type of the first phrase that has it.
            "width" and "height", where a row has them, are those of the picture that its boxes refer to.

    Raises:
        DataError: rows of no such form, with file and line; or no box in the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self._found: dict[str, _Row] = {}
        for row in _coco_rows(path) if str(path).endswith((".json", ".json.gz", ".json.zst")) else _jsonl_rows(path):
            before = self._found.get(row.image)
            if before is None:
                self._found[row.image] = row
            elif row.line is None or not before.phrases:
                raise DataError(f"the image {row.image!r:.80} stands on line {before.line} already", path, row.line)
            else:
                self._found[row.image] = _joined(before, row, path)
        if not any(len(row.boxes) for row in self._found.values()):
            raise DataError(f"holds no box in {amount(len(self._found), 'image')}", path)

    def __contains__(self, image: str) -> bool:
        return image in self._found

    def __call__(self, image: str, picture: Image) -> Boxes:
        """Return an image's boxes in the pixels of the picture; those that cannot be regions are left out, with the reason.

        Raises:
            ImageError: the file does not name the image, or its size has another shape than the picture.
        """
        row = self._found.get(image)
        if row is None:
            raise ImageError(f"{self.path} names no boxes of it; its ids must be those of the images")
        scale = _scale(row.size, picture.size)
        boxes, faults, good = row.boxes * scale, list[str](), list[int]()
        for number in range(len(boxes)):
            fault = box_fault(boxes[number : number + 1], *picture.size)
            if fault:
                faults.append(f"{self.path}: {fault.replace('box 1', f'box {number + 1}')}")
            else:
                good.append(number)
        boxes = clip(boxes[good], *picture.size)
        scores = prior(boxes, *picture.size) if row.confidence is None else row.confidence[good]
        return Boxes(boxes, scores, [row.labels[i] for i in good], tuple(faults))


@dataclass(frozen=True)
class _Row:
    image: str
    boxes: Array  # (R, 4)
    confidence: Array | None
    labels: list[str]
    size: tuple[int, int] | None  # of the picture that the boxes refer to
    line: int | None
    phrases: bool = False


def _jsonl_rows(path: str | Path) -> Iterator[_Row]:
    for number, row in read_jsonl(path, {"image": str}):
        size = None
        if "width" in row or "height" in row:
            require(row, {"width": int, "height": int}, path, number)
            size = (row["width"], row["height"])
            if min(size) < 1:
                raise DataError(f"a picture of {size[0]}×{size[1]} cannot be", path, number)
        if "phrases" in row:
            yield _phrase_row(row, size, path, number)
            continue
        if "boxes" not in row:
            raise DataError('a row with "boxes", or one with "phrases", was wanted', path, number)
        boxes, confidence, labels = parse_boxes(row, path, number)
        names = [sys.intern(label) for label in labels] if labels is not None else [""] * len(boxes)
        yield _Row(row["image"], boxes, confidence, names, size, number)


def _phrase_row(row: dict[str, Any], size: tuple[int, int] | None, path: str | Path, number: int) -> _Row:
    require(row, {"phrases": list}, path, number)
    found: dict[tuple[float, ...], str] = {}
    for phrase in row["phrases"]:
        if not isinstance(phrase, dict):
            raise DataError(f'"phrases" holds {phrase!r:.60}, wanted objects with "boxes"', path, number)
        boxes, _, _ = parse_boxes({"boxes": phrase.get("boxes")}, path, number)
        for box in boxes.tolist():
            found.setdefault(tuple(box), sys.intern(str(phrase.get("type", ""))))
    return _Row(row["image"], np.array([*found], np.float64).reshape(-1, 4), None, [*found.values()], size, number, True)


def _joined(before: _Row, row: _Row, path: str | Path) -> _Row:
    """Return the boxes of two captions of one image, each different one once."""
    if before.size != row.size:
        raise DataError(f"the image is {row.size} here and {before.size} on line {before.line}", path, row.line)
    found = dict[tuple[float, ...], str]()
    for part in (before, row):
        for box, label in zip(part.boxes.tolist(), part.labels, strict=True):
            found.setdefault(tuple(box), label)
    return _Row(row.image, np.array([*found], np.float64).reshape(-1, 4), None, [*found.values()], row.size, before.line, True)


def _coco_rows(path: str | Path) -> Iterator[_Row]:
    for row in coco(path, Tally()):
        if "boxes" not in row:
            raise DataError("holds captions; the boxes of an instances_*.json were wanted", path)
        boxes = np.array(row["boxes"], np.float64).reshape(-1, 4)
        yield _Row(row["image"], boxes, None, [sys.intern(x) for x in row["labels"]], (row["width"], row["height"]), None)


def _scale(declared: tuple[int, int] | None, size: tuple[int, int]) -> Array:
    """Return what boxes are multiplied with, (4,): data sets are often passed on with smaller photos.

    Raises:
        ImageError: the picture is none of the declared one made smaller or larger.
    """
    if declared is None or declared == size:
        return np.ones(4)
    x, y = size[0] / declared[0], size[1] / declared[1]
    if abs(size[0] - declared[0] * y) > 2 + 0.02 * size[0]:  # rounding to whole pixels moves a side by less
        raise ImageError(f"is {size[0]}×{size[1]}, its boxes are of {declared[0]}×{declared[1]}: another picture, or cropped")
    return np.array([x, y, x, y])
