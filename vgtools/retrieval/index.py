"""The index file with its ids: opened, checked, and searched by whatever it is."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.artifact import read_ids, read_manifest
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.hub import placed
from vgtools.io.names import is_public
from vgtools.retrieval.exact import (
    SearchResult,
    exact_search,
    largest_norm,
    merged,
    nothing_found,
    rank_pairs,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vgtools.retrieval.device import DeviceBank

METRIC = "inner_product"
FLAT = "Flat"
# Images that lists return beyond k: float32 scores may have put one of the k best among them.
_SPARE = 8
# Queries of lists at a time: the vectors of all the images that they find are in memory.
_QUERIES = 1024
# The start of an exact index of faiss: its type, E, N, two numbers of no meaning, whether it is
# trained, its metric, and how many numbers follow.
_HEAD = struct.Struct("<4siqqq?iQ")


class IndexIds(Sequence[str]):
    """The ids of an index, read when one is asked for: they take 135 MB and 1 s per million.

    Args:
        file: `X.ids`.
        count: images of the index.
    """

    def __init__(self, file: Path, count: int) -> None:
        self._file = file
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, row: int) -> str: ...

    @overload
    def __getitem__(self, row: slice) -> list[str]: ...

    def __getitem__(self, row: int | slice) -> str | list[str]:
        return self._all[row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    @cached_property
    def _all(self) -> list[str]:
        return read_ids(self._file, self._count)


@dataclass
class Index:
    """An open index: row i of the bank is the image `ids[i]`."""

    path: str
    ids: Sequence[str]
    manifest: dict[str, Any]
    faiss: Any
    bank: Array | None  # (N, E) float32, memory-mapped; None where the index is not exact
    _on_device: DeviceBank | None = None
    _norm: float | None = None  # length of the bank's longest vector, known after the first search
    _on_gpus: Any = None  # a copy of the lists on GPUs

    @property
    def count(self) -> int:
        """Images of the bank; does not read their ids."""
        return len(self.ids)

    @property
    def approximate(self) -> dict[str, Any]:
        """The facts that a manifest records of a search that is not exact; empty if it is exact."""
        if self.bank is not None:
            return {}
        named = {"factory": None, "nprobe": None, "recall_at_1": None, "relevance_lost": None}
        facts = {name: self.manifest.get(name) for name in named}
        probes = getattr(lists_of(self.faiss), "nprobe", None)
        if probes != facts["nprobe"]:
            # The user chose another --nprobe, and the recall was measured with the manifest's.
            facts |= {"nprobe": probes, "recall_at_1": None, "relevance_lost": None}
        return facts

    def to(self, device: torch.device) -> Index:
        """Copy the bank to a GPU, lists to all GPUs unless one is named; else nothing changes."""
        if device.type != "cuda":
            return self
        if self.bank is not None:
            from vgtools.retrieval.device import DeviceBank

            self._on_device = DeviceBank(self.bank, device)
        else:
            self._on_gpus = _on_gpus(self.faiss, device.index)
        return self

    def vectors(self, rows: Array) -> Array:
        """Return the exact vectors of (n,) rows, (n, E).

        Raises:
            DataError: the index holds none (usage).
        """
        if self.bank is None:
            why = "holds no exact vectors to rank with; build it with --factory Flat"
            raise DataError(why, self.path, code=Exit.USAGE)
        return cast(Array, self.bank[rows])

    def search(self, queries: Tensor | Array, k: int = 1, dtype: Any = np.float32) -> SearchResult:
        """Return the k most relevant images of (Q, E) unit vectors, on whatever device they are.

        An exact index gives exactly the k largest inner products, ties to the lower row. Lists
        (IVF) give the best of those that are probed, compared in float64 by the vectors that they
        hold. Any other faiss index gives the images that faiss finds. Where fewer than k are found,
        the rest is -1 with score 0. `dtype` is the type of the scores.
        """
        if not isinstance(queries, np.ndarray):
            if self._on_device is not None:
                return self._on_device.search(queries, k, dtype=dtype)
            queries = cast(Array, queries.detach().float().cpu().numpy())
        if self.bank is not None:
            if self._norm is None and len(self.bank):
                self._norm = largest_norm(self.bank)
            return exact_search(queries, self.bank, k, norm=self._norm, dtype=dtype)
        index = self.faiss if self._on_gpus is None else self._on_gpus
        return search_faiss(index, np.ascontiguousarray(queries, np.float32), k, dtype)


@dataclass
class Parts(Index):
    """A bank of several indexes: the rows of each follow the rows of the index before it.

    The search is exact if all of them are exact: their results are merged on float64 scores.
    """

    parts: list[Index] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Images of the bank."""
        return sum(part.count for part in self.parts)

    @property
    def approximate(self) -> dict[str, Any]:
        """The facts of each part that is not exact, by its number; empty if all are exact."""
        parts = enumerate(self.parts)
        return {str(number): part.approximate for number, part in parts if part.approximate}

    def to(self, device: torch.device) -> Index:
        """Copy the parts to a GPU."""
        for part in self.parts:
            part.to(device)
        return self

    def vectors(self, rows: Array) -> Array:
        """Return the exact vectors of (n,) rows, (n, E)."""
        found = np.empty((len(rows), self.manifest["dim"]), np.float32)
        first = 0
        for part in self.parts:
            inside = (rows >= first) & (rows < first + part.count)
            found[inside] = part.vectors(rows[inside] - first)
            first += part.count
        return found

    def search(self, queries: Tensor | Array, k: int = 1, dtype: Any = np.float32) -> SearchResult:
        """Return the k most relevant images; see `Index.search`."""
        best = nothing_found(len(queries), k, np.float64)
        first = 0
        for part in self.parts:
            found = part.search(queries, k, np.float64)
            found.rows[found.rows >= 0] += first
            best = merged([best, found], k)
            first += part.count
        return SearchResult(best.rows, best.scores.astype(dtype))


