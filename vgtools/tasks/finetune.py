"""Fine-tuning: a transformers model under the head of a task learns it, seed by seed.

The heads are transformers' own (sequence classification, question answering, multiple choice), so
that it opens the saved models.

Axes: B units per batch (see `vgtools.tasks.sequences`), T tokens, C classes or choices, U units of
a file.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, sha256_file
from vgtools.io.own import atomic_write
from vgtools.models.devices import to_device
from vgtools.models.encoder import Encoder, load_with_head, save_pretrained
from vgtools.models.layers import draw_linear_layers
from vgtools.models.memory import in_batches
from vgtools.models.precision import autocast
from vgtools.models.references import fingerprint, pick_dtype
from vgtools.tasks import dispatch
from vgtools.tasks.dispatch import encode, majority, predictions, score_predictions
from vgtools.tasks.examples import Example, ReadStats, hash_of
from vgtools.tasks.kinds import KINDS
from vgtools.tasks.predictions import with_answers
from vgtools.tasks.sequences import InputsWithImages, TaskInputs
from vgtools.tasks.table import Task
from vgtools.text.tokens import tokenizer_fingerprint
from vgtools.training import processes
from vgtools.training.loop import Batches, halves
from vgtools.training.session import Session
from vgtools.training.steps import plan_steps, prefetch, steps_by_length, train_config

LOSS = "task"
_STD = 0.02  # standard deviation of the weights of a new linear layer


class TaskBatch(NamedTuple):
    """Units to learn from.

    The loss is the sum over them, divided by `whole`, so that the losses of halves add up, and the
    mean of the losses of a step's parts is the step's loss.
    """

    ids: Tensor  # (B, T) int64; choices (B, C, T)
    mask: Tensor  # likewise, 0 at padding
    segments: Tensor | None  # likewise, 1 in the second text
    labels: Tensor | None  # (B,), (B, 2), or (B, T) of tokens
    whole: float


class BatchWithImages(NamedTuple):
    """Units to learn from, with their images; see `TaskBatch`."""

    ids: Tensor  # (B, T) int64; choices (B, C, T)
    mask: Tensor
    segments: Tensor | None
    labels: Tensor | None
    slots: Tensor  # (B, S, D) float32; S is 0 without images
    slot_mask: Tensor  # (B, S) bool
    whole: float


def with_images(text: TaskBatch, slots: Tensor, slot_mask: Tensor) -> BatchWithImages:
    """Return a batch of texts with their images."""
    ids, mask, segments, labels, whole = text
    return BatchWithImages(ids, mask, segments, labels, slots, slot_mask, whole)


def collate(
    inputs: TaskInputs,
    units: Array,
    pad: int,
    segments: bool,
    device: torch.device | str = "cpu",
    part: int = 0,
    parts: int = 1,
) -> TaskBatch:
    """Build a batch, padded to its own longest sequence.

    Args:
        units: (U,) units of a step.
        segments: whether the encoder distinguishes the texts of a pair.
        part: number of the part to build, in a step that several processes share.
        parts: number of parts; at most U.
    """
    # The weight is the whole step's, so that the mean over processes is the mean over its items.
    # Units are neighbours in length: every `parts`-th gives all processes about the same work.
    whole = inputs.weight(units) / parts
    units = units[part::parts]
    each = inputs.each
    rows = (units[:, None] * each + np.arange(each)).ravel()
    starts = inputs.starts[rows]
    lengths = np.diff(inputs.starts)[rows]
    place = np.arange(lengths.max())
    mask = place < lengths[:, None]  # (B * C, T)
    ids = np.full(mask.shape, pad, np.int64)
    ids[mask] = inputs.ids[(starts[:, None] + place)[mask]]
    second = (place >= inputs.second[rows][:, None]) & mask

    def tensor(array: Array) -> Tensor:
        shaped = array.reshape(-1, each, array.shape[1]) if each > 1 else array
        return to_device(shaped.astype(np.int64), device)

    targets = inputs.targets(units)
    labels = None if targets is None else to_device(targets, device)
    return TaskBatch(tensor(ids), tensor(mask), tensor(second) if segments else None, labels, whole)


def make_batches(
    cut: Callable[[int], Sequence[Array]], build: Callable[[Array], Any], steps: int
) -> Batches:
    """Return the batches of an epoch as `train` expects them, up to the last step, prefetched.

    Args:
        cut: epoch -> the units of each of its steps.
        build: a batch of units.
        steps: number in all epochs together.
    """

    def batches(epoch: int, first: int) -> Iterator[Any]:
        units = cut(epoch)
        yield from map(build, units[first : max(0, steps - epoch * len(units))])

    return lambda epoch, first: prefetch(batches(epoch, first))


class TaskNetwork(nn.Module):
    """A network under the head of a task, and its loss.

    Args:
        config: transformers' configuration of its text encoder.
        kind: the task's kind.
        dtype: type that the products are computed in (autocast); weights stay float32.
    """

    def __init__(self, config: Any, kind: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        self.dtype = dtype
        self.pad = int(config.pad_token_id or 0)
        # Whether the second text of a pair is marked with a segment number.
        self.segments = int(getattr(config, "type_vocab_size", 0) or 0) > 1

    def outputs(self, batch: Any) -> Tensor:
        """Return the outputs of the head, in the form of the task's kind."""
        raise NotImplementedError

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return the loss of the task's kind."""
        return {LOSS: KINDS[self.kind].loss(self.outputs(batch), batch) / batch.whole}


