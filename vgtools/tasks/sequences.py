"""Token sequences: the texts of examples on their way to a network.

Batches count in *units*: a sentence or pair, the C choices of a question, or one window of a long
context.

Axes: U units, S sequences (C per unit for choices, else one), T tokens of all sequences together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.tasks.examples import Example
from vgtools.tasks.table import Task
from vgtools.text.tokens import tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHUNK = 4096  # examples tokenised at a time


@dataclass(frozen=True)
class Encoding:
    """How examples become token ids."""

    tokenizer: Tokenizer  # padding and truncation off
    max_length: int  # with special tokens; longer pairs lose tokens of the longer text first
    stride: int | None = None  # span: tokens from one window of a long context to the next
    learn: bool = False  # every unit gets a label, questions without a findable answer are left out
    segments: bool = True  # the encoder marks the second text by its segment number
    file: str | None = None  # where the examples are from, named in errors


class SpecialTokens(NamedTuple):
    """The special tokens around one text and around two."""

    single: tuple[list[int], list[int]]  # before, after
    pair: tuple[list[int], list[int], list[int]]  # before, between, after
    segments: bool  # the second text of a pair has another segment number


def special_tokens(tokenizer: Tokenizer, segments: bool = True) -> SpecialTokens:
    """Return the special tokens that a tokenizer puts around texts; arguments as `Encoding`."""
    one = tokenizer.encode("a")
    two = tokenizer.encode("a", "b")
    parts: tuple[list[int], list[int], list[int]] = ([], [], [])
    place = 0
    for token, sequence in zip(two.ids, two.sequence_ids, strict=True):
        if sequence is None:
            parts[place].append(token)
        else:
            place = sequence + 1
    inner = [i for i, sequence in enumerate(one.sequence_ids) if sequence is not None]
    inner = inner or [len(one.ids)]
    single = (one.ids[: inner[0]], one.ids[inner[-1] + 1 :])
    return SpecialTokens(single, parts, segments and max(two.type_ids) > 0)


@dataclass(frozen=True)
class TaskInputs:
    """Examples as token ids, special tokens included."""

    ids: Array  # (T,) int32
    starts: Array  # (S + 1,) where each sequence starts
    second: Array  # (S,) tokens before the second text (segment number 1); else the length
    each: int  # sequences per unit
    examples: Array  # (U,) the number of each unit's example
    labels: Array | None  # (U,) classes, choices or scores; (U, 2) first and last answer token
    spans: Array | None = None  # (T, 2) characters under each token, of answers
    cut: int = 0  # examples that are not read in full
    unlearnable: int = 0  # examples left out of training: their answer cannot be found

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def lengths(self) -> Array:
        """Return (U,) the tokens of each unit's longest sequence."""
        return np.asarray(np.diff(self.starts).reshape(-1, self.each).max(1))

    @property
    def by_token(self) -> bool:
        """Return whether outputs are per token."""
        return self.spans is not None

    def weight(self, units: Array) -> float:
        """Return the number that the loss of these units is divided by."""
        return len(units)

    def targets(self, units: Array) -> Array | None:
        """Return the labels of these units."""
        return None if self.labels is None else self.labels[units]

    def report(self, max_length: int) -> Iterator[str]:
        """Yield the lines for the user about examples that are not read in full."""
        if self.cut:
            yield f"{self.cut} examples are longer than {max_length} tokens and are cut"


@dataclass(frozen=True)
class InputsWithImages:
    """Examples as token ids, with images that a system adds."""

    text: TaskInputs  # their tokens; for phrase grounding `Captions`

    def __len__(self) -> int:
        return len(self.text)

    @property
    def lengths(self) -> Array:
        """(U,) tokens of each unit."""
        return self.text.lengths

    @property
    def ids(self) -> Array:
        """All tokens."""
        return self.text.ids

    @property
    def cut(self) -> int:
        """Examples that are not read in full."""
        return self.text.cut


