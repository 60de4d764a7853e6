"""Items with the predictions of encoders, kept in a file and compared later without the encoders.

A row is an item; `predictions` has a value per entry of the manifest's `encoders`, null where the
encoder does not know it. Classes have their names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError
from vgtools.io.forms import check_form
from vgtools.io.streams import read_jsonl
from vgtools.measures.evaluation import STATISTICS, GoldItems, Measured

KIND = "measured-items"
_READ = {"vectors?": str, "config?": {}, "inputs?": [{"path": str}]}
_FORM = {"encoders": [{"encoder": str}], "contents?": {str: str}, **_READ}
_MASKED = ("masked words", "minimal pairs", "prompts")  # kinds that read no vectors
_MOST_FOLDS = 1000
_FACTS = ("gold", "statistic", "kind", "folds", "group", "grounded")  # the same in all files
_KEYS = {"evaluation": str, "kind": str, "statistic": str, "item": str, "predictions": list}


def item_rows(measured: Sequence[Measured]) -> Iterator[dict[str, Any]]:
    """Yield the rows of all items."""
    for each in measured:
        items = each.items
        facts: dict[str, Any] = {
            "evaluation": items.name,
            "kind": items.kind,
            "statistic": items.statistic,
            **({"folds": items.folds} if items.folds else {}),
        }
        columns = [_shown(own, items) for own in (items.gold, *each.predictions)]
        for number, key in enumerate(items.keys):
            seen: dict[str, Any] = {}
            if each.grounded is not None:
                seen["grounded"] = bool(each.grounded[number])
            if items.groups:
                seen["group"] = items.groups[number]
            gold, *found = (None if own is None else own[number] for own in columns)
            yield {**facts, "item": key, **seen, "gold": gold, "predictions": found}


def _shown(values: Array | None, items: GoldItems) -> list[Any] | None:
    """Return numbers, or names of classes, with None for NaN, which JSON lacks."""
    if values is None:
        return None
    known = np.isfinite(values).tolist()
    plain = [items.labels[int(v)] if items.labels else v for v in np.nan_to_num(values).tolist()]
    return [value if finite else None for value, finite in zip(plain, known, strict=True)]


def contents(measured: Sequence[Measured]) -> dict[str, str]:
    """Return the hash of the data that the predictions of each evaluation follow from."""
    return {each.items.name: each.items.content for each in measured}


def read_items(paths: Sequence[str]) -> tuple[list[Measured], list[str]]:
    """Return the items of files, joined by evaluation and key, and the names of all encoders.

    An item that a file lacks has NaN as the predictions of its encoders; an evaluation that a file
    lacks was not asked there.

    Raises:
        DataError: a file cannot be read, is damaged or of another kind, or has another gold value
            of an item, or other items under their names or known to all its encoders, than an
            earlier file (65, file and line), or its encoders' vectors were read in another way (65,
            file).
    """
    names = list[str]()
    rows = dict[str, dict[str, dict[str, Any]]]()  # evaluation -> item -> its first row
    values = dict[tuple[str, str], dict[int, Any]]()
    asked = set[tuple[str, int]]()
    sources = dict[str, tuple[str, str]]()  # evaluation -> its content, and a file that has it
    readings = dict[str, tuple[dict[str, Any], str]]()  # evaluation -> its vectors, and a file
    for path in paths:
        manifest = read_manifest(path, KIND)
        check_form(manifest, _FORM, path, "measure again")
        encoders = manifest["encoders"]
        own = manifest.get("contents", {})
        for line, row in read_jsonl(path, _KEYS):
            _check(row, len(encoders), path, line)
            name = row["evaluation"]
            key = row["item"]
            first = rows.setdefault(name, {}).setdefault(key, row)
            here = own.get(name, "")
            before, other = sources.setdefault(name, (here, path))
            if before != here or (other != path and not here):
                why = f"{name} is of other items than in {other}, in another order, or of others"
                why = f"{why} that all encoders know (sha256 {here}, there {before})"
                if not (here and before):  # a file of an earlier version
                    lacking = other if here else path
                    why = f"{name} may be of other items than in {other}: {lacking} has no sha256"
                raise DataError(f"{why}; measure these encoders in one call", path, line)
            how = _reading(manifest, row["kind"])
            others, other = readings.setdefault(name, (how, path))
            if how != others:
                why = f"{name} is of vectors of {_flags(how)}, in {other} of {_flags(others)}"
                raise DataError(f"{why}; compare encoders that were read in one way", path)
            one = next(iter(rows[name].values()))["gold"]
            if isinstance(one, str) != isinstance(row["gold"], str):
                why = f'"gold" is {row["gold"]!r:.40}, of another item {one!r:.40}'
                raise DataError(f"{why}; expected numbers or names of classes", path, line)
            # A file may lack groups and grounding, but not have others: the first ones are shown.
            other = next((f for f in _FACTS if f in first and f in row and first[f] != row[f]), "")
            if other:
                why = f"{key!r:.60} has {other} {row[other]}, in an earlier file {first[other]}"
                raise DataError(f"{why}; compare encoders measured on the same files", path, line)
            known = values.setdefault((name, key), {})
            for number, value in enumerate(row["predictions"], len(names)):
                if value is not None:
                    known[number] = value
                    asked.add((name, number))
        names += [each["encoder"] for each in encoders]
    return [_joined(name, own, values, asked, len(names)) for name, own in rows.items()], names


def _reading(manifest: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return the settings of the vectors that a kind of items was measured with."""
    vectors = manifest.get("vectors")
    if kind in _MASKED:
        return {}
    if not kind.startswith("word"):
        # Sentences are read alone, whatever words are read in.
        return {"vectors": "input" if vectors == "input" else "states"}
    if vectors != "contexts":
        return {"vectors": vectors}
    config = manifest.get("config", {})
    found = {key: config.get(key) for key in ("contexts", "per_word", "seed")}
    # The same text may have another path.
    hashes = {entry["path"]: entry.get("sha256") for entry in manifest.get("inputs", [])}
    found["contexts"] = hashes.get(found["contexts"]) or found["contexts"]
    return {"vectors": vectors} | found


