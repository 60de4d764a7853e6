"""VisualBERT learns a downstream task: its heads, its batches, and the model that transformers opens.

The text comes from `vgtools.encoding`, the seeds and the run from `vgtools.finetuning`; here is what pictures add.

Axes: B units a batch, T tokens, R regions, D region feature, H hidden, C classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools import finetuning
from vgtools.checkpoint import (
    Encoder,
    check_same,
    fingerprint,
    pick_dtype,
    read_config,
    read_run,
    save_pretrained,
)
from vgtools.encoding import Inputs, predictions, special_frame
from vgtools.finetuning import LOSS, Learner, Split, outputs_of
from vgtools.io import DataError, atomic_write
from vgtools.nn import special_id
from vgtools.predictions import prediction_row
from vgtools.regions import Regions, RegionSet, backbone_of, iou, open_regions
from vgtools.systems.visualbert import VisualBert, VisualBertConfig, is_visualbert, load_visualbert, named_for_transformers
from vgtools.tasks import Example, ReadStats, Task, read_examples
from vgtools.text import tokenize
from vgtools.visual_tasks import Link, Pictures, SceneExample, VisualExample, soft_targets

Array = np.ndarray[Any, Any]

_CHUNK = 4096  # examples tokenised at a time


# ----------------------------------------------------------------------------------------------------------------- what is seen


@dataclass(frozen=True)
class Sight:
    """What a task with pictures needs beside its files.

    Attributes:
        regions: of all pictures.
        pictures: finds them by the names of the data set.
        boxes: the so many most confident regions of a picture are seen; None: all.
        answers: VQA, those that can be predicted.
    """

    regions: Regions
    pictures: Pictures
    boxes: int | None = None
    answers: tuple[str, ...] = ()

    def of(self, image: str) -> RegionSet:
        """Return the regions of a picture that are seen, in the order of the file."""
        found = self.regions.of(image)
        if self.boxes is None or len(found) <= self.boxes:
            return found
        return pick(found, np.sort(np.argsort(-found.confidence, kind="stable")[: self.boxes]))

    def config(self) -> dict[str, Any]:
        """Return what of it decides the weights."""
        found = {"regions": self.regions.manifest["files"], "boxes": self.boxes}
        return found | ({"answers": hashlib.sha256("\n".join(self.answers).encode()).hexdigest()} if self.answers else {})


def pick(found: RegionSet, kept: Array) -> RegionSet:
    """Return some of a picture's regions."""
    labels = None if found.labels is None else [found.labels[i] for i in kept]
    return RegionSet(found.features[kept], found.boxes[kept], found.confidence[kept], labels, found.width, found.height)


def open_sight(ref: str, path: str, boxes: int | None = None, answers: tuple[str, ...] = ()) -> Sight:
    """Open the regions of a task, and check that they are what the encoder learnt to see.

    Args:
        ref: of the encoder.
        path: X.npy.
        boxes: see `Sight`.
        answers: see `Sight`.

    Raises:
        DataError: as `open_regions`, or they come from another backbone than those that the run was pretrained on.
    """
    regions = open_regions(path)
    if (Path(ref) / "run.json").is_file() and is_visualbert(ref):
        known = read_run(ref, "visualbert")
        if "backbone" in known:
            check_same("region features of the backbone", backbone_of(regions), known["backbone"], path)
    return Sight(regions, Pictures(regions), boxes, answers)


