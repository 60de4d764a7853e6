"""Captioned photos: how much of the features of photos is in vectors of words and captions.

Three evaluations of one file, each with a control in which photos are permuted among captions:

- looks: ridge regression from the vector of a word to the mean whitened feature of the photos
  whose captions have it; cosines. It favours encoders that learned from features of photos. Words
  of the same captions share photos, permuted or not, so vectors that know which words go together
  do well on the control too: only the difference from it is knowledge of pictures;
- shared neighbours of photos by their captions' vectors and by their features;
- unbiased linear CKA of captions' vectors and features.

Axes: N photos, F dimensions of their features, W words, D dimensions of vectors.

Source: Huh et al. 2024 (The Platonic representation hypothesis), for the last two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import numpy as np

from vgtools.analysis.alignment import linear_cka, shared_neighbours
from vgtools.analysis.looks import whiten, word_looks
from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError
from vgtools.io.streams import parse_json, read_jsonl, read_lines
from vgtools.measures.evaluation import PERMUTED, GoldItems, Measure, content_of
from vgtools.measures.pairs import cosines
from vgtools.measures.ridge import FOLDS, cross_validated
from vgtools.measures.subject import Subject
from vgtools.text.tokens import load_stop_words

KEYS = ("image", "text")
LEAST_PHOTOS = 10  # photos of a word, for its looks
NEIGHBOURS = 10


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
        """Return the features in another order, which no photo keeps a place in."""
        order = np.random.default_rng(seed).permutation(len(self.features))
        found = np.empty_like(self.features)
        found[order] = self.features[np.roll(order, 1)]
        return found


class Looks(Measure):
    """The looks of words: photos with the word in a caption, their whitened features' mean.

    Args:
        photos: captioned photos.
        features: (N, F) their features.
        name: name of the evaluation.
        kind: kind of its items.
    """

    def __init__(self, photos: CaptionedPhotos, features: Array, name: str, kind: str) -> None:
        white, self.shrinkage = whiten(features)
        looks = word_looks(white, photos.words, LEAST_PHOTOS)
        if len(looks) < FOLDS:
            why = f"has {len(looks)} words with {LEAST_PHOTOS} photos or more"
            why = f"{why}; looks need {FOLDS} words, take more photos"
            raise DataError(why, photos.name)
        self._looks = np.stack([*looks.values()])
        self.words = [(word,) for word in looks]
        self.items = GoldItems(
            name=name,
            kind=kind,
            statistic="mean",
            keys=list(looks),
            gold=np.ones(len(looks)),
            content=content_of(photos.content, features),
        )

    def ask(self, subject: Subject) -> Array:
        """Return the vectors of the words: (W, D)."""
        return subject.words(self.items.keys)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return the cosine of each word's looks and their prediction by the other folds."""
        found = np.full(len(known), np.nan)
        if known.any():
            gold = self._looks[known]
            predicted = cross_validated(answers[known].astype(np.float64), gold)
            numbers = np.arange(len(gold))
            pairs = np.column_stack([numbers, numbers + len(gold)])
            # A prediction without length has no direction that could be right.
            found[known] = np.nan_to_num(cosines(np.concatenate([predicted, gold]), pairs))
        return found


class Alignment(Measure):
    """How alike captions' vectors and features of photos are, photo by photo.

    Args:
        photos: captioned photos.
        features: (N, F) their features.
        name: name of the evaluation.
        kind: kind of its items.
        neighbours: shared neighbours, or else CKA, whose values are the jackknife's pseudo-values.
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
        """Return the share of shared neighbours, or the CKA's value, of each photo."""
        found = np.full(len(known), np.nan)
        if known.sum() > NEIGHBOURS:
            both = answers[known], self._features[known]
            if self._neighbours:
                found[known] = shared_neighbours(*both, NEIGHBOURS)
            else:
                found[known] = linear_cka(*both)[1]
        return found


def are_captions(path: str) -> bool:
    """Return whether the first row of a file has the keys of captions of photos."""
    first = next(read_lines(path), "")
    return first.startswith("{") and parse_json(first, path, 1).keys() >= set(KEYS)


def read_photos(path: str, feats: str, seed: int = 0) -> list[Measure]:
    """Read captions {"image", "text"} with features of `vg extract-image-feats`.

    Args:
        path: captions.
        feats: features of their photos.
        seed: seed of the permutations.

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
    if len(captions) <= NEIGHBOURS:
        why = f"has {len(captions)} photos; {NEIGHBOURS} neighbours need more"
        raise DataError(why, path)
    name = os.path.basename(path)
    rows: Sequence[int] = [row_of[image] for image in captions]
    photos = CaptionedPhotos(name, captions, features.array[rows])
    found = list[Measure]()
    for title in ("looks", "shared neighbours", "CKA"):
        for kind, own in (("photos", photos.features), (PERMUTED, photos.permuted(seed))):
            full = f"{name} {title}" + (f", {kind}" if kind == PERMUTED else "")
            if title == "looks":
                found.append(Looks(photos, own, full, "words" if kind == "photos" else kind))
            else:
                found.append(Alignment(photos, own, full, kind, title != "CKA"))
    return found
