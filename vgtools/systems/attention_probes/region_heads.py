"""Grounding by the attention heads of a joint model: entities and syntactic neighbours in regions.

Each head is taken as a classifier that was never trained: for a word it answers with the region
that it attends to most. Any model whose text and regions share one attention can be probed through
`JointEncoder`; all heads are probed at once.

Axes: B batch, T tokens (special ones included), R regions, L layers, H heads, Q queries, P phrases,
S bootstrap samples.

Source: Li et al. 2020 (What Does BERT with Vision Look At?), sections 3.1 and 3.2.
Deviation: gold syntax comes from spaCy or a CoNLL-U file, in the paper from AllenNLP's biaffine
    parser.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vgtools.images.boxes import box_fault, clip, iou, size_ratio
from vgtools.images.regions import Regions, RegionSet, backbone_of
from vgtools.io.arrays import Array, padded, ranges
from vgtools.io.errors import DataError, Tally
from vgtools.io.process import Progress
from vgtools.io.splits import split_of
from vgtools.io.streams import read_jsonl
from vgtools.models.attention import JointEncoder
from vgtools.models.memory import in_batches
from vgtools.models.references import check_same
from vgtools.models.sealed import run_with
from vgtools.systems.attention_probes.controls import (
    OVERLAP,
    annotated,
    asked_with_another_entity,
    blind_rates,
)
from vgtools.systems.attention_probes.examples import (
    AttentionExample,
    attention_rows,
    make_groups,
)
from vgtools.systems.attention_probes.scores import (
    BLIND,
    ENTITY,
    OTHER_CAPTION,
    OTHER_ENTITY,
    Cell,
    HeadScores,
    Key,
    Relations,
    head_name,
    records,
)
from vgtools.text.parses import Parse, Parser
from vgtools.text.tokens import WORD, Tokens, row_starts, special_ids, tokenize

_T = TypeVar("_T")

_WINDOW = 512  # captions that are sorted by length together


@dataclass(frozen=True)
class Caption:
    """One caption with the entities that have boxes."""

    line: int
    image: str
    text: str
    side: str  # which of the reports it counts for
    spans: list[tuple[int, int]]  # P phrases with a box
    boxes: list[Array]  # P times (G, 4), pixels of the picture that the regions refer to
    split: dict[str, str] = field(default_factory=dict)  # "split" of its row, where it has one


def read_caption(
    row: Mapping[str, Any], side: str, regions: Regions, path: str, line: int
) -> Caption | None:
    """Return a row of `vg prepare flickr30k-entities`, checked against its regions.

    Gold boxes are scaled to the picture that the regions refer to where the row has the size of
    its own ("width", "height"). A photo without a region gives None.

    Raises:
        DataError: a span outside the text, an invalid box, or a photo that the regions do not have,
            or have in another shape.
    """
    image, text, phrases = row["image"], row["text"], row.get("phrases", [])
    if image not in regions:
        why = f"{regions.path} holds no regions of the image {image!r:.80}; extract them"
        raise DataError(why, path, line)
    region_set = regions.of(image)
    if not len(region_set):
        return None
    width = row.get("width", region_set.width)
    height = row.get("height", region_set.height)
    if not all(type(size) in (int, float) and size > 0 for size in (width, height)):
        why = f'"width" and "height" are {[width, height]}, expected the size in pixels'
        raise DataError(why, path, line)
    try:
        ratio = size_ratio((width, height), (region_set.width, region_set.height))
    except ValueError as error:
        raise DataError(
            f"{regions.path} has a picture {image!r:.80} that {error}", path, line
        ) from None
    scale = np.array(ratio * 2)
    spans: list[tuple[int, int]] = []
    golds: list[Array] = []
    for number, phrase in enumerate(phrases if isinstance(phrases, list) else [None], 1):
        try:
            span, gold = _read_phrase(phrase, number, text)
            fault = box_fault(gold, width, height)
            if fault:
                raise ValueError(f"phrase {number}: {fault}")
        except ValueError as error:
            raise DataError(str(error), path, line) from None
        if len(gold):
            spans.append(span)
            golds.append(clip(gold, width, height) * scale)
    return Caption(line, image, text, side, spans, golds, split_of(row))


def _read_phrase(phrase: Any, number: int, text: str) -> tuple[tuple[int, int], Array]:
    """Return the span of a phrase and its boxes, (G, 4).

    Raises:
        ValueError: either is invalid.
    """
    keys = ("start", "end", "boxes")
    start, end, boxes = (phrase.get(k) if isinstance(phrase, dict) else None for k in keys)
    # `isinstance` would accept True, which is also an int.
    if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):
        why = f"phrase {number} has the span {start!r:.20} to {end!r:.20}"
        raise ValueError(f"{why}, the text has {len(text)} characters")
    try:
        gold = np.array(boxes, np.float64)
        valid = gold.size == 0 or gold.shape[1:] == (4,)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        expected = "expected a list of [x1, y1, x2, y2]"
        raise ValueError(f'phrase {number} has "boxes" {boxes!r:.60}, {expected}')
    return (start, end), gold.reshape(-1, 4)


def read_captions(
    path: str,
    regions: Regions,
    sides: Mapping[str, str] | None,
    tally: Tally,
    limit: int | None = None,
) -> Iterator[Caption]:
    """Yield the captions of a stream that can be probed, checked; the tally handles the others.

    Args:
        path: rows as `vg prepare flickr30k-entities` writes them; `.gz`, `.zst` or `-`.
        sides: split of the rows -> report that they count for; rows of other splits are ignored.
            None takes all as `report`.
        tally: handles bad rows, also of a photo of two splits; counts photos without regions.
    """
    count = 0
    splits = dict[str, str]()  # photo -> its split
    for line, row in read_jsonl(path, {"image": str, "text": str}):
        side = "report" if sides is None else sides.get(str(row.get("split")))
        if side is None:
            continue
        with tally.of_item():
            if sides is not None:
                own = str(row["split"])
                other = splits.setdefault(row["image"], own)
                if own != other:
                    why = f"the photo {row['image']!r:.60} is of the split {own}, and of {other}"
                    why += " above; heads are chosen on other photos than they are reported on"
                    raise DataError(why, path, line)
            caption = read_caption(row, side, regions, path, line)
            if caption is None:
                tally.left_out["photo without regions"] += 1
                continue
            yield caption
            count += 1
        if count == limit:
            return


def check_captions(
    path: str, regions: Regions, sides: Mapping[str, str] | None, limit: int | None = None
) -> None:
    """Read all captions once before a model is loaded, so that bad rows are reported early.

    Raises:
        DataError: a bad row; or there is no caption with an entity for one of the sides.
    """
    captions = read_captions(path, regions, sides, Tally(), limit)
    counts = Counter(caption.side for caption in captions if caption.spans)
    for split, side in (sides or {"": "report"}).items():
        if not counts[side]:
            caption = f'caption of the split "{split}"' if split else "caption"
            why = f"has no {caption} with an entity that has a box, on a photo with regions"
            raise DataError(why, path)


def check_backbone(ref: str, regions: Regions) -> None:
    """Refuse regions made with another backbone than those that a vg run was trained on."""
    trained = run_with(ref).get("backbone")
    if trained:
        backbone = backbone_of(regions)
        # Only a run of `vg pretrain` also names the preprocessing in its fingerprint.
        if " " not in str(trained.get("fingerprint")):
            backbone["fingerprint"] = backbone["fingerprint"].split(" ")[0]
        check_same("backbone", backbone, trained, regions.path)


def check_width(encoder: JointEncoder, regions: Regions) -> None:
    """Refuse regions of another width than the model takes."""
    width = encoder.region_width
    if width != regions.width:
        takes = str(width) if width else "no regions: it is a text encoder"
        why = f"has {regions.width} channels per region, the model takes {takes}"
        raise DataError(why, regions.path)


class HeadQueries(NamedTuple):
    """Q questions to every head: does this word attend most to a region of that phrase?"""

    row: Array  # (Q,) caption of the window
    first: Array  # (Q,) first token of the source in its caption
    last: Array  # (Q,) last token
    phrase: Array  # (Q,) phrase of the window whose regions are right
    key: Array  # (Q,) index in the list of keys


def covering(tokens: Tokens, spans: Array, rows: Array) -> tuple[Array, Array]:
    """Return the first and the last token that share a character with each span.

    Tokens are counted in their row; last < first where there is none.

    Args:
        tokens: tokens of R texts.
        spans: (Q, 2) code points.
        rows: (Q,) the text of each span.
    """
    solid = np.flatnonzero(tokens.spans[:, 1] > tokens.spans[:, 0])  # empty tokens share nothing
    owner = np.repeat(np.arange(len(tokens.starts) - 1), np.diff(tokens.starts))[solid]
    # Positions over all texts: each text gets a range of its own, wider than any position in it.
    width = 1 + max(int(tokens.spans.max(initial=0)), int(spans.max(initial=0)))
    starts = owner * width + tokens.spans[solid, 0]
    # Byte-level tokens may overlap, so that ends are not always sorted; their running maximum is,
    # as the binary search needs.
    ends = np.maximum.accumulate(owner * width + tokens.spans[solid, 1]) if len(solid) else starts
    low = np.searchsorted(ends, rows * width + spans[:, 0], "right")
    high = np.searchsorted(starts, rows * width + spans[:, 1], "left")
    solid = np.append(solid, 0)
    first = solid[np.minimum(low, len(solid) - 1)]
    last = solid[np.maximum(high - 1, 0)]
    base = tokens.starts[rows]
    return np.asarray(first - base), np.where(high > low, last - base, first - base - 1)


def _phrases(captions: Sequence[Caption]) -> tuple[Array, Array]:
    """Return the spans of all phrases (P, 2) and the captions that they are in (P,)."""
    rows = np.repeat(np.arange(len(captions)), [len(c.spans) for c in captions])
    return span_array(span for c in captions for span in c.spans), rows


def span_array(spans: Iterable[tuple[int, int]]) -> Array:
    """Return spans as an array, (N, 2) int64."""
    return np.array(list(spans), np.int64).reshape(-1, 2)


def syntactic_queries(
    tokens: Tokens,
    captions: Sequence[Caption],
    parses: Sequence[Parse],
    keys: dict[Key, int],
    words: str = "head",
) -> HeadQueries:
    """Return a query per pair of related words (w1, w2), where w1 is an entity with boxes.

    w2 asks for w1's regions. Both directions are taken: w1 as the dependent of w2, and as its head.
    The root has no second word.

    Args:
        keys: numbers of (relation, role of the entity); new keys are added.
        words: which words of a phrase represent it as w1: `head` is the one whose own head is
            outside the phrase (the first of them); `any` takes every word, so that two words of one
            phrase ask for one another's region.

    Source: Li et al. 2020, section 3.1, "Syntactic Grounding".
    Deviation: the paper does not say which word of a phrase is the entity. `any` is the wider
        reading.
    """
    counts = row_starts(len(p.spans) for p in parses)
    word_spans = span_array(span for p in parses for span in p.spans)
    word_row = np.repeat(np.arange(len(parses)), np.diff(counts))
    local = np.array([h for p in parses for h in p.heads], np.int64)
    head = np.where(local >= 0, local + counts[word_row], -1)
    names, relation = np.unique(
        [r for p in parses for r in p.relations] or [""], return_inverse=True
    )
    phrase, word = _entity_words(captions, word_spans, counts, head, words)
    # Upwards to the head of each, and down to each word whose head it is.
    up = np.flatnonzero(head[word] >= 0) if len(word) else np.zeros(0, np.int64)
    # Sorted by head, the dependents of a word are a range.
    order = np.argsort(head, kind="stable")
    begin, end = (np.searchsorted(head[order], word, side) for side in ("left", "right"))
    down = np.repeat(np.arange(len(word)), end - begin)
    child = order[ranges(begin, end - begin)]
    source = np.concatenate([head[word[up]], child])
    target = np.concatenate([phrase[up], phrase[down]])
    label = np.concatenate([relation[word[up]], relation[child]])
    direction = np.repeat(np.array([0, 1]), [len(up), len(down)])
    pairs, pair = np.unique(np.column_stack([label, direction]), axis=0, return_inverse=True)
    numbers = [
        keys.setdefault((str(names[r]), ("dependent", "head")[d]), len(keys))
        for r, d in pairs.tolist()
    ]
    first, last = covering(tokens, word_spans[source], word_row[source])
    key = np.array(numbers, np.int64)[pair.reshape(-1)]
    return HeadQueries(word_row[source], first, last, target, key)


def _entity_words(
    captions: Sequence[Caption], word_spans: Array, counts: Array, head: Array, words: str
) -> tuple[Array, Array]:
    """Return the words that represent the phrases: (which phrase, which word), in pairs."""
    # The words of each phrase are a range, since parses keep the order of the text.
    as_tokens = Tokens(np.zeros(len(word_spans), np.int32), word_spans.astype(np.int32), counts)
    spans, rows = _phrases(captions)
    low, high = covering(as_tokens, spans, rows)
    low, high = low + counts[rows], high + counts[rows]
    size = np.maximum(high - low + 1, 0)
    phrase = np.repeat(np.arange(len(rows)), size)
    word = ranges(low, size)
    if words == "any":
        return phrase, word
    above = head[word]
    outside = np.flatnonzero((above < low[phrase]) | (above > high[phrase]))
    _, first = np.unique(phrase[outside], return_index=True)
    return phrase[outside[first]], word[outside[first]]


def _hits(captions: Sequence[Caption], sets: Sequence[RegionSet]) -> Array:
    """Return which regions are right for each phrase: (P, R) bool, with R of the richest photo."""
    phrases = sum(len(c.spans) for c in captions)
    hits = np.zeros((phrases, max(map(len, sets), default=0)), bool)
    end = 0
    for caption, regions in zip(captions, sets, strict=True):
        if caption.spans:
            overlap = iou(np.concatenate(caption.boxes), regions.boxes)  # (all gold boxes, R)
            heads = row_starts(map(len, caption.boxes))[:-1]
            best = np.maximum.reduceat(overlap, heads, axis=0)  # (phrases of the caption, R)
            hits[end : end + len(heads), : len(regions)] = best >= OVERLAP
            end += len(heads)
    return hits


class ProbeBatch(NamedTuple):
    """Captions with their regions, padded to the longest, as `JointEncoder.attentions` takes
    them.
    """

    ids: Tensor  # (B, T)
    text_mask: Tensor  # (B, T) bool
    regions: Tensor  # (B, R, D)
    region_mask: Tensor  # (B, R) bool


def make_batch(
    tokens: Tokens,
    rows: Sequence[int],
    sets: Sequence[RegionSet],
    ends: tuple[list[int], list[int]],
    width: int,
) -> ProbeBatch:
    """Return some rows of tokenised captions with the regions of their photos.

    Args:
        sets: regions of those rows; none for text alone.
        ends: special ids before and after a text.
    """
    prefix, suffix = ends
    texts = [[*prefix, *tokens.row(row)[0].tolist(), *suffix] for row in rows]
    features = [regions.features for regions in sets] or [np.zeros((0, width))] * len(rows)
    arrays = (
        padded(texts, 0, np.int64),
        padded([np.ones(len(text), bool) for text in texts], False, bool),
        padded(features, 0, np.float32, width),
        padded([np.ones(len(each), bool) for each in features], False, bool),
    )
    return ProbeBatch(*map(torch.from_numpy, arrays))


def answers(
    layers: Iterable[Tensor],
    batch: ProbeBatch,
    row: Tensor,
    first: Tensor,
    last: Tensor,
    order: Tensor,
    reduce: str = "last",
) -> tuple[Tensor, Tensor]:
    """Return the region that each head answers each query with, and its attention to regions.

    Args:
        layers: as `JointEncoder.attentions` yields them; each is released before the next is made.
        row: (Q,) row of the batch.
        first: (Q,) first token of the source, special tokens counted.
        last: (Q,) last token.
        order: (B, R) int64, the regions of each row: among regions with the same weight, the first
            in this order is the answer.
        reduce: `last` takes the attention of the source's last sub-word, `mean` the mean over its
            sub-words.

    Returns:
        (Q, L, H) int64; (Q, L, H) float32 in [0, 1].

    Source: Li et al. 2020, section 3.1; the last sub-word: appendix B.4.
    """
    tokens = batch.ids.shape[1]
    token, token_row = last, row
    if reduce == "mean":
        # A query of several sub-words becomes one row per sub-word, and `index_add_` sums them
        # again: only these rows are copied from the layer, not whole sequences.
        count = last - first + 1
        query = torch.repeat_interleave(torch.arange(len(row), device=row.device), count)
        start = torch.repeat_interleave(count.cumsum(0) - count, count)
        within = torch.arange(len(query), device=row.device) - start
        token, token_row = first[query] + within, row[query]
    best: list[Tensor] = []
    mass: list[Tensor] = []
    for layer in layers:
        weights = layer[token_row, :, token, tokens:].float()  # (Q or the queries' tokens, H, R)
        if reduce == "mean":
            total = weights.new_zeros(len(row), *weights.shape[1:])
            weights = total.index_add_(0, query, weights) / count[:, None, None]
        present = batch.region_mask.to(weights.device)[row][:, None]  # (Q, 1, R)
        mass.append((weights * present).sum(-1))
        tried = order[row]
        # Weights are not negative, so padding with -1 never wins.
        seen = weights.masked_fill(~present, -1.0)
        # argmax takes the first of equals, so the weights are put into the order of trial before.
        place = seen.gather(2, tried[:, None].expand(-1, weights.shape[1], -1)).argmax(-1)
        best.append(tried.gather(1, place))
    return torch.stack(best, 1), torch.stack(mass, 1)


def random_order(image: str, count: int, width: int, seed: int) -> Array:
    """Return the order in which an image's regions are tried: (width,) int64.

    It is drawn from seed and image alone. With a fixed order, such as the file's, ties would go to
    the region that an annotator drew first.

    Args:
        image: id.
        count: its regions; places from there on stay.
        width: regions of the richest image of the batch.
        seed: decides the order.
    """
    drawn = np.random.default_rng([seed, zlib.crc32(image.encode())]).permutation(count)
    return np.concatenate([drawn, np.arange(count, width)])


def _confident(regions: RegionSet, hits: Array) -> Array:
    """Return for each phrase how often the most confident region is right: (P,).

    Equally confident regions share the answer.
    """
    top = regions.confidence == regions.confidence.max()
    return np.asarray(hits[:, : len(regions)][:, top].mean(1))


@dataclass(kw_only=True)
class Probe:
    """The common part of all probes of a model; H heads of L layers are asked at once."""

    encoder: JointEncoder = field(kw_only=False)
    samples: int = 1000  # S, resamplings of photos or sentences for the intervals
    seed: int = 0  # decides the resampling
    batch_size: int = 32  # captions or texts per step; halved where memory runs out
    progress: Progress | None = None  # counts captions or texts
    scores: dict[str, HeadScores] = field(default_factory=dict)  # by side
    skipped: Counter[str] = field(default_factory=Counter)  # left out, by reason

    def __post_init__(self) -> None:
        self._ends = special_ids(self.encoder.tokenizer)
        self._heads = self.encoder.layers * self.encoder.heads


@dataclass
class GroundingProbe(Probe):
    """Probe every head of a model with captions, window by window."""

    regions: Regions
    parser: Parser | None = None  # for syntactic grounding; None leaves it out
    reduce: str = "last"  # the source's sub-word that asks; or `mean` of its sub-words
    words: str = "head"  # the words of a phrase that represent it in relations; or `any`

    def __post_init__(self) -> None:
        super().__post_init__()
        check_width(self.encoder, self.regions)
        self._keys: dict[Key, int] = {ENTITY: 0}
        # The last two captions of different photos that could be asked about.
        self._before: list[Caption] = []

    def run(self, captions: Iterator[Caption]) -> None:
        """Count all captions; `scores` and `skipped` have the result."""
        for window in windows(captions, _WINDOW, self.progress):
            self._window(window)

    def _sides(self, choose: bool) -> tuple[HeadScores, HeadScores]:
        """Return the scores to report and those to choose heads by."""
        scores = self.scores["report"]
        if not choose:
            return scores, scores
        return scores, self.scores.get("select", HeadScores(self._heads, self.samples, self.seed))

    def records(self, relations: Relations = 10, choose: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the results of the side `report`, as `scores.records` returns them.

        Args:
            choose: heads are chosen on the side `select`.
        """
        scores, chooser = self._sides(choose)
        shape = (self.encoder.layers, self.encoder.heads)
        return records(scores, chooser, *shape, relations=relations)

    def examples(
        self, captions: Iterable[Caption], choose: bool = False
    ) -> Iterator[AttentionExample]:
        """Yield captions with the regions that each word attends to, by the best head of each
        layer.

        Captions that do not fit are left out.

        Args:
            choose: heads are chosen on the side `select`.
        """
        heads = self.encoder.heads
        cell = self._sides(choose)[1].cells.get(ENTITY) or Cell.empty(self._heads, 1)
        best, chosen = cell.by_layer(heads)
        names = [head_name(layer * heads + head, heads) for layer, head in enumerate(best)]
        for caption in captions:
            words = [match.span() for match in WORD.finditer(caption.text)]
            length = len(tokenize(self.encoder.tokenizer, [caption.text]).ids)
            if not words or length > self.encoder.max_tokens:
                continue
            regions = self.regions.of(caption.image)
            found = region_attention(self.encoder, caption.text, regions)
            every = word_attention(found, words)
            weights = every[np.arange(len(best)), best]  # (L, W, R)
            image = caption.image
            text = caption.text
            groups = make_groups(text, caption.spans, caption.boxes, regions, weights[chosen])
            rows = attention_rows(text, image, words, regions, every, found.length)
            rows = [row | caption.split for row in rows]
            yield AttentionExample(
                image, text, words, regions, groups, names, chosen, weights, None, rows
            )

    def _window(self, captions: list[Caption]) -> None:
        tokens = tokenize(self.encoder.tokenizer, [c.text for c in captions])
        queries = self._queries(captions, tokens)
        if not len(queries.row):
            return
        of_image = {image: self.regions.of(image) for image in {c.image for c in captions}}
        sets = [of_image[c.image] for c in captions]
        hits = _hits(captions, sets)
        counts = row_starts(len(c.spans) for c in captions)
        ranges = zip(sets, pairwise(counts), strict=True)
        base = np.concatenate([_confident(regions, hits[a:b]) for regions, (a, b) in ranges])
        top, mass = self._ask(tokens, [c.image for c in captions], sets, queries)
        right = np.take_along_axis(hits[queries.phrase], top, 1)
        side = np.array([c.side for c in captions])[queries.row]
        for name in np.unique(side).tolist():
            some = np.flatnonzero(side == name)
            rows, phrase = queries.row[some], queries.phrase[some]
            scores = self.scores.setdefault(name, HeadScores(self._heads, self.samples, self.seed))
            scores.captions += len(np.unique(rows))
            found = (right[some], mass[some], base[phrase], np.asarray(hits[phrase].any(1)))
            self._count(scores, captions, rows, list(self._keys), queries.key[some], *found)
        # Controls are needed only where results are reported: on `select` heads are only chosen.
        asked = np.flatnonzero((queries.key == 0) & (side != "select"))
        entities = HeadQueries(*(column[asked] for column in queries))
        for key, kept, columns in chain(
            self._same_caption(captions, sets, entities, hits, counts, top[asked]),
            self._other_caption(captions, sets, entities, hits),
        ):
            both = np.concatenate([right[asked][kept], columns], 1)
            own_side = side[asked][kept]
            for name in np.unique(own_side).tolist():
                some = np.flatnonzero(own_side == name)
                rows = entities.row[kept][some]
                one = np.zeros(len(some), np.int64)
                self._count(self.scores[name], captions, rows, [key], one, both[some])

    @staticmethod
    def _count(
        scores: HeadScores,
        captions: list[Caption],
        rows: Array,
        keys: list[Key],
        key: Array,
        right: Array,
        *more: Array,
    ) -> None:
        """Count the answers to queries about captions."""
        images = list(dict.fromkeys(captions[r].image for r in rows.tolist()))
        number = {image: n for n, image in enumerate(images)}
        image = np.array([number[captions[r].image] for r in rows.tolist()])
        scores.count_photos(images)
        scores.add(keys, images, image, key, right, *more)

    def _same_caption(
        self,
        captions: list[Caption],
        sets: list[RegionSet],
        queries: HeadQueries,
        hits: Array,
        counts: Array,
        top: Array,
    ) -> Iterator[tuple[Key, Array, Array]]:
        """Yield the rates of rules that see no word, and the rates when other entities of the
        caption ask.

        Yields:
            Key, the queries that have the control, and its columns.
        """
        blind = list[Array]()
        asked = np.zeros(len(queries.row), bool)
        rates = np.zeros(top.shape)
        # Queries of a caption are neighbours, in its order, so a change of row separates captions.
        for part in np.split(np.arange(len(queries.row)), np.flatnonzero(np.diff(queries.row)) + 1):
            if not len(part):
                continue
            row = int(queries.row[part[0]])
            own = hits[counts[row] : counts[row + 1], : len(sets[row])]
            boxes = captions[row].boxes
            phrase = queries.phrase[part] - counts[row]
            columns = [blind_rates(boxes, sets[row], own), annotated(boxes, sets[row])[:, None]]
            blind.append(np.concatenate(columns, 1)[phrase])
            asked[part], rates[part] = asked_with_another_entity(boxes, phrase, own, top[part])
        if blind:
            yield BLIND, np.arange(len(asked)), np.concatenate(blind)
        yield OTHER_ENTITY, np.flatnonzero(asked), rates[asked]

    def _other_caption(
        self, captions: list[Caption], sets: list[RegionSet], queries: HeadQueries, hits: Array
    ) -> Iterator[tuple[Key, Array, Array]]:
        """Yield the rates of the heads when a caption of another photo asks, as `_same_caption`.

        It is the last such caption before, and all of its entities ask; the first photo has none.
        """
        rows = list[int]()
        partners = list[Caption]()
        for row in dict.fromkeys(queries.row.tolist()):
            caption = captions[row]
            other = [c for c in self._before if c.image != caption.image]
            if other:
                rows.append(row)
                partners.append(other[-1])
            self._before = [*other[-1:], caption]
        if not rows:
            return
        tokens = tokenize(self.encoder.tokenizer, [c.text for c in partners])
        spans, owner = _phrases(partners)
        first, last = covering(tokens, spans, owner)
        whole = np.flatnonzero(last >= first)
        nothing = np.zeros(len(whole), np.int64)
        asking = HeadQueries(owner[whole], first[whole], last[whole], nothing, nothing)
        images = [captions[row].image for row in rows]
        top, _ = self._ask(tokens, images, [sets[row] for row in rows], asking)
        place = {row: n for n, row in enumerate(rows)}  # row -> place of its partner
        kept = np.flatnonzero(np.isin(queries.row, rows))
        rates = np.zeros((len(kept), self._heads))
        for n, query in enumerate(kept.tolist()):
            answered = top[asking.row == place[int(queries.row[query])]]
            rates[n] = hits[queries.phrase[query]][answered].mean(0)
        yield OTHER_CAPTION, kept, rates

    def _queries(self, captions: list[Caption], tokens: Tokens) -> HeadQueries:
        """Return the queries of a window that can be answered; count the others."""
        # Each phrase with boxes asks for its own regions.
        spans, rows = _phrases(captions)
        number = np.arange(len(rows))
        queries = HeadQueries(rows, *covering(tokens, spans, rows), number, np.zeros_like(number))
        if self.parser:
            parses = list(self.parser([c.text for c in captions]))
            more = syntactic_queries(tokens, captions, parses, self._keys, self.words)
            queries = HeadQueries(
                *(np.concatenate(pair) for pair in zip(queries, more, strict=True))
            )
        fits = np.diff(tokens.starts) <= self.encoder.max_tokens
        whole = queries.last >= queries.first
        self.skipped["caption longer than the encoder"] += int((~fits).sum())
        self.skipped["caption without an entity that has a box"] += sum(
            not c.spans for c in captions
        )
        self.skipped["source without a token"] += int((~whole & fits[queries.row]).sum())
        keep = np.flatnonzero(whole & fits[queries.row])
        return HeadQueries(*(column[keep] for column in queries))

    def _ask(
        self,
        tokens: Tokens,
        images: Sequence[str],
        sets: Sequence[RegionSet],
        queries: HeadQueries,
    ) -> tuple[Array, Array]:
        """Return the region every head answers with, and its attention to regions.

        Both are (Q, L × H), int64 and float32. Each text has its image and the image's regions.
        """
        top = np.zeros((len(queries.row), self._heads), np.int64)
        mass = np.zeros(top.shape, np.float32)
        asked = np.unique(queries.row)
        size = np.diff(tokens.starts)[asked] + np.array([len(sets[r]) for r in asked.tolist()])
        rows = asked[np.argsort(size, kind="stable")]
        by_row = np.argsort(queries.row, kind="stable")
        begin, end = (
            np.searchsorted(queries.row[by_row], rows, side) for side in ("left", "right")
        )

        def ask(places: Array) -> None:
            counts = (end - begin)[places]
            part_queries = by_row[ranges(begin[places], counts)]
            part = rows[places].tolist()
            part_sets = [sets[r] for r in part]
            batch = make_batch(tokens, part, part_sets, self._ends, self.encoder.region_width)
            before = len(self._ends[0])
            given = (
                np.repeat(np.arange(len(part)), counts),
                queries.first[part_queries] + before,
                queries.last[part_queries] + before,
                np.stack(
                    [
                        random_order(images[r], len(sets[r]), batch.regions.shape[1], self.seed)
                        for r in part
                    ]
                ),
            )
            with torch.inference_mode():
                layers = self.encoder.attentions(*batch)
                # The first layer shows on which device the model returns its attention.
                first = next(layers)
                row, start, stop, order = (torch.from_numpy(x).to(first.device) for x in given)
                found = answers(chain([first], layers), batch, row, start, stop, order, self.reduce)
            check_finite(found[1])
            top[part_queries], mass[part_queries] = (x.flatten(1).cpu().numpy() for x in found)

        ask_in_batches(ask, np.arange(len(rows)), self.batch_size)
        return top, mass


