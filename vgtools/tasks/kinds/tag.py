"""Tags of the words of a sentence: named entities, or metaphors among nouns.

Words are between blanks. A label belongs to the first token of its word; other tokens have none.
Entities are in IOB2 inside: `B-X` starts one, `I-X` continues it, `O` is outside. A long sentence
is read in windows with context, so that every word gets a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.names import is_jsonl, is_stream, is_table
from vgtools.io.streams import Line, parse_json, read_records, require
from vgtools.tasks import metrics
from vgtools.tasks.examples import (
    Example,
    ReadStats,
    class_number,
    describe_forms,
    label_name,
    own_rows,
)
from vgtools.tasks.kinds.classify import class_name, named_outputs
from vgtools.tasks.predictions import Items, Joined, NetworkOutputs, count_items, make_row
from vgtools.tasks.sequences import CHUNK, Encoding, SequenceBuilder, TaskInputs
from vgtools.tasks.table import Task
from vgtools.text.tokens import split_window, tokenize

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # label of a token that has none
_DOCUMENT = "-DOCSTART-"
_CELLS = re.compile(r"[^ \t\r\n]+")
_NUMBER = re.compile(r"\d+([-.]\d+)?")  # first column of CoNLL-U: a word, a range, an empty node
_EMPTY = "_"  # a column of CoNLL-U that is not filled in
_NO_TAG = -1  # tag of a word that is not scored


@dataclass(frozen=True, slots=True)
class TaggedExample(Example):
    """A sentence whose words are between blanks; `tags` are their classes, -1 for none."""

    tags: tuple[int, ...] = ()  # empty if the file has none

    @property
    def words(self) -> list[str]:
        """Return the words."""
        return self.text.split(" ")


# ----------------------------------------------------------------------------------------- reading


class _Sentence(NamedTuple):
    """A sentence as its file has it."""

    line: int  # its last
    text: str
    tags: Sequence[object] | None  # None where the file has none
    column: str = "tag"  # where they are, for messages
    id: str = ""
    lines: Sequence[int] | None = None  # where each tag is, if each has its own

    def placed(self) -> Iterator[tuple[object, int]]:
        """Yield each tag with its line."""
        return zip(self.tags or (), self.lines or repeat(self.line), strict=False)


def read(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, Example]]:
    """Yield (line, example) of rows `text`, `tags`, of a table of one's own, or of a CoNLL file."""
    for number, sentence in enumerate(_sentences(task, path, unlabelled, stats)):
        column = sentence.column
        tags = [_class(task, column, name, path, line) for name, line in sentence.placed()]
        if has_entities(task):
            _count_schemes(_names(task, tags), stats)
        found = _iob2(task, tags)
        yield sentence.line, TaggedExample(sentence.id or str(number), sentence.text, tags=found)


def labels(task: Task, example: TaggedExample) -> Iterator[str]:
    """Yield the names of the tags of an example that are scored."""
    return (str(class_name(task, tag)) for tag in example.tags if tag != _NO_TAG)


def tag_lines(task: Task, path: str) -> dict[str, int]:
    """Return the tags of a training file, which the task does not know yet, with first lines."""
    lines = dict[str, int]()
    for sentence in _sentences(task, path, False, ReadStats(learn=True)):
        for tag, line in sentence.placed():
            if tag is not None:
                lines.setdefault(label_name(sentence.column, tag, path, line), line)
    return lines


# A list as Python or numpy prints it into a table, "['O' 'B-X']": its parts are not tags.
_PRINTED = re.compile(r"\[(?:['\"].*|[^\[\]]*\s[^\[\]]*)\]", re.DOTALL)


