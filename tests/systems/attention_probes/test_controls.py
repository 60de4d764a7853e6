"""Word-blind controls by hand: three entities, four regions, attention that can be read off."""

from __future__ import annotations

import numpy as np
import pytest

from vgtools.images.regions import RegionSet
from vgtools.systems.attention_probes.controls import (
    RULES,
    annotated,
    asked_with_another_entity,
    blind_rates,
)
from vgtools.systems.attention_probes.scores import (
    BLIND,
    ENTITY,
    OTHER_CAPTION,
    OTHER_ENTITY,
    HeadScores,
    records,
)

MAN, DOG, BALL = ([0.0, 0, 40, 80], [50.0, 40, 90, 80], [10.0, 85, 20, 95])
# A man; a dog; two words of one chain, he and she: the man once more, and the ball.
BOXES = [np.array(boxes) for boxes in ([MAN], [DOG], [MAN, BALL])]
# In the file: the dog, the man a little off, and two of the largest area.
REGIONS = RegionSet(
    np.ones((4, 2), np.float32),
    np.array([DOG, [0.0, 0, 40, 72], [0.0, 0, 100, 50], [50.0, 0, 100, 100]]),
    np.ones(4, np.float32),
    None,
    100,
    100,
)
HITS = np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0]], bool)


def test_rules_that_see_no_word_by_hand() -> None:
    found = dict(zip(RULES, blind_rates(BOXES, REGIONS, HITS).T.tolist(), strict=True))
    assert found["random region"] == [0.25, 0.25, 0.25]
    assert found["first region"] == [0, 1, 0]
    assert found["largest region"] == [0, 0, 0], "of two that are equally large, none is right"
    # Three gold boxes: the man counts once, although two phrases have him.
    assert found["random gold box"] == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    assert found["largest gold box"] == [1, 0, 1]
    shared = blind_rates(BOXES, REGIONS, np.array([[0, 0, 1, 0]] * 3, bool))
    assert shared[:, RULES.index("largest region")].tolist() == [0.5] * 3


def test_regions_of_the_annotation_are_named() -> None:
    assert annotated(BOXES, REGIONS).tolist() == [False, True, False], "0.9 of a box is another one"


def test_a_head_that_follows_the_word_and_one_that_does_not() -> None:
    phrase = np.array([0, 1, 2])
    # The first head answers with the asking word's region, the second always with the man's.
    top = np.array([[1, 1], [0, 1], [1, 1]])
    asked, rates = asked_with_another_entity(BOXES, phrase, HITS, top)
    assert asked.tolist() == [True, True, True]
    # The man, asked by the dog (0) and by the third (1): 0 and 1. The dog, by either: never.
    assert rates[:, 0].tolist() == [0.5, 0, 0.5]
    assert rates[:, 1].tolist() == [1, 0, 1]
    # Phrases of one chain are one entity: neither is another one's wrong word.
    asked, rates = asked_with_another_entity(BOXES, np.array([0, 0]), HITS, top[:2])
    assert (asked.tolist(), rates.tolist()) == ([False, False], [[0, 0], [0, 0]])


def test_the_headline_is_paired_over_photos_by_hand() -> None:
    scores = HeadScores(2, samples=200)
    images = [f"photo{n}" for n in range(40)]
    number = np.arange(40)
    zero = np.zeros(40, np.int64)
    right = np.zeros((40, 2), bool)
    right[:30, 0] = True  # 75 %
    right[:10, 1] = True
    mass = np.full((40, 2), 0.5)
    scores.add([ENTITY], images, number, zero, right, mass, np.zeros(40), right.any(1))
    wrong = np.zeros((40, 2))
    wrong[:10] = 0.5  # where the head is right, too: 12.5 % of all
    both = np.concatenate([right, wrong], 1)
    scores.add([OTHER_CAPTION], images[:30], number[:30], zero[:30], both[:30])
    # The same caption's other entity draws the head away, so that the difference to it is larger.
    drawn = np.concatenate([right, np.zeros((40, 2))], 1)
    scores.add([OTHER_ENTITY], images[:30], number[:30], zero[:30], drawn[:30])
    blind = np.zeros((40, 6))
    blind[:, 0] = 0.25
    blind[:20, 5] = 1
    scores.add([BLIND], images, number, zero, np.concatenate([right, blind], 1))
    *_, rule, summary = (
        r for r in records(scores, scores, 1, 2) if r.get("control") in (None, RULES[0])
    )
    controls = [r for r in records(scores, scores, 1, 2) if r["kind"] == "control"]
    first, second, *rules = controls
    assert first["control"] == "asked by a caption of another photo"
    assert second["control"] == "asked by another entity of the caption"
    assert [r["control"] for r in rules] == list(RULES)
    assert second["difference"] == 100 > first["difference"]
    assert (first["entities"], first["accuracy"]) == (30, 100)
    assert first["baseline"] == pytest.approx(100 * 5 / 30, abs=1e-4)
    assert summary["word_specific"] == first["difference"] == pytest.approx(250 / 3, abs=1e-4)
    assert summary["word_specific_low"] < 250 / 3 < summary["word_specific_high"]
    # Unpaired, a photo's right and wrong answer would vary apart: ten photos of 30 have a half.
    spread = 1.96 * 100 * np.sqrt(np.var([0.5] * 10 + [1.0] * 20) / 30)
    width = (summary["word_specific_high"] - summary["word_specific_low"]) / 2
    assert width == pytest.approx(spread, rel=0.25)
    assert (rule["baseline"], rule["accuracy"], rule["difference"]) == (25, 75, 50)
    assert summary["annotated_regions"] == 50
    assert summary["head"] == "1-1"
