"""From the output of img2dataset to vokens: tars that the package webdataset writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import webdataset
from pyarrow import parquet

from tests.tiny.dual import save_dual
from tests.tiny.images import save_photo
from vgtools.cli import run


def save_img2dataset(folder: Path, photos: Path) -> list[str]:
    """Write two tars of six pictures with a table and a record of each, as img2dataset does."""
    names = []
    folder.mkdir()
    for shard in range(2):
        rows: list[dict[str, Any]] = []
        with webdataset.TarWriter(str(folder / f"{shard:05}.tar")) as tar:
            for number in range(6):
                key = f"{shard:05}{number:04}"
                meta = {"caption": f"a red dog {number}", "url": f"http://x/{key}", "key": key}
                rows.append(meta | {"status": "success" if number else "failed_to_download"})
                if not number:
                    continue
                picture = save_photo(photos / f"{key}.jpg", 6 * shard + number).read_bytes()
                text = f"a cat {number}"
                tar.write({"__key__": key, "jpg": picture, "txt": text, "json": json.dumps(meta)})
                names.append(f"{key}.jpg")
        parquet.write_table(pa.Table.from_pylist(rows), folder / f"{shard:05}.parquet")
        (folder / f"{shard:05}_stats.json").write_text("{}")
    return names


@pytest.fixture(scope="module")
def wds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wds")
    save_dual(folder / "model", "clip")
    names = save_img2dataset(folder / "cc3m", folder / "photos")
    (folder / "names").write_text("\n".join(names))
    return folder


@pytest.mark.parametrize("source", ["cc3m", "cc3m/", "cc3m/{00000..00001}.tar"])
def test_the_folder_of_img2dataset_becomes_vokens(
    wds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.chdir(wds)
    out = {name: str(tmp_path / name) for name in ("f.npy", "c.jsonl", "vg.faiss", "v.jsonl")}
    how = ["-b", "model", "--captions", out["c.jsonl"], "--device", "cpu", "-q"]
    assert run(["extract-image-feats", source, *how, "-o", out["f.npy"]]) == 0
    names = (wds / "names").read_text().split()
    assert (tmp_path / "f.ids").read_text().split() == names
    captions = [json.loads(line) for line in Path(out["c.jsonl"]).read_text().splitlines()]
    keys = [name.removesuffix(".jpg") for name in names]
    assert captions == [
        {"image": f"{key}.jpg", "text": f"a cat {int(key[-1])}", "url": f"http://x/{key}"}
        for key in keys
    ]
    flags = ["-m", "model", "--device", "cpu", "-q", "-o", out["vg.faiss"]]
    assert run(["build-index", out["f.npy"], *flags]) == 0
    flags = ["--index", out["vg.faiss"], "--device", "cpu", "-q", "-o", out["v.jsonl"]]
    assert run(["vokenize", out["c.jsonl"], *flags]) == 0
    rows = [json.loads(line) for line in Path(out["v.jsonl"]).read_text().splitlines()]
    assert [row["text"] for row in rows] == [caption["text"] for caption in captions]
    assert all(0 <= voken < len(names) for row in rows for voken in row["vokens"])
    pages = set()
    for images in ("cc3m", "photos"):  # pages read the pictures in the tars
        flags = [
            "--index",
            out["vg.faiss"],
            "--images",
            images,
            "-q",
            "-o",
            f"{tmp_path}/page.html",
        ]
        assert run(["show", out["v.jsonl"], *flags]) == 0
        pages.add((tmp_path / "page.html").read_text())
    assert len(pages) == 1
    assert "data:image/webp" in pages.pop()


def test_a_list_of_images_has_no_captions_next_to_it(
    wds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "list.txt"
    listed.write_text(f"{wds}/photos/000000001.jpg\n")
    flags = ["-b", str(wds / "model"), "--captions", str(tmp_path / "c.jsonl")]
    out = ["-o", str(tmp_path / "f.npy"), "--device", "cpu"]
    assert run(["extract-image-feats", str(listed), *flags, *out]) == 2
    assert "needs folders, tars or tables of images" in capsys.readouterr().err


def test_captions_are_counted(
    wds: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two").mkdir()
    for name in ("a", "b"):
        save_photo(tmp_path / "two" / f"{name}.jpg", 1)
    (tmp_path / "two" / "a.txt").write_text("a dog\na cat")
    flags = ["-b", str(wds / "model"), "--captions", str(tmp_path / "c.jsonl"), "--device", "cpu"]
    assert run(["extract-image-feats", f"{tmp_path}/two", *flags, "-o", f"{tmp_path}/f.npy"]) == 0
    assert "2 captions of 1 of 2 images in " in capsys.readouterr().err
