"""Metrics over labels and scores, and the paired bootstrap over them.

Metrics are fractions, as the official scripts define them; `rmse` has the unit of its labels. Every
metric takes `weights`, how often each item counts: a bootstrap sample is a row of weights, so one
matrix product scores thousands of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vgtools.io.arrays import Array

# (N,) gold, (N,) predicted or (N, S) counts, (..., N) weights or None -> (...)
Statistic = Callable[[Array, Array, "Array | None"], Array]
# (..., S) sums of counts -> (...)
Combine = Callable[[Array], Array]


def _weights(gold: Array, predicted: Array, weights: Array | None) -> Array:
    if len(gold) != len(predicted) or not len(gold):
        counts = f"{len(gold)} gold items and {len(predicted)} predictions"
        raise ValueError(f"expected as many of both, one or more; got {counts}")
    return np.ones(len(gold)) if weights is None else np.asarray(weights, np.float64)


def _ratio(above: Array, below: Array) -> Array:
    """Divide, with 0 where the metric is undefined (0 / 0)."""
    zeros = np.zeros_like(np.asarray(below, np.float64))
    return np.asarray(np.divide(above, below, out=zeros, where=below > 0))


def accuracy(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return the share of items whose label is right.

    Args:
        gold: (N,) labels.
        predicted: (N,) labels.
        weights: (..., N) how often each item counts; None counts each once.

    Returns:
        (...) in [0, 1].

    Raises:
        ValueError: no items, or not as many of both.
    """
    w = _weights(gold, predicted, weights)
    return np.asarray(w @ (gold == predicted) / w.sum(-1))


def f1(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return F1 of the class 1, as GLUE scores MRPC and QQP; 0 where no item is or was predicted 1.

    Args and errors as `accuracy`.
    """
    w = _weights(gold, predicted, weights)
    hits = w @ ((gold == 1) & (predicted == 1))
    return _ratio(2 * hits, w @ (gold == 1) + w @ (predicted == 1))


def macro_f1(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return the mean of F1 over the classes of a sample, gold or predicted.

    Args and errors as `accuracy`.
    """
    w = _weights(gold, predicted, weights)
    classes = np.union1d(gold, predicted)
    hits = np.stack([w @ ((gold == c) & (predicted == c)) for c in classes])
    both = np.stack([w @ (gold == c) + w @ (predicted == c) for c in classes])
    return np.asarray(_ratio(2 * hits, both).sum(0) / (both > 0).sum(0))


def matthews(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return Matthews' correlation in [-1, 1], as GLUE scores CoLA.

    It is 0 where one side has one class only. More than two classes give the R_K of Gorodkin
    (2004), which is the same for two. Args and errors as `accuracy`.
    """
    w = _weights(gold, predicted, weights)
    total = w.sum(-1)
    right = w @ (gold == predicted)
    classes = np.union1d(gold, predicted)
    real = np.stack([w @ (gold == c) for c in classes])
    said = np.stack([w @ (predicted == c) for c in classes])
    spread = (total**2 - (real**2).sum(0)) * (total**2 - (said**2).sum(0))
    above = right * total - (real * said).sum(0)
    return np.asarray(np.clip(_ratio(above, np.sqrt(np.maximum(spread, 0))), -1, 1))


def pearson(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return Pearson's correlation in [-1, 1]; 0 where one side is constant.

    Args and errors as `accuracy`, with numbers for labels.

    Deviation: the usual libraries give NaN for a constant side. A collapsed model is worth 0 in a
        table of runs.
    """
    w = _weights(gold, predicted, weights)
    return _correlation(np.asarray(gold, np.float64), np.asarray(predicted, np.float64), w)


def _correlation(x: Array, y: Array, w: Array) -> Array:
    """Return the weighted correlation of x and y: (N,), or (..., N) with one row per sample."""

    def total(values: Array) -> Array:
        return np.asarray(w @ values if values.ndim == 1 else (w * values).sum(-1))

    # Centred close to the samples' means, so that the differences of squares below keep digits.
    x = x - x.mean()
    y = y - y.mean()
    count = w.sum(-1)
    sx, sy = total(x), total(y)
    xx, yy = total(x * x), total(y * y)
    vx = xx - sx * sx / count
    vy = yy - sy * sy / count
    # Rounding leaves a constant side with a variance that is not quite 0.
    varied = (vx > 1e-12 * xx) & (vy > 1e-12 * yy)
    below = np.sqrt(np.where(varied, vx, 0)) * np.sqrt(np.where(varied, vy, 0))
    return np.asarray(np.clip(_ratio(total(x * y) - sx * sy / count, below), -1, 1))


def ranks(values: Array, weights: Array | None = None) -> Array:
    """Return ranks from 1, ties sharing the mean of the ranks they cover.

    Args:
        values: (N,) numbers.
        weights: (..., N) how often each item counts.

    Returns:
        (..., N) ranks in the sample that the weights describe.
    """
    w = np.ones(len(values)) if weights is None else np.asarray(weights, np.float64)
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(np.asarray(values)[order]) != 0])
    group = np.empty(len(values), np.intp)
    group[order] = np.repeat(np.arange(len(starts)), np.diff(np.r_[starts, len(values)]))
    ties = np.add.reduceat(w[..., order], starts, axis=-1)  # (..., distinct values)
    # The cumulative sum is the last rank of each group of ties; half a group back is its mean.
    return np.asarray((np.cumsum(ties, -1) - (ties - 1) / 2)[..., group])


