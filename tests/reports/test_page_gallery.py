"""Pages of ten thousand rows in a real headless Chromium: they draw the rows that are seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.reports import cdp
from vgtools.images.maps import Located, Query
from vgtools.reports import located, retrieved, vokens
from vgtools.reports.located import LocatedQuery
from vgtools.reports.page import ImageFile, opening
from vgtools.reports.retrieved import Hits, RetrievedFile, RetrievedText
from vgtools.reports.vokens import BankPictures, Sentence, ShownBank, Token

ROWS = 10_000
PICTURES = 60
MOST = 5000  # nodes of a page, whatever it shows
WORDS = ("a dog", "cats", "runs", "over", "the", "quiet", "hill", "again", "zebra")
NODES = (
    "(() => { const walk = document.createTreeWalker(document, NodeFilter.SHOW_ALL); let n = 1; "
    "while (walk.nextNode()) n++; return n })()"
)
LINES = "[...document.querySelectorAll('article')].map(a => Number(a.id.slice(1)))"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> BankPictures:
    folder = tmp_path_factory.mktemp("pictures")
    files = {}
    for number in range(PICTURES):
        path = folder / f"{number}.png"
        Image.new("RGB", (40, 30), (4 * number, 90, 200 - number)).save(path)
        files[f"photo{number}"] = ImageFile(path)
    return BankPictures(ShownBank([*files]), files)


def in_browser(test: Callable[..., None]) -> Callable[..., None]:
    absent = pytest.mark.skipif(cdp.BINARY is None, reason="no Chromium on this machine")
    return pytest.mark.browser(absent(test))


def sentence(line: int) -> Sentence:
    """Return a line of eight to 23 tokens; only every hundredth has a zebra."""
    words = [WORDS[(line * 7 + i * i) % 8] for i in range(8 + line % 16)]
    words += ["zebra"] * (line % 100 == 0)
    tokens = list[Token]()
    text = ""
    for i, word in enumerate(words):
        start = len(text)
        text += word + " "
        # The first 5,000 lines show half of the pictures.
        voken = (line * i) % 30 + (30 if line > 5000 else 0)
        tokens.append(Token(start, start + len(word), (voken,), ((line + i) % 97 / 97,)))
    return Sentence(line, text, tuple(tokens))


@pytest.fixture(scope="module")
def sentences() -> list[Sentence]:
    return [sentence(line) for line in range(1, ROWS + 1)]


@pytest.fixture(scope="module")
def page(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[Sentence], pictures: BankPictures
) -> Path:
    target = tmp_path_factory.mktemp("page") / "page.html"
    target.write_bytes(vokens.page(sentences, pictures, "v"))
    return target


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as opened:
        yield opened


def scrolled(tab: cdp.Browser, share: float) -> tuple[int, list[int]]:
    """Scroll to a share of the page; return its nodes and the lines that it has drawn."""
    tab.js(
        f"new Promise(done => {{ scrollTo(0, {share} * document.documentElement.scrollHeight);"
        "requestAnimationFrame(() => requestAnimationFrame(done)) })"
    )
    # The window is full of rows, without a gap above or below them.
    assert tab.js(
        "[bar.offsetHeight + 20, innerHeight - 20].every(y => !document.elementFromPoint(400, y)"
        "?.classList.contains('space'))"
    )
    return tab.js(NODES), tab.js(LINES)


def find(tab: cdp.Browser, text: str) -> str:
    tab.js("find.focus(); find.select()")
    tab.press("Delete")
    tab.type(text)
    said: str = tab.js("said.textContent")
    return said


def test_a_large_page_holds_its_first_rows_and_each_picture_once(page: Path) -> None:
    html = page.read_text()
    assert len(html) < 15e6
    assert html.count("data:image/webp") == PICTURES
    assert 10 < html.count("<article") < 40
    assert "of 10,000 sentences; the page’s script shows the others" in html


def test_how_many_rows_a_page_holds_as_they_are() -> None:
    assert opening([]) == 0
    assert opening([16] * 60) == 60  # 1,200 tiles, with 4 for each row
    assert opening([16] * 61) == 20
    assert opening([10_000, 1]) == 1


@in_browser
@pytest.mark.parametrize("width", [360, 1600])
def test_the_rows_that_are_seen_are_drawn_and_no_others(
    tab: cdp.Browser, page: Path, width: int
) -> None:
    tab.open(page, width, 900)
    assert tab.errors == []
    seen = [scrolled(tab, share) for share in (0, 0.3, 0.31, 0.6, 1, 0.2, 0)]
    assert max(nodes for nodes, _ in seen) < MOST
    for _, lines in seen:
        assert lines == list(range(lines[0], lines[0] + len(lines)))
    assert (seen[0][1][0], seen[4][1][-1], seen[6][1][0]) == (1, ROWS, 1)
    assert seen[1][1][0] > 1000
    assert tab.js("document.documentElement.scrollWidth") <= width


@in_browser
def test_find_looks_at_all_rows_and_draws_what_is_seen(
    tab: cdp.Browser, page: Path, sentences: list[Sentence]
) -> None:
    tab.open(page)
    assert find(tab, "Zebra") == "100 tokens in 100 sentences"
    nodes, lines = scrolled(tab, 1)
    assert lines[-1] == ROWS
    assert {line % 100 for line in lines} == {0}
    assert tab.js("[...document.querySelectorAll('main .t')].every(t => t.innerText === 'zebra')")
    # A picture that no first row shows gets its style when a row that has it is drawn.
    assert find(tab, "photo45").endswith(" sentences")
    assert tab.js("document.querySelectorAll('main .t.hit').length") > 10
    assert tab.js(
        "getComputedStyle(document.querySelector('main .t .pic')).backgroundImage"
    ).startswith('url("data:image/webp')
    tokens = sum(
        "dog" in sentence.text[token.start : token.end]
        for sentence in sentences
        for token in sentence.tokens
    )
    rows = sum("dog" in sentence.text for sentence in sentences)
    assert find(tab, "dog") == f"{tokens:,} tokens in {rows:,} sentences"
    assert max(nodes, tab.js(NODES)) < MOST
    assert find(tab, "no such thing") == "0 tokens in 0 sentences"
    assert tab.js("nothing.hidden") is False
    assert find(tab, "") == ""
    assert tab.js(f"{LINES}[0]") == 1
    assert tab.errors == []


@in_browser
def test_links_lead_to_rows_that_are_not_drawn(tab: cdp.Browser, page: Path) -> None:
    top = "(line => document.getElementById('s' + line).getBoundingClientRect().top)"
    tab.visit(f"{page.as_uri()}#s7000")
    assert 0 <= tab.js(f"{top}(7000)") < 120
    assert tab.js("document.querySelector('article.at').id") == "s7000"
    find(tab, "zebra")
    tab.js("new Promise(done => { location.hash = '#s4321'; setTimeout(done, 50) })")
    assert 0 <= tab.js(f"{top}(4321)") < 120  # Find hid it, so it is emptied
    assert tab.js("find.value") == ""
    # Another width keeps the row that was seen.
    tab.call(
        "Emulation.setDeviceMetricsOverride",
        width=500, height=800, deviceScaleFactor=1, mobile=False,
    )  # fmt: skip
    tab.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert -200 <= tab.js(f"{top}(4321)") < 400


@in_browser
def test_paper_and_browsers_without_scripts_get_the_first_rows(
    tab: cdp.Browser, page: Path
) -> None:
    tab.open(page)
    scrolled(tab, 0.5)
    tab.js("window.dispatchEvent(new Event('beforeprint'))")
    lines = tab.js(LINES)
    assert lines == list(range(1, len(lines) + 1))
    assert 200 < len(lines) < 500
    assert tab.js("rest.innerText") == f"The first {len(lines)} of 10,000 rows."
    tab.js("window.dispatchEvent(new Event('afterprint'))")
    assert tab.js(NODES) < MOST
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(page)
        assert tab.js("document.querySelectorAll('article .t .pic').length") > 100
        assert "the page’s script shows the others" in tab.js("document.body.innerText")
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


@in_browser
def test_arrow_keys_walk_beyond_what_is_drawn(tab: cdp.Browser, page: Path) -> None:
    tab.open(page)
    last = tab.js(f"{LINES}.at(-1)")
    tab.js("document.querySelector('.t[data-v]').focus()")
    for _ in range(30 * 20):
        tab.press("ArrowRight")
    line = tab.js("Number(document.activeElement.closest('article').id.slice(1))")
    assert line > last
    assert tab.js("document.activeElement.getBoundingClientRect().bottom <= innerHeight + 1")
    assert tab.js(NODES) < MOST


@in_browser
def test_retrieved_images_and_heat_are_drawn_alike(
    tab: cdp.Browser, tmp_path: Path, pictures: BankPictures
) -> None:
    texts = [
        RetrievedText(n, f"text {n}", (Hits(tuple(range(n % 8 + 1)), (0.5,) * (n % 8 + 1)),))
        for n in range(1, 3001)
    ]
    whole = (0.0, 0.0, 1.0, 1.0)
    heat = np.arange(4.0)
    found = [
        LocatedQuery(
            n, Located(Query(f"query {n}", f"photo{n % PICTURES}", n), heat, (2, 2), whole)
        )
        for n in range(1, 3001)
    ]
    shown = tmp_path / "page.html"
    source = [RetrievedFile("t.jsonl", "t")]
    shown.write_bytes(retrieved.page(texts, [pictures], "t", sources=source))
    tab.open(shown)
    seen = [scrolled(tab, share) for share in (0, 0.5, 1)]
    assert max(nodes for nodes, _ in seen) < MOST
    assert seen[2][1][-1] == 3000
    assert find(tab, "text 2999") == "1 text"
    assert tab.js(LINES) == [2999]
    assert tab.errors == []
    place = BankPictures(located.bank_of(found), pictures.files)
    shown.write_bytes(located.page(found, [place], "h"))
    assert len(shown.read_bytes()) < 2e6
    tab.open(shown)
    # The queries of one photo are together.
    assert tab.js("data.rows.length") == PICTURES
    assert max(scrolled(tab, share)[0] for share in (0, 0.5, 1)) < MOST
    assert find(tab, "query 2999") == "1 query"
    assert tab.js("document.querySelectorAll('figure').length") == 1
    assert tab.errors == []
