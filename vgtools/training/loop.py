"""The one training loop: a generator of log records, resumable to the bit.

The caller hands over a model whose `model(batch)` returns named losses, and a function that returns
the batches of an epoch; it saves, evaluates and prints between the records. There are no callbacks;
`vgtools.training.session` surrounds the loop in a command.

    state = TrainState.load(path) if path.exists() else TrainState()
    for record in train(model, batches, config, weights={"match": 1.0}, state=state):
        ...
        state.save(path)
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from vgtools.io.errors import DataError, Exit, is_out_of_memory
from vgtools.io.own import atomic_write
from vgtools.io.trust import trusted
from vgtools.models.devices import to_device
from vgtools.models.products import quicken
from vgtools.models.references import fingerprint, pick_dtype
from vgtools.models.sealed import is_checkpoint
from vgtools.training import processes
from vgtools.training.gradients import Gradients, shared_gradients

# batches(epoch, first) yields the batches of an epoch from number `first` on: a pure function of
# the seed and the epoch.
Batches = Callable[[int, int], Iterable[Any]]
Halve = Callable[[Any], "tuple[Any, ...]"]
Rows = TypeVar("Rows", bound=NamedTuple)


@dataclass(frozen=True)
class TrainConfig:
    """How to optimise."""

    epochs: int  # passes over the batches
    steps: int  # number in all epochs together; the schedule ends there
    lr: float = 1e-3  # highest learning rate
    # `constant`; `linear` and `cosine`: down to 0 at `steps`, after the warm-up; `inverse-sqrt`: as
    # one over the root of the step; `halving`: at `milestones`.
    schedule: str = "constant"
    milestones: tuple[int, ...] = ()  # steps, counted from 0, from which the rate is halved
    warmup: int = 0  # steps over which the learning rate rises from 0
    weight_decay: float = 0.0  # AdamW's, on matrices only; with 0 it is plain Adam
    betas: tuple[float, float] = (0.9, 0.999)  # AdamW's
    eps: float = 1e-8  # AdamW's
    clip: float = 5.0  # most L2 norm of the gradient over all parameters; 0 disables clipping
    accumulate: int = 1  # batches per step
    seed: int = 0  # seed of dropout, with step and process; the sampler has its own
    log_every: int = 50  # steps between records
    gradients: str = "float32"  # or `bfloat16`: the type in which several processes average them

    def __post_init__(self) -> None:
        # Refused here, because the first loss is finite even then, and only the weights are lost.
        if not math.isfinite(self.lr):
            raise DataError(f"--lr: expected a finite number, got {self.lr}", code=Exit.USAGE)


def learning_rate(config: TrainConfig, step: int) -> float:
    """Return the learning rate of a step, counted from 0: a pure function, without a state."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    factor = {
        "constant": 1.0,
        "linear": 1 - done,
        "cosine": 0.5 * (1 + math.cos(math.pi * done)),
        "inverse-sqrt": math.sqrt(max(1, config.warmup) / (step + 1)),
        "halving": 0.5 ** sum(milestone <= step for milestone in config.milestones),
    }
    return config.lr * factor[config.schedule]


