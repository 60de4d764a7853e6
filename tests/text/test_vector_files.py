"""Word vectors in text form: numbers as Python reads them, and files that are not what they say."""

from __future__ import annotations

import gzip
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny.retriever import NAMES, save_skip_thoughts
from vgtools.io.errors import DataError, Exit
from vgtools.text import vector_files
from vgtools.text.vector_files import (
    VectorFile,
    copy_vectors,
    open_vectors,
    pack_vectors,
    select_vectors,
)
from vgtools.text.word_vectors import open_word_vectors

BODY = "cat 1 2\nNew York -1 .5\nDog 3e-1 4 \n"


def read(path: Path) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for block in VectorFile(str(path)).blocks():
        found |= dict(zip(block.words, block.vectors.tolist(), strict=True))
    return found


@pytest.mark.parametrize("header", ["", "3 2\n"])
def test_a_text_form_is_packed(tmp_path: Path, header: str) -> None:
    (tmp_path / "v.vec.gz").write_bytes(gzip.compress((header + BODY).encode()))
    out = tmp_path / "v.npy"
    assert pack_vectors(str(tmp_path / "v.vec.gz"), str(out)) == (3, {}, False)
    vectors = open_word_vectors(str(out))
    assert [vectors.row(word) for word in ("cat", "New York", "Dog", "dog")] == [0, 1, 2, -1]
    expected = np.array([[1, 2], [-1, 0.5], [0.3, 4]], np.float32)
    assert (vectors.array == expected).all()
    assert pack_vectors(str(tmp_path / "v.vec.gz"), str(out)) == (0, {}, True)


NUMBERS = st.one_of(
    st.floats(-(2.0**29), 2.0**29, width=32).map(repr),
    st.floats(-9, 9).map("{:.4f}".format),
    st.integers(-(10**9), 10**9).map(str),
    st.sampled_from([".5", "-.25", "+1", "1.", "01", "1E-3", "-0", "1e-50"]),
)


@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=5))
def test_numbers_are_those_of_python(rows: list[list[str]]) -> None:
    text = " ".join(cell for row in rows for cell in row)
    found = vector_files._numbers(text, 3 * len(rows))
    expected = [np.float32(float(cell)) for row in rows for cell in row]
    assert found is not None
    assert found.tolist() == [float(number) for number in expected]


@pytest.mark.parametrize(
    "cell",
    [
        "",
        "x",
        "nan",
        "inf",
        "1e39",
        "1e10",
        "9" * 20,
        "true",
        "null",
        "1,2",
        "1-2",
        "[1]",
        '"1"',
        "1 2",
        "é",
    ],
)
def test_what_is_not_one_number_is_refused(cell: str) -> None:
    for cells in ([cell, "1"], ["1", cell], [cell, cell]):
        assert vector_files._numbers(" ".join(cells), 2) is None


def test_blocks_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v.txt"
    rng = np.random.default_rng(0)
    table = {f"w{i}": rng.standard_normal(4).astype(np.float32).tolist() for i in range(50)}
    lines = [f"{word} {' '.join(map(repr, row))}\n" for word, row in table.items()]
    path.write_text("".join(lines))
    assert read(path) == table
    monkeypatch.setattr(vector_files, "_BLOCK", 100)
    assert read(path) == table
    path.write_text("".join(lines).replace("w40 ", "w40 x"))
    with pytest.raises(DataError, match=r"v\.txt:41: expected a word and 4 finite numbers"):
        read(path)


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("cat 1 2\ndog 1\n", 2, "expected a word and 2 finite numbers"),
        ("cat 1 2\ndog 1 nan\n", 2, "expected a word and 2 finite numbers"),
        ("cat 1 2\ndog 1  2\n", 2, "expected a word and 2 finite numbers"),
        ("cat 1 2\n\n", 2, "expected a word and 2 finite numbers"),
        ("2 3\ncat 1 2\ndog 1 2\n", 2, "states 3 numbers per word, this line has 2"),
        ("3 2\ncat 1 2\ndog 1 2\n", 1, "states 3 words, there are 2"),
        ("cat 1 2\ndog 1 2", 2, "no line end"),
    ],
)
def test_faults_are_named_with_their_line(
    tmp_path: Path, body: str, line: int, message: str
) -> None:
    path = tmp_path / "v.vec"
    path.write_text(body)
    with pytest.raises(DataError, match=f":{line}: .*{message}") as caught:
        pack_vectors(str(path), str(tmp_path / "v.npy"))
    assert caught.value.code == Exit.DATA
    assert not (tmp_path / "v.npy").exists()


