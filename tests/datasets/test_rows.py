"""Official forms → rows: exact rows, what is bad, what is left out."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vgtools.cli import run
from vgtools.datasets.annotations import coco, vcr, visual_genome, visual_genome_regions
from vgtools.datasets.box_files import FileBoxes
from vgtools.datasets.captions import (
    conceptual_captions,
    flickr8k,
    flickr30k_entities,
    parse_entities,
    sbu,
)
from vgtools.datasets.rows import Folder, read_splits, save, with_photos, with_split
from vgtools.io import DataError, Exit
from vgtools.io.errors import Tally

Row = dict[str, Any]


def bad(tmp_path: Path, parse: Any, text: str, why: str, name: str = "x.txt") -> None:
    """The parser stops at the bad item and names it; with skip it continues, and counts one."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(parse(file, Tally()))
    assert why in str(caught.value)
    assert str(file) in str(caught.value)
    tally = Tally(skip=True)
    list(parse(file, tally))
    assert [str(e) for e in tally.errors] == [str(caught.value)]
    assert tally.left_out["bad item"] == 1


def photo(path: Path, width: int, height: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), (200, 30, 30)).save(path)


# ----------------------------------------------------------------------------------------- Flickr8k

TOKENS = "10_a.jpg#0\tA red kite .\n10_a.jpg#1\tÜber <b>the</b> \\sea\u2028 \n"
TOKENS += "11_b.jpg.1#0\ttwo\tcups\n12_c.jpg#0\t\n13_d.jpg#0\tA hill .\n"


def test_flickr8k_rows(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text(TOKENS, encoding="utf-8")
    assert list(flickr8k(tmp_path / "t.txt", Tally())) == [
        {"image": "10_a.jpg", "text": "A red kite ."},
        {"image": "10_a.jpg", "text": "Über <b>the</b> \\sea\u2028 "},
        {"image": "11_b.jpg", "text": "two\tcups"},
        {"image": "12_c.jpg", "text": ""},
        {"image": "13_d.jpg", "text": "A hill ."},
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "10_a.jpg#1 A torn line",
            "x.txt:2: expected IMAGE#NUMBER, a tab, and the caption, got '10_a.jpg#1 A torn line'",
        ),
        ("10_a.jpg\tno number", "x.txt:2: expected IMAGE#NUMBER"),
        ("#0\tno image", "x.txt:2: expected IMAGE#NUMBER"),
        ("10_a.jpg#x\twords", "x.txt:2: expected IMAGE#NUMBER"),
        ("", "x.txt:2: expected IMAGE#NUMBER, a tab, and the caption, got ''"),
        ("10_a.jpg#0\tagain", "x.txt:2: duplicate '10_a.jpg#0' (first on line 1)"),
    ],
)
def test_flickr8k_bad_lines(tmp_path: Path, line: str, why: str) -> None:
    bad(tmp_path, flickr8k, f"10_a.jpg#0\tA red kite .\n{line}\n11_b.jpg#0\tA cup .\n", why)


# -------------------------------------------------------------------------------- splits and photos


def lists(folder: Path, **splits: str) -> Path:
    for split, names in splits.items():
        (folder / f"Flickr_8k.{split}Images.txt").write_text(
            "".join(f"{n}\n" for n in names.split())
        )
    return folder


def test_splits_are_read_and_given(tmp_path: Path) -> None:
    splits = read_splits(lists(tmp_path, train="a.jpg b.jpg", dev="c.jpg"))
    assert splits == {"a.jpg": "train", "b.jpg": "train", "c.jpg": "dev"}
    rows = [{"image": f"{n}.jpg", "text": n} for n in "abcd"]
    tally = Tally()
    assert [r.get("split") for r in with_split(rows, splits, None, tally)] == [
        "train",
        "train",
        "dev",
        None,
    ]
    assert list(with_split(rows, splits, "dev", tally)) == [
        {"image": "c.jpg", "text": "c", "split": "dev"}
    ]
    assert tally.left_out == {"not in dev": 3}


