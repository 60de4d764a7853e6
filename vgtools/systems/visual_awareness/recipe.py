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
    """The shape of a retriever, and its loss.

    Attributes:
        text: Read word vectors with an SRU, or with an MLP the mean state of a frozen encoder.
        dim: Width of the SRU and of the shared space.
        layers: Layers of the SRU; with --text encoder its last ones, concatenated.
        regions: Positions of an image that are averaged, at either end.
        dropout: Dropout after pooling.
        text_dropout: Dropout of the SRU.
        loss: All of the batch as negatives, or the hardest of it.
        margin: Margin of the triplet loss.
        warm_epochs: The triplet loss takes the mean over all negatives in the first N epochs.
        text_from: The text path learns after N epochs only.
    """

    text: Literal["sru", "encoder"] = value("sru", presets={"paper": "sru"})
    dim: int = count(384, presets={"paper": 2400})
    layers: int = count(2, presets={"paper": 4})
    regions: int = count(15, presets={"paper": 15})
    dropout: float = value(0.1, metavar="RATE", min=0, max=0.99, presets={"paper": 0.5})
    text_dropout: float = value(0.1, metavar="RATE", min=0, max=0.99, presets={"paper": 0.25})
    loss: Literal["info_nce", "triplet"] = value("info_nce", presets={"paper": "triplet"})
    margin: float = value(0.2, metavar="N", presets={"paper": 0.2})
    warm_epochs: int = count(0, least=0, presets={"paper": 0})
    text_from: int = count(0, least=0, presets={"paper": 2})


@dataclass(frozen=True)
class RetrieverConfig(RetrieverSettings):
    """A retriever with its widths; stored in `run.json`."""

    text_width: int  # W, width of word vectors, or of the encoder's states with text="encoder"
    image_width: int  # D, channels of the image features


@dataclass(frozen=True, kw_only=True)
class RetrieverTraining(RetrieverSettings):
    """A retriever and how it learns. An entry of `run.json` each.

    Attributes:
        epochs: Passes over the captions.
        batch_size: Captions per step.
        lr: Highest learning rate of Adam.
        schedule: Learning rate after the warm-up; halving after epochs 2 to 6.
        warmup: Share of the steps in which the rate rises.
        clip: Clip gradients to this norm; 0 disables it.
    """

    epochs: int = count(6, topic=FIRST, presets={"paper": 60})
    batch_size: int = count(160, least=2, topic=FIRST, presets={"paper": 160})
    lr: float = value(1e-3, metavar="RATE", min=0, topic=FIRST, presets={"paper": 1e-3})
    schedule: Literal["constant", "linear", "cosine", "halving"] = value(
        "cosine", presets={"paper": "halving"}
    )
    warmup: float = value(0.05, metavar="N", min=0, presets={"paper": 0.0})
    clip: float = value(5.0, metavar="N", min=0, presets={"paper": 0.0})


PAPER = preset(RetrieverTraining, "paper")
