"""Retrieval: the index file with its ids, and the exact search for the most relevant images.

The exact search is exact: its result is the arg-max of the inner products of the float32 vectors
computed in float64, the lowest row where two are equal, whatever the batch, the blocks, the threads
or the device. Fast low-precision products only choose candidates: the rounding error of a product
of length E has a bound (gamma_E * |q| * |x|), so everything within twice that bound of the best
product is compared again in float64.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from vgtools.io import DataError, Exit, Features, Window, read_ids, read_manifest
from vgtools.io.arrays import Array
from vgtools.io.windows import pipelined

if TYPE_CHECKING:
    import torch


METRIC = "inner_product"
FLAT = "Flat"
# The fastest of several shapes on two machines: a block of scores stays in the cache between
# product and arg-max.
_QUERIES = 512
_IMAGES = 3125
_TEXTS = 1024  # whose relevance is computed at a time
_REFINE = 1 << 15  # candidates compared at a time in float64: bounds the memory


class Found(NamedTuple):
    """The k most relevant images of each query, best first."""

    rows: Array  # (Q, k) int32 rows of the image bank, -1 where fewer than k exist
    scores: Array  # (Q, k) float32 relevance, 0 where the row is -1


# -------------------------------------------------------------------------------------------- exact


def exact_search(
    queries: Array,
    bank: Array,
    k: int = 1,
    threads: int | None = None,
    *,
    norm: float | None = None,
) -> Found:
    """Return the k rows of the bank with the largest inner products, exactly.

    Args:
        queries: (Q, E) float32.
        bank: (N, E) float32, finite; it may be a memory map.
        k: images per query; ties go to the lower row.
        threads: Python threads, each with a one-thread BLAS; None is one per core.
        norm: the `largest_norm` of the bank, where it is known: it is a ninth of a small search.

    Raises:
        DataError: a query is NaN or infinite (exit 70).

    Source: Tan & Bansal 2020 (Vokenization), section 3.1 and appendix A.3 (exact search of unit
    vectors).
    """
    queries = np.ascontiguousarray(queries, np.float32)
    best = nothing_found(len(queries), k)
    if not len(queries) or not len(bank):
        return best
    margin = 2 * _product_error(queries, largest_norm(bank) if norm is None else norm)
    blocks = [slice(i, i + _QUERIES) for i in range(0, len(queries), _QUERIES)]

    def work(block: slice) -> None:
        pairs = _candidates(queries[block], bank, k, margin)
        _choose(queries[block], bank, *pairs, Found(best.rows[block], best.scores[block]))

    count = min(threads or cores(), len(blocks))
    with _blas().limit(limits=1, user_api="blas"):
        if count == 1:
            for block in blocks:
                work(block)
        else:
            with ThreadPoolExecutor(count) as pool:
                list(pool.map(work, blocks))
    return best


@cache
def _blas() -> Any:
    """Return what limits the threads of numpy's BLAS; to look for its library takes 8 ms."""
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        available = len(os.sched_getaffinity(0))
    else:
        available = os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(available, int(limit)) if limit.isdigit() and int(limit) else available


def nothing_found(count: int, k: int) -> Found:
    """Return k times no image for each of a number of queries."""
    return Found(np.full((count, k), -1, np.int32), np.zeros((count, k), np.float32))


def largest_norm(vectors: Array) -> float:
    """Return the length of the longest of (N, E) vectors, N > 0."""
    blocks = (vectors[i : i + 8192] for i in range(0, len(vectors), 8192))
    return max(float(np.sqrt(np.einsum("ij,ij->i", b, b).max())) for b in blocks)


def _product_error(queries: Array, norm: float) -> float:
    """Return a bound on the rounding error of the float32 inner products, for any order of sums.

    Args:
        queries: (Q, E).
        norm: of the longest vector of the bank.
    """
    n = queries.shape[1] + 4
    unit = 2.0**-24
    bound: float = n * unit / (1 - n * unit)
    return bound * _finite(largest_norm(queries)) * norm + 1e-37


def _finite(norm: float) -> float:
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


