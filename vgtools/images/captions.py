"""Captions that come with images: in files of the same name, in a tar or next to them.

A sample of a WebDataset is the files of one name up to its first point: `00003.jpg`, `00003.txt`,
`00003.json`. Captions are the lines of its `.txt`, or else "caption" of its `.json`, or else the
row of its key in the Parquet file that img2dataset writes next to a tar; "url" and "license" of
these are kept. The rows of a table of images have theirs in "text" or "caption".

Source: the forms of img2dataset and of clip-retrieval.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from vgtools.images.sources import ImageError, is_picture, is_tar, members
from vgtools.io.errors import DataError, Tally, TextStats
from vgtools.io.names import is_separated, is_table
from vgtools.io.remote import file_size
from vgtools.io.splits import split_of
from vgtools.io.streams import decode, open_read
from vgtools.io.tables import holds_pictures, table_rows

RIGHTS = ("url", "license")
_TEXTS = (".txt", ".json")
Row = dict[str, str]


class _Captioned(NamedTuple):
    """The images and captions of a key."""

    images: list[str]
    found: Mapping[str, bytes]  # contents by suffix
    facts: Mapping[str, Any]  # instead of a `.json`
    place: str


def may_have_captions(place: str) -> bool:
    """Return whether captions can come with images: in a folder, a tar, a table that holds them."""
    if place == "-" or is_separated(place):
        return False
    return os.path.isdir(place) or (holds_pictures(place) if is_table(place) else is_tar(place))


def captions(
    places: Iterable[str], ids: Iterable[str], tally: Tally | None = None
) -> Iterator[Row]:
    """Yield {"image", "text"}, and "url" and "license" where known, of the images of places.

    Args:
        places: folders, tars and tables.
        ids: images that count, in the order of the places; a folder is asked for them in theirs.
        tally: handles a `.json` that is not an object, and a binary `.txt`; counts lines that are
            not UTF-8.

    Raises:
        DataError: a tar or a table is damaged, or a caption cannot be read (65).
    """
    tally = tally or Tally()
    left = dict.fromkeys(ids)
    for place in places:
        if not left:
            return
        here = list[str]()
        if is_table(place):
            for row in table_rows(place):
                if (image := row["image"]) in left:
                    here.append(image)
                    yield from _captioned(image, _lines(row.get("text", row.get("caption"))), row)
        else:
            read = _of_folder if os.path.isdir(place) else _of_tar
            for sample in read(place, left):
                here += sample.images
                with tally.of_item():
                    yield from _rows(sample, tally.text)
        # With --limit a later place may have an image of the same name, which was not taken.
        for image in here:
            left.pop(image, None)


def _lines(texts: object) -> list[str]:
    entries = texts if isinstance(texts, list) else [texts]
    return [text for text in entries if isinstance(text, str)]


def _of_folder(root: str, ids: Iterable[str]) -> Iterator[_Captioned]:
    for image in ids:
        stem = os.path.splitext(os.path.join(root, image))[0]
        if not os.path.isfile(os.path.join(root, image)):
            continue  # it is in another place
        found = {}
        for suffix in _TEXTS:
            if os.path.isfile(stem + suffix):
                with open_read(stem + suffix) as stream:
                    found[suffix] = stream.read()
        yield _Captioned([image], found, {}, stem)


def _of_tar(path: str, ids: Container[str]) -> Iterator[_Captioned]:
    """Yield the samples of a tar, whose files follow one another."""
    beside = _Beside(path)
    key = ""
    images = list[str]()
    found = dict[str, bytes]()
    seen = set[str]()
    for name, _, load in members(path, _counts, Counter()):
        stem, suffix = _split(name)
        if stem != key:
            if stem in seen:
                why = f"{name!r:.80}: the files of {stem!r:.80} do not follow one another"
                raise DataError(f"{why}; pack them in order: tar --sort=name -cf X.tar …", path)
            seen.add(stem)
            yield _Captioned(images, found, beside.row(key, found), f"{path}: {key}")
            key = stem
            images = []
            found = {}
        if is_picture(name):
            images += [name] if name in ids else []
            continue
        try:
            found[suffix] = load()
        except ImageError as error:
            raise DataError(f"{name!r:.80}: {error}", path) from None
    yield _Captioned(images, found, beside.row(key, found), f"{path}: {key}")


def _counts(name: str) -> bool:
    return is_picture(name) or _split(name)[1] in _TEXTS


def _split(name: str) -> tuple[str, str]:
    """Return the key of a member, and its suffix from the first point on."""
    folder, slash, file = name.rpartition("/")
    stem, point, suffix = file.partition(".")
    return f"{folder}{slash}{stem}", (point + suffix).lower()


class _Beside:
    """The Parquet file next to a tar, read when a sample lacks its `.json`."""

    def __init__(self, tar: str) -> None:
        self._path = f"{tar.removesuffix('.tar')}.parquet"
        self._rows: dict[str, Mapping[str, Any]] | None = None

    def row(self, key: str, found: Container[str]) -> Mapping[str, Any]:
        if not key or ".json" in found:
            return {}
        if self._rows is None:
            known = file_size(self._path) is not None
            rows = table_rows(self._path) if known else iter(())
            self._rows = {str(row.get("key")): row for row in rows}
        return self._rows.get(key, {})


def _rows(sample: _Captioned, stats: TextStats) -> Iterator[Row]:
    """Yield a row per image and caption of a sample."""
    images, found, facts, place = sample
    if ".json" in found:
        try:
            own = orjson.loads(found[".json"])
        except orjson.JSONDecodeError as error:
            raise _bad(f"not valid JSON: {error}", f"{place}.json") from None
        if not isinstance(own, dict):
            raise _bad(f"expected a JSON object, got {type(own).__name__}", f"{place}.json")
        facts = own
    if b"\0" in found.get(".txt", b""):
        raise _bad("is binary, expected a caption", f"{place}.txt")
    texts = found[".txt"].split(b"\n") if ".txt" in found else []
    lines = [decode(raw, number == 0, stats).strip() for number, raw in enumerate(texts)]
    if not any(lines):
        lines = _lines(facts.get("caption"))
    for image in images:
        yield from _captioned(image, lines, facts)


def _bad(why: str, file: str) -> DataError:
    return DataError(f"{why}; mend it, or leave it out with --on-error skip", file)


def _captioned(image: str, lines: Iterable[str], facts: Mapping[str, Any]) -> Iterator[Row]:
    rights = {name: facts[name] for name in RIGHTS if isinstance(facts.get(name), str)}
    for line in filter(None, map(str.strip, lines)):
        yield {"image": image, "text": line, **rights, **split_of(facts)}
