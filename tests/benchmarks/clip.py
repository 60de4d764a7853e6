"""A CLIP text tower on compact blocks, against every block of a row padded to 77 tokens.

- pairs: 32 pairs of texts as long as RTE's, 2 blocks per text, forward and backward;
- long texts: blocks of 512 of the student, 510 tokens in 9 blocks; likewise.

    python tests/benchmarks/clip.py [--rounds 3] [--layers 3] [--width 512]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import bench
import numpy as np
import torch
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from vgtools.io.arrays import Array
from vgtools.models.clip import block_states, clip_blocks, most_blocks, stack_blocks, token_states

ENDS = (49406, 49407)


def rows_of(texts: Sequence[Sequence[int]], length: int) -> list[list[Array]]:
    """Return the blocks of rows, each of which has the token counts of its texts."""
    rng = np.random.default_rng(0)
    most = most_blocks(length)
    return [
        [b for size in row for b in clip_blocks(rng.integers(0, 49406, size), most, ENDS)]
        for row in texts
    ]


def compare(
    tower: CLIPTextModelWithProjection,
    what: str,
    rows: list[list[Array]],
    blocks: int,
    target: str,
    rounds: int,
) -> None:
    """Report the time of compact blocks, to that of `blocks` blocks of 77 in each row."""
    ids, lengths = map(torch.from_numpy, stack_blocks(rows))
    fixed = torch.zeros(len(rows), blocks, 77, dtype=torch.int64)
    fixed[:, : ids.shape[1], : ids.shape[2]] = ids

    def compact() -> None:
        block_states(tower, ids, lengths)[0].sum().backward()

    def padded() -> None:
        token_states(tower, fixed).sum().backward()

    seconds = bench.in_turns({"compact": compact, "padded": padded}, rounds)
    real = float(lengths.sum()) / fixed.numel()
    ratio = seconds["compact"] / seconds["padded"]
    bench.report("clip", what, ratio, target, real=round(real, 3), **bench.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=512)
    given = parser.parse_args()
    torch.manual_seed(0)
    config = CLIPTextConfig(
        hidden_size=given.width,
        num_hidden_layers=given.layers,
        num_attention_heads=given.width // 64,
        intermediate_size=4 * given.width,
    )
    tower = CLIPTextModelWithProjection(config)
    rng = np.random.default_rng(1)
    # RTE: the premise has about 52 tokens, a few have over 150; the hypothesis about 11.
    first = np.clip(rng.lognormal(3.75, 0.65, 32).astype(int), 8, 190)
    second = np.clip(rng.lognormal(2.35, 0.35, 32).astype(int), 4, 30)
    pairs = rows_of(list(zip(first.tolist(), second.tolist(), strict=True)), 128)
    compare(tower, "pairs, time to blocks of 77", pairs, 4, "<= 0.4", given.rounds)
    long = rows_of([[int(n)] for n in rng.integers(480, 540, 4)], 512)
    compare(tower, "512 tokens, time to 9 blocks of 77", long, 9, "<= 0.9", given.rounds)


if __name__ == "__main__":
    main()
