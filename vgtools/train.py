"""The one training loop: a generator of log records, resumable to the bit.

A command hands over a model whose `model(batch)` returns named losses, and a function that gives the batches of an epoch; it
saves, evaluates and prints between the records. There are no callbacks.

    state = TrainState.load(path) if path.exists() else TrainState()
    for record in train(model, batches, config, weights={"match": 1.0}, state=state):
        ...
        state.save(path)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from vgtools import parallel
from vgtools.checkpoint import Encoder, open_run, save_run
from vgtools.errors import is_out_of_memory
from vgtools.io import DataError, Exit, atomic_write, config_difference, dumps, read_json, sha256_file

# batches(epoch, first) yields the batches of an epoch from number `first` on: a pure function of the seed and the epoch.
Batches = Callable[[int, int], Iterable[Any]]
Halve = Callable[[Any], "tuple[Any, ...]"]
Rows = TypeVar("Rows", bound=NamedTuple)


@dataclass(frozen=True)
class TrainConfig:
    """How to optimise.

    Attributes:
        epochs: passes over the batches.
        steps: optimiser steps of all epochs together; the schedule ends there.
        lr: highest learning rate.
        schedule: `constant`, `linear` or `cosine`, down to 0 at `steps`, behind the warm-up.
        warmup: steps over which the learning rate rises from 0.
        weight_decay: AdamW's, on matrices only; with 0 it is plain Adam.
        betas: AdamW's.
        eps: AdamW's.
        clip: longest gradient, in L2 norm over all parameters; 0 does not clip.
        accumulate: batches a step.
        seed: of the initial random state (dropout); the sampler has its own.
        log_every: steps between records.
    """

    epochs: int
    steps: int
    lr: float = 1e-3
    schedule: str = "constant"
    warmup: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip: float = 5.0
    accumulate: int = 1
    seed: int = 0
    log_every: int = 50

    def __post_init__(self) -> None:
        if not math.isfinite(self.lr):  # the loss before the first step is finite, and no weight behind it
            raise DataError(f"--lr {self.lr}: wanted a finite number", code=Exit.USAGE)


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of a step, counted from 0: a pure function, so that a schedule needs no state."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    factor = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}
    return config.lr * factor[config.schedule]


class TrainState:
    """Where a training stands: weights, optimiser, random states, epoch and batch; saved and loaded as one safetensors file.

    Attributes:
        epoch: the epoch that runs now, from 0.
        batch: batches of it that are done.
        step: optimiser steps done.
        notes: JSON values of the caller, kept with the state (best epoch, metrics so far).
        saved: where it was last saved.
    """

    def __init__(self) -> None:
        self.epoch = self.batch = self.step = 0
        self.notes: dict[str, Any] = {}
        self.saved: Path | None = None
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.AdamW | None = None
        self._loaded: dict[str, Tensor] | None = None

    def save(self, path: str | Path) -> None:
        """Write the state, whole or not at all; with several processes all call it, and the first one writes."""
        from safetensors.torch import save

        assert self._model is not None, "save() belongs between the records of train()"
        assert self._optimizer is not None
        tensors = {f"model.{name}": t for name, t in own_tensors(self._model).items()}
        for name, parameter in self._model.named_parameters():
            slots = self._optimizer.state.get(parameter, {})
            tensors |= {f"optimizer.{slot}.{name}": t for slot, t in slots.items()}
        tensors |= {f"rng.cpu.{i}": t for i, t in enumerate(parallel.gather(torch.get_rng_state()))}
        if torch.cuda.is_available():
            tensors |= {f"rng.cuda.{i}": t for i, t in enumerate(parallel.gather(torch.cuda.get_rng_state()))}
        if parallel.rank() == 0:
            where = {"epoch": self.epoch, "batch": self.batch, "step": self.step, "notes": self.notes}
            atomic_write(path, save({k: t.detach().cpu().contiguous() for k, t in tensors.items()}, {"vg": json.dumps(where)}))
        self.saved = Path(path)

    @classmethod
    def load(cls, path: str | Path) -> TrainState:
        """Read a saved state; `train` puts it back into model, optimiser and random generators.

        Raises:
            DataError: the file is damaged.
        """
        from safetensors import SafetensorError, safe_open

        state = cls()
        try:
            with safe_open(path, "pt") as file:
                where = json.loads(file.metadata()["vg"])
                state._loaded = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            raise DataError(f"is not a readable checkpoint ({error}); --restart starts over", path) from None
        state.epoch, state.batch, state.step, state.notes = (where[k] for k in ("epoch", "batch", "step", "notes"))
        state.saved = Path(path)
        return state

    def _attach(self, model: nn.Module, optimizer: torch.optim.AdamW, seed: int) -> None:
        self._model, self._optimizer = model, optimizer
        own = parallel.rank()
        if self._loaded is None:
            torch.manual_seed(seed + own)  # each process drops out what it likes
            return
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "rng": {}}
        for key, tensor in self._loaded.items():
            head, _, name = key.partition(".")
            parts[head][name] = tensor
        try:
            same = own_tensors(model).keys() == parts["model"].keys()
            model.load_state_dict(parts["model"], strict=False)  # tied weights are there once, under one of their names
        except RuntimeError:  # another shape
            same = False
        if not same:
            raise DataError("holds the weights of another model; --restart starts over", self.saved)
        for name, parameter in model.named_parameters():
            slots = {s: parts["optimizer"].get(f"{s}.{name}") for s in ("step", "exp_avg", "exp_avg_sq")}
            if None not in slots.values():  # a parameter that no step has reached has none
                optimizer.state[parameter] = {
                    s: t if s == "step" else t.to(parameter.device) for s, t in slots.items() if t is not None
                }
        torch.set_rng_state(parts["rng"][f"cpu.{own}"])
        if torch.cuda.is_available() and f"cuda.{own}" in parts["rng"]:
            torch.cuda.set_rng_state(parts["rng"][f"cuda.{own}"])
        self._loaded = None


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state with weights that are tied to one another under their first name only."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    return {name: tensor.detach() for name, tensor in state.items() if first[id(tensor)] == name}


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW over the parameters that learn; biases, norms and scalars are not decayed."""
    learning = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in learning if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps)


