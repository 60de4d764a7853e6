"""Examples of the downstream tasks, and the tables (TSV, CSV, jsonl) that most of them come from.

A kind's `read` makes `Example`s of these rows, or of a format of its own.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar, cast

from vgtools.io.errors import DataError, TextStats
from vgtools.io.json_items import json_items
from vgtools.io.names import is_jsonl, is_stream, is_table
from vgtools.io.splits import refuse_held_out
from vgtools.io.streams import (
    Line,
    check_length,
    parse_json,
    read_jsonl,
    read_quoted,
    read_records,
)
from vgtools.tasks.table import Form, Task, describe_columns


@dataclass(frozen=True, slots=True)
class Answer:
    """A gold answer: `context[start : start + len(text)] == text`, in code points.

    `start` is -1 where the text does not occur in the context.
    """

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Example:
    """One item of a task.

    `text` and `pair` are the sentence or the two sentences; span: the question and the context;
    choice: the beginning (pair None), each of `choices` a continuation.
    """

    id: str
    text: str
    pair: str | None = None
    label: int | float | None = None  # class or choice number, or score; None if the file has none
    choices: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False
    image: str | None = field(default=None, repr=False)  # the image whose caption the text is

    @property
    def whole_text(self) -> str:
        """Return all texts, joined by a blank; images are retrieved for them."""
        pair = [] if self.pair is None else [self.pair]
        return " ".join([self.text, *pair, *self.choices])

    @property
    def question(self) -> str:
        """Return the question of a span example."""
        return self.text

    @property
    def context(self) -> str:
        """Return the context of a span example."""
        return self.pair or ""


def hash_of(examples: Iterable[Example]) -> str:
    """Return the sha256 of examples in any order: predictions are joined by id."""
    return hashlib.sha256("\n".join(sorted(map(repr, examples))).encode()).hexdigest()


def without_labels(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield the examples as a file without labels has them."""
    for example in examples:
        labels: dict[str, Any] = {x.name: x.default for x in fields(example) if x.name in _LABELS}
        yield replace(example, **labels)


@dataclass(frozen=True, slots=True)
class VisualExample(Example):
    """One item of a task with pictures, named as in the data set, without folder and suffix."""

    images: tuple[str, ...] = ()
    span: tuple[int, int] = (0, 0)  # the phrase in the text
    boxes: tuple[tuple[float, float, float, float], ...] = ()  # boxes of the phrase, in pixels
    size: tuple[float, float] | None = None  # size of the picture that the boxes refer to
    line: int | None = field(default=None, repr=False)  # line of the file, for messages


_LABELS = {"label", "answers", "is_impossible", "tags", "target", "boxes"}  # every kind has some
_SHOWN = 20  # labels that are listed with their share


