"""Whose attention is read, and whose refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tiny import save_encoder
from vgtools.io.errors import DataError
from vgtools.models.attention import open_encoder


def attend(encoder: Any) -> list[torch.Tensor]:
    """Let an encoder attend over two texts, of which one is padded."""
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]])
    no_regions = torch.zeros(2, 0, 0)
    with torch.no_grad():
        return [*encoder.attentions(ids, ids != 0, no_regions, torch.zeros(2, 0).bool())]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_shares_of_any_precision_are_read(tmp_path: Path, kind: str, dtype: str) -> None:
    encoder = open_encoder(str(save_encoder(tmp_path / "e", kind)), dtype=dtype)
    layers = attend(encoder)
    assert len(layers) == encoder.layers
    assert layers[0].shape == (2, encoder.heads, 5, 5)


def test_scores_before_the_softmax_are_refused(tmp_path: Path) -> None:
    from transformers import SqueezeBertConfig, SqueezeBertModel

    path = tmp_path / "squeeze"
    bert = save_encoder(tmp_path / "bert")
    sizes: dict[str, Any] = {
        "vocab_size": open_encoder(str(bert)).tokenizer.get_vocab_size(),
        "hidden_size": 16,
        "embedding_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    SqueezeBertModel(SqueezeBertConfig(**sizes)).save_pretrained(path)
    shutil.copy(bert / "tokenizer.json", path)
    said = "attention of squeezebert cannot be read: expected weights that add up to 1, got others"
    with pytest.raises(DataError, match=said):
        attend(open_encoder(str(path)))
