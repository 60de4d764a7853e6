"""From boxes to feature rows, in two ways, and torchvision's detectors as a source of boxes.

RoI-align: the backbone sees the whole picture once, resized to its input without regard to the
aspect and without a crop, so that a box of the photo maps to its feature map by one factor per
side. A region's feature is the mean of the map inside the box.
Cut out: the backbone sees each box by itself, resized in the same way. That costs a forward pass
per region, and distinguishes regions that share a photo: a position of a classifier's last map has
seen all of it.

Axes: B batch, R regions of a picture, D channels, h × w the feature map.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import roi_align

from vgtools.images.boxes import Boxes, BoxSource, concat_sources, grid
from vgtools.images.extract import FeatureBatch, FeatureOutput, Work, Worked, printable, read_group
from vgtools.images.featurizer import Featurizer
from vgtools.images.regions import KIND, RegionSet, encode
from vgtools.images.sources import Item
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit, amount
from vgtools.io.files import digest_of, sha256_file

if TYPE_CHECKING:
    from PIL.Image import Image

SAMPLES = 8  # points per side at which the map is read inside a box, by bilinear interpolation


def whole_picture(preprocessing: Mapping[str, Any], side: int | None = None) -> dict[str, Any]:
    """Return a backbone's preprocessing without its crop: the whole picture fills its input.

    `side` is height and width of the input, by default the backbone's own; a larger input gives a
    finer feature map. The rest is timm's `resolve_data_config`.

    Deviation: VisualBERT's features come from detectors that keep the aspect (section A.2,
    appendix B).
    """
    channels, height, width = preprocessing["input_size"]
    size = (channels, side or height, side or width)
    known = {key: value for key, value in preprocessing.items() if key != "processor"}
    return known | {"input_size": size, "crop_pct": 1.0, "crop_mode": "squash"}


def region_featurizer(
    model: Any, preprocessing: Mapping[str, Any], dtype: str, batch_size: int, cut: bool = False
) -> Featurizer:
    """Return a featurizer for regions of pictures that are prepared as by `whole_picture`.

    With `cut` it sees each box by itself and returns its row; else it returns the feature map, to
    be pooled in boxes.

    Raises:
        DataError: the backbone does not take the picture's size, or its map has only one row.
    """
    pooling = "mean" if cut else "none"
    try:
        featurizer = Featurizer(model, preprocessing, pooling, "float32", batch_size)
    except (AssertionError, RuntimeError) as error:  # a transformer with a fixed number of patches
        size = "×".join(map(str, preprocessing["input_size"][1:]))
        raise DataError(
            f"the backbone does not take pictures of {size}: {error}; leave --picture out",
            code=Exit.USAGE,
        ) from None
    # The type of the output is set only now: maps are float32 until they are pooled.
    featurizer.dtype = np.dtype(dtype)
    if not cut and featurizer.grid[0] < 2:
        raise DataError(
            "the backbone has no feature map with rows and columns, which regions need; use a "
            "convolutional network or a transformer over patches at its own size (without "
            "--picture), or encode each region by itself with --cut",
            code=Exit.USAGE,
        )
    return featurizer


def pool_regions(maps: Array, grid: tuple[int, int] | list[int], boxes: list[Array]) -> list[Array]:
    """Return the mean of each picture's feature map inside each of its boxes.

    Args:
        maps: (B, h * w, D) float32, positions in row order.
        grid: [h, w].
        boxes: per picture (R, 4) x1, y1, x2, y2 as shares of its width and height.

    Returns:
        Per picture (R, D) float32: the mean over SAMPLES × SAMPLES points of each box, each
        interpolated bilinearly.

    Source: RoIAlign (He et al. 2017, Mask R-CNN, section 3), with one bin; pixel centres at half
        coordinates ("aligned").
    """
    height, width = grid
    size = torch.tensor([width, height, width, height], dtype=torch.float64)
    table = torch.from_numpy(maps).unflatten(1, (height, width))  # (B, h, w, D)
    table = table.permute(0, 3, 1, 2).contiguous()  # (B, D, h, w)
    scaled = [(torch.from_numpy(np.ascontiguousarray(b)) * size).float() for b in boxes]
    with torch.inference_mode():
        rows = roi_align(table, scaled, output_size=1, sampling_ratio=SAMPLES, aligned=True)
    parts = rows.flatten(1).split([len(b) for b in boxes])  # B times (R, D)
    return [part.numpy() for part in parts]


def region_work(source: BoxSource) -> Work:
    """Return the work of a thread of `images.extract`: read images, find boxes, compute their rows.

    The featurizer comes from `region_featurizer`, which decides how.

    Source: for cutting out, R-CNN (Girshick et al. 2014, section 2.1): a region is warped to the
        input of the network.
    Deviation: without the 16 pixels of context around it.
    """

    def work(group: list[Item], featurizer: Featurizer, computing: threading.Semaphore) -> Worked:
        seen: dict[int, _Seen] = {}

        def handle(index: int, image: str, picture: Image) -> None:
            boxes = source(image, picture)
            crops = [picture]
            if _cuts(featurizer):
                crops = [picture.crop(_outer(box)) for box in boxes.boxes]
            pixels = [featurizer.pixels(crop) for crop in crops]
            seen[index] = _Seen(boxes, picture.size, pixels)

        faults = read_group(group, handle)
        with computing:
            rows = _rows(featurizer, list(seen.values()))
        features = dict(zip(seen, rows, strict=True))
        sets: list[RegionSet] = []
        kept: list[str] = []
        errors: list[tuple[str, str]] = []
        for index, item in enumerate(group):
            if index not in faults and not np.isfinite(features[index]).all():
                faults[index] = "its features are NaN or infinite"
            if index in faults:
                errors.append((printable(item.id), faults[index]))
                continue
            boxes, size, _ = seen[index]
            errors += [(printable(item.id), fault) for fault in boxes.faults]
            labels = boxes.labels if any(boxes.labels) else None
            kept.append(item.id)
            sets.append(RegionSet(features[index], boxes.boxes, boxes.confidence, labels, *size))
        return kept, sets, errors

    return work


class _Seen(NamedTuple):
    """An image that can be used."""

    boxes: Boxes
    size: tuple[int, int]
    pixels: list[Array]  # the backbone's inputs: the whole picture, or a crop per box


def _rows(featurizer: Featurizer, seen: list[_Seen]) -> list[Array]:
    """Return the (R, D) features of each picture's regions."""
    if not seen:
        return []
    crops = [crop for image in seen for crop in image.pixels]
    empty = np.empty((0, *featurizer.input_shape), np.uint8)
    rows = featurizer.features(np.stack(crops) if crops else empty)
    if _cuts(featurizer):
        return np.split(rows, np.cumsum([len(image.pixels) for image in seen])[:-1])
    shares = [image.boxes.boxes / np.array(image.size * 2, np.float64) for image in seen]
    return pool_regions(rows.astype(np.float32), featurizer.grid, shares)


