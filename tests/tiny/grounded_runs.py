"""A tiny run of `vg pretrain grounding`, and the images that its texts find."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tiny import BACKBONE, save_encoder, save_feats
from tests.tiny import grounding as tiny
from vgtools.io.files import write_manifest
from vgtools.models.encoder import load_masked_lm
from vgtools.models.runs import save_run
from vgtools.systems.grounding import keys
from vgtools.systems.grounding.inputs import open_sources
from vgtools.systems.grounding.model import GroundedMaskedLM, GroundingConfig
from vgtools.systems.grounding.recipe import Sources

CAPTIONS = ("a red dog", "the puppy", "a cat chases a dog", "two trucks", "a truck", "red car")
WIDTH = 5


def save_bank(folder: Path, backbone: dict[str, Any] = BACKBONE) -> tuple[str, str]:
    """Write an index of captions and the features of its images, in another order."""
    words = tiny.save_vectors(folder / "words.npy")
    named = [(i + 1, {"image": f"image{i:03}", "text": text}) for i, text in enumerate(CAPTIONS)]
    bank = keys.caption_keys(named, tiny.vectors(), tiny.STOP)
    index = tiny.save_index(folder / "scene.faiss", bank, "captions", words)
    feats = folder / "feats.npy"
    save_feats(feats, np.random.default_rng(0).standard_normal((8, WIDTH)), backbone)
    ids = feats.with_suffix(".ids")
    ids.write_text("".join(f"image{i:03}\n" for i in (7, 5, 3, 1, 6, 4, 2, 0)))
    write_manifest(feats, [feats, ids], kind="image-features", backbone=backbone)
    return str(index), str(feats)


def save_grounded(folder: Path, strategy: str = "none", images: int = 3) -> Path:
    """Write a run of `vg pretrain grounding` with random weights."""
    encoder = save_encoder(folder / "encoder", positions=64)
    text = load_masked_lm(str(encoder))
    shape = GroundingConfig(strategy, 0, 0, 0, 2)
    info: dict[str, Any] = {"index": None, "backbone": None}
    if strategy != "none":
        shape = GroundingConfig(strategy, images, 1, WIDTH, 2)
    if strategy == "scene":
        index, feats = save_bank(folder)
        pictures, bank = open_sources(Sources(strategy, feats, index=index, images=images))
        assert pictures is not None
        assert bank is not None
        info = {"index": bank.mark, "backbone": pictures.backbone}
    torch.manual_seed(1)
    model = GroundedMaskedLM(text.model, shape)
    info["grounding"] = asdict(shape)
    save_run(folder / "run", "grounding", model.state_dict(), info, text)
    return folder / "run"
