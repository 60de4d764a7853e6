"""Every block of every page of the site that a reader runs, run in its order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.given import GIVEN, settings
from tests.examples.make import ROOT, environment, preloaded

PAGES = ROOT / "docs/pages"


@pytest.fixture(scope="module")
def vg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the command `vg`, which is forked from a process that has imported torch."""
    folder = tmp_path_factory.mktemp("bin")
    with preloaded(folder) as command:
        (folder / "vg").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / "vg").chmod(0o755)
        yield folder


def script(text: str, own_tree: bool) -> str:
    """Return the blocks of a page as one shell script, which ends at the first that fails."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", text, re.S | re.M)
    assert {kind for kind, _ in blocks} <= {"sh", "python", "diff", "text"}, "a block of no kind"
    lines = ["set -euo pipefail"]
    if own_tree:
        # The reader changes the program: its commands are not forked from the unchanged one.
        lines.append('vg() { PYTHONPATH=$PWD "$PYTHON" -m vgtools "$@"; }')
    python = ""
    for kind, block in blocks:
        if kind == "sh":
            lines.append(block)
        elif kind == "diff":
            lines.append(f"git apply - <<'END OF BLOCK'\n{block}END OF BLOCK")
        elif kind == "python":
            # Cells share their names: each block runs after those before it.
            python += block
            lines.append(f"\"$PYTHON\" - <<'END OF BLOCK'\n{python}END OF BLOCK")
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", GIVEN)
def test_blocks_of_a_page_run(page: str, vg: Path, tmp_path: Path) -> None:
    GIVEN[page](tmp_path)
    own = {"PATH": f"{vg}:{os.environ['PATH']}", "PYTHON": sys.executable, "VG": str(vg / "vg")}
    done = subprocess.run(
        ["bash", "-c", script((PAGES / f"{page}.md").read_text(), page == "tutorials/extend")],
        cwd=tmp_path,
        env=environment() | settings(page, tmp_path) | own,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert made >= MADE.get(page, set())


# Files that the reader opens.
MADE = {
    "index": {"demo.html", "vokens.html"},
    "tutorials/own-photos": {"curves.html", "vokens.html", "found.html", "plain/run.json"},
    "tutorials/clip": {"vokens.html", "found.jsonl"},
    "tutorials/paper": {"examples/visualbert/small/probe/page.html"},
    "tutorials/cluster": {"grounded/run.json"},
    "tutorials/extend": {"sentences.txt", "hardest/run.json"},
}


def test_every_tutorial_is_run() -> None:
    pages = {str(path.relative_to(PAGES).with_suffix("")) for path in PAGES.rglob("*.md")}
    assert pages == GIVEN.keys()
