"""Artifacts of vg as arrays, tables and rows; the manifest or the run.json decides their kind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.api import banks
from vgtools.api.banks import ImageBank
from vgtools.api.rows import Rows, Tables, row_class, stream
from vgtools.images.maps import read_heat
from vgtools.images.regions import KIND as REGIONS
from vgtools.images.regions import open_regions
from vgtools.io.arrays import Array
from vgtools.io.artifact import Artifact, open_features, read_made, read_manifest
from vgtools.io.files import open_npy
from vgtools.io.names import bare, is_jsonl, is_shards, is_table, refuse_stream
from vgtools.io.streams import read_jsonl, read_text_rows
from vgtools.io.written import manifest_beside
from vgtools.models.sealed import check_records, read_run
from vgtools.reports.page import own_images
from vgtools.reports.strips import ShownRows
from vgtools.reports.vokens import ShownBank, open_bank
from vgtools.retrieval.index import open_index
from vgtools.text.blocks import open_packed
from vgtools.text.retrieved import read_retrieved
from vgtools.text.vokens import are_ids_of, check_rows, ids_hashes
from vgtools.text.word_vectors import BUILTIN, open_word_vectors
from vgtools.text.word_vectors import KIND as VECTORS

_DRAWN = (None, "vokens", "retrieved", "heat")  # kinds of files whose rows are objects


class Arrays(Tables, Mapping[str, "Array | list[str]"]):
    """Columns by name, as far as possible memory maps: arrays, and lists of names.

    Attributes:
        manifest: the manifest of the artifact.
    """

    def __init__(
        self, columns: Mapping[str, Array | list[str]], manifest: Mapping[str, Any]
    ) -> None:
        self.manifest = dict(manifest)
        self._named = dict(columns)

    def __getitem__(self, name: str) -> Array | list[str]:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    def __repr__(self) -> str:
        shapes = (f"{name} {np.shape(column)}" for name, column in self._named.items())
        return f"<Arrays: {', '.join(shapes)}>"

    def _columns(self) -> dict[str, Any]:
        return {name: np.asarray(one) for name, one in self._named.items()}


def read(
    path: banks.Path,
    *,
    index: banks.Path | ImageBank | None = None,
    images: banks.Path | None = None,
) -> Rows[Any] | Arrays:
    """Read any artifact of vg: it is checked as the commands check it.

    Args:
        path: a file, a folder of shards or a run; here, at a URL or on a hub (`OWNER/NAME`).
        index: for rows that count images: their index, which names the images.
        images: where the pictures are, to draw them in a notebook: image jsonl or a folder.

    Returns:
        By the kind that the manifest, or the run.json, names:

        - image features, feature maps: `Arrays` of "image" and "features";
        - an index: "image" and "vector", a copy;
        - word vectors: "word" and "vector";
        - packed vokens: "row", "token" and "voken", each (tokens,);
        - regions: `Rows` of "image", "width", "height", "boxes", "confidence", "labels" and
          "features";
        - vokens, retrieved rows, heat: `Rows` of `VokenRow`, `ImageRow` or `HeatRow`;
        - other rows, of JSON or a table, and texts: `Rows` of dictionaries;
        - a run: `Rows` of the records of its training, with its run.json as `manifest`.

    Raises:
        DataError: it is missing (`code` 66), damaged, or of another kind (65); in a loop over rows,
            a bad row, with its line.
    """
    place = banks._place(path)
    if place in BUILTIN:
        return _words(place, {})
    refuse_stream(place)
    if os.path.isdir(place) and not is_shards(place):
        return _run(Path(place))
    if bare(place).endswith(".faiss"):
        found = open_index(place)
        # A copy: the view of a mapped index ends with the index.
        vectors = np.array(found.vectors(np.arange(found.count)))
        return Arrays({"image": [*found.ids], "vector": vectors}, found.manifest)
    if bare(place).endswith(".npy"):
        return _arrays(place)
    return _rows(place, index, images)


def _run(folder: Path) -> Rows[dict[str, Any]]:
    """Return the records of a finished run."""
    info = read_run(folder)
    file = check_records(folder, info)
    if not file.exists():
        return Rows(partial(iter, ()), manifest=info)
    return Rows(lambda: (row for _, row in read_jsonl(file)), manifest=info)


def _arrays(place: str) -> Rows[Any] | Arrays:
    """Return the arrays of an `X.npy`, by the kind of its manifest."""
    manifest = read_manifest(place, verify=False)
    kind = manifest.get("kind")
    if kind == REGIONS:
        return _regions(place)
    if kind == "vokens":
        return _packed(place, manifest)
    if kind == VECTORS:
        return _words(place, manifest)
    if kind in ("image-features", "image-grid"):
        features = open_features(place, None if kind == "image-features" else 1)
        return Arrays({"image": features.ids, "features": features.array}, features.manifest)
    made = Artifact(place)
    return Arrays({"array": open_npy(made.path)}, made.manifest)


def _words(place: str, manifest: Mapping[str, Any]) -> Arrays:
    vectors = open_word_vectors(place)
    return Arrays({"word": [*vectors.rows], "vector": vectors.array}, manifest)


def _packed(place: str, manifest: Mapping[str, Any]) -> Arrays:
    """Return the tokens of packed vokens, with the row that each is of, counted from 0."""
    parts = open_packed(place)
    rows = [np.diff(part.ends, prepend=0) for part in parts]
    lengths = np.concatenate(rows)
    pairs = parts[0].tokens if len(parts) == 1 else np.concatenate([part.tokens for part in parts])
    of = np.repeat(np.arange(len(lengths)), lengths)
    return Arrays({"row": of, "token": pairs[:, 0], "voken": pairs[:, 1]}, manifest)


def _regions(place: str) -> Rows[dict[str, Any]]:
    regions = open_regions(place)

    def rows() -> Iterator[dict[str, Any]]:
        for image in regions.images:
            found = regions.of(image)
            yield {
                "image": image,
                "width": found.width,
                "height": found.height,
                "boxes": found.boxes,
                "confidence": found.confidence,
                "labels": found.labels,
                "features": found.features,
            }

    return Rows(rows, manifest=regions.manifest)


def _rows(place: str, index: banks.Path | ImageBank | None, images: banks.Path | None) -> Rows[Any]:
    """Return the rows of a file, as objects if it is of a kind that is drawn."""
    manifest = manifest_beside(place)
    shown = ShownRows(images=None if images is None else os.fspath(images))
    if index is not None:
        path = index._path if isinstance(index, ImageBank) else banks._place(index)
        made = ids_hashes(manifest)
        if isinstance(index, ImageBank) and made and are_ids_of(made, index.ids):
            bank = ShownBank(index.ids, index.manifest)  # also a bank in parts
        else:
            bank = open_bank(None, path, place)
        pictures = shown.images or own_images(bank.manifest)
        probable = manifest.get("score") == "probability" if manifest else None
        shown = ShownRows(bank.ids, pictures, probable, bank.manifest, path)
    if not is_jsonl(place) and not is_table(place):
        return Rows(lambda: read_text_rows(place), manifest=manifest)
    first = next(read_made(place), (1, {}))[1]
    kind = row_class(first) if manifest.get("kind") in _DRAWN else None
    count = None if shown.ids is None else len(shown.ids)
    source = partial(_checked, place, "" if kind is None else kind.__name__, count)
    return stream(source, kind, shown, manifest=manifest)


def _checked(place: str, kind: str, bank: int | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, checked as the commands that read them do."""
    if kind == "ImageRow":
        yield from (row for _, row in read_retrieved(place, bank))
    elif kind == "HeatRow":
        yield from (row for *_, row in read_heat(place))
    else:
        for line, row in read_made(place):
            if kind:
                check_rows([row], place, line)
            yield row
