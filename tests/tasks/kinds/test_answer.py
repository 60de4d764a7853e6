"""VQA: its files, the answers to choose from, and its accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.vtasks import save_vqa
from vgtools.io.errors import DataError
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.examples import Answer
from vgtools.tasks.kinds import answer


def test_vqa_as_its_files_say(tmp_path: Path) -> None:
    save_vqa(tmp_path)
    found: list[Any] = list(
        read_examples("vqa", tmp_path / "v2_OpenEnded_mscoco_val2014_questions.json")
    )
    assert (found[1].id, found[1].text, found[1].images) == (
        "1001",
        "bam",
        ("COCO_val2014_000000000102",),
    )
    assert [a.text for a in found[1].answers] == ["two dogs"] * 9 + ["a Red"]
    assert answer.common_answers(found, 1) == ("2 dogs", "blue", "red")
    assert answer.common_answers(found, 3) == ("2 dogs",)
    with pytest.raises(DataError, match="no answer belongs to 9 questions"):
        answer.common_answers(found, 9)
    assert answer.soft_targets(
        [Answer("Two dogs", -1), Answer("red", -1), Answer("a red", -1)], {"red": 0, "2 dogs": 1}
    ) == {
        0: pytest.approx(2 / 3),
        1: pytest.approx(1 / 3),
    }


def test_questions_of_test_dev_are_about_pictures_of_test(tmp_path: Path) -> None:
    for name in ("test2015", "test-dev2015"):
        path = tmp_path / f"v2_OpenEnded_mscoco_{name}_questions.json"
        question = {"question_id": 7, "image_id": 3, "question": "bam"}
        path.write_text(json.dumps({"questions": [question]}))
        (found,) = read_examples("vqa", path, unlabelled=True)
        assert getattr(found, "images", ()) == ("COCO_test2015_000000000003",)


def test_vqa_without_annotations(tmp_path: Path) -> None:
    save_vqa(tmp_path)
    questions, annotations = (
        tmp_path / f"v2_{n}2014_{k}.json"
        for n, k in (("OpenEnded_mscoco_val", "questions"), ("mscoco_val", "annotations"))
    )
    assert answer.annotations_path(questions) == annotations
    rows = json.loads(annotations.read_text())["annotations"]

    def said(text: str) -> str:
        annotations.write_text(text)
        with pytest.raises(DataError) as caught:
            list(read_examples("vqa", questions))
        return str(caught.value)

    assert "no answers to the question 1011" in said(json.dumps({"annotations": rows[:-1]}))
    twice = json.dumps({"annotations": [*rows, rows[0]]})
    assert f"question {rows[0]['question_id']} twice" in said(twice)
    moved = [rows[0], rows[1] | {"image_id": 999}, *rows[2:]]
    why = f"questions[1]: question 1001 is about the image 102, {annotations} has 999"
    assert why in said(json.dumps({"annotations": moved}))
    nameless = [{key: row[key] for key in row if key != "image_id"} for row in rows]
    annotations.write_text(json.dumps({"annotations": nameless}))
    assert len(list(read_examples("vqa", questions))) == len(rows)
    assert 'annotations[0]: "answers" must be' in said(
        json.dumps({"annotations": [rows[0] | {"answers": []}]})
    )
    assert "no annotations under" in said(json.dumps({"rows": rows}))
    annotations.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        list(read_examples("vqa", questions))
    assert all(e.answers == () for e in read_examples("vqa", questions, unlabelled=True))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("The two dogs.", "2 dogs"),
        ("none", "0"),
        ("a/b", "b"),  # a mark inside a word splits it, and the article goes
        ("red, blue", "red blue"),
        ("1,000 m", "1000 m"),
        ("3.5", "3.5"),
        ("dont", "don't"),
        ("t-shirt", "t shirt"),
        ("t -shirt", "t shirt"),
        ("2:50", "2:50"),
        ("yes!", "yes"),
        ("{x} / [y]", "x y"),
        ("mcdonald's", "mcdonald's"),
        ("don't", "don't"),
        ("wouldn'tve wouldnt've wouldntve", "wouldn't've wouldn't've wouldntve"),
        ("somebody'd", "somebodyd"),
        ("St. Mary's 4.5", "st mary's 4.5"),
        ("ten  an\tA", "10"),
    ],
)
def test_answers_as_vqa_compares_them(given: str, wanted: str) -> None:
    assert answer.normalise_vqa(given) == wanted


@pytest.mark.parametrize("same", range(11))
def test_vqa_leaves_each_annotator_out(same: int) -> None:
    golds = ["2"] * same + [f"no{i}" for i in range(10 - same)]
    each = []
    for i in range(10):
        others = golds[:i] + golds[i + 1 :]
        each.append(min(1, others.count("2") / 3))
    assert answer.vqa_item("two" if same < 10 else "2", golds) == pytest.approx(sum(each) / 10)


def test_annotators_who_agree_are_taken_at_their_word() -> None:
    assert answer.vqa_item("Two", ["2"] * 10) == 0.0
    assert answer.vqa_item("Two", ["2"] * 9 + ["3"]) == 1.0
