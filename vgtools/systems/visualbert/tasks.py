"""VisualBERT learns a downstream task: its heads, its batches, and the model transformers opens.

The text comes from `vgtools.tasks.kinds`, the seeds and the run from `vgtools.tasks.finetune`; this
module adds the pictures.

Axes: B units per batch, T tokens, R regions, D region feature, H hidden, C classes, P phrases.

Deviation: region features are read from a file and never learn. In appendix B.2 the ResNet-50 that
makes VCR's is fine-tuned (footnote 3: fixed, Q→AR is 51.4 instead of 52.2) and sees the objects'
segmentations.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.images.boxes import iou, size_ratio
from vgtools.images.regions import Regions, RegionSet, open_regions, pick
from vgtools.io.arrays import Array, padded
from vgtools.io.errors import DataError
from vgtools.models.devices import to_device
from vgtools.models.encoder import Encoder, is_visualbert, read_config, save_pretrained
from vgtools.models.layers import draw_linear_layers
from vgtools.models.precision import autocast
from vgtools.models.references import fingerprint, write_safetensors
from vgtools.systems.visualbert.captions import check_backbone, stack_regions
from vgtools.systems.visualbert.model import (
    VisualBert,
    VisualBertConfig,
    load_visualbert,
    named_for_transformers,
)
from vgtools.tasks import finetune
from vgtools.tasks.dispatch import predictions
from vgtools.tasks.examples import VisualExample
from vgtools.tasks.finetune import Learner, Split, outputs_of
from vgtools.tasks.kinds.answer import soft_targets
from vgtools.tasks.kinds.choice import Link, SceneExample
from vgtools.tasks.kinds.classify import named_outputs
from vgtools.tasks.kinds.ground import PhraseCaptions, PhraseRanking
from vgtools.tasks.sequences import CHUNK, InputsWithImages, TaskInputs, special_tokens
from vgtools.tasks.table import Task
from vgtools.text.masking import special_id
from vgtools.text.tokens import MASK_TOKENS, tokenize


class Adaptation(NamedTuple):
    """How VisualBERT learns a kind of task."""

    network: str  # transformers' class that opens the result
    reads_mask: bool = False  # the head reads a [MASK] after the text, not the pooled first token
    phrases: bool = False  # the head is attention from phrases to regions


# Source: Li et al. 2020, appendix B, and its released code.
ADAPTATIONS = {
    "classify": Adaptation("VisualBertForVisualReasoning"),
    "choice": Adaptation("VisualBertForMultipleChoice"),
    "answer": Adaptation("VisualBertForQuestionAnswering", reads_mask=True),
    # Transformers' class for phrase grounding has one head, as the published code.
    "ground": Adaptation("VisualBertModel", phrases=True),
}


@dataclass(frozen=True)
class RegionInput:
    """The inputs of a task with pictures in addition to its files."""

    regions: Regions  # regions of all pictures
    answers: tuple[str, ...] = ()  # VQA: answers that can be predicted

    def config(self) -> dict[str, Any]:
        """Return the inputs that decide the weights."""
        config = {"regions": self.regions.manifest["files"], "boxes": self.regions.most}
        if self.answers:
            config["answers"] = hashlib.sha256("\n".join(self.answers).encode()).hexdigest()
        return config


def open_regions_of(
    ref: str, path: str, boxes: int | None = None, answers: tuple[str, ...] = ()
) -> RegionInput:
    """Open the regions of a task, and check that they are of the kind that the encoder learned
    from.

    Raises:
        DataError: as `open_regions`, or their backbone differs from the run's pretraining.
    """
    regions = open_regions(path, boxes)
    if not Path(ref, "run.json").exists() or is_visualbert(ref):
        check_backbone(ref, regions, path)
    return RegionInput(regions, answers)


@dataclass(frozen=True)
class VisualInputs(InputsWithImages):
    """The examples of a file as a network reads them."""

    images: list[tuple[str, ...]]  # names in the region features for each unit
    # VQA: answer number -> score for each unit, where the file has answers
    targets: list[dict[int, float]] | None = None
    # Grounding: the boxes of each phrase of a caption, in the pixels of the regions
    golds: list[list[Array]] | None = None
    seen: list[Array] | None = None  # VCR: the regions of the picture that each unit sees
    # VCR: (W, 3) for each word that names an object: its sequence, the region among those seen, its
    # first token; by sequence
    links: Array | None = None

    @property
    def unlearnable(self) -> int:
        """The number of examples that nothing can be learned from."""
        return sum(not target for target in self.targets or ())

    def report(self, max_length: int) -> Iterator[str]:
        """Yield the lines for the user about examples that are not read in full."""
        yield from self.text.report(max_length)
        if self.unlearnable:
            why = "have no answer among those that can be predicted; they are not learned from"
            yield f"{self.unlearnable} questions {why}"


def _objects(
    part: Split, images: list[tuple[str, ...]], region_input: RegionInput, path: str
) -> list[Array]:
    """Return the regions that each question of VCR is about.

    They are followed by the regions that are not objects of the picture: the whole of it.

    Raises:
        DataError: the regions of a picture do not start with its objects.

    Source: Li et al. 2020, released code.
    """
    seen = list[Array]()
    known = dict[str, tuple[tuple[str, ...], int]]()
    for example, (image,) in zip(part.examples, images, strict=True):
        assert isinstance(example, SceneExample)
        if image not in known:
            regions = region_input.regions.of(image)
            labels = tuple(regions.labels or ())[: len(example.objects)]
            known[image] = labels, len(regions)
        labels, total = known[image]
        if labels != example.objects:
            have = ", ".join(labels) or "none with a name"
            why = f"the regions of {image!r:.80} in {region_input.regions.path} start with {have}"
            why += f", its objects are {', '.join(example.objects)}"
            why += "; extract all boxes of vg prepare vcr, and those first"
            raise DataError(why, path, example.line)
        seen.append(np.array([*example.seen, *range(len(labels), total)], np.int64))
    return seen


def _links(part: Split, encoder: Encoder, text: TaskInputs, seen: list[Array]) -> Array:
    """Return which word names which region, (W, 3) in the form of `VisualInputs.links`.

    Words that are cut off name no region.

    Source: Li et al. 2020, appendix B.2, and its released code: the first sub-word of each such
        word.
    """
    before, between, after = map(len, special_tokens(encoder.tokenizer).pair)
    rows = list[tuple[int, int, int]]()
    for start in range(0, len(part.examples), CHUNK):
        examples = part.examples[start : start + CHUNK]
        firsts = tokenize(encoder.tokenizer, [e.text for e in examples])
        seconds = tokenize(encoder.tokenizer, [choice for e in examples for choice in e.choices])
        for i, example in enumerate(examples):
            assert isinstance(example, SceneExample)
            place = {region: at for at, region in enumerate(seen[start + i].tolist())}
            for c, links in enumerate(example.links[1:]):
                row = (start + i) * text.each + c
                second = int(text.second[row])
                end = int(text.starts[row + 1] - text.starts[row]) - after
                named = _named(firsts.row(i)[1], example.links[0], before, second - between)
                named += _named(seconds.row(i * text.each + c)[1], links, second, end)
                rows += [(row, place[region], token) for region, token in named]
    return np.array(rows, np.int64).reshape(-1, 3)


def _named(spans: Array, links: Sequence[Link], begin: int, end: int) -> list[tuple[int, int]]:
    """Return (region, token) of the words that name a region.

    The text's tokens start at `begin`; tokens from `end` on are cut off.
    """
    named = list[tuple[int, int]]()
    for first, last, region in links:
        touched = np.flatnonzero((spans[:, 0] < last) & (spans[:, 1] > first))
        if len(touched) and begin + touched[0] < end:
            named.append((region, begin + int(touched[0])))
    return named


def _gold_boxes(
    part: Split,
    text: PhraseCaptions,
    images: list[tuple[str, ...]],
    region_input: RegionInput,
    path: str,
) -> list[list[Array]]:
    """Return the boxes of the phrases of each caption, in the pixels of the regions.

    Raises:
        DataError: a picture has no region, or another shape than the boxes'.
    """
    golds = list[list[Array]]()
    for phrases, (image,) in zip(text.phrases, images, strict=True):
        seen = region_input.regions.of(image)
        examples = [cast("VisualExample", part.examples[number]) for number in phrases]
        if not len(seen):
            why = f"{region_input.regions.path} holds a picture without a region: {image!r:.80}"
            raise DataError(why, path, examples[0].line)
        try:
            golds.append([np.array(e.boxes, np.float64) * _scale(e, seen) for e in examples])
        except ValueError as error:
            why = f"{region_input.regions.path} has a picture {image!r:.80} that {error}"
            raise DataError(why, path, examples[0].line) from None
    return golds


def _scale(example: VisualExample, seen: RegionSet) -> Array:
    """Return the factors from boxes of the data set to pixels of the regions' picture, (4,)."""
    size = (seen.width, seen.height)
    return np.array(size_ratio(example.size or size, size) * 2)


