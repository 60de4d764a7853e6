"""Settings, each declared once: type, default, help, limits, and the values of presets.

A setting is a field of a frozen dataclass, with its help in the docstring of the class.
`vgtools.commands.signature.flags` makes it a flag of a command, and its name is the key in
`run.json`.

    @dataclass(frozen=True, kw_only=True)
    class Optimizer:
        '''How a model learns.

        Attributes:
            lr: Highest learning rate.
        '''

        lr: float = value(1e-4, metavar="RATE", min=0)
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

Config = TypeVar("Config")

FIRST = ""  # topic of a setting that is on the first screen of a help


def value(default: Any, *texts: str, presets: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """Return the field of a setting.

    Args:
        default: its value; `...` if it must be given.
        *texts: names of the flag, which start with a dash, where it has a short name or is not
            called like the field; and its help, if that is computed, not in the docstring.
        presets: its value by the name of a preset; None where the preset has no such setting.
        **more: other arguments of `typer.Option`, `metavar` or `min` for example, and the `topic`
            of its help.
    """
    default = dataclasses.MISSING if default is ... else default
    names, text = names_and_help(texts)
    about = {"names": names, "help": text, "presets": presets or {}, **more}
    return dataclasses.field(default=default, metadata=about)


def names_and_help(texts: Iterable[str]) -> tuple[tuple[str, ...], str]:
    """Return the names of a flag, which start with a dash, and its help, empty if none is given."""
    names = tuple(text for text in texts if text.startswith("-"))
    return names, "".join(text for text in texts if not text.startswith("-"))


@functools.cache
def documented(docstring: str | None, section: str) -> dict[str, str]:
    """Return the texts of a section of a docstring, `Args` or `Attributes`, by name."""
    _, _, listed = inspect.cleandoc(docstring or "").partition(f"\n{section}:\n")
    found = re.findall(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", listed, re.M)
    return {name: " ".join(text.split()) for name, text in found}


def _with_paper(text: str, presets: Mapping[str, Any]) -> str:
    """Return a help with the value of the preset `paper`, if it has one."""
    paper = presets.get("paper")
    if paper is None:
        return text
    if isinstance(paper, bool):
        paper = "yes" if paper else "no"
    elif isinstance(paper, float):
        paper = f"{paper:g}"
    return f"{text.removesuffix('.')} (paper: {paper})."


def count(default: Any, text: str = "", least: int = 1, **more: Any) -> Any:
    """Return the field of a whole number from `least` on."""
    return value(default, text, metavar="N", min=least, **more)


def file(default: Any, *texts: str, **more: Any) -> Any:
    """Return the field of a file's name."""
    return value(default, *texts, metavar="FILE", **more)


def declared(kind: type[Any], name: str) -> dict[str, Any]:
    """Return the declaration of a setting, also where a subclass changes its default alone.

    Its `help` is the class's own, where the docstring has an entry for it; where the preset `paper`
    has a value, that is added.
    """
    for base in kind.__mro__:
        found = getattr(base, "__dataclass_fields__", {}).get(name)
        if found is not None and found.metadata:
            texts = (documented(one.__doc__, "Attributes").get(name) for one in kind.__mro__)
            text = found.metadata["help"] or next(filter(None, texts), "")
            return {**found.metadata, "help": _with_paper(text, found.metadata["presets"])}
    return {}


def configured(kind: type[Config], settings: Mapping[str, Any], **own: Any) -> Config:
    """Return a configuration: its part of a command's settings, and its own values.

    Args:
        kind: a dataclass that extends some of the settings.
        settings: also those that the configuration does not have.
        **own: fields that the data decide.
    """
    names = {item.name for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**own | {key: settings[key] for key in settings.keys() & names})


def entries(config: Any) -> dict[str, Any]:
    """Return a configuration as `run.json` has it: fields that the data decide, then settings."""
    fields = sorted(dataclasses.fields(config), key=lambda item: bool(item.kw_only))
    return {item.name: getattr(config, item.name) for item in fields}


def preset(kind: type[Any], name: str) -> dict[str, Any]:
    """Return the values that a preset gives settings, in their order."""
    names = [item.name for item in dataclasses.fields(kind)]
    presets = {key: declared(kind, key).get("presets", {}) for key in names}
    return {key: values[name] for key, values in presets.items() if name in values}
