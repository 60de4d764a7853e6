"""Images that are asked for by their row: their names, captions and pictures."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from vgtools.io.errors import DataError, Exit
from vgtools.io.streams import read_jsonl
from vgtools.reports.vokens import BankPictures
from vgtools.serving.answers import REQUEST

SIDES = (160, 640)  # pixels of pictures
PAGE = 24  # images of one answer of `find`
_KEPT = 512  # pictures that are kept ready


class Gallery:
    """Images in rows.

    Args:
        ids: an id per row.
        pictures: pictures by row, or None where there are none to show.
        rows: those that `find` finds; None: all.
        captions: texts about some of the images, by id.
    """

    def __init__(
        self,
        ids: Sequence[str],
        pictures: BankPictures | None,
        rows: Iterable[int] | None = None,
        captions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.ids = ids
        self.pictures = pictures
        self._rows = range(len(ids)) if rows is None else [*rows]
        self._captions = captions or {}
        self.encoded = lru_cache(_KEPT)(self._encoded)

    def __len__(self) -> int:
        return len(self.ids)

    def row(self, text: str) -> int:
        """Return the row of a number.

        Raises:
            DataError: there is no such row (66).
        """
        count = len(self.ids)
        if not text.isdecimal() or not len(text) < 12 or not int(text) < count:
            why = f'"row" must be an integer from 0 to {count - 1}, got {text!r:.60}'
            raise DataError(why, REQUEST, code=Exit.NO_INPUT)
        return int(text)

    def named(self, image: str) -> int:
        """Return the row of an image.

        Raises:
            DataError: there is no such image (66).
        """
        row = self._row_of.get(image)
        if row is None:
            raise DataError(f"there is no image {image!r:.80}", REQUEST, code=Exit.NO_INPUT)
        return row

    @cached_property
    def _row_of(self) -> dict[str, int]:
        return {image: row for row, image in enumerate(self.ids)}

    def facts(self, row: int) -> dict[str, Any]:
        """Return the id, the name and the captions of a row."""
        image = self.ids[row]
        name = self.pictures.name(row) if self.pictures else ""
        captions = {"captions": self._captions.get(image, ())} if self._captions else {}
        return {"row": row, "image": image, "name": name, **captions}

    def find(self, text: str, first: int) -> dict[str, Any]:
        """Return the images whose id, name or captions have all words of a text, in their order.

        Args:
            text: words or parts of words.
            first: how many images are left out.
        """
        words = text.lower().split()
        described = zip(self._rows, self._described, strict=True)
        fits = [row for row, about in described if all(word in about for word in words)]
        shown = [self.facts(row) for row in fits[first : first + PAGE]]
        return {"count": len(fits), "images": shown}

    @cached_property
    def _described(self) -> list[str]:
        facts = map(self.facts, self._rows)
        return [
            "\n".join((one["image"], one["name"], *one.get("captions", ()))).lower()
            for one in facts
        ]

    def _encoded(self, row: int, side: int) -> tuple[str, bytes]:
        """Return the media type and the bytes of a picture.

        Raises:
            DataError: there is none (66).
        """
        if self.pictures is None:
            why = "no pictures are served; vg serve --images names where they are"
            raise DataError(why, code=Exit.NO_INPUT)
        uri = self.pictures.uri(row, side)
        if uri is None:
            why = f"{self.ids[row]}: {self.pictures.missing[row]}"
            raise DataError(why, code=Exit.NO_INPUT)
        head, _, data = uri.removeprefix("data:").partition(",")
        return head.removesuffix(";base64"), base64.b64decode(unquote_to_bytes(data))


def read_captions(path: str, images: Iterable[str]) -> dict[str, list[str]]:
    """Return the captions of some images.

    Args:
        path: rows with "image" and "text".
        images: ids; captions of others are left out.

    Raises:
        DataError: a bad row; or no caption is about any of the images.
    """
    known = frozenset(images)
    found = dict[str, list[str]]()
    for _, row in read_jsonl(path, {"image": str, "text": str}):
        if row["image"] in known:
            found.setdefault(row["image"], []).append(row["text"])
    if not found:
        raise DataError("has no caption of an image with regions", path)
    return found
