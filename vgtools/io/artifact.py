"""Files and folders of shards that vg wrote, with their manifests: checked, and read alike.

Image features have functions of their own, because every paper reads them.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vgtools.io.errors import DataError, Exit, file_error, name_of
from vgtools.io.files import open_npy, read_json, sha256_file
from vgtools.io.folders import ShardFile, Shards
from vgtools.io.forms import FILES, check_form
from vgtools.io.names import (
    ending_of,
    is_extra,
    is_shards,
    is_stream,
    manifest_path,
)
from vgtools.io.remote import local
from vgtools.io.streams import decode, open_shard, read_jsonl, read_names
from vgtools.io.trust import trusted
from vgtools.io.written import MANIFEST, check_file, check_format, manifest_beside, renamed

if TYPE_CHECKING:
    # At run time numpy is imported by the functions that need it: it takes a third of the time
    # that `vg --help` may take.
    from vgtools.io.arrays import Array

# The file and the command that writes it, by the kind of its manifest.
_WRITERS = {
    "image-features": "X.npy of vg extract-image-feats",
    "image-grid": "X.npy of vg extract-image-feats --pooling none",
    "region-features": "X.npy of vg extract-image-feats --regions",
    "index": "X.faiss of vg build-index",
    "vokens": "X.npy of vg vokenize",
    "word-vectors": "X.npy of vg prepare vectors",
}
# Features that are taken for one another, and how each is made.
_POOLED = {
    "image-features": ("pooled features (N, D)", "mean"),
    "image-grid": ("feature maps (N, P, D)", "none"),
}


class Artifact:
    """A file or a folder of shards as a command of vg wrote it, opened by its name.

    Files next to the main file are named by their endings: with `X.npy`, `.ids` is `X.ids`; in a
    folder `X.npy/` it is one file per shard. Files of shards are compared with their hashes when
    they are read, others at once.

    Args:
        path: the main file or the folder. From a URL it is fetched, once per machine.
        kind: kind of the manifest.

    Attributes:
        path: its place on this machine.
        manifest: its manifest.

    Raises:
        DataError: as `read_manifest`; methods: a shard is missing (66) or has another hash (65).
    """

    def __init__(self, path: str | Path, kind: str | None = None) -> None:
        self.path = local(str(path))
        self.manifest = read_manifest(self.path, kind)
        self._shards = Shards(self.path) if is_shards(self.path) else None

    def name(self, ending: str) -> str:
        """Return the name of a file next to the main file; the folder for all files of shards."""
        beside = self.path.removesuffix(ending_of(self.path)) + ending
        return beside if self._shards is None else self.path

    def files(self, ending: str) -> Iterator[ShardFile]:
        """Return the files that end alike: one, or one per shard, in order."""
        if self._shards is None:
            return iter([ShardFile(self.name(ending))])
        return self._shards.files(ending)

    def lines(self, ending: str) -> Iterator[str]:
        """Yield the lines of the files that end alike."""
        for file in self.files(ending):
            with open_shard(file) as stream:
                yield from map(decode, stream)

    def arrays(self, ndim: int, ending: str = ".npy") -> list[Array]:
        """Return the arrays that end alike as memory maps: one, or one per shard, in order.

        Raises:
            DataError: as `open_npy`, or a shard has another hash (65).
        """
        arrays = []
        for file in self.files(ending):
            if file.sha256 is not None:
                file.check(sha256_file(file.path))
            arrays.append(open_npy(file.path, ndim))
        return arrays

    def array(self, ndim: int) -> Array:
        """Return the main array, of a folder as the memory maps of its shards, read by rows.

        Raises:
            DataError: as `arrays`; or shards have rows of several shapes (65).
        """
        from vgtools.io.arrays import stacked

        arrays = self.arrays(ndim)
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            raise DataError(f"has shards with rows of several shapes: {shapes}", self.path)
        return stacked([array for array in arrays if len(array)] or arrays[:1])


def read_manifest(
    artifact: str | Path, kind: str | None = None, verify: bool | Literal["sizes"] = True
) -> dict[str, Any]:
    """Read an artifact's manifest and check the artifact against it.

    A `kind` is, for example, `image-features`. With `verify` size and sha256 of every file of the
    artifact are compared, or sizes alone; one that `is_extra` may be missing. A folder's list of
    shards is always compared.

    Raises:
        DataError: a pipe (usage); a folder without shards, or no manifest (66); another kind or a
            newer format, or the files have changed since (65). Both sides are printed.
    """
    if is_stream(artifact):
        why = "expected the name of a .npy or .faiss file, got a pipe"
        raise DataError(why, artifact, code=Exit.USAGE)
    if os.path.isdir(artifact) and not is_shards(artifact):
        raise file_error(IsADirectoryError(errno.EISDIR, ""), artifact, reading=True)
    path = manifest_path(artifact)
    expected = _WRITERS.get(kind or "", "")
    shards = is_shards(artifact)
    if not shards and not path.exists():
        if not os.path.exists(artifact):
            why = f"does not exist; expected {expected}" if expected else "does not exist"
            raise DataError(why, artifact, code=Exit.NO_INPUT)
        if expected and Path(artifact).suffix not in expected.split()[0]:
            why = f"expected {expected}, got {name_of(artifact)}"
            raise DataError(why, code=Exit.NO_INPUT)
        why = f"the manifest of {artifact} is missing; run the command that writes it again"
        if kind in ("image-features", "index"):
            why += ", or, if it was made elsewhere, vg build-index --emb"
        raise DataError(why, path, code=Exit.NO_INPUT)
    body = Shards(artifact).manifest if shards else read_json(path, "a vg manifest")
    files = body.get("files")
    if "vg" in body:
        check_format(body, path)
    if not isinstance(files, dict) or "vg" not in body:
        raise DataError("is not a manifest that vg wrote", path)
    check_form(body, MANIFEST, path, "create the artifact again")
    if kind is not None and body.get("kind") != kind:
        raise _other_kind(artifact, path, kind, body.get("kind"))
    made = body.get("backbone")
    view = made.get("preprocessing") if isinstance(made, dict) else None
    for key, value in (("backbone", made), ("preprocessing", view)):
        if not isinstance(value, dict | None):
            raise DataError(f'"{key}" must be an object, got {value!r:.60}', path)
    if verify and not shards:
        check_form(body, {"files": FILES}, path, "create the artifact again")
        own_name = Path(artifact).name
        if own_name not in files:  # else another file of that name would be compared in its place
            raise renamed(own_name, files, path)
        for name, facts in files.items():
            if is_extra(name, body) and not os.path.exists(path.with_name(name)):
                continue
            named = {"bytes": facts["bytes"]} if verify == "sizes" else facts
            check_file(path.with_name(name), named, "its manifest", "create it again")
    return body


def _other_kind(artifact: str | Path, manifest: Path, kind: str, got: object) -> DataError:
    """Return the error of an artifact of another kind than a command reads, with the way out."""
    if kind in _POOLED and got in [*_POOLED]:
        what, pooling = _POOLED[kind]
        shape = "" if is_shards(artifact) else f" {open_npy(artifact).shape}"
        why = f"expected {what}, got {_POOLED[str(got)][0].partition(' (')[0]}{shape}"
        command = f"vg extract-image-feats SOURCE --pooling {pooling} -o X.npy"
        return DataError(f"{why}; make the right ones with: {command}", artifact)
    why = f"expected the manifest of {kind!r}, got {got!r}"
    return DataError(f"{why}; name {_WRITERS[kind]}" if kind in _WRITERS else why, manifest)


def read_made(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Return the rows of a file that vg wrote; a damaged manifest next to it is refused at once.

    Raises:
        DataError: as `read_jsonl` and `manifest_beside`.
    """
    manifest_beside(path)
    return read_jsonl(path)


