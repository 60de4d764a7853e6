"""Pairs of sentences: do cosines of their vectors rank them as people do?

Axes: P pairs, S sentences, D dimensions.

Source: Cer et al. 2017 (STS benchmark); Marelli et al. 2014 (SICK, relatedness).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.measures.evaluation import LEAST, GoldItems, Measure, content_of
from vgtools.measures.pairs import centred, cosines
from vgtools.measures.subject import Subject
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.table import Form, find_task

_STS = find_task("sts-b")
# STS-B in its forms, SICK's relatedness, and rows {"sentence1", "sentence2", "score"}.
_SICK = Form(("sentence_A", "sentence_B"), "relatedness_score", id="pair_ID")
_TASK = replace(_STS, forms=(*_STS.forms, _SICK), low=-1000.0, high=1000.0)


class SentencePairs(Measure):
    """Pairs of sentences with people's scores of them.

    Args:
        name: their file.
        keys: P ids.
        pairs: P pairs.
        scores: (P,) float64.
    """

    def __init__(
        self, name: str, keys: Sequence[str], pairs: Sequence[tuple[str, str]], scores: Array
    ) -> None:
        self.items = GoldItems(
            name=name,
            kind="sentence pairs",
            statistic="spearman",
            keys=keys,
            gold=scores,
            content=content_of(pairs),
        )
        self.texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        row = {text: number for number, text in enumerate(self.texts)}
        self._places = np.array([[row[text] for text in pair] for pair in pairs])

    def ask(self, subject: Subject) -> Array:
        """Return the vectors of the sentences of all pairs, each once: (S, D)."""
        return subject.sentences(self.texts)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return the cosine of each pair, after the mean of the known sentences is subtracted."""
        return cosines(centred(answers, known), self._places)


def are_sentences(first: str) -> bool:
    """Return whether a first line is one of STS-B or SICK: a header, or texts in its columns."""
    cells = first.split("\t")
    return bool({"sentence1", "sentence_A"} & {*cells}) or (len(cells) > 6 and " " in cells[5])


def read_sentence_pairs(path: str) -> SentencePairs:
    """Read pairs of sentences with scores.

    Raises:
        DataError: as `read_examples`, or there are fewer than three pairs (65).
    """
    rows = list(read_examples(_TASK, path))
    if len(rows) < LEAST:
        raise DataError(f"has {len(rows)} pairs; a ranking needs {LEAST} or more", path)
    pairs = [(row.text, str(row.pair)) for row in rows]
    scores = np.array([row.label for row in rows], float)
    return SentencePairs(os.path.basename(path), [row.id for row in rows], pairs, scores)
