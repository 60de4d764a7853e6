"""What stands between a task's examples and a network: token ids on the way in, answers on the way out.

A *unit* is what a batch counts: a sentence or pair, the C choices of a question, or one window of a context (SQuAD).

Axes: U units, S sequences (C a unit for choices, else one), T tokens of all of them, C classes or choices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vgtools.io import DataError, Exit
from vgtools.predictions import prediction_row
from vgtools.tasks import Example, Task
from vgtools.text import tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Array = np.ndarray[Any, Any]

QUESTION = 64  # tokens of a question that are read, as in BERT's released code
ANSWER = 30  # most tokens of an answer, likewise
_CHUNK = 4096  # examples tokenised at a time


# ----------------------------------------------------------------------------------------------------------- rows to tokens


class Frame(NamedTuple):
    """The special tokens around one text and around two."""

    alone: tuple[list[int], list[int]]
    pair: tuple[list[int], list[int], list[int]]
    segments: bool  # the second text of a pair is marked by another segment number


def special_frame(tokenizer: Tokenizer, segments: bool = True) -> Frame:
    """Return the special tokens that a tokenizer puts around one text and around two.

    Args:
        tokenizer: padding and truncation off.
        segments: the encoder tells the second text by its segment number.
    """
    one, two = tokenizer.encode("a"), tokenizer.encode("a", "b")
    parts: list[list[int]] = [[], [], []]
    place = 0
    for token, sequence in zip(two.ids, two.sequence_ids, strict=True):
        if sequence is None:
            parts[place].append(token)
        else:
            place = sequence + 1
    inner = [i for i, sequence in enumerate(one.sequence_ids) if sequence is not None] or [len(one.ids)]
    alone = (one.ids[: inner[0]], one.ids[inner[-1] + 1 :])
    return Frame(alone, (parts[0], parts[1], parts[2]), segments and max(two.type_ids) > 0)


@dataclass(frozen=True)
class Inputs:
    """Examples as token ids, special tokens included."""

    ids: Array  # (T,) int32
    starts: Array  # (S + 1,) where each sequence begins
    second: Array  # (S,) tokens before the second text, which has segment number 1; the length where nothing has
    each: int  # sequences a unit
    examples: Array  # (U,) the number of each unit's example
    labels: Array | None  # (U,) classes, choices or scores; (U, 2) first and last token of the answer, 0 0 for none
    spans: Array | None  # (T, 2) SQuAD: characters of the context under each token, -1 elsewhere
    cut: int = 0  # examples of which not all is read
    unlearnable: int = 0  # questions that were left out: their answer stands nowhere in the context
    begins: Array | None = None  # (U,) SQuAD: the token of the context that each window begins with

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def lengths(self) -> Array:
        """Return (U,) the tokens of each unit's longest sequence."""
        return np.asarray(np.diff(self.starts).reshape(-1, self.each).max(1))

    def report(self, max_length: int) -> Iterator[str]:
        """Yield what to tell the user about examples that are not read in full."""
        if self.cut:
            what = (
                f"questions are longer than {QUESTION} tokens"
                if self.spans is not None
                else f"examples are longer than {max_length} tokens"
            )
            yield f"{self.cut} {what} and are cut"
        if self.unlearnable:
            yield f"{self.unlearnable} questions are left out: their answer stands nowhere in the context"


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts fit: the longer one loses a token at a time, the second if they are equal.

    Source: BERT's released code, `_truncate_seq_pair`.
    """
    if first + second <= room:
        return first, second
    kept = min(first, max(room - second, room - room // 2))
    return kept, room - kept


class _Builder:
    """Collects sequences."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.ids, self.spans = list[Array](), list[Array]()
        self.second, self.lengths, self.begins = list[int](), list[int](), list[int]()

    def add(self, first: Array, second: Array | None, spans: Array | None = None) -> int:
        """Add one text or two; return where the second one begins."""
        if second is None:
            before, behind = self.frame.alone
            row, begin = [*before, *first.tolist(), *behind], len(before)
        else:
            before, between, behind = self.frame.pair
            head = [*before, *first.tolist(), *between]
            row, begin = [*head, *second.tolist(), *behind], len(head)
        self.ids.append(np.array(row, np.int32))
        self.lengths.append(len(row))
        self.second.append(begin if second is not None and self.frame.segments else len(row))
        if spans is not None:
            placed = np.full((len(row), 2), -1, np.int32)
            placed[begin : begin + len(spans)] = spans
            self.spans.append(placed)
        return begin

    def build(self, each: int, examples: Sequence[int], labels: Array | None, cut: int, unlearnable: int = 0) -> Inputs:
        starts = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        spans = np.concatenate(self.spans) if self.spans else None
        return Inputs(
            np.concatenate(self.ids), starts, np.array(self.second), each, np.array(examples), labels, spans, cut,
            unlearnable, np.array(self.begins, np.int64) if spans is not None else None,
        )  # fmt: skip


