"""`vg prepare`: official data sets and texts → the toolkit's files."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from vgtools.commands.options import Limit, MaxErrors, OnError, OutputFile, Quiet, Restart, choice
from vgtools.errors import amount
from vgtools.io import final_path, is_stream, manifest_path
from vgtools.prepare import (
    Folder,
    Row,
    Tally,
    coco,
    conceptual_captions,
    flickr8k,
    flickr30k_entities,
    listing,
    read_splits,
    save,
    sbu,
    vcr,
    visual_genome,
    visual_genome_regions,
    with_photos,
    with_split,
)

_HELP = """Official data sets and texts → the toolkit's files.

Captions go to stdout or -o; --images-out is the image list for extract-image-feats. Counts go to stderr."""
prepare = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)

Images = Annotated[str | None, typer.Option("--images", metavar="DIR", help="Folder of the photos; boxes are scaled to them.")]
ImagesOut = Annotated[str | None, typer.Option("--images-out", metavar="FILE", help="Write the image list there.")]
Splits = Annotated[str | None, typer.Option("--splits", metavar="DIR", help="Folder of the official split lists.")]
Split = Annotated[str | None, typer.Option("--split", help="Keep only this split of the lists.")]
AsSplit = Annotated[str | None, typer.Option("--as-split", help="Write this as the split of every row.")]
DropEmpty = Annotated[bool, typer.Option("--drop-empty", help="Drop empty lines.")]


def _tally(on_error: str, max_errors: int | None) -> Tally:
    return Tally(choice(on_error, ("fail", "skip"), "--on-error") == "skip", max_errors)


def _write(
    rows: Iterable[Row],
    what: str,
    tally: Tally,
    output: str,
    images: str | None,
    images_out: str | None,
    inputs: list[str],
    config: dict[str, Any],
    restart: bool,
    quiet: bool,
    urls: bool = False,
) -> None:
    """Write the rows, then the list of their images."""
    _check_images(images, images_out, output, urls, inputs)
    photos, found = Folder(images) if images else None, dict[str, Row]()
    config |= {"photos": photos.digest() if photos else None, "on_error": "skip" if tally.skip else "fail"}
    rows = listing(with_photos(rows, photos, tally) if photos else rows, found, photos)
    save(rows, output, tally, what, config, inputs, restart, quiet)
    if images_out:
        unused = photos.unused() if photos else 0
        rest = Tally(left_out=Counter({f"picture of {images} in no row": unused} if unused else {}))
        save(found.values(), images_out, rest, "images", config, inputs, restart, quiet)


def _check_images(images: str | None, images_out: str | None, output: str, urls: bool, inputs: list[str]) -> None:
    """Refuse a place for the image list before the captions are written."""
    if images_out and not images and not urls:
        raise typer.BadParameter("needs --images DIR, the folder of the photos", param_hint="--images-out")
    if images_out and manifest_path(os.path.realpath(images_out)) == manifest_path(os.path.realpath(output)):
        raise typer.BadParameter(f"must differ from -o {output} before the suffix", param_hint="--images-out")
    if images_out and not is_stream(images_out):
        final_path(images_out, inputs)


@prepare.command("flickr8k")
def _flickr8k(
    tokens: Annotated[str, typer.Argument(help="Flickr8k.token.txt")],
    splits: Splits = None,
    split: Split = None,
    images: Images = None,
    images_out: ImagesOut = None,
    output: OutputFile = "-",
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write the captions of Flickr8k.

    Flickr30k's results_20130124.token has the same form. Rows are {"image", "text", "split"}; a photo of no list has
    no split. Captions are kept as they are.

    Examples:

        vg prepare flickr8k Flickr8k.token.txt --splits . --images Flicker8k_Dataset --images-out images.jsonl -o captions.jsonl

        vg prepare flickr8k Flickr8k.token.txt --splits . --split dev | head -3
    """
    tally, lists = _tally(on_error, max_errors), read_splits(splits) if splits else {}
    rows = with_split(flickr8k(tokens, tally), lists, split, tally)
    _write(
        rows,
        "captions",
        tally,
        output,
        images,
        images_out,
        [tokens],
        {"command": "flickr8k", "lists": _hash(lists), "split": split},
        restart,
        quiet,
    )


