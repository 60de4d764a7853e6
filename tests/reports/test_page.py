"""Image files, thumbnails, and text that cannot leave its place in a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup
from PIL import Image

from tests.tiny.report import check_policy
from vgtools.io.errors import DataError
from vgtools.reports import page
from vgtools.reports.drawing import DARK_STYLE, Figure
from vgtools.reports.page import ImageFile

RED, BLUE = (220, 30, 30), (30, 60, 210)


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_pictures_are_found_by_the_rows_that_are_asked_for(tmp_path: Path) -> None:
    rows = [
        {"image": "a", "path": "p/a.png", "svg": "a.svg", "names": ["cat", "tom"]},
        {"image": "b", "path": "/x/b.png", "svg": "/x/b.svg"},
        {"image": "c", "path": "../c.png", "svg": "../c.svg"},
        {"image": "d", "path": "d.png"},
    ]
    source = write(tmp_path / "images.jsonl", *rows)
    assert page.locate(source, ["a", "b", "c", "nowhere"]) == {
        "a": ImageFile(tmp_path / "p/a.png", tmp_path / "a.svg", "cat, tom"),
        # A list may name files outside its folder; pictures and drawings have one rule.
        "b": ImageFile(Path("/x/b.png"), Path("/x/b.svg")),
        "c": ImageFile(tmp_path / "../c.png", tmp_path / "../c.svg"),
    }


def test_an_image_listed_twice_is_an_error_with_both_lines(tmp_path: Path) -> None:
    source = write(
        tmp_path / "images.jsonl",
        {"image": "a", "path": "1"},
        {"image": "b", "path": "2"},
        {"image": "a", "path": "3"},
    )
    with pytest.raises(
        DataError, match=r"images\.jsonl:3: duplicate image 'a' \(first on line 1\)"
    ):
        page.locate(source, ["a"])
    assert set(page.locate(source, ["b"])) == {"b"}


def test_a_directory_gives_what_lies_in_it_and_nothing_beside_it(tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    for name in ("in/a.png", "in/deep/b.png", "out.png"):
        Image.new("RGB", (300, 200), RED).save(tmp_path / name)
    found = page.locate(
        tmp_path / "in", ["a.png", "deep/b.png", "../out.png", str(tmp_path / "out.png"), "deep"]
    )
    assert set(found) == {"a.png", "deep/b.png"}


@pytest.mark.parametrize(
    ("make", "pixel"),
    [
        (
            lambda: Image.new("RGBA", (40, 40), (255, 0, 0, 0)),
            (255, 255, 255),
        ),  # transparent red is white
        (
            lambda: Image.fromarray(np.full((40, 40), 0x8040, np.uint16)),
            (0x80, 0x80, 0x80),
        ),  # 16 bits keep the high byte
        (lambda: Image.new("L", (40, 40), 77), (77, 77, 77)),
        (lambda: Image.new("P", (40, 40), 0), (0, 0, 0)),
    ],
)
def test_thumbnails_have_the_pixels_that_are_meant(
    make: Callable[[], Image.Image], pixel: tuple[int, int, int]
) -> None:
    stored = BytesIO()
    make().save(stored, "PNG")
    assert page.thumbnail(stored.getvalue(), 16).getpixel((8, 8)) == pixel


def test_thumbnails_stand_upright_and_keep_their_shape() -> None:
    stored, exif = BytesIO(), Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    wide = Image.new("RGB", (400, 200), RED)
    wide.paste(BLUE, (0, 0, 200, 200))
    wide.save(stored, "JPEG", exif=exif, quality=95)
    small = page.thumbnail(stored.getvalue(), 100)
    assert small.size == (50, 100)
    assert [max(range(3), key=small.getpixel((25, y)).__getitem__) for y in (20, 80)] == [2, 0]


@pytest.mark.parametrize(
    "content",
    [
        b"<html><svg></svg></html>",
        b"secret: <svg",
        b'<!DOCTYPE svg [<!ENTITY a "b">]><svg xmlns="http://www.w3.org/2000/svg">&a;</svg>',
        b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>',
        b'<svg xmlns="http://www.w3.org/2000/svg"><foreignObject/></svg>',
        b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>',
        b'<svg xmlns="http://www.w3.org/2000/svg"><g onClick="x()"/></svg>',
        b'<svg xmlns="http://www.w3.org/2000/svg"><a href="https://x.org"/></svg>',
        b'<svg xmlns="http://www.w3.org/2000/svg" xmlns:l="http://www.w3.org/1999/xlink">'
        b'<use l:href="other.svg#a"/></svg>',
        b'<svg xmlns="http://www.w3.org/2000/svg"><rect style="fill:url(http://x.org/a)"/></svg>',
        b'<svg xmlns="http://www.w3.org/2000/svg"><style>@import "x.css";</style></svg>',
        b'<svg xmlns="http://www.w3.org/2000/svg">' + b"<g>" * 300 + b"</g>" * 300 + b"</svg>",
    ],
)
def test_only_a_drawing_is_embedded_whole(tmp_path: Path, content: bytes) -> None:
    from vgtools.reports.page import ImageFile, image_uri

    drawing = tmp_path / "x.svg"
    drawing.write_bytes(content)
    with pytest.raises(ValueError, match="SVG drawing"):
        image_uri(ImageFile(tmp_path / "x.png", drawing), 8)
    drawing.write_bytes(b'<svg xmlns="http://www.w3.org/2000/svg"/>')
    assert image_uri(ImageFile(tmp_path / "x.png", drawing), 8).startswith("data:image/svg+xml")


def test_a_drawing_may_refer_to_its_own_parts(tmp_path: Path) -> None:
    from vgtools.reports.page import ImageFile, image_uri

    drawing = tmp_path / "x.svg"
    drawing.write_bytes(
        b'<svg xmlns="http://www.w3.org/2000/svg" xmlns:l="http://www.w3.org/1999/xlink">'
        b'<text>once @import url(x)</text><rect fill="url(#a)" style="fill: url( \'#a\' )"/>'
        b'<use l:href="#a"/><image href="data:image/png;base64,AA=="/></svg>'
    )
    assert image_uri(ImageFile(tmp_path / "x.png", drawing), 8).startswith("data:image/svg+xml")


def test_a_drawing_has_the_name_of_one(tmp_path: Path) -> None:
    rows = write(tmp_path / "i.jsonl", {"image": "a", "path": "a.png", "svg": "/etc/passwd"})
    with pytest.raises(DataError, match=r"""i\.jsonl:1: "svg" must name an \.svg drawing"""):
        page.locate(rows, ["a"])


def test_sections_and_figures_are_a_page() -> None:
    figure = Figure(40, 20, "a <title>")
    figure.text(4, 12, "</svg><script>")
    sections = [("Gain & cost", Markup(figure.svg(standalone=False).decode()))]
    made = page.render("compared", "<b>", None, styles=[DARK_STYLE], sections=sections).decode()
    check_policy(made, "http://www.w3.org/2000/svg")
    assert '<meta name="viewport"' in made
    assert "<h2>Gain &amp; cost</h2>" in made
    assert made.count("<script") == 2
    assert made.count("<style>") == 2  # none within the figure, where the policy would block it
    assert "prefers-color-scheme: dark" in made


def test_photos_of_a_page_are_smaller_the_more_there_are() -> None:
    sides = [page.photo_side(count, 256) for count in (0, 10, 300, 1000, 5000, 20_000, 10**6)]
    assert sides == sorted(sides, reverse=True)
    assert (sides[0], sides[2], sides[-1]) == (256, 256, 40)
    # About 7 MB of 5,000 pictures of soft noise.
    noise = np.random.default_rng(0).integers(60, 200, (12, 12, 3), np.uint8)
    side = page.photo_side(5000, 256)
    soft = Image.fromarray(noise).resize((side, side))
    assert 4e6 < 5000 * len(page.data_uri(soft, "WEBP", quality=75, method=2)) < 9e6


def test_a_drawing_has_pixels_for_sheets_and_terminals(tmp_path: Path) -> None:
    path = tmp_path / "a.svg"
    inside = '<rect width="5" height="10" fill="#f00"/>'
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 10 10">{inside}</svg>')
    made = page.picture(ImageFile(path), 20)
    assert (made.size, made.getpixel((4, 9)), made.getpixel((15, 9))) == (
        (20, 20), (255, 0, 0), (255, 255, 255),
    )  # fmt: skip
    path.write_text('<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>')
    with pytest.raises(ValueError, match="script"):
        page.picture(ImageFile(path), 20)


def test_a_drawing_takes_no_more_memory_than_its_picture(tmp_path: Path) -> None:
    """By its width alone it would have 24 billion rows of pixels."""
    path = tmp_path / "x.svg"
    path.write_text('<svg xmlns="http://www.w3.org/2000/svg" width="1" height="100000000"/>')
    assert max(page.picture(ImageFile(path), 240).size) == 240
