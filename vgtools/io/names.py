"""Questions about names, asked here, so that all commands give the same answers."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from vgtools.io.errors import DataError, Exit, without_secrets

PLAN = "plan.json"  # of a folder of shards
# A table and, after #, its columns.
_TABLE = re.compile(
    r"(.*?\.(?:parquet/?|arrow|feather|(?:csv|tsv)(?:\.gz|\.zst)?))(?:#(.*))?", re.DOTALL
)

# The place where huggingface_hub keeps a file of a repository, and the form of its public name.
_CACHED = re.compile(r".*/(?:models|datasets)--([^/]+?)--([^/]+)/snapshots/([0-9a-f]{40})(/.*)?")
_PUBLIC = re.compile(r"[^/]+/[^/]+@[0-9a-f]{40}")


def is_url(path: str | Path) -> bool:
    """Return whether a path is a URL, not a file of this machine."""
    return re.match(r"[a-z][a-z0-9+.-]*://", str(path)) is not None


_WEB = ("http://", "https://")  # names in stores may have any character


def without_query(url: str) -> str:
    """Return a URL of a web server without its ?…; any other as it is."""
    return url.partition("?")[0] if url.startswith(_WEB) else url


def name_at(url: str) -> str:
    """Return the name of a file at a URL; in the names of web servers, %20 is a space."""
    name = Path(without_query(url)).name
    return unquote(name) if url.startswith(_WEB) else name


def public(path: str | Path) -> str:
    """Return the name of a path for a manifest: OWNER/NAME@COMMIT/FILE for a copy of a hub's.

    A URL has no passwords and signatures there.
    """
    return without_secrets(_CACHED.sub(r"\1/\2@\3\4", str(path)))


def beside(path: str, output: str) -> str:
    """Return a path as seen from the folder of the output."""
    return os.path.relpath(os.path.realpath(path), os.path.dirname(os.path.realpath(output)))


def seen_from(output: str, path: str) -> str:
    """Return the name of an input for a manifest: on a hub, or as seen from the output's folder."""
    name = public(path)
    return name if name != path else beside(path, output)


def place_of(run: str, output: str) -> dict[str, str]:
    """Return where the encoder of an index is: a hub's name, or its folder as seen from the output.

    A manifest has it, and readers open it.
    """
    return {"run": seen_from(output, run)} if os.path.isdir(run) else {"encoder": run}


def is_public(name: str) -> bool:
    """Return whether a manifest names a repository of a hub, not a path."""
    return _PUBLIC.fullmatch(name) is not None


def is_shards(path: str | Path) -> bool:
    """Return whether a path is a folder of shards, complete or not; a URL is, if it ends in /."""
    if is_url(path):
        return str(path).endswith("/")
    return os.path.isfile(os.path.join(path, PLAN))


def is_stream(path: str | Path) -> bool:
    """Return whether bytes pass once, and not again: `-`, a pipe, a FIFO, a terminal, a device."""
    if str(path) == "-":
        return True
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_unnamed(path: str | Path) -> bool:
    """Return whether the content is unknown from a path: `-`, `<(…)`, a FIFO, `/dev/stdin`."""
    return is_stream(path) or _is_of_kernel(path)


def _is_of_kernel(path: str | Path) -> bool:
    """Return whether a name is one of the kernel's; files lie in /dev/shm."""
    return re.match("/(dev(?!/shm/)|proc)/", str(path)) is not None


def refuse_special(path: str | Path, expected: str = "a file") -> None:
    """Refuse a FIFO, socket or device where a file is expected, such as in a folder.

    Opening a FIFO waits for a writer, perhaps for ever.

    Raises:
        DataError: it is one (65), and was not named as `-` or by the kernel, as `<(…)` is.
    """
    if str(path) != "-" and not _is_of_kernel(path) and is_stream(path):
        raise DataError(f"is a pipe or a device; expected {expected}", path)


def refuse_stream(path: str | Path) -> None:
    """Refuse an input that is read twice if it can be read only once.

    Raises:
        DataError: standard input, a pipe, a FIFO or a device (usage).
    """
    if is_stream(path):
        why = "is read twice, and a pipe can be read only once; write it to a file and name that"
        raise DataError(why, path, code=Exit.USAGE)


