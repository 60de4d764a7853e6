"""`vg extract-image-feats`: images to features of a frozen backbone."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vgtools.commands.options import Device, Limit, MaxErrors, Offline, OnError, Quiet, Restart, choice
from vgtools.errors import amount

if TYPE_CHECKING:
    from vgtools.boxes import BoxSource

_COMMIT_SECONDS = 1.0  # how often finished rows are made safe: what a kill can cost


def extract_image_feats(
    context: typer.Context,
    source: Annotated[str, typer.Argument(help="Directory, tar, image jsonl, list of paths, or - for a list on stdin.")] = "-",
    output: Annotated[str, typer.Option("--output", "-o", help="X.npy to write; the same command resumes it.")] = "feats.npy",
    backbone: Annotated[
        str,
        typer.Option(
            "--backbone", "-b", metavar="REF", help=("timm name, directory as timm's save_for_hf writes it, or builtin:NAME.")
        ),
    ] = "builtin:efficientnet-lite0",
    pooling: Annotated[str, typer.Option(help="Over the last feature map: mean, max, or none (every position).")] = "mean",
    dtype: Annotated[
        str, typer.Option("--dtype", help="Numbers in the file: float32, or float16 at half the size.")
    ] = "float32",
    compute_dtype: Annotated[str, typer.Option(help="Numbers the backbone computes with: float32, bfloat16.")] = "float32",
    device: Device = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size",
            min=1,
            show_default="8 on a CPU, else 64",
            help=("Images a step, always filled; it moves the last bits of a row, so resume with the same."),
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Threads that decode (and, on a CPU, compute); 0: one a core.")] = 0,
    limit: Limit = None,
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    regions: Annotated[
        list[str] | None,
        typer.Option(
            help="Pool inside boxes: jsonl of a detector or of vg prepare coco/flickr30k-entities, COCO's instances_*.json, "
            "or grid; repeatable."
        ),
    ] = None,
    detector: Annotated[
        str | None,
        typer.Option(metavar="WEIGHTS", help="Pool inside the boxes that this torchvision Faster R-CNN (.safetensors) finds."),
    ] = None,
    grid_scales: Annotated[
        int, typer.Option(min=1, max=9, help="The grid has windows of 1/1 … 1/N of the picture at every half of them.")
    ] = 3,
    max_regions: Annotated[int | None, typer.Option(min=1, help="Keep the so many most confident regions of an image.")] = None,
    min_confidence: Annotated[float, typer.Option(min=0, max=1, help="Leave out regions of less confidence.")] = 0.0,
    cut: Annotated[
        bool,
        typer.Option("--cut", help="Cut each box out and show it to the backbone by itself: dearer, and regions differ more."),
    ] = False,
    picture: Annotated[
        int | None, typer.Option(min=32, help="With regions: pixels a side that the backbone sees [its own].")
    ] = None,
    captions: Annotated[
        str | None,
        typer.Option(metavar="FILE", help=("Also write captions jsonl from the .txt beside each image of a directory.")),
    ] = None,
    offline: Offline = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write one feature row for each image: X.npy, its ids in X.ids, its manifest X.json.

    Images keep the order of the source (a directory: by path, numbers in it by value). Pixels have one meaning: EXIF
    orientation applied, 16 bits scaled, transparency on white, first frame of an animation. The backbone's own
    preprocessing is used and recorded. Images that cannot be read stop the command, or go to X.errors.jsonl with
    --on-error skip; files that are no images are counted.

    With --regions or --detector there is one row for each box: X.npy, and X.regions.jsonl with boxes, confidences and
    labels. The backbone then sees the whole picture, resized without a crop; a row is the mean of its last feature
    map inside the box (RoI-align). With --cut it sees each box by itself, resized to --picture pixels a side, as in
    R-CNN; one forward pass a region, of which --batch-size go together. Boxes of several sources stand behind one
    another. A box without a confidence (an annotation, the grid) gets a placeholder that knows only its size and
    place. Boxes follow the size of the photo where their file says theirs; one that leaves the picture or has no area
    stops the command, or is noted and left out with --on-error skip.

    Examples:

        vg extract-image-feats photos/ -o feats.npy

        vg extract-image-feats images.tar -b resnext101_32x8d.fb_wsl_ig1b_ft_in1k --dtype float16 -o feats.npy

        find photos -name '*.jpg' | vg extract-image-feats - --on-error skip -o feats.npy

        vg extract-image-feats images.jsonl --regions phrases.jsonl --regions grid --picture 448 -o regions.npy

        vg extract-image-feats photos/ --detector fasterrcnn_resnet50_fpn_v2.safetensors --max-regions 36 -o regions.npy
    """
    if source == "-" and sys.stdin is not None and sys.stdin.isatty():
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)
    choice(pooling, ("mean", "max", "none"), "--pooling")
    choice(dtype, ("float32", "float16"), "--dtype")
    choice(compute_dtype, ("float32", "bfloat16"), "--compute-dtype")
    choice(on_error, ("fail", "skip"), "--on-error")
    if not output.endswith(".npy"):
        raise typer.BadParameter(f"{output!r} does not end in .npy, the form of features", param_hint="--output")
    boxed = bool(regions or detector)
    if boxed and pooling != "mean":
        raise typer.BadParameter("regions are pooled by the mean", param_hint="--pooling")
    if not boxed and (max_regions is not None or min_confidence or picture is not None or cut):
        hint = "--max-regions/--min-confidence/--picture/--cut"
        raise typer.BadParameter("belongs to --regions or --detector", param_hint=hint)
    if captions is not None and (boxed or not os.path.isdir(source)):
        raise typer.BadParameter("needs a directory as source, and no regions", param_hint="--captions")
    own = {os.path.realpath(Path(output).with_suffix(end)) for end in (".npy", ".ids", ".json", ".errors.jsonl")}
    if captions is not None and os.path.realpath(captions) in own:
        raise typer.BadParameter(f"{captions} belongs to -o {output} itself", param_hint="--captions")

    from vgtools import images, sources
    from vgtools.checkpoint import load_backbone, pick_device
    from vgtools.io import Progress, read_ids

    opened = sources.open_source(source, limit)  # before the backbone: what is wrong with it should not take seconds to say
    where = pick_device(device)
    boxes = _box_source(regions or [], grid_scales, detector, str(where), max_regions, min_confidence) if boxed else None
    if compute_dtype == "bfloat16" and images.emulates_bfloat16(where) and not quiet:
        print("vg extract-image-feats: this CPU emulates bfloat16; float32 is about ten times faster here", file=sys.stderr)
    size = batch_size or (8 if where.type == "cpu" else 64)
    net = load_backbone(backbone, device=str(where), dtype=compute_dtype, offline=offline)
    open_output: type[images.FeatureOutput] = images.FeatureOutput
    work: images.Work | None = None
    if boxes:
        from vgtools import region_features

        seen = region_features.whole_picture(net.preprocessing, picture)
        featurizer = region_features.region_featurizer(net.model, seen, dtype, size, cut)
        open_output, work = region_features.RegionOutput, region_features.region_work(boxes.source)
    else:
        seen, featurizer = net.preprocessing, images.Featurizer(net.model, net.preprocessing, pooling, dtype, size)
    facts = images.describe(seen)
    config = {
        "command": "extract-image-feats",
        "backbone": net.fingerprint,
        "preprocessing": facts,
        "pooling": pooling,
        "dtype": dtype,
        "compute_dtype": compute_dtype,
        "device": where.type,
        "batch_size": size,
        "limit": limit,
    } | ({"regions": boxes.config, "cut": cut} if boxes else {})
    output_ = open_output(
        output,
        config,
        featurizer,
        opened,
        ([] if source == "-" else [source]) + (boxes.files if boxes else []),
        on_error=on_error,
        max_errors=max_errors,
        commit_seconds=_COMMIT_SECONDS,
        restart=restart,
    )
    with output_ as out, Progress("extract-image-feats", "images", opened.total, quiet) as bar:
        if not out.complete:
            bar.advance(out.items)
            for batch in images.extract(opened, featurizer, items=out.items, digest=out.digest, workers=workers, work=work):
                out.write(batch)
                bar.advance(batch.items - bar.done)
            out.finish(backbone={"ref": net.ref, "fingerprint": net.fingerprint, "preprocessing": facts})
        else:
            _allowed(output, on_error, max_errors)
            if not quiet:
                print(f"vg extract-image-feats: {output} is up to date", file=sys.stderr)
    if captions is not None:
        from vgtools.io import atomic_write, dumps

        rows = sources.folder_captions(source, read_ids(Path(output).with_suffix(".ids")))
        atomic_write(captions, b"".join(dumps(row) for row in rows))
    if not quiet and not output_.complete:
        _summary(output, output_, opened, where)


