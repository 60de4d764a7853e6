"""Write man/vg*.1 from the command tree; `--check` fails when a page is stale.

The pages hold the text of `--help`, so they cannot drift from it. This is the only file that
imports typer's own copy of click.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import typer.main
from typer._click.core import Context

# Pages describe the tree of this script, whichever is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from vgtools import __version__
from vgtools.cli import COMMANDS, make_app
from vgtools.commands.topics import FIRST, DefaultGroup, marked, topic_of

EXIT_STATUS = (
    ("0", "Success."),
    ("1", "An error inside vg; please report it."),
    ("2", "A flag or argument is wrong."),
    (
        "65",
        "The data is damaged, inconsistent or not in the expected form; the message "
        "names the line.",
    ),
    ("66", "An input does not exist or cannot be read."),
    ("69", "Something must be installed or downloaded."),
    (
        "70",
        "It cannot continue: out of memory at the smallest batch, or a loss that is not a number.",
    ),
    ("73, 74", "The output cannot be created, or cannot be written (disk full)."),
    (
        "75",
        "Stopped, or another process writes the same output; run the same command again to resume.",
    ),
    ("78", "The settings differ from the unfinished run's, which would be resumed."),
    ("130, 141, 143", "Ended by Ctrl-C, a closed pipe, or SIGTERM."),
)

# How files that a command reads together are joined; `pairs.tsv` lists them under these names.
JOINED = {
    "parts": "Parts of one artifact: the manifest X.json has the sha256 of each. Another order, or "
    "a part of another artifact, ends with 65 and both hashes.",
    "hash": "By row number or id. The manifest or run.json of the one names the sha256 of the "
    "other's image ids, examples or predictions; others end with 65 and both hashes. Rows from a "
    "pipe name none.",
    "model": "Made by one model or tokenizer, whose fingerprint both name; another ends with 65 "
    "and both, or with 78 where models are compared with one another.",
    "content": "In one order, or with one label: texts, words or classes of both are compared; "
    "others end with 65 and the first that differs.",
    "apart": "The one is learned from and the other measured on: a photo in both ends with 65.",
    "name": "By the name of the image, the id or the text: their order matters to random draws "
    "alone, and a missing name is an error.",
    "line": "Line N of the one belongs to line N of the other, and both come from elsewhere: only "
    "their numbers can be compared. Others end with 65.",
}


def roff(text: str) -> str:
    """Return text with the characters that have a meaning in troff escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    # ASCII pages are readable in any locale
    text = re.sub(r"[^\x00-\x7f]", lambda match: f"\\[u{ord(match[0]):04X}]", text)
    return re.sub(r"(?m)^\.", r"\\&.", text)


def paragraphs(text: str) -> list[str]:
    """Return help text as roff lines: blank lines separate paragraphs, indented ones are kept."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        block = block.removeprefix("\b\n")
        if block.startswith("    "):
            example = [roff(line[4:]) for line in block.splitlines()]
            lines += [".PP", ".nf", ".RS", *example, ".RE", ".fi"]
        else:
            lines += [".PP", *(roff(line.strip()) for line in block.splitlines())]
    return lines


def options(command: Any, path: str) -> list[str]:
    """Return the arguments and options of one command as tagged paragraphs, then its topics."""
    context = Context(command, info_name=path)
    topics: dict[str, Any] = getattr(command, "topics", dict)()
    lines: list[str] = []
    for topic in (FIRST, *topics.values()):
        if topic:
            lines += [f".SS {roff(topic.capitalize())}", *paragraphs(marked(topic.about))]
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and topic_of(parameter) == topic:
                lines += [".TP", f".B {roff(record[0])}", roff(record[1]) or "."]
    return lines


def usage(command: Any, path: str) -> str:
    """Return how a command is called, on one line."""
    text = command.get_usage(Context(command, info_name=path))
    return re.sub(r"\s+", " ", text.removeprefix("Usage:").strip())


def default_of(command: Any) -> Any:
    """Return the command that runs where no sub-command is named."""
    if isinstance(command, DefaultGroup):
        return next(iter(command.commands.values()))
    return command


def summary(command: Any) -> str:
    """Return the first paragraph of a command's help."""
    paragraph: str = (default_of(command).help or "").strip().split("\n\n")[0]
    return paragraph.replace("\n", " ")


def joined() -> list[str]:
    """Return the pairs of files that commands read together, by how they are joined."""
    table = Path(__file__).with_name("pairs.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in table.splitlines()]
    lines: list[str] = []
    for rule, meaning in JOINED.items():
        lines += [".PP", roff(meaning)]
        for how, command, pair in rows:
            if how == rule:
                lines += [".TP", f".B {roff(command)}", roff(pair)]
    return lines


def page(name: str, command: Any) -> str:
    """Return one man page in roff."""
    children = getattr(command, "commands", {})
    shown = default_of(command)
    head, _, examples = (shown.help or "").replace("\r", "").partition("Examples:")
    path = name.replace("-", " ", 1)
    lines = [
        f'.TH {roff(name.upper())} 1 "" "vgtools {__version__}" "vgtools"',
        ".SH NAME",
        roff(f"{name} - {summary(command).rstrip('.')}"),
        ".SH SYNOPSIS",
        roff(usage(shown, path)),
        ".SH DESCRIPTION",
        *paragraphs(head),
        ".SH OPTIONS",
        *options(shown, path),
    ]
    for child, inner in sorted(children.items()) if name != "vg" else ():
        if inner is shown or inner.hidden:
            continue
        call = f"{path} {child}"
        lines += [f".SH {roff(call.upper())}", roff(usage(inner, call))]
        lines += [*paragraphs(inner.help or ""), *options(inner, call)]
    if name == "vg":
        lines += [".SH COMMANDS"]
        for child in COMMANDS:
            lines += [".TP", f".B {roff('vg ' + child)}", roff(summary(children[child]))]
        lines += [".SH FILES THAT ARE READ TOGETHER", *joined()]
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
    result = {"vg.1": page("vg", tree)}
    for name in COMMANDS:
        result[f"vg-{name}.1"] = page(f"vg-{name}", tree.commands[name])
    return result


def main() -> int:
    """Write the pages, or compare them with the pages that would be written."""
    folder = Path(__file__).parent
    expected = pages()
    actual = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.1")}
    if "--check" not in sys.argv[1:]:
        for stale in actual.keys() - expected.keys():
            (folder / stale).unlink()
        for name, text in expected.items():
            (folder / name).write_text(text, encoding="utf-8")
        return 0
    changed = sorted(n for n in actual.keys() | expected.keys() if actual.get(n) != expected.get(n))
    if changed:
        print(f"stale: {', '.join(changed)}; run `make man` and commit the pages", file=sys.stderr)
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
