"""Figures of corpora, of gains, and of the targets of attention heads.

Source: Tan & Bansal 2020 (Vokenization), Table 1, appendix A.7; Li et al. 2020 (What Does BERT with
Vision Look At?), figures 1, 3 and 4; Clark et al. 2019 (What Does BERT Look At?), figures 2, 4, 6.

Axes: L layers, W words, R regions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.reports.drawing import (
    ACCENT,
    COLOURS,
    GREY,
    INK,
    LINE,
    PALE,
    PAPER,
    SOFT,
    Axes,
    Figure,
    ticks,
)
from vgtools.reports.tables import (
    MeasureColumn,
    columns_of,
    corpora_remarks,
    corpus_name,
    correlation,
    p_value,
)
from vgtools.systems.attention_probes.examples import AttentionExample, Group
from vgtools.tasks.table import title_of

Record = Mapping[str, Any]

_OTHER = "#6b7280"  # regions that no gold box is near
_REPORTED = "#b3aa9b"  # bars of numbers that a paper reports


def of_kind(records: Iterable[Record], kind: str) -> list[Record]:
    """Return the records of a kind."""
    return [record for record in records if record["kind"] == kind]


# ------------------------------------------------------------------------------------------ corpora


def corpora_figure(records: Sequence[Record]) -> Figure:
    """Return Table 1 as a figure: a row per corpus, a column per measure that any of them has."""
    columns = columns_of(records)
    remarks = corpora_remarks(records)
    left, top, step, row_height = 230, 66, 154, 34
    bottom = top + row_height * len(records) + 14
    width = left + step * len(columns) + 16
    figure = Figure(width, bottom + 18 * len(remarks) + 16, f"Statistics of {len(records)} corpora")
    figure.line(16, top - 8, width - 16, top - 8)
    for row, record in enumerate(records):
        y = top + row_height * row
        is_reported = "source" in record
        name = record["corpus"] if is_reported else corpus_name(record)
        shown = name if len(name) <= 29 else "…" + name[-28:]
        figure.text(16, y + (13 if is_reported else 20), shown, SOFT if is_reported else INK, 13)
        if is_reported:
            figure.text(16, y + 27, record["source"], SOFT, 11)
    for number, column in enumerate(columns):
        _measure(figure, records, column, left + step * number, top, row_height)
    for number, remark in enumerate(remarks):
        figure.text(16, bottom + 14 + 18 * number, remark, SOFT, 11)
    return figure


def _measure(
    figure: Figure,
    records: Sequence[Record],
    column: MeasureColumn,
    x: float,
    top: float,
    step: float,
) -> None:
    """Draw a column of Table 1: a value per corpus with its bar, or its place on a log scale."""
    wide = 130
    figure.text(x, 34, column.heading, size=13, bold=True)
    if column.log:
        figure.text(x, 50, "log scale", SOFT, 11)
    # A divergence is drawn against its largest possible value.
    bounds = {"e": math.log(2), 10: math.log10(2)}
    jsd = column.key.startswith("jsd")
    bound = bounds.get(records[0].get("jsd_base", 2), 1.0) if jsd else 0.0
    values = [record.get(column.key) for record in records]
    most = max([bound, *(value for value in values if value is not None)]) or 1
    for row, (record, value) in enumerate(zip(records, values, strict=True)):
        y = top + step * row
        is_reported = "source" in record
        if value is None:
            figure.text(x, y + 13, "–", SOFT)
            continue
        figure.text(x, y + 13, column.form.format(value), SOFT if is_reported else INK)
        figure.line(x, y + 22, x + wide, y + 22)
        colour = _REPORTED if is_reported else ACCENT
        hint = f"{corpus_name(record)}: {column.form.format(value)}"
        if column.log:
            # 1 is added so that a count of 0 has a place on the scale.
            share = math.log10(1 + value) / math.log10(1 + most)
            figure.dot(x + wide * share, y + 22, 4, colour, hint)
        else:
            figure.box(x, y + 19, wide * value / most, 6, colour, hint)


# ------------------------------------------------------------------------- gain and grounding ratio


def gain_figure(gains: Sequence[Record], base: str) -> Figure:
    """Return a dot per task and row: the gain with its 95 % interval over the grounding ratio.

    Args:
        gains: records of `vgtools.tasks.compare.gains`, one or more.
    """
    points = [point for record in gains for point in record["points"]]
    left, right, ticks_x = _axis([point["grounding_ratio"] for point in points])
    low, high, ticks_y = _axis([0.0, *(point[key] for point in points for key in ("low", "high"))])
    edge, wide, tall = 64, 560, 340

    def x_of(ratio: float) -> float:
        return edge + wide * (ratio - left) / (right - left)

    # Names are above the plot, where no line crosses them, in enough lanes that none touches
    # another.
    names = {title_of(point["task"]): x_of(point["grounding_ratio"]) for point in points}
    lanes = dict[str, int]()
    ends = list[float]()
    for title, x in sorted(names.items(), key=lambda item: item[1]):
        lane = next((n for n, end in enumerate(ends) if end <= x - _half(title)), len(ends))
        ends[lane : lane + 1] = [x + _half(title)]
        lanes[title] = lane
    top = 52 + 15 * len(ends)
    bottom = top + tall

    def y_of(gain: float) -> float:
        return top + tall * (high - gain) / (high - low)

    figure = Figure(edge + wide + 24, bottom + 68 + 20 * len(gains), "Gain against grounding ratio")
    figure.text(16, 26, f"Gain over {base} (points)", size=13, bold=True)
    for tick in ticks_y:
        zero = tick == 0
        figure.line(edge, y_of(tick), edge + wide, y_of(tick), SOFT if zero else LINE, dashed=zero)
        figure.text(edge - 8, y_of(tick) + 4, "0" if zero else f"{tick:+g}", SOFT, 11, "end")
    for tick in ticks_x:
        figure.line(x_of(tick), bottom, x_of(tick), bottom + 5)
        figure.text(x_of(tick), bottom + 18, f"{100 * tick:g} %", SOFT, 11, "middle")
    below = "share of the data set's tokens that are visually grounded"
    figure.text(edge + wide / 2, bottom + 36, below, SOFT, 11, "middle")
    for title, x in names.items():
        highest = max(p["high"] for p in points if title_of(p["task"]) == title)
        figure.line(x, top - 6 - 15 * lanes[title], x, y_of(highest) - 4, dashed=True)
    for title, x in names.items():
        y = top - 10 - 15 * lanes[title]
        figure.box(x - _half(title) + 2, y - 10, 2 * _half(title) - 4, 13, PAPER)
        figure.text(x, y, title, SOFT, 11, "middle")
    for number, record in enumerate(gains):
        colour = (ACCENT, *COLOURS)[number % (1 + len(COLOURS))]
        # Rows are drawn side by side, not one upon the other.
        shift = 7 * (number - (len(gains) - 1) / 2)
        for point in record["points"]:
            x = x_of(point["grounding_ratio"]) + shift
            figure.line(x, y_of(point["low"]), x, y_of(point["high"]), colour)
            gain = f"{point['gain']:+.2f} [{point['low']:+.2f}, {point['high']:+.2f}]"
            title = f"{record['gain_of']}, {title_of(point['task'])}"
            hint = f"{title}: {gain}, p {p_value(point['p'])}"
            figure.dot(x, y_of(point["gain"]), 4.5, colour, hint)
        label = record["gain_of"]
        if "pearson" in record:
            label += f": Pearson {correlation(record['pearson'])}, {record['n']} tasks"
        y = bottom + 60 + 20 * number
        figure.dot(22, y, 4.5, colour)
        figure.text(34, y + 4, label, size=13)
    return figure


def _half(title: str) -> float:
    """Return half the width of a name at 11 px, with some room on both sides."""
    return 3.4 * len(title) + 5


def _axis(values: Sequence[float]) -> tuple[float, float, list[float]]:
    """Return the ends of an axis around values, and its ticks, which lie on both ends."""
    middle = (min(values) + max(values)) / 2
    half = max(max(values) - min(values), 0.02) / 2
    inner = ticks(middle - half, middle + half)
    step = inner[1] - inner[0]
    first = math.floor((middle - 1.1 * half) / step)
    last = math.ceil((middle + 1.1 * half) / step)
    marks = [round(step * n, 10) for n in range(first, last + 1)]
    return marks[0], marks[-1], marks


# ---------------------------------------------------------------------------------- attention heads


def _scatter(
    axes: Axes, accuracies: Array, active: Array, baseline: float, bound: float = math.inf
) -> None:
    """Draw every head of every layer: active ones dark and large, others light and small.

    Args:
        accuracies: (L, heads) in percent.
        active: (L, heads) bool.
        bound: drawn dashed, if the plot is high enough.
    """
    figure = axes.figure
    right = axes.left + axes.width
    figure.line(axes.left, axes.y(baseline), right, axes.y(baseline), GREY)
    if bound <= axes.high:
        figure.line(axes.left, axes.y(bound), right, axes.y(bound), GREY, dashed=True)
    # Active heads are drawn last, so that no other head covers them.
    for alive in (False, True):
        radius, colour = (4, ACCENT) if alive else (2.2, PALE)
        share = "active" if alive else "not active"
        for layer, head in np.argwhere(active == alive).tolist():
            value = float(accuracies[layer, head])
            x = axes.beside(layer + 1, head + 1, accuracies.shape[1])
            hint = f"{layer + 1}-{head + 1}: {value:.1f} %, {share}"
            figure.dot(x, axes.y(value), radius, colour, hint)


def _top(values: Iterable[float]) -> float:
    return min(100.0, 5.0 * math.ceil(max(*values, 4.0) * 1.08 / 5))


def entity_figure(records: Sequence[Record]) -> Figure | None:
    """Return figure 3: entity grounding of all heads by layer; None where there are none."""
    heads = of_kind(records, "head")
    if not heads:
        return None
    summary = of_kind(records, "summary")[0]
    shape = (summary["layers"], summary["heads"])
    values = np.array([head["accuracy"] for head in heads]).reshape(shape)
    active = np.array([head["active"] for head in heads]).reshape(shape)
    baseline = summary["baseline"]
    bound = summary["upper_bound"]
    figure = Figure(640, 430, "Entity grounding accuracy of the attention heads by layer")
    axes = Axes(figure, 64, 56, 556, 300, shape[0], _top([float(values.max()), baseline]))
    axes.frame("Entity grounding", "accuracy, %", "layer")
    _scatter(axes, values, active, baseline, bound)
    dashed = " (dashed)" if bound <= axes.high else ""
    figure.text(620, 48, f"upper bound{dashed}: {bound:.1f} %", SOFT, 11, "end")
    _legend(figure, 30, 418, f": {baseline:.1f} %")
    return figure


def _legend(figure: Figure, x: float, y: float, baseline: str = "") -> None:
    figure.dot(x + 4, y - 4, 4, ACCENT)
    figure.text(x + 14, y, "active: over 20 % to regions", SOFT, 11)
    figure.dot(x + 208, y - 4, 2.2, PALE)
    figure.text(x + 216, y, "not active", SOFT, 11)
    figure.line(x + 300, y - 4, x + 320, y - 4, GREY)
    figure.text(x + 328, y, f"most confident region{baseline}", SOFT, 11)


def relation_figure(records: Sequence[Record]) -> Figure | None:
    """Return figure 4: syntactic grounding of all heads by layer, one panel per relation.

    None where there are no relations.
    """
    relations = [r for r in of_kind(records, "relation") if r["entity"] == "either"][:_RELATIONS]
    if not relations:
        return None
    columns = min(3, len(relations))
    rows = -(-len(relations) // columns)
    title = "Syntactic grounding accuracy of the attention heads by layer"
    figure = Figure(max(660, 40 + columns * 300), 30 + rows * 280, title)
    for number, record in enumerate(relations):
        values = np.array(record["accuracies"])
        active = np.array(record["attentions"]) > 20
        left = 64 + number % columns * 300
        top = 52 + number // columns * 280
        high = _top([float(values.max()), record["baseline"]])
        axes = Axes(figure, left, top, 226, 166, len(values), high)
        axes.frame(relation_name(record), "%", "layer")
        figure.text(left + 226, top - 8, f"{record['pairs']:,} pairs", SOFT, 11, "end")
        _scatter(axes, values, active, record["baseline"])
    _legend(figure, 64, figure.height - 12)
    return figure


def relation_name(record: Record) -> str:
    """Return a relation as the parser calls it, with the paper's name where that is another."""
    name = record["relation"]
    paper = record["stanford"]
    return name if name == paper else f"{name} ({paper})"