def is_compressed(path: str | Path) -> bool:
    """Return whether a file is compressed, by its name; then it has checksums."""
    return str(path).endswith((".gz", ".zst"))


def bare(path: str | Path) -> str:
    """Return a name without the / of a folder and the suffix of compression: `X.jsonl`."""
    return str(path).rstrip("/").removesuffix(".gz").removesuffix(".zst")


def is_jsonl(path: str | Path) -> bool:
    """Return whether a file, compressed or not, has JSON lines, by its name."""
    return bare(path).endswith(".jsonl")


def split_table(path: str | Path) -> tuple[str, str]:
    """Return a file and the columns that are named after it: `X.parquet#caption`, else ""."""
    found = _TABLE.fullmatch(str(path))
    return (found[1], found[2] or "") if found else (str(path), "")


def base_of(path: str | Path) -> str:
    """Return the name of an input without its folder, with the columns of a table."""
    file, columns = split_table(path)
    return os.path.basename(without_secrets(file)) + (f"#{columns}" if columns else "")


def file_of(path: str | Path) -> str:
    """Return the file of an input, without the columns of a table."""
    return split_table(path)[0]


def refuse_columns(output: str) -> None:
    """Refuse an output whose name, as an input, would mean columns of another file.

    Raises:
        DataError: there is a # after the suffix of a table (usage).
    """
    if file_of(output) != output:
        why = "# starts the columns of a table that is read; leave it out of an output"
        raise DataError(why, output, code=Exit.USAGE)


def is_table(path: str | Path) -> bool:
    """Return whether a file is a table with named columns, by its name."""
    return _TABLE.fullmatch(str(path)) is not None


def is_parquet(path: str | Path) -> bool:
    """Return whether a file, or a folder of shards, is Parquet, by its name."""
    return file_of(path).rstrip("/").endswith(".parquet")


def is_separated(path: str | Path) -> bool:
    """Return whether a table is a text with separators: CSV or TSV."""
    return bare(file_of(path)).endswith((".csv", ".tsv"))


def manifest_path(artifact: str | Path) -> Path:
    """Return an artifact's manifest: `X.json` next to `X.npy`, `X.jsonl.gz`, a folder `X.npy/` …"""
    path = Path(real_folder(artifact))
    return path.parent / f"{_stem(path)}.json"


def manifest_of(folder: str) -> str:
    """Return the manifest of a folder of shards, here or at a URL."""
    folder = real_folder(folder)
    return os.path.join(os.path.dirname(folder), manifest_path(folder).name)


def real_folder(path: str | Path) -> str:
    """Return where a folder is, which has its manifest there; anything else as it is.

    A link to a folder is followed: the manifest names the folder by its own name.
    """
    name = str(path)
    return os.path.realpath(name) if os.path.isdir(name) and Path(name).is_symlink() else name


def ending_of(artifact: str | Path) -> str:
    """Return the rest of an artifact's name after its stem: `.npy`, `.jsonl.gz` …"""
    return Path(artifact).name.removeprefix(_stem(Path(artifact)))


def _stem(path: Path) -> str:
    return path.with_suffix("").stem if is_compressed(path) else path.stem


def is_extra(name: str, manifest: Mapping[str, Any]) -> bool:
    """Return whether a file of an artifact is read by no command that reads the artifact.

    Lists of bad items are not, and the embeddings of an index, of `vg build-index --emb`; a bank of
    clusters has a table of its own.
    """
    of_images = manifest.get("kind") == "index" and "clusters" not in manifest
    return name.endswith(".errors.jsonl") or (of_images and name.endswith(".npy"))


def id_fault(image: str) -> str | None:
    """Return why an id cannot be a line of `X.ids`, or None."""
    if not image:
        return "it is empty; an image needs a name"
    if any(c in image for c in "\n\r\0"):
        return "its name holds a line break or NUL, which an id cannot"
    if image.startswith("\ufeff"):
        return "its name starts with a byte-order mark, which an id cannot"
    try:
        image.encode()
    except UnicodeEncodeError:
        return "its name is not valid UTF-8"
    return None
