"""Images of sentences by a matcher: the mean token against loops, whatever shares the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder, save_feats, save_run_of, text
from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError, Exit
from vgtools.retrieval.build import make_index
from vgtools.retrieval.index import Index
from vgtools.systems.vokenization import retrieve as system
from vgtools.systems.vokenization.retrieve import SentenceRetriever
from vgtools.systems.vokenization.vokenize import Matcher, Vokenizer, embed_bank, open_matcher

NO_OWN = -1


@pytest.fixture(scope="module", params=["token", "sentence"])
def matcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Matcher:
    folder = tmp_path_factory.mktemp("matcher")
    encoder = save_encoder(folder / "encoder", positions=40)
    return open_matcher(save_run_of(folder / "run", encoder, level=request.param))


def index_of(matcher: Matcher, folder: Path) -> Index:
    features = open_features(save_feats(folder / "f.npy"))
    bank = embed_bank(matcher, features.array, features.ids)(np.arange(len(features.ids)))
    return Index("x.faiss", features.ids, {"dim": bank.shape[1]}, make_index(bank), bank)


def queries_by_loops(matcher: Matcher, index: Index, texts: list[str]) -> list[Array | None]:
    """Return each text's query from the vokenizer's queries of that text alone, in float64."""
    found: list[Array | None] = []
    worker = Vokenizer(matcher, index)
    for one in texts:
        with torch.inference_mode():
            parts = list(worker.embed(worker.tokenize([one])))
        if not parts:
            found.append(None)
            continue
        mean = np.concatenate([part.vectors.double().numpy()[part.owner] for part in parts]).mean(0)
        found.append(mean / np.linalg.norm(mean))
    return found


def test_a_query_is_the_mean_of_the_tokens_or_the_sentence(
    matcher: Matcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [*text(40, seed=2), "", " ".join(text(60, seed=4))]  # the last has several segments
    index = index_of(matcher, tmp_path)
    expected = queries_by_loops(matcher, index, texts)
    asking = [i for i, query in enumerate(expected) if query is not None]
    for most in (1 << 15, 50, 1):
        monkeypatch.setattr(system, "_TOKENS", most)
        retriever = SentenceRetriever(matcher, index)
        queries, which = retriever.embed(retriever.prepare(texts))
        assert which.tolist() == asking
        np.testing.assert_allclose(
            queries.numpy(), np.stack([q for q in expected if q is not None]), rtol=0, atol=2e-6
        )


def test_images_are_those_of_brute_force_and_never_the_texts_own(
    matcher: Matcher, tmp_path: Path
) -> None:
    texts = [*text(30, seed=5), ""]
    index = index_of(matcher, tmp_path)
    assert index.bank is not None
    retriever = SentenceRetriever(matcher, index)
    tokens = retriever.prepare(texts)
    queries, asking = retriever.embed(tokens)
    scores = queries.double().numpy() @ index.bank.T.astype(np.float64)
    order = np.lexsort((np.broadcast_to(np.arange(60), scores.shape), -scores), axis=1)
    none = np.full(len(texts), NO_OWN, np.int32)
    found = retriever.search(tokens, 7, none)
    assert found.rows[asking].tolist() == order[:, :7].tolist()
    assert (np.delete(found.rows, asking, 0) == -1).all()
    own = none.copy()
    own[asking] = order[:, 2]  # would be third
    rest = retriever.search(tokens, 7, own)
    assert rest.rows[asking].tolist() == np.delete(order[:, :8], 2, 1).tolist()
    np.testing.assert_allclose(
        rest.scores[asking], np.take_along_axis(scores, rest.rows[asking], 1), rtol=0, atol=1e-6
    )
    every = retriever.search(tokens, 64, none)
    assert (every.rows[asking][:, :60] == order).all()
    assert (every.rows[:, 60:] == -1).all()


def test_relevance_is_that_of_the_search(matcher: Matcher, tmp_path: Path) -> None:
    texts = ["bam den", "", "fis"]
    index = index_of(matcher, tmp_path)
    retriever = SentenceRetriever(matcher, index)
    tokens = retriever.prepare(texts)
    images = np.array([3, 50, 7])
    ranking = retriever.relevance(tokens, images)
    assert np.isneginf(ranking.relevance[1]).all()
    found = retriever.search(tokens, 60, np.full(3, -1, np.int32))
    for i in (0, 2):
        score = dict(zip(found.rows[i].tolist(), found.scores[i].tolist(), strict=True))
        expected = [score[row] for row in images.tolist()]
        np.testing.assert_allclose(ranking.order[i], expected, rtol=0, atol=1e-6)


def test_an_index_that_is_not_exact_cannot_rank_all(matcher: Matcher, tmp_path: Path) -> None:
    index = index_of(matcher, tmp_path)
    index.bank = None
    retriever = SentenceRetriever(matcher, index)
    with pytest.raises(DataError, match="--factory Flat") as caught:
        retriever.relevance(retriever.prepare(["bam"]), np.array([0]))
    assert caught.value.code == Exit.USAGE