def train(
    model: nn.Module,
    batches: Batches,
    config: TrainConfig,
    *,
    weights: Mapping[str, float],
    state: TrainState | None = None,
    halve: Halve | None = None,
) -> Iterator[dict[str, Any]]:
    """Train, and yield a record every `log_every` steps and behind each epoch.

    Everything up to a record is in `state` when the record comes: save it then, and a run that is killed later goes on from
    there to the same weights, bit for bit on a CPU with the same number of threads.

    Args:
        model: `model(batch)` returns a dict of named scalar losses, unweighted; in train mode whenever a step is taken.
        batches: `batches(epoch, first)` yields the batches of an epoch from number `first` on.
        config: the optimiser's settings.
        weights: lambda of each loss, by name.
        state: where to start; filled as the training goes on.
        halve: `halve(batch)` returns the two halves of a batch, whose losses add up to its own, or the batch alone where it
            cannot be cut. With it a lack of memory is met with smaller batches; `state.notes["pieces"]` says into how many.

    Yields:
        `epoch` (from 1), `step`, `lr`, `gradient` (its norm before clipping, of the last step), `loss` and each loss under
        its name (means since the record before), `end` (True behind the last batch of an epoch).

    Raises:
        DataError: the loss is not finite, or memory does not suffice (exit 70); the last checkpoint is named.
        KeyError: a loss without a weight, or a weight without a loss.
    """
    optimizer = make_optimizer(model, config)
    state = TrainState() if state is None else state
    state._attach(model, optimizer, config.seed)
    while state.epoch < config.epochs:
        sums, count, gradient = dict[str, float](), 0, 0.0
        model.train()
        for group in _groups(batches(state.epoch, state.batch), config.accumulate):
            losses, gradient = _step(model, optimizer, group, config, weights, state, halve)
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + value
            count += len(group)
            state.batch += len(group)
            if len(group) == config.accumulate and state.step % config.log_every == 0:
                yield _record(config, state, sums, count, gradient, end=False)
                sums, count = {}, 0
                model.train()
        if not state.batch:
            raise DataError("there is nothing to train on: no batch in an epoch", code=Exit.DATA)
        state.epoch, state.batch = state.epoch + 1, 0
        yield _record(config, state, sums, count, gradient, end=True)


