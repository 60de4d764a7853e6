"""`make docs`: the site is built, strictly, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples.make import ROOT
from vgtools import __all__
from vgtools.cli import COMMANDS


@pytest.mark.slow
def test_site_is_built_without_a_warning(tmp_path: Path) -> None:
    given = ["--strict", "-q", "-d", str(tmp_path), "-f", str(ROOT / "docs/mkdocs.yml")]
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *given],
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in COMMANDS:
        assert "[OPTIONS]" in (tmp_path / f"reference/vg-{name}.html").read_text()
    names = re.findall(r'id="vgtools\.(\w+)"', (tmp_path / "reference/python.html").read_text())
    assert sorted({*names} & {*__all__}) == sorted(__all__)
    loads = r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)|<link[^>]* href="(https?:[^"]+)'
    for page in tmp_path.rglob("*.html"):
        assert not re.findall(loads, page.read_text()), page
