"""Official files of downstream tasks that hold more than the task: PDTB 2, VU Amsterdam metaphors.

Their rows are in the form that `vg finetune` reads: pairs of texts, and sentences with tags of
their words.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Tally, TextStats
from vgtools.io.streams import read_lines, read_quoted

# texts -> the characters under the common nouns of each text
FindNouns = Callable[[Sequence[str]], Iterable[Sequence[tuple[int, int]]]]

PDTB_SPLITS = {"train": range(2, 21), "dev": range(2), "test": range(21, 23)}
_PDTB = ("Relation", "Section", "ConnHeadSemClass1", "Arg1_RawText", "Arg2_RawText")
_SEQUENCE = ("sentence", "label_seq", "pos_seq")
_CORPUS = ("sentence_txt",)
_TAGS = ("literal", "metaphor")
_MARK = "M_"  # before a metaphor in the corpus file
_AT_ONCE = 256  # sentences per call of a tagger


def pdtb(path: str | Path, tally: Tally, split: str | None = None) -> Iterator[Row]:
    """Yield the implicit relations of PDTB 2: `sentence1`, `sentence2`, `label`, `split`.

    Args:
        path: pdtb2.csv, the common table of the corpus, columns in any order.
        tally: counts other relations, those without a sense of level 2, and sections in no split.
        split: train, dev or test; None for all.

    Raises:
        DataError: a column is missing, a row is broken, or a section is not a number.

    Source: Sileo 2021, section 4.2 ("level 2 implicit relations"); sections 2-20, 0-1 and 21-22,
        the usual split of implicit relations, which the paper does not name.
    """
    for line, row in _records(path, (_PDTB,), tally.text):
        if row["Relation"] != "Implicit":
            tally.left_out["relation that is not implicit"] += 1
            continue
        levels = row["ConnHeadSemClass1"].split(".")
        if len(levels) < 2:
            tally.left_out["relation without a sense of level 2"] += 1
            continue
        if not row["Section"].isdecimal():
            why = f'{row["Section"]!r:.60} in "Section"; expected a number, 0 to 24'
            raise DataError(why, path, line)
        section = int(row["Section"])
        found = next((name for name, some in PDTB_SPLITS.items() if section in some), None)
        if found is None or split not in (None, found):
            tally.left_out["relation of another section"] += 1
            continue
        pair = {"sentence1": row["Arg1_RawText"], "sentence2": row["Arg2_RawText"]}
        texts = {key: " ".join(text.split()) for key, text in pair.items()}
        yield {**texts, "label": ".".join(levels[:2]), "split": found}


def metaphors(path: str | Path, tally: Tally, find_nouns: FindNouns) -> Iterator[Row]:
    """Yield the sentences of VUA that have a noun: `text`, and `tags`, one per word.

    Words are between blanks. A noun is `literal` or `metaphor`, any other word null.

    Args:
        path: VUA_seq_formatted_*.csv, which has parts of speech, or vuamc_corpus_*.csv, in which
            `M_` precedes a metaphor.
        tally: counts sentences without a noun.
        find_nouns: finds the nouns of the second kind of file.

    Raises:
        DataError: neither kind of file, or lists of unequal lengths; with the line.

    Source: Sileo 2021, section 4.2 (VUAN: "we kept only the nouns").
    """
    for text, nouns, metaphor in _sentences(path, find_nouns, tally.text):
        if not any(nouns):
            tally.left_out["sentence without a noun"] += 1
            continue
        pairs = zip(nouns, metaphor, strict=True)
        yield {"text": text, "tags": [_TAGS[label] if noun else None for noun, label in pairs]}


def _sentences(
    path: str | Path, find_nouns: FindNouns, stats: TextStats
) -> Iterator[tuple[str, list[bool], list[bool]]]:
    """Yield sentences, and for each word whether it is a noun and whether it is a metaphor."""
    records = _records(path, (_SEQUENCE, _CORPUS), stats)
    while batch := list(islice(records, _AT_ONCE)):
        if "pos_seq" in batch[0][1]:
            for line, row in batch:
                words = row["sentence"].split(" ")
                labels = _list(row, "label_seq", (0, 1), len(words), path, line)
                parts = _list(row, "pos_seq", None, len(words), path, line)
                yield row["sentence"], [part == "NOUN" for part in parts], list(map(bool, labels))
            continue
        marked = [row["sentence_txt"].split(" ") for _, row in batch]
        texts = [" ".join(word.replace(_MARK, "") for word in words) for words in marked]
        for text, words, spans in zip(texts, marked, find_nouns(texts), strict=True):
            yield text, _words_under(text, spans), [_MARK in word for word in words]


def _words_under(text: str, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Return for each word whether its last character is in a span, as the head `density` is in
    `high-density`.
    """
    inside = {place for start, end in spans for place in range(start, end)}
    found = list[bool]()
    end = -1
    for word in text.split(" "):
        end += len(word) + 1
        found.append(end - 1 in inside)
    return found


def _list(
    row: dict[str, str],
    column: str,
    allowed: Sequence[object] | None,
    count: int,
    path: str | Path,
    line: int,
) -> list[object]:
    """Return a cell that holds a list with one item per word, as Python writes it."""
    try:
        # `literal_eval` runs no code: a cell of a downloaded file is not trusted.
        items = ast.literal_eval(row[column])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        items = None
    if not isinstance(items, list) or (allowed and any(item not in allowed for item in items)):
        what = "0 and 1" if allowed else "parts of speech"
        why = f'{row[column]!r:.60} in "{column}"; expected a list of {what}'
        raise DataError(why, path, line)
    if len(items) != count:
        why = f'"{column}" has {len(items)} items, but the sentence has {count} words'
        raise DataError(why, path, line)
    return items


def _records(
    path: str | Path, forms: Sequence[tuple[str, ...]], stats: TextStats
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, row) of a quoted table with a header that has the columns of one of the forms.

    Raises:
        DataError: the columns are not there, a row has more or fewer, or there is no row.
    """
    titles = list[str]()
    rows = 0
    for line, cells in read_quoted(read_lines(path, stats), path):
        if not titles:
            titles = cells
            if not any(set(form) <= set(titles) for form in forms):
                expected = "; or ".join(", ".join(form) for form in forms)
                header = ", ".join(titles)
                raise DataError(f"the header is {header:.120}; expected {expected}", path, line)
            continue
        if len(cells) != len(titles):
            raise DataError(f"expected {len(titles)} columns, got {len(cells)}", path, line)
        rows += 1
        yield line, dict(zip(titles, cells, strict=True))
    if not rows:
        raise DataError("holds no rows", path)
