"""Maps of heat over pictures: the queries, the places of a grid's cells, heat rows on disk.

A query is a text and the picture to look in. Rows of queries are `{"text", "image"}`, with `"span"`
where only those characters of the text are meant, and `"boxes"` where it is known where they are;
or captions with `"phrases"` as `vg prepare flickr30k-entities` writes them: then each phrase is a
query. Boxes are `[x1, y1, x2, y2]` in pixels of a picture of `"width"` times `"height"`.

Heat rows, one per query: `{"text", "image", "grid": [h, w], "heat": [h·w numbers],
"point": [x, y]}` and, where known, `"span"`, `"boxes"`, `"width"`, `"height"`, `"split"`, `"hit"`,
`"iou"`.
Cell p is in row p // w and column p % w; the point is the centre of the hottest cell, from 0 to 1
of the picture's width and height. Where a backbone saw only a part of the picture, `"frame"` is
that part: [x1, y1, x2, y2], from 0 to 1. A text that asks for nothing has no heat, and the point
null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from vgtools.images.masks import Outline
from vgtools.images.phrases import (
    PhraseBoxes,
    Size,
    image_finder,
    phrase_boxes,
    phrase_span,
    picture_size,
)
from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features, read_made
from vgtools.io.errors import DataError
from vgtools.io.splits import split_of
from vgtools.io.streams import Window, read_windows, require

_STEP = 64  # lines, or queries, per step
_DIGITS = 5  # digits of heat that are kept: the size of batches changes at most the last
_SIDE = 4096  # cells of a grid's side at most, in rows that are read

# ----------------------------------------------------------------------------------------- queries


@dataclass(frozen=True)
class Query:
    """A text, or some characters of it, to find in a picture."""

    text: str
    image: str
    line: int | None  # its line in the file of queries
    span: tuple[int, int] | None = None
    boxes: PhraseBoxes | None = None  # px; None where the place is not known
    size: Size | None = None  # width and height of the picture, px
    outlines: tuple[Outline, ...] | None = None  # masks of the named objects, where known
    split: dict[str, str] = field(default_factory=dict)  # "split" of its row, where it has one

    @property
    def sought(self) -> str:
        """The words to find in the picture."""
        return self.text if self.span is None else self.text[slice(*self.span)]


def read_queries(window: Window) -> list[Query]:
    """Return the queries of a window of lines.

    Raises:
        DataError: as `queries_of`.
    """
    rows = enumerate(window.rows(), window.first)
    return [query for line, row in rows for query in queries_of(row, window.path, line)]


def queries_of(row: Mapping[str, Any], path: str | Path, line: int) -> list[Query]:
    """Return the queries of a row: one, or as many as it has phrases.

    Raises:
        DataError: it has no "text" or "image", a span outside the text, a box that cannot be, or
            boxes without the size of their picture; with file and line.
    """
    require(row, {"text": str, "image": str}, path, line)
    size = picture_size(row, path, line)
    queries = list[Query]()
    for number, part in enumerate(_parts(row, path, line), 1):
        span = None
        if "start" in part:
            span = phrase_span(part, len(row["text"]), number, path, line)
        boxes = None
        if "boxes" in part:
            boxes = phrase_boxes(part["boxes"], size, number, path, line) or None
        if boxes and size is None:
            why = 'has boxes in pixels without the "width" and "height" of their picture'
            raise DataError(why, path, line)
        split = split_of(row)
        queries.append(Query(row["text"], row["image"], line, span, boxes, size, split=split))
    return queries


def _parts(row: Mapping[str, Any], path: str | Path, line: int) -> list[dict[str, Any]]:
    """Return the queries of a row: {"start", "end", "boxes"} of parts of its text, or of it all."""
    if "phrases" in row:
        phrases = row["phrases"]
        if not isinstance(phrases, list):
            raise DataError(f'"phrases" must be a list, got {phrases!r:.60}', path, line)
        none = {"start": None}  # makes `phrase_span` refuse a phrase that has no start
        return [none | phrase if isinstance(phrase, dict) else none for phrase in phrases]
    part = {"boxes": row["boxes"]} if "boxes" in row else {}
    if "span" in row:
        span = row["span"]
        if not isinstance(span, list) or len(span) != 2:
            raise DataError(f'"span" must be [start, end], got {span!r:.60}', path, line)
        part |= {"start": span[0], "end": span[1]}
    return [part]


class Step(NamedTuple):
    """Queries that are located together, and the state of the output after them."""

    queries: list[Query]
    state: dict[str, Any]


def line_steps(path: str, state: Mapping[str, Any], limit: int | None) -> Iterator[Step]:
    """Yield the queries of a file of rows, resuming after a state; `limit` lines at most."""
    for window in read_windows(path, _STEP, state, limit):
        done = {"rows": window.first - 1 + len(window.lines), "digest": window.digest}
        yield Step(read_queries(window), done)


def known_steps(
    queries: Iterable[Query], state: Mapping[str, Any], limit: int | None
) -> Iterator[Step]:
    """Yield queries in steps, resuming after a state; `limit` of them at most."""
    done = int(state.get("rows", 0))
    rest = islice(queries, done, limit)
    while part := list(islice(rest, _STEP)):
        done += len(part)
        yield Step(part, {"rows": done})


# ------------------------------------------------------------------------------------------- grids

Frame = tuple[float, float, float, float]  # left, top, right, bottom; 0 to 1 of the picture
WHOLE: Frame = (0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Grids:
    """Feature maps as `vg extract-image-feats --pooling none` writes them."""

    path: str
    array: Array  # (N, P, D) float16 or float32, memory-mapped
    ids: list[str]
    shape: tuple[int, int]  # rows and columns; P is their product
    manifest: dict[str, Any]

    def check_width(self, width: int, ref: str) -> None:
        """Refuse maps whose features do not have the `width` that a network takes."""
        if self.array.shape[2] != width:
            why = f"expected feature maps (images, positions, {width}) for {ref}"
            raise DataError(f"{why}, got {self.array.shape}", self.path)

    def frame(self, query: Query, path: str) -> Frame:
        """Return the part of a query's picture that the grid covers.

        Raises:
            DataError: it depends on the picture's size, which the query does not have; or its
                backbone's crop is of a kind that is not known here.
        """
        made = self.manifest.get("backbone", {})
        return seen_frame(made.get("preprocessing", {}), query.size, self, path, query.line)


def open_grids(path: str) -> Grids:
    """Open `X.npy` with its `X.ids` and `X.json`; hashes, counts and values are checked.

    Raises:
        DataError: as `io.open_features`; or the backbone has no map of rows and columns (65).
    """
    features = open_features(path, positions=1)
    positions = features.array.shape[1]
    shape = features.manifest.get("grid")
    sides = shape if isinstance(shape, list) and len(shape) == 2 else [0, 0]
    if not all(type(side) is int for side in sides) or math.prod(sides) != positions:
        why = f"its manifest states grid {shape!r:.40}, the array has {positions} positions"
        raise DataError(f"{why}; extract it again", path)
    if 1 in sides:
        why = f"has {positions} positions in a line: its backbone has no map of the picture"
        raise DataError(f"{why}; use a backbone with a map, such as a convolutional network", path)
    return Grids(path, features.array, features.ids, (sides[0], sides[1]), features.manifest)


def seen_frame(
    preprocessing: Mapping[str, Any],
    size: Size | None,
    grids: Grids,
    path: str,
    line: int | None,
) -> Frame:
    """Return the part of a picture that a backbone saw, by timm's evaluation transform.

    Args:
        preprocessing: timm's `resolve_data_config` of the backbone.
        size: width and height of the picture, px; not needed where it is squashed.
        grids: for messages.
        path: file of the query, for messages.
        line: its line there.
    """
    # timm resizes to floor(input / crop_pct) and cuts the input out of the middle.
    try:
        height, width = map(int, preprocessing["input_size"][1:])
        share = float(preprocessing.get("crop_pct", 0.875))
        mode = preprocessing.get("crop_mode", "center")
        seen_x = width / math.floor(width / share)
        seen_y = height / math.floor(height / share)
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        raise DataError("its manifest lacks the backbone's preprocessing", grids.path) from None
    if mode != "squash" and (mode != "center" or height != width):
        why = f"shows a part of each picture that is not known (crop_mode {mode!r})"
        raise DataError(f"{why}; extract again with --picture {width}", grids.path)
    if mode == "center":
        if size is None:
            why = f'needs "width" and "height": {grids.path} shows a centre crop of each picture'
            raise DataError(f"{why}; add them, or extract again with --picture {width}", path, line)
        short = min(size)
        seen_x *= short / size[0]
        seen_y *= short / size[1]
    left = (1 - seen_x) / 2
    top = (1 - seen_y) / 2
    return left, top, 1 - left, 1 - top


def cell_centres(shape: tuple[int, int], frame: Frame = WHOLE) -> Array:
    """Return the centres of all cells, (P, 2) x and y from 0 to 1 of the picture."""
    rows, columns = shape
    x = frame[0] + (np.arange(columns) + 0.5) / columns * (frame[2] - frame[0])
    y = frame[1] + (np.arange(rows) + 0.5) / rows * (frame[3] - frame[1])
    return np.stack([np.tile(x, rows), np.repeat(y, columns)], 1)


# -------------------------------------------------------------------------------------------- maps


class Locator(Protocol):
    """Makes maps of where something is; a map depends on its text and its grid alone."""

    def prepare(self, texts: Sequence[str]) -> Any:
        """Return B texts in the form that `maps` takes."""
        ...

    def maps(self, prepared: Any, numbers: Array, grid: Array) -> Array:
        """Return (q, P) heat of some of the texts in one picture.

        Args:
            prepared: B texts, from `prepare`.
            numbers: (q,) numbers of the texts to look for.
            grid: (P, D) float32 features.

        Returns:
            Rows of NaN for texts that ask for nothing.
        """
        ...


@dataclass(frozen=True)
class OpenedMaps:
    """A locator that is ready, and its entries in manifests."""

    locator: Locator
    width: int  # width of the features that it takes
    backbone: Mapping[str, Any] | None  # that made them
    config: dict[str, Any]  # all that decides the maps


@dataclass(frozen=True)
class Located:
    """A query with its heat."""

    query: Query
    heat: Array  # (P,) float64; empty for a text that asks for nothing
    shape: tuple[int, int]
    frame: Frame

    @property
    def point(self) -> tuple[float, float] | None:
        """The centre of the hottest cell, of equal ones the first; 0 to 1 of the picture."""
        if not len(self.heat):
            return None
        x, y = cell_centres(self.shape, self.frame)[int(self.heat.argmax())]
        return float(x), float(y)

    def row(self, **more: Any) -> dict[str, Any]:
        """Return the row of the output, with more keys at its end."""
        query = self.query
        row: dict[str, Any] = {"text": query.text, "image": query.image}
        if query.span is not None:
            row["span"] = query.span
        row["grid"] = self.shape
        if self.frame != WHOLE:
            row["frame"] = [round(side, 4) for side in self.frame]
        row["heat"] = self.heat
        row["point"] = self.point and [round(at, 4) for at in self.point]
        if query.size is not None:
            row["width"], row["height"] = query.size
        if query.boxes is not None:
            row["boxes"] = query.boxes
        return row | query.split | more


def locate(
    steps: Iterable[Step], locator: Locator, grids: Grids, path: str
) -> Iterator[tuple[Step, list[Located]]]:
    """Yield each step with the heat of its queries, in order; each picture is read once per step.

    Args:
        steps: steps of queries.
        locator: makes the maps.
        grids: feature maps of the pictures.
        path: the file of the queries, for messages.

    Raises:
        DataError: a picture without a grid; or as `Grids.frame`.
    """
    find = image_finder({name: row for row, name in enumerate(grids.ids)})
    for step in steps:
        rows = np.array([_row_of(query, find(query.image), grids, path) for query in step.queries])
        prepared = locator.prepare([query.sought for query in step.queries])
        heat = np.empty((len(rows), grids.array.shape[1]))
        for row in np.unique(rows):
            numbers = np.flatnonzero(rows == row)
            grid = np.asarray(grids.array[row], np.float32)
            heat[numbers] = locator.maps(prepared, numbers, grid)
        yield (
            step,
            [
                Located(
                    _of_image(query, grids.ids[row]),
                    _rounded(values),
                    grids.shape,
                    grids.frame(query, path),
                )
                for query, row, values in zip(step.queries, rows, heat, strict=True)
            ],
        )


def _row_of(query: Query, row: int | None, grids: Grids, path: str) -> int:
    if row is None:
        why = f"names {query.image!r:.80}, of which {grids.path} has no grid; extract it"
        raise DataError(f"{why}, or leave the row out", path, query.line)
    return row


def _of_image(query: Query, image: str) -> Query:
    """Return a query whose picture has the id that the features have for it."""
    if query.image == image:
        return query
    return replace(query, image=image)


def _rounded(heat: Array) -> Array:
    """Return a map with `_DIGITS` digits of its largest number; empty where it is NaN."""
    if np.isnan(heat).all():
        return heat[:0]
    largest = float(np.abs(heat).max())
    if not largest:
        return heat
    # Digits are counted from the largest number: heat has no fixed unit.
    return np.round(heat, _DIGITS - 1 - math.floor(math.log10(largest)))


# ------------------------------------------------------------------------------------------ on disk

# The columns of heat rows in Parquet.
COLUMNS: dict[str, Any] = {
    "text": str,
    "image": str,
    "span": [int],
    "grid": [int],
    "frame": [float],
    "heat": [float],
    "point": [float],
    "width": int,
    "height": int,
    "boxes": [[float]],
    "hit": bool,
    "iou": float,
    "split": str,
}


def holds_heat(
    rows: Iterator[tuple[int, dict[str, Any]]],
) -> tuple[bool, Iterator[tuple[int, dict[str, Any]]]]:
    """Return whether the first of numbered rows is a row of heat, and all rows."""
    # The rows may come from a pipe: the first is put back by `chain`.
    first = list(islice(rows, 1))
    return any("heat" in row for _, row in first), chain(first, rows)


def read_heat(
    path: str | Path, rows: Iterable[tuple[int, dict[str, Any]]] | None = None
) -> Iterator[tuple[int, Located, dict[str, Any]]]:
    """Yield `(line, located, row)` of heat rows, checked.

    Args:
        path: rows as `vg locate` writes them; `.gz`, `.zst` or `-`.
        rows: numbered rows of that file, where it is open already.

    Raises:
        DataError: a torn row, a heat of another size than its grid, a span outside the text; with
            file and line.
    """
    for line, row in read_made(path) if rows is None else rows:
        require(row, {"grid": list, "heat": list}, path, line)
        if "phrases" in row:
            raise DataError('has "phrases": a row of heat belongs to a single phrase', path, line)
        (query,) = queries_of(row, path, line)
        shape = _shape(row, path, line)
        frame = _frame(row, path, line)
        yield line, Located(query, _heat(row, shape, path, line), shape, frame), row


def _shape(row: Mapping[str, Any], path: str | Path, line: int) -> tuple[int, int]:
    sides = row["grid"]
    if len(sides) != 2 or not all(type(side) is int and 1 <= side <= _SIDE for side in sides):
        raise DataError(f'"grid" must be [rows, columns], got {sides!r:.60}', path, line)
    return sides[0], sides[1]


def _heat(row: Mapping[str, Any], shape: tuple[int, int], path: str | Path, line: int) -> Array:
    def refuse(why: str) -> NoReturn:
        raise DataError(why, path, line)

    values = row["heat"]
    if len(values) not in (0, math.prod(shape)):
        refuse(f'"heat" has {len(values)} numbers, expected {shape[0]}×{shape[1]} of its grid')
    for place, value in enumerate(values):
        if type(value) not in (int, float) or not abs(value) < 1e30:
            refuse(f'"heat" entry {place} must be a number, got {value!r:.60}')
    return np.array(values, np.float64)


def _frame(row: Mapping[str, Any], path: str | Path, line: int) -> Frame:
    sides = row.get("frame", list(WHOLE))
    good = isinstance(sides, list) and len(sides) == 4
    good = good and all(type(side) in (int, float) and 0 <= side <= 1 for side in sides)
    if not good or not (sides[0] < sides[2] and sides[1] < sides[3]):
        why = f'"frame" must be [x1, y1, x2, y2] from 0 to 1, got {sides!r:.60}'
        raise DataError(why, path, line)
    return sides[0], sides[1], sides[2], sides[3]
