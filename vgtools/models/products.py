"""Products of float32 matrices on a CPU, by oneDNN where it is the faster library.

`torch.mm` and `nn.Linear` compute them with MKL, which has not the best kernels of every processor:
on AMD with AVX-512 oneDNN is more than twice as fast (230 and 99 GFLOP/s on one core of an EPYC),
with AVX2, and on Intel, they are equal. torch has oneDNN's product of plain tensors as a private
operation only, so that a trial decides whether it is used: it must be there, right, and faster.
Where it is not, nothing is changed.
"""

from __future__ import annotations

import math
import os
import time
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from vgtools.io.remote import cached

Network = TypeVar("Network", bound=nn.Module)

_LEAST = 128  # width of a layer; smaller products take as long by either
# oneDNN takes at most this share of the time. Both lie far from the shares that were measured, so
# that a trial's noise decides nothing. GELU or a sum by the library of the product is one pass over
# memory less, which counts for more in a network than in a trial: trials with AVX-512 and AVX2 took
# 0.96 and 1.10 of torch's time, whole networks 0.93 and 1.04.
_GAIN = 0.8
_FUSED_GAIN = 1.03
_TURNS = 8
_ROWS = 512  # the tried product's, like the two that follow
_WIDTH = 384
_COLUMNS = 1536
_SETTINGS = ("ATEN_", "DNNL_", "MKL_", "ONEDNN_")  # that choose kernels


def quicken(network: Network) -> Network:
    """Let the linear layers of a network compute by `affine`; return the network.

    Their weights, names and types (`isinstance`) do not change.
    """
    if is_faster():
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


def plus_linear(layer: nn.Linear, x: Tensor, other: Tensor) -> Tensor:
    """Return layer(x) + other, without a gradient; by oneDNN in one pass over memory.

    Args:
        layer: from D to E.
        x: (N, D).
        other: (N, E).

    Returns:
        (N, E).
    """
    if _is_inferred(x):
        return _onednn_sum(x, layer.weight, layer.bias, other)
    found: Tensor = layer(x) + other
    return found


def linear_gelu(layer: nn.Linear, x: Tensor) -> Tensor:
    """Return GELU(layer(x)), (N, E), without a gradient; by oneDNN in one pass over memory."""
    if _is_inferred(x):
        return onednn(x, layer.weight.T, layer.bias, "gelu")
    return nn.functional.gelu(layer(x))


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return a b of (M, K) and (K, N), without a gradient; `out` is memory that it may take."""
    return onednn(a, b) if _fits(a, b) else torch.mm(a, b, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b of (M, K) and (K, N) to (M, N) numbers of the same or a wider type, in place."""
    if total.dtype == a.dtype and not _fits(a, b):
        total.addmm_(a, b)
    else:
        total += onednn(a, b) if _fits(a, b) else a @ b


def onednn(a: Tensor, b: Tensor, bias: Tensor | None = None, after: str = "none") -> Tensor:
    """Return a b + bias for (M, K) and (K, N) by oneDNN, if `is_faster` found it to work.

    Args:
        a: (M, K).
        b: (K, N).
        bias: (N,), or None.
        after: "gelu" for the GELU of each number.
    """
    found: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.T, bias, after, [], "none")
    return found


def _onednn_sum(x: Tensor, weight: Tensor, bias: Tensor | None, other: Tensor) -> Tensor:
    binary = torch.ops.mkldnn._linear_pointwise.binary
    found: Tensor = binary(x, other, weight, bias, "add")
    return found


def keeps_float32() -> bool:
    """Return whether products of float32 have its precision; a program may have asked for less."""
    settings = getattr(torch.backends.mkldnn, "matmul", None)  # since torch 2.9
    if settings is None:
        return torch.get_float32_matmul_precision() == "highest"
    return str(settings.fp32_precision) in ("none", "ieee")