@dataclass
class ReadStats:
    """Counts of everything that was left out or mended while a file was read, to be printed."""

    learn: bool = False  # the file is learned from
    rows: int = 0  # examples given out
    broken: int = 0  # rows of a wrong column count, left out (`Task.skip_broken`)
    first_broken: int = 0  # the line of the first of them
    no_gold: int = 0  # rows without an agreed label, left out
    moved: int = 0  # answers that occur elsewhere in the context than at answer_start
    unboxed: int = 0  # phrases without a box, left out
    documents: int = 0  # lines that mark the beginning of a document, left out
    iob1: int = 0  # entities that start with I-, as in IOB1
    iob2: int = 0  # entities that start with B- where IOB1 has I-
    lost: int = 0  # answers that do not occur in the context: scored, but not learned from
    first_lost: int | None = None  # the line of the first of them
    scores: list[float] = field(default_factory=list)  # labels that are numbers
    text: TextStats = field(default_factory=TextStats)
    labels: Counter[str] = field(default_factory=Counter)

    def check(self, row: Mapping[str, Any], path: str | Path, line: int) -> None:
        """Refuse to learn from a row of a split to evaluate on; as `refuse_held_out`."""
        if self.learn:
            refuse_held_out(row, path, line)

    def balance(self) -> list[tuple[str, int, float]]:
        """Return (label, count, share) of every class met, most frequent first."""
        total = sum(self.labels.values())
        return [(name, count, count / total) for name, count in self.labels.most_common()]

    def report(self) -> Iterator[str]:
        """Yield the lines for the user: the class balance, then everything left out or mended."""
        balance = [f"{name} {count} ({share:.1%})" for name, count, share in self.balance()]
        if len(balance) > _SHOWN:
            balance[_SHOWN:] = [f"and {len(balance) - _SHOWN} more labels"]
        if self.scores:
            ends = f"from {min(self.scores):g} to {max(self.scores):g}"
            balance = [f"{ends}, on average {fmean(self.scores):.4g}"]
        yield ", ".join([f"{self.rows} examples", *balance])
        first = f"the first on line {self.first_broken}"
        moved = "answers do not start at answer_start; the nearest occurrence was taken"
        unboxed = "phrases have no box (scenes, or nothing visible) and are left out"
        torn = "entities of IOB2 start with I-; they are read as if with B-"
        lost = "answers do not occur in their context; they are scored, but not learned from"
        lost += f", the first on line {self.first_lost}" if self.first_lost else ""
        for count, message in (
            (self.broken, f"rows with a wrong column count were left out, {first}"),
            (self.no_gold, "rows have no agreed label"),
            (self.moved, moved),
            (self.unboxed, unboxed),
            (self.lost, lost),
            (self.iob1 if self.iob2 else 0, torn),
            (self.documents, "lines mark the beginning of a document and are left out"),
            (self.text.replaced, "lines are not UTF-8; bad bytes were replaced"),
        ):
            if count:
                yield f"{count} {message}"


# ----------------------------------------------------------------------------------------- labels

# (task, column, value, file, line) -> class number, score, …; raises DataError
LabelParser = Callable[[Task, str, object, "str | Path | None", "int | None"], Any]


def class_number(
    task: Task, column: str, label: object, file: str | Path | None, line: int | None
) -> int:
    """Return the class or choice number of a label, which is written as its name or its number.

    Raises:
        DataError: not a label of the task; the error lists them.
    """
    if task.own is not None:
        label = label_name(column, label, file, line)
    if isinstance(label, bool) or not isinstance(label, (str, int, float)):
        raise DataError(f'{label!r:.60} in "{column}"; expected a label', file, line)
    if label in task.labels:
        return task.labels.index(str(label))
    numbered = task.numbered and re.fullmatch(r"[0-9]{1,3}", str(label))
    if numbered and int(label) < task.classes:
        return int(label)
    names = [f"{name} ({i})" if task.numbered else name for i, name in enumerate(task.labels)]
    names = names or [str(i) for i in range(task.choices)]
    expected = f"expected one of {listed(names)}"
    if task.own is not None and task.choices:
        expected += "; where choices are not counted from 0, --labels names them: A,B,C"
    elif task.own is not None:
        expected += "; the training file has all labels, or --labels names them"
    raise DataError(f'{label!r:.60} in "{column}"; {expected}', file, line)