@dataclass(frozen=True)
class VisualInputs:
    """The examples of a file as a network reads them.

    Attributes:
        text: their tokens.
        images: I names in the region features for each unit.
        targets: VQA, answer number -> score for each unit, where the file has answers.
        phrases: grounding, the numbers of the examples that are phrases of each unit, a caption.
        places: grounding, the last token of each of those phrases.
        golds: grounding, their boxes, in the pixels of the regions.
        seen: VCR, the regions of the picture that each unit sees.
        links: VCR, a row for each word that names an object: its sequence, the region among those seen, its first token.
    """

    text: Inputs
    images: list[tuple[str, ...]]
    targets: list[dict[int, float]] | None = None
    phrases: list[list[int]] | None = None
    places: list[list[int]] | None = None
    golds: list[list[Array]] | None = None
    seen: list[Array] | None = None
    links: Array | None = None  # (W, 3), by sequence

    def __len__(self) -> int:
        return len(self.text)

    @property
    def lengths(self) -> Array:
        """(U,) tokens of each unit."""
        return self.text.lengths

    @property
    def ids(self) -> Array:
        """All tokens."""
        return self.text.ids

    @property
    def cut(self) -> int:
        """Examples of which not all is read."""
        return self.text.cut

    @property
    def unlearnable(self) -> int:
        """Examples that nothing can be learnt from."""
        return sum(not target for target in self.targets or ())

    def report(self, max_length: int) -> Iterator[str]:
        """Yield what to tell the user about examples that are not read in full."""
        yield from self.text.report(max_length)
        if self.unlearnable:
            yield f"{self.unlearnable} questions have no answer among those that can be predicted; nothing is learnt from them"


def read_split(
    task: Task, name: str, path: str, tuner: VisualTuner, encoder: Encoder, settings: Mapping[str, Any], sight: Sight
) -> Split:
    """Read the file of a split and find its pictures.

    Raises:
        DataError: as `vgtools.finetuning.read_split`, or a picture has no regions.
    """
    if task.kind == "ground":
        return _read_phrases(task, name, path, encoder, settings, sight)
    slot = int(task.kind == "answer")  # a token more: [MASK]
    part = finetuning.read_split(task, name, path, tuner, encoder, {**settings, "max_length": settings["max_length"] - slot})
    images = list[tuple[str, ...]]()
    for example in part.examples:
        assert isinstance(example, VisualExample)
        images.append(tuple(sight.pictures.find(image, path, example.line) for image in example.images))
    text, targets = part.inputs, None
    if slot:
        text = _with_mask(text, special_id(encoder.tokenizer, ("[MASK]", "<mask>")))
        known = {answer: number for number, answer in enumerate(sight.answers)}
        if all(example.answers for example in part.examples):
            targets = [soft_targets(example.answers, known) for example in part.examples]
    part.inputs = VisualInputs(text, images, targets)
    if task.kind == "choice":
        seen = _objects(part, images, sight, path)
        part.inputs = VisualInputs(text, images, seen=seen, links=_links(part, encoder, text, seen))
    return part


def _objects(part: Split, images: list[tuple[str, ...]], sight: Sight, path: str) -> list[Array]:
    """Return the regions that each question of VCR is about, and those that are none of the picture's objects: the whole of it.

    Raises:
        DataError: the regions of a picture do not begin with its objects.

    Source: Li et al. 2020, released code.
    """
    found, known = list[Array](), dict[str, tuple[tuple[str, ...], int]]()
    for example, (image,) in zip(part.examples, images, strict=True):
        assert isinstance(example, SceneExample)
        if image not in known:
            regions, count = sight.regions.of(image), len(example.objects)
            known[image] = tuple(regions.labels or ())[:count], len(regions)
        labels, total = known[image]
        if labels != example.objects:
            raise DataError(
                f"the regions of {image!r:.80} in {sight.regions.path} begin with {', '.join(labels) or 'none with a name'}, "
                f"its objects are {', '.join(example.objects)}; extract all boxes of vg prepare vcr, and those first",
                path,
                example.line,
            )
        found.append(np.array([*example.seen, *range(len(labels), total)], np.int64))
    return found


def _links(part: Split, encoder: Encoder, text: Inputs, seen: list[Array]) -> Array:
    """Return which word names which region, (W, 3) as `VisualInputs` says; words that are cut off name none.

    Source: Li et al. 2020, appendix B.2, and its released code: the first sub-word of each such word.
    """
    before, behind = len(encoder.prefix), len(encoder.suffix)
    between = len(special_frame(encoder.tokenizer).pair[1])
    rows = list[tuple[int, int, int]]()
    for start in range(0, len(part.examples), _CHUNK):
        examples = part.examples[start : start + _CHUNK]
        firsts = tokenize(encoder.tokenizer, [e.text for e in examples])
        seconds = tokenize(encoder.tokenizer, [choice for e in examples for choice in e.choices])
        for i, example in enumerate(examples):
            assert isinstance(example, SceneExample)
            place = {region: at for at, region in enumerate(seen[start + i].tolist())}
            for c, links in enumerate(example.links[1:]):
                row = (start + i) * text.each + c
                second, end = int(text.second[row]), int(text.starts[row + 1] - text.starts[row]) - behind
                found = _named(firsts.row(i)[1], example.links[0], before, second - between)
                found += _named(seconds.row(i * text.each + c)[1], links, second, end)
                rows += [(row, place[region], token) for region, token in found]
    return np.array(rows, np.int64).reshape(-1, 3)


