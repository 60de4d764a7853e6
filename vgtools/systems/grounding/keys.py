"""Keys of images: vectors of captions or of nouns, and an inverted file of keywords.

Axes: N images, in the order in which they first appear; W words; E width of a word vector.

Source: Sileo 2021 (Grounding strategies), section 2.4 and table 3.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice, pairwise
from typing import Any, NamedTuple

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.files import dumps
from vgtools.io.names import id_fault
from vgtools.io.streams import read_jsonl, require
from vgtools.retrieval.build import make_index, serialize
from vgtools.retrieval.index import FLAT, METRIC
from vgtools.text.tokens import load_stop_words, row_starts
from vgtools.text.word_vectors import (
    ContentWords,
    WordVectors,
    find_words,
    mean_vectors,
    stop_words_fingerprint,
    unit_vectors,
)

CAPTIONS = "captions"  # "keys" of an index's manifest: the keys that its images are found by
NOUNS = "nouns"
KEYWORDS = "keywords"
Row = Mapping[str, Any]
_BLOCK = 8192  # rows or images at a time: bounds the memory


class KeyedImages(NamedTuple):
    """The images that can be found."""

    ids: list[str]
    keys: Array  # (N, E) float32 unit vectors
    left_out: list[str]  # images without a known word


def word_facts(stop_words: str | None, language: str = "en") -> dict[str, Any]:
    """Return the entry of a manifest about stop words; it lists them if they are not our own.

    Args:
        stop_words: a file of them, or `nltk`; None for the list of the language.
        language: one of `LANGUAGES`.

    Raises:
        DataError: as `load_stop_words`.
    """
    words = load_stop_words(stop_words, language)
    facts: dict[str, Any] = {"stop_words": stop_words_fingerprint(words)}
    ours = stop_words is None and language == "en"
    return facts if ours else {**facts, "stop_list": sorted(words)}


def stop_words_of(facts: Mapping[str, Any], file: str) -> frozenset[str]:
    """Return the stop words that an index was built with: its own list, or ours.

    Args:
        facts: "words" of its manifest.
        file: the index, for messages.

    Raises:
        DataError: ours were others when it was built (65, both fingerprints).
    """
    listed = facts.get("stop_list")
    stop_words = load_stop_words() if listed is None else frozenset(map(str, listed))
    fingerprint = stop_words_fingerprint(stop_words)
    if fingerprint != facts.get("stop_words"):
        why = f"was built with stop words of fingerprint {facts.get('stop_words')}"
        raise DataError(f"{why}; this version's have {fingerprint}; build it again", file)
    return stop_words


def caption_rows(file: str, limit: int | None = None) -> Iterator[tuple[int, Row]]:
    """Yield the numbered rows of a file with "image" and "text".

    Raises:
        DataError: a row is not one, or its image has a name that no line of X.ids holds (65), with
            file and line.
    """
    for line, row in islice(read_jsonl(file, {"image": str, "text": str}), limit):
        if fault := id_fault(row["image"]):
            raise DataError(f'"image" is {row["image"]!r:.60}: {fault}', file, line)
        yield line, row


class IndexFile(NamedTuple):
    """An index as `vg build-index` writes it."""

    data: bytes | memoryview
    ids: list[str]
    left_out: list[str]  # images without a known word
    facts: dict[str, Any]  # entries of the manifest


def vector_index(
    rows: Iterable[tuple[int, Row]],
    vectors: WordVectors,
    stop_words: frozenset[str],
    file: str,
) -> IndexFile:
    """Return the index of images by vectors of their nouns, if the first row has any, or captions.

    Args:
        rows: numbered, with "image" and "text", and "nouns" in all of them or in none.
        vectors: vectors of words.
        stop_words: words that do not count.
        file: where the rows are from, for messages.
    """
    first = list(islice(rows := iter(rows), 1))
    rows = chain(first, rows)
    if first and "nouns" in first[0][1]:
        kind = NOUNS
        bank = noun_keys(rows, vectors, stop_words, file)
    else:
        kind = CAPTIONS
        bank = caption_keys(rows, vectors, stop_words)
    facts = {
        "keys": kind,
        "dim": bank.keys.shape[1],
        "metric": METRIC,
        "factory": FLAT,
    }
    data = serialize(make_index(bank.keys))
    return IndexFile(data, bank.ids, bank.left_out, facts)


def keyword_index(
    rows: Iterable[tuple[int, Row]], stop_words: frozenset[str], most: int, file: str
) -> IndexFile:
    """Return the index of images by keywords: rows of JSON lines {"word", "rows"}.

    Args:
        rows: numbered, with "image" and "text", which some "nouns" may go with.
        stop_words: words that do not count.
        most: keywords per caption.
        file: where the rows are from, for messages.
    """

    def whole(line: int, row: Row) -> Row:
        if "nouns" not in row:
            return row
        _check_nouns(row, file, line)
        return {**row, "text": " ".join([*row["nouns"], row["text"]])}

    bank = keywords(((line, whole(line, row)) for line, row in rows), stop_words, most)
    lines = (
        dumps({"word": word, "rows": bank.rows[a:b]})
        for word, (a, b) in zip(bank.words, pairwise(bank.starts.tolist()), strict=True)
    )
    facts = {"keys": KEYWORDS, "keywords": len(bank.words), "per_caption": most}
    return IndexFile(b"".join(lines), bank.ids, bank.left_out, facts)


def _check_nouns(row: Row, file: str, line: int) -> None:
    require(row, {"nouns": list}, file, line)
    if not all(isinstance(noun, str) for noun in row["nouns"]):
        raise DataError(f'"nouns" must be strings, got {row["nouns"]!r:.60}', file, line)


def caption_keys(
    rows: Iterable[tuple[int, Row]], vectors: WordVectors, stop_words: frozenset[str]
) -> KeyedImages:
    """Return images with the mean vector of the words of all their captions.

    Args:
        rows: numbered, with "image" and "text".
        vectors: vectors of words.
        stop_words: words that do not count.

    Source: section 2.4.1. The paper has one caption per image; with several, all their words
        together find it best.
    """
    numbers: dict[str, int] = {}
    # A known word takes eight bytes, the numbers of its image and its row; a sum of vectors per
    # image would take 2,400.
    image = array("i")
    word = array("i")
    for block in _blocks(rows):
        words = find_words([row["text"] for _, row in block], vectors.row, stop_words)
        of_rows = [numbers.setdefault(row["image"], len(numbers)) for _, row in block]
        image.frombytes(np.repeat(np.array(of_rows, np.int32), np.diff(words.starts)).tobytes())
        word.frombytes(words.rows.tobytes())
    images = np.frombuffer(image, np.int32)
    order = np.argsort(images, kind="stable")
    flat = np.frombuffer(word, np.int32)[order]
    starts = np.searchsorted(images[order], np.arange(len(numbers) + 1))
    keys = np.zeros((len(numbers), vectors.array.shape[1]), np.float32)
    for start in range(0, len(numbers), _BLOCK):
        bounds = starts[start : start + _BLOCK + 1]
        means, _ = mean_vectors(vectors.array, flat[bounds[0] : bounds[-1]], bounds - bounds[0])
        keys[start : start + _BLOCK] = unit_vectors(means)[0]
    return _bank(list(numbers), keys)


def noun_keys(
    rows: Iterable[tuple[int, Row]], vectors: WordVectors, stop_words: frozenset[str], file: str
) -> KeyedImages:
    """Return images with the mean of their lemmas' mean vectors plus their definition's mean.

    A lemma or a definition without a known word is left out of the mean.

    Args:
        rows: numbered, with "image", "nouns" and the definition "text"; an image once.
        vectors: vectors of words.
        stop_words: words that do not count.
        file: where the rows are from, for messages.

    Raises:
        DataError: an image is duplicated, or "nouns" is missing or not a list of strings (65).

    Source: section 2.4.2.
    """
    lines: dict[str, int] = {}
    keys = list[Array]()
    for block in _blocks(rows):
        for line, row in block:
            _check_nouns(row, file, line)
            first = lines.setdefault(row["image"], line)
            if first != line:
                why = f"duplicate image {row['image']!r:.80} (first on line {first})"
                raise DataError(why, file, line)
        lemmas = find_words([n for _, row in block for n in row["nouns"]], vectors.row, stop_words)
        starts = row_starts(len(row["nouns"]) for _, row in block)
        definitions = find_words([row["text"] for _, row in block], vectors.row, stop_words)
        keys.append(unit_vectors(_noun_means(vectors.array, lemmas, starts, definitions))[0])
    empty = np.zeros((0, vectors.array.shape[1]), np.float32)
    return _bank(list(lines), np.concatenate([empty, *keys]))


def _noun_means(
    vectors: Array, lemmas: ContentWords, starts: Array, definitions: ContentWords
) -> Array:
    """Return the keys of images, of any length; zeros without a known word.

    Args:
        vectors: (V, E).
        lemmas: lemmas of all images, one text per lemma.
        starts: (N + 1,) where each image's lemmas start.
        definitions: one text per image.
    """
    means, counts = mean_vectors(vectors, lemmas.rows, lemmas.starts)
    of_lemmas, _ = mean_vectors(means, np.arange(len(means)), starts, counts > 0)
    of_definition, _ = mean_vectors(vectors, definitions.rows, definitions.starts)
    # The sum has the direction of the mean of both, and callers take only its direction.
    return np.asarray(of_lemmas + of_definition)


class InvertedFile(NamedTuple):
    """Which images have a keyword."""

    ids: list[str]
    words: list[str]  # in alphabetical order
    rows: Array  # (P,) int32, the images of all words, ascending for each
    starts: Array  # (words + 1,) int64
    left_out: list[str]  # images without a keyword


def keywords(
    rows: Iterable[tuple[int, Row]], stop_words: frozenset[str], most: int
) -> InvertedFile:
    """Return the inverted file of the words with the highest TF-IDF weights of each caption.

    A word has at least two characters. Its weight is tf · (ln((1 + n) / (1 + df)) + 1) for n
    captions, of which df have the word; among equal weights the first in the alphabet comes first.

    Args:
        rows: numbered, with "image" and "text".
        stop_words: words that do not count.
        most: keywords per caption.

    Source: table 3, "Associative (Zhang et al., 2020)", with 8 words per caption. Dividing the
        weights of a caption by their norm, as scikit-learn's TfidfVectorizer does, changes no
        order.
    """
    numbers: dict[str, int] = {}
    vocabulary: dict[str, int] = {}
    image = array("i")  # the image of each caption
    word = array("i")  # the words of all captions
    size = array("i")  # words of each caption

    def number_of(name: str) -> int:
        return vocabulary.setdefault(name, len(vocabulary)) if len(name) > 1 else -1

    for block in _blocks(rows):
        words = find_words([row["text"] for _, row in block], number_of, stop_words)
        of_rows = [numbers.setdefault(row["image"], len(numbers)) for _, row in block]
        image.extend(of_rows)
        word.frombytes(words.rows.tobytes())
        size.frombytes(np.diff(words.starts).astype(np.int32).tobytes())
    names = sorted(vocabulary)
    place = np.zeros(len(names), np.int64)  # the place in the alphabet of each number
    place[[vocabulary[name] for name in names]] = np.arange(len(names))
    caption = np.repeat(np.arange(len(size)), np.frombuffer(size, np.int32))
    # One number per (caption, word), ordered by caption and then alphabet.
    pairs = caption * max(len(names), 1) + place[np.frombuffer(word, np.int32)]
    pairs, counts = np.unique(pairs, return_counts=True)
    caption, of_word = np.divmod(pairs, max(len(names), 1))
    df = np.bincount(of_word, minlength=len(names))
    weights = counts * (np.log((1 + len(size)) / (1 + df)) + 1)[of_word]
    order = np.lexsort((of_word, -weights, caption))
    # `order` keeps the captions in sequence, so a word's rank is its place less the first place of
    # its caption.
    rank = np.arange(len(order)) - np.searchsorted(caption, caption)
    best = order[rank < most]
    images = np.frombuffer(image, np.int32)[caption[best]]
    return _invert(list(numbers), names, images, of_word[best])


def _invert(ids: list[str], names: list[str], images: Array, words: Array) -> InvertedFile:
    """Return the inverted file of (image, word) pairs, without images and words of no pair."""
    kept, images = np.unique(images, return_inverse=True)
    pairs = np.unique(words.astype(np.int64) * max(len(kept), 1) + images)
    words, rows = np.divmod(pairs, max(len(kept), 1))
    used, first = np.unique(words, return_index=True)
    here = set(kept.tolist())
    return InvertedFile(
        [ids[i] for i in kept.tolist()],
        [names[i] for i in used.tolist()],
        rows.astype(np.int32),
        np.append(first, len(rows)),
        [name for i, name in enumerate(ids) if i not in here],
    )


def _bank(ids: list[str], keys: Array) -> KeyedImages:
    some: Array = (keys != 0).any(axis=1)
    if some.all():
        return KeyedImages(ids, keys, [])
    kept = [ids[i] for i in np.flatnonzero(some).tolist()]
    return KeyedImages(kept, keys[some], [ids[i] for i in np.flatnonzero(~some).tolist()])


def _blocks(rows: Iterable[tuple[int, Row]]) -> Iterator[list[tuple[int, Row]]]:
    rows = iter(rows)
    while block := list(islice(rows, _BLOCK)):
        yield block
