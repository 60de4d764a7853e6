"""The contrastive text tower: loss, captions, recall, learning."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.tiny import save_feats
from tests.tiny.clip import TOWER, clip_tokenizer, save_captions
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError, Exit
from vgtools.models.clip import SHAPES, new_teacher
from vgtools.models.encoder import Encoder
from vgtools.systems.clip.training import (
    ClipPretraining,
    Contrastive,
    PhotoConfig,
    collate,
    evaluate,
    info_nce,
    read_captions,
)
from vgtools.training.loop import TrainConfig, train
from vgtools.training.session import Session


def tower(**changes: int) -> Encoder:
    torch.manual_seed(0)
    return new_teacher({**TOWER, **changes}, clip_tokenizer(), "tiny")


# -------------------------------------------------------------------------------------------- loss


def test_loss_by_hand() -> None:
    """Captions 0 and 2 are of photo 0, caption 1 of photo 1; the logits are 2 · cosine."""
    texts = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=torch.float64)
    photos = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    e = math.exp
    to_photo = [
        -math.log(e(2) / (e(2) + e(0))),
        -math.log(e(2) / (e(0) + e(2))),
        -math.log(e(1.2) / (e(1.2) + e(1.6))),
    ]
    first = e(2) + e(0) + e(1.2)  # logits of photo 0 with all captions
    second = e(0) + e(2) + e(1.6)
    to_text = [
        -(math.log(e(2) / first) + math.log(e(1.2) / first)) / 2,
        -math.log(e(2) / second),
    ]
    expected = (sum(to_photo) / 3 + sum(to_text) / 2) / 2
    found = info_nce(texts, photos, torch.tensor([0, 1, 0]), 2.0)
    assert float(found) == pytest.approx(expected, abs=1e-12)
    assert float(found) == pytest.approx(0.5573, abs=5e-5)


def test_loss_of_equal_vectors_is_that_of_chance() -> None:
    same = F.normalize(torch.ones(6, 4, dtype=torch.float64), dim=1)
    own = torch.tensor([0, 0, 1, 1, 2, 2])
    found = info_nce(same, same[:3], own, 50.0)
    assert float(found) == pytest.approx((math.log(3) + math.log(6)) / 2, abs=1e-12)


def test_gradient_of_the_loss_is_that_of_a_table_of_targets() -> None:
    random = torch.Generator().manual_seed(0)
    own = torch.tensor([2, 0, 1, 2, 2])

    def embedded() -> tuple[torch.Tensor, torch.Tensor]:
        random.manual_seed(0)
        texts = torch.randn(5, 3, dtype=torch.float64, generator=random)
        photos = torch.randn(3, 3, dtype=torch.float64, generator=random)
        return texts.requires_grad_(), photos.requires_grad_()

    texts, photos = embedded()
    info_nce(texts, photos, own, 3.0).backward()
    table, other = embedded()
    logits = 3.0 * table @ other.T
    targets = F.one_hot(own, 3).double()
    rows = -(targets * logits.log_softmax(1)).sum() / 5
    columns = -(targets / targets.sum(0) * logits.log_softmax(0)).sum() / 3
    ((rows + columns) / 2).backward()
    torch.testing.assert_close(texts.grad, table.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(photos.grad, other.grad, rtol=0, atol=1e-12)


# ---------------------------------------------------------------------------------------- captions


def test_captions_are_read_cut_and_padded(tmp_path: Path) -> None:
    features = open_features(save_feats(tmp_path / "f.npy"))
    rows = [("image003", "the a"), ("image000", "  "), ("image001", "a " * 80)]
    path = save_captions(tmp_path / "c.jsonl", rows)
    found = read_captions(str(path), features, tower())
    assert (len(found), found.empty, found.cut) == (2, 1, 1)
    assert found.images.tolist() == [3, 1]
    assert found.lengths.tolist() == [4, 77]
    ids, lengths = found.padded(np.array([0]))
    a = clip_tokenizer().token_to_id("a</w>")
    assert ids.tolist() == [[514, 513, a, 515]]
    ids, lengths = found.padded(np.array([1, 0]))
    assert ids.shape == (2, 77)
    assert ids[0].tolist() == [514, *[a] * 75, 515]
    assert ids[1].tolist() == [514, 513, a, 515, *[0] * 73]
    assert lengths.tolist() == [77, 4]


def test_a_batch_has_each_photo_once(tmp_path: Path) -> None:
    features = open_features(save_feats(tmp_path / "f.npy"))
    names = ["image007", "image002", "image007"]
    path = save_captions(tmp_path / "c.jsonl", [(name, "a") for name in names])
    captions = read_captions(str(path), features, tower())
    batch = collate(captions, features.array, np.arange(3))
    assert batch.own.tolist() == [1, 0, 1]
    assert np.array_equal(batch.feats.numpy(), features.array[[2, 7]])


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ('{"image": "image001", "text": "a"}\n{"image": "x", "text": "a"}\n', 2, "'x' has no feat"),
        ('{"image": "image001"}\n', 1, '"text"'),
        ("", None, "holds no caption"),
        ('{"image": "image001", "text": " "}\n', None, "holds no caption"),
    ],
)
def test_bad_captions_are_refused(tmp_path: Path, text: str, line: int | None, why: str) -> None:
    features = open_features(save_feats(tmp_path / "f.npy"))
    path = tmp_path / "c.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=why) as error:
        read_captions(str(path), features, tower())
    assert (error.value.code, error.value.line) == (Exit.DATA, line)


def test_photos_must_differ_and_those_of_valid_be_others(tmp_path: Path) -> None:
    feats = str(save_feats(tmp_path / "f.npy"))

    def start(train: list[str], valid: list[str]) -> None:
        paths = []
        for name, images in (("train", train), ("valid", valid)):
            rows = [(image, "a") for image in images]
            paths.append(str(save_captions(tmp_path / f"{name}.jsonl", rows)))
        ClipPretraining(
            tower(),
            feats,
            session=Session("pretrain", tmp_path, torch.device("cpu")),
            inputs=paths[:1],
            valid=paths[1:],
            weights={},
            dtype="float32",
            gradient_checkpointing=False,
        )

    with pytest.raises(DataError, match="captions of one photo"):
        start(["image000"] * 2, ["image001"])
    with pytest.raises(DataError, match="2 photos of it are also to learn from"):
        start(["image000", "image001", "image002"], ["image001", "image003", "image002"])


# ------------------------------------------------------------------------------------------- model


def test_an_embedding_is_the_projected_state_of_the_last_token() -> None:
    encoder = tower()
    model = Contrastive(encoder.model, PhotoConfig(5)).eval()
    short = torch.tensor([[514, 7, 515]])
    padded = torch.tensor([[514, 7, 515, 0, 0], [514, 0, 0, 9, 515]])
    found = model.embed_texts(padded, torch.tensor([3, 5]))
    pooled = encoder.model(input_ids=short).text_embeds[0]
    torch.testing.assert_close(found[0], F.normalize(pooled, dim=0))
    assert found.norm(dim=1).tolist() == pytest.approx([1, 1])
    feats = torch.tensor([[4.0, -9.0, 0.0, 1.0, 16.0]])
    rooted = torch.tensor([[2.0, -3.0, 0.0, 1.0, 4.0]])
    expected = F.normalize(model.photo(rooted), dim=1)
    torch.testing.assert_close(model.embed_photos(feats), expected)


def test_shapes_have_the_designs_sizes() -> None:
    from transformers import CLIPTextConfig

    assert CLIPTextConfig(**SHAPES["clip-text"]) == CLIPTextConfig(), "ViT-B/32's"
    small = tower(**SHAPES["clip-text-small"])
    assert (small.width, small.layers, small.max_tokens) == (128, 2, 75)
    config = small.model.config
    assert (config.vocab_size, config.bos_token_id, config.eos_token_id) == (516, 514, 515)


def test_a_tower_learns_to_tell_photos_apart(tmp_path: Path) -> None:
    """Each photo has a feature of its own, and its captions a letter of its own."""
    features = open_features(save_feats(tmp_path / "f.npy", 9 * np.eye(8)))
    names = [f"image{i % 8:03}" for i in range(24)]
    texts = [f"{'abcdefgh'[i % 8]} the {'xyz'[i // 8]}" for i in range(24)]
    path = save_captions(tmp_path / "c.jsonl", list(zip(names, texts, strict=True)))
    captions = read_captions(str(path), features, tower())
    torch.manual_seed(0)
    model = Contrastive(tower().model, PhotoConfig(8, hidden=16, dropout=0.0))
    before = evaluate(model, captions, features.array)
    batch = collate(captions, features.array, np.arange(24))
    settings = TrainConfig(epochs=60, steps=60, lr=1e-2, log_every=1)
    weights = {"info_nce": 1.0}
    for record in train(model, lambda epoch, first: [batch][first:], settings, weights=weights):
        if record["step"] == 60 and not record["end"]:
            assert record["info_nce"] < 0.6, "ln 3 / 2 = .55 is the least: a photo has 3 captions"
    after = evaluate(model, captions, features.array)
    assert before["text_to_image"]["r1"] < 60
    assert after["text_to_image"]["r1"] == after["image_to_text"]["r1"] == 100
    assert after["photos"] == 8
    assert after["text_to_image"]["chance"]["r1"] == 12.5


def test_recall_is_that_of_every_pair_in_turn(tmp_path: Path) -> None:
    features = open_features(save_feats(tmp_path / "f.npy"))
    rng = np.random.default_rng(0)
    words = ["a", "the", "b c", "d the e", "the the the the"]
    rows = [(f"image{i % 13:03}", " ".join(rng.choice(words, 3))) for i in range(40)]
    captions = read_captions(str(save_captions(tmp_path / "c.jsonl", rows)), features, tower())
    model = Contrastive(tower().model, PhotoConfig(12)).train()
    found = evaluate(model, captions, features.array)
    assert model.training
    model.eval()
    ranks = []
    with torch.no_grad():
        photos = model.embed_photos(torch.from_numpy(np.array(features.array[:13])))
        for number, image in enumerate(captions.images.tolist()):
            ids, lengths = (torch.from_numpy(x) for x in captions.padded(np.array([number])))
            cosines = (photos @ model.embed_texts(ids, lengths)[0]).tolist()
            ranks.append(1 + sum(other > cosines[image] + 1e-6 for other in cosines))
    assert found["text_to_image"]["median_rank"] == np.median(ranks)
    expected = 100 * np.mean(np.array(ranks) <= 5)
    assert found["text_to_image"]["r5"] == pytest.approx(expected, abs=0.01)
    assert json.dumps(found)
