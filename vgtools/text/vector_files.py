"""Word vectors in the text form of fastText, GloVe and word2vec, and their packed form.

A line is a word and its E numbers, between spaces; a first line of two integers gives the number of
words and of numbers per word. The packed form is `X.npy`, `X.ids` and `X.json`, which
`vgtools.text.word_vectors` opens. The folder of skip-thoughts, an array and its words, is read as
well. Other binary forms are not: some of them are pickles.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import orjson

from vgtools.io.arrays import Array
from vgtools.io.artifact import LARGEST
from vgtools.io.errors import DataError, TextStats, input_changed
from vgtools.io.files import open_npy
from vgtools.io.inputs import Inputs
from vgtools.io.names import bare
from vgtools.io.output import Output
from vgtools.io.streams import read_lines
from vgtools.text.word_vectors import BUILTIN, KIND, open_word_vectors

_BLOCK = 1 << 18  # code points of the lines that are read together: 5 MB while they are parsed
_STEP = 1 << 28  # bytes of vectors between commits
SKIP_THOUGHTS = ("dictionary.txt", "utable.npy")  # row i of the array is the word of line i
_BINARY = {".bin", ".model", ".kv", ".pkl", ".pickle", ".pt", ".pth", ".npy", ".npz", ".magnitude"}


class Block(NamedTuple):
    """Consecutive lines."""

    words: list[str]
    vectors: Array  # (n, E) float32, finite
    line: int  # number of the first line
    damaged: list[int]  # places of lines with bytes that are not UTF-8


class VectorSource(Protocol):
    """Word vectors that are read in blocks, whatever their form."""

    path: str
    width: int  # numbers per word, E

    def blocks(self) -> Iterator[Block]:
        """Yield all words in blocks, which are the same in each run."""
        ...


class VectorFile:
    """Word vectors in text form, read once.

    Args:
        path: a file, `.gz`, `.zst`, or `-`.
        limit: words to read.

    Attributes:
        header: words, and numbers per word, by the first line; None without such a line.
        width: numbers per word, E, by the first word.
        stats: statistics of the lines read so far.

    Raises:
        DataError: it is missing (66); binary, empty, or its first line is not a word and numbers
            (65).
    """

    def __init__(self, path: str, limit: int | None = None) -> None:
        if Path(bare(path)).suffix in _BINARY:
            why = "is a binary form, which may run code when read; take the text form (.vec, .txt)"
            raise DataError(why, path)
        self.path = path
        self.stats = TextStats()
        self.header: tuple[int, int] | None = None
        lines = read_lines(path, self.stats)
        first = next(lines, "")
        cells = first.split()
        if len(cells) == 2 and all(cell.isdecimal() for cell in cells):
            self.header = (int(cells[0]), int(cells[1]))
            first = next(lines, "")
        if not self.stats.lines or (self.header and self.stats.lines == 1):
            raise DataError("holds no word vector", path)
        self.width = len(first.rstrip().split(" ")) - 1
        if self.width < 1:
            raise self._fault(first, self.stats.lines)
        self._first = self.stats.lines
        self._lines = islice(chain([first], lines), limit)

    def blocks(self) -> Iterator[Block]:
        """Yield all lines in blocks, which are the same in each run.

        Raises:
            DataError: a line is not a word and E finite numbers (65), with its number.
        """
        number = self._first
        replaced = 0
        lines: list[str] = []
        damaged: list[int] = []
        size = 0
        for line in self._lines:
            if self.stats.replaced > replaced:
                damaged.append(len(lines))
                replaced = self.stats.replaced
            lines.append(line)
            size += len(line)
            if size >= _BLOCK:
                yield self._block(lines, number, damaged)
                number += len(lines)
                lines = []
                damaged = []
                size = 0
        if lines:
            yield self._block(lines, number, damaged)

    def _block(self, lines: list[str], first: int, damaged: list[int]) -> Block:
        words: list[str] = []
        rests: list[str] = []
        for number, line in enumerate(lines, first):
            line = line.rstrip()
            word, _, rest = line.partition(" ")
            if rest.count(" ") != self.width - 1:  # a word with spaces, or a fault
                word, *cells = line.rsplit(" ", self.width)
                rest = " ".join(cells)
                if len(cells) != self.width:
                    raise self._fault(line, number)
            words.append(word)
            rests.append(rest)
        vectors = _numbers(" ".join(rests), len(rests) * self.width)
        if vectors is None:
            for number, rest in enumerate(rests, first):
                if _numbers(rest, self.width) is None:
                    raise self._fault(lines[number - first], number)
            raise self._fault(lines[0], first)
        return Block(words, vectors.reshape(-1, self.width), first, damaged)

    def _fault(self, line: str, number: int) -> DataError:
        width = self.width if self.width > 0 else "its"
        expected = f"a word and {width} finite numbers between spaces"
        return DataError(f"expected {expected}, got {line!r:.60}", self.path, number)


def _numbers(text: str, count: int) -> Array | None:
    """Return the numbers of a text between single spaces, or None if one is beyond 1e9 or none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # The block is parsed as one text, because single lines take longer. numpy skips runs of
        # spaces, which may hide a missing number, so that a text with such a run is refused first.
        try:
            numbers = _json_numbers(text)
            if numbers is None and "  " not in text:
                numbers = np.fromstring(text, np.float32, sep=" ")
        except (ValueError, Warning):  # text that is not a number: a warning before numpy 3
            return None
    if numbers is None or numbers.shape != (count,) or not (np.abs(numbers) <= LARGEST).all():
        return None
    return numbers


