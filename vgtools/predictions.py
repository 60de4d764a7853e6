"""Predictions of the downstream tasks: the form of `predictions.jsonl`, and its official scores.

A fine-tuned model writes one `prediction_row` an example; `score_predictions` scores such rows again without the model, and,
as each row carries its label, without the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vgtools import metrics
from vgtools.io import DataError, Exit, read_jsonl
from vgtools.regions import iou
from vgtools.tasks import Example, Task, find_task, label_value


def prediction_row(
    task: Task,
    example: Example,
    prediction: Any,
    *,
    score: float | None = None,
    logits: Sequence[float] | None = None,
    no_answer: float | None = None,
) -> dict[str, Any]:
    """Return the row of `predictions.jsonl` for one example.

    Args:
        task: the task.
        example: what was asked.
        prediction: class or choice number, score, answer text ("" for none), or boxes, best first.
        score: how sure the model is, optional.
        logits: one a class or choice, optional.
        no_answer: SQuAD 2.0, how sure the model is that there is no answer: a probability, or a difference of scores.

    Returns:
        `id`, `prediction` and, where the example has one, `label`: class names, choice numbers, scores, or answer texts
        (a list, empty for an unanswerable question), so that a file of rows can be scored by itself.
    """
    named = task.kind == "classify"
    row: dict[str, Any] = {"id": example.id, "prediction": task.labels[int(prediction)] if named else prediction}
    gold = _gold(task, example)
    if isinstance(gold, list):
        row["label"] = gold
    elif example.label is not None:
        row["label"] = task.labels[int(example.label)] if named else example.label
    extra = {"score": score, "logits": logits, "no_answer": no_answer}
    return row | {key: value for key, value in extra.items() if value is not None}


def _gold(task: Task, example: Example) -> Any:
    """Return an example's label as the rows of predictions hold it, but for class names; None where it has none."""
    if task.kind == "ground":
        return [list(box) for box in getattr(example, "boxes", ())] or None
    return [a.text for a in example.answers] if task.kind == "span" or example.answers else example.label


def read_predictions(task: Task | str, path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `predictions.jsonl`, each checked.

    Raises:
        DataError: not jsonl, `id` or `prediction` missing, a label the task does not have, NaN, an id twice, or no rows;
            with file and line.
    """
    task, seen = find_task(task) if isinstance(task, str) else task, set[str]()
    for line, row in read_jsonl(path, {"id": str}):
        _checked(task, row, path, line)
        if row["id"] in seen:
            raise DataError(f"the id {row['id']!r:.80} stands there already", path, line)
        seen.add(row["id"])
        yield row
    if not seen:
        raise DataError("holds no predictions; the run that writes it was perhaps stopped: run it again", path)


def with_answers(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of SQuAD 2.0 with every answer, even one that was withheld, so that any threshold can be scored."""
    return [{**row, "prediction": row["answer"]} if isinstance(row.get("answer"), str) else dict(row) for row in rows]


def _checked(task: Task, row: Mapping[str, Any], path: str | Path | None, line: int | None) -> None:
    if not isinstance(row.get("id"), str):
        raise DataError(f'"id" must be a string, found {row.get("id")!r:.60}', path, line)
    if row.get("prediction") is None:
        raise DataError(f'the key "prediction" is missing or null; the row has {", ".join(row)}', path, line)
    _value(task, "prediction", row["prediction"], path, line)
    if "label" in row:
        _value(task, "label", row["label"], path, line)
    logits = row.get("logits", [])
    if not isinstance(logits, list) or any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in logits):
        raise DataError(f'"logits" must be a list of numbers, found {logits!r:.60}', path, line)
    for key in ("score", "no_answer"):
        found = row.get(key, 0.0)
        if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
            raise DataError(f'"{key}" must be a finite number, found {found!r:.60}', path, line)


