"""Statistics of encoders side by side: values, differences, their correction, groups, runs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from vgtools.io.errors import DataError
from vgtools.measures.compare import compare, left_out, out_of_reach
from vgtools.measures.evaluation import GoldItems, Measured
from vgtools.tasks.metrics import paired_bootstrap, spearman

RNG = np.random.default_rng(0)
GOLD = RNG.normal(size=40)


def measured(name: str = "pairs", grounded: bool = False, **more: int) -> Measured:
    keys = [str(n) for n in range(40)]
    items = GoldItems(
        name=name, kind="word pairs", statistic="spearman", keys=keys, gold=GOLD, **more
    )
    predictions = [GOLD + RNG.normal(size=40) * spread for spread in (2.0, 1.0, 0.5)]
    predictions[1][:4] = np.nan
    seen = np.arange(40) < 20 if grounded else None
    return Measured(items, predictions, seen)


def test_values_are_those_of_scipy_and_differences_those_of_the_paired_bootstrap() -> None:
    one = measured()
    records = compare([one], {"a": [0], "b": [1], "c": [2]}, 300, 5)
    known = slice(4, 40)
    for record, own in zip(records, one.predictions, strict=True):
        assert own is not None
        expected = spearmanr(GOLD[known], own[known]).statistic
        assert record["value"] == pytest.approx(expected, abs=1e-12)
        assert record["low"] < expected < record["high"]
        assert (record["items"], record["left_out"]) == (36, 4)
    assert "difference" not in records[0]
    a, c = one.predictions[0], one.predictions[2]
    assert a is not None
    assert c is not None
    expected_gain = paired_bootstrap(spearman, GOLD[known], a[known], c[known], samples=300, seed=5)
    gain = records[2]["difference"]
    assert gain["value"] == pytest.approx(expected_gain.value, abs=1e-12)
    assert (gain["low"], gain["high"]) == pytest.approx((expected_gain.low, expected_gain.high))
    assert gain["p"] == expected_gain.p


def test_a_difference_of_single_runs_is_never_significant() -> None:
    dice = np.random.default_rng(0)
    gold = dice.normal(size=200)
    items = GoldItems(
        name="x", kind="norms", statistic="pearson", keys=[*map(str, range(200))], gold=gold
    )
    found = [gold + dice.normal(0, s, 200) for s in (9, 9, 0.1, 0.1)]
    rows = ({"a": [0], "b": [2]}, {"a": [0, 1], "b": [2]}, {"a": [0, 1], "b": [2, 3]})
    for names, sure in zip(rows, (False, False, True), strict=True):
        (change,) = [
            record["difference"]
            for record in compare([Measured(items, found)], names, 1000)
            if "difference" in record
        ]
        assert change["p"] < 0.05
        assert change["significant"] is sure


def test_all_differences_are_corrected_together() -> None:
    records = compare([measured("x"), measured("y")], {"a": [0], "b": [1], "c": [2]}, 200)
    gains = sorted((r["difference"] for r in records if "difference" in r), key=lambda d: d["p"])
    assert len(gains) == 4
    highest = 0.0
    for number, gain in enumerate(gains):
        highest = max(highest, min(1.0, (4 - number) * gain["p"]))
        assert gain["p_holm"] == pytest.approx(highest)


def test_groups_by_grounded_words() -> None:
    records = compare([measured(grounded=True)], {"a": [0], "b": [1]}, 100)
    counts = {(r["group"], r["encoder"]): r["items"] for r in records}
    assert counts[("all", "a")] == 36
    assert counts[("grounded", "b")] == 16
    assert counts[("other", "b")] == 20


def test_runs_of_a_row_count_with_their_mean_and_spread() -> None:
    one = measured()
    first, second = compare([one], {"two": [0, 1], "one": [2]}, 100)
    assert first["value"] == pytest.approx(np.mean(first["runs"]))
    assert "runs" not in second


def test_an_encoder_that_cannot_be_asked_is_left_out() -> None:
    one = measured()
    lacking = Measured(one.items, [None, *one.predictions[1:]])
    records = compare([lacking], {"a": [0], "b": [1], "c": [2]}, 100)
    assert [record["encoder"] for record in records] == ["b", "c"]
    assert all("difference" not in record for record in records), "the baseline has no value"
    assert left_out([lacking], ["a", "b", "c"]) == ["pairs was not asked of a"]


def test_too_few_items_are_refused() -> None:
    one = measured()
    own = np.full(40, np.nan)
    own[:2] = 1
    with pytest.raises(DataError, match="2 of its 40 items are known to all; 3 are needed"):
        compare([Measured(one.items, [own])], {"a": [0]}, 100)


def test_samples_that_cannot_reach_a_corrected_p() -> None:
    """The least p of 999 samples is 1 / 1000: of 50 differences Holm makes it 0.05."""
    records = [{"difference": {}}] * 50 + [{}]
    (remark,) = out_of_reach(records, 999)
    assert remark.endswith("999 samples are too few; take --samples 2000, or fewer encoders")
    assert out_of_reach(records, 1000) == []
    assert out_of_reach(records[1:], 999) == []


def test_intervals_of_few_items_stay_within_what_a_statistic_can_be() -> None:
    items = GoldItems(name="x", kind="k", statistic="spearman", keys=(), gold=np.arange(4.0))
    found = compare([Measured(items, [np.array([0.0, 1, 3, 2])])], {"a": [0]}, 200)
    assert (found[0]["low"], found[0]["high"]) == (-1, 1)
