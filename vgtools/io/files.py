"""Hashes, manifests, arrays and small files: checked when read, whole when written."""

from __future__ import annotations

import gzip
import json
import math
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from vgtools import __version__
from vgtools.io import remote, trust
from vgtools.io.errors import (
    DataError,
    Exit,
    file_error,
    file_errors,
    json_bytes,
    storable,
)
from vgtools.io.folders import Shards
from vgtools.io.forms import LARGEST, read_small
from vgtools.io.names import (
    file_of,
    is_shards,
    is_stream,
    is_url,
    manifest_path,
    public,
    refuse_columns,
    refuse_special,
    refuse_stream,
    split_table,
)
from vgtools.io.own import atomic_write, check, is_sealed
from vgtools.io.process import command_line
from vgtools.io.streams import BROKEN_STREAM, open_read, zstd
from vgtools.io.written import FORMAT

if TYPE_CHECKING:
    # At run time numpy is imported by the functions that need it: it takes a third of the time
    # that `vg --help` may take.
    import numpy as np


def sha256_file(path: str | Path) -> str:
    """Return the sha256 of a file's bytes, in hex; for a folder of shards its list's hash.

    A pipe is refused, because it could not be read any more.
    """
    path = file_of(path)
    refuse_stream(path)
    if is_shards(path):
        return Shards(path).sha256
    with file_errors(path, reading=True):
        return trust.file_hash(path)


def digest_of(path: str, sha256: str | None = None) -> str:
    """Return the sha256 of an input, computed unless it is given, and its columns that are named.

    Two columns of one table are two inputs: `X.parquet#a`, `X.parquet#b`.
    """
    columns = split_table(path)[1]
    return (sha256 or sha256_file(path)) + (f"#{columns}" if columns else "")


def identity(path: str | Path) -> dict[str, Any]:
    """Return the entry of an input in a manifest: its name, its size and its hash."""
    name = storable(public(path))
    path = file_of(path)
    if is_url(name):
        return {"path": name, **remote.revision(path)}
    if name == "-" or not (os.path.isfile(path) or is_shards(path)):
        return {"path": name}
    size = {"bytes": os.path.getsize(path)} if os.path.isfile(path) else {}
    return {"path": name, **size, "sha256": sha256_file(path)}


def file_facts(path: str | Path) -> dict[str, Any]:
    """Return the entry of a manifest about a file of the artifact."""
    return {"bytes": os.path.getsize(path), "sha256": sha256_file(path)}


def versions() -> dict[str, str]:
    """Return the versions of vgtools, Python and the numeric packages that are loaded."""
    known = {"vgtools": __version__, "python": platform.python_version()}
    for name in ("numpy", "torch", "transformers", "tokenizers", "timm", "faiss", "PIL"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            known[name] = str(version)
    return known


def write_manifest(
    artifact: str | Path,
    files: Iterable[str | Path] | Mapping[str, Any],
    inputs: Sequence[Mapping[str, Any]] = (),
    **facts: Any,
) -> None:
    """Write the manifest of an artifact, last: without its manifest an artifact is incomplete.

    Args:
        artifact: the main file; the manifest is `X.json` next to it.
        files: all files of the artifact, hashed here; or their `file_facts`, by name.
        inputs: the inputs that it was made from: `Inputs.entries`.
        **facts: JSON values: kind, rows, fingerprints, configuration.
    """
    named: Mapping[str, Any]
    if isinstance(files, Mapping):
        named = files
    else:
        named = {Path(file).name: file_facts(file) for file in files}
    atomic_write(manifest_path(artifact), manifest_bytes(named, inputs, **facts), is_manifest)


def is_manifest(path: Path) -> bool:
    """Return whether a file is a manifest that vg wrote."""
    if path.stat().st_size > LARGEST:
        return False
    try:
        body = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        return False
    ours = isinstance(body, dict) and "vg" in body
    return ours and isinstance(body.get("files"), dict)


def manifest_bytes(
    files: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]] = (), **facts: Any
) -> bytes:
    """Return the bytes that `write_manifest` writes for files with their facts."""
    by = made_by()
    # Facts have them where another process made the artifact.
    body = {"format": FORMAT, "vg": by.pop("vg"), **facts, **by, **facts}
    body |= {"files": files, "inputs": inputs}
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(storable(body), option=option) + b"\n"


