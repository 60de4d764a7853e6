"""The official files of tasks with pictures, their pictures, and VQA's answers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tiny_vtasks import save_vqa, vcr_row
from vgtools import visual_tasks as t
from vgtools.io import DataError
from vgtools.predictions import prediction_row, score_predictions
from vgtools.tasks import Answer, find_task, read_examples


def nlvr2(path: Path, *rows: dict[str, Any], **more: Any) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_examples("nlvr2", path, **more))


ROW = {"identifier": "dev-850-0-1", "sentence": "Two dogs.", "label": "True", "left_url": "http://x/1.jpg"}


def test_a_row_of_nlvr2(tmp_path: Path) -> None:
    found = nlvr2(tmp_path / "dev.json", ROW, ROW | {"identifier": "dev-850-1-1", "label": "False"})
    assert [(e.id, e.text, e.label, e.line) for e in found] == [
        ("dev-850-0-1", "Two dogs.", 1, 1),
        ("dev-850-1-1", "Two dogs.", 0, 2),
    ]
    assert found[0].images == ("dev-850-0-img0", "dev-850-0-img1")
    bare = {key: value for key, value in ROW.items() if key != "label"}
    assert nlvr2(tmp_path / "test1.json", bare, unlabelled=True)[0].label is None


def test_bad_rows_of_nlvr2(tmp_path: Path) -> None:
    def said(**change: Any) -> str:
        with pytest.raises(DataError) as caught:
            nlvr2(tmp_path / "dev.json", ROW, {k: v for k, v in (ROW | change).items() if v is not None})
        return str(caught.value)

    assert "split-set-pair-sentence" in said(identifier="dev-850")
    assert "stands there already" in said()
    assert "'Maybe' in \"label\"" in said(identifier="dev-1-1-1", label="Maybe")
    assert '"label" is missing' in said(identifier="dev-1-1-1", label=None)
    assert "dev.json:2" in said(identifier="dev-1-1-1", label=None)


def test_consistency_wants_all_pairs_of_a_sentence() -> None:
    task = find_task("nlvr2")
    names = ["dev-1-0-0", "dev-1-1-0", "dev-1-0-1", "dev-2-0-0"]  # three sentences
    rows = [
        prediction_row(task, t.VisualExample(name, "", label=1), said) for name, said in zip(names, [1, 0, 1, 1], strict=True)
    ]
    assert score_predictions(task, rows) == {
        "accuracy": 75, "consistency": pytest.approx(200 / 3), "headline": 75, "total": 4,
    }  # fmt: skip


def test_vqa_as_its_files_say(tmp_path: Path) -> None:
    save_vqa(tmp_path)
    found: list[Any] = list(read_examples("vqa", tmp_path / "v2_OpenEnded_mscoco_val2014_questions.json"))
    assert (found[1].id, found[1].text, found[1].images) == ("1001", "bam", ("COCO_val2014_000000000102",))
    assert [a.text for a in found[1].answers] == ["two dogs"] * 9 + ["a Red"]
    assert t.common_answers(found, 1) == ("2 dogs", "blue", "red")
    assert t.common_answers(found, 3) == ("2 dogs",)
    with pytest.raises(DataError, match="no answer is that of 9 questions"):
        t.common_answers(found, 9)
    assert t.soft_targets([Answer("Two dogs", -1), Answer("red", -1), Answer("a red", -1)], {"red": 0, "2 dogs": 1}) == {
        0: pytest.approx(2 / 3), 1: pytest.approx(1 / 3),
    }  # fmt: skip


def test_vqa_without_annotations(tmp_path: Path) -> None:
    save_vqa(tmp_path)
    questions, annotations = (
        tmp_path / f"v2_{n}2014_{k}.json" for n, k in (("OpenEnded_mscoco_val", "questions"), ("mscoco_val", "annotations"))
    )
    assert t.annotations_path(questions) == annotations
    rows = json.loads(annotations.read_text())["annotations"]

    def said(text: str) -> str:
        annotations.write_text(text)
        with pytest.raises(DataError) as caught:
            list(read_examples("vqa", questions))
        return str(caught.value)

    assert "no answers to the question 1011" in said(json.dumps({"annotations": rows[:-1]}))
    assert 'annotations[0]: "answers" must be' in said(json.dumps({"annotations": [rows[0] | {"answers": []}]}))
    assert "has no annotations" in said(json.dumps({"rows": rows}))
    annotations.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(read_examples("vqa", questions))
    assert all(e.answers == () for e in read_examples("vqa", questions, unlabelled=True))


@pytest.mark.parametrize("name", ["COCO_val2014_000000000042", "42"])
@pytest.mark.parametrize("image", ["COCO_val2014_000000000042.jpg", "val/000000000042.jpg", "42", "000000000042"])
def test_pictures_of_coco_go_by_many_names(name: str, image: str) -> None:
    class Regions(SimpleNamespace):
        def __contains__(self, key: object) -> bool:
            return key in self.images

    regions: Any = Regions(images=["7.jpg", image], path="x.npy")
    assert t.Pictures(regions).find(name, "q.json", None) == image


def test_the_split_tells_pictures_of_one_number_apart() -> None:
    class Regions(SimpleNamespace):
        def __contains__(self, key: object) -> bool:
            return key in self.images

    regions: Any = Regions(images=[f"{s}/COCO_{s}_000000000042.jpg" for s in ("train2014", "val2014")], path="x.npy")
    assert t.Pictures(regions).find("COCO_val2014_000000000042", "q.json", None) == regions.images[1]
    with pytest.raises(DataError, match="2 images of that name"):
        t.Pictures(regions).find("42", "q.json", None)


def phrases(path: Path, *rows: dict[str, Any]) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_examples("flickr30k-grounding", path))


PHRASE = {"start": 2, "end": 5, "boxes": [[0, 0, 10, 10]], "type": "people"}
CAPTION = {"image": "1.jpg", "text": "A man runs.", "width": 100, "height": 80, "phrases": [PHRASE, PHRASE | {"boxes": []}]}


def test_phrases_with_boxes_are_examples(tmp_path: Path) -> None:
    found = phrases(tmp_path / "val.jsonl", CAPTION, CAPTION)
    assert [(e.id, e.span, e.boxes, e.size, e.images) for e in found] == [
        (f"{line}-1", (2, 5), ((0, 0, 10, 10),), (100, 80), ("1.jpg",)) for line in (1, 2)
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"end": 40}, "span 2 to 40, the text has 11 characters"),
        ({"boxes": [[0, 0, 10]]}, "wanted a list of [x1, y1, x2, y2]"),
        ({"boxes": [[0, 0, 200, 10]]}, "leaves its picture of 100×80"),
        ({"boxes": [[5, 5, 5, 10]]}, "has no area"),
    ],
)
def test_bad_phrases(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        phrases(tmp_path / "val.jsonl", CAPTION, CAPTION | {"phrases": [PHRASE, PHRASE | change]})
    assert said in str(caught.value)
    assert "val.jsonl:2: phrase 2" in str(caught.value)


def test_recall_among_the_best_boxes() -> None:
    task, far = find_task("flickr30k-grounding"), [[50.0, 50, 60, 60]]
    asked = [t.VisualExample(str(i), "", boxes=((0, 0, 10, 10), (20, 20, 30, 30))) for i in range(4)]
    ranks = [[[20.0, 20, 30, 29]], [*far, [0.0, 0, 10, 10]], far * 7 + [[0.0, 0, 10, 5]], far * 10]
    rows = [
        prediction_row(task, e, boxes) | {"reachable": i < 3} for i, (e, boxes) in enumerate(zip(asked, ranks, strict=True))
    ]
    wanted = {"recall_1": 25, "recall_5": 50, "recall_10": 75, "upper_bound": 75, "headline": 25, "total": 4}
    assert score_predictions(task, rows) == wanted
    assert score_predictions(task, rows, asked) == wanted
    with pytest.raises(DataError, match="list of boxes"):
        score_predictions(task, [rows[0] | {"prediction": [[1, 2, 3]]}])


def vcr(path: Path, *rows: dict[str, Any], task: str = "vcr-qa", **more: Any) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_examples(task, path, **more))


SCENE = vcr_row(
    "val-0",
    objects=["person", "dog", "person", "person", "car"],
    question=["Does", [2], "see", [0, 1], "?"],
    answer_choices=[["Yes", ",", [0], "."], ["No", [3], "does", "n't", "."], [[2], "sleeps"], ["Maybe"]],
    answer_label=1,
    rationale_choices=[[[0], "points"], [[3], "is", "blind"], ["She", "runs"], [[2], [0]]],
    rationale_label=3,
)


def test_people_have_names_and_things_their_class(tmp_path: Path) -> None:
    [found] = vcr(tmp_path / "val.jsonl", SCENE)
    assert (found.id, found.label, found.line, found.images) == ("val-0", 1, 1, (SCENE["img_fn"],))
    assert found.text == "Does Casey see Riley dog ?"
    # Whoever is new in a choice has a name that nobody of the question has.
    assert found.choices == ("Yes , Riley .", "No Jessie does n't .", "Casey sleeps", "Maybe")
    texts = [found.text, *found.choices]
    named = [[(text[a:b], region) for a, b, region in links] for text, links in zip(texts, found.links, strict=True)]
    assert named == [[("Casey", 2), ("Riley", 0), ("dog", 1)], [("Riley", 0)], [("Jessie", 3)], [("Casey", 2)], []]
    assert found.objects == ("person", "dog", "person", "person", "car")
    assert found.seen == (0, 1, 2, 3)  # nobody names the car


def test_rationales_are_asked_with_the_right_answer(tmp_path: Path) -> None:
    [found] = vcr(tmp_path / "val.jsonl", SCENE, task="vcr-qar")
    assert (found.id, found.label) == ("val-0", 3)
    assert found.text == "Does Casey see Riley dog ? No Jessie does n't ."
    assert found.choices == ("Riley points", "Jessie is blind", "She runs", "Casey Riley")
    blind = {key: value for key, value in SCENE.items() if not key.endswith("_label")}
    four = vcr(tmp_path / "test.jsonl", blind, task="vcr-qar", unlabelled=True)
    assert [e.id for e in four] == ["val-0-a0", "val-0-a1", "val-0-a2", "val-0-a3"]
    assert [e.text.partition("? ")[2] for e in four] == ["Yes , Riley .", "No Jessie does n't .", "Casey sleeps", "Maybe"]
    assert {e.label for e in four} == {None}
    assert vcr(tmp_path / "test.jsonl", blind, unlabelled=True)[0].label is None


def test_everyone_and_nobody_are_all_people(tmp_path: Path) -> None:
    bare = {"answer_choices": [["No"]] * 4, "rationale_choices": [["So"]] * 4}
    [nobody] = vcr(tmp_path / "val.jsonl", SCENE | bare | {"question": ["Why", "?"]})
    assert nobody.seen == (0, 2, 3)
    [everyone] = vcr(tmp_path / "val.jsonl", SCENE | bare | {"question": ["Does", "Everyone", "see", [4], "?"]})
    assert everyone.seen == (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"question": ["Does", [5], "?"]}, "question names object 5, the picture has 0 to 4"),
        ({"question": ["Does", [-1], "?"]}, "question names object -1"),
        ({"question": ["Does", 3, "?"]}, "question holds 3, wanted a word, or a list of objects"),
        ({"question": []}, "question holds no word"),
        ({"answer_choices": [["No"]] * 3}, '"answer_choices" holds 3, wanted 4'),
        ({"rationale_choices": [["No"], [[9]], ["No"], ["No"]]}, "rationale_choices 1 names object 9"),
        ({"answer_label": 4}, '4 in "answer_label"; wanted one of 0, 1, 2, 3'),
        ({"answer_label": None}, '"answer_label" is missing'),
        ({"rationale_label": "x"}, "'x' in \"rationale_label\""),
        ({"objects": []}, '"objects" is []'),
        ({"img_fn": 3}, '"img_fn"'),
    ],
)
def test_bad_rows_of_vcr(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        vcr(tmp_path / "val.jsonl", vcr_row("a"), SCENE | change)
    assert said in str(caught.value)
    assert "val.jsonl:2" in str(caught.value)
