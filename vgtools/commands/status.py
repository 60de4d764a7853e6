"""`vg status`: how far folders of shards are."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from vgtools.commands.options import Argument
from vgtools.commands.signature import flags


@flags
def status(folders: Annotated[list[str], Argument("FOLDER")]) -> None:
    """Print how far folders of shards are: done, missing, damaged, rate, time left, workers.

    A folder of shards is X.jsonl/ or X.npy/ of vg vokenize, vg revokenize, vg retrieve or
    vg extract-image-feats; any number of machines may be filling it, and reading it disturbs none.
    Finished shards are counted by machine and device, those that are being made are listed with
    their process. On a terminal a few lines per folder, elsewhere an object of JSON per line. A
    shard is damaged if its files are not there or have another size; the command that makes the
    folder makes it again, and compares hashes too.

    Examples:

        vg status vokens.npy/

        vg status *.jsonl/ | jq 'select(.complete | not) | .folder, .seconds_left'

    Args:
        folders: Folders of shards.
    """
    from vgtools.batch.status import folder_status
    from vgtools.io.files import dumps

    for folder in folders:
        found = folder_status(folder)
        if sys.stdout.isatty():
            print(_told(found))
        else:
            sys.stdout.buffer.write(dumps(found))


def _told(found: dict[str, Any]) -> str:
    """Return the lines for a terminal."""
    from vgtools.io.errors import plain
    from vgtools.io.process import in_words

    rate = found["shards_per_hour"]
    damaged = found["damaged"]
    rows = [
        ("done", f"{found['done']:,} of {found['shards']:,} shards"),
        ("missing", f"{found['missing']:,}" if found["missing"] else ""),
        ("damaged", f"{len(damaged):,}: {', '.join(map(str, damaged[:8]))}" if damaged else ""),
        ("rate", f"{rate:,} shards per hour" if rate else ""),
        ("time left", in_words(found["seconds_left"]) if found["seconds_left"] else ""),
        *((f"by {plain(maker)}", f"{count:,}") for maker, count in found["made_by"].items()),
        *(
            (f"shard {each['shard']}", f"process {each['process']} on {each['host']}")
            for each in found["at_work"]
        ),
    ]
    shown = [(name, value) for name, value in rows if value]
    width = max(len(name) for name, _ in shown)
    lines = [f"  {name:<{width}}  {value}" for name, value in shown]
    return "\n".join([found["folder"] + (" is complete" if found["complete"] else ""), *lines])
