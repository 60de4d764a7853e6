"""Retrieved rows as one HTML page, a contact sheet, or lines for a terminal or a pipe.

Each text has below it the images of one or several strategies: files of rows for the same texts,
each with a bank of its own.

Source: Sileo 2021 (Grounding strategies), figure 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.io.errors import DataError, amount
from vgtools.io.names import bare
from vgtools.reports.drawing import GREY, INK, first_fit, fonts
from vgtools.reports.page import opening, photo_side, readable, render
from vgtools.reports.sheets import CAPTION, EDGE, WIDTH, Sheet, Tile
from vgtools.reports.terminal import CELL_PIXELS, Captioned, Draw, strip
from vgtools.reports.vokens import BankPictures, ShownBank, Thumbnails, cell
from vgtools.text.retrieved import read_retrieved

if TYPE_CHECKING:
    from PIL.Image import Image
    from rich.console import Console

# --------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Hits:
    """The images of a text by one strategy, best first."""

    images: tuple[int, ...]
    scores: tuple[float | None, ...]


@dataclass(frozen=True)
class RetrievedText:
    """A text, its line in the files, and its images by each strategy."""

    line: int
    text: str
    hits: tuple[Hits, ...]
    own: str | None = None  # id of the text's own image


@dataclass(frozen=True)
class RetrievedFile:
    """One file of rows, and their bank."""

    path: str
    name: str  # name of the strategy
    bank: ShownBank | None = None


def source_names(paths: Sequence[str]) -> list[str]:
    """Return the names of strategies: the parts in which their files' names differ.

    `wiki.scene.jsonl` and `wiki.object.jsonl` are scene and object. Files of one name in several
    folders are called by their paths.
    """
    stems = [Path(bare(path)).name.removesuffix(".jsonl") for path in paths]
    if len(set(stems)) < len(stems):
        return list(paths)
    parts = [stem.split(".") for stem in stems]
    if len(parts) < 2 or len({len(part) for part in parts}) > 1:
        return stems
    differ = [column for column in zip(*parts, strict=True) if len(set(column)) > 1]
    names = [".".join(name) for name in zip(*differ, strict=True)]
    return names if len(set(names)) == len(names) else stems


def read_texts(
    sources: Sequence[RetrievedFile], first: Iterator[tuple[int, dict[str, Any]]] | None = None
) -> Iterator[RetrievedText]:
    """Yield the texts of files of retrieved rows, checked, line by line.

    Args:
        sources: the files.
        first: numbered rows of the first where it is open already.

    Raises:
        DataError: as `read_retrieved`; or the files are not of the same texts.
    """
    streams = [
        read_retrieved(source.path, len(source.bank.ids) if source.bank else None, rows)
        for source, rows in zip_longest(sources, [first])
    ]
    path = sources[0].path
    for number, rows in enumerate(zip_longest(*streams), 1):
        for source, row in zip(sources, rows, strict=True):
            if row is None:
                why = f"ends before line {number} of other rows; expected the same texts in each"
                raise DataError(why, source.path)
            if row[1]["text"] != rows[0][1]["text"]:
                why = f"has another text than {path}; expected the same texts in each"
                raise DataError(why, source.path, number)
        own = rows[0][1].get("image")
        hits = tuple(
            Hits(tuple(row["images"]), tuple(row.get("scores") or [None] * len(row["images"])))
            for _, row in rows
        )
        named = own if isinstance(own, str) else None
        yield RetrievedText(number, rows[0][1]["text"], hits, named)


def used_rows(texts: Sequence[RetrievedText], number: int) -> list[int]:
    """Return the different bank rows that texts use by the strategy of a number."""
    return sorted({row for text in texts for row in text.hits[number].images})


def _scores(hits: Hits) -> list[str]:
    """Return scores for a reader: relevance with three decimals, counts of words as they are."""
    counts = all(score is not None and score == int(score) for score in hits.scores)
    return ["" if s is None else str(int(s)) if counts else f"{s:.3f}" for s in hits.scores]


# --------------------------------------------------------------------------------------------- page


def page(
    texts: Sequence[RetrievedText],
    pictures: Sequence[BankPictures],
    title: str,
    *,
    sources: Sequence[RetrievedFile],
    more: bool = False,
    credit: str = "",
) -> bytes:
    """Return one HTML page of texts and their images, each picture in it once.

    Args:
        texts: texts of `read_texts`.
        pictures: pictures of each source; those that they lack are shown as placeholders.
        title: their title, for example the file's name.
        sources: sources of the texts.
        more: the files hold more texts than these.
        credit: whose the pictures are and their licence.

    Source: Sileo 2021 (Grounding strategies), figure 4.
    """
    used = [used_rows(texts, number) for number in range(len(sources))]
    # Strategies may share their pictures, which the page then has once.
    banks = zip(pictures, used, strict=True)
    different = {place.bank.ids[row] for place, rows in banks for row in rows}
    thumbnails = Thumbnails(photo_side(len(different), 320))
    shown = {
        f"p{number}-{row}": thumbnails.add(f"p{number}-{row}", place, row)
        for number, (place, rows) in enumerate(zip(pictures, used, strict=True))
        for row in rows
    }
    counts = [amount(len(texts), "text"), amount(len(thumbnails), "picture")]
    bare = sum(not hits.images for text in texts for hits in text.hits)
    if bare:
        counts.append(f"{amount(bare, 'row')} without images")
    widest = max((len(h.images) for text in texts for h in text.hits), default=0)
    rows = [_row(text, pictures) for text in texts]
    first = opening(sum(len(hits.images) for hits in text.hits) for text in texts)
    start = [
        f"p{number}-{row}"
        for number in range(len(sources))
        for row in used_rows(texts[:first], number)
    ]
    css, late = thumbnails.split(start)
    names = [readable(source.name) for source in sources]
    return render(
        "retrieved",
        title,
        {"pictures": shown, "late": late, "names": names, "rows": rows},
        shared=["rows", "gallery"],
        styles=[css],
        credit=credit,
        more=more,
        counts=", ".join(counts),
        facts=_facts(sources, pictures),
        wide=widest > 4,
        framed=any(len(image) > 2 for row in rows for images in row["sets"] for image in images),
        names=names,
        pictures=shown,
        first=rows[:first],
        total=len(rows),
    )


def _facts(
    sources: Sequence[RetrievedFile], pictures: Sequence[BankPictures]
) -> list[tuple[str, str]]:
    """Return descriptions of the banks."""
    facts = list[tuple[str, str]]()
    for source, place in zip(sources, pictures, strict=True):
        bank = place.bank
        keys = bank.manifest.get("keys", "matcher" if "matcher" in bank.manifest else "")
        found = f", found by {keys}" if keys else ""
        name = "Image bank" if len(sources) == 1 else source.name
        facts.append((readable(name), readable(f"{amount(len(bank.ids), 'image')}{found}")))
    return facts


def _row(text: RetrievedText, pictures: Sequence[BankPictures]) -> dict[str, Any]:
    """Return the values of one text for the page.

    An image is its row of the bank and its score, then 1 if it is the text's own.
    """
    sets = [
        [
            [row, score, *([1] if place.bank.ids[row] == text.own else [])]
            for row, score in zip(hits.images, _scores(hits), strict=True)
        ]
        for place, hits in zip(pictures, text.hits, strict=True)
    ]
    return {"line": text.line, "text": readable(text.text), "sets": sets}


# -------------------------------------------------------------------------------------------- sheet

_GAP = 10  # px between pictures
_BETWEEN = 60  # px between strategies side by side


def sheet(
    texts: Sequence[RetrievedText],
    pictures: Sequence[BankPictures],
    *,
    sources: Sequence[RetrievedFile],
) -> tuple[bytes, list[str]]:
    """Draw a contact sheet: each text, and below it its images by each strategy, side by side.

    Returns:
        A PNG, 1600 px wide, and the characters that no installed font has a glyph for.

    Raises:
        DataError: the sheet would be over 40,000 px high (usage).

    Source: Sileo 2021 (Grounding strategies), figure 4.
    """
    layout = Sheet()
    widest = max((len(h.images) for text in texts for h in text.hits), default=1)
    columns = min(max(widest, 1), 16)
    abreast = min(len(sources), max(1, 8 // columns))  # strategies side by side
    panel = (WIDTH - 2 * EDGE - _BETWEEN * (abreast - 1)) / abreast
    tile = int(min(180, (panel - _GAP * (columns - 1)) / columns))
    names = [readable(source.name)[:60] if len(sources) > 1 else "" for source in sources]
    row_of = [{name: row for row, name in enumerate(place.bank.ids)} for place in pictures]
    for text in texts:
        top = layout.heading(text.line, text.text) + 8
        end = top
        for number, hits in enumerate(text.hits):
            line, place = divmod(number, abreast)
            if line and not place:
                top = end + 10
            left = EDGE + place * (panel + _BETWEEN)
            own = row_of[number].get(text.own or "", -1)
            bottom = _panel(layout, hits, number, names[number], own, left, top, tile)
            end = max(end, bottom)
        layout.height = end + EDGE * 0.4

    def opened(key: tuple[int, int], side: int) -> Image | None:
        return pictures[key[0]].image(key[1], side)

    return layout.png(opened), sorted(layout.lacking)


def _panel(
    layout: Sheet, hits: Hits, number: int, name: str, marked: int, left: float, y: float, tile: int
) -> float:
    """Lay out the images of one strategy from y down, and return where they end.

    Args:
        layout: the sheet.
        hits: the images.
        number: number of the strategy.
        name: name of the strategy, or "".
        marked: row of the text's own image, -1 for none.
        left: where the strategy's part of the sheet starts, px.
        y: where the images start, px.
        tile: side of a picture, px.
    """
    small = fonts(CAPTION if tile >= 110 else 18)
    if name:
        layout.write(left, y + 4, name, first_fit(name, small), GREY)
        y += CAPTION + 18
    y += 8
    for place, (row, score) in enumerate(zip(hits.images, _scores(hits), strict=True)):
        x = left + place % 16 * (tile + _GAP)
        top = y + place // 16 * (tile + CAPTION + 22)
        own = row == marked
        layout.tiles.append(Tile(x, top, tile, tile, (number, row), own))
        layout.write(x + tile / 2, top + tile + 10, score, small[0], INK if own else GREY, "ma")
    lines = -(-len(hits.images) // 16)
    if not lines:
        layout.write(left, y, "no images", small[0], GREY)
        return y + CAPTION + 14
    return y + lines * (tile + CAPTION + 22)


# -------------------------------------------------------------------------------- terminal and pipe


def tsv(text: RetrievedText, sources: Sequence[RetrievedFile]) -> str:
    """Return a text as tab-separated lines.

    The columns are line, strategy, rank, row, image id, score, text; `-` for none. A text without
    images has one line.
    """
    lines = list[tuple[object, ...]]()
    for source, hits in zip(sources, text.hits, strict=True):
        name = cell(source.name)
        if not hits.images:
            lines.append((text.line, name, "-", "-", "-", "-", cell(text.text)))
        for rank, (row, score) in enumerate(zip(hits.images, hits.scores, strict=True), 1):
            image = cell(source.bank.ids[row]) if source.bank else "-"
            value = "-" if score is None else f"{score:.4f}"
            lines.append((text.line, name, rank, row, image, value, cell(text.text)))
    return "".join("\t".join(map(str, cells)) + "\n" for cells in lines)


def table(
    text: RetrievedText,
    sources: Sequence[RetrievedFile],
    console: Console,
    pictures: Sequence[BankPictures] = (),
    draw: Draw | None = None,
) -> None:
    """Print a text and a table of its images: strategy, row, image id, content, score.

    With `draw` the pictures, one entry per strategy, are drawn instead.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text as Cell

    title = Cell(cell(text.text) or "(an empty line)", "bold")
    console.print(Cell(f"{text.line}  ", "dim") + title)
    if pictures and draw:
        _draw_strips(text, sources, console, pictures, draw)
        return
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    several = len(sources) > 1
    names = [
        [place.name(row) for row in hits.images]
        for place, hits in zip(pictures, text.hits, strict=False)
    ]
    if several:
        grid.add_column("strategy", overflow="fold", min_width=8)
    grid.add_column("row", justify="right", no_wrap=True)
    if any(source.bank for source in sources):
        grid.add_column("image", overflow="fold", min_width=8)
    named = any(map(any, names))
    if named:
        grid.add_column("shows", overflow="fold", min_width=8)
    grid.add_column("score", justify="right", no_wrap=True)
    for number, (source, hits) in enumerate(zip(sources, text.hits, strict=True)):
        for rank, (row, score) in enumerate(zip(hits.images, _scores(hits), strict=True)):
            cells = [Cell("" if rank else cell(source.name))] if several else []
            cells.append(Cell(str(row), "cyan"))
            if any(other.bank for other in sources):
                cells.append(Cell(cell(source.bank.ids[row]) if source.bank else ""))
            if named:
                cells.append(Cell(cell(names[number][rank])))
            grid.add_row(*cells, Cell(score))
    if grid.row_count:
        console.print(grid)
    console.print()


def _draw_strips(
    text: RetrievedText,
    sources: Sequence[RetrievedFile],
    console: Console,
    pictures: Sequence[BankPictures],
    draw: Draw,
) -> None:
    """Print the pictures of a text by each strategy, with their contents and scores."""
    from rich.text import Text as Line

    for source, place, hits in zip(sources, pictures, text.hits, strict=True):
        if len(sources) > 1:
            console.print(Line(cell(source.name), "dim"))
        shown = []
        for row, score in zip(hits.images, _scores(hits), strict=True):
            image = place.bank.ids[row]
            style = "bold" if image == text.own else "dim"
            lines = [Line(cell(place.name(row) or image), style), Line(score, "dim")]
            shown.append(Captioned(place.image(row, CELL_PIXELS), lines))
        console.print(strip(shown, draw) if shown else Line("no images", "dim"))
    console.print()
