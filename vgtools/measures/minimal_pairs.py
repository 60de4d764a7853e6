"""Minimal pairs: does a masked language model find the acceptable sentence likelier?

Axes: P pairs.

Source: Warstadt et al. 2020 (BLiMP); Salazar et al. 2020 (Masked language model scoring), section
4.3, for masked language models.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.measures.evaluation import LEAST, GoldItems, Measure, content_of, numbered
from vgtools.measures.subject import Subject
from vgtools.text.tokens import hidden_words, tokenize

KEYS = ("good", "bad", "phenomenon", "paradigm")
_AT_ONCE = 512  # pairs


class MinimalPairs(Measure):
    """Pairs of an acceptable sentence and another.

    Args:
        name: their file.
        pairs: P pairs, the acceptable sentence first.
        phenomena: P names of the phenomenon that the sentences differ in.
        paradigms: P names of kinds of pairs, several to a phenomenon.
    """

    alone = True

    def __init__(
        self,
        name: str,
        pairs: Sequence[tuple[str, str]],
        phenomena: Sequence[str],
        paradigms: Sequence[str],
    ) -> None:
        self.items = GoldItems(
            name=name,
            kind="minimal pairs",
            statistic="accuracy",
            keys=numbered(paradigms),
            gold=np.ones(len(pairs)),
            groups=phenomena,
            content=content_of(pairs),
        )
        self.pairs = pairs

    def ask(self, subject: Subject) -> Array | None:
        """Return how much likelier the acceptable sentence is, in nats: (P,).

        NaN where a sentence has more tokens than the encoder takes.
        """
        if subject.cloze is None:
            return None
        found = list[Array]()
        for start in range(0, len(self.pairs), _AT_ONCE):
            texts = [text for pair in self.pairs[start : start + _AT_ONCE] for text in pair]
            good, bad = sentence_losses(subject, texts).reshape(-1, 2).T
            found.append(bad - good)
        return np.concatenate(found)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return 1 where the acceptable sentence is likelier, else 0, also where they are equal."""
        return np.where(np.isfinite(answers), answers > 0, np.nan)


def sentence_losses(subject: Subject, texts: Sequence[str]) -> Array:
    """Return the negative pseudo-log-likelihood of sentences, in nats: (R,).

    Each token is hidden in turn, with the rest of its word: else the later pieces of a rare word
    give away the earlier ones.

    Source: Salazar et al. 2020, equation 1; Kauf & Ivanova 2023 (A better way to do masked language
        model scoring), section 3, for the rest of the word.
    """
    from vgtools.models.cloze import one_by_one

    model = subject.cloze
    assert model is not None
    tokens = tokenize(model.text.tokenizer, texts)
    short = np.diff(tokens.starts) <= model.text.max_tokens
    if not short.all():
        texts = [text if kept else "" for text, kept in zip(texts, short, strict=True)]
        tokens = tokenize(model.text.tokenizer, texts)
    cloze = one_by_one(tokens.starts, word_ends(texts, tokens.spans, tokens.starts))
    row = np.repeat(np.arange(len(texts)), np.diff(tokens.starts))
    sums = np.bincount(row, model.losses(tokens.ids, cloze), len(texts))
    return np.where(short, sums, np.nan)


def word_ends(texts: Sequence[str], spans: Array, starts: Array) -> Array:
    """Return the token after the last of each token's word, or after itself outside words: (T,).

    Args:
        texts: R texts.
        spans: (T, 2) spans of tokens.
        starts: (R + 1,) row starts.
    """
    _, words = hidden_words(texts, spans, starts)
    row = np.repeat(np.arange(len(texts)), np.diff(starts))
    last = np.ones(len(words), bool)
    last[:-1] = (words[1:] != words[:-1]) | (row[1:] != row[:-1]) | (words[:-1] < 0)
    ends = np.flatnonzero(last)
    found: Array = ends[np.searchsorted(ends, np.arange(len(words)))] + 1
    return found


def read_minimal_pairs(path: str) -> MinimalPairs:
    """Read rows of `vg prepare minimal-pairs`.

    Raises:
        DataError: it cannot be read, a key is missing (65, file and line), or there are fewer than
            three pairs.
    """
    rows = [row for _, row in read_jsonl(path, dict.fromkeys(KEYS, str))]
    if len(rows) < LEAST:
        raise DataError(f"has {len(rows)} pairs; {LEAST} or more are needed", path)
    pairs = [(row["good"], row["bad"]) for row in rows]
    names = ([row[key] for row in rows] for key in KEYS[2:])
    return MinimalPairs(os.path.basename(path), pairs, *names)
