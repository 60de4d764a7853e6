"""Tables, files and the page of `vg probe-attention`.

Source: Li et al. 2020 (What Does BERT with Vision Look At?), figures 1 and 5, table 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from vgtools.images.sources import read_image
from vgtools.io.errors import plain
from vgtools.io.files import dumps
from vgtools.io.inputs import Inputs
from vgtools.io.output import write_files
from vgtools.reports.drawing import COLOURS, DARK_STYLE
from vgtools.reports.figures import (
    FIGURES,
    FILES,
    example_figure,
    measured,
    of_kind,
    percent,
    relation_name,
)
from vgtools.reports.page import credit, data_uri, locate, readable, render, thumbnail
from vgtools.reports.tables import Table
from vgtools.systems.attention_probes.examples import AttentionExample
from vgtools.systems.attention_probes.probing import Findings

Record = Mapping[str, Any]

# ------------------------------------------------------------------------------------------- tables


def results(records: Sequence[Record]) -> list[Table]:
    """Return the results as tables: the summary, layers, Table 2, and the text-side probes."""
    tables = [
        *map(_summary, of_kind(records, "summary")),
        _controls(records),
        _layers(of_kind(records, "layer")),
        _relations(of_kind(records, "relation")),
        _dependencies(records),
        _classifier(of_kind(records, "classifier")),
        _reported(of_kind(records, "reported")),
    ]
    return [table for table in tables if table.rows]


def _summary(record: Record) -> Table:
    head = record["head"]
    chosen = "none is active" if head is None else f"{head}, chosen on {record['selected_on']}"
    rows = [
        (f"best active head: {chosen}", measured(record)),
        ("most confident region", measured(record, "baseline")),
    ]
    if head is not None:
        rows.append(("difference" + _p_of(record["p"]), measured(record, "difference")))
    rows.append(("upper bound: some region is right", percent(record["upper_bound"])))
    if record.get("word_specific") is not None:
        asked = "head minus itself asked by a caption of another photo"
        cell = measured(record, "word_specific")
        rows.insert(0, (asked + _p_of(record["word_specific_p"]), cell))
    remark = (
        f"{record['entities']:,} entities, {record['captions']:,} captions, "
        f"{record['photos']:,} photos; {record['active_heads']} of "
        f"{record['layers'] * record['heads']} heads are active."
    )
    accuracy = f"accuracy, % ({100 * record['level']:g} % interval)"
    return Table(("", accuracy), rows, [remark], "Entity grounding")


def _controls(records: Sequence[Record]) -> Table:
    controls = list(of_kind(records, "control"))
    rows = [
        {
            "control": record["control"],
            "entities": f"{record['entities']:,}",
            "head": measured(record),
            "control, %": measured(record, "baseline"),
            "difference": measured(record, "difference") if "difference" in record else "–",
            "p": _p(record),
        }
        for record in controls
    ]
    remarks = [
        "The same head asked with a wrong word, and rules that see no word. Only the margin above "
        "all of them is due to the word."
    ]
    if not any("difference" in record for record in controls):
        remarks = ["No head is active: nothing is compared with the controls."]
    shares = [record.get("annotated_regions") for record in of_kind(records, "summary")]
    if shares and shares[0]:
        share = f"{percent(shares[0])} % of the entities"
        remarks.append(
            f"Boxes of the annotation are among the regions: {share} have a gold box itself there."
        )
    return _table("Word-blind controls", rows, *remarks)


def _table(title: str, rows: Sequence[Mapping[str, str]], *remarks: str) -> Table:
    """Return a table of rows that name their columns."""
    headings = list(rows[0]) if rows else []
    return Table(headings, [list(row.values()) for row in rows], remarks, title)


def _layers(records: Sequence[Record]) -> Table:
    rows = []
    for record in records:
        chosen = dict[str, str]()
        if "chosen" in record:
            chosen = {"chosen": percent(record["chosen"]), "its head": record["chosen_head"]}
        rows.append(
            {
                "layer": str(record["layer"]),
                **chosen,
                "best": percent(record["best"]),
                "head": record["best_head"],
                "best active": percent(record["best_active"]),
                "mean": percent(record["mean"]),
                "active heads": str(record["active_heads"]),
                "to regions, %": percent(record["attention"]),
            }
        )
    remark = "chosen: the best head of other photos, measured on these; best: on these"
    remarks = [f"{remark}, which flatters."] if rows and "chosen" in rows[0] else []
    return _table("Entity grounding by layer", rows, *remarks)


def _relations(records: Sequence[Record]) -> Table:
    rows = [
        {
            "type": relation_name(record),
            "entity is": record["entity"],
            "pairs": f"{record['pairs']:,}",
            "baseline": measured(record, "baseline"),
            "acc": measured(record),
            "head": record["head"] or "–",
            "p": _p(record),
        }
        for record in records
    ]
    return _table("Syntactic grounding", rows)


def _dependencies(records: Sequence[Record]) -> Table:
    rows = [
        {
            "relation": relation_name(record),
            "direction": record["direction"],
            "words": f"{record['words']:,}",
            "head": record["head"] or "–",
            "accuracy": measured(record),
            "best offset": _offset(record),
            "its accuracy": measured(record, "baseline"),
            "p": _p(record),
        }
        for record in of_kind(records, "dependency")
    ]
    same = "the same texts"
    sides = {record.get("selected_on", same) for record in of_kind(records, "text-summary")}
    elsewhere = "; head and offset were chosen on other sentences."
    corrected = elsewhere if sides - {same} else ", corrected over all heads."
    remark = f"p is for the difference to the offset{corrected}"
    return _table("Dependency relations between words", rows, remark)


def _classifier(records: Sequence[Record]) -> Table:
    if not records:
        return _table("", [])
    rows = [
        {
            "relation": relation_name(record),
            "words": f"{record['words']:,}",
            "accuracy": measured(record),
            "offset": _offset(record),
            "its accuracy": measured(record, "baseline"),
            "p": _p(record),
        }
        for record in records
    ]
    kind = {"attention": "attention alone", "words": "attention and words"}
    title = f"Heads of words, found by a classifier from {kind[records[0]['classifier']]}"
    learnt = f"Learned on {records[0]['trained_on']:,} other sentences, as the offsets were."
    return _table(title, rows, learnt)


def _reported(records: Sequence[Record]) -> Table:
    rows = [
        {
            "type": record["of"],
            "baseline": percent(record["baseline"]),
            "acc": percent(record["accuracy"]),
            "head": record["head"] or "–",
        }
        for record in records
    ]
    sources = dict.fromkeys(record["source"] for record in records)
    remarks = [f"R{source[1:]}; its model, regions and parser are its own." for source in sources]
    return _table("Reported: best active heads", rows, *remarks)


def _p(record: Record) -> str:
    p = record.get("p")
    return "–" if p is None else f"{p:.2g}"


def _p_of(p: float | None) -> str:
    return ", no p-value below 30 photos" if p is None else f", p = {p:.2g}"


def _offset(record: Record) -> str:
    return "–" if record["offset"] is None else f"{record['offset']:+d}"


def tables(records: Sequence[Record]) -> str:
    """Return the results as markdown."""

    def line(cells: Iterable[str]) -> str:
        shown = map(readable, cells)
        escaped = (c.replace("|", "\\|").replace("<", "\\<").replace("\n", " ") for c in shown)
        return f"| {' | '.join(escaped)} |"

    lines = list[str]()
    for table in results(records):
        rule = "|---" * len(table.headings) + "|"
        lines += [f"## {table.title}", "", line(table.headings), rule]
        lines += [*map(line, table.rows), ""]
        for remark in table.remarks:
            lines += [remark, ""]
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------- page


def page(
    examples: Sequence[AttentionExample], records: Sequence[Record], title: str, credit: str = ""
) -> bytes:
    """Return one HTML page: click a word to see what it attends to, by region and layer.

    Returns:
        UTF-8; figures and tables are also there without scripts.

    Source: Li et al. 2020, figures 1 and 5.
    """
    figures = [(name, draw(records)) for _, name, draw in FIGURES]
    rules = [r for r in of_kind(records, "control") if not r["same_head"]]
    whole = (r for r in reversed(of_kind(records, "classifier")) if r["relation"].startswith("all"))
    return render(
        "probe",
        title,
        [_data(example) for example in examples],
        styles=[DARK_STYLE],
        credit=credit,
        summary=next(iter(of_kind(records, "summary")), None),
        rule=max(rules, key=lambda record: record["baseline"], default=None),
        texts=next(iter(of_kind(records, "text-summary")), None),
        classifier=next(whole, None),
        figures=[(name, Markup(f.svg(False).decode())) for name, f in figures if f is not None],
        tables=[
            t._replace(rows=[list(map(readable, r)) for r in t.rows]) for t in results(records)
        ],
        examples=[_shown(example) for example in examples],
    )


def _looks(example: AttentionExample) -> list[str]:
    """Return the name of each group's colour in the page's style: `0` to `7`, or `x`."""
    return [str(n % len(COLOURS)) if g.gold else "x" for n, g in enumerate(example.groups)]


def _data(example: AttentionExample) -> dict[str, Any]:
    """Return the values of an example for the page's script; weights in tenths of a percent."""
    return {
        "words": [readable(example.text[start:end]) for start, end in example.words],
        "heads": example.heads,
        "groups": [
            {"name": readable(group.name), "colour": look, "regions": group.regions}
            for group, look in zip(example.groups, _looks(example), strict=True)
        ],
        "labels": list(map(readable, example.regions.labels or [""] * len(example.regions))),
        "weights": np.round(1000 * example.weights).astype(int).tolist(),
    }


