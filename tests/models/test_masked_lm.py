"""Shapes of masked language models, their heads, and the cross entropy in chunks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.models.test_backbone import refusal
from tests.models.test_encoder import save_tiny_bert
from vgtools.models.masked_lm import linear_cross_entropy, mlm_hidden, new_lm
from vgtools.models.references import load_tokenizer

SHAPE = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


BART = {"model_type": "bart", "encoder_attention_heads": 2, "decoder_attention_heads": 2}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"model_type": "t5"}, "'t5' names no masked language model; vg trains bert, rob"),
        ({"model_type": "gpt2"}, "'gpt2' names no masked language model; vg trains bert"),
        ({"model_type": "visual_bert"}, "'visual_bert' names no masked language model"),
        ({"hidden_size": 7}, "is not a usable shape: ValueError: The hidden size (7)"),
        ({"hidden_size": 0}, '"hidden_size": expected a whole number from 1 to 65536, got 0'),
        ({"hidden_size": True}, '"hidden_size": expected a whole number from 1 to 65536, got Tr'),
        ({"num_hidden_layers": 10**9}, '"num_hidden_layers": expected a whole number from 1 to 1'),
        ({"position_embedding_type": "relative_key"}, 'relative positions; expected "absolute"'),
        ({"type_vocab_size": 0}, "token_type_embeddings would have no rows; expected sizes"),
        ({"hidden_act": "nothing"}, "is not a usable shape: "),
        (BART, '"model_type": expected a masked language model'),
    ],
)
def test_a_shape_that_cannot_be_is_one_line(
    tmp_path: Path, values: dict[str, Any], why: str
) -> None:
    tokenizer = load_tokenizer(str(save_tiny_bert(tmp_path)))
    new_lm(SHAPE, tokenizer, "shape.json")
    message = refusal(lambda: new_lm(SHAPE | values, tokenizer, "shape.json"))
    assert message.startswith("shape.json: ")
    assert why in message


@pytest.mark.parametrize(
    "says",
    [
        {"return_dict": False},
        {"output_attentions": True},
        {"output_hidden_states": True},
        {"chunk_size_feed_forward": 5},
    ],
)
def test_a_shape_decides_sizes_alone(tmp_path: Path, says: dict[str, Any]) -> None:
    tokenizer = load_tokenizer(str(save_tiny_bert(tmp_path)))
    found = []
    for shape in (SHAPE, SHAPE | says):
        torch.manual_seed(0)
        lm = new_lm(shape, tokenizer).eval()
        lm.save_pretrained(tmp_path / "saved")
        found.append(lm(input_ids=torch.tensor([[2, 5, 3]])).logits)
    assert torch.equal(*found)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "albert"])
def test_a_head_in_two_parts_is_the_head(tmp_path: Path, kind: str) -> None:
    """Embeddings of ELECTRA and ALBERT may be narrower than their layers."""
    tokenizer = load_tokenizer(str(save_tiny_bert(tmp_path)))
    torch.manual_seed(0)
    lm = new_lm(SHAPE | {"model_type": kind, "embedding_size": 4}, tokenizer).eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        ids = torch.tensor([[2, 5, 6, 3]])
        states = lm.base_model(input_ids=ids).last_hidden_state
        logits = lm.get_output_embeddings()(mlm_hidden(lm)(states))
        assert logits.numpy() == pytest.approx(lm(input_ids=ids).logits.numpy(), abs=1e-5)


def test_a_frozen_table_changes_no_gradient_of_the_rows() -> None:
    torch.manual_seed(0)
    rows = torch.randn(7, 4)
    table = torch.randn(9, 4)
    target = torch.randint(9, (7,))
    found = {}
    for learns in (True, False):
        own = rows.clone().requires_grad_(True)
        weight = table.clone().requires_grad_(learns)
        linear_cross_entropy(own, weight, None, target, chunk=3).backward()
        found[learns] = own.grad
        assert (weight.grad is not None) == learns
    assert torch.equal(found[True], found[False])


def test_logits_beyond_the_range_of_exp() -> None:
    """exp(89) is infinite in float32; worked by hand: 200 - 100, and log(1 + exp(-0.5))."""
    rows = torch.tensor([[200.0], [1.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [0.5]], requires_grad=True)
    bias = torch.tensor([0.0, 0.0], requires_grad=True)
    target = torch.tensor([1, 0])
    loss = linear_cross_entropy(rows, weight, bias, target, chunk=1)
    loss.backward()
    q = 1 / (1 + math.exp(0.5))  # of the wrong answer in the second row
    assert loss.item() == pytest.approx(100 + math.log1p(math.exp(-0.5)))
    assert bias.grad is not None
    assert bias.grad.tolist() == pytest.approx([1 - q, q - 1])
    assert rows.grad is not None
    assert rows.grad[:, 0].tolist() == pytest.approx([0.5, -0.5 * q])


@pytest.mark.parametrize("width", [3, 9])  # fewer and more columns than rows
@pytest.mark.parametrize("chunk", [1, 3, 16])
def test_gradients_in_double_precision_are_those_of_finite_differences(
    chunk: int, width: int
) -> None:
    torch.manual_seed(0)
    target = torch.tensor([0, 4, 4, 1, 2, 3, 0])
    shapes = ((7, width), (5, width), (5,))
    given = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]

    def loss(rows: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        return linear_cross_entropy(rows, table, bias, target, torch.float64, chunk)

    assert torch.autograd.gradcheck(loss, given)
    plain = F.cross_entropy(F.linear(*given), target, reduction="sum")
    assert loss(*given).item() == pytest.approx(plain.item(), rel=1e-14)


def test_answers_without_a_chance_cost_no_denormal_numbers() -> None:
    """exp(-100) is 3.7e-44: a processor takes many times as long over such a number."""
    rows = torch.tensor([[1.0], [1.0]], requires_grad=True)
    table = torch.tensor([[0.0], [-100.0], [-1000.0]], requires_grad=True)
    target = torch.tensor([0, 1])
    loss = linear_cross_entropy(rows, table, None, target)
    loss.backward()
    assert loss.item() == 100.0
    assert table.grad is not None
    assert table.grad[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.0], abs=1e-29)
    assert table.grad.abs().min() >= torch.finfo(torch.float32).tiny