class _Regions(NamedTuple):
    source: BoxSource
    config: dict[str, Any]  # what decides the boxes
    files: list[str]


def _box_source(regions: list[str], scales: int, detector: str | None, device: str, most: int | None, least: float) -> _Regions:
    """Open where the boxes come from, in the order of the flags, the detector last."""
    from vgtools import boxes
    from vgtools.io import sha256_file

    grid = functools.partial(boxes.grid, scales=scales)
    sources: list[Any] = [grid if name == "grid" else boxes.FileBoxes(name) for name in regions]
    files = [name for name in regions if name != "grid"]
    config: dict[str, Any] = {"sources": [f"grid {scales}" if name == "grid" else sha256_file(name) for name in regions]}
    if detector is not None:
        from vgtools.region_features import Detector

        found = Detector(detector, device)
        sources, files = [*sources, found], [*files, detector]
        config["detector"] = {"name": found.name, "sha256": found.sha256}
    return _Regions(boxes.together(sources, most, least), config | {"most": most, "least": least}, files)


def _allowed(output: str, on_error: str, max_errors: int | None) -> None:
    """Hold a finished output to the error flags of this call: a failure is never counted as done."""
    from vgtools.io import DataError, read_manifest

    errors, most = read_manifest(output, verify=False).get("errors", 0), 0 if on_error == "fail" else max_errors
    if most is not None and errors > most:
        flag = "--on-error fail" if on_error == "fail" else f"--max-errors {max_errors}"
        raise DataError(
            f"is finished, but {amount(errors, 'image')} could not be used (see {Path(output).with_suffix('.errors.jsonl')}), "
            f"more than {flag} allows; mend them, or allow them with --on-error skip",
            output,
        )


def _summary(output: str, out: Any, source: Any, device: Any) -> None:
    """Say what came of it, on stderr."""
    from vgtools.sources import counted

    shape = " x ".join(f"{n:,}" for n in (out.rows, *out.row_shape))
    print(f"vg extract-image-feats: {output}: {shape} {out.featurizer.dtype} on {device}", file=sys.stderr)
    if out.errors:
        errors = Path(output).with_suffix(".errors.jsonl")
        unusable = amount(out.errors, *out.things)
        print(f"vg extract-image-feats: {unusable} could not be used; {errors} says why", file=sys.stderr)
    if source.left_out:
        print(f"vg extract-image-feats: left out, no images by suffix: {counted(source.left_out)}", file=sys.stderr)