@pytest.mark.parametrize("name", ["v.bin", "v.pkl", "v.model.gz"])
def test_binary_forms_are_never_opened(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="take the text form") as caught:
        VectorFile(str(tmp_path / name))
    assert caught.value.code == Exit.DATA


def test_binary_content_is_refused_whatever_its_name(tmp_path: Path) -> None:
    path = tmp_path / "v.vec"
    path.write_bytes(b"\xba\x16\x4f\x2f\x0c\x00\x00\x00" * 9)
    with pytest.raises(DataError, match="is not text"):
        VectorFile(str(path))


def test_words_that_cannot_be_kept_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "v.vec"
    path.write_bytes(b"5 1\ncat 1\n 2\ncat 3\nd\xffg 4\ndog 5\n")
    count, left_out, _ = pack_vectors(str(path), str(tmp_path / "v.npy"))
    assert count == 2
    assert left_out == {"empty word": 1, "duplicate word": 1, "word that is not UTF-8": 1}
    vectors = open_word_vectors(str(tmp_path / "v.npy"))
    assert vectors.array[[vectors.row("cat"), vectors.row("dog")]].tolist() == [[1], [5]]


def test_a_limit_reads_the_first_words(tmp_path: Path) -> None:
    path = tmp_path / "v.vec"
    path.write_text("3 2\n" + BODY)
    assert pack_vectors(str(path), str(tmp_path / "v.npy"), limit=2)[0] == 2


