"""The one comparison of a file with its size, hash or seal when it was written."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from vgtools import __version__
from vgtools.io.errors import DataError, Exit, file_errors, json_bytes
from vgtools.io.forms import LARGEST, SIZE, check_form, read_small
from vgtools.io.names import (
    ending_of,
    file_of,
    is_shards,
    is_stream,
    is_url,
    manifest_of,
    manifest_path,
    name_at,
    real_folder,
    without_query,
)
from vgtools.io.remote import file_size, read_if_there
from vgtools.io.trust import file_hash

FORMAT = 1  # format of manifests and run.json
MANIFEST = {
    "files?": dict,
    "kind?": (str, type(None)),
    "held_out?": SIZE,
    "keys?": str,
    "errors?": SIZE,
}
_LINKS = 40  # the most that Linux follows, one after another
_HEAD = 1 << 12  # bytes of a manifest in which vg gives its version


def check_file(path: str | Path, facts: Mapping[str, Any], by: str, way_out: str) -> None:
    """Refuse a file that has changed since it was written.

    Args:
        path: here; at a URL, only its size can be compared.
        facts: "bytes" and "sha256" when it was written; a missing fact is not compared.
        by: the name of their source in messages.
        way_out: ends the message.

    Raises:
        DataError: it is missing (66), or of another size or hash (65); both sides are printed.
    """
    size = file_size(str(path))
    if size is None:
        raise DataError(f"is missing; {by} names it; {way_out}", path, code=Exit.NO_INPUT)
    check_size(path, size, facts, by, way_out)
    if "sha256" in facts:
        with file_errors(path, reading=True):
            sha256 = file_hash(path)
        check_hash(path, sha256, facts["sha256"], by, way_out)


def check_size(
    path: str | Path, size: int, facts: Mapping[str, Any], by: str, way_out: str
) -> None:
    """Refuse a file of another size than when it was written, if `facts` have its "bytes".

    Raises:
        DataError: the size differs (65); both are printed.
    """
    if facts.get("bytes", size) != size:
        raise DataError(f"has {size} bytes, {by} states {facts['bytes']}; {way_out}", path)


def check_hash(
    path: str | Path, sha256: str, expected: str, by: str, way_out: str, cause: str = ""
) -> None:
    """Refuse a file with another hash than when it was written.

    Raises:
        DataError: the hash differs (65); both are printed, and the `cause`.
    """
    if sha256 != expected:
        why = f"is damaged or {cause or 'from another run'}: sha256 {sha256}"
        why += f", {by} states {expected}"
        raise DataError(f"{why}; {way_out}", path)


END = b"\n"  # of run.json, which its seal is of as well


def seal(body: Mapping[str, Any], end: bytes = b"") -> str:
    """Return the sha256 of a JSON object and an `end`, which is stored with it as "sha256"."""
    return hashlib.sha256(json_bytes(body) + end).hexdigest()


def unseal(body: dict[str, Any], path: str | Path, way_out: str, end: bytes = b"") -> None:
    """Take the seal off a JSON object that was read.

    Raises:
        DataError: the contents have changed (65).
    """
    if body.pop("sha256", None) != seal(body, end):
        why = "was edited or damaged: its sha256 belongs to other contents"
        raise DataError(f"{why}; {way_out}", path)


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


def manifest_beside(stream: str | Path, sha256: str | None = None) -> dict[str, Any]:
    """Return the manifest next to a stream's file, or an empty dictionary.

    A stream needs no manifest, and the file with its name may have nothing to do with vg, or be
    the manifest of another file, as `X.json` of `X.npy` is next to `X.txt`.

    Args:
        stream: the file.
        sha256: hash of the file, where it is known, to be compared as well.

    Raises:
        DataError: the manifest is damaged or of a newer format, the file has another size or hash
            than it states, or both were renamed (65).
    """
    stream = _followed(stream)
    place, body = _body_at(stream) if is_url(stream) else _body_beside(stream)
    if not isinstance(body, dict) or "vg" not in body:
        return {}
    check_format(body, place)
    check_form(body, MANIFEST, place, f"create {stream} again, or remove the manifest")
    files = body.get("files")
    if not isinstance(files, dict):
        return {}
    real = Path(real_folder(stream))
    name = name_at(stream) if is_url(stream) else real.name
    if name not in files:
        if not is_url(stream) and _is_renamed(real, files):
            raise renamed(name, files, Path(place))
        return {}
    facts = files[name]
    check_form(facts, {"bytes?": SIZE, "sha256?": str}, place, f"create {stream} again")
    again = "create it again"
    if not name.endswith((".npy", ".faiss")):  # these need their manifest
        again += f", or remove {place}"
    # A folder has no size. A store is asked once: each question takes as long as a small file.
    size = file_size(stream) if "bytes" in facts and not is_shards(stream) else None
    if size is not None:
        cause = "it is cut off or changed, or was written without -o"
        check_size(stream, size, facts, "its manifest", f"{cause}: {again}")
    if sha256 and facts.get("sha256"):
        check_hash(stream, sha256, facts["sha256"], "its manifest", again, "was rewritten")
    return body


def _followed(stream: str | Path) -> str:
    """Return where a link leads, to its file or to a link that has a manifest at its own place.

    A hub's copies are links with their manifests, to files without. Anything else is returned as it
    is.
    """
    name = file_of(stream)
    for _ in range(_LINKS if not is_url(name) else 0):
        if not os.path.islink(name) or is_marked(manifest_path(name)):
            break
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return name


def _body_beside(stream: str) -> tuple[str, Any]:
    """Return the place of the manifest of a file here, and its contents; None if none is there."""
    path = manifest_path(stream)
    if is_stream(stream) or not path.is_file():
        return str(path), None
    with file_errors(path, reading=True), open(path, "rb") as opened:
        if os.path.getsize(path) > LARGEST and not is_marked(path):
            return str(path), None
        data = read_small(opened, path)
    try:
        return str(path), orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if not is_marked(path) and _is_object(data.partition(b"\n")[0]):
            return str(path), None  # rows of JSON
        raise DataError(f"not valid JSON ({error}); expected a vg manifest", path) from None


def _is_object(line: bytes) -> bool:
    with contextlib.suppress(orjson.JSONDecodeError):
        return isinstance(orjson.loads(line), dict)
    return False


def _body_at(url: str) -> tuple[str, Any]:
    """Return the same of an object or a folder at a URL, which is not fetched for its hash."""
    place = manifest_of(without_query(url).rstrip("/"))
    try:
        return place, orjson.loads(read_if_there(place, LARGEST) or b"null")
    except orjson.JSONDecodeError:
        return place, None
    except DataError as error:  # the file that was named is of interest
        raise DataError(error.why, url, error.line, error.code) from None


def renamed(name: str, files: Iterable[str], manifest: Path) -> DataError:
    """Return the error of a file whose manifest, by its place, names others."""
    why = f"belongs to {', '.join(sorted(files))}, expected a manifest of {name}"
    return DataError(f"{why}; rename the files back, or create {name} again", manifest)


def _is_renamed(file: Path, files: Mapping[str, Any]) -> bool:
    """Return whether a file that the manifest at its place does not name got another name.

    A manifest in its place has the name of one of its files: then the file is its neighbour, unless
    it has the contents of one that is gone. A manifest that was renamed may have taken the file
    along, whatever its contents are by now.
    """
    stem = file.name.removesuffix(ending_of(file))
    moved = all(name.removesuffix(ending_of(name)) != stem for name in files)
    if moved and any(ending_of(name) == ending_of(file) for name in files):
        return True
    gone = {n: f for n, f in files.items() if moved or not os.path.lexists(file.parent / n)}
    if not os.path.isfile(file):
        return False
    size = os.path.getsize(file)
    facts = [f for f in gone.values() if isinstance(f, dict) and f.get("bytes") == size]
    with file_errors(file, reading=True):
        return bool(facts) and file_hash(file) in [f.get("sha256") for f in facts]


def check_made(path: str | Path, sha256: str | None = None) -> None:
    """Compare a file with the manifest next to it, if vg wrote it.

    In a folder each shard is compared when it is read.

    Args:
        path: the file; a pipe or a folder has no manifest to compare.
        sha256: hash of its bytes, where it is known.

    Raises:
        DataError: as `manifest_beside`.
    """
    if is_url(path):  # not fetched for its hash
        manifest_beside(path, sha256)
    elif is_made(path):
        with file_errors(path, reading=True):
            manifest_beside(path, sha256 or file_hash(file_of(path)))


def is_made(path: str | Path) -> bool:
    """Return whether a file has a manifest of vg next to it.

    The file with the name of a manifest may be anything: gigabytes of annotations, or JSON lines.

    Raises:
        DataError: as `manifest_beside`.
    """
    path = _followed(path)
    if is_stream(path) or is_shards(path):
        return False
    if not is_url(path) and not is_marked(manifest_path(path)):
        return False
    return bool(manifest_beside(path))


def is_marked(manifest: Path) -> bool:
    """Return whether a file starts as the manifests of vg do."""
    try:
        with open(manifest, "rb") as stream:
            return b'"vg":' in stream.read(_HEAD)
    except OSError:
        return False
