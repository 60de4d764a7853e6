"""The paper's numbers: averages are means of columns, tasks have the labels of Table 4."""

from __future__ import annotations

import pytest

from vgtools.reports.tables import reported, score_table
from vgtools.tasks.table import find_task


def test_table_3_averages_its_six_tasks() -> None:
    for row in reported("grounding:3"):
        values = [cell["mean"] for cell in row["tasks"].values()]
        assert len(values) == 6
        assert row["average"] == pytest.approx(sum(values) / 6, abs=0.0501), row["run"]


def test_table_3_names_its_source() -> None:
    headings, rows, remarks, _ = score_table(reported("grounding:3"))
    assert headings[1:] == ["RTE", "JOCI", "PDTB", "SICK", "VUA", "VUAN", "Avg."]
    assert rows[0] == [
        "Albert-base (reported)",
        "68.0",
        "6.7",
        "49.6",
        "88.2",
        "82.7",
        "85.0",
        "63.4",
    ]
    source = "Reported: Sileo 2021, Table 3; its models, data and Avg. are its own."
    assert remarks == [remarks[0], source]
    assert remarks[0].endswith("JOCI: Spearman.")


def test_tasks_have_the_classes_of_table_4() -> None:
    for row in reported("grounding:4", "task_sizes"):
        assert len(find_task(row["task"]).labels) == (row["labels"] or 0), row["task"]


def test_tables_of_perplexity() -> None:
    first = reported("grounding:1", "perplexities")
    assert [row["reported"]["COCO"] for row in first] == [8.4, 4.6, 4.6, 4.0, 4.2]
    assert [row["run"] for row in first[:2]] == ["no image", "1 × EfficientNet-1280"]
    rows = {row["run"]: row["reported"] for row in reported("grounding:2", "perplexities")}
    assert len(rows) == 9
    assert rows["Transferred t2i"] == {"Wiki-BC": 41.6}
    assert rows["Associative (object-based), K 1"] == {"Wiki-BC": 9.0, "COCO": 35.6}
