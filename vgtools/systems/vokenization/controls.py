"""Labels of tokens without a matcher: controls that vokens have to beat.

Each control loses one thing more. Clusters (`clusters.py`) lose the pictures; `centroid` loses the
text encoder and the context of a word, and with `permute` also the photos that show the word;
`frequent` loses the photos, `random` the word. `term-frequency` is the paper's (section 5.2,
appendix A.5).

Axes: V tokens of the vocabulary, N images of the bank, D channels of their features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError
from vgtools.io.files import digest_of, sha256_file
from vgtools.io.splits import refuse_held_out
from vgtools.io.streams import Piece, Window, read_windows
from vgtools.models.references import load_tokenizer
from vgtools.retrieval.index import Index, matcher_path
from vgtools.systems.vokenization.term_frequency import TermFrequency, drawn_numbers, held_tokens
from vgtools.systems.vokenization.vokenize import VokenizeTask, Vokens
from vgtools.text.tokens import Tokens, tokenize, tokenizer_fingerprint
from vgtools.training.splits import other_images

_BLOCK = 512  # tokens whose photos are searched at a time
_LINES = 4096


class WordLabels:
    """Gives each token of the vocabulary a label; works instead of a `Vokenizer`.

    Args:
        tokenizer: the tokenizer of the text that gets labels.
        labels: (V,) int32, -1 for a token without one.
        scores: (V,) float32.
        bank: number of labels that there are.
        captions: captions that they were made from.
    """

    def __init__(
        self, tokenizer: Any, labels: Array, scores: Array, bank: int, captions: int = 0
    ) -> None:
        self.tokenizer = tokenizer
        self._labels = labels
        self._scores = scores
        self.bank = bank
        self.captions = captions
        self.images = len(np.unique(labels[labels >= 0]))  # labels that a token has

    helpers = 0  # processes that tokenise

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of sentences."""
        return tokenize(self.tokenizer, texts)

    def __call__(self, texts: Sequence[str], tokens: Tokens | None = None) -> Vokens:
        """Return the labels of the tokens of sentences."""
        tokens = self.tokenize(texts) if tokens is None else tokens
        scores = np.round(self._scores[tokens.ids, None], 4)
        return Vokens(texts, tokens, self._labels[tokens.ids, None], scores)

    def cancel(self) -> None:
        """Do nothing: no call takes long."""


class RandomLabels(WordLabels):
    """Gives every token a label at random, a pure function of the seed and the sentence."""

    def __init__(self, tokenizer: Any, bank: int, seed: int) -> None:
        super().__init__(tokenizer, np.arange(bank), np.zeros(0), bank)
        self._seed = seed

    def __call__(self, texts: Sequence[str], tokens: Tokens | None = None) -> Vokens:
        """Return random labels; a score is the probability of the label."""
        tokens = self.tokenize(texts) if tokens is None else tokens
        sizes = np.diff(tokens.starts).tolist()
        drawn = [drawn_numbers(text, n, self._seed) for text, n in zip(texts, sizes, strict=True)]
        labels = (np.concatenate([np.zeros(0), *drawn]) * self.bank).astype(np.int32)
        scores = np.full((len(labels), 1), round(1 / self.bank, 4), np.float32)
        return Vokens(texts, tokens, labels[:, None], scores)


def frequent_words(tokenizer: Any, bank: int, files: Sequence[str]) -> WordLabels:
    """Return labels of the `bank` most frequent tokens of texts: 0 is the most frequent one.

    Raises:
        DataError: there is no token, or a row is of a split to evaluate on.
    """
    counts = np.zeros(_ids_of(tokenizer), np.int64)
    for path in files:
        for window in read_windows(path, _LINES):
            rows = window.rows()
            for number, row in enumerate(rows, window.first):
                refuse_held_out(row, path, number)
            ids = tokenize(tokenizer, [row["text"] for row in rows]).ids
            counts += np.bincount(ids, minlength=len(counts))
    if not counts.any():
        raise DataError("has no token to count", files[0])
    order = np.argsort(-counts, kind="stable")[:bank]
    order = order[counts[order] > 0]
    labels = np.full(len(counts), -1, np.int32)
    labels[order] = np.arange(len(order))
    return WordLabels(tokenizer, labels, (labels >= 0).astype(np.float32), bank)


