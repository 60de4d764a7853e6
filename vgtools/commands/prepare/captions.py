"""`vg prepare flickr8k`, `flickr30k-entities`, `coco`, `karpathy`, `vqa`: described pictures."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from vgtools.commands.options import Argument, AsSplit, Flag, Quiet
from vgtools.commands.prepare.photos import RowOutputs
from vgtools.commands.signature import flags
from vgtools.datasets import annotations as annotations_module
from vgtools.datasets import captions
from vgtools.datasets.rows import Folder, in_split, read_splits, with_split
from vgtools.io.settings import value


@dataclass(frozen=True, kw_only=True)
class OfficialSplits:
    """The official split of each picture.

    Attributes:
        splits: Folder of the official split lists.
        split: Keep only this split.
    """

    splits: str | None = value(None, metavar="DIR")
    split: str | None = value(None, metavar="NAME")

    def read(self, flickr8k: bool | None) -> dict[str, str]:
        """Return the split of each picture; nothing without --splits."""
        return {} if self.splits is None else read_splits(self.splits, flickr8k)


@flags
def flickr8k(
    tokens: Annotated[str, Argument("TOKENS")],
    lists: OfficialSplits,
    output: RowOutputs,
    quiet: Quiet = False,
) -> None:
    r"""Write the captions of Flickr8k.

    Flickr30k's results_20130124.token has the same form. Rows are {"image", "text", "split"}; a
    photo in no list has no split. Captions are kept as they are.

    Examples:

        vg prepare flickr8k Flickr8k.token.txt --splits . \
            --images Flicker8k_Dataset --images-out images.jsonl -o captions.jsonl

        vg prepare flickr8k Flickr8k.token.txt --splits . --split dev | head -3

    Args:
        tokens: Flickr8k.token.txt
    """
    tally = output.tally()
    known = re.match("(Flickr8k)|results_", Path(tokens).name)
    splits = lists.read(known and known[1] is not None)
    rows = with_split(captions.flickr8k(tokens, tally), splits, lists.split, tally)
    config = {"command": "flickr8k", "lists": _hash(splits), "split": lists.split}
    output.write(rows, "captions", tally, [tokens], config)


@flags
def flickr30k_entities(
    folder: Annotated[str, Argument("DIR")],
    lists: OfficialSplits,
    output: RowOutputs,
    quiet: Quiet = False,
) -> None:
    r"""Write captions with phrase spans and boxes.

    Rows are {"image", "text", "width", "height", "phrases", "split"}, a phrase {"start", "end",
    "type", "id", "boxes"}: its characters in the text and its chain. Phrases of notvisual, scene
    and nobox chains have no boxes.

    Examples:

        vg prepare flickr30k-entities . --splits . \
            --images flickr30k-images --images-out images.jsonl -o phrases.jsonl

        vg prepare flickr30k-entities . | jq -c '.phrases[] | select(.type == "animals")'

    Args:
        folder: Folder with Annotations/ and Sentences/.
    """
    tally = output.tally()
    splits = lists.read(False)
    rows = captions.flickr30k_entities(folder, tally)
    digests = [Folder(Path(folder, name)).digest() for name in ("Annotations", "Sentences")]
    config = {
        "command": "flickr30k-entities",
        "folder": digests,
        "lists": _hash(splits),
        "split": lists.split,
    }
    rows = with_split(rows, splits, lists.split, tally)
    output.write(rows, "phrase captions", tally, [], config)


@flags
def coco(
    annotations: Annotated[str, Argument("FILE")],
    output: RowOutputs,
    as_split: AsSplit = None,
    drop_crowd: Annotated[bool, Flag("--drop-crowd")] = False,
    quiet: Quiet = False,
) -> None:
    r"""Write captions or instance boxes of COCO.

    The file decides which. Rows are {"image", "text"}, or one per image: {"image", "width",
    "height",
    "boxes", "labels", "crowd"}, boxes x1, y1, x2, y2 in pixels.

    Examples:

        vg prepare coco captions_train2017.json --as-split train \
            --images train2017 --images-out images.jsonl -o captions.jsonl

        vg prepare coco instances_val2017.json | jq -r '.labels[]' | sort | uniq -c

    Args:
        annotations: captions_*.json or instances_*.json
        drop_crowd: Drop boxes around crowds.
    """
    tally = output.tally()
    rows = in_split(annotations_module.coco(annotations, tally, drop_crowd), as_split)
    config = {"command": "coco", "as_split": as_split, "drop_crowd": drop_crowd}
    output.write(rows, "rows", tally, [annotations], config)


@flags
def karpathy(
    dataset: Annotated[str, Argument("FILE")],
    output: RowOutputs,
    split: Annotated[Literal["train", "val", "test"] | None, Flag()] = None,
    quiet: Quiet = False,
) -> None:
    r"""Write COCO's captions in the splits of Karpathy.

    Rows are {"image", "text", "split"}: 113,287 photos to train on, including "restval", 5,000 of
    "val", 5,000 of "test" (Karpathy and Fei-Fei 2015). --images is the folder that holds train2014
    and val2014.

    Examples:

        vg prepare karpathy dataset_coco.json --images coco \
            --images-out images.jsonl -o captions.jsonl

        vg prepare karpathy dataset_coco.json --split test | wc -l

    Args:
        dataset: dataset_coco.json, or the file of Flickr8k or 30k.
        split: Keep only this split.
    """
    tally = output.tally()
    rows = annotations_module.karpathy(dataset, tally)
    config = {"command": "karpathy"}
    if split is not None:
        rows = (row for row in rows if row["split"] == split)
        config["split"] = split
    output.write(rows, "captions", tally, [dataset], config)


@flags
def vqa(
    questions: Annotated[str, Argument("FILE")],
    output: RowOutputs,
    quiet: Quiet = False,
) -> None:
    r"""Write the questions of VQA as captions of MS COCO's photos.

    Rows are {"image", "text"}, with the photos' file names; the file's name gives their split.

    Examples:

        vg prepare vqa v2_OpenEnded_mscoco_val2014_questions.json -o questions.jsonl

        vg vokenize wiki.txt --index coco.faiss --control term-frequency \
            --captions coco.jsonl --captions questions.jsonl -o vokens.jsonl

    Args:
        questions: v2_OpenEnded_mscoco_train2014_questions.json
    """
    tally = output.tally()
    rows = annotations_module.vqa(questions, tally)
    output.write(rows, "captions", tally, [questions], {"command": "vqa"})


def _hash(lists: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(lists.items())).encode()).hexdigest()
