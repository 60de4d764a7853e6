"""Region features that others computed: LXMERT's and bottom-up attention's TSV, and plain npy arrays with a list of boxes."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.boxes import prior
from vgtools.io import DataError, open_npy, read_jsonl, read_lines
from vgtools.prepare import Tally
from vgtools.regions import RegionSet, box_fault, clip, parse_boxes

Array = np.ndarray[Any, Any]

# The columns of a line by their number; the arrays are base64 of little-endian numbers.
_LXMERT = (
    "img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf", "num_boxes", "boxes", "features",
)  # fmt: skip
_BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")


def named_backbone(name: str) -> dict[str, str]:
    """Return what a manifest says of a network that is not here: features under one name are taken as of one network."""
    return {"ref": name, "fingerprint": hashlib.sha256(f"external:{name}".encode()).hexdigest()}


def read_tsv(
    path: str | Path, tally: Tally, labels: Sequence[str] | None = None, suffix: str = ""
) -> Iterator[tuple[str, RegionSet]]:
    """Yield the images of a TSV of LXMERT (10 columns) or of bottom-up attention (6 columns), in file order.

    Args:
        path: the file, `.gz`, `.zst`, or `-`.
        tally: meets bad lines.
        labels: names of the object numbers (`objects_vocab.txt`), for LXMERT's.
        suffix: put behind each image id, for example `.jpg`.

    Raises:
        DataError: through the tally: a line of other columns, an array of another size, a box that cannot be one.

    Source: the published files of LXMERT (Tan & Bansal 2019), `*_obj36.tsv`, and of Anderson et al. 2018.
    """
    seen, width = dict[str, int](), 0
    for number, line in enumerate(read_lines(path), 1):
        try:
            image, found = _tsv_row(line, labels)
            image += suffix
            if seen.setdefault(image, number) != number:
                raise ValueError(f"the image {image!r:.80} stands on line {seen[image]} already")
            width = width or found.features.shape[1]
            if found.features.shape[1] != width:
                raise ValueError(f"its features have {found.features.shape[1]} channels, those before {width}")
        except ValueError as error:
            tally.bad(DataError(str(error), path, number))
            continue
        yield image, found


def _tsv_row(line: str, labels: Sequence[str] | None) -> tuple[str, RegionSet]:
    values = line.split("\t")
    names = {len(_LXMERT): _LXMERT, len(_BOTTOM_UP): _BOTTOM_UP}.get(len(values))
    if names is None:
        raise ValueError(
            f"has {len(values)} columns; {len(_LXMERT)} (LXMERT) or {len(_BOTTOM_UP)} (bottom-up attention) wanted"
        )
    row = dict(zip(names, values, strict=True))
    height, width = (int(row[f"{names[0][:-3]}_{side}"]) for side in "hw")
    count = int(row["num_boxes"])
    if min(height, width, count) < 1:
        raise ValueError(f"a picture of {width}×{height} with {count} boxes cannot be")
    boxes = _array(row, "boxes", "<f4", 4 * count).reshape(count, 4).astype(np.float64)
    features = _array(row, "features", "<f4", None)
    if not len(features) or len(features) % count:
        raise ValueError(f'"features" holds {len(features)} numbers for {count} boxes')
    fault = box_fault(boxes, width, height)
    if fault:
        raise ValueError(fault)
    boxes = clip(boxes, width, height)
    confidence, own = prior(boxes, width, height), None
    if "objects_conf" in row:
        confidence = _array(row, "objects_conf", "<f4", count)
        if not ((confidence >= 0) & (confidence <= 1)).all():
            raise ValueError('"objects_conf" holds numbers beyond 0 to 1')
        numbers = _array(row, "objects_id", "<i8", count).tolist()
        if labels is not None:
            if max(numbers) >= len(labels) or min(numbers) < 0:
                raise ValueError(f"has the object {max(numbers)}, there are names for {len(labels)}")
            own = [labels[n] for n in numbers]
    return row[names[0]], RegionSet(features.reshape(count, -1), boxes, confidence, own, width, height)


def _array(row: dict[str, str], key: str, dtype: str, count: int | None) -> Array:
    try:
        data = base64.b64decode(row[key], validate=True)
    except binascii.Error as error:
        raise ValueError(f'"{key}" is no base64: {error}') from None
    size = np.dtype(dtype).itemsize
    if len(data) % size or (count is not None and len(data) != count * size):
        raise ValueError(f'"{key}" holds {len(data)} bytes; {f"{count} numbers" if count else "numbers"} of {size} were wanted')
    found = np.frombuffer(data, dtype)
    if found.dtype.kind == "f" and not np.isfinite(found).all():
        raise ValueError(f'"{key}" holds a number that is none')
    return found


def read_arrays(path: str | Path, boxes: str | Path, tally: Tally) -> Iterator[tuple[str, RegionSet]]:
    """Yield the images of a `.npy` of features and a jsonl of their boxes, in the order of both.

    Args:
        path: (N, R, D), or (sum R, D) with the regions of all images behind one another; never pickled objects.
        boxes: rows {"image", "width", "height", "boxes", "confidence"?, "label"?}, one an image.
        tally: meets bad rows.

    Raises:
        DataError: the numbers of both do not fit, or through the tally a row that cannot be used.
    """
    array, at, seen = open_npy(path), 0, dict[str, int]()
    if array.ndim not in (2, 3) or array.dtype.kind != "f":
        raise DataError(f"holds {array.dtype} of shape {array.shape}; (N, R, D) or (sum R, D) floats were wanted", path)
    rows = array.reshape(-1, array.shape[-1])
    for number, row in read_jsonl(boxes, {"image": str, "width": int, "height": int, "boxes": list}):
        found, confidence, labels = parse_boxes(row, boxes, number)
        own = np.array(rows[at : at + len(found)], np.float32)
        at += len(found)
        if at > len(rows) or (array.ndim == 3 and len(found) != array.shape[1]):
            raise DataError(f"has {len(found)} boxes, {path} of shape {array.shape} has not as many for it", boxes, number)
        fault = box_fault(found, row["width"], row["height"])
        if seen.setdefault(row["image"], number) != number:
            fault = f"the image {row['image']!r:.80} stands on line {seen[row['image']]} already"
        if not np.isfinite(own).all():
            fault = "its features are NaN or infinite"
        if fault:
            tally.bad(DataError(fault, boxes, number))
            continue
        found = clip(found, row["width"], row["height"])
        scores = prior(found, row["width"], row["height"]) if confidence is None else confidence
        yield row["image"], RegionSet(own, found, scores, labels, row["width"], row["height"])
    if at != len(rows):
        raise DataError(f"has {len(rows):,} regions, {boxes} has boxes for {at:,}; both must come from the same run", path)


def width_of(path: str | Path) -> int:
    """Return D of a file of region features: of the array, or of the first line of a TSV that can be read."""
    if str(path).endswith(".npy"):
        return int(open_npy(path).shape[-1])
    for _, found in read_tsv(path, Tally(skip=True)):
        return int(found.features.shape[1])
    raise DataError("holds no line with regions", path)
