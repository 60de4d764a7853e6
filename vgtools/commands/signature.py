"""How the parameters of a command come from dataclasses of settings."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from typer.models import OptionInfo, ParameterInfo

from vgtools.commands.completion import completer
from vgtools.commands.config import CONFIG
from vgtools.commands.lines import FILES, MODELS
from vgtools.commands.topics import FIRST, Topic
from vgtools.io import settings
from vgtools.io.errors import storable
from vgtools.systems import placed

# Short names by the name of the parameter: a letter has one meaning in all commands.
_SHORT = {"encoder": "-e", "output": "-o", "tokenizer": "-t"}
_MOST = 2**63  # numbers of the command line stay below: arrays and `islice` count no further
Result = TypeVar("Result")


def flags(command: Callable[..., Result]) -> Callable[..., Result]:
    """Replace parameters that are frozen dataclasses by their fields; hand the dataclasses over.

    A field is declared by `settings.value`, or has a type that is `Annotated` with a
    `typer.Option`, or is such a dataclass itself. A subclass that repeats a field with another
    default alone keeps the rest.

        @dataclass(frozen=True, kw_only=True)
        class Slow(Optimizer):
            lr: float = 1e-5

        @flags
        def train(file: str, optimizer: Slow, runtime: Runtime) -> None:
            print(file, optimizer.lr, runtime.device)

    is `train FILE --lr 1e-5 --device cpu`. Flags keep the order of parameters and fields. The help
    of a parameter is in the section `Args` that ends the docstring; the command's help ends before
    it.
    """
    groups: dict[str, type[Any]] = {}
    shown: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        hint, topic, _ = _split(parameter.annotation)
        if dataclasses.is_dataclass(hint):
            groups[name] = hint  # type: ignore[assignment]
            shown += _parameters(hint, topic or FIRST)  # type: ignore[arg-type]
        else:
            shown.append(_explained(_placed(parameter, FIRST), command.__doc__))

    shown = [_completed(parameter) for parameter in shown]
    declared = {parameter.name: parameter for parameter in shown}
    shown.append(_config())

    @functools.wraps(command)
    def spread(**values: Any) -> Result:
        values.pop("config", None)
        for name, one in values.items():
            given = one if isinstance(one, list) else [one]
            if fault := next(filter(None, (_fault(item, declared[name]) for item in given)), ""):
                raise typer.BadParameter(fault, param_hint=_flag(declared[name]))
        for name in values.keys() & {*MODELS, *FILES}:
            values[name] = _placed_here(values[name], name in MODELS)
        for name, group in groups.items():
            values[name] = _filled(group, values)
        return command(**values)

    spread.__doc__ = inspect.cleandoc(command.__doc__ or "").partition("\n\nArgs:\n")[0]
    spread.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return spread


def _config() -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("config", kind, annotation=CONFIG, default=None)


def _filled(group: type[Any], values: dict[str, Any]) -> Any:
    """Return a dataclass with its values, which are taken out of all."""
    hints = _hints(group)
    taken = dict[str, Any]()
    for item in dataclasses.fields(group):
        inner: Any = _split(hints[item.name])[0]
        nested = dataclasses.is_dataclass(inner)
        taken[item.name] = _filled(inner, values) if nested else values.pop(item.name)
    return group(**taken)


def _hints(group: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a dataclass; a subclass keeps the annotations."""
    hints: dict[str, Any] = {}
    for base in reversed(group.__mro__):
        for name, hint in inspect.get_annotations(base, eval_str=True).items():
            inherited = getattr(hints.get(name), "__metadata__", ())
            bare = inherited and not hasattr(hint, "__metadata__")
            hints[name] = Annotated[hint, *inherited] if bare else hint
    return hints


def _placed_here(given: Any, models: bool) -> Any:
    """Return the value of a flag with the places of repositories, fetched if needed."""
    if isinstance(given, list):
        return [_placed_here(one, models) for one in given]
    return placed(given, models) if isinstance(given, str) else given


def _flag(parameter: inspect.Parameter) -> str:
    """Return the name of a flag on the command line, which is not always its parameter's."""
    option = _split(parameter.annotation)[2]
    # Where a default follows the annotation, typer holds the first name as the option's default.
    names = (option.default, *(option.param_decls or ())) if option is not None else ()
    given = (str(name) for name in names if str(name).startswith("--"))
    return next(given, f"--{parameter.name.replace('_', '-')}").partition("/")[0]


