"""Metrics against values worked out by hand, and the bootstrap against plain resampling."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vgtools import metrics
from vgtools.metrics import best_threshold, bootstrap, mean, mean_of, normalise_answer, paired_bootstrap, ranks, squad_item

# tp 3, fn 1, fp 2, tn 4
GOLD = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
SAID = np.array([1, 1, 1, 0, 1, 1, 0, 0, 0, 0])


def test_labels_by_hand() -> None:
    assert metrics.accuracy(GOLD, SAID) == pytest.approx(0.7)
    assert metrics.f1(GOLD, SAID) == pytest.approx(6 / 9)
    assert metrics.matthews(GOLD, SAID) == pytest.approx((3 * 4 - 2 * 1) / math.sqrt(5 * 4 * 6 * 5))
    assert mean_of(["f1", "accuracy"])(GOLD, SAID, None) == pytest.approx((0.7 + 6 / 9) / 2)


def test_matthews_of_three_classes_by_hand() -> None:
    # c = 4, s = 5; gold counts 2, 2, 1; said counts 1, 3, 1: (4*5 - (2 + 6 + 1)) / sqrt((25 - 9) (25 - 11))
    assert metrics.matthews(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 2])) == pytest.approx(11 / math.sqrt(224))
    found = metrics.matthews(np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 2, 1]))
    # c = 2, s = 5; said counts 1, 3, 1: (2*5 - (2*1 + 2*3 + 1*1)) / sqrt(16 * 14)
    assert found == pytest.approx(1 / math.sqrt(224))


def test_one_class_only_is_zero_not_nan() -> None:
    zeros = np.zeros(4, int)
    assert metrics.matthews(np.array([0, 1, 0, 1]), zeros) == 0
    assert metrics.f1(zeros, zeros) == 0
    assert metrics.pearson(np.array([1.0, 2.0, 3.0]), np.full(3, 0.1)) == 0
    assert metrics.spearman(np.array([1.0, 2.0, 3.0]), np.full(3, 0.1)) == 0


def test_correlations_by_hand() -> None:
    x, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 1.0, 4.0, 9.0])
    # deviations -1.5 -.5 .5 1.5 and -2 -3 0 5: 12 / sqrt(5 * 38)
    assert metrics.pearson(x, y) == pytest.approx(12 / math.sqrt(190))
    assert metrics.spearman(x, y) == pytest.approx(1 - 6 * 2 / (4 * 15))
    # ties: ranks 1 2.5 2.5 4 against 1 2 3 4: 4.5 / sqrt(4.5 * 5)
    assert metrics.spearman(np.array([1.0, 7.0, 7.0, 9.0]), x) == pytest.approx(4.5 / math.sqrt(22.5))
    assert ranks(np.array([30.0, 10.0, 30.0, 20.0, 30.0])).tolist() == [4, 1, 4, 2, 4]


def test_correlation_keeps_its_digits_far_from_zero() -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0])
    assert metrics.pearson(x + 1e8, np.array([2.0, 1.0, 4.0, 9.0]) - 1e7) == pytest.approx(12 / math.sqrt(190), abs=1e-9)


def test_no_items_and_uneven_items_are_refused() -> None:
    for gold, said in ((np.array([]), np.array([])), (GOLD, SAID[:-1])):
        with pytest.raises(ValueError, match="one or more"):
            metrics.accuracy(gold, said)


labels = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(1, 3)), min_size=1, max_size=30)
numbers = st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 3), st.integers(1, 3)), min_size=2, max_size=30)


@settings(deadline=None, max_examples=40)
@given(labels, st.randoms())
def test_label_metrics_are_bounded_blind_to_order_and_count_weights(rows: list[tuple[int, int, int]], random: object) -> None:
    _check_properties(["accuracy", "f1", "matthews"], rows, random)


@settings(deadline=None, max_examples=40)
@given(numbers, st.randoms())
def test_correlations_are_bounded_blind_to_order_and_count_weights(rows: list[tuple[int, int, int]], random: object) -> None:
    _check_properties(["pearson", "spearman"], rows, random)


def _check_properties(names: list[str], rows: list[tuple[int, int, int]], random: object) -> None:
    gold, said, weights = np.array(rows).T
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    for name in names:
        metric = metrics.METRICS[name]
        low = -1 if name in ("matthews", "pearson", "spearman") else 0
        assert low <= metric(gold, said, None) <= 1
        assert metric(gold[order], said[order], None) == pytest.approx(float(metric(gold, said, None)))
        # An item of weight 2 is the item written twice; a second sample does not touch the first.
        twice = metric(np.repeat(gold, weights), np.repeat(said, weights), None)
        assert metric(gold, said, np.stack([weights, np.ones(len(rows))])).tolist() == pytest.approx(
            [float(twice), float(metric(gold, said, None))]
        )
        if len(set(gold.tolist())) > 1:
            assert metric(gold, gold, None) == pytest.approx(1)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("The  Quick, brown-fox!", "quick brownfox"),
        ("a theatre An anthem", "theatre anthem"),
        ("U.S.A.", "usa"),
        ("the", ""),
        ("“Élan” – a", "“élan” –"),  # punctuation is ASCII only, letters are Unicode
        ("non\u00a0breaking\tspace", "non breaking space"),
    ],
)
def test_normalise_answer(text: str, wanted: str) -> None:
    assert normalise_answer(text) == wanted


def test_squad_item_by_hand() -> None:
    assert squad_item("The Broncos!", ["broncos", "Denver Broncos"]) == (1.0, 1.0)
    exact, overlap = squad_item("the Denver team", ["Denver Broncos", "Panthers"])
    assert (exact, overlap) == (0.0, pytest.approx(0.5))
    # words count as often as they stand: 2 common of 3 and 2
    assert squad_item("no no no", ["no no"])[1] == pytest.approx(2 * 2 / 5)
    assert squad_item("", ["x"]) == (0.0, 0.0)
    # exact match and F1 each take their own best gold answer
    assert squad_item("b c", ["b c d", "b"])[1] == pytest.approx(0.8)


def test_squad_versions_differ_where_answers_are_empty() -> None:
    assert squad_item("the", ["a"]) == (1.0, 0.0)
    assert squad_item("the", ["a"], unanswerable=True) == (1.0, 1.0)
    assert squad_item("", [], unanswerable=True) == (1.0, 1.0)
    assert squad_item("x", [], unanswerable=True) == (0.0, 0.0)
    assert squad_item("", []) == (0.0, 0.0)
    # version 2.0 drops the gold answer that normalises to nothing
    assert squad_item("", ["the", "dog"], unanswerable=True) == (0.0, 0.0)


def test_best_threshold_by_hand() -> None:
    scores = np.array([1.0, 0.5, 0.0, 1.0, 0.0])
    no_answer = np.array([0.1, 0.6, 0.3, 0.9, 0.2])
    answerable = np.array([True, True, False, True, False])
    answered = np.array([True, True, True, True, False])
    # withhold all: 2; by rising no_answer: +1 = 3, +0 = 3, -1 = 2, +.5 = 2.5, +1 = 3.5
    assert best_threshold(scores, no_answer, answerable, answered) == (pytest.approx(0.7), 0.9)
    # the first best wins, and nothing better than withholding all gives 0.0
    assert best_threshold(scores[:3], no_answer[:3], answerable[:3], answered[:3]) == (pytest.approx(2 / 3), 0.1)
    assert best_threshold(scores[2:3], no_answer[2:3], answerable[2:3], answered[2:3]) == (1.0, 0.0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.booleans()), min_size=1, max_size=20), st.randoms())
def test_best_threshold_is_the_best_of_all_thresholds(rows: list[tuple[float, bool, bool]], random: object) -> None:
    answerable, answered = (np.array([r[i] for r in rows]) for i in (1, 2))
    raw = np.array([r[0] for r in rows])
    scores = np.where(answerable, raw * answered, ~answered).astype(float)
    no_answer = np.arange(len(rows)) / 7 + 0.1
    random.shuffle(no_answer)  # type: ignore[attr-defined]
    tried = [np.where(no_answer > t, ~answerable, scores).mean() for t in (0.0, *no_answer)]
    best, at = best_threshold(scores, no_answer, answerable, answered)
    assert best == pytest.approx(max(tried))
    assert np.where(no_answer > at, ~answerable, scores).mean() == pytest.approx(best)


def test_bootstrap_agrees_with_plain_resampling() -> None:
    generator = np.random.default_rng(3)
    gold = generator.integers(0, 2, 400)
    said = np.where(generator.random(400) < 0.8, gold, 1 - gold)
    plain = []
    for _ in range(1000):
        chosen = generator.integers(0, 400, 400)
        plain.append(float(metrics.matthews(gold[chosen], said[chosen])))
    found = bootstrap(metrics.matthews, gold, said, samples=10_000)
    assert found.value == float(metrics.matthews(gold, said))
    assert [found.low, found.high] == pytest.approx(np.quantile(plain, [0.025, 0.975]).tolist(), abs=0.015)


def test_bootstrap_of_values_has_the_width_of_the_normal_interval() -> None:
    values = np.random.default_rng(4).normal(size=500)  # all distinct: the other way of drawing
    found = bootstrap(mean, np.zeros(500), values, samples=4000, level=0.9)
    half = 1.645 * values.std() / math.sqrt(500)
    assert [found.low, found.high] == pytest.approx([values.mean() - half, values.mean() + half], abs=0.006)


def test_paired_bootstrap_p_value_is_the_sign_test_s_in_a_case_that_can_be_counted() -> None:
    # Four items, b better on one: a sample's difference is Binomial(4, 1/4) / 4, observed 1/4, so the p-value is
    # P(|k - 1| >= 1) = 1 - P(k = 1) = 1 - 4 * 27/256
    a, b = np.array([0.0, 0, 0, 0]), np.array([1.0, 0, 0, 0])
    found = paired_bootstrap(mean, np.zeros(4), a, b, samples=40_000)
    assert found.value == 0.25
    assert found.p == pytest.approx(1 - 108 / 256, abs=0.01)


def test_paired_bootstrap_knows_same_better_and_worse() -> None:
    assert paired_bootstrap(metrics.accuracy, GOLD, SAID, SAID, samples=99).p == 1.0
    gold = np.tile([0, 1], 200)
    bad, good = np.zeros(400, int), np.where(np.arange(400) % 10 == 0, 1 - gold, gold)
    better = paired_bootstrap(metrics.accuracy, gold, bad, good, samples=999)
    worse = paired_bootstrap(metrics.accuracy, gold, good, bad, samples=999)
    assert better.value == pytest.approx(0.4)
    assert worse.value == pytest.approx(-0.4)
    assert better.p == worse.p == 0.001  # the observed difference counts itself: never 0
    assert 0 < better.low < better.value < better.high


def test_bootstrap_is_seeded() -> None:
    one, same, other = (bootstrap(metrics.f1, GOLD, SAID, samples=500, level=0.8, seed=s) for s in (1, 1, 2))
    values = [bootstrap(mean, GOLD, np.sqrt(np.arange(10.0)), samples=50, seed=s).low for s in (1, 1, 2)]
    assert one == same
    assert one != other
    assert values[0] == values[1] != values[2]


def test_bootstrap_refuses_what_it_cannot_sample() -> None:
    with pytest.raises(ValueError, match="as many in each"):
        paired_bootstrap(mean, GOLD, SAID, SAID[1:])
    with pytest.raises(ValueError, match="level 1"):
        bootstrap(mean, GOLD, SAID, level=1)


def test_paired_bootstrap_over_seeds_agrees_with_plain_resampling_of_items_and_runs() -> None:
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 2, 40)
    a = np.stack([np.where(rng.random(40) < 0.6, gold, 1 - gold) for _ in range(3)])
    b = np.stack([np.where(rng.random(40) < share, gold, 1 - gold) for share in (0.95, 0.6)])
    found = paired_bootstrap(metrics.f1, gold, a, b, samples=4000)
    whole = np.mean([metrics.f1(gold, x) for x in b]) - np.mean([metrics.f1(gold, x) for x in a])
    plain = []
    for _ in range(4000):
        items = rng.integers(40, size=40)
        left, right = a[rng.integers(3, size=3)][:, items], b[rng.integers(2, size=2)][:, items]
        plain.append(np.mean([metrics.f1(gold[items], x) for x in right]) - np.mean([metrics.f1(gold[items], x) for x in left]))
    assert found.value == pytest.approx(whole)
    assert [found.low, found.high] == pytest.approx(list(np.quantile(plain, [0.025, 0.975])), abs=0.015)
    assert found.p == pytest.approx(np.mean(np.abs(np.array(plain) - whole) >= abs(whole)), abs=0.03)
    # Without the runs' own chance the interval would be narrower: 95 % and 60 % are far apart.
    fixed = paired_bootstrap(metrics.f1, gold, a[0], b[0], samples=4000)
    assert found.high - found.low > fixed.high - fixed.low


def test_paired_bootstrap_of_one_run_is_the_same_in_either_form() -> None:
    one = paired_bootstrap(metrics.accuracy, GOLD, SAID, GOLD, samples=99)
    assert paired_bootstrap(metrics.accuracy, GOLD, SAID[None], GOLD[None], samples=99) == one


# ----------------------------------------------------------------------------------------------------------------- VQA


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("The two dogs.", "2 dogs"),
        ("none", "0"),
        ("a/b", "b"),  # a mark inside a word splits it, and the article goes
        ("red, blue", "red blue"),
        ("1,000 m", "1000 m"),
        ("3.5", "3.5"),
        ("dont", "don't"),
        ("t-shirt", "t-shirt"),
        ("ten  an\tA", "10"),
    ],
)
def test_answers_as_vqa_compares_them(given: str, wanted: str) -> None:
    assert metrics.normalise_vqa(given) == wanted


@pytest.mark.parametrize("same", range(11))
def test_vqa_leaves_each_annotator_out(same: int) -> None:
    golds = ["2"] * same + [f"no{i}" for i in range(10 - same)]
    each = []
    for i in range(10):
        others = golds[:i] + golds[i + 1 :]
        each.append(min(1, others.count("2") / 3))
    assert metrics.vqa_item("two" if same < 10 else "2", golds) == pytest.approx(sum(each) / 10)


def test_annotators_who_agree_are_taken_at_their_word() -> None:
    assert metrics.vqa_item("Two", ["2"] * 10) == 0.0
    assert metrics.vqa_item("Two", ["2"] * 9 + ["3"]) == 1.0