def made_by() -> dict[str, Any]:
    """Return the entries of a manifest about the process that makes an artifact."""
    return {"vg": __version__, "argv": command_line(), "versions": versions()}


def embedded(inputs: Sequence[Mapping[str, Any]], **facts: Any) -> bytes:
    """Return the manifest that an output holds itself.

    It lacks the facts in which files with equal rows may differ: their hashes, and the arguments
    and packages of the process that wrote them.
    """
    body = {"format": FORMAT, "vg": __version__, **facts, "inputs": inputs}
    return orjson.dumps(storable(body), option=orjson.OPT_SERIALIZE_NUMPY)


def read_value(path: str | Path, expected: str) -> Any:
    """Read one small JSON file; `expected` names it in messages.

    Raises:
        DataError: missing (66), not JSON, or not small (65).
    """
    refuse_special(path, f"{expected} in a file")
    with open_read(path) as stream:
        try:
            value = orjson.loads(read_small(stream, path))
            # orjson reads 1,024 levels and writes 254.
            orjson.dumps(value)
            return value
        except TypeError:
            raise DataError(f"is nested too deeply; expected {expected}", path) from None
        except (*BROKEN_STREAM, orjson.JSONDecodeError) as error:
            raise DataError(f"not valid JSON ({error}); expected {expected}", path) from None


def read_json(path: str | Path, expected: str = "a JSON object") -> dict[str, Any]:
    """Read one small JSON file that must hold an object; `expected` names it in messages.

    Raises:
        DataError: missing (66), or not a JSON object (65).
    """
    body = read_value(path, expected)
    if not isinstance(body, dict):
        raise DataError(f"expected {expected}, got {type(body).__name__}", path)
    return body


def open_npy(path: str | Path, ndim: int | None = None) -> np.ndarray[Any, Any]:
    """Open a `.npy` file as a read-only memory map, its size checked against its header.

    Raises:
        DataError: missing (66); cut off, trailing bytes, an object array (which would unpickle), or
            wrong dimensions (65).
    """
    import numpy as np

    if is_stream(path):
        why = "a .npy file cannot come from a pipe; write it to a file and name that"
        raise DataError(why, path, code=Exit.USAGE)
    try:
        with open(path, "rb") as stream:
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
            else:
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
            start = stream.tell()
    except OSError as error:
        raise file_error(error, path, reading=True) from None
    except Exception as error:  # numpy's header parser raises many types on damaged bytes
        raise DataError(f"is not a readable .npy file: {error}", path) from None
    if dtype.hasobject:
        why = "expected numbers, got Python objects, which could run code when read"
        raise DataError(why, path)
    if dtype.kind not in "biuf" or min(shape, default=0) < 0:
        raise DataError(f"expected an array of numbers, got shape {shape} of {dtype}", path)
    expected = start + math.prod(shape) * dtype.itemsize
    size = os.path.getsize(path)
    if size != expected:
        why = f"has {size} bytes, its header states {expected}; it is cut off or was appended to"
        raise DataError(why, path)
    if ndim is not None and len(shape) != ndim:
        raise DataError(f"expected {ndim} dimensions, got shape {shape}", path)
    if 0 in shape:
        return np.empty(shape, dtype)  # an empty file region cannot be mapped
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def dumps(row: object) -> bytes:
    """Return one jsonl line, as `json_bytes`, line end included."""
    return json_bytes(row, orjson.OPT_APPEND_NEWLINE)


