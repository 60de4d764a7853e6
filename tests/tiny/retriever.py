"""A tiny retriever of sentences and images: feature maps, word vectors, finished runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.tiny import BACKBONE, IMAGE
from vgtools.io.files import dumps, write_manifest
from vgtools.models.encoder import load_encoder
from vgtools.models.runs import save_run
from vgtools.systems.visual_awareness.recipe import RetrieverConfig
from vgtools.systems.visual_awareness.retriever import Retriever

NAMES = ("dog", "cat", "man", "woman", "red", "ball", "runs", "sits", "blue", "house", "tree")


def save_grid(path: Path, images: int = 12, positions: int = 9, seed: int = 0) -> Path:
    """Write random feature maps as `vg extract-image-feats --pooling none` does."""
    rng = np.random.default_rng(seed)
    np.save(path, rng.standard_normal((images, positions, IMAGE)).astype(np.float16))
    ids = path.with_suffix(".ids")
    ids.write_text("".join(f"image{i:03}\n" for i in range(images)))
    side = int(positions**0.5)
    facts = {"backbone": BACKBONE, "grid": [side, side], "pooling": "none"}
    write_manifest(path, [path, ids], kind="image-grid", **facts)
    return path


def save_skip_thoughts(folder: Path, width: int = 5, unknown: bool = False) -> Path:
    """Write word vectors in the form of skip-thoughts."""
    folder.mkdir(parents=True)
    words = [*NAMES, *(["UNK"] if unknown else [])]
    (folder / "dictionary.txt").write_text("".join(f"{word}\n" for word in words))
    vectors = np.random.default_rng(2).standard_normal((len(words), width))
    np.save(folder / "utable.npy", vectors.astype(np.float32))
    return folder


def save_captions(path: Path, images: int = 12, each: int = 2) -> Path:
    """Write captions of words that all have vectors; images 0 to 3 are of the split dev."""
    rng = np.random.default_rng(1)
    rows = [
        {
            "image": f"image{i:03}",
            "text": " ".join(rng.choice(NAMES, 1 + (i + k) % 4)),
            "split": "dev" if i < 4 else "train",
        }
        for i in range(images)
        for k in range(each)
    ]
    path.write_bytes(b"".join(map(dumps, rows)))
    return path


def save_retriever(folder: Path, encoder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write the run of a random retriever that reads the word pieces of an encoder."""
    torch.manual_seed(seed)
    loaded = load_encoder(str(encoder))
    values = {"dim": 8, "layers": 2, "regions": 2, **changes}
    config = RetrieverConfig(text_width=loaded.width, image_width=IMAGE, **values)
    retriever = Retriever(config)
    info = {"retriever": asdict(config), "backbone": BACKBONE}
    save_run(folder, "retriever", retriever.state_dict(), info, loaded)
    return folder
