"""How alike two sets of vectors of the same things are: shared neighbours, and linear CKA.

Both are means over things, of values of their own, so that two encoders can be compared on the
same things.

Axes: N things, D and E dimensions of their two vectors.
"""

from __future__ import annotations

import numpy as np

from vgtools.io.arrays import Array

_BLOCK = 1 << 22  # similarities held at a time: 32 MB


def neighbours(vectors: Array, k: int) -> Array:
    """Return the rows of each thing's nearest others by cosine, nearest first: (N, k) int64.

    Args:
        vectors: (N, D); a vector of length 0 is equally far from all others.
        k: below N.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths > 0, lengths, 1)
    found = np.empty((len(unit), k), np.int64)
    step = max(1, _BLOCK // len(unit))
    for start in range(0, len(unit), step):
        far = -(unit[start : start + step] @ unit.T)
        own = np.arange(len(far))
        far[own, start + own] = np.inf
        near = np.argpartition(far, k - 1)[:, :k]
        order = np.argsort(np.take_along_axis(far, near, 1), axis=1, kind="stable")
        found[start : start + step] = np.take_along_axis(near, order, 1)
    return found


def shared_neighbours(first: Array, second: Array, k: int = 10) -> tuple[float, Array]:
    """Return the share of nearest neighbours that two sets of vectors agree on, and its values.

    Chance gives k / (N - 1) on average. A thing is a neighbour of others, so that their shares
    depend on it: intervals from the shares alone, as if they were independent, covered 81 to 87 %
    instead of 95 %. The value of a thing is its share, and half of the loss of all other shares
    without it. With the whole loss (the jackknife's pseudo-values) standard errors are 1.5 times
    the true ones, because each pair counts for both of its things; with half of it, 1.0 to 1.15
    times.

    Args:
        first: (N, D).
        second: (N, E).
        k: neighbours of a thing, below N - 1.

    Returns:
        The share, from 0 to 1, and (N,) values, whose mean it is and whose spread gives its
        standard error.

    Source: Huh et al. 2024 (The Platonic representation hypothesis), appendix A, mutual k-nearest
        neighbours with k = 10.
    """
    # The next neighbour takes the place of one that is left out.
    (near, after), (others, next_other) = (
        (found[:, :k], found[:, k:]) for found in (neighbours(x, k + 1) for x in (first, second))
    )
    size = len(near)
    kept = np.stack([_among(near[:, place], others) for place in range(k)], 1)  # near, in both
    shared = kept.sum(1)
    new = _among(after[:, 0], others).astype(np.int64)
    new_other = _among(next_other[:, 0], near).astype(np.int64)
    both = new + new_other + (after == next_other)[:, 0]
    # Shared neighbours that all other things would gain without each thing.
    gain = np.zeros(size)
    np.add.at(gain, near, np.where(kept, (both - 1)[:, None], new[:, None]))
    alone = ~np.stack([_among(others[:, place], near) for place in range(k)], 1)
    np.add.at(gain, others, np.where(alone, new_other[:, None], 0))
    values: Array = (shared - (gain - gain.mean()) / 2) / k
    return float(shared.mean() / k), values


def _among(rows: Array, sets: Array) -> Array:
    """Return whether each row is in its set: (N,) and (N, k) -> (N,)."""
    found: Array = (rows[:, None] == sets).any(1)
    return found


def linear_cka(first: Array, second: Array) -> tuple[float, Array]:
    """Return the unbiased linear CKA of two sets of vectors, and the value of each thing in it.

    The values of things are the jackknife's pseudo-values N c - (N - 1) c₋ᵢ, where c₋ᵢ is the CKA
    without thing i: their mean is the CKA less the jackknife's estimate of its bias, and their
    spread gives its standard error, so that paired intervals over things are intervals of CKA.

    Args:
        first: (N, D), five things or more.
        second: (N, E).

    Returns:
        CKA, about 0 for unrelated vectors and 1 for those that a rotation and a scale make equal;
        and (N,) pseudo-values. NaN where all vectors of one side are the same.

    Source: Kornblith et al. 2019 (Similarity of neural network representations revisited), section
        3, with the unbiased estimate of Song et al. 2012 (Feature selection via dependence
        maximization), equation 5; Tukey 1958 for pseudo-values.
    """
    # The estimate does not depend on where the origin is; near the vectors less rounding is lost.
    x, y = (np.asarray(side, np.float64) - np.mean(side, 0, np.float64) for side in (first, second))
    with np.errstate(invalid="ignore", divide="ignore"):
        found = _hsic(x, y) / np.sqrt(_hsic(x, x) * _hsic(y, y))
    whole = float(found[0])
    return whole, len(x) * whole - (len(x) - 1) * found[1:]


def _hsic(x: Array, y: Array) -> Array:
    """Return the unbiased HSIC of all things, then without each of them: (1 + N,).

    The Gram matrices K = x xᵀ and L = y yᵀ with diagonals of 0 are never made: all that the
    estimate needs of them are sums.
    """
    n = len(x)
    x_own = (x * x).sum(1)  # diagonals that are left out
    y_own = (y * y).sum(1)
    rows = x @ x.sum(0) - x_own  # sums of the rows of K
    others = y @ y.sum(0) - y_own  # sums of the rows of L
    both = ((x @ (x.T @ y)) * y).sum(1) - x_own * y_own  # sums of the rows of K ∘ L
    crossed = x @ (x.T @ others) - x_own * others + y @ (y.T @ rows) - y_own * rows
    product = float(rows @ others)
    return np.concatenate(
        [
            _estimate(n, both.sum(keepdims=True), rows.sum(), others.sum(), product),
            # A thing that is left out takes a row and a column with it.
            _estimate(
                n - 1,
                both.sum() - 2 * both,
                rows.sum() - 2 * rows,
                others.sum() - 2 * others,
                product - rows * others - crossed + both,
            ),
        ]
    )


def _estimate(n: int, both: Array, k: Array, m: Array, product: Array | float) -> Array:
    """Return HSIC from the sums over K ∘ L, over K and over L, and 1ᵀ K L 1."""
    found: Array = both + k * m / ((n - 1) * (n - 2)) - 2 / (n - 2) * product
    return found / (n * (n - 3))
