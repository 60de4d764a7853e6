"""Parquet files that grow by commits: the rows of JSON lines, for every reader, after kills too."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

from vgtools.io.artifact import read_made, read_manifest
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.io.output import Output
from vgtools.io.parquet import Groups

Rows = list[dict[str, Any]]
COLUMNS = {"text": str, "vokens": [int], "scores": [float], "spans": [[int]], "image": str}


def sample(count: int) -> Rows:
    rng = random.Random(count)
    rows: Rows = []
    for number in range(count):
        tokens = rng.randrange(9)
        row = {
            "text": "".join(rng.choices("aé漢𝄞 \n", k=9)),
            "vokens": [rng.randrange(-1, 1 << 31) for _ in range(tokens)],
            "scores": [rng.choice([0.1, -1.5, 1 / 3]) for _ in range(tokens)],
            "spans": [[i, i + 1] for i in range(tokens)],
            "id": number << 40,
            "more": {"a": [{"b": "c"}], "d": number / 8},
        }
        rows.append(row | ({"image": f"{number}.jpg"} if number % 3 else {}))
    return rows


def lines(rows: Rows) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def write(path: Path, rows: Rows, stop: int | None = None, size: int = 70) -> None:
    """Write rows as a command does, from where it was; `stop` it before the commit of that row."""
    with Output([path], {"k": 1}, columns=COLUMNS) as out:
        for start in range(out.state.get("rows", 0), len(rows), size):
            out.write(lines(rows[start : start + size]))
            if stop is not None and start >= stop:
                raise KeyboardInterrupt
            out.commit({"rows": start + len(rows[start : start + size])})
        out.finish(kind="vokens", rows=len(rows))


@pytest.mark.parametrize("count", [1, 70, 1000])
def test_rows_are_read_as_they_were_written(tmp_path: Path, count: int) -> None:
    rows = sample(count)
    write(tmp_path / "x.parquet", rows)
    read = [row for _, row in read_made(tmp_path / "x.parquet")]
    # A key that a row lacks is not null when it is read again, and the types are the same.
    assert [*map(sorted_repr, read)] == [*map(sorted_repr, rows)]
    file = parquet.ParquetFile(tmp_path / "x.parquet")
    assert file.metadata.num_row_groups == -(-count // 70)
    types = {field.name: str(field.type) for field in file.schema_arrow}
    assert types["vokens"] == "list<element: int64>"
    assert types["scores"] == "list<element: double>"
    assert types["spans"] == "list<element: list<element: int64>>"
    assert types["text"] == "string"
    # The ends of row groups are where the metadata say: each can be read alone.
    last = file.metadata.num_row_groups - 1
    assert file.read_row_group(last).column("id").to_pylist()[-1] == rows[-1]["id"]


def sorted_repr(row: dict[str, Any]) -> str:
    return repr(sorted(row.items()))


def test_the_manifest_is_beside_and_in_the_metadata(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", sample(100))
    beside = read_manifest(tmp_path / "x.parquet", "vokens")
    within = json.loads(parquet.read_metadata(tmp_path / "x.parquet").metadata[b"vg"])
    assert within == {key: beside[key] for key in within}
    assert set(beside) - set(within) == {"files", "argv", "versions"}


def test_without_rows_it_has_the_declared_columns(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", [])
    table = parquet.read_table(tmp_path / "x.parquet")
    assert (table.num_rows, table.column_names) == (0, [*COLUMNS])
    assert [*read_made(tmp_path / "x.parquet")] == []


@pytest.mark.parametrize("stop", [0, 70, 490, 980])
def test_a_stopped_run_resumes_byte_by_byte(tmp_path: Path, stop: int) -> None:
    rows = sample(1000)
    write(tmp_path / "whole.parquet", rows)
    path = tmp_path / "x.parquet"
    with pytest.raises(KeyboardInterrupt):
        write(path, rows, stop)
    assert not path.exists()
    part = tmp_path / "x.parquet.part"
    assert part.exists() == (stop > 0)
    if stop:  # a kill leaves bytes of the commit that it hit
        with open(part, "ab") as torn:
            torn.write(b"PAR1 torn")
    write(path, rows)
    assert path.read_bytes() == (tmp_path / "whole.parquet").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["whole.json", "whole.parquet", "x.json", "x.parquet"]


def test_a_part_that_was_damaged_is_refused(tmp_path: Path) -> None:
    rows = sample(1000)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "x.parquet", rows, 490)
    part = tmp_path / "x.parquet.part"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(DataError, match="has changed since it was written; --restart starts over"):
        write(tmp_path / "x.parquet", rows)


def test_lists_of_the_first_rows_decide_where_none_was_declared_so() -> None:
    """The vokens of -k 2 that vg revokenize reads are lists of lists."""
    groups = Groups("x.parquet", COLUMNS)
    file = BytesIO()
    for row in ({"text": "a", "vokens": [[1, 2]]}, {"text": "", "vokens": []}):
        file.write(groups.group(lines([row]), file.tell()))
    file.write(groups.end(file.tell(), b"{}"))
    found = parquet.read_table(file).column("vokens").to_pylist()
    assert found == [[[1, 2]], []]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"text": "a", "vokens": ["x"]}, '"vokens" does not fit into a column of list'),
        ({"text": 5}, '"text" does not fit into a column of string'),
        ({"text": "a", "new": 1}, '"new" does not fit into a column of Parquet: the first rows'),
        ({"text": "a", "id": 1 << 63}, '"id" does not fit into a column of int64'),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path: Path, row: dict[str, Any], why: str) -> None:
    rows = [*sample(200), *sample(2), row]
    with pytest.raises(DataError) as error:
        write(tmp_path / "x.parquet", rows)
    assert error.value.code == Exit.DATA
    assert f"x.parquet:203: {why}" in str(error.value)
    assert str(error.value).endswith("rows of any keys go into .jsonl")


@pytest.mark.parametrize(
    ("first", "then", "why"),
    [
        (3, 3.8, r'"x" does not fit into a column of int64: 3\.8 would become 3; rows of any'),
        ([1], [2, 2.5], r'"x" does not fit into a column of list<.*: \[2, 2\.5\] would become'),
        (2.5, True, r'"x" does not fit into a column of double: True would become 1\.0'),
        (2.5, 2**53 + 1, r'"x" does not fit into a column of double'),
        ({"a": 1}, {"a": 1, "b": 2}, r'"x" does not fit into a column of struct<a: int64>: '),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": "d"}]}, r'"x" does not fit into a column of str'),
        ({}, {}, "no child field to Parquet; rows of any keys go into .jsonl"),
        ([{}], [{}], "no child field to Parquet; rows of any keys go into .jsonl"),
    ],
)
def test_no_value_is_cut_and_no_key_lost(
    tmp_path: Path, first: object, then: object, why: str
) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(DataError, match=why) as caught, Output([path], {}, columns={}) as out:
        for number, value in enumerate((first, first, then)):
            out.write(dumps({"text": "a", "x": value}))
            if number:
                out.commit({})
    assert caught.value.code == Exit.DATA
    assert caught.value.line in (3, None)


@pytest.mark.parametrize("values", [(3, 3.8), ([1], [2, 2.5]), ({"a": 1}, {"a": 1, "b": 2})])
def test_values_of_the_first_rows_have_one_type(values: tuple[Any, Any]) -> None:
    groups = Groups("x.parquet", {})
    file = BytesIO(groups.group(lines([{"x": value} for value in values]), 0))
    file.seek(0, os.SEEK_END)
    file.write(groups.end(file.tell(), b"{}"))
    found = parquet.read_table(file).column("x").to_pylist()
    assert found == [values[0] if values[0] != {"a": 1} else {"a": 1, "b": None}, values[1]]


def test_values_of_several_types_in_the_first_rows(tmp_path: Path) -> None:
    rows = [{"text": "a", "id": 1}, {"text": "b", "id": "two"}]
    with pytest.raises(DataError, match='"id" does not fit into a column'):
        write(tmp_path / "x.parquet", rows)


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.csv", "x.tsv.gz"])
def test_outputs_that_are_no_rows_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"that this command cannot write; expected \.jsonl") as e:
        Output([tmp_path / name], {})
    assert e.value.code == Exit.USAGE


def test_a_pipe_takes_no_parquet(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.parquet")
    with pytest.raises(DataError, match="cannot go into a pipe"):
        Output([tmp_path / "x.parquet"], {}, columns=COLUMNS)


# ---------------------------------------------------------------------------------- other readers


def by_pandas(path: Path) -> Rows:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_parquet(path)
    return [
        {"text": t, "vokens": v.tolist()} for t, v in zip(table.text, table.vokens, strict=True)
    ]


def by_polars(path: Path) -> Rows:
    polars = pytest.importorskip("polars")
    return polars.read_parquet(path, columns=["text", "vokens"]).to_dicts()  # type: ignore[no-any-return]


def by_duckdb(path: Path) -> Rows:
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql(f"select text, vokens from '{path}'").fetchall()
    return [{"text": text, "vokens": vokens} for text, vokens in found]


def by_datasets(path: Path) -> Rows:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_parquet(str(path), cache_dir=str(path.parent / "cache"))
    return made.select_columns(["text", "vokens"]).to_list()  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("read", [by_pandas, by_polars, by_duckdb, by_datasets])
def test_other_packages_read_the_rows(tmp_path: Path, read: Callable[[Path], Rows]) -> None:
    rows = sample(300)
    write(tmp_path / "x.parquet", rows)
    expected = [{key: row[key] for key in ("text", "vokens")} for row in rows]
    assert read(tmp_path / "x.parquet") == expected