def _candidates(queries: Array, bank: Array, k: int, margin: float) -> tuple[Array, Array]:
    """Return (query, row) pairs that are certain to include the k best rows of each query."""
    if k > 1:
        return _candidates_of_several(queries, bank, k, margin)
    size = len(queries)
    every = np.arange(size)
    buffer = np.empty((size, min(_IMAGES, len(bank))), np.float32)
    # The best so far: what is below it by more than the margin is out.
    floor = np.full(size, -np.inf, np.float32)
    query, row, score = list[Array](), list[Array](), list[Array]()
    for start in range(0, len(bank), _IMAGES):
        block = bank[start : start + _IMAGES]
        scores = buffer
        if len(block) < buffer.shape[1]:
            scores = np.empty((size, len(block)), np.float32)
        np.matmul(queries, block.T, out=scores)
        best = scores.argmax(1)
        value = scores[every, best]
        np.maximum(floor, value, out=floor)
        near = np.flatnonzero(value >= floor - margin)
        query.append(near)
        row.append(best[near] + start)
        score.append(value[near])
        scores[every, best] = -np.inf
        more = np.flatnonzero(scores.max(1) >= floor - margin)  # nearly always empty
        if len(more):
            at, column = np.nonzero(scores[more] >= (floor[more] - margin)[:, None])
            query.append(more[at])
            row.append(column + start)
            score.append(scores[more[at], column])
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
    buffer = np.empty((size, min(_IMAGES, len(bank))), np.float32)
    best = np.full((size, k), -np.inf, np.float32)  # the k best scores so far, in no order
    query: list[Array] = []
    row: list[Array] = []
    score: list[Array] = []
    for start in range(0, len(bank), _IMAGES):
        block = bank[start : start + _IMAGES]
        scores = buffer
        if len(block) < buffer.shape[1]:
            scores = np.empty((size, len(block)), np.float32)
        np.matmul(queries, block.T, out=scores)
        floor = best.min(1) - margin
        inside = np.flatnonzero(scores.max(1) >= floor)
        if not len(inside):
            continue
        part = scores if len(inside) == size else scores[inside]
        if start == 0:
            # Nothing is known yet: without the block's own k-th best all of it would be kept.
            most = min(k, len(block))
            best[:, :most] = np.partition(part, len(block) - most, axis=1)[:, -most:]
            floor = best.min(1) - margin
        # Of a flat array: to look for pairs takes several times as long.
        near = np.flatnonzero(part >= floor[inside, None])
        at, column = np.divmod(near, len(block))
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


def _choose(queries: Array, bank: Array, query: Array, row: Array, out: Found) -> None:
    """Write the k best of each query's candidates, compared in float64, ties to the lower row."""
    score = np.empty(len(query))
    for i in range(0, len(query), _REFINE):
        part = slice(i, i + _REFINE)
        left = queries[query[part]].astype(np.float64)
        score[part] = (left * bank[row[part]].astype(np.float64)).sum(1)
    _rank(query, row, score, out)


def _rank(query: Array, row: Array, score: Array, out: Found) -> None:
    """Write the k best (query, row) pairs of each query, ties to the lower row."""
    order = np.lexsort((row, -score, query))
    query, row, score = query[order], row[order], score[order]
    rank = np.arange(len(query)) - np.searchsorted(query, query)
    keep = rank < out.rows.shape[1]
    out.rows[query[keep], rank[keep]] = row[keep]
    out.scores[query[keep], rank[keep]] = score[keep]


# ------------------------------------------------------------------------------------------- device


