"""`vg compare examples`: the examples that a second model answers better and worse."""

from __future__ import annotations

from typing import Annotated, Any

from vgtools.commands.compare.flags import GroundedTasks, Reported, Split
from vgtools.commands.options import (
    Argument,
    Count,
    Offline,
    Quiet,
    Samples,
    Seed,
    Table,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.files import page_path
from vgtools.io.own import write_page
from vgtools.io.process import note


@flags
def examples(
    baseline: Annotated[str, Argument("BASELINE")],
    run: Annotated[str, Argument("RUN")],
    *,
    split: Split = "dev",
    ground: GroundedTasks,
    examples: Annotated[int, Count(least=0)] = 0,
    reported: Reported = None,
    table: Table = False,
    samples: Samples = 10_000,
    seed: Seed = 0,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Compare two fine-tuned models by example: those that the second answers better and worse.

    The examples of each task with classes are divided into those that more seeds of RUN answer
    right than of BASELINE (improved), fewer (worsened), and the others; the difference is
    accumulated over seeds.

    With --grounding, the share of grounded tokens among all but stop words and punctuation is
    compared between improved and worsened examples: quartiles, median, mean, and a p-value of the
    difference by permutation. --plot draws XDBERT's figure 4; --examples prints single examples as
    its appendix D, **grounded** and (stop) words.

    Examples:

        vg compare examples bert xdbert | jq '{improved, worsened}'

        vg compare examples bert xdbert --grounding captions.jsonl --plot fig4.svg --examples 3

    Args:
        baseline: Run of vg finetune, or a folder of them.
        run: Another one, of the same tasks.
        examples: With --grounding: print the N most extreme of each group.
    """
    from vgtools.analysis.grounded_words import GroundedWords
    from vgtools.reports import by_example as page
    from vgtools.reports import tables
    from vgtools.tasks import compare as c
    from vgtools.tasks.by_example import read_answers

    ground.check()
    unmarked = examples and ground.grounding is None
    refuse_if(unmarked, "--examples", "needs --grounding, which marks their words")
    target = None
    if ground.plot is not None:
        target = page_path(ground.plot, [baseline, run, ground.grounding or ""])
    first, second = c.read_rows([baseline, run], split=split)
    for folder in (*first.left_out, *second.left_out):
        note("compare", f"{folder} has no finished run, skipped")
    known = ground.types()
    words = None if known is None else GroundedWords(*known)
    tasks = list(read_answers(first, second, words, ground.files()))
    records = [task.record(samples, seed) for task in tasks]
    records += tables.reported(reported, "examples") if reported else []
    found: list[dict[str, Any]] = []
    if words is not None:
        found += [row for task in tasks for row in task.examples(examples, words)]
    shown = [page.examples_table(records)]
    tables.show([*records, *found], shown, table, page.examples_text(found))
    if target is not None:
        write_page(target, page.ratio_figure(tasks, records).render(target.suffix))
