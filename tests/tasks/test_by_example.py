"""Examples that one model answers better or worse: groups, answers and ratios by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny.finetune import GOLD, RIGHT, save_answers, save_finetuned, save_rte
from vgtools.analysis.grounded_words import GroundedWords
from vgtools.io.errors import DataError, Exit
from vgtools.tasks.by_example import Answers, read_answers
from vgtools.tasks.compare import read_rows
from vgtools.text.ngrams import WordTypes

# Right answers of example 0, 1, 2, 3 over the seeds: 0 2 1 2 of the first, 2 0 1 2 of the second.
FIRST = ((0, 1, 1, 1), (0, 1, 0, 1))
SECOND = ((1, 0, 0, 1), (1, 0, 1, 1))


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    file = save_rte(tmp_path / "dev.tsv")
    return {"data": {"dev": {"file": str(file)}}}


def words() -> GroundedWords:
    return GroundedWords(WordTypes(), frozenset({"dog", "red"}))


def answers(*runs: Path, files: dict[str, str] | None = None) -> list[Answers]:
    first, second = read_rows([str(run) for run in runs])
    return list(read_answers(first, second, words(), files or {}))


def test_groups_and_ratios_by_hand(tmp_path: Path, data: dict[str, Any]) -> None:
    one = save_answers(tmp_path / "one", FIRST, **data)
    two = save_answers(tmp_path / "two", SECOND, **data)
    (found,) = answers(one, two)
    assert found.change.tolist() == [1, -1, 0, 0]
    assert found.right.tolist() == [[0, 2, 1, 2], [2, 0, 1, 2]]
    assert found.counts is not None
    assert found.counts.tolist() == [[3, 5], [0, 4], [0, 0], [3, 4]]
    record = found.record(100, 0)
    assert record == {
        "task": "rte",
        "models": ["one", "two"],
        "seeds": [2, 2],
        "examples": 4,
        "improved": 1,
        "on_par": 2,
        "worsened": 1,
        "accumulated": 0,
        "percent": 0,
        "without_content": 1,
        "ratio": {
            "improved": {"n": 1, **dict.fromkeys(("q1", "median", "q3", "mean"), 0.6)},
            "worsened": {"n": 1, **dict.fromkeys(("q1", "median", "q3", "mean"), 0.0)},
            "difference": 0.6,
            "p": 1.0,  # two examples can be divided in two ways, both as far apart
        },
    }


def test_right_answers_accumulate_as_in_section_4(tmp_path: Path) -> None:
    """38 more right answers of 5 seeds are 2.74 % of 277 examples: the gain in accuracy."""
    gold = [0] * 277
    before = {str(seed): [1] * 50 + [0] * 227 for seed in range(5)}
    more = {seed: 8 if int(seed) < 3 else 7 for seed in before}
    after = {seed: [0] * n + [1] * (50 - n) + [0] * 227 for seed, n in more.items()}
    one = save_finetuned(tmp_path / "one", "rte", gold, before)
    two = save_finetuned(tmp_path / "two", "rte", gold, after)
    rows = read_rows([str(one), str(two)])
    (found,) = read_answers(rows[0], rows[1], None, {})
    record = found.record(100, 0)
    assert record["accumulated"] == 38
    assert record["percent"] == pytest.approx(38 / 5 / 277 * 100)
    assert round(record["percent"], 2) == 2.74
    accuracy = [np.mean([s["accuracy"] for s in row.tasks["rte"].scores.values()]) for row in rows]
    assert record["percent"] == pytest.approx(accuracy[1] - accuracy[0])
    assert (record["improved"], record["worsened"]) == (8, 0)
    assert "ratio" not in record


def test_different_numbers_of_seeds_are_compared_by_shares(
    tmp_path: Path, data: dict[str, Any]
) -> None:
    third = ((1, 1, 0, 1), (1, 0, 1, 0), (0, 0, 0, 1))  # 2/3, 1/3, 1/3, 2/3
    half = ((1, 1, 0, 1), (0, 0, 0, 0))  # 1/2, 1/2, 0, 1/2
    sixth = ((1, 0, 0, 0), (1, 1, 0, 1), (0, 0, 1, 0), (1, 0, 0, 1), (1, 1, 1, 1), (0, 0, 0, 1))
    one = save_answers(tmp_path / "one", half, **data)
    two = save_answers(tmp_path / "two", third, **data)
    (found,) = answers(one, two)
    assert np.sign(found.change).tolist() == [1, -1, 1, 1]
    assert found.record(100, 0)["accumulated"] is None
    assert found.record(100, 0)["percent"] == pytest.approx(
        100 * (1 / 6 - 1 / 6 + 1 / 3 + 1 / 6) / 4
    )
    six = save_answers(tmp_path / "six", sixth, **data)  # 4/6, 2/6, 2/6, 4/6
    (found,) = answers(two, six)
    assert found.change.tolist() == [0, 0, 0, 0], "equal shares are exactly equal"
    empty = found.record(100, 0)["ratio"]
    assert (empty["improved"]["n"], empty["p"], empty["difference"]) == (0, None, None)


def test_examples_of_each_group(tmp_path: Path, data: dict[str, Any]) -> None:
    one = save_answers(tmp_path / "one", FIRST, **data)
    two = save_answers(tmp_path / "two", SECOND, **data)
    (found,) = answers(one, two)
    chosen = list(found.examples(5, words()))
    assert [(e["group"], e["id"]) for e in chosen] == [
        ("improved", "0"),
        ("on par", "3"),
        ("worsened", "1"),
    ], "an example without a content token has no ratio to show"
    assert chosen[0] == {
        "task": "rte",
        "group": "improved",
        "id": "0",
        "label": "entailment",
        "models": ["one", "two"],
        "right": [0, 2],
        "seeds": [2, 2],
        "grounded": 3,
        "content": 5,
        "ratio": 0.6,
        "texts": ["(a) **red** **dog** runs", "(the) **dog** ran"],
    }
    assert list(found.examples(0, words())) == []


def test_the_most_extreme_examples_come_first(tmp_path: Path, data: dict[str, Any]) -> None:
    one = save_answers(tmp_path / "one", ((0, 0, 0, 0), (0, 1, 0, 0)), **data)
    two = save_answers(tmp_path / "two", ((1, 1, 0, 1), (0, 1, 0, 1)), **data)
    (found,) = answers(one, two)
    assert [e["id"] for e in found.examples(2, words())] == ["3", "0"]
    assert [e["id"] for e in found.examples(1, words())] == ["3"]
    # Changes of 0: 1 is right in every seed, 0 and 3 are not; the order of the file does the rest.
    one = save_answers(tmp_path / "a", ((1, 1, 0, 0), (0, 1, 0, 1)), **data)
    two = save_answers(tmp_path / "b", ((0, 1, 0, 1), (1, 1, 0, 0)), **data)
    (found,) = answers(one, two)
    assert [e["id"] for e in found.examples(3, words())] == ["1", "0", "3"]


def test_only_tasks_with_classes_are_compared(tmp_path: Path, data: dict[str, Any]) -> None:
    for name in ("one", "two"):
        save_answers(tmp_path / name / "rte", FIRST, **data)
        save_finetuned(tmp_path / name / "sts", "sts-b", [1.0, 2.0], {"1": [1.0, 2.0]})
    assert [found.task.name for found in answers(tmp_path / "one", tmp_path / "two")] == ["rte"]
    sts = [tmp_path / name / "sts" for name in ("one", "two")]
    with pytest.raises(DataError, match=r"no task with classes in common; in common: sts-b"):
        answers(*sts)
    other = save_finetuned(tmp_path / "other", "sst-2", GOLD, RIGHT)
    with pytest.raises(DataError, match="in common: nothing"):
        answers(tmp_path / "one", other)


def test_a_file_that_is_gone_or_another_one(tmp_path: Path, data: dict[str, Any]) -> None:
    runs = [save_answers(tmp_path / name, FIRST, **data) for name in ("one", "two")]
    file = tmp_path / "dev.tsv"
    text = file.read_text()
    file.rename(tmp_path / "moved.tsv")
    with pytest.raises(DataError, match=r"is not there; --text rte=FILE names it") as caught:
        answers(*runs)
    assert caught.value.code == Exit.NO_INPUT
    (found,) = answers(*runs, files={"rte": str(tmp_path / "moved.tsv")})
    assert found.texts[3] == ["dog", "cat dog red"]
    file.write_text(text.replace("peace\t1", "peace\t0"))
    why = r"dev\.tsv: 1 of the 4 examples that .*one answered are not in it with their label"
    with pytest.raises(DataError, match=why) as caught:
        answers(*runs)
    assert "the first '1'; --text rte=FILE" in str(caught.value)
    file.write_text("".join(text.splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match="the first '3'"):
        answers(*runs)


def test_runs_of_other_examples_are_refused(tmp_path: Path, data: dict[str, Any]) -> None:
    one = save_answers(tmp_path / "one", FIRST, **data)
    other = save_finetuned(tmp_path / "other", "rte", [0, 1, 0], {"1": [0, 1, 0]}, **data)
    with pytest.raises(DataError, match="1 ids are not in both"):
        answers(one, other)
    flipped = save_finetuned(tmp_path / "flipped", "rte", [1] * 4, {"1": [1] * 4}, **data)
    with pytest.raises(DataError, match="2 of 4 ids have another label"):
        answers(one, flipped)


def test_a_held_out_part_is_found_in_the_training_file(
    tmp_path: Path, data: dict[str, Any]
) -> None:
    runs = [
        save_finetuned(tmp_path / name, "rte", [0, 1], {"1": [0, 1]}, **data)
        for name in ("one", "two")
    ]
    (found,) = answers(*runs)  # the file has two examples more
    assert found.texts == [["a red dog runs", "the dog ran"], ["no one talks about peace", "peace"]]
