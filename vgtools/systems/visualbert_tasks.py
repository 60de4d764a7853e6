"""VisualBERT learns a downstream task: its heads, its batches, and the model that transformers opens.

The text comes from `vgtools.encoding`, the seeds and the run from `vgtools.finetuning`; here is what pictures add.

Axes: B units a batch, T tokens, R regions, D region feature, H hidden, C classes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools import finetuning
from vgtools.checkpoint import Encoder, check_same, fingerprint, read_config, read_run, save_pretrained
from vgtools.encoding import Inputs, plan_epoch, predictions
from vgtools.finetuning import LOSS, Split
from vgtools.io import DataError, Exit
from vgtools.nn import is_out_of_memory
from vgtools.regions import Regions, RegionSet, open_regions
from vgtools.steps import ahead
from vgtools.systems.visualbert import VisualBert, VisualBertConfig, is_visualbert, load_visualbert, named_for_transformers
from vgtools.systems.visualbert_data import backbone_of
from vgtools.tasks import Task
from vgtools.train import Batches
from vgtools.visual_tasks import Pictures, VisualExample

Array = np.ndarray[Any, Any]


# ----------------------------------------------------------------------------------------------------------------- what is seen


@dataclass(frozen=True)
class Sight:
    """What a task with pictures needs beside its files.

    Attributes:
        regions: of all pictures.
        pictures: finds them by the names of the data set.
        boxes: the so many most confident regions of a picture are seen; None: all.
    """

    regions: Regions
    pictures: Pictures
    boxes: int | None = None

    def of(self, image: str) -> RegionSet:
        """Return the regions of a picture that are seen, in the order of the file."""
        found = self.regions.of(image)
        if self.boxes is None or len(found) <= self.boxes:
            return found
        kept = np.sort(np.argsort(-found.confidence, kind="stable")[: self.boxes])
        labels = None if found.labels is None else [found.labels[i] for i in kept]
        return RegionSet(found.features[kept], found.boxes[kept], found.confidence[kept], labels, found.width, found.height)

    def config(self) -> dict[str, Any]:
        """Return what of it decides the weights."""
        return {"regions": self.regions.manifest["files"], "boxes": self.boxes}


def open_sight(ref: str, path: str, boxes: int | None = None) -> Sight:
    """Open the regions of a task, and check that they are what the encoder learnt to see.

    Raises:
        DataError: as `open_regions`, or they come from another backbone than those that the run was pretrained on.
    """
    regions = open_regions(path)
    if (Path(ref) / "run.json").is_file() and is_visualbert(ref):
        known = read_run(ref, "visualbert")
        if "backbone" in known:
            check_same("region features of the backbone", backbone_of(regions), known["backbone"], path)
    return Sight(regions, Pictures(regions), boxes)


@dataclass(frozen=True)
class VisualInputs:
    """The examples of a file as a network reads them.

    Attributes:
        text: their tokens.
        images: I names in the region features for each unit.
    """

    text: Inputs
    images: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.text)

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
        return self.text.unlearnable

    def report(self, max_length: int) -> Iterator[str]:
        """Yield what to tell the user about examples that are not read in full."""
        return self.text.report(max_length)


def read_split(
    task: Task, name: str, path: str, tuner: VisualTuner, encoder: Encoder, settings: Mapping[str, Any], sight: Sight
) -> Split:
    """Read the file of a split and find its pictures.

    Raises:
        DataError: as `vgtools.finetuning.read_split`, or a picture has no regions.
    """
    part = finetuning.read_split(task, name, path, tuner, encoder, settings)
    images = list[tuple[str, ...]]()
    for example in part.examples:
        assert isinstance(example, VisualExample)
        images.append(tuple(sight.pictures.find(image, path, example.line) for image in example.images))
    part.inputs = VisualInputs(part.inputs, images)
    return part


# ---------------------------------------------------------------------------------------------------------------------- batches


class Batch(NamedTuple):
    """Units to learn from; the loss is the sum over them, divided by `whole`, so that halves add up to the whole."""

    ids: Tensor  # (B, T) int64
    mask: Tensor  # (B, T) bool, False at padding
    regions: Tensor  # (B, R, D) float32
    region_mask: Tensor  # (B, R) bool
    kinds: Tensor  # (B, R) int64, segments: which of its pictures a region is of
    labels: Tensor | None  # (B,) int64
    whole: float


def collate(inputs: VisualInputs, sight: Sight, units: Array, pad: int, device: torch.device | str = "cpu") -> Batch:
    """Build a batch, padded to its own longest sequence and its own most regions.

    Source: Li et al. 2020, appendix B.3: of two pictures each has its own segment, 0 and 1; a single picture has segment 1, as
        in pretraining.
    """
    text = finetuning.collate(inputs.text, units, pad, False, device)
    shown = [[sight.of(image) for image in inputs.images[unit]] for unit in units.tolist()]
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

    return Batch(
        text.ids, text.mask.bool(), tensor(regions), tensor(kinds >= 0), tensor(kinds.clip(min=0)), text.labels, text.whole
    )


def halve(batch: Batch) -> tuple[Batch, ...]:
    """Return the two halves of a batch, whose losses add up to its own; a single unit cannot be cut."""
    middle = len(batch.ids) // 2
    if not middle:
        return (batch,)
    fields = batch._asdict()
    return tuple(
        batch._replace(**{name: x[rows] for name, x in fields.items() if isinstance(x, Tensor)})
        for rows in (slice(0, middle), slice(middle, None))
    )


# ---------------------------------------------------------------------------------------------------------------------- network


class VisualTuner(nn.Module):
    """A VisualBERT under the head of a task, and its loss.

    Args:
        model: loses its heads of pretraining.
        task: what is learnt.
        dtype: numbers that the products are computed with (autocast); weights stay float32.

    Source: Li et al. 2020, appendix B; the head is a linear layer over the pooled first token, as in the published code.
    """

    def __init__(self, model: VisualBert, task: Task, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.task, self.dtype, config = task, dtype, model.lm.config
        self.pad, self.segments = int(config.pad_token_id or 0), True
        model.lm.cls, model.match = nn.Identity(), nn.Identity()  # type: ignore[assignment]
        self.model, self.dropout = model, nn.Dropout(float(config.hidden_dropout_prob))
        self.head = nn.Linear(int(config.hidden_size), task.classes)
        nn.init.normal_(self.head.weight, std=float(config.initializer_range))
        nn.init.zeros_(self.head.bias)

    def outputs(self, batch: Batch) -> Tensor:
        """Return (B, C) logits."""
        kind = batch.ids.device.type
        with torch.autocast(kind, self.dtype) if self.dtype != torch.float32 else contextlib.nullcontext():
            states = self.model.states(batch.ids, None, batch.mask, batch.regions, batch.region_mask, batch.kinds)
            return self.head(self.dropout(self.model.pool(states))).float()  # type: ignore[no-any-return]

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss, cross entropy."""
        assert batch.labels is not None
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
    return VisualTuner(model, task, dtype), encoder


