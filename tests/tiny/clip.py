"""Tiny text towers of CLIP's form, and their tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from vgtools.text import clip_bpe

TOWER: dict[str, Any] = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "projection_dim": 6, "vocab_size": 516, "bos_token_id": 514, "eos_token_id": 515,
}  # fmt: skip


def clip_tokenizer() -> Tokenizer:
    """Return CLIP's tokenizer with two merges, `th` and `the</w>`; START is 514, END is 515."""
    letters = clip_bpe._byte_letters()
    merges = [("t", "h"), ("th", "e</w>")]
    entries = [*letters, *(letter + "</w>" for letter in letters), "th", "the</w>"]
    entries += [clip_bpe.START, clip_bpe.END]
    return clip_bpe.byte_pairs({entry: i for i, entry in enumerate(entries)}, merges)


def new_tower(seed: int = 0, **changes: Any) -> CLIPTextModelWithProjection:
    """Return a random tower for that tokenizer, whose weights are large enough to matter."""
    torch.manual_seed(seed)
    config = CLIPTextConfig(**TOWER | changes)
    tower = CLIPTextModelWithProjection(config).eval()
    with torch.no_grad():
        for parameter in tower.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return tower


def save_tower(folder: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a tower with its tokenizer, as a published one is."""
    new_tower(seed, **changes).save_pretrained(folder)
    tokenizer = clip_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_shape(path: Path) -> Path:
    """Write the sizes of such a tower; what follows from the tokenizer is not among them."""
    sizes = {k: v for k, v in TOWER.items() if not k.endswith("_id") and k != "vocab_size"}
    path.write_text(json.dumps(sizes))
    return path


def save_captions(path: Path, rows: Sequence[tuple[str, str]]) -> Path:
    """Write rows {"image", "text"}."""
    lines = (json.dumps({"image": image, "text": text}) + "\n" for image, text in rows)
    path.write_text("".join(lines))
    return path
