"""Tasks of one's own: a kind and the columns of a table instead of a data set's official files.

Labels are found in the training file. A run keeps the definition of its task, so that predictions
can be scored and compared later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit
from vgtools.io.files import sha256_file
from vgtools.io.forms import check_form
from vgtools.io.names import bare, file_of, refuse_stream
from vgtools.io.written import check_hash
from vgtools.models.runs import read_run
from vgtools.tasks.examples import ReadStats, label_name, listed, read_table
from vgtools.tasks.kinds import tag
from vgtools.tasks.table import Columns, Task, built_in, find_task, frozen

# The built-in tasks whose hyper-parameters a kind has, without pictures and with them.
_LIKE = {
    "classify": ("sst-2", "nlvr2"),
    "regress": ("sts-b",),
    "tag": ("conll-2003",),
    "choice": ("swag", "vcr-qa"),
    "span": ("squad-1.1",),
    "answer": ("vqa", "vqa"),
}
_METRICS = {
    "classify": ("accuracy", "f1", "macro_f1", "matthews"),
    "regress": ("pearson", "spearman", "rmse"),
    "tag": ("f1", "accuracy"),
    "choice": ("accuracy",),
    "span": ("exact", "f1"),
    "answer": ("accuracy",),
}
_LARGEST = 1e9  # largest number to predict; float32 holds its square

_COLUMNS = {
    "texts": [str],
    "label": str,
    "choices": [str],
    "images": [str],
    "id": (str, type(None)),
}
_FORM = {
    "kind": str,
    "labels": [str],
    "metrics": [str],
    "choices": int,
    "images": int,
    "unanswerable": bool,
    "numbered": bool,
    "own": _COLUMNS,
}


def definition(task: Task) -> dict[str, Any]:
    """Return the fields that make a task of one's own again, as `run.json` has them."""
    assert task.own is not None
    return {key: getattr(task, key) for key in _FORM} | {"own": asdict(task.own)}


def own_task(name: str, defined: Mapping[str, Any]) -> Task:
    """Return a task of one's own from its definition."""
    fields = frozen({key: defined[key] for key in _FORM})
    fields["own"] = Columns(**frozen({key: fields["own"][key] for key in _COLUMNS}))
    hyper = find_task(_LIKE[fields["kind"]][bool(fields["images"])]).hyper
    return Task(name, name, files={}, hyper=hyper, low=-_LARGEST, high=_LARGEST, **fields)


def task_of(info: Mapping[str, Any], file: str | Path) -> Task:
    """Return the task of a run of `vg finetune`.

    Args:
        info: its run.json.
        file: the file, for messages.

    Raises:
        DataError: it names no task (usage), or its definition was edited (65).
    """
    name = str(info.get("task"))
    defined = info.get("config", {}).get("own")
    if defined is None:
        return find_task(name)
    way_out = "fine-tune again"
    check_form(defined, _FORM, file, way_out)
    known = _METRICS.get(defined["kind"], ())
    fits = bool(defined["metrics"]) and {*defined["metrics"]} <= {*known}
    fits &= not defined["images"] or len(_LIKE.get(defined["kind"], ())) > 1
    if not fits or built_in(name):
        why = f"defines {name!r:.40}, which vg does not make, of kind {defined['kind']!r:.40}"
        raise DataError(f"{why}; {way_out}", file)
    return own_task(name, defined)


def shown_task(name: str, cell: Mapping[str, Any]) -> Task:
    """Return the task of a cell of `vg compare`: built in, or as the cell defines it."""
    return own_task(name, cell["own"]) if "own" in cell else find_task(name)


def named_task(name: str) -> Task:
    """Return the task of a name, or the task of a run of `vg finetune`.

    Raises:
        DataError: as `find_task`, `read_run` and `task_of`.
    """
    file = Path(name, "run.json")
    if built_in(name) is None and file.is_file():
        return task_of(read_run(name, "finetune"), file)
    return find_task(name)


def files_of(run: str) -> tuple[dict[str, str], float | None]:
    """Return the files of a run by split, and the share of the training file that is its dev set.

    Without such a share each file comes once, as the first split that it is.

    Raises:
        DataError: as `read_run`; or a file has changed since (65).
    """
    files = dict[str, str]()
    info = read_run(run, "finetune")
    share = info.get("config", {}).get("hold_out")
    for split, facts in info.get("data", {}).items():
        if share is not None or facts.get("file") not in files.values():
            files[split] = str(facts.get("file"))
            check_unchanged(info, files[split], f"{run}/run.json", "name the files that it read")
    return files, share


def check_unchanged(info: Mapping[str, Any], file: str, by: str, way_out: str) -> None:
    """Refuse a file that has changed since a run read it.

    Raises:
        DataError: it has another hash than the run's inputs (65); both are printed.
    """
    made = hash_read(info, file)
    if made and os.path.isfile(file_of(file)):
        check_hash(file, sha256_file(file), made, by, way_out)


def hash_read(info: Mapping[str, Any], file: str | None) -> str | None:
    """Return the hash of an input of a run as its run.json has it; None where it has none."""
    return {one["path"]: one.get("sha256") for one in info.get("inputs", ())}.get(file)