def listed(names: Sequence[str]) -> str:
    """Return names, the first of them if they are many."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def label_name(column: str, label: object, file: str | Path | None, line: int | None) -> str:
    """Return the name of a class in a table of one's own.

    Raises:
        DataError: neither a text nor a whole number, or the text of a value that is missing.
    """
    if isinstance(label, bool):
        return str(label).lower()  # as JSON has it
    if isinstance(label, float) and label.is_integer():
        label = int(label)
    name = str(label).strip()
    if type(label) not in (str, int) or name.lower() in ("", "nan"):
        expected = "expected a label: a text, a whole number, true or false"
        raise DataError(f'{label!r:.60} in "{column}"; {expected}', file, line)
    return name


# ------------------------------------------------------------------------------------------ tables


class TableRow(NamedTuple):
    """One row of a TSV, CSV or jsonl file."""

    id: str
    texts: list[str]
    label: Any  # as the parser returns it; None where the row has none
    image: str | None = None
    images: tuple[str, ...] = ()


def describe_forms(task: Task, unlabelled: bool = False) -> str:
    """Describe the forms in which a task may be written, for messages."""
    if task.own is not None:
        return "a row of the table for each"
    if task.official:
        return f"{task.title} as {task.official}"
    columns = "; or ".join(describe_columns(form, unlabelled) for form in task.forms)
    return f"{task.title} with columns {columns}"


def read_table(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats, parse_label: LabelParser
) -> Iterator[tuple[int, TableRow]]:
    """Yield (line, row) of a TSV, CSV, jsonl, Parquet or Arrow file.

    Raises:
        DataError: as `vgtools.tasks.dispatch.read_examples`.
    """
    if task.own is not None:
        for line, row in own_rows(task, path, unlabelled, stats):
            label = row.label
            if label is not None:
                label = parse_label(task, task.own.label, label, path, line)
            yield line, row._replace(label=label)
        return
    lines = read_records(path, stats.text)
    first = next(lines, None)
    if first is None:
        raise DataError(f"is empty; expected {describe_forms(task, unlabelled)}", path)
    lines = chain([first], lines)
    records: Iterator[tuple[int, dict[str, Any]]]
    if isinstance(first, dict) or first.lstrip().startswith("{"):
        form, records = _jsonl(task, lines, path, unlabelled)
    else:
        form, width, titles = _recognise(task, first, path, unlabelled)
        records = _cells(task, form, width, titles, cast(Iterator[str], lines), path, stats)
    for number, (line, record) in enumerate(records):
        for column in {"split", form.split}:
            stats.check({"split": record.get(column)}, path, line)
        label = record.get(form.label)
        if str(label) in task.no_gold:
            stats.no_gold += 1
            continue
        if unlabelled and str(label) in ("-1", "-1.0"):  # data hubs write hidden labels so
            label = None
        value = None if label is None else parse_label(task, form.label, label, path, line)
        texts = [record[name] for name in form.texts]
        for name, text in zip(form.texts, texts, strict=True):
            if not isinstance(text, str):
                raise DataError(f'"{name}" must be a string, got {text!r:.60}', path, line)
        if form.word:
            texts.append(_word(texts[0], form.word, record.get(form.word), path, line))
        given_id = record.get(form.id) if form.id else None
        name = str(number) if given_id is None else str(given_id)
        image = str(record.get(form.image) or "").split("#")[0] if form.image else ""
        yield line, TableRow(name, texts, value, image or None)


def _word(text: str, column: str, number: object, path: str | Path, line: int) -> str:
    """Return a word of a text whose words are between blanks.

    Raises:
        DataError: the text has no word of this number.
    """
    words = text.split(" ")
    if not re.fullmatch(r"[0-9]{1,9}", str(number)) or int(str(number)) >= len(words):
        expected = f"expected the number of a word, 0 to {len(words) - 1}"
        raise DataError(f'{number!r:.60} in "{column}"; {expected}', path, line)
    return words[int(str(number))]


def own_rows(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, TableRow]]:
    """Yield (line, row) of a table of one's own, with labels as it has them.

    The texts to choose from follow the others. For tags, a text may be a list of words, which are
    joined by blanks.

    Raises:
        DataError: not a table, or a column, a text or a label is missing; with the line.
    """
    own = task.own
    assert own is not None
    if not (is_table(path) or is_jsonl(path) or is_stream(path)):
        kinds = "a table: .csv, .tsv, .jsonl, .parquet or .arrow"
        raise DataError(f"expected {kinds}{', or CoNLL columns' * (task.kind == 'tag')}", path)
    needed = dict.fromkeys(own.texts, "--text") | dict.fromkeys(own.choices, "--choices")
    needed |= dict.fromkeys(own.images, "--image") | ({own.id: "--id"} if own.id else {})
    needed |= {} if unlabelled else {own.label: "--label"}
    for number, (line, row) in enumerate(read_jsonl(path)):
        stats.check(row, path, line)
        for name, flag in needed.items():
            if name not in row:
                columns = ", ".join(row) or "none"
                why = f"there is no column {name!r:.60}; the columns are {columns}"
                raise DataError(f"{why}; {flag} names one of them", path, line)
        texts = [_own_text(task, name, row[name], path, line) for name in own.texts]
        if not any(map(str.strip, texts)):
            raise DataError(f"there is no text in {', '.join(own.texts)}", path, line)
        texts += _own_choices(task, row, path, line)
        names = [_own_name(name, row[name], path, line) for name in own.images]
        label = row.get(own.label)
        if label in (None, "", []) or (isinstance(label, dict) and not label.get("text", True)):
            label = None
            if not unlabelled and not task.unanswerable:
                way_out = "rows without one can be predicted: --test FILE"
                if task.kind == "span":
                    way_out += "; questions without an answer are learned with --unanswerable"
                raise DataError(f'"{own.label}" is empty, expected a label; {way_out}', path, line)
        name = _own_name(own.id, row[own.id], path, line) if own.id else str(number)
        yield line, TableRow(name, texts, label, images=tuple(names))


def _own_name(column: str, value: object, path: str | Path, line: int) -> str:
    """Return an id, or the name of a picture: a text or a whole number."""
    if type(value) not in (str, int) or value == "":
        why = f'"{column}": expected a name, got {value!r:.60}'
        raise DataError(why, path, line)
    return str(value)


def _own_text(task: Task, column: str, value: object, path: str | Path, line: int) -> str:
    """Return a text; for tags the words of a list, with one blank between them."""
    if task.kind == "tag" and isinstance(value, list):
        for word in value:
            if not isinstance(word, str) or " " in word:
                why = f'"{column}": expected words without a blank, got {word!r:.60}'
                raise DataError(f"{why}; make them two words, with a tag for each", path, line)
        value = " ".join(value)
    if not isinstance(value, str):
        raise DataError(f'"{column}" must be a text, got {value!r:.60}', path, line)
    check_length(value, path, line)
    return value


def _own_choices(task: Task, row: Mapping[str, Any], path: str | Path, line: int) -> list[str]:
    """Return the texts to choose from, of their columns or of the list in the only column."""
    assert task.own is not None
    names = task.own.choices
    if not names:
        return []
    given = row[names[0]] if len(names) == 1 else [row[name] for name in names]
    texts = given if isinstance(given, list) else []
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        expected = f"expected a text for each choice in {', '.join(names)}"
        raise DataError(f"{expected}, got {given!r:.80}", path, line)
    if task.choices and len(texts) != task.choices:
        why = f'"{names[0]}" has {len(texts)} choices, expected {task.choices} as in the first row'
        raise DataError(f"{why} of the training file; leave other rows out", path, line)
    for text in texts:
        check_length(text, path, line)
    return texts


def read_sentences(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats, parse_label: LabelParser
) -> Iterator[tuple[int, Example]]:
    """Yield (line, example) of a table of sentences or of pairs of sentences.

    Raises:
        DataError: as `read_table`.
    """
    for line, row in read_table(task, path, unlabelled, stats, parse_label):
        pair = row.texts[1] if len(row.texts) > 1 else None
        if row.images:
            more: dict[str, Any] = {"images": row.images, "line": line}
            yield line, VisualExample(row.id, row.texts[0], pair, row.label, **more)
        else:
            yield line, Example(row.id, row.texts[0], pair, row.label, image=row.image)


def _recognise(
    task: Task, first: str, path: str | Path, unlabelled: bool
) -> tuple[Form, int, list[str] | None]:
    """Return the form of a file by its first line, its column count, and its header if any."""
    without_label = None
    # Quoted forms match by the whole header, so they come before those that match by some names.
    for form in sorted(task.forms, key=lambda form: not form.quoted):
        if not form.header:
            continue
        titles = [
            title.strip('"') if form.quoted else title for title in first.split(form.separator)
        ]
        if form.columns:
            bare = tuple(name for name in form.columns if name != form.label)
            matches = tuple(titles) in {form.columns, bare}
        else:
            matches = all(title in titles for title in form.texts)
        if matches and (form.label in titles or unlabelled):
            if len(set(titles)) < len(titles):
                raise DataError(f"duplicate column in the header: {', '.join(titles)}", path, 1)
            return form, len(titles), titles
        if matches:
            without_label = form
    if without_label is not None:
        header = ", ".join(first.split(without_label.separator))
        why = f'the header has no column "{without_label.label}": {header}; a file without labels'
        raise DataError(f"{why} can be predicted, not trained on or scored", path, 1)
    headless = next((form for form in task.forms if not form.header), None)
    if headless is None:
        expected = describe_forms(task, unlabelled)
        why = f"the first line is not a header of this task: {first!r:.120}"
        raise DataError(f"{why}; expected {expected}", path, 1)
    return headless, len(headless.columns), None


def _cells(
    task: Task,
    form: Form,
    width: int,
    titles: list[str] | None,
    lines: Iterator[str],
    path: str | Path,
    stats: ReadStats,
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, record) of the rows of a separated file, column counts checked."""
    names: Sequence[str] = titles or form.columns
    plain = ((number, line.split(form.separator)) for number, line in enumerate(lines, 1))
    for line, cells in read_quoted(lines, path, form.separator) if form.quoted else plain:
        if titles is not None and line == 1:
            continue
        if not width <= len(cells) <= width + form.extra:
            if task.skip_broken:
                stats.broken += 1
                stats.first_broken = stats.first_broken or line
                continue
            columns = ", ".join(name or "(row)" for name in names)
            raise DataError(f"expected {width} columns ({columns}), got {len(cells)}", path, line)
        yield line, dict(zip(names, cells, strict=False))


