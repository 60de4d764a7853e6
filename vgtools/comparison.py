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

from vgtools.checkpoint import read_run
from vgtools.io import DataError, Exit, plain, read_json, read_jsonl, sha256_file
from vgtools.ngrams import Types, count
from vgtools.stats import Survey
from vgtools.tasks import metrics
from vgtools.tasks.dispatch import gather, read_examples, read_predictions
from vgtools.tasks.examples import Example
from vgtools.tasks.predictions import Items, headline
from vgtools.tasks.table import TABLE_2, TASKS, Task, find_task

Record = dict[str, Any]

ORDER = (*TABLE_2, *(task.name for task in TASKS if task.name not in TABLE_2))  # columns, Table 2's first
SIGNIFICANT = 0.05  # a p-value below it is marked

# What the paper's tables say: name -> one value a task in the order of Table 2, (EM, F1) of SQuAD; Avg. as printed there.
_BERT = ((89.3, 87.9, 83.2, 79.4), (92.2, 88.6, 88.6, 82.6))
REPORTED: dict[int, dict[str, tuple[Any, ...]]] = {
    2: {
        "BERT 6L/512H": (88.0, 85.2, 87.1, 77.9, (71.3, 80.2), (57.2, 60.8), 56.2, 75.6),
        "BERT 6L/512H + Voken-cls": (89.7, 85.0, 87.3, 78.6, (71.5, 80.2), (61.3, 64.6), 58.2, 76.8),
        "BERT 12L/768H": (*_BERT[0], (77.0, 85.3), (67.7, 71.1), 65.7, 79.4),
        "BERT 12L/768H + Voken-cls": (*_BERT[1], (78.8, 86.7), (68.1, 71.2), 70.6, 82.1),
        "RoBERTa 6L/512H": (87.8, 82.4, 85.2, 73.1, (50.9, 61.9), (49.6, 52.7), 55.1, 70.2),
        "RoBERTa 6L/512H + Voken-cls": (87.8, 85.1, 85.3, 76.5, (55.0, 66.4), (50.9, 54.1), 60.0, 72.6),
        "RoBERTa 12L/768H": (89.2, 87.5, 86.2, 79.0, (70.2, 79.9), (59.2, 63.1), 65.2, 77.6),
        "RoBERTa 12L/768H + Voken-cls": (90.5, 89.2, 87.8, 81.0, (73.0, 82.5), (65.9, 69.3), 70.4, 80.6),
    },
    3: {
        "ViLBERT (0.0e-3 from BERT)": (90.3, 89.6, 88.4, 82.4),
        "VL-BERT (6.4e-3)": (90.1, 89.5, 88.6, 82.9),
        "VisualBERT (6.5e-3)": (90.3, 88.9, 88.4, 82.4),
        "Oscar (41.6e-3)": (87.3, 50.5, 86.6, 77.3),
        "LXMERT (42.0e-3)": (82.4, 50.5, 79.8, 31.8),
        "BERT base": (90.3, 89.6, 88.4, 82.4),
        "BERT base + Weight Noise (6.5e-3)": (89.9, 89.9, 88.4, 82.3),
    },
    4: {
        "MS COCO": (83.7, 60.6, 82.1, 69.3),
        "Wiki103*": (85.8, 77.9, 84.8, 73.9),
        "No Pre-train": (77.1, 50.5, 31.6, 31.8),
    },
    5: {
        "SentLabel": (88.3, 86.1, 86.9, 78.0),
        "Propagated": (88.9, 87.9, 88.1, 80.2),
        "Term Frequency": (89.0, 86.9, 85.5, 79.8),
        "Vokens": _BERT[1],
    },
    6: {
        "Random": (89.1, 87.6, 86.6, 80.0),
        "Shuffle": (89.2, 87.3, 86.1, 80.2),
        "Tokens": (89.7, 88.8, 87.2, 80.8),
        "Voken Only": (89.8, 87.8, 86.2, 81.7),
        "No Voken": _BERT[0],
        "Voken": _BERT[1],
    },
}

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


def reported(table: int) -> list[Record]:
    """Return the rows of one of the paper's Tables 2 to 6 as records, marked as reported."""
    records = []
    for name, values in REPORTED[table].items():
        tasks: Record = {}
        for task, value in zip(TABLE_2, values, strict=False):
            both = value if isinstance(value, tuple) else (value,) * len(find_task(task).metrics)
            of = dict(zip(find_task(task).metrics, both, strict=True)) if task.startswith("squad") else {}
            tasks[task] = {"mean": sum(both) / len(both)} | ({"metrics": {k: {"mean": v} for k, v in of.items()}} if of else {})
        average = values[len(TABLE_2)] if len(values) > len(TABLE_2) else None
        records.append({"run": name, "source": f"reported in the paper, Table {table}", "tasks": tasks, "average": average})
    return records


# ---------------------------------------------------------------------------------------------------------- the table


