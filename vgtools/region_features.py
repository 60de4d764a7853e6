"""From boxes to feature rows, in two ways, and torchvision's detectors as a source of boxes.

RoI-align: the backbone sees the whole picture once, resized to its input without regard to the aspect and without a crop, so
that a box of the photo maps to its feature map by one factor a side. A region's feature is the mean of the map inside the box.
Cut out: the backbone sees each box by itself, resized in the same way. That costs a forward pass for each region, and tells
regions apart that share a photo: a place of a classifier's last map has seen all of it.

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

from vgtools.boxes import Boxes, BoxSource, grid, together
from vgtools.images import Batch, FeatureOutput, Featurizer, Work, Worked, printable, read_group
from vgtools.io import DataError, Exit, sha256_file
from vgtools.regions import KIND, RegionSet, encode
from vgtools.sources import Item

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, Any]

SAMPLES = 8  # points a side at which the map is read inside a box, by bilinear interpolation

# --------------------------------------------------------------------------------------------------------------- pooling


def whole_picture(preprocessing: Mapping[str, Any], side: int | None = None) -> dict[str, Any]:
    """Return a backbone's preprocessing without its crop: the whole picture is resized to its input.

    Args:
        preprocessing: timm's `resolve_data_config`.
        side: height and width of the input; by default the backbone's own. A larger one gives a finer feature map.

    Deviation: VisualBERT's features come from detectors that keep the aspect (section A.2, appendix B).
    """
    channels, height, width = preprocessing["input_size"]
    size = (channels, side or height, side or width)
    return dict(preprocessing) | {"input_size": size, "crop_pct": 1.0, "crop_mode": "squash"}


def region_featurizer(
    model: Any, preprocessing: Mapping[str, Any], dtype: str, batch_size: int, cut: bool = False
) -> Featurizer:
    """Return a featurizer for regions, `preprocessing` being that of `whole_picture`.

    Args:
        cut: it is to see each box by itself and to return its row; else the feature map, to be pooled in boxes.

    Raises:
        DataError: the backbone does not take the picture's size, or has no map of more than one row to pool in.
    """
    try:
        found = Featurizer(model, preprocessing, "mean" if cut else "none", "float32", batch_size)
    except (AssertionError, RuntimeError) as error:  # a transformer with a fixed number of patches
        size = "×".join(map(str, preprocessing["input_size"][1:]))
        raise DataError(
            f"the backbone does not take pictures of {size}: {error}; leave --picture out", code=Exit.USAGE
        ) from None
    found.dtype = np.dtype(dtype)
    if not cut and found.grid[0] < 2:
        raise DataError(
            "the backbone has no feature map with rows and columns; regions need one: a convolutional network, "
            "or a transformer over patches at its own size (without --picture); or show it the regions by themselves, --cut",
            code=Exit.USAGE,
        )
    return found


def pool_regions(maps: Array, grid: tuple[int, int] | list[int], boxes: list[Array]) -> list[Array]:
    """Return the mean of each picture's feature map inside each of its boxes.

    Args:
        maps: (B, h * w, D) float32, positions in row order.
        grid: [h, w].
        boxes: for each picture (R, 4) x1, y1, x2, y2 as shares of its width and height.

    Returns:
        For each picture (R, D) float32: the mean over SAMPLES × SAMPLES points of each box, each interpolated bilinearly.

    Source: RoIAlign (He et al. 2017, Mask R-CNN, section 3), with one bin; pixel centres at half coordinates ("aligned").
    """
    height, width = grid
    size = torch.tensor([width, height, width, height], dtype=torch.float64)
    table = torch.from_numpy(maps).unflatten(1, (height, width)).permute(0, 3, 1, 2).contiguous()  # (B, D, h, w)
    scaled = [(torch.from_numpy(np.ascontiguousarray(b)) * size).float() for b in boxes]
    with torch.inference_mode():
        rows = roi_align(table, scaled, output_size=1, sampling_ratio=SAMPLES, aligned=True).flatten(1)  # (sum R, D)
    return [part.numpy() for part in rows.split([len(b) for b in boxes])]


def region_work(source: BoxSource) -> Work:
    """Return what a thread of `images.extract` does: read a group of images, find their boxes, make a row of each.

    The featurizer is one of `region_featurizer`, which decides how.

    Source: of what is cut out, R-CNN (Girshick et al. 2014, section 2.1): a region is warped to the input of the network.
    Deviation: without the 16 pixels of context around it.
    """

    def work(group: list[Item], featurizer: Featurizer, turn: threading.Semaphore) -> Worked:
        cut = _cuts(featurizer)
        found: dict[int, tuple[Boxes, tuple[int, int]]] = {}
        pixels: dict[int, list[Array]] = {}  # what the backbone sees of an image

        def see(place: int, image: str, picture: Image) -> None:
            found[place] = boxes, _ = source(image, picture), picture.size
            parts = [picture.crop(_outer(box)) for box in boxes.boxes] if cut else [picture]
            pixels[place] = [featurizer.pixels(part) for part in parts]

        faults = read_group(group, see)
        good = [place for place in range(len(group)) if place not in faults]
        seen = [part for place in good for part in pixels[place]]
        with turn:
            rows = featurizer.features(np.stack(seen) if seen else np.empty((0, *featurizer.input_shape), np.uint8))
        if cut:
            parts = np.split(rows, np.cumsum([len(pixels[place]) for place in good])[:-1]) if good else []
        else:
            shares = [found[place][0].boxes / np.array([*found[place][1]] * 2, np.float64) for place in good]
            parts = pool_regions(rows.astype(np.float32), featurizer.grid, shares)
        pooled = dict(zip(good, parts, strict=True))
        sets, kept, errors = list[RegionSet](), list[str](), list[tuple[str, str]]()
        for place, item in enumerate(group):
            if place not in faults and not np.isfinite(pooled[place]).all():
                faults[place] = "its features are NaN or infinite"
            if place in faults:
                errors.append((printable(item.id), faults[place]))
                continue
            boxes, size = found[place]
            errors += [(printable(item.id), fault) for fault in boxes.faults]
            labels = boxes.labels if any(boxes.labels) else None
            sets.append(RegionSet(pooled[place], boxes.boxes, boxes.confidence, labels, *size))
            kept.append(item.id)
        return kept, sets, errors

    return work


def _cuts(featurizer: Featurizer) -> bool:
    return featurizer.pooling != "none"


def _outer(box: Array) -> tuple[int, int, int, int]:
    """Return the whole pixels that a box touches."""
    x1, y1, x2, y2 = box.tolist()
    return int(x1), int(y1), max(math.ceil(x2), int(x1) + 1), max(math.ceil(y2), int(y1) + 1)


class RegionOutput(FeatureOutput):
    """`X.npy`, `X.regions.jsonl` and `X.errors.jsonl` while they grow; all else is as for whole images."""

    _table, things = ".regions.jsonl", ("image or box", "images or boxes")

    @property
    def row_shape(self) -> tuple[int, ...]:
        """One feature."""
        return self.featurizer.row_shape[-1:]

    def _put(self, batch: Batch) -> None:
        for image, regions in zip(batch.ids, batch.features, strict=True):
            for number, data in enumerate(encode(image, regions, self.rows, self.featurizer.dtype)):
                self._output.write(data, number)
            self.rows += len(regions)

    def _facts(self) -> dict[str, Any]:
        made = {"pooling": "cut"} if _cuts(self.featurizer) else {"pooling": "roi-align", "samples": SAMPLES}
        return {"kind": KIND, "images": self.images} | made


# ------------------------------------------------------------------------------------------------------------- detectors

# Told apart by the names and shapes of their weights. The 320-pixel variant of the last has the same: give it as the last.
DETECTORS = ("fasterrcnn_resnet50_fpn_v2", "fasterrcnn_resnet50_fpn", "fasterrcnn_mobilenet_v3_large_fpn")


class Detector:
    """A torchvision Faster R-CNN as a box source.

    Args:
        path: its weights, safetensors.
        device: where it runs.
        least: boxes of less confidence are no boxes.
        most: boxes a picture at most, the most confident.

    Attributes:
        name: which of `DETECTORS` it is; `sha256`: of the file.

    Raises:
        DataError: missing (66), a pickle, damaged, or of no known architecture (65).
    """

    def __init__(self, path: str | Path, device: torch.device | str = "cpu", least: float = 0.2, most: int = 36) -> None:
        weights = _read_weights(Path(path))
        self.name, self.sha256 = _architecture(weights, path), sha256_file(path)
        classes = len(weights[_CLASSES])
        network = _new(self.name, classes)
        network.load_state_dict(weights)
        network.roi_heads.score_thresh, network.roi_heads.detections_per_img = least, most
        self._device, self._network = torch.device(device), network.eval().requires_grad_(False).to(device)
        self._names = _category_names(classes)
        self._turn = threading.Lock()  # one picture at a time: threads decode meanwhile

    def __call__(self, image: str, picture: Image) -> Boxes:
        """Return what it finds, the most confident first."""
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1).to(self._device, torch.float32) / 255
        with self._turn, torch.inference_mode():
            (found,) = self._network([pixels])
        boxes, scores, classes = (found[key].double().cpu().numpy() for key in ("boxes", "scores", "labels"))
        good = np.isfinite(boxes).all(1) & (boxes[:, 2:] > boxes[:, :2]).all(1)
        names = [self._names[int(c)] for c in classes[good]]
        return Boxes(boxes[good], scores[good].astype(np.float32), names)


class OpenBoxes(NamedTuple):
    """Where boxes come from."""

    source: BoxSource
    config: dict[str, Any]  # what decides the boxes
    files: list[str]  # that are read


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

    Args:
        names: files of boxes, or `grid`.
        open_file: opens one of the files.
        scales: of the grid.
        detector: weights of a `Detector`.
        device: where the detector runs.
        most: regions per image to keep, the most confident; None keeps all.
        least: confidence below which a region is left out.

    Raises:
        DataError: a file is missing (66) or damaged (65).
    """
    windows = functools.partial(grid, scales=scales)
    sources: list[BoxSource] = [windows if name == "grid" else open_file(name) for name in names]
    files = [name for name in names if name != "grid"]
    digests = [f"grid {scales}" if name == "grid" else sha256_file(name) for name in names]
    config: dict[str, Any] = {"sources": digests}
    if detector is not None:
        opened = Detector(detector, device)
        sources.append(opened)
        files.append(detector)
        config["detector"] = {"name": opened.name, "sha256": opened.sha256}
    config |= {"most": most, "least": least}
    return OpenBoxes(together(sources, most, least), config, files)


