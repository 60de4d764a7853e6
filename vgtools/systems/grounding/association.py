"""Associative grounding: images that a text's words find, by scene, by object or by keyword.

The images found for a text depend on that text alone, not on others in its batch. For a masked text
an associator is given only the visible words: a hidden word cannot change the images.

Axes: B texts, W their words, n nouns of a text, c clusters, k images per text, E width of a word
vector.

Source: Sileo 2021 (Grounding strategies), section 2.4 and table 3.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.artifact import read_ids, read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.names import is_jsonl
from vgtools.io.streams import read_jsonl
from vgtools.retrieval.exact import SearchResult, nothing_found
from vgtools.retrieval.index import Index, open_index
from vgtools.retrieval.texts import first_of, leave_out
from vgtools.systems.grounding.keys import CAPTIONS, KEYWORDS, NOUNS, stop_words_of
from vgtools.text.parses import Tagger, open_tagger
from vgtools.text.tokens import row_starts
from vgtools.text.word_vectors import (
    ContentWords,
    WordVectors,
    find_words,
    mean_vectors,
    open_word_vectors,
    ragged,
    unit_vectors,
)

# Distances and weights are rounded to this many digits before they are compared: two nouns are
# equally near their mean, and without rounding noise would decide between them.
_DIGITS = 9


class Associator(Protocol):
    """Finds images for texts."""

    @property
    def keys(self) -> str:
        """The kind of keys that images are found by: captions, nouns or keywords."""

    @property
    def ids(self) -> Sequence[str]:
        """The images of the bank: row i is the image ids[i]."""

    def words(self, texts: Sequence[str]) -> ContentWords:
        """Return the words of texts that can find images."""

    def search(self, words: ContentWords, k: int, *, own: Array | None = None) -> SearchResult:
        """Return k images per text, best first.

        Args:
            words: words of B texts.
            k: images per text.
            own: (B,) the row that must not be found for a text, -1 for none.

        Returns:
            (B, k) rows and scores; the row -1 where there are fewer, and where a text has no word.
        """


def open_associator(
    index_file: str, *, clusters: int = 8, tagger: str = "builtin:spacy-sm"
) -> Associator:
    """Open the associator of an index of `vg build-index --vectors` or `--keywords`.

    Args:
        index_file: `X.faiss`, or `X.jsonl` of keywords.
        clusters: most clusters of a text's nouns; used for an index of nouns only.
        tagger: finds common nouns; opened for an index of nouns only.

    Raises:
        DataError: the index is of a matcher (usage), or not as it was written; its word vectors or
            stop words are others than it was built with (65, both fingerprints).

    Source: section 2.4.
    """
    if is_jsonl(index_file):
        return open_keywords(index_file)
    index = open_index(index_file)
    keys = index.manifest.get("keys", "matcher")
    if keys not in (CAPTIONS, NOUNS):
        why = f"its images are found by {keys!r:.40}, expected {CAPTIONS} or {NOUNS}"
        raise DataError(f"{why}; build it with --vectors", index_file, code=Exit.USAGE)
    if index.bank is None:
        raise DataError("is not exact; build it again without --factory", index_file)
    stop_words = stop_words_of(_facts(index.manifest, index_file), index_file)
    vectors = _vectors_of(index.manifest, index_file)
    if vectors.array.shape[1] != index.bank.shape[1]:
        why = f"has {index.bank.shape[1]} dimensions, its vectors {vectors.array.shape[1]}"
        raise DataError(f"{why}; build it again", index_file)
    if keys == CAPTIONS:
        return Scene(index, vectors, stop_words)
    return Objects(index, vectors, stop_words, open_tagger(tagger), clusters)


def _facts(manifest: dict[str, Any], file: str) -> dict[str, Any]:
    facts = manifest.get("words")
    if not isinstance(facts, dict):
        raise DataError("its manifest does not name its words; build it again", file)
    return facts


def _vectors_of(manifest: dict[str, Any], file: str) -> WordVectors:
    """Open the word vectors that an index was built with."""
    facts = _facts(manifest, file)
    ref = str(facts.get("vectors", ""))
    if not ref.startswith("builtin:"):
        # The manifest names the vectors relative to the index itself, not to a link to it.
        ref = os.path.normpath(Path(os.path.realpath(file)).parent / ref)
    vectors = open_word_vectors(ref)
    if vectors.fingerprint != facts.get("fingerprint"):
        why = f"was built with word vectors of fingerprint {facts.get('fingerprint')}"
        raise DataError(f"{why}; {ref} has {vectors.fingerprint}; build it again", file)
    return vectors


# ------------------------------------------------------------------------------------------- scene


@dataclass(frozen=True)
class Scene:
    """Images whose captions are most like a text: the cosine of mean word vectors.

    Source: section 2.4.1.
    """

    index: Index
    vectors: WordVectors
    stop_words: frozenset[str]
    keys: str = CAPTIONS

    @property
    def ids(self) -> Sequence[str]:
        """The images of the bank."""
        return self.index.ids

    def words(self, texts: Sequence[str]) -> ContentWords:
        """Return the content words of texts that have a vector."""
        return find_words(texts, self.vectors.row, self.stop_words)

    def search(self, words: ContentWords, k: int, *, own: Array | None = None) -> SearchResult:
        """Return the k images per text whose keys are nearest; see `Associator`."""
        means, _ = mean_vectors(self.vectors.array, words.rows, words.starts)
        queries, some = unit_vectors(means)
        # One image more is asked for, because the text's own may be among the best k.
        depth = k + (own is not None)
        found = nothing_found(len(queries), depth)
        asked = self.index.search(queries[some], depth)
        found.rows[some] = asked.rows
        found.scores[some] = asked.scores
        return found if own is None else leave_out(found, own, k)


# ------------------------------------------------------------------------------------------ object


class Clusters(NamedTuple):
    """The clusters of the nouns of B texts, in order of their weight."""

    nouns: Array  # (B, c) int64, the noun nearest to each mean, counted from 0
    weights: Array  # (B, c) float64, 0 where the cluster is empty


def cluster_nouns(nouns: Array, count: int) -> Clusters:
    """Cluster the nouns of texts that have equally many, by a mixture of spherical Gaussians.

    The start is deterministic: the noun nearest the mean, then always the noun farthest from those
    chosen, hard assignment and one M step. All means are weighted sums of nouns, so that everything
    follows from the products of nouns with one another. Ties go to the first noun of the text.

    Args:
        nouns: (B, n, E) float64 unit vectors.
        count: clusters c, at most n; with n each noun is a cluster.

    Source: section 2.4.2. The paper leaves open the covariance (here spherical, as 15 nouns cannot
        carry 300 variances each), the start and the iterations (at most 100, until the mean log
        likelihood changes by less than 1e-3).
    """
    texts, size, width = nouns.shape
    # With a cluster for each noun the result is known without iterations.
    if count == size:
        every = np.broadcast_to(np.arange(size), (texts, size))
        return Clusters(every, np.full((texts, size), 1 / size))
    # Only products of nouns are needed from here on: n x n numbers per text, where n x 300 would be
    # read in every iteration.
    products = nouns @ nouns.transpose(0, 2, 1)
    seeds = _seeds(products, count)
    from_seeds = np.take_along_axis(_rounded(_squared(products)), seeds[:, :, None], 1)
    nearest = from_seeds.argmin(1)
    shares = (nearest[:, :, None] == np.arange(count)).astype(np.float64)
    mixture = _maximise(products, shares, width)
    likelihood = np.full(texts, -np.inf)
    active = np.arange(texts)
    for _ in range(_ITERATIONS):
        now, shares = _expect(products[active], _Mixture(*(x[active] for x in mixture)), width)
        for whole, part in zip(mixture, _maximise(products[active], shares, width), strict=True):
            whole[active] = part
        # Each text stops by itself, so that its clusters do not depend on the texts clustered with
        # it.
        change = np.abs(now - likelihood[active])
        likelihood[active] = now
        active = active[change >= _TOLERANCE]
        if not len(active):
            break
    # Images are found by nouns, so each mean is replaced by the noun nearest to it.
    central = _rounded(_distances(products, mixture.parts)).argmin(1)
    weights = _rounded(mixture.weights)
    # The order is by weight; among equal weights the first noun comes first.
    order = np.lexsort((central, -weights), axis=1)
    return Clusters(np.take_along_axis(central, order, 1), np.take_along_axis(weights, order, 1))


_ITERATIONS = 100
_TOLERANCE = 1e-3
_EPSILON = 10 * np.finfo(np.float64).eps  # keeps the mean of an empty cluster a number
_COVARIANCE = 1e-6  # added to each variance, which is 0 where a cluster is one noun


class _Mixture(NamedTuple):
    """A mixture for each of B texts; a mean is the sum of the nouns by its parts."""

    weights: Array  # (B, c)
    parts: Array  # (B, c, n)
    variances: Array  # (B, c), of each dimension


def _rounded(values: Array) -> Array:
    return np.round(values, _DIGITS) + 0.0  # no -0


def _squared(products: Array) -> Array:
    """Return the squared distances (B, n, n) of nouns."""
    own = np.diagonal(products, axis1=1, axis2=2)
    return np.asarray(own[:, :, None] + own[:, None] - 2 * products)


def _seeds(products: Array, count: int) -> Array:
    """Return the nouns at which clusters start, (B, count), in the order of the text."""
    every = np.arange(len(products))
    mean = products.mean(2)
    own = np.diagonal(products, axis1=1, axis2=2)
    seed = _rounded(own - 2 * mean).argmin(1)
    squared = _rounded(_squared(products))
    nearest = squared[every, seed]
    seeds = [seed]
    for _ in range(count - 1):
        # A noun that is a seed already is the last choice, also where all others are equal to it.
        nearest[every, seeds[-1]] = -1
        seed = nearest.argmax(1)
        seeds.append(seed)
        nearest = np.minimum(nearest, squared[every, seed])
    return np.sort(np.stack(seeds, 1), axis=1)


def _maximise(products: Array, shares: Array, width: int) -> _Mixture:
    """Return the mixture of clusters that have shares (B, n, c) of the nouns."""
    counts = shares.sum(1) + _EPSILON
    parts = (shares / counts[:, None]).transpose(0, 2, 1)
    own = np.diagonal(products, axis1=1, axis2=2)
    squares = (parts @ own[:, :, None])[:, :, 0]
    norms = (parts @ products * parts).sum(2)
    # The variance is the mean square less the square of the mean; rounding can make it negative.
    variances = np.maximum(squares - norms, 0) / width + _COVARIANCE
    return _Mixture(counts / counts.sum(1, keepdims=True), parts, variances)


def _distances(products: Array, parts: Array) -> Array:
    """Return the squared distances (B, n, c) of nouns to means."""
    own = np.diagonal(products, axis1=1, axis2=2)
    to_means = parts @ products  # (B, c, n)
    norms = (to_means * parts).sum(2)
    squared = own[:, None] - 2 * to_means + norms[:, :, None]
    # Differences of products that nearly cancel can come out slightly below 0.
    return np.asarray(np.maximum(squared, 0).transpose(0, 2, 1))


def _expect(products: Array, mixture: _Mixture, width: int) -> tuple[Array, Array]:
    """Return the mean log likelihood of each text's nouns (B,) and the shares (B, n, c)."""
    variances = mixture.variances[:, None]
    spread = _distances(products, mixture.parts) / variances + width * np.log(2 * np.pi * variances)
    scores = np.log(mixture.weights)[:, None] - spread / 2
    # The maximum is taken out of the sum, because exp overflows at distances over variances of
    # 1e-6.
    top = scores.max(2, keepdims=True)
    whole = np.log(np.exp(scores - top).sum(2, keepdims=True)) + top
    return whole.mean((1, 2)), np.exp(scores - whole)


