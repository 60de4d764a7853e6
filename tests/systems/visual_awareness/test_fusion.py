"""The fusion against numbers worked by hand, a loop in float64, and real networks."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification

from vgtools.io.errors import DataError, Exit
from vgtools.models.references import fingerprint
from vgtools.systems.visual_awareness.fusion import (
    Fusion,
    FusionConfig,
    config_for,
    fusion_of,
    open_fusion,
    save_fusion,
)

THROUGH = ("paper", "gate", "scalar-gate", "sum")
KINDS = (*THROUGH, "attention", "bi-attention")


def by_hand(kind: str = "paper") -> Fusion:
    """Return the fusion of the worked example: one head, identity projections, M = features."""
    fusion = Fusion(FusionConfig(3, 3, 1, kind)).double().eval()
    fusion.reset()
    with torch.no_grad():
        for linear in (fusion.image, fusion.query, fusion.key, fusion.value, fusion.output):
            linear.weight.copy_(torch.eye(3))
        if kind == "paper":
            fusion.joint.weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 0, 1]]))
            fusion.joint.bias.copy_(torch.tensor([0, 0.5, 0]))
    return fusion


STATES = torch.tensor([[[1.0, 0, -1], [0, 2, 1]]], dtype=torch.float64)
IMAGES = torch.tensor([[[2.0, 0, 0], [0, 1, 1]]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (
            [True, True],
            [
                [1.1495014129, -1.2881675877, 0.1386661747],
                [-1.3019812810, 1.1291370841, 0.1728441969],
            ],
        ),
        (
            [True, False],
            [
                [1.1355445690, -1.2977652218, 0.1622206527],
                [-1.2247081307, 0.0, 1.2247081307],
            ],
        ),
        (
            [False, False],
            [
                [1.2247081307, 0.0, -1.2247081307],
                [-1.1355445690, 1.2977652218, -0.1622206527],
            ],
        ),
    ],
)
def test_the_worked_example(mask: list[bool], expected: list[list[float]]) -> None:
    with torch.no_grad():
        fused = by_hand()(STATES, IMAGES, torch.tensor([mask]))
    np.testing.assert_allclose(fused[0].numpy(), expected, atol=1e-9)


def test_attention_of_the_worked_example() -> None:
    with torch.no_grad():
        found = by_hand().attend(STATES, IMAGES, torch.tensor([[True, True]]))
    expected = [
        [1.6993491062, 0.1503254469, 0.1503254469],
        [0.3006508938, 0.8496745531, 0.8496745531],
    ]
    np.testing.assert_allclose(found[0].numpy(), expected, atol=1e-9)


def oracle(
    fusion: Fusion, states: Tensor, features: Tensor, mask: Tensor, words: Tensor
) -> np.ndarray[Any, Any]:
    """Return the fused states of a fusion in float64, text by text, head by head."""
    config = fusion.config
    weights = {name: t.detach().numpy() for name, t in fusion.state_dict().items()}

    def linear(name: str, x: Any) -> Any:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    made = []
    width = config.hidden // config.heads

    def read(readers: Any, rows: Any) -> Any:
        query, key, value = linear("query", readers), linear("key", rows), linear("value", rows)
        parts = []
        for head in range(config.heads):
            here = slice(head * width, (head + 1) * width)
            scores = np.exp(query[:, here] @ key[:, here].T / np.sqrt(width))
            parts.append(scores / scores.sum(1, keepdims=True) @ value[:, here])
        return linear("output", np.concatenate(parts, 1))

    texts = zip(states.numpy(), features.numpy(), mask.numpy(), words.numpy(), strict=True)
    for h, images, known, said in texts:
        m = linear("image", images[known])
        found = np.zeros_like(h)
        if known.any():
            found = read(h, read(m, h[said]) if config.kind == "bi-attention" else m)
        if config.kind == "paper":
            x = linear("joint", h + found)
            x = x - x.mean(1, keepdims=True)
            x = x / np.sqrt((x**2).mean(1, keepdims=True) + config.eps)
            made.append(x * weights["norm.weight"] + weights["norm.bias"])
        elif config.kind == "sum":
            made.append(h + config.weight * found)
        elif config.kind in ("attention", "bi-attention"):
            made.append(found if known.any() else h)
        else:
            g = 1 / (1 + np.exp(-linear("gate", np.concatenate([h, found], 1))))
            made.append((1 - g) * h + g * found)
    return np.stack(made)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_agrees_with_loops_in_float64(kind: str) -> None:
    torch.manual_seed(0)
    config = FusionConfig(5, 6, 3, kind, dropout=0.5, attention_dropout=0.5, weight=0.3)
    fusion = Fusion(config).double().eval()
    fusion.reset(std=0.7)
    states = torch.randn(4, 3, 6, dtype=torch.float64)
    words = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 0, 0]], dtype=torch.bool)
    features = torch.randn(4, 4, 5, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    with torch.no_grad():
        fused = fusion(states, features, mask, words)
    expected = oracle(fusion, states, features, mask, words)
    np.testing.assert_allclose(fused.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_without_images_has_no_nan_and_gives_its_images_no_gradient(kind: str) -> None:
    torch.manual_seed(0)
    fusion = Fusion(FusionConfig(5, 6, 3, kind)).eval()
    fusion.reset(std=0.7)
    states = torch.randn(2, 3, 6, requires_grad=True)
    features = torch.randn(2, 4, 5, requires_grad=True)
    mask = torch.tensor([[True, False, True, False], [False] * 4])
    words = torch.ones(2, 3, dtype=torch.bool)
    fused = fusion(states, features, mask, words)
    fused.square().sum().backward()
    assert features.grad is not None
    assert states.grad is not None
    assert bool(fused.isfinite().all())
    assert bool(states.grad.isfinite().all())
    assert all(bool(p.grad.isfinite().all()) for p in fusion.parameters() if p.grad is not None)
    assert features.grad[1].tolist() == [[0.0] * 5] * 4
    assert (features.grad[0].abs().sum(1) > 0).tolist() == [True, False, True, False]
    # No slots at all are the same as slots without images.
    none = (torch.zeros(1, 0, 5), torch.zeros(1, 0, dtype=torch.bool))
    alone = fusion(states[1:], *none, words[1:])
    torch.testing.assert_close(alone, fused[1:])


def test_the_order_of_images_does_not_matter_and_the_number_of_texts_must_agree() -> None:
    torch.manual_seed(0)
    fusion = Fusion(FusionConfig(5, 6, 2)).double().eval()
    states = torch.randn(1, 3, 6, dtype=torch.float64)
    features = torch.randn(1, 4, 5, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True]])
    order = [3, 2, 0, 1]
    with torch.no_grad():
        one = fusion(states, features, mask)
        other = fusion(states, features[:, order], mask[:, order])
        with pytest.raises(ValueError, match="expected the images of 1 texts, got 2"):
            fusion(states, features, mask.repeat(2, 1))
    torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_image_dropout_takes_all_images_of_a_text_and_only_in_training() -> None:
    torch.manual_seed(0)
    fusion = Fusion(FusionConfig(5, 6, 2, "sum", image_dropout=0.25))
    fusion.reset(std=0.5)
    states = torch.zeros(4000, 1, 6)
    features = torch.ones(4000, 3, 5)
    mask = torch.ones(4000, 3, dtype=torch.bool)
    with torch.no_grad():
        kept = fusion(states, features, mask).abs().sum((1, 2)) > 0
        whole = fusion.eval()(states, features, mask)
    share = float(kept.float().mean())
    assert abs(share - 0.75) < 5 * (0.75 * 0.25 / 4000) ** 0.5
    assert bool((whole.abs().sum((1, 2)) > 0).all())


@pytest.mark.parametrize("kind", ["attention", "bi-attention"])
def test_attention_alone_has_no_identity_start(kind: str) -> None:
    with pytest.raises(ValueError, match=f"{kind} lets no state through"):
        Fusion(FusionConfig(5, 6, 2, kind)).reset("identity")


@pytest.mark.parametrize("kind", THROUGH)
def test_the_identity_start_lets_the_states_through(kind: str) -> None:
    torch.manual_seed(0)
    fusion = Fusion(FusionConfig(5, 6, 2, kind)).eval()
    fusion.reset("identity")
    states = torch.randn(2, 3, 6)
    with torch.no_grad():
        fused = fusion(states, torch.randn(2, 4, 5), torch.ones(2, 4, dtype=torch.bool))
    expected = states
    if kind == "paper":
        expected = torch.nn.functional.layer_norm(states, (6,))
    elif kind != "sum":
        expected = states * (1 - 1 / (1 + np.exp(4.0)))
    torch.testing.assert_close(fused, expected)


# ------------------------------------------------------------------------------------------- counts


def parameters(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(
    ("features", "hidden", "heads", "count"),
    [(1280, 384, 12, 1_231_872), (2048, 768, 12, 4_528_128), (2048, 512, 8, 2_363_392)],
)
def test_parameters_of_the_fusion(features: int, hidden: int, heads: int, count: int) -> None:
    with torch.device("meta"):
        assert parameters(Fusion(FusionConfig(features, hidden, heads))) == count


def test_parameters_of_bert_with_a_head_and_a_fusion() -> None:
    from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

    with torch.device("meta"):
        snli = BertForSequenceClassification(BertConfig(num_labels=3))
        uncased = BertForTokenClassification(BertConfig(num_labels=9))
        cased = BertForTokenClassification(BertConfig(vocab_size=28_996, num_labels=9))
        fusion = Fusion(config_for(snli, 2048))
    assert fusion.config == FusionConfig(2048, 768, 12, "paper", 0.1, 0.1, 0.0, 1e-12)
    assert parameters(snli) == 109_484_547
    assert parameters(snli) + parameters(fusion) == 114_012_675
    assert parameters(uncased) == 108_898_569
    assert parameters(cased) == 107_726_601
    assert parameters(cased) + parameters(fusion) == 112_254_729


def test_parameters_of_a_transformer_base_with_a_fusion() -> None:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=40_000,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        dropout=0.1,
        attention_dropout=0.1,
        max_position_embeddings=1024,
        pad_token_id=0,
        share_encoder_decoder_embeddings=True,
    )
    with torch.device("meta"):
        net = MarianMTModel(config)
        fusion = Fusion(config_for(net, 2048))
    learned = sum(p.numel() for name, p in net.named_parameters() if "embed_positions" not in name)
    assert fusion.config == FusionConfig(2048, 512, 8, "paper", 0.1, 0.1, 0.0, 1e-5)
    assert learned == 64_618_496
    assert learned + parameters(fusion) == 66_981_888


# ------------------------------------------------------------------------ in transformers networks


def tiny_bert() -> Any:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
        num_labels=3,
    )
    return BertForSequenceClassification(config).eval()


def tiny_marian() -> Any:
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(0)
    config = MarianConfig(
        vocab_size=20,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config).eval()


def shown(texts: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    mask = torch.ones(texts, 3, dtype=torch.bool)
    mask[-1, 1:] = False
    return torch.randn(texts, 3, 4, generator=generator), mask


IDS = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])


def test_the_head_of_a_network_reads_the_fused_states() -> None:
    net = tiny_bert()
    fusion = Fusion(config_for(net, 4)).eval()
    fusion.reset(std=0.5)
    names = list(net.state_dict())
    with torch.no_grad():
        plain = net(input_ids=IDS).logits
        states = net.bert.encoder(net.bert.embeddings(IDS))[0]
        expected = net.classifier(net.bert.pooler(fusion(states, *shown())))
        handle = fusion.attach(net)
        with fusion.show(*shown()):
            fused = net(input_ids=IDS).logits
        with pytest.raises(RuntimeError, match=r"Fusion\.show"):
            net(input_ids=IDS)
        handle.remove()
        again = net(input_ids=IDS).logits
    torch.testing.assert_close(fused, expected)
    assert not torch.allclose(fused, plain)
    assert torch.equal(again, plain)
    assert list(net.state_dict()) == names


SHAPE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
    "initializer_range": 0.5,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "bert": SHAPE,
    "roberta": SHAPE,
    "xlm-roberta": SHAPE,
    "camembert": SHAPE,
    "electra": SHAPE | {"embedding_size": 16},
    "albert": SHAPE | {"embedding_size": 16},
    "mpnet": SHAPE,
    "deberta": SHAPE,
    "deberta-v2": SHAPE,
    "distilbert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "vocab_size": 50},
}


@pytest.mark.parametrize("as_tuple", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_of_every_family_reads_the_images(family: str, as_tuple: bool) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **FAMILIES[family], return_dict=not as_tuple)
    net = AutoModelForSequenceClassification.from_config(config).eval()
    fusion = Fusion(config_for(net, 4)).eval()
    fusion.reset(std=0.5)
    features, mask = shown()

    def logits(images: Tensor) -> Tensor:
        with torch.no_grad(), fusion.show(images, mask):
            found = net(input_ids=IDS, attention_mask=torch.ones_like(IDS))
        return found[0]  # type: ignore[no-any-return]

    fusion.attach(net)
    first = logits(features)
    assert torch.equal(logits(features), first)
    assert not torch.allclose(logits(-features), first)


@pytest.mark.parametrize("beams", [1, 4])
def test_translation_reads_the_fused_states_also_in_beam_search(beams: int) -> None:
    net = tiny_marian()
    fusion = Fusion(config_for(net, 4)).eval()
    fusion.reset(std=2.0)
    how = {"num_beams": beams, "max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        plain = net.model.encoder(input_ids=IDS)
        states = type(plain)(last_hidden_state=fusion(plain.last_hidden_state, *shown()))
        loss = net(encoder_outputs=states, attention_mask=torch.ones_like(IDS), labels=IDS).loss
        # A search with beams repeats the rows of what it is given, in place.
        expected = net.generate(encoder_outputs=states, attention_mask=torch.ones_like(IDS), **how)
        handle = fusion.attach(net)
        with fusion.show(*shown()):
            found = net.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), **how)
            fused = net(input_ids=IDS, attention_mask=torch.ones_like(IDS), labels=IDS).loss
        handle.remove()
    assert torch.equal(found, expected)
    assert torch.equal(fused, loss)


def test_images_read_the_words_of_a_network_and_no_padding() -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    other = torch.where(mask.bool(), IDS, 11)  # what is written into padding does not matter
    bert, marian = tiny_bert(), tiny_marian()
    for net, encoder in ((bert, bert.bert), (marian, marian.model.encoder)):
        fusion = Fusion(config_for(net, 4, "bi-attention")).eval()
        fusion.reset(std=1.0)
        with torch.no_grad():
            plain = encoder(input_ids=IDS, attention_mask=mask).last_hidden_state
            expected = fusion(plain, *shown(), mask.bool())
            handle = fusion.attach(net)
            with fusion.show(*shown()):
                fused = encoder(input_ids=IDS, attention_mask=mask).last_hidden_state
                padded = encoder(input_ids=other, attention_mask=mask).last_hidden_state
            with pytest.raises(ValueError, match="a mask of words"), fusion.show(*shown()):
                encoder(input_ids=IDS)
            handle.remove()
            assert torch.equal(encoder(input_ids=IDS, attention_mask=mask)[0], plain)
        torch.testing.assert_close(fused, expected)
        assert not torch.allclose(fused[1, :2], fusion(plain, *shown(), mask.bool() | True)[1, :2])
        torch.testing.assert_close(padded[0], fused[0])
        torch.testing.assert_close(padded[1, :2], fused[1, :2])


def test_networks_that_images_cannot_be_fused_into_are_refused() -> None:
    net = torch.nn.Linear(2, 2)
    net.config = dataclasses.make_dataclass("C", [("model_type", str)])("mlp")  # type: ignore[assignment]
    with pytest.raises(DataError, match="fused into a mlp") as caught:
        config_for(net, 4)
    assert caught.value.code == Exit.CONFIG
    with pytest.raises(DataError, match="it has no encoder"):
        Fusion(FusionConfig(2, 2, 1)).attach(net)
    with pytest.raises(DataError, match="5 heads do not divide the 8"):
        Fusion(FusionConfig(2, 8, 5))


# -------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_fusion_opens_with_the_same_weights(tmp_path: Path, kind: str) -> None:
    fusion = Fusion(FusionConfig(4, 8, 2, kind, image_dropout=0.5))
    fusion.reset(std=0.3)
    assert fusion_of(str(tmp_path)) is None
    save_fusion(tmp_path, fusion, {"ref": "r", "fingerprint": "f"})
    assert fusion_of(str(tmp_path)) == fingerprint(fusion)
    found, backbone = open_fusion(str(tmp_path))
    assert found.config == fusion.config
    assert backbone == {"ref": "r", "fingerprint": "f"}
    for name, tensor in fusion.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)


def test_damaged_files_of_a_fusion_are_refused(tmp_path: Path) -> None:
    save_fusion(tmp_path, Fusion(FusionConfig(4, 8, 2)), {})
    facts = json.loads((tmp_path / "fusion.json").read_text())
    weights = (tmp_path / "fusion.safetensors").read_bytes()
    (tmp_path / "fusion.safetensors").write_bytes(weights[:-9])
    with pytest.raises(DataError, match="not a readable safetensors file"):
        open_fusion(str(tmp_path))
    (tmp_path / "fusion.safetensors").write_bytes(weights[:-1] + b"\x01")
    with pytest.raises(DataError, match=r"fusion\.json has"):
        open_fusion(str(tmp_path))
    (tmp_path / "fusion.safetensors").write_bytes(weights)
    facts["fusion"]["kind"] = 3
    (tmp_path / "fusion.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="expected kind str, got 3"):
        open_fusion(str(tmp_path))
    facts["fusion"] = dataclasses.asdict(FusionConfig(4, 4, 2))
    (tmp_path / "fusion.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="lacks 14 weights of its architecture"):
        open_fusion(str(tmp_path))
    (tmp_path / "fusion.safetensors").unlink()
    with pytest.raises(DataError, match="is missing") as caught:
        open_fusion(str(tmp_path))
    assert caught.value.code == Exit.NO_INPUT
