"""Answers to questions as spans of a context (SQuAD), read in windows that overlap."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.tasks.examples import (
    Answer,
    Example,
    ReadStats,
    describe_forms,
    json_field,
    json_rows,
    own_rows,
)
from vgtools.tasks.predictions import Items, Joined, NetworkOutputs, make_row, score_items
from vgtools.tasks.sequences import CHUNK, Encoding, SequenceBuilder, TaskInputs
from vgtools.tasks.table import Task
from vgtools.text.tokens import tokenize

if TYPE_CHECKING:
    from torch import Tensor

QUESTION = 64  # tokens of a question that are read, as in BERT's released code
ANSWER = 30  # most tokens of an answer, likewise
_SURE = 1e4  # the score of no answer where a context has no token


# ----------------------------------------------------------------------------------------- reading


def read(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int | None, Example]]:
    """Yield (no line, example) of an official SQuAD file, one article in memory at a time.

    A table of one's own has a question and a context in each row, with its line.
    """
    if task.own is not None:
        yield from _read_own(task, path, unlabelled, stats)
        return
    for at, article in json_rows(path, "data", "articles", describe_forms(task)):
        for p, paragraph in enumerate(json_field(article, "paragraphs", list, at, path)):
            where = f"{at}.paragraphs[{p}]"
            context = json_field(paragraph, "context", str, where, path)
            for q, row in enumerate(json_field(paragraph, "qas", list, where, path)):
                place = f"{where}.qas[{q}]"
                yield None, _question(task, row, context, unlabelled, place, path, stats)


def _read_own(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, Example]]:
    """Yield (line, question) of a table.

    An answer is a text, a list of texts, or the object that data hubs have for SQuAD. Where it has
    no start, it is the first occurrence of the text.
    """
    assert task.own is not None
    for line, row in own_rows(task, path, unlabelled, stats):
        question, context = row.texts
        given = row.label if isinstance(row.label, dict) else {"text": row.label}
        texts = given.get("text") or []
        texts = [texts] if isinstance(texts, str) else texts
        starts = given.get("answer_start")
        if not isinstance(texts, list) or not all(isinstance(t, str) and t for t in texts):
            expected = "expected an answer, a list of answers, or text and answer_start"
            raise DataError(f'"{task.own.label}": {expected}, got {given!r:.80}', path, line)
        starts = [context.find(text) for text in texts] if starts is None else starts
        if not isinstance(starts, list) or len(starts) != len(texts):
            why = f'"answer_start" must have {len(texts)} numbers, got {starts!r:.60}'
            raise DataError(why, path, line)
        pairs = zip(texts, starts, strict=True)
        found = [{"text": text, "answer_start": start} for text, start in pairs]
        lost = stats.lost
        answers = tuple(_answer(one, context, f"line {line}", path, stats) for one in found)
        stats.first_lost = stats.first_lost or (line if stats.lost > lost else None)
        impossible = not answers and not unlabelled
        yield line, Example(row.id, question, context, None, (), answers, impossible)


def _question(
    task: Task,
    row: Any,
    context: str,
    unlabelled: bool,
    where: str,
    path: str | Path,
    stats: ReadStats,
) -> Example:
    name = json_field(row, "id", str, where, path)
    question = json_field(row, "question", str, where, path)
    required = task.unanswerable and not unlabelled
    impossible = row.get("is_impossible", None if required else False)
    if not isinstance(impossible, bool):
        why = f'{where}: "is_impossible" must be true or false, got {impossible!r:.40}'
        raise DataError(f"{why}; is this a SQuAD 1.1 file?", path)
    if impossible and not task.unanswerable:
        why = f"{where}: the question is unanswerable; this is a SQuAD 2.0 file, use squad-2.0"
        raise DataError(why, path)
    given = []
    if not unlabelled or "answers" in row:
        given = json_field(row, "answers", list, where, path)
    if bool(given) == impossible and not (unlabelled and not given):
        flag = str(impossible).lower()
        raise DataError(f"{where}: {len(given)} answers, but is_impossible is {flag}", path)
    answers = tuple(
        _answer(answer, context, f"{where}.answers[{i}]", path, stats)
        for i, answer in enumerate(given)
    )
    return Example(name, question, context, answers=answers, is_impossible=impossible)


def _answer(row: Any, context: str, where: str, path: str | Path, stats: ReadStats) -> Answer:
    """Return an answer whose span is true: as given, else the nearest occurrence of its text."""
    text = json_field(row, "text", str, where, path)
    start = json_field(row, "answer_start", int, where, path)
    if not text or (start >= 0 and context.startswith(text, start)):
        return Answer(text, start if text else -1)
    places = [match.start() for match in re.finditer(f"(?={re.escape(text)})", context)]
    if not places:
        stats.lost += 1
        return Answer(text, -1)
    stats.moved += 1
    return Answer(text, min(places, key=lambda place: abs(place - start)))


def gold(task: Task, example: Example) -> list[str]:
    """Return the answer texts, none for an unanswerable question."""
    return [answer.text for answer in example.answers]


# ----------------------------------------------------------------------------------------- windows


@dataclass(frozen=True, kw_only=True)
class Windows(TaskInputs):
    """Windows of contexts as token ids: a unit is a window, an example a question."""

    begins: Array  # (U,) the token of the context that each window starts with

    def report(self, max_length: int) -> Iterator[str]:
        """Yield the lines for the user about questions that are not read in full."""
        if self.cut:
            yield f"{self.cut} questions are longer than {QUESTION} tokens and are cut"
        if self.unlearnable:
            why = "their answer does not occur in the context"
            yield f"{self.unlearnable} questions are left out: {why}"


def encode(task: Task, examples: Sequence[Example], how: Encoding) -> Windows:
    """Cut contexts into windows that overlap; the whole question precedes each.

    In a window that does not hold an answer in full, the first token, [CLS], is the answer's
    beginning and its end.

    Raises:
        DataError: as `vgtools.tasks.dispatch.encode`.

    Source: Devlin et al. 2019 (BERT), section 4.2, and its released code.
    """
    builder = SequenceBuilder(how, pair=True)
    if not builder.special.pair[0]:
        why = "the tokenizer puts no token before a pair, which would mean no answer"
        raise DataError(why, code=Exit.CONFIG)
    placed = list[Array]()  # per sequence: (T, 2) characters under each token
    begins = list[int]()
    numbers = list[int]()
    labels = list[tuple[int, int]]()
    cut = unlearnable = 0
    for start in range(0, len(examples), CHUNK):
        part = examples[start : start + CHUNK]
        # Many questions share a context.
        row_of = {text: i for i, text in enumerate(dict.fromkeys(e.context for e in part))}
        contexts = tokenize(how.tokenizer, list(row_of))
        questions = tokenize(how.tokenizer, [e.question for e in part])
        for i, example in enumerate(part):
            answer = next((a for a in example.answers if a.start >= 0), None)
            if how.learn and answer is None and not example.is_impossible:
                unlearnable += 1
                continue
            question = questions.row(i)[0]
            limit = min(QUESTION, builder.room // 2)
            cut += len(question) > limit
            question = question[:limit]
            ids, spans = contexts.row(row_of[example.context])
            first, last = _tokens_of(spans, answer)
            size = builder.room - len(question)
            for at, end in _windows(len(ids), size, how.stride or how.max_length):
                begin = builder.add(question, ids[at:end])
                under = np.full((builder.lengths[-1], 2), -1, np.int32)
                under[begin : begin + end - at] = spans[at:end]
                placed.append(under)
                begins.append(at)
                numbers.append(start + i)
                inside = at <= first <= last < end
                labels.append((begin + first - at, begin + last - at) if inside else (0, 0))
    if not numbers:
        raise DataError("nothing can be learned from it: no answer occurs in its context", how.file)
    return Windows(
        *builder.arrays(),
        1,
        np.array(numbers),
        np.array(labels, np.int64) if how.learn else None,
        np.concatenate(placed),
        cut,
        unlearnable,
        begins=np.array(begins, np.int64),
    )


def _windows(tokens: int, size: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the windows of a context, at least one."""
    begin = 0
    while begin + size < tokens:
        yield begin, begin + size
        begin += min(stride, size)
    yield begin, tokens


