"""Tables and the page of the attention probes; the page also in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.reports import cdp
from tests.tiny.report import (
    BOXES,
    EVIL,
    RECORDS,
    TEXT_RECORDS,
    check_policy,
    example,
    named,
    regions,
    svg,
)
from vgtools.reports import probes
from vgtools.reports.drawing import COLOURS
from vgtools.reports.figures import dependency_figure, example_figure
from vgtools.systems.attention_probes.examples import make_groups


def test_the_text_side_has_its_figure_with_intervals_its_tables_and_its_page() -> None:
    root = svg(dependency_figure(TEXT_RECORDS))
    hints = [t.text for c in named(root, "circle") for t in c]
    assert hints == ["2-11: 80.00 (75.0 to 84.0) %", "classifier: 95.00 (94.0 to 96.0) %"]
    bars = [line for line in named(root, "line") if line.get("y1") == line.get("y2")]
    dots = [c for c in named(root, "circle") if len(c)]
    scale = float(bars[0].get("x2", 0)) - float(bars[0].get("x1", 0))
    for bar, dot, (low, at, high) in zip(bars, dots, [(75, 80, 84), (94, 95, 96)], strict=True):
        ends = [float(bar.get(k, 0)) for k in ("x1", "x2")]
        assert ends[1] - ends[0] == pytest.approx(scale * (high - low) / 9, abs=0.02)
        assert float(dot.get("cx", 0)) == pytest.approx(ends[0] + scale * (at - low) / 9, abs=0.02)
    assert dependency_figure(RECORDS) is None
    text = probes.tables(TEXT_RECORDS)
    assert (
        "| det | to head | 900 | 2-11 | 80.00 (75.0 to 84.0) | +1 | 50.00 (45.0 to 55.0) | 0.001 |"
        in text
    )
    assert "| to head | 9 | – | – | – | – | – |" in text
    assert "head and offset were chosen on other sentences" in text
    assert "| det | 900 | 95.00 (94.0 to 96.0) | +1 | 50.00 (45.0 to 55.0) | 0.001 |" in text
    page = probes.page([], TEXT_RECORDS, EVIL).decode()
    assert EVIL not in page
    assert "<td>80.00 (75.0 to 84.0)</td>" in page
    assert "There is no caption" not in page


def test_tables_say_the_numbers_and_escape_what_would_break_them() -> None:
    text = probes.tables(RECORDS)
    assert "| best active head: 2-1, chosen on val | 40.00 (36.0 to 44.0) |" in text
    assert "| most confident region | 17.33 (15.0 to 19.0) |" in text
    assert "| difference, p = 0.001 | 22.67 (20.0 to 25.0) |" in text
    assert "| upper bound: some region is right | 87.00 |" in text
    assert "4,321 entities, 2,000 captions, 400 photos; 2 of 4 heads are active." in text
    assert "| 2 | 41.00 | 2-1 | 40.00 | 2-1 | – | 22.50 | 0 | 9.00 |" in text
    assert "chosen: the best head of other photos" in text
    alone = probes.tables(
        [{k: v for k, v in r.items() if not k.startswith("chosen")} for r in RECORDS]
    )
    assert "| 2 | 40.00 | 2-1 | – | 22.50 | 0 | 9.00 |" in alone
    assert "chosen: " not in alone
    assert "| acl (partmod) | either | 1,234 | 12.00 | 30.00 (25.0 to 35.0) | 2-1 | 0.001 |" in text
    assert "\\| | head | 3 | 0.00 | – | – | – |" in text
    assert probes.tables([]) == ""


def test_controls_have_a_table_and_the_headline_is_what_the_word_adds() -> None:
    kinds = {"kind": "control", "entities": 1234, "head": "2-1"}
    controls = [
        kinds
        | {"control": name, "accuracy": 40.0, "low": 36.0, "high": 44.0}
        | {"baseline": base, "baseline_low": base - 1, "baseline_high": base + 1}
        | {"difference": 40 - base, "difference_low": 1.0, "difference_high": 9.0, "p": 0.02}
        for name, base in (("asked by a caption of another photo", 33.0), ("first region", 44.4))
    ]
    facts = {"word_specific": 7.0, "word_specific_low": 1.0, "word_specific_high": 9.0}
    facts |= {"word_specific_p": 0.02, "annotated_regions": 99.5}
    (summary,) = (record for record in RECORDS if record["kind"] == "summary")
    text = probes.tables([summary | facts, *controls])
    headline = "head minus itself asked by a caption of another photo, p = 0.02"
    assert text.splitlines()[4] == f"| {headline} | 7.00 (1.0 to 9.0) |", "before all other rows"
    row = "1,234 | 40.00 (36.0 to 44.0) | 44.40 (43.4 to 45.4) | -4.40 (1.0 to 9.0) | 0.02 |"
    assert f"| first region | {row}" in text
    assert "99.50 % of the entities have a gold box itself there" in text
    blind = [control | {"same_head": not n} for n, control in enumerate(controls)]
    weaker = blind[1] | {"control": "a random region", "baseline": 20.0}
    page = probes.page([], [summary | facts, *blind, weaker], "encoder").decode()
    assert f"<dt>Best active head ({summary['head']}), chosen on val</dt>" in page
    assert "<dt>Strongest rule that sees no word: first region</dt><dd>44.4 %" in page
    assert "head minus rule -4.4, +1.0 to +9.0" in page
    assert "7.0 <small>1.0 to 9.0</small>" in page


def test_photos_are_found_or_named(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20), "#8a4").save(tmp_path / "a.jpg")
    (tmp_path / "b.jpg").write_bytes(b"none")
    given = [replace(example(image=name), picture=None) for name in ("a.jpg", "b.jpg", "c.jpg")]
    found, faults = probes.with_pictures(given, str(tmp_path))
    assert [e.picture is not None for e in found] == [True, False, False]
    assert [f.split(":")[0] for f in faults] == ["b.jpg", "c.jpg"]


# ------------------------------------------------------------------------------------------ browser


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    evil = example(f"{EVIL} {{{{7*7}}}} \u202e dog", EVIL)
    path.write_bytes(
        probes.page(
            [example(), evil, replace(example(), picture=None, groups=[])], RECORDS, EVIL, EVIL
        )
    )
    return path


def test_the_page_escapes_everything(page: Path) -> None:
    text = page.read_text()
    assert EVIL not in text
    assert "\u202e" not in text
    assert "49" not in text.split("&lt;script", 2)[2][:400]
    assert text.count("<script") == 2
    check_policy(text, "http://www.w3.org/2000/svg")


def test_a_group_has_one_colour_wherever_it_is_shown() -> None:
    """The first phrase has no region near, so the second is the first group."""
    words = [(0, 1), (2, 3)]
    golds = [np.array([[900.0, 900, 910, 910]]), BOXES[:1]]
    groups = make_groups("a b", words, golds, regions(), np.zeros((3, 2, 5)))
    assert [group.name for group in groups] == ["b"]
    shown = replace(example(), text="a b", words=words, groups=groups, weights=np.zeros((3, 2, 5)))
    page = probes.page([shown], RECORDS, "m").decode()
    assert '<li><i class="c0"></i>b' in page
    assert '<rect class="r c0" data-r="0"' in page
    assert '"groups":[{"name":"b","colour":"0","regions":[0,1]}]' in page
    assert COLOURS[0] in example_figure(shown).svg().decode()


@pytest.mark.browser
@pytest.mark.skipif(
    cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)"
)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)])
def test_it_loads_without_errors_or_network_and_fits(
    tab: cdp.Browser, page: Path, width: int, dark: bool
) -> None:
    tab.open(page, width, 900, dark)
    assert tab.errors == []
    assert tab.requests == []
    assert tab.js("document.documentElement.scrollWidth") <= width
    assert tab.js("window.pwned === undefined")
    assert tab.js("document.querySelectorAll('.scene image').length") == 2


@pytest.mark.browser
@pytest.mark.skipif(
    cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)"
)
def test_a_word_shows_its_regions_by_mouse_and_keyboard(tab: cdp.Browser, page: Path) -> None:
    tab.open(page)
    said = "document.querySelector('#e1 .said').textContent"
    assert tab.js(said) == "Click a word."
    tab.click("#e1 .w[data-w='1']")
    assert (
        tab.js(said)
        == f"“dog”, layer 3, head 3-1: A dog 70 %, {EVIL}* 13 %, a cat 5.0 %, all regions 88 %."
    )
    assert tab.js(
        "[...document.querySelectorAll('#e1 .r')].map(b => Number(b.style.fillOpacity).toFixed(3))"
    ) == [
        "0.600",
        "0.096",
        "0.006",
        "0.037",
        "0.000",
    ]
    assert tab.js("document.querySelector('#e1 .r.most').dataset.r") == "0"
    rows = (
        "[...document.querySelectorAll('#e1 .live tbody tr')].map(r => "
        "[...r.cells].map(c => c.textContent).join(' '))"
    )
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
    assert tab.js("document.querySelector('#e3 .said').textContent").endswith(
        "head 3-1: all regions 88 %."
    )
    assert tab.errors == []
