"""Training of the retriever of sentences and images (Zhang et al. 2019, section 2.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.analysis.recall import KS, at_k, image_ranks, text_ranks
from vgtools.io.arrays import Array
from vgtools.io.artifact import Features
from vgtools.io.errors import DataError, amount
from vgtools.io.process import Progress
from vgtools.io.settings import configured, entries
from vgtools.models.encoder import Encoder
from vgtools.systems.visual_awareness.recipe import MILESTONES, RetrieverConfig
from vgtools.systems.visual_awareness.retrieve import embed_images, embed_texts
from vgtools.systems.visual_awareness.retriever import KIND, Retriever, RetrieverBatch
from vgtools.systems.visual_awareness.words import (
    TABLE,
    Reader,
    RetrieverTexts,
    WordReader,
    encoder_reader,
    words_of,
)
from vgtools.text.vector_files import copy_vectors, open_vectors, select_vectors
from vgtools.training.loop import TrainConfig
from vgtools.training.session import Session, TrainingRun, epoch_means
from vgtools.training.splits import CaptionSplits, Rows
from vgtools.training.steps import plan_for, step_batches, train_config

_BLOCK = 1024  # texts whose scores are computed at a time


class RetrieverCaptions(NamedTuple):
    """Captions that have a word, as a text path reads them."""

    images: Array  # (S,) int64 feature row of each caption's image
    numbers: Array  # (S,) int64 which of the texts each is
    texts: RetrieverTexts


class WordSource(NamedTuple):
    """Where the text path's words come from: either."""

    encoder: Encoder | None  # its word pieces or states
    vectors: str | None  # see `vgtools.text.vector_files.open_vectors`


class RetrieverPictures(Protocol):
    """The inputs of images to a retriever in training: feature maps, or pixels."""

    @property
    def width(self) -> int:
        """D, channels of a feature map."""

    @property
    def whole(self) -> Any:
        """All images, row by row, to evaluate: an array, or an object indexed as an array."""

    def drawn(self, seed: int, epoch: int, first: int) -> Any:
        """All images as a step sees them whose first caption has the number `first`."""

    def network(self, retriever: Retriever) -> nn.Module:
        """Return the network that is trained."""

    def finish(self, run: TrainingRun) -> tuple[dict[str, Any], Mapping[str, Tensor] | None]:
        """Return facts for run.json, and the retriever's weights if they are not the network's."""


class FeatureMaps:
    """Finished feature maps: the backbone stays as it is."""

    def __init__(self, bank: Features) -> None:
        self.whole = bank.array  # (N, P, D)
        self.width = int(bank.array.shape[2])
        self._manifest = bank.manifest

    def drawn(self, seed: int, epoch: int, first: int) -> Array:
        """Return the same maps for every step."""
        return self.whole

    def network(self, retriever: Retriever) -> Retriever:
        """Return the retriever itself."""
        return retriever

    def finish(self, run: TrainingRun) -> tuple[dict[str, Any], None]:
        """Return the network that made the maps, and their grid."""
        return {key: self._manifest.get(key) for key in ("backbone", "grid")}, None


def open_words(words: WordSource, config: Mapping[str, Any], texts: Sequence[str]) -> Reader:
    """Return the reader for a training; it holds only the word vectors of the captions.

    Raises:
        DataError: as `open_vectors`, or no word of the captions is known (65).
    """
    if words.encoder is not None:
        return encoder_reader(words.encoder, config["text"], config["layers"])
    assert words.vectors is not None  # one of them is given
    # A file of word vectors has millions of words, of which captions use some thousands.
    reader = WordReader(*select_vectors(open_vectors(words.vectors), words_of(texts)))
    if not any(len(reader.read([text]).items) for text in texts[:1000]):
        why = f"knows no word of the first {amount(min(1000, len(texts)), 'caption')}"
        raise DataError(f"{why}; expected word vectors of their language", words.vectors)
    return reader


def read_captions(reader: Reader, rows: Rows, session: Session, name: str) -> RetrieverCaptions:
    """Return captions as a text path reads them, and report how many are left out."""
    images, texts = zip(*rows, strict=True)
    with Progress("train-matcher: captions", "captions", len(rows), session.quiet) as bar:
        found = reader.read(texts, session.stop.check)
        bar.advance(len(rows))
    numbers = found.asking
    empty = len(rows) - len(numbers)
    if empty or found.unknown or found.cut:
        unknown = f"{amount(found.unknown, 'word')} without a vector"
        session.note(f"{name}: {unknown}, {amount(empty, 'caption')} left out, {found.cut} cut")
    return RetrieverCaptions(np.asarray(images, np.int64)[numbers], numbers, found)


def collate(
    captions: RetrieverCaptions,
    reader: Reader,
    feats: Array,
    numbers: Array,
    epoch: int,
    device: torch.device | str = "cpu",
) -> RetrieverBatch:
    """Return the batch of some captions: a photo is in it once, however many captions it has.

    Args:
        captions: S captions.
        reader: the reader that read them.
        feats: (N, P, D) feature maps of all images, or their pixels (N, 3, S, S).
        numbers: (B,) numbers of the captions in the batch.
        epoch: counted from 0.
        device: device of the batch.
    """
    words, lengths = reader.inputs(captions.texts, captions.numbers[numbers])
    rows, own = np.unique(captions.images[numbers], return_inverse=True)
    return RetrieverBatch(
        words=words.to(device),
        lengths=lengths.to(device),
        feats=torch.from_numpy(np.asarray(feats[rows], np.float32)).to(device),
        own=torch.from_numpy(own.reshape(-1)).to(device),
        epoch=epoch,
    )


