"""`vg compare words` and `sizes`: records, tables, the paper's rows, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import save_encoder
from vgtools.cli import run
from vgtools.io.errors import Exit

CONFIGS = Path(__file__).parents[2] / "examples" / "xdbert" / "configs"
BERT = str(CONFIGS / "bert-base.json")
CLIP = str(CONFIGS / "clip-vit-b32.json")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    save_encoder(tmp_path / "a")
    save_encoder(tmp_path / "b", seed=1)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(capfd: Any, *args: str) -> list[dict[str, Any]]:
    assert run(["compare", *args]) == 0
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def test_words_of_two_encoders(here: Path, capfd: Any) -> None:
    pair, random, *reported = records(capfd, "words", "./a", "./b", "--reported", "xdbert:2")
    assert (pair["first"], pair["second"], random["second"]) == ("./a", "./b", "RANDOM")
    assert pair["n"] == random["n"] == 176
    assert len(reported) == 4
    assert run(["compare", "words", "./a", "./b", "--table", "--reported", "2"]) == 0
    lines = capfd.readouterr().out.splitlines()
    chance = pair["shuffled"]
    assert lines[2] == (
        f"| ./a / ./b | 176 | {pair['pwcca']:.4f} | {chance['pwcca']:.4f} "
        f"({chance['low']:.4f} to {chance['high']:.4f}) | {pair['pwcca'] - chance['pwcca']:+.4f} | "
        f"{pair['mean_cca']:.4f} | {chance['mean_cca']:.4f} |"
    )
    assert lines[4] == "| BERT / ELECTRA (reported) | – | 0.5498 | – | – | – | – |"
    again, _ = records(capfd, "words", "./a", "./b", "--seed", "1")
    assert again["pwcca"] == pair["pwcca"]
    assert again["shuffled"] != pair["shuffled"]


def test_tables_4_and_6(capfd: Any) -> None:
    found = records(capfd, "sizes", BERT, CLIP, "--cross-layers", "2")
    assert [row["parameters"] for row in found] == [109_482_240, 63_428_096, 202_059_009]
    args = ["--cross-layers", "2", "--table", "--reported", "xdbert:6"]
    assert run(["compare", "sizes", BERT, CLIP, *args]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[2] == "| bert-base | 768 | 512 | 12 | 12 | 109,482,240 |"
    joined = "bert-base + clip-vit-b32, 2 cross-modal layers"
    assert lines[4] == f"| {joined} | – | – | – | – | 202,059,009 |"
    assert lines[6] == "| XBERT-b / XELECTRA-b (reported) | – | – | – | – | 202,059,009 |"
    assert lines[-1] == "Reported in Hsu et al. 2022, Table 6."


@pytest.mark.parametrize(
    ("args", "code", "why"),
    [
        (["words", "./a", "--median"], Exit.USAGE, "No such option: --median"),
        (["sizes", "./a", "--split", "test"], Exit.USAGE, "No such option: --split"),
        (["./a", "--words", "w.txt"], Exit.USAGE, "No such option: --words"),
        (["./a", "--cross-layers", "2"], Exit.USAGE, "No such option: --cross-layers"),
        (["words"], Exit.USAGE, "Missing argument 'VECTORS'"),
        (["sizes", BERT, "--cross-layers", "2"], Exit.USAGE, "needs a CLIP and a language"),
        (["words", "./a", "./nothing"], Exit.NO_INPUT, "is not a model directory"),
        (["words", "./a", "./b", "--words", "w.txt"], Exit.DATA, "3 common words, but 16 and 16"),
        (["words", "./a", "--reported", "xdbert:1"], Exit.USAGE, "known are xdbert:2"),
        (["weights", "./a", "./b", "--reported", "1"], Exit.USAGE, "No such option: --reported"),
    ],
)
def test_mistakes_are_named(here: Path, capfd: Any, args: list[str], code: int, why: str) -> None:
    (here / "w.txt").write_text("ban\nbam\nlum\nunknown\n")
    assert run(["compare", *args]) == code
    captured = capfd.readouterr()
    assert why in captured.err
    assert captured.out == ""


def test_rows_of_a_paper_alone(here: Path, capfd: Any) -> None:
    assert run(["compare", "--reported", "xdbert:7", "--table"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "| Run | SST-2 | QNLI | QQP | MNLI | Avg. |"
    assert lines[5] == "| LXMERT (42.0e-3) (reported) | 82.4 | 50.5 | 79.8 | 31.8 | - |"
    assert len(records(capfd, "--reported", "xdbert:8")) == 3
    for args in ([], ["--reported", "7", "--median"]):
        assert run(["compare", *args]) == Exit.USAGE
        assert "name a run of vg finetune" in capfd.readouterr().err


def test_rows_of_a_table_without_scores_alone(here: Path, capfd: Any) -> None:
    assert run(["compare", "--reported", "vokenization:1", "--table"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[2].startswith("| MS COCO | 7,000,000 | 600,000 | 9,000 | 11.8 | 0.15 |")
    assert lines[-1] == "Reported in the paper."
    assert run(["compare", "--reported", "grounding:2", "--table"]) == 0
    assert "| Transferred i2t | 0/1 | Wiki-BC 30.0, COCO 4.6 |" in capfd.readouterr().out
    assert [row["head"] for row in records(capfd, "--reported", "visualbert:2")][:2] == [
        None,
        "10-1",
    ]
    for table in ("grounding:1", "grounding:4", "xdbert:2", "xdbert:4", "xdbert:6"):
        assert records(capfd, "--reported", table)[0]["source"].endswith(f"Table {table[-1]}")
    assert run(["compare", "--reported", "xdbert:9"]) == Exit.USAGE
