"""Figures: lines, dots, boxes, text and pictures that become an SVG or a PNG.

Each mark is written for both at once, so that a figure looks alike in a browser and in a paper.
"""

from __future__ import annotations

import contextlib
import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

from vgtools.io.errors import DataError, Exit
from vgtools.reports.page import data_uri, readable

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

INK = "#1d1b18"
SOFT = "#6d675e"
GREY = "#8a8378"
LINE = "#e4dfd6"
PAPER = "#ffffff"
ACCENT = "#0f766e"
PALE = "#a9c9c4"
# Colours of different things on one figure; `probe.css` has the same, as c0 to c7.
COLOURS = ("#d97706", "#2563eb", "#16a34a", "#db2777", "#7c3aed", "#0891b2", "#b45309", "#65a30d")
_DARK = {
    INK: "#ece8e1",
    SOFT: "#a49e93",
    LINE: "#3b3833",
    PAPER: "#1c1c1a",
    ACCENT: "#5fc4b8",
    PALE: "#437d75",
    COLOURS[1]: "#6d9bf5",
    COLOURS[4]: "#a78bfa",
}
# Marks carry their light colours as attributes, which every viewer knows; browsers replace them.
DARK_STYLE = (
    "@media (prefers-color-scheme: dark) {"
    + "".join(f'[fill="{a}"]{{fill:{b}}}[stroke="{a}"]{{stroke:{b}}}' for a, b in _DARK.items())
    + "}"
)
_FAMILY = "system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, Liberation Sans, sans-serif"
_ANCHORS = {"start": "ls", "middle": "ms", "end": "rs"}
_SCALE = 2  # pixels of a PNG per pixel of the figure
_SMOOTH = 2  # a PNG is drawn this much larger and reduced, because Pillow's edges are ragged
_DASH, _GAP = 5, 4  # px


