"""Shared neighbours and linear CKA against their definitions, thing by thing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vgtools.analysis import alignment
from vgtools.analysis.alignment import linear_cka, neighbours, shared_neighbours

Array = np.ndarray[Any, Any]


def drawn(n: int, *widths: int, seed: int = 0) -> list[Array]:
    generator = np.random.default_rng(seed)
    shared = generator.standard_normal((n, 3))
    return [
        generator.standard_normal((n, width)) + shared @ generator.standard_normal((3, width))
        for width in widths
    ]


def cka_by_matrices(x: Array, y: Array) -> float:
    """Return CKA from whole Gram matrices, as Song et al. 2012 write the estimate."""

    def hsic(a: Array, b: Array) -> float:
        n = len(a)
        k, l = a @ a.T, b @ b.T  # noqa: E741
        np.fill_diagonal(k, 0)
        np.fill_diagonal(l, 0)
        one = np.ones(n)
        total = np.trace(k @ l) + (one @ k @ one) * (one @ l @ one) / ((n - 1) * (n - 2))
        return float(total - 2 / (n - 2) * (one @ k @ l @ one)) / (n * (n - 3))

    return hsic(x, y) / float(np.sqrt(hsic(x, x) * hsic(y, y)))


def test_neighbours_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    (x,) = drawn(23, 5)
    monkeypatch.setattr(alignment, "_BLOCK", 60)  # blocks of two rows, the last of one
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    for i, found in enumerate(neighbours(x, 4)):
        others = sorted((j for j in range(23) if j != i), key=lambda j: -float(unit[i] @ unit[j]))
        assert found.tolist() == others[:4]


def test_shares_are_those_of_sets() -> None:
    x, y = drawn(40, 6, 9)
    a, b = neighbours(x, 10).tolist(), neighbours(y, 10).tolist()
    expected = [len(set(p) & set(q)) / 10 for p, q in zip(a, b, strict=True)]
    share, values = shared_neighbours(x, y)
    assert share == pytest.approx(np.mean(expected))
    assert 0 < np.mean(expected) < 1

    def without(i: int) -> float:
        rest = np.arange(40) != i
        near, others = (neighbours(side[rest], 10).tolist() for side in (x, y))
        return (
            float(np.mean([len(set(p) & set(q)) for p, q in zip(near, others, strict=True)])) / 10
        )

    lost = np.array([40 * share - own - 39 * without(i) for i, own in enumerate(expected)])
    halves = expected + (lost - lost.mean()) / 2
    assert values.tolist() == pytest.approx(halves.tolist())


@pytest.mark.parametrize(("size", "noise"), [(40, 1.0), (100, 0.3), (100, 3.0)])
def test_values_of_things_show_how_far_shares_of_other_things_are(size: int, noise: float) -> None:
    """The standard error of the values is the spread of the share over draws of things."""
    rng = np.random.default_rng(4)
    maps = rng.normal(size=(2, 8, 32))
    shares, errors, plain = [], [], []
    for _ in range(300):
        z = rng.normal(size=(size, 8))
        x, y = (z @ one + noise * rng.normal(size=(size, 32)) for one in maps)
        share, values = shared_neighbours(x, y)
        both = zip(neighbours(x, 10).tolist(), neighbours(y, 10).tolist(), strict=True)
        own = [len(set(p) & set(q)) / 10 for p, q in both]
        shares.append(share)
        errors.append(values.std(ddof=1) / np.sqrt(size))
        plain.append(np.std(own, ddof=1) / np.sqrt(size))
    assert 0.9 < np.mean(errors) / np.std(shares) < 1.3
    assert np.mean(plain) < 0.87 * np.std(shares), "things' own shares look too certain"


def test_a_rotation_and_a_scale_share_all_neighbours_and_chance_a_few() -> None:
    x, y = drawn(400, 6, 6)
    turned = 3 * x @ np.linalg.qr(y[:6])[0]
    share, values = shared_neighbours(x, turned)
    assert share == 1
    assert values == pytest.approx(np.ones(400))
    permuted = y[np.random.default_rng(1).permutation(400)]
    assert shared_neighbours(x, permuted)[0] == pytest.approx(10 / 399, abs=0.01)


def test_a_vector_without_length_is_no_fault() -> None:
    x, y = drawn(20, 4, 4)
    x[3] = 0
    share, values = shared_neighbours(x, y, 5)
    assert np.isfinite(values).all()
    assert share <= 1


@pytest.mark.parametrize("widths", [(4, 7), (30, 3)])
def test_cka_and_its_pseudo_values_are_those_of_whole_matrices(widths: tuple[int, int]) -> None:
    x, y = drawn(17, *widths)
    whole, values = linear_cka(x + 100, y)  # the origin does not matter
    assert whole == pytest.approx(cka_by_matrices(x, y), rel=1e-7)
    for i in range(17):
        rest = np.arange(17) != i
        expected = 17 * whole - 16 * cka_by_matrices(x[rest], y[rest])
        assert values[i] == pytest.approx(expected, abs=1e-8)


def test_cka_of_equal_and_of_unrelated_vectors() -> None:
    x, y = drawn(500, 8, 8)
    whole, values = linear_cka(x, 2 * x @ np.linalg.qr(y[:8])[0])
    assert whole == pytest.approx(1)
    assert values == pytest.approx(np.ones(500))
    permuted = y[np.random.default_rng(1).permutation(500)]
    whole, values = linear_cka(x, permuted)
    # The biased estimate would be about 8 / 500 above 0; standard errors are near .003 here.
    assert abs(whole) < 0.015
    assert abs(values.mean()) < 3 * values.std() / np.sqrt(500)


def test_equal_vectors_have_no_cka() -> None:
    x, _ = drawn(10, 4, 4)
    whole, values = linear_cka(x, np.ones((10, 3)))
    assert np.isnan(whole)
    assert np.isnan(values).all()
