"""Blocks of text for the student become batches, with the blocks that the teacher reads.

The teacher reads the student's block without masks, decoded and tokenised again, or another block.
Masks, partners and the teacher's tokens to predict are pure functions of (seed, epoch, number of
the block): neither the batch nor the process that a block falls to changes them.

Axes: B rows, T student tokens, S teacher blocks of a row, t tokens of such a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.models.clip import clip_blocks, ends_of, most_blocks, stack_blocks
from vgtools.models.encoder import Encoder
from vgtools.systems.xdbert.model import XDBertBatch
from vgtools.text.blocks import Corpus
from vgtools.text.masking import Masking, mask_tokens

# The purpose of a random generator, as the first of its seeds; 0 is the order of the blocks.
_MASK = 1
_FIXED = 2
_PARTNER = 3
_CHOICE = 4


@dataclass(frozen=True)
class PairMasking(Masking):
    """How blocks become inputs and labels."""

    seed: int = 0  # decides order, masks, partners and choices
    # This is the share of the student's tokens to mask, and of the teacher's tokens to predict.
    rate: float = 0.15
    match: bool = True  # the teacher reads another text for half of the rows


@dataclass(frozen=True)
class TeacherText:
    """The teacher's reading of a student's text: the text, in the teacher's own tokens.

    Source: Hsu et al. 2022, appendix B: blocks of 77 tokens, 9 for 512 of the student.
    """

    student: Any  # Tokenizer
    teacher: Encoder
    most: int  # blocks of a text; the rest is cut

    @classmethod
    def of(cls, student: Encoder, teacher: Encoder, block: int) -> TeacherText:
        """Return how texts of `block` student tokens are read."""
        return cls(student.tokenizer, teacher, most_blocks(block))

    @property
    def room(self) -> int:
        """Tokens that the teacher reads of a text."""
        return self.most * self.teacher.max_tokens

    def tokens(self, texts: Sequence[Array]) -> list[list[int]]:
        """Return the teacher's tokens of texts in the student's, without marks, uncut."""
        rows = [text.tolist() for text in texts]
        decoded = self.student.decode_batch(rows, skip_special_tokens=True)
        encoded = self.teacher.tokenizer.encode_batch(decoded, add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def blocks(self, tokens: Sequence[int]) -> list[Array]:
        """Return the blocks of a text."""
        return clip_blocks(tokens, self.most, ends_of(self.teacher), self.teacher.max_tokens)


def tokens_of(corpus: Corpus, number: int) -> Array:
    """Return the (n,) tokens of a block of text, without special ones."""
    return corpus.block(number)[0][:, 0].astype(np.int64)


def partners(numbers: Array, count: int, recipe: PairMasking, epoch: int | None) -> Array:
    """Return the block whose text the teacher reads with each block: itself, or another.

    Args:
        numbers: (B,) blocks.
        count: number of all blocks; two or more with `match`.
        recipe: how they are paired.
        epoch: decides the draw; None is the fixed choice of evaluation: always another block.

    Returns:
        (B,) blocks; with `match` half of them, on average, are drawn evenly from all others.

    Source: Hsu et al. 2022, section 2.3.2: "nonidentical 50% of the time".
    """
    if not recipe.match:
        return numbers
    found = numbers.copy()
    for i, number in enumerate(numbers.tolist()):
        rng = np.random.default_rng(_seeds(_PARTNER, recipe, epoch, number))
        # Drawn from count - 1 numbers and shifted past its own, each other block is equally likely.
        drawn = int(rng.integers(count - 1))
        if epoch is None or rng.random() < 0.5:
            found[i] = drawn + (drawn >= number)
    return found


def _seeds(use: int, recipe: PairMasking, epoch: int | None, number: int) -> list[int]:
    """Return the seeds of a block's random draws; in evaluation no seed matters."""
    if epoch is None:
        return [_FIXED, use, number]
    return [use, recipe.seed, epoch, number]


class _PairRow(NamedTuple):
    """One block with its teacher's text."""

    ids: Array  # (n,) with special tokens
    read: Array  # (n,) the same, masked
    masked: Array  # (n,) bool
    blocks: list[Array]
    chosen: list[Array]  # for each of `blocks`, the tokens to predict, -1 elsewhere
    same: bool


