"""PWCCA against numbers worked by hand, and against the eigenvalues that define it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vgtools.analysis.cca import Space, compare_spaces, correlate
from vgtools.io.errors import DataError

X = np.array([[1, 0], [2, 1], [0, 3], [4, 1], [1, 5], [3, 2]])
Y = np.array([[1, 1], [3, 0], [1, 2], [4, 3], [0, 4], [2, 2]])


def drawn(n: int, *widths: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(seed)
    shared = generator.standard_normal((n, 2))
    return [
        generator.standard_normal((n, width)) + shared @ generator.standard_normal((2, width))
        for width in widths
    ]


def by_eigenvalues(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[Any, Any]:
    """Return correlations and PWCCA from covariances, without a singular value decomposition."""
    x = x - x.mean(0)
    y = y - y.mean(0)
    product = np.linalg.solve(x.T @ x, x.T @ y) @ np.linalg.solve(y.T @ y, y.T @ x)
    squares, directions = np.linalg.eig(product)
    order = np.argsort(-squares.real)[: min(x.shape[1], y.shape[1])]
    variates = x @ directions.real[:, order]
    variates /= np.linalg.norm(variates, axis=0)
    values = np.sqrt(np.clip(squares.real[order], 0, 1))
    weights = np.abs(variates.T @ x).sum(1)
    return values, float(values @ weights / weights.sum())


def test_the_worked_example() -> None:
    found = correlate(Space(X), Space(Y))
    assert found.values == pytest.approx([0.885750, 0.813823], abs=5e-7)
    assert found.weights == pytest.approx([0.567621, 0.432379], abs=5e-7)
    assert found.pwcca == pytest.approx(0.854650, abs=5e-7)
    assert found.reverse == pytest.approx(0.844953, abs=5e-7)
    assert found.mean == pytest.approx((0.885750 + 0.813823) / 2, abs=5e-7)


@pytest.mark.parametrize("widths", [(5, 5), (7, 3), (3, 7)])
def test_it_is_what_the_eigenvalues_say(widths: tuple[int, int]) -> None:
    x, y = drawn(60, *widths)
    values, pwcca = by_eigenvalues(x, y)
    found = correlate(Space(x), Space(y))
    assert found.values == pytest.approx(values, abs=1e-9)
    assert found.pwcca == pytest.approx(pwcca, abs=1e-9)
    assert found.reverse == pytest.approx(by_eigenvalues(y, x)[1], abs=1e-9)
    assert correlate(Space(y), Space(x)).pwcca == pytest.approx(found.reverse, abs=1e-12)


def test_a_linear_map_of_the_second_space_changes_nothing() -> None:
    x, y = drawn(50, 4, 4)
    turned = 3 * y @ np.random.default_rng(1).standard_normal((4, 4)) + 7
    found = correlate(Space(x), Space(turned))
    assert found.pwcca == pytest.approx(correlate(Space(x), Space(y)).pwcca, abs=1e-9)
    assert correlate(Space(x), Space(2 * x - 1)).pwcca == pytest.approx(1, abs=1e-12)


def test_constant_and_repeated_dimensions_do_not_count() -> None:
    x, y = drawn(50, 4, 3)
    wide = np.column_stack([x, np.full(50, 0.1), x[:, 0] + x[:, 1], np.zeros(50)])
    space = Space(wide)
    assert (space.dropped, space.rank) == (2, 4)
    plain = correlate(Space(x), Space(y))
    assert correlate(space, Space(y)).values == pytest.approx(plain.values, abs=1e-9)
    assert space.basis @ space.loadings == pytest.approx(
        (wide - wide.mean(0))[:, [0, 1, 2, 3, 5]], abs=1e-12
    )


def test_words_shuffled_are_what_chance_gives() -> None:
    x, y = drawn(80, 4, 4)
    found = compare_spaces(Space(x), Space(y), seed=3)
    order = np.random.default_rng(3).permutation(80)
    first = correlate(Space(x), Space(y[order])).pwcca
    chance = found["shuffled"]
    assert chance["low"] - 1e-12 <= first <= chance["high"] + 1e-12
    assert chance["low"] < chance["pwcca"] < chance["high"] < found["pwcca"]
    assert (found["n"], found["ranks"], found["dropped"]) == (80, [4, 4], [0, 0])
    again = compare_spaces(Space(x), Space(y), seed=3)
    assert again == found
    assert compare_spaces(Space(x), Space(y), seed=4)["shuffled"] != chance


@pytest.mark.parametrize("n", [8, 9])
def test_too_few_words_would_always_correlate(n: int) -> None:
    x, y = (np.random.default_rng(seed).standard_normal((n, 4)) for seed in (0, 1))
    if n == 9:
        assert compare_spaces(Space(x), Space(y))["mean_cca"] < 0.999
        return
    assert correlate(Space(x), Space(y)).values[0] == pytest.approx(1)
    with pytest.raises(DataError, match="8 common words, but 4 and 4 dimensions"):
        compare_spaces(Space(x), Space(y))


def test_a_space_without_any_direction_is_refused() -> None:
    with pytest.raises(DataError, match="0 and 2 dimensions"):
        compare_spaces(Space(np.ones((6, 3))), Space(Y))
