"""The paper's numbers as its text has them, and the tables that show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tiny.finetune import save_finetuned
from vgtools.io.errors import DataError
from vgtools.reports.tables import reported, score_table
from vgtools.tasks.compare import compare, read_rows


def cells(table: int) -> dict[str, list[str]]:
    """Return the cells of a table, without Avg., by the name of its row."""
    rows = score_table(reported(f"visualbert:{table}")).rows
    return {row[0].removesuffix(" (reported)"): list(row[1:-1]) for row in rows}


def test_table_1_is_the_tests_of_tables_3_to_6() -> None:
    headings, *_ = score_table(reported("visualbert:1"))
    assert headings[1:-1] == ["NLVR2", "VQA 2.0", "Flickr30k Entities", "VCR Q→AR"]
    table = cells(1)
    assert table["Baseline, test"] == ["53.5", "68.71", "69.69", "44.0"]
    ours = table["VisualBERT, test"]
    assert ours == ["67.3", "70.8", "71.33", "52.4"]
    parts = cells(5)["VisualBERT, Test-U"][0], cells(3)["VisualBERT, test-dev"][0]
    parts += cells(6)["VisualBERT, test"][0], cells(4)["VisualBERT, test"][2]
    assert list(parts) == ours


@pytest.mark.parametrize(
    ("table", "count", "row", "values"),
    [
        (3, 14, "VisualBERT w/o Early Fusion, test-dev", ["68.18"]),
        (3, 14, "VisualBERT w/o COCO Pre-training, test-dev", ["70.18"]),
        (4, 9, "VisualBERT w/o Early Fusion, dev", ["70.1", "71.9", "50.6"]),
        (4, 9, "VisualBERT w/o COCO Pre-training, dev", ["67.9", "69.5", "47.9"]),
        (4, 9, "VisualBERT with a fixed ResNet50, dev", ["-", "-", "51.4"]),
        (4, 9, "VisualBERT, dev", ["70.8", "73.2", "52.2"]),
        (5, 15, "VisualBERT, Test-U", ["67.3", "26.9"]),
        (5, 15, "VisualBERT, 9 regions, dev", ["64.8", "-"]),
        (6, 6, "VisualBERT, dev", ["70.4", "84.49", "86.31", "86.97"]),
        (6, 6, "VisualBERT w/o COCO Pre-training, dev", ["68.07", "83.98", "86.24", "86.97"]),
    ],
)
def test_rows_of_the_tables(table: int, count: int, row: str, values: list[str]) -> None:
    found = cells(table)
    assert len(found) == count
    assert found[row] == values


def test_table_7() -> None:
    short = {name.removeprefix("VisualBERT"): cell for name, (cell,) in cells(7).items()}
    assert short == {
        ", dev": "66.7",
        " w/o Grounded Pre-training, dev": "63.9",
        " w/o COCO Pre-training, dev": "62.9",
        " w/o Early Fusion, dev": "61.4",
        " w/o BERT Initialization, dev": "64.7",
        " w/o Objective 2, dev": "64.9",
    }


def test_heads_are_those_of_section_3() -> None:
    rows = reported("visualbert:2", "heads")
    assert [(r["baseline"], r["accuracy"]) for r in rows[:2]] == [(17.33, 50.77), (19.59, 54.01)]
    assert [r["head"] for r in rows] == [
        None, "10-1", "11-11", "10-9", "5-1", "9-11", "11-11", "3-6", "4-9", "10-9", "9-11"
    ]  # fmt: skip
    assert all(r["baseline"] < r["accuracy"] for r in rows)


def test_other_tables_are_refused() -> None:
    with pytest.raises(DataError, match="visualbert:1, 3, 4, 5, 6, 7"):
        reported("visualbert:2")


def test_runs_have_the_columns_of_the_paper(tmp_path: Path) -> None:
    """Q→AR by hand: of four questions the answers 0, 1, 2 and the rationales 1, 2, 3 are right."""
    gold = [0, 1, 2, 3]
    said: dict[str, Any] = {"1": [0, 1, 2, 0], "2": [0, 0, 0, 0]}
    save_finetuned(tmp_path / "m" / "qa", "vcr-qa", gold, said)
    save_finetuned(tmp_path / "m" / "qar", "vcr-qar", gold, {"1": [3, 1, 2, 3], "3": gold})
    save_finetuned(tmp_path / "m" / "nlvr2", "nlvr2", [1, 0], {"1": [1, 0]})
    (record,) = compare(read_rows([str(tmp_path / "m")]), samples=100)
    assert record["tasks"]["vcr-qar"]["metrics"]["q2ar_accuracy"]["mean"] == 50.0  # of seed 1
    headings, rows, *_ = score_table([record, *reported("visualbert:4")])
    at = headings.index("VCR Q→AR")
    assert (rows[0][at], rows[1][at]) == ("50.0", "43.1")
    assert rows[0][headings.index("NLVR2 consistency")] == "100.0"
    assert rows[1][headings.index("NLVR2 consistency")] == "-"