def _tokens_of(spans: Array, answer: Answer | None) -> tuple[int, int]:
    """Return the first and the last of the tokens that touch an answer, or 0, -1."""
    if answer is None:
        return 0, -1
    end = answer.start + len(answer.text)
    touched = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > answer.start))
    return (int(touched[0]), int(touched[-1])) if len(touched) else (0, -1)


# ---------------------------------------------------------------------------------- from a network


def head(task: Task) -> tuple[str, dict[str, Any]]:
    """Return a head with two outputs per token, how well it starts and ends the answer."""
    return "QuestionAnswering", {"num_labels": 2}


def loss(outputs: Tensor, batch: Any) -> Tensor:
    """Return the mean of both ends' cross entropies; outputs: (B, T, 2)."""
    from torch.nn import functional as F

    outputs = outputs.masked_fill(batch.mask[..., None] == 0, -1e4)
    return F.cross_entropy(outputs, batch.labels, reduction="sum") / 2


def rows(task: Task, examples: Sequence[Example], made: NetworkOutputs) -> Iterator[dict[str, Any]]:
    """Yield rows with the best answer of each question; outputs: (T, 2)."""
    edges = np.searchsorted(made.inputs.examples, np.arange(len(examples) + 1))
    labelled = any(e.answers or e.is_impossible for e in examples)
    for number, example in enumerate(examples):
        best, none = best_span(made.inputs, made.outputs, range(edges[number], edges[number + 1]))
        answer = example.context[best.start : best.end] if best else ""
        label = gold(task, example) if labelled else None
        if not task.unanswerable:
            score = round(best.score, 6) if best else None
            yield make_row(example.id, answer, label, score=score)
            continue
        difference = round(none - best.score, 6) if best else _SURE
        kept = "" if difference > made.threshold else answer
        yield make_row(example.id, kept, label, no_answer=difference) | {"answer": answer}