def stop_after(line: int, path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack vectors, but stop at the first block after a line."""
    with monkeypatch.context() as broken:
        new_words = vector_files._new_words

        def fail(block: vector_files.Block, *args: object) -> list[int]:
            if block.line > line:
                raise KeyboardInterrupt
            return new_words(block, *args)  # type: ignore[arg-type]

        broken.setattr(vector_files, "_new_words", fail)
        with pytest.raises(KeyboardInterrupt):
            pack_vectors(str(path), str(out))


def test_a_packing_that_was_stopped_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "v.vec"
    path.write_text("".join(f"w{i % 40} {i} {i / 7}\n" for i in range(60)))
    monkeypatch.setattr(vector_files, "_BLOCK", 100)
    monkeypatch.setattr(vector_files, "_STEP", 1)
    whole = tmp_path / "whole.npy"
    pack_vectors(str(path), str(whole))
    out = tmp_path / "v.npy"
    stop_after(30, path, out, monkeypatch)
    assert out.with_name("v.npy.journal").exists()
    assert pack_vectors(str(path), str(out))[0] == 40
    assert out.read_bytes() == whole.read_bytes()
    assert out.with_suffix(".ids").read_bytes() == whole.with_suffix(".ids").read_bytes()


def test_a_packing_in_blocks_of_another_size_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that reads more at a time has written more of the lines."""
    path = tmp_path / "v.vec"
    path.write_text("".join(f"w{i} {i} {i / 7}\n" for i in range(60)))
    monkeypatch.setattr(vector_files, "_BLOCK", 300)
    monkeypatch.setattr(vector_files, "_STEP", 1)
    out = tmp_path / "v.npy"
    stop_after(30, path, out, monkeypatch)
    monkeypatch.setattr(vector_files, "_BLOCK", 110)
    with pytest.raises(DataError) as caught:
        pack_vectors(str(path), str(out))
    assert caught.value.code == Exit.CONFIG
    assert pack_vectors(str(path), str(out), restart=True)[0] == 60


def test_memory_grows_by_less_than_the_vectors(tmp_path: Path) -> None:
    """A block of lines takes a few megabytes while it is parsed, whatever the file's size."""
    row = " ".join(["-0.4321"] * 50)
    path = tmp_path / "v.vec"
    path.write_text("".join(f"{i} {row}\n" for i in range(20_000)))
    out = tmp_path / "v.npy"
    tracemalloc.start()
    pack_vectors(str(path), str(out))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    words = 20_000 * (2 * sys.getsizeof("12345") + 16)  # of the set of words
    assert peak < (8 << 20) + words


# ------------------------------------------------------------------------------------- other forms


def test_skip_thoughts_a_text_file_and_their_copies_hold_the_same(tmp_path: Path) -> None:
    folder = save_skip_thoughts(tmp_path / "skip")
    vectors = np.load(folder / "utable.npy")
    lines = [" ".join([w, *map(str, v)]) for w, v in zip(NAMES, vectors.tolist(), strict=True)]
    (tmp_path / "x.vec").write_text("\n".join(lines) + "\n")
    for ref in (str(folder), str(tmp_path / "x.vec")):
        rows, array = select_vectors(open_vectors(ref), {"dog", "tree", "yeti"})
        assert rows == {"dog": 0, "tree": 1}
        np.testing.assert_array_equal(array, vectors[[0, 10]])
        copy_vectors(ref, str(tmp_path / "copy.npy"))
        copied = open_word_vectors(str(tmp_path / "copy.npy"))
        assert list(copied.rows) == list(NAMES)
        np.testing.assert_array_equal(copied.array, vectors)
        rows, array = select_vectors(open_vectors(str(tmp_path / "copy.npy")), {"cat"})
        np.testing.assert_array_equal(array, vectors[[1]])
        for file in tmp_path.glob("copy.*"):
            file.unlink()


def test_a_table_that_is_stored_by_columns_is_copied_as_any(tmp_path: Path) -> None:
    folder = save_skip_thoughts(tmp_path / "st")
    copy_vectors(str(folder), str(tmp_path / "rows.npy"))
    np.save(folder / "utable.npy", np.asfortranarray(np.load(folder / "utable.npy")))
    copy_vectors(str(folder), str(tmp_path / "columns.npy"))
    assert (tmp_path / "columns.npy").read_bytes() == (tmp_path / "rows.npy").read_bytes()


def test_a_table_with_other_words_or_numbers_is_refused(tmp_path: Path) -> None:
    folder = save_skip_thoughts(tmp_path / "skip")
    (folder / "dictionary.txt").write_text("dog\ncat\n")
    with pytest.raises(DataError, match="has 2 words for 11 vectors"):
        open_vectors(str(folder))
    vectors = np.load(folder / "utable.npy")[:2]
    vectors[1] = np.nan
    np.save(folder / "utable.npy", vectors)
    with pytest.raises(DataError, match="the vector of 'cat' is NaN, infinite or beyond"):
        select_vectors(open_vectors(str(folder)), {"dog"})


def test_the_files_of_each_form(tmp_path: Path) -> None:
    folder = str(save_skip_thoughts(tmp_path / "skip"))
    assert vector_files.vector_files(folder) == [f"{folder}/dictionary.txt", f"{folder}/utable.npy"]
    assert vector_files.vector_files("a/x.npy") == ["a/x.npy", "a/x.ids"]
    assert vector_files.vector_files("x.vec.gz") == ["x.vec.gz"]
    assert vector_files.vector_files("builtin:glove-50d") == []
    assert vector_files.vector_files("builtin:minilm") is None, "an encoder"
    assert vector_files.vector_files(str(tmp_path)) is None