@dataclass
class Figure:
    """Marks on paper, each above those before it; x to the right, y down, in pixels."""

    width: float
    height: float
    title: str
    _elements: list[str] = field(default_factory=list, repr=False)
    _strokes: list[Callable[[Image, ImageDraw], None]] = field(default_factory=list, repr=False)

    def picture(self, x: float, y: float, width: float, height: float, image: Image) -> None:
        """Add a picture, stretched to the given size."""

        def paint(canvas: Image, draw: ImageDraw) -> None:
            left, top, wide, high = (round(n) for n in _scaled(x, y, width, height))
            canvas.paste(image.resize((wide, high)), (left, top))

        uri = data_uri(image, "JPEG", quality=85)
        place = _places(x=x, y=y, width=width, height=height)
        self._add(f'<image {place} href="{uri}"/>', paint)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str = LINE, dashed: bool = False
    ) -> None:
        """Add a straight line, one pixel wide."""

        def paint(canvas: Image, draw: ImageDraw) -> None:
            for piece in _dashes(x1, y1, x2, y2) if dashed else [(x1, y1, x2, y2)]:
                draw.line(_scaled(*piece), colour, _SCALE * _SMOOTH)

        ends = _places(x1=x1, y1=y1, x2=x2, y2=y2)
        style = f' stroke-dasharray="{_DASH} {_GAP}"' if dashed else ""
        self._add(f'<line {ends} stroke="{colour}"{style}/>', paint)

    def curve(self, points: Sequence[tuple[float, float]], colour: str, hint: str = "") -> None:
        """Add a line through points, two pixels wide."""

        def paint(canvas: Image, draw: ImageDraw) -> None:
            places = [_scaled(*point) for point in points]
            draw.line(places, colour, 2 * _SCALE * _SMOOTH, "curve")  # type: ignore[arg-type]

        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"'
        self._add(f'<polyline points="{places}" {style}>{_title(hint)}</polyline>', paint)

    def dot(self, x: float, y: float, radius: float, colour: str, hint: str = "") -> None:
        """Add a filled circle; an SVG shows the hint under the mouse."""

        def paint(canvas: Image, draw: ImageDraw) -> None:
            draw.ellipse(_scaled(x - radius, y - radius, x + radius, y + radius), colour + "d9")

        place = _places(cx=x, cy=y, r=radius)
        style = f'fill="{colour}" fill-opacity=".85"'
        self._add(f"<circle {place} {style}>{_title(hint)}</circle>", paint)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: str,
        hint: str = "",
        hollow: bool = False,
    ) -> None:
        """Add a rectangle, filled, or its edge alone."""

        def paint(canvas: Image, draw: ImageDraw) -> None:
            corners = _scaled(x, y, x + width, y + height)
            if hollow:
                draw.rectangle(corners, None, colour, 2 * _SCALE * _SMOOTH)
            elif width > 0:
                draw.rectangle(corners, colour)

        style = f'fill="none" stroke="{colour}" stroke-width="2"' if hollow else f'fill="{colour}"'
        place = _places(x=x, y=y, width=width, height=height)
        self._add(f"<rect {place} {style}>{_title(hint)}</rect>", paint)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = INK,
        size: float = 12,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        """Add a line of text; y is its base line, x its start, middle or end."""
        shown = readable(text)

        def paint(canvas: Image, draw: ImageDraw) -> None:
            font = font_for(shown, round(size * _SCALE * _SMOOTH))
            place = (x * _SCALE * _SMOOTH, y * _SCALE * _SMOOTH)
            ends = _ANCHORS[anchor]
            draw.text(place, shown, colour, font, ends, stroke_width=int(bold), stroke_fill=colour)

        place = _places(x=x, y=y, font_size=size)
        weight = ' font-weight="600"' if bold else ""
        style = f'text-anchor="{anchor}" fill="{colour}"{weight}'
        self._add(f"<text {place} {style}>{html.escape(shown)}</text>", paint)

    def svg(self, standalone: bool = True) -> bytes:
        """Return the figure as SVG.

        Args:
            standalone: add the colours for dark screens; a page has them in its own style.
        """
        size = f'width="{self.width:g}" height="{self.height:g}"'
        view = f'viewBox="0 0 {self.width:g} {self.height:g}"'
        title = html.escape(readable(self.title))
        label = f'role="img" aria-label="{title}" font-family="{_FAMILY}"'
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} {label}>',
            f"<title>{title}</title>",
            *([f"<style>{DARK_STYLE}</style>"] if standalone else []),
            f'<rect width="100%" height="100%" fill="{PAPER}"/>',
            *self._elements,
            "</svg>\n",
        ]
        return "\n".join(lines).encode()

    def _painted(self) -> Image:
        from PIL import Image, ImageDraw

        size = (round(self.width * _SCALE) * _SMOOTH, round(self.height * _SCALE) * _SMOOTH)
        canvas = Image.new("RGB", size, PAPER)
        # In this mode colours with an opacity are blended with the RGB canvas.
        draw = ImageDraw.Draw(canvas, "RGBA")
        for paint in self._strokes:
            paint(canvas, draw)
        return canvas

    def png(self) -> bytes:
        """Return the figure as a PNG of twice the size."""
        out = BytesIO()
        self._painted().reduce(_SMOOTH).save(out, "PNG")
        return out.getvalue()

    def pdf(self) -> bytes:
        """Return the figure as a PDF with one picture, of four times the size."""
        out = BytesIO()
        # Without dates, so that the same figure has the same bytes.
        fixed = {"title": self.title, "creationDate": None, "modDate": None}
        self._painted().save(out, "PDF", resolution=96 * _SCALE * _SMOOTH, quality=95, **fixed)
        return out.getvalue()

    def render(self, suffix: str) -> bytes:
        """Return the figure as a file of this suffix: `.svg`, `.png` or `.pdf`."""
        made = {".png": self.png, ".pdf": self.pdf}.get(suffix, self.svg)
        return made()

    def _add(self, element: str, paint: Callable[[Image, ImageDraw], None]) -> None:
        self._elements.append(element)
        self._strokes.append(paint)


def _places(**numbers: float) -> str:
    """Return attributes of an SVG element."""
    shown = {name: f"{value:.2f}".rstrip("0").rstrip(".") for name, value in numbers.items()}
    return " ".join(f'{name.replace("_", "-")}="{value}"' for name, value in shown.items())


def _title(hint: str) -> str:
    return f"<title>{html.escape(readable(hint))}</title>" if hint else ""


def _scaled(*numbers: float) -> tuple[float, ...]:
    return tuple(n * _SCALE * _SMOOTH for n in numbers)


