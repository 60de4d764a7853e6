"""Encoders side by side on the items that all of them know.

Axes: N items, E encoders, R runs of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.measures.evaluation import LEAST, PERMUTED, STATISTICS, GoldItems, Measured
from vgtools.tasks.compare import SIGNIFICANT, holm
from vgtools.tasks.metrics import (
    RANGES,
    bootstrap,
    interval,
    paired_difference,
    variance_factor,
)
from vgtools.tasks.table import LOWER_IS_BETTER

Record = dict[str, Any]

_FOUND = 1.96 + 0.84  # standard errors of a difference that is found in four of five tries


def _check_seeds(measured: Sequence[Measured], rows: Mapping[str, Sequence[int]]) -> None:
    """Refuse runs of a row that give one another's answers: they would count as other seeds.

    Raises:
        DataError: they agree in every item of every evaluation (65).
    """
    for name, places in rows.items():
        for a, b in combinations(range(len(places)), 2):
            pairs = [
                (each.predictions[places[a]], each.predictions[places[b]]) for each in measured
            ]
            answered = [(x, y) for x, y in pairs if x is not None and y is not None]
            # Two models may choose the same classes, but never give equal fractions.
            exact = any((np.nan_to_num(x) % 1 != 0).any() for x, _ in answered)
            if exact and all(np.array_equal(x, y, equal_nan=True) for x, y in answered):
                why = f"its runs {a} and {b} give one another's answers to every item"
                raise DataError(f"{why}: copies of one model are not other seeds", name)


def compare(
    measured: Sequence[Measured],
    rows: Mapping[str, Sequence[int]],
    samples: int = 10_000,
    seed: int = 0,
) -> list[Record]:
    """Return a record per evaluation, group of items and row: its statistic, and its difference
    from the first row.

    Args:
        measured: items with the predictions of E encoders.
        rows: name of a row -> its encoders, several for runs that differ by their seed; the first
            is the baseline.
        samples: samples of the bootstrap over items.
        seed: seed of the samples.

    Returns:
        Records of `evaluation`, `kind`, `encoder`, `items`, `left_out`, `statistic`, `value` with
        its 95 % interval `low` to `high`, and `difference` from the first row with `low`, `high`,
        `p`, `over_runs` (both rows have several runs: other seeds count as chance), or else
        `items_for_point`, the items with which a difference of one point would be found in four of
        five tries, and `p_holm`, corrected for the number of all differences; `significant` is
        False without `over_runs`. `group` is `all`,
        `grounded` or `other` where it is known which items are grounded, or the name of a group of
        the evaluation's own; `majority` is the share of the most frequent class.

    Raises:
        DataError: fewer than three items of an evaluation are known to all, or runs of a row are
            copies of one model (65).
    """
    _check_seeds(measured, rows)
    records = list[Record]()
    for each in (*measured, *_beyond(measured)):
        items = each.items
        asked = {
            name: np.stack([found for i in own if (found := each.predictions[i]) is not None])
            for name, own in rows.items()
            if all(each.predictions[i] is not None for i in own)
        }
        if not asked:
            continue
        known = np.isfinite(np.concatenate([*asked.values()])).all(0)
        if known.sum() < LEAST:
            why = f"{known.sum()} of its {len(known)} items are known to all; {LEAST} are needed"
            raise DataError(why, items.name)
        for group, kept in _groups(each, known).items():
            facts: Record = {"evaluation": items.name, "kind": items.kind}
            if each.grounded is not None or items.groups:
                facts["group"] = group
            if items.labels:
                common = np.bincount(items.gold[kept].astype(int)).max()
                facts["majority"] = float(common / kept.sum())
            counts = {"items": int(kept.sum()), "left_out": int((~known).sum())}
            runs = {name: predicted[:, kept] for name, predicted in asked.items()}
            first = next(iter(rows))
            for name, values in _statistics(items, kept, runs, first, samples, seed).items():
                records.append({**facts, "encoder": name, **counts, **values})
    changes = [record["difference"] for record in records if "difference" in record]
    holm(changes)
    for change in changes:
        # A p of single runs is of these very models, not of others like them.
        change["significant"] = change.get("significant", False) and change["over_runs"]
    return records


def _beyond(measured: Sequence[Measured]) -> Iterator[Measured]:
    """Yield the gain from photos over permuted ones, item by item."""
    by_name = {each.items.name: each for each in measured}
    for name, each in by_name.items():
        control = by_name.get(f"{name}, {PERMUTED}")
        if control is not None:
            pairs = zip(each.predictions, control.predictions, strict=True)
            found = [None if a is None or b is None else a - b for a, b in pairs]
            items = replace(each.items, name=f"{name} beyond permuted")
            yield Measured(items, found, each.grounded)


def _groups(measured: Measured, known: Array) -> dict[str, Array]:
    groups = {"all": known}
    if (seen := measured.grounded) is not None:
        groups |= {"grounded": known & seen, "other": known & ~seen}
    own = np.array(measured.items.groups)
    groups |= {name: known & (own == name) for name in dict.fromkeys(measured.items.groups) if name}
    return {name: kept for name, kept in groups.items() if kept.sum() >= LEAST}


def _statistics(
    items: GoldItems,
    kept: Array,
    predictions: Mapping[str, Array],
    first: str,
    samples: int,
    seed: int,
) -> dict[str, Record]:
    """Return the statistic of each row of (R, N) predictions, from the same samples of items."""
    runs = np.concatenate([*predictions.values()])
    count = int(kept.sum())
    least, most = RANGES.get(items.statistic, (-np.inf, np.inf))
    statistic = STATISTICS[items.statistic]
    how = {"items": count, "seed": seed, "folds": items.folds}
    scores = bootstrap(statistic, items.gold[kept], list(runs), samples=samples, seed=seed)
    cuts = np.cumsum([len(own) for own in predictions.values()])[:-1]
    parts = dict(zip(predictions, np.split(scores, cuts, axis=1), strict=True))
    found = dict[str, Record]()
    for name, own in parts.items():
        means = own.mean(-1)
        low, high = np.clip(interval(means, **how), least, most).tolist()
        found[name] = {"statistic": items.statistic, "value": float(means[0])}
        found[name] |= {"low": low, "high": high}
        if own.shape[1] > 1:
            found[name]["runs"] = own[0].tolist()
        if name != first and first in parts and items.kind != PERMUTED:
            gain = paired_difference(parts[first], own, **how)
            change: Record = asdict(gain)
            if not gain.over_runs and items.statistic not in LOWER_IS_BETTER:
                # As many items as are asked for are no longer few: the spread alone counts.
                variance = float((means - parts[first].mean(-1))[1:].var())
                variance *= variance_factor(items.folds)
                change["items_for_point"] = math.ceil(count * (_FOUND / 0.01) ** 2 * variance)
            found[name]["difference"] = change
    return found


def out_of_reach(records: Sequence[Record], samples: int) -> list[str]:
    """Return a remark if no p of so few samples is significant after Holm's correction."""
    count = sum("difference" in record for record in records)
    if count < SIGNIFICANT * (samples + 1):
        return []
    enough = math.ceil(2 * count / SIGNIFICANT / 1000) * 1000
    why = f"none of {count:,} differences can be significant after Holm's correction"
    return [f"{why}: {samples:,} samples are too few; take --samples {enough}, or fewer encoders"]


def left_out(measured: Sequence[Measured], names: Sequence[str]) -> list[str]:
    """Return remarks on the encoders that an evaluation could not ask."""
    found = list[str]()
    for each in measured:
        pairs = zip(names, each.predictions, strict=True)
        unable = [name for name, own in pairs if own is None]
        if unable:
            found.append(f"{each.items.name} was not asked of {', '.join(unable)}")
    return found
