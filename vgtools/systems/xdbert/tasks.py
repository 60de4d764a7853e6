"""Downstream tasks on a CLIP text tower alone.

Axes: B units, C choices of a unit, T tokens, E width of the tower's projection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vgtools.io import DataError, atomic_write
from vgtools.io.errors import file_errors
from vgtools.models.clip import load_teacher, token_states
from vgtools.models.encoder import Encoder, save_pretrained
from vgtools.models.precision import autocast
from vgtools.models.references import check_whole, fingerprint, pick_dtype
from vgtools.tasks import finetune
from vgtools.tasks.dispatch import predictions
from vgtools.tasks.finetune import LOSS, Batch, Learner, Split
from vgtools.tasks.kinds import KINDS
from vgtools.tasks.table import Task

HEAD = "head.safetensors"  # beside a saved network: the linear layer
_STD = 0.02  # of its weights


class TowerTuner(nn.Module):
    """A text tower under a linear layer for a task, and its loss.

    It reads both texts of a pair as one sequence, START a END START b END, and their last END, the
    only token that has seen all of them; of tags and SQuAD each token.

    Args:
        encoder: the tower, as `load_teacher` returns it.
        task: what is learnt.
        dtype: of matrix products (autocast); weights stay float32.

    Source: Hsu et al. 2022 (XDBERT), section 3 and table 1, CLIP-T.
    Deviation: the paper does not say which state its row reads. transformers' `text_embeds` is that
        of the first END, which has never seen the second text.
    """

    segments = False  # a tower does not number the texts of a pair

    def __init__(self, encoder: Encoder, task: Task, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.tower = encoder.model
        self.kind = task.kind
        self.dtype = dtype
        self.pad = encoder.suffix[-1]  # any id will do: nothing reads it
        outputs = {"choice": 1, "regress": 1, "span": 2}.get(task.kind, len(task.labels))
        self.head = nn.Linear(encoder.width, outputs)
        nn.init.normal_(self.head.weight, std=_STD)
        nn.init.zeros_(self.head.bias)

    def outputs(self, batch: Batch) -> Tensor:
        """Return (B, C) logits or scores; tags and SQuAD: (B, T, C), of every token."""
        with autocast(batch.ids.device, self.dtype):
            states = token_states(self.tower, batch.ids)  # choices (B, C, T, E), else (B, T, E)
            if self.kind not in ("tag", "span"):
                last = (batch.mask.sum(-1) - 1)[..., None, None]
                states = states.take_along_dim(last, -2).squeeze(-2)
            logits: Tensor = self.head(states).float()
        return logits.squeeze(-1) if self.kind == "choice" else logits

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of the task's kind."""
        return {LOSS: KINDS[self.kind].loss(self.outputs(batch), batch) / batch.whole}


def tower_learner(
    task: Task,
    ref: str,
    settings: Mapping[str, Any],
    device: torch.device,
    *,
    offline: bool = False,
) -> Learner:
    """Return what learns a task of texts: a CLIP text tower alone.

    Args:
        task: to learn.
        ref: of the tower, or of a CLIP.
        settings: of the fine-tuning.
        device: where it learns.
        offline: never connect.
    """

    def new(seed: int) -> tuple[TowerTuner, Encoder]:
        encoder = load_teacher(ref, offline=offline)
        torch.manual_seed(seed)
        return TowerTuner(encoder, task, pick_dtype(settings["dtype"])), encoder

    def ask(tuner: TowerTuner, split: Split) -> list[dict[str, Any]]:
        outputs = finetune.predict(tuner, split.inputs, 4 * settings["batch_size"], device)
        threshold = settings["null_threshold"]
        return predictions(task, split.examples, split.inputs, outputs, threshold)

    return Learner(
        new=new,
        read=lambda name, path, tuner, encoder: finetune.read_split(
            task, name, path, tuner, encoder, settings
        ),
        collate=lambda tuner, inputs, units, part, parts: finetune.collate(
            inputs, units, tuner.pad, tuner.segments, device, part, parts
        ),
        predict=ask,
        save=save_tower,
    )


def save_tower(tuner: TowerTuner, encoder: Encoder, folder: Path) -> None:
    """Write a network that learnt a task: the tower as transformers opens it, and the linear layer.

    The layer is in a file of its own, as transformers has no such network.
    """
    from safetensors.torch import save

    save_pretrained(folder, dataclasses.replace(encoder, fingerprint=fingerprint(tuner)))
    weights = {name: tensor.detach().cpu() for name, tensor in tuner.head.state_dict().items()}
    atomic_write(folder / HEAD, save(weights))


def open_tower(folder: str, task: Task) -> tuple[TowerTuner, Encoder]:
    """Open what `save_tower` wrote, on the CPU, in evaluation mode, with the tower and tokenizer.

    Raises:
        DataError: as `load_teacher`; or the linear layer is missing (66), damaged, or of another
            task (65).
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    encoder = load_teacher(folder, offline=True)
    tuner = TowerTuner(encoder, task)
    file = Path(folder, HEAD)
    with file_errors(file, reading=True):
        data = file.read_bytes()
    try:
        weights = load(data)
    except SafetensorError as error:
        raise DataError(f"is not a readable safetensors file: {error}", file) from None
    expected = tuner.head.state_dict()
    missing = [k for k, t in expected.items() if k not in weights or weights[k].shape != t.shape]
    check_whole(weights, missing, file)
    tuner.head.load_state_dict({name: weights[name] for name in expected})
    return tuner.eval(), encoder
