"""The pointing game and segmentation against brute force and numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vgtools.analysis.bootstrap import difference_ends, mean_share_ends
from vgtools.images.maps import Located, Query
from vgtools.images.masks import Outline
from vgtools.io.arrays import Array
from vgtools.systems.visual_awareness import localisation
from vgtools.systems.visual_awareness.localisation import (
    area,
    enlarged,
    inside,
    intervals,
    judge,
    overlap,
    point_at,
    score,
    segment,
)


def located(heat: list[float], shape: tuple[int, int], **query: object) -> Located:
    frame = (0.0, 0.0, 1.0, 1.0)
    return Located(Query("a b", "x.jpg", 1, **query), np.array(heat), shape, frame)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------- pointing


def test_the_point_is_the_centre_of_the_hottest_cell() -> None:
    # 2 rows of 4 columns on 400×100: cells are 100×50, the sixth is row 1, column 1.
    found = located([0, 1, 0, 0, 0, 2, 2, 0], (2, 4), boxes=((110, 60, 190, 90),), size=(400, 100))
    assert found.point == (0.375, 0.75)
    # Its centre (150, 75) is in the box; its corner (100, 50) is not, nor with x and y swapped.
    # The picture's centre (200, 50) is not; one of eight cells is; the box has 80·30 of 40,000.
    assert point_at(found).tolist() == [1, 0, 1 / 8, 0.06, 1]


def test_a_box_between_cells_cannot_be_hit() -> None:
    found = located([1, 0, 0, 0], (2, 2), boxes=((30, 30, 70, 70),), size=(100, 100))
    assert point_at(found).tolist() == [0, 1, 0, 0.16, 0]
    nothing = located([], (2, 2), boxes=((0, 0, 100, 100),), size=(100, 100))
    assert nothing.point is None
    assert point_at(nothing).tolist() == [0, 1, 1, 1, 1]


def test_edges_count_and_any_box_will_do() -> None:
    points = np.array([[0.5, 0.5], [0.1, 0.1], [0.9, 0.5]])
    boxes = ((50, 20, 60, 30), (0, 0, 11, 5))
    assert inside(points, boxes, (100, 40)).tolist() == [True, True, False]


def test_area_of_boxes_is_that_of_their_union() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        corners = rng.integers(0, 30, (4, 2, 2))
        low, high = corners.min(1), corners.max(1) + 1
        boxes = tuple(map(tuple, np.concatenate([low, high], 1).astype(float).tolist()))
        painted = np.zeros((20, 30), bool)  # boxes beyond the bottom are cut off
        for x1, y1, x2, y2 in np.concatenate([low, high], 1):
            painted[y1:y2, x1:x2] = True
        assert area(boxes, (30, 20)) == pytest.approx(painted.mean())  # type: ignore[arg-type]


def test_a_centre_crop_points_into_the_picture() -> None:
    query = Query("a", "x", 1, boxes=((150.0, 40.0, 160.0, 60.0),), size=(200.0, 100.0))
    # The middle half of the width: columns at 75 and 125 px of 200.
    found = Located(query, np.array([0.0, 1.0]), (1, 2), (0.25, 0.0, 0.75, 1.0))
    assert found.point == (0.625, 0.5)
    assert point_at(found).tolist() == [0, 0, 0, 0.01, 0]


# ----------------------------------------------------------------------------------- segmentation


def test_enlarging_is_bilinear_as_torch_does_it() -> None:
    heat = np.random.default_rng(0).standard_normal((3, 5))
    tensor = torch.from_numpy(heat)[None, None]
    for height, width in ((9, 20), (7, 11), (2, 3), (64, 48)):
        expected = torch.nn.functional.interpolate(
            tensor, (height, width), mode="bilinear", align_corners=False
        )[0, 0].numpy()
        np.testing.assert_allclose(enlarged(heat, width, height), expected, atol=1e-12)


def test_what_a_crop_does_not_show_is_not_segmented() -> None:
    heat = np.array([[0.0, 1.0]])
    mask = segment(heat, 8, 2, (0.25, 0.0, 0.75, 1.0))
    assert mask.tolist() == [[False] * 4 + [True] * 2 + [False] * 2] * 2
    # Enlarged over pixels 2 to 5: 0, .25, .75, 1; the cut is .45.


def test_the_cut_is_45_per_cent_of_the_range() -> None:
    heat = np.array([[-1.0, -0.11, -0.09, 1.0]])  # the cut is -.1
    assert segment(heat, 4, 1).tolist() == [[False, False, True, True]]
    assert not segment(np.ones((2, 2)), 4, 4).any()


def test_iou_of_masks() -> None:
    a = np.array([[True, True, False, False]])
    b = np.array([[False, True, True, True]])
    assert overlap(a, b) == 0.25
    assert overlap(a, a) == 1.0
    assert overlap(a & False, a & False) == 0.0


def test_a_class_is_judged_by_its_mask() -> None:
    square = Outline((np.array([[2, 0], [4, 0], [4, 4], [2, 4]], np.float32),))
    found = located([0, 1, 0, 1], (2, 2), outlines=(square,), size=(4, 4))
    verdict = judge(found)
    assert verdict is not None
    assert verdict.marks == {"iou": 1.0}
    # The map by distance is the same in all four cells: no pixel; the whole picture: a half.
    assert verdict.values.tolist() == [1.0, 0.0, 0.5]
    assert judge(located([0, 1], (1, 2))) is None


# -------------------------------------------------------------------------------------- intervals


def test_intervals_are_those_of_samples_of_photos(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    photos = [f"p{i}" for i in rng.integers(0, 12, 60)]
    groups = [f"g{i}" for i in rng.integers(0, 3, 60)]
    values = rng.random((60, 2)).round(2)
    record = intervals(values, photos, ["a", "b"], groups, seed=5)

    names = sorted(set(photos))

    def mean_of(drawn: list[int]) -> list[float]:
        means = list[Array]()
        for group in sorted(set(groups)):
            taken = [
                value
                for value, photo, own in zip(values, photos, groups, strict=True)
                for _ in range(drawn[names.index(photo)])
                if own == group
            ]
            if taken:
                means.append(np.mean(taken, axis=0))
        return [float(mean) for mean in np.mean(means, axis=0)]

    drawn = np.random.default_rng(5).multinomial(12, np.full(12, 1 / 12), 1000).tolist()
    sampled = np.array([mean_of(weights) for weights in drawn])
    without = np.array([mean_of([int(i != left) for i in range(12)]) for left in range(12)])
    error = np.sqrt(11 / 12 * ((without - without.mean(0)) ** 2).sum(0))
    for column, name in enumerate("ab"):
        mean = np.mean(
            [values[[g == group for g in groups], column].mean() for group in set(groups)]
        )
        assert record[name] == pytest.approx(100 * mean, abs=0.006)
        found = (sampled[:, column], without[:, column], 12, error[column])
        low, high = mean_share_ends(mean, *found)
        assert record[f"{name}_low"] == pytest.approx(100 * low, abs=0.006)
        assert record[f"{name}_high"] == pytest.approx(100 * high, abs=0.006)
        difference = intervals(values, photos, ["a", "b"], groups, seed=5, signed=[name])
        low, high = difference_ends(mean, *found)
        assert difference[f"{name}_low"] == pytest.approx(100 * low, abs=0.006)
        assert difference[f"{name}_high"] == pytest.approx(100 * high, abs=0.006)
    assert localisation._SAMPLES % localisation._BLOCK == 0


def test_a_class_without_a_photo_in_a_sample_is_left_out_of_it() -> None:
    # Each class is in one of two photos. A fourth of the samples has the first alone, whose mean
    # is 1; another fourth the second alone, 0; the rest both, .5.
    record = intervals(np.array([[1.0], [0.0]]), ["a", "b"], ["share"], ["cat", "dog"])
    assert record == {"share": 50.0, "share_low": 0.0, "share_high": 100.0}


def test_the_record_of_pointing() -> None:
    hit = located([1, 0, 0, 0], (2, 2), boxes=((0, 0, 30, 30),), size=(100, 100))
    miss = located([0, 0, 0, 1], (2, 2), boxes=((0, 0, 60, 60),), size=(100, 100))
    verdicts = [verdict for found in (hit, hit, hit, miss) if (verdict := judge(found))]
    record = score(verdicts)
    assert (record["queries"], record["images"]) == (4, 1)
    assert (record["hit"], record["centre"], record["above_centre"]) == (75.0, 25.0, 50.0)
    assert record["random_cell"] == 25.0
    assert record["box_area"] == pytest.approx(100 * (3 * 0.09 + 0.36) / 4, abs=0.01)
    assert (record["hit_low"], record["hit_high"]) == (0.0, 100.0), "one photo shows no spread"
    assert (record["above_centre_low"], record["above_centre_high"]) == (-100.0, 100.0)


@pytest.mark.parametrize(("photos", "share"), [(10, 0.04), (10, 0.4), (20, 0.04), (50, 0.1)])
def test_intervals_of_few_photos_and_rare_hits_cover(photos: int, share: float) -> None:
    rng = np.random.default_rng(photos)
    names = [str(number) for number in range(photos)]
    held = differences = 0
    for _ in range(200):
        hits = (rng.random((2, photos)) < share).astype(float)
        values = np.stack([hits[0], hits[0] - hits[1]], 1)
        found = intervals(values, names, ["hit", "above"], signed=["above"])
        held += found["hit_low"] <= 100 * share <= found["hit_high"]
        differences += found["above_low"] <= 0 <= found["above_high"]
    # Of 95 %, 200 draws show less than 91 % in one of 200 times.
    assert min(held, differences) >= 182


def test_the_record_of_segmentation_is_the_mean_over_classes() -> None:
    half = Outline((np.array([[2, 0], [4, 0], [4, 4], [2, 4]], np.float32),))
    right = Query("cat cats", "a", None, size=(4, 4), outlines=(half,))
    wrong = Query("dog dogs", "b", None, size=(4, 4), outlines=(half,))
    frame = (0.0, 0.0, 1.0, 1.0)
    hot, cold = np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 0.0])
    found = [Located(right, hot, (2, 2), frame)] * 3 + [Located(wrong, cold, (2, 2), frame)]
    record = score([verdict for each in found if (verdict := judge(each))])
    assert record["classes"] == 2
    assert record["map"]["over_0.5"] == 50.0  # 75 over all pictures
    assert record["whole_picture"]["over_0.4"] == 100.0
    assert record["whole_picture"]["over_0.5"] == 0.0  # .5 does not exceed .5
