"""Official data sets → the toolkit's rows: captions, phrase boxes, instance boxes, image lists.

Every parser is a generator of rows in the order of the official files. It drops nothing by itself: what a flag asks to
leave out, and what is bad and may be skipped, goes through a `Tally`, which counts it.
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

from vgtools.errors import amount
from vgtools.io import DataError, Exit, dumps, open_read, plain, read_json, read_jsonl, read_lines, storable
from vgtools.jsonstream import json_items
from vgtools.output import Output
from vgtools.sources import is_picture

Row = dict[str, Any]

# --------------------------------------------------------------------------------------- what is left out, what is written


@dataclass
class Tally:
    """What was left out and why, and how bad items are met.

    Args:
        skip: note a bad item and go on; otherwise the first one ends the command.
        most: with `skip`, give up after more bad items than this.
    """

    skip: bool = False
    most: int | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    errors: list[DataError] = field(default_factory=list)

    def bad(self, error: DataError) -> None:
        """Meet a bad item: raise it, or note it and go on."""
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
    """Write rows to a file or stdout, resumably, and say on stderr how many there are and what was left out.

    The suffix chooses the form: `.txt` (and stdout for a corpus, `what` being "lines" or "sentences") takes the text alone,
    anything else one JSON object a line. A resumed run parses from the start, compares what it would have written, and
    writes only what is new. Further keywords go into the manifest.

    Returns:
        The number of rows.
    """
    bare = path.removesuffix(".gz").removesuffix(".zst")
    as_text = bare.endswith(".txt") or (what in ("lines", "sentences") and not bare.endswith(".jsonl"))
    stream = path == "-" or (os.path.exists(path) and not os.path.isfile(path))
    files = [path] if stream or not tally.skip else [path, f"{bare.removesuffix('.jsonl')}.errors.jsonl"]
    digest, count = hashlib.sha256(), 0
    with Output(files, config, inputs=[str(i) for i in inputs], restart=restart) as out:
        done = int(out.state.get("rows", 0))
        for count, row in enumerate(rows, 1):
            data = f"{row['text']}\n".encode() if as_text else dumps(row)
            if out.complete:  # the rows are still drawn: the image list comes from them, and so do the counts
                continue
            digest.update(data)
            if count > done:
                out.write(data)
                if count % step == 0:
                    out.commit({"rows": count, "sha256": digest.hexdigest()})
            elif count == done and digest.hexdigest() != out.state["sha256"]:
                _changed(path)
        if count < done:
            _changed(path)
        if not out.complete:
            lines = [{"file": str(e.file or ""), "line": e.line, "error": e.why} for e in tally.errors]
            for line in lines if len(files) > 1 else ():
                out.write(dumps(line), 1)
            out.finish(kind=what, rows=count, left_out=dict(+tally.left_out), **facts)
    if not quiet:
        for error in tally.errors if stream else ():
            print(f"vg: skipped: {plain(error)}", file=sys.stderr)
        left = ", ".join(f"{reason}: {number:,}" for reason, number in tally.left_out.items() if number)
        fate = " (up to date)" if out.complete else ""
        said = f"vg prepare: {amount(count, what[:-1], what)} in {'stdout' if path == '-' else path}{fate}"
        print(said + f"; left out: {left}" * bool(left), file=sys.stderr)
    return count


def _changed(path: str) -> NoReturn:
    raise DataError("the input is not what it was when this output was begun; --restart starts over", path, code=Exit.CONFIG)


# ----------------------------------------------------------------------------------------------------- splits and photos


_SPLIT_LIST = re.compile(r"Flickr_8k\.(\w+)Images\.txt|(train|val|test)\.txt")


def read_splits(folder: str | Path) -> dict[str, str]:
    """Read the official lists of a folder (`Flickr_8k.trainImages.txt` …, or `train.txt` …): image -> split.

    Raises:
        DataError: no list there (66), or an image stands twice (65).
    """
    if not os.path.isdir(folder):
        raise DataError("is no folder; the one with the split lists was wanted", folder, code=Exit.NO_INPUT)
    found = (_SPLIT_LIST.fullmatch(name) for name in sorted(os.listdir(folder)))
    lists = {match[1] or match[2]: Path(folder, match[0]) for match in found if match}
    if not lists:
        raise DataError("holds no split list (Flickr_8k.trainImages.txt …, or train.txt …)", folder, code=Exit.NO_INPUT)
    splits: dict[str, str] = {}
    for split, path in lists.items():
        for number, name in enumerate(read_lines(path), 1):
            if name in splits:
                raise DataError(f"{name!r:.80} stands in the {splits[name]} list already", path, number)
            if name:
                splits[name] = split
    return splits


def with_split(rows: Iterable[Row], splits: Mapping[str, str], only: str | None, tally: Tally) -> Iterator[Row]:
    """Give each row its split, if a list names its image; keep `only` one split if asked to.

    Raises:
        DataError: `only` is no split of these lists (usage).
    """
    if only is not None and only not in splits.values():
        known = ", ".join(sorted(set(splits.values()))) or "none: --splits names the folder of the lists"
        raise DataError(f"--split {only}: no such split; there is {known}", code=Exit.USAGE)
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
    """The files of a folder and of those below it, found by path, name, stem, or the stem up to its `_`.

    The last is for Flickr, where `1000268201_693b08cb0e.jpg` and `1000268201.jpg` are one photo. Pictures come before others.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.used = Path(path), dict[str, str]()
        if not self.path.is_dir():
            raise DataError("is not a folder" if self.path.exists() else "does not exist", path, code=Exit.NO_INPUT)
        self.files = sorted(os.path.relpath(os.path.join(at, name), path) for at, _, names in os.walk(path) for name in names)
        self._names: dict[str, set[str]] = {}
        for file in self.files:
            stem = Path(file).stem
            for key in {file, os.path.basename(file), stem, stem.split("_")[0]}:
                self._names.setdefault(key, set()).add(file)

    def digest(self) -> str:
        """Return a hash of all names, sizes and times, by which an output knows that the folder changed."""
        facts = [(file, s.st_size, s.st_mtime_ns) for file in self.files for s in [os.lstat(self.path / file)]]
        return hashlib.sha256(repr(facts).encode()).hexdigest()

    def unused(self) -> int:
        """Return how many of the pictures no row has asked for; what lies beside them (VCR's metadata) is none."""
        return max(0, sum(map(is_picture, self.files)) - len(set(self.used.values())))

    def find(self, image: str) -> str:
        """Return the absolute path of an image's file.

        Raises:
            DataError: none (66) or several fit, or its name cannot be written down.
        """
        name = os.path.basename(image)
        for key in (image, name, Path(name).stem):
            found = self._names.get(key, set())
            found = set(filter(is_picture, found)) or found  # VCR's `1_x.json` beside `1_x.jpg`
            if len(found) == 1:
                path = os.path.abspath(self.path / min(found))
                if storable(path) != path:
                    raise DataError("has bytes in its name that are not UTF-8, which no list of images can hold", path)
                return path
            if found:
                raise DataError(f"{image!r:.80} is ambiguous: {' and '.join(sorted(found)[:2])} both fit", self.path)
        raise DataError(
            f"holds no photo {image!r:.80}; get it, or leave its rows out with --on-error skip", self.path, code=Exit.NO_INPUT
        )