_RELATIONS = 12  # panels of figure 4 at most
_LAYERS = [[37, 99, 235], [22, 163, 74], [217, 119, 6]]  # blue, green, orange
_SHARES = [[244, 243, 239], [11, 94, 87]]  # white for a share of 0, deep teal for 1


def _mixed(colours: Sequence[Sequence[int]], place: float) -> str:
    """Return a colour between those that are at 0, 1, …"""
    channels = zip(*colours, strict=True)
    mixed = [float(np.interp(place, range(len(colours)), channel)) for channel in channels]
    return "#{:02x}{:02x}{:02x}".format(*map(round, mixed))


def head_map(records: Sequence[Record]) -> Figure | None:
    """Return heads as dots, as far from one another as their Jensen-Shannon distances.

    None where no distances were measured.
    """
    heads = [record for record in of_kind(records, "text-head") if "x" in record]
    if not heads:
        return None
    points = np.array([[head["x"], head["y"]] for head in heads])
    low = points.min(0)
    extent = points.max(0) - low
    scale = 480 / max(*extent, 1e-9)
    places = (np.array([40, 60]) + (480 - extent * scale) / 2 + (points - low) * scale).tolist()
    figure = Figure(640, 590, "Attention heads by their Jensen-Shannon distances")
    figure.text(64, 34, "Heads by Jensen-Shannon distance", bold=True, size=14)
    layers = max(head["layer"] for head in heads)
    shades = [_mixed(_LAYERS, place) for place in np.linspace(0, 2, max(layers, 2))[:layers]]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places]
    for head, (x, y) in zip(heads, places, strict=True):
        figure.dot(x, y, 4.5, shades[head["layer"] - 1], head["name"])
        # A name is placed where it covers nothing; in a crowd it is left out, and an SVG shows it
        # under the mouse.
        half = 2.5 * len(head["name"])
        for right, down in ((7 + half, 3), (-7 - half, 3), (0, -7), (0, 13)):
            box = (x + right - half, y + down - 8, x + right + half, y + down + 1)
            own = (x - 4, y - 4, x + 4, y + 4)
            if not any(_overlap(box, other) for other in taken if other != own):
                figure.text(x + right, y + down, head["name"], SOFT, 8, "middle")
                taken.append(box)
                break
    for layer, shade in enumerate(shades, 1):
        figure.dot(570, 60 + 18 * layer, 4.5, shade)
        figure.text(582, 64 + 18 * layer, f"layer {layer}", SOFT, 11)
    return figure


