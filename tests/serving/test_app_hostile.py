"""Every panel of the page, with texts, captions, names and ids that are HTML: nothing runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from tests.reports import cdp
from tests.serving.client import Server
from tests.serving.test_app_page import faults, until
from tests.tiny import probe, save_grids, write_manifest
from tests.tiny.images import save_photo
from vgtools.cli import run

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        cdp.BINARY is None, reason="no Chromium on this machine (apt-get install chromium)"
    ),
]

ATTACKS = (
    "<img/src=x/onerror=window.pwned=1>",
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "</title></style></textarea><svg/onload=window.pwned=1>",
    '"autofocus/onfocus="window.pwned=1',
    "javascript:window.pwned=1//",
    "{{7*7}}${window.pwned=1}",
)
# An element or attribute that a text would have become.
BECAME = (
    "[onerror], [onload], [onfocus], [href^=javascript], img[src=x], iframe, object, embed,"
    " article script, #card script, #heads script"
)


@pytest.fixture(scope="module")
def hostile(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server of pictures, regions and captions whose every name is an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    ids = [f"{attack} {number}" for number, attack in enumerate(ATTACKS)]
    feats = np.load(tiny / "feats.npy")[: len(ids)]
    np.save(folder / "feats.npy", feats)
    table = folder / "feats.ids"
    table.write_text("".join(f"{name}\n" for name in ids))
    made = json.loads((tiny / "feats.json").read_text())["backbone"]
    paths = [folder / "feats.npy", table]
    write_manifest(paths[0], paths, kind="image-features", backbone=made)
    index = folder / "<img src=x onerror=window.pwned=1>.faiss"
    given = ("build-index", paths[0], "-m", tiny / "run", "-o", index, "--device", "cpu", "-q")
    assert run([*map(str, given)]) == 0
    for number in range(len(ids)):
        save_photo(folder / f"{number}.png", number)
    rows = [
        {"image": name, "path": f"{number}.png", "names": [ATTACKS[-1 - number]]}
        for number, name in enumerate(ids)
    ]
    probe.save_rows(folder / "images.jsonl", rows)
    save_grids(folder / "grid.npy", np.repeat(feats[:, None], 4, 1), ids)
    sets = dict(zip(ids, probe.region_sets(len(ids)).values(), strict=True))
    for each in sets.values():
        labels = [ATTACKS[n % len(ATTACKS)] for n in range(len(each))]
        object.__setattr__(each, "labels", labels)
    probe.save_regions(folder / "regions.npy", sets)
    captions = [{"image": name, "text": text} for name in ids for text in ATTACKS]
    probe.save_rows(folder / "captions.jsonl", captions)
    probe.save_visualbert(folder / "visualbert")
    flags = {
        "index": index,
        "images": folder / "images.jsonl",
        "feats": folder / "grid.npy",
        "regions": folder / "regions.npy",
        "encoder": folder / "visualbert",
        "captions": folder / "captions.jsonl",
    }
    running = Server(*(word for name, path in flags.items() for word in (f"--{name}", path)))
    yield running
    assert running.stop() == (0, b"")


@pytest.fixture(scope="module")
def tab() -> Iterator[cdp.Browser]:
    with cdp.Browser() as browser:
        yield browser


def check(tab: cdp.Browser, server: Server) -> None:
    """Assert that no text that the page shows has become a part of it, or was run."""
    assert tab.js("typeof window.pwned") == "undefined"
    assert tab.js(f'document.querySelectorAll("{BECAME}").length') == 0
    assert tab.js("document.scripts.length") == 2
    assert all(url.startswith(server.url) for url in tab.requests)
    assert faults(tab) == []


def test_words_pictures_and_heat(tab: cdp.Browser, hostile: Server) -> None:
    tab.visit(hostile.url + "#t=" + quote("\n".join(ATTACKS)) + f"&w={quote(ATTACKS[0])}", 1280)
    until(tab, f"document.querySelectorAll('#lines article').length == {len(ATTACKS)}")
    shown = tab.js("[...document.querySelectorAll('#lines .s')].map(one => one.textContent)")
    assert shown == list(ATTACKS)
    names = set()
    for line in range(len(ATTACKS)):
        tab.js(f"document.querySelector('article[data-line=\"{line}\"] .t[data-n]').click()")
        names.add(until(tab, "!card.hidden && document.querySelector('#card .id').textContent"))
        tab.js("document.querySelector('#card .acts button').click()")
        until(
            tab,
            "document.querySelector('#card canvas') !== null || /no heat/.test(card.textContent)",
        )
        check(tab, hostile)
        tab.js("document.querySelector('#card .acts button:last-child').click()")
    tab.js("document.querySelector('#lines .found button').click()")
    until(tab, "!card.hidden && document.querySelector('#card .id').textContent")
    assert names <= {f"{attack} {number}" for number, attack in enumerate(ATTACKS)}
    check(tab, hostile)


def test_heads(tab: cdp.Browser, hostile: Server) -> None:
    first = f"{ATTACKS[0]} 0"
    state = f"i={quote(first)}&q={quote(' '.join(ATTACKS[:2]))}&a={quote(ATTACKS[1])}&h=1.1"
    tab.visit(f"{hostile.url}#{state}", 1280)
    until(tab, "words.textContent.startsWith('<img/src=x')")
    check(tab, hostile)
    for row in range(len(ATTACKS)):
        tab.js(f"document.querySelector('#shelf [data-row=\"{row}\"]').click()")
        assert tab.js("phrase.value") == ATTACKS[0]
        listed = tab.js("[...given.querySelectorAll('button')].map(one => one.textContent)")
        assert listed == list(ATTACKS)
        tab.js(f"given.querySelectorAll('button')[{row}].click()")
        until(tab, f"words.textContent == {json.dumps(ATTACKS[row])}")
        tab.js("words.querySelector('.w').click()")
        until(tab, "looks.textContent.startsWith('“')")
        assert ATTACKS[0] in tab.js("scene.textContent")  # labels of the regions
        assert ATTACKS[0] in tab.js("most.textContent")
        check(tab, hostile)
    tab.js("seek.focus()")
    tab.type(ATTACKS[1])
    until(tab, f"sought.textContent.endsWith(' of {len(ATTACKS)} pictures')")
    check(tab, hostile)


def test_the_api_s_page(tab: cdp.Browser, hostile: Server) -> None:
    tab.visit(f"{hostile.url}docs", 800)
    check(tab, hostile)
