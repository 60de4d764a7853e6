"""`vg translate`: batches of neighbours in length, and all of its work, to the bare search.

- sorted: the same sentences in batches of file order to batches sorted by length;
- stream: lines to lines, to `generate` of transformers on ready tensors of the same batches.

A random model translates: each translation is as long as it may be, its source and 5 tokens.
Lengths of sources are those of news, log-normal with a median of 21 pieces.

    python tests/benchmarks/translate.py [--lines 192] [--batch-size 32] [--beams 4] [--rounds 3]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import bench
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tiny networks of the tests

from tests.tiny.translation import SOURCE, network, tokenizer
from vgtools.io.streams import Window
from vgtools.models.encoder import as_encoder
from vgtools.models.seq2seq import Decoding, generate, translate
from vgtools.systems.visual_awareness.translation import StreamTranslator, TranslationModel
from vgtools.text.subwords import encode_all


def invented(count: int) -> list[str]:
    """Return sentences whose lengths vary like those of news."""
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(3.05, 0.55, count), 2, 120).astype(int)
    return [" ".join(rng.choice(SOURCE, length)) for length in lengths]


def ratios(lines: list[str], size: int, beams: int, rounds: int) -> None:
    """Report both ratios."""
    net = network(scale=2.0)  # its translations seldom end by themselves
    encoder = as_encoder(net, tokenizer(), "random")
    how = Decoding(beams=beams, extra=5)
    sources, _ = encode_all(encoder.tokenizer, lines, 256)
    order = np.argsort([-len(source) for source in sources], kind="stable")
    batches = []
    for start in range(0, len(order), size):
        rows = [torch.from_numpy(sources[i]).long() for i in order[start : start + size]]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        batches.append((ids, (ids > 0).long()))
    worker = StreamTranslator(TranslationModel(encoder, None), "lines", how, size, torch.float32)

    def in_file_order() -> None:
        for start in range(0, len(sources), size):
            translate(net, sources[start : start + size], how, size)

    ways = {
        "file order": in_file_order,
        "sorted": lambda: translate(net, sources, how, size),
        "stream": lambda: worker(Window("lines", 1, lines, "")),
        "bare": lambda: [generate(net, *batch, how) for batch in batches],
    }
    seconds = bench.in_turns(ways, rounds)
    facts = {"lines": len(lines), "batch_size": size, "beams": beams, **bench.machine()}
    bench.report("translate", "lines/s", len(lines) / seconds["stream"], **facts)
    ratio = seconds["file order"] / seconds["sorted"]
    bench.report("translate", "sorted batches to file order", ratio, ">= 1.4", **facts)
    ratio = seconds["bare"] / seconds["stream"]
    bench.report("translate", "lines to lines, to bare generate", ratio, ">= 0.9", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=192)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--beams", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    ratios(invented(given.lines), given.batch_size, given.beams, given.rounds)


if __name__ == "__main__":
    main()
