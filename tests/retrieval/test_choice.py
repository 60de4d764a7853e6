"""The choice of an index: against its own rule, and the exact search of the sample."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tiny.banks import brute_force, unit
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.retrieval import choice
from vgtools.retrieval.build import IndexPlan, make_index
from vgtools.retrieval.choice import choose
from vgtools.retrieval.index import search_faiss

DIM = 16
COUNT = 3000
FLAT_BYTES = 4 * COUNT * DIM


def plan_of(emb: Array, queries: Array | None = None) -> IndexPlan:
    asked = None if queries is None else lambda: queries
    return IndexPlan(lambda rows: emb[rows], len(emb), emb.shape[1], choice.AUTO, None, asked)


def test_a_small_bank_that_fits_is_searched_exactly() -> None:
    emb = unit(COUNT, DIM)
    plan, facts = choose(plan_of(emb), FLAT_BYTES, 0.9)
    assert (plan.factory, plan.nprobe) == ("Flat", None)
    assert facts == {
        "memory": FLAT_BYTES,
        "recall": 0.9,
        "bytes": FLAT_BYTES,
        "sample": 0,
        "tried": [],
    }


@pytest.mark.parametrize("recall", [0.5, 0.9])
def test_the_candidate_of_the_fewest_bytes_that_finds_enough_is_chosen(
    monkeypatch: pytest.MonkeyPatch, recall: float
) -> None:
    monkeypatch.setattr(choice, "_EXACT", 0)
    emb, queries = unit(COUNT, DIM), unit(200, DIM, seed=1)
    plan, facts = choose(plan_of(emb, queries), 1 << 20, recall)
    tried = {one["factory"]: one for one in facts["tried"]}
    # 4 * sqrt(3000) = 219 lists are 256; with 39 images each they are 76.
    assert list(tried) == ["IVF76,Flat", "IVF76,SQ8", "IVF76,SQ4"]
    lists = 76 * DIM * 4
    assert [one["bytes"] for one in tried.values()] == [
        COUNT * (code + 8) + lists for code in (4 * DIM, DIM, DIM // 2)
    ]
    assert facts["sample"] == COUNT
    best = brute_force(queries, emb, 1)[:, 0]
    for name, one in tried.items():
        index = make_index(emb, name)
        found = []
        for nprobe in (one["nprobe"], max(1, one["nprobe"] // 2)):
            index.nprobe = nprobe
            found.append((search_faiss(index, queries, 1).rows[:, 0] == best).mean())
        assert one["recall_at_1"] == pytest.approx(found[0], abs=0.02)  # other centroids of a part
        assert one["nprobe"] == 1 or found[1] < recall + 0.02
    good = [one for one in tried.values() if one["recall_at_1"] >= recall]
    assert good
    cheapest = min(good, key=lambda one: one["nprobe"] * one["bytes"])
    assert (plan.factory, plan.nprobe) == (cheapest["factory"], cheapest["nprobe"])


def test_what_does_not_fit_is_not_tried_and_no_candidate_is_an_error() -> None:
    emb = unit(COUNT, DIM)
    least = COUNT * (DIM // 2 + 8) + 76 * DIM * 4
    plan, facts = choose(plan_of(emb), least, 1.0)
    assert [one["factory"] for one in facts["tried"]] == ["IVF76,SQ4"]
    # No query of it is answered by all: the best of them is taken, short of the recall.
    assert facts["tried"][0]["recall_at_1"] < 1
    assert (plan.factory, plan.nprobe) == ("IVF76,SQ4", 76)
    with pytest.raises(DataError, match=f"take at least {least} bytes") as error:
        choose(plan_of(emb), least - 1, 0.5)
    assert error.value.code == 2


def test_two_machines_choose_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_EXACT", 0)
    emb = unit(COUNT, DIM)
    made = [choose(plan_of(emb, np.zeros((0, DIM), np.float32)), 1 << 20, 0.8) for _ in range(2)]
    assert made[0][1] == made[1][1]
