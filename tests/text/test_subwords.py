"""Subwords learnt from texts: what they keep of a text."""

from __future__ import annotations

import pytest

from tests.tiny.translation import SOURCE, TARGET, tokenizer
from vgtools.io.errors import DataError
from vgtools.text.subwords import SPECIAL, encode_all, train_bpe


def test_special_tokens_come_first_and_a_text_ends() -> None:
    bpe = tokenizer()
    assert [bpe.id_to_token(i) for i in range(4)] == list(SPECIAL)
    assert bpe.encode("dog runs.").tokens[-1] == "</s>"
    assert bpe.get_vocab_size() == 60
    # Both columns share the vocabulary.
    both = {f"▁{word}" for word in ("dog", "Hund")}
    assert both <= set(train_bpe([*SOURCE, *TARGET] * 3, 500).get_vocab())


def test_with_a_mask_a_text_also_starts() -> None:
    bpe = train_bpe(["dog runs."] * 3, 300, mask=True)
    assert [bpe.id_to_token(i) for i in range(5)] == [*SPECIAL, "<mask>"]
    assert bpe.encode("dog <mask>").tokens == ["<s>", "▁dog", " <mask>", "</s>"]
    pair = ["<s>", "▁dog", "</s>", "▁runs", ".", "</s>"]
    assert bpe.encode("dog", "runs.").tokens == pair


@pytest.mark.parametrize(
    "text",
    [
        "dog runs.", "dog  runs", "cat (red), big.", "dog ", "läuft? groß!", "don't-do", "a\u00a0b",
        "日本 dog", "",
    ],
)  # fmt: skip
def test_decoding_gives_a_text_back(text: str) -> None:
    bpe = train_bpe([text, "dog runs."], 300)
    assert bpe.decode(bpe.encode(text).ids) == text


def test_what_decoding_changes() -> None:
    bpe = train_bpe(["a\u0308b c"], 300)
    assert bpe.decode(bpe.encode("a\u0308b").ids) == "\u00e4b"  # composed
    assert bpe.decode(bpe.encode(" c").ids) == "c"
    assert bpe.encode("z").tokens == ["▁", "<unk>", "</s>"]


def test_punctuation_is_apart() -> None:
    bpe = train_bpe(["dog. (dog) dog, dog."] * 9, 300)
    assert bpe.encode("dog. (dog)").tokens == ["▁dog", ".", "▁", "(", "dog", ")", "</s>"]


def test_half_of_a_vocabulary_at_most_is_single_characters() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"
    bpe = train_bpe([letters[:n] for n in range(1, 27)] * 2, 20)
    single = [token for token in bpe.get_vocab() if len(token) == 1]
    assert len(single) == 10
    assert bpe.get_vocab_size() == 20
    with pytest.raises(DataError, match="no characters"):
        train_bpe(["", " "][:1], 20)


def test_texts_are_cut_and_counted() -> None:
    bpe = tokenizer()
    whole = bpe.encode("dog cat red runs sees big").ids
    found, cut = encode_all(bpe, ["dog cat red runs sees big", "dog", ""], 4)
    assert [ids.tolist() for ids in found] == [
        [*whole[:3], 2],
        [*bpe.encode("dog", add_special_tokens=False).ids, 2],
        [2],
    ]
    assert cut == 1
    with pytest.raises(DataError, match="--max-length 1: 1 tokens are special"):
        encode_all(bpe, ["dog"], 1)


def test_a_special_token_that_a_text_spells_is_text() -> None:
    found, _ = encode_all(tokenizer(), ["dog</s>cat<pad>"], 50)
    assert (found[0] == 2).sum() == 1
    assert (found[0] == 0).sum() == 0