def word_centroids(
    tokenizer: Any, ids: Sequence[str], files: Sequence[str], feats: str, permute: int | None
) -> WordLabels:
    """Return for each token the photo nearest to the mean of the photos whose captions hold it.

    Channels are standardised over the bank, and photos and means have unit length; a score is
    their cosine.

    Args:
        tokenizer: the tokenizer of the text that gets labels.
        ids: the images of the bank.
        files: their captions.
        feats: their features, `X.npy`.
        permute: seed by which every photo gets the captions of another; None: its own.

    Raises:
        DataError: as `held_tokens`, or the features lack an image of the bank.
    """
    bank = open_features(feats)
    row_of = {name: row for row, name in enumerate(bank.ids)}
    lacking = next((name for name in ids if name not in row_of), None)
    if lacking is not None:
        raise DataError(f"lacks the image {lacking!r:.80} of the bank; give the bank's", feats)
    photos = np.asarray(bank.array[[row_of[name] for name in ids]], np.float32)
    photos = photos - photos.mean(0)
    photos = _unit(photos / np.maximum(photos.std(0), 1e-9))
    held = held_tokens(tokenizer, ids, files)
    if permute is not None and len(np.unique(held.images)) < 2:
        raise DataError("has captions of one image of the bank, to permute among images", files[0])
    images = held.images if permute is None else other_images(held.images, permute)
    known, first = np.unique(held.tokens, return_index=True)
    means = np.stack([photos[rows].mean(0) for rows in np.split(images, first[1:])])
    means = _unit(means)
    labels = np.full(_ids_of(tokenizer), -1, np.int32)
    scores = np.zeros(len(labels), np.float32)
    for start in range(0, len(known), _BLOCK):
        relevance = means[start : start + _BLOCK] @ photos.T
        tokens = known[start : start + _BLOCK]
        labels[tokens] = relevance.argmax(1)
        scores[tokens] = relevance.max(1)
    return WordLabels(tokenizer, labels, scores, len(ids), held.captions)


def _unit(rows: Array) -> Array:
    lengths: Array = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, 1e-12)


def _ids_of(tokenizer: Any) -> int:
    """Return one more than the largest id of a tokenizer, whose ids may have gaps."""
    return int(max(tokenizer.get_vocab(with_added_tokens=True).values())) + 1


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Which control, made from which files."""

    control: str
    captions: Sequence[str]
    feats: str | None
    permute: int | None
    gamma: float
    seed: int


class DrawWork(VokenizeTask):
    """The labels of a control; only the tokenizer of the matcher is used.

    The run of the `matcher` is by default at the path in the bank's manifest.
    """

    searched = False

    def __init__(
        self, bank: Index, matcher: str | None, draw: Draw, window: int, limit: int | None
    ) -> None:
        self._bank = bank
        self._ref = matcher_path(bank, matcher)
        self.tokenizer = load_tokenizer(self._ref)
        self._draw = draw
        self._window = window
        # The ids decide whose row is whose.
        feats = [draw.feats, str(Path(draw.feats).with_suffix(".ids"))] if draw.feats else []
        self.inputs = [*draw.captions, *feats]
        self.config = {
            "command": "vokenize",
            "control": draw.control,
            "index_sha256": bank.manifest["files"],
            "tokenizer": tokenizer_fingerprint(self.tokenizer),
            "captions": [*map(digest_of, draw.captions)],
            **({"feats": [*map(sha256_file, feats)], "permute": draw.permute} if feats else {}),
            "gamma": draw.gamma,
            "seed": draw.seed,
            "limit": limit,
        }

    @cached_property
    def worker(self) -> Any:
        """The worker, made once it is known that there is work."""
        how = self._draw
        ids = self._bank.ids
        if how.control == "random":
            return RandomLabels(self.tokenizer, len(ids), how.seed)
        if how.control == "frequent":
            return frequent_words(self.tokenizer, len(ids), how.captions)
        if how.control == "centroid" and how.feats is not None:
            return word_centroids(self.tokenizer, ids, how.captions, how.feats, how.permute)
        return TermFrequency(self.tokenizer, ids, how.captions, how.gamma, how.seed)

    def windows(self, pieces: Sequence[Piece], state: Mapping[str, Any]) -> Iterator[Window]:
        """Return windows of equal size."""
        return read_windows(pieces, self._window, state, self.config["limit"])

    def facts(self) -> dict[str, Any]:
        """Return facts about the draw."""
        names = {"ref": self._ref, "sha256": self.config["tokenizer"]}
        captions = self.worker.captions
        return {"count": self._bank.count, "k": 1, "tokenizer": names, "captions": captions}
