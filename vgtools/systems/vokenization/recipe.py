"""The settings of a matcher (section 3.2), without torch, so that `--help` reads the defaults.

The defaults are the recipe that measured best on captions (examples/vokenization/LOG.md); the
preset `text` measured best on running text: photos that follow the word, if they are the photos of
training.

Source: Tan & Bansal 2020 (Vokenization), section 3.2, appendix A.1 and the published code, for the
    preset `paper`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vgtools.io.settings import FIRST, count, preset, value


@dataclass(frozen=True, kw_only=True)
class MatcherSettings:
    """The shape of a matcher, and its loss."""

    hidden: int = count(512, "Hidden width of the MLPs", presets={"paper": 256, "text": 1024})
    dim: int = count(256, "Width of the shared space", presets={"paper": 64, "text": 512})
    dropout: float = value(
        0.3,
        "Dropout after the hidden layer",
        metavar="RATE",
        min=0,
        max=0.99,
        presets={"paper": 0.3},
    )
    sentence: bool = value(
        True,
        "Add the sentence's mean hidden state to each token",
        "--sentence/--no-sentence",
        presets={"paper": False},
    )
    context_weight: float = value(
        1.0,
        "Weight of that sentence term when the run is used, by default; training takes 1",
        "--context",
        metavar="W",
        min=0,
        presets={"paper": None},
    )
    root: bool = value(
        True,
        "Take the square root of image features, which tames their few large channels",
        "--root/--no-root",
        presets={"paper": False},
    )
    loss: Literal["info_nce", "hinge"] = value(
        "info_nce",
        "All other photos of the batch as negatives, or one random other photo",
        presets={"paper": "hinge"},
    )
    margin: float = value(0.5, "Margin of the hinge", metavar="N", presets={"paper": 0.5})
    share: float = value(
        0.7,
        "InfoNCE: part of a content word's target shared by all photos whose captions hold its "
        "stem",
        metavar="SHARE",
        min=0,
        max=1,
        presets={"paper": None, "text": 0.65},
    )
    stop_share: float = value(
        0.3,
        "Part of stop words and punctuation to learn from, drawn for each step",
        metavar="SHARE",
        min=0,
        max=1,
        presets={"paper": 1.0},
    )
    word_loss: float = value(
        0.0,
        "InfoNCE: weight of a second loss, of content words without their sentence",
        metavar="WEIGHT",
        min=0,
        presets={"paper": 0.0, "text": 0.5},
    )
    rarity: float = value(
        0.0,
        "InfoNCE: count words by this power of how rare their stem is in captions",
        metavar="POWER",
        min=0,
        presets={"paper": 0.0, "text": 1.5},
    )


@dataclass(frozen=True)
class MatcherConfig(MatcherSettings):
    """A matcher with its widths; stored in `run.json`.

    A level `sentence` compares [CLS] with the image (appendix A.4).
    """

    text_width: int  # `layers` times the width of the text encoder
    image_width: int  # D, channels of the image features
    level: str = "token"  # or `sentence`
    layers: int = 4  # last ones of the text encoder, concatenated


@dataclass(frozen=True, kw_only=True)
class MatcherTraining(MatcherSettings):
    """A matcher and how it learns. An entry of `run.json` each."""

    epochs: int = count(
        6, "Passes over the captions", topic=FIRST, presets={"paper": 20, "text": 12}
    )
    batch_size: int = count(384, "Captions per step", 2, topic=FIRST, presets={"paper": 256})
    lr: float = value(
        1.5e-3,
        "Highest learning rate of Adam",
        metavar="RATE",
        min=0,
        topic=FIRST,
        presets={"paper": 1e-3},
    )
    schedule: Literal["constant", "linear", "cosine"] = value(
        "cosine", "Learning rate after the warm-up", presets={"paper": "constant"}
    )
    keep: Literal["last", "best"] = value(
        "best",
        "Epoch whose weights are kept; best: on the captions of validation",
        presets={"text": "last"},
    )
    warmup: float = value(
        0.1,
        "Share of the steps in which the rate rises",
        metavar="N",
        min=0,
        presets={"paper": 0.0},
    )


PAPER = preset(MatcherTraining, "paper")
