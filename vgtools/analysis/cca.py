"""How much of the space of one set of word vectors is found in that of another: PWCCA.

Axes: N words, D dimensions, R rank, S canonical correlations (the smaller rank).

Source: Morcos et al. 2018, "Insights on representational similarity in neural networks with
canonical correlation", sections 2 and 3; XDBERT (Hsu et al. 2022), section 4, Table 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError

SHUFFLES = 5  # of the control


class Space:
    """N vectors, centred, as an orthonormal basis and what each of their dimensions has of it.

    Args:
        vectors: (N, D).

    Attributes:
        basis: (N, R) orthonormal columns.
        loadings: (R, D) where basis @ loadings are the centred vectors, in float64.
        dropped: how many dimensions are the same number for every word; they say nothing.
    """

    def __init__(self, vectors: Array) -> None:
        values = np.asarray(vectors, np.float64)
        varied = np.ptp(values, axis=0) > 0
        self.dropped = int((~varied).sum())
        centred = values[:, varied] - values[:, varied].mean(0)
        basis, sizes, directions = np.linalg.svd(centred, full_matrices=False)
        kept = sizes > sizes.max(initial=0) * max(centred.shape) * np.finfo(np.float64).eps
        self.basis: Array = basis[:, kept]
        self.loadings: Array = (sizes[:, None] * directions)[kept]

    @property
    def rank(self) -> int:
        """Return R."""
        return int(self.basis.shape[1])

    @property
    def width(self) -> int:
        """Return D, without the dropped dimensions."""
        return int(self.loadings.shape[1])


@dataclass(frozen=True)
class Correlations:
    """Canonical correlations of two spaces, and how much each counts for either."""

    values: Array  # (S,) descending, in [0, 1]
    weights: Array  # (S,) of the first space; they sum to 1
    reverse_weights: Array  # (S,) of the second

    @property
    def mean(self) -> float:
        """Return the mean correlation: every direction counts the same."""
        return float(self.values.mean())

    @property
    def pwcca(self) -> float:
        """Return the mean weighted by what each direction explains of the first space."""
        return float(self.weights @ self.values)

    @property
    def reverse(self) -> float:
        """Return the mean weighted by what each direction explains of the second space."""
        return float(self.reverse_weights @ self.values)


def correlate(first: Space, second: Space, order: Array | None = None) -> Correlations:
    """Return the canonical correlations of two spaces of the same words.

    Args:
        first: of N words.
        second: of N words.
        order: (N,) rows of the second space that belong to those of the first; None: the same.

    Source: Morcos et al. 2018, section 3: the variates h = Q_x U of X = Q_x R_x, where
    U S V' = svd(Q_x' Q_y), weigh sum_j |<h_i, x_j>|. Any orthonormal basis gives the same: ours is
    that of the singular vectors, which shows the rank.
    """
    other = second.basis if order is None else second.basis[order]
    left, values, right = np.linalg.svd(first.basis.T @ other, full_matrices=False)
    return Correlations(
        np.clip(values, 0, 1),
        _shares(np.abs(left.T @ first.loadings).sum(1)),
        _shares(np.abs(right @ second.loadings).sum(1)),
    )


def _shares(sizes: Array) -> Array:
    shares: Array = sizes / sizes.sum()
    return shares


def compare_spaces(first: Space, second: Space, seed: int = 0) -> dict[str, Any]:
    """Return what two spaces of the same N words share, beside what chance alone gives.

    The control pairs every word with the vector of another: it is far above 0, because N words
    leave room for 2 R dimensions to agree by accident.

    Returns:
        `n`, `ranks`, `dropped` (dimensions of each that are constant), `pwcca` (weights of the
        first), `reverse` (weights of the second), `mean_cca`, and `shuffled`: the mean `pwcca` and
        `mean_cca` of some shuffles, and the least and the greatest pwcca of them.

    Raises:
        DataError: there are no more words than dimensions of both together: every correlation
            would be 1, whatever the vectors.
    """
    n = len(first.basis)
    if n <= first.rank + second.rank or not min(first.rank, second.rank):
        both = f"{first.width} and {second.width} dimensions"
        why = f"{n} common words, but {both}: every correlation would be 1"
        raise DataError(f"{why}; more words than dimensions of both together are needed")
    found = correlate(first, second)
    generator = np.random.default_rng(seed)
    control = [correlate(first, second, generator.permutation(n)) for _ in range(SHUFFLES)]
    values = [each.pwcca for each in control]
    return {
        "n": n,
        "ranks": [first.rank, second.rank],
        "dropped": [first.dropped, second.dropped],
        "pwcca": found.pwcca,
        "reverse": found.reverse,
        "mean_cca": found.mean,
        "shuffled": {
            "pwcca": float(np.mean(values)),
            "low": min(values),
            "high": max(values),
            "mean_cca": float(np.mean([each.mean for each in control])),
        },
    }
