"""Region features: boxes of images with a feature row each, as one memory-mapped array and a table of boxes.

    X.npy             (sum R, D) float16 or float32: the regions of all images behind one another
    X.regions.jsonl   one row an image: {"image", "start", "width", "height", "boxes", "confidence", "label"?}
    X.json            manifest, kind "region-features"

`start` is the row of the image's first region; boxes are [x1, y1, x2, y2] in pixels of a picture of `width` × `height`, from
the left upper corner, x2 and y2 exclusive. Nothing here imports torch.

Axes: N images, R regions of an image, D channels.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.errors import amount
from vgtools.io import DataError, Exit, dumps, open_npy, read_jsonl, read_manifest, require
from vgtools.output import Output
from vgtools.sources import SUFFIXES

Array = np.ndarray[Any, Any]

KIND = "region-features"
_SLACK = 1.0  # pixels by which a box may leave its picture: annotations are rounded, and some count from 1
_SCAN = 8192  # feature rows checked at a time


@dataclass(frozen=True)
class RegionSet:
    """The regions of one image."""

    features: Array  # (R, D) float32
    boxes: Array  # (R, 4) float64, x1 y1 x2 y2 in pixels
    confidence: Array  # (R,) float32, in [0, 1]
    labels: list[str] | None  # R names, where the detector or data set gave some
    width: int  # of the picture that the boxes refer to
    height: int

    def __len__(self) -> int:
        return len(self.boxes)


def regions_path(path: str | Path) -> Path:
    """Return where the boxes of region features stand: `X.regions.jsonl` beside `X.npy`."""
    return Path(path).with_suffix(".regions.jsonl")


# ------------------------------------------------------------------------------------------------------------------ boxes


def iou(boxes_a: Array, boxes_b: Array) -> Array:
    """Return the intersection over union of every box of A with every box of B.

    Args:
        boxes_a: (A, 4) x1, y1, x2, y2 with x1 < x2 and y1 < y2.
        boxes_b: (B, 4).

    Returns:
        (A, B) float64 in [0, 1].

    Deviation: areas are (x2 - x1) × (y2 - y1); code of the Pascal VOC family adds one pixel to each side.
    """
    a, b = np.asarray(boxes_a, np.float64).reshape(-1, 4), np.asarray(boxes_b, np.float64).reshape(-1, 4)
    sides = np.minimum(a[:, None, 2:], b[None, :, 2:]) - np.maximum(a[:, None, :2], b[None, :, :2])  # (A, B, 2)
    shared = sides.clip(min=0).prod(2)
    area_a, area_b = ((x[:, 2:] - x[:, :2]).prod(1) for x in (a, b))
    return np.asarray(shared / (area_a[:, None] + area_b[None] - shared))


def box_fault(boxes: Array, width: float, height: float) -> str | None:
    """Return what is wrong with the first box that cannot be a region of a picture, or None.

    Args:
        boxes: (R, 4) x1, y1, x2, y2 in pixels.
        width: of the picture.
        height: of the picture.
    """
    size = np.array([width, height, width, height], np.float64)
    finite = np.isfinite(boxes).all(1)
    inside = (boxes >= -_SLACK).all(1) & (boxes <= size + _SLACK).all(1)
    area = (clip(boxes, width, height)[:, 2:] > clip(boxes, width, height)[:, :2]).all(1)
    for what, good in (
        ("holds a number that is none", finite),
        (f"leaves its picture of {width:g}×{height:g}", inside),
        ("has no area", area),
    ):
        if not good.all():
            number = int(np.argmin(good))
            return f"box {number + 1}, {[round(float(v), 2) for v in boxes[number]]}, {what}"
    return None


def clip(boxes: Array, width: float, height: float) -> Array:
    """Return boxes cut off at the edges of their picture; (R, 4)."""
    return np.asarray(np.clip(boxes, 0, np.array([width, height, width, height], np.float64)))


# ---------------------------------------------------------------------------------------------------------------- reading


class Regions:
    """The region features of N images, opened by `open_regions`.

    Attributes:
        images: their ids, in file order.
        width: D.
        manifest: of the file.
        counts: (N,) int64, regions of each image.
    """

    def __init__(self, path: Path, array: Array, manifest: dict[str, Any], table: _Table) -> None:
        self.path, self.manifest, self.images, self.width = path, manifest, table.images, int(array.shape[1])
        self._array, self._table = array, table
        self._starts = np.array([*table.starts, len(array)], np.int64)
        self._boxes = np.frombuffer(table.boxes, np.float64).reshape(-1, 4)
        self._confidence = np.frombuffer(table.confidence, np.float32)
        self._codes = np.frombuffer(table.codes, np.int32)
        self._rows = {image: row for row, image in enumerate(table.images)}
        self.counts = np.diff(self._starts)

    def __len__(self) -> int:
        return len(self.images)

    def __contains__(self, image: object) -> bool:
        return image in self._rows

    def find(self, name: str, file: str | Path, line: int | None) -> str:
        """Return the id of an image that a data set names, without folder and suffix.

        Args:
            name: as the data set writes it.
            file: of the data set, named in errors.
            line: of the data set, likewise.

        Raises:
            DataError: no image has this name, or several have.
        """
        if name in self:
            return name
        images = list[str]()
        for key in _names(name):
            images = self._by_name.get(key, [])
            if len(images) == 1:
                return images[0]
        found = "no regions of it; extract them"
        if images:
            found = f"{len(images)} images of that name: {', '.join(images[:3])}"
        raise DataError(f"the picture {name!r:.80}: {self.path} holds {found}", file, line)

    @cached_property
    def _by_name(self) -> dict[str, list[str]]:
        by_name = dict[str, list[str]]()
        for image in self.images:
            for name in set(_names(image)):
                by_name.setdefault(name, []).append(image)
        return by_name

    def of(self, image: str) -> RegionSet:
        """Return the regions of an image.

        Raises:
            DataError: the file has none of it.
        """
        row = self._rows.get(image)
        if row is None:
            raise DataError(f"holds no regions of the image {image!r:.80}; extract them, or leave its rows out", self.path)
        part = slice(int(self._starts[row]), int(self._starts[row + 1]))
        names, codes = self._table.names, self._codes[part]
        labels = [names[code] for code in codes.tolist()] if self._table.labelled[row] else None
        return RegionSet(
            np.array(self._array[part], np.float32),  # a copy: the map of the file cannot be written to
            self._boxes[part],
            self._confidence[part],
            labels,
            *self._table.sizes[row],
        )


def _names(image: str) -> tuple[str, str]:
    """Return an image's name without folder and suffix, and the number that COCO knows it by.

    The latter is 42 of COCO_val2014_000000000042, train/000000000042.jpg and 42; without a number
    it is the name.
    """
    name = Path(image).stem if Path(image).suffix in SUFFIXES else Path(image).name
    bare = re.sub(r"^COCO_[a-z]+20\d\d_", "", name)
    return name, bare.lstrip("0") if bare.isdigit() else bare


@dataclass
class _Table:
    """The rows of `X.regions.jsonl` as flat arrays: a list of lists would take ten times the memory."""

    images: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    labelled: list[bool] = field(default_factory=list)
    boxes: bytearray = field(default_factory=bytearray)
    confidence: bytearray = field(default_factory=bytearray)
    codes: bytearray = field(default_factory=bytearray)
    names: list[str] = field(default_factory=list)


def backbone_of(regions: Regions) -> dict[str, Any]:
    """Return what made region features: the network, how it saw the pictures, and whether whole or region by region."""
    backbone = regions.manifest.get("backbone") or {}
    made = backbone.get("preprocessing") or {}
    cut = regions.manifest.get("pooling") == "cut"
    ref, size = backbone.get("ref"), made.get("input_size")
    if ref and isinstance(size, list):
        ref += f", {'boxes cut out' if cut else 'pictures'} at {'×'.join(map(str, size[1:]))} px"
    return {"ref": ref, "fingerprint": f"{backbone.get('fingerprint')} {made.get('fingerprint', '')}{' cut' if cut else ''}"}


def open_regions(path: str | Path) -> Regions:
    """Open `X.npy` with its `X.regions.jsonl` and `X.json`; hashes, counts, boxes and finite values are checked.

    Raises:
        DataError: any of the three is missing (66), damaged or from another run; a box cannot be one; a row is NaN or
            infinite (65).
    """
    manifest = read_manifest(path, KIND)
    array = open_npy(path, ndim=2)
    if array.dtype.kind != "f":
        raise DataError(f"holds {array.dtype}; float16 or float32 was wanted", path)
    table = _read_table(regions_path(path), len(array))
    for start in range(0, len(array), _SCAN):
        bad = ~np.isfinite(np.asarray(array[start : start + _SCAN], np.float32)).all(1)
        if bad.any():
            row = start + int(bad.argmax())
            image = table.images[int(np.searchsorted(table.starts, row, "right")) - 1]
            raise DataError(f"row {row} (a region of {image}) is NaN or infinite; extract it again or leave it out", path)
    return Regions(Path(path), array, manifest, table)


def _read_table(path: Path, rows: int) -> _Table:
    """Read and check the boxes of `rows` regions."""
    table, seen, names, at = _Table(), dict[str, int](), dict[str, int](), 0
    keys = {"image": str, "start": int, "width": int, "height": int, "boxes": list, "confidence": list}
    for number, row in read_jsonl(path, keys):
        image = row["image"]
        if seen.setdefault(image, number) != number:
            raise DataError(f"the image {image!r:.80} stands on line {seen[image]} already", path, number)
        if row["start"] != at:
            raise DataError(f"starts at row {row['start']}, the images before it end at {at}; make the file anew", path, number)
        boxes, confidence, labels = parse_boxes(row, path, number)
        assert confidence is not None  # `keys` wants it
        fault = box_fault(boxes, row["width"], row["height"])
        if fault:
            raise DataError(fault, path, number)
        codes = [names.setdefault(label, len(names)) for label in labels] if labels is not None else [-1] * len(boxes)
        table.images.append(image)
        table.starts.append(at)
        table.sizes.append((row["width"], row["height"]))
        table.labelled.append(labels is not None)
        table.boxes += boxes.tobytes()
        table.confidence += confidence.tobytes()
        table.codes += np.array(codes, np.int32).tobytes()
        at += len(boxes)
    if at != rows:
        raise DataError(f"has {at} boxes for {rows} feature rows; both must come from the same run", path)
    table.names = list(names)
    return table


def parse_boxes(row: Mapping[str, Any], path: str | Path, line: int) -> tuple[Array, Array | None, list[str] | None]:
    """Return the (R, 4) boxes of a jsonl row, and the (R,) confidences and R labels if it has them.

    The labels stand under "label", or under "labels" as `vg prepare coco` writes them.

    Raises:
        DataError: no such numbers, or lists of different lengths; with file and line.
    """
    require(row, {"boxes": list}, path, line)
    given, count = row["boxes"], len(row["boxes"])
    for box in given:
        if not isinstance(box, list) or len(box) != 4 or not all(_is_number(v) for v in box):
            raise DataError(f'"boxes" holds {box!r:.60}, wanted [x1, y1, x2, y2] in pixels', path, line)
    confidence = row.get("confidence")
    if confidence is not None and not (isinstance(confidence, list) and all(_is_number(v) and 0 <= v <= 1 for v in confidence)):
        raise DataError(f'"confidence" is {confidence!r:.60}, wanted a list of numbers from 0 to 1', path, line)
    labels = row.get("label", row.get("labels"))
    if labels is not None and not (isinstance(labels, list) and all(isinstance(v, str) for v in labels)):
        raise DataError(f'"label" is {labels!r:.60}, wanted a list of names', path, line)
    for key, values in (("confidence", confidence), ("label", labels)):
        if values is not None and len(values) != count:
            raise DataError(f'has {count} "boxes" and {len(values)} values of "{key}"', path, line)
    scores = None if confidence is None else np.array(confidence, np.float32)
    return np.array(given, np.float64).reshape(-1, 4), scores, labels


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


# ---------------------------------------------------------------------------------------------------------------- writing


def encode(image: str, regions: RegionSet, start: int, dtype: Any) -> tuple[bytes, bytes]:
    """Return what an image adds to `X.npy` and to `X.regions.jsonl`, where `start` regions stand already.

    Raises:
        DataError: a feature is not finite in the file's dtype.
    """
    with np.errstate(over="ignore"):  # said below
        block = np.ascontiguousarray(regions.features, dtype)
    if not np.isfinite(block).all():
        raise DataError(f"{image}: a feature is NaN or infinite in {np.dtype(dtype)}")
    row: dict[str, Any] = {"image": image, "start": start, "width": regions.width, "height": regions.height}
    row |= {"boxes": regions.boxes.tolist(), "confidence": [round(v, 6) for v in regions.confidence.tolist()]}
    return block.tobytes(), dumps(row | ({} if regions.labels is None else {"label": regions.labels}))


def write_regions(
    path: str | Path,
    items: Iterable[tuple[str, RegionSet]],
    config: Mapping[str, Any],
    width: int,
    *,
    dtype: str = "float32",
    inputs: Sequence[str | Path] = (),
    restart: bool = False,
    step: int = 1024,
    errors: Sequence[DataError] = (),
    **facts: Any,
) -> int:
    """Write the regions of images, resumably: what a former run wrote is drawn again, compared and not written twice.

    Args:
        path: X.npy.
        items: (image, regions), in order.
        config: what decides them.
        width: D.
        dtype: float32 or float16.
        inputs: files read.
        restart: throw an unfinished run away.
        step: images between commits.
        errors: of items left out, complete when the last item is drawn; they go to `X.errors.jsonl`.
        **facts: for the manifest; `backbone` says what the features are.

    Returns:
        The number of images.

    Raises:
        DataError: the items are not those of the run that is being resumed (78), or there is no region.
    """
    files = [path, regions_path(path), Path(path).with_suffix(".errors.jsonl")]
    with Output(files, config, npy={0: (dtype, width)}, inputs=inputs, restart=restart) as out:
        if out.complete:
            return int(read_manifest(path, KIND, verify=False)["images"])
        digest, done, rows, count = hashlib.sha256(), int(out.state.get("images", 0)), 0, 0
        for count, (image, regions) in enumerate(items, 1):
            for number, data in enumerate(encode(image, regions, rows, dtype)):
                digest.update(data)
                if count > done:
                    out.write(data, number)
            rows += len(regions)
            if count == done and digest.hexdigest() != out.state["sha256"]:
                raise _changed(path)
            if count > done and count % step == 0:
                out.commit({"images": count, "sha256": digest.hexdigest()})
        if count < done:
            raise _changed(path)
        if not rows:
            raise DataError(f"there is not one region in {amount(count, 'image')}; nothing is written", path)
        for error in errors:
            out.write(dumps({"file": str(error.file or ""), "line": error.line, "error": error.why}), 2)
        out.finish(kind=KIND, rows=rows, images=count, dim=width, errors=len(errors), **facts)
        return count


def _changed(path: str | Path) -> DataError:
    why = "the input is not what it was when this output was begun; --restart starts over"
    return DataError(why, path, code=Exit.CONFIG)
