"""`vg pretrain`: memory and time of the voken loss, steps against transformers' Trainer.

- loss: cross entropy of 2,048 tokens over 50,000 vokens, width 768, forward and backward, each way
  in its own process: all logits at once, and a few rows at a time as the command does;
- step: 6 layers, width 512, 8 blocks of 128 tokens, AdamW, float32, the same tokens: the Trainer of
  transformers with its collator for masked language models; ours; ours with 50,000 vokens; ours on
  a batch that is there before the step.

    python tests/benchmarks/pretrain.py [--rounds 3] [--blocks 8]
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import bench
import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))

from vgtools.models.masked_lm import SHAPES, linear_cross_entropy
from vgtools.models.references import builtin_path
from vgtools.systems.vokenization import voken_lm as system
from vgtools.text.blocks import Corpus, Packed
from vgtools.training.loop import TrainConfig, train
from vgtools.training.steps import plan

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
            found = linear_cross_entropy(rows, weight, bias, target)
        else:
            found = F.cross_entropy(F.linear(rows, weight, bias), target, reduction="sum")
        found.backward()
        times.append(bench.clock() - start)
        rows.grad = weight.grad = bias.grad = None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        json.dumps(
            {"seconds": min(times), "mib": (peak - base) / 1024, "loss": found.item() / TOKENS}
        )
    )


def losses(facts: dict[str, Any]) -> None:
    found = {}
    for way in ("whole", "ours"):
        done = subprocess.run(
            [sys.executable, __file__, "--loss", way], capture_output=True, text=True, check=True
        )
        found[way] = json.loads(done.stdout)
    whole, ours = found["whole"], found["ours"]
    assert abs(whole["loss"] - ours["loss"]) < 1e-3
    bench.report(
        "pretrain",
        "voken loss: memory to all logits",
        ours["mib"] / whole["mib"],
        "<= 0.45",
        **facts,
        mib=ours["mib"],
    )
    bench.report(
        "pretrain",
        "voken loss: time to all logits",
        ours["seconds"] / whole["seconds"],
        "<= 1.1",
        **facts,
    )


def model_of(names: tuple[str, ...]) -> system.VisuallySupervisedLM:
    from transformers import AutoConfig, AutoModelForMaskedLM

    torch.manual_seed(0)
    values = dict(SHAPES["bert-small"])
    lm = AutoModelForMaskedLM.from_config(
        AutoConfig.for_model(values.pop("model_type"), **values, vocab_size=VOCABULARY)
    )
    return system.VisuallySupervisedLM(lm, system.VokenLMConfig(names, VOKENS))


def trainer_steps(corpus: Corpus, count: int, number: int) -> list[float]:
    """Return the seconds of steps of transformers' Trainer, from end to end."""
    from transformers import (
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    ends = list[float]()

    class Watch(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *args: Any, **keywords: Any) -> None:
            ends.append(bench.clock())

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        Trainer(
            model=model_of(("mlm",)).lm,
            args=TrainingArguments(
                folder,
                per_device_train_batch_size=count,
                max_steps=number + 1,
                learning_rate=1e-4,
                max_grad_norm=1.0,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
            ),
            data_collator=DataCollatorForLanguageModeling(
                AutoTokenizer.from_pretrained(builtin_path("builtin:minilm"))
            ),
            train_dataset=[
                {"input_ids": [101, *corpus.block(i)[0][:, 0].tolist(), 102]}
                for i in range(len(corpus))
            ],
            callbacks=[Watch()],
        ).train()
    return [b - a for a, b in pairwise(ends)]


def own_steps(names: tuple[str, ...], batches: Any, number: int) -> list[float]:
    """Return the seconds of some steps of `train`."""
    config = TrainConfig(epochs=1, steps=number + 1, lr=1e-4, clip=1.0, log_every=1)
    ends = [
        bench.clock()
        for _ in train(model_of(names), batches, config, weights=dict.fromkeys(names, 1.0))
    ]
    return [b - a for a, b in pairwise(ends[:-1])]  # the last record is of the epoch


def products(count: int, batch: Any, joint: bool) -> float:
    """Return the seconds of a step's products by the fastest library: layers, heads, attention."""
    width, layers = 512, 6
    tokens, masked = 128 * count, len(batch.tokens)
    square, long = (tokens, width, width), (tokens, width, 4 * width)
    inner = (128, 64, 128)  # of a head's attention
    heads = [(masked, width, width), (masked, width, VOCABULARY)]
    if joint:
        heads += [(len(batch.vokens), width, width), (len(batch.vokens), width, VOKENS)]
    parts = [*[square] * 4 * layers, *[long] * 2 * layers, *heads]
    rates = bench.best_product({*parts, inner}, torch.device("cpu"), torch.float32)
    seconds = sum(2 * m * k * n / rates[m, k, n] for m, k, n in parts)
    attention = 2 * layers * count * width // 64 * 2 * 128 * 64 * 128 / rates[inner]
    return 3 * (seconds + attention)  # backward takes two of each


def steps(count: int, rounds: int, facts: dict[str, Any]) -> None:
    number = 4  # steps a turn
    rng, size = np.random.default_rng(0), 126 * count * (number + 1)
    pairs = np.column_stack([rng.integers(1000, VOCABULARY, size), rng.integers(0, VOKENS, size)])
    corpus = Corpus([Packed("drawn", pairs, np.array([len(pairs)]))], 126)
    recipe = system.VokenMasking((101,), (102,), 103, 0, VOCABULARY, VOKENS)
    data = system.make_batches(corpus, recipe, plan(len(corpus), count, count, epochs=1))
    (ready,) = system.collate(corpus, np.arange(count), recipe, 0)
    ways: dict[str, Callable[[], list[float]]] = {
        "mlm": lambda: own_steps(("mlm",), data, number),
        "mlm, batch there before": lambda: own_steps(
            ("mlm",), lambda epoch, first: [ready] * (number + 1), number
        ),
        "joint": lambda: own_steps(("mlm", "voken_cls"), data, number),
    }
    if importlib.util.find_spec("accelerate"):
        ways["Trainer"] = lambda: trainer_steps(corpus, count, number)
    else:
        note = "not measured: the Trainer of transformers needs accelerate (pip install accelerate)"
        print(
            json.dumps(
                {"benchmark": "pretrain", "what": "mlm step: tokens/s to the Trainer", "note": note}
            ),
            flush=True,
        )
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            found[name] += way()
    seconds = {name: statistics.median(times) for name, times in found.items()}
    rate = 128 * count / seconds["mlm"]
    if "Trainer" in seconds:
        ratio = seconds["Trainer"] / seconds["mlm"]
        bench.report(
            "pretrain",
            "mlm step: tokens/s to the Trainer",
            ratio,
            ">= 1.3",
            **facts,
            tokens_s=round(rate),
        )
    for name in ("mlm", "joint"):
        rest = seconds[name] / products(count, ready, name == "joint")
        target = "<= 1.05" if name == "joint" else "<= 1.11"
        bench.report("pretrain", f"{name} step: time to its products", rest, target, **facts)
    # Multiplications per token, forward: encoder 12 H^2 L, the two decoders. The
    # products' share of a step cannot fall below.
    width, layers = 512, 6
    mlm = 12 * width**2 * layers + 0.15 * width * VOCABULARY
    floor = (mlm + width**2 + width * VOKENS) / mlm
    joint = seconds["joint"] / seconds["mlm"]
    bench.report(
        "pretrain",
        "joint step: time to the mlm step",
        joint,
        "<= 1.6",
        **facts,
        products=round(floor, 2),
    )
    share = seconds["mlm, batch there before"] / seconds["mlm"]
    bench.report(
        "pretrain",
        "steps/s with real data to those with batches that are there",
        share,
        ">= 0.95",
        **facts,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
