"""Fine-tuning: a transformers model under the head of a task learns it, seed by seed.

The heads are transformers' own (sequence classification, question answering, multiple choice), so that it opens what is saved.

Axes: B units a batch (see `vgtools.tasks.sequences`), T tokens, C classes or choices, U units of a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.checkpoint import Encoder, fingerprint, load_with_head, save_pretrained
from vgtools.errors import is_out_of_memory
from vgtools.io import DataError, Exit, Progress, Stop, atomic_write, dumps, sha256_file
from vgtools.steps import ahead
from vgtools.tasks.dispatch import encode, majority, predictions, read_examples, score_predictions
from vgtools.tasks.examples import Example, ReadStats
from vgtools.tasks.kinds import KINDS
from vgtools.tasks.predictions import with_answers
from vgtools.tasks.sequences import Inputs, Schedule, plan_epoch, schedule
from vgtools.tasks.table import Task
from vgtools.train import Batches, TrainConfig, TrainingRun, TrainState, halves, train

Array = np.ndarray[Any, Any]

LOSS = "task"
_SECONDS = 600  # between checkpoints inside an epoch


# ---------------------------------------------------------------------------------------------------------------------- batches


class Batch(NamedTuple):
    """Units to learn from; the loss is the sum over them, divided by `whole`, so that halves add up to the whole."""

    ids: Tensor  # (B, T) int64; choices (B, C, T)
    mask: Tensor  # likewise, 0 at padding
    segments: Tensor | None  # likewise, 1 in the second text
    labels: Tensor | None  # (B,) or (B, 2)
    whole: int


def collate(inputs: Inputs, units: Array, pad: int, segments: bool, device: torch.device | str = "cpu") -> Batch:
    """Build a batch, padded to its own longest sequence."""
    each = inputs.each
    rows = (units[:, None] * each + np.arange(each)).ravel()
    starts, lengths = inputs.starts[rows], np.diff(inputs.starts)[rows]
    place = np.arange(lengths.max())
    mask = place < lengths[:, None]  # (B * C, T)
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = inputs.ids[(starts[:, None] + place)[mask]]
    kinds = (place >= inputs.second[rows][:, None]) & mask

    def tensor(array: Array) -> Tensor:
        shaped = array.reshape(-1, each, array.shape[1]) if each > 1 else array
        return torch.from_numpy(shaped.astype(np.int64)).to(device, non_blocking=True)

    labels = None if inputs.labels is None else torch.from_numpy(inputs.labels[units]).to(device)
    return Batch(tensor(ids), tensor(mask), tensor(kinds) if segments else None, labels, len(units))


def make_batches(lengths: Array, build: Callable[[Array], Any], settings: Mapping[str, Any], seed: int, steps: int) -> Batches:
    """Return the batches of an epoch as `train` wants them, up to the last step, built in a thread ahead.

    Args:
        lengths: (U,) tokens of each unit.
        build: makes a batch of units.
        settings: `batch_size` and `window`, see `plan_epoch`.
        seed: of the order.
        steps: of all epochs together.
    """

    def batches(epoch: int, first: int) -> Iterator[Any]:
        plan = plan_epoch(lengths, settings["batch_size"], seed, epoch, settings["window"])
        yield from map(build, plan[first : max(0, steps - epoch * len(plan))])

    return lambda epoch, first: ahead(batches(epoch, first))


def train_config(settings: Mapping[str, Any], plan: Schedule, seed: int, epochs: int, clip: float = 1.0) -> TrainConfig:
    """Return the optimiser's settings; the warm-up is a share of the steps.

    Source: Tan & Bansal 2020, appendix A.1; no decay, eps and clipping are those of its released code.
    """
    return TrainConfig(
        epochs=epochs,
        steps=plan.steps,
        lr=settings["lr"],
        schedule="linear",
        warmup=round(settings["warmup"] * plan.steps),
        weight_decay=settings["weight_decay"],
        clip=clip,
        seed=seed,
        log_every=1,
    )


# ---------------------------------------------------------------------------------------------------------------------- network


class FineTuner(nn.Module):
    """A transformers model with the head of a task, and its loss.

    Args:
        net: for sequence classification, question answering or multiple choice.
        kind: of the task.
        dtype: numbers that the products are computed with (autocast); weights stay float32.
    """

    def __init__(self, net: Any, kind: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.net, self.kind, self.dtype = net, kind, dtype
        self.pad = int(net.config.pad_token_id or 0)
        self.segments = has_segments(net.config)

    def outputs(self, batch: Batch) -> Tensor:
        """Return (B, C) logits or scores; SQuAD: (B, T, 2), how well each token begins and ends the answer."""
        given = {"input_ids": batch.ids, "attention_mask": batch.mask}
        if batch.segments is not None:
            given["token_type_ids"] = batch.segments
        kind = batch.ids.device.type
        with torch.autocast(kind, self.dtype) if self.dtype != torch.float32 else contextlib.nullcontext():
            found = self.net(**given)
        if "logits" in found:
            return found.logits.float()  # type: ignore[no-any-return]
        return torch.stack([found.start_logits, found.end_logits], -1).float()

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of the task's kind."""
        return {LOSS: KINDS[self.kind].loss(self.outputs(batch), batch) / batch.whole}