def _flags(reading: Mapping[str, Any]) -> str:
    return ", ".join(f"--{key.replace('_', '-')} {value}" for key, value in reading.items())


def _joined(
    name: str,
    rows: Mapping[str, Mapping[str, Any]],
    values: Mapping[tuple[str, str], Mapping[int, Any]],
    asked: Collection[tuple[str, int]],
    encoders: int,
) -> Measured:
    """Return the items of an evaluation with all their predictions."""
    row = next(iter(rows.values()))
    own = [values[name, key] for key in rows]
    classes = {each["gold"] for each in rows.values()}.union(*(each.values() for each in own))
    labels = sorted(classes) if isinstance(row["gold"], str) else []
    place = {label: number for number, label in enumerate(labels)}

    def column(found: Iterable[Any]) -> Array:
        return np.array([np.nan if v is None else place.get(v, v) for v in found], float)

    items = GoldItems(
        name=name,
        kind=row["kind"],
        statistic=row["statistic"],
        keys=list(rows),
        gold=column(each["gold"] for each in rows.values()),
        labels=labels,
        folds=row.get("folds", 0),
        groups=[str(each.get("group", "")) for each in rows.values()] if "group" in row else (),
    )
    columns = [
        column(each.get(number) for each in own) if (name, number) in asked else None
        for number in range(encoders)
    ]
    seen = [each.get("grounded") for each in rows.values()]
    return Measured(items, columns, None if None in seen else np.array(seen, bool))


def _check(row: dict[str, Any], count: int, path: str | Path, line: int) -> None:
    of_class = isinstance(row.get("gold"), str)
    kinds = (str,) if of_class else (int, float)
    found = [value for value in (row.get("gold"), *row["predictions"]) if value is not None]
    right = row.get("gold") is not None and all(type(value) in kinds for value in found)
    if len(row["predictions"]) != count or not right:
        what = "names of classes" if of_class else "numbers"
        why = f'"gold" and {count} "predictions" must be {what} (a prediction may be null)'
        raise DataError(
            f"{why}, got {row.get('gold')!r:.40}, {row['predictions']!r:.60}", path, line
        )
    if type(row.get("folds", 0)) is not int or not 0 <= row.get("folds", 0) <= _MOST_FOLDS:
        raise DataError(f'"folds" is {row["folds"]!r:.40}, expected 0 to {_MOST_FOLDS}', path, line)
    if row["statistic"] not in STATISTICS:
        why = f'"statistic" is {row["statistic"]!r:.60}, expected one of {", ".join(STATISTICS)}'
        raise DataError(why, path, line)
