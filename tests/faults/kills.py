"""Kills, stops and full disks at numbered file operations; then the same command again.

An id is `kills CASE KIND@N` or `kills CASE KIND@N,KIND@M`: the second harm meets the second
attempt. Whatever happened, the last attempt must end with exit 0 and leave what an undisturbed
run leaves, byte for byte, and nothing else.
"""

from __future__ import annotations

import random

from tests.faults.case import Case
from tests.faults.operations import KINDS, Fault
from tests.faults.trials import Outcome, Workspace, difference, fault_of, litter
from vgtools.io.errors import Exit

# What a harmed run may end with: it was not reached, or its end was in sight (0).
CODES = {
    "kill": (0, -9),
    "term": (0, Exit.STOPPED, Exit.TERMINATED),
    "full": (0, Exit.IO),
}


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids: every operation under every kind if that is few enough, else a sample."""
    total = len(space.reference(case).operations)
    rng = random.Random(f"kills {case.name} {seed}")
    points = [f"{kind}@{n}" for n in range(1, total + 1) for kind in KINDS]
    rng.shuffle(points)
    singles = points[: max(count - count // 4, 1)]
    pairs = [
        f"{rng.choice(points)},{rng.choice(('kill', 'full'))}@{rng.randint(1, total)}"
        for _ in range(count - len(singles))
    ]
    return [f"kills {case.name} {point}" for point in singles + pairs]


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"kills {case.name} {detail}"
    expected = space.reference(case).tree
    space.clear()
    killed = False
    litter_left = ""
    for word in detail.split(","):
        kind, _, number = word.partition("@")
        done = space.run(case, Fault(kind, int(number)))
        if done.code == -9 and kind == "kill":
            killed = True
            continue
        verdict, said = fault_of(done, CODES[kind])
        if done.code == Exit.TERMINATED and verdict == "message":  # it says nothing
            verdict = ""
        if verdict:
            return Outcome(trial, verdict, f"{word}: {said}")
        left = litter(space.tree())
        if left and not killed and not litter_left:  # what a kill leaves, the last attempt removes
            litter_left = f"{word}, exit {done.code}: {left}"
    done = space.run(case)
    verdict, said = fault_of(done, (0,))
    if verdict:
        return Outcome(trial, verdict, f"again: {said}")
    changes = difference(space.tree(), expected)
    if changes:
        return Outcome(trial, "different", changes)
    return Outcome(trial, "leftover" if litter_left else "", litter_left)
