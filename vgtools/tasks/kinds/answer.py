"""Answers to questions about pictures, out of the answers frequent in training (VQA 2.0)."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.io.errors import DataError, Exit
from vgtools.io.streams import read_lines
from vgtools.tasks.examples import (
    Answer,
    Example,
    ReadStats,
    VisualExample,
    json_field,
    json_rows,
    own_rows,
)
from vgtools.tasks.kinds.classify import most_likely
from vgtools.tasks.kinds.span import parse
from vgtools.tasks.predictions import Items, Joined, NetworkOutputs, make_row, score_items
from vgtools.tasks.sequences import encode_texts as encode
from vgtools.tasks.table import Task

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["encode", "gold", "head", "loss", "majority", "parse", "read", "rows", "score"]

_FORM = "the JSON of VQA 2.0"

# ----------------------------------------------------------------------------------------- reading


def annotations_path(questions: str | Path) -> Path:
    """Return the file of the answers to VQA's questions: next to them, by its official name."""
    path = Path(questions)
    name = path.name.replace("OpenEnded_", "").replace("questions", "annotations")
    return path.with_name(name)


def with_annotations(task: Task, paths: Iterable[str]) -> list[str]:
    """Return files of a task, each once, and the annotations that are read with VQA's questions."""
    found = dict.fromkeys(paths)
    if task.kind == "answer" and task.own is None:
        beside = [str(annotations_path(path)) for path in found]
        found |= dict.fromkeys(path for path in beside if os.path.exists(path))
    return [*found]


def read(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int | None, VisualExample]]:
    """Yield (no line, question) with the answers of its annotators; a test file has none.

    A table of one's own has a question with an answer, or a list of them, in each row.

    Source: the formats of the VQA data set, version 2; the questions of test-dev are about the
        pictures of test.
    """
    if task.own is not None:
        yield from _read_own(task, path, unlabelled, stats)
        return
    beside = annotations_path(path)
    if not unlabelled and beside == Path(path):
        why = 'the name of a file of questions must contain "questions", to find its annotations'
        raise DataError(why, path)
    answers = dict[int, tuple[Answer, ...]]()
    pictures = dict[int, Any]()
    if not unlabelled or (beside != Path(path) and beside.exists()):
        for number, picture, given in _annotations(beside):
            if number in answers:
                why = f"holds the answers to the question {number} twice; leave one of them out"
                raise DataError(why, beside)
            answers[number] = given
            pictures[number] = picture
    split = re.search(r"(train|val|test)(?:-dev)?(20\d\d)", Path(path).name)
    for where, row in json_rows(path, "questions", "questions", _FORM):
        number = json_field(row, "question_id", int, where, path)
        image = json_field(row, "image_id", int, where, path)
        question = json_field(row, "question", str, where, path)
        if answers and number not in answers:
            why = f"{where}: {beside} holds no answers to the question {number}"
            raise DataError(f"{why}; both must be of one split", path)
        if pictures.get(number) not in (None, image):
            why = f"question {number} is about the image {image}, {beside} has {pictures[number]}"
            raise DataError(f"{where}: {why}; both must be of one version", path)
        name = f"COCO_{split[1]}{split[2]}_{image:012}" if split else str(image)
        given = answers.get(number, ())
        yield None, VisualExample(str(number), question, answers=given, images=(name,))


def _read_own(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, VisualExample]]:
    assert task.own is not None
    for line, row in own_rows(task, path, unlabelled, stats):
        given = [row.label] if isinstance(row.label, str) else row.label or []
        if not isinstance(given, list) or not all(isinstance(t, str) and t.strip() for t in given):
            why = f'"{task.own.label}" must be an answer or a list of answers, got {given!r:.60}'
            raise DataError(why, path, line)
        answers = tuple(Answer(" ".join(text.split()), -1) for text in given)
        question = row.texts[0]
        yield line, VisualExample(row.id, question, answers=answers, images=row.images, line=line)


