"""The page in a real headless Chromium: it loads, filters, dims, answers the keyboard, and runs
nothing that it was told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.reports import cdp
from vgtools.reports import vokens
from vgtools.reports.page import ImageFile
from vgtools.reports.vokens import BankPictures, Sentence, ShownBank, Token

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)"
    ),
]

SVG = (
    "<svg xmlns='http://www.w3.org/2000/svg' width='60' height='60'>"
    "<rect width='60' height='60' fill='#0a0'/></svg>"
)
ATTACKS = (
    "<script>window.pwned=1</script>",
    "<img/src=x/onerror=window.pwned=1>",
    '"onfocus="window.pwned=1"x="',
    "{{7*7}}",
    "</style><script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "javascript:window.pwned=1",
    "\x1b]8;;http://127.0.0.1:9/\x07",
    "\u202eevil",
)
TEXTS = ("A brown dog runs.", "The dogsled stops", " ".join(ATTACKS), "", "שלום dog")
TILES = 17
BRIGHT = (
    "[...document.querySelectorAll('.t[data-v]:not(.off)')].filter(t => t.getClientRects().length)"
)


def sentence(line: int, text: str, bank: int) -> Sentence:
    tokens = []
    for number, match in enumerate(
        re.finditer(r"[\w]+|\S+", text) if line != 3 else re.finditer(r"\S+", text)
    ):
        voken = -1 if match[0] in (".", "A") else (number + line) % bank
        others = (voken, (voken + 1) % bank) if line == 2 else (voken,)
        tokens.append(
            Token(
                *match.span(),
                others,
                tuple(0.100012 * (number + 1) - 0.05 * i for i in range(len(others))),
            )
        )
    return Sentence(line, text, tuple(tokens))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a page with photos, a drawing that attacks, a missing picture, hostile texts, ids and
    names.
    """
    folder = tmp_path_factory.mktemp("page")
    ids = ["sky.png", "grass.png", "drawing.svg", "lost.png", ATTACKS[0], ATTACKS[5]]
    for name, colour in (("sky", "#38f"), ("grass", "#4a2")):
        Image.new("RGB", (120, 90), colour).save(folder / f"{name}.png")
    (folder / "d.svg").write_text(SVG)
    sky = folder / "sky.png"
    places = {
        ids[0]: ImageFile(sky, None, "the sky, <b>blue</b>"),
        ids[1]: ImageFile(folder / "grass.png"),
        ids[2]: ImageFile(folder / "d.svg"),
        ids[4]: ImageFile(sky, None, ATTACKS[0]),
        ids[5]: ImageFile(folder / "grass.png", None, ATTACKS[4]),
    }
    rows = [sentence(line, text, len(ids)) for line, text in enumerate(TEXTS, 1)]
    bank = ShownBank(ids, {"vg": "1", "matcher": {"run": ATTACKS[0], "fingerprint": ATTACKS[2]}})
    target = folder / f"{ATTACKS[0].replace('/', '')}#?.html"
    target.write_bytes(vokens.page(rows, BankPictures(bank, places), ATTACKS[5], credit=ATTACKS[1]))
    return target


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as browser:
        yield browser


@pytest.fixture
def browser(tab: cdp.Browser, page: Path) -> cdp.Browser:
    tab.open(page)
    return tab


def find(browser: cdp.Browser, text: str) -> int:
    """Type into the filter and return how many tokens still show a picture."""
    browser.js("(e => { e.focus(); e.select() })(document.getElementById('find'))")
    browser.press("Delete")
    browser.type(text)
    return int(browser.js(f"{BRIGHT}.length"))


