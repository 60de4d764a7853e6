"""Settings from a file, `--config FILE`: flags by name, or the record of an earlier run.

They become the defaults of the command's parser, which checks them as it checks the command line.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any

import typer

from vgtools import __version__
from vgtools.commands.lines import CommandLine, is_list, several, take_apart
from vgtools.io.errors import DataError, Exit, about, plain, storable
from vgtools.io.forms import read_small
from vgtools.io.process import note_command_line
from vgtools.io.records import Record, record_of
from vgtools.io.streams import open_read

_DEPTH = 20  # collections of YAML in one another; the flags need 2
_FORMS = (".toml", ".yaml", ".yml", ".json")
_PLACES = "vg places"  # key in the context of a command: file and line of each setting
# Flags about the state of one output, or about one of several processes.
_NOT_REPEATED = ("config", "restart", "shard")


def _fill(context: typer.Context, file: str | None) -> None:
    """Make the settings of a file the defaults of the command that is called."""
    if file is None or context.resilient_parsing:
        return
    record = _record(file)
    if record is None:
        found = {one.name: (value, place) for one, value, place in _settings(context, file)}
    else:
        values = _repeated(context, file, record)
        found = {name: (value, file) for name, value in values.items()}
    context.default_map = {name: value for name, (value, _) in found.items()}
    context.meta[_PLACES] = {name: place for name, (_, place) in found.items()}


CONFIG = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_fill,
        is_eager=True,
        expose_value=False,
        help="Flags from a file: vg --help.",
    ),
]


def place_of(context: Any, name: str) -> str:
    """Return the file and line of a parameter's value, or "" if it is not from a file."""
    source = getattr(context.get_parameter_source(name), "name", None)
    return str(context.meta[_PLACES][name]) if source == "DEFAULT_MAP" else ""


def note_settings(context: Any, args: Sequence[str]) -> None:
    """Note the command line with the settings of a file written out.

    Args:
        context: the command's.
        args: its words on the command line.
    """
    if not context.default_map:
        return
    names = context.command_path.split()[1:]
    given, _, _ = context.command.make_parser(context).parse_args(args=list(args))
    given = {name: value for name, value in given.items() if several(value) and name != "config"}
    line = CommandLine(tuple(names), context.command, {**context.default_map, **given})
    note_command_line(["vg", *line.words()])


