"""Maps of heat over photos as one HTML page, a contact sheet, or lines for a terminal or a pipe.

Source: Zhang et al. 2019 (Visual awareness), figure 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.images.maps import Located, read_heat
from vgtools.io.arrays import Array
from vgtools.io.errors import amount
from vgtools.reports.drawing import ACCENT, GREY, INK, first_fit
from vgtools.reports.page import data_uri, opening, photo_side, readable, render
from vgtools.reports.sheets import CAPTION, EDGE, WIDTH, Sheet, Tile
from vgtools.reports.terminal import Draw, photo
from vgtools.reports.vokens import BankPictures, ShownBank, cell
from vgtools.systems.visual_awareness.localisation import enlarged

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console

# --------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class LocatedQuery:
    """A query with its heat, and its result where it is known."""

    line: int
    located: Located
    hit: bool | None = None
    iou: float | None = None

    @property
    def image(self) -> str:
        """The id of its picture."""
        return self.located.query.image

    @property
    def sought(self) -> str:
        """The text that was looked for."""
        return self.located.query.sought

    @property
    def verdict(self) -> str:
        """Whether it was found, in words; "" where that is not known."""
        if self.iou is not None:
            return f"IoU {self.iou:.2f}"
        return "" if self.hit is None else "hit" if self.hit else "miss"


def read_found(
    path: str, rows: Iterable[tuple[int, dict[str, Any]]] | None = None
) -> Iterator[LocatedQuery]:
    """Yield the rows of `vg locate`, checked as `read_heat` does."""
    for line, located, row in read_heat(path, rows):
        hit = row.get("hit")
        iou = row.get("iou")
        yield LocatedQuery(
            line,
            located,
            hit if isinstance(hit, bool) else None,
            float(iou) if isinstance(iou, int | float) and not isinstance(iou, bool) else None,
        )


def bank_of(found: Sequence[LocatedQuery]) -> ShownBank:
    """Return the pictures that queries name, as a bank: heat rows need no index."""
    return ShownBank(list(dict.fromkeys(each.image for each in found)))


# ---------------------------------------------------------------------------------------- pictures

_FINE = 12  # pixels of an overlay per cell
# The lower part of a map's range is a veil, the upper part orange (red, green, blue, opacity).
_SCALE = np.array([0.0, 0.45, 0.7, 1.0])
_COLOURS = np.array(
    [[12, 14, 28, 0.42], [12, 14, 28, 0.12], [251, 146, 20, 0.46], [255, 88, 0, 0.74]]
)


def _coloured(share: Array) -> list[Array]:
    """Return red, green, blue (0 to 255) and opacity (0 to 1) of shares of a map's range."""
    return [np.interp(share, _SCALE, column) for column in _COLOURS.T]


