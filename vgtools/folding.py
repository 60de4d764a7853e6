"""Fold batch norms into the convolutions before them: same features, fewer passes over memory."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn


@torch.inference_mode()
def fold_norms(model: nn.Module, size: tuple[int, int, int]) -> int:
    """Fold batch norms into the convolutions whose outputs they read, in place.

    In evaluation a batch norm is a scale and a shift per channel, which the weights and the bias
    of a convolution can take over. A forward pass shows which convolution a norm reads. Where an
    output has a second reader (a shortcut), the features of a random picture change, and
    everything is put back.

    Args:
        model: a timm network in eval mode.
        size: (channels, height, width) of its input.

    Returns:
        How many norms were folded.
    """
    from timm.layers import BatchNormAct2d

    weight = next(model.parameters())
    picture = torch.randn((1, *size), generator=torch.Generator().manual_seed(0)).to(weight)
    pairs, before = _find_pairs(model, picture)
    old = [(conv.weight, conv.bias) for conv, _ in pairs]
    parents = {
        id(child): (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
    }
    for conv, norm in pairs:
        _fold(conv, norm)
        has_act = isinstance(norm, BatchNormAct2d)
        rest = nn.Sequential(norm.drop, norm.act) if has_act else nn.Identity()
        setattr(*parents[id(norm)], rest)
    after = model.forward_features(picture)  # type: ignore[operator]
    error = (after.float() - before.float()).norm() / before.float().norm()
    if error <= 1000 * torch.finfo(weight.dtype).eps:  # 1e-4 of float32
        return len(pairs)
    for (conv, norm), (old_weight, old_bias) in zip(pairs, old, strict=True):
        conv.weight = old_weight
        conv.bias = old_bias
        setattr(*parents[id(norm)], norm)
    return 0


def _find_pairs(model: nn.Module, picture: Tensor) -> tuple[list[tuple[nn.Conv2d, Any]], Tensor]:
    """Return each convolution with the norm that reads it, and the features of the picture.

    Left out are modules that run more than once, whose outputs may have different readers.
    """
    from timm.layers import BatchNormAct2d
    from timm.layers.conv2d_same import Conv2dSame

    producers: dict[int, tuple[Any, Tensor]] = {}
    calls = Counter[nn.Module]()
    pairs: list[tuple[nn.Conv2d, Any]] = []

    def after_conv(module: nn.Module, inputs: Any, output: Tensor) -> None:
        producers[id(output)] = module, output  # the tensor is kept, so that its id stays unique
        calls[module] += 1

    def before_norm(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        calls[module] += 1
        if id(inputs[0]) in producers:
            pairs.append((producers[id(inputs[0])][0], module))

    handles = list[Any]()
    for module in model.modules():
        # Exact types: subclasses such as ScaledStdConv2d recompute their weights at every call.
        if type(module) in (nn.Conv2d, Conv2dSame):
            handles.append(module.register_forward_hook(after_conv))
        elif type(module) in (nn.BatchNorm2d, BatchNormAct2d) and module.running_var is not None:
            handles.append(module.register_forward_pre_hook(before_norm))
    features = model.forward_features(picture)  # type: ignore[operator]
    for handle in handles:
        handle.remove()
    return [pair for pair in pairs if calls[pair[0]] == calls[pair[1]] == 1], features


def _fold(conv: nn.Conv2d, norm: Any) -> None:
    """Give a convolution the scale and shift of the norm that reads it, computed in float64."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double()
    if conv.bias is not None:
        shift = conv.bias.double() + shift
    shift = shift * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    weight = (conv.weight.double() * scale.view(-1, 1, 1, 1)).to(conv.weight.dtype)
    conv.weight = nn.Parameter(weight, requires_grad=False)
    conv.bias = nn.Parameter(shift.to(conv.weight.dtype), requires_grad=False)
