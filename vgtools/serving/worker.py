"""The one thread that computes: requests that wait together and ask alike share its batches."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

# Characters per batch: some packs of the encoder, and under a second on a CPU, so that whoever
# types does not wait long for whoever sends a book.
BATCH = 1 << 15

Rows = list[bytes]  # a result per item, as JSON
Compute = Callable[[Sequence[Any], Any], Rows]  # items and settings to rows


@dataclass
class QueuedJob:
    """Some items of one request, which are computed together."""

    compute: Compute
    settings: Any
    items: Sequence[Any]
    size: int  # characters
    done: Future[Rows] = field(default_factory=Future)

    def joins(self, other: QueuedJob) -> bool:
        """Return whether two jobs can share a batch."""
        return self.compute == other.compute and self.settings == other.settings


class Worker:
    """Computes jobs in turn; a result does not depend on the jobs that share its batch."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[QueuedJob | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="vg serve", daemon=True)
        self._thread.start()

    def submit(self, job: QueuedJob) -> Future[Rows]:
        """Queue a job; cancelled before its turn, it is not computed."""
        self._jobs.put(job)
        return job.done

    def stop(self) -> None:
        """End the thread after the jobs that are queued."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        waiting = deque[QueuedJob | None]()
        while True:
            if not waiting:
                waiting.append(self._jobs.get())
            while not self._jobs.empty():
                waiting.append(self._jobs.get())
            first = waiting.popleft()
            if first is None:
                return
            batch = [first]
            size = first.size
            rest = deque[QueuedJob | None]()
            for job in waiting:
                if job is not None and job.joins(first) and size + job.size <= BATCH:
                    batch.append(job)
                    size += job.size
                else:
                    rest.append(job)
            waiting = rest
            self._compute([job for job in batch if job.done.set_running_or_notify_cancel()])

    def _compute(self, batch: Sequence[QueuedJob]) -> None:
        if not batch:
            return
        items = [item for job in batch for item in job.items]
        try:
            rows = iter(batch[0].compute(items, batch[0].settings))
        except Exception as error:
            if len(batch) > 1:  # the others are not to blame
                for job in batch:
                    self._compute([job])
            else:
                batch[0].done.set_exception(error)
            return
        for job in batch:
            job.done.set_result([next(rows) for _ in job.items])
