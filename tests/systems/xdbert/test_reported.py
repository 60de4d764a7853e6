"""The paper's numbers: the text's own sums and gains, and the layout of its tables."""

from __future__ import annotations

from typing import Any

import pytest

from vgtools.io.errors import DataError
from vgtools.reports.tables import reported, score_table


def by_run(table: int) -> dict[str, dict[str, Any]]:
    return {
        row["run"]: {task: cell["mean"] for task, cell in row["tasks"].items()}
        for row in reported(f"xdbert:{table}")
    }


def test_table_1_is_read_as_it_is_printed() -> None:
    headings, rows, remarks, _ = score_table(reported("xdbert:1"))
    tasks = "SST-2 QNLI QQP MNLI SWAG CoLA MRPC STS-B RTE"
    assert headings == ["Run", *tasks.split(" "), "READ ↓", "Avg."]
    assert rows[0] == ["CLIP-T (reported)", *["-"] * 5, "25.41", "76.2", "22.07", "51.62", "-", "-"]
    assert rows[-1][-2:] == ["0.635", "-"]
    assert remarks[-1].startswith("Reported: Hsu et al. 2022, Table 1; its models")


def test_rows_that_differ_in_the_second_decimal_are_told_apart() -> None:
    """Table 3: STS-B has 89.32, 89.29 and 89.31."""
    headings, rows, *_ = score_table(reported("xdbert:3"))
    column = headings.index("STS-B")
    sts_b = ["89.32", "88.8", "89.29", "89.32", "89.31", "-", "89.1"]
    assert [row[column] for row in rows] == sts_b


def test_the_gains_that_the_text_claims() -> None:
    """Section 4: +2.74 % on RTE; Table 1: each XD row is above its student where data are few."""
    first = by_run(1)
    for student in ("BERT-b", "ELECTRA-b", "ELECTRA-l"):
        for task in ("rte", "mrpc", "sts-b", "cola", "sst-2", "qnli", "mnli", "swag"):
            assert first[f"XD{student}"][task] > first[student][task], (student, task)
    assert first["XDELECTRA-l"]["commonlit"] < first["ELECTRA-l"]["commonlit"]
    assert by_run(3)["MLM+MATCH+CLIPTC (proposed)"]["rte"] == first["XDBERT-b"]["rte"]
    (rte, *_) = reported("xdbert:4", "examples")
    assert round(100 * rte["accumulated"] / rte["seeds"][0] / rte["examples"], 2) == rte["percent"]


def test_table_7_is_table_3_of_vokenization() -> None:
    """Beside a name and an order of rows, the copies agree."""
    copied = sorted(tuple(row.values()) for row in by_run(7).values())
    source = {row["run"]: row["tasks"] for row in reported("vokenization:3")}
    first = [r for name, r in source.items() if not name.startswith(("BERT", "ViLBERT"))]
    rows = [*first, source["BERT base"]]
    assert copied == sorted(tuple(cell["mean"] for cell in row.values()) for row in rows)


def test_rows_shrink_to_what_is_printed() -> None:
    counts = {run: len(cells) for run, cells in by_run(3).items()}
    assert list(counts.values()) == [4, 4, 4, 4, 4, 2, 3]
    assert [len(cells) for cells in by_run(8).values()] == [9, 9, 10]


def test_other_tables_have_names() -> None:
    assert [row["pwcca"] for row in reported("xdbert:2", "pwcca")] == [
        0.5498,
        0.4980,
        0.4645,
        0.3569,
    ]
    assert reported("2", "pwcca") == reported("xdbert:2", "pwcca")
    sizes = {row["model"]: row for row in reported("xdbert:6", "sizes")}
    assert sizes["XELECTRA-l"]["parameters"] == 442_671_617
    assert reported("xdbert:4", "sizes")[2]["max_length"] == 77
    assert [row["task"] for row in reported("xdbert:4", "examples")] == ["rte", "mrpc", "cola"]
    with pytest.raises(DataError, match="no table 'xdbert:9' of sizes; known are xdbert:4, 6"):
        reported("xdbert:9", "sizes")
