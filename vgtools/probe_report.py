"""Figures, tables and the page of `vg probe-attention`, from its records and a few captions looked at closely.

Source: Li et al. 2020 (What Does BERT with Vision Look At?), figures 1, 3, 4 and 5, table 2; Clark et al. 2019 (What Does BERT
Look At?), figures 2, 4 and 6.

Axes: L layers, W words, R regions.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from markupsafe import Markup

from vgtools import __version__
from vgtools.io import atomic_write, dumps, plain
from vgtools.plots import ACCENT, INK, LINE, PALE, SOFT, Axes, Board
from vgtools.regions import RegionSet, iou
from vgtools.report import csp_hash, locate, readable, script_json, thumbnail
from vgtools.sources import read_image

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]
Record = Mapping[str, Any]

COLOURS = ("#d97706", "#2563eb", "#16a34a", "#db2777", "#7c3aed", "#0891b2", "#b45309", "#65a30d")
OTHER = "#6b7280"  # regions that no gold box is near to
_ACTIVE_REGION = 0.1  # a region without gold is shown where a word gives it this share of its attention
_MOST_OTHERS = 4
_OVERLAP = 0.5
WORD = re.compile(r"\w(?:[\w'’-]*\w)?|[^\w\s]")


def _of(records: Iterable[Record], kind: str) -> list[Record]:
    return [r for r in records if r["kind"] == kind]


# ---------------------------------------------------------------------------------------------------------------- figures


def _scatter(board: Board, axes: Axes, accuracies: Array, active: Array, baseline: float, bound: float | None) -> None:
    """Draw every head of every layer: active ones dark and large, the others light and small; the baseline as a line."""
    heads = accuracies.shape[1]
    right = axes.left + axes.width
    board.line(axes.left, axes.y(baseline), right, axes.y(baseline), "#8a8378")
    if bound is not None and bound <= axes.high:
        board.line(axes.left, axes.y(bound), right, axes.y(bound), "#8a8378", dashed=True)
    for alive in (False, True):
        for layer, head in np.argwhere(active == alive).tolist():
            value = float(accuracies[layer, head])
            share = "active" if alive else "not active"
            board.dot(
                axes.beside(layer + 1, head + 1, heads),
                axes.y(value),
                4 if alive else 2.2,
                ACCENT if alive else PALE,
                f"{layer + 1}-{head + 1}: {value:.1f} %, {share}",
            )


def _top(values: Iterable[float]) -> float:
    return min(100.0, 5.0 * math.ceil(max(*values, 4.0) * 1.08 / 5))


def entity_figure(records: Sequence[Record]) -> Board | None:
    """Return figure 3: entity grounding accuracy of all heads by layer; None where there are none."""
    heads, summary = _of(records, "head"), _of(records, "summary")
    if not heads:
        return None
    shape = (summary[0]["layers"], summary[0]["heads"])
    values, active = (np.array([h[key] for h in heads]).reshape(shape) for key in ("accuracy", "active"))
    baseline, bound = summary[0]["baseline"], summary[0]["upper_bound"]
    board = Board(640, 430, "Entity grounding accuracy of the attention heads by layer")
    axes = Axes(board, 64, 56, 556, 300, shape[0], _top([float(values.max()), baseline]))
    axes.frame("Entity grounding", "accuracy, %", "layer")
    _scatter(board, axes, values, active, baseline, bound)
    board.text(620, 48, f"upper bound{' (dashed)' if bound <= axes.high else ''}: {bound:.1f} %", SOFT, 11, "end")
    _legend(board, 30, 418, baseline)
    return board


def _legend(board: Board, x: float, y: float, baseline: float | None = None) -> None:
    board.dot(x + 4, y - 4, 4, ACCENT)
    board.text(x + 14, y, "active: over 20 % to regions", SOFT, 11)
    board.dot(x + 208, y - 4, 2.2, PALE)
    board.text(x + 216, y, "not active", SOFT, 11)
    board.line(x + 300, y - 4, x + 320, y - 4, "#8a8378")
    board.text(x + 328, y, "most confident region" + ("" if baseline is None else f": {baseline:.1f} %"), SOFT, 11)


def relation_figure(records: Sequence[Record], most: int = 12) -> Board | None:
    """Return figure 4: syntactic grounding accuracy of all heads by layer, a panel a relation; None where there are none."""
    found = [r for r in _of(records, "relation") if r["entity"] == "either"][:most]
    if not found:
        return None
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    board = Board(max(660, 40 + columns * 300), 30 + rows * 280, "Syntactic grounding accuracy of the attention heads by layer")
    for number, record in enumerate(found):
        values, mass = np.array(record["accuracies"]), np.array(record["attentions"])
        left, top = 64 + number % columns * 300, 52 + number // columns * 280
        axes = Axes(board, left, top, 226, 166, len(values), _top([float(values.max()), record["baseline"]]))
        axes.frame(_name(record), "%", "layer")
        board.text(left + 226, top - 8, f"{record['pairs']:,} pairs", SOFT, 11, "end")
        _scatter(board, axes, values, mass > 20, record["baseline"], None)
    _legend(board, 64, board.height - 12)
    return board


def _name(record: Record) -> str:
    """Return a relation as the parser calls it, with the paper's name where that is another."""
    name, paper = record["relation"], record["stanford"]
    return readable(name if name == paper else f"{name} ({paper})")