def test_lists_of_stems_name_photos_too(tmp_path: Path) -> None:
    (tmp_path / "val.txt").write_text("1000\n")
    assert read_splits(tmp_path) == {"1000": "val"}
    assert (
        next(with_split([{"image": "1000.jpg"}], {"1000": "val"}, None, Tally()))["split"] == "val"
    )


def test_bad_splits(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="--split test: unknown split; known are dev, train"
    ) as caught:
        list(with_split([], {"a": "train", "b": "dev"}, "test", Tally()))
    assert caught.value.code == Exit.USAGE
    with pytest.raises(DataError, match="none: --splits names the folder"):
        list(with_split([], {}, "test", Tally()))
    with pytest.raises(DataError, match="holds no split list"):
        read_splits(tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        read_splits(tmp_path / "nowhere")
    with pytest.raises(
        DataError, match=r"trainImages.txt:2: duplicate image 'a.jpg' \(already in the dev list\)"
    ):
        read_splits(lists(tmp_path, train="b.jpg a.jpg", dev="a.jpg"))


def test_photos_are_found_by_path_name_stem_and_flickr_number(tmp_path: Path) -> None:
    for name in ("one/7.jpg", "two/8.png", "100_abc.jpg", "one/x.jpg", "two/x.jpg"):
        photo(tmp_path / name, 4, 4)
    for name in ("100_abc.json", "one/x.json"):  # other files beside a photo do not count
        (tmp_path / name).touch()
    photos = Folder(tmp_path)
    assert (
        photos.find("one/7.jpg")
        == photos.find("vg/7")
        == photos.find("7.jpg")
        == str(tmp_path / "one/7.jpg")
    )
    assert photos.find("8.jpg") == str(tmp_path / "two/8.png")
    assert photos.find("100.jpg") == photos.find("100_abc.jpg") == str(tmp_path / "100_abc.jpg")
    assert photos.find("one/x.jpg") == str(tmp_path / "one/x.jpg")
    assert photos.find("100_abc.json") == str(tmp_path / "100_abc.json")
    with pytest.raises(
        DataError, match=r"'x.jpg' is ambiguous: one/x.jpg and two/x.jpg both match"
    ):
        photos.find("x.jpg")
    with pytest.raises(DataError, match=r"holds no photo '9.jpg'") as caught:
        photos.find("9.jpg")
    assert caught.value.code == Exit.NO_INPUT
    with pytest.raises(DataError, match="does not exist"):
        Folder(tmp_path / "nowhere")


def test_a_link_to_nothing_and_a_name_that_is_not_utf8_cost_only_their_own_rows(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "b.jpg").symlink_to("nowhere")
    (tmp_path / os.fsdecode(b"c_\xff.jpg")).touch()
    folder = Folder(tmp_path)
    assert len(folder.digest()) == 64
    assert folder.find("a.jpg") == str(tmp_path / "a.jpg")
    with pytest.raises(DataError, match="not UTF-8"):
        folder.find("c.jpg")


def test_a_folder_s_digest_changes_with_its_files(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", 4, 4)
    before = Folder(tmp_path).digest()
    assert before == Folder(tmp_path).digest()
    photo(tmp_path / "a.jpg", 40, 4)
    assert Folder(tmp_path).digest() != before


def test_boxes_follow_the_photo_s_size(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", 224, 149)
    photo(tmp_path / "b.jpg", 500, 333)
    phrases = [
        {"start": 0, "end": 1, "boxes": [[1, 2, 500, 333]]},
        {"start": 2, "end": 3, "boxes": []},
    ]
    rows: list[Row] = [
        {"image": n, "width": 500, "height": 333, "phrases": phrases, "boxes": [[0, 0, 250, 100]]}
        for n in ("a.jpg", "b.jpg")
    ]
    small, same = with_photos(rows, Folder(tmp_path), Tally())
    assert (small["width"], small["height"]) == (224, 149)
    assert small["boxes"] == [[0, 0, 112, 44.74]]
    assert [p["boxes"] for p in small["phrases"]] == [[[0.45, 0.89, 224, 149]], []]
    assert same is rows[1]


@pytest.mark.parametrize("size", [(168, 224), (224, 150), (500, 300)])
def test_a_photo_of_another_shape_is_refused(tmp_path: Path, size: tuple[int, int]) -> None:
    photo(tmp_path / "a.jpg", *size)
    with pytest.raises(
        DataError, match="its annotation is for 500×375: another picture, or cropped"
    ):
        list(
            with_photos(
                [{"image": "a.jpg", "width": 500, "height": 375}], Folder(tmp_path), Tally()
            )
        )


def test_rows_of_a_missing_photo_are_one_error_and_counted(tmp_path: Path) -> None:
    photo(tmp_path / "a.jpg", 4, 4)
    (tmp_path / "html.jpg").write_text("<html>")
    rows: list[Row] = [
        {"image": "a.jpg"},
        {"image": "no.jpg"},
        {"image": "no.jpg"},
        {"image": "html.jpg", "width": 4, "height": 4},
    ]
    tally, photos = Tally(skip=True), Folder(tmp_path)
    assert list(with_photos(rows, photos, tally)) == [{"image": "a.jpg"}]
    assert [e.why[:24] for e in tally.errors] == [
        "holds no photo 'no.jpg';",
        "cannot be read as a pict",
    ]
    assert tally.left_out == {"bad item": 2, "row of a bad photo": 1}
    assert photos.used == {"a.jpg": str(tmp_path / "a.jpg")}


def test_max_errors_gives_up() -> None:
    tally = Tally(skip=True, most=1)
    tally.bad(DataError("one"))
    with pytest.raises(DataError, match=r"two \(bad item 2, --max-errors allows 1\)"):
        tally.bad(DataError("two"))


# ----------------------------------------------------------------------------------------- Entities

SENTENCES = "[/EN#5/people A tall man] flies [/EN#6/other/scene a «kite» 🪁] .\n"
SENTENCES += "[/EN#0/notvisual It] is [/EN#9/scene a beach]\nplain words\n"
ANNOTATION = (
    "<annotation><filename>77.jpg</filename>"
    "<size><width>500</width><height>400</height><depth>3</depth></size>\n"
    "<object><name>5</name><name>8</name>"
    "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>100</xmax><ymax>400</ymax></bndbox></object>\n"
    "<object><name>5</name>"
    "<bndbox><xmin>300</xmin><ymin>20</ymin><xmax>340</xmax><ymax>44</ymax></bndbox></object>\n"
    "<object><name>9</name><scene>1</scene><nobndbox>0</nobndbox></object></annotation>"
)


def entities(
    folder: Path, sentences: str = SENTENCES, annotation: str | bytes = ANNOTATION
) -> Path:
    for name in ("Sentences", "Annotations"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "Sentences/77.txt").write_text(sentences, encoding="utf-8")
    (folder / "Annotations/77.xml").write_bytes(
        annotation if isinstance(annotation, bytes) else annotation.encode()
    )
    return folder


def test_entities_rows(tmp_path: Path) -> None:
    same = {"image": "77.jpg", "width": 500, "height": 400}
    assert list(flickr30k_entities(entities(tmp_path), Tally())) == [
        same
        | {
            "text": "A tall man flies a «kite» 🪁 .",
            "phrases": [
                {
                    "start": 0,
                    "end": 10,
                    "type": "people",
                    "id": "5",
                    "boxes": [[1, 2, 100, 400], [300, 20, 340, 44]],
                },
                {"start": 17, "end": 27, "type": "other/scene", "id": "6", "boxes": []},
            ],
        },
        same
        | {
            "text": "It is a beach",
            "phrases": [
                {"start": 0, "end": 2, "type": "notvisual", "id": "0", "boxes": []},
                {"start": 6, "end": 13, "type": "scene", "id": "9", "boxes": []},
            ],
        },
        same | {"text": "plain words", "phrases": []},
    ]


WORDS = st.text(
    alphabet=st.characters(blacklist_characters="[]\n\r", blacklist_categories=["Cs"]), min_size=1
)


@given(st.lists(st.tuples(WORDS, WORDS)))
def test_spans_cut_the_phrases_out_of_the_text(parts: list[tuple[str, str]]) -> None:
    line = "".join(f"[/EN#{i}/other {phrase}]{rest}" for i, (phrase, rest) in enumerate(parts))
    text, phrases = parse_entities(line)
    assert text == "".join(phrase + rest for phrase, rest in parts)
    assert [text[p["start"] : p["end"]] for p in phrases] == [phrase for phrase, _ in parts]


@pytest.mark.parametrize(
    ("sentences", "annotation", "why"),
    [
        ("fine\n[/EN#5/people A tall\n", ANNOTATION, "77.txt:2: a phrase is torn"),
        ("[/EN#/people A tall]\n", ANNOTATION, "77.txt:1: a phrase is torn"),
        (SENTENCES, ANNOTATION[:200], "77.xml:2: is not whole XML"),
        (
            SENTENCES,
            ANNOTATION.replace("<width>500</width>", ""),
            "77.xml: is not an Entities annotation",
        ),
        (SENTENCES, ANNOTATION.replace("<width>500", "<width>0"), "invalid size 0×400"),
        (
            SENTENCES,
            ANNOTATION.replace("<xmin>300", "<xmin>3.x"),
            "77.xml: is not an Entities annotation",
        ),
        (
            SENTENCES,
            '<!DOCTYPE a [<!ENTITY b "bb">]><annotation>&b;</annotation>',
            "77.xml: is not an Entities annotation (size",
        ),
        (
            SENTENCES,
            '<!DOCTYPE a [<!ENTITY b "bb">]><annotation>&b;</annotation>'.encode("utf-16"),
            "has a DOCTYPE",
        ),
        (SENTENCES, "", "77.xml:1: is not whole XML"),
    ],
)
def test_entities_bad_files(
    tmp_path: Path, sentences: str, annotation: str | bytes, why: str
) -> None:
    folder = entities(tmp_path, sentences, annotation)
    with pytest.raises(DataError) as caught:
        list(flickr30k_entities(folder, Tally()))
    assert why in str(caught.value)
    tally = Tally(skip=True)
    list(flickr30k_entities(folder, tally))
    assert len(tally.errors) == 1


def test_an_xml_bomb_is_refused_before_it_grows(tmp_path: Path) -> None:
    levels = "".join(
        f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "boom" * 10}">' for i in range(12)
    )
    folder = entities(tmp_path, annotation=f"<!DOCTYPE x [{levels}]><annotation>&e11;</annotation>")
    with pytest.raises(DataError, match="has a DOCTYPE, which annotations do not have; refused"):
        list(flickr30k_entities(folder, Tally()))


def test_entities_are_distinguished_from_other_files_beside_them(tmp_path: Path) -> None:
    folder = entities(tmp_path)
    for odd in (
        "Sentences/._77.txt",
        "Sentences/.DS_Store",
        "Annotations/._77.xml",
        "Sentences/77.md",
    ):
        (folder / odd).write_bytes(b"\x00\x05\x16\x07")
    (folder / "Sentences/old").mkdir()
    (folder / "Sentences/old/77.txt").touch()
    tally = Tally()
    assert len(list(flickr30k_entities(folder, tally))) == 3
    assert not +tally.left_out


def test_entities_of_empty_folders(tmp_path: Path) -> None:
    for name in ("Sentences", "Annotations"):
        (tmp_path / name).mkdir()
    (tmp_path / "Sentences/.DS_Store").touch()
    with pytest.raises(DataError, match=r"Sentences.*holds no captions") as caught:
        list(flickr30k_entities(tmp_path, Tally()))
    assert caught.value.code == Exit.NO_INPUT


def test_entities_without_a_partner(tmp_path: Path) -> None:
    folder = entities(tmp_path)
    (folder / "Annotations/78.xml").write_text(ANNOTATION)
    tally = Tally()
    assert len(list(flickr30k_entities(folder, tally))) == 3
    assert tally.left_out == {"annotation without sentences": 1}
    (folder / "Annotations/77.xml").unlink()
    with pytest.raises(DataError, match=r"77.xml: cannot be read: No such file") as caught:
        list(flickr30k_entities(folder, Tally()))
    assert caught.value.code == Exit.NO_INPUT
    with pytest.raises(DataError, match=r"Sentences: does not exist"):
        list(flickr30k_entities(tmp_path / "Annotations", Tally()))


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
    first: Row = {"image": "0030.jpg", "width": 640, "height": 480}
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
    bad(tmp_path, coco, text, why, "x.json")


def test_coco_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"images": IMAGES}))
    with pytest.raises(DataError, match=r'x.json: has no "annotations"'):
        list(coco(tmp_path / "x.json", Tally()))


