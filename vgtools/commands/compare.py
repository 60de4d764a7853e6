"""`vg compare`: fine-tuned models side by side, with what is chance; weights of encoders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools import io
from vgtools.commands.options import (
    Count,
    File,
    Flag,
    Offline,
    Quiet,
    Seed,
    Value,
    flags,
    note,
    open_vocabulary,
    refuse_if,
)

if TYPE_CHECKING:
    from vgtools.reports.tables import Table
    from vgtools.tasks.compare import Row


@dataclass(frozen=True, kw_only=True)
class Grounding:
    """Gains beside the share of tokens that are visually grounded."""

    grounding: Annotated[
        str | None,
        File("Captions, or a list of vg stats --grounded-types: gain against grounding ratio."),
    ] = None
    text: Annotated[
        list[str] | None,
        Value("TASK=FILE", "With --grounding: a task's text, if not the run's data."),
    ] = None
    tokenizer: Annotated[
        str, Value("REF", "With --grounding: what a token is, as in vg stats.", "--tokenizer", "-t")
    ] = "words"
    grounded_above: Annotated[
        int, Count("A type is grounded if captions contain it more than N times.", 0)
    ] = 100
    plot: Annotated[str | None, File("With --grounding: draw gains into this .svg or .png.")] = None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Encoders in place of scores."""

    weights: Annotated[
        bool,
        Flag("--weights", help="RUNs are encoders: how far their weights are from the first's."),
    ] = False
    noise: Annotated[
        str | None,
        Value("DIR", "With --weights: write the first encoder with Gaussian noise to DIR."),
    ] = None
    magnitude: Annotated[
        float | None,
        Value(
            "NUMBER",
            "Mean |noise|.",
            min=0,
            show_default="the second encoder's distance from the first",
        ),
    ] = None