def _cuts(featurizer: Featurizer) -> bool:
    return featurizer.pooling != "none"


def _outer(box: Array) -> tuple[int, int, int, int]:
    """Return the whole pixels that a box touches."""
    x1, y1, x2, y2 = box.tolist()
    # A box within one pixel covers that pixel: a crop without area has no features.
    left, top = int(x1), int(y1)
    return left, top, max(math.ceil(x2), left + 1), max(math.ceil(y2), top + 1)


class RegionOutput(FeatureOutput):
    """`X.npy`, `X.regions.jsonl` and `X.errors.jsonl` while they grow; else as for whole images."""

    _table, things = ".regions.jsonl", ("image or box", "images or boxes")

    @staticmethod
    def row_shape(featurizer: Featurizer) -> tuple[int, ...]:
        """Return the shape of one feature."""
        return featurizer.row_shape[-1:]

    def _put(self, batch: FeatureBatch) -> None:
        for image, regions in zip(batch.ids, batch.features, strict=True):
            parts = encode(image, regions, self.rows, self.featurizer.dtype)
            for file, data in enumerate(parts):
                self._output.write(data, file)
            self.rows += len(regions)

    def _facts(self) -> dict[str, Any]:
        facts = {"kind": KIND, "images": self.images}
        if _cuts(self.featurizer):
            return facts | {"pooling": "cut"}
        return facts | {"pooling": "roi-align", "samples": SAMPLES}


# Identified by the names and shapes of their weights. The 320-pixel variant of the last detector
# has the same names and shapes, and is taken for it.
DETECTORS = (
    "fasterrcnn_resnet50_fpn_v2",
    "fasterrcnn_resnet50_fpn",
    "fasterrcnn_mobilenet_v3_large_fpn",
)


class Detector:
    """A torchvision Faster R-CNN as a box source.

    Args:
        path: its weights, safetensors.
        device: where it runs.
        least: boxes of less confidence are dropped.
        most: boxes per picture at most, the most confident.

    Raises:
        DataError: missing (66), a pickle, damaged, or of an unknown architecture (65).
    """

    def __init__(
        self,
        path: str | Path,
        device: torch.device | str = "cpu",
        least: float = 0.2,
        most: int = 36,
    ) -> None:
        weights = _read_weights(Path(path))
        self.name = _architecture(weights, path)  # one of `DETECTORS`
        self.sha256 = sha256_file(path)
        classes = len(weights[_CLASSES])
        network = _new(self.name, classes)
        network.load_state_dict(weights)
        network.roi_heads.score_thresh = least
        network.roi_heads.detections_per_img = most
        self._device = torch.device(device)
        self._network = network.eval().requires_grad_(False).to(device)
        self._names = _category_names(classes)
        self._computing = threading.Lock()  # one picture at a time: threads decode meanwhile

    def __call__(self, image: str, picture: Image) -> Boxes:
        """Return the detected boxes, the most confident first."""
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)  # (3, H, W)
        with self._computing, torch.inference_mode():
            (output,) = self._network([pixels.to(self._device, torch.float32) / 255])
        boxes, scores, classes = (
            output[key].double().cpu().numpy() for key in ("boxes", "scores", "labels")
        )
        good = np.isfinite(boxes).all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1)
        names = [self._names[int(c)] for c in classes[good]]
        return Boxes(boxes[good], scores[good].astype(np.float32), names)


