"""Flags that more than one command has: one name and one meaning each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, mps; auto takes a GPU where there is one.")]
Dtype = Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16: numbers the network computes with.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Items per batch; changes results by rounding only.")]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of every random choice; recorded.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="Stop after this many rows (images, lines) of the input.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on stderr; errors stay.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never connect; a missing model is exit 69.")]
Restart = Annotated[bool, typer.Option("--restart", help="Throw an unfinished run of this output away.")]
OnError = Annotated[str, typer.Option("--on-error", help="fail: stop at the first bad item; skip: note it in X.errors.jsonl.")]
MaxErrors = Annotated[int | None, typer.Option("--max-errors", min=0, help="With skip: give up after more than this many.")]
OutputFile = Annotated[str, typer.Option("--output", "-o", help="File to write; the same command resumes it. - is stdout.")]


def choice(value: str, allowed: tuple[str, ...], flag: str) -> str:
    """Return a flag's value if it is allowed; else a usage error that lists what is."""
    if value not in allowed:
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(allowed)}", param_hint=flag)
    return value


def run_folder(output: str) -> Path:
    """Return the run directory, made if needed, refusing a place that cannot be one before any work is done."""
    from vgtools.io import DataError, Exit

    path = Path(output)
    if path.exists() and not path.is_dir():
        raise DataError("is a file; a run directory was wanted", path, code=Exit.CANNOT_CREATE)
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot be made: {error.strerror}", path, code=Exit.CANNOT_CREATE) from None
    return path
