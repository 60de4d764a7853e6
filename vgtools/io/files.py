"""Hashes, manifests, arrays and small files: checked when read, whole when written."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from vgtools import __version__
from vgtools.io import trust
from vgtools.io.errors import DataError, Exit, file_error, file_errors, name_of, storable
from vgtools.io.folders import Shards
from vgtools.io.forms import FILES, check_form
from vgtools.io.names import (
    is_compressed,
    is_shards,
    is_url,
    manifest_of,
    manifest_path,
    real_folder,
    refuse_stream,
)
from vgtools.io.own import atomic_write, check, is_sealed
from vgtools.io.remote import local
from vgtools.io.streams import (
    BROKEN_STREAM,
    jsonl_rows,
    open_read,
    raw_lines,
    read_lines,
    shard_lines,
    zstd,
)
from vgtools.io.written import check_file, check_hash

if TYPE_CHECKING:
    # At run time numpy is imported by the functions that need it: it takes a third of the time
    # that `vg --help` may take.
    import numpy as np

FORMAT = 1  # of manifests and run.json
_KIND = {"kind?": (str, type(None))}

# The file and the command that writes it, by the kind of its manifest.
_WRITERS = {
    "image-features": "X.npy of vg extract-image-feats",
    "image-grid": "X.npy of vg extract-image-feats --pooling none",
    "region-features": "X.npy of vg extract-image-feats --regions",
    "index": "X.faiss of vg build-index",
    "vokens": "X.npy of vg vokenize",
    "word-vectors": "X.npy of vg prepare vectors",
}


def sha256_file(path: str | Path) -> str:
    """Return the sha256 of a file's bytes, in hex; of a folder of shards that of its list.

    A pipe is refused: it is to be read as well.
    """
    refuse_stream(path)
    if is_shards(path):
        return Shards(path).sha256
    with file_errors(path, reading=True):
        return trust.file_hash(path)


def identity(path: str | Path, sha256: bool = False) -> dict[str, Any]:
    """Return what a manifest says about an input: its name, its size, and its hash on request."""
    name = storable(str(path))
    if name == "-" or not (os.path.isfile(path) or is_shards(path)):
        return {"path": name}
    entry: dict[str, Any] = {"path": name}
    if os.path.isfile(path):
        entry["bytes"] = os.path.getsize(path)
    return entry | {"sha256": sha256_file(path)} if sha256 else entry


def file_facts(path: str | Path) -> dict[str, Any]:
    """Return what a manifest says about a file of the artifact."""
    return {"bytes": os.path.getsize(path), "sha256": sha256_file(path)}


def versions() -> dict[str, str]:
    """Return the versions of vgtools, Python and the numeric packages that are loaded."""
    known = {"vgtools": __version__, "python": platform.python_version()}
    for name in ("numpy", "torch", "transformers", "tokenizers", "timm", "faiss", "PIL"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            known[name] = str(version)
    return known


def check_format(body: Mapping[str, Any], path: str | Path) -> None:
    """Refuse a manifest or run.json of a newer format than this version reads.

    One without "format" was written before the key existed.

    Raises:
        DataError: the format is newer (65); it and the version that wrote it are named.
    """
    number = body.get("format", 1)
    if number == FORMAT:
        return
    loaded = body.get("versions")
    writer = body.get("vg") or (loaded.get("vgtools") if isinstance(loaded, dict) else None)
    raise DataError(
        f"format {number!r:.20} was written by vg {writer or 'of another version'}; "
        f"this vg ({__version__}) reads format {FORMAT}; upgrade vgtools",
        path,
    )


def write_manifest(
    artifact: str | Path,
    files: Iterable[str | Path] | Mapping[str, Any],
    inputs: Sequence[Mapping[str, Any]] = (),
    **facts: Any,
) -> None:
    """Write the manifest of an artifact, last: without its manifest an artifact is incomplete.

    Args:
        artifact: the main file; the manifest is `X.json` beside it.
        files: all files of the artifact, hashed here; or their `file_facts`, by name.
        inputs: what it was made from: `Inputs.entries`.
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
    try:
        body = orjson.loads(path.read_bytes())
    except orjson.JSONDecodeError:
        return False
    ours = isinstance(body, dict) and "vg" in body
    return ours and isinstance(body.get("files"), dict)


def manifest_bytes(
    files: Mapping[str, Any], inputs: Sequence[Mapping[str, Any]] = (), **facts: Any
) -> bytes:
    """Return what `write_manifest` writes, of files with their facts."""
    body = {
        "format": FORMAT,
        "vg": __version__,
        **facts,
        "argv": sys.argv,
        "versions": versions(),
        "files": files,
        "inputs": inputs,
    }
    option = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(storable(body), option=option) + b"\n"


