"""Captions under the microscope, and regions sorted by the things that they show.

Source: Li et al. 2020 (What Does BERT with Vision Look At?), figures 1 and 5.

Axes: L layers, W words, R regions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.images.boxes import iou
from vgtools.images.regions import RegionSet
from vgtools.io.arrays import Array

if TYPE_CHECKING:
    from PIL.Image import Image

_ACTIVE_REGION = 0.1  # a region without gold is shown where a word gives it this share
_MOST_OTHERS = 4
_OVERLAP = 0.5
_DIGITS = 5  # digits of attention in rows


@dataclass(frozen=True)
class Group:
    """Regions that show one thing."""

    name: str
    gold: bool  # a gold box is near; else the name carries an asterisk
    regions: list[int]


@dataclass(frozen=True)
class AttentionExample:
    """The regions that each word of a caption attends to, by the best head of each layer."""

    image: str
    text: str
    words: list[tuple[int, int]]  # W spans
    regions: RegionSet
    groups: list[Group]  # those with gold first
    heads: list[str]  # L names of the best heads
    chosen: list[int]  # layers of the figure, from 0
    weights: Array  # (L, W, R) share of the word's attention
    picture: Image | None  # None: it could not be shown
    rows: Sequence[dict[str, Any]] = ()  # W rows of `attention_rows`, of all heads

    def grouped(self) -> Array:
        """Return the weight of each group: (L, W, groups), sums over its regions."""
        if not self.groups:
            return np.zeros((*self.weights.shape[:2], 0))
        return np.stack([self.weights[:, :, g.regions].sum(-1) for g in self.groups], -1)


def attention_rows(
    text: str,
    image: str,
    words: Sequence[tuple[int, int]],
    regions: RegionSet,
    weights: Array,
    tokens: int,
) -> list[dict[str, Any]]:
    """Return a row per word: how much it attends to each region, by layer and head.

    The rest of a word's attention goes to the text. A word without a sub-word has null.

    Args:
        words: W spans.
        weights: (L, H, W, R).
        tokens: how many the text has, special ones included: even attention would give each of
            them, and each region, the same share.
    """
    facts: dict[str, Any] = {
        "tokens": tokens,
        "width": regions.width,
        "height": regions.height,
        "boxes": regions.boxes.tolist(),
    }
    if regions.labels is not None:
        facts["label"] = regions.labels
    shares = np.moveaxis(np.round(weights, _DIGITS), 2, 0)  # (W, L, H, R)
    return [
        {
            "text": text,
            "image": image,
            "span": list(span),
            **facts,
            "attention": np.ascontiguousarray(of_word) if of_word.any() else None,
        }
        for span, of_word in zip(words, shares, strict=True)
    ]


def make_groups(
    text: str,
    spans: Sequence[tuple[int, int]],
    boxes: Sequence[Array],
    regions: RegionSet,
    weights: Array,
) -> list[Group]:
    """Sort regions by the things that they show.

    A region with an IoU of 0.5 or more with a gold box belongs to the phrase whose box it fits
    best; the region closest to each gold box also belongs to the box's phrase. Phrases with the
    same boxes (one chain) are one group. Other regions that a word gives 10 % of its attention or
    more are groups of their own, four at most, marked with an asterisk.

    Args:
        spans: P phrases with boxes.
        boxes: P times (G, 4).
        weights: (layers, W, R) attention of words to regions.

    Source: Li et al. 2020, section 3.2. Deviation: the paper groups by hand.
    """
    names = list[str]()
    golds = list[Array]()
    for (start, end), gold in zip(spans, boxes, strict=True):
        if not any(np.array_equal(gold, other) for other in golds):
            names.append(text[start:end])
            golds.append(gold)
    overlap = np.array([iou(gold, regions.boxes).max(0) for gold in golds])
    overlap = overlap.reshape(len(golds), len(regions))
    owner = np.full(len(regions), -1)
    if len(golds):
        best = overlap.argmax(0)
        owner = np.where(overlap[best, np.arange(len(regions))] >= _OVERLAP, best, -1)
        for number, gold in enumerate(golds):
            closest = iou(gold, regions.boxes)
            for region in closest.argmax(1)[closest.max(1) > 0].tolist():
                owner[region] = number if owner[region] < 0 else owner[region]
    groups = [
        Group(name, True, np.flatnonzero(owner == number).tolist())
        for number, name in enumerate(names)
        if (owner == number).any()
    ]
    most = np.where(owner < 0, weights.max((0, 1), initial=0), 0)
    for region in np.argsort(-most, kind="stable")[:_MOST_OTHERS].tolist():
        if most[region] >= _ACTIVE_REGION:
            name = regions.labels[region] if regions.labels else f"region {region + 1}"
            groups.append(Group(name + "*", False, [region]))
    return groups
