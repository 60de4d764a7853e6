"""One of four texts: continuations of a sentence (SWAG, CODAH), answers about a picture (VCR)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.tasks.examples import (
    Example,
    ReadStats,
    VisualExample,
    class_number,
    missing_key,
    read_table,
)
from vgtools.tasks.kinds.classify import gold, loss, majority, parse, rows
from vgtools.tasks.predictions import Items
from vgtools.tasks.predictions import score_metrics as score
from vgtools.tasks.sequences import encode_texts as encode
from vgtools.tasks.table import Task

__all__ = ["encode", "gold", "head", "loss", "majority", "parse", "read", "rows", "score"]

Link = tuple[int, int, int]  # first character, the one after the last, and the object they name


def read(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, Example]]:
    """Yield (line, example) of an official file."""
    if task.images and task.own is None:
        return _read_vcr(task, path, unlabelled, stats)
    return _read_endings(task, path, unlabelled, stats)


def _read_endings(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, Example]]:
    """Yield sentences with their continuations, each after the second sentence's beginning."""
    for line, row in read_table(task, path, unlabelled, stats, class_number):
        start, *beginning = row.texts[: -task.choices]
        endings = row.texts[-task.choices :]
        choices = tuple(" ".join([*beginning, ending]) for ending in endings)
        if row.images:  # no text names a region: all of them are seen
            seen: dict[str, Any] = {"images": row.images, "line": line}
            seen["links"] = ((),) * (1 + task.choices)
            yield line, SceneExample(row.id, start, None, row.label, choices, **seen)
        else:
            yield line, Example(row.id, start, None, row.label, choices)


def head(task: Task) -> tuple[str, dict[str, Any]]:
    """Return a head that scores each choice by itself."""
    return "MultipleChoice", {}


# --------------------------------------------------------------------------------------------- VCR

# The names of people in VCR's texts; the official list has Peyton twice.
_NAMES = (
    "Casey", "Riley", "Jessie", "Jackie", "Avery", "Jaime", "Peyton", "Kerry", "Jody", "Kendall",
    "Peyton", "Skyler", "Frankie", "Pat", "Quinn",
)  # fmt: skip
_PERSON = "person"


@dataclass(frozen=True, slots=True)
class SceneExample(VisualExample):
    """A question of VCR, whose words name objects of the picture."""

    objects: tuple[str, ...] = ()  # classes of all objects, in the order of the picture's regions
    seen: tuple[int, ...] = ()  # the objects that the texts are about
    links: tuple[tuple[Link, ...], ...] = ()  # words that name objects: in the text, in each choice


def _read_vcr(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, SceneExample]]:
    """Yield VCR's questions with four answers, or with the right answer and four rationales.

    A test file does not mark the right answer: rationales are then asked with each answer, `ID-a0`
    to `ID-a3`.

    Source: Zellers et al. 2019, and the released code of Li et al. 2020: objects are written as
        names and classes, and the objects seen are the ones that the question, any answer or any
        rationale names; all people where a text has "everyone" or none names an object.
    Deviation: a person first named in a choice gets a name that nobody of the question has; the
        released code starts the list of names again.
    """
    keys = {"annot_id": str, "img_fn": str, "objects": list, "question": list}
    keys |= {"answer_choices": list, "rationale_choices": list}
    for line, row in read_jsonl(path, keys):
        stats.check(row, path, line)
        scene = _Scene(row, path, line)
        question = scene.words(row["question"], "question")
        answers = scene.choices("answer_choices")
        rationales = scene.choices("rationale_choices")
        seen = _objects_seen([question, *answers, *rationales], scene.objects)
        answer = _label(task, row, "answer_label", unlabelled, path, line)
        rationale = _label(task, row, "rationale_label", unlabelled, path, line)
        name = row["annot_id"]
        asked: list[tuple[str, list[Any], list[list[Any]], int | None]]
        if task.name != "vcr-qar":
            asked = [(name, question, answers, answer)]
        elif answer is not None:
            asked = [(name, question + answers[answer], rationales, rationale)]
        else:
            asked = [
                (f"{name}-a{i}", question + words, rationales, None)
                for i, words in enumerate(answers)
            ]
        for identity, words, choices, label in asked:
            names = dict[int, str]()
            text, links = scene.write(words, names)
            # Each choice names people in its own copy: the choices are read one at a time.
            written = [scene.write(choice, dict(names)) for choice in choices]
            example = SceneExample(
                identity,
                text,
                None,
                label,
                tuple(choice for choice, _ in written),
                images=(row["img_fn"],),
                line=line,
                objects=tuple(scene.objects),
                seen=seen,
                links=(links, *(choice_links for _, choice_links in written)),
            )
            yield line, example


