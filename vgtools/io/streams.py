"""Streams that are read: bytes, lines, rows of JSON and texts, compressed or not."""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import hashlib
import os
import re
import stat
import sys
import weakref
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, RawIOBase, UnsupportedOperation
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from vgtools.io.errors import DataError, Exit, TextStats, file_error, file_errors
from vgtools.io.folders import ShardFile, Shards, open_file
from vgtools.io.forms import TYPE_NAMES
from vgtools.io.names import (
    bare,
    file_of,
    is_compressed,
    is_jsonl,
    is_separated,
    is_shards,
    is_stream,
    is_table,
    is_unnamed,
    is_url,
    split_table,
)
from vgtools.io.remote import facts, file_size, open_url
from vgtools.io.tables import keys_of, table_rows
from vgtools.io.trust import file_hash
from vgtools.io.written import check_made, is_made

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd


BROKEN_STREAM = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)
WINDOW_CHARS = 1 << 25  # most of a window: with long lines it ends before its number of lines
TEXT_CHARS = 1_000_000  # most of a text that is tokenised
_FIRST_BLOCK = 1 << 13  # bytes of a text in which a NUL means that it is binary, as for git
_LONGEST = 1 << 28  # bytes of a line, many times as many as the longest text's vokens have
_BLOCK = 1 << 20  # bytes read at a time
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Row = dict[str, Any]
Line = str | Row  # a line of a text, or a row of a table

_MAGIC: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"\x28\xb5\x2f\xfd": zstd.open}
_OPENERS: dict[str, Any] = {".gz": gzip.open, ".zst": zstd.open}


class _Chunks(RawIOBase):
    """Pieces of bytes as a stream; closing it closes the file that they come from."""

    def __init__(self, chunks: Iterator[bytes], file: BinaryIO | None = None) -> None:
        self._chunks = chunks
        self._file = file
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._left = self._left or memoryview(next(self._chunks, b""))
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def close(self) -> None:
        if isinstance(self._chunks, Generator):
            self._chunks.close()
        if self._file is not None:
            self._file.close()
        super().close()


def _buffered(chunks: Iterator[bytes], file: BinaryIO | None = None) -> BinaryIO:
    return cast(BinaryIO, BufferedReader(_Chunks(chunks, file), _BLOCK))


def _decompressed(stream: BinaryIO) -> BinaryIO:
    """Return a stream without a name, decompressed if it starts like a compressed file."""
    head = stream.read(1)
    opening = [magic for magic in _MAGIC if head and magic.startswith(head)]
    if opening:
        head += stream.read(len(opening[0]) - 1)
    # `read1` of a buffered stream waits for some bytes, not for all of them.
    read = getattr(stream, "read1", stream.read)
    rest = iter(lambda: read(1 << 16), b"")
    own = stream is not getattr(sys.stdin, "buffer", None)
    whole = _buffered(chain([head], rest), stream if own else None)
    return cast(BinaryIO, _MAGIC[head](whole, "rb")) if head in _MAGIC else whole


def _hashed(stream: BinaryIO, digest: Any) -> Iterator[bytes]:
    while data := stream.read(_BLOCK):
        digest.update(data)
        yield data


def _checked(files: Iterable[ShardFile]) -> Iterator[bytes]:
    """Yield the bytes of files of shards, decompressed; each file is compared with its hash."""
    for file in files:
        digest = hashlib.sha256()
        with file_errors(file.path, reading=True), open_file(file.path) as stream:
            stored = _hashed(stream, digest)
            whole: Any = _buffered(stored)
            packed = whole  # once it is freed, no more of the file is read
            opener: Any = _OPENERS.get(os.path.splitext(file.path)[1])
            if opener is not None:
                whole = opener(packed, "rb")
            try:
                while data := whole.read1(_BLOCK):
                    yield data
            except BROKEN_STREAM as error:
                why = f"compressed data is cut off or damaged: {error}; remove the file and run"
                why += " the command that writes the folder again"
                raise DataError(why, file.path) from None
            # The hash is over the whole file, also over bytes after the end of the compressed data.
            for _ in stored:
                pass
        file.check(digest.hexdigest())