def sub_command(args: Sequence[str]) -> str:
    """Return the second word of the run that `--config` repeats, which may be a sub-command."""
    for word, after in zip(args, [*args, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name == "--config":
            record = _record(value if equals else after)
            return "".join(record.words()[1:2]) if record else ""
    return ""


def _record(file: str) -> Record | None:
    """Return the record of a run, if a file is one or has one."""
    return record_of(file) if file.endswith(".json") or not file.endswith(_FORMS) else None


def _repeated(context: typer.Context, file: str, record: Record) -> dict[str, Any]:
    """Return the values of a recorded run, with names of files as seen from here.

    Raises:
        DataError: it was made by another command, or by a program (usage, 65).
    """
    words = record.words()
    tree: Any = context.find_root().command
    with about(file):
        line = take_apart(tree, words) if words[0] in tree.commands else None
    if line is None or line.command is not context.command:
        made = " ".join(words[:1] if line is None else line.names)
        why = f"was made by vg {made}, not by {context.command_path}; call that command with it"
        raise DataError(why, file, code=Exit.USAGE)
    if record.version != __version__:
        why = f"{file} is of vg {record.version}, this is vg {__version__}: results may differ"
        print(f"{context.command_path}: {plain(why)}", file=sys.stderr)
    values = line.moved(record.folder(line.written))
    return {k: v for k, v in values.items() if several(v) and k not in _NOT_REPEATED}


def _settings(context: typer.Context, file: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield parameters of a command with their words in a file of settings, and its line there.

    Raises:
        DataError: an unknown flag, or a value of another form than its flag's (usage).
    """
    text, body = _read(file)
    known = _keys(context.command)
    seen = dict[str, str]()
    for key, value in body.items():
        line = _line_of(key, text)
        one = known.get(key.replace("-", "_"))
        if one is None:
            (nearest,) = difflib.get_close_matches(key, known, n=1, cutoff=0)
            why = f'"{key:.80}" is not a flag of {context.command_path}; the nearest is "{nearest}"'
            raise DataError(why, file, line, Exit.USAGE)
        if one.name in seen:
            why = f'"{key}" and "{seen[one.name]}" are one flag'
            raise DataError(why, file, line, Exit.USAGE)
        seen[one.name] = key
        fault, words = _words(one, value)
        if fault:
            raise DataError(f'"{key}": {fault}', file, line, Exit.USAGE)
        yield one, words, f"{file}:{line}"


def _read(file: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a file of settings, and its object."""
    if not file.endswith(_FORMS):
        why = f"expected a file of settings ({', '.join(_FORMS)}), or a file or run that vg wrote"
        code = Exit.USAGE if os.path.exists(file) else Exit.NO_INPUT
        raise DataError(why if code == Exit.USAGE else "does not exist", file, code=code)
    with open_read(file) as stream:
        data = read_small(stream, file)
    try:
        text = data.decode("utf-8-sig")  # editors of Windows put a mark first
        body = _parse(file, text)
    except RecursionError:
        raise DataError("is nested too deeply; expected names of flags", file) from None
    except ValueError as error:
        raise DataError(f"cannot be read: {' '.join(str(error).split())}", file) from None
    if not isinstance(body, dict) or not all(isinstance(key, str) for key in body):
        raise DataError("expected names of flags with their values", file)
    return text, body


def _parse(file: str, text: str) -> Any:
    if file.endswith(".toml"):
        import tomllib

        return tomllib.loads(text)
    if file.endswith(".json"):
        return json.loads(text, object_pairs_hook=_once)
    import yaml

    depth = 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEPTH:  # the parser's time grows with the square of the depth
                raise RecursionError
            if isinstance(event, yaml.AliasEvent):  # a few lines of them hold a billion values
                line = event.start_mark.line + 1
                raise DataError("has an alias (*); write its value", file, line)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):  # the loader would keep the last of two
            _once((key.value, None) for key, _ in node.value if isinstance(key.value, str))
        return None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or "not valid YAML"
        raise DataError(why, file, None if mark is None else mark.line + 1) from None
    except (AttributeError, LookupError, TypeError) as error:  # a date's, for example
        raise ValueError(f"not valid YAML: {error}") from None


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the names and values of an object, of which no name may be there twice."""
    found = dict[str, Any]()
    for name, value in pairs:
        if name in found:
            raise ValueError(f"duplicate name {name!r:.80}")
        found[name] = value
    return found


def _line_of(key: str, text: str) -> int:
    found = re.search(rf"""(?:^|[{{,])\s*["']?{re.escape(key)}["']?\s*[:=]""", text, re.M)
    return text.count("\n", 0, found.end()) + 1 if found else 1


def _keys(command: Any) -> dict[str, Any]:
    """Return the parameters of a command by their names in a file: `batch_size`, `text`."""
    parameters = [one for one in command.params if one.name != "config"]
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    keys = {str(one.metavar).lower(): one for one in arguments}
    flags = [one for one in parameters if one.param_type_name == "option"]
    return keys | {
        name.lstrip("-").replace("-", "_"): one for one in flags for name in reversed(one.opts)
    }


def _words(one: Any, value: Any) -> tuple[str, Any]:
    """Return why a value is not one of a parameter, or "", and the words it would have."""
    if getattr(one, "is_flag", False):
        fault = "" if isinstance(value, bool) else f"expected true or false, got {_json(value)}"
        return fault, value
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not is_list(one):
        return "expected one value, got a list", None
    for each in values:
        if isinstance(each, bool) or not isinstance(each, str | int | float):
            return f"expected text or a number, got {_json(each)}", None
        if "\0" in str(each) or storable(str(each)) != str(each):
            return f"has a character that no name or text can have: {_json(each)}", None
    words = [str(each) for each in values]
    return "", words if is_list(one) else words[0]


def _json(value: Any) -> str:
    return json.dumps(value, default=str)[:60]
