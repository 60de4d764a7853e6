"""Command lines of vg as values: read by the parser of their command, and written out again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import typer

from vgtools import __version__
from vgtools.io.errors import DataError, Exit
from vgtools.io.hub import is_hub_name
from vgtools.io.names import file_of, is_unnamed, is_url

# Parameters that name a model, which may be a file or folder, or a repository of a hub.
MODELS = (
    *("baseline", "encoder", "matcher", "model", "names"),
    *("refs", "run", "runs", "teacher", "tokenizer"),
)
_BUILTIN = "builtin:"  # starts names that are in installed packages
# Further parameters that take a repository on a model hub: an index, or rows of vg.
FILES = (
    *("corpora", "feats", "file", "index", "inputs"),
    *("queries", "retrieved", "rows", "text", "texts", "vokens"),
)
_WRITTEN = ("output", "images_out", "noise", "page", "plot", "png", "submission", "cache")
# By the command: elsewhere an input has the name.
_ALSO_WRITTEN: dict[tuple[str, ...], tuple[str, ...]] = {
    ("extract-image-feats",): ("captions",),
    ("prepare", "openmoji"): ("folder",),
    ("stats",): ("vectors",),
}


# Words that stand for no file, by the parameter that takes one.
_WORDS = {"regions": "grid", "stop_words": "nltk"}


@dataclass(frozen=True)
class CommandLine:
    """A call of vg as the parser of its command reads it.

    Attributes:
        names: command and sub-command.
        command: typer's.
        values: the words of each parameter that is given, by its name.
    """

    names: tuple[str, ...]
    command: Any
    values: dict[str, Any]

    def words(self, change: Callable[[str], str] = str) -> list[str]:
        """Return the words after `vg`: names, arguments, flags.

        Args:
            change: makes the words of another value, for example of a file that has moved.
        """
        arguments = list[str]()
        flags = list[str]()
        for one in self.command.params:
            values = several(self.values.get(one.name))
            if one.param_type_name == "argument":
                arguments += map(change, values)
            elif getattr(one, "is_flag", False):
                flags += [name for on in values for name in _switch(one, on)]
            else:
                name = max(one.opts, key=len)
                flags += [word for value in values for word in (name, change(value))]
        if any(word.startswith("-") and word != "-" for word in arguments):
            return [*self.names, *flags, "--", *arguments]
        return [*self.names, *arguments, *flags]

    @property
    def written(self) -> list[str]:
        """The names of the outputs, the main output first."""
        return [str(self.values[name]) for name in self._outputs() if name in self.values]

    def _outputs(self) -> tuple[str, ...]:
        return (*_WRITTEN, *_ALSO_WRITTEN.get(self.names, ()))

    def read(self) -> Iterator[tuple[str, bool]]:
        """Yield the names of files that are read, each with whether it may not be a file's."""
        outputs = self._outputs()
        for one, is_model in self._names():
            for value in several(self.values.get(one.name)) if one.name not in outputs else ():
                name = _name_in(one, value)[1]
                if not _is_word(one, name):
                    yield name, is_model or _is_elsewhere(one, name)

    def moved(self, folder: str) -> dict[str, Any]:
        """Return the values, with names of files as seen from here, not from a folder."""
        moved = dict(self.values)

        def change(one: Any, value: str, is_model: bool) -> str:
            head, name = _name_in(one, value)
            place = os.path.join(folder, name)
            other = is_model or _is_elsewhere(one, name)
            other = other and not os.path.exists(file_of(place))
            other = other or _is_word(one, name)
            if os.path.isabs(name) or is_url(name) or is_unnamed(name) or other:
                return value
            return head + os.path.relpath(place) + "/" * name.endswith("/")

        for one, is_model in self._names():
            values = [change(one, value, is_model) for value in several(moved.get(one.name))]
            if values:
                moved[one.name] = values if is_list(one) else values[0]
        return moved

    def _names(self) -> Iterator[tuple[Any, bool]]:
        """Yield the parameters that name files, each with whether it may name a model instead."""
        for one in self.command.params:
            metavar = str(one.metavar)
            named = one.param_type_name == "argument" and metavar not in ("TASK", "OWNER/NAME")
            is_model = one.name in (*MODELS, "backbone") or "NAME|" in metavar
            if named or is_model or re.search(r"FILE|DIR|RUN|X\.|\.html", metavar):
                yield one, is_model


def _name_in(one: Any, value: str) -> tuple[str, str]:
    """Return the parts of a value `TASK=FILE`; the first is empty for other parameters."""
    task, equals, name = value.partition("=") if "=" in str(one.metavar) else ("", "", value)
    return f"{task}{equals}", name


def _is_word(one: Any, name: str) -> bool:
    """Return whether a parameter that takes a file has a word or number in its place."""
    return name == _WORDS.get(one.name) or ("|N" in str(one.metavar) and name.isdecimal())


def _is_elsewhere(one: Any, name: str) -> bool:
    """Return whether a name is a package's or, where those are taken, a repository's on a hub."""
    return name.startswith(_BUILTIN) or (one.name in FILES and is_hub_name(name))


def is_list(one: Any) -> bool:
    """Return whether a parameter takes several values."""
    return one.nargs != 1 or getattr(one, "multiple", False)


def _switch(one: Any, on: bool) -> list[str]:
    names = one.opts if on else one.secondary_opts
    return list(names[:1])


def several(value: Any) -> list[Any]:
    """Return the words of a parameter as a list, whether it takes one, some or none."""
    if isinstance(value, list | tuple):
        return [*value]
    return [] if value is None else [value]


def take_apart(tree: Any, words: Sequence[str]) -> CommandLine:
    """Return a command line as the parser of its command reads it.

    Args:
        tree: the commands, as typer has them.
        words: after `vg`.

    Raises:
        DataError: this version of vg lacks the command or a flag (usage).
    """
    command = tree
    names = list[str]()
    rest = list(words)
    while hasattr(command, "commands"):
        default = getattr(command, "default", "")
        name = rest.pop(0) if rest[:1] and rest[0] in command.commands else default
        if not name:
            why = f"vg {__version__} has no command {' '.join(['vg', *names, *rest[:1]])}"
            raise DataError(why, code=Exit.USAGE)
        names.append(name)
        command = command.commands[name]
    try:
        values, _, _ = command.make_parser(typer.Context(command)).parse_args(args=rest)
    except Exception as error:
        if not hasattr(error, "format_message"):  # typer does not export the class
            raise
        why = f"vg {__version__} cannot read vg {' '.join(words)}: {error.format_message()}"
        raise DataError(why, code=Exit.USAGE) from None
    return CommandLine(tuple(names), command, values)
