"""Tiny captions and region features that tests build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tiny.lm import SHAPE, make_tokenizer
from vgtools.images.regions import Regions, RegionSet, open_regions, write_regions
from vgtools.models.encoder import Encoder, as_encoder
from vgtools.models.masked_lm import new_lm
from vgtools.systems.visualbert.model import VisualBert, VisualBertConfig, make_visualbert

REGION = 6  # D
BACKBONE = {"ref": "tiny", "fingerprint": "b" * 64, "preprocessing": {"fingerprint": "p" * 64}}


def encoder_of(seed: int = 0, **changes: Any) -> Encoder:
    torch.manual_seed(seed)
    plain = {
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.3,
    }
    words = make_tokenizer()
    return as_encoder(new_lm(SHAPE | plain | changes, words), words, "tiny")


def model_of(
    seed: int = 0,
    late_fusion: bool = False,
    alignment: str = "sum",
    width: int = REGION,
    **changes: Any,
) -> VisualBert:
    """Return a random VisualBERT whose parts all matter: no bias or table is at its start."""
    model = make_visualbert(
        encoder_of(seed, **changes), VisualBertConfig(width, late_fusion, alignment)
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias") or name.startswith(("segment", "position", "pooler", "match")):
                weight.normal_(0, 0.5)
    return model


def save_regions(
    path: Path, images: int = 6, seed: int = 0, width: int = REGION, **facts: Any
) -> Path:
    """Write regions of image0 …, one to four each; the first feature column tells images apart."""
    rng = np.random.default_rng(seed)

    def items() -> Any:
        for number in range(images):
            count = 1 + number % 4
            corners = np.sort(rng.uniform(0, 100, (count, 2, 2)), axis=1).reshape(count, 4)
            features = rng.standard_normal((count, width)).astype(np.float32)
            features[:, 0] = number
            yield (
                f"image{number}",
                RegionSet(features, corners, rng.random(count, np.float32), None, 100, 100),
            )

    write_regions(
        path, items(), {"seed": seed, "images": images}, width, **{"backbone": BACKBONE, **facts}
    )
    return path


def open_tiny(path: Path, **changes: Any) -> Regions:
    return open_regions(save_regions(path, **changes))


def save_captions(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text(
        "".join(json.dumps({"image": image, "text": text}) + "\n" for image, text in rows)
    )
    return path
