"""How many items become steps: the plan of a training, its batches, its records.

A step is a number of items (blocks of tokens, captions), cut into batches where memory or several processes want it. Which
items a step has is a pure function of (seed, epoch), so that a resumed run sees what the unbroken one saw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgtools import parallel
from vgtools.io import DataError
from vgtools.train import Batches, Halve, TrainConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vgtools.checkpoint import Encoder

Array = np.ndarray[Any, Any]

_ORDER = 0  # the first seed of the generator that orders an epoch; others are their callers'


class Plan(NamedTuple):
    """How a corpus is cut into steps."""

    per_epoch: int  # steps an epoch
    accumulate: int  # batches a step, of each process
    steps: int  # of all epochs
    epochs: int


def plan(
    blocks: int,
    batch_size: int,
    micro_batch: int,
    epochs: int | None = None,
    steps: int | None = None,
    processes: int = 1,
) -> Plan:
    """Return how many steps an epoch of some blocks has, and how many batches a step.

    The steps of an epoch are of equal size but for one block: none is small, and none is left out.

    Args:
        blocks: in an epoch.
        batch_size: most blocks a step.
        micro_batch: most blocks in memory at a time (one more in a rare case: a step is never cut finer than its blocks).
        epochs: to train, unless `steps` says how many steps.
        steps: of all epochs together; the last epoch may end early.
        processes: that share a step.

    Raises:
        DataError: a step has fewer blocks than there are processes.
    """
    per_epoch = -(-blocks // batch_size)
    most, least = -(-blocks // per_epoch), blocks // per_epoch
    if least < processes:
        raise DataError(f"a step has {least} blocks for {processes} processes; a larger --batch-size or fewer processes")
    accumulate = min(-(-most // (micro_batch * processes)), least // processes)
    total = steps if steps is not None else (epochs or 1) * per_epoch
    return Plan(per_epoch, accumulate, total, -(-total // per_epoch))


def plan_for(count: int, config: Mapping[str, Any]) -> Plan:
    """Return the plan of a run's configuration for so many items, over all processes."""
    sizes, ends = (config["batch_size"], config["micro_batch"]), (config["epochs"], config["steps"])
    return plan(count, *sizes, *ends, parallel.world())


class Job(NamedTuple):
    """What a system hands to `vg pretrain`, which trains it."""

    model: nn.Module
    batches: Batches
    schedule: Plan
    halve: Halve
    evaluate: Callable[[int], dict[str, float]] | None  # batch size -> losses on what is held out; None: nothing is
    finish: Callable[[], tuple[dict[str, Any], Encoder, dict[str, Tensor]]]  # what run.json says, and what is saved
    start: Callable[[], None] | None = None  # what comes before the first step


def step_batches(count: int, seed: int, schedule: Plan, build: Callable[[Array, int, int], list[Any]]) -> Batches:
    """Return the batches of an epoch as a pure function of (seed, epoch), as `train` wants them, built in a thread ahead.

    With several processes each gets its own part of every step: a step is the same however many share it.

    Args:
        count: items of an epoch.
        seed: of their order.
        schedule: how they are cut into steps.
        build: `build(numbers, epoch, parts)` returns the batches of one step, made of the items with these (sorted) numbers.
    """
    rank, world = parallel.rank(), parallel.world()

    def batches(epoch: int, first: int) -> Iterator[Any]:
        order = np.random.default_rng([_ORDER, seed, epoch]).permutation(count)
        for index, numbers in enumerate(np.array_split(order, schedule.per_epoch)):
            if epoch * schedule.per_epoch + index >= schedule.steps:
                return
            done = first - index * schedule.accumulate
            if done < schedule.accumulate:
                yield from build(np.sort(numbers), epoch, schedule.accumulate * world)[rank::world][max(0, done) :]

    return lambda epoch, first: ahead(batches(epoch, first))


def ahead(items: Iterable[Any]) -> Iterator[Any]:
    """Yield what an iterable yields; the next item is made in a thread while the caller works on this one."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, source, end)
        while (item := pending.result()) is not end:
            pending = thread.submit(next, source, end)
            yield item


def train_config(config: Mapping[str, Any], schedule: Plan) -> TrainConfig:
    """Return the optimiser's settings; a warm-up below 1 is a share of all steps.

    Source: Tan & Bansal 2020, section 4.2 (learning rate 2e-4); eps, betas, decay and clipping are those of the published code.
    """
    warmup = config["warmup"]
    return TrainConfig(
        epochs=schedule.epochs,
        steps=schedule.steps,
        lr=config["lr"],
        schedule=config["schedule"],
        warmup=round(warmup * schedule.steps if warmup < 1 else warmup),
        weight_decay=config["weight_decay"],
        eps=1e-6,
        clip=config["clip"],
        accumulate=schedule.accumulate,
        seed=config["seed"],
        log_every=1,
    )


def mean_record(notes: dict[str, Any], record: Mapping[str, Any], due: bool) -> dict[str, Any] | None:
    """Add a step's losses to those since the last record; where one is due, return it with their means.

    Args:
        notes: of the training's state: a run that goes on ends with the same records.
        record: of one step.
        due: the steps so far are a record.
    """
    window = notes.setdefault("window", {"steps": 0, "sums": {}})
    place = {key: record[key] for key in ("epoch", "step", "lr", "gradient")}
    window["steps"] += 1
    for name in record.keys() - place.keys():
        window["sums"][name] = window["sums"].get(name, 0.0) + record[name]
    if not due:
        return None
    del notes["window"]
    return place | {name: window["sums"][name] / window["steps"] for name in sorted(window["sums"])}


def mean_losses(model: nn.Module, batches: Iterable[Any], items: Callable[[Any, str], int]) -> dict[str, float]:
    """Return the mean losses of a model over batches, in evaluation mode; perplexity is exp(mlm).

    Args:
        model: `model(batch)` returns named means.
        batches: of evaluation.
        items: `items(batch, name)` is how many items that loss of a batch is a mean over.
    """
    import torch

    was_training = model.training
    model.eval()
    sums, counts = dict[str, float](), dict[str, float]()
    with torch.no_grad():
        for batch in batches:
            for name, value in model(batch).items():
                count = items(batch, name)
                sums[name] = sums.get(name, 0.0) + float(value) * count
                counts[name] = counts.get(name, 0.0) + count
    model.train(was_training)
    means = {name: total / max(1.0, counts[name]) for name, total in sums.items()}
    return means | ({"perplexity": math.exp(min(700.0, means["mlm"]))} if "mlm" in means else {})
