"""Ranks both ways against loops, and intervals against samples drawn by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vgtools.analysis import recall
from vgtools.analysis.bootstrap import share_ends


def by_loops(scores: np.ndarray, own: list[int]) -> tuple[list[int], list[int]]:
    """Return the ranks of images for texts and of texts for images, by sorting."""
    texts = [
        sorted(range(scores.shape[1]), key=lambda i: (-scores[t, i], i)).index(own[t]) + 1
        for t in range(len(own))
    ]
    images = []
    for i in range(scores.shape[1]):
        order = sorted(range(len(own)), key=lambda t: (-scores[t, i], t))
        images.append(min(order.index(t) for t in range(len(own)) if own[t] == i) + 1)
    return texts, images


@pytest.mark.parametrize("block", [1, 7, 1 << 22])
def test_ranks_are_those_of_sorting_with_ties_to_the_lower_row(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "_BLOCK", block)
    rng = np.random.default_rng(0)
    own = np.array([0, 1, 2, 3, 4, 0, 1, 2, 2, 4, 3, 0])
    scores = rng.integers(0, 4, (12, 5)).astype(np.float32)  # many ties
    texts, images = by_loops(scores, own.tolist())
    assert recall.text_ranks(scores, own).tolist() == texts
    assert recall.image_ranks(scores, own).tolist() == images


def test_a_text_that_finds_nothing_is_last_both_ways() -> None:
    scores = np.array([[-np.inf, -np.inf], [0.5, 0.2]])
    assert recall.text_ranks(scores, np.array([0, 1])).tolist() == [2, 2]
    assert recall.image_ranks(scores, np.array([0, 1])).tolist() == [2, 1]


def test_recall_median_and_chance_by_hand() -> None:
    order = np.array([[9.0, 1, 2], [8, 9, 1], [1, 2, 9], [1, 2, 3], [3, 2, 1]])
    own = np.array([0, 0, 1, 2, 2])
    # Ranks of the own image: 1, 2, 2, 1, 3. Of the best own text: image 0: 1 (9 of 9, 8, 3, 1, 1),
    # image 1: the third text has 2, after 9 and before two later 2: 2; image 2: 3 after 9: 2.
    found = recall.both_ways([(order[:2], order[:2]), (order[2:], order[2:])], own)
    assert found["without"] == 0
    texts, images = found["text_to_image"], found["image_to_text"]
    assert (texts["r1"], texts["r5"], texts["median_rank"]) == (40.0, 100.0, 2.0)
    assert (images["r1"], images["r5"], images["median_rank"]) == (33.33, 100.0, 2.0)
    assert texts["chance"] == {"r1": 33.33, "r5": 100.0, "r10": 100.0}
    # Images of 2, 1 and 2 of the five texts: (2/5 + 1/5 + 2/5) / 3.
    assert images["chance"]["r1"] == 33.33


def test_chance_is_what_random_orders_give() -> None:
    right, count = np.array([1, 3]), 20
    rng = np.random.default_rng(0)
    ranks = np.array([rng.permutation(count)[:n].min() for n in [1] * 20_000 + [3] * 20_000])
    found = recall._chance(right, count)["chance"]
    for k in (1, 5, 10):
        share = float((ranks < k).mean())
        assert found[f"r{k}"] == pytest.approx(100 * share, abs=100 * 4 * 0.5 / np.sqrt(40_000))


def test_intervals_are_of_images_drawn_with_their_texts() -> None:
    rng = np.random.default_rng(1)
    own = np.sort(rng.permutation(np.arange(150) % 30))
    order = rng.standard_normal((150, 30))
    order[own < 10, own[own < 10]] = 9.0  # the first ten images are always found
    found = recall.both_ways([(order, order)], own, samples=400, seed=3)["text_to_image"]
    ranks = np.array(by_loops(order, own.tolist())[0])
    draws = np.random.default_rng(3).multinomial(30, np.full(30, 1 / 30), 400)
    medians = []
    for drawn in draws:
        sample = np.concatenate([np.repeat(ranks[own == i], drawn[i]) for i in range(30)])
        medians.append(np.median(sample))
    hits = np.array([np.count_nonzero(ranks[own == i] <= 5) for i in range(30)])
    ends = share_ends(hits, np.full(30, 5), draws)
    assert [found["r5_low"], found["r5_high"]] == pytest.approx(
        [100 * end for end in ends], abs=0.006
    )
    assert [found["median_rank_low"], found["median_rank_high"]] == pytest.approx(
        np.quantile(medians, [0.025, 0.975]).tolist(), abs=0.006
    )
    # Texts of one image agree: drawn one by one they would promise too much.
    single = recall.both_ways([(order, order)], own, samples=400)["text_to_image"]
    assert single["r5_high"] - single["r5_low"] > 3.92 * 100 * np.sqrt(0.25 / 150)


def test_an_order_may_differ_from_what_is_compared_between_texts() -> None:
    order = np.array([[2.0, 1.0], [1.0, 2.0]])
    relevance = np.array([[0.1, 0.9], [0.8, 0.2]])
    found = recall.both_ways([(order, relevance)], np.array([0, 1]))
    assert found["text_to_image"]["r1"] == 100.0
    assert found["image_to_text"]["r1"] == 0.0


def test_folds_are_consecutive_images_with_their_own_texts() -> None:
    rng = np.random.default_rng(3)
    own = np.array([0, 3, 1, 4, 2, 2, 0, 1, 4, 3, 3])
    scores = rng.random((11, 5))

    def ranked(texts: np.ndarray, columns: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        part = scores[texts][:, columns]
        return [(part[:2], part[:2]), (part[2:], part[2:])]

    found = recall.mean_of_folds(own, 2, ranked)
    assert (found["count"], found["images"]) == (2, 2)
    expected: dict[str, list[float]] = {"text_to_image": [], "image_to_text": []}
    for columns in ([0, 1, 2], [3, 4]):
        rows = [t for t in range(11) if own[t] in columns]
        part = scores[rows][:, columns]
        texts, images = by_loops(part, [columns.index(own[t]) for t in rows])
        expected["text_to_image"].append(100 * float(np.mean(np.array(texts) == 1)))
        expected["image_to_text"].append(100 * float(np.mean(np.array(images) == 1)))
    for way, values in expected.items():
        assert found[way]["r1"] == round(float(np.mean(values)), 2)


def test_folds_are_averaged_before_they_are_rounded() -> None:
    # 7, 6 and 6 photos, of which the first alone is found by its text: 14.29, 16.67 and 16.67 to
    # two places, whose mean is 15.88; that of a seventh and two sixths is 15.873.
    def ranked(texts: np.ndarray, columns: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        first = np.tile(np.arange(len(columns)) == 0, (len(texts), 1)).astype(float)
        return [(first, first)]

    assert recall.mean_of_folds(np.arange(19), 3, ranked)["text_to_image"]["r1"] == 15.87
