"""`vg extract-image-feats`: images to features of a frozen backbone."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vgtools.commands.extract_image_feats.extraction import BoxFlags, FeatureFlags, open_extraction
from vgtools.commands.options import (
    Argument,
    Errors,
    File,
    Limit,
    Runtime,
    ShardTarget,
    help_at_terminal,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import FIRST, Topic, page
from vgtools.io.errors import amount
from vgtools.io.inputs import Inputs
from vgtools.io.process import note
from vgtools.io.remote import all_of, file_size
from vgtools.io.settings import value
from vgtools.io.streams import Piece

if TYPE_CHECKING:
    from vgtools.batch.plan import PlannedInput
    from vgtools.images.extract import Extraction
    from vgtools.images.sources import Images

_CPU_SHARD = 64 << 20  # bytes of images that take some minutes
_GPU_SHARD = 4 << 30


@dataclass(frozen=True, kw_only=True)
class FeatureFile(ShardTarget):
    """Where features are written.

    Attributes:
        output: File to write, or a folder of shards, X.npy/; the same command resumes it.
    """

    output: str = value("feats.npy", metavar="X.npy", topic=FIRST)


SHARDS = Topic("shards", page("extract-image-feats.shards"))
REGIONS = Topic("regions", page("extract-image-feats.regions"))


@flags
def extract_image_feats(
    context: typer.Context,
    features: FeatureFlags,
    boxes: Annotated[BoxFlags, REGIONS],
    errors: Errors,
    runtime: Runtime,
    target: Annotated[FeatureFile, SHARDS],
    source: Annotated[list[str] | None, Argument("SOURCE")] = None,
    captions: Annotated[str | None, File()] = None,
    limit: Limit = None,
) -> None:
    """Write one feature row for each image: X.npy, its ids in X.ids, its manifest X.json.

    Images keep the order of the source (a directory: by path, numbers by value). Pixels have
    one meaning: EXIF orientation applied, 16 bits scaled, transparency on white, first frame of an
    animation. The backbone's own preprocessing is used and recorded. Images that cannot be read
    stop the command, or go to X.errors.jsonl with --on-error skip; other and hidden files are
    counted. An image is known by name, size and time.

    A CLIP, MetaCLIP, SigLIP, AltCLIP or ChineseCLIP as backbone writes its own embeddings of the
    images, as transformers computes them; with --pooling none it writes an embedding for each
    patch.

    --pooling none keeps the last feature map, (N, P, D), which vg train-matcher visual-awareness
    reads; with --picture of the whole picture, without it of the backbone's centre crop.

    Several sources are one. -o X.npy/ is a folder of shards: see --help shards.
    With --regions or --detector there is one row for each box: see --help regions.

    --captions reads KEY.txt, or "caption" of KEY.json or of the Parquet file next to a tar or with
    the images.

    Examples:

        vg extract-image-feats photos/ -o feats.npy

        vg extract-image-feats cc3m/ -o f.npy --captions c.jsonl

        vg extract-image-feats images.tar -b resnext101_32x8d.fb_wsl_ig1b_ft_in1k -o feats.npy

        vg extract-image-feats photos/ -b openai/clip-vit-base-patch32 -o own.npy

        find photos -name '*.jpg' | vg extract-image-feats - --on-error skip -o feats.npy

        vg extract-image-feats photos/ --pooling none --picture 400 --dtype float16 -o grid.npy

    Args:
        source: Directory of images or tars, tar, '{00000..00099}.tar', table (Parquet, Arrow),
            image jsonl, list of paths, or - for a list on stdin.
        captions: Also write captions jsonl.
    """
    places = all_of(source)
    output = target.output
    help_at_terminal(context, *places)
    from vgtools.batch import run
    from vgtools.images import extract, sources
    from vgtools.io.names import manifest_of
    from vgtools.models.references import device_type

    places = [one for place in places for one in sources.expand_folder(place)]
    _check(features, boxes, places, output.rstrip("/"), captions)
    run.check_target(
        places,
        target,
        forms=[".npy"],
        limit=limit is not None,
        captions=captions is not None,
    )
    named = [*places, *(boxes.regions or []), boxes.detector]
    read = [name for name in named if name not in ("-", "grid", None)]
    # The inputs of shards may be larger than one can hash.
    inputs: Inputs | list[str] = read
    images = sources.Images(places, limit)  # first: a bad source is reported at once
    whole = None
    if output.endswith("/") or target.dry_run:
        images.check_unique()
    else:
        whole = images.open([Piece(place) for place in places])
        inputs = Inputs(read)
        inputs.facts["listing"] = whole.listing
    device = device_type(runtime.device)
    here = runtime
    if target.ray:
        # The driver needs only the settings; its GPU, if it has one, is a worker's.
        here = replace(runtime, device="cpu")
        size = features.batch_size or (8 if device == "cpu" else 64)
        features = replace(features, batch_size=size)
    task = open_extraction(features, boxes, errors, here, limit, images, whole)
    counts = run.write(
        task,
        places,
        target,
        name="extract-image-feats",
        unit="images",
        inputs=inputs,
        default_size=_CPU_SHARD if device == "cpu" else _GPU_SHARD,
        cut=partial(_cut, images),
        total=None if whole is None else whole.total,
        make=partial(_again, features, boxes, errors, runtime, places),
        gpu=device == "cuda",
    )
    if target.dry_run:
        return
    if file_size(manifest_of(output.rstrip("/"))) is not None:
        extract.check_errors(output, **asdict(errors))
    if captions is not None:
        _write_captions(captions, places, output, errors)
    if counts is not None:
        _summary(output, task, counts)


def _again(
    features: FeatureFlags, boxes: BoxFlags, errors: Errors, runtime: Runtime, places: list[str]
) -> Extraction:
    """Return the task that makes rows of images, in a worker with as many cores as threads."""
    from vgtools.images.sources import Images

    threads = features.workers or int(os.environ.get("OMP_NUM_THREADS", "0"))
    features = replace(features, workers=threads)
    return open_extraction(features, boxes, errors, runtime, None, Images(places, None), None)


def _cut(images: Images, path: str) -> PlannedInput:
    """Return the input that shards are cut from: a tar is one, everything else is cut by images."""
    from vgtools.batch.plan import PlannedInput, text_source
    from vgtools.images.sources import named_by

    size = images.size(path)
    if size is None:
        found = text_source(path)
        return found._replace(unit="whole", units=1, named=named_by(path) or "")
    count, total, digest = size
    return PlannedInput(path, total, digest, "image", count)


def _check(
    features: FeatureFlags, boxes: BoxFlags, places: list[str], output: str, captions: str | None
) -> None:
    """Refuse flags that contradict one another."""
    refuse_if(not output.endswith(".npy"), "--output", f"must end in .npy, got {output!r}")
    pooled = bool(boxes.regions or boxes.detector)
    by_mean = features.pooling in (None, "mean")
    refuse_if(pooled and not by_mean, "--pooling", "regions are pooled by the mean")
    chosen = boxes.max_regions is not None or boxes.min_confidence or boxes.cut
    hint = "--max-regions/--min-confidence/--cut"
    refuse_if(chosen and not pooled, hint, "belongs to --regions or --detector")
    unseen = boxes.picture and not pooled and features.pooling != "none"
    refuse_if(unseen, "--picture", "belongs to --regions, --detector or --pooling none")
    if captions is None:
        return
    from vgtools.images.captions import may_have_captions
    from vgtools.io.names import is_stream

    unfit = pooled or not all(map(may_have_captions, places))
    refuse_if(
        unfit,
        "--captions",
        "needs folders, tars or tables of images, and no regions",
    )
    # In a pipeline it is -; X.jsonl may have the name of -o X.npy, whose other files end otherwise.
    fits = captions.endswith(".jsonl") or is_stream(captions)
    refuse_if(not fits, "--captions", f"must end in .jsonl, got {captions!r}")
    listed = Path(output).with_suffix(".errors.jsonl")
    taken = os.path.realpath(captions) == os.path.realpath(listed)
    refuse_if(taken, "--captions", f"{captions} is one of the files of -o {output}")


def _write_captions(file: str, places: list[str], output: str, errors: Errors) -> None:
    from vgtools.images.captions import captions
    from vgtools.io.artifact import read_ids
    from vgtools.io.errors import plain
    from vgtools.io.files import dumps
    from vgtools.io.own import atomic_write

    ids = dict.fromkeys(read_ids(Path(output).with_suffix(".ids")))
    tally = errors.tally()
    rows = [*captions(places, ids, tally)]
    atomic_write(file, b"".join(map(dumps, rows)))
    shown = len({row["image"] for row in rows})
    images = f"{shown:,} of {amount(len(ids), 'image')}"
    said = f"{amount(len(rows), 'caption')} of {images} in {file}"
    if not rows:
        said += "; a caption of KEY.jpg is KEY.txt or KEY.json, in a tar next to it"
    if replaced := tally.text.replaced:
        said += f"; {amount(replaced, 'line')} had bytes that are not UTF-8, replaced"
    if tally.errors:
        bad = amount(len(tally.errors), "sample")
        said += f"; left out: {bad} that cannot be read, first {plain(tally.errors[0])}"
    note("extract-image-feats", said)


def _summary(output: str, task: Extraction, counts: Mapping[str, int]) -> None:
    """Print the numbers of images that were written and left out."""
    from vgtools.images.sources import HIDDEN, counted

    row = task.writer.row_shape(task.featurizer)
    shape = " x ".join(f"{n:,}" for n in (counts["rows"], *row))
    made = f"{task.featurizer.dtype} on {task.config['device']}"
    note("extract-image-feats", f"{output}: {shape} {made}")
    if counts["errors"]:
        unusable = amount(counts["errors"], *task.writer.things)
        file = f"{output}*" if output.endswith("/") else Path(output).with_suffix("")
        why = f"{file}.errors.jsonl gives reasons"
        note("extract-image-feats", f"{unusable} could not be used; {why}")
    left_out = {} if task.whole is None else dict(task.whole.left_out)
    if hidden := left_out.pop(HIDDEN, 0):
        note("extract-image-feats", f"left out: {amount(hidden, 'hidden file')}")
    if left_out:
        note("extract-image-feats", f"left out, not images by suffix: {counted(left_out)}")
