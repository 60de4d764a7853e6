"""Groups of regions that show one thing."""

from __future__ import annotations

import numpy as np

from tests.tiny.report import BOXES, EVIL, example, regions
from vgtools.systems.attention_probes.examples import make_groups


def test_regions_are_sorted_by_what_they_show() -> None:
    groups = example().groups
    assert [(g.name, g.gold, g.regions) for g in groups] == [
        ("A dog", True, [0, 1]),
        ("a cat", True, [2]),
        (EVIL + "*", False, [3]),  # a word gives it 12.5 %; region 4 gets nothing and is left out
    ]
    np.testing.assert_allclose(example().grouped()[2, 1], [0.7, 0.05, 0.125])


def test_the_closest_region_stands_for_a_box_that_none_fits() -> None:
    weights = np.zeros((1, 1, 5))
    far = make_groups("a b", [(0, 1)], [np.array([[0.0, 80, 100, 100]])], regions(), weights)
    assert [(g.name, g.regions) for g in far] == [("a", [2])], (
        "IoU 0.286 with region 3, below 0.5 and yet the closest"
    )
    same = make_groups("a b", [(0, 1), (2, 3)], [BOXES[:1], BOXES[:1]], regions(), weights)
    assert [(g.name, g.regions) for g in same] == [("a", [0, 1])], "one chain is one group"
    weights[0, 0, 4] = 0.3
    assert [g.name for g in make_groups("a", [], [], regions(), weights)] == ["region 5*"]
