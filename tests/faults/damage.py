"""Damaged outputs: what a killed or finished run left is spoilt, then the same command runs again.

An id is `damage CASE STATE FILE WAY.N`. STATE is `done`, or `kill@N`; FILE counts the files
that are there. The command must notice (an error that names the file, whose advice then mends it)
or mend it: exit 0 means what an undisturbed run leaves. What it does not know for its own any
more it must leave alone, with every flag (73).
"""

from __future__ import annotations

import random
import re

from tests.faults.case import Case
from tests.faults.mutations import FORMATS, mutated
from tests.faults.operations import Fault
from tests.faults.trials import Outcome, Workspace, data_of, difference, fault_of, follow
from vgtools.io.errors import Exit

FORMAT_OF = {
    ".journal": "json",
    ".json": "json",
    ".jsonl": "jsonl",
    ".npy": "npy",
    ".safetensors": "weights",
    ".ids": "ids",
    ".faiss": "faiss",
}


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids; a third of them are of finished runs."""
    rng = random.Random(f"damage {case.name} {seed}")
    total = len(space.reference(case).operations)
    found = []
    for number in range(count):
        state = "done" if number % 3 == 0 or total < 8 else f"kill@{rng.randint(total // 4, total)}"
        way = rng.choice(("flip", "flip", "cut_out", "any", "any", "missing", "empty"))
        found.append(f"damage {case.name} {state} {rng.randrange(100)} {way}.{seed + number}")
    return found


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"damage {case.name} {detail}"
    state, index, way = detail.split()
    expected = space.reference(case).tree
    space.clear()
    fault = None if state == "done" else Fault("kill", int(state.partition("@")[2]))
    done = space.run(case, fault)
    if done.code not in (0, -9):
        return Outcome(trial, "exit", f"{state}: exit {done.code}: {done.err[-200:]}")
    tree = space.tree()
    files = sorted(n for n in tree if tree[n] != "folder" and not n.endswith(".lock"))
    if not files:
        return Outcome(trial)
    name = files[int(index) % len(files)]
    path = space.folder / name
    good = path.read_bytes()
    form = FORMAT_OF.get(path.suffix, "bytes")
    word, _, number = way.partition(".")
    if word == "missing":
        path.unlink()
    else:
        if word == "any":
            word = random.Random(detail).choice(FORMATS[form]).__name__
        try:
            bad = mutated(good, word, int(number), f"{case.name} {name}")
        except Exception:  # a half-written file is of no format: any bytes can be flipped
            bad = mutated(good, "flip", int(number), f"{case.name} {name}")
        if bad is None or bad == good:
            return Outcome(trial)
        path.write_bytes(bad)
    what = f"{word} of {name}"
    before = space.tree()
    done = space.run(case, limit=True)
    verdict, said = fault_of(done, names=(path.name, path.parent.name, case.folder or path.stem))
    if verdict:
        return Outcome(trial, verdict, f"{what}: {said}")
    manifest = path.suffix == ".json" and "/" not in name  # its notes may differ, not the data
    complete = state == "done" or "is up to date" in done.err  # a kill may come after the last file
    if done.code == 0 and re.search(r"/(\d{6}\.json|.*\.errors\.jsonl)$", name) and complete:
        # What no command reads of a complete folder of shards: commits and notes.
        expected = {key: value for key, value in expected.items() if key != name}
        path.unlink(missing_ok=True)
    mended = space.tree().get(name) == expected.get(name) != before.get(name)
    if done.code == 0 and mended and re.search(r"/\d{6}-[0-9a-f]{8}\.[^/]+$", name):
        # Data of a shard are made again; somebody may have edited the old ones.
        expected = expected | ({f"{name}.damaged": before[name]} if name in before else {})
    if done.code == 0 and word == "missing" and path.suffix == ".json":
        # Data without their manifest may be anybody's: they must stay, and as they were.
        left = [n for n in before if n.startswith(name.removesuffix("json"))]
        left = [n for n in left if not n.endswith((".journal", ".lock"))]  # signs of vg's own
        left += [name.rpartition("/")[0]] * bool(left and "/" in name)
        expected = {n: before[n] for n in left} | expected
    if done.code == 0:
        changes = difference(space.tree(manifest), data_of(expected) if manifest else expected)
        if changes in (f"changed: {name}", f"missing: {name}") and case.reader:
            done = space.run(case, argv=case.reader.split(), limit=True)
            codes = (Exit.DATA, Exit.CANNOT_CREATE)
            if space.tree().get(name) == expected[name]:
                codes = (0,)  # a cache is made again
            elif word == "missing":
                return Outcome(trial, "different", f"{what}, read: exit {done.code}, {changes}")
            verdict, said = fault_of(done, codes, (path.name, path.parent.name))
            return Outcome(trial, verdict, f"{what}, read: {said}")
        return Outcome(trial, "different" if changes else "", f"{what}: exit 0, but {changes}")
    if done.code == Exit.CANNOT_CREATE:
        more = ["--restart"] if case.restart else []
        again = space.run(case, more=more, limit=True)
        # Files that the command wrote before are made again: their manifests name its flags.
        trees = (data_of(space.tree()), data_of(before))
        # A finished run's checkpoints and packed inputs go, which a kill had left.
        finished = f"{case.folder}/run.json" in before
        left = rf"{case.folder}/(best|checkpoint)\.safetensors|{case.folder}\.packed(/.*)?"
        goes = re.compile(rf".*\.lock|{left}" if finished else r".*\.lock")
        kept = ({k: t[k] for k in t if not goes.fullmatch(k)} for t in trees)
        changes = difference(*kept)
        if again.code == Exit.CANNOT_CREATE and "--restart" not in done.err:
            return Outcome(trial, "different" if changes else "", f"{what}: refused, but {changes}")
        return Outcome(trial, "stuck", f"{what}: {done.err[-200:]}; then exit {again.code}")
    if not case.restart:
        return Outcome(trial, "stuck", f"{what}: {done.err[-200:]}")
    first = done.err.splitlines()[-1]
    if fault := follow(space, case, done, path):
        return Outcome(trial, "different", f"{what}: {fault}")
    done = space.run(case, more=["--restart"], limit=True)
    if done.code != 0:
        said = f"{what}: {first}; --restart: exit {done.code}: {done.err[-200:]}"
        return Outcome(trial, "stuck", said)
    changes = difference(space.tree(data_only=True), data_of(expected))  # argv differs
    return Outcome(trial, "different" if changes else "", f"{what}: after --restart {changes}")
