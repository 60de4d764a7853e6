"""Retrieved rows: what is kept, what is refused, and the features of a text's images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgtools.io.artifact import open_features
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, sha256_file, write_manifest
from vgtools.io.streams import Window
from vgtools.text import retrieved
from vgtools.text.retrieved import (
    Retrieved,
    input_rows,
    open_retrieved,
    output_row,
    read_retrieved,
)

IDS = ["a.jpg", "b.jpg", "c.jpg", "d.jpg"]


def window(*rows: dict[str, Any]) -> Window:
    return Window("t.jsonl", 5, [json.dumps(row) for row in rows], "0", jsonl=True)


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def row(text: str, images: list[Any], scores: list[Any] | None = None) -> dict[str, Any]:
    return {"text": text, "images": images, "scores": scores or [0.5] * len(images)}


# --------------------------------------------------------------------------------------------- rows


def test_keys_that_identify_a_row_are_kept_and_others_are_not() -> None:
    given_row = {"id": 7, "text": "a", "image": "x", "split": None, "target": "b", "more": [1]}
    (kept,) = input_rows(window(given_row))
    assert kept == {"text": "a", "id": 7, "split": None, "image": "x", "target": "b"}
    made = output_row(kept, np.array([3, 1, -1], np.int32), np.array([0.5, 0.25, 0], np.float32))
    assert dumps(made) == (
        b'{"text":"a","images":[3,1],"scores":[0.5,0.25],"id":7,"split":null,"image":"x","target":"b"}\n'
    )


def test_a_null_is_a_key_that_the_row_lacks() -> None:
    (kept,) = input_rows(window({"id": None, "text": "a", "image": None, "target": None}))
    assert kept == {"text": "a"}


def test_a_text_without_images_has_two_empty_lists() -> None:
    none = np.full(3, -1, np.int32), np.zeros(3, np.float32)
    assert dumps(output_row({"text": ""}, *none)) == b'{"text":"","images":[],"scores":[]}\n'


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"text": "a", "image": 3}, '"image" must be a string, got 3'),
        ({"text": "a", "id": [1]}, '"id" must be a string or an integer'),
        ({"text": "a", "id": True}, '"id" must be a string or an integer'),
        ({"text": "a", "target": 1}, '"target" must be a string'),
        ({"image": "a"}, '"text" is missing'),
    ],
)
def test_an_input_row_of_another_type_is_named_with_its_line(bad: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        input_rows(window({"text": "fine"}, bad))
    assert str(caught.value).startswith("t.jsonl:6: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"text": "a", "ima', "not valid JSON"),
        ({"text": "a"}, 'the key "images" is missing; make rows with it: vg retrieve'),
        (row("a", [4]), '"images" entry 0 is 4, the image bank has 4 rows'),
        (row("a", [0, -1]), '"images" entry 1 must be a row of the image bank, from 0, got -1'),
        (row("a", [True]), '"images" entry 0'),
        (row("a", [1.0]), '"images" entry 0'),
        (row("a", [2**40]), '"images" entry 0'),
        (row("a", [1, 1]), "names an image twice"),
        (row("a", [1, 2], [0.5]), '"scores" has 1 entries, "images" has 2'),
        (row("a", [1], ["x"]), '"scores" entry 0 must be a number'),
        (row("a", [1]) | {"scores": 1}, '"scores" must be a list'),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path: Path, bad: Any, said: str) -> None:
    path = write(tmp_path / "r.jsonl", row("a", [0]), bad)
    with pytest.raises(DataError) as caught:
        list(read_retrieved(path, 4))
    assert str(caught.value).startswith(f"{path}:2: ")
    assert said in str(caught.value)


# ------------------------------------------------------------------------------------- for training


def save_feats(path: Path, ids: list[str] = IDS) -> Path:
    """Write features in which the row of an image is its letter's number, D = 3."""
    values = [[ord(name[0]) - 96.0] * 3 for name in ids]
    np.save(path, np.array(values, np.float16))
    names = path.with_suffix(".ids")
    names.write_text("".join(f"{name}\n" for name in ids))
    write_manifest(path, [path, names], kind="image-features", backbone={"ref": "x"})
    return path


def save_rows(folder: Path, *rows: dict[str, Any], k: int | None = None) -> str:
    """Write rows with the manifest of a run over an index of IDS."""
    index = folder / "x.faiss"
    index.with_suffix(".ids").write_text("".join(f"{name}\n" for name in IDS))
    path = write(folder / "r.jsonl", *rows)
    files = {"x.ids": {"sha256": sha256_file(index.with_suffix(".ids"))}}
    write_manifest(
        path,
        [path],
        kind="retrieved",
        index="x.faiss",
        k=k or max(len(r["images"]) for r in rows),
        config={"index_sha256": files},
    )
    return str(path)


def opened(folder: Path, rows: str, ids: list[str] = IDS, **keywords: Any) -> Retrieved:
    path = save_feats(folder / "f.npy", ids)
    return open_retrieved(rows, open_features(path), str(path), **keywords)


ROWS = [row("one", [2, 0], [0.75, 0.5]), row("", []), row("two", [3])]


def test_features_are_gathered_by_number_and_by_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save_rows(tmp_path, *ROWS)
    for block in (1 << 14, 1):
        monkeypatch.setattr(retrieved, "_BLOCK", block)
        found = opened(tmp_path, path)
        assert len(found) == 3
        assert found.rows.tolist() == [[2, 0], [-1, -1], [3, -1]]
        assert found.rows.dtype == np.int32
        assert found.find(["two", "one", "", "two"]).tolist() == [2, 0, 1, 2]
        feats, mask = found.gather(np.load(tmp_path / "f.npy", mmap_mode="r"), np.array([2, 1, 0]))
        assert feats.dtype == np.float32
        assert feats[:, :, 0].tolist() == [[4, 0], [0, 0], [3, 1]]
        assert mask.tolist() == [[True, False], [False, False], [True, True]]


