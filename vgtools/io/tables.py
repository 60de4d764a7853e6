"""Parquet and Arrow files, read through pyarrow as the rows that JSON lines of them would be.

A command cannot tell the two apart: the number of a row, counted from 1, takes the place of the
line. After a #, columns are named: `X.parquet#caption` is the column `caption` as "text",
`X.parquet#image=file,text=caption.en` gives keys to columns, and to fields of nested ones. All
others keep their names. A column of images, as `datasets` stores them ({"bytes", "path"}), is read
by `pictures`; rows have the ids of these images as "image".

In a file that vg wrote (`parquet.py`), null means that a row lacks the key. Files are read in
batches of rows, so that their size does not matter.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import orjson

from vgtools.io.errors import DataError, Exit, file_error, file_errors
from vgtools.io.folders import Shards, open_file
from vgtools.io.names import file_of, is_shards, is_url, refuse_stream, split_table
from vgtools.io.parquet import ABOUT
from vgtools.io.trust import file_hash

if TYPE_CHECKING:
    import pyarrow as pa  # not installed everywhere

Row = dict[str, Any]
_Convert = Callable[["pa.RecordBatch", int], list[Any]]
_ROWS = 1024  # rows of a batch
_PICTURES = 16  # rows of a batch with the bytes of images
_BUFFER = 1 << 20  # bytes of a column that are read at a time
_STRINGS = ("text", "split")  # keys of strings, which some writers do not mark as such
_STREAM = b"\xff\xff\xff\xff"  # starts each message of an Arrow stream
_END = _STREAM + bytes(4)  # ends it: without this, batches may be missing


class Picture(NamedTuple):
    """An image in a table."""

    row: int  # its number, from 1
    image: str  # its id
    data: bytes | None
    path: str | None  # name of its file, as the table has it


def keys_of(columns: Sequence[str], path: str | Path, fields: Sequence[str] = ()) -> dict[str, str]:
    """Return key -> column of the rows of a table.

    Args:
        columns: the columns of the file.
        path: the table, with the columns that are named after its #.
        fields: fields of columns, which may be named as well: `caption.en`.

    Raises:
        DataError: two columns of one name, or the file lacks a column that is named (65).
    """
    listed = f"its columns are {', '.join((*columns, *fields)) or 'none'}"
    if len(set(columns)) < len(columns):
        raise DataError(f"has two columns of one name: {listed}; rename one", path)
    named = dict[str, str]()
    for item in filter(None, split_table(path)[1].split(",")):
        key, _, column = item.rpartition("=")
        if column not in (*columns, *fields):
            raise DataError(f"has no column {column!r:.80}; {listed}", path)
        if (key or "text") in named:
            raise DataError(f"two columns are named for {key or 'text'!r:.80}; name one", path)
        named[key or "text"] = column
    others = [name for name in columns if name not in {*named, *named.values()}]
    return named | dict(zip(others, others, strict=True))


def table_rows(path: str | Path, start: int = 0, stop: int | None = None) -> Iterator[Row]:
    """Yield the rows of a Parquet or Arrow file as JSON values.

    Args:
        path: the file, or a folder of shards.
        start: its first shard.
        stop: its last shard, excluded.

    Raises:
        DataError: pyarrow is not installed (69); the file is missing (66), damaged or cut off, or
            has no column of a name (65), with the row where one is at fault; or is a pipe (usage).
    """
    name, columns = split_table(path)
    if is_shards(name):
        for shard in Shards(name).files(None, start, stop):
            if not is_url(shard.path):  # a store compares hashes itself
                with file_errors(shard.path, reading=True):
                    shard.check(file_hash(shard.path))
            yield from table_rows(f"{shard.path}#{columns}" if columns else shard.path)
        return
    with closing(_OpenTable(path)) as table:
        for first, batch in table.batches(table.keys.values(), _ROWS):
            yield from table.each(table.rows, batch, first)


def holds_pictures(path: str | Path) -> bool:
    """Return whether a Parquet or Arrow file has a column of images; errors as `table_rows`."""
    with closing(_OpenTable(path)) as table:
        if table.picture is None and table.unnamed:
            why = f"has {len(table.unnamed)} columns of bytes: {', '.join(table.unnamed)}"
            why += f"; {file_of(path)}#bytes=COLUMN names the one of images"
            raise DataError(why, path)
        return table.picture is not None


def pictures(path: str | Path) -> Iterator[Picture]:
    """Yield the images of a Parquet or Arrow file that holds them; errors as `table_rows`.

    Their ids are the column "image", or the paths that are stored with them, or `FILE:ROW`.
    """
    with closing(_OpenTable(path)) as table:
        needed = [table.keys["image"], table.stored]
        for first, batch in table.batches(needed, _PICTURES):
            yield from table.each(table.pictures, batch, first)


def paths_without_bytes(path: str | Path) -> Iterator[str]:
    """Yield the files that a table of images names instead of holding their bytes."""
    with closing(_OpenTable(path)) as table:
        if table.may_lack_bytes():
            for first, batch in table.batches([table.stored], _PICTURES):
                yield from table.each(table.unstored, batch, first)


class _OpenTable:
    """An open file, with the keys of its rows.

    Attributes:
        keys: key -> column, or a field of one; "" for ids that are stored with the images.
        picture: the column of images.
        stored: the column of their bytes, or the field of it.
        unnamed: the columns that may be the one of images, if there are several.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            from pyarrow import parquet
        except ImportError:
            why = "needs the package pyarrow: pip install 'vgtools[tables]'"
            raise DataError(why, path, code=Exit.UNAVAILABLE) from None
        self._path = path
        name = file_of(path)
        refuse_stream(name)  # its end is read before its start
        self._is_parquet = name.endswith(".parquet")
        with _faults(path), ExitStack() as opened:
            stream = opened.enter_context(open_file(name))
            if self._is_parquet:
                options: dict[str, Any] = {"page_checksum_verification": True, "pre_buffer": False}
                self._file = parquet.ParquetFile(stream, buffer_size=_BUFFER, **options)
                self._schema: pa.Schema = self._file.schema_arrow
            else:
                self._file = _arrow_reader(stream, name)
                self._schema = self._file.schema
            self._fields = [*_fields(self._schema)]
            self._is_made = ABOUT in (self._schema.metadata or {})
            keys = keys_of(self._schema.names, path, self._fields)
            self.close = opened.pop_all().close
        self._strings = {keys.get(key) for key in _STRINGS} | self._unmarked(keys.get("id"))
        stored = [
            column.name
            for column in self._schema
            if _is_stored(column.type) and column.name not in self._strings
        ]
        self.unnamed = stored if len(stored) > 1 else []
        chosen = keys.get("bytes"), keys.get("image"), stored[0] if len(stored) == 1 else None
        self.picture = next((name for name in chosen if name in stored), None)
        self.keys = {key: name for key, name in keys.items() if name not in stored}
        if self.picture is not None:
            self.keys.setdefault("image", "")
        self.stored = self.field("bytes") or str(self.picture)

    def _unmarked(self, key: str | None) -> set[str]:
        """Return the columns of bytes that are strings, as their first values show.

        They are looked at in a file that marks no column as strings; elsewhere only the column of
        ids is, `key`.
        """
        import pyarrow as pa
        from pyarrow import types

        names = [column.name for column in self._schema if _is_bytes(column.type)]
        if any(types.is_string(kind) or types.is_large_string(kind) for kind in self._schema.types):
            names = [name for name in names if name == key]
        if not names:
            return set()
        # Whoever reads the rows reports their faults.
        with suppress(pa.ArrowException, ValueError, OverflowError, OSError):
            if self._is_parquet:
                some = next(self._file.iter_batches(_PICTURES, columns=names), None)
            else:
                with open_file(file_of(self._path)) as stream:  # a stream is read once
                    some = next(_batches(_arrow_reader(stream, file_of(self._path))), None)
                    some = some and some.select(names).slice(0, _PICTURES)
            if some is not None:
                some.validate(full=True)  # damaged offsets would crash the process
                return {name for name, found in some.to_pydict().items() if _are_strings(found)}
        return set()

    def field(self, name: str) -> str:
        """Return a field of the images, named as a column is; "" if they have none of the name."""
        field = f"{self.picture}.{name}"
        return field if field in self._fields else ""

    def batches(self, columns: Iterable[str], size: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield (index of the first row, batch of up to `size` rows) with these columns."""
        wanted = [*dict.fromkeys(filter(None, (*columns, self.field("path"))))]
        if self._is_parquet:
            read = self._file.iter_batches(size, columns=wanted, use_threads=False)
        else:
            read = _batches(self._file)
            wanted = [*dict.fromkeys(map(self._column, wanted))]
        first = 0
        while True:
            with _faults(self._path, first + 1):
                batch = next(read, None)
                if batch is None:
                    # Where the head of a page is damaged, pyarrow ends without an error.
                    stated = self._file.metadata.num_rows if self._is_parquet else first
                    if first != stated:
                        raise ValueError(f"it has {first} rows, its end states {stated}")
                    return
                batch = batch if self._is_parquet else batch.select(wanted)
            for at in range(0, len(batch), size):
                yield first + at, batch.slice(at, size)
            first += len(batch)

    def _column(self, name: str) -> str:
        """Return the column of a field, or a column as it is; names may have points in them."""
        return _first_of(self._schema, name)

    def each(self, convert: _Convert, batch: pa.RecordBatch, first: int) -> list[Any]:
        """Convert the rows of a batch by a function, checked before.

        Raises:
            DataError: a row cannot be converted: its strings are not UTF-8, or it is damaged.
        """
        try:
            batch.validate(full=True)  # damaged offsets would crash the process
            return convert(batch, first)
        except (ValueError, OverflowError):
            with _faults(self._path, first + 1):
                for row in range(len(batch) if len(batch) > 1 else 0):
                    self.each(convert, batch.slice(row, 1), first + row)
                raise

    def _array(self, batch: pa.RecordBatch, name: str) -> pa.Array:
        column = self._column(name)
        array = batch.column(column)
        return array if name == column else _field_of(array, name[len(column) + 1 :])

    def rows(self, batch: pa.RecordBatch, first: int) -> list[Row]:
        """Return the rows of a batch, which starts at the row of index `first`."""
        rows: list[Row] = [{} for _ in range(len(batch))]
        has_null = not self._is_made
        for key in self.keys:  # column by column, which takes half as long as row by row
            for row, value in zip(rows, self.values(batch, key, first), strict=True):
                if has_null or value is not None:
                    row[key] = value
        return rows

    def values(self, batch: pa.RecordBatch, key: str, first: int) -> list[Any]:
        """Return the values of a key of the rows of a batch, as JSON has them."""
        from pyarrow import types

        if not self.keys[key]:
            stem = Path(file_of(self._path)).stem
            paths = enumerate(self.paths(batch), first + 1)
            return [path or f"{stem}:{row}" for row, path in paths]
        array = self._array(batch, self.keys[key])
        if key == "image" and types.is_integer(array.type):  # ids are strings
            array = array.cast("string")
        quick: list[Any] | None = _quick(array)
        if quick is not None:
            return quick
        if _is_bytes(array.type) and self.keys[key] in self._strings:
            array = array.cast("binary").cast("large_string")
        values: list[Any] = array.to_pylist()
        return orjson.loads(orjson.dumps(values, default=_plain))  # type: ignore[no-any-return]

    def paths(self, batch: pa.RecordBatch) -> list[str | None]:
        """Return the paths that are stored with the images of a batch."""
        field = self.field("path")
        found: list[str | None] = self._array(batch, field).to_pylist() if field else []
        return found or [None] * len(batch)

    def may_lack_bytes(self) -> bool:
        """Return whether images may be named by a path alone, as far as the file's ends show."""
        if not self.field("path"):
            return False
        if not self._is_parquet:
            return True
        stored = self._file.metadata
        name = self.field("bytes")
        column = next(i for i in range(stored.num_columns) if stored.schema.column(i).path == name)
        for group in range(stored.num_row_groups):
            facts = stored.row_group(group).column(column).statistics
            if facts is None or not facts.has_null_count or facts.null_count:
                return True
        return False

    def unstored(self, batch: pa.RecordBatch, first: int) -> list[str]:
        """Return the paths of the images of a batch that have no bytes."""
        paths = zip(self.paths(batch), self._array(batch, self.stored).is_null(), strict=True)
        return [path for path, lacks in paths if lacks.as_py() and path is not None]

    def pictures(self, batch: pa.RecordBatch, first: int) -> list[Picture]:
        """Return the images of a batch."""
        stored = self._array(batch, self.stored).to_pylist()
        facts = self.values(batch, "image", first), stored, self.paths(batch)
        rows = range(first + 1, first + 1 + len(batch))
        return [*map(Picture, rows, *facts)]


def _plain(value: object) -> str | None:
    if not isinstance(value, bytes):
        return str(value)
    return value.decode() if _are_strings([value]) else None


def _are_strings(values: Iterable[bytes | None]) -> bool:
    """Return whether bytes are texts, by the first that are not empty: no picture's are."""
    with suppress(UnicodeDecodeError):
        text = next(filter(None, values), b"").decode()
        return bool(text) and not re.search("[\0-\x08\x0e-\x1f]", text)
    return False


def _quick(array: pa.Array) -> Any:
    """Return strings, numbers and lists of them, which JSON has as they are; None for other values.

    Numbers pass through numpy, 20 times as fast as one at a time.
    """
    import numpy as np
    from pyarrow import types

    kind = array.type
    if types.is_string(kind) or types.is_large_string(kind):
        return array.to_pylist()
    if array.null_count:
        return array.to_pylist() if types.is_integer(kind) else None
    if any(is_kind(kind) for is_kind in (types.is_integer, types.is_float32, types.is_float64)):
        numbers = array.to_numpy()
        return numbers.tolist() if np.isfinite(numbers).all() else None
    if types.is_list(kind) or types.is_large_list(kind):
        flat = _quick(array.flatten())
        edges = (array.offsets.to_numpy() - array.offsets[0].as_py()).tolist()
        return None if flat is None else [flat[a:b] for a, b in pairwise(edges)]
    return None


def _first_of(parent: Any, path: str) -> str:
    """Return the column or field of a parent that a path of fields starts with."""
    names = (str(field.name) for field in parent)
    return max((name for name in names if f"{path}.".startswith(f"{name}.")), key=len)


def _field_of(array: pa.Array, path: str) -> pa.Array:
    """Return the values of a field of a struct, by the path to it."""
    from pyarrow import compute

    while path:
        name = _first_of(array.type, path)
        array = compute.struct_field(array, [array.type.get_field_index(name)])
        path = path[len(name) + 1 :]
    return array


def _fields(parent: Any, before: str = "") -> Iterator[str]:
    """Yield the fields of the nested columns of a schema: `caption.en`."""
    from pyarrow import types

    for field in parent:
        name = f"{before}{field.name}"
        if before:
            yield name
        if types.is_struct(field.type):
            yield from _fields(field.type, f"{name}.")


def _is_stored(kind: pa.DataType) -> bool:
    """Return whether a column has bytes, alone or as `datasets` stores an image."""
    from pyarrow import types

    if types.is_struct(kind):
        return any(field.name == "bytes" and _is_stored(field.type) for field in kind)
    return _is_bytes(kind) and not types.is_fixed_size_binary(kind)  # those are hashes


def _is_bytes(kind: pa.DataType) -> bool:
    from pyarrow import types

    kinds = types.is_binary, types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return any(is_kind(kind) for is_kind in kinds)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    """Return the batches of an Arrow file, or of a stream, which does not know how many it has."""
    count = getattr(reader, "num_record_batches", None)
    return iter(reader) if count is None else map(reader.get_batch, range(count))


def _arrow_reader(stream: BinaryIO, name: str) -> Any:
    """Return the reader of an Arrow file or stream."""
    import pyarrow as pa

    head = stream.read(6)
    is_file = head == b"ARROW1"
    if not is_file and head[:4] != _STREAM:
        raise pa.ArrowInvalid("Not an Arrow file")
    stream.seek(max(0, stream.seek(0, os.SEEK_END) - len(_END)))
    if not is_file and stream.read() != _END:
        raise pa.ArrowInvalid("Its stream has no end mark")
    stream.seek(0)
    # In a map of a file, columns that nobody asks for are never read.
    source = stream if is_url(name) else pa.memory_map(name)
    return pa.ipc.open_file(source) if is_file else pa.ipc.open_stream(source)


@contextmanager
def _faults(path: str | Path, row: int | None = None) -> Iterator[None]:
    """Raise an error of pyarrow about a file as an error with an exit code."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise file_error(error, path, reading=True) from None
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        why = f"is damaged, cut off, or of another form than its name says: {reason}"
        raise DataError(f"{why}; create it again", path, row) from None
