"""The sentence-image retriever: values worked by hand, float64 loops, parameter counts."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest
import torch
from torch import Tensor

from vgtools.io.settings import configured
from vgtools.systems.visual_awareness.recipe import (
    PAPER,
    RetrieverConfig,
    RetrieverSettings,
)
from vgtools.systems.visual_awareness.retriever import (
    SRU,
    ImagePath,
    Retriever,
    RetrieverBatch,
    info_nce,
    scan,
    triplet_loss,
    weldon,
)

X = torch.tensor([[1.0, 0], [0, 1], [-1, 2]], dtype=torch.float64)  # (T, 2): one text


def sru_of(*columns: list[list[float]], bias: list[float]) -> SRU:
    """Return one layer whose matrices are given as y = W x."""
    matrices = [torch.tensor(c, dtype=torch.float64) for c in columns]
    sru = SRU(matrices[0].shape[1], matrices[0].shape[0], 1).double().eval()
    with torch.no_grad():
        sru.weights[0].copy_(torch.cat([m.T for m in matrices], 1))
        sru.biases[0].copy_(torch.tensor(bias))
    return sru


def test_sru_by_hand() -> None:
    sru = sru_of(
        [[1, 0], [0.5, -1]], [[0, 1], [1, 0]], [[1, 1], [0, -1]], bias=[0.0, 1.0, 0.5, 0.0]
    )
    expected = [
        [0.5602407166, 0.0297654932],
        [0.2862124295, 0.6714531935],
        [-0.0188936331, 1.6570514929],
    ]
    torch.testing.assert_close(
        sru(X, [1, 1, 1]), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=6e-11
    )


def test_sru_by_hand_where_widths_differ() -> None:
    sru = sru_of([[1, 1]], [[0, 1]], [[1, 0]], [[2, -1]], bias=[0.0, 0.0])
    expected = torch.tensor([0.8757175549, -0.2194385171, -2.7654928285], dtype=torch.float64)
    torch.testing.assert_close(sru(X, [1, 1, 1])[:, 0], expected, rtol=0, atol=6e-11)


def test_states_by_hand() -> None:
    inputs = X @ torch.tensor([[1, 0.5], [0, -1]], dtype=torch.float64)
    forget = (X @ torch.tensor([[0.0, 1], [1, 0]], dtype=torch.float64)) + torch.tensor([0.0, 1])
    expected = [
        [0.5, 0.0596014610],
        [0.3655292893, -0.2253692620],
        [0.2027542079, -1.3626846310],
    ]
    torch.testing.assert_close(
        scan(inputs, forget.sigmoid(), [1, 1, 1]),
        torch.tensor(expected, dtype=torch.float64),
        rtol=0,
        atol=6e-11,
    )


def test_scan_has_the_gradient_of_the_loop() -> None:
    torch.manual_seed(0)
    sizes = [3, 3, 2, 1]
    inputs = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    forget = torch.rand(9, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, f: scan(z, f, sizes), (inputs, forget))
    state = torch.zeros(3, 2, dtype=torch.float64)
    states = []
    for z, f in zip(inputs.split(sizes), forget.split(sizes), strict=True):
        state = f * state[: len(z)] + (1 - f) * z
        states.append(state)
    torch.testing.assert_close(scan(inputs, forget, sizes), torch.cat(states))


def test_dropout_of_the_sru_has_one_mask_per_text_and_none_in_evaluation() -> None:
    torch.manual_seed(0)
    sru = SRU(64, 4, 1, 0.5)
    words = torch.ones(5, 64)
    texts = torch.tensor([0, 1, 0, 1, 0])
    masked = sru._drop(words, texts)
    assert set(masked.unique().tolist()) == {0, 2}
    assert (masked[texts == 0] == masked[0]).all()
    assert (masked[texts == 1] == masked[1]).all()
    assert (masked[0] != masked[1]).any()
    sru.eval()
    assert sru._drop(words, texts) is words


def test_dropout_masks_inputs_before_the_product_and_the_gate_but_of_the_last_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    sru = SRU(3, 2, 3).double()
    for bias in sru.biases:
        torch.nn.init.normal_(bias)
    monkeypatch.setattr(sru, "_drop", lambda x, texts: 2 * x)  # what is dropped is seen by this
    words = torch.randn(4, 3, dtype=torch.float64)
    found = sru(words, [1] * 4)
    x = words
    for layer, (weight, bias) in enumerate(zip(sru.weights, sru.biases, strict=True)):
        states, state = [], torch.zeros(2, dtype=torch.float64)
        for word in x:
            z, f, r, *skip = (2 * word @ weight).split(2)
            forget, reset = (f + bias[:2]).sigmoid(), (r + bias[2:]).sigmoid()
            state = forget * state + (1 - forget) * z
            skipped = skip[0] if skip else word
            reset = reset if layer == 2 else 2 * reset
            states.append(skipped + (state.tanh() - skipped) * reset)
        x = torch.stack(states)
    torch.testing.assert_close(found, x)


def test_weldon_by_hand() -> None:
    maps = torch.tensor([3.0, 1, -2, 0.5])[:, None]
    assert weldon(maps, 1).tolist() == [1.0]
    assert weldon(maps, 2).tolist() == [1.25]
    assert weldon(maps, 4).tolist() == [1.25]


def test_weldon_is_that_of_a_sort() -> None:
    torch.manual_seed(0)
    maps = torch.randn(3, 49, 7, dtype=torch.float64)
    ordered = maps.sort(1).values
    expected = ordered[:, :15].mean(1) + ordered[:, -15:].mean(1)
    torch.testing.assert_close(weldon(maps, 15), expected)


# --------------------------------------------------------------------------------------- losses

SCORES = torch.tensor([[0.9, 0.3, 0.8], [0.2, 0.5, 0.4], [0.85, 0.1, 0.6]], dtype=torch.float64)
TOLERANCE = 1e-12


def triplet(scores: Tensor, photos: list[int], **options: bool) -> float:
    ids = torch.tensor(photos)
    wrong = ids[:, None] != ids
    return float(triplet_loss(scores, torch.arange(len(ids)), wrong, 0.2, **options))


def test_triplet_loss_by_hand() -> None:
    assert triplet(SCORES, [0, 1, 2]) == pytest.approx(1.2, abs=TOLERANCE)
    assert triplet(SCORES, [0, 1, 0]) == pytest.approx(0.1, abs=TOLERANCE)
    negative = torch.tensor([[-0.5, 0.1], [0.2, -0.4]], dtype=torch.float64)
    assert triplet(negative, [0, 1]) == pytest.approx(3.2, abs=TOLERANCE)


def test_triplet_loss_over_all_negatives_is_the_mean_of_hinges() -> None:
    expected = 0.0
    for i in range(3):
        for others in (SCORES[i], SCORES[:, i]):
            hinges = [max(0.0, 0.2 - SCORES[i, i] + others[j]) for j in range(3) if j != i]
            expected += float(sum(hinges)) / 2
    assert triplet(SCORES, [0, 1, 2], hardest=False) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("hardest", [True, False])
def test_a_batch_of_one_photo_has_no_loss_and_no_gradient(hardest: bool) -> None:
    scores = torch.tensor([[0.1, -0.3]], requires_grad=True)
    own = torch.tensor([0, 0])
    loss = triplet_loss(scores, own, torch.zeros(1, 2, dtype=torch.bool), hardest=hardest)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss == 0
    assert scores.grad is not None
    assert scores.grad.tolist() == [[0, 0]]


def test_triplet_loss_is_the_same_with_a_photo_once_or_once_per_caption() -> None:
    torch.manual_seed(0)
    scores = torch.randn(4, 9, dtype=torch.float64)
    own = torch.tensor([0, 1, 1, 2, 3, 3, 3, 0, 2])
    once = triplet_loss(scores, own, torch.arange(4)[:, None] != own)
    repeated = triplet_loss(scores[own], torch.arange(9), own[:, None] != own)
    torch.testing.assert_close(once, repeated)


def test_info_nce_leaves_the_photo_s_other_captions_out() -> None:
    scores = torch.tensor([[1.0, 2.0, 0.5], [0.3, -1.0, 0.7]], dtype=torch.float64)
    own = torch.tensor([0, 0, 1])
    wrong = torch.tensor([0, 1])[:, None] != own
    e = math.exp
    images = [  # captions choose among both images
        -math.log(e(2.0) / (e(2.0) + e(0.6))),
        -math.log(e(4.0) / (e(4.0) + e(-2.0))),
        -math.log(e(1.4) / (e(1.0) + e(1.4))),
    ]
    captions = [  # image 0 chooses between its own caption and caption 2
        -math.log(e(2.0) / (e(2.0) + e(1.0))),
        -math.log(e(4.0) / (e(4.0) + e(1.0))),
        -math.log(e(1.4) / (e(0.6) + e(-2.0) + e(1.4))),
    ]
    expected = (sum(images) + sum(captions)) / 6
    found = info_nce(scores, own, wrong, torch.tensor(2.0, dtype=torch.float64))
    assert float(found) == pytest.approx(expected, abs=TOLERANCE)


# -------------------------------------------------------------------------------------- network


def tiny(**settings: object) -> RetrieverConfig:
    values = {"dim": 6, "layers": 2, "regions": 2, "loss": "triplet", **settings}
    return configured(RetrieverConfig, values, text_width=5, image_width=7)


def some_batch(epoch: int = 0) -> RetrieverBatch:
    torch.manual_seed(1)
    return RetrieverBatch(
        words=torch.randn(4, 3, 5),
        lengths=torch.tensor([4, 1, 2]),
        feats=torch.randn(2, 9, 7),
        own=torch.tensor([0, 1, 0]),
        epoch=epoch,
    )


def test_what_follows_a_text_changes_nothing() -> None:
    torch.manual_seed(0)
    retriever = Retriever(tiny()).eval()
    batch = some_batch()
    whole = retriever.embed_texts(batch.words, batch.lengths)
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(3))
    alone = retriever.embed_texts(batch.words[:2, 2:], batch.lengths[2:])
    torch.testing.assert_close(whole[2:], alone)


def test_every_text_keeps_its_place_whatever_its_length() -> None:
    # By length their order is 2, 0, 3, 1, which is not its own inverse.
    retriever = Retriever(tiny()).eval()
    words = torch.randn(4, 4, 5, generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([3, 1, 4, 2])
    together = retriever.embed_texts(words, lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = retriever.embed_texts(words[:length, i : i + 1], lengths[i : i + 1])
        torch.testing.assert_close(together[i : i + 1], alone)


def test_the_text_path_learns_from_its_epoch_on() -> None:
    retriever = Retriever(tiny(text_from=2))
    for epoch, learns in ((1, False), (2, True)):
        retriever.zero_grad()
        retriever(some_batch(epoch))["triplet"].backward()
        assert (retriever.text.sru.weights[0].grad is not None) is learns
        assert retriever.image.conv.weight.grad is not None


@pytest.mark.parametrize("loss", get_args(get_type_hints(RetrieverSettings)["loss"]))
def test_every_loss_that_can_be_chosen_reaches_all_weights(loss: str) -> None:
    network = Retriever(tiny(loss=loss)).train()
    losses = network(some_batch())
    assert losses.keys() == {loss}
    losses[loss].backward()
    for name, weight in network.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.any(), name


def test_the_first_epochs_take_all_negatives() -> None:
    torch.manual_seed(0)
    retriever = Retriever(tiny(warm_epochs=1)).eval()
    batch = some_batch()
    scores = retriever.embed_images(batch.feats) @ retriever.embed_texts(*batch[:2]).T
    wrong = torch.tensor([0, 1])[:, None] != batch.own
    warm = triplet_loss(scores, batch.own, wrong, hardest=False)
    torch.testing.assert_close(retriever(batch)["triplet"], warm)
    hard = triplet_loss(scores, batch.own, wrong)
    torch.testing.assert_close(retriever(some_batch(1))["triplet"], hard)


def test_an_encoder_s_states_take_the_place_of_the_sru() -> None:
    torch.manual_seed(0)
    retriever = Retriever(tiny(text="encoder", loss="info_nce")).eval()
    means = torch.randn(1, 3, 5)
    expected = retriever.text.mlp(means[0])
    found = retriever.embed_texts(means, torch.tensor([3, 1, 2]))
    torch.testing.assert_close(found, expected / expected.norm(dim=1, keepdim=True))


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameter_counts_of_the_paper() -> None:
    with torch.device("meta"):
        retriever = Retriever(configured(RetrieverConfig, PAPER, text_width=620, image_width=2048))
    assert count(retriever.text) == 57_811_200
    assert [weight.numel() + 4800 for weight in retriever.text.sru.weights] == [
        5_956_800,
        *[17_284_800] * 3,
    ]
    assert isinstance(retriever.image, ImagePath)
    assert count(retriever.image.conv) == 4_917_600
    assert count(retriever.image.fc) == 5_762_400
    assert count(retriever) == 68_491_200
