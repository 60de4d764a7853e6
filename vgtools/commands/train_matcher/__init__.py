"""`vg train-matcher`: captions and image features become a matcher; one sub-command per system."""

from __future__ import annotations

import typer

from vgtools.commands.topics import DefaultGroup
from vgtools.commands.train_matcher.visual_awareness import visual_awareness
from vgtools.commands.train_matcher.vokenization import vokenization

train_matcher = typer.Typer(cls=DefaultGroup, rich_markup_mode=None)
train_matcher.command("vokenization")(vokenization)
train_matcher.command("visual-awareness")(visual_awareness)
