"""Downstream tasks with retrieved images, fused into the states that the head reads.

Axes: B units, T tokens, E examples, K images of a text, D image feature.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.models.encoder import Encoder, save_pretrained
from vgtools.models.references import check_same, fingerprint
from vgtools.systems.visual_awareness.fusion import (
    Fusion,
    Kind,
    Start,
    config_for,
    fusion_of,
    open_fusion,
    save_fusion,
)
from vgtools.systems.visual_awareness.slots import SlotImages
from vgtools.tasks.finetune import BatchWithImages, FineTuner, Learner, Split, with_images
from vgtools.tasks.sequences import InputsWithRows


@dataclass(frozen=True)
class Fusing:
    """How images are fused into an encoder.

    Attributes:
        kind: see `Fusion`; None for `paper`, or the kind of the model to start from.
        start: start of the weights, see `Fusion.reset`.
        image_dropout: share of texts that lose all their images in a step of training.
        weight: weight of a new `sum`, see `FusionConfig`; 1 also leaves a saved weight as it is.
    """

    kind: Kind | None = None
    start: Start = "drawn"
    image_dropout: float = 0.0
    weight: float = 1.0

    def config(self, ref: str | None) -> dict[str, Any]:
        """Return the settings that decide the weights, for `run.json`; `ref` is the model to start
        from, if there is one.

        Raises:
            DataError: as `open_fusion`.
        """
        saved: dict[str, Any] = {"fusion": self.kind or "paper"}
        if ref is not None and (made := fusion_of(ref)) is not None:
            kind = self.kind or open_fusion(ref)[0].config.kind
            saved = {"fusion": kind, "fusion_fingerprint": made}
        return {
            **saved,
            "fusion_start": self.start,
            "image_dropout": self.image_dropout,
            **({} if self.weight == 1 else {"image_weight": self.weight}),
        }

    def fusion_for(self, net: Any, images: SlotImages, ref: str | None) -> Fusion:
        """Return the fusion for a network: the saved fusion of its model, or a new fusion.

        Args:
            net: a network of transformers.
            images: the images whose features are fused.
            ref: the reference that `net` was opened from; None for a network that was drawn.

        Raises:
            DataError: the model's fusion is of another kind or weight (78), or made for features of
                another backbone (65); as `config_for`.
        """
        if ref is None or fusion_of(ref) is None:
            shape = (images.width, self.kind or "paper", self.image_dropout, self.weight)
            fusion = Fusion(config_for(net, *shape))
            # BERT and BART give this setting different names.
            std = getattr(net.config, "initializer_range", getattr(net.config, "init_std", 0.02))
            fusion.reset(self.start, std)
            return fusion
        fusion, backbone = open_fusion(ref)
        check_same("backbone", images.features.backbone, backbone, images.path)
        kind = fusion.config.kind
        if self.kind not in (None, kind):
            why = f"has a fusion of kind {kind!r}, --fusion is {self.kind!r}; leave out the flag"
            raise DataError(why, ref, code=Exit.CONFIG)
        weight = fusion.config.weight
        if self.weight not in (1, weight):
            why = f"has a fusion of weight {weight}, --image-weight is {self.weight}; leave it out"
            raise DataError(why, ref, code=Exit.CONFIG)
        # The dropout of images belongs to this training, not to the saved network.
        fusion.config = dataclasses.replace(fusion.config, image_dropout=self.image_dropout)
        return fusion


class FusedTuner(FineTuner):
    """A transformers model with the head of a task, which reads states that are fused with images.

    Args:
        net: a network under the head of a task.
        kind: kind of the task.
        fusion: fusion of states and images.
        dtype: type of matrix products (autocast); weights stay float32.

    Source: Zhang et al. 2019, section 2.5. The head is the baseline's: BERT's pooler and classifier
        for inference, a linear layer of each token for tagging.
    """

    def __init__(
        self, net: Any, kind: str, fusion: Fusion, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(net, kind, dtype)
        self.fusion = fusion
        fusion.attach(net)

    def outputs(self, batch: Any) -> Tensor:
        """Return the outputs of the head, as `FineTuner`, of a batch with images."""
        with self.fusion.show(batch.slots, batch.slot_mask):
            return super().outputs(batch)


@dataclass
class FusedLearner(Learner):
    """Learner of tasks of texts: a transformers model that sees retrieved images.

    Args:
        images: images of the texts.
        fusing: how images are fused.

    Source: Zhang et al. 2019, sections 2.3 to 2.5.
    """

    images: SlotImages
    fusing: Fusing

    def new(self, seed: int) -> tuple[Any, Encoder]:
        """Return the network, head and fusion drawn by the seed, and the encoder in it.

        The head equals the baseline's with the same seed.

        Raises:
            DataError: as `Learner.new` and `Fusing.fusion_for`.
        """
        plain, encoder = super().new(seed)
        fusion = self.fusing.fusion_for(plain.net, self.images, self.ref)
        return FusedTuner(plain.net, self.task.kind, fusion, self.dtype), encoder

    def read(self, name: str, path: str, tuner: Any, encoder: Encoder) -> Split:
        """Return the examples of a file with their images."""
        split = super().read(name, path, tuner, encoder)
        official = Path(path).name == self.task.files.get(name)
        task = f"{self.task.name} {Path(path).parent if official else 'DATA'}"
        task = "RUN (of this task, without images)" if self.task.own else task
        way_out = f"make them: vg prepare task {task} | vg retrieve - --index X.faiss -o ROWS.jsonl"
        rows = self.images.rows_for([e.whole_text for e in split.examples], name, way_out)
        return dataclasses.replace(split, inputs=InputsWithRows(split.inputs, rows))

    def collate(
        self, tuner: Any, inputs: InputsWithRows, units: Array, part: int = 0, parts: int = 1
    ) -> BatchWithImages:
        """Return a part of the batch of a step, with the images of its texts."""
        text = super().collate(tuner, inputs.text, units, part, parts)
        return with_images(text, *self.images.gather(inputs.of(units[part::parts]), self.device))

    def save(self, tuner: Any, encoder: Encoder, folder: Path) -> None:
        """Write the model as transformers opens it, and its fusion next to it."""
        save_pretrained(folder, dataclasses.replace(encoder, fingerprint=fingerprint(tuner)))
        save_fusion(folder, tuner.fusion, self.images.features.backbone)
