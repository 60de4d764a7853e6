"""Layers that several papers share: attention of one sequence to another, and copies of a text
encoder's layers that read any states.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vgtools.io.errors import DataError, Exit

# Their layers take states and a mask, and add nothing of their own: no positions, no biases.
_STACKED = ("bert", "roberta", "xlm-roberta", "camembert")


class Attention(nn.Module):
    """Multi-head attention of a sequence to another sequence, or to itself.

    Queries, keys and values have the width of the attending sequence; the context that it attends
    to may have another width. No residual and no norm: papers surround attention with different
    layers.

    Args:
        width: H, width of the attending sequence.
        heads: A, a divisor of it.
        other: width of the context; None for H.
        dropout: dropout of the weights, while training.

    Raises:
        DataError: the width is not a multiple of the heads (78).
    """

    def __init__(
        self, width: int, heads: int, other: int | None = None, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if width % heads:
            why = f"the width {width} is not a multiple of {heads} attention heads"
            raise DataError(why, code=Exit.CONFIG)
        other = width if other is None else other
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(other, width)
        self.value = nn.Linear(other, width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Tensor, context: Tensor, mask: Tensor, weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the attended values, and the weights if asked for.

        Args:
            x: (B, T, H) sequence that attends.
            context: (B, S, other) sequence that it attends to.
            mask: (B, S) bool, False at padding, which nothing attends to; a row has some True.
            weights: return them, without dropout; costs memory for (B, A, T, S) numbers.

        Returns:
            (B, T, H), and (B, A, T, S) or None: rows sum to 1.
        """
        query = self._split(self.query(x))
        key = self._split(self.key(context))
        value = self._split(self.value(context))
        visible = mask[:, None, None]  # (B, 1, 1, S)
        rate = self.dropout if self.training else 0.0
        found = None
        if weights:
            scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
            found = scores.masked_fill(~visible, -math.inf).softmax(-1)
            mixed = F.dropout(found, rate) @ value
        else:
            mixed = F.scaled_dot_product_attention(query, key, value, visible, rate)
        joined: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return joined, found

    def _split(self, states: Tensor) -> Tensor:
        """Return (B, A, T, H / A) of (B, T, H)."""
        split: Tensor = states.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return split


def checkpoint_activations(network: Any) -> None:
    """Let a network of transformers keep no activations of a layer: less memory, more time."""
    # The general way of torch, where transformers has none of its own for the class.
    general = getattr(network, "activation_checkpointing_enable", None)
    (general or network.gradient_checkpointing_enable)({"use_reentrant": False})


def draw_linear_layers(module: nn.Module, std: float) -> None:
    """Draw the weights of all linear layers in a module from torch's random state, as BERT does."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=std)
            nn.init.zeros_(part.bias)


class LayerStack(nn.Module):
    """A trainable copy of the layers of a text encoder, without its embeddings.

    Their input may be of any length and kind: tokens, images, both. Positions and types are not
    added again.

    Args:
        encoder: transformers' BertModel, RobertaModel or AlbertModel.
        count: run only the last `count` layers. ALBERT repeats its layers, so there it counts the
            repeats, and the number of parameters need not change.

    Attributes:
        checkpointing: keep no activations of a layer while training; less memory, more time.

    Raises:
        DataError: an encoder of another family, or with fewer layers (78).
    """

    def __init__(self, encoder: Any, count: int | None = None) -> None:
        super().__init__()
        config = encoder.config
        total = int(config.num_hidden_layers)
        count = total if count is None else count
        if not 1 <= count <= total:
            why = f"expected 1 to {total} layers of the text encoder, got {count}"
            raise DataError(why, code=Exit.CONFIG)
        if config.model_type == "albert":
            parts = encoder.encoder.albert_layer_groups
            order = [int(i / (total / config.num_hidden_groups)) for i in range(total)]
        elif config.model_type in _STACKED:
            parts = encoder.encoder.layer
            order = list(range(total))
        else:
            why = f"expected an encoder like BERT, RoBERTa or ALBERT, got {config.model_type}"
            raise DataError(why, code=Exit.CONFIG)
        order = order[-count:]
        used = sorted(set(order))
        self.layers = nn.ModuleList(copy.deepcopy(parts[i]) for i in used).requires_grad_(True)
        for module in self.layers.modules():
            # The deep copy has configurations of its own, so that the encoder's own attention does
            # not change. `forward` gives a mask of bool, which the eager attention would add to the
            # scores as 0 and 1.
            config = getattr(module, "config", None)
            if config is not None:
                config._attn_implementation = "sdpa"
        self._order = [used.index(i) for i in order]
        self.checkpointing = False

    def set_dropout(self, rate: float) -> None:
        """Set the dropout of all layers, which is the encoder's own until then."""
        for module in self.layers.modules():
            if isinstance(module, nn.Dropout):
                module.p = rate

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Return the states after the last layer.

        Args:
            states: (B, S, H).
            mask: (B, S) bool, False at padding, which nothing attends to.

        Returns:
            (B, S, H).
        """
        attended = mask[:, None, None]  # (B, 1, 1, S)
        for i in self._order:
            if self.checkpointing and torch.is_grad_enabled():
                states = checkpoint(_run, self.layers[i], states, attended, use_reentrant=False)
            else:
                states = _run(self.layers[i], states, attended)
        return states


def _run(layer: nn.Module, states: Tensor, mask: Tensor) -> Tensor:
    output = layer(states, attention_mask=mask)
    # Layers of older versions of transformers return a tuple.
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found
