"""`vg show`: vokens, retrieved images or heat as a page, a contact sheet, a table or lines."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import Argument, Count, File, Quiet, help_at_terminal, refuse_if
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, Exit, amount, file_errors
from vgtools.io.files import page_path, refuse_same
from vgtools.io.names import is_stream, is_url
from vgtools.io.output import write_page_to
from vgtools.io.process import note

if TYPE_CHECKING:
    from vgtools.reports.views import View
    from vgtools.reports.vokens import BankPictures, ShownBank

_PAGE = 200  # sentences, unless --limit is given
_SHEET = 24


@flags
def show(
    context: typer.Context,
    rows: Annotated[list[str] | None, Argument("ROWS")] = None,
    images: Annotated[list[str] | None, File("--images")] = None,
    index: Annotated[list[str] | None, File("--index")] = None,
    ids: Annotated[list[str] | None, File("--ids")] = None,
    output: Annotated[str | None, File()] = None,
    png: Annotated[str | None, File()] = None,
    limit: Annotated[
        int | None, Count(show_default=f"{_PAGE}; {_SHEET} with --png alone; all into a pipe")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Show the images of tokens or texts on a page (-o), a sheet (--png) or as text; or trainings.

    Rows of vg vokenize: tokens with their images. Rows of vg retrieve: texts, and below each its
    images with their scores. Several files of the same texts are shown side by side; --index, --ids
    and --images are then given once for all, or once per file in the same order. Rows of vg locate:
    pictures with heat, the hottest cell and known boxes; they name their pictures, so --images is
    enough.

    The page is one file that loads nothing: it can be mailed, and opened without a server. Without
    -o or --png a table goes to a terminal, and with --images and vgtools[terminal] the pictures,
    small; into a pipe go tab-separated lines: line, token, start, end, rank, voken, image id,
    score; or line, file, rank, row, image id, score, text; or line, image id, x, y, hit or miss,
    text.

    Folders of trainings, finished or not: curves of the numbers in their metrics.jsonl, over one
    another, as a page, or by the ending of -o as .svg, .png or .pdf.

    Examples:

        vg show vokens.jsonl --index vg.faiss --images images.jsonl -o page.html

        vg show vokens.jsonl --index vg.faiss --images photos/ --png sheet.png --limit 8

        vg show vokens.jsonl --index vg.faiss --images photos/ --limit 2

        vg show vokens.jsonl --ids vg.ids | head

        vg show a.jsonl b.jsonl --index a.faiss --index b.faiss --images photos/ -o page.html

        vg show heat.jsonl --images images.jsonl --png sheet.png --limit 8

        vg show mlm vokens -o curves.html

    Args:
        rows: Rows of vg vokenize, vg retrieve or vg locate (jsonl), or runs; - is stdin.
        images: Where the images are: image jsonl, a directory, or tars; builtin:emoji has its own.
        index: Index that the rows were made with.
        ids: Or its image ids alone, one per line.
        output: HTML page to write, of runs also a figure; - is stdout.
        png: Contact sheet to write; - is stdout.
        limit: Sentences to show.
    """
    paths = rows or ["-"]
    help_at_terminal(context, *paths)
    places, indexes, lists = (values or [] for values in (images, index, ids))
    from vgtools.io.written import manifest_beside
    from vgtools.reports import page
    from vgtools.reports import vokens as report
    from vgtools.reports.curves import is_run

    if any(map(is_run, paths)):
        idle = images or index or ids or png or limit
        refuse_if(idle, None, "runs have curves; leave all but -o out")
        _show_runs(paths, output)
        return
    places = places or [*filter(None, (page.own_images(manifest_beside(i)) for i in indexes))]
    _check(paths, places, indexes, lists, output, png)

    sources = [name for name in (*paths, *places, *indexes, *lists) if name != "-"]
    sources += [str(Path(i).with_suffix(end)) for i in indexes for end in (".ids", ".json")]
    names = [name for name in (output, png) if name is not None]
    targets: dict[str, str | Path] = {  # refused before any work; streams stay names
        name: name if is_stream(name) else page_path(name, sources) for name in names
    }
    refuse_same([target for name in names if isinstance(target := targets[name], Path)])
    view = _open(paths, indexes, lists)
    if not targets:
        _print(view, limit, [_of(places, number) for number in range(len(paths))])
        return
    items, more = report.take(view.items, limit or (_SHEET if output is None else _PAGE))
    pictures = [
        _find_pictures(view, items, number, _of(places, number) or "")
        for number in range(len(paths))
    ]
    if output is not None:
        names = ["standard input" if path == "-" else Path(path).name for path in paths]
        credit = " ".join(dict.fromkeys(filter(None, map(page.credit, places))))
        html = view.page(items, pictures, ", ".join(names), more=more, credit=credit)
        write_page_to(targets[output], html)
        size = f"{amount(len(items), view.unit)}, {len(html) / 1e6:.1f} MB"
        note("show", f"{output}: {size}{_rest(more)}")
    if png is not None:
        shown = items if limit else items[:_SHEET]
        sheet, lacking = view.sheet(shown, pictures)
        write_page_to(targets[png], sheet)
        rest = _rest(more or len(shown) < len(items))
        note("show", f"{png}: {amount(len(shown), view.unit)}{rest}")
        if lacking:
            some = f"{len(lacking)} characters ({''.join(lacking[:12])})"
            why = f"its font has no glyph for {some}, drawn as boxes; the page (-o) shows them"
            note("show", f"{png}: {why}")
    for number, found in enumerate(pictures):
        complaint = found.complaint(len(view.used(items, number)))
        if complaint:
            note("show", complaint)