_CLASSES = "roi_heads.box_predictor.cls_score.bias"


def _read_weights(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise DataError("does not exist; the safetensors file of a torchvision detector was wanted", path, code=Exit.NO_INPUT)
    if path.suffix != ".safetensors":
        raise DataError(
            "is no .safetensors file; a pickle can run code when it is read. Convert it once where you trust it: "
            "safetensors.torch.save_file(torch.load(FILE, weights_only=True), 'detector.safetensors')",
            path,
        )
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise DataError(f"is not a readable safetensors file: {error}", path) from None


def _new(name: str, classes: int) -> Any:
    from torchvision.models import get_model

    return get_model(name, weights=None, weights_backbone=None, num_classes=classes)


def _architecture(weights: Mapping[str, Tensor], path: str | Path) -> str:
    """Return the detector whose weights have these names and shapes."""
    found = {key: tuple(value.shape) for key, value in weights.items()}
    if {_CLASSES, "rpn.head.cls_logits.bias", "backbone.fpn.layer_blocks.0.0.weight"} <= found.keys():
        for name in DETECTORS:
            with torch.device("meta"):
                wanted = {key: tuple(value.shape) for key, value in _new(name, len(weights[_CLASSES])).state_dict().items()}
            if wanted == found:
                return name
    raise DataError(f"holds the weights of no detector known here: {', '.join(DETECTORS)} of torchvision", path)


@functools.cache
def _category_names(classes: int) -> list[str]:
    """Return the names of a detector's classes: COCO's for 91, else their numbers."""
    from torchvision.models.detection import FasterRCNN_ResNet50_FPN_V2_Weights

    names: list[str] = FasterRCNN_ResNet50_FPN_V2_Weights.COCO_V1.meta["categories"]
    return names if classes == len(names) else [f"class {i}" for i in range(classes)]
