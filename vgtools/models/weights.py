"""The distance between the weights of two encoders, and noise of that size.

Source: Tan & Bansal 2020 (Vokenization), Table 3.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vgtools.io import own
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.files import read_json
from vgtools.io.forms import check_form
from vgtools.io.own import atomic_write, sync_dir
from vgtools.io.process import Lock
from vgtools.models.references import TOKENIZER_FILES, fingerprint, load_tokenizer, read_weights
from vgtools.models.runs import save_run
from vgtools.models.sealed import digests, files_below, is_run_json
from vgtools.text.tokens import tokenizer_fingerprint

if TYPE_CHECKING:
    from torch import Tensor

Tensors = Mapping[str, "Tensor"]

# `bert.encoder.layer.0…` and `encoder.layer.0…` are the same weight, `transformer.h.0…` and `h.0…`
# as well; `cls.predictions…` is a head. A decoder after an encoder is not compared.
_ENCODER_WEIGHT = re.compile(
    r"(?!(?:\w+\.)?decoder\.)((?:text_model\.)?(?:\w+\.)?)"
    r"((?:embeddings|embeddings_project|encoder|pooler|transformer(?=\.layers?\.)"
    r"|(?<!encoder\.)(?<!transformer\.)layers|h|wte|wpe|ln_f|final_norm|final_layer_norm"
    r"|attentions|ffns|layer_norm1|layer_norm2|layer_norm_emb|(?<!embeddings\.)position_embeddings"
    r"|(?<=text_model\.)head)\..+)"
)
_TEXT_TOWER = "text_model."  # the prefix in a CLIP and its kin, where images have one of their own

_KIND = "noise"


def encoder_weights(tensors: Tensors) -> dict[str, Tensor]:
    """Return the weights of the encoder in a checkpoint, under the names of a bare encoder.

    The prefix of the network is removed; heads and tensors of integers are left out. Old
    checkpoints call the weight and bias of a LayerNorm gamma and beta. A CLIP is its text encoder
    here. Where two encoders would have the same names, they keep their prefixes.

    Raises:
        DataError: there are layers under other names (65).
    """
    found: dict[tuple[str, str], Tensor] = {}
    for name, tensor in tensors.items():
        match = _ENCODER_WEIGHT.fullmatch(name)
        if match and tensor.is_floating_point():
            plain = re.sub(r"(?<=LayerNorm\.)gamma$", "weight", match[2])
            plain = re.sub(r"(?<=LayerNorm\.)beta$", "bias", plain)
            found[match[1], plain] = tensor
    layers = [name for name in tensors if re.search(r"(?:^|\.)(?:layers?|h|blocks?)\.\d+\.", name)]
    if layers and not any(re.search(r"\.\d+\.", plain) for _, plain in found):
        why = f"has layers under names that vg does not know, the first {min(layers)}"
        raise DataError(f"{why}; their weights would be left out")
    if any(prefix.startswith(_TEXT_TOWER) for prefix, _ in found):
        found = {key: tensor for key, tensor in found.items() if key[0].startswith(_TEXT_TOWER)}
    several = len({plain for _, plain in found}) < len(found)
    return {prefix * several + plain: tensor for (prefix, plain), tensor in found.items()}


@dataclass(frozen=True)
class WeightDifference:
    """The distance between two encoders."""

    total: float  # mean |difference| over all shared parameters, each number counted once
    by_name: dict[str, float]  # the same for each tensor
    numbers: int  # shared parameters
    alone: list[str]  # names that only one of them has, or with different shapes: not compared


def difference(a: Tensors, b: Tensors) -> WeightDifference:
    """Return the mean absolute difference of the parameters with equal names and shapes in both.

    Both are the tensors of a checkpoint as in its files.

    Raises:
        DataError: they share no parameter (65).

    Source: Tan & Bansal 2020 (Vokenization), Table 3, "Diff. to BERT Weight".
    Deviation: the paper does not define it; the mean of the absolute difference is the natural
    reading.
    """
    left = encoder_weights(a)
    right = encoder_weights(b)
    by_name = dict[str, float]()
    total = 0.0
    numbers = 0
    for name in sorted(left.keys() & right.keys()):
        size = left[name].numel()
        if left[name].shape == right[name].shape and size:
            distance = float((left[name].double() - right[name].double()).abs().sum())
            by_name[name] = distance / size
            total += distance
            numbers += size
    if not numbers:
        why = "the two encoders share no parameter: no tensor has the same name and shape in both"
        raise DataError(why)
    alone = sorted((left.keys() | right.keys()) - by_name.keys())
    return WeightDifference(total / numbers, by_name, numbers, alone)


def add_noise(tensors: Tensors, magnitude: float, seed: int) -> dict[str, Tensor]:
    """Return a checkpoint's tensors, with Gaussian noise added to the tensors of the encoder.

    Args:
        tensors: as in the files; tensors outside the encoder do not change.
        magnitude: mean |noise|, the quantity that `difference` measures. The standard deviation is
            sqrt(pi / 2) = 1.2533 times as large.
        seed: seed of the noise; the same seed gives the same weights.

    Source: Tan & Bansal 2020 (Vokenization), Table 3, "Weight Noise 6.5e-3", and section 5.1: "of
    the same magnitude".
    Deviation: the paper does not state whether its 6.5e-3 is a mean or a standard deviation. For
    the latter multiply by 0.798.
    """
    import torch

    std = magnitude * math.sqrt(math.pi / 2)
    generator = torch.Generator().manual_seed(seed)
    # The bare names differ from the file's, but the tensors are the same objects.
    changed = {id(tensor) for tensor in encoder_weights(tensors).values()}
    noisy = {}
    # In the order of names, so that a seed gives the same noise whatever the order in the file.
    for name in sorted(tensors):
        tensor = tensors[name]
        if id(tensor) in changed:
            noise = torch.randn(tensor.shape, generator=generator) * std
            tensor = (tensor.float() + noise).to(tensor.dtype)
        noisy[name] = tensor
    return noisy


def save_noisy(
    ref: str, output: str | Path, magnitude: float, seed: int, read: Sequence[Path] = ()
) -> dict[str, Any]:
    """Write an encoder with noise as a run, and return the facts of it for a record.

    Heads, configuration and tokenizer do not change.

    The output is a run directory: new, empty, or a run of this kind. For magnitude and seed see
    `add_noise`; `read` are the folders of other encoders that the command reads.

    Raises:
        DataError: the encoder cannot be read, or the output would overwrite something else (73) or
            cannot be written.
    """
    folder = Path(os.path.realpath(output))
    with Lock(folder):
        return {"output": str(output), **_save_noisy(ref, folder, magnitude, seed, read)}


def _save_noisy(
    ref: str, folder: Path, magnitude: float, seed: int, read: Sequence[Path]
) -> dict[str, Any]:
    from safetensors.torch import save

    # The run is written next to its place and renamed when whole, so that a folder at its place is
    # a whole run even after a kill.
    work = own.temporary(folder)
    path = folder / "encoder"

    def refuse(why: str) -> NoReturn:
        raise DataError(f"{why}; choose another folder", folder, code=Exit.CANNOT_CREATE)

    if (folder / "run.json").exists():
        own.check(folder / "run.json", is_run_json)
        info = read_json(folder / "run.json")
        if info.get("kind") != _KIND:
            refuse("has a run of another kind, which would be lost")
        check_form(info, {"files": {str: {"sha256": str}}}, folder / "run.json", "remove it")
        if others := _others(folder, info["files"]):
            refuse(f"has {min(others)}, which is not of the run, or has changed")
        own.claim(folder)
    elif folder.exists():
        if not folder.is_dir() or any(folder.iterdir()):
            refuse("exists and is not a run of vg")
        own.claim(folder)  # an empty folder is replaced
    source, tensors = read_weights(ref)
    if not encoder_weights(tensors):
        raise DataError("has no weights of an encoder (embeddings, encoder, transformer)", source)
    if path.exists() and path.samefile(source):
        refuse("is the encoder itself and would be overwritten")
    if path.exists() and any(map(path.samefile, read)):
        refuse("is an encoder that this command reads, and would be overwritten")
    noisy = add_noise(tensors, magnitude, seed)
    std = magnitude * math.sqrt(math.pi / 2)
    facts = {"ref": ref, "magnitude": magnitude, "std": std, "seed": seed}
    tokenizer = tokenizer_fingerprint(load_tokenizer(str(source)))
    copied = {name: _read(source / name) for name in TOKENIZER_FILES if (source / name).exists()}
    digest = fingerprint(encoder_weights(noisy))
    network = {"ref": ref, "fingerprint": digest, "tokenizer": tokenizer}
    try:
        with file_errors(folder, reading=False):
            own.remove_tree(work)
            (work / "encoder").mkdir(parents=True)
        for name, data in copied.items():
            atomic_write(work / "encoder" / name, data)
        weights = save(noisy, metadata={"format": "pt"})
        atomic_write(work / "encoder" / "model.safetensors", weights)
        files = digests(work, files_below(work))
        hashes = {name: facts["sha256"] for name, facts in files.items()}
        save_run(work, _KIND, {}, {"noise": facts, "encoder": network}, files=hashes)
        with file_errors(folder, reading=False):
            own.swap(work, folder)
    # Not only an Exception but also a signal must leave nothing next to the folder.
    except BaseException:
        own.remove_tree(work)
        raise
    sync_dir(folder.parent)
    return {**facts, "fingerprint": digest}


def _others(folder: Path, files: Mapping[str, Any]) -> set[str]:
    """Return the names in the folder of a run besides its unchanged files and their folders.

    Each is a file, a link, also in the place of a file, or a folder without files.
    """
    found = digests(folder, files_below(folder))
    kept = {"run.json", *(name for name, facts in found.items() if facts == files.get(name))}
    kept |= {parent.as_posix() for name in kept for parent in Path(name).parents}
    below = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*")}
    return {name for name, path in below.items() if name not in kept or path.is_symlink()}


def _read(file: Path) -> bytes:
    if not file.is_file():
        raise DataError("is not a regular file", file, code=Exit.NO_INPUT)
    with file_errors(file, reading=True):
        return file.read_bytes()


def compare_encoders(
    refs: Sequence[str], noise: str | None, magnitude: float | None, seed: int
) -> list[dict[str, Any]]:
    """Measure how far encoders are from the first; write the first with noise.

    `noise` is a run folder, None to write nothing; a `magnitude` of None takes the distance of the
    second encoder.

    There is a record per encoder after the first, and a record of the noise.
    """
    first = read_weights(refs[0])[1]
    records: list[dict[str, Any]] = []
    read = list[Path]()
    for ref in refs[1:]:
        source, tensors = read_weights(ref)
        read.append(source)
        distance = difference(first, tensors)
        record = {
            "encoder": ref,
            "from": refs[0],
            "difference": distance.total,
            "parameters": distance.numbers,
            "not_shared": distance.alone,
            "by_name": distance.by_name,
        }
        records.append(record)
    if noise is not None:
        size = records[0]["difference"] if magnitude is None else magnitude
        records.append(save_noisy(refs[0], noise, size, seed, read))
    return records
