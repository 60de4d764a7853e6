"""Texts and captions, tokenised once, with the images that they name.

Axes: N texts, T tokens.
"""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, file_error
from vgtools.io.process import Progress
from vgtools.io.splits import refuse_held_out
from vgtools.io.streams import read_windows, require
from vgtools.systems.grounding.pictures import PictureFeatures
from vgtools.text.tokens import content_mask, tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WINDOW = 2048  # texts tokenised at a time
_HIDDEN = "_"  # shown for a hidden token; without a letter or digit, so that it is never looked up


def _discard(file: IO[bytes]) -> None:
    """Close a temporary file whose content is no longer needed."""
    with contextlib.suppress(OSError):  # The rest of its buffer may not fit on the disk.
        file.close()


class GrowingArray:
    """An array that grows in a file without a name: memory does not grow with it.

    The file has no name, so that it is gone when the process ends, even by a kill.

    Args:
        dtype: type of the numbers.
        folder: where the file is; None for the system's temporary folder.
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
            self._close()  # The mapping keeps the data.


class Raw(NamedTuple):
    """Texts as they are spelt, up to the end of their last token."""

    codes: Array  # uint32 code points of all texts, one after the other
    starts: Array  # (N + 1,) int64
    spans: Array  # (tokens, 2) int32, code points of each token's own text


@dataclass(frozen=True)
class GroundingTexts:
    """Texts, tokenised once, clipped, with the images that they name.

    Attributes:
        name: name of the file or files, for messages.
        ids: tokens of all texts, int32, no special ones; text n owns ids[starts[n] : starts[n+1]].
        starts: (N + 1,) int64.
        content: (tokens,) bool, part of a content word.
        image: (N,) int32 places in `images`, -1 for a text without an image.
        images: the images named, in order.
        raw: their spelling, where images are found by their words.
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
    raw: Raw | None
    digest: str
    empty: int = 0
    replaced: int = 0

    def __len__(self) -> int:
        return len(self.image)

    def of(self, number: int) -> Array:
        """Return the tokens of a text."""
        return self.ids[self.starts[number] : self.starts[number + 1]]

    def shown(self, number: int, hidden: Array) -> str:
        """Return the spelling of a text's visible tokens, with `_` for each hidden token.

        It depends only on the visible tokens: it reveals neither how long hidden tokens are nor
        whether they continue words. Characters that hidden tokens share with visible ones are
        hidden.

        Args:
            number: number of the text.
            hidden: (tokens,) bool.
        """
        assert self.raw is not None
        codes = self.raw.codes[self.raw.starts[number] : self.raw.starts[number + 1]]
        spans = self.raw.spans[self.starts[number] : self.starts[number + 1]]
        # Code points of a fixed width can be sliced without a table of byte offsets.
        text = codes.tobytes().decode("utf-32-le", "surrogatepass")
        # Byte-level tokens can share a character: visible text starts after the last hidden end and
        # stops before the next hidden start.
        first = np.where(hidden, spans[:, 0], len(text))
        # The running maximum carries the last hidden end on to the visible tokens after it.
        closed = np.maximum.accumulate(np.where(hidden, spans[:, 1], 0))
        opened = np.minimum.accumulate(first[::-1])[::-1]  # start of the next hidden token
        parts = list[str]()
        edges = np.flatnonzero(np.diff(hidden)) + 1
        for a, b in pairwise([0, *edges.tolist(), len(hidden)]):
            if a < b and hidden[a]:
                parts += [_HIDDEN] * (b - a)
            elif a < b:
                begin = max(int(spans[a:b, 0].min()), int(closed[b - 1]))
                parts.append(text[begin : min(int(spans[a:b, 1].max()), int(opened[a]))])
        return " ".join(parts)