@flags
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Run of vg finetune, or a folder of them, one per task.",
            show_default=False,
        ),
    ],
    ground: Grounding,
    encoders: Weights,
    baseline: Annotated[
        str | None, Value("RUN", "Run that the others are compared with.", show_default="the first")
    ] = None,
    median: Annotated[
        bool, Flag("--median", help="Show the median over seeds, not the mean.")
    ] = False,
    split: Annotated[
        str, Flag(metavar="NAME", help="Compare scores of this split; test needs labels.")
    ] = "dev",
    majority: Annotated[
        bool, Flag("--majority", help="Add the score of the most frequent label.")
    ] = False,
    holm: Annotated[
        bool, Flag("--holm", help="Correct p-values for the number of comparisons.")
    ] = False,
    table: Annotated[bool, Flag("--table", help="Print markdown, also into a pipe.")] = False,
    reported: Annotated[
        str | None,
        Value(
            "[PAPER:]N",
            "Add the rows of a paper's table N, marked as reported: grounding:3, or 2 for "
            "vokenization:2.",
        ),
    ] = None,
    samples: Annotated[int, Count("Bootstrap samples of the p-values.", 100)] = 10_000,
    seed: Seed = 0,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Compare fine-tuned models: scores, their spread over seeds, which differences exceed chance.

    One JSON record per RUN goes into a pipe, the layout of the Vokenization paper's Table 2 to a
    terminal: QQP as the mean of F1 and accuracy, SQuAD as exact match/F1, Avg. over the tasks that
    all rows have. p-values are two-sided, from a paired bootstrap of the saved predictions: each
    sample draws examples, the same for both models, and seeds of each. --holm corrects them for all
    differences of the table together.

    With --grounding the gain on each task is shown beside the share of its tokens that are visually
    grounded, with their correlation (appendix A.7).

    With --weights the RUNs are encoders (any reference): mean |difference| over the parameters that
    both have, in total and by name. --noise writes the first with noise of that size, the control
    of Table 3.

    Examples:

        vg compare glue/mlm glue/vokens --reported 2

        vg compare glue/mlm glue/vokens --grounding captions.jsonl --plot gain.svg --table > gain.md

        vg compare table3/* --split test --median --majority --holm --reported grounding:3

        vg compare --weights google-bert/bert-base-uncased run.vokens | jq .difference

        vg compare --weights google-bert/bert-base-uncased --noise bert.noise --magnitude 6.5e-3
    """
    of_scores = (ground.grounding, reported, baseline, median, majority, holm, split != "dev")
    _check(ground, encoders, scores=any(of_scores))
    if encoders.weights:
        _compare_weights(runs, encoders, seed, offline, table)
        return
    from vgtools.reports import tables
    from vgtools.tasks import compare as c

    rows = c.read_rows(runs, baseline, split)
    for row in rows:
        for folder in row.left_out:
            note("compare", f"{folder} has no finished run, skipped", quiet)
    inputs = [*runs, ground.grounding or ""]
    target = None if ground.plot is None else io.final_path(ground.plot, inputs)
    ratios = {} if ground.grounding is None else _ratios(rows, ground.grounding, ground, offline)
    records: list[dict[str, Any]] = []
    with io.Progress("compare", "models", len(rows), quiet) as bar:
        for record in c.compare(rows, samples=samples, seed=seed):
            records.append(record)
            bar.advance(1)
    if holm:
        c.correct(records)
    gains = list(c.gains(records, ratios))
    if majority:
        records.append(c.majority_row(rows, records[0]))
    if reported:
        records += tables.reported(reported)
    shown = [tables.score_table(records, "median" if median else "mean", bold=table)]
    if gains:
        shown.append(tables.gain_table(gains))
    _print([*records, *gains], shown, table)
    if ground.grounding is not None and not gains:
        why = "no gain to draw: expected two RUNs with a task in common"
        raise io.DataError(why, code=io.Exit.USAGE)
    if target is not None:
        from vgtools.reports.figures import gain_figure

        io.atomic_write(target, gain_figure(gains, rows[0].name).render(target.suffix))


def _check(ground: Grounding, encoders: Weights, scores: bool) -> None:
    """Refuse flags that contradict one another."""
    plot = ground.plot
    alone = not encoders.weights and (encoders.noise, encoders.magnitude) != (None, None)
    refuse_if(alone, "--noise/--magnitude", "belongs to --weights")
    why = "belongs to --grounding, which defines what is grounded"
    refuse_if(ground.grounding is None and (plot is not None or ground.text), "--plot/--text", why)
    other = plot is not None and not plot.endswith((".svg", ".png"))
    refuse_if(other, "--plot", f"must end in .svg or .png, got {plot!r}")
    clash = "--baseline, --median, --split, --majority, --holm, --reported or --grounding"
    why = f"compares encoders and cannot be combined with {clash}"
    refuse_if(encoders.weights and scores, "--weights", why)


def _print(records: Sequence[dict[str, Any]], shown: Sequence[Table], markdown: bool) -> None:
    """Print records into a pipe, tables to a terminal or as markdown."""
    from vgtools.reports import tables

    if markdown:
        io.open_stream("-").write("\n".join(map(tables.markdown, shown)).encode())
    elif sys.stdout is not None and sys.stdout.isatty():
        for table in shown:
            tables.print_table(table)
    else:
        out = io.open_stream("-")
        for record in records:
            out.write(io.dumps(record))


def _ratios(
    rows: Sequence[Row], captions: str, ground: Grounding, offline: bool
) -> dict[str, float]:
    """Return the grounding ratio of each task that the baseline and another row have."""
    from vgtools.tasks import compare as c
    from vgtools.tasks.table import find_task

    files: dict[str, str] = {}
    for item in ground.text or ():
        task, _, path = item.partition("=")
        why = f"expected TASK=FILE, for example sst-2=train.tsv, got {item!r}"
        refuse_if(not path, "--text", why)
        files[find_task(task).name] = path
    types = open_vocabulary(ground.tokenizer, offline)
    grounded = c.grounded_types(captions, types, ground.grounded_above)
    shared = [name for name in rows[0].tasks if any(name in row.tasks for row in rows[1:])]
    ratios: dict[str, float | None] = {}
    for name in shared:
        run = rows[0].tasks[name]
        texts = c.texts_of(run.task, files.get(name) or c.data_of(run))
        ratios[name] = c.grounding_ratio(texts, types, grounded)
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def _compare_weights(
    refs: Sequence[str], encoders: Weights, seed: int, offline: bool, table: bool
) -> None:
    """Print how far encoders are from the first one; write the first with noise."""
    unknown = encoders.magnitude is None
    lone = len(refs) < 2 and (encoders.noise is None or unknown)
    refuse_if(lone, "--weights", "needs two encoders, or --noise DIR with --magnitude")
    many = encoders.noise is not None and unknown and len(refs) > 2
    refuse_if(many, "--noise", "needs --magnitude, or exactly two encoders")
    from vgtools.models.weights import compare_encoders
    from vgtools.reports.tables import weights_table

    records = compare_encoders(refs, encoders.noise, encoders.magnitude, seed, offline)
    _print(records, [weights_table(records)], table)
