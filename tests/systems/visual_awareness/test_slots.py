"""Images of texts: found by text, with controls, and their features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.tiny import BACKBONE, save_feats
from vgtools.io.errors import DataError
from vgtools.systems.visual_awareness.slots import SlotImages, open_images

TEXTS = [f"text {i}" for i in range(12)]
WAY_OUT = "vg prepare task x D | vg retrieve -"


def save_rows(path: Path, texts: list[str], first: int = 0) -> str:
    """Write rows: text i has images i, i + 1, … of 14; every third only one, `""` none."""
    rows = [
        {"text": text, "images": [i, i + 1, i + 2][: 0 if not text else 1 if i % 3 == 2 else 3]}
        for i, text in enumerate(texts, first)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def opened(folder: Path, **keywords: Any) -> SlotImages:
    feats = folder / "feats.npy"
    save_feats(feats, np.arange(1, 29).reshape(14, 2), BACKBONE)
    rows = [
        save_rows(folder / "a.jsonl", [*TEXTS[:5], ""]),
        save_rows(folder / "b.jsonl", TEXTS[5:], 5),
    ]
    return open_images(rows, str(feats), **{"index": str(feats), **keywords})


def images_of(rows: list[str], folder: Path) -> SlotImages:
    """Open rows of the images of a folder's features."""
    return open_images(rows, str(folder / "f.npy"), index=str(folder / "f.npy"))


def test_rows_are_found_by_text_in_all_files(tmp_path: Path) -> None:
    images = opened(tmp_path)
    rows = images.rows_for([TEXTS[7], "", TEXTS[0], TEXTS[2], TEXTS[7]], "train", WAY_OUT)
    assert rows.dtype == np.int32
    assert rows.tolist() == [[7, 8, 9], [-1] * 3, [0, 1, 2], [2, -1, -1], [7, 8, 9]]
    features, mask = images.gather(rows[[1, 3]])
    assert features.dtype == torch.float32
    assert features.tolist() == [[[0, 0]] * 3, [[5, 6], [0, 0], [0, 0]]]
    assert mask.tolist() == [[False] * 3, [True, False, False]]
    assert images.width == 2
    assert images.config()["images"] == "found"


def test_controls_keep_how_many_images_a_text_has(tmp_path: Path) -> None:
    texts = [*TEXTS, TEXTS[4], ""]
    found = opened(tmp_path).rows_for(texts, "train", WAY_OUT)
    drawn = opened(tmp_path, choice="random").rows_for(texts, "train", WAY_OUT)
    assert ((drawn >= 0) == (found >= 0)).all()
    assert (drawn[found >= 0] != found[found >= 0]).mean() > 0.5
    assert drawn[12].tolist() == drawn[4].tolist()
    none = opened(tmp_path, choice="none").rows_for(texts, "train", WAY_OUT)
    assert none.shape == found.shape
    assert (none == -1).all()


def test_shuffle_gives_every_text_the_images_of_another(tmp_path: Path) -> None:
    texts = [*TEXTS, TEXTS[4]]
    images = opened(tmp_path, choice="shuffle")
    found = opened(tmp_path).rows_for(texts, "train", WAY_OUT)
    other = images.rows_for(texts, "train", WAY_OUT)
    assert (other != found).any(1).all()
    assert sorted(map(tuple, other[:12].tolist())) == sorted(map(tuple, found[:12].tolist()))
    assert other[12].tolist() == other[4].tolist()
    assert images.rows_for(texts, "train", WAY_OUT).tolist() == other.tolist()
    assert images.rows_for(texts, "dev", WAY_OUT).tolist() != other.tolist()


def test_a_text_without_a_row_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        opened(tmp_path).rows_for([TEXTS[0], "new", "newer"], "train", WAY_OUT)
    said = str(caught.value)
    assert "a.jsonl" in said
    assert "b.jsonl: has no images for 2 of 3 texts, the first 'new'; vg prepare task x D" in said


def test_a_text_with_other_images_in_another_file_is_refused_with_both_places(
    tmp_path: Path,
) -> None:
    save_feats(tmp_path / "f.npy", np.ones((14, 2)), BACKBONE)
    rows = [
        save_rows(tmp_path / "a.jsonl", ["x", "y"]),
        save_rows(tmp_path / "b.jsonl", ["z", "y"]),
    ]
    images = images_of(rows, tmp_path)
    assert images.rows_for(["z", "y", "x"], "dev", WAY_OUT)[:, 0].tolist() == [0, 1, 0]
    save_rows(tmp_path / "b.jsonl", ["z", "y"], 3)
    images = images_of(rows, tmp_path)
    with pytest.raises(DataError, match=r"b\.jsonl:2: duplicate .* line 2 of .*a\.jsonl"):
        images.rows_for(["y"], "dev", WAY_OUT)


def test_files_with_another_number_of_images_are_refused(tmp_path: Path) -> None:
    from vgtools.io.files import write_manifest

    save_feats(tmp_path / "f.npy", np.ones((14, 2)), BACKBONE)
    paths = [Path(save_rows(tmp_path / name, [name])) for name in ("a.jsonl", "b.jsonl")]
    for path, k in zip(paths, (8, 4), strict=True):
        write_manifest(path, [path], kind="retrieved", k=k)
    with pytest.raises(DataError, match=r"b\.jsonl: has 4 images per text, expected 8, as .*a"):
        images_of([str(path) for path in paths], tmp_path)


def test_what_a_text_finds_decides_the_weights_and_the_order_of_rows_does_not(
    tmp_path: Path,
) -> None:
    save_feats(tmp_path / "f.npy", np.ones((14, 2)), BACKBONE)
    made = []
    rows = [{"text": t, "images": [i]} for i, t in enumerate("abc")]
    for lines in (rows, rows[::-1], [*rows[:2], {"text": "c", "images": [5]}]):
        path = tmp_path / "r.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in lines))
        made.append(images_of([str(path)], tmp_path).config()["retrieved"])
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_memory_of_rows_is_at_most_24_bytes_and_4_per_image_a_text(tmp_path: Path) -> None:
    """The promise for 4.4 million texts: what stays in memory, array by array."""
    save_feats(tmp_path / "f.npy", np.ones((14, 2)), BACKBONE)
    texts = [f"text {i}" for i in range(3000)]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps({"text": t, "images": [0, 3, 5]}) + "\n" for t in texts))
    table = images_of([str(path)], tmp_path).retrieved
    arrays = (table.rows, table._keys, table._order, table._clashes)
    assert sum(array.nbytes for array in arrays) <= len(texts) * (24 + 4 * 3)
    assert all(array.base is None or array.base.nbytes <= array.nbytes for array in arrays)
