"""The exact search for the most relevant images.

Its result is the arg-max of the inner products of the float32 vectors computed in float64, the
lowest row where two are equal, whatever the batch, the blocks, the threads or the device. Fast
low-precision products only choose candidates: the rounding error of a product of length E has a
bound (gamma_E * |q| * |x|), so everything within twice that bound of the best product is compared
again in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.process import cores

# The fastest of several shapes on two machines: a block of scores stays in the cache between
# product and arg-max.
_QUERIES = 512
_IMAGES = 3125
REFINE = 1 << 15  # candidates compared at a time in float64: bounds the memory


class SearchResult(NamedTuple):
    """The k most relevant images of each query, best first."""

    rows: Array  # (Q, k) int32 rows of the image bank, -1 where fewer than k exist
    scores: Array  # (Q, k) float32 relevance, 0 where the row is -1; float64 where it is merged


def exact_search(
    queries: Array,
    bank: Array,
    k: int = 1,
    threads: int | None = None,
    *,
    norm: float | None = None,
    dtype: Any = np.float32,
) -> SearchResult:
    """Return the k rows of the bank with the largest inner products, exactly.

    Args:
        queries: (Q, E) float32.
        bank: (N, E) float32, finite; it may be a memory map.
        k: images per query; ties go to the lower row.
        threads: Python threads, each with a one-thread BLAS; None is one per core.
        norm: the `largest_norm` of the bank, where it is known: it is a ninth of a small search.
        dtype: type of the scores; float64 where the results of several banks are merged.

    Raises:
        DataError: a query is NaN or infinite (exit 70).

    Source: Tan & Bansal 2020 (Vokenization), section 3.1 and appendix A.3 (exact search of unit
    vectors).
    """
    queries = np.ascontiguousarray(queries, np.float32)
    best = nothing_found(len(queries), k, dtype)
    if not len(queries) or not len(bank):
        return best
    margin = 2 * _product_error(queries, largest_norm(bank) if norm is None else norm)
    blocks = [slice(i, i + _QUERIES) for i in range(0, len(queries), _QUERIES)]

    def work(block: slice) -> None:
        pairs = _candidates(queries[block], bank, k, margin)
        _choose(queries[block], bank, *pairs, SearchResult(best.rows[block], best.scores[block]))

    count = min(threads or cores(), len(blocks))
    # Threads over blocks keep the arg-max parallel as well; a BLAS with threads of its own would
    # make more threads than there are cores.
    with _pools().limit(limits=1):
        if count == 1:
            for block in blocks:
                work(block)
        else:
            with ThreadPoolExecutor(count, initializer=_without_threads) as pool:
                list(pool.map(work, blocks))
    return best


@cache
def _pools() -> Any:
    """Return the controller of the threads of BLAS and OpenMP; finding libraries takes 8 ms."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def _without_threads() -> None:
    """Let the products of this thread start no others."""
    if "torch" in sys.modules:
        # torch sets the number of threads once for each thread that calls it: here, before it is
        # changed.
        sys.modules["torch"].get_num_threads()
    _pools().limit(limits=1, user_api="openmp")


def _product(queries: Array, block: Array, out: Array) -> Array:
    """Return the (Q, n) products of (Q, E) and (n, E); `out` is memory that they may take."""
    if "torch" in sys.modules:  # importing it takes longer than most searches
        import torch

        from vgtools.models.products import keeps_float32, product

        if keeps_float32():
            # Memory maps are read-only, of which torch warns.
            a, b = (torch.from_numpy(np.require(x, requirements="W")) for x in (queries, block))
            return product(a, b.T, torch.from_numpy(out)).numpy()
    return np.matmul(queries, block.T, out=out)


def nothing_found(count: int, k: int, dtype: Any = np.float32) -> SearchResult:
    """Return k times no image for each of a number of queries, with scores of a type."""
    return SearchResult(np.full((count, k), -1, np.int32), np.zeros((count, k), dtype))


def merged(parts: Sequence[SearchResult], k: int) -> SearchResult:
    """Return the k best images of those found in several parts of a bank, ties to the lower row.

    float32 scores of near-duplicates are equal where their products are not, so that the bank as a
    whole would give another row: parts are exact only if they are merged on float64 scores.

    Args:
        parts: results of the same Q queries, with float64 scores and rows of the whole bank.
        k: images per query.
    """
    rows = np.concatenate([part.rows for part in parts], axis=1)
    scores = np.concatenate([part.scores for part in parts], axis=1)
    order = np.lexsort((rows, -scores, rows < 0), axis=1)[:, :k]
    return SearchResult(np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1))


def largest_norm(vectors: Array) -> float:
    """Return the length of the longest of (N, E) vectors, N > 0."""
    blocks = (vectors[i : i + 8192] for i in range(0, len(vectors), 8192))
    return max(float(np.sqrt(np.einsum("ij,ij->i", b, b).max())) for b in blocks)


def _product_error(queries: Array, norm: float) -> float:
    """Return a bound on the rounding error of the float32 inner products, for any order of sums.

    Args:
        queries: (Q, E).
        norm: length of the longest vector of the bank.
    """
    n = queries.shape[1] + 4
    unit = 2.0**-24
    # gamma_n = n u / (1 - n u) holds for any order of the sums, so that the bound does not depend
    # on the BLAS; 1e-37 covers products that underflow, whose error is not relative.
    bound: float = n * unit / (1 - n * unit)
    return bound * finite(largest_norm(queries)) * norm + 1e-37