def open_shards(path: str | Path, start: int = 0, stop: int | None = None) -> BinaryIO:
    """Open the shards of a folder from `start` up to `stop`, by default all, as one stream."""
    return _buffered(_checked(Shards(path).files(None, start, stop)))


def open_shard(file: ShardFile) -> BinaryIO:
    """Open one file of a shard; at its end its hash is compared, if it is known."""
    if file.sha256 is None:
        return open_read(file.path)
    return _buffered(_checked([file]))


@dataclass(frozen=True)
class Piece:
    """Consecutive lines of an input: those whose first byte is in [start, stop).

    In a folder of shards, `start` and `stop` count shards, not bytes.
    """

    path: str
    start: int = 0
    stop: int | None = None

    def lines_before(self) -> int:
        """Return how many lines of the input come before the piece; it is read for that."""
        if not self.start:
            return 0
        if is_shards(file_of(self.path)):
            return sum(file.rows for file in Shards(file_of(self.path)).files(stop=self.start))
        left = self.start - 1
        count = 1
        with file_errors(self.path, reading=True), open_read(self.path) as stream:
            while left and (data := stream.read(min(left, _BLOCK))):
                count += data.count(b"\n")
                left -= len(data)
        return count


def open_read(path: str | Path) -> BinaryIO:
    """Open a byte stream of a file or URL: `-` is standard input, `.gz`, `.zst` are decompressed.

    A folder of shards is read as one file. A stream without a name (`is_unnamed`) is decompressed
    if it starts like a gzip or zstd file.

    Raises:
        DataError: the file is missing, a directory, or unreadable (exit 66); a `.gz` of 0 bytes
            (65); a pipe that was opened before (usage).
    """
    name = str(path)
    if name == "-" and (sys.stdin is None or sys.stdin.closed):
        raise DataError("is closed; name a file or pipe one in", "-", code=Exit.NO_INPUT)
    if "\0" in name:
        raise DataError("has a NUL in its name", path, code=Exit.NO_INPUT)
    with file_errors(path, reading=True):
        if name == "-":
            _refuse_again(name)
            return _decompressed(sys.stdin.buffer)
        if is_shards(name):
            return open_shards(name)
        if os.path.isdir(name):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        source: Any = open_url(name) if is_url(name) else name
        if source is name:
            _refuse_again(name)
        # Python reads a .gz of 0 bytes as empty data, but it is a file that was cut off.
        if name.endswith(".gz") and not is_stream(name) and file_size(name) == 0:
            raise DataError("is empty, without even a gzip header; create it again", path)
        if is_compressed(name):
            source = _OPENERS[os.path.splitext(name)[1]](source, "rb")
        elif source is name:
            source = open(name, "rb")  # noqa: SIM115 - the caller closes it
            if is_unnamed(name):
                return _decompressed(source)
        _READ[name] = _Read(weakref.ref(source, partial(_forget, name)))
        return cast(BinaryIO, source)


@dataclass
class _Read:
    """How far a file is read: its last stream, and the lines of it that windows had."""

    stream: Callable[[], Any]  # a weak reference
    lines: int = 0

    def bytes(self, size: int) -> int:
        stream: Any = self.stream()
        with contextlib.suppress(ValueError):  # closed
            # A compressed file is as far as the file below it.
            below: Any = getattr(stream, "fileobj", None) or getattr(stream, "_fp", stream)
            return size if stream is None or stream.closed else min(size, int(below.tell()))
        return size


_READ = dict[str, _Read]()


def _count(path: str, lines: int) -> None:
    # The stream of a short file may be gone by now.
    _READ.setdefault(path, _Read(lambda: None)).lines = lines


def _forget(name: str, stream: weakref.ref[Any]) -> None:
    """Forget a closed file that windows had no lines of: a folder may hold a million captions."""
    entry = _READ.get(name)
    if entry is not None and entry.stream is stream and not entry.lines:
        del _READ[name]


