"""Manual pages: found in every kind of install, by man and without it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import vgtools
from vgtools.cli import COMMANDS, run
from vgtools.commands import man

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let vg be installed by a wheel: its pages are where a record of files says."""
    site = tmp_path / "env" / "lib" / "site-packages"
    pages = tmp_path / "env" / "share" / "man" / "man1"
    info = site / "vgtools-0.1.0.dist-info"
    shutil.copytree(ROOT / "man", pages)
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vgtools\nVersion: 0.1.0\n")
    names = ["vg.1", *(f"vg-{name}.1" for name in COMMANDS)]
    record = "".join(f"../../share/man/man1/{name},,\n" for name in names)
    (info / "RECORD").write_text(f"vgtools/__init__.py,,\n{record}")
    found = importlib.metadata.PathDistribution(info)
    monkeypatch.setattr(importlib.metadata, "files", lambda name: found.files)
    monkeypatch.setattr(vgtools, "__file__", str(site / "vgtools" / "__init__.py"))
    return pages


def test_the_page_of_a_clone_is_shown(capfd: pytest.CaptureFixture[str]) -> None:
    assert man._page("vg-vokenize") == ROOT / "man" / "vg-vokenize.1"
    if shutil.which("man") is None:
        pytest.skip("needs man")
    assert run(["man", "vokenize"]) == 0
    shown = capfd.readouterr().out
    assert "VG-VOKENIZE(1)" in shown
    assert "EXIT STATUS" in shown


def test_the_page_of_a_wheel_is_found(wheel: Path) -> None:
    for name in ("vg", "vg-push"):
        assert man._page(name) == wheel / f"{name}.1"


def test_without_man_the_page_is_text(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    for name in COMMANDS:
        assert run(["man", name]) == 0
        shown = capfd.readouterr().out
        assert shown.startswith(f"NAME\n    vg-{name} - "), shown[:60]
        assert "\nEXIT STATUS\n    0\n        Success.\n" in shown
        assert not re.search(r"^ *\.[A-Z]{1,2}\b", shown, re.M), "macros of troff"
        assert "\\-" not in shown
        assert "\\(" not in shown
        assert "\\[u" not in shown


def test_a_wrong_name_and_missing_pages_are_named(
    wheel: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["man", "vokenise"]) == 2
    why = "vg: there is no command 'vokenise'; vg man lists all of them\n"
    assert capfd.readouterr().err == why
    shutil.rmtree(wheel)
    assert run(["man", "vokenize"]) == 66
    why = "vg: the manual pages are not installed here; vg vokenize --help has most\n"
    assert capfd.readouterr().err == why


@pytest.mark.skipif(shutil.which("man") is None, reason="needs man")
def test_man_finds_the_pages_of_make_install(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    command = ["make", "--no-print-directory", "-C", str(ROOT), "manpages", f"VENV={venv}"]
    subprocess.run(command, check=True, capture_output=True)
    environment = {name: value for name, value in os.environ.items() if name != "MANPATH"}
    environment["PATH"] = f"{venv / 'bin'}:{environment['PATH']}"
    for name in ("vg", "vg-vokenize", "vg-man"):
        found = subprocess.run(
            ["man", "-w", name], env=environment, capture_output=True, text=True, check=True
        )
        assert Path(found.stdout.strip()).resolve() == ROOT / "man" / f"{name}.1"