def encode(
    task: Task,
    examples: Sequence[Example],
    tokenizer: Tokenizer,
    *,
    max_length: int,
    stride: int | None = None,
    learn: bool = False,
    segments: bool = True,
    file: str | None = None,
) -> Inputs:
    """Turn examples into token ids.

    Args:
        task: what they are of.
        examples: at least one.
        tokenizer: padding and truncation off.
        max_length: most tokens of a sequence, special ones counted; longer pairs lose tokens of the longer text first.
        stride: SQuAD, tokens from one window of a long context to the next.
        learn: to train on: every unit gets a label, questions without a findable answer are left out.
        segments: the encoder tells the second text by its segment number.
        file: where they are from, named in errors.

    Raises:
        DataError: no token of the texts fits, or nothing can be learnt.

    Source: Devlin et al. 2019 (BERT), figure 4, and its released code.
    """
    frame = special_frame(tokenizer, segments)
    alone = not task.choices and examples[0].pair is None
    extra = sum(map(len, frame.alone if alone else frame.pair))
    if max_length < extra + (1 if alone else 2):
        raise DataError(f"--max-length {max_length}: {extra} tokens are special ones, nothing else fits", code=Exit.CONFIG)
    builder = _Builder(frame)
    if task.kind == "span":
        return _windows(examples, tokenizer, builder, max_length - extra, stride or max_length, learn, file)
    each, cut = max(1, task.choices), 0
    for start in range(0, len(examples), _CHUNK):
        part = examples[start : start + _CHUNK]
        firsts = tokenize(tokenizer, [e.text for e in part])
        seconds = None if alone else tokenize(tokenizer, [text for e in part for text in (e.choices or (e.pair or "",))])
        for i in range(len(part)):
            first, short = firsts.row(i)[0], False
            for j in range(i * each, (i + 1) * each):
                second = seconds.row(j)[0] if seconds is not None else None
                room = max_length - extra
                size, rest = longest_first(len(first), 0 if second is None else len(second), room)
                short |= size < len(first) or (second is not None and rest < len(second))
                builder.add(first[:size], None if second is None else second[:rest])
            cut += short
    given = [e.label for e in examples]
    labels = None
    if all(value is not None for value in given):
        labels = np.array(given, np.float32 if task.kind == "regress" else np.int64)
    return builder.build(each, range(len(examples)), labels, cut)