def with_photos(rows: Iterable[Row], photos: Folder, tally: Tally) -> Iterator[Row]:
    """Keep the rows whose photo is there, and bring their boxes to its real size.

    Data sets are often passed on with smaller photos: a row's "width" and "height" say what its boxes refer to, before and
    after. `photos.used` collects image -> path in order.
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


def _scaled(row: Row, path: str) -> Row:
    """Return a row with its boxes in the pixels of the photo at `path`."""
    width, height = _photo_size(path)
    x, y = width / row["width"], height / row["height"]
    if abs(width - row["width"] * y) > 2 + 0.02 * width:  # rounding to whole pixels moves a side by less
        raise DataError(
            f"is {width}×{height}, its annotation says {row['width']}×{row['height']}: another picture, or cropped", path
        )
    if x == y == 1:
        return row

    def scale(boxes: list[list[float]]) -> list[list[float]]:
        return [[round(value * by, 2) for value, by in zip(box, (x, y, x, y), strict=True)] for box in boxes]

    changed: Row = {"width": width, "height": height}
    if "boxes" in row:
        changed["boxes"] = scale(row["boxes"])
    if "phrases" in row:
        changed["phrases"] = [phrase | {"boxes": scale(phrase["boxes"])} for phrase in row["phrases"]]
    return row | changed


def listing(rows: Iterable[Row], images: dict[str, Row], photos: Folder | None) -> Iterator[Row]:
    """Pass rows on and collect their images on the way, as rows of an image list: {"image", "path" or "url" or both}."""
    for row in rows:
        image = row["image"]
        if image not in images:
            path = {"path": photos.used[image]} if photos is not None else {}
            images[image] = {"image": image} | path | ({"url": row["url"]} if "url" in row else {})
        yield row


# ------------------------------------------------------------------------------------------------------- Flickr8k, Flickr30k


def flickr8k(path: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield the captions of a `Flickr8k.token.txt` (or Flickr30k's `results_20130124.token`): `IMAGE#N<tab>TEXT`.

    The official file calls one photo `….jpg.1`; the stray `.1` is taken off.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(read_lines(path), 1):
        key, tab, text = line.partition("\t")
        image, _, nth = key.rpartition("#")
        if not tab or not image or not nth.isdecimal():
            tally.bad(DataError(f"found {line!r:.60}, wanted IMAGE#NUMBER, a tab, and the caption", path, number))
        elif key in seen:
            tally.bad(DataError(f"{key!r:.80} stands on line {seen[key]} already", path, number))
        else:
            seen[key] = number
            yield {"image": re.sub(r"(\.jpe?g)\.\d$", r"\1", image), "text": text}


_PHRASE = re.compile(r"\[/EN#(\d+)/(\S+) ([^\[\]]*)\]")


def parse_entities(line: str) -> tuple[str, list[Row]]:
    """Return the raw caption of an Entities sentence, and its phrases with their spans in it.

    `[/EN#5/people A man] runs .` gives `A man runs .` and {"start": 0, "end": 5, "type": "people", "id": "5"}. Several types
    stay joined by `/`, as in the file.

    Raises:
        ValueError: a bracket is left open.
    """
    text, phrases, position = "", list[Row](), 0
    for match in _PHRASE.finditer(line):
        text += line[position : match.start()]
        phrases.append({"start": len(text), "end": len(text) + len(match[3]), "type": match[2], "id": match[1]})
        text += match[3]
        position = match.end()
    text += line[position:]
    if "[/EN#" in text:
        raise ValueError(f"a phrase is torn in {text[text.index('[/EN#') :]!r:.60}; wanted [/EN#CHAIN/TYPE WORDS]")
    return text, phrases


class _NoDoctype(ElementTree.TreeBuilder):
    """Refuse a document type before it can declare entities, which can grow without bound or name files."""

    def doctype(self, name: str, public: str | None, system: str | None) -> NoReturn:
        raise ValueError("has a DOCTYPE, which annotations do not have; refused, since it can declare entities")


def parse_boxes(path: str | Path) -> tuple[int, int, dict[str, list[list[int]]]]:
    """Return width, height and chain id -> boxes of an Entities annotation; scene and nobox chains have none.

    Boxes are as annotated: pixels counted from 1, both ends inside.

    Raises:
        DataError: not XML, a DOCTYPE, or a number is missing; with the file and, for torn XML, the line.
    """
    try:
        with open_read(path) as stream:
            root = ElementTree.parse(stream, ElementTree.XMLParser(target=_NoDoctype())).getroot()
        width, height = (int(root.findtext(f"size/{side}", "")) for side in ("width", "height"))
        if min(width, height) < 1:
            raise ValueError(f"the size {width}×{height} cannot be")
        chains: dict[str, list[list[int]]] = {}
        for thing in root.iter("object"):
            boxes = [[int(box.findtext(side, "")) for side in ("xmin", "ymin", "xmax", "ymax")] for box in thing.iter("bndbox")]
            for name in thing.iter("name"):
                chains.setdefault(name.text or "", []).extend(boxes)
    except ElementTree.ParseError as error:
        raise DataError(f"is not whole XML: {error}", path, error.position[0]) from None
    except ValueError as error:
        raise DataError(f"is not an Entities annotation (size and object/bndbox with whole numbers): {error}", path) from None
    return width, height, chains


def _of_entities(file: str, suffix: str) -> bool:
    """Say whether a file is one of the data set's, and not what a Mac leaves beside it (`._1.txt`)."""
    return file.endswith(suffix) and not file.startswith(".") and not os.path.dirname(file)


