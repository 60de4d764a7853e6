"""Shards done by the workers of a Ray cluster; the one module that imports Ray.

The driver owns the queue. Ray places a worker on each GPU or core, reports which ones were lost,
and knows nothing of shards: a shard is given to a worker that is ready, and goes back to the front
of the queue if the worker is lost. Each worker has two, so that it never waits for the driver; if
shards take hours, it has one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vgtools.io.errors import DataError, Exit, amount
from vgtools.io.process import Stop, is_quiet, stay_quiet
from vgtools.io.remote import is_offline, stay_offline

Record = dict[str, Any]
Make = Callable[[], Callable[[int], Record]]

_PATIENCE = 40.0  # seconds that a cluster has to start a worker where nothing is in its way
_DEATHS = 4  # workers lost with the same shard, after which the shard counts as the cause
# Settings that decide what a worker reads, where it keeps it, and how it rounds.
_PASSED_ON = ("AWS_", "FSSPEC_", "GOOGLE_", "HF_", "MKL_", "XDG_")
_OBJECT_STORE = 100 << 20  # bytes, of a cluster that is started here: rows do not pass through it


def run(
    make: Make,
    shards: Sequence[int],
    address: str,
    workers: int | None = None,
    gpu: bool = False,
    *,
    unit: str = "shard",
    ahead: int = 1,
    watch: Callable[[], None] = lambda: None,
) -> Generator[Record, None, None]:
    """Do shards on a Ray cluster; yield the result of each, as they are done.

    Each worker calls `make()` once, in its own process, and the function that it returns once per
    shard: on one core, or on one GPU and its share of the node's cores. It works in the driver's
    folder, if its node has one of that name, and with the driver's settings of caches and storage.
    A shard may be done more than once. Until the generator is closed `print` writes to stderr,
    because Ray's threads print to stdout.

    Args:
        make: pickled by Ray, as are shards and results.
        shards: in the order in which they are started.
        address: `auto`, `local` (a cluster of this machine, for this call), or HOST:PORT.
        workers: the most workers; those that find no place wait for one. None is one per GPU or
            core that the cluster has at the start.
        gpu: each worker has a GPU.
        unit: name of a shard in messages.
        ahead: shards that wait at a worker for the shard that it does.
        watch: called about once per second.

    Raises:
        DataError: Ray is not installed, there is no cluster, it runs another version of Ray or
            Python, has no GPU, ended, or starts no worker (69); a wrong address (usage); four
            workers were lost with the same shard, or before they were ready (70); SIGTERM (75); or
            a worker raises an error.
    """
    if importlib.util.find_spec("ray") is None:
        why = "needs Ray, which is not installed: pip install 'vgtools[ray]'"
        raise DataError(f"--ray {address} {why}", code=Exit.UNAVAILABLE)
    if not shards:
        return
    # Messages of Ray must not come between the command's own output.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            _connect(address, workers, gpu)
            with Stop() as stop:
                place = _place(gpu)
                queue = _Queue(make, deque(shards), address, place, unit, 1 + ahead, watch)
                yield from queue.run(workers or _places(gpu), stop)
        finally:
            import ray

            ray.shutdown()  # ends its workers, whatever they are doing


def _connect(address: str, workers: int | None, gpu: bool) -> None:
    """Connect to a cluster, or start one."""
    named = os.environ.get("RAY_ADDRESS") if address == "auto" else address
    if named and "://" in named:
        why = f"Ray Client ({named}) cannot run vg; ray job submit -- vg … runs it on the cluster"
        raise DataError(f"--ray {address}: {why}", code=Exit.USAGE)
    if named not in (None, "local") and not re.fullmatch(r"[^:]+:\d{1,5}|\[.+\]:\d{1,5}", named):
        why = "expected auto, local or HOST:PORT"
        raise DataError(f"--ray {address}: {why}, got {named}", code=Exit.USAGE)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # report nothing to Ray's makers
    import ray

    here: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    if not gpu:
        here["num_cpus"] = workers
    settings = here if named == "local" else {}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if named not in (None, "local"):
            host, _, port = named.rpartition(":")
            # Ray would wait for minutes for a cluster that is not there.
            socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **settings)
    except Exception as error:  # Ray has no one class for them, and raises `Exception` itself
        why = " ".join(str(error).split())
        way = "ray start --head starts a cluster, --ray local one for this command alone"
        raise DataError(f"--ray {address}: {why}; {way}", code=Exit.UNAVAILABLE) from None
    finally:
        # Ray sets a handler of its own, which is undone here; only the main thread may set one.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGTERM, handler)


def _places(gpu: bool) -> int:
    """Return how many workers the cluster has a place for.

    Raises:
        DataError: none (69).
    """
    import ray

    count = int(ray.cluster_resources().get("GPU" if gpu else "CPU", 0))
    if not count:
        why = "has no GPU; --device cpu computes on its cores" if gpu else "has no core for vg"
        raise DataError(f"the Ray cluster {why}", code=Exit.UNAVAILABLE)
    return count


def _place(gpu: bool) -> dict[str, int]:
    """Return the resources of a node that a worker takes; it has as many threads as cores."""
    import ray

    if not gpu:
        return {"num_cpus": 1, "num_gpus": 0}
    nodes = [node["Resources"] for node in ray.nodes() if node["Resources"].get("GPU")]
    share = min((node.get("CPU", 0) // node["GPU"] for node in nodes), default=1)
    return {"num_cpus": max(1, int(share)), "num_gpus": 1}


def _fits(node: dict[str, float], needs: dict[str, int]) -> bool:
    return all(node.get(name, 0) >= count for name, count in needs.items())


class _Actor:
    """A worker's process, as Ray starts it; its methods run in the order of the calls."""

    def __init__(self, folder: str, settings: dict[str, str], offline: bool, quiet: bool) -> None:
        stay_offline(offline)
        stay_quiet(quiet)
        os.environ.update(settings)  # some libraries read them only when they are imported
        with contextlib.suppress(FileNotFoundError):
            os.chdir(folder)

    def start(self) -> None:
        """Return, which shows that the process is there: to load may take it minutes."""

    def load(self, make: Make) -> None:
        self._work = make()

    def do(self, shard: int) -> Record:
        return self._work(shard)


