"""Batch norms folded into the convolutions before them: the same features from an image network in fewer passes over memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn


@torch.inference_mode()
def fold_norms(model: nn.Module, size: tuple[int, int, int]) -> int:
    """Fold batch norms into the convolutions whose outputs they read, in place.

    In evaluation a batch norm is a scale and a shift for each channel, which the weights and the bias of a convolution can
    take over. Which convolution a norm reads is seen in a forward pass. Where an output has a second reader (a shortcut) the
    features of a random picture change: then everything is put back.

    Args:
        model: a timm network in eval mode.
        size: (channels, height, width) of its input.

    Returns:
        How many norms were folded.
    """
    from timm.layers import BatchNormAct2d
    from timm.layers.conv2d_same import Conv2dSame

    weight = next(model.parameters())
    picture = torch.randn((1, *size), generator=torch.Generator().manual_seed(0)).to(weight)
    made, calls, pairs = dict[int, tuple[nn.Conv2d, Tensor]](), Counter[nn.Module](), list[tuple[nn.Conv2d, Any]]()

    def after(module: nn.Module, given: Any, out: Tensor) -> None:
        made[id(out)] = module, out  # type: ignore[assignment]  # the tensor is kept: its id stays its own
        calls[module] += 1

    def before(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        calls[module] += 1
        if id(given[0]) in made:
            pairs.append((made[id(given[0])][0], module))

    handles = list[Any]()
    for module in model.modules():
        if type(module) in (nn.Conv2d, Conv2dSame):  # not those that compute their weights anew, as ScaledStdConv2d
            handles.append(module.register_forward_hook(after))
        elif type(module) in (nn.BatchNorm2d, BatchNormAct2d) and module.running_var is not None:
            handles.append(module.register_forward_pre_hook(before))
    wanted = model.forward_features(picture)  # type: ignore[operator]
    for handle in handles:
        handle.remove()
    made.clear()
    pairs = [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == 1]
    old = [(conv.weight, conv.bias) for conv, _ in pairs]
    parents = {id(child): (parent, name) for parent in model.modules() for name, child in parent.named_children()}
    for conv, norm in pairs:
        _fold(conv, norm)
        rest = nn.Sequential(norm.drop, norm.act) if isinstance(norm, BatchNormAct2d) else nn.Identity()
        setattr(*parents[id(norm)], rest)
    found = model.forward_features(picture)  # type: ignore[operator]
    error = (found.float() - wanted.float()).norm() / wanted.float().norm()
    if error <= 1000 * torch.finfo(weight.dtype).eps:  # 1e-4 of float32
        return len(pairs)
    for (conv, norm), (own, bias) in zip(pairs, old, strict=True):
        conv.weight, conv.bias = own, bias
        setattr(*parents[id(norm)], norm)
    return 0


def _fold(conv: nn.Conv2d, norm: Any) -> None:
    """Give a convolution the scale and shift of the norm behind it, worked out in float64."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double() if conv.bias is None else conv.bias.double() - norm.running_mean.double()
    shift = shift * scale if norm.bias is None else shift * scale + norm.bias.double()
    weight = (conv.weight.double() * scale.view(-1, 1, 1, 1)).to(conv.weight.dtype)
    conv.weight = nn.Parameter(weight, requires_grad=False)
    conv.bias = nn.Parameter(shift.to(conv.weight.dtype), requires_grad=False)
