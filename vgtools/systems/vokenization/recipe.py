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
    """The shape of a matcher, and its loss.

    Attributes:
        hidden: Hidden width of the MLPs.
        dim: Width of the shared space.
        dropout: Dropout after the hidden layer.
        sentence: Add the sentence's mean hidden state to each token.
        context_weight: Weight of that sentence term when the run is used, by default; training
            takes 1.
        root: Take the square root of image features, which tames their few large channels.
        loss: All other photos of the batch as negatives, or one random other photo.
        margin: Margin of the hinge.
        share: InfoNCE: part of a content word's target shared by all photos whose captions hold its
            stem.
        stop_share: Part of stop words and punctuation to learn from, drawn for each step.
        word_loss: InfoNCE: weight of a second loss, of content words without their sentence.
        rarity: InfoNCE: count words by this power of how rare their stem is in captions.
    """

    hidden: int = count(512, presets={"paper": 256, "text": 1024})
    dim: int = count(256, presets={"paper": 64, "text": 512})
    dropout: float = value(0.3, metavar="RATE", min=0, max=0.99, presets={"paper": 0.3})
    sentence: bool = value(True, "--sentence/--no-sentence", presets={"paper": False})
    context_weight: float = value(1.0, "--context", metavar="W", min=0, presets={"paper": None})
    root: bool = value(True, "--root/--no-root", presets={"paper": False})
    loss: Literal["info_nce", "hinge"] = value("info_nce", presets={"paper": "hinge"})
    margin: float = value(0.5, metavar="N", presets={"paper": 0.5})
    share: float = value(0.7, metavar="SHARE", min=0, max=1, presets={"paper": None, "text": 0.65})
    stop_share: float = value(0.3, metavar="SHARE", min=0, max=1, presets={"paper": 1.0})
    word_loss: float = value(0.0, metavar="WEIGHT", min=0, presets={"paper": 0.0, "text": 0.5})
    rarity: float = value(0.0, metavar="POWER", min=0, presets={"paper": 0.0, "text": 1.5})


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
    """A matcher and how it learns. An entry of `run.json` each.

    Attributes:
        epochs: Passes over the captions.
        batch_size: Captions per step.
        lr: Highest learning rate of Adam.
        schedule: Learning rate after the warm-up.
        keep: Epoch whose weights are kept; best: on the captions of validation.
        warmup: Share of the steps in which the rate rises.
    """

    epochs: int = count(6, topic=FIRST, presets={"paper": 20, "text": 12})
    batch_size: int = count(384, least=2, topic=FIRST, presets={"paper": 256})
    lr: float = value(1.5e-3, metavar="RATE", min=0, topic=FIRST, presets={"paper": 1e-3})
    schedule: Literal["constant", "linear", "cosine"] = value(
        "cosine", presets={"paper": "constant"}
    )
    keep: Literal["last", "best"] = value("best", presets={"text": "last"})
    warmup: float = value(0.1, metavar="N", min=0, presets={"paper": 0.0})


PAPER = preset(MatcherTraining, "paper")
