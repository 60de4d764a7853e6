"""Run rows of the table; see the package."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.examples import make
from tests.examples.table import ROWS, Row


def chosen(words: Iterable[str]) -> list[Row]:
    """Return the rows one of whose names has one of the words in it; all for no words."""
    words = list(words)
    return [row for row in ROWS if not words or any(word in row.name for word in words)]


def report(row: Row, outcome: make.Outcome, verbose: bool) -> None:
    """Print a line about a row, and what is wrong."""
    code = "-" if outcome.code is None else outcome.code
    state = "ok  " if not outcome.faults else "left" if outcome.code is None else "FAIL"
    print(f"{state} {outcome.seconds:6.1f} s {outcome.files:5} files  exit {code}  {row.name}")
    for fault in outcome.faults:
        print(f"       {fault}")
    if verbose or (outcome.faults and outcome.code == 0):
        print("".join(f"     | {line}\n" for line in outcome.out.splitlines()), end="")
    sys.stdout.flush()


def main() -> int:
    """Run what the command line says; return 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.examples", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of EXAMPLE:SCALE:TARGETS")
    parser.add_argument("--list", action="store_true", help="print the rows, run none")
    parser.add_argument("--jobs", "-j", type=int, default=2, help="folders at once [2]")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work there, and leave it")
    parser.add_argument("--fresh", action="store_true", help="every command imports torch itself")
    parser.add_argument("--verbose", "-v", action="store_true", help="print what targets print")
    options = parser.parse_args()
    rows = chosen(options.words)
    if options.list or not rows:
        print("\n".join(row.name for row in rows) or "no row has such a name")
        return 0 if rows else 2
    failed = []
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        base = (options.keep or Path(scratch)).absolute()
        places = make.Places(base / "files")
        vg = f"{sys.executable} -m vgtools"
        if not options.fresh:
            vg = stack.enter_context(make.preloaded(Path(scratch)))

        def follow(place: str) -> None:
            for row in (row for row in rows if row.place == place):
                outcome = make.run(row, base / place, places, vg)
                report(row, outcome, options.verbose)
                if outcome.faults and outcome.code is not None:
                    failed.append(row.name)

        for row in rows:  # before threads would make them twice
            make.variables(row, places)
        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(follow, dict.fromkeys(row.place for row in rows)))
    print(f"{len(rows)} rows, {len(failed)} failed" + "".join(f"\n  {name}" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
