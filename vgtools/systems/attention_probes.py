"""What the attention heads of a joint model ground: entities and syntactic neighbours in image regions.

Each head is taken as a classifier that was never trained: for a word it answers with the region that it attends to most. Any
model whose text and regions share one attention can be asked through `JointEncoder`; all heads are asked at once.

Axes: B batch, T tokens (special ones included), R regions, L layers, H heads, Q queries, P phrases, S bootstrap samples.

Source: Li et al. 2020 (What Does BERT with Vision Look At?), sections 3.1 and 3.2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from vgtools.checkpoint import check_same, load_encoder, special_ids
from vgtools.errors import is_out_of_memory
from vgtools.io import DataError, Progress, Stop, read_json, read_jsonl
from vgtools.nn import TextSide
from vgtools.parses import Parse, Parser
from vgtools.prepare import Tally
from vgtools.regions import Regions, RegionSet, backbone_of, box_fault, clip, iou
from vgtools.systems.attention_probes_examples import Example, make_groups
from vgtools.systems.attention_scores import ENTITY, Cell, Key, Scores, records
from vgtools.text import WORD, Tokens, row_starts, tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from vgtools.systems.text_probes import TextProbe, Texts

Array = np.ndarray[Any, Any]

OVERLAP = 0.5  # a region is right from this IoU with a gold box on
_WINDOW = 512  # captions sorted by length together

# ------------------------------------------------------------------------------------------------------------- the adapter


class JointEncoder(Protocol):
    """What a model must offer to be probed; a text encoder has `region_width` 0 and is given no regions.

    Attributes:
        layers: L.
        heads: H.
        tokenizer: without padding and truncation.
        max_tokens: tokens of a text that fit, special tokens not counted.
        region_width: D, channels of a region feature.
    """

    @property
    def layers(self) -> int: ...  # noqa: D102
    @property
    def heads(self) -> int: ...  # noqa: D102
    @property
    def tokenizer(self) -> Tokenizer: ...  # noqa: D102
    @property
    def max_tokens(self) -> int: ...  # noqa: D102
    @property
    def region_width(self) -> int: ...  # noqa: D102

    def attentions(self, ids: Tensor, text_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Iterator[Tensor]:
        """Yield the attention weights of each layer, the first layer first.

        Args:
            ids: (B, T) tokens with special ones.
            text_mask: (B, T) bool, False at padding.
            regions: (B, R, D) features.
            region_mask: (B, R) bool, False at padding.

        Yields:
            (B, H, T + R, T + R) after the softmax, text first; rows attend, columns are attended to; 0 at padding.
        """
        ...


@dataclass(frozen=True)
class TransformersEncoder(TextSide):
    """Any text encoder of `transformers`, and its VisualBERT, as a `JointEncoder`."""

    @property
    def region_width(self) -> int:
        """D, or 0 for a text encoder."""
        config = self.encoder.model.config
        return int(config.visual_embedding_dim) if config.model_type == "visual_bert" else 0

    def attentions(self, ids: Tensor, text_mask: Tensor, regions: Tensor, region_mask: Tensor) -> Iterator[Tensor]:
        """Yield the attention weights of each layer; see `JointEncoder`.

        Raises:
            DataError: the model gives none, or none that regions take part in.
        """
        model, count = self.encoder.model, regions.shape[1]
        where, given = model.device, {}
        if count:
            given = {"visual_embeds": regions.to(where, model.dtype), "visual_attention_mask": region_mask.to(where).long()}
        found = model(input_ids=ids.to(where), attention_mask=text_mask.to(where).long(), output_attentions=True, **given)
        layers = getattr(found, "attentions", None)
        size = ids.shape[1] + count
        wanted = (len(ids), self.heads, size, size)
        if not layers or any(x is None or tuple(x.shape) != wanted for x in layers):
            shape = "none" if not layers or layers[0] is None else str(tuple(layers[0].shape))
            raise DataError(
                f"the attention of {model.config.model_type} cannot be read: wanted weights of the shape {wanted} (rows, "
                f"heads, text and regions twice) from each layer, it gives {shape}",
                self.encoder.ref,
            )
        yield from layers


def open_encoder(ref: str, *, device: str = "cpu", dtype: str = "float32", offline: bool = False) -> TransformersEncoder:
    """Load a text encoder or a VisualBERT with the eager attention, the one implementation that hands its weights out.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`.
        device: as `--device`.
        dtype: as `--dtype`.
        offline: never connect.

    Raises:
        DataError: as `load_encoder`; or joint attention is not where it could be read (a late-fusion VisualBERT).
    """
    found = TransformersEncoder(load_encoder(ref, device=device, dtype=dtype, offline=offline, attention="eager"))
    config = found.encoder.model.config
    if not isinstance(getattr(config, "num_attention_heads", None), int):
        raise DataError(f"the attention of {config.model_type} cannot be read: its configuration names no attention heads", ref)
    if getattr(config, "bypass_transformer", False):
        raise DataError(
            "is a VisualBERT without early fusion (bypass_transformer): regions join the text in one last layer, whose "
            "attention transformers does not give; `visualbert.open_joint` reads it",
            ref,
        )
    return found


# --------------------------------------------------------------------------------------------------------------- captions


@dataclass(frozen=True)
class Caption:
    """One caption with the entities that have boxes."""

    line: int
    image: str
    text: str
    side: str  # which of the reports it counts for
    spans: list[tuple[int, int]]  # P phrases with a box
    boxes: list[Array]  # P times (G, 4), pixels of the picture that the regions refer to


def read_caption(row: Mapping[str, Any], side: str, regions: Regions, path: str, line: int) -> Caption | None:
    """Return a row of `vg prepare flickr30k-entities` checked against its regions; None where the photo has no region.

    Gold boxes follow the size of the picture that the regions refer to where the row says its own ("width", "height").

    Raises:
        DataError: a span outside the text, a box that cannot be one, or a photo that the regions do not know.
    """
    image, text, phrases = row["image"], row["text"], row.get("phrases", [])
    if image not in regions:
        raise DataError(f"{regions.path} holds no regions of the image {image!r:.80}; extract them", path, line)
    found = regions.of(image)
    if not len(found):
        return None
    sides = [row.get("width", found.width), row.get("height", found.height)]
    if not all(isinstance(s, (int, float)) and not isinstance(s, bool) and s > 0 for s in sides):
        raise DataError(f'"width" and "height" are {sides}, wanted the picture\'s size in pixels', path, line)
    scale = np.array([found.width / sides[0], found.height / sides[1]] * 2)
    spans, golds = [], []
    for number, phrase in enumerate(phrases if isinstance(phrases, list) else [None], 1):
        start, end, boxes = (phrase.get(k) for k in ("start", "end", "boxes")) if isinstance(phrase, dict) else (None,) * 3
        if type(start) is not int or type(end) is not int or not 0 <= start < end <= len(text):  # True is no place
            raise DataError(
                f"phrase {number} has the span {start!r:.20} to {end!r:.20}, the text has {len(text)} characters", path, line
            )
        try:
            gold = np.array(boxes, np.float64)
            assert gold.size == 0 or gold.shape[1:] == (4,)
        except (TypeError, ValueError, AssertionError):
            raise DataError(
                f'phrase {number} has "boxes" {boxes!r:.60}, wanted a list of [x1, y1, x2, y2]', path, line
            ) from None
        if gold.size:
            fault = box_fault(gold, *sides)
            if fault:
                raise DataError(f"phrase {number}: {fault}", path, line)
            spans.append((start, end))
            golds.append(clip(gold, *sides) * scale)
    return Caption(line, image, text, side, spans, golds)


def read_captions(
    path: str, regions: Regions, sides: Mapping[str, str] | None, tally: Tally, limit: int | None = None
) -> Iterator[Caption]:
    """Yield the captions of a stream that can be probed, checked; what cannot be is met or counted by the tally.

    Args:
        path: rows as `vg prepare flickr30k-entities` writes them; `.gz`, `.zst` or `-`.
        regions: of the photos.
        sides: split of the rows -> report that they count for; rows of other splits are passed by. None takes all as `report`.
        tally: meets bad rows; counts photos without regions.
        limit: stop after this many captions.
    """
    found = 0
    for line, row in read_jsonl(path, {"image": str, "text": str}):
        side = "report" if sides is None else sides.get(str(row.get("split")))
        if side is None:
            continue
        try:
            caption = read_caption(row, side, regions, path, line)
        except DataError as error:
            tally.bad(error)
            continue
        if caption is None:
            tally.left_out["photo without regions"] += 1
            continue
        yield caption
        found += 1
        if found == limit:
            return


def check_captions(path: str, regions: Regions, sides: Mapping[str, str] | None, limit: int | None = None) -> None:
    """Read all captions once, before a model is loaded: what is wrong with a row is said before the work, not after it.

    Raises:
        DataError: a bad row; or there is no caption with an entity for one of the sides.
    """
    counts = Counter(c.side for c in read_captions(path, regions, sides, Tally(), limit) if c.spans)
    for split, side in (sides or {"": "report"}).items():
        if not counts[side]:
            which = f' of the split "{split}"' if split else ""
            raise DataError(f"has no caption{which} with an entity that has a box, on a photo that has regions", path)


def check_backbone(ref: str, regions: Regions) -> None:
    """Refuse regions that were made with another backbone than those that a vg run was trained on."""
    info = Path(ref) / "run.json"
    if info.is_file():
        trained = read_json(info).get("backbone")
        if trained:
            made = backbone_of(regions)
            if " " not in str(trained.get("fingerprint")):  # only a run of `vg pretrain` names the preprocessing, too
                made["fingerprint"] = made["fingerprint"].split(" ")[0]
            check_same("backbone", made, trained, regions.path)


# ---------------------------------------------------------------------------------------------------------------- queries


class Queries(NamedTuple):
    """Q questions to every head: does this word attend most to a region of that phrase?"""

    row: Array  # (Q,) caption of the window
    first: Array  # (Q,) first token of the source in its caption
    last: Array  # (Q,) last one
    phrase: Array  # (Q,) phrase of the window whose regions are right
    key: Array  # (Q,) place in the list of keys


def covering(tokens: Tokens, spans: Array, rows: Array) -> tuple[Array, Array]:
    """Return the first and the last token that each span shares a character with, counted in its row; last < first for none.

    Args:
        tokens: of R texts.
        spans: (Q, 2) code points.
        rows: (Q,) which text each span is of.
    """
    solid = np.flatnonzero(tokens.spans[:, 1] > tokens.spans[:, 0])  # empty tokens share nothing
    owner = np.repeat(np.arange(len(tokens.starts) - 1), np.diff(tokens.starts))[solid]
    width = 1 + max(int(tokens.spans.max(initial=0)), int(spans.max(initial=0)))
    starts = owner * width + tokens.spans[solid, 0]
    ends = np.maximum.accumulate(owner * width + tokens.spans[solid, 1]) if len(solid) else starts
    low = np.searchsorted(ends, rows * width + spans[:, 0], "right")
    high = np.searchsorted(starts, rows * width + spans[:, 1], "left")
    solid = np.append(solid, 0)
    first, last = solid[np.minimum(low, len(solid) - 1)], solid[np.maximum(high - 1, 0)]
    base = tokens.starts[rows]
    return np.asarray(first - base), np.where(high > low, last - base, first - base - 1)


def entity_queries(tokens: Tokens, captions: Sequence[Caption]) -> Queries:
    """Return one query a phrase with boxes: the phrase itself asks for its own regions."""
    spans, rows = _phrases(captions)
    first, last = covering(tokens, spans, rows)
    count = np.arange(len(rows))
    return Queries(rows, first, last, count, np.zeros_like(count))


def _phrases(captions: Sequence[Caption]) -> tuple[Array, Array]:
    """Return the spans of all phrases and the captions they stand in."""
    rows = np.repeat(np.arange(len(captions)), [len(c.spans) for c in captions])
    return np.array([s for c in captions for s in c.spans], np.int64).reshape(-1, 2), rows


def syntactic_queries(
    tokens: Tokens, captions: Sequence[Caption], parses: Sequence[Parse], keys: dict[Key, int], words: str = "head"
) -> Queries:
    """Return a query for each pair of words (w1, w2) with a relation, w1 an entity with boxes: w2 asks for w1's regions.

    Both directions are taken: w1 as the dependent of w2, and as its head. The root has no second word.

    Args:
        tokens: of the captions.
        captions: R captions.
        parses: of the same captions.
        keys: numbers of (relation, what the entity is); new ones are added.
        words: which words of a phrase stand for it as w1: `head` is the one whose own head lies outside the phrase (the first
            of them); `any` takes every word, so that two words of one phrase ask for one another's region.

    Source: Li et al. 2020, section 3.1, "Syntactic Grounding".
    Deviation: the paper does not say which word of a phrase is the entity. `any` is the wider reading.
    """
    counts = row_starts(len(p.spans) for p in parses)
    word_spans = np.array([s for p in parses for s in p.spans], np.int64).reshape(-1, 2)
    word_row = np.repeat(np.arange(len(parses)), np.diff(counts))
    local = np.array([h for p in parses for h in p.heads], np.int64)
    head = np.where(local >= 0, local + counts[word_row], -1)
    names, relation = np.unique([r for p in parses for r in p.relations] or [""], return_inverse=True)
    # The words of each phrase, as a range: they stand in the order of the text.
    words_of = Tokens(np.zeros(len(word_spans), np.int32), word_spans.astype(np.int32), counts)
    spans, rows = _phrases(captions)
    low, high = covering(words_of, spans, rows)
    base, size = counts[rows], np.maximum(high - low + 1, 0)
    phrase = np.repeat(np.arange(len(rows)), size)
    word = np.repeat(base + low - (np.cumsum(size) - size), size) + np.arange(int(size.sum()))
    if words == "head":
        above = head[word]
        outside = np.flatnonzero((above < (base + low)[phrase]) | (above > (base + high)[phrase]))
        _, once = np.unique(phrase[outside], return_index=True)
        phrase, word = phrase[outside[once]], word[outside[once]]
    # Upwards to the head of each, and down to each word whose head it is.
    up = np.flatnonzero(head[word] >= 0) if len(word) else np.zeros(0, np.int64)
    order = np.argsort(head, kind="stable")
    begin, end = (np.searchsorted(head[order], word, side) for side in ("left", "right"))
    down = np.repeat(np.arange(len(word)), end - begin)
    child = order[np.repeat(begin - (np.cumsum(end - begin) - (end - begin)), end - begin) + np.arange(len(down))]
    source, target = np.concatenate([head[word[up]], child]), np.concatenate([phrase[up], phrase[down]])
    label = np.concatenate([relation[word[up]], relation[child]])
    kind = np.repeat(np.array([0, 1]), [len(up), len(down)])
    pairs, place = np.unique(np.column_stack([label, kind]), axis=0, return_inverse=True)
    numbers = [keys.setdefault((str(names[r]), ("dependent", "head")[d]), len(keys)) for r, d in pairs.tolist()]
    first, last = covering(tokens, word_spans[source], word_row[source])
    return Queries(word_row[source], first, last, target, np.array(numbers, np.int64)[place.reshape(-1)])


def _hits(captions: Sequence[Caption], sets: Sequence[RegionSet]) -> Array:
    """Return which regions are right for each phrase of the captions: (P, R) bool, R that of the richest photo."""
    found = np.zeros((sum(len(c.spans) for c in captions), max(map(len, sets), default=0)), bool)
    at = 0
    for caption, regions in zip(captions, sets, strict=True):
        if caption.spans:
            overlap = iou(np.concatenate(caption.boxes), regions.boxes)  # (all gold boxes, R)
            heads = row_starts(map(len, caption.boxes))[:-1]
            found[at : at + len(heads), : len(regions)] = np.maximum.reduceat(overlap, heads, axis=0) >= OVERLAP
            at += len(heads)
    return found


# -------------------------------------------------------------------------------------------------------------- the answer


@dataclass(frozen=True)
class Batch:
    """Captions with their regions, padded to the longest."""

    ids: Tensor  # (B, T)
    text_mask: Tensor  # (B, T) bool
    regions: Tensor  # (B, R, D)
    region_mask: Tensor  # (B, R) bool


def make_batch(
    tokens: Tokens, rows: Sequence[int], sets: Sequence[RegionSet], ends: tuple[list[int], list[int]], width: int
) -> Batch:
    """Return some rows of tokenised captions with the regions of their photos.

    Args:
        tokens: of all captions.
        rows: which of them.
        sets: regions of those rows; none for text alone.
        ends: special ids before and behind a text.
        width: D.
    """
    prefix, suffix = ends
    longest = len(prefix) + len(suffix) + max(int(tokens.starts[r + 1] - tokens.starts[r]) for r in rows)
    ids, regions = np.zeros((len(rows), longest), np.int64), max(map(len, sets), default=0)
    features, sizes = np.zeros((len(rows), regions, width), np.float32), np.zeros((len(rows), 2), np.int64)
    for i, row in enumerate(rows):
        own = [*prefix, *tokens.row(row)[0].tolist(), *suffix]
        ids[i, : len(own)], sizes[i, 0] = own, len(own)
        if sets:
            features[i, : len(sets[i])], sizes[i, 1] = sets[i].features, len(sets[i])
    text, seen = (np.arange(n) < sizes[:, [i]] for i, n in enumerate((longest, regions)))
    return Batch(*(torch.from_numpy(x) for x in (ids, text, features, seen)))


def answers(
    layers: Iterable[Tensor], batch: Batch, row: Tensor, first: Tensor, last: Tensor, hits: Tensor, reduce: str = "last"
) -> tuple[Tensor, Tensor]:
    """Return whether each head is right on each query, and how much of its attention goes to regions.

    Args:
        layers: as `JointEncoder.attentions` yields them; each is let go before the next is asked for.
        batch: what they are of.
        row: (Q,) row of the batch.
        first: (Q,) first token of the source, special tokens counted.
        last: (Q,) last one.
        hits: (Q, R) bool, regions that are right.
        reduce: `last` asks the source's last sub-word, `mean` takes the mean of the attention of its sub-words.

    Returns:
        (Q, L, H) bool; (Q, L, H) float32 in [0, 1]. Of regions with the same weight the first is the answer.

    Source: Li et al. 2020, section 3.1; the last sub-word: appendix B.4.
    """
    tokens = batch.ids.shape[1]
    if reduce == "mean":
        count = last - first + 1
        query = torch.repeat_interleave(torch.arange(len(row), device=row.device), count)
        within = torch.arange(len(query), device=row.device) - torch.repeat_interleave(count.cumsum(0) - count, count)
        at, of = first[query] + within, row[query]
    else:
        at, of = last, row
    right, mass = [], []
    for layer in layers:
        seen = layer[of, :, at, tokens:].float()  # (Q or the queries' tokens, H, R)
        if reduce == "mean":
            total = seen.new_zeros(len(row), *seen.shape[1:]).index_add_(0, query, seen)
            seen = total / count[:, None, None]
        there = batch.region_mask.to(seen.device)[row][:, None]  # (Q, 1, R)
        mass.append((seen * there).sum(-1))
        right.append(hits.gather(1, seen.masked_fill(~there, -1.0).argmax(-1)))
    return torch.stack(right, 1), torch.stack(mass, 1)


def _confident(regions: RegionSet, hits: Array) -> Array:
    """Return for each phrase how often the most confident region is right: (P,); equally confident ones share the answer."""
    top = regions.confidence == regions.confidence.max()
    return np.asarray(hits[:, : len(regions)][:, top].mean(1))


# -------------------------------------------------------------------------------------------------------------- the probe


@dataclass
class GroundingProbe:
    """Ask every head of a model about captions, window by window.

    Args:
        encoder: the model.
        regions: of the photos.
        parser: for syntactic grounding; None leaves it out.
        reduce: of a source's sub-words, `last` or `mean`.
        words: of a phrase that stand for it in relations, `head` or `any`.
        samples: S.
        seed: of the resampling.
        batch_size: captions a step; halved where memory does not suffice.
        progress: told of captions.

    Attributes:
        scores: by side.
        skipped: captions and sources left out, by reason.
    """

    encoder: JointEncoder
    regions: Regions
    parser: Parser | None = None
    reduce: str = "last"
    words: str = "head"
    samples: int = 1000
    seed: int = 0
    batch_size: int = 32
    progress: Progress | None = None
    scores: dict[str, Scores] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        if self.encoder.region_width != self.regions.width:
            raise DataError(
                f"has {self.regions.width} channels a region, the model takes "
                + (str(self.encoder.region_width) if self.encoder.region_width else "no regions: it is a text encoder"),
                self.regions.path,
            )
        self._keys: dict[Key, int] = {ENTITY: 0}
        self._ends = special_ids(self.encoder.tokenizer)

    def run(self, captions: Iterator[Caption]) -> None:
        """Count all captions; `scores` and `skipped` have the result."""
        while window := list(islice(captions, _WINDOW)):
            self._window(window)
            if self.progress is not None:
                self.progress.advance(len(window))

    def _sides(self, choose: bool) -> tuple[Scores, Scores]:
        """Return the scores to report and those to choose heads by."""
        scores = self.scores["report"]
        empty = Scores(scores.heads, self.samples, self.seed)
        return scores, self.scores.get("select", empty) if choose else scores

    def records(self, relations: Sequence[str] | int | None = 10, choose: bool = False) -> Iterator[dict[str, Any]]:
        """Yield what was found on the side `report`, as `attention_scores.records` says it.

        Args:
            relations: names, how many of the most frequent ones, or None for all.
            choose: heads are chosen on the side `select`.
        """
        return records(*self._sides(choose), self.encoder.layers, self.encoder.heads, relations=relations)

    def look_closely(self, captions: Iterable[Caption], choose: bool = False) -> Iterator[Example]:
        """Yield captions with what each word attends to, by the best head of each layer; those that do not fit are left out.

        Args:
            captions: to look at.
            choose: heads are chosen on the side `select`.
        """
        cell = self._sides(choose)[1].cells.get(ENTITY) or Cell.empty(self.encoder.layers * self.encoder.heads, 1)
        best, chosen = cell.by_layer(self.encoder.heads)
        names = [f"{layer + 1}-{head + 1}" for layer, head in enumerate(best)]
        for caption in captions:
            words = [m.span() for m in WORD.finditer(caption.text)]
            if not words or len(tokenize(self.encoder.tokenizer, [caption.text]).ids) > self.encoder.max_tokens:
                continue
            found = self.regions.of(caption.image)
            weights = word_attention(self.encoder, caption, found, words)[np.arange(len(best)), best]  # (L, W, R)
            groups = make_groups(caption.text, caption.spans, caption.boxes, found, weights[chosen])
            yield Example(caption.image, caption.text, words, found, groups, names, chosen, weights, None)

    def _window(self, captions: list[Caption]) -> None:
        parses = list(self.parser([c.text for c in captions])) if self.parser else []
        tokens = tokenize(self.encoder.tokenizer, [c.text for c in captions])
        fits = np.diff(tokens.starts) <= self.encoder.max_tokens
        self.skipped["caption longer than the encoder"] += int((~fits).sum())
        self.skipped["caption without an entity that has a box"] += sum(not c.spans for c in captions)
        found = {name: self.regions.of(name) for name in dict.fromkeys(c.image for c in captions)}
        sets = [found[c.image] for c in captions]
        queries = entity_queries(tokens, captions)
        if self.parser:
            more = syntactic_queries(tokens, captions, parses, self._keys, self.words)
            queries = Queries(*(np.concatenate(pair) for pair in zip(queries, more, strict=True)))
        whole = queries.last >= queries.first
        self.skipped["source without a token"] += int((~whole & fits[queries.row]).sum())
        keep = np.flatnonzero(whole & fits[queries.row])
        queries = Queries(*(column[keep] for column in queries))
        if not len(keep):
            return
        hits = _hits(captions, sets)
        right, mass = self._ask(tokens, sets, queries, hits[queries.phrase])
        counts = row_starts(len(c.spans) for c in captions)
        base = np.concatenate([_confident(s, hits[a:b]) for s, a, b in zip(sets, counts[:-1], counts[1:], strict=True)])
        side = np.array([c.side for c in captions])[queries.row]
        for name in np.unique(side).tolist():
            some = np.flatnonzero(side == name)
            images = list(dict.fromkeys(captions[r].image for r in queries.row[some].tolist()))
            place = {image: n for n, image in enumerate(images)}
            image = np.array([place[captions[r].image] for r in queries.row[some].tolist()])
            scores = self.scores.setdefault(name, Scores(self.encoder.layers * self.encoder.heads, self.samples, self.seed))
            scores.captions += len(np.unique(queries.row[some]))
            scores.count_photos(images)
            phrase = queries.phrase[some]
            bound = np.asarray(hits[phrase].any(1))
            scores.add(list(self._keys), images, image, queries.key[some], right[some], mass[some], base[phrase], bound)

    def _ask(self, tokens: Tokens, sets: Sequence[RegionSet], queries: Queries, hits: Array) -> tuple[Array, Array]:
        """Return what every head answers: (Q, L × H) bool and float32."""
        right = np.zeros((len(queries.row), self.encoder.layers * self.encoder.heads), bool)
        mass = np.zeros(right.shape, np.float32)
        asked = np.unique(queries.row)
        size = np.diff(tokens.starts)[asked] + np.array([len(sets[r]) for r in asked.tolist()])
        rows = asked[np.argsort(size, kind="stable")]
        by_row = np.argsort(queries.row, kind="stable")
        begin, end = (np.searchsorted(queries.row[by_row], rows, side) for side in ("left", "right"))

        def ask(low: int, high: int) -> None:
            own = by_row[np.concatenate([np.arange(a, b) for a, b in zip(begin[low:high], end[low:high], strict=True)])]
            where = np.repeat(np.arange(high - low), (end - begin)[low:high])
            part = rows[low:high].tolist()
            batch = make_batch(tokens, part, [sets[r] for r in part], self._ends, self.encoder.region_width)
            ends = (queries.first[own] + len(self._ends[0]), queries.last[own] + len(self._ends[0]))
            right[own], mass[own] = self._step(batch, where, *ends, hits[own])

        in_halves(ask, len(rows), self.batch_size)
        return right, mass

    def _step(self, batch: Batch, row: Array, first: Array, last: Array, hits: Array) -> tuple[Array, Array]:
        with torch.inference_mode():
            layers = self.encoder.attentions(batch.ids, batch.text_mask, batch.regions, batch.region_mask)
            head = next(layers)
            at, begin, end, golds = (torch.from_numpy(x).to(head.device) for x in (row, first, last, hits))
            golds = golds[:, : batch.regions.shape[1]]
            right, mass = answers(chain([head], layers), batch, at, begin, end, golds, self.reduce)
        check_finite(mass)
        return right.flatten(1).cpu().numpy(), mass.flatten(1).cpu().numpy()


def probe_all(
    work: Callable[[Iterator[Any]], None], rows: Iterator[Any], stop: Stop
) -> Exception | None:
    """Probe rows until one cannot be read, a signal asks to stop, or the probe fails.

    Args:
        work: takes the rows, as the `run` of a probe does.
        rows: captions or texts.
        stop: whether to stop.

    Returns:
        What ended it early, to be raised once the results so far are written; None at the end.
    """
    faults: list[DataError] = []

    def readable() -> Iterator[Any]:
        try:
            yield from takewhile(lambda _: stop.signal is None, rows)
        except DataError as error:
            faults.append(error)

    try:
        work(readable())
        stop.check()
    except DataError as error:
        if stop.signal is None:
            return error
        why = "stopped: the results are of what was read up to there"
        return DataError(why, code=error.code)
    except Exception as error:  # whatever it is, it must not cost hours of work
        return error
    return faults[0] if faults else None


def keep_examples(
    captions: Iterator[Caption], kept: list[Caption], most: int
) -> Iterator[Caption]:
    """Pass captions on, and keep the first ones of different photos with several entities.

    Args:
        captions: in order.
        kept: takes those of the side `report` that have two entities or more.
        most: captions to keep.
    """
    for caption in captions:
        usable = len(kept) < most and caption.side == "report" and len(caption.spans) > 1
        if usable and all(caption.image != other.image for other in kept):
            kept.append(caption)
        yield caption


@dataclass
class Findings:
    """What was found, up to where it was stopped.

    Args:
        probe: has the scores.
        count: captions or texts.
        skipped: those left out, by reason.
        failure: what stopped it early, if anything.
        kept: captions to be shown.
        classifier: learned from all heads together; None if there is none, or it was stopped.
    """

    probe: Any
    count: int
    skipped: Counter[str]
    failure: Exception | None
    kept: list[Caption] = field(default_factory=list)
    classifier: Any = None

    def records(
        self, relations: Sequence[str] | int | None, select_on: str | None
    ) -> list[dict[str, Any]]:
        """Return the records of the probe and of the classifier; the last one sums up.

        Args:
            relations: names, how many of the most frequent ones, or None for all.
            select_on: split that heads were chosen on; None if it is the reported one.
        """
        rows = list(self.probe.records(relations, choose=select_on is not None))
        if self.classifier is not None:
            rows[-1:-1] = self.classifier.records(relations)
        rows[-1]["skipped"] = dict(+self.skipped)
        if self.failure is not None:
            rows[-1]["stopped"] = str(self.failure) or type(self.failure).__name__
        of = "captions" if isinstance(self.probe, GroundingProbe) else "texts"
        rows[-1]["selected_on"] = select_on or f"the same {of}"
        return rows


def probe_captions(
    probe: GroundingProbe, captions: Iterator[Caption], stop: Stop, examples: int
) -> Findings:
    """Probe a joint model on captions.

    Args:
        probe: of the model.
        captions: in order.
        stop: whether to stop.
        examples: captions to keep for the page.
    """
    kept: list[Caption] = []
    failure = probe_all(probe.run, keep_examples(captions, kept, examples), stop)
    count = probe.scores["report"].captions if "report" in probe.scores else 0
    return Findings(probe, count, probe.skipped, failure, kept)


def probe_texts(
    probe: TextProbe,
    texts: Texts,
    stop: Stop,
    open_parser: Callable[[], Parser],
    learning: Learning | None,
) -> Findings:
    """Probe a text encoder, then learn from all its heads together.

    Args:
        probe: of the encoder.
        texts: read once for the probe, and once per pass of the classifier.
        stop: whether to stop.
        open_parser: opens what says which heads of words are right.
        learning: of the classifier; None for no classifier.
    """
    from vgtools.systems import dependency_probes

    failure = probe_all(probe.run, texts.of("report", "select"), stop)
    found = Findings(probe, probe.texts, probe.skipped, failure)
    if learning is None or failure is not None:
        return found
    vectors = learning.vectors
    if learning.kind == "words" and vectors is None:
        model: Any = probe.encoder  # a text encoder, with what it wraps
        table = model.encoder.model.get_input_embeddings().weight
        vectors = dependency_probes.own_vectors(probe.encoder, table)

    def sentences(side: str) -> Iterator[str]:
        running = takewhile(lambda _: stop.signal is None, texts.of(side))
        return (text.text for text in running)

    classifier = dependency_probes.ClassifierProbe(
        probe.encoder,
        sentences,
        open_parser,
        learning.kind,
        vectors,
        learning.count,
        learning.epochs,
        samples=probe.samples,
        seed=probe.seed,
        batch_size=probe.batch_size,
        progress=probe.progress,
    )
    found.failure = probe_all(lambda _: classifier.run(), iter(()), stop)
    if found.failure is None:
        found.classifier = classifier
    return found


@dataclass(frozen=True)
class Learning:
    """How the classifier of the text side learns: see `dependency_probes.ClassifierProbe`."""

    kind: str
    vectors: Any  # of `dependency_probes.open_vectors`; None takes the encoder's own
    count: int
    epochs: int


def check_finite(weights: Tensor) -> None:
    """Refuse attention that is not a number: it would make every head's answer its first region.

    Raises:
        DataError: the model is damaged, or its numbers have too few digits.
    """
    if not torch.isfinite(weights).all():
        raise DataError(
            "the model's attention is not a number (NaN): its weights are damaged, or --dtype float16 is too narrow for it; "
            "take --dtype float32"
        )


def in_halves(work: Callable[[int, int], None], total: int, size: int) -> None:
    """Do `work(low, high)` on runs of at most `size` of `total` items, in halves of them where memory does not suffice."""
    low = 0
    while low < total:
        high = min(low + size, total)
        try:
            work(low, high)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if high - low == 1:
                raise MemoryError from None
            size = (high - low + 1) // 2
            continue
        low = high


def word_attention(encoder: JointEncoder, caption: Caption, regions: RegionSet, words: Sequence[tuple[int, int]]) -> Array:
    """Return how much the last sub-word of each word attends to each region: (L, H, W, R) float32; 0 for a word without one."""
    tokens = tokenize(encoder.tokenizer, [caption.text])
    ends = special_ids(encoder.tokenizer)
    spans = np.array(words, np.int64).reshape(-1, 2)
    first, last = covering(tokens, spans, np.zeros(len(spans), np.int64))
    batch = make_batch(tokens, [0], [regions], ends, encoder.region_width)
    at = torch.from_numpy(np.maximum(last, 0) + len(ends[0]))
    with torch.inference_mode():
        layers = encoder.attentions(batch.ids, batch.text_mask, batch.regions, batch.region_mask)
        found = [layer[0, :, at.to(layer.device), batch.ids.shape[1] :].float().cpu().numpy() for layer in layers]
    return np.asarray(np.stack(found) * (last >= first)[:, None])
