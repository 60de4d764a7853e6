"""Completion of names that no shell knows: tasks, models of packages, finished runs.

Where nothing fits, the shell completes names of files.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO

SHELL = "_VG_COMPLETE"  # the variable by which a shell asks
# The parameters that take a name of `builtin:`. `tests/commands/test_completion.py` keeps it whole.
_BUILTINS = {
    "builtin:minilm": ("encoder", "model", "names", "refs", "teacher", "tokenizer", "words"),
    "builtin:clip-bpe": ("tokenizer",),
    **{f"builtin:efficientnet-lite{i}": ("backbone",) for i in range(3)},
    "builtin:emoji": ("images", "index", "matcher"),
    "builtin:spacy-sm": ("tagger",),
    "builtin:glove-50d": ("vectors", "words"),
}
_RUNS = ("baseline", "encoder", "matcher", "model", "names", "refs", "run", "runs", "teacher")

Completer = Callable[..., list[str]]


def completer(name: str, metavar: str | None) -> Completer | None:
    """Return the completion of a parameter, by its name and metavar; None: the shell's own.

    typer keeps the names that start as typed.
    """
    if metavar == "TASK":
        return _tasks
    names = [builtin for builtin, parameters in _BUILTINS.items() if name in parameters]
    if not names and name not in _RUNS:
        return None

    def complete(incomplete: str) -> list[str]:
        # Without a letter typed, the names of packages would hide the user's files.
        found = names if incomplete else []
        return [*found, *(_runs(incomplete) if name in _RUNS else [])]

    return complete


def _tasks() -> list[str]:
    from vgtools.tasks.table import TASKS

    return sorted(task.name for task in TASKS)


def _runs(typed: str) -> list[str]:
    """Return the folders that start as typed and hold a finished run."""
    found = glob.glob(f"{glob.escape(typed)}*/run.json")
    return sorted(map(os.path.dirname, found))


@contextmanager
def completing(environment: MutableMapping[str, str]) -> Iterator[list[str]]:
    """Give the words that are typed so far, where a shell asks for the rest of the last.

    Bash breaks words at colons. They are joined for typer, and its answers are cut to their last
    part, which is all that bash replaces.
    """
    if environment.get(SHELL) != "complete_bash":
        yield environment.get("_TYPER_COMPLETE_ARGS", "").split()
        return
    at = int(environment["COMP_CWORD"])
    words = list[str]()
    place = -1
    cut = 0
    for number, word in enumerate(environment["COMP_WORDS"].split()):
        if words and (word.startswith(":") or words[-1].endswith(":")):
            words[-1] += word
        else:
            words.append(word)
        if number == at:
            place = len(words) - 1
            cut = words[-1].rfind(":") + 1
    environment["COMP_WORDS"] = " ".join(words)
    environment["COMP_CWORD"] = str(len(words) if place < 0 else place)
    told = StringIO()
    try:
        with redirect_stdout(told):
            yield words
    finally:
        print("".join(line[cut:] for line in told.getvalue().splitlines(True)), end="")