def _named(spans: Array, links: Sequence[Link], begin: int, end: int) -> list[tuple[int, int]]:
    """Return (region, token) of the words that name one; the text's tokens stand from `begin`, those from `end` are cut off."""
    found = list[tuple[int, int]]()
    for first, last, region in links:
        touched = np.flatnonzero((spans[:, 0] < last) & (spans[:, 1] > first))
        if len(touched) and begin + touched[0] < end:
            found.append((region, begin + int(touched[0])))
    return found


def _read_phrases(task: Task, name: str, path: str, encoder: Encoder, settings: Mapping[str, Any], sight: Sight) -> Split:
    """Read captions with phrases: a unit is a caption, an example a phrase. A phrase stands where its last sub-word does.

    Source: Li et al. 2020, appendix B.4.
    """
    stats, examples = ReadStats(), list[VisualExample]()
    for example in islice(read_examples(task, path, unlabelled=name.startswith("test"), stats=stats), settings["limit"]):
        assert isinstance(example, VisualExample)
        examples.append(example)
    groups = [list(group) for _, group in groupby(range(len(examples)), key=lambda i: examples[i].line)]
    captions = [examples[group[0]] for group in groups]
    images: list[tuple[str, ...]] = [(sight.pictures.find(c.images[0], path, c.line),) for c in captions]
    tokens = tokenize(encoder.tokenizer, [c.text for c in captions])
    room = settings["max_length"] - len(encoder.prefix) - len(encoder.suffix)
    ids, places, golds, cut = list[Array](), list[list[int]](), list[list[Array]](), 0
    for number, (group, image) in enumerate(zip(groups, images, strict=True)):
        words, spans = tokens.row(number)
        if not len(words):
            raise DataError("the text has no token", path, captions[number].line)
        cut += len(words) > room
        ids.append(np.array([*encoder.prefix, *words[:room].tolist(), *encoder.suffix], np.int32))
        seen, own, boxes = sight.of(image[0]), list[int](), list[Array]()
        if not len(seen):
            raise DataError(
                f"{sight.regions.path} holds a picture without a region: {image[0]!r:.80}", path, captions[number].line
            )
        for i in group:
            start, end = examples[i].span
            touched = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start))
            last = int(touched[-1]) if len(touched) else 0
            own.append(len(encoder.prefix) + min(last, room - 1))
            boxes.append(np.array(examples[i].boxes, np.float64) * _scale(examples[i], seen))
        places.append(own)
        golds.append(boxes)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in ids])])
    text = Inputs(np.concatenate(ids), starts, np.diff(starts), 1, np.array([g[0] for g in groups]), None, None, cut)
    digest = hashlib.sha256("".join(map(repr, examples)).encode()).hexdigest()
    return Split(path, list(examples), stats, digest, VisualInputs(text, images, None, groups, places, golds))


def _scale(example: VisualExample, seen: RegionSet) -> Array:
    """Return what takes boxes of the data set to the pixels of the regions' picture, (4,)."""
    width, height = example.size or (seen.width, seen.height)
    return np.array([seen.width / width, seen.height / height] * 2)


def _with_mask(text: Inputs, mask: int) -> Inputs:
    """Return texts with [MASK] before the last token of each.

    Source: Li et al. 2020, released code: VQA is answered at the last but one token of the text.
    """
    ids = np.insert(text.ids, text.starts[1:] - 1, mask)
    return dataclasses.replace(text, ids=ids, starts=text.starts + np.arange(len(text.starts)), second=text.second + 1)


