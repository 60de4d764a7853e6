"""Captions next to images: of folders, of tars as the package webdataset writes them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import webdataset
from pyarrow import parquet

from vgtools.images.captions import captions, may_have_captions
from vgtools.io.errors import DataError, Tally


def test_captions_are_read_from_beside_their_images(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in ("d/a.jpg", "c.jpg"):
        (tmp_path / name).touch()
    (tmp_path / "d/a.txt").write_text("A dog.\n\n A cat. \n")
    (tmp_path / "c.json").write_text('{"caption": " A bird. ", "url": "http://x", "license": 3}')
    assert list(captions([str(tmp_path)], ["d/a.jpg", "b.jpg", "c.jpg"])) == [
        {"image": "d/a.jpg", "text": "A dog."},
        {"image": "d/a.jpg", "text": "A cat."},
        {"image": "c.jpg", "text": "A bird.", "url": "http://x"},
    ]
    (tmp_path / "c.json").write_text('{"caption": "A bird.", "split": "test"}')
    found = [{"image": "c.jpg", "text": "A bird.", "split": "test"}]  # not to be learned from
    assert list(captions([str(tmp_path)], ["c.jpg"])) == found
    (tmp_path / "c.json").write_text("[]")
    with pytest.raises(DataError, match=r"c\.json: expected a JSON object, got list"):
        list(captions([str(tmp_path)], ["c.jpg"]))
    (tmp_path / "d/a.txt").write_bytes(b"\0\1")
    with pytest.raises(DataError, match=r"a\.txt: is binary"):
        list(captions([str(tmp_path)], ["d/a.jpg"]))


def test_an_image_has_the_captions_of_its_own_place(tmp_path: Path) -> None:
    # Of places with an image of one name, --limit may take only the first.
    for name, text in (("a", "A red square."), ("b", "A blue square.")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
        (tmp_path / name / "1.txt").write_text(text)
        save_tar(tmp_path / f"{name}.tar", [{"__key__": "1", "png": b"x", "txt": text}])
        rows = [{"image": "1.png", "text": text}, {"image": name, "text": text}]
        parquet.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    red = [{"image": "1.png", "text": "A red square."}]
    for ending in ("", ".tar", ".parquet"):
        places = [str(tmp_path / f"{name}{ending}") for name in "ab"]
        assert [*captions(places, ["1.png"])] == red
        assert [*captions(reversed(places), ["1.png"])] != red


def save_tar(path: Path, samples: list[dict[str, Any]]) -> str:
    with webdataset.TarWriter(str(path)) as tar:
        for sample in samples:
            tar.write(sample)
    return str(path)


SAMPLES: list[dict[str, Any]] = [
    {"__key__": "000", "jpg": b"x", "txt": "a dog", "json": {"caption": "no", "url": "http://0"}},
    {"__key__": "001", "jpg": b"x", "json": {"caption": "a cat", "license": "CC0", "url": None}},
    {"__key__": "002", "jpg": b"x"},
    {"__key__": "d.e/003", "seg.png": b"x", "jpg": b"x", "txt": "two pictures"},
    {"__key__": "004", "txt": "no picture"},
    {"__key__": "005", "jpg": b"x", "txt": " "},
    {"__key__": "006", "jpg": b"x", "json": {"caption": ["one", None, " two "]}},
    {"__key__": "007", "jpg": b"x", "txt": b"caf\xe9"},
]


def test_a_tar_has_the_captions_of_its_samples(tmp_path: Path) -> None:
    tar = save_tar(tmp_path / "00000.tar", SAMPLES)
    ids = ["000.jpg", "001.jpg", "002.jpg", "d.e/003.jpg", "d.e/003.seg.png", "005.jpg"]
    ids += ["006.jpg", "007.jpg"]
    expected = [
        {"image": "000.jpg", "text": "a dog", "url": "http://0"},
        {"image": "001.jpg", "text": "a cat", "license": "CC0"},
        {"image": "d.e/003.jpg", "text": "two pictures"},
        {"image": "d.e/003.seg.png", "text": "two pictures"},
        {"image": "006.jpg", "text": "one"},
        {"image": "006.jpg", "text": "two"},
        {"image": "007.jpg", "text": "caf\ufffd"},
    ]
    tally = Tally()
    assert sorted(map(str, captions([tar], ids, tally))) == sorted(map(str, expected))
    assert tally.text.replaced == 1
    assert list(captions([tar], ids[1:2])) == expected[1:2], "an image that was left out has none"


def test_files_of_a_sample_that_do_not_follow_one_another_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    texts = {"0.png": b"x", "0.txt": b"red", "1.png": b"x"}
    texts |= {"0.json": b'{"split": "test"}', "1.txt": b"green"}
    with tarfile.open(path, "w") as tar:
        for name, data in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    with pytest.raises(DataError, match=r"x\.tar: '0\.json': the files of '0' do not follow"):
        list(captions([str(path)], ["0.png", "1.png"]))


def test_the_table_of_img2dataset_stands_in_for_what_a_tar_lacks(tmp_path: Path) -> None:
    tar = save_tar(tmp_path / "00000.tar", SAMPLES)
    rows = [
        {"key": "002", "caption": "a bird", "url": "http://2", "license": "CC BY 4.0"},
        {"key": "005", "caption": None, "url": "http://5", "license": None},
        {"key": "009", "caption": "failed", "url": "http://9", "license": None},
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "00000.parquet")
    assert list(captions([tar], ["002.jpg", "005.jpg", "009.jpg"])) == [
        {"image": "002.jpg", "text": "a bird", "url": "http://2", "license": "CC BY 4.0"}
    ]


def test_captions_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    for name, data, message in (
        ("0.json", b"{", r"00000\.tar: 0\.json: not valid JSON"),
        ("0.json", b"3", r"00000\.tar: 0\.json: expected a JSON object, got int"),
        ("0.txt", b"\0", r"00000\.tar: 0\.txt: is binary"),
    ):
        path = tmp_path / "00000.tar"
        with tarfile.open(path, "w") as tar:
            for member, content in (("0.jpg", b"x"), (name, data)):
                header = tarfile.TarInfo(member)
                header.size = len(content)
                tar.addfile(header, io.BytesIO(content))
        with pytest.raises(DataError, match=message):
            list(captions([str(path)], ["0.jpg"]))
        tally = Tally(skip=True)
        assert [*captions([str(path)], ["0.jpg"], tally)] == []
        assert "or leave it out with --on-error skip" in str(tally.errors[0])
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(DataError, match="is truncated, damaged or not a tar"):
        list(captions([str(path)], ["0.jpg"]))


def test_json_that_webdataset_writes_is_read(tmp_path: Path) -> None:
    tar = save_tar(tmp_path / "0.tar", [{"__key__": "ä", "jpg": b"x", "json": {"caption": "ü\nv"}}])
    assert [*captions([tar], ["ä.jpg"])] == [{"image": "ä.jpg", "text": "ü\nv"}]


def test_a_table_of_images_has_the_captions_of_its_rows(tmp_path: Path) -> None:
    stored = [{"bytes": b"x", "path": f"{name}.jpg"} for name in "abcd"]
    facts = {"license": ["CC0", None, "CC0", "CC0"], "url": ["http://a", "http://b", None, "u"]}
    texts = [["A dog. ", "", "A cat."], None, [" A bird."], ["of another run"]]
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table({"picture": stored, "caption": texts, **facts}), path)
    ids = ["a.jpg", "b.jpg", "c.jpg"]
    assert may_have_captions(str(path))
    assert list(captions([str(path)], ids)) == [
        {"image": "a.jpg", "text": "A dog.", "url": "http://a", "license": "CC0"},
        {"image": "a.jpg", "text": "A cat.", "url": "http://a", "license": "CC0"},
        {"image": "c.jpg", "text": "A bird.", "license": "CC0"},
    ]
    parquet.write_table(pa.table({"image": stored, "say": ["1", "2", "3", "4"]}), path)
    assert [*captions([str(path)], ids)] == []
    assert [row["text"] for row in captions([f"{path}#say"], ids)] == ["1", "2", "3"]
    parquet.write_table(pa.table({"image": ["a"], "text": ["no picture"]}), path)
    assert not may_have_captions(str(path))
    assert not may_have_captions(str(tmp_path / "x.csv"))
