"""Phrases of captions, grounded in regions of pictures (Flickr30k Entities)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgtools.images.boxes import iou
from vgtools.images.phrases import phrase_boxes, phrase_span, picture_size
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.tasks.examples import Example, ReadStats, VisualExample
from vgtools.tasks.predictions import Items, Joined, NetworkOutputs, make_row, score_items
from vgtools.tasks.sequences import Encoding, SequenceBuilder, TaskInputs
from vgtools.tasks.table import Task
from vgtools.text.tokens import tokenize

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["encode", "gold", "head", "loss", "majority", "parse", "read", "rows", "score"]


def read(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, VisualExample]]:
    """Yield phrases with boxes, caption by caption, of `vg prepare flickr30k-entities`."""
    for line, row in read_jsonl(path, {"image": str, "text": str, "phrases": list}):
        stats.check(row, path, line)
        size = picture_size(row, path, line)
        for number, phrase in enumerate(row["phrases"], 1):
            phrase = phrase if isinstance(phrase, dict) else {}
            span = phrase_span(phrase, len(row["text"]), number, path, line)
            boxes = phrase_boxes(phrase.get("boxes"), size, number, path, line)
            if not boxes:
                stats.unboxed += 1
                continue
            example = VisualExample(
                f"{line}-{number}",
                row["text"],
                images=(row["image"],),
                span=span,
                boxes=boxes,
                size=size,
                line=line,
            )
            yield line, example


def gold(task: Task, example: Example) -> list[list[float]] | None:
    """Return the boxes of the phrase."""
    return [list(box) for box in getattr(example, "boxes", ())] or None


@dataclass(frozen=True, kw_only=True)
class PhraseCaptions(TaskInputs):
    """Captions as token ids: a unit is a caption, an example a phrase."""

    phrases: list[list[int]]  # the numbers of the examples that are phrases of each unit
    places: list[list[int]]  # the last token of each of those phrases


def encode(task: Task, examples: Sequence[Example], how: Encoding) -> PhraseCaptions:
    """Turn captions into token ids; the place of a phrase is its last sub-word.

    Raises:
        DataError: a caption has no token.

    Source: Li et al. 2020, appendix B.4.
    """
    phrases = [e for e in examples if isinstance(e, VisualExample)]
    groups = [list(g) for _, g in groupby(range(len(phrases)), key=lambda i: phrases[i].line)]
    builder = SequenceBuilder(how, pair=False)
    room = builder.room
    tokens = tokenize(how.tokenizer, [phrases[group[0]].text for group in groups])
    places = list[list[int]]()
    cut = 0
    for number, group in enumerate(groups):
        words, spans = tokens.row(number)
        if not len(words):
            raise DataError("the text has no token", how.file, phrases[group[0]].line)
        cut += len(words) > room
        # A phrase after the cut is read at the last token that is left.
        begin = builder.add(words[:room], None)
        places.append([begin + min(_last_token(spans, *phrases[i].span), room - 1) for i in group])
    firsts = np.array([group[0] for group in groups])
    return PhraseCaptions(
        *builder.arrays(), 1, firsts, None, cut=cut, phrases=groups, places=places
    )


def _last_token(spans: Array, start: int, end: int) -> int:
    """Return the last token that touches some characters, or 0."""
    touched = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start))
    return int(touched[-1]) if len(touched) else 0


def head(task: Task) -> None:
    """Text alone has no regions."""


def loss(outputs: Tensor, batch: Any) -> Tensor:
    """Return the Kullback-Leibler divergence of log shares from the gold shares of the regions."""
    from torch.nn import functional as F

    return F.kl_div(outputs, batch.labels, reduction="sum")


class PhraseRanking(NamedTuple):
    """The answer to a phrase."""

    boxes: list[list[float]]  # best first, in the pixels of the data set
    score: float  # score of the first box
    reachable: bool  # some region of the picture covers the phrase


def rows(task: Task, examples: Sequence[Example], made: NetworkOutputs) -> Iterator[dict[str, Any]]:
    """Yield rows with the boxes, best first; `reachable` gives the upper bound."""
    for example, (boxes, score, reachable) in zip(examples, made.outputs, strict=True):
        row = make_row(example.id, boxes, gold(task, example), score=round(score, 6))
        yield row | {"reachable": reachable}


def parse(
    task: Task, key: str, value: Any, file: str | Path | None, line: int | None
) -> list[list[float]]:
    """Return boxes."""
    boxes = value if isinstance(value, list) else []
    shaped = all(isinstance(box, list) and len(box) == 4 for box in boxes)
    numbers = [x for box in boxes for x in box] if shaped else []
    if not numbers or not all(type(x) in (int, float) and math.isfinite(x) for x in numbers):
        why = f'"{key}" must be a list of boxes [x1, y1, x2, y2], got {value!r:.60}'
        raise DataError(why, file, line)
    for x1, y1, x2, y2 in boxes:
        if x2 < x1 or y2 < y1:
            why = f'"{key}": expected x1 <= x2 and y1 <= y2 of a box, got {[x1, y1, x2, y2]}'
            raise DataError(why, file, line)
    return boxes


def score(task: Task, joined: Joined, threshold: float | None = None) -> Items:
    """Score whether a gold box is covered by the best box, one of the best 5, 10, or any region.

    A box covers another with IoU >= 0.5.

    Source: Li et al. 2020, Table 6; Plummer et al. 2015.
    """
    best = [  # (boxes,) the largest overlap of each predicted box
        iou(np.array(boxes), np.array(golds)).max(1)
        for boxes, golds in zip(joined.predicted, joined.gold, strict=True)
    ]
    hits = {
        f"recall_{k}": np.array([overlap[:k].max() >= 0.5 for overlap in best], np.float64)
        for k in (1, 5, 10)
    }
    reachable = [row.get("reachable") for row in joined.rows]
    if all(isinstance(known, bool) for known in reachable):
        hits["upper_bound"] = np.array(reachable, np.float64)
    scores = {name: float(each.mean()) for name, each in hits.items()}
    return score_items(joined, hits["recall_1"], scores)


def majority(task: Task, learnt: Sequence[Example]) -> None:
    """Boxes have no classes."""