def _overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two boxes (left, top, right, bottom) touch."""
    apart = one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]
    return not apart


_PANELS = (
    ("cls", "to [CLS]"),
    ("sep", "to [SEP]"),
    ("punctuation", "to punctuation"),
    ("previous", "to the previous token"),
    ("next", "to the next token"),
    ("self", "to itself"),
    ("entropy", "entropy"),
)


def pattern_figure(records: Sequence[Record]) -> Figure | None:
    """Return the targets of heads by layer, one panel per kind of token, and their entropy.

    None where there are no heads.
    """
    heads = of_kind(records, "text-head")
    if not heads:
        return None
    figure = Figure(960, 860, "Targets of the attention heads by layer")
    layers = max(head["layer"] for head in heads)
    count = max(head["head"] for head in heads)
    for number, (key, name) in enumerate(_PANELS):
        values = [float(head[key]) for head in heads]
        entropy = key == "entropy"
        high = max(*values, 1e-6) * 1.08 if entropy else _top(values)
        left = 64 + number % 3 * 306
        top = 52 + number // 3 * 280
        axes = Axes(figure, left, top, 230, 166, layers, high)
        axes.frame(name, "nats" if entropy else "%", "layer")
        for head, value in zip(heads, values, strict=True):
            x = axes.beside(head["layer"], head["head"], count)
            figure.dot(x, axes.y(value), 3, ACCENT, f"{head['name']}: {value:.2f}")
    return figure


_DIRECTIONS = (
    ("to head", ACCENT, "word attends to its head"),
    ("to dependent", COLOURS[0], "head attends to the word"),
)
_CLASSIFIER = COLOURS[4]


def dependency_figure(records: Sequence[Record]) -> Figure | None:
    """Return how well the best head finds the words of each relation, with intervals.

    The best offset and, where there is one, the classifier are shown with it. None where there are
    no relations.
    """
    words = [r for r in of_kind(records, "dependency") if r["accuracy"] is not None]
    if not words:
        return None
    names = list(dict.fromkeys(record["relation"] for record in words))
    learnt = {record["relation"]: record for record in of_kind(records, "classifier")}
    left, top, wide, tall = 150, 84, 470, 44
    bottom = top + tall * len(names)
    figure = Figure(690, bottom + 44, "Dependency relations found by the best head")
    title = "Dependency relations: words whose head or dependent is found"
    figure.text(24, 30, title, bold=True, size=14)
    x = 24.0
    classifier = [(_CLASSIFIER, "classifier")] if learnt else []
    for colour, label in [*((colour, label) for _, colour, label in _DIRECTIONS), *classifier]:
        figure.dot(x + 4, 52, 4, colour)
        figure.text(x + 14, 56, label, SOFT, 11)
        x += 32 + 6.6 * len(label)
    figure.line(x + 4, 46, x + 4, 58, INK)
    figure.text(x + 12, 56, "best offset", SOFT, 11)
    for share in range(0, 101, 20):
        at = left + wide * share / 100
        figure.line(at, top - 8, at, bottom)
        label = f"{share} %" if share == 100 else str(share)
        figure.text(at, bottom + 18, label, SOFT, 11, "middle")

    def draw(record: Record, y: float, colour: str, label: str) -> None:
        low, at, high = (left + wide * record[key] / 100 for key in ("low", "accuracy", "high"))
        figure.line(low, y, high, y, colour)
        figure.dot(at, y, 4, colour, f"{label or 'classifier'}: {measured(record)} %")
        figure.text(left + wide + 14, y + 4, label, SOFT, 10)

    for row, name in enumerate(names):
        y = top + tall * row + 8
        found = {r["direction"]: r for r in words if r["relation"] == name}
        first = next(iter(found.values()))
        label = relation_name(first)
        label = label if len(label) <= 20 else label[:19] + "…"
        figure.text(left - 12, y + 16, label, anchor="end")
        base = left + wide * first["baseline"] / 100
        figure.line(base, y - 5, base, y + tall - 17, INK)
        for number, (direction, colour, _) in enumerate(_DIRECTIONS):
            if direction in found:
                draw(found[direction], y + 11 * number, colour, found[direction]["head"])
        if name in learnt:
            draw(learnt[name], y + 22, _CLASSIFIER, "")
    return figure


def percent(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """Return a share with its interval, as far as it has one."""
    if value is None:
        return "–"
    return f"{value:.2f}" + ("" if low is None else f" ({low:.1f} to {high:.1f})")


def measured(record: Record, name: str = "accuracy") -> str:
    """Return a share of a record with its interval, as far as the record has them."""
    ends = ("low", "high") if name == "accuracy" else (f"{name}_low", f"{name}_high")
    return percent(record[name], *(record.get(end) for end in ends))


# File, name on the page, and the function that draws it.
FIGURES: tuple[tuple[str, str, Callable[[Sequence[Record]], Figure | None]], ...] = (
    ("entity", "Heads by layer", entity_figure),
    ("relations", "Relations by layer", relation_figure),
    ("dependencies", "Dependency relations", dependency_figure),
    ("patterns", "Targets of heads", pattern_figure),
    ("heads", "Distances of heads", head_map),
)
# Files of `vg probe-attention` that not every run of it has.
FILES = re.compile(
    r"examples\.jsonl|page\.html|"
    rf"({'|'.join(file for file, *_ in FIGURES)}|example-\d+(\.layer-\d+)?)\.(svg|png)"
)

# ----------------------------------------------------------------------------------------- captions


def example_figure(example: AttentionExample) -> Figure:
    """Return figure 1: the photo with the boxes of the groups, and weights of words on groups."""
    groups = [
        (group, COLOURS[number % len(COLOURS)] if group.gold else _OTHER)
        for number, group in enumerate(example.groups)
    ]
    words = [example.text[start:end] for start, end in example.words]
    weights = example.grouped()[example.chosen]
    wide = 300.0
    high = wide * example.regions.height / max(example.regions.width, 1)
    cell, line, label = 46, 17, 96
    panel = label + cell * max(len(groups), 1) + 26
    columns = min(3, len(example.chosen))
    rows = -(-len(example.chosen) // columns)
    tall = 74 + line * len(words) + 22
    height = max(60 + high + 20 * len(groups), 30 + rows * tall) + 24
    figure = Figure(24 + wide + 30 + columns * panel, height, example.text)
    _photo(figure, example, groups, 24, 40, wide, high)
    figure.text(24, 26, example.image[:48], SOFT, 11)
    for number, (group, colour) in enumerate(groups):
        y = 40 + high + 24 + 20 * number
        figure.box(24, y - 10, 11, 11, colour)
        figure.text(42, y, group.name[:44])
    for number, layer in enumerate(example.chosen):
        left = 24 + wide + 30 + number % columns * panel + label
        top = 26 + number // columns * tall
        figure.text(left, top, f"Layer {layer + 1}, head {example.heads[layer]}", bold=True)
        for column, (group, colour) in enumerate(groups):
            x = left + cell * column
            figure.box(x + 2, top + 10, cell - 4, 5, colour)
            # The last word of a phrase, in English mostly its head, is cut to the column.
            word = (group.name.split() or [""])[-1][:8]
            figure.text(x + cell / 2, top + 30, word, SOFT, 9, "middle")
        for row, word in enumerate(words):
            y = top + 38 + line * row
            figure.text(left - 6, y + 12, word[:14], size=11, anchor="end")
            for column, value in enumerate(weights[number, row].tolist()):
                x = left + cell * column
                # The square root makes small shares visible.
                shade = _mixed(_SHARES, math.sqrt(min(max(value, 0.0), 1.0)))
                figure.box(x + 1, y, cell - 2, line - 2, shade)
                if value >= 0.05:
                    # These stay the same on dark screens.
                    colour = "#fefefe" if value > 0.45 else "#1c1a17"
                    figure.text(x + cell / 2, y + 12, f"{100 * value:.0f}", colour, 10, "middle")
    return figure


def _photo(
    figure: Figure,
    example: AttentionExample,
    groups: Sequence[tuple[Group, str]],
    x: float,
    y: float,
    wide: float,
    high: float,
) -> None:
    """Draw the photo and the boxes of the groups."""
    if example.picture is not None:
        figure.picture(x, y, wide, high, example.picture)
    else:
        figure.box(x, y, wide, high, LINE)
        figure.text(x + wide / 2, y + high / 2, "the photo cannot be shown", SOFT, 12, "middle")
    scale = np.array([wide / example.regions.width, high / example.regions.height] * 2)
    for group, colour in reversed(groups):
        for region in group.regions:
            x1, y1, x2, y2 = (example.regions.boxes[region] * scale).tolist()
            figure.box(x + x1, y + y1, x2 - x1, y2 - y1, colour, group.name, hollow=True)