def ask_in_batches(ask: Callable[[Array], None], order: Array, size: int) -> None:
    """Ask the texts of an order, at most `size` at a time and fewer once memory ran out.

    Raises:
        DataError: memory ran out with a single text (70).
    """
    for _ in in_batches(order, size, ask, lambda _: "one text; use a machine with more memory"):
        pass


def windows(items: Iterator[_T], size: int, progress: Progress | None) -> Iterator[list[_T]]:
    """Yield runs of up to `size` items, and report each as progress once it has been handled."""
    while window := list(islice(items, size)):
        yield window
        if progress is not None:
            progress.advance(len(window))


def check_finite(weights: Tensor) -> None:
    """Refuse attention that is NaN, which would make every head's answer its first region.

    Raises:
        DataError: the model is damaged, or its dtype is too narrow.
    """
    if not torch.isfinite(weights).all():
        why = "the model's attention is NaN: its weights are damaged"
        raise DataError(f"{why}, or --dtype float16 is too narrow for it; use --dtype float32")


class RegionAttention(NamedTuple):
    """How much the tokens of a text attend to regions."""

    tokens: Tokens  # T tokens of the text, special ones left out
    length: int  # its tokens, special ones included
    weights: Array  # (L, H, T, R) float32


def region_attention(encoder: JointEncoder, text: str, regions: RegionSet) -> RegionAttention:
    """Return how much each token of a text attends to each region.

    Raises:
        DataError: as `check_finite`.
    """
    tokens = tokenize(encoder.tokenizer, [text])
    ends = special_ids(encoder.tokenizer)
    batch = make_batch(tokens, [0], [regions], ends, encoder.region_width)
    length = batch.ids.shape[1]  # regions come after the text
    own = slice(len(ends[0]), length - len(ends[1]))
    with torch.inference_mode():
        # A copy, so that no layer is held whole.
        layers = [
            layer[0, :, own, length:].to(torch.float32, copy=True)
            for layer in encoder.attentions(*batch)
        ]
        weights = torch.stack(layers)
        check_finite(weights)
    return RegionAttention(tokens, length, weights.cpu().numpy())


def word_attention(found: RegionAttention, words: Sequence[tuple[int, int]]) -> Array:
    """Return how much the last sub-word of each of W words attends to each region.

    Returns:
        (L, H, W, R) float32; 0 for a word without a sub-word.
    """
    first, last = covering(found.tokens, span_array(words), np.zeros(len(words), np.int64))
    known = last >= first
    layers, heads, _, regions = found.weights.shape
    made = np.zeros((layers, heads, len(words), regions), np.float32)
    made[:, :, known] = found.weights[:, :, last[known]]
    return made