def _shown(example: AttentionExample) -> dict[str, Any]:
    """Return the values of an example for the template."""
    looks = list(zip(example.groups, _looks(example), strict=True))
    sizes = [(readable(group.name), look, len(group.regions)) for group, look in looks]
    boxes = np.round(example.regions.boxes, 1).tolist()
    picture = example.picture
    return {
        "image": readable(example.image),
        "text": readable(example.text),
        "uri": picture and data_uri(picture, "WEBP", quality=80, method=2),
        "width": example.regions.width,
        "height": example.regions.height,
        "parts": _parts(example),
        "boxes": [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in boxes],
        "owner": {region: look for group, look in looks for region in group.regions},
        "groups": [{"name": name, "colour": look, "count": n} for name, look, n in sizes],
        "panels": [_panel(example, layer) for layer in example.chosen],
    }


def _panel(example: AttentionExample, layer: int) -> dict[str, Any]:
    """Return the weights of all words on all groups in a layer, in percent."""
    weights = example.grouped()[layer]
    rows = [
        {
            "word": readable(example.text[start:end]),
            "cells": [[_step(weight), round(100 * weight)] for weight in row],
        }
        for (start, end), row in zip(example.words, weights.tolist(), strict=True)
    ]
    return {"name": f"Layer {layer + 1}, head {example.heads[layer]}", "rows": rows}


