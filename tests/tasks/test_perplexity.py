"""Perplexities worked by hand, and intervals that draw the texts of an image together."""

from __future__ import annotations

import math

import numpy as np
import pytest

from vgtools.reports.tables import perplexity_table
from vgtools.tasks.perplexity import TextScores, groups_of, mean_nll, records, summary, uncertain

FACTS = {"pictures": "none", "mask_rate": 0.15}


def scores(nll: list[float], tokens: list[int] | None = None) -> TextScores:
    return TextScores(np.array(tokens or [1] * len(nll)), np.array(nll))


def test_a_perplexity_worked_by_hand() -> None:
    found = summary(scores([0.5, 1.5, 1.0]), None, np.arange(3), samples=100)
    assert found["perplexity"] == pytest.approx(2.718282, abs=1e-6)
    assert (found["tokens"], found["nll"]) == (3, 1.0)
    # Texts with more words count more: (6 · 1 + 1 · 8) / 7.
    weighted = summary(scores([6.0, 8.0], [6, 1]), None, np.arange(2), samples=10)
    assert weighted["nll"] == pytest.approx(2)
    assert float(mean_nll(np.array([6, 1]), np.array([6.0, 8]), np.array([0, 1]))) == 8


def test_a_difference_is_paired() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(4, 2, 200)
    found = summary(scores(list(first - 0.1)), scores(list(first)), np.arange(200))
    change = found["difference"]
    assert change["nll"] == pytest.approx(-0.1)
    assert change["low"] == pytest.approx(-0.1), "the same in every sample"
    assert change["high"] == pytest.approx(-0.1)
    assert change["p"] == pytest.approx(1 / 10_001)
    assert math.log(found["high"] / found["low"]) > 0.4, "of the perplexity itself it is wide"


def test_texts_of_an_image_are_drawn_together() -> None:
    groups = groups_of(np.array([3, -1, 3, 0, -1]))
    assert len(set(groups.tolist())) == 4
    assert groups[0] == groups[2]
    rng = np.random.default_rng(0)
    image = np.repeat(np.arange(50), 5)
    nll = list(rng.normal(4, 1, 50)[image])
    alone = summary(scores(nll), None, np.arange(250))
    together = summary(scores(nll), None, image)
    wider = math.log(together["high"] / together["low"]) / math.log(alone["high"] / alone["low"])
    assert wider == pytest.approx(math.sqrt(5), rel=0.1), "five captions tell as much as one"


def test_a_few_large_groups_do_not_count_as_many() -> None:
    """Without a difference p is below .05 in 13 % of draws if a photo counts as a sentence does."""
    image = np.concatenate([np.repeat(np.arange(4), 30), np.arange(4, 104)])
    rng = np.random.default_rng(0)
    low = covered = 0
    draws = 200
    for draw in range(draws):
        one, other = (rng.normal(4, 1, 104)[image] + rng.normal(0, 0.3, 220) for _ in range(2))
        found = summary(scores(list(one)), scores(list(other)), image, samples=400, seed=draw)
        low += found["difference"]["p"] < 0.05
        covered += found["low"] <= math.exp(4) <= found["high"]
    assert low <= 0.07 * draws
    assert covered >= 0.93 * draws


def test_records_compare_with_the_first_and_hold_content_words_apart() -> None:
    one, other = scores([1.0, 2.0]), scores([2.0, 2.0])
    content = [scores([1.0, 0.0], [1, 0]), scores([3.0, 0.0], [1, 0])]
    found = records(
        [{"encoder": "a"}, {"encoder": "b"}], [one, other], content, np.arange(2), 50, 0
    )
    assert "difference" not in found[0]
    assert found[1]["difference"]["nll"] == 0.5
    assert found[1]["content"]["difference"]["nll"] == 2
    assert (found[1]["texts"], found[1]["groups"], found[1]["content"]["tokens"]) == (2, 2, 1)
    with pytest.raises(ValueError, match="no word is masked"):
        summary(scores([0.0], [0]), None, np.arange(1))


def test_a_single_text_has_no_interval_and_no_p() -> None:
    """Groups without a masked word do not count."""
    one, other = scores([2.0, 0.0], [2, 0]), scores([3.0, 0.0], [2, 0])
    found = records([{"encoder": "a"}, {"encoder": "b"}], [one, other], [one, other], np.arange(2),
                    50, 0)  # fmt: skip
    assert (found[0]["nll"], found[0]["low"], found[0]["high"]) == (1.0, None, None)
    assert found[1]["difference"] == {"nll": 0.5, "low": None, "high": None, "p": None}
    (remark,) = uncertain(found)
    why = "they have no interval and no p, which need two or more"
    assert remark == f"all masked words are in one text, or in texts of one image: {why}"
    table = perplexity_table([record | FACTS for record in found]).rows
    assert table[1][2:] == ["4.5", "+0.500", "–", "+0.500"]
    two = scores([1.0, 2.0])
    found = records([{"encoder": "a"}], [two], [one], np.arange(2), 50, 0)
    assert uncertain(found)[0].startswith("all masked content words are in one text")
    assert not uncertain(records([{"encoder": "a"}], [two], [two], np.arange(2), 50, 0))
    assert found[0]["low"] >= 1, "no model is surer than certain"
