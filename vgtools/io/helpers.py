"""Work on items in other processes of this machine, in the order of the items.

For work in Python, which threads of one process do one after the other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from queue import SimpleQueue
from typing import Any, TypeVar

from vgtools.io.errors import DataError, Exit
from vgtools.io.process import cores

_ALONE = 4  # items that this process does first: helpers take half a second to start
_MOST = 16  # helpers: more wait for this process, which reads and writes
_SERVE = "from vgtools.io.helpers import serve; serve()"

Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    items: Iterable[Item], work: Callable[[Item], Result], count: int | None = None
) -> Generator[tuple[Item, Result], None, None]:
    """Yield each item with its result, in order.

    This process does the first items itself, so that a short input has no helper to wait for.

    Args:
        items: can be pickled.
        work: can be pickled, and gives the same result in any process.
        count: helpers; by default one per core that this process may use. With 1 or 0 there is
            none, and this process does all.

    Raises:
        DataError: as `work`; or a helper died (70).
    """
    items = iter(items)
    count = min(cores(), _MOST) if count is None else count
    for item in items if count < 2 else islice(items, _ALONE):
        yield item, work(item)
    first = next(items, None)
    if first is None:
        return
    pool = HelperPool(work, count)
    pending = deque[tuple[Item, Future[Result]]]()
    threads = ThreadPoolExecutor(count)
    try:
        for item in chain([first], items):
            pending.append((item, threads.submit(pool.ask, item)))
            # Results are handed on before more is read: the next item may take a while to come.
            while pending and (len(pending) > count or pending[0][1].done()):
                done, result = pending.popleft()
                yield done, result.result()
        for done, result in pending:
            yield done, result.result()
    finally:
        threads.shutdown(cancel_futures=True)
        pool.close()


class HelperPool:
    """Processes that work on items for the threads that ask.

    Args:
        work: can be pickled, as its items and results.
        count: processes.
    """

    def __init__(self, work: Callable[[Any], Any], count: int) -> None:
        self._helpers = [_Helper(work) for _ in range(count)]
        self._free = SimpleQueue[_Helper]()
        for helper in self._helpers:
            self._free.put(helper)

    def ask(self, item: Any) -> Any:
        """Return the result of an item; it waits for a process that is free.

        Raises:
            DataError: as the work; or a helper died (70).
        """
        helper = self._free.get()
        try:
            return helper.ask(item)
        finally:
            self._free.put(helper)

    def close(self) -> None:
        """End the processes; nobody may be waiting for one."""
        for helper in self._helpers:
            helper.close()


class _Helper:
    """A process that works on one item after the other.

    Items and results go through its standard input and output, so that it ends with its parent,
    however that ends.
    """

    def __init__(self, work: Callable[[Any], Any]) -> None:
        # Modules come from where this process has them, not also from the working directory (-P).
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        env = os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
        pipe = subprocess.PIPE
        argv = [sys.executable, "-P", "-c", _SERVE]
        self._process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, env=env)
        self._send(work)

    def _send(self, body: Any) -> None:
        assert self._process.stdin is not None
        try:
            pickle.dump(body, self._process.stdin, pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def ask(self, item: Any) -> Any:
        assert self._process.stdout is not None
        self._send(item)
        try:
            good, result = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise self._died() from None
        if not good:
            raise result
        return result

    def _died(self) -> DataError:
        why = f"a helper process died ({self._process.wait()}); is the memory full?"
        why += " OMP_NUM_THREADS=1 works without helpers"
        return DataError(why, code=Exit.CANNOT_CONTINUE)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            # An item may have been sent by half.
            with contextlib.suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()


def serve() -> None:
    """Answer the parent of a helper process until it ends."""
    # Ctrl-C, and a batch system that stops a job, reach all its processes; the parent answers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    items = sys.stdin.buffer
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a package may print
    try:
        work = pickle.load(items)
        while True:
            item = pickle.load(items)
            try:
                answer = (True, work(item))
            except Exception as error:
                answer = (False, error)
            pickle.dump(answer, results, pickle.HIGHEST_PROTOCOL)
            results.flush()
    except (EOFError, BrokenPipeError):  # the parent has ended, or was killed
        os._exit(0)
