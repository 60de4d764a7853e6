"""`vg demo`: a page of vokens without a training, from the matcher and the pictures of packages."""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vgtools.commands.options import (
    TEXT,
    Count,
    File,
    Flag,
    Runtime,
    Value,
    help_at_terminal,
    is_given,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import amount
from vgtools.io.files import page_path
from vgtools.io.names import is_stream
from vgtools.io.output import write_page_to
from vgtools.io.process import note
from vgtools.serving.start import Address, start

_IMAGES = 4  # per word; the first is shown, the others by a click
_TEXT = """\
The old fisherman pulled a huge crab out of the cold sea.
An angry cat chased the little mouse under the kitchen table.
Two scientists looked at the volcano through a telescope.
He plays the violin in the evening and the trumpet on Sundays.
My grandmother baked bread, cut the cheese and poured the coffee.
The rocket rose above the clouds and headed for the moon.
The farmer counted his sheep, fed the pig and milked the cow.
A bee landed on a sunflower near the garden gate.
"""


@flags
def demo(
    context: typer.Context,
    runtime: Runtime,
    text: Annotated[str | None, TEXT] = None,
    words: Annotated[str | None, Value("WORDS", "--text")] = None,
    output: Annotated[str, File()] = "vg-demo.html",
    limit: Annotated[int, Count()] = 200,
    serve: Annotated[bool, Flag("--serve")] = False,
    no_open: Annotated[bool, Flag("--no-open")] = False,
) -> None:
    """Find an emoji for every word of a text, and open the page: the first command to try.

    A trained matcher and its bank, 1,644 pictures of OpenMoji, come with vgtools[demo]: nothing is
    trained or downloaded. The first call unpacks them into ~/.cache/vgtools. The page is one file,
    as vg show writes it; where no text is given, it shows eight sentences.

    A browser opens only if there is a screen and the command runs at a terminal. The pictures are
    OpenMoji's, CC BY-SA 4.0.

    Examples:

        vg demo

        vg demo poem.txt -o poem.html

        vg demo --text "The dog ate a pizza by the fire."

        vg demo --serve

    Args:
        words: Text to show, instead of a file.
        output: Page to write; - is stdout.
        limit: Lines to show.
        serve: Serve a page to type into, as vg serve --index builtin:emoji; needs vgtools[serve].
        no_open: Open no browser.
    """
    refuse_if(text and words, "--text", "give it or a file, not both")
    idle = [name for name in ("text", "words", "output", "limit") if is_given(context, name)]
    refuse_if(serve and idle, "--serve", "its page asks for the text; leave all of that out")
    help_at_terminal(context, text or "")
    opens = not no_open and sys.stderr.isatty()
    from vgtools.datasets.openmoji import release
    from vgtools.systems.vokenization import emoji

    release()  # where the extra is missing, it is named whole, not package by package
    if serve:

        def ready(url: str, count: int) -> None:
            print(url, flush=True)
            note("demo", f"{amount(count, 'image')}; Ctrl-C stops it")
            _open(url, opens)

        start(Address(port=0), ready, None, index=[str(emoji.bank())], device=runtime.device)
        return
    target = output if is_stream(output) else page_path(output, [text] if text else [])
    texts = (words or _TEXT).splitlines() if text is None else _read(text, limit + 1)
    shown = texts[:limit]
    page = _page(shown, runtime, text or "vg demo", len(texts) > limit)
    write_page_to(target, page)
    note("demo", f"{output}: {amount(len(shown), 'line')}")
    if isinstance(target, Path):
        _open(target.absolute().as_uri(), opens)


def _read(path: str, limit: int) -> list[str]:
    """Return the first lines of a text."""
    from vgtools.io.streams import read_windows

    windows = read_windows(path, limit, limit=limit)
    return [line for window in windows for line in window.texts()]


def _page(texts: Sequence[str], runtime: Runtime, title: str, more: bool) -> bytes:
    """Return the page of the vokens of texts."""
    import orjson

    from vgtools.io.files import dumps
    from vgtools.reports import page, vokens
    from vgtools.retrieval.index import open_indexes
    from vgtools.systems.vokenization import emoji
    from vgtools.systems.vokenization.vokenize import Vokenizer, load_for

    index = str(emoji.bank())
    bank = vokens.open_bank(None, index)
    images = page.own_images(bank.manifest) or ""
    pictures = vokens.BankPictures(bank, page.locate(images, bank.ids))
    found = open_indexes([index])
    matcher = load_for(found, device=runtime.device)
    vokenizer = Vokenizer(matcher, found, k=_IMAGES)
    rows = [orjson.loads(dumps(row)) for row in vokenizer(texts).rows()]
    sentences = [*vokens.read_sentences(title, found.count, iter(enumerate(rows, 1)))]
    probable = vokenizer.calibration is not None
    credit = page.credit(images)
    return vokens.page(sentences, pictures, title, probable=probable, more=more, credit=credit)


def _open(url: str, wanted: bool) -> None:
    """Open an address in a browser, where there is a screen to show it on."""
    screen = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    if wanted and (sys.platform == "darwin" or any(map(os.environ.get, screen))):
        webbrowser.open(url)