def bare_index(dim: int) -> Index:
    """Return an index without images, for work that only embeds texts."""
    return Index("", [], {"dim": dim}, None, np.zeros((0, dim), np.float32))


def search_faiss(index: Any, queries: Array, k: int, dtype: Any = np.float32) -> SearchResult:
    """Return the images that a faiss index finds; candidates of lists are compared in float64.

    The vectors compared are those that the lists hold: exact vectors for `Flat`, decoded ones for
    `SQ8`.

    Args:
        index: a faiss index of any kind.
        queries: (Q, E) float32, contiguous.
        k: images per query.
        dtype: type of the scores.
    """
    import faiss

    best = nothing_found(len(queries), k, dtype)
    for i in range(0, len(queries), _QUERIES):
        part = queries[i : i + _QUERIES]
        out = SearchResult(best.rows[i : i + _QUERIES], best.scores[i : i + _QUERIES])
        if not isinstance(index, faiss.IndexIVF):
            scores, rows = index.search(part, k)
            out.rows[:] = rows
            out.scores[:] = np.where(rows < 0, 0, scores)
            continue
        _, rows, vectors = index.search_and_reconstruct(part, k + _SPARE)
        query, place = np.nonzero(rows >= 0)
        found = vectors[query, place].astype(np.float64)
        score = np.einsum("ij,ij->i", part[query].astype(np.float64), found)
        rank_pairs(query, rows[query, place], score, out)
    return best


def _on_gpus(index: Any, number: int | None) -> Any:
    """Return a copy of lists on a GPU, or in shards on all of them; None where faiss cannot."""
    import faiss

    if not isinstance(index, faiss.IndexIVF) or not getattr(faiss, "get_num_gpus", int)():
        return None
    if number is not None or faiss.get_num_gpus() == 1:
        return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), number or 0, index)
    options = faiss.GpuMultipleClonerOptions()
    options.shard = True
    return faiss.index_cpu_to_all_gpus(index, options)


def check_embeddings(
    emb: Array, ids: Sequence[str], rows: Array | None = None, file: str | Path | None = None
) -> None:
    """Refuse embeddings that cannot be ranked.

    Args:
        emb: (n, E) embeddings.
        ids: names of all images.
        rows: (n,) rows of the bank; the first n by default.
        file: where they come from, for messages.

    Raises:
        DataError: a row is NaN, infinite or all zero; its number and id are named.
    """
    bad = ~np.isfinite(emb).all(1) | ~emb.any(1)
    if bad.any():
        place = int(bad.argmax())
        row = place if rows is None else int(rows[place])
        why = f"the embedding of row {row} ({ids[row]}) is NaN, infinite or all zero"
        raise DataError(f"{why}; extract the image again", file)


