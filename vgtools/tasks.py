"""The downstream table: one row a task, its official files, its metrics, the paper's hyper-parameters.

`read_examples` streams an official file as `Example`s; `vgtools.predictions` scores what a model answers.
"""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from vgtools.io import DataError, Exit, TextStats, parse_json, read_lines
from vgtools.jsonstream import json_items

Kind = Literal["classify", "regress", "span", "choice", "answer", "ground"]


@dataclass(frozen=True)
class Hyper:
    """Fine-tuning hyper-parameters, and where they come from."""

    epochs: int
    learning_rate: float
    batch_size: int
    source: str
    warmup: float = 0.1  # share of the steps
    max_length: int = 126  # tokens with the special ones
    stride: int | None = None  # span: tokens from one window of a long context to the next
    seed: int = 9595
    clip: float = 1.0  # largest norm of the gradient


@dataclass(frozen=True)
class Form:
    """One way in which a task's rows are written: which columns (or keys of a jsonl row) hold what.

    With a header, columns are found by name, in any order. `quoted` files are told by their exact header.
    """

    texts: tuple[str, ...]
    label: str = "label"
    id: str | None = None
    columns: tuple[str, ...] = ()  # exact order: of a quoted form, or of a form without a header
    header: bool = True
    quoted: bool = False
    separator: str = "\t"
    extra: int = 0  # without a header: columns that may follow


@dataclass(frozen=True)
class Task:
    """One downstream data set."""

    name: str
    title: str  # as the papers write it
    kind: Kind
    files: Mapping[str, str]  # split -> official file name
    metrics: tuple[str, ...]
    hyper: Hyper
    forms: tuple[Form, ...] = ()
    labels: tuple[str, ...] = ()  # class i is written labels[i] or i; choice: empty, i only; answer: of the training set
    choices: int = 0
    low: float = 0.0  # regress: range of the scores
    high: float = 0.0
    skip_broken: bool = False  # rows with a wrong column count are counted, not refused
    note: str = ""
    images: int = 0  # that an example shows; its rows are read by `vgtools.visual_tasks`
    official: str = ""  # what the official file holds, where it is no table

    @property
    def classes(self) -> int:
        """Return how many outputs a head for this task has."""
        return len(self.labels) if self.kind in ("classify", "answer") else self.choices if self.kind == "choice" else 1


_A1 = "Vokenization, appendix A.1; warm-up, length and seed: its released code"
_GLUE = Hyper(3, 1e-4, 32, _A1)
_BERT = "Vokenization, appendix A.1; warm-up, length and stride: BERT's released code"
_SWAG = Hyper(3, 2e-5, 16, "Vokenization, appendix A.1; warm-up and seed as for GLUE", max_length=128)
_VISUAL = "VisualBERT (Li et al. 2020), appendix B (warm-up, length) and"
_PAIR = ("sentence1", "sentence2")
_EXPORT = Form(_PAIR, id="index", columns=("index", "label", *_PAIR), quoted=True)  # GLUE as data hubs export it
_ENTAILMENT = ("entailment", "not_entailment")
_VCR = {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}
_TSV = {"train": "train.tsv", "dev": "dev.tsv", "test": "test.tsv"}

