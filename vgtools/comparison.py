"""Fine-tuned models side by side: scores with their spread, what is chance in a difference, gain against grounding ratio.

Reads the runs of `vg finetune` and their saved predictions; no model and no torch is needed.

Source: Tan & Bansal 2020 (Vokenization), section 4.3, Tables 2 to 6, appendix A.7.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vgtools import metrics
from vgtools.analysis.corpora import CorpusStats
from vgtools.checkpoint import read_run
from vgtools.io import DataError, Exit, read_json, read_jsonl, sha256_file
from vgtools.ngrams import Vocabulary, count
from vgtools.predictions import Items, gather, headline, read_predictions
from vgtools.tasks import TABLE_2, TASKS, Example, Task, find_task, read_examples

Record = dict[str, Any]

ORDER = (*TABLE_2, *(task.name for task in TASKS if task.name not in TABLE_2))  # columns, Table 2's first
SIGNIFICANT = 0.05  # a p-value below it is marked

# ----------------------------------------------------------------------------------------------------------- runs


@dataclass(frozen=True)
class TaskRun:
    """A finished fine-tuning run: one task, one or more seeds."""

    path: Path
    task: Task
    info: Record  # run.json
    scores: dict[str, dict[str, float]]  # seed -> metrics in percent, `headline` among them

    def items(self) -> list[Items]:
        """Return the predictions of each seed beside their gold, all in the order of the first.

        Raises:
            DataError: a file is missing, cannot be scored, is about other examples than the first, or is not what
                run.json has the scores of.
        """
        found = list[Items]()
        for seed, scores in self.scores.items():
            file = self.path / f"seed-{seed}" / "predictions.jsonl"
            wanted = self.info.get("predictions", {}).get(f"seed-{seed}/predictions.jsonl")
            if wanted is not None and file.exists() and sha256_file(file) != wanted:
                raise DataError("is not the file that run.json names (its sha256 differs); fine-tune again", file)
            one = gather(self.task, read_predictions(self.task, file), file=file)
            value = 100 * float(one.statistic(one.gold, one.predicted, None))
            if abs(value - scores["headline"]) > 0.01:
                raise DataError(f"scores {value:.3f}, but run.json says {scores['headline']:.3f}; fine-tune again", file)
            found.append(one if not found else aligned(one, found[0], file))
        return found


def aligned(one: Items, other: Items, file: str | Path) -> Items:
    """Return predictions in the order of others of the same examples.

    Raises:
        DataError: the examples are not the same, by id or by gold.
    """
    place = {name: i for i, name in enumerate(one.ids)}
    if place.keys() != set(other.ids):
        odd = sorted(place.keys() ^ set(other.ids))
        raise DataError(
            f"{len(odd)} ids are not in both of the runs compared, the first {odd[0]!r:.80}; score the same dev file", file
        )
    order = [place[name] for name in other.ids]
    labels = [one.labels[i] for i in order]
    odd = [name for name, ours, theirs in zip(other.ids, labels, other.labels, strict=True) if not _same(ours, theirs)]
    if odd:
        raise DataError(
            f"{len(odd)} of {len(order)} ids have another label than in the run compared with, the first {odd[0]!r:.80}; score "
            "the same dev file",
            file,
        )
    return Items(other.ids, one.gold[order], one.predicted[order], one.statistic, labels=labels)


def _same(ours: Any, theirs: Any) -> bool:
    """Say whether two labels are the same: class, score, or answers or boxes in any order."""
    if isinstance(ours, list) and isinstance(theirs, list):
        return sorted(map(repr, ours)) == sorted(map(repr, theirs))
    return bool(ours == theirs)


@dataclass(frozen=True)
class Row:
    """A model: a name and its fine-tuning runs, one a task."""

    name: str
    path: Path
    tasks: dict[str, TaskRun]
    left_out: list[Path] = field(default_factory=list)  # folders with no finished run


def read_row(path: str | Path) -> Row:
    """Open a fine-tuning run, or a folder whose sub-folders are such runs, one a task.

    Raises:
        DataError: neither, a run is damaged, of another kind, or two are of the same task.
    """
    path = Path(path)
    if (path / "run.json").exists():
        one = _task_run(path)
        return Row(path.resolve().name, path, {one.task.name: one})
    if not path.is_dir():
        raise DataError("does not exist; a run of vg finetune, or a folder of such runs, was wanted", path, code=Exit.NO_INPUT)
    tasks, left_out = dict[str, TaskRun](), list[Path]()
    for folder in sorted(p for p in path.iterdir() if p.is_dir()):
        file = folder / "run.json"
        if not file.exists() or read_json(file, "the run.json of a vg run").get("kind") != "finetune":
            left_out.append(folder)
            continue
        one = _task_run(folder)
        if one.task.name in tasks:
            other = tasks[one.task.name].path
            raise DataError(f"is a run of {one.task.name}, and so is {other}; name the one that is meant", folder)
        tasks[one.task.name] = one
    if not tasks:
        raise DataError("holds no finished run of vg finetune (a sub-folder with run.json)", path, code=Exit.NO_INPUT)
    return Row(path.resolve().name, path, tasks, left_out)


def _task_run(path: Path) -> TaskRun:
    info = read_run(path, "finetune")
    task, seeds = find_task(str(info.get("task"))), info.get("seeds")
    if not isinstance(seeds, dict) or not seeds:
        raise DataError('has no scores under "seeds"', path / "run.json")
    return TaskRun(path, task, info, {seed: scores | {"headline": headline(task, scores)} for seed, scores in seeds.items()})


def read_rows(paths: Sequence[str], baseline: str | None = None) -> list[Row]:
    """Open the runs to compare, the baseline first; rows of the same name are called by their paths.

    Raises:
        DataError: as `read_row`, or the baseline is none of them (usage).
    """
    places = [Path(p).resolve() for p in paths]
    rows = [read_row(path) for path in paths]
    if baseline is not None:
        if Path(baseline).resolve() not in places:
            raise DataError(f"--baseline {baseline} is none of {', '.join(paths)}", code=Exit.USAGE)
        rows.insert(0, rows.pop(places.index(Path(baseline).resolve())))
    names = [row.name for row in rows]
    return [row if names.count(row.name) == 1 else Row(str(row.path), row.path, row.tasks, row.left_out) for row in rows]


# ------------------------------------------------------------------------------------------------------------- scores


def compare(rows: Sequence[Row], *, samples: int = 10_000, seed: int = 0) -> Iterator[Record]:
    """Yield one record a row: scores with their spread over seeds, and the difference from the first row, the baseline.

    A difference is that of the means over seeds. Its p-value and interval come from the paired bootstrap of
    `metrics.paired_bootstrap`: a sample draws examples, the same for both rows, and seeds of each row by themselves. They are
    not corrected for the number of comparisons. `average` is over the tasks that all rows have.

    Args:
        rows: the first is the baseline.
        samples: bootstrap samples.
        seed: of the samples.

    Raises:
        DataError: predictions are missing, damaged, or about other examples than the baseline's.

    Source: Vokenization, section 4.3 and Table 2 (`Avg.` with SQuAD as the mean of EM and F1; QQP as that of F1 and
    accuracy); Table 2 does not say how its significance was tested.
    """
    shared = [name for name in ORDER if all(name in row.tasks for row in rows)]
    base = rows[0]
    gold = dict[str, list[Items]]()
    for row in rows:
        record: Record = {"run": row.name, "path": str(row.path), "baseline": row is base, "tasks": {}}
        for name in (n for n in ORDER if n in row.tasks):
            cell = record["tasks"][name] = summary(row.tasks[name])
            if row is base or name not in base.tasks:
                continue
            if name not in gold:
                gold[name] = base.tasks[name].items()
            theirs, file = gold[name], row.tasks[name].path
            ours = [aligned(one, theirs[0], file) for one in row.tasks[name].items()]
            found = metrics.paired_bootstrap(
                theirs[0].statistic,
                theirs[0].gold,
                np.stack([one.predicted for one in theirs]),
                np.stack([one.predicted for one in ours]),
                samples=samples,
                seed=seed,
            )
            percent = {key: 100 * getattr(found, key) for key in ("value", "low", "high")}
            cell["difference"] = percent | {"p": found.p, "significant": found.p < SIGNIFICANT}
        for key in ("mean", "median"):
            values = [record["tasks"][name][key] for name in shared]
            record["average" if key == "mean" else "average_of_medians"] = sum(values) / len(values) if values else None
        yield record | {"average_of": shared}


def summary(run: TaskRun) -> Record:
    """Return a task's number over the seeds (mean, median, std, min, max), and each metric's mean and median."""
    values = np.array([scores["headline"] for scores in run.scores.values()])
    found: Record = {"seeds": len(values)} | _center(values)
    found |= {"std": float(values.std(ddof=1)) if len(values) > 1 else None}
    found |= {"min": float(values.min()), "max": float(values.max())}
    first, *others = run.scores.values()
    names = [n for n in first if n not in ("headline", "total") and not n.startswith("total_") and all(n in s for s in others)]
    of = {name: _center(np.array([scores[name] for scores in run.scores.values()])) for name in names}
    return found | {"metrics": of}


def _center(values: metrics.Array) -> dict[str, float]:
    return {"mean": float(values.mean()), "median": float(np.median(values))}


# -------------------------------------------------------------------------------------------- gain and grounding ratio


def grounded_types(path: str, types: Vocabulary, above: int) -> frozenset[str]:
    """Return the grounded types: counted in captions, or as `vg stats --grounded-types` lists them.

    Args:
        path: captions (text or `.jsonl`), or such a list, told by its keys `type` and `count`.
        types: what a token is.
        above: in captions, a grounded type occurs more often than this.

    Raises:
        DataError: it cannot be read, or nothing would be grounded.

    Source: Vokenization, section 2.3.
    """
    if re.search(r"\.jsonl(\.gz|\.zst)?$", path):
        row = next((row for _, row in read_jsonl(path)), {})
        if {"type", "count"} <= row.keys():
            return frozenset(row["type"] for _, row in read_jsonl(path, {"type": str}))
    return frozenset(row["type"] for row in CorpusStats(types, captions=path, above=above).grounded_types())


def grounding_ratio(sentences: Iterable[str], types: Vocabulary, grounded: frozenset[str]) -> float | None:
    """Return the share of a text's tokens whose type is grounded, of all tokens; None where it has no token."""
    counts = count(sentences, types).unigrams
    hits = sum(int(n) for name, n in zip(types.names(), counts, strict=False) if n and name in grounded)
    return hits / int(counts.sum()) if counts.sum() else None


