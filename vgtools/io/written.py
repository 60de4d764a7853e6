"""The one comparison of a file with its size, hash or seal when it was written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit, file_errors, json_bytes
from vgtools.io.remote import file_size
from vgtools.io.trust import file_hash


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
    if facts.get("bytes", size) != size:
        raise DataError(f"has {size} bytes, {by} states {facts['bytes']}; {way_out}", path)
    if "sha256" in facts:
        with file_errors(path, reading=True):
            sha256 = file_hash(path)
        check_hash(path, sha256, facts["sha256"], by, way_out)


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
