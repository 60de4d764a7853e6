"""Training data of the retriever: batches, recall, the schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vgtools.systems.visual_awareness.recipe import MILESTONES, PAPER, RetrieverConfig
from vgtools.systems.visual_awareness.retriever import Retriever
from vgtools.systems.visual_awareness.training import (
    RetrieverCaptions,
    collate,
    evaluate,
    score,
    with_milestones,
)
from vgtools.systems.visual_awareness.words import WordReader
from vgtools.training.loop import TrainConfig, learning_rate

NAMES = ["dog", "cat", "red", "ball", "runs"]


def captions_of(texts: list[str], images: list[int]) -> tuple[RetrieverCaptions, WordReader]:
    rows = {word: i for i, word in enumerate(NAMES)}
    table = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    reader = WordReader(rows, table)
    found = reader.read(texts)
    return RetrieverCaptions(np.array(images)[found.asking], found.asking, found), reader


def test_a_photo_is_in_a_batch_once() -> None:
    captions, reader = captions_of(["dog", "yeti", "cat red", "ball", "dog"], [4, 4, 1, 4, 0])
    feats = np.arange(30, dtype=np.float16).reshape(5, 2, 3)
    batch = collate(captions, reader, feats, np.array([0, 1, 2]), 7)
    assert batch.feats.tolist() == feats[[1, 4]].tolist()
    assert batch.own.tolist() == [1, 0, 1], "the caption without a word is left out"
    assert batch.lengths.tolist() == [1, 2, 1]
    assert batch.epoch == 7


def test_recalls_are_those_of_a_loop() -> None:
    rng = np.random.default_rng(1)
    texts = [" ".join(rng.choice(NAMES, 3)) for _ in range(30)]
    images = [2 * int(i) for i in rng.integers(0, 9, 30)]
    captions, reader = captions_of(texts, images)
    feats = rng.standard_normal((20, 4, 3)).astype(np.float32)
    torch.manual_seed(0)
    config = RetrieverConfig(text_width=3, image_width=3, dim=4, layers=1, regions=2, dropout=0.9)
    retriever = Retriever(config)
    found = evaluate(retriever, captions, reader, feats)
    assert retriever.training, "its mode is what it was"
    retriever.eval()
    bank = sorted(set(images))
    with torch.inference_mode():
        rows = retriever.embed_images(torch.from_numpy(feats[bank])).double().numpy()
        columns = [
            retriever.embed_texts(*reader.inputs(captions.texts, np.array([i])))[0].double()
            for i in range(30)
        ]
    scores = np.stack([column.numpy() for column in columns]) @ rows.T
    ranks = [1 + int((s > s[bank.index(i)]).sum()) for s, i in zip(scores, images, strict=True)]
    assert found["images"] == len(bank)
    assert found["text_to_image"]["r5"] == pytest.approx(
        100 * np.mean(np.array(ranks) <= 5), abs=0.01
    )
    assert found["text_to_image"]["median_rank"] == np.median(ranks)
    best = []
    for column, image in enumerate(bank):
        own = max(scores[t, column] for t in range(30) if images[t] == image)
        best.append(1 + int((scores[:, column] > own).sum()))
    assert found["image_to_text"]["r1"] == pytest.approx(
        100 * np.mean(np.array(best) == 1), abs=0.01
    )
    ways = (found["text_to_image"], found["image_to_text"])
    assert score(found) == pytest.approx(sum(w[k] for w in ways for k in ("r1", "r5", "r10")))


def test_the_paper_s_recipe_as_literals() -> None:
    assert (PAPER["epochs"], PAPER["batch_size"], PAPER["clip"]) == (60, 160, 0)
    assert (PAPER["dim"], PAPER["layers"], PAPER["regions"]) == (2400, 4, 15)
    assert (PAPER["dropout"], PAPER["text_dropout"], PAPER["margin"]) == (0.5, 0.25, 0.2)
    assert (PAPER["lr"], PAPER["text_from"], MILESTONES) == (1e-3, 2, (2, 3, 4, 5, 6))


def test_the_paper_halves_the_rate_after_its_epochs() -> None:
    config = TrainConfig(epochs=60, steps=600, lr=PAPER["lr"], schedule=PAPER["schedule"])
    config = with_milestones(config, 10)
    rates = {step: learning_rate(config, step) for step in (0, 19, 20, 29, 30, 40, 50, 60, 599)}
    expected = [1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4, 1.25e-4, 6.25e-5, 3.125e-5, 3.125e-5]
    assert list(rates.values()) == pytest.approx(expected)
