"""Examples become token ids, lengths become batches, outputs become answers: each against a plain way to do it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.tiny import WORDS
from vgtools import encoding as e
from vgtools.io import DataError
from vgtools.tasks import Answer, Example, find_task

A = np.ndarray[Any, Any]


def tokenizer(roberta: bool = False) -> Tokenizer:
    marks = ["<pad>", "[UNK]", "<s>", "</s>"] if roberta else ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    own = Tokenizer(models.WordPiece({w: i for i, w in enumerate([*marks, *WORDS])}, unk_token="[UNK]"))
    own.normalizer = normalizers.BertNormalizer()
    own.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = (("</s>", 3), ("<s>", 2)) if roberta else (("[SEP]", 3), ("[CLS]", 2))
    own.post_processor = processors.RobertaProcessing(*ends) if roberta else processors.BertProcessing(*ends)
    return own


def rows(inputs: e.Inputs) -> list[list[int]]:
    return [inputs.ids[a:b].tolist() for a, b in zip(inputs.starts, inputs.starts[1:], strict=False)]


def bert_truncation(first: int, second: int, room: int) -> tuple[int, int]:
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30))
def test_the_longer_text_loses_tokens_first(first: int, second: int, room: int) -> None:
    assert e.longest_first(first, second, room) == bert_truncation(first, second, room)


@pytest.mark.parametrize("roberta", [False, True])
def test_pairs_are_what_the_tokenizer_makes_of_them(roberta: bool) -> None:
    own = tokenizer(roberta)
    texts = [("bam den", "dun"), ("fis", "gar gor kus"), ("bam", "")]
    examples = [Example(str(i), a, b, i % 2) for i, (a, b) in enumerate(texts)]
    found = e.encode(find_task("rte"), examples, own, max_length=20, segments=not roberta)
    wanted = [own.encode(a, b) for a, b in texts]
    assert rows(found) == [w.ids for w in wanted]
    kinds = [[int(i >= s) for i in range(n)] for s, n in zip(found.second, found.lengths, strict=True)]
    assert kinds == [w.type_ids for w in wanted]
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 0]
    assert (found.cut, found.examples.tolist()) == (0, [0, 1, 2])


def test_single_sentences_and_scores() -> None:
    own = tokenizer()
    found = e.encode(find_task("sst-2"), [Example("0", "bam den", None, 1), Example("1", "", None, 0)], own, max_length=9)
    assert rows(found) == [own.encode("bam den").ids, own.encode("").ids]
    assert found.second.tolist() == [4, 2]  # nothing is a second text
    scored = e.encode(find_task("sts-b"), [Example("0", "bam", "den", 2.5)], own, max_length=9)
    assert scored.labels is not None
    assert (scored.labels.dtype, scored.labels.tolist()) == (np.float32, [2.5])
    asked = e.encode(find_task("sst-2"), [Example("0", "bam", None, None)], own, max_length=9)
    assert asked.labels is None


def test_long_pairs_are_cut_and_counted() -> None:
    own = tokenizer()
    examples = [Example("0", "bam " * 9, "den " * 2), Example("1", "bam " * 2, "den " * 9), Example("2", "bam", "den")]
    found = e.encode(find_task("rte"), examples, own, max_length=10)  # 3 of them special
    bam, den = own.encode("bam", "den").ids[1], own.encode("bam", "den").ids[3]
    assert rows(found)[:2] == [[2, *[bam] * 5, 3, *[den] * 2, 3], [2, *[bam] * 2, 3, *[den] * 5, 3]]
    assert found.cut == 2
    assert list(found.report(10)) == ["2 examples are longer than 10 tokens and are cut"]


def test_choices_stand_behind_one_another() -> None:
    own = tokenizer()
    endings = ("den", "dun fis", "gar", "gor")
    found = e.encode(find_task("codah"), [Example("0", "bam", None, 2, endings)] * 2, own, max_length=12)
    assert (found.each, len(found), found.lengths.tolist()) == (4, 2, [6, 6])
    assert rows(found)[:4] == [own.encode("bam", ending).ids for ending in endings]


def test_a_length_in_which_nothing_fits_is_refused() -> None:
    with pytest.raises(DataError, match="--max-length 4: 3 tokens are special ones"):
        e.encode(find_task("rte"), [Example("0", "bam", "den", 0)], tokenizer(), max_length=4)


# ----------------------------------------------------------------------------------------------------------------- windows

SQUAD = find_task("squad-1.1")
WORDS_12 = [WORDS[i] for i in range(12)]
CONTEXT = " ".join(WORDS_12)


def question(answer: str | None, name: str = "0", asked: str = "bam", start: int | None = None) -> Example:
    given_start = CONTEXT.find(answer) if answer and start is None else start
    answers = () if answer is None else (Answer(answer, -1 if given_start is None else given_start),)
    return Example(name, asked, CONTEXT, answers=answers, is_impossible=answer is None)


def test_windows_overlap_and_hold_every_token() -> None:
    own = tokenizer()
    answer = " ".join(WORDS_12[5:8])
    found = e.encode(SQUAD, [question(answer)], own, max_length=10, stride=3, learn=True)  # 6 tokens of the context each
    ids = own.encode(CONTEXT).ids[1:-1]
    bam = own.encode("bam").ids[1]
    assert rows(found) == [[2, bam, 3, *ids[a : a + 6], 3] for a in (0, 3, 6)]
    assert found.begins is not None
    assert found.begins.tolist() == [0, 3, 6]
    assert found.spans is not None
    for window, begin in enumerate((0, 3, 6)):
        part = found.spans[found.starts[window] : found.starts[window + 1]]
        assert [CONTEXT[a:b] for a, b in part[3:9]] == WORDS_12[begin : begin + 6]
        assert (part[[0, 1, 2, 9]] == -1).all()
    assert found.labels is not None
    assert found.labels.tolist() == [[0, 0], [5, 7], [0, 0]]  # the second window alone holds words 5 to 7


def test_a_stride_wider_than_a_window_leaves_no_gap() -> None:
    found = e.encode(SQUAD, [question(None)], tokenizer(), max_length=10, stride=100)
    assert found.begins is not None
    assert found.begins.tolist() == [0, 6]


def test_questions_without_a_findable_answer_teach_nothing() -> None:
    own = tokenizer()
    lost = question("zzz", "lost", start=-1)
    many = [lost, question(WORDS_12[0], "found"), question(None, "none")]
    found = e.encode(find_task("squad-2.0"), many, own, max_length=30, learn=True)
    assert (found.examples.tolist(), found.unlearnable) == ([1, 2], 1)
    assert found.labels is not None
    assert found.labels.tolist() == [[3, 3], [0, 0]]
    assert len(e.encode(SQUAD, many, own, max_length=30)) == 3  # they are asked all the same
    with pytest.raises(DataError, match="no answer stands in its context"):
        e.encode(SQUAD, [lost], own, max_length=30, learn=True)


def test_a_long_question_is_cut_to_64_tokens() -> None:
    found = e.encode(SQUAD, [question(WORDS_12[0], asked="bam " * 99)], tokenizer(), max_length=200)
    assert (found.lengths.tolist(), found.cut) == ([3 + 64 + 12], 1)
    assert list(found.report(200)) == ["1 questions are longer than 64 tokens and are cut"]


def brute_best(inputs: e.Inputs, outputs: A, units: range) -> tuple[e.Span | None, float]:
    """Compare every span of every window, tokens only in the window where they have most context."""
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
            scores.append(min(token - begin, end - 1 - token) + 0.01 * (end - begin) if inside else -1.0)
        return int(np.argmax(scores))

    best: e.Span | None = None
    for w, (begin, own) in enumerate(windows):
        for i, first in enumerate(own):
            for last in own[i : i + e.ANSWER]:
                if home(begin + i) == w:
                    score = float(outputs[first, 0] + outputs[last, 1])
                    if best is None or score > best.score:
                        best = e.Span(int(inputs.spans[first, 0]), int(inputs.spans[last, 1]), score)
    return best, min(float(outputs[inputs.starts[u]].sum()) for u in units)


def test_the_best_span_is_the_best_of_all() -> None:
    own, rng = tokenizer(), np.random.default_rng(0)
    lengths = [0, 1, 7, *rng.integers(30, 120, 30).tolist()]
    examples = [Example(str(i), "bam", " ".join(rng.choice(WORDS, n)), answers=()) for i, n in enumerate(lengths)]
    inputs = e.encode(SQUAD, examples, own, max_length=44, stride=17)
    outputs = rng.standard_normal((len(inputs.ids), 2)).astype(np.float32)
    for number in range(len(examples)):
        units = range(*np.searchsorted(inputs.examples, [number, number + 1]).tolist())
        best, none = e.best_span(inputs, outputs, units)
        wanted, wanted_none = brute_best(inputs, outputs, units)
        assert none == pytest.approx(wanted_none)
        assert (best is None) == (wanted is None) == (number == 0)
        if best and wanted:
            assert (best.start, best.end) == (wanted.start, wanted.end)
            assert best.score == pytest.approx(wanted.score)


def test_answers_are_withheld_above_the_threshold() -> None:
    own, task = tokenizer(), find_task("squad-2.0")
    examples = [question(WORDS_12[4]), question(None, "1"), Example("2", "bam", "", answers=(), is_impossible=True)]
    inputs = e.encode(task, examples, own, max_length=30)
    outputs = np.zeros((len(inputs.ids), 2), np.float32)
    for unit, none in ((0, 1.0), (1, 9.0)):
        outputs[inputs.starts[unit]] = none / 2
        outputs[inputs.starts[unit] + 3 + 4] = 2.0  # word 4: score 4
    first, second, empty = e.predictions(task, examples, inputs, outputs, threshold=2.0)
    assert first == {"id": "0", "prediction": WORDS_12[4], "label": [WORDS_12[4]], "no_answer": -3.0, "answer": WORDS_12[4]}
    assert second == {"id": "1", "prediction": "", "label": [], "no_answer": 5.0, "answer": WORDS_12[4]}
    assert (empty["prediction"], empty["answer"]) == ("", "")
    assert e.predictions(task, examples, inputs, outputs, threshold=6.0)[1]["prediction"] == WORDS_12[4]
    unlabelled = [Example("0", "bam", CONTEXT)]
    (row,) = e.predictions(SQUAD, unlabelled, e.encode(SQUAD, unlabelled, own, max_length=30), outputs)
    assert "label" not in row
