"""`vg build-index --factory auto` and `--drop-duplicates`: what is built, said and recorded."""

from __future__ import annotations

import json
from pathlib import Path

import faiss
import numpy as np
import pytest

import vgtools
from tests.tiny import IMAGE, save_feats
from vgtools.cli import run
from vgtools.io.errors import Exit

KEPT = [0, 1, 3]


def build(tiny: Path, feats: Path, out: Path, *more: str | Path) -> int:
    how = [feats, "-m", tiny / "run", "-o", out, "--device", "cpu", *more]
    return run(["build-index", *map(str, how)])


def test_auto_is_the_factory_that_it_measured_best(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vg.faiss"
    how = ["--factory", "auto", "--memory", "1.2kB", "--recall", "0.5"]
    assert build(tiny, tiny / "feats.npy", out, *how) == 0
    said = capsys.readouterr().err
    manifest = json.loads(out.with_suffix(".json").read_text())
    facts = manifest["auto"]
    # One list of 60 images: a byte per dimension, half a byte.
    assert [(one["factory"], one["bytes"]) for one in facts["tried"]] == [
        ("IVF1,SQ8", 60 * 16 + 32),
        ("IVF1,SQ4", 60 * 12 + 32),
    ]
    assert (facts["memory"], facts["recall"], facts["sample"]) == (1200, 0.5, 60)
    assert manifest["factory"] == "IVF1,SQ4"
    for one in facts["tried"]:
        line = f"{one['factory']} with --nprobe 1: recall {one['recall_at_1']:.1%}, {one['bytes']}"
        assert f"measured on 60 images: {line} bytes" in said
    assert "chose --factory IVF1,SQ4\n" in said
    other = tmp_path / "other.faiss"
    given = ["--factory", "IVF1,SQ4", "--nprobe", "1"]
    assert build(tiny, tiny / "feats.npy", other, *given) == 0
    assert out.read_bytes() == other.read_bytes()
    assert manifest["recall_at_1"] == facts["tried"][1]["recall_at_1"]
    capsys.readouterr()
    assert build(tiny, tiny / "feats.npy", out, *how) == 0
    assert "up to date" in capsys.readouterr().err
    assert build(tiny, tiny / "feats.npy", out, *how[:4], "--recall", "1", "--restart") == 0
    assert "which falls short of --recall 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--memory", "2GB"], "belongs to --factory auto"),
        (["--factory", "auto", "--memory", "much"], "expected a size, as 4GB, got 'much'"),
        (["--factory", "auto", "--memory", "100"], "take at least 752 bytes"),
        (["--factory", "auto", "--nprobe", "3"], "belongs to --factory IVF"),
    ],
)
def test_goals_that_cannot_be(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert build(tiny, tiny / "feats.npy", tmp_path / "vg.faiss", *flags) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_near_equal_images_are_left_out_and_listed(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(3).normal(size=(4, IMAGE)).astype(np.float32)
    rows[2] = rows[0]
    feats = save_feats(tmp_path / "feats.npy", rows)
    names = (tmp_path / "feats.ids").read_text().split()
    out = tmp_path / "vg.faiss"
    how = ["--drop-duplicates", "0.9999", "--emb", tmp_path / "e.npy"]
    assert build(tiny, feats, out, *how) == 0
    listed = tmp_path / "vg.duplicates.jsonl"
    said = capsys.readouterr().err
    assert f"left out: 1 image of cosine 0.9999 or more with another, listed in {listed}" in said
    assert "3 images of 8 dimensions" in said
    assert listed.read_text() == f'{{"image":"{names[2]}","kept":"{names[0]}","cosine":1.0}}\n'
    assert out.with_suffix(".ids").read_text().split() == [names[row] for row in KEPT]
    manifest = json.loads(out.with_suffix(".json").read_text())
    assert manifest["duplicates"] == {"cosine": 0.9999, "left_out": 1}
    assert manifest["count"] == 3
    assert build(tiny, feats, tmp_path / "all.faiss") == 0
    whole = faiss.read_index(str(tmp_path / "all.faiss")).reconstruct_n(0, 4)
    np.testing.assert_array_equal(faiss.read_index(str(out)).reconstruct_n(0, 3), whole[KEPT])
    np.testing.assert_array_equal(np.load(tmp_path / "e.npy"), whole[KEPT])
    names_left = sorted(path.name for path in tmp_path.glob("vg.*"))
    assert names_left == ["vg.duplicates.jsonl", "vg.faiss", "vg.ids", "vg.json"]


def test_the_own_image_of_a_text_is_also_known_by_its_copy(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--not-own leaves out the picture that stands for the text's own."""
    rows = np.random.default_rng(3).normal(size=(4, IMAGE)).astype(np.float32)
    rows[2] = rows[0]
    feats = save_feats(tmp_path / "feats.npy", rows)
    names = (tmp_path / "feats.ids").read_text().split()
    assert build(tiny, feats, tmp_path / "vg.faiss", "--drop-duplicates", "0.9999") == 0
    monkeypatch.chdir(tmp_path)
    Path("t.jsonl").write_text(
        "".join(json.dumps({"text": "a dog", "image": names[n]}) + "\n" for n in range(4))
    )
    words = ["retrieve", "t.jsonl", "--index", "vg.faiss", "-k", "3", "--not-own", "-q"]
    assert run([*words, "-o", "r.jsonl"]) == 0
    own = [0, 1, 0, 2]  # the rows of the bank
    for row, left_out in zip(Path("r.jsonl").read_text().splitlines(), own, strict=True):
        assert set(json.loads(row)["images"]) == {0, 1, 2} - {left_out}
    index = vgtools.open_index("vg.faiss")
    texts = [{"text": "a dog", "image": name} for name in names]
    for row, left_out in zip(vgtools.retrieve(texts, index, k=3, not_own=True), own, strict=True):
        assert sorted(row.images) == [names[KEPT[n]] for n in range(3) if n != left_out], (
            "as the command's"
        )
    manifest = json.loads(Path("vg.json").read_text())
    Path("vg.duplicates.jsonl").write_text("")
    assert run([*words, "-o", "other.jsonl"]) == Exit.DATA
    del manifest["files"]["vg.duplicates.jsonl"]
    Path("vg.json").write_text(json.dumps(manifest))
    assert run([*words, "-o", "other.jsonl"]) == Exit.DATA
