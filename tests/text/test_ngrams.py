"""Types, counts and divergences against values worked out by hand; streaming against Counter."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from vgtools.io.errors import DataError, Exit
from vgtools.text import ngrams
from vgtools.text.ngrams import PairCounts, Pieces, WordTypes, count, jsd, jsd_pairs


def words(*sentences: str) -> list[list[str]]:
    types = WordTypes()
    ids = types.encode(sentences)
    names = types.names()
    rows: list[list[str]] = [[]]
    for number in ids.tolist():
        if number:
            rows[-1].append(names[number])
        else:
            rows.append([])
    return rows[:-1]


def test_words_are_lower_case_runs_and_single_marks() -> None:
    assert words("A dog, don't @-@ run_2!", "", "Año  \u2028x\ty") == [
        ["a", "dog", ",", "don", "'", "t", "@", "-", "@", "run_2", "!"],
        [],
        ["año", "x", "y"],
    ]


def test_words_of_other_scripts_keep_their_marks_and_compose() -> None:
    assert words("नमस्ते दुनिया", "cafe\u0301 CAFÉ", "日本語。", "👍🏽") == [
        ["नमस्ते", "दुनिया"],
        ["café", "café"],
        ["日本語", "。"],
        ["👍", "🏽"],
    ]


def test_control_characters_and_replaced_bytes_are_no_tokens() -> None:
    assert words("a\x00b \ufffd\x7f\x9f c") == [["a", "b", "c"]]
    assert words("a\x00b \x7f c") == [["a", "b", "c"]], "the way for ASCII"


def word_piece() -> Tokenizer:
    vocabulary = {"[UNK]": 0, "[CLS]": 1, "the": 2, "blue": 3, "##berry": 4, "dog": 5}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.Lowercase(),
        pre_tokenizers.Whitespace(),
    )
    return tokenizer


def test_pieces_are_a_tokenizers_vocabulary() -> None:
    types = Pieces(word_piece(), "tiny")
    counts = count(["The blueberry dog", "", "dog cat"], types)
    names = types.names()
    assert {names[i]: n for i, n in enumerate(counts.unigrams.tolist()) if n} == {
        "[UNK]": 1, "the": 1, "blue": 1, "##berry": 1, "dog": 2,
    }  # fmt: skip
    assert (counts.tokens, counts.sentences, counts.empty) == (6, 2, 1)


def named(pairs: PairCounts, names: list[str]) -> dict[tuple[str, str], int]:
    rows = [
        row for block in pairs.blocks() for row in np.stack(block, axis=1).astype(np.int64).tolist()
    ]
    return {(names[first], names[second]): n for first, second, n in rows}


def bert() -> Tokenizer:
    letters = "abcdé日" + "ßσ"
    vocabulary = [
        "[UNK]",
        "[MASK]",
        ".",
        ",",
        "'",
        "-",
        *letters,
        *(f"##{c}" for c in letters),
        "ab",
        "##cd",
    ]
    tokenizer = Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    tokenizer.add_special_tokens(["[MASK]"])
    return tokenizer


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ["ab", "cd", "É", "e\u0301", "\u0301", " ", "  ", "\t", "\u00a0", "\u2028", ".",
                 "'", "日", "Σ", "ß", "[MASK]", "\x00", "\ufffd", "\x1c", "🇨🇭", "ab" * 60]
            ),
            max_size=8,
        ).map("".join),
        max_size=6,
    )
)  # fmt: skip
def test_pieces_cut_chunk_by_chunk_are_the_tokenizers(sentences: list[str]) -> None:
    tokenizer = bert()
    types = Pieces(tokenizer, "bert")
    assert types._local
    expected = [
        i
        for e in tokenizer.encode_batch(sentences, add_special_tokens=False)
        for i in (*(n + 1 for n in e.ids), 0)
    ]
    assert types.encode(sentences).tolist() == expected
    assert types.encode(sentences).tolist() == expected, "cached"


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams, "_CACHE", 3)
    types = Pieces(bert(), "bert")
    for text in ("ab cd", "ab d c b a", "a", "ab cd"):
        counts = types.encode([text])
        assert len(types._cache) <= 3 + 6
    assert [types.names()[i] for i in counts] == ["ab", "c", "##d", "\n"]


def test_a_tokenizer_that_looks_across_spaces_gets_whole_sentences() -> None:
    assert not Pieces(word_piece(), "tiny")._local
    tokenizer = bert()
    tokenizer.add_special_tokens([AddedToken("<x>", lstrip=True)])
    assert not Pieces(tokenizer, "bert")._local


def test_counts_by_hand() -> None:
    types, pairs = WordTypes(), PairCounts()
    counts = count(["a b a", "", "b", "a a a a"], types, pairs)
    assert (counts.tokens, counts.sentences, counts.empty, counts.types, counts.vocabulary) == (
        8,
        3,
        1,
        2,
        1,
    )
    names = types.names()
    got = named(pairs, names)
    assert got == {("a", "b"): 1, ("b", "a"): 1, ("a", "a"): 3}, "no pair goes over a line end"
    assert pairs.total == 5


def test_vocabulary_is_more_than_five() -> None:
    assert count(["x x x x x y y y y y y"], WordTypes()).vocabulary == 1


def test_line_ends_within_a_sentence_are_spaces() -> None:
    counts = count(["a\nb", "c\r"], WordTypes())
    assert (counts.tokens, counts.sentences) == (3, 2)


def test_nothing_counts_as_nothing() -> None:
    for text in ([], ["", " "]):
        counts = count(text, WordTypes(), PairCounts())
        assert (counts.tokens, counts.sentences, counts.empty, counts.types) == (0, 0, len(text), 0)


def test_divergence_by_hand() -> None:
    # p = (1, 0), q = (1/2, 1/2), m = (3/4, 1/4):
    # 1/2 log2(4/3) + 1/2 (1/2 log2(2/3) + 1/2 log2(2)) = 0.20752 + 0.10376 = 0.31128
    assert jsd(np.array([4]), np.array([3, 3])) == pytest.approx(0.3112781245, abs=1e-9)
    assert jsd(np.array([4]), np.array([3, 3]), "e") == pytest.approx(0.2157615543, abs=1e-9)
    assert jsd(np.array([4]), np.array([3, 3]), "10") == pytest.approx(0.0937040526, abs=1e-9)
    assert jsd(np.array([0, 7]), np.array([2, 0])) == 1.0
    assert jsd(np.array([0, 7]), np.array([2, 0]), "e") == pytest.approx(math.log(2))
    assert jsd(np.array([3, 5, 7]), np.array([3, 5, 7])) == 0.0
    assert jsd(np.array([3, 5]), np.array([6, 10])) == 0.0


def test_divergence_of_two_tiny_corpora_by_hand() -> None:
    types = WordTypes()
    a, b = (count([text], types, PairCounts()) for text in ("a b", "a b a"))
    # 1-grams (1/2, 1/2) and (2/3, 1/3), m = (7/12, 5/12):
    # 1/2 (1/2 log2(6/7) + 1/2 log2(6/5)) + 1/2 (2/3 log2(8/7) + 1/3 log2(4/5)) = 0.0207
    by_hand = 0.25 * math.log2(6 / 7 * 6 / 5) + math.log2(8 / 7) / 3 + math.log2(4 / 5) / 6
    assert by_hand == pytest.approx(0.0207207, abs=1e-6)
    assert jsd(a.unigrams, b.unigrams) == pytest.approx(by_hand, abs=1e-12)
    # 2-grams: ab 1 against ab 1/2, ba 1/2: the value above.
    assert a.pairs is not None
    assert b.pairs is not None
    assert jsd_pairs(a.pairs, b.pairs) == pytest.approx(0.3112781245, abs=1e-9)


TEXTS = st.lists(st.text("ab c.\u00e9é", max_size=12), max_size=8)


@settings(max_examples=40, deadline=None)
@given(TEXTS, TEXTS, st.sampled_from([1, 64, 1 << 30]), st.sampled_from([1, 3, 1 << 22]))
def test_streaming_equals_counter(one: list[str], two: list[str], memory: int, chunk: int) -> None:
    types, brute, counts = WordTypes(), [], []
    for text in (one, two):
        rows = words(*text)
        brute.append(
            (
                Counter(w for row in rows for w in row),
                Counter(p for row in rows for p in pairwise(row)),
            )
        )
        counts.append(count(text, types, PairCounts(memory, chunk)))
    names = types.names()
    for (unigrams, bigrams), f in zip(brute, counts, strict=True):
        assert {names[i]: n for i, n in enumerate(f.unigrams.tolist()) if n} == unigrams
        assert f.pairs is not None
        assert named(f.pairs, names) == bigrams
    for which, measure in ((0, lambda: jsd(counts[0].unigrams, counts[1].unigrams)),
                           (1, lambda: jsd_pairs(counts[0].pairs, counts[1].pairs))):  # fmt: skip
        p, q = brute[0][which], brute[1][which]
        if p and q:
            assert measure() == pytest.approx(slow_jsd(p, q), abs=1e-12)


def slow_jsd(p: Counter, q: Counter) -> float:
    def half(a: Counter, b: Counter) -> float:
        shares = [(n / a.total(), b[k] / b.total()) for k, n in a.items()]
        return 0.5 * sum(x * math.log2(2 * x / (x + y)) for x, y in shares)

    return half(p, q) + half(q, p)


COUNTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=20).filter(any)


@given(COUNTS, COUNTS)
def test_divergence_is_symmetric_and_between_0_and_1(p: list[int], q: list[int]) -> None:
    there, back = jsd(np.array(p), np.array(q)), jsd(np.array(q), np.array(p))
    assert 0 <= there <= 1
    assert there == pytest.approx(back, abs=1e-12)
    assert jsd(np.array(p), np.array(p)) == 0


def test_pairs_beyond_the_memory_are_exact_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngrams.tempfile, "tempdir", str(tmp_path))
    rng = np.random.default_rng(0)
    small, large = PairCounts(memory=32 * 500, chunk=1000), PairCounts()
    for _ in range(20):
        first, second = rng.integers(0, 60, (2, 700))
        small.add(first, second)
        large.add(first, second)
    assert len(small._spilled) >= 5, "the limit was never met"
    assert sum(len(run.keys) for run in small._held) <= 500
    assert list(tmp_path.iterdir()) == []
    one, two = (
        np.concatenate([np.stack(b) for b in pairs.blocks()], axis=1) for pairs in (small, large)
    )
    assert np.array_equal(one, two)
    assert one[2].sum() == 20 * 700
    other = PairCounts()
    other.add(*rng.integers(0, 60, (2, 5000)))
    monkeypatch.setattr(ngrams, "_CHUNK", 700)
    assert jsd_pairs(small, other) == pytest.approx(jsd_pairs(large, other), abs=1e-12)


def test_blocks_are_ascending_and_bounded() -> None:
    pairs = PairCounts(chunk=512)
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, 2**32, (2, 6000), dtype=np.uint64)
    for start in range(0, 6000, 100):
        pairs.add(first[start : start + 100], second[start : start + 100])
    blocks = list(pairs.blocks())
    assert len(blocks) > 5
    assert max(len(b[0]) for b in blocks) < 3 * 512
    keys = np.concatenate([b[0] << np.uint64(32) | b[1] for b in blocks])
    assert np.array_equal(keys, np.unique(first << np.uint64(32) | second))


def test_a_full_temporary_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngrams.tempfile, "tempdir", str(tmp_path / "gone"))
    pairs = PairCounts(memory=32, chunk=1)
    with pytest.raises(DataError, match="TMPDIR") as caught:
        for number in range(3):
            pairs.add(np.array([number]), np.array([1]))
    assert caught.value.code == Exit.IO
