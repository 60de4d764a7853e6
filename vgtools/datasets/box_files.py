"""Boxes from files: phrase rows, region rows and MS COCO annotations."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.datasets.annotations import coco
from vgtools.images.boxes import Boxes, box_fault, clip, placeholder_confidence, size_ratio
from vgtools.images.regions import duplicate_image, parse_boxes
from vgtools.images.sources import ImageError
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Tally, amount
from vgtools.io.names import refuse_stream
from vgtools.io.streams import read_jsonl, require

if TYPE_CHECKING:
    from PIL.Image import Image


class FileBoxes:
    """The boxes of a file, looked up by image id and scaled to the size of the picture.

    Args:
        path: jsonl (`.gz`, `.zst`) of one of these rows, or COCO's `instances_*.json`:
            {"image", "boxes", "confidence"?, "label"?}: detector output, one row per image, boxes
            [x1, y1, x2, y2];
            {"image", "boxes", "labels", …}: the rows of `vg prepare coco`;
            {"image", "phrases": [{"boxes", "type"}]}: rows of `vg prepare flickr30k-entities`,
            several rows per image: each distinct box counts once, and its label is the type of the
            first phrase that has it.
            "width" and "height" of a row are of the picture that its boxes refer to.

    Raises:
        DataError: rows of another form, with file and line; or the file has no box.
    """

    def __init__(self, path: str | Path) -> None:
        refuse_stream(path)  # The file is read twice: once here, and once for its hash.
        self.path = path
        self._by_image: dict[str, _BoxRow] = {}
        is_coco = str(path).endswith((".json", ".json.gz", ".json.zst"))
        for row in _coco_rows(path) if is_coco else _jsonl_rows(path):
            before = self._by_image.get(row.image)
            if before is None:
                self._by_image[row.image] = row
            elif not before.phrases:
                raise DataError(duplicate_image(row.image, before.line), path, row.line)
            else:
                self._by_image[row.image] = _joined(before, row, path)
        if not any(len(row.boxes) for row in self._by_image.values()):
            raise DataError(f"holds no box in {amount(len(self._by_image), 'image')}", path)

    def __call__(self, image: str, picture: Image) -> Boxes:
        """Return an image's boxes in the pixels of the picture.

        Boxes that cannot be regions are left out, with the reason.

        Raises:
            ImageError: the file does not have the image, or for a picture of another shape.
        """
        row = self._by_image.get(image)
        if row is None:
            raise ImageError(
                f"{self.path} names no boxes of it; its ids must match the images' ids"
            )
        boxes = row.boxes * _scale(row.size, picture.size)
        faults: list[str] = []
        good: list[int] = []
        for index in range(len(boxes)):
            fault = box_fault(boxes[index : index + 1], *picture.size)
            if fault:
                faults.append(f"{self.path}: {fault.replace('box 1', f'box {index + 1}')}")
            else:
                good.append(index)
        boxes = clip(boxes[good], *picture.size)
        if row.confidence is None:
            confidence = placeholder_confidence(boxes, *picture.size)
        else:
            confidence = row.confidence[good]
        labels = [row.labels[i] for i in good]
        return Boxes(boxes, confidence, labels, tuple(faults), row.confidence is not None)


@dataclass(frozen=True)
class _BoxRow:
    image: str
    boxes: Array  # (R, 4)
    confidence: Array | None
    labels: list[str]
    size: tuple[int, int] | None  # size of the picture that the boxes refer to
    line: int | None
    phrases: bool = False

    @classmethod
    def of_phrases(
        cls,
        image: str,
        labels: dict[tuple[float, ...], str],  # box -> label
        size: tuple[int, int] | None,
        line: int | None,
    ) -> _BoxRow:
        boxes = np.array([*labels], np.float64).reshape(-1, 4)
        return cls(image, boxes, None, [*labels.values()], size, line, phrases=True)


def _jsonl_rows(path: str | Path) -> Iterator[_BoxRow]:
    for line, row in read_jsonl(path, {"image": str}):
        size = None
        if "width" in row or "height" in row:
            require(row, {"width": int, "height": int}, path, line)
            size = (row["width"], row["height"])
            if min(size) < 1:
                raise DataError(f"invalid image size {size[0]}×{size[1]}", path, line)
        if "phrases" in row:
            yield _phrase_row(row, size, path, line)
            continue
        if "boxes" not in row:
            raise DataError('expected a row with "boxes" or "phrases"', path, line)
        boxes, confidence, labels = parse_boxes(row, path, line)
        names = [""] * len(boxes) if labels is None else [sys.intern(label) for label in labels]
        yield _BoxRow(row["image"], boxes, confidence, names, size, line)


def _phrase_row(
    row: dict[str, Any], size: tuple[int, int] | None, path: str | Path, line: int
) -> _BoxRow:
    require(row, {"phrases": list}, path, line)
    labels: dict[tuple[float, ...], str] = {}
    for phrase in row["phrases"]:
        if not isinstance(phrase, dict):
            why = f'"phrases" holds {phrase!r:.60}, expected objects with "boxes"'
            raise DataError(why, path, line)
        boxes, _, _ = parse_boxes({"boxes": phrase.get("boxes")}, path, line)
        for box in boxes.tolist():
            labels.setdefault(tuple(box), sys.intern(str(phrase.get("type", ""))))
    return _BoxRow.of_phrases(row["image"], labels, size, line)


def _joined(before: _BoxRow, row: _BoxRow, path: str | Path) -> _BoxRow:
    """Return the boxes of two captions of one image, each distinct one once."""
    if before.size != row.size:
        why = f"the image is {row.size} here and {before.size} on line {before.line}"
        raise DataError(why, path, row.line)
    labels: dict[tuple[float, ...], str] = {}
    for part in (before, row):
        for box, label in zip(part.boxes.tolist(), part.labels, strict=True):
            labels.setdefault(tuple(box), label)
    return _BoxRow.of_phrases(row.image, labels, row.size, before.line)


def _coco_rows(path: str | Path) -> Iterator[_BoxRow]:
    for row in coco(path, Tally()):
        if "boxes" not in row:
            raise DataError("holds captions, expected the boxes of an instances_*.json", path)
        boxes = np.array(row["boxes"], np.float64).reshape(-1, 4)
        labels = [sys.intern(label) for label in row["labels"]]
        yield _BoxRow(row["image"], boxes, None, labels, (row["width"], row["height"]), None)


def _scale(declared: tuple[int, int] | None, size: tuple[int, int]) -> Array:
    """Return the factors (4,) from a row's declared size to the picture's.

    Raises:
        ImageError: the picture is not the declared picture made smaller or larger.
    """
    if declared is None:
        return np.ones(4)
    try:
        return np.array(size_ratio(declared, size) * 2)
    except ValueError as error:
        raise ImageError(str(error)) from None
