"""Failures that are known and not mended yet: a table that only shrinks.

`make test` runs the trial of each row, and fails where it does not fail any more: whoever mends a
fault removes its row.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from tests.faults.trials import Outcome


@dataclass(frozen=True)
class Known:
    """A fault of the product that trials meet.

    Args:
        row: its name in the list of faults, and what has to be mended.
        verdict: that it shows as, a regular expression.
        trials: shell pattern of the ids that meet it.
        detail: regular expression that what they see contains.
        shown: an id that shows it.
    """

    row: str
    verdict: str
    trials: str
    detail: str
    shown: str


_NAN = r"no longer a number|features are NaN|is not a number|puts no token before a pair"
_RUN = r"of run/(metrics|best|encoder|seed-\d+|checkpoint|[\w]+\.safetensors)"

KNOWN = (
    Known(
        "B8 warnings of libraries before the message",
        "message", "inputs *", "Warning:", "inputs vokenize vg.faiss insert+.6",
    ),
    Known(
        "B10 features of others of another shape",
        "internal", "inputs prepare-arrays sets/others.npy *", "IndexError",
        "inputs prepare-arrays sets/others.npy npy_other.12",
    ),
    Known(
        "K5 compare leaves out a task without run.json and does not say so",
        "different", "inputs compare *run.json *", "exit 0, but",
        "inputs compare compare/mlm/rte/run.json missing",
    ),
)  # fmt: skip


def excused(outcome: Outcome) -> str:
    """Return the row that explains a failure, or an empty string."""
    for known in KNOWN:
        if (
            re.fullmatch(known.verdict, outcome.verdict)
            and fnmatch.fnmatchcase(outcome.trial, known.trials)
            and re.search(known.detail, outcome.detail)
        ):
            return known.row
    return ""
