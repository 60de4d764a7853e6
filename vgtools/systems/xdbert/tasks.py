"""Downstream tasks on the full model (student, teacher, layers over both), or on a tower alone.

Axes: B units, C choices of a unit, T tokens, S blocks of a sequence, t tokens of a block, E width
of the tower's projection.

Source: Hsu et al. 2022 (XDBERT), appendix C.2 and table 5; `examples/xdbert` has the rates.
Deviation: the paper does not explain its "learning rate decay of 0.9", and the published code has
    none; the rate falls linearly to 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.models.clip import (
    block_states,
    clip_blocks,
    ends_of,
    load_teacher,
    most_blocks,
    stack_blocks,
    token_states,
)
from vgtools.models.devices import to_device
from vgtools.models.encoder import Encoder, save_pretrained
from vgtools.models.precision import autocast
from vgtools.models.references import fingerprint, write_safetensors
from vgtools.models.runs import save_run
from vgtools.systems.xdbert.model import KIND, XDBertCrossModal, XDBertRun, open_xdbert
from vgtools.tasks import finetune
from vgtools.tasks.examples import Example
from vgtools.tasks.finetune import Learner, Split, TaskBatch
from vgtools.tasks.sequences import CHUNK, InputsWithImages, TaskInputs
from vgtools.tasks.table import Task
from vgtools.text.tokens import row_starts

HEAD = "head.safetensors"  # the linear layer, next to a saved tower
_FULL = ("classify", "regress", "choice")  # kinds of task that the full model learns


class TowerTuner(finetune.TaskNetwork):
    """A text tower under a linear layer for a task, and its loss.

    It reads both texts of a pair as one sequence, START a END START b END, and the layer reads
    their last END, the only token that has seen all of them; for tags and SQuAD it reads each
    token.

    Args:
        encoder: the tower, as `load_teacher` returns it.
        task: the task to learn.
        dtype: type of matrix products (autocast); weights stay float32.

    Source: Hsu et al. 2022 (XDBERT), section 3 and table 1, CLIP-T.
    Deviation: the paper does not say which state its row reads. transformers' `text_embeds` belongs
        to the first END, which has never seen the second text.
    """

    def __init__(self, encoder: Encoder, task: Task, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(encoder.model.config, task.kind, dtype)
        self.tower = encoder.model
        self.pad = encoder.suffix[-1]  # Any id will do, because nothing reads it.
        self.segments = False  # a tower does not number the texts of a pair
        self.head = finetune.linear_head(encoder.width, task)

    def outputs(self, batch: TaskBatch) -> Tensor:
        """Return (B, C) logits or scores; tags and SQuAD: (B, T, C), of every token."""
        with autocast(batch.ids.device, self.dtype):
            states = token_states(self.tower, batch.ids)  # choices (B, C, T, E), else (B, T, E)
            if self.kind not in ("tag", "span"):
                # Attention in the tower is causal: padding after the last END does not change it.
                last = (batch.mask.sum(-1) - 1)[..., None, None]
                states = states.take_along_dim(last, -2).squeeze(-2)
            logits: Tensor = self.head(states).float()
        return logits.squeeze(-1) if self.kind == "choice" else logits


class TowerLearner(Learner):
    """Learner of tasks of texts: a CLIP text tower alone."""

    def new(self, seed: int) -> tuple[TowerTuner, Encoder]:
        """Return the tower under a linear layer that is drawn by the seed."""
        encoder = load_teacher(self.ref)
        torch.manual_seed(seed)
        return TowerTuner(encoder, self.task, self.dtype), encoder

    def save(self, tuner: TowerTuner, encoder: Encoder, folder: Path) -> None:
        """Write the tower as transformers opens it, and the linear layer.

        The layer is in a file of its own, as transformers has no such network.
        """
        save_pretrained(folder, dataclasses.replace(encoder, fingerprint=fingerprint(tuner)))
        write_safetensors(folder / HEAD, tuner.head.state_dict())


# ----------------------------------------------------------------------------------- the full model


@dataclass(frozen=True)
class FullInputs(InputsWithImages):
    """The examples of a file as tokens of the student, and as blocks of the teacher.

    Source: Hsu et al. 2022, appendix B: the texts of a pair share no block.
    """

    tower_ids: Array  # (N,) int64, ids of all blocks, their marks included
    block_starts: Array  # (K + 1,) where each block starts
    first_blocks: Array  # (sequences + 1,) the first block of each sequence
    tower_cut: int  # texts of which the teacher does not read all
    room: int  # tokens that it reads of a text

    @property
    def unlearnable(self) -> int:
        """The number of examples that nothing can be learned from."""
        return self.text.unlearnable

    def report(self, max_length: int) -> Iterator[str]:
        """Yield the lines for the user."""
        yield from self.text.report(max_length)
        if self.tower_cut:
            yield f"the teacher reads {self.room} tokens of a text: {self.tower_cut} are cut"

    def blocks(self, sequence: int) -> list[Array]:
        """Return the blocks of a sequence."""
        numbers = range(self.first_blocks[sequence], self.first_blocks[sequence + 1])
        return [self.tower_ids[self.block_starts[n] : self.block_starts[n + 1]] for n in numbers]


def texts_of(example: Example) -> list[tuple[str, ...]]:
    """Return the texts of each sequence of an example: alone, a pair, or one pair per choice."""
    if example.choices:
        return [(example.text, choice) for choice in example.choices]
    return [(example.text,) if example.pair is None else (example.text, example.pair)]


def with_blocks(
    text: TaskInputs, examples: Sequence[Example], teacher: Encoder, max_length: int
) -> FullInputs:
    """Return inputs with the blocks that the teacher reads of the same texts, whole.

    Args:
        text: the student's tokens.
        examples: examples of the file.
        teacher: its tokenizer and its marks.
        max_length: tokens of the student; decides how many blocks a text has.

    Source: Hsu et al. 2022, appendix B: 2 blocks per text for 128 tokens.
    """
    most = most_blocks(max_length)
    room = most * teacher.max_tokens
    blocks = list[Array]()
    counts = list[int]()
    cut = 0
    for at in range(0, len(examples), CHUNK):
        sequences = [texts for e in examples[at : at + CHUNK] for texts in texts_of(e)]
        flat = [part for texts in sequences for part in texts]
        encoded = iter(teacher.tokenizer.encode_batch(flat, add_special_tokens=False))
        for texts in sequences:
            before = len(blocks)
            for _ in texts:
                ids = next(encoded).ids
                cut += len(ids) > room
                blocks += clip_blocks(ids, most, ends_of(teacher), teacher.max_tokens)
            counts.append(len(blocks) - before)
    starts = row_starts(map(len, blocks))
    return FullInputs(text, np.concatenate(blocks), starts, row_starts(counts), cut, room)


class FullBatch(NamedTuple):
    """Units to learn from, with the teacher's blocks; see `vgtools.tasks.finetune.TaskBatch`."""

    ids: Tensor  # (B, T) int64; choices (B, C, T)
    mask: Tensor
    segments: Tensor | None
    labels: Tensor | None
    blocks: Tensor  # (B, S, t) int64; choices (B, C, S, t)
    lengths: Tensor  # (B, S) int64, 0 for no block; choices (B, C, S)
    whole: float


