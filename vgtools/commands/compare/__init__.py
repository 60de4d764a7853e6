"""`vg compare`: fine-tuned models side by side, with the share of chance; examples; encoders."""

from __future__ import annotations

import typer

from vgtools.commands.compare.encoders import sizes, weights, words
from vgtools.commands.compare.examples import examples
from vgtools.commands.compare.runs import runs
from vgtools.commands.topics import DefaultGroup

compare = typer.Typer(cls=DefaultGroup, rich_markup_mode=None)
compare.command("runs")(runs)
compare.command("examples")(examples)
compare.command("weights")(weights)
compare.command("words")(words)
compare.command("sizes")(sizes)
