"""Copied layers compute what the encoder that they come from computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.tiny.visual import encoder_of
from vgtools.io.errors import DataError, Exit
from vgtools.models.layers import LayerStack


def albert(groups: int = 1, layers: int = 4) -> Any:
    from transformers import AlbertConfig, AlbertModel

    torch.manual_seed(0)
    config = AlbertConfig(
        vocab_size=50, embedding_size=8, hidden_size=16, num_attention_heads=2,
        intermediate_size=32, num_hidden_layers=layers, num_hidden_groups=groups,
        initializer_range=0.3,
    )  # fmt: skip
    return AlbertModel(config).eval()


def bert(**changes: Any) -> Any:
    return encoder_of(**changes).model.base_model.eval()


def embedded(encoder: Any, ids: torch.Tensor) -> torch.Tensor:
    states: torch.Tensor = encoder.embeddings(ids)
    inward = getattr(encoder.encoder, "embedding_hidden_mapping_in", None)
    return states if inward is None else inward(states)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(5, 50, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[1, 4:] = False
    return ids, mask


@pytest.mark.parametrize(
    "encoder", [albert(), albert(groups=2), bert(), bert(model_type="roberta")],
    ids=["albert", "albert of two groups", "bert", "roberta"],
)  # fmt: skip
@torch.inference_mode()
def test_all_layers_on_text_are_the_encoder(encoder: Any) -> None:
    ids, mask = inputs()
    stack = LayerStack(encoder).eval()
    wanted = encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
    assert torch.equal(stack(embedded(encoder, ids), mask)[mask], wanted[mask])


@torch.inference_mode()
def test_fewer_layers_are_the_last_ones() -> None:
    ids, mask = inputs()
    encoder = bert()
    hidden = encoder(
        input_ids=ids, attention_mask=mask.long(), output_hidden_states=True
    ).hidden_states
    assert torch.equal(LayerStack(encoder, 1).eval()(hidden[1], mask)[mask], hidden[2][mask])
    encoder = albert(groups=2)
    two = LayerStack(encoder, 2).eval()
    states = embedded(encoder, ids)
    second = encoder.encoder.albert_layer_groups[1]
    at = mask[:, None, None]
    assert torch.equal(two(states, mask), second(second(states, at), at))
    every = sum(p.numel() for p in LayerStack(encoder).parameters())
    assert sum(p.numel() for p in two.parameters()) * 2 == every, "one of the two groups"
    assert sum(p.numel() for p in LayerStack(encoder, 3).parameters()) == every


@pytest.mark.parametrize("encoder", [albert(), bert(), bert(model_type="roberta")])
@torch.inference_mode()
def test_an_encoder_whose_attention_adds_masks_gives_layers_that_hide(encoder: Any) -> None:
    encoder.set_attn_implementation("eager")
    ids, mask = inputs()
    states = embedded(encoder, ids)
    stack = LayerStack(encoder).eval()
    found = stack(states, mask)
    found_of_others = stack(states + ~mask[..., None] * 3.0, mask)
    torch.testing.assert_close(found_of_others[mask], found[mask], rtol=0, atol=1e-6)
    assert encoder.config._attn_implementation == "eager", "the encoder itself does not change"


@pytest.mark.parametrize("encoder", [albert(), bert(), bert(model_type="roberta")])
def test_dropout_is_that_of_the_encoder_until_it_is_set(encoder: Any) -> None:
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    ids, mask = inputs()
    states = embedded(encoder, ids)
    stack = LayerStack(encoder)
    expected = stack.eval()(states, mask)
    assert not torch.allclose(stack.train()(states, mask), expected)
    stack.set_dropout(0.0)
    assert torch.allclose(stack.train()(states, mask), expected)


def test_the_copy_is_trainable_and_its_own() -> None:
    encoder = bert().requires_grad_(False)
    stack = LayerStack(encoder)
    assert all(p.requires_grad for p in stack.parameters())
    before = {n: p.clone() for n, p in encoder.named_parameters()}
    with torch.no_grad():
        for weight in stack.parameters():
            weight.add_(1)
    assert all(torch.equal(p, before[n]) for n, p in encoder.named_parameters())


def test_checkpointing_changes_no_gradient() -> None:
    ids, mask = inputs()
    encoder = bert()
    grads = []
    for checkpointing in (False, True):
        stack = LayerStack(encoder).train()
        stack.checkpointing = checkpointing
        stack(embedded(encoder, ids).detach(), mask).square().sum().backward()
        grads.append([p.grad for p in stack.parameters()])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_what_cannot_be_copied_is_refused() -> None:
    with pytest.raises(DataError, match="expected 1 to 2 layers of the text encoder, got 3") as e:
        LayerStack(bert(), 3)
    assert e.value.code == Exit.CONFIG
    encoder = bert()
    encoder.config.model_type = "mpnet"
    with pytest.raises(DataError, match="like BERT, RoBERTa or ALBERT, got mpnet"):
        LayerStack(encoder)
