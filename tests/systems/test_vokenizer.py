"""Vokens against a plain computation, sentence by sentence; windows, long sentences, the sentence level."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import DIM, IMAGE, save_feats, save_run_of, text
from vgtools import io
from vgtools.io import DataError, Window
from vgtools.retrieval import METRIC, Index
from vgtools.systems import vokenizer as system
from vgtools.systems.vokenizer import Matcher, Vokenizer, open_matcher

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def matcher(tiny: Path) -> Matcher:
    return open_matcher(tiny / "run")


@pytest.fixture(scope="module")
def sentence_matcher(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Matcher:
    return open_matcher(save_run_of(tmp_path_factory.mktemp("s") / "run", tiny / "encoder", seed=1, level="sentence"))


def bank_of(matcher: Matcher, feats: Array | None = None) -> Index:
    feats = np.random.default_rng(0).standard_normal((60, IMAGE)).astype(np.float32) if feats is None else feats
    ids = [f"i{i}" for i in range(len(feats))]
    bank = system.embed_bank(matcher, feats, ids)
    return Index("vg.faiss", ids, {"dim": DIM, "metric": METRIC, "count": len(ids)}, None, bank)


@torch.inference_mode()
def plain_scores(matcher: Matcher, bank: Array, ids: list[int]) -> Array:
    """Return (tokens, images) scores of one short sentence: the model's own forward, float64 products."""
    encoder, layers = matcher.encoder, matcher.matcher.config.layers
    whole = torch.tensor([[*encoder.prefix, *ids, *encoder.suffix]])
    states = encoder.model(input_ids=whole, output_hidden_states=True).hidden_states
    hidden = torch.cat(states[-layers:], -1)[0]
    if matcher.matcher.config.level == "sentence":
        emb = matcher.matcher.embed_sentences(hidden[:1]).expand(len(ids), -1)
    else:
        emb = matcher.matcher.embed_tokens(hidden[1:-1], torch.tensor([len(ids)]))
    return emb.double().numpy() @ bank.astype(np.float64).T


@pytest.mark.parametrize("level", ["token", "sentence"])
def test_vokens_are_the_arg_max_of_the_plain_computation(matcher: Matcher, sentence_matcher: Matcher, level: str) -> None:
    used = matcher if level == "token" else sentence_matcher
    index = bank_of(used)
    assert index.bank is not None
    texts = text(60)
    found = Vokenizer(used, index, pack=200)(texts)
    assert list(found.texts) == texts
    for i in range(len(texts)):
        ids, _ = found.tokens.row(i)
        part = slice(found.tokens.starts[i], found.tokens.starts[i + 1])
        if not len(ids):
            continue
        scores = plain_scores(used, index.bank, ids.tolist())
        best = np.sort(scores, 1)[:, ::-1]
        clear = best[:, 0] - best[:, 1] > 2e-6
        assert (found.vokens[part, 0] == scores.argmax(1))[clear].all()
        np.testing.assert_allclose(found.scores[part, 0], best[:, 0], atol=6e-5)
    assert len(np.unique(found.vokens)) > (5 if level == "token" else 2), "the tiny matcher tells tokens apart"


def test_context_counts(matcher: Matcher) -> None:
    found = Vokenizer(matcher, bank_of(matcher), k=2)(["bam", "bam den fis", "gom bam"])
    scores = found.scores[[0, 1, 5], 0]
    assert len(set(scores.tolist())) == 3, "the same word in three sentences has three embeddings"


@pytest.mark.parametrize("sentence", [False, True])
def test_a_sentence_gets_the_same_vokens_whatever_its_neighbours(tiny: Path, tmp_path: Path, sentence: bool) -> None:
    used = open_matcher(save_run_of(tmp_path / "run", tiny / "encoder", seed=2, sentence=sentence))
    index = bank_of(used)
    texts = text(120, longest=60)
    wanted = [row["vokens"].tolist() for row in Vokenizer(used, index)(texts).rows()]
    for pack, size in ((64, 120), (2048, 7), (300, 1), (100, 50)):
        worker = Vokenizer(used, index, pack=pack)
        parts = [worker(texts[i : i + size]).rows() for i in range(0, 120, size)]
        assert [row["vokens"].tolist() for part in parts for row in part] == wanted
    backwards = Vokenizer(used, index)(texts[::-1]).rows()
    assert [row["vokens"].tolist() for row in backwards][::-1] == wanted


def test_of_equal_pictures_the_first_is_taken(matcher: Matcher) -> None:
    feats = np.random.default_rng(0).standard_normal((20, IMAGE)).astype(np.float32)
    once, twice = bank_of(matcher, feats), bank_of(matcher, np.concatenate([feats] * 300))
    texts = text(40)
    assert (Vokenizer(matcher, twice)(texts).vokens == Vokenizer(matcher, once)(texts).vokens).all()


@pytest.mark.parametrize("tokens", [0, 1, 509, 510, 511, 1100, 100_000])
def test_every_token_of_a_sentence_of_any_length_gets_a_voken(matcher: Matcher, tokens: int) -> None:
    words = ["bam", "den", "fis", "gom"]
    line = " ".join(words[i % 4] for i in range(tokens))
    found = Vokenizer(matcher, bank_of(matcher))([line, "bam"])
    assert len(found.tokens.ids) == tokens + 1
    assert (found.vokens >= 0).all()
    assert (found.vokens < 60).all()
    assert found.rows()[1]["vokens"].tolist() == Vokenizer(matcher, bank_of(matcher))(["bam"]).vokens[0].tolist()


