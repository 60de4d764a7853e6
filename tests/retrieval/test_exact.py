"""Exact search against brute force in float64."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny.banks import brute_force, hard_bank, unit
from vgtools.io.errors import DataError, Exit
from vgtools.models import products
from vgtools.retrieval import exact
from vgtools.retrieval.device import DeviceBank
from vgtools.retrieval.exact import exact_search, largest_norm


@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize(("count", "dim"), [(100, 8), (3125, 64), (7001, 32)])
def test_search_is_the_brute_force_of_float64(count: int, dim: int, k: int) -> None:
    queries, bank = hard_bank(count, dim)
    result = exact_search(queries, bank, k)
    expected = brute_force(queries, bank, k)
    assert (result.rows == expected).all()
    exact = (queries.astype(np.float64)[:, None] * bank[expected].astype(np.float64)).sum(2)
    assert (result.scores == exact.astype(np.float32)).all()


def test_blocks_batches_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, bank = hard_bank(2000, 32)
    whole = exact_search(queries, bank, 1, threads=1)
    one_by_one = np.concatenate([exact_search(q[None], bank, 1).rows for q in queries])
    monkeypatch.setattr(exact, "_QUERIES", 7)
    monkeypatch.setattr(exact, "_IMAGES", 13)
    monkeypatch.setattr(exact, "REFINE", 5)
    blocks = exact_search(queries, bank, 1, threads=3)
    assert (whole.rows == one_by_one).all()
    assert (whole.rows == blocks.rows).all()
    assert (whole.scores == blocks.scores).all()


@pytest.mark.parametrize("k", [2, 16, 40])
@pytest.mark.parametrize("order", [1, -1])
def test_several_of_many_blocks_are_the_brute_force(
    monkeypatch: pytest.MonkeyPatch, k: int, order: int
) -> None:
    queries, bank = hard_bank(900, 16)
    # The best come last, or first: every block raises the floor, or none after the first.
    bank = np.ascontiguousarray(bank[np.argsort(order * (bank @ queries[0]))])
    expected = brute_force(queries, bank, k)
    monkeypatch.setattr(exact, "_QUERIES", 11)
    monkeypatch.setattr(exact, "_IMAGES", 29)
    norm = largest_norm(bank)
    for result in (exact_search(queries, bank, k), exact_search(queries, bank, k, norm=norm)):
        assert (result.rows == expected).all()
    assert norm == pytest.approx(float(np.linalg.norm(bank.astype(np.float64), axis=1).max()))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_by_onednn_change_nothing(
    k: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    onednn = products.onednn
    queries, bank = hard_bank(2000, 32)
    bank.setflags(write=False)  # as a memory map is
    monkeypatch.setattr(exact, "_QUERIES", 100)
    found = []
    for faster in (False, True):
        monkeypatch.setattr(products, "is_faster", lambda faster=faster: faster)
        used = list[int]()
        monkeypatch.setattr(products, "onednn", lambda a, b, u=used: u.append(1) or onednn(a, b))
        found.append(exact_search(queries, bank, k, threads=threads))
        assert bool(used) == faster
    assert (found[0].rows == found[1].rows).all()
    assert (found[0].scores == found[1].scores).all()


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_a_program_that_asks_torch_for_less_precision_changes_nothing(precision: str) -> None:
    queries, bank = hard_bank(2000, 32)
    wanted = exact_search(queries, bank, 3)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert not products.keeps_float32()
        found = exact_search(queries, bank, 3)
    finally:
        torch.set_float32_matmul_precision(before)
    assert products.keeps_float32()
    assert (found.rows == wanted.rows).all()
    assert (found.scores == wanted.scores).all()


@pytest.mark.parametrize(
    "kernel", ["Prescott", "Nehalem"]
)  # of x86; OpenBLAS for others ignores it
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_of_other_processors_change_nothing(
    tmp_path: Path, kernel: str, threads: int
) -> None:
    queries, bank = hard_bank(2000, 32)
    np.savez(tmp_path / "in.npz", queries=queries, bank=bank)
    code = (
        "import sys, numpy as np; from vgtools.retrieval.exact import exact_search; "
        "data = np.load('in.npz'); found = exact_search(data['queries'], "
        "data['bank'], 3, threads=int(sys.argv[1])); "
        "np.savez('out.npz', rows=found.rows, scores=found.scores)"
    )
    env = os.environ | {"OPENBLAS_CORETYPE": kernel, "PYTHONPATH": ":".join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(threads)], cwd=tmp_path, env=env, check=True)
    found, wanted = np.load(tmp_path / "out.npz"), exact_search(queries, bank, 3)
    assert (found["rows"] == wanted.rows).all()
    assert (found["scores"] == wanted.scores).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-2, 2), min_size=3, max_size=3), min_size=1, max_size=12),
    st.integers(1, 5),
)
def test_equal_scores_go_to_the_lower_row(bank: list[list[int]], k: int) -> None:
    queries = np.array([[1, 0, 0], [1, 1, 1], [-1, 2, 0]], np.float32)
    rows = exact_search(queries, np.array(bank, np.float32), k).rows
    assert (rows[:, : len(bank)] == brute_force(queries, np.array(bank, np.float32), k)).all()
    assert (rows[:, len(bank) :] == -1).all()


def test_a_bank_of_one_picture_over_and_over_gives_its_first_row() -> None:
    bank = np.repeat(unit(1, 8), 4000, 0)
    assert (exact_search(unit(600, 8, 5), bank).rows == 0).all()


def test_fewer_images_than_k_stay_minus_one() -> None:
    result = exact_search(unit(2, 4), unit(3, 4, 1), 5)
    assert (result.rows[:, 3:] == -1).all()
    assert (result.scores[:, 3:] == 0).all()
    assert exact_search(unit(0, 4), unit(3, 4), 2).rows.shape == (0, 2)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_query_that_is_no_number_spoils_no_other_in_silence(value: float) -> None:
    bank, queries = unit(40, 8), unit(5, 8, 1)
    queries[3, 2] = value
    with pytest.raises(DataError, match="NaN or infinite") as caught:
        exact_search(queries, bank)
    assert caught.value.code == Exit.CANNOT_CONTINUE
    with pytest.raises(DataError, match="NaN or infinite"):
        DeviceBank(bank, torch.device("cpu")).search(torch.from_numpy(queries))


def near_duplicates() -> tuple[np.ndarray, np.ndarray]:
    """Return queries and a bank whose images are a few bits from one another."""
    rng = np.random.default_rng(0)
    base = np.repeat(unit(40, 32), 30, axis=0)
    bank = base + 1e-8 * rng.standard_normal(base.shape).astype(np.float32)
    return unit(1500, 32, 1), bank[rng.permutation(len(bank))]


@pytest.mark.parametrize("k", [1, 3])
def test_parts_of_a_bank_are_merged_as_the_bank_is_searched(k: int) -> None:
    queries, bank = near_duplicates()
    whole = exact_search(queries, bank, k)
    edges = [0, 1, 400, 401, len(bank)]
    parts = []
    for first, end in itertools.pairwise(edges):
        found = exact_search(queries, bank[first:end], k, dtype=np.float64)
        parts.append(
            exact.SearchResult(np.where(found.rows < 0, -1, found.rows + first), found.scores)
        )
    assert (exact.merged(parts, k).rows == whole.rows).all()
    single = [exact.SearchResult(part.rows, part.scores.astype(np.float32)) for part in parts]
    wrong = (exact.merged(single, k).rows != whole.rows).any(1).sum()
    assert wrong > 10, "float32 scores of near-duplicates are equal: the bank is hard enough"