def finite(norm: float) -> float:
    """Return the largest norm of queries, refusing NaN and infinity.

    One such query would spoil the search of all others in its block.
    """
    if not np.isfinite(norm):
        raise DataError(
            "the text encoder or the matcher gives a vector that is NaN or infinite; "
            "--dtype float32 may help, otherwise their weights are damaged",
            code=Exit.CANNOT_CONTINUE,
        )
    return norm


def _scores_by_block(queries: Array, bank: Array) -> Iterator[tuple[int, Array]]:
    """Yield the first row of each block of n images and its (Q, n) scores, overwritten later."""
    buffer = np.empty((len(queries), min(_IMAGES, len(bank))), np.float32)
    for start in range(0, len(bank), _IMAGES):
        block = bank[start : start + _IMAGES]
        scores = buffer
        if len(block) < buffer.shape[1]:
            scores = np.empty((len(queries), len(block)), np.float32)
        yield start, _product(queries, block, scores)


def _candidates(queries: Array, bank: Array, k: int, margin: float) -> tuple[Array, Array]:
    """Return (query, row) pairs that are certain to include the k best rows of each query."""
    if k > 1:
        return _candidates_of_several(queries, bank, k, margin)
    size = len(queries)
    every = np.arange(size)
    # The best score so far: a row whose score is below it by more than the margin cannot win.
    floor = np.full(size, -np.inf, np.float32)
    query, row, score = list[Array](), list[Array](), list[Array]()
    for start, scores in _scores_by_block(queries, bank):
        best = scores.argmax(1)
        value = scores[every, best]
        np.maximum(floor, value, out=floor)
        # The best row of the block is found by an arg-max and then hidden: a second row within the
        # margin is so rare that one more maximum mostly ends the search.
        near = np.flatnonzero(value >= floor - margin)
        query.append(near)
        row.append(best[near] + start)
        score.append(value[near])
        scores[every, best] = -np.inf
        # A row below the block's best is near only if that is: few are once the floor has risen.
        most = (scores if len(near) == size else scores[near]).max(1)
        more = near[most >= floor[near] - margin]  # nearly always empty
        if len(more):
            at, column = np.nonzero(scores[more] >= (floor[more] - margin)[:, None])
            query.append(more[at])
            row.append(column + start)
            score.append(scores[more[at], column])
    # The floor has risen since the first blocks: most of their candidates can go before the
    # comparison in float64.
    queries_of = np.concatenate(query)
    keep = np.concatenate(score) >= floor[queries_of] - margin
    return queries_of[keep], np.concatenate(row)[keep]


def _candidates_of_several(
    queries: Array, bank: Array, k: int, margin: float
) -> tuple[Array, Array]:
    """Return (query, row) pairs that are certain to include the k > 1 best rows of each query.

    The floor of a query is the k-th best score of all blocks so far. Once it is high, few blocks
    have a score above it, and no others are looked into.
    """
    size = len(queries)
    best = np.full((size, k), -np.inf, np.float32)  # the k best scores so far, in no order
    query: list[Array] = []
    row: list[Array] = []
    score: list[Array] = []
    for start, scores in _scores_by_block(queries, bank):
        width = scores.shape[1]
        floor = best.min(1) - margin
        inside = np.flatnonzero(scores.max(1) >= floor)
        if not len(inside):
            continue
        part = scores if len(inside) == size else scores[inside]
        if start == 0:
            # The floor is still minus infinity: without the block's own k-th best score every row
            # of it would be kept.
            most = min(k, width)
            best[:, :most] = np.partition(part, width - most, axis=1)[:, -most:]
            floor = best.min(1) - margin
        # The flat array is searched, because np.nonzero on two axes takes several times as long.
        near = np.flatnonzero(part >= floor[inside, None])
        at, column = np.divmod(near, width)
        found = part.reshape(-1)[near]
        query.append(inside[at])
        row.append(column + start)
        score.append(found)
        if start:
            _raise_floor(best, inside, at, found)
    queries_of = np.concatenate(query)
    keep = np.concatenate(score) >= best.min(1)[queries_of] - margin
    return queries_of[keep], np.concatenate(row)[keep]


def _raise_floor(best: Array, queries: Array, at: Array, found: Array) -> None:
    """Put new scores among the k best of their queries, in place.

    Args:
        best: (Q, k) scores.
        queries: which of them have new scores.
        at: (F,) whose new score it is, ascending, counted in `queries`.
        found: (F,) new scores.
    """
    counts = np.bincount(at, minlength=len(queries))
    both = np.full((len(queries), best.shape[1] + int(counts.max())), -np.inf, np.float32)
    both[:, : best.shape[1]] = best[queries]
    rank = np.arange(len(at)) - np.searchsorted(at, at)
    both[at, best.shape[1] + rank] = found
    best[queries] = np.partition(both, both.shape[1] - best.shape[1], axis=1)[:, -best.shape[1] :]


def _choose(queries: Array, bank: Array, query: Array, row: Array, out: SearchResult) -> None:
    """Write the k best of each query's candidates, compared in float64, ties to the lower row."""
    score = np.empty(len(query))
    for i in range(0, len(query), REFINE):
        part = slice(i, i + REFINE)
        left = queries[query[part]].astype(np.float64)
        score[part] = (left * bank[row[part]].astype(np.float64)).sum(1)
    rank_pairs(query, row, score, out)


def rank_pairs(query: Array, row: Array, score: Array, out: SearchResult) -> None:
    """Write the k best (query, row) pairs of each query, ties to the lower row."""
    order = np.lexsort((row, -score, query))
    query, row, score = query[order], row[order], score[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    keep = rank < out.rows.shape[1]
    out.rows[query[keep], rank[keep]] = row[keep]
    out.scores[query[keep], rank[keep]] = score[keep]
