"""Files while they grow: appended to, made safe, and closed whole; they appear under other names.

`vgtools.io.output.Output` renames them when all is done; a shard's `Attempt` (`vgtools.batch`) to a
name that holds their hash.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from vgtools.io import own
from vgtools.io.errors import DataError, file_error
from vgtools.io.files import compress, file_facts
from vgtools.io.names import is_compressed, is_parquet
from vgtools.io.parquet import Columns, Groups

if TYPE_CHECKING:
    import numpy as np  # at run time inside the functions that need it, as in `vgtools.io`

_CHUNK = 1 << 20
# Bytes for the header of any array of up to four dimensions, written when the row count is known.
_NPY_HEADER = 128
# The rows of a .npy: dtype, and row width or shape; None for a 1-D array.
Rows = tuple[Any, "int | tuple[int, ...] | None"]


def part_path(final: Path) -> Path:
    """Return where a file is while it grows."""
    return final.with_name(final.name + ".part")


def damaged(path: Path, why: str) -> DataError:
    """Return the error of a part or journal that has changed since it was written."""
    return DataError(f"{why}; --restart starts over", path)


@dataclass
class Part:
    """One file while it grows."""

    final: Path
    stream: IO[bytes]
    rows: Rows | None = None  # the rows of a .npy
    committed: int = 0
    # Hash of all bytes after the header: a resumed run and the manifest need not trust the disk.
    seal: Any = field(default_factory=hashlib.sha256)
    groups: Groups | None = None  # a Parquet file is written as lines of JSON
    # Compressed and Parquet files: the bytes since the last commit.
    buffer: list[bytes] = field(default_factory=list)

    @property
    def header(self) -> int:
        """Bytes of a .npy before its rows, which are known at the end."""
        return _NPY_HEADER if self.rows else 0

    @property
    def compressed(self) -> bool:
        """Whether it is a .gz or .zst, written as one piece per commit."""
        return is_compressed(self.final)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; they count once they are flushed."""
        if self.compressed or self.groups:
            self.buffer.append(bytes(data))
            return
        try:
            self._append(data)
        except OSError as error:
            raise self.fault(error) from None

    def _append(self, data: bytes | memoryview) -> None:
        self.stream.write(data)
        self.seal.update(data)

    def flush(self, sync: bool) -> None:
        """Write all bytes so far; with `sync` they survive a power cut."""
        try:
            if self.buffer:
                # One gzip member, zstd frame or group of rows per commit, so that the end that a
                # kill cuts off never spoils the lines before it.
                lines = b"".join(self.buffer)
                grown = self.groups and self.groups.group(lines, self.stream.tell())
                self._append(grown or compress(lines, self.final))
                self.buffer.clear()
            self.stream.flush()
            if sync:
                os.fsync(self.stream.fileno())
                self.committed = self.stream.tell()
        except OSError as error:
            raise self.fault(error) from None

    def finish(self, about: bytes) -> dict[str, Any]:
        """Close the file whole, a .npy with its header; return its size and hash.

        Args:
            about: the manifest, for the files that hold one.
        """
        self.flush(sync=True)
        try:
            if self.rows:
                self._write_header(*self.rows)
            if self.groups:
                self._append(self.groups.end(self.stream.tell(), about))
            elif self.compressed and not self.committed:
                self._append(compress(b"", self.final))
            self.stream.flush()
            os.fsync(self.stream.fileno())
            self.stream.close()
        except OSError as error:
            raise self.fault(error) from None
        path = part_path(self.final)
        if self.rows:  # the seal lacks the header
            return file_facts(path)
        return {"bytes": os.path.getsize(path), "sha256": self.seal.hexdigest()}

    def _write_header(self, dtype: Any, width: int | tuple[int, ...] | None) -> None:
        import numpy as np

        dtype = np.dtype(dtype)
        row_shape = (width,) if isinstance(width, int) else width or ()
        row_bytes = max(1, dtype.itemsize * math.prod(row_shape))
        rows, rest = divmod(self.committed - _NPY_HEADER, row_bytes)
        assert rest == 0, f"{self.final}: {rest} bytes beyond whole rows"
        self.stream.seek(0)
        self.stream.write(_npy_header(dtype, (rows, *row_shape)))

    def fault(self, error: OSError) -> Exception:
        """Return the system's error with the file's name.

        A pipe whose reader has left is not an error of the file.
        """
        if isinstance(error, BrokenPipeError):
            return error
        return file_error(error, self.final, reading=False)

    def close(self, failed: bool) -> None:
        """Close the file, which writes its buffer: after a failed write, that fails once more."""
        try:
            self.stream.close()
        except OSError as error:
            if not failed:
                raise self.fault(error) from None


def _groups(final: Path, columns: Columns | None) -> Groups | None:
    return Groups(final, columns or {}) if is_parquet(final) else None


def new_part(
    final: Path,
    rows: Rows | None = None,
    ours: own.Proof = own.is_claimed,
    columns: Columns | None = None,
) -> Part:
    """Start a part, in the place of one that `ours` shows to be vg's.

    Raises:
        DataError: something else has its name (73), it cannot be written, or the package that
            writes it is not installed (69).
    """
    groups = _groups(final, columns)
    path = part_path(final)
    own.remove(path, ours)
    try:
        stream = own.create(path)
    except OSError as error:
        raise file_error(error, final, reading=False) from None
    part = Part(final, stream, rows, groups=groups)
    try:
        stream.write(bytes(part.header))
    except OSError as error:
        raise part.fault(error) from None
    return part


def old_part(
    final: Path, rows: Rows | None, facts: Mapping[str, Any], columns: Columns | None = None
) -> Part:
    """Open the part of an unfinished run after its last commit.

    Raises:
        DataError: it has changed since the commit (65), or is a link or another kind of file (73).
    """
    groups = _groups(final, columns)
    path = part_path(final)
    size = int(facts["bytes"])
    try:
        stream = open(own.reopen(path), "r+b")  # noqa: SIM115 - closed by the owner
    except FileNotFoundError:
        raise damaged(path, "is missing") from None
    except OSError as error:
        raise file_error(error, path, reading=False) from None
    part = Part(final, stream, rows, size, groups=groups)
    try:
        if os.fstat(stream.fileno()).st_size < size:
            raise damaged(path, f"is shorter than its journal states ({size} bytes)")
        stream.seek(part.header)
        while stream.tell() < size:
            part.seal.update(stream.read(min(_CHUNK, size - stream.tell())))
        if part.seal.hexdigest() != facts["sha256"]:
            raise damaged(path, "has changed since it was written")
        stream.truncate(size)
        if groups:
            groups.resume(stream, size)
        stream.seek(size)
    except OSError as error:
        stream.close()
        raise file_error(error, path, reading=False) from None
    except DataError:
        stream.close()
        raise
    return part


def _npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    import numpy as np

    descr = np.lib.format.dtype_to_descr(dtype)
    body = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    magic = b"\x93NUMPY\x01\x00" + (_NPY_HEADER - 10).to_bytes(2, "little")
    return magic + body.ljust(_NPY_HEADER - 11).encode() + b"\n"
