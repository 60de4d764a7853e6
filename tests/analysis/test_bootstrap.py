"""The bootstrap over groups, against loops."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from vgtools.analysis.bootstrap import _t, difference_ends, draws, ends, share_ends, with_interval


def test_samples_draw_as_many_groups_as_there_are() -> None:
    drawn = draws(7, 500, seed=3)
    assert drawn.shape == (500, 7)
    assert (drawn.sum(1) == 7).all()
    assert drawn.mean() == 1
    assert drawn.std() == pytest.approx(np.sqrt(6 / 7), rel=0.05)  # binomial: n = 7, p = 1 / 7
    assert np.array_equal(drawn, draws(7, 500, seed=3))
    assert not np.array_equal(drawn, draws(7, 500, seed=4))


def test_an_interval_holds_95_percent() -> None:
    values = np.random.default_rng(0).permutation(1001) / 1000
    assert ends(values) == pytest.approx([0.025, 0.975])
    assert with_interval("hit", 0.5, values, 100) == pytest.approx(
        {"hit": 50, "hit_low": 2.5, "hit_high": 97.5}
    )


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_the_interval_of_a_share_is_scipys_where_groups_are_many(share: float) -> None:
    rng = np.random.default_rng(0)
    total = rng.integers(1, 8, 300)
    right = rng.binomial(total, rng.beta(2 * share, 2 * (1 - share), 300))

    def of(right: np.ndarray, total: np.ndarray, axis: int = -1) -> np.ndarray:
        return right.sum(axis) / total.sum(axis)

    samples = 40_000
    found = share_ends(right, total, draws(300, samples, seed=1))
    found_by_scipy = stats.bootstrap(
        (right, total), of, paired=True, n_resamples=samples, batch=2000, rng=2
    )
    # The spread of an end over samples is about 1 % of the interval; t of 299 widens it by 0.5 %.
    width = found[1] - found[0]
    assert np.abs(np.array(found) - found_by_scipy.confidence_interval).max() < 0.05 * width


@pytest.mark.parametrize("groups", [2, 3, 4, 5])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_intervals_of_few_groups_hold_the_share(groups: int, share: float) -> None:
    held = 0
    for seed in range(200):
        rng = np.random.default_rng([seed, groups])
        right = rng.binomial(20, rng.beta(4 * share, 4 * (1 - share), groups))
        low, high = share_ends(right, np.full(groups, 20), draws(groups, 200, seed))
        assert 0 <= low <= right.sum() / (20 * groups) <= high <= 1
        held += low <= share <= high
    assert held >= 186  # 93 % of them


def test_equal_groups_are_at_least_as_uncertain_as_their_items() -> None:
    low, high = share_ends(np.full(4, 10), np.full(4, 20), draws(4, 200))
    step = 3.1824 * np.sqrt(0.25 / 80) / 0.25
    assert [low, high] == pytest.approx([1 / (1 + np.exp(step)), 1 / (1 + np.exp(-step))])
    many = share_ends(np.full(50, 10), np.full(50, 20), draws(50, 200))
    assert many == [0.5, 0.5]


def test_an_interval_of_few_groups_is_wider_and_one_without_spread_is_exact() -> None:
    for freedom, error in (
        (1, 1e-4),
        (2, 1e-4),
        (3, 1e-4),
        (4, 0.01),
        (8, 1e-3),
        (29, 1e-3),
        (499, 1e-3),
    ):
        assert _t(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=error)
    total = np.array([3, 1, 2, 0, 4, 2, 1, 5, 2, 3])
    drawn = draws(10, 1000)
    # None and all of nine groups with items, of which no sample shows a spread.
    for right, count in ((0 * total, 0), (total, 9)):
        exact = stats.binomtest(count, 9).proportion_ci(method="exact")
        assert share_ends(right, total, drawn) == pytest.approx([exact.low, exact.high])
    assert share_ends(total[:1], total[:1], drawn[:, :1]) == pytest.approx([0.025, 1])
    assert share_ends(total[:1] - 1, total[:1], drawn[:, :1]) == [0, 1]
    right = np.array([1, 0, 2, 0, 1, 1, 1, 2, 0, 2])
    low, high = share_ends(right, total, drawn)
    ratio = (drawn @ right) / (drawn @ total)
    inner = ends(ratio)
    assert low <= inner[0] < 10 / 23 < inner[1] <= high


@pytest.mark.parametrize(("value", "expected"), [(1.0, (-0.0436, 1.0)), (0.0, (-0.5218, 0.5218))])
def test_groups_that_agree_on_a_difference_are_not_certain_of_it(
    value: float, expected: tuple[float, float]
) -> None:
    """Of five groups that agree, 1 - 0.025 ** (1 / 5) of all groups may differ by all there is."""
    samples = value + 1e-16 * np.sin(np.arange(99.0))
    found = difference_ends(value, samples, np.full(5, value), 5, 1e-17)
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_share_of_numbers_that_hardly_differ_is_narrow() -> None:
    """The floor of right and wrong answers does not hold for a share of cells, for example."""
    right = 0.2 + 0.01 * np.sin(np.arange(40.0))
    low, high = share_ends(right, np.ones(40), draws(40, 400))
    assert 0.19 < low < right.mean() < high < 0.21
