"""Controls of entity grounding: the rates of a head without the word that asks.

A head may be right because it follows the word, or because entities are large, or few, or come
first among the regions. The same head asked with a wrong word, and rules that see no word at all,
know all of that; only the margin above them is due to the word. The paper (section 3.1) compares
with the most confident region alone.

Axes: P phrases of a caption, R regions of its photo, G gold boxes of its phrases, n queries of a
caption, X heads of all layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from vgtools.images.boxes import iou
from vgtools.images.regions import RegionSet
from vgtools.io.arrays import Array

OVERLAP = 0.5  # a region is right from this IoU with a gold box on
_SAME = 0.99  # a region from this IoU on is a gold box itself, rounding aside

# Rules that never see the word. A gold box may be of any entity of the caption; each box is taken
# once.
RULES = (
    "random region", "first region", "largest region", "random gold box", "largest gold box",
)  # fmt: skip


def blind_rates(boxes: Sequence[Array], regions: RegionSet, hits: Array) -> Array:
    """Return how often each of `RULES` is right for each phrase: (P, 5), shares.

    Args:
        boxes: P times (G, 4), gold boxes of each phrase.
        regions: regions of the photo.
        hits: (P, R) bool, regions that are right.
    """
    gold = np.unique(np.concatenate(boxes), axis=0)
    right = np.stack([iou(own, gold).max(0) >= OVERLAP for own in boxes])  # (P, G)
    rules = (
        hits,
        hits[:, :1],
        hits[:, _largest(regions.boxes)],
        right,
        right[:, _largest(gold)],
    )
    return np.stack([rule.mean(1) for rule in rules], 1)


def _largest(boxes: Array) -> Array:
    """Return which boxes have the largest area: (N,) bool; equal ones share the answer."""
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    return np.asarray(areas == areas.max())


def annotated(boxes: Sequence[Array], regions: RegionSet) -> Array:
    """Return for which phrases a gold box itself is among the regions: (P,) bool."""
    return np.array([bool((iou(own, regions.boxes) >= _SAME).any()) for own in boxes])


def asked_with_another_entity(
    boxes: Sequence[Array], phrase: Array, hits: Array, top: Array
) -> tuple[Array, Array]:
    """Return how often a head is right for a phrase when another entity of the caption asks.

    Another entity has other boxes; where there are several, it is their mean.

    Args:
        boxes: P times (G, 4), gold boxes of each phrase.
        phrase: (n,) phrase of the caption that each query is about.
        hits: (P, R) bool, regions that are right.
        top: (n, X) region that each head answers each query with.

    Returns:
        (n,) bool, there is another entity; (n, X) shares, 0 where there is none.
    """
    numbers = phrase.tolist()
    other = [[not np.array_equal(boxes[p], boxes[q]) for q in numbers] for p in numbers]
    others = np.array(other, bool).reshape(len(numbers), len(numbers))
    right = hits[phrase][:, top]  # (n asked about, n asking, X)
    count = others.sum(1)
    total = (right * others[:, :, None]).sum(1)
    return count > 0, total / np.maximum(count, 1)[:, None]