@pytest.mark.parametrize(
    ("width", "dark"), [(1280, False), (1280, True), (420, False), (420, True)]
)
def test_it_loads_without_errors_or_network_and_fits(
    tab: cdp.Browser, page: Path, width: int, dark: bool
) -> None:
    tab.open(page, width, 900, dark)
    assert tab.errors == []
    assert tab.requests == []
    assert tab.js("document.documentElement.scrollWidth") <= width
    paper = tab.js("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper)[:3])) < 150) is dark
    assert tab.js(
        "document.querySelector('.pic.p0') && "
        "getComputedStyle(document.querySelector('.pic.p0')).backgroundImage.slice(0, 20)"
    ) == ('url("data:image/webp')


def test_pictures_are_painted_where_the_tokens_are(browser: cdp.Browser, tmp_path: Path) -> None:
    browser.screenshot(tmp_path / "shot.png")
    shot = Image.open(tmp_path / "shot.png").convert("RGB")
    for name, colour in (("p1", (0x44, 0xAA, 0x22)), ("p2", (0, 0xAA, 0))):
        x, y = browser.js(
            f"(b => [b.x + b.width / 2, b.y + b.height / "
            f"2])(document.querySelector('.t .pic.{name}').getBoundingClientRect())"
        )
        found = shot.getpixel((round(x), round(y)))
        assert max(abs(a - b) for a, b in zip(found, colour, strict=True)) <= 12, (name, found)


def test_hostile_text_stays_text(browser: cdp.Browser) -> None:
    assert browser.js("window.pwned === undefined")
    assert browser.js("document.scripts.length") == 2
    assert (
        browser.js(
            "document.querySelectorAll('img, iframe, object, embed, svg, "
            'link:not([href="data:,"])\').length'
        )
        == 0
    )
    shown = browser.js("document.getElementById('s3').textContent")
    for attack in ATTACKS[:7]:
        assert attack in shown
    assert "\\x1b]8;;http://127.0.0.1:9/\\x07" in shown
    assert "\\u202eevil" in shown
    # Every card is made from the same hostile texts: open them all.
    count = browser.js("document.querySelectorAll('.t[data-v]').length")
    assert count == TILES
    assert browser.js(
        "[...document.querySelectorAll('.t[data-v]')].map(t => { t.click(); "
        "return document.querySelectorAll('#card script, #card img, #card "
        "[onfocus]').length }).every(n => n === 0)"
    )
    find(browser, "<script>")
    assert browser.js("window.pwned === undefined")
    assert (browser.errors, browser.requests) == ([], [])


def test_the_policy_blocks_what_would_slip_through(browser: cdp.Browser) -> None:
    browser.js(
        "(() => { const s = document.createElement('script'); s.textContent = "
        "'window.pwned = 1'; document.body.append(s);"
        "const i = new Image(); i.src = 'http://127.0.0.1:9/x.png'; document.body.append(i) })()"
    )
    assert browser.js("new Promise(done => setTimeout(() => done(window.pwned === undefined), 50))")
    assert sum("Content Security Policy" in error for error in browser.errors) == 2


def test_the_filter_filters(browser: cdp.Browser) -> None:
    everything = browser.js(f"{BRIGHT}.length")
    assert everything == TILES
    assert find(browser, "DOG") == 3  # dog, dogsled, dog
    texts = browser.js(f"{BRIGHT}.map(t => t.textContent)")
    assert texts == ["dog", "dogsled", "dog"]
    assert browser.js("document.getElementById('said').textContent") == "3 tokens in 3 sentences"
    assert browser.js(
        "[...document.querySelectorAll('article')].filter(a => !a.hidden).map(a => a.id)"
    ) == ["s1", "s2", "s5"]
    assert "brown" in browser.js(
        "document.getElementById('s1').innerText"
    )  # the sentence is still there to read
    assert find(browser, "grass.png") == browser.js(
        "document.querySelectorAll('main .t .p1').length"
    )
    assert find(browser, "the sky") == browser.js("document.querySelectorAll('main .t .p0').length")
    assert find(browser, "no such thing") == 0
    assert browser.js("document.getElementById('nothing').hidden") is False
    assert find(browser, "") == everything


def test_a_most_used_picture_finds_its_tokens(browser: cdp.Browser) -> None:
    browser.js("document.querySelector('.hubs').open = true")
    wanted = browser.js("document.querySelector('[data-find]').dataset.find")
    browser.click("[data-find]")
    assert browser.js("document.getElementById('find').value") == wanted
    assert browser.js(f"{BRIGHT}.length") == browser.js(
        "parseInt(document.querySelector('[data-find]').textContent)"
    )


def test_the_slider_dims_what_is_below_it(browser: cdp.Browser) -> None:
    low = "[...document.querySelectorAll('.low')].length"
    assert browser.js(low) == 0
    browser.js("document.getElementById('score').focus()")
    browser.press("End")
    top = browser.js(
        "Math.max(...[...document.querySelectorAll('.t[data-v]')].map(t => Number(t.dataset.s)))"
    )
    assert browser.js(
        "[...document.querySelectorAll('.t[data-v]:not(.low)')].every(t => Number(t.dataset.s) === "
        + f"{top})"
    )
    dimmed = browser.js(low)
    assert 0 < dimmed < TILES
    assert (
        browser.js("document.getElementById('said').textContent")
        == f"{dimmed} of {TILES} pictures dimmed"
    )
    assert (
        browser.js("getComputedStyle(document.querySelector('.low .pic')).filter") == "grayscale(1)"
    )
    browser.press("Home")
    assert browser.js(low) == 0


def test_chance_is_dimmed_from_the_start(tab: cdp.Browser, page: Path, tmp_path: Path) -> None:
    Image.new("RGB", (20, 20), "#38f").save(tmp_path / "sky.png")
    bank = BankPictures(ShownBank(["sky"]), {"sky": ImageFile(tmp_path / "sky.png")})
    scores = (0.9, 0.5, 0.3, 0.2)
    tokens = tuple(Token(2 * i, 2 * i + 1, (0,), (x,)) for i, x in enumerate(scores))
    target = tmp_path / "page.html"
    target.write_bytes(vokens.page([Sentence(1, "a b c d", tokens)], bank, "v", probable=True))
    tab.open(target)
    low = "[...document.querySelectorAll('main .low')].map(t => t.dataset.s)"
    told = "document.getElementById('odds').innerText"
    assert tab.js(low) == ["0.3", "0.2"]
    assert tab.js(told).startswith("2 of 4 pictures are right with a probability of at least 0.50")
    assert "about 1 of them" in tab.js(told)
    tab.js("document.getElementById('score').focus()")
    tab.press("Home")
    assert tab.js(low) == []
    assert tab.js(told).startswith("4 of 4 pictures are right with a probability of at least 0.00")
    assert "about 2 of them" in tab.js(told)
    tab.click("main .t[data-v]")
    assert "voken 0, probability 0.9" in tab.js("document.getElementById('card').innerText")
    assert tab.errors == []


def test_the_mouse_and_the_keyboard_show_the_score(browser: cdp.Browser) -> None:
    card = "document.getElementById('card')"
    assert browser.js(f"{card}.hidden")
    browser.hover("#s1 .t[data-v]")
    assert browser.js(f"{card}.innerText").split("\n")[:2] == ["brown", "0.20"]
    browser.hover("h1")
    assert browser.js(f"{card}.hidden")
    # Keyboard: Tab from the slider reaches the first sentence, arrows walk on over sentences, Enter
    # keeps, Escape closes.
    browser.js("document.getElementById('score').focus()")
    while browser.js("!document.activeElement.closest('.t')"):
        browser.press("Tab")
    assert browser.js("document.activeElement.textContent") == "brown"
    assert browser.js(f"{card}.hidden") is False
    assert "relevance 0.2" in browser.js(f"{card}.innerText")
    assert browser.js("document.activeElement.getAttribute('aria-label')").endswith(
        ", relevance 0.2"
    )
    for _ in range(3):
        browser.press("ArrowRight")
    assert browser.js("document.activeElement.textContent") == "The"
    assert "voken 2, relevance 0.1" in browser.js(f"{card}.innerText")
    assert browser.js(f"{card}.querySelectorAll('li').length") == 2  # -k 2: both, with their scores
    browser.press("Enter")
    browser.hover("h1")
    assert browser.js(f"{card}.hidden") is False
    browser.press("Escape")
    assert browser.js(f"{card}.hidden")
    assert browser.js("document.activeElement.textContent") == "The"
    browser.press("ArrowLeft")
    assert browser.js("document.activeElement.textContent") == "runs"
    assert browser.js("document.querySelectorAll('#s1 .t[tabindex=\"0\"]').length") == 1
    assert browser.errors == []


def test_a_card_leads_to_all_tokens_of_its_picture(browser: cdp.Browser) -> None:
    browser.click("#s1 .t[data-v]")
    picture = browser.js("document.querySelector('#card .id').textContent")
    browser.click("#card .acts button")
    assert browser.js("document.getElementById('find').value") == picture
    assert browser.js("document.getElementById('card').hidden")


def test_without_scripts_the_page_still_shows_everything(tab: cdp.Browser, page: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(page)
        assert (
            tab.js("document.querySelectorAll('.t[data-v][title*=\"relevance\"]').length") == TILES
        )
        assert tab.js("getComputedStyle(document.querySelector('.bar')).display") == "none"
        assert tab.js("document.querySelector('.t .pic').getBoundingClientRect().height") == 66
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
