"""Every `vg` line of README, the reference, CONTRIBUTING, the notes and logs of examples and the
help parses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.examples import calls
from tests.examples.make import ROOT
from vgtools.commands.topics import marked

TEXTS = sorted(
    str(path.relative_to(ROOT))
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "man" / "reference.md",
        *ROOT.glob("examples/*/*.md"),
        *ROOT.glob("docs/pages/**/*.md"),
    )
)
SITE = str(Path("docs", "pages"))  # `make docs` checks the links of its pages


def helps() -> Iterator[str]:
    """Yield what `vg COMMAND --help` and the man pages say."""
    for command in calls.application().commands.values():
        for inner in getattr(command, "commands", {"": command}).values():
            yield inner.help or ""
            for topic in inner.topics().values():
                yield marked(topic.about)


def blocks(text: str) -> list[str]:
    """Return the code blocks of a text, fenced or indented."""
    found = re.findall(r"^```[a-z]*\n(.*?)^```", text, re.S | re.M)
    rest = re.sub(r"^```[a-z]*\n.*?^```", "", text, flags=re.S | re.M)
    return found + re.findall(r"(?:^ {4}.*\n)+", f"{rest}\n", re.M)


def faults(scripts: list[str], folder: Path) -> list[str]:
    found = []
    for words in calls.record(scripts, folder):
        try:
            calls.parse(words)
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_lines_of_texts_parse(text: str, tmp_path: Path) -> None:
    scripts = [block for block in blocks((ROOT / text).read_text()) if "vg " in block]
    wrong = faults(scripts, tmp_path)
    assert not wrong, "\n" + "\n".join(wrong)


def test_lines_of_the_help_parse(tmp_path: Path) -> None:
    scripts = [block for text in helps() for block in blocks(text)]
    wrong = faults(scripts, tmp_path)
    assert not wrong, "\n" + "\n".join(wrong)
    assert len(scripts) > 50


@pytest.mark.parametrize("text", TEXTS)
def test_commands_in_sentences_exist(text: str) -> None:
    """`vg COMMAND … --flag` in a sentence names a command, and flags that it has."""
    wrong = []
    for line in re.findall(r"`vg ([a-z][^`]+)`", (ROOT / text).read_text()):
        command = calls.application()
        words = line.split()
        while inner := getattr(command, "commands", {}):
            # A system of its own is the first where none is named.
            name = words.pop(0) if words and words[0] in inner else ""
            if not name and command is calls.application():
                break
            command = inner[name or next(iter(inner))]
        known = {flag for parameter in command.params for flag in parameter.opts}
        flags = {word.strip(".,;:") for word in words if word.startswith("--")}
        if command is calls.application() or not flags <= known | {"--help"}:
            wrong.append(f"vg {line}")
    assert not wrong


def anchor(heading: str) -> str:
    """Return the name that a forge gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("text", [text for text in TEXTS if not text.startswith(SITE)])
def test_links_lead_somewhere(text: str) -> None:
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", (ROOT / text).read_text()):
        if link.startswith("https://"):
            continue
        name, _, place = link.partition("#")
        target = (ROOT / text).parent / name if name else ROOT / text
        headings = re.findall(r"(?m)^#+ (.*)$", target.read_text()) if place else []
        if not target.exists() or (place and place not in map(anchor, headings)):
            wrong.append(link)
    assert not wrong
