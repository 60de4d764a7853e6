"""Towers read without transformers: the same weights, states and fingerprints, to the bit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.tiny import save_encoder, text
from tests.tiny.dual import save_dual
from vgtools.models.clip import load_teacher, token_states
from vgtools.models.dual import load_dual
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.packed import PackedEncoder
from vgtools.models.towers import ClipTexts, Tower, read_clip, read_tower
from vgtools.text.tokens import tokenize


def read(folder: Path) -> Tower | None:
    config = json.loads((folder / "config.json").read_text())
    return read_tower(config, folder.glob("*.safetensors"))


def with_head(folder: Path) -> Path:
    """Write a BERT under a head, so that its weights have a prefix, in half precision."""
    save_encoder(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder)
    model.half().save_pretrained(folder)
    return folder


def text_side(folder: Path) -> Path:
    """Write the bare text tower of a CLIP."""
    save_dual(folder)
    model = transformers.AutoModel.from_pretrained(folder)
    model.text_model.save_pretrained(folder)
    return folder


TOWERS: dict[str, Callable[[Path], Path]] = {
    "bert": save_encoder,
    "roberta": lambda folder: save_encoder(folder, "roberta"),
    "head": with_head,
    "clip": save_dual,
    "clip text": text_side,
}


@pytest.fixture(params=TOWERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return TOWERS[request.param](tmp_path)


def states_of(encoder: Encoder, sentences: list[str]) -> list[np.ndarray[Any, Any]]:
    tokens = tokenize(encoder.tokenizer, sentences)
    lengths = np.minimum(np.diff(tokens.starts), encoder.max_tokens)
    packs = PackedEncoder(encoder, 2, pack=64)(tokens.ids, tokens.starts[:-1], lengths)
    return [x.float().numpy() for pack in packs for x in (pack.tokens, pack.first)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tower_is_that_of_transformers_to_the_bit(folder: Path, dtype: str) -> None:
    own, theirs = (load_encoder(str(folder), dtype=dtype, states=x) for x in (True, False))
    assert isinstance(own.model, Tower)
    assert not isinstance(theirs.model, Tower)
    expected = theirs.model.state_dict()
    assert own.fingerprint == theirs.fingerprint
    assert (own.width, own.layers, own.max_tokens) == (
        theirs.width,
        theirs.layers,
        theirs.max_tokens,
    )
    assert all(
        torch.equal(weight, expected[name]) for name, weight in own.model.state_dict().items()
    )
    sentences = [*text(12, longest=20), "a", "a red dog"]
    for mine, other in zip(states_of(own, sentences), states_of(theirs, sentences), strict=True):
        assert np.array_equal(mine, other)


def test_a_clip_without_transformers_embeds_the_same(tmp_path: Path) -> None:
    dual = load_dual(str(save_dual(tmp_path)))
    assert isinstance(dual.texts.model.model, ClipTexts)
    whole = transformers.CLIPModel.from_pretrained(tmp_path).eval()
    ids = torch.tensor(
        [dual.texts.tokenizer.encode("a red dog").ids, dual.texts.tokenizer.encode("a dog cat").ids]
    )
    with torch.inference_mode():
        found = dual.texts.model.model(ids)
        expected = whole.get_text_features(input_ids=ids)
    assert torch.equal(found.text_embeds, expected.pooler_output)
    assert torch.equal(found.last_hidden_state, expected.last_hidden_state)
    assert dual.logits.scale == pytest.approx(whole.logit_scale.exp().item())
    config = json.loads((tmp_path / "config.json").read_text())
    for damage in ("vision_model.post_layernorm.bias", "text_projection.weight"):
        weights = load_file(tmp_path / "model.safetensors")
        del weights[damage]
        save_file(weights, tmp_path / "less.safetensors")
        assert read_clip(config, [tmp_path / "less.safetensors"]) is None


def test_a_teacher_without_transformers_has_the_same_states(tmp_path: Path) -> None:
    own, theirs = (load_teacher(str(save_dual(tmp_path)), states=x) for x in (True, False))
    assert isinstance(own.model, ClipTexts)
    assert (own.fingerprint, own.width) == (theirs.fingerprint, theirs.width)
    ids = torch.tensor([own.tokenizer.encode("a red dog of a cat").ids])
    with torch.inference_mode():
        assert torch.equal(token_states(own.model, ids), token_states(theirs.model, ids))


@pytest.mark.parametrize(
    "edit",
    [
        {"is_decoder": True},
        {"hidden_act": "gelu_new"},
        {"position_embedding_type": "relative_key"},
        {"quantization_config": {"quant_method": "x"}},
        {"auto_map": {"AutoModel": "x.Y"}},
        {"model_type": "electra"},
        {"num_hidden_layers": 4},
        {"num_attention_heads": 3},
        {"vocab_size": "many"},
        {"layer_norm_eps": None},
        {"hidden_act": ["gelu"]},
        {"num_attention_heads": []},
    ],
    ids=str,
)
def test_an_unusual_configuration_is_left_to_transformers(
    tmp_path: Path, edit: dict[str, Any]
) -> None:
    save_encoder(tmp_path)
    assert read(tmp_path) is not None
    config = json.loads((tmp_path / "config.json").read_text()) | edit
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read(tmp_path) is None


def test_unusual_weights_are_left_to_transformers(tmp_path: Path) -> None:
    weights = load_file(save_encoder(tmp_path) / "model.safetensors")
    norm = "embeddings.LayerNorm"
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma"): x for name, x in weights.items()}
    for damaged in (
        old,
        {name: x for name, x in weights.items() if name != f"{norm}.bias"},
        weights | {f"{norm}.bias": weights[f"{norm}.bias"].double()},
        weights | {f"{norm}.bias": weights[f"{norm}.bias"][:-1].clone()},
        weights | {f"bert.{name}": x.clone() for name, x in weights.items()},
        weights | {"encoder.layer.0.attention.self.query.lora_A.weight": torch.ones(1)},
    ):
        save_file(damaged, tmp_path / "model.safetensors")
        assert read(tmp_path) is None
    save_file(weights, tmp_path / "model.safetensors")
    assert read(tmp_path) is not None
