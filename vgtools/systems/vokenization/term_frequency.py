"""Vokens without context: token-level retrieval (Tan & Bansal 2020, section 5.2, appendix A.5).

    tf(tok, x) = #(tok, x) / sum over tok' of #(tok', x)
    p(x | tok) = exp(tf(tok, x) / gamma) / sum over x' of the same

#(tok, x) counts the token in the captions of image x. A token's voken is drawn from p, of which
every image of the bank has a part: an image whose captions do not hold the token has exp(0).
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.splits import refuse_held_out
from vgtools.io.streams import read_jsonl
from vgtools.systems.vokenization.vokenize import Vokens
from vgtools.text.tokens import Tokens, tokenize

_CAPTIONS = 8192  # captions tokenised at a time


class Held(NamedTuple):
    """Which captions of which images hold which tokens: P pairs, sorted by token, then image."""

    tokens: Array  # (P,) int64 token ids
    images: Array  # (P,) int64 rows of the bank
    counts: Array  # (P,) float64, how often the captions of the image hold the token
    captions: int  # captions of images of the bank


def held_tokens(tokenizer: Any, ids: Sequence[str], files: Sequence[str]) -> Held:
    """Count the tokens in the captions of each image of a bank, whose images have these ids.

    Raises:
        DataError: a row is not a caption, one of the images is of a split to evaluate on, or the
            bank has none of the images.
    """
    row_of = {name: row for row, name in enumerate(ids)}
    counts = Counter[tuple[int, int]]()
    captions = 0
    known = iter(_captions(files, row_of))
    while part := list(islice(known, _CAPTIONS)):
        images, texts = zip(*part, strict=True)
        tokens = tokenize(tokenizer, texts)
        owners = np.repeat(images, np.diff(tokens.starts))
        counts.update(zip(tokens.ids.tolist(), owners.tolist(), strict=True))
        captions += len(part)
    if not counts:
        why = f"no caption is of one of the {len(ids)} images of the bank; give some of those"
        raise DataError(why, files[0])
    pairs = np.array(list(counts), np.int64)
    number = np.fromiter(counts.values(), np.float64, len(counts))
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    return Held(pairs[order, 0], pairs[order, 1], number[order], captions)


def drawn_numbers(text: str, count: int, seed: int) -> Array:
    """Return random numbers in [0, 1) for the tokens of a sentence.

    Their seed is the sentence's hash, not its number, so that shards and windows do not change
    them.
    """
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    key = np.frombuffer(digest[:16], "<u4").tolist()
    return np.random.default_rng([seed, *key]).random(count)


class TermFrequency:
    """Draws vokens by term frequency; works instead of a `Vokenizer`.

    The vokens of a sentence are a pure function of the seed and the sentence.

    The tokenizer is the tokenizer of the text that gets vokens. Rows {"image": ID, "text": ...} of
    the files whose image is not among the `ids` of the bank are left out. `gamma` is the
    temperature of the distribution.

    Raises:
        DataError: a row is not a caption, or the bank has none of the images.

    Source: Tan & Bansal 2020 (Vokenization), section 5.2 "Token-level Retrieval", appendix A.5
        (gamma = 0.01).
    """

    def __init__(
        self,
        tokenizer: Any,
        ids: Sequence[str],
        files: Sequence[str],
        gamma: float = 0.01,
        seed: int = 0,
    ) -> None:
        self._cancelled = threading.Event()
        self.tokenizer = tokenizer
        self.bank = len(ids)  # number of images
        self._gamma = gamma
        self._seed = seed
        held = held_tokens(tokenizer, ids, files)
        self.captions = held.captions
        share = held.counts / np.bincount(held.images, held.counts, len(ids))[held.images]
        self._tokens = held.tokens
        self._images = held.images
        self._share = share
        self.images = len(np.unique(self._images))  # images that have a caption
        self._known: dict[int, tuple[Array, Array]] = {}

    def _holders(self, token: int) -> tuple[Array, Array]:
        """Return the images that hold a token and the running sum of their exp(tf / gamma)."""
        if token not in self._known:
            a, b = np.searchsorted(self._tokens, [token, token + 1])
            # Shares are at most 1: with the least gamma, 0.002, the largest term is about 1e217, so
            # that float64 holds the sum.
            mass = np.cumsum(np.exp(self._share[a:b] / self._gamma))
            self._known[token] = self._images[a:b], mass
        return self._known[token]

    def draw(self, token: int, uniform: float) -> tuple[int, float]:
        """Return the image at a number in [0, 1) of the distribution p(x | token), and its p.

        The images that hold the token come first, then the others, which have equal parts.
        """
        images, mass = self._holders(token)
        held = float(mass[-1]) if len(mass) else 0.0
        total = held + self.bank - len(images)
        others = self.bank - len(images)
        position = uniform * total
        if position < held or not others:
            place = min(int(np.searchsorted(mass, position, "right")), len(images) - 1)
            before = float(mass[place - 1]) if place else 0.0
            return int(images[place]), (float(mass[place]) - before) / total
        number = min(int(position - held), others - 1)
        # Image i of the holders has i holders before it, so `images - arange` counts the other
        # images before each: the search skips holders without listing the others.
        skipped = int(np.searchsorted(images - np.arange(len(images)), number, "right"))
        return number + skipped, 1.0 / total

    helpers = 0  # processes that tokenise

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of sentences."""
        return tokenize(self.tokenizer, texts)

    def __call__(self, texts: Sequence[str], tokens: Tokens | None = None) -> Vokens:
        """Return drawn vokens of sentences; a score is the probability of its image."""
        tokens = self.tokenize(texts) if tokens is None else tokens
        vokens = np.empty((len(tokens.ids), 1), np.int32)
        scores = np.empty((len(tokens.ids), 1), np.float32)
        at = 0
        for i, text in enumerate(texts):
            ids = tokens.row(i)[0]
            uniform = drawn_numbers(text, len(ids), self._seed)
            for token, number in zip(map(int, ids), map(float, uniform), strict=True):
                if self._cancelled.is_set():
                    raise InterruptedError
                vokens[at], scores[at] = self.draw(token, number)
                at += 1
        return Vokens(texts, tokens, vokens, np.round(scores, 4))

    def cancel(self) -> None:
        """Make work in another thread end soon."""
        self._cancelled.set()


def _captions(files: Iterable[str], row_of: Mapping[str, int]) -> Iterable[tuple[int, str]]:
    for path in files:
        for line, row in read_jsonl(path, {"image": str, "text": str}):
            if row["image"] in row_of:
                refuse_held_out(row, path, line)
                yield row_of[row["image"]], row["text"]