def has_segments(config: Any) -> bool:
    """Say whether an encoder tells the second text of a pair by a segment number."""
    return int(getattr(config, "type_vocab_size", 0) or 0) > 1


def new_tuner(
    task: Task, ref: str, seed: int, *, dtype: torch.dtype = torch.float32, offline: bool = False
) -> tuple[FineTuner, Encoder]:
    """Return a network to fine-tune, its head drawn by the seed, and the encoder in it.

    Raises:
        DataError: as `load_encoder`.
    """
    head = KINDS[task.kind].head(task)
    assert head is not None
    network, settings = head
    encoder = load_with_head(ref, network, seed, settings, offline=offline)
    return FineTuner(encoder.model, task.kind, dtype), encoder


# ------------------------------------------------------------------------------------------------------------------- evaluation


@torch.no_grad()
def outputs_of(
    tuner: nn.Module, lengths: Array, build: Callable[[Array], Any], batch_size: int
) -> Iterator[tuple[Array, Array]]:
    """Yield (units, their outputs), each unit once, long ones first. The batch is halved when memory runs out.

    Args:
        tuner: has a method `outputs`, batch -> Tensor.
        lengths: (U,) tokens of each unit.
        build: makes a batch of units.
        batch_size: most units a batch.

    Raises:
        DataError: an output is no number, or memory ran out with a single unit (exit 70).
    """
    was_training = tuner.training
    tuner.eval()
    order, size, at = np.argsort(-lengths, kind="stable"), batch_size, 0
    while at < len(order):
        units = order[at : at + size]
        try:
            part = tuner.outputs(build(units)).cpu().numpy()  # type: ignore[operator]
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if len(units) == 1:
                why = f"out of memory with one sequence of {int(lengths[units[0]])} tokens"
                why += "; a smaller --max-length (with pictures: or --boxes) needs less"
                raise DataError(why, code=Exit.CANNOT_GO_ON) from None
            size = len(units) // 2
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            continue
        if not np.isfinite(part).all():
            raise DataError("the model's outputs are no longer numbers; a lower --lr usually helps", code=Exit.CANNOT_GO_ON)
        yield units, part
        at += len(units)
    tuner.train(was_training)


def predict(tuner: FineTuner, inputs: Inputs, batch_size: int, device: torch.device | str = "cpu") -> Array:
    """Return (U, C) outputs of every unit; SQuAD: (T, 2), of every token.

    Raises:
        DataError: as `outputs_of`.
    """
    found, lengths = np.empty(0), inputs.lengths
    for units, part in outputs_of(
        tuner, lengths, lambda units: collate(inputs, units, tuner.pad, tuner.segments, device), batch_size
    ):
        if not found.size:
            found = np.empty((len(inputs.ids) if inputs.spans is not None else len(inputs), part.shape[-1]), np.float32)
        if inputs.spans is not None:
            for unit, row in zip(units.tolist(), part, strict=True):
                found[inputs.starts[unit] : inputs.starts[unit + 1]] = row[: lengths[unit]]
        else:
            found[units] = part
    return found