def spearman(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return Spearman's rank correlation in [-1, 1], ties by average rank.

    It is 0 where one side is constant. Args and errors as `pearson`.
    """
    w = _weights(gold, predicted, weights)
    return _correlation(ranks(gold, w), ranks(predicted, w), w)


def kendall(gold: Array, predicted: Array) -> Array:
    """Return Kendall's rank correlation tau-b in [-1, 1]; 0 where one side is constant.

    Source: Kendall 1945 (The treatment of ties in ranking problems).
    """
    x, y = (np.sign(np.subtract.outer(own, own)) for own in (gold, predicted))
    return _ratio((x * y).sum(), np.sqrt((x**2).sum() * (y**2).sum()))


def rmse(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return the root of the mean squared error, in the unit of the labels; 0 is the best.

    Args and errors as `pearson`.

    Source: XDBERT (Hsu et al. 2022), Table 1 (READ).
    """
    w = _weights(gold, predicted, weights)
    error = np.asarray(predicted, np.float64) - np.asarray(gold, np.float64)
    return np.asarray(np.sqrt(w @ error**2 / w.sum(-1)))


def mean(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
    """Return the mean of `predicted`, for metrics that score items one by one; ignores `gold`."""
    w = _weights(gold, predicted, weights)
    return np.asarray(w @ predicted / w.sum(-1))


def summed(combine: Combine) -> Statistic:
    """Return the statistic of a metric that is made from sums over items: entity F1, BLEU.

    The predictions are (N, S) counts, the S numbers of each item that add up; `gold` is ignored.
    """

    def statistic(gold: Array, counts: Array, weights: Array | None = None) -> Array:
        w = _weights(gold, counts, weights)
        return np.asarray(combine(w @ counts))

    return statistic


def share(sums: Array) -> Array:
    """Return the share of (..., 2) sums, a part and its whole; 0 if that is 0."""
    return _ratio(sums[..., 0], sums[..., 1])


def counted_f1(sums: Array) -> Array:
    """Return F1 of (..., 3) sums: right, predicted and gold; 0 if nothing is gold or predicted."""
    return _ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])


METRICS: dict[str, Statistic] = {
    "accuracy": accuracy,
    "f1": f1,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "rmse": rmse,
}


RANGES = {
    **dict.fromkeys(("accuracy", "f1", "macro_f1"), (0.0, 1.0)),
    **dict.fromkeys(("matthews", "pearson", "spearman"), (-1.0, 1.0)),
    "rmse": (0.0, np.inf),
}


def mean_of(names: Sequence[str]) -> Statistic:
    """Return the statistic that is the mean of some metrics (for QQP, F1 and accuracy)."""

    def statistic(gold: Array, predicted: Array, weights: Array | None = None) -> Array:
        return np.asarray(
            sum(METRICS[name](gold, predicted, weights) for name in names) / len(names)
        )

    return statistic


# --------------------------------------------------------------------------------------- bootstrap