def _value(task: Task, key: str, value: Any, path: str | Path | None, line: int | None) -> Any:
    """Return a prediction or label as the metrics take it: class number, float, or text (label: list of texts)."""
    if task.kind == "ground":
        good = isinstance(value, list) and value and all(isinstance(box, list) and len(box) == 4 for box in value)
        if not good or not all(type(x) in (int, float) and math.isfinite(x) for box in value for x in box):
            raise DataError(f'"{key}" must be a list of boxes [x1, y1, x2, y2], found {value!r:.60}', path, line)
        return value
    if task.kind in ("span", "answer"):
        if key == "label" and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
            raise DataError(f'"label" must be a list of answer texts, found {value!r:.60}', path, line)
        if key == "prediction" and not isinstance(value, str):
            raise DataError(f'"prediction" must be an answer text, found {value!r:.60}', path, line)
        return value
    if task.kind == "regress" and key == "prediction":  # a model may leave the range of the scores
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise DataError(f'"prediction" must be a finite number, found {value!r:.60}', path, line)
        return float(value)
    return label_value(task, key, value, path, line)


@dataclass(frozen=True)
class Spans:
    """What SQuAD's metrics need of every question."""

    exact: metrics.Array  # (N,) exact match with every answer given
    overlap: metrics.Array  # (N,) F1 with every answer given
    answerable: metrics.Array  # (N,) bool
    answered: metrics.Array  # (N,) bool, the prediction is not ""
    no_answer: metrics.Array | None  # (N,), SQuAD 2.0 where the rows have it


@dataclass(frozen=True)
class Items:
    """Predictions beside their gold, in the order of the examples, ready for the metrics and the bootstrap."""

    ids: list[str]
    gold: metrics.Array  # (N,) class numbers or scores; span: zeros
    predicted: metrics.Array  # (N,) likewise; span: each item's mean of exact match and F1
    statistic: metrics.Statistic  # makes the headline, as a fraction, of gold and predicted
    spans: Spans | None = None
    rates: Mapping[str, metrics.Array] = field(default_factory=dict)  # (N,) what each item scores, where it has one by itself
    labels: Sequence[Any] = ()  # N, as `predictions.jsonl` holds them, class numbers in place of names


def gather(
    task: Task | str,
    predictions: Iterable[Mapping[str, Any]],
    examples: Iterable[Example] | None = None,
    *,
    threshold: float | None = None,
    file: str | Path | None = None,
) -> Items:
    """Join predictions to their gold by id.

    Args:
        task: a task or its name.
        predictions: rows of `predictions.jsonl`.
        examples: the gold; None takes the rows' own `label`.
        threshold: SQuAD 2.0, withhold answers whose `no_answer` is above it.
        file: named in errors.

    Raises:
        DataError: an id missing, unknown or twice, a row without gold, `no_answer` in some rows only.
    """
    task = find_task(task) if isinstance(task, str) else task
    rows: dict[str, Mapping[str, Any]] = {}
    for row in predictions:
        _checked(task, row, file, None)
        if row["id"] in rows:
            raise DataError(f"two predictions for the id {row['id']!r:.80}", file)
        rows[row["id"]] = row
    gold: dict[str, Any] = {}
    if examples is None:
        gold = {name: row.get("label") for name, row in rows.items()}
    else:
        for example in examples:
            gold[example.id] = _gold(task, example)
        for found, wanted, what in ((rows, gold, "has no prediction"), (gold, rows, "is predicted but not in the examples")):
            odd = [name for name in wanted if name not in found]
            if odd:
                raise DataError(
                    f"{len(odd)} of {len(gold)} examples: the id {odd[0]!r:.80} {what}; predict the same file that is scored",
                    file,
                )
    if not gold:
        raise DataError("there are no predictions to score", file)
    for name, value in gold.items():
        if value is None:
            raise DataError(f"the id {name!r:.80} has no label; a file without labels cannot be scored", file)
    ids = list(gold)
    said = [_value(task, "prediction", rows[name]["prediction"], file, None) for name in ids]
    real = [_value(task, "label", gold[name], file, None) for name in ids]
    if task.kind == "answer":
        each = np.array([metrics.vqa_item(text, texts) for text, texts in zip(said, real, strict=True)])
        return Items(ids, np.zeros(len(ids)), each, metrics.mean, rates={"accuracy": each}, labels=real)
    if task.kind == "ground":
        rates = _recalls(said, real, [rows[name].get("reachable") for name in ids])
        return Items(ids, np.zeros(len(ids)), rates["recall_1"], metrics.mean, rates=rates, labels=real)
    if task.kind != "span":
        return Items(ids, np.array(real), np.array(said), metrics.mean_of(task.metrics), labels=real)
    spans = _spans(task, said, real, [rows[name].get("no_answer") for name in ids], threshold, file)
    both = (spans.exact + spans.overlap) / 2
    if spans.no_answer is not None and threshold is not None:
        both = np.where(spans.no_answer > threshold, (~spans.answerable).astype(np.float64), both)
    return Items(ids, np.zeros(len(ids)), both, metrics.mean, spans, labels=real)


