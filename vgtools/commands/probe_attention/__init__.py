"""`vg probe-attention`: what do attention heads ground, and what do they look at?"""

from __future__ import annotations

import typer

from vgtools.commands.probe_attention.cross import cross
from vgtools.commands.probe_attention.regions import regions
from vgtools.commands.probe_attention.text import text
from vgtools.commands.topics import DefaultGroup

probe_attention = typer.Typer(cls=DefaultGroup, rich_markup_mode=None)
probe_attention.command("regions")(regions)
probe_attention.command("text")(text)
probe_attention.command("cross")(cross)
