"""Index files: what is found, and files that are not what they say."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import struct
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from tests.tiny.banks import hard_bank, save_index, unit
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import write_manifest
from vgtools.models.sealed import read_run
from vgtools.retrieval import index as indexes
from vgtools.retrieval.build import serialize
from vgtools.retrieval.exact import exact_search
from vgtools.retrieval.index import matcher_path, open_index, open_indexes


def test_an_index_opens_mapped_and_finds(tmp_path: Path) -> None:
    bank = unit(50, 8)
    index = open_index(save_index(tmp_path, bank))
    assert index.bank is not None
    assert (index.bank == bank).all()
    assert index.ids[7] == "i7"
    assert (index.search(bank[[9, 4]]).rows == [[9], [4]]).all()
    assert (index.search(torch.from_numpy(bank[[9]])).rows == 9).all()
    # faiss is not asked to read an exact index, and reads the same.
    assert index.faiss is None
    assert np.array_equal(indexes.flat_vectors(indexes.read_faiss(index.path)), bank)


def test_every_cut_and_every_kind_of_flip_is_refused(tmp_path: Path) -> None:
    path = save_index(tmp_path, unit(6, 4))
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


@pytest.mark.parametrize("more", [1, 1000, 2**31, 2**40, 2**56])
@pytest.mark.parametrize("where", ["head", "codes", "both"])
def test_vectors_that_are_declared_and_not_there_are_not_allocated(
    where: str, more: int, tmp_path: Path
) -> None:
    path = save_index(tmp_path, unit(6, 4))
    data = bytearray(path.read_bytes())
    assert struct.unpack("<iq", data[4:16]) == (4, 6)
    length = struct.unpack("<Q", data[37:45])[0]
    assert length == 6 * 4
    if where != "codes":
        data[8:16] = struct.pack("<q", 6 + more)
    if where != "head":
        data[37:45] = struct.pack("<Q", 4 * (6 + more))
    path.write_bytes(data)
    manifest = path.with_suffix(".json")
    body = json.loads(manifest.read_bytes())
    body["files"][path.name]["sha256"] = hashlib.sha256(data).hexdigest()
    body["count"] = 6 if where == "codes" else 6 + more
    manifest.write_text(json.dumps(body))
    start = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"\.faiss: ") as caught:
        open_index(path)
    assert caught.value.code == Exit.DATA
    assert time.monotonic() - start < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_every_cut_manifest_is_refused(tmp_path: Path) -> None:
    path = save_index(tmp_path, unit(6, 4))
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
        ({"count": 7}, "has count 6, its manifest states 7"),
        ({"dim": 5}, "has dim 4, its manifest states 5"),
        ({"metric": "l2"}, "has metric inner_product, its manifest states l2"),
        ({"kind": "image-features"}, "expected the manifest of 'index', got 'image-features'"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    tmp_path: Path, facts: dict[str, Any], message: str
) -> None:
    path = save_index(tmp_path, unit(6, 4), **facts)
    with pytest.raises(DataError, match=message) as error:
        open_index(path)
    assert error.value.code == Exit.DATA


def test_another_metric_is_refused(tmp_path: Path) -> None:
    path = save_index(tmp_path, unit(6, 4))
    index = faiss.IndexFlatL2(4)
    index.add(unit(6, 4))
    path.write_bytes(bytes(serialize(index)))
    known = json.loads(path.with_suffix(".json").read_text())
    write_manifest(
        path, [path, path.with_suffix(".ids")], kind="index", count=6, dim=4, metric=known["metric"]
    )
    with pytest.raises(
        DataError, match="has metric faiss metric 1, its manifest states inner_product"
    ):
        open_index(path)


def test_ids_of_another_index_are_refused(tmp_path: Path) -> None:
    path = save_index(tmp_path, unit(6, 4))
    (tmp_path / "other").mkdir()
    other = save_index(tmp_path / "other", unit(5, 4))
    shutil.copy(other.with_suffix(".ids"), path.with_suffix(".ids"))
    with pytest.raises(DataError, match=r"vg\.ids"):
        open_index(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_embeddings_that_cannot_be_ranked_are_refused(tmp_path: Path, value: float) -> None:
    bank = unit(6, 4)
    bank[3] = value
    with pytest.raises(DataError, match=r"row 3 \(i3\) is NaN, infinite or all zero"):
        open_index(save_index(tmp_path, bank))


def test_an_index_without_images_or_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no images"):
        open_index(save_index(tmp_path, np.zeros((0, 4), np.float32)))
    path = save_index(tmp_path, unit(400, 8), "IVF20,Flat")
    index: Any = faiss.read_index(str(path))
    index.is_trained = False
    path.write_bytes(bytes(faiss.serialize_index(index)))
    ids = path.with_suffix(".ids")
    facts = {"kind": "index", "count": 400, "dim": 8, "metric": indexes.METRIC}
    write_manifest(path, [path, ids], **facts)
    with pytest.raises(DataError, match="was never trained"):
        open_index(path)


def test_the_ids_are_read_when_one_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = unit(50, 8)
    path = save_index(tmp_path, bank)
    read = []
    real = indexes.read_ids
    monkeypatch.setattr(indexes, "read_ids", lambda *given: read.append(given) or real(*given))
    index = open_index(path)
    assert (index.search(bank[[9]]).rows == [[9]]).all()
    assert (index.count, len(index.ids), read) == (50, 50, [])
    assert index.ids[9] == "i9"
    assert list(index.ids)[:2] == ["i0", "i1"]
    assert len(read) == 1


def test_a_worker_compares_sizes_alone(tmp_path: Path) -> None:
    path = save_index(tmp_path, unit(6, 4))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    with pytest.raises(DataError, match="sha256"):
        open_index(path)
    open_index(path, checked=True)
    path.write_bytes(whole[:-1])
    with pytest.raises(DataError, match=f"has {len(whole) - 1} bytes, its manifest states"):
        open_index(path, checked=True)
    path.with_suffix(".ids").unlink()
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"vg\.ids: is missing"):
        open_index(path, checked=True)


@pytest.mark.parametrize("k", [1, 3])
def test_a_bank_in_parts_is_the_bank(tmp_path: Path, k: int) -> None:
    queries, bank = hard_bank(900, 16)
    edges = [0, 2, 500, 900]
    paths = [str(save_index(tmp_path / str(a), bank[a:b], first=a)) for a, b in pairwise(edges)]
    parts = open_indexes(paths)
    whole = exact_search(queries, bank, k)
    for asked in (queries, torch.from_numpy(queries)):
        found = parts.search(asked, k)
        assert (found.rows == whole.rows).all()
        assert (found.scores == whole.scores).all()
    assert (parts.count, parts.ids[500]) == (900, "i500")
    assert (parts.vectors(np.array([899, 0, 2])) == bank[[899, 0, 2]]).all()
    assert parts.manifest["count"] == 900
    assert len({facts["sha256"] for facts in parts.manifest["files"].values()}) == 6
    assert parts.approximate == {}


def test_parts_with_fewer_images_than_are_asked_for_give_no_image_of_others(tmp_path: Path) -> None:
    bank = np.abs(unit(6, 4))
    edges = [0, 3, 4, 6]
    paths = [str(save_index(tmp_path / str(a), bank[a:b], first=a)) for a, b in pairwise(edges)]
    for queries in (bank, -bank):  # of the second, every score is below that of no image, 0
        for k in (2, 5, 8):
            found = open_indexes(paths).search(queries, k)
            whole = exact_search(queries, bank, k)
            assert (found.rows == whole.rows).all()
            assert (found.scores == whole.scores).all()
            assert ((found.rows < 0).sum(1) == max(0, k - 6)).all()


@pytest.mark.parametrize("like", ["Flat", "SQ8", "HNSW8", "IVF2,Flat"])
def test_where_fewer_images_are_found_the_rest_is_no_image_with_score_0(
    tmp_path: Path, like: str
) -> None:
    bank = unit(4, 8)
    index = open_index(save_index(tmp_path, bank, like))
    found = index.search(bank, 6)
    assert (found.rows[:, 0] == np.arange(4)).all()
    assert (found.rows[:, 4:] == -1).all()
    assert (found.scores[found.rows < 0] == 0).all()


def test_parts_of_other_runs_and_images_in_two_parts_are_refused(tmp_path: Path) -> None:
    first = str(save_index(tmp_path / "a", unit(5, 4)))
    same = str(save_index(tmp_path / "b", unit(5, 4, 1)))
    with pytest.raises(
        DataError, match=f"has the images of {first}; the parts of a bank share none"
    ):
        open_indexes([first, same])
    overlapping = str(save_index(tmp_path / "overlapping", unit(4, 4), first=1))
    why = f"^{overlapping}: duplicate image 'i1', also in {first}; the parts of a bank share none"
    with pytest.raises(DataError, match=why):
        open_indexes([first, overlapping])
    apart, last = (str(save_index(tmp_path / str(n), unit(3, 4), first=n)) for n in (5, 7))
    with pytest.raises(DataError, match=f"^{last}: duplicate image 'i7', also in {apart}; the"):
        open_indexes([first, apart, last])
    assert open_indexes([first, apart]).count == 8
    wide = str(save_index(tmp_path / "c", unit(5, 6), first=5))
    with pytest.raises(DataError, match=r"has dim 6, .*a/vg\.faiss has 4"):
        open_indexes([first, wide])
    other = save_index(tmp_path / "d", unit(5, 4), first=5, matcher={"fingerprint": "beef"})
    with pytest.raises(DataError, match=r"has matcher beef, .*a/vg\.faiss has None"):
        open_indexes([first, str(other)])
    weighed = {"fingerprint": "beef", "context_weight": 0.7}
    near = save_index(tmp_path / "e", unit(5, 4), first=10, matcher=weighed)
    with pytest.raises(DataError, match=r"has matcher beef at --context 0\.7, .* has beef"):
        open_indexes([str(other), str(near)])


def test_an_index_without_the_name_of_its_run_is_no_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    index: Any = SimpleNamespace(manifest={"matcher": {"fingerprint": "x"}}, path="vg.faiss")
    assert matcher_path(index) == "."
    with pytest.raises(DataError, match=r"is not a finished vg run \(no run\.json\)"):
        read_run(matcher_path(index))
