"""Metrics against values worked out by hand, and the bootstrap against plain resampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, chi2, ttest_ind

from vgtools.io.arrays import Array
from vgtools.tasks import metrics
from vgtools.tasks.metrics import mean, mean_of, paired_bootstrap, ranks

GOLD = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])

SAID = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_labels_by_hand() -> None:
    assert metrics.accuracy(GOLD, SAID) == pytest.approx(0.7)
    assert metrics.f1(GOLD, SAID) == pytest.approx(6 / 9)
    assert metrics.matthews(GOLD, SAID) == pytest.approx((3 * 4 - 2 * 1) / math.sqrt(5 * 4 * 6 * 5))
    assert mean_of(["f1", "accuracy"])(GOLD, SAID, None) == pytest.approx((0.7 + 6 / 9) / 2)


def test_matthews_of_three_classes_by_hand() -> None:
    # c = 4, s = 5; gold counts 2, 2, 1; said counts 1, 3, 1: (4*5 - (2 + 6 + 1)) / sqrt((25 - 9)
    # (25 - 11))
    assert metrics.matthews(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 2])) == pytest.approx(
        11 / math.sqrt(224)
    )
    found = metrics.matthews(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 2, 1]))
    # c = 2, s = 5; said counts 1, 3, 1: (2*5 - (2*1 + 2*3 + 1*1)) / sqrt(16 * 14)
    assert found == pytest.approx(1 / math.sqrt(224))


def test_one_class_only_is_zero_not_nan() -> None:
    zeros = np.zeros(4, int)
    assert metrics.matthews(np.array([0, 1, 0, 1]), zeros) == 0
    assert metrics.f1(zeros, zeros) == 0
    assert metrics.pearson(np.array([1.0, 2.0, 3.0]), np.full(3, 0.1)) == 0
    assert metrics.spearman(np.array([1.0, 2.0, 3.0]), np.full(3, 0.1)) == 0


def test_correlations_by_hand() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 1.0, 4.0, 9.0])
    # deviations -1.5 -.5 .5 1.5 and -2 -3 0 5: 12 / sqrt(5 * 38)
    assert metrics.pearson(x, y) == pytest.approx(12 / math.sqrt(190))
    assert metrics.spearman(x, y) == pytest.approx(1 - 6 * 2 / (4 * 15))
    # ties: ranks 1 2.5 2.5 4 against 1 2 3 4: 4.5 / sqrt(4.5 * 5)
    assert metrics.spearman(np.array([1.0, 7.0, 7.0, 9.0]), x) == pytest.approx(
        4.5 / math.sqrt(22.5)
    )
    assert ranks(np.array([30.0, 10.0, 30.0, 20.0, 30.0])).tolist() == [4, 1, 4, 2, 4]


def test_correlation_keeps_its_digits_far_from_zero() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert metrics.pearson(x + 1e8, np.array([2.0, 1.0, 4.0, 9.0]) - 1e7) == pytest.approx(
        12 / math.sqrt(190), abs=1e-9
    )


def test_an_error_by_hand() -> None:
    gold, said = np.array([1.0, -2.0, 0.5]), np.array([2.0, -2.0, -1.5])
    assert metrics.rmse(gold, said) == pytest.approx(math.sqrt(5 / 3))
    weights = np.array([[1, 0, 0], [0, 1, 0], [2, 1, 1]])
    assert metrics.rmse(gold, said, weights).tolist() == pytest.approx([1, 0, math.sqrt(6 / 4)])
    found = paired_bootstrap(metrics.rmse, gold, said, gold, samples=200)
    assert found.value == pytest.approx(-math.sqrt(5 / 3))  # b is better: its error is lower


def test_no_items_and_uneven_items_are_refused() -> None:
    for gold, said in ((np.array([]), np.array([])), (GOLD, SAID[:-1])):
        with pytest.raises(ValueError, match="one or more"):
            metrics.accuracy(gold, said)


labels = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=30
)

numbers = st.lists(
    st.tuples(st.integers(0, 5), st.integers(-3, 3), st.integers(1, 3)), min_size=2, max_size=30
)


@settings(deadline=None, max_examples=40)
@given(labels, st.randoms())
def test_label_metrics_are_bounded_blind_to_order_and_count_weights(
    rows: list[tuple[int, int, int]], random: object
) -> None:
    _check_properties(["accuracy", "f1", "matthews"], rows, random)


@settings(deadline=None, max_examples=40)
@given(numbers, st.randoms())
def test_correlations_are_bounded_blind_to_order_and_count_weights(
    rows: list[tuple[int, int, int]], random: object
) -> None:
    _check_properties(["pearson", "spearman"], rows, random)


def _check_properties(names: list[str], rows: list[tuple[int, int, int]], random: object) -> None:
    gold, said, weights = np.array(rows).T
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for name in names:
        metric = metrics.METRICS[name]
        low = -1 if name in ("matthews", "pearson", "spearman") else 0
        assert low <= metric(gold, said, None) <= 1
        assert metric(gold[order], said[order], None) == pytest.approx(
            float(metric(gold, said, None))
        )
        # An item of weight 2 is the item written twice; a second sample does not touch the first.
        twice = metric(np.repeat(gold, weights), np.repeat(said, weights), None)
        assert metric(
            gold, said, np.stack([weights, np.ones(len(rows))])
        ).tolist() == pytest.approx([float(twice), float(metric(gold, said, None))])
        if len(set(gold.tolist())) > 1:
            assert metric(gold, gold, None) == pytest.approx(1)


def test_bootstrap_of_values_has_the_width_of_the_normal_interval() -> None:
    values = np.random.default_rng(4).normal(size=500)  # all distinct: the other way of drawing
    nothing = np.zeros(500)
    found = paired_bootstrap(mean, nothing, nothing, values, samples=4000, level=0.9)
    half = 1.645 * values.std() / math.sqrt(500)
    assert found.value == pytest.approx(values.mean())
    wanted = [values.mean() - half, values.mean() + half]
    assert [found.low, found.high] == pytest.approx(wanted, abs=0.006)


def test_paired_bootstrap_p_value_is_that_of_a_case_that_can_be_counted() -> None:
    """Four items, b better on one: a sample's difference is k / 4, k of Binomial(4, 1/4).

    The observed one is 1/4, so a deviation is |k - 1| / 4, times the root of 4/3 ν / χ²(ν) with
    ν = 4/3, which reaches 1/4 where χ²(ν) <= 16/9 (k - 1)².
    """
    a, b = np.array([0.0, 0, 0, 0]), np.array([1.0, 0, 0, 0])
    found = paired_bootstrap(mean, np.zeros(4), a, b, samples=40_000)
    assert found.value == 0.25
    counted = sum(binom.pmf(k, 4, 1 / 4) * chi2.cdf(16 / 9 * (k - 1) ** 2, 4 / 3) for k in range(5))
    assert found.p == pytest.approx(counted, abs=0.01)


@pytest.mark.parametrize("items", [2, 3, 5, 10, 20])
@pytest.mark.parametrize("skewed", [False, True])
def test_few_items_are_not_surer_than_they_can_be(items: int, skewed: bool) -> None:
    """400 draws without a difference, normal or exponential; with percentiles alone p was below
    .05 in 49 % of the draws of two items, and in 10 % of ten."""
    rng = np.random.default_rng(6)
    zeros = np.zeros(items)
    rejected = covered = 0
    for seed in range(400):
        values = rng.exponential(1, items) - 1 if skewed else rng.normal(0, 1, items)
        found = paired_bootstrap(mean, zeros, zeros, values, samples=400, seed=seed)
        assert found.p is not None
        assert found.low is not None
        assert found.high is not None
        assert found.p >= 2.0 ** (1 - items)
        rejected += found.p < 0.05
        covered += found.low <= 0 <= found.high
    assert rejected <= 0.07 * 400
    assert covered >= 0.93 * 400


def test_a_single_item_has_no_interval_and_no_p() -> None:
    one, other = np.array([1.0]), np.array([[3.0], [4.0]])
    for side in (one, np.stack([one] * 2)):
        found = paired_bootstrap(mean, np.zeros(1), side, other, samples=9)
        assert (found.value, found.low, found.high, found.p) == (2.5, None, None, None)


def test_paired_bootstrap_knows_same_better_and_worse() -> None:
    assert paired_bootstrap(metrics.accuracy, GOLD, SAID, SAID, samples=99).p == 1.0
    gold = np.tile([0, 1], 200)
    bad, good = np.zeros(400, int), np.where(np.arange(400) % 10 == 0, 1 - gold, gold)
    better = paired_bootstrap(metrics.accuracy, gold, bad, good, samples=999)
    worse = paired_bootstrap(metrics.accuracy, gold, good, bad, samples=999)
    assert better.value == pytest.approx(0.4)
    assert worse.value == pytest.approx(-0.4)
    assert better.p == worse.p == 0.001  # the observed difference counts itself: never 0
    assert 0 < better.low < better.value < better.high


def test_bootstrap_is_seeded() -> None:
    none = np.zeros(10)
    values = np.sqrt(np.arange(10.0))
    for statistic, a, b in ((metrics.f1, GOLD, SAID), (mean, none, values)):
        one, same, other = (
            paired_bootstrap(statistic, GOLD, a, b, samples=500, level=0.8, seed=s)
            for s in (1, 1, 2)
        )
        assert one == same
        assert one != other


def test_bootstrap_refuses_what_it_cannot_sample() -> None:
    with pytest.raises(ValueError, match="as many in each"):
        paired_bootstrap(mean, GOLD, SAID, SAID[1:])
    with pytest.raises(ValueError, match="0 < level < 1"):
        paired_bootstrap(mean, GOLD, SAID, SAID, level=1)


def test_paired_bootstrap_of_runs_that_items_do_not_change_is_student_s_t_test() -> None:
    """Each run has one score for all items: their choice changes nothing, runs alone differ."""
    a, b = np.array([1.0, 2.0, 3.5]), np.array([3.0, 4.0, 3.8, 5.2])
    found = paired_bootstrap(
        mean, np.zeros(9), *(np.tile(x[:, None], 9) for x in (a, b)), samples=100_000
    )
    expected = ttest_ind(b, a)
    assert found.over_runs
    assert found.value == pytest.approx(b.mean() - a.mean())
    assert found.p == pytest.approx(expected.pvalue, abs=0.003)
    low, high = expected.confidence_interval()
    assert [found.low, found.high] == pytest.approx([low, high], abs=0.06)


def test_paired_bootstrap_of_equal_runs_is_that_of_one() -> None:
    one = paired_bootstrap(metrics.f1, GOLD, SAID, GOLD, samples=2000)
    three = paired_bootstrap(
        metrics.f1, GOLD, *(np.stack([x] * 3) for x in (SAID, GOLD)), samples=2000
    )
    assert (three.value, three.low, three.high, three.p) == pytest.approx(
        (one.value, one.low, one.high, one.p)
    )
    assert (one.over_runs, three.over_runs) == (False, True)
    lone = paired_bootstrap(metrics.f1, GOLD, SAID, np.stack([GOLD] * 3), samples=99)
    assert not lone.over_runs, "what other runs of the first side would give is unknown"


def test_paired_bootstrap_over_runs_agrees_with_loops() -> None:
    """Items drawn for all runs at once, and runs' variance by its parts, one draw at a time."""
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 2, 40)
    a = np.stack([np.where(rng.random(40) < 0.6, gold, 1 - gold) for _ in range(3)])
    b = np.stack([np.where(rng.random(40) < share, gold, 1 - gold) for share in (0.95, 0.6)])
    found = paired_bootstrap(metrics.f1, gold, a, b, samples=4000)
    whole = [np.array([float(metrics.f1(gold, x)) for x in side]) for side in (a, b)]
    value = whole[1].mean() - whole[0].mean()
    drawn = []
    for _ in range(4000):
        items = rng.integers(40, size=40)
        drawn.append([[float(metrics.f1(gold[items], x[items])) for x in s] for s in (a, b)])
    squares = sum(((x - x.mean()) ** 2).sum() for x in whole)
    alone = 0.0
    for one in drawn:
        for side, known in zip(one, whole, strict=True):
            apart = np.array(side) - np.mean(side) - (known - known.mean())
            alone += float((apart**2).sum()) / 3 / len(drawn)
    plain = [
        np.mean(one[1])
        - np.mean(one[0])
        + rng.normal(0, np.sqrt(max(squares / rng.chisquare(3) - alone, 0) * (1 / 3 + 1 / 2)))
        for one in drawn
    ]
    assert found.value == pytest.approx(value)
    assert [found.low, found.high] == pytest.approx(
        list(np.quantile(plain, [0.025, 0.975])), abs=0.1
    )
    assert found.p == pytest.approx(np.mean(np.abs(np.array(plain) - value) >= value), abs=0.03)
    # Without the runs' own chance the interval would be narrower: 95 % and 60 % are far apart.
    fixed = paired_bootstrap(metrics.f1, gold, a[0], b[0], samples=4000)
    assert found.high - found.low > fixed.high - fixed.low


