"""SQuAD: its files, windows, best spans, and official scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import WORDS
from tests.tiny.examples import fails, qa, read, rows, squad, token_rows, tokenizer
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.tasks.dispatch import encode, gather, predictions, score_predictions
from vgtools.tasks.examples import Answer, Example
from vgtools.tasks.kinds.span import (
    ANSWER,
    Span,
    Windows,
    best_span,
    best_threshold,
    normalise_answer,
    squad_item,
)
from vgtools.tasks.table import find_task


def test_squad_1_answers_are_spans(tmp_path: Path) -> None:
    text = squad(qa("q1", ("Bo", 8), ("Bo", 12)), qa("q2", ("Rome", 26)))
    found, stats = read("squad", tmp_path, text, "data.json")
    assert [e.id for e in found] == ["q1", "q2"]
    assert (found[1].question, found[1].context) == ("q2?", "Ann met Bo. Bo met Ann in Rome.")
    assert found[0].answers == (Answer("Bo", 8), Answer("Bo", 12))
    assert (stats.moved, stats.lost, stats.labels) == (0, 0, {"answerable": 2})


def test_squad_answers_that_are_not_where_the_file_says(tmp_path: Path) -> None:
    text = squad(qa("q1", ("Bo", 11), ("Ann", -1), ("Cy", 0)))
    found, stats = read("squad", tmp_path, text, "data.json")
    assert found[0].answers == (Answer("Bo", 12), Answer("Ann", 0), Answer("Cy", -1))
    assert (stats.moved, stats.lost) == (2, 1)
    assert len(list(stats.report())) == 3


def test_squad_spans_count_code_points(tmp_path: Path) -> None:
    text = squad(qa("q", ("Rome", 3)), context="🙂 é Rome".replace("é ", ""))
    assert read("squad", tmp_path, text, "data.json")[0][0].answers == (Answer("Rome", 2),)
    assert read("squad", tmp_path, text.replace("3}", "2}"), "data.json")[1].moved == 0


def test_squad_2_unanswerable(tmp_path: Path) -> None:
    text = squad(
        qa("q1", ("Bo", 8), is_impossible=False),
        qa("q2", is_impossible=True, plausible_answers=[]),
        version="v2.0",
    )
    found, stats = read("SQuAD v2.0", tmp_path, text, "data.json")
    assert [(e.is_impossible, len(e.answers)) for e in found] == [(False, 1), (True, 0)]
    assert stats.labels == {"answerable": 1, "unanswerable": 1}


def test_bad_squad(tmp_path: Path) -> None:
    good = qa("q", ("Bo", 8))
    fails("squad", tmp_path, squad(good)[:-30], "cut off")
    fails("squad", tmp_path, '{"version": "1.1"}', 'no articles under "data"', "SQuAD v1.1")
    fails(
        "squad",
        tmp_path,
        squad({"id": "q", "answers": []}),
        "data[0].paragraphs[0].qas[0]",
        '"question"',
    )
    fails("squad", tmp_path, squad(qa("q")), "0 answers, but is_impossible is false")
    fails("squad", tmp_path, squad(qa("q", is_impossible=True)), "squad-2.0")
    fails("squad2", tmp_path, squad(good), "is_impossible", "SQuAD 1.1 file")
    fails(
        "squad2",
        tmp_path,
        squad(qa("q", ("Bo", 8), is_impossible=True)),
        "1 answers, but is_impossible is true",
    )
    fails(
        "squad",
        tmp_path,
        squad(good).replace('"answer_start": 8', '"answer_start": "8"'),
        "answers[0]",
        "'8'",
    )
    fails("squad", tmp_path, '{"data": [{"paragraphs": 3}]}', "data[0]", "expected a list")


SQUAD = find_task("squad-1.1")

WORDS_12 = [WORDS[i] for i in range(12)]

CONTEXT = " ".join(WORDS_12)


def question(
    answer: str | None, name: str = "0", asked: str = "bam", start: int | None = None
) -> Example:
    given_start = CONTEXT.find(answer) if answer and start is None else start
    answers = (
        () if answer is None else (Answer(answer, -1 if given_start is None else given_start),)
    )
    return Example(name, asked, CONTEXT, answers=answers, is_impossible=answer is None)


def test_windows_overlap_and_hold_every_token() -> None:
    own = tokenizer()
    answer = " ".join(WORDS_12[5:8])
    found = encode(
        SQUAD, [question(answer)], own, max_length=10, stride=3, learn=True
    )  # 6 tokens of the context each
    ids = own.encode(CONTEXT).ids[1:-1]
    bam = own.encode("bam").ids[1]
    assert token_rows(found) == [[2, bam, 3, *ids[a : a + 6], 3] for a in (0, 3, 6)]
    assert found.begins is not None
    assert found.begins.tolist() == [0, 3, 6]
    assert found.spans is not None
    for window, begin in enumerate((0, 3, 6)):
        part = found.spans[found.starts[window] : found.starts[window + 1]]
        assert [CONTEXT[a:b] for a, b in part[3:9]] == WORDS_12[begin : begin + 6]
        assert (part[[0, 1, 2, 9]] == -1).all()
    assert found.labels is not None
    assert found.labels.tolist() == [
        [0, 0],
        [5, 7],
        [0, 0],
    ]  # the second window alone holds words 5 to 7


def test_a_stride_wider_than_a_window_leaves_no_gap() -> None:
    found = encode(SQUAD, [question(None)], tokenizer(), max_length=10, stride=100)
    assert found.begins is not None
    assert found.begins.tolist() == [0, 6]


def test_questions_without_a_findable_answer_teach_nothing() -> None:
    own = tokenizer()
    lost = question("zzz", "lost", start=-1)
    many = [lost, question(WORDS_12[0], "found"), question(None, "none")]
    found = encode(find_task("squad-2.0"), many, own, max_length=30, learn=True)
    assert (found.examples.tolist(), found.unlearnable) == ([1, 2], 1)
    assert found.labels is not None
    assert found.labels.tolist() == [[3, 3], [0, 0]]
    assert len(encode(SQUAD, many, own, max_length=30)) == 3  # they are asked all the same
    with pytest.raises(DataError, match="no answer occurs in its context"):
        encode(SQUAD, [lost], own, max_length=30, learn=True)


def test_a_long_question_is_cut_to_64_tokens() -> None:
    found = encode(SQUAD, [question(WORDS_12[0], asked="bam " * 99)], tokenizer(), max_length=200)
    assert (found.lengths.tolist(), found.cut) == ([3 + 64 + 12], 1)
    assert list(found.report(200)) == ["1 questions are longer than 64 tokens and are cut"]


def brute_best(inputs: Windows, outputs: Array, units: range) -> tuple[Span | None, float]:
    """Compare every span of every window, tokens only in the window where they have
    most context.
    """
    assert inputs.spans is not None
    assert inputs.begins is not None
    windows = []
    for u in units:
        own = [t for t in range(inputs.starts[u], inputs.starts[u + 1]) if inputs.spans[t, 0] >= 0]
        windows.append((int(inputs.begins[u]), own))

    def home(token: int) -> int:
        scores = []
        for begin, own in windows:
            end = begin + len(own)
            inside = begin <= token < end
            scores.append(
                min(token - begin, end - 1 - token) + 0.01 * (end - begin) if inside else -1.0
            )
        return int(np.argmax(scores))

    best: Span | None = None
    for w, (begin, own) in enumerate(windows):
        for i, first in enumerate(own):
            for last in own[i : i + ANSWER]:
                if home(begin + i) == w:
                    score = float(outputs[first, 0] + outputs[last, 1])
                    if best is None or score > best.score:
                        best = Span(int(inputs.spans[first, 0]), int(inputs.spans[last, 1]), score)
    return best, min(float(outputs[inputs.starts[u]].sum()) for u in units)


def test_the_best_span_is_the_best_of_all() -> None:
    own, rng = tokenizer(), np.random.default_rng(0)
    lengths = [0, 1, 7, *rng.integers(30, 120, 30).tolist()]
    examples = [
        Example(str(i), "bam", " ".join(rng.choice(WORDS, n)), answers=())
        for i, n in enumerate(lengths)
    ]
    inputs = encode(SQUAD, examples, own, max_length=44, stride=17)
    outputs = rng.standard_normal((len(inputs.ids), 2)).astype(np.float32)
    for number in range(len(examples)):
        units = range(*np.searchsorted(inputs.examples, [number, number + 1]).tolist())
        best, none = best_span(inputs, outputs, units)
        wanted, wanted_none = brute_best(inputs, outputs, units)
        assert none == pytest.approx(wanted_none)
        assert (best is None) == (wanted is None) == (number == 0)
        if best and wanted:
            assert (best.start, best.end) == (wanted.start, wanted.end)
            assert best.score == pytest.approx(wanted.score)


def test_answers_are_withheld_above_the_threshold() -> None:
    own, task = tokenizer(), find_task("squad-2.0")
    examples = [
        question(WORDS_12[4]),
        question(None, "1"),
        Example("2", "bam", "", answers=(), is_impossible=True),
    ]
    inputs = encode(task, examples, own, max_length=30)
    outputs = np.zeros((len(inputs.ids), 2), np.float32)
    for unit, none in ((0, 1.0), (1, 9.0)):
        outputs[inputs.starts[unit]] = none / 2
        outputs[inputs.starts[unit] + 3 + 4] = 2.0  # word 4: score 4
    first, second, empty = predictions(task, examples, inputs, outputs, threshold=2.0)
    # One paragraph's questions go together; the third has another.
    assert first.pop("group") == second.pop("group") != empty.pop("group")
    assert first == {
        "id": "0",
        "prediction": WORDS_12[4],
        "label": [WORDS_12[4]],
        "no_answer": -3.0,
        "answer": WORDS_12[4],
    }
    assert second == {
        "id": "1",
        "prediction": "",
        "label": [],
        "no_answer": 5.0,
        "answer": WORDS_12[4],
    }
    assert (empty["prediction"], empty["answer"]) == ("", "")
    assert (
        predictions(task, examples, inputs, outputs, threshold=6.0)[1]["prediction"] == WORDS_12[4]
    )
    unlabelled = [Example("0", "bam", CONTEXT)]
    (row,) = predictions(SQUAD, unlabelled, encode(SQUAD, unlabelled, own, max_length=30), outputs)
    assert "label" not in row


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Quick, brown-fox!", "quick brownfox"),
        ("a theatre An anthem", "theatre anthem"),
        ("U.S.A.", "usa"),
        ("the", ""),
        ("“Élan” – a", "“élan” –"),  # punctuation is ASCII only, letters are Unicode
        ("non\u00a0breaking\tspace", "non breaking space"),
    ],
)
def test_normalise_answer(text: str, wanted: str) -> None:
    assert normalise_answer(text) == wanted


def test_squad_item_by_hand() -> None:
    assert squad_item("The Broncos!", ["broncos", "Denver Broncos"]) == (1.0, 1.0)
    exact, overlap = squad_item("the Denver team", ["Denver Broncos", "Panthers"])
    assert (exact, overlap) == (0.0, pytest.approx(0.5))
    # words count as often as they stand: 2 common of 3 and 2
    assert squad_item("no no no", ["no no"])[1] == pytest.approx(2 * 2 / 5)
    assert squad_item("", ["x"]) == (0.0, 0.0)
    # exact match and F1 each take their own best gold answer
    assert squad_item("b c", ["b c d", "b"])[1] == pytest.approx(0.8)


def test_squad_versions_differ_where_answers_are_empty() -> None:
    assert squad_item("the", ["a"]) == (1.0, 0.0)
    assert squad_item("the", ["a"], unanswerable=True) == (1.0, 1.0)
    assert squad_item("", [], unanswerable=True) == (1.0, 1.0)
    assert squad_item("x", [], unanswerable=True) == (0.0, 0.0)
    assert squad_item("", []) == (0.0, 0.0)
    # version 2.0 drops the gold answer that normalises to nothing
    assert squad_item("", ["the", "dog"], unanswerable=True) == (0.0, 0.0)


def test_best_threshold_by_hand() -> None:
    scores = np.array([1.0, 0.5, 0.0, 1.0, 0.0])
    no_answer = np.array([0.1, 0.6, 0.3, 0.9, 0.2])
    answerable = np.array([True, True, False, True, False])
    answered = np.array([True, True, True, True, False])
    # withhold all: 2; by rising no_answer: +1 = 3, +0 = 3, -1 = 2, +.5 = 2.5, +1 = 3.5
    assert best_threshold(scores, no_answer, answerable, answered) == (pytest.approx(0.7), 0.9)
    # the first best wins, and nothing better than withholding all gives 0.0
    assert best_threshold(scores[:3], no_answer[:3], answerable[:3], answered[:3]) == (
        pytest.approx(2 / 3),
        0.1,
    )
    assert best_threshold(scores[2:3], no_answer[2:3], answerable[2:3], answered[2:3]) == (1.0, 0.0)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), min_size=1, max_size=20),
    st.randoms(),
)
def test_best_threshold_is_the_best_of_all_thresholds(
    rows: list[tuple[float, bool, bool]], random: object
) -> None:
    answerable, answered = (np.array([r[i] for r in rows]) for i in (1, 2))
    raw = np.array([r[0] for r in rows])
    scores = np.where(answerable, raw * answered, ~answered).astype(float)
    no_answer = np.arange(len(rows)) / 7 + 0.1
    random.shuffle(no_answer)  # type: ignore[attr-defined]
    tried = [np.where(no_answer > t, ~answerable, scores).mean() for t in (0.0, *no_answer)]
    best, at = best_threshold(scores, no_answer, answerable, answered)
    assert best == pytest.approx(max(tried))
    assert np.where(no_answer > at, ~answerable, scores).mean() == pytest.approx(best)


def test_squad_1_by_hand() -> None:
    found = score_predictions(
        "squad", rows(("the Bo.", ["Bo", "x"]), ("Ann Lee", ["Ann"]), ("", ["y"]))
    )
    assert found == pytest.approx(
        {
            "exact": 100 / 3,
            "f1": 100 * (1 + 2 / 3) / 3,
            "headline": 100 * (2 + 2 / 3) / 6,
            "total": 3,
        }
    )


SQUAD2 = rows(
    ("Bo", ["Bo"]), ("Ann Lee", ["Ann"]), ("z", []), ("", []), no_answer=[0.1, 0.4, 0.6, 0.9]
)  # fmt: skip


def test_squad_2_by_hand() -> None:
    found = score_predictions("squad2", SQUAD2)
    assert found == pytest.approx(
        {
            "exact": 50,
            "HasAns_exact": 50,
            "NoAns_exact": 50,
            "best_exact": 75,
            "best_exact_thresh": 0.1,
            "f1": 100 * (1 + 2 / 3 + 1) / 4,
            "HasAns_f1": 100 * (1 + 2 / 3) / 2,
            "NoAns_f1": 50,
            "best_f1": 100 * (2 + 1 + 2 / 3) / 4,
            "best_f1_thresh": 0.4,
            "headline": 100 * (2 + 2 + 2 / 3) / 8,
            "total": 4,
        }
    )


def test_squad_2_threshold_withholds_answers() -> None:
    found = score_predictions("squad2", SQUAD2, threshold=0.3)
    assert (found["exact"], found["HasAns_f1"], found["NoAns_f1"]) == (75, 50, 100)
    assert (found["best_f1"], found["headline"]) == (pytest.approx(100 * (3 + 2 / 3) / 4), 75)
    at_best = score_predictions("squad2", SQUAD2, threshold=found["best_f1_thresh"])
    assert at_best["f1"] == pytest.approx(found["best_f1"])
    assert gather("squad2", SQUAD2, threshold=0.3).predicted.tolist() == [1, 0, 1, 1]
    plain = [{k: v for k, v in row.items() if k != "no_answer"} for row in SQUAD2]
    assert set(score_predictions("squad2", plain)) == {
        "exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "headline", "total"
    }  # fmt: skip


def test_no_answer_scores_are_all_or_none() -> None:
    mixed = [SQUAD2[0], {k: v for k, v in SQUAD2[1].items() if k != "no_answer"}]
    with pytest.raises(DataError, match="1 of 2 rows have no_answer"):
        score_predictions("squad2", mixed)
    with pytest.raises(DataError, match=r"needs squad-2\.0") as caught:
        score_predictions("squad", rows(("a", ["a"])), threshold=0.5)
    assert caught.value.code == Exit.USAGE
