"""What the attention heads of a text encoder look at: words by syntax, special tokens, neighbours; and how heads differ.

No image is needed, and any encoder does; a joint model is given no regions. Attention is reduced batch by batch, all heads at
once.

Axes: B batch, T tokens (special ones included), W words, L layers, H heads, K = L × H.

Source: Clark et al. 2019 (What Does BERT Look At?), on which Li et al. 2020 build: sections 3 (surface patterns), 4.2
(dependency relations) and 6 (clusters of heads).
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vgtools.checkpoint import special_ids
from vgtools.io import Progress
from vgtools.parses import Parse, Parser, stanford
from vgtools.systems.attention_probes import JointEncoder, covering, in_halves, make_batch
from vgtools.systems.attention_scores import head_name
from vgtools.text import Tokens, row_starts, tokenize

Array = np.ndarray[Any, Any]

_WINDOW = 512  # texts sorted by length together
_MIXED = 1 << 22  # numbers of a block of mixtures of two heads' attention
PATTERNS = ("cls", "sep", "punctuation", "previous", "next", "self")
DIRECTIONS = ("to head", "to dependent")  # what the attending word looks for

# ---------------------------------------------------------------------------------------------------------------- tensors


def surface(layer: Tensor, mask: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return where a layer's heads look, summed over texts; each text is the mean over its tokens.

    Args:
        layer: (B, H, T, T) attention weights.
        mask: (B, T) bool, False at padding.
        targets: (B, 3, T) bool: the first special token, the last ones, punctuation.

    Returns:
        (6, H) sums of the mean weight on `PATTERNS`; (H,) entropy in nats; (H,) entropy of the first token alone.

    Source: Clark et al. 2019, sections 3.1 to 3.3.
    Deviation: entropies are exact; the published code mixes in a uniform 0.0001 first.
    """
    share = (mask / mask.sum(1, keepdim=True)).to(layer.dtype)  # (B, T), of a text's mean
    received = torch.einsum("bhqk,bq->bhk", layer, share)
    kinds = torch.einsum("bhk,bck->ch", received, targets.to(layer.dtype))
    near = [
        torch.einsum("bhq,bq->h", layer.diagonal(off, 2, 3), share[:, max(0, -off) : share.shape[1] - max(0, off)])
        for off in (-1, 1, 0)
    ]
    entropy = torch.special.entr(layer).sum(-1)  # (B, H, T)
    return torch.cat([kinds, torch.stack(near)]), torch.einsum("bhq,bq->h", entropy, share), entropy[:, :, 0].sum(0)


def word_heads(layer: Tensor, words: Tensor) -> Tensor:
    """Return the word that each word attends to most, and the word by which it is attended to most: (2, B, H, W).

    Attention to a word is the sum over its sub-words, attention from it their mean; itself and special tokens are no answer.

    Args:
        layer: (B, H, T, T).
        words: (B, W, T) bool, which tokens a word is made of.

    Source: Clark et al. 2019, section 4.1 and 4.2.
    """
    to = words.to(layer.dtype)
    source = to / to.sum(-1, keepdim=True).clamp(min=1)
    whole = torch.einsum("bwq,bhqk,bvk->bhwv", source, layer, to)  # (B, H, W, W)
    there = to.any(-1)
    no = torch.eye(to.shape[1], dtype=torch.bool, device=to.device) | ~there[:, None] | ~there[:, :, None]  # (B, W, W)
    whole = whole.masked_fill(no[:, None], -1.0)
    return torch.stack([whole.argmax(-1), whole.argmax(-2)])


