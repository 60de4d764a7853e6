"""The shards of a folder as the files that one process would have written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit
from vgtools.io.files import open_npy, sha256_file
from vgtools.io.folders import Shards, check_facts
from vgtools.io.names import ending_of
from vgtools.io.output import Output
from vgtools.io.streams import open_shard

_BLOCK = 1 << 20  # bytes, or rows of an array, at a time
# Of the manifest of a folder: what is about the folder, not about what is in it.
_FOLDER = {"format", "vg", "argv", "versions", "files", "inputs", "config", "plan", "shards"}


def shards_beside(output: str) -> str:
    """Return the folder in which the shards of a file are until they are joined."""
    ending = ending_of(output)
    return f"{output.removesuffix(ending)}.shards{ending}/"


def join(folder: str, out: Output, names: Sequence[str]) -> Counter[str]:
    """Write the shards of a complete folder to an output, and finish it.

    A commit after each shard says what one process would have said after the same rows, so that
    either way to write the file continues what the other one began.

    Args:
        folder: of the shards.
        out: an output that is open; what it holds must end where a shard does.
        names: its files.

    Returns:
        The counts of what was written.

    Raises:
        DataError: a shard is damaged (65), or the output is of one process (78).
    """
    shards = Shards(folder)
    done = out.state.get("joined", 0)
    if out.state and not done:
        why = "an unfinished run of one process: without --ray it resumes, --restart discards it"
        raise DataError(why, names[0], code=Exit.CONFIG)
    counts = Counter[str](out.state.get("counts", {}))
    items = out.state.get("items", 0)  # rows of the first file, if it is an array
    stem = names[0].removesuffix(ending_of(names[0]))
    endings = [name.removeprefix(stem) for name in names]
    for number, record in enumerate(shards.records(done), done):
        before = items
        for index, ending in enumerate(endings):
            if ending.endswith(".npy"):
                count = _copy_array(shards, number, ending, out, index, before)
                items += 0 if index else count
            else:
                (file,) = shards.files(ending, number, number + 1)
                with open_shard(file) as stream:
                    while data := stream.read(_BLOCK):
                        out.write(data, index)
        counts.update(record["counts"])
        state = {"rows": counts["rows"], "digest": "", "counts": counts}
        out.commit({**state, "joined": number + 1, "items": items})
    facts = {key: value for key, value in shards.manifest.items() if key not in _FOLDER}
    del facts["bytes"]
    out.finish(**facts)
    return counts


def _copy_array(
    shards: Shards, number: int, ending: str, out: Output, index: int, before: int
) -> int:
    """Append an array of a shard, return its rows; ends of rows count from the first shard on."""
    (file,) = shards.files(ending, number, number + 1)
    check_facts(file.path, "sha256", file.sha256, sha256_file(file.path))
    array: Any = open_npy(Path(file.path))
    for start in range(0, len(array), _BLOCK):
        block = array[start : start + _BLOCK]
        out.write((block + before if ending == ".rows.npy" else block.copy()).data.cast("B"), index)
    return len(array)