def _fits(a: Tensor, b: Tensor) -> bool:
    on_cpu = a.device.type == "cpu" and a.dtype == b.dtype == torch.float32
    return on_cpu and bool(len(a)) and is_faster()


def _is_inferred(x: Tensor) -> bool:
    """Return whether oneDNN computes a layer of these numbers, and the GELU or sum after it."""
    on_cpu = x.device.type == "cpu" and x.dtype in (torch.float32, torch.bfloat16)
    other = torch.is_grad_enabled() or torch.is_autocast_enabled(x.device.type)
    other = other or torch.compiler.is_compiling()
    return on_cpu and not other and bool(len(x)) and is_faster(x.dtype, fused=True)


@cache
def is_faster(dtype: torch.dtype = torch.float32, fused: bool = False) -> bool:
    """Return whether oneDNN's products are right here, and faster than torch's own.

    The first trial's answer is kept for this machine: how a training rounds may not depend on how
    busy the machine is when it is resumed.

    Args:
        dtype: the matrices' type.
        fused: a GELU or a sum follows the product.
    """
    given = sorted(os.environ.items())
    settings = [f"{name}={value}" for name, value in given if name.startswith(_SETTINGS)]
    what = f"{dtype} {fused}"
    key = "\n".join([__name__, what, torch.__version__, _processor(), *settings])
    try:
        folder = cached(key, lambda part: (part / str(_trial(dtype, fused))).mkdir())
    except OSError:  # no place to keep it
        return _trial(dtype, fused)
    return (folder / "True").exists()


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    names = [line for line in lines if line.startswith(("model name", "flags"))]
    return "\n".join(names[:2])


def _trial(dtype: torch.dtype, fused: bool) -> bool:
    return _share(dtype, fused) <= (_FUSED_GAIN if fused else _GAIN)


@torch.no_grad()
def _share(dtype: torch.dtype, fused: bool) -> float:
    """Return oneDNN's time as a share of torch's, infinite where it is not right."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(_ROWS, _WIDTH, generator=numbers).to(dtype)
    weight = (torch.randn(_COLUMNS, _WIDTH, generator=numbers) / _WIDTH**0.5).to(dtype)
    bias = torch.randn(_COLUMNS, generator=numbers).to(dtype)
    other = torch.randn(_ROWS, _COLUMNS, generator=numbers).to(dtype)

    def by_torch() -> list[Tensor]:
        if not fused:
            return [torch.addmm(bias, x, weight.T)]
        gelu = nn.functional.gelu(torch.addmm(bias, x, weight.T))
        return [gelu, torch.addmm(bias, x, weight.T) + other]

    def by_onednn() -> list[Tensor]:
        if not fused:
            return [onednn(x, weight.T, bias)]
        return [onednn(x, weight.T, bias, "gelu"), _onednn_sum(x, weight, bias, other)]

    # Any order of the sums in float32 keeps within this bound of the float64 product; GELU is not
    # steeper than 1.13, and computed to some units of the last place. bfloat16 is rounded once.
    sums = x.abs().float() @ weight.abs().float().T + bias.abs()
    error = 2 * (_WIDTH + 1) * torch.finfo(torch.float32).eps * sums
    exact = x.double() @ weight.double().T + bias
    expected = [nn.functional.gelu(exact), exact + other] if fused else [exact]
    try:
        for found, true in zip(by_onednn(), expected, strict=True):
            allowed = error + torch.finfo(dtype).eps * true.abs()
            if not bool(((found - true).abs() <= allowed).all()):
                return math.inf
    except Exception:  # a private operation may change in any way
        return math.inf
    seconds = list[tuple[float, ...]]()
    for _ in range(_TURNS):
        start = time.thread_time()  # other processes do not count
        by_onednn()
        middle = time.thread_time()
        by_torch()
        seconds.append((middle - start, time.thread_time() - middle))
    mine, theirs = map(min, zip(*seconds, strict=True))
    return float(mine / theirs)


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
