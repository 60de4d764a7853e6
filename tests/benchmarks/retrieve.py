"""`vg retrieve`: the search for k images per text, and all of its work, to what cannot be avoided.

- search: `exact_search` of k = 16 to the bare float32 product of the same queries and bank;
- retrieve: texts to rows of jsonl, by a matcher, to the bare encoder's pass over the same tokens
  and the bare product.

    python tests/benchmarks/retrieve.py [--texts 2048] [--images 50000] [--dim 256] [--rounds 3]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import bench
import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # the tiny networks of the tests

from search import unit

from vgtools.io.files import dumps
from vgtools.io.streams import Window
from vgtools.models.encoder import load_encoder
from vgtools.retrieval import Index, exact_search, retrieve
from vgtools.systems.vokenization.matcher import MatcherConfig, TokenImageMatcher
from vgtools.systems.vokenization.retrieve import SentenceRetriever
from vgtools.systems.vokenization.vokenize import Matcher, Vokenizer
from vgtools.text.retrieved import input_rows, output_row

K = 16


def search_ratio(images: int, dim: int, rounds: int) -> None:
    """Report the search of a few queries, as in a training step, and of many."""
    bank = unit(images, dim, 1)
    norm = float(np.linalg.norm(bank, axis=1).max())
    for count in (32, 2048):
        queries = unit(count, dim, 0)
        scores = np.empty((min(count, 512), images), np.float32)
        seconds = bench.in_turns(
            {
                "ours": lambda q=queries: exact_search(q, bank, K, norm=norm),
                "product": lambda q=queries, out=scores: [
                    np.matmul(q[i : i + 512], bank.T, out=out) for i in range(0, len(q), 512)
                ],
            },
            rounds,
        )
        bench.report(
            "retrieve",
            f"search of {count} queries, k {K}, to the bare product",
            seconds["ours"] / seconds["product"],
            "<= 1.7",
            images=images,
            dim=dim,
            **bench.machine(),
        )


def stream_ratio(texts: list[str], images: int, dim: int, rounds: int) -> None:
    """Report texts to rows, with a random matcher over the embedded encoder."""
    encoder = load_encoder("builtin:minilm", device="cpu", offline=True)
    config = MatcherConfig(text_width=4 * encoder.width, image_width=8, dim=dim)
    network = TokenImageMatcher(config).eval().requires_grad_(False)
    matcher = Matcher(network, encoder, {}, "random", "random")
    bank = unit(images, dim, 1)
    index = Index("", [str(i) for i in range(images)], {"dim": dim}, None, bank)
    worker = Vokenizer(matcher, index)
    tokens = worker.tokenize(texts)
    size = 512

    def ours() -> int:
        lines = [Window("t", i + 1, texts[i : i + size], "") for i in range(0, len(texts), size)]
        found = retrieve(
            lines,
            input_rows,
            SentenceRetriever(matcher, index),
            lambda rows: np.full(len(rows), -1, np.int32),
            K,
        )
        written = 0
        for _, (rows, (best, scores)) in found:
            parts = zip(rows, best, scores, strict=True)
            written += len(b"".join(dumps(output_row(*part)) for part in parts))
        return written

    @torch.inference_mode()
    def bare() -> None:
        queries = torch.cat([part.vectors for part in worker.embed(tokens)])
        means = queries[: len(texts)].numpy()
        for i in range(0, len(means), size):
            means[i : i + size] @ bank.T

    seconds = bench.in_turns({"ours": ours, "bare": bare}, rounds)
    facts = {"texts": len(texts), "images": images, **bench.machine()}
    bench.report("retrieve", "texts/s by a matcher", len(texts) / seconds["ours"], **facts)
    ratio = seconds["ours"] / seconds["bare"]
    what = "texts to rows, to the bare encoder and product"
    bench.report("retrieve", what, ratio, "<= 1.2", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text")
    parser.add_argument("--texts", type=int, default=2048)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    search_ratio(given.images, given.dim, given.rounds)
    texts = bench.sentences(given.text, given.texts)
    stream_ratio(texts, given.images, given.dim, given.rounds)


if __name__ == "__main__":
    main()
