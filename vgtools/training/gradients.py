"""Gradients averaged over the processes while the backward pass still computes others.

Parameters are sent in buckets, the last layers first: a bucket goes out as soon as all its
gradients are there, as float32 or, in half the bytes, as bfloat16. All processes send the same
buckets in the same order, whatever happens in one of them: where memory ran out, the remaining
buckets go out as they are, and all repeat the step. torch's DistributedDataParallel cannot: after
an error in the backward pass of one process it refuses the next step there, and the others wait
for its buckets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vgtools.training import processes

_BUCKET = 1 << 23  # numbers that are sent at a time: 32 MB of float32


@contextmanager
def shared_gradients(
    model: nn.Module, dtype: torch.dtype = torch.float32
) -> Iterator[Gradients | None]:
    """Send the gradients of a model while a block trains it; with one process there are none."""
    if not processes.active():
        yield None
        return
    gradients = Gradients(model, dtype=dtype)
    try:
        yield gradients
    finally:
        gradients.close()


class Gradients:
    """The gradients of a model that several processes train.

    Args:
        model: whose parameters are in the same order in every process.
        bucket: numbers that are sent at a time.
        dtype: float32, or bfloat16, in which they are added up as well.
    """

    def __init__(
        self, model: nn.Module, bucket: int = _BUCKET, dtype: torch.dtype = torch.float32
    ) -> None:
        self._dtype = dtype
        self._parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self._buckets = list[list[Tensor]]()
        size = bucket
        # The backward pass computes the gradients of the last layers first, so that the first
        # bucket is full early.
        for parameter in reversed(self._parameters):
            if size >= bucket:
                self._buckets.append([])
                size = 0
            self._buckets[-1].append(parameter)
            size += parameter.numel()
        self._place = {p: i for i, part in enumerate(self._buckets) for p in part}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._ready)
            for parameter in self._parameters
        ]
        self._missing = list[int]()  # gradients that each bucket waits for
        self._sent = list[tuple[Tensor, Any]]()
        self._sending = False

    def close(self) -> None:
        """Let go of the model."""
        for hook in self._hooks:
            hook.remove()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send gradients during the block, the last backward pass of a step."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._sending = True
        try:
            yield
        finally:
            self._sending = False

    def _ready(self, parameter: Tensor) -> None:
        if not self._sending:
            return
        # Buckets go out in order, even if a later bucket is full first: every process must start
        # the same collective operations in the same order.
        self._missing[self._place[parameter]] -= 1
        while len(self._sent) < len(self._buckets) and not self._missing[len(self._sent)]:
            self._send()

    def _send(self) -> None:
        """Send the next bucket; a parameter without a gradient here counts as 0."""
        bucket = self._buckets[len(self._sent)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([grad.reshape(-1).float() for grad in grads])
        # Divided before it is rounded, as in torch's `bf16_compress_hook`: the sum is the mean.
        flat = (flat / processes.world()).to(self._dtype)
        self._sent.append((flat, processes.add_up(flat)))

    def average(self, values: Tensor) -> Tensor:
        """Wait for the means of all gradients, and put them in place.

        Args:
            values: (n,) float32 of this process.

        Returns:
            (n,) their means. A parameter without a gradient in any process keeps none.
        """
        while len(self._sent) < len(self._buckets):
            self._send()
        device = self._parameters[0].device
        # Adam decays the moments of a parameter with a gradient of 0, but skips a parameter without
        # one; whether any process has one goes along with the values.
        used = torch.tensor([float(p.grad is not None) for p in self._parameters])
        both = torch.cat([values.to(device), used.to(device)])
        processes.average([both])
        means = both[: len(values)]
        learned = dict(zip(self._parameters, both[len(values) :].tolist(), strict=True))
        for bucket, (flat, work) in zip(self._buckets, self._sent, strict=True):
            processes.wait(work)
            parts = flat.split([p.numel() for p in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                mean = part.view_as(parameter).to(parameter.dtype)
                parameter.grad = mean if learned[parameter] else None
        self._sent = []
        return means
