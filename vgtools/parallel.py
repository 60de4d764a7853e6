"""Several processes that train one model: torchrun or accelerate starts them, torch.distributed joins them.

Every process runs the same command on its own part of each step. Without a launcher there is one process, and nothing here
does anything. Only the first process writes and prints.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_PATIENCE = timedelta(hours=6)  # the others wait while the first process evaluates or packs


def world() -> int:
    """Return the number of processes, as the launcher says it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """Return the number of this process, from 0."""
    return int(os.environ.get("RANK", "0")) if world() > 1 else 0


def device_name(name: str) -> str:
    """Return this process's own device: the GPU of its number on this machine where there are GPUs."""
    import torch

    if world() > 1 and name in ("auto", "cuda") and torch.cuda.is_available():
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    return name


@contextmanager
def joined(on_gpu: bool = False) -> Iterator[None]:
    """Join the processes of a launcher for a while; with one process do nothing."""
    if world() == 1:
        yield
        return
    from torch import distributed

    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=_PATIENCE)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def active() -> bool:
    """Say whether processes are joined now."""
    if world() == 1:
        return False
    from torch import distributed

    return distributed.is_initialized()


@contextmanager
def in_turn() -> Iterator[None]:
    """Let one process after the other run a block, the first one first: it makes what the others find."""
    if not active():
        yield
        return
    from torch import distributed

    for turn in range(world()):
        if turn == rank():
            yield
        distributed.barrier()


def average(tensors: Iterable[Tensor], together: int = 1 << 24) -> None:
    """Replace tensors by their mean over the processes, in place, many in one message."""
    if not active():
        return
    import torch
    from torch import distributed

    def send(bucket: Sequence[Tensor]) -> None:
        flat = torch.cat([t.reshape(-1) for t in bucket])
        distributed.all_reduce(flat)
        flat /= world()
        for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
            tensor.copy_(part.view_as(tensor))

    bucket, size = list[torch.Tensor](), 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.numel()
        if size >= together:
            send(bucket)
            bucket, size = [], 0
    if bucket:
        send(bucket)


def gather(tensor: Tensor) -> list[Tensor]:
    """Return a CPU tensor of every process, in their order; all have the same shape."""
    if not active():
        return [tensor]
    import torch
    from torch import distributed

    where = torch.device("cuda") if distributed.get_backend() == "nccl" else tensor.device
    found = [torch.empty_like(tensor, device=where) for _ in range(world())]
    distributed.all_gather(found, tensor.to(where))
    return [t.cpu() for t in found]


def anywhere(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether any process raised it: all go the same way."""
    if not active():
        return flags
    import torch

    return tuple(torch.stack(gather(torch.tensor(flags, dtype=torch.uint8))).any(0).tolist())
