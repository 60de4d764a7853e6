"""Figures as SVG and PNG, their axes and fonts."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from io import BytesIO

from PIL import Image

from vgtools.reports.drawing import COLOURS, DARK_STYLE, INK, Figure, first_fit, lacks, ticks


def test_a_png_shows_what_the_svg_says() -> None:
    figure = Figure(60, 40, "t")
    figure.box(10, 10, 20, 20, "#ff0000")
    figure.dot(45, 20, 6, "#0000ff")
    figure.line(0, 35, 60, 35, "#000000", dashed=True)
    figure.picture(0, 0, 8, 8, Image.new("RGB", (4, 4), "#00ff00"))
    with Image.open(BytesIO(figure.png())) as image:
        assert image.size == (120, 80)
        assert image.getpixel((40, 40)) == (255, 0, 0)
        assert image.getpixel((90, 40))[2] > image.getpixel((90, 40))[0] + 150
        assert image.getpixel((8, 8)) == (0, 255, 0)
        row = [image.getpixel((x, 70)) for x in range(120)]
        assert (0, 0, 0) in row
        assert (255, 255, 255) in row
    assert b"data:image/jpeg" in figure.svg()
    assert ticks(0, 100) == [0, 20, 40, 60, 80, 100]
    assert ticks(0, 4) == [0, 1, 2, 3, 4]


def test_an_svg_escapes_its_texts_and_has_colours_for_dark_screens() -> None:
    figure = Figure(60, 40, "<a>")
    figure.text(1, 2, "<b>\u202e&", bold=True)
    figure.dot(1, 2, 3, COLOURS[0], "<c>")
    text = figure.svg().decode()
    root = ElementTree.fromstring(text)
    assert ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")] == ["<b>\\u202e&"]
    titles = [e.text for e in root.iter() if e.tag.endswith("title")]
    assert titles == ["<a>", "<c>"]
    assert text.count(f"<style>{DARK_STYLE}</style>") == 1
    assert f'[fill="{INK}"]{{fill:#ece8e1}}' in DARK_STYLE
    assert "<style>" not in figure.svg(standalone=False).decode()


def test_ticks_are_round_and_inside() -> None:
    assert ticks(-4, 6) == [-4, -2, 0, 2, 4, 6]
    assert ticks(0.26, 0.45) == [0.3, 0.35, 0.4, 0.45]
    assert ticks(0, 2.7) == [0, 0.5, 1, 1.5, 2, 2.5]


class StubFont:
    def __init__(self, glyphs: str) -> None:
        self.glyphs = glyphs

    def getmask(self, char: str) -> bytes:
        return char.encode() if char in self.glyphs else b"box"


def test_a_text_is_written_in_the_first_font_that_has_its_glyphs() -> None:
    latin, wide, half = StubFont("abc"), StubFont("abc漢字"), StubFont("漢")
    pick = first_fit
    assert pick("a b", [latin, wide]) is latin
    assert pick("a漢", [latin, half, wide]) is wide
    assert pick("漢字", [latin, half]) is half
    assert lacks("漢 字a", half) == {"字", "a"}


def test_a_pdf_holds_the_figure_without_a_date() -> None:
    figure = Figure(60, 40, "t")
    figure.curve([(0, 0), (30, 40), (60, 0)], "#ff0000")
    data = figure.render(".pdf")
    assert data.startswith(b"%PDF-")
    assert data == figure.render(".pdf")
    assert b"Date" not in data
    assert b"/MediaBox [ 0 0 45.0 30.0 ]" in data  # points of 1/72 inch for pixels of 1/96
    with Image.open(BytesIO(figure.png())) as image:
        assert image.getpixel((60, 78)) == (255, 0, 0)
    assert b'<polyline points="0.0,0.0 30.0,40.0 60.0,0.0"' in figure.svg()
