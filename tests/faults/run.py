"""Run the fault harness and print what it found: `python -m tests.faults [ID …]`."""

from __future__ import annotations

import argparse
import fnmatch
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.faults import (
    aliases,
    changes,
    damage,
    inputs,
    kills,
    lists,
    offline,
    pairs,
    planted,
    races,
    requests,
    resealed,
    sizes,
)
from tests.faults.case import Case
from tests.faults.cases import BY_NAME, CASES
from tests.faults.server import QUIET, ROOT, Server
from tests.faults.trials import VERDICTS, Outcome, Workspace

SUITES = {
    "kills": kills,
    "inputs": inputs,
    "damage": damage,
    "changes": changes,
    "planted": planted,
    "aliases": aliases,
    "lists": lists,
    "resealed": resealed,
    "sizes": sizes,
    "offline": offline,
    "races": races,
    "pairs": pairs,
    "requests": requests,
}

_ALL = BY_NAME | pairs.CASES | requests.CASES


def build_artefacts(folder: Path) -> Path:
    """Make the good inputs, in a process of their own."""
    command = [sys.executable, "-m", "tests.faults.artefacts", str(folder)]
    env = os.environ | QUIET | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def attempt(space: Workspace, trial: str) -> Outcome:
    """Run the trial of an id."""
    name, case, *detail = trial.split()
    outcome: Outcome = SUITES[name].attempt(space, _ALL[case], " ".join(detail))
    return outcome


def run_all(
    jobs: Iterable[tuple[str, Case, int]],
    seed: int,
    folder: Path,
    workers: int,
    minutes: float,
    seen: Callable[[Outcome], None],
) -> None:
    """Run (suite, case, count) on several servers; `seen` gets each outcome."""
    end = time.monotonic() + 60 * minutes
    artefacts = build_artefacts(folder / "artefacts")
    waiting: queue.SimpleQueue[tuple[str, Case, int]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    lock = threading.Lock()

    def work(number: int) -> None:
        with Server() as server:
            space = Workspace(folder / f"worker{number}" / "w", artefacts, server)
            while True:
                try:
                    name, case, count = waiting.get_nowait()
                except queue.Empty:
                    return
                trial = f"{name} {case.name}"
                try:
                    for trial in SUITES[name].plan(space, case, count, seed):
                        if time.monotonic() > end:
                            return
                        outcome = attempt(space, trial)
                        with lock:
                            seen(outcome)
                except Exception as error:  # the harness's own: no trial is lost without a word
                    with lock:
                        seen(Outcome(trial, "harness", f"{type(error).__name__}: {error}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Table:
    """Counts per suite and case."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], Counter[str]] = {}
        self.failures: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        name, case = outcome.trial.split()[:2]
        counts = self.counts.setdefault((name, case), Counter())
        counts["points"] += 1
        counts[outcome.verdict or "good"] += 1
        if outcome.verdict:
            self.failures.append(outcome)
            print(f"{outcome.verdict}: {outcome.detail}", flush=True)
            print(f"    python -m tests.faults '{outcome.trial}'", flush=True)

    def text(self) -> str:
        """Return the table."""
        heads = ("points", "good", *VERDICTS)
        lines = [f"{'':28}" + "".join(f"{head:>10}" for head in heads)]
        rows = sorted(self.counts.items(), key=lambda row: ([*SUITES].index(row[0][0]), row[0]))
        total: Counter[str] = Counter()
        for (name, case), counts in rows:
            total += counts
            title = f"{name} {case}"
            lines.append(f"{title:28}" + "".join(f"{counts[head] or '-':>10}" for head in heads))
        lines.append(f"{'all':28}" + "".join(f"{total[head] or '-':>10}" for head in heads))
        return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("trials", nargs="*", metavar="ID", help="repeat these trials alone")
    parser.add_argument("--kills", type=int, default=1_100, help="points in all [%(default)s]")
    parser.add_argument("--inputs", type=int, default=3_000, help="bad inputs [%(default)s]")
    parser.add_argument("--damage", type=int, default=400, help="damaged outputs [%(default)s]")
    parser.add_argument("--changes", type=int, default=150, help="inputs that change [%(default)s]")
    parser.add_argument("--planted", type=int, default=400, help="files in the way [%(default)s]")
    parser.add_argument("--aliases", type=int, default=400, help="own outputs read [%(default)s]")
    parser.add_argument("--lists", type=int, default=80, help="tampered lists [%(default)s]")
    parser.add_argument("--resealed", type=int, default=400, help="types, resealed [%(default)s]")
    parser.add_argument("--sizes", type=int, default=200, help="declared sizes [%(default)s]")
    parser.add_argument("--offline", type=int, default=150, help="URLs, --offline [%(default)s]")
    parser.add_argument("--races", type=int, default=2, help="races of each case [%(default)s]")
    parser.add_argument("--pairs", type=int, default=2, help="orders of each pair [%(default)s]")
    parser.add_argument("--requests", type=int, default=10, help="servers, 60 requests each")
    parser.add_argument("--only", default="*", metavar="CASE", help="cases, by shell pattern")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600, help="begin no trial after them")
    parser.add_argument("--workers", type=int, default=2, help="processes that run commands")
    given = parser.parse_args(argv)
    cases = [case for case in CASES if fnmatch.fnmatch(case.name, given.only)]
    start = time.monotonic()
    table = Table()
    with tempfile.TemporaryDirectory(prefix="vg-faults-") as name:
        folder = Path(name)
        if given.trials:
            with Server() as server:
                space = Workspace(folder / "w", build_artefacts(folder / "artefacts"), server)
                for trial in given.trials:
                    outcome = attempt(space, trial)
                    table.add(outcome)
                    print(f"{trial}: {outcome.verdict or 'good'}")
        else:
            run_all(jobs(cases, given), given.seed, folder, given.workers, given.minutes, table.add)
    print(table.text())
    print(f"{time.monotonic() - start:.0f} s")
    print(f"{len(table.failures)} failures")
    return 1 if table.failures else 0


def jobs(cases: list[Case], given: argparse.Namespace) -> list[tuple[str, Case, int]]:
    """Share the points out: bad inputs by the number of files of a case, the others evenly."""
    found: list[tuple[str, Case, int]] = []
    files = sum(len(case.reads) for case in CASES)
    shards = sum(bool(case.reader) for case in CASES)
    for case in cases:
        found += [
            ("kills", case, -(-given.kills // len(CASES))),
            ("inputs", case, -(-given.inputs * len(case.reads) // files)),
            ("damage", case, -(-given.damage // len(CASES))),
            ("changes", case, -(-given.changes // len(CASES))),
            ("planted", case, -(-given.planted // len(CASES))),
            ("aliases", case, -(-given.aliases // len(CASES))),
            ("lists", case, -(-given.lists // shards) if case.reader else 0),
            ("resealed", case, -(-given.resealed // len(CASES))),
            ("sizes", case, sizes.share(case, CASES, given.sizes)),
            ("offline", case, -(-given.offline // len(CASES))),
            ("races", case, given.races),
        ]
    chosen = [c for c in pairs.CASES.values() if fnmatch.fnmatch(c.name, given.only)]
    found += [("pairs", case, given.pairs) for case in chosen]
    if fnmatch.fnmatch("serve", given.only):
        found.append(("requests", requests.CASES["serve"], given.requests))
    return [job for job in found if job[2]]
