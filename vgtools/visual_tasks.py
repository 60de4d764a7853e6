"""The downstream tasks with pictures: their official files, one `VisualExample` a row.

A picture is named as its data set does, without folder and suffix; `Pictures` finds it among the images of region features.
Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io import DataError, Exit, read_jsonl, read_lines
from vgtools.jsonstream import json_items
from vgtools.metrics import normalise_vqa
from vgtools.regions import Regions, box_fault, clip
from vgtools.sources import SUFFIXES
from vgtools.tasks import Answer, Example, ReadStats, Task, label_value

Link = tuple[int, int, int]  # characters from, to, and the object that they name


@dataclass(frozen=True, slots=True)
class VisualExample(Example):
    """One item of a task with pictures."""

    images: tuple[str, ...] = ()
    span: tuple[int, int] = (0, 0)  # of the phrase in the text
    boxes: tuple[tuple[float, float, float, float], ...] = ()  # of the phrase, in pixels
    size: tuple[float, float] | None = None  # of the picture that they refer to
    line: int | None = None  # of the file, for messages


@dataclass(frozen=True, slots=True)
class SceneExample(VisualExample):
    """A question of VCR, whose words name objects of the picture."""

    objects: tuple[str, ...] = ()  # classes of all objects, in the order of the picture's regions
    seen: tuple[int, ...] = ()  # the objects that the texts are about
    links: tuple[tuple[Link, ...], ...] = ()  # the words of the text, then those of each choice, that name an object


def visual_rows(task: Task, path: str | Path, unlabelled: bool, stats: ReadStats) -> Iterator[tuple[int | None, VisualExample]]:
    """Yield (line, example) of an official file.

    Raises:
        DataError: as `vgtools.tasks.read_examples`.
    """
    if task.kind == "ground":
        return _phrases(path, stats)
    if task.kind == "choice":
        return _vcr(task, path, unlabelled)
    return _vqa(path, unlabelled) if task.kind == "answer" else _nlvr2(task, path, unlabelled)


def _keys(name: str) -> tuple[str, str]:
    """Return a picture's name without folder and suffix, and what its names have in common.

    The latter is 42 of COCO_val2014_000000000042, train/000000000042.jpg and 42.
    """
    own = Path(name).stem if Path(name).suffix in SUFFIXES else Path(name).name
    bare = re.sub(r"^COCO_[a-z]+20\d\d_", "", own)
    return own, bare.lstrip("0") if bare.isdigit() else bare


class Pictures:
    """Finds pictures among region features, which may name them with a folder and a suffix.

    Args:
        regions: where they are.
    """

    def __init__(self, regions: Regions) -> None:
        self._regions = regions
        self._by_key = dict[str, list[str]]()
        for image in regions.images:
            for key in set(_keys(image)):
                self._by_key.setdefault(key, []).append(image)

    def find(self, name: str, file: str | Path, line: int | None) -> str:
        """Return a picture's name in the region features.

        Raises:
            DataError: there is none, or several; file and line of the example are named.
        """
        if name in self._regions:
            return name
        found = list[str]()
        for key in _keys(name):
            found = self._by_key.get(key, [])
            if len(found) == 1:
                return found[0]
        have = f"{len(found)} images of that name: {', '.join(found[:3])}" if found else "no regions of it; extract them"
        raise DataError(f"the picture {name!r:.80}: {self._regions.path} holds {have}", file, line)


# ------------------------------------------------------------------------------------------------------------------- NLVR2


def _nlvr2(task: Task, path: str | Path, unlabelled: bool) -> Iterator[tuple[int, VisualExample]]:
    """Yield the rows of NLVR2; `dev-850-0-1` is sentence 1 of the pictures dev-850-0-img0 and dev-850-0-img1.

    Source: the data set's README.
    """
    for line, row in read_jsonl(path, {"identifier": str, "sentence": str}):
        name, label = row["identifier"], row.get("label")
        if len(name.split("-")) != 4:
            raise DataError(
                f'"identifier" is {name!r:.80}; wanted split-set-pair-sentence, for example dev-850-0-1', path, line
            )
        if label is None and not unlabelled:
            raise DataError(f'the key "label" is missing; the row has {", ".join(row)}', path, line)
        value = None if label is None else label_value(task, "label", str(label), path, line)
        pair = name.rsplit("-", 1)[0]
        yield line, VisualExample(name, row["sentence"], None, value, images=(f"{pair}-img0", f"{pair}-img1"), line=line)


# --------------------------------------------------------------------------------------------------------------------- VCR

# What people are called in VCR's texts, the first one of a question by the first name; Peyton stands there twice.
_NAMES = (
    "Casey", "Riley", "Jessie", "Jackie", "Avery", "Jaime", "Peyton", "Kerry", "Jody", "Kendall", "Peyton", "Skyler", "Frankie",
    "Pat", "Quinn",
)  # fmt: skip
_PERSON = "person"


def _vcr(task: Task, path: str | Path, unlabelled: bool) -> Iterator[tuple[int, SceneExample]]:
    """Yield VCR's questions with four answers, or with their right answer and four rationales.

    Of a test file, which does not say what is right, each question comes with each of its answers: `ID-a0` to `ID-a3`.

    Source: Zellers et al. 2019, and the released code of Li et al. 2020: objects are written as names and classes, and the
        objects seen are those of the question, all answers and all rationales; all people where a text says "everyone" or none
        names an object.
    Deviation: a person first named in a choice gets a name that nobody of the question has; the released code begins again.
    """
    keys = {"annot_id": str, "img_fn": str, "objects": list, "question": list, "answer_choices": list}
    for line, row in read_jsonl(path, keys | {"rationale_choices": list}):
        objects = row["objects"]
        if not objects or not all(isinstance(name, str) for name in objects):
            raise DataError(f'"objects" is {objects!r:.60}, wanted the classes of the picture\'s objects', path, line)
        question = _words(row["question"], "question", objects, path, line)
        answers, rationales = (
            [_words(c, f"{name} {i}", objects, path, line) for i, c in enumerate(_four(row, name, path, line))]
            for name in ("answer_choices", "rationale_choices")
        )
        seen = _objects_seen([question, *answers, *rationales], objects)
        answer = _right(task, row, "answer_label", unlabelled, path, line)
        rationale = _right(task, row, "rationale_label", unlabelled, path, line)
        asked: list[tuple[str, list[Any], list[list[Any]], int | None]] = [(row["annot_id"], question, answers, answer)]
        if task.name == "vcr-qar" and answer is not None:
            asked = [(row["annot_id"], question + answers[answer], rationales, rationale)]
        elif task.name == "vcr-qar":
            asked = [(f"{row['annot_id']}-a{i}", question + a, rationales, None) for i, a in enumerate(answers)]
        for name, words, choices, label in asked:
            called = dict[int, str]()
            text, links = _written(words, objects, called)
            written = [_written(choice, objects, dict(called)) for choice in choices]
            yield (
                line,
                SceneExample(
                    name, text, None, label, tuple(t for t, _ in written), images=(row["img_fn"],), line=line,
                    objects=tuple(objects), seen=seen, links=(links, *(own for _, own in written)),
                ),
            )  # fmt: skip


def _four(row: dict[str, Any], key: str, path: str | Path, line: int) -> list[Any]:
    if len(row[key]) != 4:
        raise DataError(f'"{key}" holds {len(row[key])}, wanted 4', path, line)
    return list(row[key])


def _words(given: Any, where: str, objects: list[str], path: str | Path, line: int) -> list[Any]:
    """Return the words of a text, checked: each is a string, or a list of objects."""
    for word in given if isinstance(given, list) else [None]:
        if isinstance(word, str):
            continue
        if not isinstance(word, list) or not all(type(number) is int for number in word):
            raise DataError(f"{where} holds {word!r:.60}, wanted a word, or a list of objects", path, line)
        odd = next((number for number in word if not 0 <= number < len(objects)), None)
        if odd is not None:
            raise DataError(f"{where} names object {odd}, the picture has 0 to {len(objects) - 1}", path, line)
    if not given:
        raise DataError(f"{where} holds no word", path, line)
    return list(given)


def _right(task: Task, row: dict[str, Any], key: str, unlabelled: bool, path: str | Path, line: int) -> int | None:
    """Return which choice is right, None where a test file does not say."""
    if row.get(key) is None:
        if unlabelled:
            return None
        raise DataError(f'the key "{key}" is missing; the row has {", ".join(row)}', path, line)
    return int(label_value(task, key, row[key], path, line))


def _objects_seen(texts: Iterable[list[Any]], objects: list[str]) -> tuple[int, ...]:
    """Return the objects that some texts are about, in order."""
    words = [word for text in texts for word in text]
    found = {number for word in words if isinstance(word, list) for number in word}
    if not found or any(isinstance(word, str) and word.lower() in ("everyone", "everyones") for word in words):
        found |= {number for number, name in enumerate(objects) if name == _PERSON}
    return tuple(sorted(found))


def _written(words: list[Any], objects: list[str], called: dict[int, str]) -> tuple[str, tuple[Link, ...]]:
    """Return a text with names in place of its objects, and where they stand; `called` learns who is called what."""
    parts, links, at = list[str](), list[Link](), 0
    for word in words:
        for number in word if isinstance(word, list) else [None]:
            name = word if number is None else objects[number]
            if number is not None and name == _PERSON:
                name = called.setdefault(number, _NAMES[len(called) % len(_NAMES)])
            if number is not None:
                links.append((at, at + len(name), number))
            parts.append(name)
            at += len(name) + 1
    return " ".join(parts), tuple(links)


# --------------------------------------------------------------------------------------------------------------------- VQA


def annotations_path(questions: str | Path) -> Path:
    """Return where the answers to a file of VQA's questions stand: beside it, under the official name."""
    path = Path(questions)
    return path.with_name(path.name.replace("OpenEnded_", "").replace("questions", "annotations"))