@dataclass(eq=False)
class _Worker:
    """A worker as the driver knows it."""

    actor: Any
    started: bool = False  # its process is there
    ready: bool = False  # its call of `make` has returned
    shards: deque[int] = field(default_factory=deque)  # it does the first, the next waits


@dataclass
class _Queue:
    """The shards that are left, and who does which."""

    make: Make
    left: deque[int]
    address: str
    place: dict[str, int]
    unit: str
    in_flight: int  # shards with a worker: the shard it does, and the next
    watch: Callable[[], None]
    tasks: dict[Any, _Worker] = field(default_factory=dict)  # by Ray's reference of the result
    deaths: Counter[int | None] = field(default_factory=Counter)  # by shard; None: not yet ready

    def run(self, workers: int, stop: Stop) -> Iterator[Record]:
        """Yield the results of workers until nothing is left to do."""
        import ray
        from ray import exceptions

        lost = (
            exceptions.NodeDiedError,
            exceptions.OutOfMemoryError,  # Ray killed it, because its node was full
            exceptions.RayActorError,
            exceptions.WorkerCrashedError,
        )
        open_shards = len(self.left)
        seen = time.monotonic()  # when a worker's process was last there
        for _ in range(min(workers, open_shards)):
            self._start()
        while open_shards:
            done, _ = ray.wait([*self.tasks], timeout=1)
            stop.check()
            self.watch()
            if any(worker.started for worker in self.tasks.values()):
                seen = time.monotonic()
            else:
                self._check_cluster(time.monotonic() - seen)
            for task in done:
                worker = self.tasks.pop(task)
                try:
                    record = ray.get(task)
                except exceptions.RayTaskError as error:
                    raise error.cause from None
                except lost as error:
                    self._lost(worker, error)
                    continue
                # Ray runs the calls of an actor in their order: this is the first shard's result.
                if worker.ready:
                    self.deaths.pop(worker.shards.popleft(), None)
                    open_shards -= 1
                    yield record
                elif worker.started:
                    worker.ready = True
                    self.deaths.pop(None, None)
                else:
                    worker.started = True
                    self.tasks[worker.actor.load.remote(self.make)] = worker
                    continue
                self._give(worker)

    def _start(self) -> None:
        """Ask for a worker; it gets shards when it is ready."""
        import ray

        options = ray.remote(max_restarts=0, max_task_retries=0, **self.place)
        settings = {k: v for k, v in os.environ.items() if k.startswith(_PASSED_ON)}
        actor = options(_Actor).remote(os.getcwd(), settings, is_offline(), is_quiet())
        self.tasks[actor.start.remote()] = _Worker(actor)

    def _check_cluster(self, seconds: float) -> None:
        """End where no worker can be expected; where others have the places, workers wait.

        Args:
            seconds: time without a process of any worker.

        Raises:
            DataError: this machine's part of Ray ended, or for `_PATIENCE` seconds no node has had
                a place, or nothing has been in a worker's way (69).
        """
        import ray

        here = ray.get_runtime_context().get_node_id()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        why = ""
        if all(node["NodeID"] != here for node in nodes):
            why = "Ray ended on this machine"
        elif seconds > _PATIENCE:
            needs = {"CPU": self.place["num_cpus"], "GPU": self.place["num_gpus"]}
            has = ray.cluster_resources()
            free = ray.available_resources()
            idle = all(free.get(name, 0) == has.get(name, 0) for name in needs)
            if not any(_fits(node["Resources"], needs) for node in nodes):
                why = "no node is left that has a place for a worker"
            elif self.address == "local" or idle:
                why = f"Ray started no worker in {seconds:.0f} s, and nothing is in its way"
        if why:
            way = "see its logs in /tmp/ray/session_latest/logs (or below RAY_TMPDIR)"
            again = "the same command, run again, resumes"
            raise DataError(f"--ray {self.address}: {why}; {way}; {again}", code=Exit.UNAVAILABLE)

    def _give(self, worker: _Worker) -> None:
        while self.left and len(worker.shards) < self.in_flight:
            shard = self.left.popleft()
            worker.shards.append(shard)
            self.tasks[worker.actor.do.remote(shard)] = worker

    def _lost(self, worker: _Worker, error: Exception) -> None:
        """Take back the shards of a worker, and ask for another worker.

        Raises:
            DataError: it is the fourth that was lost with this shard, or before it was ready (70).
        """
        import ray

        # A worker may be lost only because it is out of reach: killed, it cannot work on.
        ray.kill(worker.actor)
        self.tasks = {task: other for task, other in self.tasks.items() if other is not worker}
        # Only the first shard was being done, and can be the cause; the next was waiting.
        shard = worker.shards[0] if worker.shards else None
        what = "before it was ready" if shard is None else f"with {self.unit} {shard}"
        reason = str(error).strip().splitlines()[-1].strip().partition(". ")[0]
        self.deaths[shard] += 1
        if self.deaths[shard] == _DEATHS:
            why = f"{_DEATHS} workers were lost {what.replace('it was', 'they were')}: {reason}"
            raise DataError(why, code=Exit.CANNOT_CONTINUE)
        if not is_quiet():
            again = amount(len(worker.shards), self.unit) + " will be done again"
            print(f"vg: a worker was lost {what}; {again}: {reason}", file=sys.stderr)
        # They come back to the front, as shards are to be started in their order.
        self.left.extendleft(reversed(worker.shards))
        if self.left:
            self._start()