@dataclass(frozen=True)
class Objects:
    """Images of the nouns that represent a text: one noun per cluster of its common nouns.

    The images are the best of each cluster in turn, then the second best of each, an image once.

    Source: section 2.4.2.
    """

    index: Index
    vectors: WordVectors
    stop_words: frozenset[str]
    tagger: Tagger
    clusters: int = 8
    keys: str = NOUNS

    @property
    def ids(self) -> Sequence[str]:
        """The images of the bank."""
        return self.index.ids

    def words(self, texts: Sequence[str]) -> ContentWords:
        """Return the content words of texts that have a vector, and which are common nouns.

        A word is a common noun if the tagger's word in which it starts is tagged NN or NNS.
        """
        words = find_words(texts, self.vectors.row, self.stop_words)
        for number, tags in enumerate(self.tagger(texts)):
            part = slice(words.starts[number], words.starts[number + 1])
            if part.start == part.stop:
                continue
            common = [tag in ("NN", "NNS") for tag in tags.tags]
            first = np.array([begin for begin, _ in tags.spans])
            place = np.searchsorted(first, words.begin[part], "right") - 1
            words.noun[part] = np.array(common)[np.maximum(place, 0)] & (place >= 0)
        return words

    def nouns(self, words: ContentWords) -> tuple[Array, Array]:
        """Return the rows of each text's different nouns, and where each text's start."""
        places = np.flatnonzero(words.noun)
        text = np.repeat(np.arange(len(words.starts) - 1), np.diff(words.starts))[places]
        # One number per (text, noun), so that a single `unique` finds each text's different nouns.
        key = text * np.int64(len(self.vectors.array)) + words.rows[places]
        first = np.sort(np.unique(key, return_index=True)[1])
        starts = np.searchsorted(text[first], np.arange(len(words.starts)))
        return words.rows[places[first]], starts

    def representatives(self, words: ContentWords, most: int) -> Array:
        """Return the nouns that represent each text, heaviest cluster first.

        Args:
            words: words of B texts.
            most: clusters, in addition to the associator's own limit.

        Returns:
            (B, c) int64 rows of the vectors, -1 where a text has fewer clusters.
        """
        rows, starts = self.nouns(words)
        limit = min(self.clusters, most)
        chosen = np.full((len(starts) - 1, limit), -1, np.int64)
        sizes = np.diff(starts)
        for size in np.unique(sizes[sizes > 0]).tolist():
            # Texts with as many nouns are clustered together: a text's result does not depend on
            # the others.
            texts = np.flatnonzero(sizes == size)
            count = min(limit, size)
            places, _ = ragged(starts[texts], starts[texts + 1])
            own = rows[places].reshape(-1, size)
            vectors = np.asarray(self.vectors.array[own], np.float64)
            norms = np.linalg.norm(vectors, axis=2, keepdims=True)
            # A zero vector stays zero instead of becoming NaN.
            vectors /= np.where(norms > 0, norms, 1)
            found = cluster_nouns(vectors, count)
            nouns = np.take_along_axis(own, found.nouns, 1)
            chosen[texts, :count] = np.where(found.weights > 0, nouns, -1)
        return chosen

    def search(self, words: ContentWords, k: int, *, own: Array | None = None) -> SearchResult:
        """Return k images per text, the best of its clusters in turn; see `Associator`."""
        nouns = self.representatives(words, k)
        # One image more is asked for, because the text's own may be among the best k.
        depth = k + (own is not None)
        # A noun that several texts share is searched once.
        distinct, inverse = np.unique(nouns, return_inverse=True)
        queries, some = unit_vectors(np.asarray(self.vectors.array[distinct], np.float64))
        some &= distinct >= 0
        images = nothing_found(len(distinct), depth)
        asked = self.index.search(queries[some], depth)
        images.rows[some] = asked.rows
        images.scores[some] = asked.scores
        inverse = inverse.reshape(nouns.shape)
        # (B, k, c) -> the best of all clusters, then the second best of all.
        size = (len(nouns), depth * nouns.shape[1])
        turns = [array[inverse].transpose(0, 2, 1).reshape(size) for array in images]
        kept = _once(turns[0])
        if own is not None:
            kept &= turns[0] != own[:, None]
        return first_of(SearchResult(*turns), kept, k)