def test_paired_bootstrap_of_one_run_is_the_same_in_either_form() -> None:
    one = paired_bootstrap(metrics.accuracy, GOLD, SAID, GOLD, samples=99)
    assert paired_bootstrap(metrics.accuracy, GOLD, SAID[None], GOLD[None], samples=99) == one


def test_metrics_of_sums_by_hand() -> None:
    assert float(metrics.share(np.array([3.0, 4.0]))) == 0.75
    assert metrics.counted_f1(np.array([[3.0, 7, 4], [0, 0, 0]])).tolist() == [
        pytest.approx(6 / 11),
        0,
    ]
    counts = np.array([[1.0, 2, 2], [0, 1, 3]])
    f1 = metrics.summed(metrics.counted_f1)
    zeros = np.zeros(2)
    assert float(f1(zeros, counts, None)) == pytest.approx(2 * 1 / (3 + 5))
    assert f1(zeros, counts, np.array([[2.0, 0], [1, 2]])).tolist() == pytest.approx(
        [2 * 2 / (4 + 4), 2 * 1 / (4 + 8)]
    )


@pytest.mark.parametrize("items", [12, 200])
def test_paired_bootstrap_of_counts_agrees_with_plain_resampling(items: int) -> None:
    """200 items have few distinct counts, so those are drawn; 12 are drawn one by one."""
    rng = np.random.default_rng(4)
    real = rng.integers(0, 3, items)
    sides = []
    for chance in (0.5, 0.8):
        right = rng.binomial(real, chance)
        sides.append(np.stack([right, right + (rng.random(items) < 0.2), real], 1))
    a, b = sides
    f1 = metrics.summed(metrics.counted_f1)
    found = paired_bootstrap(f1, np.zeros(items), a[None], b[None], samples=4000)

    def score(run: Array, chosen: Array) -> float:
        return float(metrics.counted_f1(run[chosen].sum(0)))

    everything = np.arange(items)
    plain = []
    for _ in range(4000):
        chosen = rng.integers(items, size=items)
        plain.append(score(b, chosen) - score(a, chosen))
    value = score(b, everything) - score(a, everything)
    assert found.value == pytest.approx(value)
    wider = items / (items - 1) * items / 3 / rng.chisquare(items / 3, 4000)
    apart = (np.array(plain) - value) * np.sqrt(wider)
    ends = value + np.quantile(apart, [0.025, 0.975])
    assert [found.low, found.high] == pytest.approx(list(ends), abs=0.15 * float(apart.std()))


