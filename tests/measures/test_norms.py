"""Norms and classes of words: their files, and that unknown words have no influence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from vgtools.io.errors import DataError
from vgtools.measures.norms import Norms, read_norms
from vgtools.measures.ridge import cross_validated
from vgtools.measures.run import open_evaluation

RNG = np.random.default_rng(0)
WORDS = [f"w{n}" for n in range(30)]


def test_predictions_come_from_known_words_alone() -> None:
    gold = RNG.normal(size=30)
    vectors = RNG.normal(size=(30, 4)).astype(np.float32)
    known = np.arange(30) >= 5
    found = Norms("x", WORDS, gold).predict(vectors, known)
    assert np.isnan(found[:5]).all()
    expected = cross_validated(vectors[5:].astype(np.float64), gold[5:, None])
    np.testing.assert_array_equal(found[5:], expected[:, 0])


@pytest.mark.parametrize(("name", "tab"), [("n.csv", ","), ("n.tsv", "\t")])
def test_numbers_of_a_separated_text_are_numbers(tmp_path: Path, name: str, tab: str) -> None:
    path = tmp_path / name
    rows = [("word", "value"), *((word, f"{n / 4}") for n, word in enumerate(WORDS))]
    path.write_text("".join(f"{a}{tab}{b}\n" for a, b in rows))
    found = read_norms(str(path)).items
    assert not found.labels
    assert found.gold.tolist() == [n / 4 for n in range(30)]
    path.write_text(path.read_text().replace(f"{tab}0.5\n", f"{tab}high\n"))
    with pytest.raises(DataError, match="must be a finite number, got 'high'"):
        read_norms(str(path))
    path.write_text("".join(f"{a}{tab}{'class' * (a != 'word')}{b}\n" for a, b in rows))
    assert len(read_norms(str(path)).items.labels or ()) == 30


@pytest.mark.parametrize("labels", [[], ["a", "b"]])
def test_one_known_word_predicts_nothing(labels: list[str]) -> None:
    known = np.arange(len(WORDS)) == 3
    norms = Norms("x", WORDS, np.zeros(len(WORDS)), labels)
    assert np.isnan(norms.predict(np.ones((len(WORDS), 4)), known)).all()
    known[5] = True
    assert np.isfinite(norms.predict(np.ones((len(WORDS), 4)), known)[known]).all()


def test_the_class_with_the_highest_value() -> None:
    labels = ["adj", "noun", "verb"]
    gold = np.arange(30) % 3.0
    vectors = np.eye(3)[gold.astype(int)] + RNG.normal(size=(30, 3)) * 0.01
    norms = Norms("x", WORDS, gold, labels)
    assert norms.items.statistic == "accuracy"
    np.testing.assert_array_equal(norms.predict(vectors, np.ones(30, bool)), gold)


def rows(folder: Path, *values: Any) -> str:
    path = folder / "norms.jsonl"
    path.write_text("".join(json.dumps({"word": f"W{n}", "value": v}) + "\n" for n, v in values))
    return str(path)


def test_numbers_and_classes(tmp_path: Path) -> None:
    found = read_norms(rows(tmp_path, *((n, n / 2) for n in range(10))))
    assert found.items.keys == [f"w{n}" for n in range(10)]
    assert found.items.gold.tolist() == [n / 2 for n in range(10)]
    found = read_norms(rows(tmp_path, *((n, "ba"[n % 2]) for n in range(10))))
    assert found.items.labels == ["a", "b"]
    assert found.items.gold.tolist() == [1, 0] * 5


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([(n, n) for n in range(9)], "has 9 words; a regression in 10 folds needs 10 or more"),
        ([(0, 1), (1, "a")], r'norms.jsonl:2: "value" must be a finite number'),
        ([(0, "a"), (1, 1)], r'norms.jsonl:2: "value" must be a string as in the rows before'),
        ([(0, 1), (0, 2)], r"norms.jsonl:2: duplicate word 'w0'"),
        ([(0, None)], r'norms.jsonl:1: "value" must be a finite number, got None'),
    ],
)
def test_refusals(tmp_path: Path, values: list[tuple[int, Any]], why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_norms(rows(tmp_path, *values))


@pytest.mark.parametrize("name", ["n.csv", "n.tsv", "n.parquet", "n.jsonl"])
def test_a_table_of_norms_is_no_table_of_pairs(tmp_path: Path, name: str) -> None:
    rows = [{"word": word, "norm": "concrete", "value": n / 4} for n, word in enumerate(WORDS)]
    path = tmp_path / name
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif name.endswith("jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        tab = "," if name.endswith("csv") else "\t"
        lines = [[*rows[0]], *([str(cell) for cell in row.values()] for row in rows)]
        path.write_text("".join(tab.join(line) + "\n" for line in lines))
    (found,) = open_evaluation(str(path))
    assert isinstance(found, Norms)
    assert found.items.gold.tolist() == [n / 4 for n in range(30)]