LARGEST = 1e9  # number of a feature or word vector; sums over larger ones overflow


def read_ids(
    path: str | Path, count: int | None = None, lines: Iterable[str] | None = None
) -> list[str]:
    """Read a list of image ids, one per line, in the row order of the array next to it.

    The `lines` of the file are given where it is read already.

    Raises:
        DataError: another count than the array's rows, or an id is empty, a duplicate or not
            UTF-8.
    """
    seen = dict[str, int]()  # id -> line
    for number, line in enumerate(read_names(path) if lines is None else lines, 1):
        if not line:
            raise DataError("an empty image id", path, number)
        first = seen.setdefault(line, number)
        if first != number:
            why = f"duplicate image id {line!r:.80} (first on line {first})"
            raise DataError(why, path, number)
    if count is not None and len(seen) != count:
        why = f"has {len(seen)} ids for {count} rows; both must come from the same run"
        raise DataError(why, path)
    return list(seen)


@dataclass(frozen=True)
class Features:
    """Image features as `extract-image-feats` wrote them: row i belongs to ids[i]."""

    array: Array  # (N, D) or (N, P, D), float16 or float32, memory-mapped
    ids: list[str]
    manifest: dict[str, Any]

    @property
    def made_by(self) -> dict[str, Any] | None:
        """The network that made them, and its "pooling"; None if the manifest names none."""
        made = self.manifest.get("backbone")
        return None if made is None else {**made, "pooling": self.manifest.get("pooling")}

    @property
    def backbone(self) -> dict[str, Any]:
        """Their origin: "ref" and "fingerprint", of network, preprocessing and pooling."""
        return origin_of(self.made_by or {})


