"""The attention of the two streams of a run to one another: table 9 as numbers, with intervals.

Each cross-modal layer has two attentions across: student on teacher, and teacher on student. Their
rows are compared within a text: attention that depends on the token differs from row to row,
attention to "common trivial words" does not.

Axes: A heads, T student tokens, U teacher tokens, Q rows and K columns of a map (T and U, or U and
T), N texts.

Source: Hsu et al. 2022, section 5 and table 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, cast

import numpy as np
import torch

from vgtools.analysis.bootstrap import draws, with_interval
from vgtools.io.arrays import Array
from vgtools.io.process import Progress
from vgtools.io.streams import read_texts
from vgtools.models.clip import block_states, clip_blocks, ends_of, most_blocks, stack_blocks
from vgtools.models.encoder import Encoder
from vgtools.systems.xdbert.model import CrossLayer, XDBertRun
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.sequences import longest_first, special_tokens
from vgtools.text.tokens import Tokens, content_mask, tokenize

LONGEST = 128  # student tokens of a text, special ones included, as for GLUE (appendix B)
SHARES = ("marks", "punctuation", "stop_words", "same")
MEASURES = ("entropy", "diversity", *SHARES)
DIRECTIONS = ("student", "teacher")  # which stream looks


@dataclass(frozen=True)
class Side:
    """The tokens of a text or a pair that one stream reads, marks included."""

    ids: Array  # (n,) int64
    part: Array  # (n,) int64, the text of each token; -1: a mark such as [CLS] or START
    spans: Array  # (n, 2) the characters of each token
    kinds: dict[str, Array]  # marks, punctuation, stop_words: (n,) bool
    blocks: tuple[Array, ...] = ()  # the teacher's ids, block by block
    second: int = 0  # the student's tokens before the second text


@dataclass(frozen=True)
class MapExample:
    """The maps of one text, student on teacher, to be shown."""

    texts: tuple[str, ...]
    rows: list[str]  # the student's tokens
    columns: list[str]  # the teacher's
    maps: list[Array]  # the map of each layer, (A, T, U)


def read_sequences(source: str) -> Iterator[tuple[str, ...]]:
    """Yield texts and pairs of texts from a file, or from `TASK=FILE`, an official file of a task.

    Raises:
        DataError: as `read_texts` or `read_examples`.
    """
    name, equals, path = source.partition("=")
    if not equals:
        yield from ((text,) for text in read_texts(source) if text.strip())
        return
    for example in read_examples(name, path, unlabelled=True):
        second = example.choices[:1] or (() if example.pair is None else (example.pair,))
        yield (example.text, *second)


def _join(
    texts: Sequence[str], tokens: Tokens, frame: Sequence[int | tuple[int, int, int]], **more: Any
) -> Side:
    """Return a side: marks, given as ids, between pieces (text, from, to) of the texts' tokens."""
    places = list[Array]()
    marks = list[Array]()
    for piece in frame:
        if isinstance(piece, int):
            places.append(np.array([-1]))
            marks.append(np.array([piece]))
        else:
            text, start, end = piece
            places.append(np.arange(start, end) + tokens.starts[text])
            marks.append(np.zeros(end - start, np.int64))
    at = np.concatenate(places)  # -1, the last entry of the tables below, is a mark
    own = at >= 0
    text_of = np.append(np.repeat(np.arange(len(texts)), np.diff(tokens.starts)), -1)
    letters = [
        any(map(str.isalnum, texts[i][a:b]))
        for i, (a, b) in zip(text_of[:-1].tolist(), tokens.spans.tolist(), strict=True)
    ]
    word = np.array([*letters, True], bool)
    content = np.append(content_mask(texts, tokens.spans, tokens.starts), True)
    return Side(
        ids=np.where(own, np.append(tokens.ids, 0)[at], np.concatenate(marks)).astype(np.int64),
        part=text_of[at],
        spans=np.vstack([tokens.spans, np.zeros((1, 2), np.int64)])[at],
        kinds={
            "marks": ~own,
            "punctuation": ~word[at],
            "stop_words": word[at] & ~content[at],
        },
        **more,
    )


def read_student(texts: Sequence[str], encoder: Encoder, longest: int = LONGEST) -> Side:
    """Return the student's tokens; longer texts lose tokens as in fine-tuning."""
    tokens = tokenize(encoder.tokenizer, texts)
    special = special_tokens(encoder.tokenizer)
    marks = special.pair if len(texts) > 1 else special.single
    sizes = np.diff(tokens.starts).tolist()
    most = encoder.max_tokens + len(encoder.prefix) + len(encoder.suffix)
    room = min(longest, most) - sum(map(len, marks))
    kept = [min(sizes[0], room)]
    if len(texts) > 1:
        kept = list(longest_first(sizes[0], sizes[1], room))
    frame: list[int | tuple[int, int, int]] = [*marks[0]]
    for number, (size, after) in enumerate(zip(kept, marks[1:], strict=True)):
        frame += [(number, 0, size), *after]
    first = len(marks[0]) + kept[0] + (len(marks[1]) if len(texts) > 1 else 0)
    total = sum(kept) + sum(map(len, marks))
    return _join(texts, tokens, frame, second=first if len(texts) > 1 else total)


