"""The kinds of rows, vokens, retrieved images or heat, and how each kind is shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vgtools.images.maps import holds_heat
from vgtools.io.artifact import read_made
from vgtools.io.errors import DataError, Exit
from vgtools.io.written import manifest_beside
from vgtools.reports import located, retrieved, vokens
from vgtools.reports.vokens import ShownBank
from vgtools.text.retrieved import holds_images


@dataclass(frozen=True)
class View:
    """How rows of one kind are shown."""

    items: Iterator[Any]
    unit: str  # name of an item
    noun: str  # name of the entries that name images
    bank: Callable[[Sequence[Any], int], ShownBank | None]  # bank of a file; None where not known
    used: Callable[[Sequence[Any], int], Sequence[int]]  # used rows of that bank
    tsv: Callable[[Any], str]
    table: Callable[..., None]
    page: Callable[..., bytes]
    sheet: Callable[..., tuple[bytes, list[str]]]


def open_view(paths: Sequence[str], banks: Sequence[ShownBank | None]) -> View:
    """Return how to show files of rows; the first row of the first file decides their kind.

    Args:
        paths: one file of voken rows, or files of retrieved rows of the same texts.
        banks: bank of each file, None where it is not known.

    Raises:
        DataError: a file cannot be read; several files of vokens, or packed vokens (usage).
    """
    vokens.refuse_packed(paths[0])
    texts, rows = holds_images(read_made(paths[0]))
    if texts:
        return _of_texts(paths, banks, rows)
    heat, rows = holds_heat(rows)
    if heat and len(paths) == 1:
        return _of_heat(paths[0], banks, rows)
    if len(paths) > 1:
        why = "only files of vg retrieve are shown side by side, and its first row is not one"
        raise DataError(why, paths[0], code=Exit.USAGE)
    bank = banks[0]
    ids = bank.ids if bank else None
    made = manifest_beside(paths[0])
    probable = made.get("score") == "probability" if made else None
    return View(
        items=vokens.read_sentences(paths[0], len(ids) if ids else None, rows),
        unit="sentence",
        noun="vokens",
        bank=lambda items, number: banks[number],
        used=lambda items, number: [*vokens.used_rows(items)],
        tsv=partial(vokens.tsv, ids=ids),
        table=partial(vokens.table, ids=ids, probable=probable),
        page=lambda items, pictures, title, **more: vokens.page(
            items, pictures[0], title, probable=probable, **more
        ),
        sheet=lambda items, pictures: vokens.sheet(items, pictures[0], probable),
    )


def _of_texts(
    paths: Sequence[str],
    banks: Sequence[ShownBank | None],
    rows: Iterator[tuple[int, dict[str, Any]]],
) -> View:
    """Return how to show the images of texts, by one strategy per file."""
    names = retrieved.source_names(paths)
    sources = [retrieved.RetrievedFile(*each) for each in zip(paths, names, banks, strict=True)]
    return View(
        items=retrieved.read_texts(sources, rows),
        unit="text",
        noun="rows",
        bank=lambda items, number: banks[number],
        used=retrieved.used_rows,
        tsv=partial(retrieved.tsv, sources=sources),
        table=partial(retrieved.table, sources=sources),
        page=partial(retrieved.page, sources=sources),
        sheet=partial(retrieved.sheet, sources=sources),
    )


def _of_heat(
    path: str, banks: Sequence[ShownBank | None], rows: Iterator[tuple[int, dict[str, Any]]]
) -> View:
    """Return how to show heat over pictures, which rows name themselves."""
    if any(banks):
        why = "rows of vg locate name their pictures; leave --index and --ids out"
        raise DataError(why, path, code=Exit.USAGE)
    return View(
        items=located.read_found(path, rows),
        unit="map",
        noun="queries",
        bank=lambda items, number: located.bank_of(items),
        used=lambda items, number: range(len(located.bank_of(items).ids)),
        tsv=located.tsv,
        table=located.table,
        page=located.page,
        sheet=located.sheet,
    )