class Span(NamedTuple):
    """An answer: characters of the context, and its score."""

    start: int
    end: int
    score: float


def best_span(inputs: Windows, outputs: Array, units: range) -> tuple[Span | None, float]:
    """Return the best answer over the windows of a question, and the score of no answer.

    The latter is the lowest of any window. The score of a span is the sum of its ends'. A token in
    several windows can start an answer only in the window in which it has the most context.

    Source: BERT's released code (run_squad.py).
    Deviation: all spans of at most 30 tokens are compared, there the pairs of the 20 best
        beginnings and ends of a window.
    """
    assert inputs.spans is not None
    places = [np.arange(inputs.starts[u], inputs.starts[u + 1]) for u in units]
    none = min(float(outputs[p[0]].sum()) for p in places)
    places = [p[inputs.spans[p, 0] >= 0] for p in places]  # (L,) tokens of the context, per window
    begins = inputs.begins[units.start : units.stop]
    home = _home_windows(begins, begins + [len(p) for p in places])
    best: Span | None = None
    for window, place in enumerate(places):
        at_home = home[begins[window] : begins[window] + len(place)] == window
        if not at_home.any():
            continue
        first = np.where(at_home, outputs[place, 0], -np.inf)
        # Minus infinity after the window's end rules out spans that would leave the window.
        last = np.concatenate([outputs[place, 1], np.full(ANSWER - 1, -np.inf, np.float32)])
        # (L, ANSWER) scores of the spans by first token and length
        sums = first[:, None] + np.lib.stride_tricks.sliding_window_view(last, ANSWER)
        i, j = divmod(int(sums.argmax()), ANSWER)
        if best is None or sums[i, j] > best.score:
            start = int(inputs.spans[place[i], 0])
            end = int(inputs.spans[place[i + j], 1])
            best = Span(start, end, float(sums[i, j]))
    return best, none


def _home_windows(begins: Array, ends: Array) -> Array:
    """Return the window in which each token of a context has the most context."""
    token = np.arange(max(ends))
    if not len(token):
        return token
    # The context of a token is its distance to the nearer end; the length of the window breaks ties
    # with the factor of BERT's code.
    nearest_end = np.minimum(token - begins[:, None], ends[:, None] - 1 - token)
    context = nearest_end + 0.01 * (ends - begins)[:, None]
    context[(token < begins[:, None]) | (token >= ends[:, None])] = -np.inf
    return np.asarray(context.argmax(0))


# ----------------------------------------------------------------------------------------- scoring


def parse(
    task: Task, key: str, value: Any, file: str | Path | None, line: int | None
) -> str | list[str]:
    """Return an answer text, or the list of gold texts."""
    if key == "prediction":
        if not isinstance(value, str):
            raise DataError(f'"{key}" must be an answer text, got {value!r:.60}', file, line)
        return value
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f'"{key}" must be a list of answer texts, got {value!r:.60}', file, line)
    return value


