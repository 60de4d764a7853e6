"""Evaluation beside both texts, against the whole table of logits; what the teacher cannot read."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.systems.xdbert.test_model import model_of
from tests.systems.xdbert.test_pairs import corpus_of, recipe_of, texts_of
from vgtools.models.masked_lm import mlm_hidden
from vgtools.systems.xdbert.pairs import collate, partners
from vgtools.systems.xdbert.pretraining import _metrics, _Sums, evaluate, teacher_facts
from vgtools.text.blocks import Corpus, Packed


def test_each_block_is_read_beside_both_texts() -> None:
    model = model_of().double()
    corpus = corpus_of(130)
    recipe = recipe_of()
    texts = texts_of()
    model.train()
    found = evaluate(model, corpus, recipe, texts, batch_size=4)
    assert model.training, "evaluation leaves the mode as it was"
    model.eval()
    numbers = np.arange(len(corpus))
    nll = []
    right = []
    match = 0.0
    clip = []
    for others in (numbers, partners(numbers, len(corpus), recipe, None)):
        (batch,) = collate(corpus, numbers, others, recipe, texts, None)
        with torch.no_grad():
            seen, seen_mask = model.see(batch)
            encoded = model.lm.base_model(batch.ids, batch.attention).last_hidden_state
            states, seen = model.cross(encoded, batch.attention.bool(), seen, seen_mask)
            logits = model.lm.get_output_embeddings()(mlm_hidden(model.lm)(states)).flatten(0, 1)
            losses = F.cross_entropy(logits[batch.masked], batch.tokens, reduction="none")
            nll.append(losses.numpy())
            answers = model.match(model.cross.pool(states))
            match += float(F.cross_entropy(answers, batch.same, reduction="sum"))
            right.append((answers.argmax(1) == batch.same).double().numpy())
            clip.append((float(model(batch)["clip_token"]) * batch.clip_count, batch.clip_count))
    assert found["mlm_same"] == pytest.approx(nll[0].mean())
    assert found["mlm_other"] == pytest.approx(nll[1].mean())
    assert found["mlm"] == pytest.approx(np.mean(nll))
    assert found["perplexity"] == pytest.approx(math.exp(np.mean(nll)))
    assert found["copied"] == pytest.approx((nll[1] - nll[0]).mean(), abs=1e-6)
    assert found["copied_low"] < found["copied"] < found["copied_high"]
    assert found["match"] == pytest.approx(match / (2 * len(numbers)))
    assert found["match_accuracy"] == pytest.approx(np.mean(right))
    assert found["clip_token"] == pytest.approx(
        sum(total for total, _ in clip) / sum(count for _, count in clip), rel=1e-6
    )


def test_one_answer_for_all_is_chance_without_an_interval() -> None:
    model = model_of()
    with torch.no_grad():
        model.match.weight.zero_()
        model.match.bias.copy_(torch.tensor([1.0, 0.0]))
    found = evaluate(model, corpus_of(130), recipe_of(), texts_of(), batch_size=5)
    ends = (found["match_low"], found["match_accuracy"], found["match_high"])
    assert ends == (0.5, 0.5, 0.5)
    assert found["match"] == pytest.approx(math.log(1 + math.exp(1)) - 0.5)


def test_without_match_only_the_own_text_is_read() -> None:
    model = model_of(("mlm",))
    found = evaluate(model, corpus_of(130), recipe_of(match=False), texts_of(), batch_size=5)
    assert set(found) == {"mlm", "perplexity"}


def test_blocks_that_the_teacher_cannot_read_are_counted() -> None:
    """The tiny tower reads 75 letters beside 16 tokens; [UNK] is read as nothing."""
    words = [5 + 3 * n for n in range(30)]  # three letters each: 90
    ids = np.array([*words, *[1] * 30, *words[:9], *[1] * 21])
    corpus = Corpus([Packed("file", np.column_stack([ids, ids]), np.array([90]))], 30)
    assert teacher_facts(corpus, texts_of(16)) == {
        "asked": 3,
        "tokens": 90 + 27,
        "cut": 1,
        "empty": 1,
    }


def test_losses_of_no_word_are_left_out() -> None:
    def side(words: int) -> _Sums:
        right = [np.array([True, False])]
        return _Sums([np.array([0.5 * words, 0.0])], [np.array([words, 0])], right, 1.0)

    losses = ("mlm", "match", "clip_token")
    whole = _metrics([side(2), side(2)], losses)
    assert (whole["mlm"], whole["mlm_same"]) == (0.5, 0.5)
    none = _metrics([side(0), side(0)], losses)
    assert {*none} == {"match", "match_accuracy", "match_low", "match_high"}
    assert {name: whole[name] for name in none} == none
