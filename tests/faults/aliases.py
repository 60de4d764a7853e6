"""An output of vg's own that the same command then reads: it is refused, or left as it is.

An id is `aliases CASE N NAME WAY`: the case runs to its end; then it runs again, with --restart if
it has it, and its Nth word, which names an input, names NAME instead, a file or folder that the
first run has left, or by WAY a link to it. Whatever the command says of such an input, no byte that
the word leads to has changed.
"""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

from tests.faults.case import Case
from tests.faults.trials import Outcome, Tree, Workspace, difference, digest_of, fault_of

WAYS = ("name", "hard", "soft")


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids: words, names and ways by chance."""
    rng = random.Random(f"aliases {case.name} {seed}")
    # A record that --config names is of the command that is repeated.
    pairs = enumerate(pairwise(case.words), 1)
    words = [n for n, (flag, word) in pairs if word.startswith("in/") and flag != "--config"]
    names = sorted(space.reference(case).tree)
    if not words or not names:
        return []
    chosen = [(rng.choice(words), rng.choice(names), rng.choice(WAYS)) for _ in range(count)]
    return [f"aliases {case.name} {n} {name} {way}" for n, name, way in chosen]


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"aliases {case.name} {detail}"
    number, name, way = detail.split()
    space.clear()
    done = space.run(case)
    if done.code != 0:
        return Outcome(trial, "harness", f"the case itself: {done.code} {done.err[-200:]}")
    words = case.words
    given = words[int(number)]
    words[int(number)] = _alias(space.folder, name, way, given) + "/" * given.endswith("/")
    place = space.folder / words[int(number)]
    before = _contents(place)
    more = ["--restart"] if case.restart else []
    done = space.run(case, argv=words, more=more, limit=True)
    if changes := difference(_contents(place), before):
        said = done.err.strip().splitlines()[-1:]
        return Outcome(trial, "different", f"exit {done.code}, its input: {changes}; {said}")
    return Outcome(trial, *fault_of(done))


def _alias(folder: Path, name: str, way: str, given: str) -> str:
    """Return a name for an output of a case; a link ends as the input does that it stands for."""
    target = folder / name
    if way == "name" or (way == "hard" and target.is_dir()):
        return name
    link = f"alias{''.join(Path(given).suffixes)}"
    if way == "hard":
        os.link(target, folder / link)
    else:
        (folder / link).symlink_to(target)
    return link


def _contents(place: Path) -> Tree:
    """Return the contents of a file, or of the files in a folder, by name."""
    files = [place] if place.is_file() else place.rglob("*")
    found = (file for file in files if file.is_file())
    return {str(file.relative_to(place)): digest_of(str(file.resolve())) for file in found}
