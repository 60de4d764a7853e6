"""Fine-tuned models side by side: scores with their spread, significance, gain and grounding ratio.

Reads the runs of `vg finetune` and their saved predictions; no model and no torch is needed.

Source: Tan & Bansal 2020 (Vokenization), section 4.3, Tables 2 to 6, appendix A.7.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.analysis.corpora import CorpusStats
from vgtools.io import arrays
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import read_json, sha256_file
from vgtools.io.names import file_of, refuse_stream
from vgtools.io.streams import read_jsonl
from vgtools.models.runs import read_run
from vgtools.tasks import metrics
from vgtools.tasks.dispatch import gather, read_examples, read_predictions, score_predictions
from vgtools.tasks.examples import listed
from vgtools.tasks.kinds.choice import joint_scores
from vgtools.tasks.own import check_unchanged, definition, hash_read, shown_task, task_of
from vgtools.tasks.predictions import Items, headline, make_row
from vgtools.tasks.table import TABLE_2, TASKS, Task
from vgtools.text.ngrams import Vocabulary, count

Record = dict[str, Any]

_ORDER = (*TABLE_2, *(task.name for task in TASKS if task.name not in TABLE_2))
SIGNIFICANT = 0.05  # a p-value below it is marked
_KIND = "finetune"


def in_order(names: Iterable[str]) -> list[str]:
    """Return the columns of a table, Table 2's first, tasks of one's own last."""
    given = dict.fromkeys(names)
    return [*(name for name in _ORDER if name in given), *(n for n in given if n not in _ORDER)]


@dataclass(frozen=True)
class TaskRun:
    """A finished fine-tuning run: one task, one or more seeds."""

    path: Path
    task: Task
    info: Record  # run.json
    scores: dict[str, dict[str, float]]  # seed -> metrics as printed, `headline` among them
    split: str = "dev"  # split that was scored

    def predictions(self, seed: str) -> str:
        """Return the file of a seed's predictions, below `path`."""
        part = "" if self.split == "dev" else f".{self.split}"
        return f"seed-{seed}/predictions{part}.jsonl"

    def items(self) -> list[Items]:
        """Return the predictions of each seed with their gold, all in the order of the first.

        Raises:
            DataError: a file is missing, cannot be scored, is about other examples than the first,
                or has another score than run.json.
        """
        seeds = list[Items]()
        digests = self.info.get("predictions", {})
        for seed, scores in self.scores.items():
            name = self.predictions(seed)
            file = self.path / name
            digest = digests.get(name)
            if digest is not None and file.exists() and sha256_file(file) != digest:
                why = "is not the file that run.json names (its sha256 differs); fine-tune again"
                raise DataError(why, file)
            items = gather(self.task, read_predictions(self.task, file), file=file)
            value = self.task.scale * float(items.statistic(items.gold, items.predicted, None))
            recorded = scores["headline"]
            if abs(value - recorded) > 0.01:
                why = f"scores {value:.3f}, but run.json states {recorded:.3f}; fine-tune again"
                raise DataError(why, file)
            seeds.append(aligned(items, seeds[0], file) if seeds else items)
        return seeds


def check_examples(run: TaskRun, base: TaskRun) -> None:
    """Refuse runs that were scored on other texts than one another under the same ids and labels.

    Raises:
        DataError: the hashes differ (65, both), or two tasks of one's own have one name.
    """
    ours, theirs = (replace(one.task, own=None) for one in (run, base))
    if ours != theirs:
        facts = [f"{t.kind}, {', '.join(t.metrics)}, {listed(t.labels)}" for t in (ours, theirs)]
        why = f"its task {ours.name!r:.60} is not the one of {base.path}: {' and '.join(facts)}"
        raise DataError(f"{why}; give one of them another --name", run.path / "run.json")
    made, expected = (
        one.info.get("data", {}).get(one.split, {}).get("sha256") for one in (run, base)
    )
    if made != expected:
        why = f"its {run.split} examples have sha256 {made}, the examples of {base.path} {expected}"
        way_out = "fine-tune both on the same file, with the same columns"
        raise DataError(f"{why}; {way_out}", run.path / "run.json")


