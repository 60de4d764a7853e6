"""The cost of each row of the table next to its gain: python report.py OUT [--page FILE].

Reads OUT/compare.jsonl (vg compare) and OUT/cost/*.jsonl (timed.py). Prints a table; --page writes
a page with the table, a plot of gain against cost and one of gain against grounding ratio.

The gain of a row is the mean over its tasks. Their examples are different ones, so that the
half-widths of their intervals add up in quadrature. Where that interval holds 0, the last column
gives how many times as many examples a gain of this size needs to be distinguished from none, if
the seeds' part shrinks with them: (half-width / gain)^2.
"""

from __future__ import annotations

import argparse
import html
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vgtools.io.own import write_page
from vgtools.reports.drawing import ACCENT, DARK_STYLE, LINE, PALE, SOFT, Figure, ticks
from vgtools.reports.page import render
from vgtools.reports.tables import Table, markdown

# Runs made for a row besides its own pretraining, which also cost time.
SHARED = {
    "vokens": ("matcher", "vokenize"),
    "vokens-random": ("matcher", "vokenize"),
    "vokens-shuffle": ("matcher", "vokenize"),
    "vokens-sentence": ("matcher-sentence", "vokenize-sentence"),
    "xdbert": ("teacher",),
    "xdbert-words": ("teacher",),
}


def spent(out: Path, name: str) -> tuple[float, float]:
    """Return the processor minutes of all runs of a step, and the most MiB of one."""
    file = out / "cost" / f"{name}.jsonl"
    runs = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return sum(run["cpu"] for run in runs) / 60, max((run["mib"] for run in runs), default=0)


def rows_of(out: Path) -> list[dict[str, Any]]:
    """Return a record per row: its cost, its mean gain with an interval, and its best task."""
    records = [json.loads(line) for line in (out / "compare.jsonl").read_text().splitlines()]
    found = []
    for record in records:
        if "path" not in record:
            continue
        row = record["run"]
        own = row if (out / "cost" / f"{row}.jsonl").exists() else row.partition("-")[0]
        steps = [spent(out, name) for name in (own, *SHARED.get(row, ()))]
        tuning = spent(out, f"{row}.tune")
        gains = [cell["difference"] for cell in record["tasks"].values() if "difference" in cell]
        count = max(1, len(gains))
        half = math.sqrt(sum(((g["high"] - g["low"]) / 2) ** 2 for g in gains)) / count
        found.append(
            {
                "row": row,
                "baseline": record["baseline"],
                "minutes": sum(minutes for minutes, _ in steps),
                "mib": max(mib for _, mib in steps),
                "tuning": tuning[0],
                "tuning_mib": tuning[1],
                "gain": sum(g["value"] for g in gains) / count,
                "half": half,
                "significant": sum(g["significant"] for g in gains),
                "tasks": len(gains),
            }
        )
    return found


def table_of(rows: list[dict[str, Any]]) -> Table:
    """Return cost next to gain."""
    body = []
    for row in rows:
        cost = [f"{row['minutes']:.1f}", f"{row['mib']:,}", f"{row['tuning']:.1f}"]
        if row["baseline"]:
            body.append([row["row"], *cost, "–", "–", "–"])
            continue
        value, half = row["gain"], row["half"]
        gain = f"{value:+.2f} ({value - half:+.2f} to {value + half:+.2f})"
        more = "–"
        if value and abs(value) <= half:
            times = (half / value) ** 2
            more = f"{times:,.{1 if times < 10 else 0}f} ×"
        body.append([row["row"], *cost, gain, f"{row['significant']} of {row['tasks']}", more])
    headings = ["Row", "Pretraining, CPU minutes", "MiB", "Tuning, CPU minutes"]
    headings += ["Mean gain, points", "Tasks that differ", "Examples needed"]
    remark = (
        "Mean gain over tasks and its 95 % interval, over the first row. Tasks that differ: p "
        "below 0.05 after Holm's correction over the whole table. Examples needed: how many times "
        "as many, where the interval holds 0. Pretraining includes matcher, vokens and teacher."
    )
    return Table(headings, body, [remark])