def _read_value(path: str | Path, expected: str) -> Any:
    with open_read(path) as stream:
        try:
            return orjson.loads(stream.read())
        except (*BROKEN_STREAM, orjson.JSONDecodeError) as error:
            raise DataError(f"not valid JSON ({error}); expected {expected}", path) from None


def read_json(path: str | Path, expected: str = "a JSON object") -> dict[str, Any]:
    """Read one small JSON file that must hold an object; `expected` names it in messages.

    Raises:
        DataError: missing (66), or not a JSON object (65).
    """
    body = _read_value(path, expected)
    if not isinstance(body, dict):
        raise DataError(f"expected {expected}, got {type(body).__name__}", path)
    return body


def read_manifest(
    artifact: str | Path, kind: str | None = None, verify: bool | Literal["sizes"] = True
) -> dict[str, Any]:
    """Read an artifact's manifest and check the artifact against it.

    A `kind` is, for example, `image-features`. With `verify` size and sha256 of every file of the
    artifact are compared, or sizes alone. A folder's list of shards is always compared.

    Raises:
        DataError: a pipe (usage); a folder without shards, or no manifest (66); of another kind or
            a newer format, or the files are not the ones it names (65). Both sides are printed.
    """
    if str(artifact) == "-":
        why = "expected the name of a .npy or .faiss file, got a pipe"
        raise DataError(why, artifact, code=Exit.USAGE)
    if os.path.isdir(artifact) and not is_shards(artifact):
        raise file_error(IsADirectoryError(errno.EISDIR, ""), artifact, reading=True)
    path = Path(manifest_of(str(artifact)))
    expected = _WRITERS.get(kind or "", "")
    shards = is_shards(artifact)
    if not shards and not path.exists():
        if not os.path.exists(artifact):
            why = f"does not exist; expected {expected}" if expected else "does not exist"
            raise DataError(why, artifact, code=Exit.NO_INPUT)
        if expected and Path(artifact).suffix not in expected.split()[0]:
            why = f"expected {expected}, got {name_of(artifact)}"
            raise DataError(why, code=Exit.NO_INPUT)
        why = f"the manifest of {artifact} is missing; run the command that writes it again"
        raise DataError(why, path, code=Exit.NO_INPUT)
    body = Shards(artifact).manifest if shards else read_json(path, "a vg manifest")
    files = body.get("files")
    if "vg" in body:
        check_format(body, path)
    if not isinstance(files, dict) or "vg" not in body:
        raise DataError("is not a manifest that vg wrote", path)
    if kind is not None and body.get("kind") != kind:
        why = f"expected the manifest of {kind!r}, got {body.get('kind')!r}"
        raise DataError(f"{why}; name {expected}" if expected else why, path)
    check_form(body, _KIND, path, "create the artifact again")
    made = body.get("backbone")
    view = made.get("preprocessing") if isinstance(made, dict) else None
    for key, value in (("backbone", made), ("preprocessing", view)):
        if not isinstance(value, dict | None):
            raise DataError(f'"{key}" must be an object, got {value!r:.60}', path)
    if verify and not shards:
        check_form(body, {"files": FILES}, path, "create the artifact again")
        for name, facts in files.items():
            named = {"bytes": facts["bytes"]} if verify == "sizes" else facts
            check_file(path.with_name(name), named, "its manifest", "create it again")
    return body


def manifest_beside(stream: str | Path, sha256: str | None = None) -> dict[str, Any]:
    """Return the manifest beside a stream's file, or an empty one.

    A stream needs no manifest, and the file with its name may have nothing to do with vg.

    Args:
        stream: the file.
        sha256: of the file, where it is known, to be compared as well.

    Raises:
        DataError: the manifest is damaged or of a newer format, or the file has another size or
            hash than it says (65).
    """
    path = manifest_path(stream)
    if str(stream) == "-" or not path.is_file():
        return {}
    body = _read_value(path, "a vg manifest")
    if not isinstance(body, dict) or "vg" not in body:
        return {}
    check_format(body, path)
    check_form(body, _KIND, path, f"create {stream} again, or remove the manifest")
    files = body.get("files")
    name = Path(real_folder(stream)).name
    facts = files.get(name) if isinstance(files, dict) else None
    if not isinstance(facts, dict):
        return {}
    again = f"create it again, or remove {path}"
    if os.path.isfile(stream):
        cause = "it is cut off, or was written without -o"
        check_file(stream, {"bytes": facts.get("bytes")}, "its manifest", f"{cause}: {again}")
    if sha256 and facts.get("sha256"):
        check_hash(stream, sha256, facts["sha256"], "its manifest", again, "was rewritten")
    return body


