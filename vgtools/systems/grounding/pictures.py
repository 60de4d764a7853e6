"""Features of images, whole or by region, as the slots of a text show them.

Axes: B texts, K images of a text, N regions of an image, D image feature.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from vgtools.images.regions import Regions, backbone_of, open_regions
from vgtools.io.arrays import Array
from vgtools.io.artifact import Features, open_features
from vgtools.io.errors import DataError
from vgtools.models.references import check_same


class PictureFeatures(Protocol):
    """Image features by image: N rows of D numbers each, memory-mapped.

    Attributes:
        path: path of the file.
        ids: ids of the images.
        width: D, numbers per feature.
        regions: N, rows per image.
        manifest: manifest of the file.
        backbone: network that made the features, by "ref" and "fingerprint".
    """

    path: str
    ids: list[str]
    width: int
    regions: int
    manifest: dict[str, Any]
    backbone: dict[str, Any]

    def row(self, image: str) -> int:
        """Return the row of an image; -1 if it has none."""

    def gather(self, rows: Array) -> tuple[Array, Array]:
        """Return the features of images.

        Args:
            rows: (B, K), -1 for no image.

        Returns:
            (B, K · N, D) float32, and (B, K · N) bool: which are features.
        """


def check_trained(
    pictures: PictureFeatures, backbone: Mapping[str, Any] | None, width: int
) -> None:
    """Refuse features of another network, or another width, than a model was trained with.

    Raises:
        DataError: they are (65, both sides).
    """
    check_same("backbone", pictures.backbone, backbone, pictures.path)
    if pictures.width != width:
        why = f"has {pictures.width} numbers per feature, the model was trained with {width}"
        raise DataError(why, pictures.path)


class WholePictures:
    """One vector per image, of `vg extract-image-feats`; N = 1.

    Source: Sileo 2021, section 3.4.
    """

    regions = 1

    def __init__(self, path: str, features: Features) -> None:
        self.path = path
        self.ids = features.ids
        self.width = int(features.array.shape[1])
        self.manifest = features.manifest
        self._array = features.array
        self._rows = {image: row for row, image in enumerate(features.ids)}
        self.backbone = features.backbone

    def row(self, image: str) -> int:
        """Return the row of an image; -1 if it has none."""
        return self._rows.get(image, -1)

    def gather(self, rows: Array) -> tuple[Array, Array]:
        """Return the features of images; see `PictureFeatures`."""
        mask = rows >= 0
        # Masked slots must be finite as well, because 0 times NaN is NaN in the attention.
        features = np.zeros((*rows.shape, self.width), np.float32)
        features[mask] = self._array[rows[mask]]
        return features, mask


class RegionPictures:
    """The N most confident regions of each image, most confident first; fewer are masked.

    Source: Sileo 2021, section 3.4 and table 1.
    """

    def __init__(self, path: str, regions: Regions, boxes: int) -> None:
        self.path = path
        self.ids = regions.images
        self.width = regions.width
        self.regions = boxes
        self.manifest = regions.manifest
        self.backbone = backbone_of(regions)
        self._regions = regions
        self._rows = {image: row for row, image in enumerate(regions.images)}

    def row(self, image: str) -> int:
        """Return the row of an image; -1 if it has none."""
        return self._rows.get(image, -1)

    def gather(self, rows: Array) -> tuple[Array, Array]:
        """Return the features of images; see `PictureFeatures`."""
        features = np.zeros((rows.size, self.regions, self.width), np.float32)
        mask = np.zeros((rows.size, self.regions), bool)
        for at, row in enumerate(rows.ravel().tolist()):
            if row >= 0:
                found = self._regions.of(self.ids[row])
                best = np.argsort(-found.confidence, kind="stable")[: self.regions]
                features[at, : len(best)] = found.features[best]
                mask[at, : len(best)] = True
        size = rows.shape[1] * self.regions
        return features.reshape(-1, size, self.width), mask.reshape(-1, size)


def open_pictures(feats: str | None, regions: str | None, boxes: int) -> PictureFeatures | None:
    """Open the features of a run: `--feats`, or `--regions` with `--boxes`; None without either.

    Raises:
        DataError: as `open_features` and `open_regions`.
    """
    if feats is not None:
        return WholePictures(feats, open_features(feats))
    if regions is not None:
        return RegionPictures(regions, open_regions(regions), boxes)
    return None
