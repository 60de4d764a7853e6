"""The page of `vg measure`: a forest plot per evaluation, of values with intervals by encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vgtools.reports.drawing import ticks
from vgtools.reports.page import readable, render
from vgtools.reports.tables import MEASURES, short_names
from vgtools.tasks.table import LOWER_IS_BETTER

Record = Mapping[str, Any]

_ROOM = 0.06  # share of the width of a plot that is free at either end


def forest_page(records: Sequence[Record], title: str) -> bytes:
    """Return the page of records of `vgtools.measures.compare`.

    Rows are sorted, the best first. A line marks the first encoder, the baseline; a row is filled
    where its difference from the baseline is significant, corrected for all differences.
    """
    names = short_names(dict.fromkeys(record["encoder"] for record in records))
    plots = dict[tuple[str, str], list[Record]]()
    for record in records:
        key = (record["evaluation"], record.get("group", "all"))
        plots.setdefault(key, []).append(record)
    shown = [_plot(name, group, own, names) for (name, group), own in plots.items()]
    return render("measured", title, None, plots=shown)


def _plot(
    name: str, group: str, records: Sequence[Record], names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the values of the template for a plot; places are percentages of its width."""
    low: float = min(record["low"] for record in records)
    high: float = max(record["high"] for record in records)
    # Encoders that know nothing of it may all have one value.
    room = _ROOM * (high - low) or 0.01

    def place(value: float) -> float:
        return round(100 * (value - low + room) / (high - low + 2 * room), 2)

    first = records[0]
    better = -1 if first["statistic"] in LOWER_IS_BETTER else 1
    rows = [
        {
            "name": readable(names[record["encoder"]]),
            "first": record is first,
            "sure": bool(record.get("difference", {}).get("significant")),
            "low": place(record["low"]),
            "at": place(record["value"]),
            "high": place(record["high"]),
            "record": record,
        }
        for record in sorted(records, key=lambda record: -better * record["value"])
    ]
    statistic = first["statistic"]
    marks = [(place(tick), f"{tick:g}") for tick in ticks(low - room / 2, high + room / 2)]
    return {
        "title": readable(name),
        "group": "" if group == "all" else readable(group),
        "measure": MEASURES.get(statistic, statistic),
        "count": first["items"],
        "base": place(first["value"]),
        "ticks": marks,
        "rows": rows,
    }
