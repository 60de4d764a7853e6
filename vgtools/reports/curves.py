"""Curves of trainings: the numbers of `metrics.jsonl`, several runs in one figure.

Each number has its own figure on a page; in a file they share a figure.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from markupsafe import Markup

from vgtools.io.errors import DataError, Exit, amount
from vgtools.io.files import flat_numbers
from vgtools.io.streams import read_jsonl
from vgtools.reports.drawing import (
    ACCENT,
    COLOURS,
    DARK_STYLE,
    LINE,
    SOFT,
    Figure,
    ticks,
)
from vgtools.reports.page import readable, render
from vgtools.reports.tables import short_names

METRICS = "metrics.jsonl"
_PLACES = ("step", "epoch", "record")  # along which curves run: the first that all records have
_LAST = ("lr", "gradient")  # after losses and measures
_WIDE = 340  # pixels of a panel
_HIGH = 236
_LEFT = 54  # pixels between its edges and its plot
_TOP = 34
_BOTTOM = 40
_RIGHT = 20
_COLUMNS = 3  # per row of a file's figure
_DOTS = 40  # most records that are also drawn as dots
_POINTS = 400  # most per line: with thousands, the noise of one training hides the others
_DECADES = 1.5  # that the values of a log scale have at least
_PERCENT = 200.0  # above all shares, which never have a log scale
_HUGEST = 1e100  # numbers beyond, and differences below 1 / this, are more than float64 can scale
_MOST_PIXELS = 16_000  # per side of a figure: JPEGs, which a PDF holds, end at four times this


@dataclass(frozen=True)
class Curve:
    """The records of one training: a run, or one of its seeds."""

    name: str
    records: Sequence[Mapping[str, float]]  # numbers by name, `valid.mlm` for nested ones

    def points(self, across: str, name: str) -> list[tuple[float, float]]:
        """Return the places and values of a number, where it was measured."""
        return [(row[across], row[name]) for row in self.records if name in row]


class Panel(NamedTuple):
    """One number of all trainings."""

    title: str
    name: str
    log: bool


def is_run(path: str) -> bool:
    """Return whether a path is the folder of a training."""
    return os.path.isfile(os.path.join(path, METRICS))


def read_curves(paths: Sequence[str]) -> list[Curve]:
    """Return the trainings of runs: a curve per run, or per seed of a single run.

    Raises:
        DataError: a run has no records, or damaged ones.
    """
    names = short_names(dict.fromkeys(map(os.path.normpath, paths)))
    found = list[Curve]()
    for path, name in names.items():
        read = chain.from_iterable(read_jsonl(file, {}) for file in _files(path))
        rows = [_drawable(flat_numbers(row)) for _, row in read]
        if not any(row.keys() - {*_PLACES, "seed"} for row in rows):
            raise DataError("has no record yet with a number to draw", Path(path, METRICS))
        for seed in dict.fromkeys(row.get("seed") for row in rows):
            # Every seed starts at its first step, so that it has a line of its own.
            own = [row for row in rows if row.get("seed") == seed]
            own = [row | {"record": number} for number, row in enumerate(own, 1)]
            alone = len(names) == 1 and seed is not None
            found.append(Curve(f"seed {seed:g}" if alone else name, own))
    return found


def _files(run: str) -> list[Path]:
    """Return the files of a run's records; a seed that still trains has its own."""
    return [Path(run, METRICS), *Path(run).glob(f"seed-*/{METRICS}")]


def _drawable(row: Mapping[str, float]) -> dict[str, float]:
    """Return the numbers that an axis can have; the smallest are 0 there."""
    known = {name: value for name, value in row.items() if abs(value) < _HUGEST}
    return {name: value if abs(value) > 1 / _HUGEST else 0 for name, value in known.items()}


def panels(curves: Sequence[Curve]) -> tuple[str, list[Panel]]:
    """Return the name of the horizontal axis, and the numbers that change: losses first."""
    rows = [row for curve in curves for row in curve.records]
    across = next(name for name in _PLACES if all(name in row for row in rows))
    values = dict[str, list[float | None]]()
    for name in dict.fromkeys(name for row in rows for name in row):
        if name not in (*_PLACES, "seed"):
            values[name] = [row.get(name) for row in rows]
    # A number that never changes has no curve; where nothing changes, all are shown.
    moving = {name: own for name, own in values.items() if len({*own} - {None}) > 1} or values
    alike = dict[tuple[float | None, ...], list[str]]()
    for name, own in moving.items():
        alike.setdefault(tuple(own), []).append(name)
    found = [
        Panel(", ".join(names), names[0], _is_wide(names[0], own)) for own, names in alike.items()
    ]
    return across, sorted(found, key=_order)


def _order(panel: Panel) -> tuple[bool, bool, bool]:
    """Return the sort key of a panel; those alike stay in the order of the records."""
    return panel.name in _LAST, "." in panel.name, "loss" not in panel.title


def _is_wide(name: str, values: Sequence[float | None]) -> bool:
    """Return whether values need a log scale."""
    known = [value for value in values if value is not None]
    low = min(known)
    high = max(known)
    wide = high > _PERCENT and low > 0 and math.log10(high / low) > _DECADES
    return wide and name not in _LAST


# ------------------------------------------------------------------------------------------ drawing


