"""How well maps of heat find things: the pointing game, zero-shot segmentation, their controls.

Shares come with 95 % intervals of a bootstrap over photos: phrases of one photo are not
independent.

Zhang et al. 2019 (Visual awareness) show heat in section 5.1 and measure nothing; the measures are
from section 4.3 of Engilberge et al. 2018, whose retriever it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vgtools.analysis.bootstrap import difference_ends, draws, item_error, mean_share_ends
from vgtools.images.boxes import clip
from vgtools.images.maps import WHOLE, Frame, Located, cell_centres
from vgtools.images.masks import draw
from vgtools.images.phrases import PhraseBoxes, Size
from vgtools.io.arrays import Array

THRESHOLDS = (0.3, 0.4, 0.5)  # thresholds of IoU
_CUT = 0.45  # fraction of the range of a map above which a pixel belongs to the object
_SAMPLES = 1000
_BLOCK = 50  # samples at a time

# --------------------------------------------------------------------------------------- pointing


def inside(points: Array, boxes: PhraseBoxes, size: Size) -> Array:
    """Return whether points are inside a box.

    Args:
        points: (N, 2) x, y from 0 to 1 of the picture.
        boxes: in pixels; their edges count.
        size: width and height of the picture.

    Returns:
        (N,) bool.
    """
    corners = np.array(boxes, np.float64).reshape(-1, 4)
    at = np.asarray(points, np.float64)[:, None] * np.array(size)
    within = (at >= corners[:, :2]) & (at <= corners[:, 2:])
    found: Array = within.all(2).any(1)
    return found


def area(boxes: PhraseBoxes, size: Size) -> float:
    """Return the share of a picture that its boxes cover together: a random point's hit rate."""
    corners = clip(np.array(boxes, np.float64).reshape(-1, 4), *size)
    # The edges of all boxes cut the picture into cells that are wholly inside or outside each box,
    # so that the union of overlapping boxes is exact.
    x = np.unique(corners[:, [0, 2]])
    y = np.unique(corners[:, [1, 3]])
    middles = np.stack(np.meshgrid((x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2), 2)
    covered = inside(middles.reshape(-1, 2) / np.array(size), boxes, size)
    cells = np.outer(np.diff(y), np.diff(x)).reshape(-1)
    return float(cells[covered].sum() / (size[0] * size[1]))


def point_at(located: Located) -> Array:
    """Return the results of the pointing game for a phrase with boxes.

    Returns:
        (5,): whether the hottest cell's centre is inside a box; whether the picture's centre is;
        the share of cells whose centre is; the area of the boxes; whether any cell could hit.

    Source: Engilberge et al. 2018, section 4.3, the pointing game.
    Deviation: the published code takes the corner of the cell, and swaps x and y of maps that are
        not square.
    """
    query = located.query
    assert query.boxes is not None
    assert query.size is not None
    cells = inside(cell_centres(located.shape, located.frame), query.boxes, query.size)
    point = located.point
    hit = point is not None and inside(np.array([point]), query.boxes, query.size)[0]
    middle = inside(np.array([[0.5, 0.5]]), query.boxes, query.size)[0]
    covered = area(query.boxes, query.size)
    return np.array([hit, middle, cells.mean(), covered, cells.any()], np.float64)


def pointing(found: Sequence[Array], images: Sequence[str]) -> dict[str, Any]:
    """Return the hit rate in percent, and the hit rates of the controls.

    Args:
        found: results of N phrases, from `point_at`.
        images: image of each phrase.

    Returns:
        `hit`, `centre` (of the picture), `above_centre` (their difference), `random_cell`, each
        with an interval; `box_area` in percent, and `unreachable`: phrases whose boxes hold the
        centre of no cell.
    """
    values = np.array(found)
    columns = np.stack([values[:, 0], values[:, 1], values[:, 0] - values[:, 1], values[:, 2]], 1)
    names = ["hit", "centre", "above_centre", "random_cell"]
    record = intervals(columns, images, names, signed=["above_centre"])
    record["box_area"] = round(100 * float(values[:, 3].mean()), 2)
    return record | {"unreachable": int((values[:, 4] == 0).sum())}


# ----------------------------------------------------------------------------------- segmentation


def enlarged(heat: Array, width: int, height: int, frame: Frame = WHOLE) -> Array:
    """Return a map at every pixel of a picture, bilinear between the centres of cells.

    Args:
        heat: (h, w).
        width: width of the picture, px.
        height: height of the picture, px.
        frame: the part of the picture that the map covers; pixels outside are NaN.

    Returns:
        (H, W) float64.
    """
    down = _weights(heat.shape[0], height, frame[1], frame[3])
    across = _weights(heat.shape[1], width, frame[0], frame[2])
    whole: Array = down @ heat @ across.T
    return whole


def _weights(cells: int, pixels: int, start: float, end: float) -> Array:
    """Return how much each pixel of a line takes of each cell, (pixels, cells)."""
    share = ((np.arange(pixels) + 0.5) / pixels - start) / (end - start)
    # Heat is known at the centres of cells; beyond the outermost centres the nearest cell's heat
    # holds.
    place = np.clip(share * cells - 0.5, 0, cells - 1)
    weights: Array = np.maximum(0.0, 1 - np.abs(place[:, None] - np.arange(cells)))
    weights[(share < 0) | (share > 1)] = np.nan
    return weights


def segment(heat: Array, width: int, height: int, frame: Frame = WHOLE) -> Array:
    """Return the pixels of a picture above a threshold of a map, (H, W) bool.

    The threshold is min + 0.45 (max - min) of the enlarged map. In a map that is the same
    everywhere, no pixel is above it.

    Source: Engilberge et al. 2018, section 4.3 and its code.
    Deviation: the code compares the map with 0.45 (max - min), as if its minimum were 0, on
        pictures squashed to 200×200.
    """
    whole = enlarged(heat, width, height, frame)
    low = np.nanmin(whole)
    return np.asarray(whole > low + _CUT * (np.nanmax(whole) - low))  # NaN compares as False.


def overlap(mask: Array, gold: Array) -> float:
    """Return the intersection over union of two masks; 0 where both are empty."""
    union = np.count_nonzero(mask | gold)
    return float(np.count_nonzero(mask & gold) / union) if union else 0.0


def segment_as(located: Located, gold: Array) -> Array:
    """Return the IoU of a class's mask with its map's, and with the masks of the controls.

    Args:
        located: the class in a picture.
        gold: (H, W) bool, the union of its instances.

    Returns:
        (3,): the IoU of the map, of a map that falls with the distance from the picture's centre,
        which is the same for all, and of the whole picture.
    """
    height, width = gold.shape
    away = cell_centres(located.shape) - 0.5
    centre = -np.hypot(*away.T).reshape(located.shape)
    found = 0.0
    if len(located.heat):
        heat = located.heat.reshape(located.shape)
        found = overlap(segment(heat, width, height, located.frame), gold)
    middle = overlap(segment(centre, width, height), gold)
    return np.array([found, middle, float(gold.mean())])


def segmentation(
    found: Sequence[Array], images: Sequence[str], classes: Sequence[str]
) -> dict[str, Any]:
    """Return for each threshold the share of pictures with a class whose IoU exceeds it.

    The share is in percent and the mean over classes.

    Args:
        found: results of N classes in pictures, from `segment_as`.
        images: image of each result.
        classes: class of each result.

    Returns:
        For the `map`, the `centre` and the `whole_picture`: `over_0.3` … with intervals.

    Source: Engilberge et al. 2018, section 4.3, mAP of semantic segmentation.
    Deviation: the published code sorts the pictures by IoU and counts from the second on: where m
        of the n pictures with a class exceed the threshold, its AP is (m - 1) / n, here it is m /
        n; for m = 0 both are 0. Pictures without the class have IoU 0 there, which changes nothing.
    """
    values = np.array(found)
    names = [f"over_{threshold}" for threshold in THRESHOLDS]
    record: dict[str, Any] = {"classes": len(set(classes))}
    for column, name in enumerate(("map", "centre", "whole_picture")):
        over = (values[:, column, None] > np.array(THRESHOLDS)).astype(np.float64)
        record[name] = intervals(over, images, names, classes)
    return record


# -------------------------------------------------------------------------------------- verdicts


@dataclass(frozen=True)
class Verdict:
    """The verdict on a map, and on the controls."""

    image: str
    text: str
    marks: dict[str, Any]  # entries of its row: "hit" or "iou"
    values: Array  # result of `point_at` or `segment_as`


def judge(located: Located) -> Verdict | None:
    """Compare a map with the boxes or masks of its query; None if it has neither."""
    query = located.query
    if query.outlines is not None and query.size is not None:
        values = segment_as(located, draw(query.outlines, *map(int, query.size)))
        return Verdict(query.image, query.text, {"iou": round(float(values[0]), 4)}, values)
    if query.boxes:
        values = point_at(located)
        return Verdict(query.image, query.text, {"hit": bool(values[0])}, values)
    return None


def score(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Return one record of verdicts of one kind: `pointing` or `segmentation`."""
    images = [verdict.image for verdict in verdicts]
    values = [verdict.values for verdict in verdicts]
    record = {"queries": len(verdicts), "images": len(set(images))}
    if "hit" in verdicts[0].marks:
        return record | pointing(values, images)
    return record | segmentation(values, images, [verdict.text for verdict in verdicts])


# -------------------------------------------------------------------------------------- intervals


def intervals(
    values: Array,
    photos: Sequence[str],
    names: Sequence[str],
    groups: Sequence[str] = (),
    seed: int = 0,
    signed: Collection[str] = (),
) -> dict[str, Any]:
    """Return means in percent with 95 % intervals of a bootstrap over photos.

    Args:
        values: (N, K), from 0 to 1.
        photos: photo of each of N values.
        names: names of K columns.
        groups: group of each of N values: the mean is taken over the means of groups. A sample
            without any value of a group leaves the group out.
        seed: decides which samples are drawn.
        signed: names of columns of differences, from -1 to 1.

    Returns:
        `NAME`, `NAME_low` and `NAME_high` of each column.
    """
    _, photo = np.unique(photos, return_inverse=True)
    count = int(photo.max()) + 1
    group = np.unique(groups, return_inverse=True)[1] if len(groups) else np.zeros_like(photo)
    sums = np.zeros((count, group.max() + 1, values.shape[1]))  # (G, P, K)
    np.add.at(sums, (photo, group), values)
    totals = np.zeros((count, group.max() + 1, 1))
    np.add.at(totals, (photo, group), 1)
    mean = _mean(sums.sum(0)[None], totals.sum(0)[None])[0]
    sampled = list[Array]()
    for block in np.split(draws(count, _SAMPLES, seed), _SAMPLES // _BLOCK):
        drawn = block.astype(np.float64)
        sampled.append(_mean(np.tensordot(drawn, sums, 1), np.tensordot(drawn, totals, 1)))
    samples = np.concatenate(sampled).T
    if count == 1:
        without = np.empty((len(names), 0))
    else:
        without = _mean(sums.sum(0) - sums, totals.sum(0) - totals).T
    record: dict[str, Any] = {}
    for place, (name, value) in enumerate(zip(names, mean.tolist(), strict=True)):
        whole = bool(np.isin(values[:, place], (0, 1)).all())
        items = len(values) if whole else None
        low, high = _ends(value, samples[place], without[place], items, name in signed)
        record |= {name: value, f"{name}_low": low, f"{name}_high": high}
    return {name: round(100 * float(value), 2) for name, value in record.items()}


def _mean(sums: Array, totals: Array) -> Array:
    """Return the mean over the groups of values that are there, (S, K), of (S, P, K), (S, P, 1)."""
    found: Array = (sums / np.maximum(totals, 1)).sum(1) / np.maximum((totals > 0).sum(1), 1)
    return found


def _ends(
    value: float, samples: Array, without: Array, items: int | None, signed: bool
) -> list[float]:
    """Return the ends of the interval of a mean.

    Args:
        value: the mean.
        samples: (S,) the same of each sample.
        without: (G,) the same without each photo; (0,) for a single photo.
        items: number of values that are 0 or 1; None for other values.
        signed: the mean is of differences.
    """
    size = max(len(without), 1)
    apart = without - without.mean() if len(without) else without
    error = float(((size - 1) / size * (apart**2).sum()) ** 0.5)
    if signed:
        return difference_ends(value, samples, without, size, error)
    if items is not None:
        error = max(error, float(item_error(value, items)))
    return mean_share_ends(value, samples, without, size, error)
