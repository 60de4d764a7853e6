"""Where boxes come from: files of each form, the grid, and their union."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vgtools.datasets.box_files import FileBoxes
from vgtools.images.boxes import Boxes, concat_sources, grid, iou, placeholder_confidence
from vgtools.images.sources import ImageError
from vgtools.io.errors import DataError

PICTURE = Image.new("RGB", (40, 20))


def save(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prior_by_hand() -> None:
    boxes = np.array([[0, 0, 40, 20], [10, 5, 30, 15], [0, 0, 20, 10]], np.float64)
    # a quarter of the area: sqrt is 1/2; the corner's centre is half of half the diagonal away
    assert placeholder_confidence(boxes, 40, 20).tolist() == pytest.approx([1.0, 0.5, 0.25])


def test_grid_has_every_half_window_of_each_scale() -> None:
    found = grid("a", PICTURE)
    assert len(found) == 1 + 9 + 25
    assert found.boxes[0].tolist() == [0, 0, 40, 20]
    assert found.boxes[1:10].tolist() == [
        [x, y, x + 20, y + 10] for y in (0, 5, 10) for x in (0, 10, 20)
    ]
    np.testing.assert_allclose(found.boxes[-1], [40 * 2 / 3, 20 * 2 / 3, 40, 20])
    assert found.confidence.tolist() == placeholder_confidence(found.boxes, 40, 20).tolist()
    assert set(found.labels) == {"grid"}


def test_detector_rows_keep_confidence_and_label(tmp_path: Path) -> None:
    boxes = [[0, 0, 5, 5], [1, 1, 9, 9]]
    row = {"image": "a", "boxes": boxes, "confidence": [0.25, 0.75], "label": ["dog", "cat"]}
    path = save(tmp_path / "d.jsonl", row, {"image": "b", "boxes": []})
    source = FileBoxes(path)
    found = source("a", PICTURE)
    assert (found.boxes.tolist(), found.confidence.tolist(), found.labels) == (
        [[0, 0, 5, 5], [1, 1, 9, 9]],
        [0.25, 0.75],
        ["dog", "cat"],
    )
    assert len(source("b", PICTURE)) == 0
    with pytest.raises(ImageError, match=r"d.jsonl names no boxes of it"):
        source("c", PICTURE)


def test_phrase_rows_are_joined_and_scaled_to_the_photo(tmp_path: Path) -> None:
    def row(*phrases: tuple[str, list[list[int]]]) -> dict[str, Any]:
        return {
            "image": "a",
            "text": "x",
            "width": 80,
            "height": 40,
            "phrases": [{"type": t, "boxes": b} for t, b in phrases],
        }

    path = save(
        tmp_path / "p.jsonl",
        row(("people", [[0, 0, 40, 40], [40, 0, 80, 40]]), ("scene", [])),
        row(("animals", [[8, 8, 16, 16]]), ("clothing", [[0, 0, 40, 40]])),
    )
    found = FileBoxes(path)("a", PICTURE)  # half the size
    assert found.boxes.tolist() == [[0, 0, 20, 20], [20, 0, 40, 20], [4, 4, 8, 8]]
    assert found.labels == ["people", "people", "animals"]
    assert found.confidence.tolist() == placeholder_confidence(found.boxes, 40, 20).tolist()
    with pytest.raises(
        ImageError, match="is 20×40, but its annotation is for 80×40: another picture, or cropped"
    ):
        FileBoxes(path)("a", Image.new("RGB", (20, 40)))


def test_coco_instances(tmp_path: Path) -> None:
    body = {
        "images": [{"id": 7, "file_name": "a.jpg", "width": 80, "height": 40}],
        "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [8, 4, 16, 8]}],
        "categories": [{"id": 3, "name": "dog"}],
    }
    path = tmp_path / "instances.json"
    path.write_text(json.dumps(body))
    found = FileBoxes(path)("a.jpg", PICTURE)
    assert (found.boxes.tolist(), found.labels) == ([[4, 2, 12, 6]], ["dog"])
    path.write_text(
        json.dumps(body | {"annotations": [{"id": 1, "image_id": 7, "caption": "A dog."}]})
    )
    with pytest.raises(DataError, match="holds captions"):
        FileBoxes(path)


def test_boxes_that_cannot_be_regions_are_left_out_with_a_reason(tmp_path: Path) -> None:
    boxes = [[0, 0, 5, 5], [30, 0, 50, 5], [3, 3, 3, 9], [-0.5, 0, 40.5, 20]]
    found = FileBoxes(
        save(
            tmp_path / "d.jsonl", {"image": "a", "boxes": boxes, "confidence": [0.1, 0.2, 0.3, 0.4]}
        )
    )("a", PICTURE)
    assert found.boxes.tolist() == [[0, 0, 5, 5], [0, 0, 40, 20]]
    assert found.confidence.tolist() == pytest.approx([0.1, 0.4])
    assert [re.sub(".*jsonl: ", "", fault) for fault in found.faults] == [
        "box 2, [30.0, 0.0, 50.0, 5.0], leaves its picture of 40×20",
        "box 3, [3.0, 3.0, 3.0, 9.0], has no area",
    ]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"image": "a", "text": "x"}], ':1: expected a row with "boxes" or "phrases"'),
        (
            [{"image": "a", "boxes": [[0, 0, 1, 1]]}] * 2,
            ":2: duplicate image 'a' (first on line 1)",
        ),
        ([{"image": "a", "boxes": []}], "holds no box in 1 image"),
        ([{"image": "a", "boxes": [[0, 0, 1, 1]], "width": 5}], ':1: the key "height" is missing'),
        (
            [{"image": "a", "boxes": [[0, 0, 1, 1]], "width": 0, "height": 5}],
            ":1: invalid image size 0×5",
        ),
        ([{"image": "a", "phrases": ["x"]}], ":1: \"phrases\" holds 'x', expected objects"),
        ([{"image": "a", "phrases": [{"type": "x"}]}], ':1: "boxes" must be a list'),
    ],
)
def test_rows_of_an_unknown_form_are_named(
    tmp_path: Path, rows: list[dict[str, Any]], why: str
) -> None:
    with pytest.raises(DataError, match=re.escape(why)):
        FileBoxes(save(tmp_path / "d.jsonl", *rows))


def test_sources_are_concatenated_and_the_most_confident_are_kept() -> None:
    def source(*confidence: float) -> Any:
        boxes = np.array([[c, 0, c + 1, 1] for c in confidence])
        return lambda image, picture: Boxes(
            boxes, np.array(confidence, np.float32), [str(c) for c in confidence], ("x",)
        )

    both = [source(0.5, 0.25), source(0.75, 0.125)]
    assert concat_sources(both)("a", PICTURE).labels == ["0.5", "0.25", "0.75", "0.125"]
    assert concat_sources(both, most=2)("a", PICTURE).labels == ["0.5", "0.75"], "in their order"
    found = concat_sources(both, least=0.25)("a", PICTURE)
    assert found.boxes[:, 0].tolist() == [0.5, 0.25, 0.75]
    assert found.faults == ("x", "x")


def test_placeholders_rank_below_what_a_detector_measured() -> None:
    def detector(image: str, picture: Any) -> Boxes:
        return Boxes(np.array([[0.0, 0, 9, 9], [1, 1, 9, 9]]), np.float32([0.5, 0.2]), ["a", "b"])

    both = concat_sources([detector, partial(grid, scales=2)])("a", PICTURE)
    assert both.confidence[:2].tolist() == pytest.approx([0.5, 0.2])
    alone = grid("a", PICTURE, 2).confidence
    np.testing.assert_allclose(both.confidence[2:], alone * 0.1, rtol=1e-6)
    assert both.confidence.argmax() == 0
    assert both.confidence.dtype == np.float32
    least = concat_sources([detector, partial(grid, scales=2)], least=0.3)("a", PICTURE)
    assert least.labels[0] == "a"
    assert least.confidence[1:].max() == pytest.approx(0.25), "placeholders are judged as they are"
    none = concat_sources([lambda *_: Boxes(np.zeros((0, 4)), np.float32([]), []), grid])
    assert none("a", PICTURE).confidence.max() == 1, "no box to be below"


def test_the_grid_meets_most_large_boxes() -> None:
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 0.6, (200, 2))
    boxes = np.hstack([corners, corners + 0.4]) * [40, 20, 40, 20]
    assert float((iou(boxes, grid("a", PICTURE).boxes).max(1) >= 0.5).mean()) > 0.9
