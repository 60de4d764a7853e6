"""What the benchmarks share: text, the machine, rows of results, ways measured in turns."""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Libraries read these when they are imported. Processor time of one thread can be compared on a
# busy machine, and large pages are what commands have.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "THP_MEM_ALLOC_ENABLE"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402 - after the settings

if TYPE_CHECKING:
    import torch


def clock() -> float:
    """Return the seconds of processor time of this process, and of its children that ended."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(x.ru_utime + x.ru_stime for x in used)


def sentences(path: str | None, count: int) -> list[str]:
    """Return sentences of a file or $VG_BENCH_TEXT, else invented ones of about 29 pieces."""
    path = path or os.environ.get("VG_BENCH_TEXT")
    if path:
        blocks = Path(path).read_text(encoding="utf-8").split("\n")
        lines = [
            s
            for b in blocks
            if not b.strip().startswith("=")
            for x in b.split(" . ")
            if len(s := x.strip()) > 10
        ]
        return [lines[i % len(lines)] for i in range(count)]
    rng = np.random.default_rng(0)
    words = np.array(COMMON)
    weights = 1 / (3 + np.arange(len(words)))
    lengths = np.clip(rng.lognormal(3.15, 0.55, count).astype(int), 3, 120)
    drawn = rng.choice(words, int(lengths.sum()), p=weights / weights.sum())
    return [" ".join(part.tolist()) for part in np.split(drawn, np.cumsum(lengths)[:-1])]


COMMON = """
the of and a in to was is for on as by with that from at it an were which dog cat house river
mountain train station captain army battle season game team player song album film city road church
school island storm water stone tower bridge garden king queen castle forest bird horse ship harbour
engine railway village market street window light colour season summer winter morning night history
science music theatre painting statue museum library doctor teacher soldier farmer writer singer
actor driver pilot sailor children woman man family people group company government president
minister election law court police prison hospital university college student century decade
northern southern eastern western ancient modern famous small large early late first second third
several many other
""".split()  # noqa: SIM905 - a list of a hundred words reads worse


def machine() -> dict[str, Any]:
    """Return commit, processor, cores and how busy the machine is."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        names = [
            x.split(":")[1].strip()
            for x in Path("/proc/cpuinfo").read_text().splitlines()
            if x.startswith("model name")
        ]
        model = names[0] if names else model
    return {
        "commit": commit,
        "machine": model,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "clock": "cpu",
    }


def report(
    benchmark: str, what: str, value: float, target: str | None = None, **facts: Any
) -> None:
    """Print one result as a jsonl row; a target is for example ">= 2.7"."""
    row: dict[str, Any] = {
        "benchmark": benchmark,
        "what": what,
        "value": round(value, 4) if value < 100 else round(value),
    }
    if target is not None:
        sign, wanted = target.split()
        row |= {
            "target": target,
            "met": bool(value >= float(wanted) if sign == ">=" else value <= float(wanted)),
        }
    print(json.dumps(row | facts), flush=True)


def best_product(
    shapes: Iterable[tuple[int, int, int]], device: torch.device, dtype: torch.dtype, turns: int = 6
) -> dict[tuple[int, int, int], float]:
    """Return the FLOP/s of products of (M, K) and (K, N), by the fastest library of the machine.

    On a CPU those are torch's own, oneDNN and numpy's, whether or not commands use them.
    """
    import torch

    now = time.perf_counter if device.type == "cuda" else clock
    rates = dict[tuple[int, int, int], float]()
    for m, k, n in shapes:
        a, b = (torch.randn(x, y, device=device, dtype=dtype) for x, y in ((m, k), (n, k)))
        out = torch.empty(m, n, device=device, dtype=dtype)
        ways: list[Callable[[], object]] = [lambda a=a, b=b, out=out: torch.mm(a, b.T, out=out)]
        if device.type == "cpu" and dtype == torch.float32:
            arrays = a.numpy(), b.T.numpy(), out.numpy()
            ways.append(lambda x=arrays: np.matmul(x[0], x[1], out=x[2]))
            operation = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
            if operation is not None:
                ways.append(lambda a=a, b=b, f=operation: f(a, b, None, "none", [], ""))
        seconds = []
        for _ in range(turns):
            for way in ways:
                start = now()
                way()
                if device.type == "cuda":
                    torch.cuda.synchronize()
                seconds.append(now() - start)
        rates[m, k, n] = 2 * m * k * n / min(seconds)
    return rates


def in_turns(
    ways: Mapping[str, Callable[[], object]], rounds: int, now: Callable[[], float] = clock
) -> dict[str, float]:
    """Return the median seconds of each way, all ways run in turns after one warm-up each."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            start = now()
            way()
            if turn:
                seconds[name].append(now() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}
