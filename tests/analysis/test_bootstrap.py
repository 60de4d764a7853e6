"""The bootstrap over groups, against loops."""

from __future__ import annotations

import numpy as np
import pytest

from vgtools.analysis.bootstrap import draws, ends, with_interval


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
