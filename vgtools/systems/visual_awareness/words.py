"""The inputs of a retriever's text path (section 2.1): word vectors, or states of an encoder.

A *reader* turns texts into items and items into the text path's input. For word vectors the items
are rows of a table, and for an encoder's word pieces rows of its embeddings; with its states
(`text="encoder"`) a text has one item, the mean state.

Axes: B texts, T items of all of them together, V rows of a table, W its width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.packed import PackedEncoder
from vgtools.models.references import check_same
from vgtools.models.runs import Run
from vgtools.models.sealed import check_files
from vgtools.text.tokens import Tokens, row_starts, tokenize, tokenizer_fingerprint, word_runs
from vgtools.text.word_vectors import open_word_vectors, ragged, spelling

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TABLE = "words/table.npy"  # the word vectors of a run
LONGEST = 512  # words of a text that are read; the rest is cut off
UNKNOWN = ("UNK", "<unk>")  # words of a table that stand for all others
_BLOCK = 4096  # texts whose states are computed at a time


class RetrieverTexts(NamedTuple):
    """B texts as a text path reads them."""

    starts: Array  # (B + 1,) int64: the items of text b are starts[b] to starts[b + 1]
    items: Array  # (T,) int32 rows of the table, or (T, W) float16 states
    unknown: int  # words that the table does not have
    cut: int  # texts that were longer than the limit and cut

    @property
    def asking(self) -> Array:
        """The numbers of the texts that have an item, (Q,) int64."""
        return np.flatnonzero(np.diff(self.starts))


class Reader(Protocol):
    """Texts to the input of a text path."""

    width: int  # W
    fingerprint: str  # hash of word vectors; empty for an encoder, which the run's hash covers

    def read(
        self, texts: Sequence[str], check: Callable[[], None] = lambda: None
    ) -> RetrieverTexts:
        """Return the items of texts; `check` is called now and then and may raise."""
        ...

    def words(self, count: int) -> list[str]:
        """Return some words that it knows, at most `count`."""
        ...

    def inputs(self, texts: RetrieverTexts, numbers: Array) -> tuple[Tensor, Tensor]:
        """Return the input for some texts that have items.

        Returns:
            (longest, B, W) vectors, zero after a text's end; (B,) int64 items of each text.
        """
        ...


class WordReader:
    """Word vectors of a table.

    A word is a run of letters and digits, in lower case, or else as it is written. A word that the
    table does not know has the vector of the table's `UNK` or `<unk>`; if there is none, it is left
    out and counted.

    Args:
        rows: word -> row.
        table: (V, W) float32.
        fingerprint: hash of both.
    """

    def __init__(self, rows: dict[str, int], table: Array, fingerprint: str = "") -> None:
        self.fingerprint = fingerprint
        self.width = int(table.shape[1])
        self._rows = rows
        self._table = table
        self._unknown = next((rows[word] for word in UNKNOWN if word in rows), -1)

    def read(
        self, texts: Sequence[str], check: Callable[[], None] = lambda: None
    ) -> RetrieverTexts:
        """Return the known words of texts."""
        check()
        spans, starts = word_runs(texts)
        texts_of = np.repeat(np.arange(len(texts)), np.diff(starts))
        rows = np.empty(len(spans), np.int32)
        unknown = 0
        for place, (text, (begin, end)) in enumerate(
            zip(texts_of.tolist(), spans.tolist(), strict=True)
        ):
            written = texts[text][begin:end]
            row = self._rows.get(spelling(written), self._rows.get(written, -1))
            unknown += row < 0
            rows[place] = self._unknown if row < 0 else row
        known = rows >= 0
        counts = np.bincount(texts_of[known], minlength=len(texts))
        return _cut(row_starts(counts.tolist()), rows[known], LONGEST, unknown)

    def words(self, count: int) -> list[str]:
        """Return the first words of the table."""
        return list(islice(filter(str.isalnum, self._rows), count))

    def inputs(self, texts: RetrieverTexts, numbers: Array) -> tuple[Tensor, Tensor]:
        """Return the word vectors of texts."""
        return _padded(texts, numbers, lambda items: self._table[items])


class PieceReader:
    """Word pieces of an encoder's tokenizer, with the embeddings that its first layer reads."""

    fingerprint = ""

    def __init__(self, encoder: Encoder) -> None:
        weight = encoder.model.get_input_embeddings().weight
        self._table = weight.detach().float().cpu().numpy()
        self._tokenizer = encoder.tokenizer
        self.width = int(self._table.shape[1])

    def read(
        self, texts: Sequence[str], check: Callable[[], None] = lambda: None
    ) -> RetrieverTexts:
        """Return the word pieces of texts."""
        tokens = tokenize(self._tokenizer, texts)
        return _cut(tokens.starts, tokens.ids.astype(np.int32), LONGEST, 0)

    def words(self, count: int) -> list[str]:
        """Return words of the tokenizer's vocabulary."""
        return _vocabulary(self._tokenizer, count)

    def inputs(self, texts: RetrieverTexts, numbers: Array) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the word pieces of texts."""
        return _padded(texts, numbers, lambda items: self._table[items])


class StateReader:
    """The mean state of a text's tokens, of the last layers of a frozen encoder, concatenated."""

    fingerprint = ""

    def __init__(self, encoder: Encoder, layers: int) -> None:
        self._packed = PackedEncoder(encoder, layers)
        self._encoder = encoder
        self.width = layers * encoder.width

    def read(
        self, texts: Sequence[str], check: Callable[[], None] = lambda: None
    ) -> RetrieverTexts:
        """Return the mean state of each text that has a token."""
        tokens = tokenize(self._encoder.tokenizer, texts)
        lengths = np.minimum(np.diff(tokens.starts), self._encoder.max_tokens)
        asking = np.flatnonzero(lengths)
        # Half precision halves the memory that the states of a whole corpus take.
        means = np.empty((len(asking), self.width), np.float16)
        for first in range(0, len(asking), _BLOCK):
            check()
            numbers = asking[first : first + _BLOCK]
            means[first : first + len(numbers)] = self._means(tokens, numbers, lengths[numbers])
        cut = int((np.diff(tokens.starts) > lengths).sum())
        return RetrieverTexts(row_starts((lengths > 0).astype(int).tolist()), means, 0, cut)

    @torch.inference_mode()
    def _means(self, tokens: Tokens, numbers: Array, lengths: Array) -> Array:
        found = np.empty((len(numbers), self.width), np.float16)
        for pack in self._packed(tokens.ids, tokens.starts[numbers], lengths):
            sizes = torch.from_numpy(lengths[pack.segments]).to(pack.tokens.device)
            means = torch.segment_reduce(pack.tokens.float(), "mean", lengths=sizes, axis=0)
            found[pack.segments] = means.half().cpu().numpy()
        return found

    def words(self, count: int) -> list[str]:
        """Return words of the tokenizer's vocabulary."""
        return _vocabulary(self._encoder.tokenizer, count)

    def inputs(self, texts: RetrieverTexts, numbers: Array) -> tuple[Tensor, Tensor]:
        """Return (1, B, W) mean states of texts."""
        return _padded(texts, numbers, lambda states: states)


