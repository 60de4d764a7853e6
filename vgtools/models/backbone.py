"""Image networks: timm by name, and the embedded ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.io import (
    DataError,
    Exit,
    read_json,
)
from vgtools.models.references import (
    BUILTIN,
    LITE_PREPROCESSING,
    builtin_path,
    fingerprint,
    first_line,
    go_offline,
    hub_errors,
    pick_device,
    pick_dtype,
    require_safetensors,
)

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Backbone:
    """A frozen image network without its classifier, and the preprocessing of its training."""

    model: Any  # a timm model, num_classes=0, eval mode
    # timm's resolve_data_config: input_size, interpolation, mean, std, crop_pct, crop_mode.
    preprocessing: dict[str, Any]
    ref: str
    fingerprint: str
    width: int  # D, channels of the last feature map


def load_backbone(
    ref: str, *, device: str = "cpu", dtype: str = "float32", offline: bool = False
) -> Backbone:
    """Load an image backbone, frozen, in eval mode, without its classifier.

    Args:
        ref: any timm name (`resnext101_32x8d.fb_wsl_ig1b_ft_in1k`), a directory as timm's
            `save_for_hf` writes it (`config.json` and `model.safetensors`), or `builtin:NAME`.
        device: as `--device`.
        dtype: as `--dtype`.
        offline: never connect.

    Raises:
        DataError: unknown name (usage), missing (66, 69), damaged or pickled weights (65).
    """
    chosen_device = pick_device(device)
    chosen_dtype = pick_dtype(dtype)
    if offline:
        go_offline()
    from timm.data import resolve_data_config

    if ref.startswith("builtin:"):
        model = _builtin_backbone(ref)
    elif Path(ref).is_dir():
        model = _saved_backbone(ref)
    else:
        model = _timm_backbone(ref)
    sha256 = fingerprint(model)  # before the dtype changes
    preprocessing = resolve_data_config({}, model=model)
    model = model.eval().requires_grad_(False).to(chosen_device, chosen_dtype)
    return Backbone(model, preprocessing, ref, sha256, int(model.num_features))


def _saved_backbone(ref: str) -> Any:
    """Return the timm network of a directory."""
    import timm

    require_safetensors(Path(ref))
    if "architecture" not in read_json(Path(ref) / "config.json"):
        why = "its config.json names no architecture; expected a directory of timm's save_for_hf"
        raise DataError(why, ref)
    try:
        return timm.create_model(f"local-dir:{ref}", pretrained=True, num_classes=0)
    except Exception as error:
        raise DataError(f"is not a usable timm model: {first_line(error)}", ref) from None


def _timm_backbone(ref: str) -> Any:
    """Return a timm network by its name, downloading its weights if needed."""
    import timm

    name = ref.split(".")[0]
    if not ref.startswith("hf-hub:") and not timm.is_model(name):
        similar = ", ".join(timm.list_models(f"*{name.split('_')[0]}*")[:5])
        hint = f"; similar: {similar}" if similar else ""
        why = f"timm knows no backbone {ref!r}{hint}; or name a directory or builtin:NAME"
        raise DataError(why, code=Exit.USAGE)
    with hub_errors(ref, "model.safetensors"):
        return timm.create_model(ref, pretrained=True, num_classes=0)


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
        raise DataError(f"its weights are not those of {architecture}", files[0])
    # Both list the same layers in the same order under other names; shapes are checked above.
    model.load_state_dict(dict(zip(ours, theirs.values(), strict=True)))
    model.reset_classifier(0)
    return model
