"""Index files that are built block by block: the bytes that faiss writes, and their recall."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from tests.tiny.banks import Array, brute_force, save_index, unit
from vgtools.io.errors import DataError, Exit
from vgtools.retrieval import build
from vgtools.retrieval.build import IndexPlan, check_factory, make_index, serialize, write_index
from vgtools.retrieval.exact import SearchResult, exact_search
from vgtools.retrieval.index import open_index, search_faiss


def plan_of(bank: Array, factory: str, queries: Array | None = None, **more: Any) -> IndexPlan:
    given = None if queries is None else lambda: queries
    count, dim = bank.shape
    return IndexPlan(lambda rows: bank[rows], count, dim, factory, queries=given, **more)


def written(plan: IndexPlan, folder: Path) -> tuple[bytes, dict[str, Any], Array]:
    """Return the bytes of an index file, its facts, and the vectors that were shown."""
    parts: list[bytes] = []
    shown: list[Array] = []
    facts = write_index(plan, lambda x: parts.append(bytes(x)), folder, lambda x: shown.append(x))
    return b"".join(parts), facts, np.concatenate(shown)


@pytest.mark.parametrize("factory", ["Flat", "IVF20,Flat", "IVF20,SQ8", "IVF20_HNSW8,SQ8", "HNSW8"])
@pytest.mark.parametrize(("step", "block"), [(7, 7 * 12), (64, 130 * 12), (4096, 1 << 24)])
def test_blocks_give_the_bytes_of_faiss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, step: int, block: int
) -> None:
    bank = unit(1500, 12)
    monkeypatch.setattr(build, "_STEP", step)
    monkeypatch.setattr(build, "BLOCK", block)
    monkeypatch.setattr(build, "_COPIED", 1000)
    data, _, shown = written(plan_of(bank, factory, unit(9, 12, 1)), tmp_path)
    monkeypatch.undo()
    assert (shown == bank).all()
    assert list(tmp_path.iterdir()) == [], "the temporary file has no name"
    whole = make_index(bank, factory)
    if factory != "HNSW8" or step == 4096:  # the links of a graph depend on what is added at once
        assert data == bytes(serialize(whole))
    else:
        assert faiss.deserialize_index(np.frombuffer(data, np.uint8)).ntotal == 1500


def test_few_filled_lists_are_written_as_faiss_writes_them(tmp_path: Path) -> None:
    bank = np.repeat(unit(3, 4), 50, axis=0)  # 3 of the 8 lists hold images
    data, _, _ = written(plan_of(bank, "IVF8,Flat"), tmp_path)
    assert b"sprs" in data
    assert data == bytes(serialize(make_index(bank, "IVF8,Flat")))


@pytest.mark.parametrize("factory", ["HNSW2", "PCA16,IVF20,SQ8"])
def test_the_recall_is_of_the_index_that_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str
) -> None:
    bank, queries = unit(1200, 32), unit(80, 32, 1)
    monkeypatch.setattr(build, "_STEP", 50)
    monkeypatch.setattr(build, "BLOCK", 100 * 32)
    data, facts, _ = written(plan_of(bank, factory, queries, nprobe=2), tmp_path)
    index = faiss.deserialize_index(np.frombuffer(data, np.uint8))
    if "IVF" in factory:
        faiss.extract_index_ivf(index).nprobe = 2
    found = search_faiss(index, queries, 1).rows[:, 0]
    best = brute_force(queries, bank, 1)[:, 0]
    assert facts["recall_at_1"] == float((found == best).mean())
    assert 0.1 < facts["recall_at_1"] < 1


@pytest.mark.parametrize(("factory", "exact"), [("IVF20,Flat", True), ("IVF20,SQ8", False)])
def test_recall_and_loss_are_those_of_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factory: str, exact: bool
) -> None:
    bank, queries = unit(600, 8), unit(80, 8, 1)
    monkeypatch.setattr(build, "_STEP", 50)
    monkeypatch.setattr(build, "BLOCK", 100 * 8)
    _, facts, _ = written(plan_of(bank, factory, queries, nprobe=3), tmp_path)
    index = make_index(bank, factory)
    index.nprobe = 3
    best = brute_force(queries, bank, 1)[:, 0]
    found = search_faiss(index, queries, 1).rows[:, 0]
    products = queries.astype(np.float64) @ bank.astype(np.float64).T
    every = np.arange(len(queries))
    lost = products[every, best] - products[every, found]
    assert facts["recall_at_1"] == float((found == best).mean())
    assert facts["relevance_lost"] == pytest.approx(lost.mean(), abs=1e-14)
    assert 0.3 < facts["recall_at_1"] < 1
    assert (facts["factory"], facts["nprobe"]) == (factory, 3)
    index.nprobe = 20
    everywhere = search_faiss(index, queries, 1).rows[:, 0]
    assert (everywhere == best).all() == exact, "all lists of exact vectors are the exact search"


def test_the_same_picture_twice_is_no_miss(tmp_path: Path) -> None:
    bank, queries = np.repeat(unit(200, 8), 2, axis=0), unit(30, 8, 1)
    plan = plan_of(bank, "IVF4,Flat", queries)
    expected = exact_search(queries, bank, dtype=np.float64)
    later = SearchResult(expected.rows + 1, expected.scores)
    assert (expected.rows % 2 == 0).all()
    assert build._measured(plan, queries, expected, later) == {
        "recall_at_1": 1.0,
        "relevance_lost": 0.0,
    }
    nothing = SearchResult(np.full_like(expected.rows, -1), expected.scores)
    measured = build._measured(plan, queries, expected, nothing)
    assert measured["relevance_lost"] == pytest.approx(expected.scores.mean(), abs=1e-14)
    assert measured["recall_at_1"] == 0


@pytest.mark.filterwarnings("ignore")
def test_a_factory_that_faiss_does_not_know_is_refused() -> None:
    with pytest.raises(
        DataError,
        match=r"--factory 'Nope' for 5 images of 4 dimensions: could not parse .*Flat always works",
    ):
        make_index(unit(5, 4), "Nope")
    with pytest.raises(DataError, match=r"--factory 'IVF20,SQ8' for 5 images of 4 dimensions: "):
        make_index(unit(5, 4), "IVF20,SQ8")


@pytest.mark.parametrize(
    "factory",
    [
        "IVF99999999,Flat",
        "OPQ16,IVF4194305_HNSW32,PQ48",
        pytest.param("IVF" + 5000 * "9", id="digits"),
    ],
)
def test_more_lists_than_any_bank_needs_are_refused_before_faiss_makes_them(factory: str) -> None:
    with pytest.raises(DataError, match="there can be 4,194,304 lists at most") as caught:
        check_factory(factory)
    assert caught.value.code == Exit.USAGE


@pytest.mark.parametrize("factory", ["Flat", "PQ7", "OPQ16,IVF10,PQ48", "HNSW", "IVF8_HNSW4,SQ8"])
def test_a_factory_that_depends_on_the_dimension_passes_the_first_check(factory: str) -> None:
    check_factory(factory)


@pytest.mark.parametrize("factory", ["IVF0,SQ8", "IDMap,Flat", "NSG8", "IVF4,PQ2x4fs"])
def test_a_factory_that_cannot_be_filled_or_searched_is_refused(
    tmp_path: Path, factory: str
) -> None:
    """faiss knows them; it crashes in training, or raises where images are added or searched."""
    with pytest.raises(DataError, match=rf"--factory '{factory}' for 60 images of 4 dimensions: "):
        written(plan_of(unit(60, 4), factory, unit(3, 4, 1)), tmp_path)


def test_a_faiss_that_writes_another_form_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "serialize", lambda index: memoryview(b"IwXX" + bytes(60)))
    with pytest.raises(DataError, match=f"faiss {faiss.__version__} writes another form") as error:
        write_index(plan_of(unit(90, 4), "IVF2,Flat"), lambda data: None)
    assert error.value.code == Exit.CANNOT_CONTINUE


def lists(folder: Path, bank: Array, nprobe: int, factory: str = "IVF20,Flat") -> Path:
    return save_index(folder, bank, factory, nprobe=nprobe, factory=factory, recall_at_1=0.75)


def test_lists_are_mapped_and_probed_as_the_manifest_says(tmp_path: Path) -> None:
    bank, queries = unit(400, 8), unit(50, 8, 1)
    path = lists(tmp_path, bank, 2)
    index = open_index(path)
    assert index.bank is None
    assert isinstance(faiss.downcast_InvertedLists(index.faiss.invlists), faiss.OnDiskInvertedLists)
    assert index.approximate == {
        "factory": "IVF20,Flat",
        "nprobe": 2,
        "recall_at_1": 0.75,
        "relevance_lost": None,
    }
    exact = exact_search(queries, bank)
    few = (index.search(queries).rows == exact.rows).mean()
    assert 0.1 < few < 1
    wide = open_index(path, nprobe=20)
    assert wide.approximate["nprobe"] == 20
    assert wide.approximate["recall_at_1"] is None, "it was measured with other lists"
    found = wide.search(torch.from_numpy(queries))
    assert (found.rows == exact.rows).all()
    assert (found.scores == exact.scores).all(), "scores are float64 products, rounded once"
    one = open_index(path, nprobe=1).search(queries, 100)
    assert (one.rows == -1).any(), "one list holds fewer than 100"
    assert (one.scores[one.rows == -1] == 0).all()


@pytest.mark.parametrize("factory", ["RR8,IVF20,Flat", "PCA8,IVF20,SQ8"])
def test_lists_after_a_transform_are_probed_as_well(tmp_path: Path, factory: str) -> None:
    bank, queries = unit(400, 8), unit(50, 8, 1)
    _, facts, _ = written(plan_of(bank, factory, queries, nprobe=3), tmp_path)
    assert facts["nprobe"] == 3
    assert written(plan_of(bank, factory, queries), tmp_path)[1]["nprobe"] == 20
    path = lists(tmp_path, bank, 2, factory)
    exact = exact_search(queries, bank).rows
    shares = []
    for asked, nprobe in ((None, 2), (5, 5), (20, 20)):
        index = open_index(path, nprobe=asked)
        assert index.approximate["nprobe"] == nprobe
        shares.append((index.search(queries).rows == exact).mean())
    assert shares[0] < shares[1] < shares[2]


def test_what_lists_give_is_ordered_by_float64_and_the_lower_row(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = np.repeat(unit(30, 16), 6, axis=0)
    bank = (base + 1e-8 * rng.standard_normal(base.shape)).astype(np.float32)
    queries = unit(300, 16, 1)
    index = open_index(lists(tmp_path, bank, 4, "IVF4,Flat"))
    assert (index.search(queries, 2).rows == brute_force(queries, bank, 2)).all()
    raw = index.faiss.search(queries, 2)[1]
    assert (raw != brute_force(queries, bank, 2)).any(), "faiss's float32 order differs"


def test_an_index_without_lists_has_nothing_to_probe(tmp_path: Path) -> None:
    for factory in ("Flat", "HNSW8"):
        path = save_index(tmp_path, unit(90, 8), factory)
        with pytest.raises(DataError, match="has no lists: --nprobe belongs to") as error:
            open_index(path, nprobe=3)
        assert error.value.code == Exit.USAGE


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_lists_on_gpus_find_what_they_find_on_a_cpu(tmp_path: Path, device: str) -> None:
    bank, queries = unit(4000, 16), unit(200, 16, 1)
    index = open_index(lists(tmp_path, bank, 20))
    found = index.to(torch.device(device)).search(torch.from_numpy(queries).to(device))
    # float32 on the GPU: an image within rounding of the best may take its place.
    assert (found.rows == brute_force(queries, bank, 1)).mean() > 0.99
