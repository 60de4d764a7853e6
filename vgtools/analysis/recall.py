"""How well texts find their images and images their texts: R@k and median rank, with intervals.

Axes: B texts, I images, S bootstrap samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from vgtools.analysis.bootstrap import draws, share_ends, with_interval
from vgtools.io.arrays import Array

KS = (1, 5, 10)
_BLOCK = 1 << 22  # numbers held at a time: 32 MB


def at_k(ranks: Array) -> dict[str, float]:
    """Return R@1, R@5 and R@10 in percent from ranks that start at 1; 0 without ranks."""
    return {f"r{k}": round(100 * float((ranks <= k).mean()), 2) if len(ranks) else 0.0 for k in KS}


def text_ranks(order: Array, own: Array) -> Array:
    """Return the rank of each text's own image among all images; 1 is the best.

    Among equal images the lower column comes first, as in retrieval. A text that asks for nothing
    (-inf) has the last rank.

    Args:
        order: (B, I) number of each image for a text, the largest first; -inf is not found.
        own: (B,) column of the text's own image.
    """
    columns = np.arange(order.shape[1])
    mine = own[:, None]
    true = np.take_along_axis(order, mine, 1)
    ahead = (order > true) | ((order == true) & (columns < mine))
    ranks: Array = np.where(np.isneginf(true[:, 0]), order.shape[1], 1 + ahead.sum(1))
    return ranks


def image_ranks(relevance: Array, own: Array) -> Array:
    """Return the rank of each image's best own text among all texts; otherwise as `text_ranks`.

    Args:
        relevance: (B, I).
        own: (B,) column of each text's image; each image has a text.
    """
    count = relevance.shape[1]
    ranks = np.empty(count, np.int64)
    step = max(1, _BLOCK // max(1, len(own)))
    for start in range(0, count, step):
        scores = np.asarray(relevance[:, start : start + step])
        images = np.arange(start, start + scores.shape[1])
        mine = np.where(own[:, None] == images, scores, -np.inf)
        best = mine.max(0)
        # Among texts as relevant as the best own text, the texts above it come first, so that a
        # constant score gains nothing from ties.
        first = np.argmax((mine == best) & (own[:, None] == images), axis=0)
        above = np.arange(len(own))[:, None] < first
        ahead = (scores > best) | ((scores == best) & above)
        ranks[images] = np.where(np.isneginf(best), len(own), 1 + ahead.sum(0))
    return ranks


def both_ways(
    blocks: Iterable[tuple[Array, Array]], own: Array, *, samples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """Return R@1, 5, 10 in percent and the median rank both ways, with 95 % intervals.

    Intervals are bootstrapped over images, and an image's texts are drawn with it: captions of one
    image are not independent.

    Args:
        blocks: (b, I) order and relevance of the images for successive texts, -inf where an image
            is not found; all of B x I relevances are held, as float32.
        own: (B,) column of each text's image; each image has a text.
        samples: S, how many samples are drawn.
        seed: decides which samples are drawn.

    Returns:
        `without`, texts that find nothing; `text_to_image` and `image_to_text`, with the result of
        a random order under `chance`. All rounded to 2 places.
    """
    return _rounded(_both_ways(blocks, own, samples, seed))


def _both_ways(
    blocks: Iterable[tuple[Array, Array]], own: Array, samples: int, seed: int = 0
) -> dict[str, Any]:
    count = int(own.max()) + 1
    table = np.empty((len(own), count), np.float32)
    texts = np.empty(len(own), np.int64)
    done = 0
    for order, relevance in blocks:
        part = slice(done, done + len(order))
        texts[part] = text_ranks(order, own[part])
        table[part] = relevance
        done = part.stop
    images = image_ranks(table, own)
    right = np.bincount(own, minlength=count)  # texts of each image
    # A multinomial gives how often each image is drawn, all that a sample needs: (S, I) counts
    # instead of S copies of the ranks.
    drawn = draws(count, samples, seed)
    return {
        "without": int(np.isneginf(table).all(1).sum()),
        "text_to_image": _measured(texts, own, drawn) | _chance(np.ones(1), count),
        "image_to_text": _measured(images, np.arange(count), drawn) | _chance(right, len(own)),
    }


def mean_of_folds(
    own: Array, folds: int, ranked: Callable[[Array, Array], Iterable[tuple[Array, Array]]]
) -> dict[str, Any]:
    """Return the mean of recalls and median ranks over parts of the images.

    Args:
        own: (B,) column of each text's image; each image has a text.
        folds: parts, consecutive in the columns' order, of equal size but for one image.
        ranked: returns the blocks of `both_ways` for the texts and the columns of a part.

    Returns:
        `count`, the fewest images of a part, `text_to_image` and `image_to_text`.
    """
    parts = np.array_split(np.arange(int(own.max()) + 1), folds)
    found = []
    for columns in parts:
        texts = np.flatnonzero(np.isin(own, columns))
        blocks = ranked(texts, columns)
        found.append(_both_ways(blocks, own[texts] - columns[0], samples=1))
    names = [*(f"r{k}" for k in KS), "median_rank"]
    means = {
        way: {name: float(np.mean([f[way][name] for f in found])) for name in names}
        for way in ("text_to_image", "image_to_text")
    }
    return {"count": folds, "images": min(map(len, parts)), **_rounded(means)}


def _rounded(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with every number at 2 places."""
    return {
        name: _rounded(value) if isinstance(value, Mapping) else round(value, 2)
        for name, value in record.items()
    }


def _chance(right: Array, count: int) -> dict[str, Any]:
    """Return R@k of a random order of `count` things, (Q,) of which are right for each query."""
    found = {}
    for k in KS:
        drawn = np.arange(min(k, count))
        # The chance that k draws without replacement miss all right ones. A factor is 0 once more
        # are drawn than wrong ones exist, and the maximum keeps it there.
        miss = np.prod(np.maximum(count - right[:, None] - drawn, 0) / (count - drawn), axis=1)
        found[f"r{k}"] = 100 * float(1 - miss.mean())
    return {"chance": found}


def _measured(ranks: Array, image: Array, drawn: Array) -> dict[str, Any]:
    """Return recall and median of ranks with intervals.

    Args:
        ranks: (Q,) from 1.
        image: (Q,) image of each query.
        drawn: (S, I) how often a sample holds each image.
    """
    images = drawn.shape[1]
    total = np.bincount(image, minlength=images)
    found: dict[str, Any] = {}
    for k in KS:
        hits = ranks <= k
        low, high = share_ends(np.bincount(image, hits, minlength=images), total, drawn)
        ends = {f"r{k}_low": 100 * low, f"r{k}_high": 100 * high}
        found |= {f"r{k}": 100 * float(hits.mean())} | ends
    order = np.argsort(ranks, kind="stable")
    ranks = ranks[order]
    medians = list[Array]()
    step = max(1, _BLOCK // len(ranks))
    for start in range(0, len(drawn), step):
        weights = drawn[start : start + step][:, image[order]].astype(np.float64)  # (s, Q)
        medians.append(_median(ranks, weights))
    return found | with_interval("median_rank", np.median(ranks), np.concatenate(medians))


def _median(ranks: Array, weights: Array) -> Array:
    """Return (S,) medians of sorted (Q,) ranks that count (S, Q) times."""
    upto = np.cumsum(weights, 1)
    total = upto[:, -1:]
    # The two middle places of 1 … total; where they are one, it counts twice.
    low = (upto < np.floor((total + 1) / 2)).sum(1)
    high = (upto < np.ceil((total + 1) / 2)).sum(1)
    middle: Array = (ranks[low] + ranks[high]) / 2
    return middle