def figure(curves: Sequence[Curve]) -> Figure:
    """Return all panels on one figure, with the names of the trainings below.

    Raises:
        DataError: it would be too large (usage).
    """
    across, shown = panels(curves)
    columns = min(_COLUMNS, len(shown))
    high = _HIGH * -(-len(shown) // columns)
    names = colours(curves)
    width = _WIDE * columns
    places = [*_flow(names, width)]
    height = high + 20 + 20 * (1 + places[-1][1])
    if height > _MOST_PIXELS:
        why = f"-o: {len(shown)} numbers and {len(names)} trainings are too many for one figure"
        raise DataError(f"{why}; -o X.html has a figure for each number", code=Exit.USAGE)
    made = Figure(width, height, "Curves of training")
    for number, panel in enumerate(shown):
        row, column = divmod(number, columns)
        _draw(made, column * _WIDE, row * _HIGH, panel, across, curves)
    for (name, colour), (x, line) in zip(names.items(), places, strict=True):
        made.dot(x, high + 20 + 20 * line, 4.5, colour)
        made.text(x + 10, high + 24 + 20 * line, name, size=12)
    return made


def _flow(names: Mapping[str, str], width: float) -> Iterator[tuple[float, int]]:
    """Yield the place and the line of each name of a legend."""
    x = 22.0
    line = 0
    for name in names:
        wide = 7.2 * len(name) + 34
        if x > 22 and x + wide > width:
            x = 22.0
            line += 1
        yield x, line
        x += wide


def page(curves: Sequence[Curve], title: str) -> bytes:
    """Return a page with a figure per number."""
    across, shown = panels(curves)
    figures = list[Markup]()
    for panel in shown:
        made = Figure(_WIDE, _HIGH, panel.title)
        _draw(made, 0, 0, panel, across, curves)
        figures.append(Markup(made.svg(False).decode()))
    records = sum(len(curve.records) for curve in curves)
    return render(
        "curves",
        title,
        None,
        styles=[DARK_STYLE],
        names=[(readable(name), colour) for name, colour in colours(curves).items()],
        counts=f"{amount(len(curves), 'training')}, {amount(records, 'record')}",
        figures=figures,
    )


def colours(curves: Sequence[Curve]) -> dict[str, str]:
    """Return the colour of each name; after nine they repeat."""
    palette = (ACCENT, *COLOURS)
    names = dict.fromkeys(curve.name for curve in curves)
    return {name: palette[number % len(palette)] for number, name in enumerate(names)}


def _draw(
    made: Figure, left: float, top: float, panel: Panel, across: str, curves: Sequence[Curve]
) -> None:
    """Draw one panel with its axes at a place of a figure."""
    lines = [(curve.name, _thinned(curve.points(across, panel.name))) for curve in curves]
    right = left + _WIDE - _RIGHT
    bottom = top + _HIGH - _BOTTOM
    first = [0.0] if across == "step" else []
    places = [row[across] for curve in curves for row in curve.records]
    xs = _Scale([*first, *places], left + _LEFT, right)
    ys = _Scale([y for _, own in lines for _, y in own], bottom, top + _TOP, panel.log)
    shown = panel.title if len(panel.title) < 42 else panel.title[:41] + "…"
    made.text(left + _LEFT, top + 20, shown, size=13, bold=True)
    for tick in ys.ticks:
        made.line(left + _LEFT, ys.at(tick), right, ys.at(tick), LINE)
        made.text(left + _LEFT - 7, ys.at(tick) + 4, _short(tick), SOFT, 11, "end")
    made.line(left + _LEFT, bottom, right, bottom, LINE)
    for tick in xs.ticks:
        if tick == round(tick):
            made.line(xs.at(tick), bottom, xs.at(tick), bottom + 4)
            made.text(xs.at(tick), bottom + 16, _short(tick), SOFT, 11, "middle")
    scale = f"{across}; log scale" if panel.log else across
    made.text((left + _LEFT + right) / 2, bottom + 31, scale, SOFT, 11, "middle")
    paint = colours(curves)
    for name, own in lines:
        dots = [(xs.at(x), ys.at(y)) for x, y in own]
        if dots:  # another run may have measured what this one did not
            made.curve(dots, paint[name], name)
        for (x, y), (step, value) in zip(dots, own, strict=True):
            if len(own) <= _DOTS:
                hint = f"{name}: {panel.name} {value:.4g}, {across} {step:g}"
                made.dot(x, y, 2.6, paint[name], hint)


def _thinned(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most `_POINTS` points: means of consecutive values, at the last place of each."""
    each = math.ceil(len(points) / _POINTS)
    if each < 2:
        return points
    parts = (points[i : i + each] for i in range(0, len(points), each))
    return [(part[-1][0], fmean(value for _, value in part)) for part in parts]


class _Scale:
    """Values along an axis, from the pixel `start` to the pixel `end`."""

    def __init__(
        self, values: Sequence[float], start: float, end: float, log: bool = False
    ) -> None:
        self._start = start
        self._end = end
        self._log = log
        low = min(values)
        high = max(values)
        if low == high:  # one value is in the middle
            room = abs(low) / 2 or 1.0
            low -= room
            high += room
        self._low = self._of(low)
        self._high = self._of(high)
        self.ticks = _decades(low, high) if log else ticks(low, high)

    def _of(self, value: float) -> float:
        return math.log10(value) if self._log else value

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (self._of(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)


def _decades(low: float, high: float) -> list[float]:
    """Return round values for a log scale: powers of ten, with 2 and 5 between a few."""
    span = math.log10(high / low)
    steps = (1, 2, 5) if span < 2.5 else (1,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [n * 10.0**power for power in powers for n in steps]
    inside = [value for value in found if low <= value <= high]
    return inside[:: max(1, math.ceil(len(inside) / 6))]


def _short(value: float) -> str:
    """Return a number in at most seven characters or so: 20k, 1.5M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):g}{unit}"
    return f"{value:g}"
