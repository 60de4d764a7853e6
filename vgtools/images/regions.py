"""Region features: boxes of images with a feature row each, one memory-mapped array and a table.

    X.npy             (sum R, D) float16 or float32: the regions of all images, one after another
    X.regions.jsonl   one row per image: {"image", "start", "width", "height", "boxes",
                      "confidence", "label"?}
    X.json            manifest, kind "region-features"

`start` is the row of the image's first region; in a folder of shards, of its shard. Boxes are
[x1, y1, x2, y2] in pixels of a picture of `width` × `height`, from the upper left corner, x2 and y2
exclusive. Nothing here imports torch.

Axes: N images, R regions of an image, D channels.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.images.boxes import box_fault
from vgtools.images.sources import SUFFIXES
from vgtools.io.arrays import Array
from vgtools.io.artifact import Artifact, read_manifest
from vgtools.io.errors import DataError, amount, input_changed
from vgtools.io.files import dumps
from vgtools.io.forms import SIZE, check_form
from vgtools.io.inputs import Inputs
from vgtools.io.names import manifest_path
from vgtools.io.output import Output
from vgtools.io.streams import jsonl_rows, open_shard, require

KIND = "region-features"
_SCAN = 8192  # feature rows checked at a time
_COCO = re.compile(r"(?:^|/)(?:train|val|test|unlabeled)20\d\d/(?:COCO_\w+_)?\d{12}(?:\.\w+)?$")


@dataclass(frozen=True)
class RegionSet:
    """The regions of one image."""

    features: Array  # (R, D) float32
    boxes: Array  # (R, 4) float64, x1 y1 x2 y2 in pixels
    confidence: Array  # (R,) float32, in [0, 1]
    labels: list[str] | None  # R names, where the detector or data set gave some
    width: int  # width of the picture that the boxes refer to, px
    height: int  # its height, px

    def __len__(self) -> int:
        return len(self.boxes)


_BOXES = ".regions.jsonl"


def regions_path(path: str | Path) -> Path:
    """Return the file of the boxes of region features: `X.regions.jsonl` next to `X.npy`."""
    return Path(path).with_suffix(_BOXES)


class Regions:
    """The region features of N images, opened by `open_regions`."""

    def __init__(
        self,
        path: Path,
        array: Array,
        manifest: dict[str, Any],
        table: _Table,
        most: int | None = None,
    ) -> None:
        self.path = path
        self.most = most  # regions of an image that are seen; None: all
        self.manifest = manifest
        self.images = table.images  # ids in file order
        self.width = int(array.shape[1])  # D
        self._array = array
        self._table = table
        self._starts = np.array([*table.starts, len(array)], np.int64)
        self._boxes = np.frombuffer(table.boxes, np.float64).reshape(-1, 4)
        self._confidence = np.frombuffer(table.confidence, np.float32)
        self._codes = np.frombuffer(table.codes, np.int32)
        self._rows = {image: row for row, image in enumerate(table.images)}
        self.counts = np.diff(self._starts)  # (N,) int64, regions of each image
        self._asked: dict[str, str] = {}  # image -> the name that found it, with its folder

    def __len__(self) -> int:
        return len(self.images)

    def __contains__(self, image: object) -> bool:
        return image in self._rows

    def find(self, name: str, file: str | Path, line: int | None) -> str:
        """Return the id of an image that a data set names, without folder and suffix.

        Errors name the file and line of the data set.

        Raises:
            DataError: no image has this name, several have, or the image was already found for one
                of the same name in another folder.
        """
        images = [name] if name in self else list[str]()
        for key in () if images else _names(name):
            images = self._by_name.get(key, [])
            if len(images) == 1:
                break
        if len(images) == 1:
            other = self._asked.get(images[0], "")
            if _are_two(name, other):
                both = f"the pictures {other!r:.80} and {name!r:.80}: {self.path} holds"
                why = f"{both} regions of one such picture; extract the regions of both"
                raise DataError(why, file, line)
            self._asked[images[0]] = max(name, other, key=lambda one: "/" in one)
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
        """Return the regions of an image that are seen, in the order of the file.

        Raises:
            DataError: the file does not have the image.
        """
        row = self._rows.get(image)
        if row is None:
            why = f"holds no regions of the image {image!r:.80}; extract them, or drop its rows"
            raise DataError(why, self.path)
        part = slice(int(self._starts[row]), int(self._starts[row + 1]))
        labels = None
        if self._table.labelled[row]:
            labels = [self._table.names[code] for code in self._codes[part].tolist()]
        found = RegionSet(
            np.array(self._array[part], np.float32),  # a copy: the mapped file is read-only
            self._boxes[part],
            self._confidence[part],
            labels,
            *self._table.sizes[row],
        )
        if self.most is None or len(found) <= self.most:
            return found
        # Stable, so that the first of equally confident regions are kept, on every machine.
        best = np.argsort(-found.confidence, kind="stable")[: self.most]
        return pick(found, np.sort(best))


def pick(regions: RegionSet, kept: Array) -> RegionSet:
    """Return some of an image's regions."""
    return replace(
        regions,
        features=regions.features[kept],
        boxes=regions.boxes[kept],
        confidence=regions.confidence[kept],
        labels=None if regions.labels is None else [regions.labels[i] for i in kept],
    )