# ---------------------------------------------------------------------------------------------------------------------- batches


class Batch(NamedTuple):
    """Units to learn from; the loss is the sum over them, divided by `whole`, so that halves add up to the whole."""

    ids: Tensor  # (B, T) int64; VCR: (B, C, T)
    types: Tensor  # likewise, 1 in the second text
    mask: Tensor  # likewise, bool, False at padding
    regions: Tensor  # (B, R, D) float32
    region_mask: Tensor  # (B, R) bool
    kinds: Tensor  # (B, R) int64, segments: which of its pictures a region is of
    labels: Tensor | None  # (B,) int64 classes; VQA: (B, C) float32 scores; grounding: (B, P, R) float32 shares of the regions
    places: Tensor | None  # (B, P) int64 grounding: the tokens of the phrases, -1 for none
    alignment: Tensor | None  # (B, C, R, A) int64 VCR: the tokens that name each region, -1 for none
    whole: float


def collate(
    inputs: VisualInputs,
    sight: Sight,
    units: Array,
    pad: int,
    device: torch.device | str = "cpu",
    part: int = 0,
    parts: int = 1,
) -> Batch:
    """Build a batch, padded to its own longest sequence and its own most regions.

    `part` and `parts` are those of `vgtools.finetuning.collate`.

    Source: Li et al. 2020, appendix B.3: of two pictures each has its own segment, 0 and 1; a single picture has segment 1, as
        in pretraining.
    """
    text = finetuning.collate(inputs.text, units, pad, True, device, part, parts)
    assert text.segments is not None
    whole = text.whole
    if inputs.places is not None:
        whole = sum(len(inputs.places[unit]) for unit in units) / parts
    units = units[part::parts]
    shown = [[sight.of(image) for image in inputs.images[unit]] for unit in units.tolist()]
    if inputs.seen is not None:
        shown = [[pick(each[0], inputs.seen[unit])] for each, unit in zip(shown, units.tolist(), strict=True)]
    most = max(sum(map(len, each)) for each in shown)
    regions = np.zeros((len(units), most, sight.regions.width), np.float32)
    kinds = np.full((len(units), most), -1, np.int64)
    for row, each in enumerate(shown):
        at = 0
        for number, found in enumerate(each):
            regions[row, at : at + len(found)] = found.features
            kinds[row, at : at + len(found)] = number if len(each) > 1 else 1
            at += len(found)

    def tensor(array: Array) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    labels = text.labels
    if inputs.targets is not None:
        scores = np.zeros((len(units), len(sight.answers)), np.float32)
        for row, unit in enumerate(units.tolist()):
            target = inputs.targets[unit]
            scores[row, list(target)] = list(target.values())
        labels = tensor(scores)
    places = None
    if inputs.places is not None and inputs.golds is not None:
        widest = max(len(inputs.places[unit]) for unit in units)
        where = np.full((len(units), widest), -1, np.int64)
        shares = np.zeros((len(units), widest, most), np.float32)
        for row, unit in enumerate(units.tolist()):
            where[row, : len(inputs.places[unit])] = inputs.places[unit]
            boxes = shown[row][0].boxes
            for number, gold in enumerate(inputs.golds[unit]):
                shares[row, number, : len(boxes)] = covering(boxes, gold)
        places, labels = tensor(where), tensor(shares)
    seen = (tensor(regions), tensor(kinds >= 0), tensor(kinds.clip(min=0)))
    alignment = None if inputs.links is None else tensor(_alignment(inputs, inputs.links, units, most))
    return Batch(text.ids, text.segments, text.mask.bool(), *seen, labels, places, alignment, whole)


def _alignment(inputs: VisualInputs, links: Array, units: Array, most: int) -> Array:
    """Return (B, C, R, A) the tokens that name each of R regions, -1 for none."""
    each = inputs.text.each
    found: list[list[int]] = [[] for _ in range(len(units) * each * most)]
    for row, unit in enumerate(units.tolist()):
        first, last = np.searchsorted(links[:, 0], (unit * each, (unit + 1) * each))
        for sequence, region, token in links[first:last].tolist():
            found[(row * each + sequence - unit * each) * most + region].append(token)
    array = np.full((len(found), max(1, *map(len, found))), -1, np.int64)
    for row, tokens in enumerate(found):
        array[row, : len(tokens)] = tokens
    return array.reshape(len(units), each, most, -1)


