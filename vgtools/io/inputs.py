"""The inputs of an output: hashed before they are read, compared before an output names them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit, amount, name_of, storable
from vgtools.io.files import config_difference, identity
from vgtools.io.names import file_of, split_table
from vgtools.io.splits import inherited
from vgtools.io.trust import stamp


class Inputs:
    """The inputs of a command as they are when it starts, before it reads them.

    The manifest of an input may count rows to evaluate on, and outputs take the count over: it is a
    part of the input, like its bytes.

    Args:
        paths: files, hashed here; for a folder, a pipe or `-` only the name is known.
        **facts: other inputs, for example the listing of a folder.

    Attributes:
        paths: as given.
        facts: as given; facts that are known only after reading are added later.

    Raises:
        DataError: a file cannot be read (66).
    """

    def __init__(self, paths: Iterable[str | Path], **facts: Any) -> None:
        self.paths = [str(path) for path in paths]
        self.facts = storable(facts)
        # Before the hash: a file that changes while it is hashed has another stamp at the end.
        self._stamps = [stamp(file_of(path)) for path in self.paths]
        self._entries = [identity(path) | inherited([path]) for path in self.paths]

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The entries of a manifest about them; the standard input has none."""
        return [entry for entry in self._entries if entry["path"] != "-"]

    def sha256(self, path: str | Path) -> str | None:
        """Return the hash of one of the files; None for a folder or an input read only once."""
        sha256: str | None = self._entries[self.paths.index(str(path))].get("sha256")
        return sha256

    @property
    def can_be_compared(self) -> bool:
        """Whether none is a pipe, whose content is known only once it is read."""
        return all(os.path.isfile(path) or os.path.isdir(path) for path in map(file_of, self.paths))

    def record(self) -> dict[str, Any]:
        """Return the entry about them in the journal of an unfinished output."""
        return {"files": self._entries, "facts": self.facts}

    def check_same(self, before: Mapping[str, Any]) -> None:
        """Refuse to resume an output that was started with other inputs.

        Args:
            before: a `record` of them.

        Raises:
            DataError: a file has another content than it had (78, both hashes), counts other rows
                to evaluate on, or a fact differs.
        """
        if len(before["files"]) != len(self.paths):
            why = f"the run that is being resumed read {amount(len(before['files']), 'file')}"
            why += f", this one reads {len(self.paths)}; --restart starts over"
            raise DataError(why, code=Exit.CONFIG)
        for path, old, new in zip(self.paths, before["files"], self._entries, strict=True):
            _check_entry(path, "changed since the run that is being resumed", old, new)
            columns = split_table(old["path"])[1]
            if columns != split_table(path)[1]:
                why = f"the run that is being resumed read the columns {columns or 'of all keys'}"
                raise DataError(f"{why}; --restart starts over", path, code=Exit.CONFIG)
        difference = config_difference(before["facts"], self.facts)
        if difference:
            why = f"the input changed since the run that is being resumed: {difference}"
            raise DataError(f"{why}; --restart starts over", code=Exit.CONFIG)

    def check_named(self, before: Sequence[Mapping[str, Any]]) -> None:
        """Refuse to continue or repeat a run with other contents of the same files.

        Args:
            before: `entries` of then; files that are not among these are not compared.

        Raises:
            DataError: a file has another content than it had (78, both hashes), or counts other
                rows to evaluate on.
        """
        known = {entry["path"]: entry for entry in before}
        for new in self.entries:
            old = known.get(new["path"])
            if old is not None:
                _check_entry(new["path"], "changed since the run read it", old, new)

    def check_unchanged(self) -> None:
        """Refuse to name files that changed while they were read.

        Raises:
            DataError: a file has another content than at the beginning (78, both hashes).
        """
        # A file is hashed again only if its stamp has changed, because that reads all of it.
        for path, before, old in zip(self.paths, self._stamps, self._entries, strict=True):
            if "sha256" in old and stamp(file_of(path)) != before:
                new = identity(path)
                if new.get("sha256") != old["sha256"]:
                    raise _changed(path, "changed while it was read", old, new)


def _check_entry(path: str, when: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    if old.get("sha256") != new.get("sha256"):
        raise _changed(path, when, old, new)
    before, now = (entry.get("held_out", 0) for entry in (old, new))
    if before != now:
        why = f"its manifest {when}: it counted {before} rows to evaluate on, now {now}"
        raise DataError(f"{why}; --restart starts over", name_of(path), code=Exit.CONFIG)


def _changed(path: str, when: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> DataError:
    before, after = (entry.get("sha256", "unknown (not a file)") for entry in (old, new))
    why = f"{when}: its sha256 was {before}, is now {after}; --restart starts over"
    return DataError(why, name_of(path), code=Exit.CONFIG)


def as_inputs(inputs: Inputs | Sequence[str | Path], **facts: Any) -> Inputs:
    """Return inputs that a caller hashed before it read them, or hash those it names.

    Args:
        inputs: either.
        **facts: other inputs that were read.
    """
    found = inputs if isinstance(inputs, Inputs) else Inputs(inputs)
    found.facts |= storable(facts)
    return found
