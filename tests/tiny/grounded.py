"""Tiny grounded models, their texts, images and banks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tiny import WORDS, save_feats
from tests.tiny import grounding as t
from tests.tiny.lm import make_tokenizer
from tests.tiny.visual import encoder_of
from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features
from vgtools.systems.grounding import association, keys
from vgtools.systems.grounding.inputs import GroundedExamples, GroundedMasking, WordBank
from vgtools.systems.grounding.model import GroundedMaskedLM, GroundingConfig
from vgtools.systems.grounding.pictures import PictureFeatures, WholePictures
from vgtools.systems.grounding.texts import read_texts
from vgtools.text.word_vectors import WordVectors

D = 6  # of an image feature
IMAGES = 20


def model_of(
    strategy: str = "i2t", images: int = 1, regions: int = 1, **more: Any
) -> GroundedMaskedLM:
    """Return a random model whose parts all matter."""
    text = encoder_of(**more)
    width = D if images else 0
    config = GroundingConfig(strategy, images, regions if images else 0, width, 2)
    model = GroundedMaskedLM(text.model, config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.startswith(("cross.placeholder", "cross.ranks", "cross.project", "jmrm")):
                weight.normal_(0, 0.5)
    return model


def save_texts(path: Path, texts: Sequence[str], images: Mapping[int, str] | None = None) -> Path:
    """Write rows {"text"}, and {"image", "text"} where a row's number has an image."""
    rows = [
        {"image": (images or {})[i], "text": text} if i in (images or {}) else {"text": text}
        for i, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def save_images(path: Path, count: int = IMAGES, seed: int = 0, **more: Any) -> Path:
    """Write features of image000 …, whose first column is their number."""
    features = np.random.default_rng(seed).standard_normal((count, D))
    features[:, 0] = np.arange(count) + 1
    return save_feats(path, features, **more)


def save_scene(path: Path) -> Path:
    """Write an index of `captions` beside the word vectors that it is built with."""
    table = {word: row.tolist() for word, row in zip(WORDS, vectors_of().array, strict=True)}
    words = t.save_vectors(path.with_name("vectors.npy"), table)
    bank = keys.caption_keys(captions(), t.vectors(table), t.STOP)
    return t.save_index(path, bank, "captions", words)


def pictures_of(folder: Path) -> PictureFeatures:
    path = save_images(folder / "f.npy")
    return WholePictures(str(path), open_features(path))


def vectors_of() -> WordVectors:
    array = np.random.default_rng(1).standard_normal((len(WORDS), 8)).astype(np.float32)
    return WordVectors("x.npy", array, "f", {word: row for row, word in enumerate(WORDS)})


def captions(count: int = IMAGES, seed: int = 5) -> list[tuple[int, dict[str, object]]]:
    """Return the numbered captions of image000 …, of words of the tiny language."""
    rng = np.random.default_rng(seed)
    return [
        (i + 1, {"image": f"image{i:03}", "text": " ".join(rng.choice(WORDS[:100], 6))})
        for i in range(count)
    ]


def bank_of(strategy: str, images: int = 3, whole: bool = False) -> WordBank:
    """Return a bank of all images, found by the words of their captions."""
    vectors = vectors_of()
    stop = frozenset[str]()
    finder: Any
    if strategy == "keyword":
        finder = t.keyword_finder(keys.keywords(captions(), stop, 4), stop)
    else:
        index = t.index(keys.caption_keys(captions(), vectors, stop))
        finder = association.Scene(index, vectors, stop)
        if strategy == "object":
            finder = association.Objects(index, vectors, stop, t.context_tagger, 2)
    rows = np.array([int(name[5:]) for name in finder.ids])
    return WordBank(finder, rows, images, whole, {})


def examples_of(
    folder: Path,
    texts: Sequence[str],
    strategy: str = "none",
    images: Mapping[int, str] | None = None,
    pictures: PictureFeatures | None = None,
    bank: WordBank | None = None,
    **recipe: Any,
) -> GroundedExamples:
    tokenizer = make_tokenizer()
    path = save_texts(folder / "t.jsonl", texts, images)
    read = read_texts([str(path)], tokenizer, 30, raw=bank is not None)
    settings = {"rate": 0.4, **recipe}
    return GroundedExamples(
        read, GroundedMasking.of(tokenizer, strategy=strategy, **settings), pictures, bank
    )


def sentences(count: int, seed: int = 0, longest: int = 12) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS[:100], rng.integers(2, longest))) for _ in range(count)]


def rows_of(examples: GroundedExamples, numbers: Array, epoch: int | None) -> Array:
    """Return the rows of the images that texts are shown with."""
    drawn = [examples.example(n, epoch) for n in numbers.tolist()]
    return examples.images(numbers, drawn)
