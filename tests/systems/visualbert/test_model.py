"""VisualBERT against transformers' on shared weights, its losses, its attention."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.precision import rounding
from tests.tiny.lm import make_tokenizer
from tests.tiny.visual import REGION, encoder_of, model_of
from vgtools.io.errors import DataError, Exit
from vgtools.models import masked_lm
from vgtools.models.encoder import save_pretrained
from vgtools.systems.visualbert.model import (
    VisualBert,
    VisualBertAttention,
    VisualBertBatch,
    VisualBertConfig,
    halve,
    load_visualbert,
    make_visualbert,
    open_attention,
    sip,
    to_transformers,
)

T, R, B = 7, 4, 3


def inputs(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    text_mask, region_mask = torch.ones(B, T, dtype=torch.bool), torch.ones(B, R, dtype=torch.bool)
    text_mask[1, 5:] = False
    region_mask[2, 1:] = False
    return {
        "ids": torch.randint(5, 100, (B, T)),
        "types": torch.tensor([[0] * 4 + [1] * 3] * B),
        "text_mask": text_mask,
        "regions": torch.randn(B, R, REGION),
        "region_mask": region_mask,
    }


def theirs_of(model: VisualBert, given: dict[str, torch.Tensor], **more: Any) -> Any:
    network = to_transformers(model).eval()
    return network(
        input_ids=given["ids"],
        token_type_ids=given["types"],
        attention_mask=given["text_mask"].long(),
        visual_embeds=given["regions"],
        visual_attention_mask=given["region_mask"].long(),
        **more,
    )


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------------- equal to transformers


@torch.inference_mode()
def test_states_heads_and_attention_equal_those_of_transformers() -> None:
    model, given = model_of().eval(), inputs()
    wanted = theirs_of(model, given, output_attentions=True, output_hidden_states=True)
    layers = list(model.run(**given, weights=True))
    fused = list(model.run(**given))
    assert len(layers) == len(wanted.attentions) == 2
    here = torch.cat([given["text_mask"], given["region_mask"]], 1)
    for (states, weights), (same, none), theirs, hidden in zip(
        layers, fused, wanted.attentions, wanted.hidden_states[1:], strict=True
    ):
        assert weights is not None
        assert none is None
        close(weights, theirs)
        close(states[here], hidden[here])
        close(same[here], hidden[here])
    states = layers[-1][0]
    close(model.match(model.pool(states)), wanted.seq_relationship_logits)
    rows = masked_lm.mlm_hidden(model.lm)(states)
    decoder = model.lm.get_output_embeddings()
    close(F.linear(rows, decoder.weight, decoder.bias)[here], wanted.prediction_logits[here])


@torch.inference_mode()
def test_alignment_mean_is_that_of_transformers_and_sum_is_a_multiple_of_it() -> None:
    given = inputs()
    alignment = torch.full((B, R, 3), -1)
    alignment[0, 0, :2] = torch.tensor([2, 5])
    alignment[0, 1, 0] = 3
    alignment[1, 2] = torch.tensor([1, 1, 4])
    alignment[1, 0, 1] = 0  # a position as any other
    model = model_of(alignment="mean").eval()
    network = to_transformers(model).eval().visual_bert.embeddings
    wanted = network(
        input_ids=given["ids"],
        token_type_ids=given["types"],
        visual_embeds=given["regions"],
        image_text_alignment=alignment,
    )
    seen = model.embed_regions(given["regions"], alignment=alignment)
    close(model._text.LayerNorm(seen), wanted[:, T:])
    bare = model.embed_regions(given["regions"])
    by_sum = model_of(alignment="sum").eval()
    summed = by_sum.embed_regions(given["regions"], alignment=alignment) - bare
    table = model._text.position_embeddings.weight
    close(summed[0, 0], table[2] + table[5])
    close(summed[1, 2], 2 * table[1] + table[4])
    close(summed[1, 0], table[0])
    close((seen - bare)[0, 0], (table[2] + table[5]) / 2)
    assert not summed[2].any(), "no words, no position"


def test_segments_of_regions_can_be_given() -> None:
    model, given = model_of(), inputs()
    segments = torch.tensor([[0, 0, 1, 1]] * B)
    table = model.segment.weight
    difference = model.embed_regions(given["regions"], segments) - model.embed_regions(
        given["regions"]
    )
    close(difference[:, :2], (table[0] - table[1]).expand(B, 2, -1))
    assert not difference[:, 2:].any()


@torch.inference_mode()
def test_a_saved_model_comes_back_and_opens_with_transformers(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForPreTraining

    model, given = model_of().eval(), inputs()
    wanted = model.states(**given)
    text = encoder_of()
    for name, network in (
        ("whole", to_transformers(model)),
        ("bare", to_transformers(model).visual_bert),
    ):
        folder = tmp_path / name
        network.save_pretrained(folder)
        text.tokenizer.save(str(folder / "tokenizer.json"))
        found, encoder = load_visualbert(str(folder), VisualBertConfig(REGION))
        close(found.eval().states(**given), wanted)
        assert encoder.tokenizer.to_str() == make_tokenizer().to_str()
        assert (
            found.match.weight.equal(model.match.weight),
            found.pooler.weight.equal(model.pooler.weight),
        ) == (
            name == "whole",
            True,
        )
    assert (
        type(AutoModelForPreTraining.from_pretrained(tmp_path / "whole")).__name__
        == "VisualBertForPreTraining"
    )
    assert type(AutoModel.from_pretrained(tmp_path / "whole")).__name__ == "VisualBertModel"
    with pytest.raises(DataError, match=f"regions_width {REGION}, 9 was asked for") as caught:
        load_visualbert(str(tmp_path / "whole"), VisualBertConfig(9))
    assert caught.value.code == Exit.CONFIG


def test_a_bert_starts_as_itself(tmp_path: Path) -> None:
    from transformers import BertModel

    text = encoder_of()
    save_pretrained(tmp_path / "bert", text)
    model, _ = load_visualbert(str(tmp_path / "bert"), VisualBertConfig(REGION))
    given = inputs()
    bert = BertModel.from_pretrained(tmp_path / "bert").eval()
    with torch.inference_mode():
        wanted = bert(
            input_ids=given["ids"], attention_mask=given["text_mask"].long()
        ).last_hidden_state
        found = model.eval().states(
            given["ids"],
            None,
            given["text_mask"],
            given["regions"][:, :0],
            given["region_mask"][:, :0],
        )
    close(found[given["text_mask"]], wanted[given["text_mask"]])
    assert model.segment.weight.equal(model._text.token_type_embeddings.weight), (
        "visual tables start as those of the text"
    )
    assert model.position.weight.equal(model._text.position_embeddings.weight)


def test_other_encoders_are_refused(tmp_path: Path) -> None:
    text = encoder_of()
    text.model.config.model_type = "roberta"
    with pytest.raises(DataError, match="VisualBERT is made of a BERT, got a roberta encoder"):
        make_visualbert(text, VisualBertConfig(REGION))
    save_pretrained(tmp_path / "bert", encoder_of())
    with pytest.raises(DataError, match="expected a VisualBERT, got a bert checkpoint"):
        open_attention(str(tmp_path / "bert"))


def test_a_checkpoint_that_lacks_a_weight_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    to_transformers(model_of()).save_pretrained(tmp_path)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tensors = load_file(tmp_path / "model.safetensors")
    name = "visual_bert.embeddings.visual_projection.weight"
    save_file({k: t for k, t in tensors.items() if k != name}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=f"lacks 1 weights of a VisualBERT, the first {name}"):
        load_visualbert(str(tmp_path), VisualBertConfig(REGION))
    save_file(tensors | {name: torch.zeros(3, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match=r"visual_projection.weight has the shape \(3, 3\)"):
        load_visualbert(str(tmp_path), VisualBertConfig(REGION))


# ---------------------------------------------------------------------------------------- attention


@torch.inference_mode()
def test_attention_is_softmax_over_what_is_there() -> None:
    joint = VisualBertAttention(encoder_of(), model_of().eval())
    given = inputs()
    found = list(
        joint.attentions(given["ids"], given["text_mask"], given["regions"], given["region_mask"])
    )
    assert (len(found), joint.layers, joint.heads, joint.region_width) == (2, 2, 2, REGION)
    assert joint.max_tokens == 62
    here = torch.cat([given["text_mask"], given["region_mask"]], 1)
    for weights in found:
        assert weights.shape == (B, 2, T + R, T + R)
        close(weights.sum(-1), torch.ones(B, 2, T + R))
        assert not weights.transpose(1, 3)[~here].any(), "nothing attends to padding"
    own = joint.model.lm.bert.encoder.layer[0].attention.self
    states = torch.cat([joint.model._text(given["ids"]), joint.model._text.LayerNorm(
        joint.model.embed_regions(given["regions"]))], 1)[0]  # fmt: skip
    query, key = (
        part(states)[:, 8:] for part in (own.query, own.key)
    )  # the second of two heads of 8
    close(found[0][0, 1], (query @ key.T / math.sqrt(8)).softmax(-1))


@torch.inference_mode()
def test_late_fusion_shows_regions_to_the_last_layer_only() -> None:
    model = model_of(late_fusion=True).eval()
    joint, given = VisualBertAttention(encoder_of(), model), inputs()
    found = list(
        joint.attentions(given["ids"], given["text_mask"], given["regions"], given["region_mask"])
    )
    assert (len(found), joint.layers) == (3, 3)
    for weights in found[:2]:
        assert weights.shape == (B, 2, T + R, T + R)
        assert not weights[:, :, T:].any()
        assert not weights[..., T:].any()
        close(weights[:, :, :T].sum(-1), torch.ones(B, 2, T))
    assert (found[2][0, :, :T, T:] > 0).all()
    before = [states for states, _ in model.run(**given)]
    other = [states for states, _ in model.run(**given | {"regions": given["regions"] + 1})]
    assert [torch.equal(a, b) for a, b in zip(before[:2], other[:2], strict=True)] == [True, True]
    assert not torch.allclose(before[2][:, :T], other[2][:, :T])


@torch.inference_mode()
def test_late_fusion_is_one_layer_over_what_the_text_encoder_says() -> None:
    model, given = model_of(late_fusion=True).eval(), inputs()
    assert model.joint is not None
    text = model.lm.bert(
        input_ids=given["ids"],
        token_type_ids=given["types"],
        attention_mask=given["text_mask"].long(),
    )
    seen = model._text.LayerNorm(model.embed_regions(given["regions"]))
    mask = torch.cat([given["text_mask"], given["region_mask"]], 1)[:, None, None]
    wanted = model.joint(
        torch.cat([text.last_hidden_state, seen], 1), mask.expand(B, 1, T + R, T + R)
    )
    here = mask[:, 0, 0]
    close(model.states(**given)[here], wanted[here])


@torch.inference_mode()
def test_late_fusion_is_saved_and_comes_back(tmp_path: Path) -> None:
    model, given = model_of(late_fusion=True).eval(), inputs()
    to_transformers(model).save_pretrained(tmp_path)
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    found = open_attention(str(tmp_path))
    close(found.model.states(**given), model.states(**given))
    assert found.layers == 3


# ------------------------------------------------------------------------------------------- losses


def batch_of(match: bool = True) -> VisualBertBatch:
    given = inputs()
    masked = torch.tensor([1, 3, T + 2, 2 * T + 6])
    tokens = torch.tensor([9, 8, 7, 6])
    pairs = torch.tensor([1, 0, 1]) if match else None
    return VisualBertBatch(*given.values(), masked, tokens, pairs, 4.0, 3.0)


def test_losses_equal_those_of_transformers() -> None:
    model, batch = model_of().eval(), batch_of()
    labels = torch.full((B, T + R), -100)
    for place, token in zip(batch.masked.tolist(), batch.tokens.tolist(), strict=True):
        labels[place // T, place % T] = token
    given = batch._asdict()
    for match in (batch.match, None):
        found = model(batch._replace(match=match))
        wanted = theirs_of(
            model,
            given,
            labels=labels,
            **({"sentence_image_labels": match} if match is not None else {}),
        )
        assert sum(found.values()).item() == pytest.approx(wanted.loss.item(), rel=1e-5)
        assert list(found) == ["mlm", "sip"][: len(found)]


def test_sip_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0], [math.log(9), 0.0]])
    wanted = -(math.log(3 / 4) + math.log(1 / 2) + math.log(9 / 10))
    assert sip(logits, torch.tensor([1, 1, 0])).item() == pytest.approx(wanted, rel=1e-6)


def test_the_losses_of_two_halves_add_up_to_those_of_the_batch() -> None:
    model, batch = model_of().eval(), batch_of()
    whole = model(batch)
    parts = [model(half) for half in halve(batch)]
    for name, value in whole.items():
        close(sum(part[name] for part in parts), value)  # type: ignore[arg-type]
    single = halve(batch)[0]
    assert (len(single.ids), halve(single)) == (1, (single,))


def test_every_part_learns_and_checkpointing_changes_nothing() -> None:
    sides = []
    for checkpointing in (False, True):
        model = model_of(late_fusion=True).train()
        model.checkpointing = checkpointing
        sum(model(batch_of()).values()).backward()  # type: ignore[union-attr]
        sides.append({name: weight.grad for name, weight in model.named_parameters()})
    assert [name for name, grad in sides[0].items() if grad is None or not grad.any()] == []
    for name, grad in sides[0].items():
        torch.testing.assert_close(sides[1][name], grad, msg=name)


def test_bfloat16_is_near_float32() -> None:
    wanted, found = (
        VisualBert(encoder_of().model, VisualBertConfig(REGION), dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    found.load_state_dict(wanted.state_dict())
    a, b = wanted(batch_of()), found(batch_of())
    for name in a:
        assert b[name].item() == pytest.approx(a[name].item(), rel=rounding(torch.bfloat16, 8))
    assert np.isfinite(b["mlm"].item())
