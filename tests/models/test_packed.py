"""The packed encoder against the models' own forward, and how little a pack's other rows matter."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.precision import assert_as_exact_as
from tests.tiny import WIDTH, save_encoder, text
from vgtools.io.errors import DataError, Exit
from vgtools.models import products
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.masked_lm import SHAPES, linear_cross_entropy
from vgtools.models.packed import PackedEncoder
from vgtools.text.tokens import Tokens, tokenize

KINDS = ("bert", "roberta", "distilbert")


def load(folder: Path, kind: str) -> Encoder:
    return load_encoder(str(save_encoder(folder, kind, positions=64, still=False)))


def in_float64(encoder: Encoder) -> Encoder:
    return replace(encoder, model=copy.deepcopy(encoder.model).double())


def hidden_of(
    encoder: PackedEncoder, tokens: Tokens
) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return each sentence's hidden states in order, and those of [CLS]."""
    lengths = np.diff(tokens.starts)
    found: list[Any] = [None] * len(lengths)
    first = np.zeros((len(lengths), encoder.layers * WIDTH))
    for hidden in encoder(tokens.ids, tokens.starts[:-1], lengths):
        pieces = np.split(hidden.tokens.numpy(), np.cumsum(lengths[hidden.segments])[:-1])
        for segment, piece in zip(hidden.segments.tolist(), pieces, strict=True):
            assert found[segment] is None, "a segment came twice"
            found[segment] = piece
        first[hidden.segments] = hidden.first.numpy()
    return found, first


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("onednn", [True, False])
def test_hidden_states_are_those_of_padded_batches_by_the_models_own_forward(
    tmp_path: Path, kind: str, layers: int, onednn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "is_faster", lambda *given, **named: onednn)
    encoder = load(tmp_path, kind)
    packed = PackedEncoder(encoder, layers, pack=100)
    assert packed.packed is (kind != "distilbert")
    tokens = tokenize(encoder.tokenizer, text(50, longest=40))
    found, first = hidden_of(packed, tokens)
    rows = [encoder.prefix + tokens.row(i)[0].tolist() + encoder.suffix for i in range(50)]
    width = max(map(len, rows))
    ids = torch.tensor([r + [0] * (width - len(r)) for r in rows])
    mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])
    with torch.inference_mode():
        own, exact = (
            torch.cat(
                model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[
                    -layers:
                ],
                -1,
            )
            for model in (encoder.model, in_float64(encoder).model)
        )
    # Both are float32: the packed form may not be further from float64 than the model's own.
    inner = [slice(1, len(row) - 1) for row in rows]
    assert [len(states) for states in found] == [len(row) - 2 for row in rows]
    assert_as_exact_as(
        np.concatenate(found),
        *(torch.cat([t[i, part] for i, part in enumerate(inner)]) for t in (own, exact)),
    )
    assert_as_exact_as(first, own[:, 0], exact[:, 0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_does_not_see_its_neighbours(tmp_path: Path, kind: str) -> None:
    encoder = load(tmp_path, kind)
    tokens = tokenize(encoder.tokenizer, text(60, longest=40))
    together, _ = hidden_of(PackedEncoder(encoder, 2, pack=500), tokens)
    exact, _ = hidden_of(PackedEncoder(in_float64(encoder), 2, pack=500), tokens)
    packed = PackedEncoder(encoder, 2, pack=500)
    some = range(0, 60, 7)
    lengths = np.diff(tokens.starts)
    alone = [
        next(packed(tokens.ids, tokens.starts[i : i + 1], lengths[i : i + 1])).tokens.numpy()
        for i in some
    ]
    # Some libraries sum in another order for another number of rows; a neighbour that is seen
    # changes far more.
    assert_as_exact_as(
        *(
            np.concatenate(states)
            for states in (alone, [together[i] for i in some], [exact[i] for i in some])
        )
    )


def test_more_memory_than_there_is_halves_the_pack_and_keeps_every_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(tmp_path, "bert")
    tokens = tokenize(encoder.tokenizer, text(40))
    wanted, _ = hidden_of(PackedEncoder(encoder, 2), tokens)
    packed = PackedEncoder(encoder, 2)
    forward = packed._forward

    def small(ids: Any, position: Any, runs: Any) -> Any:
        if len(ids) > 100:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot")
        return forward(ids, position, runs)

    monkeypatch.setattr(packed, "_forward", small)
    found, _ = hidden_of(packed, tokens)
    assert packed.halved
    assert packed.pack == 64
    exact, _ = hidden_of(PackedEncoder(in_float64(encoder), 2), tokens)
    assert_as_exact_as(*map(np.concatenate, (found, wanted, exact)))


def test_no_memory_for_a_single_segment_ends_with_70(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(tmp_path, "bert")
    packed = PackedEncoder(encoder, 1)
    monkeypatch.setattr(
        packed, "_forward", lambda *_: (_ for _ in ()).throw(RuntimeError("CUDA out of memory"))
    )
    tokens = tokenize(encoder.tokenizer, ["a b c"])
    with pytest.raises(DataError, match="one segment of 3 tokens") as error:
        list(packed(tokens.ids, tokens.starts[:-1], np.diff(tokens.starts)))
    assert error.value.code == Exit.CANNOT_CONTINUE


def test_other_errors_are_not_taken_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(tmp_path, "bert")
    packed = PackedEncoder(encoder, 1)
    monkeypatch.setattr(
        packed, "_forward", lambda *_: (_ for _ in ()).throw(RuntimeError("shapes disagree"))
    )
    tokens = tokenize(encoder.tokenizer, ["a b", "c"])
    with pytest.raises(RuntimeError, match="shapes disagree"):
        list(packed(tokens.ids, tokens.starts[:-1], np.diff(tokens.starts)))


def test_more_layers_than_there_are_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="expected at least 4 layers, got 3"):
        PackedEncoder(load(tmp_path, "bert"), 4)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("chunk", [1, 3, 10, 64])
def test_chunked_cross_entropy_equals_the_materialised_one(chunk: int, biased: bool) -> None:
    torch.manual_seed(1)
    target = torch.randint(0, 7, (10,))
    sides = []
    for way in ("chunked", "plain", "exact"):
        torch.manual_seed(2)
        kind = torch.float64 if way == "exact" else torch.float32
        rows, weight, bias = (
            torch.randn(*shape).to(kind).requires_grad_() for shape in ((10, 5), (7, 5), (7,))
        )
        bias = bias if biased else None
        if way != "chunked":
            loss = F.cross_entropy(F.linear(rows, weight, bias), target, reduction="sum")
        else:
            loss = linear_cross_entropy(rows, weight, bias, target, chunk=chunk)
        (0.3 * loss).backward()
        sides.append(
            [loss.detach(), rows.grad, weight.grad, *([bias.grad] if bias is not None else [])]
        )
    for mine, plain, exact in zip(*sides, strict=True):
        assert_as_exact_as(mine, plain, exact)


def test_chunked_cross_entropy_in_bfloat16_is_near_and_keeps_float32_gradients() -> None:
    torch.manual_seed(1)
    rows, weight, bias = (
        torch.randn(64, 32, requires_grad=True),
        torch.randn(50, 32, requires_grad=True),
        torch.randn(50),
    )
    target = torch.randint(0, 50, (64,))
    wanted = F.cross_entropy(F.linear(rows, weight, bias), target, reduction="sum")
    exact = torch.autograd.grad(wanted, (rows, weight))
    found = linear_cross_entropy(rows, weight, bias, target, torch.bfloat16, chunk=16)
    assert found.item() == pytest.approx(wanted.item(), rel=5e-3)
    for mine, right in zip(torch.autograd.grad(found, (rows, weight)), exact, strict=True):
        assert mine.dtype == torch.float32
        assert F.cosine_similarity(mine.flatten(), right.flatten(), dim=0) > 0.999


def test_cross_entropy_of_nothing_is_zero_and_needs_no_gradient_in_evaluation() -> None:
    rows, weight = torch.zeros(0, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
    loss = linear_cross_entropy(rows, weight, None, torch.zeros(0, dtype=torch.int64))
    loss.backward()
    assert loss.item() == 0
    assert not weight.grad.any()
    with torch.no_grad():
        assert not linear_cross_entropy(
            torch.ones(2, 5), weight, None, torch.tensor([0, 1])
        ).requires_grad


def test_shapes_are_those_of_the_paper() -> None:
    from transformers import AutoConfig

    for name, (layers, width, heads, inner) in {
        "bert-base": (12, 768, 12, 3072), "bert-small": (6, 512, 8, 2048),
        "roberta-base": (12, 768, 12, 3072), "roberta-small": (6, 512, 8, 2048),
    }.items():  # fmt: skip
        values = dict(SHAPES[name])
        config = AutoConfig.for_model(values.pop("model_type"), **values)
        found = (
            config.num_hidden_layers,
            config.hidden_size,
            config.num_attention_heads,
            config.intermediate_size,
        )
        assert found == (layers, width, heads, inner)
