"""Revokenization (Tan & Bansal 2020, section 3.3): vokens on another tokenizer's tokens.

A module of its own because it needs no network: nothing here imports torch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.helpers import spread
from vgtools.io.output import Output
from vgtools.io.splits import is_held_out
from vgtools.io.streams import Piece, Window, read_windows
from vgtools.text.tokens import Tokens, span_iou_align, tokenize, tokenizer_fingerprint
from vgtools.text.vokens import (
    EncodedRows,
    VokenRows,
    VokenWriter,
    encode,
    no_collection,
    parse_rows,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WINDOW = 2048  # rows per step: the most that a kill costs and that memory holds


class Revokenized(NamedTuple):
    """Voken rows on another tokenizer's tokens."""

    rows: list[dict[str, Any]]  # with new `spans`, an (n, 2) int32 array, `vokens` and `scores`
    tokens: Tokens  # tokens of the target tokenizer
    none: int  # tokens that overlap no token of the source


def revokenize(source: VokenRows, tokenizer: Tokenizer) -> Revokenized:
    """Carry the vokens of some rows to another tokenizer's tokens.

    A token u of the target tokenizer takes the voken (and score) of the source token whose range in
    the raw sentence has the largest intersection over union with its own. Text and further keys
    stay as they are, `-k` lists stay lists. The result of a row does not depend on the others,
    except that one without source tokens has lists if they do.

    Args:
        source: R checked rows.
        tokenizer: the target tokenizer T2, any fast one.

    Source: Tan & Bansal 2020 (Vokenization), section 3.3: v(u_j; s) = v(w_ind(j); s),
        ind(j) = argmax_i IoU(w_i, u_j).
    Deviation: among equal IoUs the first wins. A token that overlaps nothing gets -1 (score 0); the
        published code gives it a neighbour's voken. A row that has the target's spans already stays
        as it is, bytes of one character included.
    """
    target = tokenize(tokenizer, [row["text"] for row in source.rows])
    best = span_iou_align(source.spans, source.starts, target.spans, target.starts)
    counts = np.diff(target.starts)
    same = np.repeat(_same_rows(source, target), counts)
    within = np.arange(len(best)) - np.repeat(target.starts[:-1], counts)
    # Byte-level tokens of one character have equal spans, so overlap alone would give all of them
    # the voken of the first; in a row with the same spans each token keeps its own.
    choice = np.where(same, within, best)
    rows = []
    first = next((row["vokens"][0] for row in source.rows if row["vokens"]), None)
    k = len(first) if isinstance(first, list) else None
    for row, (start, end) in zip(source.rows, pairwise(target.starts.tolist()), strict=True):
        chosen = choice[start:end]
        vokens = _carry(row["vokens"], chosen, -1, k)
        rows.append({**row, "spans": target.spans[start:end], "vokens": vokens})
        if "scores" in row:
            rows[-1]["scores"] = _carry(row["scores"], chosen, 0.0, k)
    return Revokenized(rows, target, int(((best < 0) & ~same).sum()))


def _same_rows(source: VokenRows, target: Tokens) -> Array:
    """Return (R,) bool, whether a row has the target tokenizer's spans already."""
    counts = np.diff(target.starts)
    same: Array = counts == np.diff(source.starts)
    ours = np.repeat(same, np.diff(source.starts))
    theirs = np.repeat(same, counts)
    wrong = (source.spans[ours] != target.spans[theirs]).any(1)
    # A single token with another span rules its row out.
    same[np.repeat(np.arange(len(counts)), np.where(same, counts, 0))[wrong]] = False
    return same


def _carry(values: list[Any], choice: Array, none: float, k: int | None) -> list[Any]:
    """Return the chosen values; index -1 takes `none`, or a list of it.

    Without values, `k` is the length of that list; None for no list.
    """
    if values:
        k = len(values[0]) if isinstance(values[0], list) else None
    ends = [*values, none if k is None else [none] * k]
    return [ends[i] for i in choice.tolist()]


