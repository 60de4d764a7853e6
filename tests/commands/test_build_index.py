"""`vg build-index`: the index is the features' embeddings; what does not belong together is
refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch

from tests.tiny import BACKBONE, IMAGE, save_feats, save_run_of
from vgtools.cli import run
from vgtools.systems.vokenization.vokenize import open_matcher


def build(*args: str | Path) -> int:
    return run(["build-index", *map(str, args), "--device", "cpu"])


def test_the_index_holds_the_embeddings_and_names_its_matcher(tiny: Path) -> None:
    index = faiss.read_index(str(tiny / "vg.faiss"))
    assert isinstance(index, faiss.IndexFlat)
    matcher = open_matcher(tiny / "run")
    with torch.no_grad():
        wanted = matcher.matcher.embed_images(torch.from_numpy(np.load(tiny / "feats.npy"))).numpy()
    np.testing.assert_allclose(index.reconstruct_n(0, 60), wanted, atol=1e-6)
    manifest = json.loads((tiny / "vg.json").read_text())
    assert manifest["matcher"] == {"run": "run", "fingerprint": matcher.fingerprint}
    assert (manifest["count"], manifest["dim"], manifest["metric"]) == (60, 8, "inner_product")
    assert manifest["backbone"] == BACKBONE
    assert (tiny / "vg.ids").read_text() == (tiny / "feats.ids").read_text()


def test_limit_takes_the_first_images(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vg.faiss"
    assert build(tiny / "feats.npy", "-m", tiny / "run", "-o", out, "--limit", "7") == 0
    assert faiss.read_index(str(out)).ntotal == 7
    assert out.with_suffix(".ids").read_text().splitlines()[-1] == "image006"
    assert build(tiny / "feats.npy", "-m", tiny / "run", "-o", out, "--limit", "7") == 0
    assert "up to date" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["vg.faiss", "vg.ids", "vg.json"]


def test_another_factory_says_its_recall(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "vg.faiss"
    assert build(tiny / "feats.npy", "-m", tiny / "run", "-o", out, "--factory", "HNSW8", "-q") == 0
    recall = json.loads(out.with_suffix(".json").read_text())["recall_at_1"]
    assert 0.5 < recall <= 1
    assert f"HNSW8 finds the right image for {recall:.1%}" in capsys.readouterr().err


def test_features_of_another_backbone_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feats = save_feats(tmp_path / "feats.npy", backbone={"ref": "other", "fingerprint": "c" * 64})
    assert build(feats, "-m", tiny / "run", "-o", tmp_path / "vg.faiss") == 65
    message = capsys.readouterr().err
    assert "b" * 64 in message
    assert "c" * 64 in message
    assert not (tmp_path / "vg.faiss").exists()


def test_features_of_another_width_are_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    feats = save_feats(tmp_path / "feats.npy", np.ones((3, IMAGE + 1)))
    assert build(feats, "-m", tiny / "run", "-o", tmp_path / "vg.faiss") == 65
    assert "(3, 13)" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["feats.ids", "feats.json", "feats.npy"]


def test_a_run_with_another_encoder_is_refused(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.tiny import save_encoder

    broken = save_run_of(tmp_path / "run", tiny / "encoder")
    save_encoder(broken / "encoder", seed=5)
    assert build(tiny / "feats.npy", "-m", broken, "-o", tmp_path / "vg.faiss") == 65
    error = capsys.readouterr().err
    assert "run/encoder/" in error
    assert "is damaged or from another run: sha256" in error


@pytest.mark.parametrize(("output", "code"), [("vg.index", 2), ("nowhere/vg.faiss", 73)])
def test_outputs_that_cannot_be(tiny: Path, tmp_path: Path, output: str, code: int) -> None:
    assert build(tiny / "feats.npy", "-m", tiny / "run", "-o", tmp_path / output) == code
