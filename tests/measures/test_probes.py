"""Linear probes: features of pairs, a map by another solver, official files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tiny import save_encoder
from vgtools.cli import run
from vgtools.measures.probes import TaskProbe
from vgtools.tasks.examples import Example
from vgtools.tasks.metrics import accuracy, bootstrap

RNG = np.random.default_rng(0)


def examples(count: int, pairs: bool, begin: int = 0) -> list[Example]:
    return [
        Example(str(n), f"a {n}", f"b {n}" if pairs else None, n % 3)
        for n in range(begin, begin + count)
    ]


def test_a_sentence_is_classed_by_its_vector() -> None:
    probe = TaskProbe("p", "accuracy", ("x", "y", "z"), examples(60, False), examples(9, False, 60))
    assert probe.texts == [f"a {n}" for n in range(69)]
    classes = np.arange(69) % 3
    vectors = np.eye(3)[classes] + 0.05 * RNG.normal(size=(69, 3))
    vectors[[2, 62]] = np.nan
    found = probe.predict(vectors, np.isfinite(vectors).all(1))
    kept = np.arange(9) != 2
    assert found[kept].tolist() == classes[60:][kept].tolist()
    assert np.isnan(found[2]), "its vector is not known"
    assert probe.items.kind == "sentences"


def test_a_pair_is_classed_by_what_its_sentences_share() -> None:
    # Whether two vectors are equal is in no vector by itself, only in their distances.
    train, dev = examples(200, True), examples(40, True, 200)
    probe = TaskProbe("p", "accuracy", ("x", "y", "z"), train, dev)
    both = RNG.integers(0, 2, (240, 2)).astype(float)
    for number, example in enumerate([*train, *dev]):
        object.__setattr__(example, "label", int(both[number, 0] == both[number, 1]))
    probe = TaskProbe("p", "accuracy", ("x", "y"), train, dev)
    assert probe.texts[:4] == ["a 0", "b 0", "a 1", "b 1"]
    found = probe.predict(both.reshape(-1, 1), np.ones(480, bool))
    assert (found == probe.items.gold).all()
    features = probe._features(np.array([[1.0], [3.0]]), np.array([[0, 1]]))
    assert features.tolist() == [[1, 3, 2, 3]]


@pytest.fixture
def rte(tmp_path: Path) -> Path:
    (tmp_path / "rte").mkdir()
    for split, count in (("train", 40), ("dev", 12)):
        rows = [
            f"{n}\tbam dem {n}\tfim gom\t{('entailment', 'not_entailment')[n % 2]}\n"
            for n in range(count)
        ]
        header = "index\tsentence1\tsentence2\tlabel\n"
        (tmp_path / "rte" / f"{split}.tsv").write_text(header + "".join(rows))
    return tmp_path / "rte"


def test_rows_to_evaluate_on_are_not_learned_from(rte: Path, tmp_path: Path, capfd: Any) -> None:
    save_encoder(tmp_path / "net")
    lines = (rte / "train.tsv").read_text().splitlines()
    marked = [f"{line}\t{'test' if number == 3 else 'train'}" for number, line in enumerate(lines)]
    marked[0] = f"{lines[0]}\tsplit"
    (rte / "train.tsv").write_text("\n".join(marked) + "\n")
    assert run(["measure", str(tmp_path / "net"), "--probe", f"rte={rte}", "-q"]) == 65
    assert "train.tsv:4: \"split\" is 'test'" in capfd.readouterr().err


def test_official_files_side_by_side(rte: Path, tmp_path: Path, capfd: Any) -> None:
    nets = [str(tmp_path / name) for name in ("one", "two")]
    for seed, net in enumerate(nets):
        save_encoder(Path(net), seed=seed)
    capfd.readouterr()
    args = ["--probe", f"rte={rte}", "--limit", "30", "--samples", "100", "-q"]
    assert run(["measure", *nets, *args, "-o", f"{tmp_path}/items.jsonl"]) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [(r["evaluation"], r["encoder"], r["items"]) for r in records] == [
        ("rte dev.tsv", net, 12) for net in nets
    ]
    assert records[0]["majority"] == 0.5
    gain = records[1]["difference"]
    rows = [json.loads(line) for line in (tmp_path / "items.jsonl").read_text().splitlines()]
    answers = np.array([[row["gold"], *row["predictions"]] for row in rows])
    gold, *sides = np.unique(answers, return_inverse=True)[1].reshape(-1, 3).T
    drawn = bootstrap(accuracy, gold, sides, samples=100)[1:]
    error = float((drawn[:, 1] - drawn[:, 0]).std())
    assert gain["items_for_point"] == math.ceil(12 * (2.8 * error / 0.01) ** 2)
    assert gain["high"] - gain["low"] > 3.92 * error, "twelve items are few"
    rows = [json.loads(line) for line in Path(f"{tmp_path}/items.jsonl").read_text().splitlines()]
    assert [row["gold"] for row in rows[:2]] == ["entailment", "not_entailment"]


@pytest.mark.parametrize(
    ("given", "code", "why"),
    [
        ("rte", 2, "--probe: expected TASK=FOLDER, got 'rte'"),
        ("sts-b=x", 2, "--probe: sts-b has no classes of texts"),
        ("rte=nowhere", 66, "nowhere: is not a directory"),
    ],
)
def test_refusals(given: str, code: int, why: str, capfd: Any) -> None:
    assert run(["measure", "x", "--probe", given]) == code
    assert why in capfd.readouterr().err
