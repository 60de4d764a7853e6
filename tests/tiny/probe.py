"""Tiny random photos with captions, entities and regions, and a VisualBERT, for the probes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from tests.tiny import WORDS, save_encoder
from vgtools.images.regions import RegionSet, write_regions

WIDTH = 12  # channels of a region
SIDE = 100  # pixels of a picture


def save_visualbert(folder: Path, seed: int = 0, *, positions: int = 64, **changes: Any) -> Path:
    """Write a random `VisualBertForPreTraining` of 3 layers and 2 heads, with its tokenizer."""
    from transformers import VisualBertConfig, VisualBertForPreTraining

    encoder = save_encoder(folder.with_name(folder.name + "-text"))
    tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    } | changes
    config = VisualBertConfig(
        vocab_size=tokenizer.get_vocab_size(), visual_embedding_dim=WIDTH,
        max_position_embeddings=positions,
        initializer_range=0.4, **sizes,
    )  # fmt: skip
    VisualBertForPreTraining(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def random_boxes(rng: np.random.Generator, count: int) -> np.ndarray[Any, Any]:
    """Return boxes of at least 10 px a side inside the picture: (count, 4)."""
    corner = rng.integers(0, SIDE - 40, (count, 2))
    return np.concatenate([corner, corner + rng.integers(10, 40, (count, 2))], 1).astype(np.float64)


def region_sets(images: int, seed: int = 0, most: int = 9) -> dict[str, RegionSet]:
    """Return 2 to `most` random regions for each image."""
    rng, found = np.random.default_rng(seed), {}
    for number in range(images):
        count = int(rng.integers(2, most + 1))
        found[f"photo{number}.jpg"] = RegionSet(
            rng.standard_normal((count, WIDTH)).astype(np.float32), random_boxes(rng, count),
            rng.random(count).astype(np.float32).round(3), None, SIDE, SIDE,
        )  # fmt: skip
    return found


def save_regions(path: Path, sets: dict[str, RegionSet], **facts: Any) -> Path:
    """Write region features as the commands do."""
    write_regions(
        path,
        sets.items(),
        {},
        WIDTH,
        **({"backbone": {"ref": "tiny", "fingerprint": "b" * 64}} | facts),
    )
    return path


def caption_rows(
    sets: dict[str, RegionSet], captions: int, seed: int = 0, longest: int = 14
) -> list[dict[str, Any]]:
    """Return random captions with one to three phrases.

    Half of the gold boxes are near a region.
    """
    rng, rows, images = np.random.default_rng(seed), [], list(sets)
    for number in range(captions):
        image = images[number % len(images)]
        words = rng.choice(WORDS, int(rng.integers(6, longest))).tolist()
        starts = np.cumsum([0, *(len(w) + 1 for w in words)])
        cuts = np.sort(rng.choice(len(words), 2 * int(rng.integers(1, 4)), replace=False)).reshape(
            -1, 2
        )
        phrases = []
        for low, high in cuts.tolist():
            gold = random_boxes(rng, int(rng.integers(1, 3)))
            if rng.random() < 0.5:
                gold[0] = sets[image].boxes[rng.integers(len(sets[image]))] + rng.integers(-2, 3, 4)
            gold = np.clip(gold, 0, SIDE)
            phrases.append(
                {
                    "start": int(starts[low]),
                    "end": int(starts[high] - 1),
                    "type": "other",
                    "id": "1",
                    "boxes": gold.tolist(),
                }
            )
        rows.append(
            {
                "image": image,
                "text": " ".join(words),
                "width": SIDE,
                "height": SIDE,
                "phrases": phrases,
            }
        )
    return rows


def save_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as jsonl."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def conllu(texts: list[str], seed: int = 0) -> str:
    """Return random parses of texts whose words stand between spaces, as CoNLL-U."""
    rng, lines = np.random.default_rng(seed), []
    for text in texts:
        words = text.split(" ")
        root = int(rng.integers(1, len(words) + 1))
        lines.append(f"# text = {text}")
        for number, word in enumerate(words, 1):
            others = [n for n in range(1, len(words) + 1) if n != number]
            head = 0 if number == root or not others else int(rng.choice(others))
            relation = (
                "root"
                if head == 0
                else str(rng.choice(["det", "amod", "nsubj", "obj", "nmod:poss"]))
            )
            lines.append(
                "\t".join([str(number), word, "_", "X", "_", "_", str(head), relation, "_", "_"])
            )
        lines.append("")
    return "\n".join(lines) + "\n"
