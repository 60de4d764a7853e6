"""Norms of words: can a linear map read a value or a class of words from their vectors?

Axes: N words, D dimensions, C classes.

Source: ridge regression by words in ten folds; Brysbaert, Warriner & Kuperman 2014 (concreteness).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.measures.evaluation import GoldItems, Measure
from vgtools.measures.ridge import FOLDS, cross_validated
from vgtools.measures.subject import Subject
from vgtools.tasks.predictions import check_number, number_in


class Norms(Measure):
    """Words in lower case with numbers, or with classes.

    Args:
        name: their file.
        words: N, each once.
        gold: (N,) float64, numbers or places in `labels`.
        labels: names of classes.
    """

    def __init__(
        self, name: str, words: Sequence[str], gold: Array, labels: Sequence[str] = ()
    ) -> None:
        self.items = GoldItems(
            name=name,
            kind="word classes" if labels else "word norms",
            statistic="accuracy" if labels else "pearson",
            keys=words,
            gold=gold,
            labels=labels,
            folds=FOLDS,
        )
        self.words = [(word,) for word in words]

    def ask(self, subject: Subject) -> Array:
        """Return the vectors of the words: (N, D)."""
        return subject.words(self.items.keys)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return each word's value by ridge regression, or the class whose value is highest."""
        items = self.items
        found = np.full(len(known), np.nan)
        if known.sum() > 1:
            x = answers[known].astype(np.float64)
            gold = items.gold[known, None]
            y = gold == np.arange(len(items.labels)) if items.labels else gold
            values = cross_validated(x, y.astype(np.float64))
            found[known] = values.argmax(1) if items.labels else values[:, 0]
        return found


def read_norms(path: str) -> Norms:
    """Read rows {"word", "value"} of `vg prepare norms` and the like; strings are classes.

    Raises:
        DataError: it cannot be read, a word is there twice, values are neither all numbers nor all
            strings (65, file and line), or there are fewer words than folds.
    """
    values = dict[str, float | str]()
    classes = False
    for line, row in read_jsonl(path, {"word": str}):
        value = row.get("value")
        if not values:
            classes = isinstance(number_in(value, path), str)
        if not classes:
            value = check_number("value", number_in(value, path), path, line)
        elif not isinstance(value, str):
            why = f'"value" must be a string as in the rows before, got {value!r:.60}'
            raise DataError(why, path, line)
        word = row["word"].lower()
        if word in values:
            raise DataError(f"duplicate word {word!r:.60}; keep one of the rows", path, line)
        values[word] = value
    if len(values) < FOLDS:
        why = f"has {len(values)} words; a regression in {FOLDS} folds needs {FOLDS} or more"
        raise DataError(why, path)
    name = os.path.basename(path)
    if not classes:
        return Norms(name, list(values), np.array([*values.values()], float))
    labels = sorted({str(value) for value in values.values()})
    place = {label: number for number, label in enumerate(labels)}
    gold = np.array([place[str(value)] for value in values.values()], float)
    return Norms(name, list(values), gold, labels)
