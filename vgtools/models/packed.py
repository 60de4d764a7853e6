"""Layers that several systems use: the padding-free text encoder, masked language models.

A text encoder spends most of its time on padding when sentences of different lengths share a batch.
`PackedEncoder` puts the tokens of many sentences one after the other, (T, H), so that linear
layers, norms and activations see no padding, and computes attention once for each run of sentences
of equal length, or on a GPU that can for all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, make_room
from vgtools.models.devices import to_device
from vgtools.models.encoder import Encoder
from vgtools.models.products import affine, linear_gelu, plus_linear

# Matrix products get a multiple of this many rows. BLAS libraries use other kernels, with other
# roundings, for a few rows (MKL: below 8); with whole tiles a token's numbers do not depend on how
# many tokens share its pack. MKL on Intel processors also needs MKL_CBWR=AUTO,STRICT: with AVX2, or
# with several threads, its rounding also depends on the number of tiles. Small tiles, because a
# short text that somebody types also waits for the rows of its padding.
TILE = 16

_BERT_SHAPED = ("bert", "roberta", "xlm-roberta", "camembert")


class Hidden(NamedTuple):
    """The encoder's output for one pack of segments."""

    segments: Array  # (S,) int64: which segments these are
    tokens: Tensor  # (T, layers * H), the segments' tokens in turn, without special tokens
    first: Tensor  # (S, layers * H), the special token before each segment, [CLS]


