"""Finished fine-tuning runs that tests build, in the form that `vg finetune` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vgtools.io.files import dumps
from vgtools.models.runs import save_run
from vgtools.tasks.dispatch import prediction_row, score_predictions
from vgtools.tasks.examples import Answer, Example, VisualExample
from vgtools.tasks.table import find_task


def examples_of(name: str, gold: Sequence[Any]) -> list[Example]:
    kind = find_task(name).kind
    if kind in ("span", "answer"):  # VQA's annotators agree
        answers = 4 if kind == "answer" else 1
        return [
            Example(str(i), "q", "c", answers=(Answer(text, 0),) * answers)
            for i, text in enumerate(gold)
        ]
    if kind == "ground":
        return [VisualExample(str(i), "t", boxes=(box,)) for i, box in enumerate(gold)]
    if name == "nlvr2":
        return [Example(f"dev-{i}-0-0", "t", label=label) for i, label in enumerate(gold)]
    return [Example(str(i), "t", label=label) for i, label in enumerate(gold)]


GOLD = [0, 1, 1, 0, 1, 0, 1, 1]
RIGHT = {"1": GOLD, "2": [1 - GOLD[0], *GOLD[1:]]}  # 100 and 87.5 % right
POOR = {  # 50 and 25 %
    "1": [1 - x for x in GOLD[:4]] + GOLD[4:],
    "2": [1 - x for x in GOLD[:6]] + GOLD[6:],
}


def save_finetuned(
    folder: Path,
    name: str,
    gold: Sequence[Any],
    said: Mapping[str, Sequence[Any]],
    test: tuple[Sequence[Any], Mapping[str, Sequence[Any]]] | None = None,
    **more: Any,
) -> Path:
    """Write a run of one task.

    Args:
        folder: made with its parents.
        name: of the task.
        gold: label of each example.
        said: seed -> prediction of each example.
        test: gold and predictions of a test split.
        more: further facts of run.json.
    """
    task, seeds = find_task(name), {}
    for seed, answers in said.items():
        rows = [
            prediction_row(task, e, p)
            for e, p in zip(examples_of(name, gold), answers, strict=True)
        ]
        (folder / f"seed-{seed}").mkdir(parents=True)
        (folder / f"seed-{seed}" / "predictions.jsonl").write_bytes(b"".join(map(dumps, rows)))
        seeds[seed] = score_predictions(task, rows)
        if test is None:
            continue
        rows = [
            prediction_row(task, e, p)
            for e, p in zip(examples_of(name, test[0]), test[1][seed], strict=True)
        ]
        (folder / f"seed-{seed}" / "predictions.test.jsonl").write_bytes(b"".join(map(dumps, rows)))
        scores = score_predictions(task, rows)
        seeds[seed] |= {f"{key}_test": value for key, value in scores.items()}
    save_run(folder, "finetune", {}, {"task": task.name, "seeds": seeds} | more)
    return folder


# Four examples of RTE: text, hypothesis, label; `dog` and `red` are what captions ground.
RTE = (
    ("a red dog runs", "the dog ran", 0),  # content: red dog runs dog ran
    ("no one talks about peace", "peace", 1),  # one talks peace peace; no dog
    ("the of", "a", 0),  # nothing but stop words
    ("dog", "cat dog red", 1),  # dog cat dog red
)
RTE_GOLD = [label for *_, label in RTE]


def save_rte(file: Path) -> Path:
    """Write the examples that `save_answers` is about, as an official file."""
    rows = [f"{i}\t{a}\t{b}\t{label}\n" for i, (a, b, label) in enumerate(RTE)]
    file.write_text("index\tsentence1\tsentence2\tlabel\n" + "".join(rows))
    return file


def save_answers(folder: Path, right: Sequence[Sequence[int]], **more: Any) -> Path:
    """Write a run of RTE.

    Args:
        folder: made with its parents.
        right: for each seed, whether each example is answered right.
        more: further facts of run.json.
    """
    said = {
        str(seed): [g if r else 1 - g for g, r in zip(RTE_GOLD, row, strict=True)]
        for seed, row in enumerate(right, 1)
    }
    return save_finetuned(folder, "rte", RTE_GOLD, said, **more)


def save_two(folder: Path) -> list[str]:
    """Write two models on two tasks; the second also on SQuAD."""
    for name, said in (("mlm", POOR), ("vokens", RIGHT)):
        save_finetuned(folder / name / "a", "sst-2", GOLD, said)
        save_finetuned(folder / name / "b", "qqp", GOLD, said)
    save_finetuned(folder / "vokens" / "c", "squad-1.1", ["Bo", "Ann Lee"], {"1": ["Bo", "Ann"]})
    return [str(folder / "mlm"), str(folder / "vokens")]
