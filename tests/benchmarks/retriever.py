"""The retriever of sentences and images: its recurrence and its pooling to what torch offers.

- SRU: forward and backward, to `nn.LSTM` of the same widths, layers and texts;
- Weldon: by `topk`, to a full sort of the positions.

    python tests/benchmarks/retriever.py [--rounds 3]
"""

from __future__ import annotations

import argparse

import bench
import torch
from torch import Tensor, nn

from vgtools.systems.visual_awareness.retriever import SRU, weldon


def sru_ratio(dim: int, least: float, rounds: int, layers: int = 4, texts: int = 160) -> None:
    """Report how often our recurrence fits into the time of the LSTM."""
    words = 12  # of a caption
    sizes = [texts] * words
    torch.manual_seed(0)
    x = torch.randn(words * texts, dim)
    sru = SRU(dim, dim, layers)
    lstm = nn.LSTM(dim, dim, layers)

    def step(module: nn.Module, *inputs: object) -> None:
        module.zero_grad()
        out = module(*inputs)
        states: Tensor = out[0] if isinstance(out, tuple) else out
        states.sum().backward()  # type: ignore[no-untyped-call]

    seconds = bench.in_turns(
        {
            "sru": lambda: step(sru, x, sizes),
            "lstm": lambda: step(lstm, x.view(words, texts, dim)),
        },
        rounds,
    )
    ratio = seconds["lstm"] / seconds["sru"]
    what = f"forward and backward of nn.LSTM to those of SRU, {layers} layers of {dim}"
    bench.report("retriever", what, ratio, f">= {least}", texts=texts, **bench.machine())


def weldon_ratio(rounds: int, positions: int = 169) -> None:
    """Report the time of a sort to ours, of n = 15."""
    torch.manual_seed(0)
    maps = torch.randn(32, positions, 512)

    def by_sort() -> Tensor:
        ordered = maps.transpose(1, 2).contiguous().sort(2).values
        return ordered[..., :15].mean(2) + ordered[..., -15:].mean(2)

    seconds = bench.in_turns({"topk": lambda: weldon(maps, 15), "sort": by_sort}, rounds)
    what = f"Weldon pooling by a sort to that by topk, {positions} positions"
    bench.report("retriever", what, seconds["sort"] / seconds["topk"], ">= 1.4", **bench.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    sru_ratio(512, 1.4, rounds)
    sru_ratio(1024, 2.2, rounds)
    weldon_ratio(rounds)


if __name__ == "__main__":
    main()