def covering(boxes: Array, gold: Array) -> Array:
    """Return (R,) shares: the regions with IoU >= 0.5 with a gold box have the same, the others none.

    Source: Li et al. 2020, released code.
    """
    good = (iou(boxes, gold) >= 0.5).any(1)
    return np.asarray(good / max(1, good.sum()))


# ---------------------------------------------------------------------------------------------------------------------- network


class PhraseAttention(nn.Module):
    """One more block of attention, from phrases to regions; its heads' weights are averaged.

    Args:
        width: H.
        heads: of the block, as many as BERT has.

    Source: Li et al. 2020, appendix B.4.
    Deviation: the published code has one head of 64 dimensions, the paper an average of heads. Attention is among the regions
        alone, as in the code.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.query, self.key = heads, nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, text: Tensor, regions: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """Return (B, P, R) logarithms of the attention.

        Args:
            text: (B, T, H) states.
            regions: (B, R, H) states.
            places: (B, P) tokens of the phrases, -1 for none.
            mask: (B, R) bool.
        """
        rows = torch.arange(len(places), device=places.device)[:, None]
        query, key = self.query(text[rows, places.clamp(min=0)]), self.key(regions)
        query, key = (x.float().unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in (query, key))  # (B, heads, P or R, d)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, heads, P, R)
        scores = scores.masked_fill(~mask[:, None, None], -1e4).log_softmax(-1)
        found: Tensor = scores.logsumexp(1) - math.log(self.heads)
        return found


class VisualTuner(nn.Module):
    """A VisualBERT under the head of a task, and its loss.

    Args:
        model: loses its heads of pretraining.
        task: what is learnt.
        dtype: numbers that the products are computed with (autocast); weights stay float32.

    Source: Li et al. 2020, appendix B; the head is a linear layer over the pooled first token, VQA's over the [MASK] behind the
        question, as in the published code.
    """

    def __init__(self, model: VisualBert, task: Task, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.task, self.dtype, config = task, dtype, model.lm.config
        self.pad, self.segments = int(config.pad_token_id or 0), True
        model.lm.cls, model.match = nn.Identity(), nn.Identity()  # type: ignore[assignment]
        self.model, self.dropout = model, nn.Dropout(float(config.hidden_dropout_prob))
        width = int(config.hidden_size)
        self.head: nn.Module = (
            PhraseAttention(width, int(config.num_attention_heads))
            if task.kind == "ground"
            else nn.Linear(width, 1 if task.kind == "choice" else task.classes)
        )
        for part in self.head.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=float(config.initializer_range))
                nn.init.zeros_(part.bias)

    def outputs(self, batch: Batch) -> Tensor:
        """Return (B, C) logits; grounding: (B, P, R) log shares of the attention."""
        kind = batch.ids.device.type
        with torch.autocast(kind, self.dtype) if self.dtype != torch.float32 else contextlib.nullcontext():
            if batch.alignment is not None:
                return self._choose(batch, batch.alignment)
            states = self.model.states(batch.ids, batch.types, batch.mask, batch.regions, batch.region_mask, batch.kinds)
            if batch.places is not None:
                count = batch.ids.shape[1]
                return self.head(states[:, :count], states[:, count:], batch.places, batch.region_mask)  # type: ignore[no-any-return]
            if self.task.kind == "answer":
                pooled = states[torch.arange(len(states), device=states.device), batch.mask.sum(1) - 2]  # (B, H) at [MASK]
            else:
                pooled = self.model.pool(states)
            return self.head(self.dropout(pooled)).float()  # type: ignore[no-any-return]

    def _choose(self, batch: Batch, alignment: Tensor) -> Tensor:
        """Return (B, C) logits of choices, each of which is a sequence of its own beside the same regions."""
        each = batch.ids.shape[1]
        text = (x.flatten(0, 1) for x in (batch.ids, batch.types, batch.mask))
        seen = (x.repeat_interleave(each, 0) for x in (batch.regions, batch.region_mask, batch.kinds))
        pooled = self.model.pool(self.model.states(*text, *seen, alignment.flatten(0, 1)))
        found: Tensor = self.head(self.dropout(pooled)).float().view(-1, each)
        return found

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss: cross entropy; VQA: the Kullback-Leibler divergence from the answers' scores, as they are."""
        assert batch.labels is not None
        if self.task.kind == "ground":
            return {LOSS: F.kl_div(self.outputs(batch), batch.labels, reduction="sum") / batch.whole}
        if self.task.kind == "answer":
            return {LOSS: F.kl_div(self.outputs(batch).log_softmax(-1), batch.labels, reduction="sum") / batch.whole}
        return {LOSS: F.cross_entropy(self.outputs(batch), batch.labels, reduction="sum") / batch.whole}


