"""Bad inputs: each file that a command reads, damaged in every way of `mutations`.

An id is `inputs CASE FILE WAY.N`. Ways are the mutations of the file's format; with `+` after
it the manifest or run.json is made to fit, as a hostile maker would; and `missing`, `folder`,
`dangling`, `device`, `fifo` (fed once) and `stdin`. The command must end with a code of its own
and one line that names the file, or with a result; where a hash protects the file, with the
right result.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
import threading
from pathlib import Path

from pyarrow import parquet

from tests.faults.case import Case
from tests.faults.mutations import FORMATS, mutated, reseal, reseal_run
from tests.faults.trials import (
    Outcome,
    Workspace,
    data_of,
    difference,
    fault_of,
    litter,
    overwrite,
    remove,
)
from vgtools.io.errors import Exit

SPECIAL = ("missing", "folder", "dangling", "device", "fifo", "stdin")
SETTINGS = ("vokenize.toml", "found.json")
LISTS = (
    "list.txt",
    "images.jsonl",
    "bank.jsonl",
    "photos.tar",
    "photos.parquet",
)  # messages name what they list
PIPED = ("device", "fifo", "stdin")
FORGED = ("npy", "faiss", "ids", "run", "weights")  # a manifest can be made to fit them
PIPES = ("text", "jsonl", "table", "json", "gz")


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids: the special ways of every file first, then the others, in an order by chance."""
    rng = random.Random(f"inputs {case.name} {seed}")
    special: list[str] = []
    found: list[str] = []
    for place in case.reads:
        file, form = place.split()
        kind = form.rstrip("!")
        names = [m.__name__ for m in FORMATS[kind]]
        if kind in FORGED and form.endswith("!"):
            names += [f"{name}+" for name in names]
        found += [f"inputs {case.name} {file} {n}.{seed + i}" for i, n in enumerate(names)]
        ways = [way for way in SPECIAL if kind in PIPES or way not in PIPED]
        if f"in/{file}" not in case.words:
            ways = [way for way in ways if way != "stdin"]
        special += [f"inputs {case.name} {file} {way}" for way in ways]
    rng.shuffle(special)
    rng.shuffle(found)
    found = special[: count // 2] + found + special[count // 2 :]
    more = 0
    while case.reads and len(found) < count:  # other seeds of the same ways
        more += 1
        file, form = rng.choice(case.reads).split()
        way = rng.choice(FORMATS[form.rstrip("!")]).__name__
        found.append(f"inputs {case.name} {file} {way}.{seed + 1000 * more}")
    return found[:count]


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"inputs {case.name} {detail}"
    file, way = detail.split()
    form = next(place.split()[1] for place in case.reads if place.split()[0] == file)
    expected = space.reference(case)
    space.clear()
    path = space.folder / "in" / file
    manifest = manifest_of(path, space)
    argv = None
    stdin = b""
    bad = good = path.read_bytes()
    refuse = False
    feeder: _Feeder | None = None
    try:
        if way == "stdin":
            argv = ["-" if word == f"in/{file}" else word for word in case.words]
            stdin = good
        elif way in SPECIAL:
            remove(path)
            feeder = _special(path, way, good)
        else:
            name, _, number = way.partition(".")
            changed = mutated(good, name.rstrip("+"), int(number), f"{case.name} {file}")
            if changed is None or changed == good:
                return Outcome(trial)
            bad = changed
            if name.endswith("+"):
                if form.startswith("run"):
                    bad = reseal_run(bad) or bad
                elif manifest is not None:
                    manifest.write_bytes(reseal(path.name, bad, manifest.read_bytes()))
            overwrite(path, bad)
            refuse = name.startswith("weights_lost")
        done = space.run(case, argv=argv, stdin=stdin, limit=True, idle=6 if feeder else 0)
    finally:
        if feeder:
            feeder.stop()
        space.restore(file)
        if manifest is not None:
            space.restore(str(manifest.relative_to(space.folder / "in")))
    # A check of two files against each other may name the other one, below `in/`.
    names = {
        path.name,
        f"{path.parent.name}:",
        f"{path.name.split('.')[0]}.",
        "in/",
        "standard input",
        "'-'",
    }
    if file in SETTINGS:  # they name files themselves, here perhaps others
        names |= set(re.findall(r"[\w./-]{3,}", bad.decode("utf-8", "replace")))
    verdict, said = fault_of(done, names=() if file in LISTS else names)
    if verdict:
        return Outcome(trial, verdict, said)
    tree = space.tree(data_only=True)
    left = litter(tree)
    if left:
        return Outcome(trial, "leftover", f"exit {done.code}: {left}")
    if done.code != 0:
        refusals = (Exit.USAGE, Exit.DATA, Exit.NO_INPUT, Exit.UNAVAILABLE)
        if way in ("fifo", "stdin") and done.code not in refusals:
            return Outcome(trial, "exit", f"exit {done.code}: {done.err[-200:]}")
        return Outcome(trial)
    if refuse:
        return Outcome(trial, "different", "exit 0 with weights that do not fit")
    protected = form.endswith("!") and "+" not in way and way != "device"  # which is an empty file
    if protected or way in ("fifo", "stdin"):
        good_tree = data_of(expected.tree)
        if way == "fifo" and manifest is not None and any(n.endswith(".html") for n in tree):
            # No manifest is of a pipe, so that the page is that of a file without one.
            remove(manifest)
            space.clear()
            space.run(case)
            space.restore(str(manifest.relative_to(space.folder / "in")))
            good_tree |= {n: x for n, x in space.tree().items() if n.endswith(".html")}
        # A page names its source; pictures of a list from a pipe are looked for elsewhere.
        moved = (".html", ".svg") + (".png",) * (file in LISTS and "a placeholder" in done.err)
        for name in [n for n in tree if way == "stdin" and n.endswith(moved)]:
            tree[name] = good_tree[name]
        changes = difference(tree, good_tree)
        if changes and way in ("fifo", "stdin") and any(n.endswith(".parquet") for n in tree):
            # The foot of a table names the files that it was made of, and a pipe is none.
            tables = _tables(space)
            space.clear()
            space.run(case)
            changes = "" if tables == _tables(space) else changes
        out = expected.out.replace(f"in/{file}".encode(), b"-") if stdin else expected.out
        if not changes and done.out != out:
            changes = f"stdout {done.out[:150]!r}"
        left_out = way == "missing" and f"{path.parent.name} has" in done.err  # and says so
        if changes and not left_out:
            return Outcome(trial, "different", f"exit 0, but {changes}")
    return Outcome(trial)


def _tables(space: Workspace) -> dict[str, list[dict[str, object]]]:
    """Return the rows of all tables outside the artefacts."""
    places = [p for p in space.folder.rglob("*.parquet") if "in" not in p.parts]
    return {p.name: parquet.read_table(p).to_pylist() for p in places}


def manifest_of(path: Path, space: Workspace) -> Path | None:
    """Return the manifest that protects a file: beside it, or the run.json of its run."""
    beside = path.parent / f"{path.name.split('.')[0]}.json"
    run = path.parent / "run.json"
    return next((p for p in (beside, run) if p.exists() and p != path), None)


class _Feeder:
    """Write a file's bytes into a FIFO for the first reader, as a shell does."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def _feed(self) -> None:
        while not self._over.wait(0.01):
            try:
                number = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno == errno.ENXIO:  # nobody reads yet
                    continue
                return
            os.set_blocking(number, True)
            with contextlib.suppress(OSError), os.fdopen(number, "wb") as stream:
                stream.write(self._data)
            return

    def stop(self) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            os.close(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK))  # frees a writer that waits
        self._thread.join(5)


def _special(path: Path, way: str, good: bytes) -> _Feeder | None:
    if way == "folder":
        path.mkdir()
    elif way == "dangling":
        path.symlink_to("nowhere")
    elif way == "device":
        path.symlink_to(os.devnull)
    elif way == "fifo":
        os.mkfifo(path)
        return _Feeder(path, good)
    return None
