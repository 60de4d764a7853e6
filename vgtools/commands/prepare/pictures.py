"""`vg prepare vcr`, `openmoji`, `regions`: pictures without captions, and the objects in them."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Literal

from vgtools.commands.options import (
    Argument,
    ArrayFile,
    Count,
    Errors,
    File,
    Flag,
    Limit,
    Quiet,
    Restart,
    Target,
    Value,
    refuse_if,
)
from vgtools.commands.prepare.photos import ImagesOut, PhotoFlags, RowOutputs
from vgtools.commands.signature import flags
from vgtools.datasets import annotations as annotations_module
from vgtools.datasets.rows import Folder, save
from vgtools.io.errors import Tally, amount
from vgtools.io.process import note


@flags
def vcr(
    folder: Annotated[str, Argument("DIR")],
    annotations: Annotated[list[str], Argument("FILE")],
    target: Target,
    errors: Errors,
    images_out: ImagesOut = None,
    quiet: Quiet = False,
) -> None:
    r"""Write the boxes of VCR's pictures.

    Rows are {"image", "width", "height", "boxes", "confidence", "labels"}, one per picture that the
    questions are about, its boxes in the order in which they number objects. vg extract-image-feats
    --regions takes them; the grid of one scale after them is the whole picture, which the paper's
    model also sees.

    Examples:

        vg prepare vcr vcr1images vcr1annots/train.jsonl vcr1annots/val.jsonl \
            --images-out images.jsonl -o boxes.jsonl

        vg extract-image-feats images.jsonl --regions boxes.jsonl --regions grid --grid-scales 1 \
            -o vcr.npy

    Args:
        folder: vcr1images, with the pictures and their metadata
        annotations: train.jsonl, val.jsonl, test.jsonl
    """
    tally = errors.tally()
    rows = annotations_module.vcr(annotations, folder, tally)
    config = {"command": "vcr", "folder": Folder(folder).digest()}
    images = folder if images_out else None
    output = RowOutputs(images=images, images_out=images_out, **asdict(target), **asdict(errors))
    output.write(rows, "rows", tally, annotations, config)


@flags
def openmoji(
    folder: Annotated[str, Argument("DIR")],
    target: Target,
    size: Annotated[int, Count(max=4096)] = 224,
    carriers: Annotated[int, Count(least=0, max=8)] = 2,
    limit: Limit = None,
    images_out: ImagesOut = None,
    quiet: Quiet = False,
) -> None:
    """Draw a bank of emoji and write their names.

    The pictures are OpenMoji's, names and aliases Unicode's, both of installed packages: a bank of
    1,600 images that needs no download. Flags and skin tones are left out. --carriers puts each
    name into sentences such as "a photo of a cat" as well: names alone overfit. Rows are {"image",
    "text", "name"}; the image list has the SVG under "svg".

    Examples:

        vg prepare openmoji emoji --images-out images.jsonl -o captions.jsonl

        vg prepare openmoji emoji --carriers 0 | jq -r .text | sort | head

    Args:
        folder: Folder for the PNG files; created if missing.
        size: Pixels per side.
        carriers: Sentences around each name.
    """
    from vgtools.datasets import openmoji as emoji

    PhotoFlags(images=folder, images_out=images_out).check(target.output, [])
    tally = Tally()
    config = {"command": "openmoji", "release": emoji.release(), "limit": limit}
    rows = list(emoji.openmoji(tally, limit))
    drawn = list(emoji.rasterise(rows, folder, size, os.cpu_count() or 1))
    captions = emoji.openmoji_captions(rows, carriers)
    named = config | {"carriers": carriers}
    save(captions, target.output, tally, "captions", named, [], target.restart)
    if images_out:
        made = config | {"size": size, "folder": os.path.abspath(folder)}
        credit = emoji.CREDIT
        save(drawn, images_out, tally, "images", made, [], target.restart, credit=credit)


@flags
def regions(
    source: Annotated[str, Argument("SOURCE")],
    errors: Errors,
    boxes: Annotated[str | None, Argument("BOXES")] = None,
    backbone: Annotated[str, Value("NAME")] = "bottom-up-attention",
    labels: Annotated[str | None, File()] = None,
    suffix: Annotated[str, Value("TEXT")] = "",
    dtype: Annotated[Literal["float32", "float16"], Flag()] = "float32",
    output: ArrayFile = "regions.npy",
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Convert region features that others computed.

    A TSV has the columns of LXMERT (with confidences, and labels by --labels) or of bottom-up
    attention, its features in base64 of float32. A .npy is (images, regions, D) or (all regions,
    D); its jsonl has {"image", "width", "height", "boxes", "confidence"?, "label"?} in the same
    order. Without confidences boxes get a placeholder computed from their size and place.

    Examples:

        vg prepare regions train2014_obj36.tsv --suffix .jpg --dtype float16 -o regions.npy

        vg prepare regions features.npy boxes.jsonl --backbone detectron-nlvr2 -o regions.npy

    Args:
        source: X_obj36.tsv of LXMERT, a TSV of bottom-up attention, or features .npy.
        boxes: With .npy: the jsonl of their boxes, one image per line.
        backbone: The network that computed them; regions of other names do not mix with these.
        labels: Names of the objects, one per line.
        suffix: Added to each image id of a TSV, for example .jpg.
        dtype: float16 takes half the space.
    """
    refuse_if(not output.endswith(".npy"), "--output", f"must end in .npy, got {output!r}")
    unpaired = source.endswith(".npy") != (boxes is not None)
    refuse_if(unpaired, "BOXES", "is required with features .npy, and only then")
    from vgtools.datasets import region_files
    from vgtools.images.regions import write_regions
    from vgtools.io.files import sha256_file
    from vgtools.io.inputs import Inputs
    from vgtools.io.names import refuse_stream
    from vgtools.io.streams import read_lines

    paths = [path for path in (source, boxes, labels) if path]
    for path in paths:
        refuse_stream(path)
    inputs = Inputs(paths)
    tally = errors.tally()
    if boxes:
        rows = region_files.read_arrays(source, boxes, tally)
    else:
        names = list(read_lines(labels)) if labels else None
        rows = region_files.read_tsv(source, tally, names, suffix)
    config = {
        "command": "regions",
        "backbone": backbone,
        "suffix": suffix,
        "dtype": dtype,
        "on_error": errors.on_error,
    }
    if labels:
        config["labels"] = sha256_file(labels)
    width = region_files.width_of(source)
    count = write_regions(
        output,
        rows,
        config,
        width,
        dtype=dtype,
        inputs=inputs,
        restart=restart,
        errors=tally.errors,
        backbone=region_files.named_backbone(backbone),
    )
    left_out = f"; left out: {len(tally.errors):,}" if tally.errors else ""
    held = f"regions of {amount(count, 'image')}, {amount(width, 'number')} each"
    note("prepare", f"{held}, in {output}{left_out}")