def _annotations(path: Path) -> Iterator[tuple[int, Any, tuple[Answer, ...]]]:
    """Yield (question id, image id or None, the annotators' answers)."""
    shared = dict[str, Answer]()  # few answers are distinct
    for where, row in json_rows(path, "annotations", "annotations", _FORM):
        given = row.get("answers") if isinstance(row, dict) else None
        rows = given if isinstance(given, list) else []
        texts = [answer.get("answer") if isinstance(answer, dict) else None for answer in rows]
        if not texts or not all(isinstance(text, str) for text in texts):
            why = f'{where}: "answers" must be a list of {{"answer": text}}, got {given!r:.60}'
            raise DataError(why, path)
        clean = [" ".join(str(text).split()) for text in texts]
        answers = tuple(shared.setdefault(text, Answer(text, -1)) for text in clean)
        yield json_field(row, "question_id", int, where, path), row.get("image_id"), answers


def gold(task: Task, example: Example) -> list[str] | None:
    """Return the annotators' answers."""
    return [answer.text for answer in example.answers] or None


# -------------------------------------------------------------------------- answers to choose from


def common_answers(examples: Iterable[Example], least: int) -> tuple[str, ...]:
    """Return the answers to predict: each of `least` questions or more, most frequent first.

    Raises:
        DataError: there is none.

    Source: Li et al. 2020, appendix B.1: the 3,129 most frequent answers, each of which answers 9
        questions or more of train and val (Anderson et al. 2018 and its released code).
    Deviation: an annotators' tie is settled by the alphabet.
    """
    counts = Counter(map(agreed_answer, examples))
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    common = tuple(text for text, count in ordered if count >= least)
    if not common:
        why = f"no answer belongs to {least} questions; --answers N lowers the number"
        raise DataError(why, code=Exit.DATA)
    return common


def agreed_answer(example: Example) -> str:
    """Return the answer that most annotators gave, as `normalise_vqa` writes it."""
    given = Counter(normalise_vqa(answer.text) for answer in example.answers)
    return min(given, key=lambda text: (-given[text], text))


def read_answers(path: str | Path) -> tuple[str, ...]:
    """Read the answers to predict, one per line.

    Raises:
        DataError: an empty line, a duplicate answer, or no answer.
    """
    first_line = dict[str, int]()
    for line, text in enumerate(read_lines(path), 1):
        text = text.strip()
        if not text:
            raise DataError("is empty", path, line)
        if text in first_line:
            why = f"duplicate answer {text!r:.60} (first on line {first_line[text]})"
            raise DataError(why, path, line)
        first_line[text] = line
    if not first_line:
        raise DataError("holds no answer; expected one per line", path)
    return tuple(first_line)


def soft_targets(golds: Iterable[Answer], known: dict[str, int]) -> dict[int, float]:
    """Return answer number -> min(1, annotators who gave it / 3); fewer than 3 must all agree.

    Source: Li et al. 2020, appendix B.1, and its released code: the soft targets of VQA's own
        accuracy.
    """
    given = Counter(normalise_vqa(answer.text) for answer in golds)
    enough = min(3, given.total())
    return {known[text]: min(1.0, n / enough) for text, n in given.items() if text in known}


def head(task: Task) -> None:
    """Text alone has no picture."""


def loss(outputs: Tensor, batch: Any) -> Tensor:
    """Return the Kullback-Leibler divergence of (B, C) logits from the answers' scores, as is."""
    from torch.nn import functional as F

    return F.kl_div(outputs.log_softmax(-1), batch.labels, reduction="sum")


def rows(task: Task, examples: Sequence[Example], made: NetworkOutputs) -> Iterator[dict[str, Any]]:
    """Yield rows with the likeliest answer and its probability.

    Args: as `vgtools.tasks.kinds.Kind`; the labels of the task are the answers; outputs: (N, C).
    """
    best, probability = most_likely(made.outputs)
    for example, number, score in zip(examples, best.tolist(), probability.tolist(), strict=True):
        answers = gold(task, example)
        yield make_row(example.id, task.labels[number], answers, score=round(score, 6))


