"""`vg extract-image-feats`: images to features of a frozen backbone."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vgtools.commands.options import (
    Count,
    Errors,
    File,
    Flag,
    Limit,
    Restart,
    Runtime,
    Value,
    flags,
    help_at_terminal,
    note,
    refuse_if,
)
from vgtools.io.errors import about, amount

if TYPE_CHECKING:
    from vgtools.images.extract import FeatureOutput, Work
    from vgtools.images.featurizer import Featurizer
    from vgtools.images.region_features import OpenBoxes
    from vgtools.models.backbone import Backbone

_COMMIT_SECONDS = 1.0  # how often finished rows are made safe: what a kill can cost


@dataclass(frozen=True, kw_only=True)
class Features:
    """What is computed of an image."""

    backbone: Annotated[
        str,
        Value(
            "REF",
            "timm name, directory as timm's save_for_hf writes it, or builtin:NAME.",
            "--backbone",
            "-b",
        ),
    ] = "builtin:efficientnet-lite0"
    pooling: Annotated[
        Literal["mean", "max", "none"],
        Flag(help="Over the last feature map; none keeps every position."),
    ] = "mean"
    dtype: Annotated[
        Literal["float32", "float16"],
        Flag(help="Numbers in the file; float16 takes half the space."),
    ] = "float32"
    compute_dtype: Annotated[
        Literal["float32", "bfloat16"], Flag(help="Numbers the backbone computes with.")
    ] = "float32"
    batch_size: Annotated[
        int | None,
        Count(
            "Images per batch, always filled; it affects the last bits of a row, so resume "
            "with the same.",
            show_default="8 on a CPU, else 64",
        ),
    ] = None
    workers: Annotated[
        int, Count("Threads that decode (and, on a CPU, compute); 0: one per core.", 0)
    ] = 0


@dataclass(frozen=True, kw_only=True)
class Regions:
    """Where the boxes come from, and how they are seen."""

    regions: Annotated[
        list[str] | None,
        File(
            "Pool inside boxes: jsonl of a detector or of vg prepare coco/flickr30k-entities, "
            "COCO's instances_*.json, or grid; repeatable."
        ),
    ] = None
    detector: Annotated[
        str | None,
        File(
            "Pool inside the boxes of the torchvision Faster R-CNN with these weights "
            "(.safetensors)."
        ),
    ] = None
    grid_scales: Annotated[
        int, Count("The grid has windows of 1/1 … 1/N of the image at every half of them.", max=9)
    ] = 3
    max_regions: Annotated[int | None, Count("Keep the N most confident regions of an image.")] = (
        None
    )
    min_confidence: Annotated[
        float, Value("NUMBER", "Leave out regions of less confidence.", min=0, max=1)
    ] = 0.0
    cut: Annotated[
        bool,
        Flag(
            "--cut",
            help="Encode each box as its own crop: slower, but regions of one image differ more.",
        ),
    ] = False
    picture: Annotated[
        int | None,
        Count(
            "With regions or --pooling none: the backbone sees the whole picture, squashed to N"
            " pixels per side.",
            32,
            show_default="its own size; without regions a centre crop",
        ),
    ] = None


@flags
def extract_image_feats(
    context: typer.Context,
    features: Features,
    boxes: Regions,
    errors: Errors,
    runtime: Runtime,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Directory, tar, image jsonl, list of paths, or - for a list on stdin.",
        ),
    ] = "-",
    output: Annotated[
        str, Value("X.npy", "File to write; the same command resumes it.", "--output", "-o")
    ] = "feats.npy",
    captions: Annotated[
        str | None,
        File("Also write captions jsonl from the .txt beside each image of a directory."),
    ] = None,
    limit: Limit = None,
    restart: Restart = False,
) -> None:
    """Write one feature row for each image: X.npy, its ids in X.ids, its manifest X.json.

    Images keep the order of the source (a directory: by path, numbers in it by value). Pixels have
    one meaning: EXIF orientation applied, 16 bits scaled, transparency on white, first frame of an
    animation. The backbone's own preprocessing is used and recorded. Images that cannot be read
    stop the command, or go to X.errors.jsonl with --on-error skip; files that are not images are
    counted.

    --pooling none keeps the last feature map, (N, P, D), which vg train-matcher visual-awareness
    reads; with --picture of the whole picture, without it of the backbone's centre crop.

    With --regions or --detector there is one row for each box: X.npy, and X.regions.jsonl with
    boxes, confidences and labels. The backbone then sees the whole image, resized without a crop; a
    row is the mean of its last feature map inside the box (RoI-align). With --cut it sees each box
    by itself, resized to --picture pixels per side, as in R-CNN; one forward pass per region, of
    which --batch-size go together. Boxes of several sources follow one another. A box without a
    confidence (an annotation, the grid) gets a placeholder computed from its size and place. Boxes
    follow the size of the photo if their file states theirs; one that leaves the image or has no
    area stops the command, or is noted and left out with --on-error skip.

    Examples:

        vg extract-image-feats photos/ -o feats.npy

        vg extract-image-feats images.tar -b resnext101_32x8d.fb_wsl_ig1b_ft_in1k -o feats.npy

        find photos -name '*.jpg' | vg extract-image-feats - --on-error skip -o feats.npy

        vg extract-image-feats images.jsonl --regions phrases.jsonl --regions grid -o regions.npy

        vg extract-image-feats photos/ --pooling none --picture 400 --dtype float16 -o grid.npy

        vg extract-image-feats photos/ --detector fasterrcnn_resnet50_fpn_v2.safetensors
    """
    help_at_terminal(context, source)
    _check(features, boxes, source, output, captions)
    from vgtools.images import extract, sources
    from vgtools.images.featurizer import emulates_bfloat16
    from vgtools.io import Inputs, Progress, atomic_write, dumps, read_ids
    from vgtools.models.backbone import load_backbone
    from vgtools.models.references import pick_device

    named = [source, *(boxes.regions or []), boxes.detector]
    inputs = Inputs(name for name in named if name not in ("-", "grid", None))
    opened = sources.open_source(source, limit)  # first: a bad source is reported at once
    device = pick_device(runtime.device)
    found = _open_boxes(boxes, str(device))
    if features.compute_dtype == "bfloat16" and emulates_bfloat16(device):
        slow = "this CPU emulates bfloat16; float32 is about ten times faster here"
        note("extract-image-feats", slow, runtime.quiet)
    size = features.batch_size or (8 if device.type == "cpu" else 64)
    net = load_backbone(
        features.backbone, device=str(device), dtype=features.compute_dtype, offline=runtime.offline
    )
    with about(features.backbone):
        featurizer, facts, open_output, work = _pipeline(net, features, boxes, found, size)
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
    out = open_output(
        output,
        config,
        featurizer,
        opened,
        inputs,
        **asdict(errors),
        commit_seconds=_COMMIT_SECONDS,
        restart=restart,
    )
    with out, Progress("extract-image-feats", "images", opened.total, runtime.quiet) as bar:
        if out.complete:
            out.check_errors()
            note("extract-image-feats", f"{output} is up to date", runtime.quiet)
        else:
            bar.advance(out.items)
            done: dict[str, Any] = {"items": out.items, "digest": out.digest}
            workers = features.workers
            for batch in extract.extract(opened, featurizer, workers=workers, work=work, **done):
                out.write(batch)
                bar.advance(batch.items - bar.done)
            made = {"ref": net.ref, "fingerprint": net.fingerprint}
            out.finish(backbone=made | {"preprocessing": facts})
    if captions is not None:
        rows = sources.folder_captions(source, read_ids(Path(output).with_suffix(".ids")))
        atomic_write(captions, b"".join(map(dumps, rows)))
    if not out.complete:
        _summary(output, out, opened.left_out, device, runtime.quiet)


def _check(
    features: Features, boxes: Regions, source: str, output: str, captions: str | None
) -> None:
    """Refuse flags that contradict one another."""
    refuse_if(not output.endswith(".npy"), "--output", f"must end in .npy, got {output!r}")
    pooled = bool(boxes.regions or boxes.detector)
    refuse_if(pooled and features.pooling != "mean", "--pooling", "regions are pooled by the mean")
    chosen = boxes.max_regions is not None or boxes.min_confidence or boxes.cut
    hint = "--max-regions/--min-confidence/--cut"
    refuse_if(chosen and not pooled, hint, "belongs to --regions or --detector")
    unseen = boxes.picture and not pooled and features.pooling != "none"
    refuse_if(unseen, "--picture", "belongs to --regions, --detector or --pooling none")
    if captions is None:
        return
    unfit = pooled or not os.path.isdir(source)
    refuse_if(unfit, "--captions", "needs a directory as source, and no regions")
    files = [Path(output).with_suffix(end) for end in (".npy", ".ids", ".json", ".errors.jsonl")]
    taken = os.path.realpath(captions) in map(os.path.realpath, files)
    refuse_if(taken, "--captions", f"{captions} is one of the files of -o {output}")


def _open_boxes(boxes: Regions, device: str) -> OpenBoxes | None:
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
    net: Backbone, features: Features, boxes: Regions, found: OpenBoxes | None, size: int
) -> tuple[Featurizer, dict[str, Any], type[FeatureOutput], Work | None]:
    """Return what turns images into rows, its preprocessing, what writes rows, and extra work."""
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
        featurizer = Featurizer(net.model, seen, features.pooling, features.dtype, size)
        return featurizer, describe(seen), extract.FeatureOutput, None
    featurizer = region_featurizer(net.model, seen, features.dtype, size, boxes.cut)
    work = region_work(found.source)
    return featurizer, describe(seen), RegionOutput, work


def _summary(output: str, out: Any, left_out: Any, device: Any, quiet: bool) -> None:
    """Print what was written and what was left out."""
    from vgtools.images.sources import counted

    shape = " x ".join(f"{n:,}" for n in (out.rows, *out.row_shape))
    note("extract-image-feats", f"{output}: {shape} {out.featurizer.dtype} on {device}", quiet)
    if out.errors:
        unusable = amount(out.errors, *out.things)
        why = f"{Path(output).with_suffix('.errors.jsonl')} says why"
        note("extract-image-feats", f"{unusable} could not be used; {why}", quiet)
    if left_out:
        suffixes = f"left out, not images by suffix: {counted(left_out)}"
        note("extract-image-feats", suffixes, quiet)
