"""Vokens against a plain computation, sentence by sentence.

Windows, long sentences, the sentence level.
"""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.precision import allowed_error
from tests.tiny import DIM, IMAGE, save_feats, save_run_of, text
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError
from vgtools.io.streams import Window
from vgtools.models.encoder import load_encoder
from vgtools.retrieval.index import METRIC, Index
from vgtools.systems.vokenization import vokenize as system
from vgtools.systems.vokenization.calibration import Calibration
from vgtools.systems.vokenization.vokenize import (
    Matcher,
    Vokenizer,
    Vokens,
    open_matcher,
    with_context,
)
from vgtools.text.tokens import WindowTokenizer

Array = np.ndarray[Any, Any]

DECIMALS = 1e-4  # of the scores


@pytest.fixture(scope="module")
def matcher(tiny: Path) -> Matcher:
    return open_matcher(tiny / "run")


@pytest.fixture(scope="module")
def sentence_matcher(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Matcher:
    return open_matcher(
        save_run_of(
            tmp_path_factory.mktemp("s") / "run", tiny / "encoder", seed=1, level="sentence"
        )
    )


def bank_of(matcher: Matcher, feats: Array | None = None) -> Index:
    feats = (
        np.random.default_rng(0).standard_normal((60, IMAGE)).astype(np.float32)
        if feats is None
        else feats
    )
    ids = [f"i{i}" for i in range(len(feats))]
    bank = system.embed_bank(matcher, feats, ids)(np.arange(len(ids)))
    return Index("vg.faiss", ids, {"dim": DIM, "metric": METRIC, "count": len(ids)}, None, bank)


@cache
def transformers_model(ref: str, dtype: torch.dtype) -> Any:
    """Return transformers' own network of a run's encoder."""
    return load_encoder(ref).model.to(dtype)


@torch.inference_mode()
def plain_scores(matcher: Matcher, bank: Array, ids: list[int]) -> Array:
    """Return (tokens, images) scores of a short sentence: the model's forward, in float64."""
    encoder, layers = matcher.encoder, matcher.matcher.config.layers
    whole = torch.tensor([[*encoder.prefix, *ids, *encoder.suffix]])
    model = transformers_model(matcher.ref, encoder.model.get_input_embeddings().weight.dtype)
    states = model(input_ids=whole, output_hidden_states=True).hidden_states
    hidden = torch.cat(states[-layers:], -1)[0]
    own = matcher.matcher
    if own.config.level == "sentence":
        emb = own.text(hidden[:1]).expand(len(ids), -1)
    else:
        emb = own.text(hidden[1:-1])
        if own.context is not None:
            emb = emb + own.context(hidden[1:-1].mean(0, keepdim=True))
    emb = torch.nn.functional.normalize(emb, dim=1)
    return emb.double().numpy() @ bank.astype(np.float64).T


def in_float64(matcher: Matcher) -> Matcher:
    encoder = replace(matcher.encoder, model=copy.deepcopy(matcher.encoder.model).double())
    return replace(matcher, encoder=encoder, matcher=copy.deepcopy(matcher.matcher).double())


@pytest.mark.parametrize("level", ["token", "sentence"])
def test_vokens_are_the_arg_max_of_the_plain_computation(
    matcher: Matcher, sentence_matcher: Matcher, level: str
) -> None:
    used = matcher if level == "token" else sentence_matcher
    index = bank_of(used)
    assert index.bank is not None
    texts = text(60)
    found = Vokenizer(used, index, pack=200)(texts)
    assert list(found.texts) == texts
    rows = [ids.tolist() for ids, _ in map(found.tokens.row, range(len(texts))) if len(ids)]
    plain, exact = (
        np.concatenate([plain_scores(m, index.bank, ids) for ids in rows])
        for m in (used, in_float64(used))
    )
    error = allowed_error(plain, exact)
    best = np.sort(exact, 1)[:, ::-1]
    clear = best[:, 0] - best[:, 1] > 2 * error
    assert clear.mean() > 0.99
    assert (found.vokens[:, 0] == exact.argmax(1))[clear].all()
    np.testing.assert_allclose(found.scores[:, 0], best[:, 0], rtol=0, atol=DECIMALS / 2 + error)
    assert len(np.unique(found.vokens)) > (5 if level == "token" else 2), (
        "the tiny matcher tells tokens apart"
    )


def test_context_counts(matcher: Matcher) -> None:
    found = Vokenizer(matcher, bank_of(matcher), k=2)(["bam", "bam den fis", "gom bam"])
    scores = found.scores[[0, 1, 5], 0]
    assert len(set(scores.tolist())) == 3, "the same word in three sentences has three embeddings"


def test_the_weight_of_the_sentence_is_the_flag_s_else_the_index_s_else_the_run_s(
    tiny: Path, tmp_path: Path
) -> None:
    used = open_matcher(
        save_run_of(tmp_path / "run", tiny / "encoder", seed=2, sentence=True, context_weight=0.5)
    )
    bank = bank_of(used)
    texts = text(20)

    def scores(matcher: Matcher, index: Index, context: float | None = None) -> Any:
        return Vokenizer(matcher, index, context_weight=context)(texts).scores.tolist()

    by_weight = {w: scores(with_context(used, w), bank) for w in (0.0, 0.25, 0.5)}
    assert len({str(found) for found in by_weight.values()}) == 3
    assert scores(used, bank) == by_weight[0.5]
    bank.manifest["matcher"] = {"context_weight": 0.25}
    assert scores(used, bank) == by_weight[0.25]
    assert scores(used, bank, 0.0) == by_weight[0.0]
    # Without the sentence, a word's neighbours count only through its own hidden state.
    ids = used.encoder.tokenizer.encode("bam den").ids[1:-1]
    word_only = replace(used, matcher=copy.deepcopy(used.matcher))
    word_only.matcher.context = None
    assert bank.bank is not None
    best = plain_scores(word_only, bank.bank, ids).max(1)
    found = Vokenizer(used, bank, context_weight=0.0)(["bam den"]).scores[:, 0]
    np.testing.assert_allclose(found, best, rtol=0, atol=DECIMALS)
    with pytest.raises(DataError, match=r"has no sentence term .*\(--context 0.5\)"):
        with_context(open_matcher(tiny / "run"), 0.5)


def test_scores_of_a_calibrated_run_are_probabilities(matcher: Matcher) -> None:
    model = Calibration(6.0, 0.5, -2.0, {"bam": 30, "den": 2})
    stored = {"relevance": 6.0, "captions": 0.5, "bias": -2.0, "stems": dict(model.stems)}
    used = replace(matcher, info=matcher.info | {"calibration": stored})
    texts = ["bam dens", "", "fis."]
    plain = Vokenizer(matcher, bank_of(matcher), k=2)(texts)
    found = Vokenizer(used, bank_of(used), k=2)(texts)
    np.testing.assert_array_equal(found.vokens, plain.vokens)
    words = ["bam", "den", "fis", ""]
    pieces = [words[min(n, 3)] for n in owners(found)]
    expected = model.probability(plain.scores, pieces)
    # Relevances are rounded to four decimals before.
    np.testing.assert_allclose(found.scores, expected, rtol=0, atol=6 * DECIMALS)
    low, high = np.unique(found.scores[:, 0])[-2:]
    least = float(low + high) / 2
    kept = Vokenizer(used, bank_of(used), k=2, min_score=least)(texts)
    assert (kept.vokens[:, 0] >= 0).tolist() == (found.scores[:, 0] > least).tolist()
    assert 0 < (kept.vokens[:, 0] >= 0).sum() < len(kept.vokens)
    bank = bank_of(used)
    long = Vokenizer(used, bank, k=len(bank.ids) + 2)(texts)
    assert (long.vokens[:, -2:] == -1).all()
    assert not long.scores[:, -2:].any()
    assert long.scores[:, :-2].all()


def owners(found: Vokens) -> list[int]:
    """Return the number of the word that each token is part of; 3 is the full stop."""
    words = [[(0, 3), (4, 8)], [], [(0, 3), (3, 4)]]
    numbers = {(0, 0): 0, (0, 1): 1, (2, 0): 2, (2, 1): 3}
    result = []
    for row in range(len(found.texts)):
        for start, _ in found.tokens.row(row)[1].tolist():
            word = next(n for n, (a, b) in enumerate(words[row]) if a <= start < b)
            result.append(numbers[row, word])
    return result


@pytest.mark.parametrize("sentence", [False, True])
def test_a_sentence_gets_the_same_vokens_whatever_its_neighbours(
    tiny: Path, tmp_path: Path, sentence: bool
) -> None:
    used = open_matcher(save_run_of(tmp_path / "run", tiny / "encoder", seed=2, sentence=sentence))
    index = bank_of(used)
    texts = text(120, longest=60)
    wanted = Vokenizer(used, index, k=2)(texts)
    # Some libraries sum in another order for another number of rows. That moves a score by a unit
    # of its last decimal at most, and the first and second image may change places only if that
    # near.
    clear = wanted.scores[:, 0] - wanted.scores[:, 1] > 2.5 * DECIMALS
    assert clear.mean() > 0.95

    def check(parts: list[Vokens]) -> None:
        vokens, scores = (
            np.concatenate([getattr(part, name)[:, 0] for part in parts])
            for name in ("vokens", "scores")
        )
        assert (vokens == wanted.vokens[:, 0])[clear].all()
        np.testing.assert_allclose(scores, wanted.scores[:, 0], rtol=0, atol=1.5 * DECIMALS)

    for pack, size in ((64, 120), (2048, 7), (300, 1), (100, 50)):
        worker = Vokenizer(used, index, pack=pack)
        check([worker(texts[i : i + size]) for i in range(0, 120, size)])
    worker = Vokenizer(used, index)
    backwards = worker(texts[::-1])
    edges = backwards.tokens.starts.tolist()
    check(
        [
            backwards._replace(vokens=backwards.vokens[a:b], scores=backwards.scores[a:b])
            for a, b in pairwise(edges)
        ][::-1]
    )


def test_of_equal_pictures_the_first_is_taken(matcher: Matcher) -> None:
    feats = np.random.default_rng(0).standard_normal((20, IMAGE)).astype(np.float32)
    once = bank_of(matcher, feats)
    assert once.bank is not None
    twice = replace(once, bank=np.concatenate([once.bank] * 300))
    texts = text(40)
    assert (Vokenizer(matcher, twice)(texts).vokens == Vokenizer(matcher, once)(texts).vokens).all()


@pytest.mark.parametrize("tokens", [0, 1, 509, 510, 511, 1100, 100_000])
def test_every_token_of_a_sentence_of_any_length_gets_a_voken(
    matcher: Matcher, tokens: int
) -> None:
    words = ["bam", "den", "fis", "gom"]
    line = " ".join(words[i % 4] for i in range(tokens))
    found = Vokenizer(matcher, bank_of(matcher))([line, "bam"])
    assert len(found.tokens.ids) == tokens + 1
    assert (found.vokens >= 0).all()
    assert (found.vokens < 60).all()
    assert (
        found.rows()[1]["vokens"].tolist()
        == Vokenizer(matcher, bank_of(matcher))(["bam"]).vokens[0].tolist()
    )


def test_a_windowed_token_sees_the_context_that_its_window_has(matcher: Matcher) -> None:
    small = replace(matcher, encoder=replace(matcher.encoder, max_tokens=8))
    index = bank_of(matcher)
    assert index.bank is not None
    found = Vokenizer(small, index)(["bam den fis gom dat kon lus bis gat fem bon"])
    ids = found.tokens.ids.tolist()
    # 11 tokens in windows of 8: the first keeps 6 (two of context behind), the second, tokens 3 to
    # 10, keeps the last 5.
    scores = np.concatenate(
        [plain_scores(small, index.bank, ids[:8])[:6], plain_scores(small, index.bank, ids[3:])[3:]]
    )
    exact = in_float64(small)
    oracle = np.concatenate(
        [plain_scores(exact, index.bank, ids[:8])[:6], plain_scores(exact, index.bank, ids[3:])[3:]]
    )
    error = allowed_error(scores, oracle)
    np.testing.assert_allclose(found.scores[:, 0], oracle.max(1), rtol=0, atol=DECIMALS / 2 + error)
    whole = plain_scores(matcher, index.bank, ids)
    assert abs(whole.max(1) - scores.max(1)).max() > 1e-3, "the windows matter in this test"


def test_segments_keep_each_token_once() -> None:
    starts = np.cumsum([0, 3, 0, 25, 8, 9])
    pieces = system.segment(starts, 8)
    kept = np.concatenate(
        [
            np.arange(s + a, s + b)
            for s, a, b in zip(pieces.starts, pieces.keep, pieces.keep_end, strict=True)
        ]
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


def test_helpers_that_tokenise_change_nothing(
    matcher: Matcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, texts = bank_of(matcher), text(100)
    whole = Vokenizer(matcher, index)(texts)
    monkeypatch.setattr(Vokenizer, "helpers", 2)  # as on a GPU
    steps = list(system.vokenize(windows_of(texts, 9), Vokenizer(matcher, index)))
    assert [w.first for w, _ in steps] == list(range(1, 101, 9))
    assert (np.concatenate([v.vokens for _, v in steps]) == whole.vokens).all()
    assert (np.concatenate([v.scores for _, v in steps]) == whole.scores).all()
    torn = Window("t.jsonl", 101, ['{"text": "a'], "0", jsonl=True)
    with pytest.raises(DataError, match=r"t\.jsonl:101: not valid JSON"):
        list(system.vokenize([*windows_of(texts, 9), torn], Vokenizer(matcher, index)))


def test_a_helper_that_tokenises_has_no_torch(matcher: Matcher) -> None:
    texts = pickle.dumps(WindowTokenizer(matcher.encoder.tokenizer))
    code = "import pickle, sys; pickle.load(sys.stdin.buffer); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], input=texts, check=False).returncode == 0


def test_windows_grow_and_lose_nothing() -> None:
    grown = list(system.growing_windows(windows_of([str(i) for i in range(1000)], 4), 64, first=4))
    assert [len(w.lines) for w in grown] == [4, 16, *[64] * 15, 20]
    assert [line for w in grown for line in w.lines] == [str(i) for i in range(1000)]
    assert [w.first for w in grown] == [1, 5, *range(21, 1000, 64)]
    assert grown[1].digest == "16", "the digest of the last one joined"


@pytest.mark.parametrize(
    ("unit", "size", "first"), [(4, 64, 4), (4, 50, 6), (3, 3, 3), (64, 4096, 64)]
)
def test_a_resumed_run_has_the_windows_of_an_unbroken_one(unit: int, size: int, first: int) -> None:
    windows = list(windows_of([str(i) for i in range(1000)], unit))
    whole = [(w.first, len(w.lines)) for w in system.growing_windows(windows, size, first=first)]
    for start, _ in whole[1:]:
        behind = [w for w in windows if w.first >= start]
        assert [
            (w.first, len(w.lines)) for w in system.growing_windows(behind, size, first=first)
        ] == [w for w in whole if w[0] >= start]


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
        system.embed_bank(matcher, feats, list("abcd"))(np.array([1, 2]))


def test_equal_features_have_equal_embeddings_wherever_they_stand(
    matcher: Matcher, tmp_path: Path
) -> None:
    feats = np.asarray(open_features(save_feats(tmp_path / "f.npy")).array)
    many = np.concatenate([feats] * 5)[:277]
    ids = [str(i) for i in range(277)]
    embed = system.embed_bank(matcher, many, ids)
    whole = embed(np.arange(277))
    parts = [embed(rows) for rows in np.split(np.arange(277), [100, 200])]
    assert (np.concatenate(parts) == whole).all()
    assert (whole[:60] == whole[60:120]).all()


def test_windows_of_long_lines_resume_where_they_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgtools.io.windows.WINDOW_CHARS", 100)
    rng = np.random.default_rng(0)
    texts = ["x" * int(n) for n in rng.choice([1, 2, 40, 99], 300, p=[0.5, 0.3, 0.1, 0.1])]

    def small(start: int) -> list[Window]:
        return [Window("t", i + 1, texts[i : i + 4], str(i)) for i in range(start, 300, 4)]

    whole = [(w.first, len(w.lines)) for w in system.growing_windows(small(0), 64, first=4)]
    assert len({size for _, size in whole}) > 3
    for number, (first, _) in enumerate(whole):
        rest = system.growing_windows(small(first - 1), 64, first=4)
        assert [(w.first, len(w.lines)) for w in rest] == whole[number:]


@pytest.mark.parametrize("level", ["token", "sentence"])
def test_queries_are_held_in_blocks_and_nothing_else_changes(
    matcher: Matcher,
    sentence_matcher: Matcher,
    level: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = matcher if level == "token" else sentence_matcher
    long = " ".join(text(900, longest=9))
    texts = [*text(9), long]
    worker = Vokenizer(chosen, bank_of(chosen), k=2, pack=64)
    whole = worker(texts)
    sizes = [len(part.places) for part in worker.embed(worker.tokenize(texts))]
    assert sizes == [len(whole.vokens)]
    monkeypatch.setattr(system, "_HELD", 100 * 4 * chosen.matcher.config.dim)
    parts = list(worker.embed(worker.tokenize(texts)))
    # A block ends with the pack that fills it, and a pack has at least one segment: the memory
    # for queries is bounded by both.
    most = max(64, chosen.encoder.max_tokens)
    assert max(len(part.places) for part in parts) < 100 + most < sizes[0]
    assert len(parts) > 5
    assert sorted(np.concatenate([part.places for part in parts])) == list(range(sum(sizes)))
    again = worker(texts)
    np.testing.assert_array_equal(again.vokens, whole.vokens)
    np.testing.assert_array_equal(again.scores, whole.scores)