TASKS: tuple[Task, ...] = (
    Task(
        "cola", "CoLA", "classify", _TSV, ("matthews",), _GLUE,
        (
            Form(("sentence",), columns=("source", "label", "star", "sentence"), header=False),
            Form(("sentence",), id="index"),
        ),
        ("unacceptable", "acceptable"),
        note="train and dev have no header; as in_domain_train.tsv, in_domain_dev.tsv, out_of_domain_dev.tsv",
    ),
    Task(
        "sst-2", "SST-2", "classify", _TSV, ("accuracy",), _GLUE,
        (Form(("sentence",), id="index"),), ("negative", "positive"),
    ),
    Task(
        "mrpc", "MRPC", "classify",
        {"train": "msr_paraphrase_train.txt", "dev": "dev.tsv", "test": "msr_paraphrase_test.txt"}, ("f1", "accuracy"), _GLUE,
        (Form(("#1 String", "#2 String"), "Quality"), Form(_PAIR, id="index"), _EXPORT),
        ("not_equivalent", "equivalent"),
        note="quotes are text, not quoting; hub exports (index, label, sentence1, sentence2) are quoted and read so",
    ),
    Task(
        "sts-b", "STS-B", "regress", _TSV, ("pearson", "spearman"), _GLUE,
        (
            Form(_PAIR, "score", id="index"),
            Form(_PAIR),
            Form(_PAIR, "score", columns=("genre", "file", "year", "old_index", "score", *_PAIR), header=False, extra=2),
        ),
        high=5.0,
        note="sts-train.csv and sts-dev.csv of the STS benchmark have no header, and licence columns at the end of some rows",
    ),
    Task(
        "qqp", "QQP", "classify", _TSV, ("f1", "accuracy"), _GLUE,
        (
            Form(("question1", "question2"), "is_duplicate", id="id"),
            Form(("question1", "question2")),
            Form(
                ("question1", "question2"), "is_duplicate", "id",
                ("id", "qid1", "qid2", "question1", "question2", "is_duplicate"), header=False,
            ),
        ),
        ("not_duplicate", "duplicate"),
        skip_broken=True,
        note="rows torn by a line break inside a question are counted and left out",
    ),
    Task(
        "mnli", "MNLI", "classify",
        {
            "train": "train.tsv", "dev": "dev_matched.tsv", "dev_mismatched": "dev_mismatched.tsv",
            "test": "test_matched.tsv", "test_mismatched": "test_mismatched.tsv",
        },
        ("accuracy",), _GLUE,
        (Form(_PAIR, "gold_label", id="index"), Form(("premise", "hypothesis")), Form(_PAIR, id="index")),
        ("entailment", "neutral", "contradiction"),
        note="rows without agreement (gold label -) are counted and left out",
    ),
    Task(
        "qnli", "QNLI", "classify", _TSV, ("accuracy",), _GLUE,
        (Form(("question", "sentence"), id="index"),), _ENTAILMENT,
    ),
    Task("rte", "RTE", "classify", _TSV, ("accuracy",), _GLUE, (Form(_PAIR, id="index"), _EXPORT), _ENTAILMENT),
    Task(
        "wnli", "WNLI", "classify", _TSV, ("accuracy",), _GLUE,
        (Form(_PAIR, id="index"), _EXPORT), ("not_entailment", "entailment"),
        note="0 is not_entailment, the other way round than in RTE and QNLI",
    ),
    Task(
        "squad-1.1", "SQuAD v1.1", "span", {"train": "train-v1.1.json", "dev": "dev-v1.1.json"}, ("exact", "f1"),
        Hyper(3, 5e-5, 32, _BERT, max_length=384, stride=128),
    ),
    Task(
        "squad-2.0", "SQuAD v2.0", "span", {"train": "train-v2.0.json", "dev": "dev-v2.0.json"}, ("exact", "f1"),
        Hyper(2, 5e-5, 48, _BERT, max_length=384, stride=128),
    ),
    Task(
        "swag", "SWAG", "choice", {"train": "train.csv", "dev": "val.csv", "test": "test.csv"}, ("accuracy",), _SWAG,
        (
            Form(
                ("sent1", "sent2", "ending0", "ending1", "ending2", "ending3"),
                columns=(
                    "", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source",
                    "ending0", "ending1", "ending2", "ending3", "label",
                ),
                quoted=True, separator=",",
            ),
        ),
        choices=4,
        note="the second sentence's beginning stands in front of every ending",
    ),
    Task(
        "codah", "CODAH", "choice", _TSV | {"all": "full_data.tsv"}, ("accuracy",),
        Hyper(3, 2e-5, 16, "not in the paper; as SWAG, which has the same form", max_length=128),
        (
            Form(
                ("prompt", "ending0", "ending1", "ending2", "ending3"),
                columns=("category", "prompt", "ending0", "ending1", "ending2", "ending3", "label"),
                header=False,
            ),
        ),
        choices=4,
    ),
    Task(
        "nlvr2", "NLVR2", "classify", {"train": "train.json", "dev": "dev.json", "test": "test1.json"}, ("accuracy",),
        Hyper(10, 2e-5, 64, f"{_VISUAL} B.3; rate, epochs and batch: its released code", max_length=128),
        labels=("False", "True"), images=2,
        official="jsonl: identifier, sentence, label",
        note="consistency: share of sentences that are right of all their pairs of pictures; 144 regions a picture",
    ),
    Task(
        "vqa", "VQA 2.0", "answer",
        {
            "train": "v2_OpenEnded_mscoco_train2014_questions.json", "dev": "v2_OpenEnded_mscoco_val2014_questions.json",
            "test": "v2_OpenEnded_mscoco_test2015_questions.json",
        },
        ("accuracy",),
        Hyper(10, 2e-5, 64, f"{_VISUAL} B.1; rate, epochs, batch, clipping: its released code", max_length=128, clip=0.25),
        images=1, official="JSON of questions (image_id, question, question_id), annotations (answers) beside",
        note="annotations: v2_mscoco_train2014_annotations.json; each answer is judged by the other nine, as officially",
    ),
    Task(
        "vcr-qa", "VCR Q→A", "choice", _VCR, ("accuracy",),
        Hyper(8, 2e-5, 32, f"{_VISUAL} B.2; rate, epochs and batch: its released code", max_length=128),
        choices=4, images=1, official="jsonl: annot_id, img_fn, objects, question, answer_choices, answer_label",
        note="regions begin with the objects of vg prepare vcr, which the words that name them are aligned with",
    ),
    Task(
        "vcr-qar", "VCR QA→R", "choice", _VCR, ("accuracy",),
        Hyper(12, 2e-5, 32, f"{_VISUAL} B.2; rate, epochs and batch: its released code", max_length=128),
        choices=4, images=1, official="jsonl as of vcr-qa: rationale_choices, rationale_label, and the right answer",
        note="Q→AR, both right: --score its predictions --joint those of vcr-qa",
    ),
    Task(
        "flickr30k-grounding", "Flickr30k Entities", "ground",
        {"train": "train.jsonl", "dev": "val.jsonl", "test": "test.jsonl"}, ("recall_1",),
        Hyper(5, 2e-5, 32, f"{_VISUAL} B.4; rate, epochs and batch: its released code", max_length=128),
        images=1, official="jsonl of vg prepare flickr30k-entities --split: image, text, phrases (start, end, boxes)",
        note="recall_5 and recall_10: among the best 5 and 10; upper_bound: phrases that some region covers with IoU 0.5",
    ),
)  # fmt: skip

