"""Prompts with a mask: does a masked language model rank answers as often as they are right?

An answer counts by its first piece, as in the papers; one with other names by all of theirs.

Axes: I items, P prompts of an item, A answers, C pieces.

Source: Zhang et al. 2022 (Visual commonsense in pretrained unimodal and multimodal models),
section 4, for the best prompt and the mean of all; Paik et al. 2021 (The world of an octopus),
section 4, for Kendall's correlation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.measures.evaluation import LEAST, GoldItems, Measure, content_of, numbered
from vgtools.measures.subject import Subject, unknown_id
from vgtools.tasks.metrics import kendall, spearman
from vgtools.text.tokens import tokenize

KEYS = ("item", "prompts", "answers", "values")
MASK = "[MASK]"
_STATISTICS = {"Spearman": spearman, "Kendall": kendall}


@dataclass
class Prompts:
    """Items with prompts and answers.

    Args:
        name: their file.
        keys: I names.
        prompts: per item its P prompts, each with one MASK.
        answers: per item its A answers, each with all of its names.
        values: per item how often each answer is right: (A,).
        groups: I names, or none.
    """

    name: str
    keys: Sequence[str]
    prompts: Sequence[Sequence[str]]
    answers: Sequence[Sequence[Sequence[str]]]
    values: Sequence[Array]
    groups: Sequence[str] = ()
    _last: tuple[tuple[str, str], Array] | None = field(default=None, repr=False)

    @property
    def content(self) -> str:
        """The sha256 of the items."""
        return content_of(self.prompts, self.answers, *self.values)

    def scores(self, subject: Subject) -> Array | None:
        """Return log-probabilities (I, P, A), each prompt's up to a number that all answers share.

        0 beyond an item's own prompts and answers; NaN where the encoder does not know the first
        piece of an answer, or the prompt has more tokens than it takes.
        """
        if subject.cloze is None:
            return None
        key = (subject.ref, subject.fingerprint)
        if self._last is None or self._last[0] != key:
            self._last = key, self._asked(subject)
        return self._last[1]

    def _asked(self, subject: Subject) -> Array:
        from vgtools.models.cloze import Cloze

        model = subject.cloze
        assert model is not None
        tokenizer = model.text.tokenizer
        names = sorted({n for own in self.answers for answer in own for n in answer})
        pieces = first_pieces(tokenizer, names)
        distinct, place = np.unique(list(pieces.values()), return_inverse=True)
        column = dict(zip(pieces, place.tolist(), strict=True))
        mask = str(tokenizer.id_to_token(model.mask))
        texts = [text.replace(MASK, mask) for own in self.prompts for text in own]
        tokens = tokenize(tokenizer, texts)
        lengths = np.diff(tokens.starts)
        at = np.flatnonzero(tokens.ids == model.mask)
        masks = np.bincount(np.repeat(np.arange(len(texts)), lengths)[at], minlength=len(texts))
        if (masks != 1).any():  # the encoder's own mark, for example, next to the file's
            odd = int((masks != 1).argmax())
            why = f"the prompt {texts[odd]!r:.80} has {masks[odd]} masks for {subject.ref}"
            raise DataError(f"{why}, expected one", self.name)
        kept = lengths <= model.text.max_tokens
        copies = np.where(kept, lengths, 0)
        source = np.flatnonzero(np.repeat(kept, lengths))
        starts = np.concatenate([[0], np.cumsum(copies)])
        hidden = tokens.ids[source] == model.mask
        cloze = Cloze(hidden, source, starts, np.flatnonzero(hidden))
        logits = model.scores(tokens.ids, cloze, distinct)[at]
        logits[:, distinct == unknown_id(tokenizer)] = np.nan
        size = max(map(len, self.prompts)), max(map(len, self.answers))
        found = np.zeros((len(self.keys), *size))
        row = 0
        for item, (prompts, answers) in enumerate(zip(self.prompts, self.answers, strict=True)):
            own = logits[row : row + len(prompts)]
            row += len(prompts)
            for number, answer in enumerate(answers):
                columns = sorted({column[name] for name in answer})
                found[item, : len(prompts), number] = np.logaddexp.reduce(own[:, columns], 1)
        return found


def first_pieces(tokenizer: Any, names: Sequence[str]) -> dict[str, int]:
    """Return the first piece of each name, as it is inside a text: after a blank.

    Deviation: the papers' code takes the piece at the beginning of a text, which byte-level BPE
        never has inside one.
    """
    tokens = tokenize(tokenizer, [f" {name}" for name in names])
    found = dict[str, int]()
    for number, name in enumerate(names):
        ids, spans = tokens.row(number)
        pieces = ids[spans[:, 1] > spans[:, 0]]
        if not len(pieces):
            raise DataError(f"the answer {name!r:.60} has no token; leave it out")
        found[name] = int(pieces[0])
    return found


class RankedAnswers(Measure):
    """Correlation of each item's values with the scores of its answers.

    Args:
        prompts: the items.
        statistic: Spearman or Kendall.
        best: take the prompt in which it is highest, an upper bound; else the mean of all prompts.
    """

    alone = True

    def __init__(self, prompts: Prompts, statistic: str, best: bool) -> None:
        self._prompts = prompts
        self._statistic = _STATISTICS[statistic]
        self._best = best
        self.items = GoldItems(
            name=f"{prompts.name} {statistic}, {'best prompt' if best else 'all prompts'}",
            kind="prompts",
            statistic="mean",
            keys=prompts.keys,
            gold=np.ones(len(prompts.keys)),
            groups=prompts.groups,
            content=prompts.content,
        )

    def ask(self, subject: Subject) -> Array | None:
        """Return the scores of answers: (I, P, A)."""
        return self._prompts.scores(subject)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return the correlation of each item."""
        found = np.full(len(known), np.nan)
        for item in np.flatnonzero(known).tolist():
            gold = self._prompts.values[item]
            own = answers[item, : len(self._prompts.prompts[item]), : len(gold)]
            rows = own if self._best else [own.mean(0)]
            found[item] = max(float(self._statistic(gold, row)) for row in rows)
        return found


