"""Captioned photos: how much of the features of photos is in vectors of words and captions.

Three evaluations of one file, each with a control in which photos are permuted among captions:

- looks: ridge regression from the vector of a word to the mean whitened feature of the photos
  whose captions have it; cosines. It favours encoders that learned from features of photos. Words
  of the same captions share photos, permuted or not, so vectors that know which words go together
  do well on the control too: only the difference from it is knowledge of pictures. The control is
  a mean over ten permutations, as the luck of one moves all words together;
- shared neighbours of photos by their captions' vectors and by their features;
- unbiased linear CKA of captions' vectors and features, less the bias that a jackknife still finds:
  the mean of the values of `alignment.linear_cka`.

Axes: N photos, F dimensions of their features, W words, D dimensions of vectors.

Source: Huh et al. 2024 (The Platonic representation hypothesis), for the last two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from vgtools.analysis.alignment import linear_cka, shared_neighbours
from vgtools.analysis.looks import photos_of_words, whiten, word_looks
from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.measures.evaluation import PERMUTED, GoldItems, Measure, content_of
from vgtools.measures.pairs import cosines
from vgtools.measures.ridge import FOLDS, cross_validated
from vgtools.measures.subject import Subject
from vgtools.tasks.metrics import variance_factor
from vgtools.text.tokens import load_stop_words

KEYS = ("image", "text")
LEAST_PHOTOS = 10  # photos of a word, for its looks
NEIGHBOURS = 10
_PERMUTATIONS = 10  # the looks that are a control are a mean over them


class CaptionedPhotos:
    """Photos with their captions and features.

    Args:
        name: file of the captions.
        captions: photo -> its captions.
        features: (N, F), in the order of the photos.
    """

    def __init__(self, name: str, captions: dict[str, list[str]], features: Array) -> None:
        self.name = name
        self.photos = list(captions)
        self.features = np.asarray(features, np.float64)
        self.content = content_of(captions, self.features)
        self.texts = [text for own in captions.values() for text in own]
        self.starts = np.cumsum([0, *map(len, captions.values())])[:-1]
        stop_words = load_stop_words()
        self.words = [
            [w for w in re.findall(r"[a-z]+", " ".join(own).lower()) if w not in stop_words]
            for own in captions.values()
        ]
        self._read: tuple[tuple[str, str], Array] | None = None

    @cached_property
    def white(self) -> Array:
        """The whitened features: (N, F)."""
        return whiten(self.features)[0]

    def vectors(self, subject: Subject) -> Array:
        """Return the mean vector of each photo's captions, NaN where one is not known: (N, D)."""
        # The subject itself is not kept: one encoder is in memory at a time.
        key = (subject.ref, subject.fingerprint)
        if self._read is None or self._read[0] != key:
            found = subject.sentences(self.texts).astype(np.float64)
            counts = np.diff([*self.starts, len(self.texts)])
            self._read = key, np.add.reduceat(found, self.starts, axis=0) / counts[:, None]
        return self._read[1]

    def permuted(self, seed: int) -> Array:
        """Return rows of the features in another order, with no photo in its place: (N,)."""
        order = np.random.default_rng(seed).permutation(len(self.features))
        found = np.empty_like(order)
        found[order] = np.roll(order, 1)
        return found


class Looks(Measure):
    """The looks of words: photos with the word in a caption, their whitened features' mean.

    Args:
        photos: captioned photos.
        orders: P of (N,), the rows of the photos' features; one value is the mean over all of them.
        name: name of the evaluation.
        kind: kind of its items.
    """

    def __init__(
        self, photos: CaptionedPhotos, orders: Sequence[Array], name: str, kind: str
    ) -> None:
        self._photos = photos
        self._orders = orders
        self._rows = photos_of_words(photos.words, LEAST_PHOTOS)
        words = list(self._rows)
        if len(words) < FOLDS:
            why = f"has {len(words)} words with {LEAST_PHOTOS} photos or more"
            why = f"{why}; looks need {FOLDS} words, take more photos"
            raise DataError(why, photos.name)
        self.words = [(word,) for word in words]
        self.items = GoldItems(
            name=name,
            kind=kind,
            statistic="mean",
            keys=words,
            gold=np.ones(len(words)),
            folds=FOLDS,
            content=content_of(photos.content, *orders),
        )

    def ask(self, subject: Subject) -> Array:
        """Return the vectors of the words: (W, D)."""
        return subject.words(self.items.keys)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return the cosine of each word's looks and their prediction by the other folds."""
        found = np.full(len(known), np.nan)
        if known.sum() > 1:
            vectors = answers[known].astype(np.float64)
            rows = [own for own, there in zip(self._rows.values(), known, strict=True) if there]
            white = self._photos.white
            looks = (word_looks(white, [order[own] for own in rows]) for order in self._orders)
            found[known] = _mean_of([_cosines(vectors, own) for own in looks])
        return found


