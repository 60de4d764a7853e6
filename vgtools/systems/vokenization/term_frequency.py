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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.files import sha256_file
from vgtools.io.streams import Piece, Window, read_jsonl, read_windows
from vgtools.models.references import load_tokenizer
from vgtools.retrieval import Index, matcher_path
from vgtools.systems.vokenization.vokenize import VokenizeTask, Vokens
from vgtools.text.tokens import Tokens, tokenize, tokenizer_fingerprint

_CAPTIONS = 8192  # captions tokenised at a time


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
        self._tokenizer = tokenizer
        self.bank = len(ids)  # number of images
        self._gamma = gamma
        self._seed = seed
        row_of = {name: row for row, name in enumerate(ids)}
        counts = Counter[tuple[int, int]]()
        self.captions = 0  # captions of images of the bank
        known = ((row_of[image], text) for image, text in _captions(files) if image in row_of)
        while part := list(islice(known, _CAPTIONS)):
            images, texts = zip(*part, strict=True)
            tokens = tokenize(tokenizer, texts)
            owners = np.repeat(images, np.diff(tokens.starts))
            counts.update(zip(tokens.ids.tolist(), owners.tolist(), strict=True))
            self.captions += len(part)
        if not counts:
            why = f"no caption is of one of the {len(ids)} images of the bank; give some of those"
            raise DataError(why, files[0])
        pairs = np.array(list(counts), np.int64)  # (P, 2) token id, image
        number = np.fromiter(counts.values(), np.float64, len(counts))
        share = number / np.bincount(pairs[:, 1], number, len(ids))[pairs[:, 1]]
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        self._tokens = pairs[order, 0]
        self._images = pairs[order, 1]
        self._share = share[order]
        self.images = len(np.unique(self._images))  # images that have a caption
        self._known: dict[int, tuple[Array, Array]] = {}

    def _holders(self, token: int) -> tuple[Array, Array]:
        """Return the images that hold a token and the running sum of their exp(tf / gamma)."""
        if token not in self._known:
            a, b = np.searchsorted(self._tokens, [token, token + 1])
            # Shares are at most 1: with gamma 0.01 the largest term is about 3e43, far from the
            # limit of float64.
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

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of sentences."""
        return tokenize(self._tokenizer, texts)

    def __call__(self, texts: Sequence[str], tokens: Tokens | None = None) -> Vokens:
        """Return drawn vokens of sentences; a score is the probability of its image."""
        tokens = self.tokenize(texts) if tokens is None else tokens
        vokens = np.empty((len(tokens.ids), 1), np.int32)
        scores = np.empty((len(tokens.ids), 1), np.float32)
        at = 0
        for i, text in enumerate(texts):
            ids = tokens.row(i)[0]
            digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
            # The seed of a sentence is its hash, not its number, so that shards and windows do not
            # change its vokens.
            key = np.frombuffer(digest[:16], "<u4").tolist()
            uniform = np.random.default_rng([self._seed, *key]).random(len(ids))
            for token, number in zip(map(int, ids), map(float, uniform), strict=True):
                if self._cancelled.is_set():
                    raise InterruptedError
                vokens[at], scores[at] = self.draw(token, number)
                at += 1
        return Vokens(texts, tokens, vokens, np.round(scores, 4))

    def cancel(self) -> None:
        """Make work in another thread end soon."""
        self._cancelled.set()


class DrawWork(VokenizeTask):
    """The draw of vokens; only the tokenizer of the matcher is used.

    The run of the `matcher` is by default at the path in the bank's manifest.
    """

    searched = False

    def __init__(
        self,
        bank: Index,
        matcher: str | None,
        files: Sequence[str],
        gamma: float,
        seed: int,
        window: int,
        limit: int | None,
        offline: bool = False,
    ) -> None:
        self._bank = bank
        self._ref = matcher_path(bank, matcher)
        self._tokenizer = load_tokenizer(self._ref, offline=offline)
        self._window = window
        self.inputs = files
        self.config = {
            "command": "vokenize",
            "control": "term-frequency",
            "index_sha256": bank.manifest["files"],
            "tokenizer": tokenizer_fingerprint(self._tokenizer),
            "captions": [sha256_file(path) for path in files],
            "gamma": gamma,
            "seed": seed,
            "limit": limit,
        }

    @cached_property
    def worker(self) -> TermFrequency:
        """The worker, made once it is known that there is work."""
        how = (self.config["gamma"], self.config["seed"])
        return TermFrequency(self._tokenizer, self._bank.ids, self.inputs, *how)

    def windows(self, pieces: Sequence[Piece], state: Mapping[str, Any]) -> Iterator[Window]:
        """Return windows of equal size."""
        return read_windows(pieces, self._window, state, self.config["limit"])

    def facts(self) -> dict[str, Any]:
        """Return facts about the draw."""
        names = {"ref": self._ref, "sha256": self.config["tokenizer"]}
        captions = self.worker.captions
        return {"count": self._bank.count, "k": 1, "tokenizer": names, "captions": captions}


def _captions(files: Iterable[str]) -> Iterable[tuple[str, str]]:
    for path in files:
        for _, row in read_jsonl(path, {"image": str, "text": str}):
            yield row["image"], row["text"]