@prepare.command("flickr30k-entities")
def _flickr30k_entities(
    folder: Annotated[str, typer.Argument(help="Folder with Annotations/ and Sentences/.")],
    splits: Splits = None,
    split: Split = None,
    images: Images = None,
    images_out: ImagesOut = None,
    output: OutputFile = "-",
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write captions with phrase spans and boxes.

    Rows are {"image", "text", "width", "height", "phrases", "split"}, a phrase {"start", "end", "type", "id",
    "boxes"}: its characters in the text and its chain. Phrases of notvisual, scene and nobox chains have no boxes.

    Examples:

        vg prepare flickr30k-entities . --splits . --images flickr30k-images --images-out images.jsonl -o phrases.jsonl

        vg prepare flickr30k-entities . | jq -c '.phrases[] | select(.type == "animals")'
    """
    tally, lists = _tally(on_error, max_errors), read_splits(splits) if splits else {}
    rows = with_split(flickr30k_entities(folder, tally), lists, split, tally)
    parts = [Folder(Path(folder, name)).digest() for name in ("Annotations", "Sentences")]
    _write(
        rows,
        "phrase captions",
        tally,
        output,
        images,
        images_out,
        [],
        {"command": "flickr30k-entities", "folder": parts, "lists": _hash(lists), "split": split},
        restart,
        quiet,
    )


@prepare.command("coco")
def _coco(
    annotations: Annotated[str, typer.Argument(help="captions_*.json or instances_*.json")],
    as_split: AsSplit = None,
    drop_crowd: Annotated[bool, typer.Option("--drop-crowd", help="Drop boxes around crowds.")] = False,
    images: Images = None,
    images_out: ImagesOut = None,
    output: OutputFile = "-",
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write captions or instance boxes of COCO.

    The file says which. Rows are {"image", "text"}, or one an image: {"image", "width", "height", "boxes",
    "labels", "crowd"}, boxes x1, y1, x2, y2 in pixels.

    Examples:

        vg prepare coco captions_train2017.json --as-split train --images train2017 --images-out images.jsonl -o captions.jsonl

        vg prepare coco instances_val2017.json | jq -r '.labels[]' | sort | uniq -c | sort -rn | head
    """
    tally = _tally(on_error, max_errors)
    _write(
        _named(coco(annotations, tally, drop_crowd), as_split),
        "rows",
        tally,
        output,
        images,
        images_out,
        [annotations],
        {"command": "coco", "as_split": as_split, "drop_crowd": drop_crowd},
        restart,
        quiet,
    )


@prepare.command("vcr")
def _vcr(
    folder: Annotated[str, typer.Argument(help="vcr1images, with the pictures and their metadata")],
    annotations: Annotated[list[str], typer.Argument(help="train.jsonl, val.jsonl, test.jsonl")],
    images_out: ImagesOut = None,
    output: OutputFile = "-",
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write the boxes of VCR's pictures.

    Rows are {"image", "width", "height", "boxes", "confidence", "labels"}, one a picture that the questions are about,
    its boxes in the order in which they number objects. vg extract-image-feats --regions takes them; the grid of one
    scale behind them is the whole picture, which the paper's model sees, too.

    Examples:

        vg prepare vcr vcr1images vcr1annots/train.jsonl vcr1annots/val.jsonl --images-out images.jsonl -o boxes.jsonl

        vg extract-image-feats images.jsonl --regions boxes.jsonl --regions grid --grid-scales 1 -o vcr.npy
    """
    tally = _tally(on_error, max_errors)
    _write(
        vcr(annotations, folder, tally),
        "rows",
        tally,
        output,
        folder if images_out else None,
        images_out,
        annotations,
        {"command": "vcr", "folder": Folder(folder).digest()},
        restart,
        quiet,
    )


@prepare.command("visual-genome")
def _visual_genome(
    image_data: Annotated[str, typer.Argument(help="image_data.json")],
    regions: Annotated[str | None, typer.Option("--regions", help="region_descriptions.json: captions.")] = None,
    keep_coco: Annotated[bool, typer.Option("--keep-coco", help="Keep the images of COCO too.")] = False,
    limit: Limit = None,
    images: Images = None,
    images_out: ImagesOut = None,
    output: OutputFile = "-",
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write images outside COCO, region captions.

    The image list without COCO is the paper's bank of vokens. Ids are vg_nococo/ID. --limit 50000 takes the paper's
    vokens. Without --regions only --images-out is written.

    Examples:

        vg prepare visual-genome image_data.json --limit 50000 --images . --images-out vokens.jsonl

        vg prepare visual-genome image_data.json --regions region_descriptions.json -o captions.jsonl
    """
    if not regions and not images_out:
        raise typer.BadParameter("nothing to write: give --regions FILE, --images-out FILE, or both", param_hint="--images-out")
    _check_images(
        images, images_out, output if regions else "", urls=True, inputs=[image_data, *([regions] if regions else [])]
    )
    tally, photos, found = _tally(on_error, max_errors), Folder(images) if images else None, dict[str, Row]()
    config = {
        "command": "visual-genome",
        "keep_coco": keep_coco,
        "limit": limit,
        "on_error": on_error,
        "photos": photos.digest() if photos else None,
    }
    rows = visual_genome(image_data, tally, keep_coco, limit)
    for _ in listing(with_photos(rows, photos, tally) if photos else rows, found, photos):
        pass  # all images must be known before the first region
    if images_out:
        save(found.values(), images_out, tally, "images", config, [image_data], restart, quiet)
    if regions:
        kept, tally = {int(image.rpartition("/")[2]): {"image": image} for image in found}, _tally(on_error, max_errors)
        rows = visual_genome_regions(regions, kept, tally)
        save(rows, output, tally, "captions", config, [image_data, regions], restart, quiet)


@prepare.command("conceptual-captions")
def _conceptual_captions(
    table: Annotated[str, typer.Argument(help="Train_GCC-training.tsv or the like")],
    as_split: AsSplit = None,
    images: Images = None,
    images_out: ImagesOut = None,
    output: OutputFile = "-",
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write captions and URLs of web images.

    The image is cc/LINE, or cc/SPLIT/LINE with --as-split. With --images its photo is LINE.jpg (or .png …) in that
    folder.

    Examples:

        vg prepare conceptual-captions Train_GCC-training.tsv --as-split train -o captions.jsonl --images-out images.jsonl

        head -1000 Validation_GCC-1.1.0-Validation.tsv | vg prepare conceptual-captions - | jq -r .url
    """
    tally = _tally(on_error, max_errors)
    rows = _named(conceptual_captions(table, tally, f"cc/{as_split}" if as_split else "cc"), as_split)
    _write(
        rows,
        "captions",
        tally,
        output,
        images,
        images_out,
        [table],
        {"command": "conceptual-captions", "as_split": as_split},
        restart,
        quiet,
        urls=True,
    )


@prepare.command("sbu")
def _sbu(
    urls: Annotated[str, typer.Argument(help="SBU_captioned_photo_dataset_urls.txt, or sbu-captions-all.json")],
    captions: Annotated[str | None, typer.Argument(help="SBU_captioned_photo_dataset_captions.txt")] = None,
    images: Images = None,
    images_out: ImagesOut = None,
    output: OutputFile = "-",
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write captions and URLs of Flickr photos.

    The image is sbu/NAME, with the file name in its URL.

    Examples:

        vg prepare sbu SBU_captioned_photo_dataset_urls.txt SBU_captioned_photo_dataset_captions.txt -o captions.jsonl

        vg prepare sbu sbu-captions-all.json --images photos --on-error skip --images-out images.jsonl -o captions.jsonl
    """
    tally = _tally(on_error, max_errors)
    _write(
        sbu(urls, captions, tally),
        "captions",
        tally,
        output,
        images,
        images_out,
        [x for x in (urls, captions) if x],
        {"command": "sbu"},
        restart,
        quiet,
        urls=True,
    )


@prepare.command("openmoji")
def _openmoji(
    folder: Annotated[str, typer.Argument(help="Folder for the PNG files; made if it is not there.")],
    size: Annotated[int, typer.Option("--size", min=1, max=4096, help="Pixels of a side.")] = 224,
    carriers: Annotated[int, typer.Option("--carriers", min=0, max=8, help="Sentences around each name.")] = 2,
    limit: Limit = None,
    images_out: ImagesOut = None,
    output: OutputFile = "-",
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Draw a bank of emoji and write their names.

    The pictures are OpenMoji's, names and aliases Unicode's, both of installed packages: a bank of 1,600 images
    that needs no download. Flags and skin tones are left out. --carriers puts each name into sentences such as "a
    photo of a cat" as well: names alone overfit. The image list has the SVG under "svg".

    Examples:

        vg prepare openmoji emoji --images-out images.jsonl -o captions.jsonl

        vg prepare openmoji emoji --carriers 0 | jq -r .text | sort | head
    """
    from vgtools.openmoji import openmoji, openmoji_captions, rasterise, release

    _check_images(folder, images_out, output, urls=False, inputs=[])
    tally, config = Tally(), {"command": "openmoji", "release": release(), "limit": limit}
    rows = list(openmoji(tally, limit))
    drawn = list(rasterise(rows, folder, size, os.cpu_count() or 1, quiet))
    save(openmoji_captions(rows, carriers), output, tally, "captions", config | {"carriers": carriers}, [], restart, quiet)
    if images_out:
        made = config | {"size": size, "folder": os.path.abspath(folder)}
        save(drawn, images_out, tally, "images", made, [], restart, quiet, credit="Pictures: OpenMoji, CC BY-SA 4.0")


@prepare.command("regions")
def _regions(
    source: Annotated[str, typer.Argument(help="X_obj36.tsv of LXMERT, a TSV of bottom-up attention, or features .npy.")],
    boxes: Annotated[str | None, typer.Argument(help="With .npy: the jsonl of their boxes, an image a line.")] = None,
    backbone: Annotated[
        str, typer.Option("--backbone", help="What made them; regions of another name are another's.")
    ] = "bottom-up-attention",
    labels: Annotated[str | None, typer.Option("--labels", metavar="FILE", help="Names of the objects, one a line.")] = None,
    suffix: Annotated[str, typer.Option("--suffix", help="Put behind each image id of a TSV, for example .jpg.")] = "",
    dtype: Annotated[str, typer.Option("--dtype", help="float32, or float16 at half the size.")] = "float32",
    output: Annotated[str, typer.Option("--output", "-o", help="X.npy to write; the same command resumes it.")] = "regions.npy",
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Convert region features that others computed.

    A TSV has the columns of LXMERT (with confidences, and labels by --labels) or of bottom-up attention, its arrays in
    base64. A .npy is (images, regions, D) or (all regions, D); its jsonl has {"image", "width", "height", "boxes",
    "confidence"?, "label"?} in the same order. Without confidences boxes get a placeholder of their size and place.

    Examples:

        vg prepare regions train2014_obj36.tsv --suffix .jpg --dtype float16 -o regions.npy

        vg prepare regions features.npy boxes.jsonl --backbone detectron-nlvr2 -o regions.npy
    """
    choice(dtype, ("float32", "float16"), "--dtype")
    if not output.endswith(".npy"):
        raise typer.BadParameter(f"{output!r} does not end in .npy, the form of features", param_hint="--output")
    if source.endswith(".npy") != (boxes is not None):
        raise typer.BadParameter("belongs to a .npy of features, which needs it", param_hint="BOXES")
    if source == "-":
        raise typer.BadParameter("is read twice and cannot come from a pipe", param_hint="SOURCE")
    from vgtools.io import read_lines
    from vgtools.precomputed import named_backbone, read_arrays, read_tsv, width_of
    from vgtools.regions import write_regions

    tally, names = _tally(on_error, max_errors), list(read_lines(labels)) if labels else None
    rows = read_arrays(source, boxes, tally) if boxes else read_tsv(source, tally, names, suffix)
    config = {"command": "regions", "backbone": backbone, "suffix": suffix, "dtype": dtype, "on_error": on_error}
    inputs = [x for x in (source, boxes, labels) if x]
    count = write_regions(
        output, rows, config, width_of(source), dtype=dtype, inputs=inputs, restart=restart, errors=tally.errors,
        backbone=named_backbone(backbone),
    )  # fmt: skip
    if not quiet:
        left = f"; left out: {len(tally.errors):,}" if tally.errors else ""
        print(f"vg prepare: regions of {amount(count, 'image')} in {output}{left}", file=sys.stderr)


@prepare.command("wikitext")
def _wikitext(
    text: Annotated[str, typer.Argument(help="wiki.train.tokens or the like")],
    drop_headings: Annotated[bool, typer.Option("--drop-headings", help="Drop ' = Title = ' lines.")] = False,
    drop_empty: DropEmpty = False,
    drop_short: Annotated[int, typer.Option("--drop-short", min=0, help="Drop lines of fewer words (paper: 5).")] = 0,
    trim: Annotated[bool, typer.Option("--trim", help="Take off the space at both ends of a line.")] = False,
    output: OutputFile = "-",
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Drop headings and short lines of WikiText.

    Each filter is a flag of its own and counts on stderr what it drops; <unk> stays.

    Examples:

        vg prepare wikitext wiki.train.tokens --drop-headings --drop-short 5 --trim -o wiki.txt

        vg prepare wikitext wiki.valid.tokens --drop-empty | wc -l
    """
    from vgtools.corpus import wikitext
    from vgtools.io import read_text_rows

    tally, flags = Tally(), {"drop_headings": drop_headings, "drop_empty": drop_empty, "drop_short": drop_short, "trim": trim}
    lines = read_text_rows(text)
    rows = wikitext(lines, tally, drop_headings=drop_headings, drop_empty=drop_empty, drop_short=drop_short, trim=trim)
    save(rows, output, tally, "lines", {"command": "wikitext"} | flags, [text], restart, quiet)


@prepare.command("squad")
def _squad(
    file: Annotated[str, typer.Argument(help="train-v1.1.json or the like")],
    output: OutputFile = "-",
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Write the paragraphs of SQuAD as text.

    Each once, one a line: running text of Wikipedia. An empty line ends an article.

    Examples:

        vg prepare squad train-v1.1.json -o paragraphs.txt

        vg prepare squad train-v1.1.json | vg prepare sentences - > squad.txt
    """
    from vgtools.corpus import squad

    tally = Tally()
    save(squad(file, tally), output, tally, "lines", {"command": "squad"}, [file], restart, quiet)


@prepare.command("sentences")
def _sentences(
    text: Annotated[str, typer.Argument(help='A text, or a .jsonl with "text"; - is stdin.')] = "-",
    language: Annotated[str, typer.Option("--language", help="Two letters: whose abbreviations to know.")] = "en",
    drop_empty: DropEmpty = False,
    output: OutputFile = "-",
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Split a text into sentences, one a line.

    Rules of the sentencex package, which need no data. Order stays, and so do empty lines, unless --drop-empty.

    Examples:

        vg prepare sentences article.txt --drop-empty -o sentences.txt

        vg prepare wikitext wiki.train.tokens --drop-headings --drop-short 5 | vg prepare sentences - | gzip > wiki.txt.gz
    """
    from vgtools.corpus import LANGUAGES, sentences
    from vgtools.io import read_text_rows

    choice(language, LANGUAGES, "--language")
    tally = Tally()
    save(
        sentences(read_text_rows(text), language, tally, drop_empty),
        output,
        tally,
        "sentences",
        {"command": "sentences", "language": language, "drop_empty": drop_empty},
        [text],
        restart,
        quiet,
    )


def _named(rows: Iterable[Row], split: str | None) -> Iterator[Row]:
    return ({**row, "split": split} for row in rows) if split else iter(rows)


def _hash(lists: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(lists.items())).encode()).hexdigest()