def read_so_far(paths: Iterable[str]) -> tuple[float, int] | None:
    """Return the share of some files that is read, by bytes, and how many lines of them.

    Returns:
        None where their size is not known, as of a pipe.
    """
    read = size = lines = 0
    for path in paths:
        if not os.path.isfile(path):
            return None
        whole = os.path.getsize(path)
        size += whole
        if path in _READ:
            read += _READ[path].bytes(whole)
            lines += _READ[path].lines
    return (read / size, lines) if size else None


PIPES = set[Any]()  # device and inode of the pipes that the command opened; its standard input


def _refuse_again(name: str) -> None:
    """Refuse to open a pipe, or `-`, a second time: nobody may ever write into it again.

    Raises:
        DataError: it was opened before, under this or another name (usage).
    """
    read = set[Any]() if name != "-" else {sys.stdin.buffer}
    with contextlib.suppress(UnsupportedOperation):  # a stream of Python's, in memory
        facts = os.stat(name if name != "-" else sys.stdin.fileno())
        if stat.S_ISFIFO(facts.st_mode):
            read.add((facts.st_dev, facts.st_ino))
    if read & PIPES:
        why = "is a pipe that was read before, and can be read only once; write it to a file first"
        raise DataError(why, name, code=Exit.USAGE)
    PIPES.update(read)


def _open_piece(piece: Piece) -> tuple[BinaryIO, int | None]:
    """Return the stream of a piece, at its first line, and the bytes in which its lines start."""
    if is_shards(piece.path):
        return open_shards(piece.path, piece.start, piece.stop), None
    stream = open_read(piece.path)
    if piece.start:
        with file_errors(piece.path, reading=True):
            # One byte earlier: if it is a line end, a line starts exactly at the piece, and only
            # this byte is skipped.
            stream.seek(piece.start - 1)
            # The line that started before the piece belongs to the piece before.
            skipped = len(stream.readline()) - 1
    else:
        skipped = 0
    left = None if piece.stop is None else piece.stop - piece.start - skipped
    return stream, left


def _raw_lines(piece: Piece) -> Iterator[bytes]:
    """Yield the lines of a stream as bytes, split on `\\n` only, line end kept.

    A file that vg wrote is compared with the manifest next to it: its size at once, and its hash
    after the last line, if the piece is all of it.

    Raises:
        DataError: it cannot be read (66), is a damaged archive, has another size or hash, or a line
            without end (65).
    """
    path = piece.path
    if is_compressed(path):
        check_made(path)
    compared = is_made(path) and piece == Piece(path) and not is_compressed(path)
    digest = hashlib.sha256()
    stream, left = _open_piece(piece)
    number = 0
    try:
        for line in iter(partial(stream.readline, _LONGEST + 1), b""):
            if len(line) > _LONGEST:
                why = f"has more than {_LONGEST:,} bytes; expected lines of text or JSON"
                raise DataError(why, path, number + 1)
            if left is not None:
                if left <= 0:
                    break
                left -= len(line)
            number += 1
            if compared:
                digest.update(line)
            yield line
        if compared:
            check_made(path, digest.hexdigest())
    except BROKEN_STREAM as error:
        why = f"compressed data is cut off or damaged: {error}; create the file again"
        raise DataError(why, path, number + 1) from None
    except OSError as error:
        raise file_error(error, path, reading=True) from None
    finally:
        stream.close()