def _names(image: str) -> tuple[str, str]:
    """Return an image's name without folder and suffix, and the number that COCO knows it by.

    The latter is 42 for COCO_val2014_000000000042, train/000000000042.jpg and 42; without a number
    it is the name.
    """
    name = Path(image).stem if Path(image).suffix in SUFFIXES else Path(image).name
    bare = re.sub(r"^COCO_[a-z]+20\d\d_", "", name)
    return name, bare.lstrip("0") if bare.isdigit() else bare


def _are_two(image: str, other: str) -> bool:
    """Return whether two names of one file name are of two folders, and so of two images.

    COCO's numbers are unique in all its folders.
    """
    if all(map(_COCO.search, (image, other))):
        return False
    folders = [f"/{os.path.dirname(name)}" for name in (image, other)]
    short, long = sorted(folders, key=len)
    return short != "/" and not long.endswith(short)


@dataclass
class _Table:
    """The rows of `X.regions.jsonl` as flat arrays: lists of lists would take ten times as much."""

    images: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    labelled: list[bool] = field(default_factory=list)
    boxes: bytearray = field(default_factory=bytearray)
    confidence: bytearray = field(default_factory=bytearray)
    codes: bytearray = field(default_factory=bytearray)
    names: list[str] = field(default_factory=list)


def backbone_of(regions: Regions) -> dict[str, Any]:
    """Return the origin of region features: the network and its view, by picture or by region."""
    backbone = regions.manifest.get("backbone") or {}
    preprocessing = backbone.get("preprocessing") or {}
    cut = regions.manifest.get("pooling") == "cut"
    ref = backbone.get("ref")
    size = preprocessing.get("input_size")
    if ref and isinstance(size, list):
        ref += f", {'boxes cut out' if cut else 'pictures'} at {'×'.join(map(str, size[1:]))} px"
    fingerprint = f"{backbone.get('fingerprint')} {preprocessing.get('fingerprint', '')}"
    return {"ref": ref, "fingerprint": fingerprint + " cut" * cut}


def open_regions(path: str | Path, most: int | None = None) -> Regions:
    """Open `X.npy` with its `X.regions.jsonl` and `X.json`.

    Hashes, counts, boxes and finite values are checked. Files at a URL are fetched once per
    machine.

    Args:
        path: path of `X.npy`.
        most: regions of an image that are seen, the most confident ones; None for all.

    Raises:
        DataError: any of the three is missing (66), damaged or from another run; a box is
            invalid; a row is NaN or infinite (65).
    """
    made = Artifact(path, KIND)
    path = made.path
    array = made.array(2)
    if array.dtype.kind != "f":
        raise DataError(f"holds {array.dtype}, expected float16 or float32", path)
    table = _read_table(made, len(array))
    for start in range(0, len(array), _SCAN):
        bad = ~np.isfinite(np.asarray(array[start : start + _SCAN], np.float32)).all(1)
        if bad.any():
            row = start + int(bad.argmax())
            image = table.images[int(np.searchsorted(table.starts, row, "right")) - 1]
            why = f"row {row} (a region of {image}) is NaN or infinite; extract it again or drop it"
            raise DataError(why, path)
    return Regions(Path(path), array, made.manifest, table, most)


_Row = tuple[str | Path, int, dict[str, Any]]  # file, line, row


def _table_rows(made: Artifact) -> Iterator[_Row]:
    """Yield the rows of the boxes of `X.npy`; rows of shards have "start" as in a single file."""
    keys = {"image": str, "start": int, "width": int, "height": int, "boxes": list}
    keys["confidence"] = list
    first = 0  # row of the array at which the shard starts
    for shard in made.files(_BOXES):
        with open_shard(shard) as stream:
            for line, row in jsonl_rows(stream, shard.path, keys):
                row["start"] += first
                yield shard.path, line, row
        first += shard.rows


def _read_table(made: Artifact, rows: int) -> _Table:
    """Read and check the boxes of `rows` regions."""
    table = _Table()
    lines: dict[str, int] = {}  # image -> line
    codes: dict[str, int] = {}  # label -> its number
    end = 0  # number of regions so far
    for path, line, row in _table_rows(made):
        image = row["image"]
        if lines.setdefault(image, line) != line:
            raise DataError(duplicate_image(image, lines[image]), path, line)
        if row["start"] != end:
            why = f'"start" is {row["start"]}, expected {end}; regenerate the file'
            raise DataError(why, path, line)
        boxes, confidence, labels = parse_boxes(row, path, line)
        assert confidence is not None  # `keys` requires it
        fault = box_fault(boxes, row["width"], row["height"])
        if fault:
            raise DataError(fault, path, line)
        row_codes = [-1] * len(boxes)
        if labels is not None:
            row_codes = [codes.setdefault(label, len(codes)) for label in labels]
        table.images.append(image)
        table.starts.append(end)
        table.sizes.append((row["width"], row["height"]))
        table.labelled.append(labels is not None)
        table.boxes += boxes.tobytes()
        table.confidence += confidence.tobytes()
        table.codes += np.array(row_codes, np.int32).tobytes()
        end += len(boxes)
    if end != rows:
        why = f"has {end} boxes for {rows} feature rows; both must come from the same run"
        raise DataError(why, made.name(_BOXES))
    table.names = list(codes)
    return table


