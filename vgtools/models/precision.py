"""Numbers that products are computed with; the weights stay float32."""

from __future__ import annotations

import contextlib

import torch


def autocast(device: torch.device, dtype: torch.dtype) -> contextlib.AbstractContextManager[object]:
    """Return the context in which products on a device are computed in a dtype."""
    if torch.finfo(dtype).bits >= 32:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype)