def _sentences(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[_Sentence]:
    if task.own is not None and (is_table(path) or is_jsonl(path) or is_stream(path)):
        yield from _read_own(task, path, unlabelled, stats)
        return
    lines = read_records(path, stats.text)
    first = next(lines, None)
    if first is None:
        raise DataError(f"is empty; expected {describe_forms(task, unlabelled)}", path)
    numbered = enumerate(chain([first], lines), 1)
    if task.own is None and (isinstance(first, dict) or first.lstrip().startswith("{")):
        yield from _read_rows(numbered, path, unlabelled, stats)
    else:
        columns = cast(Iterator[tuple[int, str]], numbered)
        yield from _read_columns(task, columns, path, unlabelled, stats)


def _read_own(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[_Sentence]:
    assert task.own is not None
    for line, row in own_rows(task, path, unlabelled, stats):
        if isinstance(row.label, str) and _PRINTED.fullmatch(row.label.strip()):
            why = f'"{task.own.label}": expected tags between blanks, got a printed list'
            way_out = "write tables with lists as .parquet or .jsonl"
            raise DataError(f"{why}, {row.label!r:.60}; {way_out}", path, line)
        tags = row.label.split() if isinstance(row.label, str) else row.label
        sentence = _Sentence(line, row.texts[0], tags, task.own.label, row.id)
        yield _checked(sentence, task.own.texts[0], path)


def _read_rows(
    lines: Iterator[tuple[int, Line]], path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[_Sentence]:
    for line, text in lines:
        row = parse_json(text, path, line)
        stats.check(row, path, line)
        require(row, {"text": str}, path, line)
        if not unlabelled or row.get("tags") is not None:
            require(row, {"tags": list}, path, line)
        name = str(row.get("id", ""))
        sentence = _Sentence(line, row["text"], row.get("tags"), "tags", name)
        yield _checked(sentence, "text", path)


def _checked(sentence: _Sentence, column: str, path: str | Path) -> _Sentence:
    """Return a sentence that has a tag for each word, or none."""
    tags = sentence.tags
    if tags is not None and not isinstance(tags, list):
        expected = f'"{sentence.column}" must be a list of tags, or tags between blanks'
        raise DataError(f"{expected}, got {tags!r:.60}", path, sentence.line)
    count = len(sentence.text.split(" "))
    if tags is not None and len(tags) != count:
        why = f'"{sentence.column}" has {len(tags)} items, but "{column}" has {count} words'
        raise DataError(f"{why}, with one blank between them", path, sentence.line)
    return sentence


def _read_columns(
    task: Task,
    lines: Iterator[tuple[int, str]],
    path: str | Path,
    unlabelled: bool,
    stats: ReadStats,
) -> Iterator[_Sentence]:
    """Yield the sentences of a CoNLL file: word first, tag last, an empty line after a sentence.

    In a file of one's own, columns have numbers from 1. In CoNLL-U (ten columns between tabs)
    comments, ranges (3-4) and empty nodes (3.1) are left out, and a blank in a word is made one
    that does not break it.

    Source: Tjong Kim Sang and De Meulder 2003, section 2.1; Universal Dependencies v2, CoNLL-U.
    """
    at, label = _numbers(task, path)
    lines, is_conllu = _of_conllu(lines) if at > 0 else (lines, False)
    least = 1 if unlabelled else max(label + 1, at + 1 + (label < 0))
    width = 0
    is_blind: bool | None = None
    for is_sentence, part in groupby(lines, key=lambda line: bool(_CELLS.search(line[1]))):
        words = list[str]()
        tags = list[str]()
        places = list[int]()
        for line, text in part if is_sentence else ():
            # Not `split()`: a word may contain other kinds of white space.
            cells = _cells_of_conllu(text) if is_conllu else _CELLS.findall(text)
            if not cells:
                continue
            width = width or len(cells)
            if len(cells) != width or width < least or 1 < width <= at:
                expected = f"expected {max(width, least)} columns, the word first and its tag last"
                raise DataError(f"{expected}, got {len(cells)}", path, line)
            if cells[0] == _DOCUMENT:
                stats.documents += 1
                continue
            word = cells[at if width > 1 else 0]
            if not word:
                raise DataError(f"column {at + 1} is empty; expected a word", path, line)
            words.append(word)
            tags.append(cells[label] if label < width else _EMPTY)
            places.append(line)
        if words:
            place = width - 1 if label < 0 else label
            has_tags = place < width and place != min(at, width - 1)
            if is_conllu and unlabelled:  # as the trees of shared tasks are given out
                is_blind = set(tags) == {_EMPTY} if is_blind is None else is_blind
                has_tags = not is_blind
                _check_blind(zip(tags, places, strict=True) if is_blind else (), path)
            text = " ".join(words)
            yield _Sentence(line, text, tags if has_tags else None, lines=places)


def _check_blind(tags: Iterable[tuple[str, int]], path: str | Path) -> None:
    """Refuse a tag with its line in a file whose first sentence has none."""
    for tag, line in tags:
        if tag != _EMPTY:
            why = f"has the tag {tag!r:.40}; the first sentence of the file has none"
            raise DataError(f"{why}; give all words their tags, or none", path, line)


def _of_conllu(lines: Iterator[tuple[int, str]]) -> tuple[Iterator[tuple[int, str]], bool]:
    """Return the lines again, and whether the first after comments is of CoNLL-U."""
    head = list[tuple[int, str]]()
    for line in lines:
        head.append(line)
        if line[1].strip() and not line[1].startswith("#"):
            break
    cells = head[-1][1].split("\t") if head else []
    return chain(head, lines), len(cells) == 10 and _NUMBER.fullmatch(cells[0]) is not None


def _cells_of_conllu(text: str) -> list[str]:
    """Return the columns of a line; [] for a comment, a range and an empty node."""
    cells = text.rstrip("\r\n").replace(" ", "\u00a0").split("\t")
    is_word = cells[0].isdecimal() or not _NUMBER.fullmatch(cells[0])
    return cells if is_word and not text.startswith("#") else []


def _numbers(task: Task, path: str | Path) -> tuple[int, int]:
    """Return the places of a word and of its tag in a line of a CoNLL file."""
    if task.own is None:
        return 0, -1
    given = task.own.texts[0], task.own.label
    places = [0, -1]
    for number, (name, default) in enumerate(zip(given, ("text", "tags"), strict=True)):
        if re.fullmatch(r"[1-9]\d?", name):
            places[number] = int(name) - 1
        elif name != default:
            flag = ("--text", "--label")[number]
            why = f"has columns without names: {flag} is the number of one, from 1, got {name!r}"
            raise DataError(f"{why}; or name a table .csv, .tsv, .jsonl or .parquet", path)
    if places[0] == places[1]:
        why = f"--label {given[1]} is the column of the words"
        raise DataError(f"{why}; a column has one use", path, code=Exit.USAGE)
    return places[0], places[1]


def _class(task: Task, column: str, name: object, file: str | Path | None, line: int | None) -> int:
    """Return the class of a tag, of null none."""
    return _NO_TAG if name is None else class_number(task, column, name, file, line)


def _count_schemes(tags: Sequence[str], stats: ReadStats) -> None:
    """Count entities whose first tag only IOB2, or only IOB1 would write."""
    for before, tag in pairwise(["O", *tags]):
        # Between entities of one type, both schemes write B-, which shows neither.
        if before[1:] == tag[1:]:
            continue
        stats.iob2 += tag[0] == "B"
        stats.iob1 += tag[0] == "I"


def has_entities(task: Task) -> bool:
    """Return whether tags mark entities, and not each word by itself."""
    return "f1" in task.metrics


def _iob2(task: Task, tags: Sequence[int]) -> tuple[int, ...]:
    """Return tags in IOB2; in IOB1 `B-X` only starts an entity next to another of its type."""
    if not has_entities(task):
        return tuple(tags)
    begins = {start: name for start, _, name in entities(_names(task, tags))}
    return tuple(
        task.labels.index(f"B-{begins[place]}") if place in begins else tag
        for place, tag in enumerate(tags)
    )


def entities(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return (first word, word after the last, type) of each entity.

    An `I-X` starts one if no entity of X precedes it. So IOB1 and IOB2 are read alike.

    Source: conlleval, the official script of CoNLL-2003.
    """
    found = list[tuple[int, int, str]]()
    for place, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if not kind:
            continue
        if prefix == "I" and found and found[-1][1:] == (place, kind):
            found[-1] = (found[-1][0], place + 1, kind)
        else:
            found.append((place, place + 1, kind))
    return found


def gold(task: Task, example: Example) -> list[str | int | None] | None:
    """Return the tag of each word, null for words that are not scored."""
    assert isinstance(example, TaggedExample)
    if not example.tags:
        return None
    return [None if tag == _NO_TAG else class_name(task, tag) for tag in example.tags]


# ----------------------------------------------------------------------------------------- windows


@dataclass(frozen=True, kw_only=True)
class TaggedInputs(TaskInputs):
    """Sentences as token ids: a unit is a window, `labels` (T,) belong to tokens."""

    words: Array  # (T,) the word that a token starts and whose tag is read there, -1 for none

    @property
    def by_token(self) -> bool:
        """Return that outputs are per token."""
        return True

    def weight(self, units: Array) -> float:
        """Return the number of words with a label: the loss is their mean."""
        if self.labels is None:
            return len(units)
        return float(max(1, (self._of(units, self.labels) != IGNORED).sum()))

    def targets(self, units: Array) -> Array | None:
        """Return (B, T) labels, padded."""
        if self.labels is None:
            return None
        lengths = np.diff(self.starts)[units]
        padded = np.full((len(units), int(lengths.max())), IGNORED, np.int64)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = self._of(units, self.labels)
        return padded

    def _of(self, units: Array, values: Array) -> Array:
        parts = [values[self.starts[unit] : self.starts[unit + 1]] for unit in units.tolist()]
        return np.concatenate(parts)


def encode(task: Task, examples: Sequence[Example], how: Encoding) -> TaggedInputs:
    """Turn sentences into token ids, in windows where they are long.

    Source: Devlin et al. 2019 (BERT), section 5.3: the first token of a word represents it.
    """
    builder = SequenceBuilder(how, pair=False)
    begin = len(builder.special.single[0])
    numbers = list[int]()
    words = list[Array]()
    labels = list[Array]()
    for start in range(0, len(examples), CHUNK):
        part = examples[start : start + CHUNK]
        tokens = tokenize(how.tokenizer, [e.text for e in part])
        for i, example in enumerate(part):
            assert isinstance(example, TaggedExample)
            ids, spans = tokens.row(i)
            first = _first_tokens(example.words, spans)
            tags = np.array([*example.tags, _NO_TAG])
            windows = split_window(len(ids), builder.room) or [(0, 0, 0, 0)]
            for at, end, keep, keep_end in windows:
                builder.add(ids[at:end], None)
                under = np.full(builder.lengths[-1], -1, np.int32)
                under[begin + keep - at : begin + keep_end - at] = first[keep:keep_end]
                numbers.append(start + i)
                words.append(under)
                if example.tags:
                    tag = tags[under]  # the place -1, no word, takes the last entry, `_NO_TAG`
                    labels.append(np.where(tag == _NO_TAG, IGNORED, tag))
    return TaggedInputs(
        *builder.arrays(),
        1,
        np.array(numbers),
        np.concatenate(labels) if len(labels) == len(words) else None,
        words=np.concatenate(words),
    )


def _first_tokens(words: Sequence[str], spans: Array) -> Array:
    """Return (T,) the number of the word that each token starts, -1 for none."""
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])])
    # A token may start with the blank before its word, so its last character decides.
    word = np.searchsorted(starts, spans[:, 1] - 1, side="right") - 1
    found, place = np.unique(word, return_index=True)
    first = np.full(len(spans), -1, np.int32)
    first[place] = found
    return first


# ---------------------------------------------------------------------------------------- learning


def head(task: Task) -> tuple[str, dict[str, Any]]:
    """Return a classifier of tokens over the names of the tags."""
    return "TokenClassification", named_outputs(task.labels)


def loss(outputs: Tensor, batch: Any) -> Tensor:
    """Return the cross entropy of (B, T, C) logits, over tokens with a label."""
    from torch.nn import functional as F

    flat = (outputs.flatten(0, 1), batch.labels.flatten())
    return F.cross_entropy(*flat, ignore_index=IGNORED, reduction="sum")


def rows(task: Task, examples: Sequence[Example], made: NetworkOutputs) -> Iterator[dict[str, Any]]:
    """Yield rows with the best tag of each word; null where the gold has none.

    A word without a token, of control characters for example, gets the first tag.

    Args: as `vgtools.tasks.kinds.Kind`; outputs: (T, C) logits.
    """
    best = made.outputs.argmax(1)
    windows = np.searchsorted(made.inputs.examples, np.arange(len(examples) + 1))
    edges = made.inputs.starts[windows]
    for number, example in enumerate(examples):
        assert isinstance(example, TaggedExample)
        here = slice(edges[number], edges[number + 1])
        begins = made.inputs.words[here] >= 0
        tags = np.zeros(len(example.words), np.int64)
        tags[made.inputs.words[here][begins]] = best[here][begins]
        scored = gold(task, example)
        kept = [True] * len(tags) if scored is None else [label is not None for label in scored]
        pairs = zip(tags.tolist(), kept, strict=True)
        named = [class_name(task, tag) if keep else None for tag, keep in pairs]
        yield make_row(example.id, named, scored)


# ----------------------------------------------------------------------------------------- scoring


def parse(
    task: Task, key: str, value: Any, file: str | Path | None, line: int | None
) -> tuple[int, ...] | int:
    """Return the class of each word, -1 for null; a predicted tag by itself is every word's."""
    if not isinstance(value, list):
        every = class_number(task, key, value, file, line)
        return every if key == "prediction" else (every,)
    return tuple(_class(task, key, tag, file, line) for tag in value)


def score(task: Task, joined: Joined, threshold: float | None = None) -> Items:
    """Score entities as conlleval does, or the share of words whose tag is right.

    An item is a sentence, so that the bootstrap draws the words of a sentence together.
    """
    counts = np.zeros((len(joined.ids), 3))  # right, predicted, gold
    words = np.zeros((len(joined.ids), 2))  # right, scored
    for number, name in enumerate(joined.ids):
        real = joined.gold[number]
        said = _said(joined, number)
        if len(said) != len(real) or any(
            tag == _NO_TAG for tag, label in zip(said, real, strict=True) if label != _NO_TAG
        ):
            why = f"the id {name!r:.80} has {len(real)} words; expected a tag for each with a label"
            tags = sum(tag != _NO_TAG for tag in said)
            raise DataError(f"{why}, got a list of {len(said)}, {tags} of them tags", joined.file)
        hits = [tag == label for tag, label in zip(said, real, strict=True) if label != _NO_TAG]
        words[number] = sum(hits), len(hits)
        if has_entities(task):
            found = {tuple(entity) for entity in entities(_names(task, said))}
            wanted = {tuple(entity) for entity in entities(_names(task, real))}
            counts[number] = len(found & wanted), len(found), len(wanted)
    scores = {"accuracy": float(metrics.share(words.sum(0)))}
    if not has_entities(task):
        return count_items(joined, words, metrics.share, scores)
    sums = counts.sum(0)
    scores |= {
        "precision": float(metrics.share(sums[[0, 1]])),
        "recall": float(metrics.share(sums[[0, 2]])),
        "f1": float(metrics.counted_f1(sums)),
        **_by_type(task, joined),
    }
    return count_items(joined, counts, metrics.counted_f1, scores)


def _said(joined: Joined, number: int) -> tuple[int, ...]:
    """Return the tags that are predicted for the words of a sentence."""
    said = joined.predicted[number]
    return (said,) * len(joined.gold[number]) if isinstance(said, int) else said


def _by_type(task: Task, joined: Joined) -> dict[str, float]:
    """Return the F1 of each type of entity."""
    sums = {name[2:]: np.zeros(3) for name in task.labels if name.startswith("B-")}
    for number, real in enumerate(joined.gold):
        said = _said(joined, number)
        wanted = set(entities(_names(task, real)))
        found = set(entities(_names(task, said)))
        for place, part in enumerate((found & wanted, found, wanted)):
            for _, _, kind in part:
                sums[kind][place] += 1
    return {f"f1_{kind}": float(metrics.counted_f1(counts)) for kind, counts in sums.items()}


def _names(task: Task, tags: Sequence[int]) -> list[str]:
    return ["O" if tag == _NO_TAG else task.labels[tag] for tag in tags]


def majority(task: Task, learnt: Sequence[Example]) -> int:
    """Return the most frequent tag."""
    tags = [tag for e in learnt if isinstance(e, TaggedExample) for tag in e.tags if tag >= 0]
    return int(np.bincount(tags, minlength=1).argmax())