class DeviceBank:
    """The image bank on a GPU, searched exactly.

    Low-precision products choose candidates, which are compared in float64.

    Args:
        bank: (N, E) float32.
        device: the GPU.
        coarse: dtype of the products that choose candidates.
    """

    _GROUP = 64

    def __init__(
        self, bank: Array, device: torch.device, coarse: torch.dtype | None = None
    ) -> None:
        import torch

        default = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.coarse = coarse or default
        self.bank = torch.from_numpy(np.array(bank, np.float32)).to(device)
        self._padded = self.bank
        self._norm = 0.0
        if len(bank):
            # Copies of the last row fill the last group; they are dropped before anything is
            # compared.
            fill = self.bank[-1:].expand(-len(bank) % self._GROUP, -1)
            self._padded = torch.cat([self.bank, fill]).to(self.coarse)
            self._norm = largest_norm(bank)

    def search(self, queries: torch.Tensor, k: int = 1, budget: int = 1 << 29) -> Found:
        """Return the k best rows of each query.

        Args:
            queries: (Q, E) float32, on the device.
            k: images per query; ties go to the lower row.
            budget: bytes of scores held at a time.
        """
        import torch

        best = nothing_found(len(queries), k)
        if not len(queries) or not len(self.bank):
            return best
        bound = (queries.shape[1] + 4) * 2.0**-24  # rounding of the sum, in float32
        if self.coarse != torch.float32:
            unit = torch.finfo(self.coarse).eps / 2
            bound += 3 * unit + 3 * unit**2  # rounding of both inputs and of the result
        norm = _finite(float(torch.linalg.vector_norm(queries, dim=1).max()))
        margin = 2 * 1.01 * bound * norm * self._norm + 1e-37
        step = max(1, budget // (len(self._padded) * self.coarse.itemsize))
        for i in range(0, len(queries), step):
            part = slice(i, i + step)
            self._search(queries[part], k, margin, Found(best.rows[part], best.scores[part]))
        return best

    def _search(self, queries: torch.Tensor, k: int, margin: float, out: Found) -> None:
        import torch

        scores = queries.to(self.coarse) @ self._padded.T  # (q, N padded)
        groups = scores.view(len(queries), -1, self._GROUP)
        if k == 1:
            tops = groups.amax(2)  # (q, groups): the only pass over all scores
            floor = tops.amax(1).float() - margin
            query, group = torch.nonzero(tops.float() >= floor[:, None], as_tuple=True)
            near_scores = groups[query, group].float()
            near, column = torch.nonzero(near_scores >= floor[query, None], as_tuple=True)
            query, row = query[near], group[near] * self._GROUP + column
        else:
            # Copies of the last row may be among the k best: look deeper by their number.
            depth = min(k + len(self._padded) - len(self.bank), scores.shape[1])
            floor = scores.topk(depth, dim=1).values[:, -1].float() - margin
            query, row = torch.nonzero(scores.float() >= floor[:, None], as_tuple=True)
        real = row < len(self.bank)
        query, row = query[real], row[real]
        parts = zip(query.split(_REFINE), row.split(_REFINE), strict=True)
        score = torch.cat([(queries[q].double() * self.bank[r].double()).sum(1) for q, r in parts])
        if k > 1:
            _rank(query.cpu().numpy(), row.cpu().numpy(), score.cpu().numpy(), out)
            return
        # For k = 1 the same choice is made without leaving the device.
        best = torch.full((len(queries),), -torch.inf, dtype=score.dtype, device=score.device)
        best.scatter_reduce_(0, query, score, "amax")
        top = score == best[query]
        lowest = torch.full_like(best, len(self.bank), dtype=torch.int64)
        lowest.scatter_reduce_(0, query[top], row[top], "amin")
        out.rows[:, 0] = lowest.cpu().numpy()
        out.scores[:, 0] = best.cpu().numpy()


# ------------------------------------------------------------------------------------------- texts


class Ranking(NamedTuple):
    """How images rank for texts, -inf where an image is not found at all."""

    order: Array  # (B, I) number by which the images of a text are ordered, the largest first
    relevance: Array  # (B, I) what can be compared between texts, too; mostly the same array


class Retriever(Protocol):
    """Finds images of texts; what a text gets depends on the text, and on its own image, alone."""

    def prepare(self, texts: Sequence[str]) -> Any:
        """Return what `search` takes; called in another thread, ahead of it."""
        ...

    def search(self, prepared: Any, k: int, own: Array) -> Found:
        """Return k images of each of B texts; (B,) `own` is a row never returned, -1 for none.

        Rows are -1 where there are fewer than k, and for a text that asks for nothing.
        """
        ...

    def relevance(self, prepared: Any, images: Array) -> Ranking:
        """Return how the images of (I,) rows of the bank rank for each of B texts."""
        ...

    def cancel(self) -> None:
        """Make work in another thread end soon."""
        ...


@dataclass(frozen=True)
class Bank:
    """Image features, and how a finished run embeds them."""

    features: Features
    backbone: Mapping[str, Any] | None  # that of the run
    fingerprint: str  # of the run
    dim: int  # E
    # (features, their ids, called with the number of images done) -> (N, E) float32
    embed: Callable[[Array, list[str], Callable[[int], None]], Array]
    queries: Callable[[], Array]  # (Q, E) embeddings of words, to measure an index with


class Prepared(Protocol):
    """B texts that are ready to be embedded."""

    @property
    def starts(self) -> Array:
        """Where each text starts, (B + 1,)."""
        ...


Texts = TypeVar("Texts", bound=Prepared)


class NearestImages(ABC, Generic[Texts]):
    """A `Retriever` that finds the images nearest to an embedding of the text.

    Args:
        index: the image bank.
        fingerprint: of the run that embeds texts.
    """

    def __init__(self, index: Index, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._index = index
        self._kept: deque[Array] | None = None

    def keep(self, kept: deque[Array]) -> None:
        """Let `search` leave the (B, E) embeddings of its texts there, 0 where none asks."""
        self._kept = kept

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where texts are embedded."""

    @abstractmethod
    def prepare(self, texts: Sequence[str]) -> Texts:
        """Return what `embed` takes."""

    def cancel(self) -> None:
        """Make work in another thread end soon; where nothing takes long there is no need to."""

    @abstractmethod
    def embed(self, texts: Texts) -> tuple[torch.Tensor, Array]:
        """Return (Q, E) unit vectors of the texts that ask for something, and their numbers."""

    def search(self, texts: Texts, k: int, own: Array) -> Found:
        """Return the k most relevant images of texts, without a row of the text's own.

        Args:
            texts: B of them.
            k: images per text.
            own: (B,) int32 row to leave out, -1 for none.
        """
        queries, asking = self.embed(texts)
        if self._kept is not None:
            vectors = np.zeros((len(own), queries.shape[1]), np.float32)
            vectors[asking] = queries.float().cpu().numpy()
            self._kept.append(vectors)
        most = min(k + bool((own >= 0).any()), len(self._index.ids))
        best = leave_out(self._index.search(queries, most), own[asking], k)
        found = nothing_found(len(own), k)
        found.rows[asking] = best.rows
        found.scores[asking] = best.scores
        return found

    def relevance(self, texts: Texts, images: Array) -> Ranking:
        """Return the relevance of some images to texts, -inf for a text that asks for nothing.

        Raises:
            DataError: the index is not exact (usage).
        """
        if self._index.bank is None:
            why = "holds no exact vectors to rank with; build it with --factory Flat"
            raise DataError(why, self._index.path, code=Exit.USAGE)
        queries, asking = self.embed(texts)
        bank = self._index.bank[images].astype(np.float64)
        found = np.full((len(texts.starts) - 1, len(images)), -np.inf)
        found[asking] = queries.double().cpu().numpy() @ bank.T
        return Ranking(found, found)


Row = Mapping[str, Any]  # of an input: "text", and "image" where it names its own


def retrieve(
    windows: Iterable[Window],
    read: Callable[[Window], Sequence[Row]],
    retriever: Retriever,
    own: Callable[[Sequence[Row]], Array],
    k: int,
) -> Generator[tuple[Window, tuple[Sequence[Row], Found]], None, None]:
    """Return each window with its rows and the images of their texts, in order.

    The next ones are read, prepared and searched meanwhile.

    Args:
        windows: of input lines.
        read: gives the rows of a window.
        retriever: finds the images.
        own: gives the (B,) image of each row that is not to be found, -1 for none.
        k: images per text.
    """

    def prepare(window: Window) -> tuple[Sequence[Row], Any]:
        rows = read(window)
        return rows, retriever.prepare([row["text"] for row in rows])

    def compute(prepared: tuple[Sequence[Row], Any]) -> tuple[Sequence[Row], Found]:
        rows, texts = prepared
        return rows, retriever.search(texts, k, own(rows))

    return pipelined(windows, prepare, compute, retriever.cancel)


def rank(
    texts: Sequence[str], images: Array, retriever: Retriever
) -> Generator[Ranking, None, None]:
    """Yield how images rank for texts, block by block.

    Args:
        texts: any number.
        images: (I,) rows of the bank.
        retriever: ranks them.
    """
    for start in range(0, len(texts), _TEXTS):
        yield retriever.relevance(retriever.prepare(texts[start : start + _TEXTS]), images)


def leave_out(found: Found, own: Array, k: int) -> Found:
    """Return the k best of what was found, without a row of the query's own.

    Args:
        found: of Q queries, best first.
        own: (Q,) row to leave out, -1 for none.
        k: columns of the result; where fewer are left, the rest is -1 with score 0.
    """
    return first_of(found, found.rows != own[:, None], k)


def first_of(found: Found, kept: Array, k: int) -> Found:
    """Return the first k of what was found and is kept.

    Args:
        found: (Q, n), best first.
        kept: (Q, n) bool.
        k: columns of the result; where fewer are left, the rest is -1 with score 0.
    """
    best = nothing_found(len(kept), k)
    dropped = ~kept | (found.rows < 0)
    order = np.argsort(dropped, axis=1, kind="stable")[:, :k]
    here = ~np.take_along_axis(dropped, order, 1)
    for whole, array in zip(best, found, strict=True):
        whole[:, : order.shape[1]][here] = np.take_along_axis(array, order, 1)[here]
    return best


# -------------------------------------------------------------------------------------------- files


@dataclass
class Index:
    """An open index: row i of the bank is the image `ids[i]`."""

    path: str
    ids: list[str]
    manifest: dict[str, Any]
    faiss: Any
    bank: Array | None  # (N, E) float32, memory-mapped; None where the index is not exact
    _on_device: DeviceBank | None = None
    _norm: float | None = None  # of the bank's longest vector, once it was searched

    def to(self, device: torch.device) -> Index:
        """Copy the bank of an exact index to a GPU; on a CPU nothing changes."""
        if self.bank is not None and device.type == "cuda":
            self._on_device = DeviceBank(self.bank, device)
        return self

    def search(self, queries: torch.Tensor | Array, k: int = 1) -> Found:
        """Return the k most relevant images of (Q, E) unit vectors, on whatever device they are.

        An exact index gives exactly the k largest inner products, ties to the lower row. Any other
        faiss index gives what faiss finds; where it finds fewer than k, the rest is -1 with score
        0.
        """
        if not isinstance(queries, np.ndarray):
            if self._on_device is not None:
                return self._on_device.search(queries, k)
            queries = cast(Array, queries.detach().float().cpu().numpy())
        if self.bank is not None:
            if self._norm is None and len(self.bank):
                self._norm = largest_norm(self.bank)
            return exact_search(queries, self.bank, k, norm=self._norm)
        if not len(queries):
            return nothing_found(0, k)
        scores, rows = self.faiss.search(np.ascontiguousarray(queries, np.float32), k)
        return Found(rows.astype(np.int32), np.where(rows < 0, 0, scores).astype(np.float32))


def bare_index(dim: int) -> Index:
    """Return an index without images, for work that only embeds texts."""
    return Index("", [], {"dim": dim}, None, np.zeros((0, dim), np.float32))


def check_embeddings(
    emb: Array, ids: list[str], first: int = 0, file: str | Path | None = None
) -> None:
    """Refuse embeddings that cannot be ranked.

    Args:
        emb: (N, E) embeddings.
        ids: of all images.
        first: row of emb[0] in the bank.
        file: where they come from, for messages.

    Raises:
        DataError: a row is NaN, infinite or all zero; its number and id are named.
    """
    bad = ~np.isfinite(emb).all(1) | ~emb.any(1)
    if bad.any():
        row = first + int(bad.argmax())
        why = f"the embedding of row {row} ({ids[row]}) is NaN, infinite or all zero"
        raise DataError(f"{why}; extract the image again", file)


def make_index(emb: Array, factory: str = FLAT) -> Any:
    """Return a faiss index over (N, E) unit vectors, for inner products.

    Args:
        emb: float32 embeddings in the row order of the bank.
        factory: a string for `faiss.index_factory`; `Flat` is exact.

    Raises:
        DataError: faiss does not know the factory, or needs more images for its training.
    """
    import faiss

    try:
        index = faiss.index_factory(emb.shape[1], factory, faiss.METRIC_INNER_PRODUCT)
        if not index.is_trained:
            index.train(np.ascontiguousarray(emb))
        index.add(np.ascontiguousarray(emb))
    except RuntimeError as error:
        size = f"{len(emb)} images of {emb.shape[1]} dimensions"
        why = f"faiss refuses --factory {factory!r} for {size}: {_reason(error)}"
        raise DataError(f"{why}. {FLAT} always works, and is exact") from None
    return index


def _reason(error: RuntimeError) -> str:
    """Return the reason in a faiss error, without the line of its source."""
    return re.sub(
        r"^Error in .*?\.(cpp|h):\d+: |^.*Error: ", "", str(error).strip().splitlines()[0]
    )


def recall_at_1(index: Any, emb: Array, queries: Array) -> float:
    """Return the share of queries whose image, by the index, is that of exact search."""
    exact = exact_search(queries, emb).rows[:, 0]
    rows = index.search(np.ascontiguousarray(queries, np.float32), 1)[1][:, 0]
    # Vectors are compared, not rows: a picture may be in the bank twice.
    return float(np.mean((rows >= 0) & (emb[rows] == emb[exact]).all(1)))


def serialize(index: Any) -> memoryview:
    """Return the bytes of a .faiss file."""
    import faiss

    whole: Array = faiss.serialize_index(index)
    return whole.data


def open_index(path: str | Path) -> Index:
    """Open `X.faiss` with `X.ids` and `X.json`; its sha256 is checked before faiss reads it.

    Raises:
        DataError: one of the three is missing (66), damaged or from another run, or they disagree
            on the number of images, the dimension or the metric (65).
    """
    manifest = read_manifest(path, "index")
    import faiss

    try:
        index: Any = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise DataError(f"is not a readable faiss index: {_reason(error)}", path) from None
    ids = read_ids(Path(path).with_suffix(".ids"))
    metric = f"faiss metric {index.metric_type}"
    if index.metric_type == faiss.METRIC_INNER_PRODUCT:
        metric = METRIC
    facts = {"count": int(index.ntotal), "dim": int(index.d), "metric": metric}
    for name, value in facts.items():
        if manifest.get(name) != value:
            why = f"has {name} {value}, its manifest says {manifest.get(name)}"
            raise DataError(f"{why}; build it again", path)
    if metric != METRIC or len(ids) != index.ntotal:
        why = f"got {index.ntotal} images by {metric} and {len(ids)} ids"
        raise DataError(f"expected one id per image and {METRIC}, {why}; build it again", path)
    if not index.ntotal or not index.is_trained:
        why = "holds no images" if not index.ntotal else "was never trained"
        raise DataError(f"{why}; build it again", path)
    bank = None
    if isinstance(index, faiss.IndexFlat):
        vectors = cast(Any, faiss.downcast_index(index)).get_xb()
        flat = faiss.rev_swig_ptr(vectors, index.ntotal * index.d)
        bank = flat.reshape(index.ntotal, index.d)
        check_embeddings(bank, ids, file=path)
    return Index(str(path), ids, manifest, index, bank)


def matcher_path(index: Index, run: str | None = None) -> str:
    """Return the path of the run that embedded an index: `run`, if it has moved.

    The manifest names it as seen from the index's own folder.

    Raises:
        DataError: the index names none (65), or it is not there (66).
    """
    named = index.manifest.get("matcher")
    if not isinstance(named, Mapping):
        why = "does not name the matcher that made it; rebuild it with vg build-index"
        raise DataError(why, index.path)
    path = run or os.path.normpath(Path(index.path).parent / str(named.get("run", "")))
    if run is None and not os.path.isdir(path):
        why = f"its matcher {path} does not exist; give its new place with --matcher"
        raise DataError(why, index.path, code=Exit.NO_INPUT)
    return path
