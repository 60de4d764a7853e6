"""The lines of a text in which words are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import islice

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, amount
from vgtools.io.streams import read_texts
from vgtools.text.tokens import word_runs

_AT_ONCE = 4096  # lines that are looked through at a time


@dataclass(frozen=True)
class Contexts:
    """Words, and the lines in which each occurs."""

    words: Sequence[str] = field(repr=False)
    texts: Sequence[str] = field(repr=False)
    places: Array = field(repr=False)  # (K, 3) text, first character and the one after the last
    rows: Array = field(repr=False)  # (K,) the word of each place


def draw(path: str, words: Sequence[str], per_word: int, seed: int) -> Contexts:
    """Draw lines for words, and return all places of each word in its own lines.

    The lines are brought into a random order, and a word takes the first in which it occurs. Each
    word so has lines drawn without replacement, and words share lines, which encoders read once.

    Args:
        path: a text or rows with "text"; only the lines drawn are kept in memory.
        words: in lower case. A word that is not one run of letters, digits and apostrophes between
            them occurs nowhere, and neither does a part of such a run.
        per_word: lines per word.
        seed: seed of the order.

    Raises:
        DataError: it cannot be read, or has none of the words (65).
    """
    row_of = {word: row for row, word in enumerate(words)}
    order = np.random.default_rng(seed)
    drawn = [list[tuple[float, int]]() for _ in words]  # per word, the line of highest place first
    kept = dict[int, str]()
    uses = Counter[int]()
    for number, (text, found) in enumerate(_lines(read_texts(path))):
        place = order.random()
        for row in {row_of[word] for word, _, _ in found if word in row_of}:
            own = drawn[row]
            if len(own) < per_word:
                heappush(own, (-place, number))
            else:
                _, out = heappushpop(own, (-place, number))
                if out == number:
                    continue
                uses[out] -= 1
                if not uses[out]:
                    del kept[out], uses[out]
            kept[number] = text
            uses[number] += 1
    if words and not kept:
        why = f"holds none of the {amount(len(words), 'word')} that are measured"
        raise DataError(f"{why}; expected a text with them", path)
    chosen = {(number, row) for row, own in enumerate(drawn) for _, number in own}
    places = list[tuple[int, int, int]]()
    rows = list[int]()
    for text_number, (number, (_, found)) in enumerate(
        zip(kept, _lines(kept.values()), strict=True)
    ):
        for word, begin, end in found:
            row = row_of.get(word, -1)
            if (number, row) in chosen:
                places.append((text_number, begin, end))
                rows.append(row)
    shaped = np.array(places, np.int64).reshape(-1, 3)
    return Contexts(words, list(kept.values()), shaped, np.array(rows, np.int64))


def _lines(texts: Iterable[str]) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """Yield texts with their words in lower case, and the first and last place of each."""
    source = iter(texts)
    while batch := list(islice(source, _AT_ONCE)):
        spans, starts = word_runs(batch)
        for number, text in enumerate(batch):
            own = spans[starts[number] : starts[number + 1]].tolist()
            yield text, [(text[a:b].lower(), a, b) for a, b in own]
