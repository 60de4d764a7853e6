"""Queries, grids and heat rows: their forms, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import save_grids
from vgtools.images.maps import (
    Located,
    Query,
    Step,
    cell_centres,
    locate,
    open_grids,
    queries_of,
    read_heat,
)
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.files import dumps

SIZE = {"width": 100, "height": 50}
PHRASES = [
    {"start": 0, "end": 5, "boxes": [[0, 0, 10, 10]], "type": "people"},
    {"start": 6, "end": 9, "boxes": []},
]

# ----------------------------------------------------------------------------------------- queries


def test_a_row_asks_for_its_text_a_part_of_it_or_its_phrases() -> None:
    row = {"text": "A dog runs", "image": "x"}
    (whole,) = queries_of(row, "q", 3)
    assert (whole.sought, whole.span, whole.boxes, whole.line) == ("A dog runs", None, None, 3)
    (part,) = queries_of(row | {"span": [2, 5], "boxes": [[0, 0, 5, 5]], **SIZE}, "q", 1)
    assert (part.sought, part.boxes, part.size) == ("dog", ((0, 0, 5, 5),), (100, 50))
    first, second = queries_of(row | {"phrases": PHRASES, **SIZE}, "q", 1)
    assert (first.sought, first.boxes) == ("A dog", ((0, 0, 10, 10),))
    assert (second.sought, second.boxes) == ("run", None)
    assert queries_of(row | {"phrases": []}, "q", 1) == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"image": 5}, '"image"'),
        ({"span": [0]}, r'"span" must be \[start, end\], got \[0\]'),
        ({"span": [3, 3]}, "phrase 1 has the span 3 to 3, the text has 10 characters"),
        ({"span": [0, 11]}, "the text has 10 characters"),
        ({"span": [True, 2]}, "phrase 1 has the span True"),
        ({"phrases": {}}, '"phrases" must be a list'),
        ({"phrases": [7]}, "phrase 1 has the span None"),
        ({"phrases": [{}]}, "phrase 1 has the span None"),
        ({"boxes": [[[[]]]], **SIZE}, r'phrase 1: "boxes" must be a list'),
        ({"boxes": [[]], **SIZE}, r'phrase 1: "boxes" must be a list'),
        ({"boxes": [[0, 0, 5]], **SIZE}, r'phrase 1: "boxes" must be a list'),
        ({"boxes": [[0, 0, 500, 5]], **SIZE}, "leaves its picture of 100×50"),
        ({"boxes": [[5, 0, 5, 5]], **SIZE}, "has no area"),
        ({"boxes": [[0, 0, 5, 5]]}, 'without the "width" and "height"'),
        ({"width": 5}, "size in pixels"),
        ({"width": 0, "height": 5}, "size in pixels"),
    ],
)
def test_other_queries_are_refused_with_their_line(change: dict[str, Any], why: str) -> None:
    with pytest.raises(DataError, match=why) as caught:
        queries_of({"text": "A dog runs", "image": "x"} | change, "q.jsonl", 4)
    assert (caught.value.file, caught.value.line) == ("q.jsonl", 4)


# ------------------------------------------------------------------------------------------- grids


def preprocessing(**changes: Any) -> dict[str, Any]:
    made = {"input_size": [3, 224, 224], "crop_pct": 1.0, "crop_mode": "squash"} | changes
    return {"ref": "tiny", "fingerprint": "b" * 64, "preprocessing": made}


def test_cells_are_where_the_backbone_saw_them(tmp_path: Path) -> None:
    assert cell_centres((2, 2)).tolist() == [[0.25, 0.25], [0.75, 0.25], [0.25, 0.75], [0.75, 0.75]]
    query = Query("a", "x", 1, size=(448, 256))
    whole = open_grids(str(save_grids(tmp_path / "a.npy", backbone=preprocessing())))
    assert whole.frame(Query("a", "x", 1), "q") == (0, 0, 1, 1)
    # timm resizes the short side to 256 and shows the middle 224: all of 448×256 px is 448×256.
    crop = preprocessing(crop_mode="center", crop_pct=0.875)
    seen = open_grids(str(save_grids(tmp_path / "b.npy", backbone=crop)))
    assert seen.frame(query, "q") == (0.25, 0.0625, 0.75, 0.9375)
    upright = Query("a", "x", 1, size=(128, 224))
    assert seen.frame(upright, "q") == pytest.approx((0.0625, 0.25, 0.9375, 0.75))
    with pytest.raises(DataError, match=r'needs "width" and "height".*--picture 224') as caught:
        seen.frame(Query("a", "x", 8), "q.jsonl")
    assert caught.value.line == 8


@pytest.mark.parametrize(
    ("backbone", "why"),
    [
        (preprocessing(crop_mode="border"), r"crop_mode 'border'.*--picture 224"),
        (preprocessing(crop_mode="center", input_size=[3, 224, 160]), "is not known"),
        (preprocessing(input_size=None), "lacks the backbone's preprocessing"),
        ({"preprocessing": {}}, "lacks the backbone's preprocessing"),
        (preprocessing(crop_pct=0), "lacks the backbone's preprocessing"),
    ],
)
def test_another_crop_is_refused(tmp_path: Path, backbone: dict[str, Any], why: str) -> None:
    grids = open_grids(str(save_grids(tmp_path / "a.npy", backbone=backbone)))
    with pytest.raises(DataError, match=why):
        grids.frame(Query("a", "x", 1, size=(10, 10)), "q")


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ([3, 3], "its manifest states grid"),
        ("2x2", "manifest states"),
        ([1, 4], "positions in a line"),
    ],
)
def test_a_grid_without_rows_and_columns_is_refused(tmp_path: Path, shape: Any, why: str) -> None:
    path = save_grids(tmp_path / "a.npy", shape=shape)
    with pytest.raises(DataError, match=why):
        open_grids(str(path))


# -------------------------------------------------------------------------------------------- maps


class First:
    """Heat is the first feature of each position, times the length of the text."""

    def prepare(self, texts: list[str]) -> list[str]:
        return texts

    def maps(self, prepared: list[str], numbers: Array, grid: Array) -> Array:
        lengths = np.array([len(prepared[n]) or np.nan for n in numbers])
        return lengths[:, None] * grid[None, :, 0].astype(np.float64)


def test_maps_come_in_the_order_of_queries(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float16)
    grids = open_grids(str(save_grids(tmp_path / "g.npy", array)))
    queries = [Query("abc", f"image{i:03}", i) for i in (2, 0, 2)] + [Query("", "image001", 9)]
    ((step, found),) = locate([Step(queries, {"rows": 4})], First(), grids, "q")  # type: ignore[arg-type]
    assert step.state == {"rows": 4}
    for each, row in zip(found[:3], (2, 0, 2), strict=True):
        np.testing.assert_allclose(each.heat, 3 * array[row, :, 0].astype(float), atol=6e-5)
        digits = np.abs(each.heat).max()
        assert len(f"{digits:.12f}".rstrip("0").replace(".", "").lstrip("0")) <= 5
    assert len(found[3].heat) == 0
    assert found[3].row()["point"] is None
    assert found[3].row()["heat"].tolist() == []


SECRET = "693b08cb0e"  # of a photo's address on Flickr


def test_a_photo_of_flickr8k_is_found_by_its_number(tmp_path: Path) -> None:
    path = save_grids(
        tmp_path / "g.npy",
        ids=[f"12_{SECRET}.jpg", f"13_{SECRET}.jpg", "dog_2.jpg", "7.jpg"],
        count=4,
    )
    grids = open_grids(str(path))
    queries = [Query("a", "13.jpg", 1)]
    ((_, found),) = locate([Step(queries, {})], First(), grids, "q")  # type: ignore[arg-type]
    assert found[0].row()["image"] == f"13_{SECRET}.jpg"
    # Neither a number of no photo, nor a name that another one only begins with or ends otherwise.
    for name in ("14.jpg", "dog.jpg", "7.png", "13_ef.jpg"):
        missing = Step([Query("a", name, 6)], {})
        with pytest.raises(DataError, match=f"'{name}', of which .*g.npy has no grid") as caught:
            list(locate([missing], First(), grids, "q.jsonl"))  # type: ignore[arg-type]
        assert (caught.value.file, caught.value.line) == ("q.jsonl", 6)


# ------------------------------------------------------------------------------------------ on disk


def test_rows_are_read_back(tmp_path: Path) -> None:
    query = Query("A dog", "x", 1, (2, 5), ((1.0, 2.0, 3.0, 4.0),), (100, 50))
    made = Located(query, np.array([0.5, -1.25, 3, 0]), (2, 2), (0.25, 0.0, 0.75, 1.0))
    row = made.row(hit=True)
    assert list(row) == [
        *("text", "image", "span", "grid", "frame", "heat", "point"),
        *("width", "height", "boxes", "hit"),
    ]
    assert row["point"] == [0.375, 0.75]
    path = tmp_path / "heat.jsonl"
    path.write_bytes(dumps(row))
    ((line, found, kept),) = read_heat(path)
    assert (line, kept["hit"]) == (1, True)
    assert found.query == query
    assert found.heat.tolist() == made.heat.tolist()
    assert (found.shape, found.frame, found.point) == (made.shape, made.frame, made.point)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"grid": [2]}, '"grid" must be'),
        ({"grid": [2, 1e9]}, '"grid" must be'),
        ({"heat": [1, 2, 3]}, r'"heat" has 3 numbers, expected 2×2'),
        ({"heat": [1, 2, 3, "x"]}, '"heat" entry 3 must be a number'),
        ({"heat": [1, 2, 3, 1e31]}, '"heat" entry 3 must be a number'),
        ({"frame": [0, 0, 2, 1]}, '"frame" must be'),
        ({"frame": [0.5, 0, 0.5, 1]}, '"frame" must be'),
        ({"phrases": []}, 'has "phrases"'),
        ({"image": None}, '"image"'),
    ],
)
def test_torn_rows_are_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    path = tmp_path / "heat.jsonl"
    good = {"text": "a", "image": "x", "grid": [2, 2], "heat": [1, 2, 3, 4], "point": [0.75, 0.75]}
    path.write_text(json.dumps(good) + "\n" + json.dumps(good | change) + "\n")
    with pytest.raises(DataError, match=why) as caught:
        list(read_heat(path))
    assert caught.value.line == 2
