"""Vokenization (Tan & Bansal 2020): the contextual token-image matching model, its losses and its evaluation.

    r(w_i, x; s) = f(w_i; s) . g(x)        section 3.2

f projects the frozen text encoder's hidden state of a token, g the frozen backbone's feature of an image, into one space of
unit vectors. The search for the most relevant image of every token, and the stream of voken rows, stand in the same folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.checkpoint import Encoder, as_config, load_encoder, open_run, save_run
from vgtools.nn import TILE


@dataclass(frozen=True)
class MatcherConfig:
    """What a matcher is and what it is trained on; stands in `run.json`.

    The defaults are the recipe that measured best; `paper` gives that of the paper.

    Attributes:
        text_width: `layers` times the width of the text encoder.
        image_width: D, channels of the image features.
        level: `token`, or `sentence` ([CLS] against the image, appendix A.4).
        layers: last layers of the text encoder, concatenated.
        hidden: width of the hidden layer of both MLPs.
        dim: E, width of the shared space.
        dropout: behind the hidden layer, in training.
        sentence: add a projection of the mean hidden state of the sentence to every token's embedding.
    """

    text_width: int
    image_width: int
    level: str = "token"
    layers: int = 4
    hidden: int = 512
    dim: int = 256
    dropout: float = 0.3
    sentence: bool = True


class TokenImageMatcher(nn.Module):
    """Score tokens of a sentence against images: two MLPs over frozen features, into one space of unit vectors.

    Source: Tan & Bansal 2020 (Vokenization), section 3.2, appendix A.1; appendix A.4 for `level="sentence"`.
    Deviation: with `config.sentence` the token also sees the mean hidden state of its sentence; the paper has no such term.
    """

    def __init__(self, config: MatcherConfig) -> None:
        super().__init__()
        self.config = config
        self.text = _mlp(config.text_width, config)
        self.image = _mlp(config.image_width, config)
        if config.sentence and config.level == "token":
            self.context = _mlp(config.text_width, config)

    def embed_tokens(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return f(w; s) of packed tokens; a sentence's embeddings do not depend on its neighbours.

        Args:
            hidden: (T, text_width) the concatenated hidden states of S sentences behind one another, no special tokens.
            lengths: (S,) int64 tokens of each sentence, summing to T; 0 is allowed.

        Returns:
            (T, E) unit vectors, float32.
        """
        kept = lengths[lengths > 0]
        if self.config.sentence:
            means = torch.segment_reduce(hidden.float(), "mean", lengths=kept, axis=0, unsafe=True)  # (S', text_width)
        else:
            means = hidden[:0]
        return self.project_tokens(hidden, means, torch.repeat_interleave(kept))

    def project_tokens(self, hidden: Tensor, means: Tensor, rows: Tensor) -> Tensor:
        """Return f(w; s) of tokens whose sentences' means are known.

        Args:
            hidden: (T, text_width) hidden states of any tokens.
            means: (S, text_width) mean hidden state of each sentence; unused without `config.sentence`.
            rows: (T,) int64 the sentence of each token.

        Returns:
            (T, E) unit vectors, float32.
        """
        found = _project(self.text, hidden)
        if self.config.sentence:
            found = found + F.embedding(rows, _project(self.context, means))
        return F.normalize(found, dim=1)

    def embed_sentences(self, first: Tensor) -> Tensor:
        """Return f(s) of sentences from the hidden states of their [CLS], (S, text_width) -> (S, E) unit vectors."""
        return F.normalize(_project(self.text, first), dim=1)

    def embed_images(self, feats: Tensor) -> Tensor:
        """Return g(x) of image features, (N, image_width) -> (N, E) unit vectors, float32."""
        return F.normalize(_project(self.image, feats), dim=1)


def _mlp(width: int, config: MatcherConfig) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, config.hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(config.hidden, config.dim)
    )


def _project(mlp: nn.Sequential, rows: Tensor) -> Tensor:
    """Run an MLP over rows in float32; whole tiles of rows, so that no row depends on how many others there are."""
    size = len(rows)
    tiled = rows.float() if mlp.training else F.pad(rows.float(), (0, 0, 0, -size % TILE))
    return mlp(tiled)[:size]  # type: ignore[no-any-return]


# ------------------------------------------------------------------------------------------------------------------ runs


@dataclass(frozen=True)
class Matcher:
    """A trained matcher with the text encoder that it reads."""

    matcher: TokenImageMatcher  # eval mode, float32
    encoder: Encoder
    info: dict[str, Any]  # run.json
    ref: str
    fingerprint: str  # of the matcher's weights, the encoder's and the tokenizer


def save_matcher(path: str | Path, matcher: TokenImageMatcher, encoder: Encoder, info: Mapping[str, Any]) -> None:
    """Write a run that `load_matcher` reads; `info` must hold `backbone`, the manifest entry of the image features."""
    save_run(path, "matcher", matcher.state_dict(), {**info, "config": asdict(matcher.config)}, encoder)


def load_matcher(path: str | Path, *, device: str = "cpu", dtype: str = "float32", offline: bool = False) -> Matcher:
    """Load a run of `vg train-matcher`; `dtype` is what the encoder computes with, the matcher itself keeps float32.

    Raises:
        DataError: not there or not finished (66), damaged, of another kind or of another shape (65).
    """
    run = open_run(path, "matcher")
    matcher = TokenImageMatcher(as_config(MatcherConfig, run.info.get("config", {}), run.path / "run.json"))
    matcher.load_state_dict(run.weights)
    encoder = load_encoder(str(run.path), device=device, dtype=dtype, offline=offline)
    where = encoder.model.get_input_embeddings().weight.device
    return Matcher(matcher.eval().requires_grad_(False).to(where), encoder, run.info, str(path), run.fingerprint)
