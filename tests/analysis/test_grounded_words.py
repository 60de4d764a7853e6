"""Grounded words of single texts by hand; the permutation test against all divisions."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from vgtools.analysis.corpora import CorpusStats
from vgtools.analysis.grounded_words import GroundedWords, permutation_p, spread
from vgtools.text.ngrams import Pieces, WordTypes

# Appendix D.2, example 2, as the paper prints it: 5 grounded of 5 + 16.
PAIR = (
    "security forces were on high alert after an election campaign in which more than 1,000 "
    "people, including seven election candidates, have been killed.",
    "security forces were on high alert after a campaign marred by violence.",
)


def test_words_by_hand() -> None:
    words = GroundedWords(WordTypes(), frozenset({"dog", "red", "the"}))
    texts = [["The red dog saw a DOG.", "No\ndog!"], ["of the ."], [""], ["Ann runs"]]
    # red dog saw dog | dog; `the` is a stop word, although it is listed; "no" is one, too
    assert words.counts(texts).tolist() == [[4, 5], [0, 0], [0, 0], [0, 2]]
    assert words.marked(texts[0][0]) == "(the) **red** **dog** saw (a) **dog** (.)"
    assert words.marked("") == ""


def test_the_ratio_is_that_of_vg_stats_without_stop_words(tmp_path: Path) -> None:
    captions = tmp_path / "captions.txt"
    captions.write_text("a red dog and a blue cat .\n" * 3 + "the house is blue\n" * 2)
    types = WordTypes()
    stats = CorpusStats(types, captions=str(captions), above=2, content_only=True)
    grounded = frozenset(row["type"] for row in stats.grounded_types())
    generator = np.random.default_rng(0)
    vocabulary = ["a", "red", "Dog", "blue", "house", "idea", ".", "the", "peace", "cat's"]
    for _ in range(5):
        lines = [" ".join(generator.choice(vocabulary, 7)) for _ in range(3)]
        (tmp_path / "text.txt").write_text("".join(f"{line}\n" for line in lines))
        ((found, content),) = GroundedWords(types, grounded).counts([lines]).tolist()
        ratio = stats.record(str(tmp_path / "text.txt"))["grounding_ratio"]
        assert found / content == pytest.approx(ratio)


def test_an_example_of_the_appendix() -> None:
    grounded = frozenset({"people", "high", "seven", "including"})
    words = GroundedWords(WordTypes(), grounded)
    ((found, content),) = words.counts([PAIR]).tolist()
    assert (found, content) == (5, 21)  # `high` is in both texts


def test_pieces_are_counted_one_by_one() -> None:
    pieces = ["[UNK]", "ho", "##dler", "cat", "##s", "the", "."]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = GroundedWords(Pieces(tokenizer, "t"), frozenset({"cat", "##s"}))
    assert words.counts([["Hodler, the cats."]]).tolist() == [[2, 5]]  # the comma is [UNK]
    assert words.marked("Hodler the cats.") == "ho ##dler (the) **cat** **##s** (.)"


def test_marks_of_word_ends_are_not_part_of_a_word() -> None:
    vocabulary = {"the</w>": 0, "dog</w>": 1, ".</w>": 2}
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 3} | vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = GroundedWords(Pieces(tokenizer, "clip"), frozenset({"dog</w>"}))
    assert words.counts([["the</w> dog</w> .</w>"]]).tolist() == [[1, 1]]
    assert words.marked("the</w> dog</w> .</w>") == "(the) **dog** (.)"


def test_spread_by_hand() -> None:
    assert spread(np.array([0.4, 0.1, 0.3, 0.2])) == {
        "n": 4,
        "q1": pytest.approx(0.175),
        "median": pytest.approx(0.25),
        "q3": pytest.approx(0.325),
        "mean": pytest.approx(0.25),
    }
    assert spread(np.zeros(0)) == {"n": 0, "q1": None, "median": None, "q3": None, "mean": None}


def exact(a: list[float], b: list[float]) -> float:
    """Return the p-value over all divisions of the values."""
    values = [*a, *b]
    observed = abs(np.mean(a) - np.mean(b))
    found: list[Any] = []
    for chosen in combinations(range(len(values)), len(a)):
        first = [values[i] for i in chosen]
        second = [values[i] for i in range(len(values)) if i not in chosen]
        found.append(abs(np.mean(first) - np.mean(second)) >= observed - 1e-12)
    return float(np.mean(found))


@pytest.mark.parametrize(
    ("a", "b"),
    [([0.1, 0.2, 0.3], [0.5, 0.6, 0.4, 0.55]), ([0.5, 0.0], [0.5, 0.0, 0.25]), ([1.0], [0.0] * 5)],
)
def test_the_p_value_is_the_share_of_divisions(a: list[float], b: list[float]) -> None:
    samples = 40_000
    p = permutation_p(np.array(a), np.array(b), samples, seed=1)
    assert p == pytest.approx(exact(a, b), abs=4 * np.sqrt(0.25 / samples) + 1 / samples)


def test_a_group_alone_has_no_p_value() -> None:
    assert permutation_p(np.zeros(0), np.ones(3)) is None
    assert permutation_p(np.ones(2), np.ones(3), 100) == 1.0
