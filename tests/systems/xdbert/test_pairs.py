"""What student and teacher read of a block: partners, masks, choices, blocks of 77."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tiny import WORDS
from tests.tiny.clip import clip_tokenizer, new_tower
from tests.tiny.lm import make_tokenizer
from tests.tiny.visual import encoder_of
from vgtools.models.encoder import as_encoder
from vgtools.systems.xdbert.model import XDBertBatch
from vgtools.systems.xdbert.pairs import PairMasking, TeacherText, collate, partners
from vgtools.text.blocks import Corpus, Packed
from vgtools.training.loop import halves

FIRST_WORD = 5  # of the tiny vocabulary


def corpus_of(tokens: int, size: int = 12) -> Corpus:
    rng = np.random.default_rng(0)
    ids = rng.integers(FIRST_WORD, FIRST_WORD + 100, tokens)
    pairs = np.column_stack([ids, np.full(tokens, -1)])
    return Corpus([Packed("file", pairs, np.array([tokens]))], size)


def texts_of(block: int = 16) -> TeacherText:
    teacher = as_encoder(new_tower(), clip_tokenizer(), "tiny")
    return TeacherText.of(encoder_of(), teacher, block)


def recipe_of(**changes: object) -> PairMasking:
    return PairMasking.of(make_tokenizer(), **changes)


def batch_of(
    corpus: Corpus, numbers: list[int], others: list[int], **changes: object
) -> XDBertBatch:
    recipe = recipe_of(**changes)
    given = np.array(numbers), np.array(others)
    (batch,) = collate(corpus, *given, recipe, texts_of(), epoch=0)
    return batch


def test_the_teacher_reads_the_unmasked_text() -> None:
    corpus = corpus_of(60)
    batch = batch_of(corpus, [1, 3], [1, 0])
    assert batch.same.tolist() == [1, 0]
    words = {i: word for word, i in make_tokenizer().get_vocab().items()}
    for row, number in enumerate((1, 0)):
        text = " ".join(words[i] for i in corpus.block(number)[0][:, 0])
        expected = clip_tokenizer().encode(text).ids
        length = int(batch.lengths[row, 0])
        assert batch.blocks[row, 0, :length].tolist() == expected
        assert (expected[0], expected[-1]) == (514, 515)


def test_masked_words_are_the_students_own() -> None:
    corpus = corpus_of(600)
    batch = batch_of(corpus, list(range(50)), [0] * 50)
    flat = batch.ids.flatten()
    whole = np.concatenate([corpus.block(n)[0][:, 0] for n in range(50)])
    assert len(batch.masked) / len(whole) == pytest.approx(0.15, abs=0.04)
    row, place = batch.masked // 14, batch.masked % 14
    assert (batch.tokens.numpy() == whole[(12 * row + place - 1).numpy()]).all()
    shown = flat[batch.masked]
    assert (shown == 4).float().mean() == pytest.approx(0.8, abs=0.12), "[MASK]"
    assert batch.token_count == len(batch.masked)


def test_tokens_to_predict_are_words_never_marks_or_padding() -> None:
    """15 % of the teacher's own tokens; the published code also learns padding, SOT and EOT."""
    corpus = corpus_of(904)  # the last block has 4 words of 12
    batch = batch_of(corpus, list(range(76)), list(range(76)))
    assert batch.lengths[-1, 0] < batch.lengths[0, 0]
    place = np.arange(batch.blocks.shape[2])
    lengths = batch.lengths[..., None].numpy()
    inner = (place > 0) & (place < lengths - 1)
    chosen = batch.chosen.numpy() >= 0
    assert not chosen[~inner].any()
    assert (batch.chosen.numpy()[chosen] == batch.blocks.numpy()[chosen]).all()
    assert chosen.sum() / inner.sum() == pytest.approx(0.15, abs=0.02)
    assert batch.clip_count == chosen.sum()


def test_long_texts_have_several_blocks_and_are_cut() -> None:
    """16 student tokens have one block of 75; the text of 100 letters loses 25 of them."""
    texts = texts_of(16)
    assert (texts.most, texts.room) == (1, 75)
    assert (texts_of(512).most, texts_of(128).most) == (9, 2)
    word = np.array([FIRST_WORD + WORDS.index("bam")] * 34)
    (tokens,) = texts.tokens([word])
    assert len(tokens) == 102
    assert [len(block) for block in texts.blocks(tokens)] == [77]
    assert [len(block) for block in texts_of(128).blocks(tokens)] == [77, 29]
    empty = texts.tokens([np.array([1, 1, 0])])  # [UNK] [UNK] [PAD]
    assert empty == [[]]
    assert [block.tolist() for block in texts.blocks(empty[0])] == [[514, 515]]


def test_half_of_the_blocks_have_another_partner() -> None:
    numbers = np.arange(4000)
    recipe = recipe_of()
    others = partners(numbers, 4000, recipe, epoch=0)
    other = others != numbers
    assert other.mean() == pytest.approx(0.5, abs=0.03)
    assert others[other].mean() == pytest.approx(2000, abs=120), "all others alike"
    assert (partners(numbers[::7], 4000, recipe, epoch=0) == others[::7]).all()
    assert (partners(numbers, 4000, recipe, epoch=1) != others).any()
    assert (partners(numbers, 4000, recipe_of(seed=1), epoch=0) != others).any()
    assert (partners(numbers, 4000, recipe_of(match=False), epoch=0) == numbers).all()
    fixed = partners(numbers, 4000, recipe, None)
    assert (fixed != numbers).all()
    assert (partners(numbers, 4000, recipe_of(seed=5), None) == fixed).all()
    assert set(partners(np.array([0, 1]), 2, recipe, None)) == {0, 1}


def test_no_cut_into_batches_changes_a_row() -> None:
    corpus = corpus_of(240)
    numbers, recipe, texts = np.arange(20), recipe_of(), texts_of()
    others = partners(numbers, len(corpus), recipe, 0)
    (whole,) = collate(corpus, numbers, others, recipe, texts, 0)
    parts = collate(corpus, numbers, others, recipe, texts, 0, parts=3)
    assert [len(part.ids) for part in parts] == [7, 7, 6]
    for field in ("tokens", "same"):
        joined = np.concatenate([getattr(part, field).numpy() for part in parts])
        assert (joined == getattr(whole, field).numpy()).all()
    for name in ("token_count", "row_count", "clip_count"):
        assert sum(getattr(part, name) for part in parts) == pytest.approx(getattr(whole, name))
    chosen = np.concatenate([part.chosen[part.chosen >= 0].numpy() for part in parts])
    assert (chosen == whole.chosen[whole.chosen >= 0].numpy()).all()
    first, second = halves(whole, {"masked": "tokens"})
    assert (len(first.same), len(second.same)) == (10, 10)
    assert len(first.tokens) + len(second.tokens) == len(whole.tokens)
