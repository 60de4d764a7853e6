"""Rows as a fragment of HTML for a notebook: pictures above tokens, pictures of texts, heat.

A fragment has its own style and no script; pictures are in it. A notebook may be shown by a viewer
that drops the style: the pictures keep their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jinja2

from vgtools.images.rights import open_rights
from vgtools.reports import located, retrieved, vokens
from vgtools.reports.page import ImageFile, credit, data_uri, locate, readable
from vgtools.reports.vokens import LIKELY, BankPictures, ShownBank

_SIDE = 96  # px of a picture
_PHOTO = 260  # px of a photo with heat


@dataclass
class ShownRows:
    """How rows are drawn.

    Args:
        ids: the images that they count; None where that is not known.
        images: where the pictures are, as `page.locate` takes it; None: none are drawn.
        probable: scores of vokens are probabilities; None where that is not known.
        manifest: the bank's.
        index: file of the bank, whose list of licences is next to it.
    """

    ids: Sequence[str] | None = None
    images: str | None = None
    probable: bool | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    index: str | None = None
    _files: dict[str, ImageFile] = field(default_factory=dict, repr=False)
    _sought: set[str] = field(default_factory=set, repr=False)

    @cached_property
    def bank(self) -> ShownBank | None:
        """The bank, with the licences of its images."""
        if self.ids is None:
            return None
        rights = {} if self.index is None else open_rights(self.index, self.manifest)
        return ShownBank(self.ids, self.manifest, rights)

    def pictures(self, bank: ShownBank, ids: Iterable[str]) -> BankPictures:
        """Return the pictures of some ids of a bank, each looked for once."""
        lacking = {*ids} - self._sought
        if lacking and self.images is not None:
            self._files |= locate(self.images, lacking)
            self._sought |= lacking
        return BankPictures(bank, self._files)


def strip(rows: Sequence[Mapping[str, Any]], shown: ShownRows, first: int = 1) -> str:
    """Return rows of one kind as a fragment of HTML.

    Args:
        rows: rows of `vg vokenize`, `vg retrieve` or `vg locate`.
        shown: how they are drawn.
        first: number of the first.

    Raises:
        DataError: a row is not as these commands write it, or the images cannot be found.
    """
    numbered = enumerate(map(dict, rows), first)
    keys = rows[0].keys() if rows else {"vokens"}
    draw = _vokens if "vokens" in keys else _heat if "heat" in keys else _images
    loader = jinja2.PackageLoader("vgtools.reports", "assets")
    pages = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    told = "" if shown.images is None else readable(credit(shown.images))
    return pages.get_template("strip.html").render(rows=draw(numbered, shown), credit=told)


class StripPart(NamedTuple):
    """A piece of a text with its picture."""

    text: str
    name: str | None = None  # the picture's; None: the piece has none
    uri: str | None = None  # None: it cannot be shown
    score: float | None = None
    low: bool = False  # more probably wrong than right
    share: int | None = None  # its score as percent of the range
    large: bool = False  # a photo in its own shape


def _tile(pictures: BankPictures | None, row: int, text: str, score: float | None) -> StripPart:
    """Return a row of a bank with the text below it."""
    if pictures is None:
        return StripPart(text, str(row), None, score)
    # Its content in words, and its licence, as far as they are known.
    name = ", ".join(filter(None, (pictures.bank.ids[row], pictures.name(row))))
    return StripPart(text, readable(name), pictures.uri(row, _SIDE), score)


def _bank(shown: ShownRows, rows: Iterable[int]) -> BankPictures | None:
    bank = shown.bank
    return None if bank is None else shown.pictures(bank, [bank.ids[row] for row in rows])


def _vokens(numbered: Iterable[tuple[int, dict[str, Any]]], shown: ShownRows) -> list[Any]:
    """Return the tokens of texts with their pictures."""
    count = None if shown.ids is None else len(shown.ids)
    sentences = [*vokens.read_sentences("rows", count, numbered)]
    pictures = _bank(shown, vokens.used_rows(sentences, 1))
    scores = [t.score for s in sentences for t in s.tokens if t.score is not None]
    low = 0.0 if shown.probable else min(scores, default=0.0)
    span = (1.0 if shown.probable else max(scores, default=0.0)) - low

    def part(piece: Any) -> str | StripPart:
        if isinstance(piece, str):
            return piece
        text, voken, score, *_ = piece
        if voken is None:
            return StripPart(text)
        tile = _tile(pictures, voken, text, score)
        if score is None:
            return tile
        share = round(100 * (score - low) / span) if span else 100
        return tile._replace(share=share, low=bool(shown.probable) and score < LIKELY)

    return [{"parts": [part(piece) for piece in vokens.parts_of(one)]} for one in sentences]


def _images(numbered: Iterable[tuple[int, dict[str, Any]]], shown: ShownRows) -> list[Any]:
    """Return texts, and the pictures of each."""
    file = retrieved.RetrievedFile("rows", "", shown.bank)
    texts = [*retrieved.read_texts([file], iter(numbered))]
    pictures = _bank(shown, retrieved.used_rows(texts, 0))
    return [
        {
            "title": readable(text.text),
            "parts": [
                _tile(pictures, row, "" if score is None else f"{score:.2f}", score)
                for row, score in zip(text.hits[0].images, text.hits[0].scores, strict=True)
            ],
        }
        for text in texts
    ]


def _heat(numbered: Iterable[tuple[int, dict[str, Any]]], shown: ShownRows) -> list[Any]:
    """Return photos with the heat of a text on each."""
    found = [*located.read_found("rows", numbered)]
    bank = located.bank_of(found)
    pictures = shown.pictures(bank, bank.ids)
    number = {name: row for row, name in enumerate(bank.ids)}
    parts = []
    for each in found:
        photo = pictures.image(number[each.image], _PHOTO)
        painted = None if photo is None else located.paint(photo, each)
        uri = None if painted is None else data_uri(painted, "WEBP", quality=80, method=2)
        name = readable(each.image)
        parts.append(StripPart(readable(each.sought), name, uri, large=True))
    return [{"parts": parts}]
