"""The making of rows of images: the flags for it, and the network that they load."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from vgtools.commands.options import Errors, Runtime, refuse_if
from vgtools.commands.topics import FIRST
from vgtools.io.errors import about
from vgtools.io.process import note
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from vgtools.images.extract import Extraction, FeatureOutput, Work
    from vgtools.images.featurizer import Featurizer
    from vgtools.images.region_features import OpenBoxes
    from vgtools.images.sources import Images, ImageSource
    from vgtools.models.backbone import Backbone

_COMMIT_SECONDS = 1.0  # how often finished rows are made safe: the work that a kill can cost


@dataclass(frozen=True, kw_only=True)
class FeatureFlags:
    """The features that are computed for an image.

    Attributes:
        backbone: timm name, directory as timm's save_for_hf writes it, builtin:NAME; or hub name or
            directory of a CLIP, MetaCLIP, SigLIP, AltCLIP or ChineseCLIP.
        pooling: Over the last feature map; none keeps every position; own is a CLIP's own
            embedding.
        dtype: Numbers in the file; float16 takes half the space.
        compute_dtype: Numbers the backbone computes with.
        batch_size: Images per batch, always filled; it affects the last bits of a row, so resume
            with the same.
        workers: Threads that decode (and, on a CPU, compute); 0: one per core.
    """

    backbone: str = value("builtin:efficientnet-lite0", "--backbone", "-b", metavar="REF")
    pooling: Literal["mean", "max", "none", "own"] | None = value(
        None, show_default="mean; own of a CLIP"
    )
    dtype: Literal["float32", "float16"] = value("float32")
    compute_dtype: Literal["float32", "bfloat16"] = value("float32")
    batch_size: int | None = count(None, show_default="8 on a CPU, else 64")
    workers: int = count(0, least=0)


@dataclass(frozen=True, kw_only=True)
class BoxFlags:
    """Where the boxes come from, and how they are seen.

    Attributes:
        regions: Pool inside boxes: jsonl of a detector or of vg prepare coco/flickr30k-entities,
            COCO's instances_*.json, or grid; repeatable.
        detector: Pool inside the boxes of the torchvision Faster R-CNN with these weights
            (.safetensors).
        grid_scales: The grid has windows of 1/1 … 1/N of the image at every half of them.
        max_regions: Keep the N most confident regions of an image.
        min_confidence: Leave out regions of less confidence.
        cut: Encode each box as its own crop: slower, but regions of one image differ more.
        picture: With regions or --pooling none: the backbone sees the whole picture, squashed to N
            pixels per side.
    """

    regions: list[str] | None = file(None, topic=FIRST)
    detector: str | None = file(None, topic=FIRST)
    grid_scales: int = count(3, max=9)
    max_regions: int | None = count(None)
    min_confidence: float = value(0.0, metavar="NUMBER", min=0, max=1)
    cut: bool = value(False)
    picture: int | None = count(
        None, least=32, show_default="its own size; without regions a centre crop", topic=FIRST
    )


def open_extraction(
    features: FeatureFlags,
    boxes: BoxFlags,
    errors: Errors,
    runtime: Runtime,
    limit: int | None,
    images: Images,
    whole: ImageSource | None,
) -> Extraction:
    """Return the task that makes rows of images, with the network loaded."""
    from vgtools.images import extract
    from vgtools.images.featurizer import emulates_bfloat16
    from vgtools.models.backbone import load_backbone
    from vgtools.models.references import pick_device

    device = pick_device(runtime.device)
    found = _open_boxes(boxes, str(device))
    if features.compute_dtype == "bfloat16" and emulates_bfloat16(device):
        slow = "this CPU emulates bfloat16; float32 is about ten times faster here"
        note("extract-image-feats", slow)
    size = features.batch_size or (8 if device.type == "cpu" else 64)
    net = load_backbone(features.backbone, device=str(device), dtype=features.compute_dtype)
    own = hasattr(net.model, "pooled")
    wrong = features.pooling == "own" and not own
    refuse_if(wrong, "--pooling", "own belongs to a CLIP and its kin")
    if features.pooling is None:
        features = replace(features, pooling="own" if own and found is None else "mean")
    with about(features.backbone):
        featurizer, facts, writer, work = _pipeline(net, features, boxes, found, size)
    config = {
        "command": "extract-image-feats",
        "backbone": net.fingerprint,
        "preprocessing": facts,
        **{key: getattr(features, key) for key in ("pooling", "dtype", "compute_dtype")},
        "device": device.type,
        "batch_size": size,
        "limit": limit,
        **({} if found is None else {"regions": found.config, "cut": boxes.cut}),
    }
    return extract.Extraction(
        config,
        images,
        featurizer,
        {"ref": net.ref, "fingerprint": net.fingerprint, "preprocessing": facts},
        writer=writer,
        how={**asdict(errors), "commit_seconds": _COMMIT_SECONDS},
        work=work,
        workers=features.workers,
        whole=whole,
    )


def _open_boxes(boxes: BoxFlags, device: str) -> OpenBoxes | None:
    """Return where the boxes come from; None if whole images are encoded."""
    if not boxes.regions and not boxes.detector:
        return None
    from vgtools.datasets.box_files import FileBoxes
    from vgtools.images.region_features import open_boxes

    return open_boxes(
        boxes.regions or [],
        FileBoxes,
        boxes.grid_scales,
        boxes.detector,
        device,
        boxes.max_regions,
        boxes.min_confidence,
    )


def _pipeline(
    net: Backbone, features: FeatureFlags, boxes: BoxFlags, found: OpenBoxes | None, size: int
) -> tuple[Featurizer, dict[str, Any], type[FeatureOutput], Work | None]:
    """Return the featurizer, its preprocessing, the class that writes rows, and extra work."""
    from vgtools.images import extract
    from vgtools.images.featurizer import Featurizer, describe
    from vgtools.images.region_features import (
        RegionOutput,
        region_featurizer,
        region_work,
        whole_picture,
    )

    seen = net.preprocessing
    if found is not None or boxes.picture is not None:
        seen = whole_picture(seen, boxes.picture)
    if found is None:
        pooling = features.pooling or "mean"
        featurizer = Featurizer(net.model, seen, pooling, features.dtype, size)
        return featurizer, describe(seen), extract.FeatureOutput, None
    featurizer = region_featurizer(net.model, seen, features.dtype, size, boxes.cut)
    work = region_work(found.source)
    return featurizer, describe(seen), RegionOutput, work
