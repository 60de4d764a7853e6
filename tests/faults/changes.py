"""Inputs that change between a run and its repetition.

An id is `changes CASE STATE FILE WAY.N`: the case runs to its end (STATE `done`) or is killed
(`kill@N`), one of its input files changes, and the same command runs again. It must refuse, or
give what a first run with the changed file gives: never the old result as if it were the new
one.
"""

from __future__ import annotations

import random

from tests.faults.case import Case
from tests.faults.mutations import mutated
from tests.faults.operations import Fault
from tests.faults.trials import Outcome, Workspace, difference, fault_of, overwrite
from vgtools.io.errors import Exit

WAYS = {
    "text": ("lines",),
    "jsonl": ("lines",),
    "table": ("lines", "numbers"),
    "json": ("json_value", "json_settings", "json_settings", "numbers"),
    "xml": ("numbers",),
    "image": ("pictures",),
    "weights": ("weights_values",),
    "npy": ("npy_values",),
}


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids over all files that no hash protects."""
    rng = random.Random(f"changes {case.name} {seed}")
    total = len(space.reference(case).operations)
    open_files = [p.split() for p in case.reads if p.split()[1] in WAYS]
    found = []
    for number in range(count if open_files else 0):
        file, form = open_files[number % len(open_files)]
        state = "done" if rng.random() < 0.5 else f"kill@{rng.randint(total // 2, total)}"
        found.append(f"changes {case.name} {state} {file} {rng.choice(WAYS[form])}.{seed + number}")
    return found


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"changes {case.name} {detail}"
    state, file, way = detail.split()
    space.reference(case)
    path = space.folder / "in" / file
    name, _, number = way.partition(".")
    good = path.read_bytes()
    bad = mutated(good, name, int(number), f"{case.name} {file}")
    if bad is None or bad == good:
        return Outcome(trial)
    try:
        space.clear()
        overwrite(path, bad)
        fresh = space.run(case, limit=True)
        new = space.tree()
        space.clear()
        space.restore(file)
        space.run(case, None if state == "done" else Fault("kill", int(state.partition("@")[2])))
        overwrite(path, bad)
        done = space.run(case, limit=True)
    finally:
        space.restore(file)
    verdict, said = fault_of(done)
    if verdict:
        return Outcome(trial, verdict, said)
    if done.code != 0:
        if fresh.code == 0 and done.code != Exit.CONFIG:
            said = f"alone exit 0, after another exit {done.code}: {done.err[-200:]}"
            return Outcome(trial, "stuck", said)
        return Outcome(trial)
    if fresh.code != 0:
        return Outcome(trial, "different", f"exit 0, alone exit {fresh.code}: {fresh.err[-150:]}")
    changes = difference(space.tree(), new)
    return Outcome(trial, "different" if changes else "", f"the old result is kept: {changes}")