def layout(records: Sequence[Record], key: str = "mean", bold: bool = False) -> tuple[list[str], list[list[str]], list[str]]:
    """Return headings, rows and remarks of the table, Table 2's columns first; a task that a row lacks shows `-`.

    Args:
        records: of `compare`, and of `reported`.
        key: mean or median over seeds.
        bold: mark what is significantly better in bold (markdown) rather than by a star.
    """
    names = [name for name in ORDER if any(name in r["tasks"] for r in records)]
    titles = [f"{find_task(n).title}{' EM/F1' if n.startswith('squad') else ''}" for n in names]
    base = next((r["run"] for r in records if r.get("baseline")), "")
    average = "average" if key == "mean" else "average_of_medians"
    first = next((r.get(average) for r in records if r.get("baseline")), None)
    rows, drawn = list[list[str]](), False
    for record in records:
        told = "source" in record
        cells = [_cell(name, record["tasks"].get(name), "mean" if told else key, bold) for name in names]
        mean = record.get("average") if told else record.get(average)
        rows.append([f"{record['run']} (reported)" if told else record["run"], *cells, "-" if mean is None else f"{mean:.1f}"])
        changes = [record["tasks"].get(name, {}).get("difference") for name in names]
        if any(changes):
            drawn = True
            gain = "-" if mean is None or first is None else f"{mean - first:+.1f}"
            rows.append(
                [f"  less {base}", *("-" if d is None else f"{d['value']:+.1f} (p {p_value(d['p'])})" for d in changes), gain]
            )
    return ["Run", *titles, "Avg."], rows, _remarks(records, names, key, drawn, bold)


def _cell(name: str, cell: Record | None, key: str, bold: bool) -> str:
    if cell is None:
        return "-"
    both = [cell["metrics"][metric][key] for metric in find_task(name).metrics] if name.startswith("squad") else [cell[key]]
    shown = "/".join(f"{value:.1f}" for value in both)
    spread = "" if cell.get("std") is None else f" ± {cell['std']:.1f}"
    change = cell.get("difference", {})
    if not change.get("significant"):
        return shown + spread
    if change["value"] < 0:
        return f"{shown}{spread} †"
    return f"**{shown}**{spread}" if bold else f"{shown}{spread} *"


def p_value(p: float) -> str:
    """Return a p-value as it is printed."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


_SPELT = {"f1": "F1", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman", "recall_1": "R@1"}


def _measures(names: Iterable[str]) -> str:
    """Say what the number of each task is, where it is not its accuracy or says so in its column."""
    found = dict[str, list[str]]()
    for task in map(find_task, names):
        if task.metrics != ("accuracy",) and task.kind != "span":
            spelt = " and ".join(_SPELT.get(name, name) for name in task.metrics)
            found.setdefault(f"mean of {spelt}" if len(task.metrics) > 1 else spelt, []).append(task.title)
    return "; ".join(f"{' and '.join(titles)}: {what}" for what, titles in found.items())


def _remarks(records: Sequence[Record], names: Sequence[str], key: str, differences: bool, bold: bool) -> list[str]:
    ours, measures = [r for r in records if "source" not in r], _measures(names)
    lines = [f"Per cent, {key} ± standard deviation over seeds." + f" {measures}." * bool(measures)]
    if ours:
        titles = ", ".join(find_task(n).title for n in ours[0]["average_of"])
        lines.append(
            f"Avg.: macro mean over the tasks that all rows have ({titles}), SQuAD as the mean of EM and F1."
            if titles
            else "No Avg.: there is no task that all rows have."
        )
    if differences:
        lines.append(
            f"{'Bold' if bold else '*'}: better than the baseline, †: worse (p < {SIGNIFICANT}; paired bootstrap over examples "
            "and seeds, two-sided, of the means, not corrected for the number of comparisons)."
        )
    told = dict.fromkeys(r["source"] for r in records if "source" in r)
    lines += [
        f"Reported: {source.removeprefix('reported in ')} (Tan & Bansal 2020); its models, data and Avg. are its own."
        for source in told
    ]
    return lines


# -------------------------------------------------------------------------------------------- gain and grounding ratio


def grounded_types(path: str, types: Types, above: int) -> frozenset[str]:
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
    return frozenset(row["type"] for row in Survey(types, captions=path, above=above).grounded_types())


def grounding_ratio(sentences: Iterable[str], types: Types, grounded: frozenset[str]) -> float | None:
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


def gain_layout(found: Sequence[Record]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return headings, rows and remarks of the table of gains: one row a task, by rising grounding ratio."""
    ratios = {p["task"]: p["grounding_ratio"] for record in found for p in record["points"]}
    by_run = [{p["task"]: p for p in record["points"]} for record in found]
    rows = [
        [find_task(name).title, f"{ratio:.1%}", *(f"{own[name]['gain']:+.1f}" if name in own else "-" for own in by_run)]
        for name, ratio in sorted(ratios.items(), key=lambda item: item[1])
    ]
    for name, heading in (("pearson", "Pearson"), ("spearman", "Spearman")):
        rows.append([heading, "", *(_correlation(record.get(name)) for record in found)])
    remarks = [
        "Gain over the baseline against the share of a data set's tokens that are visually grounded (appendix A.7); "
        "95 % intervals."
    ]
    return ["Task", "Grounding ratio", *(r["gain_of"] for r in found)], rows, remarks