class ChosenAnswers(Measure):
    """Two answers per item: is the right answer likelier, by the mean of all prompts?

    Args:
        prompts: items with two answers each.
    """

    alone = True

    def __init__(self, prompts: Prompts) -> None:
        self._prompts = prompts
        self.items = GoldItems(
            name=prompts.name,
            kind="prompts",
            statistic="accuracy",
            keys=prompts.keys,
            gold=np.array([np.argmax(own) for own in prompts.values], float),
            groups=prompts.groups,
            content=prompts.content,
        )

    def ask(self, subject: Subject) -> Array | None:
        """Return the scores of answers: (I, P, 2)."""
        return self._prompts.scores(subject)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return the place of the likelier answer; if both are equal, the wrong answer's."""
        ahead = answers.sum(1) @ [-1, 1]
        return np.where(known, np.where(ahead == 0, 1 - self.items.gold, ahead > 0), np.nan)


def read_prompts(path: str) -> list[Measure]:
    """Read rows of `vg prepare prompts`.

    Raises:
        DataError: it cannot be read, a row is of another form (65, file and line), there are
            fewer than three, or all have two answers and one's are as often right (65, file and
            line).
    """
    rows = list[dict[str, Any]]()
    tied: tuple[int, Any] | None = None  # the first of two answers that are as often right
    for line, row in read_jsonl(path, {"item": str, "prompts": list, "answers": list}):
        _check(row, path, line)
        rows.append(row)
        if tied is None and len(set(row["values"])) == 1:
            tied = line, row["values"]
    if len(rows) < LEAST:
        raise DataError(f"has {len(rows)} items; {LEAST} or more are needed", path)
    groups = [str(row.get("group", "")) for row in rows]
    prompts = Prompts(
        os.path.basename(path),
        numbered(row["item"] for row in rows),
        [row["prompts"] for row in rows],
        [row["answers"] for row in rows],
        [np.array(row["values"], float) for row in rows],
        groups if any(groups) else (),
    )
    if all(len(own) == 2 for own in prompts.answers):
        if tied is not None:
            line, values = tied
            why = f'neither of two answers is right: "values" is {values!r:.60}'
            raise DataError(f"{why}; leave the row out", path, line)
        return [ChosenAnswers(prompts)]
    forms = (("Spearman", True), ("Kendall", True), ("Spearman", False))
    return [RankedAnswers(prompts, *form) for form in forms]


def _check(row: dict[str, Any], path: str, line: int) -> None:
    values = row.get("values")
    prompts = row["prompts"]
    answers = row["answers"]
    marked = all(isinstance(text, str) and text.count(MASK) == 1 for text in prompts)
    if not (prompts and marked):
        why = f'"prompts" must be texts with one {MASK} each, got {prompts!r:.60}'
        raise DataError(why, path, line)
    named = all(isinstance(own, list) and own for own in answers) and all(
        isinstance(name, str) and name.strip() for own in answers for name in own
    )
    numbers = isinstance(values, list) and all(type(v) in (int, float) for v in values)
    if not (named and numbers and len(answers) == len(values or ()) > 1):
        why = '"answers" must be two or more lists of words, "values" a number for each'
        raise DataError(f"{why}, got {answers!r:.60} and {values!r:.60}", path, line)
