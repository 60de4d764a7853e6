"""Saved predictions, scored again or submitted; imports no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vgtools.io.errors import DataError
from vgtools.io.files import dumps, final_path, read_json, refuse_inputs
from vgtools.io.names import is_stream
from vgtools.io.output import Output
from vgtools.io.own import atomic_write, open_stream
from vgtools.models.sealed import check_predictions
from vgtools.tasks.compare import check_joined
from vgtools.tasks.dispatch import gather, read_examples, read_predictions, score_predictions
from vgtools.tasks.examples import Example, hash_of, without_labels
from vgtools.tasks.kinds import answer, classify
from vgtools.tasks.kinds.choice import joint_scores
from vgtools.tasks.kinds.choice import submission as leaderboard
from vgtools.tasks.predictions import with_answers
from vgtools.tasks.table import Task, built_in

# Forms that a server takes, from the predictions of one task; VCR's leaderboard joins two tasks.
SUBMISSIONS = {"vqa": answer.submission, "nlvr2": classify.submission}


def score_saved(
    task: Task,
    path: str,
    gold: str | None,
    threshold: float,
    joint: str | None,
    submission: str | None,
    output: str | None = None,
) -> None:
    """Print the scores of saved predictions, or write them in the form of the task's server.

    Args:
        gold: official file with the labels; None takes the rows' own.
        threshold: SQuAD 2.0, used where every row has `no_answer`.
        joint: predictions of vcr-qa, to be joined with predictions of vcr-qar.
        submission: the file to write instead of scores, for VQA, for NLVR2, and with `joint` for
            VCR.
        output: the rows are also written here, as JSON lines or a table.

    Raises:
        DataError: as `vgtools.tasks.dispatch.gather`, or they have changed since their run wrote
            them.
    """
    for file in (path, joint):
        if file is not None:
            check_predictions(file)
    made = _require_run_of(task.name, path, official=joint is None)
    if joint is not None:
        check_joined(_require_run_of("vcr-qa", joint), made, _split_of(path), path)
    if submission is not None:
        _write_submission(task, path, joint, submission)
        return

    def examples(of: Task | str) -> Iterator[Example] | None:
        return None if gold is None else read_examples(of, gold)

    saved = list(read_predictions(task, path))
    rows = with_answers(saved)
    if gold is not None and not any("label" in row for row in rows):
        _check_gold(task, path, gold)
    has_threshold = task.unanswerable and all("no_answer" in row for row in rows)
    at = threshold if has_threshold else None
    scores = score_predictions(task, rows, examples(task), threshold=at, file=path)
    if joint is not None:
        first = read_predictions("vcr-qa", joint)
        answers = gather("vcr-qa", first, examples("vcr-qa"), file=joint)
        rationales = gather(task, rows, examples(task), file=path)
        scores |= joint_scores(answers, rationales, joint)
    if output is not None:
        refuse_inputs([Path(output)], [file for file in (gold, joint) if file not in (None, "-")])
        config = {"command": "score", "task": task.name}
        with Output([output], config, columns={}, inputs=[path], restart=True) as out:
            for row in saved if not out.complete else ():
                out.write(dumps(row))
            if not out.complete:
                out.finish(kind="predictions", task=task.name, rows=len(saved))
    open_stream("-").write(dumps({"task": task.name, **scores}))


def _check_gold(task: Task, path: str, gold: str) -> None:
    """Refuse labels of other texts than a run predicted, where ids are no more than row numbers.

    Then only the texts show whether both are in one order. The run has a hash of its texts without
    labels; predictions that have labels are compared with the gold's by `gather`.

    Raises:
        DataError: the texts have another hash than the run's (65, both).
    """
    run, info = _run_of(path)
    if is_stream(gold) or info is None:
        return
    made = info.get("data", {}).get(_split_of(path), {}).get("sha256")
    examples = list(read_examples(task, gold))
    numbered = all(example.id == str(number) for number, example in enumerate(examples))
    bare = hash_of(without_labels(examples))
    if numbered and made not in (None, bare, hash_of(examples)):
        why = f"its texts have sha256 {bare}, those that were predicted {made} (by {run})"
        way_out = "give the rows of the file that was predicted, in its order, or name an id column"
        raise DataError(f"{why}; {way_out}", gold)


def _require_run_of(name: str, path: str, official: bool = False) -> dict[str, Any]:
    """Return the run.json of predictions, refusing another task's; empty for a file without a run.

    With `official` a task of one's own is accepted as well: it may have the form of an official.
    """
    run, info = _run_of(path)
    if info is None:
        return {}
    found = info.get("task")
    is_own = official and (not isinstance(found, str) or built_in(found) is None)
    if found != name and not is_own:
        raise DataError(f"expected predictions of {name}, got {found} (by {run})", path)
    return info


def _run_of(path: str) -> tuple[Path, dict[str, Any] | None]:
    """Return the path of the run.json of predictions, and its object; None if it is not there."""
    run = Path(os.path.realpath(path)).parent.parent / "run.json"
    return run, None if path == "-" or not run.is_file() else read_json(run)


def _split_of(path: str) -> str:
    """Return the split of predictions.jsonl (dev) or predictions.SPLIT.jsonl."""
    return Path(os.path.realpath(path)).stem.partition(".")[2] or "dev"


def _write_submission(task: Task, path: str, joint: str | None, output: str) -> None:
    target = None if output == "-" else final_path(output, [path, *([joint] if joint else [])])
    rows = read_predictions(task, path)
    if joint is not None:
        text = leaderboard(read_predictions("vcr-qa", joint), rows, joint)
    else:
        _require_run_of(task.name, path)
        text = SUBMISSIONS[task.name](task, rows, path)
    if target is None:
        open_stream("-").write(text.encode())
    else:
        atomic_write(target, text.encode())
