"""Hashes of files, each computed once; and files that another process has checked.

If several processes read the same files, the first notes the hashes that it computes (`noting`),
and the others take them over (`trusting`) for files that look the same to them. Scans of values,
which cost as much, ask `trusted`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

Stamp = tuple[str, int, int]  # path, bytes, time of the last change in ns
# Seconds for which a file must have been at rest: clocks of file systems are coarse, and a change
# right after the hash might not be seen.
_AT_REST = 2.0

_noted: dict[Stamp, str] | None = None
_known: Mapping[Stamp, str] | None = None
# By device, inode, size and times of the content and of the inode, the last of which no user sets.
hashes = dict[tuple[int, ...], str]()


def file_hash(path: str | Path) -> str:
    """Return the sha256 of a file's bytes, in hex; one that is at rest is read once per process.

    Raises:
        OSError: it cannot be read.
    """
    known = None if _known is None else _known.get(_stamp(path))
    if known is not None:
        return known
    with open(path, "rb") as stream:
        key = stamp(stream.fileno())
        assert key is not None  # it is open
        at_rest = max(key[-2:]) < time.time_ns() - _AT_REST * 1e9
        sha256 = hashes.get(key) or hashlib.file_digest(stream, "sha256").hexdigest()
    if at_rest:
        hashes[key] = sha256
    if _noted is not None:
        _noted[_stamp(path)] = sha256
    return sha256


def have_same_content(one: str | Path, other: str | Path) -> bool:
    """Return whether two files have the same bytes; pipes, folders and URLs have none."""
    if not (os.path.isfile(one) and os.path.isfile(other)):
        return False
    return os.path.getsize(one) == os.path.getsize(other) and file_hash(one) == file_hash(other)


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
    """Take over the hashes that another process collected."""
    global _known
    _known = known
    try:
        yield
    finally:
        _known = None


def trusted() -> bool:
    """Return whether another process has checked the files that are read now."""
    return _known is not None


def stamp(path: str | Path | int) -> tuple[int, ...] | None:
    """Return numbers that change whenever a file, named or open, does; None if it is not there."""
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _stamp(path: str | Path) -> Stamp:
    facts = os.stat(path)
    return os.path.realpath(path), facts.st_size, facts.st_mtime_ns
