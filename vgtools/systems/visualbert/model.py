"""VisualBERT (Li et al. 2020): one BERT over the words of a caption and the regions of its image.

    f = W f_o + f_s + f_p        section A.2: region feature, segment, position

Two objectives (sections 2 and A.3): `mlm`, the masked words are predicted from the other words and
the regions, which are never masked; `sip`, of two captions the second is, with p = 0.5, one of
another image, and the model has to find out whether it is.

Axes: B batch, T tokens, R regions, A aligned words of a region, H hidden, D region feature, M
masked tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vgtools.io.errors import DataError, Exit
from vgtools.models.attention import JointEncoder
from vgtools.models.encoder import (
    Encoder,
    as_encoder,
    is_visualbert,
    load_masked_lm,
    read_config,
)
from vgtools.models.layers import draw_linear_layers
from vgtools.models.masked_lm import linear_cross_entropy, mlm_hidden
from vgtools.models.precision import autocast
from vgtools.models.references import check_read, load_tokenizer, pick_dtype, read_weights
from vgtools.training.loop import halves, on_device


@dataclass(frozen=True)
class VisualBertConfig:
    """The settings of the parts added to the text encoder; stored in `run.json`."""

    regions_width: int  # D, width of the region features
    # The text encoder sees no region; one new layer joins the two at its end (appendix B, "w/o
    # Early Fusion").
    late_fusion: bool = False
    # How the positions of its words are added to a region: their `sum` (the paper) or their `mean`
    # (the published code).
    alignment: str = "sum"


class VisualBertBatch(NamedTuple):
    """Captions to learn from.

    The losses are sums over this batch, divided by the counts of a whole step.
    """

    ids: Tensor  # (B, T) int64, masked
    types: Tensor  # (B, T) int64, 1 at the second caption
    text_mask: Tensor  # (B, T) bool
    regions: Tensor  # (B, R, D) float32; R is 0 without grounding
    region_mask: Tensor  # (B, R) bool
    masked: Tensor  # (M,) int64, places in the B * T
    tokens: Tensor  # (M,) int64, the ids to predict
    match: Tensor | None  # (B,) int64, 1 where the second caption is one of the image's
    token_count: float
    pair_count: float
    segments: Tensor | None = None  # (B, R) int64, see `VisualBert.embed_regions`

    def to(self, device: torch.device | str) -> VisualBertBatch:
        """Return the batch on a device."""
        return on_device(self, device)


class VisualBert(nn.Module):
    """A masked language model of BERT's shape whose layers also read regions.

    Args:
        dtype: type that the products are computed in (autocast); weights stay float32.

    Source: Li et al. 2020, section A.2; the tables of regions start as copies of the text's, the
        pooler and the head of `sip` are new, as in the published code.
    """

    def __init__(
        self, lm: Any, config: VisualBertConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        if lm.config.model_type != "bert":
            why = f"VisualBERT is made of a BERT, got a {lm.config.model_type} encoder"
            why += "; take for example google-bert/bert-base-uncased or builtin:minilm"
            raise DataError(why, code=Exit.CONFIG)
        self.lm = lm
        self.config = config
        self.dtype = dtype
        self.checkpointing = False
        width = int(lm.config.hidden_size)
        self.project = nn.Linear(config.regions_width, width)
        self.segment = _copy(self._text.token_type_embeddings)
        self.position = _copy(self._text.position_embeddings)
        self.joint = None
        if config.late_fusion:
            layer = type(lm.bert.encoder.layer[0])
            self.joint = layer(lm.config, layer_idx=lm.config.num_hidden_layers)
        self.pooler = nn.Linear(width, width)
        self.match = nn.Linear(width, 2)
        std = float(lm.config.initializer_range)
        for part in (self.project, self.pooler, self.match, self.joint):
            if part is not None:
                draw_linear_layers(part, std)

    @property
    def _text(self) -> Any:
        return self.lm.bert.embeddings

    def embed_regions(
        self, regions: Tensor, segments: Tensor | None = None, alignment: Tensor | None = None
    ) -> Tensor:
        """Return the visual embeddings before the norm that they share with the text.

        Args:
            regions: (B, R, D) features.
            segments: (B, R) segment ids; 1 by default. NLVR2 gives each image its own (appendix
                B.3).
            alignment: (B, R, A) positions of the words of each region, -1 for none; regions without
                words have position 0 of their own table alone.

        Returns:
            (B, R, H).

        Source: section A.2: "set to the sum of the position embeddings corresponding to the aligned
            words".
        Deviation: `VisualBertConfig.alignment` "mean" is the method of the published code.
        """
        places = torch.zeros(regions.shape[:2], dtype=torch.int64, device=regions.device)
        if segments is None:
            segments = places + 1
        embedded: Tensor = self.project(regions) + self.position(places) + self.segment(segments)
        if alignment is None:
            return embedded
        # A table cannot be indexed by -1: padding reads position 0, and the mask makes it count 0.
        known = (alignment >= 0).unsqueeze(-1)  # (B, R, A, 1)
        words: Tensor = (self._text.position_embeddings(alignment.clamp(min=0)) * known).sum(2)
        if self.config.alignment == "mean":
            words = words / known.sum(2).clamp(min=1)
        return embedded + words

    def run(
        self,
        ids: Tensor,
        types: Tensor | None,
        text_mask: Tensor,
        regions: Tensor,
        region_mask: Tensor,
        segments: Tensor | None = None,
        alignment: Tensor | None = None,
        weights: bool = False,
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the states and, if asked for, the attention weights of each layer.

        Args:
            ids: (B, T) tokens.
            types: (B, T) segments of the text; 0 by default.
            text_mask: (B, T) bool.
            regions: (B, R, D) features.
            region_mask: (B, R) bool.
            segments: see `embed_regions`.
            alignment: see `embed_regions`.
            weights: compute the attention weights, by the plain formula instead of the fused
                kernel.

        Yields:
            (B, T + R, H) and (B, H, T + R, T + R) or None; text first. With late fusion all layers
            but the last see the text alone: (B, T, H) and (B, H, T, T).
        """
        text = self._text
        places = torch.arange(ids.shape[1], device=ids.device)
        if types is None:
            types = torch.zeros_like(ids)
        words = text.word_embeddings(ids) + text.token_type_embeddings(types)
        words = words + text.position_embeddings(places)
        visual = self.embed_regions(regions, segments, alignment)
        both = torch.cat([words, visual.to(words.dtype)], 1)  # (B, T + R, H)
        both = text.dropout(text.LayerNorm(both))
        mask = torch.cat([text_mask, region_mask], 1)[:, None, None]  # (B, 1, 1, T + R)
        # With late fusion the text's layers see the text alone.
        count = both.shape[1] if self.joint is None else ids.shape[1]
        states = both[:, :count]
        for layer in self.lm.bert.encoder.layer:
            states, attention = self._layer(layer, states, mask[..., :count], weights)
            yield states, attention
        if self.joint is not None:
            yield self._layer(self.joint, torch.cat([states, both[:, count:]], 1), mask, weights)

    def _layer(
        self, layer: Any, states: Tensor, mask: Tensor, weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.checkpointing and self.training:
            # The layer is computed again in the backward pass, which saves its activations.
            outputs: tuple[Tensor, Tensor | None] = checkpoint(
                run_layer, layer, states, mask, weights, use_reentrant=False
            )
            return outputs
        return run_layer(layer, states, mask, weights)

    def states(self, *args: Any, **more: Any) -> Tensor:
        """Return the states of the last layer, (B, T + R, H); arguments as `run`."""
        last = torch.empty(0)
        for states, _ in self.run(*args, **more):
            last = states
        return last

    def their_config(self, **more: Any) -> Any:
        """Return transformers' configuration of this model, with more settings, say of a head."""
        from transformers import VisualBertConfig as TheirConfig

        return TheirConfig(
            **{name: getattr(self.lm.config, name) for name in _BERT_FIELDS},
            visual_embedding_dim=self.config.regions_width,
            bypass_transformer=self.config.late_fusion,
            **more,
        )

    def pool(self, states: Tensor) -> Tensor:
        """Return the pooled first token, (B, H), as BERT's pooler does."""
        return torch.tanh(self.pooler(states[:, 0]))

    def forward(self, batch: VisualBertBatch) -> dict[str, Tensor]:
        """Return the losses of a batch by name, unweighted.

        `VisualBertBatch` has their divisors. Regions are never masked and never predicted.

        Source: section A.3; `mlm` is objective 1.
        """
        with autocast(batch.ids.device, self.dtype):
            words = (batch.ids, batch.types, batch.text_mask)
            seen = (batch.regions, batch.region_mask, batch.segments)
            states = self.states(*words, *seen)
            text = states[:, : batch.ids.shape[1]].flatten(0, 1)  # (B * T, H)
            rows = mlm_hidden(self.lm)(text[batch.masked])
            decoder = self.lm.get_output_embeddings()
            right = (decoder.weight, decoder.bias, batch.tokens)
            losses = {"mlm": linear_cross_entropy(rows, *right, self.dtype) / batch.token_count}
            if batch.match is not None:
                logits = self.match(self._text.dropout(self.pool(states)))
                losses["sip"] = sip(logits, batch.match) / batch.pair_count
        return losses


def _copy(table: nn.Embedding) -> nn.Embedding:
    """Return a table of its own that starts as a copy of another."""
    copy: nn.Embedding = nn.Embedding.from_pretrained(table.weight.detach().clone(), freeze=False)
    return copy


def run_layer(
    layer: Any, states: Tensor, mask: Tensor, weights: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Run one layer of BERT, in post-norm form, with or without its attention weights.

    Args:
        layer: transformers' BertLayer.
        states: (B, S, H).
        mask: (B, 1, 1, S) bool, False where nothing is attended to.
        weights: return them, (B, heads, S, S) after the softmax.
    """
    attention = layer.attention.self
    query, key, value = (
        part(states).unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)
        for part in (attention.query, attention.key, attention.value)
    )  # (B, heads, S, H / heads)
    dropout = attention.dropout.p if layer.training else 0.0
    shares = None
    # The fused kernel is faster and needs no (S, S) matrix, but does not return the weights.
    if weights:
        scores = (query @ key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        shares = scores.masked_fill(~mask, -math.inf).softmax(-1)
        context = F.dropout(shares, dropout, layer.training) @ value
    else:
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout
        )
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), states)
    return layer.output(layer.intermediate(attended), attended), shares


def sip(logits: Tensor, match: Tensor) -> Tensor:
    """Return the summed cross entropy of sentence-image prediction.

    The question is whether the second caption belongs to the image.

    Args:
        logits: (B, 2), the second for "it does".
        match: (B,) int64, 1 where it does.

    Source: Li et al. 2020, section A.3, objective 2; label 1 is a caption of the image, as in the
        published code.
    """
    return F.cross_entropy(logits.float(), match, reduction="sum")


def halve(batch: VisualBertBatch) -> tuple[VisualBertBatch, ...]:
    """Return the halves of a batch, whose losses add up to its own; one caption cannot be cut."""
    return halves(batch, {"masked": "tokens"})


# Our names -> the names in transformers' VisualBertForPreTraining. The output layer of `mlm` is
# tied to the word embeddings.
_NAMES = {
    "lm.bert.embeddings.": "visual_bert.embeddings.",
    "lm.bert.encoder.": "visual_bert.encoder.",
    "lm.cls.predictions.": "cls.predictions.",
    "project.": "visual_bert.embeddings.visual_projection.",
    "segment.": "visual_bert.embeddings.visual_token_type_embeddings.",
    "position.": "visual_bert.embeddings.visual_position_embeddings.",
    "joint.": "visual_bert.additional_layer.",
    "pooler.": "visual_bert.pooler.dense.",
    "match.": "cls.seq_relationship.",
}


_BERT_FIELDS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings",
    "type_vocab_size", "initializer_range", "layer_norm_eps", "pad_token_id",
)  # fmt: skip


def named_for_transformers(name: str) -> str:
    """Return the name of a weight in transformers."""
    prefix = next(p for p in _NAMES if name.startswith(p))
    return _NAMES[prefix] + name.removeprefix(prefix)


def to_transformers(model: VisualBert) -> Any:
    """Return the model as transformers' VisualBertForPreTraining.

    Deviation: transformers' own forward pass cannot run a model without early fusion
        (`bypass_transformer`); ours can.
    """
    from transformers import VisualBertForPreTraining

    theirs = VisualBertForPreTraining(model.their_config()).eval()
    tied = "cls.predictions.decoder."
    state = model.state_dict().items()
    tensors = {named_for_transformers(name): tensor.detach().cpu() for name, tensor in state}
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(tied)}
    # Transformers ties the decoder to the word embeddings itself, so its weights may be missing.
    missing, unexpected = theirs.load_state_dict(kept, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith(tied) for name in missing), missing
    return theirs


def _from_checkpoint(ref: str, alignment: str) -> tuple[VisualBert, Any]:
    """Load a checkpoint of transformers' VisualBERT, with or without heads, and its tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    folder, tensors = read_weights(ref)
    facts = read_config(ref)
    if facts.get("model_type") != "visual_bert":
        why = f"expected a VisualBERT, got a {facts.get('model_type')} checkpoint"
        raise DataError(why, ref, code=Exit.CONFIG)
    text = BertConfig(**{name: facts[name] for name in _BERT_FIELDS if name in facts})
    width = int(facts.get("visual_embedding_dim", 512))
    config = VisualBertConfig(width, bool(facts.get("bypass_transformer")), alignment)
    model = VisualBert(BertForMaskedLM(text), config)
    # A checkpoint of the model without heads lacks the prefix of the models with heads.
    bare = not any(name.startswith("visual_bert.") for name in tensors)
    known = {
        f"visual_bert.{name}" if bare and not name.startswith("cls.") else name: tensor
        for name, tensor in tensors.items()
    }
    new = ("cls.", "visual_bert.pooler.")  # weights that a checkpoint without heads lacks are new
    names = {
        ours: named_for_transformers(ours)
        for ours in model.state_dict()
        if not ours.startswith("lm.cls.predictions.decoder.")
    }
    state = {ours: known[theirs] for ours, theirs in names.items() if theirs in known}
    missing = [n for n in names.values() if n not in known and not n.startswith(new)]
    shapes = {ours: tensor.shape for ours, tensor in model.state_dict().items()}
    wrong = [names[ours] for ours, tensor in state.items() if tensor.shape != shapes[ours]]
    check_read(known.keys() - names.values(), names.values(), folder)
    if missing:
        why = f"lacks {len(missing)} weights of a VisualBERT, the first {missing[0]}"
        raise DataError(why, folder)
    if wrong:
        shape = tuple(known[wrong[0]].shape)
        raise DataError(f"{wrong[0]} has the shape {shape}, unlike its config.json", folder)
    model.load_state_dict(state, strict=False)
    return model, load_tokenizer(ref)


def load_visualbert(
    ref: str, config: VisualBertConfig, *, dtype: torch.dtype = torch.float32
) -> tuple[VisualBert, Encoder]:
    """Load a VisualBERT to train it further, or make one of a BERT; on the CPU, in float32.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`, of a BERT or of transformers'
            VisualBERT.
        config: settings of the added parts; a VisualBERT has to have the same.

    Returns:
        The model, and the encoder that it is made of (for its tokenizer, special tokens and
        fingerprint).

    Raises:
        DataError: no BERT, damaged, pickled, or a VisualBERT of another width or fusion.
    """
    if not is_visualbert(ref):
        text = load_masked_lm(ref)
        return make_visualbert(text, config, dtype), text
    model, tokenizer = _from_checkpoint(ref, config.alignment)
    for name, theirs in vars(model.config).items():
        if theirs != getattr(config, name):
            why = f"is a VisualBERT with {name} {theirs}, {getattr(config, name)} was asked for"
            why += " (region features of another backbone, or another flag)"
            raise DataError(why, ref, code=Exit.CONFIG)
    model.dtype = dtype
    return model, as_encoder(model.lm, tokenizer, ref)


def make_visualbert(
    text: Encoder, config: VisualBertConfig, dtype: torch.dtype = torch.float32
) -> VisualBert:
    """Return a VisualBERT made of a BERT; the added parts are drawn from torch's random state."""
    return VisualBert(text.model, config, dtype)


@dataclass(frozen=True)
class VisualBertAttention(JointEncoder):
    """A VisualBERT whose attention can be read, as `vg probe-attention` needs a joint model."""

    model: VisualBert

    @property
    def layers(self) -> int:
        """L; without early fusion the joint layer is the last."""
        return super().layers + (self.model.joint is not None)

    @property
    def region_width(self) -> int:
        """D, channels of a region feature."""
        return self.model.config.regions_width

    @torch.inference_mode()
    def attentions(
        self, ids: Tensor, text_mask: Tensor, regions: Tensor, region_mask: Tensor
    ) -> Iterator[Tensor]:
        """Yield the weights of each layer, (B, H, T + R, T + R), text first.

        It is 0 between text and regions where a layer sees no region.
        """
        size = ids.shape[1] + regions.shape[1]
        like = self.model.project.weight
        text = (ids.to(like.device), None, text_mask.to(like.device))
        visual = (regions.to(like), region_mask.to(like.device))
        for _, shares in self.model.run(*text, *visual, weights=True):
            assert shares is not None
            rest = size - shares.shape[-1]
            yield F.pad(shares, (0, rest, 0, rest))


def open_attention(
    ref: str, *, device: torch.device | str = "cpu", dtype: str = "float32"
) -> VisualBertAttention:
    """Open a VisualBERT to read its attention; frozen, in eval mode.

    Raises:
        DataError: it is not a VisualBERT, or damaged.
    """
    number = pick_dtype(dtype)
    model, tokenizer = _from_checkpoint(ref, "sum")
    encoder = as_encoder(model.lm, tokenizer, ref)
    return VisualBertAttention(encoder, model.eval().requires_grad_(False).to(device, number))
