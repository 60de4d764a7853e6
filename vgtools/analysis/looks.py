"""How the things that words name look: the mean whitened feature of the photos of each word.

Axes: N photos, D dimensions of their features, W words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from vgtools.io.arrays import Array


def shrinkage(features: Array) -> float:
    """Return how far to move the covariance of features towards a multiple of the identity.

    Args:
        features: (N, D) float64, centred.

    Returns:
        From 0 (the covariance itself) to 1: the weight that minimises the expected squared error.

    Source: Ledoit & Wolf 2004 (A well-conditioned estimator for large-dimensional covariance
        matrices), lemmas 3.2 to 3.4.
    """
    count, width = features.shape
    # The squares of S = xᵀx / N are summed over the smaller of xᵀx and x xᵀ, which have the same.
    gram = features.T @ features if width <= count else features @ features.T
    squares = float((gram**2).sum()) / count**2
    norms = (features**2).sum(1)
    mean = float(norms.sum()) / (count * width)
    apart = squares - width * mean**2  # |S - mean I|²
    noise = float((norms**2).sum()) / count**2 - squares / count  # how far photos scatter around S
    return min(1.0, noise / apart) if apart > 0 else 1.0


def whiten(features: Array) -> tuple[Array, float]:
    """Return features whose directions all count alike, and the shrinkage used.

    Without it a cosine of features would be about the few directions in which photos vary most.

    Args:
        features: (N, D).

    Returns:
        (N, D) float64: coordinates along the principal components, each divided by the standard
        deviation there, of the shrunk covariance; and its `shrinkage`.
    """
    x = np.asarray(features, np.float64)
    x = x - x.mean(0)
    weight = shrinkage(x)
    values, directions = np.linalg.eigh(x.T @ x / len(x))
    shrunk = (1 - weight) * np.maximum(values, 0) + weight * values.mean()
    white = (x @ directions) / np.sqrt(np.where(shrunk > 0, shrunk, 1))
    return white, weight


def photos_of_words(words: Sequence[Sequence[str]], least: int) -> dict[str, Array]:
    """Return the numbers of the photos of each word, (P,) int64, in alphabetical order.

    Args:
        words: for each photo the words of its captions; a repeated word counts once.
        least: leave out words of fewer photos.
    """
    photos = dict[str, list[int]]()
    for photo, named in enumerate(words):
        for word in set(named):
            photos.setdefault(word, []).append(photo)
    kept = sorted(word for word, rows in photos.items() if len(rows) >= least)
    return {word: np.array(photos[word]) for word in kept}


def word_looks(features: Array, photos: Iterable[Array]) -> Array:
    """Return the mean feature of the photos of each word: (W, D).

    Args:
        features: (N, D) of photos.
        photos: W arrays of their numbers.
    """
    return np.stack([features[rows].mean(0) for rows in photos])
