"""Figures, tables, groups of regions and the page of the attention probes; the page also in a real Chromium."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests import cdp
from vgtools import probe_report as pr
from vgtools.plots import Board, ticks
from vgtools.probe_report import Example, make_groups
from vgtools.regions import RegionSet

EVIL = "<script>window.pwned=1</script>"
BOXES = np.array([[0, 0, 40, 40], [2, 2, 40, 40], [60, 60, 100, 100], [0, 60, 30, 90], [50, 0, 90, 30]], np.float64)


def regions(labels: list[str] | None = None) -> RegionSet:
    return RegionSet(np.zeros((5, 2), np.float32), BOXES, np.ones(5, np.float32), labels, 100, 100)


def example(text: str = "A dog bites a cat .", image: str = "a.jpg") -> Example:
    words = [m.span() for m in pr.WORD.finditer(text)]
    weights = np.zeros((3, len(words), 5))
    weights[:, :, 0] = 0.1
    weights[2, 1] = [0.5, 0.2, 0.05, 0.125, 0]  # "dog" in the last layer
    weights[0, 1] = [0, 0, 0.9, 0, 0]
    golds = [np.array([[0.0, 0, 40, 41]]), np.array([[58.0, 60, 100, 100]])]
    found = regions(["dog", "dog", EVIL, EVIL, "sky"])
    groups = make_groups(text, [(0, 5), (12, 17)], golds, found, weights)
    picture = Image.new("RGB", (100, 100), "#8a4")
    return Example(image, text, words, found, groups, ["1-1", "2-2", "3-1"], [0, 2], weights, picture)


def head(layer: int, number: int, accuracy: float, active: bool = True) -> dict[str, Any]:
    return {"kind": "head", "name": f"{layer}-{number}", "layer": layer, "head": number, "accuracy": accuracy, "active": active}


RECORDS: list[dict[str, Any]] = [
    head(1, 1, 10.0, False), head(1, 2, 20.0), head(2, 1, 40.0), head(2, 2, 5.0, False),
    {"kind": "layer", "layer": 1, "best": 20.0, "best_head": "1-2", "best_active": 20.0, "chosen_head": "1-1",
     "chosen": 11.0, "mean": 15.0,
     "active_heads": 1, "attention": 30.0},
    {"kind": "layer", "layer": 2, "best": 40.0, "best_head": "2-1", "best_active": None, "chosen_head": "2-1",
     "chosen": 41.0, "mean": 22.5,
     "active_heads": 0, "attention": 9.0},
    {"kind": "relation", "relation": "acl", "stanford": "partmod", "entity": "either", "pairs": 1234, "baseline": 12.0,
     "head": "2-1", "accuracy": 30.0, "low": 25.0, "high": 35.0, "p": 0.001,
     "accuracies": [[10.0, 20.0], [30.0, 5.0]], "attentions": [[10.0, 25.0], [30.0, 5.0]]},
    {"kind": "relation", "relation": EVIL + "|", "stanford": EVIL + "|", "entity": "head", "pairs": 3, "baseline": 0.0,
     "head": None, "accuracy": None, "accuracies": [[0.0, 0.0]] * 2, "attentions": [[0.0, 0.0]] * 2},
    {"kind": "summary", "layers": 2, "heads": 2, "baseline": 17.33, "baseline_low": 15.0, "baseline_high": 19.0,
     "upper_bound": 87.0,
     "head": "2-1", "accuracy": 40.0, "low": 36.0, "high": 44.0, "difference": 22.67, "difference_low": 20.0,
     "difference_high": 25.0, "p": 0.001, "selected_on": "val",
     "entities": 4321, "captions": 2000, "photos": 400, "active_heads": 2, "level": 0.95},
]  # fmt: skip


def svg(board: Board | None) -> ElementTree.Element:
    assert board is not None
    return ElementTree.fromstring(board.svg())


def named(root: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return root.findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


def test_regions_are_sorted_by_what_they_show() -> None:
    groups = example().groups
    assert [(g.name, g.gold, g.regions) for g in groups] == [
        ("A dog", True, [0, 1]),
        ("a cat", True, [2]),
        (EVIL + "*", False, [3]),  # a word gives it 12.5 %; region 4 gets nothing and is left out
    ]
    np.testing.assert_allclose(example().grouped()[2, 1], [0.7, 0.05, 0.125])


def test_the_closest_region_stands_for_a_box_that_none_fits() -> None:
    weights = np.zeros((1, 1, 5))
    far = make_groups("a b", [(0, 1)], [np.array([[0.0, 80, 100, 100]])], regions(), weights)
    assert [(g.name, g.regions) for g in far] == [("a", [2])], "IoU 0.286 with region 3, below 0.5 and yet the closest"
    same = make_groups("a b", [(0, 1), (2, 3)], [BOXES[:1], BOXES[:1]], regions(), weights)
    assert [(g.name, g.regions) for g in same] == [("a", [0, 1])], "one chain is one group"
    weights[0, 0, 4] = 0.3
    assert [g.name for g in make_groups("a", [], [], regions(), weights)] == ["region 5*"]


def test_figure_3_has_a_dot_a_head_and_the_baseline() -> None:
    root = svg(pr.entity_figure(RECORDS))
    dots = [d for d in named(root, "circle") if len(d)]
    assert sorted(d[0].text or "" for d in dots) == [
        "1-1: 10.0 %, not active", "1-2: 20.0 %, active", "2-1: 40.0 %, active", "2-2: 5.0 %, not active",
    ]  # fmt: skip
    by_name = {(d[0].text or "")[:3]: d for d in dots}
    assert float(by_name["2-1"].get("r", 0)) > float(by_name["2-2"].get("r", 0)), "active heads are large"
    heights = [float(by_name[n].get("cy", 0)) for n in ("2-2", "1-1", "1-2", "2-1")]
    assert heights == sorted(heights, reverse=True)
    assert heights[0] - heights[1] == pytest.approx((heights[1] - heights[2]) / 2, abs=0.05)
    grey = [line for line in named(root, "line") if line.get("stroke") == "#8a8378" and float(line.get("x2", 0)) > 500]
    assert len(grey) == 1
    share = (heights[0] - float(grey[0].get("y1", 0))) / (heights[0] - heights[3])
    assert share == pytest.approx((17.33 - 5) / 35, abs=0.01)
    assert pr.entity_figure([]) is None


def test_figure_4_has_a_panel_a_relation_under_both_names() -> None:
    root = svg(pr.relation_figure(RECORDS))
    words = [t.text for t in named(root, "text")]
    assert "acl (partmod)" in words
    assert "1,234 pairs" in words
    dots = [d for d in named(root, "circle") if len(d)]
    assert sum(float(d.get("r", 0)) == 4 for d in dots) == 2, "two heads give more than 20 % to regions"
    assert pr.relation_figure([]) is None


TEXT_RECORDS: list[dict[str, Any]] = [
    *({"kind": "text-head", "name": f"{layer}-{n}", "layer": layer, "head": n, "entropy": 1.0, "x": 0.01 * n, "y": 0.0,
       **dict.fromkeys(("cls", "sep", "punctuation", "previous", "next", "self"), 10.0)}
      for layer in (1, 2) for n in range(1, 13)),
    {"kind": "dependency", "relation": "det", "stanford": "det", "direction": "to head", "words": 900, "head": "2-11",
     "accuracy": 80.0, "low": 75.0, "high": 84.0, "offset": 1, "baseline": 50.0, "baseline_low": 45.0, "baseline_high": 55.0,
     "difference": 30.0, "difference_low": 25.0, "difference_high": 35.0, "p": 0.001},
    {"kind": "dependency", "relation": EVIL, "stanford": EVIL, "direction": "to head", "words": 9, "head": None,
     "accuracy": None, "offset": None, "baseline": None},
    {"kind": "classifier", "classifier": "words", "relation": "det", "stanford": "det", "words": 900, "accuracy": 95.0,
     "low": 94.0, "high": 96.0, "offset": 1, "baseline": 50.0, "baseline_low": 45.0, "baseline_high": 55.0, "p": 0.001,
     "trained_on": 4321},
    {"kind": "text-summary", "texts": 400, "tokens": 5643, "layers": 2, "heads": 12, "selected_on": "val"},
]  # fmt: skip


def test_the_text_side_has_its_figure_with_intervals_its_tables_and_its_page() -> None:
    root = svg(pr.dependency_figure(TEXT_RECORDS))
    hints = [t.text for c in named(root, "circle") for t in c]
    assert hints == ["2-11: 80.00 (75.0 to 84.0) %", "classifier: 95.00 (94.0 to 96.0) %"]
    bars = [line for line in named(root, "line") if line.get("y1") == line.get("y2")]
    dots = [c for c in named(root, "circle") if len(c)]
    scale = float(bars[0].get("x2", 0)) - float(bars[0].get("x1", 0))
    for bar, dot, (low, at, high) in zip(bars, dots, [(75, 80, 84), (94, 95, 96)], strict=True):
        ends = [float(bar.get(k, 0)) for k in ("x1", "x2")]
        assert ends[1] - ends[0] == pytest.approx(scale * (high - low) / 9, abs=0.02)
        assert float(dot.get("cx", 0)) == pytest.approx(ends[0] + scale * (at - low) / 9, abs=0.02)
    assert pr.dependency_figure(RECORDS) is None
    text = pr.tables(TEXT_RECORDS)
    assert "| det | to head | 900 | 2-11 | 80.00 (75.0 to 84.0) | +1 | 50.00 (45.0 to 55.0) | 0.001 |" in text
    assert "| to head | 9 | – | – | – | – | – |" in text
    assert "head and offset were chosen on other sentences" in text
    assert "| det | 900 | 95.00 (94.0 to 96.0) | +1 | 50.00 (45.0 to 55.0) | 0.001 |" in text
    page = pr.page([], TEXT_RECORDS, EVIL).decode()
    assert EVIL not in page
    assert "<td>80.00 (75.0 to 84.0)</td>" in page
    assert "There is no caption" not in page


def test_names_of_heads_cover_nothing() -> None:
    root = svg(pr.head_map(TEXT_RECORDS))  # twelve places, each with two heads
    names = [
        (float(e.get("x", 0)), float(e.get("y", 0)), e.text or "") for e in named(root, "text") if e.get("font-size") == "8"
    ]
    assert 12 <= len(names) <= 24
    for n, (x, y, name) in enumerate(names):
        assert all(abs(y - b) >= 8 or abs(x - a) >= 2.5 * len(name + other) for a, b, other in names[:n])


def test_a_png_shows_what_the_svg_says() -> None:
    board = Board(60, 40, "t")
    board.box(10, 10, 20, 20, "#ff0000")
    board.dot(45, 20, 6, "#0000ff")
    board.line(0, 35, 60, 35, "#000000", dashed=True)
    board.picture(0, 0, 8, 8, Image.new("RGB", (4, 4), "#00ff00"))
    with Image.open(BytesIO(board.png())) as image:
        assert image.size == (120, 80)
        assert image.getpixel((40, 40)) == (255, 0, 0)
        assert image.getpixel((90, 40))[2] > image.getpixel((90, 40))[0] + 150
        assert image.getpixel((8, 8)) == (0, 255, 0)
        row = [image.getpixel((x, 70)) for x in range(120)]
        assert (0, 0, 0) in row
        assert (255, 255, 255) in row
    assert b"data:image/jpeg" in board.svg()
    assert ticks(100) == [0, 20, 40, 60, 80, 100]
    assert ticks(4) == [0, 1, 2, 3, 4]


def test_tables_say_the_numbers_and_escape_what_would_break_them() -> None:
    text = pr.tables(RECORDS)
    assert "| best active head: 2-1, chosen on val | 40.00 (36.0 to 44.0) |" in text
    assert "| most confident region | 17.33 (15.0 to 19.0) |" in text
    assert "| difference, p = 0.001 | 22.67 (20.0 to 25.0) |" in text
    assert "| upper bound: some region is right | 87.00 |" in text
    assert "4,321 entities, 2,000 captions, 400 photos; 2 of 4 heads are active." in text
    assert "| 2 | 41.00 | 2-1 | 40.00 | 2-1 | – | 22.50 | 0 | 9.00 |" in text
    assert "chosen: the best head of other photos" in text
    alone = pr.tables([{k: v for k, v in r.items() if not k.startswith("chosen")} for r in RECORDS])
    assert "| 2 | 40.00 | 2-1 | – | 22.50 | 0 | 9.00 |" in alone
    assert "chosen: " not in alone
    assert "| acl (partmod) | either | 1,234 | 12.00 | 30.00 (25.0 to 35.0) | 2-1 | 0.001 |" in text
    assert "\\| | head | 3 | 0.00 | – | – | – |" in text
    assert pr.tables([]) == ""


def test_an_example_becomes_a_figure_even_without_its_photo() -> None:
    root = svg(pr.example_figure(example()))
    words = [t.text for t in named(root, "text")]
    assert words.count("Layer 1, head 1-1") == words.count("Layer 3, head 3-1") == 1
    assert "70" in words, "dog on the two regions of the dog"
    assert len(named(root, "image")) == 1
    without = replace(example(), picture=None)
    assert "the photo cannot be shown" in [t.text for t in named(svg(pr.example_figure(without)), "text")]
    alone = replace(example(), groups=[])
    assert svg(pr.example_figure(alone)) is not None


def test_photos_are_found_or_named(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20), "#8a4").save(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"none")
    given = [replace(example(image=name), picture=None) for name in ("a.jpg", "b.jpg", "c.jpg")]
    found, faults = pr.with_pictures(given, str(tmp_path))
    assert [e.picture is not None for e in found] == [True, False, False]
    assert [f.split(":")[0] for f in faults] == ["b.jpg", "c.jpg"]


# ---------------------------------------------------------------------------------------------------------------- browser


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    evil = example(f"{EVIL} {{{{7*7}}}} \u202e dog", EVIL)
    path.write_bytes(pr.page([example(), evil, replace(example(), picture=None, groups=[])], RECORDS, EVIL, EVIL))
    return path


def test_the_page_escapes_everything(page: Path) -> None:
    text = page.read_text()
    assert EVIL not in text
    assert "\u202e" not in text
    assert "49" not in text.split("&lt;script", 2)[2][:400]
    assert text.count("<script") == 2


@pytest.mark.browser
@pytest.mark.skipif(cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)")
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_it_loads_without_errors_or_network_and_fits(tab: cdp.Browser, page: Path, width: int, dark: bool) -> None:
    tab.open(page, width, 900, dark)
    assert tab.errors == []
    assert tab.requests == []
    assert tab.js("document.documentElement.scrollWidth") <= width
    assert tab.js("window.pwned === undefined")
    assert tab.js("document.querySelectorAll('.scene image').length") == 2


@pytest.mark.browser
@pytest.mark.skipif(cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)")
def test_a_word_shows_its_regions_by_mouse_and_keyboard(tab: cdp.Browser, page: Path) -> None:
    tab.open(page)
    said = "document.querySelector('#e1 .said').textContent"
    assert tab.js(said) == "Click a word."
    tab.click("#e1 .w[data-w='1']")
    assert tab.js(said) == f"“dog”, layer 3, head 3-1: A dog 70 %, {EVIL}* 13 %, a cat 5.0 %, all regions 88 %."
    assert tab.js("[...document.querySelectorAll('#e1 .r')].map(b => Number(b.style.fillOpacity).toFixed(3))") == [
        "0.600", "0.096", "0.006", "0.037", "0.000",
    ]  # fmt: skip
    assert tab.js("document.querySelector('#e1 .r.most').dataset.r") == "0"
    rows = "[...document.querySelectorAll('#e1 .live tbody tr')].map(r => [...r.cells].map(c => c.textContent).join(' '))"
    assert tab.js(rows)[:2] == ["A dog 0.0 10 70", "a cat 90 0.0 5.0"]
    tab.press("ArrowDown")  # from the last layer round to the first
    assert tab.js(said).startswith("“dog”, layer 1, head 1-1: a cat 90 %")
    tab.press("ArrowRight")
    assert tab.js(said).startswith("“bites”, layer 1")
    assert tab.js("document.activeElement.textContent") == "bites"
    tab.press("Escape")
    assert tab.js(said) == "Click a word."
    assert tab.js("document.querySelector('#e1 .live').hidden")
    tab.click("#e2 .w[data-w='0']")
    assert tab.js("window.pwned === undefined")
    tab.click("#e3 .w[data-w='1']")
    assert tab.js("document.querySelector('#e3 .said').textContent").endswith("head 3-1: all regions 88 %.")
    assert tab.errors == []
