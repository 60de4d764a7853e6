"""Failures that are known and not mended yet."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from tests.faults.trials import Outcome


@dataclass(frozen=True)
class Known:
    """A fault of the product that trials meet.

    Args:
        row: what it is called, and what has to be mended.
        trial: an id that shows it; once it does not fail, the row must go.
        others: shell patterns of further ids that meet it.
        verdicts: that it shows as.
    """

    row: str
    trial: str
    others: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()


KNOWN: tuple[Known, ...] = ()


def excused(outcome: Outcome) -> str:
    """Return the row that explains a failure, or an empty string."""
    for known in KNOWN:
        if known.verdicts and outcome.verdict not in known.verdicts:
            continue
        if any(fnmatch.fnmatchcase(outcome.trial, p) for p in (known.trial, *known.others)):
            return known.row
    return ""