class FullTuner(finetune.TaskNetwork):
    """Student, teacher and cross-modal layers under a linear layer for a task, and its loss.

    Args:
        run: run of `vg pretrain xdbert`, or a model that learned another task; its pooler also
            serves this task.
        task: a task of sentences, pairs or choices.
        dtype: type of matrix products (autocast); weights stay float32.

    Raises:
        DataError: a task of another kind (78).

    Source: Hsu et al. 2022, appendix C.3 and table 8.
    """

    def __init__(self, run: XDBertRun, task: Task, dtype: torch.dtype = torch.float32) -> None:
        config = run.student.model.config
        super().__init__(config, task.kind, dtype)
        if task.kind not in _FULL:
            why = f"{task.name} asks for more than one answer per text, the full model"
            why = f"{why} learns classes, scores and choices; leave out --full"
            raise DataError(why, code=Exit.CONFIG)
        self.config = run.config
        self.student = run.student.model.requires_grad_(True)
        self.teacher = run.teacher.model.requires_grad_(True)
        self.cross: XDBertCrossModal = run.cross
        self.dropout = nn.Dropout(float(config.hidden_dropout_prob))
        self.head = finetune.linear_head(int(config.hidden_size), task)

    def outputs(self, batch: FullBatch) -> Tensor:
        """Return (B, C) logits, scores or choices."""
        each = batch.ids.shape[1] if self.kind == "choice" else 1

        def rows(table: Tensor) -> Tensor:
            return table.flatten(0, 1) if self.kind == "choice" else table

        given = {"input_ids": rows(batch.ids), "attention_mask": rows(batch.mask)}
        if batch.segments is not None:
            given["token_type_ids"] = rows(batch.segments)
        with autocast(batch.ids.device, self.dtype):
            states = self.student(**given).last_hidden_state
            seen, seen_mask = block_states(self.teacher, rows(batch.blocks), rows(batch.lengths))
            mask = rows(batch.mask).bool()
            # The head reads the student's stream alone, so the teacher's last layer is not
            # computed.
            states, _ = self.cross(states, mask, seen, seen_mask, both=False)
            logits: Tensor = self.head(self.dropout(self.cross.pool(states))).float()
        return logits.view(-1, each) if self.kind == "choice" else logits