class _TextReader:
    """Collects the columns of `GroundingTexts`."""

    def __init__(self, tokenizer: Tokenizer, longest: int, folder: Path | None) -> None:
        self._tokenizer = tokenizer
        self._longest = longest
        self._ids = GrowingArray(np.int32, folder)
        self._content = GrowingArray(np.bool_, folder)
        self._sizes = GrowingArray(np.int32, folder)
        self._owner = GrowingArray(np.int32, folder)
        self._raw = [GrowingArray(dtype, folder) for dtype in (np.uint32, np.int32, np.int32)]
        self._images = dict[str, int]()
        self._digest = hashlib.sha256()
        self._empty = 0

    def add(
        self,
        texts: Sequence[str],
        images: Sequence[str | None],
        keep_empty: bool,
        raw: bool,
    ) -> None:
        """Add texts and the images that they name."""
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
        if raw:
            ends = np.zeros(len(texts), np.int32)
            rows = np.repeat(np.arange(len(texts)), counts)[here]
            np.maximum.at(ends, rows, tokens.spans[here, 1])
            # Spelling after the last token that is kept would cost disk and is never shown.
            spelt = "".join(text[:end] for text, end in zip(texts, ends.tolist(), strict=True))
            codes = np.frombuffer(spelt.encode("utf-32-le", "surrogatepass"), "<u4")
            parts += [codes, tokens.spans[here]]
            for column, values in zip(
                self._raw, (codes, ends[kept], tokens.spans[here]), strict=True
            ):
                column.extend(values)
        for part in parts:
            self._digest.update(np.ascontiguousarray(part, np.int32).data)
        self._digest.update(
            "\n".join(image or "" for image in named).encode(errors="surrogatepass")
        )

    def texts(self, name: str, replaced: int, raw: bool) -> GroundingTexts:
        """Return the texts that were added.

        Raises:
            DataError: no text was added.
        """
        sizes = self._sizes.array()
        if not len(sizes):
            raise DataError("holds no text", name)
        spelt = None
        if raw:
            codes, ends, spans = (column.array() for column in self._raw)
            spelt = Raw(codes, _starts(ends), spans.reshape(-1, 2))
        return GroundingTexts(
            name,
            self._ids.array(),
            _starts(sizes),
            self._content.array(),
            self._owner.array(),
            list(self._images),
            spelt,
            self._digest.hexdigest(),
            self._empty,
            replaced,
        )


def _starts(sizes: Array) -> Array:
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def read_texts(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    longest: int,
    *,
    pictures: PictureFeatures | None = None,
    raw: bool = False,
    keep_empty: bool = False,
    train: bool = False,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> GroundingTexts:
    """Read texts and captions: {"text"} and {"image", "text"}, or the lines of a text.

    Args:
        paths: jsonl, text, `.gz`, `.zst` or `-`.
        tokenizer: tokenizer of the encoder.
        longest: tokens of a text that are kept, special ones not counted.
        pictures: must have the images that rows name; None where no image is looked at.
        raw: keep their spelling, for `GroundingTexts.shown`.
        keep_empty: texts without a token stay, so that texts are numbered as the lines.
        train: the texts are learned from.
        folder: folder of the temporary files.
        progress: counts texts.

    Raises:
        DataError: a row without "text", whose "image" is not a string or has no features, or to
            learn from and of a split to evaluate on, with file and line.

    Source: Sileo 2021, section 3.3: texts are clipped.
    """
    reader = _TextReader(tokenizer, longest, folder)
    replaced = 0
    for path in paths:
        for window in read_windows(path, _WINDOW):
            replaced += window.replaced
            texts = list[str]()
            images = list[str | None]()
            for line, row in enumerate(window.rows(), window.first):
                if train:
                    refuse_held_out(row, path, line)
                image = row.get("image")
                if image is not None:
                    require(row, {"image": str}, path, line)
                    if pictures is not None and pictures.row(image) < 0:
                        why = f"{pictures.path} holds no features of the image {image!r:.80}"
                        raise DataError(f"{why}; extract them", path, line)
                texts.append(row["text"])
                images.append(image)
            reader.add(texts, images, keep_empty, raw)
            if progress is not None:
                progress.advance(len(texts))
    name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    return reader.texts(name, replaced, raw)
