"""Revokenization: carry vokens from the tokens they were made for to the tokens of another tokenizer.

Tan & Bansal 2020, "Vokenization: Improving Language Understanding with Contextualized, Visual-Grounded Supervision",
section 3.3. A module of its own because it needs no network: nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgtools.text.tokens import Tokens, span_iou_align, tokenize
from vgtools.text.vokens import VokenRows, check_rows

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class Revokenized(NamedTuple):
    """What became of a batch of voken rows."""

    rows: list[dict[str, Any]]
    tokens: Tokens  # of the target tokenizer
    none: int  # tokens that overlap no token of the source


def revokenize(
    rows: Iterable[dict[str, Any]], tokenizer: Tokenizer, batch: int = 1024
) -> Iterator[dict[str, Any]]:
    """Yield voken rows, in order, with the vokens on another tokenizer's tokens.

    A token u of the target tokenizer takes the voken (and score) of the source token whose range in the raw sentence has
    the largest intersection over union with its own. Text and further keys stay as they are, `-k` lists stay lists.

    Args:
        rows: voken rows: `text`, `spans`, `vokens`, `scores` or none.
        tokenizer: the target tokenizer T2, any fast one.
        batch: rows a step; the result does not depend on it.

    Yields:
        Each row with new `spans` (an (n, 2) int32 array), `vokens` and `scores` (lists).

    Raises:
        DataError: a row is no voken row.

    Source: Tan & Bansal 2020 (Vokenization), section 3.3: v(u_j; s) = v(w_ind(j); s), ind(j) = argmax_i IoU(w_i, u_j).
    Deviation: of equal IoUs the first wins. A token that overlaps nothing gets -1 (score 0); the published code gives it a
        neighbour's voken. A row that has the target's spans already stays as it is, bytes of one character included.
    """
    stream, done = iter(rows), 0
    while part := list(islice(stream, batch)):
        yield from revokenize_batch(check_rows(part, first=done + 1), tokenizer).rows
        done += len(part)


def revokenize_batch(source: VokenRows, tokenizer: Tokenizer) -> Revokenized:
    """Carry the vokens of some checked rows to another tokenizer's tokens; see `revokenize`."""
    target = tokenize(tokenizer, [row["text"] for row in source.rows])
    best = span_iou_align(source.spans, source.starts, target.spans, target.starts)
    same = _same_rows(source, target)
    nowhere = best < 0
    if same.any():
        mine = np.repeat(same, np.diff(target.starts))
        best = np.where(
            mine, np.arange(len(best)) - np.repeat(target.starts[:-1], np.diff(target.starts)), best
        )
        nowhere &= ~mine
    choice, starts = best.tolist(), target.starts.tolist()
    rows = []
    for i, row in enumerate(source.rows):
        span = slice(starts[i], starts[i + 1])
        rows.append(
            {**row, "spans": target.spans[span], "vokens": _carry(row["vokens"], choice[span], -1)}
        )
        if "scores" in row:
            rows[-1]["scores"] = _carry(row["scores"], choice[span], 0.0)
    return Revokenized(rows, target, int(nowhere.sum()))


def _same_rows(source: VokenRows, target: Tokens) -> np.ndarray[Any, Any]:
    """Return (R,) bool: the row has the target tokenizer's very spans already."""
    counts = np.diff(target.starts)
    same: np.ndarray[Any, Any] = counts == np.diff(source.starts)
    ours = np.repeat(same, np.diff(source.starts))
    theirs = np.repeat(same, counts)
    wrong = (source.spans[ours] != target.spans[theirs]).any(1)
    same[np.repeat(np.arange(len(counts)), np.where(same, counts, 0))[wrong]] = False
    return same


def _carry(values: list[Any], choice: list[int], none: float) -> list[Any]:
    """Return the chosen values; the entry behind the last, which index -1 takes, stands for none."""
    listed = bool(values) and type(values[0]) is list
    ends = [*values, [none] * len(values[0]) if listed else none]
    return [ends[i] for i in choice]
