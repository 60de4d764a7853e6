"""Number the file operations of a process, and do harm at one of them.

`install` replaces `open` and functions of `os` in this process. Counted are, inside one folder
only: opening for writing, each write that reaches the system, fsync, truncate, rename, unlink,
mkdir, rmdir, link. Writers in C or Rust (faiss, safetensors, tokenizers) are met between their
operations, and by a full disk through RLIMIT_FSIZE, which binds every writer of the process.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import resource
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KINDS = ("kill", "term", "full")
GROWING = ("create", "write", "fsync", "mkdir", "link")  # what a full disk refuses


@dataclass(frozen=True)
class Fault:
    """What happens at which operation, counted from 1.

    Args:
        kind: `kill` (SIGKILL, a write is torn in the middle), `term` (SIGTERM) or `full` (no space
            from there on); `slow` makes every operation take longer, by chance.
        at: number of the operation; for `slow` the seed.
    """

    kind: str
    at: int


class _Counter:
    def __init__(self, root: str, fault: Fault | None, log: int) -> None:
        self.root = os.path.realpath(root) + os.sep
        self.fault = fault
        self.log = log
        self.count = 0
        self._lock = threading.Lock()
        self._note = os.write

    def path_of(self, path: Any) -> str | None:
        """Return a path relative to the root, or None for one outside."""
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return None
        full = os.path.abspath(os.fsdecode(path))
        real = os.path.join(os.path.realpath(os.path.dirname(full)), os.path.basename(full))
        return real.removeprefix(self.root) if real.startswith(self.root) else None

    def step(self, operation: str, path: Any) -> bool:
        """Count an operation before it takes place.

        Returns:
            Whether a write has to be torn: half of it is written, then `harm` is called.

        Raises:
            OSError: the disk is full by now.
        """
        name = self.path_of(path)
        if name is None:
            return False
        with self._lock:
            self.count += 1
            count = self.count
        self._note(self.log, f"{operation} {name}\n".encode("utf-8", "backslashreplace"))
        if self.fault is not None and self.fault.kind == "slow":
            time.sleep(random.Random(f"{self.fault.at} {count}").random() / 30)
            return False
        if self.fault is None or count < self.fault.at:
            return False
        if self.fault.kind == "full":
            if count == self.fault.at:
                resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            if operation in GROWING:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        elif count == self.fault.at:
            if operation == "write" and self.fault.kind == "kill":
                return True
            self.harm()
        return False

    def harm(self) -> None:
        kind = self.fault.kind if self.fault else ""
        os.kill(os.getpid(), signal.SIGKILL if kind == "kill" else signal.SIGTERM)


class _Raw(io.FileIO):
    """A file whose writes are counted."""

    counter: _Counter

    def write(self, data: Any, /) -> int:
        if self.counter.step("write", self.fileno()):
            super().write(memoryview(data).cast("B")[: max(len(data) // 2, 1)])
            self.counter.harm()
        return super().write(data) or 0

    def truncate(self, size: int | None = None, /) -> int:
        self.counter.step("truncate", self.fileno())
        return super().truncate(size)


def install(root: str, fault: Fault | None, log: int) -> None:
    """Count this process's file operations below a folder, and do harm at one of them.

    Args:
        root: only paths below it count.
        fault: the harm, or None to count alone.
        log: file descriptor that gets one line per operation, before it takes place.
    """
    counter = _Counter(root, fault, log)
    plain_open = io.open

    def counted_open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        writes = isinstance(mode, str) and set(mode) & set("wax+")
        if not writes or opener or counter.path_of(file) is None:
            return plain_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        if not isinstance(file, int):  # os.open has counted it
            created = "w" in mode or not os.path.exists(file)
            counter.step("create" if created else "open", file)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd)
        raw.counter = counter
        if buffering == 0:
            return raw
        buffered: Any = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline)
        text.mode = mode  # type: ignore[misc]
        return text

    def before(function: Callable[..., Any], operation: str, place: int = 0) -> Callable[..., Any]:
        def counted(*args: Any, **keywords: Any) -> Any:
            path = args[place] if len(args) > place else next(iter(keywords.values()))
            if keywords.get("dir_fd") is not None and isinstance(path, str):
                path = os.path.join(os.readlink(f"/proc/self/fd/{keywords['dir_fd']}"), path)
            counter.step(operation, path)
            return function(*args, **keywords)

        return counted

    plain_os_open = os.open

    def counted_os_open(path: Any, flags: int, *args: Any, **keywords: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and keywords.get("dir_fd") is None:
            counter.step("open" if os.path.lexists(path) else "create", path)
        return plain_os_open(path, flags, *args, **keywords)

    builtins.open = io.open = counted_open
    os.open = counted_os_open
    os.write = before(os.write, "write")
    for name, operation, place in (
        ("fsync", "fsync", 0),
        ("truncate", "truncate", 0),
        ("ftruncate", "truncate", 0),
        ("replace", "rename", 1),
        ("rename", "rename", 1),
        ("unlink", "unlink", 0),
        ("remove", "unlink", 0),
        ("rmdir", "rmdir", 0),
        ("mkdir", "mkdir", 0),
        ("link", "link", 1),
        ("symlink", "link", 1),
    ):
        setattr(os, name, before(getattr(os, name), operation, place))
