"""The devices that a test runs on: a CPU always, a GPU where there is one (`pytest -m gpu`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

ON_GPU = (
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
)
GPU = pytest.param("cuda", marks=ON_GPU)
# On a CPU a test compares the processor with itself, so that its own code runs everywhere.
on_devices = pytest.mark.parametrize("device", ["cpu", GPU])


@contextmanager
def gpu_memory(mib: int) -> Iterator[None]:
    """Leave so many MiB of a GPU's memory to this process; on a CPU nothing changes."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.empty_cache()
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (mib << 20)) / whole)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
