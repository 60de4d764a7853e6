"""Word vectors from files, content words of texts against loops, and masked means."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tiny import grounding as t
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import write_manifest
from vgtools.text.tokens import word_runs
from vgtools.text.word_vectors import (
    find_words,
    mean_vectors,
    open_word_vectors,
    stop_words_fingerprint,
    unit_vectors,
)


def test_vectors_of_a_file_know_their_words(tmp_path: Path) -> None:
    path = t.save_vectors(tmp_path / "v.npy")
    vectors = open_word_vectors(str(path))
    assert vectors.row("cat") == 2
    assert vectors.row("Cat") == -1
    assert vectors.array[vectors.row("car")].tolist() == [0, 1]
    again = open_word_vectors(str(path))
    assert again.fingerprint == vectors.fingerprint
    other = t.save_vectors(tmp_path / "w.npy", {"cat": (1, 0)})
    assert open_word_vectors(str(other)).fingerprint != vectors.fingerprint


def test_the_builtin_has_the_words_and_vectors_of_its_package() -> None:
    vectors = open_word_vectors("builtin:glove-50d")
    assert vectors.array.shape == (400_000, 50)
    assert [vectors.row(word) for word in ("the", ",", "of")] == [0, 1, 3]
    assert vectors.array[0, :3] == pytest.approx([0.418, 0.24968, -0.41242])


@pytest.mark.parametrize(
    ("ref", "code", "message"),
    [
        ("builtin:glove", Exit.USAGE, "no word vectors are called 'builtin:glove'"),
        ("missing.npy", Exit.NO_INPUT, "expected X.npy of vg prepare vectors"),
    ],
)
def test_vectors_that_are_not_there_are_refused(ref: str, code: Exit, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        open_word_vectors(ref)
    assert caught.value.code == code


def test_vectors_that_changed_are_refused(tmp_path: Path) -> None:
    path = t.save_vectors(tmp_path / "v.npy")
    path.with_suffix(".ids").write_text("dog\n" * len(t.VECTORS))
    with pytest.raises(DataError, match=r"v\.ids"):
        open_word_vectors(str(path))


@pytest.mark.parametrize("more", ["dog\n", "new\n"])
def test_words_without_a_vector_of_their_own_are_refused(tmp_path: Path, more: str) -> None:
    path = t.save_vectors(tmp_path / "v.npy")
    ids = path.with_suffix(".ids")
    ids.write_text(ids.read_text() + more)
    write_manifest(path, [path, ids], kind="word-vectors")
    with pytest.raises(DataError, match="12 vectors for 13 words"):
        open_word_vectors(str(path))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_vectors_that_are_not_finite_are_refused(tmp_path: Path, number: float) -> None:
    path = t.save_vectors(tmp_path / "v.npy", {"cat": (1, 0), "dog": (0, number)})
    with pytest.raises(DataError, match=r"v\.npy: row 1 \('dog'\) is NaN or infinite"):
        open_word_vectors(str(path))


def test_content_words_are_looked_up_without_case_and_possession() -> None:
    text = "The DOG’s cat, a zebra & the_car's puppy's _ __ 2nd"
    words = find_words([text], t.vectors().row, t.STOP)
    spelt = [text[a:b] for a, b in zip(words.begin, words.end, strict=True)]
    assert spelt == ["DOG’s", "cat", "puppy's"]
    assert words.rows.tolist() == [0, 2, 1]
    assert not words.noun.any()


TEXTS = st.lists(st.text("ab 'é\u0301_\n’-\U0001f600B", max_size=12), max_size=6)


@given(TEXTS)
def test_words_of_a_batch_are_those_of_each_text(texts: list[str]) -> None:
    def row_of(word: str) -> int:
        return len(word) if "b" in word else -1

    words = find_words(texts, row_of, frozenset({"bb"}))
    assert len(words.starts) == len(texts) + 1
    for i, text in enumerate(texts):
        one = find_words([text], row_of, frozenset({"bb"}))
        part = words.take([i])
        assert all(np.array_equal(a, b) for a, b in zip(part, one, strict=True))


@given(st.text("ab '’é\u0301_\n-\U0001f600", max_size=20))
def test_runs_are_longest_runs_of_word_characters(text: str) -> None:
    def inside(i: int) -> bool:
        if text[i] in "'’":
            return 0 < i < len(text) - 1 and text[i - 1] in LETTERS and text[i + 1] in LETTERS
        return text[i] in LETTERS

    expected = []
    begin = None
    for i in range(len(text) + 1):
        if i < len(text) and inside(i):
            begin = i if begin is None else begin
        elif begin is not None:
            expected.append([begin, i])
            begin = None
    spans, starts = word_runs(["", text, ""])
    assert spans.tolist() == expected
    assert starts.tolist() == [0, 0, len(expected), len(expected)]


LETTERS = "abé\u0301_"


def test_words_taken_twice_and_in_another_order() -> None:
    words = find_words(["dog", "", "cat car", "puppy"], t.vectors().row, t.STOP)
    taken = words.take([2, 1, 0, 2])
    assert taken.rows.tolist() == [2, 3, 0, 2, 3]
    assert taken.starts.tolist() == [0, 2, 2, 3, 5]


@settings(deadline=None)
@given(st.data())
def test_means_are_those_of_a_loop_and_of_each_text_alone(data: st.DataObject) -> None:
    array = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=6))
    total = sum(sizes)
    rows = np.array(data.draw(st.lists(st.integers(0, 8), min_size=total, max_size=total)), int)
    flags = data.draw(st.lists(st.booleans(), min_size=total, max_size=total))
    visible = np.array(flags, bool)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(int)
    means, counts = mean_vectors(array, rows, starts, visible)
    for i in range(len(sizes)):
        part = slice(starts[i], starts[i + 1])
        some = array[rows[part][visible[part]]].astype(np.float64)
        assert counts[i] == len(some)
        expected = some.mean(0) if len(some) else np.zeros(5)
        assert means[i] == pytest.approx(expected, rel=1e-14, abs=1e-14)
        alone, _ = mean_vectors(array, rows[part], np.array([0, sizes[i]]), visible[part])
        assert (alone[0] == means[i]).all(), "what is beside a text changes nothing"


def test_a_mean_without_length_has_no_direction() -> None:
    units, some = unit_vectors(np.array([[3.0, 4.0], [0.0, 0.0]]))
    assert units.tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0]]
    assert some.tolist() == [True, False]


def test_stop_words_in_another_order_are_the_same() -> None:
    assert stop_words_fingerprint(frozenset("ab")) == stop_words_fingerprint(frozenset("ba"))
    assert stop_words_fingerprint(frozenset("ab")) != stop_words_fingerprint(frozenset({"ab"}))
