"""Fine-tuning batches by length: what padding costs, in one run.

For each data set an epoch of batches of 32: padded to the task's length (fixed, as the papers'
scripts do), to the longest of a batch drawn by chance (longest), and by length as `vg finetune`
makes them. Tokens are those of the whole epoch, padding counted; seconds are those of training
steps (6 layers, width 384) on batches at even quantiles of an epoch's.

The data sets are invented: lengths as SST-2's (median 9 tokens) and as RTE's (median 55); or real
ones:

    python tests/benchmarks/finetune.py [--glue FOLDER] [--batches 4] [--rounds 1]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from vgtools.models.references import load_tokenizer
from vgtools.tasks.dispatch import encode, read_examples
from vgtools.tasks.finetune import LOSS, FineTuner, collate
from vgtools.tasks.sequences import TaskInputs
from vgtools.tasks.table import Task, find_task
from vgtools.training.loop import TrainConfig, train
from vgtools.training.steps import steps_by_length

SIZE, WINDOW = 32, 50
COUNTS = {"sst-2": 20_000, "rte": 2490}


def invented(task: Task) -> TaskInputs:
    """Return token ids with lengths as those of a task's training set."""
    rng, count = np.random.default_rng(0), COUNTS[task.name]
    median, spread = (9, 0.75) if task.name == "sst-2" else (55, 0.6)
    lengths = np.clip(
        (median * np.exp(spread * rng.standard_normal(count))).astype(int), 3, task.hyper.max_length
    )
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = rng.integers(1000, 30_000, int(starts[-1])).astype(np.int32)
    return TaskInputs(ids, starts, lengths, 1, np.arange(count), rng.integers(0, 2, count))


def real(task: Task, folder: str, tokenizer: Any) -> TaskInputs:
    found = list(read_examples(task, Path(folder) / task.title / "train.tsv"))
    return encode(task, found, tokenizer, max_length=task.hyper.max_length, learn=True)


def network() -> FineTuner:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    shape = {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
    }
    return FineTuner(BertForSequenceClassification(BertConfig(**shape)), "classify")


def measure(task: Task, inputs: TaskInputs, count: int, rounds: int, facts: dict[str, Any]) -> None:
    longest, lengths = task.hyper.max_length, inputs.lengths
    plans = {
        "fixed": steps_by_length(lengths, SIZE, 0, 0, 1),
        "longest": steps_by_length(lengths, SIZE, 0, 0, 1),
    }
    plans["by length"] = steps_by_length(lengths, SIZE, 0, 0, WINDOW)

    def padded(way: str, units: Any) -> int:
        return longest if way == "fixed" else int(lengths[units].max())

    def fill(rows: torch.Tensor | None) -> torch.Tensor:
        assert rows is not None
        return torch.nn.functional.pad(rows, (0, longest - rows.shape[1]))

    def steps(way: str) -> Callable[[], None]:
        plan = sorted(plans[way], key=lambda units: padded(way, units))
        chosen = [plan[int((i + 0.5) / count * len(plan))] for i in range(count)]
        batches = [collate(inputs, units, 0, True) for units in chosen]
        if way == "fixed":
            batches = [
                b._replace(ids=fill(b.ids), mask=fill(b.mask), segments=fill(b.segments))
                for b in batches
            ]
        source = train(
            network(),
            lambda *_: (b for _ in range(10**6) for b in batches),
            TrainConfig(1, 10**6, clip=1.0, log_every=count),
            weights={LOSS: 1.0},
        )
        return lambda: next(source) and None

    tokens = {way: sum(len(u) * padded(way, u) for u in plan) for way, plan in plans.items()}
    seconds = bench.in_turns({way: steps(way) for way in plans}, rounds)
    inside = int(lengths.sum()) / tokens["by length"]
    bench.report(
        "finetune",
        f"{task.title}: tokens of a batch other than padding",
        inside,
        ">= 0.9",
        **facts,
    )
    for way in ("fixed", "longest"):
        what, time = f"{way} padding to batches by length", seconds[way] / seconds["by length"]
        bench.report(
            "finetune", f"{task.title}: tokens, {what}", tokens[way] / tokens["by length"], **facts
        )
        bench.report("finetune", f"{task.title}: time, {what}", time, ">= 1", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--glue", help="a folder with SST-2/train.tsv and RTE/train.tsv")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    facts = bench.machine() | {"data": "real" if given.glue else "invented"}
    tokenizer = load_tokenizer("builtin:minilm") if given.glue else None
    for name in ("sst-2", "rte"):
        task = find_task(name)
        inputs = real(task, given.glue, tokenizer) if given.glue else invented(task)
        measure(task, inputs, given.batches, given.rounds, facts)


if __name__ == "__main__":
    main()
