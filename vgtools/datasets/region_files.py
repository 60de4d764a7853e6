"""Region features that others computed: TSV of LXMERT and bottom-up attention, or npy and boxes."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from vgtools.images.boxes import box_fault, clip, placeholder_confidence
from vgtools.images.regions import RegionSet, duplicate_image, parse_boxes
from vgtools.io.arrays import Array
from vgtools.io.artifact import LARGEST
from vgtools.io.errors import DataError, Tally
from vgtools.io.files import open_npy
from vgtools.io.streams import read_jsonl, read_lines
from vgtools.io.written import manifest_beside

# The columns of a line, in order; the arrays are base64 of little-endian numbers.
_LXMERT = (
    "img_id", "img_h", "img_w", "objects_id", "objects_conf", "attrs_id", "attrs_conf",
    "num_boxes", "boxes", "features",
)  # fmt: skip
_BOTTOM_UP = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
_LONGEST = (1 << 31) - 1  # px of a picture's side
_EXPECTED = "expected base64 of float32"
_FEWEST = 128  # numbers by which a type is judged


def named_backbone(name: str) -> dict[str, str]:
    """Return a manifest's entry for a network that is not here.

    Features under the same name count as features of the same network.
    """
    return {"ref": name, "fingerprint": hashlib.sha256(f"external:{name}".encode()).hexdigest()}


def read_tsv(
    path: str | Path, tally: Tally, labels: Sequence[str] | None = None, suffix: str = ""
) -> Iterator[tuple[str, RegionSet]]:
    """Yield the images of a TSV of LXMERT (10 columns) or bottom-up attention (6), in file order.

    Args:
        path: the file, `.gz`, `.zst`, or `-`.
        tally: handles bad lines.
        labels: names of the object numbers (`objects_vocab.txt`), for LXMERT's.
        suffix: appended to each image id, for example `.jpg`.

    Raises:
        DataError: through the tally: a line of other columns, an array of another size, an invalid
            box.

    Source: the published files of LXMERT (Tan & Bansal 2019), `*_obj36.tsv`, and of Anderson et
        al. 2018.
    """
    lines: dict[str, int] = {}  # image -> line
    width = 0
    for number, line in enumerate(read_lines(path), 1):
        try:
            image, regions = _tsv_row(line, labels)
            image += suffix
            if lines.setdefault(image, number) != number:
                raise ValueError(duplicate_image(image, lines[image]))
            channels = regions.features.shape[1]
            width = width or channels
            if channels != width:
                raise ValueError(f"its features have {channels} channels, those before {width}")
        except ValueError as error:
            tally.bad(DataError(str(error), path, number))
            continue
        yield image, regions


def _tsv_row(line: str, labels: Sequence[str] | None) -> tuple[str, RegionSet]:
    values = line.split("\t")
    names = {len(_LXMERT): _LXMERT, len(_BOTTOM_UP): _BOTTOM_UP}.get(len(values))
    if names is None:
        expected = f"{len(_LXMERT)} (LXMERT) or {len(_BOTTOM_UP)} (bottom-up attention)"
        raise ValueError(f"has {len(values)} columns, expected {expected}")
    row = dict(zip(names, values, strict=True))
    prefix = names[0].removesuffix("id")
    height = int(row[f"{prefix}h"])
    width = int(row[f"{prefix}w"])
    count = int(row["num_boxes"])
    if min(height, width, count) < 1 or max(height, width) > _LONGEST:
        raise ValueError(f"invalid: a picture of {width}×{height} with {count} boxes")
    boxes = _array(row, "boxes", "<f4", 4 * count).reshape(count, 4).astype(np.float64)
    features = _array(row, "features", "<f4", None)
    if not len(features) or len(features) % count:
        raise ValueError(f'"features" holds {len(features)} numbers for {count} boxes')
    if np.abs(features).max() > LARGEST:  # as are parts of numbers of 64 bits
        raise ValueError(f'"features" has numbers beyond 1e9; {_EXPECTED}, not of float64')
    if bits := _other_width(features):
        why = f'"features" holds numbers of {bits} bits; {_EXPECTED}'
        raise ValueError(f'{why}, for example astype("<f4") of numpy')
    fault = box_fault(boxes, width, height)
    if fault:
        raise ValueError(fault)
    boxes = clip(boxes, width, height)
    confidence = placeholder_confidence(boxes, width, height)
    objects = None
    if "objects_conf" in row:
        confidence = _array(row, "objects_conf", "<f4", count)
        if not ((confidence >= 0) & (confidence <= 1)).all():
            raise ValueError('"objects_conf" holds numbers beyond 0 to 1')
        numbers = _array(row, "objects_id", "<i8", count).tolist()
        if labels is not None:
            if max(numbers) >= len(labels) or min(numbers) < 0:
                raise ValueError(f"has the object {max(numbers)}, expected 0 to {len(labels) - 1}")
            objects = [labels[n] for n in numbers]
    features = features.reshape(count, -1)
    return row[names[0]], RegionSet(features, boxes, confidence, objects, width, height)


def _other_width(features: Array) -> int | None:
    """Return how many bits the numbers have that were read as float32, if not 32.

    float64 of short numbers, such as whole ones, has zeros in its lower half: every other number.

    The lower half of a float32 is arbitrary: read as a float16, 22 % of all are above 1024 or NaN.
    If it is a float16 or bfloat16 of its own, few are, because features are small. The magnitudes
    would not show it: most pairs of float16 from 0 to 4 are usual numbers as one float32. Halves
    that end in 13 zeros do not count: these float32 were numbers of 16 bits before.
    """
    if not features[::2].any() and np.count_nonzero(features[1::2]) >= _FEWEST:
        return 64
    found = np.flatnonzero(np.bincount(features.view("<u2")[::2]))  # each half once
    lower = found[found % (1 << 13) != 0] & 0x7FFF  # without the sign
    large = np.count_nonzero(lower >= np.float16(1024).view(np.uint16))
    return 16 if len(lower) >= _FEWEST and large < 0.05 * len(lower) else None


def _array(row: dict[str, str], key: str, dtype: str, count: int | None) -> Array:
    try:
        data = base64.b64decode(row[key], validate=True)
    except binascii.Error as error:
        raise ValueError(f'"{key}" is not base64: {error}') from None
    size = np.dtype(dtype).itemsize
    if len(data) % size or (count is not None and len(data) != count * size):
        expected = "numbers" if count is None else f"{count} numbers"
        raise ValueError(f'"{key}" holds {len(data)} bytes, expected {expected} of {size} bytes')
    array = np.frombuffer(data, dtype)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f'"{key}" contains NaN or infinity; {_EXPECTED}')
    return array


def read_arrays(
    path: str | Path, boxes: str | Path, tally: Tally
) -> Iterator[tuple[str, RegionSet]]:
    """Yield the images of a `.npy` of features and a jsonl of their boxes, in the order of both.

    Args:
        path: (N, R, D), or (sum R, D) with the regions of all images one after another; never
            pickled objects.
        boxes: rows {"image", "width", "height", "boxes", "confidence"?, "label"?}, one per image.
        tally: handles bad rows.

    Raises:
        DataError: the array is of vg, the numbers of both differ (65), or through the tally a row
            that cannot be used.
    """
    if manifest_beside(path):
        # Its images have names, which lines of boxes could not be checked against.
        why = "was written by vg; expected an array of another program"
        raise DataError(f"{why}: vg extract-image-feats --regions computes features of boxes", path)
    array = _open_array(path)
    rows = array.reshape(-1, array.shape[-1])
    lines: dict[str, int] = {}  # image -> line
    end = 0  # end of the regions read so far
    keys = {"image": str, "width": int, "height": int, "boxes": list}
    for line, row in read_jsonl(boxes, keys):
        image, width, height = row["image"], row["width"], row["height"]
        corners, confidence, labels = parse_boxes(row, boxes, line)
        # A copy of these rows alone is read from the memory-mapped file.
        features = np.array(rows[end : end + len(corners)], np.float32)
        end += len(corners)
        if end > len(rows) or (array.ndim == 3 and len(corners) != array.shape[1]):
            why = f"has {len(corners)} boxes, which does not match {path} of shape {array.shape}"
            raise DataError(why, boxes, line)
        fault = box_fault(corners, width, height)
        if lines.setdefault(image, line) != line:
            fault = duplicate_image(image, lines[image])
        if not np.isfinite(features).all():
            fault = "its features are NaN or infinite"
        if fault:
            tally.bad(DataError(fault, boxes, line))
            continue
        corners = clip(corners, width, height)
        if confidence is None:
            confidence = placeholder_confidence(corners, width, height)
        yield image, RegionSet(features, corners, confidence, labels, width, height)
    if end != len(rows):
        why = f"has {len(rows):,} regions, {boxes} has boxes for {end:,}"
        raise DataError(f"{why}; both must come from the same run", path)


def _open_array(path: str | Path) -> Array:
    """Open a `.npy` of region features, (N, R, D) or (sum R, D)."""
    array = open_npy(path)
    if array.ndim not in (2, 3) or array.dtype.kind != "f" or not array.shape[-1]:
        expected = "(N, R, D) or (sum R, D) floats"
        raise DataError(f"holds {array.dtype} of shape {array.shape}, expected {expected}", path)
    return array


def width_of(path: str | Path) -> int:
    """Return D of a file of region features, from the array or the first good line of a TSV."""
    if str(path).endswith(".npy"):
        return int(_open_array(path).shape[-1])
    for _, regions in read_tsv(path, Tally(skip=True)):
        return int(regions.features.shape[1])
    next(read_tsv(path, Tally()), None)  # the fault of the first line
    raise DataError("holds no line with regions", path)
