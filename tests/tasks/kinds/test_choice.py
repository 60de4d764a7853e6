"""SWAG, CODAH and VCR: their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.examples import SWAG, fails, read
from tests.tiny.vtasks import vcr_row
from vgtools.io.errors import DataError
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.examples import Example

CODAH = (
    "o\tThe kettle boils. She\tmakes tea.\tswims.\tis a kettle.\tsells it.\t0\n"
    "n\tHe\ta\tb\tc\td\t3\n"
)


def test_swag_puts_the_beginning_before_every_ending(tmp_path: Path) -> None:
    found, _ = read("swag", tmp_path, SWAG, "data.csv")
    endings = ("He stands.", "He flies, slowly.", "He melts.", "He sings.")
    assert found == [Example("0", "A man sits, alone.", None, 2, endings)]
    test = SWAG.replace(",label\n", "\n").replace(",2\n", "\n")
    assert read("swag", tmp_path, test, "data.csv", unlabelled=True)[0] == [
        Example("0", found[0].text, None, None, endings)
    ]


def test_codah(tmp_path: Path) -> None:
    found, stats = read("codah", tmp_path, CODAH)
    assert found[0] == Example(
        "0", "The kettle boils. She", None, 0, ("makes tea.", "swims.", "is a kettle.", "sells it.")
    )
    assert stats.labels == {"0": 1, "3": 1}


def test_unknown_choice(tmp_path: Path) -> None:
    fails("codah", tmp_path, CODAH.replace("\t3\n", "\t4\n"), "'4'", "0, 1, 2, 3", line=2)


def vcr(path: Path, *rows: dict[str, Any], task: str = "vcr-qa", **more: Any) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_examples(task, path, **more))


SCENE = vcr_row(
    "val-0",
    objects=["person", "dog", "person", "person", "car"],
    question=["Does", [2], "see", [0, 1], "?"],
    answer_choices=[
        ["Yes", ",", [0], "."],
        ["No", [3], "does", "n't", "."],
        [[2], "sleeps"],
        ["Maybe"],
    ],
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
    named = [
        [(text[a:b], region) for a, b, region in links]
        for text, links in zip(texts, found.links, strict=True)
    ]
    assert named == [
        [("Casey", 2), ("Riley", 0), ("dog", 1)],
        [("Riley", 0)],
        [("Jessie", 3)],
        [("Casey", 2)],
        [],
    ]
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
    assert [e.text.partition("? ")[2] for e in four] == [
        "Yes , Riley .",
        "No Jessie does n't .",
        "Casey sleeps",
        "Maybe",
    ]
    assert {e.label for e in four} == {None}
    assert vcr(tmp_path / "test.jsonl", blind, unlabelled=True)[0].label is None


def test_everyone_and_nobody_are_all_people(tmp_path: Path) -> None:
    bare = {"answer_choices": [["No"]] * 4, "rationale_choices": [["So"]] * 4}
    [nobody] = vcr(tmp_path / "val.jsonl", SCENE | bare | {"question": ["Why", "?"]})
    assert nobody.seen == (0, 2, 3)
    [everyone] = vcr(
        tmp_path / "val.jsonl", SCENE | bare | {"question": ["Does", "Everyone", "see", [4], "?"]}
    )
    assert everyone.seen == (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"question": ["Does", [5], "?"]}, "question names object 5, the picture has 0 to 4"),
        ({"question": ["Does", [-1], "?"]}, "question names object -1"),
        ({"question": ["Does", 3, "?"]}, "question: expected a word, or a list of objects; got 3"),
        ({"question": []}, "question holds no word"),
        ({"answer_choices": [["No"]] * 3}, '"answer_choices" must hold 4 texts, got 3'),
        (
            {"rationale_choices": [["No"], [[9]], ["No"], ["No"]]},
            "rationale_choices 1 names object 9",
        ),
        ({"answer_label": 4}, '4 in "answer_label"; expected one of 0, 1, 2, 3'),
        ({"answer_label": None}, '"answer_label" is missing'),
        ({"rationale_label": "x"}, "'x' in \"rationale_label\""),
        ({"objects": []}, '"objects" must hold the classes'),
        ({"img_fn": 3}, '"img_fn"'),
    ],
)
def test_bad_rows_of_vcr(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as caught:
        vcr(tmp_path / "val.jsonl", vcr_row("a"), SCENE | change)
    assert said in str(caught.value)
    assert "val.jsonl:2" in str(caught.value)