def data_of(run: TaskRun) -> Path:
    """Return the file that a run learnt from, as its run.json names it.

    Raises:
        DataError: run.json names none, or it is no longer there.
    """
    task, named = run.task, run.info.get("data", {}).get("train", {}).get("file")
    if not isinstance(named, str) or not Path(named).is_file():
        raise DataError(
            f"the text of {task.name} that it names, {named!r}, is not there; --text {task.name}=FILE names it",
            run.path / "run.json",
            code=Exit.NO_INPUT,
        )
    return Path(named)


def texts_of(task: Task, path: str | Path, unlabelled: bool = False) -> Iterator[str]:
    """Yield the texts of a task's examples; the context of several questions, and what stands before choices, once."""
    last = ""
    for example in read_examples(task, path, unlabelled=unlabelled):
        if example.pair != last or task.kind != "span":
            yield from _texts(example)
        else:
            yield example.text
        last = example.pair or ""


def _texts(example: Example) -> Iterator[str]:
    yield example.text
    if example.pair is not None:
        yield example.pair
    yield from example.choices


def correlation(xs: Sequence[float], ys: Sequence[float]) -> Record:
    """Return Pearson's and Spearman's correlation with 95 % intervals where there are enough points.

    Returns:
        `n`; with 3 points or more `pearson` and `spearman`, each {"value"} and, with 4 or more, {"low", "high"} by Fisher's
        transformation (Spearman's with the variance 1.06 / (n - 3) of Fieller, Hartley & Pearson 1957). They are wide: ten
        points leave a Pearson of 0.6 anything from 0 to 0.9.
    """
    found: Record = {"n": len(xs)}
    if len(xs) < 3:
        return found
    for name, factor in (("pearson", 1.0), ("spearman", 1.06)):
        value = float(metrics.METRICS[name](np.array(xs, float), np.array(ys, float), None))
        found[name] = {"value": value}
        if len(xs) > 3:
            width = 1.959964 * math.sqrt(factor / (len(xs) - 3))
            z = math.atanh(min(max(value, -1 + 1e-12), 1 - 1e-12))
            found[name] |= {"low": math.tanh(z - width), "high": math.tanh(z + width)}
    return found


def gains(records: Sequence[Record], ratios: Mapping[str, float]) -> Iterator[Record]:
    """Yield one record a row but the baseline: its gain on each task beside the task's grounding ratio, and the correlation.

    Args:
        records: of `compare`.
        ratios: task -> grounding ratio of its text.

    Source: Vokenization, appendix A.7.
    """
    for record in records:
        points = [
            {"task": name, "grounding_ratio": ratios[name], "gain": d["value"], "low": d["low"], "high": d["high"], "p": d["p"]}
            for name, cell in record["tasks"].items()
            if name in ratios and (d := cell.get("difference"))
        ]
        if points:
            xs, ys = ([p[key] for p in points] for key in ("grounding_ratio", "gain"))
            yield {"gain_of": record["run"], "points": points, **correlation(xs, ys)}
