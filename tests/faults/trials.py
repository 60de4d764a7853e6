"""What all trials share: a workspace, what a command leaves there, and what counts as a failure."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.faults.case import Case
from tests.faults.operations import Fault
from tests.faults.server import Call, Done, Server
from vgtools.io.errors import Exit

ALLOWED = frozenset(Exit) - {Exit.INTERNAL, Exit.INTERRUPTED, Exit.PIPE, Exit.TERMINATED}
VERDICTS = ("different", "internal", "hang", "leftover", "message", "exit", "stuck", "harness")

Tree = dict[str, str]


@dataclass(frozen=True)
class Outcome:
    """What a trial found.

    Args:
        trial: its id, `SUITE CASE DETAIL`: `python -m tests.faults 'ID'` repeats it.
        verdict: one of `VERDICTS`, or "" where all is well.
        detail: what was seen.
    """

    trial: str
    verdict: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run of a case leaves."""

    tree: Tree
    out: bytes
    operations: list[str]


class Workspace:
    """A folder with its own copy of the artefacts, in which one command after another runs.

    Its path is the same for all runs, so that files that hold paths agree.

    Args:
        folder: made anew.
        artefacts: copied to `in`.
        server: runs the commands.
    """

    def __init__(self, folder: Path, artefacts: Path, server: Server) -> None:
        self.folder = folder
        self.artefacts = artefacts
        self.server = server
        folder.mkdir(parents=True)
        shutil.copytree(artefacts, folder / "in", symlinks=True)
        self._references: dict[str, Reference] = {}

    def clear(self) -> None:
        """Remove everything but the artefacts."""
        for path in self.folder.iterdir():
            if path.name != "in":
                remove(path)

    def restore(self, name: str) -> None:
        """Bring back one artefact as it was."""
        remove(self.folder / "in" / name)
        shutil.copy2(self.artefacts / name, self.folder / "in" / name)

    def call(
        self,
        case: Case,
        fault: Fault | None = None,
        *,
        more: Iterable[str] = (),
        limit: bool = False,
        seconds: float = 120,
        idle: float = 0,
        stdin: bytes = b"",
        argv: list[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Call:
        words = [*(argv or case.words), *more]
        env = {"TMPDIR": str(self.folder.parent)} | dict(env or {})
        return Call(words, str(self.folder), fault, stdin, seconds, idle, env, limit)

    def run(self, case: Case, fault: Fault | None = None, **how: object) -> Done:
        return self.server.one(self.call(case, fault, **how))  # type: ignore[arg-type]

    def reference(self, case: Case) -> Reference:
        """Return what the undisturbed case leaves; it runs once."""
        if case.name not in self._references:
            self.clear()
            done = self.run(case)
            assert done.code == 0, (
                f"{case.name} does not work undisturbed: {done.code} {done.err.strip()}"
                " (tests/faults/artefacts.py writes what is in in/)"
            )
            tree = self.tree()
            assert tree or done.out, f"{case.name} writes nothing"
            self._references[case.name] = Reference(tree, done.out, done.operations)
            self.clear()
        return self._references[case.name]

    def tree(self, data_only: bool = False) -> Tree:
        """Return the hash of every file outside the artefacts, by path; folders are there, too.

        Args:
            data_only: leave manifests and run.json out, which name the inputs.
        """
        found = dict[str, str]()
        for root, folders, files in os.walk(self.folder):
            if root == str(self.folder):
                folders.remove("in")
            for name in folders:
                found[os.path.relpath(os.path.join(root, name), self.folder)] = "folder"
            for name in files:
                path = os.path.join(root, name)
                found[os.path.relpath(path, self.folder)] = digest_of(path)
        return data_of(found) if data_only else found


def remove(path: Path) -> None:
    """Remove a file, link or folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def overwrite(path: Path, data: bytes) -> None:
    """Write other bytes into an artefact; the time of the change is always the same one."""
    facts = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 10**9))


def digest_of(path: str) -> str:
    facts = os.lstat(path)
    if not stat.S_ISREG(facts.st_mode):
        return f"mode {stat.S_IFMT(facts.st_mode):o}"
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def data_of(tree: Tree) -> Tree:
    """Return a tree without manifests and run.json."""
    return {name: digest for name, digest in tree.items() if not name.endswith(".json")}


def difference(found: Tree, expected: Tree) -> str:
    """Return how two trees differ, or an empty string."""
    parts = []
    for title, names in (
        ("missing", expected.keys() - found.keys()),
        ("left over", found.keys() - expected.keys()),
        ("changed", {n for n in found.keys() & expected.keys() if found[n] != expected[n]}),
    ):
        if names:
            parts.append(f"{title}: {', '.join(sorted(names))}")
    return "; ".join(parts)


def follow(space: Workspace, case: Case, done: Done, path: Path) -> str:
    """Remove a file that changed where the message says so; return a fault of --restart, if any.

    The file may be the user's: no flag replaces it. An empty one holds nothing of anybody's.
    """
    if "or remove it and make" not in done.err.splitlines()[-1]:
        return ""
    empty = not path.stat().st_size
    before = space.tree()
    again = space.run(case, more=["--restart"], limit=True)
    changes = difference(space.tree(), before)
    path.unlink(missing_ok=True)
    if (again.code == Exit.CANNOT_CREATE and not changes) or (empty and again.code == 0):
        return ""
    return f"--restart: exit {again.code}, {changes}"


NOTE = re.compile(r"vg [a-z-]+( [a-z0-9-]+)?: |vg: (skipped|stopping|note)")


def fault_of(
    done: Done, codes: Iterable[int] = ALLOWED, names: Iterable[str] = ()
) -> tuple[str, str]:
    """Judge how a command ended.

    Args:
        done: what it did.
        codes: exit codes that are right.
        names: one of them has to appear in the message of a failure.

    Returns:
        Verdict and detail, both empty where all is well.
    """
    lines = done.err.splitlines()
    last = lines[-1] if lines else ""
    if done.code is None:
        return "hang", last
    if done.code == Exit.INTERNAL or "Traceback" in done.err or "internal error" in done.err:
        return "internal", last or f"exit {done.code} without a message"
    if done.code < 0:
        return "internal", f"ended by signal {-done.code}"
    if done.code not in codes:
        return "exit", f"exit {done.code}: {last}"
    strange = [line for line in lines if not NOTE.match(line)]
    if done.code != 0 and (len(strange) != 1 or strange[0] != last or not last.startswith("vg")):
        return "message", f"exit {done.code}, {len(strange)} lines: {' | '.join(strange)[:300]}"
    if done.code == 0 and strange:
        return "message", f"exit 0, but on stderr: {' | '.join(strange)[:300]}"
    if (
        done.code not in (0, Exit.USAGE, Exit.STOPPED)
        and names
        and not any(name in last for name in names)
    ):
        return "message", f"names no file: {last}"
    return "", ""


def litter(tree: Tree) -> str:
    """Return the locks and temporary files in a tree, as text.

    The sign of an unfinished run stays as long as nothing else shows whose its other files are.
    """
    found = [n for n in tree if n.endswith((".lock", ".tmp")) or ".tmp." in n]
    return ", ".join(sorted(name for name in found if not _is_needed(name, tree)))


def _is_needed(name: str, tree: Tree) -> bool:
    """Return whether a file is the sign of an unfinished run that has others, and no checkpoint."""
    folder, _, last = name.rpartition("/")
    others = {other.removeprefix(f"{folder}/") for other in tree if other.startswith(f"{folder}/")}
    known = {"run.json", "checkpoint.safetensors", "best.safetensors"}
    return last == ".run.json.vg.tmp" and others != {last} and not others & known
