"""Runs a command's task: into one file, or into the shards of a folder."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

from vgtools.batch import cluster, estimate
from vgtools.batch.plan import PlannedInput, text_source
from vgtools.batch.shards import (
    Record,
    ShardedOutput,
    ShardTask,
    open_folder,
    plan_without_writing,
)
from vgtools.io import trust
from vgtools.io.errors import DataError, Exit, amount, name_of
from vgtools.io.folders import Shards
from vgtools.io.inputs import Inputs
from vgtools.io.names import is_unnamed, refuse_columns
from vgtools.io.output import Output
from vgtools.io.process import Progress, Stop, note
from vgtools.io.streams import Piece, read_so_far

CPU_SHARD = 4 << 20  # bytes of text that take a CPU, or a GPU, some minutes at most
GPU_SHARD = 256 << 20
ROWS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")  # endings of outputs


def part_of(shard: str | None) -> tuple[int, int]:
    """Return (I, N) of `I/N`; without it, the only part of one.

    Raises:
        DataError: it is not two numbers, or I is not from 0 to N - 1 (usage).
    """
    if shard is None:
        return 0, 1
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", shard)
    if found is None or int(found[1]) >= int(found[2]):
        why = f"--shard {shard}: expected I/N with I from 0 to N-1, for example 0/4"
        raise DataError(why, code=Exit.USAGE)
    return int(found[1]), int(found[2])


class Cluster(NamedTuple):
    """Where shards are made that are not made here."""

    address: str  # as `--ray`
    workers: int | None  # as `--workers`
    gpu: bool  # each worker has one
    make: Callable[[], ShardTask]  # makes the task, in the process of a worker; pickled


class BatchTarget(Protocol):
    """Where a command writes, and how: its flags."""

    @property
    def output(self) -> str:
        """A file, or a folder of shards if it ends in `/`."""

    @property
    def restart(self) -> bool:
        """Whether to start over."""

    @property
    def shard(self) -> str | None:
        """I/N: the part of the shards to make."""

    @property
    def shard_size(self) -> int | None:
        """Bytes of input per shard."""

    @property
    def ray(self) -> str | None:
        """The address of the Ray cluster that makes them."""

    @property
    def dry_run(self) -> bool:
        """Whether to print an estimate, and write nothing."""


def check_target(
    inputs: Sequence[str],
    target: BatchTarget,
    workers: int | None = None,
    forms: Sequence[str] = ROWS,
    **excluded: bool,
) -> None:
    """Refuse flags that do not go with shards, or that need them.

    Args:
        inputs: the command's inputs.
        target: the command's target.
        workers: as `--workers`.
        forms: endings that the name of shards may have.
        **excluded: flags by name, and whether each is given, that shards do not have.

    Raises:
        DataError: a pipe, or a flag that does not go with the others (usage).
    """
    output = target.output
    shard = target.shard
    ray = target.ray

    def refuse(wrong: bool, why: str) -> None:
        if wrong:
            raise DataError(why, code=Exit.USAGE)

    part_of(shard)
    refuse(workers is not None and ray is None, "--workers belongs to --ray")
    if ray is not None:
        refuse(shard is not None, "--shard and --ray are two ways to make the same shards")
        alone = not output.endswith("/")
        refuse(alone, f"--ray writes a folder of shards: -o X{forms[0]}/, got -o {output}")
        refuse(target.dry_run, "--dry-run measures one process here; leave --ray out")
    elif not output.endswith("/"):
        flag = "--shard" if shard is not None else "--shard-size"
        given = shard is not None or target.shard_size is not None
        refuse(given, f"{flag} needs a folder of shards: -o X.jsonl/, got -o {output}")
        if not target.dry_run:
            return
    if output.endswith("/"):
        refuse_columns(output)
        expected = ", ".join(f"X{form}/" for form in forms)
        named = os.path.basename(output.rstrip("/")).partition(".")
        wrong = not named[0] or not output.rstrip("/").endswith(tuple(forms))
        refuse(wrong, f"-o {output}: a folder of shards is named as its file, expected {expected}")
    piped = next((name for name in inputs if is_unnamed(name)), "")
    cut = "cut into a sample" if target.dry_run else "cut into shards"
    why = f"{name_of(piped)} cannot be {cut}; write it to a file and name that"
    refuse(bool(piped), why)
    by = "--dry-run" if target.dry_run else f"shards, {'--ray' if ray else '-o ' + output}"
    for flag, given in excluded.items():
        refuse(given, f"--{flag.replace('_', '-')} does not go with {by}")


def write(
    task: ShardTask,
    texts: Sequence[str],
    target: BatchTarget,
    *,
    name: str,
    unit: str,
    inputs: Inputs | Sequence[str],
    default_size: int = CPU_SHARD,
    cut: Callable[[str], PlannedInput] = text_source,
    total: int | None = None,
    make: Callable[[], ShardTask],
    workers: int | None = None,
    gpu: bool = False,
) -> Counter[str] | None:
    """Write the output of a task, into a file or, if its name ends in `/`, into shards.

    Args:
        task: computes the output.
        texts: its inputs, one after the other.
        target: where the output is written, and by whom.
        name: the command's name, for its messages.
        unit: the items that its steps count.
        inputs: all files that are read, for the manifest of a single file.
        default_size: bytes per shard of a new folder, where the target has none.
        cut: path -> the input with the unit by which it can be cut.
        total: items that there are, if known.
        make: makes the task again, in the process of a cluster's worker; pickled.
        workers: the most that a cluster gives.
        gpu: each of them has one.

    Returns:
        The counts of the output; None if there was nothing to do, or is more to do.
    """
    output = target.output
    part = part_of(target.shard)
    sizes = (target.shard_size, default_size)
    if target.dry_run:
        plan = plan_without_writing(output, task.config, [*map(cut, texts)], *sizes)
        estimate.show(estimate.estimate(task, plan, output, part), unit)
        return None
    if output.endswith("/"):
        where = None if target.ray is None else Cluster(target.ray, workers, gpu, make)
        sources = [cut(text) for text in texts]
        read = inputs.paths if isinstance(inputs, Inputs) else inputs
        shards = open_folder(output, task.config, sources, *sizes, target.restart, read)
        return run(shards, task, part, name=name, where=where)
    pieces = [Piece(text) for text in texts]
    opened = partial(Output, inputs=inputs, restart=target.restart)
    with task.open(output, opened) as out, Progress(name, unit, total) as bar:
        if out.complete:
            note(name, f"{output} is up to date")
            return None
        bar.growth = _growth(texts, out, task.config.get("limit"))
        # Closed even after an error, so that the threads of the steps end before the output closes.
        with contextlib.closing(task.steps(pieces, out)) as steps:
            for count in steps:
                bar.advance(count)
        return Counter(out.state.get("counts", {}))


def _growth(texts: Sequence[str], out: Any, limit: int | None) -> Callable[[], float | None]:
    """Return how a progress finds the lines that are left: `Progress`, `growth`."""
    before: int = out.state.get("rows", 0)

    def growth() -> float | None:
        done: int = out.state.get("rows", 0)
        found = read_so_far(texts)
        if found is None or not found[0] or done <= before:
            return None
        # Lines are read ahead; those that are read have as many bytes as the rest.
        lines = found[1] / found[0]
        return (min(lines, limit or lines) - before) / (done - before)

    return growth


def run(
    shards: ShardedOutput,
    task: ShardTask,
    part: tuple[int, int] = (0, 1),
    *,
    name: str,
    where: Cluster | None = None,
) -> Counter[str] | None:
    """Make the shards that are missing, and complete the folder once none is.

    In a complete folder all hashes are compared, and damaged shards are made again.

    Args:
        shards: the output.
        task: makes shards, in this process.
        part: (i, n): make only every n-th shard from the i-th on.
        name: the command's name, for its messages.
        where: makes them, instead of this process.

    Returns:
        The counts of the folder's manifest; None if there was nothing to do, or shards of other
        parts are missing.

    Raises:
        DataError: a shard's error, with the line of the whole input; or a stop was asked for (75).
    """
    if shards.is_complete():
        damaged = shards.set_damaged_aside(part)
        if damaged:
            again = f"making {amount(damaged, 'damaged shard')} again; the old files are *.damaged"
            note(name, f"{shards.folder}/: {again}")
        # A complete folder may still hold files of killed tries, which `finish` removes.
        elif not shards.finish():
            note(name, f"{shards.folder}/ is up to date")
            return None
    if where is None:
        total = len(range(part[0], len(shards.plan), part[1]))
        records = _here(shards, task, part)
    else:
        todo = [*shards.missing()]
        total = len(todo)
        make = _Make(shards, where.make)
        records = cluster.run(make, todo, where.address, where.workers, where.gpu)
    with contextlib.closing(records), Progress(name, "shards", total) as bar:
        for _ in records:
            bar.advance(1)
    missing = shards.finish()
    if missing:
        others = amount(missing, "shard")
        note(name, f"part {part[0]}/{part[1]} is done; {others} of {len(shards.plan)} are missing")
        return None
    manifest = Shards(shards.folder).manifest
    makers = manifest["made_by"]
    if len(makers) > 1:
        note(
            name,
            f"shards were made by {len(makers)} kinds of devices or versions: see {shards.folder}",
        )
    return Counter({name: count for name, count in manifest.items() if type(count) is int})


def _here(
    shards: ShardedOutput, task: ShardTask, part: tuple[int, int]
) -> Generator[Record, None, None]:
    """Make the shards of a part in this process."""
    with Stop(patience=5) as stop:
        make = shards.worker(task, stop.check)
        for number in shards.missing(part):
            stop.check()
            yield make(number)
        stop.check()


@dataclass(frozen=True)
class _Make:
    """Makes the function that makes shards, in the process of a worker."""

    shards: ShardedOutput
    task: Callable[[], ShardTask]
    hashes: Mapping[tuple[int, ...], str] = field(default_factory=lambda: dict(trust.hashes))

    def __call__(self) -> Callable[[int], Record]:
        # The driver has hashed the inputs; each worker would have to read all of them again.
        trust.hashes.update(self.hashes)
        return self.shards.worker(self.task())
