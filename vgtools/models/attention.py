"""Encoders that return the weights of every attention head, for probes and VisualBERT alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vgtools.io.errors import DataError
from vgtools.models.encoder import Encoder, load_encoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class JointEncoder(ABC):
    """A model to be probed, with the text encoder in it; without regions `region_width` is 0."""

    encoder: Encoder

    @property
    def layers(self) -> int:
        """L, layers with attention."""
        return self.encoder.layers

    @property
    def heads(self) -> int:
        """H, heads of a layer."""
        return int(self.encoder.model.config.num_attention_heads)

    @property
    def tokenizer(self) -> Tokenizer:
        """The encoder's tokenizer, without padding and truncation."""
        return self.encoder.tokenizer

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that fit, special tokens not counted."""
        return self.encoder.max_tokens

    @property
    @abstractmethod
    def region_width(self) -> int:
        """D, channels of a region feature."""

    @abstractmethod
    def attentions(
        self, ids: Tensor, text_mask: Tensor, regions: Tensor, region_mask: Tensor
    ) -> Iterator[Tensor]:
        """Yield the attention weights of each layer, the first layer first.

        Args:
            ids: (B, T) tokens with special ones.
            text_mask: (B, T) bool, False at padding.
            regions: (B, R, D) features.
            region_mask: (B, R) bool, False at padding.

        Yields:
            (B, H, T + R, T + R) after the softmax, text first; rows attend, columns are attended
            to; 0 at padding.
        """


@dataclass(frozen=True)
class TransformersEncoder(JointEncoder):
    """Any text encoder of `transformers`, and its VisualBERT, as a `JointEncoder`."""

    @property
    def region_width(self) -> int:
        """D, or 0 for a text encoder."""
        config = self.encoder.model.config
        return int(config.visual_embedding_dim) if config.model_type == "visual_bert" else 0

    def attentions(
        self, ids: Tensor, text_mask: Tensor, regions: Tensor, region_mask: Tensor
    ) -> Iterator[Tensor]:
        """Yield the attention weights of each layer; see `JointEncoder`.

        Raises:
            DataError: the model gives none, none that regions take part in, or no shares.
        """
        model = self.encoder.model
        device = model.device
        visual = {}
        if regions.shape[1]:
            visual["visual_embeds"] = regions.to(device, model.dtype)
            visual["visual_attention_mask"] = region_mask.to(device).long()
        output = model(
            input_ids=ids.to(device),
            attention_mask=text_mask.to(device).long(),
            output_attentions=True,
            **visual,
        )
        layers = getattr(output, "attentions", None)
        size = ids.shape[1] + regions.shape[1]
        expected = (len(ids), self.heads, size, size)
        if not layers or any(x is None or tuple(x.shape) != expected for x in layers):
            got = "none" if not layers or layers[0] is None else str(tuple(layers[0].shape))
            raise DataError(
                f"the attention of {model.config.model_type} cannot be read: expected weights of "
                f"shape {expected} (rows, heads, text and regions twice) per layer, got {got}",
                self.encoder.ref,
            )
        mask = torch.cat([text_mask, region_mask], dim=1).to(device)
        for layer in layers:
            if not _is_softmax(layer, mask):
                why = f"the attention of {model.config.model_type} cannot be read: expected weights"
                raise DataError(f"{why} that add up to 1, got others", self.encoder.ref)
            yield layer


def _is_softmax(weights: Tensor, mask: Tensor) -> bool:
    """Return whether the weights of every token, of (B, H, T, T), are shares.

    SqueezeBERT returns the scores that it has before the softmax.
    """
    shares = weights.shape[-1] * torch.finfo(torch.float32).eps
    rounding = shares + 2 * torch.finfo(weights.dtype).eps
    off = (weights.sum(dim=-1, dtype=torch.float32) - 1).abs() > rounding
    return not bool(((weights < 0).any(dim=-1) | off).transpose(1, 2)[mask].any())


def open_encoder(ref: str, *, device: str = "cpu", dtype: str = "float32") -> TransformersEncoder:
    """Load a text encoder or a VisualBERT with the eager attention, which returns its weights.

    Raises:
        DataError: as `load_encoder`; or joint attention cannot be read (a late-fusion VisualBERT).
    """
    encoder = load_encoder(ref, device=device, dtype=dtype, attention="eager", regions=True)
    config = encoder.model.config
    if not isinstance(getattr(config, "num_attention_heads", None), int):
        why = f"the attention of {config.model_type} cannot be read: its configuration names no"
        raise DataError(f"{why} attention heads", ref)
    if getattr(config, "bypass_transformer", False):
        raise DataError(
            "is a VisualBERT without early fusion (bypass_transformer): regions join the text in "
            "one last layer, whose attention transformers does not return; "
            "`vgtools.systems.visualbert.model.open_attention` reads it",
            ref,
        )
    return TransformersEncoder(encoder)