class TrainState:
    """Weights, optimiser, epoch and batch of a training, in one safetensors file.

    Any number of processes resumes it: the random numbers of a step follow from the seed, the step
    and the number of the process.
    """

    def __init__(self) -> None:
        self.epoch = 0  # the running epoch
        self.batch = 0  # batches of it that are done
        self.step = 0  # optimiser steps done
        self.notes: dict[str, Any] = {}  # JSON values of the caller: best epoch, metrics so far
        self.saved: Path | None = None  # the file it was last saved to
        self._accumulate = 1  # batches of this process per step
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.AdamW | None = None
        self._loaded: dict[str, Tensor] | None = None

    def save(self, path: str | Path) -> None:
        """Write the state, whole or not at all; every process calls it, and the first writes.

        Between the records of `train` it is the model's state; before, the state that was loaded.
        """
        from safetensors.torch import save

        tensors = dict(self._loaded or {})
        if self._model is not None and self._optimizer is not None:
            tensors = {f"model.{name}": t for name, t in own_tensors(self._model).items()}
            for name, parameter in self._model.named_parameters():
                slots = self._optimizer.state.get(parameter, {})
                tensors |= {f"optimizer.{slot}.{name}": t for slot, t in slots.items()}
        if processes.rank() == 0:
            position = {key: getattr(self, key) for key in ("epoch", "batch", "step", "notes")}
            position["accumulate"] = self._accumulate
            stored = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
            position["sha256"] = _seal(position, stored)
            atomic_write(path, save(stored, {"vg": json.dumps(position)}), is_checkpoint)
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
                position = json.loads(file.metadata()["vg"])
                names = file.keys()
                state._loaded = {name: file.get_tensor(name) for name in names}
                expected = position.pop("sha256")
                # The first process has compared the hash; the others would only repeat it.
                if not trusted() and expected != _seal(position, state._loaded):
                    raise ValueError("it was damaged: its sha256 belongs to other contents")
        except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
            why = f"is not a readable checkpoint ({error}); --restart starts over"
            raise DataError(why, path) from None
        for key in ("epoch", "batch", "step", "notes"):
            setattr(state, key, position[key])
        state._accumulate = position["accumulate"]
        state.saved = Path(path)
        return state

    def _attach(self, model: nn.Module, optimizer: torch.optim.AdamW, accumulate: int) -> None:
        self._model = model
        self._optimizer = optimizer
        # Saved between steps. Another number of processes cuts steps into other batches.
        self.batch = self.batch // (self._accumulate or accumulate) * accumulate
        self._accumulate = accumulate
        if self._loaded is None:
            return
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}}
        for key, tensor in self._loaded.items():
            head, _, name = key.partition(".")
            parts[head][name] = tensor
        try:
            same = own_tensors(model).keys() == parts["model"].keys()
            # Tied weights are stored once, under one of their names.
            model.load_state_dict(parts["model"], strict=False)
        except RuntimeError:  # another shape
            same = False
        if not same:
            raise DataError("holds the weights of another model; --restart starts over", self.saved)
        stored = parts["optimizer"]
        for name, parameter in model.named_parameters():
            if f"exp_avg_sq.{name}" in stored:  # no step has reached the other parameters
                optimizer.state[parameter] = {
                    slot: stored[f"{slot}.{name}"].to(parameter.device)
                    for slot in ("step", "exp_avg", "exp_avg_sq")
                }
        self._loaded = None


