"""Examples, token sequences and scores of any task: the common part, and its kind for the rest.

Predictions are scored without the model and, as each row carries its label, without the data.
Scoring imports no torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.io.errors import DataError
from vgtools.io.names import refuse_stream
from vgtools.io.streams import read_jsonl
from vgtools.tasks.examples import Example, ReadStats, VisualExample, describe_forms
from vgtools.tasks.kinds import KINDS, answer, tag
from vgtools.tasks.predictions import (
    Items,
    Joined,
    NetworkOutputs,
    check_row,
    headline,
    make_row,
    with_numbers,
)
from vgtools.tasks.sequences import Encoding, TaskInputs
from vgtools.tasks.table import Task, find_task

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def read_examples(
    task: Task | str,
    path: str | Path,
    *,
    unlabelled: bool = False,
    stats: ReadStats | None = None,
    keep: Callable[[str], bool] | None = None,
) -> Iterator[Example]:
    """Yield the examples of an official file, one at a time.

    Args:
        path: the official file (TSV, CSV or JSON), or jsonl with the same keys; `.gz`, `.zst`, `-`.
        unlabelled: a test file: labels may be missing, and are None.
        stats: counts rows, classes and everything left out.
        keep: whether the example of an id is asked for; all are if not given.

    Yields:
        Examples in file order; ids are the file's own where it has them, else the row's number
        from 0.

    Raises:
        DataError: missing (66); empty, a missing column, a wrong column count, an unknown label, a
            duplicate id, broken JSON (65): file, line, the expected form and the form found.
    """
    task = find_task(task) if isinstance(task, str) else task
    stats = ReadStats() if stats is None else stats
    seen: set[str] = set()
    for line, example in KINDS[task.kind].read(task, path, unlabelled, stats):
        if example.id in seen:
            raise DataError(f"duplicate id {example.id!r:.80}; ids must be unique", path, line)
        seen.add(example.id)
        if keep is not None and not keep(example.id):
            continue
        stats.rows += 1
        if isinstance(example.label, float):
            stats.scores.append(example.label)
        stats.labels.update(_labels(task, example))
        yield example
    if not stats.rows:
        found = "holds no examples"
        if stats.broken:
            found = f"all {stats.broken} rows have a wrong column count"
        if seen:
            why = f"none of its {len(seen)} examples falls into this part of --hold-out"
            raise DataError(f"{why}; choose another share", path)
        raise DataError(f"{found}; expected {describe_forms(task, unlabelled)}", path)


def _labels(task: Task, example: Example) -> Iterable[str]:
    """Return the names of the classes of an example."""
    if isinstance(example, tag.TaggedExample):
        return tag.labels(task, example)
    if task.kind == "span":
        return ["unanswerable" if example.is_impossible else "answerable"]
    if isinstance(example.label, int):
        return [task.labels[example.label] if task.labels else str(example.label)]
    return []


def read_split(
    task: Task,
    split: str,
    path: str | Path,
    stats: ReadStats | None = None,
    *,
    hold_out: float | None = None,
    limit: int | None = None,
) -> Iterator[Example]:
    """Yield the examples of a split, of which the training file may hold two.

    Args:
        split: `train`, `dev`, `test…`; labels may be missing in the last.
        stats: as `read_examples`; counts this split alone.
        hold_out: share of the training file that is the dev set, chosen by the hash of the id, so
            that it does not depend on the order or the number of the rows.
        limit: examples at most.

    Raises:
        DataError: as `read_examples`, no example falls into the split, or a row to learn from has a
            "split" to evaluate on.
    """
    stats = ReadStats() if stats is None else stats
    stats.learn = split == "train"
    keep = None
    if hold_out is not None and split in ("train", "dev"):

        def keep(name: str) -> bool:
            return is_held_out(name, hold_out) == (split == "dev")

    rows = read_examples(task, path, unlabelled=split.startswith("test"), stats=stats, keep=keep)
    return islice(rows, limit)


def known_answers(
    task: Task, train: str, given: str, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the answers that can be predicted; empty where the task has its own.

    Args:
        task: a task of any kind.
        train: file to learn from; it is read once more later.
        given: a file of answers, or how many examples must have an answer.
        settings: `hold_out` and `limit`, as `read_split`.

    Raises:
        DataError: as `read_split`, or a file that is read twice is a pipe.
    """
    if task.kind != "answer":
        return ()
    if not given.isdecimal():
        return answer.read_answers(given)
    refuse_stream(train)
    if task.own is None:
        refuse_stream(answer.annotations_path(train))
    part = {name: settings.get(name) for name in ("hold_out", "limit")}
    return answer.common_answers(read_split(task, "train", train, **part), int(given))


