"""Region features: the file form, its checks, and boxes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny.vtasks import save_pictures
from vgtools.images.boxes import box_fault, iou
from vgtools.images.regions import RegionSet, open_regions, parse_boxes, regions_path, write_regions
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import write_manifest

BACKBONE = {"ref": "tiny", "fingerprint": "b" * 64}


def region_set(count: int, seed: int = 0, width: int = 3, labels: bool = True) -> RegionSet:
    rng = np.random.default_rng(seed)
    corners = np.sort(rng.uniform(0, 100, (count, 2, 2)), axis=1)
    names = [f"thing {i % 2}" for i in range(count)] if labels else None
    features = rng.standard_normal((count, width)).astype(np.float32)
    return RegionSet(
        features, corners.reshape(count, 4), rng.random(count, np.float32), names, 100, 100
    )


def save(path: Path, items: list[tuple[str, RegionSet]], **changes: Any) -> Path:
    write_regions(path, items, {"of": [name for name, _ in items]}, 3, backbone=BACKBONE, **changes)
    return path


# -------------------------------------------------------------------------------------------- boxes


def test_iou_by_hand() -> None:
    a = np.array([[0, 0, 4, 2], [10, 10, 11, 11]])
    b = np.array([[0, 0, 4, 2], [2, 0, 6, 2], [4, 0, 8, 2], [0, 0, 1, 1]])
    assert iou(a, b).tolist() == [[1.0, 4 / 12, 0.0, 1 / 8], [0.0, 0.0, 0.0, 0.0]]
    assert iou(a[:0], b).shape == (0, 4)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), st.integers(1, 9)),
        min_size=2,
        max_size=6,
    )
)
def test_iou_counts_unit_squares(sized: list[tuple[int, int, int, int]]) -> None:
    boxes = [(x, y, x + width, y + height) for x, y, width, height in sized]
    cells = [{(x, y) for x in range(a, c) for y in range(b, d)} for a, b, c, d in boxes]
    expected = [[len(p & q) / len(p | q) for q in cells] for p in cells]
    np.testing.assert_allclose(iou(np.array(boxes), np.array(boxes)), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("box", "why"),
    [
        ([0, 0, 10, 5], None),
        ([-0.5, 0, 10.9, 5.9], None),  # rounding
        ([1, 1, 12, 4], "box 2, [1.0, 1.0, 12.0, 4.0], leaves its picture of 10×5"),
        ([1, -2, 3, 4], "leaves its picture"),
        ([3, 1, 3, 4], "has no area"),
        ([4, 1, 3, 4], "has no area"),
        ([-0.9, 1, 0, 4], "has no area"),  # beside the picture
        ([float("nan"), 1, 3, 4], "contains NaN or infinity"),
    ],
)
def test_box_fault(box: list[float], why: str | None) -> None:
    found = box_fault(np.array([[1, 1, 2, 2], box], np.float64), 10, 5)
    assert found is None if why is None else why in str(found)


# --------------------------------------------------------------------------------------- round trip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    sets = {
        "b.jpg": region_set(3, 1),
        "a.jpg": region_set(0),
        "ü/c.jpg": region_set(2, 2, labels=False),
    }
    found = open_regions(save(tmp_path / "x.npy", list(sets.items())))
    assert found.images == ["b.jpg", "a.jpg", "ü/c.jpg"]
    assert (len(found), found.width, found.counts.tolist()) == (3, 3, [3, 0, 2])
    assert (found.manifest["backbone"], found.manifest["rows"], found.manifest["images"]) == (
        BACKBONE,
        5,
        3,
    )
    assert "a.jpg" in found
    assert "d.jpg" not in found
    for image, wanted in sets.items():
        own = found.of(image)
        np.testing.assert_array_equal(own.features, wanted.features)
        np.testing.assert_array_equal(own.boxes, wanted.boxes)
        np.testing.assert_allclose(own.confidence, wanted.confidence, atol=1e-6)
        assert (own.labels, own.width, own.height) == (wanted.labels, 100, 100)
    with pytest.raises(DataError, match="no regions of the image 'd"):
        found.of("d.jpg")


def test_the_most_confident_regions_are_seen_in_the_order_of_the_file(tmp_path: Path) -> None:
    whole = region_set(4, 3)
    whole = replace(whole, confidence=np.array([0.2, 0.9, 0.2, 0.5], np.float32))
    save(tmp_path / "x.npy", [("a.jpg", whole), ("b.jpg", region_set(1))])
    for most, kept in ((1, [1]), (2, [1, 3]), (3, [0, 1, 3]), (4, [0, 1, 2, 3]), (9, range(4))):
        own = open_regions(tmp_path / "x.npy", most).of("a.jpg")
        np.testing.assert_array_equal(own.boxes, whole.boxes[list(kept)])
        np.testing.assert_array_equal(own.features, whole.features[list(kept)])
        assert whole.labels is not None
        assert own.labels == [whole.labels[i] for i in kept]
    assert len(open_regions(tmp_path / "x.npy", 2).of("b.jpg")) == 1


def test_float16_halves_the_file_and_refuses_what_it_cannot_hold(tmp_path: Path) -> None:
    own = region_set(2)
    path = save(tmp_path / "x.npy", [("a", own)], dtype="float16")
    assert np.load(path).dtype == np.float16
    np.testing.assert_array_equal(
        open_regions(path).of("a").features, own.features.astype(np.float16).astype(np.float32)
    )
    own.features[1, 1] = 1e6
    with pytest.raises(DataError, match="a: a feature is NaN or infinite in float16"):
        save(tmp_path / "y.npy", [("a", own)], dtype="float16")


def test_an_interrupted_run_resumes_and_other_items_are_refused(tmp_path: Path) -> None:
    items = [(f"i{n}", region_set(2, n)) for n in range(5)]
    whole = save(tmp_path / "whole.npy", items).read_bytes()

    def broken() -> Any:
        yield from items[:3]
        raise KeyboardInterrupt

    def run(found: Any) -> int:
        return write_regions(tmp_path / "x.npy", found, {"n": 5}, 3, step=2)

    with pytest.raises(KeyboardInterrupt):
        run(broken())
    assert not (tmp_path / "x.npy").exists()
    with pytest.raises(DataError, match="the input changed") as caught:
        run([("i0", region_set(2, 9)), *items[1:]])
    assert caught.value.code == Exit.CONFIG
    assert run(items) == 5
    assert (tmp_path / "x.npy").read_bytes() == whole
    assert (
        regions_path(tmp_path / "x.npy").read_bytes()
        == regions_path(tmp_path / "whole.npy").read_bytes()
    )
    assert run(iter(())) == 5, "finished: nothing is read"


# ------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("images", ["../x", [3], True, -1, None])
def test_a_manifest_with_another_count_of_images_is_refused(tmp_path: Path, images: Any) -> None:
    items = [("a", region_set(2))]
    path = save(tmp_path / "x.npy", items)
    manifest = path.with_suffix(".json")
    body = json.loads(manifest.read_text()) | {"images": images}
    manifest.write_text(json.dumps(body))
    with pytest.raises(
        DataError, match=r'x\.json: "images": expected .*; create the regions again'
    ):
        save(path, items)


def reseal(path: Path) -> None:
    """Write the manifest of files that were changed on purpose."""
    write_manifest(path, [path, regions_path(path)], kind="region-features")


def test_a_flipped_byte_is_named(tmp_path: Path) -> None:
    path = save(tmp_path / "x.npy", [("a", region_set(2))])
    for file in (path, regions_path(path)):
        whole = file.read_bytes()
        file.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        with pytest.raises(DataError, match=f"{file.name}.*sha256"):
            open_regions(path)
        file.write_bytes(whole)
    regions_path(path).unlink()
    with pytest.raises(DataError, match="missing") as caught:
        open_regions(path)
    assert caught.value.code == Exit.NO_INPUT


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"start": 1}, 'x.regions.jsonl:2: "start" is 1, expected 2'),
        ({"image": "a"}, ":2: duplicate image 'a' (first on line 1)"),
        ({"image": ""}, ':2: "image" must be the name of an image, got an empty string'),
        ({"boxes": [[0, 0, 5, 5]]}, ':2: has 1 "boxes" and 2 values of "confidence"'),
        ({"boxes": [[0, 0, 5, 5], [0, 0, 5]]}, ':2: "boxes" holds [0, 0, 5]'),
        (
            {"boxes": [[0, 0, 5, 5], [0, 0, 500, 5]]},
            ":2: box 2, [0.0, 0.0, 500.0, 5.0], leaves its picture of 100×100",
        ),
        (
            {"confidence": [0.5, 1.5]},
            ':2: "confidence" is [0.5, 1.5], expected a list of numbers from 0 to 1',
        ),
        ({"label": ["dog"]}, ':2: has 2 "boxes" and 1 values of "label"'),
        ({"label": [1, 2]}, ':2: "label" is [1, 2], expected a list of names'),
        ({"width": "wide"}, ':2: "width" must be an integer'),
        (None, "has 2 boxes for 4 feature rows"),
    ],
)
def test_invalid_rows_are_named(tmp_path: Path, change: dict[str, Any] | None, why: str) -> None:
    path = save(tmp_path / "x.npy", [("a", region_set(2)), ("b", region_set(2, 1))])
    first, second = regions_path(path).read_text().splitlines()
    text = (
        f"{first}\n" if change is None else f"{first}\n{json.dumps(json.loads(second) | change)}\n"
    )
    regions_path(path).write_text(text)
    reseal(path)
    with pytest.raises(DataError, match=re.escape(why)):
        open_regions(path)


def test_a_row_with_nan_is_named_by_its_image(tmp_path: Path) -> None:
    path = save(tmp_path / "x.npy", [("a", region_set(2)), ("b", region_set(2, 1))])
    array = np.load(path)
    array[3, 0] = np.nan
    np.save(path, array)
    reseal(path)
    with pytest.raises(DataError, match=r"row 3 \(a region of b\) is NaN"):
        open_regions(path)


def test_image_features_are_not_region_features(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    write_manifest(tmp_path / "x.npy", [tmp_path / "x.npy"], kind="image-features")
    with pytest.raises(
        DataError, match="expected the manifest of 'region-features', got 'image-features'"
    ):
        open_regions(tmp_path / "x.npy")


def test_boxes_of_coco_rows_have_labels_and_no_confidence() -> None:
    boxes, confidence, labels = parse_boxes(
        {"boxes": [[0, 1, 2, 3]], "labels": ["dog"], "crowd": [0]}, "x", 1
    )
    assert (boxes.tolist(), confidence, labels) == ([[0, 1, 2, 3]], None, ["dog"])


@pytest.mark.parametrize("name", ["COCO_val2014_000000000042", "42"])
@pytest.mark.parametrize(
    "image", ["COCO_val2014_000000000042.jpg", "val/000000000042.jpg", "42", "000000000042"]
)
def test_pictures_of_coco_have_many_names(tmp_path: Path, name: str, image: str) -> None:
    regions = open_regions(save_pictures(tmp_path / "x.npy", {"7.jpg": [0], image: [1]}))
    assert regions.find(name, "q.json", None) == image


def test_the_split_distinguishes_pictures_of_one_number(tmp_path: Path) -> None:
    images = [f"{split}/COCO_{split}_000000000042.jpg" for split in ("train2014", "val2014")]
    regions = open_regions(save_pictures(tmp_path / "x.npy", {image: [0] for image in images}))
    assert regions.find("COCO_val2014_000000000042", "q.json", None) == images[1]
    with pytest.raises(DataError, match="2 images of that name") as caught:
        regions.find("42", "q.json", 5)
    assert (caught.value.file, caught.value.line) == ("q.json", 5)
    with pytest.raises(DataError, match="no regions of it; extract them"):
        regions.find("43", "q.json", None)


@pytest.mark.parametrize("held", ["p00.png", "cats/p00.png"])
def test_pictures_of_one_name_in_two_folders_do_not_share_regions(
    tmp_path: Path, held: str
) -> None:
    regions = open_regions(save_pictures(tmp_path / "x.npy", {held: [0]}))
    for name in ("p00", "img/cats/p00.jpg", "cats/p00.png"):
        assert regions.find(name, "q.jsonl", 1) == held
    for other in ("dogs/p00.png", "dogs/p00"):
        with pytest.raises(DataError, match=r"'cats/p00\.png' and 'dogs/p00") as caught:
            regions.find(other, "q.jsonl", 2)
        assert (caught.value.file, caught.value.line) == ("q.jsonl", 2)


def test_a_number_of_coco_is_one_picture_in_all_folders(tmp_path: Path) -> None:
    regions = open_regions(save_pictures(tmp_path / "x.npy", {"42": [0]}))
    for name in ("train2014/COCO_train2014_000000000042.jpg", "val2017/000000000042.jpg"):
        assert regions.find(name, "q.jsonl", 1) == "42"
    regions = open_regions(save_pictures(tmp_path / "y.npy", {"001.jpg": [0]}))
    regions.find("cats/001.jpg", "q.jsonl", 1)
    with pytest.raises(DataError, match="one such picture"):
        regions.find("dogs/001.jpg", "q.jsonl", 2)
    frames = open_regions(save_pictures(tmp_path / "z.npy", {"000000000001.jpg": [0]}))
    frames.find("one/000000000001.jpg", "q.jsonl", 1)
    with pytest.raises(DataError, match="one such picture"):
        frames.find("two/000000000001.jpg", "q.jsonl", 2)
