"""`vg build-index --images`: licences reach the manifest, a file of their own, and the pages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from tests.tiny import IMAGE, save_feats
from vgtools.cli import run

LICENSES = ["CC BY 4.0", "CC0", None, "CC BY 4.0"]


@pytest.fixture
def bank(tiny: Path, tmp_path: Path) -> Path:
    """A folder with features of four images, the images, and rows about them."""
    rows = np.random.default_rng(3).normal(size=(4, IMAGE)).astype(np.float32)
    save_feats(tmp_path / "feats.npy", rows)
    (tmp_path / "photos").mkdir()
    with open(tmp_path / "images.jsonl", "w") as out:
        for number, name in enumerate((tmp_path / "feats.ids").read_text().split()):
            Image.new("RGB", (9, 6), (60 * number, 0, 0)).save(tmp_path / f"photos/{name}.png")
            row = {"image": name, "path": f"photos/{name}.png", "license": LICENSES[number]}
            print(json.dumps(row | {"url": f"http://x/{number}"}), file=out)
    (tmp_path / "t.txt").write_text("bam den fis dor\n")
    return tmp_path


def build(tiny: Path, bank: Path, *more: str | Path) -> int:
    how = [bank / "feats.npy", "-m", tiny / "run", "-o", bank / "vg.faiss", "--device", "cpu"]
    return run(["build-index", *map(str, [*how, *more])])


def test_licences_reach_the_manifest_and_the_pages(
    tiny: Path, bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--images", bank / "images.jsonl", "--emb", bank / "e.npy", "--drop-duplicates", "1"]
    assert build(tiny, bank, *map(str, how)) == 0
    assert "licences: CC BY 4.0 2, CC0 1, unknown 1\n" in capsys.readouterr().err
    manifest = json.loads((bank / "vg.json").read_text())
    assert manifest["licenses"] == {"CC BY 4.0": 2, "CC0": 1, "unknown": 1}
    assert "vg.rights.jsonl" in manifest["files"]
    names = (bank / "vg.ids").read_text().split()
    rows = [json.loads(line) for line in (bank / "vg.rights.jsonl").read_text().splitlines()]
    assert rows == [
        {"image": name, **({"license": one} if one else {}), "url": f"http://x/{number}"}
        for number, (name, one) in enumerate(zip(names, LICENSES, strict=True))
    ]
    assert np.load(bank / "e.npy").shape == (4, 8)
    for command in ("vokenize", "retrieve"):
        found = bank / f"{command}.jsonl"
        how = ["--index", str(bank / "vg.faiss"), "--device", "cpu", "-q", "-o", str(found)]
        assert run([command, str(bank / "t.txt"), *how, "-k", "4"]) == 0
        for number, images in enumerate(("images.jsonl", "none.jsonl")):
            # Without rows of their own the pictures have the rights of the index.
            bare = [json.loads(line) for line in (bank / "images.jsonl").read_text().splitlines()]
            lines = [json.dumps({key: row[key] for key in ("image", "path")}) for row in bare]
            (bank / "none.jsonl").write_text("\n".join(lines) + "\n")
            page = bank / f"{command}{number}.html"
            how = ["--index", str(bank / "vg.faiss"), "--images", str(bank / images)]
            assert run(["show", str(found), *how, "-o", str(page), "-q"]) == 0
            html = page.read_text()
            for text in ("CC BY 4.0, http://x/0", "CC0, http://x/1", '"http://x/2"'):
                assert text in html


def test_rows_of_the_ids_of_embeddings_are_read_for_licences(tiny: Path, bank: Path) -> None:
    names = (bank / "feats.ids").read_text().split()
    np.save(bank / "x.npy", np.random.default_rng(0).normal(size=(4, 8)).astype(np.float16))
    table = pa.table({"image_path": names, "LICENSE": ["CC0", "?", "CC0", None]})
    parquet.write_table(table, bank / "x.parquet")
    how = ["--emb", bank / "x.npy", "--ids", bank / "x.parquet", "--limit", "3"]
    out = ["-m", tiny / "run", "-o", bank / "vg.faiss", "--device", "cpu"]
    assert run(["build-index", *map(str, [*how, *out])]) == 0
    assert json.loads((bank / "vg.json").read_text())["licenses"] == {"CC0": 2, "unknown": 1}


def test_rows_without_rights_are_refused_and_another_list_is_another_index(
    tiny: Path, bank: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bank / "bare.jsonl").write_text('{"image":"a","text":"b"}\n')
    assert build(tiny, bank, "--images", bank / "bare.jsonl") == 65
    assert 'has no row with "license" or "url"' in capsys.readouterr().err
    assert build(tiny, bank) == 0
    assert not (bank / "vg.rights.jsonl").exists()
    assert "licenses" not in json.loads((bank / "vg.json").read_text())
    assert build(tiny, bank, "--images", bank / "images.jsonl") == 0
    assert (bank / "vg.rights.jsonl").exists()
    args = [bank / "images.jsonl", "--keywords", "1", "-o", bank / "k.jsonl"]
    assert run(["build-index", *map(str, args), "--images", str(bank / "images.jsonl")]) == 2
    assert "belongs to --matcher" in capsys.readouterr().err
