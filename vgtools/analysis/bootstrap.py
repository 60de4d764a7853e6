"""The bootstrap over groups, such as photos, whose items are drawn together.

Source: Efron 1979 (Bootstrap methods), percentile intervals; Efron 1987 (Better bootstrap
confidence intervals), section 3, for shares.
"""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np

from vgtools.io.arrays import Array

_ENDS = (0.025, 0.975)
_FEW = 50  # groups, below which samples of them show too little of their spread


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

    Args:
        right: (G,) right items of each group.
        total: (G,) items of each group; at least one group has any.
        drawn: (S, G) how often each sample draws each group.

    Source: as `mean_share_ends`.
    """
    share, without, error = ratio(right, total)
    shares = _ratio(drawn @ right, drawn @ total)
    whole = np.array_equal(right, np.round(right))
    least = item_error(share, total.sum()) if whole else 0.0
    return mean_share_ends(share, shares, without, int((total > 0).sum()), max(error, least))


def ratio(right: Array, total: Array) -> tuple[Any, Array, Any]:
    """Return a sum over groups of another, the same without each group, and its standard error.

    Args:
        right: (G,), or (G, n) for n ratios.
        total: (G,) items of each group; at least one group has any.

    Returns:
        A number or (n,), (G,) or (G, n), a number or (n,).
    """
    size = int((total > 0).sum())
    items = total.reshape(-1, *[1] * (right.ndim - 1))
    value = right.sum(0) / total.sum()
    without = (right.sum(0) - right) / np.maximum(total.sum() - items, 1)
    squares = ((right - value * items) ** 2).sum(0)
    return value, without, np.sqrt(squares * size / max(size - 1, 1)) / total.sum()


def item_error(share: Any, items: int) -> Any:
    """Return the standard error of a share of right answers as if items were drawn one by one."""
    return np.sqrt(share * (1 - share) / items)


def mean_share_ends(
    share: float, shares: Array, without: Array, size: int, error: float
) -> list[float]:
    """Return the ends of the 95 % interval of a share, or of a mean of shares.

    Percentiles of the samples miss the share too often where few items are right or groups are few
    (`tests/benchmarks/null.py`): `corrected_ends` chooses which are taken. Below 50 groups samples
    still differ too little, and an interval from the standard error widens theirs. One group alone
    shows no spread.

    Args:
        share: the share of all items, from 0 to 1.
        shares: (S,) the same of each sample.
        without: (G,) the share without each group.
        size: number of groups.
        error: standard error of the share; for right and wrong answers at least as large as if they
            were drawn one by one.

    Source: as `corrected_ends`; Korn & Graubard 1999 (Analysis of health surveys), section 3.2, for
        the log odds.
    """
    if share in (0, 1):
        # All samples agree. The true share that gives this in all groups in 2.5 % of cases is the
        # end of Clopper & Pearson 1934 (The use of confidence or fiducial limits).
        away = 1 - _ENDS[0] ** (1 / size)
        return [0.0, away] if share == 0 else [1 - away, 1.0]
    if size == 1:
        return [0.0, 1.0]
    low, high = corrected_ends(share, shares, without, size)
    if size >= _FEW:
        return [low, high]
    # Log odds keep the ends between 0 and 1; half of them are the inverse of tanh.
    odds = np.log(share / (1 - share))
    step = _t(size - 1) * error / (share * (1 - share))
    ends = (1 + np.tanh((odds + step * np.array([-1, 1])) / 2)) / 2
    return [min(low, float(ends[0])), max(high, float(ends[1]))]


def difference_ends(
    value: float, samples: Array, without: Array, size: int, error: float
) -> list[float]:
    """Return the ends of the 95 % interval of a difference of shares.

    The ends of `corrected_ends` are widened to where Student's t has them, for many groups too:
    most differences of rare hits are 0. One group alone shows no spread.

    Args:
        value: the value of all items, from -1 to 1.
        samples: (S,) the same of each sample.
        without: (G,) the difference without each group.
        size: number of groups.
        error: standard error of the difference.
    """
    if size == 1:
        return [-1.0, 1.0]
    if max(np.ptp(samples), error) < 1e-12:
        # All groups agree, but for rounding. As for a share, those that nobody has seen may differ
        # by all there is.
        away = 1 - _ENDS[0] ** (1 / size)
        return [value - away * (1 + value), value + away * (1 - value)]
    low, high = corrected_ends(value, samples, without, size)
    step = _t(size - 1) * error
    return [max(-1.0, min(low, value - step)), min(1.0, max(high, value + step))]


def corrected_ends(value: float, samples: Array, without: Array, size: int) -> list[float]:
    """Return the ends of the 95 % interval of a value, corrected for bias, skew and few groups.

    Args:
        value: the value of all items.
        samples: (S,) the same of each sample.
        without: (G,) the value without each group, whose asymmetry is the skew (acceleration).
        size: number of groups, at least 2.

    Source: Efron 1987, equations 3.8 and 6.6, with t of G - 1 degrees of freedom for z, as
        Hesterberg 2015 (What teachers should know about the bootstrap), section 5.3, has it.
    """
    apart = without.mean() - without
    spread = float(np.sqrt((apart**2).sum()))
    skew = float((apart**3).sum()) / (6 * spread**3) if spread else 0.0
    # Samples that equal the value count half: many do where few items are right, without a bias.
    below = ((samples < value).sum() + (samples == value).sum() / 2) / len(samples)
    normal = NormalDist()
    # A value beyond all samples would have an infinite bias; S samples show half of one at most.
    bias = normal.inv_cdf(min(max(below, 0.5 / len(samples)), 1 - 0.5 / len(samples)))
    # The variance over samples has G for G - 1: the second factor makes up for it.
    reach = _t(size - 1) * (size / (size - 1)) ** 0.5
    at = [bias + (bias + z) / (1 - skew * (bias + z)) for z in (-reach, reach)]
    low, high = np.quantile(samples, [normal.cdf(z) for z in at]).tolist()
    return [low, high]


def _ratio(right: Array, total: Array) -> Array:
    """Return shares; samples without any item have none."""
    found: Array = right[total > 0] / total[total > 0]
    return found


def _t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to 0.01; from 8 degrees of freedom on to 3 places.

    Source: Abramowitz & Stegun 1964, 26.7.5; its table for the first three.
    """
    if freedom < 4:
        return (12.7062, 4.3027, 3.1824)[freedom - 1]
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
