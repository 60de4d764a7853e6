"""Small pictures on a terminal: half blocks here, where no terminal answers."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from vgtools.images.maps import Located, Query
from vgtools.reports import located, retrieved, terminal, vokens
from vgtools.reports.located import LocatedQuery
from vgtools.reports.page import ImageFile
from vgtools.reports.retrieved import Hits, RetrievedFile, RetrievedText
from vgtools.reports.vokens import BankPictures, Sentence, ShownBank, Token

# textual-image asks Pillow for pixels in a way that Pillow 14 will not have.
pytestmark = pytest.mark.filterwarnings("ignore:Image.Image.getdata:DeprecationWarning")
RED = "255;0;0"


def draw() -> terminal.Draw:
    from textual_image.renderable import HalfcellImage

    return HalfcellImage


@pytest.fixture
def place(tmp_path: Path) -> BankPictures:
    files = {}
    for name, colour in (("a.png", "#ff0000"), ("b.png", "#0000ff")):
        Image.new("RGB", (90, 60), colour).save(tmp_path / name)
        files[name] = ImageFile(tmp_path / name, name=f"the {name[0]}")
    return BankPictures(ShownBank(["a.png", "b.png", "lost.png"]), files)


def console(width: int = 60) -> tuple[Console, StringIO]:
    out = StringIO()
    made = Console(file=out, width=width, force_terminal=True, color_system="truecolor")
    return made, out


TOKENS = (Token(0, 1, (0,), (0.75,)), Token(2, 5, (1,), (0.25,)), Token(5, 6, (-1,), (0.0,)))
SENTENCE = Sentence(3, "A dog.", TOKENS)


def test_tokens_have_their_pictures_and_what_they_show_below(place: BankPictures) -> None:
    made, out = console()
    vokens.table(SENTENCE, place.bank.ids, made, [place], draw())
    text = out.getvalue()
    assert text.count(f"38;2;{RED};48;2;{RED}m▀") == 12 * 6
    assert text.count("38;2;0;0;255;48;2;0;0;255m▀") == 12 * 6
    assert "the a" in text
    assert "0.750" in text
    assert "voken" not in text


def test_probable_errors_are_grey(place: BankPictures) -> None:
    made, out = console()
    vokens.table(SENTENCE, place.bank.ids, made, [place], draw(), probable=True)
    text = out.getvalue()
    assert f"38;2;{RED};48" in text
    assert "0;0;255" not in text
    assert "38;2;29;29;29;" in text  # the luma of blue


def test_tables_name_what_pictures_show_where_nothing_can_be_drawn(place: BankPictures) -> None:
    made, out = console()
    vokens.table(SENTENCE, place.bank.ids, made, [place])
    assert "the a" in out.getvalue()
    assert "shows" in out.getvalue()
    assert "▀" not in out.getvalue()
    text = RetrievedText(1, "a dog", (Hits((1, 2), (0.5, 0.25)),))
    retrieved.table(text, [RetrievedFile("t", "t", place.bank)], made, [place])
    assert "the b" in out.getvalue()


def test_texts_have_the_pictures_of_every_strategy(place: BankPictures) -> None:
    made, out = console()
    hits = (Hits((0, 2), (3.0, 1.0)), Hits((), ()))
    sources = [RetrievedFile(name, name, place.bank) for name in ("scene", "object")]
    text = RetrievedText(1, "a dog", hits)
    retrieved.table(text, sources, made, [place, place], draw())
    shown = out.getvalue()
    assert shown.count(f"{RED};48;2;{RED}m▀") == 12 * 6
    assert "lost.png" in shown  # without its picture
    assert shown.index("scene") < shown.index("▀") < shown.index("object")
    assert "no images" in shown


def test_heat_is_drawn_on_its_photo(place: BankPictures) -> None:
    made, out = console(30)
    query = Query("a dog", "a.png", 1)
    found = LocatedQuery(1, Located(query, np.arange(4.0), (2, 2), (0.0, 0.0, 1.0, 1.0)))
    located.table(found, made, [place], draw())
    lines = [line for line in out.getvalue().splitlines() if "▀" in line]
    assert (len(lines), lines[0].count("▀")) == (10, 30)  # 90 x 60, a cell twice as high as wide
    assert "▓" not in out.getvalue()


@pytest.mark.parametrize(
    ("options", "tty"),
    [
        ({"no_color": True}, True),
        ({"color_system": None}, True),
        ({"force_terminal": False}, True),
        ({}, False),
    ],
)
def test_nothing_is_drawn_where_it_could_not_be_seen(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, object], tty: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdin", StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: tty, raising=False)
    facts = {"file": StringIO(), "force_terminal": True, "color_system": "truecolor"} | options
    assert terminal.painter(Console(**facts)) is None  # type: ignore[arg-type]


def test_the_library_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdin", StringIO())
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    made, _ = console()
    assert terminal.painter(made) is not None
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert terminal.painter(made) is None