def test_images_are_matched_by_name_where_the_features_have_another_order(tmp_path: Path) -> None:
    path = save_rows(tmp_path, *ROWS)
    other = ["e.jpg", "d.jpg", "c.jpg", "a.jpg"]  # b is in no row
    found = opened(tmp_path, path, other)
    assert found.rows.tolist() == [[2, 3], [-1, -1], [1, -1]]
    feats, _ = found.gather(np.load(tmp_path / "f.npy"), np.array([0, 2]))
    assert feats[:, :, 0].tolist() == [[3, 1], [4, 0]]
    with pytest.raises(DataError, match=r"r\.jsonl:1: names the image 'c\.jpg', of which .*f\.npy"):
        opened(tmp_path, path, ["a.jpg", "d.jpg"])


def test_an_index_with_other_ids_is_refused_with_both_hashes(tmp_path: Path) -> None:
    path = save_rows(tmp_path, *ROWS)
    before = sha256_file(tmp_path / "x.ids")
    (tmp_path / "x.ids").write_text("b.jpg\na.jpg\nc.jpg\nd.jpg\n")
    with pytest.raises(DataError, match="ids of sha256") as caught:
        opened(tmp_path, path, IDS[::-1])
    assert before in str(caught.value)
    assert sha256_file(tmp_path / "x.ids") in str(caught.value)
    (tmp_path / "x.ids").unlink()
    with pytest.raises(DataError, match="do not exist; name its new place"):
        opened(tmp_path, path, IDS[::-1])
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "y.ids").write_text("".join(f"{name}\n" for name in IDS))
    moved = opened(tmp_path, path, IDS[::-1], index=str(tmp_path / "new" / "y.faiss"))
    assert moved.rows.tolist() == [[1, 3], [-1, -1], [0, -1]]


def test_an_index_that_is_named_is_compared_where_none_is_needed(tmp_path: Path) -> None:
    path = save_rows(tmp_path, *ROWS)
    (tmp_path / "y.ids").write_text("b.jpg\na.jpg\nc.jpg\nd.jpg\n")
    with pytest.raises(DataError, match="ids of sha256") as error:
        opened(tmp_path, path, index=str(tmp_path / "y.faiss"))
    assert error.value.code == Exit.DATA
    with pytest.raises(DataError, match=r"z\.faiss: cannot be read: No such file") as error:
        opened(tmp_path, path, index=str(tmp_path / "z.faiss"))
    assert error.value.code == Exit.NO_INPUT
    assert len(opened(tmp_path, path, index=str(tmp_path / "x.faiss"))) == 3
    assert len(opened(tmp_path, path, index=str(tmp_path / "f.npy"))) == 3


def test_rows_without_a_manifest_need_the_name_of_their_index(tmp_path: Path) -> None:
    path = write(tmp_path / "hand.jsonl", {"text": "a", "images": [1]}, row("b", [3, 2, 1]))
    with pytest.raises(DataError, match=r"hand.jsonl: has no manifest.*name it: --index") as error:
        opened(tmp_path, str(path))
    assert error.value.code == Exit.USAGE
    (tmp_path / "y.ids").write_text("".join(f"{name}\n" for name in IDS[::-1]))
    named = opened(tmp_path, str(path), index=str(tmp_path / "y.faiss"))
    assert named.rows.tolist() == [[2, -1, -1], [0, 1, 2]]
    bad = write(tmp_path / "bad.jsonl", row("b", [4]))
    with pytest.raises(DataError, match="has 4 rows"):
        opened(tmp_path, str(bad), index=str(tmp_path / "y.faiss"))


def test_texts_without_rows_are_counted_and_the_first_is_named(tmp_path: Path) -> None:
    found = opened(tmp_path, save_rows(tmp_path, *ROWS))
    with pytest.raises(DataError, match="has no images for 2 of 3 texts, the first 'zero'"):
        found.find(["one", "zero", "three"])


def test_a_text_with_other_images_elsewhere_is_refused_only_by_text(tmp_path: Path) -> None:
    rows = [row("dog", [0]), row("cat", [1]), row("dog", [0]), row("cat", [1]), row("dog", [2])]
    path = save_rows(tmp_path, *rows)
    found = opened(tmp_path, path)
    assert found.rows[:, 0].tolist() == [0, 1, 0, 1, 2]
    assert found.find(["cat"]).tolist() == [1]
    with pytest.raises(DataError, match=r"duplicate text with other images \(first on line 1\)"):
        found.find(["cat", "dog"])


@given(st.lists(st.text(max_size=4), max_size=30), st.integers(0, 3))
def test_texts_are_found_wherever_their_hashes_lie(texts: list[str], seed: int) -> None:
    keys = retrieved._hashes(texts)
    assert len({bytes(key) for key in keys}) == len(set(texts))
    order = np.argsort(keys, kind="stable").astype(np.int32)
    none = np.empty(0, np.int64)
    rows = np.zeros((len(texts), 1), np.int32)
    table = Retrieved((("r", 0),), rows, keys[order], order, none)
    asked = [texts[i] for i in np.random.default_rng(seed).permutation(len(texts)).tolist()]
    assert table.find(asked).tolist() == [texts.index(text) for text in asked]