def score(task: Task, joined: Joined, threshold: float | None = None) -> Items:
    """Score answers by exact match and F1, for SQuAD 2.0 as its official script does.

    Questions of SQuAD 2.0 are also scored apart, by whether there is an answer, and with the best
    threshold.
    """
    have = [row["no_answer"] for row in joined.rows if "no_answer" in row]
    if 0 < len(have) < len(joined.rows):
        why = f"{len(have)} of {len(joined.rows)} rows have no_answer; all or none must"
        raise DataError(why, joined.file)
    if threshold is not None and not (have and task.unanswerable):
        why = "a no-answer threshold needs squad-2.0 and no_answer in every row"
        raise DataError(why, joined.file, code=Exit.USAGE)
    pairs = zip(joined.predicted, joined.gold, strict=True)
    scored = np.array([squad_item(text, golds, task.unanswerable) for text, golds in pairs])
    exact, overlap = scored[:, 0], scored[:, 1]
    each = (exact + overlap) / 2
    if not task.unanswerable:
        scores = {"exact": float(exact.mean()), "f1": float(overlap.mean())}
        return score_items(joined, each, scores)
    answerable = np.array([bool(golds) for golds in joined.gold])
    answered = np.array([bool(text) for text in joined.predicted])
    no_answer = np.array(have, np.float64) if have else None
    withheld = None if no_answer is None or threshold is None else no_answer > threshold

    def kept(values: Array) -> Array:  # withholding is right where there is no answer
        return values if withheld is None else np.where(withheld, ~answerable, values).astype(float)

    found: dict[str, float] = {}
    for name, raw in (("exact", exact), ("f1", overlap)):
        found[name] = float(kept(raw).mean())
        for part, mask in (("HasAns", answerable), ("NoAns", ~answerable)):
            if mask.any():
                found[f"{part}_{name}"] = float(kept(raw)[mask].mean())
        if no_answer is not None:
            best, at = best_threshold(raw, no_answer, answerable, answered)
            found |= {f"best_{name}": best, f"best_{name}_thresh": at}
    return score_items(joined, kept(each), found)


_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise_answer(text: str) -> str:
    """Return an answer as SQuAD compares it: lower case, no ASCII punctuation, no articles.

    Source: Rajpurkar et al. 2016, section 6.1, and the official scripts (versions 1.1 and 2.0 agree
        here).
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def _overlap(answer: str, gold: str) -> float:
    """Return F1 over the words of two normalised answers."""
    words = answer.split()
    gold_words = gold.split()
    common = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * common / (len(words) + len(gold_words)) if common else 0.0


def squad_item(
    answer: str, golds: Sequence[str], unanswerable: bool = False
) -> tuple[float, float]:
    """Return exact match and F1 of one answer: the best over the gold answers.

    Args:
        answer: the predicted text, "" for none.
        golds: gold texts; empty where the question cannot be answered.
        unanswerable: score as SQuAD 2.0: gold answers that normalise to nothing are dropped; if
            none is left, only an answer that normalises to nothing is right; two empty answers
            have F1 1. In SQuAD 1.1 their F1 is 0.

    Returns:
        (exact match, F1), each in [0, 1].
    """
    text = normalise_answer(answer)
    texts = [normalise_answer(gold) for gold in golds]
    if unanswerable:
        texts = [gold for gold in texts if gold] or [""]

    def overlap(gold: str) -> float:
        if unanswerable and not (text and gold):
            return float(text == gold)
        return _overlap(text, gold)

    exact = max((float(text == gold) for gold in texts), default=0.0)
    return exact, max(map(overlap, texts), default=0.0)


def best_threshold(
    scores: Array, no_answer: Array, answerable: Array, answered: Array
) -> tuple[float, float]:
    """Return the best mean score over all no-answer thresholds, and that threshold.

    The answers of items with `no_answer` above the threshold count as withheld. The search starts
    from withholding all, lets answers in by rising `no_answer`, and keeps the first best, as the
    official script does.

    Args:
        scores: (N,) exact match or F1 with every answer given.
        no_answer: (N,) how sure the model is that there is no answer.
        answerable: (N,) bool, the question has a gold answer.
        answered: (N,) bool, the predicted answer is not "".

    Returns:
        (best mean in [0, 1], threshold; 0.0 where withholding all is best).

    Source: Rajpurkar et al. 2018; official script of version 2.0. As there, equal `no_answer`
        values are let in one by one in the order given, so that with such ties no threshold may
        reach the mean.
    """
    # Letting an answer in gains its score; for an unanswerable question it loses the point that
    # withholding has given.
    gain = np.where(answerable, scores, np.where(answered, -1.0, 0.0))
    order = np.argsort(no_answer, kind="stable")
    withheld = float(np.count_nonzero(~np.asarray(answerable, bool)))
    totals = np.cumsum(np.r_[withheld, gain[order]])
    at = int(np.argmax(totals))
    return float(totals[at] / len(scores)), float(no_answer[order[at - 1]]) if at else 0.0


def majority(task: Task, learnt: Sequence[Example]) -> str | None:
    """Return no answer, where questions may have none."""
    return "" if task.unanswerable else None