_ALIASES = {"squad": "squad-1.1", "squad1": "squad-1.1", "squadv1": "squad-1.1", "squad2": "squad-2.0", "squadv2": "squad-2.0"}
TABLE_2 = ("sst-2", "qnli", "qqp", "mnli", "squad-1.1", "squad-2.0", "swag")  # Vokenization, columns of Table 2


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_task(name: str) -> Task:
    """Return the task of a name, however it is spelled: SST-2, sst2, SQuAD v1.1, squad-1.1, squad.

    Raises:
        DataError: no such task; all names are listed (usage).
    """
    for task in TASKS:
        if _key(_ALIASES.get(_key(name), name)) in (_key(task.name), _key(task.title)):
            return task
    raise DataError(f"there is no task {name!r}; there are {', '.join(t.name for t in TASKS)}", code=Exit.USAGE)


def table() -> list[dict[str, Any]]:
    """Return one row a task for `vg finetune --list`: columns, labels, metrics, the paper's hyper-parameters."""
    rows = []
    for task in TASKS:
        form = task.forms[0] if task.forms else None
        columns = "official JSON: context, question, answers" + (", is_impossible" if task.name == "squad-2.0" else "")
        columns = task.official or columns
        if form is not None:
            named = ", ".join(c or "(row)" for c in form.columns or (*form.texts, form.label))
            columns = named if form.header else f"{named} (no header)"
        labels = ", ".join(task.labels) or (f"0 to {task.choices - 1}" if task.choices else "")
        other = {"regress": f"{task.low:g} to {task.high:g}", "span": "answer spans", "answer": "answers of the training set"}
        other["ground"] = "boxes"
        shown = labels or other[task.kind]
        facts = {"task": task.name, "title": task.title, "kind": task.kind, "files": dict(task.files), "columns": columns}
        facts |= {"labels": shown, "metrics": list(task.metrics)}
        rows.append(facts | asdict(task.hyper) | {"note": task.note})
    return rows


