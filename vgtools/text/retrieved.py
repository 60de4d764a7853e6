"""Retrieved rows on disk: the images of texts as `vg retrieve` writes them, and their readers.

Rows, one per line: `{"text": …, "images": [row, …], "scores": [relevance, …]}`, best first; a row
is a line of the index's .ids file, counted from 0. `image`, `id`, `split` and `target` of the input
row are kept. Fewer images than asked for make shorter lists, a text without any has two empty ones.
Rows written by hand may lack scores.

The manifest next to the file names the index with its hashes, by which a reader knows whose rows
these are.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from vgtools.io.arrays import Array, padded
from vgtools.io.artifact import Features, read_ids, read_made
from vgtools.io.errors import DataError, Exit, file_errors
from vgtools.io.files import sha256_file
from vgtools.io.streams import Window, require
from vgtools.io.written import manifest_beside
from vgtools.text.vokens import are_ids_of, ids_hashes

_MAX = 2**31 - 1  # the largest row: readers hold 32-bit integers
_BLOCK = 1 << 14  # rows parsed at a time
_KEY = 16  # bytes of a text's hash
_MISSING = "retrieve for all texts: vg retrieve TEXTS --index X.faiss -o ROWS.jsonl"

# Keys of an input row that its output row keeps, in addition to the text, and their types.
_KEPT: dict[str, tuple[type, ...]] = {
    "id": (str, int),
    "split": (str, type(None)),
    "image": (str,),
    "target": (str,),
}
# The columns of rows in Parquet; an id, a string or a number, has the type of the first.
COLUMNS: dict[str, Any] = {
    "text": str,
    "images": [int],
    "scores": [float],
    "image": str,
    "split": str,
    "target": str,
}


def input_rows(window: Window) -> list[dict[str, Any]]:
    """Return the rows of a window to retrieve for, with the keys that their output rows keep.

    Raises:
        DataError: a row has no "text", or a kept key of another type; with file and line.
    """
    rows = list[dict[str, Any]]()
    for number, row in enumerate(window.rows(), window.first):
        kept = {"text": row["text"]}
        for key, types in _KEPT.items() if len(row) > 1 else ():
            # A row of a table has all keys, with null for one that it lacks.
            if row.get(key) is not None or (key in row and type(None) in types):
                if not isinstance(row[key], types) or isinstance(row[key], bool):
                    expected = "a string or an integer" if int in types else "a string"
                    why = f'"{key}" must be {expected}, got {row[key]!r:.60}'
                    raise DataError(why, window.path, number)
                kept[key] = row[key]
        rows.append(kept)
    return rows


def output_row(row: Mapping[str, Any], images: Array, scores: Array) -> dict[str, Any]:
    """Return the row of a text.

    Args:
        row: a row from `input_rows`.
        images: (K,) int32 rows of the bank, -1 after the last image.
        scores: (K,) float32, rounded to four decimals: the size of batches changes at most the
            last.
    """
    if images[-1] < 0:
        count = int(np.count_nonzero(images >= 0))
        images = images[:count]
        scores = scores[:count]
    return {"text": row["text"], "images": images, "scores": scores, **row}


def read_retrieved(
    path: str | Path,
    bank: int | None = None,
    rows: Iterable[tuple[int, dict[str, Any]]] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield `(line, row)` of retrieved rows, checked; `scores` may be missing.

    Args:
        path: rows as `vg retrieve` writes them; `.gz`, `.zst` or `-`.
        bank: images of the bank; None when that is not known.
        rows: numbered rows of that file, where it is open already.

    Raises:
        DataError: a torn row, lists of unequal length, an image that the bank does not have or that
            a row names twice; with file and line.
    """
    for line, row in read_made(path) if rows is None else rows:
        if "images" not in row:
            why = (
                'the key "images" is missing; make rows with it: vg retrieve TEXTS --index X.faiss'
            )
            raise DataError(why, path, line)
        require(row, {"text": str, "images": list}, path, line)
        _check(row, bank, path, line)
        yield line, row


def holds_images(
    rows: Iterator[tuple[int, dict[str, Any]]],
) -> tuple[bool, Iterator[tuple[int, dict[str, Any]]]]:
    """Return whether the first of numbered rows is a retrieved row, and all rows."""
    # The rows may come from a pipe: the first is put back by `chain`.
    first = list(islice(rows, 1))
    return any("images" in row for _, row in first), chain(first, rows)


