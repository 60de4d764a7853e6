"""Several writers of one output at the same time, and a reader beside them.

An id is `races CASE WAY.N`: `same` starts three commands at once; `link` two, one of which
names its output through a link to the folder. Each must end with exit 0 or 75 (another one
writes), one of them with 0; what stays is what an undisturbed run leaves. A reader never meets
a file that is not whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading

from tests.faults.case import Case
from tests.faults.operations import Fault
from tests.faults.trials import Outcome, Tree, Workspace, data_of, difference, fault_of
from vgtools.io.errors import Exit


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids, half of each way."""
    return [f"races {case.name} {('same', 'link')[n % 2]}.{seed + n}" for n in range(count)]


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"races {case.name} {detail}"
    expected = space.reference(case).tree
    data = data_of(expected)
    space.clear()
    way = detail.partition(".")[0]
    reader = _Reader(space, {} if case.folder or way == "link" else expected)
    if way == "link":
        output = case.words[-1]
        (space.folder / "d").mkdir()
        (space.folder / "e").symlink_to("d")
        if case.folder:
            (space.folder / "d" / output).mkdir()
            (space.folder / "d" / "alias").symlink_to(output)
        names = [f"d/{output}", "d/alias" if case.folder else f"e/{output}"]
        if output.endswith(".parquet/"):
            # Its shards name their inputs as seen from their own folder: another one, other bytes.
            space.run(case, argv=[*case.words[:-1], names[0]])
            data = _through_link(space)
            shutil.rmtree(space.folder / "d")
            (space.folder / "d").mkdir()
    else:
        names = [case.words[-1]] * 3
    seed = 10 * int(detail.partition(".")[2])
    calls = [
        space.call(case, Fault("slow", seed + i), argv=[*_beside(name, case, expected), name])
        for i, name in enumerate(names)
    ]
    done = space.server.run(*calls)
    torn = reader.stop()
    for one in done:
        verdict, said = fault_of(one, (0, Exit.STOPPED))
        if verdict:
            return Outcome(trial, verdict, said)
    if not any(one.code == 0 for one in done):
        return Outcome(trial, "exit", "no writer won")
    if torn:
        return Outcome(trial, "different", f"a reader met files that were not whole: {torn}")
    if way == "same":
        changes = difference(space.tree(), expected)
    else:
        changes = difference(_through_link(space), data)
    return Outcome(trial, "different" if changes else "", changes)


def _through_link(space: Workspace) -> Tree:
    """Return the data that writers left in the folder `d`, by their names there."""
    found = {n.removeprefix("d/"): v for n, v in space.tree(data_only=True).items()}
    return {name: v for name, v in found.items() if name not in ("d", "e", "alias")}


def _beside(name: str, case: Case, written: Tree) -> list[str]:
    """Return the words before the output's name, with other files that are written next to it.

    Folders of pictures stay where they are: lists have their whole paths.
    """
    folder = os.path.dirname(name)
    files = {word for word, digest in written.items() if digest != "folder"}
    return [os.path.join(folder, word) if word in files else word for word in case.words[:-1]]


class _Reader:
    """Read output files again and again, and note those that are neither absent nor whole."""

    def __init__(self, space: Workspace, expected: Tree) -> None:
        self._files = {
            str(space.folder / name): digest
            for name, digest in expected.items()
            if digest != "folder" and not name.endswith(".json")
        }
        self._torn: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.wait(0.001):
            for name, digest in self._files.items():
                try:
                    with open(name, "rb") as stream:
                        data = stream.read()
                except FileNotFoundError:
                    continue
                if hashlib.sha256(data).hexdigest() != digest:
                    self._torn.add(os.path.basename(name))

    def stop(self) -> str:
        """End the reading and return the names of torn files."""
        self._over.set()
        self._thread.join()
        return ", ".join(sorted(self._torn))
