"""Embeddings made elsewhere as an image bank: .npy files, clip-retrieval's folder, faiss files.

Row i of the bank is row i of the embeddings, and its image is the i-th id. Embeddings are mapped
into memory and scaled to unit length step by step, so that their number does not matter.

Source: the folders of clip-retrieval's `inference` (`img_emb/img_emb_N.npy` next to
`metadata/metadata_N.parquet`; in LAION-400M all in one folder) and `index` (`metadata/`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array, stacked
from vgtools.io.artifact import LARGEST, Features
from vgtools.io.errors import DataError, Exit, amount, file_errors
from vgtools.io.files import open_npy, sha256_file
from vgtools.io.names import id_fault, is_jsonl, is_table, is_url
from vgtools.io.records import record_of
from vgtools.io.remote import fetched, is_folder, names_in
from vgtools.io.streams import holds_rows, jsonl_rows, read_jsonl, read_names, require
from vgtools.io.written import check_hash, manifest_beside
from vgtools.retrieval.build import NPROBE
from vgtools.retrieval.index import flat_vectors, lists_of, read_faiss, reason

_LEAST = 1e-12  # a shorter vector has no direction
_UNIT = 0.01  # float16 changes a length of 1 by less than this
_COPIED = 1 << 25  # bytes of an index that are copied at a time


class Foreign(NamedTuple):
    """The files of a bank that was embedded elsewhere."""

    embeddings: list[str]  # .npy, or one of faiss
    ids: list[str]  # as many, or one


def foreign_files(embeddings: str, ids: str | None) -> Foreign:
    """Return the files of embeddings, of clip-retrieval's folders in the order of their numbers.

    Args:
        embeddings: a file, or a folder with `img_emb_N.npy` or `img_emb/img_emb_N.npy`; either may
            be at a URL.
        ids: a file, or a folder with `metadata_N.parquet`; by default the folder of the embeddings.

    Raises:
        DataError: no such file in a folder (66), or a number without its other file (65); or a URL
            cannot be reached (66, 69).
    """
    if ids is None and not is_folder(embeddings):
        why = "--emb needs --ids, the names of its images, or FEATS; a folder at a URL ends in /"
        raise DataError(why, embeddings, code=Exit.USAGE)
    ids = ids or embeddings
    numbers, files = _numbered(embeddings, "img_emb", ".npy")
    rows, tables = _numbered(ids, "metadata", ".parquet")
    if numbers and rows and numbers != rows:
        odd = min(set(numbers) ^ set(rows))
        missing = f"metadata_{odd}.parquet" if odd in numbers else f"img_emb_{odd}.npy"
        why = f"lacks {missing}: every img_emb_N.npy needs its metadata_N.parquet"
        raise DataError(why, ids if odd in numbers else embeddings, code=Exit.NO_INPUT)
    return Foreign(files, tables)


def _numbered(place: str, stem: str, suffix: str) -> tuple[list[int], list[str]]:
    """Return the numbers and the files of a folder of clip-retrieval; a file as it is."""
    if not is_folder(place):
        return [], [place]
    for folder in (os.path.join(place, stem), place):
        names = names_in(folder)
        form = re.compile(rf"{stem}_([0-9]+){re.escape(suffix)}")
        found = sorted((int(match[1]), match[0]) for match in map(form.fullmatch, names) if match)
        if found:
            numbers, files = zip(*found, strict=True)
            if len(set(numbers)) < len(numbers):
                why = f"holds two files of one number among {', '.join(files)[:200]}"
                raise DataError(f"{why}; rename or remove one", folder)
            return [*numbers], [os.path.join(folder, name) for name in files]
    why = f"holds no {stem}_0{suffix}, as the folders of clip-retrieval do"
    raise DataError(why, place, code=Exit.NO_INPUT)


@dataclass(frozen=True)
class Embeddings(Features):
    """A bank that was embedded elsewhere: row i of the array belongs to ids[i].

    Attributes:
        matcher: the one that vg embedded them with, as their manifest has it, if vg made them.
        index: the faiss index that they come from, if any.
        is_whole: it holds no exact vectors, and is taken as it is.
    """

    files: Sequence[tuple[str, int]] = ()  # each file, and the row of the bank after its last
    matcher: Mapping[str, Any] | None = None
    index: Any = None
    is_whole: bool = False
    _lengths: list[float] = field(default_factory=lambda: [np.inf, 0.0])

    def fitting(self, dim: int, matcher: str) -> Callable[[Array], Array]:
        """Return the function that gives rows of the bank as unit vectors, (n,) -> (n, E).

        Raises:
            DataError: they have another width than the space of their matcher (65); and later a
                row without a direction.
        """
        if self.array.shape[1] != dim:
            why = f"has embeddings of width {self.array.shape[1]}, --matcher {matcher} has {dim}"
            raise DataError(f"{why}; name the model that made them", self.files[0][0])
        return self._unit

    def _unit(self, rows: Array) -> Array:
        from torch import from_numpy
        from torch.nn import functional as F

        with np.errstate(over="ignore"):  # an infinite number is refused
            block = np.array(self.array[rows], np.float32)
        lengths = np.linalg.norm(block.astype(np.float64), axis=1)
        bad = ~((lengths >= _LEAST) & (lengths <= LARGEST))
        if bad.any():
            row = int(rows[bad.argmax()])
            file, first = self._place(row)
            why = f"row {row - first} ({self.ids[row]}) is NaN, infinite, all zero or beyond 1e9"
            raise DataError(f"{why}; embed the image again, or leave out row and id", file)
        self._saw(lengths)
        # vg scales its own embeddings by the same function, so that the index is the same.
        unit: Array = F.normalize(from_numpy(block), dim=1).numpy()
        return unit

    def _place(self, row: int) -> tuple[str, int]:
        first = 0
        for file, end in self.files:
            if row < end:
                return file, first
            first = end
        raise IndexError(row)

    def _saw(self, lengths: Array) -> None:
        least, most = self._lengths
        self._lengths[:] = min(least, float(lengths.min())), max(most, float(lengths.max()))

    @property
    def facts(self) -> dict[str, Any]:
        """Their type, and the least and the greatest length of those that were read."""
        kind = "faiss" if self.index is not None else str(self.array.dtype)
        return {"dtype": kind, "lengths": [round(length, 4) for length in self._lengths]}

    def __str__(self) -> str:
        kind, (least, most) = self.facts.values()
        if max(abs(least - 1), abs(most - 1)) < _UNIT:
            return f"embeddings of {kind}, of unit length"
        how = "taken as they are" if self.is_whole else "scaled to 1"
        return f"embeddings of {kind}, of lengths {least:g} to {most:g}, {how}"

    def copy(self, write: Callable[[bytes], None], nprobe: int | None) -> dict[str, Any]:
        """Write the index as it is, and return the facts about its search for the manifest.

        Args:
            write: appends to the file.
            nprobe: lists to look into.

        Raises:
            DataError: its vectors are not of unit length, by some hundreds of them, or cannot be
                read (65).
        """
        path = self.files[0][0]
        queries = np.random.default_rng(0).normal(size=(64, self.index.d)).astype(np.float32)
        try:
            _, _, vectors = self.index.search_and_reconstruct(queries, 16)
        except RuntimeError as error:
            raise DataError(f"its vectors cannot be read: {reason(error)}", path) from None
        lengths = np.linalg.norm(vectors.reshape(-1, self.index.d).astype(np.float64), axis=1)
        lengths = lengths[np.isfinite(lengths)]
        self._saw(lengths)
        if abs(np.median(lengths) - 1) > 10 * _UNIT:  # quantised vectors are not exact
            why = (
                f"holds vectors of length {np.median(lengths):.2g}, expected 1: its search prefers"
            )
            raise DataError(f"{why} long ones; give the embeddings themselves, as .npy", path)
        with fetched(path) as place, file_errors(place, reading=True), open(place, "rb") as file:
            while data := file.read(_COPIED):
                write(data)
        lists = getattr(lists_of(self.index), "nlist", None)
        return {
            "factory": type(self.index).__name__,
            "nprobe": min(lists, nprobe or NPROBE) if lists else None,
            "recall_at_1": None,
            "relevance_lost": None,
        }


def open_embeddings(foreign: Foreign, manifest: dict[str, Any]) -> Embeddings:
    """Open embeddings that were made elsewhere, with their ids.

    Args:
        foreign: from `foreign_files`.
        manifest: the facts about them.

    Raises:
        DataError: a file is missing (66), or damaged, or not of numbers; another number of ids than
            of rows, or a duplicate id: file and row are named (65).
    """
    files = foreign.embeddings
    with fetched(files[0]) as place, file_errors(place, reading=True), open(place, "rb") as stream:
        magic = stream.read(6)
    if magic.lstrip().startswith(b"<"):
        why = "is a page of a web server, expected .npy or a faiss index; a folder ends in /"
        raise DataError(why, files[0])
    opened: dict[str, Any] = {}
    if magic == b"\x93NUMPY" or len(files) > 1 or files[0].endswith(".npy"):
        arrays = [*map(_open_array, files)]
        _check_kind(arrays, files)
        array = stacked([part for part in arrays if len(part)] or arrays[:1])
        sizes = [len(part) for part in arrays]
    else:
        with fetched(files[0]) as place:
            index, exact = _open_index(place)
        shape = (index.ntotal, index.d)
        array = flat_vectors(index) if exact else np.broadcast_to(np.float32(0), shape)
        sizes = [index.ntotal]
        opened = {"index": index, "is_whole": not exact}
    ends = np.cumsum(sizes).tolist()
    if not ends[-1]:
        raise DataError("holds no embedding", files[0])
    ids = _ids(foreign, sizes)
    made = _check_written(files[0], ids) if len(files) == 1 else {}
    matcher = made.get("matcher")
    return Embeddings(array, ids, manifest, [*zip(files, ends, strict=True)], matcher, **opened)


def _check_written(file: str, ids: Sequence[str]) -> dict[str, Any]:
    """Compare embeddings that vg wrote, and the ids given for them, with their manifest.

    Returns:
        The manifest, empty if vg did not write them.

    Raises:
        DataError: the hash of either is another, or they are of texts (65).
    """
    remote = is_url(file)  # not fetched for its hash
    sha256 = None if remote else sha256_file(file)
    made = manifest_beside(file, sha256)
    if not made and sha256 and (record := record_of(file)):  # --emb wrote them next to it
        made = record.body
        stated = made["files"].get(Path(file).name, {}).get("sha256", sha256)
        again = "create it again, or give your own embeddings another name"
        check_hash(file, sha256, stated, str(record.file), again)
        if made.get("kind") != "index":
            why = f"holds embeddings of texts by {record.file}, expected those"
            raise DataError(f"{why} that vg build-index --emb writes of images", file)
    files: Mapping[str, Any] = made.get("files", {})
    listed = next((name for name in files if name.endswith(".ids")), None)
    now = hashlib.sha256("".join(f"{name}\n" for name in ids).encode()).hexdigest()
    if listed is not None and files[listed]["sha256"] != now:
        why = f"its ids have sha256 {files[listed]['sha256']} by its manifest, the ids given have"
        raise DataError(f"{why} {now}; name {os.path.join(os.path.dirname(file), listed)}", file)
    return made


def _open_array(file: str) -> Array:
    with fetched(file) as place:
        return open_npy(place, 2)


def _check_kind(arrays: Sequence[Array], files: Sequence[str]) -> None:
    for array, file in zip(arrays, files, strict=True):
        if array.dtype.kind != "f":
            raise DataError(f"expected float16 or float32, got {array.dtype}", file)
        if not array.shape[1]:
            raise DataError(f"expected numbers in its rows, got none: shape {array.shape}", file)
        if array.shape[1] != arrays[0].shape[1]:
            why = f"has embeddings of width {array.shape[1]}, {files[0]} has {arrays[0].shape[1]}"
            raise DataError(why, file)


def _open_index(path: str) -> tuple[Any, bool]:
    """Return the index of a faiss file, and whether it holds the vectors themselves.

    Raises:
        DataError: it is damaged, or has another metric or numbers of its own (65).
    """
    import faiss

    index = read_faiss(path)
    if isinstance(index, faiss.IndexFlat):
        if type(index) not in (faiss.IndexFlat, faiss.IndexFlatIP, faiss.IndexFlatL2):
            why = f"keeps its vectors in an order of its own ({type(index).__name__})"
            raise DataError(f"{why}; give the embeddings themselves, as .npy", path)
        return index, True
    if index.metric_type != faiss.METRIC_INNER_PRODUCT or not index.is_trained:
        why = "is not an index of inner products; give the embeddings themselves, as .npy"
        raise DataError(why, path)
    if hasattr(index, "id_map") or not _in_order(index):
        why = "has numbers of its own for its vectors; expected 0, 1, 2 … in the order of the ids"
        raise DataError(why, path)
    return index, False


def _in_order(index: Any) -> bool:
    """Return whether the lists of an index, if it has some, hold each row once."""
    import faiss

    ivf = lists_of(index)
    if ivf is None:
        return True
    lists: Any = ivf.invlists
    sizes = [lists.list_size(number) for number in range(ivf.nlist)]
    if sum(sizes) != index.ntotal:  # a damaged header may state any number
        return False
    seen = np.zeros(index.ntotal, bool)
    for number in np.flatnonzero(sizes).tolist():
        rows = faiss.rev_swig_ptr(lists.get_ids(number), sizes[number])
        if not 0 <= rows.min() <= rows.max() < len(seen):
            return False
        seen[rows] = True
    return bool(seen.all())


def _ids(foreign: Foreign, sizes: Sequence[int]) -> list[str]:
    """Return the ids of the rows of all files.

    Raises:
        DataError: as `open_embeddings`.
    """
    seen = dict[str, tuple[int, int]]()  # id -> file, and its row there
    counts = list[int]()
    for number, file in enumerate(foreign.ids):
        with fetched(file) as place:
            for row, image in _named(place):
                fault = id_fault(image)
                if fault:
                    raise DataError(f"{image!r:.80}: {fault}", file, row)
                other, first = seen.setdefault(image, (number, row))
                if (other, first) != (number, row):
                    why = f"duplicate id {image!r:.80} (first in row {first} of"
                    raise DataError(f"{why} {foreign.ids[other]})", file, row)
        counts.append(len(seen) - sum(counts))
    files = foreign.embeddings
    names = foreign.ids
    if len(files) != len(names):  # one list for all files, or several for one
        sizes = [sum(sizes)]
        counts = [sum(counts)]
        files = files if len(files) == 1 else [f"all {len(files):,} files"]
        names = names[-1:]
    for file, size, ids, count in zip(files, sizes, names, counts, strict=True):
        if size != count:
            why = f"{amount(count, 'id')} for {amount(size, 'row')} of {file}; row"
            raise DataError(f"{why} {min(size, count) + 1} is the first without the other", ids)
    return list(seen)


def _named(path: str) -> Iterator[tuple[int, str]]:
    """Yield the ids of a file with their rows: lines, or "image" or "image_path" of rows."""
    if is_table(path) or is_jsonl(path):
        rows = read_jsonl(path)
    else:
        lines = read_names(path)
        first = next(lines, None)
        names = chain([] if first is None else [first], lines)
        if not holds_rows(path, first or "", ()):
            yield from enumerate(names, 1)
            return
        rows = jsonl_rows(map(str.encode, names), path)
    for number, row in rows:
        key = "image_path" if "image_path" in row and "image" not in row else "image"
        require(row, {key: str}, path, number)
        yield number, row[key]
