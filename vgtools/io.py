"""Streams, files and errors: the one layer through which every byte enters or leaves.

A command reads with `read_lines`, `read_jsonl`, `open_npy` and `open_features`; it writes with `vgtools.output.Output`, which
survives a kill, or `atomic_write`. What a user can cause is raised as `DataError`; `vgtools.cli` prints it and chooses the exit
code.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import os
import platform
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import orjson

from vgtools import __version__
from vgtools.errors import DataError as DataError
from vgtools.errors import Exit as Exit
from vgtools.errors import file_error
from vgtools.errors import name_of as name_of
from vgtools.errors import plain as plain
from vgtools.errors import storable as storable
from vgtools.process import Lock as Lock
from vgtools.process import Progress as Progress
from vgtools.process import Stop as Stop

if TYPE_CHECKING:
    import numpy as np  # at run time inside the functions that need it: it costs a third of what `vg --help` may take

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# --------------------------------------------------------------------------------------------------------------- reading

BROKEN_STREAM = (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError)


def open_read(path: str | Path) -> BinaryIO:
    """Open a byte stream: `-` is standard input, `.gz` and `.zst` are decompressed.

    Raises:
        DataError: the file is missing, a directory, or unreadable (exit 66); a `.gz` of 0 bytes (65).
    """
    name = str(path)
    if name == "-":
        if sys.stdin is None or sys.stdin.closed:
            raise DataError("is closed; name a file or pipe one in", "-", code=Exit.NO_INPUT)
        return sys.stdin.buffer
    try:
        if os.path.isdir(name):
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if name.endswith(".gz"):
            facts = os.stat(name)
            if stat.S_ISREG(facts.st_mode) and not facts.st_size:  # Python reads it as no data at all
                raise DataError("is empty, not even a gzip header is there; make the file anew", path)
            return cast(BinaryIO, gzip.open(name, "rb"))
        if name.endswith(".zst"):
            return cast(BinaryIO, zstd.open(name, "rb"))
        return open(name, "rb")
    except OSError as error:
        raise file_error(error, path, reading=True) from None


def _raw_lines(path: str | Path) -> Iterator[bytes]:
    """Yield the lines of a stream as bytes, split on `\\n` only, line end kept; a broken archive is a DataError."""
    stream, number = open_read(path), 0
    try:
        for line in stream:
            number += 1
            yield line
    except BROKEN_STREAM as error:
        raise DataError(f"compressed data is cut off or damaged: {error}; make the file anew", path, number + 1) from None
    except OSError as error:
        raise file_error(error, path, reading=True) from None
    finally:
        if str(path) != "-":
            stream.close()


@dataclass
class TextStats:
    """What reading a text met: lines, and lines whose bytes were not UTF-8 and were replaced."""

    lines: int = 0
    replaced: int = 0


def decode(raw: bytes, first: bool = False, stats: TextStats | None = None) -> str:
    """Decode one raw line: no line end (`\\n` or `\\r\\n`), no byte-order mark, bad bytes as U+FFFD."""
    if first and raw.startswith(b"\xef\xbb\xbf"):
        raw = raw[3:]
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
        stats: counts lines and replaced bad bytes as they pass.

    Raises:
        DataError: missing (66), or a damaged archive (65, with the line it broke at).
    """
    for number, raw in enumerate(_raw_lines(path)):
        if stats is not None:
            stats.lines += 1
        yield decode(raw, number == 0, stats)


def parse_json(text: str | bytes, path: str | Path, line: int) -> dict[str, Any]:
    """Parse one jsonl line into an object, or name the file and line where it is not one."""
    try:
        row = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise DataError(f"not valid JSON: {error}; wanted one JSON object a line", path, line) from None
    if not isinstance(row, dict):
        raise DataError(f"a JSON object was wanted, found {type(row).__name__}", path, line)
    return row


_TYPE_NAMES = {str: "a string", int: "an integer", float: "a number", list: "a list", dict: "an object", bool: "a boolean"}