@dataclass(frozen=True)
class Difference:
    """How much better b is than a, with its interval and its two-sided p-value.

    A single item does not show how items differ: there is no interval and no p-value.
    """

    value: float  # statistic(b) - statistic(a)
    low: float | None
    high: float | None
    p: float | None
    over_runs: bool  # other runs of both sides are counted as chance, in addition to other items


_BLOCK = 1 << 21  # weights per block: 16 MB
_DENSE = 1 << 24  # counts of the distinct items of each group: 64 MB at most


def _samples(
    columns: Sequence[Array],
    statistics: Callable[..., Array],
    samples: int,
    seed: int,
    groups: Array | None,
) -> Array:
    """Return the statistics of bootstrap samples: (samples, ...).

    Items that agree in every column are one item with a count: the 40,000 pairs of QQP's dev set
    are eight of them. A column is (N,), or (N, S) counts. Groups of which each item is in one,
    (N,) from 0 on without gaps, are drawn whole.
    """
    parts = [np.asarray(column, np.float64).reshape(len(column), -1) for column in columns]
    rows = np.concatenate(parts, 1)
    table, row, counts = np.unique(rows, axis=0, return_inverse=True, return_counts=True)
    number = len(rows) if groups is None else int(groups.max()) + 1
    # Counts of distinct items are drawn at once; where most items differ, item by item is quicker.
    few = len(table) * 8 < len(rows) and (groups is None or len(table) * number < _DENSE)
    mixed = None
    if few and groups is not None:
        members = np.zeros((number, len(table)), np.int32)
        np.add.at(members, (groups, row.ravel()), 1)
        kinds, counts = np.unique(members, axis=0, return_counts=True)
        mixed = kinds.astype(np.float64)
    table = table if few else rows
    edges = np.cumsum([part.shape[1] for part in parts])[:-1]
    split = np.split(np.ascontiguousarray(table), edges, 1)
    shaped = [
        part.reshape(len(table), *column.shape[1:])
        for part, column in zip(split, columns, strict=True)
    ]
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(len(table), number if not few else len(counts)))
    found = []
    for start in range(0, samples, block):
        size = min(block, samples - start)
        if few:
            drawn = generator.multinomial(number, counts / number, size=size)
            weights: Array = drawn if mixed is None else drawn @ mixed
        else:
            drawn = generator.integers(number, size=(size, number))
            weights = np.stack([np.bincount(ones, minlength=number) for ones in drawn])
            weights = weights if groups is None else weights[:, groups]
        found.append(np.asarray(statistics(*shaped, weights.astype(np.float64))))
    return np.concatenate(found)


def bootstrap(
    statistic: Statistic,
    gold: Array,
    runs: Sequence[Array],
    *,
    samples: int = 10_000,
    seed: int = 0,
    groups: Array | None = None,
) -> Array:
    """Return the statistics of runs, and of the same runs on items drawn with replacement.

    Args:
        statistic: a metric of this module, `mean_of(...)`, or any function of their form.
        gold: (N,) labels, class numbers or values.
        runs: R predictions, (N,) or (N, S) counts each.
        samples: bootstrap samples; each has the same items for all runs.
        seed: seed of the samples.
        groups: (N,) numbers of the groups that are drawn whole; None where each item is its own.

    Returns:
        (1 + samples, R); the first row is of the items as they are.

    Raises:
        ValueError: no items, or not as many of each.
    """
    lengths = [len(column) for column in (gold, *runs)]
    if len(set(lengths)) != 1 or not lengths[0]:
        raise ValueError(f"expected as many in each column, one or more; got {lengths} items")
    if samples < 1:
        raise ValueError(f"expected samples >= 1, got {samples}")

    def scores(g: Array, *rest: Any) -> Array:
        return np.stack([statistic(g, predicted, rest[-1]) for predicted in rest[:-1]], -1)

    whole = scores(gold, *runs, None)  # (R,)
    return np.vstack([whole, _samples([gold, *runs], scores, samples, seed, _dense(groups))])


