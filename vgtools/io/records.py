"""How a file or run was made: the manifest or `run.json` that names its command and its files."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vgtools.io import own
from vgtools.io.errors import DataError
from vgtools.io.files import read_value
from vgtools.io.forms import check_form
from vgtools.io.names import file_of, is_shards, is_stream, manifest_path
from vgtools.io.written import END, check_format, unseal

_DEEPEST = 3  # folders between a file of a run and its run.json: RUN/seed-1/model/config.json
_looks_like = own.begins(b'{"format":', b'{\n  "format":')


_FORM = {
    "argv": [str],
    "files": {str: {"sha256?": (str, type(None))}},
    "inputs?": [{"path": str, "sha256?": (str, type(None))}],
    "processes?": [int],
    "versions?": dict,
}


@dataclass(frozen=True)
class Record:
    """A `run.json` or manifest as it was read.

    Attributes:
        file: its path.
        body: its entries.
    """

    file: Path
    body: dict[str, Any]

    @property
    def files(self) -> dict[Path, dict[str, Any]]:
        """The files that were written, the main file first, with the size and hash they had."""
        return {self.file.parent / name: facts for name, facts in self.body["files"].items()}

    @property
    def made(self) -> Path:
        """The run folder, or the main file."""
        return self.file.parent if self.file.name == "run.json" else next(iter(self.files))

    @property
    def version(self) -> str:
        """The version of vg that wrote it."""
        versions = self.body.get("versions")
        named = versions.get("vgtools") if isinstance(versions, dict) else None
        return str(self.body.get("vg") or named)

    def folder(self, written: Iterable[str]) -> str:
        """Return where its command ran: where the name of an output leads to the output.

        Args:
            written: the names of the outputs on the command line. If none of them leads there, it
                is the working directory.
        """
        for name in written:
            end = os.path.normpath(name)
            if not os.path.isabs(end) and str(self.made).endswith(f"{os.sep}{end}"):
                return str(self.made).removesuffix(end).rstrip(os.sep) or os.sep
        return os.getcwd()

    def words(self) -> list[str]:
        """Return the words of the command line after `vg`.

        Raises:
            DataError: a program made it, not a command (65).
        """
        program, *words = map(str, self.body["argv"])
        if os.path.basename(program) not in ("vg", "__main__.py"):
            why = f"was made by the program {program or 'python'}, which alone makes it again"
            raise DataError(why, self.file)
        if not words:
            raise DataError('"argv" names no command; create the artifact again', self.file)
        return words


def record_of(path: str | Path) -> Record | None:
    """Return the record of a run, of a file that vg wrote, or that is one; None if there is none.

    A file may be any that its command wrote: the ids of features, an image list next to captions,
    the predictions or the encoder of a run.

    Raises:
        DataError: a record is of a newer format, or damaged (65).
    """
    place = Path(os.path.abspath(file_of(path)))
    if is_stream(place):
        return None
    for file in _candidates(place):
        record = _read(file)
        if record is not None and (place in (file, record.made) or _has(record, place)):
            return record
    return None


def _read(file: Path) -> Record | None:
    if not file.is_file() or not _looks_like(file):
        return None
    body = read_value(file, "a run.json or manifest of vg")
    if not isinstance(body, dict) or not {"argv", "files"} <= body.keys():
        return None
    check_format(body, file)
    if file.name == "run.json":
        unseal(dict(body), file, "restore it from a copy, or create the artifact again", END)
    check_form(body, _FORM, file, "create the artifact again")
    return Record(file, body) if body["argv"] and body["files"] else None


def _has(record: Record, place: Path) -> bool:
    """Return whether a file, or a folder of a run such as its encoder, is of a record."""
    return place in record.files or any(place in file.parents for file in record.files)


def _candidates(place: Path) -> Iterator[Path]:
    """Yield the files that may be the record of a file or folder, the most probable first."""
    if place.is_dir() and not is_shards(place):
        yield place / "run.json"
    else:
        if place.suffix == ".json":
            yield place
        yield manifest_path(place)
    yield from (folder / "run.json" for folder in list(place.parents)[:_DEEPEST])
    if place.is_file():
        others = _manifests(place.parent, place.parent.stat().st_mtime_ns)
        yield from others.get(place.name, ())


@cache
def _manifests(folder: Path, changed: int) -> dict[str, list[Path]]:
    """Return the manifests in a folder by the names of the files that they list.

    Args:
        folder: the folder.
        changed: when it did.
    """
    found = dict[str, list[Path]]()
    for file in sorted(folder.glob("*.json")):
        with contextlib.suppress(DataError):  # a damaged manifest, of another file
            record = _read(file)
            for path in () if record is None else record.files:
                found.setdefault(path.name, []).append(file)
    return found


def mark_of(info: Mapping[str, Any]) -> str | None:
    """Return the fingerprint that an index has of the run that embedded it, by its run.json.

    None if run.json alone cannot say: a retriever's word vectors have a hash of their own.
    """
    mark = str(info.get("fingerprint"))
    if info.get("kind") == "retriever" and info.get("encoder"):
        return hashlib.sha256(mark.encode()).hexdigest()
    return mark if info.get("kind") == "matcher" else None
