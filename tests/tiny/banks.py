"""Banks of random unit vectors, the search as a loop in float64, and index files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io.files import write_manifest
from vgtools.retrieval.build import make_index, serialize
from vgtools.retrieval.index import METRIC

Array = np.ndarray[Any, Any]


def unit(count: int, dim: int, seed: int = 0) -> Array:
    vectors = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def brute_force(queries: Array, bank: Array, k: int) -> Array:
    """Return the k best rows by float64 inner products, the lower row first where two are equal."""
    rows = np.empty((len(queries), min(k, len(bank))), np.int64)
    for i, query in enumerate(queries.astype(np.float64)):
        scores = (query * bank.astype(np.float64)).sum(1)
        rows[i] = np.lexsort((np.arange(len(bank)), -scores))[:k]
    return rows


def hard_bank(count: int, dim: int) -> tuple[Array, Array]:
    """Return queries and a bank with equal rows, rows one bit apart, and queries equal to rows."""
    bank = unit(count, dim)
    bank[count // 2] = bank[1]
    bank[-1] = bank[1]
    near = slice(count // 4, count // 4 + 20)
    bank[near] = bank[3] + 1e-7 * np.random.default_rng(1).standard_normal(bank[near].shape).astype(
        np.float32
    )
    return np.concatenate([unit(90, dim, 2), bank[[1, 3, count // 4]]]), bank


def save_index(
    folder: Path, emb: Array, like: str = "Flat", *, first: int = 0, **facts: Any
) -> Path:
    """Write an index `like` a factory string, with ids counted from `first`, and a manifest."""
    folder.mkdir(exist_ok=True)
    path = folder / "vg.faiss"
    path.write_bytes(bytes(serialize(make_index(emb, like))))
    ids = path.with_suffix(".ids")
    ids.write_text("".join(f"i{first + i}\n" for i in range(len(emb))))
    known = {"kind": "index", "count": len(emb), "dim": emb.shape[1], "metric": METRIC}
    write_manifest(path, [path, ids], **(known | facts))
    return path