def test_groups_are_drawn_whole_as_by_loops() -> None:
    """Once with as many distinct items as items, once with few, whose groups are counted."""
    rng = np.random.default_rng(8)
    groups = np.array([7, 3, 3, 9, 7, 7, 1, 1, 1, 1, 9, 4])
    names = np.unique(groups)
    for gold in (rng.normal(0, 1, 12), np.tile(rng.integers(0, 2, 12), 1).astype(float)):
        many = np.repeat(groups, 8)
        runs = [np.repeat(rng.integers(0, 2, 12), 8) for _ in range(2)]
        known = np.repeat(gold, 8)
        few = len(np.unique(np.stack([known, *runs]), axis=1).T) * 8 < len(known)
        assert few is bool(len(np.unique(gold)) == 2)
        found = metrics.bootstrap(_covariance, known, runs, samples=20_000, groups=many)
        drawn = []
        for _ in range(4000):
            chosen = rng.choice(names, len(names))
            items = np.concatenate([np.flatnonzero(many == name) for name in chosen])
            drawn.append([float(_covariance(known[items], run[items], None)) for run in runs])
        whole = [float(_covariance(known, run, None)) for run in runs]
        assert found[0] == pytest.approx(whole)
        shares = (0.05, 0.25, 0.5, 0.75, 0.95)
        ours, plain = (np.quantile(x, shares, axis=0) for x in (found[1:], np.array(drawn)))
        np.testing.assert_allclose(ours, plain, atol=0.08 * float(np.std(drawn, 0).max()) * 3)


