"""Products of float32 matrices on a CPU, by oneDNN where it is the faster library.

`torch.mm` and `nn.Linear` compute them with MKL, numpy with OpenBLAS, and neither has the best
kernels of every processor: on AMD with AVX-512 oneDNN is more than twice as fast as MKL (230 and 99
GFLOP/s on one core of an EPYC), with AVX2 they are equal. torch has oneDNN's product of plain
tensors as a private operation only, so that a trial decides whether it is used: it must be there,
right, and faster. Where it is not, nothing is changed.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vgtools.io.remote import cached

Network = TypeVar("Network", bound=nn.Module)

_LEAST = 128  # width of a layer; smaller products take as long by either
_GAIN = 0.8  # oneDNN takes at most this share of the time: less is within the noise of a trial
_TURNS = 8
# Rows, width and columns of the products that are tried: a layer's, and a block's of the search.
_SHAPES = {"torch": (512, 512, 512), "numpy": (512, 64, 3125)}
_SETTINGS = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_", "OPENBLAS_CORETYPE")  # that choose kernels


def quicken(network: Network) -> Network:
    """Let the linear layers of a network compute by `affine`; return the network.

    Their weights, names and types (`isinstance`) do not change.
    """
    if is_faster("torch"):
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
    # Autocast and the compiler do not know `_Affine`; they change torch's own product alone.
    other = torch.compiler.is_compiling() or torch.is_autocast_enabled(x.device.type)
    if other or not _fits(x, weight):
        return x @ weight if bias is None else torch.addmm(bias, x, weight)
    if not torch.is_grad_enabled():  # an autograd function takes 40 us, a tenth of a short text
        return onednn(x, weight, bias)
    found: Tensor = _Affine.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return found


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a b of (M, K) and (K, N), without a gradient; `out` is memory that it may take."""
    return onednn(a, b) if _fits(a, b) else torch.mm(a, b, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b of (M, K) and (K, N) to (M, N) numbers of the same or a wider type, in place."""
    if total.dtype == a.dtype and not _fits(a, b):
        total.addmm_(a, b)
    else:
        total += onednn(a, b) if _fits(a, b) else a @ b


def onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b + bias for (M, K) and (K, N) by oneDNN, if `is_faster` found it to work."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, bias, "none", [], "")
    return found


def _fits(a: Tensor, b: Tensor) -> bool:
    on_cpu = a.device.type == "cpu" and a.dtype == b.dtype == torch.float32
    return on_cpu and bool(len(a)) and is_faster("torch")


@cache
def is_faster(than: str) -> bool:
    """Return whether oneDNN's product is right here, and faster than `torch` or `numpy`.

    The first trial's answer is kept for this machine: how a training rounds may not depend on how
    busy the machine is when it is resumed.
    """
    given = sorted(os.environ.items())
    settings = [f"{name}={value}" for name, value in given if name.startswith(_SETTINGS)]
    versions = (torch.__version__, np.__version__)
    key = "\n".join([__name__, than, *versions, _processor(), *settings])
    try:
        folder = cached(key, lambda part: (part / str(_trial(than))).mkdir())
    except OSError:  # no place to keep it
        return _trial(than)
    return (folder / "True").exists()


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line for line in lines if line.startswith(("model name", "flags"))]
    return "\n".join(names[:2])


@torch.no_grad()
def _trial(than: str) -> bool:
    rows, width, columns = _SHAPES[than]
    numbers = torch.Generator().manual_seed(0)
    a = torch.randn(rows, width, generator=numbers)
    b = torch.randn(columns, width, generator=numbers).T
    bias = torch.randn(columns, generator=numbers)
    out = np.empty((rows, columns), np.float32)

    def other() -> object:
        by_torch = than == "torch"
        return torch.addmm(bias, a, b) if by_torch else np.matmul(a.numpy(), b.numpy(), out=out)

    # Any order of the sums keeps within this bound of the float64 product.
    error = (width + 1) * torch.finfo(a.dtype).eps * (a.abs() @ b.abs() + bias.abs())
    exact = a.double() @ b.double() + bias
    try:
        right = bool(((onednn(a, b, bias) - exact).abs() <= error).all())
    except Exception:  # a private operation may change in any way
        return False
    if not right:
        return False
    seconds = list[tuple[float, ...]]()
    for _ in range(_TURNS):
        start = time.thread_time()  # other processes do not count
        onednn(a, b, bias)
        middle = time.thread_time()
        other()
        seconds.append((middle - start, time.thread_time() - middle))
    mine, theirs = map(min, zip(*seconds, strict=True))
    return bool(mine <= _GAIN * theirs)


class _Affine(torch.autograd.Function):
    """The same product with its gradients by hand, because torch has none for that operation."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return onednn(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        (gradient,) = outer
        to_x, to_weight, to_bias = ctx.needs_input_grad
        # By `affine`, so that the gradients have gradients as well.
        return (
            affine(gradient, weight.T, None) if to_x else None,
            # In the layout of a layer's (E, D), which autograd keeps without a copy.
            affine(gradient.T, x, None).T if to_weight else None,
            gradient.sum(0) if to_bias else None,
        )
