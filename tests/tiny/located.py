"""Queries with and without boxes, and a file of MS COCO's instances."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.tiny import text


def save_queries(path: Path, count: int = 40) -> list[dict[str, Any]]:
    """Write rows of every form: whole texts, spans, boxes, phrases, an empty text."""
    rows = list[dict[str, Any]]()
    for i, line in enumerate(text(count, seed=5, longest=9)):
        row: dict[str, Any] = {"text": line, "image": f"image{i % 20:03}"}
        size = {"width": 100 + i, "height": 80}
        box = [5.0 + i, 10.0, 60.0 + i, 70.0]
        if i % 4 == 1 and len(line) > 3:
            row |= {"span": [0, 3], "boxes": [box], **size}
        elif i % 4 == 2:
            first = {"start": 0, "end": 2, "type": "people", "id": "1", "boxes": [box]}
            other = {"start": 1, "end": 2, "type": "notvisual", "id": "0", "boxes": []}
            row |= {"phrases": [first, other] if len(line) > 2 else [], **size}
        rows.append(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def save_instances(path: Path, count: int = 12) -> dict[str, Any]:
    """Write an `instances_*.json` of two classes, in polygons and in runs."""
    left = [[0, 0, 11, 0, 11, 12, 0, 12]]
    body = {
        "images": [
            {"id": i, "file_name": f"image{i:03}", "width": 22, "height": 12} for i in range(count)
        ],
        "annotations": [
            {
                "id": 10 * i + k,
                "image_id": i,
                "category_id": 1 + k,
                "segmentation": left if k else {"size": [12, 22], "counts": [132, 132]},
                "bbox": [0, 0, 11, 12],
                "iscrowd": 0,
            }
            for i in range(count)
            for k in range(1 + i % 2)
        ],
        "categories": [{"id": 1, "name": "bam"}, {"id": 2, "name": "fis"}],
    }
    path.write_text(json.dumps(body))
    return body