def _effective(sizes: Array) -> float:
    """Return how many groups of equal size would vary as much; few large ones count for few.

    Args:
        sizes: (G,) sizes of the groups.

    Source: Kish 1965 (Survey sampling), section 11.7, on unequal weights.
    """
    sizes = sizes.astype(np.float64)
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def _dense(groups: Array | None) -> Array | None:
    """Return the same groups numbered from 0 on; None where each has one item."""
    if groups is None:
        return None
    names, numbers = np.unique(groups, return_inverse=True)
    return None if len(names) == len(groups) else numbers


def variance_factor(folds: int) -> float:
    """Return how much larger the variance is if predictions are cross-validated in k folds.

    They are learned from the other items, which other items would change as well.

    Args:
        folds: k, or 0 where no prediction is learned from the items.

    Source: Nadeau & Bengio 2003 (Inference for the generalization error), section 3, for the k
        folds of one division: 1 + k / (k - 1).
    """
    return 1 + folds / (folds - 1) if folds > 1 else 1.0


def _deviations(values: Array, items: float, seed: int, folds: int = 0) -> Array:
    """Return how far other items would move a statistic: (samples,).

    Few items show too small a spread, and poorly how large it is. A sample's deviation is made
    larger by N / (N - 1) in its variance, and divided by a variance drawn from χ²(ν) / ν, so that
    deviations have the tails of Student's t. ν = N / 3 are the degrees of freedom of the variance
    of N values with an excess kurtosis of 4, 2N / (2 + 4): with N - 1, which normal values have,
    the intervals of 3 to 10 skewed differences covered 88 to 91 % instead of 95 %.

    Args:
        values: (1 + samples,) a statistic of `bootstrap`.
        items: N, more than one; for groups of unequal sizes a fraction.
        seed: seed of the variances.
        folds: k, or 0 where no prediction is learned from these items.

    Source: Satterthwaite 1946 (An approximate distribution of estimates of variance components).
    """
    freedom = items / 3
    # A generator of its own: the samples of items do not depend on it.
    drawn = np.random.default_rng([seed, 2]).chisquare(freedom, len(values) - 1)
    spread = items / (items - 1) * freedom / drawn
    spread *= variance_factor(folds)
    return np.asarray(np.sqrt(spread) * (values[1:] - values[0]))


