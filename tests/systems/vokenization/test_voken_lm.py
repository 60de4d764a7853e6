"""Losses against values worked out by hand and transformers', steps, controls, learning."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from tests.precision import assert_as_exact_as
from tests.tiny.lm import SHAPE, make_tokenizer
from vgtools.io.errors import DataError
from vgtools.models.encoder import as_encoder
from vgtools.models.masked_lm import new_lm
from vgtools.models.references import fingerprint
from vgtools.systems.vokenization import voken_lm as system
from vgtools.systems.vokenization.voken_lm import (
    VisuallySupervisedLM,
    VokenBatch,
    VokenLMConfig,
    VokenMasking,
    collate,
    control_vokens,
    evaluate,
    halve,
    make_batches,
)
from vgtools.text.blocks import Corpus, Packed
from vgtools.training.loop import TrainConfig, TrainState, own_tensors, train
from vgtools.training.steps import plan

VOCABULARY = make_tokenizer().get_vocab_size()


def lm_of(kind: str = "bert", **changes: Any) -> Any:
    torch.manual_seed(0)
    return new_lm(
        SHAPE | {"model_type": kind, "initializer_range": 0.3} | changes, make_tokenizer()
    )


def model_of(
    losses: tuple[str, ...], vokens: int = 4, feats: torch.Tensor | None = None, **changes: Any
) -> VisuallySupervisedLM:
    config = VokenLMConfig(
        losses, vokens, feats.shape[1] if feats is not None else 0, joint=6, **changes
    )
    return VisuallySupervisedLM(
        lm_of(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), config, feats
    )


def corpus_of(tokens: int, size: int = 6, vokens: int | None = None, row: int = 4) -> Corpus:
    """Return a corpus whose ids go round the vocabulary and vokens count up, modulo `vokens`."""
    numbers = np.arange(tokens)
    pairs = np.column_stack(
        [5 + numbers % (VOCABULARY - 5), numbers if vokens is None else numbers % vokens]
    )
    ends = np.unique(np.append(np.arange(row, tokens, row), tokens))
    return Corpus([Packed("file", pairs, ends)], size)


def recipe_of(**changes: Any) -> VokenMasking:
    encoder = as_encoder(lm_of(), make_tokenizer(), "tiny")
    return system.VokenMasking.of(encoder.tokenizer, **{"vokens": 9, "block": 8} | changes)


def batch_of(
    ids: list[list[int]], masked: list[int], tokens: list[int], places: list[int], vokens: list[int]
) -> VokenBatch:
    at = [torch.tensor(x) for x in (masked, tokens, places, vokens)]
    none = torch.zeros(0, dtype=torch.int64)
    return VokenBatch(
        torch.tensor(ids),
        None,
        *at,
        also_places=none,
        also_labels=none,
        token_count=len(masked),
        voken_count=len(places),
        also_count=1,
    )


# ------------------------------------------------------------------------------------------- losses


def test_losses_worked_out_by_hand() -> None:
    feats = torch.tensor([[3.0, 0.5], [0.0, 0.0], [1.0, -1.0]])
    model = model_of(("mlm", "voken_cls", "voken_reg", "voken_ctr"), vokens=3, feats=feats)
    with torch.no_grad():
        for name in model.heads:
            model.heads[name].decoder.weight.zero_()
        model.heads["voken_cls"].decoder.bias.copy_(
            torch.tensor([1.0, 3.0, 4.0]).log()
        )  # p = 1/8, 3/8, 4/8
        model.lm.get_output_embeddings().weight.zero_()
        model.lm.get_output_embeddings().bias.zero_()
    losses = model(batch_of([[2, 4, 9, 3]], [1, 2], [7, 9], [1, 2], [0, 2]))
    assert losses["mlm"].item() == pytest.approx(math.log(VOCABULARY), rel=1e-6)
    assert losses["voken_cls"].item() == pytest.approx((math.log(8) + math.log(2)) / 2, rel=1e-6)
    # Smooth L1 from 0: 3 -> 2.5, 0.5 -> 0.125, summed over the features; 1 and -1 -> 0.5 each; mean
    # over two tokens.
    assert losses["voken_reg"].item() == pytest.approx((2.625 + 1.0) / 2, rel=1e-6)
    assert losses["voken_ctr"].item() == pytest.approx(math.log(3), rel=1e-6)


def test_contrastive_loss_equals_plain_torch_and_reaches_the_image_side() -> None:
    feats = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    model = model_of(("voken_ctr",), vokens=5, feats=feats)
    batch = batch_of([[2, 6, 9, 3]], [], [], [1, 2], [0, 4])
    loss = model(batch)["voken_ctr"]
    loss.backward()
    states = model.lm.base_model(input_ids=batch.ids).last_hidden_state[0, 1:3]
    head = model.heads["voken_ctr"]
    queries = F.layer_norm(head.decoder(head.hidden(states)), (6,), eps=1e-12)
    keys = F.layer_norm(model.image(feats), (6,), eps=1e-12)
    assert loss.item() == pytest.approx(
        F.cross_entropy(queries @ keys.T / 6**0.5, batch.vokens).item(), rel=1e-4
    )
    assert model.image.weight.grad.abs().sum() > 0
    assert not any("feats" in name for name in model.state_dict())


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_masked_language_model_loss_equals_that_of_transformers(kind: str) -> None:
    lm = lm_of(kind).eval()
    model = VisuallySupervisedLM(lm, VokenLMConfig(("mlm",))).eval()
    corpus = corpus_of(40)
    (batch,) = collate(corpus, np.arange(len(corpus)), recipe_of(vokens=40), 0)
    labels = torch.full_like(batch.ids, -100)
    labels.view(-1)[batch.masked] = batch.tokens
    wanted = lm(input_ids=batch.ids, attention_mask=batch.attention, labels=labels).loss
    found = model(batch)
    assert found.keys() == {"mlm"}
    assert found["mlm"].item() == pytest.approx(wanted.item(), rel=1e-5)


def test_voken_loss_reads_the_head_of_the_paper() -> None:
    model = model_of(("voken_cls",), vokens=9).eval()
    (batch,) = collate(corpus_of(20, vokens=9), np.arange(4), recipe_of(), 0)
    head = model.heads["voken_cls"]
    states = model.lm.base_model(
        input_ids=batch.ids, attention_mask=batch.attention
    ).last_hidden_state.flatten(0, 1)
    hidden = F.layer_norm(F.gelu(head.hidden[0](states)), (16,), eps=1e-12)
    wanted = F.cross_entropy(head.decoder(hidden)[batch.places], batch.vokens)
    assert model(batch)["voken_cls"].item() == pytest.approx(wanted.item(), rel=1e-5)
    assert len(batch.places) == 20  # every token, masked or not; no special token


def test_shared_head_has_one_hidden_layer_for_both() -> None:
    model = model_of(("mlm", "voken_cls"), vokens=9, shared_head=True)
    assert sorted(model.head_weights()) == [
        "heads.voken_cls.decoder.bias",
        "heads.voken_cls.decoder.weight",
    ]
    (batch,) = collate(corpus_of(20, vokens=9), np.arange(4), recipe_of(), 0)
    model(batch)["voken_cls"].backward()
    assert model.lm.cls.predictions.transform.dense.weight.grad.abs().sum() > 0


def test_other_heads_are_refused() -> None:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    lm = DistilBertForMaskedLM(
        DistilBertConfig(vocab_size=20, dim=8, n_layers=1, n_heads=1, hidden_dim=8)
    )
    lm.config.layer_norm_eps = 1e-12
    with pytest.raises(DataError, match="BERT, RoBERTa, ELECTRA or ALBERT, got distilbert"):
        VisuallySupervisedLM(lm, VokenLMConfig(("mlm",)))


# ------------------------------------------------------------------------------------------ batches


def test_a_batch_holds_inputs_masks_and_vokens_in_place() -> None:
    corpus = corpus_of(9)
    recipe = recipe_of(vokens=9)
    (batch,) = collate(corpus, np.arange(2), recipe, 0)
    whole = [[2, *range(5, 11), 3], [2, 11, 12, 13, 3, 0, 0, 0]]
    restored = batch.ids.clone()
    restored.view(-1)[batch.masked] = batch.tokens
    assert restored.tolist() == whole
    assert batch.attention.tolist() == [[1] * 8, [1] * 5 + [0] * 3]
    assert batch.vokens.tolist() == list(range(9))
    assert batch.places.tolist() == [1, 2, 3, 4, 5, 6, 9, 10, 11]
    assert (batch.token_count, batch.voken_count) == (max(1, len(batch.masked)), 9)


def test_masks_change_with_epoch_and_seed_but_not_those_of_evaluation() -> None:
    corpus, numbers = corpus_of(600), np.arange(100)
    masked = {
        (seed, epoch): tuple(
            collate(corpus, numbers, recipe_of(vokens=600, seed=seed), epoch)[0].masked.tolist()
        )
        for seed in (0, 1)
        for epoch in (0, 1, None)
    }
    assert len(set(masked.values())) == 5
    assert masked[0, None] == masked[1, None]
    # A block's mask is its own: the same in another company.
    alone = collate(corpus, np.array([7]), recipe_of(vokens=600), 1)[0].masked
    assert [p - 56 for p in masked[0, 1] if 56 <= p < 64] == alone.tolist()


def test_the_rate_says_how_many_tokens_are_masked() -> None:
    corpus, numbers = corpus_of(600), np.arange(100)
    shares = [
        len(collate(corpus, numbers, recipe_of(vokens=600, rate=rate), 0)[0].masked) / 600
        for rate in (0.1, 0.9)
    ]
    assert shares == [pytest.approx(0.1, abs=0.05), pytest.approx(0.9, abs=0.05)]


def test_voken_tokens_all_masked_unmasked_and_first() -> None:
    corpus, numbers = corpus_of(600, row=4), np.arange(100)
    places = {
        on: set(collate(corpus, numbers, recipe_of(vokens=600, on=on), 0)[0].places.tolist())
        for on in ("all", "masked", "unmasked")
    }
    masked = set(collate(corpus, numbers, recipe_of(vokens=600), 0)[0].masked.tolist())
    assert places["masked"] == masked
    assert places["masked"] | places["unmasked"] == places["all"]
    assert not places["masked"] & places["unmasked"]
    first = collate(corpus, numbers, recipe_of(vokens=600, label="first"), 0)[0]
    assert first.vokens.tolist() == list(range(0, 600, 4))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(1, 9), st.integers(1, 9), st.integers(0, 3))
def test_every_voken_is_seen_once_an_epoch_whatever_the_batches(
    tokens: int, batch: int, micro: int, epoch: int
) -> None:
    corpus, recipe = corpus_of(tokens), recipe_of(vokens=tokens)
    schedule = plan(len(corpus), batch, micro, epochs=9)
    found = list(make_batches(corpus, recipe, schedule)(epoch, 0))
    assert sorted(v for b in found for v in b.vokens.tolist()) == list(range(tokens))
    assert len(found) == schedule.per_epoch * schedule.accumulate
    assert all(1 <= len(b.ids) <= max(micro, 2) for b in found)
    steps = [found[i : i + schedule.accumulate] for i in range(0, len(found), schedule.accumulate)]
    assert all(sum(len(b.ids) for b in step) <= batch for step in steps)
    # A resumed epoch is the rest of the whole one.
    for at in (0, len(found) // 2, len(found)):
        rest = list(make_batches(corpus, recipe, schedule)(epoch, at))
        assert [b.ids.tolist() for b in rest] == [b.ids.tolist() for b in found[at:]]


def test_order_is_fresh_each_epoch_and_steps_end_in_the_middle_of_one() -> None:
    corpus, recipe = corpus_of(120), recipe_of(vokens=120)
    schedule = plan(len(corpus), 4, 4, steps=8)
    assert schedule == (5, 1, 8, 2, 8)
    epochs = [
        [b.vokens.tolist() for b in make_batches(corpus, recipe, schedule)(epoch, 0)]
        for epoch in (0, 1)
    ]
    assert [len(e) for e in epochs] == [5, 3]
    assert epochs[0][:3] != epochs[1]


def test_a_step_does_not_depend_on_its_cut() -> None:
    corpus, recipe = corpus_of(100, vokens=9), recipe_of()
    single = model_of(("mlm", "voken_cls"), vokens=9)
    sides = []
    for parts, dtype in ((3, torch.float32), (1, torch.float32), (1, torch.float64)):
        model = copy.deepcopy(single).to(dtype)
        sums = {"mlm": 0.0, "voken_cls": 0.0}
        for batch in collate(corpus, np.arange(7), recipe, 0, parts):
            losses = model(batch)
            (sum(losses.values()) / parts).backward()
            for name in sums:
                sums[name] += losses[name].item() / parts
        sides.append((sums, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    for name in ("mlm", "voken_cls"):
        assert_as_exact_as(*(sums[name] for sums, _ in sides))
    for gradients in zip(*(gradients for _, gradients in sides), strict=True):
        assert_as_exact_as(*gradients)


def test_the_losses_of_two_halves_add_up_to_those_of_the_batch() -> None:
    corpus = corpus_of(40, vokens=7)
    recipe = recipe_of(vokens=7)
    model = model_of(("mlm", "voken_cls"), vokens=7).requires_grad_(False)
    (batch,) = collate(corpus, np.arange(5), recipe, 0)
    whole = model(batch)
    halves = [model(half) for half in halve(batch)]
    assert [len(half.ids) for half in halve(batch)] == [2, 3]
    for name, value in whole.items():
        assert sum(float(half[name]) for half in halves) == pytest.approx(float(value), rel=1e-5)
    (one,) = collate(corpus, np.arange(1), recipe, 0)
    assert len(halve(one)) == 1


@pytest.mark.parametrize("on", ["all", "masked"])
def test_further_labels_are_learned_by_a_head_of_their_own(on: str) -> None:
    numbers = np.arange(60)
    # Every third token has no voken, every fourth no further label.
    vokens = np.where(numbers % 3 == 0, -1, numbers % 7)
    further = np.where(numbers % 4 == 0, -1, numbers % 5)
    pairs = np.column_stack([5 + numbers % (VOCABULARY - 5), vokens, further])
    corpus = Corpus([Packed("file", pairs, np.arange(4, 61, 4))], 6)
    recipe = recipe_of(vokens=7, on=on)
    model = model_of(("mlm", "voken_cls", "also"), vokens=7, also=5).requires_grad_(False)
    whole = dict.fromkeys(("mlm", "voken_cls", "also"), 0.0)
    (batch,) = collate(corpus, np.arange(10), recipe, 0)
    for name, value in model(batch).items():
        whole[name] = float(value)
    states = model.lm.base_model(batch.ids, attention_mask=batch.attention).last_hidden_state
    learned = [
        (i, 1 + k, int(row[2]))
        for i in range(10)
        for k, row in enumerate(corpus.block(i)[0])
        if row[2] >= 0
    ]
    if on == "masked":
        masked = set(batch.masked.tolist())
        learned = [one for one in learned if one[0] * batch.ids.shape[1] + one[1] in masked]
    head = model.heads["also"]
    logits = head.decoder(head.hidden(torch.stack([states[i, k] for i, k, _ in learned])))
    labels = torch.tensor([label for _, _, label in learned])
    assert whole["also"] == pytest.approx(float(F.cross_entropy(logits, labels)), rel=1e-5)
    for cut in (collate(corpus, np.arange(10), recipe, 0, 3), halve(batch)):
        share = len(cut) if cut[0].token_count != batch.token_count else 1
        for name, value in whole.items():
            found = sum(float(model(part)[name]) for part in cut) / share
            assert found == pytest.approx(value, rel=1e-5)


# ----------------------------------------------------------------------------------------- controls


def test_controls_do_what_their_names_say() -> None:
    vokens, ids = np.array([5, -1, 7, 8, 5, 2]), np.array([11, 12, 13, 14, 15, 16])

    def under(name: str | None, seed: int = 0, v: np.ndarray[Any, Any] = vokens) -> list[int]:
        return control_vokens(name, v, ids[: len(v)], np.random.default_rng(seed), 50).tolist()

    assert under(None) == vokens.tolist()
    assert under("reverse") == [2, -1, 5, 8, 7, 5]
    assert under("tokens") == ids.tolist()
    shuffled = {tuple(under("shuffle", seed)) for seed in range(8)}
    assert len(shuffled) > 4
    assert all(s[1] == -1 and sorted(s) == sorted(vokens.tolist()) for s in shuffled)
    many = np.full(20000, 3)
    many[0] = -1
    drawn = np.array(control_vokens("random", many, many, np.random.default_rng(0), 50))
    assert drawn[0] == -1
    counts = np.bincount(drawn[1:], minlength=50)
    assert len(counts) == 50
    assert counts.min() > 300
    assert counts.max() < 500


@pytest.mark.parametrize("control", ["random", "shuffle", "reverse", "tokens"])
def test_a_control_changes_the_labels_and_nothing_else_and_is_the_same_each_epoch(
    control: str,
) -> None:
    corpus, numbers = corpus_of(60), np.arange(10)
    (real,) = collate(corpus, numbers, recipe_of(vokens=60), 2)
    (found,) = collate(corpus, numbers, recipe_of(vokens=60, control=control), 2)
    (later,) = collate(corpus, numbers, recipe_of(vokens=60, control=control), 3)
    assert found.ids.tolist() == real.ids.tolist()
    assert found.places.tolist() == real.places.tolist()
    assert found.vokens.tolist() == later.vokens.tolist() != real.vokens.tolist()
    if control in ("shuffle", "reverse"):  # within each block
        for start in range(0, 60, 6):
            assert sorted(found.vokens.tolist()[start : start + 6]) == list(range(start, start + 6))


# -------------------------------------------------------------------------- learning and evaluation


def test_overfits_eight_blocks() -> None:
    corpus = corpus_of(48, vokens=9)
    model = model_of(("mlm", "voken_cls"), vokens=9)
    recipe = recipe_of()
    schedule = plan(len(corpus), 8, 8, steps=100)
    config = TrainConfig(epochs=100, steps=100, lr=1e-2, clip=1.0, log_every=100)
    before = evaluate(model, corpus, recipe, 8)
    list(
        train(
            model,
            make_batches(corpus, recipe, schedule),
            config,
            weights={"mlm": 1.0, "voken_cls": 1.0},
        )
    )
    after = evaluate(model, corpus, recipe, 8)
    assert before["voken_cls"] > 2
    assert after["voken_cls"] < 0.5
    assert after["mlm"] < 0.5 * before["mlm"]


def test_perplexity_is_that_of_fixed_masks_whatever_the_batches() -> None:
    corpus = corpus_of(100, vokens=9)
    model = model_of(("mlm", "voken_cls"), vokens=9).train()
    found = evaluate(model, corpus, recipe_of(), 5)
    assert model.training
    assert found["perplexity"] == pytest.approx(math.exp(found["mlm"]))
    assert evaluate(model, corpus, recipe_of(seed=3), 17) == pytest.approx(found, rel=1e-4)
    (batch,) = collate(corpus, np.arange(len(corpus)), recipe_of(), None)
    labels = torch.full_like(batch.ids, -100)
    labels.view(-1)[batch.masked] = batch.tokens
    wanted = model.lm.eval()(
        input_ids=batch.ids, attention_mask=batch.attention, labels=labels
    ).loss
    assert found["mlm"] == pytest.approx(wanted.item(), rel=1e-5)


def test_tied_weights_are_saved_once_and_come_back(tmp_path: Path) -> None:
    corpus, recipe = corpus_of(48, vokens=9), recipe_of()
    batches = make_batches(corpus, recipe, plan(len(corpus), 8, 8, steps=2))
    model, state = model_of(("mlm", "voken_cls"), vokens=9), TrainState()
    config = TrainConfig(epochs=1, steps=2, lr=1e-2)
    list(train(model, batches, config, weights={"mlm": 1.0, "voken_cls": 1.0}, state=state))
    names = own_tensors(model)
    assert "lm.bert.embeddings.word_embeddings.weight" in names
    assert "lm.cls.predictions.decoder.weight" not in names
    state.save(tmp_path / "checkpoint")
    other = model_of(("mlm", "voken_cls"), vokens=9)
    list(
        train(
            other,
            batches,
            config,
            weights={"mlm": 1.0, "voken_cls": 1.0},
            state=TrainState.load(tmp_path / "checkpoint"),
        )
    )
    assert fingerprint(other) == fingerprint(model)
    assert other.lm.get_output_embeddings().weight is other.lm.get_input_embeddings().weight


def test_bfloat16_is_near_float32() -> None:
    corpus = corpus_of(60, vokens=9)
    (batch,) = collate(corpus, np.arange(10), recipe_of(), 0)
    model = model_of(("mlm", "voken_cls"), vokens=9).eval()
    exact = {name: value.item() for name, value in model(batch).items()}
    model.dtype = torch.bfloat16
    found = model(batch)
    assert {name: value.item() for name, value in found.items()} == pytest.approx(exact, rel=0.02)
    assert found["mlm"].dtype == torch.float32


# --------------------------------------------------------------------------------------------- data


def packed(pairs: list[tuple[int, int]], vokens: int | None = None, name: str = "f") -> Packed:
    return Packed(name, np.array(pairs), np.array([len(pairs)]), vokens)


def test_the_voken_vocabulary_comes_from_flag_manifest_or_largest_voken() -> None:
    encoder = as_encoder(lm_of(), make_tokenizer(), "tiny")
    plain, named = packed([(5, 3), (6, -1)]), packed([(5, 3)], vokens=40)
    assert system.count_vokens([plain], [], encoder, True, None, None) == 4
    assert system.count_vokens([named, plain], [], encoder, True, None, None) == 40
    assert system.count_vokens([named], [], encoder, True, None, 50) == 50
    assert system.count_vokens([named], [], encoder, True, "tokens", None) == VOCABULARY
    assert system.count_vokens([packed([(5, -1)])], [], encoder, False, None, None) == 0
    for files, held, number, why in (
        ([plain], [], 3, "f:1: expected a voken from -1 to 2 .there are 3 images., got 3"),
        (
            [named],
            [packed([(5, 1)], vokens=41, name="g")],
            None,
            "g: its vokens are of 41 images, the vokens of f of 40",
        ),
        ([packed([(5, -1)])], [], None, "f: holds no voken to learn"),
        ([packed([(VOCABULARY, 1)])], [], None, "f:1: expected a token id from"),
    ):
        with pytest.raises(DataError, match=why):
            system.count_vokens(files, held, encoder, True, None, number)


def test_blocks_that_do_not_fit_and_empty_files_are_refused(tmp_path: Path) -> None:
    encoder = as_encoder(lm_of(), make_tokenizer(), "tiny")
    with pytest.raises(DataError, match="--block 65: the encoder takes 64 tokens"):
        system.corpus_of([packed([(5, 1)])], encoder, recipe_of(block=65), "stream")
    with pytest.raises(DataError, match="f: holds no token"):
        system.corpus_of(
            [Packed("f", np.zeros((0, 2), int), np.zeros(3, int))], encoder, recipe_of(), "stream"
        )
    assert len(system.corpus_of([], encoder, recipe_of(), "stream")) == 0
