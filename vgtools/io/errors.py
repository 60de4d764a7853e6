"""Errors that a user can cause, as one exception with an exit code; `vgtools.cli` prints it."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import orjson


class Exit(IntEnum):
    """Exit codes of every command (from sysexits.h where it has a fitting code)."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    DATA = 65
    NO_INPUT = 66
    UNAVAILABLE = 69
    CANNOT_CONTINUE = 70
    CANNOT_CREATE = 73
    IO = 74
    STOPPED = 75
    CONFIG = 78
    INTERRUPTED = 130
    PIPE = 141
    TERMINATED = 143


class DataError(Exception):
    """Something a user can cause and fix; printed as `vg: FILE:LINE: why`.

    Args:
        why: the expectation, the fault, and the way out.
        file: the file it is about.
        line: its line, counted from 1.
        code: the exit code of the command.
    """

    def __init__(
        self,
        why: str,
        file: str | Path | None = None,
        line: int | None = None,
        code: Exit = Exit.DATA,
    ) -> None:
        self.why = why
        self.file = file
        self.line = line
        self.code = code
        location = "" if file is None else f"{name_of(file)}:"
        if file is not None and line is not None:
            location += f"{line}:"
        super().__init__(without_secrets(f"{location} {why}".strip()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Keep file, line and code on the way from another process."""
        return DataError, (self.why, self.file, self.line, self.code)

    def record(self) -> dict[str, Any]:
        """Return the row of an `X.errors.jsonl`."""
        file = without_secrets(str(self.file or ""))
        return {"file": file, "line": self.line, "error": without_secrets(self.why)}


# A user and a password, or whatever web servers take in their place.
_LOGIN = re.compile(r"(?:(?<=://)[^/\s@:?#]+:|(?<=http://)|(?<=https://))[^/\s?#]+(?=@)")
# An entry of a query whose value opens a store: X-Amz-Signature, sig, access_token … A `key` may
# also be the name of an object, which is shorter or has points.
_KEY = re.compile(
    r"([?&][^=&#\s]*(?:\b(?:sig|auth|pass)\b|signature|token|secret|credential|passw|pwd|jwt"
    r"|(?:api|access)[-_]?key)[^=&#\s]*=|[?&]key=(?=[\w-]{20,}(?:[&#\s'\":;,]|$)))"
    r"[^&#\s'\"]+?(?=[:;,.]?(?:[&#\s'\"]|$))",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return a text whose URLs have no passwords and signatures: records are published."""
    return _KEY.sub(r"\1***", _LOGIN.sub("***", text)) if "://" in text else text


def name_of(path: str | Path) -> str:
    """Return the name of a path in messages (`-` is the standard stream)."""
    return "standard input" if str(path) == "-" else str(path)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception means that host or device memory ran out.

    The test is by name, because torch need not be loaded.
    """
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, ImportError):  # a library may not fit into the address space
        text = f"{error} {error.__cause__ or error.__context__ or ''}"
        return "failed to map segment" in text or "annot allocate memory" in text
    if any(base.__name__ == "OutOfMemoryError" for base in type(error).__mro__):
        return True
    # The second phrase is about a thread's stack, the third comes from libraries in C++.
    phrases = ("can't allocate memory", "can't start new thread", "std::bad_alloc", "out of memory")
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in phrases)


def make_room(error: Exception, alone: str = "") -> None:
    """Free memory for a batch of half the size, after an error that a lack of it caused.

    Args:
        error: the batch's error.
        alone: the item that did not fit by itself, and a way out; "" for a batch that can be
            halved.

    Raises:
        Exception: the error itself, if it has another cause.
        DataError: the batch cannot be halved (70).
    """
    if not is_out_of_memory(error):
        raise error
    if alone:
        raise DataError(f"out of memory with {alone}", code=Exit.CANNOT_CONTINUE) from None
    # The frames that the error left hold the batch's tensors, which no cache could give back.
    traceback.clear_frames(error.__traceback__)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def about(file: str | Path) -> Iterator[None]:
    """Give errors of a block that name no file, a lack of memory among them, this one.

    Raises:
        DataError: the block's error, with the file; or memory ran out (70).
    """
    try:
        yield
    except DataError as error:
        if error.file is not None:
            raise
        raise DataError(error.why, file, code=error.code) from None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        why = "out of memory: the sizes that it asks for do not fit; use a machine with more memory"
        raise DataError(why, file, code=Exit.CANNOT_CONTINUE) from None


def amount(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 image`, `2,000 images`; `many` is an odd plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def input_changed(path: str | Path) -> DataError:
    """Return the error of an output whose input has changed since its first run read it."""
    why = "the input changed since this output was started; --restart starts over"
    return DataError(why, path, code=Exit.CONFIG)


def plain(text: object) -> str:
    """Return text for a terminal: control characters and escape sequences are written out."""

    def visible(character: str) -> str:
        if character.isprintable() or character in "\n\t":
            return character
        return character.encode("unicode_escape").decode()

    return "".join(map(visible, str(text)))


def storable(value: Any) -> Any:
    """Return a JSON value with strings that JSON can hold.

    Bytes of file names that are not UTF-8 are written out as `\\udcff`.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {storable(key): storable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [storable(entry) for entry in value]
    return value


def json_bytes(value: Any, option: int = 0) -> bytes:
    """Return a value as JSON with numpy arrays; strings that JSON cannot hold as `storable` does.

    Args:
        value: JSON types and numpy arrays.
        option: further options of orjson.
    """
    option |= orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(value, option=option)
    except TypeError:
        return orjson.dumps(storable(value), option=option)


# Causes that lie in a file's name; the disk is not at fault.
_OF_NAMES = {
    errno.ENOENT,
    errno.EACCES,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
}


def file_error(error: OSError, path: str | Path, reading: bool) -> DataError:
    """Return an operating-system error as a message and exit code that a user can act on."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    if reading:
        if error.errno == errno.EISDIR:
            reason = "it is a folder, expected a file; a folder of shards has a plan.json: copy it"
            reason += " whole, with the manifest next to it, or name its files"
        code = Exit.NO_INPUT if error.errno in _OF_NAMES else Exit.IO
        return DataError(f"cannot be read: {reason}", path, code=code)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    stream = str(path) == "-" or str(path).startswith("/dev/")
    hint = ""
    if full:
        # The bytes that went to a stream are gone, so that nothing resumes there.
        again = "start again" if stream else "run the same command again to resume"
        hint = f"; free some space and {again}"
    if stream and error.errno == errno.EBADF:
        reason = "it is closed; give -o a file name"
    name = "standard output" if str(path) == "-" else path
    code = Exit.IO if full or stream else Exit.CANNOT_CREATE
    return DataError(f"cannot be written: {reason}{hint}", name, code=code)


@contextmanager
def file_errors(path: str | Path, reading: bool) -> Iterator[None]:
    """Raise an operating-system error of a block as `file_error` returns it."""
    try:
        yield
    except OSError as error:
        raise file_error(error, path, reading) from None


@dataclass
class TextStats:
    """Counts of a text that is read."""

    lines: int = 0
    replaced: int = 0  # lines with bytes that are not UTF-8, replaced by U+FFFD
    ended: bool = True  # the last line has its line end, so that the file was not cut off in it


@dataclass
class Tally:
    """The items that were left out, with the reasons, and how bad items are handled."""

    skip: bool = False  # note a bad item and continue; otherwise the first ends the command
    most: int | None = None  # with `skip`, give up after more bad items than this
    left_out: Counter[str] = field(default_factory=Counter)
    errors: list[DataError] = field(default_factory=list)
    text: TextStats = field(default_factory=TextStats)  # counts of their text, as it is read

    @contextmanager
    def of_item(self) -> Iterator[None]:
        """Handle the error of a bad item in the block, which ends there."""
        try:
            yield
        except DataError as error:
            self.bad(error)

    def bad(self, error: DataError) -> None:
        """Handle a bad item: raise it, or note it."""
        if not self.skip:
            raise error
        self.errors.append(error)
        self.left_out["bad item"] += 1
        if self.most is not None and len(self.errors) > self.most:
            why = f"{error.why} (bad item {len(self.errors)}, --max-errors allows {self.most})"
            raise DataError(why, error.file, error.line, error.code)