def _parts(example: AttentionExample) -> list[dict[str, Any]]:
    """Lay a caption out: gaps as they are, words by number."""
    parts = list[dict[str, Any]]()
    done = 0
    for number, (start, end) in enumerate(example.words):
        if start > done:
            parts.append({"gap": readable(example.text[done:start])})
        parts.append({"word": readable(example.text[start:end]), "number": number})
        done = end
    return [*parts, {"gap": readable(example.text[done:])}]


def _step(value: float) -> int:
    """Return the class of a share: 0 to 10, finer below."""
    return round(10 * math.sqrt(min(max(value, 0.0), 1.0)))


# -------------------------------------------------------------------------------------------- files


_SIDE = 640  # px of the longer side of a photo at most


def with_pictures(
    examples: Iterable[AttentionExample], source: str
) -> tuple[list[AttentionExample], list[str]]:
    """Return examples with their photos, and why some cannot be shown.

    Args:
        source: image rows or a directory, as `page.locate` takes them.
    """
    bare = list(examples)
    faults = list[str]()
    files = locate(source, {example.image for example in bare})
    shown = list[AttentionExample]()
    for example in bare:
        picture = None
        try:
            picture = thumbnail(read_image(str(files[example.image].path)), _SIDE)
        except KeyError:
            faults.append(f"{example.image}: not among the images")
        except Exception as error:  # decoders raise whatever a broken picture makes of them
            faults.append(f"{example.image}: {plain(error)[:160]}")
        shown.append(replace(example, picture=picture))
    return shown, faults


def report_files(
    records: Sequence[Record],
    examples: Sequence[AttentionExample],
    title: str,
    credit: str = "",
) -> dict[str, bytes]:
    """Return results, tables, figures and the page, by their names in a folder; results first."""
    figures = {file: draw(records) for file, _, draw in FIGURES}
    figures |= {f"example-{n}": example_figure(example) for n, example in enumerate(examples, 1)}
    files = {"probe.jsonl": b"".join(map(dumps, records)), "tables.md": tables(records).encode()}
    for name, figure in figures.items():
        if figure is not None:
            files[f"{name}.svg"] = figure.svg()
            files[f"{name}.png"] = figure.png()
    rows = b"".join(dumps(row) for example in examples for row in example.rows)
    if rows:
        files["examples.jsonl"] = rows
    files["page.html"] = page(examples, records, title, credit)
    return files


def save_findings(
    folder: Path,
    found: Findings,
    records: list[dict[str, Any]],
    config: dict[str, Any],
    inputs: Inputs,
    images: str | None,
    say: Callable[[str], None],
) -> None:
    """Write results, tables, figures and page, with a manifest.

    Args:
        folder: folder of the results.
        found: findings of the probe.
        records: records of the probe.
        config: settings for the manifest.
        inputs: files that were read.
        images: where the photos are, for the page.
        say: prints a message.

    Raises:
        DataError: as `write_files`.
    """
    shown: list[Any] = []
    if found.kept:
        choose = config["select_on"] is not None
        shown = list(found.probe.examples(found.kept, choose=choose))
    if images is not None:
        shown, faults = with_pictures(shown, images)
        for fault in faults:
            say(f"{fault}; the page shows the boxes alone")
    source = credit(images) if images else ""
    files = report_files(records, shown, config["encoder"], source)
    write_files(folder, files, "attention-probe", config, inputs, FILES)