def collate(
    corpus: Corpus,
    numbers: Array,
    others: Array,
    recipe: PairMasking,
    texts: TeacherText,
    epoch: int | None,
    parts: int = 1,
    device: torch.device | str = "cpu",
) -> list[XDBertBatch]:
    """Build the batches of one step from its blocks.

    Args:
        corpus: where the blocks come from.
        numbers: (B,) blocks of the step.
        others: (B,) blocks whose text the teacher reads with each.
        recipe: how they become inputs and labels.
        texts: how the teacher reads them.
        epoch: decides masks and choices; None gives the fixed draws of evaluation.
        parts: batches to cut the step into; at most B.
        device: where they go.

    Returns:
        The batches, whose losses add up to `parts` times the mean over the step.

    Source: Hsu et al. 2022, sections 2.3.1 and 2.3.3: 15 % of the tokens of both.
    """
    pairs = list(zip(numbers.tolist(), others.tolist(), strict=True))
    # A block that is also the partner of another is read once.
    own = {n: tokens_of(corpus, n) for n in {*numbers.tolist(), *others.tolist()}}
    seen = texts.tokens([own[other] for _, other in pairs])
    rows = [
        _row(own[number], tokens, number == other, number, recipe, texts, epoch)
        for (number, other), tokens in zip(pairs, seen, strict=True)
    ]
    counts = (
        max(1, sum(int(row.masked.sum()) for row in rows)) / parts,
        len(rows) / parts,
        max(1, sum(int((c >= 0).sum()) for row in rows for c in row.chosen)) / parts,
    )
    cuts = [part.tolist() for part in np.array_split(np.arange(len(rows)), parts)]
    return [_stack([rows[i] for i in cut], recipe.pad, counts, device) for cut in cuts]


def _row(
    tokens: Array,
    seen: Sequence[int],
    same: bool,
    number: int,
    recipe: PairMasking,
    texts: TeacherText,
    epoch: int | None,
) -> _PairRow:
    rng = np.random.default_rng(_seeds(_MASK, recipe, epoch, number))
    read, masked = mask_tokens(tokens, rng, recipe.mask, recipe.vocabulary, recipe.rate)
    ends = len(recipe.prefix), len(recipe.suffix)
    framed = [np.array([*recipe.prefix, *ids, *recipe.suffix], np.int64) for ids in (tokens, read)]
    blocks = texts.blocks(seen)
    # The marks of start and end are never chosen, so a block has two tokens fewer to draw for.
    sizes = np.cumsum([0, *(len(block) - 2 for block in blocks)])
    # A generator of its own: the teacher's choices do not depend on how many tokens the student's
    # block masked.
    rng = np.random.default_rng(_seeds(_CHOICE, recipe, epoch, number))
    drawn = rng.random(sizes[-1]) < recipe.rate
    chosen = []
    for block, (a, b) in zip(blocks, pairwise(sizes.tolist()), strict=True):
        chosen.append(np.full(len(block), -1, np.int64))
        chosen[-1][1:-1] = np.where(drawn[a:b], block[1:-1], -1)
    return _PairRow(framed[0], framed[1], np.pad(masked, ends), blocks, chosen, same)


def _stack(
    rows: Sequence[_PairRow],
    pad: int,
    counts: tuple[float, float, float],
    device: torch.device | str,
) -> XDBertBatch:
    """Return rows as a batch, padded to its own longest row and longest block."""
    longest = max(len(row.ids) for row in rows)

    def table(field: str, fill: int) -> Tensor:
        filled = np.full((len(rows), longest), fill, np.int64)
        for to, row in zip(filled, rows, strict=True):
            to[: len(row.ids)] = getattr(row, field)
        return torch.from_numpy(filled)

    present = torch.arange(longest) < torch.tensor([len(row.ids) for row in rows])[:, None]
    masked = table("masked", 0).flatten().nonzero()[:, 0]
    blocks, lengths = stack_blocks([row.blocks for row in rows])
    chosen, _ = stack_blocks([row.chosen for row in rows])
    place = np.arange(chosen.shape[2])
    batch = XDBertBatch(
        ids=table("read", pad),
        attention=present.long(),
        masked=masked,
        tokens=table("ids", pad).flatten()[masked],
        blocks=torch.from_numpy(blocks),
        lengths=torch.from_numpy(lengths),
        chosen=torch.from_numpy(np.where(place < lengths[..., None], chosen, -1)),
        same=torch.tensor([int(row.same) for row in rows]),
        token_count=counts[0],
        row_count=counts[1],
        clip_count=counts[2],
    )
    return batch.to(device)