def check_joined(answers: Record, rationales: Record, split: str, file: str | Path) -> None:
    """Refuse to join runs of vcr-qa and vcr-qar that read other files with the same ids.

    Args:
        answers: run.json of vcr-qa; may be empty.
        rationales: run.json of vcr-qar; may be empty.
        split: split that both predicted.
        file: the run or the predictions to name.

    Raises:
        DataError: the hashes of the files differ (65, both).
    """
    expected, made = (
        hash_read(info, info.get("data", {}).get(split, {}).get("file"))
        for info in (answers, rationales)
    )
    if None not in (expected, made) and expected != made:
        why = f"its {split} file has sha256 {made}, the file of vcr-qa {expected}"
        raise DataError(f"{why}; predict the same file with both", file)


def aligned(one: Items, other: Items, file: str | Path) -> Items:
    """Return predictions in the order of others of the same examples.

    Raises:
        DataError: the examples are not the same, by id or by gold.
    """
    place = {name: i for i, name in enumerate(one.ids)}
    if place.keys() != set(other.ids):
        odd = sorted(place.keys() ^ set(other.ids))
        found = f"{len(odd)} ids are not in both of the runs compared, the first {odd[0]!r:.80}"
        raise DataError(f"{found}; score the same dev file", file)
    order = [place[name] for name in other.ids]
    labels = [one.labels[i] for i in order]
    pairs = zip(other.ids, labels, other.labels, strict=True)
    odd = [name for name, ours, theirs in pairs if not _same(ours, theirs)]
    if odd:
        why = f"{len(odd)} of {len(order)} ids have another label than in the run compared with"
        raise DataError(f"{why}, the first {odd[0]!r:.80}; score the same dev file", file)
    gold = one.gold[order]
    predicted = one.predicted[order]
    groups = other.groups or [one.groups[i] for i in order if one.groups]
    return Items(other.ids, gold, predicted, one.statistic, labels=labels, groups=groups)


