"""`vg score`: saved predictions of a downstream task become its official scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from vgtools.commands.options import Argument, File, Value, refuse_if
from vgtools.commands.signature import flags


@flags
def score(
    name: Annotated[str, Argument("TASK")],
    rows: Annotated[str, Argument("PREDICTIONS")],
    gold: Annotated[str | None, Value("FILE|DIR", show_default="the rows' own")] = None,
    joint: Annotated[str | None, File()] = None,
    submission: Annotated[str | None, File()] = None,
    null_threshold: Annotated[float | None, Value("X", show_default="0")] = None,
    output: Annotated[str | None, File()] = None,
) -> None:
    """Score saved predictions of a downstream task with its official metrics, without a model.

    PREDICTIONS is jsonl or a table, a row per example: {"id", "prediction", "label"}, and for SQuAD
    2.0 "no_answer" and "answer", as vg finetune writes it. Prints one record with the metrics in
    percent and their mean, "headline". SQuAD 2.0 keeps withheld answers, so any threshold can be
    tried; the best are also printed.

    Examples:

        vg score rte rte.bert/seed-9595/predictions.jsonl

        vg score squad-2.0 squad.bert/seed-9595/predictions.jsonl --null-threshold -1.5

        vg score mnli other-model.jsonl --gold glue/MNLI

        vg score reviews.run other-model.jsonl --gold reviews.test.csv

        vg score vcr-qar qar/seed-9595/predictions.jsonl --joint qa/seed-9595/predictions.jsonl

        vg score rte rte.bert/seed-9595/predictions.jsonl -o rte.parquet

        vg score vqa vqa/seed-9595/predictions.test.jsonl --submission test-dev.json

    Args:
        name: sst-2, rte, squad-1.1 …; or a run, whose task it is.
        rows: predictions.jsonl of vg finetune.
        gold: Labels: the official file, or the task's folder.
        joint: vcr-qar: vcr-qa's predictions of the same questions, for Q→AR.
        submission: For a test file, instead of scores: the JSON of VQA's server, NLVR2's CSV, or
            with --joint the CSV of VCR's leaderboard.
        null_threshold: SQuAD 2.0: no answer where it scores higher by more than X.
        output: Write the rows as well, as a table (X.parquet) or X.jsonl.
    """
    from vgtools.tasks.own import named_task
    from vgtools.tasks.saved import SUBMISSIONS, score_saved

    task = named_task(name)
    alone = joint is not None and task.name != "vcr-qar"
    why = f"joins predictions of vcr-qa to predictions of vcr-qar, got {task.name}"
    refuse_if(alone, "--joint", why)
    other = submission is not None and joint is None and task.name not in SUBMISSIONS
    named = submission is not None and gold is not None
    refuse_if(named, "--gold", "is for scores, which --submission writes none of")
    refuse_if(submission and output, "--output", "is for scores, which --submission writes none of")
    refuse_if(other, "--submission", f"is for {', '.join(SUBMISSIONS)}; vcr-qar needs --joint")
    unused = null_threshold is not None and not task.unanswerable
    why = f"applies to squad-2.0, whose questions may have no answer, not to {task.name}"
    refuse_if(unused, "--null-threshold", why)
    piped = [rows, joint, gold].count("-") > 1
    refuse_if(piped, "-", "only one file can come from a pipe")
    if gold is not None and Path(gold).is_dir():
        refuse_if(task.own, "--gold", f"{task.name} has no official files; name a file")
        gold = str(Path(gold) / task.files["dev"])
    score_saved(task, rows, gold, null_threshold or 0.0, joint, submission, output)
