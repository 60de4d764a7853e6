"""Lists over banks of two sizes: memory while they are built, recall, and search time.

The images are mixed: each is the mean of four random directions of a few hundred and some noise, so
that neighbours are alike as photos are; queries are images under much noise, as words are. Memory
is that of the process without mapped files (RssAnon), above what it takes to import.

python tests/benchmarks/banks.py [--small 100000] [--large 1000000] [--dim 256]
    [--factory IVF1024,SQ8]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import bench
import numpy as np

from vgtools.io.files import write_manifest
from vgtools.retrieval.build import IndexPlan, write_index
from vgtools.retrieval.exact import exact_search
from vgtools.retrieval.index import METRIC, open_index

_STEP = 4096  # images that are drawn at a time
_QUERIES = 2048


class Mixed:
    """A bank that is computed row by row, so that none of it is in memory."""

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(0)
        self._topics = rng.standard_normal((500, dim)).astype(np.float32)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        found = np.empty((len(rows), self._topics.shape[1]), np.float32)
        blocks = rows // _STEP
        for block in np.unique(blocks):
            rng = np.random.default_rng([1, block])
            drawn = self._topics[rng.integers(500, size=(_STEP, 4))].mean(1)
            drawn += 0.25 * rng.standard_normal(drawn.shape, dtype=np.float32)
            found[blocks == block] = drawn[rows[blocks == block] % _STEP]
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def queries(self) -> np.ndarray:
        """Return (Q, E) images under noise: the cosine to the image is about 0.5."""
        rng = np.random.default_rng(2)
        near = self(rng.choice(100_000, _QUERIES, replace=False))
        near += 0.1 * rng.standard_normal(near.shape, dtype=np.float32)
        return near / np.linalg.norm(near, axis=1, keepdims=True)


def anonymous() -> int:
    """Return the bytes of this process that are not of mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x for x in lines if x.startswith("RssAnon")).split()[1])


def build(count: int, dim: int, factory: str, folder: str) -> dict[str, Any]:
    """Build one index; return its facts with peak memory and processor seconds."""
    import faiss  # noqa: F401 - counted before

    bank = Mixed(dim)
    before = anonymous()
    peak = [before]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    path = Path(folder) / f"{count}.faiss"
    start = time.process_time()
    with open(path, "wb") as file:
        plan = IndexPlan(bank, count, dim, factory, queries=bank.queries)
        facts = write_index(plan, lambda data: file.write(data) and None, folder)
    seconds = time.process_time() - start
    done.set()
    watcher.join()
    ids = path.with_suffix(".ids")
    ids.write_text("".join(f"{i}\n" for i in range(count)))
    known = {"kind": "index", "count": count, "dim": dim, "metric": METRIC}
    write_manifest(path, [path, ids], **known, **facts)
    size = os.path.getsize(path)
    return facts | {"peak": peak[0] - before, "seconds": seconds, "bytes": size}


def opened(path: str, checked: bool) -> tuple[float, int]:
    """Return the processor seconds of opening an index, and the memory that it takes."""
    import faiss  # noqa: F401 - counted before

    before = anonymous()
    start = time.process_time()
    index = open_index(path, checked=checked)
    seconds = time.process_time() - start
    return seconds, anonymous() - before + 0 * index.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=100_000)
    parser.add_argument("--large", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--factory", default="IVF1024,SQ8")
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    facts = {"dim": given.dim, "factory": given.factory, **bench.machine()}
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for count in (given.small, given.large):
            with context.Pool(1) as pool:  # a process each: memory is not given back
                made = pool.apply(build, (count, given.dim, given.factory, folder))
            found[count] = made
            of = f"{count:,} images"
            bench.report("banks", f"{of}: peak memory, MB", made["peak"] / 1e6, **facts)
            bench.report("banks", f"{of}: file, bytes per image", made["bytes"] / count, **facts)
            bench.report("banks", f"{of}: CPU seconds", made["seconds"], **facts)
            probed = f"at nprobe {made['nprobe']}"
            bench.report("banks", f"{of}: recall@1 {probed}", made["recall_at_1"], **facts)
            bench.report("banks", f"{of}: relevance lost {probed}", made["relevance_lost"], **facts)
        ratio = found[given.large]["peak"] / found[given.small]["peak"]
        bench.report("banks", "peak memory, large to small", ratio, "<= 1.5", **facts)
        path = f"{folder}/{given.large}.faiss"
        for checked, who in ((False, "driver"), (True, "worker")):
            with context.Pool(1) as pool:
                seconds, memory = pool.apply(opened, (path, checked))
            bench.report("banks", f"{who} opens the large one, CPU seconds", seconds, **facts)
            bench.report("banks", f"{who} opens the large one, MB", memory / 1e6, **facts)
        speed(path, given.dim, given.large, facts)


def speed(path: str, dim: int, count: int, facts: dict[str, Any]) -> None:
    """Measure the search of lists against the exact search of as many images."""
    bank = Mixed(dim)
    queries = bank.queries()[:512]
    rows = np.split(np.arange(count), range(_STEP, count, _STEP))
    exact = np.concatenate([bank(part) for part in rows])
    ways = {
        "exact": lambda: exact_search(queries, exact, threads=1),
        **{
            f"nprobe {n}": lambda n=n: open_index(path, n, checked=True).search(queries)
            for n in (8, 32, 128)
        },
    }
    seconds = bench.in_turns(ways, 1)
    best = exact_search(queries, exact).rows
    for n in (8, 32, 128):
        name = f"nprobe {n}"
        recall = float((open_index(path, n, checked=True).search(queries).rows == best).mean())
        ratio = seconds["exact"] / seconds[name]
        bench.report("banks", f"{name}: speed, to the exact search", ratio, **facts)
        bench.report("banks", f"{name}: recall@1", recall, **facts)


if __name__ == "__main__":
    main()
