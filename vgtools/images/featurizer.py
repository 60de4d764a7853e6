"""A backbone that turns prepared images into feature rows; batch norms folded into convolutions."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vgtools.images.decoding import DECODER, MAX_PIXELS
from vgtools.images.sources import ImageError
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, make_room
from vgtools.io.files import dumps


def describe(preprocessing: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preprocessing for a manifest: values, decoder version, fingerprint of both."""
    facts = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in sorted(preprocessing.items())
    }
    facts["decoder"] = DECODER
    return facts | {"fingerprint": hashlib.sha256(dumps(facts)).hexdigest()}


class Featurizer:
    """A backbone with its own preprocessing and a pooling: pixels in, feature rows out.

    Args:
        model: a timm network without classifier, in eval mode; changed in place: laid out and
            folded for speed. Or the image side of a dual encoder.
        preprocessing: timm's `resolve_data_config` of it; with a "processor" `model.prepare` makes
            the pictures.
        pooling: `mean` over the positions of the last feature map (Vokenization, section 3.2:
            ResNeXt's mean pooling), `max` over them (Grounded LMs, table 1: pre-logit max pool),
            `none`: every position, in row order; or `own`: as the network pools itself, of an
            image side with `pooled`.
        dtype: type of the returned rows, `float32` or `float16`.
        batch_size: images per forward pass; always filled up to it, so that a row never depends
            on how many images are computed with it.

    Raises:
        DataError: the network has no feature map that can be pooled, or does not take RGB.
    """

    def __init__(
        self,
        model: nn.Module,
        preprocessing: Mapping[str, Any],
        pooling: str = "mean",
        dtype: str = "float32",
        batch_size: int = 8,
    ) -> None:
        from timm.data import create_transform

        first = next(model.parameters())
        self.device = first.device
        self._compute_dtype = first.dtype
        # Image networks run up to three times faster with channels last, on CPU and GPU alike.
        self.model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.pooling = pooling
        self.dtype = np.dtype(dtype)
        self.batch_size = batch_size
        self.size = batch_size  # images per forward pass now: fewer after memory ran out
        channels, height, width = preprocessing["input_size"]
        if channels != 3:
            raise DataError(f"the backbone takes {channels} channels, expected 3 (RGB)")
        self._scale = height * width / preprocessing["crop_pct"] ** 2
        # The resized form of a squashed picture does not keep the aspect.
        self._squashes = preprocessing.get("crop_mode") == "squash"
        # The evaluation transform up to the uint8 picture; the rest is done per batch.
        self._transform: Any = (
            model.prepare
            if "processor" in preprocessing
            else create_transform(**preprocessing, is_training=False, use_prefetcher=True)
        )
        self._mean, self._std = (
            torch.tensor(preprocessing[key], device=self.device).view(3, 1, 1)
            for key in ("mean", "std")
        )
        self.input_shape = (channels, height, width)
        fold_norms(self.model, self.input_shape)
        with torch.inference_mode():
            black = torch.zeros((1, 3, height, width), dtype=torch.uint8)
            positions, self.grid = self._positions(black)
        channels_out = int(positions.shape[2])
        self.row_shape: tuple[int, ...] = (channels_out,)
        if pooling == "none":
            self.row_shape = (int(positions.shape[1]), channels_out)

    def pixels(self, image: Image.Image) -> Array:
        """Return the (3, H, W) uint8 picture that the backbone sees of an RGB image.

        Raises:
            ImageError: so thin that its resized form would have more than MAX_PIXELS.
        """
        long, short = max(image.size), min(image.size)
        if not self._squashes and self._scale * long / short > MAX_PIXELS:
            raise ImageError(f"{image.width}x{image.height} pixels are too thin to be resized")
        return np.asarray(self._transform(image))

    def normalise(self, pixels: Tensor) -> Tensor:
        """Return the network's input for a uint8 (B, 3, H, W) batch.

        Bit for bit timm's ToTensor and Normalize.
        """
        batch = pixels.to(self.device).to(torch.float32).div_(255).sub_(self._mean).div_(self._std)
        return batch.to(self._compute_dtype, memory_format=torch.channels_last)

    def _positions(self, pixels: Tensor) -> tuple[Tensor, list[int]]:
        """Return the last feature map as (B, P, D) and its grid [height, width]."""
        out = self.model.forward_features(self.normalise(pixels))  # type: ignore[operator]
        return map_positions(self.model, out)

    def _rows(self, pixels: Tensor) -> Array:
        """Return the (B, *row_shape) rows of a full batch."""
        if self.pooling == "own":
            rows = self.model.pooled(self.normalise(pixels)).float()  # type: ignore[operator]
        else:
            rows = self._positions(pixels)[0].float()
        if self.pooling == "max":
            rows = rows.amax(1)
        elif self.pooling == "mean":
            rows = rows.mean(1)
        rows = rows.to(torch.float16 if self.dtype == np.float16 else torch.float32)
        return np.ascontiguousarray(rows.cpu().numpy())

    def features(self, pixels: Array) -> Array:
        """Return one feature row per picture, in their order.

        Where memory runs out the batch is halved, for good: `size` is the present number.

        Args:
            pixels: (B, 3, H, W) uint8, any B.

        Returns:
            (B, D), or (B, P, D) without pooling.

        Raises:
            DataError: not even one picture fits into memory (exit 70).
        """
        parts: list[Array] = []
        start = 0
        while start < len(pixels):
            size = self.size
            chunk = torch.zeros((size, *self.input_shape), dtype=torch.uint8)
            count = min(size, len(pixels) - start)
            chunk[:count] = torch.from_numpy(pixels[start : start + count])
            try:
                with torch.inference_mode():
                    parts.append(self._rows(chunk)[:count])
            except (RuntimeError, MemoryError) as error:
                one = "one image per step; use another --device or backbone"
                make_room(error, one if size == 1 else "")
                # Another thread may have halved it already.
                self.size = min(self.size, size // 2)
                continue
            start += count
        return np.concatenate(parts) if parts else np.empty((0, *self.row_shape), self.dtype)


def map_positions(model: nn.Module, out: Tensor) -> tuple[Tensor, list[int]]:
    """Return the output of a timm network's `forward_features` as (B, P, D), and its grid [h, w].

    Raises:
        DataError: it is not a map of the network's channels.
    """
    if not isinstance(out, Tensor):
        why = f"the backbone gives {len(out)} maps of features, expected one; choose another"
        raise DataError(why)
    width = int(model.num_features)  # type: ignore[arg-type]
    if out.ndim == 4 and out.shape[1] == width:
        return out.flatten(2).transpose(1, 2), list(out.shape[2:])  # (B, D, h, w)
    if out.ndim == 4 and out.shape[3] == width:
        return out.flatten(1, 2), list(out.shape[1:3])  # (B, h, w, D): Swin and its kin
    if out.ndim == 3 and out.shape[2] == width:
        # Class tokens and the like have no position.
        out = out[:, _prefix_tokens(model, int(out.shape[1])) :]
        count = int(out.shape[1])
        grid = list(getattr(getattr(model, "patch_embed", None), "grid_size", ()))
        is_grid = len(grid) == 2 and grid[0] * grid[1] == count
        return out, grid if is_grid else [1, count]
    raise DataError(
        f"the backbone's features have shape {tuple(out.shape)}, expected a map of {width} channels"
    )


def _prefix_tokens(model: nn.Module, count: int) -> int:
    """Return how many of the `count` states of a network come before the states of positions.

    Some networks of timm have a class token and do not count it: CoaT-Lite and VOLO return it
    first, PiT returns nothing else.

    Raises:
        DataError: the network does not count them, and the other states are not a square.
    """
    stated = getattr(model, "num_prefix_tokens", None)
    if stated is not None:
        return int(stated)
    if not any("cls_token" in name for name, _ in model.named_parameters()):
        return 0
    if count > 2 and math.isqrt(count - 1) ** 2 == count - 1:
        return 1
    why = f"the backbone's features are {count} states, and which are class tokens is not known"
    raise DataError(f"{why}; choose another")


def emulates_bfloat16(device: torch.device) -> bool:
    """Return whether bfloat16 is slower than float32 on a device.

    It is on a CPU without instructions for it (ten times, measured).
    """
    return device.type == "cpu" and not bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@torch.inference_mode()
def fold_norms(model: nn.Module, size: tuple[int, int, int]) -> int:
    """Fold batch norms into the convolutions whose outputs they read, in place; return how many.

    In evaluation a batch norm is a scale and a shift per channel, which the weights and the bias
    of a convolution can take over. A forward pass shows which convolution a norm reads. Where an
    output has a second reader (a shortcut), the features of a random picture change, and
    everything is put back.

    The model is a timm network in eval mode; size is (channels, height, width) of its input.
    """
    from timm.layers import BatchNormAct2d

    weight = next(model.parameters())
    picture = torch.randn((1, *size), generator=torch.Generator().manual_seed(0)).to(weight)
    pairs, before = _find_pairs(model, picture)
    if not isinstance(before, Tensor):
        return 0
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
