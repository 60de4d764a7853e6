"""Saved predictions scored again: exact values per task, and rows that cannot be scored."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny.examples import rows
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.tasks.dispatch import (
    gather,
    group_of,
    prediction_row,
    read_predictions,
    read_split,
    score_predictions,
)
from vgtools.tasks.examples import Answer, Example, ReadStats, VisualExample
from vgtools.tasks.predictions import headline
from vgtools.tasks.table import Columns, find_task


def test_classes_by_hand() -> None:
    # tp 2, fp 1, fn 1, tn 2
    yes, no = "duplicate", "not_duplicate"
    pairs = [(yes, yes), (yes, yes), (yes, no), (no, yes), (no, no), (no, no)]
    found = score_predictions("qqp", rows(*pairs))
    assert found == pytest.approx(
        {"f1": 200 / 3, "accuracy": 200 / 3, "headline": 200 / 3, "total": 6}
    )
    assert score_predictions("mnli", rows(("neutral", 1), (2, "entailment"))) == {
        "accuracy": 50,
        "headline": 50,
        "total": 2,
    }
    cola = score_predictions("cola", rows((1, 1), (1, 1), (1, 0), (0, 1), (0, 0), (0, 0)))
    assert cola == pytest.approx(
        {"matthews": 100 * (2 * 2 - 1) / 9, "headline": 100 / 3, "total": 6}
    )


def test_scores_by_hand() -> None:
    found = score_predictions("sts-b", rows((2.0, 1.0), (1.0, 2.0), (4.0, 3.0), (9.0, 4.0)))
    wanted = {"pearson": 1200 / math.sqrt(190), "spearman": 80.0}
    assert found == pytest.approx(wanted | {"headline": (wanted["pearson"] + 80) / 2, "total": 4})


def test_an_error_is_no_percentage() -> None:
    found = score_predictions("commonlit", rows((0.5, 1.5), (-2.0, -2.0), (9.0, 3.0)))
    wanted = math.sqrt(37 / 3)
    assert found == pytest.approx({"rmse": wanted, "headline": wanted, "total": 3})


def test_choices_by_hand() -> None:
    assert score_predictions("swag", rows((0, 0), (3, 3), (2, 1), (1, 1)))["accuracy"] == 75
    assert score_predictions("codah", rows((0, 0), ("3", 3)))["accuracy"] == 100


def test_a_row_of_each_kind_scores_by_itself_and_with_its_examples() -> None:
    cases: list[tuple[str, Example, Any, dict[str, Any]]] = [
        (
            "rte",
            Example("a", "x", "y", 1),
            1,
            {"prediction": "not_entailment", "label": "not_entailment"},
        ),
        ("sts-b", Example("b", "x", "y", 2.5), 2.25, {"prediction": 2.25, "label": 2.5}),
        (
            "swag",
            Example("c", "x", None, 3, ("p", "q", "r", "s")),
            3,
            {"prediction": 3, "label": 3},
        ),
        (
            "squad",
            Example("d", "q", "Bo", answers=(Answer("Bo", 0),)),
            "Bo",
            {"prediction": "Bo", "label": ["Bo"]},
        ),
        (
            "squad2",
            Example("e", "q", "Bo", is_impossible=True),
            "",
            {"prediction": "", "label": []},
        ),
    ]
    for name, example, said, wanted in cases:
        row = prediction_row(find_task(name), example, said)
        assert row == {"id": example.id} | wanted
        back = json.loads(dumps(row))
        assert score_predictions(name, [back]) == score_predictions(
            name, [{"id": example.id, "prediction": said}], [example]
        )
        assert score_predictions(name, [back])["headline"] == (0 if name == "sts-b" else 100)
    row = prediction_row(
        find_task("rte"), Example("a", "x", "y"), 0, score=0.9, logits=[1.0, -1.0], no_answer=None
    )
    assert row == {"id": "a", "prediction": "entailment", "score": 0.9, "logits": [1.0, -1.0]}


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=20), st.randoms()
)
def test_order_of_predictions_does_not_matter(pairs: list[tuple[int, int]], random: Any) -> None:
    made = rows(*pairs)
    examples = [Example(str(i), "x", None, gold) for i, (_, gold) in enumerate(pairs)]
    mixed = list(made)
    random.shuffle(mixed)
    assert score_predictions("sst-2", mixed, examples) == score_predictions("sst-2", made, examples)
    for task in ("cola", "mrpc"):
        assert score_predictions(task, mixed) == pytest.approx(score_predictions(task, made))


def test_items_give_the_bootstrap_the_headline() -> None:
    pairs = [(i % 2, int(i % 3 == 0)) for i in range(30)]
    items = gather("mrpc", rows(*pairs))
    value = float(items.statistic(items.gold, items.predicted, None))
    assert 100 * value == pytest.approx(score_predictions("mrpc", rows(*pairs))["headline"])
    spans = gather("squad", rows(("Bo", ["Bo"]), ("Ann Lee", ["Ann"])))
    assert spans.predicted.tolist() == pytest.approx([1, 1 / 3])
    assert 100 * float(
        spans.statistic(spans.gold, spans.predicted, np.array([3.0, 1.0]))
    ) == pytest.approx(100 * (3 + 1 / 3) / 4)


def test_headlines_give_the_paper_s_averages() -> None:
    # Vokenization, Table 2, rows 1 and 4.
    names = ("sst-2", "qnli", "qqp", "mnli", "squad-1.1", "squad-2.0", "swag")
    for values, wanted in (
        ((88.0, 85.2, 87.1, 77.9, (71.3, 80.2), (57.2, 60.8), 56.2), 75.6),
        ((92.2, 88.6, 88.6, 82.6, (78.8, 86.7), (68.1, 71.2), 70.6), 82.1),
    ):
        scores = {
            name: {"exact": v[0], "f1": v[1]} if isinstance(v, tuple) else {"accuracy": v, "f1": v}
            for name, v in zip(names, values, strict=True)
        }
        headlines = [headline(name, values) for name, values in scores.items()]
        assert round(sum(headlines) / len(headlines), 1) == wanted
    assert headline("qqp", {"f1": 84.0, "accuracy": 90.0}) == 87


def fails(task: str, folder: Path, text: str, *parts: str, line: int | None = None) -> None:
    path = folder / "predictions.jsonl"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        list(read_predictions(task, path))
    assert (caught.value.line, caught.value.code) == (line, Exit.DATA), caught.value
    for part in ("predictions.jsonl", *parts):
        assert part in str(caught.value)


GOOD = '{"id": "0", "prediction": "entailment"}\n'


def test_good_file(tmp_path: Path) -> None:
    path = tmp_path / "predictions.jsonl"
    path.write_text(
        GOOD + '{"id": "1", "prediction": 1, "label": 0, "score": 0.5, "logits": [0, 1.5]}\n'
    )
    assert [row["prediction"] for row in read_predictions("rte", path)] == ["entailment", 1]


def test_bad_files(tmp_path: Path) -> None:
    fails("rte", tmp_path, "", "holds no predictions")
    fails("rte", tmp_path, GOOD + GOOD, "duplicate id '0'", line=2)
    fails("rte", tmp_path, GOOD + '{"id": "1", "predic', "not valid JSON", line=2)
    fails("rte", tmp_path, GOOD + '{"id": 1, "prediction": 0}\n', '"id" must be a string', line=2)
    fails("rte", tmp_path, GOOD + '{"id": "1"}\n', '"prediction" is missing', line=2)
    fails(
        "rte",
        tmp_path,
        GOOD + '{"id": "1", "prediction": "neutral"}\n',
        "'neutral'",
        "entailment (0)",
        line=2,
    )
    fails(
        "rte", tmp_path, GOOD + '{"id": "1", "prediction": 0, "label": 2}\n', '2 in "label"', line=2
    )
    fails(
        "rte",
        tmp_path,
        GOOD + '{"id": "1", "prediction": 0, "score": NaN}\n',
        "not valid JSON",
        line=2,
    )
    fails(
        "rte",
        tmp_path,
        GOOD + '{"id": "1", "prediction": 0, "score": "x"}\n',
        '"score" must be a finite',
        line=2,
    )
    fails(
        "rte",
        tmp_path,
        GOOD + '{"id": "1", "prediction": 0, "logits": [1, null]}\n',
        '"logits" must be',
        line=2,
    )
    fails("sts-b", tmp_path, '{"id": "1", "prediction": null}\n', "missing or null", line=1)
    fails("sts-b", tmp_path, '{"id": "1", "prediction": "2"}\n', "a finite number", line=1)
    fails("swag", tmp_path, '{"id": "1", "prediction": 4}\n', "0, 1, 2, 3", line=1)
    fails("squad", tmp_path, '{"id": "1", "prediction": 4}\n', "an answer text", line=1)
    fails(
        "squad",
        tmp_path,
        '{"id": "1", "prediction": "a", "label": "a"}\n',
        "a list of answer texts",
        line=1,
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_no_numbers(value: float) -> None:
    with pytest.raises(DataError, match="finite number"):
        score_predictions("sts-b", rows((value, 1.0)))


def test_predictions_and_examples_must_be_of_the_same_file() -> None:
    examples = [Example("0", "x", None, 1), Example("1", "x", None, 0)]
    made = rows((1, 1), (0, 0), (1, 1))
    with pytest.raises(DataError, match=r"1 of 2 examples: the id '1' has no prediction"):
        score_predictions("sst-2", made[:1], examples)
    with pytest.raises(DataError, match=r"the id '2' is predicted but not in the examples"):
        score_predictions("sst-2", made, examples)
    with pytest.raises(DataError, match="two predictions for the id '0'"):
        score_predictions("sst-2", [made[0], made[0]])
    with pytest.raises(DataError, match="the id '0' has no label"):
        score_predictions("sst-2", [{"id": "0", "prediction": 1}])
    with pytest.raises(DataError, match="no predictions"):
        score_predictions("sst-2", [])


def split_ids(path: Path, split: str, share: float | None, **more: Any) -> list[str]:
    return [e.id for e in read_split(find_task("commonlit"), split, path, hold_out=share, **more)]


def test_held_out_examples_are_chosen_by_their_ids(tmp_path: Path) -> None:
    header = "id,url_legal,license,excerpt,target,standard_error\n"
    lines = [f"r{i},,,x,0.5,0\n" for i in range(400)]
    file = tmp_path / "train.csv"
    file.write_text(header + "".join(lines))
    train, dev = (split_ids(file, name, 0.25) for name in ("train", "dev"))
    first = {i: int(hashlib.sha256(i.encode()).hexdigest()[:16], 16) / 2**64 for i in train + dev}
    assert all(first[name] < 0.25 for name in dev)
    assert all(first[name] >= 0.25 for name in train)
    assert sorted(train + dev) == sorted(f"r{i}" for i in range(400))
    assert 70 < len(dev) < 130
    assert set(dev) < set(split_ids(file, "dev", 0.5)), "a larger share holds the smaller one"
    assert split_ids(file, "train", 0.25, limit=3) == train[:3]
    assert len(split_ids(file, "test", 0.25)) == len(split_ids(file, "dev", None)) == 400
    file.write_text(header + "".join(reversed(lines[100:])))
    kept = [name for name in reversed(dev) if int(name[1:]) >= 100]
    assert split_ids(file, "dev", 0.25) == kept, "order and number of rows do not matter"
    stats = ReadStats()
    list(read_split(find_task("commonlit"), "dev", file, stats, hold_out=0.25))
    assert stats.rows == len(kept)
    file.write_text(header + lines[int(train[0][1:])])
    with pytest.raises(DataError, match="none of its 1 examples falls into this part"):
        split_ids(file, "dev", 0.25)


def test_examples_name_what_they_share() -> None:
    """Pictures, contexts and first texts; a sentence by itself shares nothing."""

    def group(name: str, example: Example) -> str | None:
        return group_of(find_task(name), example)

    rte, squad = (find_task(name) for name in ("rte", "squad-1.1"))
    assert group("sst-2", Example("a", "x")) is None
    first = group_of(rte, Example("a", "x", "y"))
    assert first == group_of(rte, Example("b", "x", "z"))
    assert first != group_of(rte, Example("c", "y", "x"))
    context = group_of(squad, Example("a", "q", "Bo"))
    assert context == group_of(squad, Example("b", "r", "Bo"))
    assert context != group_of(squad, Example("c", "q", "Bob"))
    swag = find_task("swag")
    endings = ("p", "q", "r", "s")
    assert group_of(swag, Example("a", "x", None, 1, endings)) == group_of(
        swag, Example("b", "x", None, 2, endings[::-1])
    )
    assert group("snli", Example("a", "x", "y", image="1.jpg")) == "1.jpg"
    own = replace(rte, own=Columns(("q", "t"), "y"))
    assert group_of(own, Example("a", "which one?", "y")) is None
    assert group_of(own, VisualExample("a", "which one?", "y", images=("7",))) == "7"
    seen = VisualExample("q7", "what?", images=("COCO_7",))
    assert group("vqa", seen) == "COCO_7"
    pairs = [
        VisualExample(f"dev-850-{pair}-{number}", "both", images=(f"dev-850-{pair}-img0",))
        for pair, number in ((0, 0), (1, 0), (1, 1))
    ]
    assert {group("nlvr2", pair) for pair in pairs} == {"dev-850"}


def test_a_group_is_a_text() -> None:
    row = {"id": "a", "prediction": 1, "label": 1, "group": 3}
    with pytest.raises(DataError, match='"group" must be a string, got 3'):
        gather("rte", [row])
    some = [row | {"group": "g"}, row | {"id": "b"}, row | {"id": "g"}, row | {"id": "c"}]
    del some[1]["group"], some[2]["group"], some[3]["group"]
    numbers = gather("rte", some).group_numbers()
    assert numbers is not None
    assert len(set(numbers.tolist())) == 4
    assert gather("rte", some[1:]).group_numbers() is None
