"""The page of retrieved images in a real headless Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.reports import cdp
from vgtools.reports import retrieved
from vgtools.reports.page import ImageFile
from vgtools.reports.retrieved import Hits, RetrievedFile, RetrievedText
from vgtools.reports.vokens import BankPictures, ShownBank

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)"
    ),
]

EVIL = "<img/src=x/onerror=window.pwned=1>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write three texts with eight and four images of two strategies."""
    folder = tmp_path_factory.mktemp("page")
    places = {}
    for i in range(9):
        name = EVIL if i == 4 else f"photo{i}"
        Image.new("RGB", (300, 200), (25 * i, 40, 90)).save(folder / f"{i}.png")
        places[name] = ImageFile(folder / f"{i}.png", None, EVIL if i == 2 else "")
    pictures = BankPictures(ShownBank([*places, "lost"]), places)
    hits = Hits(tuple(range(8)), tuple(0.9 - 0.1 * i for i in range(8)))
    few = Hits((9, 8, 4, 2), (3.0, 2.0, 2.0, 1.0))
    texts = [
        RetrievedText(1, f"A dog runs {EVIL}", (hits, few), "photo8"),
        RetrievedText(2, "Two cats " + "x" * 300, (few, hits)),
        RetrievedText(3, "", (Hits((), ()), Hits((), ()))),
    ]
    sources = [RetrievedFile("a.jsonl", "scene"), RetrievedFile("b.jsonl", EVIL)]
    target = folder / "page.html"
    target.write_bytes(retrieved.page(texts, [pictures] * 2, EVIL, sources=sources))
    return target


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as browser:
        yield browser


@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (1280, True), (390, False), (390, True)]
)
def test_it_loads_without_errors_or_network_and_fits(
    tab: cdp.Browser, page: Path, width: int, dark: bool
) -> None:
    tab.open(page, width, 900, dark)
    assert tab.errors == []
    assert tab.requests == []
    assert tab.js("typeof window.pwned") == "undefined"
    assert tab.js("document.documentElement.scrollWidth") <= width
    assert tab.js("document.querySelectorAll('button.pic').length") == 24
    assert tab.js("[...document.querySelectorAll('.pic')].every(p => p.offsetHeight > 60)")


def test_a_click_opens_a_card_and_escape_closes_it(tab: cdp.Browser, page: Path) -> None:
    tab.open(page)
    tab.js("document.querySelector('article .own .pic').click()")
    assert tab.js("document.getElementById('card').hidden") is False
    assert tab.js("document.querySelector('#card .id').textContent") == (
        "2. photo8, 2, the text's own image"
    )
    box = tab.js(
        "(b => [b.left, b.top, b.right, b.bottom])"
        "(document.getElementById('card').getBoundingClientRect())"
    )
    assert min(box[:2]) >= 0
    assert box[2] <= 1280
    assert box[3] <= 900
    tab.press("Escape")
    assert tab.js("document.getElementById('card').hidden") is True
    assert tab.js("document.activeElement.title").startswith("2. photo8")
    tab.press("ArrowRight")
    assert tab.js("document.activeElement.title").startswith("3. <img")
    assert tab.js("typeof window.pwned") == "undefined"


def test_texts_and_image_ids_are_found(tab: cdp.Browser, page: Path) -> None:
    tab.open(page)

    def shown() -> list[int]:
        return [
            tab.js("[...document.querySelectorAll('article')].filter(a => !a.hidden).length"),
            tab.js("document.querySelectorAll('.pic:not(.off)').length"),
        ]

    tab.js("document.getElementById('find').focus()")
    tab.type("cats")
    assert shown() == [1, 12]  # all pictures of the text that has the word
    tab.js("document.getElementById('find').select()")
    tab.type("photo7")
    assert shown() == [2, 2]
    assert tab.js("document.getElementById('said').textContent") == "2 texts, 2 pictures"
    tab.js("document.getElementById('find').select()")
    tab.type("zebra")
    assert shown()[0] == 0
    assert tab.js("document.getElementById('nothing').hidden") is False
