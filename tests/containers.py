"""Run the steps of the Containerfile in a folder, where no container can be built.

    python -m tests.containers FOLDER [NAME=VALUE …] [-- COMMAND …]

Paths of the container are below FOLDER, NAME=VALUE replaces an ARG, and COMMAND goes to the entry
point, for example `vokenize t.txt --index builtin:emoji`. The base image is a virtual environment
of this Python. Packages are really installed: some gigabytes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("/opt", "/src", "/work", "/cache")  # that the steps write to


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Containerfile and the rest of each."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.strip().partition(" ")
            yield word, rest.strip()


@dataclass
class Machine:
    """A folder in place of a container's file system.

    Args:
        folder: holds it.
        arguments: values in place of the defaults of ARG.
    """

    folder: Path
    arguments: Mapping[str, str] = field(default_factory=dict)
    entry: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.where = self.folder
        self.environment = dict(os.environ)
        self._base = self.folder / "base"

    def inside(self, text: str) -> str:
        """Return a text whose absolute places are below the folder."""
        places = "|".join(PLACES)
        return re.sub(rf"(?<![\w./-])({places})(?=[/:\s]|$)", rf"{self.folder}\1", text)

    def run(self, text: str) -> None:
        """Run all steps."""
        for word, rest in steps(text):
            print(f"{word} {rest}", flush=True)
            getattr(self, f"_{word.lower()}")(rest)

    def call(self, words: Sequence[str]) -> None:
        """Run the entry point with arguments."""
        command = [*self.entry, *words]
        subprocess.run(command, cwd=self.where, env=self.environment, check=True)

    def _from(self, rest: str) -> None:
        if not self._base.exists():
            venv.create(self._base, with_pip=True)
        path = f"{self._base / 'bin'}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path}
        self.where = self.folder

    def _arg(self, rest: str) -> None:
        name, _, default = rest.partition("=")
        self.environment[name] = self.arguments.get(name, default)

    def _env(self, rest: str) -> None:
        name, _, value = rest.partition("=")
        value = re.sub(r"\$(\w+)", lambda match: self.environment.get(match[1], ""), value)
        self.environment[name] = self.inside(value)

    def _workdir(self, rest: str) -> None:
        self.where = Path(self.inside(rest))
        self.where.mkdir(parents=True, exist_ok=True)

    def _copy(self, rest: str) -> None:
        *sources, target = rest.split()
        if sources[0].startswith("--from="):  # both stages are in one folder
            assert all(Path(self.inside(source)).exists() for source in sources[1:])
            return
        for source in sources:
            here = ROOT / source
            place = self.where / target
            if here.is_dir():
                shutil.copytree(here, place, dirs_exist_ok=True)
            else:
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, place)

    def _run(self, rest: str) -> None:
        command = ["sh", "-ec", self.inside(rest)]
        subprocess.run(command, cwd=self.where, env=self.environment, check=True)

    def _entrypoint(self, rest: str) -> None:
        self.entry = json.loads(rest)

    def _cmd(self, rest: str) -> None:
        self.call(json.loads(rest))


def main(words: list[str]) -> None:
    """Run the steps, and a command."""
    given, _, command = (" ".join(words)).partition(" -- ")
    folder, *pairs = given.split()
    machine = Machine(Path(folder).resolve(), dict(pair.split("=", 1) for pair in pairs))
    machine.run((ROOT / "Containerfile").read_text())
    if command:
        machine.call(command.split())


if __name__ == "__main__":
    main(sys.argv[1:])
