"""Word similarity: do the vectors of words rank pairs of words as people do, and which words' do?

A word is read alone, by the text encoder, and its vector is the mean of its tokens' last states;
word vectors are taken as they are. Two words are as alike as the cosine of their vectors.

Axes: W words, P pairs, D dimensions.

Source: Finkelstein et al. 2002 (WordSim-353); Hill, Reichart & Korhonen 2015 (SimLex-999).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_lines
from vgtools.models.embeddings import open_words
from vgtools.tasks import metrics
from vgtools.text import word_vectors

_SCORES = ("simlex999", "human (mean)", "human", "score", "similarity", "relatedness")
_LEAST = 3  # pairs that can be ranked in more than one way


@dataclass(frozen=True)
class Pairs:
    """Pairs of words in lower case, with people's scores of them."""

    words: list[tuple[str, str]]
    scores: Array  # (P,) float64


def read_pairs(path: str) -> Pairs:
    """Read pairs of words with scores, in columns between tabs, commas or blanks.

    Lines that start with # are left out. A first line without a number has the names of the
    columns; the score is in the column that is named so (as in SimLex-999), else in the third.

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
        if first and len(cells) > 2 and _number(cells[2]) is None:
            names = [cell.lower() for cell in cells]
            column = next((names.index(name) for name in _SCORES if name in names), 2)
            first = False
            continue
        first = False
        score = _number(cells[column]) if len(cells) > column else None
        if score is None or not math.isfinite(score) or not (cells[0] and cells[1]):
            why = f"expected two words and a score in column {column + 1}, got {text!r:.60}"
            raise DataError(why, path, line)
        words.append((cells[0].lower(), cells[1].lower()))
        scores.append(score)
    if len(words) < _LEAST:
        why = f"has {len(words)} pairs of words; a ranking needs {_LEAST} or more"
        raise DataError(why, path)
    return Pairs(words, np.array(scores))


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def word_states(ref: str, words: Sequence[str], *, offline: bool = False) -> Array:
    """Return the vectors of words: (W, D) float64, NaN for a word that is not known.

    Args:
        ref: an encoder, or word vectors (X.npy of `vg prepare vectors`, `builtin:glove-50d`).
        words: each by itself.
        offline: never connect.

    Raises:
        DataError: it cannot be opened.
    """
    if word_vectors.are_word_vectors(ref):
        table = open_words(ref)
        vectors = np.full((len(words), table.array.shape[1]), np.nan)
        known = [word in table.rows for word in words]
        vectors[known] = table.vectors([word for word in words if word in table.rows])
        return vectors
    from vgtools.models.encoder import load_encoder
    from vgtools.models.packed import PackedEncoder
    from vgtools.text.tokens import tokenize

    encoder = load_encoder(ref, offline=offline)
    tokens = tokenize(encoder.tokenizer, words)
    lengths = np.diff(tokens.starts)
    vectors = np.full((len(words), encoder.width), np.nan)
    for hidden in PackedEncoder(encoder, 1)(tokens.ids, tokens.starts[:-1], lengths):
        states = hidden.tokens.double().cpu().numpy()
        ends = np.cumsum(lengths[hidden.segments])
        for segment, end in zip(hidden.segments, ends, strict=True):
            if lengths[segment]:
                vectors[segment] = states[end - lengths[segment] : end].mean(0)
    return vectors


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


def compare_similarity(
    refs: Sequence[str],
    path: str,
    grounded: frozenset[str] | None = None,
    samples: int = 10_000,
    seed: int = 0,
    *,
    offline: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield a record per encoder: how well it ranks the pairs, and how much better than the first.

    Only pairs that all of them know are ranked, so that all rank the same pairs.

    Args:
        refs: encoders or word vectors, the baseline first.
        path: pairs, as `read_pairs` reads them.
        grounded: words that are visually grounded; pairs of two such words are ranked apart from
            all others.
        samples: samples of the bootstrap over pairs, which gives the intervals and p-values.
        seed: seed of the bootstrap.
        offline: never connect.

    Returns:
        Records of `encoder`, `pairs`, `left_out` and `groups`: for `all`, `grounded` and `other`
        the `pairs`, Spearman's `rho` with its 95 % interval `low` to `high`, and `difference` from
        the first with `low`, `high` and `p`.

    Raises:
        DataError: a file or an encoder cannot be read, or fewer than three pairs are known to all
            (65).
    """
    pairs = read_pairs(path)
    words = sorted({word for pair in pairs.words for word in pair})
    row = {word: number for number, word in enumerate(words)}
    places = np.array([[row[word] for word in pair] for pair in pairs.words])
    found = [cosines(word_states(ref, words, offline=offline), places) for ref in refs]
    known: Array = np.isfinite(np.stack(found)).all(0)
    if known.sum() < _LEAST:
        why = f"{known.sum()} of its {len(known)} pairs are known to all; {_LEAST} are needed"
        raise DataError(why, path)
    groups = {"all": known}
    if grounded is not None:
        seen = np.array([all(word in grounded for word in pair) for pair in pairs.words])
        groups |= {"grounded": known & seen, "other": known & ~seen}
    for number, (ref, cosine) in enumerate(zip(refs, found, strict=True)):
        yield {
            "encoder": ref,
            "file": path,
            "pairs": int(known.sum()),
            "left_out": int((~known).sum()),
            "groups": {
                name: _ranked(
                    pairs.scores[kept],
                    cosine[kept],
                    found[0][kept] if number else None,
                    samples,
                    seed,
                )
                for name, kept in groups.items()
                if kept.sum() >= _LEAST
            },
        }


def _ranked(
    gold: Array, cosine: Array, first: Array | None, samples: int, seed: int
) -> dict[str, Any]:
    # The correlation of a constant is 0, so that the difference from it, which the bootstrap gives
    # with an interval, is the correlation itself.
    own = metrics.paired_bootstrap(
        metrics.spearman, gold, np.zeros(len(gold)), cosine, samples=samples, seed=seed
    )
    record = {"pairs": len(gold), "rho": own.value, "low": own.low, "high": own.high}
    if first is None:
        return record
    gain = metrics.paired_bootstrap(
        metrics.spearman, gold, first, cosine, samples=samples, seed=seed
    )
    difference = {"value": gain.value, "low": gain.low, "high": gain.high, "p": gain.p}
    return record | {"difference": difference}
