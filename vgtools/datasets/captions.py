"""Captioned pictures: Flickr8k, Flickr30k Entities, Conceptual Captions, SBU."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from vgtools.datasets.rows import Folder, Row
from vgtools.io.errors import DataError, Exit, Tally, amount
from vgtools.io.json_items import json_items
from vgtools.io.streams import open_read, read_lines


def flickr8k(path: str | Path, tally: Tally) -> Iterator[Row]:
    """Yield the captions of a `Flickr8k.token.txt` (or Flickr30k's `results_20130124.token`).

    Its lines are `IMAGE#N<tab>TEXT`. The official file calls one photo `….jpg.1`; the stray `.1` is
    removed.
    """
    seen: dict[str, int] = {}
    for number, line in enumerate(read_lines(path, tally.text), 1):
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
        # Spans are counted in the text without brackets, as far as it is built by now.
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
    """Return whether a file is of the data set."""
    return file.endswith(suffix) and not os.path.dirname(file)


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
        for number, line in enumerate(read_lines(file, tally.text), 1):
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


def conceptual_captions(path: str | Path, tally: Tally, prefix: str) -> Iterator[Row]:
    """Yield {"image", "text", "url"} of a Conceptual Captions file: `CAPTION<tab>URL`.

    The image is PREFIX/LINE NUMBER.
    """
    for number, line in enumerate(read_lines(path, tally.text), 1):
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
        urls = columns["image_urls"]
        texts = columns["captions"]
    else:
        urls = list(read_lines(path, tally.text))
        texts = list(read_lines(captions, tally.text))
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