class PackedEncoder:
    """Run a frozen text encoder without padding and return its last layers, concatenated.

    BERT and RoBERTa shapes are computed here from the loaded model's weights; any other
    architecture runs its own forward on batches of equal length, which need no padding either.

    Args:
        encoder: a frozen text encoder.
        layers: number of last layers to concatenate, the very last at the end.
        pack: tokens per pack, special tokens included; halved when memory runs out.

    Raises:
        DataError: the encoder has fewer layers (65).

    Source: Tan & Bansal 2020 (Vokenization), appendix A.1: "concatenation of the last 4 layers of
    BERT outputs".
    """

    def __init__(self, encoder: Encoder, layers: int, pack: int | None = None) -> None:
        if not 1 <= layers <= encoder.layers:
            why = f"expected at least {layers} layers, got {encoder.layers}"
            raise DataError(why, encoder.ref)
        self.encoder = encoder
        self.layers = layers
        weight = encoder.model.get_input_embeddings().weight
        self.device = weight.device
        self.dtype = weight.dtype
        on_gpu = self.device.type == "cuda"
        self.pack = pack or (16384 if on_gpu else 2048)  # tokens per pack now
        self.halved = False  # memory ran out, so that `pack` is smaller than requested
        # A GPU library chooses its kernel by the number of rows: there, every pack is padded to the
        # same number.
        self._constant = on_gpu
        config = encoder.model.config
        # A decoder hides later tokens, and relative positions enter the attention itself:
        # `_forward` computes neither.
        self.packed = (
            config.model_type in _BERT_SHAPED
            and not getattr(config, "is_decoder", False)
            and getattr(config, "position_embedding_type", "absolute") in (None, "absolute")
        )
        if self.packed:
            self._varlen = _varlen_attention(self.device, self.dtype)
            self._layers = [_fuse(layer) for layer in encoder.model.encoder.layer]
            self._gelu = config.hidden_act == "gelu"
            self._heads = int(config.num_attention_heads)
            # RoBERTa counts positions from after the padding id.
            is_bert = config.model_type == "bert"
            self._first_position = 0 if is_bert else int(config.pad_token_id) + 1

    def __call__(self, ids: Array, starts: Array, lengths: Array) -> Iterator[Hidden]:
        """Yield the hidden states of segments, pack by pack, shortest segments first.

        Args:
            ids: (N,) token ids without special tokens.
            starts: (S,) where each segment starts in `ids`; segments may overlap.
            lengths: (S,) its number of tokens, at most `encoder.max_tokens`; 0 is allowed.

        Raises:
            DataError: memory ran out with a single segment in the pack (exit 70).
        """
        # Segments of equal length become neighbours, so that a pack has few runs, and attention
        # runs once for each.
        order = np.argsort(lengths, kind="stable")
        extra = len(self.encoder.prefix) + len(self.encoder.suffix)
        at = 0
        while at < len(order):
            end = at + self._fit(lengths[order[at : at + self.pack]] + extra)
            try:
                hidden = self._run(ids, starts, lengths, order[at:end])
            except (RuntimeError, MemoryError) as error:
                one = f"one segment of {lengths[order[at]]} tokens at a time"
                hint = "use a machine with more memory, or --device cpu"
                make_room(error, f"{one}; {hint}" if end - at == 1 else "")
                self.pack = max(self.pack // 2, 1)
                self.halved = True
                # The smaller size stays: the segments that are left are at least as long.
                continue
            yield hidden
            at = end

    def _fit(self, totals: Array) -> int:
        """Return how many of the next segments fit in a pack, at least one."""
        return max(1, int(np.searchsorted(np.cumsum(totals), self.pack, "right")))

    @torch.inference_mode()
    def _run(self, ids: Array, starts: Array, lengths: Array, segments: Array) -> Hidden:
        prefix = self.encoder.prefix
        suffix = self.encoder.suffix
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
        if self.packed:
            hidden = self._forward(tokens, position, runs)
        else:
            hidden = self._model_forward(tokens, runs)
        keep = to_device(np.flatnonzero(is_inner), self.device)
        first = to_device(ends - total, self.device)
        width = self.layers * self.encoder.width
        inside = hidden[0].new_empty(len(keep), width)
        heads = hidden[0].new_empty(len(first), width)
        for i, layer in enumerate(hidden):
            part = slice(i * self.encoder.width, (i + 1) * self.encoder.width)
            inside[:, part] = layer[keep]
            heads[:, part] = layer[first]
        return Hidden(segments, inside, heads)

    def _forward(self, tokens: Array, position: Array, runs: list[tuple[int, int]]) -> list[Tensor]:
        """Return the last layers of packed tokens, each (T, H).

        Args:
            tokens: (T,) ids, special tokens included.
            position: (T,) of each token in its segment.
            runs: (count, length) of segments of equal length.
        """
        both = np.stack([tokens, position + self._first_position])
        ids, positions = to_device(both, self.device)
        table = self.encoder.model.embeddings
        x = table.word_embeddings(ids)
        x = x + table.token_type_embeddings.weight[0] + table.position_embeddings(positions)
        x = table.LayerNorm(x)  # (T, H)
        size = len(x)
        rows = -(-size // TILE) * TILE
        if self._constant and size <= self.pack:
            rows = self.pack
        x = F.pad(x, (0, 0, 0, rows - size))
        # The rows of padding keep a context of 0. No token depends on them: attention runs within
        # segments, and everything else row by row.
        context = torch.zeros_like(x)
        attend = self._attention(runs)
        kept = list[Tensor]()
        for number, layer in enumerate(self._layers):
            qkv = affine(x, layer.qkv.T, layer.qkv_bias)  # (T, 3 H)
            attend(qkv[:size].view(size, 3, self._heads, -1), context[:size])
            x = layer.attention_norm(plus_linear(layer.attention_out, context, x))
            up = linear_gelu(layer.up, x) if self._gelu else layer.activation(layer.up(x))
            x = layer.norm(plus_linear(layer.down, up, x))
            if number >= len(self._layers) - self.layers:
                kept.append(x)
        return kept

    def _attention(self, runs: list[tuple[int, int]]) -> Callable[[Tensor, Tensor], None]:
        """Return a function that writes the context of segments, (T, H), into its second argument.

        Its first holds queries, keys and values, (T, 3, heads, d).
        """
        if self._varlen is not None:
            counts, lengths = np.array(runs).T
            edges = np.cumsum([0, *np.repeat(lengths, counts)], dtype=np.int32)
            starts = to_device(edges, self.device)
            longest = int(lengths.max())
            varlen = self._varlen

            def at_once(qkv: Tensor, context: Tensor) -> None:
                q, k, v = qkv.unbind(1)
                mixed = varlen(q, k, v, starts, starts, longest, longest)
                context.copy_(mixed.flatten(1))

            return at_once

        def run_by_run(qkv: Tensor, context: Tensor) -> None:
            at = 0
            for count, length in runs:
                part = slice(at, at + count * length)
                split = qkv[part].view(count, length, 3, self._heads, -1)
                q, k, v = split.permute(2, 0, 3, 1, 4)  # each (count, heads, length, d)
                mixed = F.scaled_dot_product_attention(q, k, v)
                context[part].view(count, length, self._heads, -1).copy_(mixed.transpose(1, 2))
                at = part.stop

        return run_by_run

    def _model_forward(self, tokens: Array, runs: list[tuple[int, int]]) -> list[Tensor]:
        """Return the last layers from the model's own forward, one batch per run."""
        shape = (len(tokens), self.encoder.width)
        kept = [
            torch.empty(shape, dtype=self.dtype, device=self.device) for _ in range(self.layers)
        ]
        at = 0
        for count, length in runs:
            end = at + count * length
            batch = torch.from_numpy(tokens[at:end]).to(self.device).view(count, length)
            copies = -(-TILE // (count * length))  # a few rows would use other kernels, see TILE
            batch = batch.repeat(copies, 1)
            for rows, layer in zip(kept, self._outputs(batch), strict=True):
                rows[at:end] = layer[:count].reshape(count * length, -1)
            at = end
        return kept

    def _outputs(self, batch: Tensor) -> Sequence[Tensor]:
        """Return the last layers, each (count, length, H), of (count, length) tokens."""
        output = self.encoder.model(
            input_ids=batch, attention_mask=torch.ones_like(batch), output_hidden_states=True
        )
        layers: Sequence[Tensor] = output.hidden_states[-self.layers :]
        return layers


def _varlen_attention(device: torch.device, dtype: torch.dtype) -> Callable[..., Any] | None:
    """Return attention over segments of any lengths in one call, which some GPUs have.

    Its kernel is of 16-bit numbers, and of GPUs since Ampere; torch offers it from 2.10.
    """
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    if torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        return None
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return cast(Callable[..., Any], varlen_attn)


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
    attention = layer.attention.self
    parts = (attention.query, attention.key, attention.value)
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
    """Return (count, length) of each run of equal neighbours."""
    sizes = np.asarray(lengths)
    cuts = np.flatnonzero(np.diff(sizes)) + 1
    edges = [0, *cuts.tolist(), len(sizes)]
    return [(b - a, int(sizes[a])) for a, b in pairwise(edges) if b > a]
