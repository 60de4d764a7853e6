"""The paper's numbers: its gains, and the table that shows them."""

from __future__ import annotations

import pytest

from vgtools.io.errors import DataError
from vgtools.reports.tables import reported, score_table


@pytest.mark.parametrize(
    ("table", "task", "count", "gain"), [(2, "snli", 7, 0.5), (3, "conll-2003", 4, 0.25)]
)
def test_the_last_two_rows_are_the_papers_own(
    table: int, task: str, count: int, gain: float
) -> None:
    rows = reported(f"visual-awareness:{table}")
    assert len(rows) == count
    base, ours = (row["tasks"][task]["mean"] for row in rows[-2:])
    assert ours - base == pytest.approx(gain)
    assert [row["run"] for row in rows[-2:]] == ["BERT base", "BERT base +VA"]


def test_the_table_names_its_source() -> None:
    headings, rows, remarks, _ = score_table(reported("visual-awareness:2"))
    assert headings == ["Run", "SNLI", "Avg."]
    assert rows[-1] == ["BERT base +VA (reported)", "91.2", "-"]
    assert remarks[-1].startswith("Reported: Zhang et al. 2019, Table 2")


@pytest.mark.parametrize(("table", "score"), [(1, "27.83"), (3, "91.46")])
def test_the_table_has_the_papers_decimals(table: int, score: str) -> None:
    rows = score_table(reported(f"visual-awareness:{table}")).rows
    assert rows[-1][1] == score


def test_other_tables_are_refused() -> None:
    with pytest.raises(DataError, match="visual-awareness:1, 2, 3"):
        reported("visual-awareness:5")
