"""Rows as commands write them, handed out one by one: as objects, tables and pictures."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice
from typing import Any, Generic, TypeVar

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.reports.strips import ShownRows, strip

_SHOWN = 8  # rows that are drawn in a notebook
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ResultRow:
    """A row of a command, with the bank that its numbers count.

    Args:
        data: the row as the command writes it.
        line: its number in its stream, counted from 1.
        shown: how it is drawn.
    """

    data: Mapping[str, Any]
    line: int
    shown: ShownRows

    @property
    def text(self) -> str:
        """The text."""
        return str(self.data["text"])

    def to_dict(self) -> dict[str, Any]:
        """Return the row as the command writes it: the same keys, numbers and order."""
        return dict(self.data)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of a table, with the columns that `vg show` prints."""
        raise NotImplementedError

    def _ids(self, rows: Any) -> Any:
        """Return the ids of rows of the bank, None for -1 or without a bank; lists stay lists."""
        if isinstance(rows, Sequence):
            return [self._ids(row) for row in rows]
        return None if rows < 0 or self.shown.ids is None else self.shown.ids[rows]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.line}: {self.text!r:.60}>"

    def _repr_html_(self) -> str:
        return strip([self.data], self.shown, self.line)


class VokenRow(ResultRow):
    """A text with an image for each of its tokens, as `vg vokenize` writes it."""

    @property
    def spans(self) -> Array:
        """Start and end of each token in code points of the text, (T, 2) int64."""
        return np.array(self.data["spans"], np.int64).reshape(-1, 2)

    @property
    def tokens(self) -> list[str]:
        """The tokens, as they are written in the text."""
        return [self.text[start:end] for start, end in self.data["spans"]]

    @property
    def vokens(self) -> Array:
        """Rows of the bank, -1 for none: (T,) int64, or (T, k) best first if k was over 1."""
        return np.array(self.data["vokens"], np.int64)

    @property
    def scores(self) -> Array:
        """Relevance of each voken, or its probability of being right; shaped as `vokens`."""
        return np.array(self.data["scores"], np.float64)

    @property
    def images(self) -> list[Any]:
        """The id of each voken's image, None for none; lists of k if k was over 1."""
        found: list[Any] = self._ids(self.data["vokens"])
        return found

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield line, token, start, end, rank, voken, image and score of each voken."""
        scores = self.data.get("scores") or [None] * len(self.data["vokens"])
        parts = zip(self.tokens, self.data["spans"], self.data["vokens"], scores, strict=True)
        for token, (start, end), vokens, values in parts:
            several = isinstance(vokens, Sequence)
            ranks = zip(vokens, values, strict=True) if several else [(vokens, values)]
            for rank, (voken, score) in enumerate(ranks, 1):
                yield {
                    "line": self.line,
                    "token": token,
                    "start": start,
                    "end": end,
                    "rank": rank,
                    "voken": voken,
                    "image": self._ids(voken),
                    "score": score,
                }


class ImageRow(ResultRow):
    """A text with its images, best first, as `vg retrieve` writes it."""

    @property
    def rows(self) -> Array:
        """Rows of the bank, (K,) int64; the key "images" of the file."""
        return np.array(self.data["images"], np.int64)

    @property
    def scores(self) -> Array:
        """Relevance of each image, (K,) float64."""
        return np.array(self.data["scores"], np.float64)

    @property
    def images(self) -> list[str | None]:
        """The ids of the images, None where the bank is not known."""
        found: list[str | None] = self._ids(self.data["images"])
        return found

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield line, rank, row, image, score and text of each image."""
        rows = self.data["images"]
        scores = self.data.get("scores") or [None] * len(rows)
        for rank, (row, score) in enumerate(zip(rows, scores, strict=True), 1):
            yield {
                "line": self.line,
                "rank": rank,
                "row": row,
                "image": self._ids(row),
                "score": score,
                "text": self.text,
            }


