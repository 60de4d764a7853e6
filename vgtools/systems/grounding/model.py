"""The grounded model of Sileo 2021: a frozen text encoder under a cross-modal encoder.

    t = f(text)                     section 3.3: the text encoder, frozen in pretraining
    v = LN(W r + b + e_rank)        section 3.3: image features, with the rank of their image
    g([t; v])                       section 2.1: the cross-modal encoder

A text without images has one slot with the placeholder h instead of v (section 2.3). Two objectives
(section 2.2): `jmlm`, masked words from the other words and the images; `jmrm`, masked image
features from the text and the other features.

Axes: B texts, T tokens, S slots (K images of N regions each, or 1 for the placeholder), H hidden, D
image feature, M masked tokens, R masked regions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vgtools.models.encoder import Encoder, load_masked_lm
from vgtools.models.layers import LayerStack, draw_linear_layers
from vgtools.models.masked_lm import linear_cross_entropy, mlm_hidden
from vgtools.models.precision import autocast
from vgtools.models.references import fill
from vgtools.models.runs import Run, as_config, open_run, read_run
from vgtools.training.loop import halves, on_device

KIND = "grounding"
_STD = 0.02  # standard deviation of new weights: placeholder, ranks, projection, regression


@dataclass(frozen=True)
class GroundingConfig:
    """The shape of a grounded model; stored in `run.json`.

    Attributes:
        strategy: none, i2t, t2i, both, scene, object or keyword.
        images: K, images per text; 0 without.
        regions: N, slots per image; 0 without.
        width: D, of an image feature; 0 without.
        layers: layers of the cross-modal encoder; the last layers of the text encoder are copied.
    """

    strategy: str
    images: int
    regions: int
    width: int
    layers: int

    @property
    def slots(self) -> int:
        """K · N, slots for images."""
        return self.images * self.regions


class GroundedBatch(NamedTuple):
    """Texts to learn from.

    The losses are sums over this batch, divided by the counts of a whole step.
    """

    ids: Tensor  # (B, T) int64, masked
    text_mask: Tensor  # (B, T) bool
    slots: Tensor  # (B, S, D) float32, masked; S is 0 where no text has an image
    slot_mask: Tensor  # (B, S) bool; a text without any slot gets the placeholder
    masked: Tensor  # (M,) int64, places in the B * T
    tokens: Tensor  # (M,) int64, the ids to predict
    regions: Tensor  # (R, 2) int64, text and slot of each masked region
    targets: Tensor  # (R, D) float32, the features to predict
    token_count: float
    region_count: float

    def to(self, device: torch.device | str) -> GroundedBatch:
        """Return the batch on a device."""
        return on_device(self, device)


def halve(batch: GroundedBatch) -> tuple[GroundedBatch, ...]:
    """Return the halves of a batch, whose losses add up to its own; one text cannot be cut."""
    return halves(batch, {"masked": "tokens", "regions": "targets"})


class CrossModal(nn.Module):
    """The cross-modal encoder g with the projection of images, their ranks and the placeholder.

    Args:
        text: the text encoder f; its layers are copied.
        config: the shape.

    Source: Sileo 2021, sections 2.1, 2.3 and 3.3.
    Deviation: a LayerNorm follows the projection, as in LXMERT, whose code the paper builds on; the
        paper says "a linear projection".
    """

    def __init__(self, text: Any, config: GroundingConfig) -> None:
        super().__init__()
        width = int(text.config.hidden_size)
        self.config = config
        self.layers = LayerStack(text, config.layers)
        self.placeholder = nn.Parameter(torch.empty(width).normal_(0, _STD))
        # A model that never sees images has no weights for them, which no loss would reach.
        if config.images:
            self.project = nn.Linear(config.width, width)
            self.norm = nn.LayerNorm(width, float(text.config.layer_norm_eps))
            self.ranks = nn.Parameter(torch.empty(config.images, width).normal_(0, _STD))
            draw_linear_layers(self.project, _STD)

    def embed(self, slots: Tensor, slot_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the layers for the images, and their mask.

        Args:
            slots: (B, S, D) features, the N regions of the best image first; S may be 0.
            slot_mask: (B, S) bool.

        Returns:
            (B, max(S, 1), H) and (B, max(S, 1)) bool: a text without a slot has the placeholder in
            its first.
        """
        if not slots.shape[1]:
            alone = self.placeholder.expand(len(slots), 1, -1)
            return alone, slot_mask.new_ones(len(slots), 1)
        # All regions of an image share its rank.
        ranks = torch.arange(slots.shape[1], device=slots.device) // self.config.regions
        visual = self.norm(self.project(slots) + self.ranks[ranks])
        # The first slot of a text without images is the placeholder; the rest stay masked.
        none = ~slot_mask.any(1, keepdim=True) & (
            torch.arange(slots.shape[1], device=slots.device) == 0
        )
        visual = torch.where(none[..., None], self.placeholder.to(visual.dtype), visual)
        return visual, slot_mask | none

    def forward(self, states: Tensor, mask: Tensor, slots: Tensor, slot_mask: Tensor) -> Tensor:
        """Return the states of text and slots, (B, T + max(S, 1), H).

        Args:
            states: (B, T, H) states of the text encoder.
            mask: (B, T) bool.
            slots: (B, S, D); see `embed`.
            slot_mask: (B, S) bool.
        """
        visual, visible = self.embed(slots, slot_mask)
        both = torch.cat([states, visual.to(states.dtype)], 1)
        joint: Tensor = self.layers(both, torch.cat([mask, visible], 1))
        return joint

    def nothing(self) -> Tensor:
        """Return a 0 that reaches the weights that only texts with, or without, images use.

        Every process must have the same gradients, whatever texts it got.
        """
        # The layers are left out: every text goes through them.
        own = [w.sum() for name, w in self.named_parameters() if not name.startswith("layers.")]
        return 0 * torch.stack(own).sum()


