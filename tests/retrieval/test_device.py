"""The search on a device, tile by tile, against brute force in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.tiny.banks import brute_force, hard_bank, unit
from vgtools.retrieval import device
from vgtools.retrieval.device import DeviceBank
from vgtools.retrieval.exact import exact_search


@pytest.mark.parametrize("coarse", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("count", [100, 128, 1000])
def test_search_as_on_a_gpu_is_the_same(count: int, k: int, coarse: torch.dtype) -> None:
    queries, bank = hard_bank(count, 16)
    result = DeviceBank(bank, torch.device("cpu"), coarse).search(
        torch.from_numpy(queries), k, budget=1 << 16
    )
    expected = exact_search(queries, bank, k)
    assert (result.rows == expected.rows).all()
    assert (result.scores == expected.scores).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("k", [1, 16])
def test_search_on_a_gpu_is_the_same(k: int) -> None:
    queries, bank = hard_bank(5000, 64)
    result = DeviceBank(bank, torch.device("cuda")).search(torch.from_numpy(queries).cuda(), k)
    assert (result.rows == brute_force(queries, bank, k)).all()


@pytest.mark.parametrize("coarse", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 4, 16, 300])
@pytest.mark.parametrize("kinds", [1, 5])
def test_many_equal_images_come_in_the_order_of_their_rows(
    monkeypatch: pytest.MonkeyPatch, kinds: int, k: int, coarse: torch.dtype
) -> None:
    monkeypatch.setattr(device, "_LOOKED", 7)  # the candidates of one query come in many parts
    bank = unit(kinds, 8)[np.random.default_rng(0).integers(0, kinds, 333)]
    queries = unit(9, 8, 1)
    searched = DeviceBank(bank, torch.device("cpu"), coarse)
    for budget in (1, 1 << 20):
        found = searched.search(torch.from_numpy(queries), k, budget)
        assert (found.rows == exact_search(queries, bank, k).rows).all()


def test_fewer_images_than_asked_for_leave_no_row() -> None:
    found = DeviceBank(unit(3, 8), torch.device("cpu")).search(torch.from_numpy(unit(2, 8, 1)), 5)
    assert (found.rows[:, 3:] == -1).all()
    assert (found.scores[:, 3:] == 0).all()
    assert (np.sort(found.rows[:, :3], axis=1) == [0, 1, 2]).all()


@pytest.mark.parametrize("coarse", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("k", [1, 2, 7, 70])
@pytest.mark.parametrize("order", [1, 0, -1])
def test_tiles_of_any_size_give_the_brute_force(k: int, order: int, coarse: torch.dtype) -> None:
    queries, bank = hard_bank(700, 16)
    if order:  # the best come last, or first: every tile raises the floor, or none after the first
        bank = np.ascontiguousarray(bank[np.argsort(order * (bank @ queries[0]))])
    searched = DeviceBank(bank, torch.device("cpu"), coarse)
    expected = brute_force(queries, bank, k)
    exact = (queries.astype(np.float64)[:, None] * bank[expected].astype(np.float64)).sum(2)
    for budget in (1, 93 * 128 * coarse.itemsize, 93 * 320 * coarse.itemsize, 1 << 30):
        found = searched.search(torch.from_numpy(queries), k, budget, np.float64)
        assert (found.rows == expected).all()
        np.testing.assert_allclose(found.scores, exact, rtol=0, atol=1e-14)


def test_equal_images_in_different_tiles_give_the_lowest_row() -> None:
    bank = np.tile(unit(3, 8), (100, 1))
    searched = DeviceBank(bank, torch.device("cpu"))
    assert (searched.search(torch.from_numpy(bank[:3]), 1, 1).rows == [[0], [1], [2]]).all()
    found = searched.search(torch.from_numpy(bank[:1]), 5, 1)
    assert found.rows.tolist() == [[0, 3, 6, 9, 12]]


def test_a_tile_is_read_once_for_many_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    bank, queries = unit(64 * 40, 8), unit(300, 8, 1)
    searched = DeviceBank(bank, torch.device("cpu"))
    products = []
    product = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: products.append(a.shape) or product(a, b)
    )
    # Room for 64 images of every query: 40 products, where half a query per product was 300.
    searched.search(torch.from_numpy(queries), 1, budget=4 * 300 * 64)
    assert products == [(300, 8)] * 40