def _groups(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the batches of each step; the last ones of an epoch are no full step: they are one all the same."""
    source = iter(batches)
    while group := list(islice(source, size)):
        yield group


def _step(
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    group: list[Any],
    config: TrainConfig,
    weights: Mapping[str, float],
    state: TrainState,
    halve: Halve | None,
) -> tuple[dict[str, float], float]:
    """Take one optimiser step; return the losses of its batches, summed, and the length of the gradient.

    Gradient and losses are averaged over the processes.
    """
    losses = _backward(model, group, config.accumulate, weights, state, halve)
    seen = torch.stack([*losses.values()])
    parallel.average([seen, *(p.grad for p in model.parameters() if p.grad is not None)])
    found = dict(zip(losses, seen.tolist(), strict=True))
    if not math.isfinite(found["loss"]):
        means = (f" {name} {value / len(group)}" for name, value in found.items() if name != "loss")
        raise _diverged("the loss", state, ",".join(means))
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf)
    for parameters in optimizer.param_groups:
        parameters["lr"] = learning_rate(config, state.step)
    if not torch.isfinite(norm):  # one such step would spoil every weight
        raise _diverged("the gradient", state, "")
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    state.step += 1
    return found, float(norm)


def _backward(
    model: nn.Module, group: list[Any], accumulate: int, weights: Mapping[str, float], state: TrainState, halve: Halve | None
) -> dict[str, Tensor]:
    """Return the losses of a step's batches, each summed and their weighted sum as `loss`; gradients are in the parameters.

    Where memory does not suffice the whole step is done again with every batch in halves: what the broken one left in the
    gradients would count twice. Later steps begin as finely as the last one ended.
    """
    while True:
        pieces = int(state.notes.get("pieces", 1))
        try:
            sums = dict[str, Tensor]()
            for batch in group:
                for piece in _cut(batch, pieces, halve):
                    losses = _losses(model, piece, weights)
                    (losses["loss"] / accumulate).backward()
                    for name, value in losses.items():
                        sums[name] = sums.get(name, torch.zeros((), device=value.device)) + value.detach().float()
            return sums
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if max(len(_cut(batch, 2 * pieces, halve)) - len(_cut(batch, pieces, halve)) for batch in group) == 0:
                raise DataError(
                    f"out of memory in step {state.step + 1}{', with one row at a time' if halve else ''}; {_last_good(state)} "
                    + ("shorter rows need" if halve else "a smaller --batch-size needs")
                    + " less",
                    code=Exit.CANNOT_GO_ON,
                ) from None
        model.zero_grad()
        state.notes["pieces"] = 2 * pieces
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _cut(batch: Any, pieces: int, halve: Halve | None) -> list[Any]:
    """Return a batch in that many pieces, a power of 2, or as many as it can be cut into."""
    if pieces == 1 or halve is None:
        return [batch]
    return [piece for half in halve(batch) for piece in _cut(half, pieces // 2, halve)]


def halves(batch: Rows, places: Mapping[str, str] | None = None) -> tuple[Rows, ...]:
    """Return the two halves of a batch, as `train` wants them; a single row cannot be cut.

    Args:
        batch: a named tuple whose first field is (B, T), the tokens; its tensors are cut by rows, what else it holds stays.
        places: name of a field of (M,) places in the B * T -> name of that of (M,) values at those places.
    """
    count, middle = len(batch[0]), len(batch[0]) // 2
    if not middle:
        return (batch,)
    values = set(places.values()) if places else set()

    def part(start: int, end: int) -> Rows:
        fields: dict[str, Tensor] = {k: x for k, x in batch._asdict().items() if isinstance(x, Tensor) and k not in values}
        cut = {name: x[start:end] for name, x in fields.items()}
        for name, beside in (places or {}).items():
            first, last = (row * batch[0].shape[1] for row in (start, end))
            inside = (fields[name] >= first) & (fields[name] < last)
            cut |= {name: fields[name][inside] - first, beside: getattr(batch, beside)[inside]}
        return batch._replace(**cut)

    return part(0, middle), part(middle, count)


def _losses(model: nn.Module, batch: Any, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Return a batch's losses by name, and their weighted sum as `loss`."""
    losses: dict[str, Tensor] = model(batch)
    if losses.keys() != weights.keys():
        raise KeyError(f"the model returns the losses {sorted(losses)}, there are weights for {sorted(weights)}")
    return losses | {"loss": torch.stack([weights[name] * value for name, value in losses.items()]).sum()}


def _diverged(what: str, state: TrainState, found: str) -> DataError:
    return DataError(
        f"{what} is no longer a number in step {state.step + 1}, epoch {state.epoch + 1}{found and ':'}{found}; "
        f"{_last_good(state)} a lower --lr usually helps",
        code=Exit.CANNOT_GO_ON,
    )


def _last_good(state: TrainState) -> str:
    return f"the last good checkpoint is {state.saved};" if state.saved else "no checkpoint was written yet;"


def _record(
    config: TrainConfig, state: TrainState, sums: Mapping[str, float], count: int, gradient: float, end: bool
) -> dict[str, Any]:
    means = {name: total / count for name, total in sums.items()} if count else {}
    return {
        "epoch": state.epoch + (not end),
        "step": state.step,
        "lr": learning_rate(config, max(0, state.step - 1)),
        "gradient": gradient,
        **means,
        "end": end,
    }


# ---------------------------------------------------------------------------------------------------------- run directories


class TrainingRun:
    """The directory of one training: resumes the same configuration, refuses another, keeps the best epoch.

    While it trains it holds `checkpoint.safetensors` and `best.safetensors`; when it is finished, what `save_run` writes and
    `metrics.jsonl`, one record an epoch.

    Args:
        path: the directory; made if needed.
        kind: of the run, for example `matcher`.
        config: what decides the weights, JSON values.
        restart: throw away what is there.

    Attributes:
        complete: a former run with this configuration finished: nothing to do.
        state: where `train` starts.
        records: one of each epoch so far.

    Raises:
        DataError: another configuration is in the way (78, both sides printed), the directory is something else (73), or
            what it holds is damaged (65).
    """

    def __init__(self, path: str | Path, kind: str, config: Mapping[str, Any], restart: bool = False) -> None:
        self.path, self.kind, self.config = Path(path), kind, dict(config)
        self._checkpoint, self._best = self.path / "checkpoint.safetensors", self.path / "best.safetensors"
        self.complete = False
        ours = [n for n in ("run.json", "checkpoint.safetensors", "best.safetensors") if (self.path / n).exists()]
        if self.path.exists() and not ours and any(p.suffix != ".tmp" for p in self.path.iterdir()):
            raise DataError("is not empty and no run of vg; choose another -o", self.path, code=Exit.CANNOT_CREATE)
        if (self.path / "run.json").exists() and read_json(self.path / "run.json").get("kind") != kind:
            raise DataError(f"holds a run of another kind than {kind}; choose another -o", self.path, code=Exit.CANNOT_CREATE)
        self.path.mkdir(exist_ok=True)
        if restart:
            for name in ("run.json", "checkpoint.safetensors", "best.safetensors", "metrics.jsonl"):
                (self.path / name).unlink(missing_ok=True)
        if (self.path / "run.json").exists():
            self._same(open_run(self.path, kind).info["config"], "a finished run")
            self.complete = True
            self._clear()
            self.state = TrainState()
            with open(self.path / "metrics.jsonl", "rb") as stream:
                self.state.notes = {"records": [json.loads(line) for line in stream]}
        elif self._checkpoint.exists():
            self.state = TrainState.load(self._checkpoint)
            self._same(self.state.notes["config"], "an unfinished run")
        else:
            self.state = TrainState()
            self.state.notes = {"config": self.config, "records": [], "score": None}

    def _same(self, before: Mapping[str, Any], what: str) -> None:
        difference = config_difference(before, self.config)
        if difference:
            raise DataError(
                f"{what} with other settings is in the way: {difference}. Give the same settings to go on, another "
                "-o, or --restart to start over",
                self.path,
                code=Exit.CONFIG,
            )

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the epochs so far."""
        return list(self.state.notes["records"])

    def note(self, record: Mapping[str, Any]) -> None:
        """Add a record of the training, which the next `save` keeps."""
        self.state.notes["records"].append(dict(record))

    def save(self) -> None:
        """Write a checkpoint, and the records so far to `metrics.jsonl`."""
        self.state.save(self._checkpoint)
        self._write_records()

    def _write_records(self) -> None:
        if parallel.rank() == 0:
            atomic_write(self.path / "metrics.jsonl", b"".join(map(dumps, self.records)))

    def end_epoch(self, model: nn.Module, record: Mapping[str, Any], score: float) -> dict[str, Any]:
        """Note an epoch, keep its weights if none scored higher, and write a checkpoint; return the record with `best`."""
        from safetensors.torch import save

        before = self.state.notes["score"]
        best = before is None or score >= before  # of equals the later one: it has seen more
        if best:
            atomic_write(self._best, save({k: t.detach().cpu().contiguous() for k, t in model.state_dict().items()}))
            self.state.notes["score"] = score
        noted = {**record, "best": best}
        self.note(noted)
        self.save()
        return noted

    def best_weights(self) -> dict[str, Tensor]:
        """Return the weights that `end_epoch` kept last."""
        from safetensors.torch import load

        weights: dict[str, Tensor] = load(self._best.read_bytes())
        return weights

    def finish(
        self, info: Mapping[str, Any], encoder: Encoder | None = None, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        """Write the run, with the weights of the best epoch or those given, and clear what only a resume needs."""
        self._write_records()
        facts = {"config": self.config, **info, "metrics": {"sha256": sha256_file(self.path / "metrics.jsonl")}}
        if weights is None:
            best = max(i for i, record in enumerate(self.records) if record["best"])
            weights, facts["best"] = self.best_weights(), self.records[best]
        save_run(self.path, self.kind, weights, facts, encoder)
        self.complete = True
        self._clear()

    def _clear(self) -> None:
        for name in ("checkpoint.safetensors", "best.safetensors"):
            for path in (self.path / name, self.path / f"{name}.tmp"):
                path.unlink(missing_ok=True)