def test_a_windowed_token_sees_the_context_that_its_window_has(matcher: Matcher) -> None:
    small = replace(matcher, encoder=replace(matcher.encoder, max_tokens=8))
    index = bank_of(matcher)
    assert index.bank is not None
    found = Vokenizer(small, index)(["bam den fis gom dat kon lus bis gat fem bon"])
    ids = found.tokens.ids.tolist()
    # 11 tokens in windows of 8: the first keeps 6 (two of context behind), the second, tokens 3 to 10, keeps the last 5.
    scores = np.concatenate([plain_scores(small, index.bank, ids[:8])[:6], plain_scores(small, index.bank, ids[3:])[3:]])
    np.testing.assert_allclose(found.scores[:, 0], scores.max(1), atol=6e-5)
    whole = plain_scores(matcher, index.bank, ids)
    assert abs(whole.max(1) - scores.max(1)).max() > 1e-3, "the windows matter in this test"


def test_segments_keep_each_token_once() -> None:
    starts = np.cumsum([0, 3, 0, 25, 8, 9])
    pieces = system.segment(starts, 8)
    kept = np.concatenate(
        [np.arange(s + a, s + b) for s, a, b in zip(pieces.starts, pieces.keep, pieces.keep_end, strict=True)]
    )
    assert sorted(kept.tolist()) == list(range(45))
    assert pieces.lengths.max() <= 8


def test_top_k_and_the_least_score(matcher: Matcher) -> None:
    index = bank_of(matcher)
    texts = text(20)
    one, three = Vokenizer(matcher, index)(texts), Vokenizer(matcher, index, k=3)(texts)
    assert (three.vokens[:, :1] == one.vokens).all()
    assert (np.diff(three.scores, axis=1) <= 0).all()
    middle = float(np.median(one.scores))
    cut = Vokenizer(matcher, index, min_score=middle)(texts)
    below = one.scores < middle - 1e-3
    assert (cut.vokens[below] == -1).all()
    assert (cut.scores[below] == 0).all()
    above = one.scores > middle + 1e-3
    assert (cut.vokens[above] == one.vokens[above]).all()
    assert 0.3 < below.mean() < 0.7


def windows_of(texts: list[str], size: int) -> Iterator[Window]:
    for i in range(0, len(texts), size):
        yield Window("t", i + 1, texts[i : i + size], str(i))


def test_the_stream_keeps_the_order(matcher: Matcher) -> None:
    index, texts = bank_of(matcher), text(100)
    whole = Vokenizer(matcher, index)(texts)
    steps = list(system.vokenize(windows_of(texts, 9), Vokenizer(matcher, index)))
    assert [w.first for w, _ in steps] == list(range(1, 101, 9))
    assert (np.concatenate([v.vokens for _, v in steps]) == whole.vokens).all()


def test_windows_grow_and_lose_nothing() -> None:
    grown = list(system.grow(windows_of([str(i) for i in range(1000)], 4), 64, first=4))
    assert [len(w.lines) for w in grown] == [4, 16, *[64] * 15, 20]
    assert [line for w in grown for line in w.lines] == [str(i) for i in range(1000)]
    assert [w.first for w in grown] == [1, 5, *range(21, 1000, 64)]
    assert grown[1].digest == "16", "the digest of the last one joined"


@pytest.mark.parametrize(("unit", "size", "first"), [(4, 64, 4), (4, 50, 6), (3, 3, 3), (64, 4096, 64)])
def test_a_resumed_run_has_the_windows_of_an_unbroken_one(unit: int, size: int, first: int) -> None:
    windows = list(windows_of([str(i) for i in range(1000)], unit))
    whole = [(w.first, len(w.lines)) for w in system.grow(windows, size, first=first)]
    for start, _ in whole[1:]:
        behind = [w for w in windows if w.first >= start]
        assert [(w.first, len(w.lines)) for w in system.grow(behind, size, first=first)] == [w for w in whole if w[0] >= start]


def test_the_first_window_is_given_out_before_the_second_is_read(matcher: Matcher) -> None:
    read = list[int]()

    def windows() -> Iterator[Window]:
        for window in windows_of(text(12), 4):
            read.append(window.first)
            yield window

    steps = system.vokenize(windows(), Vokenizer(matcher, bank_of(matcher)))
    assert next(steps)[0].first == 1
    assert read == [1]
    assert next(steps)[0].first == 5
    assert read == [1, 5, 9]
    steps.close()


def test_an_error_in_the_stream_comes_out(matcher: Matcher) -> None:
    torn = Window("t.jsonl", 1, ['{"text": "a'], "0")
    with pytest.raises(DataError, match=r"t\.jsonl:1: not valid JSON"):
        list(system.vokenize([torn], Vokenizer(matcher, bank_of(matcher))))


def test_features_of_another_width_or_a_dead_embedding_are_refused(matcher: Matcher) -> None:
    with pytest.raises(DataError, match=r"shape \(4, 5\), the matcher .* takes \(images, 12\)"):
        system.embed_bank(matcher, np.ones((4, 5), np.float32), list("abcd"))
    feats = np.ones((4, IMAGE), np.float32)
    feats[2] = np.nan
    with pytest.raises(DataError, match=r"row 2 \(c\) is NaN"):
        system.embed_bank(matcher, feats, list("abcd"))


def test_equal_features_have_equal_embeddings_wherever_they_stand(
    matcher: Matcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    feats = np.asarray(io.open_features(save_feats(tmp_path / "f.npy")).array)
    many = np.concatenate([feats] * 5)[:277]
    ids = [str(i) for i in range(277)]
    whole = system.embed_bank(matcher, many, ids)
    monkeypatch.setattr(system, "_BANK_BLOCK", 100)
    assert (system.embed_bank(matcher, many, ids) == whole).all()
    assert (whole[:60] == whole[60:120]).all()
