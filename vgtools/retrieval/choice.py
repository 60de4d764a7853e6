"""The choice of an index by measuring: lists, and how their vectors are stored.

Candidates are built over a sample of the bank with as many lists as the whole bank would get, and
searched with the bank's queries; the exact search of the sample finds the right image. The one
taken reads the fewest bytes per search, counted for the whole bank, of those that fit the memory
and find the right image often enough. Nothing is timed, so that every machine chooses alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.retrieval.build import BLOCK, PER_LIST, IndexPlan, embedded, trained
from vgtools.retrieval.exact import exact_search
from vgtools.retrieval.index import FLAT, search_faiss

AUTO = "auto"
_EXACT = 1 << 29  # numbers of a bank that an exact search reads in a fraction of a second
_FEWEST = 39  # vectors per list below which faiss warns
_MOST_LISTS = 1 << 14  # their training takes hours beyond
_QUERIES = 2048


def choose(plan: IndexPlan, memory: int, recall: float) -> tuple[IndexPlan, dict[str, Any]]:
    """Return the plan with a factory and lists to look into, and the candidates as measured.

    Args:
        plan: the bank.
        memory: bytes that the index may have.
        recall: how often it is to find the image of the exact search, 0 to 1.

    Raises:
        DataError: no candidate fits the memory (usage).
    """
    facts: dict[str, Any] = {"memory": memory, "recall": recall}
    whole = 4 * plan.count * plan.dim
    if whole <= memory and plan.count * plan.dim <= _EXACT:
        return replace(plan, factory=FLAT), facts | {"bytes": whole, "sample": 0, "tried": []}
    lists = 1 << round(math.log2(4 * math.sqrt(plan.count)))
    lists = max(1, min(lists, _MOST_LISTS, plan.count // _FEWEST))
    size = min(plan.count, max(PER_LIST * lists, BLOCK // plan.dim))
    fits = [c for c in _candidates(plan, lists, size) if c["bytes"] <= memory]
    if not fits:
        least = min(c["bytes"] for c in _candidates(plan, lists, size))
        why = f"--memory: {plan.count} images of {plan.dim} dimensions take at least {least} bytes"
        raise DataError(why, code=Exit.USAGE)
    rows = np.random.default_rng(0).choice(plan.count, size, replace=False)
    emb = embedded(plan, np.sort(rows))
    queries = _queries(plan, emb)
    right = emb[exact_search(queries, emb, dtype=np.float64).rows[:, 0]]
    centroids = None
    for candidate in fits:
        part = IndexPlan(lambda at: emb[at], size, plan.dim, candidate["factory"])
        index = trained(part, centroids)
        centroids = index.quantizer.reconstruct_n(0, lists)
        index.add(emb)
        _measure(candidate, index, emb, queries, right, recall)
    good = [c for c in fits if c["recall_at_1"] >= recall]
    if good:
        best = min(good, key=lambda c: c["nprobe"] * c["bytes"])
    else:
        best = max(fits, key=lambda c: c["recall_at_1"])
    facts |= {"bytes": best["bytes"], "sample": size, "tried": fits}
    return replace(plan, factory=best["factory"], nprobe=best["nprobe"]), facts


def _candidates(plan: IndexPlan, lists: int, sample: int) -> Iterator[dict[str, Any]]:
    """Yield factories and the bytes of their indexes, by precision."""
    dim = plan.dim
    codes = {"Flat": 4 * dim, "SQ8": dim, "SQ4": (dim + 1) // 2}
    if dim % 4 == 0 and sample >= _FEWEST << 8:  # 256 centroids for each four dimensions
        codes[f"PQ{dim // 4}"] = dim // 4
    for name, code in codes.items():
        size = plan.count * (code + 8) + 4 * lists * dim
        yield {"factory": f"IVF{lists},{name}", "bytes": size}


def _queries(plan: IndexPlan, emb: Array) -> Array:
    """Return some of the bank's queries; without any, means of two images."""
    queries = np.zeros((0, plan.dim), np.float32) if plan.queries is None else plan.queries()
    if len(queries):
        return queries[:_QUERIES]
    middle = emb[:_QUERIES] + emb[::-1][:_QUERIES]
    lengths: Array = np.maximum(np.linalg.norm(middle, axis=1, keepdims=True), 1e-6)
    return middle / lengths


def _measure(
    candidate: dict[str, Any], index: Any, emb: Array, queries: Array, right: Array, recall: float
) -> None:
    """Add the fewest lists that reach the recall to a candidate, doubled from one, and it."""
    index.nprobe = 1
    while True:
        found = search_faiss(index, queries, 1, np.float64).rows[:, 0]
        # Vectors are compared, not rows: a picture may be in the bank twice.
        same = (emb[found] == right).all(1) & (found >= 0)
        candidate |= {"nprobe": index.nprobe, "recall_at_1": float(same.mean())}
        if candidate["recall_at_1"] >= recall or index.nprobe >= index.nlist:
            return
        index.nprobe = min(index.nlist, 2 * index.nprobe)
