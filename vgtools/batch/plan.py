"""Which shard has which lines of which input, decided from names and sizes alone.

An input is known by its content, not by its time: each process that starts to make shards hashes
it once, at 1 to 2 GB per second. For 100 GB that is a minute or two, where shards take hours. The
workers of a cluster take the hashes over.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple

from vgtools.io import remote
from vgtools.io.errors import DataError, Exit, amount
from vgtools.io.files import config_difference, plain_json, sha256_file
from vgtools.io.folders import Shards
from vgtools.io.names import (
    base_of,
    file_of,
    is_compressed,
    is_shards,
    is_table,
    is_unnamed,
    is_url,
)
from vgtools.io.splits import held_out_in
from vgtools.io.streams import Piece, open_read
from vgtools.io.written import check_made, seal


class PlannedInput(NamedTuple):
    """An input and the unit by which it can be cut; a whole input is never cut."""

    path: str
    bytes: int
    sha256: str  # hash of its bytes or of the listing, or the version that a store gives an object
    unit: Literal["byte", "shard", "image", "whole"]
    units: int
    held_out: int = 0  # rows to evaluate on, by its manifest; outputs have the count as well
    named: str = ""  # hash of the sizes and times of the pictures that a table names


def text_source(path: str) -> PlannedInput:
    """Return a text or rows of JSON as an input: cut by bytes, or by shards if it is a folder.

    A file is hashed, unless this process knows its hash and it has not changed since.

    Raises:
        DataError: it can be read only once (usage), is missing (66), or has changed since vg wrote
            it (65).
    """
    if is_unnamed(path):
        why = "is a pipe, which shards cannot be cut from; write it to a file and name that"
        raise DataError(why, path, code=Exit.USAGE)
    file = file_of(path)
    if is_shards(file):
        shards = Shards(file)
        held_out = held_out_in(file)
        return PlannedInput(path, shards.bytes, shards.sha256, "shard", len(shards), held_out)
    if is_url(file):
        size, sha256 = remote.facts(file)
    else:
        open_read(file).close()
        sha256 = sha256_file(file)
        check_made(file, sha256)  # whoever makes a shard reads only a part
        size = os.path.getsize(file)
    held_out = held_out_in(file)
    if is_compressed(file) or is_table(path):
        return PlannedInput(path, size, sha256, "whole", 1, held_out)
    return PlannedInput(path, size, sha256, "byte", size, held_out)


@dataclass(frozen=True)
class ShardPlan:
    """Which shard has which lines: a pure function of the inputs' sizes and the shard size.

    Files that are cut by bytes follow one another as one text of T bytes, cut at T i / n; every
    other input has shards of its own. No shard has parts of two inputs of one name.
    """

    config: Mapping[str, Any]  # the settings that decide the bytes
    sources: Sequence[PlannedInput]
    shard_size: int  # bytes

    @cached_property
    def _runs(self) -> list[tuple[list[PlannedInput], list[int], int]]:
        """Sources that are cut together, the first unit of each and their end, shards."""
        runs = []
        seen = Counter[str]()
        keys = list[tuple[str, int]]()
        for place, source in enumerate(self.sources):
            # A file that is given twice is cut twice, so that a line's file and its number in a
            # shard determine its place.
            keys.append(("cut", seen[source.path]) if source.unit == "byte" else ("whole", place))
            seen[source.path] += 1
        pairs = zip(keys, self.sources, strict=True)
        for _, group in groupby(pairs, lambda pair: pair[0]):
            sources = [source for _, source in group]
            firsts = [0, *accumulate(source.units for source in sources)]
            # No more shards than there are units, so that each has at least one.
            count = -(-sum(source.bytes for source in sources) // self.shard_size)
            runs.append((sources, firsts, max(1, min(count, firsts[-1]))))
        return runs

    @cached_property
    def _firsts(self) -> list[int]:
        return [0, *accumulate(count for _, _, count in self._runs)]

    def __len__(self) -> int:
        return self._firsts[-1]

    def pieces(self, number: int) -> list[Piece]:
        """Return the pieces of the inputs that a shard is made from."""
        run = bisect_right(self._firsts, number) - 1
        sources, firsts, count = self._runs[run]
        i = number - self._firsts[run]
        # In whole numbers, so that the cut is the same in every process, however large the input.
        start = firsts[-1] * i // count
        stop = firsts[-1] * (i + 1) // count
        pieces = list[Piece]()
        at = bisect_right(firsts, start) - 1
        while at < len(sources) and firsts[at] < stop:
            first = max(start - firsts[at], 0)
            end = min(stop - firsts[at], sources[at].units)
            whole = sources[at].unit == "whole"
            if first < end:
                pieces.append(Piece(sources[at].path, first, None if whole else end))
            at += 1
        return pieces

    @cached_property
    def name(self) -> str:
        """The sha256 of the plan's record, by which its commits are known."""
        return seal(self.record())

    def record(self) -> dict[str, Any]:
        """Return the contents of `plan.json`."""
        inputs = [{**source._asdict(), "path": base_of(source.path)} for source in self.sources]
        for entry in inputs:
            for name in ("held_out", "named"):
                if not entry[name]:
                    del entry[name]
        body = {"config": self.config, "inputs": inputs}
        return plain_json(body | {"shard_size": self.shard_size})

    def check_same(self, before: Mapping[str, Any], folder: str) -> None:
        """Refuse a folder that was started with another plan.

        Raises:
            DataError: settings, inputs or shard size differ (78, both sides).
        """
        now = self.record()
        difference = config_difference(before["config"], now["config"])
        old, new = ([tuple(x.values()) for x in side["inputs"]] for side in (before, now))
        if not difference and len(old) != len(new):
            difference = f"it had {amount(len(old), 'input')}, has now {len(new)}"
        if not difference and old != new:
            i = next(i for i, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1])
            changed = config_difference(before["inputs"][i], now["inputs"][i])
            difference = f"the input {self.sources[i].path} changed: {changed}"
        if not difference:
            sizes = ({"shard_size": side["shard_size"]} for side in (before, now))
            difference = config_difference(*sizes)
        if difference:
            why = f"its shards have different settings: {difference}. Use the same settings, "
            raise DataError(f"{why}another -o, or --restart", folder, code=Exit.CONFIG)

    def check_unchanged(self, pieces: Sequence[Piece]) -> None:
        """Refuse to commit a shard of a text that changed while it was read."""
        for path in {piece.path for piece in pieces}:
            source = next(source for source in self.sources if source.path == path)
            if source.unit not in ("byte", "whole"):
                continue
            now = text_source(path)
            if now._replace(unit=source.unit, units=source.units, named=source.named) != source:
                raise DataError("changed while it was read", path, code=Exit.CONFIG)