def flat_numbers(record: Mapping[str, Any], inside: str = "") -> dict[str, float]:
    """Return the numbers of a record; inner objects are flattened, with their path as name."""
    flat = dict[str, float]()
    for name, value in record.items():
        if isinstance(value, Mapping):
            flat |= flat_numbers(value, f"{inside}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[inside + name] = value
    return flat


def plain_json(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object as it is after it was written and read."""
    return orjson.loads(dumps(storable(body)))  # type: ignore[no-any-return]


def config_difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return the settings in which two runs differ, with both values, or an empty string."""
    before, after = (orjson.loads(dumps(side)) for side in (old, new))
    return "; ".join(
        f"{key} was {json.dumps(before.get(key))}, is now {json.dumps(after.get(key))}"
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    )


def compress(data: bytes, path: str | Path) -> bytes:
    """Return data as one gzip member or zstd frame, by the path's suffix.

    It has a checksum and no time stamp, so that the same data are the same bytes.
    """
    if str(path).endswith(".gz"):
        return gzip.compress(data, 6, mtime=0)
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


def final_path(path: str, inputs: Sequence[str]) -> Path:
    """Return where an output really goes, links followed; `inputs` must not be overwritten.

    Raises:
        DataError: it cannot be written (73); known before any work is done.
    """
    if not path:
        raise DataError("the name is empty; give a file name", code=Exit.USAGE)
    if is_url(path):
        why = "one file cannot grow at a URL; a / after the name makes it a folder of shards"
        raise DataError(why, path, code=Exit.CANNOT_CREATE)
    refuse_columns(path)
    real = Path(os.path.realpath(path))
    if storable(str(real)) != str(real):
        why = "has bytes in its name that are not UTF-8, which a manifest cannot hold"
    elif os.path.islink(real):
        why = "is a link in a loop of links"
    elif os.path.islink(path) and not real.exists():
        why = f"is a link to {real}, which does not exist"
    elif real.is_dir() or path.endswith("/"):
        why = "expected a file name, got a directory"
    elif not real.parent.is_dir():
        why = f"the folder {real.parent} does not exist; create it first"
    else:
        refuse_inputs([real], inputs)
        return real
    raise DataError(why, path, code=Exit.CANNOT_CREATE)


def page_path(path: str, inputs: Sequence[str]) -> Path:
    """Return where a page or picture goes, as `final_path`; a file there must have vg's seal.

    Raises:
        DataError: it cannot be written, or would replace a file that vg did not write (73).
    """
    real = final_path(path, inputs)
    check(real, is_sealed)
    return real


def refuse_same(outputs: Sequence[Path]) -> None:
    """Refuse two outputs of a command that have one name.

    Args:
        outputs: the names that it uses: data, parts, journal, lock.

    Raises:
        DataError: one of them is there twice (73).
    """
    for number, output in enumerate(outputs):
        if output in outputs[:number]:
            why = "is the name of two outputs of this command; give each another name"
            raise DataError(why, output, code=Exit.CANNOT_CREATE)


def _identity(path: str | Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, which all its names share; None if there is none."""
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return None
    return facts.st_dev, facts.st_ino


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[str]) -> None:
    """Refuse to write over an input, whatever name, link or case of letters leads to it.

    Args:
        outputs: all names that an output uses: data, parts, manifest, journal, lock.
        inputs: the command's inputs.

    Raises:
        DataError: an output is an input (73).
    """
    # Device and inode are compared: two names, and on some file systems two spellings, may lead to
    # one file.
    files = [file_of(name) for name in inputs if not is_url(name)]
    # Each is looked at once: folders of thousands of shards are compared with as many inputs.
    read = set(filter(None, map(_identity, files)))
    for output in outputs:
        if read and _identity(output) in read:
            why = "is an input of this command and would be overwritten; name another output"
            raise DataError(why, output, code=Exit.CANNOT_CREATE)


def files_below(root: str, left_out: Counter[str] | None = None) -> Iterator[str]:
    """Yield the files below a directory by their paths in it, links followed, in no fixed order.

    Args:
        root: the directory.
        left_out: counts links to a folder above, which are not followed.

    Raises:
        DataError: a folder cannot be read (66).
    """

    def fail(error: OSError) -> None:
        raise DataError(f"cannot be read: {error.strerror}", error.filename, code=Exit.NO_INPUT)

    for folder, folders, files in os.walk(root, onerror=fail, followlinks=True):
        if os.path.islink(folder) and folder != root and _leads_back(folder, root):
            if left_out is not None:
                left_out["(link to a folder above)"] += 1
            folders.clear()
            continue
        for name in files:
            yield os.path.relpath(os.path.join(folder, name), root)


def _leads_back(link: str, root: str) -> bool:
    """Return whether a link leads to a folder above itself, or one that the walk came through."""
    # A link may reach such a folder by another link, so that both real paths and the path of the
    # walk are compared.
    real = os.path.realpath(link)
    above = os.path.dirname(link)
    if (os.path.realpath(above) + "/").startswith(real + "/"):
        return True
    while len(above) > len(root):
        above = os.path.dirname(above)
        if os.path.realpath(above) == real:
            return True
    return False