def _check(row: Mapping[str, Any], bank: int | None, path: str | Path, line: int) -> None:
    def refuse(why: str) -> NoReturn:
        raise DataError(why, path, line)

    images = row["images"]
    for i, image in enumerate(images):
        if type(image) is not int or not 0 <= image <= _MAX:
            refuse(f'"images" entry {i} must be a row of the image bank, from 0, got {image!r:.60}')
        if bank is not None and image >= bank:
            refuse(
                f'"images" entry {i} is {image}, the image bank has {bank} rows; these rows belong '
                "to another bank: name the index or ids that they were made with"
            )
    if len(set(images)) < len(images):
        refuse('"images" names an image twice')
    if "scores" not in row:
        return
    require(row, {"scores": list}, path, line)
    scores = row["scores"]
    if len(scores) != len(images):
        refuse(f'"scores" has {len(scores)} entries, "images" has {len(images)}')
    for i, score in enumerate(scores):
        if type(score) not in (int, float) or not math.isfinite(score):
            refuse(f'"scores" entry {i} must be a number, got {score!r:.60}')


# ------------------------------------------------------------------------------------- for training


@dataclass(frozen=True)
class Retrieved:
    """The images of N texts, as rows of image features; in memory about 20 + 4 K bytes per text."""

    files: tuple[tuple[str, int], ...]  # each file and the number of its first text
    rows: Array  # (N, K) int32 rows of the features, best first, -1 where there are fewer
    _keys: Array  # (N,) sorted 16-byte hashes of the texts
    _order: Array  # (N,) int32 number of the text of each hash
    _clashes: Array  # (C,) int64 places in _keys of texts that have rows with other images

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, texts: Sequence[str], way_out: str = _MISSING) -> Array:
        """Return (B,) int64 numbers of texts; equal texts have the number of the first.

        Args:
            texts: B texts.
            way_out: how to make the rows of texts that have none, for the message.

        Raises:
            DataError: a text has no row (how many lack one, and the first of them, are named), or
                two with other images.
        """
        keys = _hashes(texts)
        place = np.searchsorted(self._keys, keys)
        # The place of a key above all others is after the end, where nothing can be compared.
        known = place < len(self._keys)
        known[known] = self._keys[place[known]] == keys[known]
        if not known.all():
            missing = np.flatnonzero(~known)
            why = f"has no images for {len(missing)} of {len(texts)} texts"
            why += f", the first {texts[missing[0]]!r:.80}"
            raise DataError(f"{why}; {way_out}", ", ".join(path for path, _ in self.files))
        clashing = np.intersect1d(place, self._clashes)
        if len(clashing):
            first, second = map(self._line_of, self._order[clashing[0] : clashing[0] + 2].tolist())
            where = f"on line {first[1]}" + (f" of {first[0]}" if first[0] != second[0] else "")
            why = f"duplicate text with other images (first {where}); retrieve without"
            raise DataError(f"{why} --not-own, or keep one of the rows", *second)
        return self._order[place].astype(np.int64)

    def _line_of(self, number: int) -> tuple[str, int]:
        """Return the file and the line of a text."""
        path, first = next(part for part in reversed(self.files) if part[1] <= number)
        return path, number - first + 1

    def gather(self, feats: Array, numbers: Array) -> tuple[Array, Array]:
        """Return the features of the images of some texts; see `gather`.

        Args:
            feats: (N, D).
            numbers: (B,) numbers of the texts, from `find` or counted from 0.
        """
        return gather(feats, self.rows[numbers])

    def digest(self) -> str:
        """Return the sha256 of the images that texts find, whatever the order of the rows."""
        found = hashlib.sha256(np.ascontiguousarray(self._keys).view(np.uint8).data)
        for start in range(0, len(self), _BLOCK):
            rows = self.rows[self._order[start : start + _BLOCK]]
            found.update(np.ascontiguousarray(rows).view(np.uint8).data)
        return found.hexdigest()


def gather(feats: Array, rows: Array) -> tuple[Array, Array]:
    """Return the features of images.

    Args:
        feats: (N, D) features, which may be a memory map: each row is read once.
        rows: (B, K) rows of them, -1 where there is no image.

    Returns:
        (B, K, D) float32, zeros where there is no image, and (B, K) bool.
    """
    mask = rows >= 0
    found = np.zeros((*rows.shape, feats.shape[1]), np.float32)
    # Sorted and distinct, so that a memory map is read in order and each row only once.
    distinct, place = np.unique(rows[mask], return_inverse=True)
    found[mask] = np.asarray(feats[distinct], np.float32)[place]
    return found, mask


