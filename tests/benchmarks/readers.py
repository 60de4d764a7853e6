"""Rows of a Parquet file against the same rows as JSON lines: texts, captions, lists of images.

A ratio is of processor time, the median of rounds of which each reads both.

    python tests/benchmarks/readers.py [--rows 150000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench
import pyarrow as pa
from pyarrow import parquet

from vgtools.images.sources import Images
from vgtools.io.files import dumps
from vgtools.io.streams import read_jsonl, read_windows


def _texts(path: str) -> int:
    return sum(len(window.texts()) for window in read_windows(path, 4096))


def _captions(path: str) -> int:
    return sum(1 for _ in read_jsonl(path, {"image": str, "text": str}))


def _images(path: str) -> None:
    Images([path])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=150_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    texts = bench.sentences(None, given.rows)
    ids = [f"{number:08d}.jpg" for number in range(given.rows)]
    captions = [{"image": ids[n // 5], "text": text} for n, text in enumerate(texts)]
    images = [{"image": image, "path": f"photos/{image}", "license": "CC0"} for image in ids]
    ways: dict[str, tuple[list[dict[str, str]], Callable[[str], Any]]] = {
        "texts": (captions, _texts),
        "captions": (captions, _captions),
        "lists of images": (images, _images),
    }
    with tempfile.TemporaryDirectory() as folder:
        for what, (rows, read) in ways.items():
            paths = [str(Path(folder, f"x.{end}")) for end in ("jsonl", "parquet")]
            Path(paths[0]).write_bytes(b"".join(map(dumps, rows)))
            parquet.write_table(pa.Table.from_pylist(rows), paths[1])
            took = bench.in_turns({path: partial(read, path) for path in paths}, given.rounds)
            ratio = took[paths[1]] / took[paths[0]]
            facts = {"rows": given.rows, **bench.machine()}
            bench.report("readers", f"{what}, Parquet to JSON lines", ratio, "<= 1.2", **facts)


if __name__ == "__main__":
    main()
