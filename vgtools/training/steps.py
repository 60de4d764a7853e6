"""How many items become steps: the plan of a training, its batches, its optimiser settings.

A step is a number of items (blocks of tokens, captions, sentences), cut into batches where memory
or several processes require it. Which items a step has is a pure function of (seed, epoch), so that
a resumed run sees the same items as an unbroken run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.training import processes
from vgtools.training.loop import Batches, TrainConfig

# First seeds of the generators that order an epoch; callers have others for other purposes.
_ORDER = 0
_ORDER_BY_LENGTH = 7
_WHOLE = 10**8  # most items whose order is one permutation, 800 MB
_SHARD = 1 << 20  # neighbours that stay together beyond that
_AMONG = 8  # shards whose items are ordered together


class StepPlan(NamedTuple):
    """How the items of a training are cut into steps."""

    per_epoch: int  # steps per epoch
    accumulate: int  # batches per step and process
    steps: int  # steps of the schedule
    epochs: int  # epochs that are started
    stop: int  # steps that are taken; fewer than `steps` where the schedule is ended early


def plan(
    items: int,
    batch_size: int,
    micro_batch: int,
    epochs: int | None = None,
    steps: int | None = None,
    processes: int = 1,
    stop_epoch: int | None = None,
) -> StepPlan:
    """Return the steps per epoch, and the batches per step.

    The steps of an epoch are of equal size but for one item: none is small, and none is left out.

    Args:
        items: per epoch.
        batch_size: most items per step.
        micro_batch: most items in memory at a time (one more in a rare case: a step is never cut
            finer than its items).
        epochs: epochs to train, unless `steps` is given.
        steps: steps of all epochs together; the last epoch may end early.
        processes: number of processes that share a step.
        stop_epoch: the last epoch to train, in a schedule of them all.

    Raises:
        DataError: a step has fewer items than there are processes.
    """
    per_epoch = -(-items // batch_size)
    most = -(-items // per_epoch)
    least = items // per_epoch
    _check_share(least, processes)
    # At most as many batches as a process has items, so that no batch is empty.
    accumulate = min(-(-most // (micro_batch * processes)), least // processes)
    total = steps if steps is not None else (epochs or 1) * per_epoch
    stop = total if stop_epoch is None else min(total, stop_epoch * per_epoch)
    return StepPlan(per_epoch, accumulate, total, -(-stop // per_epoch), stop)


def plan_for(items: int, config: Mapping[str, Any]) -> StepPlan:
    """Return the plan of a run's configuration, over all processes; micro-batches are optional."""
    return plan(
        items,
        config["batch_size"],
        config.get("micro_batch", config["batch_size"]),
        config["epochs"],
        config["steps"],
        processes.world(),
        config.get("stop_epoch"),
    )


