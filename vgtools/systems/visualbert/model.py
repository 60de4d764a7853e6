"""VisualBERT (Li et al. 2020): one BERT over the words of a caption and the regions of its image.

    f = W f_o + f_s + f_p                                     section A.2: region feature, segment, position

Two objectives (sections 2 and A.3): `mlm`, the masked words are predicted from the other words and the regions, which are never
masked; `sip`, of two captions the second is, with p = 0.5, one of another image, and the model says whether it is.

Axes: B batch, T tokens, R regions, A aligned words of a region, H hidden, D region feature, M masked tokens.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from vgtools.io import DataError, Exit
from vgtools.models.attention import TextEncoderAttention
from vgtools.models.encoder import Encoder, as_encoder, load_masked_lm, read_config
from vgtools.models.masked_lm import linear_cross_entropy, mlm_hidden
from vgtools.models.references import load_tokenizer, pick_dtype, read_weights
from vgtools.training.loop import halves

LOSSES = ("mlm", "sip")


ALIGNMENTS = ("sum", "mean")


@dataclass(frozen=True)
class VisualBertConfig:
    """What is added to the text encoder; stands in `run.json`.

    Attributes:
        regions_width: D, width of the region features.
        late_fusion: the text encoder sees no region; one new layer joins the two at its end (appendix B, "w/o Early Fusion").
        alignment: what a region gets of the positions of its words: their `sum` (the paper) or `mean` (the published code).
    """

    regions_width: int
    late_fusion: bool = False
    alignment: str = "sum"


class Batch(NamedTuple):
    """Captions to learn from. The losses are sums over what is here, divided by the counts, which are those of a whole step."""

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

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch on a device."""
        moved: dict[str, Any] = {
            k: v.to(device, non_blocking=True)
            for k, v in self._asdict().items()
            if isinstance(v, Tensor)
        }
        return self._replace(**moved)