class _Scene:
    """One row of VCR, whose texts name its objects by number."""

    def __init__(self, row: Mapping[str, Any], path: str | Path, line: int) -> None:
        self.row = row
        self.path = path
        self.line = line
        self.objects: list[str] = row["objects"]
        if not self.objects or not all(isinstance(name, str) for name in self.objects):
            why = '"objects" must hold the classes of the picture\'s objects'
            raise DataError(f"{why}, got {self.objects!r:.60}", path, line)

    def choices(self, key: str) -> list[list[Any]]:
        """Return the words of four texts, checked."""
        texts = self.row[key]
        if len(texts) != 4:
            raise DataError(f'"{key}" must hold 4 texts, got {len(texts)}', self.path, self.line)
        return [self.words(text, f"{key} {i}") for i, text in enumerate(texts)]

    def words(self, given: Any, where: str) -> list[Any]:
        """Return the words of a text, checked: each is a string, or a list of objects."""
        for word in given if isinstance(given, list) else [None]:
            if isinstance(word, str):
                continue
            if not isinstance(word, list) or not all(type(number) is int for number in word):
                why = f"{where}: expected a word, or a list of objects; got {word!r:.60}"
                raise DataError(why, self.path, self.line)
            for number in word:
                if not 0 <= number < len(self.objects):
                    last = len(self.objects) - 1
                    why = f"{where} names object {number}, the picture has 0 to {last}"
                    raise DataError(why, self.path, self.line)
        if not given:
            raise DataError(f"{where} holds no word", self.path, self.line)
        return list(given)

    def write(self, words: list[Any], names: dict[int, str]) -> tuple[str, tuple[Link, ...]]:
        """Return a text with names instead of its objects, and the words that name each object.

        Args:
            names: names of the people met so far; extended by the people of this text.
        """
        parts = list[str]()
        links = list[Link]()
        at = 0
        for word in words:
            for number in word if isinstance(word, list) else [None]:
                name = word if number is None else self.objects[number]
                if number is not None and name == _PERSON:
                    name = names.setdefault(number, _NAMES[len(names) % len(_NAMES)])
                if number is not None:
                    links.append((at, at + len(name), number))
                parts.append(name)
                at += len(name) + 1
        return " ".join(parts), tuple(links)


def _label(
    task: Task, row: dict[str, Any], key: str, unlabelled: bool, path: str | Path, line: int
) -> int | None:
    """Return the number of the right choice; None where a test file does not have it."""
    if row.get(key) is not None:
        return class_number(task, key, row[key], path, line)
    if not unlabelled:
        raise missing_key(key, row, path, line)
    return None


def _objects_seen(texts: Iterable[list[Any]], objects: list[str]) -> tuple[int, ...]:
    """Return the objects that some texts are about, in order."""
    words = [word for text in texts for word in text]
    seen = {number for word in words if isinstance(word, list) for number in word}
    plain = {word.lower() for word in words if isinstance(word, str)}
    if not seen or not plain.isdisjoint(("everyone", "everyones")):
        seen |= {number for number, name in enumerate(objects) if name == _PERSON}
    return tuple(sorted(seen))


def joint_scores(
    answers: Items, rationales: Items, file: str | Path | None = None
) -> dict[str, float]:
    """Return VCR's Q→AR and Q→A in percent.

    Q→AR is the share of questions whose answer and rationale are both right.

    Args:
        answers: predictions of vcr-qa.
        rationales: predictions of vcr-qar on the same questions, asked with the right answer.

    Raises:
        DataError: they are not about the same questions.

    Source: Zellers et al. 2019, section 3; its released code likewise joins two models that were
        trained apart.
    """
    right = dict(zip(answers.ids, (answers.gold == answers.predicted).tolist(), strict=True))
    _require_same_questions(right, rationales.ids, file)
    rational = zip(rationales.ids, rationales.gold == rationales.predicted, strict=True)
    both = [right[name] and good for name, good in rational]
    return {
        "qa_accuracy": 100 * float(np.mean(list(right.values()))),
        "q2ar_accuracy": 100 * float(np.mean(both)),
    }


def _require_same_questions(
    answers: Iterable[str], rationales: Iterable[str], file: str | Path | None
) -> None:
    odd = sorted(set(answers) ^ set(rationales))
    if odd:
        why = f"{len(odd)} questions are only in one of vcr-qa's and vcr-qar's predictions, the"
        raise DataError(f"{why} first {odd[0]!r:.80}; predict the same file with both", file)


def submission(
    answers: Iterable[Mapping[str, Any]],
    rationales: Iterable[Mapping[str, Any]],
    file: str | Path | None,
) -> str:
    """Return the CSV of VCR's leaderboard.

    It holds the probability of each answer, and of each rationale if that answer were right.

    Args:
        answers: rows of vcr-qa's `predictions.test.jsonl`.
        rationales: rows of vcr-qar's, where question ID is `ID-a0` to `ID-a3`, one per answer.

    Raises:
        DataError: they are not about the same questions, or have no logits.

    Source: Zellers et al. 2019, released code: columns and their order.
    """
    of_answers = {str(row["id"]): _probabilities(row, file) for row in answers}
    of_rationales = {str(row["id"]): _probabilities(row, file) for row in rationales}
    expected = (f"{name}-a{i}" for name in of_answers for i in range(4))
    _require_same_questions(expected, of_rationales, file)
    groups = ["answer", *(f"rationale_conditioned_on_a{i}" for i in range(4))]
    lines = [["annot_id", *(f"{group}_{i}" for group in groups for i in range(4))]]
    for name, first in of_answers.items():
        cells = [first, *(of_rationales[f"{name}-a{i}"] for i in range(4))]
        lines.append([name, *(f"{value:.6g}" for cell in cells for value in cell)])
    return "".join(",".join(line) + "\n" for line in lines)


def _probabilities(row: Mapping[str, Any], file: str | Path | None) -> list[float]:
    """Return the probabilities of a row's four choices."""
    logits = np.array(row.get("logits", ()), np.float64)
    if len(logits) != 4:
        raise DataError(f"the id {row['id']!r:.80}: expected 4 logits, got {len(logits)}", file)
    shares = np.exp(logits - logits.max())
    return list((shares / shares.sum()).tolist())
