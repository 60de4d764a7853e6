"""Folders of shards that stand for a file, as their readers see them; `vgtools.batch` writes them.

`X.jsonl/` holds the pieces of `X.jsonl`, which is itself never written, and `plan.json`. Once it is
complete, its `shards.jsonl` has one line per shard, in order, with the name, size and sha256 of
each file of the shard and its rows; the manifest `X.json` next to the folder has the sha256 of that
list. Only the list names the files of the folder: others in it may come from late tries.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import orjson

from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.forms import FILES, SIZE, fault_in, read_small
from vgtools.io.names import ending_of, is_url, manifest_of, real_folder, refuse_special
from vgtools.io.remote import file_size, open_url
from vgtools.io.written import check_file

LIST = "shards.jsonl"
_WAY_OUT = "remove it and run the command that writes the folder again"


# A line of the list, and a commit, which also has the facts that the manifest states once for all.
_RECORD = {
    "shard": SIZE,
    "files": FILES,
    "counts": {str: SIZE},
    "versions": dict,
    "device": (str, type(None)),
}
COMMIT = _RECORD | {"plan": str, "input": [list], "facts": dict}
_MANIFEST = {"files": FILES, "bytes": SIZE}


def fault_in_record(record: Any, number: int, form: Any = _RECORD) -> str:
    """Return why a commit, or a line of a list, is not about a shard; an empty string if it is.

    The names of its files start with its number, so that no file belongs to two shards.
    """
    if fault := fault_in(record, form):
        return fault
    if record["shard"] != number:
        return f"expected shard {number}, got {record['shard']}"
    for name in record["files"]:
        begin = name.partition("-")[0]
        if not begin.isascii() or not begin.isdigit() or int(begin) != number:
            return f"{name!r:.80} is not the name of a file of shard {number}"
    return ""


class ShardFile(NamedTuple):
    """One file of a shard, or of an artifact that is not cut."""

    path: str
    sha256: str | None = None  # in the list of shards
    rows: int = 0  # number in the shard

    def check(self, sha256: str) -> None:
        """Refuse a file with another hash than in the list of shards.

        Raises:
            DataError: the hash differs (65).
        """
        if sha256 != self.sha256:
            why = f"is damaged: its sha256 is {sha256}, {LIST} states {self.sha256}"
            raise DataError(f"{why}; {_WAY_OUT}", self.path)


class Shards:
    """The shards of a complete folder; in memory 8 bytes for each.

    Raises:
        DataError: the folder is not complete (66), or its list does not have the hash that its
            manifest states (65).
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = real_folder(folder).rstrip("/")
        self.path = os.path.join(self.folder, LIST)
        manifest = manifest_of(self.folder)
        if file_size(manifest) is None or file_size(self.path) is None:
            why = "is not complete: shards are missing; run the command that writes it again"
            raise DataError(why, folder, code=Exit.NO_INPUT)
        # One pass gives the hash of the list and the place of each line, so that `records` can
        # start at any shard without the list in memory.
        digest = hashlib.sha256()
        self._starts = array("Q", [0])
        with file_errors(self.path, reading=True), open_file(self.path) as stream:
            for line in stream:
                digest.update(line)
                self._starts.append(self._starts[-1] + len(line))
        self.sha256 = digest.hexdigest()
        try:
            with file_errors(manifest, reading=True), open_file(manifest) as stream:
                self.manifest: dict[str, Any] = orjson.loads(read_small(stream, manifest))
        except orjson.JSONDecodeError:
            self.manifest = {}
        own_name = Path(self.folder).name
        fault = fault_in(self.manifest, _MANIFEST)
        if fault or own_name not in self.manifest["files"]:
            why = f"is not a manifest of {folder}; run the command that writes it again"
            raise DataError(f"{fault}: {why}".removeprefix(": "), manifest)
        expected = self.manifest["files"][own_name]["sha256"]
        self.bytes: int = self.manifest["bytes"]  # sum over all files
        if expected != self.sha256:
            why = f"is damaged: sha256 {self.sha256}, its manifest states {expected}; {_WAY_OUT}"
            raise DataError(why, self.path)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def records(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the lines of some shards, of all by default.

        Raises:
            DataError: a line is not about its shard (65).
        """
        with file_errors(self.path, reading=True), open_file(self.path) as stream:
            stream.seek(self._starts[start])
            for number in range(start, len(self) if stop is None else stop):
                try:
                    record = orjson.loads(stream.readline())
                except orjson.JSONDecodeError:
                    record = None
                if fault := fault_in_record(record, number):
                    why = f"{fault}; run the command that writes the folder again"
                    raise DataError(why, self.path, number + 1)
                yield record

    def files(
        self, ending: str | None = None, start: int = 0, stop: int | None = None
    ) -> Iterator[ShardFile]:
        """Yield the files of some shards that end alike, by default as the folder does.

        Raises:
            DataError: a file is missing (66) or of another size than the list states (65).
        """
        ending = ending or ending_of(self.folder)
        for record in self.records(start, stop):
            for name, facts in record["files"].items():
                if name.partition(".")[2] != ending[1:]:
                    continue
                path = os.path.join(self.folder, name)
                check_file(path, {"bytes": facts["bytes"]}, LIST, _WAY_OUT)
                rows = record["counts"].get("rows", 0)
                yield ShardFile(path, facts["sha256"], rows)


def open_file(path: str) -> BinaryIO:
    """Open a file for reading, here or at a URL."""
    if is_url(path):
        return open_url(path)
    refuse_special(path)
    return open(path, "rb")