class VisualBert(nn.Module):
    """A masked language model of BERT's shape whose layers also see regions.

    Args:
        lm: transformers' BertForMaskedLM.
        config: what is added.
        dtype: numbers that the products are computed with (autocast); weights stay float32.

    Source: Li et al. 2020, section A.2; the tables of regions start as those of the text, the pooler and the head of `sip` are
        new, as in the published code.
    """

    def __init__(
        self, lm: Any, config: VisualBertConfig, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        if lm.config.model_type != "bert":
            raise DataError(
                f"VisualBERT is made of a BERT, found a {lm.config.model_type} encoder; take for example "
                "google-bert/bert-base-uncased or builtin:minilm",
                code=Exit.CONFIG,
            )
        self.lm, self.config, self.dtype = lm, config, dtype
        self.checkpointing = False
        width = int(lm.config.hidden_size)
        self.project = nn.Linear(config.regions_width, width)
        self.segment = nn.Embedding.from_pretrained(
            self._text.token_type_embeddings.weight.detach().clone(), freeze=False
        )
        self.position = nn.Embedding.from_pretrained(
            self._text.position_embeddings.weight.detach().clone(), freeze=False
        )
        layer = type(lm.bert.encoder.layer[0])
        self.joint = (
            layer(lm.config, layer_idx=lm.config.num_hidden_layers) if config.late_fusion else None
        )
        self.pooler, self.match = nn.Linear(width, width), nn.Linear(width, 2)
        for part in (
            self.project,
            self.pooler,
            self.match,
            *(self.joint.modules() if self.joint is not None else ()),
        ):
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=float(lm.config.initializer_range))
                nn.init.zeros_(part.bias)

    @property
    def _text(self) -> Any:
        return self.lm.bert.embeddings

    def embed_regions(
        self, regions: Tensor, segments: Tensor | None = None, alignment: Tensor | None = None
    ) -> Tensor:
        """Return the visual embeddings before the norm that they share with the text.

        Args:
            regions: (B, R, D) features.
            segments: (B, R) segment ids; 1 by default. NLVR2 gives each image its own (appendix B.3).
            alignment: (B, R, A) positions of the words of each region, -1 for none; regions without words have position 0 of
                their own table alone.

        Returns:
            (B, R, H).

        Source: section A.2: "set to the sum of the position embeddings corresponding to the aligned words".
        Deviation: `VisualBertConfig.alignment` "mean" is what the published code does.
        """
        places = torch.zeros(regions.shape[:2], dtype=torch.int64, device=regions.device)
        found = (
            self.project(regions)
            + self.position(places)
            + self.segment(places + 1 if segments is None else segments)
        )
        if alignment is None:
            return found  # type: ignore[no-any-return]
        known = (alignment >= 0).unsqueeze(-1)  # (B, R, A, 1)
        words = (self._text.position_embeddings(alignment.clamp(min=0)) * known).sum(2)
        if self.config.alignment == "mean":
            words = words / known.sum(2).clamp(min=1)
        return found + words  # type: ignore[no-any-return]

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
        """Yield the states and, where wanted, the attention weights of each layer.

        Args:
            ids: (B, T) tokens.
            types: (B, T) segments of the text; 0 by default.
            text_mask: (B, T) bool.
            regions: (B, R, D) features.
            region_mask: (B, R) bool.
            segments: see `embed_regions`.
            alignment: see `embed_regions`.
            weights: compute the attention weights, by the plain formula in place of the fused one.

        Yields:
            (B, T + R, H) and (B, H, T + R, T + R) or None; text first. With late fusion all layers but the last are of the
            text alone: (B, T, H) and (B, H, T, T).
        """
        text = self._text
        places = torch.arange(ids.shape[1], device=ids.device)
        words = text.word_embeddings(ids) + text.token_type_embeddings(
            torch.zeros_like(ids) if types is None else types
        )
        words = words + text.position_embeddings(places)
        seen = self.embed_regions(regions, segments, alignment)
        both = text.dropout(
            text.LayerNorm(torch.cat([words, seen.to(words.dtype)], 1))
        )  # (B, T + R, H)
        mask = torch.cat([text_mask, region_mask], 1)[:, None, None]  # (B, 1, 1, T + R)
        count = ids.shape[1]
        states, here = (both, mask) if self.joint is None else (both[:, :count], mask[..., :count])
        for layer in self.lm.bert.encoder.layer:
            states, found = self._layer(layer, states, here, weights)
            yield states, found
        if self.joint is not None:
            yield self._layer(self.joint, torch.cat([states, both[:, count:]], 1), mask, weights)

    def _layer(
        self, layer: Any, states: Tensor, mask: Tensor, weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.checkpointing and self.training:
            found: tuple[Tensor, Tensor | None] = checkpoint(
                run_layer, layer, states, mask, weights, use_reentrant=False
            )
            return found
        return run_layer(layer, states, mask, weights)

    def states(self, *args: Any, **more: Any) -> Tensor:
        """Return the states of the last layer, (B, T + R, H); arguments as `run`."""
        last = torch.empty(0)
        for found in self.run(*args, **more):
            last = found[0]
        return last

    def their_config(self, **more: Any) -> Any:
        """Return transformers' configuration of this model, with more settings, say of a head."""
        from transformers import VisualBertConfig as TheirConfig

        own = {name: getattr(self.lm.config, name) for name in _BERT_FIELDS}
        own |= {
            "visual_embedding_dim": self.config.regions_width,
            "bypass_transformer": self.config.late_fusion,
        }
        return TheirConfig(**own, **more)

    def pool(self, states: Tensor) -> Tensor:
        """Return (B, H) of the first token, as BERT's pooler does."""
        return torch.tanh(self.pooler(states[:, 0]))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch by name, unweighted; see `Batch` for what they are divided by."""
        device = batch.ids.device.type
        with (
            torch.autocast(device, self.dtype)
            if self.dtype != torch.float32
            else contextlib.nullcontext()
        ):
            states = self.states(
                batch.ids, batch.types, batch.text_mask, batch.regions, batch.region_mask
            )
            text = states[:, : batch.ids.shape[1]].flatten(0, 1)  # (B * T, H)
            rows = mlm_hidden(self.lm)(text[batch.masked])
            decoder = self.lm.get_output_embeddings()
            losses = {
                "mlm": mlm(rows, decoder.weight, decoder.bias, batch.tokens, self.dtype)
                / batch.token_count
            }
            if batch.match is not None:
                losses["sip"] = (
                    sip(self.match(self.lm.bert.embeddings.dropout(self.pool(states))), batch.match)
                    / batch.pair_count
                )
        return losses


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
    own = layer.attention.self
    query, key, value = (
        part(states).unflatten(-1, (own.num_attention_heads, -1)).transpose(1, 2)
        for part in (own.query, own.key, own.value)
    )  # (B, heads, S, H / heads)
    dropout = own.dropout.p if layer.training else 0.0
    found = None
    if weights:
        scores = (query @ key.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        found = scores.masked_fill(~mask, -math.inf).softmax(-1)
        context = F.dropout(found, dropout, layer.training) @ value
    else:
        context = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout
        )
    attended = layer.attention.output(context.transpose(1, 2).flatten(2), states)
    return layer.output(layer.intermediate(attended), attended), found


def mlm(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the summed cross entropy of the masked words; regions are never masked and never predicted.

    Args:
        rows: (M, H) outputs of the head's hidden layer at the masked places.
        weight: (V, H) of the decoder.
        bias: (V,).
        tokens: (M,) int64 words that stood there.
        dtype: numbers that the products are computed with.

    Source: Li et al. 2020, section A.3, objective 1.
    """
    return linear_cross_entropy(rows, weight, bias, tokens, dtype)


def sip(logits: Tensor, match: Tensor) -> Tensor:
    """Return the summed cross entropy of sentence-image prediction: does the second caption belong to the image?

    Args:
        logits: (B, 2), the second for "it does".
        match: (B,) int64, 1 where it does.

    Source: Li et al. 2020, section A.3, objective 2; label 1 is a caption of the image, as in the published code.
    """
    return F.cross_entropy(logits.float(), match, reduction="sum")


def halve(batch: Batch) -> tuple[Batch, ...]:
    """Return the two halves of a batch, whose losses add up to its own; a single caption cannot be cut."""
    return halves(batch, {"masked": "tokens"})


# Our names -> those of transformers' VisualBertForPreTraining. The output layer of `mlm` is tied to the word embeddings.
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
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size", "initializer_range",
    "layer_norm_eps", "pad_token_id",
)  # fmt: skip