# -------------------------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class Answer:
    """A gold answer: `context[start : start + len(text)] == text`, in code points; start -1 where it stands nowhere."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Example:
    """One item of a task.

    `text` and `pair` are the sentence or the two sentences; span: the question and the context; choice: the beginning
    (pair None), each of `choices` a way to go on.
    """

    id: str
    text: str
    pair: str | None = None
    label: int | float | None = None  # class or choice number, score; None where the file has none, and for spans
    choices: tuple[str, ...] = ()
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False

    @property
    def question(self) -> str:
        """Return the question of a span example."""
        return self.text

    @property
    def context(self) -> str:
        """Return the context of a span example."""
        return self.pair or ""


@dataclass
class ReadStats:
    """What reading a file met, to be printed: nothing is left out silently."""

    rows: int = 0  # examples given out
    broken: int = 0  # rows of a wrong column count, left out (only where the official readers leave them out)
    first_broken: int = 0  # the line of the first of them
    no_gold: int = 0  # rows without an agreed label (`-`), left out
    moved: int = 0  # answers that stand elsewhere in the context than answer_start says
    unboxed: int = 0  # phrases without a box, left out
    lost: int = 0  # answers that stand nowhere in the context: they count when scoring, nothing can be learnt from them
    text: TextStats = field(default_factory=TextStats)
    labels: Counter[str] = field(default_factory=Counter)

    def balance(self) -> list[tuple[str, int, float]]:
        """Return (label, count, share) of every class met, most frequent first."""
        total = sum(self.labels.values())
        return [(name, count, count / total) for name, count in self.labels.most_common()]

    def report(self) -> Iterator[str]:
        """Yield what to tell the user: examples with the class balance, then everything left out or mended."""
        yield ", ".join([f"{self.rows} examples", *(f"{name} {n} ({share:.1%})" for name, n, share in self.balance())])
        for count, what in (
            (self.broken, f"rows with a wrong column count were left out, the first on line {self.first_broken}"),
            (self.no_gold, "rows have no agreed label"),
            (self.moved, "answers stand elsewhere in the context than answer_start says; the nearest place was taken"),
            (self.unboxed, "phrases have no box (scenes, or nothing that is seen) and are left out"),
            (self.lost, "answers stand nowhere in their context; they count when scoring, nothing is learnt from them"),
            (self.text.replaced, "lines are not UTF-8; bad bytes were replaced"),
        ):
            if count:
                yield f"{count} {what}"


def read_examples(
    task: Task | str, path: str | Path, *, unlabelled: bool = False, stats: ReadStats | None = None
) -> Iterator[Example]:
    """Yield the examples of an official file, one at a time.

    Args:
        task: a task or its name.
        path: the official TSV, CSV or JSON, or jsonl with the same keys; `.gz`, `.zst`, or `-`.
        unlabelled: a test file: labels may be missing, and come as None.
        stats: counts rows, classes and everything left out.

    Yields:
        Examples in file order; ids are the file's own where it has them, else the row's number from 0.

    Raises:
        DataError: missing (66); empty, a missing column, a wrong column count, an unknown label, a repeated id, broken
            JSON: file, line, what was found and what was wanted (65).
    """
    task = find_task(task) if isinstance(task, str) else task
    stats = ReadStats() if stats is None else stats
    rows: Iterator[tuple[int | None, Example]]
    if task.images:
        from vgtools.visual_tasks import visual_rows  # made of this module's rows

        rows = visual_rows(task, path, unlabelled, stats)
    else:
        rows = _squad(task, path, unlabelled, stats) if task.kind == "span" else _rows(task, path, unlabelled, stats)
    seen: set[str] = set()
    for line, example in rows:
        if example.id in seen:
            raise DataError(f"the id {example.id!r:.80} stands there already; ids join predictions to examples", path, line)
        seen.add(example.id)
        stats.rows += 1
        if task.kind == "span":
            stats.labels["unanswerable" if example.is_impossible else "answerable"] += 1
        elif example.label is not None and task.kind != "regress":
            stats.labels[task.labels[int(example.label)] if task.labels else str(example.label)] += 1
        yield example
    if not stats.rows:
        left = f"all {stats.broken} rows have a wrong column count" if stats.broken else "holds no examples"
        raise DataError(f"{left}; wanted {_wanted(task, unlabelled)}", path)


def _wanted(task: Task, unlabelled: bool = False) -> str:
    """Describe the forms in which a task may be written."""
    if task.official:
        return f"{task.title} as {task.official}"
    if task.kind == "span":
        return f"the official JSON of {task.title}"
    ways = []
    for form in task.forms:
        names = form.columns if form.quoted or not form.header else (*form.texts, *(() if unlabelled else (form.label,)))
        ways.append(", ".join(n or "(row)" for n in names) + ("" if form.header else " (no header)"))
    return f"{task.title} with columns " + "; or ".join(ways)


def _rows(task: Task, path: str | Path, unlabelled: bool, stats: ReadStats) -> Iterator[tuple[int, Example]]:
    """Yield (line, example) of a TSV, CSV or jsonl file."""
    lines = read_lines(path, stats.text)
    first = next(lines, None)
    if first is None:
        raise DataError(f"is empty; wanted {_wanted(task, unlabelled)}", path)
    source = chain([first], lines)
    form, records = _jsonl(task, source, path, unlabelled) if first.lstrip().startswith("{") else (None, iter(()))
    if form is None:
        form, width, titles = _form(task, first, path, unlabelled)
        records = _cells(task, form, width, titles, source, path, stats)
    for number, (line, record) in enumerate(records):
        label = record.get(form.label)
        if label == "-" and task.name == "mnli":
            stats.no_gold += 1
            if not unlabelled:
                continue
            label = None
        value = (
            None
            if label is None or (unlabelled and str(label) in ("-1", "-1.0"))
            else label_value(task, form.label, label, path, line)
        )
        texts = [record[name] for name in form.texts]
        for name, text in zip(form.texts, texts, strict=True):
            if not isinstance(text, str):
                raise DataError(f'"{name}" must be a string, found {text!r:.60}', path, line)
        own = record.get(form.id) if form.id else None
        name = str(number) if own is None else str(own)
        if task.kind == "choice":
            *start, one, two, three, four = texts
            ahead = f"{start[1]} " if len(start) > 1 else ""
            endings = tuple(ahead + ending for ending in (one, two, three, four))
            yield line, Example(name, start[0], None, value, endings)
        else:
            yield line, Example(name, texts[0], texts[1] if len(texts) > 1 else None, value)


def _form(task: Task, first: str, path: str | Path, unlabelled: bool) -> tuple[Form, int, list[str] | None]:
    """Tell from the first line how a file is written; return the form, its column count, and the header if it has one."""
    without_label = None
    for form in sorted(task.forms, key=lambda f: not f.quoted):  # told by the whole header, so before those by some names
        if not form.header:
            continue
        titles = [title.strip('"') if form.quoted else title for title in first.split(form.separator)]
        if form.quoted:
            allowed = {form.columns, tuple(c for c in form.columns if c != form.label)}
            matches = tuple(titles) in allowed
        else:
            matches = all(title in titles for title in form.texts)
        if matches and (form.label in titles or unlabelled):
            if len(set(titles)) < len(titles):
                raise DataError(f"the header names a column twice: {', '.join(titles)}", path, 1)
            return form, len(titles), titles
        if matches:
            without_label = form
    if without_label is not None:
        raise DataError(
            f'the header has no column "{without_label.label}": found {", ".join(first.split(without_label.separator))}; '
            "a file without labels can be predicted, not trained on or scored",
            path,
            1,
        )
    bare = next((f for f in task.forms if not f.header), None)
    if bare is None:
        raise DataError(
            f"the first line is no header of this task: {first!r:.120}; wanted {_wanted(task, unlabelled)}", path, 1
        )
    return bare, len(bare.columns), None


def _cells(
    task: Task, form: Form, width: int, titles: list[str] | None, lines: Iterator[str], path: str | Path, stats: ReadStats
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, record) of the rows of a separated file, column counts checked."""
    names: Sequence[str] = titles or form.columns
    for line, cells in _quoted(form, lines, path) if form.quoted else _plain(form, lines):
        if titles is not None and line == 1:
            continue
        if not width <= len(cells) <= width + form.extra:
            if task.skip_broken:
                stats.broken += 1
                stats.first_broken = stats.first_broken or line
                continue
            raise DataError(
                f"found {len(cells)} columns, wanted {width} ({', '.join(n or '(row)' for n in names)})", path, line
            )
        yield line, dict(zip(names, cells, strict=False))


