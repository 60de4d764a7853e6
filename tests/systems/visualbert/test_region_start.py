"""The start of the regions: its loss against loops, and what it finds in planted data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny.lm import make_tokenizer
from tests.tiny.visual import encoder_of, save_captions
from vgtools.images.regions import Regions, RegionSet, open_regions, write_regions
from vgtools.io.errors import DataError
from vgtools.systems.visualbert.captions import VisualBertCaptions, read_captions
from vgtools.systems.visualbert.model import VisualBert, VisualBertConfig, make_visualbert
from vgtools.systems.visualbert.region_start import (
    SHARPNESS,
    STEPS,
    TEMPERATURE,
    align,
    alignment_loss,
    word_weights,
    words_of,
)

WORDS = make_tokenizer()
LETTERS = "abcdefghij"
WIDTH = 12


def brute_force(words: Any, regions: list[Any], has: Any, weights: Any) -> float:
    """Return the loss by loops over words, images and regions."""

    def found(word: Any, own: Any) -> float:
        cosines = [float(word @ r) / (np.linalg.norm(word) * np.linalg.norm(r)) for r in own]
        shares = [math.exp(SHARPNESS * c) for c in cosines]
        return (
            float(sum(s * c for s, c in zip(shares, cosines, strict=True)) / sum(shares))
            / TEMPERATURE
        )

    total, whole = 0.0, 0.0
    for w, word in enumerate(words):
        scores = [found(word, own) for own in regions]
        others = sum(math.exp(s) for s, there in zip(scores, has[w], strict=True) if not there)
        for score, there in zip(scores, has[w], strict=True):
            if there:
                total += weights[w] * -math.log(math.exp(score) / (math.exp(score) + others))
                whole += weights[w]
    return total / whole


def test_the_loss_equals_loops() -> None:
    rng = np.random.default_rng(0)
    words, sizes = rng.standard_normal((5, 4)).astype(np.float32), (3, 1, 2)
    regions = [rng.standard_normal((n, 4)).astype(np.float32) for n in sizes]
    has = np.array([[1, 0, 0], [0, 1, 1], [1, 1, 1], [0, 0, 1], [0, 0, 0]], bool)
    weights = np.array([1.0, 0.5, 2.0, 0.0, 3.0], np.float32)
    table, here = np.full((3, 3, 4), 9.0, np.float32), np.zeros((3, 3), bool)
    for i, own in enumerate(regions):
        table[i, : len(own)], here[i, : len(own)] = own, True
    given = [torch.from_numpy(x) for x in (words, table, here, has, weights)]
    given[1].requires_grad_(True)
    loss = alignment_loss(*given)
    assert loss.item() == pytest.approx(brute_force(words, regions, has, weights), rel=1e-5)
    loss.backward()  # type: ignore[no-untyped-call]
    grad = given[1].grad
    assert grad is not None
    assert torch.isfinite(grad).all(), "a word that all images have has no others"
    assert not grad[~given[2]].any(), "padding does not learn"


@pytest.fixture
def planted(tmp_path: Path) -> tuple[VisualBertCaptions, Regions]:
    """400 images of three letters, which look the same wherever they are, and a region of noise.

    One image has no region.
    """
    rng = np.random.default_rng(1)
    looks = rng.standard_normal((len(LETTERS), WIDTH)).astype(np.float32)
    captions, items = [], []
    for number in range(400):
        own = rng.permutation(len(LETTERS))[:3]
        captions.append((f"image{number}", " ".join(LETTERS[i] for i in own)))
        features = (
            np.concatenate([looks[own], rng.standard_normal((1, WIDTH))]).astype(np.float32) + 5
        )  # a common part
        corners = np.tile(np.array([[0.0, 0, 10, 10]]), (4, 1))
        count = 0 if number == 7 else 4
        items.append(
            (
                f"image{number}",
                RegionSet(
                    features[:count], corners[:count], np.ones(count, np.float32), None, 20, 20
                ),
            )
        )
    write_regions(tmp_path / "r.npy", iter(items), {"images": 400}, WIDTH, backbone={"ref": "tiny"})
    regions = open_regions(tmp_path / "r.npy")
    return read_captions(
        [str(save_captions(tmp_path / "c.jsonl", captions))], WORDS, regions, False
    ), regions


def new_model(**changes: Any) -> VisualBert:
    return make_visualbert(encoder_of(0, **changes), VisualBertConfig(WIDTH))


def test_words_weigh_what_they_tell(tmp_path: Path) -> None:
    path = save_captions(tmp_path / "c.jsonl", [("x", "a b b"), ("y", "a c"), ("x", "d")])
    captions = read_captions([str(path)], WORDS, None, False)
    a, b, c, d = (WORDS.token_to_id(letter) for letter in "abcd")
    assert words_of(captions, 0).tolist() == sorted([a, b, d])
    weights = word_weights(captions, WORDS.get_vocab_size())
    assert weights[[a, b, c, d]].tolist() == pytest.approx(
        [0, math.log(2), math.log(2), math.log(2)]
    )
    assert np.count_nonzero(weights) == 3, "words of no image tell nothing"


def test_regions_start_near_their_words(planted: tuple[VisualBertCaptions, Regions]) -> None:
    captions, regions = planted
    model = new_model()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    losses = list(align(model, captions, regions, seed=0))
    assert len(losses) == STEPS
    assert losses[-1] < losses[0] / 2
    changed = {
        name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])
    }
    assert changed == {"project.weight", "project.bias", "position.weight"}
    text = model.lm.bert.embeddings
    assert torch.equal(model.position.weight[0], text.position_embeddings.weight[1:].mean(0))
    assert torch.equal(model.position.weight[1:], before["position.weight"][1:])

    table, right, seen = text.word_embeddings.weight.detach(), 0, []
    weights = torch.from_numpy(word_weights(captions, len(table)))
    centre = (table * weights[:, None]).sum(0) / weights.sum()
    for number, (image,) in enumerate(captions.images):
        own = regions.of(image).features
        if not len(own):
            continue
        with torch.no_grad():
            found = model.project(torch.from_numpy(own)) - centre
        seen.append(found)
        for place, word in enumerate(captions.of(number).tolist()):
            nearest = torch.nn.functional.cosine_similarity(
                found, (table[word] - centre)[None]
            ).argmax()
            right += int(nearest) == place
    assert right / (399 * 3) > 0.6, "a fourth would be luck"
    spread = torch.cat(seen).square().sum(1).mean().sqrt()
    words = (table[weights > 0] - centre).square().sum(1).mean().sqrt()
    assert float(spread) == pytest.approx(float(words), rel=1e-3)


def test_what_cannot_be_told_apart_is_named(tmp_path: Path) -> None:
    one = RegionSet(
        np.ones((1, WIDTH), np.float32),
        np.array([[0.0, 0, 10, 10]]),
        np.ones(1, np.float32),
        None,
        20,
        20,
    )
    none = RegionSet(
        np.ones((0, WIDTH), np.float32), np.zeros((0, 4)), np.ones(0, np.float32), None, 20, 20
    )
    path = str(save_captions(tmp_path / "c.jsonl", [("x", "a b"), ("y", "b a")]))
    for name, own, why in (
        ("r", one, "all images have the same words"),
        ("s", none, "no image has a region in .*s.npy"),
    ):
        write_regions(
            tmp_path / f"{name}.npy",
            iter([("x", own), ("y", own), ("z", one)]),
            {},
            WIDTH,
            backbone={"ref": "tiny"},
        )
        regions = open_regions(tmp_path / f"{name}.npy")
        with pytest.raises(DataError, match=f"c.jsonl: {why}; .*--region-start drawn"):
            list(align(new_model(), read_captions([path], WORDS, regions, False), regions, 0))


def test_the_start_is_a_function_of_the_seed(planted: tuple[VisualBertCaptions, Regions]) -> None:
    found = []
    for seed, noise in ((0, 1), (0, 2), (1, 1)):
        model = new_model()
        torch.manual_seed(noise)
        list(align(model, *planted, seed=seed))
        found.append(model.project.weight.detach().clone())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
