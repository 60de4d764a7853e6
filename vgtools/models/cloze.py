"""The losses of hidden tokens under a masked language model, each token in the context of its text.

Axes: R texts, T their tokens, C copies of texts in which tokens are hidden, A tokens asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from vgtools.io.arrays import Array, ranges
from vgtools.models.encoder import Encoder, load_masked_lm
from vgtools.models.masked_lm import mlm_hidden, token_losses
from vgtools.models.packed import PackedEncoder
from vgtools.models.references import pick_device
from vgtools.text.masking import special_id
from vgtools.text.tokens import MASK_TOKENS


@dataclass(frozen=True)
class Cloze:
    """Copies of texts in which tokens are hidden, and the tokens that are asked for, each once."""

    hidden: Array  # (N,) bool: the tokens of the copies, one copy after the other
    source: Array  # (N,) int64, the token of the texts that each of them is
    starts: Array  # (C + 1,) int64, where copies start
    asked: Array  # (A,) int64, ascending: which of the N are asked for


def one_by_one(starts: Array, ends: Array | None = None) -> Cloze:
    """Return a copy per token, in which it is hidden and asked for.

    Args:
        starts: (R + 1,) int64, where texts start.
        ends: (T,) where the word of each token ends: the rest of its word is hidden with it.
            By default the token alone is hidden.

    Source: Salazar et al. 2020 (Masked language model scoring), section 2; with `ends`, Kauf &
        Ivanova 2023 (A better way to do masked language model scoring), section 3, "within-word
        l2r": else the later pieces of a rare word give away the earlier ones.
    """
    lengths = np.repeat(np.diff(starts), np.diff(starts))  # (T,) of each token's text
    own = np.arange(len(lengths))
    begin = np.repeat(starts[:-1], np.diff(starts))
    edges = np.concatenate([[0], np.cumsum(lengths)])
    asked = edges[:-1] + own - begin
    hidden = np.zeros(edges[-1], bool)
    hidden[ranges(asked, (own + 1 if ends is None else ends) - own)] = True
    return Cloze(hidden, ranges(begin, lengths), edges, asked)


def spaced(starts: Array, words: Array, every: int) -> Cloze:
    """Return copies in which every `every`-th word is hidden, so that each word is hidden once.

    Args:
        starts: (R + 1,) int64, where texts start.
        words: (T,) number of each token's word in its text, from 0, -1 outside words; all tokens
            of a word are asked for.
        every: copies of a text, or as many as it has words.
    """
    sizes = np.diff(starts)
    most = np.full(len(words) + 1, -1)
    most[:-1] = words
    counts = np.maximum.reduceat(most, starts[:-1]) + 1 if len(sizes) else sizes
    counts = np.where(sizes > 0, np.minimum(counts, every), 0)
    lengths = np.repeat(sizes, counts)
    source = ranges(np.repeat(starts[:-1], counts), lengths)
    turn = np.repeat(ranges(np.zeros_like(counts), counts), lengths)
    hidden = (words[source] >= 0) & (words[source] % every == turn)
    edges = np.concatenate([[0], np.cumsum(lengths)])
    return Cloze(hidden, source, edges, np.flatnonzero(hidden))


class ClozeModel:
    """A masked language model that is asked for hidden tokens.

    Args:
        text: a masked language model with its tokenizer.
        device: where it runs.

    Attributes:
        mask: id of the mask.

    Raises:
        DataError: its head is of an unknown shape, or its tokenizer has no mask (78).
    """

    def __init__(self, text: Encoder, device: torch.device | str = "cpu") -> None:
        self.text = text
        lm = text.model.eval().requires_grad_(False).to(device)
        self._head = mlm_hidden(lm)
        self._decoder = lm.get_output_embeddings()
        self._encoder = PackedEncoder(replace(text, model=lm.base_model), 1)
        self.mask = special_id(text.tokenizer, MASK_TOKENS)

    def losses(self, ids: Array, cloze: Cloze) -> Array:
        """Return the negative log likelihood of each token that is asked for, in nats.

        Args:
            ids: (T,) tokens of the texts, without special ones.
            cloze: which of them are hidden, of texts of at most `text.max_tokens` tokens.

        Returns:
            (T,) float64, NaN for tokens that are not asked for.
        """
        found = np.full(len(ids), np.nan)
        for tokens, hidden in self._hidden(ids, cloze):
            target = torch.from_numpy(ids[tokens].astype(np.int64)).to(hidden.device)
            nats = token_losses(hidden, self._decoder.weight, self._decoder.bias, target)
            found[tokens] = nats.double().cpu().numpy()
        return found

    def scores(self, ids: Array, cloze: Cloze, candidates: Array) -> Array:
        """Return the logit of each candidate for each token that is asked for.

        Args:
            ids: as for `losses`.
            cloze: as for `losses`.
            candidates: (C,) ids of tokens.

        Returns:
            (T, C) float64, NaN for tokens that are not asked for.
        """
        found = np.full((len(ids), len(candidates)), np.nan)
        rows = torch.from_numpy(candidates.astype(np.int64)).to(self._decoder.weight.device)
        for tokens, hidden in self._hidden(ids, cloze):
            bias = None if self._decoder.bias is None else self._decoder.bias[rows]
            logits = torch.nn.functional.linear(hidden, self._decoder.weight[rows], bias)
            found[tokens] = logits.double().cpu().numpy()
        return found

    def _hidden(self, ids: Array, cloze: Cloze) -> Iterator[tuple[Array, torch.Tensor]]:
        """Yield numbers (M,) of tokens that are asked for, with the head's last states (M, D)."""
        shown = np.where(cloze.hidden, self.mask, ids[cloze.source])
        lengths = np.diff(cloze.starts)
        for states in self._encoder(shown, cloze.starts[:-1], lengths):
            copies = states.segments
            first = np.searchsorted(cloze.asked, cloze.starts[copies])
            counts = np.searchsorted(cloze.asked, cloze.starts[copies + 1]) - first
            asked = cloze.asked[ranges(first, counts)]
            # A pack has the tokens of its copies one after the other, in its own order.
            before = np.cumsum(lengths[copies]) - lengths[copies]
            rows = asked + np.repeat(before - cloze.starts[copies], counts)
            places = torch.from_numpy(rows).to(states.tokens.device)
            yield cloze.source[asked], self._head(states.tokens[places])


def open_cloze(ref: str, *, device: str = "cpu") -> ClozeModel:
    """Open a masked language model by its reference.

    Raises:
        DataError: as `load_masked_lm`; it has no masked language model's head (78).
    """
    return ClozeModel(load_masked_lm(ref, new_head=False), pick_device(device))
