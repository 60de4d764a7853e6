"""Image networks: timm by name, and the embedded ones."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from vgtools.io.errors import DataError, Exit, amount
from vgtools.io.files import read_json
from vgtools.io.hub import go_offline
from vgtools.io.remote import is_offline
from vgtools.models.references import (
    BUILTIN,
    LITE_PREPROCESSING,
    builtin_path,
    check_whole,
    fingerprint,
    hub_file,
    identity_of,
    pick_device,
    pick_dtype,
    resolve,
    safetensors_files,
    settings_of,
    unusable,
)
from vgtools.models.sealed import check_model

_MAX_SIDE = 4096  # pixels; timm's largest input has 1,280
_INTERPOLATIONS = ("bicubic", "bilinear", "nearest", "lanczos", "box", "hamming")
_CROP_MODES = ("center", "squash", "border")


@dataclass(frozen=True)
class Backbone:
    """A frozen image network without its classifier, and the preprocessing of its training."""

    model: Any  # a timm model, num_classes=0, eval mode
    # timm's resolve_data_config: input_size, interpolation, mean, std, crop_pct, crop_mode.
    preprocessing: dict[str, Any]
    ref: str
    fingerprint: str  # with the settings, if it is in a folder
    width: int  # D, channels of the last feature map


def load_backbone(ref: str, *, device: str = "cpu", dtype: str = "float32") -> Backbone:
    """Load an image backbone, frozen, in eval mode, without its classifier.

    A reference is any timm name (`resnext101_32x8d.fb_wsl_ig1b_ft_in1k`), a directory as timm's
    `save_for_hf` writes it (`config.json` and `model.safetensors`), `builtin:NAME`, or the hub name
    or directory of a dual encoder, whose image side is taken.

    Raises:
        DataError: unknown name (usage), missing (66, 69), damaged or pickled weights, or a run's
            backbone that has changed since (65).
    """
    chosen_device = pick_device(device)
    chosen_dtype = pick_dtype(dtype)
    if is_offline():
        go_offline()
    from timm.data import resolve_data_config

    folder: Path | None = None
    dual = _dual_images(ref)
    if dual is not None:
        model, sha256, folder = dual
    elif ref.startswith("builtin:"):
        model = _builtin_backbone(ref)
    elif Path(ref).is_dir():
        folder = Path(ref)
        check_model(folder)
        model = _saved_backbone(folder)
    elif ref.startswith("hf-hub:"):
        files = ["config.json", "*.safetensors"]
        folder = resolve(ref.removeprefix("hf-hub:"), files)
        model = _saved_backbone(folder)
    else:
        model = _timm_backbone(ref)
    # The fingerprint is taken before the dtype changes, so that it is the same for every dtype.
    if dual is None:
        sha256 = fingerprint(model)
    if folder is not None:
        sha256 = identity_of(sha256, settings_of(folder))
    try:
        preprocessing = model.preprocessing if dual else resolve_data_config({}, model=model)
        width = int(model.num_features)
    # timm raises whatever a configuration with other types, or for another use, leads to.
    except Exception as error:
        raise unusable("timm model", error, ref) from None
    _check_preprocessing(preprocessing, ref)
    model = model.eval().requires_grad_(False).to(chosen_device, chosen_dtype)
    return Backbone(model, preprocessing, ref, sha256, width)


def _dual_images(ref: str) -> tuple[Any, str, Path] | None:
    """Return the image side of a dual encoder, the fingerprint of both sides, and its folder.

    None for others.

    Raises:
        DataError: as `load_towers` and `DualImages`.
    """
    from vgtools.models.dual import DualImages, has_towers, load_towers

    folder = Path(ref)
    if folder.is_dir():
        if not has_towers(folder) and not (folder / "run.json").is_file():
            return None
    elif ref.startswith(("builtin:", "hf-hub:")) or "/" not in ref:
        return None
    model, folder = load_towers(ref)
    sha256 = fingerprint(model)
    return DualImages(model, folder), sha256, folder


def save_backbone(folder: Path, model: Any) -> None:
    """Write a timm network into a directory that `load_backbone` and timm open."""
    from timm.models import save_for_hf

    save_for_hf(model, str(folder), safe_serialization=True)


def _check_preprocessing(values: Mapping[str, Any], ref: str) -> None:
    """Refuse preprocessing that no picture can go through; a directory may contain any values.

    Raises:
        DataError: vg cannot use a value (65).
    """
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "input_size": (
            lambda x: len(x) == 3 and x[0] == 3 and all(1 <= side <= _MAX_SIDE for side in x[1:]),
            f"[3, height, width], at most {_MAX_SIDE} pixels",
        ),
        "interpolation": (lambda x: x in _INTERPOLATIONS, f"one of {', '.join(_INTERPOLATIONS)}"),
        "crop_mode": (lambda x: x in _CROP_MODES, f"one of {', '.join(_CROP_MODES)}"),
        "crop_pct": (lambda x: 0.05 <= x <= 10, "a number from 0.05 to 10"),
        "mean": (lambda x: len(x) == 3 and all(map(math.isfinite, x)), "three numbers"),
        "std": (lambda x: len(x) == 3 and all(0 < n < math.inf for n in x), "three numbers > 0"),
    }
    for key, (fits, expected) in checks.items():
        try:
            good = fits(values[key])
        except (TypeError, KeyError):
            good = False
        if not good:
            file = Path(ref) / "config.json" if Path(ref).is_dir() else ref
            raise DataError(f'"{key}": expected {expected}, got {values.get(key)!r:.60}', file)


def _saved_backbone(folder: Path) -> Any:
    """Return the timm network of a directory as timm's `save_for_hf` writes it."""
    file = safetensors_files(folder)[0]
    config = read_json(folder / "config.json")
    if "architecture" not in config:
        why = "its config.json names no architecture; expected a directory of timm's save_for_hf,"
        why += " or of a CLIP as transformers saves it"
        raise DataError(why, folder)
    return _filled(f"local-dir:{folder}", file)


