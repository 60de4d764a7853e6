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

from vgtools.io import trust
from vgtools.io.errors import DataError, Exit, is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

Value = TypeVar("Value")
_STEP = timedelta(minutes=10)  # a process that needs longer for a step is taken for lost
_WORK = timedelta(hours=6)  # the others wait while the first process packs or evaluates

_patient: Any = None  # the group of processes that wait for `_WORK`


def world() -> int:
    """Return the number of processes that the launcher started."""
    count = _number("WORLD_SIZE", 1, 1)
    if count > 1:
        _check_set("RANK", count)
    return count


def _check_set(name: str, count: int) -> None:
    if not os.environ.get(name):
        why = f"WORLD_SIZE is {count}, but {name} is not set; start with torchrun"
        raise DataError(f"{why}, or unset WORLD_SIZE", code=Exit.USAGE)


def rank() -> int:
    """Return the number of this process, from 0."""
    return _number("RANK", 0, 0) if world() > 1 else 0


def _number(name: str, least: int, default: int) -> int:
    """Return a number that a launcher, now or in the past, put into the environment."""
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
    """Join the processes of a launcher for a while; with one, or joined already, do nothing.

    A process that is lost ends the others within minutes, in the middle of a step; the work that
    the first process does alone may take hours, and has a group of its own.
    """
    global _patient
    if world() == 1 or active():
        yield
        return
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        _check_set(name, world())
    from torch import distributed

    distributed.init_process_group("nccl" if on_gpu else "gloo", timeout=_STEP)
    _patient = distributed.new_group(backend="gloo", timeout=_WORK)
    try:
        yield
    finally:
        _patient = None
        distributed.destroy_process_group()


def active() -> bool:
    """Return whether processes are joined now."""
    if world() == 1:
        return False
    from torch import distributed

    return distributed.is_initialized()


@contextmanager
def _answered() -> Iterator[None]:
    """Name the way out if another process is lost.

    Raises:
        DataError: another process was lost or did not answer (75).
    """
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = str(error).strip().splitlines()[0]
        why = f"another process was lost, or did not answer in time ({reason:.200})"
        way_out = "run the same command again: any number of processes resumes it"
        raise DataError(f"{why}; {way_out}", code=Exit.STOPPED) from None


@contextmanager
def after_first() -> Iterator[None]:
    """Let the first process run a block, then all others at once.

    The first process makes the files that the others find, hashes them and checks their contents;
    the others compare sizes and times, and map them. So the start takes as long as with two
    processes, however many there are.

    Raises:
        DataError: the first process's error, in all of them; or the block failed in another
            process.
    """
    if not active():
        yield
        return
    problem: Exception | None = None
    if rank() == 0:
        with trust.noting() as known:
            try:
                yield
            # The others must learn of the error before it is raised here, or would wait for hours.
            except Exception as error:
                problem = error
        said = problem if isinstance(problem, DataError) else problem and _failed(repr(problem))
        _from_first((known, said))
        if problem is not None:
            raise problem
    else:
        known, said = _from_first(None)
        if said is not None:
            raise said
        with trust.trusting(known):
            try:
                yield
            except Exception as error:
                problem = error
    someone = _any_failed(problem)
    if problem is not None:
        raise problem
    if someone:
        raise _failed("see its message")


def _failed(reason: str) -> DataError:
    return DataError(f"another process failed: {reason}", code=Exit.CANNOT_CONTINUE)


def _any_failed(problem: Exception | None) -> bool:
    """Return whether a process has a problem; all wait for one another, hours if need be."""
    from torch import distributed

    found: list[Any] = [None] * world()
    with _answered():
        distributed.all_gather_object(found, problem is not None, group=_patient)
    return any(found)


def on_first(work: Callable[[], Value]) -> Value:
    """Return the first process's result in every process; a `DataError` is raised in all of them.

    The result must pickle.
    """
    if not active():
        return work()
    answer: Any = None
    if rank() == 0:
        try:
            answer = work()
        except DataError as error:  # sent to the others, which would wait for hours
            answer = error
    answer = _from_first(answer)
    if isinstance(answer, DataError):
        raise answer
    return answer  # type: ignore[no-any-return]


def _from_first(value: Any) -> Any:
    """Return the first process's value in every process; the others wait for it, even for hours."""
    from torch import distributed

    held = [value]
    with _answered():
        distributed.broadcast_object_list(held, group=_patient)
    return held[0]


def total(values: Sequence[float]) -> list[float]:
    """Return the sums of some numbers over the processes."""
    if not active():
        return [*values]
    import torch
    from torch import distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    sums = torch.tensor(values, dtype=torch.float64, device=device)
    with _answered():
        distributed.all_reduce(sums)
    return [float(value) for value in sums.tolist()]


def average(tensors: Iterable[Tensor]) -> None:
    """Replace tensors by their means over the processes, in place."""
    if not active():
        return
    for tensor in tensors:
        wait(add_up(tensor))
        tensor /= world()


def add_up(tensor: Tensor) -> Any:
    """Replace a tensor by its sum over the processes; the sum is there after `wait`."""
    from torch import distributed

    with _answered():
        return distributed.all_reduce(tensor, async_op=True)


def wait(work: Any) -> None:
    """Wait for a result of `add_up`."""
    with _answered():
        work.wait()


def gather(tensor: Tensor) -> list[Tensor]:
    """Return a CPU tensor of every process, in their order; all have the same shape."""
    if not active():
        return [tensor]
    import torch
    from torch import distributed

    # NCCL, which joins GPUs, cannot send tensors of the CPU.
    device = torch.device("cuda") if distributed.get_backend() == "nccl" else tensor.device
    tensors = [torch.empty_like(tensor, device=device) for _ in range(world())]
    with _answered():
        distributed.all_gather(tensors, tensor.to(device))
    return [t.cpu() for t in tensors]


def anywhere(*flags: bool) -> tuple[bool, ...]:
    """Return for each flag whether any process raised it: all go the same way."""
    if not active():
        return flags
    import torch

    return tuple(torch.stack(gather(torch.tensor(flags, dtype=torch.uint8))).any(0).tolist())
