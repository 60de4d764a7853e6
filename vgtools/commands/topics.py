"""Commands whose help has parts, and groups of commands with a default.

`--help` shows the flags that most users need. Others have pages of their own, one per topic:
`vg pretrain --help training`. The man page has them all.
"""

from __future__ import annotations

import difflib
import inspect
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from vgtools.commands.config import note_settings, sub_command

_CHOSEN = "vg topic"  # key in the context of a command: the topic that is asked for


class Topic(str):
    """The name of a part of the help.

    A parameter of a command, or a field of a dataclass of `signature.flags`, has the topic that its
    annotation names: `Annotated[LmOptimizer, TRAINING]`. A field's own comes first.

    Attributes:
        about: the text of its page, above the flags; the first line is the summary.
    """

    about: str

    def __new__(cls, name: str, about: str = "") -> Topic:
        """Return a topic; the one without a name is the first screen."""
        topic = super().__new__(cls, name)
        topic.about = inspect.cleandoc(about)
        return topic


FIRST = Topic("")  # A field with it is on the first screen, whatever the topic of its dataclass.


def page(name: str) -> str:
    """Return the page of a topic: COMMAND.TOPIC, or a topic that several commands have."""
    return Path(__file__).with_name("help").joinpath(f"{name}.txt").read_text("utf-8")


def marked(text: str) -> str:
    """Return a docstring as help: indented blocks are marked, so that no command line is broken."""
    return re.sub(r"\n\n(?=    \S)", "\n\n\b\n", inspect.cleandoc(text))


class Command(TyperCommand):
    """A command whose help has topics."""

    def topics(self) -> dict[str, Topic]:
        """Return the topics of the flags, in their order."""
        found = (topic_of(parameter) for parameter in self.params)
        return {topic: topic for topic in found if topic}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the topic after `--help` out of the arguments."""
        own = args[: args.index("--")] if "--" in args else args
        for at, (flag, word) in enumerate(pairwise(own)):
            if flag in ctx.help_option_names and word in self.topics():
                ctx.meta[_CHOSEN] = self.topics()[word]
                args = [*args[: at + 1], *args[at + 2 :]]
                break
        rest = super().parse_args(ctx, list(args))
        note_settings(ctx, args)
        return rest

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the description of the command, or of the topic that is asked for."""
        topic = ctx.meta.get(_CHOSEN)
        if topic is None:
            super().format_help_text(ctx, formatter)
            return
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(marked(topic.about))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options of the first screen, and a line per topic; or a topic."""
        topic = ctx.meta.get(_CHOSEN, FIRST)
        shown = [one for one in self.get_params(ctx) if topic_of(one) == topic]
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            found = (one.get_help_record(ctx) for one in shown if one.param_type_name == kind)
            rows = [row for row in found if row is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
        lines = [(f"--help {name}", summary(one)) for name, one in self.topics().items()]
        if lines and not topic:
            with formatter.section("More options"):
                formatter.write_dl(lines)


def topic_of(parameter: Any) -> Topic:
    """Return the topic of a parameter of a command; typer keeps it as a panel."""
    panel = getattr(parameter, "rich_help_panel", None)
    return panel if isinstance(panel, Topic) else FIRST


def summary(topic: Topic) -> str:
    """Return the first line about a topic."""
    return topic.about.partition("\n")[0]


class DefaultGroup(TyperGroup):
    """Sub-commands, the first of which runs where none is named."""

    @property
    def default(self) -> str:
        """The sub-command that runs where none is named."""
        return next(iter(self.commands))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the name of the sub-command first."""
        if not args and ctx.resilient_parsing:  # a shell completes the first word
            return super().parse_args(ctx, args)
        first = self.commands[self.default]
        word, *rest = args or [""]
        topics = first.topics() if isinstance(first, Command) else {}
        asked = word in ctx.help_option_names and not {*rest[:1]} & {*topics}
        if word in self.commands or asked:
            return super().parse_args(ctx, args)
        self._refuse_misspelled(word, ctx)
        named = "" if ctx.resilient_parsing else sub_command(args)
        name = named if named in self.commands else self.default
        return super().parse_args(ctx, [name, *args])

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Return the sub-commands, and the arguments and flags of the first, that fit a word."""
        found: list[Any] = super().shell_complete(ctx, incomplete)
        first = next(iter(self.commands.values()))
        inner = first.make_context(first.name, [], parent=ctx, resilient_parsing=True)
        places = (one for one in first.params if one.param_type_name == "argument")
        for place in [] if incomplete.startswith("-") else [*places][:1]:
            found += place.shell_complete(inner, incomplete)
        return [*found, *first.shell_complete(inner, incomplete)]

    def _refuse_misspelled(self, word: str, ctx: Any) -> None:
        """Refuse a word that is almost the name of a sub-command, and of no file."""
        meant: Sequence[str] = difflib.get_close_matches(word, self.commands, n=1, cutoff=0.75)
        if meant and word.isalnum() and not os.path.exists(word):
            why = f"No such command {word!r}. Did you mean {meant[0]!r}?"
            known = f"Commands: {', '.join(self.commands)}."
            why = f"{why} {known} There is no file of that name, either."
            raise typer.BadParameter(why, ctx)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the first sub-command, then the list of them all."""
        first = next(iter(self.commands.values()))
        first.format_help(type(ctx)(first, ctx.parent, info_name=ctx.info_name), formatter)
        self.format_commands(ctx, formatter)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the summary of the first sub-command, for the list of commands."""
        return next(iter(self.commands.values())).get_short_help_str(limit)