def _vqa(path: str | Path, unlabelled: bool) -> Iterator[tuple[None, VisualExample]]:
    """Yield VQA's questions with the answers of their annotators; a test file has none beside it.

    Source: the formats of the VQA data set, version 2.
    """
    other = annotations_path(path)
    if not unlabelled and other == Path(path):
        raise DataError('is no name of a file of questions, which has "questions" in it; annotations are found by it', path)
    answers = dict[int, tuple[Answer, ...]]()
    if not unlabelled or (other != Path(path) and other.exists()):
        answers = dict(_annotations(other))
    met, split = False, re.search(r"(train|val|test)20\d\d", Path(path).name)
    for key, index, row in json_items(path):
        if key != "questions":
            continue
        met, where = True, f"questions[{index}]"
        number, image = (_integer(row, name, where, path) for name in ("question_id", "image_id"))
        if not isinstance(row.get("question"), str):
            raise DataError(f'{where}: "question" must be a string, found {row.get("question")!r:.60}', path)
        if answers and number not in answers:
            raise DataError(f"{where}: {other} holds no answers to the question {number}; both must be of one split", path)
        name = f"COCO_{split[0]}_{image:012}" if split else str(image)
        yield None, VisualExample(str(number), row["question"], answers=answers.get(number, ()), images=(name,))
    if not met:
        raise DataError('has no questions under "questions"; wanted the official JSON of VQA 2.0', path)


