"""Items with the predictions of encoders, kept in a file and compared later without the encoders.

A row is an item; `predictions` has a value per entry of the manifest's `encoders`, null where the
encoder does not know it. Classes are named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl
from vgtools.measures.evaluation import GoldItems, Measured
from vgtools.tasks.metrics import METRICS

KIND = "measured-items"
_KEYS = {"evaluation": str, "kind": str, "statistic": str, "item": str, "predictions": list}


def item_rows(measured: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all items."""
    for each in measured:
        items = each.items
        facts: dict[str, Any] = {
            "evaluation": items.name,
            "kind": items.kind,
            "statistic": items.statistic,
        }
        if items.labels:
            facts["labels"] = list(items.labels)
        columns = [None if own is None else own.tolist() for own in each.predictions]
        for number, key in enumerate(items.keys):
            seen = {} if each.grounded is None else {"grounded": bool(each.grounded[number])}
            gold = float(items.gold[number])
            # NaN, which JSON lacks, is unequal to itself.
            found = [
                c[number] if c is not None and c[number] == c[number] else None for c in columns
            ]
            yield {**facts, "item": key, **seen, "gold": gold, "predictions": found}


def read_items(paths: Sequence[str]) -> tuple[list[Measured], list[str]]:
    """Return the items of files, joined by evaluation and key, and the names of all encoders.

    An item that a file lacks has NaN as the predictions of its encoders; an evaluation that a file
    lacks was not asked there.

    Raises:
        DataError: a file cannot be read, is damaged or of another kind, or has another gold value
            of an item than an earlier file (65, file and line).
    """
    names = list[str]()
    rows = dict[str, dict[str, dict[str, Any]]]()  # evaluation -> item -> its first row
    values = dict[tuple[str, str], dict[int, float]]()
    asked = set[tuple[str, int]]()
    for path in paths:
        encoders = read_manifest(path, KIND)["encoders"]
        for line, row in read_jsonl(path, _KEYS | {"gold": float}):
            _check(row, len(encoders), path, line)
            name = row["evaluation"]
            key = row["item"]
            first = rows.setdefault(name, {}).setdefault(key, row)
            same = ("gold", "statistic", "kind")
            if any(first[fact] != row[fact] for fact in same):
                why = f"{key!r:.60} has gold {row['gold']}, in an earlier file {first['gold']}"
                raise DataError(f"{why}; compare encoders measured on one file", path, line)
            known = values.setdefault((name, key), {})
            for number, value in enumerate(row["predictions"], len(names)):
                if value is not None:
                    known[number] = float(value)
                    asked.add((name, number))
        names += [each["encoder"] for each in encoders]
    found = list[Measured]()
    for name, own in rows.items():
        row = next(iter(own.values()))

        def column(number: int, name: str = name, keys: Iterable[str] = own) -> Array | None:
            if (name, number) not in asked:
                return None
            return np.array([values[name, key].get(number, np.nan) for key in keys])

        seen = [each.get("grounded") for each in own.values()]
        items = GoldItems(
            name=name,
            kind=row["kind"],
            statistic=row["statistic"],
            keys=list(own),
            gold=np.array([each["gold"] for each in own.values()], float),
            labels=row.get("labels", ()),
        )
        columns = [column(number) for number in range(len(names))]
        found.append(Measured(items, columns, None if None in seen else np.array(seen, bool)))
    return found, names


def _check(row: dict[str, Any], count: int, path: str | Path, line: int) -> None:
    numbers = [value for value in row["predictions"] if value is not None]
    if len(row["predictions"]) != count or not all(type(x) in (int, float) for x in numbers):
        why = f'"predictions" must be {count} numbers or null, got {row["predictions"]!r:.60}'
        raise DataError(why, path, line)
    if row["statistic"] not in METRICS:
        why = f'"statistic" is {row["statistic"]!r:.60}, expected one of {", ".join(METRICS)}'
        raise DataError(why, path, line)
