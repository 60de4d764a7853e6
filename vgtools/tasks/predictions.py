"""Rows of `predictions.jsonl`, and predictions joined to their gold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.names import is_separated
from vgtools.io.streams import parse_number
from vgtools.tasks import metrics
from vgtools.tasks.table import Task, find_task


class NetworkOutputs(NamedTuple):
    """The outputs of a network for some examples, and how they become predictions."""

    inputs: Any  # the examples' tokens
    outputs: Any  # in the form of the task's kind
    threshold: float  # SQuAD 2.0: an answer that scores this much less than none is withheld


def make_row(
    name: str,
    prediction: Any,
    label: Any | None,
    *,
    score: float | None = None,
    logits: Sequence[float] | None = None,
    no_answer: float | None = None,
) -> dict[str, Any]:
    """Return a row of `predictions.jsonl`; keys without a value are left out.

    Args:
        prediction: class name, choice number, score, answer text, or boxes, best first.
        label: likewise; answer texts and boxes as a list. None where the example has none.
        score: how sure the model is.
        logits: one per class or choice.
        no_answer: SQuAD 2.0, how sure the model is that there is no answer: a probability, or a
            difference of scores.
    """
    row = {"id": name, "prediction": prediction, "label": label}
    row |= {"score": score, "logits": logits, "no_answer": no_answer}
    return {key: value for key, value in row.items() if value is not None}


def check_row(row: Mapping[str, Any], path: str | Path | None, line: int | None) -> None:
    """Check the keys that rows of every kind have in common.

    Raises:
        DataError: `id` or `prediction` is missing, a group is not a text, or a number not finite.
    """
    if not isinstance(row.get("id"), str):
        raise DataError(f'"id" must be a string, got {row.get("id")!r:.60}', path, line)
    if row.get("prediction") is None:
        keys = ", ".join(row)
        why = f'the key "prediction" is missing or null; the row has {keys}'
        raise DataError(why, path, line)
    logits = row.get("logits", [])
    if not isinstance(logits, list) or not all(type(x) in (int, float) for x in logits):
        raise DataError(f'"logits" must be a list of numbers, got {logits!r:.60}', path, line)
    for key in ("score", "no_answer"):
        check_number(key, row.get(key, 0.0), path, line)
    if not isinstance(row.get("group", ""), str):
        raise DataError(f'"group" must be a string, got {row["group"]!r:.60}', path, line)


def check_number(key: str, value: Any, path: str | Path | None, line: int | None) -> float:
    """Return a finite number as a float.

    Raises:
        DataError: not a finite number.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise DataError(f'"{key}" must be a finite number, got {value!r:.60}', path, line)
    return float(value)


def number_in(value: Any, path: str | Path) -> Any:
    """Return the number in a cell of a CSV or TSV file, which has strings alone.

    Everything else is returned as it is.
    """
    if isinstance(value, str) and is_separated(path):
        number = parse_number(value)
        return value if number is None else number
    return value


def with_numbers(task: Task, row: Mapping[str, Any], path: str | Path) -> dict[str, Any]:
    """Return a row with the numbers that predictions of its task have, if its file has cells.

    An empty cell is a key that the row does not have.
    """
    if not is_separated(path):
        return dict(row)
    scored = ("prediction", "label") if task.kind == "regress" else ()
    numbers = ("score", "no_answer", *scored)
    kept = {key: value for key, value in row.items() if value != "" or key == "prediction"}
    return {k: number_in(v, path) if k in numbers else v for k, v in kept.items()}


def with_answers(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of SQuAD 2.0 with every answer, even withheld ones, to score any threshold."""
    return [
        {**row, "prediction": row["answer"]} if isinstance(row.get("answer"), str) else dict(row)
        for row in rows
    ]


@dataclass(frozen=True)
class Joined:
    """N predictions with their gold, in the order of the examples."""

    ids: list[str]
    predicted: list[Any]  # as the kind's `parse` returns them
    gold: list[Any]  # likewise
    rows: list[Mapping[str, Any]]
    file: str | Path | None  # named in errors


@dataclass(frozen=True)
class Items:
    """N scored predictions, ready for the paired bootstrap."""

    ids: list[str]
    gold: Array  # (N,) class numbers or scores; zeros where each item is scored on its own
    # (N,) likewise; the score of each item; or (N, S) its counts, which add up over items
    predicted: Array
    statistic: metrics.Statistic  # the headline, as a fraction, of gold and predicted
    scores: Mapping[str, float] = field(default_factory=dict)  # all official metrics, as fractions
    labels: Sequence[Any] = ()  # N, as `predictions.jsonl` holds them; class numbers, not names
    groups: Sequence[str] = ()  # N names; items of one name are drawn together

    def group_numbers(self) -> Array | None:
        """Return (N,) numbers of the groups, None where no item shares anything."""
        return np.unique(self.groups, return_inverse=True)[1] if self.groups else None


def score_metrics(task: Task, joined: Joined, threshold: float | None = None) -> Items:
    """Score labels or numbers with the metrics of the task; the `score` of most kinds."""
    gold = np.array(joined.gold)
    predicted = np.array(joined.predicted)
    scores = {name: float(metrics.METRICS[name](gold, predicted, None)) for name in task.metrics}
    statistic = metrics.mean_of(task.metrics)
    return Items(joined.ids, gold, predicted, statistic, scores, joined.gold)


def score_items(joined: Joined, each: Array, scores: Mapping[str, float]) -> Items:
    """Return the items of a task that scores each of them on its own; `each` is (N,)."""
    zeros = np.zeros(len(joined.ids))
    return Items(joined.ids, zeros, each, metrics.mean, scores, joined.gold)


def count_items(
    joined: Joined, counts: Array, combine: metrics.Combine, scores: Mapping[str, float]
) -> Items:
    """Return the items of a task whose metric is made from sums over all of them.

    Args:
        joined: N predictions.
        counts: (N, S), numbers of each item that add up.
        combine: (..., S) sums -> (...) the headline, as a fraction.
        scores: all official metrics, as fractions.
    """
    zeros = np.zeros(len(joined.ids))
    return Items(joined.ids, zeros, counts, metrics.summed(combine), scores, joined.gold)


def headline(task: Task | str, scores: Mapping[str, float]) -> float:
    """Return the one number of a task in a table: the mean of its metrics.

    Source: Vokenization, section 4.3 (QQP is the mean of F1 and accuracy, after Wang et al. 2019).
    """
    task = find_task(task) if isinstance(task, str) else task
    return sum(scores[name] for name in task.metrics) / len(task.metrics)