class GroundedEncoder(nn.Module):
    """A text encoder under a cross-modal encoder, both trainable, for fine-tuning.

    Args:
        text: transformers' encoder, without pooler.
        cross: the cross-modal encoder of a pretrained run.

    Source: Sileo 2021, section 3.3: the text encoder is "fine-tuned during downstream task
        training".
    """

    def __init__(self, text: Any, cross: CrossModal) -> None:
        super().__init__()
        self.text = text.requires_grad_(True)
        self.cross = cross

    @property
    def config(self) -> Any:
        """The text encoder's configuration."""
        return self.text.config

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        slots: Tensor | None = None,
        slot_mask: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Return the states of the tokens.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool, False at padding.
            slots: (B, S, D) features of images; None gives the placeholder.
            slot_mask: (B, S) bool; a text without any slot gets the placeholder.
            segments: (B, T) 1 in the second text of a pair; None for 0 throughout.

        Returns:
            (B, T, H).
        """
        given = {"input_ids": ids, "attention_mask": mask.long()}
        if segments is not None:
            given["token_type_ids"] = segments
        states = self.text(**given).last_hidden_state
        # Also a text that is shown no image has a placeholder, as in pretraining.
        if slots is None or slot_mask is None:
            slots, slot_mask = no_slots(len(ids), ids.device)
        joint: Tensor = self.cross(states, mask, slots, slot_mask)
        return joint[:, : ids.shape[1]]


def no_slots(count: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Return the slots of texts without images, (B, 0, 0), and their mask, (B, 0)."""
    return torch.zeros(count, 0, 0, device=device), torch.zeros(
        count, 0, dtype=torch.bool, device=device
    )


class MaskedLMHead(nn.Module):
    """A masked language model's head with its own copy of the word table.

    The text encoder's table is frozen and this copy learns, so the two cannot be tied.
    """

    def __init__(self, lm: Any) -> None:
        super().__init__()
        decoder = lm.get_output_embeddings()
        self.hidden = copy.deepcopy(mlm_hidden(lm)).requires_grad_(True)
        self.table = nn.Parameter(decoder.weight.detach().clone())
        self.bias = nn.Parameter(decoder.bias.detach().clone())