def raw_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a stream as bytes, split on `\\n` only, line end kept.

    Raises:
        DataError: it cannot be read (66), is a damaged archive, or has another size or hash (65).
    """
    return _raw_lines(Piece(str(path)))


def _text_lines(piece: Piece) -> Iterator[bytes]:
    """Yield the lines of `_raw_lines`, if they are not binary: no NUL in the first block.

    Raises:
        DataError: a byte 0 there (65).
    """
    left = _FIRST_BLOCK if not piece.start else 0
    for number, line in enumerate(_raw_lines(piece), 1):
        if left > 0:
            if b"\0" in line[:left]:
                why = f"is not text: byte 0 in line {number}; expected UTF-8 text or JSON lines"
                raise DataError(why, piece.path)
            left -= len(line)
        yield line


def _undoubted(lines: Iterator[bytes], path: str) -> Iterator[bytes]:
    """Yield lines; refuse rows of JSON after blank lines in an input whose name does not show it.

    Raises:
        DataError: by its first line it would be a text, by the first that is not blank, rows (65).
    """
    for number, line in enumerate(lines, 1):
        text = decode(line, number == 1)
        if number > 1 and text.strip() and is_unnamed(path) and holds_rows(path, text):
            why = f"is blank, and rows of JSON start on line {number}; remove blank lines"
            raise DataError(why, path, 1)
        yield line
        if text.strip():
            break
    yield from lines


def decode(raw: bytes, first: bool = False, stats: TextStats | None = None) -> str:
    """Decode a raw line: line end and byte-order mark go, bad bytes become U+FFFD."""
    if first:
        raw = raw.removeprefix(_BYTE_ORDER_MARK)
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        if stats is not None:
            stats.replaced += 1
        return raw.decode("utf-8", "replace")


def read_lines(path: str | Path, stats: TextStats | None = None) -> Iterator[str]:
    """Yield the lines of a text: split on `\\n` only, N lines in are N strings out.

    Args:
        path: a file, `.gz`, `.zst`, or `-`.
        stats: counts lines, and lines with bad bytes, as they pass.

    Raises:
        DataError: missing (66), or binary or a damaged archive (65, with the line).
    """
    for number, raw in enumerate(_text_lines(Piece(str(path)))):
        if stats is not None:
            stats.lines += 1
            stats.ended = raw.endswith(b"\n")
        yield decode(raw, number == 0, stats)


def read_names(path: str | Path) -> Iterator[str]:
    """Yield the lines of a file of names, which would be others if bad bytes were replaced.

    Raises:
        DataError: as `read_lines`, or a line is not UTF-8 (65).
    """
    stats = TextStats()
    for line in read_lines(path, stats):
        if stats.replaced:
            raise DataError(f"is not UTF-8: {line!r:.80}; expected a name", path, stats.lines)
        yield line


def read_quoted(
    lines: Iterable[str], path: str | Path, separator: str = ","
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line, cells) of the lines of a quoted table; a quoted cell may span several lines.

    Raises:
        DataError: the quoting is broken; file and line are named.
    """
    csv.field_size_limit(WINDOW_CHARS)  # by default 131,072 characters, and a text may be longer
    reader = csv.reader((line + "\n" for line in lines), delimiter=separator, strict=True)
    start = 1
    try:
        for cells in reader:
            yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        why = f"not valid quoted text: {error}; is the file cut off?"
        raise DataError(why, path, start) from None


def parse_number(cell: str) -> float | None:
    """Return the number in a cell of a text; None for every other cell.

    Python would also take 1_0 for ten, and the digits of other scripts.
    """
    try:
        return float(cell) if cell.isascii() and "_" not in cell else None
    except ValueError:
        return None


def parse_json(text: str | bytes | Row, path: str | Path, line: int) -> Row:
    """Parse one jsonl line into an object; a row of a table is one.

    Raises:
        DataError: it is not a JSON object; file and line are named.
    """
    if isinstance(text, dict):
        return text
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        why = f"not valid JSON: {error}; expected one JSON object per line"
        raise DataError(why, path, line) from None
    if not isinstance(row, dict):
        raise DataError(f"expected a JSON object, got {type(row).__name__}", path, line)
    return row


