"""`vg show`: vokens as a page, a contact sheet, a table or tab-separated lines."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vgtools import io
from vgtools.commands.options import Count, File, Quiet, flags, help_at_terminal, note, refuse_if
from vgtools.io.errors import amount

if TYPE_CHECKING:
    from vgtools.reports.vokens import Bank, Pictures, Sentence

_PAGE = 200  # sentences, unless --limit says otherwise
_SHEET = 24


@flags
def show(
    context: typer.Context,
    vokens: Annotated[
        str, typer.Argument(metavar="VOKENS", help="Voken rows (jsonl); - is standard input.")
    ] = "-",
    images: Annotated[str | None, File("Where the images are: image jsonl or a directory.")] = None,
    index: Annotated[str | None, File("Index that the vokens were made with.")] = None,
    ids: Annotated[str | None, File("Or its image ids alone, one per line.")] = None,
    output: Annotated[
        str | None, File("HTML page to write; - is stdout.", "--output", "-o")
    ] = None,
    png: Annotated[str | None, File("Contact sheet to write; - is stdout.")] = None,
    limit: Annotated[
        int | None,
        Count(
            "Sentences to show.",
            show_default=f"{_PAGE}; {_SHEET} with --png alone; all into a pipe",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show vokens: tokens with their images on an HTML page (-o), a sheet (--png), or as text.

    The page is one file that loads nothing: it can be mailed, and opened without a server. Without
    -o or --png a table goes to a terminal; into a pipe go tab-separated lines: line, token, start,
    end, rank, voken, image id, score.

    Examples:

        vg show vokens.jsonl --index vg.faiss --images images.jsonl -o page.html

        vg show vokens.jsonl --index vg.faiss --images photos/ --png sheet.png --limit 8

        vg show vokens.jsonl --ids vg.ids | head
    """
    help_at_terminal(context, vokens)
    _check(images, index, ids, output, png)
    from vgtools.reports import page
    from vgtools.reports import vokens as report

    sources = [name for name in (vokens, images, index, ids) if name not in (None, "-")]
    if index:
        sources += [str(Path(index).with_suffix(end)) for end in (".ids", ".json")]
    targets: dict[str, str | Path] = {  # refused before any work; streams stay names
        name: name if io.is_stream(name) else io.final_path(name, sources)
        for name in (output, png)
        if name is not None
    }
    bank = report.open_bank(ids, index, vokens) if index or ids else None
    rows = report.read_sentences(vokens, len(bank.ids) if bank else None)
    if not targets or bank is None or images is None:
        _print(rows, bank.ids if bank else None, limit, quiet)
        return
    sentences, more = report.take(rows, limit or (_SHEET if output is None else _PAGE))
    pictures = _find_pictures(sentences, bank, images)
    if output is not None:
        title = "standard input" if vokens == "-" else Path(vokens).name
        credit = page.credit(images)
        html = report.page(sentences, pictures, title, more=more, credit=credit)
        _write(targets[output], html)
        size = f"{amount(len(sentences), 'sentence')}, {len(html) / 1e6:.1f} MB"
        note("show", f"{output}: {size}{_rest(more)}", quiet)
    if png is not None:
        shown = sentences if limit else sentences[:_SHEET]
        sheet, lacking = report.sheet(shown, pictures)
        _write(targets[png], sheet)
        rest = _rest(more or len(shown) < len(sentences))
        note("show", f"{png}: {amount(len(shown), 'sentence')}{rest}", quiet)
        if lacking:
            some = f"{len(lacking)} characters ({''.join(lacking[:12])})"
            why = f"its font has no glyph for {some}, drawn as boxes; the page (-o) shows them"
            note("show", f"{png}: {why}", quiet)
    complaint = pictures.complaint(len(report.used_rows(sentences)))
    if complaint:
        note("show", complaint, quiet)


def _check(
    images: str | None, index: str | None, ids: str | None, output: str | None, png: str | None
) -> None:
    """Refuse flags that contradict one another."""
    refuse_if(None not in (index, ids), None, "give --index or --ids, not both")
    drawn = output is not None or png is not None
    why = "a page or sheet needs --images, the jsonl or directory that the images are in"
    refuse_if(drawn and images is None, None, why)
    why = "a page or sheet needs --index or --ids, which say which image a voken is"
    refuse_if(drawn and index is None and ids is None, None, why)
    refuse_if(output == png == "-", None, "-o - and --png - cannot share stdout")


def _find_pictures(sentences: Sequence[Sentence], bank: Bank, images: str) -> Pictures:
    """Return the images that sentences use.

    Raises:
        DataError: none of them is there.
    """
    from vgtools.reports import page
    from vgtools.reports import vokens as report

    used = report.used_rows(sentences)
    pictures = report.Pictures(bank, page.locate(images, [bank.ids[row] for row in used]))
    if used and not pictures.files:
        example = f"{bank.ids[next(iter(used))]!r:.80}"
        why = f"has none of the {len(used)} images that the vokens name, such as {example}"
        why += "; name the images that the bank was made from"
        raise io.DataError(why, images, code=io.Exit.NO_INPUT)
    return pictures


def _rest(more: bool) -> str:
    return "; the file continues, --limit shows more" if more else ""


def _print(rows: Iterator[Sentence], ids: list[str] | None, limit: int | None, quiet: bool) -> None:
    """Print a table on a terminal, tab-separated lines elsewhere, sentence by sentence."""
    from vgtools.reports import vokens as report

    if not sys.stdout.isatty():
        for number, sentence in enumerate(rows, 1):
            sys.stdout.buffer.write(report.tsv(sentence, ids).encode())
            if number == limit:
                break
        return
    from rich.console import Console

    # On a dumb terminal rich would take 80 columns, whatever COLUMNS says.
    width, height = shutil.get_terminal_size()
    console = Console(highlight=False, markup=False, emoji=False, width=width, height=height)
    sentences, more = report.take(rows, limit or _PAGE)
    for sentence in sentences:
        report.table(sentence, ids, console)
    if more:
        note("show", f"{amount(len(sentences), 'sentence')}{_rest(more)}", quiet)


def _write(target: str | Path, data: bytes) -> None:
    """Write one whole file, or one stream."""
    from vgtools.io.output import Output

    if isinstance(target, Path):
        io.atomic_write(target, data)
        return
    with Output([target], {}) as out:
        out.write(data)
        out.finish()