def _interval(value: float, deviations: Array, level: float) -> tuple[float, float]:
    low, high = value + np.quantile(deviations, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def interval(
    values: Array, *, items: float, level: float = 0.95, seed: int = 0, folds: int = 0
) -> tuple[float, float]:
    """Return the ends of the interval of a statistic, as `paired_bootstrap` has it.

    Args:
        values: (1 + samples,) the statistic of `bootstrap`.
        items: items that it is of, two or more.
        level: share of samples inside the interval.
        seed: seed of the bootstrap.
        folds: folds in which predictions are cross-validated, or 0.
    """
    return _interval(values[0], _deviations(values, items, seed, folds), level)


def paired_difference(
    a: Array, b: Array, *, items: float, level: float = 0.95, seed: int = 0, folds: int = 0
) -> Difference:
    """Return how much better the runs of b are than the runs of a: see `paired_bootstrap`.

    Args:
        a: (1 + samples, R) statistics of `bootstrap`.
        b: likewise, of the same samples; R may differ.
        items: items that both are of.
        level: share of samples inside the interval.
        seed: seed of the deviations of few items and of other runs.
        folds: folds in which predictions are cross-validated, or 0.

    Raises:
        ValueError: the level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"expected 0 < level < 1, got {level}")
    # The first row is the observed data, and the samples follow, so that both are computed alike.
    value, *_ = differences = b.mean(-1) - a.mean(-1)
    over_runs = min(a.shape[1], b.shape[1]) > 1
    if items < 1 + 1e-9:
        return Difference(float(value), None, None, None, over_runs)
    deviations = _deviations(differences, items, seed, folds)
    if over_runs:
        # A generator of its own: the samples of items are the same with and without it.
        pairs = [(side[0], side[1:]) for side in (a, b)]
        deviations += _other_runs(pairs, np.random.default_rng([seed, 1]))
    low, high = _interval(value, deviations, level)
    # Differences that are equal up to the rounding of their sums must count as equal.
    extreme = int(np.count_nonzero(np.abs(deviations) >= abs(value) - 1e-12))
    p = max((extreme + 1) / len(differences), 2.0 ** (1 - items))
    return Difference(float(value), low, high, p, over_runs)


def paired_bootstrap(
    statistic: Statistic,
    gold: Array,
    a: Array,
    b: Array,
    *,
    samples: int = 10_000,
    level: float = 0.95,
    seed: int = 0,
    groups: Array | None = None,
    sizes: Array | None = None,
) -> Difference:
    """Return how much better b is than a on the same items, and how often chance gives as much.

    The p-value is two-sided: the share of samples whose difference is as far from the observed
    difference as this is from 0, counting the observed difference itself, so it is never 0. Nor is
    it below 2 to the power of 1 - N, the p-value of a sign test in which all N items agree. Few
    items count with wider deviations (`_deviations`); a single item has no interval and no p-value.

    Items that share a picture or a paragraph are drawn together: N is then the number of `groups`,
    fewer where their sizes are unequal. Drawn one by one, the phrases of 100 photos made p < 0.05
    in 41 % of draws without a difference.

    Several runs of a system, one per seed, are worth the mean of their statistics. With two or more
    on both sides, the results of other seeds also count as chance: a sample adds to the items'
    deviation, the same items for all runs, a normal deviation of variance σ² / Ra + σ² / Rb, where
    σ² is the variance between runs of one side. Few runs determine it poorly: each sample draws it
    as ν s² / χ²(ν) - u, at least 0: s² is the variance between runs of both sides, ν = Ra + Rb - 2
    its degrees of freedom, and u how far runs are apart by the draw of items alone, which is in the
    items' deviation already. `tests/benchmarks/null.py` measures its level with 2 to 5 runs.

    A single run of a side gives no estimate of σ²: interval and p-value are then about these very
    models on other items, not about the systems, and `over_runs` is False.

    Args:
        statistic: a metric of this module, `mean_of(...)`, or any function of their form.
        gold: (N,) labels, class numbers or values.
        a: (N,) predictions of one system, or per-item scores with the statistic `mean`; (R, N)
            predictions of R runs, or (R, N, S) their counts with a statistic of `summed`.
        b: likewise of the other system; R may differ.
        level: share of samples inside the interval.
        seed: seed of the samples; the same seed gives the same interval.
        groups: (N,) numbers of the groups that are drawn whole; None where each item is its own.
        sizes: (N,) how much each item counts in the statistic, where it is a group whose values
            were added up; None where all count alike.

    Raises:
        ValueError: no items, or not as many of each.

    Source: Berg-Kirkpatrick, Burkett & Klein 2012, figure 1, two-sided, for items; Weerahandi 1993
        (Generalized confidence intervals) for a variance component of a random effect; Owen 2007
        (The pigeonhole bootstrap) on drawing items and runs, which counts u twice.
    Deviation: σ² is the same on both sides. Where one side alone varies, the level still holds.
    """
    sides = [np.atleast_2d(side) for side in (a, b)]
    runs = [run for side in sides for run in side]
    scores = bootstrap(statistic, gold, runs, samples=samples, seed=seed, groups=groups)
    both = np.split(scores, [len(sides[0])], axis=1)
    if groups is not None:
        sizes = np.unique(groups, return_counts=True)[1]
    count = len(gold) if sizes is None else _effective(sizes)
    return paired_difference(*both, items=count, level=level, seed=seed)


def _other_runs(sides: Sequence[tuple[Array, Array]], generator: np.random.Generator) -> Array:
    """Return (samples,) deviations that other runs would give a difference of means.

    Args:
        sides: for each side the statistics (R,) of its runs, and (samples, R) on other items.
        generator: draws them.
    """
    samples = len(sides[0][1])
    freedom = sum(len(whole) - 1 for whole, _ in sides)
    between = sum(float(((whole - whole.mean()) ** 2).sum()) for whole, _ in sides)  # ν s²
    on_items = 0.0  # u
    for whole, drawn in sides:
        apart = drawn - drawn.mean(1, keepdims=True) - (whole - whole.mean())
        on_items += float((apart**2).mean(0).sum()) / freedom
    variance = np.maximum(between / generator.chisquare(freedom, samples) - on_items, 0)
    error = np.sqrt(variance * sum(1 / len(whole) for whole, _ in sides))
    return np.asarray(error * generator.standard_normal(samples))
