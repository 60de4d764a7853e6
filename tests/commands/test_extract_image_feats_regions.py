"""`vg extract-image-feats --regions` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torchvision.models import get_model

from tests.tiny.images import save_backbone, save_photo
from vgtools.cli import run
from vgtools.commands import extract_image_feats
from vgtools.images import decoding
from vgtools.images.boxes import grid
from vgtools.images.extract import FeatureOutput
from vgtools.images.region_features import pool_regions, region_featurizer, whole_picture
from vgtools.images.regions import backbone_of, open_regions, regions_path
from vgtools.io import Exit

FILES = (Path("f.npy"), regions_path("f.npy"), Path("f.errors.jsonl"))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(autouse=True)
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(9):
        save_photo(tmp_path / f"photos/p{number}.png", number, (90, 60))
    return tmp_path / "photos"


def extract(backbone: Path, *more: str | Path, output: str = "f.npy") -> int:
    given = [
        "photos",
        "-b",
        backbone,
        "-o",
        output,
        "--device",
        "cpu",
        "--batch-size",
        2,
        "-q",
        *more,
    ]
    return run(["extract-image-feats", *map(str, given)])


def save_boxes(path: str, **changes: list[list[float]]) -> str:
    """Write phrase rows of photos of twice the size; changes replace the boxes of a photo."""
    rows = []
    for number in range(9):
        boxes = changes.get(f"p{number}", [[0, 0, 60, 60], [20, 10, 180, 100 + number]])
        phrases = [{"start": 0, "end": 1, "type": "people", "boxes": boxes}]
        rows.append(
            {
                "image": f"p{number}.png",
                "text": "x",
                "width": 180,
                "height": 120,
                "phrases": phrases,
            }
        )
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_gold_boxes_and_a_grid(backbone: Path) -> None:
    assert (
        extract(
            backbone, "--regions", save_boxes("p.jsonl"), "--regions", "grid", "--picture", "96"
        )
        == Exit.OK
    )
    found = open_regions("f.npy")
    assert found.images == [f"p{n}.png" for n in range(9)]
    assert found.counts.tolist() == [2 + 35] * 9
    manifest = found.manifest
    assert (manifest["kind"], manifest["images"], manifest["rows"]) == (
        "region-features",
        9,
        9 * 37,
    )
    seen = manifest["backbone"]["preprocessing"]
    assert (seen["crop_mode"], seen["crop_pct"], seen["input_size"]) == ("squash", 1.0, [3, 96, 96])
    assert [Path(x["path"]).name for x in manifest["inputs"]] == ["photos", "p.jsonl"]

    network = timm.create_model(f"local-dir:{backbone}", pretrained=True, num_classes=0).eval()
    featurizer = region_featurizer(
        network, whole_picture(timm.data.resolve_data_config({}, model=network), 96), "float32", 1
    )
    for number in (0, 8):
        own = found.of(f"p{number}.png")
        picture = decoding.decode(Path(f"photos/p{number}.png").read_bytes())
        boxes = np.array(
            [[0, 0, 30, 30], [10, 5, 90, 50 + number / 2], *grid("", picture).boxes.tolist()]
        )
        np.testing.assert_allclose(own.boxes, boxes)
        shares = boxes / [90, 60, 90, 60]
        rows = pool_regions(
            featurizer.features(featurizer.pixels(picture)[None]), featurizer.grid, [shares]
        )[0]
        np.testing.assert_allclose(own.features, rows, rtol=1e-3, atol=1e-5)
        assert own.labels == ["people"] * 2 + ["grid"] * 35
        assert own.confidence[2] == 1.0, "the whole picture"


def test_boxes_cut_out_are_pictures_by_themselves(backbone: Path) -> None:
    assert (
        extract(backbone, "--regions", save_boxes("p.jsonl"), "--cut", "--picture", "48") == Exit.OK
    )
    found = open_regions("f.npy")
    assert found.counts.tolist() == [2] * 9
    assert (found.manifest["pooling"], found.manifest["rows"]) == ("cut", 18)
    made = backbone_of(found)
    assert made["fingerprint"].endswith(" cut"), "a run that learned from others is refused"
    assert made["ref"] == f"{backbone}, boxes cut out at 48×48 px", "the refusal says what differs"
    found.manifest["backbone"] = {"fingerprint": "x"}
    assert backbone_of(found)["ref"] is None, "features of others need not name their network"

    network = timm.create_model(f"local-dir:{backbone}", pretrained=True, num_classes=0).eval()
    mean, std = (np.array(network.pretrained_cfg[key], np.float32) for key in ("mean", "std"))
    filter_ = Image.Resampling[network.pretrained_cfg["interpolation"].upper()]
    for number in (0, 8):
        own = found.of(f"p{number}.png")
        picture = decoding.decode(Path(f"photos/p{number}.png").read_bytes())
        for row, edges in zip(
            own.features, [(0, 0, 30, 30), (10, 5, 90, 50 + number // 2)], strict=True
        ):
            part = np.asarray(picture.crop(edges).resize((48, 48), filter_), np.float32) / 255
            with torch.inference_mode():
                seen = torch.from_numpy((part - mean) / std).permute(2, 0, 1)
                expected = network.forward_features(seen[None]).mean((2, 3))[0]
            np.testing.assert_allclose(row, expected, rtol=1e-3, atol=1e-5)
    assert extract(backbone, "--cut", output="g.npy") == Exit.USAGE, "nothing to cut"


def test_a_thin_box_is_cut_out_whole(backbone: Path) -> None:
    boxes = [[19.9, 0, 20.1, 120], [179, 119, 180, 120]]
    assert (
        extract(backbone, "--regions", save_boxes("p.jsonl", p0=boxes), "--cut", "--limit", "1")
        == Exit.OK
    )
    found = open_regions("f.npy").of("p0.png")
    np.testing.assert_allclose(found.boxes, np.array(boxes) / 2)
    assert np.isfinite(found.features).all()
    assert found.features.any(1).all()


@pytest.mark.parametrize("cut", [False, True])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    backbone: Path, monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    way = ["--cut"] if cut else []
    assert extract(backbone, "--regions", save_boxes("p.jsonl"), *way) == Exit.OK
    whole = [file.read_bytes() for file in FILES]
    for file in (*FILES, Path("f.json")):
        file.unlink()
    monkeypatch.setattr(extract_image_feats, "_COMMIT_SECONDS", 0.0)
    real, calls = FeatureOutput._commit, list[int]()

    def stop(self: Any) -> None:
        real(self)
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(FeatureOutput, "_commit", stop)
    assert extract(backbone, "--regions", "p.jsonl", *way) == Exit.INTERRUPTED
    assert not FILES[0].exists()
    assert json.loads(Path("f.npy.journal").read_text())["state"]["items"] == 4
    assert extract(backbone, "--regions", "p.jsonl", *way) == Exit.OK
    assert [file.read_bytes() for file in FILES] == whole
    assert extract(backbone, "--regions", "p.jsonl", *way) == Exit.OK, "up to date"
    save_boxes("p.jsonl", p1=[[0, 0, 10, 10]])
    assert extract(backbone, "--regions", "p.jsonl", *way, "-q") == Exit.OK
    assert open_regions("f.npy").counts.tolist() == [2, 1, *[2] * 7], "other boxes, other features"


def test_bad_boxes_stop_the_command_or_are_left_out(
    backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_boxes("p.jsonl", p3=[[0, 0, 60, 60], [0, 0, 200, 60]], p5=[[5, 5, 5, 9]])
    (Path("photos") / "z.png").write_bytes(Path("photos/p0.png").read_bytes())
    assert extract(backbone, "--regions", "p.jsonl") == Exit.DATA
    err = capfd.readouterr().err
    assert (
        "p3.png: p.jsonl: box 2, [0.0, 0.0, 100.0, 30.0], leaves its picture of 90×60; fix" in err
    )
    assert extract(backbone, "--regions", "p.jsonl", "--on-error", "skip") == Exit.OK
    assert open_regions("f.npy").counts.tolist() == [2, 2, 2, 1, 2, 0, 2, 2, 2]
    rows = [json.loads(line) for line in FILES[2].read_text().splitlines()]
    assert [row["image"] for row in rows] == ["p3.png", "p5.png", "z.png"]
    assert rows[2]["reason"] == "p.jsonl names no boxes of it; its ids must be those of the images"
    assert (
        extract(
            backbone,
            "--regions",
            "p.jsonl",
            "--on-error",
            "skip",
            "--max-errors",
            "2",
            output="g.npy",
        )
        == Exit.DATA
    )
    assert "3 images or boxes could not be used, more than --max-errors 2" in capfd.readouterr().err


def test_a_detector_as_source(backbone: Path) -> None:
    torch.manual_seed(0)
    network = get_model(
        "fasterrcnn_mobilenet_v3_large_fpn", weights=None, weights_backbone=None, num_classes=3
    )
    save_file(network.state_dict(), "d.safetensors")
    assert (
        extract(
            backbone,
            "--detector",
            "d.safetensors",
            "--regions",
            "grid",
            "--limit",
            "1",
            "--max-regions",
            "8",
        )
        == Exit.OK
    )
    found = open_regions("f.npy")
    assert found.counts.tolist() == [8]
    assert (
        found.manifest["config"]["regions"]["detector"]["name"]
        == "fasterrcnn_mobilenet_v3_large_fpn"
    )
    assert found.manifest["config"]["regions"]["most"] == 8
    assert (
        extract(backbone, "--regions", "grid", "--limit", "1", "--grid-scales", "2", output="g.npy")
        == Exit.OK
    )
    assert open_regions("g.npy").counts.tolist() == [10]


@pytest.mark.parametrize(
    ("more", "code", "why"),
    [
        (["--regions", "grid", "--pooling", "max"], Exit.USAGE, "regions are pooled by the mean"),
        (["--picture", "96"], Exit.USAGE, "belongs to --regions or --detector"),
        (["--regions", "no.jsonl"], Exit.NO_INPUT, "no.jsonl"),
        (["--detector", "no.safetensors"], Exit.NO_INPUT, "no.safetensors: does not exist"),
        (["--regions", "grid", "--captions", "c.jsonl"], Exit.USAGE, "and no regions"),
    ],
)
def test_bad_flags(
    backbone: Path, more: list[str], code: int, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert extract(backbone, *more) == code
    assert why in capfd.readouterr().err
    assert not list(Path().glob("f.*"))