def divergences(layers: Tensor, mask: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence of each two heads, summed over texts; each text is the mean over its tokens.

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

    own, found = entropy(layers), layers.new_zeros(count, count)
    block = max(1, _MIXED // layers.numel())
    for low in range(0, count, block):
        some = layers[low : low + block]
        mixed = entropy((some[:, None] + layers[None, low:]) / 2)  # (block, K - low)
        found[low : low + block, low:] = mixed - (own[low : low + block, None] + own[None, low:]) / 2
    found = found.triu(1).clamp(min=0)
    return found + found.T


def classical_mds(squared: Array) -> Array:
    """Return points in the plane whose distances come nearest: (K, 2), by classical multidimensional scaling.

    Args:
        squared: (K, K) squared distances. The square root of a Jensen-Shannon divergence is a distance of a Euclidean space, so
            the divergences themselves go in here.

    Deviation: Clark et al. 2019 take an iterative scaling of the divergences; this one has one answer, up to signs, which
    are chosen so that the largest coordinate of each axis is positive.
    """
    size = len(squared)
    centre = np.eye(size) - 1 / size
    values, vectors = np.linalg.eigh(-0.5 * centre @ squared @ centre)
    top = np.argsort(values)[::-1][:2]
    points = vectors[:, top] * np.sqrt(np.maximum(values[top], 0))
    points *= np.sign(points[np.abs(points).argmax(0), np.arange(points.shape[1])] + 1e-300)
    return np.asarray(np.pad(points, ((0, 0), (0, 2 - points.shape[1]))))


# -------------------------------------------------------------------------------------------------------------- the probe


@dataclass
class TextProbe:
    """Ask every head of a model about texts, window by window.

    Args:
        encoder: the model.
        parser: for dependency relations; None leaves them out.
        distances: texts that the distances of heads are taken over; 0 leaves them out.
        batch_size: texts a step; halved where memory does not suffice.
        progress: told of texts.

    Attributes:
        skipped: texts left out, by reason.
    """

    encoder: JointEncoder
    parser: Parser | None = None
    distances: int = 100
    batch_size: int = 32
    progress: Progress | None = None
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._ends = special_ids(self.encoder.tokenizer)
        shape = (self.encoder.layers, self.encoder.heads)
        self.texts = self.tokens = 0
        self._patterns, self._entropy, self._first = np.zeros((len(PATTERNS), *shape)), np.zeros(shape), np.zeros(shape)
        self._apart, self._compared = np.zeros((shape[0] * shape[1],) * 2), 0
        self._right: dict[tuple[str, int], Array] = {}  # (relation, direction) -> (L, H)
        self._offsets: dict[str, Counter[int]] = {}

    def run(self, texts: Iterator[str]) -> None:
        """Count all texts; `records` says what was found."""
        while window := list(islice(texts, _WINDOW)):
            self._window(window)
            if self.progress is not None:
                self.progress.advance(len(window))

    def _window(self, texts: list[str]) -> None:
        parses = list(self.parser(texts)) if self.parser else [Parse([], [], [])] * len(texts)
        tokens = tokenize(self.encoder.tokenizer, texts)
        size = np.diff(tokens.starts)
        self.skipped["text longer than the encoder"] += int((size > self.encoder.max_tokens).sum())
        self.skipped["text without a token"] += int((size == 0).sum())
        rows = np.flatnonzero((size > 0) & (size <= self.encoder.max_tokens))
        # The texts that heads are compared over are the first ones, whatever their length.
        compare = np.isin(np.arange(len(texts)), rows[: max(0, self.distances - self._compared)])
        rows = rows[np.argsort(size[rows], kind="stable")]
        counts = row_starts(len(p.spans) for p in parses)
        spans = np.array([s for p in parses for s in p.spans], np.int64).reshape(-1, 2)
        ends = covering(tokens, spans, np.repeat(np.arange(len(texts)), np.diff(counts)))
        points = self._punctuation(tokens, texts)

        def ask(low: int, high: int) -> None:
            part = rows[low:high].tolist()
            self._batch(tokens, part, [parses[r] for r in part], [[e[counts[r] : counts[r + 1]] for e in ends] for r in part],
                        [points[tokens.starts[r] : tokens.starts[r + 1]] for r in part], compare[part])  # fmt: skip

        in_halves(ask, len(rows), self.batch_size)

    @staticmethod
    def _punctuation(tokens: Tokens, texts: Sequence[str]) -> Array:
        """Return which tokens are punctuation and nothing else: (T,) bool."""
        kind: dict[str, bool] = {}
        found = np.zeros(len(tokens.ids), bool)
        for row, text in enumerate(texts):
            for at in range(int(tokens.starts[row]), int(tokens.starts[row + 1])):
                piece = text[tokens.spans[at, 0] : tokens.spans[at, 1]]
                if piece not in kind:
                    kind[piece] = bool(piece) and all(unicodedata.category(c)[0] == "P" for c in piece)
                found[at] = kind[piece]
        return found

    def _batch(
        self, tokens: Tokens, rows: list[int], parses: list[Parse], ends: list[list[Array]], points: list[Array], compare: Array
    ) -> None:
        batch, before = make_batch(tokens, rows, [], self._ends, self.encoder.region_width), len(self._ends[0])
        length, most = batch.ids.shape[1], max((len(p.spans) for p in parses), default=0)
        targets, words = np.zeros((len(rows), 3, length), bool), np.zeros((len(rows), most, length), bool)
        at = np.arange(length)
        for i, (parse, (first, last), point) in enumerate(zip(parses, ends, points, strict=True)):
            behind = before + len(point)
            targets[i, 0, : min(before, 1)] = True
            targets[i, 1, behind : behind + len(self._ends[1])] = True
            targets[i, 2, before:behind] = point
            inside = (at >= first[:, None] + before) & (at <= last[:, None] + before)
            words[i, : len(parse.spans)] = inside
        links = [
            (i, word, head, relation)
            for i, parse in enumerate(parses)
            for word, (head, relation) in enumerate(zip(parse.heads, parse.relations, strict=True))
            if head >= 0 and words[i, word].any() and words[i, head].any() and not (words[i, word] & words[i, head]).any()
        ]
        own, word, head = np.array([link[:3] for link in links], np.int64).reshape(-1, 3).T
        kept, right = list[Tensor](), list[Array]()
        patterns, entropies, firsts = list[Array](), list[Array](), list[Array]()
        with torch.inference_mode():
            for layer in self.encoder.attentions(batch.ids, batch.text_mask, batch.regions, batch.region_mask):
                weights, where = layer.float(), layer.device
                sums = surface(weights, batch.text_mask.to(where), torch.from_numpy(targets).to(where))
                for store, value in zip((patterns, entropies, firsts), sums, strict=True):
                    store.append(value.cpu().numpy().astype(np.float64))
                if links:
                    best = word_heads(weights, torch.from_numpy(words).to(where)).cpu().numpy()
                    right.append(np.stack([best[0][own, :, word] == head[:, None], best[1][own, :, word] == head[:, None]]))
                if compare.any():
                    kept.append(weights[torch.from_numpy(compare).to(where)].transpose(0, 1))
            apart = None
            if kept:
                some = batch.text_mask[torch.from_numpy(compare)].to(kept[0].device)
                apart = divergences(torch.cat(kept), some).cpu().numpy()
        # Nothing is counted before everything has fitted into memory: a batch that did not is asked again in halves.
        self._patterns += np.stack(patterns, 1)
        self._entropy += np.stack(entropies)
        self._first += np.stack(firsts)
        if apart is not None:
            self._apart, self._compared = self._apart + apart, self._compared + int(compare.sum())
        self.texts, self.tokens = self.texts + len(rows), self.tokens + int(batch.text_mask.sum())
        if links:
            self._count(np.stack(right, 2), word - head, [link[3] for link in links])  # (2, links, L, H)

    def _count(self, right: Array, offsets: Array, relations: list[str]) -> None:
        names, place = np.unique(relations, return_inverse=True)
        for number, name in enumerate(names.tolist()):
            some = place == number
            for key in (name, "all"):
                self._offsets.setdefault(key, Counter()).update((-offsets[some]).tolist())
                for direction in range(2):
                    sums = self._right.setdefault((key, direction), np.zeros(right.shape[2:], np.int64))
                    sums += right[direction][some].sum(0)

    def records(self, relations: Sequence[str] | int | None = 10) -> Iterator[dict[str, Any]]:
        """Yield what was found: one record a head, a relation and direction, and a summary; shares are in percent.

        Args:
            relations: names (the parser's or Stanford's), how many of the most frequent ones, or None for all; `all`, the
                relations taken together, comes first.
        """
        layers, heads = self.encoder.layers, self.encoder.heads
        texts = max(self.texts, 1)
        points = classical_mds(self._apart / self._compared) if self._compared else None
        for n in range(layers * heads) if self.texts else ():
            layer, head = divmod(n, heads)
            yield {
                "kind": "text-head", "name": head_name(n, heads), "layer": layer + 1, "head": head + 1,
                "entropy": round(float(self._entropy[layer, head] / texts), 6),
                "entropy_cls": round(float(self._first[layer, head] / texts), 6),
                **{k: round(100 * float(v[layer, head] / texts), 4) for k, v in zip(PATTERNS, self._patterns, strict=True)},
                **({} if points is None else {"x": round(float(points[n, 0]), 6), "y": round(float(points[n, 1]), 6)}),
            }  # fmt: skip
        for name in self._named(relations):
            offsets = self._offsets[name]
            total, (offset, hits) = offsets.total(), min(offsets.items(), key=lambda item: (-item[1], abs(item[0]), item[0]))
            for direction, looked_for in enumerate(DIRECTIONS):
                found = self._right[name, direction]
                best = int(found.argmax())
                yield {
                    "kind": "dependency", "relation": name, "stanford": stanford(name), "direction": looked_for, "words": total,
                    "head": head_name(best, heads), "accuracy": round(100 * float(found.flat[best]) / total, 4),
                    "offset": offset, "offset_accuracy": round(100 * hits / total, 4),
                    "accuracies": np.round(100 * found / total, 4).tolist(),
                }  # fmt: skip
        yield {
            "kind": "text-summary", "texts": self.texts, "tokens": self.tokens, "layers": layers, "heads": heads,
            "compared_texts": self._compared, "skipped": {k: v for k, v in self.skipped.items() if v},
        }  # fmt: skip

    def divergence(self) -> Array | None:
        """Return the mean Jensen-Shannon divergence of each two heads, (K, K) in nats, or None where none was measured."""
        return self._apart / self._compared if self._compared else None

    def _named(self, relations: Sequence[str] | int | None) -> list[str]:
        names = sorted((n for n in self._offsets if n != "all"), key=lambda n: (-self._offsets[n].total(), n))
        if isinstance(relations, int):
            names = names[:relations]
        elif relations is not None:
            names = [n for n in names if n in relations or stanford(n) in relations]
        return (["all"] if "all" in self._offsets else []) + names