def _fault(one: Any, parameter: inspect.Parameter) -> str:
    """Return why no command takes a value of a flag, or an empty string."""
    if isinstance(one, int | float) and not abs(one) < _MOST:  # NaN is below nothing
        return f"must be finite, below 2**63, got {one}"
    option = _split(parameter.annotation)[2]
    # An argument that is empty or has such bytes is the name of a file, which is there or not.
    if not isinstance(one, str) or option is None:
        return ""
    # A variable that the caller's shell has not set is not a flag that was left out.
    if not one and parameter.default != "":
        return "is empty; give a value, or leave the flag out"
    is_name = re.search(r"FILE|DIR|RUN|X\.", option.metavar or "") or os.path.lexists(one)
    odd = storable(one) != one and not is_name
    return "has bytes that are not UTF-8" if odd else ""


def _parameters(group: type[Any], topic: Topic) -> list[inspect.Parameter]:
    """Return the fields of a dataclass as parameters of a command, on the page of a topic."""
    hints = _hints(group)
    shown = []
    for item in dataclasses.fields(group):
        inner, own, _ = _split(hints[item.name])
        if dataclasses.is_dataclass(inner):
            shown += _parameters(inner, own or topic)  # type: ignore[arg-type]
            continue
        hint = _flag_of(item.name, hints[item.name], settings.declared(group, item.name))
        required = item.default is dataclasses.MISSING
        default = inspect.Parameter.empty if required else item.default
        kind = inspect.Parameter.KEYWORD_ONLY
        parameter = inspect.Parameter(item.name, kind, annotation=hint, default=default)
        shown.append(_placed(parameter, topic))
    return shown


def _flag_of(name: str, hint: Any, declared: dict[str, Any]) -> Any:
    """Return the annotation of a setting as a parameter of a command; as it is if it has its own.

    Args:
        name: name of the field.
        hint: its type.
        declared: by `settings.value`; empty for a field that is `Annotated`.
    """
    if not declared:
        return hint
    hint, _, _ = _split(hint)
    options = {
        key: one for key, one in declared.items() if key not in ("names", "presets", "topic")
    }
    names = declared["names"] or ([f"--{name.replace('_', '-')}"] if hint is bool else [])
    topic = declared.get("topic")
    marks = [] if topic is None else [topic if isinstance(topic, Topic) else FIRST]
    return Annotated[hint, typer.Option(*names, **options), *marks]


def _placed(parameter: inspect.Parameter, topic: Topic) -> inspect.Parameter:
    """Return a parameter of a command on the page of its own topic, or else of this one."""
    hint, own, option = _split(parameter.annotation)
    parameter = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    if option is None:
        return parameter
    option = copy.copy(option)
    option.rich_help_panel = topic if own is None else own
    if parameter.name in _SHORT and not option.param_decls:
        option.param_decls = (f"--{parameter.name}", _SHORT[parameter.name])
    return parameter.replace(annotation=Annotated[hint, option])


def _explained(parameter: inspect.Parameter, docstring: str | None) -> inspect.Parameter:
    """Return a parameter of a command with its help of the docstring, unless it has its own."""
    hint = parameter.annotation
    helps = settings.documented(docstring, "Args")
    metadata = list(getattr(hint, "__metadata__", ()))
    for number, info in enumerate(metadata):
        if isinstance(info, ParameterInfo) and not info.help:
            metadata[number] = copy.copy(info)  # commands may share one annotation
            metadata[number].help = helps.get(parameter.name, "")
    return parameter.replace(annotation=Annotated[hint.__origin__, *metadata] if metadata else hint)


def _completed(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter of a command with the completion of its values."""
    hint = parameter.annotation
    metadata = list(getattr(hint, "__metadata__", ()))
    for number, info in enumerate(metadata):
        if not isinstance(info, ParameterInfo):
            continue
        if complete := completer(parameter.name, info.metavar):
            metadata[number] = copy.copy(info)  # commands may share one annotation
            metadata[number].autocompletion = complete
    return parameter.replace(annotation=Annotated[hint.__origin__, *metadata] if metadata else hint)


def _split(annotation: Any) -> tuple[Any, Topic | None, OptionInfo | None]:
    """Return the type of an annotation, and its topic and option, if it has any."""
    more = getattr(annotation, "__metadata__", ())
    topic = next((item for item in more if isinstance(item, Topic)), None)
    option = next((item for item in more if isinstance(item, OptionInfo)), None)
    return (annotation.__origin__ if more else annotation), topic, option
