"""The loop: steps worked out by hand, resume to the bit, what stops it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from tests.precision import rounding
from vgtools.io.errors import DataError, Exit
from vgtools.models.references import fingerprint
from vgtools.training import processes
from vgtools.training.loop import TrainConfig, TrainState, halves, learning_rate, train


class Line(nn.Module):
    """y = w x with two losses; `w` starts at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([[1.0]]))

    def forward(self, batch: float) -> dict[str, Tensor]:
        return {"up": self.w.sum() * batch, "square": (self.w**2).sum()}


class Noisy(nn.Module):
    """A small network with dropout: its steps depend on the random state."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        return {"mse": ((self.net(batch)[:, 0] - batch.sum(1)) ** 2).mean()}


def numbers(*values: float) -> Callable[[int, int], Iterator[float]]:
    return lambda epoch, first: iter(values[first:])


def noise(epoch: int, first: int) -> Iterator[Tensor]:
    for index in range(first, 5):
        yield torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * epoch + index))


def config(**changes: Any) -> TrainConfig:
    return TrainConfig(
        **({"epochs": 1, "steps": 10, "lr": 0.5, "clip": 0.0, "log_every": 1} | changes)
    )


BOTH = {"up": 1.0, "square": 0.5}


@pytest.mark.parametrize(
    ("schedule", "step", "wanted"),
    [
        ("constant", 0, 0.5), ("constant", 1, 1.0), ("constant", 9, 1.0),
        ("linear", 2, 1.0), ("linear", 6, 0.5), ("linear", 10, 0.0), ("linear", 99, 0.0),
        ("cosine", 4, 0.8535534), ("cosine", 6, 0.5), ("cosine", 10, 0.0),
    ],
)  # fmt: skip
def test_learning_rate_rises_over_the_warm_up_and_falls_to_nothing(
    schedule: str, step: int, wanted: float
) -> None:
    found = learning_rate(
        TrainConfig(epochs=1, steps=10, lr=1.0, schedule=schedule, warmup=2), step
    )
    assert found == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize(
    ("step", "wanted"), [(1, 6.1763236e-8), (8000, 4.9410588e-4), (32000, 2.4705294e-4)]
)
def test_the_schedule_of_the_transformer(step: int, wanted: float) -> None:
    """Source: Vaswani et al. 2017, equation 3: 512**-0.5 * min(s**-0.5, s * 8000**-1.5)."""
    config = TrainConfig(
        epochs=1, steps=100_000, lr=(512 * 8000) ** -0.5, schedule="inverse-sqrt", warmup=8000
    )
    assert learning_rate(config, step - 1) == pytest.approx(wanted, rel=1e-7)


def test_first_step_of_adam_is_the_learning_rate_and_losses_are_weighted() -> None:
    model = Line()
    (record, end) = train(model, numbers(3.0), config(), weights=BOTH)
    # loss = 1 * 3 w + 0.5 w^2, gradient 3 + w = 4; Adam's first step is lr * sign of the gradient.
    assert record["loss"] == pytest.approx(3.5)
    assert (record["up"], record["square"], record["gradient"]) == (3.0, 1.0, 4.0)
    assert model.w.item() == pytest.approx(0.5, abs=1e-6)
    assert (record["end"], end["end"], end["epoch"], end["step"]) == (False, True, 1, 1)


def test_parts_of_a_model_can_learn_faster() -> None:
    """The first step of Adam is the learning rate, times that of the part."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rates = {"new.": 4.0}
            self.old = nn.Linear(2, 1)
            self.new = nn.Linear(2, 1)

        def forward(self, batch: float) -> dict[str, Tensor]:
            return {"up": sum(p.sum() for p in self.parameters()) * batch}

    model = Two()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    list(train(model, numbers(1.0), config(lr=0.25), weights={"up": 1.0}))
    for name, parameter in model.named_parameters():
        moved = (before[name] - parameter.detach()).flatten()
        assert moved.tolist() == pytest.approx(
            [1.0 if name.startswith("new.") else 0.25] * len(moved)
        )


