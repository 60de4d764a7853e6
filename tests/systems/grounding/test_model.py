"""The grounded model: its parts, their exact sizes, and its losses worked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tiny.grounded import D, model_of
from tests.tiny.visual import encoder_of
from vgtools.models.masked_lm import token_losses
from vgtools.systems.grounding.model import (
    GroundedBatch,
    GroundedEncoder,
    GroundedMaskedLM,
    GroundingConfig,
    MaskedLMHead,
    halve,
    jmlm,
    jmrm,
)

B, T, S = 4, 6, 3


def batch_of(slots: int = S, seed: int = 0, **changes: Any) -> GroundedBatch:
    """Return random texts; the first has all slots, the second one, the others none."""
    made = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (B, T), generator=made)
    text_mask = torch.ones(B, T, dtype=torch.bool)
    text_mask[2, 4:] = False
    slot_mask = torch.zeros(B, slots, dtype=torch.bool)
    slot_mask[0] = True
    slot_mask[1, :1] = True
    masked = torch.tensor([2, T + 1, T + 2, 3 * T + 4])
    batch = GroundedBatch(
        ids, text_mask, torch.randn(B, slots, D, generator=made), slot_mask,
        masked, torch.tensor([9, 8, 7, 6]),
        torch.tensor([[0, 1], [1, 0]])[:slots], torch.randn(min(2, slots), D, generator=made),
        4.0, 2.0,
    )  # fmt: skip
    return batch._replace(**changes)


def count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def albert_base() -> Any:
    from transformers import AlbertConfig, AlbertForMaskedLM

    return AlbertForMaskedLM(
        AlbertConfig(
            hidden_size=768, num_attention_heads=12, intermediate_size=3072, embedding_size=128,
            vocab_size=30000,
        )
    )  # fmt: skip


def minilm() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(
        BertConfig(
            hidden_size=384, num_attention_heads=12, intermediate_size=1536, num_hidden_layers=6
        )
    )


SIZES = [
    ("none", 0, 11_057_328, 22_150_320, 22_546_746),
    ("i2t", 1, 12_043_440, 23_136_432, 23_039_802),
    ("both", 1, 13_027_760, 24_120_752, 23_532_602),
    ("scene", 16, 12_054_960, 23_147_952, 23_045_562),
]


def test_parameters_are_those_of_the_paper_s_shape() -> None:
    with torch.device("meta"):
        large, small = albert_base(), minilm()
        for strategy, images, trained, whole, of_small in SIZES:
            shape = (strategy, images, int(images > 0), 1280 * (images > 0))
            model = GroundedMaskedLM(large, GroundingConfig(*shape, 12))
            assert count(model) == trained, strategy
            frozen = sum(p.numel() for p in model.text.parameters())
            assert frozen == 11_092_992
            assert trained + frozen == whole, strategy
            assert count(GroundedMaskedLM(small, GroundingConfig(*shape, 6))) == of_small, strategy
        model = GroundedMaskedLM(large, GroundingConfig("none", 0, 0, 0, 12))
        assert count(model.jmlm) == 3_968_688
        assert count(model.cross.layers) == 7_087_872
        classifier = torch.nn.Linear(768, 2)
        tuned = GroundedEncoder(model.text, model.cross)
        assert count(tuned) + count(classifier) == 18_183_170


def test_losses_worked_by_hand() -> None:
    true = torch.tensor([[1.0, 0.0], [2.0, 2.0]])
    guess = torch.tensor([[0.5, 1.0], [2.0, 0.0]])
    assert float(jmrm(guess, true)) / 2 == 0.875
    assert float(jmrm(guess, true)) == 1.75, "summed over regions, the mean over D"
    # Logits ln 4 and 0, 0, 0, 0: probability 1/2 of the first word, 1/8 of any other.
    table = torch.tensor([[1.0], [0], [0], [0], [0]])
    rows = torch.log(torch.tensor([[4.0], [4.0]]))
    tokens = torch.tensor([0, 3])
    assert float(jmlm(rows, table, torch.zeros(5), tokens)) == pytest.approx(
        float(torch.log(torch.tensor(16.0)))
    )
    each = token_losses(rows, table, torch.zeros(5), tokens, chunk=1)
    assert each.tolist() == pytest.approx([float(torch.log(torch.tensor(v))) for v in (2.0, 8.0)])


@torch.inference_mode()
def test_losses_are_read_at_the_masked_words_and_at_the_slots_of_the_masked_regions() -> None:
    model = model_of("both", regions=S).eval()
    batch = batch_of()
    joint = model.states(batch)
    of_words = []
    for place, token in zip(batch.masked.tolist(), batch.tokens.tolist(), strict=True):
        hidden = model.jmlm.hidden(joint[place // T, place % T])
        logits = model.jmlm.table @ hidden + model.jmlm.bias
        of_words.append(-logits.log_softmax(0)[token])
    of_regions = [
        (model.jmrm(joint[text, T + slot]) - target).abs().mean()
        for (text, slot), target in zip(batch.regions.tolist(), batch.targets, strict=True)
    ]
    found = model(batch)
    torch.testing.assert_close(found["jmlm"], torch.stack(of_words).sum() / 4)
    torch.testing.assert_close(found["jmrm"], torch.stack(of_regions).sum() / 2)


def test_slots_ranks_and_placeholder() -> None:
    cross = model_of("scene", images=2, regions=2).eval().cross
    slots = torch.randn(2, 4, D, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[True, True, True, False], [False] * 4])
    visual, visible = cross.embed(slots, mask)
    for slot in range(3):
        rank = cross.ranks[slot // 2]
        wanted = cross.norm(cross.project(slots[0, slot]) + rank)
        torch.testing.assert_close(visual[0, slot], wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(visual[1, 0], cross.placeholder), "it enters as it is"
    assert visible.tolist() == [[True, True, True, False], [True, False, False, False]]
    alone, there = cross.embed(slots[:, :0], mask[:, :0])
    assert alone.shape == (2, 1, 16)
    assert there.all()
    assert torch.equal(alone[1, 0], cross.placeholder)


@torch.inference_mode()
def test_a_text_without_images_does_not_depend_on_those_beside_it() -> None:
    model = model_of("scene", images=S).eval()
    batch = batch_of()
    together = model.states(batch)[:, :T]
    plain = batch._replace(slots=batch.slots[:, :0], slot_mask=batch.slot_mask[:, :0])
    alone = model.states(plain)[:, :T]
    torch.testing.assert_close(together[3], alone[3], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(together[0], alone[0], atol=1e-2), "an image is seen"
    changed = batch.slots.clone()
    changed[~batch.slot_mask] = 100
    same = model.states(batch._replace(slots=changed))[:, :T]
    torch.testing.assert_close(same, together, rtol=1e-5, atol=1e-5)


def test_the_text_encoder_stays_frozen_and_still() -> None:
    model = model_of(hidden_dropout_prob=0.5).train()
    ids = batch_of().ids
    mask = torch.ones_like(ids, dtype=torch.bool)
    assert torch.equal(model.read(ids, mask), model.read(ids, mask)), "no dropout in training"
    assert not any(p.requires_grad for p in model.text.parameters())
    assert not any("text" in name or "_frozen" in name for name in model.state_dict())
    assert next(model.double().text.parameters()).dtype == torch.float64, "it moves with the model"


def test_every_weight_has_a_gradient_whatever_the_texts_are() -> None:
    for strategy in ("none", "i2t", "both", "scene"):
        model = model_of(strategy, images=0 if strategy == "none" else S)
        for slots in (0, S):
            batch = batch_of(slots if strategy != "none" else 0)
            if not slots:
                nothing = torch.zeros(0, dtype=torch.int64)
                batch = batch._replace(
                    masked=nothing, tokens=nothing, regions=torch.zeros(0, 2, dtype=torch.int64),
                    targets=torch.zeros(0, D),
                )  # fmt: skip
            model.zero_grad()
            torch.stack([*model(batch).values()]).sum().backward()
            without = [n for n, p in model.named_parameters() if p.grad is None]
            assert not without, (strategy, slots)


@torch.inference_mode()
def test_halves_add_up_to_the_batch() -> None:
    model = model_of("both", images=S).eval()
    batch = batch_of()
    whole = model(batch)
    parts = [model(half) for half in halve(batch)]
    assert whole.keys() == {"jmlm", "jmrm"}
    for name, value in whole.items():
        total = float(sum(part[name] for part in parts))
        assert total == pytest.approx(float(value), rel=1e-5), name
    first = halve(halve(batch)[0])[0]
    assert len(first.ids) == 1
    assert halve(first) == (first,), "one text cannot be cut"


@torch.inference_mode()
def test_calibration_gives_images_the_scale_of_words() -> None:
    model = model_of("i2t")
    batch = batch_of(1)
    model.calibrate(batch.ids, batch.text_mask)
    states = model.read(batch.ids, batch.text_mask)[batch.text_mask]
    expected = float(states.square().mean().sqrt())
    assert model.cross.norm.weight.tolist() == pytest.approx([expected] * 16)
    visual, _ = model.cross.embed(batch.slots[:2], batch.slot_mask[:2])
    assert float(visual.square().mean().sqrt()) == pytest.approx(expected, rel=0.01)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["bert", "roberta", "albert"])
def test_the_head_starts_as_the_language_model_s_and_is_its_own(kind: str) -> None:
    lm = encoder_of(model_type=kind, **{"embedding_size": 8} if kind == "albert" else {}).model
    for name, weight in lm.named_parameters():
        if name.endswith("bias"):
            weight.normal_()
    apply = {"bert": "cls", "roberta": "lm_head", "albert": "predictions"}[kind]
    head = MaskedLMHead(lm.eval()).eval()
    states = torch.randn(5, 16)
    found = torch.nn.functional.linear(head.hidden(states), head.table, head.bias)
    torch.testing.assert_close(found, getattr(lm, apply)(states), rtol=1e-5, atol=1e-5)
    assert head.table.data_ptr() != lm.get_output_embeddings().weight.data_ptr()


def test_fine_tuning_trains_the_text_encoder_too() -> None:
    model = model_of("i2t")
    encoder = GroundedEncoder(model.text, model.cross).train()
    batch = batch_of(1)
    states = encoder(batch.ids, batch.text_mask)
    assert states.shape == (B, T, 16)
    states.sum().backward()
    assert all(p.grad is not None for p in encoder.text.parameters())
    with torch.inference_mode():
        encoder.eval()
        seen = encoder(batch.ids, batch.text_mask, batch.slots, batch.slot_mask)
        none = encoder(batch.ids, batch.text_mask)
    torch.testing.assert_close(seen[2:], none[2:], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(seen[0], none[0], atol=1e-2)
