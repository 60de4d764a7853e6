"""The settings of VisualBERT's pretraining, without torch, so that `--help` reads the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vgtools.io.settings import count, value


@dataclass(frozen=True, kw_only=True)
class SeenRegions:
    """The regions of an image that the model sees; an entry of `run.json` each."""

    region_start: Literal["drawn", "words"] = value(
        "drawn",
        "Regions at the start: drawn at random (the paper), or near the words that they show; "
        "takes minutes, for trainings that are short.",
    )
    text_only: bool = value(False, "Show no region (table 7, w/o grounded).")
    late_fusion: bool = value(
        False, "Regions join in one new last layer (table 7, w/o early fusion)."
    )
    boxes: int | None = count(
        None, "The N most confident regions of each image.", show_default="all"
    )