def _windows(
    examples: Sequence[Example], tokenizer: Tokenizer, builder: _Builder, room: int, stride: int, learn: bool, file: str | None
) -> Inputs:
    """Cut contexts into windows that overlap; the whole question stands before each.

    An answer that a window does not hold in full is none there: the first token, [CLS], is its beginning and its end.
    """
    if not builder.frame.pair[0]:
        raise DataError("the tokenizer puts no token before a pair, which would stand for no answer", code=Exit.CONFIG)
    numbers, labels, cut, unlearnable = list[int](), list[tuple[int, int]](), 0, 0
    for start in range(0, len(examples), _CHUNK):
        part = examples[start : start + _CHUNK]
        row_of = {text: i for i, text in enumerate(dict.fromkeys(e.context for e in part))}  # many questions share a context
        contexts, questions = tokenize(tokenizer, list(row_of)), tokenize(tokenizer, [e.question for e in part])
        for i, example in enumerate(part):
            answer = next((a for a in example.answers if a.start >= 0), None)
            if learn and answer is None and not example.is_impossible:
                unlearnable += 1
                continue
            question = questions.row(i)[0]
            cut += len(question) > min(QUESTION, room // 2)
            question = question[: min(QUESTION, room // 2)]
            ids, spans = contexts.row(row_of[example.context])
            first, last = _tokens_of(spans, answer.start, answer.start + len(answer.text)) if answer else (0, -1)
            size, at = room - len(question), 0
            while True:
                end = min(at + size, len(ids))
                begin = builder.add(question, ids[at:end], spans[at:end])
                builder.begins.append(at)
                numbers.append(start + i)
                inside = at <= first <= last < end
                labels.append((begin + first - at, begin + last - at) if inside else (0, 0))
                if end == len(ids):
                    break
                at += min(stride, size)
    if not numbers:
        raise DataError("nothing can be learnt from it: no answer stands in its context", file)
    return builder.build(1, numbers, np.array(labels, np.int64) if learn else None, cut, unlearnable)


def _tokens_of(spans: Array, start: int, end: int) -> tuple[int, int]:
    """Return the first and the last of the tokens that touch some characters, or 0, -1."""
    touch = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > start))
    return (int(touch[0]), int(touch[-1])) if len(touch) else (0, -1)


# ---------------------------------------------------------------------------------------------------------------------- answers


def predictions(
    task: Task, examples: Sequence[Example], inputs: Inputs, outputs: Array, threshold: float = 0.0
) -> list[dict[str, Any]]:
    """Return the rows of `predictions.jsonl`, in the order of the examples.

    Args:
        task: the task.
        examples: what was asked.
        inputs: their tokens, in full (not those to learn from).
        outputs: as `predict` returns them.
        threshold: SQuAD 2.0, withhold an answer that scores this much less than no answer; `answer` keeps it.
    """
    if task.kind == "span":
        return list(_answers(task, examples, inputs, outputs, threshold))
    if task.kind == "regress":
        return [prediction_row(task, e, float(x)) for e, x in zip(examples, outputs[:, 0], strict=True)]
    best = outputs.argmax(1)
    sure = 1 / np.exp(outputs - outputs.max(1, keepdims=True)).sum(1)  # softmax of the best
    return [
        prediction_row(task, e, b, score=round(s, 6), logits=[round(x, 6) for x in row])
        for e, b, s, row in zip(examples, best.tolist(), sure.tolist(), outputs.tolist(), strict=True)
    ]


class Span(NamedTuple):
    """An answer: characters of the context, and its score."""

    start: int
    end: int
    score: float


def _answers(
    task: Task, examples: Sequence[Example], inputs: Inputs, outputs: Array, threshold: float
) -> Iterator[dict[str, Any]]:
    edges = np.searchsorted(inputs.examples, np.arange(len(examples) + 1))
    labelled = any(e.answers or e.is_impossible for e in examples)
    for number, example in enumerate(examples):
        best, none = best_span(inputs, outputs, range(edges[number], edges[number + 1]))
        answer = example.context[best.start : best.end] if best else ""
        difference = round(none - best.score, 6) if best else float(_SURE)
        if task.name == "squad-2.0":
            said = "" if difference > threshold else answer
            row = prediction_row(task, example, said, no_answer=difference) | {"answer": answer}
        else:
            row = prediction_row(task, example, answer, score=round(best.score, 6) if best else None)
        yield row if labelled else {key: value for key, value in row.items() if key != "label"}


_SURE = 1e4  # how much better no answer is where a context has no token


def best_span(inputs: Inputs, outputs: Array, units: range) -> tuple[Span | None, float]:
    """Return the best answer over the windows of a question, and the score of no answer, the lowest of any window.

    A span's score is the sum of its ends'. A token that several windows hold can begin an answer only in the one in which it
    has the most context.

    Source: BERT's released code (run_squad.py).
    Deviation: all spans of at most 30 tokens are compared, there the pairs of the 20 best beginnings and ends of a window.
    """
    assert inputs.spans is not None
    assert inputs.begins is not None
    places = [np.arange(inputs.starts[u], inputs.starts[u + 1]) for u in units]
    none = min(float(outputs[p[0]].sum()) for p in places)
    places = [p[inputs.spans[p, 0] >= 0] for p in places]  # (L,) tokens of the context, each window
    begins = inputs.begins[units.start : units.stop]
    ends = begins + [len(p) for p in places]
    token = np.arange(max(ends))
    context = np.minimum(token - begins[:, None], ends[:, None] - 1 - token) + 0.01 * (ends - begins)[:, None]
    context[(token < begins[:, None]) | (token >= ends[:, None])] = -np.inf
    home = context.argmax(0) if len(token) else token  # the window of each token
    best: Span | None = None
    for window, place in enumerate(places):
        own = home[begins[window] : ends[window]] == window
        if not own.any():
            continue
        first = np.where(own, outputs[place, 0], -np.inf)
        last = np.concatenate([outputs[place, 1], np.full(ANSWER - 1, -np.inf, np.float32)])
        sums = first[:, None] + np.lib.stride_tricks.sliding_window_view(last, ANSWER)  # (L, ANSWER)
        i, j = divmod(int(sums.argmax()), ANSWER)
        if best is None or sums[i, j] > best.score:
            best = Span(int(inputs.spans[place[i], 0]), int(inputs.spans[place[i + j], 1]), float(sums[i, j]))
    return best, none
