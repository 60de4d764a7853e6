"""Classes of a sentence, of a pair of sentences, or of a sentence with two pictures (NLVR2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.tasks.examples import (
    Example,
    ReadStats,
    VisualExample,
    class_number,
    missing_key,
    read_sentences,
)
from vgtools.tasks.predictions import Items, Joined, NetworkOutputs, make_row, score_metrics
from vgtools.tasks.sequences import encode_texts as encode
from vgtools.tasks.table import Task

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["encode", "gold", "head", "loss", "majority", "parse", "read", "rows", "score"]


def read(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, Example]]:
    """Yield (line, example) of an official file."""
    if task.images and task.own is None:
        return _read_nlvr2(task, path, unlabelled, stats)
    return read_sentences(task, path, unlabelled, stats, class_number)


def _read_nlvr2(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, VisualExample]]:
    """Yield the rows of NLVR2; `dev-850-0-1` is sentence 1 of dev-850-0-img0 and dev-850-0-img1.

    Source: the data set's README.
    """
    for line, row in read_jsonl(path, {"identifier": str, "sentence": str}):
        stats.check(row, path, line)
        name = row["identifier"]
        if len(name.split("-")) != 4:
            why = '"identifier" must be split-set-pair-sentence, for example dev-850-0-1'
            raise DataError(f"{why}; got {name!r:.80}", path, line)
        label = row.get("label")
        if label is None and not unlabelled:
            raise missing_key("label", row, path, line)
        value = None if label is None else class_number(task, "label", str(label), path, line)
        pair = name.rsplit("-", 1)[0]
        images = (f"{pair}-img0", f"{pair}-img1")
        yield line, VisualExample(name, row["sentence"], None, value, images=images, line=line)


def submission(task: Task, rows: Iterable[Mapping[str, Any]], path: str | Path) -> str:
    """Return the CSV that NLVR2's evaluation reads, of rows of predictions.

    Raises:
        DataError: an id is not an identifier of NLVR2; `path` is the file that it names.

    Source: the data set's evaluation code: lines of identifier and prediction, no header.
    """
    lines = list[str]()
    for row in rows:
        if not re.fullmatch(r"[\w.]+(-\w+){3}", row["id"]):
            why = f"expected an identifier such as test1-0-1-0 as id, got {row['id']!r:.60}"
            raise DataError(why, path)
        number = parse(task, "prediction", row["prediction"], path, None)
        lines.append(f"{row['id']},{class_name(task, number)}\n")
    return "".join(lines)


def gold(task: Task, example: Example) -> str | int | None:
    """Return the class, or the number of the choice."""
    return None if example.label is None else class_name(task, int(example.label))


def class_name(task: Task, number: int) -> str | int:
    """Return how rows write a class: its name, or its number where classes have no names."""
    return task.labels[number] if task.labels else number


def head(task: Task) -> tuple[str, dict[str, Any]]:
    """Return a classifier over the names of the classes."""
    settings = {"problem_type": "single_label_classification", **named_outputs(task.labels)}
    return "SequenceClassification", settings


def named_outputs(names: Sequence[str]) -> dict[str, Any]:
    """Return how transformers keeps the names of a head's outputs."""
    return {
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
    }


def loss(outputs: Tensor, batch: Any) -> Tensor:
    """Return the cross entropy of (B, C) logits."""
    from torch.nn import functional as F

    return F.cross_entropy(outputs, batch.labels, reduction="sum")


def rows(task: Task, examples: Sequence[Example], made: NetworkOutputs) -> Iterator[dict[str, Any]]:
    """Yield rows with the best class, its probability as `score`, and the logits.

    Args: as `vgtools.tasks.kinds.Kind`; outputs: (N, C) logits.
    """
    best, probability = most_likely(made.outputs)
    columns = (best.tolist(), probability.tolist(), made.outputs.tolist())
    for example, number, score, logits in zip(examples, *columns, strict=True):
        yield make_row(
            example.id,
            class_name(task, number),
            gold(task, example),
            score=round(score, 6),
            logits=[round(x, 6) for x in logits],
        )


def most_likely(outputs: Array) -> tuple[Array, Array]:
    """Return (N,) the best of (N, C) logits, and (N,) its probability (softmax)."""
    # The largest logit is subtracted, so that exp cannot overflow; its own term is then 1.
    probability = 1 / np.exp(outputs - outputs.max(1, keepdims=True)).sum(1)
    return outputs.argmax(1), probability


parse = class_number


def score(task: Task, joined: Joined, threshold: float | None = None) -> Items:
    """Score classes with the metrics of the task, NLVR2 also by consistency."""
    items = score_metrics(task, joined)
    if task.name == "nlvr2":
        return replace(items, scores={**items.scores, "consistency": consistency(items)})
    return items


def consistency(items: Items) -> float:
    """Return the share of NLVR2's sentences whose prediction is right for each of their pairs.

    Source: Suhr et al. 2019, section 6, and its released code: items of `split-set-pair-sentence`
        share a sentence where only the pair differs.
    """
    right = dict[tuple[str, ...], bool]()
    for name, good in zip(items.ids, items.gold == items.predicted, strict=True):
        parts = name.split("-")
        sentence = (*parts[:2], *parts[3:])
        right[sentence] = right.get(sentence, True) and bool(good)
    return sum(right.values()) / len(right)


def majority(task: Task, learnt: Sequence[Example]) -> int:
    """Return the most frequent class."""
    return int(np.bincount([int(e.label or 0) for e in learnt]).argmax())
