"""Downstream tasks on a grounded encoder: with the placeholder, or with images found for the texts.

A linear layer reads g's state of [CLS], or the states of the words. All weights learn: the text
encoder, the cross-modal one, the projection of images, ranks and placeholder.

Axes: B units, C choices of a unit, T tokens, E examples, K images of a text, S slots, D image
feature, H hidden.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.io.forms import check_form
from vgtools.io.own import atomic_write
from vgtools.models.devices import to_device
from vgtools.models.encoder import Encoder, save_pretrained
from vgtools.models.precision import autocast
from vgtools.models.references import fingerprint, write_safetensors
from vgtools.models.runs import as_config
from vgtools.models.sealed import read_run
from vgtools.systems.grounding.inputs import WordBank, check_words, open_sources
from vgtools.systems.grounding.model import (
    KIND,
    GroundedEncoder,
    GroundingConfig,
    no_slots,
    open_grounding,
)
from vgtools.systems.grounding.pictures import PictureFeatures, check_trained
from vgtools.systems.grounding.recipe import ASSOCIATIVE, Sources
from vgtools.tasks import finetune
from vgtools.tasks.examples import Example
from vgtools.tasks.finetune import LOSS, BatchWithImages, Learner, Split, with_images
from vgtools.tasks.image_controls import Choice, choose_images
from vgtools.tasks.sequences import InputsWithRows
from vgtools.tasks.table import Task

_DROPOUT = 0.1  # before the linear layer
_AT_ONCE = 1024  # texts that are searched for at a time


# ------------------------------------------------------------------------------------------- images


@dataclass(frozen=True)
class GroundedTextImages:
    """The images that the texts of a task are shown with.

    Attributes:
        pictures: features of images; None for the placeholder.
        bank: finds images.
        choice: how images are chosen, see `choose_images`; a text without images is shown with the
            placeholder.

    Source: Sileo 2021, sections 2.4 and 4.2.
    """

    pictures: PictureFeatures | None = None
    bank: WordBank | None = None
    choice: Choice = "none"

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, for `run.json`; nothing without images."""
        if self.pictures is None or self.bank is None:
            return {}
        return {
            "images": self.choice,
            "features": self.pictures.manifest["files"],
            "index": self.bank.mark,
        }

    def rows_for(self, examples: Sequence[Example], split: str) -> Array:
        """Return the rows of the features for examples, (E, K), best first, -1 for none.

        Nothing is searched for, and K is 0, where no image is shown.

        Source: Sileo 2021, section 2.4: all words may be used, as nothing is masked.

        Raises:
            DataError: as `choose_images`.
        """
        bank = self.bank
        if bank is None or self.choice == "none":
            return np.zeros((len(examples), 0), np.int64)
        texts = [_query(example) for example in examples]
        parts = [
            _find(bank, texts[start : start + _AT_ONCE]) for start in range(0, len(texts), _AT_ONCE)
        ]
        return choose_images(np.concatenate(parts), texts, self.choice, bank.rows, split)


def _query(example: Example) -> str:
    """Return the query for images: all texts of the example."""
    return " ".join([example.text, example.pair or "", *example.choices])


def _find(bank: WordBank, texts: Sequence[str]) -> Array:
    found = bank.associator.search(bank.associator.words(texts), bank.images)
    return np.where(found.rows >= 0, bank.rows[found.rows], -1)


def open_images(
    ref: str, feats: str | None, index: str | None, choice: Choice
) -> GroundedTextImages:
    """Open the images that a grounded run needs for the texts of a task.

    Args:
        ref: the run.
        feats: features of images; None for a run that needs none.
        index: index of images by words, likewise.
        choice: how images are chosen.

    Raises:
        DataError: the run finds images and `feats` or `index` is missing, or it does not and they
            are given (usage); the features are of another backbone, or the index of other words,
            than the run's (65).
    """
    info = read_run(ref, KIND)
    file = Path(ref, "run.json")
    shape = as_config(GroundingConfig, info.get(KIND), KIND, file)
    strategy = shape.strategy
    given = [name for name, file in (("--feats", feats), ("--index", index)) if file is not None]
    if strategy not in ASSOCIATIVE:
        if given:
            why = f"was trained with {strategy!r}, which shows no image to a task; leave out"
            raise DataError(f"{why} {' and '.join(given)}", ref, code=Exit.USAGE)
        return GroundedTextImages()
    if len(given) < 2:
        why = f"was trained with {strategy!r}: expected --index FILE and --feats X.npy"
        raise DataError(why, ref, code=Exit.USAGE)
    check_form(info, {"index": dict, "backbone": dict}, file, "make the run again with --restart")
    trained = info["index"]
    # Images have to be found as in pretraining, whatever the defaults are now.
    search = {key: trained[key] for key in ("clusters", "tagger") if key in trained}
    sources = Sources(strategy, feats=feats, index=index, images=shape.images, **search)
    pictures, bank = open_sources(sources)
    assert pictures is not None
    assert bank is not None
    check_trained(pictures, info["backbone"], shape.width)
    check_words(bank, trained, str(index))
    if pictures.regions != shape.regions:
        count = f"{shape.regions} regions per image"
        raise DataError(f"{feats} has one vector per image; it was trained with {count}", ref)
    return GroundedTextImages(pictures, bank, choice)