def _covariance(gold: Array, said: Array, weights: Array | None = None) -> Array:
    w = np.ones(len(gold)) if weights is None else weights
    return np.asarray((w * gold * said).sum(-1) / w.sum(-1))


def test_copies_of_items_add_nothing_where_they_are_drawn_together() -> None:
    """Five copies of each item, drawn whole, are as certain as the items."""
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 2, (2, 2, 60)).astype(float)
    zeros = np.zeros(60)
    one = paired_bootstrap(mean, zeros, a, b, samples=4000)
    groups = np.repeat(np.arange(60), 5)
    copies = [np.repeat(side, 5, axis=1) for side in (a, b)]
    five = paired_bootstrap(mean, np.repeat(zeros, 5), *copies, samples=4000, groups=groups)
    alone = paired_bootstrap(mean, np.repeat(zeros, 5), *copies, samples=4000)
    assert one.low is not None
    assert one.high is not None
    assert five.low == pytest.approx(one.low, abs=0.03)
    assert five.high == pytest.approx(one.high, abs=0.03)
    assert five.p == pytest.approx(one.p, abs=0.03)
    assert alone.low is not None
    assert alone.low > one.low + 0.03, "one by one they would look more certain"
    same = paired_bootstrap(mean, zeros, a, b, samples=99, groups=np.arange(60)[::-1])
    assert same == paired_bootstrap(mean, zeros, a, b, samples=99)
    assert paired_bootstrap(mean, zeros, a, b, samples=99, groups=zeros).p is None, "one group"


def test_few_large_groups_count_for_few() -> None:
    """A group of 50 and 50 of one item vary like 100² / (50² + 50) = 3.9 equal groups."""
    groups = np.concatenate([np.zeros(50, int), np.arange(1, 51)])
    found = paired_bootstrap(mean, np.zeros(100), np.zeros(100), np.ones(100), groups=groups)
    assert found.p == pytest.approx(2 ** (1 - 10_000 / 2550))
