"""What is left of what was found, by hand."""

from __future__ import annotations

import numpy as np

from vgtools.retrieval.exact import SearchResult
from vgtools.retrieval.texts import first_of, leave_out

FOUND = SearchResult(
    np.array([[3, -1, 2, 5], [7, 3, 3, -1]], np.int32),
    np.array([[0.9, 0.0, 0.5, 0.4], [0.8, 0.7, 0.6, 0.0]], np.float32),
)


def test_what_is_no_image_is_passed_over_wherever_it_is() -> None:
    best = first_of(FOUND, np.ones((2, 4), bool), 3)
    assert best.rows.tolist() == [[3, 2, 5], [7, 3, 3]]
    assert best.scores.tolist() == [
        FOUND.scores[0, [0, 2, 3]].tolist(),
        FOUND.scores[1, :3].tolist(),
    ]


def test_the_own_row_is_left_out_and_the_rest_keeps_its_order() -> None:
    best = leave_out(FOUND, np.array([2, 3]), 3)
    assert best.rows.tolist() == [[3, 5, -1], [7, -1, -1]]
    assert best.scores.tolist() == np.array([[0.9, 0.4, 0], [0.8, 0, 0]], np.float32).tolist()
    assert leave_out(FOUND, np.array([-1, -1]), 2).rows.tolist() == [[3, 2], [7, 3]]
