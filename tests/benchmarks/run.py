"""Run the benchmarks and print the table of targets and results (`make bench`).

Rows go to stdout as jsonl, the table to stderr.

    python tests/benchmarks/run.py [NAME …] [--text FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def main() -> None:
    names = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("run", "bench"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"some of {', '.join(names)}; none is all")
    parser.add_argument("--text", help="a text to measure on; an invented one otherwise")
    given = parser.parse_args()
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
    table(rows)
    for name in failed:
        print(f"tests/benchmarks/{name}.py failed", file=sys.stderr)
    sys.exit(bool(failed))


def table(rows: list[dict[str, Any]]) -> None:
    """Print targets beside results; a bare number is a least value."""
    lines = [("benchmark", "what", "target", "result", "")]
    for row in rows:
        value = row.get("value", row.get("ratio"))
        target = row["target"] if isinstance(row["target"], str) else f">= {row['target']}"
        sign, wanted = target.split()
        met = value >= float(wanted) if sign == ">=" else value <= float(wanted)
        lines.append(
            (row["benchmark"], row["what"], target, str(value), "met" if met else "MISSED")
        )
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    for line in lines:
        print(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip(),
            file=sys.stderr,
        )


if __name__ == "__main__":
    main()
