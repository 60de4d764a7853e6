"""Pages in a real Chromium with texts that are HTML in every place: nothing of it runs.

Pages of vokens, retrieved rows, heat and probes have such texts in the tests of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from tests.reports import cdp, test_curves, test_measured
from tests.reports.test_assets import ATTACKS
from vgtools.reports import curves
from vgtools.reports.drawing import DARK_STYLE, Figure
from vgtools.reports.measured import forest_page
from vgtools.reports.page import render
from vgtools.reports.strips import ShownRows, strip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)"
    ),
]


def of_curves(folder: Path) -> bytes:
    made = []
    for number, attack in enumerate(ATTACKS):
        more = {each: 1.0 / n for n, each in enumerate(ATTACKS, 1)}
        rows = [test_curves.record(step, 1.0 / step, **more) for step in (1, 2)]
        name = attack.replace("/", "∕").replace("\x1b", "") + str(number)
        made.append(test_curves.save(folder / "runs" / name, rows))
    return curves.page(curves.read_curves(made), ATTACKS[4])


def of_measures(folder: Path) -> bytes:
    facts = {"evaluation": ATTACKS[4], "group": ATTACKS[5], "statistic": ATTACKS[1]}
    rows = [test_measured.record(attack, 0.5, **facts) for attack in ATTACKS]
    return forest_page(rows, ATTACKS[0])


def of_sections(folder: Path) -> bytes:
    figure = Figure(100, 20 * len(ATTACKS), ATTACKS[4])
    for number, attack in enumerate(ATTACKS, 1):
        figure.text(4, 20 * number, attack)
    shown = [(attack, Markup(figure.svg(standalone=False).decode())) for attack in ATTACKS]
    return render("compared", ATTACKS[5], None, styles=[DARK_STYLE], sections=shown)


def of_strips(folder: Path) -> bytes:
    rows: list[dict[str, Any]] = []
    for attack in ATTACKS:
        spans = [[0, 1], [1, len(attack)]]
        rows += [
            {"text": attack, "spans": spans, "vokens": [0, 1], "scores": [0.5, 0.25]},
            {"text": attack, "images": [0, 1], "scores": [0.5, 0.25]},
            {"text": attack, "image": attack, "grid": [1, 2], "heat": [0, 1], "point": [0.7, 0.5]},
        ]
    parts = (strip([row], ShownRows([*ATTACKS[:2]], None, True)) for row in rows)
    # As a notebook shows them: no policy of ours protects it.
    return "".join(["<!DOCTYPE html><link rel=icon href='data:,'><body>", *parts]).encode()


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as browser:
        yield browser


@pytest.mark.parametrize("make", [of_curves, of_measures, of_sections, of_strips])
def test_texts_stay_texts(make: Callable[[Path], bytes], tab: cdp.Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(make(tmp_path))
    tab.open(page)
    assert "onerror=window.pwned=1" in tab.js("document.body.innerText")
    assert tab.js("document.scripts.length") == (0 if make is of_strips else 2)
    became = "[onerror], [onfocus], [href^=javascript], img[src=x], iframe, object, embed"
    assert tab.js(f'document.querySelectorAll("{became}").length') == 0
    tab.js("document.querySelectorAll('button, summary').forEach(one => one.click())")
    assert tab.js("new Promise(done => setTimeout(() => done(typeof window.pwned), 50))") == (
        "undefined"
    )
    assert (tab.errors, tab.requests) == ([], [])
