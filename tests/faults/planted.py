"""Files of the user under names that an output uses: vg leaves them alone, with every flag.

An id is `planted CASE NAME KIND`: NAME is a file that the case writes, or that name with `.part`,
`.journal` or `.lock`; KIND says what is there. The case runs, with --restart if it has it: it
refuses (73, and the way out is never --restart), or ends well; in both cases no byte of the user's
has changed.
"""

from __future__ import annotations

import random

from tests.faults.case import Case
from tests.faults.trials import Outcome, Workspace, fault_of
from vgtools.io.errors import Exit

KINDS = {
    "text": b"Dear diary\n",
    "json": b'{"mine": 1}\n',
    "rows": b'{"text": "mine"}\n{"text": "too"}\n',
    "array": b"[1, 2]\n",
    "binary": bytes(range(256)),
}
ENDINGS = ("", "", ".part", ".journal", ".lock")


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids: names and kinds by chance."""
    rng = random.Random(f"planted {case.name} {seed}")
    names = sorted(n for n, digest in space.reference(case).tree.items() if digest != "folder")
    found = []
    for _ in range(count):
        name = rng.choice(names)
        ending = rng.choice(ENDINGS)
        found.append(f"planted {case.name} {name}{ending} {rng.choice([*KINDS])}")
    return found


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"planted {case.name} {detail}"
    name, kind = detail.split()
    space.reference(case)
    space.clear()
    path = space.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(KINDS[kind])
    done = space.run(case, more=["--restart"] if case.restart else [], limit=True)
    if not path.is_file() or path.read_bytes() != KINDS[kind]:
        return Outcome(trial, "different", f"it is lost; exit {done.code}: {done.err[-200:]}")
    verdict, said = fault_of(done, (Exit.OK, Exit.CANNOT_CREATE))
    if not verdict and "--restart" in done.err:
        return Outcome(trial, "message", f"advises --restart: {done.err[-200:]}")
    return Outcome(trial, verdict, said)
