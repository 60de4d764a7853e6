"""The `vg` calls of shell lines: recorded without running them, parsed by the real parser, and the
files that they would write.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vgtools.io.names import manifest_path

# The shell itself expands loops, variables and pipes. What it would start is a function that does
# nothing; `vg` writes down its words. `cut` chooses settings in one recipe, and prints some.
_FUNCTIONS = """
vg() { ( IFS=$(printf '\\037'); printf '%s\\036' "$*" >> "$CALLS" ); }
cut() { echo 1_1_1; }
within() { while [ $# -gt 0 ] && [ "$1" != vg ]; do shift; done; [ $# = 0 ] || "$@"; }
sbatch() { within "$@"; }
"""
_STARTERS = ("python", "parallel", "torchrun", "timeout")
_SILENT = (
    "awk", "cat", "cp", "find", "grep", "head", "jq", "ln", "ls", "make", "mv", "pip",
    "rm", "sed", "shuf", "sort", "tac", "tail", "tee", "touch", "wc", "yes",
)  # fmt: skip

# Options that name a file to write, and commands whose -o is not a folder of a run: their outputs
# have a manifest beside them.
_WRITES = ("--output", "--images-out", "--emb", "--plot", "--png", "--noise", "--submission")
_MANIFESTS = (
    "prepare", "extract-image-feats", "build-index", "vokenize", "revokenize", "retrieve",
    "locate", "translate", "perplexity",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One call: its words, and what it writes, without what is beside the outputs."""

    words: tuple[str, ...]
    outputs: tuple[str, ...]
    manifests: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(("vg", *self.words))


def record(lines: Iterable[str], folder: Path) -> list[tuple[str, ...]]:
    """Return the words of every `vg` call that shell lines make, each once; nothing else is run.

    Args:
        lines: each a shell script by itself, as lines of a recipe are.
        folder: where they run; redirections write there.
    """
    with tempfile.NamedTemporaryFile(dir=folder) as calls:
        silent = "".join(f"{name}() {{ :; }}\n" for name in _SILENT)
        starters = "".join(f'{name}() {{ within "$@"; }}\n' for name in _STARTERS)
        script = silent + starters + _FUNCTIONS + "\n".join(f"(\n{line}\n)" for line in lines)
        subprocess.run(
            ["bash"],
            input=script.encode(),
            cwd=folder,
            env=os.environ | {"CALLS": calls.name},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            timeout=60,
        )
        found = Path(calls.name).read_text().split("\x1e")[:-1]
    return list(dict.fromkeys(tuple(call.split("\x1f")) for call in found))


def joined(script: str) -> list[str]:
    """Return the lines of a script; one that ends in a backslash is one with the next."""
    return [line for line in re.sub(r"\\\n[ \t]*", " ", script).splitlines() if line.strip()]


@functools.cache
def application() -> Any:
    """Return the parser of `vg` with all its commands."""
    import typer

    from vgtools.cli import make_app

    return typer.main.get_command(make_app())


def parse(words: Sequence[str]) -> Call:
    """Return a call as `vg` understands it.

    Raises:
        ValueError: it does not: an unknown flag or choice, a missing or superfluous argument.
    """
    command = application()
    context = None
    name = "vg"
    rest = list(words)
    try:
        while True:
            context = command.make_context(name, rest, parent=context)
            if not hasattr(command, "commands"):
                break
            name, command, rest = command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        raise ValueError(f"vg {' '.join(words)}\n    {error.format_message()}") from None
    outputs = []
    manifests = []
    for parameter in command.params:
        value = context.params.get(parameter.name)
        if not isinstance(value, str) or value == "-" or not {*parameter.opts} & {*_WRITES}:
            continue
        outputs.append(os.path.normpath(value))
        own = {*parameter.opts} & {"--output", "--images-out"}
        if own and words[0] in _MANIFESTS and command.name != "tokenizer":
            manifests.append(os.path.normpath(manifest_path(value)))
    return Call(tuple(words), tuple(outputs), tuple(manifests))


def collisions(calls: Iterable[Call]) -> list[str]:
    """Return what two calls both write: an output, or a manifest."""
    found = []
    writers: dict[str, Call] = {}
    for call in calls:
        for name in {*call.outputs, *call.manifests}:
            if writers.setdefault(name, call) is not call:
                found.append(f"{name} is written by two calls:\n    {writers[name]}\n    {call}")
        twice = [name for name in call.manifests if call.manifests.count(name) > 1]
        found += [f"{name} is the manifest of two outputs:\n    {call}" for name in {*twice}]
    return found
