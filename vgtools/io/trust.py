"""Files that another process has checked: what it found good is not computed again.

Of several processes that read the same files, the first one notes the hashes that it computes
(`noting`), and the others take them over (`trusting`) for files that look the same to them. Scans
of values, which cost as much, ask `trusted`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Stamp = tuple[str, int, int]  # path, bytes, time of the last change in ns

_noted: dict[Stamp, str] | None = None
_known: Mapping[Stamp, str] | None = None


@contextmanager
def noting() -> Iterator[dict[Stamp, str]]:
    """Collect the sha256 of every file that is hashed meanwhile."""
    global _noted
    _noted = {}
    try:
        yield _noted
    finally:
        _noted = None


@contextmanager
def trusting(known: Mapping[Stamp, str]) -> Iterator[None]:
    """Take over what another process collected."""
    global _known
    _known = known
    try:
        yield
    finally:
        _known = None


def trusted() -> bool:
    """Return whether another process has checked what is read now."""
    return _known is not None


def known_hash(path: str | Path) -> str | None:
    """Return the sha256 that another process computed, if the file has not changed since."""
    return None if _known is None else _known.get(_stamp(path))


def note_hash(path: str | Path, sha256: str) -> None:
    """Note a hash for other processes, if they ask for it."""
    if _noted is not None:
        _noted[_stamp(path)] = sha256


def _stamp(path: str | Path) -> Stamp:
    facts = os.stat(path)
    return os.path.realpath(path), facts.st_size, facts.st_mtime_ns
