"""Exact search of tokens among images: queries per second against faiss's flat index.

And of the images of a few texts, 16 of each, against the bare product of the two arrays.

python tests/benchmarks/search.py [--queries 16384] [--images 50000] [--dim 64] [--rounds 3]
"""

from __future__ import annotations

import argparse

import bench
import faiss
import numpy as np

from vgtools.retrieval.exact import exact_search, largest_norm


def unit(count: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=16384)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    queries, bank = unit(given.queries, given.dim, 0), unit(given.images, given.dim, 1)
    flat = faiss.IndexFlatIP(given.dim)
    flat.add(bank)
    batch = 32 * 29  # tokens of a batch of 32 sentences
    found = exact_search(queries, bank).rows[:, 0]
    # Blocks of queries, so that the float64 scores fit.
    parts = range(0, min(given.queries, 2048), 256)
    exact = np.concatenate(
        [(queries[i : i + 256].astype(float) @ bank.astype(float).T).argmax(1) for i in parts]
    )
    seconds = bench.in_turns(
        {
            "ours": lambda: exact_search(queries, bank),
            "faiss, batches of 32 sentences": lambda: [
                flat.search(queries[i : i + batch], 1) for i in range(0, len(queries), batch)
            ],
            "faiss, one call": lambda: flat.search(queries, 1),
        },
        given.rounds,
    )
    facts = {"images": given.images, "dim": given.dim, **bench.machine()}
    for name, time in seconds.items():
        bench.report("search", f"{name}, queries/s", given.queries / time, **facts)
    ratio = seconds["faiss, batches of 32 sentences"] / seconds["ours"]
    bench.report(
        "search", "speed, to faiss flat in batches of 32 sentences", ratio, ">= 2.5", **facts
    )
    bench.report(
        "search",
        "speed, to faiss flat in one call",
        seconds["faiss, one call"] / seconds["ours"],
        **facts,
    )
    bench.report(
        "search",
        "vokens equal to float64 brute force",
        float((found[: len(exact)] == exact).mean()),
        ">= 1",
        **facts,
    )
    several(given.rounds)


def several(rounds: int, texts: int = 32, images: int = 300_000, dim: int = 300) -> None:
    """Measure the search of 16 images per text, as a step of associative grounding asks."""
    queries, bank = unit(texts, dim, 0), unit(images, dim, 1)
    norm = largest_norm(bank)
    seconds = bench.in_turns(
        {
            "ours": lambda: exact_search(queries, bank, 16, norm=norm),
            "product": lambda: queries @ bank.T,
        },
        rounds,
    )
    facts = {"texts": texts, "images": images, "dim": dim, **bench.machine()}
    ratio = seconds["ours"] / seconds["product"]
    bench.report(
        "search", "time of 16 images per text, to the bare product", ratio, "<= 1.2", **facts
    )


if __name__ == "__main__":
    main()
