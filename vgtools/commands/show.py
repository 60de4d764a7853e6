"""`vg show`: vokens as a page, a contact sheet, a table or tab-separated lines."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from vgtools import io
from vgtools.commands import options
from vgtools.errors import amount

_PAGE, _SHEET = 200, 24  # sentences, unless --limit says otherwise


def show(
    context: typer.Context,
    vokens: Annotated[str, typer.Argument(metavar="VOKENS.jsonl", help="Voken rows; - is standard input.")] = "-",
    images: Annotated[str | None, typer.Option("--images", help="Where the pictures are: image jsonl or a directory.")] = None,
    index: Annotated[str | None, typer.Option("--index", help="Index that the vokens were made with.")] = None,
    ids: Annotated[str | None, typer.Option("--ids", help="Or its image ids alone, one a line.")] = None,
    output: Annotated[str | None, typer.Option("--output", "-o", help="HTML page to write; - is stdout.")] = None,
    png: Annotated[str | None, typer.Option("--png", help="Contact sheet to write; - is stdout.")] = None,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="Sentences to show. [default: 200; 24 with --png alone; all into a pipe]"),
    ] = None,
    quiet: options.Quiet = False,
) -> None:
    """Show vokens: each token with its picture on one HTML page (-o), on a contact sheet (--png), or as text.

    The page is one file that loads nothing: it can be mailed, and opened without a server. Without -o or --png a table goes
    to a terminal; into a pipe go tab-separated lines: line, token, start, end, rank, voken, image id, score.

    Examples:

        vg show vokens.jsonl --index vg.faiss --images images.jsonl -o page.html

        vg show vokens.jsonl --index vg.faiss --images photos/ --png sheet.png --limit 8

        vg show vokens.jsonl --ids vg.ids | head
    """
    if vokens == "-" and sys.stdin is not None and sys.stdin.isatty():
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(io.Exit.USAGE)
    if index is not None and ids is not None:
        raise typer.BadParameter("give --index or --ids, not both")
    drawn = output is not None or png is not None
    if drawn and images is None:
        raise typer.BadParameter("a page or sheet needs --images, the jsonl or directory that the pictures are in")
    if drawn and index is None and ids is None:
        raise typer.BadParameter("a page or sheet needs --index or --ids, which say which image a voken is")
    if output == png == "-":
        raise typer.BadParameter("-o - and --png - cannot share stdout")
    from vgtools.reports import page
    from vgtools.reports import vokens as report

    def note(message: str | None) -> None:
        if message and not quiet:
            print(f"vg show: {io.plain(message)}", file=sys.stderr)

    sources = [name for name in (vokens, images, index, ids) if name not in (None, "-")]
    sources += [str(Path(index).with_suffix(end)) for end in (".ids", ".json")] if index else []
    targets = {name: _target(name, sources) for name in (output, png) if name is not None}
    bank = report.open_bank(ids, index, vokens) if index or ids else None
    rows = report.read_sentences(vokens, len(bank.ids) if bank else None)
    if not drawn or bank is None or images is None:
        _text(report, rows, bank.ids if bank else None, limit, note)
        return
    sentences, more = report.take(rows, limit or (_SHEET if output is None else _PAGE))
    drawable = sentences if limit else sentences[:_SHEET]
    used = report.used_rows(sentences)
    pictures = report.Pictures(bank, page.locate(images, [bank.ids[row] for row in used]))
    if used and not pictures.files:
        raise io.DataError(
            f"has none of the {len(used)} images that the vokens name, such as "
            f"{bank.ids[next(iter(used))]!r:.80}; name the images that the bank was made from",
            images,
            code=io.Exit.NO_INPUT,
        )
    if output is not None:
        html = report.page(
            sentences,
            pictures,
            "standard input" if vokens == "-" else Path(vokens).name,
            more=more,
            credit=page.credit(images),
        )
        _write(targets[output], html)
        note(f"{output}: {amount(len(sentences), 'sentence')}, {len(html) / 1e6:.1f} MB" + _rest(more))
    if png is not None:
        sheet, lacking = report.sheet(drawable, pictures)
        _write(targets[png], sheet)
        note(f"{png}: {amount(len(drawable), 'sentence')}" + _rest(more or len(drawable) < len(sentences)))
        if lacking:
            note(
                f"{png}: its font has no glyph for {len(lacking)} characters ({''.join(lacking[:12])}), drawn as boxes; the "
                "page (-o) shows them"
            )
    note(pictures.complaint(len(used)))


def _rest(more: bool) -> str:
    return "; the file goes on, --limit takes more of it" if more else ""


def _text(report: Any, rows: Any, ids: list[str] | None, limit: int | None, note: Any) -> None:
    """Print a table on a terminal, tab-separated lines elsewhere, sentence by sentence."""
    if not sys.stdout.isatty():
        for number, sentence in enumerate(rows, 1):
            sys.stdout.buffer.write(report.tsv(sentence, ids).encode())
            if number == limit:
                break
        return
    from rich.console import Console

    # The size is asked for here: on a dumb terminal rich takes 80 columns, whatever COLUMNS says.
    width, height = shutil.get_terminal_size()
    console = Console(highlight=False, markup=False, emoji=False, width=width, height=height)
    sentences, more = report.take(rows, limit or _PAGE)
    for sentence in sentences:
        report.table(sentence, ids, console)
    if more:
        note(f"{amount(len(sentences), 'sentence')}" + _rest(more))


def _target(name: str, sources: list[Any]) -> str | Path:
    """Return where a file goes, refused before any work where it cannot; streams (`-`, pipes, devices) stay names."""
    return name if io.is_stream(name) else io.final_path(name, sources)


def _write(target: str | Path, data: bytes) -> None:
    """Write one whole file, or one stream."""
    from vgtools.output import Output

    if isinstance(target, Path):
        io.atomic_write(target, data)
        return
    with Output([target], {}) as out:
        out.write(data)
        out.finish()