def _annotations(path: Path) -> Iterator[tuple[int, tuple[Answer, ...]]]:
    """Yield (question id, the annotators' answers)."""
    known, met = dict[str, Answer](), False
    for key, index, row in json_items(path):
        if key != "annotations":
            continue
        met, where = True, f"annotations[{index}]"
        given = row.get("answers") if isinstance(row, dict) else None
        texts = [a.get("answer") if isinstance(a, dict) else None for a in given] if isinstance(given, list) else []
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DataError(f'{where}: "answers" must be a list of {{"answer": text}}, found {given!r:.60}', path)
        clean = [" ".join(str(text).split()) for text in texts]
        yield _integer(row, "question_id", where, path), tuple(known.setdefault(t, Answer(t, -1)) for t in clean)
    if not met:
        raise DataError('has no annotations under "annotations"; wanted the official JSON of VQA 2.0', path)


def _integer(row: object, key: str, where: str, path: str | Path) -> int:
    found = row.get(key) if isinstance(row, dict) else None
    if not isinstance(found, int) or isinstance(found, bool):
        raise DataError(f'{where}: wanted an integer under "{key}", found {found!r:.40}', path)
    return found


def common_answers(examples: Iterable[Example], least: int) -> tuple[str, ...]:
    """Return the answers to predict: those most given to at least so many questions, most frequent first.

    Raises:
        DataError: there is none.

    Source: Li et al. 2020, appendix B.1: the 3,129 most frequent answers, which are those of 9 questions or more of train and
        val (Anderson et al. 2018 and its released code).
    Deviation: an annotators' tie is settled by the alphabet.
    """
    counts = Counter[str]()
    for example in examples:
        given = Counter(normalise_vqa(answer.text) for answer in example.answers)
        counts[min(given, key=lambda text: (-given[text], text))] += 1
    found = tuple(text for text, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count >= least)
    if not found:
        raise DataError(f"no answer is that of {least} questions; --answers N lowers the number", code=Exit.DATA)
    return found


