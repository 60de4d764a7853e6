"""The settings of a matcher (section 3.2), without torch, so that `--help` reads the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Tan & Bansal 2020 (Vokenization), section 3.2, appendix A.1 and the published code.
PAPER: dict[str, Any] = {
    "hidden": 256,
    "dim": 64,
    "dropout": 0.3,
    "sentence": False,
    "context_weight": None,
    "root": False,
    "loss": "hinge",
    "margin": 0.5,
    "share": None,
    "stop_share": 1.0,
    "word_loss": 0.0,
    "rarity": 0.0,
    "epochs": 20,
    "batch_size": 256,
    "lr": 1e-3,
    "schedule": "constant",
    "warmup": 0.0,
}

# The settings that measured best on running text (examples/vokenization/LOG.md): photos that follow
# the word, if they are the photos of training.
TEXT: dict[str, Any] = {
    "hidden": 1024,
    "dim": 512,
    "share": 0.65,
    "word_loss": 0.5,
    "rarity": 1.5,
    "epochs": 12,
    "keep": "last",
}
PRESETS: dict[str, dict[str, Any]] = {"default": {}, "text": TEXT, "paper": PAPER}


@dataclass(frozen=True)
class MatcherConfig:
    """The shape, the loss and the training data of a matcher; stored in `run.json`.

    The defaults are the recipe that measured best (examples/vokenization/LOG.md). A level
    `sentence` compares [CLS] with the image (appendix A.4).
    """

    text_width: int  # `layers` times the width of the text encoder
    image_width: int  # D, channels of the image features
    level: str = "token"  # or `sentence`
    layers: int = 4  # last layers of the text encoder, concatenated
    hidden: int = 512  # width of the hidden layer of the MLPs
    dim: int = 256  # E, width of the shared space
    dropout: float = 0.3  # after the hidden layer
    sentence: bool = True  # add the projected mean hidden state of the sentence to its tokens
    context_weight: float = 1.0  # weight of that term when matching; training takes 1
    root: bool = True  # root of image features, sign kept, which tames their few large channels
    loss: str = "info_nce"  # all other photos of the batch; or `hinge`: one random other photo
    margin: float = 0.5  # M of the hinge
    share: float = 0.7  # InfoNCE: part of a content word's target for all photos of its stem
    stop_share: float = 0.3  # part of the tokens outside content words, drawn for each step
    word_loss: float = 0.0  # InfoNCE: weight of content words matched without their sentence
    rarity: float = 0.0  # InfoNCE: tokens count by this power of their stem's rarity in captions


def matcher_config(settings: Mapping[str, Any], **shape: Any) -> MatcherConfig:
    """Return the part of the settings that the matcher has; the rest is the training's."""
    known = settings.keys() & MatcherConfig.__dataclass_fields__.keys()
    return MatcherConfig(**shape | {key: settings[key] for key in known})