def _jsonl(
    task: Task, lines: Iterator[Line], path: str | Path, unlabelled: bool
) -> tuple[Form, Iterator[tuple[int, dict[str, Any]]]]:
    """Return the form and the records of rows with keys; the first row decides the form."""
    first = next(lines)
    row = parse_json(first, path, 1)
    fits = [form for form in task.forms if all(name in row for name in form.texts)]
    form = next((form for form in fits if form.label in row), None)
    if form is None and fits and unlabelled:
        form = fits[0]
    if form is None:
        expected = describe_forms(task, unlabelled)
        raise DataError(f"the row has the keys {', '.join(row)}; expected {expected}", path, 1)
    needed = {*form.texts, *(() if unlabelled else (form.label,))}

    def records() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(chain([first], lines), 1):
            record = parse_json(line, path, number)
            missing = [name for name in sorted(needed) if record.get(name) is None]
            if missing:
                raise missing_key(missing[0], record, path, number)
            yield number, record

    return form, records()


def missing_key(key: str, row: dict[str, Any], path: str | Path, line: int) -> DataError:
    """Return the error for a row without a key that is needed."""
    return DataError(f'the key "{key}" is missing; the row has {", ".join(row)}', path, line)


def json_rows(path: str | Path, key: str, what: str, expected: str) -> Iterator[tuple[str, Any]]:
    """Yield (where it is, item) of the list under a key of a JSON file, one in memory at a time.

    Raises:
        DataError: there is no such list.
    """
    empty = True
    for name, index, item in json_items(path):
        if name == key:
            empty = False
            yield f"{key}[{index}]", item
    if empty:
        raise DataError(f'no {what} under "{key}"; expected {expected}', path)


_Value = TypeVar("_Value", int, str, list[Any])
_NAMES = {int: "an integer", str: "a string", list: "a list"}


def json_field(row: Any, key: str, kind: type[_Value], where: str, path: str | Path) -> _Value:
    """Return a value of an object inside a JSON file.

    Raises:
        DataError: not an object, or the value is of another type.
    """
    value = row.get(key) if isinstance(row, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        expected = f'{_NAMES[kind]} under "{key}"'
        raise DataError(f"{where}: expected {expected}, got {value!r:.40}", path)
    return value
