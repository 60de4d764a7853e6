"""Pairs of words: do cosines of their vectors rank them as people do?

Axes: W words, P pairs, D dimensions.

Pairs that share a word are not independent, but bootstrapped as if they were: under no difference
p < 0.05 in 7 to 8 % of draws with MEN's pairs per word, in 17 % with 1,000 pairs of 100 words.

Source: Finkelstein et al. 2002 (WordSim-353); Hill, Reichart & Korhonen 2015 (SimLex-999).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import parse_number, read_lines
from vgtools.measures.evaluation import LEAST, GoldItems, Measure, numbered
from vgtools.measures.subject import Subject

_SCORES = ("simlex999", "human (mean)", "human", "score", "similarity", "relatedness")


class WordPairs(Measure):
    """Pairs of words in lower case, with people's scores of them.

    Args:
        name: their file.
        pairs: P pairs; one that is rated twice is two items.
        scores: (P,) float64.
    """

    def __init__(self, name: str, pairs: Sequence[tuple[str, str]], scores: Array) -> None:
        self.items = GoldItems(
            name=name,
            kind="word pairs",
            statistic="spearman",
            keys=numbered(map(" ".join, pairs)),
            gold=scores,
        )
        self.words = pairs
        self._distinct = sorted({word for pair in pairs for word in pair})

    def ask(self, subject: Subject) -> Array:
        """Return the vectors of the words of all pairs, each once: (W, D)."""
        return subject.words(self._distinct)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return the cosine of each pair, after the mean of the known words is subtracted."""
        row = {word: number for number, word in enumerate(self._distinct)}
        places = np.array([[row[word] for word in pair] for pair in self.words])
        return cosines(centred(answers, known), places)


def centred(vectors: Array, known: Array) -> Array:
    """Return (U, D) float64 vectors less the mean of the known ones, NaN for the others."""
    own = np.where(known[:, None], vectors, np.nan).astype(np.float64)
    return own - (own[known].mean(0) if known.any() else 0.0)


def read_pairs(path: str) -> WordPairs:
    """Read pairs of words with scores, in columns between tabs, commas or blanks.

    Lines that start with # are left out. A first line without a number has the names of the
    columns; the score is in the column that is named so (as in SimLex-999), else in the third, or
    in the fourth after a part of speech (as in SimVerb-3500).

    Raises:
        DataError: it cannot be read (66), a line has no two words and a number, or there are fewer
            than three pairs (65).
    """
    words = list[tuple[str, str]]()
    scores = list[float]()
    column = 2
    separator: str | None = None
    first = True
    for line, text in enumerate(read_lines(path), 1):
        if not text.strip() or text.startswith("#"):
            continue
        if first:
            separator = next((mark for mark in "\t," if mark in text), None)
        cells = [cell.strip() for cell in text.split(separator)]
        numbers = [parse_number(cell) is not None for cell in cells[2:4]]
        if first and numbers == [False, True]:
            column = 3
        elif first and len(cells) > 2 and not numbers[0] and not cells[2][:1].isdigit():
            names = [cell.lower() for cell in cells]
            column = next((names.index(name) for name in _SCORES if name in names), 2)
            first = False
            continue
        first = False
        score = parse_number(cells[column]) if len(cells) > column else None
        if score is None or not math.isfinite(score) or not (cells[0] and cells[1]):
            why = f"expected two words and a score in column {column + 1}, got {text!r:.60}"
            raise DataError(why, path, line)
        words.append((cells[0].lower(), cells[1].lower()))
        scores.append(score)
    if len(words) < LEAST:
        why = f"has {len(words)} pairs of words; a ranking needs {LEAST} or more"
        raise DataError(why, path)
    return WordPairs(os.path.basename(path), words, np.array(scores))


def cosines(vectors: Array, pairs: Array) -> Array:
    """Return the cosine of each pair, NaN where a vector is not known or is zero.

    Args:
        vectors: (W, D).
        pairs: (P, 2) rows of the vectors.
    """
    with np.errstate(invalid="ignore"):
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine: Array = (unit[pairs[:, 0]] * unit[pairs[:, 1]]).sum(1)
    return cosine