def _enlarged(located: Located, fine: int) -> Array:
    """Return a map's shares of its range, at most `fine` and in all 512 pixels per side."""
    rows, columns = located.shape
    fine = max(1, min(fine, 512 // max(rows, columns)))
    return _shares(enlarged(located.heat.reshape(rows, columns), columns * fine, rows * fine))


def overlay(located: Located) -> Image:
    """Return a map as a picture with transparency, for the part of the photo that it covers."""
    from PIL import Image

    *colours, opacity = _coloured(_enlarged(located, _FINE))
    channels = np.stack([*colours, 255 * opacity], 2)
    pixels: Image.Image = Image.fromarray(channels.round().astype(np.uint8), "RGBA")
    return pixels


def _shares(heat: Array) -> Array:
    """Return heat from 0 to 1 of its range; 0 where it is the same everywhere."""
    low = heat.min()
    span = heat.max() - low
    return np.asarray((heat - low) / span) if span else np.zeros_like(heat)


def _corners(found: LocatedQuery, width: float, height: float) -> list[tuple[float, ...]]:
    """Return the boxes of a query in a photo of another size: left, top, width, height."""
    query = found.located.query
    if not query.boxes or query.size is None:
        return []
    x = width / query.size[0]
    y = height / query.size[1]
    return [(a * x, b * y, (c - a) * x, (d - b) * y) for a, b, c, d in query.boxes]


# --------------------------------------------------------------------------------------------- page

_PHOTOS = 12e6  # bytes of all photos of a page
_PER_CELL = 3  # pixels of a map per cell; the browser smooths and colours it


def page(
    found: Sequence[LocatedQuery],
    pictures: Sequence[BankPictures],
    title: str,
    *,
    more: bool = False,
    credit: str = "",
) -> bytes:
    """Return one HTML page: photos with the heat of all their queries, each photo in it once.

    Args:
        found: queries; all queries of a photo are shown together, by their texts.
        pictures: their photos, in one entry; missing photos are shown as placeholders.
        title: their title, for example the file's name.
        more: the file holds more than these.
        credit: whose the photos are and their licence.

    Source: Zhang et al. 2019 (Visual awareness), figure 4.
    """
    place = pictures[0]
    many = len(place.bank.ids)
    side = photo_side(many, 360, _PHOTOS)
    photos = [_photo(place, row, side) for row in range(many)]
    number = {name: row for row, name in enumerate(place.bank.ids)}
    of_photo = dict[int, list[LocatedQuery]]()
    for each in found:
        of_photo.setdefault(number[each.image], []).append(each)
    rows = [_row(group, row, photos[row]) for row, group in of_photo.items()]
    counts = [amount(len(found), "query", "queries"), amount(len(photos), "picture")]
    judged = [each.hit for each in found if each.hit is not None]
    if judged:
        counts.append(f"{sum(judged):,} of {len(judged):,} points are inside a box")
    first = opening(2 * len(group) for group in of_photo.values())
    start = {row["photo"] for row in rows[:first]}
    return render(
        "located",
        title,
        {
            "rows": rows,
            # The page has the photos of its first rows already.
            "photos": [
                photo | {"uri": ""} if row in start else photo for row, photo in enumerate(photos)
            ],
        },
        shared=["rows", "gallery"],
        credit=credit,
        more=more,
        counts=", ".join(counts),
        boxed=any(each.located.query.boxes for each in found),
        channels=_channels(),
        photos=photos,
        first=rows[:first],
        total=len(rows),
    )


def _channels() -> dict[str, str]:
    """Return the colours of a map as tables of an SVG filter: channel R, G, B, A to values."""
    # Steps of 0.05 meet every place where the colours turn.
    *colours, opacity = _coloured(np.linspace(0, 1, 21))
    values = [*(colour / 255 for colour in colours), opacity]
    return {
        name: " ".join(f"{value:.4g}" for value in column)
        for name, column in zip("RGBA", values, strict=True)
    }


def _photo(place: BankPictures, row: int, side: int) -> dict[str, Any]:
    """Return the values of a photo for the page."""
    small = place.image(row, side)
    uri = gone = ""
    size = (320, 240)
    if small is None:
        gone = readable(place.missing[row])
    else:
        uri = data_uri(small, "WEBP", quality=78, method=2)
        # Photos are shown at one size, however many pixels they have.
        size = (
            round(360 * small.width / max(small.size)),
            round(360 * small.height / max(small.size)),
        )
    name = readable(place.bank.ids[row])
    return {"id": name, "uri": uri, "gone": gone, "width": size[0], "height": size[1]}


def _row(group: Sequence[LocatedQuery], row: int, photo: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the queries of one photo for the page.

    Phrases have their text above their tiles.
    """
    spanned = {each.located.query.text for each in group if each.located.query.span}
    texts = dict[str, list[dict[str, Any]]]()
    for each in group:
        text = each.located.query.text
        texts.setdefault(text if text in spanned else "", []).append(_tile(each, photo))
    groups = [{"text": readable(text), "tiles": tiles} for text, tiles in texts.items()]
    return {"line": group[0].line, "photo": row, "groups": groups}


def _tile(found: LocatedQuery, photo: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a query for the page: heat, boxes and point in pixels of its photo."""
    width: int = photo["width"]
    height: int = photo["height"]
    located = found.located
    point = located.point
    x1, y1, x2, y2 = located.frame
    heat = None
    if len(located.heat):
        place = (x1 * width, y1 * height, (x2 - x1) * width, (y2 - y1) * height)
        heat = {"uri": _grey(located), "place": [round(v, 1) for v in place]}
    told = [readable(found.sought), photo["id"]]
    if point is not None:
        told.append(f"hottest {point[0]:.0%} from the left, {point[1]:.0%} from the top")
    return {
        "sought": readable(found.sought),
        "heat": heat,
        "boxes": [[round(v, 1) for v in box] for box in _corners(found, width, height)],
        "point": point and [round(point[0] * width, 1), round(point[1] * height, 1)],
        "verdict": found.verdict,
        "hit": found.hit,
        "title": ", ".join(filter(None, [*told, found.verdict])),
    }


def _grey(located: Located) -> str:
    """Return a map as a small grey picture, which a filter of the page colours."""
    from PIL import Image

    levels = (255 * _enlarged(located, _PER_CELL)).round().astype(np.uint8)
    return data_uri(Image.fromarray(levels, "L"), "PNG")


# -------------------------------------------------------------------------------------------- sheet

_HEIGHT = 230  # px of a photo
_GAP = 14


def sheet(
    found: Sequence[LocatedQuery], pictures: Sequence[BankPictures]
) -> tuple[bytes, list[str]]:
    """Draw a contact sheet: photos with their heat, and below each the text that was looked for.

    Returns:
        A PNG, 1600 px wide, and the characters that no installed font has a glyph for.

    Raises:
        DataError: the sheet would be over 40,000 px high (usage).

    Source: Zhang et al. 2019 (Visual awareness), figure 4.
    """
    place = pictures[0]
    number = {name: row for row, name in enumerate(place.bank.ids)}
    layout = Sheet()
    at = 0  # number of a query among all
    for _, each in groupby(found, lambda each: (each.image, each.located.query.text)):
        group = list(each)
        first = group[0]
        spanned = any(one.located.query.span for one in group)
        title = first.located.query.text if spanned else first.image
        y = layout.heading(first.line, title) + 8
        x = float(EDGE)
        opened = place.image(number[first.image], 2 * _HEIGHT)
        wide = min(_HEIGHT * (opened.width / opened.height if opened else 4 / 3), WIDTH - 2 * EDGE)
        for one in group:
            if x + wide > WIDTH - EDGE:
                x = EDGE
                y += _HEIGHT + CAPTION + 30
            layout.tiles.append(Tile(x, y, wide, _HEIGHT, at))
            font = first_fit(readable(one.sought), layout.captions)
            shown = _fitted(readable(one.sought), font, wide - 70)
            layout.write(x, y + _HEIGHT + 8, shown, font, INK)
            colour = ACCENT if one.hit else GREY
            layout.write(x + wide, y + _HEIGHT + 8, one.verdict, layout.captions[0], colour, "ra")
            x += wide + _GAP
            at += 1
        layout.height = y + _HEIGHT + CAPTION + 30 + EDGE * 0.4

    def drawn(key: int, side: int) -> Image | None:
        photo = place.image(number[found[key].image], side)
        return None if photo is None else paint(photo, found[key])

    return layout.png(drawn), sorted(layout.lacking)


def _fitted(text: str, font: Any, width: float) -> str:
    """Return a text cut to a width in px."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def paint(photo: Image, found: LocatedQuery) -> Image:
    """Return a photo with heat, boxes and the point drawn on it."""
    from PIL import Image, ImageDraw

    located = found.located
    canvas = photo.convert("RGBA")
    width, height = canvas.size
    if len(located.heat):
        x1, y1, x2, y2 = located.frame
        left = round(x1 * width)
        top = round(y1 * height)
        size = (max(1, round(x2 * width) - left), max(1, round(y2 * height) - top))
        heat = overlay(located).resize(size, Image.Resampling.BILINEAR)
        canvas.alpha_composite(heat, (left, top))
    draw = ImageDraw.Draw(canvas)
    unit = max(1, round(max(width, height) / 240))
    for x, y, wide, high in _corners(found, width - 1, height - 1):
        # A white line on a wider black line shows on any photo.
        draw.rectangle((x, y, x + wide, y + high), None, "#000000", 4 * unit)
        if min(wide, high) > 2 * unit:
            inner = (x + unit, y + unit, x + wide - unit, y + high - unit)
            draw.rectangle(inner, None, "#ffffff", 2 * unit)
    if located.point is not None:
        x = located.point[0] * width
        y = located.point[1] * height
        for colour, stroke, radius in (("#000000", 4, 8), ("#ffffff", 2, 7)):
            reach = radius * unit
            place = (x - reach, y - reach, x + reach, y + reach)
            draw.ellipse(place, None, colour, stroke * unit)
    return canvas.convert("RGB")


# -------------------------------------------------------------------------------- terminal and pipe


def tsv(found: LocatedQuery) -> str:
    """Return a query as a line: its number, image id, x, y, verdict, text; `-` for none."""
    x, y = (f"{at:.4f}" for at in found.located.point) if found.located.point else ("-", "-")
    cells = (found.line, cell(found.image), x, y, found.verdict or "-", cell(found.sought))
    return "\t".join(map(str, cells)) + "\n"


_SHADES = " ·░▒▓█"


def table(
    found: LocatedQuery,
    console: Console,
    pictures: Sequence[BankPictures] = (),
    draw: Draw | None = None,
) -> None:
    """Print a query and its map in shades, the hottest cells the darkest.

    With `draw` the heat is drawn on its photo, which `pictures` has, as a list of one.
    """
    from rich.text import Text

    located = found.located
    sought = Text(cell(found.sought) or "(an empty line)", "bold")
    console.print(Text(f"{found.line}  ", "dim") + sought + Text(f"  {cell(found.image)}", "dim"))
    opened = None
    if pictures and draw:
        opened = pictures[0].image(pictures[0].bank.ids.index(found.image), 480)
    if opened is not None and draw is not None:
        console.print(photo(paint(opened, found), console.width, draw))
    elif len(located.heat):
        level = (_shares(located.heat) * (len(_SHADES) - 1)).round().astype(int)
        level = level.reshape(located.shape)
        for line in level[:40, :80].tolist():
            console.print(Text("   " + "".join(2 * _SHADES[value] for value in line), "yellow"))
    x, y = located.point or (None, None)
    told = "no heat" if x is None else f"hottest at {x:.0%} from the left, {y:.0%} from the top"
    console.print(Text("   " + ", ".join(filter(None, [told, found.verdict])), "dim"))
    console.print()
