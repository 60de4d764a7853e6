"""Pairs of words: their files, cosines and centring."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vgtools.io.errors import DataError
from vgtools.measures.pairs import WordPairs, centred, cosines, read_pairs


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
        assert pairs.items.gold.tolist() == [7.35, 6.77, 0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a b 1\na c\nb c 2\n", r"pairs\.txt:2: expected two words and a score in column 3"),
        ("a b 1\na c x\nb c 2\n", r"pairs\.txt:2: expected two words and a score"),
        ("a b 1\na c nan\nb c 2\n", r"pairs\.txt:2: expected two words"),
        ("a b 4x\na c 1\nb c 2\nc d 3\n", r"pairs\.txt:1: expected two words"),
        ("a b 1\na c 1_0\nb c 2\nc d 3\n", r"pairs\.txt:2: expected two words"),
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


def test_cosines_by_hand() -> None:
    vectors = np.array([[1.0, 0], [3, 4], [0, 2], [0, 0], [np.nan, 1]])
    pairs = np.array([[0, 1], [0, 2], [1, 2], [0, 3], [1, 4]])
    found = cosines(vectors, pairs)
    np.testing.assert_allclose(found[:3], [0.6, 0, 0.8], atol=1e-15)
    assert np.isnan(found[3:]).all()


def test_vectors_are_centred_by_the_words_that_all_subjects_know() -> None:
    vectors = np.array([[1.0, 2], [3, 4], [np.nan, 0], [90, 90]])
    found = centred(vectors, np.array([True, True, False, False]))
    assert found[:2].tolist() == [[-1, -1], [1, 1]]
    assert np.isnan(found[2:]).all()


def test_a_pair_with_a_word_that_another_subject_lacks_has_no_cosine() -> None:
    pairs = WordPairs("x", [("a", "b"), ("b", "c"), ("a", "b")], np.array([1.0, 2, 3]))
    assert pairs.items.keys == ["a b", "b c", "a b (2)"]
    vectors = np.array([[2.0, 1], [0, 1], [1, 4]])  # vectors of a, b, c
    found = pairs.predict(vectors, np.array([True, True, False]))
    assert found[[0, 2]].tolist() == [-1, -1]
    assert np.isnan(found[1])
