"""Tables of commands, for a terminal and as markdown."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import orjson

from vgtools import systems
from vgtools.io.errors import DataError, Exit, name_of, plain
from vgtools.io.files import dumps
from vgtools.io.own import open_stream
from vgtools.tasks.compare import SIGNIFICANT, in_order
from vgtools.tasks.own import shown_task
from vgtools.tasks.table import Task, title_of
from vgtools.text.ngrams import VOCABULARY_ABOVE

Record = Mapping[str, Any]

# Papers with printed numbers; the first is meant where none is named. The tables of each are in the
# folder `reported` of its package, CONTENTS.NUMBER.jsonl, as `vg compare --reported` prints them.
_PAPERS = ("vokenization", "grounding", "visual-awareness", "xdbert", "visualbert")

# The command that compares with a table, by the table's contents.
_COMPARED_BY = {
    "scores": "vg compare RUN",
    "corpora": "vg stats CORPUS --reported, or make table1",
    "perplexities": "vg perplexity TEXT --reported {name}, or make table{number}",
    "task_sizes": "vg finetune TASK DATA --list, or make table4",
    "pwcca": "vg compare words VECTORS --reported {name}, or make table{number}",
    "sizes": "vg compare sizes ENCODER --reported {name}, or make table{number}",
    "examples": "vg compare examples BASELINE RUN --reported {name}, or make figure{number}",
    "heads": "vg probe-attention PHRASES --reported, or make paper",
}

# Metrics that a task's paper prints next to the first, each in a column of its own.
_BESIDE = {
    "nlvr2": {"consistency": "NLVR2 consistency"},
    "vcr-qar": {"q2ar_accuracy": "VCR Q→AR"},
    "flickr30k-grounding": {
        "recall_5": "R@5",
        "recall_10": "R@10",
        "upper_bound": "Upper bound",
    },
}


class Table(NamedTuple):
    """Headings, rows and remarks; the first column is text, the others are numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()
    title: str = ""


def print_table(table: Table) -> None:
    """Print a table on the terminal that is standard output."""
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(table.headings):
        grid.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in table.rows:
        grid.add_row(*(Text(plain(cell)) for cell in row))
    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    if table.title:
        console.print(Text(plain(table.title), style="bold"))
    console.print(grid)
    for remark in table.remarks:
        console.print(Text(remark, style="dim"))


def markdown(table: Table) -> str:
    """Return a table as markdown."""

    def line(cells: Sequence[str]) -> str:
        escaped = (plain(cell).strip().replace("|", "\\|") for cell in cells)
        return f"| {' | '.join(escaped)} |\n"

    rule = "|---|" + "--:|" * (len(table.headings) - 1) + "\n"
    remarks = (f"\n{plain(remark)}\n" for remark in table.remarks)
    return "".join([line(table.headings), rule, *map(line, table.rows), *remarks])


def show(
    records: Sequence[Record], tables: Sequence[Table], as_markdown: bool, more: str = ""
) -> None:
    """Print records into a pipe, tables to a terminal or as markdown.

    Args:
        records: records of a command.
        tables: tables of the records.
        as_markdown: print tables as markdown, also into a pipe.
        more: text below the tables.
    """
    if as_markdown:
        parts = [*map(markdown, tables), *([more] if more else [])]
        open_stream("-").write("\n".join(parts).encode())
    elif sys.stdout is not None and sys.stdout.isatty():
        for table in tables:
            print_table(table)
        if more:
            print(f"\n{plain(more)}", end="")
    else:
        out = open_stream("-")
        for record in records:
            out.write(dumps(record))


def reported(name: str, contents: str = "scores") -> list[dict[str, Any]]:
    """Return the rows of a table of a paper, `xdbert:2`; a bare `2` is of the first paper that has
    such tables.

    Args:
        name: name of the paper, and the number of the table or figure.
        contents: kind of its rows, a key of `_COMPARED_BY`.

    Raises:
        DataError: there is no such paper or table (usage).
    """
    paper, _, table = name.rpartition(":")
    numbers = {paper: found for paper in _PAPERS if (found := _numbers(paper, contents))}
    paper = paper or next(iter(numbers))
    if table not in numbers.get(paper, ()):
        known = "; ".join(f"{p}:{', '.join(found)}" for p, found in numbers.items())
        problem = f"no table {name!r} of {contents}; known are {known}"
        for other, ours in _holdings(name).items():
            problem += f". {name} holds {other.replace('_', ' ')}: compare with it by {ours}; "
            problem += f"vg compare --reported {name}, without a RUN, prints it"
        raise DataError(problem, code=Exit.USAGE)
    lines = (_folder(paper) / f"{contents}.{table}.jsonl").read_bytes().splitlines()
    return list(map(orjson.loads, lines))


