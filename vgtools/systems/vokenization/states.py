"""Tokens embedded by the text encoder's states alone: nothing is learned, and no picture is seen.

An index of clusters of such states (`clusters.py`) is searched as an image bank is, so that
vokenization with and without pictures differ in the bank and in nothing else. Tan & Bansal 2020
have no such control (table 6).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.files import open_npy
from vgtools.models.encoder import Encoder
from vgtools.retrieval.index import Index
from vgtools.systems.vokenization.matcher import TokenImageMatcher, sentence_means
from vgtools.systems.vokenization.recipe import MatcherConfig

TABLE = ".states.npy"  # next to the index: (2, E) float32: the mean of each channel, and its factor


class StateEmbedding(TokenImageMatcher):
    """The text side of a matcher that has learned nothing: standardised states as unit vectors.

    Every channel has mean 0 and deviation 1 over the text that the clusters were fitted on: the few
    large channels of a text encoder would otherwise decide alone (Timkey & van Schijndel 2021).

    Args:
        config: `dim` is `text_width`, with `sentence` twice that.
        table: (2, E) the mean of each channel, and its factor; None: raw states.

    Deviation: not in Tan & Bansal 2020: a control for how much of a gain is the text encoder's.
    """

    table: Tensor | None

    def __init__(self, config: MatcherConfig, table: Tensor | None = None) -> None:
        nn.Module.__init__(self)  # It has none of a matcher's layers.
        self.config = config
        self.context = None
        self.register_buffer("table", table)

    def embed_tokens(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return (T, E) embeddings; see `TokenImageMatcher.embed_tokens`."""
        states = hidden.float()
        if self.config.sentence:
            kept = lengths[lengths > 0]
            means = sentence_means(hidden, kept)
            states = torch.cat([states, means.repeat_interleave(kept, dim=0)], dim=1)
        if self.table is None:
            return states
        return F.normalize((states - self.table[0]) * self.table[1], dim=1)


def config_of(encoder: Encoder, layers: int, weight: float) -> MatcherConfig:
    """Return the shape of the embedding: a weight of the sentence of 0 leaves it out."""
    width = layers * encoder.width
    return MatcherConfig(
        text_width=width,
        image_width=0,
        dim=2 * width if weight else width,
        layers=layers,
        sentence=weight > 0,
        context_weight=weight,
    )


def fingerprint_of(encoder: Encoder, config: MatcherConfig, table: Array) -> str:
    """Return the identity of an embedding: encoder, layers, weight and table."""
    named = (encoder.identity, config.layers, config.context_weight)
    return hashlib.sha256(repr(named).encode() + table.tobytes()).hexdigest()


def open_states(index: Index, encoder: Encoder) -> tuple[StateEmbedding, str]:
    """Return the embedding whose clusters are an index, and its fingerprint.

    Raises:
        DataError: the manifest or the table next to the index is damaged, or the encoder has other
            layers (65).
    """
    facts = index.manifest["clusters"]
    facts = facts if isinstance(facts, Mapping) else {}
    layers = facts.get("layers")
    weight = facts.get("context_weight")
    again = "fit the clusters again with vg prepare clusters"
    if type(layers) is not int or layers < 1 or type(weight) not in (int, float):
        why = f'"clusters": expected "layers" and "context_weight", got {facts!r:.80}'
        raise DataError(f"{why}; {again}", index.path)
    config = config_of(encoder, layers, float(weight or 0))
    file = Path(index.path).with_suffix(TABLE)
    table = open_npy(file, 2)
    if table.shape != (2, config.dim) or table.dtype != "float32":
        why = f"expected (2, {config.dim}) float32 for the {layers} last layers of {encoder.ref}, "
        raise DataError(f"{why}got {table.shape} {table.dtype}; {again}", file)
    embedding = StateEmbedding(config, torch.from_numpy(table.copy()))
    device = encoder.model.get_input_embeddings().weight.device
    return embedding.eval().to(device), fingerprint_of(encoder, config, table)
