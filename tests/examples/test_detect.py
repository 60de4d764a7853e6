"""The detector of examples/visualbert: TensorFlow's padding and resizing, and boxes, by hand."""

from __future__ import annotations

import base64
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.examples.make import ROOT

SCRIPT = ROOT / "examples" / "visualbert" / "detect.py"


@pytest.fixture(scope="module")
def detect() -> Any:
    spec = importlib.util.spec_from_file_location("detect", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def convolution(op: str, stride: int, *fused: str) -> dict[str, Any]:
    names = [base64.b64encode(name.encode()).decode() for name in fused]
    strides = ["1", str(stride), str(stride), "1"]
    return {
        "op": op,
        "attr": {"strides": {"list": {"i": strides}}, "fused_ops": {"list": {"s": names}}},
    }


def test_a_convolution_pads_below_and_on_the_right(detect: Any) -> None:
    # Ones, 3 x 3, every second of 4 x 4: TensorFlow's windows begin at 0 and 2, and leave the edge.
    x = torch.arange(16.0).view(1, 1, 4, 4)
    node = convolution("_FusedConv2D", 2, "BiasAdd", "Relu")
    found = detect.convolve(node, x, torch.ones(3, 3, 1, 1), torch.tensor([-50.0]))
    # 0+1+2+4+5+6+8+9+10 = 45; (2+3)+(6+7)+(10+11) = 39; (8..10)+(12..14) = 66; 10+11+14+15 = 50
    assert found.tolist() == [[[[0, 0], [16, 0]]]]
    each = convolution("DepthwiseConv2dNative", 1)
    kernel = torch.tensor([2.0, 3.0]).view(1, 1, 2, 1)
    found = detect.convolve(each, torch.ones(1, 2, 1, 1), kernel)
    assert found.flatten().tolist() == [2, 3], "a channel has its own kernel"


def test_doubling_keeps_the_corners_of_pixels(detect: Any) -> None:
    found = detect.double({}, torch.tensor([[[[0.0, 4.0]]]]), None)
    assert found.tolist() == [[[[0, 2, 4, 4]] * 2]]


def test_boxes_of_a_whole_graph(
    detect: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Scores: the map's first channel is 1 where the picture is white, the second its half; sides 8.
    outputs = [("tower_0/keypoints", "k", 2), ("tower_0/wh", "w", 4)]
    nodes: list[dict[str, Any]] = [{"name": "tower_0/images", "op": "Placeholder"}]
    values = {"k": [1 / 255, 0.5 / 255], "w": [0.0] * 4, "kb": [0.0] * 2, "wb": [8.0, 8, 16, 24]}
    for name, kernel, _ in outputs:
        inputs = ["tower_0/images", kernel, f"{kernel}b"]
        pooled = convolution("_FusedConv2D", 64, "BiasAdd")
        nodes.append({"name": name, "input": inputs, **pooled})
    nodes.append({"name": "pool", "op": "MaxPool"})
    manifest: list[dict[str, Any]] = []
    data = b""
    for name, numbers in values.items():
        array = np.array(numbers, np.float16)
        kernel = np.zeros((1, 1, 3, len(numbers)), np.float16)
        kernel[0, 0, 0] = array
        stored = array if name.endswith("b") else kernel
        facts = {"dtype": "float32", "quantization": {"dtype": "float16"}}
        manifest.append({"name": name, "shape": list(stored.shape), **facts})
        data += stored.tobytes()
    graph = {"modelTopology": {"node": nodes}, "weightsManifest": [{"weights": manifest}]}
    (tmp_path / "centernet.json").write_text(json.dumps(graph))
    (tmp_path / "centernet.bin").write_bytes(data)
    pixels = np.zeros((256, 512, 3), np.uint8)
    pixels[62:90, 60:150] = 255  # in the map of 8 x 8: row 2, columns 1 and 2
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "images.jsonl").write_text('{"image": "A", "path": "a.png"}\n')
    detect.main(tmp_path, tmp_path / "images.jsonl")
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    # Sides of 512: the picture's height is doubled. A cell is 64 wide; the left box is the first
    # of two that are as good, and both channels' boxes are one place: the better one stays.
    assert row["image"] == "A"
    assert row["confidence"] == pytest.approx([1, 1], abs=1e-3)
    left = [64 - 8, (128 - 8) / 2, 64 + 16, (128 + 24) / 2]
    right = [128 - 8, *left[1:2], 128 + 16, left[3]]
    assert sorted(row["boxes"]) == [pytest.approx(left), pytest.approx(right)]