def _folder(paper: str) -> Path:
    """Return the folder of a paper's tables."""
    return Path(systems.__file__).parent / paper.replace("-", "_") / "reported"


def _numbers(paper: str, contents: str) -> list[str]:
    """Return the numbers of a paper's tables with these contents."""
    files = _folder(paper).glob(f"{contents}.*.jsonl")
    return sorted((file.suffixes[0][1:] for file in files), key=int)


def reported_alone(name: str) -> tuple[list[dict[str, Any]], Table]:
    """Return the rows of a table of a paper, whatever its contents, and how they are shown.

    Raises:
        DataError: there is no such paper or table (usage).
    """
    rows = reported(name, next(iter(_holdings(name)), "scores"))
    if "tasks" in rows[0]:
        return rows, score_table(rows)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    keys = [key for key in keys if key not in ("source", "kind")]
    cells = [[_printed(row.get(key)) for key in keys] for row in rows]
    return rows, Table([key.replace("_", " ") for key in keys], cells, _sources(rows))


def _holdings(name: str) -> dict[str, str]:
    """Return the contents of a paper's tables of a number, each with the command that compares."""
    paper, _, number = name.rpartition(":")
    paper = paper or _PAPERS[0]
    return {
        contents: ours.format(name=f"{paper}:{number}", number=number)
        for contents, ours in _COMPARED_BY.items()
        if paper in _PAPERS and number in _numbers(paper, contents)
    }


def _printed(value: Any) -> str:
    """Return a value of a paper's row as a cell."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {number}" for key, number in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "–" if value is None else value if isinstance(value, str) else f"{value:,.9g}"


# ------------------------------------------------------------------------------------------- scores


def score_table(records: Sequence[Record], key: str = "mean", bold: bool = False) -> Table:
    """Return the table of scores, Table 2's columns first; a task that a row lacks shows `-`.

    Args:
        records: records of `vgtools.tasks.compare.compare`, and of `reported`.
        key: mean or median over seeds.
        bold: mark significantly better scores in bold (markdown) rather than by a star.
    """
    first = {name: cell for r in reversed(records) for name, cell in r["tasks"].items()}
    found = {name: shown_task(name, first[name]) for name in in_order(first)}
    names = [name for name in found if any("mean" in r["tasks"].get(name, {}) for r in records)]
    columns = [found[name] for name in names]
    beside = _columns_beside(records, [*found])
    scored = [*map(_heading, columns), *(_BESIDE[name][metric] for name, metric in beside)]
    average = "average" if key == "mean" else "average_of_medians"
    base: Record = next((record for record in records if record.get("baseline")), {})
    rows = list[list[str]]()
    compared = False
    for record in records:
        is_reported = "source" in record
        column = "mean" if is_reported else key
        tasks = record["tasks"]
        cells = [_score(t, tasks.get(t.name), column, bold, is_reported) for t in columns]
        cells += [_metric(tasks.get(name), metric, column, is_reported) for name, metric in beside]
        mean = record.get("average" if is_reported else average)
        title = f"{record['run']} (reported)" if is_reported else record["run"]
        rows.append([title, *cells, "-" if mean is None else f"{mean:.1f}"])
        changes = [record["tasks"].get(name, {}).get("difference") for name in names]
        if any(changes):
            compared = True
            before = base.get(average)
            gain = "-" if mean is None or before is None else f"{mean - before:+.1f}"
            shown = [*map(_change, columns, changes), *["-"] * len(beside)]
            rows.append([f"  less {base.get('run', '')}", *shown, gain])
    remarks = _score_remarks(records, columns, key, compared, bold)
    return Table(["Run", *scored, "Avg."], rows, remarks)


def _columns_beside(records: Sequence[Record], names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (task, metric) of `_BESIDE` that any record has."""
    cells = [(name, record["tasks"].get(name, {})) for name in names for record in records]
    there = {(name, metric) for name, cell in cells for metric in cell.get("metrics", ())}
    return [(n, m) for n, more in _BESIDE.items() for m in more if (n, m) in there]


def _metric(cell: Record | None, metric: str, key: str, is_reported: bool) -> str:
    """Return a further metric, with all decimals that a paper prints."""
    value = (cell or {}).get("metrics", {}).get(metric, {}).get(key)
    if value is None:
        return "-"
    return str(value) if is_reported else f"{value:.1f}"


