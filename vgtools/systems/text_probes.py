"""What the attention heads of a text encoder look at: words by syntax, special tokens, neighbours; and how heads differ.

No image is needed, and any encoder does; a joint model is given no regions. Attention is reduced batch by batch, all heads at
once.

Axes: B batch, T tokens (special ones included), W words, L layers, H heads, K = L × H.

Source: Clark et al. 2019 (What Does BERT Look At?), on which Li et al. 2020 build: sections 3 (surface patterns), 4.2
(dependency relations) and 6 (clusters of heads).
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vgtools.checkpoint import special_ids
from vgtools.io import DataError, Progress, read_jsonl, read_texts
from vgtools.parses import Parse, Parser, stanford
from vgtools.systems.attention_probes import JointEncoder, check_finite, covering, in_halves, make_batch
from vgtools.systems.attention_scores import Cell, Key, Scores, chosen, head_name, percent
from vgtools.text import Tokens, row_starts, tokenize

Array = np.ndarray[Any, Any]

_WINDOW = 512  # texts sorted by length together
_MIXED = 1 << 22  # numbers of a block of mixtures of two heads' attention
PATTERNS = ("cls", "sep", "punctuation", "previous", "next", "self")
DIRECTIONS = ("to head", "to dependent")  # what the attending word looks for
# The baselines: a word's head is always the one so many words on. Nearer ones first: of equals the first is the best.
OFFSETS = [sign * step for step in range(1, 21) for sign in (-1, 1)]

# ----------------------------------------------------------------------------------------------------------------- texts


class Text(NamedTuple):
    """A text, and which part of the work it is for: `report`, `select` (heads are chosen on it) or `train`."""

    text: str
    side: str = "report"


@dataclass(frozen=True)
class Texts:
    """The texts of a stream, by what they are for; read anew each time.

    Args:
        path: a text, or `.jsonl` rows with `text`.
        sides: split of the rows -> side; rows of other splits are passed by.
        limit: stop after this many.
        seed: without splits, four of five texts are of the side `train`, by the hash of text and seed, which keeps equal ones
            together. None takes all as `report`.
    """

    path: str
    sides: Mapping[str, str] | None = None
    limit: int | None = None
    seed: int | None = None

    def __iter__(self) -> Iterator[Text]:
        """Yield texts.

        Raises:
            DataError: it cannot be read; a row without `text`, or without `split` where sides are asked for.
        """
        if self.sides is not None:
            rows = (row for _, row in read_jsonl(self.path, {"text": str, "split": str}))
            texts = (Text(row["text"], self.sides[row["split"]]) for row in rows if row["split"] in self.sides)
        else:
            texts = (Text(text, self._side(text)) for text in read_texts(self.path))
        return islice(texts, self.limit)

    def _side(self, text: str) -> str:
        if self.seed is None:
            return "report"
        salt = self.seed.to_bytes(8, "little")
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8, salt=salt).digest()
        return "report" if int.from_bytes(digest, "little") % 5 == 0 else "train"

    def of(self, *sides: str) -> Iterator[Text]:
        """Yield the texts of some sides."""
        return (text for text in self if text.side in sides)

    def check(self) -> Counter[str]:
        """Read all texts once, before a model is loaded; return how many there are for each side.

        Raises:
            DataError: as above; or there is none for one of the sides.
        """
        counts = Counter(text.side for text in self if text.text.strip())
        for split, side in (self.sides or {}).items():
            if not counts[side]:
                raise DataError(f'has no text of the split "{split}"', self.path)
        for side in ("report",) if self.seed is None else ("report", "train"):
            if not counts[side]:
                raise DataError(f"has too few texts, none to {side if side == 'report' else 'learn from'}", self.path)
        return counts


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


def between_words(layer: Tensor, words: Tensor) -> Tensor:
    """Return the attention of words to words: (B, H, W, W); to a word: the sum over its sub-words, from it: their mean.

    Args:
        layer: (B, H, T, T).
        words: (B, W, T) bool, which tokens a word is made of; none for a word that is not there, which gives and gets 0.

    Source: Clark et al. 2019, section 4.1.
    """
    to = words.to(layer.dtype)
    source = to / to.sum(-1, keepdim=True).clamp(min=1)
    return torch.einsum("bwq,bhqk,bvk->bhwv", source, layer, to)


def no_answer(words: Tensor) -> Tensor:
    """Return which words cannot be the head of which: itself, and words without a token; (B, W, W) bool of (B, W, T)."""
    there = words.any(-1)
    return torch.eye(words.shape[1], dtype=torch.bool, device=words.device) | ~there[:, None] | ~there[:, :, None]


def word_heads(layer: Tensor, words: Tensor) -> Tensor:
    """Return the word that each word attends to most, and the word by which it is attended to most: (2, B, H, W).

    Itself and special tokens are no answer.

    Args:
        layer: (B, H, T, T).
        words: (B, W, T) bool, which tokens a word is made of.

    Source: Clark et al. 2019, section 4.2.
    """
    whole = between_words(layer, words).masked_fill(no_answer(words)[:, None], -1.0)
    return torch.stack([whole.argmax(-1), whole.argmax(-2)])


def word_tokens(ends: Sequence[Sequence[Array]], before: int, length: int) -> Array:
    """Return which tokens each word is made of: (B, W, T) bool.

    Args:
        ends: first and last token of each word of each text, special tokens not counted; last < first: it has none.
        before: special tokens before a text.
        length: T.
    """
    found = np.zeros((len(ends), max((len(first) for first, _ in ends), default=0), length), bool)
    at = np.arange(length)
    for i, (first, last) in enumerate(ends):
        found[i, : len(first)] = (at >= first[:, None] + before) & (at <= last[:, None] + before)
    return found


def word_links(parses: Sequence[Parse], words: Array) -> list[tuple[int, int, int, str]]:
    """Return (text, word, its head, relation) of all words with a head; both have tokens and share none.

    Args:
        parses: of B texts.
        words: (B, W, T) bool, their words' tokens.
    """
    return [
        (i, word, head, relation)
        for i, parse in enumerate(parses)
        for word, (head, relation) in enumerate(zip(parse.heads, parse.relations, strict=True))
        if head >= 0 and words[i, word].any() and words[i, head].any() and not (words[i, word] & words[i, head]).any()
    ]


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
        samples: S, of the sentences, behind the intervals of dependency accuracies.
        seed: of the resampling.
        batch_size: texts a step; halved where memory does not suffice.
        progress: told of texts.

    Attributes:
        scores: of dependency relations by side; the columns behind those of the heads are of `OFFSETS`.
        skipped: texts left out, by reason.
    """

    encoder: JointEncoder
    parser: Parser | None = None
    distances: int = 100
    samples: int = 1000
    seed: int = 0
    batch_size: int = 32
    progress: Progress | None = None
    scores: dict[str, Scores] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._ends = special_ids(self.encoder.tokenizer)
        shape = (self.encoder.layers, self.encoder.heads)
        self.texts = self.tokens = 0
        self._patterns, self._entropy, self._first = np.zeros((len(PATTERNS), *shape)), np.zeros(shape), np.zeros(shape)
        self._apart, self._compared = np.zeros((shape[0] * shape[1],) * 2), 0

    def run(self, texts: Iterator[Text]) -> None:
        """Count all texts; `records` says what was found."""
        while window := list(islice(texts, _WINDOW)):
            self._window(window)
            if self.progress is not None:
                self.progress.advance(len(window))

    def _window(self, window: list[Text]) -> None:
        texts, sides = [t.text for t in window], np.array([t.side for t in window])
        parses = list(self.parser(texts)) if self.parser else [Parse([], [], [])] * len(texts)
        tokens = tokenize(self.encoder.tokenizer, texts)
        size = np.diff(tokens.starts)
        self.skipped["text longer than the encoder"] += int((size > self.encoder.max_tokens).sum())
        self.skipped["text without a token"] += int((size == 0).sum())
        rows = np.flatnonzero((size > 0) & (size <= self.encoder.max_tokens))
        counts = row_starts(len(p.spans) for p in parses)
        spans = np.array([s for p in parses for s in p.spans], np.int64).reshape(-1, 2)
        ends = covering(tokens, spans, np.repeat(np.arange(len(texts)), np.diff(counts)))
        points = self._punctuation(tokens, texts)
        for side in ("select", "report"):
            own = rows[sides[rows] == side]
            # The texts that heads are compared over are the first ones, whatever their length.
            compare = np.isin(np.arange(len(texts)), own[: max(0, self.distances - self._compared)] if side == "report" else [])
            own = own[np.argsort(size[own], kind="stable")]

            def ask(low: int, high: int, own: Array = own, compare: Array = compare, side: str = side) -> None:
                part = own[low:high].tolist()
                self._batch(side, [texts[r] for r in part], tokens, part, [parses[r] for r in part],
                            [[e[counts[r] : counts[r + 1]] for e in ends] for r in part],
                            [points[tokens.starts[r] : tokens.starts[r + 1]] for r in part], compare[part])  # fmt: skip

            in_halves(ask, len(own), self.batch_size)

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
        self, side: str, texts: list[str], tokens: Tokens, rows: list[int], parses: list[Parse], ends: list[list[Array]],
        points: list[Array], compare: Array,
    ) -> None:  # fmt: skip
        batch, before = make_batch(tokens, rows, [], self._ends, self.encoder.region_width), len(self._ends[0])
        length = batch.ids.shape[1]
        targets, words = np.zeros((len(rows), 3, length), bool), word_tokens(ends, before, length)
        for i, point in enumerate(points):
            behind = before + len(point)
            targets[i, 0, : min(before, 1)] = True
            targets[i, 1, behind : behind + len(self._ends[1])] = True
            targets[i, 2, before:behind] = point
        links = word_links(parses, words)
        own, word, head = np.array([link[:3] for link in links], np.int64).reshape(-1, 3).T
        kept, right = list[Tensor](), list[Array]()
        patterns, entropies, firsts = list[Array](), list[Array](), list[Array]()
        with torch.inference_mode():
            for layer in self.encoder.attentions(batch.ids, batch.text_mask, batch.regions, batch.region_mask):
                weights, where = layer.float(), layer.device
                check_finite(weights)
                if side == "report":
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
        if side == "report":
            self._patterns += np.stack(patterns, 1)
            self._entropy += np.stack(entropies)
            self._first += np.stack(firsts)
            self.texts, self.tokens = self.texts + len(rows), self.tokens + int(batch.text_mask.sum())
        if apart is not None:
            self._apart, self._compared = self._apart + apart, self._compared + int(compare.sum())
        if links:
            self._count(side, texts, own, np.stack(right, 2), head - word, [link[3] for link in links])

    def _count(self, side: str, texts: list[str], row: Array, right: Array, offsets: Array, relations: list[str]) -> None:
        """Count answers, (2, links, L, H) bool, of each relation by itself and of all together."""
        scores = self.scores.setdefault(side, Scores(right[0, 0].size + len(OFFSETS), self.samples, self.seed))
        names, place = np.unique(relations, return_inverse=True)
        unique = list(dict.fromkeys(texts))
        image = np.array([unique.index(text) for text in texts])[row]
        # Each answer counts for its relation and for `all`, in both directions: four rows, and one draw a text.
        keys = [(name, direction) for direction in DIRECTIONS for name in (*names.tolist(), "all")]
        key = np.concatenate([numbers + start for start in (0, len(names) + 1) for numbers in (place, 0 * place + len(names))])
        always = offsets[:, None] == np.array(OFFSETS)
        columns = np.concatenate([np.concatenate([r.reshape(len(row), -1), always], 1) for r in right for _ in range(2)])
        none, mass = np.zeros(len(key)), np.ones(columns.shape)  # all heads are active: there is nothing but text to look at
        scores.add(keys, unique, np.tile(image, 4), key, columns, mass, none, none.astype(bool))

    def records(
        self, relations: Sequence[str] | int | None = 10, choose: bool = False, level: float = 0.95
    ) -> Iterator[dict[str, Any]]:
        """Yield what was found: one record a head, a relation and direction, and a summary; shares are in percent.

        Args:
            relations: names (the parser's or Stanford's), how many of the most frequent ones, or None for all; `all`, the
                relations taken together, comes first.
            choose: heads and offsets are chosen on the side `select`; else on what is reported, and then the p-values are
                corrected over all heads.
            level: of the intervals.
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
        cells = self.scores["report"].cells if "report" in self.scores else {}
        chooser = cells if not choose else self.scores["select"].cells if "select" in self.scores else {}
        for name in _named(cells, relations):
            for direction in DIRECTIONS:
                yield self._relation(name, direction, cells[name, direction], chooser.get((name, direction)), level)
        yield {
            "kind": "text-summary", "texts": self.texts, "tokens": self.tokens, "layers": layers, "heads": heads,
            "compared_texts": self._compared, "level": level, "skipped": {k: v for k, v in self.skipped.items() if v},
        }  # fmt: skip

    def divergence(self) -> Array | None:
        """Return the mean Jensen-Shannon divergence of each two heads, (K, K) in nats, or None where none was measured."""
        return self._apart / self._compared if self._compared else None

    def _relation(self, name: str, direction: str, cell: Cell, choose: Cell | None, level: float) -> dict[str, Any]:
        layers, heads = self.encoder.layers, self.encoder.heads
        count = layers * heads
        record = {
            "kind": "dependency", "relation": name, "stanford": stanford(name), "direction": direction, "words": cell.total,
            "head": None, "accuracy": None, "offset": None, "baseline": None,
            "accuracies": percent(cell.accuracy[:count].reshape(layers, heads)),
        }  # fmt: skip
        if choose is None:  # the texts that heads are chosen on do not have the relation
            return record
        column = int(choose.right[count:].argmax())
        own, picked = (c.against(count, count + column) for c in (cell, choose))
        number = picked.best()
        assert number is not None
        record |= {"head": head_name(number, heads), "offset": OFFSETS[column], "baseline": percent(own.base / own.total)}
        return record | chosen(own, picked, number, level, cell is choose)


def _named(cells: Mapping[Key, Cell], wanted: Sequence[str] | int | None) -> list[str]:
    """Return the relations that are wanted by falling number of words; `all` first."""
    totals = {name: cell.total for (name, _), cell in cells.items() if name != "all"}
    names = sorted(totals, key=lambda name: (-totals[name], name))
    if isinstance(wanted, int):
        names = names[:wanted]
    elif wanted is not None:
        names = [n for n in names if n in wanted or stanford(n) in wanted]
    return ["all", *names] if cells else []
