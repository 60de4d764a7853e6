"""The settings of VisualBERT's pretraining, without torch, so that `--help` reads the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vgtools.io.settings import count, value


@dataclass(frozen=True, kw_only=True)
class SeenRegions:
    """The regions of an image that the model sees; an entry of `run.json` each.

    Attributes:
        region_start: Regions at the start: drawn at random (the paper), or near the words that they
            show; takes minutes, for trainings that are short.
        text_only: Show no region (table 7, w/o grounded).
        late_fusion: Regions join in one new last layer (table 7, w/o early fusion).
        boxes: The N most confident regions of each image.
    """

    region_start: Literal["drawn", "words"] = value("drawn")
    text_only: bool = value(False)
    late_fusion: bool = value(False)
    boxes: int | None = count(None, show_default="all")