def origin_of(made: Mapping[str, Any]) -> dict[str, Any]:
    """Return the origin of features, as `check_same` compares it: "ref" and "fingerprint".

    Args:
        made: their network: "ref", "fingerprint", "preprocessing", "pooling".
    """
    view = made.get("preprocessing") or {}
    pooling = made.get("pooling")
    return {
        "ref": f"{made.get('ref')}, pooling {pooling}",
        "fingerprint": f"{made.get('fingerprint')} {view.get('fingerprint', '')} {pooling}",
    }


def open_features(path: str | Path, positions: int | None = None) -> Features:
    """Open `X.npy` with its `X.ids` and `X.json`, hashes, counts and finite values checked.

    In a folder of shards `X.npy/`, the array is read from the shards' memory maps. Files at a URL
    are fetched once per machine.

    Args:
        path: mean or max features, (N, D); with `positions` feature maps, (N, P, D).
        positions: open feature maps, as `--pooling none` writes them, of at least that many.

    Raises:
        DataError: any of the three is missing, damaged or from another run; pooled features in the
            place of feature maps, or the reverse; or a row is NaN, infinite, all zero or has a
            number beyond 1e9.
    """
    import numpy as np

    made = Artifact(path, "image-features" if positions is None else "image-grid")
    path = made.path
    array = made.array(2 if positions is None else 3)
    if not math.prod(array.shape):
        why = f"expected numbers, got none: shape {tuple(array.shape)}"
        raise DataError(f"{why}; extract the features again", path)
    if positions is not None and array.shape[1] < positions:
        why = f"expected (N, P, D) with P >= {positions} positions, got {array.shape}: --picture N"
        raise DataError(f"{why} of vg extract-image-feats with a larger N makes more", path)
    ids = read_ids(made.name(".ids"), len(array), made.lines(".ids"))
    if trusted():
        return Features(array, ids, made.manifest)
    size = max(1, (1 << 24) // max(1, math.prod(array.shape[1:])))  # 64 MB of float32
    for start in range(0, len(array), size):
        block = np.asarray(array[start : start + size], np.float32).reshape(-1, array[0].size)
        bad = ~np.isfinite(block).all(1) | ~block.any(1)
        if bad.any():
            row = start + int(bad.argmax())
            why = f"row {row} ({ids[row]}) is NaN, infinite or all zero"
            raise DataError(f"{why}; extract it again or leave it out", path)
        largest = np.abs(block).max(1)
        if (largest > LARGEST).any():
            row = start + int(largest.argmax())
            why = f"row {row} ({ids[row]}) has a number of {largest.max():.2g}, beyond all features"
            raise DataError(f"{why}; extract it again or leave it out", path)
    return Features(array, ids, made.manifest)