# ------------------------------------------------------------------------------------------ network


class GroundedTuner(finetune.TaskNetwork):
    """A grounded encoder under a linear layer for a task, and its loss.

    Args:
        encoder: encoder of a pretrained run.
        task: the task to learn.
        dtype: type of matrix products (autocast); weights stay float32.

    Source: Sileo 2021, section 4.2: the logistic regression reads the output at [CLS].
    Deviation: the paper does not say how VUAN's words are read; here each by its first token.
    """

    def __init__(
        self, encoder: GroundedEncoder, task: Task, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(encoder.config, task.kind, dtype)
        self.encoder = encoder
        self.dropout = nn.Dropout(_DROPOUT)
        self.head = finetune.linear_head(int(encoder.config.hidden_size), task)

    def outputs(self, batch: BatchWithImages) -> Tensor:
        """Return (B, C) logits or scores; tags and SQuAD: (B, T, C), of every token."""
        each = batch.ids.shape[1] if self.kind == "choice" else 1
        if self.kind == "choice":  # Each choice is shown with the images of its unit.
            segments = batch.segments
            batch = batch._replace(
                ids=batch.ids.flatten(0, 1),
                mask=batch.mask.flatten(0, 1),
                segments=None if segments is None else segments.flatten(0, 1),
                slots=batch.slots.repeat_interleave(each, 0),
                slot_mask=batch.slot_mask.repeat_interleave(each, 0),
            )
        with autocast(batch.ids.device, self.dtype):
            shown = (batch.slots, batch.slot_mask, batch.segments)
            states = self.encoder(batch.ids, batch.mask.bool(), *shown)
            read = states if self.kind in ("tag", "span") else states[:, 0]
            logits: Tensor = self.head(self.dropout(read)).float()
        return logits.view(-1, each) if self.kind == "choice" else logits

    def forward(self, batch: BatchWithImages) -> dict[str, Tensor]:
        """Return the loss of the task's kind."""
        return {LOSS: super().forward(batch)[LOSS] + self.encoder.cross.nothing()}


# ------------------------------------------------------------------------------------------ learner


@dataclass
class GroundedLearner(Learner):
    """Learner of tasks of texts: a grounded encoder of `vg pretrain grounding`.

    Source: Sileo 2021, section 4.2 and table 3.
    """

    shown: GroundedTextImages

    def new(self, seed: int) -> tuple[GroundedTuner, Encoder]:
        """Return the network, its linear layer drawn by the seed, and the encoder in it.

        Raises:
            DataError: as `open_grounding`.
        """
        found = open_grounding(self.ref)
        torch.manual_seed(seed)
        tuner = GroundedTuner(found.encoder(), self.task, self.dtype)
        encoder = dataclasses.replace(found.text, ref=self.ref, fingerprint=found.run.fingerprint)
        return tuner, encoder

    def read(self, name: str, path: str, tuner: GroundedTuner, encoder: Encoder) -> Split:
        """Return the examples of a file with their images."""
        split = super().read(name, path, tuner, encoder)
        images = self.shown.rows_for(split.examples, name)
        return dataclasses.replace(split, inputs=InputsWithRows(split.inputs, images))

    def collate(
        self, tuner: Any, inputs: InputsWithRows, units: Array, part: int = 0, parts: int = 1
    ) -> BatchWithImages:
        """Return a part of the batch of a step, with the images of its texts."""
        text = super().collate(tuner, inputs.text, units, part, parts)
        rows = inputs.of(units[part::parts])
        slots, slot_mask = no_slots(len(rows), self.device)
        if self.shown.pictures is not None and rows.shape[1]:
            features, known = self.shown.pictures.gather(rows)
            slots = to_device(features, self.device)
            slot_mask = to_device(known, self.device)
        return with_images(text, slots, slot_mask)

    def save(self, tuner: GroundedTuner, encoder: Encoder, folder: Path) -> None:
        """Write a network that learned a task.

        The folder is the text encoder as transformers opens it; `grounding.safetensors` next to it
        has the cross-modal encoder and the linear layer, `grounding.json` their shape.
        """
        cross = tuner.encoder.cross
        trained = fingerprint(tuner)
        text = dataclasses.replace(encoder, model=tuner.encoder.text, fingerprint=trained)
        save_pretrained(folder, text)
        parts = nn.ModuleDict({"cross": cross, "head": tuner.head})
        write_safetensors(folder / f"{KIND}.safetensors", parts.state_dict())
        facts = {KIND: dataclasses.asdict(cross.config), "kind": tuner.kind}
        atomic_write(folder / f"{KIND}.json", dumps(facts))
