"""Phrases of captions with boxes, in the form of `vg prepare flickr30k-entities`.

A row is `{"image", "text", "width"?, "height"?, "phrases": [{"start", "end", "boxes"}]}`: spans are
code points of the text, boxes `[x1, y1, x2, y2]` in pixels of a picture of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.images.boxes import box_fault, clip
from vgtools.images.sources import flickr_number
from vgtools.io.errors import DataError

Size = tuple[float, float]  # width and height, px
PhraseBoxes = tuple[tuple[float, float, float, float], ...]  # x1, y1, x2, y2; px


def picture_size(row: Mapping[str, Any], path: str | Path, line: int | None) -> Size | None:
    """Return the size of the picture that a row's boxes refer to, if the row has it.

    Raises:
        DataError: not two positive numbers.
    """
    if "width" not in row and "height" not in row:
        return None
    sides: list[Any] = [row.get("width"), row.get("height")]
    if not all(type(side) in (int, float) and 0 < side < 1e9 for side in sides):
        why = f'"width" and "height" must be the picture\'s size in pixels, got {sides}'
        raise DataError(why, path, line)
    return sides[0], sides[1]


def phrase_span(
    phrase: Mapping[str, Any], length: int, number: int, path: str | Path, line: int | None
) -> tuple[int, int]:
    """Return the span of a phrase in a text of `length` characters.

    Raises:
        DataError: it is not inside the text, or empty.
    """
    start, end = phrase.get("start"), phrase.get("end")
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
        why = f"phrase {number} has the span {start!r:.20} to {end!r:.20}"
        raise DataError(f"{why}, the text has {length} characters", path, line)
    return start, end


def phrase_boxes(
    given: Any, size: Size | None, number: int, path: str | Path, line: int | None
) -> PhraseBoxes:
    """Return a phrase's boxes, cut off at the edges of the picture if its size is known.

    Raises:
        DataError: not a list of boxes, or one without area or outside the picture.
    """
    try:
        boxes = np.array(given, np.float64)
        assert boxes.shape == (0,) or boxes.shape[1:] == (4,)
    except (TypeError, ValueError, AssertionError):
        why = f'phrase {number}: "boxes" must be a list of [x1, y1, x2, y2], got {given!r:.60}'
        raise DataError(why, path, line) from None
    if not boxes.size:
        return ()
    sides = size or (np.inf, np.inf)
    fault = box_fault(boxes, *sides)
    if fault:
        raise DataError(f"phrase {number}: {fault}", path, line)
    return tuple((x1, y1, x2, y2) for x1, y1, x2, y2 in clip(boxes, *sides).tolist())


def image_finder(rows: Mapping[str, int]) -> Callable[[str], int | None]:
    """Return a function from an image's name to its row, or None.

    In Flickr8k `1000268201_693b08cb0e.jpg` is the photo that Flickr30k Entities calls
    `1000268201.jpg`: a number that is not itself an id is compared with ids of this form.
    """
    numbers: dict[str, list[int]] = {}
    for name, row in rows.items():
        if number := flickr_number(Path(name).stem):
            numbers.setdefault(number, []).append(row)

    def find(name: str) -> int | None:
        # Where several ids have the number, the photo is ambiguous.
        known = numbers.get(Path(name).stem, [])
        return rows.get(name, known[0] if len(known) == 1 else None)

    return find