def _shades(count: int) -> list[str]:
    """Return colours from blue over green to orange, one a layer."""
    ends = np.array([[37, 99, 235], [22, 163, 74], [217, 119, 6]], float)
    at = np.linspace(0, 2, max(count, 2))
    mixed = [ends[int(min(a, 1))] * (1 - (a - int(min(a, 1)))) + ends[int(min(a, 1)) + 1] * (a - int(min(a, 1))) for a in at]
    return ["#{:02x}{:02x}{:02x}".format(*(round(v) for v in colour)) for colour in mixed[:count]]


def head_map(records: Sequence[Record]) -> Board | None:
    """Return the heads as points whose distances are their Jensen-Shannon distances; None where none were measured."""
    heads = [r for r in _of(records, "text-head") if "x" in r]
    if not heads:
        return None
    points = np.array([[h["x"], h["y"]] for h in heads])
    low, high = points.min(0), points.max(0)
    scale = 480 / max(*(high - low), 1e-9)
    board = Board(640, 590, "Attention heads by their Jensen-Shannon distances")
    board.text(64, 34, "Heads by Jensen-Shannon distance", bold=True, size=14)
    shades = _shades(max(h["layer"] for h in heads))
    offset = (480 - (high - low) * scale) / 2
    spots = [(np.array([40, 60]) + offset + (point - low) * scale).tolist() for point in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
    for head, (x, y) in zip(heads, spots, strict=True):
        board.dot(x, y, 4.5, shades[head["layer"] - 1], head["name"])
        # A name stands where it covers nothing; in a crowd it is left out, and an SVG has it under the mouse.
        half = 2.5 * len(head["name"])
        for right, down in ((7 + half, 3), (-7 - half, 3), (0, -7), (0, 13)):
            box = (x + right - half, y + down - 8, x + right + half, y + down + 1)
            others = (t for t in taken if t != (x - 4, y - 4, x + 4, y + 4))
            if all(box[2] < t[0] or t[2] < box[0] or box[3] < t[1] or t[3] < box[1] for t in others):
                board.text(x + right, y + down, head["name"], SOFT, 8, "middle")
                taken.append(box)
                break
    for layer, shade in enumerate(shades, 1):
        board.dot(570, 60 + 18 * layer, 4.5, shade)
        board.text(582, 64 + 18 * layer, f"layer {layer}", SOFT, 11)
    return board


_PANELS = (("cls", "to [CLS]"), ("sep", "to [SEP]"), ("punctuation", "to punctuation"),
           ("previous", "to the previous token"), ("next", "to the next token"), ("self", "to itself"))  # fmt: skip


def pattern_figure(records: Sequence[Record]) -> Board | None:
    """Return what heads look at by layer, one panel a kind of token, and their entropy; None where there are none."""
    heads = _of(records, "text-head")
    if not heads:
        return None
    board = Board(960, 860, "What the attention heads look at, by layer")
    layers, count = (max(h[key] for h in heads) for key in ("layer", "head"))
    for number, (key, name) in enumerate((*_PANELS, ("entropy", "entropy"))):
        values = [float(h[key]) for h in heads]
        high = max(values) * 1.08 if key == "entropy" else _top(values)
        axes = Axes(board, 64 + number % 3 * 306, 52 + number // 3 * 280, 230, 166, layers, max(high, 1e-6))
        axes.frame(name, "nats" if key == "entropy" else "%", "layer")
        for head, value in zip(heads, values, strict=True):
            board.dot(axes.beside(head["layer"], head["head"], count), axes.y(value), 3, ACCENT, f"{head['name']}: {value:.2f}")
    return board


def dependency_figure(records: Sequence[Record]) -> Board | None:
    """Return how well the best head finds the words of each relation, with intervals, beside the offset and the classifier."""
    words = [r for r in _of(records, "dependency") if r["accuracy"] is not None]
    if not words:
        return None
    names = list(dict.fromkeys(r["relation"] for r in words))
    tried = {r["relation"]: r for r in _of(records, "classifier")}
    left, top, wide, tall = 150, 84, 470, 44
    board = Board(690, top + tall * len(names) + 44, "Dependency relations found by the best head")
    board.text(24, 30, "Dependency relations: words whose head or dependent is found", bold=True, size=14)
    marks = [("to head", ACCENT, "word attends to its head"), ("to dependent", COLOURS[0], "head attends to the word")]
    x = 24.0
    for _, colour, words_of in [*marks, *([("", COLOURS[4], "classifier")] if tried else [])]:
        board.dot(x + 4, 52, 4, colour)
        board.text(x + 14, 56, words_of, SOFT, 11)
        x += 32 + 6.6 * len(words_of)
    board.line(x + 4, 46, x + 4, 58, INK)
    board.text(x + 12, 56, "best offset", SOFT, 11)
    bottom = top + tall * len(names)
    for share in range(0, 101, 20):
        at = left + wide * share / 100
        board.line(at, top - 8, at, bottom)
        board.text(at, bottom + 18, f"{share} %" if share == 100 else str(share), SOFT, 11, "middle")

    def draw(record: Record, y: float, colour: str, label: str) -> None:
        low, at, high = (left + wide * record[key] / 100 for key in ("low", "accuracy", "high"))
        board.line(low, y, high, y, colour)
        board.dot(at, y, 4, colour, f"{label or 'classifier'}: {_measured(record)} %")
        board.text(left + wide + 14, y + 4, label, SOFT, 10)

    for row, name in enumerate(names):
        y = top + tall * row + 8
        own = {r["direction"]: r for r in words if r["relation"] == name}
        first = next(iter(own.values()))
        board.text(left - 12, y + 16, _short_name(first), anchor="end")
        base = left + wide * first["baseline"] / 100
        board.line(base, y - 5, base, y + tall - 17, INK)
        for n, (direction, colour, _) in enumerate(marks):
            if direction in own:
                draw(own[direction], y + 11 * n, colour, own[direction]["head"])
        if name in tried:
            draw(tried[name], y + 22, COLOURS[4], "")
    return board


def _short_name(record: Record) -> str:
    name = _name(record)
    return name if len(name) <= 20 else name[:19] + "…"


# File, name on the page, and what draws it.
FIGURES: tuple[tuple[str, str, Callable[[Sequence[Record]], Board | None]], ...] = (
    ("entity", "Heads by layer", entity_figure),
    ("relations", "Relations by layer", relation_figure),
    ("dependencies", "Dependency relations", dependency_figure),
    ("patterns", "What heads look at", pattern_figure),
    ("heads", "Distances of heads", head_map),
)

# ----------------------------------------------------------------------------------------------------------------- tables


class Table(NamedTuple):
    """Numbers with a title, ready for Markdown or for the page."""

    title: str
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""


def _percent(value: Any, low: Any = None, high: Any = None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" + ("" if low is None else f" ({low:.1f} to {high:.1f})")


def _measured(record: Record, name: str = "accuracy") -> str:
    """Return a share with its interval, as far as a record has them."""
    ends = ("low", "high") if name == "accuracy" else (f"{name}_low", f"{name}_high")
    return _percent(record[name], *(record.get(end) for end in ends))


def _p(record: Record) -> str:
    return f"{record['p']:.2g}" if "p" in record else "–"


def results(records: Sequence[Record]) -> list[Table]:
    """Return what was found as tables: the summary, layers, Table 2, and the text-side probes."""
    found = list[Table]()
    for s in _of(records, "summary"):
        chosen = "none is active" if s["head"] is None else f"{s['head']}, chosen on {s['selected_on']}"
        rows = [
            (f"best active head: {chosen}", _measured(s)),
            ("most confident region", _measured(s, "baseline")),
            *([(f"difference, p = {_p(s)}", _measured(s, "difference"))] if s["head"] is not None else []),
            ("upper bound: some region is right", _percent(s["upper_bound"])),
        ]
        counts = f"{s['entities']:,} entities, {s['captions']:,} captions, {s['photos']:,} photos"
        note = f"{counts}; {s['active_heads']} of {s['layers'] * s['heads']} heads are active."
        found.append(Table("Entity grounding", ("", f"accuracy, % ({100 * s['level']:g} % interval)"), rows, note))
    layers, apart = _of(records, "layer"), any("chosen" in r for r in _of(records, "layer"))
    lines = [
        (str(r["layer"]), *((_percent(r["chosen"]), r["chosen_head"]) if apart else ()), _percent(r["best"]), r["best_head"],
         _percent(r["best_active"]), _percent(r["mean"]), str(r["active_heads"]), _percent(r["attention"]))
        for r in layers
    ]  # fmt: skip
    head: tuple[str, ...] = ("layer", "best", "head", "best active", "mean", "active heads", "to regions, %")
    head = (head[0], *(("chosen", "its head") if apart else ()), *head[1:])
    note = "chosen: the best head of other photos, measured on these; best: of these, which flatters." if apart else ""
    found.append(Table("Entity grounding by layer", head, lines, note))
    relations = [
        (_name(r), r["entity"], f"{r['pairs']:,}", _measured(r, "baseline"), _measured(r), r["head"] or "–", _p(r))
        for r in _of(records, "relation")
    ]
    found.append(Table("Syntactic grounding", ("type", "entity is", "pairs", "baseline", "acc", "head", "p"), relations))
    words = [
        (
            _name(r),
            r["direction"],
            f"{r['words']:,}",
            r["head"] or "–",
            _measured(r),
            _offset(r),
            _measured(r, "baseline"),
            _p(r),
        )
        for r in _of(records, "dependency")
    ]
    note = "p is that of the difference to the offset" + (
        "; head and offset were chosen on other sentences." if _elsewhere(records) else ", corrected over all heads."
    )
    head = ("relation", "direction", "words", "head", "accuracy", "best offset", "its accuracy", "p")
    found.append(Table("Dependency relations between words", head, words, note))
    tried = _of(records, "classifier")
    scores = [(_name(r), f"{r['words']:,}", _measured(r), _offset(r), _measured(r, "baseline"), _p(r)) for r in tried]
    kind = {"attention": "attention alone", "words": "attention and words"}[tried[0]["classifier"]] if tried else ""
    note = f"Learned on {tried[0]['trained_on']:,} other sentences, as the offsets were." if tried else ""
    head = ("relation", "words", "accuracy", "offset", "its accuracy", "p")
    found.append(Table(f"Heads of words, found by a classifier from {kind}", head, scores, note))
    return [table for table in found if table.rows]


def _offset(record: Record) -> str:
    return "–" if record["offset"] is None else f"{record['offset']:+d}"


def _elsewhere(records: Sequence[Record]) -> bool:
    return any(r.get("selected_on", "the same texts") != "the same texts" for r in _of(records, "text-summary"))


def tables(records: Sequence[Record]) -> str:
    """Return the results as Markdown."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(readable(c).replace("|", "\\|").replace("<", "\\<").replace("\n", " ") for c in cells) + " |"

    out = list[str]()
    for table in results(records):
        out += [f"## {table.title}", "", line(table.head), "|---" * len(table.head) + "|", *map(line, table.rows), ""]
        out += [table.note, ""] if table.note else []
    return "\n".join(out)


# --------------------------------------------------------------------------------------------------------------- examples


@dataclass(frozen=True)
class Group:
    """Regions that show one thing."""

    name: str
    gold: bool  # a gold box is near; else the name carries an asterisk
    regions: list[int]
    tint: int  # place in COLOURS, -1 for a region without gold

    @property
    def colour(self) -> str:
        """The colour of its boxes in a figure."""
        return OTHER if self.tint < 0 else COLOURS[self.tint]

    @property
    def look(self) -> str:
        """What the page calls that colour."""
        return "x" if self.tint < 0 else str(self.tint)


@dataclass(frozen=True)
class Example:
    """One caption under the microscope: what each word attends to, by the best head of each layer."""

    image: str
    text: str
    words: list[tuple[int, int]]  # W spans
    regions: RegionSet
    groups: list[Group]
    heads: list[str]  # L names of the best heads
    chosen: list[int]  # layers of the figure, from 0
    weights: Array  # (L, W, R) share of the word's attention
    picture: Image | None  # None: it could not be shown

    def grouped(self) -> Array:
        """Return the weight of each group: (L, W, groups), sums over its regions."""
        return np.stack([self.weights[:, :, g.regions].sum(-1) for g in self.groups], -1)


def make_groups(
    text: str, spans: Sequence[tuple[int, int]], boxes: Sequence[Array], regions: RegionSet, weights: Array
) -> list[Group]:
    """Sort regions by what they show.

    A region with an IoU of 0.5 or more with a gold box belongs to the phrase whose box it fits best; of each gold box the
    region closest to it belongs to its phrase, too. Phrases with the same boxes (one chain) are one group. Of the others,
    those that a word gives 10 % of its attention or more stand alone, four at most, marked with an asterisk.

    Args:
        text: the caption.
        spans: P phrases with boxes.
        boxes: P times (G, 4).
        regions: of the photo.
        weights: (layers, W, R) attention of words to regions.

    Source: Li et al. 2020, section 3.2. Deviation: the paper groups by hand.
    """
    names, golds = list[str](), list[Array]()
    for (start, end), gold in zip(spans, boxes, strict=True):
        if not any(np.array_equal(gold, other) for other in golds):
            names.append(text[start:end])
            golds.append(gold)
    overlap = np.array([iou(gold, regions.boxes).max(0) for gold in golds]).reshape(len(golds), len(regions))
    owner = np.full(len(regions), -1)
    if len(golds):
        best = overlap.argmax(0)
        owner = np.where(overlap[best, np.arange(len(regions))] >= _OVERLAP, best, -1)
        for number, gold in enumerate(golds):
            closest = iou(gold, regions.boxes)
            for region in closest.argmax(1)[closest.max(1) > 0].tolist():
                owner[region] = number if owner[region] < 0 else owner[region]
    found = [
        Group(name, True, np.flatnonzero(owner == n).tolist(), n % len(COLOURS))
        for n, name in enumerate(names)
        if (owner == n).any()
    ]
    most = np.where(owner < 0, weights.max((0, 1), initial=0), 0)
    for region in np.argsort(-most, kind="stable")[:_MOST_OTHERS].tolist():
        if most[region] >= _ACTIVE_REGION:
            name = regions.labels[region] if regions.labels else f"region {region + 1}"
            found.append(Group(name + "*", False, [region], -1))
    return found


def example_figure(example: Example) -> Board:
    """Return figure 1: the photo with the groups' boxes, and for each chosen layer the weights of words on groups."""
    groups, words = example.groups, [readable(example.text[a:b]) for a, b in example.words]
    weights = example.grouped()[example.chosen] if groups else np.zeros((len(example.chosen), len(words), 0))
    wide, high = 300.0, 300.0 * example.regions.height / max(example.regions.width, 1)
    cell, line, label = 46, 17, 96
    panel = label + cell * max(len(groups), 1) + 26
    columns = min(3, len(example.chosen))
    rows = -(-len(example.chosen) // columns)
    tall = 74 + line * len(words) + 22
    board = Board(24 + wide + 30 + columns * panel, max(60 + high + 20 * len(groups), 30 + rows * tall) + 24, example.text)
    _scene(board, example, 24, 40, wide, high)
    board.text(24, 26, readable(example.image)[:48], SOFT, 11)
    for n, group in enumerate(groups):
        y = 40 + high + 24 + 20 * n
        board.box(24, y - 10, 11, 11, group.colour)
        board.text(42, y, readable(group.name)[:44], size=12)
    for n, layer in enumerate(example.chosen):
        left, top = 24 + wide + 30 + n % columns * panel, 26 + n // columns * tall
        board.text(left + label, top, f"Layer {layer + 1}, head {example.heads[layer]}", bold=True, size=12)
        for g, group in enumerate(groups):
            x = left + label + cell * g
            board.box(x + 2, top + 10, cell - 4, 5, group.colour)
            board.text(x + cell / 2, top + 30, _short(group.name), SOFT, 9, "middle")
        for w, word in enumerate(words):
            y = top + 38 + line * w
            board.text(left + label - 6, y + 12, word[:14], size=11, anchor="end")
            for g in range(len(groups)):
                value = float(weights[n, w, g])
                board.box(left + label + cell * g + 1, y, cell - 2, line - 2, shade(value))
                if value >= 0.05:
                    board.text(
                        left + label + cell * (g + 0.5),
                        y + 12,
                        f"{100 * value:.0f}",
                        "#ffffff" if value > 0.45 else INK,
                        10,
                        "middle",
                    )
    return board


def _short(name: str) -> str:
    """Return the last word of a phrase, which in English mostly says what it is about, as far as a column has room."""
    return readable(([*name.split()] or [""])[-1])[:8]


def shade(value: float) -> str:
    """Return the colour of a share: white for 0, deep teal for 1."""
    low, high = np.array([244, 243, 239]), np.array([11, 94, 87])
    mixed = low + (high - low) * math.sqrt(min(max(value, 0.0), 1.0))
    return "#{:02x}{:02x}{:02x}".format(*(round(float(v)) for v in mixed))


def _scene(board: Board, example: Example, x: float, y: float, wide: float, high: float) -> None:
    """Put the photo and the boxes of the groups on a board."""
    if example.picture is not None:
        board.picture(x, y, wide, high, example.picture)
    else:
        board.box(x, y, wide, high, LINE)
        board.text(x + wide / 2, y + high / 2, "the photo cannot be shown", SOFT, 12, "middle")
    scale = np.array([wide / example.regions.width, high / example.regions.height] * 2)
    for group in reversed(example.groups):
        for region in group.regions:
            x1, y1, x2, y2 = (example.regions.boxes[region] * scale).tolist()
            board.box(x + x1, y + y1, x2 - x1, y2 - y1, group.colour, group.name, hollow=True)


def _data(example: Example) -> dict[str, Any]:
    """Return what the page's script needs of an example; weights in tenths of a percent."""
    labels = example.regions.labels or [""] * len(example.regions)
    return {
        "words": [readable(example.text[a:b]) for a, b in example.words],
        "heads": example.heads,
        "groups": [
            {"name": readable(g.name), "colour": n if g.gold else "x", "regions": g.regions}
            for n, g in enumerate(example.groups)
        ],
        "labels": [readable(label) for label in labels],
        "weights": np.round(1000 * example.weights).astype(int).tolist(),
    }


def _parts(example: Example) -> list[dict[str, Any]]:
    """Lay a caption out: gaps as they are, words by number."""
    parts, done = list[dict[str, Any]](), 0
    for number, (start, end) in enumerate(example.words):
        if start > done:
            parts.append({"gap": readable(example.text[done:start])})
        parts.append({"word": readable(example.text[start:end]), "number": number})
        done = end
    return [*parts, {"gap": readable(example.text[done:])}]


def _uri(picture: Image | None) -> str | None:
    if picture is None:
        return None
    out = BytesIO()
    picture.save(out, "WEBP", quality=80, method=2)
    return "data:image/webp;base64," + base64.b64encode(out.getvalue()).decode()


def page(examples: Sequence[Example], records: Sequence[Record], title: str, credit: str = "") -> bytes:
    """Return one HTML page: click a word to see what it attends to, region by region, layer by layer.

    Args:
        examples: captions under the microscope.
        records: of the probe, for the figure and the summary on top.
        title: the model's name.
        credit: whose the photos are.

    Returns:
        UTF-8; it loads nothing, runs no script but its own, and shows the figure's tables without any.

    Source: Li et al. 2020, figures 1 and 5.
    """
    import jinja2

    assets = jinja2.PackageLoader("vgtools", "assets")
    environment = jinja2.Environment(loader=assets, autoescape=True, undefined=jinja2.StrictUndefined)
    style, script = (assets.get_source(environment, name)[0] for name in ("probe.css", "probe.js"))
    summary = next(iter(_of(records, "summary")), None)
    figures = [(name, board) for _, name, draw in FIGURES if (board := draw(records)) is not None]
    shown = []
    for example in examples:
        weights = example.grouped() if example.groups else np.zeros((*example.weights.shape[:2], 0))
        shown.append(
            {
                "image": readable(example.image),
                "text": readable(example.text),
                "uri": _uri(example.picture),
                "width": example.regions.width,
                "height": example.regions.height,
                "parts": _parts(example),
                "boxes": [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in np.round(example.regions.boxes, 1).tolist()],
                "owner": {r: g.look for g in example.groups for r in g.regions},
                "groups": [{"name": readable(g.name), "colour": g.look, "count": len(g.regions)} for g in example.groups],
                "panels": [
                    {
                        "name": f"Layer {layer + 1}, head {example.heads[layer]}",
                        "rows": [
                            {
                                "word": readable(example.text[a:b]),
                                "cells": [[_step(v), round(100 * v)] for v in weights[layer, n].tolist()],
                            }
                            for n, (a, b) in enumerate(example.words)
                        ],
                    }
                    for layer in example.chosen
                ],
            }
        )
    return (
        environment.get_template("probe.html")
        .render(
            title=readable(title),
            version=__version__,
            style=Markup(style),
            style_hash=csp_hash(style),
            script=Markup(script),
            script_hash=csp_hash(script),
            summary=summary,
            figures=[(name, Markup(board.svg().decode())) for name, board in figures],
            tables=[t._replace(rows=[tuple(map(readable, row)) for row in t.rows]) for t in results(records)],
            texts=next(iter(_of(records, "text-summary")), None),
            tried=next((r for r in reversed(_of(records, "classifier")) if r["relation"].startswith("all")), None),
            examples=shown,
            credit=readable(credit),
            data=script_json([_data(e) for e in examples]),
        )
        .encode()
    )


def _step(value: float) -> int:
    """Return the class of a share: 0 to 10, finer below."""
    return round(10 * math.sqrt(min(max(value, 0.0), 1.0)))


# ------------------------------------------------------------------------------------------------------------------ files


def with_pictures(examples: Iterable[Example], source: str, side: int = 640) -> tuple[list[Example], list[str]]:
    """Return examples with their photos, and what is wrong with those that cannot be shown.

    Args:
        examples: without pictures.
        source: image rows or a directory, as `report.locate` takes them.
        side: px of the longer side of a photo at most.
    """
    found, faults = list(examples), list[str]()
    places = locate(source, {e.image for e in found})
    shown = list[Example]()
    for example in found:
        picture = None
        try:
            picture = thumbnail(read_image(str(places[example.image].path)), side)
        except KeyError:
            faults.append(f"{example.image}: not among the images")
        except Exception as error:  # decoders raise whatever a broken picture makes of them
            faults.append(f"{example.image}: {plain(error)[:160]}")
        shown.append(replace(example, picture=picture))
    return shown, faults


def save(folder: Path, records: Sequence[Record], examples: Sequence[Example], title: str, credit: str = "") -> list[Path]:
    """Write results, tables, figures and the page into a folder; each file is whole or not there.

    Returns:
        The files: probe.jsonl first.
    """
    text = tables(records)
    files = {"probe.jsonl": b"".join(map(dumps, records)), "tables.md": text.encode()}
    boards = {file: board for file, _, draw in FIGURES if (board := draw(records)) is not None}
    boards |= {f"example-{n}": example_figure(e) for n, e in enumerate(examples, 1)}
    for name, board in boards.items():
        files |= {f"{name}.svg": board.svg(), f"{name}.png": board.png()}
    files["page.html"] = page(examples, records, title, credit)
    for name, data in files.items():
        atomic_write(folder / name, data)
    return [folder / name for name in files]
