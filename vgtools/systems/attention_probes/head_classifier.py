"""How much syntax all heads of an encoder know together: classifiers of each word's head.

A single head is probed as it is (`vgtools.systems.attention_probes.text`). Here two small
classifiers learn on some sentences how to weigh all heads, and are tried on others: by one weight
per head, or by weights that depend on the two words.

Axes: B batch, W words, T tokens (special ones included), K = L × H heads, D channels of a word
vector.

Source: Clark et al. 2019 (What Does BERT Look At?), section 5, "Probing Attention Head
Combinations".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.io.arrays import Array
from vgtools.models.attention import JointEncoder
from vgtools.systems.attention_probes.region_heads import (
    Probe,
    ask_in_batches,
    check_finite,
    make_batch,
    windows,
)
from vgtools.systems.attention_probes.scores import (
    HeadScores,
    Relations,
    chosen,
    percent,
    select_relations,
)
from vgtools.systems.attention_probes.text import (
    ALL,
    OFFSETS,
    Link,
    between_words,
    no_answer,
    word_ends,
    word_links,
    word_tokens,
)
from vgtools.text.parses import Parser, stanford
from vgtools.text.tokens import Tokens, tokenize
from vgtools.text.vector_files import VectorFile
from vgtools.training.loop import TrainConfig, halves, train

Vectors = Callable[[str], Array]  # a word's vector, (D,) float32; zeros for an unknown word

UAS = "all but punct"  # the words that count for the unlabelled attachment score

_RATES = {"attention": 0.3, "words": 0.01}  # the highest learning rate
_STEP = 8  # sentences per optimiser step
_WINDOW = 512  # sentences parsed together


def open_vectors(path: str) -> tuple[Vectors, int]:
    """Open word vectors in GloVe's text form: a word and its numbers per line, between spaces.

    The first line of word2vec's form, two numbers, is skipped.

    Returns:
        A function from words to vectors, and D. A word that is not in the file is looked up in
        lower case.

    Raises:
        DataError: it is missing (66); a line has other than D finite numbers (65), with file and
            line.
    """
    file = VectorFile(path)
    rows: dict[str, int] = {}
    vectors: list[Array] = []
    count = 0
    for block in file.blocks():
        for row, word in enumerate(block.words, count):
            rows.setdefault(word, row)
        vectors.append(block.vectors)
        count += len(block.words)
    # Unknown words have the row -1, which is the row of zeros at the end.
    table = np.concatenate([*vectors, np.zeros((1, file.width), np.float32)])
    return lambda word: table[rows.get(word, rows.get(word.lower(), -1))], file.width


def own_vectors(encoder: JointEncoder, table: Tensor) -> tuple[Vectors, int]:
    """Return word vectors made of an encoder's input embeddings: the mean over sub-words.

    They are scaled to a mean square of 1.

    Args:
        table: (V, D), its input embeddings.
    """
    rows = table.detach().float().cpu().numpy()
    rows = rows / max(float(np.sqrt(np.square(rows, dtype=np.float64).mean())), 1e-12)

    @lru_cache(maxsize=65536)
    def vector(word: str) -> Array:
        # With the blank, byte-level tokenizers split the word as they do inside a text.
        ids = encoder.tokenizer.encode(" " + word, add_special_tokens=False).ids
        return np.asarray(rows[ids].mean(0) if ids else np.zeros(rows.shape[1], np.float32))

    return vector, rows.shape[1]


class Sentences(NamedTuple):
    """A batch of sentences for the classifier."""

    attention: Tensor  # (B, K, W, W) attention of words to words
    barred: Tensor  # (B, W, W) bool, the second word cannot be the head of the first
    vectors: Tensor  # (B, W, D)
    heads: Tensor  # (B, W) int64, -1 where nothing is asked
    asked: int  # words of the whole step, the divisor of losses


class HeadClassifier(nn.Module):
    """Choose each word's head among the other words, by the attention between the two.

    The probability that j is the head of i is proportional to exp of the sum over heads k of
    w_k α_ij + u_k α_ji. With word vectors v (D > 0), w_k and u_k are linear in v_i and v_j. Without
    them they are one number per head. Both are convex, so the weights start at 0 and nothing
    depends on chance.

    Args:
        heads: K.
        width: D; 0 is the attention-only probe.

    Source: section 5, "Attention-Only Probe" and "Attention-and-Words Probe".
    Deviation: the formula's i and j are swapped; the weights of the second probe have a constant
        term, as in the published code; sentences' roots are not asked, where that code lets
        attention to [CLS] and [SEP] represent one.
    """

    def __init__(self, heads: int, width: int = 0) -> None:
        super().__init__()
        self.constant = nn.Parameter(torch.zeros(2, heads))  # for α_ij, α_ji
        # The same, times v_i and v_j.
        self.by_word = nn.Parameter(torch.zeros(2, 2, heads, width)) if width else None

    def logits(self, batch: Sentences) -> Tensor:
        """Return the score of each second word as the head of the first.

        Returns:
            (B, W, W); -inf where it cannot be.
        """
        forth = batch.attention
        back = batch.attention.transpose(-1, -2)
        logits = torch.einsum("bkij,k->bij", forth, self.constant[0])
        logits = logits + torch.einsum("bkij,k->bij", back, self.constant[1])
        if self.by_word is not None:
            weights = torch.einsum("bwd,xykd->xybwk", batch.vectors, self.by_word)
            for attention, (of_i, of_j) in zip((forth, back), weights, strict=True):
                logits = logits + torch.einsum("bkij,bik->bij", attention, of_i)
                logits = logits + torch.einsum("bkij,bjk->bij", attention, of_j)
        return logits.masked_fill(batch.barred, -math.inf)

    def forward(self, batch: Sentences) -> dict[str, Tensor]:
        """Return the cross entropy of the words' heads, as its share of the step's mean."""
        asked = batch.heads >= 0
        logits = self.logits(batch)[asked]
        loss = nn.functional.cross_entropy(logits, batch.heads[asked], reduction="sum")
        return {"head": loss / max(batch.asked, 1)}


@dataclass
class ClassifierProbe(Probe):
    """Train a classifier on some sentences of a parser and try it on others.

    The baseline is the best offset of the sentences learned from.

    Source: published code: Adam, learning rate 0.002, one pass over 36,160 sentences one by one.
    Deviation: steps of 8 sentences, a higher learning rate that falls to 0: a few thousand
        sentences have to be enough.
    """

    sentences: Callable[[str], Iterator[str]]  # side -> its sentences, in order
    parser: Callable[[], Parser]  # opens their parser; called once per pass
    kind: str = "attention"  # or `words`
    vectors: tuple[Vectors, int] | None = None  # vectors of words, and D; for `words`
    count: int = 0  # sentences of `train`, for the decay of the learning rate
    epochs: int = 2  # passes over them

    def __post_init__(self) -> None:
        super().__post_init__()
        self._offsets: dict[str, Counter[int]] = {}
        self.losses = list[float]()  # mean loss of each epoch, in nats per word
        self.trained = 0  # sentences that were learned from
        self.scores["report"] = HeadScores(1, self.samples, self.seed)
        self.model = HeadClassifier(self._heads, self.vectors[1] if self.vectors else 0)

    def run(self) -> None:
        """Learn and try; `records` returns the result."""
        config = TrainConfig(
            self.epochs,
            max(1, self.epochs * math.ceil(self.count / _STEP)),
            _RATES[self.kind],
            "linear",
            clip=0.0,
            log_every=1 << 62,  # Only the ends of epochs are logged.
            seed=self.seed,
        )
        losses = train(self.model, self._batches, config, weights={"head": 1.0}, halve=halves)
        for record in losses:
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

    def _steps(self, side: str) -> Iterator[tuple[Sentences, list[str], list[Link]]]:
        """Yield batches of sentences with their texts and links."""
        parser = self.parser()
        for window in windows(self.sentences(side), _WINDOW, self.progress):
            parses = list(parser(window))
            tokens = tokenize(self.encoder.tokenizer, window)
            size = np.diff(tokens.starts)
            ends = word_ends(tokens, parses)
            rows = np.flatnonzero((size > 0) & (size <= self.encoder.max_tokens)).tolist()
            for low in range(0, len(rows), _STEP):
                part = rows[low : low + _STEP]
                length = int(size[part].max()) + sum(map(len, self._ends))
                words = word_tokens([ends[r] for r in part], len(self._ends[0]), length)
                links = word_links([parses[r] for r in part], words)
                if links:
                    attention = self._attention(tokens, part, words)
                    names = [[window[r][a:b] for a, b in parses[r].spans] for r in part]
                    batch = self._sentences(attention, words, names, links)
                    yield batch, [window[r] for r in part], links

    def _attention(self, tokens: Tokens, rows: Sequence[int], words: Array) -> Tensor:
        """Return the attention of words to words by all heads: (B, K, W, W)."""
        attention = torch.zeros(len(rows), self._heads, words.shape[1], words.shape[1])

        def ask(part: Array) -> None:
            texts = [rows[place] for place in part]
            batch = make_batch(tokens, texts, [], self._ends, self.encoder.region_width)
            inside = torch.from_numpy(words[part, :, : batch.ids.shape[1]])
            with torch.inference_mode():
                for number, layer in enumerate(self.encoder.attentions(*batch)):
                    heads = slice(number * self.encoder.heads, (number + 1) * self.encoder.heads)
                    weights = between_words(layer.float(), inside.to(layer.device))
                    attention[torch.from_numpy(part), heads] = weights.cpu()

        ask_in_batches(ask, np.arange(len(rows)), self.batch_size)
        check_finite(attention)
        return attention

    def _sentences(
        self, attention: Tensor, words: Array, names: list[list[str]], links: list[Link]
    ) -> Sentences:
        heads = torch.full(words.shape[:2], -1)
        for row, word, head, _ in links:
            heads[row, word] = head
        vector_of, width = self.vectors or (None, 0)
        vectors = torch.zeros(*words.shape[:2], width)
        if vector_of is not None:
            for row, sentence in enumerate(names):
                for word, name in enumerate(sentence):
                    vectors[row, word] = torch.from_numpy(vector_of(name))
        return Sentences(attention, no_answer(torch.from_numpy(words)), vectors, heads, len(links))

    def _try(self, batch: Sentences, texts: list[str], links: list[Link]) -> None:
        with torch.inference_mode():
            predicted = self.model.logits(batch).argmax(-1).numpy()
        row, word, head = np.array([link[:3] for link in links], np.int64).T
        # There are no photos: a sentence is the group that is resampled, with all its copies.
        unique = list(dict.fromkeys(texts))
        image = np.array([unique.index(text) for text in texts])[row]
        # A link counts for its relation and for groups of relations.
        names = [(n, name) for n, (*_, relation) in enumerate(links) for name in _names(relation)]
        keys = list(dict.fromkeys(name for _, name in names))
        link = np.array([n for n, _ in names])
        key = np.array([keys.index(name) for _, name in names])
        offset = np.array([self._offset(name) for name in keys])
        base = offset[key] == (head - word)[link]
        right = (predicted[row, word] == head)[link, None]
        named = [(name, "") for name in keys]
        self.scores["report"].add(named, unique, image[link], key, right, base=base.astype(float))

    def _offset(self, name: str) -> int:
        """Return the most frequent offset of a word's head in the sentences learned from."""
        seen = self._offsets.get(name) or self._offsets[ALL]
        # Ties go to the nearest word, then to the word before, whatever order the sentences came
        # in.
        return min(OFFSETS, key=lambda offset: (-seen[offset], abs(offset), offset))

    def records(self, relations: Relations = 10) -> Iterator[dict[str, Any]]:
        """Yield one record for all words, one for those but punctuation (UAS), and per relation.

        Shares are in percent.
        """
        cells = {name: cell for (name, _), cell in self.scores["report"].cells.items()}
        totals = {name: cell.total for name, cell in cells.items()}
        groups = [name for name in (ALL, UAS) if name in totals]
        single = {name: total for name, total in totals.items() if name not in groups}
        for name in (*groups, *select_relations(single, relations)):
            cell = cells[name]
            yield {
                "kind": "classifier",
                "classifier": self.kind,
                "relation": name,
                "stanford": stanford(name),
                "words": cell.total,
                **chosen(cell, None, 0, corrected=False),
                "offset": self._offset(name),
                "baseline": percent(cell.base / cell.total),
                "trained_on": self.trained,
                "epochs": self.epochs,
                "losses": [round(loss, 6) for loss in self.losses],
            }


def _names(relation: str) -> tuple[str, ...]:
    """Return the names that a word counts for; the unlabelled attachment score leaves out
    punctuation.
    """
    return (relation, ALL) if relation == "punct" else (relation, ALL, UAS)
