"""Make the pictures of the site: `python docs/pictures.py`, with Chromium installed.

All show OpenMoji's pictures (CC BY-SA 4.0), which `builtin:emoji` finds for the texts of the pages.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode

# The driver of the tests, and vgtools of the tree that this file lies in.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import vgtools as vg
from tests.reports.cdp import Browser

TEXTS = ["A dog runs on the beach.", "She drinks coffee in the morning."]
ASSETS = Path(__file__).parent / "pages/assets"


def take(browser: Browser, name: str) -> None:
    """Write the window as it looks once its pictures have been loaded."""
    while browser.js("!document.images.length || [...document.images].some(i => !i.complete)"):
        time.sleep(0.5)
    time.sleep(2)  # An answer may bring more pictures.
    shot = browser.call("Page.captureScreenshot", format="png")["data"]
    (ASSETS / name).write_bytes(base64.b64decode(shot))


def served(browser: Browser) -> None:
    """Take the page of `vg serve` with a word that was clicked."""
    command = [sys.executable, "-m", "vgtools", "serve", "--index", "builtin:emoji", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        query = urlencode({"t": "\n".join(TEXTS), "w": "0.1"})
        browser.visit(f"{address}#{query}", 900, 720)
        take(browser, "serve.png")
        server.terminate()


def notebook(browser: Browser) -> None:
    """Take the rows of `vg.vokenize` as a notebook draws them."""
    rows = vg.vokenize(TEXTS, vg.open_index("builtin:emoji"))
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "rows.html")
        page.write_text(f"<meta charset=utf-8><body>{rows._repr_html_()}", encoding="utf-8")
        browser.open(page, 560, 270)
        take(browser, "notebook.png")


if __name__ == "__main__":
    with Browser() as chromium:
        served(chromium)
        notebook(chromium)
