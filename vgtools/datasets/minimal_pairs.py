"""Pairs of sentences of which one is acceptable: BLiMP and files in its form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Tally
from vgtools.io.streams import read_jsonl

_KEYS = {"sentence_good": str, "sentence_bad": str, "UID": str, "linguistics_term": str}


def minimal_pairs(paths: Sequence[str], tally: Tally, most: int | None = None) -> Iterator[Row]:
    """Yield `{"good", "bad", "phenomenon", "paradigm"}`.

    Args:
        paths: jsonl of BLiMP, one file per paradigm, or several paradigms in one.
        tally: counts pairs of two equal sentences, which no score can tell apart, and those beyond
            `most`.
        most: pairs of each paradigm, the first ones.

    Raises:
        DataError: a key is missing, or a sentence has no words (65, file and line).

    Source: Warstadt et al. 2020 (BLiMP), section 3: a phenomenon has several paradigms.
    """
    count = Counter[str]()
    for path in paths:
        for line, row in read_jsonl(path, _KEYS):
            good = row["sentence_good"]
            bad = row["sentence_bad"]
            if not (good.strip() and bad.strip()):
                raise DataError("a sentence is empty; leave the pair out", path, line)
            if good == bad:
                tally.left_out["pair of equal sentences"] += 1
                continue
            count[row["UID"]] += 1
            if most is not None and count[row["UID"]] > most:
                tally.left_out[f"pair after the first {most:,} of its paradigm"] += 1
                continue
            names = {"phenomenon": row["linguistics_term"], "paradigm": row["UID"]}
            yield {"good": good, "bad": bad, **names}
