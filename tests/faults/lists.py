"""Lists and commits of shards that name files of others, edited and sealed again.

An id is `lists CASE STATE PART WAY`. The case runs to its end (STATE `done`) or is killed
(`kill@N`); in the list of its shards (PART `list`) or in the commit of one (`commit`) a file's name
becomes one of `WAYS`, with size and sha256 of the file there, and hashes and seals are made
to fit. Then its reader, the same command, and the same command with --restart run. No file outside
the folder may change, no reader may accept the list, and the output in the end is right.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from tests.faults.case import Case
from tests.faults.mutations import reseal, sealed_again
from tests.faults.operations import Fault
from tests.faults.trials import Outcome, Workspace, data_of, difference, fault_of, remove
from vgtools.io.errors import Exit

WAYS = ("up", "absolute", "below", "dots", "nul", "empty", "other", "twice", "number", "missing")


def plan(space: Workspace, case: Case, count: int, seed: int) -> list[str]:
    """Return ids for a case that writes shards: each way once, then others by chance."""
    if not case.reader:
        return []
    rng = random.Random(f"lists {case.name} {seed}")
    total = len(space.reference(case).operations)
    found = [f"lists {case.name} done list {way}" for way in rng.sample(WAYS, len(WAYS))]
    for _ in range(count):
        state = rng.choice(("done", f"kill@{rng.randint(total // 3, total)}"))
        part = rng.choice(("list", "commit"))
        found.append(f"lists {case.name} {state} {part} {rng.choice(WAYS)}")
    return found[:count]


def attempt(space: Workspace, case: Case, detail: str) -> Outcome:
    """Run one trial."""
    trial = f"lists {case.name} {detail}"
    state, part, way = detail.split()
    expected = data_of(space.reference(case).tree)
    space.clear()
    space.run(case, None if state == "done" else Fault("kill", int(state.partition("@")[2])))
    folder = space.folder / case.words[-1].rstrip("/")
    victims = _victims(folder)
    kept = {path: path.read_bytes() for path in victims}
    if not (_tamper_list if part == "list" else _tamper_commit)(folder, way, victims):
        return Outcome(trial)  # killed too early, or a single shard: nothing to edit

    def lost() -> str:
        return ", ".join(p.name for p, data in kept.items() if _bytes(p) != data)

    if part == "list":
        done = space.run(case, argv=case.reader.split(), limit=True)
        code = Exit.NO_INPUT if way == "missing" else Exit.DATA
        verdict, said = fault_of(done, (code,), (folder.name,))
        if verdict:
            return Outcome(trial, verdict, f"read: {said}")
    for more in ([], ["--restart"]):
        done = space.run(case, more=more, limit=True)
        verdict, said = fault_of(done)
        if lost():
            return Outcome(trial, "different", f"{more} exit {done.code}: {lost()} is lost")
        if verdict:
            return Outcome(trial, verdict, f"{more} {said}")
        if done.code == 0 and part == "list":
            break
    if done.code != 0:
        return Outcome(trial, "stuck", f"--restart: exit {done.code}: {done.err[-200:]}")
    for path in kept:
        remove(path if path.parent == space.folder else path.parent)
    changes = difference(space.tree(data_only=True), expected)
    return Outcome(trial, "different" if changes else "", changes)


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _victims(folder: Path) -> list[Path]:
    """Write files of a user's next to the folder, with the ending of its shards."""
    ending = folder.name.partition(".")[2]
    found = [folder.parent / f"victim.{ending}", folder.parent / f"other/victim.{ending}"]
    for path in found:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b'{"text": "mine"}\n')
    return found


def _named(way: str, folder: Path, victims: list[Path], second: str) -> str:
    names = {
        "up": f"../{victims[0].name}",
        "absolute": str(victims[0]),
        "below": f"sub/../../{victims[0].name}",
        "dots": "..",
        "nul": "000000-\0",
        "empty": "",
        "other": f"../other/{victims[1].name}",
        "missing": f"000000-00000000.{folder.name.partition('.')[2]}",
    }
    return names.get(way, second)


def _changed(record: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Return a record whose first file has another name, and the facts of the file there."""
    (_, facts), *rest = record["files"].items()
    try:
        data = (folder / name).read_bytes()
        facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    except (OSError, ValueError):
        pass
    return record | {"files": {name: facts, **dict(rest)}}


def _tamper_list(folder: Path, way: str, victims: list[Path]) -> bool:
    """Edit the first line of the list, and the manifest of the folder; return whether it could."""
    path = folder / "shards.jsonl"
    manifest = folder.parent / f"{folder.name.partition('.')[0]}.json"
    if not path.exists() or not manifest.exists():
        return False
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    if way in ("twice", "number") and len(records) == 1:
        return False
    second = next(iter(records[-1]["files"]))
    records[0] = _changed(records[0], _named(way, folder, victims, second), folder)
    if way == "number":
        records[0]["shard"] = 1
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    path.write_bytes(data)
    manifest.write_bytes(reseal(folder.name, data, manifest.read_bytes()))
    return True


def _tamper_commit(folder: Path, way: str, victims: list[Path]) -> bool:
    """Edit the commit of the first shard that has one; return whether there is one."""
    commits = sorted(folder.glob("[0-9]*.json"))
    if not commits:
        return False
    first, last = (json.loads(path.read_bytes()) for path in (commits[0], commits[-1]))
    if way == "number":
        commits[0].write_bytes(commits[-1].read_bytes())  # as it is, under another number
        return len(commits) > 1
    name = _named(way, folder, victims, next(iter(last["files"])))
    commits[0].write_bytes(sealed_again(_changed(first, name, folder)))
    return True
