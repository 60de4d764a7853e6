"""`vg prepare visual-genome`, `conceptual-captions`, `sbu`: pictures that have a URL."""

from __future__ import annotations

import os
from typing import Annotated

from vgtools.commands.options import (
    Argument,
    AsSplit,
    Errors,
    File,
    Flag,
    Limit,
    Quiet,
    Target,
    refuse_if,
)
from vgtools.commands.prepare.photos import RowOutputs
from vgtools.commands.signature import flags
from vgtools.datasets import annotations as annotations_module
from vgtools.datasets import captions as captions_module
from vgtools.datasets.annotations import visual_genome_regions
from vgtools.datasets.rows import Row, in_split, listing, save, with_photos
from vgtools.io.inputs import Inputs


@flags
def visual_genome(
    image_data: Annotated[str, Argument("FILE")],
    output: RowOutputs,
    regions: Annotated[str | None, File()] = None,
    keep_coco: Annotated[bool, Flag("--keep-coco")] = False,
    limit: Limit = None,
    quiet: Quiet = False,
) -> None:
    """Write images outside COCO, region captions.

    The image list without COCO is the paper's bank of vokens. Ids are vg_nococo/ID. --limit 50000
    takes the paper's vokens. Without --regions only --images-out is written.

    Examples:

        vg prepare visual-genome image_data.json --limit 50000 --images . --images-out vokens.jsonl

        vg prepare visual-genome image_data.json --regions region_descriptions.json -o c.jsonl

    Args:
        image_data: image_data.json
        regions: region_descriptions.json: captions.
        keep_coco: Keep the images of COCO too.
    """
    nothing = "nothing to write: give --regions FILE, --images-out FILE, or both"
    refuse_if(not regions and not output.images_out, "--images-out", nothing)
    inputs = [image_data, regions] if regions else [image_data]
    output.check(output.output if regions else "", inputs, urls=True)
    listed, read = Inputs([image_data]), Inputs(inputs)
    tally = output.tally()
    folder = output.open()
    images: dict[str, Row] = {}
    config = {
        "command": "visual-genome",
        "keep_coco": keep_coco,
        "limit": limit,
        "on_error": output.on_error,
        "photos": folder.digest() if folder else None,
        "photos_at": os.path.abspath(folder.path) if folder else None,
    }
    rows = annotations_module.visual_genome(image_data, tally, keep_coco, limit)
    if folder:
        rows = with_photos(rows, folder, tally)
    for _ in listing(rows, images, folder):
        pass  # all images must be known before the first region
    if output.images_out:
        made = images.values()
        save(made, output.images_out, tally, "images", config, listed, output.restart)
    if regions:
        kept = {int(image.rpartition("/")[2]): {"image": image} for image in images}
        tally = output.tally()
        rows = visual_genome_regions(regions, kept, tally)
        save(rows, output.output, tally, "captions", config, read, output.restart)


@flags
def visual_genome_boxes(
    image_data: Annotated[str, Argument("IMAGES")],
    regions: Annotated[str, Argument("REGIONS")],
    target: Target,
    errors: Errors,
    coco: Annotated[str | None, File()] = None,
    quiet: Quiet = False,
) -> None:
    r"""Write phrases of regions with boxes.

    Rows are {"image", "text", "width", "height", "boxes"}, one per region. Images are vg/ID; with
    --coco only those that MS COCO has as well, under its names: the features of its photos fit.

    Examples:

        vg prepare visual-genome-boxes image_data.json region_descriptions.json \
            --coco instances_val2014.json -o phrases.jsonl

        vg locate phrases.jsonl --matcher retriever --feats grid.npy --score

    Args:
        image_data: image_data.json
        regions: region_descriptions.json
        coco: Only images of this instances_*.json of MS COCO, under its file names.
    """
    tally = errors.tally()
    rows = annotations_module.visual_genome_boxes(image_data, regions, coco, tally)
    inputs = [path for path in (image_data, regions, coco) if path is not None]
    config = {"command": "visual-genome-boxes", "on_error": errors.on_error}
    save(rows, target.output, tally, "captions", config, inputs, target.restart)


@flags
def conceptual_captions(
    table: Annotated[str, Argument("TSV")],
    output: RowOutputs,
    as_split: AsSplit = None,
    quiet: Quiet = False,
) -> None:
    r"""Write captions and URLs of web images.

    The image is cc/LINE, or cc/SPLIT/LINE with --as-split. With --images its photo is LINE.jpg (or
    .png …, or without a suffix) in that folder.

    Examples:

        vg prepare conceptual-captions Train_GCC-training.tsv --as-split train \
            -o captions.jsonl --images-out images.jsonl

        head -1000 Validation_GCC-1.1.0-Validation.tsv \
            | vg prepare conceptual-captions - | jq -r .url

    Args:
        table: Train_GCC-training.tsv or the like
    """
    tally = output.tally()
    rows = captions_module.conceptual_captions(table, tally, f"cc/{as_split}" if as_split else "cc")
    rows = in_split(rows, as_split)
    config = {"command": "conceptual-captions", "as_split": as_split}
    output.write(rows, "captions", tally, [table], config, urls=True)


@flags
def sbu(
    urls: Annotated[str, Argument("URLS")],
    output: RowOutputs,
    captions: Annotated[str | None, Argument("CAPTIONS")] = None,
    quiet: Quiet = False,
) -> None:
    r"""Write captions and URLs of Flickr photos.

    The image is sbu/NAME, with the file name in its URL.

    Examples:

        vg prepare sbu SBU_captioned_photo_dataset_urls.txt \
            SBU_captioned_photo_dataset_captions.txt -o captions.jsonl

        vg prepare sbu sbu-captions-all.json --images photos --on-error skip \
            --images-out images.jsonl -o captions.jsonl

    Args:
        urls: SBU_captioned_photo_dataset_urls.txt, or sbu-captions-all.json
        captions: SBU_captioned_photo_dataset_captions.txt
    """
    tally = output.tally()
    rows = captions_module.sbu(urls, captions, tally)
    inputs = [urls, captions] if captions else [urls]
    config = {"command": "sbu"}
    output.write(rows, "captions", tally, inputs, config, urls=True)
