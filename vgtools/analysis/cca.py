"""How much of the space of one set of word vectors is found in another set's space: PWCCA.

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

SHUFFLES = 5  # shuffles of the control


class Space:
    """N vectors, centred, as an orthonormal basis and the loadings of their dimensions on it.

    Args:
        vectors: (N, D).

    Attributes:
        basis: (N, R) orthonormal columns.
        loadings: (R, D) where basis @ loadings are the centred vectors, in float64.
        dropped: how many dimensions are the same number for every word; they carry no information.
    """

    def __init__(self, vectors: Array) -> None:
        values = np.asarray(vectors, np.float64)
        # A constant dimension is 0 after centring. Its rounding errors would be counted as a
        # direction if it stayed.
        varied = np.ptp(values, axis=0) > 0
        self.dropped = int((~varied).sum())
        centred = values[:, varied] - values[:, varied].mean(0)
        basis, sizes, directions = np.linalg.svd(centred, full_matrices=False)
        # This is the threshold of numpy's matrix_rank: below it a singular value is rounding error,
        # and its direction would correlate by accident.
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
    weights: Array  # (S,) weights of the first space; they sum to 1
    reverse_weights: Array  # (S,) weights of the second space

    @property
    def mean(self) -> float:
        """Return the mean correlation: every direction counts the same."""
        return float(self.values.mean())

    @property
    def pwcca(self) -> float:
        """Return the mean weighted by how much of the first space a direction explains."""
        return float(self.weights @ self.values)

    @property
    def reverse(self) -> float:
        """Return the mean weighted by how much of the second space a direction explains."""
        return float(self.reverse_weights @ self.values)


def correlate(first: Space, second: Space, order: Array | None = None) -> Correlations:
    """Return the canonical correlations of two spaces of the same words.

    Args:
        first: the space of N words.
        second: the other space of the same N words.
        order: (N,) the row of the second space for each row of the first; None: the same row.

    Source: Morcos et al. 2018, section 3: the variates h = Q_x U of X = Q_x R_x, where
    U S V' = svd(Q_x' Q_y), weigh sum_j |<h_i, x_j>|. Any orthonormal basis gives the same; ours are
    the singular vectors, which show the rank.
    """
    other = second.basis if order is None else second.basis[order]
    left, values, right = np.linalg.svd(first.basis.T @ other, full_matrices=False)
    return Correlations(
        # Rounding gives cosines such as 1 + 1e-16.
        np.clip(values, 0, 1),
        _shares(np.abs(left.T @ first.loadings).sum(1)),
        _shares(np.abs(right @ second.loadings).sum(1)),
    )


def _shares(sizes: Array) -> Array:
    shares: Array = sizes / sizes.sum()
    return shares


def compare_spaces(first: Space, second: Space, seed: int = 0) -> dict[str, Any]:
    """Return how much two spaces of the same N words share, and how much chance alone gives.

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
    # Centring takes one dimension: two subspaces of N - 1 dimensions whose ranks sum to N or more
    # always intersect, so some correlations would be exactly 1 for any vectors.
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
