"""XDBERT's layers against numbers worked out by hand, its counts, its losses, its runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModel,
    BertConfig,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    ElectraConfig,
)

from tests.systems.xdbert.test_pairs import batch_of, corpus_of
from tests.tiny.clip import clip_tokenizer, new_tower
from tests.tiny.lm import SHAPE, make_tokenizer
from tests.tiny.visual import encoder_of
from vgtools.io.errors import DataError, Exit
from vgtools.models.encoder import Encoder, as_encoder
from vgtools.models.layers import Attention
from vgtools.models.masked_lm import mlm_hidden, new_lm
from vgtools.systems.xdbert.model import (
    LOSSES,
    CrossLayer,
    Shape,
    Stream,
    XDBert,
    XDBertConfig,
    XDBertCrossModal,
    halve,
)
from vgtools.systems.xdbert.pairs import PairMasking, TeacherText, collate

STUDENT = BertConfig()
ELECTRA_LARGE = ElectraConfig(
    embedding_size=1024,
    hidden_size=1024,
    num_hidden_layers=24,
    num_attention_heads=16,
    intermediate_size=4096,
)
TOWER = CLIPTextConfig()


def fill(layers: list[nn.Linear]) -> None:
    """Fill linear layers by their number i, from 1: W[r][c] and b[r] of the design."""
    with torch.no_grad():
        for i, layer in enumerate(layers, 1):
            r = torch.arange(layer.out_features)[:, None]
            c = torch.arange(layer.in_features)[None]
            layer.weight.copy_(((r + 2 * c + i) % 5 - 2) / 10)
            layer.bias.copy_(((r[:, 0] + i) % 3 - 1) / 10)


def parts(attention: Attention) -> list[nn.Linear]:
    return [attention.query, attention.key, attention.value, attention.out]


def test_the_worked_layer() -> None:
    """The numbers are of a script of its own in numpy, without any of this code."""
    layer = CrossLayer(Shape(4, 2, 3, 1, 5)).double().eval()
    ours, theirs = layer.student, layer.teacher
    order = [*parts(ours.across), *parts(theirs.across), *parts(ours.within), *parts(theirs.within)]
    fill([*order, ours.up, ours.down, theirs.up, theirs.down])
    states = torch.tensor([[[1, 0, -1, 2], [0, 1, 0.5, -1]]], dtype=torch.float64)
    seen = torch.tensor([[[1, -1, 0], [0.5, 2, -1], [3, 3, 3]]], dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    seen_mask = torch.tensor([[True, True, False]])
    with torch.no_grad():
        found = layer(states, mask, seen, seen_mask)
        again, (weights, _) = layer.maps(states, mask, seen, seen_mask)
    assert weights[0, 0].numpy() == pytest.approx(
        np.array([[0.533537, 0.466463, 0], [0.517229, 0.482771, 0]]), abs=6e-7
    )
    expected = (
        [[0.288565, -0.312138, -1.370064, 1.393637], [-0.228890, 1.153317, 0.584254, -1.508680]],
        [
            [1.322889, -1.094427, -0.228462],
            [0.244382, 1.084129, -1.328511],
            [1.413441, -0.747196, -0.666245],
        ],
    )
    for got, with_maps, wanted in zip(found, again, expected, strict=True):
        assert got[0].numpy() == pytest.approx(np.array(wanted), abs=6e-7)
        assert with_maps.numpy() == pytest.approx(got.numpy(), abs=1e-14)


def plain(attention: Attention, x: Tensor, context: Tensor, mask: Tensor) -> Tensor:
    """Attention with loops over rows and heads, padding cut off."""
    rows = []
    for own, other, real in zip(x, context, mask, strict=True):
        other = other[real]
        query = F.linear(own, attention.query.weight, attention.query.bias)
        key = F.linear(other, attention.key.weight, attention.key.bias)
        value = F.linear(other, attention.value.weight, attention.value.bias)
        size = query.shape[1] // attention.heads
        heads = []
        for head in range(attention.heads):
            part = slice(head * size, (head + 1) * size)
            weights = (query[:, part] @ key[:, part].T / size**0.5).softmax(-1)
            heads.append(weights @ value[:, part])
        rows.append(attention.out(torch.cat(heads, 1)))
    return torch.stack(rows)


@pytest.mark.parametrize(("width", "heads", "other"), [(6, 2, 4), (4, 4, None), (8, 1, 8)])
def test_attention_to_another_sequence(width: int, heads: int, other: int | None) -> None:
    torch.manual_seed(0)
    attention = Attention(width, heads, other).double()
    x = torch.randn(3, 5, width, dtype=torch.float64)
    context = torch.randn(3, 7, other or width, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor([7, 1, 4])[:, None]
    with torch.no_grad():
        expected = plain(attention, x, context, mask)
        for weights in (False, True):
            got, found = attention(x, context, mask, weights)
            assert got.numpy() == pytest.approx(expected.numpy(), abs=1e-14)
    assert found.shape == (3, heads, 5, 7)
    assert found.sum(-1).numpy() == pytest.approx(np.ones((3, heads, 5)), abs=1e-14)
    assert (found[1, ..., 1:] == 0).all()


def test_attention_drops_weights_only_in_training() -> None:
    attention = Attention(4, 2, dropout=0.5)
    x = torch.randn(1, 30, 4)
    mask = torch.ones(1, 30, dtype=torch.bool)
    for weights in (False, True):
        drawn = [attention(x, x, mask, weights)[0] for _ in range(2)]
        assert not torch.equal(*drawn)
    attention.eval()
    assert torch.equal(*(attention(x, x, mask)[0] for _ in range(2)))


def test_a_width_that_heads_cannot_share_is_refused() -> None:
    with pytest.raises(DataError, match="the width 6 is not a multiple of 4") as error:
        Attention(6, 4)
    assert error.value.code == Exit.CONFIG
    with pytest.raises(DataError, match="projection to 500 numbers is not a multiple of its 8"):
        Shape.of(STUDENT, CLIPTextConfig(projection_dim=500))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameters_of_a_layer() -> None:
    """Exact counts, of weights that are never made."""
    with torch.device("meta"):
        base = CrossLayer(Shape.of(STUDENT, TOWER))
        large = CrossLayer(Shape.of(ELECTRA_LARGE, TOWER))

    def of(stream: Stream) -> tuple[int, int, int]:
        across = count(stream.across) + count(stream.across_norm)
        within = count(stream.within) + count(stream.within_norm)
        return across, within, count(stream) - across - within

    assert of(base.student) == (1_970_688, 2_363_904, 4_723_968)
    assert of(base.teacher) == (1_313_792, 1_051_648, 3_150_336)
    assert (count(base), count(large)) == (14_574_336, 22_575_616)


@pytest.mark.parametrize(
    ("student", "total"),
    [(STUDENT, 202_059_009), (ELECTRA_LARGE, 442_671_617), (ElectraConfig(
        embedding_size=768, hidden_size=768, num_attention_heads=12, intermediate_size=3072,
    ), 201_468_417)],
)  # fmt: skip
def test_parameters_of_table_6(student: object, total: int) -> None:
    """Heads and a new pooler are not counted, the scale of CLIP's logits is.

    The paper prints BERT's number for ELECTRA base, too, which has no pooler.
    """
    with torch.device("meta"):
        layers = [CrossLayer(Shape.of(student, TOWER)) for _ in range(2)]
        parts = [AutoModel.from_config(student), CLIPTextModelWithProjection(TOWER), *layers]
    assert 1 + sum(map(count, parts)) == total


def test_the_pooler_reads_the_first_state() -> None:
    cross = XDBertCrossModal(Shape(8, 2, 4, 2, 12), 1)
    states = torch.randn(2, 3, 8)
    expected = torch.tanh(states[:, 0] @ cross.pooler.weight.T + cross.pooler.bias)
    torch.testing.assert_close(cross.pool(states), expected)


def test_the_last_view_of_the_teacher_can_be_left_out() -> None:
    torch.manual_seed(0)
    cross = XDBertCrossModal(Shape(8, 2, 4, 2, 12), 2).eval()
    states, seen = torch.randn(2, 5, 8), torch.randn(2, 6, 4)
    mask, seen_mask = torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 6, dtype=torch.bool)
    with torch.no_grad():
        whole = cross(states, mask, seen, seen_mask)
        part = cross(states, mask, seen, seen_mask, both=False)
    assert torch.equal(whole[0], part[0])
    assert not torch.equal(whole[1], part[1])
    assert cross.pool(whole[0]).shape == (2, 8)


# ------------------------------------------------------------------------------------------- losses


def model_of(losses: tuple[str, ...] = LOSSES, **changes: object) -> XDBert:
    """Return a random model whose parts all matter."""
    student = encoder_of()
    torch.manual_seed(1)
    model = XDBert(student.model, new_tower(), XDBertConfig(), losses, **changes)
    with torch.no_grad():
        for weight in model.cross.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model


def test_losses_are_sums_over_the_counts_of_a_step() -> None:
    """Worked from the outputs with the whole table of logits, row by row, in float64."""
    corpus = corpus_of(240)
    model = model_of().double().eval()
    batch = batch_of(corpus, list(range(6)), [0, 5, 2, 3, 3, 1])
    batch = batch._replace(token_count=7.0, row_count=12.0, clip_count=5.0)
    with torch.no_grad():
        losses = {name: float(value) for name, value in model(batch).items()}
        seen, seen_mask = model.see(batch)
        encoded = model.lm.base_model(batch.ids, batch.attention).last_hidden_state
        states, seen = model.cross(encoded, batch.attention.bool(), seen, seen_mask)
        head = mlm_hidden(model.lm)
        logits = model.lm.get_output_embeddings()(head(states)).flatten(0, 1)[batch.masked]
        mlm = F.cross_entropy(logits, batch.tokens, reduction="sum")
        match = F.cross_entropy(model.match(model.cross.pool(states)), batch.same, reduction="sum")
        clip = 0.0
        for row in range(6):
            length = int(batch.lengths[row, 0])
            for place in range(length):
                if batch.chosen[row, 0, place] >= 0:
                    hidden = model.clip_token.hidden(seen[row, place])
                    table = model.teacher.get_input_embeddings().weight
                    scores = table @ hidden + model.clip_token.bias
                    clip -= scores.log_softmax(0)[batch.blocks[row, 0, place]]
    assert losses == pytest.approx(
        {"mlm": float(mlm) / 7, "match": float(match) / 12, "clip_token": float(clip) / 5}, rel=1e-5
    )


def test_the_halves_of_a_batch_add_up() -> None:
    model = model_of().eval()
    batch = batch_of(corpus_of(240), list(range(5)), [0, 4, 2, 3, 1])
    with torch.no_grad():
        whole = model(batch)
        parts = [model(part) for part in halve(batch)]
    for name in LOSSES:
        assert float(sum(part[name] for part in parts)) == pytest.approx(
            float(whole[name]), rel=1e-5
        )


def test_a_frozen_teacher_gets_no_gradient() -> None:
    batch = batch_of(corpus_of(240), [0, 1], [0, 3])
    for frozen in (False, True):
        model = model_of(freeze_teacher=frozen).train()
        sum(model(batch).values()).backward()
        grads = [p.grad is not None for p in model.teacher.parameters()]
        assert any(grads) != frozen
        assert model.teacher.training != frozen
        assert all(p.grad is not None for p in model.cross.parameters())


@pytest.mark.parametrize(
    "kind",
    [
        "bert",
        pytest.param("roberta", marks=pytest.mark.slow),
        pytest.param("electra", marks=pytest.mark.slow),
    ],
)
def test_all_three_losses_fall(kind: str) -> None:
    """8 rows, learned by heart: every part of the model takes part."""
    student = student_of(kind)
    torch.manual_seed(0)
    model = XDBert(student.model, new_tower(hidden_size=32, projection_dim=32), XDBertConfig())
    texts = TeacherText.of(student, as_encoder(new_tower(), clip_tokenizer(), "tiny"), 16)
    recipe = PairMasking.of(student.tokenizer)
    numbers, others = np.arange(8), np.array([0, 3, 2, 1, 4, 7, 6, 5])
    (batch,) = collate(corpus_of(96), numbers, others, recipe, texts, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(60):
        losses = model(batch)
        sum(losses.values()).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not step:
            first = {name: float(value.detach()) for name, value in losses.items()}
    assert 0.5 < first["match"] < 1.0
    for name, value in losses.items():
        assert float(value.detach()) < 0.3 * first[name], name


def student_of(kind: str) -> Encoder:
    """Return a tiny student of a family, with its head of masked words."""
    changes = {
        "bert": {},
        "roberta": {"max_position_embeddings": 67},
        "electra": {"embedding_size": 16},
    }[kind]
    torch.manual_seed(0)
    words = make_tokenizer()
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    values = SHAPE | still | changes | {"model_type": kind, "hidden_size": 32}
    return as_encoder(new_lm(values, words), words, "tiny")
