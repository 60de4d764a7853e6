"""Pairs of artefacts in another order, or of others: no row of the table is taken for right."""

from __future__ import annotations

import pytest

from tests.faults.pairs import CASES, PAIRS, TABLE, Pair, attempt
from tests.faults.trials import Workspace

SLOW = ("finetune", "perplexity", "pretrain", "probe-attention", "serve", "train-matcher")
TRIALS = [
    pytest.param(pair, id=name, marks=[pytest.mark.slow] * pair.row.startswith(SLOW))
    for name, pair in zip(CASES, PAIRS, strict=True)
]


def test_every_pair_of_the_manual_is_tried_and_the_other_way_round() -> None:
    rows = [line.split("\t") for line in TABLE.read_text(encoding="utf-8").splitlines()]
    listed = [f"{command}: {pair}" for _, command, pair in rows]
    assert sorted(listed) == sorted(pair.row for pair in PAIRS)
    assert len({*listed}) == len(listed)


@pytest.mark.parametrize("pair", TRIALS)
def test_another_order_is_refused_or_changes_nothing(pair: Pair, space: Workspace) -> None:
    outcome = attempt(space, pair.case, "0")
    assert not outcome.verdict, outcome
