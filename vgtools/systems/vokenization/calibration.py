"""How probable it is that a voken is right: relevance and how often captions held the word.

Relevance alone cannot be compared across words: a matcher gives a word that no caption ever held a
photo as near as any other. A logistic model over relevance and the number of training captions with
the word's stem, fitted on captions held out of training, gives a probability; it grows with the
relevance, so that it changes no voken. A voken is right if a caption of its photo holds the stem.

Deviation: not in Tan & Bansal 2020 (Vokenization), section 3.1, whose scores are relevances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError

_STEPS = 50  # most steps of Newton's method; five to ten are usually enough
_RIDGE = 1e-3  # keeps the weights finite where the classes are separable


@dataclass(frozen=True)
class Calibration:
    """The model of a matcher, an entry of its `run.json`."""

    relevance: float  # weight, not negative
    captions: float  # weight of the logarithm of 1 + captions with the stem
    bias: float
    stems: Mapping[str, int]  # training captions that hold each stem

    @classmethod
    def of(cls, info: Mapping[str, Any], file: str | Path) -> Calibration | None:
        """Return the model of a run's `run.json`; None where the run was not validated.

        Raises:
            DataError: it is damaged (65).
        """
        stored = info.get("calibration")
        if stored is None:
            return None
        found: Mapping[str, Any] = stored if isinstance(stored, Mapping) else {}
        weights = [found.get(name) for name in ("relevance", "captions", "bias")]
        stems = found.get("stems")
        counts = list(stems.values()) if isinstance(stems, Mapping) else [None]
        # Types are compared exactly, because True is also an int.
        odd = {*map(type, weights)} - {int, float} or {*map(type, counts)} - {int}
        if odd or len(found) != 4:
            why = '"calibration": expected three weights and how many captions hold each stem'
            raise DataError(f"{why}; train the matcher again", file)
        return cls(**found)

    def probability(self, relevance: Array, stems: Sequence[str]) -> Array:
        """Return the probability that each voken is right: (T, k) float32 in [0, 1].

        Args:
            relevance: (T, k) relevance of the images of each token.
            stems: T stems of the words that the tokens are part of; empty outside words.
        """
        counts = np.array([self.stems.get(stem, 0) for stem in stems], np.float64)
        known = self.captions * np.log1p(counts) + self.bias
        return _logistic(self.relevance * relevance + known[:, None]).astype(np.float32)


@dataclass(frozen=True)
class PairProbability:
    """A SigLIP's own probability that a text and a picture belong together, pair by pair.

    Source: Zhai et al. 2023 (SigLIP), equation 1.
    """

    scale: float
    bias: float

    def probability(self, relevance: Array, stems: Sequence[str]) -> Array:
        """Return the probability of each voken, (T, k) float32; it does not read the stems."""
        logits = self.scale * relevance.astype(np.float64) + self.bias
        return _logistic(logits).astype(np.float32)


Probability = Calibration | PairProbability


def fit_calibration(
    relevance: Array, stems: Sequence[str], right: Array, counts: Mapping[str, int]
) -> Calibration:
    """Return the logistic model of right vokens, by maximum likelihood.

    Args:
        relevance: (T,) relevance of the best image of each held-out token.
        stems: T stems of their words.
        right: (T,) bool.
        counts: training captions that hold each stem.
    """
    known = np.log1p(np.array([counts.get(stem, 0) for stem in stems], np.float64))
    one = np.ones(len(known))
    weights = _newton(np.column_stack([relevance, known, one]), right)
    if weights[0] < 0:
        # More relevant images would be less probable: relevance has no use here, so it is dropped.
        weights = np.concatenate([[0.0], _newton(np.column_stack([known, one]), right)])
    relevant, often, bias = (round(float(weight), 6) for weight in weights)
    return Calibration(relevant, often, bias, dict(counts))


def _newton(x: Array, right: Array) -> Array:
    """Return the weights of logistic regression: (N, D) float64, (N,) bool -> (D,)."""
    x = x.astype(np.float64)
    weights = np.zeros(x.shape[1])
    for _ in range(_STEPS):
        p = _logistic(x @ weights)
        curvature = (x * (p * (1 - p))[:, None]).T @ x + _RIDGE * np.eye(x.shape[1])
        step = np.linalg.solve(curvature, x.T @ (right - p) - _RIDGE * weights)
        weights += step
        if np.abs(step).max() < 1e-9:
            break
    return weights


def _logistic(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))  # Unlike exp, tanh does not overflow.


def reliability(scores: Array, right: Array) -> list[dict[str, float]]:
    """Return the reliability curve: the mean of the scores in each fifth, and how many were right.

    Args:
        scores: (T,) probabilities.
        right: (T,) bool.

    Returns:
        `from`, where the fifth starts, `score` and `right` in percent, and `count`, per fifth that
        has a score.
    """
    place = np.minimum((np.asarray(scores, np.float64) * 5).astype(int), 4)
    return [
        {
            "from": 20.0 * n,
            "score": round(100 * float(scores[place == n].mean()), 2),
            "right": round(100 * float(right[place == n].mean()), 2),
            "count": int((place == n).sum()),
        }
        for n in np.unique(place).tolist()
    ]
