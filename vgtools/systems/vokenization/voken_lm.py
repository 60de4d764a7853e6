"""Visually supervised language models (Tan & Bansal 2020, section 2.2): tokens and vokens.

    L(s, s^) = L_voken-cls(s, s^) + lambda * L_mlm(s, s^)        equation 1

The encoder reads a masked block; one head predicts the masked tokens, the other the voken of every
token. The blocks come from `vgtools.text.blocks`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.models.devices import to_device
from vgtools.models.encoder import Encoder
from vgtools.models.layers import draw_linear_layers
from vgtools.models.masked_lm import linear_cross_entropy, mlm_hidden
from vgtools.models.precision import autocast
from vgtools.systems.vokenization.objectives import ALSO, OBJECTIVES
from vgtools.text.blocks import Corpus, Packed, check_range, open_corpus
from vgtools.text.masking import Masking, mask_tokens
from vgtools.training.loop import Batches, halves
from vgtools.training.session import mean_losses
from vgtools.training.steps import StepPlan, step_batches

IGNORED = -1  # a token without a voken

# The purpose of a random generator, as the first of its seeds; 0 is the order of blocks.
_MASK = 1
_FIXED = 2
_CONTROL = 3


@dataclass(frozen=True)
class VokenLMConfig:
    """The predictions in addition to the encoder's own outputs; stored in `run.json`."""

    losses: tuple[str, ...] = ("mlm", "voken_cls")  # `mlm` and names of `OBJECTIVES`
    vokens: int = 0  # size of the voken vocabulary, the image bank's
    feats_width: int = 0  # D, width of the images' features, for `voken_reg` and `voken_ctr`
    joint: int = 512  # width of the space in which `voken_ctr` compares
    also: int = 0  # labels that --also has
    shared_head: bool = False  # vokens share the hidden layer of the masked language model's head


class VokenHead(nn.Module):
    """dense -> GELU -> LayerNorm -> linear, as the head of BERT's masked language model is.

    Source: Tan & Bansal 2020, section 2.2, "a linear layer and a softmax layer"; the hidden layer
        is in the published code.
    """

    def __init__(
        self, width: int, outputs: int, eps: float, scale: float, shared: bool = False
    ) -> None:
        super().__init__()
        self.hidden = None
        if not shared:
            layers = (nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width, eps=eps))
            self.hidden = nn.Sequential(*layers)
        self.decoder = nn.Linear(width, outputs)
        draw_linear_layers(self, scale)


class VokenBatch(NamedTuple):
    """Blocks to learn from: B blocks of T tokens, M masked tokens, K with a voken, A with a label
    of --also.

    The losses are sums over the tokens here, divided by the counts: the tokens of the whole step
    over the number of batches that it is cut into. So neither the cut into batches nor the number
    of processes changes a step.
    """

    ids: Tensor  # (B, T) int64, masked
    attention: Tensor | None  # (B, T) int64, 0 at padding; None where there is none
    masked: Tensor  # (M,) int64, places in the B * T
    tokens: Tensor  # (M,) int64, the ids to predict
    places: Tensor  # (K,) int64, places in the B * T
    vokens: Tensor  # (K,) int64
    also_places: Tensor  # (A,) int64, places in the B * T
    also_labels: Tensor  # (A,) int64
    token_count: float
    voken_count: float
    also_count: float


