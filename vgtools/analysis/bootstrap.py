"""The bootstrap over groups, such as photos, whose items are drawn together.

Source: Efron 1979 (Bootstrap methods), percentile intervals; Efron 1987 (Better bootstrap
confidence intervals), section 3, for shares.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np

from vgtools.io.arrays import Array

_ENDS = (0.025, 0.975)


def draws(groups: int, samples: int, seed: int = 0) -> Array:
    """Return how often each sample draws each group: (samples, groups) int64."""
    # Counts weigh groups without copying their items, so that a sample is a product of matrices.
    rng = np.random.default_rng(seed)
    drawn: Array = rng.multinomial(groups, np.full(groups, 1 / groups), samples)
    return drawn


def ends(values: Array) -> list[float]:
    """Return the ends of the 95 % interval of the samples' values, (S,)."""
    return [float(end) for end in np.quantile(values, _ENDS)]


def share_ends(right: Array, total: Array, drawn: Array) -> list[float]:
    """Return the ends of the 95 % interval of a share, a sum over groups of another.

    Percentiles of the samples miss the share too often where few items are right or groups are few
    (`tests/benchmarks/null.py`): which percentiles are taken follows from the bias and the skew of
    the samples, and from Student's distribution.

    Args:
        right: (G,) right items of each group.
        total: (G,) items of each group; at least one group has any.
        drawn: (S, G) how often each sample draws each group.

    Source: Efron 1987, equations 3.8 and 6.6, with t of G - 1 degrees of freedom for z, as
        Hesterberg 2015 (What teachers should know about the bootstrap), section 5.3, has it.
    """
    share = right.sum() / total.sum()
    size = int((total > 0).sum())
    if share in (0, 1):
        # All samples agree. The true share that gives this in all groups in 2.5 % of cases is the
        # end of Clopper & Pearson 1934 (The use of confidence or fiducial limits).
        away = 1 - _ENDS[0] ** (1 / size)
        return [0.0, away] if share == 0 else [1 - away, 1.0]
    if size == 1:
        return [float(share)] * 2  # every sample has the one group
    shares = _ratio(drawn @ right, drawn @ total)
    # The share without each group, whose asymmetry is the skew of the share (acceleration).
    without = _ratio(right.sum() - right, total.sum() - total)
    apart = without.mean() - without
    spread = float(np.sqrt((apart**2).sum()))
    if not spread:
        return [float(share)] * 2
    skew = float((apart**3).sum()) / (6 * spread**3)
    # Samples that equal the share count half: many do where few items are right, without a bias.
    below = ((shares < share).sum() + (shares == share).sum() / 2) / len(shares)
    normal = NormalDist()
    # A share beyond all samples would have an infinite bias; S samples show half of one at most.
    bias = normal.inv_cdf(min(max(below, 0.5 / len(shares)), 1 - 0.5 / len(shares)))
    # The variance over samples has G for G - 1: the second factor makes up for it.
    reach = _t(size - 1) * (size / (size - 1)) ** 0.5
    at = [bias + (bias + z) / (1 - skew * (bias + z)) for z in (-reach, reach)]
    return [float(end) for end in np.quantile(shares, [normal.cdf(z) for z in at])]


def _ratio(right: Array, total: Array) -> Array:
    """Return shares; samples without any item have none."""
    found: Array = right[total > 0] / total[total > 0]
    return found


def _t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to 3 places from 8 degrees of freedom on.

    Source: Abramowitz & Stegun 1964, 26.7.5.
    """
    z = NormalDist().inv_cdf(_ENDS[1])
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(sum(term / freedom**power for power, term in enumerate(terms)))


def with_interval(name: str, value: float, samples: Array, scale: float = 1.0) -> dict[str, float]:
    """Return a value and its 95 % interval under NAME, NAME_low and NAME_high.

    Args:
        name: NAME.
        value: value of all items.
        samples: (S,) values of the samples.
        scale: factor of the three, 100 for percent.
    """
    numbers = (value, *ends(samples))
    keys = (name, f"{name}_low", f"{name}_high")
    return {key: scale * float(number) for key, number in zip(keys, numbers, strict=True)}
