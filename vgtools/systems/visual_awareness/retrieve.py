"""Images of sentences by a retriever (Zhang et al. 2019, section 2.1), for `vg retrieve`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError
from vgtools.models.references import check_same
from vgtools.models.runs import Run
from vgtools.retrieval.foreign import Embeddings
from vgtools.retrieval.index import Index, check_embeddings
from vgtools.retrieval.texts import EmbeddedBank, NearestImages
from vgtools.systems.visual_awareness.retriever import Retriever, load_retriever
from vgtools.systems.visual_awareness.words import Reader, RetrieverTexts, open_reader

_WORDS = 1 << 13  # words of texts that are embedded at a time, padding included
_NUMBERS = 1 << 23  # numbers of feature maps that are embedded at a time: 32 MB


@dataclass(frozen=True)
class RetrieverRun:
    """A finished retriever with the reader of its texts."""

    retriever: Retriever  # eval mode
    reader: Reader
    run: Run
    ref: str

    @property
    def fingerprint(self) -> str:
        """The hash of the weights and of the encoder or the word vectors."""
        parts = self.run.fingerprint + self.reader.fingerprint
        return hashlib.sha256(parts.encode()).hexdigest()


def open_retriever(path: str | Path, *, device: str = "cpu") -> RetrieverRun:
    """Open a run of `vg train-matcher visual-awareness`.

    Raises:
        DataError: not there or not finished (66); damaged, or its words differ from the words of
            its training (65).
    """
    retriever, run = load_retriever(path, device=device)
    reader = open_reader(run, device=device)
    return RetrieverRun(retriever, reader, run, str(path))


@torch.inference_mode()
def embed_texts(
    retriever: Any, reader: Reader, texts: RetrieverTexts, check: Callable[[], None] = lambda: None
) -> tuple[Tensor, Array]:
    """Return the embeddings of the texts that have a word, and which they are.

    Texts of similar length go together, which needs little padding; up to rounding an embedding
    depends on its text alone.

    Args:
        retriever: the retriever, in eval mode.
        reader: the reader that made `texts`.
        texts: B of them.
        check: called between batches; an exception that it raises ends the work.

    Returns:
        (Q, E) unit vectors on the retriever's device, and (Q,) int64 numbers of their texts.
    """
    device = next(retriever.parameters()).device
    asking = texts.asking
    vectors = torch.empty(len(asking), retriever.config.dim, device=device)
    lengths = np.diff(texts.starts)[asking]
    for part in _parts(lengths):
        check()
        words, counts = reader.inputs(texts, asking[part])
        vectors[torch.from_numpy(part).to(device)] = retriever.embed_texts(
            words.to(device), counts.to(device)
        )
    return vectors, asking


def _parts(lengths: Array) -> Iterator[Array]:
    """Yield the numbers of texts in parts of at most `_WORDS` words, padding included."""
    order = np.argsort(lengths, kind="stable")
    first = 0
    while first < len(order):
        # Lengths rise, so n texts take n times the length of the n-th, padding included.
        padded = np.arange(1, len(order) - first + 1) * lengths[order[first:]]
        size = max(1, int(np.searchsorted(padded, _WORDS, "right")))
        yield order[first : first + size]
        first += size


@torch.inference_mode()
def embed_images(retriever: Any, feats: Any, rows: Array | None = None) -> Array:
    """Return the embeddings of feature maps, block by block.

    Args:
        retriever: a `Retriever` in eval mode, or a network that embeds images with the same method.
        feats: (N, P, D), or other inputs that it embeds, indexed as an array.
        rows: (I,) which of them; all by default.

    Returns:
        (I, E) float32 unit vectors.
    """
    device = next(retriever.parameters()).device
    rows = np.arange(len(feats)) if rows is None else rows
    found = np.empty((len(rows), retriever.config.dim), np.float32)
    size = max(1, _NUMBERS // max(1, feats[:1].size))
    for first in range(0, len(rows), size):
        part = np.asarray(feats[rows[first : first + size]], np.float32)
        block = retriever.embed_images(torch.from_numpy(part).to(device)).cpu().numpy()
        found[first : first + size] = block
    return found


def embed_bank(
    opened: RetrieverRun, feats: Array, ids: Sequence[str], file: str | None = None
) -> Callable[[Array], Array]:
    """Return a function that embeds rows of an image bank (N, P, D): (n,) rows -> (n, E) float32.

    Raises:
        DataError: feature maps of another width than the retriever's; and later an embedding that
            is NaN, infinite or zero; both are named.
    """
    width = opened.retriever.config.image_width
    if feats.shape[2] != width:
        why = f"expected feature maps (images, positions, {width}) for the retriever {opened.ref}"
        raise DataError(f"{why}, got {feats.shape}", file)

    def embed(rows: Array) -> Array:
        found = embed_images(opened.retriever, feats, rows)
        check_embeddings(found, ids, rows, file)
        return found

    return embed


def open_bank(run: str, feats: str | Embeddings, device: str) -> EmbeddedBank:
    """Open feature maps and the retriever that embeds them, or embeddings in its space.

    Raises:
        DataError: as `open_features` and `open_retriever`; maps of another backbone,
            or embeddings of another width (65).
    """
    opened = open_retriever(run, device=device)
    config = opened.retriever.config
    if isinstance(feats, str):
        features = open_features(feats, positions=config.regions)
        check_same("backbone", features.made_by, opened.run.info.get("backbone"), feats)
        embed = embed_bank(opened, features.array, features.ids, feats)
    else:
        features = feats
        embed = feats.fitting(config.dim, run)
    return EmbeddedBank(
        features,
        opened.fingerprint,
        config.dim,
        embed,
        lambda: vocabulary_queries(opened),
    )


def open_search(index: Index, run: str, device: str) -> RetrieverSearch:
    """Open a retriever for the index that it embedded.

    Raises:
        DataError: as `open_retriever` and `RetrieverSearch`.
    """
    return RetrieverSearch(open_retriever(run, device=device), index)


def vocabulary_queries(opened: RetrieverRun, count: int = 4096) -> Array:
    """Return the embeddings of single words, (at most `count`, E) float32."""
    texts = opened.reader.read(opened.reader.words(count))
    return embed_texts(opened.retriever, opened.reader, texts)[0].cpu().numpy()


class RetrieverSearch(NearestImages[RetrieverTexts]):
    """Finds the images of sentences; a `retrieval.Retriever`.

    Args:
        opened: the retriever.
        index: the image bank, embedded by this very retriever.

    Raises:
        DataError: the index is of another retriever (65; both fingerprints).
    """

    def __init__(self, opened: RetrieverRun, index: Index) -> None:
        made = index.manifest.get("matcher")
        given = {"run": opened.ref, "fingerprint": opened.fingerprint}
        check_same("retriever", made, given, index.path)
        super().__init__(index, opened.fingerprint)
        self._opened = opened
        self._cancelled = False

    @property
    def device(self) -> torch.device:
        """Where texts are embedded."""
        return next(self._opened.retriever.parameters()).device

    def prepare(self, texts: Sequence[str]) -> RetrieverTexts:
        """Return the words of texts."""
        return self._opened.reader.read(texts, self._check)

    def embed(self, texts: RetrieverTexts) -> tuple[Tensor, Array]:
        """Return y of texts, see `embed_texts`."""
        return embed_texts(self._opened.retriever, self._opened.reader, texts, self._check)

    def cancel(self) -> None:
        """Make work in another thread end soon."""
        self._cancelled = True

    def _check(self) -> None:
        if self._cancelled:
            raise InterruptedError
