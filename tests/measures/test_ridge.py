"""Ridge regression against normal equations, one item left out at a time."""

from __future__ import annotations

import numpy as np
import pytest

from vgtools.io.arrays import Array
from vgtools.measures import ridge

RNG = np.random.default_rng(0)


def solved(x: Array, y: Array, penalty: float) -> tuple[Array, Array]:
    """Return weights and intercept of the normal equations, the intercept as a column of ones."""
    wide = np.column_stack([x, np.ones(len(x))])
    no = np.diag([*[penalty] * x.shape[1], 0.0])
    found: Array = np.linalg.solve(wide.T @ wide + no, wide.T @ y)
    return found[:-1], found[-1]


def by_loops(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the fit whose items are predicted best if each is left out in turn."""
    scale = ((x - x.mean(0)) ** 2).sum() / x.shape[1]
    errors = list[float]()
    for strength in ridge.STRENGTHS:
        error = 0.0
        for out in range(len(x)):
            rest = np.arange(len(x)) != out
            weights, intercept = solved(x[rest], y[rest], strength * scale)
            error += float(((x[out] @ weights + intercept - y[out]) ** 2).sum())
        errors.append(error)
    return solved(x, y, ridge.STRENGTHS[int(np.argmin(errors))] * scale)


@pytest.mark.parametrize(("items", "width", "noise"), [(30, 4, 0.1), (30, 4, 5.0), (12, 20, 1.0)])
def test_the_strength_that_predicts_items_left_out_best(
    items: int, width: int, noise: float
) -> None:
    x = RNG.normal(size=(items, width)) + 3
    y = x @ RNG.normal(size=(width, 2)) + noise * RNG.normal(size=(items, 2)) + 7
    for found, expected in zip(ridge.fit(x, y), by_loops(x, y), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_an_item_is_predicted_by_the_other_folds_only() -> None:
    x = RNG.normal(size=(40, 3))
    y = x @ np.ones((3, 1))
    found = ridge.cross_validated(x, y)
    np.testing.assert_allclose(found, y, atol=1e-3)
    changed = y.copy()
    changed[7] += 100
    again = ridge.cross_validated(x, changed)
    fold = np.random.default_rng(0).permutation(40) % ridge.FOLDS
    same = fold == fold[7]
    np.testing.assert_array_equal(again[same], found[same])
    assert (again[~same] != found[~same]).all()


def test_predictions_do_not_depend_on_the_length_of_vectors() -> None:
    x = RNG.normal(size=(40, 3))
    y = RNG.normal(size=(40, 1))
    one, other = (ridge.cross_validated(x * scale, y) for scale in (1, 1000))
    np.testing.assert_allclose(other, one, rtol=1e-9)


def test_constant_vectors_predict_the_mean() -> None:
    y = RNG.normal(size=(20, 1))
    weights, intercept = ridge.fit(np.ones((20, 3)), y)
    assert np.abs(weights).max() < 1e-12
    np.testing.assert_allclose(intercept, y.mean(0))