def named_for_transformers(name: str) -> str:
    """Return how transformers calls a weight."""
    prefix = next(p for p in _NAMES if name.startswith(p))
    return _NAMES[prefix] + name.removeprefix(prefix)


def to_transformers(model: VisualBert) -> Any:
    """Return the model as transformers' VisualBertForPreTraining, which plain transformers saves and opens.

    Deviation: transformers' own forward pass cannot run a model without early fusion (`bypass_transformer`); ours can.
    """
    from transformers import VisualBertForPreTraining

    theirs = VisualBertForPreTraining(model.their_config()).eval()
    tensors = {
        named_for_transformers(name): tensor.detach().cpu()
        for name, tensor in model.state_dict().items()
    }
    tensors = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith("cls.predictions.decoder.")
    }
    missing, unexpected = theirs.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("cls.predictions.decoder.") for name in missing), missing
    return theirs


def _from_checkpoint(ref: str, alignment: str, offline: bool) -> tuple[VisualBert, Any]:
    """Load a checkpoint of transformers' VisualBERT, with or without its heads, and its tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    folder, tensors = read_weights(ref, offline=offline)
    facts = read_config(ref, offline=offline)
    if facts.get("model_type") != "visual_bert":
        raise DataError(
            f"is a {facts.get('model_type')} checkpoint; a VisualBERT was wanted",
            ref,
            code=Exit.CONFIG,
        )
    given = BertConfig(**{name: facts[name] for name in _BERT_FIELDS if name in facts})
    config = VisualBertConfig(
        int(facts.get("visual_embedding_dim", 512)),
        bool(facts.get("bypass_transformer")),
        alignment,
    )
    model = VisualBert(BertForMaskedLM(given), config)
    bare = not any(name.startswith("visual_bert.") for name in tensors)
    known = {
        f"visual_bert.{name}" if bare and not name.startswith("cls.") else name: t
        for name, t in tensors.items()
    }
    wanted = {
        name: named_for_transformers(name)
        for name in model.state_dict()
        if not name.startswith("lm.cls.predictions.decoder.")
    }
    new = ("cls.", "visual_bert.pooler.")  # what a checkpoint without heads lacks is new
    missing = [
        theirs for theirs in wanted.values() if theirs not in known and not theirs.startswith(new)
    ]
    if missing:
        raise DataError(
            f"lacks {len(missing)} weights of a VisualBERT, the first {missing[0]}", folder
        )
    found = {ours: known[theirs] for ours, theirs in wanted.items() if theirs in known}
    wrong = [n for n, t in found.items() if t.shape != model.state_dict()[n].shape]
    if wrong:
        raise DataError(
            f"{named_for_transformers(wrong[0])} has the shape {tuple(found[wrong[0]].shape)}, its config.json says another",
            folder,
        )
    model.load_state_dict(found, strict=False)
    return model, load_tokenizer(ref, offline=offline)


def load_visualbert(
    ref: str, config: VisualBertConfig, *, dtype: torch.dtype = torch.float32, offline: bool = False
) -> tuple[VisualBert, Encoder]:
    """Load a VisualBERT to train it further, or make one of a BERT; on the CPU, in float32.

    Args:
        ref: hub name, directory, vg run or `builtin:NAME`, of a BERT or of transformers' VisualBERT.
        config: of what is added; a VisualBERT has to have the same.
        dtype: of the products.
        offline: never connect.

    Returns:
        The model, and the encoder that it is made of (for its tokenizer, special tokens and fingerprint).

    Raises:
        DataError: no BERT, damaged, pickled, or a VisualBERT of another width or fusion.
    """
    if not is_visualbert(ref, offline=offline):
        text = load_masked_lm(ref, offline=offline)
        return make_visualbert(text, config, dtype), text
    model, tokenizer = _from_checkpoint(ref, config.alignment, offline)
    for name, theirs in vars(model.config).items():
        if theirs != getattr(config, name):
            raise DataError(
                f"is a VisualBERT with {name} {theirs}, {getattr(config, name)} was asked for (region features of another "
                "backbone, or another flag)",
                ref,
                code=Exit.CONFIG,
            )
    model.dtype = dtype
    return model, as_encoder(model.lm, tokenizer, ref)


def make_visualbert(
    text: Encoder, config: VisualBertConfig, dtype: torch.dtype = torch.float32
) -> VisualBert:
    """Return a VisualBERT made of a BERT; what is added is drawn from torch's random state."""
    return VisualBert(text.model, config, dtype)


