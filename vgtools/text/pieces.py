"""Tokens of texts from the tokens of their words, each of which is tokenised once.

A tokenizer that splits a text at its spaces before anything else gives a word the same tokens in
every text. A text repeats its words, so that a table of words is several times as fast as the
library.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vgtools.io.arrays import Array, ranges

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_HELD = 1 << 21  # characters of the words that are kept: some 40 MB with their tokens
# Before a piece that starts a text, or is all of it, where that makes a difference.
_FIRST = "\0"

Encoded = tuple[Array, Array, Array]  # ids (T,), spans (T, 2) and row starts (R + 1,) of R texts


class _PieceTokens(NamedTuple):
    """The tokens of pieces by their number; the arrays have room for more."""

    ids: Array
    spans: Array
    starts: Array


def _extended(array: Array, used: int, more: Array) -> Array:
    """Return an array with more after those that are used, in place if there is room.

    Rows that are used never change, so that whoever reads them needs no lock.
    """
    end = used + len(more)
    if end > len(array):
        # Twice the size each time: a copy for every new word would take longer than its tokens.
        larger = np.empty((max(end, 2 * len(array)), *array.shape[1:]), array.dtype)
        larger[:used] = array[:used]
        array = larger
    array[used:end] = more
    return array


class PieceTable:
    """Tokenises texts by the words between their spaces, and remembers words.

    Args:
        encode: tokenises texts as they are.
        spaced: whether the space before a word is part of its tokens, as in byte-level BPE.
        wide: strings whose tokens depend on their neighbours; a text with one is not cut.
    """

    def __init__(
        self, encode: Callable[[Sequence[str]], Encoded], spaced: bool, wide: Sequence[str]
    ) -> None:
        self._encode = encode
        self._spaced = spaced
        self._wide = re.compile("|".join(map(re.escape, wide)) or "(?!)")
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._numbers = dict[str, int]()
        self._held = 0
        empty = np.zeros(0, np.int32)
        self._table = _PieceTokens(empty, empty.reshape(0, 2), np.zeros(1, np.int64))

    def __call__(self, texts: Sequence[str]) -> Encoded:
        """Return the tokens of texts, as `encode` does."""
        parts = [*map(self._pieces, texts)]
        counts = np.fromiter(map(len, parts), np.int64, len(parts))
        pieces = [piece for part in parts for piece in part]
        with self._lock:
            table = self._known(pieces)
            numbers = np.fromiter(map(self._numbers.__getitem__, pieces), np.int64, len(pieces))
            if self._held > _HELD:
                self._clear()
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        # A space comes after each piece; it belongs to the piece after it if those are spaced.
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces)) + 1
        before = np.cumsum(sizes) - sizes
        base = before - np.repeat(before[edges[:-1]], counts)
        if self._spaced:
            first = np.zeros(len(pieces), bool)
            first[edges[:-1]] = True
            # The mark of a first piece is not in the text.
            base = np.where(first, 0, base - 2)
        tokens = table.starts[numbers + 1] - table.starts[numbers]
        places = ranges(table.starts[numbers], tokens)
        spans = table.spans[places] + np.repeat(base.astype(np.int32), tokens)[:, None]
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens)])
        return table.ids[places], spans, ends[edges]

    def _pieces(self, text: str) -> list[str]:
        words = text.split(" ")
        whole = self._wide.search(text) is not None
        if not self._spaced:
            return [text] if whole else words
        # Other or several spaces are tokens of their own, in ways that only the library knows.
        if whole or _FIRST in text or words != text.split():
            return [_FIRST + text]
        words[0] = _FIRST + words[0]
        return words

    def _known(self, pieces: list[str]) -> _PieceTokens:
        """Return the table, with all pieces in it."""
        fresh = list(set(pieces).difference(self._numbers))
        if fresh:
            ids, spans, starts = self._encode([*self._texts(fresh)])
            if self._spaced:
                # A token of the space alone is empty after it, wherever the library puts one that
                # starts a text.
                inner = np.array([piece[0] != _FIRST for piece in fresh])
                spans = np.maximum(spans, np.repeat(inner, np.diff(starts))[:, None])
            old = self._table
            count = len(self._numbers)
            used = int(old.starts[count])
            self._numbers.update(zip(fresh, range(count, count + len(fresh)), strict=True))
            self._held += sum(map(len, fresh))
            self._table = _PieceTokens(
                _extended(old.ids, used, ids),
                _extended(old.spans, used, spans),
                _extended(old.starts, count + 1, starts[1:] + used),
            )
        return self._table

    def _texts(self, pieces: list[str]) -> Iterator[str]:
        if not self._spaced:
            return iter(pieces)
        return (p[1:] if p[0] == _FIRST else f" {p}" for p in pieces)


def piece_table(
    tokenizer: Tokenizer, encode: Callable[[Sequence[str]], Encoded]
) -> PieceTable | None:
    """Return a table of words for BERT's tokenizer, or a byte-level BPE as GPT-2 and RoBERTa have.

    None: it is not known that the tokenizer gives a word the same tokens in every text.
    """
    from tokenizers import models, normalizers, pre_tokenizers

    model = tokenizer.model
    normalizer = tokenizer.normalizer
    split = tokenizer.pre_tokenizer
    spaced = isinstance(split, pre_tokenizers.ByteLevel)
    if spaced:
        known = normalizer is None and split.use_regex
        known = known and isinstance(model, models.BPE) and not model.dropout
    else:
        known = normalizer is None or isinstance(normalizer, normalizers.BertNormalizer)
        known = known and isinstance(split, pre_tokenizers.BertPreTokenizer)
        known = known and isinstance(model, models.WordPiece)
    if not known:
        return None
    # RoBERTa's <mask> takes the spaces before it; other tokens that see their neighbours are rare.
    wide = [
        token
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.lstrip
        or token.rstrip
        or token.single_word
        or token.content != "".join(token.content.split())
    ]
    if normalizer is not None and any(token.normalized for token in wide):
        return None
    return PieceTable(encode, spaced, [token.content for token in wide])
