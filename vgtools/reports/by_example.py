"""Examples that one model answers better or worse than another: table, figure, and the examples.

Source: XDBERT (Hsu et al. 2022), Figure 4, appendix D.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import amount, plain
from vgtools.reports.drawing import ACCENT, COLOURS, GREY, INK, LINE, PAPER, SOFT, Figure
from vgtools.reports.tables import Table, p_value
from vgtools.tasks.by_example import Answers
from vgtools.tasks.table import title_of

Record = Mapping[str, Any]

_MEAN = COLOURS[2]  # green, as in the paper
_SIDES = {"improved": ACCENT, "worsened": COLOURS[0]}


def examples_table(records: Sequence[Record]) -> Table:
    """Return a row per task: examples that changed, the accumulated difference, the ratios.

    Args:
        records: records of `Answers.record`, and records that a paper reports.
    """
    rows = list[list[str]]()
    for record in records:
        name = title_of(record["task"]) + (" (reported)" if "source" in record else "")
        counts = [record.get(key) for key in ("improved", "on_par", "worsened")]
        added = record.get("accumulated")
        ratio = record.get("ratio", {})
        spreads = (_spread(ratio.get(side)) for side in _SIDES)
        rows.append(
            [
                name,
                *("–" if count is None else f"{count:,}" for count in counts),
                "–" if added is None else f"{added:+,}",
                f"{record['percent']:+.2f}",
                *spreads,
                _difference(ratio),
            ]
        )
    ours = [record for record in records if "source" not in record]
    headings = ["Task", "Improved", "On par", "Worsened", "Right answers", "Percent of all"]
    headings += ["Ratio, improved", "Ratio, worsened", "Difference of means (p)"]
    return Table(headings, rows, _remarks(ours, records))


def _spread(group: Record | None) -> str:
    if group is None or not group["n"]:
        return "–"
    quartiles = " ".join(f"{group[key]:.3f}" for key in ("q1", "median", "q3"))
    return f"{quartiles}; mean {group['mean']:.3f}; n {group['n']:,}"


def _difference(ratio: Record) -> str:
    if ratio.get("difference") is None:
        return "–"
    return f"{ratio['difference']:+.3f} ({p_value(ratio['p'])})"


def _remarks(ours: Sequence[Record], records: Sequence[Record]) -> list[str]:
    first, second = ours[0]["models"]
    seeds = dict.fromkeys(" and ".join(map(str, record["seeds"])) for record in ours)
    remarks = [
        f"Improved: more seeds of {second} are right than of {first}; worsened: fewer. Seeds: "
        f"{', '.join(seeds)}. Right answers: accumulated over seeds, {second} less {first}."
    ]
    if any("ratio" in record for record in ours):
        left_out = sum(record["without_content"] for record in ours)
        remarks.append(
            "Ratio: grounded tokens of all that are neither stop words nor punctuation; quartiles "
            "and median. p by permutation of the examples, two-sided. "
            f"Left out: {amount(left_out, 'example')} without such a token."
        )
    sources = dict.fromkeys(record["source"] for record in records if "source" in record)
    return [*remarks, *(f"R{source[1:]}." for source in sources)]


def examples_text(records: Iterable[Record]) -> str:
    """Return examples as the paper prints them: three lines, then the texts with marked words.

    Args:
        records: records of `Answers.examples`.

    Source: appendix D.
    """
    blocks = list[str]()
    heading = ""
    for record in records:
        title = f"{title_of(record['task'])}, {record['group']}"
        if title != heading:
            heading = title
            number = 0
            blocks.append(f"## {title}")
        number += 1
        grounded = record["grounded"]
        others = record["content"] - grounded
        lines = [
            f"Example {number} ({record['id']}, {record['label']})",
            f"Visually-grounded ratio: {grounded}/({grounded}+{others}) = {record['ratio']:.4f}",
        ]
        answers = zip(record["models"], record["right"], record["seeds"], strict=True)
        lines += [f"{name} answered correctly: {right}/{seeds}" for name, right, seeds in answers]
        blocks += ["  \n".join(lines), *record["texts"]]
    return "".join(f"{plain(block)}\n\n" for block in blocks).rstrip("\n") + "\n" * bool(blocks)


# ------------------------------------------------------------------------------------------ figure

_TOP = 80
_LEFT = 56
_TALL = 300
_PANEL = 176  # least width of a task
_WIDE = 46  # width of a box


def ratio_figure(tasks: Sequence[Answers], records: Sequence[Record]) -> Figure:
    """Return two boxes per task: grounding ratios of improved and worsened examples.

    A box reaches from the first to the third quartile, its whiskers to the furthest example within
    1.5 times that range; further examples are dots. A plus is the mean.

    Args:
        tasks: tasks with counts of tokens.
        records: the record of each task.

    Source: Figure 4.
    """
    first, second = tasks[0].models
    width = max(_LEFT + _PANEL * len(tasks), 460) + 16
    panel = (width - _LEFT - 16) / len(tasks)
    title = "Grounding ratio of examples that changed"
    figure = Figure(width, _TOP + _TALL + 96, f"{title}: {second} against {first}")
    figure.text(16, 26, title, size=13, bold=True)
    figure.text(16, 43, f"{_cut(second)} against {_cut(first)}", size=12)
    figure.text(16, 60, "grounded tokens of all content tokens", SOFT, 11)
    for tick in range(0, 101, 20):
        y = _y(tick / 100)
        figure.line(_LEFT, y, width - 16, y, LINE)
        figure.text(_LEFT - 8, y + 4, f"{tick}%", SOFT, 11, "end")
    for number, (task, record) in enumerate(zip(tasks, records, strict=False)):
        middle = _LEFT + panel * (number + 0.5)
        for side, (group, colour) in enumerate(_SIDES.items()):
            _box(figure, middle + (side - 0.5) * 78, task.ratios_of(group), colour, group)
        ratio = record["ratio"]
        p = "one group is empty" if ratio["p"] is None else f"p {p_value(ratio['p'])}"
        figure.text(middle, _TOP + _TALL + 42, task.task.title, size=13, anchor="middle", bold=True)
        figure.text(middle, _TOP + _TALL + 59, p, SOFT, 11, "middle")
    y = figure.height - 14
    for x, (group, colour) in zip((22, 116), _SIDES.items(), strict=True):
        figure.box(x - 6, y - 10, 12, 12, colour, hollow=True)
        figure.text(x + 12, y, group, size=11)
    _plus(figure, 222, y - 4)
    figure.text(234, y, "mean", size=11)
    return figure


def _cut(name: str) -> str:
    """Return the end of a name that would not fit, because the ends of paths differ."""
    return name if len(name) <= 32 else "…" + name[-31:]


def _y(ratio: float) -> float:
    return _TOP + _TALL * (1 - ratio)


def _box(figure: Figure, x: float, values: Array, colour: str, group: str) -> None:
    """Draw the box of a group around x, with how many examples it has below."""
    figure.text(x, _TOP + _TALL + 20, f"n {len(values):,}", SOFT, 11, "middle")
    if not len(values):
        return
    q1, median, q3 = np.quantile(values, [0.25, 0.5, 0.75]).tolist()
    reach = 1.5 * (q3 - q1)
    inside = values[(values >= q1 - reach) & (values <= q3 + reach)]
    mean = float(values.mean())
    half = _WIDE / 2
    hint = f"{group}: quartiles {q1:.3f} and {q3:.3f}, median {median:.3f}, mean {mean:.3f}"
    for end, near in ((float(inside.min()), q1), (float(inside.max()), q3)):
        figure.line(x, _y(near), x, _y(end), GREY)
        figure.line(x - half / 2, _y(end), x + half / 2, _y(end), GREY)
    for value in sorted(set(values.tolist()) - set(inside.tolist())):
        figure.dot(x, _y(value), 2.2, colour, f"{value:.3f}")
    # Paper under the box hides the lines of the grid.
    figure.box(x - half, _y(q3), _WIDE, _y(q1) - _y(q3), PAPER)
    figure.box(x - half, _y(q3), _WIDE, _y(q1) - _y(q3), colour, hint, hollow=True)
    figure.box(x - half, _y(median) - 1, _WIDE, 2, INK)
    _plus(figure, x, _y(mean))


def _plus(figure: Figure, x: float, y: float) -> None:
    figure.box(x - 6, y - 1.25, 12, 2.5, _MEAN)
    figure.box(x - 1.25, y - 6, 2.5, 12, _MEAN)
