"""Captions of images, tokenised once, and the regions of those images.

Axes: B batch, R regions, D region feature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vgtools.images.regions import Regions, backbone_of
from vgtools.io.arrays import Array, padded
from vgtools.io.errors import DataError
from vgtools.io.splits import refuse_held_out
from vgtools.io.streams import read_jsonl
from vgtools.models.references import check_same
from vgtools.models.runs import read_run
from vgtools.models.sealed import run_with
from vgtools.text.tokens import tokenize

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WINDOW = 4096  # captions tokenised at a time

# The subject of a caption: an image, or a pair of images (NLVR2).
Scene = tuple[str, ...]


@dataclass(frozen=True)
class VisualBertCaptions:
    """The captions of a run, tokenised once."""

    name: str  # name of the file or files, for messages
    images: list[Scene]  # N, in the order in which they first appear
    image: Array  # (C,) int32, the image (or pair) of each caption
    ids: Array  # int32 tokens of all captions; caption c owns ids[starts[c] : starts[c + 1]]
    starts: Array  # (C + 1,) int64
    order: Array  # (C,) captions by image; image i has order[first[i] : first[i + 1]]
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
    paths: Sequence[str],
    tokenizer: Tokenizer,
    regions: Regions | None,
    pairs: bool = True,
    train: bool = False,
) -> VisualBertCaptions:
    """Read caption files {"image", "text"} and check that each image has regions.

    A text about two images has their list, "images". An image is also found without folder and
    suffix.

    Args:
        paths: jsonl, `.gz`, `.zst` or `-`.
        regions: where the images' regions are; None where no image is looked at.
        pairs: captions come in pairs: each image needs two, and there must be two images.
        train: the captions are learned from.

    Raises:
        DataError: a row without them, a row to learn from of a split to evaluate on, an image
            without regions, or a lone caption that has to have a pair; file and line named.

    Source: Li et al. 2020, section A.3: `sip` needs a second caption of the image.
    """
    ids = list[Array]()
    sizes = list[Array]()
    images = dict[Scene, int]()
    owner = list[int]()
    lines = list[tuple[str, int]]()  # where each image appears first
    for path in paths:
        rows = read_jsonl(path, {"text": str})
        while window := list(islice(rows, _WINDOW)):
            for line, row in window:
                if train:
                    refuse_held_out(row, path, line)
                scene = _scene(row, path, line)
                if regions is not None:
                    scene = tuple(regions.find(name, path, line) for name in scene)
                if scene not in images:
                    images[scene] = len(images)
                    lines.append((path, line))
                owner.append(images[scene])
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
        name = " and ".join(list(images)[lone])
        why = f"the image {name!r:.80} has one caption; sip needs two of each image"
        why += ": leave it out, or train without sip (--weight mlm=1)"
        raise DataError(why, *lines[lone])
    if pairs and len(images) < 2:
        why = "has captions of one image only; sip needs captions of others"
        raise DataError(f"{why}: train without it (--weight mlm=1)", name)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    # A stable sort keeps the captions of an image in the order of the files.
    order = np.argsort(image, kind="stable")
    first = np.concatenate([[0], np.cumsum(counts)])
    return VisualBertCaptions(name, list(images), image, np.concatenate(ids), starts, order, first)


def _scene(row: dict[str, Any], path: str, line: int) -> Scene:
    """Return the image that a row is about, or its two.

    Raises:
        DataError: neither.
    """
    names = [row["image"]] if "image" in row else row.get("images")
    found = names if isinstance(names, list) else []
    known = all(isinstance(name, str) and name for name in found)
    if not known or not 1 <= len(found) <= 2:
        why = 'expected "image", an image\'s name, or "images", one or two of them; the row has '
        raise DataError(f"{why}{', '.join(row)}", path, line)
    return tuple(found)


def check_backbone(ref: str, regions: Regions, path: str) -> None:
    """Refuse regions of another backbone than the regions that a vg run learned from."""
    known = read_run(ref, "visualbert") if Path(ref, "run.json").exists() else run_with(ref)
    if known.get("kind") == "visualbert" and "backbone" in known:
        what = "region features of the backbone"
        check_same(what, backbone_of(regions), known["backbone"], path)


def stack_regions(sets: Sequence[Sequence[Array]], width: int) -> tuple[Array, Array]:
    """Return the regions of examples, (B, R, D) float32, and their segments, (B, R) int64.

    Padding has the segment -1.

    Args:
        sets: for each example, the (R, D) features of each of its images.
        width: D.

    Source: Li et al. 2020, appendix B.3: two images have the segments 0 and 1; a single image has
        segment 1, as COCO's in the published code.
    """
    features = [np.concatenate(each) for each in sets]
    numbers = [np.arange(len(each)) if len(each) > 1 else np.ones(1, int) for each in sets]
    owners = [np.repeat(n, [*map(len, each)]) for n, each in zip(numbers, sets, strict=True)]
    return padded(features, 0, np.float32, width), padded(owners, -1, np.int64)


def regions_of(
    regions: Regions | None, scenes: Sequence[Scene], width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return features (B, R, D) float32, their mask (B, R) bool and segments (B, R) int64.

    Without `regions` there are none of any image.
    """
    none = [np.zeros((0, width), np.float32)]
    sets = [none if regions is None else [regions.of(i).features for i in s] for s in scenes]
    features, segments = map(torch.from_numpy, stack_regions(sets, width))
    return features, segments >= 0, segments.clamp(min=0)
