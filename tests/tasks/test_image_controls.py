"""Controls of images: one definition, over different texts, for whoever finds the images."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from vgtools.io.errors import DataError
from vgtools.tasks.image_controls import Choice, choose_images

# Of the words below the third finds no image and the fourth a single one; "a" and "b" are repeated.
FOUND = {"a": [7, 8], "b": [5, 6], "c": [-1, -1], "d": [3, -1], "e": [1, 2]}
TEXTS = ["a", "b", "a", "c", "d", "b", "a", "e", "c"]
ROWS = np.array([FOUND[text] for text in TEXTS], np.int32)
BANK = np.array([10, 20, 30])


def chosen(choice: Choice, texts: list[str] = TEXTS, split: str = "train") -> list[list[int]]:
    rows = np.array([FOUND[text] for text in texts], np.int32)
    drawn = choose_images(rows, texts, choice, BANK, split)
    assert drawn.dtype == np.int32
    assert rows.tolist() == [FOUND[text] for text in texts], "what was found is not written to"
    return drawn.tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("choice", ["found", "random", "shuffle", "none"])
def test_equal_texts_have_equal_images(choice: Choice) -> None:
    shown = chosen(choice)
    for text in FOUND:
        assert len({tuple(row) for t, row in zip(TEXTS, shown, strict=True) if t == text}) == 1


def test_found_is_what_was_found_and_none_is_nothing() -> None:
    assert chosen("found") == ROWS.tolist()
    assert chosen("none") == [[-1, -1]] * len(TEXTS)


def test_random_draws_as_many_from_the_bank_as_were_found() -> None:
    shown = np.array(chosen("random"))
    assert ((shown < 0) == (ROWS < 0)).all()
    assert set(shown[ROWS >= 0].tolist()) <= set(BANK.tolist())
    texts = [f"{i}" for i in range(300)]
    rows = choose_images(np.zeros((300, 2), np.int64), texts, "random", BANK, "train")
    share = Counter(rows.ravel().tolist())
    # 600 draws: each image 200 times, with a standard deviation of 11.5.
    assert all(abs(share[row] - 200) < 5 * 11.5 for row in BANK.tolist())


def test_random_of_equal_texts_that_found_unlike_numbers_of_images() -> None:
    found = np.array([[4, 5], [4, -1], [-1, -1]])
    rows = choose_images(found, ["a", "a", "b"], "random", BANK, "train")
    assert ((rows < 0) == (found < 0)).all()
    assert rows[0, 0] == rows[1, 0]


@pytest.mark.parametrize("split", ["train", "dev", "test", "mnli"])
def test_shuffle_is_one_circle_of_different_texts(split: str) -> None:
    shown = chosen("shuffle", split=split)
    given_by = {tuple(rows): text for text, rows in FOUND.items()}
    giver = {text: given_by[tuple(row)] for text, row in zip(TEXTS, shown, strict=True)}
    assert sorted(giver) == sorted(giver.values()) == sorted(FOUND)
    circle = ["a"]
    while len(circle) < 5:
        circle.append(giver[circle[-1]])
    assert sorted(circle) == sorted(FOUND), "five steps pass every text"
    assert all(giver[a] == b != a for a, b in pairwise([*circle, "a"]))


def test_what_is_drawn_depends_on_the_split_alone() -> None:
    texts = [f"{i}" for i in range(40)]
    rows = np.arange(40)[:, None]
    for choice in ("random", "shuffle"):
        first = choose_images(rows, texts, choice, np.arange(40), "train")  # type: ignore[arg-type]
        same = choose_images(rows, texts, choice, np.arange(40), "train")  # type: ignore[arg-type]
        other = choose_images(rows, texts, choice, np.arange(40), "dev")  # type: ignore[arg-type]
        assert first.tolist() == same.tolist() != other.tolist()


def test_one_text_cannot_have_the_images_of_another() -> None:
    with pytest.raises(DataError, match="the dev split has one text alone; use --images random"):
        chosen("shuffle", ["a", "a"], "dev")
