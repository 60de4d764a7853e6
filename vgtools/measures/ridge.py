"""Ridge regression with cross-validation, in closed form.

Axes: N items, D dimensions, C outputs, A strengths of the penalty.
"""

from __future__ import annotations

import numpy as np

from vgtools.io.arrays import Array

FOLDS = 10
# Strengths of the penalty, in units of the mean variance of a dimension times the items: vectors
# that are twice as long give the same predictions.
STRENGTHS = tuple(10.0**power for power in range(-6, 4))


def cross_validated(x: Array, y: Array, seed: int = 0) -> Array:
    """Return predictions of each item by a regression on the items of the other folds.

    Each regression has an intercept, which is not penalised, and the strength with the least
    squared error of its own items, each predicted from the others of the nine folds.

    Args:
        x: (N, D) vectors.
        y: (N, C) values.
        seed: seed of the folds; they depend on nothing else but N.

    Returns:
        (N, C).
    """
    fold = np.random.default_rng(seed).permutation(len(x)) % FOLDS
    found = np.zeros(y.shape)
    for number in range(min(FOLDS, len(x))):
        inside = fold != number
        weights, intercept = fit(x[inside], y[inside])
        found[~inside] = x[~inside] @ weights + intercept
    return found


def fit(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the weights (D, C) and the intercept (C,) of a regression.

    The strength of the penalty is the one of `STRENGTHS` whose squared error is least if each item
    is predicted from all others.

    Source: Allen 1974 (PRESS), for the errors of items that are left out; Hoerl & Kennard 1970.
    """
    mean = x.mean(0)
    level = y.mean(0)
    apart = x - mean
    values, vectors = np.linalg.eigh(apart.T @ apart)
    turned = apart @ vectors  # (N, D)
    squares = turned**2
    target = turned.T @ (y - level)  # (D, C)
    scale = max(float(values.mean()), 0.0) or 1.0
    best = (np.inf, np.zeros_like(values))
    for strength in STRENGTHS:
        shrunk = 1 / (np.maximum(values, 0) + strength * scale)
        rest = y - level - turned @ (shrunk[:, None] * target)
        own = 1 / len(x) + squares @ shrunk  # weight of each item in its own prediction
        error = float((rest**2).sum(1) @ (1 / np.maximum(1 - own, 1e-9) ** 2))
        best = min(best, (error, shrunk), key=lambda pair: pair[0])
    weights = vectors @ (best[1][:, None] * target)
    return weights, level - mean @ weights