def _vocabulary(tokenizer: Tokenizer, count: int) -> list[str]:
    """Return words of a vocabulary in the order of their ids, without pieces of words."""
    vocabulary = tokenizer.get_vocab()
    return list(islice(filter(str.isalnum, sorted(vocabulary, key=vocabulary.__getitem__)), count))


def _cut(starts: Array, items: Array, longest: int, unknown: int) -> RetrieverTexts:
    """Return texts without the items after the `longest`-th of each."""
    counts = np.diff(starts)
    cut = int((counts > longest).sum())
    if cut:
        places, starts_of = ragged(starts[:-1], starts[:-1] + np.minimum(counts, longest))
        return RetrieverTexts(starts_of, items[places], unknown, cut)
    return RetrieverTexts(starts, items, unknown, 0)


def _padded(
    texts: RetrieverTexts, numbers: Array, vectors: Callable[[Array], Array]
) -> tuple[Tensor, Tensor]:
    """Return the vectors of the items of some texts, (longest, B, W) float32, and their counts."""
    places, starts = ragged(texts.starts[numbers], texts.starts[numbers + 1])
    flat = vectors(texts.items[places])
    lengths = np.diff(starts)
    padded = np.zeros((int(lengths.max()), len(numbers), flat.shape[1]), np.float32)
    columns = np.repeat(np.arange(len(numbers)), lengths)
    padded[np.arange(len(flat)) - starts[columns], columns] = flat
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def words_of(texts: Sequence[str]) -> set[str]:
    """Return the words that `WordReader` looks up for texts, and the words for unknown ones."""
    spans, starts = word_runs(texts)
    texts_of = np.repeat(np.arange(len(texts)), np.diff(starts)).tolist()
    written = {texts[t][a:b] for t, (a, b) in zip(texts_of, spans.tolist(), strict=True)}
    return written | {spelling(word) for word in written} | set(UNKNOWN)


def encoder_reader(encoder: Encoder, text: str, layers: int) -> Reader:
    """Return the reader of an encoder's word pieces, or of its states for `text="encoder"`."""
    return StateReader(encoder, layers) if text == "encoder" else PieceReader(encoder)


def open_reader(run: Run, *, device: str = "cpu") -> Reader:
    """Open the reader of a finished run, from its own copy of the words or of the encoder.

    Raises:
        DataError: damaged, or different from the words or the encoder that the run was trained with
            (65).
    """
    trained: dict[str, Any] = run.info.get("encoder", {})
    if not trained:
        check_files(run.path, run.info, "words/")
        vectors = open_word_vectors(str(run.path / TABLE))
        return _fitting(run, WordReader(vectors.rows, vectors.array, vectors.fingerprint))
    file = run.path / "run.json"
    encoder = load_encoder(str(run.path), device=device, states=True)
    given = {"ref": str(run.path), "fingerprint": encoder.fingerprint}
    check_same("encoder", given, trained, file)
    given = {"ref": "tokenizer.json", "fingerprint": tokenizer_fingerprint(encoder.tokenizer)}
    expected = {"ref": trained.get("ref"), "fingerprint": trained.get("tokenizer")}
    check_same("tokenizer", given, expected, file)
    config = run.info["retriever"]
    return _fitting(run, encoder_reader(encoder, config["text"], config["layers"]))


def _fitting(run: Run, reader: Reader) -> Reader:
    expected = run.info["retriever"]["text_width"]
    if reader.width != expected:
        why = f'"retriever": has text_width {expected}, its words have {reader.width} numbers'
        raise DataError(why, Path(run.path) / "run.json")
    return reader