def require(row: Mapping[str, Any], keys: Mapping[str, type], path: str | Path, line: int) -> None:
    """Check that a row has the keys with the types that a reader needs.

    Raises:
        DataError: a key is missing or of another type, or the name of an image is empty; file,
            line and key are named.
    """
    for key, expected in keys.items():
        if key not in row:
            why = f"the row has {', '.join(map(repr, row)) or 'no keys'}"
            if is_table(path):
                named = f"{path}," if split_table(path)[1] else f"{path}#"
                why += f"; {named}{key}=COLUMN names its column"
            raise DataError(f'the key "{key}" is missing; {why}', path, line)
        value = row[key]
        types = (int, float) if expected is float else expected
        # In Python a boolean is an integer; in a file it is not.
        if not isinstance(value, types) or (isinstance(value, bool) and expected is not bool):
            name = TYPE_NAMES.get(expected, expected.__name__)
            got = f"{value!r:.60}"
            if is_table(path) and isinstance(value, dict):
                got += f"; {file_of(path)}#{key}=COLUMN.FIELD names a field of it"
            raise DataError(f'"{key}" must be {name}, got {got}', path, line)
        if key == "image" and not value:
            raise DataError('"image" must be the name of an image, got an empty string', path, line)


def check_length(text: str, path: str | Path, line: int) -> None:
    """Refuse a text that is too long to be tokenised: a whole file in one line.

    Raises:
        DataError: it has more than `TEXT_CHARS` characters; file, line and length are named.
    """
    if len(text) > TEXT_CHARS:
        why = f"has a text of {len(text):,} characters, expected at most {TEXT_CHARS:,}"
        raise DataError(f"{why}; vg prepare sentences or fold -s splits it", path, line)


def _separated_rows(path: str | Path) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV with a header, cells quoted as spreadsheets do it.

    Raises:
        DataError: the quoting is broken, a row has more or fewer cells than the header, or bytes
            are not UTF-8; with the row, as of every table, and the line.
    """
    file = file_of(path)
    stats = TextStats()
    separator = "," if bare(file).endswith(".csv") else "\t"
    keys = dict[str, int]()
    width = 0
    row = 0  # the one that is read next, also where its quoting is broken; 0 is the header
    try:
        for line, cells in read_quoted(read_lines(file, stats), file, separator):
            if stats.replaced:
                raise DataError("not UTF-8", file, line)
            if not row:
                keys = {key: cells.index(name) for key, name in keys_of(cells, path).items()}
                width = len(cells)
            elif len(cells) != width:
                why = f"expected {width} cells as in the header, got {len(cells)}"
                raise DataError(f"{why}; cells with a separator are quoted", file, line)
            else:
                yield {key: cells[at] for key, at in keys.items()}
            row += 1
    except DataError as error:
        if error.line is None:
            raise
        raise DataError(f"line {error.line} of the file: {error.why}", path, row or None) from None


def rows_of_table(path: str | Path, start: int = 0, stop: int | None = None) -> Iterator[Row]:
    """Yield the rows of a table, see `table_rows` and `read_quoted`.

    A file that vg wrote is compared with the manifest next to it.
    """
    if is_separated(path):
        return _separated_rows(path)
    check_made(path)
    return table_rows(path, start, stop)


def read_records(path: str | Path, stats: TextStats | None = None) -> Iterator[Line]:
    """Return the lines of a text, as `read_lines` does, or the rows of a Parquet or Arrow file."""
    if is_table(path) and not is_separated(path):
        return table_rows(path)
    return read_lines(path, stats)


def read_jsonl(
    path: str | Path, keys: Mapping[str, type] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return `(line number, object)` of a jsonl stream; blank lines are errors, not skipped.

    Args:
        path: a file, `.gz`, `.zst`, or `-`; or a table, the lines of which are its rows.
        keys: required keys and their types. Where these are an image and its text, a list of texts
            is as many rows, with the number of their line.

    Raises:
        DataError: invalid JSON, not an object, a missing key or a wrong type, with file and line.
    """
    return jsonl_rows(rows_of_table(path) if is_table(path) else raw_lines(path), path, keys)