class OpenBoxes(NamedTuple):
    """Where boxes come from."""

    source: BoxSource
    config: dict[str, Any]  # the settings that decide the boxes
    files: list[str]  # the files that are read


def open_boxes(
    names: Sequence[str],
    open_file: Callable[[str], BoxSource],
    scales: int,
    detector: str | None,
    device: str,
    most: int | None,
    least: float,
) -> OpenBoxes:
    """Open the sources of boxes, in order, the detector last.

    The names are files, opened by `open_file`, or `grid`, of `scales` scales; the detector is
    weights of a `Detector`; `most` and `least` are as for `concat_sources`.

    Raises:
        DataError: a file is missing (66) or damaged (65).
    """
    windows = functools.partial(grid, scales=scales)
    sources: list[BoxSource] = [windows if name == "grid" else open_file(name) for name in names]
    files = [name for name in names if name != "grid"]
    digests = [f"grid {scales}" if name == "grid" else digest_of(name) for name in names]
    config: dict[str, Any] = {"sources": digests}
    if detector is not None:
        opened = Detector(detector, device)
        sources.append(opened)
        files.append(detector)
        config["detector"] = {"name": opened.name, "sha256": opened.sha256}
    config |= {"most": most, "least": least}
    return OpenBoxes(concat_sources(sources, most, least), config, files)


_CLASSES = "roi_heads.box_predictor.cls_score.bias"


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        why = "does not exist; expected the safetensors file of a torchvision detector"
        raise DataError(why, path, code=Exit.NO_INPUT)
    if path.suffix != ".safetensors":
        raise DataError(
            "is not a .safetensors file; a pickle can run code when it is read. Convert it once "
            "where you trust it: safetensors.torch.save_file(torch.load(FILE, weights_only=True), "
            "'detector.safetensors')",
            path,
        )
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise DataError(f"is not a readable safetensors file: {error}", path) from None


def _new(name: str, classes: int) -> Any:
    from torchvision.models import get_model

    return get_model(name, weights=None, weights_backbone=None, num_classes=classes)


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in weights.items()}


def _architecture(weights: Mapping[str, Tensor], path: str | Path) -> str:
    """Return the detector whose weights have these names and shapes.

    Raises:
        DataError: no known detector has them, or some are NaN or infinite; how many and the first
            are named (65).
    """
    shapes = _shapes(weights)
    known = ", ".join(DETECTORS)
    common = {_CLASSES, "rpn.head.cls_logits.bias", "backbone.fpn.layer_blocks.0.0.weight"}
    why = "holds the weights of an unknown detector"
    if not common <= shapes.keys() or len(shapes[_CLASSES]) != 1 or 0 in shapes[_CLASSES]:
        raise DataError(f"{why}; known are torchvision's {known}", path)
    faults = {}
    for name in DETECTORS:
        # Only names and shapes are needed, which a network on the meta device has without memory.
        with torch.device("meta"):
            needed = _shapes(_new(name, len(weights[_CLASSES])).state_dict())
        faults[name] = (
            sorted(needed.keys() - shapes.keys()),
            sorted(key for key in needed.keys() & shapes.keys() if needed[key] != shapes[key]),
            sorted(shapes.keys() - needed.keys()),
        )
    name = min(DETECTORS, key=lambda detector: sum(map(len, faults[detector])))
    kinds = ("lacks {} weights", "has {} of another shape", "has {} more")
    for keys, fault in zip(faults[name], kinds, strict=True):
        if keys:
            why += f": the nearest is {name}, of which it {fault.format(len(keys))}, the first"
            raise DataError(f"{why} {keys[0]}; known are torchvision's {known}", path)
    bad = [
        key
        for key, tensor in weights.items()
        if tensor.is_floating_point() and not torch.stack(tensor.aminmax()).isfinite().all()
    ]
    if bad:
        why = f"has NaN or infinite numbers in {amount(len(bad), 'weight')}, the first {bad[0]}"
        raise DataError(f"{why}; restore the file", path)
    return name


@functools.cache
def _category_names(classes: int) -> list[str]:
    """Return the names of a detector's classes: COCO's for 91, else their numbers."""
    from torchvision.models.detection import FasterRCNN_ResNet50_FPN_V2_Weights

    names: list[str] = FasterRCNN_ResNet50_FPN_V2_Weights.COCO_V1.meta["categories"]
    return names if classes == len(names) else [f"class {i}" for i in range(classes)]