def read_answers(path: str | Path) -> tuple[str, ...]:
    """Read the answers to predict, one a line.

    Raises:
        DataError: an empty line, an answer twice, or no answer.
    """
    found = dict[str, int]()
    for line, text in enumerate(read_lines(path), 1):
        text = text.strip()
        if not text or text in found:
            raise DataError(
                "is empty" if not text else f"the answer {text!r:.60} stands on line {found[text]} already", path, line
            )
        found[text] = line
    if not found:
        raise DataError("holds no answer; one a line was wanted", path)
    return tuple(found)


def soft_targets(golds: Iterable[Answer], known: dict[str, int]) -> dict[int, float]:
    """Return answer number -> min(1, annotators who gave it / 3).

    Source: Li et al. 2020, appendix B.1, and its released code: the soft targets of VQA's own accuracy.
    """
    given = Counter(normalise_vqa(gold.text) for gold in golds)
    return {known[text]: min(1.0, count / 3) for text, count in given.items() if text in known}


# ------------------------------------------------------------------------------------------------------- phrase grounding


def _phrases(path: str | Path, stats: ReadStats) -> Iterator[tuple[int, VisualExample]]:
    """Yield the phrases that have boxes, caption by caption, of a file of `vg prepare flickr30k-entities`."""
    for line, row in read_jsonl(path, {"image": str, "text": str, "phrases": list}):
        size = _size(row, path, line)
        for number, phrase in enumerate(row["phrases"], 1):
            start, end, boxes = (phrase.get(k) for k in ("start", "end", "boxes")) if isinstance(phrase, dict) else (None,) * 3
            length = len(row["text"])
            if type(start) is not int or type(end) is not int or not 0 <= start < end <= length:
                why = f"phrase {number} has the span {start!r:.20} to {end!r:.20}, the text has {length} characters"
                raise DataError(why, path, line)
            gold = _boxes(boxes, size, number, path, line)
            if not gold:
                stats.unboxed += 1
                continue
            yield (
                line,
                VisualExample(
                    f"{line}-{number}", row["text"], images=(row["image"],), span=(start, end), boxes=gold, size=size, line=line
                ),
            )


def _size(row: dict[str, Any], path: str | Path, line: int) -> tuple[float, float] | None:
    """Return the size of the picture that a row's boxes refer to, where it says it."""
    if "width" not in row and "height" not in row:
        return None
    sides: list[Any] = [row.get("width"), row.get("height")]
    if not all(type(side) in (int, float) and side > 0 for side in sides):
        raise DataError(f'"width" and "height" are {sides}, wanted the picture\'s size in pixels', path, line)
    return sides[0], sides[1]


def _boxes(given: Any, size: Any, number: int, path: str | Path, line: int) -> tuple[Any, ...]:
    """Return a phrase's boxes, cut off at the edges of the picture where its size is known."""
    try:
        found = np.array(given, np.float64)
        assert found.size == 0 or found.shape[1:] == (4,)
    except (TypeError, ValueError, AssertionError):
        raise DataError(f'phrase {number} has "boxes" {given!r:.60}, wanted a list of [x1, y1, x2, y2]', path, line) from None
    if not found.size:
        return ()
    sides = size or (np.inf, np.inf)
    fault = box_fault(found, *sides)
    if fault:
        raise DataError(f"phrase {number}: {fault}", path, line)
    return tuple(tuple(box) for box in clip(found, *sides).tolist())