def _correlation(value: Record | None) -> str:
    if value is None:
        return "- (fewer than 3 tasks)"
    return f"{value['value']:+.2f}" + (f" [{value['low']:+.2f}, {value['high']:+.2f}]" if "low" in value else "")


_PLOT_WIDTH = 560  # px
_COLOURS = ("#0f766e", "#c2410c", "#6d28d9", "#2563eb", "#be185d", "#4d7c0f", "#a16207", "#475569")


def gain_plot(found: Sequence[Record], base: str) -> bytes:
    """Return an SVG: a point a task and row, the gain with its 95 % interval above the grounding ratio.

    Args:
        found: of `gains`, one record or more.
        base: name of the baseline.
    """
    import jinja2

    points = [p for record in found for p in record["points"]]
    xs, ys = [p["grounding_ratio"] for p in points], [p[key] for p in points for key in ("low", "high")]
    left, right, ticks_x = _axis(min(xs), max(xs))
    low, high, ticks_y = _axis(min(0.0, *ys), max(0.0, *ys))

    def at(value: float) -> float:
        return round((high - value) / (high - low), 4)

    runs, tops = list[Record](), dict[str, tuple[float, float]]()
    for number, record in enumerate(found):
        drawn = []
        for p in record["points"]:
            middle, title = (p["grounding_ratio"] - left) / (right - left), find_task(p["task"]).title
            x = round(middle + 0.012 * (number - (len(found) - 1) / 2), 4)  # rows beside one another, not on top
            full = f"{record['gain_of']}, {title}: {p['gain']:+.2f} [{p['low']:+.2f}, {p['high']:+.2f}], p {p_value(p['p'])}"
            drawn.append({"x": x, "y": at(p["gain"]), "low": at(p["low"]), "high": at(p["high"]), "full": plain(full)})
            tops[title] = round(middle, 4), min(at(p["high"]), tops.get(title, (0, 1))[1])
        r = f": Pearson {_correlation(record['pearson'])}, {record['n']} tasks" if "pearson" in record else ""
        label = f"{record['gain_of']}{r}"
        runs.append({"colour": _COLOURS[number % len(_COLOURS)], "points": drawn, "label": plain(label)})
    # Names stand above the plot, where no line crosses them, in as many lanes as it takes for none to touch another.
    names, ends = list[Record](), list[float]()
    for title, (x, y) in sorted(tops.items(), key=lambda item: item[1]):
        half = 3.4 * len(title) + 5  # px of the figure, at 11 px letters
        left_end = _PLOT_WIDTH * x - half
        lane = next((n for n, end in enumerate(ends) if end <= left_end), len(ends))
        ends[lane : lane + 1] = [left_end + 2 * half]
        names.append({"label": title, "x": x, "y": y, "lane": lane})
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("vgtools", "assets"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    page = environment.get_template("gain.svg").render(
        base=plain(base),
        wide=_PLOT_WIDTH,
        runs=runs,
        names=names,
        lanes=1 + max(name["lane"] for name in names),
        ticks_x=[{"at": round((t - left) / (right - left), 4), "label": f"{t:.0%}"} for t in ticks_x],
        ticks_y=[{"at": at(t), "label": f"{t:+g}" if t else "0", "zero": t == 0} for t in ticks_y],
    )
    return page.encode()


def _axis(low: float, high: float) -> tuple[float, float, list[float]]:
    """Return the ends of an axis around values, and its ticks, round numbers."""
    span = max(high - low, 0.02)
    size = 10 ** math.floor(math.log10(span / 4))
    step = next(size * m for m in (1, 2, 5, 10) if span / (size * m) <= 6)
    first, last = math.floor((low - span * 0.05) / step), math.ceil((high + span * 0.05) / step)
    return first * step, last * step, [round(i * step, 10) for i in range(first, last + 1)]


def as_png(svg: bytes) -> bytes:
    """Return a drawing as PNG, twice its size.

    Raises:
        DataError: the package resvg-py is not installed (69).
    """
    try:
        import resvg_py
    except ModuleNotFoundError:
        raise DataError(
            "a .png needs the package resvg-py (pip install resvg-py); an .svg needs none", code=Exit.UNAVAILABLE
        ) from None
    return bytes(resvg_py.svg_to_bytes(svg_string=svg.decode(), zoom=2, font_family="DejaVu Sans"))