def open_retrieved(
    paths: str | Sequence[str],
    feats: Features,
    feats_path: str,
    *,
    index: str | None = None,
) -> Retrieved:
    """Read retrieved rows for training with the features of their images.

    Images are matched by name: where the features are not the index's images in the same order,
    the index's ids are also read.

    Args:
        paths: rows of `vg retrieve`, in one file or several.
        feats: features of images, among them the images of the rows.
        feats_path: their file, for messages.
        index: the index of the rows, if it is not where their manifest names it, or they have no
            manifest.

    Raises:
        DataError: a bad row, or an image without features (65, with its line), in one file another
            number of images per text than in the others, an index with other ids than at retrieval
            (65, both hashes), or an index that is not known (usage).
    """
    paths = [paths] if isinstance(paths, str) else list(paths)
    made = [manifest_beside(path) for path in paths]
    most = _most(paths, made)
    files = list[tuple[str, int]]()
    parts = list[tuple[Array, Array]]()
    count = 0
    for path, manifest in zip(paths, made, strict=True):
        to_feats = _renumbering(path, manifest, feats, feats_path, index)
        bank = len(feats.ids) if to_feats is None else len(to_feats)
        images, keys = _read(path, bank, most)
        if to_feats is not None:
            images = _renumbered(path, images, to_feats, feats_path, manifest, index)
        files.append((path, count))
        parts.append((images, keys))
        count += len(keys)
    width = max(images.shape[1] for images, _ in parts)
    images = _joined([_widened(images, width) for images, _ in parts])
    keys = _joined([keys for _, keys in parts])
    # Stable, so that the first of equal texts comes first. Equal texts with the same images are
    # harmless duplicates; only those with other images are refused, and only if they are asked for.
    order = np.argsort(keys, kind="stable").astype(np.int32)
    keys = keys[order]
    same = np.flatnonzero(keys[1:] == keys[:-1])
    other = same[(images[order[same]] != images[order[same + 1]]).any(1)]
    clashes = np.unique(np.searchsorted(keys, keys[other]))
    return Retrieved(tuple(files), images, keys, order, clashes)


def _most(paths: Sequence[str], made: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the images per text that rows were retrieved with; None if no manifest has them."""
    given = [(path, m["k"]) for path, m in zip(paths, made, strict=True) if type(m.get("k")) is int]
    for path, most in given:
        first, expected = given[0]
        if most != expected:
            why = f"has {most} images per text, expected {expected}, as {first} has"
            raise DataError(f"{why}; retrieve again with -k {expected}", path)
    return given[0][1] if given else None


def _renumbered(
    path: str,
    images: Array,
    to_feats: Array,
    feats_path: str,
    manifest: Mapping[str, Any],
    index: str | None,
) -> Array:
    """Return rows of the features for rows of the index, (N, K) int32."""
    found = np.where(images < 0, np.int32(-1), to_feats[images])
    lacking = (images >= 0) & (found < 0)
    if lacking.any():
        line, place = np.argwhere(lacking)[0].tolist()
        name = _index_ids(path, manifest, index)[int(images[line, place])]
        why = f"names the image {name!r:.80}, of which {feats_path} has no features"
        raise DataError(f"{why}; extract the features of all its images", path, line + 1)
    return found


def _joined(parts: Sequence[Array]) -> Array:
    """Return parts as one array; a single part is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _read(path: str, bank: int, most: int | None) -> tuple[Array, Array]:
    """Return the images and the hashes of all rows, read in blocks as wide as their widest row."""
    width = most or 0
    images = list[Array]()
    keys = list[Array]()
    rows = read_retrieved(path, bank)
    while block := [row for _, row in islice(rows, _BLOCK)]:
        width = max(width, *(len(row["images"]) for row in block))
        # Widened here, where it is a block that is copied, not below, where it would be all rows.
        images.append(_widened(padded([row["images"] for row in block], -1, np.int32), width))
        keys.append(_hashes([row["text"] for row in block]))
    none = np.empty((0, width), np.int32)
    found = np.concatenate([none, *(_widened(part, width) for part in images)])
    return found, np.concatenate([_hashes([]), *keys])


def _widened(part: Array, width: int) -> Array:
    missing = width - part.shape[1]
    return np.pad(part, ((0, 0), (0, missing)), constant_values=-1) if missing else part


def _hashes(texts: Sequence[str]) -> Array:
    """Return (N,) 16-byte hashes; two of a billion texts share one with a chance below 1e-20."""
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_KEY).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), f"S{_KEY}")


