"""Image features: an array, the ids of its rows, and the manifest of the network that made it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.io.artifact import KIND, Artifact
from vgtools.io.errors import DataError
from vgtools.io.files import open_npy, read_json
from vgtools.io.forms import check_form
from vgtools.io.names import is_stream, manifest_path
from vgtools.io.remote import local
from vgtools.io.streams import read_lines
from vgtools.io.trust import trusted

if TYPE_CHECKING:
    from vgtools.io.arrays import Array

LARGEST = 1e9  # number of a feature or word vector; sums over larger ones overflow


def read_ids(
    path: str | Path, count: int | None = None, lines: Iterable[str] | None = None
) -> list[str]:
    """Read a list of image ids, one per line, in the row order of the array next to it.

    The `lines` of the file are given where it is read already.

    Raises:
        DataError: another count than the array's rows, an empty or a duplicate id.
    """
    seen = dict[str, int]()  # id -> line
    for number, line in enumerate(read_lines(path) if lines is None else lines, 1):
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
    def backbone(self) -> dict[str, Any]:
        """Their origin: "ref" and "fingerprint", of network, preprocessing and pooling."""
        made = self.manifest.get("backbone") or {}
        view = made.get("preprocessing") or {}
        pooling = self.manifest.get("pooling")
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

    path = local(str(path))
    kind = "image-features" if positions is None else "image-grid"
    _check_pooling(path, kind)
    made = Artifact(path, kind)
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


def _check_pooling(path: str | Path, kind: str) -> None:
    """Refuse pooled features in the place of feature maps, and the reverse, with the way out."""
    file = manifest_path(path)
    if is_stream(path) or not file.is_file():
        return
    body = read_json(file, "a vg manifest")
    check_form(body, KIND, file, "create the artifact again")
    forms = {
        "image-features": ("(N, D)", "mean", "pooled features"),
        "image-grid": ("(N, P, D)", "none", "feature maps"),
    }
    if body.get("kind") in forms.keys() - {kind}:
        shape, pooling, what = forms[kind]
        why = f"expected {what} {shape}, got {forms[body['kind']][2]} {open_npy(path).shape}"
        command = f"vg extract-image-feats SOURCE --pooling {pooling} -o X.npy"
        raise DataError(f"{why}; make the right ones with: {command}", path)
