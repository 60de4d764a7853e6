"""Word vectors from text: values per second and memory, against Python's float() for each value.

python tests/benchmarks/words.py [--words 30000] [--dim 300] [--rounds 3]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import bench
import numpy as np

from vgtools.text.vector_files import VectorFile

_PEAK = """
import sys
from pathlib import Path
from vgtools.text.vector_files import pack_vectors

def peak():  # not getrusage: a child starts with the peak of its parent
    line, = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return 1024 * int(line.split()[1])

before = peak()
pack_vectors(sys.argv[1], sys.argv[2])
print(peak() - before)
"""


def by_float(path: Path) -> np.ndarray:
    with path.open() as lines:
        rows = [[float(cell) for cell in line.split(" ")[1:]] for line in lines]
    return np.array(rows, np.float32)


def by_blocks(path: Path) -> np.ndarray:
    return np.concatenate([block.vectors for block in VectorFile(str(path)).blocks()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=30_000)
    parser.add_argument("--dim", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.vec")
        with path.open("w") as file:
            for number in range(given.words):
                row = rng.standard_normal(given.dim) / 5
                file.write(f"word{number} {' '.join(f'{value:.4f}' for value in row)}\n")
        seconds = bench.in_turns(
            {"ours": lambda: by_blocks(path), "float": lambda: by_float(path)}, given.rounds
        )
        facts = {"words": given.words, "dim": given.dim, **bench.machine()}
        bench.report(
            "words",
            "speed, to float() per value",
            seconds["float"] / seconds["ours"],
            ">= 2",
            **facts,
        )
        bench.report("words", "MB/s of text", path.stat().st_size / seconds["ours"] / 1e6, **facts)
        out = Path(folder, "x.npy")
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, path, out], capture_output=True, text=True, check=True
        )
        ratio = int(done.stdout) / out.stat().st_size
        bench.report("words", "peak memory added, to the array", ratio, "<= 1.2", **facts)
        same = (np.load(out) == by_float(path)).all()
        bench.report("words", "vectors equal to float()", float(same), ">= 1", **facts)


if __name__ == "__main__":
    main()