class VisuallySupervisedLM(nn.Module):
    """A masked language model of transformers that also predicts vokens.

    Args:
        lm: BertForMaskedLM, RobertaForMaskedLM or one of their shape.
        config: which losses, and the sizes.
        feats: (vokens, D) features of the image bank, for `voken_reg` and `voken_ctr`; kept out of
            the weights.
        dtype: type that the products are computed in (autocast); weights stay float32.

    Source: Tan & Bansal 2020 (Vokenization), section 2.2, figure 2, equation 1.
    """

    feats: Tensor | None

    def __init__(
        self,
        lm: Any,
        config: VokenLMConfig,
        feats: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        mlm_hidden(lm)  # This refuses an unknown head now, not at the first step.
        self.lm = lm
        self.config = config
        self.dtype = dtype
        # The features are a file of their own and would make every checkpoint larger.
        self.register_buffer("feats", feats, persistent=False)
        width = int(lm.config.hidden_size)
        eps = float(lm.config.layer_norm_eps)
        scale = float(lm.config.initializer_range)
        self.heads = nn.ModuleDict()
        for name, objective in OBJECTIVES.items():
            if name in config.losses:
                outputs = getattr(config, objective.outputs)
                self.heads[name] = VokenHead(width, outputs, eps, scale, config.shared_head)
        if "voken_ctr" in config.losses:
            self.image = nn.Linear(config.feats_width, config.joint)
            self.norms = nn.ModuleList(nn.LayerNorm(config.joint, eps=eps) for _ in range(2))

    def forward(self, batch: VokenBatch) -> dict[str, Tensor]:
        """Return the losses of a batch by name, unweighted.

        `VokenBatch` has their divisors.
        """
        with autocast(batch.ids.device, self.dtype):
            output = self.lm.base_model(input_ids=batch.ids, attention_mask=batch.attention)
            states = output.last_hidden_state.flatten(0, 1)  # (B * T, H)
            losses: dict[str, Tensor] = {}
            if "mlm" in self.config.losses:
                # The rows are picked before the head: logits of all B * T places would take most of
                # the memory, and no loss reads them.
                rows = mlm_hidden(self.lm)(states[batch.masked])
                total = self._cross_entropy(self.lm.get_output_embeddings(), rows, batch.tokens)
                losses["mlm"] = total / batch.token_count
            for name in self.heads:
                head = cast(VokenHead, self.heads[name])
                named = (batch.places, batch.vokens, batch.voken_count)
                if name == ALSO:
                    named = (batch.also_places, batch.also_labels, batch.also_count)
                places, labels, number = named
                # A shared head has no layer of its own: it reads the masked words' layer.
                rows = (head.hidden or mlm_hidden(self.lm))(states[places])
                losses[name] = getattr(self, f"_{name}")(head, rows, labels) / number
        return losses

    def _cross_entropy(self, decoder: Any, rows: Tensor, target: Tensor) -> Tensor:
        return linear_cross_entropy(rows, decoder.weight, decoder.bias, target, self.dtype)

    def _voken_cls(self, head: VokenHead, rows: Tensor, vokens: Tensor) -> Tensor:
        """Return the summed negative log probability of the vokens; rows (K, H)."""
        return self._cross_entropy(head.decoder, rows, vokens)

    def _also(self, head: VokenHead, rows: Tensor, labels: Tensor) -> Tensor:
        """Return the summed negative log probability of the labels of --also; rows (A, H)."""
        return self._cross_entropy(head.decoder, rows, labels)

    def _voken_reg(self, head: VokenHead, rows: Tensor, vokens: Tensor) -> Tensor:
        """Return the summed distance (smooth L1 over D) of predicted features from the vokens'.

        Source: the published code; the authors report that it performs similarly.
        Deviation: mean over the tokens with a voken; the published code's mean is over all
            positions.
        """
        assert self.feats is not None
        features = F.embedding(vokens, self.feats)
        return F.smooth_l1_loss(head.decoder(rows).float(), features, reduction="sum")

    def _voken_ctr(self, head: VokenHead, rows: Tensor, vokens: Tensor) -> Tensor:
        """Return the summed cross entropy of the vokens among all, by inner products.

        Source: the published code: joint width 512, LayerNorm on both sides, divided by its square
            root.
        Deviation: one hidden layer more than the published head: LN(GELU(Wh)) comes before the
            projection into the joint space, which the published head takes of h itself.
        """
        assert self.feats is not None
        queries = self.norms[0](head.decoder(rows))
        keys = self.norms[1](self.image(self.feats)) / math.sqrt(self.config.joint)
        return linear_cross_entropy(queries, keys, None, vokens, self.dtype)

    def head_weights(self) -> dict[str, Tensor]:
        """Return the weights outside the language model, of the voken heads."""
        return {
            name: weight for name, weight in self.state_dict().items() if not name.startswith("lm.")
        }


def count_vokens(
    files: Sequence[Packed],
    held: Sequence[Packed],
    encoder: Encoder,
    learned: bool,
    control: str | None,
    given: int | None,
) -> int:
    """Return the size of the voken vocabulary; check every token id and voken.

    If the user has not `given` it, it is the size in the manifests, or one more than the largest
    voken.

    Raises:
        DataError: a token id or voken out of range (file and line are named), files of different
            image banks, or no voken to learn.
    """
    vocabulary = int(encoder.model.config.vocab_size)
    named = [file for file in (*files, *held) if file.vokens is not None]
    for file in named:
        if given is None and file.vokens != named[0].vokens:
            others = f"the vokens of {named[0].name} of {named[0].vokens}; use one image bank"
            raise DataError(f"its vokens are of {file.vokens} images, {others}", file.name)
    # Vokens are checked against the bank before an embedding or a loss would read out of range,
    # which on a GPU stops the process without naming a line.
    bound = given if given is not None else named[0].vokens if named else None
    tops = [check_range(file, vocabulary, bound) for file in (*files, *held)]
    if control == "tokens":
        return vocabulary
    if learned and max(tops[: len(files)], default=-1) < 0:
        way_out = "make some with vg vokenize, or train without: --weight mlm=1"
        raise DataError(f"holds no voken to learn; {way_out}", files[0].name)
    return bound if bound is not None else max(tops, default=-1) + 1


def count_labels(files: Sequence[Packed], encoder: Encoder) -> int:
    """Return the number of labels of --also, as `count_vokens` does; 0 without files.

    Raises:
        DataError: a token id or label out of range, or no label to learn.
    """
    vocabulary = int(encoder.model.config.vocab_size)
    tops = [check_range(file, vocabulary, file.vokens) for file in files]
    if files and max(tops) < 0:
        raise DataError("holds no label to learn", files[0].name)
    return (files[0].vokens or max(tops) + 1) if files else 0


def corpus_of(files: Sequence[Packed], encoder: Encoder, recipe: VokenMasking, pack: str) -> Corpus:
    """Return the corpus of some files; see `vgtools.text.blocks.open_corpus`."""
    special = len(recipe.prefix) + len(recipe.suffix)
    return open_corpus(files, recipe.block, special, encoder.max_tokens, pack)


@dataclass(frozen=True)
class VokenMasking(Masking):
    """How blocks become inputs and labels; table 5's sentence label is `label="first"`."""

    vokens: int  # the number of vokens
    block: int = 128  # tokens of a block, special tokens counted
    on: str = "all"  # tokens whose vokens are learned: all (the paper), `masked` or `unmasked`
    label: str = "all"  # or `first`: the first token of each sentence only
    control: str | None = None  # vokens instead of the real ones, see `control_vokens`
    seed: int = 0  # decides order, masks and controls
    rate: float = 0.15  # share of the tokens that are masked


def control_vokens(
    control: str | None, vokens: Array, ids: Array, rng: np.random.Generator, number: int
) -> Array:
    """Return the labels by which a control replaces a block's vokens.

    A token without a voken stays without.

    Args:
        control: `random`: a random voken each; `shuffle`: the block's own in a random order;
            `reverse`: from the last to the first; `tokens`: the token ids themselves, for every
            token; None: the vokens.
        vokens: (n,) vokens of a block, -1 without.
        ids: (n,) its token ids.
        rng: decides; the same for a block in every epoch.
        number: how many vokens there are.

    Source: Tan & Bansal 2020 (Vokenization), table 6, appendix A.6; `reverse` is in the published
        code.
    Deviation: "in each batch" is within each block, as in the published code.
    """
    if control is None:
        return vokens
    if control == "tokens":
        return ids
    labels = vokens.copy()
    given = vokens != IGNORED
    if control == "random":
        labels[given] = rng.integers(0, number, int(given.sum()))
    elif control == "shuffle":
        labels[given] = rng.permutation(vokens[given])
    else:
        labels[given] = vokens[given][::-1]
    return labels


def collate(
    corpus: Corpus,
    numbers: Array,
    recipe: VokenMasking,
    epoch: int | None,
    parts: int = 1,
    device: torch.device | str = "cpu",
) -> list[VokenBatch]:
    """Build the batches of one step from its blocks.

    Args:
        corpus: where the blocks come from.
        numbers: (B,) blocks of the step.
        recipe: how they become inputs and labels.
        epoch: decides the masks; None gives the fixed masks of evaluation, the same whatever the
            seed.
        parts: batches to cut the step into; at most B.
        device: where they go.

    Returns:
        The batches, whose losses add up to `parts` times the mean over the step.
    """
    shape = (len(numbers), recipe.block)
    ids = np.full(shape, recipe.pad, np.int64)
    read = ids.copy()  # the ids with masks
    labels = np.full(shape, IGNORED, np.int64)
    further = labels.copy()
    chosen = np.zeros(shape, bool)
    present = np.zeros(shape, bool)
    head = len(recipe.prefix)
    for i, number in enumerate(numbers.tolist()):
        block, firsts = corpus.block(number)
        size = head + len(block)
        end = size + len(recipe.suffix)
        inner = slice(head, size)
        tokens = block[:, 0].astype(np.int64)
        vokens = block[:, 1].astype(np.int64)
        # A block has a generator of its own: its masks depend neither on the cut into batches nor
        # on the number of processes or the step that a resumed run starts from.
        seeds = [_FIXED, number] if epoch is None else [_MASK, recipe.seed, epoch, number]
        rng = np.random.default_rng(seeds)
        read[i, inner], chosen[i, inner] = mask_tokens(
            tokens, rng, recipe.mask, recipe.vocabulary, recipe.rate
        )
        if recipe.control is not None:  # a generator takes a third of a block's time
            # Without the epoch: a random voken that changed in every epoch could not be learned.
            rng = np.random.default_rng([_CONTROL, recipe.seed, number])
            vokens = control_vokens(recipe.control, vokens, tokens, rng, recipe.vokens)
        learned = firsts if recipe.label == "first" else np.ones(len(block), bool)
        labels[i, inner] = np.where(learned, vokens, IGNORED)
        if block.shape[1] > 2:
            further[i, inner] = np.where(learned, block[:, 2], IGNORED)
        ids[i, inner] = tokens
        for rows in (ids, read):
            rows[i, :head] = recipe.prefix
            rows[i, size:end] = recipe.suffix
        present[i, :end] = True
    if recipe.on != "all":
        # With `masked` the tokens that were not chosen lose their voken, with `unmasked` those that
        # were.
        for array in (labels, further):
            array[chosen != (recipe.on == "masked")] = IGNORED
    longest = int(present.sum(1).max(initial=0))
    # A step without any masked token, or voken, divides its sum of 0 by 1.
    token_count = max(1, int(chosen.sum())) / parts
    voken_count = max(1, int((labels != IGNORED).sum())) / parts
    also_count = max(1, int((further != IGNORED).sum())) / parts

    def tensor(rows: Array) -> Tensor:
        return to_device(rows, device)

    batches = list[VokenBatch]()
    for part in np.array_split(np.arange(len(numbers)), parts):
        # Places are found here: on a GPU each `nonzero` would wait for the steps before.
        words, targets, others, hidden, inside = (
            rows[part, :longest].ravel() for rows in (ids, labels, further, chosen, present)
        )
        masked = np.flatnonzero(hidden)
        given = np.flatnonzero(targets != IGNORED)
        named = np.flatnonzero(others != IGNORED)
        attention = inside.reshape(len(part), -1).astype(np.int64)
        batch = VokenBatch(
            ids=tensor(read[part, :longest]),
            # Without a mask the fused attention kernels are faster.
            attention=None if attention.all() else tensor(attention),
            masked=tensor(masked),
            tokens=tensor(words[masked]),
            places=tensor(given),
            vokens=tensor(targets[given]),
            also_places=tensor(named),
            also_labels=tensor(others[named]),
            token_count=token_count,
            voken_count=voken_count,
            also_count=also_count,
        )
        batches.append(batch)
    return batches


def halve(batch: VokenBatch) -> tuple[VokenBatch, ...]:
    """Return the halves of a batch, whose losses add up to its own; one block cannot be cut."""
    return halves(batch, {"masked": "tokens", "places": "vokens", "also_places": "also_labels"})


def make_batches(
    corpus: Corpus, recipe: VokenMasking, plan: StepPlan, device: torch.device | str = "cpu"
) -> Batches:
    """Return the batches of an epoch as `train` expects them; see `step_batches`."""

    def build(numbers: Array, epoch: int, parts: int) -> list[VokenBatch]:
        return collate(corpus, numbers, recipe, epoch, parts, device)

    counts = {
        "token_count": lambda b: len(b.tokens),
        "voken_count": lambda b: len(b.vokens),
        "also_count": lambda b: len(b.also_labels),
    }
    return step_batches(len(corpus), recipe.seed, plan, build, counts)


def evaluate(
    model: VisuallySupervisedLM,
    corpus: Corpus,
    recipe: VokenMasking,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Measure losses and perplexity, exp(mlm), with fixed masks, which no seed or epoch changes.

    Only the inputs have labels of --also, so that their loss is not measured.
    """
    parts = np.array_split(np.arange(len(corpus)), -(-len(corpus) // batch_size))
    batches = (collate(corpus, numbers, recipe, None, 1, device)[0] for numbers in parts)
    means = mean_losses(
        model, batches, lambda batch, name: len(batch.tokens if name == "mlm" else batch.vokens)
    )
    means.pop(ALSO, None)
    return means