class GroundedMaskedLM(nn.Module):
    """A grounded masked language model, as `vg pretrain grounding` trains it.

    Args:
        lm: transformers' masked language model; its encoder f is used frozen, always in evaluation
            mode, and is outside the module tree: `train()` does not reach it, checkpoints do not
            hold it, but it moves with the model.
        config: the shape.
        dtype: type that the products are computed in (autocast); weights stay float32.

    Source: Sileo 2021, sections 2.1, 2.2 and 3.3.
    """

    def __init__(
        self, lm: Any, config: GroundingConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        text = lm.base_model
        # In a tuple torch does not register the module: checkpoints leave it out, and `train()`
        # cannot switch its dropout on.
        self._frozen = (text.eval().requires_grad_(False),)
        self.cross = CrossModal(text, config)
        self.jmlm = MaskedLMHead(lm)
        if config.strategy in ("t2i", "both"):
            self.jmrm = nn.Linear(int(text.config.hidden_size), config.width)
            draw_linear_layers(self.jmrm, _STD)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> GroundedMaskedLM:
        # torch moves only registered modules; the frozen encoder has to be on the same device.
        self.text._apply(fn)
        super()._apply(fn, recurse)
        return self

    @property
    def text(self) -> Any:
        """The frozen text encoder."""
        return self._frozen[0]

    @torch.no_grad()
    def read(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Return the frozen encoder's states, (B, T, H)."""
        states: Tensor = self.text(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return states

    @torch.no_grad()
    def calibrate(self, ids: Tensor, mask: Tensor) -> None:
        """Give images the scale of the words: LN starts with the RMS of f's states of some texts.

        Args:
            ids: (B, T) int64.
            mask: (B, T) bool.

        Source: Sileo 2021, section 3.3.
        Deviation: the paper does not say how the projection starts; g was pretrained on states of
            f's size, and features that start much larger or smaller would drown them or be lost.
        """
        if self.config.images:
            states = self.read(ids, mask)[mask]
            self.cross.norm.weight.fill_(float(states.square().mean().sqrt()))

    def states(self, batch: GroundedBatch) -> Tensor:
        """Return the states of text and slots, (B, T + max(S, 1), H)."""
        states: Tensor = self.cross(
            self.read(batch.ids, batch.text_mask), batch.text_mask, batch.slots, batch.slot_mask
        )
        return states

    def hidden(self, batch: GroundedBatch) -> Tensor:
        """Return the inputs of the word decoder at the masked places, (M, H)."""
        text = self.states(batch)[:, : batch.ids.shape[1]].flatten(0, 1)  # (B * T, H)
        rows: Tensor = self.jmlm.hidden(text[batch.masked])
        return rows

    def forward(self, batch: GroundedBatch) -> dict[str, Tensor]:
        """Return the losses of a batch by name, unweighted.

        `GroundedBatch` has their divisors.
        """
        with autocast(batch.ids.device, self.dtype):
            joint = self.states(batch)
            length = batch.ids.shape[1]
            rows = self.jmlm.hidden(joint[:, :length].flatten(0, 1)[batch.masked])
            total = jmlm(rows, self.jmlm.table, self.jmlm.bias, batch.tokens, self.dtype)
            # `nothing` is 0, and gives each process the gradients that all have to exchange.
            losses = {"jmlm": total / batch.token_count + self.cross.nothing()}
            if self.config.strategy in ("t2i", "both"):
                chosen = joint[batch.regions[:, 0], length + batch.regions[:, 1]]
                losses["jmrm"] = jmrm(self.jmrm(chosen), batch.targets) / batch.region_count
        return losses


def jmlm(
    rows: Tensor, table: Tensor, bias: Tensor, tokens: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the summed cross entropy of the masked words.

    Args:
        rows: (M, H) outputs of the head's hidden layer at the masked places.
        table: (V, H) weights of the decoder.
        bias: (V,).
        tokens: (M,) int64, the masked words.
        dtype: type that the products are computed in.

    Source: Sileo 2021, section 2.2, equation 1.
    """
    return linear_cross_entropy(rows, table, bias, tokens, dtype)


def jmrm(predicted: Tensor, targets: Tensor) -> Tensor:
    """Return the summed distance of the predicted features of masked regions from the true ones.

    Args:
        predicted: (R, D).
        targets: (R, D) features, unmasked.

    Source: Sileo 2021, section 2.2, equation 2, with p = 1 (section 3.3).
    Deviation: the L1 norm is divided by D, so that it compares between backbones; times D it is the
        paper's.
    """
    return (predicted.float() - targets).abs().mean(1).sum()


# ------------------------------------------------------------------------------------ finished runs


@dataclass(frozen=True)
class GroundedRun:
    """A finished run of `vg pretrain grounding`.

    Attributes:
        run: its folder and `run.json`.
        config: the shape of the model.
        text: the text encoder, as a masked language model, with its tokenizer.
        model: the whole, on the CPU, in evaluation mode.
    """

    run: Run
    config: GroundingConfig
    text: Encoder
    model: GroundedMaskedLM

    def encoder(self) -> GroundedEncoder:
        """Return the trainable encoder for fine-tuning; it shares its weights with `model`."""
        return GroundedEncoder(self.model.text, self.model.cross)


def is_grounded(ref: str) -> bool:
    """Return whether a reference is a run of `vg pretrain grounding`."""
    return Path(ref, "run.json").exists() and read_run(ref).get("kind") == KIND


def open_grounding(path: str) -> GroundedRun:
    """Open a finished run of kind `grounding`.

    Raises:
        DataError: not there or not finished (66), of another kind, or damaged (65).
    """
    run = open_run(path, KIND)
    config = as_config(GroundingConfig, run.info.get(KIND), KIND, run.path / "run.json")
    text = load_masked_lm(str(run.path))
    model = GroundedMaskedLM(text.model, config)
    fill(model, run.weights, run.path / f"{KIND}.safetensors")
    return GroundedRun(run, config, text, model.eval())