def read_made(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the rows of a file that vg wrote, as `read_jsonl` does, but only if it is whole.

    It is compared with the manifest beside it, if there is one: the size at once, and once the last
    row was read the hash, unless it is compressed and has checksums of its own.

    Raises:
        DataError: as `read_jsonl` and `manifest_beside`.
    """
    manifest_beside(path)
    return jsonl_rows(raw_lines(path) if is_hashed(path) else _hashed(path), path)


def _hashed(path: str | Path) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for line in raw_lines(path):
        digest.update(line)
        yield line
    check_made(path, digest.hexdigest())


def check_made(path: str | Path, sha256: str) -> None:
    """Compare the hash of all lines of a file with the manifest beside it, if there is one.

    A compressed file has checksums of its own, and its manifest the hash of what is compressed; of
    a folder each shard was compared when it was read.

    Raises:
        DataError: as `manifest_beside`.
    """
    if not is_hashed(path):
        manifest_beside(path, sha256)


def is_hashed(path: str | Path) -> bool:
    """Return whether a file has checksums of its own."""
    return is_compressed(path) or is_shards(path)


def open_npy(path: str | Path, ndim: int | None = None) -> np.ndarray[Any, Any]:
    """Open a `.npy` file as a read-only memory map, its size checked against its header.

    Raises:
        DataError: missing (66); cut off, trailing bytes, an object array (which would unpickle), or
            wrong dimensions (65).
    """
    import numpy as np

    if str(path) == "-":
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
        why = f"has {size} bytes, its header says {expected}; it is cut off or was appended to"
        raise DataError(why, path)
    if ndim is not None and len(shape) != ndim:
        raise DataError(f"expected {ndim} dimensions, got shape {shape}", path)
    if 0 in shape:
        return np.empty(shape, dtype)  # an empty file region cannot be mapped
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def open_arrays(
    path: str | Path, ndim: int | None = None, ending: str = ".npy"
) -> list[np.ndarray[Any, Any]]:
    """Open an array as memory maps: one of a file, one for each shard of a folder, in order.

    Args:
        path: `X.npy`.
        ndim: dimensions that it must have.
        ending: with what the name of the array ends in the place of `.npy`.

    Raises:
        DataError: as `open_npy`; or a shard is missing (66), or its hash is another one (65).
    """
    if not is_shards(path):
        return [open_npy(str(path).removesuffix(".npy") + ending, ndim)]
    arrays = []
    for file in Shards(path).files(ending):
        file.check(sha256_file(file.path))
        arrays.append(open_npy(file.path, ndim))
    return arrays


def read_ids(
    path: str | Path, count: int | None = None, lines: Iterable[str] | None = None
) -> list[str]:
    """Read a list of image ids, one per line, in the row order of the array beside it.

    The `lines` are those of the file, where it is read already.

    Raises:
        DataError: another count than the array's rows, an empty or a duplicate id.
    """
    seen = dict[str, int]()  # id -> line
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
        if not line:
            raise DataError("an empty image id", path, number)
        first = seen.setdefault(line, number)
        if first != number:
            why = f"duplicate image id {line!r:.80} (first on line {first})"
            raise DataError(why, path, number)
    if count is not None and len(seen) != count:
        why = f"has {len(seen)} ids for {count} rows; both must come from the same run"
        raise DataError(why, path)
    return list(seen)


@dataclass(frozen=True)
class Features:
    """Image features as `extract-image-feats` wrote them: row i belongs to ids[i]."""

    array: np.ndarray[Any, Any]  # (N, D) or (N, P, D), float16 or float32, memory-mapped
    ids: list[str]
    manifest: dict[str, Any]

    @property
    def backbone(self) -> dict[str, Any]:
        """What made them: "ref" and "fingerprint", of network, preprocessing and pooling."""
        made = self.manifest.get("backbone") or {}
        view = made.get("preprocessing") or {}
        pooling = self.manifest.get("pooling")
        return {
            "ref": f"{made.get('ref')}, pooling {pooling}",
            "fingerprint": f"{made.get('fingerprint')} {view.get('fingerprint', '')} {pooling}",
        }


LARGEST = 1e9  # number of a feature or word vector; sums over larger ones overflow


def open_features(path: str | Path, positions: int | None = None) -> Features:
    """Open `X.npy` with its `X.ids` and `X.json`, hashes, counts and finite values checked.

    Of a folder of shards `X.npy/`, the array is read from the shards' memory maps. What is at a URL
    is fetched once per machine.

    Args:
        path: of mean or max features, (N, D); with `positions` of feature maps, (N, P, D).
        positions: open feature maps, as `--pooling none` writes them, of at least that many.

    Raises:
        DataError: any of the three is missing, damaged or from another run; pooled features in the
            place of feature maps, or the reverse; or a row is NaN, infinite, all zero or has a
            number beyond 1e9.
    """
    import numpy as np

    path = local(str(path))
    kind = "image-features" if positions is None else "image-grid"
    _check_pooling(path, kind)
    manifest = read_manifest(path, kind)
    array = open_array(path, 2 if positions is None else 3)
    if not math.prod(array.shape):
        why = f"expected numbers, got none: shape {tuple(array.shape)}"
        raise DataError(f"{why}; extract the features again", path)
    if positions is not None and array.shape[1] < positions:
        why = f"expected (N, P, D) with P >= {positions} positions, got {array.shape}: --picture N"
        raise DataError(f"{why} of vg extract-image-feats with a larger N makes more", path)
    if is_shards(path):
        ids = read_ids(path, len(array), shard_lines(path, ".ids"))
    else:
        ids = read_ids(Path(path).with_suffix(".ids"), len(array))
    if trust.trusted():
        return Features(array, ids, manifest)
    size = max(1, (1 << 24) // max(1, math.prod(array.shape[1:])))  # 64 MB of float32
    for start in range(0, len(array), size):
        block = np.asarray(array[start : start + size], np.float32).reshape(-1, array[0].size)
        bad = ~np.isfinite(block).all(1) | ~block.any(1)
        if bad.any():
            row = start + int(bad.argmax())
            why = f"row {row} ({ids[row]}) is NaN, infinite or all zero"
            raise DataError(f"{why}; extract it again or leave it out", path)
        largest = np.abs(block).max(1)
        if (largest > LARGEST).any():
            row = start + int(largest.argmax())
            why = f"row {row} ({ids[row]}) has a number of {largest.max():.2g}, beyond all features"
            raise DataError(f"{why}; extract it again or leave it out", path)
    return Features(array, ids, manifest)


def open_array(path: str | Path, ndim: int) -> np.ndarray[Any, Any]:
    """Open an array as one memory map, of a folder as those of its shards, read by rows.

    Raises:
        DataError: as `open_arrays`; or shards have rows of several shapes (65).
    """
    from vgtools.io.arrays import stacked

    arrays = open_arrays(path, ndim)
    shapes = {array.shape[1:] for array in arrays}
    if len(shapes) > 1:
        raise DataError(f"has shards with rows of several shapes: {shapes}", path)
    return stacked([array for array in arrays if len(array)] or arrays[:1])


def _check_pooling(path: str | Path, kind: str) -> None:
    """Refuse pooled features in the place of feature maps, and the reverse, with the way out."""
    file = manifest_path(path)
    if str(path) == "-" or not file.is_file():
        return
    body = read_json(file, "a vg manifest")
    check_form(body, _KIND, file, "create the artifact again")
    forms = {
        "image-features": ("(N, D)", "mean", "pooled features"),
        "image-grid": ("(N, P, D)", "none", "feature maps"),
    }
    if body.get("kind") in forms.keys() - {kind}:
        shape, pooling, what = forms[kind]
        why = f"expected {what} {shape}, got {forms[body['kind']][2]} {open_npy(path).shape}"
        command = f"vg extract-image-feats SOURCE --pooling {pooling} -o X.npy"
        raise DataError(f"{why}; make the right ones with: {command}", path)


def dumps(row: object) -> bytes:
    """Return one jsonl line (numpy arrays allowed), line end included."""
    return orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE)


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
    if "\0" in path:
        raise DataError("has a NUL in its name; give a file name", path, code=Exit.USAGE)
    if is_url(path):
        why = "one file cannot grow at a URL; a / after the name makes it a folder of shards"
        raise DataError(why, path, code=Exit.CANNOT_CREATE)
    real = Path(os.path.realpath(path))
    if storable(str(real)) != str(real):
        why = "has bytes in its name that are not UTF-8, which a manifest cannot hold"
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
    """Return where a page or picture goes, as `final_path`; what is there must have vg's seal.

    Raises:
        DataError: it cannot be written, or would replace what vg did not write (73).
    """
    real = final_path(path, inputs)
    check(real, is_sealed)
    return real


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[str]) -> None:
    """Refuse to write over an input, whatever name, link or case of letters leads to it.

    Args:
        outputs: all names that an output uses: data, parts, manifest, journal, lock.
        inputs: of the command.

    Raises:
        DataError: one is the other (73).
    """
    read = [os.stat(name) for name in inputs if not is_url(name) and os.path.exists(name)]
    for output in outputs:
        if os.path.exists(output) and any(os.path.samestat(os.stat(output), one) for one in read):
            why = "is an input of this command and would be overwritten; choose another -o"
            raise DataError(why, output, code=Exit.CANNOT_CREATE)