def _heading(task: Task) -> str:
    if task.lower_is_better:
        return f"{task.title} ↓"
    return f"{task.title} EM/F1" if task.kind == "span" else task.title


_FINE = ("translation", "conll-2003")  # gains are small, and the paper prints two decimals


def _digits(task: Task) -> int:
    """Return how many decimals the score of a task has: errors are small numbers."""
    if task.lower_is_better:
        return 3
    return 2 if task.name in _FINE else 1


def _score(task: Task, cell: Record | None, key: str, bold: bool, is_reported: bool) -> str:
    if cell is None or key not in cell:
        return "-"
    squad = task.kind == "span"
    digits = _digits(task)
    values = [cell["metrics"][metric][key] for metric in task.metrics] if squad else [cell[key]]
    if is_reported:  # All decimals of the paper are shown: rows may differ in the last.
        digits = max(digits, *(len(str(value).partition(".")[2]) for value in values))
    shown = "/".join(f"{value:.{digits}f}" for value in values)
    spread = "" if cell.get("std") is None else f" ± {cell['std']:.{digits}f}"
    change = cell.get("difference", {})
    if not change.get("significant"):
        return shown + spread
    if (change["value"] < 0) != task.lower_is_better:
        return f"{shown}{spread} †"
    return f"**{shown}**{spread}" if bold else f"{shown}{spread} *"


def _change(task: Task, change: Record | None) -> str:
    if not change:
        return "-"
    if change["p"] is None:
        alone = "one seed" if "p_examples" in change else "one group of examples"
        return f"{change['value']:+.{_digits(task)}f} ({alone})"
    p = p_value(change.get("p_holm", change["p"]))
    return f"{change['value']:+.{_digits(task)}f} (p {p})"


def p_value(p: float | None) -> str:
    """Return a p-value as it is printed."""
    if p is None:
        return "–"
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


MEASURES = {
    "f1": "F1",
    "macro_f1": "macro F1",
    "matthews": "Matthews",
    "pearson": "Pearson",
    "spearman": "Spearman",
    "recall_1": "R@1",
    "loss": "nats, lower is better",
    "rmse": "RMSE, not percent, lower is better, not in Avg.",
}


def _measures(tasks: Iterable[Task]) -> str:
    """Return the measure of each task, unless it is accuracy or in its column's heading."""
    titles = dict[str, list[str]]()
    for task in tasks:
        if task.metrics != ("accuracy",) and task.kind != "span":
            spelt = " and ".join(MEASURES.get(name, name) for name in task.metrics)
            measure = f"mean of {spelt}" if len(task.metrics) > 1 else spelt
            titles.setdefault(measure, []).append(task.title)
    return "; ".join(f"{' and '.join(of)}: {measure}" for measure, of in titles.items())


def _score_remarks(
    records: Sequence[Record], tasks: Sequence[Task], key: str, compared: bool, bold: bool
) -> list[str]:
    ours = [record for record in records if "source" not in record]
    measures = _measures(tasks)
    spread = f"Percent, {key} ± standard deviation over seeds." if ours else "Percent."
    remarks = [f"{spread} {measures.removesuffix('.')}." if measures else spread]
    if ours:
        all_have = "the tasks that all rows have"
        shared = ", ".join(map(title_of, ours[0]["average_of"]))
        remarks.append(
            f"Avg.: macro mean over {all_have} ({shared}), SQuAD as the mean of EM and F1."
            if shared
            else "No Avg.: there is no task that all rows have."
        )
    if compared:
        cells = [cell for record in ours for cell in record["tasks"].values()]
        changes = [cell["difference"] for cell in cells if "difference" in cell]
        is_corrected = any("p_holm" in change for change in changes)
        corrected = "corrected by Holm's method" if is_corrected else "not corrected"
        remarks.append(
            f"{'Bold' if bold else '*'}: better than the baseline, †: worse (p < {SIGNIFICANT}; "
            f"paired bootstrap over examples and seeds, two-sided, of the means, {corrected} for "
            "the number of comparisons)."
        )
        if any("p_examples" in change for change in changes):
            why = "the score of another seed is unknown, so there is no p-value and no mark"
            remarks.append(f"One seed: {why}. Give both runs --seeds 3 or more.")
    for source in dict.fromkeys(r["source"] for r in records if "source" in r):
        table = source.removeprefix("reported in ")
        paper = f"{table} (Tan & Bansal 2020)" if table.startswith("the paper") else table
        remarks.append(f"Reported: {paper}; its models, data and Avg. are its own.")
    return remarks


