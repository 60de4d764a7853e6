"""Help in parts: what is on the first screen, what under a topic, and how long a part may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer

from tests.examples.calls import application
from vgtools import cli
from vgtools.commands.options import Flag
from vgtools.commands.signature import flags
from vgtools.commands.topics import FIRST, Command, DefaultGroup, Topic

MOST_WORDS = 600
MOST_FLAGS = 25
RATES = Topic("rates", "How fast.\n\nMore of it.\n\nExamples:\n\n    vg learn --lr 1 --warmup 2")


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How it learns."""

    lr: Annotated[float, Flag(help="The rate."), FIRST] = 1.0
    warmup: Annotated[float, Flag(help="Its rise.")] = 0.0


@flags
def learn(
    context: typer.Context,
    name: str = "x",
    learning: Annotated[Learning, RATES] = Learning(),
    clip: Annotated[float, Flag(help="The norm."), RATES] = 2.0,
) -> None:
    """Learn a thing."""
    print(name, learning, clip)


def other() -> None:
    """Do another thing."""


@pytest.fixture(params=["command", "group"])
def app(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `vg learn` be this command, or the first of a group."""
    made = typer.Typer(rich_markup_mode=None, add_completion=False)
    if request.param == "command":
        made.callback()(lambda: None)
        made.command("learn", cls=Command)(learn)
    else:
        inner = typer.Typer(cls=DefaultGroup, rich_markup_mode=None)
        inner.command("learn", cls=Command)(learn)
        inner.command("other", cls=Command)(other)
        made.add_typer(inner, name="learn")
        made.command("more")(lambda: None)
    monkeypatch.setattr(cli, "make_app", lambda _: made)


def said(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert cli.run(["learn", *args]) == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("app")
def test_help_is_a_first_screen_and_a_page_per_topic(capsys: pytest.CaptureFixture[str]) -> None:
    first = said(capsys, "--help")
    assert "Learn a thing." in first
    assert "--lr" in first
    assert "--warmup" not in first
    assert "--clip" not in first
    assert re.search(r"--help rates +How fast\.\n", first)
    assert "More of it" not in first
    page = said(capsys, "--help", "rates")
    assert "Learn a thing." not in page
    assert re.search(r"How fast\.\n\n +More of it\.\n\n +Examples:\n\n +vg learn --lr 1", page)
    assert re.search(r"--warmup <float> +Its rise\..*--clip <float> +The norm\.", page, re.S)
    assert "The rate." not in page
    assert "Its rise." in said(capsys, "--name", "y", "--help", "rates"), "after other flags"


@pytest.mark.usefixtures("app")
def test_a_word_that_is_no_topic_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--name", "x", "--help", "x") == said(capsys, "--name", "x", "--help")
    assert said(capsys, "--warmup", "3") == f"x {Learning(warmup=3.0)} 2.0\n"


def parts() -> Iterator[tuple[str, str | None]]:
    """Yield every command with sub-commands and each of its topics, as words after `vg`."""

    def of(command: Any, words: str) -> Iterator[tuple[str, str | None]]:
        yield words, None
        for topic in getattr(command, "topics", dict)():
            yield words, topic
        for name, inner in getattr(command, "commands", {}).items():
            yield from of(inner, f"{words} {name}")

    for name, command in application().commands.items():
        yield from of(command, name)


@pytest.mark.parametrize(("words", "topic"), list(parts()))
def test_no_help_is_long(words: str, topic: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([*words.split(), "--help", *([topic] if topic else [])]) == 0
    text = capsys.readouterr().out
    assert len(text.split()) <= MOST_WORDS, "shorten it, or move flags that few need to a topic"
    options = text.partition("\nOptions:\n")[2].partition("\n\n")[0]
    shown = re.findall(r"^  -.*", options, re.M)
    assert 0 < len(shown) <= MOST_FLAGS, "move flags that few need to a topic (commands/topics.py)"


def named(words: str) -> Any:
    """Return the command of these words after `vg`."""
    command = application()
    for word in words.split():
        command = command.commands[word]
    return command


def test_each_flag_has_a_help() -> None:
    """It is in the docstring that declares it, where a missing entry would not show."""
    for words, name in parts():
        if name is None:
            silent = [one.name for one in named(words).params if not getattr(one, "help", "")]
            assert not silent, words


@pytest.mark.parametrize(("words", "topic"), list(parts()))
def test_names_of_examples_do_not_share_a_manifest(
    words: str, topic: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*words.split(), "--help", *([topic] if topic else [])]) == 0
    examples = capsys.readouterr().out.partition("\nExamples:\n")[2].partition("\nOptions:\n")[0]
    made = re.findall(r"(?:-o|--vectors) (\S+)\.(?:npy|faiss|jsonl)(?=\s)", examples)
    for stem in made:
        kinds = set(re.findall(rf"(?<![\w/.]){re.escape(stem)}\.(npy|faiss|jsonl)(?=\s)", examples))
        assert len(kinds) == 1, f"the manifests of {stem}.{kinds} have one name"


def test_a_topic_has_a_summary_and_a_page_of_its_own() -> None:
    for words, name in parts():
        if name is None:
            continue
        about = named(words).topics()[name].about
        assert about.partition("\n")[0].endswith("."), (words, name)
        assert name.isalpha()
        assert name.islower()