def require(row: Mapping[str, Any], keys: Mapping[str, type], path: str | Path, line: int) -> None:
    """Check that a row has the keys with the types that a reader needs.

    Raises:
        DataError: a key is missing or of another type; file, line and key are named.
    """
    for key, kind in keys.items():
        if key not in row:
            raise DataError(f'the key "{key}" is missing; the row has {", ".join(map(repr, row)) or "no keys"}', path, line)
        value = row[key]
        fits = isinstance(value, (int, float)) if kind is float else isinstance(value, kind)
        if not fits or (isinstance(value, bool) and kind is not bool):
            raise DataError(f'"{key}" must be {_TYPE_NAMES.get(kind, kind.__name__)}, found {value!r:.60}', path, line)


def read_jsonl(path: str | Path, keys: Mapping[str, type] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `(line number, object)` of a jsonl stream; blank lines are errors, not skipped.

    Args:
        path: a file, `.gz`, `.zst`, or `-`.
        keys: required keys and their types.

    Raises:
        DataError: invalid JSON, not an object, a missing key or a wrong type, with file and line.
    """
    for number, raw in enumerate(_raw_lines(path), 1):
        if number == 1 and raw.startswith(b"\xef\xbb\xbf"):
            raw = raw[3:]
        row = parse_json(raw, path, number)
        if keys:
            require(row, keys, path, number)
        yield number, row


def _is_jsonl(path: str | Path) -> bool:
    return str(path).removesuffix(".gz").removesuffix(".zst").endswith(".jsonl")


def read_text_rows(path: str | Path, stats: TextStats | None = None) -> Iterator[dict[str, Any]]:
    """Return the rows of a `.jsonl`, each with a "text", or the lines of a text as {"text"}.

    Raises:
        DataError: it cannot be read, is an array, or a row has no "text".
    """
    name = str(path).removesuffix(".gz").removesuffix(".zst")
    if name.endswith((".npy", ".npz", ".faiss", ".safetensors")):
        raise DataError("is not text; expected a text or a .jsonl", path)
    if _is_jsonl(path):
        return (row for _, row in read_jsonl(path, {"text": str}))
    return ({"text": line} for line in read_lines(path, stats))


def read_texts(path: str | Path, stats: TextStats | None = None) -> Iterator[str]:
    """Return the sentences of a file, one per line or row; as `read_text_rows` otherwise."""
    return (row["text"] for row in read_text_rows(path, stats))


@dataclass
class Window:
    """A run of consecutive input lines, and what is needed to go on behind it."""

    path: str
    first: int  # line number of lines[0], counted from 1
    lines: list[str]
    digest: str  # sha256 of every raw byte of the input up to the window's end
    replaced: int = 0  # lines of the window that had bytes which are not UTF-8

    def texts(self) -> list[str]:
        """Return the sentences of the lines: "text" of the rows of a `.jsonl`, else the lines.

        Raises:
            DataError: a row has no "text"; with file and line.
        """
        if not _is_jsonl(self.path):
            return self.lines
        rows = [parse_json(line, self.path, n) for n, line in enumerate(self.lines, self.first)]
        for number, row in enumerate(rows, self.first):
            require(row, {"text": str}, self.path, number)
        return [row["text"] for row in rows]


def read_windows(
    path: str | Path,
    size: int,
    state: Mapping[str, Any] | None = None,
    limit: int | None = None,
) -> Iterator[Window]:
    """Yield windows of up to `size` decoded lines, going on behind a committed state.

    Args:
        path: a file, `.gz`, `.zst`, or `-`.
        size: lines a window; windows start at multiples of it, so a resumed run has the same windows.
        state: `{"rows": …, "digest": …}` of the last committed window; those lines are read again, checked and skipped.
        limit: stop after this many lines of the input.

    Raises:
        DataError: the lines already done are not what they were (78), or the input cannot be read.
    """
    done = int((state or {}).get("rows", 0))
    digest, lines, first, number, stats = hashlib.sha256(), list[str](), done + 1, 0, TextStats()
    for number, raw in enumerate(_raw_lines(path), 1):
        if limit is not None and number > limit:
            number -= 1
            break
        digest.update(raw)
        if number <= done:
            if number == done:
                _check_prefix(path, done, digest.hexdigest(), state)
            continue
        lines.append(decode(raw, number == 1, stats))
        if len(lines) == size:
            yield Window(str(path), first, lines, digest.hexdigest(), stats.replaced)
            lines, first, stats = [], number + 1, TextStats()
    if number < done:
        _check_prefix(path, done, f"only {number} lines", state)
    if lines:
        yield Window(str(path), first, lines, digest.hexdigest(), stats.replaced)


def _check_prefix(path: str | Path, rows: int, found: str, state: Mapping[str, Any] | None) -> None:
    wanted = (state or {}).get("digest")
    if wanted and wanted != found:
        raise DataError(
            f"changed since the run that is being resumed: its first {rows} lines had sha256 {wanted}, "
            f"now {found}; --restart starts over",
            path,
            code=Exit.CONFIG,
        )


# ---------------------------------------------------------------------------------------------------- hashes, manifests


def sha256_file(path: str | Path) -> str:
    """Return the sha256 of a file's bytes, in hex."""
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise file_error(error, path, reading=True) from None


def identity(path: str | Path, sha256: bool = False) -> dict[str, Any]:
    """Return what a manifest says of an input: its name and size, and its hash where asked."""
    name = storable(str(path))
    if name == "-" or not os.path.isfile(path):
        return {"path": name}
    found: dict[str, Any] = {"path": name, "bytes": os.path.getsize(path)}
    return found | {"sha256": sha256_file(path)} if sha256 else found


def versions() -> dict[str, str]:
    """Return the versions of vgtools, Python and the numeric packages that are loaded now."""
    found = {"vgtools": __version__, "python": platform.python_version()}
    for name in ("numpy", "torch", "transformers", "tokenizers", "timm", "faiss", "PIL"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            found[name] = str(version)
    return found


def manifest_path(artifact: str | Path) -> Path:
    """Return where the manifest of an artifact stands: `X.json` beside `X.npy`, `X.faiss`, `X.jsonl.gz` …"""
    path = Path(artifact)
    if path.suffix in (".gz", ".zst"):
        path = path.with_suffix("")
    return path.parent / f"{path.stem}.json"


def write_manifest(artifact: str | Path, files: Iterable[str | Path], inputs: Iterable[str | Path] = (), **facts: Any) -> None:
    """Write the manifest of an artifact, last: an artifact without a true manifest is not whole.

    Args:
        artifact: the main file; the manifest is `X.json` beside it.
        files: all files of the artifact, hashed here.
        inputs: what it was made from, hashed here.
        **facts: JSON values: kind, rows, fingerprints, configuration.
    """
    body = {
        "vg": __version__,
        **facts,
        "argv": sys.argv,
        "versions": versions(),
        "files": {Path(f).name: {"bytes": os.path.getsize(f), "sha256": sha256_file(f)} for f in files},
        "inputs": [identity(i, sha256=True) for i in inputs],
    }
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    atomic_write(manifest_path(artifact), orjson.dumps(storable(body), option=option) + b"\n")


def _read_value(path: str | Path, wanted: str) -> Any:
    with open_read(path) as stream:
        try:
            return orjson.loads(stream.read())
        except (*BROKEN_STREAM, orjson.JSONDecodeError) as error:
            raise DataError(f"not valid JSON ({error}); {wanted} was wanted", path) from None


def read_json(path: str | Path, wanted: str = "a JSON object") -> dict[str, Any]:
    """Read one small JSON file that must hold an object."""
    body = _read_value(path, wanted)
    if not isinstance(body, dict):
        raise DataError(f"{wanted} was wanted, found {type(body).__name__}", path)
    return body


def read_manifest(artifact: str | Path, kind: str | None = None, verify: bool = True) -> dict[str, Any]:
    """Read an artifact's manifest and check the artifact against it.

    Args:
        artifact: the main file.
        kind: what it has to be, for example `image-features`.
        verify: compare size and sha256 of every file of the artifact.

    Raises:
        DataError: a pipe or directory (usage); no manifest (66), of another kind, or the files are not the ones it names (65);
            both sides are printed.
    """
    if str(artifact) == "-" or os.path.isdir(artifact):
        what = "a pipe" if str(artifact) == "-" else "a directory"
        raise DataError(f"is {what}; the name of a .npy or .faiss file was wanted", artifact, code=Exit.USAGE)
    path = manifest_path(artifact)
    if not path.exists():
        missing = artifact if not os.path.exists(artifact) else path
        raise DataError(
            "does not exist"
            if missing == artifact
            else f"the manifest of {artifact} is missing; the command that writes it was perhaps killed: run it again",
            missing,
            code=Exit.NO_INPUT,
        )
    body = read_json(path, "a vg manifest")
    files = body.get("files")
    if not isinstance(files, dict) or "vg" not in body:
        raise DataError("is not a manifest that vg wrote", path)
    if kind is not None and body.get("kind") != kind:
        raise DataError(f"describes {body.get('kind')!r}, wanted {kind!r}", path)
    for name, facts in files.items() if verify else ():
        if not isinstance(facts, dict) or name in ("", ".", "..") or "/" in name:
            raise DataError(
                f"says {facts!r:.60} of {name!r:.80}, wanted size and sha256 of a file beside it; make it anew", path
            )
        file = path.with_name(name)
        if not file.exists():
            raise DataError(f"is missing; {path} names it", file, code=Exit.NO_INPUT)
        if os.path.getsize(file) != facts.get("bytes"):
            raise DataError(f"has {os.path.getsize(file)} bytes, its manifest says {facts.get('bytes')}; make it anew", file)
        found = sha256_file(file)
        if found != facts.get("sha256"):
            raise DataError(f"is damaged or from another run: sha256 {found}, its manifest says {facts.get('sha256')}", file)
    return body


def manifest_beside(stream: str | Path) -> dict[str, Any]:
    """Return the manifest beside a stream's file, or an empty one: a stream needs none, and the place may be a stranger's.

    Raises:
        DataError: the manifest is damaged, or the file has another size than it says (65).
    """
    path, size = manifest_path(stream), os.path.getsize(stream) if os.path.isfile(stream) else None
    body = _read_value(path, "a vg manifest") if str(stream) != "-" and path.is_file() else None
    files = body.get("files") if isinstance(body, dict) and "vg" in body else None
    facts = files.get(Path(stream).name) if isinstance(files, dict) else None
    if not isinstance(facts, dict):
        return {}
    if size not in (None, facts.get("bytes")):
        why = f"has {size} bytes, its manifest says {facts.get('bytes')}: it is cut off, or was written without -o"
        raise DataError(f"{why}; make it anew, or remove {path}", stream)
    return cast(dict[str, Any], body)


# ------------------------------------------------------------------------------------------------------------ arrays, ids


def open_npy(path: str | Path, ndim: int | None = None) -> np.ndarray[Any, Any]:
    """Open a `.npy` file as a read-only memory map, its size checked against its header.

    Raises:
        DataError: missing (66); cut off, trailing bytes, an object array (which would unpickle), or wrong dimensions (65).
    """
    import numpy as np

    if str(path) == "-":
        raise DataError("a .npy file cannot come from a pipe; write it to a file and name that", path, code=Exit.USAGE)
    try:
        with open(path, "rb") as stream:
            version = np.lib.format.read_magic(stream)
            reader = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = reader(stream)
            start = stream.tell()
    except OSError as error:
        raise file_error(error, path, reading=True) from None
    except Exception as error:  # numpy's header parser raises many kinds on damaged bytes
        raise DataError(f"is not a readable .npy file: {error}", path) from None
    if dtype.hasobject:
        raise DataError("holds Python objects, which could run code when read; numbers were wanted", path)
    wanted = start + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if os.path.getsize(path) != wanted:
        raise DataError(f"has {os.path.getsize(path)} bytes, its header says {wanted}; it is cut off or was appended to", path)
    if ndim is not None and len(shape) != ndim:
        raise DataError(f"has shape {shape}, {ndim} dimensions were wanted", path)
    if 0 in shape:
        return np.empty(shape, dtype)  # an empty file region cannot be mapped
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def read_ids(path: str | Path, count: int | None = None) -> list[str]:
    """Read a list of image ids, one a line, in the row order of the array beside it.

    Raises:
        DataError: another count than the array's rows, an empty or a repeated id.
    """
    ids, seen = [], dict[str, int]()
    for number, line in enumerate(read_lines(path), 1):
        if not line:
            raise DataError("an empty image id", path, number)
        if line in seen:
            raise DataError(f"the id {line!r:.80} stands on line {seen[line]} already", path, number)
        seen[line] = number
        ids.append(line)
    if count is not None and len(ids) != count:
        raise DataError(f"holds {len(ids)} ids for {count} rows; both must come from the same run", path)
    return ids


@dataclass(frozen=True)
class Features:
    """Image features as `extract-image-feats` wrote them: row i belongs to ids[i]."""

    array: np.ndarray[Any, Any]  # (N, D), float16 or float32, memory-mapped
    ids: list[str]
    manifest: dict[str, Any]


def open_features(path: str | Path) -> Features:
    """Open `X.npy` with its `X.ids` and `X.json`, hashes, counts and finite values checked.

    Raises:
        DataError: any of the three is missing, damaged or from another run; or a row is NaN, infinite or all zero.
    """
    import numpy as np

    manifest = read_manifest(path, "image-features")
    array = open_npy(path, ndim=2)
    ids = read_ids(Path(path).with_suffix(".ids"), len(array))
    for start in range(0, len(array), 4096):
        block = np.asarray(array[start : start + 4096], np.float32)
        bad = ~np.isfinite(block).all(1) | ~block.any(1)
        if bad.any():
            row = start + int(bad.argmax())
            raise DataError(f"row {row} ({ids[row]}) is NaN, infinite or all zero; extract it again or leave it out", path)
    return Features(array, ids, manifest)


# --------------------------------------------------------------------------------------------------------------- writing


def dumps(row: object) -> bytes:
    """Return one jsonl line (numpy arrays allowed), line end included."""
    return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


def sync_dir(path: Path) -> None:
    """Make a rename last through a power cut; file systems that cannot sync a directory are left alone."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def atomic_write(path: str | Path, data: bytes) -> None:
    """Write a small file so that it is either the old one or the new one, whole, whatever happens."""
    path = Path(path)
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise file_error(error, path, reading=False) from None
    sync_dir(path.parent)


def config_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the settings in which two runs differ, both sides printed, or an empty string."""
    sides = (orjson.loads(orjson.dumps(side, option=orjson.OPT_SERIALIZE_NUMPY)) for side in (old, new))
    before, after = cast(tuple[dict[str, Any], dict[str, Any]], tuple(sides))
    return "; ".join(
        f"{key} was {json.dumps(before.get(key))}, is now {json.dumps(after.get(key))}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


def compress(data: bytes, path: str | Path) -> bytes:
    """Return data as one gzip member or zstd frame, by the path's suffix, with a checksum and no time stamp."""
    if str(path).endswith(".gz"):
        return gzip.compress(data, 6, mtime=0)
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def is_stream(path: str) -> bool:
    """Say whether bytes sent there are gone: `-`, a pipe, a terminal, a device."""
    if path == "-":
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path)
    except OSError:
        return False


def open_stream(path: str) -> IO[bytes]:
    """Open `-`, a pipe or a device for writing bytes."""
    if path == "-":
        return sys.stdout.buffer
    try:
        return open(path, "wb")
    except OSError as error:
        raise file_error(error, path, reading=False) from None


def final_path(path: str, inputs: Sequence[str]) -> Path:
    """Return where an output really goes, links followed, refusing what cannot be written before any work is done."""
    real = Path(os.path.realpath(path))
    if storable(str(real)) != str(real):
        raise DataError("has bytes in its name that are not UTF-8, which no manifest can hold", path, code=Exit.CANNOT_CREATE)
    if os.path.islink(path) and not real.exists():
        raise DataError(f"is a link to {real}, which does not exist", path, code=Exit.CANNOT_CREATE)
    if real.is_dir():
        raise DataError("is a directory; a file name was wanted", path, code=Exit.CANNOT_CREATE)
    if not real.parent.is_dir():
        raise DataError(f"the folder {real.parent} does not exist; make it first", path, code=Exit.CANNOT_CREATE)
    for name in inputs:
        if os.path.exists(name) and os.path.realpath(name) == str(real):
            raise DataError(
                "is an input of this command and would be overwritten; choose another -o", path, code=Exit.CANNOT_CREATE
            )
    return real
