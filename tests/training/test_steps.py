"""Plans, the order of an epoch, batches built ahead."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgtools.io.errors import DataError
from vgtools.training import processes, steps
from vgtools.training.loop import learning_rate
from vgtools.training.steps import (
    StepPlan,
    epoch_steps,
    in_drawn_order,
    plan,
    plan_for,
    plan_steps,
    prefetch,
    step_batches,
    steps_by_length,
    steps_by_tokens,
    train_config,
)


def test_a_plan_leaves_nothing_out_and_has_no_small_step() -> None:
    assert plan(10, 4, 2, epochs=3) == StepPlan(
        per_epoch=3, accumulate=2, steps=9, epochs=3, stop=9
    )
    assert plan(10, 4, 4, steps=4) == StepPlan(per_epoch=3, accumulate=1, steps=4, epochs=2, stop=4)
    assert plan(10, 4, 1, epochs=1, processes=2).accumulate == 1
    with pytest.raises(DataError, match="a step has 1 items for 2 processes"):
        plan(3, 2, 2, epochs=1, processes=2)


def test_every_item_is_in_one_step_of_an_epoch_and_a_resumed_epoch_goes_on() -> None:
    def build(numbers: Any, epoch: int, parts: int) -> list[Any]:
        assert (np.diff(numbers) > 0).all()
        return [(epoch, part.tolist()) for part in np.array_split(numbers, parts)]

    schedule = plan(10, 4, 2, steps=5)
    batches = step_batches(10, 7, schedule, build)
    first = list(batches(0, 0))
    assert len(first) == 3 * 2
    assert sorted(n for _, part in first for n in part) == list(range(10))
    assert list(batches(0, 3)) == first[3:]
    second = list(batches(1, 0))
    assert len(second) == 2 * 2, "steps end in the middle of an epoch"
    assert [part for _, part in second] != [part for _, part in first[:4]]


class Part(NamedTuple):
    """A batch of numbers, and how many of the step are even."""

    numbers: list[int]
    even: float


@pytest.mark.parametrize("world", [1, 2, 3])
def test_each_process_builds_its_own_part_and_they_add_up_to_the_step(
    monkeypatch: pytest.MonkeyPatch, world: int
) -> None:
    schedule = plan(41, 12, 2, epochs=1, processes=world)
    built: list[list[int]] = []
    sums: list[list[float]] = []

    def build(numbers: Any, epoch: int, parts: int) -> list[Part]:
        built.append(numbers.tolist())
        return [Part(cut.tolist(), -1.0) for cut in np.array_split(numbers, parts)]

    def total(own: list[float]) -> list[float]:
        sums.append(own)
        return [7.0]  # what all processes have

    def even(part: Part) -> int:
        return sum(n % 2 == 0 for n in part.numbers)

    monkeypatch.setattr(processes, "world", lambda: world)
    monkeypatch.setattr(processes, "total", total)
    whole = [np.sort(step).tolist() for step in epoch_steps(41, 7, schedule.per_epoch, 0)]
    found: list[list[int]] = [[] for _ in whole]
    for rank in range(world):
        monkeypatch.setattr(processes, "rank", lambda rank=rank: rank)
        built.clear()
        sums.clear()
        batches = list(step_batches(41, 7, schedule, build, {"even": even})(0, 0))
        assert len(built) == schedule.per_epoch, "one call per step"
        assert sum(map(len, built)) <= -(-41 // world) + schedule.per_epoch, "its own part alone"
        for number, own in enumerate(built):
            found[number] += own
        if world > 1:
            assert {batch.even for batch in batches} == {7.0 / (schedule.accumulate * world)}
            assert sums == [[sum(n % 2 == 0 for n in own)] for own in built]
        else:
            assert {batch.even for batch in batches} == {-1.0}
    assert found == whole, "sorted parts in the order of the processes"


def test_a_step_without_anything_to_count_is_divided_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schedule = plan(4, 4, 4, epochs=1, processes=2)
    monkeypatch.setattr(processes, "world", lambda: 2)
    monkeypatch.setattr(processes, "rank", lambda: 1)
    monkeypatch.setattr(processes, "total", lambda own: [0.0])

    def build(numbers: Any, epoch: int, parts: int) -> list[Part]:
        return [Part(numbers.tolist(), 0.0)]

    (batch,) = step_batches(4, 7, schedule, build, {"even": lambda part: 0})(0, 0)
    assert batch.even == 0.5, "1 over two processes, never 0"


@pytest.mark.parametrize("items", [60, 61, 100])
def test_an_order_of_too_many_items_is_drawn_among_shards(
    monkeypatch: pytest.MonkeyPatch, items: int
) -> None:
    per_epoch = 7
    order = np.random.default_rng([0, 5, 1]).permutation(items)
    whole = [step.tolist() for step in np.array_split(order, per_epoch)]
    assert [step.tolist() for step in epoch_steps(items, 5, per_epoch, 1)] == whole
    monkeypatch.setattr(steps, "_WHOLE", 50)
    monkeypatch.setattr(steps, "_SHARD", 8)
    monkeypatch.setattr(steps, "_AMONG", 3)
    cut = [step.tolist() for step in epoch_steps(items, 5, per_epoch, 1)]
    flat = [n for step in cut for n in step]
    assert sorted(flat) == list(range(items))
    assert [len(step) for step in cut] == [len(step) for step in whole]
    for first in range(per_epoch + 1):
        again = epoch_steps(items, 5, per_epoch, 1, first)
        assert [step.tolist() for step in again] == cut[first:]
    assert len({n // 8 for n in flat[:24]}) in (3, 4), "few shards at a time"
    assert flat[:24] != sorted(flat[:24])
    assert cut != [step.tolist() for step in epoch_steps(items, 5, per_epoch, 2)]


def test_a_warm_up_below_one_is_a_share_of_the_steps() -> None:
    settings = {"lr": 0.1, "schedule": "linear", "weight_decay": 0.0, "clip": 1.0, "seed": 3}
    schedule = plan(10, 4, 4, steps=50)
    assert train_config(settings | {"warmup": 0.1}, schedule).warmup == 5
    found = train_config(settings | {"warmup": 8}, schedule, eps=1e-6)
    assert (found.warmup, found.steps, found.epochs, found.eps) == (8, 50, 17, 1e-6)


def test_a_schedule_can_be_ended_after_an_epoch() -> None:
    """The rate is that of all epochs: 40 epochs of 3 steps, of which 1 is trained."""
    schedule = plan(10, 4, 4, epochs=40, stop_epoch=1)
    assert schedule == StepPlan(per_epoch=3, accumulate=1, steps=120, epochs=1, stop=3)
    assert plan(10, 4, 4, steps=2, stop_epoch=9).stop == 2
    config = {"batch_size": 4, "epochs": 40, "steps": None}
    assert plan_for(10, config | {"stop_epoch": 1}) == schedule
    assert plan_for(10, config).stop == 120
    settings = {"lr": 1.0, "schedule": "linear", "weight_decay": 0.0, "clip": 1.0, "seed": 3}
    found = train_config(settings | {"warmup": 0.05}, schedule)
    assert (found.epochs, found.steps, found.warmup) == (1, 120, 6)
    assert learning_rate(found, 2) == 0.5, "half way up the warm-up of two epochs"
    batches = step_batches(10, 7, schedule, lambda numbers, epoch, parts: [numbers])
    assert (len(list(batches(0, 0))), list(batches(1, 0))) == (3, [])


def test_prefetching_keeps_order_and_passes_errors_on() -> None:
    def source() -> Any:
        yield from range(5)
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        for item in prefetch(source()):
            found.append(item)
    assert found == list(range(5))


@given(st.integers(1, 200), st.integers(1, 17), st.integers(1, 9), st.integers(0, 3))
def test_an_epoch_holds_every_unit_once(count: int, size: int, window: int, epoch: int) -> None:
    lengths = np.random.default_rng(count).integers(1, 99, count)
    steps = steps_by_length(lengths, size, 7, epoch, window)
    assert sorted(np.concatenate(steps).tolist()) == list(range(count))
    assert len(steps) == -(-count // size) == plan(count, size, size, 1).per_epoch
    sizes = {len(batch) for batch in steps}
    assert max(sizes) <= size
    assert max(sizes) - min(sizes) <= 1


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 99, 100)

    def order(seed: int, epoch: int) -> list[int]:
        return np.concatenate(steps_by_length(lengths, 8, seed, epoch, 4)).tolist()  # type: ignore[no-any-return]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_neighbours_in_length_share_a_batch() -> None:
    lengths = np.random.default_rng(0).integers(1, 99, 1000)

    def padded(window: int) -> int:
        return sum(
            len(b) * int(lengths[b].max()) for b in steps_by_length(lengths, 10, 0, 0, window)
        )

    assert padded(100) == sum(
        10 * int(part.max()) for part in np.sort(lengths).reshape(100, 10)
    )  # all sorted: the best there is
    assert lengths.sum() < padded(50) < 1.1 * lengths.sum() < 1.5 * lengths.sum() < padded(1)


def test_steps_overrule_epochs() -> None:
    assert plan(100, 32, 32, 3, None) == (4, 1, 12, 3, 12)
    assert plan(100, 32, 32, 3, 6) == (4, 1, 6, 2, 6)
    config = {"batch_size": 32, "epochs": 3, "steps": 6}
    assert plan_for(100, config) == plan_for(100, config | {"micro_batch": 32}) == (4, 1, 6, 2, 6)


def test_steps_of_tokens_hold_neighbours_in_length() -> None:
    lengths = np.array([5, 2, 9, 2, 3, 1, 12, 4])
    # Sorted 1 2 2 3 | 4 5 | 9 | 12: sums of at most 9, and one unit that is longer than that.
    cut = [step.tolist() for step in steps_by_tokens(lengths, 9)]
    assert cut == [[5, 1, 3, 4], [7, 0], [2], [6]]
    assert [step.tolist() for step in steps_by_tokens(lengths, 38)] == [[5, 1, 3, 4, 7, 0, 2, 6]]
    assert [len(step) for step in steps_by_tokens(lengths, 1)] == [1] * 8


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60), tokens=st.integers(1, 80))
def test_steps_of_tokens_leave_nothing_out_and_are_full(lengths: list[int], tokens: int) -> None:
    cut = steps_by_tokens(np.array(lengths), tokens)
    assert sorted(np.concatenate(cut).tolist()) == list(range(len(lengths)))
    sums = [sum(lengths[i] for i in step) for step in cut]
    assert all(total <= tokens or len(step) == 1 for total, step in zip(sums, cut, strict=True))
    firsts = [lengths[step[0]] for step in cut[1:]]
    assert all(total + first > tokens for total, first in zip(sums, firsts, strict=False))


def test_the_order_of_steps_is_drawn_from_seed_and_epoch() -> None:
    cut = [np.array([i]) for i in range(20)]
    orders = [[int(step[0]) for step in in_drawn_order(cut, *key)] for key in ((3, 0), (3, 1))]
    assert orders[0] != orders[1]
    assert all(sorted(order) == list(range(20)) for order in orders)
    assert [int(step[0]) for step in in_drawn_order(cut, 3, 0)] == orders[0]


def test_the_plan_of_steps_that_are_cut_already() -> None:
    cut = [np.arange(3), np.arange(2), np.arange(4)]
    assert plan_steps(cut, {"epochs": 2, "steps": None}) == StepPlan(3, 1, 6, 2, 6)
    assert plan_steps(cut, {"epochs": None, "steps": 7}) == StepPlan(3, 1, 7, 3, 7)