def new_tuner(
    task: Task, ref: str, seed: int, *, dtype: torch.dtype = torch.float32, offline: bool = False, sight: Sight
) -> tuple[VisualTuner, Encoder]:
    """Return a network to fine-tune, all that is new in it drawn by the seed, and the encoder that it is made of.

    Args:
        task: what it will learn.
        ref: a VisualBERT, or a BERT, to which an untrained sight is added (the paper's "w/o COCO Pre-training").
        seed: of the head and what else is new.
        dtype: of the products.
        offline: never connect.
        sight: whose regions it will see.

    Raises:
        DataError: as `load_visualbert`.
    """
    late = is_visualbert(ref, offline=offline) and bool(read_config(ref, offline=offline).get("bypass_transformer"))
    torch.manual_seed(seed)
    model, encoder = load_visualbert(ref, VisualBertConfig(sight.regions.width, late), offline=offline)
    return VisualTuner(model, dataclasses.replace(task, labels=sight.answers or task.labels), dtype), encoder


def predict(
    tuner: VisualTuner, inputs: VisualInputs, sight: Sight, batch_size: int, device: torch.device | str = "cpu"
) -> Iterator[tuple[Array, Array]]:
    """Yield (units, their outputs), each unit once, long ones first.

    Raises:
        DataError: as `outputs_of`.
    """
    return outputs_of(tuner, inputs.lengths, lambda units: collate(inputs, sight, units, tuner.pad, device), batch_size)


# ------------------------------------------------------------------------------------------------------------------------- runs


def learner(
    task: Task,
    ref: str,
    settings: Mapping[str, Any],
    device: torch.device,
    sight: Sight,
    *,
    offline: bool = False,
) -> Learner:
    """Return what learns a task with pictures: a VisualBERT.

    Args:
        task: to learn.
        ref: of the encoder.
        settings: of the fine-tuning.
        device: where it learns.
        sight: what is seen.
        offline: never connect.
    """

    def new(seed: int) -> tuple[VisualTuner, Encoder]:
        dtype = pick_dtype(settings["dtype"])
        return new_tuner(task, ref, seed, dtype=dtype, offline=offline, sight=sight)

    def read(name: str, path: str, tuner: VisualTuner, encoder: Encoder) -> Split:
        return read_split(task, name, path, tuner, encoder, settings, sight)

    def batch(
        tuner: VisualTuner, inputs: VisualInputs, units: Array, part: int, parts: int
    ) -> Batch:
        return collate(inputs, sight, units, tuner.pad, device, part, parts)

    def ask(tuner: VisualTuner, split: Split) -> list[dict[str, Any]]:
        found = predict(tuner, split.inputs, sight, 4 * settings["batch_size"], device)
        return prediction_rows(task, split, sight, found)

    def save(tuner: VisualTuner, encoder: Encoder, folder: Path) -> None:
        write_model(task, tuner, encoder, folder)

    return Learner(new, read, batch, ask, save)


