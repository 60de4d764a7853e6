"""The settings of a retriever (section 2.1), without torch, so that `--help` reads the defaults.

The defaults are the recipe that measured best (examples/visual-awareness/LOG.md).

Source: Zhang et al. 2019, section 2.1, and the published code of the retriever (Engilberge et al.
    2018), for the preset `paper`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vgtools.io.settings import FIRST, count, preset, value

MILESTONES = (2, 3, 4, 5, 6)  # epochs, counted from 0, at whose start the rate is halved


@dataclass(frozen=True, kw_only=True)
class RetrieverSettings:
    """The shape of a retriever, and its loss."""

    text: Literal["sru", "encoder"] = value(
        "sru",
        "Read word vectors with an SRU, or with an MLP the mean state of a frozen encoder",
        presets={"paper": "sru"},
    )
    dim: int = count(384, "Width of the SRU and of the shared space", presets={"paper": 2400})
    layers: int = count(
        2,
        "Layers of the SRU; with --text encoder its last ones, concatenated",
        presets={"paper": 4},
    )
    regions: int = count(
        15, "Positions of an image that are averaged, at either end", presets={"paper": 15}
    )
    dropout: float = value(
        0.1, "Dropout after pooling", metavar="RATE", min=0, max=0.99, presets={"paper": 0.5}
    )
    text_dropout: float = value(
        0.1, "Dropout of the SRU", metavar="RATE", min=0, max=0.99, presets={"paper": 0.25}
    )
    loss: Literal["info_nce", "triplet"] = value(
        "info_nce",
        "All of the batch as negatives, or the hardest of it",
        presets={"paper": "triplet"},
    )
    margin: float = value(0.2, "Margin of the triplet loss", metavar="N", presets={"paper": 0.2})
    warm_epochs: int = count(
        0,
        "The triplet loss takes the mean over all negatives in the first N epochs",
        0,
        presets={"paper": 0},
    )
    text_from: int = count(0, "The text path learns after N epochs only", 0, presets={"paper": 2})


@dataclass(frozen=True)
class RetrieverConfig(RetrieverSettings):
    """A retriever with its widths; stored in `run.json`."""

    text_width: int  # W, width of word vectors, or of the encoder's states with text="encoder"
    image_width: int  # D, channels of the image features


@dataclass(frozen=True, kw_only=True)
class RetrieverTraining(RetrieverSettings):
    """A retriever and how it learns. An entry of `run.json` each."""

    epochs: int = count(6, "Passes over the captions", topic=FIRST, presets={"paper": 60})
    batch_size: int = count(160, "Captions per step", 2, topic=FIRST, presets={"paper": 160})
    lr: float = value(
        1e-3,
        "Highest learning rate of Adam",
        metavar="RATE",
        min=0,
        topic=FIRST,
        presets={"paper": 1e-3},
    )
    schedule: Literal["constant", "linear", "cosine", "halving"] = value(
        "cosine",
        "Learning rate after the warm-up; halving after epochs 2 to 6",
        presets={"paper": "halving"},
    )
    warmup: float = value(
        0.05,
        "Share of the steps in which the rate rises",
        metavar="N",
        min=0,
        presets={"paper": 0.0},
    )
    clip: float = value(
        5.0,
        "Clip gradients to this norm; 0 disables it",
        metavar="N",
        min=0,
        presets={"paper": 0.0},
    )


PAPER = preset(RetrieverTraining, "paper")
