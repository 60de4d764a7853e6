"""Write man/vg*.1 from the command tree: `python man/build.py`; `--check` fails when a page is stale.

The pages say what `--help` says, so they cannot drift from it. This is the only file that touches typer's own copy of click.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import typer.main
from typer._click.core import Context

from vgtools import __version__
from vgtools.cli import COMMANDS, make_app
from vgtools.commands.options import DefaultGroup

EXIT_STATUS = (
    ("0", "Success."),
    ("1", "An error inside vg; please report it."),
    ("2", "A flag or argument is wrong."),
    ("65", "The data is damaged, inconsistent or not of the form wanted; the message names file and line."),
    ("66", "An input does not exist or cannot be read."),
    ("69", "Something is missing that would have to be installed or downloaded."),
    ("70", "It cannot go on: out of memory at the smallest batch, or a loss that is not a number."),
    ("73, 74", "The output cannot be created, or cannot be written (disk full)."),
    ("75", "Stopped, or another process writes the same output; the same command goes on later."),
    ("78", "The settings differ from those of the unfinished run that would be resumed."),
    ("130, 141, 143", "Ended by Ctrl-C, a closed pipe, or SIGTERM."),
)


def roff(text: str) -> str:
    """Return text with the characters that troff takes for its own written out."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    text = re.sub(r"[^\x00-\x7f]", lambda found: f"\\[u{ord(found[0]):04X}]", text)  # pages are ASCII, read in any locale
    return re.sub(r"(?m)^\.", r"\\&.", text)


def paragraphs(text: str) -> list[str]:
    """Return help text as roff lines: blank lines part paragraphs, indented ones stay as they are."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        block = block.removeprefix("\b\n")
        if block.startswith("    "):
            lines += [".PP", ".nf", ".RS", *(roff(line[4:]) for line in block.splitlines()), ".RE", ".fi"]
        else:
            lines += [".PP", *(roff(line.strip()) for line in block.splitlines())]
    return lines


def options(command: Any, path: str) -> list[str]:
    """Return the arguments and options of one command as tagged paragraphs."""
    context = Context(command, info_name=path)
    lines: list[str] = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        lines += [".TP", f".B {roff(record[0])}", roff(record[1]) or "."]
    return lines


def page(name: str, command: Any) -> str:
    """Return one man page in roff."""
    children = getattr(command, "commands", {}) or {}
    default = isinstance(command, DefaultGroup)
    text = ((next(iter(children.values())) if default else command).help or "").replace("\r", "")
    head, _, examples = text.partition("Examples:")
    summary = head.strip().split("\n\n")[0].replace("\n", " ").rstrip(".")
    path = name.replace("-", " ", 1)
    context = Context(command, info_name=path)
    usage = command.get_usage(context).removeprefix("Usage:").strip()
    lines = [
        f'.TH {roff(name.upper())} 1 "" "vgtools {__version__}" "vgtools"',
        ".SH NAME",
        roff(f"{name} - {summary}"),
        ".SH SYNOPSIS",
        roff(re.sub(r"\s+", " ", usage)),
        ".SH DESCRIPTION",
        *paragraphs(head),
    ]
    lines += [".SH OPTIONS", *options(command, path)]
    for child, inner in sorted(children.items()) if name != "vg" else ():
        if inner.hidden:
            continue
        lines += [
            f".SH {roff((path + ' ' + child).upper())}",
            roff(inner.get_usage(Context(inner, info_name=f"{path} {child}")).removeprefix("Usage:").strip()),
        ]
        lines += [*paragraphs(inner.help or ""), *options(inner, f"{path} {child}")]
    if name == "vg":
        lines += [".SH COMMANDS"]
        for child in COMMANDS:
            inner = children[child]
            if isinstance(inner, DefaultGroup):
                inner = next(iter(inner.commands.values()))
            first = (inner.help or "").strip().split("\n\n")[0].replace("\n", " ")
            lines += [".TP", f".B {roff('vg ' + child)}", roff(first)]
    if examples.strip():
        lines += [".SH EXAMPLES", *paragraphs(examples.strip("\n"))]
    lines += [".SH EXIT STATUS"]
    for code, meaning in EXIT_STATUS:
        lines += [".TP", f".B {code}", roff(meaning)]
    others = [n for n in ("vg", *(f"vg-{c}" for c in COMMANDS)) if n != name]
    lines += [".SH SEE ALSO", ", ".join(f"\\fB{roff(n)}\\fR(1)" for n in others)]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Return every page by file name."""
    tree: Any = typer.main.get_command(make_app())
    found = {"vg.1": page("vg", tree)}
    return found | {f"vg-{name}.1": page(f"vg-{name}", tree.commands[name]) for name in COMMANDS}


def main() -> int:
    """Write the pages, or compare them with what would be written."""
    folder, wanted = Path(__file__).parent, pages()
    if "--check" not in sys.argv[1:]:
        for stale in {p.name for p in folder.glob("*.1")} - set(wanted):
            (folder / stale).unlink()
        for name, text in wanted.items():
            (folder / name).write_text(text, encoding="utf-8")
        return 0
    there = {p.name: p.read_text(encoding="utf-8") for p in folder.glob("*.1")}
    changed = sorted(n for n in {*there, *wanted} if there.get(n) != wanted.get(n))
    if changed:
        print(f"stale: {', '.join(changed)}; run `make man` and commit the pages", file=sys.stderr)
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
