"""A Parquet file that grows: every commit appends its rows as a small, whole Parquet file.

So a .gz grows by gzip members. A Parquet file ends with the places of its row groups. `Groups.end`
writes this end for all of them, from the ends of the small files, with every place moved to where
it is now. A resumed run reads these ends again; nothing else is kept, and memory holds the rows of
one commit.

Columns have types, the same in each row group: those that a kind of rows always has are declared,
others have the type of their values in the first rows. A key that a row lacks is null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NoReturn

import orjson

from vgtools.io.errors import DataError, Exit

if TYPE_CHECKING:
    import pyarrow as pa  # not installed everywhere

ABOUT: Final = b"vg"  # the key of the manifest in the metadata of a file
# Key -> type of its values: str, int, float, bool, or a list with the type of its entries.
Columns = Mapping[str, Any]
Row = dict[str, Any]
_MAGIC: Final = b"PAR1"
_TAIL: Final = 8  # bytes after the metadata: their length, and the magic
# Errors of pyarrow about a value that a column cannot have.
_MISFITS: Final = (ValueError, TypeError, OverflowError, NotImplementedError)
# The fields of metadata that are places in the file: the file_offset of a row group and of a column
# in it, and the offsets of the column's data, index and dictionary pages.
_PLACES: Final = {(4, 5), (4, 1, 2), (4, 1, 3, 9), (4, 1, 3, 10), (4, 1, 3, 11)}


class Groups:
    """The row groups of a growing file.

    Args:
        path: the file, for messages.
        columns: the declared columns.

    Raises:
        DataError: pyarrow is not installed (69).
    """

    def __init__(self, path: str | Path, columns: Columns) -> None:
        try:
            import pyarrow as pa  # noqa: F401 - asked for before any work is done
        except ImportError:
            why = "needs the package pyarrow: pip install 'vgtools[tables]'"
            raise DataError(why, path, code=Exit.UNAVAILABLE) from None
        self._path = path
        self._declared = {key: _type(form) for key, form in columns.items()}
        self._types: dict[str, pa.DataType] = dict(self._declared)
        self._all: Any = None  # metadata of the row groups so far

    def resume(self, stream: IO[bytes], size: int) -> None:
        """Read the ends of the small files that are the first `size` bytes of a part."""
        found = list[Any]()
        while size:
            stream.seek(size - _TAIL)
            length = int.from_bytes(stream.read(4), "little")
            stream.seek(size - _TAIL - length)
            footer = stream.read(length)
            group = _parsed(footer).row_group(0)
            rows = sum(group.column(i).total_compressed_size for i in range(group.num_columns))
            size -= len(_MAGIC) + rows + length + _TAIL
            found.append(_parsed(_moved(footer, size)))
        for metadata in reversed(found):
            self._add(metadata)

    def _add(self, metadata: Any) -> None:
        if self._all is None:
            self._all = metadata
            self._types = {field.name: field.type for field in metadata.schema.to_arrow_schema()}
        else:
            self._all.append_row_groups(metadata)

    def group(self, lines: bytes, start: int) -> bytes:
        """Return lines of JSON as a small Parquet file, which goes to `start`.

        Raises:
            DataError: a row has a value of another type than its column, or a key that the first
                rows lack (65, with the row).
        """
        import pyarrow as pa

        rows: list[Row] = [orjson.loads(line) for line in lines.splitlines()]
        keys = dict.fromkeys(key for row in rows for key in row)
        for key in keys if self._all is None else ():
            self._types[key] = self._array(rows, key, first=True).type
        for key in keys.keys() - self._types.keys():
            self._refuse(rows, key, "the first rows, which decide the columns, lack it")
        arrays = [self._array(rows, key) for key in self._types]
        try:
            data = _file(pa.Table.from_arrays(arrays, [*self._types]))
        except NotImplementedError as error:
            why = f"{str(error).partition('. ')[0]}; rows of any keys go into .jsonl"
            raise DataError(why, self._path) from None
        self._add(_parsed(_moved(_footer(data), start)))
        return data

    def _array(self, rows: Sequence[Row], key: str, first: bool = False) -> Any:
        """Return a column; the `first` rows may differ from the declared type."""
        import pyarrow as pa

        values = [row.get(key) for row in rows]
        kind = self._types.get(key)
        try:
            array = pa.array(values, kind)
        except _MISFITS as error:
            if first and kind is not None:
                self._types.pop(key)
                return self._array(rows, key, first)
            self._refuse(rows, key, str(error), kind)
        # pyarrow cuts 3.8 to 3 in a column of integers, and leaves out keys of objects that the
        # first lacked. Declared columns have values of vg's own.
        fits = first or kind == self._declared.get(key) or _has_type(values, kind)
        if not (fits or _is_same(values, array.to_pylist())):
            self._refuse(rows, key, "a value would become another", kind)
        return array

    def _refuse(self, rows: Sequence[Row], key: str, why: str, kind: Any = None) -> NoReturn:
        """Refuse the first row with a key whose value does not fit into a column."""
        import pyarrow as pa

        before = 0 if self._all is None else self._all.num_rows
        for number, row in enumerate(rows, before + 1):
            try:
                (stored,) = pa.array([row.get(key)], kind).to_pylist()
            except _MISFITS as error:
                why = str(error)
            else:
                if key not in row or (kind is not None and _is_same(row[key], stored)):
                    continue
                if kind is not None:
                    why = f"{row[key]!r:.60} would become {stored!r:.60}"
            expected = f"a column of {kind}" if kind is not None else "a column of Parquet"
            why = f'"{key}" does not fit into {expected}: {why}; rows of any keys go into .jsonl'
            raise DataError(why, self._path, number)
        raise DataError(f'"{key}" does not fit into a column: {why}; write .jsonl', self._path)

    def end(self, start: int, about: bytes) -> bytes:
        """Return the end of the file.

        Args:
            start: its place.
            about: JSON for its metadata.
        """
        import pyarrow as pa

        empty = pa.schema([*self._types.items()]).empty_table()
        whole = _parsed(_footer(_file(empty, about)))
        if self._all is not None:
            whole.append_row_groups(self._all)
        data = BytesIO()
        whole.write_metadata_file(data)
        # Metadata alone start with the magic, as the rows do if there are any.
        return data.getvalue()[len(_MAGIC) if start else 0 :]


def _has_type(values: Sequence[Any], kind: Any) -> bool:
    """Return whether values alone would be a column of a type: then they fit into it whole."""
    import pyarrow as pa

    try:
        return bool(pa.array(values).type == kind)
    except _MISFITS:
        return False


def _is_same(value: Any, stored: Any) -> bool:
    """Return whether a value of JSON is read back as it was; null may stand for no key."""
    if isinstance(value, dict) and isinstance(stored, dict):
        keys = value.keys() | stored.keys()
        return all(_is_same(value.get(key), stored.get(key)) for key in keys)
    if isinstance(value, list) and isinstance(stored, list):
        return len(value) == len(stored) and all(map(_is_same, value, stored))
    # In Python, True is 1.
    return bool(value == stored and isinstance(value, bool) == isinstance(stored, bool))


def _type(form: Any) -> pa.DataType:
    import pyarrow as pa

    if isinstance(form, list):
        return pa.list_(_type(form[0]))
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[form]


def _file(table: pa.Table, about: bytes | None = None) -> bytes:
    """Return a table as a Parquet file of one row group, or of none if it is empty."""
    from pyarrow import parquet

    data = BytesIO()
    how: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
    with parquet.ParquetWriter(data, table.schema, store_schema=False, **how) as writer:
        if table.num_rows:
            writer.write_table(table, table.num_rows)
        if about is not None:
            writer.add_key_value_metadata({ABOUT: about})
    return data.getvalue()


def _footer(data: bytes) -> bytes:
    return data[-_TAIL - int.from_bytes(data[-_TAIL:-4], "little") : -_TAIL]


def _parsed(footer: bytes) -> Any:
    """Return metadata as pyarrow reads them, from a file that has nothing else."""
    from pyarrow import parquet

    length = len(footer).to_bytes(4, "little")
    return parquet.read_metadata(BytesIO(_MAGIC + footer + length + _MAGIC))


def _moved(footer: bytes, by: int) -> bytes:
    """Return metadata with every place in the file moved by some bytes."""
    copy = _Copy(footer, by)
    copy.struct(())
    return bytes(copy.done)


class _Copy:
    """A copy of Parquet's metadata with other places.

    They are in Thrift's compact protocol, which pyarrow reads and writes, but cannot edit. A field
    states the difference to the number of the field before. Integers have 7 bits per byte,
    the lowest first, and are doubled, as none of these is negative.
    """

    def __init__(self, data: bytes, by: int) -> None:
        self._data = data
        self._at = 0
        self._by = by
        self.done = bytearray()

    def _bytes(self, count: int) -> bytes:
        data = self._data[self._at : self._at + count]
        self._at += count
        self.done += data
        return data

    def _number(self, add: int = 0) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        left = value + 2 * add
        while left > 127:
            self.done.append(left & 127 | 128)
            left >>= 7
        self.done.append(left)
        return value

    def struct(self, path: tuple[int, ...]) -> None:
        """Copy the fields of an object, up to its end."""
        field = 0
        while (head := self._bytes(1)[0]) != 0:
            step = head >> 4
            field = field + step if step else self._number() // 2
            self._value(head & 15, (*path, field))

    def _value(self, kind: int, path: tuple[int, ...]) -> None:
        if kind in (4, 5, 6):  # integers
            self._number(self._by if path in _PLACES else 0)
        elif kind == 8:  # a string
            self._bytes(self._number())
        elif kind in (9, 10):  # a list or set
            head = self._bytes(1)[0]
            count = head >> 4 if head >> 4 < 15 else self._number()
            for _ in range(count):
                self._value(head & 15, path)
        elif kind == 12:
            self.struct(path)
        elif kind in (3, 7):  # a byte, a double; a boolean is in its field's head
            self._bytes(1 if kind == 3 else 8)
