"""Pairs of sentences that a tiny model can learn, and such models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from vgtools.models import seq2seq
from vgtools.models.encoder import as_encoder, save_pretrained
from vgtools.text.subwords import train_bpe

SOURCE = ("dog", "cat", "red", "runs", "sees", "big")
TARGET = ("Hund", "Katze", "rot", "läuft", "sieht", "groß")


def pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Return sentences of 1 to 5 words, translated word by word in reverse order."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        words = rng.integers(len(SOURCE), size=rng.integers(1, 6)).tolist()
        source = " ".join(SOURCE[word] for word in words)
        found.append((source + ".", " ".join(TARGET[word] for word in words[::-1]) + "."))
    return found


def save_pairs(folder: Path, train: int = 40, dev: int = 12) -> Path:
    """Write train.jsonl and dev.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", train, 0), ("dev", dev, 1)):
        rows = [{"text": text, "target": target} for text, target in pairs(count, seed)]
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines))
    return folder


def tokenizer(vocabulary: int = 60) -> Tokenizer:
    """Return subwords of both languages."""
    return train_bpe((text for pair in pairs(40) for text in pair), vocabulary)


def save_tokenizer(folder: Path) -> Path:
    """Write the tokenizer into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def network(seed: int = 0, scale: float = 8.0) -> Any:
    """Return a random model whose translations differ from sentence to sentence."""
    torch.manual_seed(seed)
    net = seq2seq.new_seq2seq("transformer-small", tokenizer())
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.requires_grad and parameter.ndim > 1:
                parameter.mul_(scale)
    return net.eval()


def save_model(folder: Path, seed: int = 0) -> Path:
    """Write a random model with its tokenizer."""
    save_pretrained(folder, as_encoder(network(seed), tokenizer(), "tiny"))
    return folder
