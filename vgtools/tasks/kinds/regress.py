"""Scores of texts or of pairs of sentences, in a range."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from vgtools.io.errors import DataError
from vgtools.io.streams import parse_number
from vgtools.tasks.examples import Example, ReadStats, read_sentences
from vgtools.tasks.kinds.classify import named_outputs
from vgtools.tasks.predictions import NetworkOutputs, check_number, make_row
from vgtools.tasks.predictions import score_metrics as score
from vgtools.tasks.sequences import encode_texts as encode
from vgtools.tasks.table import Task

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["encode", "gold", "head", "loss", "majority", "parse", "read", "rows", "score"]


def read(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, Example]]:
    """Yield (line, example) of an official file."""
    return read_sentences(task, path, unlabelled, stats, _gold_score)


def _gold_score(
    task: Task, column: str, label: object, file: str | Path | None, line: int | None
) -> float:
    # Python would read true as 1.0, and both NaN and faults fail the comparison below.
    try:
        given: Any = parse_number(label) if isinstance(label, str) else label
        value = math.nan if isinstance(label, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not task.low <= value <= task.high:
        expected = f"a number from {task.low:g} to {task.high:g}"
        raise DataError(f'{label!r:.60} in "{column}"; expected {expected}', file, line)
    return value


def gold(task: Task, example: Example) -> float | None:
    """Return the score."""
    return example.label


def head(task: Task) -> tuple[str, dict[str, Any]]:
    """Return a head with one output."""
    return "SequenceClassification", {"problem_type": "regression", **named_outputs(["score"])}


def loss(outputs: Tensor, batch: Any) -> Tensor:
    """Return the squared error of (B, 1) scores."""
    from torch.nn import functional as F

    return F.mse_loss(outputs[:, 0], batch.labels, reduction="sum")


def rows(task: Task, examples: Sequence[Example], made: NetworkOutputs) -> Iterator[dict[str, Any]]:
    """Yield rows with the score; outputs: (N, 1)."""
    for example, value in zip(examples, made.outputs[:, 0], strict=True):
        yield make_row(example.id, float(value), example.label)


def parse(task: Task, key: str, value: Any, file: str | Path | None, line: int | None) -> float:
    """Return a score; predictions may leave the range."""
    if key == "prediction":
        return check_number(key, value, file, line)
    return _gold_score(task, key, value, file, line)


def majority(task: Task, learnt: Sequence[Example]) -> float | None:
    """Return the mean score if errors count; a constant has no correlation."""
    return fmean(float(e.label or 0) for e in learnt) if task.lower_is_better else None
