"""Layers that two or more systems use: the padding-free text encoder, heads and losses of masked language models.

A text encoder spends most of its time on padding when sentences of different lengths share a batch. `PackedEncoder` lays the
tokens of many sentences behind one another, (T, H), so that linear layers, norms and activations see no padding, and runs
attention once for each run of sentences of equal length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vgtools.checkpoint import Encoder, special_ids
from vgtools.errors import is_out_of_memory
from vgtools.io import DataError, Exit

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Array = np.ndarray[Any, Any]

# Matrix products get a multiple of so many rows. BLAS libraries take other kernels, and other roundings, for a few rows
# (MKL: below 8); with whole tiles a token's numbers do not depend on how many tokens share its pack. MKL on Intel processors
# needs MKL_CBWR=AUTO,STRICT besides: with AVX2, or with several threads, its rounding depends on the number of tiles, too.
TILE = 64
_BERT_SHAPED = ("bert", "roberta", "xlm-roberta", "camembert")


class Hidden(NamedTuple):
    """What the encoder gives for one pack of segments."""

    segments: Array  # (S,) int64: which segments these are
    tokens: Tensor  # (T, layers * H), the segments' tokens behind one another, special tokens left out
    first: Tensor  # (S, layers * H), the special token before each segment, [CLS]


class PackedEncoder:
    """Run a frozen text encoder over token ids without padding, and return its last layers concatenated.

    BERT and RoBERTa shapes are computed here from the loaded model's weights; any other architecture runs its own forward
    on batches of equal length, which need no padding either.

    Args:
        encoder: as `checkpoint.load_encoder` returns it.
        layers: how many of the last layers to concatenate, the last one last.
        pack: tokens (special ones included) a pack; halved when memory runs out.

    Attributes:
        pack: tokens a pack now; smaller than asked for after memory ran out.
        halved: whether that happened.

    Source: Tan & Bansal 2020 (Vokenization), appendix A.1: "concatenation of the last 4 layers of BERT outputs".
    """

    def __init__(self, encoder: Encoder, layers: int, pack: int | None = None) -> None:
        if not 1 <= layers <= encoder.layers:
            raise DataError(f"has {encoder.layers} layers, the last {layers} were wanted", encoder.ref)
        self.encoder, self.layers = encoder, layers
        weight = encoder.model.get_input_embeddings().weight
        self.device, self.dtype = weight.device, weight.dtype
        on_gpu = self.device.type == "cuda"
        self.pack = pack or (16384 if on_gpu else 2048)
        self.halved = False
        # A GPU library chooses its kernel by the number of rows: there, every pack is filled up to the same number.
        self._constant = on_gpu
        config = encoder.model.config
        self.packed = (
            config.model_type in _BERT_SHAPED
            and not getattr(config, "is_decoder", False)
            and getattr(config, "position_embedding_type", "absolute") in (None, "absolute")
        )
        if self.packed:
            self._layers = [_fuse(layer) for layer in encoder.model.encoder.layer]
            self._heads = int(config.num_attention_heads)
            self._first_position = 0 if config.model_type == "bert" else int(config.pad_token_id) + 1

    def __call__(self, ids: Array, starts: Array, lengths: Array) -> Iterator[Hidden]:
        """Yield the hidden states of segments, pack by pack, shortest segments first.

        Args:
            ids: (N,) token ids without special tokens.
            starts: (S,) where each segment starts in `ids`; segments may overlap.
            lengths: (S,) its tokens, at most `encoder.max_tokens`; 0 is allowed.

        Raises:
            DataError: memory ran out with a single segment in the pack (exit 70).
        """
        order = np.argsort(lengths, kind="stable")
        extra = len(self.encoder.prefix) + len(self.encoder.suffix)
        at = 0
        while at < len(order):
            end = at + self._fit(lengths[order[at:]] + extra)
            try:
                hidden = self._run(ids, starts, lengths, order[at:end])
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if end - at == 1:
                    raise DataError(
                        f"out of memory with one segment of {int(lengths[order[at]])} tokens at a time; a machine "
                        "with more memory, or --device cpu, is needed",
                        code=Exit.CANNOT_GO_ON,
                    ) from None
                self.pack, self.halved = max(self.pack // 2, 1), True
                if self.device.type == "cuda":
                    torch.cuda.empty_cache()
                continue
            yield hidden
            at = end

    def _fit(self, totals: Array) -> int:
        """Return how many of the next segments fit a pack, at least one."""
        head = totals[: self.pack]  # none is shorter than a token
        return max(1, int(np.searchsorted(np.cumsum(head), self.pack, "right")))

    @torch.inference_mode()
    def _run(self, ids: Array, starts: Array, lengths: Array, segments: Array) -> Hidden:
        prefix, suffix = self.encoder.prefix, self.encoder.suffix
        inner = lengths[segments]
        total = inner + len(prefix) + len(suffix)
        ends = np.cumsum(total)
        position = np.arange(ends[-1]) - np.repeat(ends - total, total)
        left = np.repeat(total, total) - position  # 1 at the last token of a segment
        is_inner = (position >= len(prefix)) & (left > len(suffix))
        source = (np.repeat(starts[segments], total) + position - len(prefix))[is_inner]
        tokens = np.empty(len(position), np.int64)
        tokens[is_inner] = ids[source]
        for i, special in enumerate(prefix):
            tokens[position == i] = special
        for i, special in enumerate(reversed(suffix), 1):
            tokens[left == i] = special
        runs = _runs(total)
        hidden = self._forward(tokens, position, runs) if self.packed else self._own_forward(tokens, runs)
        keep = torch.from_numpy(np.flatnonzero(is_inner)).to(self.device)
        first = torch.from_numpy(ends - total).to(self.device)
        width = self.layers * self.encoder.width
        inside, heads = hidden[0].new_empty(len(keep), width), hidden[0].new_empty(len(first), width)
        for i, layer in enumerate(hidden):
            part = slice(i * self.encoder.width, (i + 1) * self.encoder.width)
            inside[:, part] = layer[keep]
            heads[:, part] = layer[first]
        return Hidden(segments, inside, heads)

    def _forward(self, tokens: Array, position: Array, runs: list[tuple[int, int]]) -> list[Tensor]:
        """Return the last layers of packed tokens, each (T, H); `runs` are (count, length) of equal segments."""
        both = torch.from_numpy(np.stack([tokens, position + self._first_position])).to(self.device, non_blocking=True)
        table = self.encoder.model.embeddings
        x = table.word_embeddings(both[0]) + table.token_type_embeddings.weight[0] + table.position_embeddings(both[1])
        x = table.LayerNorm(x)  # (T, H)
        size = len(x)
        rows = self.pack if self._constant and size <= self.pack else -(-size // TILE) * TILE
        x = F.pad(x, (0, 0, 0, rows - size))
        context = torch.zeros_like(x)
        kept = list[Tensor]()
        for number, layer in enumerate(self._layers):
            qkv = F.linear(x, layer.qkv, layer.qkv_bias)  # (T, 3 H)
            at = 0
            for count, length in runs:
                part = slice(at, at + count * length)
                q, k, v = qkv[part].view(count, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)  # (count, heads, length, d)
                mixed = F.scaled_dot_product_attention(q, k, v)
                context[part].view(count, length, self._heads, -1).copy_(mixed.transpose(1, 2))
                at = part.stop
            x = layer.attention_norm(layer.attention_out(context) + x)
            x = layer.norm(layer.down(layer.activation(layer.up(x))) + x)
            if number >= len(self._layers) - self.layers:
                kept.append(x)
        return kept

    def _own_forward(self, tokens: Array, runs: list[tuple[int, int]]) -> list[Tensor]:
        """Return the last layers from the model's own forward, one batch for each run of equal length."""
        kept = [torch.empty(len(tokens), self.encoder.width, dtype=self.dtype, device=self.device) for _ in range(self.layers)]
        at = 0
        for count, length in runs:
            end = at + count * length
            batch = torch.from_numpy(tokens[at:end]).to(self.device).view(count, length)
            copies = -(-TILE // (count * length))  # a few rows would take other kernels, see TILE
            batch = batch.repeat(copies, 1)
            out = self.encoder.model(input_ids=batch, attention_mask=torch.ones_like(batch), output_hidden_states=True)
            for own, layer in zip(kept, out.hidden_states[-self.layers :], strict=True):
                own[at:end] = layer[:count].reshape(count * length, -1)
            at = end
        return kept


@dataclass(frozen=True)
class TextSide:
    """What `vg probe-attention` asks of the text encoder in a model whose attention it reads."""

    encoder: Encoder

    @property
    def layers(self) -> int:
        """L, layers whose attention there is."""
        return self.encoder.layers

    @property
    def heads(self) -> int:
        """H, heads of a layer."""
        return int(self.encoder.model.config.num_attention_heads)

    @property
    def tokenizer(self) -> Tokenizer:
        """The encoder's own."""
        return self.encoder.tokenizer

    @property
    def max_tokens(self) -> int:
        """Tokens of a text that fit, special tokens not counted."""
        return self.encoder.max_tokens


class _Layer(NamedTuple):
    """The weights of one encoder layer; query, key and value as one product."""

    qkv: Tensor
    qkv_bias: Tensor
    attention_out: Any
    attention_norm: Any
    up: Any
    activation: Any
    down: Any
    norm: Any


def _fuse(layer: Any) -> _Layer:
    own = layer.attention.self
    parts = (own.query, own.key, own.value)
    out = layer.attention.output
    return _Layer(
        torch.cat([p.weight for p in parts]),
        torch.cat([p.bias for p in parts]),
        out.dense,
        out.LayerNorm,
        layer.intermediate.dense,
        layer.intermediate.intermediate_act_fn,
        layer.output.dense,
        layer.output.LayerNorm,
    )


def _runs(lengths: Sequence[int] | Array) -> list[tuple[int, int]]:
    """Return (count, length) for each run of equal neighbours."""
    sizes = np.asarray(lengths)
    cuts = np.flatnonzero(np.diff(sizes)) + 1
    edges = [0, *cuts.tolist(), len(sizes)]
    return [(b - a, int(sizes[a])) for a, b in pairwise(edges) if b > a]


# ------------------------------------------------------------------------------------------------- masked language models


# Tan & Bansal 2020 (Vokenization), section 4.2 and Table 2; `vocab_size` and the padding id come from the tokenizer.
_SMALL = {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
_ROBERTA = {"model_type": "roberta", "type_vocab_size": 1, "layer_norm_eps": 1e-5}
SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": {"model_type": "bert"},
    "bert-small": {"model_type": "bert", **_SMALL},
    "roberta-base": _ROBERTA,
    "roberta-small": _ROBERTA | _SMALL,
}


def new_lm(shape: Mapping[str, Any], tokenizer: Any) -> Any:
    """Return an untrained masked language model for a tokenizer, drawn from torch's random state.

    Args:
        shape: a transformers configuration with its `model_type`; sizes that follow from the tokenizer are set here.
        tokenizer: gives vocabulary and padding id.
    """
    from transformers import AutoConfig, AutoModelForMaskedLM

    values = dict(shape)
    kind = values.pop("model_type")
    pad = special_id(tokenizer, ("[PAD]", "<pad>"))
    if kind == "roberta":  # its positions are counted from behind the padding id
        values.setdefault("max_position_embeddings", 512 + pad + 1)
    ends = [ids[0] for ids in special_ids(tokenizer) if ids]
    config = AutoConfig.for_model(
        kind,
        **values | {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad},
        **({"bos_token_id": ends[0], "eos_token_id": ends[1]} if kind == "roberta" and len(ends) == 2 else {}),
    )
    return AutoModelForMaskedLM.from_config(config)


def mlm_hidden(lm: Any) -> Callable[[Tensor], Tensor]:
    """Return the part of a masked language model's head before its decoder, which can then run in chunks.

    Raises:
        DataError: the head is of no shape known here.
    """
    bert = getattr(getattr(lm, "cls", None), "predictions", None)
    if hasattr(bert, "transform"):
        return bert.transform  # type: ignore[union-attr,no-any-return]
    roberta = getattr(lm, "lm_head", None)
    if hasattr(roberta, "dense") and hasattr(roberta, "layer_norm"):
        return lambda rows: roberta.layer_norm(F.gelu(roberta.dense(rows)))  # type: ignore[union-attr]
    raise DataError(
        f"the head of a {lm.config.model_type} model is not known here; BERT, RoBERTa or one of their shape was wanted",
        code=Exit.CONFIG,
    )


def special_id(tokenizer: Any, names: Sequence[str]) -> int:
    """Return the id of a special token that goes by one of several names.

    Raises:
        DataError: the tokenizer has none of them.
    """
    for name in names:
        found = tokenizer.token_to_id(name)
        if found is not None:
            return int(found)
    raise DataError(
        f"the tokenizer has no {' or '.join(names)}, which masked language models need; choose another --tokenizer",
        code=Exit.CONFIG,
    )


@dataclass(frozen=True)
class Masking:
    """What it takes of an encoder to read a text with masks; a system's recipe adds its own settings.

    Attributes:
        prefix: special ids before a text.
        suffix: special ids behind it.
        mask: id of [MASK].
        pad: id of the padding.
        vocabulary: number of token ids.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    mask: int
    pad: int
    vocabulary: int

    @classmethod
    def of(cls, encoder: Encoder, **settings: Any) -> Self:
        """Return what an encoder's tokenizer says, with the settings given.

        Raises:
            DataError: the tokenizer has no mask or no padding.
        """
        return cls(
            prefix=tuple(encoder.prefix),
            suffix=tuple(encoder.suffix),
            mask=special_id(encoder.tokenizer, ("[MASK]", "<mask>")),
            pad=special_id(encoder.tokenizer, ("[PAD]", "<pad>")),
            vocabulary=encoder.tokenizer.get_vocab_size(),
            **settings,
        )


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of the cross entropies of a linear layer's outputs, a few rows at a time; gradients are made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, dtype: torch.dtype, chunk: int, learn: bool
    ) -> Tensor:
        learn = learn and any(ctx.needs_input_grad)
        total = torch.zeros((), device=rows.device)
        low, low_rows = weight.to(dtype), rows.to(dtype)
        to_rows = torch.empty_like(low_rows) if learn else None
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if learn else None
        to_bias = torch.zeros_like(bias, dtype=torch.float32) if learn and bias is not None else None
        for start in range(0, len(rows), chunk):
            part, wanted = low_rows[start : start + chunk], target[start : start + chunk, None]
            logits = (part @ low.T).float()  # (chunk, C)
            if bias is not None:
                logits += bias
            norm = logits.logsumexp(1, keepdim=True)
            total += (norm - logits.gather(1, wanted)).sum()
            if to_rows is not None and to_weight is not None:
                slope = logits.sub_(norm).exp_()  # softmax, in the place of the logits
                slope.scatter_add_(1, wanted, slope.new_full((1, 1), -1.0).expand_as(wanted))
                if to_bias is not None:
                    to_bias += slope.sum(0)
                slope = slope.to(dtype)
                torch.mm(slope, low, out=to_rows[start : start + chunk])
                if dtype == torch.float32:
                    to_weight.addmm_(slope.T, part)
                else:
                    to_weight += slope.T @ part
        if learn:
            ctx.save_for_backward(to_rows, to_weight, to_bias)
            ctx.dtypes = rows.dtype, weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        to_rows, to_weight, to_bias = ctx.saved_tensors
        scale = grads[0]
        return (
            (to_rows * scale).to(ctx.dtypes[0]),
            (to_weight * scale).to(ctx.dtypes[1]),
            None if to_bias is None else to_bias * scale,
            None,
            None,
            None,
            None,
        )


def linear_cross_entropy(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    dtype: torch.dtype = torch.float32,
    chunk: int | None = None,
) -> Tensor:
    """Return the summed cross entropy of `rows @ weight.T + bias`, whose full table never stands in memory.

    Args:
        rows: (N, H).
        weight: (C, H).
        bias: (C,) or none.
        target: (N,) int64 below C.
        dtype: numbers that the products are computed with; sums and the softmax are float32.
        chunk: rows at a time; by default as many as 64 MB of logits hold (512 MB on a GPU).

    Returns:
        Scalar, the sum over N; 0 for N = 0.
    """
    if chunk is None:
        chunk = max(1, (1 << (27 if rows.is_cuda else 24)) // len(weight))
    with torch.autocast(rows.device.type, enabled=False):
        return _LinearCrossEntropy.apply(rows, weight, bias, target, dtype, chunk, torch.is_grad_enabled())  # type: ignore[no-any-return,no-untyped-call]