def submission(task: Task, rows: Iterable[Mapping[str, Any]], path: str | Path) -> str:
    """Return the JSON that VQA's evaluation server takes, of rows of predictions.

    Raises:
        DataError: an id is not the number of a question; `path` is the file that it names.

    Source: the results format of the VQA data set: a list of {"question_id", "answer"}.
    """
    found = list[dict[str, Any]]()
    for row in rows:
        if not re.fullmatch(r"0|[1-9][0-9]{0,17}", row["id"]):
            why = f"expected the number of a question of {task.title} as id, got {row['id']!r:.60}"
            raise DataError(why, path)
        found.append({"question_id": int(row["id"]), "answer": row["prediction"]})
    return json.dumps(found, ensure_ascii=False) + "\n"


# ----------------------------------------------------------------------------------------- scoring


def score(task: Task, joined: Joined, threshold: float | None = None) -> Items:
    """Score answers by VQA's accuracy; a table of one's own, by whether any right one is given."""
    pairs = zip(joined.predicted, joined.gold, strict=True)
    item = vqa_item if task.own is None else _is_right
    if not all(joined.gold):
        raise DataError('"label": expected answers of annotators, got none', joined.file)
    each = np.array([item(text, golds) for text, golds in pairs])
    return score_items(joined, each, {"accuracy": float(each.mean())})


_DIGITS = {
    "none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5",
    "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10",
}  # fmt: skip
# Officially "somebody'd" loses its apostrophe, and the words with a capital never match.
_CONTRACTIONS = """
ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't
haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't
mightn't've must've mustn't needn't not've o'clock oughtn't 'ow's'at shan't she'd've should've
shouldn't shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll
someone's something'd something'd've something'll that's there'd there'd've there're there's they'd
they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's what've
when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't
would've wouldn't wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""
_WITH_APOSTROPHE = {"somebody'd": "somebodyd"} | {
    word[: mark.start()] + word[mark.end() :]: word
    for word in _CONTRACTIONS.split()
    for mark in re.finditer("'", word)
}
_STOP = re.compile(r"\.(?!\d)")
_NUMBER_COMMA = re.compile(r"\d,\d")


def normalise_vqa(text: str) -> str:
    """Return an answer as VQA compares it.

    In lower case, without articles and all punctuation but colons and apostrophes, with digits for
    the numbers up to ten and `don't` for `dont`, which lacks one apostrophe. A mark inside a word
    becomes a space, any other nothing.

    Source: Antol et al. 2015 (VQA) and the evaluation code released with it.
    """
    plain = " ".join(text.split())
    number = _NUMBER_COMMA.search(plain) is not None
    clean = plain
    for mark in ';/[]"{}()=+\\_-><@`,?!':
        beside = number or f"{mark} " in plain or f" {mark}" in plain
        clean = clean.replace(mark, "" if beside else " ")
    words = [_DIGITS.get(word, word) for word in _STOP.sub("", clean).lower().split()]
    kept = [word for word in words if word not in ("a", "an", "the")]
    return " ".join(_WITH_APOSTROPHE.get(word, word) for word in kept)


def vqa_item(answer: str, golds: Sequence[str]) -> float:
    """Return VQA's accuracy of one answer: the mean over annotators of min(1, agreeing others / 3).

    Args:
        golds: an answer of each annotator, ten in the official files.

    Source: as `normalise_vqa`; where all annotators wrote the same, answers are compared verbatim.
    """
    if len(set(golds)) > 1:
        answer = normalise_vqa(answer)
        golds = [normalise_vqa(gold) for gold in golds]
    # Officially the answer is compared with every set of all annotators but one: leaving out an
    # annotator who agrees lowers the count, leaving out another does not.
    same = sum(gold == answer for gold in golds)
    without_agreeing = min(1.0, (same - 1) / 3)
    without_other = min(1.0, same / 3)
    return (same * without_agreeing + (len(golds) - same) * without_other) / len(golds)


def _is_right(answer: str, golds: Sequence[str]) -> float:
    return float(normalise_vqa(answer) in map(normalise_vqa, golds))


def majority(task: Task, learnt: Sequence[Example]) -> str:
    """Return the most frequent answer."""
    answers = Counter(normalise_vqa(answer.text) for e in learnt for answer in e.answers)
    return answers.most_common(1)[0][0]
