"""The settings of a retriever (section 2.1), without torch, so that `--help` reads the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Zhang et al. 2019, section 2.1, and the published code of the retriever (Engilberge et al. 2018).
PAPER: dict[str, Any] = {
    "text": "sru",
    "dim": 2400,
    "layers": 4,
    "regions": 15,
    "dropout": 0.5,
    "text_dropout": 0.25,
    "loss": "triplet",
    "margin": 0.2,
    "warm_epochs": 0,
    "text_from": 2,
    "epochs": 60,
    "batch_size": 160,
    "lr": 1e-3,
    "schedule": "halving",
    "warmup": 0.0,
    "clip": 0.0,
}
# The settings that measured best at small scale (examples/visual-awareness/LOG.md), in addition to
# the defaults of `RetrieverConfig`.
DEFAULT: dict[str, Any] = {
    "epochs": 6,
    "batch_size": 160,
    "lr": 1e-3,
    "schedule": "cosine",
    "warmup": 0.05,
    "clip": 5.0,
}
MILESTONES = (2, 3, 4, 5, 6)  # epochs, counted from 0, at whose start the rate is halved


@dataclass(frozen=True)
class RetrieverConfig:
    """The shape and the loss of a retriever; stored in `run.json`.

    The defaults are the recipe that measured best (examples/visual-awareness/LOG.md).

    Source: Zhang et al. 2019 (Visual awareness), section 2.1.
    """

    text_width: int  # W, width of word vectors, or of the encoder's states with text="encoder"
    image_width: int  # D, channels of the image features
    text: str = "sru"  # or `encoder`: an MLP over the mean state of a frozen encoder
    dim: int = 384  # E, width of the shared space, of the SRU and of the 1x1 convolution
    layers: int = 2  # layers of the SRU, or the last layers of the encoder, concatenated
    regions: int = 15  # n of Weldon pooling: positions that are averaged, at either end
    dropout: float = 0.1  # after pooling; with text="encoder" also inside the MLP
    text_dropout: float = 0.1  # dropout of the SRU
    loss: str = "info_nce"  # all of the batch; or `triplet`: the hardest of the batch
    margin: float = 0.2  # alpha of the triplet loss
    warm_epochs: int = 0  # the triplet loss takes the mean over all negatives in these
    text_from: int = 0  # epoch, counted from 0, from which the text path learns


def retriever_config(settings: Mapping[str, Any], **shape: Any) -> RetrieverConfig:
    """Return the part of the settings that the retriever has; the rest is the training's."""
    known = settings.keys() & RetrieverConfig.__dataclass_fields__.keys()
    return RetrieverConfig(**shape | {key: settings[key] for key in known})
