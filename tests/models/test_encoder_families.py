"""What differs between families of transformers' encoders: positions, heads, padding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from tests.models.test_encoder import save_tiny_bert
from vgtools.io.errors import DataError, Exit
from vgtools.models.encoder import load_encoder, load_masked_lm, load_with_head
from vgtools.models.masked_lm import mlm_hidden
from vgtools.models.references import unread_weights
from vgtools.models.weights import compare_encoders

SHAPE = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 12,
    "pad_token_id": 0,
}


def save(folder: Path, family: str, network: Any = AutoModel, **more: Any) -> str:
    """Write a random network of a family next to a tokenizer of 21 entries."""
    torch.manual_seed(0)
    save_tiny_bert(folder)
    for file in (*folder.glob("*.safetensors"), folder / "config.json"):
        file.unlink()
    model = network.from_config(AutoConfig.for_model(family, **SHAPE | more))
    model.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("family", "padding", "reserved"),
    [
        ("bert", 0, 0),
        ("bert", 1, 0),
        ("electra", 0, 0),
        ("deberta-v2", 0, 0),
        # RoBERTa's kin count positions from after the padding id.
        ("roberta", 0, 1),
        ("roberta", 1, 2),
        ("camembert", 0, 1),
        ("data2vec-text", 0, 1),
        ("roberta-prelayernorm", 0, 1),
        ("xlm-roberta-xl", 0, 1),
        # MPNet has its own number, whatever the configuration has.
        ("mpnet", 0, 2),
        ("mpnet", 1, 2),
        ("mpnet", 3, 2),
    ],
)
def test_a_text_of_the_most_tokens_fits(
    tmp_path: Path, family: str, padding: int, reserved: int
) -> None:
    encoder = load_encoder(save(tmp_path, family, pad_token_id=padding))
    assert encoder.max_tokens == 12 - reserved - 2
    ids = [*encoder.prefix, *[7] * encoder.max_tokens, *encoder.suffix]
    with torch.no_grad():
        states = encoder.model(input_ids=torch.tensor([ids])).last_hidden_state
    assert states.shape == (1, len(ids), 16)


@pytest.mark.parametrize("family", ["bart", "mbart", "mvp"])
def test_an_encoder_with_a_decoder_is_refused(tmp_path: Path, family: str) -> None:
    layers = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 24}
    layers |= {"decoder_ffn_dim": 24, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    ref = save(tmp_path, family, **layers, eos_token_id=3, forced_eos_token_id=None)
    with pytest.raises(DataError, match=f"is a {family}, an encoder with a decoder") as caught:
        load_encoder(ref)
    assert caught.value.code == Exit.CONFIG


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn])
def test_weights_that_are_quantised_are_refused(tmp_path: Path, kind: torch.dtype) -> None:
    ref = save(tmp_path, "bert", AutoModelForMaskedLM)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "bert.encoder.layer.0.output.dense.weight"
    position = {"bert.embeddings.position_ids": torch.arange(12)[None]}  # no weight
    save_file(tensors | position, file, {"format": "pt"})
    assert load_encoder(ref).width == 16
    scale = {name.replace("weight", "weight_scale"): torch.ones(1)}
    save_file(tensors | {name: (10 * tensors[name]).to(kind)} | scale, file, {"format": "pt"})
    for load in (
        load_encoder,
        load_masked_lm,
        lambda ref: compare_encoders([ref, ref], None, None, 0),
    ):
        with pytest.raises(DataError, match=f"has {name} as .*, expected floating-point") as caught:
            load(ref)
        assert (caught.value.code, str(caught.value.file)) == (Exit.DATA, str(file))
    # transformers leaves out settings of a kind that it does not know.
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "nobody's"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="choose weights that are not quantised"):
        load_encoder(ref)


@pytest.mark.parametrize("family", ["mobilebert", "esm"])
def test_a_head_in_more_parts_is_refused(tmp_path: Path, family: str) -> None:
    more = {"embedding_size": 8, "true_hidden_size": 8, "intra_bottleneck_size": 8}
    config = AutoConfig.for_model(family, **SHAPE | more)
    with pytest.raises(DataError, match=f"with the head of BERT, RoBERTa.* got {family}"):
        mlm_hidden(AutoModelForMaskedLM.from_config(config))


def test_a_head_that_reads_up_to_the_padding_needs_its_token(tmp_path: Path) -> None:
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 12}
    ref = save(tmp_path, "gpt2", AutoModelForSequenceClassification, **shape)
    assert load_with_head(ref, "SequenceClassification", 0, {"num_labels": 2}).width == 16
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))
    with pytest.raises(DataError, match=r'set "pad_token_id" in its config\.json') as caught:
        load_with_head(ref, "SequenceClassification", 0, {"num_labels": 2})
    assert caught.value.code == Exit.CONFIG


def test_a_head_that_reads_every_token_needs_no_padding_token(tmp_path: Path) -> None:
    more = {"num_key_value_heads": 2, "pad_token_id": None}
    encoder = load_with_head(save(tmp_path, "qwen2", **more), "TokenClassification", 0, {})
    assert encoder.model.config.pad_token_id is None


@pytest.mark.parametrize("family", ["bert", "roformer", "convbert"])
def test_a_choice_is_not_scored_by_its_padding(tmp_path: Path, family: str) -> None:
    more = {"embedding_size": 16, "initializer_range": 0.5}
    encoder = load_with_head(save(tmp_path, family, **more), "MultipleChoice", 0, {})
    net = encoder.model.eval()
    ids = torch.tensor([[[2, 7, 8, 9, 3]]])
    longer = torch.cat([ids, torch.zeros(1, 1, 4, dtype=torch.int64)], 2)
    with torch.no_grad():
        alone = net(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        padded = net(input_ids=longer, attention_mask=(longer > 0).long()).logits
    # The convolutions of ConvBERT see padding near the end of a text.
    assert float((padded - alone).abs().max()) < (0.01 if family == "convbert" else 1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra"])
def test_relative_positions_which_transformers_does_not_compute_are_refused(
    tmp_path: Path, family: str
) -> None:
    folder = Path(save(tmp_path / "model", family, AutoModelForMaskedLM))
    config = folder / "config.json"
    body = json.loads(config.read_text()) | {"position_embedding_type": "relative_key"}
    config.write_text(json.dumps(body))
    weights = load_file(folder / "model.safetensors")
    name = f"{family}.encoder.layer.0.attention.self.distance_embedding.weight"
    save_file(weights | {name: torch.ones(23, 8)}, folder / "model.safetensors", {"format": "pt"})
    for load in (load_encoder, lambda ref: load_encoder(ref, states=True), load_masked_lm):
        with pytest.raises(DataError, match=f"1 weight that its architecture lacks.* {name}"):
            load(str(folder))


def test_weights_of_an_adapter_in_layers_are_refused_where_the_states_alone_are_read(
    tmp_path: Path,
) -> None:
    folder = Path(save(tmp_path / "model", "bert"))
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.attention.self.query.lora_A.weight"] = torch.ones(2, 16)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match="they would not be used"):
        load_encoder(str(folder), states=True)


def test_long_texts_of_a_bigbird_do_not_depend_on_the_short_ones_before_them(
    tmp_path: Path,
) -> None:
    shape = {"block_size": 2, "num_random_blocks": 1, "max_position_embeddings": 64}
    ref = save(tmp_path / "model", "big_bird", **shape)
    ids = torch.randint(5, 20, (1, 40), generator=torch.Generator().manual_seed(0))

    def states(*texts: torch.Tensor) -> torch.Tensor:
        model = load_encoder(ref).model
        with torch.no_grad():
            return [model(text).last_hidden_state for text in texts][-1]

    assert torch.equal(states(ids), states(ids[:, :4], ids))


@pytest.mark.parametrize(
    ("family", "key"), [("modernbert", "num_hidden_layers"), ("gpt2", "n_layer")]
)
def test_layers_that_a_configuration_leaves_out_are_refused(
    tmp_path: Path, family: str, key: str
) -> None:
    special = dict.fromkeys(("bos", "eos", "cls", "sep"), 1)
    shape = {f"{name}_token_id": token for name, token in special.items()}
    folder = Path(save(tmp_path / "model", family, num_hidden_layers=3, **shape))
    load_encoder(str(folder))
    config = folder / "config.json"
    body = json.loads(config.read_text()) | {key: 2}
    body["layer_types"] = body.get("layer_types", [])[:2] or None
    config.write_text(json.dumps(body))
    with pytest.raises(DataError, match="that its architecture lacks, the first"):
        load_encoder(str(folder))


def test_constants_heads_and_other_sides_are_no_lost_weights() -> None:
    bert = ["encoder.layer.0.attention.self.query.bias", "pooler.dense.bias"]
    names = ["vision_model.encoder.layers.0.mlp.fc1.bias", "lxmert.encoder.x_layers.0.w"]
    names += ["encoder.layer.0.crossattention.self.query.weight", "classifier.1.weight"]
    names += ["classifier.layers.0.weight", "decoder.layers.0.w", "cls.head.layer.0.weight"]
    names += ["clip.vision_model.encoder.layer.0.w", "cls.bias"]
    assert unread_weights(names, bert) == []
    gpt = ["h.0.mlp.c_fc.weight", "wte.weight"]
    names = ["h.0.attn.bias", "h.11.attn.masked_bias", "transformer.h.0.attn.attention.bias"]
    assert unread_weights([*names, "h.0.attn.causal_mask"], gpt) == []
    for network, name in (
        (bert, "bert.encoder.layer.10.attention.self.query.bias"),
        (bert, "encoder.layer.0.attention.self.distance_embedding.weight"),
        (["bert.encoder.layer.0.w"], "encoder.layer.0.lora_A"),
        (gpt, "transformer.h.3.mlp.w"),
        (["layers.0.attn.w"], "model.layers.1.attn.w"),
        (["encoder.groups.0.albert_layers.0.w"], "encoder.groups.0.albert_layers.0.lora_A"),
    ):
        assert unread_weights([name], network) == [name]


def test_a_model_of_many_languages_without_a_default_one_is_refused(tmp_path: Path) -> None:
    ref = save(tmp_path / "model", "xmod", languages=["en_XX", "de_DE"])
    with pytest.raises(DataError, match='"default_language": expected one of en_XX, de_DE'):
        load_encoder(ref)
    config = Path(ref, "config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"default_language": "en_XX"}))
    load_encoder(ref)
