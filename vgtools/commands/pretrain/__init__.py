"""`vg pretrain`: texts and captions become a language model; one sub-command per system."""

from __future__ import annotations

import typer

from vgtools.commands.pretrain.clip import clip
from vgtools.commands.pretrain.grounding import grounding
from vgtools.commands.pretrain.lm import lm
from vgtools.commands.pretrain.visualbert import visualbert
from vgtools.commands.pretrain.xdbert import xdbert
from vgtools.commands.topics import DefaultGroup

pretrain = typer.Typer(cls=DefaultGroup, rich_markup_mode=None)
pretrain.command("lm")(lm)
pretrain.command("visualbert")(visualbert)
pretrain.command("grounding")(grounding)
pretrain.command("xdbert")(xdbert)
pretrain.command("clip")(clip)
