"""Layers that several papers share: copies of a text encoder's layers that read any states."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vgtools.io import DataError, Exit

# Their layers take states and a mask, and add nothing of their own: no positions, no biases.
_STACKED = ("bert", "roberta", "xlm-roberta", "camembert")


class LayerStack(nn.Module):
    """A trainable copy of the layers of a text encoder, without its embeddings.

    What they read may be of any length and kind: tokens, images, both. Positions and types are not
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
    found: Tensor = output[0] if isinstance(output, tuple) else output  # of an older transformers
    return found
