"""The attention of a text encoder's heads: to syntax, special tokens and neighbours.

Also how heads differ. No image is needed, and any encoder will do; a joint model gets no regions.
Attention is reduced batch by batch, all heads at once.

Axes: B batch, T tokens (special ones included), W words, L layers, H heads, K = L × H.

Source: Clark et al. 2019 (What Does BERT Look At?), on which Li et al. 2020 build: sections 3
(surface patterns), 4.2 (dependency relations) and 6 (clusters of heads).
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl, read_texts
from vgtools.systems.attention_probes.region_heads import (
    Probe,
    ask_in_batches,
    check_finite,
    covering,
    make_batch,
    span_array,
    windows,
)
from vgtools.systems.attention_probes.scores import (
    LEVEL,
    Cell,
    HeadScores,
    Key,
    Relations,
    chosen,
    head_name,
    percent,
    select_relations,
)
from vgtools.text.parses import Parse, Parser, stanford
from vgtools.text.tokens import Tokens, row_starts, tokenize

Link = tuple[int, int, int, str]  # text, word, its head, relation

_WINDOW = 512  # texts that are sorted by length together
_MIXED = 1 << 22  # numbers in a block of mixtures of two heads' attention

PATTERNS = ("cls", "sep", "punctuation", "previous", "next", "self")
DIRECTIONS = ("to head", "to dependent")  # the word that the attending word looks for
ALL = "all"  # all relations together
# The baselines: a word's head is always the word at this offset. Nearer ones come first, since the
# first of equals is the best.
OFFSETS = [sign * step for step in range(1, 21) for sign in (-1, 1)]


SHARED = "shared"


class ProbeText(NamedTuple):
    """A text and its use: `report`, `select` (heads are chosen on it) or `train`.

    A text of two splits has the use of the one that it comes in first, and `SHARED` in the other: a
    head that was chosen on the very texts that are reported is flattered.
    """

    text: str
    side: str = "report"


@dataclass(frozen=True)
class ProbeTexts:
    """The texts of a stream, by their use; read again at each iteration."""

    path: str  # a text, or `.jsonl` rows with `text`
    sides: Mapping[str, str] | None = None  # split -> side; rows of other splits are ignored
    limit: int | None = None
    # Without splits, four of five texts are of the side `train`, by the hash of text and seed,
    # which keeps equal texts together. None takes all as `report`.
    seed: int | None = None

    def __iter__(self) -> Iterator[ProbeText]:
        """Yield texts.

        Raises:
            DataError: it cannot be read; a row without `text`, or without `split` where sides are
                asked for.
        """
        return islice(self._texts(), self.limit)

    def _texts(self) -> Iterator[ProbeText]:
        if self.sides is None:
            for text in read_texts(self.path):
                yield ProbeText(text, self._side(text))
            return
        first = dict[bytes, str]()
        for _, row in read_jsonl(self.path, {"text": str, "split": str}):
            if row["split"] in self.sides:
                text, side = row["text"], self.sides[row["split"]]
                own = first.setdefault(_hash(text), side)
                yield ProbeText(text, side if own == side else SHARED)

    def _side(self, text: str) -> str:
        if self.seed is None:
            return "report"
        digest = _hash(text, self.seed.to_bytes(8, "little"))
        return "report" if int.from_bytes(digest, "little") % 5 == 0 else "train"

    def of(self, *sides: str) -> Iterator[ProbeText]:
        """Yield the texts of some sides."""
        return (text for text in self if text.side in sides)

    def check(self) -> Counter[str]:
        """Read all texts once, before a model is loaded; return how many each side has.

        Raises:
            DataError: as above; or there is none for one of the sides.
        """
        counts = Counter(text.side for text in self if text.text.strip())
        for split, side in (self.sides or {}).items():
            if not counts[side]:
                own = ", but all are texts of another split" if counts[SHARED] else ""
                raise DataError(f'has no text of the split "{split}"{own}', self.path)
        if not counts["report"]:
            raise DataError("has too few texts, none to report", self.path)
        if self.seed is not None and not counts["train"]:
            raise DataError("has too few texts, none to learn from", self.path)
        return counts


def _hash(text: str, salt: bytes = b"") -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8, salt=salt).digest()


def surface(layer: Tensor, mask: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the attention of a layer's heads, summed over texts; a text is its tokens' mean.

    Args:
        layer: (B, H, T, T) attention weights.
        mask: (B, T) bool, False at padding.
        targets: (B, 3, T) bool: the first special token, the last ones, punctuation.

    Returns:
        (6, H) sums of the mean weight on `PATTERNS`; (H,) entropy in nats; (H,) entropy of the
        first token alone.

    Source: Clark et al. 2019, sections 3.1 to 3.3.
    Deviation: entropies are exact; the published code mixes in a uniform 0.0001 first.
    """
    # (B, T): padding weighs nothing in the mean of a text.
    share = (mask / mask.sum(1, keepdim=True)).to(layer.dtype)
    received = torch.einsum("bhqk,bq->bhk", layer, share)
    special = torch.einsum("bhk,bck->ch", received, targets.to(layer.dtype))  # (3, H)
    near = []
    for offset in (-1, 1, 0):
        # Each diagonal with the share of the tokens that have such a neighbour.
        some = share[:, max(0, -offset) : share.shape[1] - max(0, offset)]
        near.append(torch.einsum("bhq,bq->h", layer.diagonal(offset, 2, 3), some))
    entropy = torch.special.entr(layer).sum(-1)  # (B, H, T)
    mean_entropy = torch.einsum("bhq,bq->h", entropy, share)
    return torch.cat([special, torch.stack(near)]), mean_entropy, entropy[:, :, 0].sum(0)


