"""Values of other types in files that vg writes for itself, under seals that fit.

An id is `resealed CASE STATE FILE WAY.N`. The case runs to its end (STATE `done`) or is killed
(`kill@N`); FILE counts the manifests, plans, commits, journals and run.json that are there. One
value in it becomes one of another type (WAY `type`), or a key is left out (`key`), and the seal
fits the new content. The same command, and the reader of its output, must refuse it with a code
of their own and one line, and --restart mends it; or the result is the right one.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults.case import Case
from tests.faults.mutations import reseal_run, sealed_again
from tests.faults.operations import Fault
from tests.faults.trials import Outcome, Tree, Workspace, data_of, difference, fault_of, follow
from vgtools.io.errors import Exit
from vgtools.io.folders import LIST

VALUES: tuple[Any, ...] = (None, True, -1, 2**70, 1.5, "x", "../x", [], [[]], {}, {"x": {}})


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids by chance; half of them are of finished outputs."""
    rng = random.Random(f"resealed {case.name} {seed}")
    total = len(space.reference(case).operations)
    found = []
    for number in range(count):
        state = rng.choice(("done", f"kill@{rng.randint(total // 3, total)}"))
        way = rng.choice(("type", "type", "type", "key"))
        found.append(f"resealed {case.name} {state} {rng.randrange(100)} {way}.{seed + number}")
    return found


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"resealed {case.name} {detail}"
    state, index, way = detail.split()
    expected = data_of(space.reference(case).tree)
    space.clear()
    space.run(case, None if state == "done" else Fault("kill", int(state.partition("@")[2])))
    files = [path for path in sorted(space.folder.rglob("*")) if _is_sealed(path)]
    if not files:
        return Outcome(trial)
    path = files[int(index) % len(files)]
    argvs = [case.words]
    if case.reader and state == "done":
        argvs.append(case.reader.split())
        expected = _read(space, case)
    what = tamper(path, way, random.Random(detail))
    for argv in argvs:
        done = space.run(case, argv=argv, limit=True)
        verdict, said = fault_of(done)
        if verdict:
            return Outcome(trial, verdict, f"{path.name} {what}: {said}")
    if done.code in (0, Exit.CANNOT_CREATE) or not case.restart or len(argvs) > 1:
        # The list of a folder of shards repeats by which versions and device each was made.
        copied = LIST if re.search(r"\['(versions|device)'", what) else None
        found, right = (_rest(space, t, path, copied) for t in (space.tree(True), expected))
        wrong = done.code == 0 and difference(found, right)
        return Outcome(trial, "different" if wrong else "", f"{path.name} {what}: {wrong}")
    said = f"{path.name} {what}: {done.err[-200:]}"
    if fault := follow(space, case, done, path):
        return Outcome(trial, "different", f"{said}; {fault}")
    done = space.run(case, more=["--restart"], limit=True)
    if done.code != 0:
        return Outcome(trial, "stuck", f"{said}; --restart: exit {done.code}: {done.err[-200:]}")
    changes = difference(space.tree(data_only=True), expected)
    return Outcome(trial, "different" if changes else "", f"{said}; --restart: {changes}")


def _read(space: Workspace, case: Case) -> Tree:
    """Return the tree with what the reader writes from a good output, and remove that again."""
    before = {path for path in space.folder.rglob("*") if not path.is_dir()}
    done = space.run(case, argv=case.reader.split(), limit=True)
    assert done.code == 0, done.err
    expected = space.tree(True)
    for path in [path for path in space.folder.rglob("*") if not path.is_dir()]:
        if path not in before:
            path.unlink()
    return expected


def _rest(space: Workspace, tree: Tree, path: Path, copied: str | None) -> Tree:
    """Return a tree without the file that was changed, which a finished output may keep.

    `copied` is the name of a file with copies of its values.
    """
    changed = str(path.relative_to(space.folder))
    return {k: v for k, v in tree.items() if k != changed and os.path.basename(k) != copied}


def _is_sealed(path: Path) -> bool:
    """Return whether a file is one that vg seals, or a manifest."""
    given = any(folder.name == "in" for folder in path.parents)
    if given or path.suffix not in (".json", ".journal") or not path.is_file():
        return False
    try:
        body = json.loads(path.read_bytes())
    except ValueError:  # torn by the kill
        return False
    return isinstance(body, dict) and bool({"sha256", "files"} & body.keys())


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where values are, as keys and positions."""
    if at:
        yield at
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*at, key))


def tamper(path: Path, way: str, rng: random.Random) -> str:
    """Change a value of a file, seal it again, and return a description."""
    body = json.loads(path.read_bytes())
    sealed = "sha256" in body
    body.pop("sha256", None)
    at = rng.choice([*_places(body)])
    outer = body
    for key in at[:-1]:
        outer = outer[key]
    if way.startswith("key"):
        del outer[at[-1]]
        what = f"without {list(at)}"
    else:
        before = outer[at[-1]]
        value = rng.choice([v for v in VALUES if type(v) is not type(before) or v != before])
        outer[at[-1]] = value
        what = f"{list(at)} = {value!r}"
    if path.name == "run.json":
        path.write_bytes(reseal_run(json.dumps(body).encode()) or b"")
    else:
        # A number that orjson does not hold is in no file that vg writes.
        text = json.dumps(body).replace(str(2**70), str(2**63))
        path.write_bytes(sealed_again(json.loads(text)) if sealed else text.encode())
    return what