def _mean_of(values: Sequence[Array]) -> Array:
    """Return the mean of P of (W,), its spread widened by the luck of orders.

    The luck of an order moves all words together, which the spread of the words' means lacks: their
    deviations are widened until the standard error includes it.
    """
    mean: Array = np.mean(values, 0)
    level = mean.mean()
    own = mean.var()
    if len(values) == 1 or not own:
        return mean
    luck = np.mean(values, 1).var(ddof=1) / len(values)
    widened = 1 + luck / (own / len(mean) * variance_factor(FOLDS))
    found: Array = level + (mean - level) * np.sqrt(widened)
    return found


def _cosines(vectors: Array, looks: Array) -> Array:
    """Return the cosines of looks and their predictions: (N, D) and (N, F) -> (N,)."""
    predicted = cross_validated(vectors, looks)
    numbers = np.arange(len(looks))
    pairs = np.column_stack([numbers, numbers + len(looks)])
    # A prediction without length has no direction that could be right.
    found: Array = np.nan_to_num(cosines(np.concatenate([predicted, looks]), pairs))
    return found


class Alignment(Measure):
    """How alike captions' vectors and features of photos are, photo by photo.

    Args:
        photos: captioned photos.
        features: (N, F) their features.
        name: name of the evaluation.
        kind: kind of its items.
        neighbours: shared neighbours, or else CKA; the spread of their values shows their error.
    """

    def __init__(
        self, photos: CaptionedPhotos, features: Array, name: str, kind: str, neighbours: bool
    ) -> None:
        self._photos = photos
        self._features = features
        self._neighbours = neighbours
        keys = photos.photos
        self.items = GoldItems(
            name=name,
            kind=kind,
            statistic="mean",
            keys=keys,
            gold=np.ones(len(keys)),
            content=content_of(photos.content, features),
        )

    def ask(self, subject: Subject) -> Array:
        """Return the vectors of the captions of photos: (N, D)."""
        return self._photos.vectors(subject)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return each photo's value in the share of shared neighbours, or in the CKA."""
        found = np.full(len(known), np.nan)
        if known.sum() > NEIGHBOURS + 1:
            both = answers[known], self._features[known]
            values = shared_neighbours(*both, NEIGHBOURS) if self._neighbours else linear_cka(*both)
            found[known] = values[1]
        return found


def read_photos(path: str, feats: str, seed: int = 0) -> list[Measure]:
    """Read captions {"image", "text"} with features of `vg extract-image-feats`.

    Args:
        path: captions.
        feats: features of their photos.
        seed: seed of the first permutation.

    Returns:
        Looks, shared neighbours and CKA, each followed by its control.

    Raises:
        DataError: a file cannot be read, or features are of another run (65, both hashes); a photo
            has no features (65, file and line); or there are too few photos or words.
    """
    features = open_features(feats)
    row_of = {image: row for row, image in enumerate(features.ids)}
    captions = dict[str, list[str]]()
    for line, row in read_jsonl(path, dict.fromkeys(KEYS, str)):
        if row["image"] not in row_of:
            why = f"{feats} holds no features of the image {row['image']!r:.80}"
            raise DataError(f"{why}; vg extract-image-feats makes them", path, line)
        captions.setdefault(row["image"], []).append(row["text"])
    if len(captions) <= NEIGHBOURS + 1:
        why = f"has {len(captions)} photos; {NEIGHBOURS} neighbours need {NEIGHBOURS + 2} or more"
        raise DataError(why, path)
    name = os.path.basename(path)
    places: Sequence[int] = [row_of[image] for image in captions]
    photos = CaptionedPhotos(name, captions, features.array[places])
    found = list[Measure]()
    rows = np.arange(len(captions))
    shuffled = [photos.permuted(seed + number) for number in range(_PERMUTATIONS)]
    for title in ("looks", "shared neighbours", "CKA"):
        for kind, orders in (("photos", [rows]), (PERMUTED, shuffled)):
            full = f"{name} {title}" + (f", {kind}" if kind == PERMUTED else "")
            if title == "looks":
                found.append(Looks(photos, orders, full, "words" if kind == "photos" else kind))
            else:
                own = photos.features[orders[0]]
                found.append(Alignment(photos, own, full, kind, title != "CKA"))
    return found
