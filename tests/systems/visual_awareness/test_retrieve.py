"""Images of sentences by a retriever, against a loop over texts and images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder
from tests.tiny.retriever import save_grid, save_retriever
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError
from vgtools.io.records import mark_of
from vgtools.retrieval.index import Index
from vgtools.systems.visual_awareness.retrieve import (
    RetrieverRun,
    RetrieverSearch,
    embed_bank,
    embed_images,
    embed_texts,
    open_retriever,
    vocabulary_queries,
)

TEXTS = ["bam dor x", "", "x", "dor dor dor bam bam x", "!"]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> RetrieverRun:
    folder = tmp_path_factory.mktemp("retriever")
    return open_retriever(save_retriever(folder / "run", save_encoder(folder / "e")))


def index_of(opened: RetrieverRun, bank: np.ndarray, fingerprint: str | None = None) -> Index:
    made = {"run": "run", "fingerprint": fingerprint or opened.fingerprint}
    ids = [f"image{i}" for i in range(len(bank))]
    return Index("x.faiss", ids, {"matcher": made}, None, bank)


def test_embeddings_do_not_depend_on_what_is_beside_them(
    opened: RetrieverRun, tmp_path: Path
) -> None:
    texts = opened.reader.read(TEXTS)
    vectors, asking = embed_texts(opened.retriever, opened.reader, texts)
    assert asking.tolist() == [0, 2, 3, 4]
    for vector, number in zip(vectors, asking.tolist(), strict=True):
        alone = opened.reader.read([TEXTS[number]])
        torch.testing.assert_close(
            embed_texts(opened.retriever, opened.reader, alone)[0][0], vector
        )
    feats = np.asarray(open_features(save_grid(tmp_path / "g.npy"), positions=2).array)
    images = embed_images(opened.retriever, feats)
    np.testing.assert_allclose(
        images[[3, 1]],
        embed_images(opened.retriever, feats, np.array([3, 1])),
        rtol=2e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(np.linalg.norm(images, axis=1), 1, rtol=1e-6)


def test_the_images_of_texts_are_those_of_a_loop(opened: RetrieverRun) -> None:
    rng = np.random.default_rng(0)
    bank = rng.standard_normal((7, 8)).astype(np.float32)
    search = RetrieverSearch(opened, index_of(opened, bank))
    own = np.array([-1, 0, 2, -1, -1], np.int32)
    found = search.search(search.prepare(TEXTS), 3, own)
    for number, text in enumerate(TEXTS):
        vectors, asking = embed_texts(opened.retriever, opened.reader, opened.reader.read([text]))
        if not len(asking):
            assert found.rows[number].tolist() == [-1, -1, -1]
            continue
        scores = bank.astype(np.float64) @ vectors[0].double().numpy()
        order = [row for row in np.argsort(-scores) if row != own[number]][:3]
        assert found.rows[number].tolist() == order
        np.testing.assert_allclose(found.scores[number], scores[order], rtol=1e-5, atol=1e-6)
    relevance = search.relevance(search.prepare(TEXTS), np.array([6, 0])).relevance
    assert np.isneginf(relevance[1]).all()
    vector = embed_texts(opened.retriever, opened.reader, opened.reader.read(TEXTS[:1]))[0][0]
    expected = bank[[6, 0]].astype(np.float64) @ vector.double().numpy()
    np.testing.assert_allclose(relevance[0], expected, rtol=1e-5, atol=1e-6)


def test_an_index_of_another_retriever_is_refused_with_both_fingerprints(
    opened: RetrieverRun,
) -> None:
    bank = np.eye(8, dtype=np.float32)
    with pytest.raises(DataError, match=f"aaaa.*{opened.fingerprint}"):
        RetrieverSearch(opened, index_of(opened, bank, "aaaa"))


def test_feature_maps_of_another_width_are_refused(opened: RetrieverRun) -> None:
    with pytest.raises(DataError, match=r"\(images, positions, 12\) for the retriever"):
        embed_bank(opened, np.ones((2, 9, 5), np.float32), ["a", "b"], file="g.npy")


def test_words_of_the_vocabulary_are_queries(opened: RetrieverRun) -> None:
    queries = vocabulary_queries(opened, 20)
    assert queries.shape == (20, 8)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1, rtol=1e-6)


def test_a_search_that_was_cancelled_ends(opened: RetrieverRun) -> None:
    search = RetrieverSearch(opened, index_of(opened, np.eye(8, dtype=np.float32)))
    texts = search.prepare(TEXTS)
    search.cancel()
    with pytest.raises(InterruptedError):
        search.embed(texts)


def test_an_index_knows_a_retriever_by_the_mark_in_its_record(opened: RetrieverRun) -> None:
    assert opened.run.info["encoder"]
    assert mark_of(opened.run.info) == opened.fingerprint
    # Word vectors have a hash that the record lacks.
    assert mark_of({**opened.run.info, "encoder": {}}) is None
