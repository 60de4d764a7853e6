"""Copies to the device that computes."""

from __future__ import annotations

import torch
from torch import Tensor

from vgtools.io.arrays import Array


def to_device(values: Array | Tensor, device: torch.device | str) -> Tensor:
    """Return numbers as a tensor on a device; a copy to a GPU does not keep the caller waiting."""
    tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        # Only from pinned memory a GPU copies while the processor computes; torch keeps the block
        # until the copy is done.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