# The limits of an interval over texts or pairs.
THESE_MODELS = "for these very models on other data; the spread of training seeds is not counted"


def perplexity_table(records: Sequence[Record]) -> Table:
    """Return perplexities with their intervals, and the differences from the first record.

    Args:
        records: records of `vg perplexity`, and of `reported`.
    """
    rows = list[list[str]]()
    for record in records:
        if "source" in record:
            images = str(record.get("images", record.get("regions")))
            values = ", ".join(f"{text} {value}" for text, value in record["reported"].items())
            rows.append([f"{record['run']} (reported)", images, values, "–", "–", "–"])
            continue
        change = _nats(record.get("difference"))
        content = _nats(record["content"].get("difference"))
        p = p_value(record["difference"]["p"]) if "difference" in record else "–"
        interval = f"{record['perplexity']:.1f}"
        if record["low"] is not None:
            interval += f" ({record['low']:.1f} to {_short(record['high'])})"
        name = name_of(record["encoder"])
        rows.append([name, record["pictures"], interval, change, p, content])
    headings = ["Model", "Images", "Perplexity (95 %)", "Nats less the first (95 %)", "p"]
    first = records[0]
    masked = f"{first['mask_rate']:.0%} of the tokens masked"
    texts = f"{first['texts']:,} texts, drawn in {first['groups']:,} groups for the intervals"
    remarks = [f"{first['tokens']:,} masked words of {texts}; {masked}."]
    if any("difference" in record for record in records):
        remarks.append(f"Intervals and p: {THESE_MODELS}.")
    sources = dict.fromkeys(record["source"] for record in records if "source" in record)
    remarks += [f"R{source[1:]}; its models and data are its own." for source in sources]
    return Table([*headings, "Content words"], rows, remarks)


def _nats(change: Record | None) -> str:
    if change is None:
        return "–"
    if change["low"] is None:
        return f"{change['nll']:+.3f}"
    return f"{change['nll']:+.3f} ({change['low']:+.3f} to {change['high']:+.3f})"


def _short(value: float) -> str:
    """Return a perplexity; few texts leave open some of hundreds of digits."""
    return f"{value:.1f}" if value < 1e6 else f"{value:.0e}"


def gain_table(gains: Sequence[Record]) -> Table:
    """Return the table of gains: one row per task, by rising grounding ratio."""
    ratios = {p["task"]: p["grounding_ratio"] for record in gains for p in record["points"]}
    points = [{p["task"]: p for p in record["points"]} for record in gains]
    rows = [
        [
            title_of(name),
            f"{ratio:.1%}",
            *(f"{own[name]['gain']:+.1f}" if name in own else "-" for own in points),
        ]
        for name, ratio in sorted(ratios.items(), key=lambda item: item[1])
    ]
    for name, heading in (("pearson", "Pearson"), ("spearman", "Spearman")):
        rows.append([heading, "", *(correlation(record.get(name)) for record in gains)])
    remark = (
        "Gain over the baseline against the share of a data set's tokens that are visually "
        "grounded (appendix A.7); 95 % intervals."
    )
    return Table(["Task", "Grounding ratio", *(r["gain_of"] for r in gains)], rows, [remark])


def correlation(value: Record | None) -> str:
    """Return a correlation with its interval as it is printed."""
    if value is None:
        return "- (fewer than 3 tasks)"
    ends = f" [{value['low']:+.2f}, {value['high']:+.2f}]" if "low" in value else ""
    return f"{value['value']:+.2f}{ends}"


# ----------------------------------------------------------------------------------------- matchers


_RECALL = ("r1", "r5", "r10")