def _seal(position: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the sha256 of all that a checkpoint holds."""
    return hashlib.sha256((json.dumps(position) + fingerprint(tensors)).encode()).hexdigest()


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's state; weights tied to one another have their first name only."""
    first: dict[int, str] = {}
    state = model.state_dict(keep_vars=True)
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    return {name: tensor.detach() for name, tensor in state.items() if first[id(tensor)] == name}


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """Return AdamW over the trainable parameters; biases, norms and scalars are not decayed.

    Parameters whose names start with a key of the model's `rates`, if it has such, learn at that
    multiple of the learning rate.
    """
    rates: Mapping[str, float] = getattr(model, "rates", {})
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = next((r for prefix, r in rates.items() if name.startswith(prefix)), 1.0)
            groups.setdefault((rate, parameter.ndim < 2), []).append(parameter)
    options = [
        {"params": group, "rate": rate, "weight_decay": 0.0 if vector else config.weight_decay}
        for (rate, vector), group in sorted(groups.items())
    ]
    # Fused: one pass over memory per step, a seventh of the time on a processor.
    return torch.optim.AdamW(options, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)


def train(
    model: nn.Module,
    batches: Batches,
    config: TrainConfig,
    *,
    weights: Mapping[str, float],
    state: TrainState | None = None,
    halve: Halve | None = None,
) -> Iterator[dict[str, Any]]:
    """Train, and yield a record every `log_every` steps and after each epoch.

    Everything up to a record is in `state` when the record comes: save it then, and a run that is
    killed later resumes from there to the same weights, bit for bit on a CPU with the same number
    of threads and processes. It also resumes with another number of processes: each step has the
    same items, and dropout is drawn again.

    Args:
        model: `model(batch)` returns a dict of named scalar losses, unweighted; in train mode
            whenever a step is taken.
        batches: `batches(epoch, first)` yields the batches of an epoch from number `first` on.
        config: the optimiser's settings.
        weights: lambda of each loss, by name.
        state: where to start; updated as the training proceeds.
        halve: `halve(batch)` returns the two halves of a batch, whose losses add up to its own, or
            the batch alone if it cannot be cut. With it the training splits batches when memory
            runs out; `state.notes["pieces"]` counts the parts.

    Yields:
        `epoch` (from 1), `step`, `lr`, `gradient` (its norm before clipping, of the last step),
        `loss` and each loss under its name (means since the record before), `end` (True after the
        last batch of an epoch).

    Raises:
        DataError: the loss is not finite, or memory runs out (exit 70); names the last checkpoint.
        KeyError: a loss without a weight, or a weight without a loss.
    """
    optimizer = make_optimizer(quicken(model), config)
    state = TrainState() if state is None else state
    state._attach(model, optimizer, config.accumulate)
    with shared_gradients(model, pick_dtype(config.gradients)) as gradients:
        yield from _epochs(model, optimizer, batches, config, weights, state, halve, gradients)


def _epochs(
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    batches: Batches,
    config: TrainConfig,
    weights: Mapping[str, float],
    state: TrainState,
    halve: Halve | None,
    gradients: Gradients | None,
) -> Iterator[dict[str, Any]]:
    """Take the steps that are left, and yield the records of `train`."""
    while state.epoch < config.epochs:
        sums = dict[str, float]()
        count = 0
        gradient = 0.0
        model.train()
        for group in _groups(batches(state.epoch, state.batch), config.accumulate):
            losses, gradient = _step(
                model, optimizer, group, config, weights, state, halve, gradients
            )
            for name, value in losses.items():
                sums[name] = sums.get(name, 0.0) + value
            count += len(group)
            state.batch += len(group)
            if len(group) == config.accumulate and state.step % config.log_every == 0:
                yield _record(config, state, sums, count, gradient, end=False)
                sums = {}
                count = 0
                model.train()  # the caller may have evaluated the model between two records
        if not state.batch:
            raise DataError("there is nothing to train on: no batch in an epoch", code=Exit.DATA)
        state.epoch += 1
        state.batch = 0
        yield _record(config, state, sums, count, gradient, end=True)


def _groups(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the batches of each step; the last ones of an epoch are a step even if they are few."""
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
    gradients: Gradients | None,
) -> tuple[dict[str, float], float]:
    """Take one optimiser step; return the summed losses of its batches and the gradient's norm.

    Gradient and losses are averaged over the processes. If memory runs out in one of them, all
    repeat the whole step: gradients that the failed process has added already would count twice.
    """
    while True:
        losses = _backward(model, group, config, weights, state, halve, gradients)
        if gradients is not None:
            losses = _averaged(losses, gradients, len(weights) + 1)
        if losses is not None:
            break
        model.zero_grad()
    # Without clipping the norm is computed all the same, for the record and the check below.
    norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip or math.inf)
    # Read together: a GPU is waited for once per step.
    *means, gradient = torch.stack([*losses.values(), norm]).tolist()
    totals = dict(zip(losses, means, strict=True))
    if not math.isfinite(totals["loss"]):
        del totals["loss"]
        each = (f" {name} {total / len(group)}" for name, total in totals.items())
        raise _diverged("the loss", state, ",".join(each))
    for parameters in optimizer.param_groups:
        parameters["lr"] = learning_rate(config, state.step) * parameters["rate"]
    # A finite loss may have an infinite gradient, and one such step would spoil every weight.
    if not math.isfinite(gradient):
        raise _diverged("the gradient", state, "")
    optimizer.step()
    # None rather than 0: Adam skips a parameter that no loss of a step reaches, but would decay its
    # moments for a gradient of 0.
    optimizer.zero_grad(set_to_none=True)
    state.step += 1
    return totals, gradient


def _averaged(
    losses: dict[str, Tensor] | None, gradients: Gradients, count: int
) -> dict[str, Tensor] | None:
    """Replace the gradients by their means over all processes; return the means of the losses.

    Args:
        losses: losses of this process; None if memory ran out here.
        gradients: the gradients that are being sent.
        count: number of losses.

    Returns:
        None if memory ran out in any process.
    """
    # A process without memory still takes part, with zeros and a mark: the others would wait for it
    # until they give up.
    own = torch.zeros(count) if losses is None else torch.stack([*losses.values()])
    failed = own.new_full((1,), float(losses is None))
    means = gradients.average(torch.cat([own, failed]))
    if losses is None or float(means[-1]):
        return None
    return dict(zip(losses, means, strict=False))


def _backward(
    model: nn.Module,
    group: list[Any],
    config: TrainConfig,
    weights: Mapping[str, float],
    state: TrainState,
    halve: Halve | None,
    gradients: Gradients | None,
) -> dict[str, Tensor] | None:
    """Return the summed losses of a step's batches, `loss` their weighted sum, and fill gradients.

    Returns None if memory runs out: the next try has every batch in halves, and later steps start
    as finely. With `gradients` the last backward pass sends them.
    """
    pieces = int(state.notes.get("pieces", 1))
    # Dropout has a seed per step, so that a checkpoint needs no state of the generator and a
    # repeated step draws the same.
    torch.manual_seed(_draw(config.seed, state.step))
    try:
        sums = dict[str, Tensor]()
        batches = [piece for batch in group for piece in _cut(batch, pieces, halve)]
        for number, batch in enumerate(batches, 1):
            losses = _losses(model, batch, weights)
            last = gradients is not None and number == len(batches)
            with gradients.sending() if gradients is not None and last else nullcontext():
                (losses["loss"] / config.accumulate).backward()
            for name, value in losses.items():
                before = sums.get(name, torch.zeros((), device=value.device))
                sums[name] = before + value.detach().float()
        return sums
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        # Halving makes no batch smaller any more: each is down to single rows.
        if all(len(_cut(b, 2 * pieces, halve)) == len(_cut(b, pieces, halve)) for b in group):
            how = "" if halve is None else ", with one row at a time"
            less = "a smaller --batch-size needs" if halve is None else "shorter rows need"
            why = f"out of memory in step {state.step + 1}{how}; {_last_good(state)}"
            raise DataError(f"{why} {less} less", code=Exit.CANNOT_CONTINUE) from None
    state.notes["pieces"] = 2 * pieces
    # The allocator keeps the blocks of the failed try, whose sizes the halves do not ask for.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def _draw(seed: int, step: int) -> int:
    """Return the seed of this process's random numbers in a step: a pure function, no state."""
    text = f"{seed} {step} {processes.rank()}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _cut(batch: Any, pieces: int, halve: Halve | None) -> list[Any]:
    """Return a batch in `pieces` parts, a power of 2, or in as many as it can be cut into."""
    if pieces == 1 or halve is None:
        return [batch]
    return [piece for half in halve(batch) for piece in _cut(half, pieces // 2, halve)]


def on_device(batch: Rows, device: torch.device | str) -> Rows:
    """Return a batch, a named tuple, with its tensors on a device."""
    fields = batch._asdict().items()
    return batch._replace(**{k: to_device(v, device) for k, v in fields if isinstance(v, Tensor)})


def halves(batch: Rows, places: Mapping[str, str] | None = None) -> tuple[Rows, ...]:
    """Return the two halves of a batch, as `train` expects them; a single row cannot be cut.

    Args:
        batch: a named tuple whose first field is (B, T), the tokens; its tensors are cut by rows,
            its other fields are kept.
        places: name of a field of (M,) places in the B * T, or of (M, 2) rows and columns -> name
            of the field of (M, …) values there.
    """
    count = len(batch[0])
    middle = count // 2
    if not middle:
        return (batch,)
    values = set(places.values()) if places else set()

    def part(start: int, end: int) -> Rows:
        fields: dict[str, Tensor] = {
            name: field
            for name, field in batch._asdict().items()
            if isinstance(field, Tensor) and name not in values
        }
        cut = {name: x[start:end] for name, x in fields.items()}
        for name, beside in (places or {}).items():
            field = fields[name]
            pairs = field.ndim == 2
            size = 1 if pairs else batch[0].shape[1]
            rows = field[:, 0] if pairs else field
            inside = (rows >= start * size) & (rows < end * size)
            shift = field.new_tensor([start, 0]) if pairs else start * size
            cut |= {name: field[inside] - shift, beside: getattr(batch, beside)[inside]}
        return batch._replace(**cut)

    return part(0, middle), part(middle, count)


def _losses(model: nn.Module, batch: Any, weights: Mapping[str, float]) -> dict[str, Tensor]:
    """Return a batch's losses by name, and their weighted sum as `loss`."""
    losses: dict[str, Tensor] = model(batch)
    if losses.keys() != weights.keys():
        raise KeyError(f"expected the losses {sorted(weights)}, got {sorted(losses)}")
    total = torch.stack([weights[name] * value for name, value in losses.items()]).sum()
    return losses | {"loss": total}


def _diverged(what: str, state: TrainState, means: str) -> DataError:
    return DataError(
        f"{what} is no longer a number in step {state.step + 1}, epoch {state.epoch + 1}"
        f"{means and ':'}{means}; {_last_good(state)} a lower --lr usually helps",
        code=Exit.CANNOT_CONTINUE,
    )


def _last_good(state: TrainState) -> str:
    if state.saved is None:
        return "no checkpoint was written yet;"
    return f"the last good checkpoint is {state.saved};"


def _record(
    config: TrainConfig,
    state: TrainState,
    sums: Mapping[str, float],
    count: int,
    gradient: float,
    end: bool,
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
