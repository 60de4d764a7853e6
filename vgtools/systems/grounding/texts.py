"""Texts and captions, tokenised once, with the images that they name.

Axes: N texts, T tokens, W words of all texts that find images.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from vgtools.io import DataError, Progress, parse_json, read_windows, require
from vgtools.io.arrays import Array
from vgtools.io.errors import file_error
from vgtools.systems.grounding.pictures import Pictures
from vgtools.text.tokens import content_mask, tokenize
from vgtools.text.word_vectors import Words

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WINDOW = 2048  # texts tokenised at a time


def _discard(file: IO[bytes]) -> None:
    """Close a temporary file, of which nothing is needed any more."""
    with contextlib.suppress(OSError):  # what is still in its buffer may not fit on the disk
        file.close()


class Column:
    """An array that grows in a file without a name: memory does not grow with it.

    The file is gone when the process ends, however it ends.

    Args:
        dtype: of the numbers.
        folder: where the file is; None for the system's temporary one.
    """

    def __init__(self, dtype: type, folder: Path | None = None) -> None:
        self._dtype = np.dtype(dtype)
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._close = weakref.finalize(self, _discard, self._file)
        self._size = 0

    def extend(self, values: Array) -> None:
        """Append numbers.

        Raises:
            DataError: the disk is full (74).
        """
        data = np.ascontiguousarray(values, self._dtype)
        try:
            self._file.write(data.data)
        except OSError as error:
            raise file_error(error, self._folder or tempfile.gettempdir(), reading=False) from None
        self._size += data.size

    def array(self) -> Array:
        """Return all numbers, memory-mapped; it is called once, at the end."""
        try:
            self._file.flush()
            if not self._size:
                return np.zeros(0, self._dtype)
            return np.memmap(self._file, self._dtype, "r", shape=(self._size,))
        except OSError as error:
            raise file_error(error, self._folder or tempfile.gettempdir(), reading=False) from None
        finally:
            self._close()  # what is mapped stays


@dataclass(frozen=True)
class Texts:
    """Texts, tokenised once, clipped, with the images that they name.

    Attributes:
        name: of the file or files, for messages.
        ids: tokens of all texts, int32, no special ones; text n owns ids[starts[n] : starts[n+1]].
        starts: (N + 1,) int64.
        content: (tokens,) bool, part of a content word.
        image: (N,) int32 of `images`, -1 for a text without one.
        images: the images named, in order.
        words: the words that images are found by, if any are needed; `begin` and `end` count
            tokens, and words that are cut off are not here.
        digest: sha256 of all this.
        empty: rows without a token that were left out.
        replaced: lines with bytes that are not UTF-8.
    """

    name: str
    ids: Array
    starts: Array
    content: Array
    image: Array
    images: list[str]
    words: Words | None
    digest: str
    empty: int = 0
    replaced: int = 0

    def __len__(self) -> int:
        return len(self.image)

    def of(self, number: int) -> Array:
        """Return the tokens of a text."""
        return self.ids[self.starts[number] : self.starts[number + 1]]


class _Reader:
    """Collects the columns of `Texts`."""

    def __init__(self, tokenizer: Tokenizer, longest: int, folder: Path | None) -> None:
        self._tokenizer = tokenizer
        self._longest = longest
        self._ids = Column(np.int32, folder)
        self._content = Column(np.bool_, folder)
        self._sizes = Column(np.int32, folder)
        self._owner = Column(np.int32, folder)
        self._words = [Column(dtype, folder) for dtype in (np.int32,) * 4 + (np.bool_,)]
        self._images = dict[str, int]()
        self._digest = hashlib.sha256()
        self._empty = 0

    def add(
        self,
        texts: Sequence[str],
        images: Sequence[str | None],
        keep_empty: bool,
        words_of: Callable[[Sequence[str]], Words] | None,
    ) -> int:
        """Add texts and the images that they name; return how many tokens they have."""
        tokens = tokenize(self._tokenizer, texts)
        counts = np.diff(tokens.starts)
        kept = np.ones(len(texts), bool) if keep_empty else counts > 0
        self._empty += int((~kept).sum())
        place = np.arange(len(tokens.ids)) - np.repeat(tokens.starts[:-1], counts)
        here = place < self._longest
        ids = tokens.ids[here]
        sizes = np.minimum(counts, self._longest)[kept].astype(np.int32)
        named = [image for image, keep in zip(images, kept.tolist(), strict=True) if keep]
        owner = [
            -1 if image is None else self._images.setdefault(image, len(self._images))
            for image in named
        ]
        self._ids.extend(ids)
        self._content.extend(content_mask(texts, tokens.spans, tokens.starts)[here])
        self._sizes.extend(sizes)
        self._owner.extend(np.array(owner, np.int32))
        parts = [ids, sizes]
        if words_of is not None:
            words = _place_words(words_of(texts), tokens.spans, tokens.starts, self._longest)
            lengths = np.diff(words.starts)[kept]
            parts += [words.rows]
            for column, values in zip(self._words, (lengths, *words[1:]), strict=True):
                column.extend(values)
        for part in parts:
            self._digest.update(np.ascontiguousarray(part, np.int32).data)
        self._digest.update(
            "\n".join(image or "" for image in named).encode(errors="surrogatepass")
        )
        return len(ids)

    def texts(self, name: str, replaced: int, with_words: bool) -> Texts:
        """Return what was added.

        Raises:
            DataError: nothing was.
        """
        sizes = self._sizes.array()
        if not len(sizes):
            raise DataError("holds no text", name)
        words = None
        if with_words:
            lengths, *columns = (column.array() for column in self._words)
            words = Words(_starts(lengths), *columns)
        return Texts(
            name,
            self._ids.array(),
            _starts(sizes),
            self._content.array(),
            self._owner.array(),
            list(self._images),
            words,
            self._digest.hexdigest(),
            self._empty,
            replaced,
        )


def _starts(sizes: Array) -> Array:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def _place_words(words: Words, spans: Array, starts: Array, longest: int) -> Words:
    """Return words whose `begin` and `end` count tokens, without those that are cut off.

    Args:
        words: of R texts.
        spans: (T, 2) of the tokens.
        starts: (R + 1,) of the texts.
        longest: tokens of a text that are kept.
    """
    begin = np.zeros(len(words.rows), np.int32)
    end = np.zeros(len(words.rows), np.int32)
    for row, (a, b) in enumerate(pairwise(words.starts.tolist())):
        own = spans[starts[row] : starts[row + 1]]
        # From the first token that ends after the word begins to the last that begins before it
        # ends: both rise from token to token.
        begin[a:b] = np.searchsorted(np.maximum.accumulate(own[:, 1]), words.begin[a:b], "right")
        end[a:b] = np.searchsorted(own[:, 0], words.end[a:b], "left")
    kept = (begin < end) & (end <= longest)
    owner = np.repeat(np.arange(len(words.starts) - 1), np.diff(words.starts))
    counts = np.bincount(owner[kept], minlength=len(words.starts) - 1)
    return Words(_starts(counts), words.rows[kept], begin[kept], end[kept], words.noun[kept])


def read_texts(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    longest: int,
    *,
    pictures: Pictures | None = None,
    words_of: Callable[[Sequence[str]], Words] | None = None,
    keep_empty: bool = False,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Texts:
    """Read texts and captions: {"text"} and {"image", "text"}, or the lines of a text.

    Args:
        paths: jsonl, text, `.gz`, `.zst` or `-`.
        tokenizer: of the encoder.
        longest: tokens of a text that are kept, special ones not counted.
        pictures: which must have the images that rows name; None where none is looked at.
        words_of: finds the words of texts, see `Associator.words`; None where none are needed.
        keep_empty: texts without a token stay, so that numbers are those of the lines.
        folder: of the temporary files.
        progress: counts texts.

    Raises:
        DataError: a row without "text", or whose "image" is not a string or has no features, with
            file and line.

    Source: Sileo 2021, section 3.3: texts are clipped.
    """
    reader = _Reader(tokenizer, longest, folder)
    replaced = 0
    for path in paths:
        for window in read_windows(path, _WINDOW):
            replaced += window.replaced
            texts = list[str]()
            images = list[str | None]()
            for line, row in _rows(path, window.lines, window.first, bool(window.jsonl)):
                image = row.get("image")
                if image is not None:
                    require(row, {"image": str}, path, line)
                    if pictures is not None and pictures.row(image) < 0:
                        why = f"{pictures.path} holds no features of the image {image!r:.80}"
                        raise DataError(f"{why}; extract them", path, line)
                texts.append(row["text"])
                images.append(image)
            reader.add(texts, images, keep_empty, words_of)
            if progress is not None:
                progress.advance(len(texts))
    name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return reader.texts(name, replaced, words_of is not None)


def _rows(
    path: str, lines: Sequence[str], first: int, jsonl: bool
) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, first):
        if not jsonl:
            yield number, {"text": line}
            continue
        row = parse_json(line, path, number)
        require(row, {"text": str}, path, number)
        yield number, row