def matcher_tables(records: Sequence[Record]) -> list[Table]:
    """Return evaluations of matchers as tables, with the measures of the first.

    Runs called NAME.s0, NAME.s1, … are seeds of one recipe and share a row, per weight of the
    sentence term.
    """
    groups: dict[str, list[Record]] = {}
    for record in records:
        name = re.sub(r"\.s\d+$", "", record["run"])
        name += f", context {record['context_weight']:g}" if "context_weight" in record else ""
        groups.setdefault(name, []).append(record)

    def table(columns: Mapping[str, tuple[str, Sequence[str]]], *remarks: str) -> Table:
        rows = [
            [f"{name} ({len(seeds)})", *(_seeds(seeds, *column) for column in columns.values())]
            for name, seeds in groups.items()
        ]
        return Table(["Recipe (seeds)", *columns], rows, remarks)

    first = records[0]
    columns: dict[str, tuple[str, Sequence[str]]] = {
        "Words R@1/5/10": ("word", _RECALL),
        "Content words": ("content", _RECALL),
        "Caption": ("caption", _RECALL),
    }
    chance = f"R@10 {first['chance']['r10']}"
    if "phrases" in first:
        columns["Concept hit"] = ("phrases", ["concept"])
        columns["Without the own photo"] = ("phrases", ["others"])
        nouns = f"{first['phrases']['nouns']:,} annotated nouns"
        chance += f", concept hit {first['phrases']['chance']}"
        chance += f" (one photo for all nouns {first['phrases']['best_voken']})"
        chance += f", without the own photo {first['phrases']['others_chance']} ({nouns})"
    form = "Percent, mean ± half the range over seeds, of the last number;"
    form += " in brackets its 95 % interval over photos (lines of a text), the mean of the seeds'."
    tables = [table(columns, form, f"{first['images']:,} photos; chance: {chance}.")]
    if "pos" in first:
        tags = {tag: ("pos", [tag]) for tag in first["pos"]}
        tables.append(table(tags, "Word R@10 by part of speech."))
    if "text" in first:
        text = first["text"]
        columns = {
            "Distinct photos": ("text", ["distinct"]),
            "Effective photos": ("text", ["effective"]),
            "Noun hit": ("text", ["noun_hit"]),
            "Permuted vokens": ("text", ["permuted"]),
            "Best-scored half": ("text", ["best_half"]),
            "Best quarter": ("text", ["best_quarter"]),
            "Worst quarter": ("text", ["worst_quarter"]),
        }
        bank = f"bank of {text['images']:,} photos"
        hit = f"{text['nouns']:,} nouns, chance {text['chance']}"
        hit += f", best single voken for all of them {text['best_voken']}"
        tables.append(table(columns, f"{text['tokens']:,} tokens of text, {bank}; {hit}."))
    if any("reliability" in record for record in records):
        tables.append(_reliability_table(groups))
    return tables