def draw(rows: Sequence[dict[str, Any]], seed: int) -> None:
    """Give each token one of its k vokens, drawn in proportion to their scores.

    Training on draws has the gradient of training on all k vokens, weighted by their scores, in
    expectation. The draws of a row depend on nothing but its text.

    Args:
        rows: rows with lists of k vokens and scores; changed in place.
        seed: seed of the draws.

    Raises:
        ValueError: a row has one voken per token, or no scores.
    """
    for row in rows:
        if set(map(type, row["vokens"])) != {list} or "scores" not in row:
            if all(voken == -1 for voken in row["vokens"]):
                continue  # its text has no token of the source
            raise ValueError('needs lists of "vokens" and "scores"; vg vokenize -k N writes them')
        vokens = np.array(row["vokens"])
        # Scores that no matcher gives would have an infinite sum.
        sums = np.cumsum(np.where(vokens < 0, 0, np.clip(row["scores"], 0, 1e300)), axis=1)
        rng = np.random.default_rng([seed, zlib.crc32(row["text"].encode())])
        at = rng.random((len(vokens), 1)) * sums[:, -1:]
        # Without any score above 0 the first is taken.
        place = np.where(sums[:, -1:] > 0, (sums <= at).sum(1, keepdims=True), 0)
        row["vokens"] = np.take_along_axis(vokens, place, 1)[:, 0].tolist()
        row["scores"] = np.take_along_axis(np.array(row["scores"]), place, 1)[:, 0].tolist()


class CarriedRows(NamedTuple):
    """The rows of a window, ready to be written."""

    rows: EncodedRows
    none: int  # tokens that overlap no token of the source
    held_out: int  # rows of a split to evaluate on


@dataclass(frozen=True)
class RevokenizeStep:
    """Carries the rows of a window over, in this process or a helper."""

    tokenizer: Tokenizer
    draw: int | None
    path: str  # the output

    def __call__(self, window: Window) -> CarriedRows:
        """Return the rows of a window, carried over.

        Raises:
            DataError: as `parse_rows` and `encode`; or there is nothing to draw from.
        """
        with no_collection():
            done = revokenize(parse_rows(window.lines, window.path, window.first), self.tokenizer)
            if self.draw is not None:
                try:
                    draw(done.rows, self.draw)
                except ValueError as error:
                    raise DataError(f"--draw: {error}", window.path, window.first) from None
            rows = encode(done.rows, done.tokens.ids, self.path, window)
            return CarriedRows(rows, done.none, sum(map(is_held_out, done.rows)))


@dataclass(frozen=True)
class RevokenizeTask:
    """How voken rows get another tokenizer's tokens: all rows, or the rows of a shard."""

    tokenizer: Tokenizer
    ref: str  # reference of the tokenizer
    origin: Mapping[str, Any]  # other settings that decide the rows
    facts: Mapping[str, Any]  # for the manifest
    limit: int | None
    draw: int | None = None  # seed of a draw among the vokens of a token
    helpers: int | None = None  # processes that carry them over; by default one per core

    @cached_property
    def config(self) -> dict[str, Any]:
        """The settings that decide the rows."""
        sha256 = tokenizer_fingerprint(self.tokenizer)
        config = {"command": "revokenize", "tokenizer_sha256": sha256, "limit": self.limit}
        drawn = {} if self.draw is None else {"draw": self.draw}
        return {**config, **drawn, **self.origin}

    def open(self, path: str, output: Callable[..., Any] = Output) -> VokenWriter:
        """Return the writer of rows; `output` opens its files."""
        return VokenWriter(path, self.config, output)

    def steps(self, pieces: Sequence[Piece], out: VokenWriter) -> Generator[int, None, None]:
        """Write the rows of pieces of the input and finish; yield the tokens of each step."""
        windows = read_windows(pieces, _WINDOW, out.state, self.limit)
        step = RevokenizeStep(self.tokenizer, self.draw, out.path)
        with closing(spread(windows, step, self.helpers)) as steps:
            for window, done in steps:
                held_out = {"held_out": done.held_out} if done.held_out else {}
                out.append(done.rows, none=done.none, replaced=window.replaced, **held_out)
                out.commit(window.digest)
                yield int(done.rows.lengths.sum())
        made_by = {"ref": self.ref, "sha256": self.config["tokenizer_sha256"]}
        out.finish(tokenizer=made_by, **self.facts)
