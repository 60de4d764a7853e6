"""Call make on a row of the table: what it would print, and what it does."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.examples import server
from tests.examples.table import FILES, TOY, Row
from tests.tiny import hub, official

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.parent.name for path in (ROOT / "examples").glob("*/Makefile"))
SCALES = ("small", "paper")


class Places(dict[str, str]):
    """Paths of invented files by their names in the table; a file is made when it is asked for.

    Args:
        folder: where they are made.
        networks: make networks and what they make, too, not only empty files of their names.
    """

    def __init__(self, folder: Path, networks: bool = True) -> None:
        super().__init__()
        self.folder = folder
        self.networks = networks

    def __missing__(self, name: str) -> str:
        place, make = official.MADE.get(name) or hub.MADE[name]
        path = self.folder / place
        self.folder.mkdir(parents=True, exist_ok=True)
        if (name in official.MADE or self.networks) and not path.exists():
            make(path)
        self[name] = str(path)
        return self[name]


def variables(row: Row, places: Places, toy: bool = True) -> list[str]:
    """Return NAME=VALUE of a row; later ones take precedence."""
    keys = (row.example, f"{row.example}:{row.scale}")
    texts = [FILES.get(key, "") for key in keys] + [row.files]
    if toy:
        texts += [*(TOY.get(key, "") for key in keys), row.toy]
    found = {"SCALE": row.scale} if row.scale else {}
    for text in texts:
        for word in shlex.split(text):
            name, value = word.split("=", 1)
            found[name] = value.format_map(places)
    return [f"{name}={value}" for name, value in found.items()]


def makefile(example: str) -> str:
    """Return the path of a Makefile, which works in whatever folder make is called in."""
    return str(ROOT / "examples" / example / "Makefile")


def phony(example: str, scale: str) -> set[str]:
    """Return the targets of an example that are not files."""
    command = ["make", "-pqRr", "-f", makefile(example), f"SCALE={scale}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(".PHONY:")]
    return {name for line in lines for name in line.split()[1:]}


def recipes(
    example: str, targets: Iterable[str], given: Iterable[str], folder: Path
) -> tuple[str, set[str]]:
    """Return what make would run, line by line, and the files that it knows no way to.

    Args:
        example: the folder of the Makefile.
        targets: what is made.
        given: NAME=VALUE.
        folder: where it would run.
    """
    command = ["make", "-nk", "-f", makefile(example), "VG=vg", "PYTHON=python", *targets, *given]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    missing = {*re.findall(r"No rule to make target '(.*?)'", done.stderr)}
    return done.stdout, missing


@dataclass(frozen=True)
class Outcome:
    """What a row did.

    Args:
        code: exit code of make; None: left out.
        seconds: of the wall clock.
        files: how many it made.
        out: what it printed.
        faults: the end of its messages if it failed, and what it does not show.
    """

    code: int | None
    seconds: float = 0.0
    files: int = 0
    out: str = ""
    faults: tuple[str, ...] = ()


def lacks(row: Row) -> bool:
    """Return whether a row needs a program or package that is not installed."""
    return bool(row.needs) and not shutil.which(row.needs) and find_spec(row.needs) is None


@contextlib.contextmanager
def preloaded(scratch: Path) -> Iterator[str]:
    """Yield a `vg` whose commands are forked from a process that has imported torch."""
    address = str(scratch / "server")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        code = "import socket; from tests.examples import server; "
        code += f"server.serve(socket.socket(fileno={listener.fileno()}))"
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment(), pass_fds=[listener.fileno()]
        )
    try:
        yield f"{sys.executable} -I -S {server.__file__} {address}"
    finally:
        process.kill()
        process.wait()


def environment() -> dict[str, str]:
    """Return the environment of all commands: one thread each, no hub, vgtools of this tree."""
    # What `make examples` itself was called with is not meant for the makes that it calls.
    given = {k: v for k, v in os.environ.items() if k != "EXAMPLES" and not k.startswith("MAKE")}
    given.pop("MFLAGS", None)
    more = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return given | more | {"PYTHONPATH": str(ROOT)}


def run(row: Row, folder: Path, places: Places, vg: str) -> Outcome:
    """Make the targets of a row in a folder, where earlier rows may have made others."""
    if lacks(row):
        return Outcome(None, faults=(f"left out: {row.needs} is not installed",))
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        "make", "-s", "-f", makefile(row.example), f"VG={vg}", f"PYTHON={sys.executable}",
        *row.targets.split(), *variables(row, places),
    ]  # fmt: skip
    before = count(folder)
    start = time.monotonic()
    with open(folder / "messages.log", "a+") as messages:
        earlier = messages.tell()
        done = subprocess.run(
            command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=messages,
            stdin=subprocess.DEVNULL, text=True, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - start
        messages.seek(earlier)
        said = messages.read()
    faults = []
    if done.returncode:
        faults += said.strip().splitlines()[-5:]
    else:
        shown = filter(None, row.shows.split("|"))
        faults += [f"does not show {part!r}" for part in shown if not re.search(part, done.stdout)]
        faults += [fault for word in row.makes.split() for fault in lacking(word, folder)]
    return Outcome(done.returncode, seconds, count(folder) - before, done.stdout, tuple(faults))


def lacking(word: str, folder: Path) -> list[str]:
    """Return why a file of `Row.makes` is not as the row expects it."""
    name, _, pattern = word.partition(":")
    found = [path.read_bytes() for path in folder.glob(name)]
    if not found or not all(found):
        return [f"makes no {name}, or an empty one"]
    holds = any(re.search(pattern.encode(), content, re.MULTILINE) for content in found)
    return [] if holds else [f"{name} does not hold {pattern!r}"]


def count(folder: Path) -> int:
    """Return the number of files in a folder."""
    return sum(len(names) for _, _, names in os.walk(folder))