def _once(rows: Array) -> Array:
    """Return where each text's images (B, n) are named for the first time."""
    # A stable sort keeps the first place of an image before its later places.
    order = np.argsort(rows, axis=1, kind="stable")
    ranked = np.take_along_axis(rows, order, 1)
    first = np.ones(rows.shape, bool)
    np.put_along_axis(first, order[:, 1:], ranked[:, 1:] != ranked[:, :-1], 1)
    return first


# ----------------------------------------------------------------------------------------- keyword


@dataclass(frozen=True)
class Keywords:
    """Images whose captions share most keywords with a text.

    A score is the number of the text's different words that are keywords of the image. Among equal
    scores the image that was met first comes first: words in the text's order, rows ascending.

    Source: table 3, "Associative (Zhang et al., 2020)".
    Deviation: the published table keeps 5 images per word, drawn at random; all are kept here.
    """

    ids: list[str]
    rows_of: dict[str, int]  # keyword -> its number
    images: Array  # (P,) int32, the images of all keywords, ascending for each
    starts: Array  # (keywords + 1,) int64
    stop_words: frozenset[str]
    keys: str = KEYWORDS
    _sets: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    def words(self, texts: Sequence[str]) -> ContentWords:
        """Return the content words of texts that are keywords; `rows` are their numbers."""
        return find_words(texts, lambda word: self.rows_of.get(word, -1), self.stop_words)

    def search(self, words: ContentWords, k: int, *, own: Array | None = None) -> SearchResult:
        """Return the k images per text with the most of its words; see `Associator`."""
        found = nothing_found(len(words.starts) - 1, k)
        starts = words.starts.tolist()
        numbers = words.rows.tolist()
        size = len(self.ids)
        images = list[int]()
        scores = list[int]()
        counts = list[int]()
        for text in range(len(found.rows)):
            # A word counts once, and the order of the text decides which image is met first.
            distinct = dict.fromkeys(numbers[starts[text] : starts[text + 1]])
            sets = [self._sets.get(number) or self._new_set(number) for number in distinct]
            left_out = -1 if own is None else int(own[text])
            counts.append(_most_met(sets, size, k, left_out, images, scores))
        filled = np.arange(k) < np.array(counts, np.int64)[:, None]
        found.rows[filled] = images
        found.scores[filled] = scores
        return found

    def _new_set(self, number: int) -> int:
        """Return the images of a keyword as the bits of an integer, image 0 the highest."""
        if len(self._sets) * len(self.ids) > _BITS:
            self._sets.clear()
        has = np.zeros(len(self.ids), bool)
        has[self.images[self.starts[number] : self.starts[number + 1]]] = True
        found = int.from_bytes(np.packbits(has).data, "big") >> -len(has) % 8
        self._sets[number] = found
        return found


