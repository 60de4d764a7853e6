"""Linear layers by oneDNN, as networks compute them on AMD with AVX-512, against those of torch.

A step (forward and backward) and a forward pass of MiniLM, and one short text. Elsewhere both ways
are the same, and the ratio is 1. Then a step of the optimiser, in one pass over memory, against
torch's default.

    python tests/benchmarks/products.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

from vgtools.models.encoder import load_encoder
from vgtools.models.products import Linear
from vgtools.training.loop import TrainConfig, make_optimizer


def ways(net: Any, texts: int, tokens: int, learn: bool) -> dict[str, Callable[[], None]]:
    """Return a pass over texts by torch's linear layers, and by those that commands have."""
    ids = torch.randint(1000, 20_000, (texts, tokens), generator=torch.Generator().manual_seed(0))
    layers = [(layer, type(layer)) for layer in net.modules() if isinstance(layer, nn.Linear)]

    def run() -> None:
        with torch.set_grad_enabled(learn):
            states = net(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            if learn:
                states.square().mean().backward()
                net.zero_grad()

    def plain() -> None:
        for layer, _ in layers:
            layer.__class__ = nn.Linear
        run()

    def ours() -> None:
        for layer, kind in layers:
            layer.__class__ = kind
        run()

    return {"plain": plain, "ours": ours}


def optimizers(net: nn.Module) -> dict[str, Callable[[], None]]:
    """Return a step of AdamW by torch's default, and by that of training."""
    for parameter in net.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    ours = make_optimizer(net, TrainConfig(epochs=1, steps=1, lr=0.0))
    plain = torch.optim.AdamW(net.parameters(), lr=0.0)
    return {"plain": plain.step, "ours": ours.step}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    net = load_encoder("builtin:minilm").model.requires_grad_(True)
    found = any(isinstance(layer, Linear) for layer in net.modules())
    facts = bench.machine() | {"onednn": found}
    for what, texts, tokens, learn in (
        ("step, 16 texts of 64", 16, 64, True),
        ("forward, 16 texts of 64", 16, 64, False),
        ("forward, one text of 16", 1, 16, False),
    ):
        seconds = bench.in_turns(ways(net, texts, tokens, learn), rounds)
        ratio = seconds["ours"] / seconds["plain"]
        target = "<= 0.75" if found and texts > 1 else "<= 1.1"
        bench.report("products", f"MiniLM {what}: time to torch's", ratio, target, **facts)
    seconds = bench.in_turns(optimizers(net), rounds)
    ratio = seconds["ours"] / seconds["plain"]
    bench.report("products", "MiniLM, AdamW: time to torch's", ratio, "<= 0.5", **facts)


if __name__ == "__main__":
    main()
