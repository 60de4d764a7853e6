"""Retrievers, which find images of whole texts, and the stream from texts to their images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.artifact import Features
from vgtools.io.streams import Window
from vgtools.io.windows import pipelined
from vgtools.retrieval.exact import SearchResult, nothing_found
from vgtools.retrieval.index import Index

if TYPE_CHECKING:
    import torch

_TEXTS = 1024  # texts whose relevance is computed at a time


class Ranking(NamedTuple):
    """How images rank for texts, -inf where an image is not found at all."""

    order: Array  # (B, I) number by which the images of a text are ordered, the largest first
    relevance: Array  # (B, I) numbers that also compare between texts; mostly the same array


class TextRetriever(Protocol):
    """Finds images of texts; the images of a text depend only on the text and on its own image."""

    def prepare(self, texts: Sequence[str]) -> Any:
        """Return texts in the form that `search` takes; called ahead of it in another thread."""
        ...

    def search(self, prepared: Any, k: int, own: Array) -> SearchResult:
        """Return k images of each of B texts; (B,) `own` is a row never returned, -1 for none.

        Rows are -1 where there are fewer than k, and for a text that asks for nothing.
        """
        ...

    def relevance(self, prepared: Any, images: Array) -> Ranking:
        """Return how the images of (I,) rows of the bank rank for each of B texts."""
        ...

    def cancel(self) -> None:
        """Make work in another thread end soon."""
        ...


@dataclass(frozen=True)
class EmbeddedBank:
    """Image features, and how a finished run embeds them."""

    features: Features
    fingerprint: str  # the run's fingerprint
    dim: int  # E
    embed: Callable[[Array], Array]  # (n,) rows of the features -> (n, E) float32 unit vectors
    queries: Callable[[], Array]  # (Q, E) embeddings of words, to measure an index with


class Prepared(Protocol):
    """B texts that are ready to be embedded."""

    @property
    def starts(self) -> Array:
        """Where each text starts, (B + 1,)."""
        ...


Texts = TypeVar("Texts", bound=Prepared)


class NearestImages(ABC, Generic[Texts]):
    """A `TextRetriever` that finds the images nearest to an embedding of the text.

    Args:
        index: the image bank.
        fingerprint: the fingerprint of the run that embeds texts.
    """

    def __init__(self, index: Index, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._index = index
        self._kept: deque[Array] | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide the images in addition to the index and the run."""
        return {}

    def keep(self, kept: deque[Array]) -> None:
        """Let `search` append the (B, E) embeddings of its texts, 0 for texts that ask nothing."""
        self._kept = kept

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where texts are embedded."""

    @abstractmethod
    def prepare(self, texts: Sequence[str]) -> Texts:
        """Return texts in the form that `embed` takes."""

    def cancel(self) -> None:
        """Make work in another thread end soon; where nothing takes long there is no need to."""

    @abstractmethod
    def embed(self, texts: Texts) -> tuple[torch.Tensor, Array]:
        """Return (Q, E) unit vectors of the texts that ask for something, and their numbers."""

    def search(self, texts: Texts, k: int, own: Array) -> SearchResult:
        """Return the k most relevant images of texts, without a row of the text's own.

        Args:
            texts: B of them.
            k: images per text.
            own: (B,) int32 row to leave out, -1 for none.
        """
        queries, asking = self.embed(texts)
        if self._kept is not None:
            vectors = np.zeros((len(own), queries.shape[1]), np.float32)
            vectors[asking] = queries.float().cpu().numpy()
            self._kept.append(vectors)
        # One image more than asked for, so that k are left when the text's own image is among them.
        most = min(k + bool((own >= 0).any()), self._index.count)
        best = leave_out(self._index.search(queries, most), own[asking], k)
        # A text that asks for nothing was not embedded, and keeps -1 in all its places.
        found = nothing_found(len(own), k)
        found.rows[asking] = best.rows
        found.scores[asking] = best.scores
        return found

    def relevance(self, texts: Texts, images: Array) -> Ranking:
        """Return the relevance of some images to texts, -inf for a text that asks for nothing.

        Raises:
            DataError: the index is not exact (usage).
        """
        # In float64, in which the exact search compares as well.
        bank = self._index.vectors(images).astype(np.float64)
        queries, asking = self.embed(texts)
        found = np.full((len(texts.starts) - 1, len(images)), -np.inf)
        found[asking] = queries.double().cpu().numpy() @ bank.T
        return Ranking(found, found)


Row = Mapping[str, Any]  # a row of the input: "text", and "image" where it names its own


def retrieve(
    windows: Iterable[Window],
    read: Callable[[Window], Sequence[Row]],
    retriever: TextRetriever,
    own: Callable[[Sequence[Row]], Array],
    k: int,
) -> Generator[tuple[Window, tuple[Sequence[Row], SearchResult]], None, None]:
    """Return each window with its rows and the images of their texts, in order.

    The next windows are read, prepared and searched meanwhile.

    Args:
        windows: windows of input lines.
        read: gives the rows of a window.
        retriever: finds the images.
        own: gives the (B,) image of each row that is not to be found, -1 for none.
        k: images per text.
    """

    def prepare(window: Window) -> tuple[Sequence[Row], Any]:
        rows = read(window)
        return rows, retriever.prepare([row["text"] for row in rows])

    def compute(prepared: tuple[Sequence[Row], Any]) -> tuple[Sequence[Row], SearchResult]:
        rows, texts = prepared
        return rows, retriever.search(texts, k, own(rows))

    return pipelined(windows, prepare, compute, retriever.cancel)


def rank(
    texts: Sequence[str], images: Array, retriever: TextRetriever
) -> Generator[Ranking, None, None]:
    """Yield how images rank for texts, block by block.

    Args:
        texts: any number.
        images: (I,) rows of the bank.
        retriever: ranks them.
    """
    for start in range(0, len(texts), _TEXTS):
        yield retriever.relevance(retriever.prepare(texts[start : start + _TEXTS]), images)


def leave_out(found: SearchResult, own: Array, k: int) -> SearchResult:
    """Return the k best images that were found, without a row of the query's own.

    Args:
        found: images of Q queries, best first.
        own: (Q,) row to leave out, -1 for none.
        k: columns of the result; where fewer are left, the rest is -1 with score 0.
    """
    return first_of(found, found.rows != own[:, None], k)


def first_of(found: SearchResult, kept: Array, k: int) -> SearchResult:
    """Return the first k images that were found and are kept.

    Args:
        found: (Q, n), best first.
        kept: (Q, n) bool.
        k: columns of the result; where fewer are left, the rest is -1 with score 0.
    """
    best = nothing_found(len(kept), k)
    dropped = ~kept | (found.rows < 0)
    # A stable sort of one bit moves the dropped images to the end and keeps the order of the rest.
    order = np.argsort(dropped, axis=1, kind="stable")[:, :k]
    here = ~np.take_along_axis(dropped, order, 1)
    for whole, array in zip(best, found, strict=True):
        whole[:, : order.shape[1]][here] = np.take_along_axis(array, order, 1)[here]
    return best