def is_held_out(name: str, share: float) -> bool:
    """Return whether an example of this id belongs to the share that is held out."""
    # A hash of the id, not a draw: the same examples are held out of every version of a file.
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])
    return number < share * 2**64


def count_splits(
    task: Task, files: Mapping[str, str], hold_out: float | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a record per file of a task: its examples, and the share of each label.

    Args:
        task: the task of the files.
        files: files by split.
        hold_out: as `read_split`.

    Raises:
        DataError: as `read_examples`.
    """
    for split, path in files.items():
        stats = ReadStats()
        count = sum(1 for _ in read_split(task, split, path, stats, hold_out=hold_out))
        yield {
            "task": task.name,
            "split": split,
            "file": path,
            "examples": count,
            "labels": [
                {"label": label, "count": number, "share": share}
                for label, number, share in stats.balance()
            ],
            "notes": list(stats.report())[1:],
        }


def text_rows(
    task: Task, files: Mapping[str, str], hold_out: float | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the text of every example, to retrieve images for: `{"id", "split", "text"}`.

    A pair is its two texts joined by a blank. `image` names the image that a text is a caption of,
    where the file has it.

    For a task with pictures, the texts are the ones that a VisualBERT learns from before the task,
    with `image`, or `images` for NLVR2: a question of VQA with the answer that most gave, a
    question of VCR with each of its choices.

    Args:
        task: the task of the files.
        files: files by split.
        hold_out: as `read_split`.

    Raises:
        DataError: as `read_split`.

    Source: Zhang et al. 2019 (Visual awareness), section 2.3: images are retrieved for the
        encoder's whole input. Li et al. 2020 (VisualBERT), section A.3, and its released code: the
        texts of tasks with pictures.
    Deviation: the released code draws one annotator's answer to a question each time it comes, and
        gives VCR's choices the second segment.
    """
    if task.images:
        yield from _picture_rows(task, files, hold_out)
        return
    for split, path in files.items():
        for example in read_split(task, split, path, hold_out=hold_out):
            row = {"id": example.id, "split": split, "text": example.whole_text}
            yield row if example.image is None else row | {"image": example.image}


def _picture_rows(
    task: Task, files: Mapping[str, str], hold_out: float | None
) -> Iterator[dict[str, Any]]:
    last: Any = None
    for split, path in files.items():
        for example in read_split(task, split, path, hold_out=hold_out):
            assert isinstance(example, VisualExample)
            texts = [f"{example.text} {choice}" for choice in example.choices] or [example.text]
            if example.answers:
                texts = [f"{example.text} {answer.agreed_answer(example)}"]
            one = {"image": example.images[0]}
            scene = one if len(example.images) == 1 else {"images": list(example.images)}
            if (scene, texts) == last:  # the next phrase of a caption
                continue
            last = scene, texts
            for number, text in enumerate(texts):
                name = f"{example.id}-{number}" if example.choices else example.id
                yield {"id": name, "split": split, **scene, "text": text}


def encode(
    task: Task, examples: Sequence[Example], tokenizer: Tokenizer, **settings: Any
) -> TaskInputs:
    """Turn examples into token ids.

    Args:
        examples: at least one.
        tokenizer: padding and truncation off.
        settings: the other fields of `Encoding`.

    Raises:
        DataError: `max_length` leaves no room for text, or nothing can be learned.
    """
    return KINDS[task.kind].encode(task, examples, Encoding(tokenizer, **settings))


def predictions(
    task: Task,
    examples: Sequence[Example],
    inputs: TaskInputs,
    outputs: Any,
    threshold: float = 0.0,
) -> list[dict[str, Any]]:
    """Return the rows of `predictions.jsonl`, in the order of the examples.

    Args:
        inputs: their tokens, in full (not those to learn from).
        threshold: SQuAD 2.0, withhold an answer that scores this much less than no answer; the key
            `answer` keeps it.
    """
    made = NetworkOutputs(inputs, outputs, threshold)
    rows = zip(KINDS[task.kind].rows(task, examples, made), examples, strict=True)
    return [row if (g := group_of(task, one)) is None else row | {"group": g} for row, one in rows]


def group_of(task: Task, example: Example) -> str | None:
    """Return the name of the group that an example belongs to, None where it stands alone.

    Scores of one picture's questions or phrases, of one paragraph's questions, or of one premise's
    hypotheses go together, so that they are drawn together. NLVR2's pairs of pictures and its
    sentences share a set, `dev-850` of `dev-850-0-1`. In a table of the user's own, whose rows may
    all ask the same question, only pictures and contexts make groups.
    """
    if task.name == "nlvr2":
        return example.id.rsplit("-", 2)[0]
    if isinstance(example, VisualExample) and example.images:
        return example.images[0]
    if example.image is not None:
        return example.image
    alone = example.pair is None and not example.choices
    if alone or (task.own is not None and task.kind != "span"):
        return None
    shared = example.context if task.kind == "span" else example.text
    return hashlib.sha256(shared.encode()).hexdigest()[:16]


def prediction_row(task: Task, example: Example, prediction: Any, **more: Any) -> dict[str, Any]:
    """Return the row of `predictions.jsonl` for one example.

    Args:
        prediction: class or choice number, score, answer text ("" for none), or boxes, best first.
        **more: as `make_row`.

    Returns:
        `id`, `prediction` and, where the example has one, `label`: class names, choice numbers,
        scores, or answer texts (a list, empty for an unanswerable question), so that a file of rows
        can be scored without further files.
    """
    if task.labels and isinstance(prediction, (int, np.integer)):
        prediction = task.labels[int(prediction)]
    return make_row(example.id, prediction, KINDS[task.kind].gold(task, example), **more)


def read_predictions(task: Task | str, path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a `predictions.jsonl`, each checked.

    Raises:
        DataError: not jsonl, `id` or `prediction` missing, a label the task does not have, NaN, a
            duplicate id, or no rows; with file and line.
    """
    task = find_task(task) if isinstance(task, str) else task
    seen: set[str] = set()
    for line, given in read_jsonl(path, {"id": str}):
        row = with_numbers(task, given, path)
        _check(task, row, path, line)
        if row["id"] in seen:
            raise DataError(f"duplicate id {row['id']!r:.80}; ids must be unique", path, line)
        seen.add(row["id"])
        yield row
    if not seen:
        why = "holds no predictions; if the run that writes it was stopped, run it again"
        raise DataError(why, path)


def _check(task: Task, row: Mapping[str, Any], path: str | Path | None, line: int | None) -> None:
    check_row(row, path, line)
    for key in ("prediction", "label"):
        if key in row:
            KINDS[task.kind].parse(task, key, row[key], path, line)


def gather(
    task: Task | str,
    rows: Iterable[Mapping[str, Any]],
    examples: Iterable[Example] | None = None,
    *,
    threshold: float | None = None,
    file: str | Path | None = None,
) -> Items:
    """Join predictions to their gold by id, and score them.

    Args:
        rows: rows of `predictions.jsonl`.
        examples: the gold; None takes the rows' own `label`.
        threshold: SQuAD 2.0, withhold answers whose `no_answer` is above it.

    Raises:
        DataError: a missing, unknown or duplicate id, a row without gold, `no_answer` in some rows
            only.
    """
    task = find_task(task) if isinstance(task, str) else task
    by_id: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        _check(task, row, file, None)
        if row["id"] in by_id:
            raise DataError(f"two predictions for the id {row['id']!r:.80}", file)
        by_id[row["id"]] = row
    if examples is None:
        gold = {name: row.get("label") for name, row in by_id.items()}
    else:
        gold = {example.id: KINDS[task.kind].gold(task, example) for example in examples}
        unpredicted = [name for name in gold if name not in by_id]
        unknown = [name for name in by_id if name not in gold]
        if unpredicted or unknown:
            odd = unpredicted or unknown
            what = "has no prediction" if unpredicted else "is predicted but not in the examples"
            why = f"{len(odd)} of {len(gold)} examples: the id {odd[0]!r:.80} {what}"
            raise DataError(f"{why}; predict the same file that is scored", file)
    if not gold:
        raise DataError("there are no predictions to score", file)
    for name, value in gold.items():
        if value is None:
            why = f"the id {name!r:.80} has no label; a file without labels cannot be scored"
            raise DataError(why, file)
    kind = KINDS[task.kind]
    in_order = [by_id[name] for name in gold]
    shared = any("group" in row for row in in_order)
    # The id of an example without a group cannot be one's name: it has a blank before it.
    groups = [row.get("group", f" {row['id']}") for row in in_order] if shared else []
    predicted = [kind.parse(task, "prediction", r["prediction"], file, None) for r in in_order]
    labels = [kind.parse(task, "label", value, file, None) for value in gold.values()]
    if examples is not None:
        _check_labels(task, in_order, labels, file)
    items = kind.score(task, Joined(list(gold), predicted, labels, in_order, file), threshold)
    return replace(items, groups=groups)


def _check_labels(
    task: Task, rows: list[Mapping[str, Any]], labels: list[Any], file: str | Path | None
) -> None:
    """Refuse gold of other examples: ids are often mere numbers, the rows' own labels are not."""
    for row, label in zip(rows, labels, strict=True):
        own = row.get("label")
        if own is None:
            continue
        if KINDS[task.kind].parse(task, "label", own, file, None) != label:
            why = f"the id {row['id']!r:.80} has the label {own!r:.60}, the gold has another"
            raise DataError(f'{why}; name the file that was predicted, or drop "label"', file)


def score_predictions(
    task: Task | str,
    rows: Iterable[Mapping[str, Any]],
    examples: Iterable[Example] | None = None,
    *,
    threshold: float | None = None,
    file: str | Path | None = None,
) -> dict[str, float]:
    """Score saved predictions with the task's official metrics; no model is needed.

    Args: as `gather`.

    Returns:
        The metrics by name, in percent as the papers print them (correlations times 100; errors
        as they are),
        `headline` (their mean: QQP and MRPC F1 and accuracy, STS-B both correlations, SQuAD exact
        match and F1), and `total`, the number of examples. Perplexity is not in percent. SQuAD 2.0
        adds HasAns_/NoAns_ values, and with `no_answer` best_exact, best_f1 and their thresholds
        (`_thresh`, in the unit of `no_answer`).

    Raises:
        DataError: as `gather`.
    """
    task = find_task(task) if isinstance(task, str) else task
    items = gather(task, rows, examples, threshold=threshold, file=file)
    scores = {
        name: value if name.endswith(("_thresh", "perplexity")) else task.scale * value
        for name, value in items.scores.items()
    }
    return scores | {"headline": headline(task, scores), "total": len(items.ids)}


def majority(
    task: Task, learnt: Sequence[Example], asked: Sequence[Example]
) -> dict[str, float] | None:
    """Return the scores of always predicting the most frequent class of the training set.

    For SQuAD 2.0 the prediction is an empty answer, for READ the mean. The result is None where
    there is no such prediction: scores measured by correlations, boxes, or a question that always
    has an answer.
    """
    common = KINDS[task.kind].majority(task, learnt)
    if common is None:
        return None
    return score_predictions(task, [prediction_row(task, e, common) for e in asked])
