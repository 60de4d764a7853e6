"""Lines drawn for words: how many, which, and that no word's share depends on another's."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from vgtools.io.errors import DataError
from vgtools.measures.contexts import draw


def test_all_lines_of_a_rare_word_and_so_many_of_a_common_one(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"A cat{' sat' * (n % 5 == 0)}, cat {n}.\n" for n in range(50)))
    found = draw(str(path), ["cat", "sat", "dog"], 20, 3)
    words = [found.words[row] for row in found.rows.tolist()]
    spelt = [found.texts[t][a:b] for t, a, b in found.places.tolist()]
    assert spelt == words
    assert Counter(words) == {"cat": 40, "sat": 10}, "a line's two cats are both in it"
    assert len(found.texts) <= 20 + 10
    assert found.places[:, 0].tolist() == sorted(found.places[:, 0].tolist())


def test_a_text_without_any_of_the_words_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("<html>404</html>\n")
    with pytest.raises(DataError, match=r"text\.txt: holds none of the 2 words that are measured"):
        draw(str(tmp_path / "text.txt"), ["cat", "sat"], 20, 3)
    assert not draw(str(tmp_path / "text.txt"), [], 20, 3).texts


def test_every_line_is_as_likely(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"cat {n}\n" for n in range(10)))
    drawn = Counter[str]()
    for seed in range(1000):
        drawn.update(draw(str(path), ["cat"], 3, seed).texts)
    # 300 times each on average, with a deviation of 14.5
    assert len(drawn) == 10
    assert all(225 < count < 375 for count in drawn.values())


def test_words_share_lines_and_other_words_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"cat dog {n}\n" for n in range(100)))
    both = draw(str(path), ["cat", "dog"], 5, 0)
    assert len(both.texts) == 5
    assert sorted(draw(str(path), ["dog"], 5, 0).texts) == sorted(both.texts)
