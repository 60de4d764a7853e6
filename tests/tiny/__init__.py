"""Tiny networks and image banks that tests build: random weights, real file formats."""

from __future__ import annotations

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from vgtools.io.files import write_manifest
from vgtools.models.encoder import load_encoder
from vgtools.models.runs import save_run
from vgtools.systems.vokenization.matcher import MatcherConfig, TokenImageMatcher

WORDS = ["".join(p) for p in itertools.product("bdfgkl", "aeiou", "mnrst")] + list(
    "abcdefghijklmnopqrstuvwxyz0123456789.,!?"
)
WIDTH, IMAGE, DIM = 16, 12, 8
BACKBONE = {"ref": "tiny", "fingerprint": "b" * 64, "preprocessing": {}}


def save_encoder(
    folder: Path, kind: str = "bert", seed: int = 0, positions: int = 512, still: bool = True
) -> Path:
    """Write a random text encoder with its tokenizer, as `save_pretrained` does.

    Args:
        folder: made if needed.
        kind: bert, roberta or distilbert.
        seed: of the weights.
        positions: most tokens, special ones included.
        still: zero the position table, which rules the output of random weights: a golden would
            pass with wrong tokens.
    """
    from transformers import (
        BertConfig,
        BertModel,
        DistilBertConfig,
        DistilBertModel,
        RobertaConfig,
        RobertaModel,
    )

    torch.manual_seed(seed)
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *WORDS,
        *("##" + c for c in "abcdefghijklmnopqrstuvwxyz0123456789"),
    ]
    tokenizer = Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(vocabulary)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    sizes: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "pad_token_id": 0,
        "initializer_range": 0.5,
    }
    if kind == "distilbert":
        model: Any = DistilBertModel(
            DistilBertConfig(
                **sizes,
                dim=WIDTH,
                n_layers=2,
                n_heads=2,
                hidden_dim=32,
                max_position_embeddings=positions,
            )
        )
    else:
        config, network = {
            "bert": (BertConfig, BertModel),
            "roberta": (RobertaConfig, RobertaModel),
        }[kind]
        reserved = 1 if kind == "roberta" else 0
        model = network(
            config(
                **sizes, hidden_size=WIDTH, num_hidden_layers=3, num_attention_heads=2,
                intermediate_size=32,
                max_position_embeddings=positions + reserved,
            )
        )  # fmt: skip
    for name, weight in model.named_parameters():
        with torch.no_grad():
            if "LayerNorm" in name or "layer_norm" in name:
                weight.add_(0.1 * torch.randn_like(weight))
            elif name.endswith("bias"):
                weight.normal_(0, 0.1)
            elif "attention.output.dense" in name or "out_lin" in name:
                weight.mul_(0.3)  # or every token of a sentence comes out alike
            elif still and "position_embeddings" in name:
                weight.zero_()
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_run_of(
    folder: Path,
    encoder: Path,
    seed: int = 0,
    backbone: dict[str, Any] = BACKBONE,
    **changes: Any,
) -> Path:
    """Write the run of a random matcher over an encoder directory."""
    torch.manual_seed(seed)
    loaded = load_encoder(str(encoder))
    layers = int(changes.get("layers", 2))
    plain = {"sentence": False, "root": False, "hidden": 16, "dim": DIM, "layers": layers}
    plain |= {"text_width": layers * loaded.width, "image_width": IMAGE}
    config = MatcherConfig(**(plain | changes))
    matcher = TokenImageMatcher(config)
    with torch.no_grad():
        for weight in matcher.parameters():
            weight.mul_(3)
    info = {"matcher": asdict(config), "backbone": backbone, "learned_photos": []}
    save_run(folder, "matcher", matcher.state_dict(), info, loaded)
    return folder


def save_feats(
    path: Path,
    feats: np.ndarray[Any, Any] | None = None,
    backbone: dict[str, Any] = BACKBONE,
    first: int = 0,
    **facts: Any,
) -> Path:
    """Write image features as `vg extract-image-feats` does; 60 random rows if none are given."""
    if feats is None:
        feats = np.random.default_rng(0).standard_normal((60, IMAGE))
    np.save(path, feats.astype(np.float32))
    ids = path.with_suffix(".ids")
    ids.write_text("".join(f"image{first + i:03}\n" for i in range(len(feats))))
    write_manifest(path, [path, ids], kind="image-features", backbone=backbone, **facts)
    return path


def text(count: int, seed: int = 0, longest: int = 30) -> list[str]:
    """Return random sentences of the tiny language, about one in ten of them empty."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, longest, count) * (rng.random(count) > 0.1)
    draws = (rng.integers(0, len(WORDS), n).tolist() for n in lengths.tolist())
    return [" ".join([WORDS[k] for k in draw]) for draw in draws]


def save_grids(
    path: Path,
    array: np.ndarray[Any, Any] | None = None,
    ids: list[str] | None = None,
    backbone: dict[str, Any] | None = None,
    shape: Any = (2, 2),
    count: int = 60,
) -> Path:
    """Write feature maps of whole pictures as `vg extract-image-feats --pooling none` does."""
    if array is None:
        array = np.random.default_rng(0).standard_normal((count, 4, IMAGE))
    seen = {"input_size": [3, 64, 64], "crop_pct": 1.0, "crop_mode": "squash"}
    np.save(path, array.astype(np.float16))
    table = path.with_suffix(".ids")
    names = ids or [f"image{i:03}" for i in range(len(array))]
    table.write_text("".join(f"{name}\n" for name in names))
    made = backbone or BACKBONE | {"preprocessing": seen}
    write_manifest(path, [path, table], kind="image-grid", grid=shape, backbone=made)
    return path