def _recalls(said: list[Any], real: list[Any], reachable: list[Any]) -> dict[str, metrics.Array]:
    """Return whether a gold box is covered, with IoU >= 0.5, by the best, one of the best five, ten, or any region.

    Source: Li et al. 2020, Table 6; Plummer et al. 2015.
    """
    best = [iou(np.array(boxes), np.array(golds)).max(1) for boxes, golds in zip(said, real, strict=True)]  # (boxes,) each
    rates = {f"recall_{k}": np.array([overlap[:k].max() >= 0.5 for overlap in best], np.float64) for k in (1, 5, 10)}
    if all(isinstance(known, bool) for known in reachable):
        rates["upper_bound"] = np.array(reachable, np.float64)
    return rates


def _spans(
    task: Task,
    said: list[str],
    real: list[list[str]],
    sure: list[float | None],
    threshold: float | None,
    file: str | Path | None,
) -> Spans:
    version_2 = task.name == "squad-2.0"
    scores = np.array([metrics.squad_item(text, texts, version_2) for text, texts in zip(said, real, strict=True)])
    have = sum(value is not None for value in sure)
    if 0 < have < len(sure):
        raise DataError(f"{have} of {len(sure)} rows have no_answer; all or none must", file)
    if threshold is not None and not (have and version_2):
        raise DataError("a no-answer threshold needs squad-2.0 and no_answer in every row", file, code=Exit.USAGE)
    no_answer = np.array(sure, np.float64) if have and version_2 else None
    return Spans(scores[:, 0], scores[:, 1], np.array([bool(t) for t in real]), np.array([bool(t) for t in said]), no_answer)


def score_predictions(
    task: Task | str,
    predictions: Iterable[Mapping[str, Any]],
    examples: Iterable[Example] | None = None,
    *,
    threshold: float | None = None,
    file: str | Path | None = None,
) -> dict[str, float]:
    """Score saved predictions with the task's official metrics; no model is needed.

    Args: as `gather`.

    Returns:
        The metrics by name, in percent as the papers print them (correlations times 100), `headline` (their mean: QQP and
        MRPC F1 and accuracy, STS-B both correlations, SQuAD exact match and F1), and `total`, the number of examples.
        SQuAD 2.0 adds HasAns_/NoAns_ values, and with `no_answer` best_exact, best_f1 and their thresholds (`_thresh`,
        in the unit of `no_answer`).

    Raises:
        DataError: as `gather`.
    """
    task = find_task(task) if isinstance(task, str) else task
    items = gather(task, predictions, examples, threshold=threshold, file=file)
    spans = items.spans
    if items.rates:
        found = {name: float(each.mean()) for name, each in items.rates.items()}
    elif spans is None:
        found = {name: float(metrics.METRICS[name](items.gold, items.predicted, None)) for name in task.metrics}
    elif task.name == "squad-2.0":
        found = metrics.squad2_breakdown(
            spans.exact, spans.overlap, spans.answerable, spans.answered, spans.no_answer, threshold
        )
    else:
        found = {"exact": float(spans.exact.mean()), "f1": float(spans.overlap.mean())}
    if task.name == "nlvr2":
        found["consistency"] = consistency(items)
    percent = {name: value if name.endswith("_thresh") else 100 * value for name, value in found.items()}
    return percent | {"headline": headline(task, percent), "total": len(items.ids)}


def consistency(items: Items) -> float:
    """Return the share of NLVR2's sentences that are right of every pair of pictures they are asked of.

    Source: Suhr et al. 2019, section 6, and its released code: items of `split-set-pair-sentence` share a sentence where only
        the pair differs.
    """
    right = dict[tuple[str, ...], bool]()
    for name, good in zip(items.ids, items.gold == items.predicted, strict=True):
        parts = name.split("-")
        sentence = (*parts[:2], *parts[3:])
        right[sentence] = right.get(sentence, True) and bool(good)
    return sum(right.values()) / len(right)