def _json_numbers(text: str) -> Array | None:
    """Return numbers that JSON can hold, in half the time; None where there are others (`.5`)."""
    if any(sign in text for sign in 'rl"'):  # true, false, null and strings are not numbers
        return None
    try:
        return np.array(orjson.loads(f"[{text.replace(' ', ',')}]"), np.float32)
    except orjson.JSONDecodeError:
        return None


class VectorTable:
    """Word vectors in an array, and their words in the lines of a file next to it.

    Args:
        path: the user's name for them.
        words: V words.
        array: (V, E) numbers, memory-mapped.

    Raises:
        DataError: the numbers of words and of vectors differ (65).
    """

    def __init__(self, path: str, words: Sequence[str], array: Array) -> None:
        if len(words) != len(array):
            why = f"has {len(words)} words for {len(array)} vectors; both must belong together"
            raise DataError(why, path)
        self.path = path
        self.width = int(array.shape[1])
        self._words = words
        self._array = array

    def blocks(self) -> Iterator[Block]:
        """Yield all words in blocks.

        Raises:
            DataError: a vector is NaN, infinite, or has a number beyond 1e9 (65).
        """
        size = max(1, _BLOCK // self.width)
        for start in range(0, len(self._words), size):
            vectors = np.asarray(self._array[start : start + size], np.float32)
            bad = ~(np.abs(vectors) <= LARGEST).all(1)
            if bad.any():
                word = self._words[start + int(bad.argmax())]
                why = f"the vector of {word!r:.60} is NaN, infinite or beyond all word vectors"
                raise DataError(why, self.path)
            yield Block(list(self._words[start : start + size]), vectors, start + 1, [])


def vector_files(ref: str) -> list[str] | None:
    """Return the files of word vectors, to be hashed; None if `ref` does not look like any.

    Args:
        ref: a folder with the dictionary.txt and utable.npy of skip-thoughts; `X.npy` of vg prepare
            vectors; `builtin:glove-50d`; or a text form, `.vec`, `.txt`, `.gz`, `.zst`.
    """
    if ref in BUILTIN:
        return []
    if all((Path(ref) / name).is_file() for name in SKIP_THOUGHTS):
        return [str(Path(ref) / name) for name in SKIP_THOUGHTS]
    suffix = Path(bare(ref)).suffix
    if suffix == ".npy":
        return [ref, str(Path(ref).with_suffix(".ids"))]
    return [ref] if suffix in (".vec", ".txt") and not Path(ref).is_dir() else None


def open_vectors(ref: str) -> VectorSource:
    """Open word vectors of any form that `vector_files` knows.

    Raises:
        DataError: as `VectorFile`, `VectorTable` and `open_word_vectors`.
    """
    files = vector_files(ref) or []
    if len(files) == 1:
        return VectorFile(ref)
    if ref in BUILTIN or Path(ref).suffix == ".npy":
        packed = open_word_vectors(ref)
        return VectorTable(ref, list(packed.rows), packed.array)
    words, array = files
    return VectorTable(ref, list(read_lines(words)), open_npy(array, ndim=2))


def select_vectors(source: VectorSource, words: Set[str]) -> tuple[dict[str, int], Array]:
    """Return the vectors of some words, the first of each.

    Args:
        source: read to its end once.
        words: the words to keep; unknown ones are not in the result.

    Returns:
        Word -> row, and (V, E) float32 vectors.
    """
    rows: dict[str, int] = {}
    parts = [np.empty((0, source.width), np.float32)]
    for block in source.blocks():
        places = []
        for place, word in enumerate(block.words):
            if word in words and word not in rows:
                rows[word] = len(rows)
                places.append(place)
        parts.append(block.vectors[places])
    return rows, np.concatenate(parts)


def pack_vectors(
    path: str, output: str, *, limit: int | None = None, restart: bool = False
) -> tuple[int, Counter[str], bool]:
    """Write the packed form of word vectors in text form, resumably.

    The first vector of a word that occurs twice is kept.

    Args:
        path: a file, `.gz`, `.zst`, or `-`.
        output: `X.npy`.
        limit: words to read.
        restart: start over.

    Returns:
        How many words, how many were left out and why, and whether the output was up to date.

    Raises:
        DataError: a line is not a word and E finite numbers, the first line gives other numbers, or
            the last line is cut off (65).
    """
    inputs = Inputs([path])
    source = VectorFile(path, limit)
    if source.header and source.header[1] != source.width:
        why = f"the first line states {source.header[1]} numbers per word, this line has"
        raise DataError(f"{why} {source.width}", path, 2)
    config = {"command": "vectors", "limit": limit}
    how = {"restart": restart}
    return _pack(source, output, config, inputs, lambda: _check_end(source, limit), how)


def copy_vectors(ref: str, output: str) -> None:
    """Write the packed form of word vectors of any form that `vector_files` knows, resumably.

    An unfinished copy that cannot be resumed is made again.

    Raises:
        DataError: as `open_vectors` and `pack_vectors`.
    """
    source = open_vectors(ref)
    check = partial(_check_end, source, None) if isinstance(source, VectorFile) else lambda: None
    inputs = Inputs(vector_files(ref) or [])
    _pack(source, output, {"command": "copy-vectors"}, inputs, check, {"disposable": True})


def _pack(
    source: VectorSource,
    output: str,
    config: dict[str, Any],
    inputs: Inputs,
    check: Callable[[], None],
    how: Mapping[str, Any],
) -> tuple[int, Counter[str], bool]:
    left_out: Counter[str] = Counter()
    seen: set[str] = set()
    files = [output, str(Path(output).with_suffix(".ids"))]
    with Output(files, config, npy={0: (np.float32, source.width)}, inputs=inputs, **how) as out:
        if out.complete:
            return 0, left_out, True
        _write(out, source, seen, left_out)
        check()  # whether a file was cut off shows only at its end
        facts: dict[str, Any] = {"rows": len(seen), "dim": source.width}
        out.finish(kind=KIND, **facts, left_out=dict(left_out))
    return len(seen), left_out, False


def _write(out: Output, source: VectorSource, seen: set[str], left_out: Counter[str]) -> None:
    """Write the blocks that an earlier run has not written."""
    done = int(out.state.get("line", 0))
    resumed = not done
    digest = hashlib.sha256()
    size = 0
    # A resumed run reads the blocks before its state again: `seen` needs their words, and their
    # hash shows whether the file is still the same.
    for block in source.blocks():
        keep = _new_words(block, seen, left_out)
        vectors = block.vectors if len(keep) == len(block.words) else block.vectors[keep]
        vectors = np.ascontiguousarray(vectors)  # a .npy may hold columns one after another
        names = "".join(f"{block.words[i]}\n" for i in keep).encode()
        digest.update(names)
        digest.update(vectors.data)
        if not resumed and block.line >= done:
            # A difference means other lines, or lines in blocks of another size.
            if digest.hexdigest() != out.state["sha256"]:
                raise input_changed(source.path)
            resumed = True
        if block.line <= done:
            continue
        out.write(vectors.data)
        out.write(names, file=1)
        size += vectors.nbytes
        if size >= _STEP:
            out.commit({"line": block.line, "sha256": digest.hexdigest()})
            size = 0


def _new_words(block: Block, seen: set[str], left_out: Counter[str]) -> list[int]:
    """Return the places of a block's words to keep, and count the others."""
    damaged = set(block.damaged)
    keep = []
    for i, word in enumerate(block.words):
        if i in damaged:
            left_out["word that is not UTF-8"] += 1
        elif not word or "\r" in word:
            left_out["empty word"] += 1
        elif word in seen:
            left_out["duplicate word"] += 1
        else:
            seen.add(word)
            keep.append(i)
    return keep


def _check_end(source: VectorFile, limit: int | None) -> None:
    """Refuse a file that was cut off.

    Raises:
        DataError: its first line gives another number of words, or its last line has no end.
    """
    stats = source.stats
    if limit is not None:
        return
    words = stats.lines - (source.header is not None)
    if source.header and source.header[0] != words:
        why = f"the first line states {source.header[0]:,} words, there are {words:,}"
        raise DataError(f"{why}; get the file again, or take --limit", source.path, 1)
    if not stats.ended:
        why = "the last line has no line end: the file may be cut off; add one if it is whole"
        raise DataError(why, source.path, stats.lines)
