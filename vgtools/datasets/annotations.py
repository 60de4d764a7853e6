"""Annotated pictures: MS COCO with its captions and splits, Visual Genome, VCR."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Exit, Tally
from vgtools.io.files import read_json
from vgtools.io.json_items import json_items
from vgtools.io.names import id_fault
from vgtools.io.streams import read_jsonl

if TYPE_CHECKING:
    from vgtools.images.masks import Outline


def _get(item: Any, key: str, kind: type, path: str | Path, location: str) -> Any:
    """Return `item[key]` of the expected type; a caption loses its line end and nothing else."""
    value = item.get(key) if isinstance(item, dict) else None
    # True and False are also ints, but no ids, sizes or corners.
    if not isinstance(value, kind) or isinstance(value, bool):
        got = f"{value!r:.40}" if isinstance(item, dict) and key in item else "missing"
        raise DataError(f'{location}: "{key}" is {got}, expected {kind.__name__}', path)
    if isinstance(value, str):
        if not value.isascii() and re.search("[\ud800-\udfff]", value):
            why = f'{location}: "{key}" holds half a character (a lone surrogate)'
            raise DataError(why, path)
        return value.rstrip("\r\n")
    return value


@dataclass
class _Coco:
    """The content of a COCO file, collected item by item."""

    path: str | Path
    kind: str = ""  # "captions" or "instances", after the first good annotation
    images: dict[int, Row] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # category id -> name
    # Image id -> its captions, or (box, category id, crowd) of its instances.
    values: dict[int, list[Any]] = field(default_factory=dict)
    locations: dict[int, str] = field(default_factory=dict)  # annotation id -> first location

    def add(self, key: str, item: Any, location: str) -> None:
        """Take in one item of the list `key`; a bad item is a DataError."""
        if key == "images":
            self._add_image(item, location)
        elif key == "categories":
            number = _get(item, "id", int, self.path, location)
            name = _get(item, "name", str, self.path, location)
            if self.names.setdefault(number, name) != name:
                why = f"duplicate id {number}, of {self.names[number]!r:.60} and {name!r:.60}"
                raise DataError(f"{location}: {why}", self.path)
        elif key == "annotations":
            self._add_annotation(item, location)

    def _add_image(self, item: Any, location: str) -> None:
        number = _get(item, "id", int, self.path, location)
        if number in self.images:
            raise DataError(f"{location}: duplicate id {number}", self.path)
        sides = {side: _get(item, side, int, self.path, location) for side in ("width", "height")}
        if not 1 <= min(sides.values()) <= max(sides.values()) < 1e9:
            raise DataError(f"{location}: invalid size {sides}", self.path)
        name = _get(item, "file_name", str, self.path, location)
        self.images[number] = {"image": name} | sides

    def _add_annotation(self, item: Any, location: str) -> None:
        kind = "captions" if isinstance(item, dict) and "caption" in item else "instances"
        if self.kind and kind != self.kind:
            key = "caption" if self.kind == "captions" else "bbox"
            why = f'{location}: has no "{key}", unlike all annotations before it'
            raise DataError(why, self.path)
        number = _get(item, "id", int, self.path, location)
        first = self.locations.setdefault(number, location)
        if first != location:
            why = f"{location}: duplicate id {number} (first in {first})"
            raise DataError(why, self.path)
        if kind == "captions":
            value = _get(item, "caption", str, self.path, location)
        else:
            value = _instance(item, self.path, location)
        # Only a good annotation decides the kind: a bad first one would make all others bad.
        self.kind = kind
        image = _get(item, "image_id", int, self.path, location)
        self.values.setdefault(image, []).append(value)


def karpathy(path: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield {"image", "text", "split"} of a `dataset_coco.json` of Karpathy and Fei-Fei 2015.

    Those of Flickr8k and Flickr30k have the same form. The split "restval", the rest of COCO's
    validation photos, is training data: its rows have the split "train".
    """
    seen: dict[str, str] = {}
    for key, index, item in json_items(path, surrogates=True):
        if key != "images":
            continue
        location = f"images[{index}]"
        with tally.of_item():
            rows = _split_captions(item, path, location)
            name = rows[0]["image"]
            first = seen.setdefault(name, location)
            if first != location:
                why = f"{location}: duplicate image {name!r:.80} (first in {first})"
                raise DataError(why, path)
            yield from rows
    if not seen:
        why = 'has no captions; expected {"images": [{"filename", "split", "sentences"}]}'
        raise DataError(why, path)


