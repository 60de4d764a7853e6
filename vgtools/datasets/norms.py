"""Values and classes of words, for `vg measure`: tables of norms, and WordNet's index of senses."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Literal

from vgtools.datasets.rows import Row
from vgtools.io.errors import DataError, Tally, TextStats
from vgtools.io.streams import parse_number, read_lines, read_quoted

# Files of WordNet's lexicographers, which are the supersenses, by number.
_FILES = re.findall(
    r"\S+",
    """
    adj.all adj.pert adv.all noun.Tops noun.act noun.animal noun.artifact noun.attribute noun.body
    noun.cognition noun.communication noun.event noun.feeling noun.food noun.group noun.location
    noun.motive noun.object noun.person noun.phenomenon noun.plant noun.possession noun.process
    noun.quantity noun.relation noun.shape noun.state noun.substance noun.time verb.body verb.change
    verb.cognition verb.communication verb.competition verb.consumption verb.contact verb.creation
    verb.emotion verb.motion verb.perception verb.possession verb.social verb.stative verb.weather
    adj.ppl
    """,
)
_SENSE = re.compile(r"([^\s%]+)%[1-5]:(\d\d):\d\d:[^\s:]*:[^\s:]* \d{8} \d+ (\d{1,9})", re.ASCII)


def norms(path: str, word: str | None, value: str, tally: Tally) -> Iterator[Row]:
    """Yield `{"word", "value"}` of a table with a header, its columns between tabs or commas.

    Args:
        path: the table.
        word: column of the words; None for the first.
        value: column of the values: classes if the first is not a number.
        tally: counts rows without a value, and words that came before.

    Raises:
        DataError: no such column, or none is named and the first has no name; another number of
            columns than in the header; a value that is not a finite number after numbers, or a
            number in another notation (65, with the line); most are numbers, but not the first.
    """
    stats = TextStats()
    lines = read_lines(path, stats)
    header = next(lines, "")
    separator = "\t" if "\t" in header else ","
    rows = _cells(chain([header], lines), path, separator)
    titles = next((cells for _, cells in rows), [])
    if not any(map(str.strip, titles)):
        why = "is blank" if stats.lines else "is empty"
        raise DataError(f"{why}; expected a table with a header", path, 1 if stats.lines else None)
    if word is None and not titles[0].strip():
        why = f"the first column has no name: {header:.200}; --word names the column of the words"
        raise DataError(why, path, 1)
    word = titles[0] if word is None else word
    for name in (word, value):
        if titles.count(name) != 1:
            how = "two columns" if name in titles else "no column"
            raise DataError(f"the header has {how} {name!r}: {header:.200}", path, 1)
    places = titles.index(word), titles.index(value)
    numbers: bool | None = None
    first = ""
    line = 0
    seen = dict[str, bool]()  # whether a word's value is in figures
    for line, cells in rows:
        if stats.replaced:
            why = "not UTF-8; convert the file, for example: iconv -f latin1 -t utf8"
            raise DataError(why, path, line)
        if len(cells) != len(titles):
            why = f"expected {len(titles)} columns, got {len(cells)}"
            raise DataError(why, path, line)
        name, text = (cells[place].strip() for place in places)
        name = name.lower()
        if not (name and text):
            tally.left_out["row without a word or a value"] += 1
            continue
        if name in seen:
            tally.left_out["duplicate word"] += 1
            continue
        number = _number(text)
        in_figures = number is not None or _in_other_notation(text)
        if in_figures and number is None and numbers is not False:
            why = f'{text!r:.60} in "{value}" is in another notation; write numbers as 1234.5'
            raise DataError(why, path, line)
        seen[name] = in_figures
        first = first or text
        numbers = number is not None if numbers is None else numbers
        if numbers and number is None:
            why = f'{text!r:.60} in "{value}"; expected a finite number'
            raise DataError(why, path, line)
        yield {"word": name, "value": number if numbers else text}
    if not line:
        raise DataError("holds no rows after its header", path)
    if not numbers and 2 * sum(seen.values()) > len(seen):
        why = f"most values are numbers, but the first is {first!r:.60}; remove its row"
        raise DataError(f'"{value}": {why}', path)


def _cells(lines: Iterator[str], path: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each line's number and its cells.

    Between tabs, a quotation mark may be a word, or part of one: a cell is quoted if all of it is.
    Two of them are a word as well, but an empty cell in a table whose header is quoted whole.
    """
    if separator == ",":
        yield from read_quoted(lines, path)
        return
    empty = ""
    for number, line in enumerate(lines, 1):
        cells = line.split(separator)
        if number == 1 and all(map(_QUOTED.fullmatch, cells)):
            empty = '""'
        yield number, ["" if cell == empty else _unquoted(cell) for cell in cells]