def duplicate_image(image: str, line: int | None) -> str:
    """Return the message about an image that occurred before, on a line if the file has lines."""
    first = "" if line is None else f" (first on line {line})"
    return f"duplicate image {image!r:.80}{first}"


def parse_boxes(
    row: Mapping[str, Any], path: str | Path, line: int
) -> tuple[Array, Array | None, list[str] | None]:
    """Return the (R, 4) boxes of a jsonl row, and the (R,) confidences and R labels if it has them.

    Labels are stored in "label", or in "labels" as `vg prepare coco` writes them.

    Raises:
        DataError: no such numbers, or lists of different lengths; with file and line.
    """
    require(row, {"boxes": list}, path, line)
    boxes = row["boxes"]
    for box in boxes:
        if not (isinstance(box, list) and len(box) == 4 and all(map(_is_number, box))):
            why = f'"boxes" holds {box!r:.60}, expected [x1, y1, x2, y2] in pixels'
            raise DataError(why, path, line)
    confidence = row.get("confidence")
    labels = row.get("label", row.get("labels"))
    lists = (
        ("confidence", confidence, lambda v: _is_number(v) and 0 <= v <= 1, "numbers from 0 to 1"),
        ("label", labels, lambda v: isinstance(v, str), "names"),
    )
    for key, values, fits, expected in lists:
        if values is not None and not (isinstance(values, list) and all(map(fits, values))):
            why = f'"{key}" is {values!r:.60}, expected a list of {expected}'
            raise DataError(why, path, line)
    for key, values, *_ in lists:
        if values is not None and len(values) != len(boxes):
            why = f'has {len(boxes)} "boxes" and {len(values)} values of "{key}"'
            raise DataError(why, path, line)
    scores = None if confidence is None else np.array(confidence, np.float32)
    return np.array(boxes, np.float64).reshape(-1, 4), scores, labels


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def encode(image: str, regions: RegionSet, start: int, dtype: Any) -> tuple[bytes, bytes]:
    """Return an image's bytes of `X.npy` and `X.regions.jsonl` after the first `start` regions.

    Raises:
        DataError: a feature is not finite in the file's dtype.
    """
    with np.errstate(over="ignore"):  # checked below
        block = np.ascontiguousarray(regions.features, dtype)
    if not np.isfinite(block).all():
        raise DataError(f"{image}: a feature is NaN or infinite in {np.dtype(dtype)}")
    row: dict[str, Any] = {
        "image": image,
        "start": start,
        "width": regions.width,
        "height": regions.height,
        "boxes": regions.boxes.tolist(),
        "confidence": [round(v, 6) for v in regions.confidence.tolist()],
    }
    if regions.labels is not None:
        row["label"] = regions.labels
    return block.tobytes(), dumps(row)


def write_regions(
    path: str | Path,
    items: Iterable[tuple[str, RegionSet]],
    config: Mapping[str, Any],
    width: int,
    *,
    dtype: str = "float32",
    inputs: Inputs | Sequence[str | Path] = (),
    restart: bool = False,
    step: int = 1024,
    errors: Sequence[DataError] = (),
    **facts: Any,
) -> int:
    """Write the regions of images, resumably, and return the number of images.

    The items that an earlier run wrote are produced again, compared and not written twice.

    X.npy has rows of `width` numbers; there are `step` images between commits. `errors` belong to
    items that were left out, and are complete after the last item; they go to `X.errors.jsonl`. The
    facts are for the manifest, among them the `backbone` of the features.

    Raises:
        DataError: the items differ from the run that is being resumed (78), or there is no region.
    """
    files = [path, regions_path(path), Path(path).with_suffix(".errors.jsonl")]
    with Output(files, config, npy={0: (dtype, width)}, inputs=inputs, restart=restart) as out:
        if out.complete:
            made = read_manifest(path, KIND, verify=False)
            check_form(made, {"images": SIZE}, manifest_path(path), "create the regions again")
            return int(made["images"])
        digest = hashlib.sha256()
        done = int(out.state.get("images", 0))
        rows = count = 0
        for count, (image, regions) in enumerate(items, 1):
            for number, data in enumerate(encode(image, regions, rows, dtype)):
                digest.update(data)
                if count > done:
                    out.write(data, number)
            rows += len(regions)
            if count == done and digest.hexdigest() != out.state["sha256"]:
                raise input_changed(path)
            if count > done and count % step == 0:
                out.commit({"images": count, "sha256": digest.hexdigest()})
        if count < done:
            raise input_changed(path)
        if not rows:
            raise DataError(f"no region in {amount(count, 'image')}; nothing is written", path)
        for error in errors:
            out.write(dumps(error.record()), 2)
        out.finish(kind=KIND, rows=rows, images=count, dim=width, errors=len(errors), **facts)
        return count
