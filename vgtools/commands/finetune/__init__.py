"""`vg finetune`: an encoder and a downstream task become scores, over several seeds.

The first sub-command learns a built-in task from its official files, the others a table of one's
own.
"""

from __future__ import annotations

import typer

from vgtools.commands.finetune.own import answer, choice, classify, regress, tag
from vgtools.commands.finetune.task import task
from vgtools.commands.topics import DefaultGroup

finetune = typer.Typer(cls=DefaultGroup, rich_markup_mode=None)
for command in (task, classify, regress, tag, choice, answer):
    finetune.command(command.__name__)(command)
