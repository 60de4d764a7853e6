"""Heat over photos: what is drawn where, text in every form, and the page in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.reports import cdp
from vgtools.cli import run
from vgtools.images.maps import Located, Query
from vgtools.reports.located import LocatedQuery, overlay, paint, tsv

EVIL = "<img/src=x/onerror=window.pwned=1>"
WHOLE = (0.0, 0.0, 1.0, 1.0)


def found(heat: list[float], shape: tuple[int, int] = (2, 2), **more: Any) -> LocatedQuery:
    query = Query("a dog", "x.jpg", 1, **more)
    return LocatedQuery(1, Located(query, np.array(heat), shape, WHOLE), hit=True)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write photos and rows: two phrases of one photo, a hostile text, no heat, a lost photo."""
    rows = list[dict[str, Any]]()
    grid = {"grid": [2, 3], "heat": [0.0, 0.1, 5.0, 0.2, 0.3, 0.4], "point": [0.8333, 0.25]}
    size = {"width": 300, "height": 200}
    text = "A dog and a cat"
    boxes = [[200.0, 10.0, 290.0, 90.0]]
    rows.append({"text": text, "image": "a", "span": [0, 5], **grid, **size, "boxes": boxes})
    rows[0]["hit"] = True
    rows.append({"text": text, "image": "a", "span": [10, 15], **grid, **size, "hit": False})
    rows[1]["boxes"] = [[0.0, 0.0, 20.0, 20.0]]
    rows.append({"text": EVIL, "image": EVIL, **grid})
    rows.append({"text": "", "image": "a", "grid": [2, 3], "heat": [], "point": None})
    rows.append({"text": "cat cats", "image": "lost", **grid, "iou": 0.25})
    (tmp_path / "heat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    images = list[dict[str, str]]()
    for number, name in enumerate(("a", EVIL)):
        file = tmp_path / f"{number}.png"
        Image.new("RGB", (300, 200), (60, 120, 90)).save(file)
        images.append({"image": name, "path": file.name})
    (tmp_path / "images.jsonl").write_text("".join(json.dumps(row) + "\n" for row in images))
    return tmp_path


def show(files: Path, *more: str | Path) -> int:
    return run(["show", str(files / "heat.jsonl"), *map(str, more)])


# ---------------------------------------------------------------------------------------- pictures


def test_an_overlay_is_a_veil_where_cold_and_orange_where_hot() -> None:
    pixels = np.asarray(overlay(found([0, 0, 0, 1]).located))
    assert pixels.shape == (24, 24, 4)
    cold, hot = pixels[0, 0].tolist(), pixels[-1, -1].tolist()
    assert cold == [12, 14, 28, 107]
    assert hot == [255, 88, 0, 189]
    flat = np.asarray(overlay(found([3, 3, 3, 3]).located))
    assert (flat == flat[0, 0]).all()
    assert overlay(found([0.0] * 4096, (64, 64)).located).size == (512, 512)


def test_boxes_and_the_point_are_drawn_at_their_places() -> None:
    photo = Image.new("RGB", (240, 120), (0, 200, 0))
    # The photo is shown at half its size; the hottest of 2×2 cells is the lower left.
    drawn = paint(photo, found([0, 0, 1, 0], boxes=((240, 20, 400, 100),), size=(480, 240)))
    pixels = np.asarray(drawn).astype(int)
    white = (pixels.min(2) > 235).nonzero()
    ring = (white[1] < 110).nonzero()[0]
    box = (white[1] >= 110).nonzero()[0]
    assert abs(white[1][ring].mean() - 60) < 1
    assert abs(white[0][ring].mean() - 90) < 1
    corners = [white[1][box].min(), white[0][box].min(), white[1][box].max(), white[0][box].max()]
    assert np.abs(np.array(corners) - [120, 10, 200, 50]).max() <= 2


def test_a_crop_is_covered_where_it_was_seen() -> None:
    query = Query("a", "x", 1)
    part = Located(query, np.array([0.0, 0.0, 0.0, 0.0]), (2, 2), (0.25, 0.0, 0.75, 1.0))
    drawn = np.asarray(paint(Image.new("RGB", (200, 100), (200, 200, 200)), LocatedQuery(1, part)))
    veiled = drawn[50, :, 0] < 190
    assert veiled[60:140].all()
    assert not veiled[:50].any()
    assert not veiled[150:].any()


# ----------------------------------------------------------------------------------- lines, pages


def test_a_pipe_gets_a_line_per_query(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert show(files) == 0
    lines = [line.split("\t") for line in capfd.readouterr().out.splitlines()]
    assert lines[0] == ["1", "a", "0.8333", "0.2500", "hit", "A dog"]
    assert lines[1][4:] == ["miss", "a cat"]
    assert lines[3] == ["4", "a", "-", "-", "-", ""]
    assert lines[4] == ["5", "lost", "0.8333", "0.2500", "IoU 0.25", "cat cats"]
    torn = LocatedQuery(1, Located(Query("a\tb\nc", "x", 1), np.zeros(0), (1, 2), WHOLE))
    assert tsv(torn) == "1\tx\t-\t-\t-\ta\\tb\\nc\n"


def test_a_page_and_a_sheet(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    images = ("--images", files / "images.jsonl")
    page, sheet = files / "page.html", files / "sheet.png"
    assert show(files, *images, "-o", page, "--png", sheet) == 0
    told = capfd.readouterr().err
    assert "page.html: 5 maps" in told
    assert "1 of 3 pictures cannot be shown" in told
    html = page.read_text()
    assert EVIL not in html
    assert html.count('<image id="p') == 2  # each photo once
    assert html.count("<use ") == 4
    assert html.count('class="heat"') == 4
    assert "1 of 2 points are inside a box" in html
    assert "no picture: not among the images" in html
    assert not re.search(r'(?:src|href)="(?!data:|#)', html)
    picture = Image.open(BytesIO(sheet.read_bytes()))
    assert picture.width == 1600
    # The first row has two photos of 345×230 with heat, neither of them as it was.
    orange = np.asarray(picture.convert("RGB")).astype(int)
    assert ((orange[..., 0] > 200) & (orange[..., 2] < 60)).sum() > 1000


def test_what_does_not_go_with_heat(files: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (files / "x.ids").write_text("a\n")
    images = ("--images", files / "images.jsonl")
    assert show(files, *images, "--ids", files / "x.ids", "-o", files / "p.html") == 2
    assert "name their pictures; leave --index and --ids out" in capfd.readouterr().err
    assert show(files, files / "heat.jsonl") == 2
    assert "only files of vg retrieve are shown side by side" in capfd.readouterr().err
    assert show(files, "-o", files / "p.html") == 2
    assert "needs --images" in capfd.readouterr().err
    (files / "none").mkdir()
    assert show(files, "--images", files / "none", "-o", files / "p.html") == 66
    assert "has none of the 3 images" in capfd.readouterr().err


# ------------------------------------------------------------------------------------------ browser


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as browser:
        yield browser


@pytest.mark.browser
@pytest.mark.skipif(cdp.BINARY is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)]
)
def test_the_page_loads_without_errors_or_network(
    tab: cdp.Browser, files: Path, width: int, dark: bool
) -> None:
    page = files / "page.html"
    assert show(files, "--images", files / "images.jsonl", "-o", page, "-q") == 0
    tab.open(page, width, 900, dark)
    assert tab.errors == []
    assert tab.requests == []
    assert tab.js("typeof window.pwned") == "undefined"
    assert tab.js("document.documentElement.scrollWidth") <= width
    assert tab.js("document.querySelectorAll('figure').length") == 5
    # The ring of the first map is at 5/6 and 1/4 of the photo, the box above it where it is.
    ring, box, photo = (
        tab.js(
            "(b => [b.x, b.y, b.width, b.height])"
            f"(document.querySelector('figure {name}').getBoundingClientRect())"
        )
        for name in (".ring", ".edge", "image")
    )
    middle = [
        (r + size / 2 - p) / whole
        for r, size, p, whole in zip(ring[:2], ring[2:], photo[:2], photo[2:], strict=True)
    ]
    assert middle == pytest.approx([0.8333, 0.25], abs=0.01)
    assert (box[0] - photo[0]) / photo[2] == pytest.approx(2 / 3, abs=0.02)
    tab.js("document.getElementById('find').focus()")
    tab.type("a cat")
    shown = "[...document.querySelectorAll('figure')].filter(f => f.offsetParent).length"
    assert tab.js(shown) == 2  # the text has it, so both of its phrases are shown
    tab.js("document.getElementById('find').select()")
    tab.type("zebra")
    assert tab.js(shown) == 0
    assert tab.js("document.getElementById('nothing').hidden") is False