def _plain(form: Form, lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split(form.separator)) for number, line in enumerate(lines, 1))


def _quoted(form: Form, lines: Iterator[str], path: str | Path) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in lines), delimiter=form.separator, strict=True)
    start = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"not valid quoted text: {error}; is the file cut off?", path, start) from None
        yield start, cells
        start = reader.line_num + 1


def _jsonl(
    task: Task, lines: Iterator[str], path: str | Path, unlabelled: bool
) -> tuple[Form, Iterator[tuple[int, dict[str, Any]]]]:
    """Return the form and the records of a jsonl file; the first row tells the form."""
    first = next(lines)
    row = parse_json(first, path, 1)
    fits = [f for f in task.forms if all(name in row for name in f.texts)]
    form = next((f for f in fits if f.label in row), fits[0] if fits and unlabelled else None)
    if form is None:
        raise DataError(f"the row has the keys {', '.join(row)}; wanted {_wanted(task, unlabelled)}", path, 1)
    needed = {*form.texts, *(() if unlabelled else (form.label,))}

    def records() -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(chain([first], lines), 1):
            record = parse_json(line, path, number)
            missing = [name for name in sorted(needed) if record.get(name) is None]
            if missing:
                raise DataError(f'the key "{missing[0]}" is missing; the row has {", ".join(record)}', path, number)
            yield number, record

    return form, records()


