"""Shards and Ray against one process: processor time per shard, efficiency, reading the folder.

Needs the extra vgtools[ray] for all but the reading. Processor time is that of all processes, so
that a busy machine does not change it much; only the wall time of one worker to two does.

    python tests/benchmarks/shards.py [--shards 12] [--sleeps 8] [--mb 64]
        [--only read|ray|wall|sleep]
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from vgtools.batch import cluster
from vgtools.batch.plan import text_source
from vgtools.batch.shards import Attempt, ShardedOutput, open_folder
from vgtools.io.folders import Shards
from vgtools.io.streams import read_windows


class Busy:
    """Multiplies matrices: some seconds of one core for each shard; returns its processor time."""

    def __call__(self) -> Callable[[int], dict[str, Any]]:
        return self.make

    def make(self, shard: int) -> dict[str, Any]:
        began = time.time()
        start = time.process_time()
        square = np.random.default_rng(shard).standard_normal((700, 700))
        for _ in range(60):
            square = square @ square
            square /= np.abs(square).max()
        took = time.process_time() - start
        return {"shard": shard, "cpu": took, "start": began, "end": time.time()}


class Sleep:
    """Sleeps a second per shard."""

    def __call__(self) -> Callable[[int], dict[str, Any]]:
        return self.make

    def make(self, shard: int) -> dict[str, Any]:
        start = time.time()
        time.sleep(1)
        return {"shard": shard, "process": os.getpid(), "start": start, "end": time.time()}


def processor_time(root: psutil.Process) -> dict[int, float]:
    """Return the seconds of all processes below one, by process."""
    found = {}
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def on_ray(shards: int) -> None:
    """Measure processor time per shard by two workers, and that of the cluster beside them."""
    here = Busy()
    here.make(0)
    alone = [here.make(number)["cpu"] for number in range(shards)]
    me = psutil.Process()
    seen = dict[int, float]()
    own = time.process_time()
    done = [0.0]
    for record in cluster.run(Busy(), range(shards), "local", 2):
        done.append(record["cpu"])
        seen |= processor_time(me)
    beside = sum(seen.values()) - sum(done) + time.process_time() - own
    facts = {"shards": shards, "seconds": round(sum(alone) / shards, 2), **bench.machine()}
    ratio = sum(done) / sum(alone)
    bench.report("shards", "CPU per shard, 2 Ray workers to 1 process", ratio, "<= 1.05", **facts)
    bench.report("shards", "CPU s of a local cluster beside its shards", beside, "<= 15", **facts)


def walls(shards: int) -> None:
    """Measure the time of one worker against two, which says something on an idle machine only."""
    spans = list[float]()
    for workers in (1, 2):
        records = list(cluster.run(Busy(), range(shards), "local", workers))
        spans.append(max(r["end"] for r in records) - min(r["start"] for r in records))
    facts = {"shards": shards, **bench.machine()}
    what = "wall time of 1 worker to 2 of one thread"
    bench.report("shards", what, spans[0] / spans[1], ">= 1.8", **facts)


def asleep(shards: int, workers: int) -> None:
    """Measure the share of the time from its first to its last shard in which a worker sleeps."""
    records = list(cluster.run(Sleep(), range(shards * workers), "local", workers))
    busy = sum(record["end"] - record["start"] for record in records)
    # Of each worker from its first shard to its last: one that is ready later did not wait.
    spans = dict[int, tuple[float, float]]()
    for record in records:
        first, last = spans.get(record["process"], (record["start"], record["end"]))
        spans[record["process"]] = min(first, record["start"]), max(last, record["end"])
    share = busy / sum(last - first for first, last in spans.values())
    facts = {"shards": shards, "workers": workers, **bench.machine()}
    bench.report("shards", "efficiency of sleeping 1-s shards", share, ">= 0.97", **facts)


def folder_of(text: Path, folder: Path, size: int) -> ShardedOutput:
    """Return a complete folder of shards that holds the lines of a text."""
    out = open_folder(f"{folder}/", {"command": "copy"}, [text_source(str(text))], size, size)
    for number in range(len(out.plan)):
        with Attempt(out, number, [str(folder)], {}) as attempt:
            rows = 0
            for window in read_windows(out.plan.pieces(number), 4096):
                attempt.write("".join(line + "\n" for line in window.lines).encode())
                rows += len(window.lines)
            attempt.commit({"counts": {"rows": rows}})
            attempt.finish(kind="rows")
    out.finish()
    return out


def reading(megabytes: int) -> None:
    """Measure reading a folder of rows against reading the joined file."""
    with tempfile.TemporaryDirectory() as home:
        line = json.dumps({"text": "a line of words " * 12, "vokens": list(range(40))}) + "\n"
        text = Path(home, "one.jsonl")
        text.write_text(line * (megabytes * (1 << 20) // len(line)))
        folder = Path(home, "many.jsonl")
        folder_of(text, folder, 4 << 20)
        shards = len(Shards(folder))

        def read(path: Path) -> int:
            return sum(len(window.rows()) for window in read_windows(str(path), 4096))

        ways = {"folder": functools.partial(read, folder), "file": functools.partial(read, text)}
        seconds = bench.in_turns(ways, 3)
    ratio = seconds["folder"] / seconds["file"]
    facts = {"megabytes": megabytes, "shards": shards, **bench.machine()}
    bench.report("shards", "reading the folder to the joined file", ratio, "<= 1.05", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--sleeps", type=int, default=8, help="shards per worker")
    parser.add_argument("--workers", type=int, default=2, help="that sleep")
    parser.add_argument("--mb", type=int, default=64)
    parser.add_argument("--only", choices=("read", "ray", "wall", "sleep"))
    given = parser.parse_args()
    chosen = [given.only] if given.only else ["read", "ray", "wall", "sleep"]
    if "read" in chosen:
        reading(given.mb)
    if importlib.util.find_spec("ray") is None:
        print("tests/benchmarks/shards.py: Ray is not installed: vgtools[ray]", file=sys.stderr)
        return
    os.environ |= {"RAY_memory_monitor_refresh_ms": "0"}
    if "ray" in chosen:
        on_ray(given.shards)
    if "wall" in chosen:
        walls(given.shards)
    if "sleep" in chosen:
        asleep(given.sleeps, given.workers)


if __name__ == "__main__":
    main()