# ---------------------------------------------------------------------- Visual Genome, web captions

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
    bad(tmp_path, visual_genome, json.dumps(items), why, "x.json")


def test_visual_genome_bad_regions(tmp_path: Path) -> None:
    def parse(file: Path, tally: Tally) -> Any:
        return visual_genome_regions(file, {1: {"image": "vg_nococo/1"}}, tally)

    bad(
        tmp_path,
        parse,
        json.dumps([{"id": 1, "regions": [{"phrase": "x"}, {"prase": "y"}]}]),
        '[0].regions[1]: "phrase" is missing',
    )
    bad(tmp_path, parse, json.dumps([{"id": 1}]), '[0]: "regions" is missing')


def test_conceptual_captions(tmp_path: Path) -> None:
    file = tmp_path / "t.tsv"
    file.write_bytes("a cat ,\ttabbed\thttp://x.org/1.jpg\r\nÜ\thttps://x.org/2?a=b\n".encode())
    assert list(conceptual_captions(file, Tally(), "cc/train")) == [
        {"image": "cc/train/1", "text": "a cat ,\ttabbed", "url": "http://x.org/1.jpg"},
        {"image": "cc/train/2", "text": "Ü", "url": "https://x.org/2?a=b"},
    ]


@pytest.mark.parametrize(
    "line", ["no tab http://x.org", "a cat\tx.org/1.jpg", "http://x.org/1.jpg", ""]
)
def test_conceptual_captions_bad_lines(tmp_path: Path, line: str) -> None:
    bad(
        tmp_path,
        lambda file, tally: conceptual_captions(file, tally, "cc"),
        f"ok\thttp://x.org/1\n{line}\n",
        "x.txt:2: expected the caption, a tab, and a URL, got",
    )