@torch.no_grad()
def predict(
    tuner: VisualTuner, inputs: VisualInputs, sight: Sight, batch_size: int, device: torch.device | str = "cpu"
) -> Iterator[tuple[Array, Array]]:
    """Yield (units, their outputs), each unit once, long ones first. The batch is halved when memory runs out.

    Raises:
        DataError: an output is no number, or memory ran out with a single unit (exit 70).
    """
    was_training = tuner.training
    tuner.eval()
    order, size, at = np.argsort(-inputs.text.lengths, kind="stable"), batch_size, 0
    while at < len(order):
        units = order[at : at + size]
        try:
            part = tuner.outputs(collate(inputs, sight, units, tuner.pad, device)).cpu().numpy()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(units) == 1:
                why = "out of memory with one example; --boxes or a smaller --max-length needs less"
                raise DataError(why, code=Exit.CANNOT_GO_ON) from None
            size = len(units) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            continue
        if np.isnan(part).any():
            raise DataError("the model's outputs are no longer numbers; a lower --lr usually helps", code=Exit.CANNOT_GO_ON)
        yield units, part
        at += len(units)
    tuner.train(was_training)


# ------------------------------------------------------------------------------------------------------------------------- runs


class FineTuning(finetuning.FineTuning):
    """One task with pictures, one encoder, several seeds.

    Args:
        *args: as `vgtools.finetuning.FineTuning`.
        sight: what is seen.
    """

    def __init__(self, *args: Any, sight: Sight) -> None:
        super().__init__(*args)
        self.sight = sight

    def batches(self, tuner: Any, seed: int) -> Batches:
        """Return what a seed learns from."""
        inputs, config, steps = self.splits["train"].inputs, self.run.config, self.plan.steps

        def made(epoch: int, first: int) -> Iterator[Batch]:
            plan = plan_epoch(inputs.text.lengths, config["batch_size"], seed, epoch, config["window"])
            for units in plan[first : max(0, steps - epoch * len(plan))]:
                yield collate(inputs, self.sight, units, tuner.pad, self.device)

        return lambda epoch, first: ahead(made(epoch, first))

    def halve(self, batch: Any) -> tuple[Any, ...]:
        """Return the halves of a batch."""
        return halve(batch)

    def ask(self, tuner: Any, split: str) -> list[dict[str, Any]]:
        """Return the predictions of a split."""
        part = self.splits[split]
        rows = list[dict[str, Any]]([{}] * len(part.examples))
        for units, outputs in predict(tuner, part.inputs, self.sight, 4 * self.run.config["batch_size"], self.device):
            examples = [part.examples[unit] for unit in units]
            for unit, row in zip(units, predictions(self.task, examples, part.inputs.text, outputs), strict=True):
                rows[unit] = row
        return rows

    def write_model(self, tuner: Any, encoder: Encoder, folder: Path) -> None:
        """Write a network that learnt the task, as transformers opens it."""
        net = to_transformers(tuner)
        save_pretrained(folder, dataclasses.replace(encoder, model=net, fingerprint=fingerprint(net)))


def to_transformers(tuner: VisualTuner) -> Any:
    """Return a network that learnt a task as transformers' VisualBERT for it: `VisualBertForVisualReasoning`."""
    from transformers import VisualBertForVisualReasoning

    names = tuner.task.labels
    config = tuner.model.their_config(
        id2label=dict(enumerate(names)), label2id={name: number for number, name in enumerate(names)}
    )
    theirs = VisualBertForVisualReasoning(config).eval()
    tensors = {named_for_transformers(name): t.detach().cpu() for name, t in tuner.model.state_dict().items()}
    theirs.load_state_dict(tensors | {f"cls.{name}": t.detach().cpu() for name, t in tuner.head.state_dict().items()})
    return theirs