def read_teacher(texts: Sequence[str], teacher: Encoder, longest: int = LONGEST) -> Side:
    """Return the teacher's tokens: each text whole, in blocks of its own."""
    tokens = tokenize(teacher.tokenizer, texts)
    most = most_blocks(longest)
    room = teacher.max_tokens
    start, end = ends_of(teacher)
    frame = list[int | tuple[int, int, int]]()
    blocks = list[Array]()
    for number in range(len(texts)):
        found = clip_blocks(tokens.row(number)[0], most, (start, end), room)
        blocks += found
        for i, block in enumerate(found):
            frame += [start, (number, i * room, i * room + len(block) - 2), end]
    return _join(texts, tokens, frame, blocks=tuple(blocks))


def same_characters(student: Side, teacher: Side) -> Array:
    """Return which tokens are under the same characters of the same text, (T, U) bool."""
    ours = student.spans[:, None]
    theirs = teacher.spans[None]
    start = np.maximum(ours[..., 0], theirs[..., 0])
    end = np.minimum(ours[..., 1], theirs[..., 1])
    part = student.part[:, None]
    same: Array = (part == teacher.part) & (part >= 0) & (start < end)
    return same


# ----------------------------------------------------------------------------------------- measures


def measure(weights: Array, shares: dict[str, Array]) -> dict[str, Array]:
    """Return measures of the rows of a text's maps, per head.

    Args:
        weights: (A, Q, K); rows sum to 1.
        shares: name -> (K,) or (Q, K) bool, columns of interest.

    Returns:
        Name -> (A,): `entropy` of a row, in nats, mean over rows; `diversity`, the Jensen-Shannon
        divergence of the rows, in nats: 0 if all are the same; the share of the weights on each
        kind of column, means over rows, for columns that differ by row over the rows that have
        some (NaN if none has).

    Source: Hsu et al. 2022, section 5: "attends to the different tokens … more diversely".
    """
    # A divergence is a small difference of entropies, in which float32 would lose digits.
    p = weights.astype(np.float64)
    entropy = _entropy(p).mean(-1)
    found = {"entropy": entropy, "diversity": _entropy(p.mean(1)) - entropy}
    for name, columns in shares.items():
        rows = columns.any(-1) if columns.ndim == 2 else np.ones(p.shape[1], bool)
        mass = (p * columns).sum(-1)[:, rows]
        found[name] = mass.mean(-1) if rows.any() else np.full(len(p), np.nan)
    return found


def _entropy(p: Array) -> Array:
    # 0 log 0 counts as 0: the logarithm of 1 is taken there.
    logs = np.log(np.where(p > 0, p, 1.0))
    total: Array = -(p * logs).sum(-1)
    return total


