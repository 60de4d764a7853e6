"""Captions of images, tokenised once, and the regions of those images.

Axes: B batch, R regions, D region feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vgtools.images.regions import Regions, backbone_of
from vgtools.io import DataError, read_jsonl
from vgtools.io.arrays import Array, padded
from vgtools.models.references import check_same
from vgtools.models.runs import read_run
from vgtools.text.tokens import tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WINDOW = 4096  # captions tokenised at a time


@dataclass(frozen=True)
class Captions:
    """The captions of a run, tokenised once."""

    name: str  # of the file or files, for messages
    images: list[str]  # N, in the order in which they first come
    image: Array  # (C,) int32, the image of each caption
    ids: Array  # int32 tokens of all captions; caption c owns ids[starts[c] : starts[c + 1]]
    starts: Array  # (C + 1,) int64
    order: Array  # (C,) captions by image; those of image i are order[first[i] : first[i + 1]]
    first: Array  # (N + 1,) int64

    def __len__(self) -> int:
        return len(self.image)

    def of(self, number: int) -> Array:
        """Return the tokens of a caption, special tokens left out."""
        return self.ids[self.starts[number] : self.starts[number + 1]]

    def of_image(self, image: int) -> Array:
        """Return the captions of an image."""
        return self.order[self.first[image] : self.first[image + 1]]


def read_captions(
    paths: Sequence[str], tokenizer: Tokenizer, regions: Regions | None, pairs: bool = True
) -> Captions:
    """Read caption files {"image", "text"} and check that each image has regions.

    Args:
        paths: jsonl, `.gz`, `.zst` or `-`.
        regions: where the images' regions are; None where no image is looked at.
        pairs: captions come in pairs: each image needs two, and there must be two images.

    Raises:
        DataError: a row without them, an image without regions, or a lone caption that has to have
            a pair; file and line named.

    Source: Li et al. 2020, section A.3: `sip` needs a second caption of the image.
    """
    ids = list[Array]()
    sizes = list[Array]()
    images = dict[str, int]()
    owner = list[int]()
    lines = list[tuple[str, int]]()  # where each image comes first
    for path in paths:
        rows = read_jsonl(path, {"image": str, "text": str})
        while window := list(islice(rows, _WINDOW)):
            for line, row in window:
                if regions is not None and row["image"] not in regions:
                    why = f"{regions.path} holds no regions of the image {row['image']!r:.80}"
                    raise DataError(f"{why}; extract them", path, line)
                if row["image"] not in images:
                    images[row["image"]] = len(images)
                    lines.append((path, line))
                owner.append(images[row["image"]])
            tokens = tokenize(tokenizer, [row["text"] for _, row in window])
            ids.append(tokens.ids)
            sizes.append(np.diff(tokens.starts))
    name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if not owner:
        raise DataError("holds no caption", name)
    image = np.array(owner, np.int32)
    counts = np.bincount(image, minlength=len(images))
    if pairs and counts.min() < 2:
        lone = int(np.argmax(counts < 2))
        why = f"the image {list(images)[lone]!r:.80} has one caption; sip needs two of each image"
        why += ": leave it out, or train without sip (--weight mlm=1)"
        raise DataError(why, *lines[lone])
    if pairs and len(images) < 2:
        why = "has captions of one image only; sip needs those of others"
        raise DataError(f"{why}: train without it (--weight mlm=1)", name)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    order = np.argsort(image, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)])
    return Captions(name, list(images), image, np.concatenate(ids), starts, order, first)


def check_backbone(ref: str, regions: Regions, path: str) -> None:
    """Refuse regions of another backbone than those that a vg run learnt from."""
    known = read_run(ref, "visualbert") if Path(ref, "run.json").exists() else {}
    if "backbone" in known:
        what = "region features of the backbone"
        check_same(what, backbone_of(regions), known["backbone"], path)


def stack_regions(
    regions: Regions | None, images: Sequence[str], width: int
) -> tuple[Tensor, Tensor]:
    """Return the features of images, (B, R, D) float32, and a mask of their regions, (B, R) bool.

    Without `regions` there are none of any image.
    """
    none = np.zeros((0, width), np.float32)
    sets = [none if regions is None else regions.of(image).features for image in images]
    mask = [np.ones(len(rows), bool) for rows in sets]
    features = padded(sets, 0, np.float32, width)
    return torch.from_numpy(features), torch.from_numpy(padded(mask, False, bool))