def _reliability_table(groups: Mapping[str, Sequence[Record]]) -> Table:
    """Return scores next to shares of right vokens, in fifths, over the seeds of a recipe."""
    rows = list[list[str]]()
    for name, seeds in groups.items():
        for words, parts in (("captions", seeds), ("text", [r.get("text", {}) for r in seeds])):
            bins = [{int(b["from"] // 20): b for b in p.get("reliability", ())} for p in parts]
            if any(bins):
                rows.append([name, words, *(_fifth(bins, n) for n in range(5))])
    headings = ["Recipe", "Words of", *(f"{20 * n} to {20 * n + 20}" for n in range(5))]
    remark = "Scores in fifths, percent: mean score → how many of these words have a right photo."
    return Table(headings, rows, [remark])


def _fifth(bins: Sequence[Mapping[int, Record]], number: int) -> str:
    """Return a cell of a reliability curve: each word of each seed counts once."""
    found = [b[number] for b in bins if number in b]
    total = sum(b["count"] for b in found)
    if not total:
        return "-"
    score, right = (sum(b[key] * b["count"] for b in found) / total for key in ("score", "right"))
    return f"{score:.0f} → {right:.0f} (of {total:,})"


def _seeds(records: Sequence[Record], part: str, keys: Sequence[str]) -> str:
    """Return the mean of each number over seeds, the last with half the range and its interval."""
    if any(part not in record for record in records):
        return "-"
    columns = [[record[part][key] for record in records] for key in keys]
    cell = " / ".join(f"{fmean(values):,.1f}" for values in columns)
    half = (max(columns[-1]) - min(columns[-1])) / 2
    cell += f" ± {half:,.1f}" if len(records) > 1 else ""
    # The intervals of a whole record are below its own "interval", by part.
    inner = [r[part].get("interval", r["interval"].get(part, {})) for r in records]
    if all(keys[-1] in intervals for intervals in inner):
        ends = zip(*(intervals[keys[-1]] for intervals in inner), strict=True)
        cell += " ({:,.1f} to {:,.1f})".format(*map(fmean, ends))
    return cell


# ------------------------------------------------------------------------------------------ corpora


class MeasureColumn(NamedTuple):
    """A measure of Table 1."""

    key: str
    heading: str
    form: str
    log: bool = False  # drawn on a logarithmic scale


COLUMNS = (
    MeasureColumn("tokens", "Tokens", "{:,.0f}", log=True),
    MeasureColumn("sentences", "Sentences", "{:,.0f}", log=True),
    MeasureColumn("vocabulary", "Vocabulary", "{:,.0f}", log=True),
    MeasureColumn("tokens_per_sentence", "Tokens per sentence", "{:.1f}"),
    MeasureColumn("jsd_1", "1-gram JSD", "{:.3f}"),
    MeasureColumn("jsd_2", "2-gram JSD", "{:.3f}"),
    MeasureColumn("grounding_ratio", "Grounding ratio", "{:.1%}"),
)


def columns_of(records: Sequence[Record]) -> list[MeasureColumn]:
    """Return the measures that any of the records has."""
    return [c for c in COLUMNS if any(record.get(c.key) is not None for record in records)]


def corpus_name(record: Record) -> str:
    """Return the name of a corpus in a table and a figure."""
    if "source" in record:
        return f"{record['corpus']} ({record['source']})"
    return plain(name_of(record["corpus"]))


def corpora_remarks(records: Sequence[Record]) -> list[str]:
    """Return how corpora were counted; the first record is not a paper's."""
    record = records[0]
    words = record["tokenizer"] == "words"
    tokens = "words in lower case and punctuation marks" if words else record["tokenizer"]
    vocabulary = f"the types seen more than {VOCABULARY_ABOVE} times"
    remarks = [f"Tokens are {tokens}; the vocabulary is {vocabulary}."]
    if "reference" in record:
        units = {2: "base 2: 0 to 1 bit", "e": "base e: 0 to 0.69 nats", 10: "base 10: 0 to 0.30"}
        reference = name_of(record["reference"])
        unit = units[record["jsd_base"]]
        remarks.append(f"JSD: Jensen-Shannon divergence to {reference} ({unit}).")
    if "captions" in record:
        punctuation = "" if record["grounded_punctuation"] else " and punctuation"
        everything = record["grounding_of"] == "all tokens"
        share = "all tokens" if everything else "the tokens that these leave"
        remarks.append(
            f"Grounded: the {record['grounded_types']:,} types with more than "
            f"{record['grounded_above']} occurrences in {name_of(record['captions'])}, "
            f"stop words{punctuation} removed; share of {share}."
        )
    if any("source" in record for record in records):
        remarks.append(
            "Reported: Tan & Bansal 2020, Table 1, to English Wikipedia, in a base and with "
            "punctuation that it leaves open."  # The paper names neither.
        )
    return [plain(remark) for remark in remarks]


def corpora_table(records: Sequence[Record]) -> Table:
    """Return corpora as Table 1, without the measures that none of them has."""
    columns = columns_of(records)
    rows = []
    for record in records:
        values = [(record.get(column.key), column.form) for column in columns]
        cells = ["–" if value is None else form.format(value) for value, form in values]
        rows.append([corpus_name(record), *cells])
    headings = ["Corpus", *(column.heading for column in columns)]
    return Table(headings, rows, corpora_remarks(records))


def types_table(records: Sequence[Record]) -> Table:
    """Return grounded types with their counts."""
    corpora = list(records[0].get("in", ()))
    rows = []
    for record in records:
        counts = [record["count"], *(record["in"][name] for name in corpora)]
        rows.append([record["type"], *(f"{count:,}" for count in counts)])
    headings = ["Grounded type", "In captions", *(f"In {name_of(name)}" for name in corpora)]
    return Table(headings, rows)


def diversity_table(records: Sequence[Record]) -> Table:
    """Return how diverse vokens are."""
    rows = []
    for record in records:
        keys = ("tokens", "with_voken", "images_covered", "images_effective", "types")
        spread = record["images_per_type"]
        rows.append(
            [
                name_of(record["vokens"]),
                *(f"{record[key]:,.0f}" for key in keys),
                f"{spread['max']:,}",
                f"{spread['mean']:.2f}",
                f"{spread['std']:.2f}",
            ]
        )
    numbers = ("Tokens", "With voken", "Images", "Effective", "Types")
    return Table(["Vokens", *numbers, "Images per type: max", "mean", "std"], rows)


def weights_table(records: Sequence[Record]) -> Table:
    """Return how far encoders' weights are from the first encoder's."""
    headings = ["Encoder", "Difference", "Parameters", "Tensors not in both", "Largest in"]
    rows: list[list[str]] = []
    remarks: list[str] = []
    for record in records:
        if "output" in record:
            size = f"{record['magnitude']:.2e}, seed {record['seed']}"
            remarks.append(f"Written to {record['output']}: mean |noise| {size}.")
            continue
        by_name = record["by_name"]
        rows.append(
            [
                record["encoder"],
                f"{record['difference']:.2e}",
                f"{record['parameters']:,}",
                str(len(record["not_shared"])),
                max(by_name, key=by_name.__getitem__),
            ]
        )
        if len(rows) == 1:
            both = "over the parameters in both; by name in the JSON records"
            remarks.append(f"Mean |difference| from {record['from']} {both}.")
    return Table(headings, rows, remarks)


def pwcca_table(records: Sequence[Record]) -> Table:
    """Return how alike the words of vocabularies are, next to the same with shuffled rows."""
    rows = list[list[str]]()
    for record in records:
        pair = f"{_stem(record['first'])} / {_stem(record['second'])}"
        if "source" in record:
            rows.append([f"{pair} (reported)", "–", f"{record['pwcca']:.4f}", *["–"] * 4])
            continue
        chance = record["shuffled"]
        rows.append(
            [
                pair,
                f"{record['n']:,}",
                f"{record['pwcca']:.4f}",
                f"{chance['pwcca']:.4f} ({chance['low']:.4f} to {chance['high']:.4f})",
                f"{record['pwcca'] - chance['pwcca']:+.4f}",
                f"{record['mean_cca']:.4f}",
                f"{chance['mean_cca']:.4f}",
            ]
        )
    headings = ["Vocabularies", "Words", "PWCCA", "Shuffled (range)", "Above chance"]
    remark = (
        "PWCCA: canonical correlations of the input vectors of common words, weighted by the first "
        "vocabulary. Shuffled: each word with the vector of another, which shows chance for these "
        "widths and this number of words. RANDOM: uniform vectors as wide as the first's."
    )
    dropped = sum(sum(record.get("dropped", ())) for record in records)
    remarks = [remark, *([f"{dropped} constant dimensions left out."] if dropped else [])]
    return Table([*headings, "Mean CCA", "Shuffled"], rows, [*remarks, *_sources(records)])


def measure_tables(records: Sequence[Record]) -> list[Table]:
    """Return the statistics of `vg measure`: rows are encoders, columns evaluations.

    Groups of the items of an evaluation have a table of their own.
    """
    names = short_names(dict.fromkeys(record["encoder"] for record in records))
    left = {f"{r['evaluation']} {r['left_out']:,}": r["left_out"] for r in records}
    unknown = ", ".join(name for name, number in left.items() if number)
    seeds = any(record.get("difference", {}).get("over_runs") for record in records)
    remarks = [
        "±: half of the 95 % interval by bootstrap over items, of the difference from the first "
        f"row where there is one; *: p < {SIGNIFICANT} with several runs of both rows, whose seeds "
        "count as chance too, corrected by Holm's method for all differences. "
        + ("" if seeds else f"Single runs have no *: theirs are {THESE_MODELS}."),
        *([f"Left out, items that not all of them know: {unknown}."] if unknown else []),
    ]
    whole = [record for record in records if record.get("group", "all") == "all"]
    tables = [_measured(whole, "evaluation", names)._replace(remarks=remarks)]
    parts = [record for record in records if record.get("group", "all") != "all"]
    for name in dict.fromkeys(record["evaluation"] for record in parts):
        own = [record for record in parts if record["evaluation"] == name]
        tables.append(_measured(own, "group", names, name))
    return tables


def _measured(
    records: Sequence[Record], column: str, names: Mapping[str, str], title: str = "Encoder"
) -> Table:
    """Return the values of records by encoder and by the values of a key."""
    headings = dict[str, str]()
    rows = dict[str, dict[str, str]]()
    for record in records:
        measure = MEASURES.get(record["statistic"], record["statistic"])
        blind = f", majority {record['majority']:.3f}" if "majority" in record else ""
        headings[record[column]] = f"{record[column]}: {measure}, {record['items']:,}{blind}"
        gain = record.get("difference")
        cell = f"{record['value']:.3f}"
        if gain is None:
            cell += f" ± {(record['high'] - record['low']) / 2:.3f}"
        else:
            half = (gain["high"] - gain["low"]) / 2
            cell += f", {gain['value']:+.3f} ± {half:.3f}" + " *" * gain["significant"]
        rows.setdefault(record["encoder"], {})[record[column]] = cell
    cells = [
        [name, *(rows.get(ref, {}).get(title, "–") for title in headings)]
        for ref, name in names.items()
    ]
    return Table([title, *headings.values()], cells)


def short_names(refs: Iterable[str]) -> dict[str, str]:
    """Return the last part of each reference's path, or the part in which they differ."""
    parts = {ref: ref.rstrip("/").split("/") for ref in refs}
    own = [each[-1] for each in parts.values()]
    if len(set(own)) == len(own):
        return dict(zip(parts, own, strict=True))
    columns = [set(column) for column in zip_longest(*parts.values())]
    first = next(place for place, names in enumerate(columns) if len(names) > 1)
    ends = [set(column) for column in zip_longest(*(each[::-1] for each in parts.values()))]
    last = next(place for place, names in enumerate(ends) if len(names) > 1)
    # All of a reference may be common to both ends.
    return {ref: "/".join(own[first : len(own) - last]) or ref for ref, own in parts.items()}


def sizes_table(records: Sequence[Record]) -> Table:
    """Return the sizes of configurations: width, tokens, layers, heads, parameters."""
    keys = ("width", "max_length", "layers", "heads", "parameters")
    rows = []
    for record in records:
        name = " + ".join(map(_stem, record["model"].split(" + ")))
        if "cross_layers" in record:
            name += f", {record['cross_layers']} cross-modal layers"
        numbers = (record.get(key) for key in keys)
        name += " (reported)" if "source" in record else ""
        rows.append([name, *("–" if n is None else f"{n:,}" for n in numbers)])
    headings = ["Configuration", "Dim", "Max. length", "Layers", "Heads", "Parameters"]
    remarks = [
        "Encoders with their pooler if they have one, CLIP's text tower with its projection."
    ]
    if any("cross_layers" in record for record in records):
        remarks.append("Joined models count CLIP's logit scale, as the paper does, and no heads.")
    return Table(headings, rows, [*remarks, *_sources(records)])


def _stem(ref: str) -> str:
    """Return the name of an encoder in a table; a configuration has its file's name."""
    return ref.rpartition("/")[2].removesuffix(".json") if ref.endswith(".json") else ref


def _sources(records: Iterable[Record]) -> list[str]:
    """Return the remarks that name the papers of reported rows."""
    sources = dict.fromkeys(record["source"] for record in records if "source" in record)
    return [f"R{source[1:]}." for source in sources]


def print_tasks(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the downstream tasks: paragraphs on a terminal, else one record per line."""
    out = open_stream("-")
    if not sys.stdout.isatty():
        out.writelines(map(dumps, rows))
        return
    for row in rows:
        print(f"{row['task']}  {row['title']}, {row['kind']}")
        length = f"{row['steps']} steps" if row["steps"] else f"{row['epochs']} epochs"
        facts = {
            "metrics": ", ".join(row["metrics"]),
            "files": ", ".join(f"{split} {file}" for split, file in row["files"].items()),
            "columns": row["columns"],
            "labels": row["labels"],
            "settings": f"{length}, lr {row['learning_rate']:g}, "
            f"batch {row['batch_size']}, length {row['max_length']} ({row['source']})",
            "note": row["note"],
        }
        for name, value in facts.items():
            if value or name != "note":
                print(f"    {name:9}{value}")


def print_splits(records: Iterable[Mapping[str, Any]]) -> None:
    """Print the files of a task: lines on a terminal, else one record per line."""
    out = open_stream("-")
    for record in records:
        if not sys.stdout.isatty():
            out.write(dumps(record))
            continue
        labels = [f"{each['label']} {each['share']:.1%}" for each in record["labels"]]
        facts = "; ".join([f"{record['examples']:,} examples", *labels, *record["notes"]])
        print(plain(f"{record['split']:9}{facts}"))


def print_seeds(task: Task, run: Mapping[str, Any]) -> None:
    """Print the scores over a finished run's seeds next to the most frequent class's.

    On stderr, without the spread of a single seed and the headline of a single metric. For READ it
    is the mean label.
    """
    base = run["majority"] or {}
    count = len(run["seeds"])
    titles = ("median", "mean", "std", "min", "max") if count > 1 else ("mean",)
    left_out = ("headline",) if len(task.metrics) == 1 else ()
    rows = {
        name: values
        for name, values in run["summary"].items()
        if not name.endswith("_thresh") and not name.startswith(left_out)
    }
    heading = f"{task.title}, {count} seed{'s' * (count > 1)}"
    width = max(map(len, (heading, *rows)))
    columns = [f"{title if count > 1 else 'score':>7}" for title in titles]
    constant = " the mean" if task.lower_is_better else " majority"
    print(f"{heading:{width}}", *columns, constant if base else "", file=sys.stderr)
    digits = _digits(task) + (not task.lower_is_better)
    for name, values in rows.items():
        cells = [f"{values[title]:7.{digits}f}" for title in titles]
        if name in base:
            cells.append(f"{base[name]:9.{digits}f}")
        print(f"{name:{width}}", *cells, file=sys.stderr)