def joint_scores(answers: Items, rationales: Items, file: str | Path | None = None) -> dict[str, float]:
    """Return VCR's Q→AR in percent: the share of questions whose answer and rationale are both right, and Q→A beside it.

    Args:
        answers: of vcr-qa.
        rationales: of vcr-qar on the same questions, asked with the right answer.
        file: of the answers, named in errors.

    Raises:
        DataError: they are not about the same questions.

    Source: Zellers et al. 2019, section 3; its released code likewise joins two models that were trained apart.
    """
    right = dict(zip(answers.ids, (answers.gold == answers.predicted).tolist(), strict=True))
    _same_questions(right, rationales.ids, file)
    both = [right[name] and good for name, good in zip(rationales.ids, rationales.gold == rationales.predicted, strict=True)]
    return {"qa_accuracy": 100 * float(np.mean(list(right.values()))), "q2ar_accuracy": 100 * float(np.mean(both))}


def _same_questions(answers: Iterable[str], rationales: Iterable[str], file: str | Path | None) -> None:
    odd = sorted(set(answers) ^ set(rationales))
    if odd:
        why = f"{len(odd)} questions are only in one of vcr-qa's and vcr-qar's predictions, the first {odd[0]!r:.80}"
        raise DataError(f"{why}; predict the same file with both", file)


def submission(answers: Iterable[Mapping[str, Any]], rationales: Iterable[Mapping[str, Any]], file: str | Path | None) -> str:
    """Return the CSV of VCR's leaderboard: the probability of each answer, and of each rationale if that answer were right.

    Args:
        answers: rows of vcr-qa's `predictions.test.jsonl`.
        rationales: those of vcr-qar, where the question ID comes as `ID-a0` to `ID-a3`, with each of its answers.
        file: of the answers, named in errors.

    Raises:
        DataError: they are not about the same questions, or have no logits.

    Source: Zellers et al. 2019, released code: columns and their order.
    """
    first, second = ({str(row["id"]): _shares(row, file) for row in rows} for rows in (answers, rationales))
    _same_questions((f"{name}-a{i}" for name in first for i in range(4)), second, file)
    groups = ["answer", *(f"rationale_conditioned_on_a{i}" for i in range(4))]
    lines = [["annot_id", *(f"{group}_{i}" for group in groups for i in range(4))]]
    for name, shares in first.items():
        rows = [shares, *(second[f"{name}-a{i}"] for i in range(4))]
        lines.append([name, *(f"{share:.6g}" for row in rows for share in row)])
    return "".join(",".join(line) + "\n" for line in lines)


def _shares(row: Mapping[str, Any], file: str | Path | None) -> list[float]:
    """Return the probabilities of a row's four choices."""
    logits = np.array(row.get("logits", ()), np.float64)
    if len(logits) != 4:
        raise DataError(f"the id {row['id']!r:.80} has {len(logits)} logits, wanted 4", file)
    shares = np.exp(logits - logits.max())
    found: list[float] = (shares / shares.sum()).tolist()
    return found


def headline(task: Task | str, scores: Mapping[str, float]) -> float:
    """Return the one number of a task in a table: the mean of its metrics.

    Source: Vokenization, section 4.3 (QQP is the mean of F1 and accuracy, after Wang et al. 2019).
    """
    task = find_task(task) if isinstance(task, str) else task
    return sum(scores[name] for name in task.metrics) / len(task.metrics)


def average(scores: Mapping[str, Mapping[str, float]]) -> float:
    """Return `Avg.` of Table 2: the macro mean of the tasks' headlines, each SQuAD one task with mean(EM, F1).

    Args:
        scores: task name -> its metrics, as `score_predictions` gives them.

    Raises:
        ValueError: no tasks.

    Source: Vokenization, Table 2; its rows 1 and 4 give 75.6 and 82.1 so.
    """
    if not scores:
        raise ValueError("the average of no tasks")
    return sum(headline(name, values) for name, values in scores.items()) / len(scores)
