"""How far a folder of shards is: shards, their makers, the time left."""

from __future__ import annotations

import os
import re
from typing import Any

from vgtools.batch import places
from vgtools.batch.plan import PlannedInput, ShardPlan
from vgtools.batch.shards import ShardedOutput, read_plan
from vgtools.io.errors import DataError, Exit
from vgtools.io.names import PLAN, is_url

_RECENT = 50  # shards whose times give the rate


def folder_status(path: str) -> dict[str, Any]:
    """Return the shards of a folder that are done, missing and damaged, the rate, the makers.

    A damaged shard has a commit that is torn or of another plan, or files of other sizes; hashes
    are not compared. The rate is in shards per hour, of the last 50, by the times of their commits;
    a folder at a URL has none.

    Raises:
        DataError: the folder holds no shards (66), or its plan is damaged (65).
    """
    folder = path.rstrip("/") if is_url(path) else os.path.realpath(path)
    body = None if os.path.isfile(folder) else read_plan(os.path.join(folder, PLAN))
    if body is None:
        why = f"holds no {PLAN}: expected a folder of shards, such as X.npy/"
        raise DataError(why, path, code=Exit.NO_INPUT)
    known = PlannedInput._fields
    sources = [
        PlannedInput(**{key: one[key] for key in known if key in one}) for one in body["inputs"]
    ]
    shards = ShardedOutput(folder, ShardPlan(body["config"], sources, body["shard_size"]))
    sizes = places.sizes(folder)
    times = list[float]()
    made = dict[str, int]()
    damaged = list[int]()
    # By the files that are there: a plan may state more shards than can be counted.
    commits = sorted(name for name in sizes if re.fullmatch(r"\d{6,}\.json", name))
    for name in commits:
        number = int(name.removesuffix(".json"))
        if number >= len(shards.plan) or name != f"{shards.stem(number)}.json":
            continue
        record = shards.checked(number, sizes.get)
        if record is not None:
            # Earlier versions named no host.
            maker = f"{record.get('host', '')} {record['device']}".strip()
            made[maker] = made.get(maker, 0) + 1
            if not is_url(folder):
                times.append(os.stat(os.path.join(folder, name)).st_mtime)
        else:
            damaged.append(number)
    recent = sorted(times)[-_RECENT:]
    seconds = recent[-1] - recent[0] if recent else 0
    rate = (len(recent) - 1) / seconds if seconds else None
    left = len(shards.plan) - sum(made.values())
    return {
        "folder": path,
        "shards": len(shards.plan),
        "done": sum(made.values()),
        "missing": left - len(damaged),
        "damaged": damaged,
        "complete": shards.is_complete(),
        "shards_per_hour": rate and round(3600 * rate, 1),
        "seconds_left": rate and round(left / rate),
        "made_by": made,
        "at_work": _at_work(sizes),
    }


def _at_work(names: dict[str, int]) -> list[dict[str, Any]]:
    """Return the shards that processes hold open, or that another machine may hold open."""
    found = dict[int, dict[str, Any]]()
    for name in sorted(names):
        parts = re.match(r"\.(\d+)\.([^/]+)\.(\d+)\.[0-9a-f]{8}(\.|$)", name)
        if parts and places.is_held(name):
            number = int(parts[1])
            found[number] = {"shard": number, "host": parts[2], "process": int(parts[3])}
    return list(found.values())
