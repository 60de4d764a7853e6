"""`vg pretrain`: memory and time of the voken loss, steps against a plain masked-language-model step, data against the step.

- loss: cross entropy of 2,048 tokens over 50,000 vokens, width 768, forward and backward, each way in its own process: all
  logits at once, and a few rows at a time as the command does;
- step: 6 layers, width 512, 8 blocks of 128 tokens, AdamW. plain: forward with labels through transformers' own model, as its
  Trainer with its collator for masked language models takes it (all logits of all tokens); ours; ours with 50,000 vokens;
- data: building the batch of such a step.

    python benchmarks/pretrain.py [--rounds 3] [--blocks 8]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bench
import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1]))

from vgtools.blocks import Corpus, Packed
from vgtools.systems import voken_lm as system
from vgtools.train import TrainConfig, train

TOKENS, WIDTH, VOKENS, VOCABULARY = 2048, 768, 50_000, 30_522


def loss(way: str) -> None:
    """Print seconds and peak memory (MiB over what was there before) of one way."""
    torch.manual_seed(0)
    rows = torch.randn(TOKENS, WIDTH, requires_grad=True)
    weight = torch.nn.Parameter(0.02 * torch.randn(VOKENS, WIDTH))
    bias, target = torch.nn.Parameter(torch.zeros(VOKENS)), torch.randint(0, VOKENS, (TOKENS,))
    (rows[:8] @ weight.T).sum().backward()
    rows.grad = weight.grad = None
    base, times = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, list[float]()
    for _ in range(2):
        start = bench.clock()
        if way == "ours":
            found = system.linear_cross_entropy(rows, weight, bias, target)
        else:
            found = F.cross_entropy(F.linear(rows, weight, bias), target, reduction="sum")
        found.backward()
        times.append(bench.clock() - start)
        rows.grad = weight.grad = bias.grad = None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": min(times), "mib": (peak - base) / 1024, "loss": found.item() / TOKENS}))


def losses(facts: dict[str, Any]) -> None:
    found = {}
    for way in ("whole", "ours"):
        done = subprocess.run([sys.executable, __file__, "--loss", way], capture_output=True, text=True, check=True)
        found[way] = json.loads(done.stdout)
    whole, ours = found["whole"], found["ours"]
    assert abs(whole["loss"] - ours["loss"]) < 1e-3
    bench.report(
        "pretrain", "voken loss: memory to all logits", ours["mib"] / whole["mib"], "<= 0.45", **facts, mib=ours["mib"]
    )
    bench.report("pretrain", "voken loss: time to all logits", ours["seconds"] / whole["seconds"], "<= 1.1", **facts)


def model_of(names: tuple[str, ...]) -> system.VisuallySupervisedLM:
    from transformers import AutoConfig, AutoModelForMaskedLM

    torch.manual_seed(0)
    values = dict(system.SHAPES["bert-small"])
    lm = AutoModelForMaskedLM.from_config(AutoConfig.for_model(values.pop("model_type"), **values, vocab_size=VOCABULARY))
    return system.VisuallySupervisedLM(lm, system.VokenLMConfig(names, VOKENS))


def steps(count: int, rounds: int, facts: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    pairs = np.column_stack([rng.integers(1000, VOCABULARY, 126 * count), rng.integers(0, VOKENS, 126 * count)])
    corpus = Corpus([Packed("drawn", pairs, np.array([len(pairs)]))], 126)
    recipe = system.Recipe((101,), (102,), 103, 0, VOCABULARY, VOKENS)

    def data() -> list[system.Batch]:
        return system.collate(corpus, np.arange(count), recipe, 0)

    (batch,) = data()

    def ours(names: tuple[str, ...]) -> Iterator[Any]:
        config = TrainConfig(epochs=10**6, steps=10**6, lr=1e-4, clip=1.0, log_every=1)

        def batches(epoch: int, first: int) -> Iterator[system.Batch]:
            while True:
                yield batch

        return train(model_of(names), batches, config, weights=dict.fromkeys(names, 1.0))

    def plain() -> Iterator[None]:
        model = model_of(("mlm",)).lm.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        labels = torch.full_like(batch.ids, -100)
        labels.view(-1)[batch.masked] = batch.tokens
        while True:
            model(input_ids=batch.ids, attention_mask=torch.ones_like(batch.ids), labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield

    ways = {"plain": plain(), "mlm": ours(("mlm",)), "joint": ours(("mlm", "voken_cls"))}
    seconds = bench.in_turns({name: (lambda w=way: next(w)) for name, way in ways.items()} | {"data": data}, rounds)
    rate = 128 * count / seconds["mlm"]
    bench.report("pretrain", "mlm step: tokens/s to plain", seconds["plain"] / seconds["mlm"], ">= 1.3", **facts, tokens_s=rate)
    # Multiplications a token, forward: encoder 12 H^2 L, the two decoders; the products' share of a step cannot fall below.
    width, layers = 512, 6
    mlm = 12 * width**2 * layers + 0.15 * width * VOCABULARY
    floor = (mlm + width**2 + width * VOKENS) / mlm
    joint = seconds["joint"] / seconds["mlm"]
    bench.report("pretrain", "joint step: time to the mlm step", joint, "<= 1.6", **facts, products=round(floor, 2))
    bench.report("pretrain", "data: time to the mlm step", seconds["data"] / seconds["mlm"], "<= 0.05", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loss")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=8)
    given = parser.parse_args()
    if given.loss:
        loss(given.loss)
        return
    facts = bench.machine()
    losses(facts)
    steps(given.blocks, given.rounds, facts)


if __name__ == "__main__":
    main()
