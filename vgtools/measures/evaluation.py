"""The protocol of an evaluation, and its items with the predictions of each encoder.

Axes: N items, U units that encoders are asked for (words, sentences), E encoders.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.files import dumps
from vgtools.measures.subject import Subject
from vgtools.tasks.metrics import METRICS, Statistic, mean

LEAST = 3  # items that can be ranked in more than one way
_SEED = re.compile(r"(.+)/seed-\d+")
PERMUTED = "photos permuted"  # kind of items of a control, in which encoders are not compared
# Means are for values that need no gold; a loss is better the lower it is.
STATISTICS: dict[str, Statistic] = {**METRICS, "mean": mean, "loss": mean}


@dataclass(frozen=True, kw_only=True)
class GoldItems:
    """Items with the values that are to be predicted."""

    name: str  # name of their file
    kind: str  # a plural such as word pairs
    statistic: str  # in STATISTICS
    keys: Sequence[str]  # N, each once
    gold: Array  # (N,) float64, numbers, or places in `labels`
    labels: Sequence[str] = ()  # names of classes
    groups: Sequence[str] = ()  # N names: items of one name are also compared by themselves
    folds: int = 0  # in which predictions are cross-validated; 0 where none is learned from items
    content: str = ""  # sha256 of the data that predictions follow from


def content_of(*parts: object) -> str:
    """Return the sha256 of parts of items: JSON values and arrays."""
    found = hashlib.sha256()
    for part in parts:
        array = isinstance(part, np.ndarray)
        found.update(np.ascontiguousarray(part).data.cast("B") if array else dumps(part))
    return found.hexdigest()


class Measure(ABC):
    """An evaluation that a file describes.

    A module has a function that opens its kind of file; `open_evaluation` of `run.py` calls it.
    """

    items: GoldItems
    words: Sequence[Sequence[str]] = ()  # the words of each item, in lower case
    alone = False  # whether a prediction depends on its own units only, not on all known ones

    @abstractmethod
    def ask(self, subject: Subject) -> Array | None:
        """Return the answers of a subject: (U, …), NaN for a unit that it does not know.

        None if it cannot be asked: word vectors have no masked words. A subject can be asked for
        `words` only, and for any sentence.
        """

    @abstractmethod
    def predict(self, answers: Array, known: Array) -> Array:
        """Return the prediction of each item: (N,) float64, NaN where a unit of it is not known.

        Args:
            answers: (U, …) of one subject.
            known: (U,) bool, the units that all subjects know: no other may have an influence.
        """


@dataclass(frozen=True)
class Measured:
    """Items with the predictions of every encoder."""

    items: GoldItems
    # E of (N,) float64: NaN for an unknown item; None: the encoder was not asked.
    predictions: Sequence[Array | None]
    grounded: Array | None = None  # (N,) bool, items whose words are all visually grounded


def numbered(names: Iterable[str]) -> list[str]:
    """Return names with a number after those that came before: `a`, `b`, `a (2)`."""
    count = Counter[str]()
    found = list[str]()
    for name in names:
        count[name] += 1
        found.append(f"{name} ({count[name]})" if count[name] > 1 else name)
    return found


def runs_of(ref: str) -> list[str]:
    """Return the runs ref/seed-0, ref/seed-1, … of a folder; any other reference as it is."""
    folder = Path(ref)
    runs = sorted(folder.glob("seed-*/run.json"), key=lambda path: (len(str(path)), str(path)))
    return (
        [str(run.parent) for run in runs] if not (folder / "run.json").exists() and runs else [ref]
    )


def rows_of(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the rows of a comparison and the places of their encoders.

    ROW/seed-0, ROW/seed-1, … are the runs of one row, ROW. Every other encoder is a row itself,
    numbered if its name came before: `a`, `b`, `a (2)`.
    """
    rows = dict[str, list[int]]()
    for place, name in enumerate(numbered(name.rstrip("/") for name in names)):
        seeded = _SEED.fullmatch(name)
        rows.setdefault(seeded[1] if seeded else name, []).append(place)
    return rows
