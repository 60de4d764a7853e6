"""The downstream tasks: one row per task with its official files, metrics and hyper-parameters."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError, Exit
from vgtools.io.names import is_stream

# Metrics of which less is better; they are errors in their own unit, not shares.
LOWER_IS_BETTER = frozenset({"rmse", "loss"})


@dataclass(frozen=True)
class Hyper:
    """Fine-tuning hyper-parameters, and where they come from."""

    epochs: int
    learning_rate: float
    batch_size: int
    source: str
    warmup: float = 0.1  # share of the steps, or from 1 on their number
    max_length: int = 126  # tokens, special ones included
    stride: int | None = None  # span: tokens from one window of a long context to the next
    seed: int = 9595
    clip: float = 1.0  # largest norm of the gradient; 0 does not clip
    schedule: str = "linear"  # see `vgtools.training.loop.TrainConfig`
    betas: tuple[float, float] = (0.9, 0.999)  # Adam's
    eps: float = 1e-8  # Adam's
    steps: int | None = None  # in total, instead of `epochs`
    keep: str = "last"  # epoch whose weights are kept; or `best`
    weight_decay: float = 0.0  # for matrices alone


@dataclass(frozen=True)
class Form:
    """One way in which a task's rows are written: the columns (or keys of a jsonl row) of texts …

    With a header, columns are found by name, in any order, unless `columns` is the exact header.
    """

    texts: tuple[str, ...]
    label: str = "label"
    id: str | None = None
    columns: tuple[str, ...] = ()  # in exact order; required of a form without a header
    word: str = ""  # column with the number of the word of the first text that is the second text
    header: bool = True
    quoted: bool = False
    separator: str = "\t"
    extra: int = 0  # without a header: columns that may follow
    image: str = ""  # column with the caption that a text is, as IMAGE#NUMBER
    split: str = "split"  # column with the split of a row


@dataclass(frozen=True)
class Columns:
    """The columns of a table that a task of one's own is read from."""

    texts: tuple[str, ...]
    label: str
    choices: tuple[str, ...] = ()  # texts to choose from; a single column has a list of them
    images: tuple[str, ...] = ()  # names of pictures
    id: str | None = None


@dataclass(frozen=True)
class Task:
    """One downstream data set."""

    name: str
    title: str  # as the papers write it
    kind: str  # key of `vgtools.tasks.kinds.KINDS`
    files: Mapping[str, str]  # split -> official file name
    metrics: tuple[str, ...]
    hyper: Hyper
    forms: tuple[Form, ...] = ()
    labels: tuple[str, ...] = ()  # class i is written labels[i] or i
    choices: int = 0  # texts to choose from, in each example
    low: float = 0.0  # regress: range of the scores
    high: float = 0.0
    no_gold: tuple[str, ...] = ()  # labels of rows whose annotators disagree, which are left out
    unanswerable: bool = False  # span: some questions have no answer
    skip_broken: bool = False  # rows with a wrong column count are counted, not refused
    note: str = ""
    images: int = 0  # pictures per example
    official: str = ""  # contents of the official file, where it is not a table
    targets: str = ""  # the predictions, where they are not labels, choices or scores
    own: Columns | None = None  # columns of its table, if it is not built in (`own.py`)
    numbered: bool = True  # class i may also be written i

    @property
    def classes(self) -> int:
        """Return how many outputs a head for this task has."""
        return len(self.labels) or self.choices or 1

    @property
    def lower_is_better(self) -> bool:
        """Return whether the score is an error, in the unit of the labels."""
        return not LOWER_IS_BETTER.isdisjoint(self.metrics)

    @property
    def scale(self) -> float:
        """Return the factor of printed scores: 100 for percent, 1 for errors."""
        return 1.0 if self.lower_is_better else 100.0


def _read_tasks() -> tuple[Task, ...]:
    """Return the tasks of `tasks.toml`."""
    found = tomllib.loads(Path(__file__).with_name("tasks.toml").read_text("utf-8"))
    shared = {name: Hyper(**fields) for name, fields in found["hyper"].items()}
    tasks = list[Task]()
    for fields in found["task"]:
        hyper = fields.pop("hyper")
        own = shared[hyper] if isinstance(hyper, str) else Hyper(**frozen(hyper))
        forms = tuple(Form(**frozen(form)) for form in fields.pop("forms", ()))
        tasks.append(Task(hyper=own, forms=forms, **frozen(fields)))
    return tuple(tasks)


