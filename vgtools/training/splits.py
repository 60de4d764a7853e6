"""Captions to train and to validate on: read, split, held out by image."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, amount
from vgtools.io.files import dumps
from vgtools.io.streams import read_jsonl

Rows = list[tuple[int, str]]  # (feature row, caption)


@dataclass
class CaptionSplits:
    """The captions of a training."""

    train: Rows = field(default_factory=list)
    valid: Rows = field(default_factory=list)
    unsplit: int = 0  # captions without a split, left out as others have one

    def digest(self) -> str:
        """Return the sha256 of the captions."""
        return digest({"train": self.train, "valid": self.valid})


def digest(value: object) -> str:
    """Return the sha256 of a JSON value."""
    return hashlib.sha256(dumps(value)).hexdigest()


def photo_marks(ids: Iterable[str]) -> list[str]:
    """Return a hash of each photo's id, in order, by which a run knows it again.

    With 12 digits each, 100,000 photos agree with one of 10,000 others once in 300,000 times.
    """
    return sorted({hashlib.sha256(name.encode()).hexdigest()[:12] for name in ids})


def read_splits(
    path: str, ids: Sequence[str], split: str | None, valid_split: str | None
) -> CaptionSplits:
    """Return the captions to train and to validate on; in a file without splits all train.

    Args:
        path: file of the captions.
        ids: ids of the images.
        split: split to train on; None for all.
        valid_split: split to validate on.

    Raises:
        DataError: a row is not of this form, its image is not one of these, or no row is of
            `valid_split`.
    """
    row_of = {name: i for i, name in enumerate(ids)}
    splits = CaptionSplits()
    unsplit = Rows()
    others = 0
    for line, row in read_jsonl(path, {"image": str, "text": str}):
        given = row.get("split")
        if given is not None and not isinstance(given, str):
            raise DataError(f'"split" must be a string, got {given!r:.60}', path, line)
        if split is not None and given is not None and given not in (split, valid_split):
            others += 1
            continue
        if row["image"] not in row_of:
            why = f"the image {row['image']!r:.80} is not among the {len(row_of)} given images"
            raise DataError(f"{why}; add it, or leave the caption out", path, line)
        if given is not None and given == valid_split:
            part = splits.valid
        elif split is not None and given is None:
            part = unsplit
        else:
            part = splits.train
        part.append((row_of[row["image"]], row["text"]))
    if valid_split is not None and not splits.valid:
        why = f'no row has the "split" {valid_split!r:.40} that --valid-split names'
        raise DataError(f"{why}; name another, or --hold-out N images", path)
    if unsplit and not others and not splits.train and not splits.valid:
        return CaptionSplits(train=unsplit)
    splits.unsplit = len(unsplit)
    return splits


def hold_out(splits: CaptionSplits, number: int, path: str, ids: Sequence[str]) -> CaptionSplits:
    """Move the captions of some training images to validation: the same images for every seed.

    Args:
        splits: as `read_splits` returns them.
        number: how many images.
        path: file of the captions.
        ids: ids of the images.

    Raises:
        DataError: fewer than 2 images are left to train on, or images are in both parts.
    """
    # The hash of an image's id orders them: the choice depends on no seed, on no caption, and on no
    # order of images or captions.
    images = sorted(
        {image for image, _ in splits.train},
        key=lambda image: hashlib.sha256(ids[image].encode()).digest(),
    )
    if len(images) - number < 2:
        raise DataError(
            f"captions of {amount(len(images), 'image')} to train on, less {number} held out: at "
            "least 2 must stay, one to match and one to distinguish; check --split and the "
            '"split" of the rows',
            path,
        )
    held = set(images[:number])
    train = [row for row in splits.train if row[0] not in held]
    valid = splits.valid + [row for row in splits.train if row[0] in held]
    refuse_shared({image for image, _ in train}, {image for image, _ in valid}, path)
    return CaptionSplits(train, valid, splits.unsplit)


def refuse_shared(train: Iterable[object], valid: Iterable[object], path: str) -> None:
    """Refuse images that are both trained and validated on.

    Args:
        train: images to train on.
        valid: images to validate on.
        path: file of the captions.

    Raises:
        DataError: some are in both.
    """
    both = set(train) & set(valid)
    if both:
        why = f"{len(both)} images are in both training and validation; split by image"
        raise DataError(why, path)


def other_images(images: Sequence[int] | Array, seed: int) -> Array:
    """Give every image the captions of another image: a cycle through all of them, in random order.

    Args:
        images: (S,) the image of each caption.
        seed: decides the order.

    Returns:
        (S,) int64 the image that each caption now has; captions of one image stay together.
    """
    rows, place = np.unique(np.asarray(images, np.int64), return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(rows))
    other = np.empty(len(rows), np.int64)
    other[order] = rows[np.roll(order, 1)]
    return other[place.reshape(-1)]