def between_words(layer: Tensor, words: Tensor) -> Tensor:
    """Return the attention of words to words: (B, H, W, W).

    To a word it is the sum over its sub-words, from a word their mean.

    Args:
        layer: (B, H, T, T).
        words: (B, W, T) bool, the tokens of each word; a word without any gives and gets 0.

    Source: Clark et al. 2019, section 4.1.
    """
    to = words.to(layer.dtype)
    source = to / to.sum(-1, keepdim=True).clamp(min=1)
    return torch.einsum("bwq,bhqk,bvk->bhwv", source, layer, to)


def no_answer(words: Tensor) -> Tensor:
    """Return which words, (B, W, T), cannot be the head of which: (B, W, W) bool.

    These are the word itself, and words without a token.
    """
    present = words.any(-1)
    itself = torch.eye(words.shape[1], dtype=torch.bool, device=words.device)
    return itself | ~present[:, None] | ~present[:, :, None]


def word_heads(layer: Tensor, words: Tensor) -> Tensor:
    """Return the word that each word attends to most, and the one that attends to it most.

    The word itself and special tokens do not count. Args as `between_words`.

    Returns:
        (2, B, H, W).

    Source: Clark et al. 2019, section 4.2.
    """
    weights = between_words(layer, words).masked_fill(no_answer(words)[:, None], -1.0)
    return torch.stack([weights.argmax(-1), weights.argmax(-2)])


def word_ends(tokens: Tokens, parses: Sequence[Parse]) -> list[tuple[Array, Array]]:
    """Return the first and the last token of each word, per text.

    Special tokens are not counted; last < first: the word has no token.
    """
    counts = row_starts(len(p.spans) for p in parses)
    spans = span_array(span for p in parses for span in p.spans)
    first, last = covering(tokens, spans, np.repeat(np.arange(len(parses)), np.diff(counts)))
    return [(first[low:high], last[low:high]) for low, high in pairwise(counts)]


def word_tokens(ends: Sequence[tuple[Array, Array]], before: int, length: int) -> Array:
    """Return the tokens of each word: (B, W, T) bool.

    Args:
        ends: ends of the words of some texts, from `word_ends`.
        before: special tokens before a text.
    """
    most = max((len(first) for first, _ in ends), default=0)
    words = np.zeros((len(ends), most, length), bool)
    position = np.arange(length) - before
    for i, (first, last) in enumerate(ends):
        words[i, : len(first)] = (position >= first[:, None]) & (position <= last[:, None])
    return words


def word_links(parses: Sequence[Parse], words: Array) -> list[Link]:
    """Return all words with a head, where both have tokens, (B, W, T), and share none."""
    links = []
    for i, parse in enumerate(parses):
        for word, (head, relation) in enumerate(zip(parse.heads, parse.relations, strict=True)):
            a, b = words[i, word], words[i, head]
            if head >= 0 and a.any() and b.any() and not (a & b).any():
                links.append((i, word, head, relation))
    return links