def test_sbu_in_both_forms(tmp_path: Path) -> None:
    urls, captions = (
        ["http://f.org/1/9_a.jpg", "http://f.org/2/8_b.jpg", "http://f.org/1/9_a.jpg"],
        ["One .", "Two", "Three"],
    )
    wanted = [
        {"image": f"sbu/{u.rsplit('/', 1)[1]}", "text": c, "url": u}
        for u, c in zip(urls, captions, strict=True)
    ]
    (tmp_path / "u.txt").write_text("\n".join(urls))
    (tmp_path / "c.txt").write_text("\n".join(captions) + "\n")
    (tmp_path / "s.json").write_text(
        json.dumps({"image_urls": urls, "user_ids": ["x", "y", "z"], "captions": captions})
    )
    assert list(sbu(tmp_path / "u.txt", tmp_path / "c.txt", Tally())) == wanted
    assert list(sbu(tmp_path / "s.json", None, Tally())) == wanted
    (tmp_path / "c.txt").write_text("One .\n")
    with pytest.raises(
        DataError, match=r"u.txt: 3 URLs for 1 caption; both must be the files of one release"
    ):
        list(sbu(tmp_path / "u.txt", tmp_path / "c.txt", Tally()))
    (tmp_path / "s.json").write_text(
        json.dumps({"image_urls": ["nonsense", urls[1]], "captions": ["x", "y"]})
    )
    bad(
        tmp_path,
        lambda file, tally: sbu(file, None, tally),
        (tmp_path / "s.json").read_text(),
        "expected a URL and a text, got 'nonsense'",
        "s.json",
    )
    (tmp_path / "s.json").write_text("{}")
    with pytest.raises(DataError, match="0 URLs for 0 captions"):
        list(sbu(tmp_path / "s.json", None, Tally()))


