"""XDBERT's cross-modal encoder (Hsu et al. 2022): a student, a CLIP text tower, layers over both.

    L1 = LN(L + att(L, V))      V1 = LN(V + att(V, L))      section 2.1: across, of the inputs
    L2 = LN(L1 + att(L1, L1))   V2 = LN(V1 + att(V1, V1))   within a stream
    L' = LN(L2 + FFN(L2))       V' = LN(V2 + FFN(V2))       figure 3

L are the states of the student (BERT, RoBERTa, ELECTRA), V the states of the teacher, CLIP's text
tower. Three losses (section 2.3): `mlm`, masked words from L'; `match`, whether both read the same
text, from L' at [CLS]; `clip_token`, some tokens that the teacher reads, from V'.

Axes: B rows, T student tokens, U teacher tokens of a row, S blocks of a row, t tokens of a block,
H student width, E teacher width, M masked tokens, C chosen tokens of the teacher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.io.errors import DataError, Exit
from vgtools.models.clip import block_states, lay_out, load_teacher
from vgtools.models.encoder import Encoder, load_encoder
from vgtools.models.layers import Attention, draw_linear_layers
from vgtools.models.masked_lm import linear_cross_entropy, mlm_hidden
from vgtools.models.precision import autocast
from vgtools.models.references import fill
from vgtools.models.runs import Run, as_config, open_run, read_run
from vgtools.models.sealed import check_files
from vgtools.training.loop import halves, on_device

KIND = "xdbert"
LOSSES = ("mlm", "match", "clip_token")


@dataclass(frozen=True)
class XDBertConfig:
    """The shape of the cross-modal encoder that student and teacher leave open; in `run.json`."""

    cross_layers: int = 2


@dataclass(frozen=True)
class Shape:
    """The sizes of a cross-modal layer."""

    width: int  # H, width of the student
    heads: int
    other: int  # E, width of the teacher
    other_heads: int
    inner: int  # width inside both feed-forward networks
    activation: str = "gelu"
    eps: float = 1e-12
    dropout: float = 0.0
    attention_dropout: float = 0.0
    scale: float = 0.02  # standard deviation of new weights

    @classmethod
    def of(cls, student: Any, teacher: Any) -> Self:
        """Return the sizes for a student and a teacher, from their configurations.

        Source: Hsu et al. 2022, section 2.1; the published code for widths, heads and dropout.

        Raises:
            DataError: the teacher's width is not a multiple of its heads (78).
        """
        heads = int(teacher.num_attention_heads)
        if teacher.projection_dim % heads:
            why = f"the teacher's projection to {teacher.projection_dim} numbers"
            why = f"{why} is not a multiple of its {heads} attention heads"
            raise DataError(why, code=Exit.CONFIG)
        return cls(
            width=int(student.hidden_size),
            heads=int(student.num_attention_heads),
            other=int(teacher.projection_dim),
            other_heads=heads,
            inner=int(student.intermediate_size),
            activation=str(student.hidden_act),
            eps=float(student.layer_norm_eps),
            dropout=float(student.hidden_dropout_prob),
            attention_dropout=float(student.attention_probs_dropout_prob),
            scale=float(student.initializer_range),
        )


class Stream(nn.Module):
    """One side of a cross-modal layer: attention across, attention within, feed-forward.

    Args:
        width: width of this side.
        heads: heads of both of its attentions.
        other: width of the other side.
        shape: the rest.
    """

    def __init__(self, width: int, heads: int, other: int, shape: Shape) -> None:
        from transformers.activations import ACT2FN

        super().__init__()
        self.across = Attention(width, heads, other, shape.attention_dropout)
        self.across_norm = nn.LayerNorm(width, shape.eps)
        self.within = Attention(width, heads, None, shape.attention_dropout)
        self.within_norm = nn.LayerNorm(width, shape.eps)
        self.up = nn.Linear(width, shape.inner)
        self.activation = ACT2FN[shape.activation]
        self.down = nn.Linear(shape.inner, width)
        self.norm = nn.LayerNorm(width, shape.eps)
        self.dropout = nn.Dropout(shape.dropout)

    def look(
        self, x: Tensor, other: Tensor, mask: Tensor, weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return L1 or V1, and the weights of the attention across; see `Attention`."""
        # As in BERT, the sum of input and output is normalised, not the input (post-LayerNorm).
        seen, found = self.across(x, other, mask, weights)
        return self.across_norm(x + self.dropout(seen)), found

    def think(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return L' or V' of L1 or V1."""
        x = self.within_norm(x + self.dropout(self.within(x, x, mask)[0]))
        states: Tensor = self.norm(x + self.dropout(self.down(self.activation(self.up(x)))))
        return states


class CrossLayer(nn.Module):
    """A cross-modal layer: both streams look at the inputs of one another.

    Source: Hsu et al. 2022, section 2.1, equation 1, figure 3.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.student = Stream(shape.width, shape.heads, shape.other, shape)
        self.teacher = Stream(shape.other, shape.other_heads, shape.width, shape)

    def forward(
        self, states: Tensor, mask: Tensor, seen: Tensor, seen_mask: Tensor, both: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return the states of both streams.

        Args:
            states: (B, T, H) states of the student.
            mask: (B, T) bool.
            seen: (B, U, E) states of the teacher.
            seen_mask: (B, U) bool.
            both: if not, the teacher's stream is left as it is.
        """
        # Both streams look at the inputs of the layer: the student looks before the teacher's
        # changes.
        first, _ = self.student.look(states, seen, seen_mask)
        if both:
            second, _ = self.teacher.look(seen, states, mask)
            seen = self.teacher.think(second, seen_mask)
        return self.student.think(first, mask), seen

    def maps(
        self, states: Tensor, mask: Tensor, seen: Tensor, seen_mask: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return the states, and the weights of student on teacher and of teacher on student."""
        first, ours = self.student.look(states, seen, seen_mask, weights=True)
        second, theirs = self.teacher.look(seen, states, mask, weights=True)
        assert ours is not None
        assert theirs is not None
        after = (self.student.think(first, mask), self.teacher.think(second, seen_mask))
        return after, (ours, theirs)


class XDBertCrossModal(nn.Module):
    """The cross-modal layers and a pooler over them.

    Source: Hsu et al. 2022, section 2.1: two layers. The pooler is BERT's.
    """

    def __init__(self, shape: Shape, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(CrossLayer(shape) for _ in range(layers))
        self.pooler = nn.Linear(shape.width, shape.width)
        draw_linear_layers(self, shape.scale)

    def forward(
        self, states: Tensor, mask: Tensor, seen: Tensor, seen_mask: Tensor, both: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Return L' and V' of the last layer; arguments as `CrossLayer.forward`.

        Args:
            both: V' of the last layer is needed.
        """
        last = len(self.layers) - 1
        # Only `clip_token` reads V' of the last layer; otherwise it need not be computed.
        for i, layer in enumerate(self.layers):
            states, seen = layer(states, mask, seen, seen_mask, both or i < last)
        return states, seen

    def pool(self, states: Tensor) -> Tensor:
        """Return (B, H): a layer and tanh over the first state of (B, T, H)."""
        pooled: Tensor = torch.tanh(self.pooler(states[:, 0]))
        return pooled


class ClipTokenHead(nn.Module):
    """dense -> GELU -> LayerNorm -> decoder tied to the teacher's token embeddings, and a bias."""

    def __init__(self, shape: Shape, teacher: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(shape.other, int(teacher.hidden_size))
        self.norm = nn.LayerNorm(int(teacher.hidden_size), shape.eps)
        self.bias = nn.Parameter(torch.zeros(int(teacher.vocab_size)))
        draw_linear_layers(self, shape.scale)

    def hidden(self, rows: Tensor) -> Tensor:
        """Return the decoder's inputs, (C, width of the embeddings), of (C, E)."""
        read: Tensor = self.norm(F.gelu(self.dense(rows)))
        return read


# ------------------------------------------------------------------------------------------ batches


class XDBertBatch(NamedTuple):
    """Blocks of the student with blocks of the teacher.

    The losses are sums over this batch, divided by the counts: the counts of the whole step over
    the number of batches that it is cut into.
    """

    ids: Tensor  # (B, T) int64, masked
    attention: Tensor  # (B, T) int64, 0 at padding
    masked: Tensor  # (M,) int64, places in the B * T
    tokens: Tensor  # (M,) int64, the ids to predict
    blocks: Tensor  # (B, S, t) int64, tokens that the teacher reads
    lengths: Tensor  # (B, S) int64, tokens of each block; 0: there is none
    chosen: Tensor  # (B, S, t) int64, tokens of the teacher to predict, -1 elsewhere
    same: Tensor  # (B,) int64, 1 where the teacher reads the student's text
    token_count: float
    row_count: float
    clip_count: float

    def to(self, device: torch.device | str) -> XDBertBatch:
        """Return the batch on a device."""
        return on_device(self, device)


def halve(batch: XDBertBatch) -> tuple[XDBertBatch, ...]:
    """Return the halves of a batch, whose losses add up to its own; one row cannot be cut."""
    return halves(batch, {"masked": "tokens"})


class Outputs(NamedTuple):
    """The inputs of the losses."""

    words: Tensor  # (M, H), inputs of the word decoder
    pooled: Tensor  # (B, H)
    clip: Tensor  # (C, E), V' at the chosen tokens
    clip_tokens: Tensor  # (C,) int64, those tokens


class XDBert(nn.Module):
    """Student, teacher and cross-modal layers, as `vg pretrain xdbert` trains them.

    Args:
        lm: the student, transformers' masked language model.
        teacher: transformers' CLIPTextModelWithProjection.
        config: the rest of the shape.
        losses: the losses that are learned.
        dtype: type that the products are computed in (autocast); weights stay float32.
        freeze_teacher: the teacher does not learn.
        faster: multiple of the learning rate at which layers and heads over both learn.

    Attributes:
        rates: these multiples, by name, for `vgtools.training.loop.make_optimizer`.

    Source: Hsu et al. 2022, sections 2.1 and 2.3: `mlm` (2.3.1), `match` (2.3.2), `clip_token`
        (2.3.3), each with the weight 1. Student and teacher learn, as in the published code.
    Deviation: tokens of the teacher are chosen among words alone; the published code also learns
        padding and the marks of start and end.
    """

    def __init__(
        self,
        lm: Any,
        teacher: Any,
        config: XDBertConfig,
        losses: Sequence[str] = LOSSES,
        dtype: torch.dtype = torch.float32,
        freeze_teacher: bool = False,
        faster: float = 1.0,
    ) -> None:
        super().__init__()
        mlm_hidden(lm)  # This refuses an unknown head now, not at the first step.
        # New layers start from chance, so they may learn faster than student and teacher.
        self.rates = dict.fromkeys(("cross.", "match.", "clip_token."), faster)
        shape = Shape.of(lm.config, teacher.config)
        self.config = config
        self.losses = tuple(losses)
        self.dtype = dtype
        self.lm = lm
        self.frozen = freeze_teacher
        self.teacher = teacher.requires_grad_(not freeze_teacher)
        self.cross = XDBertCrossModal(shape, config.cross_layers)
        if "match" in losses:
            self.match = nn.Linear(shape.width, 2)
            draw_linear_layers(self.match, shape.scale)
        if "clip_token" in losses:
            self.clip_token = ClipTokenHead(shape, teacher.config)

    def train(self, mode: bool = True) -> XDBert:
        """Set training mode; a frozen teacher stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.teacher.eval()
        return self

    def see(self, batch: XDBertBatch) -> tuple[Tensor, Tensor]:
        """Return the teacher's states of a batch, (B, U, E), and their mask."""
        # Without gradients a frozen teacher keeps no activations in memory.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            return block_states(self.teacher, batch.blocks, batch.lengths)

    def outputs(self, batch: XDBertBatch) -> Outputs:
        """Return the inputs of the losses for a batch."""
        seen, seen_mask = self.see(batch)
        encoded = self.lm.base_model(input_ids=batch.ids, attention_mask=batch.attention)
        both = "clip_token" in self.losses
        states, seen = self.cross(
            encoded.last_hidden_state, batch.attention.bool(), seen, seen_mask, both
        )
        # Rows are picked before the head: logits of all B * T places would fill the memory.
        rows = states.flatten(0, 1)[batch.masked]
        # Chosen tokens are laid out as the teacher's states are, so that their places match.
        tokens, _ = lay_out(batch.chosen, batch.lengths, fill=-1)  # (B, U)
        chosen = tokens >= 0
        pooled = self.cross.pool(states)
        return Outputs(mlm_hidden(self.lm)(rows), pooled, seen[chosen], tokens[chosen])

    def forward(self, batch: XDBertBatch) -> dict[str, Tensor]:
        """Return the losses of a batch by name, unweighted.

        `XDBertBatch` has their divisors.
        """
        with autocast(batch.ids.device, self.dtype):
            made = self.outputs(batch)
            losses: dict[str, Tensor] = {}
            if "mlm" in self.losses:
                losses["mlm"] = self.word_loss(made, batch) / batch.token_count
            if "match" in self.losses:
                # Two classes: the teacher read the same text, or another row's.
                answers = self.match(made.pooled).float()
                total = F.cross_entropy(answers, batch.same, reduction="sum")
                losses["match"] = total / batch.row_count
            if "clip_token" in self.losses:
                losses["clip_token"] = self.clip_loss(made) / batch.clip_count
        return losses

    def word_loss(self, made: Outputs, batch: XDBertBatch) -> Tensor:
        """Return the summed cross entropy of the masked words."""
        decoder = self.lm.get_output_embeddings()
        return linear_cross_entropy(
            made.words, decoder.weight, decoder.bias, batch.tokens, self.dtype
        )

    def clip_loss(self, made: Outputs) -> Tensor:
        """Return the summed cross entropy of the teacher's chosen tokens."""
        head = self.clip_token
        table = self.teacher.get_input_embeddings().weight
        rows = head.hidden(made.clip)
        return linear_cross_entropy(rows, table, head.bias, made.clip_tokens, self.dtype)

    def own_weights(self) -> dict[str, Tensor]:
        """Return the weights outside the student and the teacher: layers, pooler, heads.

        The head of masked words is among them, as `mlm`, without its decoder's table, which is the
        table of the word embeddings.
        """
        weights = {
            name: weight
            for name, weight in self.state_dict().items()
            if not name.startswith(("lm.", "teacher."))
        }
        head = mlm_hidden(self.lm).state_dict()
        bias = self.lm.get_output_embeddings().bias
        return weights | {f"mlm.{name}": w for name, w in head.items()} | {"mlm.bias": bias}


# ------------------------------------------------------------------------------------ finished runs


@dataclass(frozen=True)
class XDBertRun:
    """A run of `vg pretrain xdbert`, or a model of `vg finetune --full`; in evaluation mode."""

    run: Run
    config: XDBertConfig
    student: Encoder
    teacher: Encoder
    cross: XDBertCrossModal

    def to(self, device: torch.device | str) -> XDBertRun:
        """Move its networks to a device, and return it."""
        for network in (self.student.model, self.teacher.model, self.cross):
            network.to(device)
        return self


def is_xdbert(ref: str) -> bool:
    """Return whether `open_xdbert` opens a reference: a run of this kind, by any command."""
    return Path(ref, "run.json").exists() and read_run(ref).get("kind") == KIND


def open_xdbert(path: str) -> XDBertRun:
    """Open a finished run of kind `xdbert`.

    Raises:
        DataError: not there or not finished, or its `teacher/` is missing (66); another kind of
            run, or damaged (65).
    """
    run = open_run(path, KIND)
    config = as_config(XDBertConfig, run.info.get(KIND), KIND, run.path / "run.json")
    check_files(run.path, run.info, "teacher/")
    student = load_encoder(str(run.path))
    if getattr(student.model, "pooler", None) is not None:
        student.model.pooler = None  # The run has none: this one was drawn at random.
    teacher = load_teacher(str(run.path / "teacher"))
    cross = XDBertCrossModal(
        Shape.of(student.model.config, teacher.model.config), config.cross_layers
    )
    weights = {
        name.removeprefix("cross."): weight
        for name, weight in run.weights.items()
        if name.startswith("cross.")
    }
    fill(cross, weights, run.path / f"{KIND}.safetensors")
    return XDBertRun(run, config, student, teacher, cross.eval())