def _timm_backbone(ref: str) -> Any:
    """Return a timm network by its name, downloading its weights if needed."""
    import timm

    name = ref.split(".")[0]
    if not timm.is_model(name):
        similar = ", ".join(timm.list_models(f"*{name.split('_')[0]}*")[:5])
        hint = f"; similar: {similar}" if similar else ""
        why = f"timm knows no backbone {ref!r}{hint}; or name a directory or builtin:NAME"
        raise DataError(why, code=Exit.USAGE)
    known = timm.get_pretrained_cfg(ref)
    if known is None or not known.hf_hub_id:
        why = f"timm has no weights of {ref!r} on the hub; `timm.list_pretrained()` lists the names"
        raise DataError(why, code=Exit.USAGE)
    # Where timm names a pickle (pytorch_model.bin), the safetensors file next to it
    # (model.safetensors) is taken instead.
    stored = (known.hf_hub_filename or "model.safetensors").replace("pytorch_", "")
    return _filled(ref, hub_file(ref, known.hf_hub_id, f"{Path(stored).stem}.safetensors"))


def _filled(name: str, file: Path) -> Any:
    """Return a timm network without classifier, every weight of it from a file.

    timm leaves weights random that the file lacks, and ignores weights that the network lacks. The
    classifier of the same architecture is left out on purpose.

    The name is for timm's `create_model`, the file is in the safetensors format.

    Raises:
        DataError: the file is damaged, or its weights do not belong to the network (65).
    """
    import timm
    import torch

    source = {"source": "", "file": str(file), "custom_load": False}
    found = list[Any]()
    load = torch.nn.Module.load_state_dict

    # `create_model` throws away the report of missing and unexpected weights, so the call that
    # returns it is listened to.
    def noted(self: Any, *args: Any, **keywords: Any) -> Any:
        found.append(load(self, *args, **keywords))
        return found[-1]

    try:
        with mock.patch.object(torch.nn.Module, "load_state_dict", noted), _quiet_timm():
            model = timm.create_model(
                name, pretrained=True, num_classes=0, pretrained_cfg_overlay=source
            )
        unexpected = set(found[-1].unexpected_keys)
        if unexpected:
            # The weights of the classifier are expected to be left over: the names of the whole
            # network, built without memory, are subtracted.
            with torch.device("meta"):
                whole = timm.create_model(name, pretrained=False)
            unexpected -= whole.state_dict().keys()
    except Exception as error:  # raised by the configuration, safetensors, timm or torch
        ref = file.parent if name.startswith("local-dir:") else file
        shapes = [line.strip() for line in str(error).splitlines() if "size mismatch" in line]
        if shapes:
            why = f"has {amount(len(shapes), 'weight')} of another shape, the first: {shapes[0]}"
            raise DataError(why, ref) from None
        raise unusable("timm model", error, ref) from None
    check_whole(model, found[-1].missing_keys, file)
    if unexpected:
        why = f"has {amount(len(unexpected), 'weight')} that its architecture lacks, the first"
        raise DataError(f"{why} {min(unexpected)}; they would not be used", file)
    return model


@contextlib.contextmanager
def _quiet_timm() -> Iterator[None]:
    """Keep timm's and torch's warnings about odd weights off stderr: vg reports them as errors."""
    logger = logging.getLogger("timm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _builtin_backbone(ref: str) -> Any:
    """Return a timm network with the weights of a `builtin:` package, whose key names differ."""
    import timm
    import torch

    folder = builtin_path(ref)
    architecture = BUILTIN[ref.removeprefix("builtin:")][3]
    if architecture is None:
        why = "expected an image backbone, for example builtin:efficientnet-lite0"
        raise DataError(f"{why}, got the text encoder {ref}", code=Exit.USAGE)
    files = sorted(folder.glob("*.pth"))
    if not files:
        raise DataError("has no weights; reinstall the package", folder, code=Exit.UNAVAILABLE)
    model = timm.create_model(architecture, pretrained_cfg_overlay=LITE_PREPROCESSING)
    theirs = torch.load(files[0], map_location="cpu", weights_only=True)
    ours = model.state_dict()
    if [t.shape for t in theirs.values()] != [t.shape for t in ours.values()]:
        raise DataError(f"its weights do not belong to {architecture}", files[0])
    # Both list the same layers in the same order under other names; shapes are checked above.
    model.load_state_dict(dict(zip(ours, theirs.values(), strict=True)))
    model.reset_classifier(0)
    return model
