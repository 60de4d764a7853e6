"""Index files larger than memory: trained on a sample, filled block by block, measured meanwhile.

`Flat` is a header and the vectors. Lists (IVF) are sorted block by block into a file without a
name, then copied list by list. The bytes are those that faiss writes of the index as a whole.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.retrieval.exact import SearchResult, exact_search, merged, nothing_found
from vgtools.retrieval.index import FLAT, lists_of, reason, search_faiss

_STEP = 4096  # images that are embedded at a time
BLOCK = 1 << 24  # numbers of the vectors that are added at a time: 64 MB of float32
_COPIED = 1 << 25  # bytes of lists that are copied at a time
PER_LIST = 64  # vectors per list to train on
NPROBE = 32  # lists that are looked into, if the user names no number
_LISTS = 32  # bytes of empty lists at the end of an index file
# faiss accepts zero lists, and only its training crashes.
_NO_LISTS = re.compile(r"IVF0+(?!\d)")
_MOST_LISTS = 1 << 22  # more than for billions of images; faiss takes memory for each at once
# The messages of faiss for a string that is wrong for banks of any size and dimension: it cannot be
# read, a number in it is too large, or the index has no inner products.
_WRONG = re.compile(r"could not parse|^C\+\+ exception|METRIC_L2")


@dataclass(frozen=True)
class IndexPlan:
    """The bank, and the index to build over it."""

    embed: Callable[[Array], Array]  # (n,) rows of the bank -> (n, E) float32 unit vectors
    count: int  # N
    dim: int  # E
    factory: str = FLAT  # a string for `faiss.index_factory`
    nprobe: int | None = None  # lists to look into
    queries: Callable[[], Array] | None = None  # (Q, E), to measure an index that is not exact


def check_factory(factory: str) -> None:
    """Refuse a string from which faiss can make no index, whatever the bank.

    Raises:
        DataError: it is such a string (usage).
    """
    if factory == FLAT:
        return
    import faiss

    # 64 dimensions stand for a bank that is not known yet, so that an error counts only if it would
    # occur with any other bank as well.
    why = "there must be a list" if _NO_LISTS.search(factory) else ""
    if any(float(number) > _MOST_LISTS for number in re.findall(r"IVF(\d+)", factory)):
        why = f"there can be {_MOST_LISTS:,} lists at most"
    try:
        if not why:
            faiss.index_factory(64, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        why = reason(error) if _WRONG.search(str(error)) else ""
    if why:
        expected = f"expected {FLAT}, IVF4096,SQ8 or another factory string of faiss (case counts)"
        raise DataError(f"--factory {factory!r}: {why}; {expected}", code=Exit.USAGE)


def write_index(
    plan: IndexPlan,
    write: Callable[[bytes | memoryview], None],
    folder: str | Path = ".",
    each: Callable[[Array], None] | None = None,
) -> dict[str, Any]:
    """Write an index file, and return the facts about its search that the manifest records.

    Args:
        plan: the bank and the index to build.
        write: appends to the file.
        folder: for a temporary file of the size of the index.
        each: called with the vectors of some images after the others, in order.

    Returns:
        "factory", and for an index that is not exact "nprobe" (None without lists), "recall_at_1"
        and "relevance_lost": how often it finds the image of the exact search, and by how much the
        images that it finds are less relevant, on average.

    Raises:
        DataError: faiss does not know the factory, or needs more images for its training.
    """
    if plan.factory == FLAT:
        write(_header(_new_index(plan), plan.count) + struct.pack("<Q", plan.count * plan.dim))
        for start in range(0, plan.count, _STEP):
            emb = embedded(plan, np.arange(start, min(start + _STEP, plan.count)), each)
            write(emb.data.cast("B"))
        return {"factory": FLAT, "recall_at_1": None}
    import faiss

    index = trained(plan)
    queries = np.zeros((0, plan.dim), np.float32) if plan.queries is None else plan.queries()
    has_lists = isinstance(index, faiss.IndexIVF)
    filling = _Lists(index, queries, folder) if has_lists else _Whole(index, queries)
    exact = nothing_found(len(queries), 1, np.float64)
    with file_errors(folder, reading=False), filling, _as_refusal(plan):
        for rows in _blocks(plan):
            start = int(rows[0])
            emb = embedded(plan, rows, each)
            best = exact_search(queries, emb, dtype=np.float64)
            exact = merged([exact, _moved(best, start)], 1)
            filling.add(start, emb)
        found = filling.found()
        filling.write(write, plan.count)
    nprobe = getattr(lists_of(index), "nprobe", None)
    return {"factory": plan.factory, "nprobe": nprobe} | _measured(plan, queries, exact, found)


def make_index(emb: Array, factory: str = FLAT) -> Any:
    """Return a faiss index over (N, E) unit vectors that are in memory, for inner products.

    Raises:
        DataError: as `write_index`.
    """
    index = trained(IndexPlan(lambda rows: emb[rows], len(emb), emb.shape[1], factory))
    index.add(np.ascontiguousarray(emb))
    return index


def serialize(index: Any) -> memoryview:
    """Return the bytes of a .faiss file."""
    import faiss

    whole: Array = faiss.serialize_index(index)
    return whole.data


def _new_index(plan: IndexPlan) -> Any:
    """Return the empty index of a factory string.

    Raises:
        DataError: faiss does not know it.
    """
    import faiss

    if _NO_LISTS.search(plan.factory):
        raise _refused(plan, RuntimeError("there must be a list"))
    with _as_refusal(plan):
        return faiss.index_factory(plan.dim, plan.factory, faiss.METRIC_INNER_PRODUCT)


def trained(plan: IndexPlan, centroids: Array | None = None) -> Any:
    """Return the empty index of a plan, trained on a sample of its images.

    The `centroids` of its lists are given where they are known: (lists, E).
    """
    index = _new_index(plan)
    if centroids is not None:
        index.quantizer.add(centroids)
    inner = lists_of(index)
    if inner is not None:
        inner.nprobe = min(inner.nlist, plan.nprobe or NPROBE)
        # No warning of faiss about few images per list: the measured recall shows whether there are
        # too many lists.
        inner.cp.min_points_per_centroid = 1
    if not index.is_trained:
        most = BLOCK // plan.dim if inner is None else PER_LIST * inner.nlist
        size = min(plan.count, most)
        rows = np.random.default_rng(0).choice(plan.count, size, replace=False)
        # Sorted, because the features may be a memory map, which is read faster in order.
        emb = embedded(plan, np.sort(rows))
        with _as_refusal(plan):
            index.train(emb)
    return index


@contextmanager
def _as_refusal(plan: IndexPlan) -> Iterator[None]:
    """Name the factory in the errors that faiss raises.

    Raises:
        DataError: faiss cannot build, fill or search such an index.
    """
    try:
        yield
    except RuntimeError as error:
        # The network that embeds images runs in this context as well; its errors are not refusals.
        if not str(error).startswith("Error in "):
            raise
        raise _refused(plan, error) from None


def _refused(plan: IndexPlan, error: RuntimeError) -> DataError:
    size = f"{plan.count} images of {plan.dim} dimensions"
    why = f"faiss refuses --factory {plan.factory!r} for {size}: {reason(error)}"
    return DataError(f"{why}. {FLAT} always works, and is exact")


def _blocks(plan: IndexPlan) -> Iterator[Array]:
    """Yield the rows of each block of images."""
    size = max(1, BLOCK // plan.dim // _STEP) * _STEP
    for start in range(0, plan.count, size):
        yield np.arange(start, min(start + size, plan.count))


def embedded(plan: IndexPlan, rows: Array, each: Callable[[Array], None] | None = None) -> Array:
    """Return the (n, E) vectors of (n,) rows, embedded and shown to `each` step by step."""
    emb = np.empty((len(rows), plan.dim), np.float32)
    for start in range(0, len(rows), _STEP):
        step = emb[start : start + _STEP]
        step[:] = plan.embed(rows[start : start + _STEP])
        if each is not None:
            each(step)
    return emb


def _header(empty: Any, count: int) -> bytes:
    """Return an index file up to its vectors or lists; `count` is the number of its images.

    Raises:
        DataError: this faiss writes another form (70).
    """
    # The header is cut from an empty index, because its fields depend on the factory; only the
    # number of images, bytes 8 to 16, is put in.
    whole = bytes(serialize(empty))
    flat = whole.startswith(b"IxFI")
    end = struct.pack("<Q", 0) if flat else b"sprs" + struct.pack("<Q", 0)
    if not whole.endswith(end) or not (flat or whole[-_LISTS:].startswith(b"ilar")):
        import faiss

        why = f"faiss {faiss.__version__} writes another form of index files; install faiss 1.15"
        raise DataError(why, code=Exit.CANNOT_CONTINUE)
    cut = 8 if flat else _LISTS
    return whole[:8] + struct.pack("<Q", count) + whole[16:-cut]


def _moved(found: SearchResult, start: int) -> SearchResult:
    """Return the images found in a block, with their rows counted in the bank."""
    return SearchResult(np.where(found.rows < 0, -1, found.rows + start), found.scores)


def _measured(
    plan: IndexPlan, queries: Array, exact: SearchResult, found: SearchResult
) -> dict[str, Any]:
    """Return recall@1 and the mean relevance lost, both against the exact search."""
    if not len(queries):
        return {"recall_at_1": None, "relevance_lost": None}
    # Vectors are compared, not rows: a picture may be in the bank twice.
    expected = embedded(plan, exact.rows[:, 0]).astype(np.float64)
    got = embedded(plan, np.maximum(0, found.rows[:, 0])).astype(np.float64)
    got[found.rows[:, 0] < 0] = 0
    lost = (queries.astype(np.float64) * (expected - got)).sum(1)
    same = (expected == got).all(1)
    return {"recall_at_1": float(same.mean()), "relevance_lost": float(lost.mean())}


class _Whole:
    """An index that faiss holds in memory as a whole, for example a graph."""

    def __init__(self, index: Any, queries: Array) -> None:
        self._index = index
        self._queries = queries

    def __enter__(self) -> _Whole:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def add(self, start: int, emb: Array) -> None:
        """Add a block."""
        self._index.add(emb)

    def found(self) -> SearchResult:
        """Return the images that queries find in all blocks: each of them changes a graph."""
        return search_faiss(self._index, self._queries, 1, np.float64)

    def write(self, write: Callable[[bytes | memoryview], None], count: int) -> None:
        """Write the file."""
        data = serialize(self._index)
        for start in range(0, len(data), _COPIED):
            write(data[start : start + _COPIED])


class _Sorted(NamedTuple):
    """Where the temporary file has the images of a block, sorted by list."""

    place: int  # byte at which the codes start; the rows follow
    edges: Array  # (lists + 1,) int64: images before each list


class _Lists:
    """Lists that are filled block by block with memory for one block.

    Args:
        index: trained and empty.
        queries: they are searched for in each block.
        folder: where the temporary file is created.
    """

    def __init__(self, index: Any, queries: Array, folder: str | Path) -> None:
        self._index = index
        self._queries = queries
        self._found = nothing_found(len(queries), 1, np.float64)
        self._lists = int(index.nlist)
        self._width = int(index.code_size)
        self._folder = folder
        self._sorted = list[_Sorted]()
        self._file: IO[bytes]

    def __enter__(self) -> _Lists:
        # The file never has a name, so that nothing is left of it after a kill.
        self._file = tempfile.TemporaryFile(dir=self._folder)
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def add(self, start: int, emb: Array) -> None:
        """Add a block; images are known by their rows of the bank."""
        import faiss

        index = self._index
        rows = np.arange(start, start + len(emb))
        _, nearest = index.quantizer.search(emb, 1)
        nearest = np.ascontiguousarray(nearest[:, 0])
        codes = np.empty((len(emb), self._width), np.uint8)
        pointers = [faiss.swig_ptr(array) for array in (emb, nearest, codes)]
        index.encode_vectors(len(emb), *pointers)
        # Stable, because faiss keeps the images of a list in the order in which they were added.
        order = np.argsort(nearest, kind="stable")
        edges = np.searchsorted(nearest[order], np.arange(self._lists + 1))
        self._sorted.append(_Sorted(self._file.tell(), edges))
        self._file.write(codes[order].data)
        self._file.write(rows[order].data)
        if len(self._queries):
            # A list is searched image by image, so that the best of all blocks is the best of the
            # whole index, and one block in memory at a time is enough to measure it.
            index.reset()
            index.add_core(len(emb), pointers[0], faiss.swig_ptr(rows), pointers[1])
            best = search_faiss(index, self._queries, 1, np.float64)
            self._found = merged([self._found, best], 1)
            index.reset()

    def found(self) -> SearchResult:
        """Return the images that queries find: the best of all blocks."""
        return self._found

    def write(self, write: Callable[[bytes | memoryview], None], count: int) -> None:
        """Write the file: header, sizes of the lists, and for each list its codes and its rows."""
        sizes = np.sum([np.diff(part.edges) for part in self._sorted], axis=0)
        filled = np.flatnonzero(sizes)
        write(_header(self._index, count) + b"ilar")
        write(struct.pack("<QQ", self._lists, self._width))
        # faiss writes whichever of these two forms is the shorter; the bytes must be its own.
        if len(filled) > self._lists // 2:
            write(b"full" + struct.pack("<Q", self._lists) + sizes.astype("<u8").tobytes())
        else:
            pairs = np.stack([filled, sizes[filled]], axis=1).astype("<u8")
            write(b"sprs" + struct.pack("<Q", pairs.size) + pairs.tobytes())
        for first, end in self._runs(sizes):
            write(self._copied(first, end))

    def _runs(self, sizes: Array) -> Iterator[tuple[int, int]]:
        """Yield runs of lists, first and end, of about `_COPIED` bytes."""
        ends = np.cumsum(sizes) * (self._width + 8)
        first = 0
        while first < self._lists:
            before = int(ends[first - 1]) if first else 0
            end = max(first + 1, int(np.searchsorted(ends, before + _COPIED, "right")))
            yield first, end
            first = end

    def _copied(self, first: int, end: int) -> bytes:
        """Return the codes and the rows of each of some neighbouring lists."""
        codes = list[Array]()
        rows = list[Array]()
        lists = list[Array]()
        for place, edges in self._sorted:
            low = int(edges[first])
            size = int(edges[end]) - low
            start = place + low * self._width
            codes.append(self._read(start, size * self._width).reshape(size, self._width))
            start = place + int(edges[-1]) * self._width + low * 8
            rows.append(self._read(start, size * 8).reshape(size, 8))
            lists.append(np.repeat(np.arange(end - first), np.diff(edges[first : end + 1])))
        number = np.concatenate(lists)
        # Stable: the blocks are in the order of their rows, and so must each list be.
        order = np.argsort(number, kind="stable")
        code = np.concatenate(codes)[order]
        row = np.concatenate(rows)[order]
        cuts = np.searchsorted(number[order], np.arange(end - first + 1)).tolist()
        return b"".join(code[a:b].tobytes() + row[a:b].tobytes() for a, b in pairwise(cuts))

    def _read(self, place: int, size: int) -> Array:
        self._file.seek(place)
        return np.frombuffer(self._file.read(size), np.uint8)
