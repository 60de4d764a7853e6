"""Linear layers in float32 by the faster library of torch's two.

On a CPU `torch.mm` and `nn.Linear` compute float32 with MKL, `nn.LSTM` and convolutions with
oneDNN. On AMD MKL leaves AVX-512 unused: it reaches less than half of oneDNN's speed (99 and 230
GFLOP/s on one core of an EPYC). On other processors nothing is changed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Network = TypeVar("Network", bound=nn.Module)

_LEAST = 128  # width of a layer; smaller products take as long by either


def quicken(network: Network) -> Network:
    """Let the linear layers of a network compute by `affine`; return the network.

    Their weights, names and types (`isinstance`) do not change.
    """
    if _is_faster():
        for layer in network.modules():
            if type(layer) is nn.Linear and min(layer.weight.shape) >= _LEAST:
                # Only the class is replaced: the parameters stay the same objects, which optimizers
                # and tied weights refer to.
                layer.__class__ = Linear
    return network


class Linear(nn.Linear):
    """`nn.Linear` by `affine`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x A^T + b: (..., D) -> (..., E)."""
        # Autocast does not know `_Affine`; it lowers the precision of torch's own product alone.
        if torch.is_autocast_enabled(x.device.type):
            return super().forward(x)
        product = affine(x.reshape(-1, x.shape[-1]), self.weight.T, self.bias)
        return product.view(*x.shape[:-1], self.out_features)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W + b; in float32 by oneDNN where that is faster.

    Args:
        x: (N, D).
        weight: (D, E).
        bias: (E,), or None.

    Returns:
        (N, E).
    """
    fits = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    if not fits or not len(x) or not _is_faster():
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    product: Tensor = _Affine.apply(x, weight, bias)
    return product


@cache
def _is_faster() -> bool:
    has = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return has and torch.backends.cpu.get_cpu_capability() == "AVX512" and _is_amd()


def _is_amd() -> bool:
    facts = Path("/proc/cpuinfo")
    return facts.exists() and "AuthenticAMD" in facts.read_text()


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b + bias for (M, K) and (K, N), by oneDNN's operation that takes plain tensors."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, bias, "none", [], "")
    return found


class _Affine(torch.autograd.Function):
    """The same product with its gradients by hand, because torch has none for that operation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (gradient,) = outer
        to_x, to_weight, to_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.T) if to_x else None,
            _product(x.T, gradient) if to_weight else None,
            gradient.sum(0) if to_bias else None,
        )
