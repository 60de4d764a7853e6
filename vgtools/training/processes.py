"""Several processes train one model: torchrun or accelerate starts, torch.distributed joins them.

Every process runs the same command on its own part of each step. Without a launcher there is one
process, and nothing here does anything. Only the first process writes and prints.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from vgtools.io import DataError, Exit

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")
_PATIENCE = timedelta(hours=6)  # the others wait while the first process evaluates or packs


def world() -> int:
    """Return the number of processes that the launcher started."""
    count = _number("WORLD_SIZE", 1, 1)
    if count > 1 and not os.environ.get("RANK"):
        why = f"WORLD_SIZE is {count}, but RANK is not set; start with torchrun"
        raise DataError(f"{why}, or unset WORLD_SIZE", code=Exit.USAGE)
    return count


def rank() -> int:
    """Return the number of this process, from 0."""
    return _number("RANK", 0, 0) if world() > 1 else 0


def _number(name: str, least: int, default: int) -> int:
    """Return what a launcher, or what was left over of one, says in the environment."""
    value = os.environ.get(name) or str(default)
    if not value.isascii() or not value.isdigit() or int(value) < least:
        why = f"{name} must be an integer from {least}, got {value!r:.40}"
        raise DataError(f"{why}; unset it, or use torchrun", code=Exit.USAGE)
    return int(value)


def device_name(name: str) -> str:
    """Return this process's own device: the GPU of its number on this machine if there are GPUs."""
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
    """Return whether processes are joined now."""
    if world() == 1:
        return False
    from torch import distributed

    return distributed.is_initialized()


@contextmanager
def in_turn() -> Iterator[None]:
    """Let one process after the other run a block; the first one makes what the others find."""
    if not active():
        yield
        return
    from torch import distributed

    problem: Exception | None = None
    for turn in range(world()):
        if turn == rank():
            try:
                yield
            except Exception as error:  # only after the turns of the others, who would wait for us
                problem = error
        distributed.barrier()
    if problem is not None:
        raise problem


def on_first(work: Callable[[], Value]) -> Value:
    """Return in every process what the first one computes; a `DataError` is raised in all of them.

    The result must pickle.
    """
    if not active():
        return work()
    from torch import distributed

    answer: list[Any] = [None]
    if rank() == 0:
        try:
            answer[0] = work()
        except DataError as error:  # else the others would wait for hours
            answer[0] = error
    distributed.broadcast_object_list(answer)
    if isinstance(answer[0], DataError):
        raise answer[0]
    return answer[0]  # type: ignore[no-any-return]


def average(tensors: Iterable[Tensor], bucket_size: int = 1 << 24) -> None:
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

    bucket = list[torch.Tensor]()
    size = 0
    for tensor in tensors:
        bucket.append(tensor)
        size += tensor.numel()
        if size >= bucket_size:
            send(bucket)
            bucket = []
            size = 0
    if bucket:
        send(bucket)


def gather(tensor: Tensor) -> list[Tensor]:
    """Return a CPU tensor of every process, in their order; all have the same shape."""
    if not active():
        return [tensor]
    import torch
    from torch import distributed

    device = torch.device("cuda") if distributed.get_backend() == "nccl" else tensor.device
    tensors = [torch.empty_like(tensor, device=device) for _ in range(world())]
    distributed.all_gather(tensors, tensor.to(device))
    return [t.cpu() for t in tensors]


def anywhere(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether any process raised it: all go the same way."""
    if not active():
        return flags
    import torch

    return tuple(torch.stack(gather(torch.tensor(flags, dtype=torch.uint8))).any(0).tolist())
