"""Visually supervised language models (Tan & Bansal 2020, section 2.2): masked language model and voken classification.

    L(s, s^) = L_voken-cls(s, s^) + lambda * L_mlm(s, s^)        equation 1

The encoder reads a masked block; one head predicts the masked tokens, the other the voken of every token. What pretraining
does with blocks of tokens stands here; where they come from, in `vgtools/blocks.py`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools import parallel
from vgtools.blocks import Corpus, Packed, check_range, mask_tokens
from vgtools.checkpoint import Encoder
from vgtools.io import DataError, Exit
from vgtools.train import Batches, TrainConfig

Array = np.ndarray[Any, Any]

LOSSES = ("mlm", "voken_cls", "voken_reg", "voken_ctr")
CONTROLS = ("random", "shuffle", "reverse", "tokens")
IGNORED = -1  # a token without a voken
_ORDER, _MASK, _FIXED, _CONTROL = range(4)  # what a random generator is for; the first of its seeds

# Section 4.2 and the shapes of Table 2; `vocab_size` and the padding id come from the tokenizer.
_SMALL = {"num_hidden_layers": 6, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048}
_ROBERTA = {"model_type": "roberta", "type_vocab_size": 1, "layer_norm_eps": 1e-5}
SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": {"model_type": "bert"},
    "bert-small": {"model_type": "bert", **_SMALL},
    "roberta-base": _ROBERTA,
    "roberta-small": _ROBERTA | _SMALL,
}


# --------------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class VokenLMConfig:
    """What is predicted beside the encoder's own outputs; stands in `run.json`.

    Attributes:
        losses: names among `LOSSES`.
        vokens: size of the voken vocabulary, the image bank's.
        feats_width: D, width of the images' features, for `voken_reg` and `voken_ctr`.
        joint: width of the space in which `voken_ctr` compares.
        shared_head: the hidden layer of the masked language model's head serves the vokens, too.
    """

    losses: tuple[str, ...] = ("mlm", "voken_cls")
    vokens: int = 0
    feats_width: int = 0
    joint: int = 512
    shared_head: bool = False


class VokenHead(nn.Module):
    """dense -> GELU -> LayerNorm -> linear, as the head of BERT's masked language model is.

    Source: Tan & Bansal 2020, section 2.2, "a linear layer and a softmax layer"; the hidden layer is in the published code.
    """

    def __init__(self, width: int, outputs: int, eps: float, scale: float, shared: bool = False) -> None:
        super().__init__()
        self.hidden = None if shared else nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=eps))
        self.decoder = nn.Linear(width, outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=scale)
                nn.init.zeros_(module.bias)


class Batch(NamedTuple):
    """Blocks to learn from: B blocks of T tokens, M masked tokens, K tokens with a voken.

    The losses are sums over the tokens here, divided by the counts: the tokens of the whole step over the number of batches
    that it is cut into. So neither the cut into batches nor the number of processes changes a step.
    """

    ids: Tensor  # (B, T) int64, masked
    attention: Tensor | None  # (B, T) int64, 0 at padding; None where there is none
    masked: Tensor  # (M,) int64, places in the B * T
    tokens: Tensor  # (M,) int64, the ids to predict
    places: Tensor  # (K,) int64, places in the B * T
    vokens: Tensor  # (K,) int64
    token_count: float
    voken_count: float


class VisuallySupervisedLM(nn.Module):
    """A masked language model of transformers that also predicts vokens.

    Args:
        lm: BertForMaskedLM, RobertaForMaskedLM or one of their shape.
        config: which losses, and the sizes.
        feats: (vokens, D) features of the image bank, for `voken_reg` and `voken_ctr`; kept out of the weights.
        dtype: numbers that the products are computed with (autocast); weights stay float32.

    Source: Tan & Bansal 2020 (Vokenization), section 2.2, figure 2, equation 1.
    """

    feats: Tensor | None

    def __init__(self, lm: Any, config: VokenLMConfig, feats: Tensor | None = None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.lm, self.config, self.dtype = lm, config, dtype
        self.register_buffer("feats", feats, persistent=False)
        shape = lm.config
        width, eps = int(shape.hidden_size), float(shape.layer_norm_eps)
        sizes = {"voken_cls": config.vokens, "voken_reg": config.feats_width, "voken_ctr": config.joint}
        self.heads = nn.ModuleDict(
            {
                name: VokenHead(width, size, eps, float(shape.initializer_range), config.shared_head)
                for name, size in sizes.items()
                if name in config.losses
            }
        )
        if "voken_ctr" in config.losses:
            self.image = nn.Linear(config.feats_width, config.joint)
            self.norms = nn.ModuleList([nn.LayerNorm(config.joint, eps=eps), nn.LayerNorm(config.joint, eps=eps)])
        mlm_hidden(lm)  # refuses an unknown head now, not at the first step

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of a batch by name, unweighted; see `Batch` for what they are divided by."""
        with self._autocast(batch.ids.device.type):
            states = self.lm.base_model(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
            states = states.flatten(0, 1)  # (B * T, H)
            losses: dict[str, Tensor] = {}
            if "mlm" in self.config.losses:
                decoder = self.lm.get_output_embeddings()
                rows = mlm_hidden(self.lm)(states[batch.masked])
                total = linear_cross_entropy(rows, decoder.weight, decoder.bias, batch.tokens, self.dtype)
                losses["mlm"] = total / batch.token_count
            if self.heads:
                states = states[batch.places]
            for name in self.heads:
                head = cast(VokenHead, self.heads[name])
                rows = (head.hidden or mlm_hidden(self.lm))(states)
                losses[name] = getattr(self, f"_{name}")(head, rows, batch.vokens) / batch.voken_count
        return losses

    def _autocast(self, device: str) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(device, self.dtype) if self.dtype != torch.float32 else contextlib.nullcontext()

    def _voken_cls(self, head: VokenHead, rows: Tensor, vokens: Tensor) -> Tensor:
        """Return the summed negative log probability of the vokens; rows (K, H)."""
        return linear_cross_entropy(rows, head.decoder.weight, head.decoder.bias, vokens, self.dtype)

    def _voken_reg(self, head: VokenHead, rows: Tensor, vokens: Tensor) -> Tensor:
        """Return the summed distance (smooth L1, summed over D) of the predicted features from the vokens'.

        Source: the published code; the authors report that it performs similarly.
        Deviation: mean over the tokens with a voken; the published code's is over all positions.
        """
        assert self.feats is not None
        return F.smooth_l1_loss(head.decoder(rows).float(), F.embedding(vokens, self.feats), reduction="sum")

    def _voken_ctr(self, head: VokenHead, rows: Tensor, vokens: Tensor) -> Tensor:
        """Return the summed cross entropy of telling the voken among all by inner products in the joint space.

        Source: the published code: joint width 512, LayerNorm on both sides, divided by its square root.
        """
        assert self.feats is not None
        queries = self.norms[0](head.decoder(rows))
        keys = self.norms[1](self.image(self.feats)) / math.sqrt(self.config.joint)
        return linear_cross_entropy(queries, keys, None, vokens, self.dtype)

    def own_weights(self) -> dict[str, Tensor]:
        """Return the weights beside the language model's: the voken heads'."""
        return {name: weight for name, weight in self.state_dict().items() if not name.startswith("lm.")}


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
    ends = [ids[0] for ids in _specials(tokenizer)]
    config = AutoConfig.for_model(
        kind,
        **values | {"vocab_size": tokenizer.get_vocab_size(), "pad_token_id": pad},
        **({"bos_token_id": ends[0], "eos_token_id": ends[1]} if kind == "roberta" and len(ends) == 2 else {}),
    )
    return AutoModelForMaskedLM.from_config(config)


def _specials(tokenizer: Any) -> list[list[int]]:
    from vgtools.checkpoint import special_ids

    return [ids for ids in special_ids(tokenizer) if ids]


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


# ------------------------------------------------------------------------------------------------------------------ losses


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


# -------------------------------------------------------------------------------------------------------------------- data


def count_vokens(
    files: Sequence[Packed], held: Sequence[Packed], encoder: Encoder, learned: bool, control: str | None, given: int | None
) -> int:
    """Return the size of the voken vocabulary, every token id and voken checked before any training.

    Args:
        files: to train on.
        held: to evaluate on.
        encoder: its vocabulary bounds the token ids.
        learned: vokens are learned.
        control: as `control_vokens`.
        given: by the user; else what the manifests say; else one more than the largest voken.

    Raises:
        DataError: a token id or voken out of range (file and line are named), files of different image banks, or no voken to
            learn.
    """
    vocabulary = int(encoder.model.config.vocab_size)
    named = [file for file in (*files, *held) if file.vokens is not None]
    for file in named:
        if given is None and file.vokens != named[0].vokens:
            raise DataError(
                f"its vokens are of {file.vokens} images, those of {named[0].name} of {named[0].vokens}; use one image bank",
                file.name,
            )
    bound = given if given is not None else named[0].vokens if named else None
    tops = [check_range(file, vocabulary, bound) for file in (*files, *held)]
    if control == "tokens":
        return vocabulary
    if learned and max(tops[: len(files)], default=-1) < 0:
        raise DataError("holds no voken to learn; make some with vg vokenize, or train without: --weight mlm=1", files[0].name)
    return bound if bound is not None else max(tops, default=-1) + 1


def corpus_of(files: Sequence[Packed], encoder: Encoder, recipe: Recipe, pack: str) -> Corpus:
    """Return the corpus of some files: with `pack` "stream" blocks cross sentences, with "document" none crosses a document.

    Raises:
        DataError: the block does not fit the encoder, or the files hold no token.
    """
    size = recipe.block - len(recipe.prefix) - len(recipe.suffix)
    if not 1 <= size <= encoder.max_tokens:
        raise DataError(
            f"--block {recipe.block}: the encoder takes {encoder.max_tokens + recipe.block - size} tokens", code=Exit.CONFIG
        )
    corpus = Corpus(files, size, by_document=pack == "document")
    if files and not len(corpus):
        raise DataError("holds no token", files[0].name)
    return corpus


# ----------------------------------------------------------------------------------------------------------------- batches


@dataclass(frozen=True)
class Recipe:
    """How blocks become inputs and labels.

    Attributes:
        prefix: special ids before a block.
        suffix: special ids behind it.
        mask: id of [MASK].
        pad: id of the padding.
        vocabulary: number of token ids.
        vokens: number of vokens.
        block: tokens of a block, special tokens counted.
        on: the tokens whose vokens are learned: `all` (the paper), `masked` or `unmasked`.
        label: `all`, or `first`: the first token of each sentence only, table 5's sentence label.
        control: vokens to take in place of the real ones, one of `CONTROLS`.
        seed: of order, masks and controls.
    """

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    mask: int
    pad: int
    vocabulary: int
    vokens: int
    block: int = 128
    on: str = "all"
    label: str = "all"
    control: str | None = None
    seed: int = 0


def recipe_for(encoder: Encoder, **settings: Any) -> Recipe:
    """Return the recipe of an encoder: its special tokens, and the settings given."""
    tokenizer = encoder.tokenizer
    return Recipe(
        prefix=tuple(encoder.prefix),
        suffix=tuple(encoder.suffix),
        mask=special_id(tokenizer, ("[MASK]", "<mask>")),
        pad=special_id(tokenizer, ("[PAD]", "<pad>")),
        vocabulary=tokenizer.get_vocab_size(),
        **settings,
    )


def control_vokens(control: str | None, vokens: Array, ids: Array, rng: np.random.Generator, number: int) -> Array:
    """Return the labels that a control puts in the place of a block's vokens; a token without a voken stays without.

    Args:
        control: `random`: a random voken each; `shuffle`: the block's own in a random order; `reverse`: from the last to the
            first; `tokens`: the token ids themselves, for every token; None: the vokens.
        vokens: (n,) vokens of a block, -1 is none.
        ids: (n,) its token ids.
        rng: decides; the same for a block in every epoch.
        number: of vokens.

    Source: Tan & Bansal 2020 (Vokenization), table 6, appendix A.6; `reverse` is in the published code.
    Deviation: "in each batch" is within each block, as in the published code.
    """
    if control is None:
        return vokens
    if control == "tokens":
        return ids
    found, own = vokens.copy(), vokens != IGNORED
    if control == "random":
        found[own] = rng.integers(0, number, int(own.sum()))
    else:
        found[own] = rng.permutation(vokens[own]) if control == "shuffle" else vokens[own][::-1]
    return found


def collate(
    corpus: Corpus, numbers: Array, recipe: Recipe, epoch: int | None, parts: int = 1, device: torch.device | str = "cpu"
) -> list[Batch]:
    """Build the batches of one step from its blocks.

    Args:
        corpus: where the blocks come from.
        numbers: (B,) blocks of the step.
        recipe: what becomes of them.
        epoch: decides the masks; None are the fixed ones of evaluation, the same whatever the seed.
        parts: batches to cut the step into; at most B.
        device: where they go.

    Returns:
        The batches, whose losses add up to `parts` times the mean over the step.
    """
    shape = (len(numbers), recipe.block)
    ids, labels = np.full(shape, recipe.pad, np.int64), np.full(shape, IGNORED, np.int64)
    read, chosen, here = ids.copy(), np.zeros(shape, bool), np.zeros(shape, bool)
    longest, head = 0, len(recipe.prefix)
    for i, number in enumerate(numbers.tolist()):
        tokens, heads = corpus.block(number)
        size = head + len(tokens)
        inner = slice(head, size)
        own, vokens = tokens[:, 0].astype(np.int64), tokens[:, 1].astype(np.int64)
        rng = np.random.default_rng([_FIXED, number] if epoch is None else [_MASK, recipe.seed, epoch, number])
        read[i, inner], chosen[i, inner] = mask_tokens(own, rng, recipe.mask, recipe.vocabulary)
        vokens = control_vokens(
            recipe.control, vokens, own, np.random.default_rng([_CONTROL, recipe.seed, number]), recipe.vokens
        )
        labels[i, inner] = np.where(heads, vokens, IGNORED) if recipe.label == "first" else vokens
        ids[i, inner] = own
        for row in (ids, read):
            row[i, :head], row[i, size : size + len(recipe.suffix)] = recipe.prefix, recipe.suffix
        longest = max(longest, size + len(recipe.suffix))
        here[i, : size + len(recipe.suffix)] = True
    if recipe.on != "all":
        labels[chosen != (recipe.on == "masked")] = IGNORED
    counts = [max(1, int(mask.sum())) / parts for mask in (chosen, labels != IGNORED)]
    found = list[Batch]()
    for part in np.array_split(np.arange(len(numbers)), parts):
        mine = [torch.from_numpy(a[part][:, :longest]).to(device, non_blocking=True) for a in (read, here, chosen, ids, labels)]
        masked, places = mine[2].flatten(), mine[4].flatten() != IGNORED
        found.append(
            Batch(
                mine[0],
                None if bool(here[part][:, :longest].all()) else mine[1].long(),
                masked.nonzero()[:, 0],
                mine[3].flatten()[masked],
                places.nonzero()[:, 0],
                mine[4].flatten()[places],
                *counts,
            )
        )
    return found


def halve(batch: Batch) -> tuple[Batch, ...]:
    """Return the two halves of a batch, whose losses add up to its own; a single block cannot be cut."""
    blocks, tokens = batch.ids.shape
    middle = blocks // 2
    if not middle:
        return (batch,)
    halves = list[Batch]()
    for rows in (slice(0, middle), slice(middle, blocks)):
        start, end = rows.start * tokens, rows.stop * tokens
        masked, places = ((p >= start) & (p < end) for p in (batch.masked, batch.places))
        halves.append(
            Batch(
                batch.ids[rows],
                None if batch.attention is None else batch.attention[rows],
                batch.masked[masked] - start,
                batch.tokens[masked],
                batch.places[places] - start,
                batch.vokens[places],
                batch.token_count,
                batch.voken_count,
            )
        )
    return tuple(halves)


class Plan(NamedTuple):
    """How a corpus is cut into steps."""

    per_epoch: int  # steps an epoch
    accumulate: int  # batches a step, of each process
    steps: int  # of all epochs
    epochs: int


def plan(
    blocks: int,
    batch_size: int,
    micro_batch: int,
    epochs: int | None = None,
    steps: int | None = None,
    processes: int = 1,
) -> Plan:
    """Return how many steps an epoch of some blocks has, and how many batches a step.

    The steps of an epoch are of equal size but for one block: none is small, and none is left out.

    Args:
        blocks: in an epoch.
        batch_size: most blocks a step.
        micro_batch: most blocks in memory at a time (one more in a rare case: a step is never cut finer than its blocks).
        epochs: to train, unless `steps` says how many steps.
        steps: of all epochs together; the last epoch may end early.
        processes: that share a step.

    Raises:
        DataError: a step has fewer blocks than there are processes.
    """
    per_epoch = -(-blocks // batch_size)
    most, least = -(-blocks // per_epoch), blocks // per_epoch
    if least < processes:
        raise DataError(f"a step has {least} blocks for {processes} processes; a larger --batch-size or fewer processes")
    accumulate = min(-(-most // (micro_batch * processes)), least // processes)
    total = steps if steps is not None else (epochs or 1) * per_epoch
    return Plan(per_epoch, accumulate, total, -(-total // per_epoch))


def make_batches(corpus: Corpus, recipe: Recipe, schedule: Plan, device: torch.device | str = "cpu") -> Batches:
    """Return the batches of an epoch as a pure function of (seed, epoch), as `train` wants them, built in a thread ahead.

    With several processes each gets its own part of every step: a step is the same however many share it.
    """
    rank, world = parallel.rank(), parallel.world()

    def batches(epoch: int, first: int) -> Iterator[Batch]:
        order = np.random.default_rng([_ORDER, recipe.seed, epoch]).permutation(len(corpus))
        for index, numbers in enumerate(np.array_split(order, schedule.per_epoch)):
            if epoch * schedule.per_epoch + index >= schedule.steps:
                return
            done = first - index * schedule.accumulate
            if done < schedule.accumulate:
                parts = collate(corpus, np.sort(numbers), recipe, epoch, schedule.accumulate * world, device)
                yield from parts[rank::world][max(0, done) :]

    return lambda epoch, first: ahead(batches(epoch, first))


def ahead(items: Iterable[Any]) -> Iterator[Any]:
    """Yield what an iterable yields; the next item is made in a thread while the caller works on this one."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(next, source, end)
        while (item := pending.result()) is not end:
            pending = thread.submit(next, source, end)
            yield item


# ------------------------------------------------------------------------------------------------ training and evaluation


def train_config(config: Mapping[str, Any], schedule: Plan) -> TrainConfig:
    """Return the optimiser's settings; a warm-up below 1 is a share of all steps.

    Source: Tan & Bansal 2020, section 4.2 (learning rate 2e-4); eps, betas, decay and clipping are those of the published code.
    """
    warmup = config["warmup"]
    return TrainConfig(
        epochs=schedule.epochs,
        steps=schedule.steps,
        lr=config["lr"],
        schedule=config["schedule"],
        warmup=round(warmup * schedule.steps if warmup < 1 else warmup),
        weight_decay=config["weight_decay"],
        eps=1e-6,
        clip=config["clip"],
        accumulate=schedule.accumulate,
        seed=config["seed"],
        log_every=1,
    )


def mean_record(notes: dict[str, Any], record: Mapping[str, Any], due: bool) -> dict[str, Any] | None:
    """Add a step's losses to those since the last record; where one is due, return it with their means.

    Args:
        notes: of the training's state: a run that goes on ends with the same records.
        record: of one step.
        due: the steps so far are a record.
    """
    window = notes.setdefault("window", {"steps": 0, "sums": {}})
    place = {key: record[key] for key in ("epoch", "step", "lr", "gradient")}
    window["steps"] += 1
    for name in record.keys() - place.keys():
        window["sums"][name] = window["sums"].get(name, 0.0) + record[name]
    if not due:
        return None
    del notes["window"]
    return place | {name: window["sums"][name] / window["steps"] for name in sorted(window["sums"])}


@torch.no_grad()
def evaluate(
    model: VisuallySupervisedLM, corpus: Corpus, recipe: Recipe, batch_size: int, device: torch.device | str = "cpu"
) -> dict[str, float]:
    """Measure the losses on a corpus with fixed masks, which no seed and no epoch changes; perplexity is exp(mlm)."""
    was_training = model.training
    model.eval()
    sums, counts = dict[str, float](), dict[str, float]()
    for numbers in np.array_split(np.arange(len(corpus)), -(-len(corpus) // batch_size)):
        (batch,) = collate(corpus, numbers, recipe, None, 1, device)
        for name, value in model(batch).items():
            count = len(batch.tokens) if name == "mlm" else len(batch.vokens)
            sums[name] = sums.get(name, 0.0) + float(value) * count
            counts[name] = counts.get(name, 0.0) + count
    model.train(was_training)
    means = {name: total / max(1.0, counts[name]) for name, total in sums.items()}
    return means | ({"perplexity": math.exp(min(700.0, means["mlm"]))} if "mlm" in means else {})
