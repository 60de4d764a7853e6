"""Exact search against brute force in float64, and index files that are not what they say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vgtools import io, retrieval
from vgtools.io import DataError, Exit
from vgtools.retrieval import DeviceBank, exact_search, make_index, open_index

Array = np.ndarray[Any, Any]


def unit(count: int, dim: int, seed: int = 0) -> Array:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def brute_force(queries: Array, bank: Array, k: int) -> Array:
    """Return the k best rows by float64 inner products, the lower row first where two are equal."""
    rows = np.empty((len(queries), min(k, len(bank))), np.int64)
    for i, query in enumerate(queries.astype(np.float64)):
        scores = (query * bank.astype(np.float64)).sum(1)
        rows[i] = np.lexsort((np.arange(len(bank)), -scores))[:k]
    return rows


def hard_bank(count: int, dim: int) -> tuple[Array, Array]:
    """Return queries and a bank with equal rows, rows one bit apart, and queries equal to rows."""
    bank = unit(count, dim)
    bank[count // 2] = bank[1]
    bank[-1] = bank[1]
    near = slice(count // 4, count // 4 + 20)
    bank[near] = bank[3] + 1e-7 * np.random.default_rng(1).standard_normal(bank[near].shape).astype(
        np.float32
    )
    return np.concatenate([unit(90, dim, 2), bank[[1, 3, count // 4]]]), bank


@pytest.mark.parametrize("k", [1, 2, 7])
@pytest.mark.parametrize(("count", "dim"), [(100, 8), (3125, 64), (7001, 32)])
def test_search_is_the_brute_force_of_float64(count: int, dim: int, k: int) -> None:
    queries, bank = hard_bank(count, dim)
    result = exact_search(queries, bank, k)
    expected = brute_force(queries, bank, k)
    assert (result.rows == expected).all()
    exact = (queries.astype(np.float64)[:, None] * bank[expected].astype(np.float64)).sum(2)
    assert (result.scores == exact.astype(np.float32)).all()


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
def test_search_on_a_gpu_is_the_same() -> None:
    queries, bank = hard_bank(5000, 64)
    result = DeviceBank(bank, torch.device("cuda")).search(torch.from_numpy(queries).cuda(), 1)
    assert (result.rows == brute_force(queries, bank, 1)).all()


def test_blocks_batches_and_threads_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, bank = hard_bank(2000, 32)
    whole = exact_search(queries, bank, 1, threads=1)
    one_by_one = np.concatenate([exact_search(q[None], bank, 1).rows for q in queries])
    monkeypatch.setattr(retrieval, "_QUERIES", 7)
    monkeypatch.setattr(retrieval, "_IMAGES", 13)
    monkeypatch.setattr(retrieval, "_REFINE", 5)
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
    monkeypatch.setattr(retrieval, "_QUERIES", 11)
    monkeypatch.setattr(retrieval, "_IMAGES", 29)
    norm = retrieval.largest_norm(bank)
    for result in (exact_search(queries, bank, k), exact_search(queries, bank, k, norm=norm)):
        assert (result.rows == expected).all()
    assert norm == pytest.approx(float(np.linalg.norm(bank.astype(np.float64), axis=1).max()))


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
        "import sys, numpy as np; from vgtools.retrieval import exact_search; "
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


def save(folder: Path, emb: Array, factory: str = "Flat", **facts: Any) -> Path:
    path = folder / "vg.faiss"
    path.write_bytes(bytes(retrieval.serialize(make_index(emb, factory))))
    ids = path.with_suffix(".ids")
    ids.write_text("".join(f"i{i}\n" for i in range(len(emb))))
    known = {"kind": "index", "count": len(emb), "dim": emb.shape[1], "metric": retrieval.METRIC}
    io.write_manifest(path, [path, ids], **(known | facts))
    return path


def test_an_index_opens_mapped_and_finds(tmp_path: Path) -> None:
    bank = unit(50, 8)
    index = open_index(save(tmp_path, bank))
    assert index.bank is not None
    assert (index.bank == bank).all()
    assert index.ids[7] == "i7"
    assert (index.search(bank[[9, 4]]).rows == [[9], [4]]).all()
    assert (index.search(torch.from_numpy(bank[[9]])).rows == 9).all()


def test_another_factory_finds_and_says_how_well(tmp_path: Path) -> None:
    bank, queries = unit(400, 8), unit(50, 8, 1)
    path = save(tmp_path, bank, "IVF20,Flat")
    index = open_index(path)
    assert index.bank is None
    exact = exact_search(queries, bank).rows
    measured = retrieval.recall_at_1(index.faiss, bank, queries)
    assert measured == float((index.search(queries).rows == exact).mean())
    assert 0.1 < measured < 1
    short = index.search(queries, 100)
    assert (short.rows == -1).any(), "one list holds fewer than 100"
    assert (short.scores[short.rows == -1] == 0).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_query_that_is_no_number_spoils_no_other_in_silence(value: float) -> None:
    bank, queries = unit(40, 8), unit(5, 8, 1)
    queries[3, 2] = value
    with pytest.raises(DataError, match="NaN or infinite") as caught:
        exact_search(queries, bank)
    assert caught.value.code == Exit.CANNOT_CONTINUE
    with pytest.raises(DataError, match="NaN or infinite"):
        DeviceBank(bank, torch.device("cpu")).search(torch.from_numpy(queries))


def test_the_same_picture_twice_is_no_miss() -> None:
    bank, queries = np.repeat(unit(20, 8), 2, axis=0), unit(30, 8, 1)
    exact = make_index(bank)

    class Later:
        """Finds the second one of each pair."""

        def search(self, queries: Any, k: int) -> tuple[Any, Any]:
            scores, rows = exact.search(queries, k)
            return scores, rows // 2 * 2 + 1

    assert (exact_search(queries, bank).rows % 2 == 0).all()
    assert retrieval.recall_at_1(Later(), bank, queries) == 1


@pytest.mark.filterwarnings("ignore")
def test_a_factory_that_faiss_does_not_know_is_refused() -> None:
    with pytest.raises(
        DataError,
        match=r"--factory 'Nope' for 5 images of 4 dimensions: could not parse .*Flat always works",
    ):
        make_index(unit(5, 4), "Nope")


def test_every_cut_and_every_kind_of_flip_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, unit(6, 4))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError) as error:
            open_index(path)
        assert error.value.code == Exit.DATA
    for place in range(len(whole)):
        path.write_bytes(
            whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :]
        )
        with pytest.raises(DataError, match="sha256"):
            open_index(path)
    path.write_bytes(whole)
    open_index(path)


def test_every_cut_manifest_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, unit(6, 4))
    manifest = path.with_suffix(".json")
    whole = manifest.read_bytes()
    for size in range(len(whole) - 2):
        manifest.write_bytes(whole[:size])
        with pytest.raises(DataError) as error:
            open_index(path)
        assert error.value.code == Exit.DATA
    manifest.unlink()
    with pytest.raises(DataError, match=r"manifest of .* is missing") as error:
        open_index(path)
    assert error.value.code == Exit.NO_INPUT


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"count": 7}, "has count 6, its manifest says 7"),
        ({"dim": 5}, "has dim 4, its manifest says 5"),
        ({"metric": "l2"}, "has metric inner_product, its manifest says l2"),
        ({"kind": "image-features"}, "expected the manifest of 'index', got 'image-features'"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    tmp_path: Path, facts: dict[str, Any], message: str
) -> None:
    path = save(tmp_path, unit(6, 4), **facts)
    with pytest.raises(DataError, match=message) as error:
        open_index(path)
    assert error.value.code == Exit.DATA


def test_another_metric_is_refused(tmp_path: Path) -> None:
    path = save(tmp_path, unit(6, 4))
    index = faiss.IndexFlatL2(4)
    index.add(unit(6, 4))
    path.write_bytes(bytes(retrieval.serialize(index)))
    known = json.loads(path.with_suffix(".json").read_text())
    io.write_manifest(
        path, [path, path.with_suffix(".ids")], kind="index", count=6, dim=4, metric=known["metric"]
    )
    with pytest.raises(
        DataError, match="has metric faiss metric 1, its manifest says inner_product"
    ):
        open_index(path)


def test_ids_of_another_index_are_refused(tmp_path: Path) -> None:
    path = save(tmp_path, unit(6, 4))
    (tmp_path / "other").mkdir()
    other = save(tmp_path / "other", unit(5, 4))
    shutil.copy(other.with_suffix(".ids"), path.with_suffix(".ids"))
    with pytest.raises(DataError, match=r"vg\.ids"):
        open_index(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_embeddings_that_cannot_be_ranked_are_refused(tmp_path: Path, value: float) -> None:
    bank = unit(6, 4)
    bank[3] = value
    with pytest.raises(DataError, match=r"row 3 \(i3\) is NaN, infinite or all zero"):
        open_index(save(tmp_path, bank))


def test_an_index_without_images_or_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no images"):
        open_index(save(tmp_path, np.zeros((0, 4), np.float32)))
    path = save(tmp_path, unit(400, 8), "IVF20,Flat")
    index: Any = faiss.read_index(str(path))
    index.is_trained = False
    path.write_bytes(bytes(faiss.serialize_index(index)))
    ids = path.with_suffix(".ids")
    facts = {"kind": "index", "count": 400, "dim": 8, "metric": retrieval.METRIC}
    io.write_manifest(path, [path, ids], **facts)
    with pytest.raises(DataError, match="was never trained"):
        open_index(path)
