"""`vg score`: saved predictions of a downstream task become its official scores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vgtools.tasks.examples import Example
    from vgtools.tasks.table import Task

Flag = typer.Option


def score(
    name: Annotated[str, typer.Argument(metavar="TASK", help="sst-2, rte, squad-1.1 …")],
    rows: Annotated[
        str,
        typer.Argument(metavar="PREDICTIONS", help="predictions.jsonl of vg finetune."),
    ],
    gold: Annotated[
        str | None,
        Flag(metavar="FILE|DIR", help="Labels: official file, or the task's folder [rows' own]."),
    ] = None,
    joint: Annotated[
        str | None,
        Flag(metavar="FILE", help="vcr-qar: vcr-qa's predictions of the same questions, for Q→AR."),
    ] = None,
    submission: Annotated[
        str | None,
        Flag(metavar="FILE", help="With --joint, on test files: write VCR's leaderboard CSV."),
    ] = None,
    null_threshold: Annotated[
        float | None,
        Flag(metavar="X", help="SQuAD 2.0: no answer where it scores higher by more than X [0]."),
    ] = None,
) -> None:
    """Score saved predictions of a downstream task with its official metrics, without a model.

    PREDICTIONS is jsonl, a row per example: {"id", "prediction", "label"}, and for SQuAD 2.0
    "no_answer" and "answer", as vg finetune writes it. Prints one record with the metrics in
    percent and their mean, "headline". SQuAD 2.0 keeps withheld answers, so any threshold can be
    tried; the best are printed, too.

    Examples:

        vg score rte rte.bert/seed-9595/predictions.jsonl

        vg score squad-2.0 squad.bert/seed-9595/predictions.jsonl --null-threshold -1.5

        vg score mnli other-model.jsonl --gold glue/MNLI

        vg score vcr-qar qar/seed-9595/predictions.jsonl --joint qa/seed-9595/predictions.jsonl
    """
    from vgtools.tasks.table import find_task

    task = find_task(name)
    if joint is not None and task.name != "vcr-qar":
        why = f"joins predictions of vcr-qa to those of vcr-qar, got {task.name}"
        raise typer.BadParameter(why, param_hint="--joint")
    if submission is not None and joint is None:
        raise typer.BadParameter("needs --joint", param_hint="--submission")
    if null_threshold is not None and not task.unanswerable:
        why = f"applies to squad-2.0, whose questions may have no answer, not to {task.name}"
        raise typer.BadParameter(why, param_hint="--null-threshold")
    if [rows, joint, gold].count("-") > 1:
        raise typer.BadParameter("only one file can come from a pipe", param_hint="-")
    if gold is not None and Path(gold).is_dir():
        gold = str(Path(gold) / task.files["dev"])
    score_saved(task, rows, gold, null_threshold or 0.0, joint, submission)


def score_saved(
    task: Task,
    path: str,
    gold: str | None,
    threshold: float,
    joint: str | None,
    submission: str | None,
) -> None:
    """Print the scores of saved predictions, or write VCR's submission.

    Args:
        task: of the predictions.
        path: of the predictions.
        gold: official file with the labels; None takes the rows' own.
        threshold: SQuAD 2.0, used where every row has `no_answer`.
        joint: predictions of vcr-qa beside those of vcr-qar.
        submission: with `joint`, the CSV to write in place of scores.

    Raises:
        DataError: as `vgtools.tasks.dispatch.gather`.
    """
    if joint is not None:
        _require_run_of("vcr-qar", path)
        _require_run_of("vcr-qa", joint)
        if submission is not None:
            _write_submission(path, joint, submission)
            return
    _print_scores(task, path, gold, threshold, joint)


def _print_scores(
    task: Task,
    path: str,
    gold: str | None,
    threshold: float,
    joint: str | None,
) -> None:
    from vgtools import io
    from vgtools.tasks.dispatch import gather, read_examples, read_predictions, score_predictions
    from vgtools.tasks.kinds.choice import joint_scores
    from vgtools.tasks.predictions import with_answers

    def examples(name: str) -> Iterator[Example] | None:
        return None if gold is None else read_examples(name, gold)

    rows = with_answers(read_predictions(task, path))
    has_threshold = task.unanswerable and all("no_answer" in row for row in rows)
    at = threshold if has_threshold else None
    scores = score_predictions(task, rows, examples(task.name), threshold=at, file=path)
    if joint is not None:
        first = read_predictions("vcr-qa", joint)
        answers = gather("vcr-qa", first, examples("vcr-qa"), file=joint)
        rationales = gather(task, rows, examples(task.name), file=path)
        scores |= joint_scores(answers, rationales, joint)
    io.open_stream("-").write(io.dumps({"task": task.name, **scores}))


def _require_run_of(name: str, path: str) -> None:
    """Refuse predictions whose run.json names another task; a file without a run is accepted."""
    from vgtools.io import DataError, read_json

    run = Path(path).parent.parent / "run.json"
    if path == "-" or not run.is_file():
        return
    found = read_json(run).get("task")
    if found != name:
        raise DataError(f"expected predictions of {name}, got {found} (says {run})", path)


def _write_submission(rationales: str, answers: str, output: str) -> None:
    from vgtools import io
    from vgtools.tasks.dispatch import read_predictions
    from vgtools.tasks.kinds.choice import submission

    target = None if output == "-" else io.final_path(output, [rationales, answers])
    first = read_predictions("vcr-qa", answers)
    second = read_predictions("vcr-qar", rationales)
    text = submission(first, second, answers).encode()
    if target is None:
        io.open_stream("-").write(text)
    else:
        io.atomic_write(target, text)
