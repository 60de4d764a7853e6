"""An encoder, or word vectors, that evaluations ask for vectors of words and sentences.

The vector of a word or sentence is a mean of token states. `alone`: last states of the word by
itself; `contexts`: last states of the word in lines of a text; `input`: rows of the input table.

Axes: W words or texts, D dimensions, T tokens, K occurrences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from vgtools.io.arrays import Array, ranges
from vgtools.io.errors import DataError, Exit
from vgtools.measures.contexts import Contexts
from vgtools.text import word_vectors
from vgtools.text.tokens import Tokens, split_window, tokenize, word_runs

if TYPE_CHECKING:
    from vgtools.models.cloze import ClozeModel

Vectors = Literal["alone", "contexts", "input"]

_AT_ONCE = 8192  # texts that are tokenised at a time


@dataclass(frozen=True)
class Reading:
    """How subjects are read."""

    vectors: Vectors
    contexts: Contexts | None = None  # lines for all words, for `contexts`
    device: str = "cpu"


class Subject:
    """An encoder, or word vectors.

    Args:
        ref: an encoder, or word vectors (X.npy of `vg prepare vectors`, `builtin:glove-50d`).
        reading: how it is read.

    Attributes:
        fingerprint: sha256 of its weights.

    Raises:
        DataError: it cannot be opened.
    """

    def __init__(self, ref: str, reading: Reading) -> None:
        self.ref = ref
        self.reading = reading
        self._table: word_vectors.WordVectors | None = None
        self._known: dict[str, int] | None = None  # row of each word of the contexts
        if word_vectors.are_word_vectors(ref):
            self._table = word_vectors.open_word_vectors(ref)
            self.fingerprint = self._table.fingerprint
            return
        from vgtools.models.encoder import load_encoder

        self.encoder = load_encoder(ref, device=reading.device, states=True)
        self.fingerprint = self.encoder.fingerprint

    @cached_property
    def cloze(self) -> ClozeModel | None:
        """The masked language model, to be asked for hidden tokens.

        None for word vectors, and for an encoder without such a model's head.
        """
        if self._table is not None:
            return None
        from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

        from vgtools.models.cloze import open_cloze

        if self.encoder.model.config.model_type not in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
            return None
        reading = self.reading
        try:
            return open_cloze(self.ref, device=reading.device)
        except DataError as error:
            # The encoder itself could be opened, so that only its head can be lacking.
            if error.code != Exit.CONFIG:
                raise
            return None

    def words(self, words: Sequence[str]) -> Array:
        """Return the vectors of words in lower case: (W, D) float32, NaN for an unknown word."""
        if self._table is not None:
            rows = np.array([self._table.row(word) for word in words])
            found: Array = np.where(rows[:, None] < 0, np.nan, self._table.array[rows])
            return found
        if self.reading.contexts is not None:
            if self._known is None:
                self._in_contexts(self.reading.contexts)
            assert self._known is not None
            own: Array = self._vectors[[self._known[word] for word in words]]
            return own
        # Inside texts, words follow a blank, which belongs to the pieces of some tokenizers.
        lead = " " if self.reading.vectors == "input" else ""
        texts = [lead + word for word in words]
        return self._whole(texts, len(lead))

    def sentences(self, texts: Sequence[str]) -> Array:
        """Return the vectors of sentences: (W, D) float32, NaN for one without a known token."""
        if self._table is None:
            return self._whole(texts)
        spans, starts = word_runs(texts)
        numbers = np.repeat(np.arange(len(texts)), np.diff(starts)).tolist()
        pairs = zip(numbers, spans.tolist(), strict=True)
        words = [word_vectors.spelling(texts[number][a:b]) for number, (a, b) in pairs]
        rows = np.array([self._table.row(word) for word in words], np.int64)
        means, counts = word_vectors.mean_vectors(self._table.array, rows, starts, rows >= 0)
        means[counts == 0] = np.nan
        return means.astype(np.float32)

    def _whole(self, texts: Sequence[str], begin: int = 0) -> Array:
        """Return the vectors of texts, each from the character `begin` on."""
        numbers = np.arange(len(texts))
        spans = np.column_stack([numbers, np.full(len(texts), begin), list(map(len, texts))])
        return self._means(texts, spans, numbers, len(texts))

    def _in_contexts(self, contexts: Contexts) -> None:
        self._known = {word: row for row, word in enumerate(contexts.words)}
        size = len(contexts.words)
        self._vectors = self._means(contexts.texts, contexts.places, contexts.rows, size)

    def _means(self, texts: Sequence[str], places: Array, rows: Array, size: int) -> Array:
        """Return for each row the mean over its occurrences of the mean over their tokens.

        A token of which the tokenizer only knows that it is unknown does not count.

        Args:
            texts: the texts.
            places: (K, 3) text, first character and the one after the last; texts in order.
            rows: (K,) row of each occurrence.
            size: number of rows.

        Returns:
            (size, D) float32, NaN for a row without a token.
        """
        tokenizer = self.encoder.tokenizer
        read = TokenStates(self.encoder, self.reading.vectors == "input")
        sums = np.zeros((size, self.encoder.width))
        counts = np.zeros(size, np.int64)
        for start in range(0, len(texts), _AT_ONCE):
            part = texts[start : start + _AT_ONCE]
            tokens = tokenize(tokenizer, part)
            a, b = np.searchsorted(places[:, 0], [start, start + len(part)])
            token, place = tokens_at(tokens, part, places[a:b] - [start, 0, 0])
            known = tokens.ids[token] != unknown_id(tokenizer)
            token = token[known]
            place = place[known]
            sizes = np.bincount(place, minlength=b - a)
            np.add.at(counts, rows[a:b][sizes > 0], 1)
            at = np.full(len(tokens.ids), -1)
            needed = np.zeros(len(tokens.ids), bool)
            needed[token] = True
            for numbers, states in read(tokens, needed):
                at[numbers] = np.arange(len(numbers))
                here = at[token] >= 0
                parts = states[at[token[here]]] / sizes[place[here], None]
                _add(sums, rows[a:b][place[here]], parts)
                at[numbers] = -1
        with np.errstate(invalid="ignore"):
            means: Array = (sums / counts[:, None]).astype(np.float32)
        return means


def _add(sums: Array, rows: Array, parts: Array) -> None:
    """Add vectors to rows, several to one row if it is named several times."""
    order = np.argsort(rows, kind="stable")
    distinct, first = np.unique(rows[order], return_index=True)
    if len(distinct):
        sums[distinct] += np.add.reduceat(parts[order], first, axis=0)


def tokens_at(tokens: Tokens, texts: Sequence[str], places: Array) -> tuple[Array, Array]:
    """Return the tokens with a character of a place: (M,) their numbers, and (M,) the place's.

    Args:
        tokens: tokens of the texts.
        texts: the texts.
        places: (K, 3) text, first character and the one after the last.
    """
    # One line of characters for all texts, with a gap between them.
    bases = np.concatenate([[0], np.cumsum([len(text) + 1 for text in texts])])
    spans = tokens.spans + np.repeat(bases[:-1], np.diff(tokens.starts))[:, None]
    begin, end = (bases[places[:, 0]] + places[:, column] for column in (1, 2))
    first = np.searchsorted(spans[:, 1], begin, "right")
    counts = np.maximum(np.searchsorted(spans[:, 0], end, "left") - first, 0)
    token = ranges(first, counts)
    place = np.repeat(np.arange(len(places)), counts)
    solid = tokens.spans[token, 1] > tokens.spans[token, 0]
    return token[solid], place[solid]


def unknown_id(tokenizer: Any) -> int:
    """Return the id of the entry for unknown text, -1 if it has none."""
    name = getattr(tokenizer.model, "unk_token", None)
    found = tokenizer.token_to_id(name) if name else getattr(tokenizer.model, "unk_id", None)
    return -1 if found is None else int(found)


class TokenStates:
    """The last states of tokens, or their rows of the input table.

    Args:
        encoder: an `Encoder`.
        from_input: rows of the input table.
    """

    def __init__(self, encoder: Any, from_input: bool) -> None:
        from vgtools.models.packed import PackedEncoder

        self._encoder = encoder
        self._packed = None if from_input else PackedEncoder(encoder, 1)

    def __call__(self, tokens: Tokens, needed: Array) -> Iterator[tuple[Array, Array]]:
        """Yield numbers of needed tokens, each once, with their states (M, D) float64.

        Args:
            tokens: tokens of texts; one longer than the encoder takes is read in windows.
            needed: (T,) bool.
        """
        import torch

        if self._packed is None:
            numbers = np.flatnonzero(needed)
            table = self._encoder.model.get_input_embeddings().weight
            ids = torch.from_numpy(tokens.ids[numbers].astype(np.int64)).to(table.device)
            yield numbers, table[ids].detach().double().cpu().numpy()
            return
        windows = np.array(
            [
                np.add(tokens.starts[text], window)
                for text, length in enumerate(np.diff(tokens.starts).tolist())
                for window in split_window(length, self._encoder.max_tokens)
            ],
            np.int64,
        ).reshape(-1, 4)
        start, end, keep, keep_end = windows.T
        for hidden in self._packed(tokens.ids, start, end - start):
            of = hidden.segments
            numbers = ranges(start[of], (end - start)[of])
            window = np.repeat(of, (end - start)[of])
            kept = np.flatnonzero(
                needed[numbers] & (numbers >= keep[window]) & (numbers < keep_end[window])
            )
            places = torch.from_numpy(kept).to(hidden.tokens.device)
            yield numbers[kept], hidden.tokens[places].double().cpu().numpy()
