"""Perplexities of masked words, with intervals, and how two models differ on the same words.

Axes: N texts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.tasks.metrics import paired_bootstrap


@dataclass(frozen=True)
class TextScores:
    """A model's likelihood of the masked words of each text."""

    tokens: Array  # (N,) int64, masked words of each text
    nll: Array  # (N,) float64, their summed negative log likelihood in nats

    def within(self, groups: Array) -> TextScores:
        """Return the scores of groups of texts.

        Args:
            groups: (N,) int64, the group of each text.
        """
        counts = np.bincount(groups, self.tokens).astype(np.int64)
        return TextScores(counts, np.bincount(groups, self.nll))


def perplexity(mean: float) -> float:
    """Return exp of a mean negative log likelihood, finite whatever a model gives."""
    return math.exp(min(700.0, mean))


def mean_nll(tokens: Array, nll: Array, weights: Array | None = None) -> Array:
    """Return the mean negative log likelihood per word, a statistic of `paired_bootstrap`.

    Args:
        tokens: (N,) words of each text or group of texts.
        nll: (N,) their summed negative log likelihood.
        weights: (N,) or (samples, N); 1 each by default.
    """
    weights = np.ones(len(tokens)) if weights is None else weights
    return np.asarray((weights @ nll) / np.maximum(weights @ tokens, 1))


def summary(
    scores: TextScores,
    first: TextScores | None,
    groups: Array,
    *,
    samples: int = 10_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Return the perplexity of a model with its 95 % interval, and its difference from another.

    The difference is paired: a sample draws groups of texts, the same for both. Groups of very
    unequal numbers of masked words count for fewer, as in `paired_bootstrap`.

    Args:
        scores: scores of the model.
        first: scores of the model to compare with, on the same masked words.
        groups: (N,) int64, the group of each text, for example its image: texts of a group are
            drawn together.
        samples: bootstrap samples.
        seed: seed of the samples.

    Returns:
        `tokens`, `nll` (per word), `perplexity`, `low` and `high` of its interval, and `difference`
        in nats per word, below 0 where this model is better, with `low`, `high` and `p`. Ends and p
        are None if all masked words are in one group.

    Raises:
        ValueError: no word is masked.

    Source: Sileo 2021, table 2 (perplexities); intervals as `paired_bootstrap`.
    """
    if not scores.tokens.sum():
        raise ValueError("no word is masked")
    mine = scores.within(groups)
    asked = mine.tokens > 0  # a group without masked words is not an item of the draw
    tokens = mine.tokens[asked]
    nll = mine.nll[asked]
    # Against a likelihood of 1 everywhere, the difference is the value itself, with its interval.
    nothing = np.zeros(len(tokens))
    drawn: dict[str, Any] = {"samples": samples, "seed": seed, "sizes": tokens}
    found = paired_bootstrap(mean_nll, tokens, nothing, nll, **drawn)
    record: dict[str, Any] = {
        "tokens": int(tokens.sum()),
        "nll": found.value,
        "perplexity": perplexity(found.value),
        "low": None if found.low is None else perplexity(max(0.0, found.low)),
        "high": None if found.high is None else perplexity(found.high),
    }
    if first is not None:
        other = first.within(groups).nll[asked]
        change = paired_bootstrap(mean_nll, tokens, other, nll, **drawn)
        record["difference"] = {
            "nll": change.value,
            "low": change.low,
            "high": change.high,
            "p": change.p,
        }
    return record


def groups_of(images: Array) -> Array:
    """Return the group of each text: texts of an image together, a text without image alone.

    Args:
        images: (N,) image of each text, -1 for none.
    """
    alone = np.flatnonzero(images < 0)
    groups = np.array(images, np.int64)
    # Numbers above all images give each text without an image a group that no other text has.
    groups[alone] = groups.max(initial=-1) + 1 + np.arange(len(alone))
    return np.unique(groups, return_inverse=True)[1]


def records(
    names: Sequence[dict[str, Any]],
    whole: Sequence[TextScores],
    content: Sequence[TextScores],
    groups: Array,
    samples: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Return one record per model, each compared with the first; content words apart.

    Args:
        names: the keys that identify each model in its record.
        whole: scores of all masked words.
        content: scores of the masked content words.
        groups: (N,) the group of each text.
        samples: bootstrap samples.
        seed: seed of the samples.
    """
    found = list[dict[str, Any]]()
    for i, name in enumerate(names):
        record = {**name, "texts": len(groups), "groups": int(groups.max()) + 1}
        first = whole[0] if i else None
        record |= summary(whole[i], first, groups, samples=samples, seed=seed)
        if content[i].tokens.sum():
            first = content[0] if i else None
            record["content"] = summary(content[i], first, groups, samples=samples, seed=seed)
        found.append(record)
    return found


def uncertain(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return a remark if numbers of `records` have no interval and no p."""
    parts = {
        "masked words": [record["low"] for record in found],
        "masked content words": [r["content"]["low"] for r in found if "content" in r],
    }
    words = next((name for name, ends in parts.items() if None in ends), None)
    if words is None:
        return []
    why = f"all {words} are in one text, or in texts of one image"
    return [f"{why}: they have no interval and no p, which need two or more"]
