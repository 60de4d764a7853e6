"""A small drawing board: lines, dots, boxes and words that become an SVG or, where Pillow is, a PNG.

The same marks make both, so that a figure looks alike in a browser and in a paper.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

INK, SOFT, LINE, PAPER, ACCENT, PALE = "#1d1b18", "#6d675e", "#e4dfd6", "#ffffff", "#0f766e", "#a9c9c4"
_ANCHORS = {"start": "l", "middle": "m", "end": "r"}
_SCALE = 2  # pixels of a PNG for one of the board


@dataclass
class Board:
    """Marks on a white ground; x to the right, y down, in pixels."""

    width: float
    height: float
    title: str
    marks: list[tuple[str, tuple[float, ...], str, str, str]] = field(default_factory=list)  # kind, numbers, colour, text, more
    pictures: list[tuple[float, float, float, float, Image]] = field(default_factory=list)  # below the marks

    def picture(self, x: float, y: float, width: float, height: float, image: Image) -> None:
        """Put a picture below all marks."""
        self.pictures.append((x, y, width, height, image))

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = LINE, dashed: bool = False) -> None:
        """Draw a straight line, one pixel wide."""
        self.marks.append(("line", (x1, y1, x2, y2), colour, "", "dashed" if dashed else ""))

    def dot(self, x: float, y: float, radius: float, colour: str, hint: str = "") -> None:
        """Draw a filled circle; an SVG shows the hint under the mouse."""
        self.marks.append(("dot", (x, y, radius), colour, hint, ""))

    def box(self, x: float, y: float, width: float, height: float, colour: str, hint: str = "", hollow: bool = False) -> None:
        """Draw a rectangle, filled or its edge alone."""
        self.marks.append(("box", (x, y, width, height), colour, hint, "hollow" if hollow else ""))

    def text(
        self, x: float, y: float, words: str, colour: str = INK, size: float = 12, anchor: str = "start", bold: bool = False
    ) -> None:
        """Write a line of text; y is its base line, x its start, middle or end."""
        self.marks.append(("text", (x, y, size), colour, words, anchor + (" bold" if bold else "")))

    def svg(self) -> bytes:
        """Return the figure as an SVG file."""
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" height="{self.height:g}" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{html.escape(self.title)}" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, Liberation Sans, sans-serif">',
            f"<title>{html.escape(self.title)}</title>",
            f'<rect width="100%" height="100%" fill="{PAPER}"/>',
        ]
        for x, y, width, height, image in self.pictures:
            stored = BytesIO()
            image.save(stored, "JPEG", quality=85)
            uri = "data:image/jpeg;base64," + base64.b64encode(stored.getvalue()).decode()
            out.append(f'<image x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" href="{uri}"/>')
        for kind, numbers, colour, text, more in self.marks:
            n = [f"{v:.2f}".rstrip("0").rstrip(".") for v in numbers]
            hint = f"<title>{html.escape(text)}</title>" if text and kind != "text" else ""
            if kind == "line":
                dashes = ' stroke-dasharray="5 4"' if more else ""
                out.append(f'<line x1="{n[0]}" y1="{n[1]}" x2="{n[2]}" y2="{n[3]}" stroke="{colour}"{dashes}/>')
            elif kind == "dot":
                out.append(f'<circle cx="{n[0]}" cy="{n[1]}" r="{n[2]}" fill="{colour}" fill-opacity=".85">{hint}</circle>')
            elif kind == "box":
                paint = f'fill="none" stroke="{colour}" stroke-width="2"' if more else f'fill="{colour}"'
                out.append(f'<rect x="{n[0]}" y="{n[1]}" width="{n[2]}" height="{n[3]}" {paint}>{hint}</rect>')
            else:
                anchor, _, weight = more.partition(" ")
                heavy = ' font-weight="600"' if weight else ""
                out.append(
                    f'<text x="{n[0]}" y="{n[1]}" font-size="{n[2]}" text-anchor="{anchor}" fill="{colour}"{heavy}>'
                    f"{html.escape(text)}</text>"
                )
        return ("\n".join([*out, "</svg>"]) + "\n").encode()

    def png(self) -> bytes:
        """Return the figure as a PNG of twice the size."""
        from PIL import Image, ImageDraw

        from vgtools.report import font_for

        canvas = Image.new("RGB", (round(self.width * _SCALE), round(self.height * _SCALE)), PAPER)
        for x, y, width, height, image in self.pictures:
            size = (round(width * _SCALE), round(height * _SCALE))
            canvas.paste(image.resize(size, Image.Resampling.LANCZOS), (round(x * _SCALE), round(y * _SCALE)))
        draw = ImageDraw.Draw(canvas, "RGBA")
        for kind, numbers, colour, text, more in self.marks:
            n = [_SCALE * v for v in numbers]
            if kind == "line":
                for x1, y1, x2, y2 in _dashes(n) if more else [n]:
                    draw.line((x1, y1, x2, y2), colour, _SCALE)
            elif kind == "dot":
                draw.ellipse((n[0] - n[2], n[1] - n[2], n[0] + n[2], n[1] + n[2]), colour + "d9")
            elif kind == "box":
                corners = (n[0], n[1], n[0] + n[2], n[1] + n[3])
                draw.rectangle(corners, None if more else colour, colour if more else None, 2 * _SCALE)
            else:
                anchor, _, weight = more.partition(" ")
                font = font_for(text, round(n[2]))
                where, place = (n[0], n[1]), _ANCHORS[anchor] + "s"
                draw.text(where, text, colour, font, anchor=place, stroke_width=0.6 if weight else 0, stroke_fill=colour)
        out = BytesIO()
        canvas.save(out, "PNG")
        return out.getvalue()


def _dashes(line: Sequence[float]) -> list[tuple[float, float, float, float]]:
    """Return the dashes of a line: 5 px drawn, 4 px left."""
    x1, y1, x2, y2 = line
    length = max(((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5, 1e-9)
    starts = [at / length for at in range(0, int(length) + 1, 9 * _SCALE)]
    stops = [min(s + 5 * _SCALE / length, 1.0) for s in starts]
    return [
        (x1 + (x2 - x1) * a, y1 + (y2 - y1) * a, x1 + (x2 - x1) * b, y1 + (y2 - y1) * b)
        for a, b in zip(starts, stops, strict=True)
    ]


@dataclass
class Axes:
    """A plot on a board: values on the left, steps below."""

    board: Board
    left: float
    top: float
    width: float
    height: float
    steps: int  # columns, 1 to `steps`
    high: float  # value at the top; 0 is at the bottom

    def x(self, step: float) -> float:
        """Return where a step stands."""
        return self.left + (step - 0.5) / self.steps * self.width

    def beside(self, step: float, number: int, count: int) -> float:
        """Return where the `number`th of `count` things of a step stands: beside the others, or equal ones would hide it."""
        return self.x(step) + ((number - 0.5) / count - 0.5) * 0.5 * self.width / self.steps

    def y(self, value: float) -> float:
        """Return where a value stands."""
        return self.top + self.height * (1 - value / self.high)

    def frame(self, name: str, unit: str, below: str) -> None:
        """Draw grid, numbers and names."""
        board, bottom = self.board, self.top + self.height
        board.text(self.left, self.top - 22, name, bold=True, size=14)
        board.text(self.left - 34, self.top - 8, unit, SOFT, 11)
        for tick in ticks(self.high):
            board.line(self.left, self.y(tick), self.left + self.width, self.y(tick))
            board.text(self.left - 8, self.y(tick) + 4, f"{tick:g}", SOFT, 11, "end")
        every = 1 if self.steps <= 24 else 5
        for step in range(1, self.steps + 1, every):
            board.text(self.x(step), bottom + 18, str(step), SOFT, 11, "middle")
        board.text(self.left + self.width / 2, bottom + 36, below, SOFT, 11, "middle")


def ticks(high: float) -> list[float]:
    """Return four to seven round values from 0 to at most `high`."""
    for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50):
        if high / step <= 6:
            break
    return [round(step * n, 6) for n in range(int(high / step + 1e-9) + 1)]