def test_decay_spares_vectors() -> None:
    model = nn.Module()
    model.matrix, model.bias = nn.Parameter(torch.ones(1, 1)), nn.Parameter(torch.ones(1))
    model.forward = lambda batch: {"zero": 0.0 * (model.matrix.sum() + model.bias.sum())}  # type: ignore[method-assign]
    list(train(model, numbers(1.0), config(weight_decay=0.2), weights={"zero": 1.0}))
    assert (model.matrix.item(), model.bias.item()) == (pytest.approx(0.9), 1.0)  # 1 - lr * decay


def test_accumulated_batches_are_one_step_on_their_mean() -> None:
    model = Line()
    records = list(
        train(
            model,
            numbers(1.0, 3.0, 5.0),
            config(accumulate=2, epochs=1),
            weights={"up": 1.0, "square": 0.0},
        )
    )
    assert [r["step"] for r in records] == [1, 2]  # the odd batch at the end is a step of its own
    assert [r["gradient"] for r in records] == [2.0, 2.5]
    assert records[0]["up"] == 2.0


def test_gradients_are_clipped_and_their_length_is_told() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(0.0)
    seen: list[float] = []
    model.weight.register_post_accumulate_grad_hook(lambda p: None)
    net = nn.Module()
    net.inner = model
    net.forward = lambda batch: {"l": 100.0 * model.weight.sum()}  # type: ignore[method-assign]
    for record in train(net, numbers(1.0), config(clip=2.0, eps=1e3, lr=1.0), weights={"l": 1.0}):
        seen.append(record["gradient"])
    # With so large an eps Adam moves by lr * g / eps: the clipped 2, not 100.
    assert (seen[0], model.weight.item()) == (100.0, pytest.approx(-2.0 / 1002.0, rel=1e-4))


@pytest.mark.parametrize("weights", [{"up": 1.0}, {**BOTH, "more": 1.0}])
def test_a_loss_and_its_weight_belong_together(weights: dict[str, float]) -> None:
    with pytest.raises(KeyError, match="square"):
        list(train(Line(), numbers(1.0), config(), weights=weights))


def unbroken() -> str:
    model = Noisy()
    list(train(model, noise, config(epochs=3, lr=0.05, seed=1), weights={"mse": 1.0}))
    return fingerprint(model)


@pytest.mark.parametrize("cut", [1, 4, 5, 6, 8, 17])
def test_resume_at_any_record_gives_the_weights_of_the_unbroken_run(
    tmp_path: Path, cut: int
) -> None:
    plan = config(epochs=3, lr=0.05, seed=1)
    state, path = TrainState(), tmp_path / "checkpoint.safetensors"
    for number, _ in enumerate(train(Noisy(), noise, plan, weights={"mse": 1.0}, state=state), 1):
        if number == cut:
            state.notes = {"seen": cut}
            state.save(path)
            break
    torch.manual_seed(999)  # another process has another random state
    later, model = TrainState.load(path), Noisy()
    assert later.notes == {"seen": cut}
    list(train(model, noise, plan, weights={"mse": 1.0}, state=later))
    assert fingerprint(model) == unbroken()


def test_a_loss_that_is_no_number_stops_and_names_the_checkpoint(tmp_path: Path) -> None:
    state, path = TrainState(), tmp_path / "checkpoint.safetensors"
    with pytest.raises(
        DataError,
        match=r"no longer a number in step 3, epoch 1: up nan.*last good checkpoint is "
        r".*checkpoint",
    ) as e:
        for _ in train(
            Line(), numbers(1.0, 1.0, float("nan")), config(), weights=BOTH, state=state
        ):
            state.save(path)
    assert e.value.code == Exit.CANNOT_CONTINUE
    assert TrainState.load(path).step == 2


def test_an_infinite_gradient_stops_before_it_spoils_the_weights() -> None:
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(1))
    model.forward = lambda batch: {"root": model.w.sqrt().sum()}  # type: ignore[method-assign]
    with pytest.raises(DataError, match="the gradient is no longer a number"):
        list(train(model, numbers(1.0), config(), weights={"root": 1.0}))
    assert model.w.item() == 0.0


