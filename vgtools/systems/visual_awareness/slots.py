"""Images of texts on their way to a fusion: rows of `vg retrieve`, found by the text itself.

Axes: E texts, B texts of a batch, K images of a text, D image feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.artifact import Features, open_features
from vgtools.models.devices import to_device
from vgtools.tasks.image_controls import Choice, choose_images
from vgtools.text.retrieved import Retrieved, gather, open_retrieved


@dataclass(frozen=True)
class SlotImages:
    """The images that texts are shown with, by text.

    Attributes:
        retrieved: rows of the features for each text.
        features: features of the images.
        path: file of the features.
        choice: how images are chosen, see `choose_images`; without images (`none`) the layers are
            the same.

    Source: Zhang et al. 2019, section 2.3, and section 4.1 (K = 8). The controls are ours: without
        them a gain may come from the added parameters.
    """

    retrieved: Retrieved
    features: Features
    path: str
    choice: Choice = "found"

    @property
    def width(self) -> int:
        """D."""
        return int(self.features.array.shape[1])

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, for `run.json`."""
        return {
            "images": self.choice,
            "features": self.features.manifest["files"],
            "retrieved": self.retrieved.digest(),
        }

    def rows_for(self, texts: Sequence[str], split: str, way_out: str) -> Array:
        """Return the rows of the features for texts, (E, K) int32, best first, -1 for none.

        The images belong to the whole text, both parts of a pair.

        Args:
            texts: E texts.
            split: train, dev …
            way_out: how to make the rows of texts that have none, for the message.

        Raises:
            DataError: as `Retrieved.find` and `choose_images`.
        """
        found = self.retrieved.rows[self.retrieved.find(texts, way_out)]
        bank = np.arange(len(self.features.ids))
        return choose_images(found, texts, self.choice, bank, split)

    def gather(self, rows: Array, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Return the features of images, (B, K, D) float32, and where there are any, (B, K) bool.

        Args:
            rows: (B, K) rows, as `rows_for` returns them.
            device: where the tensors go.
        """
        features, mask = gather(self.features.array, rows)
        return to_device(features, device), to_device(mask, device)


def open_images(
    retrieved: Sequence[str], feats: str, choice: Choice = "found", index: str | None = None
) -> SlotImages:
    """Open retrieved rows and the features of their images.

    Args:
        retrieved: files of `vg retrieve`.
        feats: file of `vg extract-image-feats` with features of all images of the rows.
        choice: how images are chosen, see `SlotImages`.
        index: the index of the rows, if it is not at the path in their manifest.

    Raises:
        DataError: as `open_features` and `open_retrieved`.
    """
    features = open_features(feats)
    found = open_retrieved(retrieved, features, feats, index=index)
    return SlotImages(found, features, feats, choice)