def prediction_rows(
    task: Task, split: Split, sight: Sight, outputs: Iterable[tuple[Array, Array]]
) -> list[dict[str, Any]]:
    """Return the rows of `predictions.jsonl`, in the order of the examples.

    Args:
        task: that was learnt.
        split: what was asked.
        sight: what is seen.
        outputs: (units, their outputs), as `predict` yields them.
    """
    rows = list[dict[str, Any]]([{}] * len(split.examples))
    for units, part in outputs:
        if task.kind == "ground":
            for unit, scores in zip(units.tolist(), part, strict=True):
                for example, row in _grounded(task, split, sight, unit, scores):
                    rows[example] = row
            continue
        examples = [split.examples[unit] for unit in units]
        made = (
            answers(task, examples, sight.answers, part)
            if task.kind == "answer"
            else predictions(task, examples, split.inputs.text, part)
        )
        for unit, row in zip(units, made, strict=True):
            rows[unit] = row
    return rows


def _grounded(
    task: Task, split: Split, sight: Sight, unit: int, scores: Array
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each phrase of a caption with its ten boxes of most attention, in the data set's pixels.

    Args:
        task: grounding.
        split: what was asked.
        sight: what is seen.
        unit: the caption.
        scores: (P, R) log shares of the attention; P may hold padding.
    """
    inputs = split.inputs
    seen = sight.of(inputs.images[unit][0])
    phrases = zip(inputs.phrases[unit], inputs.golds[unit], scores, strict=False)
    for example, gold, attention in phrases:
        asked = split.examples[example]
        assert isinstance(asked, VisualExample)
        best = np.argsort(-attention[: len(seen)], kind="stable")[:10]
        boxes = (seen.boxes[best] / _scale(asked, seen)).round(3).tolist()
        score = round(float(np.exp(attention[best[0]])), 6)
        row = prediction_row(task, asked, boxes, score=score)
        yield example, row | {"reachable": bool(covering(seen.boxes, gold).any())}


def write_model(task: Task, tuner: VisualTuner, encoder: Encoder, folder: Path) -> None:
    """Write a network that learnt the task, as transformers opens it."""
    from safetensors.torch import save

    net = to_transformers(tuner)
    save_pretrained(
        folder, dataclasses.replace(encoder, model=net, fingerprint=fingerprint(tuner))
    )
    if task.kind == "ground":
        weights = {name: t.cpu() for name, t in tuner.head.state_dict().items()}
        atomic_write(folder / "phrase_attention.safetensors", save(weights))


def answers(task: Task, examples: Sequence[Example], known: Sequence[str], outputs: Array) -> list[dict[str, Any]]:
    """Return the rows of `predictions.jsonl` for VQA: the likeliest answer, and how likely it is."""
    best = outputs.argmax(1)
    sure = 1 / np.exp(outputs - outputs.max(1, keepdims=True)).sum(1)  # softmax of the best
    return [
        prediction_row(task, example, known[number], score=round(score, 6))
        for example, number, score in zip(examples, best.tolist(), sure.tolist(), strict=True)
    ]


def to_transformers(tuner: VisualTuner) -> Any:
    """Return a network that learnt a task as transformers' VisualBERT for visual reasoning, question answering or choices.

    Of phrase grounding it is the VisualBERT alone: transformers' class for it has one head, as the published code.

    Deviation: a region of VCR gets the sum of the positions of its words, as in the paper; transformers takes their mean.
    """
    from transformers import (
        VisualBertForMultipleChoice,
        VisualBertForQuestionAnswering,
        VisualBertForVisualReasoning,
        VisualBertModel,
    )

    tensors = {named_for_transformers(name): t.detach().cpu() for name, t in tuner.model.state_dict().items()}
    if tuner.task.kind == "ground":
        bare = VisualBertModel(tuner.model.their_config()).eval()
        bare.load_state_dict({name.removeprefix("visual_bert."): tensor for name, tensor in tensors.items()})
        return bare

    names = tuner.task.labels
    named = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    config = tuner.model.their_config(**(named if names else {}))
    heads = {"answer": VisualBertForQuestionAnswering, "choice": VisualBertForMultipleChoice}
    theirs = heads.get(tuner.task.kind, VisualBertForVisualReasoning)(config).eval()
    theirs.load_state_dict(tensors | {f"cls.{name}": t.detach().cpu() for name, t in tuner.head.state_dict().items()})
    return theirs