def _show_runs(paths: Sequence[str], output: str | None) -> None:
    """Write the curves of runs as a page or figure."""
    from vgtools.models.sealed import check_records, read_run
    from vgtools.reports import curves

    refuse_if(output is None, "-o", "curves need a file: .html, .svg, .png or .pdf")
    assert output is not None
    suffix = Path(output).suffix if output != "-" else ".html"
    forms = (".html", ".svg", ".png", ".pdf")
    refuse_if(suffix not in forms, "-o", f"expected {', '.join(forms)}, got {output}")
    other = next((path for path in paths if not curves.is_run(path)), None)
    refuse_if(other, None, f"{other}: expected a run like the others, with metrics.jsonl")
    files = [os.path.join(path, curves.METRICS) for path in paths]
    target = output if is_stream(output) else page_path(output, files)
    for path in paths:
        if os.path.lexists(os.path.join(path, "run.json")):
            check_records(path, read_run(path))
    found = curves.read_curves(paths)
    if suffix == ".html":
        data = curves.page(found, ", ".join(paths))
    else:
        data = curves.figure(found).render(suffix)
    write_page_to(target, data)
    note("show", f"{output}: {amount(len(found), 'training')}")


def _check(
    paths: Sequence[str],
    images: Sequence[str],
    index: Sequence[str],
    ids: Sequence[str],
    output: str | None,
    png: str | None,
) -> None:
    """Refuse flags that contradict one another."""
    refuse_if(index and ids, None, "give --index or --ids, not both")
    refuse_if(paths.count("-") > 1, None, "only one file of rows can come from stdin")
    for flag, values in (("--images", images), ("--index", index), ("--ids", ids)):
        why = f"give it once for all, or once per file ({len(paths)}), got {len(values)}"
        if flag == "--index":
            why += "; rows of several indexes take one --ids, their .ids joined in order"
        refuse_if(len(values) not in (0, 1, len(paths)), flag, why)
        shared = len(paths) > 1 and len(values) == 1 and is_stream(values[0])
        refuse_if(shared, flag, "is read once per file of rows, and a pipe only once; give a file")
    if output is None and png is None:
        return
    for path in paths:
        if not images and path != "-" and not is_url(path):
            with file_errors(path, reading=True):  # a run that is not there lacks no images
                os.stat(path)
    refuse_if(
        not images,
        None,
        "a page or sheet needs --images, the jsonl or directory that the images are in",
    )
    refuse_if(output == png == "-", None, "-o - and --png - cannot share stdout")


def _of(values: Sequence[str], number: int) -> str | None:
    """Return the value of a flag for the file of a number, None where the flag is not given."""
    return values[number if len(values) > 1 else 0] if values else None


def _open(paths: Sequence[str], indexes: Sequence[str], lists: Sequence[str]) -> View:
    """Return how to show files of rows, with the banks that they are of."""
    from vgtools.reports.views import open_view
    from vgtools.reports.vokens import open_bank

    banks: list[ShownBank | None] = [None] * len(paths)
    if indexes or lists:
        banks = [
            open_bank(_of(lists, number), _of(indexes, number), path)
            for number, path in enumerate(paths)
        ]
    return open_view(paths, banks)


def _find_pictures(view: View, items: Sequence[Any], number: int, images: str) -> BankPictures:
    """Return the images of one bank that items use.

    Raises:
        DataError: none of them is there.
    """
    from vgtools.reports import page
    from vgtools.reports import vokens as report

    bank = view.bank(items, number)
    why = "a page or sheet needs --index or --ids, which name the image of a voken"
    refuse_if(bank is None, None, why)
    assert bank is not None
    used = view.used(items, number)
    pictures = report.BankPictures(bank, page.locate(images, [bank.ids[row] for row in used]))
    if used and not pictures.files:
        why = f"has none of the {len(used)} images that the {view.noun} name, such as"
        why += f" {bank.ids[used[0]]!r:.80}; name the images that the bank was made from"
        raise DataError(why, images, code=Exit.NO_INPUT)
    return pictures


def _rest(more: bool) -> str:
    return "; the file continues, --limit shows more" if more else ""


def _print(view: View, limit: int | None, places: Sequence[str | None]) -> None:
    """Print tables or pictures on a terminal, tab-separated lines elsewhere, item by item."""
    from vgtools.reports import vokens as report

    if not sys.stdout.isatty():
        for number, item in enumerate(view.items, 1):
            sys.stdout.buffer.write(view.tsv(item).encode())
            if number == limit:
                break
        return
    from rich.console import Console

    from vgtools.reports.terminal import painter

    # On a dumb terminal rich would take 80 columns, whatever the value of COLUMNS.
    width, height = shutil.get_terminal_size()
    console = Console(highlight=False, markup=False, emoji=False, width=width, height=height)
    items, more = report.take(view.items, limit or _PAGE)
    pictures: list[BankPictures] = []
    if all(places) and all(view.bank(items, number) for number in range(len(places))):
        named = enumerate(map(str, places))
        pictures = [_find_pictures(view, items, number, place) for number, place in named]
    draw = painter(console) if pictures else None
    for item in items:
        view.table(item, console=console, pictures=pictures, draw=draw)
    if more:
        note("show", f"{amount(len(items), view.unit)}{_rest(more)}")
