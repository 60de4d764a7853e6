"""Texts tokenised by their words, against the library's tokens of whole texts."""

from __future__ import annotations

import string
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    ByteLevelBPETokenizer,
    Tokenizer,
    models,
    pre_tokenizers,
    processors,
)

from vgtools.models.references import load_tokenizer
from vgtools.text import pieces
from vgtools.text.pieces import PieceTable
from vgtools.text.tokens import _encoded, _piece_table, tokenize

KINDS = ("uncased", "cased", "bpe", "roberta")


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "uncased":
        return load_tokenizer("builtin:minilm")
    if kind == "cased":
        words = ["[UNK]", *string.ascii_letters, *("##" + x for x in string.ascii_letters), "The"]
        tokenizer = Tokenizer(
            models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
        )
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        return tokenizer
    bpe = ByteLevelBPETokenizer(add_prefix_space=kind == "roberta")
    texts = ["The dog's den, the dog and the 12 dogs'  naïve été. <mask>"] * 9
    bpe.train_from_iterator(texts, vocab_size=300, show_progress=False)
    tokenizer = bpe._tokenizer
    if kind == "roberta":
        marks = ["<s>", "</s>", "<pad>", AddedToken("<mask>", lstrip=True, special=True)]
        tokenizer.add_special_tokens(marks)
        ends = [(mark, tokenizer.token_to_id(mark)) for mark in ("</s>", "<s>")]
        tokenizer.post_processor = processors.RobertaProcessing(*ends)
    return tokenizer


def same(kind: str, texts: list[str]) -> None:
    tokenizer = tokenizer_of(kind)
    found = tokenize(tokenizer, texts)
    for mine, library in zip(found, _encoded(tokenizer, texts), strict=True):
        assert mine.dtype == library.dtype
        assert mine.tolist() == library.tolist()


PARTS = st.one_of(
    st.sampled_from(
        [
            "the",
            "The",
            "dog",
            "dog's",
            "'s",
            "it's",
            "12",
            "é",
            "e\u0301",
            "\u0301",
            "İ",
            "ß",
            "中文",
            " ",
            "  ",
            "\t",
            "\n",
            "\u00a0",
            "\u3000",
            "…",
            "\0",
            "\ufffd",
            "\u200b",
            "\x1c",
            "🙂",
            "[MASK]",
            "[SEP]",
            "<mask>",
            "<s>",
            "[UNK]",
            "▁",
            "Ġ",
            "##s",
            "👩\u200d🚀",
            ".",
            ",",
        ]
    ),
    st.text(max_size=4),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(PARTS, max_size=8).map("".join), max_size=4), st.sampled_from(KINDS))
def test_ids_and_spans_are_those_of_the_whole_text(texts: list[str], kind: str) -> None:
    same(kind, texts)


@settings(max_examples=200, deadline=None)
@given(st.lists(PARTS, max_size=12), st.sampled_from(KINDS))
def test_parts_with_a_space_between_them_are_words(parts: list[str], kind: str) -> None:
    same(kind, [" ".join(parts), "", " ".join(parts[::-1])])


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_forgotten_when_they_are_too_many(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_HELD", 40)
    for number in range(5):
        same(kind, [f"the dog{number} den", f"a {number}  den{number} of dogs", "the dog"])
    table = _piece_table(tokenizer_of(kind), tokenizer_of(kind).get_vocab_size())
    assert table is not None
    assert table._held <= 40
    assert len(table._numbers) < 20


def test_a_word_goes_to_the_library_once() -> None:
    tokenizer = tokenizer_of("bpe")
    seen = list[str]()

    def encode(texts: list[str]) -> object:
        seen.extend(texts)
        return _encoded(tokenizer, texts)

    table = PieceTable(encode, True, [])  # type: ignore[arg-type]
    table(["the dog and the dog", "the cat"])
    table(["and a cat"])
    assert sorted(seen) == sorted([" dog", " and", " the", "the", " cat", "and", " a"])


def test_other_tokenizers_are_not_cut() -> None:
    clip = load_tokenizer("builtin:clip-bpe")
    assert _piece_table(clip, clip.get_vocab_size()) is None
    tokenizer = Tokenizer.from_str(tokenizer_of("uncased").to_str())
    assert _piece_table(tokenizer, tokenizer.get_vocab_size()) is not None
    tokenizer.add_tokens([AddedToken("new york", normalized=True)])
    assert _piece_table(tokenizer, tokenizer.get_vocab_size()) is None
    with_dropout = Tokenizer.from_str(tokenizer_of("bpe").to_str())
    with_dropout.model.dropout = 0.1
    assert _piece_table(with_dropout, with_dropout.get_vocab_size()) is None