def _split_captions(item: Any, path: str | Path, location: str) -> list[Row]:
    name = _get(item, "filename", str, path, location)
    split = _get(item, "split", str, path, location)
    sentences = _get(item, "sentences", list, path, location)
    if not sentences:
        raise DataError(f"{location}: {name!r:.80} has no sentences", path)
    split = "train" if split == "restval" else split
    return [
        {
            "image": name,
            "text": _get(sentence, "raw", str, path, f"{location}.sentences[{i}]"),
            "split": split,
        }
        for i, sentence in enumerate(sentences)
    ]


def coco(path: str | Path, tally: Tally, drop_crowd: bool = False) -> Iterator[Row]:
    """Yield captions (of `captions_*.json`) or boxes (of `instances_*.json`) in image order.

    Rows: {"image", "text"}, or {"image", "width", "height", "boxes": [[x1, y1, x2, y2]…],
    "labels": […], "crowd": [0 or 1…]}, one per image, also for images without an instance. The
    image is the official file name.
    """
    file = _Coco(path)
    for key, index, item in json_items(path, surrogates=True):
        with tally.of_item():
            file.add(key, item, f"{key}[{index}]")
    if not file.kind:
        why = 'has no "annotations"; expected a captions_*.json or instances_*.json'
        raise DataError(why, path)
    for unknown in sorted(file.values.keys() - file.images.keys()):
        tally.bad(DataError(f'annotations of image {unknown}, which "images" does not have', path))
    for number, image in file.images.items():
        values = file.values.get(number, [])
        if file.kind == "captions":
            if not values:
                tally.left_out["image without a caption"] += 1
            yield from ({"image": image["image"], "text": text} for text in values)
            continue
        kept = [value for value in values if not (drop_crowd and value[2])]
        tally.left_out["crowd box"] += len(values) - len(kept)
        labels = [file.names.get(category, "") for _, category, _ in kept]
        if "" in labels:
            why = f'image {number} has a category_id that "categories" does not have'
            tally.bad(DataError(why, path))
            continue
        boxes = [box for box, _, _ in kept]
        yield image | {"boxes": boxes, "labels": labels, "crowd": [crowd for *_, crowd in kept]}


_SPLIT = re.compile(r"(train|val|test)(?:-dev)?(20\d\d)")  # a split of MS COCO