def open_indexes(paths: Sequence[str], nprobe: int | None = None) -> Index:
    """Open one index, or several as the parts of one bank.

    Raises:
        DataError: as `open_index`; or the parts are of different runs or widths, or an image is in
            two parts (65, both sides), which gives it two rows: a text that leaves out its own
            image would find it in the other part.
    """
    parts = [open_index(path, nprobe) for path in paths]
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        for fact in ("matcher", "dim"):
            ours = _of_run(part.manifest.get(fact))
            expected = _of_run(first.manifest.get(fact))
            if ours != expected:
                why = f"has {fact} {ours}, {first.path} has {expected}"
                raise DataError(f"{why}; the parts of a bank are of one run", part.path)
    # The manifests have the hashes of the ids: equal parts are refused before any ids are read,
    # which takes a second per million.
    seen = dict[Any, str]()
    for part in parts:
        named = part.manifest["files"].get(Path(part.path).with_suffix(".ids").name, {})
        other = seen.setdefault(named.get("sha256", part.path), part.path)
        if other is not part.path:
            why = f"has the images of {other}; the parts of a bank share none"
            raise DataError(why, part.path)
    ids = JoinedIds([(part.path, part.ids) for part in parts])
    ids.check()
    files = {
        f"{number}:{name}": facts
        for number, part in enumerate(parts)
        for name, facts in part.manifest["files"].items()
    }
    manifest = first.manifest | {"files": files, "count": len(ids)}
    return Parts(first.path, ids, manifest, None, None, parts=parts)


def _of_run(fact: Any) -> Any:
    if not isinstance(fact, Mapping):
        return fact
    made = fact.get("fingerprint")
    weight = fact.get("context_weight")
    return made if weight is None else f"{made} at --context {weight}"


class JoinedIds(IndexIds):
    """The ids of the parts of a bank, read when one is asked for."""

    def __init__(self, parts: Sequence[tuple[str, Sequence[str]]]) -> None:
        super().__init__(Path(), sum(len(ids) for _, ids in parts))
        self._parts = parts

    def check(self) -> None:
        """Refuse an image in two parts; 0.2 s and 16 MB per million where there is none.

        Raises:
            DataError: there is one; both parts are named.
        """
        hashes = np.concatenate([_line_hashes(Path(path)) for path, _ in self._parts])
        hashes.sort()
        if (hashes[1:] == hashes[:-1]).any():
            list(self)  # reads the names, which decide

    @cached_property
    def _all(self) -> list[str]:
        part_of = dict[str, int]()
        for number, (path, ids) in enumerate(self._parts):
            for name in ids:
                other = part_of.setdefault(name, number)
                if other != number:
                    why = f"duplicate image {name!r:.80}, also in {self._parts[other][0]}"
                    raise DataError(f"{why}; the parts of a bank share none", path)
        return list(part_of)


def _line_hashes(index: Path) -> Array:
    """Return a 64-bit hash of each line of the ids next to an index."""
    # Python's hash of bytes differs from process to process; these hashes meet only one another.
    with open(index.with_suffix(".ids"), "rb") as lines:
        return np.fromiter((hash(line.rstrip(b"\r\n")) for line in lines), np.int64)


def open_index(path: str | Path, nprobe: int | None = None, checked: bool = False) -> Index:
    """Open `X.faiss` with `X.ids` and `X.json`; its sha256 is checked before faiss reads it.

    Hashes and values cost 0.7 s per million images of 64 dimensions; the ids are read when one is
    first asked for.

    Args:
        path: the index file.
        nprobe: lists that are looked into; by default the number in its manifest.
        checked: another process has checked the files, so that only sizes are compared.

    Raises:
        DataError: one of the three is missing (66), damaged or from another run, or they disagree
            on the number of images, the dimension or the metric (65); or `nprobe` for an index
            without lists (usage).
    """
    manifest = read_manifest(path, "index", verify="sizes" if checked else True)
    bank = _exact_bank(path)
    index = None
    if bank is not None:
        facts = {"count": len(bank), "dim": bank.shape[1], "metric": METRIC}
    else:
        index = read_faiss(path)
        # faiss's own number of inner products is 0.
        metric = f"faiss metric {index.metric_type}" if index.metric_type else METRIC
        facts = {"count": int(index.ntotal), "dim": int(index.d), "metric": metric}
    for name, value in facts.items():
        if manifest.get(name) != value:
            why = f"has {name} {value}, its manifest states {manifest.get(name)}"
            raise DataError(f"{why}; build it again", path)
    if facts["metric"] != METRIC:
        raise DataError(f"expected {METRIC}, got {facts['metric']}; build it again", path)
    if not facts["count"] or not (index is None or index.is_trained):
        why = "holds no images" if not facts["count"] else "was never trained"
        raise DataError(f"{why}; build it again", path)
    ids = IndexIds(Path(path).with_suffix(".ids"), facts["count"])
    if bank is not None and not checked:
        check_embeddings(bank, ids, file=path)
    _probe(index, nprobe, manifest, path)
    return Index(str(path), ids, manifest, index, bank)