@dataclass(frozen=True)
class InputsWithRows(InputsWithImages):
    """Examples as token ids, and the images that were found for each."""

    images: Array  # (E, K) rows of image features, best first, -1 for none

    @property
    def unlearnable(self) -> int:
        """Examples that nothing can be learned from."""
        return self.text.unlearnable

    def of(self, units: Array) -> Array:
        """Return (B, K) the images of units."""
        return np.asarray(self.images[self.text.examples[units]])

    def report(self, max_length: int) -> Iterator[str]:
        """Yield the lines for the user."""
        yield from self.text.report(max_length)
        alone = int((self.images < 0).all(1).sum()) if self.images.shape[1] else 0
        if alone:
            yield f"{alone} of {len(self.images)} texts have no image"


class SequenceBuilder:
    """Collects sequences of one text, or of a pair, as flat arrays.

    Raises:
        DataError: `max_length` leaves no room for text.
    """

    def __init__(self, how: Encoding, pair: bool) -> None:
        self.special = special_tokens(how.tokenizer, how.segments)
        count = sum(map(len, self.special.pair if pair else self.special.single))
        if how.max_length < count + (2 if pair else 1):
            why = f"--max-length {how.max_length}: {count} tokens are special tokens, no text fits"
            raise DataError(why, code=Exit.CONFIG)
        self.room = how.max_length - count  # tokens of text that fit
        self.ids = list[Array]()
        self.second = list[int]()
        self.lengths = list[int]()

    def add(self, first: Array, second: Array | None) -> int:
        """Add one text or two; return the place of the second text (of the first, if alone)."""
        if second is None:
            before, after = self.special.single
            row = [*before, *first.tolist(), *after]
            begin = len(before)
        else:
            before, between, after = self.special.pair
            head = [*before, *first.tolist(), *between]
            row = [*head, *second.tolist(), *after]
            begin = len(head)
        self.ids.append(np.array(row, np.int32))
        self.lengths.append(len(row))
        self.second.append(begin if second is not None and self.special.segments else len(row))
        return begin

    def arrays(self) -> tuple[Array, Array, Array]:
        """Return `ids`, `starts` and `second` of `TaskInputs`."""
        starts = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        return np.concatenate(self.ids), starts, np.array(self.second)


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts fit.

    The longer text loses one token at a time, the second if they are equal.

    Source: BERT's released code, `_truncate_seq_pair`.
    """
    if first + second <= room:
        return first, second
    # Taking one token at a time from the longer text ends either where the shorter is whole, or
    # with two halves, of which the first is the larger in an odd room.
    kept = min(first, max(room - second, room - room // 2))
    return kept, room - kept


def encode_texts(task: Task, examples: Sequence[Example], how: Encoding) -> TaskInputs:
    """Turn sentences, pairs of sentences or choices into token ids, cut to `max_length`.

    This is the `encode` of most kinds.

    Source: Devlin et al. 2019 (BERT), figure 4, and its released code.
    """
    pair = bool(task.choices) or examples[0].pair is not None
    builder = SequenceBuilder(how, pair)
    room = builder.room
    each = max(1, task.choices)
    cut = 0
    for start in range(0, len(examples), CHUNK):
        part = examples[start : start + CHUNK]
        firsts = tokenize(how.tokenizer, [e.text for e in part])
        seconds = None
        if pair:
            texts = [text for e in part for text in (e.choices or (e.pair or "",))]
            seconds = tokenize(how.tokenizer, texts)
        for i in range(len(part)):
            first = firsts.row(i)[0]
            short = False
            for j in range(i * each, (i + 1) * each):
                second = None if seconds is None else seconds.row(j)[0]
                length = 0 if second is None else len(second)
                kept, rest = longest_first(len(first), length, room)
                short |= kept < len(first) or (second is not None and rest < length)
                builder.add(first[:kept], None if second is None else second[:rest])
            cut += short
    given = [e.label for e in examples]
    labels = None
    if all(label is not None for label in given):
        labels = np.array(given, np.float32 if isinstance(given[0], float) else np.int64)
    return TaskInputs(*builder.arrays(), each, np.arange(len(examples)), labels, cut=cut)
