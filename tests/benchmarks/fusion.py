"""Fusion of K = 8 images per text: a training step to the same step without images, in one run.

- toy: translation, 2 + 2 layers, 128 wide, 32 pairs of 20 tokens;
- BERT base, 8 texts of 128 tokens, with --bert (400 MB of weights, drawn).

    python tests/benchmarks/fusion.py [--rounds 5] [--bert]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from vgtools.systems.visual_awareness.fusion import Fusion, config_for

IMAGES, WIDTH = 8, 1280


def toy() -> tuple[Any, dict[str, torch.Tensor]]:
    from transformers import MarianConfig, MarianMTModel

    sides = ("encoder", "decoder")
    shape = {f"{side}_layers": 2 for side in sides} | {f"{side}_ffn_dim": 512 for side in sides}
    shape |= {f"{side}_attention_heads": 4 for side in sides}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = MarianConfig(vocab_size=4000, d_model=128, forced_eos_token_id=None, **shape, **ids)
    tokens = torch.randint(3, 4000, (32, 20))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return MarianMTModel(config), batch | {"labels": torch.randint(3, 4000, (32, 20))}


def bert() -> tuple[Any, dict[str, torch.Tensor]]:
    from transformers import BertConfig, BertForSequenceClassification

    tokens = torch.randint(1000, 30000, (8, 128))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    net = BertForSequenceClassification(BertConfig(num_labels=3))
    return net, batch | {"labels": torch.arange(8) % 3}


def step(make: Callable[[], tuple[Any, dict[str, torch.Tensor]]], images: int) -> Any:
    """Return a training step of a network, with images or without."""
    torch.manual_seed(0)
    net, batch = make()
    texts = len(batch["input_ids"])
    fusion = Fusion(config_for(net, WIDTH))
    fusion.reset()
    parameters = list(net.parameters())
    if images:
        fusion.attach(net)
        parameters += fusion.parameters()
    features = torch.randn(texts, images, WIDTH)
    mask = torch.ones(texts, images, dtype=torch.bool)
    optimizer = torch.optim.AdamW(parameters, lr=1e-5)

    def run() -> None:
        optimizer.zero_grad()
        with fusion.show(features, mask):
            net(**batch).loss.backward()
        optimizer.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bert", action="store_true")
    given = parser.parse_args()
    cases = [("toy, 2 + 2 layers, 128 wide", toy, "<= 1.35")]
    cases += [("BERT base, 128 tokens", bert, "<= 1.06")] if given.bert else []
    for name, make, target in cases:
        ways = {"with": step(make, IMAGES), "without": step(make, 0)}
        seconds = bench.in_turns(ways, given.rounds)
        ratio = seconds["with"] / seconds["without"]
        what = f"{name}: step with {IMAGES} images to without"
        bench.report("fusion", what, ratio, target, **bench.machine())


if __name__ == "__main__":
    main()
