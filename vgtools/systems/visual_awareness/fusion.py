"""Fusion of a text encoder's states with the images of the text: sections 2.3 and 2.4.

`Fusion` is the layer; `Fusion.attach` places it at the end of the encoder in any transformers
network, whose head or decoder then reads the fused states. The network itself is not changed: its
parameters keep their names, and it is saved as it was, with the fusion's own files next to it.

Axes: B texts, T tokens, K images of a text, D image feature, d hidden.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, read_json
from vgtools.io.own import atomic_write
from vgtools.models.layers import draw_linear_layers
from vgtools.models.references import (
    ENCODER_FILES,
    fill,
    fingerprint,
    read_safetensors,
    resolve,
    write_safetensors,
)
from vgtools.models.runs import as_config

Kind = Literal["paper", "gate", "scalar-gate", "sum", "attention", "bi-attention"]
Start = Literal["drawn", "identity"]
NAME = "fusion"  # name of its two files next to a network
ATTENTION_ALONE = ("attention", "bi-attention")  # The result of the attention replaces the states.
_CLOSED = -4.0  # bias of a gate that starts (almost) closed: 1.8 % of the images pass


@dataclass(frozen=True)
class FusionConfig:
    """The shape of a fusion.

    Attributes:
        features: D.
        hidden: d.
        heads: heads of the attention; they divide d.
        kind: how states and images are joined, see `Fusion`.
        dropout: dropout of the attention's result.
        attention_dropout: dropout of the attention's weights.
        image_dropout: share of texts that lose all their images in a step of training.
        eps: epsilon of the layer norm.
        weight: weight of H' in `sum`.
    """

    features: int
    hidden: int
    heads: int
    kind: str = "paper"
    dropout: float = 0.0
    attention_dropout: float = 0.0
    image_dropout: float = 0.0
    eps: float = 1e-5
    weight: float = 1.0


def config_for(
    net: Any, features: int, kind: Kind = "paper", image_dropout: float = 0.0, weight: float = 1.0
) -> FusionConfig:
    """Return the shape of a fusion that has the heads and the dropout of a network's encoder.

    Args:
        net: a network of transformers, with the encoder in it.
        features: D.
        kind: see `Fusion`.
        image_dropout: see `FusionConfig`.
        weight: likewise.

    Raises:
        DataError: the network's configuration lacks its width or its heads (78).
    """
    config = net.config
    try:
        hidden = int(config.hidden_size)
        heads = int(config.num_attention_heads)
    except AttributeError as error:
        why = f"no images can be fused into a {config.model_type}: {error}"
        raise DataError(why, code=Exit.CONFIG) from None
    return FusionConfig(
        features,
        hidden,
        heads,
        kind,
        _setting(config, 0.0, "hidden_dropout_prob", "dropout"),
        _setting(config, 0.0, "attention_probs_dropout_prob", "attention_dropout"),
        image_dropout,
        _setting(config, FusionConfig.eps, "layer_norm_eps"),
        weight,
    )


def _setting(config: Any, default: float, *names: str) -> float:
    """Return the first setting of a transformers configuration that it has."""
    found = (getattr(config, name, None) for name in names)
    return float(next((value for value in found if value is not None), default))


class Fusion(nn.Module):
    """States of a text fused with its images, of which any number may be absent.

    M = Linear(features), H' = multi-head attention of the states H over M, and then by `kind`:

    - `paper`: LayerNorm(W (H + H') + b), equations 2 and 3
    - `gate`: (1 - g) H + g H' with g = sigmoid(W_g [H; H'] + b_g), d wide
    - `scalar-gate`: the same with one g per token
    - `sum`: H + w H', with a fixed weight w
    - `attention`: H' alone
    - `bi-attention`: H' alone, of states over images that have read the text before with the same
      attention: M' = attention of M over the words of H

    Images have no position and no rank. A text without any has H' = 0, or keeps H where H' is
    alone.

    Source: Zhang et al. 2019, sections 2.3 and 2.4, equations 2 and 3; the other kinds are from the
        code of Zhang et al. 2019, "Neural machine translation with universal visual
        representation".
    Deviation: that code attends with one head over max(0, W x), and a text without images keeps
        nothing of its states where H' is alone; its concatenation of H and H' is left out, as the
        gate reads the same.
    """

    def __init__(self, config: FusionConfig) -> None:
        super().__init__()
        d = config.hidden
        if d % config.heads:
            why = f"{config.heads} heads do not divide the {d} dimensions of the text encoder"
            raise DataError(why, code=Exit.CONFIG)
        self.config = config
        self.image = nn.Linear(config.features, d)
        self.query = nn.Linear(d, d)
        self.key = nn.Linear(d, d)
        self.value = nn.Linear(d, d)
        self.output = nn.Linear(d, d)
        self.dropout = nn.Dropout(config.dropout)
        if config.kind == "paper":
            self.joint = nn.Linear(d, d)
            self.norm = nn.LayerNorm(d, config.eps)
        elif config.kind in ("gate", "scalar-gate"):
            self.gate = nn.Linear(2 * d, d if config.kind == "gate" else 1)
        self._shown: tuple[Tensor, Tensor] | None = None
        self._words: Tensor | None = None

    @torch.no_grad()
    def reset(self, start: Start = "drawn", std: float = 0.02) -> None:
        """Draw new weights.

        Args:
            start: `drawn` as the encoder's own layers; `identity` lets the states through at
                first: W = I, b = 0 (of a gate: almost closed), nothing from the images.
            std: standard deviation of the weights.

        Raises:
            ValueError: `identity`, and nothing of the states reaches the fused ones.
        """
        if start == "identity" and self.config.kind in ATTENTION_ALONE:
            raise ValueError(f"{self.config.kind} lets no state through")
        draw_linear_layers(self, std)
        if start == "drawn":
            return
        # With this weight at 0 the images add nothing at first, but its gradient is not 0.
        nn.init.zeros_(self.output.weight)
        if self.config.kind == "paper":
            nn.init.eye_(self.joint.weight)
        elif self.config.kind != "sum":
            nn.init.zeros_(self.gate.weight)
            nn.init.constant_(self.gate.bias, _CLOSED)

    def attend(
        self, states: Tensor, features: Tensor, mask: Tensor, words: Tensor | None = None
    ) -> Tensor:
        """Return H' of (B, T, d) states, (B, T, d): zeros where a text has no image.

        Args: as `forward`.

        Source: Zhang et al. 2019, section 2.4, equation 2.
        """
        known = mask.any(1)
        # A softmax over nothing is NaN, also in its gradient: such a text reads its first slot, and
        # the result is dropped.
        first = torch.arange(mask.shape[1], device=mask.device) == 0
        images = self.image(features)  # M
        if self.config.kind == "bi-attention":
            if words is None:
                raise ValueError("bi-attention expects a mask of words")
            images = self._read(images, states, words)
        found = self._read(states, images, mask | (first & ~known[:, None]))
        return torch.where(known[:, None, None], found, 0.0)

    def _read(self, readers: Tensor, read: Tensor, mask: Tensor) -> Tensor:
        """Return multi-head attention of (B, Q, d) over (B, N, d) where (B, N) is true."""
        found = F.scaled_dot_product_attention(
            self._heads(self.query(readers)),
            self._heads(self.key(read)),
            self._heads(self.value(read)),
            mask[:, None, None],
            dropout_p=self.config.attention_dropout if self.training else 0.0,
        )
        joined: Tensor = self.dropout(self.output(found.transpose(1, 2).flatten(2)))
        return joined

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.view(*rows.shape[:2], self.config.heads, -1).transpose(1, 2)

    def forward(
        self, states: Tensor, features: Tensor, mask: Tensor, words: Tensor | None = None
    ) -> Tensor:
        """Return the fused states.

        Args:
            states: (B, T, d), H.
            features: (B, K, D), of the images; finite also where there is none.
            mask: (B, K) bool, where there is an image.
            words: (B, T) bool, where there is no padding; for `bi-attention`.

        Returns:
            (B, T, d).

        Raises:
            ValueError: not as many texts with images as with states, or no `words` where they are
                read.
        """
        if len(states) != len(mask):
            raise ValueError(f"expected the images of {len(states)} texts, got {len(mask)}")
        # Attention needs at least one slot; an empty slot is masked like any missing image.
        if not mask.shape[1]:
            features = F.pad(features, (0, 0, 0, 1))
            mask = F.pad(mask, (0, 1))
        if self.training and self.config.image_dropout:
            kept = torch.rand(len(mask), 1, device=mask.device) >= self.config.image_dropout
            mask = mask & kept
        found = self.attend(states, features, mask, words)
        if self.config.kind == "paper":
            fused = self.norm(self.joint(states + found))
        elif self.config.kind == "sum":
            fused = states + self.config.weight * found
        elif self.config.kind in ATTENTION_ALONE:
            fused = torch.where(mask.any(1)[:, None, None], found.to(states.dtype), states)
        else:
            gate = torch.sigmoid(self.gate(torch.cat([states, found.to(states.dtype)], 2)))
            fused = states + gate * (found - states)
        return fused.to(states.dtype)  # type: ignore[no-any-return]

    def attach(self, net: Any) -> Hooks:
        """Fuse the states that the encoder in a network returns; all later layers read the fused
        states.

        Args:
            net: a network of transformers: an encoder under a head, or an encoder and a decoder.

        Returns:
            Hooks, whose `remove` leaves the network as it was.

        Raises:
            DataError: the network has no encoder that returns states (78).
        """
        inner = getattr(net, "base_model", net)
        encoder = getattr(inner, "encoder", None) or getattr(inner, "transformer", None)
        if not isinstance(encoder, nn.Module):
            why = f"no images can be fused into a {net.config.model_type}: it has no encoder"
            raise DataError(why, code=Exit.CONFIG)
        handles = [encoder.register_forward_hook(self._replace)]
        if self.config.kind == "bi-attention":
            # The mask with one flag per token may reach the base model or only its encoder: which
            # of the two depends on the network and on the call.
            for module in (inner, encoder):
                handles.append(module.register_forward_pre_hook(self._note_words, with_kwargs=True))
        return Hooks(handles)

    @contextmanager
    def show(self, features: Tensor, mask: Tensor) -> Iterator[None]:
        """Show the images of a batch to the network that this is attached to.

        Args: as `forward`; the texts are the encoder's, in their order. A search with beams repeats
            the states after they are fused.
        """
        self._shown = (features, mask)
        try:
            yield
        finally:
            # Images that stayed here would silently be fused into the next texts.
            self._shown = self._words = None

    def _note_words(self, module: nn.Module, inputs: Any, named: dict[str, Any]) -> None:
        mask = named.get("attention_mask")
        if isinstance(mask, Tensor) and mask.ndim == 2:
            self._words = mask.bool()

    def _replace(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        if self._shown is None:
            raise RuntimeError("no images are shown: call the network inside Fusion.show")
        states = output[0]
        fused = self(states, *self._shown, self._words)

        def replaced(value: Any) -> Any:
            # The later layers of DeBERTa read the last of the states of all layers.
            if isinstance(value, tuple) and value and value[-1] is states:
                return (*value[:-1], fused)
            return fused if value is states else value

        if isinstance(output, tuple):
            return tuple(map(replaced, output))
        for name in [*output]:
            output[name] = replaced(output[name])
        return output


class Hooks(NamedTuple):
    """The hooks that attach a fusion to one network."""

    handles: list[RemovableHandle]

    def remove(self) -> None:
        """Leave the network as it was."""
        for handle in self.handles:
            handle.remove()


# -------------------------------------------------------------------------------------------- files


def save_fusion(folder: str | Path, fusion: Fusion, backbone: Mapping[str, Any]) -> None:
    """Write a fusion next to the network that it belongs to.

    Args:
        folder: folder of the network, which transformers opens without the fusion.
        fusion: the fusion; its weights go to `fusion.safetensors`.
        backbone: network that made the image features, by "ref" and "fingerprint"; kept with the
            shape in `fusion.json`.
    """
    facts = {
        NAME: dataclasses.asdict(fusion.config),
        "backbone": dict(backbone),
        "fingerprint": fingerprint(fusion),
    }
    write_safetensors(Path(folder) / f"{NAME}.safetensors", fusion.state_dict())
    atomic_write(Path(folder) / f"{NAME}.json", dumps(facts))


def fusion_of(ref: str) -> str | None:
    """Return the fingerprint of the fusion that a network has next to it; None if it has none.

    Args:
        ref: the network, in a folder or on a hub.

    Raises:
        DataError: as `resolve`; the fusion's shape is damaged (65).
    """
    file = resolve(ref, ENCODER_FILES) / f"{NAME}.json"
    if not file.is_file():
        return None
    return str(read_json(file, "the shape of a fusion").get("fingerprint"))


def open_fusion(ref: str) -> tuple[Fusion, dict[str, Any]]:
    """Return the fusion next to a network, on the CPU, and the backbone of its image features.

    Args:
        ref: the network, in a folder or on a hub.

    Raises:
        DataError: a file is missing (66), or damaged or of another fusion (65).
    """
    folder = resolve(ref, ENCODER_FILES)
    file = folder / f"{NAME}.json"
    facts = read_json(file, "the shape of a fusion")
    fusion = Fusion(as_config(FusionConfig, facts.get(NAME), NAME, file))
    weights = folder / f"{NAME}.safetensors"
    tensors = read_safetensors(weights)
    found = fingerprint(tensors)
    if found != facts.get("fingerprint"):
        why = f"is damaged or of another model: its weights have the fingerprint {found}"
        raise DataError(f"{why}, {file.name} has {facts.get('fingerprint')}", weights)
    fill(fusion, tensors, weights)
    return fusion, dict(facts.get("backbone") or {})
