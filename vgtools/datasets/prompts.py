"""Prompts about colours, shapes, materials and sizes: files of CoDa and of ViComTe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Exit, Tally
from vgtools.io.streams import read_jsonl, read_lines

_COLOURS = (
    "black", "blue", "brown", "gray", "green", "orange", "pink", "purple", "red", "white", "yellow",
)  # fmt: skip
_GROUPS = ("Single", "Multi", "Any")
_CODA = {"text": str, "label": list, "template_group": int, "class_id": str, "object_group": int}
_PAIR = {"sub": str, "obj": str, "alt": str}
_LACKED = "subject that --subjects lacks"


def prompts(
    path: str,
    tally: Tally,
    templates: str | None = None,
    words: str | None = None,
    subjects: str | None = None,
) -> Iterator[Row]:
    """Yield `{"item", "prompts", "answers", "values"}`, of CoDa with its `group`.

    Args:
        path: rows of CoDa; or ViComTe's distributions, one object of subject -> counts; or its
            rows `{"sub", "obj", "alt"}`, whose answers `obj` and `alt` are right and wrong.
        tally: counts rows of CoDa without a mask, and subjects that are not among `subjects`.
        templates: ViComTe's templates.
        words: ViComTe's words of a relation, `blue` or `azure: blue`.
        subjects: rows with "sub", the subjects to keep.

    Raises:
        DataError: a file is missing or of another form (65, file and line), or has no use for a
            file that is given (usage).

    Source: Paik et al. 2021 (CoDa) and its rows on the hub; Zhang et al. 2022 (ViComTe) and the
        README of its data, by which counts are in the order of the alphabet.
    """
    rows = read_jsonl(path)
    _, first = next(rows, (0, dict[str, Any]()))
    if "label" in first:
        _refuse_unused(path, templates=templates, words=words, subjects=subjects)
        yield from _coda(path, tally)
        return
    if templates is None:
        raise DataError("ViComTe's files need its templates, --templates FILE", path)
    texts = [row["template"] for _, row in read_jsonl(templates, {"template": str})]
    right = all(text.count("[Y]") == text.count("[X]") == 1 for text in texts)
    if not right or not texts:
        why = f"expected templates with one [X] and one [Y] each, got {texts!r:.80}"
        raise DataError(why, templates)
    kept = (
        None if subjects is None else {row["sub"] for _, row in read_jsonl(subjects, {"sub": str})}
    )
    if "alt" in first:
        _refuse_unused(path, words=words)
        for _, row in read_jsonl(path, _PAIR):
            if kept is not None and row["sub"] not in kept:
                tally.left_out[_LACKED] += 1
            else:
                yield _row(row["sub"], texts, [[row["obj"]], [row["alt"]]], [1, 0])
        return
    if words is None:
        why = "ViComTe's distributions need the words of the relation, --words FILE"
        raise DataError(why, path)
    answers = _answers(words)
    if next(rows, None):
        raise DataError("expected one object of all distributions, got another row", path, 2)
    for subject, counts in first.items():
        right = isinstance(counts, list) and all(type(n) in (int, float) for n in counts)
        if not right or len(counts) != len(answers):
            why = f"expected {len(answers)} counts of {subject!r:.40}, one per class of {words}"
            raise DataError(f"{why}, got {counts!r:.60}", path, 1)
        if kept is not None and subject not in kept:
            tally.left_out[_LACKED] += 1
        else:
            yield _row(subject, texts, answers, counts)


def _refuse_unused(path: str, **files: str | None) -> None:
    for flag, file in files.items():
        if file is not None:
            why = f"its rows have no use for --{flag}; leave it out"
            raise DataError(why, path, code=Exit.USAGE)


def _row(subject: str, texts: list[str], answers: list[list[str]], values: list[float]) -> Row:
    own = [text.replace("[X]", subject).replace("[Y]", "[MASK]") for text in texts]
    return {"item": subject, "prompts": own, "answers": answers, "values": values}


def _answers(path: str) -> list[list[str]]:
    """Return the words of each class, classes in the order of the alphabet."""
    found = dict[str, list[str]]()
    for text in read_lines(path):
        word, _, name = (part.strip() for part in text.partition(":"))
        if word:
            found.setdefault(name or word, []).append(word)
    return [found[name] for name in sorted(found)]


def _coda(path: str, tally: Tally) -> Iterator[Row]:
    rows = dict[str, Row]()
    for line, row in read_jsonl(path, _CODA):
        if row["template_group"] != 1:
            tally.left_out["row without a mask"] += 1
            continue
        label = row["label"]
        numbers = len(label) == len(_COLOURS) and all(type(n) in (int, float) for n in label)
        if not numbers or not 0 <= row["object_group"] < len(_GROUPS):
            why = f'expected a "label" of {len(_COLOURS)} numbers and an "object_group" below 3'
            raise DataError(f"{why}, got {label!r:.60}, {row['object_group']}", path, line)
        found = rows.setdefault(
            row["class_id"],
            {
                "item": str(row.get("ngram", row["class_id"])),
                "prompts": [],
                "answers": [[colour] for colour in _COLOURS],
                "values": label,
                "group": _GROUPS[row["object_group"]],
            },
        )
        if found["values"] != label:
            why = f"{row['class_id']} has another label than in its rows before"
            raise DataError(why, path, line)
        found["prompts"].append(row["text"])
    yield from rows.values()