def define(
    kind: str,
    train: str,
    columns: Columns,
    *,
    name: str | None = None,
    labels: str | None = None,
    metric: str | None = None,
    unanswerable: bool = False,
) -> Task:
    """Return a task of one's own; its labels are found in the training file unless named.

    Args:
        kind: classify, regress, tag, choice, span or answer.
        train: the training file; without a `name` the task has the file's.
        columns: columns of the table.
        name: name of the task.
        labels: classes in their order, separated by commas.
        metric: its metric, if it has a choice; None for tags: entities have f1.
        unanswerable: whether questions may have no answer.

    Raises:
        DataError: a name, labels or metrics that do not fit (usage), labels that leave nothing to
            learn (65), or as `read_table`.
    """
    name = name or Path(bare(file_of(train))).stem or "own"
    if built_in(name) or "=" in name:
        why = f"--name: {name!r:.60} is {'a built-in task' if built_in(name) else 'no name'}"
        raise DataError(f"{why}; --name NAME calls this task something else", code=Exit.USAGE)
    given = tuple(part.strip() for part in labels.split(",")) if labels else ()
    if labels and not 1 < len(set(filter(None, given))) == len(given):
        why = f"--labels: expected two or more different names, as in no,yes; got {labels!r:.60}"
        raise DataError(why, code=Exit.USAGE)
    fields = {
        "kind": kind,
        "labels": given,
        "metrics": (metric.replace("-", "_"),) if metric else (),
        "choices": 0,
        "images": len(columns.images),
        "unanswerable": unanswerable,
        "numbered": (given or kind == "choice") and not any(map(str.isdecimal, given)),
    }
    task = own_task(name, fields | {"own": asdict(columns)})
    if kind in ("classify", "tag"):
        return _with_labels(task, train)
    task = replace(task, metrics=task.metrics or _METRICS[kind])
    return _with_choices(task, train) if kind == "choice" else task


def _with_choices(task: Task, train: str) -> Task:
    """Return a task with as many choices as its first row has."""
    assert task.own is not None
    count = len(task.own.choices)
    if count == 1:  # a list
        refuse_stream(train)
        rows = read_table(task, train, False, ReadStats(), lambda *_: None)
        count = next((len(row.texts) - len(task.own.texts) for _, row in rows), 0)
    if count == 1 or (task.labels and len(task.labels) != count):
        expected = f"expected {len(task.labels) or 'two or more'} choices in a row, got {count}"
        raise DataError(f"{expected}; --choices and --labels name them", train)
    return replace(task, choices=count)


def _with_labels(task: Task, train: str) -> Task:
    """Return a task of classes or tags with its labels, and tags with their metric.

    Raises:
        DataError: there is nothing to tell apart (65), or the metric is for other labels (usage).
    """
    assert task.own is not None
    lines = dict[str, int]()
    labels = task.labels
    if not labels:
        refuse_stream(train)
        lines = _found(task, train)
        labels = tuple(sorted(lines, key=_place))
        if len(labels) < 2:
            why = f'"{task.own.label}" has no label{" but " + labels[0] if labels else ""}'
            raise DataError(f"{why}, expected two or more; --label names another column", train)
    if task.kind == "tag":
        return _with_tags(replace(task, labels=labels), train, lines)
    if "f1" in task.metrics and len(labels) != 2:
        why = f"--metric f1 is of the second of two labels, got {listed(labels)}"
        raise DataError(f"{why}; macro-f1 is the mean over all", code=Exit.USAGE)
    return replace(task, labels=labels)


def _with_tags(task: Task, train: str, lines: Mapping[str, int]) -> Task:
    """Return a task of tags; they are of entities if any is B-X or I-X, then all must be or O."""
    inside = [name for name in task.labels if name[:2] in ("B-", "I-")]
    odd = [name for name in task.labels if name not in inside and name != "O"]
    metrics = task.metrics or (("f1",) if inside else ("accuracy",))
    if "accuracy" in metrics:
        return replace(task, metrics=metrics)
    if odd or not inside:
        why = (
            f"tags of entities, scored by f1, are O, B-X and I-X, got {listed(odd or task.labels)}"
        )
        way_out = "--metric accuracy scores word by word"
        raise DataError(f"{why}; {way_out}", train, lines.get(next(iter(odd), "")))
    # IOB1 has I-X where an entity starts, which is read as B-X.
    parts = sorted({name[2:] for name in inside})
    both = ("O", *(f"{sign}-{part}" for part in parts for sign in "BI"))
    named = task.labels if task.numbered else ()
    return replace(task, metrics=metrics, labels=tuple(dict.fromkeys((*named, *both))))


def _found(task: Task, train: str) -> dict[str, int]:
    """Return the labels of a training file, each with its first line.

    Raises:
        DataError: they are numbers that are not whole, or as `read_table`.
    """
    if task.kind == "tag":
        return tag.tag_lines(task, train)

    def name(_: Task, *given: Any) -> str:
        return label_name(*given)

    lines = dict[str, int]()
    for line, row in read_table(task, train, False, ReadStats(learn=True), name):
        lines.setdefault(row.label, line)
    with suppress(ValueError):  # a label is a text
        if broken := [
            name for name, number in zip(lines, map(float, lines), strict=True) if number % 1
        ]:
            why = f"{broken[0]} is a number, not a label; vg finetune regress learns numbers"
            raise DataError(f"{why}; --labels names labels", train, lines[broken[0]])
    return lines


def _place(name: str) -> tuple[int, str]:
    """Return the key of a name in the order of the alphabet, of numbers by their size."""
    return (int(name) if name.isdecimal() else -1, name)
