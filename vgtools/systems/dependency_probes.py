"""How much syntax all heads of an encoder know together: classifiers that find each word's head from their attention.

A single head is asked as it is (`text_probes`). Here two small classifiers learn on some sentences how to weigh all heads, and
are tried on others: by weight alone, or by weights that the two words choose.

Axes: B batch, W words, T tokens (special ones included), K = L × H heads, D channels of a word vector.

Source: Clark et al. 2019 (What Does BERT Look At?), section 5, "Probing Attention Head Combinations".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.checkpoint import special_ids
from vgtools.io import DataError, Progress, read_lines
from vgtools.parses import Parser, stanford
from vgtools.systems.attention_probes import JointEncoder, check_finite, covering, in_halves, make_batch
from vgtools.systems.attention_scores import Scores, chosen, percent
from vgtools.systems.text_probes import OFFSETS, between_words, no_answer, word_links, word_tokens
from vgtools.text import row_starts, tokenize
from vgtools.training.loop import TrainConfig, halves, train

Array = np.ndarray[Any, Any]
Vectors = Callable[[str], Array]  # a word's vector, (D,) float32; zeros for an unknown one

KINDS = ("attention", "words")
ALL, UAS = "all", "all but punct"
_RATES = {"attention": 0.3, "words": 0.01}  # the highest learning rate
_STEP = 8  # sentences of an optimiser's step
_WINDOW = 512  # sentences parsed together

# ------------------------------------------------------------------------------------------------------------ word vectors


def open_vectors(path: str) -> tuple[Vectors, int]:
    """Open word vectors in GloVe's text form: a word and its numbers a line, between spaces.

    The first line of word2vec's form, two numbers, is passed by.

    Returns:
        A function from words to vectors, and D. A word that is not in the file is looked up in lower case.

    Raises:
        DataError: it is missing (66); a line has other than D finite numbers (65), with file and line.
    """
    rows, vectors, width = dict[str, int](), list[Array](), 0
    for number, line in enumerate(read_lines(path), 1):
        cells = line.rstrip().split(" ")
        if number == 1 and len(cells) == 2 and all(c.isdecimal() for c in cells):
            continue
        width = width or len(cells) - 1
        try:
            vector = np.array(cells[-width:], np.float32)
        except ValueError:
            vector = np.array([math.nan], np.float32)
        if len(cells) <= width or not width or not np.isfinite(vector).all():
            raise DataError(
                f"wanted a word and {width or 'its'} finite numbers between spaces, found {line!r:.60}", path, number
            )
        rows.setdefault(" ".join(cells[:-width]), len(vectors))
        vectors.append(vector)
    if not vectors:
        raise DataError("holds no word vector", path)
    table = np.stack([*vectors, np.zeros(width, np.float32)])
    return lambda word: table[rows.get(word, rows.get(word.lower(), -1))], width


def own_vectors(encoder: JointEncoder, table: Tensor) -> tuple[Vectors, int]:
    """Return word vectors made of an encoder's input embeddings, scaled to a mean square of 1: the mean over sub-words.

    Args:
        encoder: whose tokenizer cuts words.
        table: (V, D), its input embeddings.
    """
    rows = table.detach().float().cpu().numpy()
    rows = rows / max(float(np.sqrt(np.square(rows, dtype=np.float64).mean())), 1e-12)

    @lru_cache(maxsize=65536)
    def vector(word: str) -> Array:
        ids = encoder.tokenizer.encode(" " + word, add_special_tokens=False).ids
        return np.asarray(rows[ids].mean(0) if ids else np.zeros(rows.shape[1], np.float32))

    return vector, rows.shape[1]


# ---------------------------------------------------------------------------------------------------------- the classifier


class Sentences(NamedTuple):
    """A batch of sentences for the classifier."""

    attention: Tensor  # (B, K, W, W) of words to words
    barred: Tensor  # (B, W, W) bool, the second word cannot be the head of the first
    vectors: Tensor  # (B, W, D)
    heads: Tensor  # (B, W) int64, -1 where nothing is asked
    asked: int  # words of the whole step: what losses are divided by


class HeadClassifier(nn.Module):
    """Choose each word's head among the other words of its sentence, by the attention that both give one another.

    The probability that j is the head of i is proportional to exp of the sum over heads k of w_k α_ij + u_k α_ji. With word
    vectors v (D > 0), w_k and u_k are linear in v_i and v_j. Without them they are one number a head. Both are convex, so the
    weights start at 0 and nothing depends on chance.

    Args:
        heads: K.
        width: D; 0 is the attention-only probe.

    Source: section 5, "Attention-Only Probe" and "Attention-and-Words Probe".
    Deviation: the formula's i and j are written the other way round; the weights of the second probe have a constant term, as
        in the published code; sentences' roots are not asked, where that code lets attention to [CLS] and [SEP] stand for one.
    """

    def __init__(self, heads: int, width: int = 0) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(2, heads))  # α_ij, α_ji
        self.by_word = nn.Parameter(torch.zeros(2, 2, heads, width)) if width else None  # the same × v_i, v_j

    def logits(self, batch: Sentences) -> Tensor:
        """Return (B, W, W): the score of each second word as the head of the first; -inf where it cannot be."""
        there, back = batch.attention, batch.attention.transpose(-1, -2)
        found = torch.einsum("bkij,k->bij", there, self.constant[0]) + torch.einsum("bkij,k->bij", back, self.constant[1])
        if self.by_word is not None:
            weights = torch.einsum("bwd,xykd->xybwk", batch.vectors, self.by_word)
            for maps, (own, other) in zip((there, back), weights, strict=True):
                found = found + torch.einsum("bkij,bik->bij", maps, own) + torch.einsum("bkij,bjk->bij", maps, other)
        return found.masked_fill(batch.barred, -math.inf)

    def forward(self, batch: Sentences) -> dict[str, Tensor]:
        """Return the cross entropy of the words' heads, as its share of the step's mean."""
        asked = batch.heads >= 0
        loss = nn.functional.cross_entropy(self.logits(batch)[asked], batch.heads[asked], reduction="sum")
        return {"head": loss / max(batch.asked, 1)}


# ------------------------------------------------------------------------------------------------------------- the probe


@dataclass
class ClassifierProbe:
    """Train a classifier on some sentences of a parser, try it on others, beside the best offset of the former.

    Args:
        encoder: the model.
        sentences: gives the sentences of `train` or `report`, each time anew, in order.
        parser: opens what parses them; once a pass.
        kind: `attention` or `words`.
        vectors: of words, and D; for `words`.
        count: sentences of `train`, for the learning rate's way down.
        epochs: passes over them.
        samples: S, behind the intervals.
        seed: of the resampling.
        batch_size: sentences that the encoder takes at once, the step's 8 at most.
        progress: told of sentences.

    Attributes:
        losses: mean loss of each epoch, in nats a word.
        trained: sentences that were learned from.

    Source: published code: Adam, learning rate 0.002, one pass over 36,160 sentences one by one.
    Deviation: steps of 8 sentences, a higher learning rate that falls to 0: some thousand sentences have to suffice.
    """

    encoder: JointEncoder
    sentences: Callable[[str], Iterator[str]]
    parser: Callable[[], Parser]
    kind: str = "attention"
    vectors: tuple[Vectors, int] | None = None
    count: int = 0
    epochs: int = 2
    samples: int = 1000
    seed: int = 0
    batch_size: int = 32
    progress: Progress | None = None
    losses: list[float] = field(default_factory=list)
    trained: int = 0

    def __post_init__(self) -> None:
        self._ends = special_ids(self.encoder.tokenizer)
        self._heads = self.encoder.layers * self.encoder.heads
        self._offsets: dict[str, Counter[int]] = {}
        self.scores = Scores(1, self.samples, self.seed)
        self.model = HeadClassifier(self._heads, self.vectors[1] if self.vectors else 0)

    def run(self) -> None:
        """Learn and try; `records` says what was found."""
        steps = max(1, self.epochs * math.ceil(self.count / _STEP))
        config = TrainConfig(self.epochs, steps, _RATES[self.kind], "linear", clip=0.0, log_every=1 << 62, seed=self.seed)
        for record in train(self.model, self._batches, config, weights={"head": 1.0}, halve=halves):
            self.losses.append(float(record["head"]))
        self.model.eval()
        for batch, texts, links in self._steps("report"):
            self._try(batch, texts, links)

    def _batches(self, epoch: int, first: int) -> Iterator[Sentences]:
        for batch, texts, links in islice(self._steps("train"), first, None):
            if not epoch:
                self.trained += len(texts)
                for _, word, head, relation in links:
                    for name in _names(relation):
                        self._offsets.setdefault(name, Counter())[head - word] += 1
            yield batch

    def _steps(self, side: str) -> Iterator[tuple[Sentences, list[str], list[tuple[int, int, int, str]]]]:
        """Yield batches of sentences with what is asked: row, word, its head, the relation."""
        parser, source = self.parser(), self.sentences(side)
        while window := list(islice(source, _WINDOW)):
            parses = list(parser(window))
            tokens, counts = tokenize(self.encoder.tokenizer, window), row_starts(len(p.spans) for p in parses)
            size = np.diff(tokens.starts)
            spans = np.array([s for p in parses for s in p.spans], np.int64).reshape(-1, 2)
            ends = covering(tokens, spans, np.repeat(np.arange(len(window)), np.diff(counts)))
            rows = np.flatnonzero((size > 0) & (size <= self.encoder.max_tokens)).tolist()
            for low in range(0, len(rows), _STEP):
                part = rows[low : low + _STEP]
                own = [[e[counts[r] : counts[r + 1]] for e in ends] for r in part]
                words = word_tokens(own, len(self._ends[0]), int(size[part].max()) + sum(map(len, self._ends)))
                links = word_links([parses[r] for r in part], words)
                if links:
                    attention = self._attention(tokens, part, words)
                    given = [[window[r][a:b] for a, b in parses[r].spans] for r in part]
                    yield self._sentences(attention, words, given, links), [window[r] for r in part], links
            if self.progress is not None:
                self.progress.advance(len(window))

    def _attention(self, tokens: Any, rows: Sequence[int], words: Array) -> Tensor:
        """Return the attention of words to words by all heads: (B, K, W, W)."""
        found = torch.zeros(len(rows), self._heads, words.shape[1], words.shape[1])

        def ask(low: int, high: int) -> None:
            batch = make_batch(tokens, rows[low:high], [], self._ends, self.encoder.region_width)
            inside = torch.from_numpy(words[low:high, :, : batch.ids.shape[1]])
            with torch.inference_mode():
                layers = self.encoder.attentions(batch.ids, batch.text_mask, batch.regions, batch.region_mask)
                for number, layer in enumerate(layers):
                    part = slice(number * self.encoder.heads, (number + 1) * self.encoder.heads)
                    found[low:high, part] = between_words(layer.float(), inside.to(layer.device)).cpu()

        in_halves(ask, len(rows), self.batch_size)
        check_finite(found)
        return found

    def _sentences(
        self, attention: Tensor, words: Array, given: list[list[str]], links: list[tuple[int, int, int, str]]
    ) -> Sentences:
        of, width = self.vectors or (lambda _: np.zeros(0, np.float32), 0)
        vectors, heads = torch.zeros(*words.shape[:2], width), torch.full(words.shape[:2], -1)
        for row, word, head, _ in links:
            heads[row, word] = head
        for row, names in enumerate(given):
            for word, name in enumerate(names if width else ()):
                vectors[row, word] = torch.from_numpy(of(name))
        return Sentences(attention, no_answer(torch.from_numpy(words)), vectors, heads, len(links))

    def _try(self, batch: Sentences, texts: list[str], links: list[tuple[int, int, int, str]]) -> None:
        with torch.inference_mode():
            found = self.model.logits(batch).argmax(-1).numpy()
        row, word, head = np.array([link[:3] for link in links], np.int64).T
        unique = list(dict.fromkeys(texts))
        image = np.array([unique.index(text) for text in texts])[row]
        names = [(n, name) for n, link in enumerate(links) for name in _names(link[3])]
        keys = list(dict.fromkeys(name for _, name in names))
        at, key = np.array([n for n, _ in names]), np.array([keys.index(name) for _, name in names])
        base = np.array([self._offset(name) for name in keys])[key] == (head - word)[at]
        right, none = (found[row, word] == head)[at, None], np.zeros((len(at), 1))
        self.scores.add(
            [(k, "") for k in keys], unique, image[at], key, right, none, base.astype(float), none[:, 0].astype(bool)
        )

    def _offset(self, name: str) -> int:
        """Return where the head of a word stands most often, in words from it, in the sentences learned from."""
        seen = self._offsets.get(name) or self._offsets[ALL]
        return min(OFFSETS, key=lambda offset: (-seen[offset], abs(offset), offset))

    def records(self, relations: Sequence[str] | int | None = 10, level: float = 0.95) -> Iterator[dict[str, Any]]:
        """Yield one record for all words, one for those that are no punctuation (UAS), and one a relation; shares in percent.

        Args:
            relations: names (the parser's or Stanford's), how many of the most frequent ones, or None for all.
            level: of the intervals.
        """
        totals = {name: cell.total for (name, _), cell in self.scores.cells.items()}
        names = sorted(totals.keys() - {ALL, UAS}, key=lambda name: (-totals[name], name))
        if isinstance(relations, int):
            names = names[:relations]
        elif relations is not None:
            names = [n for n in names if n in relations or stanford(n) in relations]
        for name in (*(n for n in (ALL, UAS) if n in totals), *names):
            cell = self.scores.cells[name, ""]
            yield {
                "kind": "classifier", "classifier": self.kind, "relation": name, "stanford": stanford(name),
                "words": cell.total, **chosen(cell, None, 0, level, corrected=False),
                "offset": self._offset(name), "baseline": percent(cell.base / cell.total),
                "trained_on": self.trained, "epochs": self.epochs, "losses": [round(v, 6) for v in self.losses],
            }  # fmt: skip


def _names(relation: str) -> tuple[str, ...]:
    """Return what a word counts for; punctuation is no part of the usual unlabelled attachment score."""
    return (relation, ALL) if relation == "punct" else (relation, ALL, UAS)
