"""`vg compare`: scores of fine-tuned models, their spread, and which differences exceed chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from vgtools.commands.compare.flags import GroundedTasks, Split
from vgtools.commands.options import (
    Argument,
    Offline,
    Quiet,
    Samples,
    Seed,
    Table,
    Value,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import page_path
from vgtools.io.own import write_page
from vgtools.io.process import Progress, note
from vgtools.io.settings import value

if TYPE_CHECKING:
    from vgtools.tasks.compare import Row


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How scores are compared.

    Attributes:
        baseline: Run that the others are compared with.
        median: Show the median over seeds, not the mean.
        majority: Add the score of the most frequent label.
        holm: Correct p-values for the number of comparisons.
    """

    baseline: str | None = value(None, metavar="RUN", show_default="the first")
    median: bool = value(False)
    majority: bool = value(False)
    holm: bool = value(False)


@flags
def runs(
    scores: Scores,
    split: Split = "dev",
    names: Annotated[list[str] | None, Argument("RUN", show_default=False)] = None,
    task: Annotated[list[str] | None, Value("TASK", "--task")] = None,
    reported: Annotated[str | None, Value("[PAPER:]N")] = None,
    table: Table = False,
    *,
    ground: GroundedTasks,
    samples: Samples = 10_000,
    seed: Seed = 0,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Compare fine-tuned models: scores, their spread over seeds, which differences exceed chance.

    One JSON record per RUN goes into a pipe, the layout of the Vokenization paper's Table 2 to a
    terminal: QQP as the mean of F1 and accuracy, SQuAD as exact match/F1, Avg. over the tasks that
    all rows have. NLVR2's consistency, R@5 and R@10 of phrases, and Q→AR of a folder with vcr-qa
    and vcr-qar are columns of their own. p-values are two-sided, from a paired bootstrap of the
    saved predictions: differences that other examples, the same for both models, and other seeds of
    each would give are chance. Examples that share a photo, a paragraph or, except in tables of
    your own, a first sentence are drawn together. A model with a single seed has no p-value: the
    result of another seed is unknown. --holm corrects them for all differences of the table.

    With --grounding the gain on each task is shown next to the share of its tokens that are
    visually grounded, with their correlation (appendix A.7); --plot draws it.

    Examples:

        vg compare glue/mlm glue/vokens --reported 2

        vg compare glue/mlm glue/vokens --grounding captions.jsonl --plot gain.svg --table > gain.md

        vg compare table3/* --split test --median --majority --holm --reported grounding:3

        vg compare paper/tasks/visualbert --reported visualbert:1

    Args:
        names: Run of vg finetune, or a folder of them, one per task.
        task: Only this task of folders; repeatable.
        reported: Add the rows of a paper's table N, marked as reported: grounding:3, xdbert:1, or 2
            for vokenization:2; without a RUN alone, also of a table that has no scores.
    """
    from vgtools.reports import tables
    from vgtools.tasks import compare as c
    from vgtools.tasks.table import known_name

    ground.check()
    names = names or []
    lone = not names and (reported is None or scores != Scores() or ground.grounding)
    refuse_if(lone, "RUN", "name a run of vg finetune; only --reported has rows of its own")
    if reported and not names:
        records, alone = tables.reported_alone(reported)
        tables.show(records, [alone], table)
        return
    only = [known_name(name) for name in task or ()]
    reported_rows = tables.reported(reported) if reported else []
    rows = c.read_rows(names, scores.baseline, split, only)
    for row in rows:
        for folder in row.left_out:
            note("compare", f"{folder} has no finished run, skipped")
    inputs = [*names, ground.grounding or ""]
    target = None if ground.plot is None else page_path(ground.plot, inputs)
    ratios = _ratios(rows, ground)
    records = []
    with Progress("compare", "models", len(rows)) as bar:
        for record in c.compare(rows, samples=samples, seed=seed):
            records.append(record)
            bar.advance(1)
    if scores.holm:
        c.correct(records)
    gains = list(c.gains(records, ratios))
    if scores.majority:
        records.append(c.majority_row(rows, records[0]))
    records += reported_rows
    median = "median" if scores.median else "mean"
    shown = [tables.score_table(records, median, bold=table)]
    if gains:
        shown.append(tables.gain_table(gains))
    tables.show([*records, *gains], shown, table)
    if ground.grounding is not None and not gains:
        why = "no gain to draw: expected two RUNs with a task in common"
        raise DataError(why, code=Exit.USAGE)
    if target is not None:
        from vgtools.reports.figures import gain_figure

        write_page(target, gain_figure(gains, rows[0].name).render(target.suffix))


def _ratios(rows: Sequence[Row], ground: GroundedTasks) -> dict[str, float]:
    """Return the grounding ratio of each task that the baseline and another row have."""
    from vgtools.tasks import compare as c

    files = ground.files()
    known = ground.types()
    if known is None:
        return {}
    shared = [name for name in rows[0].tasks if any(name in row.tasks for row in rows[1:])]
    ratios: dict[str, float | None] = {}
    for name in shared:
        run = rows[0].tasks[name]
        texts = c.texts_of(run.task, files.get(name) or c.data_of(run))
        ratios[name] = c.grounding_ratio(texts, *known)
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}
