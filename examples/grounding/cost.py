"""Print the cost of a training step of grounded runs on this machine, as a table.

    python cost.py RUN... [--texts 32] [--tokens 64] [--steps 5]

MiB are the memory that a step adds to the weights and the optimiser's state, on a GPU or on Linux.

Source: Sileo 2021 (Grounding strategies), section 3.4: memory grows with K · N.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from vgtools.models.references import pick_device
from vgtools.systems.grounding.model import GroundedBatch, GroundingConfig, open_grounding
from vgtools.training.loop import TrainConfig, make_optimizer

HEADINGS = ("Model", "K", "N", "Slots", "Seconds per step", "MiB per step")


def batch_of(config: GroundingConfig, words: int, texts: int, tokens: int) -> GroundedBatch:
    """Return texts that are all as long and have all their slots, 15 % of the tokens masked."""
    torch.manual_seed(0)
    masked = torch.arange(0, texts * tokens, 7)
    joint = config.strategy in ("t2i", "both")
    regions = torch.stack([torch.arange(texts), torch.zeros(texts, dtype=torch.int64)], 1)
    return GroundedBatch(
        ids=torch.randint(words, (texts, tokens)),
        text_mask=torch.ones(texts, tokens, dtype=torch.bool),
        slots=torch.randn(texts, config.slots, config.width),
        slot_mask=torch.ones(texts, config.slots, dtype=torch.bool),
        masked=masked,
        tokens=torch.randint(words, (len(masked),)),
        regions=regions[: texts * joint],
        targets=torch.randn(texts * joint, config.width),
        token_count=float(len(masked)),
        region_count=float(texts),
    )


def held(device: torch.device, peak: bool) -> float:
    """Return the MiB that are held now, or the most since the last `reset`; NaN if unknown."""
    if device.type == "cuda":
        now = torch.cuda.max_memory_allocated if peak else torch.cuda.memory_allocated
        return now(device) / 2**20
    status = Path("/proc/self/status")
    if not status.is_file():
        return float("nan")
    key = "VmHWM" if peak else "VmRSS"
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 2**10


def reset(device: torch.device) -> None:
    """Let the most that is held count from here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif Path("/proc/self/clear_refs").is_file():
        Path("/proc/self/clear_refs").write_text("5")


def measure(run: str, texts: int, tokens: int, steps: int) -> tuple[str, ...]:
    """Return the cells of a run's row."""
    device = pick_device("auto")
    found = open_grounding(run)
    model = found.model.to(device).train()
    words = model.text.config.vocab_size
    batch = batch_of(found.config, words, texts, tokens).to(device)
    optimizer = make_optimizer(model, TrainConfig(1, 1))

    def step() -> None:
        sum(model(batch).values()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    step()  # makes the optimiser's state
    reset(device)
    before = held(device, peak=False)
    seconds = list[float]()
    for _ in range(steps):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    added = held(device, peak=True) - before
    config = found.config
    shape = (str(config.images), str(config.regions), str(config.slots or 1))
    return (run, *shape, f"{statistics.median(seconds):.3f}", f"{added:,.0f}")


def main() -> None:
    """Measure each run in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--row", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = (given.texts, given.tokens, given.steps)
    if given.row:
        print("|", " | ".join(measure(given.runs[0], *sizes)), "|")
        return
    print("|", " | ".join(HEADINGS), "|\n|---" + "|--:" * (len(HEADINGS) - 1) + "|", flush=True)
    flags = [
        f"--{name}={size}" for name, size in zip(("texts", "tokens", "steps"), sizes, strict=True)
    ]
    for run in given.runs:
        subprocess.run([sys.executable, __file__, run, "--row", *flags], check=True)
    print(f"\n{given.texts} texts of {given.tokens} tokens; torch {torch.__version__}.")


if __name__ == "__main__":
    main()
