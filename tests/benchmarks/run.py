"""Run the benchmarks and print the table of targets and results (`make bench`).

Rows go to stdout as jsonl, the table to stderr. Next to each result is the earlier one of the same
kind of machine in `earlier.json`, which --keep updates. A row in seconds of a clock on the wall
says nothing if other processes were running: such rows are named.

    python tests/benchmarks/run.py [NAME …] [--text FILE] [--keep]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bench

HERE = Path(__file__).parent
APART = ("bench", "gpu", "growth", "run")  # not benchmarks, or with a target of their own
EARLIER = HERE / "earlier.json"  # kind of machine -> benchmark and row -> result
_BUSY = 0.5  # load of others, in cores, from which a clock on the wall says nothing


def main() -> None:
    names = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in APART)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(names)}; none is all")
    parser.add_argument("--text", help="a text to measure on; an invented one otherwise")
    parser.add_argument("--keep", action="store_true", help="store results in earlier.json")
    given = parser.parse_args()
    others = os.getloadavg()[0]  # before any benchmark
    environment = os.environ | (
        {"VG_BENCH_TEXT": os.path.abspath(given.text)} if given.text else {}
    )
    rows, failed = list[dict[str, Any]](), list[str]()
    for name in given.names or names:
        process = subprocess.Popen(
            [sys.executable, HERE / f"{name}.py"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            row = json.loads(line)
            if "target" in row:
                rows.append({"benchmark": name, **row})
        if process.wait():
            failed.append(name)
    earlier = json.loads(EARLIER.read_text()) if EARLIER.exists() else {}
    table(rows, earlier.setdefault(machine_kind(), {}), others)
    if given.keep:
        earlier[machine_kind()] |= {_name(row): _value(row) for row in rows}
        EARLIER.write_text(json.dumps(earlier, indent=1, sort_keys=True) + "\n")
    for name in failed:
        print(f"tests/benchmarks/{name}.py failed", file=sys.stderr)
    sys.exit(bool(failed))


def machine_kind() -> str:
    """Return what figures are compared within: the processor, and its vector instructions."""
    import torch

    return f"{bench.machine()['machine']}, {torch.backends.cpu.get_cpu_capability()}"


def _name(row: dict[str, Any]) -> str:
    return f"{row['benchmark']}: {row['what']}"


def _value(row: dict[str, Any]) -> float:
    found: float = row.get("value", row.get("ratio"))
    return found


def table(rows: list[dict[str, Any]], earlier: dict[str, float], others: float) -> None:
    """Print targets and earlier results next to results; a bare number is a least value."""
    lines = [("benchmark", "what", "target", "earlier", "result", "")]
    for row in rows:
        target = row["target"] if isinstance(row["target"], str) else f">= {row['target']}"
        sign, wanted = target.split()
        value = _value(row)
        met = value >= float(wanted) if sign == ">=" else value <= float(wanted)
        said = "met" if met else "MISSED"
        if others > _BUSY and row.get("clock") != "cpu":
            said = f"meaningless: by the wall's clock, at a load of {others:.1f}"
        before = str(earlier.get(_name(row), ""))
        lines.append((row["benchmark"], row["what"], target, before, str(value), said))
    widths = [max(len(line[i]) for line in lines) for i in range(6)]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(),
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