class HeatRow(ResultRow):
    """Where in its picture a text is, as `vg locate` writes it."""

    @property
    def image(self) -> str:
        """The id of the picture."""
        return str(self.data["image"])

    @property
    def heat(self) -> Array:
        """The heat of each cell of the grid, (h, w) float64; (0, 0) for a text without words."""
        values = np.array(self.data["heat"], np.float64)
        return values.reshape(self.data["grid"] if len(values) else (0, 0))

    @property
    def point(self) -> tuple[float, float] | None:
        """The centre of the hottest cell: x and y from 0 to 1 of the picture; None without heat."""
        point = self.data["point"]
        return None if point is None else (point[0], point[1])

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield line, image, x, y, hit, iou and text."""
        x, y = self.point or (None, None)
        known = {key: self.data.get(key) for key in ("hit", "iou")}
        yield {"line": self.line, "image": self.image, "x": x, "y": y, **known, "text": self.text}


def row_class(data: Mapping[str, Any]) -> type[ResultRow] | None:
    """Return the class of a row by its keys; None for a row of another kind."""
    for key, kind in (("vokens", VokenRow), ("heat", HeatRow), ("images", ImageRow)):
        if key in data:
            return kind
    return None


class Tables:
    """Columns, which become tables of other libraries."""

    def _columns(self) -> dict[str, Any]:
        """Return the columns by name: lists, or arrays of which the first axis is the rows."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame.

        Raises:
            DataError: pandas is not installed (69).
        """
        # A column of vectors is one of objects: a frame has no axis for them.
        columns = {
            name: list(one) if getattr(one, "ndim", 1) > 1 else one
            for name, one in self._columns().items()
        }
        return _library("pandas").DataFrame(columns)

    def to_polars(self) -> Any:
        """Return a polars DataFrame; vectors are arrays of fixed width.

        Raises:
            DataError: polars is not installed (69).
        """
        return _library("polars").DataFrame(self._columns(), infer_schema_length=None, strict=False)


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        why = f"to_{name} needs {name}: pip install {name}"
        raise DataError(why, code=Exit.UNAVAILABLE) from None


class Rows(Tables, Generic[T]):
    """Rows that are computed, or read, while a loop asks for them; memory stays flat.

    Each loop starts again, and computes again, where the input can be read again: a list, a file.
    From an iterator, such as a generator, every row comes once, and a second loop continues after
    the first; the input is read ahead by a window of lines. `list(rows)` keeps all. In a notebook
    the first rows draw themselves.

    Args:
        source: starts the stream.
        shown: how rows are drawn; None for rows without pictures.
        once: the stream can be started only once.
        manifest: facts about the file that they are read from.
    """

    def __init__(
        self,
        source: Callable[[], Iterator[T]],
        shown: ShownRows | None = None,
        *,
        once: bool = False,
        manifest: Mapping[str, Any] | None = None,
    ) -> None:
        self.manifest = dict(manifest or {})
        self._source = source
        self._shown = shown
        self._once = once

    @cached_property
    def _stream(self) -> Iterator[T]:
        return self._source()

    def __iter__(self) -> Iterator[T]:
        return self._stream if self._once else self._source()

    def head(self, count: int = _SHOWN) -> list[T]:
        """Return the first rows; a later loop has them as well."""
        first = list(islice(self, count))
        if self._once:
            self._stream = chain(first, self._stream)
        return first

    def _columns(self) -> dict[str, Any]:
        columns: dict[str, list[Any]] = {}
        count = 0
        for row in self:
            records: Any = row.records() if isinstance(row, ResultRow) else [row]
            for record in records:
                for key in [key for key in record if key not in columns]:
                    columns[key] = [None] * count
                for key, values in columns.items():
                    values.append(record.get(key))
                count += 1
        return columns

    def __repr__(self) -> str:
        return f"<Rows{' of ' + self.manifest['kind'] if self.manifest.get('kind') else ''}>"

    def _repr_html_(self) -> str | None:
        head = self.head()
        if self._shown is None or not all(isinstance(row, ResultRow) for row in head):
            return None
        return strip([row.data for row in head], self._shown)  # type: ignore[attr-defined]


def stream(
    source: Callable[[], Iterable[Mapping[str, Any]]],
    kind: type[ResultRow] | None,
    shown: ShownRows,
    *,
    once: bool = False,
    manifest: Mapping[str, Any] | None = None,
) -> Rows[Any]:
    """Return rows of dictionaries as objects of a kind, or as they are."""

    def objects() -> Iterator[Any]:
        for line, data in enumerate(source(), 1):
            yield data if kind is None else kind(data, line, shown)

    return Rows(objects, shown, once=once, manifest=manifest)
