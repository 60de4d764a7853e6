"""Words of held-out texts that are hidden: how surprised is a masked language model?

Words rather than their occurrences are the items, so that intervals are over words.

Axes: R texts, O occurrences of words, N words.

Source: Devlin et al. 2019 (BERT), section 3.1, of whole words; Brysbaert, Warriner & Kuperman 2014
(concreteness), for classes of words.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_texts
from vgtools.measures.evaluation import LEAST, GoldItems, Measure, content_of
from vgtools.measures.norms import read_norms
from vgtools.measures.subject import Subject, unknown_id
from vgtools.text.tokens import hidden_words, tokenize, word_runs

_EVERY = 7  # one word in seven is hidden at a time, about as many as in pretraining
_AT_ONCE = 256  # texts
_THIRDS = ("low", "middle", "high")


class MaskedWords(Measure):
    """Words of texts, each hidden once wherever it occurs.

    Args:
        name: the evaluation.
        texts: R texts.
        values: word -> value; words are grouped by the thirds of the values of these words.
        title: name of the values.
    """

    def __init__(
        self, name: str, texts: Sequence[str], values: dict[str, float], title: str = ""
    ) -> None:
        self.texts = texts
        spans, self._starts = word_runs(texts)
        text = np.repeat(np.arange(len(texts)), np.diff(self._starts)).tolist()
        words = [texts[r][a:b].lower() for r, (a, b) in zip(text, spans.tolist(), strict=True)]
        keys = list(dict.fromkeys(words))
        place = {word: number for number, word in enumerate(keys)}
        self._word = np.array([place[word] for word in words], np.int64)  # (O,)
        own = np.array([values.get(word, np.nan) for word in keys])
        cuts = np.quantile(own[np.isfinite(own)], (1 / 3, 2 / 3)) if np.isfinite(own).any() else []
        third = np.searchsorted(cuts, own)
        groups = [
            f"{title} {_THIRDS[place]}" if known else ""
            for place, known in zip(third.tolist(), np.isfinite(own).tolist(), strict=True)
        ]
        self.items = GoldItems(
            name=name,
            kind="masked words",
            statistic="loss",
            keys=keys,
            gold=np.zeros(len(keys)),
            groups=groups if any(groups) else (),
            content=content_of(texts),
        )

    def ask(self, subject: Subject) -> Array | None:
        """Return the negative log likelihood of each occurrence, all its pieces hidden: (O,) nats.

        NaN where the text has more tokens than the encoder takes, or the tokenizer does not know
        the word.
        """
        if subject.cloze is None:
            return None
        found = np.full(len(self._word), np.nan)
        for start in range(0, len(self.texts), _AT_ONCE):
            texts = self.texts[start : start + _AT_ONCE]
            first, last = self._starts[[start, start + len(texts)]]
            found[first:last] = word_losses(subject, texts)
        return found

    def predict(self, answers: Array, known: Array) -> Array:
        """Return the mean of each word over its occurrences that are known to all."""
        own = self._word[known]
        size = len(self.items.keys)
        with np.errstate(invalid="ignore"):
            return np.bincount(own, answers[known], size) / np.bincount(own, minlength=size)


def word_losses(subject: Subject, texts: Sequence[str]) -> Array:
    """Return the summed losses of the pieces of each word of texts, in the order of `word_runs`."""
    from vgtools.models.cloze import spaced

    model = subject.cloze
    assert model is not None
    tokens = tokenize(model.text.tokenizer, texts)
    word, number = hidden_words(texts, tokens.spans, tokens.starts)
    short = np.diff(tokens.starts) <= model.text.max_tokens
    inside = (word >= 0) & np.repeat(short, np.diff(tokens.starts))
    losses = model.losses(tokens.ids, spaced(tokens.starts, np.where(inside, number, -1), _EVERY))
    losses[tokens.ids == unknown_id(model.text.tokenizer)] = np.nan
    count = int(word_runs(texts)[1][-1])
    sums = np.bincount(word[inside], losses[inside], count)
    read = np.bincount(word[inside], minlength=count) > 0
    return np.where(read, sums, np.nan)


def read_masked_words(path: str, thirds: str | None = None) -> MaskedWords:
    """Read a text, or rows with "text".

    Args:
        path: the text.
        thirds: rows of `vg prepare norms`, by whose values words are divided into three groups.

    Raises:
        DataError: a file cannot be read, the text has fewer than three words, or the values are
            classes (65).
    """
    values = dict[str, float]()
    if thirds is not None:
        norms = read_norms(thirds).items
        if norms.labels:
            raise DataError("has classes of words; thirds need numbers", thirds)
        values = dict(zip(norms.keys, norms.gold.tolist(), strict=True))
    name = f"{os.path.basename(path)} masked words"
    found = MaskedWords(name, list(read_texts(path)), values, Path(thirds or "").stem)
    if len(found.items.keys) < LEAST:
        raise DataError(f"has {len(found.items.keys)} words; {LEAST} are needed", path)
    return found
