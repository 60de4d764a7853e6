"""Captions and regions become batches: pairs, masks, padding, resumable order."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny.lm import make_tokenizer
from tests.tiny.visual import REGION, encoder_of, model_of, open_tiny, save_captions
from vgtools.images.regions import Regions
from vgtools.io.errors import DataError, Exit
from vgtools.systems.visualbert.captions import VisualBertCaptions, read_captions
from vgtools.systems.visualbert.model import halve
from vgtools.systems.visualbert.pretraining import (
    collate,
    evaluate,
    make_batches,
    partner,
    recipe_for,
)
from vgtools.training.loop import train
from vgtools.training.steps import plan, train_config

WORDS = make_tokenizer()
CLS, SEP, MASK, PAD = (WORDS.token_to_id(f"[{name}]") for name in ("CLS", "SEP", "MASK", "PAD"))


def rows(images: int = 6, each: int = 3) -> list[tuple[str, str]]:
    """Return captions whose words name their image, in an order that mixes the images."""
    letters = "abcdefghijklmnop"
    return [
        (f"image{i}", " ".join([letters[i]] * (1 + number) + [letters[8 + number]]))
        for number in range(each)
        for i in range(images)
    ]


@pytest.fixture
def data(tmp_path: Path) -> tuple[VisualBertCaptions, Regions]:
    regions = open_tiny(tmp_path / "r.npy")
    return read_captions(
        [str(save_captions(tmp_path / "c.jsonl", rows()))], WORDS, regions
    ), regions


def test_captions_know_their_images(data: tuple[VisualBertCaptions, Regions]) -> None:
    captions, _ = data
    assert len(captions) == 18
    assert captions.images == [(f"image{i}",) for i in range(6)]
    assert [WORDS.decode(captions.of(c).tolist()) for c in (0, 7, 17)] == [
        "a i",
        "b b j",
        "f f f k",
    ]
    assert captions.order[captions.first[2] : captions.first[3]].tolist() == [2, 8, 14]


def test_half_of_the_second_captions_are_of_the_image_and_all_others_are_as_likely(
    data: tuple[VisualBertCaptions, Regions],
) -> None:
    captions, _ = data
    rng, found, right = np.random.default_rng(0), Counter[int](), 0
    for _ in range(6000):
        other, same = partner(captions, 8, rng)  # of image2, with 2 and 14
        assert same == (other in (2, 14))
        assert other != 8
        found[other], right = found[other] + 1, right + same
    assert right / 6000 == pytest.approx(0.5, abs=0.02)
    assert found[2] / right == pytest.approx(0.5, abs=0.04)
    assert sorted(found) == [c for c in range(18) if c != 8]
    assert max(found[c] for c in range(18) if c not in (2, 8, 14)) < 260, "200 each are expected"


def test_a_batch_holds_pairs_masks_and_regions_in_place(
    data: tuple[VisualBertCaptions, Regions],
) -> None:
    captions, regions = data
    recipe = recipe_for(encoder_of(), pairs=True, longest=32, seed=3)
    numbers = np.arange(18)
    (batch,) = collate(captions, regions, REGION, numbers, recipe, epoch=0)
    assert batch.match is not None
    flat, chosen = batch.ids.flatten(), torch.zeros(batch.ids.numel(), dtype=torch.bool)
    chosen[batch.masked] = True
    whole = flat.clone()
    whole[batch.masked] = batch.tokens
    for i, line in enumerate(whole.view(batch.ids.shape).tolist()):
        own = [t for t, here in zip(line, batch.text_mask[i].tolist(), strict=True) if here]
        assert set(line[len(own) :]) <= {PAD}
        first, second = captions.of(i).tolist(), own[len(captions.of(i)) + 2 : -1]
        assert own == [CLS, *first, SEP, *second, SEP]
        others = [c for c in range(18) if captions.of(c).tolist() == second]
        assert batch.match[i].item() == (captions.image[others[0]] == captions.image[i])
        assert batch.types[i, : len(own)].tolist() == [0] * (len(first) + 2) + [1] * (
            len(second) + 1
        )
        features = regions.of(captions.images[captions.image[i]][0]).features
        assert torch.equal(batch.regions[i][batch.region_mask[i]], torch.from_numpy(features))
        assert not batch.regions[i][~batch.region_mask[i]].any()
    assert batch.regions.shape == (18, 4, REGION)
    special = torch.isin(whole, torch.tensor([CLS, SEP, PAD]))
    assert not (chosen & special).any(), "special tokens are never masked"
    assert (flat != whole).sum() <= len(batch.masked)
    assert (batch.token_count, batch.pair_count) == (len(batch.tokens), 18)
    assert 0.05 < len(batch.masked) / int((~special).sum()) < 0.3


def test_masks_and_pairs_change_with_epoch_and_seed_but_not_those_of_evaluation(
    data: tuple[VisualBertCaptions, Regions],
) -> None:
    captions, regions = data

    def ids(epoch: int | None, seed: int) -> list[list[int]]:
        recipe = recipe_for(encoder_of(), pairs=True, longest=32, seed=seed)
        found: list[list[int]] = collate(captions, regions, REGION, np.arange(18), recipe, epoch)[
            0
        ].ids.tolist()
        return found

    assert ids(0, 3) == ids(0, 3)
    assert ids(0, 3) != ids(1, 3)
    assert ids(0, 3) != ids(0, 4)
    assert ids(None, 3) == ids(None, 4)


def test_the_rate_says_how_many_tokens_are_masked(data: tuple[VisualBertCaptions, Regions]) -> None:
    captions, regions = data
    shares = []
    for rate in (0.1, 0.9):
        recipe = recipe_for(encoder_of(), pairs=True, longest=32, seed=3, rate=rate)
        batches = [
            collate(captions, regions, REGION, np.arange(18), recipe, epoch)[0]
            for epoch in range(8)
        ]
        texts = sum(
            int(b.text_mask.sum()) - 3 * 18 for b in batches
        )  # special tokens are never masked
        shares.append(sum(len(b.masked) for b in batches) / texts)
    assert shares == [pytest.approx(0.1, abs=0.03), pytest.approx(0.9, abs=0.03)]


def test_without_grounding_and_without_pairs(data: tuple[VisualBertCaptions, Regions]) -> None:
    captions, _ = data
    recipe = recipe_for(encoder_of(), pairs=False, longest=32, seed=3)
    (batch,) = collate(captions, None, REGION, np.arange(4), recipe, 0)
    assert (batch.regions.shape, batch.region_mask.shape, batch.match) == (
        (4, 0, REGION),
        (4, 0),
        None,
    )
    assert batch.ids[0, 0] == CLS
    assert int(batch.types.sum()) == 0
    assert list(model_of()(batch)) == ["mlm"]


def test_long_texts_lose_their_ends_the_longer_first(
    data: tuple[VisualBertCaptions, Regions], tmp_path: Path
) -> None:
    path = save_captions(
        tmp_path / "long.jsonl",
        [("image0", "a " * 20), ("image0", "b " * 20), ("image1", "c d"), ("image1", "c d")],
    )
    captions = read_captions([str(path)], WORDS, data[1])
    recipe = recipe_for(encoder_of(), pairs=True, longest=12, seed=0)
    batch = collate(captions, data[1], REGION, np.arange(4), recipe, 0)[0]
    lengths = batch.text_mask.sum(1).tolist()
    assert max(lengths) == 12
    own = batch.ids[0].tolist()
    first_end = own.index(SEP)
    assert first_end - 1 in (4, 5, 7), (
        "9 words: five and four of two long ones, or seven beside two"
    )
    with pytest.raises(DataError, match="--block 99: the encoder takes 64 tokens") as caught:
        recipe_for(encoder_of(), pairs=True, longest=99, seed=0)
    assert caught.value.code == Exit.CONFIG


def test_a_step_does_not_depend_on_its_cut(data: tuple[VisualBertCaptions, Regions]) -> None:
    captions, regions = data
    recipe = recipe_for(encoder_of(), pairs=True, longest=32, seed=3)
    model = model_of().eval()
    numbers = np.arange(2, 13)
    (whole,) = collate(captions, regions, REGION, numbers, recipe, 0)
    parts = collate(captions, regions, REGION, numbers, recipe, 0, parts=3)
    quarters = [quarter for part in parts for quarter in halve(part)]
    assert sum(len(part.ids) for part in parts) == 11
    for name, value in model(whole).items():
        for cut in (parts, quarters):
            found = sum(model(part)[name] for part in cut) / 3
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "pairs", "why"),
    [
        (
            [("image0", "a"), ("image9", "b")],
            False,
            r"c.jsonl:2: the picture 'image9': \S+r.npy holds no regions of it",
        ),
        (
            [("image0", "a"), ("image0", "b"), ("image1", "b")],
            True,
            r"c.jsonl:3: the image 'image1' has one caption; sip",
        ),
        (
            [("image0", "a"), ("image0", "b")],
            True,
            "captions of one image only; sip needs captions of others",
        ),
        ([], True, "holds no caption"),
    ],
)
def test_captions_that_cannot_be_used_are_named(
    tmp_path: Path, given: list[tuple[str, str]], pairs: bool, why: str
) -> None:
    path = save_captions(tmp_path / "c.jsonl", given)
    with pytest.raises(DataError, match=why):
        read_captions([str(path)], WORDS, open_tiny(tmp_path / "r.npy"), pairs)


def test_of_two_images_each_has_its_segment(tmp_path: Path) -> None:
    regions = open_tiny(tmp_path / "r.npy")
    path = tmp_path / "c.jsonl"
    rows_of = [{"images": ["image1", "image2"]}, {"image": "a/image3.jpg"}, {"images": ["image2"]}]
    path.write_text("".join(json.dumps(row | {"text": "a b"}) + "\n" for row in rows_of))
    captions = read_captions([str(path)], WORDS, regions, pairs=False)
    assert captions.images == [("image1", "image2"), ("image3",), ("image2",)]
    recipe = recipe_for(encoder_of(), pairs=False, longest=32, seed=3)
    (batch,) = collate(captions, regions, REGION, np.arange(3), recipe, 0)
    assert batch.segments is not None
    assert batch.region_mask.sum(1).tolist() == [5, 4, 3]
    shown = [s[m].tolist() for s, m in zip(batch.segments, batch.region_mask, strict=True)]
    assert shown == [[0, 0, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1]]
    pair = np.concatenate([regions.of("image1").features, regions.of("image2").features])
    np.testing.assert_array_equal(batch.regions[0].numpy(), pair)
    model = model_of(initializer_range=0.3).eval()
    swapped = batch._replace(segments=1 - batch.segments)
    losses = [model(b)["mlm"].item() for b in (batch, batch._replace(segments=None), swapped)]
    assert len(set(losses)) == 3, "segments are read, and are not those of a single image"


@pytest.mark.parametrize(
    "images", [{"images": []}, {"images": ["image0"] * 3}, {"images": "image0"}, {"image": 3}, {}]
)
def test_a_row_is_about_one_image_or_two(tmp_path: Path, images: dict[str, object]) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps(images | {"text": "a b"}) + "\n")
    with pytest.raises(DataError, match=r'c.jsonl:1: expected "image", an image.s name, or "im'):
        read_captions([str(path)], WORDS, None, pairs=False)


def test_evaluation_does_not_depend_on_the_batches(
    data: tuple[VisualBertCaptions, Regions],
) -> None:
    captions, regions = data
    model, recipe = model_of().train(), recipe_for(encoder_of(), pairs=True, longest=32, seed=1)
    found = [evaluate(model, captions, regions, recipe, size) for size in (18, 5)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert set(found[0]) == {"mlm", "sip", "perplexity"}
    assert found[0]["perplexity"] == pytest.approx(np.exp(found[0]["mlm"]))
    assert model.training


def test_overfits_eight_captions_that_only_the_regions_tell_apart(tmp_path: Path) -> None:
    # Every caption is one word, always masked: only its image says which.
    path = save_captions(tmp_path / "c.jsonl", [(f"image{i}", "abcdefgh"[i]) for i in range(8)])
    regions = open_tiny(tmp_path / "r.npy", images=8)
    captions = read_captions([str(path)], WORDS, regions, pairs=False)
    recipe = recipe_for(encoder_of(), pairs=False, longest=8, seed=0)
    config = {
        "lr": 5e-3,
        "schedule": "constant",
        "warmup": 0,
        "weight_decay": 0.0,
        "clip": 1.0,
        "seed": 0,
    }
    scores = []
    for look in (regions, None):
        schedule = plan(8, 8, 8, steps=100)
        batches = make_batches(captions, look, REGION, recipe, schedule)

        def masked(epoch: int, first: int, batches: object = batches) -> list[object]:
            found = list(batches(epoch, first))  # type: ignore[operator]
            for i, batch in enumerate(found):
                words = batch.ids[:, 1].clone()
                batch.ids[:, 1] = MASK
                words[batch.masked // batch.ids.shape[1]] = batch.tokens
                places = torch.arange(8) * batch.ids.shape[1] + 1
                found[i] = batch._replace(
                    masked=places, tokens=torch.sort(words).values, token_count=8.0
                )
            return found

        model = model_of(initializer_range=0.1)
        records = list(train(model, masked, train_config(config, schedule), weights={"mlm": 1.0}))
        scores.append([record["mlm"] for record in records if not record["end"]][-1])
    assert scores[0] < 0.1, "the regions say which word"
    assert scores[1] > 1.9, "without them it is one of eight: ln 8 = 2.08"
