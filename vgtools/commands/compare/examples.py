"""`vg compare --by-example`: what a second model answers better and worse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vgtools.commands.compare.flags import Examples, Grounding
from vgtools.commands.options import note, open_vocabulary
from vgtools.io.files import page_path
from vgtools.io.own import write_page


def compare_examples(
    runs: Sequence[str],
    single: Examples,
    ground: Grounding,
    split: str,
    reported: str | None,
    samples: int,
    seed: int,
    offline: bool,
    quiet: bool,
    markdown: bool,
) -> None:
    """Print a record per task, then single examples; draw figure 4."""
    from vgtools.analysis.grounded_words import GroundedWords
    from vgtools.reports import by_example as page
    from vgtools.reports.tables import reported_rows, show
    from vgtools.tasks import compare as c
    from vgtools.tasks.by_example import read_answers

    target = None
    if ground.plot is not None:
        target = page_path(ground.plot, [*runs, ground.grounding or ""])
    first, second = c.read_rows(runs, split=split)
    for row in (first, second):
        for folder in row.left_out:
            note("compare", f"{folder} has no finished run, skipped", quiet)
    words: GroundedWords | None = None
    if ground.grounding is not None:
        types = open_vocabulary(ground.tokenizer, offline)
        grounded = c.grounded_types(ground.grounding, types, ground.grounded_above)
        words = GroundedWords(types, grounded)
    tasks = list(read_answers(first, second, words, ground.files()))
    records = [task.record(samples, seed) for task in tasks]
    records += reported_rows(reported, "examples") if reported else []
    found: list[dict[str, Any]] = []
    if words is not None:
        found += [row for task in tasks for row in task.examples(single.examples, words)]
    tables = [page.examples_table(records)]
    show([*records, *found], tables, markdown, page.examples_text(found))
    if target is not None:
        write_page(target, page.ratio_figure(tasks, records).render(target.suffix))
