"""Near-equal pictures: the first stays; against a loop in float64."""

from __future__ import annotations

import tempfile

import numpy as np
import pytest

from tests.tiny.banks import unit
from vgtools.io.arrays import Array
from vgtools.retrieval import duplicates
from vgtools.retrieval.build import IndexPlan
from vgtools.retrieval.duplicates import distinct


def near_copies(count: int, dim: int, spread: float) -> Array:
    """Return unit vectors, each near one of a tenth as many others."""
    rng = np.random.default_rng(1)
    emb = unit(count // 10, dim)[rng.integers(0, count // 10, count)]
    emb = emb + spread * rng.normal(size=emb.shape)
    return (emb / np.linalg.norm(emb, axis=1, keepdims=True)).astype(np.float32)


def loop(emb: Array, limit: float) -> tuple[list[int], list[tuple[int, int, float]]]:
    rows: list[int] = []
    twins = []
    wide = emb.astype(np.float64)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    for row in range(len(emb)):
        cosines = np.round(wide[rows] @ wide[row], 6) if rows else np.zeros(0)
        reached = np.flatnonzero(cosines >= limit)
        if len(reached):
            twins.append((row, rows[reached[0]], float(cosines[reached[0]])))
        else:
            rows.append(row)
    return rows, twins


@pytest.mark.parametrize(("limit", "spread"), [(0.98, 0.05), (0.9, 0.15), (-1.0, 0.1), (1.0, 0.0)])
@pytest.mark.parametrize(("step", "kept"), [(1024, 1 << 14), (37, 20)])
def test_the_first_of_near_equal_pictures_stays(
    monkeypatch: pytest.MonkeyPatch, limit: float, spread: float, step: int, kept: int
) -> None:
    monkeypatch.setattr(duplicates, "_STEP", step)
    monkeypatch.setattr(duplicates, "_KEPT", kept)
    emb = near_copies(500, 6, spread)
    plan = IndexPlan(lambda rows: emb[rows], len(emb), 6)
    seen = list[int]()
    with tempfile.TemporaryFile() as file:
        found = distinct(plan, limit, file, lambda block: seen.append(len(block)))
        rows, twins = loop(emb, limit)
        assert found.rows.tolist() == rows
        assert 0 < len(rows) < 500
        assert [twin[:2] for twin in found.twins] == [twin[:2] for twin in twins]
        cosines = [twin.cosine for twin in found.twins]
        np.testing.assert_allclose(cosines, [twin[2] for twin in twins], atol=1.1e-6)
        assert found.plan.count == len(rows)
        np.testing.assert_array_equal(found.plan.embed(np.arange(len(rows))), emb[rows])
    assert sum(seen) == 500