# --------------------------------------------------------------------------------------------- save


def rows(count: int, change: int = -1) -> list[Row]:
    return [
        {"image": f"{n}.jpg", "text": f"caption {n}" + "!" * (n == change)} for n in range(count)
    ]


def test_the_suffix_chooses_the_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.jsonl", "b.txt", "c.jsonl.gz"):
        save(rows(2), str(tmp_path / name), Tally(), "captions", {}, [])
    assert (
        (tmp_path / "a.jsonl").read_bytes()
        == b'{"image":"0.jpg","text":"caption 0"}\n{"image":"1.jpg","text":"caption 1"}\n'
    )
    assert (tmp_path / "b.txt").read_bytes() == b"caption 0\ncaption 1\n"
    assert (tmp_path / "c.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    save(rows(1), str(tmp_path / "d.tokens"), Tally(), "lines", {}, [])
    assert (tmp_path / "d.tokens").read_bytes() == b"caption 0\n"
    assert (
        capsys.readouterr().err.splitlines()[0]
        == f"vg prepare: 2 captions in {tmp_path / 'a.jsonl'}"
    )


def test_an_interrupted_run_resumes_where_it_was(tmp_path: Path) -> None:
    def cut() -> Any:
        yield from rows(7)
        raise KeyboardInterrupt

    for name in ("x.jsonl", "y.jsonl.gz"):
        path, whole = tmp_path / name, tmp_path / f"whole-{name}"
        with pytest.raises(KeyboardInterrupt):
            save(cut(), str(path), Tally(), "captions", {}, [], quiet=True, step=3)
        assert not path.exists()
        assert (tmp_path / f"{name}.part").exists()
        with pytest.raises(DataError, match="the input changed") as caught:
            save(rows(10, change=2), str(path), Tally(), "captions", {}, [], quiet=True, step=3)
        assert caught.value.code == Exit.CONFIG
        with pytest.raises(DataError, match="the input changed"):
            save(rows(4), str(path), Tally(), "captions", {}, [], quiet=True, step=3)
        assert save(rows(10), str(path), Tally(), "captions", {}, [], quiet=True, step=3) == 10
        save(rows(10), str(whole), Tally(), "captions", {}, [], quiet=True, step=3)
        assert path.read_bytes() == whole.read_bytes()
        assert (
            not list(tmp_path.glob("*.part"))
            + list(tmp_path.glob("*.journal"))
            + list(tmp_path.glob("*.lock"))
        )


def test_errors_are_listed_beside_the_output(tmp_path: Path) -> None:
    tally = Tally(skip=True)
    tally.bad(DataError("torn", "in.txt", 3))
    save(rows(1), str(tmp_path / "x.jsonl.gz"), tally, "captions", {}, [], quiet=True)
    assert json.loads((tmp_path / "x.errors.jsonl").read_text()) == {
        "file": "in.txt",
        "line": 3,
        "error": "torn",
    }
    manifest = json.loads((tmp_path / "x.json").read_text())
    assert (manifest["kind"], manifest["rows"], manifest["left_out"]) == (
        "captions",
        1,
        {"bad item": 1},
    )


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


def test_the_lists_of_two_data_sets_in_one_folder_are_not_mixed(tmp_path: Path) -> None:
    lists(tmp_path, train="a.jpg", dev="b.jpg")
    (tmp_path / "train.txt").write_text("1\n")
    (tmp_path / "test.txt").write_text("2\n")
    with pytest.raises(DataError, match="of Flickr8k and of Flickr30k"):
        read_splits(tmp_path)
    assert read_splits(tmp_path, flickr8k=True) == {"a.jpg": "train", "b.jpg": "dev"}
    assert read_splits(tmp_path, flickr8k=False) == {"1": "train", "2": "test"}


def test_flickr8k_reads_its_own_lists(tmp_path: Path) -> None:
    lists(tmp_path, train="a.jpg")
    (tmp_path / "train.txt").write_text("1\n")
    tokens = tmp_path / "Flickr8k.token.txt"
    tokens.write_text("a.jpg#0\tA dog .\n")
    args = ["prepare", "flickr8k", str(tokens), "--splits", str(tmp_path), "-q"]
    assert run([*args, "-o", str(tmp_path / "c.jsonl")]) == 0
    assert json.loads((tmp_path / "c.jsonl").read_text())["split"] == "train"
    tokens.rename(tmp_path / "captions.txt")
    args[2] = str(tmp_path / "captions.txt")
    assert run([*args, "-o", str(tmp_path / "d.jsonl")]) == 65