def _same(ours: Any, theirs: Any) -> bool:
    """Return whether two labels are equal: class, score, or answers or boxes in any order."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return sorted(map(repr, ours)) == sorted(map(repr, theirs))
    return bool(ours == theirs)


@dataclass(frozen=True)
class Row:
    """A model: a name and its fine-tuning runs, one per task."""

    name: str
    path: Path
    tasks: dict[str, TaskRun]
    left_out: list[Path] = field(default_factory=list)  # folders with no finished run


def read_row(path: str | Path, split: str = "dev", only: Collection[str] = ()) -> Row:
    """Open a fine-tuning run, or a folder whose sub-folders are such runs, one per task.

    Args:
        path: the run or the folder.
        split: split whose scores count.
        only: the tasks to read of a folder; all if empty.

    Raises:
        DataError: neither, a run is damaged, of another kind, or two are of the same task.
    """
    path = Path(path)
    name = path.resolve().name
    if (path / "run.json").exists():
        run = _task_run(path, split)
        return Row(name, path, {run.task.name: run})
    if not path.is_dir():
        why = "does not exist; expected a run of vg finetune, or a folder of such runs"
        raise DataError(why, path, code=Exit.NO_INPUT)
    tasks = dict[str, TaskRun]()
    left_out = list[Path]()
    for folder in sorted(p for p in path.iterdir() if p.is_dir()):
        file = folder / "run.json"
        there = os.path.lexists(file)  # a link to nowhere is a damaged run, not another folder
        info = read_json(file, "the run.json of a vg run") if there else {}
        if info.get("kind") != _KIND:
            left_out.append(folder)
            continue
        if only and info.get("task") not in only:
            continue
        run = _task_run(folder, split)
        task = run.task.name
        if task in tasks:
            why = f"is a run of {task}, and so is {tasks[task].path}; name one of them"
            raise DataError(why, folder)
        tasks[task] = run
    if not tasks:
        tasks_named = f" on {' or '.join(only)}" if only else ""
        why = f"holds no finished run of vg finetune{tasks_named} (a sub-folder with run.json)"
        raise DataError(why, path, code=Exit.NO_INPUT)
    return Row(name, path, tasks, left_out)


def _task_run(path: Path, split: str) -> TaskRun:
    info = read_run(path, _KIND)
    task = task_of(info, path / "run.json")
    seeds = info.get("seeds")
    if not seeds:
        raise DataError('has no scores under "seeds"', path / "run.json")
    scores = {seed: _of_split(task, found, split, path) for seed, found in seeds.items()}
    return TaskRun(path, task, info, scores, split)


def _of_split(task: Task, scores: Mapping[str, float], split: str, path: Path) -> dict[str, float]:
    """Return the scores of a split, which `vg finetune` writes with its name after theirs."""
    found = dict(scores)
    if split != "dev":
        end = f"_{split.removeprefix('dev_')}"
        found = {name.removesuffix(end): x for name, x in scores.items() if name.endswith(end)}
    if any(found.get(name) is None for name in task.metrics):
        why = f"has no scores of the split {split!r}; fine-tune with a {split} file that has labels"
        raise DataError(why, path / "run.json")
    return found | {"headline": headline(task, found)}


def read_rows(
    paths: Sequence[str],
    baseline: str | None = None,
    split: str = "dev",
    only: Collection[str] = (),
) -> list[Row]:
    """Open the runs to compare, the baseline first; rows of the same name are named by their paths.

    Args:
        paths: the runs.
        baseline: one of them; the first if not given.
        split: split whose scores count.
        only: the tasks to read of folders; all if empty.

    Raises:
        DataError: as `read_row`, or the baseline is not one of them (usage).
    """
    places = [Path(p).resolve() for p in paths]
    rows = [read_row(path, split, only) for path in paths]
    there = in_order(name for row in rows for name in row.tasks)
    if unknown := [name for name in only if name not in there]:
        why = f"--task: no run is of {unknown[0]!r:.60}; they are of {', '.join(there)}"
        raise DataError(why, code=Exit.USAGE)
    if baseline is not None:
        first = Path(baseline).resolve()
        if first not in places:
            why = f"--baseline must be one of {', '.join(paths)}, got {baseline}"
            raise DataError(why, code=Exit.USAGE)
        rows.insert(0, rows.pop(places.index(first)))
    names = [row.name for row in rows]
    return [row if names.count(row.name) == 1 else replace(row, name=str(row.path)) for row in rows]


def compare(rows: Sequence[Row], *, samples: int = 10_000, seed: int = 0) -> Iterator[Record]:
    """Yield one record per row: scores with their spread over seeds, and gains over the baseline.

    A difference is the difference of the means over seeds. Its p-value and interval come from
    `metrics.paired_bootstrap`: other examples, the same for both rows, and other seeds count as
    chance; examples that share a picture, a context or a first text are drawn together. If a row
    has a single seed, its models alone are compared: `p` is None and nothing is significant,
    `p_examples` and the interval are over other examples. P-values are not corrected for the number
    of comparisons: `correct` does that. `average` is over the tasks that all rows have, without
    tasks whose score is an error; `left_out`, if there are any, names folders without a finished
    run.

    Args:
        rows: the first is the baseline.

    Raises:
        DataError: predictions are missing, damaged, or about other examples than the baseline's.

    Source: Vokenization, section 4.3 and Table 2 (`Avg.` with SQuAD as the mean of EM and F1, and
    QQP as the mean of F1 and accuracy); Table 2 does not state how its significance was tested.
    """
    base = rows[0]
    common = [name for name in in_order(base.tasks) if all(name in row.tasks for row in rows)]
    shared = [name for name in common if not base.tasks[name].task.lower_is_better]
    gold = dict[str, list[Items]]()
    for row in rows:
        cells = dict[str, Record]()
        for name in in_order(row.tasks):
            cells[name] = summary(row.tasks[name])
            if row is base or name not in base.tasks:
                continue
            check_examples(row.tasks[name], base.tasks[name])
            if name not in gold:
                gold[name] = base.tasks[name].items()
            cells[name]["difference"] = _difference(gold[name], row.tasks[name], samples, seed)
        if {"vcr-qa", "vcr-qar"} <= cells.keys():
            cells["vcr-qar"]["metrics"] |= _both_right(row.tasks["vcr-qa"], row.tasks["vcr-qar"])
        yield {
            "run": row.name,
            "path": str(row.path),
            "baseline": row is base,
            "tasks": cells,
            "average": _average([cells[name]["mean"] for name in shared]),
            "average_of_medians": _average([cells[name]["median"] for name in shared]),
            "average_of": shared,
            **({"left_out": [str(folder) for folder in row.left_out]} if row.left_out else {}),
        }


def _both_right(answers: TaskRun, rationales: TaskRun) -> dict[str, dict[str, float]]:
    """Return VCR's Q→AR over the seeds that both runs have, as a metric; none without such seeds.

    Raises:
        DataError: they are not about the same questions.
    """
    check_joined(answers.info, rationales.info, rationales.split, rationales.path)
    first, second = (dict(zip(r.scores, r.items(), strict=True)) for r in (answers, rationales))
    pairs = [(first[seed], second[seed]) for seed in first if seed in second]
    name = "q2ar_accuracy"
    values = [joint_scores(*pair, rationales.path)[name] for pair in pairs]
    return {name: _center(np.array(values))} if values else {}


def _difference(gold: Sequence[Items], run: TaskRun, samples: int, seed: int) -> Record:
    ours = [aligned(items, gold[0], run.path) for items in run.items()]
    base, mine = (np.stack([items.predicted for items in side]) for side in (gold, ours))
    groups = ours[0].group_numbers()
    how: dict[str, Any] = {
        "scale": run.task.scale,
        "samples": samples,
        "seed": seed,
        "groups": groups,
    }
    return difference(gold[0].statistic, gold[0].gold, base, mine, **how)


def difference(
    statistic: metrics.Statistic,
    gold: arrays.Array,
    base: arrays.Array,
    ours: arrays.Array,
    *,
    scale: float,
    samples: int,
    seed: int,
    groups: arrays.Array | None = None,
) -> Record:
    """Return the gain of a run over the baseline, in points, with its interval and p-value.

    Args:
        statistic: statistic of the task; its score times `scale` is in points, which are below 0
            for an error.
        gold: (N,) labels.
        base: (R, N) predictions of the baseline's seeds, or as `metrics.paired_bootstrap`.
        ours: predictions of the run's seeds.
        scale: points per unit of the score.
        samples: bootstrap samples.
        seed: seed of the samples.
        groups: (N,) numbers of the groups of examples that are drawn whole.
    """
    how: dict[str, Any] = {"samples": samples, "seed": seed, "groups": groups}
    found = metrics.paired_bootstrap(statistic, gold, base, ours, **how)
    ends = {"value": found.value, "low": found.low, "high": found.high}
    points = {key: None if end is None else scale * end for key, end in ends.items()}
    if not found.over_runs:
        return points | {"p": None, "p_examples": found.p, "significant": False}
    return points | {"p": found.p, "significant": found.p is not None and found.p < SIGNIFICANT}


def correct(records: Sequence[Record]) -> None:
    """Correct the p-values of all differences for their number; `significant` follows them.

    A difference without a p-value, of single seeds, does not count.

    Source: Holm 1979, "A simple sequentially rejective multiple test procedure".
    """
    cells = [cell for record in records for cell in record["tasks"].values()]
    holm([cell["difference"] for cell in cells if "difference" in cell])


def holm(differences: Sequence[Record]) -> None:
    """Correct the p-values of differences for their number, as `correct` does for records."""
    differences = [difference for difference in differences if difference["p"] is not None]
    highest = 0.0
    for number, difference in enumerate(sorted(differences, key=lambda found: found["p"])):
        # The maximum keeps the order: corrected p-values rise with the p-values.
        highest = max(highest, min(1.0, (len(differences) - number) * difference["p"]))
        difference |= {"p_holm": highest, "significant": highest < SIGNIFICANT}


def majority_row(rows: Sequence[Row], record: Record) -> Record:
    """Return the scores of always predicting the most frequent label of the training set.

    For READ, whose labels are numbers, the prediction is their mean.

    Args:
        rows: the rows of the table.
        record: the record of one row, for the tasks that all rows have.
    """
    cells = dict[str, Record]()
    runs = {name: run for row in reversed(rows) for name, run in row.tasks.items()}
    for name in in_order(runs):
        scores = _majority(runs[name])
        if scores is not None:
            values = {metric: scores[metric] for metric in runs[name].task.metrics}
            centers = {metric: _center(np.array([x])) for metric, x in values.items()}
            cells[name] = {**_center(np.array([scores["headline"]])), "metrics": centers}
    shared = record["average_of"]
    whole = [cells[name]["mean"] for name in shared if name in cells]
    average = _average(whole) if len(whole) == len(shared) else None
    means = [runs[name].task.title for name in cells if runs[name].task.lower_is_better]
    return {
        "run": f"Most frequent label{''.join(f' ({title}: the mean)' for title in means)}",
        "tasks": cells,
        "average": average,
        "average_of_medians": average,
        "average_of": shared,
    }


def _majority(run: TaskRun) -> Mapping[str, float] | None:
    """Return the scores of the most frequent label, None if there is no such prediction."""
    if run.split == "dev":
        return run.info.get("majority")
    balance = run.info.get("data", {}).get("train", {}).get("balance")
    if not balance or not run.task.classes > 1:
        return None
    common = balance[0][0]
    file = run.path / run.predictions(next(iter(run.scores)))
    rows = read_predictions(run.task, file)
    constant = [make_row(row["id"], common, row["label"]) for row in rows]
    return score_predictions(run.task, constant, file=file)


def _average(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def summary(run: TaskRun) -> Record:
    """Return a task's number over the seeds, with its spread, and each metric's mean and median."""
    seeds = list(run.scores.values())
    values = np.array([scores["headline"] for scores in seeds])
    names = [name for name in seeds[0] if name != "headline" and not name.startswith("total")]
    common = [name for name in names if all(name in scores for scores in seeds)]
    own = {} if run.task.own is None else {"own": definition(run.task)}
    return {
        **own,
        "seeds": len(values),
        **_center(values),
        "std": float(values.std(ddof=1)) if len(values) > 1 else None,
        "min": float(values.min()),
        "max": float(values.max()),
        "metrics": {name: _center(np.array([s[name] for s in seeds])) for name in common},
    }


def _center(values: arrays.Array) -> dict[str, float]:
    return {"mean": float(values.mean()), "median": float(np.median(values))}


def grounded_types(path: str, types: Vocabulary, above: int) -> frozenset[str]:
    """Return the grounded types: counted in captions, or as `vg stats --grounded-types` lists them.

    Args:
        path: captions (text or `.jsonl`), or such a list, known by its keys `type` and `count`.
        above: in captions, a grounded type occurs more often than this.

    Raises:
        DataError: it cannot be read, is a FIFO (usage), or nothing would be grounded.

    Source: Vokenization, section 2.3.
    """
    if re.search(r"\.jsonl(\.gz|\.zst)?$", path):
        refuse_stream(path)  # the first row decides how the file is read, which takes two readings
        row = next((row for _, row in read_jsonl(path)), {})
        if {"type", "count"} <= row.keys():
            return frozenset(row["type"] for _, row in read_jsonl(path, {"type": str}))
    stats = CorpusStats(types, captions=path, above=above)
    return frozenset(row["type"] for row in stats.grounded_types())


def grounding_ratio(
    sentences: Iterable[str], types: Vocabulary, grounded: frozenset[str]
) -> float | None:
    """Return the share of a text's tokens whose type is grounded; None where it has no token."""
    counts = count(sentences, types).unigrams
    named = zip(types.names(), counts, strict=False)
    hits = sum(int(number) for name, number in named if number and name in grounded)
    return hits / int(counts.sum()) if counts.sum() else None


