"""`vg compare examples`: records, examples, figure 4, and what contradicts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.finetune import GOLD, RIGHT, save_answers, save_finetuned, save_rte
from vgtools.cli import run
from vgtools.io.errors import Exit

FIRST = ((0, 1, 1, 1), (0, 1, 0, 1))
SECOND = ((1, 0, 0, 1), (1, 0, 1, 1))
GROUNDED = ["--grounding", "captions.jsonl", "--grounded-above", "1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models on RTE and captions that ground `dog` and `red`."""
    data = {"dev": {"file": str(save_rte(tmp_path / "dev.tsv"))}}
    for name, right in (("bert", FIRST), ("xdbert", SECOND)):
        save_answers(tmp_path / name / "rte", right, data=data)
    (tmp_path / "captions.jsonl").write_text(
        json.dumps({"image": "i", "text": "A red dog, red dog."}) + "\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare(*args: str) -> int:
    return run(["compare", "examples", *args, "-q"])


def test_a_record_a_task_then_its_examples(here: Path, capfd: Any) -> None:
    more = ["--examples", "1", "--reported", "xdbert:4", "--plot", "figure4.svg"]
    assert compare("bert", "xdbert", *GROUNDED, *more) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert found[0]["accumulated"] == 0
    assert found[0]["ratio"]["difference"] == pytest.approx(0.6)
    assert [row["percent"] for row in found[1:4]] == [2.74, 0.3, 0.9]
    assert [row["group"] for row in found[4:]] == ["improved", "on par", "worsened"]
    assert found[4]["texts"] == ["(a) **red** **dog** runs", "(the) **dog** ran"]
    assert "xdbert against bert" in (here / "figure4.svg").read_text()
    assert compare("bert", "xdbert", *GROUNDED, "--plot", "figure4.png") == 0
    from PIL import Image

    with Image.open(here / "figure4.png") as image:
        assert image.width >= 900


def test_markdown_and_counts_alone(here: Path, capfd: Any) -> None:
    assert compare("bert", "xdbert", *GROUNDED, "--table", "--examples", "1") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[2].startswith("| RTE | 1 | 2 | 1 | +0 | +0.00 | 0.600 0.600 0.600; mean 0.600;")
    assert "## RTE, improved" in lines
    assert "xdbert answered correctly: 2/2" in lines
    assert compare("bert", "xdbert") == 0
    (alone,) = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert (alone["improved"], "ratio" in alone) == (1, False)
    (here / "dev.tsv").unlink()
    assert compare("bert", "xdbert") == 0, "without --grounding no text is read"


def test_no_torch_is_needed(here: Path) -> None:
    code = (
        "import sys; from vgtools.cli import run; print(run(sys.argv[1:]), 'torch' in "
        "sys.modules, file=sys.stderr)"
    )
    args = ["compare", "examples", "bert", "xdbert", *GROUNDED, "--plot", "f.svg", "-q"]
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, timeout=60)
    assert done.stderr == b"0 False\n"


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (["bert"], Exit.USAGE, "Missing argument 'RUN'"),
        (["bert", "xdbert", "bert"], Exit.USAGE, "unexpected extra argument"),
        (["bert", "xdbert", "--median"], Exit.USAGE, "No such option: --median"),
        (["bert", "xdbert", "--examples", "2"], Exit.USAGE, "needs --grounding, which marks"),
        (["bert", "xdbert", "--plot", "f.svg"], Exit.USAGE, "belongs to --grounding"),
        (["bert", "xdbert", "--reported", "1"], Exit.USAGE, "of examples; known are xdbert:4"),
        (["bert", "sst", *GROUNDED], Exit.DATA, "no task with classes in common"),
        (["bert", "nothing"], Exit.NO_INPUT, "nothing: does not exist"),
        (["bert", "xdbert", "--split", "test"], Exit.DATA, "no scores of the split 'test'"),
        (
            ["bert", "xdbert", *GROUNDED, "--text", "rte=no.tsv"],
            Exit.NO_INPUT,
            "no.tsv",
        ),
    ],
)
def test_mistakes_are_named(here: Path, capfd: Any, args: list[str], code: int, why: str) -> None:
    save_finetuned(here / "sst", "sst-2", GOLD, RIGHT)
    assert compare(*args) == code
    captured = capfd.readouterr()
    assert why in captured.err
    assert captured.out == ""
