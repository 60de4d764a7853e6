"""Spans of every kind of tokenizer, IoU alignment against fractions, windows, words."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from vgtools.io.errors import DataError, Exit
from vgtools.text import tokens

CORPUS = [
    "Hello world, the the cat",
    "naïve café",
    "don't stop",
    "日本語 テキスト",
    "hello the world of cats",
] * 5
TEXTS = st.text(
    st.sampled_from(
        "aeht Hé\u0301\u200d👩🤗🏽日語ש\u05b8ם\u0928\u0940\u00a0\u3000\t"
        "'’.,ﬁ▁Ġ0_\u200b\ufeff\x00\U0001f1e9"
    ),
    max_size=24,
)


@cache
def tokenizer(kind: str) -> Tokenizer:
    """Return a small tokenizer of one family."""
    if kind.startswith("bytes"):
        t = Tokenizer(models.BPE())
        t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=kind.endswith("prefix"))
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        t.train_from_iterator(
            CORPUS,
            trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False),
        )
        t.post_processor = processors.ByteLevel(trim_offsets=kind == "bytes trimmed")
        return t
    if kind == "wordpiece":
        t = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
        t.normalizer, t.pre_tokenizer = (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
        )
        t.train_from_iterator(
            CORPUS,
            trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[UNK]"], show_progress=False),
        )
        return t
    octets = [f"<0x{i:02X}>" for i in range(256)]
    if kind == "bpe fallback":
        vocabulary = {t: i for i, t in enumerate(["<unk>", *octets, *"▁Helotha", "▁t"])}
        t = Tokenizer(
            models.BPE(
                vocabulary, [("▁", "t")], unk_token="<unk>", byte_fallback=True, fuse_unk=True
            )
        )
        t.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
        return t
    pieces = [
        ("<unk>", 0.0),
        *((o, -10.0) for o in octets),
        ("▁", -3.0),
        ("▁the", -2.0),
        ("▁cat", -2.0),
        ("s", -4.0),
        ("a", -4.0),
    ]
    t = Tokenizer(models.Unigram(pieces, 0, kind == "unigram fallback"))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    if kind == "unigram nfkc":
        t.normalizer = normalizers.NFKC()
    return t


KINDS = (
    "bytes",
    "bytes trimmed",
    "bytes prefix",
    "wordpiece",
    "bpe fallback",
    "unigram",
    "unigram fallback",
    "unigram nfkc",
)


def named(kind: str, sentence: str) -> list[tuple[str, int, int]]:
    ids, spans = tokens.tokenize(tokenizer(kind), [sentence]).row(0)
    return [
        (tokenizer(kind).id_to_token(i), *s)
        for i, s in zip(ids.tolist(), spans.tolist(), strict=True)
    ]


def spans_of(kind: str, sentence: str) -> list[list[int]]:
    return tokens.tokenize(tokenizer(kind), [sentence]).spans.tolist()


# --------------------------------------------------------------------------------------- tokenising


@pytest.mark.parametrize("kind", ["bytes", "bytes trimmed", "bytes prefix"])
def test_the_space_before_a_byte_level_token_is_not_part_of_it(kind: str) -> None:
    got = named(kind, "cat the  cats")
    assert ("Ġthe", 4, 7) in got
    assert [tuple(span) for _, *span in got if span[0] >= 8][:2] == [(8, 8), (9, 13)]


def test_a_lone_space_is_an_empty_span() -> None:
    assert named("bytes", "a  ") == [("a", 0, 1), ("Ġ", 2, 2), ("Ġ", 3, 3)]


def test_every_byte_of_a_split_character_has_its_span() -> None:
    assert spans_of("bytes", "a🤗b") == [[0, 1], [1, 2], [1, 2], [1, 2], [1, 2], [2, 3]]
    assert spans_of("unigram fallback", "🤗ש s") == [
        [0, 0],
        *[[0, 1]] * 4,
        *[[1, 2]] * 2,
        [3, 3],
        [3, 4],
    ]


def test_bytes_that_a_normaliser_changed_keep_the_run() -> None:
    t = Tokenizer.from_str(tokenizer("unigram fallback").to_str())
    t.normalizer = normalizers.NFKC()
    assert tokens.tokenize(t, ["ﬁ"]).spans.tolist() == [
        [0, 0],
        [0, 1],
        [0, 1],
    ]  # f and i are one raw character
    assert tokens.tokenize(t, ["ﬁn"]).spans.tolist() == [[0, 0], [0, 2], [0, 2], [0, 2]]


def test_a_mark_put_before_the_sentence_has_no_letters() -> None:
    assert named("unigram", "日") == [("▁", 0, 0), ("<unk>", 0, 1)]
    assert named("bpe fallback", "a t") == [("▁", 0, 0), ("a", 0, 1), ("▁t", 2, 3)]


def test_a_mark_that_is_in_the_sentence_keeps_its_span() -> None:
    assert named("unigram", "a▁a")[-2:] == [("▁", 1, 2), ("a", 2, 3)]


def test_spans_are_those_of_the_raw_text_not_the_normalised() -> None:
    spans = spans_of("wordpiece", "CAFE\u0301  \u200bHÉLLO")
    assert spans[0][0] == 0
    assert spans[-1][1] == 13
    assert (
        "".join("CAFE\u0301  \u200bHÉLLO"[a:b] for a, b in spans) == "CAFEHÉLLO"
    )  # the stripped mark is in no span


def test_special_tokens_are_left_out_and_empty_rows_are_kept() -> None:
    t = Tokenizer.from_str(tokenizer("wordpiece").to_str())
    t.post_processor = processors.TemplateProcessing("[UNK] $A [UNK]", None, [("[UNK]", 0)])
    got = tokens.tokenize(t, ["", "the", "", "the the", ""])
    assert got.starts.tolist() == [0, 0, 1, 1, 3, 3]
    assert got.spans.tolist() == [[0, 3], [0, 3], [4, 7]]
    assert got.ids.tolist() == [t.token_to_id("the")] * 3
    assert tokens.tokenize(t, []).starts.tolist() == [0]


def test_a_tokenizer_that_cuts_or_pads_is_refused() -> None:
    t = Tokenizer.from_str(tokenizer("wordpiece").to_str())
    t.enable_truncation(4)
    with pytest.raises(ValueError, match="no_truncation"):
        tokens.tokenize(t, ["the"])
    t.no_truncation()
    t.enable_padding(length=4)
    with pytest.raises(ValueError, match="no_padding"):
        tokens.tokenize(t, ["the"])


@given(st.lists(TEXTS, max_size=4), st.sampled_from(KINDS))
@settings(max_examples=300, deadline=None)
def test_spans_lie_in_the_text_without_space_at_their_ends_and_do_not_depend_on_neighbours(
    rows: list[str], kind: str
) -> None:
    got = tokens.tokenize(tokenizer(kind), rows)
    for i, sentence in enumerate(rows):
        ids, spans = got.row(i)
        alone = tokens.tokenize(tokenizer(kind), [sentence])
        assert ids.tolist() == alone.ids.tolist()
        assert spans.tolist() == alone.spans.tolist()
        for a, b in spans.tolist():
            assert 0 <= a <= b <= len(sentence)
            assert sentence[a:b] == sentence[a:b].strip()
        if kind.startswith(
            "bytes"
        ):  # every byte is in a token, so every character but spaces is in a span
            covered = {p for a, b in spans.tolist() for p in range(a, b)}
            assert covered >= {p for p, c in enumerate(sentence) if not c.isspace()}


# ---------------------------------------------------------------------------------------- alignment


def brute_force(source: list[list[int]], target: list[list[int]]) -> list[int]:
    """Section 3.3 to the letter, in fractions, O(l * m)."""
    rows = []
    for c, d in target:
        best, index = Fraction(0), -1
        for i, (a, b) in enumerate(source):
            overlap = max(0, min(b, d) - max(a, c))
            if overlap and Fraction(overlap, (b - a) + (d - c) - overlap) > best:
                best, index = Fraction(overlap, (b - a) + (d - c) - overlap), i
        rows.append(index)
    return rows


def align(rows: list[tuple[list[list[int]], list[list[int]]]]) -> list[list[int]]:
    source, target = ([row[k] for row in rows] for k in (0, 1))
    flat = [
        np.array([s for row in side for s in row], np.int32).reshape(-1, 2)
        for side in (source, target)
    ]
    starts = [tokens.row_starts(map(len, side)) for side in (source, target)]
    got = tokens.span_iou_align(flat[0], starts[0], flat[1], starts[1])
    return [got[starts[1][i] : starts[1][i + 1]].tolist() for i in range(len(rows))]


SPANS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)).map(sorted), max_size=8)


@given(st.lists(st.tuples(SPANS, SPANS), max_size=5))
@settings(max_examples=500, deadline=None)
@example([([[0, 2], [0, 2], [2, 4]], [[0, 4], [1, 3]]), ([], [[0, 1]]), ([[0, 1]], [])])
def test_alignment_is_the_brute_force_arg_max_for_any_spans(
    rows: list[tuple[list[list[int]], list[list[int]]]],
) -> None:
    assert align(rows) == [brute_force(s, t) for s, t in rows]


def test_alignment_by_hand() -> None:
    # IoU of [0,10) with [0,2) 0.2, [2,9) 0.7, [9,10) 0.1: the middle one, further than either end.
    assert align([([[0, 2], [2, 9], [9, 10]], [[0, 10]])]) == [[1]]
    # [2,6) lies half in each of two equal tokens: the first.
    assert align([([[0, 4], [4, 8]], [[2, 6]])]) == [[0]]
    # Nested: [0,8) overlaps more of [1,3) than nothing, [1,4) more still; an empty span and a gap
    # overlap nothing.
    assert align([([[0, 8], [1, 4], [1, 1]], [[1, 3], [5, 6], [8, 9], [2, 2]])]) == [[1, 0, -1, -1]]
    # Rows do not see each other.
    assert align([([[0, 3]], [[3, 4]]), ([[0, 1]], [[0, 5]])]) == [[-1], [0]]


def test_close_fractions_are_distinguished() -> None:
    n = 2**25
    # [0,n) against [0,n-1): (n-1)/n; against [1,n+1): (n-1)/(n+1), less by about 2/n; and n-1 of n
    # against n of n+1.
    assert align([([[1, n + 1], [0, n - 1]], [[0, n]])]) == [[1]]
    assert align([([[0, n - 1], [0, n]], [[0, n + 1]])]) == [[1]]
    assert brute_force([[0, n - 1], [0, n]], [[0, n + 1]]) == [1]


def test_work_is_cut_into_parts_without_changing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    rows = [
        tuple(np.sort(random.integers(0, 40, (12, 2)), 1).tolist() for _ in range(2))
        for _ in range(20)
    ]
    monkeypatch.setattr(tokens, "_PAIRS", 7)
    assert align(rows) == [brute_force(s, t) for s, t in rows]


@given(st.lists(TEXTS, max_size=4), st.sampled_from(KINDS), st.sampled_from(KINDS))
@settings(max_examples=400, deadline=None)
def test_any_two_tokenizers_align_as_brute_force_does(
    rows: list[str], first: str, second: str
) -> None:
    source, target = (tokens.tokenize(tokenizer(k), rows) for k in (first, second))
    got = tokens.span_iou_align(source.spans, source.starts, target.spans, target.starts)
    expected = [
        brute_force(source.row(i)[1].tolist(), target.row(i)[1].tolist()) for i in range(len(rows))
    ]
    assert got.tolist() == [j for row in expected for j in row]


# ------------------------------------------------------------------------------------------ windows


@pytest.mark.parametrize("length", [0, 1, 509, 510, 511, 765, 766, 1020, 10**5])
def test_windows_keep_each_token_once_with_context(length: int) -> None:
    windows = tokens.split_window(length, 510)
    assert [p for _, _, a, b in windows for p in range(a, b)] == list(range(length))
    for start, end, a, b in windows:
        assert 0 <= start <= a < b <= end <= length
        assert end - start == min(510, length)
        assert start == 0 or a - start >= 127
        assert end == length or end - b >= 127


def test_windows_by_hand() -> None:
    assert tokens.split_window(0, 8) == []
    assert tokens.split_window(8, 8) == [(0, 8, 0, 8)]
    assert tokens.split_window(9, 8) == [(0, 8, 0, 6), (1, 9, 6, 9)]
    assert tokens.split_window(3, 1) == [(0, 1, 0, 1), (1, 2, 1, 2), (2, 3, 2, 3)]
    with pytest.raises(ValueError, match="at least 1"):
        tokens.split_window(3, 0)


# -------------------------------------------------------------------------------------------- words


def words(sentence: str, spans: list[list[int]]) -> list[str]:
    got = tokens.word_spans(
        ["x", sentence, "y"],
        np.array(spans, np.int32).reshape(-1, 2),
        np.array([0, 0, len(spans), len(spans)]),
    )
    return [sentence[a:b] for a, b in got.tolist()]


def test_a_token_knows_its_whole_word() -> None:
    sentence = "(don't) O’Brien's cafe\u0301s, नमस्ते x_1 'q'"
    assert words(sentence, [[1, 4], [4, 5], [5, 6]]) == ["don't"] * 3
    assert words(sentence, [[0, 1], [6, 7], [0, 0], [2, 2]]) == [""] * 4
    assert words(sentence, [[0, 3]]) == ["don't"]  # a token that begins with the bracket
    assert words(sentence, [[10, 12], [18, 19], [22, 24]]) == [
        "O’Brien's",
        "cafe\u0301s",
        "cafe\u0301s",
    ]
    assert words(sentence, [[27, 28], [31, 32], [33, 34], [38, 39]]) == ["नमस्ते", "नमस्ते", "x_1", "q"]


def test_words_that_share_a_token_are_hidden_together() -> None:
    texts = ["a Daten\u00adschutz b", "", ", 1.000.50 x"]
    spans = [[0, 1], [2, 8], [9, 14], [15, 16], [0, 1], [2, 5], [5, 9], [9, 9], [11, 12]]
    found = tokens.hidden_words(texts, np.array(spans), np.array([0, 4, 4, 9]))
    assert [own.tolist() for own in found] == [
        [0, 1, 2, 3, -1, 4, 5, -1, 7],
        [0, 1, 2, 3, -1, 0, 0, -1, 1],
    ]
    spans[1:3] = [[2, 9], [9, 14]]  # the piece ends in the second word: `Datens`
    _, number = tokens.hidden_words(texts, np.array(spans), np.array([0, 4, 4, 9]))
    assert number[:4].tolist() == [0, 1, 1, 2]


def test_content_words_have_a_letter_and_are_not_stop_words() -> None:
    rows = ["The cats don’t sit .", "", "A __ 🤗 7"]
    got = tokens.tokenize(tokenizer("bytes"), rows)
    mask = tokens.content_mask(rows, got.spans, got.starts)
    kept = [""] * 3
    for i in range(3):
        row = slice(got.starts[i], got.starts[i + 1])
        for (a, b), content in zip(got.spans[row].tolist(), mask[row].tolist(), strict=True):
            kept[i] += rows[i][a:b] * content
    assert kept == ["catssit", "", "7"]
    sit = tokens.content_mask(
        ["sit down"], np.array([[0, 3], [4, 8]]), np.array([0, 2]), frozenset({"sit"})
    )
    assert sit.tolist() == [False, True]
    assert tokens.content_mask([""], np.zeros((0, 2), np.int32), np.array([0, 0])).tolist() == []


@pytest.mark.parametrize("zipped", [False, True])
def test_stop_words_of_nltk_are_read_where_its_downloader_put_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zipped: bool
) -> None:
    import nltk

    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(DataError, match=r"python -m nltk\.downloader stopwords") as caught:
        tokens.load_stop_words("nltk")
    assert caught.value.code == Exit.NO_INPUT
    folder = tmp_path / "corpora"
    folder.mkdir()
    words = "the\nDon't\n\nown\n"
    if zipped:
        with ZipFile(folder / "stopwords.zip", "w") as file:
            file.writestr("stopwords/", "")
            file.writestr("stopwords/english", words)
    else:
        (folder / "stopwords").mkdir()
        (folder / "stopwords" / "english").write_text(words)
    assert tokens.load_stop_words("nltk") == {"the", "don't", "own"}
    if not zipped:
        (folder / "stopwords" / "english").write_bytes(b"the\n\xff\n")
        with pytest.raises(DataError, match="english: is not UTF-8: expected a word per line"):
            tokens.load_stop_words("nltk")


def test_stop_words_come_from_a_file_or_our_list(tmp_path: object) -> None:
    ours = tokens.load_stop_words()
    assert {"the", "don't", "n't", "is"} <= ours
    assert not {"dog", "man", "red", "running", "two"} & ours
    file = tmp_path / "stop.txt"  # type: ignore[operator]
    file.write_text("The\n\nDON’T\n", "utf-8")
    assert tokens.load_stop_words(file) == {"the", "don't"}
    with pytest.raises(DataError, match="cannot be read"):
        tokens.load_stop_words(tmp_path / "none.txt")  # type: ignore[operator]


def test_inflected_forms_share_a_key() -> None:
    assert len({tokens.stem_key(w) for w in ("run", "Runs", "running")}) == 1
    assert tokens.stem_key("dogs") == tokens.stem_key("Dog") != tokens.stem_key("cat")


def test_a_language_has_its_own_stop_words_and_stems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nltk

    german = tokens.load_stop_words(language="de")
    assert {"der", "und", "einem", "über"} <= german
    assert not {"hund", "mann", "rot", "zwei", "läuft", "the"} & german
    for language in tokens.LANGUAGES:
        assert len(tokens.load_stop_words(language=language)) > 90, language
        assert tokens.stem_key("Hotel", language).startswith("hot"), language
    houses = ("Haus", "Hauses", "Häuser")
    assert {tokens.stem_key(word, "de") for word in houses} == {"haus"}
    assert len({tokens.stem_key(word) for word in houses}) == 2, "English stems"
    text = ["Häuser und ein Haus"]
    got = tokens.tokenize(tokenizer("bytes"), text)
    stems = [stem for stem in tokens.word_stems(text, got, "de") if stem]
    assert list(dict.fromkeys(stems)) == ["haus", "und", "ein"]
    assert {*tokens.word_stems(text, got)} >= {"häuser", "haus"}
    # Our list and a file do as before.
    assert tokens.load_stop_words(language="en") == tokens.load_stop_words()
    (tmp_path / "own.txt").write_text("Haus\n")
    assert tokens.load_stop_words(tmp_path / "own.txt", "de") == {"haus"}
    (tmp_path / "corpora/stopwords").mkdir(parents=True)
    (tmp_path / "corpora/stopwords/german").write_text("aber\n")
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    assert tokens.load_stop_words("nltk", "de") == {"aber"}


def test_an_unknown_language_is_refused_with_those_that_are_known() -> None:
    for file, code in ((None, Exit.USAGE), ("run.json", Exit.DATA)):
        for language in ("xx", "DE", None, ["de"]):
            with pytest.raises(DataError, match=r"language .* is not one of ar, da, de") as caught:
                tokens.check_language(language, file)
            assert caught.value.code == code