def data_of(run: TaskRun, split: str = "train") -> Path:
    """Return the file of a split of a run, as its run.json names it.

    Raises:
        DataError: run.json names none, or it is no longer there (66), or has changed (65).
    """
    task = run.task
    named = run.info.get("data", {}).get(split, {}).get("file")
    if not isinstance(named, str) or not Path(file_of(named)).is_file():
        why = f"the text of {task.name} that it names, {named!r}, is not there"
        file = run.path / "run.json"
        raise DataError(f"{why}; --text {task.name}=FILE names it", file, code=Exit.NO_INPUT)
    way_out = f"--text {task.name}=FILE names the file that it read"
    check_unchanged(run.info, named, f"{run.path}/run.json", way_out)
    return Path(named)


def texts_of(task: Task, path: str | Path, unlabelled: bool = False) -> Iterator[str]:
    """Yield the texts of a task's examples.

    A context of several questions, or the text before choices, is yielded once.
    """
    last = ""
    for example in read_examples(task, path, unlabelled=unlabelled):
        yield example.text
        if example.pair is not None and (example.pair != last or task.kind != "span"):
            yield example.pair
        yield from example.choices
        last = example.pair or ""


def correlation(xs: Sequence[float], ys: Sequence[float]) -> Record:
    """Return Pearson's and Spearman's correlation, with 95 % intervals of enough points.

    Returns:
        `n`; with 3 points or more `pearson` and `spearman`, each {"value"} and, with 4 or more,
        {"low", "high"} by Fisher's transformation (Spearman's with the variance 1.06 / (n - 3) of
        Fieller, Hartley & Pearson 1957). They are wide: ten points leave a Pearson of 0.6 anything
        from 0 to 0.9.
    """
    found: Record = {"n": len(xs)}
    if len(xs) < 3:
        return found
    for name, factor in (("pearson", 1.0), ("spearman", 1.06)):
        value = float(metrics.METRICS[name](np.array(xs, float), np.array(ys, float), None))
        found[name] = {"value": value}
        if len(xs) > 3:
            width = 1.959964 * math.sqrt(factor / (len(xs) - 3))
            # The transformation of a correlation of exactly 1 or -1 is infinite.
            z = math.atanh(min(max(value, -1 + 1e-12), 1 - 1e-12))
            found[name]["low"] = min(value, math.tanh(z - width))
            found[name]["high"] = max(value, math.tanh(z + width))
    return found


def gains(records: Sequence[Record], ratios: Mapping[str, float]) -> Iterator[Record]:
    """Yield one record per row but the baseline: gains, grounding ratios, and correlations.

    Only gains in points of a hundred can be correlated: tasks with another score are left out.

    Args:
        ratios: task -> grounding ratio of its text.

    Source: Vokenization, appendix A.7.
    """
    for record in records:
        points = [
            {
                "task": name,
                "grounding_ratio": ratios[name],
                "gain": difference["value"],
                **{key: difference[key] for key in ("low", "high", "p")},
            }
            for name, cell in record["tasks"].items()
            if name in ratios
            and not shown_task(name, cell).lower_is_better
            and (difference := cell.get("difference"))
            and difference["low"] is not None  # a single example has no interval
        ]
        if points:
            xs = [point["grounding_ratio"] for point in points]
            ys = [point["gain"] for point in points]
            yield {"gain_of": record["run"], "points": points, **correlation(xs, ys)}