def is_visualbert(ref: str, *, offline: bool = False) -> bool:
    """Say whether a reference is a checkpoint of transformers' VisualBERT."""
    return bool(read_config(ref, offline=offline).get("model_type") == "visual_bert")


@dataclass(frozen=True)
class VisualBertAttention(TextEncoderAttention):
    """A VisualBERT whose attention can be read: what `vg probe-attention` asks of a joint model."""

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
        """Yield (B, H, T + R, T + R) of each layer, text first; 0 between text and regions where a layer sees no region."""
        size = ids.shape[1] + regions.shape[1]
        own = self.model.project.weight
        words, text_here, seen, seen_here = (
            x.to(own.device) for x in (ids, text_mask, regions, region_mask)
        )
        for _, found in self.model.run(
            words, None, text_here, seen.to(own.dtype), seen_here, weights=True
        ):
            assert found is not None
            rest = size - found.shape[-1]
            yield F.pad(found, (0, rest, 0, rest))


def open_attention(
    ref: str, *, device: torch.device | str = "cpu", dtype: str = "float32", offline: bool = False
) -> VisualBertAttention:
    """Open a VisualBERT (a run, or any checkpoint of transformers) to read its attention; frozen, in eval mode.

    Args:
        ref: hub name, directory or vg run.
        device: where it goes.
        dtype: as `--dtype`; weights have it, too.
        offline: never connect.

    Raises:
        DataError: it is none, or damaged.
    """
    kind = pick_dtype(dtype)
    model, tokenizer = _from_checkpoint(ref, "sum", offline)
    return VisualBertAttention(
        as_encoder(model.lm, tokenizer, ref), model.eval().requires_grad_(False).to(device, kind)
    )
