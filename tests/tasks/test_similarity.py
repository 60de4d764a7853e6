"""Word similarity: files of pairs, vectors, groups, gains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import save_encoder
from vgtools.cli import run
from vgtools.io.errors import DataError
from vgtools.models.encoder import load_encoder
from vgtools.tasks.similarity import compare_similarity, cosines, read_pairs, word_states


def test_files_of_pairs(tmp_path: Path) -> None:
    files = {
        "wordsim.tsv": "# by hand\nTiger\tcat\t7.35\nlove\tsex\t6.77\na\tb\t0\n",
        "men.txt": "Tiger cat 7.35\nlove sex 6.77\na b 0\n",
        "simlex.txt": "word1\tword2\tPOS\tSimLex999\tconc(w1)\nTiger\tcat\tN\t7.35\t5\n"
        "love\tsex\tN\t6.77\t2\na\tb\tN\t0\t1\n",
        "scores.csv": "one,two,score\nTiger,cat,7.35\nlove,sex,6.77\na,b,0\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        pairs = read_pairs(str(tmp_path / name))
        assert pairs.words == [("tiger", "cat"), ("love", "sex"), ("a", "b")]
        assert pairs.scores.tolist() == [7.35, 6.77, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a b 1\na c\nb c 2\n", r"pairs\.txt:2: expected two words and a score in column 3"),
        ("a b 1\na c x\nb c 2\n", r"pairs\.txt:2: expected two words and a score"),
        ("a b 1\na c nan\nb c 2\n", r"pairs\.txt:2: expected two words"),
        ("a b nan\na c 1\nb c 2\nc d 3\n", r"pairs\.txt:1: expected two words"),
        ("a b inf\na c 1\nb c 2\nc d 3\n", r"pairs\.txt:1: expected two words"),
        ("a b 1\na c 2\n", "has 2 pairs of words; a ranking needs 3"),
        ("", "has 0 pairs"),
    ],
)
def test_files_without_pairs_are_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(DataError, match=why):
        read_pairs(str(tmp_path / "pairs.txt"))


def test_a_word_is_the_mean_of_its_tokens_last_states(tmp_path: Path) -> None:
    save_encoder(tmp_path)
    words = ["bam", "bamde", "", "de"]
    found = word_states(str(tmp_path), words)
    encoder = load_encoder(str(tmp_path))
    encoder.model.double()
    for word, vector in zip(words, found, strict=True):
        ids = encoder.tokenizer.encode(word).ids
        if not word:
            assert np.isnan(vector).all()
            continue
        with torch.no_grad():
            states = encoder.model(torch.tensor([ids])).last_hidden_state[0, 1:-1]
        # float32 states of a two-layer network of width 8 to 16, each sum in another order
        np.testing.assert_allclose(vector, states.mean(0).numpy(), rtol=0, atol=2e-5)


def test_cosines_by_hand() -> None:
    vectors = np.array([[1.0, 0], [3, 4], [0, 2], [0, 0], [np.nan, 1]])
    pairs = np.array([[0, 1], [0, 2], [1, 2], [0, 3], [1, 4]])
    found = cosines(vectors, pairs)
    np.testing.assert_allclose(found[:3], [0.6, 0, 0.8], atol=1e-15)
    assert np.isnan(found[3:]).all()


def write_vectors(folder: Path, name: str, rows: dict[str, list[float]]) -> str:
    text = "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in rows.items())
    (folder / f"{name}.txt").write_text(f"{len(rows)} 2\n{text}")
    assert (
        run(["prepare", "vectors", str(folder / f"{name}.txt"), "-o", f"{folder}/{name}.npy", "-q"])
        == 0
    )
    return f"{folder}/{name}.npy"


def by_ranks(a: list[float], b: list[float]) -> float:
    """Return Pearson's correlation of average ranks, as Spearman's is defined."""
    ranks = [[sum(y < x for y in xs) + sum(y == x for y in xs) / 2 for x in xs] for xs in (a, b)]
    return float(np.corrcoef(*ranks)[0, 1])


ROWS = {
    "cat": [1.0, 0.0], "dog": [1.0, 0.2], "car": [0.1, 1.0], "bus": [0.0, 1.0], "idea": [1.0, 1.0],
    "hope": [1.0, -1.0],
}  # fmt: skip
PAIRS = [
    ("cat", "dog", 9.0), ("cat", "car", 2.0), ("car", "bus", 8.0), ("dog", "bus", 3.0),
    ("idea", "hope", 5.0), ("cat", "idea", 1.0), ("bus", "hope", 0.0), ("idea", "unicorn", 4.0),
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = "".join(f"{a}\t{b}\t{score}\n" for a, b, score in PAIRS)
    (tmp_path / "pairs.tsv").write_text(lines)
    (tmp_path / "captions.txt").write_text("a cat and a dog\na car and a bus\n" * 2)
    return tmp_path


def test_groups_and_gains(folder: Path) -> None:
    first = write_vectors(folder, "one", ROWS)
    turned = {word: [row[0], abs(row[1])] for word, row in ROWS.items()}
    second = write_vectors(folder, "two", turned)
    seen = frozenset({"cat", "dog", "car", "bus"})
    one, two = compare_similarity([first, second], f"{folder}/pairs.tsv", seen, 200)
    assert (one["pairs"], one["left_out"]) == (7, 1)
    assert [one["groups"][name]["pairs"] for name in ("all", "grounded", "other")] == [7, 4, 3]
    for record, rows in ((one, ROWS), (two, turned)):
        unit = {word: np.array(row) / np.hypot(*row) for word, row in rows.items()}
        cosine = [unit[a] @ unit[b] for a, b, _ in PAIRS[:7]]
        expected = by_ranks([score for *_, score in PAIRS[:7]], cosine)
        assert record["groups"]["all"]["rho"] == pytest.approx(expected, abs=1e-12)
        assert record["groups"]["all"]["low"] <= expected <= record["groups"]["all"]["high"]
    assert "difference" not in one["groups"]["all"]
    gain = two["groups"]["all"]["difference"]["value"]
    assert gain == pytest.approx(two["groups"]["all"]["rho"] - one["groups"]["all"]["rho"])
    assert two["groups"]["grounded"]["difference"]["value"] == 0


def test_the_command(folder: Path, capfd: Any) -> None:
    vectors = write_vectors(folder, "one", ROWS)
    capfd.readouterr()
    args = ["compare", "similarity", f"{folder}/pairs.tsv", vectors, vectors]
    args += ["--grounding", f"{folder}/captions.txt", "--grounded-above", "1", "--samples", "200"]
    assert run(args) == 0
    records = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert records[1]["groups"]["all"]["difference"] == {"value": 0, "low": 0, "high": 0, "p": 1}
    assert run([*args, "--table"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert (
        lines[0] == "| Encoder | All pairs: 7 | Gain | Both grounded: 4 | Gain | Others: 3 | Gain |"
    )
    assert lines[-1] == "Left out: 1 pair that not all of them know."
    assert run([*args, "--median"]) == 2
    assert "No such option: --median" in capfd.readouterr().err


def test_pairs_that_nobody_knows_are_refused(folder: Path) -> None:
    vectors = write_vectors(folder, "one", {"sun": [1, 0], "moon": [0, 1]})
    with pytest.raises(DataError, match="0 of its 8 pairs are known to all; 3 are needed"):
        list(compare_similarity([vectors], f"{folder}/pairs.tsv"))
