"""Gradients are sent while the backward pass runs, in one order, and are what they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from vgtools.training import gradients as module
from vgtools.training import processes
from vgtools.training.gradients import Gradients
from vgtools.training.loop import TrainConfig, TrainState, train


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Join a group of one process: everything is sent, and comes back as it is."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    monkeypatch.setattr(processes, "active", lambda: True)
    yield
    distributed.destroy_process_group()


class Net(nn.Module):
    """Three layers, and one that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.unused = nn.Linear(4, 4)

    def forward(self, batch: Tensor) -> dict[str, Tensor]:
        for layer in self.layers:
            batch = torch.tanh(layer(batch))
        return {"sum": batch.sum()}


def data() -> Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(1))


def test_bfloat16_is_half_the_bytes_and_rounds_each_gradient_once(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    real = processes.add_up
    monkeypatch.setattr(
        processes, "add_up", lambda tensor: sent.append(tensor.nbytes) or real(tensor)
    )
    grads = []
    for dtype in (torch.float32, torch.bfloat16):
        model = Net()
        shared = Gradients(model, dtype=dtype)
        with shared.sending():
            model(data())["sum"].backward()
        shared.average(torch.zeros(1))
        grads.append([p.grad for p in model.parameters() if p.grad is not None])
    losses = 4 * (1 + 8)  # and whether each parameter has a gradient, as float32
    assert sent == [4 * 80, losses, 2 * 80, losses]
    for exact, rounded in zip(*grads, strict=True):
        assert rounded.dtype == torch.float32, "the optimiser's numbers"
        assert torch.equal(rounded, exact.bfloat16().float())


@pytest.mark.parametrize("bucket", [1, 25, 1 << 23])
def test_gradients_are_those_of_the_backward_pass(alone: None, bucket: int) -> None:
    plain = Net()
    plain(data())["sum"].backward()
    model = Net()
    shared = Gradients(model, bucket)
    with shared.sending():
        model(data())["sum"].backward()
    assert shared.average(torch.tensor([2.5, 0.0])).tolist() == [2.5, 0.0]
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert (mine.grad is None) == (other.grad is None)
        assert mine.grad is None or torch.equal(mine.grad, other.grad)
    assert model.unused.weight.grad is None, "it would be decayed"
    shared.close()
    model(data())["sum"].backward()
    assert shared._sent == []


def test_the_last_layers_are_sent_before_the_first_have_gradients(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    sent: list[tuple[int, bool]] = []
    real = processes.add_up

    def add_up(tensor: Tensor) -> Any:
        sent.append((tensor.numel(), model.layers[0].weight.grad is not None))
        return real(tensor)

    monkeypatch.setattr(processes, "add_up", add_up)
    monkeypatch.setattr(module, "_BUCKET", 20)
    model.unused.requires_grad_(False)
    shared = Gradients(model, 20)
    with shared.sending():
        model(data())["sum"].backward()
    assert sent == [(20, False), (20, False), (20, True)], "a layer each, the last one first"
    shared.average(torch.zeros(1))
    assert len(sent) == 4, "then losses, and which parameters have a gradient"


def test_a_bucket_that_is_never_ready_goes_out_at_the_end_in_its_turn(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    order: list[float] = []
    real = processes.add_up
    monkeypatch.setattr(
        processes, "add_up", lambda tensor: order.append(float(tensor.abs().sum())) or real(tensor)
    )
    shared = Gradients(model, 20)
    with shared.sending():
        model(data())["sum"].backward()
    assert order == [], "the unused layer is first, and all processes keep to the order"
    shared.average(torch.zeros(1))
    assert order[0] == 0
    assert all(order[1:4])


def test_only_the_last_batch_of_a_step_sends(alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Net()
    seen: list[int] = []
    real = processes.add_up
    monkeypatch.setattr(
        processes, "add_up", lambda tensor: seen.append(tensor.numel()) or real(tensor)
    )
    config = TrainConfig(epochs=1, steps=2, lr=0.1, accumulate=3, log_every=1)
    list(train(model, lambda epoch, first: [data()] * 6, config, weights={"sum": 1.0}))
    numbers = 4 * 20
    assert seen == [numbers, 2 + 1 + 8] * 2, "gradients; two losses, a flag and 8 parameters"


def test_a_lack_of_memory_repeats_the_step_with_all_that_is_sent(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(Net):
        """Runs out of memory with more than 3 rows, and once in the middle of a backward pass."""

        failed = False

        def forward(self, batch: Tensor) -> dict[str, Tensor]:
            if len(batch) > 3:
                raise torch.OutOfMemoryError("out of memory")
            if not self.failed:
                self.failed = True
                self.layers[0].weight.register_hook(self.fail)
            return super().forward(batch)

        def fail(self, gradient: Tensor) -> Tensor:
            if self.failed == 1:
                self.failed = 2
                raise torch.OutOfMemoryError("out of memory")
            return gradient

    def halve(batch: Tensor) -> tuple[Tensor, ...]:
        middle = len(batch) // 2
        return (batch[:middle], batch[middle:]) if middle else (batch,)

    config = TrainConfig(epochs=1, steps=2, lr=0.1, clip=0.0, log_every=1)
    models: list[nn.Module] = []
    states: list[TrainState] = []
    for kind in (Net, Large):
        models.append(kind())
        states.append(TrainState())
        batches = lambda epoch, first: [data(), data()]  # noqa: E731
        records = train(
            models[-1], batches, config, weights={"sum": 1.0}, state=states[-1], halve=halve
        )
        assert [record["step"] for record in records] == [1, 2, 2]
    assert states[1].notes["pieces"] == 4, "halved twice"
    for mine, other in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(mine, other)