def cost_figure(rows: list[dict[str, Any]]) -> Figure:
    """Return a dot per row: its mean gain with the interval over its processor minutes."""
    rows = [row for row in rows if not row["baseline"]]
    edge, top, wide, tall = 64, 48, 620, 440
    # Commands of toy size round to no minutes at all.
    right = 1.25 * max([row["minutes"] + row["tuning"] for row in rows], default=0) or 1.0
    ends = [row["gain"] + sign * row["half"] for row in rows for sign in (-1, 1)] or [-1, 1]
    low, high = min([0, *ends]), max([0, *ends])
    room = 0.08 * (high - low or 1)
    low, high = low - room, high + room
    figure = Figure(edge + wide + 24, top + tall + 52, "Gain against cost")
    figure.text(16, 26, "Mean gain over the first row (points)", size=13, bold=True)

    def x_of(minutes: float) -> float:
        return edge + wide * minutes / right

    def y_of(gain: float) -> float:
        return top + tall * (high - gain) / (high - low)

    for tick in ticks(low, high):
        if low <= tick <= high:
            figure.line(edge, y_of(tick), edge + wide, y_of(tick), LINE if tick else SOFT, not tick)
            figure.text(edge - 8, y_of(tick) + 4, f"{tick:+g}" if tick else "0", SOFT, 11, "end")
    for tick in ticks(0, right):
        if tick <= right:
            figure.text(x_of(tick), top + tall + 18, f"{tick:g}", SOFT, 11, "middle")
    below = "processor minutes of pretraining and fine-tuning"
    figure.text(edge + wide / 2, top + tall + 38, below, SOFT, 11, "middle")
    taken = list[tuple[float, float]]()
    for row in sorted(rows, key=lambda row: -row["gain"]):
        x, y = x_of(row["minutes"] + row["tuning"]), y_of(row["gain"])
        figure.line(x, y_of(row["gain"] - row["half"]), x, y_of(row["gain"] + row["half"]), PALE)
        figure.dot(x, y, 4.5, ACCENT, f"{row['row']}: {row['gain']:+.2f} ± {row['half']:.2f}")
        place = y + 4
        while any(abs(place - other) < 12 and abs(x - at) < 90 for at, other in taken):
            place += 12
        taken.append((x, place))
        if place != y + 4:
            figure.line(x, y, x + 8, place - 4, SOFT)
        figure.text(x + 8, place, row["row"], size=11)
    return figure


def as_html(text: str) -> str:
    """Return markdown of tables and paragraphs as HTML."""
    blocks = list[str]()
    rows = list[str]()
    for line in [*text.splitlines(), ""]:
        if line.startswith("|--"):  # below the headings
            continue
        if line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            tag = "td" if rows else "th"
            shown = [re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(cell)) for cell in cells]
            kind = ' class="change"' if cells[0].startswith("less ") else ""
            rows.append(f"<tr{kind}>{''.join(f'<{tag}>{cell}</{tag}>' for cell in shown)}</tr>")
            continue
        if rows:
            blocks.append(f'<div class="table"><table>{"".join(rows)}</table></div>')
            rows.clear()
        if line.startswith("## "):
            blocks.append(f"<h3>{html.escape(line[3:])}</h3>")
        elif line:
            blocks.append(f"<p>{html.escape(line)}</p>")
    return "\n".join(blocks)


def main() -> int:
    """Print the table, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--page", help="write a page")
    parser.add_argument("--similarity", type=Path, help="table of word pairs for the page")
    args = parser.parse_args()
    rows = rows_of(args.out)
    print(markdown(table_of(rows)), end="")
    if args.page:
        sections = {
            "Scores and cost": as_html((args.out / "table.md").read_text()),
            "Each system against its control": as_html((args.out / "controls.md").read_text()),
            "Gain against cost": cost_figure(rows).svg(standalone=False).decode(),
        }
        ratio = args.out / "grounding.svg"
        if ratio.exists():
            # The page has the colours for dark screens in its own style.
            drawn = ratio.read_text().replace(f"<style>{DARK_STYLE}</style>", "")
            sections["Gain against grounding ratio"] = drawn
        if args.similarity:
            sections["Word pairs"] = as_html(args.similarity.read_text())
        shown = [(name, Markup(body)) for name, body in sections.items()]
        title = f"{args.out.name}/compare.jsonl"
        page = render("compared", title, None, styles=[DARK_STYLE], sections=shown)
        write_page(Path(args.page), page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
