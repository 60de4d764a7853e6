"""The pages that MkDocs makes from other files: one per command from its help, the reference, and
the notes and logs of the examples.
"""

from __future__ import annotations

import html
import os
import re
import sys
from pathlib import Path
from typing import Any

import typer.main
from mkdocs.structure.files import File
from typer._click.core import Context

# The site describes the tree that it lies in, whichever is installed.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import vgtools
from vgtools.cli import COMMANDS, make_app
from vgtools.commands.topics import FIRST, DefaultGroup, topic_of

ROOT = Path(__file__).resolve().parents[1]
RESEARCH = {
    "worth": "Vision or distillation?",
    "vokenization": "Vokenization",
    "visualbert": "VisualBERT's attention",
    "grounding": "Grounding strategies",
    "visual-awareness": "Visual awareness",
    "xdbert": "XDBERT",
    "compare": "All systems in one table",
    "german": "A matcher in German",
    "cluster": "Clusters",
}


def on_config(config: Any) -> Any:
    """Fill the two sections of the navigation whose pages are made here."""
    commands = [{f"vg {name}": f"reference/vg-{name}.md"} for name in COMMANDS]
    reference = [
        {"Files, exit codes, pipelines": "reference/index.md"},
        {"Python": "reference/python.md"},
        {"Commands": commands},
    ]
    research = [
        {title: [{"Findings": f"research/{name}.md"}, {"Log": f"research/{name}-log.md"}]}
        for name, title in RESEARCH.items()
    ]
    research.insert(0, {"Findings so far": "research/index.md"})
    for section in config.nav:
        if "Reference" in section:
            section["Reference"] = reference
        if "Research" in section:
            section["Research"] = research
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages."""
    for name, text in pages().items():
        files.append(File.generated(config, name, content=text))
    picture = ROOT / "examples/vokenization/page.png"
    files.append(File.generated(config, "assets/page.png", content=picture.read_bytes()))
    return files


def pages() -> dict[str, str]:
    """Return the text of every page that is made, by its name."""
    tree: Any = typer.main.get_command(make_app())
    made = {f"reference/vg-{name}.md": command_page(name, tree) for name in COMMANDS}
    made["reference/python.md"] = python_page()
    for source, target in copied().items():
        made[target] = linked((ROOT / source).read_text("utf-8"), source, target)
    readme = (ROOT / "README.md").read_text("utf-8")
    findings = readme[readme.index("## Findings so far") :].split("\n## ")[0]
    made["research/index.md"] = linked(findings[1:], "README.md", "research/index.md")
    return made


def copied() -> dict[str, str]:
    """Return which page of the site a file of the repository is."""
    names = {"man/reference.md": "reference/index.md"}
    for name in RESEARCH:
        names[f"examples/{name}/NOTES.md"] = f"research/{name}.md"
        names[f"examples/{name}/LOG.md"] = f"research/{name}-log.md"
    return names


def linked(text: str, source: str, target: str) -> str:
    """Return text of a file with the links of its page; files without a page are named as code."""
    places = {
        **copied(),
        "README.md": "index.md",
        "examples/vokenization/page.png": "assets/page.png",
    }

    def link(match: re.Match[str]) -> str:
        shown, address = match.groups()
        name, _, heading = address.partition("#")
        if "://" in address or not name:
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), name))
        if path not in places:
            return f"{shown} (`{path}`)" if shown.strip("`") not in path else f"`{path}`"
        relative = os.path.relpath(places[path], os.path.dirname(target))
        return f"[{shown}]({relative}{'#' + heading if heading else ''})"

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def command_page(name: str, tree: Any) -> str:
    """Return the page of a command: its help, its topics and its sub-commands."""
    command = tree.commands[name]
    lines = [f"# vg {name}", ""]
    children = getattr(command, "commands", {})
    if not children:
        return "\n".join([*lines, *described(command, f"vg {name}")])
    if isinstance(command, DefaultGroup):
        first = next(iter(children))
        lines += [f"`vg {name}` without a sub-command is `vg {name} {first}`.", ""]
    else:
        lines += prose(command.help or "")
    for child, inner in children.items():
        if not inner.hidden:
            call = f"vg {name} {child}"
            lines += [f"## {call}", "", *described(inner, call)]
    return "\n".join(lines)


def described(command: Any, call: str) -> list[str]:
    """Return the usage, description, flags and topics of one command."""
    context = Context(command, info_name=call)
    usage = re.sub(r"\s+", " ", command.get_usage(context).removeprefix("Usage:").strip())
    lines = ["```text", usage, "```", "", *prose(command.help or "")]
    topics: dict[str, Any] = getattr(command, "topics", dict)()
    for topic in (FIRST, *topics.values()):
        if topic:
            lines += [f"**`{call} --help {topic}`**", "", *prose(topic.about)]
        rows = []
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and topic_of(parameter) == topic:
                rows.append(f"| {code(record[0])} | {cell(record[1])} |")
        if rows:
            lines += ["| | |", "|---|---|", *rows, ""]
    return lines


def prose(text: str) -> list[str]:
    """Return help text as Markdown: indented blocks are code."""
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text.replace("\b\n", "").replace("\r", "").strip("\n")):
        if block.startswith("    "):
            lines += ["```sh", *(line[4:] for line in block.splitlines()), "```", ""]
        else:
            lines += [cell(" ".join(block.split())), ""]
    return lines


def cell(text: str) -> str:
    """Return text whose characters have no meaning in Markdown or a table."""
    escaped = re.sub(r"([\\`*_{}\[\]#|~])", r"\\\1", text)
    return html.escape(escaped, quote=False)


def code(text: str) -> str:
    """Return a flag as code in a cell of a table."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"


def python_page() -> str:
    """Return the page of the public names, whose text is in their docstrings."""
    lines = ["# Python", "", "`import vgtools as vg` gives these names and no others.", ""]
    lines += [f"::: vgtools.{name}\n" for name in vgtools.__all__]
    return "\n".join(lines)