def _dashes(x1: float, y1: float, x2: float, y2: float) -> list[tuple[float, ...]]:
    """Return the ends of a line's dashes."""
    length = max(math.hypot(x2 - x1, y2 - y1), 1e-9)
    right, down = (x2 - x1) / length, (y2 - y1) / length
    ends = [(at, min(at + _DASH, length)) for at in range(0, math.ceil(length), _DASH + _GAP)]
    return [(x1 + right * a, y1 + down * a, x1 + right * b, y1 + down * b) for a, b in ends]


# --------------------------------------------------------------------------------------------- axes


@dataclass
class Axes:
    """A plot on a figure: values on the left, steps below."""

    figure: Figure
    left: float
    top: float
    width: float
    height: float
    steps: int  # columns, 1 to `steps`
    high: float  # value at the top; 0 is at the bottom

    def x(self, step: float) -> float:
        """Return the position of a step."""
        return self.left + (step - 0.5) / self.steps * self.width

    def beside(self, step: float, number: int, count: int) -> float:
        """Return the position of the `number`th of `count` things of a step, side by side."""
        return self.x(step) + ((number - 0.5) / count - 0.5) * 0.5 * self.width / self.steps

    def y(self, value: float) -> float:
        """Return the position of a value."""
        return self.top + self.height * (1 - value / self.high)

    def frame(self, name: str, unit: str, below: str) -> None:
        """Draw grid, numbers and names."""
        figure, bottom = self.figure, self.top + self.height
        figure.text(self.left, self.top - 28, name, bold=True, size=14)
        figure.text(self.left - 34, self.top - 11, unit, SOFT, 11)
        for tick in ticks(0, self.high):
            figure.line(self.left, self.y(tick), self.left + self.width, self.y(tick))
            figure.text(self.left - 8, self.y(tick) + 4, f"{tick:g}", SOFT, 11, "end")
        for step in range(1, self.steps + 1, 1 if self.steps <= 24 else 5):
            figure.text(self.x(step), bottom + 18, str(step), SOFT, 11, "middle")
        figure.text(self.left + self.width / 2, bottom + 36, below, SOFT, 11, "middle")


def ticks(low: float, high: float) -> list[float]:
    """Return three to seven round values from `low` to `high`."""
    span = high - low
    size = 10 ** math.floor(math.log10(span / 4))
    # The tolerance keeps an interval that rounding makes slightly longer than six steps.
    step = next(size * n for n in (1, 2, 5, 10) if span / (size * n) <= 6 + 1e-9)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(step * n, 10) for n in range(first, last + 1)]


# -------------------------------------------------------------------------------------------- fonts

# Pillow's own font draws plain Latin, the same everywhere; these, where the system has one, draw
# the characters that it lacks.
_SYSTEM_FONTS = (
    "DejaVuSans.ttf",
    "NotoSans-Regular.ttf",
    "NotoSansCJK-Regular.ttc",
    "Arial Unicode.ttf",
    "Arial.ttf",
)


@lru_cache(maxsize=32)
def fonts(size: int) -> tuple[FreeTypeFont, ...]:
    """Return the fonts of a size in px: Pillow's own, then the system's.

    Raises:
        DataError: this Pillow cannot draw text (69).
    """
    from PIL import ImageFont

    first = ImageFont.load_default(size)
    if not isinstance(first, ImageFont.FreeTypeFont):
        why = "this Pillow was built without FreeType and cannot draw text; pages and SVG need none"
        raise DataError(why, code=Exit.UNAVAILABLE)
    found = [first]
    for name in _SYSTEM_FONTS:
        with contextlib.suppress(OSError):
            found.append(ImageFont.truetype(name, size))
    return tuple(found)


def lacks(text: str, font: FreeTypeFont) -> set[str]:
    """Return the characters that a font draws as an empty box."""
    # No font has this code point, so it is drawn as the font's empty box.
    box = bytes(font.getmask("\U0010ffff"))
    return {c for c in set(text) if not c.isspace() and bytes(font.getmask(c)) == box}


def first_fit(text: str, choices: Sequence[FreeTypeFont]) -> FreeTypeFont:
    """Return the first font that has every glyph of a text, or the one that lacks the fewest."""
    whole = (font for font in choices if not lacks(text, font))
    return next(whole, None) or min(choices, key=lambda font: len(lacks(text, font)))


@lru_cache(maxsize=1024)
def font_for(text: str, size: int) -> FreeTypeFont:
    """Return a font of a size in px with the glyphs of a text, as far as the system has one."""
    return first_fit(text, fonts(size))
