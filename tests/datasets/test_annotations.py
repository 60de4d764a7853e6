"""Official annotations → rows: COCO, Visual Genome, VCR."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.tiny.datasets import stops_at
from vgtools.datasets.annotations import (
    coco,
    coco_masks,
    karpathy,
    vcr,
    visual_genome,
    visual_genome_boxes,
    visual_genome_regions,
    vqa,
)
from vgtools.datasets.box_files import FileBoxes
from vgtools.io.errors import DataError, Tally

# --------------------------------------------------------------------------------------------- COCO

IMAGES = [
    {"id": 30, "file_name": "0030.jpg", "width": 640, "height": 480},
    {"id": 20, "file_name": "0020.jpg", "width": 100, "height": 50},
]
CAPTIONS = [
    {"image_id": 20, "id": 1, "caption": "A jar\non a shelf.\n"},
    {"image_id": 30, "id": 2, "caption": "Ünder."},
    {"image_id": 20, "id": 3, "caption": "Two."},
]
BOXES = [
    {
        "image_id": 30,
        "id": 1,
        "category_id": 4,
        "bbox": [0.1, 10.25, 0.2, 20.2],
        "iscrowd": 0,
        "segmentation": [[1, 2]],
    },
    {"image_id": 30, "id": 2, "category_id": 9, "bbox": [1, 2, 3, 4], "iscrowd": 1},
]
CATEGORIES = [{"id": 4, "name": "cat"}, {"id": 9, "name": "teddy bear"}]


def official(images: Any = IMAGES, annotations: Any = CAPTIONS, **more: Any) -> str:
    return json.dumps(
        {"info": {"year": 2017}, "images": images, "licenses": [], "annotations": annotations}
        | more
    )


def split_item(name: str, split: str, *texts: str) -> dict[str, Any]:
    sentences = [{"raw": text, "tokens": text.lower().split(), "imgid": 0} for text in texts]
    return {"filepath": "val2014", "filename": name, "split": split, "sentences": sentences}


def test_karpathy_s_splits(tmp_path: Path) -> None:
    file = tmp_path / "dataset_coco.json"
    items = [split_item("b.jpg", "restval", "One.", "Two\n"), split_item("a.jpg", "test", "Drei")]
    file.write_text(json.dumps({"images": items, "dataset": "coco"}))
    assert list(karpathy(file, Tally())) == [
        {"image": "b.jpg", "text": "One.", "split": "train"},
        {"image": "b.jpg", "text": "Two", "split": "train"},
        {"image": "a.jpg", "text": "Drei", "split": "test"},
    ]


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([split_item("a.jpg", "val")], r"images\[0\]: 'a.jpg' has no sentences"),
        ([{"filename": "a.jpg"}], r'images\[0\]: "split" is missing, expected str'),
        ([split_item("a.jpg", "val", "x")] * 2, r"images\[1\]: duplicate image 'a.jpg'"),
        ([], "has no captions; expected"),
    ],
)
def test_damaged_files_of_karpathy_are_refused(tmp_path: Path, items: Any, why: str) -> None:
    file = tmp_path / "d.json"
    file.write_text(json.dumps({"images": items}))
    with pytest.raises(DataError, match=why):
        list(karpathy(file, Tally()))


def test_coco_captions(tmp_path: Path) -> None:
    file, tally = tmp_path / "c.json", Tally()
    file.write_text(official([*IMAGES, {"id": 5, "file_name": "5.jpg", "width": 1, "height": 1}]))
    assert list(coco(file, tally)) == [
        {"image": "0030.jpg", "text": "Ünder."},
        {"image": "0020.jpg", "text": "A jar\non a shelf."},
        {"image": "0020.jpg", "text": "Two."},
    ]
    assert tally.left_out == {"image without a caption": 1}


def test_coco_boxes(tmp_path: Path) -> None:
    file, tally = tmp_path / "i.json", Tally()
    file.write_text(official(annotations=BOXES, categories=CATEGORIES))
    first: dict[str, Any] = {"image": "0030.jpg", "width": 640, "height": 480}
    empty = {
        "image": "0020.jpg",
        "width": 100,
        "height": 50,
        "boxes": [],
        "labels": [],
        "crowd": [],
    }
    assert list(coco(file, tally)) == [
        first
        | {
            "boxes": [[0.1, 10.25, 0.3, 30.45], [1, 2, 4, 6]],
            "labels": ["cat", "teddy bear"],
            "crowd": [0, 1],
        },
        empty,
    ]
    assert +tally.left_out == {}
    assert list(coco(file, tally, drop_crowd=True)) == [
        first | {"boxes": [[0.1, 10.25, 0.3, 30.45]], "labels": ["cat"], "crowd": [0]},
        empty,
    ]
    assert +tally.left_out == {"crowd box": 1}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            official(annotations=[{"image_id": 30, "id": 1, "caption": 5}, CAPTIONS[1]]),
            'annotations[0]: "caption" is 5, expected str',
        ),
        (
            official(annotations=[{"id": 1, "caption": "x"}, CAPTIONS[1]]),
            'annotations[0]: "image_id" is missing, expected int',
        ),
        (
            official(annotations=[CAPTIONS[0], CAPTIONS[0]]),
            "annotations[1]: duplicate id 1 (first in annotations[0])",
        ),
        (
            official(annotations=[CAPTIONS[0], BOXES[1]]),
            'annotations[1]: has no "caption", unlike all annotations before it',
        ),
        (official(annotations=[7, CAPTIONS[0]]), 'annotations[0]: "id" is missing, expected int'),
        (
            official(annotations=[CAPTIONS[0], 7]),
            'annotations[1]: has no "caption", unlike all annotations before it',
        ),
        (
            official(annotations=[{"image_id": 31, "id": 1, "caption": "x"}]),
            'annotations of image 31, which "images" does not have',
        ),
        (official(images=[*IMAGES, IMAGES[0]]), "images[2]: duplicate id 30"),
        (
            official(categories=[{"id": 1, "name": "dog"}, {"id": 1, "name": "bird"}]),
            "categories[1]: duplicate id 1, of 'dog' and 'bird'",
        ),
        (
            official(images=[*IMAGES, {"id": 1, "file_name": "x", "width": 0, "height": 4}]),
            "images[2]: invalid size",
        ),
        (
            official(images=[*IMAGES, {"id": 1, "file_name": "x", "width": 10**30, "height": 4}]),
            "images[2]: invalid size",
        ),
        (
            official(
                annotations=[BOXES[0] | {"bbox": [1, 2, -3, 4]}, BOXES[1]], categories=CATEGORIES
            ),
            'annotations[0]: "bbox" is [1, 2, -3, 4]',
        ),
        (
            official(annotations=[BOXES[0] | {"bbox": [1, 2, 3]}, BOXES[1]], categories=CATEGORIES),
            'annotations[0]: "bbox" is [1, 2, 3]',
        ),
        (
            official(
                annotations=[BOXES[0] | {"bbox": [1, 2, 3, float("nan")]}, BOXES[1]],
                categories=CATEGORIES,
            ),
            '"bbox" is',
        ),
        (
            official(
                annotations=[BOXES[0] | {"bbox": [1, 2, 3, 10**400]}, BOXES[1]],
                categories=CATEGORIES,
            ),
            '"bbox" is',
        ),
        *(
            (
                official(
                    annotations=[BOXES[0] | {"iscrowd": crowd}, BOXES[1]], categories=CATEGORIES
                ),
                f'annotations[0]: "iscrowd" is {crowd!r}, expected 0 or 1',
            )
            for crowd in ("0", "1", 2, -1, 0.5, [])
        ),
        (official(annotations=BOXES, categories=CATEGORIES[:1]), "image 30 has a category_id that"),
        (
            official(
                annotations=[{"image_id": 30, "id": 1, "caption": "half \ud83d"}, CAPTIONS[1]]
            ),
            "holds half a character",
        ),
    ],
)
def test_coco_bad_items(tmp_path: Path, text: str, why: str) -> None:
    stops_at(tmp_path, coco, text, why, "x.json")


@pytest.mark.parametrize(
    ("crowd", "found"), [(0, 0), (1, 1), (False, 0), (True, 1), (None, 0), (1.0, 1)]
)
def test_a_crowd_may_be_a_boolean(tmp_path: Path, crowd: object, found: int) -> None:
    file = tmp_path / "i.json"
    file.write_text(official(annotations=[BOXES[0] | {"iscrowd": crowd}], categories=CATEGORIES))
    assert next(coco(file, Tally()))["crowd"] == [found]


def test_coco_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"images": IMAGES}))
    with pytest.raises(DataError, match=r'x.json: has no "annotations"'):
        list(coco(tmp_path / "x.json", Tally()))


# ------------------------------------------------------------------------------------ Visual Genome

DATA = [
    {
        "image_id": n,
        "url": f"https://example.org/VG_100K/{n}.jpg",
        "coco_id": c,
        "width": 8,
        "height": 8,
    }
    for n, c in ((1, None), (2, 77), (3, None), (4, None))
]
REGIONS = [
    {
        "id": n,
        "regions": [{"region_id": 10 * n + k, "phrase": f"thing {k} of {n} \n"} for k in range(2)],
    }
    for n in (3, 2, 1)
]


def test_visual_genome_rows(tmp_path: Path) -> None:
    file, tally = tmp_path / "image_data.json", Tally()
    file.write_text(json.dumps(DATA))
    images = list(visual_genome(file, tally, limit=2))
    assert images == [
        {"image": "vg_nococo/1", "url": "https://example.org/VG_100K/1.jpg"},
        {"image": "vg_nococo/3", "url": "https://example.org/VG_100K/3.jpg"},
    ]
    assert tally.left_out == {"image of COCO": 1, "image beyond --limit": 1}
    assert [r["image"] for r in visual_genome(file, Tally(), keep_coco=True)] == [
        "vg/1",
        "vg/2",
        "vg/3",
        "vg/4",
    ]
    (tmp_path / "r.json").write_text(json.dumps(REGIONS))
    tally = Tally()
    assert list(
        visual_genome_regions(
            tmp_path / "r.json", {1: {"image": "vg_nococo/1"}, 3: {"image": "vg_nococo/3"}}, tally
        )
    ) == [
        {"image": "vg_nococo/3", "text": "thing 0 of 3 "},
        {"image": "vg_nococo/3", "text": "thing 1 of 3 "},
        {"image": "vg_nococo/1", "text": "thing 0 of 1 "},
        {"image": "vg_nococo/1", "text": "thing 1 of 1 "},
    ]
    assert tally.left_out == {"region of an image left out": 2}


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ([DATA[0], DATA[0]], "[1]: duplicate image_id 1"),
        ([{"id": 1, "url": "x"}, DATA[0]], '[0]: "image_id" is missing'),
        ([7, DATA[0]], '[0]: "image_id" is missing'),
    ],
)
def test_visual_genome_bad_items(tmp_path: Path, items: list[Any], why: str) -> None:
    stops_at(tmp_path, visual_genome, json.dumps(items), why, "x.json")


def test_visual_genome_bad_regions(tmp_path: Path) -> None:
    def parse(file: Path, tally: Tally) -> Any:
        return visual_genome_regions(file, {1: {"image": "vg_nococo/1"}}, tally)

    stops_at(
        tmp_path,
        parse,
        json.dumps([{"id": 1, "regions": [{"phrase": "x"}, {"prase": "y"}]}]),
        '[0].regions[1]: "phrase" is missing',
    )
    stops_at(tmp_path, parse, json.dumps([{"id": 1}]), '[0]: "regions" is missing')
    own = {"id": 1, "regions": [{"phrase": "x"}]}
    stops_at(tmp_path, parse, json.dumps([own, own]), "[1]: duplicate id 1")
    other = tmp_path / "other.json"
    other.write_text(json.dumps([own | {"id": 2}]))
    with pytest.raises(DataError, match="has no region of any image that is kept"):
        list(parse(other, Tally()))


BOXED = [
    {
        "id": 2,
        "regions": [
            {"phrase": " a thing\n", "x": -1, "y": 2, "width": 5, "height": 99},
            {"phrase": "nothing", "x": 8, "y": 2, "width": 5, "height": 5},
        ],
    },
    {"id": 3, "regions": [{"phrase": "other", "x": 1, "y": 1, "width": 2, "height": 2}]},
]


def test_visual_genome_boxes(tmp_path: Path) -> None:
    images, regions, names = (tmp_path / name for name in ("i.json", "r.json", "c.json"))
    images.write_text(json.dumps(DATA))
    regions.write_text(json.dumps(BOXED))
    size = {"width": 8, "height": 8}
    first = {"image": "vg/2", "text": "a thing", **size, "boxes": [[0, 2, 4, 8]]}
    second = {"image": "vg/3", "text": "other", **size, "boxes": [[1, 1, 3, 3]]}
    tally = Tally()
    assert list(visual_genome_boxes(images, regions, None, tally)) == [first, second]
    assert tally.left_out == {"box without an area": 1}
    names.write_text(json.dumps({"images": [{"id": 77, "file_name": "0077.jpg"}]}))
    tally = Tally()
    rows = list(visual_genome_boxes(images, regions, names, tally))
    assert rows == [first | {"image": "0077.jpg"}]
    assert tally.left_out == {"box without an area": 1, "region of an image left out": 1}
    names.write_text('{"images": []}')
    with pytest.raises(DataError, match='has no "images"'):
        list(visual_genome_boxes(images, regions, names, tally))


@pytest.mark.parametrize(
    ("images", "regions", "why"),
    [
        ([DATA[1], DATA[1]], BOXED, "duplicate image_id 2"),
        ([DATA[0] | {"width": 0}], BOXED, r"or invalid size \[0, 8\]"),
        ([{"image_id": 1}], BOXED, '"width" is missing'),
        (DATA, [{"id": 2, "regions": [{"phrase": "x"}]}], r'\[0\].regions\[0\]: "x" is missing'),
        (DATA, [{"id": 2}], r'\[0\]: "regions" is missing'),
    ],
)
def test_visual_genome_bad_boxes(tmp_path: Path, images: Any, regions: Any, why: str) -> None:
    (tmp_path / "i.json").write_text(json.dumps(images))
    (tmp_path / "r.json").write_text(json.dumps(regions))
    with pytest.raises(DataError, match=why):
        list(visual_genome_boxes(tmp_path / "i.json", tmp_path / "r.json", None, Tally()))
    tally = Tally(skip=True)
    list(visual_genome_boxes(tmp_path / "i.json", tmp_path / "r.json", None, tally))
    assert len(tally.errors) == 1


# ---------------------------------------------------------------------------------------------- VCR

SCENE = {
    "img_fn": "lsmdc_1/a@0.jpg",
    "metadata_fn": "lsmdc_1/a@0.json",
    "objects": ["person", "dog"],
    "annot_id": "val-0",
}
SEEN = {
    "boxes": [[0, 0, 10.5, 20, 0.99], [5, 5, 30, 20, 0.5]],
    "segms": [[[[0, 0], [10, 20], [0, 20]]], []],
    "names": ["person", "dog"], "width": 40, "height": 20,
}  # fmt: skip


def scenes(folder: Path, *rows: dict[str, Any], tally: Tally | None = None) -> list[Any]:
    (folder / "lsmdc_1").mkdir(exist_ok=True)
    (folder / "val.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(vcr([folder / "val.jsonl"], folder, Tally() if tally is None else tally))


def test_boxes_of_vcr_are_regions_in_the_order_of_its_objects(tmp_path: Path) -> None:
    (tmp_path / "lsmdc_1").mkdir()
    (tmp_path / "lsmdc_1" / "a@0.json").write_text(json.dumps(SEEN))
    [row] = scenes(tmp_path, SCENE, SCENE | {"annot_id": "val-1"})  # two questions, one picture
    assert row == {
        "image": "lsmdc_1/a@0.jpg", "width": 40, "height": 20,
        "boxes": [[0, 0, 10.5, 20], [5, 5, 30, 20]],
        "confidence": [0.99, 0.5], "labels": ["person", "dog"],
    }  # fmt: skip
    (tmp_path / "boxes.jsonl").write_text(json.dumps(row) + "\n")
    found = FileBoxes(tmp_path / "boxes.jsonl")("lsmdc_1/a@0.jpg", Image.new("RGB", (20, 10)))
    assert (found.boxes.tolist(), found.labels) == (
        [[0, 0, 5.25, 10], [2.5, 2.5, 15, 10]],
        ["person", "dog"],
    )
    assert found.confidence.tolist() == pytest.approx([0.99, 0.5])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (None, "a@0.json, does not exist"),
        ({"names": ["person", "cat"]}, "\"objects\" is ['person', 'dog']"),
        ({"boxes": [[0, 0, 10, 20, 0.9]]}, "for each of 2 names"),
        ({"boxes": [[0, 0, 10, 20], [0, 0, 10, 20]]}, "must hold [x1, y1, x2, y2, confidence]"),
        ({"width": "40"}, "\"width\" is '40', expected int"),
        ({"names": None}, '"names" is None, expected list'),
    ],
)
def test_bad_metadata_of_vcr(tmp_path: Path, change: dict[str, Any] | None, said: str) -> None:
    (tmp_path / "lsmdc_1").mkdir()
    (tmp_path / "lsmdc_1" / "b@0.json").write_text(json.dumps(SEEN))
    if change is not None:
        (tmp_path / "lsmdc_1" / "a@0.json").write_text(json.dumps(SEEN | change))
    other = SCENE | {"img_fn": "lsmdc_1/b@0.jpg", "metadata_fn": "lsmdc_1/b@0.json"}
    with pytest.raises(DataError) as caught:
        scenes(tmp_path, other, SCENE)
    assert said in str(caught.value)
    tally = Tally(skip=True)
    assert [row["image"] for row in scenes(tmp_path, SCENE, other, tally=tally)] == [
        "lsmdc_1/b@0.jpg"
    ]
    assert len(tally.errors) == 1


@pytest.mark.parametrize("key", ["img_fn", "metadata_fn"])
@pytest.mark.parametrize("name", ["/dev/zero", "../a@0.json", "", "a\nb.json"])
def test_names_of_vcr_lead_to_no_other_folder(tmp_path: Path, key: str, name: str) -> None:
    (tmp_path / "lsmdc_1").mkdir()
    (tmp_path / "lsmdc_1" / "a@0.json").write_text(json.dumps(SEEN))
    with pytest.raises(DataError, match=f'"{key}" is .*, expected a file in '):
        scenes(tmp_path, SCENE | {key: name})


def test_a_device_is_not_the_metadata_of_vcr(tmp_path: Path) -> None:
    (tmp_path / "lsmdc_1").mkdir()
    (tmp_path / "lsmdc_1" / "a@0.json").symlink_to("/dev/zero")
    with pytest.raises(DataError, match="is not a regular file"):
        scenes(tmp_path, SCENE)


# ------------------------------------------------------------------------------------------- masks


def _instances(path: Path, **changes: object) -> Path:
    square = [[0, 0, 2, 0, 2, 2, 0, 2]]
    body = {
        "annotations": [
            {"id": 1, "image_id": 7, "category_id": 3, "segmentation": square},
            {
                "id": 2,
                "image_id": 7,
                "category_id": 1,
                "segmentation": {"size": [2, 4], "counts": [6, 2]},
                "iscrowd": 1,
            },
            {"id": 3, "image_id": 5, "category_id": 3, "segmentation": square},
            {"id": 4, "image_id": 7, "category_id": 3, "segmentation": square},
        ],
        "images": [
            {"id": 7, "file_name": "7.jpg", "width": 4, "height": 2},
            {"id": 5, "file_name": "5.jpg", "width": 3, "height": 3},
            {"id": 9, "file_name": "9.jpg", "width": 3, "height": 3},
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}],
    }
    path.write_text(json.dumps(body | changes))
    return path


def test_masks_come_by_class_of_each_picture(tmp_path: Path) -> None:
    rows = list(coco_masks(_instances(tmp_path / "i.json")))
    found = [(row.image, row.name, len(row.outlines)) for row in rows]
    assert found == [("7.jpg", "cat", 1), ("7.jpg", "dog", 2), ("5.jpg", "dog", 1)]
    assert (rows[1].width, rows[1].height) == (4, 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"annotations": []}, 'has no "annotations"'),
        ({"images": []}, 'annotations of image 5, which "images" does not have'),
        ({"categories": [{"id": 1, "name": "cat"}]}, '"categories" does not have: 3'),
        (
            {"annotations": [{"image_id": 7, "category_id": 1, "segmentation": 5}]},
            r'annotations\[0\]: "segmentation": expected polygons or runs, got 5',
        ),
        (
            {
                "annotations": [
                    {
                        "image_id": 7,
                        "category_id": 1,
                        "segmentation": {"size": [4, 2], "counts": [8]},
                    }
                ]
            },
            "image 7 is 4×2, the runs of a mask have another size",
        ),
        (
            {"images": [{"id": n, "file_name": "x", "width": 9, "height": 99999} for n in (5, 7)]},
            "image 5 is 9×99999, at most 32768 px",
        ),
        (
            {
                "images": [
                    {"id": n, "file_name": "x", "width": 30000, "height": 30000} for n in (5, 7)
                ]
            },
            "image 5 is 30000×30000, at most 32768 px per side and 178,956,970 in all",
        ),
        ({"annotations": [{"image_id": 7}]}, r'annotations\[0\]: "category_id" is missing'),
    ],
)
def test_masks_of_other_forms_are_refused(
    tmp_path: Path, change: dict[str, object], why: str
) -> None:
    with pytest.raises(DataError, match=why):
        list(coco_masks(_instances(tmp_path / "i.json", **change)))


# --------------------------------------------------------------------------------------------- VQA


def test_questions_are_captions_of_coco_s_photos(tmp_path: Path) -> None:
    path = tmp_path / "v2_OpenEnded_mscoco_test-dev2015_questions.json"
    questions = [
        {"image_id": 9, "question": "What is it?\n", "question_id": 9001},
        {"image_id": 12, "question_id": 1},
        {"image_id": 123456789012, "question": "Ünder what?", "question_id": 2},
    ]
    path.write_text(json.dumps({"info": {}, "questions": questions, "data_subtype": "x"}))
    tally = Tally(skip=True)
    assert list(vqa(path, tally)) == [
        {"image": "COCO_test2015_000000000009.jpg", "text": "What is it?"},
        {"image": "COCO_test2015_123456789012.jpg", "text": "Ünder what?"},
    ]
    assert [error.why for error in tally.errors] == [
        'questions[1]: "question" is missing, expected str'
    ]
    with pytest.raises(DataError, match='"question" is missing'):
        list(vqa(path, Tally()))
    path.write_text('{"questions": []}')
    with pytest.raises(DataError, match="has no questions"):
        list(vqa(path, Tally()))
    with pytest.raises(DataError, match="must contain its split"):
        next(vqa(tmp_path / "questions.json", Tally()))


@pytest.mark.parametrize("edition", ["", "v2_"])
@pytest.mark.parametrize("split", ["train2014", "val2014", "test2015", "test-dev2015"])
@pytest.mark.parametrize("facts_last", [False, True])
def test_the_official_files_of_questions_are_read(
    tmp_path: Path, edition: str, split: str, facts_last: bool
) -> None:
    path = tmp_path / f"{edition}OpenEnded_mscoco_{split}_questions.json"
    facts = {"info": {}, "task_type": "Open-Ended", "data_type": "mscoco", "data_subtype": split}
    questions = {"questions": [{"image_id": 42, "question": "Who?", "question_id": 420}]}
    path.write_text(json.dumps(questions | facts if facts_last else facts | questions))
    photo = f"COCO_{split.replace('-dev', '')}_000000000042.jpg"
    assert list(vqa(path, Tally())) == [{"image": photo, "text": "Who?"}]


@pytest.mark.parametrize("facts_last", [False, True])
@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({"data_type": "abstract_v002"}, "\"data_type\" is 'abstract_v002', expected 'mscoco'"),
        ({"data_type": None}, "\"data_type\" is None, expected 'mscoco'"),
        (
            {"data_type": "mscoco", "data_subtype": "val2014"},
            "\"data_subtype\" is 'val2014', the file's name has train2014",
        ),
        ({"data_subtype": "test-dev2015"}, "\"data_subtype\" is 'test-dev2015'"),
    ],
)
def test_questions_about_other_pictures_are_refused(
    tmp_path: Path, facts: dict[str, Any], why: str, facts_last: bool
) -> None:
    path = tmp_path / "q_train2014.json"
    questions = {"questions": [{"image_id": 42, "question": "Who?"}]}
    path.write_text(json.dumps(questions | facts if facts_last else facts | questions))
    for tally in (Tally(), Tally(skip=True)):
        with pytest.raises(DataError, match=why) as caught:
            list(vqa(path, tally))
        assert caught.value.code == 65
