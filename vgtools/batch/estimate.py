"""The shards, time and bytes that an output would take, measured on a sample of it.

The sample is written as a shard is, into a folder that is removed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vgtools.batch.plan import PlannedInput, ShardPlan
from vgtools.batch.shards import Attempt, ShardedOutput, ShardTask, in_whole_input
from vgtools.io.errors import DataError, file_errors
from vgtools.io.files import dumps
from vgtools.io.names import is_stream
from vgtools.io.process import Stop, in_words
from vgtools.io.streams import Piece, read_so_far

_SECONDS = 10.0  # that the last sample may take
_ENOUGH = 2.5  # less, and a larger sample follows
_FIRST = 1 << 14  # bytes of input of the first sample


class _Sample(NamedTuple):
    """A part of the output that was made."""

    share: float  # the sample's share of the whole input, by bytes
    seconds: float
    items: int
    bytes: int


def estimate(
    task: ShardTask, plan: ShardPlan, output: str, part: tuple[int, int]
) -> dict[str, Any]:
    """Return the shards, seconds and bytes that an output would take, and their sample.

    Samples grow until one takes some seconds. Each is from the middle of the input, cut as shards
    are; a file that cannot be cut is read from its start.

    Args:
        task: computes the output, in this process.
        plan: cuts the output into shards; its size means nothing where `output` is a file.
        output: the file or folder of shards.
        part: (i, n): only every n-th shard from the i-th on.

    Raises:
        DataError: an error of the task; the input is empty; or a stop was asked for (75).
    """
    sources = [source for source in plan.sources if source.bytes]
    if not sources:
        raise DataError("is empty, and nothing can be measured", plan.sources[0].path)
    size = _FIRST
    with Stop(patience=5) as stop:
        while True:
            sample = _measure(task, ShardPlan(plan.config, sources, size), output, stop)
            if sample.seconds >= _ENOUGH or size >= plan.shard_size:
                break
            # Four times as large at least: the first samples include work that is done once.
            size = min(
                plan.shard_size, size * max(4, int(_SECONDS / 2 / max(sample.seconds, 0.01)))
            )
    folder = output.endswith("/")
    made = range(part[0], len(plan), part[1])
    of_all = len(made) / len(plan) / sample.share
    return {
        "output": output,
        "shards": len(made) if folder else None,
        "seconds": float(f"{sample.seconds * of_all:.3g}"),
        "bytes": round(sample.bytes * of_all),
        "sample": {
            "share": float(f"{sample.share:.3g}"),
            "items": sample.items,
            "seconds": round(sample.seconds, 2),
            "bytes": sample.bytes,
        },
        "device": str(task.config.get("device", "cpu")),
    }


def _measure(task: ShardTask, plan: ShardPlan, output: str, stop: Stop) -> _Sample:
    """Make the middle shard of a plan, in a folder that is removed."""
    number = len(plan) // 2
    pieces = plan.pieces(number)
    name = "X.jsonl" if is_stream(output) else os.path.basename(output.rstrip("/"))
    with file_errors(tempfile.gettempdir(), reading=False):
        temporary = tempfile.TemporaryDirectory(prefix="vg-dry-run-")
    share = _share(plan, pieces)
    items = 0
    with temporary as root:
        folder = Path(root, name)
        folder.mkdir()
        opened = partial(Attempt, ShardedOutput(str(folder), plan), number)
        start = time.monotonic()
        with (
            in_whole_input(pieces),
            task.open(str(folder), opened) as out,
            contextlib.closing(task.steps(pieces, out)) as steps,
        ):
            for count in steps:
                stop.check()
                items += count
                late = time.monotonic() - start > _SECONDS
                if late and (read := _share_done(plan, pieces, out.state.get("rows", 0))):
                    share = read
                    break
            seconds = time.monotonic() - start
            made = folder.iterdir()
            written = sum(file.stat().st_size for file in made if file.suffix != ".json")
    return _Sample(share, seconds, items, written)


def _sources(plan: ShardPlan, pieces: Sequence[Piece]) -> list[tuple[Piece, PlannedInput]]:
    of_path = {source.path: source for source in plan.sources}
    return [(piece, of_path[piece.path]) for piece in pieces]


def _share(plan: ShardPlan, pieces: Sequence[Piece]) -> float:
    """Return the share of the whole input that pieces are, by bytes."""
    found = 0.0
    for piece, source in _sources(plan, pieces):
        stop = source.units if piece.stop is None else piece.stop
        found += source.bytes * (stop - piece.start) / source.units
    return found / sum(source.bytes for source in plan.sources)


def _share_done(plan: ShardPlan, pieces: Sequence[Piece], rows: int) -> float:
    """Return the share of the input that is done of a file that is not cut; 0 if not known."""
    (piece, source), *others = _sources(plan, pieces)
    read = read_so_far([piece.path]) if source.unit == "whole" and not others else None
    if read is None:
        return 0.0
    share, lines = read
    # Lines are read ahead; those that are read have as many bytes as the rest.
    done = share * rows / lines if lines else share
    return done * source.bytes / sum(one.bytes for one in plan.sources)


def show(found: dict[str, Any], unit: str) -> None:
    """Print an estimate: lines on a terminal, elsewhere an object of JSON."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(dumps(found))
        return
    from rich.filesize import decimal

    sample = found["sample"]
    items = f"{sample['items']:,} {unit}, " if sample["items"] else ""
    percent = f"{100 * sample['share']:.2g} percent of the input"
    rows = [
        ("shards", found["shards"] and f"{found['shards']:,}"),
        ("time", f"{in_words(found['seconds'])} in one process on {found['device']}"),
        ("size", decimal(found["bytes"])),
        ("measured", f"{items}{percent}, in {sample['seconds']:.1f} s"),
    ]
    print(f"{found['output']} would take")
    for name, value in rows:
        if value:
            print(f"  {name:<10} {value}")