def _unquoted(cell: str) -> str:
    quoted = _QUOTED.fullmatch(cell)
    return quoted[1].replace('""', '"') if quoted and quoted[1] else cell


_QUOTED = re.compile('"((?:[^"]|"")*)"')


def _number(text: str) -> float | None:
    value = parse_number(text)
    return value if value is not None and math.isfinite(value) else None


# Numbers with marks between their thousands; with a single point, as in 1.234, it is a decimal.
_GROUPED = re.compile(
    r"[+\-\u2212]?"
    r"(?:\d{1,3}(?:[_'\u2019\s]\d{3})+(?:[.,]\d+)?|\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?)"
    r"\s?%?"
)


def _in_other_notation(text: str) -> bool:
    """Return whether a text is a number that `_number` does not take: 4,85, 1 000, 50%, 0x10."""
    if re.fullmatch("0[xX][0-9a-fA-F]+", text) or _GROUPED.fullmatch(text):
        return True
    with contextlib.suppress(ValueError):
        # Python takes all digits of Unicode.
        plain = text.replace(",", "").replace("\u2212", "-").removesuffix("%")
        return "_" not in text and math.isfinite(float(plain))
    return False


def wordnet(
    path: str, classes: Literal["supersense", "pos"], least: int, share: float, tally: Tally
) -> Iterator[Row]:
    """Yield `{"word", "value"}` with the class in which a word is used nearly always.

    Args:
        path: `index.sense` of WordNet 3, which has the uses of each sense in tagged texts.
        classes: WordNet's supersenses of nouns and verbs (noun.animal, …), or parts of speech.
        least: uses that a word must have.
        share: the least share of its uses that are of the class.
        tally: counts the other words, for example expressions of several words.

    Raises:
        DataError: it cannot be read, or a line is not of its form (65).

    Source: Fellbaum 1998; the manual page senseidx(5WN); Ciaramita & Johnson 2003 (supersenses).
    """
    uses = dict[str, Counter[str]]()
    for line, text in enumerate(read_lines(path), 1):
        match = _SENSE.fullmatch(text)
        if match is None or int(match[2]) >= len(_FILES):
            why = f"expected a line of WordNet's index.sense, got {text!r:.80}"
            raise DataError(why, path, line)
        name = _FILES[int(match[2])]
        name = name if classes == "supersense" else name.partition(".")[0]
        uses.setdefault(match[1], Counter())[name] += int(match[3])
    if not uses:
        raise DataError("is empty; expected WordNet's index.sense", path)
    for word, counts in uses.items():
        name, most = counts.most_common(1)[0]
        if not re.fullmatch("[a-z]+", word):
            tally.left_out["word with other characters than a to z"] += 1
        elif counts.total() < least:
            tally.left_out[f"word with fewer than {least} uses"] += 1
        elif most < share * counts.total():
            tally.left_out["word with uses of several classes"] += 1
        elif classes == "supersense" and name[0] == "a":
            tally.left_out["adjective or adverb"] += 1
        else:
            yield {"word": word, "value": name}