def _with_mask(text: TaskInputs, mask: int) -> TaskInputs:
    """Return texts with [MASK] before the last token of each.

    Source: Li et al. 2020, released code: VQA is answered at the last but one token of the text.
    """
    ids = np.insert(text.ids, text.starts[1:] - 1, mask)
    starts = text.starts + np.arange(len(text.starts))
    return dataclasses.replace(text, ids=ids, starts=starts, second=text.second + 1)


class RegionTaskBatch(NamedTuple):
    """Units to learn from; the loss is their sum divided by `whole`, so that halves add up."""

    ids: Tensor  # (B, T) int64; VCR: (B, C, T)
    types: Tensor  # likewise, 1 in the second text
    mask: Tensor  # likewise, bool, False at padding
    regions: Tensor  # (B, R, D) float32
    region_mask: Tensor  # (B, R) bool
    segments: Tensor  # (B, R) int64, the number of the picture that a region belongs to
    labels: Tensor | None  # (B,) int64 classes; VQA: (B, C) scores; grounding: (B, P, R) shares
    places: Tensor | None  # (B, P) int64 grounding: the tokens of the phrases, -1 for none
    alignment: Tensor | None  # (B, C, R, A) int64 VCR: tokens that name each region, -1 for none
    whole: float


def _alignment(inputs: VisualInputs, links: Array, units: Array, most: int) -> Array:
    """Return (B, C, R, A) the tokens that name each of R regions, -1 for none."""
    each = inputs.text.each
    named: list[list[int]] = [[] for _ in range(len(units) * each * most)]
    for row, unit in enumerate(units.tolist()):
        first, last = np.searchsorted(links[:, 0], (unit * each, (unit + 1) * each))
        for sequence, region, token in links[first:last].tolist():
            named[(row * each + sequence - unit * each) * most + region].append(token)
    # The added row makes A at least 1, also where no word names a region.
    array = padded([*named, [-1]], -1, np.int64)[:-1]
    return array.reshape(len(units), each, most, -1)


