"""Start-up: seconds of `vg --help` and of each command's help.

python tests/benchmarks/startup.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

import bench

from vgtools.cli import COMMANDS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for name in ("", *COMMANDS):
        args = [sys.executable, "-m", "vgtools", *([name] if name else []), "--help"]
        seconds = []
        for _ in range(given.rounds):
            start = bench.clock()
            subprocess.run(args, stdout=subprocess.DEVNULL, check=True)
            seconds.append(bench.clock() - start)
        what = f"vg {name} --help, seconds".replace("  ", " ")
        bench.report(
            "startup",
            what,
            statistics.median(seconds),
            "<= 0.3",
            fastest=round(min(seconds), 3),
            **bench.machine(),
        )


if __name__ == "__main__":
    main()
