"""Probabilities of vokens: a fit that can be solved by hand, monotone scores, reliability."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vgtools.io.errors import DataError
from vgtools.systems.vokenization.calibration import Calibration, fit_calibration, reliability


def test_the_fit_of_two_groups_is_their_log_odds() -> None:
    # Stems that 0 and 3 captions hold; relevance says nothing. Right: 1 of 5, and 3 of 4.
    stems = ["new"] * 500 + ["dog"] * 400
    right = np.array([True] * 100 + [False] * 400 + [True] * 300 + [False] * 100)
    relevance = np.full(900, 0.5)
    model = fit_calibration(relevance, stems, right, {"dog": 3})
    found = model.probability(np.full((2, 1), 0.5), ["new", "dog"])
    np.testing.assert_allclose(found[:, 0], [0.2, 0.75], atol=1e-4)
    assert model.captions == pytest.approx(math.log(3 / 0.25) / math.log(4), rel=1e-3)
    assert model.stems == {"dog": 3}


def test_the_fit_finds_the_weights_that_drew_the_data() -> None:
    rng = np.random.default_rng(0)
    relevance = rng.uniform(0, 1, 40_000)
    counts = {f"w{n}": n for n in range(1, 300, 7)}
    stems = rng.choice(list(counts), 40_000).tolist()
    known = np.log1p([counts[stem] for stem in stems])
    right = rng.random(40_000) < 1 / (1 + np.exp(-(4 * relevance + 0.8 * known - 5)))
    model = fit_calibration(relevance, stems, right, counts)
    # Standard errors of such a fit are about 0.05, 0.01 and 0.06.
    assert model.relevance == pytest.approx(4, abs=0.2)
    assert model.captions == pytest.approx(0.8, abs=0.05)
    assert model.bias == pytest.approx(-5, abs=0.25)


def test_probabilities_grow_with_relevance_and_never_fall() -> None:
    rng = np.random.default_rng(1)
    relevance = rng.uniform(0, 1, 500)
    against = rng.random(500) < 1 - relevance  # the more relevant, the less right
    model = fit_calibration(relevance, ["dog"] * 500, against, {"dog": 3})
    assert model.relevance == 0, "then relevance counts for nothing"
    flat = model.probability(np.array([[0.1, 0.9]]), ["dog"])[0]
    np.testing.assert_allclose(flat, against.mean(), atol=1e-3)
    rising = Calibration(5.0, 0.5, -3.0, {"dog": 3})
    values = rising.probability(np.linspace(-1, 1, 9)[None], ["dog"])[0]
    assert (np.diff(values) > 0).all()
    assert rising.probability(np.array([[0.2]]), ["dog"])[0, 0] == pytest.approx(
        1 / (1 + math.exp(3 - 1 - 0.5 * math.log(4)))
    )
    extreme = Calibration(1e4, 0.0, 0.0, {}).probability(np.array([[-1.0, 1.0]]), ["x"])
    assert extreme.tolist() == [[0.0, 1.0]]


def test_separable_data_give_finite_weights() -> None:
    model = fit_calibration(np.array([0.0, 1.0]), ["a", "a"], np.array([False, True]), {})
    assert np.isfinite([model.relevance, model.captions, model.bias]).all()
    assert model.probability(np.array([[1.0]]), ["a"])[0, 0] > 0.9


def test_the_reliability_curve_by_hand() -> None:
    scores = np.array([0.1, 0.15, 0.5, 0.9, 0.95, 1.0])
    right = np.array([False, True, False, True, True, True])
    assert reliability(scores, right) == [
        {"from": 0.0, "score": 12.5, "right": 50.0, "count": 2},
        {"from": 40.0, "score": 50.0, "right": 0.0, "count": 1},
        {"from": 80.0, "score": 95.0, "right": 100.0, "count": 3},
    ]
    assert reliability(np.zeros(0), np.zeros(0, bool)) == []


def test_a_run_that_was_not_validated_has_none() -> None:
    assert Calibration.of({"kind": "matcher"}, "run.json") is None
    stored = {"relevance": 1.0, "captions": 0.5, "bias": -1.0, "stems": {"dog": 2}}
    expected = Calibration(1.0, 0.5, -1.0, {"dog": 2})
    assert Calibration.of({"calibration": stored}, "run.json") == expected


@pytest.mark.parametrize(
    "stored",
    [5, {}, {"relevance": "1", "captions": 1, "bias": 0, "stems": {}},
     {"relevance": 1, "captions": 1, "bias": 0, "stems": {"dog": None}},
     {"relevance": 1, "captions": 1, "bias": 0, "stems": {}, "more": 1}],
)  # fmt: skip
def test_a_damaged_model_is_named(stored: object) -> None:
    with pytest.raises(DataError, match=r'run\.json: "calibration": expected three weights'):
        Calibration.of({"calibration": stored}, "run.json")
