"""Pictures and image networks that tests build."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Array = np.ndarray[Any, Any]


def drawing(height: int = 40, width: int = 60, seed: int = 0) -> Array:
    """Return a picture in which no two corners, rows or colours are alike."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 100 * np.sin(x / (3 + seed) + c) * np.cos(y / (5 + c) + seed) for c in range(3)]
    return np.stack(waves, -1).round().astype(np.uint8)


def encoded(image: Image.Image | Array, kind: str = "PNG", **how: Any) -> bytes:
    """Return the bytes of an image file."""
    stream = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(stream, kind, **how)
    return stream.getvalue()


def save_photo(path: Path, number: int, size: tuple[int, int] = (60, 45)) -> Path:
    """Write a picture of soft noise, other noise for each number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(number).integers(
        0, 255, (size[1] // 5, size[0] // 5, 3), np.uint8
    )
    Image.fromarray(noise).resize(size).save(path)
    return path


def save_backbone(folder: Path) -> Path:
    """Write a small random network into a directory as timm saves it."""
    import timm
    import torch
    from timm.models import save_for_hf

    torch.manual_seed(0)
    network = timm.create_model(
        "test_resnet", num_classes=7, pretrained_cfg_overlay={"input_size": (3, 64, 64)}
    )
    save_for_hf(network, folder, model_config={"num_classes": 7}, safe_serialization=True)
    return folder