def summarise(seeds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return median, mean, standard deviation (of a sample; 0 of one seed), least and most of every metric over the seeds."""
    found = {}
    for name in next(iter(seeds.values())):
        if name == "total" or name.startswith("total_"):
            continue
        values = np.array([scores[name] for scores in seeds.values()])
        spread = float(values.std(ddof=1)) if len(values) > 1 else 0.0
        found[name] = {"median": float(np.median(values)), "mean": float(values.mean()), "std": spread}
        found[name] |= {"min": float(values.min()), "max": float(values.max())}
    return found


# ------------------------------------------------------------------------------------------------------------------- seeds


@dataclass
class Split:
    """The examples of one file, and their tokens."""

    path: str
    examples: list[Example]
    stats: ReadStats
    digest: str  # sha256 of the examples
    inputs: Any  # Inputs, or what a system with pictures makes of them

    def facts(self) -> dict[str, Any]:
        """Return what run.json says about it."""
        inputs = self.inputs
        return {
            "file": self.path, "examples": len(self.examples), "balance": self.stats.balance(), "units": len(inputs),
            "tokens": len(inputs.ids), "cut": inputs.cut, "unlearnable": inputs.unlearnable,
        }  # fmt: skip


def read_split(task: Task, name: str, path: str, tuner: Any, encoder: Encoder, settings: Mapping[str, Any]) -> Split:
    """Read the file of a split: `train` to learn from, `test…` with labels or without.

    Raises:
        DataError: as `read_examples` and `encode`.
    """
    stats, digest = ReadStats(), hashlib.sha256()
    found = list(islice(read_examples(task, path, unlabelled=name.startswith("test"), stats=stats), settings["limit"]))
    for example in found:
        digest.update(repr(example).encode())
    inputs = encode(
        task, found, encoder.tokenizer, max_length=settings["max_length"], stride=settings["stride"], learn=name == "train",
        segments=tuner.segments, file=path,
    )  # fmt: skip
    return Split(path, found, stats, digest.hexdigest(), inputs)


class FineTuning:
    """One task, one encoder, several seeds: a generator of records over a run directory.

    Args:
        run: its `config` holds the settings, and says which seeds are done.
        task: to learn.
        splits: by name; `train` and `dev` among them.
        words: which encoder it is: `ref`, `fingerprint`, `tokenizer`.
        new: makes the network of a seed, and the encoder in it.
        device: where it learns.
        stop: asks to stop.
        bar: counts steps.
    """

    def __init__(
        self,
        run: TrainingRun,
        task: Task,
        splits: Mapping[str, Split],
        words: Mapping[str, Any],
        new: Callable[[int], tuple[Any, Encoder]],
        device: torch.device,
        stop: Stop,
        bar: Progress,
    ) -> None:
        self.run, self.task, self.splits, self.words, self.new = run, task, splits, words, new
        self.device, self.stop, self.bar = device, stop, bar
        self._kept = list[dict[str, Any]]()  # answers of the epoch that is kept, if it was in this process
        config = run.config
        self.plan = schedule(len(splits["train"].inputs), config["batch_size"], config["epochs"], config["steps"])
        bar.total = self.plan.steps * len(config["seeds"])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Train the seeds that are left, yield a record an epoch, and write the run.

        Raises:
            DataError: a signal asked to stop (75, 130; a checkpoint is written), or as `train`.
        """
        run = self.run
        run.state.notes.setdefault("seeds", {})
        for number, seed in enumerate(run.config["seeds"]):
            if str(seed) in run.state.notes["seeds"]:
                continue
            if run.state.notes.get("seed") != seed:
                state = TrainState()
                state.saved = run.state.saved
                state.notes = run.state.notes | {"seed": seed, "score": None, "sum": 0.0, "count": 0}
                run.state = state  # lets go of the network and the optimiser of the seed before
            self._kept = []
            self.bar.advance(number * self.plan.steps + run.state.step - self.bar.done)
            tuner, encoder = self.new(seed)
            yield from self._learn(tuner.to(self.device), seed)
            run.state.notes["seeds"][str(seed)] = self._finish(tuner, encoder, seed)
            run.save()
            self.stop.check()
        run.finish(self._facts(), weights={})

    def _learn(self, tuner: Any, seed: int) -> Iterator[dict[str, Any]]:
        """Train one seed to its end."""
        run, state, config = self.run, self.run.state, self.run.config

        def stale() -> bool:
            best = [record["best"] for record in run.records if record["seed"] == seed]
            return bool(config["patience"] and best and not any(best[-config["patience"] :]))

        plan = train_config(config, self.plan, seed, state.epoch if stale() else self.plan.epochs, self.task.hyper.clip)
        inputs = self.splits["train"].inputs
        batches = make_batches(inputs.lengths, partial(self.batch, tuner, inputs), config, seed, self.plan.steps)
        saved = time.monotonic()
        for record in train(tuner, batches, plan, weights={LOSS: 1.0}, state=state, halve=halves):
            if not record["end"]:
                state.notes["sum"] += record["loss"]
                state.notes["count"] += 1
                self.bar.advance(1)
                if self.stop.signal is not None or time.monotonic() - saved > _SECONDS:
                    run.save()
                    saved = time.monotonic()
                self.stop.check()
                continue
            rows = self.ask(tuner, "dev")
            scores = self._score("dev", rows)
            noted = {"seed": seed, "epoch": record["epoch"], "step": record["step"], "lr": record["lr"]}
            noted |= {"loss": state.notes["sum"] / max(1, state.notes["count"]), **scores}
            state.notes |= {"sum": 0.0, "count": 0}
            noted = run.end_epoch(tuner, noted, scores["headline"] if config["keep"] == "best" else record["epoch"])
            self._kept = rows if noted["best"] else self._kept
            yield noted
            saved = time.monotonic()
            self.stop.check()
            if stale():
                return

    def _finish(self, tuner: Any, encoder: Encoder, seed: int) -> dict[str, float]:
        """Write predictions and model of the epoch that is kept; return its scores."""
        tuner.load_state_dict(self.run.best_weights())
        folder = self.run.path / f"seed-{seed}"
        folder.mkdir(exist_ok=True)
        scores: dict[str, float] = {}
        for split in self.splits:
            if split != "train":
                rows = self._kept if split == "dev" and self._kept else self.ask(tuner, split)
                scores |= self._score(split, rows)
                name = "predictions.jsonl" if split == "dev" else f"predictions.{split}.jsonl"
                atomic_write(folder / name, b"".join(map(dumps, rows)))
                self.stop.check()
        self.write_model(tuner, encoder, folder / "model")
        return scores

    # What a system with pictures does otherwise:

    def batch(self, tuner: Any, inputs: Any, units: Array) -> Any:
        """Return a batch of units."""
        return collate(inputs, units, tuner.pad, tuner.segments, self.device)

    def write_model(self, tuner: Any, encoder: Encoder, folder: Path) -> None:
        """Write a network that learnt the task."""
        save_pretrained(folder, dataclasses.replace(encoder, fingerprint=fingerprint(tuner.net)))

    def ask(self, tuner: Any, split: str) -> list[dict[str, Any]]:
        """Return the predictions of a split."""
        part, config = self.splits[split], self.run.config
        outputs = predict(tuner, part.inputs, 4 * config["batch_size"], self.device)
        return predictions(self.task, part.examples, part.inputs, outputs, config["null_threshold"])

    def _score(self, split: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the scores of a split, none where it has no labels; beside those of dev they carry its name."""
        if any("label" not in row for row in rows):
            return {}
        threshold = self.run.config["null_threshold"] if self.task.name == "squad-2.0" else None
        scores = score_predictions(self.task, with_answers(rows), threshold=threshold)
        return scores if split == "dev" else {f"{name}_{split.removeprefix('dev_')}": x for name, x in scores.items()}

    def _facts(self) -> dict[str, Any]:
        """Return what run.json says beside the settings."""
        run, notes = self.run, self.run.state.notes
        written = sorted(run.path.glob("seed-*/predictions*.jsonl"))
        return {
            "task": self.task.name,
            "encoder": dict(self.words),
            "seeds": notes["seeds"],
            "summary": summarise(notes["seeds"]),
            "majority": majority(self.task, self.splits["train"].examples, self.splits["dev"].examples),
            "data": {name: part.facts() for name, part in self.splits.items()},
            "steps": self.plan.steps,
            "pieces": notes.get("pieces", 1),  # that a lack of memory cut each batch into
            "predictions": {str(path.relative_to(run.path)): sha256_file(path) for path in written},
        }