@dataclass
class CrossProbe:
    """The attention across of a run's layers over texts.

    Source: Hsu et al. 2022, section 5 and table 9.
    """

    run: XDBertRun
    samples: int = 1000  # resamplings of texts for the intervals
    seed: int = 0
    batch_size: int = 32
    longest: int = LONGEST
    progress: Progress | None = None
    texts: int = 0
    # (layer, direction) -> the measures of each text, (measures, A)
    _found: dict[tuple[int, str], list[Array]] = field(default_factory=dict)
    # direction -> share of columns of each kind, for each text: the result of even attention
    _even: dict[str, list[Array]] = field(default_factory=dict)
    examples: list[MapExample] = field(default_factory=list)

    def run_on(self, sequences: Iterable[tuple[str, ...]], examples: int = 0) -> None:
        """Measure texts and pairs; keep the maps of the first ones, to be shown."""
        source = iter(sequences)
        while group := list(islice(source, self.batch_size)):
            students = [read_student(texts, self.run.student, self.longest) for texts in group]
            teachers = [read_teacher(texts, self.run.teacher, self.longest) for texts in group]
            maps = list(self.maps(students, teachers))
            for i, sides in enumerate(zip(students, teachers, strict=True)):
                own = [[w[i] for w in layer] for layer in maps]
                self._add(*sides, own)
                if len(self.examples) < examples:
                    self.examples.append(self._example(group[i], *sides, own))
            self.texts += len(group)
            if self.progress is not None:
                self.progress.advance(len(group))

    @torch.inference_mode()
    def maps(
        self, students: Sequence[Side], teachers: Sequence[Side]
    ) -> Iterator[tuple[Array, Array]]:
        """Yield the weights of each layer: (B, A, T, U) and (B, A', U, T)."""
        network = self.run.student.model
        longest = max(len(side.ids) for side in students)
        ids = np.full((len(students), longest), int(network.config.pad_token_id or 0))
        second = np.zeros_like(ids)
        for row, side in enumerate(students):
            ids[row, : len(side.ids)] = side.ids
            second[row, side.second : len(side.ids)] = 1
        sizes = torch.tensor([len(side.ids) for side in students])
        mask = (torch.arange(longest) < sizes[:, None]).to(network.device)
        given = {"input_ids": torch.from_numpy(ids), "attention_mask": mask.long()}
        if int(getattr(network.config, "type_vocab_size", 0) or 0) > 1:
            given["token_type_ids"] = torch.from_numpy(second)
        given = {name: table.to(network.device) for name, table in given.items()}
        states = network(**given).last_hidden_state
        tables = map(torch.from_numpy, stack_blocks([side.blocks for side in teachers]))
        blocks, lengths = (table.to(network.device) for table in tables)
        seen, seen_mask = block_states(self.run.teacher.model, blocks, lengths)
        for layer in self.run.cross.layers:
            after, weights = cast(CrossLayer, layer).maps(states, mask, seen, seen_mask)
            states, seen = after
            yield weights[0].float().cpu().numpy(), weights[1].float().cpu().numpy()

    def _add(self, student: Side, teacher: Side, maps: Sequence[Sequence[Array]]) -> None:
        same = same_characters(student, teacher)
        size = (len(student.ids), len(teacher.ids))
        for direction, columns, own in (("student", teacher, same), ("teacher", student, same.T)):
            shares = {**columns.kinds, "same": own}
            rows, cols = size if direction == "student" else size[::-1]
            flat = np.full((1, rows, cols), 1 / cols)
            even = measure(flat, shares)
            self._even.setdefault(direction, []).append(np.array([even[s][0] for s in SHARES]))
            for layer, both in enumerate(maps):
                weights = both[DIRECTIONS.index(direction)][:, :rows, :cols]
                found = measure(weights, shares)
                table = np.stack([found[name] for name in MEASURES])
                self._found.setdefault((layer, direction), []).append(table)

    def _example(
        self, texts: tuple[str, ...], student: Side, teacher: Side, maps: Sequence[Sequence[Array]]
    ) -> MapExample:
        names = []
        for side, encoder in ((student, self.run.student), (teacher, self.run.teacher)):
            names.append([str(encoder.tokenizer.id_to_token(i)) for i in side.ids.tolist()])
        rows, columns = names
        own = [both[0][:, : len(rows), : len(columns)] for both in maps]
        return MapExample(texts, rows, columns, own)

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield a record per head, one per layer (the mean of its heads), and a summary, last.

        `direction` names the stream that looks. Each measure has the ends of its 95 % interval over
        texts; `even` is the result of the same weight on every column.
        """
        drawn = draws(self.texts, self.samples, self.seed)
        for (layer, direction), found in sorted(self._found.items()):
            table = np.stack(found)  # (N, measures, A)
            place = {"layer": layer + 1, "direction": direction}
            for head in range(table.shape[2]):
                values = _intervals(table[..., head], drawn)
                yield {"kind": "cross-head", **place, "head": head + 1, **values}
        for (layer, direction), found in sorted(self._found.items()):
            values = _intervals(np.stack(found).mean(-1), drawn)
            place = {"layer": layer + 1, "direction": direction}
            yield {"kind": "cross-layer", **place, **values, "even": self._evenly(direction)}
        yield {"kind": "cross-summary", "texts": self.texts, "layers": len(self.run.cross.layers)}

    def _evenly(self, direction: str) -> dict[str, float]:
        table = np.stack(self._even[direction])
        return {name: _mean(table[:, i]) for i, name in enumerate(SHARES)}


def _mean(column: Array) -> float:
    known = column[~np.isnan(column)]
    return float(known.mean()) if len(known) else 0.0


def _intervals(table: Array, drawn: Array) -> dict[str, float]:
    """Return the mean of each measure over texts with the ends of its 95 % interval.

    Args:
        table: (N, measures), NaN where a text has nothing to measure.
        drawn: (samples, N) how often each text is drawn.
    """
    values: dict[str, float] = {}
    for name, column in zip(MEASURES, table.T, strict=True):
        known = ~np.isnan(column)
        counts = drawn[:, known].sum(1)
        some = counts > 0  # a sample may draw no text that has the measure
        means = drawn[some][:, known] @ column[known] / counts[some]
        values |= with_interval(name, _mean(column), means if some.any() else np.zeros(1))
    return values
