"""The text of table 4 of vokenization that has as many tokens as the captions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.examples.make import ROOT
from tests.tiny.lm import save_tokenizer

SCRIPT = ROOT / "examples/vokenization/reduced.py"


def test_lines_are_printed_until_they_have_the_tokens_of_the_other_text(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path / "t")
    # Unknown words are a token each, and so are signs: 3 + 2 tokens, as in two lines of the text.
    (tmp_path / "captions.txt").write_text("x y .\nz !\n")
    (tmp_path / "text.txt").write_text("a b\nc , d\n\ne\n")

    def reduced(other: str, text: str) -> subprocess.CompletedProcess[str]:
        call = [sys.executable, str(SCRIPT), str(tokenizer), other, text]
        return subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert reduced("captions.txt", "text.txt").stdout == "a b\nc , d\n"
    done = reduced("text.txt", "captions.txt")
    assert done.stdout == "x y .\nz !\n"
    assert done.stderr == "captions.txt is whole: 1 tokens fewer than text.txt\n"