class FineTuner(TaskNetwork):
    """A transformers model with the head of a task, and its loss.

    Args:
        net: for sequence classification, question answering or multiple choice.
        dtype: numbers that the products are computed with (autocast); weights stay float32.
    """

    def __init__(self, net: Any, kind: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(net.config, kind, dtype)
        self.net = net

    def outputs(self, batch: TaskBatch) -> Tensor:
        """Return (B, C) logits or scores; (B, T, C) for tags.

        For SQuAD it is (B, T, 2), each token as start and end of the answer.
        """
        given = {"input_ids": batch.ids, "attention_mask": batch.mask}
        if batch.segments is not None:
            given["token_type_ids"] = batch.segments
        with autocast(batch.ids.device, self.dtype):
            made = self.net(**given)
        if "logits" in made:
            return made.logits.float()  # type: ignore[no-any-return]
        return torch.stack([made.start_logits, made.end_logits], -1).float()


@torch.no_grad()
def outputs_of(
    tuner: nn.Module, lengths: Array, build: Callable[[Array], Any], batch_size: int
) -> Iterator[tuple[Array, Array]]:
    """Yield (units, their outputs), each unit once, long ones first.

    The batch is halved when memory runs out.

    Args:
        tuner: has a method `outputs`, batch -> Tensor.

    Raises:
        DataError: an output is NaN or infinite, or memory ran out with a single unit (exit 70).
    """
    was_training = tuner.training
    tuner.eval()

    def work(units: Array) -> Array:
        return np.asarray(tuner.outputs(build(units)).cpu().numpy())  # type: ignore[operator]

    def hint(unit: int) -> str:
        one = f"one sequence of {int(lengths[unit])} tokens"
        return f"{one}; a smaller --max-length (with pictures: or --boxes) needs less"

    for units, part in in_batches(np.argsort(-lengths, kind="stable"), batch_size, work, hint):
        if not np.isfinite(part).all():
            why = "the model's outputs are no longer numbers; a lower --lr usually helps"
            raise DataError(why, code=Exit.CANNOT_CONTINUE)
        yield units, part
    tuner.train(was_training)


def predict(
    tuner: Any,
    inputs: TaskInputs,
    batch_size: int,
    device: torch.device | str = "cpu",
    build: Callable[[Array], Any] | None = None,
) -> Array:
    """Return (U, C) outputs of every unit; for tags and SQuAD (T, C), of every token.

    Args:
        tuner: has a method `outputs`, batch -> Tensor.
        inputs: inputs to predict.
        batch_size: units per batch.
        device: where batches go.
        build: makes a batch of units; `collate` if not given.

    Raises:
        DataError: as `outputs_of`.
    """
    lengths = inputs.lengths
    by_token = inputs.by_token
    outputs = np.empty(0)

    def plain(units: Array) -> TaskBatch:
        return collate(inputs, units, tuner.pad, tuner.segments, device)

    for units, part in outputs_of(tuner, lengths, build or plain, batch_size):
        if not outputs.size:
            count = len(inputs.ids) if by_token else len(inputs)
            outputs = np.empty((count, part.shape[-1]), np.float32)
        if by_token:
            # A batch is padded to its longest unit; the outputs of padding are dropped.
            for unit, row in zip(units.tolist(), part, strict=True):
                outputs[inputs.starts[unit] : inputs.starts[unit + 1]] = row[: lengths[unit]]
        else:
            outputs[units] = part
    return outputs


def summarise(seeds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return median, mean, standard deviation, least and most of every metric over the seeds.

    The deviation is a sample's; 0 for one seed.
    """
    summary = {}
    for name in next(iter(seeds.values())):
        if name == "total" or name.startswith("total_"):
            continue
        values = np.array([scores[name] for scores in seeds.values()])
        summary[name] = {
            "median": float(np.median(values)),
            "mean": float(values.mean()),
            "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
            "min": float(values.min()),
            "max": float(values.max()),
        }
    return summary


def _asked_of(example: Example) -> tuple[Any, ...]:
    """Return all of an example that is given: everything but its id and its answer."""
    pictures = getattr(example, "images", ()), getattr(example, "span", ())
    return example.text, example.pair, example.choices, example.image, *pictures


@dataclass
class Split:
    """The examples of one file, and their tokens."""

    path: str
    examples: list[Example]
    stats: ReadStats
    digest: str  # sha256 of the examples
    inputs: Any  # Inputs, or the inputs of a system with pictures

    def facts(self) -> dict[str, Any]:
        """Return the entry of run.json about it."""
        inputs = self.inputs
        return {
            "file": self.path,
            "examples": len(self.examples),
            "sha256": hash_of(self.examples),
            "balance": self.stats.balance(),
            "units": len(inputs),
            "tokens": len(inputs.ids),
            "cut": inputs.cut,
            "unlearnable": inputs.unlearnable,
        }


def linear_head(width: int, task: Task) -> nn.Linear:
    """Return a linear layer for a task, over states (…, width), drawn as BERT's layers are."""
    outputs = {"choice": 1, "regress": 1, "span": 2}.get(task.kind, len(task.labels))
    head = nn.Linear(width, outputs)
    draw_linear_layers(head, _STD)
    return head


@dataclass
class Learner:
    """Learner of tasks of texts: a transformers model; the learners of systems are subclasses.

    Args:
        task: the task to learn.
        ref: reference of the encoder, or of the run, to start from.
        settings: settings of the fine-tuning.
        device: where it learns.
    """

    task: Task
    ref: str
    settings: Mapping[str, Any]
    device: torch.device

    # Whether `predict_kept` differs from `predict`.
    searches: ClassVar[bool] = False

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of matrix products."""
        return pick_dtype(self.settings["dtype"])

    @property
    def max_length(self) -> int:
        """The tokens that are read of a text."""
        return int(self.settings["max_length"])

    def new(self, seed: int) -> tuple[Any, Encoder]:
        """Return a network under the head of the task, drawn by the seed, and the encoder in it.

        Raises:
            DataError: as `load_encoder`.
        """
        head = KINDS[self.task.kind].head(self.task)
        assert head is not None
        network, settings = head
        encoder = load_with_head(self.ref, network, seed, settings)
        return FineTuner(encoder.model, self.task.kind, self.dtype), encoder

    def read(self, name: str, path: str, tuner: Any, encoder: Encoder) -> Split:
        """Return the examples of a split's file: `train` to learn from, `test…` with labels or
        without.

        Raises:
            DataError: as `dispatch.read_split` and `encode`.
        """
        stats = ReadStats()
        share = self.settings.get("hold_out")
        limit = self.settings["limit"]
        rows = dispatch.read_split(self.task, name, path, stats, hold_out=share, limit=limit)
        examples = list(rows)
        digest = hashlib.sha256()
        for example in examples:
            digest.update(repr(example).encode())
        inputs = encode(
            self.task,
            examples,
            encoder.tokenizer,
            max_length=self.max_length,
            stride=self.settings["stride"],
            learn=name == "train",
            segments=tuner.segments,
            file=path,
        )
        return Split(path, examples, stats, digest.hexdigest(), inputs)

    def collate(self, tuner: Any, inputs: Any, units: Array, part: int = 0, parts: int = 1) -> Any:
        """Return a part of the batch of a step."""
        return collate(inputs, units, tuner.pad, tuner.segments, self.device, part, parts)

    def predict(self, tuner: Any, split: Split) -> list[dict[str, Any]]:
        """Return a row of predictions per example of a split, 4 batches at a time."""
        given = split.inputs
        text = given.text if isinstance(given, InputsWithImages) else given
        size = 4 * self.settings["batch_size"]
        outputs = predict(tuner, text, size, self.device, partial(self.collate, tuner, given))
        threshold = self.settings["null_threshold"]
        return predictions(self.task, split.examples, text, outputs, threshold)

    def predict_kept(self, tuner: Any, split: Split) -> list[dict[str, Any]]:
        """Return the predictions of the epoch that is kept."""
        return self.predict(tuner, split)

    def save(self, tuner: Any, encoder: Encoder, folder: Path) -> None:
        """Write a network to a folder, as transformers opens it."""
        save_pretrained(folder, dataclasses.replace(encoder, fingerprint=fingerprint(tuner.net)))

    def cut(self, inputs: Any, seed: int, epoch: int) -> Sequence[Array]:
        """Return the units of each step of an epoch: `batch_size` of them, neighbours in length.

        All epochs have equally many steps.
        """
        size = self.settings["batch_size"]
        return steps_by_length(inputs.lengths, size, seed, epoch, self.settings["window"])


def _pooler_of(tuner: Any) -> str | None:
    """Return the fingerprint of a network's pooler, which some heads read; None without one.

    The fingerprint of an encoder leaves it out: it belongs to the checkpoint that the encoder is
    from, and is drawn from the seed where that has none.
    """
    parts = {name: part for name, part in tuner.state_dict().items() if "pooler" in name.split(".")}
    return fingerprint({f"network.{name}": part for name, part in parts.items()}) if parts else None


@dataclass
class FineTuning:
    """One task, one encoder, several seeds.

    Raises:
        DataError: the encoder takes no texts of the length (78), or as `Learner.read`.
    """

    task: Task
    learner: Learner
    files: Mapping[str, str]  # by split; `train` and `dev` among them
    settings: dict[str, Any]  # the settings that decide the weights; see `vg finetune`
    ref: str  # the encoder's reference

    def __post_init__(self) -> None:
        settings = self.settings
        tuner, encoder = self.learner.new(settings["seeds"][0])
        most = encoder.max_tokens + len(encoder.prefix) + len(encoder.suffix)
        if settings["max_length"] > most:
            why = f"lower --max-length ({settings['max_length']}) to {most}"
            why = f"the encoder accepts at most {most} tokens; {why}"
            raise DataError(why, self.ref, code=Exit.CONFIG)
        self.splits = {
            name: self.learner.read(name, path, tuner, encoder) for name, path in self.files.items()
        }
        self._start = encoder.identity
        self._pooler = _pooler_of(tuner)
        self.encoder = {
            "ref": self.ref,
            "fingerprint": encoder.fingerprint,
            "tokenizer": tokenizer_fingerprint(encoder.tokenizer),
        }
        first = self.learner.cut(self.splits["train"].inputs, 0, 0)
        self.plan = plan_steps(first, settings)
        self._made = {settings["seeds"][0]: (tuner, encoder)}
        self._asked = list[dict[str, Any]]()  # predictions of the last epoch
        self._kept = list[dict[str, Any]]()  # predictions of the kept epoch, if it ran just now
        self._learned = set[int]()  # seeds that others are done with

    def notes(self) -> Iterator[str]:
        """Yield the notes about the files for the user."""
        for name, split in self.splits.items():
            lines = (*split.stats.report(), *split.inputs.report(self.settings["max_length"]))
            yield from (f"{name}: {line}" for line in lines)
        learned = set(map(_asked_of, self.splits["train"].examples))
        for name, split in self.splits.items():
            known = sum(_asked_of(example) in learned for example in split.examples)
            if known and name != "train":
                total = len(split.examples)
                yield f"{name}: {known} of {total} examples are also in the training file"

    def config(self, device: torch.device) -> dict[str, Any]:
        """Return the settings that decide the weights, for `run.json`."""
        return {
            **self.settings,
            "encoder": self._start,
            **({} if self._pooler is None else {"pooler": self._pooler}),
            "tokenizer": self.encoder["tokenizer"],
            "files": {name: split.digest for name, split in self.splits.items()},
            "device": device.type,
        }

    def fit(self, session: Session, elsewhere: Iterator[int] | None = None) -> None:
        """Train the seeds that are left, print a record per epoch, and write the run.

        Each seed is a run of its own in the folder `seed-N`, which this run takes in.

        Args:
            session: the session of the run.
            elsewhere: the seeds that are left, as others have learned them (see `fit_alone`).

        Raises:
            DataError: as `Session.fit`; or the weights that others have learned are not here (69).
        """
        run = session.run
        run.save()  # the folder is a run of these settings before its parts are
        total = len(self.settings["seeds"]) * self.plan.steps
        for number, seed in enumerate(self.settings["seeds"]):
            part = f"seed-{seed}"
            if seed in self.left(session):
                while elsewhere is not None and seed not in self._learned:
                    self._learned.add(next(elsewhere))
                with session.part(part, number * self.plan.steps, total) as own:
                    self._take_in(session, own, seed, elsewhere is None)
            # A barrier: files are removed only when every process has read them.
            session.check()
            run.forget(part)
        session.finish(lambda: (self._facts(session), None, {}))

    def left(self, session: Session) -> list[int]:
        """Return the seeds that are not done."""
        done = session.run.state.notes.setdefault("seeds", {})
        return [seed for seed in self.settings["seeds"] if str(seed) not in done]

    def _take_in(self, session: Session, own: Session, seed: int, here: bool) -> None:
        """Take in the run of a seed, which is learned here unless others have learned it."""
        run = session.run
        one = self.alone(seed)
        own.open("finetune", run.config | {"seeds": [seed]}, inputs=run.inputs)
        notes = own.run.state.notes
        if not here and "scores" not in notes:
            why = "was learned by a worker, and is not here: all need one file system with the run"
            raise DataError(why, own.folder, code=Exit.UNAVAILABLE)
        notes["pieces"] = max(own.run.oom_splits, run.oom_splits)
        session.print(*own.run.records)
        one.fit_alone(own)
        run.take_in(own.run)
        run.state.notes["seeds"][str(seed)] = notes["scores"]
        run.state.notes["pieces"] = own.run.oom_splits
        run.save()

    def show_progress(self, session: Session) -> None:
        """Show how many steps all seeds have done, here and elsewhere."""
        done = session.run.state.notes["seeds"].keys() | set(map(str, self._learned))
        steps = len(done) * self.plan.steps
        seeds = self.settings["seeds"]
        for seed in seeds:
            if str(seed) not in done:
                records = session.run.begun(f"seed-{seed}")
                steps += records[-1]["step"] if records else 0
        session.progress(steps, len(seeds) * self.plan.steps)

    def alone(self, seed: int) -> FineTuning:
        """Return the fine-tuning of one of the seeds, on the files that were read."""
        one = copy.copy(self)
        one.settings = self.settings | {"seeds": [seed]}
        made = self._made.pop(seed, None)
        self._made.clear()
        one._made = {} if made is None else {seed: made}
        return one

    def fit_alone(self, session: Session) -> None:
        """Train the one seed in a folder of its own, for the run that the folder is in.

        The folder then holds an unfinished run, which `fit` takes in.

        Raises:
            DataError: as `Session.fit`.
        """
        run = session.run
        notes = run.state.notes
        if "scores" in notes:
            return
        notes.setdefault("sum", 0.0)
        notes.setdefault("count", 0)
        (seed,) = self.settings["seeds"]
        # The network of the first seed was made to read the files, and need not be made twice.
        tuner, encoder = self._made.pop(seed) if seed in self._made else self.learner.new(seed)
        self._learn(session, tuner.to(session.device), seed)
        notes["scores"] = processes.on_first(partial(self._finish, session, tuner, encoder))
        run.let_go()
        run.keep()
        run.save()

    def _learn(self, session: Session, tuner: Any, seed: int) -> None:
        """Train one seed to its end."""
        run = session.run
        state = run.state
        settings = self.settings
        plan = self.plan
        hyper = self.task.hyper
        optimizer = settings | {"schedule": hyper.schedule, "clip": hyper.clip, "seed": seed}
        # A seed whose patience had ended before a kill resumes without an epoch to train.
        if self._stale(session):
            plan = plan._replace(epochs=state.epoch)
        inputs = self.splits["train"].inputs

        def build(units: Array) -> Any:
            rank = processes.rank()
            return self.learner.collate(tuner, inputs, units, rank, processes.world())

        for record in session.fit(
            tuner,
            make_batches(partial(self.learner.cut, inputs, seed), build, plan.steps),
            train_config(optimizer, plan, betas=hyper.betas, eps=hyper.eps),
            weights={LOSS: 1.0},
            halve=halves,
        ):
            if not record["end"]:
                state.notes["sum"] += record["loss"]
                state.notes["count"] += 1
                continue
            scores = processes.on_first(partial(self._evaluate, tuner))
            noted = {
                "seed": seed,
                "epoch": record["epoch"],
                "step": record["step"],
                "lr": record["lr"],
                "loss": state.notes["sum"] / max(1, state.notes["count"]),
                **scores,
            }
            state.notes |= {"sum": 0.0, "count": 0}
            sign = -1 if self.task.lower_is_better else 1
            best = settings["keep"] == "best"
            # With the epoch as its score, the last is always the best.
            score = sign * scores["headline"] if best else record["epoch"]
            noted = run.end_epoch(tuner, noted, score)
            if noted["best"]:
                self._kept = self._asked
            session.print(noted)
            if self._stale(session):
                session.check()
                return

    def _stale(self, session: Session) -> bool:
        """Return whether the last epochs of a seed, as many as --patience, were not its best."""
        best = [record["best"] for record in session.run.records]
        patience = self.settings["patience"]
        return bool(patience and best and not any(best[-patience:]))

    def _evaluate(self, tuner: Any) -> dict[str, float]:
        """Return the scores of the dev set; the first process keeps the predictions."""
        self._asked = self.learner.predict(tuner, self.splits["dev"])
        return self._score("dev", self._asked)

    def _finish(self, session: Session, tuner: Any, encoder: Encoder) -> dict[str, float]:
        """Write predictions and model of the epoch that is kept; return its scores."""
        # Not strict: tied weights are stored once, under one of their names.
        tuner.load_state_dict(session.run.best_weights(), strict=False)
        scores: dict[str, float] = {}
        for name, split in self.splits.items():
            if name == "train":
                continue
            kept = self._kept if name == "dev" and not self.learner.searches else []
            rows = kept or self.learner.predict_kept(tuner, split)
            scores |= self._score(name, rows)
            file = "predictions.jsonl" if name == "dev" else f"predictions.{name}.jsonl"
            atomic_write(session.folder / file, b"".join(map(dumps, rows)))
            session.stop.check()
        if not self.settings.get("no_models"):
            self.learner.save(tuner, encoder, session.folder / "model")
        return scores

    def _score(self, split: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return the scores of a split, empty without labels; all but dev append its name."""
        if any("label" not in row for row in rows):
            return {}
        threshold = self.settings["null_threshold"] if self.task.unanswerable else None
        scores = score_predictions(self.task, with_answers(rows), threshold=threshold)
        if split == "dev":
            return scores
        return {f"{name}_{split.removeprefix('dev_')}": x for name, x in scores.items()}

    def _facts(self, session: Session) -> dict[str, Any]:
        """Return the entries of run.json in addition to the settings."""
        notes = session.run.state.notes
        written = sorted(session.folder.glob("seed-*/predictions*.jsonl"))
        train = self.splits["train"]
        dev = self.splits["dev"]
        return {
            "task": self.task.name,
            "encoder": self.encoder,
            "seeds": notes["seeds"],
            "summary": summarise(notes["seeds"]),
            "majority": majority(self.task, train.examples, dev.examples),
            "data": {name: split.facts() for name, split in self.splits.items()},
            "steps": self.plan.steps,
            "pieces": session.run.oom_splits,  # parts that a lack of memory cut each batch into
            "predictions": {
                str(path.relative_to(session.folder)): sha256_file(path) for path in written
            },
        }
