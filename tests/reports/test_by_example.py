"""Table, figure and text of examples that changed: every number at its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.tiny.report import named, svg
from vgtools.reports.by_example import examples_table, examples_text, ratio_figure
from vgtools.reports.tables import reported
from vgtools.tasks.by_example import Answers
from vgtools.tasks.table import find_task

# Of twelve examples six are improved, five worsened; all tokens but one are content.
RATIOS = [0.1, 0.2, 0.3, 0.4, 0.5, 1.0, 0.2, 0.2, 0.2, 0.2, 0.9, 0.5]
RIGHT = np.array([[0] * 6 + [3] * 5 + [1], [3] * 6 + [0] * 5 + [1]])


def answers(task: str = "rte", right: Any = RIGHT) -> Answers:
    grounded = [round(10 * ratio) for ratio in RATIOS]
    return Answers(
        task=find_task(task),
        models=("b<rt", "xdbert"),
        seeds=(3, 3),
        ids=[str(i) for i in range(12)],
        labels=[0] * 12,
        right=np.asarray(right),
        texts=[["x"]] * 12,
        counts=np.column_stack([grounded, [10] * 12]),
    )


def test_the_table() -> None:
    found = answers().record(100, 0)
    table = examples_table([found, *reported("xdbert:4", "examples")])
    assert len(table.headings) == len(table.rows[0]) == 9
    ours, rte, mrpc, cola = table.rows
    assert ours[:6] == ["RTE", "6", "1", "5", "+3", "+8.33"]
    assert ours[6] == "0.225 0.350 0.475; mean 0.417; n 6"
    assert ours[7] == "0.200 0.200 0.200; mean 0.340; n 5"
    assert ours[8] == f"+0.077 ({found['ratio']['p']:.3f})"
    assert rte == ["RTE (reported)", "–", "–", "–", "+38", "+2.74", "–", "–", "–"]
    assert (mrpc[4:6], cola[5]) == (["–", "+0.30"], "+0.90")
    assert (
        "more seeds of xdbert are right than of b<rt; worsened: fewer. Seeds: 3 and 3."
        in (table.remarks[0])
    )
    assert table.remarks[-1] == "Reported in Hsu et al. 2022, section 4 and Figure 4."
    bare = {key: value for key, value in found.items() if key not in ("ratio", "without_content")}
    table = examples_table([bare])
    assert table.rows[0][6:] == ["–", "–", "–"]
    assert len(table.remarks) == 1


def test_figure_4_has_two_boxes_a_task_and_their_means() -> None:
    tasks = [answers(), answers("cola")]
    root = svg(ratio_figure(tasks, [task.record(100, 0) for task in tasks]))
    boxes = [b for b in named(root, "rect") if len(b)]
    assert [b[0].text for b in boxes] == [
        "improved: quartiles 0.225 and 0.475, median 0.350, mean 0.417",
        "worsened: quartiles 0.200 and 0.200, median 0.200, mean 0.340",
    ] * 2

    def height(ratio: float) -> float:
        return 80 + 300 * (1 - ratio)

    first = boxes[0]
    assert float(first.get("y", 0)) == pytest.approx(height(0.475), abs=0.01)
    assert float(first.get("height", 0)) == pytest.approx(300 * 0.25, abs=0.01)
    outliers = {d[0].text: float(d.get("cy", 0)) for d in named(root, "circle")}
    # 1.5 times .25 above .475 is .85; whiskers of the second box have no length
    assert outliers == {
        "1.000": pytest.approx(height(1.0)),
        "0.900": pytest.approx(height(0.9)),
    }
    green = [b for b in named(root, "rect") if b.get("fill") == "#16a34a"]
    means = [float(b.get("y", 0)) + float(b.get("height", 0)) / 2 for b in green]
    expected = [height(0.41667)] * 2 + [height(0.34)] * 2
    assert means[:-2] == pytest.approx(expected * 2, abs=0.01)  # the last plus is the key
    words = [t.text for t in named(root, "text")]
    assert words.count("n 6") == words.count("n 5") == 2
    assert {"RTE", "CoLA", "improved", "worsened", "mean"} <= set(words)
    assert {"Grounding ratio of examples that changed", "xdbert against b<rt"} <= set(words)


def test_a_group_without_examples_has_no_box() -> None:
    right = np.array([[0] * 12, [3] * 6 + [0] * 6])
    task = answers(right=right)
    root = svg(ratio_figure([task], [task.record(100, 0)]))
    assert len([b for b in named(root, "rect") if len(b)]) == 1
    words = [t.text for t in named(root, "text")]
    assert "n 0" in words
    assert "one group is empty" in words


def test_examples_as_the_appendix_prints_them() -> None:
    record = {
        "task": "rte",
        "group": "improved",
        "id": "7",
        "label": "entailment",
        "models": ["BERT", "XDBERT"],
        "right": [0, 5],
        "seeds": [5, 5],
        "grounded": 11,
        "content": 27,
        "ratio": 11 / 27,
        "texts": ["**hands** across (the) divide", "cyprus\x1b (was)"],
    }
    on_par = record | {"group": "on par", "texts": ["one"]}
    assert examples_text([record, record | {"id": "9"}, on_par]).splitlines()[:8] == [
        "## RTE, improved",
        "",
        "Example 1 (7, entailment)  ",
        "Visually-grounded ratio: 11/(11+16) = 0.4074  ",  # as in appendix D.1
        "BERT answered correctly: 0/5  ",
        "XDBERT answered correctly: 5/5",
        "",
        "**hands** across (the) divide",
    ]
    text = examples_text([record, record | {"id": "9"}, on_par])
    assert "cyprus\\x1b (was)" in text
    assert [line for line in text.splitlines() if line.startswith(("Example", "##"))] == [
        "## RTE, improved",
        "Example 1 (7, entailment)  ",
        "Example 2 (9, entailment)  ",
        "## RTE, on par",
        "Example 1 (7, entailment)  ",
    ]
    assert text.endswith("one\n")
    assert examples_text([]) == ""
