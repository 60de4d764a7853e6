"""`vg compare`: fine-tuned models side by side, with what is chance; the weights of two encoders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools import io
from vgtools.commands.options import Offline, Quiet, Seed

if TYPE_CHECKING:
    from vgtools.comparison import Row
    from vgtools.reports.tables import Table

Flag = typer.Option


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run of vg finetune, or a folder of them, one a task.", show_default=False),
    ],
    baseline: Annotated[str | None, Flag(help="The RUN that the others are compared with [the first].")] = None,
    median: Annotated[bool, Flag("--median", help="Show the median over seeds, not the mean.")] = False,
    table: Annotated[bool, Flag("--table", help="Print markdown, also into a pipe.")] = False,
    reported: Annotated[
        int | None, Flag(min=2, max=6, help="Add the rows of this table of the paper, marked as reported.")
    ] = None,
    samples: Annotated[int, Flag(min=100, help="Bootstrap samples of the p-values.")] = 10_000,
    grounding: Annotated[
        str | None, Flag(metavar="FILE", help="Captions, or a list of vg stats --grounded-types: gain against grounding ratio.")
    ] = None,
    text: Annotated[
        list[str] | None, Flag(metavar="TASK=FILE", help="With --grounding: a task's text, if not the run's data.")
    ] = None,
    tokenizer: Annotated[
        str, Flag("--tokenizer", "-t", metavar="REF", help="With --grounding: what a token is, as in vg stats.")
    ] = "words",
    grounded_above: Annotated[
        int, Flag(min=0, help="A type is grounded if it occurs in the captions more often than this.")
    ] = 100,
    plot: Annotated[str | None, Flag(metavar="FILE", help="With --grounding: draw gains into this .svg or .png.")] = None,
    weights: Annotated[bool, Flag("--weights", help="RUNs are encoders: how far their weights are from the first's.")] = False,
    noise: Annotated[
        str | None, Flag(metavar="RUN", help="With --weights: write the first encoder with Gaussian noise there.")
    ] = None,
    magnitude: Annotated[float | None, Flag(min=0, help="Mean |noise| [the second encoder's distance from the first].")] = None,
    seed: Seed = 0,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Compare fine-tuned models: scores with their spread over seeds, and which differences are more than chance.

    One JSON record a RUN goes into a pipe, the layout of the Vokenization paper's Table 2 to a terminal: QQP as the mean of F1
    and accuracy, SQuAD as exact match/F1, Avg. over the tasks that all rows have. p-values are two-sided, from a paired
    bootstrap of the saved predictions: each sample draws examples, the same for both models, and seeds of each.

    With --grounding the gain on each task stands beside the share of its tokens that are visually grounded, with their
    correlation (appendix A.7).

    With --weights the RUNs are encoders (any reference): mean |difference| over the parameters that both have, in all and by
    name. --noise writes the first with noise of that size, the control of Table 3.

    Examples:

        vg compare glue/mlm glue/vokens --reported 2

        vg compare glue/mlm glue/vokens glue/random --grounding captions.jsonl --plot gain.svg --table > gain.md

        vg compare --weights google-bert/bert-base-uncased run.vokens | jq .difference

        vg compare --weights google-bert/bert-base-uncased --noise bert.noise --magnitude 6.5e-3
    """
    if not weights and (noise is not None or magnitude is not None):
        raise typer.BadParameter("belongs to --weights", param_hint="--noise/--magnitude")
    if grounding is None and (plot is not None or text):
        raise typer.BadParameter("belongs to --grounding, which says what is grounded", param_hint="--plot/--text")
    if plot is not None and not plot.endswith((".svg", ".png")):
        raise typer.BadParameter(f"draws an .svg or .png, not {plot!r}", param_hint="--plot")
    if weights:
        if grounding or reported or baseline or median:
            raise typer.BadParameter("compares encoders; the flags for scores do not go with it", param_hint="--weights")
        _weights(runs, noise, magnitude, seed, offline, table)
        return
    from vgtools import comparison as c
    from vgtools.reports import tables

    rows = c.read_rows(runs, baseline)
    for folder in (folder for row in rows for folder in row.left_out if not quiet):
        print(f"vg compare: {io.plain(folder)} holds no finished run and is left out", file=sys.stderr)
    target = None if plot is None else io.final_path(plot, [*runs, grounding or ""])
    ratios = _ratios(rows, grounding, text or [], tokenizer, grounded_above, offline) if grounding is not None else {}
    with io.Progress("compare", "models", len(rows), quiet) as bar:
        records = list[dict[str, Any]]()
        for record in c.compare(rows, samples=samples, seed=seed):
            records.append(record)
            bar.advance(1)
    gains = list(c.gains(records, ratios))
    records += tables.reported(str(reported)) if reported else []
    key = "median" if median else "mean"
    shown = [tables.score_table(records, key, bold=table), *([tables.gain_table(gains)] if gains else [])]
    _print([*records, *gains], shown, table)
    if grounding is not None and not gains:
        raise io.DataError("no gain to draw: two RUNs with a task in common are needed", code=io.Exit.USAGE)
    if target is not None:
        from vgtools.reports.figures import gain_figure

        io.atomic_write(target, gain_figure(gains, rows[0].name).render(target.suffix))