def vqa(path: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield the questions of a file of VQA's as captions: {"image", "text"}.

    The image is the file name of MS COCO, whose split the file's name has.

    Raises:
        DataError: the name has no split (usage), or the file no questions, or its facts name
            another split or other pictures (65).
    """
    split = _SPLIT.search(Path(path).name)
    if split is None:
        why = "the name of a file of questions must contain its split, for example train2014"
        raise DataError(why, path, code=Exit.USAGE)
    prefix = f"COCO_{split[1]}{split[2]}_"
    found = False
    facts = dict[str, Any]()
    for key, index, item in json_items(path, surrogates=True, others=facts):
        if key != "questions":
            continue
        if not index:
            _check_pictures(facts, split, path)
        location = f"questions[{index}]"
        with tally.of_item():
            number = _get(item, "image_id", int, path, location)
            text = _get(item, "question", str, path, location)
            found = True
            yield {"image": f"{prefix}{number:012}.jpg", "text": text}
    if not found:
        raise DataError(
            'has no questions; expected {"questions": [{"image_id", "question"}]}', path
        )
    _check_pictures(facts, split, path)  # The file may state them after its questions.


def _check_pictures(facts: Mapping[str, Any], split: re.Match[str], path: str | Path) -> None:
    """Refuse questions whose file states other pictures than the photos of a split of COCO."""
    kind = facts.get("data_type", "mscoco")
    if kind != "mscoco":
        why = f"\"data_type\" is {kind!r:.40}, expected 'mscoco', whose photos rows name"
        raise DataError(why, path)
    own = facts.get("data_subtype")
    named = _SPLIT.search(own) if isinstance(own, str) else None
    if named is not None and named.groups() != split.groups():
        why = f'"data_subtype" is {own!r:.40}, the file\'s name has {split[0]}; rename the file'
        raise DataError(why, path)


def _instance(item: Row, path: str | Path, location: str) -> tuple[list[float], int, int]:
    box = _get(item, "bbox", list, path, location)
    good = len(box) == 4 and all(type(v) in (int, float) and abs(v) < 1e9 for v in box)
    if not good or min(box[2:]) < 0:
        why = f'{location}: "bbox" is {box!r:.60}, expected [x, y, width, height]'
        raise DataError(why, path)
    x, y, width, height = box
    category = _get(item, "category_id", int, path, location)
    crowd = 0 if item.get("iscrowd") is None else item["iscrowd"]
    if not isinstance(crowd, int | float) or crowd not in (0, 1):
        raise DataError(f'{location}: "iscrowd" is {crowd!r:.40}, expected 0 or 1', path)
    return [x, y, round(x + width, 2), round(y + height, 2)], category, int(crowd)


_LONGEST = 1 << 15  # px of a side of a picture whose masks are drawn


class ClassMask(NamedTuple):
    """A class in a picture, outlined."""

    image: str  # the official file name
    name: str  # the name of the class
    width: int  # width of the picture, px
    height: int
    outlines: tuple[Outline, ...]  # outlines of all instances, crowds included


def coco_masks(path: str | Path) -> Iterator[ClassMask]:
    """Yield the classes of each picture of an `instances_*.json`, in the order of their numbers.

    All outlines are held in memory, about a kilobyte each.

    Raises:
        DataError: an item of another form, a duplicate id, or an annotation of a picture or a
            category that the file does not have; with its place.
    """
    from vgtools.images.decoding import MAX_PIXELS
    from vgtools.images.masks import Outline, parse_outline

    file = _Coco(path)
    found = dict[int, dict[int, list[Outline]]]()  # image -> category -> outlines
    for key, index, item in json_items(path, surrogates=True):
        location = f"{key}[{index}]"
        if key != "annotations":
            file.add(key, item, location)
            continue
        image = _get(item, "image_id", int, path, location)
        category = _get(item, "category_id", int, path, location)
        try:
            outline = parse_outline(item.get("segmentation"))
        except ValueError as error:
            raise DataError(f'{location}: "segmentation": {error}', path) from None
        found.setdefault(image, {}).setdefault(category, []).append(outline)
    if not found:
        raise DataError('has no "annotations"; expected an instances_*.json', path)
    for unknown in sorted(found.keys() - file.images.keys()):
        raise DataError(f'annotations of image {unknown}, which "images" does not have', path)
    for number, image_row in file.images.items():
        size = (image_row["width"], image_row["height"])
        if number in found and (max(size) > _LONGEST or size[0] * size[1] > MAX_PIXELS):
            most = f"at most {_LONGEST} px per side and {MAX_PIXELS:,} in all are read"
            raise DataError(f"image {number} is {size[0]}×{size[1]}, {most}", path)
        for category, outlines in sorted(found.pop(number, {}).items()):
            if category not in file.names:
                why = f'image {number} has a category_id that "categories" does not have'
                raise DataError(f"{why}: {category}", path)
            if any(outline.size not in (None, size) for outline in outlines):
                why = f"image {number} is {size[0]}×{size[1]}, the runs of a mask have another size"
                raise DataError(why, path)
            yield ClassMask(image_row["image"], file.names[category], *size, tuple(outlines))


def vcr(annotations: Iterable[str | Path], folder: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield the boxes of VCR's pictures, each once, in the order of the questions.

    Rows: {"image", "width", "height", "boxes": [[x1, y1, x2, y2]…], "confidence": […],
    "labels": […]}, the boxes in the order in which questions number their objects. The image is
    the official `img_fn`.

    The folder, vcr1images, holds each picture's metadata.
    """
    seen = set[str]()
    keys = {"img_fn": str, "metadata_fn": str, "objects": list}
    for path in annotations:
        for line, row in read_jsonl(path, keys):
            # A bad picture is reported once, not again for each of its questions.
            if row["img_fn"] in seen:
                continue
            seen.add(row["img_fn"])
            with tally.of_item():
                yield _vcr_boxes(row, Path(folder), path, line)


def _vcr_boxes(row: Row, folder: Path, path: str | Path, line: int) -> Row:
    """Return the boxes of a VCR row's picture from its metadata in the folder of pictures."""
    for key in ("img_fn", "metadata_fn"):
        name = row[key]
        place = PurePosixPath(name)
        outside = place.is_absolute() or ".." in place.parts
        if not place.name or outside or id_fault(name):
            raise DataError(f'"{key}" is {name!r:.80}, expected a file in {folder}', path, line)
    file = folder / row["metadata_fn"]
    if not file.exists():
        why = f"the metadata of its picture, {file}, does not exist"
        raise DataError(why, path, line, Exit.NO_INPUT)
    if not file.is_file():  # a pipe or device has no end
        raise DataError(f"the metadata of its picture, {file}, is not a regular file", path, line)
    facts = read_json(file, "the metadata of a picture")
    sides = {side: _get(facts, side, int, file, "the picture") for side in ("width", "height")}
    boxes, names = (_get(facts, key, list, file, "the picture") for key in ("boxes", "names"))
    if names != row["objects"]:
        why = f'"objects" is {row["objects"]!r:.60}, {file} has {names!r:.60}'
        raise DataError(why, path, line)
    good = (
        isinstance(box, list) and len(box) == 5 and all(type(v) in (int, float) for v in box)
        for box in boxes
    )
    if len(boxes) != len(names) or not all(good):
        why = f'"boxes" must hold [x1, y1, x2, y2, confidence] for each of {len(names)} names'
        raise DataError(why, file)
    return {
        "image": row["img_fn"],
        **sides,
        "boxes": [box[:4] for box in boxes],
        "confidence": [box[4] for box in boxes],
        "labels": names,
    }


def visual_genome(
    path: str | Path, tally: Tally, keep_coco: bool = False, limit: int | None = None
) -> Iterator[Row]:
    """Yield {"image", "url"} of the images in `image_data.json` that are not in COCO.

    Ids are `vg_nococo/ID`; with `keep_coco` all images are kept and are `vg/ID`. There are at most
    `limit`.

    Source: Tan & Bansal 2020 (Vokenization), section 4.2: the first 50,000 images that are not in
        COCO are the vokens.
    """
    prefix = "vg" if keep_coco else "vg_nococo"
    seen: set[int] = set()
    for key, index, item in json_items(path, surrogates=True):
        location = f"{key}[{index}]"
        with tally.of_item():
            number = _get(item, "image_id", int, path, location)
            url = _get(item, "url", str, path, location)
            if number in seen:
                raise DataError(f"{location}: duplicate image_id {number}", path)
            seen.add(number)
            if item.get("coco_id") is not None and not keep_coco:
                tally.left_out["image of COCO"] += 1
                continue
            if limit == 0:
                tally.left_out["image beyond --limit"] += 1
                continue
            limit = None if limit is None else limit - 1
            yield {"image": f"{prefix}/{number}", "url": url}


def visual_genome_regions(
    path: str | Path, images: Mapping[int, Row], tally: Tally
) -> Iterator[Row]:
    """Yield a caption per region of `region_descriptions.json` whose image is among `images`.

    The images are known by their number; the tally counts regions of other images.
    """
    for region, number, location in _regions(path, images, tally):
        with tally.of_item():
            yield images[number] | {"text": _get(region, "phrase", str, path, location)}


def _regions(
    path: str | Path, images: Mapping[int, Row], tally: Tally
) -> Iterator[tuple[Any, int, str]]:
    """Yield (region, number of its image, location) of those whose image is among `images`.

    Raises:
        DataError: through the tally an image that comes twice; or no image is among `images`.
    """
    seen = set[int]()
    for key, index, item in json_items(path, surrogates=True):
        location = f"{key}[{index}]"
        with tally.of_item():
            regions = _get(item, "regions", list, path, location)
            number = _get(item, "id", int, path, location)
            if number in seen:
                raise DataError(f"{location}: duplicate id {number}", path)
            seen.add(number)
            if number not in images:
                tally.left_out["region of an image left out"] += len(regions)
                continue
            for nth, region in enumerate(regions):
                yield region, number, f"{location}.regions[{nth}]"
    if images and seen and seen.isdisjoint(images):
        raise DataError("has no region of any image that is kept", path)


def visual_genome_boxes(
    images: str | Path, regions: str | Path, coco: str | Path | None, tally: Tally
) -> Iterator[Row]:
    """Yield a phrase with its box per region of `region_descriptions.json`.

    Rows: {"image", "text", "width", "height", "boxes": [[x1, y1, x2, y2]]}. The image is vg/ID, or
    with `coco` (an `instances_*.json` or `captions_*.json`) the file name that MS COCO has for it;
    regions of other images are then left out and counted, as are boxes without an area.
    """
    known = {} if coco is None else _coco_names(coco)
    kept = dict[int, Row]()
    for key, index, item in json_items(images, surrogates=True):
        location = f"{key}[{index}]"
        with tally.of_item():
            number = _get(item, "image_id", int, images, location)
            size = [_get(item, side, int, images, location) for side in ("width", "height")]
            if number in kept or not 1 <= min(size) <= max(size) < 1e9:
                why = f"{location}: duplicate image_id {number}, or invalid size {size}"
                raise DataError(why, images)
            name = f"vg/{number}" if coco is None else known.get(_coco_id(item))
            if name is not None:
                kept[number] = {"image": name, "width": size[0], "height": size[1]}
    for region, number, location in _regions(regions, kept, tally):
        with tally.of_item():
            yield from _boxed(region, kept[number], regions, location, tally)


def _boxed(item: Any, image: Row, path: str | Path, location: str, tally: Tally) -> Iterator[Row]:
    """Yield the row of a region if its box has an area in its image."""
    x, y, width, height = (
        _get(item, key, int, path, location) for key in ("x", "y", "width", "height")
    )
    text = _get(item, "phrase", str, path, location).strip()
    box = [max(x, 0), max(y, 0), min(x + width, image["width"]), min(y + height, image["height"])]
    if box[0] >= box[2] or box[1] >= box[3]:
        tally.left_out["box without an area"] += 1
        return
    size = {"width": image["width"], "height": image["height"]}
    yield {"image": image["image"], "text": text, **size, "boxes": [box]}


def _coco_id(item: Mapping[str, Any]) -> int:
    """Return the number of a Visual Genome image in MS COCO; -1 for one that is not in it."""
    number = item.get("coco_id")
    return number if isinstance(number, int) else -1


def _coco_names(path: str | Path) -> dict[int, str]:
    """Return the file names of the images of a file of MS COCO, by their numbers."""
    names = dict[int, str]()
    for key, index, item in json_items(path, surrogates=True):
        if key == "images":
            location = f"{key}[{index}]"
            number = _get(item, "id", int, path, location)
            names[number] = _get(item, "file_name", str, path, location)
    if not names:
        why = 'has no "images"; expected an instances_*.json or captions_*.json of MS COCO'
        raise DataError(why, path)
    return names
