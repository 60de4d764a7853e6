"""`vg prepare pdtb`, `vua`: downstream tasks whose official files hold more than the task."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from vgtools.commands.options import Flag, Quiet, Target, flags
from vgtools.io.errors import Tally


@flags
def pdtb(
    table: Annotated[str, typer.Argument(metavar="FILE", help="pdtb2.csv")],
    target: Target,
    split: Annotated[
        Literal["train", "dev", "test"] | None,
        Flag(help="Keep sections 2-20, 0-1 or 21-22; all of them if not given."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write the implicit relations of PDTB 2 with senses of level 2.

    Rows are {"sentence1", "sentence2", "label", "split"}, as vg finetune pdtb reads them. Relations
    without a sense of level 2 are left out and counted.

    Examples:

        vg prepare pdtb pdtb2.csv --split train -o pdtb/train.jsonl

        vg prepare pdtb pdtb2.csv | jq -r .label | sort | uniq -c
    """
    from vgtools.datasets import task_files
    from vgtools.datasets.rows import save

    tally = Tally()
    rows = task_files.pdtb(table, tally, split)
    config = {"command": "pdtb", "split": split}
    save(rows, target.output, tally, "relations", config, [table], target.restart, quiet)
