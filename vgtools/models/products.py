"""Matrix products in float32 by the faster library of torch's two.

On a CPU `torch.mm` and `nn.Linear` compute float32 with MKL, `nn.LSTM` with oneDNN. On AMD MKL
reaches half of what oneDNN does (104 to 221 GFLOP/s, one core of an EPYC).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x W + b; on a CPU in float32 by oneDNN, where torch has it.

    Args:
        x: (N, D).
        weight: (D, E).
        bias: (E,).

    Returns:
        (N, E).
    """
    fits = x.device.type == "cpu" and x.dtype == weight.dtype == bias.dtype == torch.float32
    if not fits or not len(x) or not _has_onednn():
        return torch.addmm(bias, x, weight)
    product: Tensor = _Affine.apply(x, weight, bias)
    return product


@cache
def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b + bias of (M, K) and (K, N): of oneDNN's, the one that takes plain tensors."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, bias, "none", [], "")
    return found


class _Affine(torch.autograd.Function):
    """That operation has no gradient in torch: its three products, by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        (gradient,) = outer
        to_x = _product(gradient, weight.T) if ctx.needs_input_grad[0] else None
        return to_x, _product(x.T, gradient), gradient.sum(0)
