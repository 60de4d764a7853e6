"""Tables of scores and corpora, and the tables of papers beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny.finetune import save_finetuned
from vgtools.io import DataError, Exit
from vgtools.reports.tables import (
    Table,
    corpora_table,
    corpus_name,
    markdown,
    reported,
    score_table,
)
from vgtools.systems.vokenization.reported import corpora
from vgtools.tasks import compare

GOLD = [0, 1, 1, 0, 1, 0, 1, 1]
RIGHT = {"1": GOLD, "2": [1 - GOLD[0], *GOLD[1:]]}  # 100 and 87.5 % right
POOR = {"1": [1 - x for x in GOLD[:4]] + GOLD[4:], "2": [1 - x for x in GOLD[:6]] + GOLD[6:]}


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """Two models on two tasks; the second also on SQuAD."""
    for name, said in (("mlm", POOR), ("vokens", RIGHT)):
        save_finetuned(tmp_path / name / "a", "sst-2", GOLD, said)
        save_finetuned(tmp_path / name / "b", "qqp", GOLD, said)
    save_finetuned(tmp_path / "vokens" / "c", "squad-1.1", ["Bo", "Ann Lee"], {"1": ["Bo", "Ann"]})
    return [str(tmp_path / "mlm"), str(tmp_path / "vokens")]


def test_layout(two: list[str]) -> None:
    rows_of = compare.read_rows(two)
    found = [*compare.compare(rows_of, samples=300), reported("2")[0]]
    found[1]["tasks"]["sst-2"]["difference"] |= {"p": 0.0004, "significant": True}
    found[1]["tasks"]["qqp"]["difference"] |= {"p": 0.25, "significant": False}
    headings, rows, remarks, _ = score_table(found)
    assert headings == [
        "Run",
        "SST-2",
        "QNLI",
        "QQP",
        "MNLI",
        "SQuAD v1.1 EM/F1",
        "SQuAD v2.0 EM/F1",
        "SWAG",
        "Avg.",
    ]
    assert rows[1][:3] == ["vokens", "93.8 ± 8.8 *", "-"]
    assert rows[1][5] == "50.0/83.3"
    assert rows[2][:2] == ["  less mlm", "+56.2 (p < 0.001)"]
    assert rows[2][3].endswith("(p 0.250)")
    assert rows[3] == [
        "BERT 6L/512H (reported)",
        "88.0",
        "85.2",
        "87.1",
        "77.9",
        "71.3/80.2",
        "57.2/60.8",
        "56.2",
        "75.6",
    ]
    assert remarks[0].endswith("over seeds. QQP: mean of F1 and accuracy.")
    assert "the tasks that all rows have (SST-2, QQP)" in remarks[1]
    assert score_table(found, bold=True)[1][1][1] == "**93.8** ± 8.8"
    found[1]["tasks"]["sst-2"]["difference"]["value"] = -1.0
    assert score_table(found)[1][1][1] == "93.8 ± 8.8 †"


def test_tables_of_papers_have_names() -> None:
    assert reported("vokenization:2") == reported("2")
    assert reported("6")[0]["run"] == "Random"
    first = reported("grounding:3")[0]
    assert (first["run"], first["tasks"]["joci"], first["average"]) == (
        "Albert-base",
        {"mean": 6.7},
        63.4,
    )
    for name in ("7", "1", "visualbert:2", "vokenization:", "vokenization:x", ":"):
        with pytest.raises(DataError, match="known are vokenization:2, 3, 4, 5, 6") as caught:
            reported(name)
        assert caught.value.code == Exit.USAGE


def test_reported_corpora_are_marked() -> None:
    measured = {
        "corpus": "a|b.txt",
        "tokenizer": "words",
        "tokens": 1200,
        "sentences": 100,
        "vocabulary": 0,
        "tokens_per_sentence": 12.0,
    }
    assert corpus_name(corpora()[0]) == "MS COCO (reported in the paper)"
    lines = markdown(corpora_table([measured, *corpora()])).splitlines()
    assert lines[2] == "| a\\|b.txt | 1,200 | 100 | 0 | 12.0 | – | – | – |"
    assert lines[3].startswith("| MS COCO (reported in the paper) | 7,000,000 |")
    only = markdown(corpora_table([measured]))
    assert "JSD" not in only
    assert "Reported" not in only


def test_markdown_keeps_bars_inside_their_cell() -> None:
    table = Table(["Run", "A"], [["x|y", "1"]], ["Note."])
    assert markdown(table) == "| Run | A |\n|---|--:|\n| x\\|y | 1 |\n\nNote.\n"