def frozen(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass, with tuples for their lists."""
    return {key: tuple(v) if isinstance(v, list) else v for key, v in fields.items()}


TASKS = _read_tasks()

_ALIASES = {
    "squad": "squad-1.1",
    "squad1": "squad-1.1",
    "squadv1": "squad-1.1",
    "squad2": "squad-2.0",
    "squadv2": "squad-2.0",
}
# Columns of Vokenization's Table 2.
TABLE_2 = ("sst-2", "qnli", "qqp", "mnli", "squad-1.1", "squad-2.0", "swag")


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_task(name: str) -> Task:
    """Return the task of a name, however it is spelled: SST-2, sst2, SQuAD v1.1, squad-1.1, squad.

    Raises:
        DataError: no such task; the error lists all names (usage).
    """
    task = built_in(name)
    if task is None:
        names = ", ".join(task.name for task in TASKS)
        raise DataError(f"unknown task {name!r}; expected one of {names}", code=Exit.USAGE)
    return task


def built_in(name: str) -> Task | None:
    """Return the task of a name as `find_task` does, or None if there is none."""
    key = _key(_ALIASES.get(_key(name), name))
    return next((task for task in TASKS if key in (_key(task.name), _key(task.title))), None)


def known_name(name: str) -> str:
    """Return the name of a task as runs have it; one's own is as it is."""
    task = built_in(name)
    return name if task is None else task.name


def title_of(name: str) -> str:
    """Return the title of a task; a task of one's own has none but its name."""
    task = built_in(name)
    return name if task is None else task.title


def find_splits(
    task: Task,
    data: str | None,
    train: str | None = None,
    dev: str | None = None,
    test: str | None = None,
    no_test: bool = False,
    hold_out: float | None = None,
) -> dict[str, str]:
    """Return the file of every split of a task; there is one to train on and one to evaluate on.

    Args:
        task: names the official files.
        data: their folder.
        train: file to read instead.
        dev: likewise.
        test: likewise.
        no_test: leave the test files of the folder out.
        hold_out: share of the training file that is the dev set, instead of a dev file.

    Raises:
        DataError: a file or the folder is missing, or there is a dev file too many.
    """
    given = {"train": train, "dev": dev, "test": test}
    files = {split: file for split, file in given.items() if file is not None}
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        why = "is not a directory, expected the folder of the task's files"
        raise DataError(why, folder, code=Exit.NO_INPUT)
    for split, file in task.files.items():
        skipped = split == "all" or (no_test and split.startswith("test"))
        if folder is None or split in files or skipped:
            continue
        if (folder / file).exists():
            files[split] = str(folder / file)
    if hold_out is not None:
        _check_hold_out(hold_out, files)
        if "train" in files:
            files["dev"] = files["train"]
    ways = {"train": "train on: --train FILE", "dev": "measure on: --dev FILE, --hold-out SHARE"}
    for split, way in ways.items():
        if split not in files:
            missing = "" if folder is None else f"{folder} has no {task.files[split]}; "
            way += "" if task.own else ", or DATA"
            raise DataError(f"{missing}name the file to {way}", code=Exit.NO_INPUT)
    return files


def settings_of(task: Task, given: Mapping[str, Any], shape: str | None = None) -> dict[str, Any]:
    """Return the settings that decide the weights, for `run.json`: given ones, else the paper's.

    Args:
        task: the task, with the settings of its paper.
        given: settings by name, None where the paper's holds; `seeds` is their number.
        shape: shape of a network that is trained from scratch.
    """
    paper = asdict(task.hyper) | {"lr": task.hyper.learning_rate}
    values = {"stride": None, "null_threshold": 0.0, **given}
    values |= {name: paper.get(name) for name, value in given.items() if value is None}
    first = values.pop("seed")
    values["steps"] = None if given["epochs"] else values["steps"]
    values["epochs"] = None if values["steps"] else values["epochs"]
    values["seeds"] = list(range(first, first + given["seeds"]))
    values["keep"] = given["keep"] or ("best" if given["patience"] else task.hyper.keep)
    return {"task": task.name, **values, **({"shape": shape} if shape else {})}


def start_of(task: Task, encoder: str | None, shape: str | None, tokenizer: str | None) -> str:
    """Return the reference that training starts from: a model, or with a shape a tokenizer.

    Raises:
        DataError: flags that need or exclude one another, or that are for translation (usage).
    """
    why = ""
    if task.kind != "translate" and (shape or tokenizer):
        why = f"--shape: is for translation; {task.name} needs --encoder"
    elif task.kind == "translate" and bool(shape) == bool(encoder):
        why = "exactly one of --shape (from scratch) and --encoder (continue) is required"
    elif bool(shape) != bool(tokenizer):
        why = "--tokenizer: belongs to --shape; with --encoder it is the model's own"
    start = encoder or tokenizer
    if why or start is None:
        raise DataError(why or "--encoder: is required", code=Exit.USAGE)
    return start


def _check_hold_out(share: float, files: Mapping[str, str]) -> None:
    """Refuse a share that leaves nothing, one with a dev file, and one of a pipe, read once."""
    why = ""
    if not 0 < share < 1:
        why = f"--hold-out must be between 0 and 1, got {share:g}"
    elif "dev" in files:
        why = f"--hold-out makes a dev set of the training file, but there is {files['dev']}"
        why += "; drop one of them, or name --train FILE alone"
    elif "train" in files and is_stream(files["train"]):
        why = "--hold-out reads the training file twice; give a file, not a pipe"
    if why:
        raise DataError(why, code=Exit.USAGE)


def describe_columns(form: Form, unlabelled: bool = False) -> str:
    """Return the columns that a file of this form has, for messages and `vg finetune --list`."""
    label = () if unlabelled else (form.label,)
    word = (form.word,) if form.word else ()
    names = form.columns or (*form.texts, *word, *label)
    return ", ".join(name or "(row)" for name in names) + ("" if form.header else " (no header)")


def table() -> list[dict[str, Any]]:
    """Return one row per task for `vg finetune --list`: columns, labels, hyper-parameters, …"""
    return [
        {
            "task": task.name,
            "title": task.title,
            "kind": task.kind,
            "files": dict(task.files),
            "columns": task.official or describe_columns(task.forms[0]),
            "labels": _describe_labels(task),
            "metrics": list(task.metrics),
            **asdict(task.hyper),
            "betas": list(task.hyper.betas),
            "note": task.note,
        }
        for task in TASKS
    ]


def _describe_labels(task: Task) -> str:
    if task.labels:
        return ", ".join(task.labels)
    if task.choices:
        return f"0 to {task.choices - 1}"
    return task.targets or f"{task.low:g} to {task.high:g}"