def label_value(task: Task, column: str, label: object, path: str | Path | None, line: int | None) -> int | float:
    """Return the class number or score that a label says, or name what was wanted."""
    if isinstance(label, bool) or not isinstance(label, (str, int, float)):
        found: float = math.nan
    elif task.kind != "regress":
        if label in task.labels:
            return task.labels.index(str(label))
        if re.fullmatch(r"[0-9]{1,3}", str(label)) and int(label) < task.classes:
            return int(label)
        names = [f"{name} ({i})" for i, name in enumerate(task.labels)] or [str(i) for i in range(task.choices)]
        raise DataError(f'{label!r:.60} in "{column}"; wanted one of {", ".join(names)}', path, line)
    else:
        try:
            found = float(label)
        except (ValueError, OverflowError):
            found = math.nan
        if task.low <= found <= task.high:
            return found
    wanted = f"a number from {task.low:g} to {task.high:g}" if task.kind == "regress" else "a label"
    raise DataError(f'{label!r:.60} in "{column}"; wanted {wanted}', path, line)


def _squad(task: Task, path: str | Path, unlabelled: bool, stats: ReadStats) -> Iterator[tuple[int | None, Example]]:
    """Yield (no line, example) of an official SQuAD file, one article in memory at a time."""
    version_2, met = task.name == "squad-2.0", False
    for key, index, article in json_items(path):
        if key != "data":
            continue
        met, where = True, f"data[{index}]"
        for p, paragraph in enumerate(_list(article, "paragraphs", where, path)):
            spot = f"{where}.paragraphs[{p}]"
            context = _string(paragraph, "context", spot, path)
            for q, row in enumerate(_list(paragraph, "qas", spot, path)):
                at = f"{spot}.qas[{q}]"
                name, question = _string(row, "id", at, path), _string(row, "question", at, path)
                impossible = row.get("is_impossible", None if version_2 and not unlabelled else False)
                if not isinstance(impossible, bool):
                    raise DataError(
                        f'{at}: "is_impossible" must be true or false, found {impossible!r:.40}; is this a SQuAD 1.1 file?',
                        path,
                    )
                if impossible and not version_2:
                    raise DataError(f"{at}: the question is unanswerable; this is a SQuAD 2.0 file, take squad-2.0", path)
                given = [] if unlabelled and "answers" not in row else _list(row, "answers", at, path)
                if bool(given) == impossible and not (unlabelled and not given):
                    raise DataError(f"{at}: {len(given)} answers, but is_impossible is {str(impossible).lower()}", path)
                answers = tuple(_answer(a, context, f"{at}.answers[{i}]", path, stats) for i, a in enumerate(given))
                yield None, Example(name, question, context, answers=answers, is_impossible=impossible)
    if not met:
        raise DataError(f'has no articles under "data"; wanted {_wanted(task)}', path)


def _list(row: Any, key: str, where: str, path: str | Path) -> list[Any]:
    found = row.get(key) if isinstance(row, dict) else None
    if not isinstance(found, list):
        raise DataError(f'{where}: wanted a list under "{key}", found {found!r:.40}', path)
    return found


def _string(row: Any, key: str, where: str, path: str | Path) -> str:
    found = row.get(key) if isinstance(row, dict) else None
    if not isinstance(found, str):
        raise DataError(f'{where}: wanted a string under "{key}", found {found!r:.40}', path)
    return found


def _answer(row: Any, context: str, where: str, path: str | Path, stats: ReadStats) -> Answer:
    """Return an answer whose span is true: as given, else the nearest place where its text stands."""
    text, start = _string(row, "text", where, path), row.get("answer_start")
    if not isinstance(start, int) or isinstance(start, bool):
        raise DataError(f'{where}: "answer_start" must be an integer, found {start!r:.40}', path)
    if not text or (start >= 0 and context.startswith(text, start)):
        return Answer(text, start if text else -1)
    places = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    if not places:
        stats.lost += 1
        return Answer(text, -1)
    stats.moved += 1
    return Answer(text, min(places, key=lambda place: abs(place - start)))