def flickr30k_entities(folder: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield captions with phrase spans and boxes from a folder that holds `Sentences/*.txt` and `Annotations/*.xml`.

    Rows: {"image", "text", "width", "height", "phrases": [{"start", "end", "type", "id", "boxes"}]}. Chain 0 (`notvisual`) and
    chains without a box have an empty list.
    """
    sentences, annotations = (Folder(Path(folder, name)) for name in ("Sentences", "Annotations"))
    texts, boxes = ([f for f in x.files if _of_entities(f, end)] for x, end in ((sentences, ".txt"), (annotations, ".xml")))
    if not texts:
        raise DataError(
            "holds no captions; the .txt files of Flickr30k Entities were wanted", sentences.path, code=Exit.NO_INPUT
        )
    tally.left_out["annotation without sentences"] += len({f[:-4] for f in boxes} - {f[:-4] for f in texts})
    for name in texts:
        file, stem = sentences.path / name, name[:-4]
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
                "phrases": [phrase | {"boxes": chains.get(phrase["id"], [])} for phrase in phrases],
            }


# ------------------------------------------------------------------------------------------------------- COCO, Visual Genome


def _get(item: Any, key: str, kind: type | tuple[type, ...], path: str | Path, where: str) -> Any:
    """Return `item[key]` of the wanted type; a caption loses its line end and nothing else."""
    value = item.get(key) if isinstance(item, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        found = f"{value!r:.40}" if isinstance(item, dict) and key in item else "missing"
        raise DataError(f'{where}: "{key}" is {found}, wanted {wanted}', path)
    if isinstance(value, str):
        if not value.isascii() and re.search("[\ud800-\udfff]", value):
            raise DataError(f'{where}: "{key}" holds half a character (a lone surrogate)', path)
        return value.rstrip("\r\n")
    return value


def coco(path: str | Path, tally: Tally, drop_crowd: bool = False) -> Iterator[Row]:
    """Yield captions (of `captions_*.json`) or boxes (of `instances_*.json`), image by image in the file's order.

    Rows: {"image", "text"}, or {"image", "width", "height", "boxes": [[x1, y1, x2, y2]…], "labels": […], "crowd": [0 or 1…]},
    one for each image, those without an instance too. The image is the official file name.
    """
    images: dict[int, Row] = {}
    names: dict[int, str] = {}
    found: dict[int, list[Any]] = {}
    first: dict[int, str] = {}
    kind = ""
    for key, index, item in json_items(path):
        where = f"{key}[{index}]"
        try:
            if key == "images":
                number = _get(item, "id", int, path, where)
                if number in images:
                    raise DataError(f"{where}: the id {number} is there already", path)
                sides = {side: _get(item, side, int, path, where) for side in ("width", "height")}
                if not 1 <= min(sides.values()) <= max(sides.values()) < 1e9:
                    raise DataError(f"{where}: the size {sides} cannot be", path)
                images[number] = {"image": _get(item, "file_name", str, path, where)} | sides
            elif key == "categories":
                names[_get(item, "id", int, path, where)] = _get(item, "name", str, path, where)
            elif key == "annotations":
                now = "captions" if isinstance(item, dict) and "caption" in item else "instances"
                if kind and now != kind:
                    wanted = "caption" if kind == "captions" else "bbox"
                    raise DataError(f'{where}: no "{wanted}" here, as all before have', path)
                number = _get(item, "id", int, path, where)
                if first.setdefault(number, where) != where:
                    raise DataError(f"{where}: the id {number} is that of {first[number]} already", path)
                value = _get(item, "caption", str, path, where) if now == "captions" else _instance(item, path, where)
                kind = now
                found.setdefault(_get(item, "image_id", int, path, where), []).append(value)
        except DataError as error:
            tally.bad(error)
    if not kind:
        raise DataError('has no "annotations"; a captions_*.json or instances_*.json was wanted', path)
    for stranger in sorted(found.keys() - images.keys()):
        tally.bad(DataError(f'annotations of image {stranger}, which "images" does not have', path))
    for number, image in images.items():
        if kind == "captions":
            if number not in found:
                tally.left_out["image without a caption"] += 1
            yield from ({"image": image["image"], "text": text} for text in found.get(number, ()))
            continue
        here = [(b, names.get(c, ""), crowd) for b, c, crowd in found.get(number, ()) if not (drop_crowd and crowd)]
        tally.left_out["crowd box"] += len(found.get(number, ())) - len(here)
        boxes, labels, crowds = (list(column) for column in zip(*here, strict=True)) if here else ([], [], [])
        if "" in labels:
            tally.bad(DataError(f'image {number} has a category_id that "categories" does not have', path))
            continue
        yield image | {"boxes": boxes, "labels": labels, "crowd": crowds}


def _instance(item: Row, path: str | Path, where: str) -> tuple[list[float], int, int]:
    box = _get(item, "bbox", list, path, where)
    if len(box) != 4 or not all(type(v) in (int, float) and abs(v) < 1e9 for v in box) or min(box[2:]) < 0:
        raise DataError(f'{where}: "bbox" is {box!r:.60}, wanted [x, y, width, height]', path)
    x, y, width, height = box
    crowd = int(bool(item.get("iscrowd", 0)))
    return [x, y, round(x + width, 2), round(y + height, 2)], _get(item, "category_id", int, path, where), crowd


def vcr(annotations: Iterable[str | Path], folder: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield the boxes of VCR's pictures, each once, in the order of the questions.

    Rows: {"image", "width", "height", "boxes": [[x1, y1, x2, y2]…], "confidence": […], "labels": […]}, the boxes in the order
    in which questions number their objects. The image is the official `img_fn`.

    Args:
        annotations: train.jsonl, val.jsonl, test.jsonl.
        folder: vcr1images, where each picture's metadata lies.
        tally: of what is bad.
    """
    seen = set[str]()
    for path in annotations:
        for line, row in read_jsonl(path, {"img_fn": str, "metadata_fn": str, "objects": list}):
            if row["img_fn"] in seen:
                continue
            seen.add(row["img_fn"])
            file = Path(folder, row["metadata_fn"])
            try:
                if not file.exists():
                    raise DataError(f"the metadata of its picture, {file}, is not there", path, line, Exit.NO_INPUT)
                facts = read_json(file, "the metadata of a picture")
                sides = {side: _get(facts, side, int, file, "the picture") for side in ("width", "height")}
                boxes, names = (_get(facts, key, list, file, "the picture") for key in ("boxes", "names"))
                if names != row["objects"]:
                    raise DataError(f'"objects" is {row["objects"]!r:.60}, {file} has {names!r:.60}', path, line)
                good = (isinstance(b, list) and len(b) == 5 and all(type(v) in (int, float) for v in b) for b in boxes)
                if len(boxes) != len(names) or not all(good):
                    raise DataError(f'"boxes" must hold [x1, y1, x2, y2, confidence] for each of {len(names)} names', file)
            except DataError as error:
                tally.bad(error)
                continue
            found = {"boxes": [box[:4] for box in boxes], "confidence": [box[4] for box in boxes], "labels": names}
            yield {"image": row["img_fn"]} | sides | found


def visual_genome(path: str | Path, tally: Tally, keep_coco: bool = False, limit: int | None = None) -> Iterator[Row]:
    """Yield {"image", "url"} of the images in `image_data.json`, those that are in COCO left out, up to `limit`.

    Ids are `vg_nococo/ID`; with `keep_coco` all images stay and are `vg/ID`.

    Source: Tan & Bansal 2020 (Vokenization), section 4.2: the first 50,000 images that are not in COCO are the vokens.
    """
    seen: set[int] = set()
    for key, index, item in json_items(path):
        where = f"{key}[{index}]"
        try:
            number, url = _get(item, "image_id", int, path, where), _get(item, "url", str, path, where)
            if number in seen:
                raise DataError(f"{where}: the image_id {number} is there already", path)
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
        yield {"image": f"vg/{number}" if keep_coco else f"vg_nococo/{number}", "url": url}


def visual_genome_regions(path: str | Path, images: Mapping[int, Row], tally: Tally) -> Iterator[Row]:
    """Yield a caption for each region of `region_descriptions.json` whose image (by its number) is among `images`."""
    for key, index, item in json_items(path):
        where = f"{key}[{index}]"
        try:
            regions = _get(item, "regions", list, path, where)
            number = _get(item, "id", int, path, where)
        except DataError as error:
            tally.bad(error)
            continue
        if number not in images:
            tally.left_out["region of an image left out"] += len(regions)
            continue
        for nth, region in enumerate(regions):
            try:
                phrase = _get(region, "phrase", str, path, f"{where}.regions[{nth}]")
            except DataError as error:
                tally.bad(error)
            else:
                yield images[number] | {"text": phrase}


# --------------------------------------------------------------------------------------------- captions of pictures on the web


def conceptual_captions(path: str | Path, tally: Tally, prefix: str) -> Iterator[Row]:
    """Yield {"image", "text", "url"} of a Conceptual Captions file: `CAPTION<tab>URL`; the image is PREFIX/LINE NUMBER."""
    for number, line in enumerate(read_lines(path), 1):
        text, tab, url = line.rpartition("\t")
        if not tab or "://" not in url:
            tally.bad(DataError(f"found {line!r:.60}, wanted the caption, a tab, and a URL", path, number))
        else:
            yield {"image": f"{prefix}/{number}", "text": text, "url": url}


def sbu(path: str | Path, captions: str | Path | None, tally: Tally) -> Iterator[Row]:
    """Yield {"image", "text", "url"} of SBU: its two text files, line by line, or its one JSON file.

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
        found = f"{amount(len(urls), 'URL')} for {amount(len(texts), 'caption')}"
        raise DataError(f"{found}; both must be the files of one release, whole", path)
    for number, (url, text) in enumerate(zip(urls, texts, strict=True), 1):
        name = url.rsplit("/", 1)[-1] if isinstance(url, str) and "://" in url else ""
        if not name or not isinstance(text, str):
            tally.bad(DataError(f"found {url!r:.60} with the caption {text!r:.40}; wanted a URL and a text", path, number))
        else:
            yield {"image": f"sbu/{name}", "text": text.rstrip("\r\n"), "url": url}