def _print(records: Sequence[dict[str, Any]], tables: Sequence[Table], markdown: bool) -> None:
    """Print records into a pipe, tables to a terminal or as markdown."""
    from vgtools.reports import tables as t

    if markdown:
        io.open_stream("-").write("\n".join(map(t.markdown, tables)).encode())
    elif sys.stdout is not None and sys.stdout.isatty():
        for table in tables:
            t.print_table(table)
    else:
        out = io.open_stream("-")
        for record in records:
            out.write(io.dumps(record))


def _ratios(
    rows: Sequence[Row], grounding: str, given: Sequence[str], tokenizer: str, above: int, offline: bool
) -> dict[str, float]:
    """Return the grounding ratio of the text of each task that the baseline and another row have."""
    from vgtools import comparison as c
    from vgtools import ngrams
    from vgtools.tasks.table import find_task

    named = dict[str, str]()
    for item in given:
        task, _, path = item.partition("=")
        if not path:
            raise typer.BadParameter(f"{item!r}: TASK=FILE was wanted, for example sst-2=train.tsv", param_hint="--text")
        named[find_task(task).name] = path
    if tokenizer == "words":
        types: ngrams.Vocabulary = ngrams.Words()
    else:
        from vgtools.checkpoint import load_tokenizer

        types = ngrams.Pieces(load_tokenizer(tokenizer, offline=offline), tokenizer)
    grounded, ratios = c.grounded_types(grounding, types, above), dict[str, float]()
    for name, run in rows[0].tasks.items():
        if any(name in row.tasks for row in rows[1:]):
            ratio = c.grounding_ratio(c.texts_of(run.task, named.get(name) or c.data_of(run)), types, grounded)
            ratios |= {} if ratio is None else {name: ratio}
    return ratios


def _weights(refs: Sequence[str], noise: str | None, magnitude: float | None, seed: int, offline: bool, table: bool) -> None:
    """Print how far encoders are from the first one; write the first with noise."""
    if len(refs) < 2 and (noise is None or magnitude is None):
        raise typer.BadParameter("needs two encoders, or --noise RUN with --magnitude", param_hint="--weights")
    if noise is not None and magnitude is None and len(refs) > 2:
        raise typer.BadParameter("which distance? give two encoders, or --magnitude", param_hint="--noise")
    from vgtools import weights as w
    from vgtools.checkpoint import read_weights
    from vgtools.reports.tables import Table

    first = read_weights(refs[0], offline=offline)[1]
    found = [w.difference(first, read_weights(ref, offline=offline)[1]) for ref in refs[1:]]
    records: list[dict[str, Any]] = [
        {
            "encoder": ref,
            "from": refs[0],
            "difference": d.total,
            "parameters": d.numbers,
            "not_shared": d.alone,
            "by_name": d.by_name,
        }
        for ref, d in zip(refs[1:], found, strict=True)
    ]
    if noise is not None:
        size = magnitude if magnitude is not None else found[0].total
        records.append(w.save_noisy(refs[0], noise, size, seed, offline=offline))
    rows = [
        [ref, f"{d.total:.2e}", f"{d.numbers:,}", str(len(d.alone)), max(d.by_name, key=d.by_name.__getitem__)]
        for ref, d in zip(refs[1:], found, strict=True)
    ]
    remarks = [f"Mean |difference| from {refs[0]} over the parameters in both; by name in the JSON records."] if rows else []
    remarks += [
        f"Written to {r['output']}: mean |noise| {r['magnitude']:.2e}, seed {r['seed']}." for r in records if "output" in r
    ]
    headings = ["Encoder", "Difference", "Parameters", "Tensors not in both", "Largest in"]
    _print(records, [Table(headings, rows, remarks)], table)
