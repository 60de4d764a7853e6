"""Shapes of masked language models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.models.test_backbone import refusal
from tests.models.test_encoder import save_tiny_bert
from vgtools.models.masked_lm import new_lm
from vgtools.models.references import load_tokenizer

SHAPE = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


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
        ({"hidden_act": "nothing"}, "is not a usable shape: "),
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