def gold_shares(boxes: Array, gold: Array) -> Array:
    """Return (R,) shares: equal for regions with IoU >= 0.5 with a gold box, 0 for the others.

    Source: Li et al. 2020, released code.
    """
    good = (iou(boxes, gold) >= 0.5).any(1)
    return np.asarray(good / max(1, good.sum()))


class PhraseAttention(nn.Module):
    """One more block of attention, from phrases to regions; its heads' weights are averaged.

    Args:
        heads: heads of the block, as many as BERT has.

    Source: Li et al. 2020, appendix B.4.
    Deviation: the published code has one head of 64 dimensions, the paper an average of heads.
        Attention is among the regions alone, as in the code.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)

    def forward(self, text: Tensor, regions: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """Return (B, P, R) logarithms of the attention.

        Args:
            text: (B, T, H) states.
            regions: (B, R, H) states.
            places: (B, P) tokens of the phrases, -1 for none.
            mask: (B, R) bool.
        """
        rows = torch.arange(len(places), device=places.device)[:, None]
        query = self._split(self.query(text[rows, places.clamp(min=0)]))  # (B, heads, P, d)
        key = self._split(self.key(regions))  # (B, heads, R, d)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])  # (B, heads, P, R)
        # A finite number: with -inf the loss, shares of 0 times logarithms, would be NaN.
        scores = scores.masked_fill(~mask[:, None, None], -1e4).log_softmax(-1)
        average: Tensor = scores.logsumexp(1) - math.log(self.heads)
        return average

    def _split(self, states: Tensor) -> Tensor:
        """Return (B, heads, P or R, H / heads)."""
        split: Tensor = states.float().unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return split


class VisualTuner(finetune.TaskNetwork):
    """A VisualBERT under the head of a task, and its loss.

    Args:
        model: the network; it loses its heads of pretraining.
        dtype: type of matrix products (autocast); weights stay float32.

    Source: Li et al. 2020, appendix B; the head is a linear layer over the pooled first token,
        VQA's over the [MASK] after the question, as in the published code.
    """

    def __init__(self, model: VisualBert, task: Task, dtype: torch.dtype = torch.float32) -> None:
        config = model.lm.config
        super().__init__(config, task.kind, dtype)
        self.segments = True
        self.task = task
        self.adaptation = ADAPTATIONS[task.kind]
        # No task reads the heads of pretraining, and transformers' classes have no place for them.
        model.lm.cls = nn.Identity()
        model.match = nn.Identity()  # type: ignore[assignment]
        self.model = model
        self.dropout = nn.Dropout(float(config.hidden_dropout_prob))
        width = int(config.hidden_size)
        self.head: nn.Module
        if self.adaptation.phrases:
            self.head = PhraseAttention(width, int(config.num_attention_heads))
        else:
            self.head = nn.Linear(width, 1 if task.choices else task.classes)
        draw_linear_layers(self.head, float(config.initializer_range))

    def outputs(self, batch: RegionTaskBatch) -> Tensor:
        """Return (B, C) logits; grounding: (B, P, R) log shares of the attention."""
        device = batch.ids.device
        with autocast(device, self.dtype):
            if batch.alignment is not None:
                return self._choose(batch, batch.alignment)
            text = (batch.ids, batch.types, batch.mask)
            states = self.model.states(*text, batch.regions, batch.region_mask, batch.segments)
            if batch.places is not None:
                count = batch.ids.shape[1]
                sides = (states[:, :count], states[:, count:])
                attention: Tensor = self.head(*sides, batch.places, batch.region_mask)
                return attention
            if self.adaptation.reads_mask:
                # The [MASK] is the last token but one of each text.
                last = batch.mask.sum(1) - 2
                pooled = states[torch.arange(len(states), device=device), last]  # (B, H)
            else:
                pooled = self.model.pool(states)
            logits: Tensor = self.head(self.dropout(pooled)).float()
            return logits

    def _choose(self, batch: RegionTaskBatch, alignment: Tensor) -> Tensor:
        """Return (B, C) logits of choices, each of which is a sequence with the same regions."""
        each = batch.ids.shape[1]
        text = (x.flatten(0, 1) for x in (batch.ids, batch.types, batch.mask))
        regions = (batch.regions, batch.region_mask, batch.segments)
        seen = (x.repeat_interleave(each, 0) for x in regions)
        pooled = self.model.pool(self.model.states(*text, *seen, alignment.flatten(0, 1)))
        logits: Tensor = self.head(self.dropout(pooled)).float().view(-1, each)
        return logits


def _rank(
    part: Split, text: PhraseCaptions, region_input: RegionInput, units: Array, outputs: Array
) -> list[PhraseRanking]:
    """Return the ten boxes with most attention for each phrase of some captions."""
    rankings = list[PhraseRanking]()
    for unit, attention in zip(units.tolist(), outputs, strict=True):
        seen = region_input.regions.of(part.inputs.images[unit][0])
        golds = part.inputs.golds[unit]
        for number, gold, shares in zip(text.phrases[unit], golds, attention, strict=False):
            example = cast("VisualExample", part.examples[number])
            best = np.argsort(-shares[: len(seen)], kind="stable")[:10]
            boxes = (seen.boxes[best] / _scale(example, seen)).round(3).tolist()
            reachable = bool(gold_shares(seen.boxes, gold).any())
            rankings.append(PhraseRanking(boxes, float(np.exp(shares[best[0]])), reachable))
    return rankings


@dataclass
class VisualLearner(Learner):
    """Learner of tasks with pictures: a VisualBERT."""

    region_input: RegionInput

    @property
    def max_length(self) -> int:
        """The tokens that are read of a text, in addition to a [MASK] that the head reads."""
        return super().max_length - ADAPTATIONS[self.task.kind].reads_mask

    def new(self, seed: int) -> tuple[VisualTuner, Encoder]:
        """Return the network under the head of the task, and the encoder in it.

        It starts from a VisualBERT, or from a BERT, to which untrained region embeddings are added
        (the paper's "w/o COCO Pre-training").

        Raises:
            DataError: as `load_visualbert`.
        """
        late = False
        if is_visualbert(self.ref):
            config = read_config(self.ref)
            late = bool(config.get("bypass_transformer"))
        torch.manual_seed(seed)
        shape = VisualBertConfig(self.region_input.regions.width, late)
        model, encoder = load_visualbert(self.ref, shape)
        labels = self.region_input.answers or self.task.labels
        labelled = dataclasses.replace(self.task, labels=labels)
        return VisualTuner(model, labelled, self.dtype), encoder

    def read(self, name: str, path: str, tuner: VisualTuner, encoder: Encoder) -> Split:
        """Return the examples of a file with their regions.

        Raises:
            DataError: as `Learner.read`, or a picture has no regions.
        """
        part = super().read(name, path, tuner, encoder)
        text: TaskInputs = part.inputs
        asked = [cast("VisualExample", part.examples[number]) for number in text.examples.tolist()]
        find = self.region_input.regions.find
        images = [tuple(find(image, path, e.line) for image in e.images) for e in asked]
        targets = golds = seen = links = None
        if tuner.adaptation.reads_mask:
            text = _with_mask(text, special_id(encoder.tokenizer, MASK_TOKENS))
            known = {answer: number for number, answer in enumerate(self.region_input.answers)}
            if all(example.answers for example in asked):
                targets = [soft_targets(example.answers, known) for example in asked]
        if self.task.choices:
            seen = _objects(part, images, self.region_input, path)
            links = _links(part, encoder, text, seen)
        if isinstance(text, PhraseCaptions):
            golds = _gold_boxes(part, text, images, self.region_input, path)
        part.inputs = VisualInputs(text, images, targets, golds, seen, links)
        return part

    def collate(
        self, tuner: VisualTuner, inputs: VisualInputs, units: Array, part: int = 0, parts: int = 1
    ) -> RegionTaskBatch:
        """Return a part of the batch of a step, padded to its own longest sequence and its own
        most regions.

        Source: Li et al. 2020, appendix B.3, as `stack_regions`.
        """
        text = super().collate(tuner, inputs.text, units, part, parts)
        whole = text.whole
        if isinstance(inputs.text, PhraseCaptions):
            whole = sum(len(inputs.text.places[unit]) for unit in units.tolist()) / parts
        units = units[part::parts]
        numbers: list[int] = units.tolist()
        known = self.region_input.regions
        shown = [[known.of(image) for image in inputs.images[unit]] for unit in numbers]
        if inputs.seen is not None:
            kept = [inputs.seen[unit] for unit in numbers]
            shown = [[pick(each[0], some)] for each, some in zip(shown, kept, strict=True)]
        sets = [[picture.features for picture in each] for each in shown]
        regions, segments = stack_regions(sets, known.width)
        most = regions.shape[1]
        tensor = partial(to_device, device=self.device)
        labels = text.labels
        if inputs.targets is not None:
            scores = np.zeros((len(units), len(self.region_input.answers)), np.float32)
            for row, unit in enumerate(numbers):
                target = inputs.targets[unit]
                scores[row, list(target)] = list(target.values())
            labels = tensor(scores)
        places = alignment = None
        if isinstance(inputs.text, PhraseCaptions) and inputs.golds is not None:
            phrases = [inputs.text.places[unit] for unit in numbers]
            shares = np.zeros((len(units), max(map(len, phrases)), most), np.float32)
            for row, unit in enumerate(numbers):
                boxes = shown[row][0].boxes
                for number, gold in enumerate(inputs.golds[unit]):
                    shares[row, number, : len(boxes)] = gold_shares(boxes, gold)
            places = tensor(padded(phrases, -1, np.int64))
            labels = tensor(shares)
        if inputs.links is not None:
            alignment = tensor(_alignment(inputs, inputs.links, units, most))
        return RegionTaskBatch(
            ids=text.ids,
            types=text.segments,
            mask=text.mask.bool(),
            regions=tensor(regions),
            region_mask=tensor(segments >= 0),
            segments=tensor(segments.clip(min=0)),
            labels=labels,
            places=places,
            alignment=alignment,
            whole=whole,
        )

    def predict(self, tuner: VisualTuner, split: Split) -> list[dict[str, Any]]:
        """Return a row of predictions per example of a split, in the order of its examples.

        Raises:
            DataError: as `outputs_of`.
        """
        rows = list[dict[str, Any]]([{}] * len(split.examples))
        inputs: VisualInputs = split.inputs
        text = inputs.text
        build = partial(self.collate, tuner, inputs)
        size = 4 * self.settings["batch_size"]
        for units, outputs in outputs_of(tuner, inputs.lengths, build, size):
            numbers: list[int] = units.tolist()
            given: Any = outputs
            if isinstance(text, PhraseCaptions):
                numbers = [number for unit in units.tolist() for number in text.phrases[unit]]
                given = _rank(split, text, self.region_input, units, outputs)
            examples = [split.examples[number] for number in numbers]
            made = predictions(tuner.task, examples, text, given)
            for number, row in zip(numbers, made, strict=True):
                rows[number] = row
        return rows

    def save(self, tuner: VisualTuner, encoder: Encoder, folder: Path) -> None:
        """Write the network as transformers opens it, and phrase attention next to it."""
        network = to_task_network(tuner)
        trained = dataclasses.replace(encoder, model=network, fingerprint=fingerprint(tuner))
        save_pretrained(folder, trained)
        if tuner.adaptation.phrases:
            write_safetensors(folder / "phrase_attention.safetensors", tuner.head.state_dict())


def to_task_network(tuner: VisualTuner) -> Any:
    """Return a network that learned a task as the class of transformers that `ADAPTATIONS` names.

    Phrase grounding leaves the VisualBERT alone.

    Deviation: a region of VCR gets the sum of the positions of its words, as in the paper;
        transformers takes their mean.
    """
    import transformers

    names = named_outputs(tuner.task.labels) if tuner.task.labels else {}
    network = getattr(transformers, tuner.adaptation.network)
    theirs = network(tuner.model.their_config(**names)).eval()
    state = tuner.model.state_dict()
    weights = {named_for_transformers(name): t.detach().cpu() for name, t in state.items()}
    if tuner.adaptation.phrases:
        weights = {name.removeprefix("visual_bert."): t for name, t in weights.items()}
    else:
        head = tuner.head.state_dict()
        weights |= {f"cls.{name}": tensor.detach().cpu() for name, tensor in head.items()}
    theirs.load_state_dict(weights)
    return theirs
