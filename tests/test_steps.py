"""Plans, batches built ahead, records."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vgtools.io import DataError
from vgtools.steps import Plan, ahead, mean_record, plan, step_batches, train_config


def test_a_plan_leaves_nothing_out_and_has_no_small_step() -> None:
    assert plan(10, 4, 2, epochs=3) == Plan(per_epoch=3, accumulate=2, steps=9, epochs=3)
    assert plan(10, 4, 4, steps=4) == Plan(per_epoch=3, accumulate=1, steps=4, epochs=2)
    assert plan(10, 4, 1, epochs=1, processes=2).accumulate == 1
    with pytest.raises(DataError, match="a step has 1 blocks for 2 processes"):
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


def test_a_warm_up_below_one_is_a_share_of_the_steps() -> None:
    given = {"lr": 0.1, "schedule": "linear", "weight_decay": 0.0, "clip": 1.0, "seed": 3}
    schedule = plan(10, 4, 4, steps=50)
    assert train_config(given | {"warmup": 0.1}, schedule).warmup == 5
    found = train_config(given | {"warmup": 8}, schedule)
    assert (found.warmup, found.steps, found.epochs, found.eps) == (8, 50, 17, 1e-6)


def test_ahead_keeps_order_and_passes_errors_on() -> None:
    def source() -> Any:
        yield from range(5)
        raise ValueError("broken")

    found = []
    with pytest.raises(ValueError, match="broken"):
        for item in ahead(source()):
            found.append(item)
    assert found == list(range(5))


def test_records_are_means_over_the_steps_since_the_last_and_live_in_the_notes() -> None:
    notes: dict[str, Any] = {}
    step = {"epoch": 1, "step": 1, "lr": 0.1, "gradient": 2.0, "loss": 3.0, "mlm": 1.0}
    assert mean_record(notes, step, False) is None
    found = mean_record(notes, step | {"step": 2, "loss": 5.0, "mlm": 2.0}, True)
    assert found == {"epoch": 1, "step": 2, "lr": 0.1, "gradient": 2.0, "loss": 4.0, "mlm": 1.5}
    assert notes == {}