def test_out_of_memory_is_said_with_the_way_out() -> None:
    model = Line()
    model.forward = lambda batch: (_ for _ in ()).throw(torch.OutOfMemoryError("out of memory"))  # type: ignore[method-assign]
    with pytest.raises(DataError, match="smaller --batch-size") as error:
        list(train(model, numbers(1.0), config(), weights=BOTH))
    assert error.value.code == Exit.CANNOT_CONTINUE


class Sum(nn.Module):
    """Least squares, summed over rows; more than `most` rows do not fit: the gradients of the
    first ones are there by then.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.w, self.most, self.seen = nn.Parameter(torch.ones(3)), most, list[int]()

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        self.seen.append(len(batch))
        if len(batch) > self.most:
            ((batch[: self.most] @ self.w) ** 2).sum().backward()
            raise torch.OutOfMemoryError("out of memory")
        return {"squares": ((batch @ self.w - 1) ** 2).sum() / 8}


def rows_of(epoch: int, first: int) -> Iterator[Tensor]:
    for index in range(first, 4):
        yield torch.randn(8, 3, generator=torch.Generator().manual_seed(index))


def in_two(batch: Tensor) -> tuple[Tensor, ...]:
    return (batch,) if len(batch) == 1 else (batch[: len(batch) // 2], batch[len(batch) // 2 :])


def test_a_lack_of_memory_halves_the_batches_and_changes_no_step() -> None:
    found = []
    for most in (8, 3):
        model, state = Sum(most), TrainState()
        records = list(
            train(
                model,
                rows_of,
                config(accumulate=2),
                weights={"squares": 1.0},
                state=state,
                halve=in_two,
            )
        )
        found.append((model, state, [r for r in records if not r["end"]]))
    (whole, plain, wanted), (cut, state, records) = found
    assert torch.allclose(cut.w, whole.w, atol=1e-6)
    order = rounding(torch.float32, 64)  # sums of at most so many numbers, in another order
    assert [r["squares"] for r in records] == pytest.approx(
        [r["squares"] for r in wanted], rel=order
    )
    assert [r["gradient"] for r in records] == pytest.approx(
        [r["gradient"] for r in wanted], rel=order
    )
    assert "pieces" not in plain.notes
    assert state.notes["pieces"] == 4  # and the second step begins so
    assert cut.seen == [8, 4, *[2] * 16]


class _Batch(NamedTuple):
    ids: Tensor
    mask: Tensor | None
    places: Tensor
    values: Tensor
    count: float


def test_halves_hold_what_the_batch_holds_each_place_in_its_own_half() -> None:
    table, places = torch.arange(15).view(5, 3), torch.tensor([14, 0, 5, 6, 7])
    batch = _Batch(table, None, places, table.flatten()[places] + 100, 2.5)
    first, second = halves(batch, {"places": "values"})
    assert (first.ids.tolist(), second.ids.tolist()) == (table[:2].tolist(), table[2:].tolist())
    for half, wanted in ((first, [0, 5]), (second, [14, 6, 7])):
        assert half.ids.flatten()[half.places].tolist() == wanted
        assert half.values.tolist() == [100 + w for w in wanted]
        assert (half.mask, half.count) == (None, 2.5)
    assert halves(_Batch(table[:1], None, places[:0], places[:0], 1.0))[1:] == ()
    plain = halves(_Batch(table, table + 1, table, table, 1.0))[1]
    assert plain.mask is not None
    assert torch.equal(plain.mask, table[2:] + 1)


def test_a_row_that_does_not_fit_alone_stops_with_the_way_out() -> None:
    with pytest.raises(
        DataError, match=r"out of memory in step 1, with one row at a time; .*shorter rows"
    ) as error:
        list(train(Sum(0), rows_of, config(), weights={"squares": 1.0}, halve=in_two))
    assert error.value.code == Exit.CANNOT_CONTINUE


@pytest.mark.parametrize(
    "damage", [lambda b: b[:40], lambda b: b[:-3], lambda b: b"", lambda b: b"\xff" * 8 + b[8:]]
)
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    state, path = TrainState(), tmp_path / "checkpoint.safetensors"
    for _ in train(Line(), numbers(1.0), config(), weights=BOTH, state=state):
        state.save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"checkpoint\.safetensors: is not a readable checkpoint"):
        TrainState.load(path)


def test_a_flipped_bit_in_a_checkpoint_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    state, path = TrainState(), tmp_path / "checkpoint.safetensors"
    state.notes = {"score": 1.5}
    for _ in train(Line(), numbers(1.0), config(), weights=BOTH, state=state):
        state.save(path)
    whole = path.read_bytes()
    assert state._loaded is None
    expected = TrainState.load(path)
    assert expected._loaded is not None
    refused = 0
    positions = range(0, len(whole), 7)
    for position in positions:
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            found = TrainState.load(path)
        except DataError:
            refused += 1
            continue
        assert found._loaded is not None
        assert (found.notes, found.step) == (expected.notes, expected.step)
        assert found._loaded.keys() == expected._loaded.keys()
        assert all(torch.equal(t, found._loaded[name]) for name, t in expected._loaded.items())
    assert refused > 0.9 * len(positions)


def test_the_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    state, path = TrainState(), tmp_path / "checkpoint.safetensors"
    for _ in train(Line(), numbers(1.0), config(), weights=BOTH, state=state):
        state.save(path)
    with pytest.raises(DataError, match="weights of another model"):
        list(train(Noisy(), noise, config(), weights={"mse": 1.0}, state=TrainState.load(path)))


@pytest.mark.parametrize("lr", [float("inf"), float("nan")])
def test_a_learning_rate_that_is_no_number_is_refused(lr: float) -> None:
    with pytest.raises(DataError, match="finite") as caught:
        TrainConfig(epochs=1, steps=1, lr=lr)
    assert caught.value.code == Exit.USAGE


def test_what_is_random_in_a_step_follows_from_seed_step_and_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights_of(**changes: Any) -> tuple[str, list[float]]:
        model = Noisy()
        losses = []
        for record in train(model, noise, config(seed=3, **changes), weights={"mse": 1.0}):
            losses.append(record.get("loss", 0.0))
            torch.rand(7)  # what is drawn between two steps changes nothing
            torch.manual_seed(len(losses))
        return fingerprint(model), losses

    whole = weights_of(lr=0.0)
    monkeypatch.setattr(processes, "rank", lambda: 1)
    other = weights_of(lr=0.0)
    assert all(a != b for a, b in zip(whole[1][:-1], other[1][:-1], strict=True))
    monkeypatch.undo()
    assert weights_of(lr=0.0) == whole
    assert len(set(whole[1][:-1])) == len(whole[1]) - 1


def test_another_number_of_batches_per_step_resumes_at_the_same_step(tmp_path: Path) -> None:
    """Two processes of one batch per step, then one process of two: half the batches were done."""
    values = [1.0, 3.0, 5.0, 7.0, 2.0, 8.0]
    pairs = [sum(values[i : i + 2]) / 2 for i in range(0, 6, 2)]
    half = Line()
    state = TrainState()
    for record in train(half, numbers(*pairs), config(), weights=BOTH, state=state):
        if record["step"] == 2:
            state.save(tmp_path / "state")
            break
    model = Line()
    resumed = TrainState.load(tmp_path / "state")
    assert resumed.batch == 2
    two = config(accumulate=2)
    records = list(train(model, numbers(*values), two, weights=BOTH, state=resumed))
    unbroken = Line()
    expected = list(train(unbroken, numbers(*values), two, weights=BOTH))
    assert [r["step"] for r in records] == [3, 3]
    assert records[0]["loss"] == pytest.approx(expected[2]["loss"], rel=1e-6)
    assert model.w.item() == pytest.approx(unbroken.w.item(), rel=1e-6)