def divergences(layers: Tensor, mask: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of each two heads, summed over texts.

    Each text is the mean over its tokens.

    Args:
        layers: (K, B, T, T) attention weights of all heads.
        mask: (B, T) bool.

    Returns:
        (K, K) in nats, 0 on the diagonal.

    Source: Clark et al. 2019, section 6. Deviation: mean over tokens, the paper sums.
    """
    count = len(layers)
    share = (mask / mask.sum(1, keepdim=True)).to(layers.dtype)

    def entropy(weights: Tensor) -> Tensor:  # (..., B, T, T) -> (...)
        return torch.einsum("...bq,bq->...", torch.special.entr(weights).sum(-1), share)

    single = entropy(layers)
    result = layers.new_zeros(count, count)
    # All pairs at once would hold K² attention maps.
    block = max(1, _MIXED // layers.numel())
    for low in range(0, count, block):
        some = slice(low, low + block)
        mixed = entropy((layers[some, None] + layers[None, low:]) / 2)  # (block, K - low)
        result[some, low:] = mixed - (single[some, None] + single[None, low:]) / 2
    # The divergence is symmetric, so only the upper half is kept; rounding can make it slightly
    # negative.
    result = result.triu(1).clamp(min=0)
    return result + result.T


def classical_mds(squared: Array) -> Array:
    """Return points in the plane with the nearest distances: (K, 2), by classical scaling.

    Args:
        squared: (K, K) squared distances. The square root of a Jensen-Shannon divergence is a
            distance of a Euclidean space, so the divergences themselves are expected here.

    Deviation: Clark et al. 2019 scale the divergences iteratively; this has one answer, up to
        signs, which are chosen so that the largest coordinate of each axis is positive.
    """
    size = len(squared)
    centre = np.eye(size) - 1 / size
    # Double centring turns squared distances into inner products, whose largest eigenvectors are
    # the coordinates.
    values, vectors = np.linalg.eigh(-0.5 * centre @ squared @ centre)
    top = np.argsort(values)[::-1][:2]
    points = vectors[:, top] * np.sqrt(np.maximum(values[top], 0))
    largest = points[np.abs(points).argmax(0), np.arange(points.shape[1])]
    # The sign of 0 is 0 and would erase an axis without extent; the tiny number makes it 1.
    points *= np.sign(largest + 1e-300)
    return np.asarray(np.pad(points, ((0, 0), (0, 2 - points.shape[1]))))


class _Window(NamedTuple):
    """Some texts with their parses and tokens."""

    texts: list[str]
    parses: list[Parse]
    tokens: Tokens
    ends: list[tuple[Array, Array]]  # per text, first and last token of each word
    punctuation: Array  # (all tokens,) bool


@dataclass
class TextProbe(Probe):
    """Probe every head of a model with texts, window by window.

    The scores are of dependency relations; after the heads' columns come the columns of `OFFSETS`.
    """

    parser: Parser | None = None  # for dependency relations; None leaves them out
    distances: int = 100  # texts that the distances of heads are taken over; 0 leaves them out

    def __post_init__(self) -> None:
        super().__post_init__()
        self.texts = 0
        self.tokens = 0
        shape = (self.encoder.layers, self.encoder.heads)
        # These are sums over texts.
        self._patterns = np.zeros((len(PATTERNS), *shape))
        self._entropy = np.zeros(shape)
        self._first_entropy = np.zeros(shape)
        self._divergence = np.zeros((self._heads, self._heads))
        self._compared = 0  # texts in `_divergence`

    def run(self, texts: Iterator[ProbeText]) -> None:
        """Count all texts; `records` returns the result."""
        for window in windows(texts, _WINDOW, self.progress):
            self._window(window)

    def _window(self, rows: list[ProbeText]) -> None:
        texts = [row.text for row in rows]
        parses = list(self.parser(texts)) if self.parser else [Parse([], [], [])] * len(texts)
        tokens = tokenize(self.encoder.tokenizer, texts)
        ends = word_ends(tokens, parses)
        window = _Window(texts, parses, tokens, ends, _punctuation(tokens, texts))
        size = np.diff(tokens.starts)
        self.skipped["text longer than the encoder"] += int((size > self.encoder.max_tokens).sum())
        self.skipped["text without a token"] += int((size == 0).sum())
        fits = (size > 0) & (size <= self.encoder.max_tokens)
        sides = np.array([row.side for row in rows])
        for side in ("select", "report"):
            side_rows = np.flatnonzero(fits & (sides == side))
            # Heads are compared over the first texts, whatever their length.
            missing = max(0, self.distances - self._compared) if side == "report" else 0
            compared = np.isin(np.arange(len(texts)), side_rows[:missing])
            order = side_rows[np.argsort(size[side_rows], kind="stable")]
            ask = partial(self._batch, side, window, compared)
            ask_in_batches(ask, order, self.batch_size)

    def _batch(self, side: str, window: _Window, compared: Array, part: Array) -> None:
        """Count some texts; heads are compared over those in `compared`."""
        rows = part.tolist()
        compared = compared[rows]
        batch = make_batch(window.tokens, rows, [], self._ends, self.encoder.region_width)
        length = batch.ids.shape[1]
        targets = torch.from_numpy(self._targets(window, rows, length))
        words = word_tokens([window.ends[r] for r in rows], len(self._ends[0]), length)
        links = word_links([window.parses[r] for r in rows], words)
        text, word, head = np.array([link[:3] for link in links], np.int64).reshape(-1, 3).T
        # Each list has an entry per layer.
        sums: list[tuple[Tensor, Tensor, Tensor]] = []
        right: list[Array] = []
        kept: list[Tensor] = []
        divergence = None
        with torch.inference_mode():
            for layer in self.encoder.attentions(*batch):
                weights = layer.float()
                device = layer.device
                check_finite(weights)
                if side == "report":
                    sums.append(surface(weights, batch.text_mask.to(device), targets.to(device)))
                if links:
                    best = word_heads(weights, torch.from_numpy(words).to(device)).cpu().numpy()
                    right.append(np.stack([b[text, :, word] == head[:, None] for b in best]))
                if compared.any():
                    some = torch.from_numpy(compared).to(device)
                    kept.append(weights[some].transpose(0, 1))
            if kept:
                mask = batch.text_mask[torch.from_numpy(compared)].to(kept[0].device)
                divergence = divergences(torch.cat(kept), mask).cpu().numpy()
        # Nothing is counted before everything has fit into memory: a batch that did not fit is
        # tried again in halves, and its texts would count twice.
        if side == "report":
            patterns, entropy, first = (
                [x.cpu() for x in column] for column in zip(*sums, strict=True)
            )
            self._patterns += torch.stack(patterns, 1).numpy()
            self._entropy += torch.stack(entropy).numpy()
            self._first_entropy += torch.stack(first).numpy()
            self.texts += len(rows)
            self.tokens += int(batch.text_mask.sum())
        if divergence is not None:
            self._divergence += divergence
            self._compared += int(compared.sum())
        if links:
            texts = [window.texts[r] for r in rows]
            relations = [link[3] for link in links]
            self._count(side, texts, text, np.stack(right, 2), head - word, relations)

    def _targets(self, window: _Window, rows: list[int], length: int) -> Array:
        """Return the first special token, the last ones, and punctuation: (B, 3, T) bool."""
        targets = np.zeros((len(rows), 3, length), bool)
        before, after = map(len, self._ends)
        for i, row in enumerate(rows):
            low, high = window.tokens.starts[row : row + 2]
            end = before + high - low
            targets[i, 0, : min(before, 1)] = True
            targets[i, 1, end : end + after] = True
            targets[i, 2, before:end] = window.punctuation[low:high]
        return targets

    def _count(
        self,
        side: str,
        texts: list[str],
        text: Array,
        right: Array,
        offsets: Array,
        relations: list[str],
    ) -> None:
        """Count answers of each relation by itself and of all together.

        Args:
            text: (links,) number of the text in `texts`.
            right: (2, links, L, H) bool.
            offsets: (links,) from each word to its head.
        """
        columns = right[0, 0].size + len(OFFSETS)
        scores = self.scores.setdefault(side, HeadScores(columns, self.samples, self.seed))
        names, name = np.unique(relations, return_inverse=True)
        unique = list(dict.fromkeys(texts))
        sentence = np.array([unique.index(t) for t in texts])[text]
        # Each answer counts for its relation and for all, in both directions: four rows, and one
        # draw per text.
        count = len(names) + 1  # the last is `ALL`
        keys = [(key, direction) for direction in DIRECTIONS for key in (*names.tolist(), ALL)]
        everything = np.full_like(name, len(names))
        key = np.concatenate([name, everything, name + count, everything + count])
        is_offset = offsets[:, None] == np.array(OFFSETS)
        forth, back = (np.concatenate([r.reshape(len(text), -1), is_offset], 1) for r in right)
        answers = np.concatenate([forth, forth, back, back])
        # All heads are active: there is nothing but text to attend to.
        scores.add(keys, unique, np.tile(sentence, 4), key, answers)

    def records(self, relations: Relations = 10, choose: bool = False) -> Iterator[dict[str, Any]]:
        """Yield one record per head, one per relation and direction, and a summary; in percent.

        The relations taken together, `all`, come first.

        Args:
            choose: heads and offsets are chosen on the side `select`; else on the reported side,
                and then the p-values are corrected over all heads.

        Deviation: an offset that ends beyond the sentence is counted as wrong by the baseline
            (`OFFSETS`); the published analysis clips it to the sentence's end.
        """
        if self.texts:
            yield from self._head_records()
        cells, chooser = (
            self.scores[side].cells if side in self.scores else {}
            for side in ("report", "select" if choose else "report")
        )
        totals = {name: cell.total for (name, _), cell in cells.items() if name != ALL}
        for name in [ALL, *select_relations(totals, relations)] if cells else []:
            for direction in DIRECTIONS:
                yield self._relation((name, direction), cells, chooser)
        yield {
            "kind": "text-summary",
            "texts": self.texts,
            "tokens": self.tokens,
            "layers": self.encoder.layers,
            "heads": self.encoder.heads,
            "compared_texts": self._compared,
            "level": LEVEL,
            "skipped": {reason: count for reason, count in self.skipped.items() if count},
        }

    def _head_records(self) -> Iterator[dict[str, Any]]:
        heads = self.encoder.heads
        points = classical_mds(self._divergence / self._compared) if self._compared else None
        for n in range(self.encoder.layers * heads):
            layer, head = divmod(n, heads)
            record = {
                "kind": "text-head",
                "name": head_name(n, heads),
                "layer": layer + 1,
                "head": head + 1,
                "entropy": round(float(self._entropy[layer, head] / self.texts), 6),
                "entropy_cls": round(float(self._first_entropy[layer, head] / self.texts), 6),
            }
            for name, sums in zip(PATTERNS, self._patterns, strict=True):
                record[name] = round(100 * float(sums[layer, head] / self.texts), 4)
            if points is not None:
                record["x"] = round(float(points[n, 0]), 6)
                record["y"] = round(float(points[n, 1]), 6)
            yield record

    def _relation(
        self, key: Key, cells: Mapping[Key, Cell], chooser: Mapping[Key, Cell]
    ) -> dict[str, Any]:
        cell = cells[key]
        choose = chooser.get(key)
        layers, heads = self.encoder.layers, self.encoder.heads
        count = layers * heads
        record = {
            "kind": "dependency",
            "relation": key[0],
            "stanford": stanford(key[0]),
            "direction": key[1],
            "words": cell.total,
            "head": None,
            "accuracy": None,
            "offset": None,
            "baseline": None,
            "accuracies": percent(cell.accuracy[:count].reshape(layers, heads)),
        }
        if choose is None:  # The texts that heads are chosen on lack the relation.
            return record
        column = int(choose.right[count:].argmax())
        report, select = (c.against(count, count + column) for c in (cell, choose))
        number = select.best()
        assert number is not None
        record |= {
            "head": head_name(number, heads),
            "offset": OFFSETS[column],
            "baseline": percent(report.base / report.total),
        }
        return record | chosen(report, select, number, cell is choose)


def _punctuation(tokens: Tokens, texts: Sequence[str]) -> Array:
    """Return which tokens are punctuation and nothing else: (T,) bool."""
    known: dict[str, bool] = {}
    result = np.zeros(len(tokens.ids), bool)
    for row, text in enumerate(texts):
        for token in range(int(tokens.starts[row]), int(tokens.starts[row + 1])):
            piece = text[tokens.spans[token, 0] : tokens.spans[token, 1]]
            if piece not in known:
                categories = [unicodedata.category(c) for c in piece]
                known[piece] = bool(piece) and all(c[0] == "P" for c in categories)
            result[token] = known[piece]
    return result
