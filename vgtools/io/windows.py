"""Windows of input lines: joined into larger ones, and worked on in threads, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from vgtools.io.helpers import HelperPool
from vgtools.io.streams import WINDOW_CHARS, Line, Window

_ALONE = 4  # windows that are prepared before helpers take over: a short input has none
_FIRST_WINDOW = 64  # lines: a person waits so long for the first row
Prepared = TypeVar("Prepared")
Result = TypeVar("Result")


def listed_windows(items: Iterable[Line], name: str, size: int = _FIRST_WINDOW) -> Iterator[Window]:
    """Yield windows of texts or rows that are in memory, as `read_windows` does of a file's lines.

    Args:
        items: texts, or rows with a "text"; an iterator is not read beyond the window.
        name: their name in messages.
        size: items per window; one ends early after `WINDOW_CHARS`.
    """
    lines = list[Line]()
    held = 0
    number = 0
    for number, item in enumerate(items, 1):
        lines.append(item)
        held += len(item if isinstance(item, str) else str(item.get("text")))
        if len(lines) == size or held >= WINDOW_CHARS:
            yield Window(name, number - len(lines) + 1, lines, "", jsonl=False)
            lines = []
            held = 0
    if lines:
        yield Window(name, number - len(lines) + 1, lines, "", jsonl=False)


def growing_windows(
    windows: Iterable[Window], size: int, first: int = _FIRST_WINDOW
) -> Iterator[Window]:
    """Join small windows into larger ones, each four times the last up to `size` lines.

    So the first rows come early. Where a window ends depends on the line it starts at and on its
    lines, not on where this run started: a compressed output has one frame per window, and a
    resumed output gets the same bytes.
    """
    joined: Window | None = None
    unit = 0  # lines of a small window
    target = min(first, size)  # lines of the window that is being joined
    edge = 0  # line at which it ends, at the latest
    held = 0  # characters of it
    for window in windows:
        if joined is not None and window.first == 1:  # the next piece of the input starts
            yield joined
            joined = None
        if joined is None and window.first == 1:
            unit = edge = held = 0
            target = min(first, size)
        unit = unit or len(window.lines)
        edge = edge or -(-target // unit) * unit
        # A resumed run starts in the middle of the input; the edges before it are counted without
        # their lines.
        while joined is None and edge < window.first:
            target = min(4 * target, size)
            edge += -(-target // unit) * unit
        if joined is None:
            joined = window
        else:
            joined = replace(
                joined,
                lines=joined.lines + window.lines,
                digest=window.digest,
                replaced=joined.replaced + window.replaced,
            )
        held += window.chars
        if window.first + len(window.lines) > edge or held >= WINDOW_CHARS:
            yield joined
            joined = None
            held = 0
    if joined is not None:
        yield joined


def pipelined(
    windows: Iterable[Window],
    prepare: Callable[[Window], Prepared],
    compute: Callable[[Prepared], Result],
    cancel: Callable[[], None],
    helpers: int = 0,
) -> Generator[tuple[Window, Result], None, None]:
    """Yield each window with its result, in order.

    The next windows are read, prepared and computed meanwhile, each in a thread of its own.

    Args:
        windows: windows of input lines.
        prepare: the host's part, such as parsing and tokenising.
        compute: the device's part, given the result of `prepare`.
        cancel: makes work in another thread end soon; called where the windows end early.
        helpers: processes that prepare, after the first windows, for a device that one cannot keep
            busy; `prepare` and its results are pickled. By default a thread does it.
    """
    host = ThreadPoolExecutor(max(1, helpers))
    device = ThreadPoolExecutor(1)
    pending = deque[tuple[Window, Future[Result]]]()
    depth = 0  # the first window is given out before more is read: somebody may be waiting for it
    pool: HelperPool | None = None

    def work(prepared: Future[Prepared]) -> Result:
        return compute(prepared.result())

    try:
        for number, window in enumerate(windows):
            if helpers and number == _ALONE:
                pool = HelperPool(prepare, helpers)
            prepared = host.submit(prepare if pool is None else pool.ask, window)
            pending.append((window, device.submit(work, prepared)))
            while len(pending) > depth:
                done, result = pending.popleft()
                yield done, result.result()
            depth = 2 + helpers
        while pending:
            done, result = pending.popleft()
            yield done, result.result()
    except BaseException:
        # A long computation is asked to end before `shutdown` waits for it.
        cancel()
        raise
    finally:
        device.shutdown(wait=True, cancel_futures=True)
        host.shutdown(wait=True, cancel_futures=True)
        if pool is not None:
            pool.close()
