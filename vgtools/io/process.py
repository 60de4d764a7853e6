"""Locks, stops and progress: a command is the only writer, can be stopped, shows how far it is."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self, TypeVar

import orjson

from vgtools.io import own
from vgtools.io.errors import DataError, Exit, file_error, plain, without_secrets

Taken = TypeVar("Taken")
_OWNER = b"process "  # the start of a lock
is_lock = own.begins(_OWNER)


_command_line: list[str] | None = None


def note_command_line(words: Sequence[str] | None) -> None:
    """Note the command line that is run now, for the manifests of its outputs."""
    global _command_line
    _command_line = None if words is None else [*words]


def command_line() -> list[str]:
    """Return the command line of vg that is run, or else of the program that calls it.

    URLs have no passwords and signatures in it: manifests keep it.
    """
    return [*map(without_secrets, sys.argv if _command_line is None else _command_line)]


def _me() -> str:
    return f"process {os.getpid()}"


def when_free(take: Callable[[], Taken], seconds: float) -> Taken:
    """Return the result of `take`, once no other process has the lock that it takes.

    Args:
        take: raises a `DataError` with code 75 while another process has it.
        seconds: time between two tries.
    """
    while True:
        try:
            return take()
        except DataError as error:
            if error.code != Exit.STOPPED:
                raise
        time.sleep(seconds)


class Lock:
    """Keep a second writer away from an output; the kernel releases it when its owner dies.

    The file names the writer, and the files that `note` adds, which a killed owner leaves there.

    Args:
        target: a file or folder; reached through a link, it is the same.

    Attributes:
        was_left: whether a killed owner left the lock.
        names: the names that it and this owner noted.

    Raises:
        DataError: another process writes it (75), or the lock file cannot be created (73).
    """

    def __init__(self, target: str | Path) -> None:
        self.path = Path(f"{os.path.realpath(target)}.lock")
        self.was_left = False
        self.names = set[str]()
        self._fd = -1
        try:
            self._take(target)
        except DataError:
            raise
        except BaseException:  # a stop, or no memory: nobody else would remove the file
            if self.names:
                self.leave()
            else:
                self._abandon(own.begins(f"{_me()} on ".encode()))
            raise

    def _abandon(self, ours: own.Proof = is_lock) -> None:
        """Remove the file unless another process has the lock or `ours` does not hold."""
        if self._fd >= 0:
            self._close()
        # Another process may have taken the lock by now; the file is removed only under it.
        with contextlib.suppress(OSError, DataError):
            self._fd = own.reopen(self.path)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                own.remove(self.path, ours)
            finally:
                self._close()

    def _take(self, target: str | Path) -> None:
        while True:
            self._fd = self._open(target)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                text = os.pread(self._fd, 200, 0).decode("utf-8", "replace")
                owner = text.partition("\n")[0].strip() or "another process"
                self._close()
                why = f"is being written by {owner}; wait for it or stop it"
                raise DataError(why, target, code=Exit.STOPPED) from None
            with contextlib.suppress(OSError):
                if os.fstat(self._fd).st_ino == os.stat(self.path).st_ino:
                    break
            self._close()  # the former owner removed the file between our open and our lock
        self._read(os.pread(self._fd, min(os.fstat(self._fd).st_size, 1 << 20), 0))
        self.note()

    def _read(self, left: bytes) -> None:
        """Take the names that a killed owner noted.

        Raises:
            DataError: the file is not one of vg's (73).
        """
        # After the line of names, a kill may have left the end of older ones (`own.rewrite`).
        first, names, *_ = [*left.split(b"\n"), b""]
        if left and not first.startswith(_OWNER):
            self._close()
            raise own.not_ours(self.path)
        self.was_left = bool(left)
        with contextlib.suppress(orjson.JSONDecodeError):
            self.names.update(
                name for name in orjson.loads(names or b"[]") if isinstance(name, str)
            )

    def note(self, *names: str) -> None:
        """Write into the lock whose it is, and the names of files that are started under it."""
        self.names.update(names)
        owner = f"{_me()} on {socket.gethostname()}\n".encode()
        # On a full disk the lock holds without the text: the kernel keeps it, not the contents.
        with contextlib.suppress(OSError):
            own.rewrite(self._fd, owner + orjson.dumps(sorted(self.names)) + b"\n")

    def _open(self, target: str | Path) -> int:
        """Open the lock file, which may be there; never the target of a link of its name."""
        try:
            return own.reopen(self.path, create=True)
        except OSError as error:
            raise file_error(error, target, reading=False) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self.release()

    def release(self) -> None:
        """Remove the lock file and release the lock."""
        if self._fd >= 0:
            # The file is removed while its lock is held: after the release another process could
            # have taken it, and would lose its file.
            try:
                with contextlib.suppress(OSError, DataError):
                    own.remove(self.path, is_lock)
            except BaseException:  # a stop, or no memory, before it was removed
                self._abandon()
                raise
            self._close()

    def leave(self) -> None:
        """Release the lock, and leave its file to the next owner, who takes the names in it."""
        self._close()

    def _close(self) -> None:
        os.close(self._fd)
        self._fd = -1


def remove_left(target: str | Path) -> None:
    """Remove the lock that a killed owner of a target left, unless another process has taken it."""
    if Path(f"{os.path.realpath(target)}.lock").exists():
        with contextlib.suppress(DataError), Lock(target):
            pass


def remove_empty() -> None:
    """Remove the folders that `own.make_folder` made and nothing was written into.

    A folder that another process has locked stays: it may be about to write there.
    """
    while (folder := own.take_made()) is not None:
        with contextlib.suppress(OSError, DataError):
            if folder.is_dir() and not any(folder.iterdir()):
                with Lock(folder):
                    own.remove_folder(folder)


def cores() -> int:
    """Return how many cores this process may use; OMP_NUM_THREADS may lower it."""
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(available, int(limit)) if limit.isdigit() and int(limit) else available


class Stop:
    """Turn SIGTERM and Ctrl-C into a stop at the next boundary; a second signal stops at once.

    Args:
        patience: seconds to wait for a boundary, which a very long line may keep away; then the
            command is left where it is. None waits as long as it takes.
    """

    def __init__(self, patience: float | None = None) -> None:
        self.signal: int | None = None
        self._patience = patience
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError):  # only the main thread may set handlers
                self._old[number] = signal.signal(number, self._note)
        if self._old and self._patience is not None:
            self._old[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._leave)
        return self

    def _leave(self, number: int, frame: FrameType | None) -> None:
        """Unwind from wherever the command is; it resumes after the last commit."""
        print("vg: stopped; run the same command again to resume", file=sys.stderr)
        sys.exit(self._code())

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            # The former handlers are back when the signal comes again: it ends the process.
            self.__exit__(None, None, None)
            os.kill(os.getpid(), number)
            return
        self.signal = number
        if self._patience is not None:
            signal.setitimer(signal.ITIMER_REAL, self._patience)
        print("vg: stopping at the next checkpoint; a second signal stops at once", file=sys.stderr)

    def check(self) -> None:
        """Raise if a stop was requested; call it where all work so far is safe on disk."""
        if self.signal is not None:
            raise DataError("stopped; run the same command again to resume", code=self._code())

    def _code(self) -> Exit:
        return Exit.INTERRUPTED if self.signal == signal.SIGINT else Exit.STOPPED

    def __exit__(self, *_: object) -> None:
        if signal.SIGALRM in self._old:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._old = {}


def in_words(seconds: float) -> str:
    """Return a time as `40 s`, `12 min` or `3 h 20 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


_quiet = False


def stay_quiet(quiet: bool) -> bool:
    """Print errors alone from now on, or everything (`--quiet`); return which."""
    global _quiet
    _quiet = quiet
    return quiet


def is_quiet() -> bool:
    """Return whether `--quiet` asks for errors alone."""
    return _quiet


def warn(command: str, message: str) -> None:
    """Print one message of a command on stderr."""
    print(f"vg {command}: {plain(message)}", file=sys.stderr)


def note(command: str, message: str) -> None:
    """Print one message of a command on stderr, unless it is quiet."""
    if not _quiet:
        warn(command, message)


class Progress:
    """Show progress on stderr: a bar on a terminal, elsewhere a line per minute.

    Args:
        what: the command or step.
        unit: the things that are counted, for example `tokens`.
        total: how many there will be, if known.
        quiet: show nothing, as with `--quiet`.
        growth: where the total is not known, returns how many times as much as is done now will be
            done in the end, or None.
        clock: seconds; replaced in tests.
    """

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None = None,
        quiet: bool = False,
        growth: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what = what
        self.unit = unit
        self.growth = growth
        self.total = total
        self.done = 0
        self._clock = clock
        self._start = self._last = clock()
        self._bar: Any = None
        self._task: Any = None
        self._quiet = quiet or _quiet or sys.stderr is None
        self._terminal = (
            not self._quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        )

    def __enter__(self) -> Progress:
        if self._terminal:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task(self.what, total=self.total, rate="")
        return self

    def advance(self, count: int) -> None:
        """Count more as done."""
        self.done += count
        now = self._clock()
        if self._bar is not None and self._task is not None:
            total = self._expected()
            self._bar.update(self._task, completed=self.done, total=total, rate=self._rate(now))
        elif not self._quiet and now - self._last >= 60:
            self._last = now
            total = self._expected()
            done = f"{self.done:,}"
            left = ""
            if total is not None:
                done = f"{self.done:,} of {'' if self.total else 'about '}{total:,}"
                rest = (now - self._start) * max(0, total / self.done - 1)
                left = f", {in_words(rest)} left"
            done += f" {self.unit}, {self._rate(now)}{left}"
            print(f"vg {self.what}: {done}", file=sys.stderr)

    def _expected(self) -> int | None:
        """Return how many there will be, as far as it is known."""
        growth = None if self.total or not self.done else self.growth()
        # Estimates keep two digits: more would change with every line.
        rough = growth and float(f"{self.done * growth:.2g}")
        return self.total or (max(self.done, round(rough)) if rough else None)

    def _rate(self, now: float) -> str:
        rate = self.done / max(now - self._start, 1e-9)
        return f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s"

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