def _renumbering(
    path: str, manifest: Mapping[str, Any], feats: Features, feats_path: str, index: str | None
) -> Array | None:
    """Return for each row of the index its row of the features, -1 for none; None if all agree."""
    made = ids_hashes(manifest)
    if not made and index is None:
        why = "has no manifest, so that its images could belong to any index; name it: --index"
        raise DataError(f"{why} X.faiss, or --index {feats_path}", path, code=Exit.USAGE)
    named = index is not None and os.path.realpath(index) == os.path.realpath(feats_path)
    # An index that is named is refused if it is another, also where none is needed.
    names = None if index is None or named else _index_ids(path, manifest, index)
    if are_ids_of(made, feats.ids) if made else named:
        return None
    if names is None:
        names = _index_ids(path, manifest, index)
    row_of = {name: row for row, name in enumerate(feats.ids)}
    return np.array([row_of.get(name, -1) for name in names], np.int32)


def _index_ids(path: str, manifest: Mapping[str, Any], index: str | None) -> list[str]:
    """Return the ids of the index that rows were made with, or of the parts of its bank."""
    named = manifest.get("index", "")
    places = named if isinstance(named, list) else [named]
    if index is not None:
        files = [index]
    else:
        files = [os.path.normpath(Path(path).parent / str(place)) for place in places]
    made = ids_hashes(manifest)[: len(files)]
    if index is not None:
        with file_errors(index, reading=True):
            os.stat(Path(index).with_suffix(".ids"))
    return [
        name
        for file, sha256 in zip_longest(files, made)
        for name in _read_index_ids(path, Path(file).with_suffix(".ids"), sha256)
    ]


def _read_index_ids(path: str, file: Path, made: str | None) -> list[str]:
    """Return the ids next to an index, which had that sha256 when rows were made with it."""
    if not file.is_file():
        why = f"was retrieved from an index whose ids {file} do not exist; name its new place"
        raise DataError(why, path)
    now = sha256_file(file)
    if made not in (None, now):
        why = f"was retrieved from an index with ids of sha256 {made}; {file} has sha256 {now}"
        raise DataError(f"{why}; retrieve again", path)
    return read_ids(file)


# ------------------------------------------------------------------------------------- in a stream


class StreamedImages:
    """The images of rows that are read once, in order, as rows of image features.

    Args:
        path: file of the rows.
        feats: features of images, among them the images of the rows.
        feats_path: their file, for messages.
        index: the index of the rows, if it is not where their manifest names it, or they have no
            manifest, as on a pipe.

    Raises:
        DataError: the index has other ids than at retrieval (65), or is not known (usage).
    """

    def __init__(
        self, path: str, feats: Features, feats_path: str, index: str | None = None
    ) -> None:
        self.path = path
        self.array: Array = feats.array
        self._feats_path = feats_path
        self._manifest = manifest_beside(path)
        self._index = index
        self._to_feats = _renumbering(path, self._manifest, feats, feats_path, index)
        self._bank = len(feats.ids) if self._to_feats is None else len(self._to_feats)

    @property
    def fingerprint(self) -> str:
        """Hash of the rows of the features that the images have; empty if they are the bank's."""
        if self._to_feats is None:
            return ""
        return hashlib.sha256(self._to_feats.tobytes()).hexdigest()

    def rows(self, rows: Sequence[dict[str, Any]], first: int) -> Array:
        """Return (B, K) int32 rows of the features, best first, -1 where there are fewer.

        Args:
            rows: B retrieved rows.
            first: line of the first of them.

        Raises:
            DataError: a row has no images (a text that finds none has an empty list), or an image
                without features (65, with its line).
        """
        checked = read_retrieved(self.path, self._bank, enumerate(rows, first))
        images = [row["images"] for _, row in checked]
        table = padded(images, -1, np.int32)
        if self._to_feats is None:
            return table
        return _renumbered(
            self.path, table, self._to_feats, self._feats_path, self._manifest, self._index
        )
