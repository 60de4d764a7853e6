"""Runs what a command computes: into one file, or into the shards of a folder."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from vgtools import io
from vgtools.batch.plan import Source, text_source
from vgtools.batch.shards import ShardedOutput, Task, open_folder
from vgtools.io import DataError, Exit, Piece
from vgtools.io.errors import amount
from vgtools.io.output import Output

CPU_SHARD = 4 << 20  # bytes of text that take a CPU, or a GPU, some minutes at most
GPU_SHARD = 256 << 20


def part_of(shard: str | None) -> tuple[int, int]:
    """Return (I, N) of `I/N`; of none the one part of one.

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


ROWS = (".jsonl", ".jsonl.gz", ".jsonl.zst")  # endings of outputs


def check_target(
    inputs: Sequence[str],
    output: str,
    shard: str | None,
    size: int | None,
    *,
    forms: Sequence[str] = ROWS,
    **excluded: bool,
) -> None:
    """Refuse flags that do not go with a folder of shards, or that need one.

    Args:
        inputs: of the command.
        output: of the command.
        shard: as `--shard`.
        size: as `--shard-size`.
        forms: endings that the folder's name may have.
        **excluded: flags by name, and whether each is given, that shards do not have.

    Raises:
        DataError: a pipe, or a flag that does not go with the others (usage).
    """

    def refuse(wrong: bool, why: str) -> None:
        if wrong:
            raise DataError(why, code=Exit.USAGE)

    part_of(shard)
    if not output.endswith("/"):
        flag = "--shard" if shard is not None else "--shard-size"
        given = shard is not None or size is not None
        refuse(given, f"{flag} needs a folder of shards: -o X.jsonl/, got -o {output}")
        return
    expected = ", ".join(f"X{form}/" for form in forms)
    named = os.path.basename(output.rstrip("/")).partition(".")
    wrong = not named[0] or not output.rstrip("/").endswith(tuple(forms))
    refuse(wrong, f"-o {output}: a folder of shards is named as its file, expected {expected}")
    piped = next((name for name in inputs if io.is_unnamed(name)), "")
    why = f"{io.name_of(piped)} cannot be cut into shards; write it to a file and name that"
    refuse(bool(piped), why)
    for flag, given in excluded.items():
        name = flag.replace("_", "-")
        refuse(given, f"--{name} does not go with a folder of shards, -o {output}")


def write(
    task: Task,
    texts: Sequence[str],
    output: str,
    *,
    name: str,
    unit: str,
    inputs: io.Inputs | Sequence[str],
    restart: bool = False,
    shard: str | None = None,
    shard_size: int | None = None,
    default_size: int = CPU_SHARD,
    cut: Callable[[str], Source] = text_source,
    total: int | None = None,
    say: Callable[[str], None] = print,
    quiet: bool = False,
) -> Counter[str] | None:
    """Write what a task makes of texts, into a file or, if its name ends in `/`, into shards.

    Args:
        task: does it.
        texts: what it is done to, one after the other.
        output: the file or folder.
        name: of the command, for the progress.
        unit: what its steps count.
        inputs: all files that are read, for the manifest of a single file.
        restart: start over.
        shard: as `--shard`.
        shard_size: as `--shard-size`.
        default_size: bytes per shard of a new folder without it.
        cut: says what an input can be cut by.
        total: items that there are, if known.
        say: prints a message.
        quiet: no progress.

    Returns:
        The counts of what was written; None if there was nothing to do, or is more to do.
    """
    if output.endswith("/"):
        sources = [cut(text) for text in texts]
        shards = open_folder(output, task.config, sources, shard_size, default_size, restart)
        return run(shards, task, part_of(shard), name=name, say=say, quiet=quiet)
    pieces = [Piece(text) for text in texts]
    opened = partial(Output, inputs=inputs, restart=restart)
    with task.open(output, opened) as out, io.Progress(name, unit, total, quiet) as bar:
        if out.complete:
            say(f"{output} is up to date")
            return None
        with closing(task.steps(pieces, out)) as steps:
            for count in steps:
                bar.advance(count)
        return Counter(out.state.get("counts", {}))


def run(
    shards: ShardedOutput,
    task: Task,
    part: tuple[int, int] = (0, 1),
    *,
    name: str,
    say: Callable[[str], None] = print,
    quiet: bool = False,
) -> Counter[str] | None:
    """Make the shards that are missing, and complete the folder once none is.

    Here the same shards are run elsewhere: whatever calls a worker, `shards.worker(task)`, for each
    of `shards.missing(part)` may take the place of the loop.

    Args:
        shards: the output.
        task: makes shards, in this process.
        part: (i, n): make only every n-th shard from the i-th on.
        name: of the command, for the progress.
        say: prints a message.
        quiet: no progress.

    Returns:
        The counts of the folder's manifest; None if there was nothing to do, or shards of other
        parts are missing.

    Raises:
        DataError: of a shard, with the line of the whole input; or a stop was asked for (75).
    """
    if shards.is_complete():
        shards.finish()  # removes the lock of one that was killed
        say(f"{shards.folder}/ is up to date")
        return None
    total = len(range(part[0], len(shards.plan), part[1]))
    with io.Stop(patience=5) as stop, io.Progress(name, "shards", total, quiet) as bar:
        make = shards.worker(task, stop.check)
        for number in shards.missing(part):
            stop.check()
            make(number)
            bar.advance(1)
        stop.check()
    missing = sum(1 for _ in shards.missing())
    if missing:
        others = amount(missing, "shard")
        say(f"part {part[0]}/{part[1]} is done; {others} of {len(shards.plan)} are missing")
        return None
    manifest = shards.finish()
    makers = manifest["made_by"]
    if len(makers) > 1:
        say(f"shards were made by {len(makers)} kinds of devices or versions: see {shards.folder}")
    return Counter({name: count for name, count in manifest.items() if type(count) is int})