def _exact_bank(path: str | Path) -> Array | None:
    """Return the vectors of an exact index, (N, E) float32, memory-mapped; None for any other.

    faiss, which takes 0.25 s to import and 250 MB, is not needed to read a header and numbers.
    """
    with file_errors(path, reading=True), open(path, "rb") as file:
        head = file.read(_HEAD.size)
        size = os.fstat(file.fileno()).st_size
    if len(head) < _HEAD.size:
        return None
    kind, dim, count, _, _, is_trained, metric, numbers = _HEAD.unpack(head)
    inner = kind == b"IxFI" and is_trained and metric == 0
    whole = count > 0 < dim and numbers == count * dim and size >= _HEAD.size + 4 * numbers
    if not (inner and whole):
        return None
    return np.asarray(np.memmap(path, "<f4", "r", _HEAD.size, (count, dim)))


def read_faiss(path: str | Path) -> Any:
    """Return the faiss index of a file, memory-mapped, because it may be larger than the memory.

    Raises:
        DataError: faiss cannot read it (65).
    """
    import faiss

    try:
        # The first four bytes name the type of a faiss index; for lists they start with Iw.
        with file_errors(path, reading=True), open(path, "rb") as file:
            lists = file.read(2) == b"Iw"
        # faiss has one flag for vectors and another for lists.
        how = faiss.IO_FLAG_MMAP if lists else faiss.IO_FLAG_MMAP_IFC
        index = faiss.read_index(str(path), how)
        if index is None:  # a file of four bytes, `null`
            raise RuntimeError("it holds no index")
        ivf = lists_of(index)
        held: Any = ivf and ivf.invlists
        # Lists that are mapped from the file itself name none.
        if kept := getattr(held and faiss.downcast_InvertedLists(held), "filename", ""):
            raise RuntimeError(f"its lists are in another file, {kept}; write it with its lists")
        return index
    except RuntimeError as error:
        raise DataError(f"is not a readable faiss index: {reason(error)}", path) from None


def flat_vectors(index: Any) -> Array:
    """Return the vectors of an exact index, (N, E) float32, valid only as long as the index is."""
    import faiss

    # A view of the mapped file, not a copy.
    vectors = cast(Any, faiss.downcast_index(index)).get_xb()
    flat = faiss.rev_swig_ptr(vectors, index.ntotal * index.d)
    return cast(Array, flat.reshape(index.ntotal, index.d))


def lists_of(index: Any) -> Any:
    """Return the part of an index that has lists (IVF), which a transform may precede, or None."""
    if index is None or hasattr(index, "nprobe"):  # mapped vectors do without faiss
        return index
    import faiss

    return faiss.try_extract_index_ivf(index)


def _probe(index: Any, nprobe: int | None, manifest: dict[str, Any], path: str | Path) -> None:
    """Set how many lists a search looks into, from the manifest if it is not asked for."""
    if (lists := lists_of(index)) is not None:
        lists.nprobe = nprobe or manifest.get("nprobe") or lists.nprobe
    elif nprobe is not None:
        why = "has no lists: --nprobe belongs to an index of --factory IVF…"
        raise DataError(why, path, code=Exit.USAGE)


def reason(error: RuntimeError) -> str:
    """Return the reason in a faiss error, without the line of its source."""
    return re.sub(
        r"^Error in .*?\.(cpp|h):\d+: |^.*Error: ", "", str(error).strip().splitlines()[0]
    )


def pushed_name(run: str) -> str:
    """Return the folder next to an index in which `vg push` places the run that the index names."""
    name = os.path.basename(os.path.normpath(run))
    return "matcher" if name in ("", ".", "..") else name


def matcher_path(index: Index, run: str | None = None) -> str:
    """Return the path of the run that embedded an index: `run`, if it has moved.

    The manifest names it as seen from the index's own folder, or by its name on a hub. For clusters
    it is their encoder.

    Raises:
        DataError: the index names none (65), or it is not there (66; on a hub 69).
    """
    named = index.manifest.get("matcher")
    if not isinstance(named, Mapping):
        if keys := index.manifest.get("keys"):
            why = f"has keys of kind {keys}, which vg retrieve takes"
            raise DataError(f"{why}; expected the index of a matcher", index.path)
        why = "does not name the matcher that made it; rebuild it with vg build-index"
        raise DataError(why, index.path)
    if run:
        return run
    if "encoder" in named:  # a model that is not a folder
        return str(named["encoder"])
    place = str(named.get("run", ""))
    if is_public(place):
        return placed(place, models=True)
    folder = Path(index.path).parent
    path = os.path.normpath(folder / place)
    pushed = folder / pushed_name(place)
    # The path may lead to a folder all the same: the index may have been in the run.
    if not Path(path, "run.json").is_file() and (pushed / "run.json").is_file():
        return str(pushed)
    if not os.path.isdir(path):
        why = f"its matcher {path} does not exist; give its new place with --matcher"
        raise DataError(why, index.path, code=Exit.NO_INPUT)
    return path
