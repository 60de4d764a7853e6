"""Official data sets → the toolkit's rows: captions, phrase boxes, instance boxes, image lists.

Every parser is a generator of rows in the order of the official files. It drops nothing by itself:
what a flag asks to leave out, and bad items that may be skipped, go through a `Tally`, which counts
them.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from vgtools.errors import amount, input_changed
from vgtools.io import (
    DataError,
    Exit,
    dumps,
    open_read,
    plain,
    read_json,
    read_jsonl,
    read_lines,
    storable,
)
from vgtools.jsonstream import json_items
from vgtools.output import Output
from vgtools.sources import is_picture

Row = dict[str, Any]

# ---------------------------------------------------------------- what is left out, what is written


@dataclass
class Tally:
    """What was left out and why, and how bad items are handled.

    Args:
        skip: note a bad item and continue; otherwise the first one ends the command.
        most: with `skip`, give up after more bad items than this.
    """

    skip: bool = False
    most: int | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    errors: list[DataError] = field(default_factory=list)

    def bad(self, error: DataError) -> None:
        """Handle a bad item: raise it, or note it."""
        if not self.skip:
            raise error
        self.errors.append(error)
        self.left_out["bad item"] += 1
        if self.most is not None and len(self.errors) > self.most:
            why = f"{error.why} (bad item {len(self.errors)}, --max-errors allows {self.most})"
            raise DataError(why, error.file, error.line, error.code)


def save(
    rows: Iterable[Row],
    path: str,
    tally: Tally,
    what: str,
    config: Mapping[str, Any],
    inputs: Iterable[str | Path],
    restart: bool = False,
    quiet: bool = False,
    step: int = 65536,
    **facts: Any,
) -> int:
    """Write rows to a file or stdout, resumably; report their number and what was left out.

    The suffix chooses the form: `.txt` (and stdout for a corpus, `what` being "lines" or
    "sentences") takes the text alone, anything else one JSON object per line. A resumed run parses
    from the start, compares what it would have written, and writes only what is new. Further
    keywords go into the manifest. The report goes to stderr.

    Returns:
        The number of rows.
    """
    bare = path.removesuffix(".gz").removesuffix(".zst")
    is_corpus = what in ("lines", "sentences") and not bare.endswith(".jsonl")
    as_text = bare.endswith(".txt") or is_corpus
    stream = path == "-" or (os.path.exists(path) and not os.path.isfile(path))
    files = [path]
    if tally.skip and not stream:
        files.append(f"{bare.removesuffix('.jsonl')}.errors.jsonl")
    digest = hashlib.sha256()
    count = 0
    with Output(files, config, inputs=[str(i) for i in inputs], restart=restart) as out:
        done = int(out.state.get("rows", 0))
        for count, row in enumerate(rows, 1):
            # Rows of a finished output are still read: the image list and the counts need them.
            if out.complete:
                continue
            data = f"{row['text']}\n".encode() if as_text else dumps(row)
            digest.update(data)
            if count > done:
                out.write(data)
                if count % step == 0:
                    out.commit({"rows": count, "sha256": digest.hexdigest()})
            elif count == done and digest.hexdigest() != out.state["sha256"]:
                raise input_changed(path)
        if count < done:
            raise input_changed(path)
        if not out.complete:
            for error in tally.errors if len(files) > 1 else ():
                out.write(dumps(error.record()), 1)
            out.finish(kind=what, rows=count, left_out=dict(+tally.left_out), **facts)
    if not quiet:
        for error in tally.errors if stream else ():
            print(f"vg: skipped: {plain(error)}", file=sys.stderr)
        report = f"vg prepare: {amount(count, what[:-1], what)} in "
        report += "stdout" if path == "-" else path
        report += " (up to date)" if out.complete else ""
        left = [f"{reason}: {number:,}" for reason, number in tally.left_out.items() if number]
        report += f"; left out: {', '.join(left)}" if left else ""
        print(report, file=sys.stderr)
    return count


# -------------------------------------------------------------------------------- splits and photos


_SPLIT_LIST = re.compile(r"Flickr_8k\.(\w+)Images\.txt|(train|val|test)\.txt")


def read_splits(folder: str | Path) -> dict[str, str]:
    """Read the official lists of a folder: image -> split.

    They are `Flickr_8k.trainImages.txt` …, or `train.txt` ….

    Raises:
        DataError: no list there (66), or an image is in two of them (65).
    """
    if not os.path.isdir(folder):
        why = "is not a folder; expected the one with the split lists"
        raise DataError(why, folder, code=Exit.NO_INPUT)
    matches = (_SPLIT_LIST.fullmatch(name) for name in sorted(os.listdir(folder)))
    lists = {match[1] or match[2]: Path(folder, match[0]) for match in matches if match}
    if not lists:
        why = "holds no split list (Flickr_8k.trainImages.txt …, or train.txt …)"
        raise DataError(why, folder, code=Exit.NO_INPUT)
    splits: dict[str, str] = {}
    for split, path in lists.items():
        for number, name in enumerate(read_lines(path), 1):
            if name in splits:
                why = f"duplicate image {name!r:.80} (already in the {splits[name]} list)"
                raise DataError(why, path, number)
            if name:
                splits[name] = split
    return splits


def with_split(
    rows: Iterable[Row], splits: Mapping[str, str], only: str | None, tally: Tally
) -> Iterator[Row]:
    """Give each row its split, if a list names its image; keep `only` one split if asked to.

    Raises:
        DataError: no list is called `only` (usage).
    """
    if only is not None and only not in splits.values():
        known = ", ".join(sorted(set(splits.values())))
        known = known or "none: --splits names the folder of the lists"
        raise DataError(f"--split {only}: unknown split; known are {known}", code=Exit.USAGE)
    for row in rows:
        split = splits.get(row["image"]) or splits.get(Path(row["image"]).stem)
        if only is not None and split != only:
            tally.left_out[f"not in {only}"] += 1
            continue
        yield row | {"split": split} if split else row


def in_split(rows: Iterable[Row], split: str | None) -> Iterator[Row]:
    """Return rows with the same "split", or as they are if there is none."""
    return (row | {"split": split} for row in rows) if split else iter(rows)


class Folder:
    """The files of a folder and of those below it, by path, name, stem, or the stem up to its `_`.

    The last is for Flickr, where `1000268201_693b08cb0e.jpg` and `1000268201.jpg` are one photo.
    Pictures take precedence over other files.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.used: dict[str, str] = {}
        if not self.path.is_dir():
            why = "is not a folder" if self.path.exists() else "does not exist"
            raise DataError(why, path, code=Exit.NO_INPUT)
        self.files = sorted(
            os.path.relpath(os.path.join(folder, name), path)
            for folder, _, names in os.walk(path)
            for name in names
        )
        self._names: dict[str, set[str]] = {}
        for file in self.files:
            stem = Path(file).stem
            for key in {file, os.path.basename(file), stem, stem.split("_")[0]}:
                self._names.setdefault(key, set()).add(file)

    def digest(self) -> str:
        """Return a hash of all names, sizes and times, which shows whether the folder changed."""
        stats = ((file, os.lstat(self.path / file)) for file in self.files)
        facts = [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def unused(self) -> int:
        """Return how many of the pictures no row has asked for.

        Other files beside them (VCR's metadata) do not count.
        """
        return max(0, sum(map(is_picture, self.files)) - len(set(self.used.values())))

    def find(self, image: str) -> str:
        """Return the absolute path of an image's file.

        Raises:
            DataError: none (66) or several match, or its name cannot be written down.
        """
        name = os.path.basename(image)
        for key in (image, name, Path(name).stem):
            files = self._names.get(key, set())
            files = set(filter(is_picture, files)) or files  # VCR's `1_x.json` beside `1_x.jpg`
            if len(files) == 1:
                path = os.path.abspath(self.path / min(files))
                if storable(path) != path:
                    why = "has bytes in its name that are not UTF-8, which no image list can hold"
                    raise DataError(why, path)
                return path
            if files:
                both = " and ".join(sorted(files)[:2])
                raise DataError(f"{image!r:.80} is ambiguous: {both} both match", self.path)
        raise DataError(
            f"holds no photo {image!r:.80}; get it, or leave its rows out with --on-error skip",
            self.path,
            code=Exit.NO_INPUT,
        )


def with_photos(rows: Iterable[Row], photos: Folder, tally: Tally) -> Iterator[Row]:
    """Keep the rows whose photo exists, and scale their boxes to its real size.

    A row's "width" and "height" are the size that its boxes refer to, before and after.
    `photos.used` collects image -> path in order.
    """
    bad: set[str] = set()
    for row in rows:
        image = row["image"]
        if image in bad:
            tally.left_out["row of a bad photo"] += 1
            continue
        try:
            path = photos.used.get(image) or photos.find(image)
            if "width" in row:
                row = _scaled(row, path)
        except DataError as error:
            bad.add(image)
            tally.bad(error)
            continue
        photos.used[image] = path
        yield row


@functools.lru_cache(maxsize=16)
def _photo_size(path: str) -> tuple[int, int]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as photo:
            return photo.size
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise DataError(f"cannot be read as a picture: {error}", path) from None


def size_ratio(declared: tuple[int, int], size: tuple[int, int]) -> tuple[float, float]:
    """Return the factors from the declared (width, height) of a picture to its real one.

    Data sets are often passed on with smaller photos.

    Raises:
        ValueError: the two sizes have different shapes.
    """
    x = size[0] / declared[0]
    y = size[1] / declared[1]
    if abs(size[0] - declared[0] * y) > 2 + 0.02 * size[0]:  # rounding a side to pixels gives less
        raise ValueError(
            f"is {size[0]}×{size[1]}, but its annotation is for {declared[0]}×{declared[1]}: "
            "another picture, or cropped"
        )
    return x, y


def _scaled(row: Row, path: str) -> Row:
    """Return a row with its boxes in the pixels of the photo at `path`."""
    size = _photo_size(path)
    try:
        ratio = size_ratio((row["width"], row["height"]), size)
    except ValueError as error:
        raise DataError(str(error), path) from None
    if ratio == (1, 1):
        return row

    def scale(boxes: list[list[float]]) -> list[list[float]]:
        return [[round(v * by, 2) for v, by in zip(b, ratio * 2, strict=True)] for b in boxes]

    changed: Row = {"width": size[0], "height": size[1]}
    if "boxes" in row:
        changed["boxes"] = scale(row["boxes"])
    if "phrases" in row:
        changed["phrases"] = [p | {"boxes": scale(p["boxes"])} for p in row["phrases"]]
    return row | changed


def listing(rows: Iterable[Row], images: dict[str, Row], photos: Folder | None) -> Iterator[Row]:
    """Pass rows on and collect their images on the way.

    Args:
        rows: with "image", and "url" where it is known.
        images: gets image -> row of an image list: {"image", "path" or "url" or both}.
        photos: where the paths come from.
    """
    for row in rows:
        image = row["image"]
        if image not in images:
            entry = {"image": image}
            if photos is not None:
                entry["path"] = photos.used[image]
            if "url" in row:
                entry["url"] = row["url"]
            images[image] = entry
        yield row


# ------------------------------------------------------------------------------ Flickr8k, Flickr30k


def flickr8k(path: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield the captions of a `Flickr8k.token.txt` (or Flickr30k's `results_20130124.token`).

    Its lines are `IMAGE#N<tab>TEXT`. The official file calls one photo `….jpg.1`; the stray `.1` is
    removed.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        key, tab, text = line.partition("\t")
        image, _, nth = key.rpartition("#")
        if not tab or not image or not nth.isdecimal():
            why = f"expected IMAGE#NUMBER, a tab, and the caption, got {line!r:.60}"
            tally.bad(DataError(why, path, number))
        elif key in seen:
            why = f"duplicate {key!r:.80} (first on line {seen[key]})"
            tally.bad(DataError(why, path, number))
        else:
            seen[key] = number
            yield {"image": re.sub(r"(\.jpe?g)\.\d$", r"\1", image), "text": text}


_PHRASE = re.compile(r"\[/EN#(\d+)/(\S+) ([^\[\]]*)\]")


def parse_entities(line: str) -> tuple[str, list[Row]]:
    """Return the raw caption of an Entities sentence, and its phrases with their spans in it.

    `[/EN#5/people A man] runs .` gives `A man runs .` and {"start": 0, "end": 5, "type": "people",
    "id": "5"}. Several types remain joined by `/`, as in the file.

    Raises:
        ValueError: a bracket is not closed.
    """
    text = ""
    phrases: list[Row] = []
    position = 0
    for match in _PHRASE.finditer(line):
        text += line[position : match.start()]
        start = len(text)
        text += match[3]
        phrases.append({"start": start, "end": len(text), "type": match[2], "id": match[1]})
        position = match.end()
    text += line[position:]
    if "[/EN#" in text:
        torn = text[text.index("[/EN#") :]
        raise ValueError(f"a phrase is torn: expected [/EN#CHAIN/TYPE WORDS], got {torn!r:.60}")
    return text, phrases


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuse a document type before it can declare entities.

    These can grow without bound or name files.
    """

    def doctype(self, name: str, public: str | None, system: str | None) -> NoReturn:
        why = "has a DOCTYPE, which annotations do not have; refused, since it can declare entities"
        raise ValueError(why)


def parse_boxes(path: str | Path) -> tuple[int, int, dict[str, list[list[int]]]]:
    """Return width, height and chain id -> boxes of an Entities annotation.

    Scene and nobox chains have no boxes. Boxes are as annotated: pixels counted from 1, both ends
    inside.

    Raises:
        DataError: not XML, a DOCTYPE, or a number is missing; with the file and, for torn XML, the
            line.
    """
    try:
        with open_read(path) as stream:
            parser = ElementTree.XMLParser(target=_NoDoctype())
            root = ElementTree.parse(stream, parser).getroot()
        width, height = (int(root.findtext(f"size/{side}", "")) for side in ("width", "height"))
        if min(width, height) < 1:
            raise ValueError(f"invalid size {width}×{height}")
        chains: dict[str, list[list[int]]] = {}
        for thing in root.iter("object"):
            boxes = [
                [int(box.findtext(side, "")) for side in ("xmin", "ymin", "xmax", "ymax")]
                for box in thing.iter("bndbox")
            ]
            for name in thing.iter("name"):
                chains.setdefault(name.text or "", []).extend(boxes)
    except ElementTree.ParseError as error:
        raise DataError(f"is not whole XML: {error}", path, error.position[0]) from None
    except ValueError as error:
        expected = "size and object/bndbox with whole numbers"
        why = f"is not an Entities annotation ({expected}): {error}"
        raise DataError(why, path) from None
    return width, height, chains


def _of_entities(file: str, suffix: str) -> bool:
    """Return whether a file is of the data set, and not one that macOS left there (`._1.txt`)."""
    return file.endswith(suffix) and not file.startswith(".") and not os.path.dirname(file)


def flickr30k_entities(folder: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield captions with phrase spans and boxes from a folder of Flickr30k Entities.

    It holds `Sentences/*.txt` and `Annotations/*.xml`. Rows: {"image", "text", "width", "height",
    "phrases": [{"start", "end", "type", "id", "boxes"}]}. Chain 0 (`notvisual`) and chains without
    a box have an empty list.
    """
    sentences = Folder(Path(folder, "Sentences"))
    annotations = Folder(Path(folder, "Annotations"))
    texts = [file for file in sentences.files if _of_entities(file, ".txt")]
    annotated = {file[:-4] for file in annotations.files if _of_entities(file, ".xml")}
    if not texts:
        why = "holds no captions; expected the .txt files of Flickr30k Entities"
        raise DataError(why, sentences.path, code=Exit.NO_INPUT)
    unpaired = annotated - {file[:-4] for file in texts}
    tally.left_out["annotation without sentences"] += len(unpaired)
    for name in texts:
        file = sentences.path / name
        stem = name[:-4]
        try:
            width, height, chains = parse_boxes(annotations.path / f"{stem}.xml")
        except DataError as error:
            tally.bad(error)
            continue
        for number, line in enumerate(read_lines(file), 1):
            try:
                text, phrases = parse_entities(line)
            except ValueError as error:
                tally.bad(DataError(str(error), file, number))
                continue
            yield {
                "image": f"{stem}.jpg",
                "text": text,
                "width": width,
                "height": height,
                "phrases": [p | {"boxes": chains.get(p["id"], [])} for p in phrases],
            }


# ------------------------------------------------------------------------------ COCO, Visual Genome


def _get(item: Any, key: str, kind: type, path: str | Path, location: str) -> Any:
    """Return `item[key]` of the expected type; a caption loses its line end and nothing else."""
    value = item.get(key) if isinstance(item, dict) else None
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
    locations: dict[int, str] = field(default_factory=dict)  # annotation id -> its first one

    def add(self, key: str, item: Any, location: str) -> None:
        """Take in one item of the list `key`.

        Raises:
            DataError: it is bad.
        """
        if key == "images":
            self._add_image(item, location)
        elif key == "categories":
            number = _get(item, "id", int, self.path, location)
            self.names[number] = _get(item, "name", str, self.path, location)
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
        self.kind = kind
        image = _get(item, "image_id", int, self.path, location)
        self.values.setdefault(image, []).append(value)


def coco(path: str | Path, tally: Tally, drop_crowd: bool = False) -> Iterator[Row]:
    """Yield captions (of `captions_*.json`) or boxes (of `instances_*.json`) in image order.

    Rows: {"image", "text"}, or {"image", "width", "height", "boxes": [[x1, y1, x2, y2]…],
    "labels": […], "crowd": [0 or 1…]}, one per image, also for images without an instance. The
    image is the official file name.
    """
    file = _Coco(path)
    for key, index, item in json_items(path):
        try:
            file.add(key, item, f"{key}[{index}]")
        except DataError as error:
            tally.bad(error)
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


def _instance(item: Row, path: str | Path, location: str) -> tuple[list[float], int, int]:
    box = _get(item, "bbox", list, path, location)
    good = len(box) == 4 and all(type(v) in (int, float) and abs(v) < 1e9 for v in box)
    if not good or min(box[2:]) < 0:
        why = f'{location}: "bbox" is {box!r:.60}, expected [x, y, width, height]'
        raise DataError(why, path)
    x, y, width, height = box
    category = _get(item, "category_id", int, path, location)
    crowd = int(bool(item.get("iscrowd", 0)))
    return [x, y, round(x + width, 2), round(y + height, 2)], category, crowd


def vcr(annotations: Iterable[str | Path], folder: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield the boxes of VCR's pictures, each once, in the order of the questions.

    Rows: {"image", "width", "height", "boxes": [[x1, y1, x2, y2]…], "confidence": […],
    "labels": […]}, the boxes in the order in which questions number their objects. The image is
    the official `img_fn`.

    Args:
        annotations: train.jsonl, val.jsonl, test.jsonl.
        folder: vcr1images, which holds each picture's metadata.
        tally: handles bad items.
    """
    seen = set[str]()
    keys = {"img_fn": str, "metadata_fn": str, "objects": list}
    for path in annotations:
        for line, row in read_jsonl(path, keys):
            if row["img_fn"] in seen:
                continue
            seen.add(row["img_fn"])
            try:
                yield _vcr_boxes(row, Path(folder, row["metadata_fn"]), path, line)
            except DataError as error:
                tally.bad(error)


def _vcr_boxes(row: Row, file: Path, path: str | Path, line: int) -> Row:
    """Return the boxes of a VCR row's picture from its metadata in `file`."""
    if not file.exists():
        why = f"the metadata of its picture, {file}, does not exist"
        raise DataError(why, path, line, Exit.NO_INPUT)
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
    for key, index, item in json_items(path):
        location = f"{key}[{index}]"
        try:
            number = _get(item, "image_id", int, path, location)
            url = _get(item, "url", str, path, location)
            if number in seen:
                raise DataError(f"{location}: duplicate image_id {number}", path)
        except DataError as error:
            tally.bad(error)
            continue
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

    Args:
        path: the official file.
        images: by their number.
        tally: handles bad items; counts regions of other images.
    """
    for key, index, item in json_items(path):
        location = f"{key}[{index}]"
        try:
            regions = _get(item, "regions", list, path, location)
            number = _get(item, "id", int, path, location)
        except DataError as error:
            tally.bad(error)
            continue
        if number not in images:
            tally.left_out["region of an image left out"] += len(regions)
            continue
        for nth, region in enumerate(regions):
            try:
                phrase = _get(region, "phrase", str, path, f"{location}.regions[{nth}]")
            except DataError as error:
                tally.bad(error)
            else:
                yield images[number] | {"text": phrase}


# ------------------------------------------------------------------ captions of pictures on the web


def conceptual_captions(path: str | Path, tally: Tally, prefix: str) -> Iterator[Row]:
    """Yield {"image", "text", "url"} of a Conceptual Captions file: `CAPTION<tab>URL`.

    The image is PREFIX/LINE NUMBER.
    """
    for number, line in enumerate(read_lines(path), 1):
        text, tab, url = line.rpartition("\t")
        if not tab or "://" not in url:
            why = f"expected the caption, a tab, and a URL, got {line!r:.60}"
            tally.bad(DataError(why, path, number))
        else:
            yield {"image": f"{prefix}/{number}", "text": text, "url": url}


def sbu(path: str | Path, captions: str | Path | None, tally: Tally) -> Iterator[Row]:
    """Yield {"image", "text", "url"} of SBU: its two text files, line by line, or its JSON file.

    The image is `sbu/` and the file name in the URL, which on Flickr is unique.
    """
    if captions is None:
        columns: dict[str, list[Any]] = {"image_urls": [], "captions": []}
        for key, _, item in json_items(path):
            columns.get(key, []).append(item)
        urls, texts = columns["image_urls"], columns["captions"]
    else:
        urls, texts = list(read_lines(path)), list(read_lines(captions))
    if len(urls) != len(texts) or not urls:
        counts = f"{amount(len(urls), 'URL')} for {amount(len(texts), 'caption')}"
        raise DataError(f"{counts}; both must be the files of one release, whole", path)
    for number, (url, text) in enumerate(zip(urls, texts, strict=True), 1):
        name = url.rsplit("/", 1)[-1] if isinstance(url, str) and "://" in url else ""
        if not name or not isinstance(text, str):
            why = f"expected a URL and a text, got {url!r:.60} with the caption {text!r:.40}"
            tally.bad(DataError(why, path, number))
        else:
            yield {"image": f"sbu/{name}", "text": text.rstrip("\r\n"), "url": url}
