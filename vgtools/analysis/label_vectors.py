"""Words as the labels of their tokens: how much labels alone show of words, without a training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.inputs import Inputs
from vgtools.io.output import Output
from vgtools.io.process import Progress
from vgtools.io.streams import read_windows
from vgtools.io.written import manifest_beside
from vgtools.text.ngrams import NewIds, PairCounts
from vgtools.text.tokens import word_spans
from vgtools.text.vokens import parse_rows, refuse_packed
from vgtools.text.word_vectors import KIND

_BLOCK = 1 << 22  # numbers of the vectors that are written at a time


class LabelCounts(NamedTuple):
    """How often the tokens of words have labels: P pairs, sorted by word, then label."""

    words: list[str]  # V, lower case, in the order of the text
    word: Array  # (P,) int64
    label: Array  # (P,) int64
    times: Array  # (P,) float64


def count_labels(
    path: str, progress: Progress | None = None, memory: int = 1 << 30, limit: int | None = None
) -> LabelCounts:
    """Count the labels of words in voken rows; each token of a word counts with its label.

    If a token has k labels, the first counts.

    Raises:
        DataError: a row is not a voken row; or the file is packed, which has no words (usage).
    """
    refuse_packed(path)
    manifest_beside(path)  # A damaged manifest is refused before hours of counting.
    ids = NewIds()
    pairs = PairCounts(memory)
    for window in read_windows(path, 2048, limit=limit):
        rows, spans, starts = parse_rows(window.lines, path, window.first)
        texts = [row["text"] for row in rows]
        edges = word_spans(texts, spans, starts)
        first = [v[0] if isinstance(v, list) else v for row in rows for v in row["vokens"]]
        labels = np.array(first, np.int64)
        # A token outside of words, a line end for example, has no owner; -1 means no label.
        kept = (edges[:, 0] < edges[:, 1]) & (labels >= 0)
        owner = np.repeat(np.arange(len(texts)), np.diff(starts))[kept]
        places = zip(owner.tolist(), edges[kept].tolist(), strict=True)
        words = [ids[texts[row][a:b].lower()] for row, (a, b) in places]
        pairs.add(np.array(words, np.int64), labels[kept])
        if progress is not None:
            progress.advance(len(labels))
    # Rows without any label yield no block; the empty array keeps the shape.
    found = [np.zeros((3, 0)), *map(np.stack, pairs.blocks())]
    word, label, times = np.concatenate(found, axis=1)
    return LabelCounts(list(ids), word.astype(np.int64), label.astype(np.int64), times)


def ppmi(counts: LabelCounts) -> Array:
    """Return the positive pointwise mutual information of each pair: (P,) nats, at least 0.

    max(0, log(n(w, l) n / (n(w) n(l)))): how much more often a word has a label than by chance.
    """
    of_word = np.bincount(counts.word, counts.times)
    of_label = np.bincount(counts.label, counts.times)
    chance = of_word[counts.word] * of_label[counts.label] / counts.times.sum()
    information: Array = np.maximum(0, np.log(counts.times / chance))
    return information


def write_label_vectors(
    path: str,
    output: str,
    least: int = 1,
    progress: Progress | None = None,
    memory: int = 1 << 30,
    limit: int | None = None,
) -> tuple[int, int]:
    """Write words as vectors of the PPMI of their labels, in the form of `vg prepare vectors`.

    Args:
        path: voken rows.
        output: `X.npy`, (words, labels) float32.
        least: words with fewer tokens are left out.
        progress: counts tokens.
        memory: bytes for the counts.
        limit: rows to read.

    Returns:
        The numbers of words and of labels.

    Raises:
        DataError: as `count_labels`; or no word is left (65).
    """
    inputs = Inputs([path])
    counts = count_labels(path, progress, memory, limit)
    kept = np.bincount(counts.word, counts.times, len(counts.words)) >= least
    if not kept.any():
        raise DataError(f"has no word with {least} or more labels", path)
    width = int(counts.label.max()) + 1
    files = [output, str(Path(output).with_suffix(".ids"))]
    config = {"command": "label-vectors", "least": least, "limit": limit}
    # vg stats has no --restart: a run that cannot be resumed starts over.
    npy = {0: (np.float32, width)}
    with Output(files, config, npy=npy, inputs=inputs, disposable=True) as out:
        for block in () if out.complete else _blocks(counts, kept, width):
            out.write(block.data.cast("B"))
        if not out.complete:
            words = (word for word, is_kept in zip(counts.words, kept, strict=True) if is_kept)
            out.write("".join(f"{word}\n" for word in words).encode(), file=1)
            left_out = int((~kept).sum())
            out.finish(kind=KIND, rows=int(kept.sum()), dim=width, left_out={"rare": left_out})
    return int(kept.sum()), width


def _blocks(counts: LabelCounts, kept: Array, width: int) -> Iterator[Array]:
    """Yield the vectors of the words that are kept, some at a time."""
    values = ppmi(counts)
    rows = np.flatnonzero(kept)
    # Pairs are sorted by word: the pairs of a block of words are a slice, with the rare words
    # between them.
    begin = np.searchsorted(counts.word, rows)
    end = np.searchsorted(counts.word, rows, "right")
    size = max(1, _BLOCK // width)
    for a, b in pairwise([*range(0, len(rows), size), len(rows)]):
        block = np.zeros((b - a, width), np.float32)
        pairs = slice(int(begin[a]), int(end[b - 1]))
        inside = kept[counts.word[pairs]]
        place = np.searchsorted(rows, counts.word[pairs][inside]) - a
        block[place, counts.label[pairs][inside]] = values[pairs][inside]
        yield block
