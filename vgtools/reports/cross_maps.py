"""Tables, files and pictures of `vg probe-attention cross`.

Source: Hsu et al. 2022 (XDBERT), table 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import plain
from vgtools.io.files import dumps
from vgtools.io.inputs import Inputs
from vgtools.io.output import write_files
from vgtools.reports.drawing import SOFT, Figure
from vgtools.reports.figures import FILES, of_kind
from vgtools.reports.tables import Table, markdown
from vgtools.systems.xdbert.maps import MEASURES, SHARES, CrossProbe, MapExample

Record = Mapping[str, Any]

_CELL = 4  # px per weight
_COLUMNS = 4  # maps next to one another
_GAP = 28  # px between maps, with the title of the next
_WIDTH = 560  # px of a figure at least, for its title
_LETTER = 6  # px of a small letter
_WHO = {"student": "student on teacher", "teacher": "teacher on student"}


def table(records: Sequence[Record]) -> Table:
    """Return the measures of each layer, its heads' mean, with intervals."""
    headings = ["layer", *MEASURES]
    rows = []
    for record in of_kind(records, "cross-layer"):
        cells = [_cell(record, name) for name in MEASURES]
        rows.append([f"{record['layer']}, {_WHO[record['direction']]}", *cells])
    remarks = [
        "Means over heads and texts with 95 % intervals over texts; entropy and diversity (the "
        "Jensen-Shannon divergence of a text's rows) in nats, the others are shares of attention."
    ]
    for record in of_kind(records, "cross-layer"):
        if record["layer"] == 1:
            even = ", ".join(f"{name} {record['even'][name]:.3f}" for name in SHARES)
            remarks.append(f"Even attention, {_WHO[record['direction']]}: {even}.")
    return Table(headings, rows, remarks)


def _cell(record: Record, name: str) -> str:
    digits = 4 if name in ("entropy", "diversity") else 3
    value, *ends = (f"{record[name + end]:.{digits}f}" for end in ("", "_low", "_high"))
    return f"{value} ({' to '.join(ends)})"


def map_figure(example: MapExample, layer: int) -> Figure:
    """Return the maps of a layer, student on teacher, one per head, each on its own scale."""
    maps = example.maps[layer]
    rows, columns = maps.shape[1:]
    wide = _CELL * columns
    high = _CELL * rows
    across = min(_COLUMNS, len(maps))
    down = -(-len(maps) // across)
    size = (max(20 + across * (max(wide, 150) + _GAP), _WIDTH), 84 + down * (high + _GAP))
    title = f"Layer {layer + 1}: {rows} tokens of the student on {columns} of the teacher"
    figure = Figure(*size, title)
    figure.text(20, 26, f"{title} (columns)", bold=True, size=14)
    figure.text(20, 46, _cut(" | ".join(example.texts), (size[0] - 40) // _LETTER), SOFT, 11)
    for head, weights in enumerate(maps):
        x = 20 + (head % across) * (max(wide, 150) + _GAP)
        y = 84 + (head // across) * (high + _GAP)
        least = float(weights.min())
        most = float(weights.max())
        figure.text(x, y - 6, f"head {head + 1}: {least:.3f} to {most:.3f}", SOFT, 10)
        figure.picture(x, y, wide, high, _picture(weights, least, most))
    return figure


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def tokens_text(examples: Sequence[MapExample]) -> str:
    """Return the tokens of examples: the rows and the columns of their maps, from the first on.

    Source: the captions of table 9.
    """
    blocks = list[str]()
    for number, example in enumerate(examples, 1):
        lines = (f"    {plain(' '.join(names))}\n" for names in (example.rows, example.columns))
        heading = f"Example {number}, tokens of the student (rows) and of the teacher (columns):"
        blocks.append(f"\n{heading}\n\n{''.join(lines)}")
    return "".join(blocks)


def _picture(weights: Array, least: float, most: float) -> Any:
    """Return weights as a picture, white for the least and dark for the most."""
    from PIL import Image

    place = (weights - least) / max(most - least, 1e-12)
    light = np.array([244, 243, 239])
    dark = np.array([11, 94, 87])
    pixels = light + place[..., None] * (dark - light)
    return Image.fromarray(pixels.astype(np.uint8).repeat(_CELL, 0).repeat(_CELL, 1))


def save(
    folder: Path,
    records: Sequence[Record],
    probe: CrossProbe,
    config: Mapping[str, Any],
    inputs: Inputs,
) -> None:
    """Write records, a table and pictures into a folder, with a manifest.

    Raises:
        DataError: as `write_files`.
    """
    files = {
        "probe.jsonl": b"".join(map(dumps, records)),
        "tables.md": (markdown(table(records)) + tokens_text(probe.examples)).encode(),
    }
    for number, example in enumerate(probe.examples, 1):
        for layer in range(len(example.maps)):
            figure = map_figure(example, layer)
            for suffix in (".svg", ".png"):
                files[f"example-{number}.layer-{layer + 1}{suffix}"] = figure.render(suffix)
    write_files(folder, files, "cross-attention", config, inputs, FILES)
