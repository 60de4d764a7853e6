"""Small pictures on a terminal: as its own graphics where it has them, else as half blocks.

textual-image (the extra `terminal`) asks the terminal for sixels (iTerm2, WezTerm, foot, Windows
Terminal, xterm) and for kitty's protocol. Nothing is drawn into pipes and files.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from PIL.Image import Image as Picture
    from rich.console import Console
    from rich.text import Text

_WIDE = 12  # cells; a cell is about twice as high as wide
_HIGH = 6
CELL_PIXELS = 120  # per side, as many as such cells have
_PHOTO = 44  # cells of a photo that is shown alone

Draw = Callable[..., Any]  # an image, and its width and height in cells -> a renderable of rich


class Captioned(NamedTuple):
    """A picture, None for none, and the lines below it."""

    image: Picture | None
    lines: Sequence[Text]


def painter(console: Console) -> Draw | None:
    """Return the class that draws images on a terminal; None where it cannot."""
    # The terminal answers on standard input, which must also be the terminal.
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    dull = console.no_color or console.color_system is None
    if not console.is_terminal or console.is_dumb_terminal or dull:
        return None
    if importlib.util.find_spec("textual_image") is None or not _has_size():
        return None
    from textual_image.renderable import HalfcellImage, Image

    # Half blocks of 16 colours show nothing.
    few = Image is HalfcellImage and console.color_system not in ("256", "truecolor")
    return None if few else Image


def _has_size() -> bool:
    """Return whether the terminal has columns and lines; some state none, by which one divides."""
    try:
        return all(os.get_terminal_size(1))
    except OSError:  # standard output is a file
        return True


def strip(pictures: Sequence[Captioned], draw: Draw) -> Any:
    """Return pictures side by side, as many as fit, with their lines below."""
    from PIL import ImageOps
    from rich.columns import Columns
    from rich.console import Group
    from rich.text import Text

    cells = []
    for image, lines in pictures:
        blank = Text("\n" * (_HIGH - 1))
        drawn = (
            blank if image is None else draw(ImageOps.fit(image, (CELL_PIXELS,) * 2), _WIDE, _HIGH)
        )
        for line in lines:
            line.justify = "center"
            line.truncate(_WIDE, overflow="ellipsis")
        cells.append(Group(drawn, *lines))
    return Columns(cells, width=_WIDE, padding=(0, 1))


def photo(image: Picture, width: int, draw: Draw) -> Any:
    """Return a photo in its own shape, on a terminal of some cells' width."""
    wide = min(_PHOTO, width)
    return draw(image, wide, max(1, round(wide * image.height / image.width / 2)))