def jsonl_rows(
    lines: Iterable[bytes | Row], path: str | Path, keys: Mapping[str, type] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `(line number, object)` of the lines of a jsonl stream; as `read_jsonl` otherwise."""
    keys = keys or {}
    are_captions = keys.keys() == {"image", "text"}
    for number, raw in enumerate(lines, 1):
        if number == 1 and isinstance(raw, bytes):
            raw = raw.removeprefix(_BYTE_ORDER_MARK)
        row = raw if isinstance(raw, dict) else parse_json(raw, path, number)
        several = are_captions and isinstance(row.get("text"), list)
        for each in [row | {"text": text} for text in row["text"]] if several else (row,):
            require(each, keys, path, number)
            yield number, each


def holds_rows(path: str | Path, first: str, keys: Iterable[str] = ("text",)) -> bool:
    """Return whether an input holds JSON lines; the one rule for every command.

    A name decides if there is one: `.jsonl` or `.txt`, compressed or not. A stream without a name
    (`is_unnamed`) holds JSON lines if its first line is a JSON object with the keys that the
    command needs; such a line in a file with another name is refused.

    Args:
        path: the input.
        first: its first line.
        keys: the keys that each row must have.

    Raises:
        DataError: a stream's first line starts like JSON and is not such a row, or a file's is one
            and its name does not show it (65).
    """
    if is_jsonl(path) or (bare(path).endswith(".txt") and not is_unnamed(path)):
        return is_jsonl(path)
    first = first.lstrip()
    if not first.startswith("{"):
        return False
    try:
        row = orjson.loads(first)
    except orjson.JSONDecodeError:
        row = None
    if isinstance(row, dict) and all(key in row for key in keys):
        if not is_unnamed(path):
            why = "holds rows of JSON, by its first line, and would be read as text"
            raise DataError(f"{why}; name rows .jsonl, and a text .txt", path, 1)
        return True
    if not is_unnamed(path):
        return False
    if re.match(r'\{\s*"', first):
        names = " and ".join(f'"{key}"' for key in keys)
        why = f"starts like JSON, but is not an object with {names}; name a text file .txt"
        raise DataError(why, path, 1)
    return False


def read_text_rows(path: str | Path, stats: TextStats | None = None) -> Iterator[dict[str, Any]]:
    """Return rows with a "text", of JSON lines, or the lines of a text as {"text"}.

    Raises:
        DataError: it cannot be read, is an array, or a row has no "text".
    """
    if bare(path).endswith((".npy", ".npz", ".faiss", ".safetensors")):
        raise DataError("is not text; expected a text or a .jsonl", path)
    return _text_rows(path, stats)


def _text_rows(path: str | Path, stats: TextStats | None) -> Iterator[dict[str, Any]]:
    if is_table(path):
        yield from (row for _, row in read_jsonl(path, {"text": str}))
        return
    lines = _undoubted(_text_lines(Piece(str(path))), str(path))
    for first in lines:
        if holds_rows(path, decode(first, True)):
            yield from (row for _, row in jsonl_rows(chain([first], lines), path, {"text": str}))
        else:
            for number, raw in enumerate(chain([first], lines)):
                if stats is not None:
                    stats.lines += 1
                yield {"text": decode(raw, number == 0, stats)}


def read_texts(path: str | Path, stats: TextStats | None = None) -> Iterator[str]:
    """Return the sentences of a file, one per line or row; as `read_text_rows` otherwise."""
    return (row["text"] for row in read_text_rows(path, stats))


@dataclass
class Window:
    """Consecutive input lines, and the state that resumes after them."""

    path: str
    first: int  # line number of lines[0], counted from 1, in its piece of the input
    lines: list[Line]
    # sha256 of every raw byte of the input up to the window's end; for a folder of shards its
    # list's, which has the hash of each; for a table the file's.
    digest: str
    replaced: int = 0  # lines of the window that had bytes which are not UTF-8
    jsonl: bool | None = None  # the lines are JSON objects, by `holds_rows`; None: by the name

    @property
    def chars(self) -> int:
        """Characters of the lines, or of the texts of a table."""
        return sum(map(_chars, self.lines))

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines as rows with a "text": rows of JSON lines, else {"text": line}.

        Raises:
            DataError: a row has no "text", or one that is too long; with file and line.
        """
        jsonl = is_jsonl(self.path) if self.jsonl is None else self.jsonl
        rows = list[dict[str, Any]]()
        for number, line in enumerate(self.lines, self.first):
            row: Row = {"text": line}
            if jsonl or isinstance(line, dict):
                row = parse_json(line, self.path, number)
                require(row, {"text": str}, self.path, number)
            check_length(row["text"], self.path, number)
            rows.append(row)
        return rows

    def texts(self) -> list[str]:
        """Return the sentences of the lines: "text" of rows of JSON lines, else the lines.

        Raises:
            DataError: as `rows`.
        """
        return [row["text"] for row in self.rows()]


def _piece_lines(piece: Piece) -> Iterator[bytes | Row]:
    """Return the raw lines of a piece, or the rows of a table or of some of its shards."""
    if is_table(piece.path):
        return rows_of_table(piece.path, piece.start, piece.stop)
    return _undoubted(_text_lines(piece), piece.path)


def _hash_of(path: str) -> str:
    """Return the hash of the list of shards, or of the file of a table; at a URL its version."""
    file = file_of(path)
    if is_shards(file):
        return Shards(file).sha256
    with file_errors(path, reading=True):
        return str(facts(file)) if is_url(file) else file_hash(file)


def _chars(line: Line) -> int:
    return len(line) if isinstance(line, str) else len(str(line.get("text")))


def read_windows(
    source: str | Path | Sequence[Piece],
    size: int,
    state: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> Iterator[Window]:
    """Yield windows of up to `size` decoded lines, resuming after a committed state.

    A window ends early after `WINDOW_CHARS`, so that long lines do not fill the memory, and at the
    end of a piece.

    Args:
        source: a file, `.gz`, `.zst`, `-`, or pieces of files, one after the other.
        size: lines per window; windows of a piece start at multiples of it, so a resumed run has
            the same windows.
        state: `{"rows": …, "digest": …}` of the last committed window; those lines are read again,
            checked and skipped.
        limit: stop after this many lines of the input.

    Raises:
        DataError: the lines already done have changed (78), or the input cannot be read, or is
            binary (65).
    """
    pieces = [Piece(str(source))] if isinstance(source, str | Path) else source
    done = int((state or {}).get("rows", 0))
    digest = hashlib.sha256()
    total = 0
    for piece in pieces:
        path = piece.path
        listed = is_shards(path) or is_table(path)
        if listed:  # the list has the hashes that the lines are compared with as they are read
            digest.update(_hash_of(path).encode())
        lines = list[Line]()
        held = 0  # code points of the window
        jsonl: bool | None = None
        stats = TextStats()
        number = 0
        for number, raw in enumerate(_piece_lines(piece), 1):
            if total == limit:
                number -= 1
                break
            total += 1
            if isinstance(raw, bytes):
                if not listed:
                    digest.update(raw)
                if number == 1:
                    # In the middle of a text any line may follow.
                    jsonl = is_jsonl(path) if piece.start else holds_rows(path, decode(raw, True))
            # The lines that an earlier run has done are read again for their hash alone.
            if total <= done:
                if total == done:
                    _check_prefix(path, done, digest.hexdigest(), state)
                continue
            # Only the start of the input, not of a later piece, may have a byte-order mark.
            first_line = number == 1 and not piece.start
            lines.append(decode(raw, first_line, stats) if isinstance(raw, bytes) else raw)
            held += _chars(lines[-1])
            if len(lines) == size or held >= WINDOW_CHARS:
                first = number - len(lines) + 1
                _count(path, number)
                yield Window(path, first, lines, digest.hexdigest(), stats.replaced, jsonl)
                lines = []
                held = 0
                stats = TextStats()
        if lines:
            first = number - len(lines) + 1
            _count(path, number)
            yield Window(path, first, lines, digest.hexdigest(), stats.replaced, jsonl)
        if total == limit:
            break
    if total < done:
        _check_prefix(pieces[-1].path, done, f"only {total} lines", state)


def _check_prefix(
    path: str | Path, rows: int, digest: str, state: Mapping[str, Any] | None
) -> None:
    expected = (state or {}).get("digest")
    if expected and expected != digest:
        raise DataError(
            "changed since the run that is being resumed: "
            f"its first {rows} lines had sha256 {expected}, now {digest}; --restart starts over",
            path,
            code=Exit.CONFIG,
        )
