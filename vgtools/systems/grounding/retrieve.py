"""Images of whole texts by association (Sileo 2021, section 2.4), for `vg retrieve`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from vgtools.io.arrays import Array
from vgtools.retrieval.exact import SearchResult, nothing_found
from vgtools.retrieval.texts import Ranking
from vgtools.systems.grounding.association import Associator
from vgtools.text.word_vectors import ContentWords

_PAIRS = 1 << 22  # pairs of a text and an image that are ranked at a time
_TEXTS = 256  # texts searched between two checks for a cancellation


class AssociativeRetriever:
    """Finds the images of texts by their words; a `retrieval.Retriever`.

    Args:
        associator: as `open_associator` returns it.

    Source: section 2.4.
    """

    def __init__(self, associator: Associator) -> None:
        self._associator = associator
        self._cancelled = threading.Event()

    def prepare(self, texts: Sequence[str]) -> ContentWords:
        """Return the words of texts that can find images."""
        return self._associator.words(texts)

    def search(self, words: ContentWords, k: int, own: Array) -> SearchResult:
        """Return the k best images of texts, without a row of the text's own."""
        count = len(words.starts) - 1
        found = nothing_found(count, k)
        for part in self._parts(count, _TEXTS):
            left_out = own[part] if (own >= 0).any() else None
            some = self._associator.search(words.take(part), k, own=left_out)
            found.rows[part] = some.rows
            found.scores[part] = some.scores
        return found

    def relevance(self, words: ContentWords, images: Array) -> Ranking:
        """Return the relevance of some images to texts, and the order in which they are found.

        The order of objects and keywords does not follow from scores alone: images of a text's
        nouns come in turn, and among equal counts the image that is met first comes first.
        """
        bank = len(self._associator.ids)
        count = len(words.starts) - 1
        column = np.full(bank + 1, -1)  # the last entry is for row -1
        column[images] = np.arange(len(images))
        found = Ranking(*(np.full((count, len(images)), -np.inf) for _ in range(2)))
        for part in self._parts(count, max(1, _PAIRS // bank)):
            rows, scores = self._associator.search(words.take(part), bank)
            text, place = np.nonzero(column[rows] >= 0)
            at = part[text], column[rows[text, place]]
            found.relevance[at] = scores[text, place]
            # Earlier places are better, and a larger order is better.
            found.order[at] = -place
        return found

    def cancel(self) -> None:
        """Make work in another thread end soon."""
        self._cancelled.set()

    def _parts(self, count: int, size: int) -> Iterator[Array]:
        """Yield the numbers from 0 in parts of a size, until the work is cancelled."""
        for start in range(0, count, size):
            if self._cancelled.is_set():
                raise InterruptedError
            yield np.arange(start, min(start + size, count))
