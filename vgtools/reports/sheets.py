"""Contact sheets: texts and pictures, laid out from top to bottom before a pixel is made."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, NamedTuple

from vgtools.io.errors import DataError, Exit
from vgtools.reports.drawing import ACCENT, GREY, INK, LINE, PAPER, first_fit, fonts, lacks
from vgtools.reports.page import readable

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

WIDTH, EDGE, CAPTION, TITLE = 1600, 48, 22, 30  # px
_LONGEST = 2000  # characters of a text that its title shows
_HIGHEST = 40_000  # px; 1600 px wide that is 192 MB of pixels
_OPEN = 2  # pictures are opened at this many times the height of their tile


class Tile(NamedTuple):
    """Where a picture goes, in px."""

    x: float
    y: float
    width: float
    height: int
    picture: Hashable  # key of the picture that `Sheet.png` opens
    marked: bool = False  # drawn with a frame
    dimmed: bool = False


@dataclass
class Sheet:
    """Where everything on a sheet goes, in px; `height` is where the next thing starts."""

    height: float = float(EDGE)
    tiles: list[Tile] = field(default_factory=list)
    # Each text is x, y, text, font, colour and anchor.
    texts: list[tuple[float, float, str, FreeTypeFont, str, str]] = field(default_factory=list)
    rules: list[float] = field(default_factory=list)
    captions: Sequence[FreeTypeFont] = field(default_factory=lambda: fonts(CAPTION))
    headings: Sequence[FreeTypeFont] = field(default_factory=lambda: fonts(TITLE))
    lacking: set[str] = field(default_factory=set)  # characters that no font has

    def write(
        self,
        x: float,
        y: float,
        text: str,
        font: FreeTypeFont,
        colour: str,
        anchor: str = "la",
    ) -> None:
        """Add a line of text."""
        self.texts.append((x, y, text, font, colour, anchor))
        self.lacking |= lacks(text, font)

    def heading(self, line: int, text: str) -> float:
        """Add a text with its line number, and return where it ends."""
        y = self.height
        if self.texts:
            self.rules.append(y)
            y += EDGE * 0.75
        number = str(line)
        self.write(EDGE, y + TITLE - CAPTION, number, self.captions[0], GREY)
        indent = EDGE + self.captions[0].getlength(number) + 18
        shown = readable(text[:_LONGEST] + "…" * (len(text) > _LONGEST))
        font = first_fit(shown, self.headings)
        colour = INK if text.strip() else GREY
        for part in _lines(shown, font, WIDTH - EDGE - indent) or ["(an empty line)"]:
            self.write(indent, y, part, font, colour)
            y += TITLE * 1.35
        return y

    def png(self, open_picture: Callable[[Any, int], Image | None]) -> bytes:
        """Draw the sheet.

        Args:
            open_picture: returns a picture, no side over the given px, or None: drawn as a crossed
                frame.

        Raises:
            DataError: the sheet would be over 40,000 px high (usage, exit 2).
        """
        from PIL import Image, ImageDraw, ImageOps

        height = max(round(self.height), 2 * EDGE)
        if height > _HIGHEST:
            why = f"the sheet would be {height:,} px high, at most {_HIGHEST:,} px are possible"
            raise DataError(f"{why}; a lower --limit makes it fit", code=Exit.USAGE)
        canvas = Image.new("RGB", (WIDTH, height), PAPER)
        draw = ImageDraw.Draw(canvas)
        # A picture that several tiles show is decoded once.
        opened = dict[Hashable, Image.Image | None]()
        for y in self.rules:
            draw.line((EDGE, y, WIDTH - EDGE, y), LINE, 2)
        for tile in self.tiles:
            left, top, width, high = tile[:4]
            if tile.picture not in opened:
                opened[tile.picture] = open_picture(tile.picture, _OPEN * high)
            picture = opened[tile.picture]
            if tile.marked:
                draw.rectangle(
                    (left - 6, top - 6, left + width + 5, top + high + 5), None, ACCENT, 4
                )
            if picture is None:
                draw.rectangle((left, top, left + width, top + high), None, LINE, 2)
                draw.line((left, top, left + width, top + high), LINE, 2)
            else:
                fitted = ImageOps.fit(picture, (round(width), high), Image.Resampling.LANCZOS)
                if tile.dimmed:
                    grey = fitted.convert("L").convert("RGB")
                    fitted = Image.blend(grey, Image.new("RGB", grey.size, PAPER), 0.8)
                canvas.paste(fitted, (round(left), round(top)))
        for x, y, text, font, colour, anchor in self.texts:
            draw.text((x, y), text, colour, font, anchor=anchor)
        out = BytesIO()
        canvas.save(out, "PNG")
        return out.getvalue()


def _lines(text: str, font: FreeTypeFont, width: float) -> list[str]:
    """Break text into lines of at most `width` px, inside a word where it has to."""
    lines = list[str]()
    line = ""
    for piece in re.findall(r"\s+|\S+", text):
        if font.getlength(line + piece) <= width:
            line += piece
            continue
        if line.strip():
            lines.append(line.strip())
        line = piece.strip()
        while line and font.getlength(line) > width:
            keep = max(1, _fitting(line, font, width))
            lines.append(line[:keep])
            line = line[keep:]
    return [*lines, line.strip()] if line.strip() else lines


def _fitting(line: str, font: FreeTypeFont, width: float) -> int:
    """Return how many characters of a line fit into `width` px."""
    # The width grows with the number of characters, so the place is found by bisection.
    lengths = range(len(line))
    return bisect.bisect_right(lengths, width, key=lambda n: font.getlength(line[:n])) - 1