def plan_steps(cut: Sequence[Array], config: Mapping[str, Any]) -> StepPlan:
    """Return the plan of an epoch that is cut into steps already: (B,) items of each.

    Raises:
        DataError: as `plan`.
    """
    least = min(map(len, cut))
    _check_share(least, processes.world())
    total = config["steps"] or config["epochs"] * len(cut)
    return StepPlan(len(cut), 1, total, -(-total // len(cut)), total)


def _check_share(least: int, count: int) -> None:
    if least < count:
        raise DataError(
            f"a step has {least} items for {count} processes; "
            "increase --batch-size or start fewer processes"
        )


def train_config(
    config: Mapping[str, Any],
    plan: StepPlan,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> TrainConfig:
    """Return the optimiser's settings; a warm-up below 1 is a share of all steps."""
    warmup = config["warmup"]
    return TrainConfig(
        epochs=plan.epochs,
        steps=plan.steps,
        warmup=round(warmup * plan.steps if warmup < 1 else warmup),
        betas=betas,
        eps=eps,
        accumulate=plan.accumulate,
        log_every=1,
        gradients=config.get("gradients", "float32"),
        **{key: config[key] for key in ("lr", "schedule", "weight_decay", "clip", "seed")},
    )


def epoch_steps(
    items: int, seed: int, per_epoch: int, epoch: int, first: int = 0
) -> Iterator[Array]:
    """Yield the numbers of the items of each step of an epoch, from a step on.

    The order is drawn over all items. The order of more than `_WHOLE` would take gigabytes: there,
    neighbours go together as shards, in drawn order, and the items of a few shards are drawn
    together.

    Args:
        items: number per epoch.
        seed: seed of their order.
        per_epoch: steps of the epoch; their sizes differ by at most one item.
        epoch: epoch whose order is drawn.
        first: step to start with.
    """
    # The first `larger` steps have one item more than the others.
    size, larger = divmod(items, per_epoch)
    done = first * size + min(first, larger)
    held = np.zeros(0, np.int64)
    for count, draw in _windows(items, seed, epoch):
        if done >= count:
            done -= count
            continue
        held = np.concatenate([held, draw()[done:]])
        done = 0
        while first < per_epoch and len(held) >= size + (first < larger):
            end = size + (first < larger)
            yield held[:end]
            held = held[end:]
            first += 1


def _windows(items: int, seed: int, epoch: int) -> Iterator[tuple[int, Callable[[], Array]]]:
    """Yield the items that are ordered together: their number, and a function that orders them."""
    rng = np.random.default_rng([_ORDER, seed, epoch])
    if items <= _WHOLE:
        yield items, lambda: rng.permutation(items)
        return
    order = rng.permutation(-(-items // _SHARD))
    for number in range(0, len(order), _AMONG):
        starts = order[number : number + _AMONG] * _SHARD
        ends = np.minimum(starts + _SHARD, items)

        def draw(number: int = number, starts: Array = starts, ends: Array = ends) -> Array:
            parts = [np.arange(a, b) for a, b in zip(starts, ends, strict=True)]
            # A generator per window, so that a resumed run can skip windows without drawing them.
            alike = np.random.default_rng([_ORDER, seed, epoch, number])
            return alike.permutation(np.concatenate(parts))

        yield int((ends - starts).sum()), draw


Counts = Mapping[str, Callable[[Any], int]]


def step_batches(
    items: int,
    seed: int,
    plan: StepPlan,
    build: Callable[[Array, int, int], list[Any]],
    counts: Counts | None = None,
) -> Batches:
    """Return the batches of an epoch as a pure function of (seed, epoch), as `train` expects them.

    With several processes each builds its own part of every step: a step is the same however many
    share it.

    Args:
        items: number per epoch.
        seed: seed of their order.
        plan: how they are cut into steps.
        build: `build(numbers, epoch, parts)` returns the batches of items with these (sorted)
            numbers.
        counts: divisors of a batch's losses. Field of a batch, a named tuple -> how many of the
            items that it counts a batch has; `build` knows the items of its own part.
    """
    rank = processes.rank()
    world = processes.world()

    def steps(epoch: int, first: int) -> Iterator[list[Any]]:
        start = first // plan.accumulate
        left = max(0, plan.stop - epoch * plan.per_epoch - start)
        for numbers in islice(epoch_steps(items, seed, plan.per_epoch, epoch, start), left):
            own = np.array_split(np.sort(numbers), world)[rank]
            yield build(own, epoch, plan.accumulate)

    def batches(epoch: int, first: int) -> Iterator[Any]:
        for number, step in enumerate(prefetch(steps(epoch, first))):
            parts = step if counts is None or world == 1 else _of_step(step, counts, plan)
            yield from parts[0 if number else first % plan.accumulate :]

    return batches


def _of_step(parts: Sequence[Any], counts: Counts, plan: StepPlan) -> list[Any]:
    """Return this process's batches with the counts of the whole step, over all processes."""
    # Each process divides by the share of the whole step, so that the mean over processes is the
    # mean over items even if one process has fewer of them.
    own = [sum(count(batch) for batch in parts) for count in counts.values()]
    cuts = plan.accumulate * processes.world()
    shares = [max(1.0, whole) / cuts for whole in processes.total(own)]
    fields = dict(zip(counts, shares, strict=True))
    return [batch._replace(**fields) for batch in parts]


def steps_by_length(
    lengths: Array, batch_size: int, seed: int, epoch: int, window: int
) -> list[Array]:
    """Return the units of each step of an epoch: neighbours in length share a step.

    A pure function of seed and epoch. All units are shuffled; the units of `window` steps are
    sorted by length and cut; then the steps are shuffled. A batch pads to its own longest unit, so
    that little is padding. Steps differ by at most one unit in size.

    Args:
        lengths: (U,) tokens per unit.
        batch_size: most units per step.
        seed: seed of the order.
        epoch: epoch whose order is drawn.
        window: steps that are sorted together; 1 leaves chance alone.
    """
    rng = np.random.default_rng([_ORDER_BY_LENGTH, seed, epoch])
    order = rng.permutation(len(lengths))
    count = -(-len(lengths) // batch_size)
    edges = np.cumsum([0, *map(len, np.array_split(order, count))])
    for start in range(0, count, window):
        part = order[edges[start] : edges[min(start + window, count)]]
        part[:] = part[np.argsort(lengths[part], kind="stable")]
    batches = [order[a:b] for a, b in pairwise(edges)]
    return [batches[i] for i in rng.permutation(count)]


def steps_by_tokens(lengths: Array, tokens: int) -> list[Array]:
    """Return the units of each step of any epoch: as many neighbours in length as fit.

    The cut is the same every epoch, so that epochs have equally many steps.

    Args:
        lengths: (U,) tokens per unit.
        tokens: most tokens of a step; a longer unit is a step by itself.
    """
    # Stable, so that units of equal length have the same order on every machine, and so the cut.
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    cuts = [0]
    while cuts[-1] < len(order):
        done = ends[cuts[-1] - 1] if cuts[-1] else 0
        cuts.append(max(cuts[-1] + 1, int(np.searchsorted(ends, done + tokens, "right"))))
    return [order[a:b] for a, b in pairwise(cuts)]


def in_drawn_order(steps: Sequence[Array], seed: int, epoch: int) -> list[Array]:
    """Return the steps of an epoch in an order that is a pure function of seed and epoch."""
    rng = np.random.default_rng([_ORDER_BY_LENGTH, seed, epoch])
    return [steps[i] for i in rng.permutation(len(steps))]


def prefetch(items: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of an iterable, made by a thread while the caller uses the one before."""
    source = iter(items)
    end = object()
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, source, end)
        while (item := pending.result()) is not end:
            pending = thread.submit(next, source, end)
            yield item