class FullLearner(Learner):
    """Learner of tasks of texts: the full model of a run.

    The run is a run of `vg pretrain xdbert`, or a model that `save` wrote.

    Source: Hsu et al. 2022, appendix C.3 and table 8.
    """

    teacher: Encoder  # with the tokenizer; the same for every seed

    def new(self, seed: int) -> tuple[FullTuner, Encoder]:
        """Return the model, its linear layer drawn by the seed, and the student."""
        run = open_xdbert(self.ref)
        self.teacher = run.teacher
        torch.manual_seed(seed)
        tuner = FullTuner(run, self.task, self.dtype)
        student = dataclasses.replace(run.student, ref=self.ref, fingerprint=run.run.fingerprint)
        return tuner, student

    def read(self, name: str, path: str, tuner: FullTuner, encoder: Encoder) -> Split:
        """Return the examples of a file with the teacher's blocks."""
        split = super().read(name, path, tuner, encoder)
        inputs = with_blocks(split.inputs, split.examples, self.teacher, self.max_length)
        return dataclasses.replace(split, inputs=inputs)

    def collate(
        self, tuner: FullTuner, inputs: FullInputs, units: Array, part: int = 0, parts: int = 1
    ) -> FullBatch:
        """Return a part of the batch of a step, with the teacher's blocks."""
        text = super().collate(tuner, inputs.text, units, part, parts)
        each = inputs.text.each
        numbers = (units[part::parts, None] * each + np.arange(each)).ravel().tolist()
        tables = stack_blocks([inputs.blocks(number) for number in numbers])
        blocks, lengths = (to_device(table, self.device) for table in tables)
        if each > 1:
            blocks, lengths = (table.unflatten(0, (-1, each)) for table in (blocks, lengths))
        ids, mask, segments, labels, whole = text
        return FullBatch(ids, mask, segments, labels, blocks, lengths, whole)

    def save(self, tuner: FullTuner, encoder: Encoder, folder: Path) -> None:
        """Write a network that learned a task, in the form of a run of `vg pretrain xdbert`.

        `encoder/` is the student and `teacher/` the tower, as transformers opens them;
        `xdbert.safetensors` has the layers, the pooler and, as `head`, the linear layer of the
        task.
        """

        def trained(network: Encoder, model: Any) -> Encoder:
            return dataclasses.replace(network, model=model, fingerprint=fingerprint(model))

        state = tuner.state_dict()
        own = {name: state[name] for name in state if name.startswith(("cross.", "head."))}
        info = {KIND: dataclasses.asdict(tuner.config), "task": self.task.name}
        teacher = trained(self.teacher, tuner.teacher)
        student = trained(encoder, tuner.student)
        save_run(folder, KIND, own, info, student, more={"teacher": teacher})