def evaluate(
    retriever: Any, captions: RetrieverCaptions, reader: Reader, feats: Any
) -> dict[str, Any]:
    """Return how well captions find their photos among all photos, and photos their captions.

    Args:
        retriever: a `Retriever`, or a network with the same methods.
        captions: S captions.
        reader: the reader that read them.
        feats: (N, P, D) feature maps of all images, or other inputs that it embeds.

    Returns:
        `images`, `texts`, and for `text_to_image` and `image_to_text` R@1, 5, 10 in percent and the
        median rank.
    """
    was_training = retriever.training
    retriever.eval()
    bank, own = np.unique(captions.images, return_inverse=True)
    own = own.reshape(-1)
    images = embed_images(retriever, feats, bank)
    texts = embed_texts(retriever, reader, captions.texts)[0].cpu().numpy()
    retriever.train(was_training)
    scores = np.empty((len(texts), len(bank)), np.float32)
    ranks = np.empty(len(texts), np.int64)
    for first in range(0, len(texts), _BLOCK):
        part = slice(first, first + _BLOCK)
        scores[part] = texts[part] @ images.T
        ranks[part] = text_ranks(scores[part], own[part])
    return {
        "images": len(bank),
        "texts": len(texts),
        "text_to_image": _measured(ranks),
        "image_to_text": _measured(image_ranks(scores, own)),
    }


def _measured(ranks: Array) -> dict[str, float]:
    """Return R@k in percent, and the median, of ranks that start at 1."""
    return at_k(ranks) | {"median_rank": float(np.median(ranks))}


def score(measured: Mapping[str, Any] | None) -> float:
    """Return the sum of the six recalls, by which the best epoch is chosen; 0 if not measured.

    Source: the published code of Engilberge et al. 2018.
    """
    if not measured:
        return 0.0
    ways = (measured["text_to_image"], measured["image_to_text"])
    return float(sum(way[f"r{k}"] for way in ways for k in KS))


def fit(
    session: Session, words: WordSource, pictures: RetrieverPictures, splits: CaptionSplits
) -> None:
    """Train a retriever to its last epoch, and write the run with the best.

    Args:
        session: its run holds the settings.
        words: words of the text path.
        pictures: inputs of the image path.
        splits: captions to train and to validate on.

    Raises:
        DataError: captions of fewer than 2 images have a known word, or as `Session.fit`.
    """
    run = session.run
    config = run.config
    reader = open_words(words, config, [text for _, text in splits.train + splits.valid])
    train = read_captions(reader, splits.train, session, "train")
    valid = read_captions(reader, splits.valid, session, "valid") if splits.valid else None
    if len(np.unique(train.images)) < 2:
        why = "captions of fewer than 2 images have a known word; there is nothing to distinguish"
        raise DataError(why)
    widths = {"text_width": reader.width, "image_width": pictures.width}
    shape = configured(RetrieverConfig, config, **widths)
    torch.manual_seed(config["seed"])
    network = pictures.network(Retriever(shape)).to(session.device)
    seed = config["seed"]
    plan = plan_for(len(train.images), {**config, "steps": None})

    def build(numbers: Array, epoch: int, parts: int) -> list[RetrieverBatch]:
        seen = pictures.drawn(seed, epoch, int(numbers[0]))
        # The step is never cut into parts, because the other photos of the step are its negatives.
        return [collate(train, reader, seen, numbers, epoch, session.device)]

    batches = step_batches(len(train.images), seed, plan, build)
    settings = train_config({**config, "weight_decay": 0.0}, plan)
    settings = with_milestones(settings, plan.per_epoch)
    records = session.fit(network, batches, settings, weights={shape.loss: 1.0})
    for record in epoch_means(records, run.state.notes, plan.per_epoch):
        measured: Mapping[str, Any] | None = None
        if valid is not None and len(valid.images):
            measured = evaluate(network, valid, reader, pictures.whole)
            record["valid"] = measured
        run.end_epoch(network, record, score(measured))
    session.finish(lambda: _result(session, shape, words, pictures))


def with_milestones(settings: TrainConfig, per_epoch: int) -> TrainConfig:
    """Return settings whose rate is halved at the start of the paper's epochs, if it is at all.

    Source: the published code of Engilberge et al. 2018, 5 milestones.
    """
    return dataclasses.replace(settings, milestones=tuple(n * per_epoch for n in MILESTONES))


def _result(
    session: Session, shape: RetrieverConfig, words: WordSource, pictures: RetrieverPictures
) -> tuple[dict[str, Any], Encoder | None, Mapping[str, Tensor] | None]:
    """Return the arguments of `TrainingRun.finish`; the run gets a copy of the word vectors."""
    if words.vectors is not None:
        table = session.run.path / TABLE
        table.parent.mkdir(exist_ok=True)
        # The run has to open without the original file of word vectors.
        copy_vectors(words.vectors, str(table))
        session.run.keep(table.parent.name)
    facts, weights = pictures.finish(session.run)
    return {KIND: entries(shape), **facts}, words.encoder, weights
