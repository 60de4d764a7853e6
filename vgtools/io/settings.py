"""Settings, each declared once: type, default, help, limits, and the values of presets.

A setting is a field of a frozen dataclass. `vgtools.commands.signature.flags` makes it a flag of a
command, and its name is the key in `run.json`.

    @dataclass(frozen=True, kw_only=True)
    class Optimizer:
        lr: float = value(1e-4, "Highest learning rate.", metavar="RATE", min=0)
"""

from __future__ import annotations

import dataclasses
from typing import Any


def value(default: Any, text: str, *names: str, presets: Any = None, **more: Any) -> Any:
    """Return the field of a setting.

    Args:
        default: its value; `...` if it must be given.
        text: its help.
        *names: of the flag, where it has a short one or is not called like the field.
        presets: its value by the name of a preset.
        **more: other arguments of `typer.Option`, `metavar` or `min` for example, and the `topic`
            of its help.
    """
    default = dataclasses.MISSING if default is ... else default
    about = {"names": names, "help": text, "presets": presets or {}, **more}
    return dataclasses.field(default=default, metadata=about)


def count(default: Any, text: str, least: int = 1, **more: Any) -> Any:
    """Return the field of a whole number from `least` on."""
    return value(default, text, metavar="N", min=least, **more)


def file(default: Any, text: str, *names: str, **more: Any) -> Any:
    """Return the field of a file's name."""
    return value(default, text, *names, metavar="FILE", **more)


def declared(kind: type[Any], name: str) -> dict[str, Any]:
    """Return what is declared of a setting, also where a subclass changes its default alone."""
    for base in kind.__mro__:
        found = getattr(base, "__dataclass_fields__", {}).get(name)
        if found is not None and found.metadata:
            return dict(found.metadata)
    return {}


def preset(kind: type[Any], name: str) -> dict[str, Any]:
    """Return the values that a preset gives settings, in their order."""
    names = [item.name for item in dataclasses.fields(kind)]
    presets = {key: declared(kind, key).get("presets", {}) for key in names}
    return {key: values[name] for key, values in presets.items() if name in values}
