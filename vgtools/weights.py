"""How far the weights of one encoder are from another's, and an encoder with noise of that size (Vokenization, Table 3)."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.checkpoint import fingerprint, load_tokenizer, read_weights, save_run, tokenizer_fingerprint
from vgtools.errors import file_error
from vgtools.io import DataError, Exit, atomic_write, read_json

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]

# `bert.encoder.layer.0…` and `encoder.layer.0…` are the same weight; `cls.predictions…`, a head, is no encoder's.
_OWN = re.compile(r"(?:\w+\.)?((?:embeddings|encoder|transformer|pooler)\..+)")
_KIND = "noise"
_BESIDE = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt")


def encoder_weights(tensors: Tensors) -> dict[str, Tensor]:
    """Return the weights of the encoder in a checkpoint under names that do not depend on what the checkpoint is for.

    The name of the network in front is taken off, heads are left out, and so is what is no floating-point number. Old
    checkpoints call the weight and bias of a LayerNorm gamma and beta.
    """
    found = {}
    for name, tensor in tensors.items():
        match = _OWN.fullmatch(name)
        if match and tensor.is_floating_point():
            plain = re.sub(r"(LayerNorm\.)(gamma|beta)$", lambda m: m[1] + {"gamma": "weight", "beta": "bias"}[m[2]], match[1])
            found[plain] = tensor
    return found


@dataclass(frozen=True)
class WeightDifference:
    """How far apart two encoders are."""

    total: float  # mean |difference| over all shared parameters, each number counted once
    by_name: dict[str, float]  # the same for each tensor
    numbers: int  # shared parameters
    alone: list[str]  # names that one side only has, or in another shape: not compared


def difference(a: Tensors, b: Tensors) -> WeightDifference:
    """Return the mean |difference| of the parameters that two encoders share: the same name and shape.

    Args:
        a: tensors of one checkpoint, as its files have them.
        b: those of the other.

    Raises:
        DataError: they share nothing.

    Source: Tan & Bansal 2020 (Vokenization), Table 3, "Diff. to BERT Weight".
    Deviation: the paper does not define it; the mean of the absolute difference is the natural reading.
    """
    left, right = encoder_weights(a), encoder_weights(b)
    by_name, total, numbers = dict[str, float](), 0.0, 0
    for name in sorted(left.keys() & right.keys()):
        if left[name].shape == right[name].shape and left[name].numel():
            apart = float((left[name].double() - right[name].double()).abs().sum())
            by_name[name] = apart / left[name].numel()
            total, numbers = total + apart, numbers + left[name].numel()
    if not numbers:
        raise DataError("the two encoders share no parameter: no tensor has the same name and shape in both")
    return WeightDifference(total / numbers, by_name, numbers, sorted((left.keys() | right.keys()) - by_name.keys()))


def add_noise(tensors: Tensors, magnitude: float, seed: int) -> dict[str, Tensor]:
    """Return a checkpoint's tensors, those of the encoder with Gaussian noise added.

    Args:
        tensors: as the files have them; what is not the encoder's stays as it is.
        magnitude: mean |noise|, the measure of `difference`, so that the noise is as far away as a network with that
            difference. The standard deviation is sqrt(pi / 2) = 1.2533 times as large.
        seed: of the noise; the same seed gives the same weights.

    Source: Tan & Bansal 2020 (Vokenization), Table 3, "Weight Noise 6.5e-3", and section 5.1: "of the same magnitude".
    Deviation: the paper does not say whether its 6.5e-3 is a mean or a standard deviation. For the latter multiply by 0.798.
    """
    import torch

    generator, ours = torch.Generator().manual_seed(seed), {id(tensor) for tensor in encoder_weights(tensors).values()}
    found = {}
    for name in sorted(tensors):
        tensor = tensors[name]
        if id(tensor) in ours:
            noise = torch.randn(tensor.shape, generator=generator) * (magnitude * math.sqrt(math.pi / 2))
            tensor = (tensor.float() + noise).to(tensor.dtype)
        found[name] = tensor
    return found


def save_noisy(ref: str, output: str | Path, magnitude: float, seed: int, *, offline: bool = False) -> dict[str, Any]:
    """Write an encoder with noise as a run: `encoder/` is what it was, heads and tokenizer included, but for the weights.

    Args:
        ref: the encoder; any reference.
        output: run directory, not there yet or a run of this kind.
        magnitude: mean |noise|; see `add_noise`.
        seed: of the noise.
        offline: never connect.

    Returns:
        What was written: ref, output, magnitude, std, seed, fingerprint.

    Raises:
        DataError: the encoder cannot be read, the output is in the way (73) or cannot be written.
    """
    from safetensors.torch import save

    folder, path = Path(output), Path(output) / "encoder"
    if folder.exists() and not (folder / "run.json").exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError("is there and no run of vg; choose another folder", folder, code=Exit.CANNOT_CREATE)
    if (folder / "run.json").exists() and read_json(folder / "run.json").get("kind") != _KIND:
        raise DataError(
            "holds a run of another kind, which would be lost; choose another folder", folder, code=Exit.CANNOT_CREATE
        )
    source, tensors = read_weights(ref, offline=offline)
    if not encoder_weights(tensors):
        raise DataError("holds no weight of an encoder (embeddings, encoder, transformer)", source)
    if path.exists() and path.samefile(source):
        raise DataError(
            "is the encoder itself and would be overwritten; choose another folder", folder, code=Exit.CANNOT_CREATE
        )
    noisy = add_noise(tensors, magnitude, seed)
    facts = {"ref": ref, "magnitude": magnitude, "std": magnitude * math.sqrt(math.pi / 2), "seed": seed}
    mark = tokenizer_fingerprint(load_tokenizer(str(source), offline=True))
    try:
        (folder / "run.json").unlink(missing_ok=True)
        path.mkdir(parents=True, exist_ok=True)
        for name in _BESIDE:
            (path / name).unlink(missing_ok=True)
            if (source / name).exists():
                shutil.copyfile(source / name, path / name)
    except OSError as error:
        raise file_error(error, folder, reading=False) from None
    atomic_write(path / "model.safetensors", save(noisy, metadata={"format": "pt"}))
    own = {"ref": ref, "fingerprint": fingerprint(encoder_weights(noisy)), "tokenizer": mark}
    save_run(folder, _KIND, {}, {"noise": facts, "encoder": own})
    return {"output": str(output), **facts, "fingerprint": own["fingerprint"]}


def compare_encoders(
    refs: Sequence[str], noise: str | None, magnitude: float | None, seed: int, offline: bool
) -> list[dict[str, Any]]:
    """Measure how far encoders are from the first; write the first with noise.

    Args:
        refs: the encoders; any references.
        noise: run folder for the first encoder with noise; None writes nothing.
        magnitude: mean |noise|; None takes the distance of the second encoder.
        seed: of the noise.
        offline: never connect.

    Returns:
        A record per encoder after the first, and one of the noise.
    """
    first = read_weights(refs[0], offline=offline)[1]
    records: list[dict[str, Any]] = []
    for ref in refs[1:]:
        distance = difference(first, read_weights(ref, offline=offline)[1])
        records.append(
            {
                "encoder": ref,
                "from": refs[0],
                "difference": distance.total,
                "parameters": distance.numbers,
                "not_shared": distance.alone,
                "by_name": distance.by_name,
            }
        )
    if noise is not None:
        size = records[0]["difference"] if magnitude is None else magnitude
        records.append(save_noisy(refs[0], noise, size, seed, offline=offline))
    return records
