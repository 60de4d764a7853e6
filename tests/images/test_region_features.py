"""RoI-align against a loop over points, and torchvision's detectors as box sources."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torchvision.models import get_model

from vgtools.images.region_features import (
    SAMPLES,
    Detector,
    pool_regions,
    region_featurizer,
    region_work,
    whole_picture,
)
from vgtools.images.sources import Item
from vgtools.io.errors import DataError, Exit


def brute_force(table: Any, box: Any) -> Any:
    """Return the mean of an (h, w, D) map over the points of a box.

    The box is given in cells; values are at the cells' centres.
    """
    height, width, _ = table.shape
    x1, y1, x2, y2 = box
    points = []
    for i in range(SAMPLES):
        for j in range(SAMPLES):
            x = min(max(x1 + (i + 0.5) * (x2 - x1) / SAMPLES - 0.5, 0), width - 1)
            y = min(max(y1 + (j + 0.5) * (y2 - y1) / SAMPLES - 0.5, 0), height - 1)
            left, top = int(x), int(y)
            right, low = min(left + 1, width - 1), min(top + 1, height - 1)
            a, b = x - left, y - top
            points.append(
                (1 - b) * ((1 - a) * table[top, left] + a * table[top, right])
                + b * ((1 - a) * table[low, left] + a * table[low, right])
            )
    return np.mean(points, 0)


def test_pooling_equals_a_loop_over_points() -> None:
    rng = np.random.default_rng(0)
    maps = rng.standard_normal((3, 4 * 6, 5)).astype(np.float32)
    boxes = [np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4) for count in (3, 0, 2)]
    boxes[2][0] = [0, 0, 1, 1]
    found = pool_regions(maps, [4, 6], boxes)
    assert [part.shape for part in found] == [(3, 5), (0, 5), (2, 5)]
    for table, own, part in zip(maps, boxes, found, strict=True):
        expected = [brute_force(table.reshape(4, 6, 5), box * [6, 4, 6, 4]) for box in own]
        np.testing.assert_allclose(part, np.array(expected).reshape(-1, 5), rtol=1e-4, atol=1e-5)


def tiny_network() -> tuple[Any, dict[str, Any]]:
    torch.manual_seed(0)
    network = timm.create_model(
        "test_resnet", num_classes=0, pretrained_cfg_overlay={"input_size": (3, 64, 64)}
    ).eval()
    return network, timm.data.resolve_data_config({}, model=network)


def test_the_whole_picture_is_seen_and_boxes_map_to_it() -> None:
    network, preprocessing = tiny_network()
    featurizer = region_featurizer(network, whole_picture(preprocessing, 96), "float32", 2)
    assert featurizer.input_shape == (3, 96, 96)
    picture = np.zeros((20, 60, 3), np.uint8)
    picture[:, :20] = 255  # the left third
    seen = featurizer.pixels(Image.fromarray(picture))
    assert seen.shape == (3, 96, 96)
    assert seen[:, :, :28].min() > 250
    assert seen[:, :, 36:].max() < 5
    assert featurizer.grid[0] == featurizer.grid[1] >= 3
    rows = featurizer.features(seen[None])
    left, right = pool_regions(
        rows, featurizer.grid, [np.array([[0, 0, 1 / 3, 1], [2 / 3, 0, 1, 1]])]
    )[0]
    whole = rows[0].reshape(*featurizer.grid, -1)
    side = featurizer.grid[1] // 3
    assert (
        np.corrcoef(left, whole[:, :side].mean((0, 1)))[0, 1]
        > np.corrcoef(right, whole[:, :side].mean((0, 1)))[0, 1]
    )


def test_a_backbone_of_fixed_size_says_so() -> None:
    network = timm.create_model("test_vit", num_classes=0).eval()
    preprocessing = timm.data.resolve_data_config({}, model=network)
    with pytest.raises(DataError, match=r"without --picture|leave --picture out") as caught:
        region_featurizer(network, whole_picture(preprocessing, 96), "float32", 1)
    assert caught.value.code == Exit.USAGE
    assert region_featurizer(network, whole_picture(preprocessing), "float32", 1).grid == [10, 10]


@pytest.fixture(scope="module")
def detector_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("detector") / "d.safetensors"
    network = get_model(
        "fasterrcnn_mobilenet_v3_large_fpn", weights=None, weights_backbone=None, num_classes=91
    )
    save_file(network.state_dict(), path)
    return path


def test_a_detector_finds_what_torchvision_finds(detector_file: Path) -> None:
    source = Detector(detector_file, least=0.0, most=5)
    source._network.transform.min_size = (96,)  # 800 takes long
    assert source.name == "fasterrcnn_mobilenet_v3_large_fpn"
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (60, 90, 3), np.uint8))
    found = source("a", picture)
    assert 1 <= len(found) <= 5
    assert (np.diff(found.confidence) <= 0).all(), "the most confident first"
    with torch.inference_mode():
        (expected,) = source._network(
            [torch.from_numpy(np.asarray(picture).copy()).permute(2, 0, 1) / 255]
        )
    np.testing.assert_allclose(found.boxes, expected["boxes"].numpy(), rtol=1e-5)
    np.testing.assert_allclose(found.confidence, expected["scores"].numpy(), rtol=1e-5)
    assert len(found.labels) == len(found)
    assert all(name and not name.startswith("class") for name in found.labels), "COCO's names"


def test_other_files_are_refused(detector_file: Path, tmp_path: Path) -> None:
    pickle = tmp_path / "d.pth"
    pickle.write_bytes(b"\x80\x04")
    with pytest.raises(DataError, match="a pickle can run code"):
        Detector(pickle)
    with pytest.raises(DataError, match="does not exist") as caught:
        Detector(tmp_path / "no.safetensors")
    assert caught.value.code == Exit.NO_INPUT
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(detector_file.read_bytes()[:1000])
    with pytest.raises(DataError, match="is not a readable safetensors file"):
        Detector(cut)
    other = tmp_path / "other.safetensors"
    save_file({"roi_heads.box_predictor.cls_score.bias": torch.zeros(3)}, other)
    with pytest.raises(
        DataError, match="unknown detector; known are torchvision's fasterrcnn_resnet50_fpn_v2"
    ):
        Detector(other)


def test_a_group_of_broken_pictures_is_a_group_of_errors() -> None:
    from types import SimpleNamespace

    def broken() -> bytes:
        return b"no picture"

    group = [Item(f"{i}.png", "", broken) for i in range(8)]
    work = region_work(lambda image, picture: pytest.fail("there is no picture"))
    featurizer: Any = SimpleNamespace(pooling="none", grid=[2, 2], input_shape=(3, 4, 4))
    kept, sets, errors = work(group, featurizer, threading.Semaphore(1))
    assert (kept, sets, [name for name, _ in errors]) == ([], [], [item.id for item in group])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda x: x.pop("rpn.head.bbox_pred.bias"), "it lacks 1 weights, the first rpn.head.bbox"),
        (lambda x: x.update({"rpn.head.bbox_pred.bias": torch.ones(2)}), "has 1 of another shape"),
        (lambda x: x.update({"decoy": torch.ones(2)}), "it has 1 more, the first decoy"),
        (
            lambda x: x["rpn.head.bbox_pred.bias"].fill_(float("nan")),
            "has NaN or infinite numbers in 1 weight, the first rpn.head.bbox_pred.bias",
        ),
    ],
)
def test_a_detector_whose_weights_do_not_all_fit_is_refused(
    detector_file: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], why: str
) -> None:
    weights = load_file(detector_file)
    change(weights)
    file = tmp_path / "d.safetensors"
    save_file(weights, file)
    with pytest.raises(DataError) as caught:
        Detector(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert why in str(caught.value)
    if "NaN" not in why:
        assert "the nearest is fasterrcnn_mobilenet_v3_large_fpn" in str(caught.value)
    assert caught.value.code == Exit.DATA