_BITS = 1 << 31  # in the sets that are kept: 256 MB
_FEW = 64  # images that are looked for one by one


def _most_met(
    sets: Sequence[int], size: int, k: int, own: int, images: list[int], scores: list[int]
) -> int:
    """Append the k images that are in most sets, the first met among equals, and how often.

    Args:
        sets: images as bits, the first of the bank the highest, in the order in which they are met.
        size: images of the bank.
        k: images to find; fewer where fewer are met.
        own: an image that does not count, -1 for none.
        images: grows by the images.
        scores: grows by how often each is met.

    Returns:
        The number of images.
    """
    # The sets are counted for all images at once: a bit of plane p is bit p of an image's count.
    planes: list[int] = []
    met = 0
    for carry in sets:
        met |= carry
        for place, plane in enumerate(planes):
            planes[place] = plane ^ carry
            carry &= plane
        if carry:
            planes.append(carry)
    if own >= 0:
        met &= ~(1 << (size - 1 - own))
    left = k
    for count, level in _levels(planes, met):
        for each in sets:
            some = level & each
            if not some:
                continue
            level ^= some
            found = _images_of(some, size, left)
            images += found
            scores += [count] * len(found)
            left -= len(found)
            if not left:
                return k
    return k - left


def _images_of(bits: int, size: int, most: int) -> list[int]:
    """Return the first images of a set, `most` of them at most."""
    if min(most, bits.bit_count()) > _FEW:
        raw = (bits << -size % 8).to_bytes(-(-size // 8), "big")
        here = np.unpackbits(np.frombuffer(raw, np.uint8))
        return cast(list[int], np.flatnonzero(here)[:most].tolist())
    found = list[int]()
    while bits and len(found) < most:
        place = bits.bit_length()
        found.append(size - place)
        bits ^= 1 << (place - 1)
    return found


def _levels(planes: Sequence[int], within: int, count: int = 0) -> Iterator[tuple[int, int]]:
    """Yield each count that images have, the largest first, and the images that have it."""
    if not within:
        return
    if not planes:
        yield count, within
        return
    more = within & planes[-1]
    yield from _levels(planes[:-1], more, count + (1 << len(planes) - 1))
    yield from _levels(planes[:-1], within ^ more, count)


def open_keywords(path: str) -> Keywords:
    """Open an inverted file of `vg build-index --keywords`: `X.jsonl` with `X.ids` and `X.json`.

    Raises:
        DataError: a file is missing (66), damaged or of another kind; a row is out of the bank, or
            a keyword is duplicated (65).
    """
    manifest = read_manifest(path, "index")
    if manifest.get("keys") != KEYWORDS:
        raise DataError(f"its images are not found by {KEYWORDS}; build it with --keywords", path)
    ids = read_ids(Path(path).with_suffix(".ids"))
    numbers: dict[str, int] = {}
    lists = list[Array]()
    for line, row in read_jsonl(path, {"word": str, "rows": list}):
        try:
            rows = np.array(row["rows"])
        except ValueError:  # lists of several lengths among the numbers
            rows = np.empty(0)
        wrong = rows.ndim != 1 or rows.dtype.kind != "i" or (rows[1:] <= rows[:-1]).any()
        if wrong or rows[0] < 0 or rows[-1] >= len(ids) or row["word"] in numbers:
            why = f"expected a new word and ascending rows below {len(ids)}, got {row!r:.60}"
            raise DataError(why, path, line)
        numbers[row["word"]] = len(lists)
        lists.append(rows.astype(np.int32))
    if not lists:
        raise DataError("holds no keywords; build it again", path)
    starts = row_starts(map(len, lists))
    stop_words = stop_words_of(_facts(manifest, path), path)
    return Keywords(ids, numbers, np.concatenate(lists), starts, stop_words)
