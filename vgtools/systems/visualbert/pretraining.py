"""Captions and the regions of their images become batches for VisualBERT; see `visualbert.py` for the model.

An example is a caption; with `sip` a second one follows it. Which one, what is masked and in which order the examples come are
pure functions of (seed, epoch, number of the caption), so that a resumed run sees what the unbroken one saw.

Axes: B batch, T tokens, R regions, D region feature.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vgtools.images.regions import Regions, backbone_of, open_regions
from vgtools.io import DataError, Exit, Progress, read_jsonl
from vgtools.io.arrays import Array
from vgtools.models.encoder import Encoder, as_encoder
from vgtools.models.references import check_same, fingerprint, pick_dtype
from vgtools.models.runs import read_run
from vgtools.systems.visualbert.model import (
    Batch,
    VisualBert,
    VisualBertConfig,
    halve,
    load_visualbert,
    make_visualbert,
    to_transformers,
)
from vgtools.text.masking import Masking, mask_tokens
from vgtools.text.tokens import tokenize, tokenizer_fingerprint
from vgtools.training.loop import Batches
from vgtools.training.session import Job, mean_losses
from vgtools.training.steps import Plan, plan_for, step_batches

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MASK, _FIXED = (
    1,
    2,
)  # what a random generator is for; the first of its seeds (0: the order of captions)


_WINDOW = 4096  # captions tokenised at a time


@dataclass(frozen=True)
class Captions:
    """The captions of a run, tokenised once.

    Attributes:
        name: of the file or files, for messages.
        images: the N images, in the order in which they first come.
        image: (C,) int32, the image of each caption.
        ids: the tokens of all captions behind one another, int32; caption c owns ids[starts[c] : starts[c + 1]].
        starts: (C + 1,) int64.
        order: (C,) captions sorted by image; those of image i are order[first[i] : first[i + 1]].
        first: (N + 1,) int64.
    """

    name: str
    images: list[str]
    image: Array
    ids: Array
    starts: Array
    order: Array
    first: Array

    def __len__(self) -> int:
        return len(self.image)

    def of(self, number: int) -> Array:
        """Return the tokens of a caption, special tokens left out."""
        return self.ids[self.starts[number] : self.starts[number + 1]]


def read_captions(
    paths: Sequence[str], tokenizer: Tokenizer, regions: Regions | None, pairs: bool = True
) -> Captions:
    """Read caption files {"image", "text"} and check that each image has regions.

    Args:
        paths: jsonl, `.gz`, `.zst` or `-`.
        tokenizer: of the encoder.
        regions: where the images' regions are; None where no image is looked at.
        pairs: captions come in pairs: each image needs two, and there must be two images.

    Raises:
        DataError: a row without them, an image without regions, or a lone caption where pairs are wanted; file and line named.
    """
    found, images, owner, sizes = list[Array](), dict[str, int](), list[int](), list[Array]()
    lines = list[tuple[str, int]]()
    for path in paths:
        rows = read_jsonl(path, {"image": str, "text": str})
        while window := list(islice(rows, _WINDOW)):
            for line, row in window:
                if regions is not None and row["image"] not in regions:
                    raise DataError(
                        f"{regions.path} holds no regions of the image {row['image']!r:.80}; extract them",
                        path,
                        line,
                    )
                if row["image"] not in images:
                    images[row["image"]] = len(images)
                    lines.append((path, line))
                owner.append(images[row["image"]])
            tokens = tokenize(tokenizer, [row["text"] for _, row in window])
            found.append(tokens.ids)
            sizes.append(np.diff(tokens.starts))
    name = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
    if not owner:
        raise DataError("holds no caption", name)
    image = np.array(owner, np.int32)
    counts = np.bincount(image, minlength=len(images))
    if pairs and counts.min() < 2:
        lone = int(np.argmax(counts < 2))
        raise DataError(
            f"the image {list(images)[lone]!r:.80} has one caption; sip needs two of each image: leave it out, or train "
            "without sip (--weight mlm=1)",
            *lines[lone],
        )
    if pairs and len(images) < 2:
        raise DataError(
            "has captions of one image only; sip needs those of others: train without it (--weight mlm=1)",
            name,
        )
    starts = np.concatenate([[0], np.cumsum(np.concatenate(sizes))])
    order, first = np.argsort(image, kind="stable"), np.concatenate([[0], np.cumsum(counts)])
    return Captions(name, list(images), image, np.concatenate(found), starts, order, first)


@dataclass(frozen=True)
class Recipe(Masking):
    """How captions become inputs and labels; the special ids of `suffix` stand behind each caption.

    Attributes:
        pairs: a second caption follows, right with p = 0.5.
        longest: tokens of a text at most, special tokens counted; longer ones lose their ends, the longer caption first.
        seed: of order, masks and pairs.
        rate: share of the tokens that are masked.
    """

    pairs: bool = True
    longest: int = 128
    seed: int = 0
    rate: float = 0.15


def recipe_for(text: Encoder, **settings: Any) -> Recipe:
    """Return the recipe of an encoder: its special tokens, and the settings given.

    Raises:
        DataError: the encoder does not take so long a text, or has one segment only.
    """
    config = text.model.config
    most = int(config.max_position_embeddings)
    if settings["longest"] > most:
        raise DataError(
            f"--block {settings['longest']}: the encoder takes {most} tokens", code=Exit.CONFIG
        )
    if config.type_vocab_size < 2:
        raise DataError(
            "the encoder knows one segment, VisualBERT needs two; take another encoder",
            text.ref,
            code=Exit.CONFIG,
        )
    return Recipe.of(text.tokenizer, **settings)


def partner(captions: Captions, number: int, rng: np.random.Generator) -> tuple[int, bool]:
    """Return the caption that follows another one, and whether it is one of the same image: with p = 0.5 it is.

    Of the same image it is another caption, each as likely; of other images any caption.

    Source: Li et al. 2020, section A.3.
    """
    image = int(captions.image[number])
    mine = captions.order[captions.first[image] : captions.first[image + 1]]
    if rng.random() < 0.5:
        others = mine[mine != number]
        return int(others[rng.integers(len(others))]), True
    place = int(rng.integers(len(captions) - len(mine)))  # among the captions of all other images
    return int(captions.order[place if place < captions.first[image] else place + len(mine)]), False


class _Example(NamedTuple):
    """One example before it is padded."""

    read: list[int]  # masked, special tokens included
    types: list[int]
    chosen: list[bool]  # to be predicted
    words: Array  # what stands at those places
    image: str
    right: bool  # the second caption is one of the image's


def _example(captions: Captions, number: int, recipe: Recipe, epoch: int | None) -> _Example:
    """Return the example that begins with a caption; see `collate`."""
    rng = np.random.default_rng(
        [_FIXED, number] if epoch is None else [_MASK, recipe.seed, epoch, number]
    )
    texts, right = [captions.of(number)], True
    if recipe.pairs:
        other, right = partner(captions, number, rng)
        texts.append(captions.of(other))
    texts = _fit(texts, recipe.longest - len(recipe.prefix) - len(texts) * len(recipe.suffix))
    read, chosen, types = (
        list(recipe.prefix),
        [False] * len(recipe.prefix),
        [0] * len(recipe.prefix),
    )
    words = list[Array]()
    for kind, own in enumerate(texts):
        shown, picked = mask_tokens(
            own.astype(np.int64), rng, recipe.mask, recipe.vocabulary, recipe.rate
        )
        read += [*shown.tolist(), *recipe.suffix]
        chosen += [*picked.tolist(), *[False] * len(recipe.suffix)]
        types += [kind] * (len(own) + len(recipe.suffix))
        words.append(own[picked])
    return _Example(
        read, types, chosen, np.concatenate(words), captions.images[captions.image[number]], right
    )


def collate(
    captions: Captions,
    regions: Regions | None,
    width: int,
    numbers: Array,
    recipe: Recipe,
    epoch: int | None,
    parts: int = 1,
    device: torch.device | str = "cpu",
) -> list[Batch]:
    """Build the batches of one step.

    Args:
        captions: of the run.
        regions: of their images; None gives no region at all ("w/o Grounded Pre-training", appendix C).
        width: D.
        numbers: (B,) captions of the step.
        recipe: what becomes of them.
        epoch: decides masks and pairs; None are the fixed ones of evaluation, the same whatever the seed.
        parts: batches to cut the step into; at most B.
        device: where they go.

    Returns:
        The batches, whose losses add up to `parts` times the mean over the step.
    """
    examples = [_example(captions, number, recipe, epoch) for number in numbers.tolist()]
    if parts > 1:  # texts of like length share a batch: less padding
        examples.sort(key=lambda e: len(e.read))
    counts = max(1, sum(len(e.words) for e in examples)) / parts, len(examples) / parts
    found = list[Batch]()
    for part in np.array_split(np.arange(len(examples)), parts):
        mine = [examples[i] for i in part.tolist()]
        shape = (len(mine), max(len(e.read) for e in mine))
        ids, types = np.full(shape, recipe.pad, np.int64), np.zeros(shape, np.int64)
        here, chosen = np.zeros((2, *shape), bool)
        for i, e in enumerate(mine):
            end = len(e.read)
            ids[i, :end], types[i, :end], here[i, :end], chosen[i, :end] = (
                e.read,
                e.types,
                True,
                e.chosen,
            )
        features, seen = look(regions, [e.image for e in mine], width)
        words = np.concatenate([e.words for e in mine]).astype(np.int64)
        text = [torch.from_numpy(a) for a in (ids, types, here, np.flatnonzero(chosen), words)]
        match = torch.tensor([int(e.right) for e in mine]) if recipe.pairs else None
        found.append(
            Batch(text[0], text[1], text[2], features, seen, text[3], text[4], match, *counts).to(
                device
            )
        )
    return found


def _fit(texts: list[Array], room: int) -> list[Array]:
    """Cut the ends off until all texts together fit, always of the longest."""
    sizes = [len(text) for text in texts]
    while sum(sizes) > room:
        sizes[int(np.argmax(sizes))] -= 1
    return [text[:size] for text, size in zip(texts, sizes, strict=True)]


def look(regions: Regions | None, images: Sequence[str], width: int) -> tuple[Tensor, Tensor]:
    """Return the features (B, R, D) float32 of images and which of the R are regions, (B, R) bool."""
    sets = [
        regions.of(image).features if regions is not None else np.zeros((0, width), np.float32)
        for image in images
    ]
    most = max(map(len, sets))
    features, here = (
        np.zeros((len(sets), most, width), np.float32),
        np.zeros((len(sets), most), bool),
    )
    for i, own in enumerate(sets):
        features[i, : len(own)], here[i, : len(own)] = own, True
    return torch.from_numpy(features), torch.from_numpy(here)


def make_batches(
    captions: Captions,
    regions: Regions | None,
    width: int,
    recipe: Recipe,
    schedule: Plan,
    device: torch.device | str = "cpu",
) -> Batches:
    """Return the batches of an epoch as `train` wants them; see `step_batches`."""

    def build(numbers: Array, epoch: int, parts: int) -> list[Batch]:
        return collate(captions, regions, width, numbers, recipe, epoch, parts, device)

    return step_batches(len(captions), recipe.seed, schedule, build)


def evaluate(
    model: VisualBert,
    captions: Captions,
    regions: Regions | None,
    recipe: Recipe,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Measure the losses with fixed masks and pairs, which no seed and no epoch changes.

    Returns:
        mlm, perplexity = exp(mlm), and with pairs sip.
    """
    width = model.config.regions_width
    parts = np.array_split(np.arange(len(captions)), -(-len(captions) // batch_size))
    batches = (
        batch
        for part in parts
        for batch in collate(captions, regions, width, part, recipe, None, 1, device)
    )
    return mean_losses(
        model, batches, lambda batch, name: len(batch.tokens if name == "mlm" else batch.ids)
    )


class Pretraining:
    """One pretraining of a VisualBERT on captions and the regions of their images.

    Args:
        text: the encoder to start from; None if `ref` is a VisualBERT.
        inputs: files of captions to train on.
        valid: files of captions to evaluate on.
        regions: X.npy, of the images of all of them.
        weights: of the losses.
        ref: the model to start from, if there is one.
        shape: what the encoder was made of, if it is new.
        region_start: `drawn` at random, or near the `words` that regions show.
        text_only: show no region.
        late_fusion: regions join in the last layer.
        dtype: of the matrix products.
        gradient_checkpointing: less memory, more time.
        offline: never connect.
        quiet: no progress.

    Raises:
        DataError: the regions come from another backbone than those the model was trained on, or
            as `read_captions` and `load_visualbert`.
    """

    kind = "visualbert"

    def __init__(
        self,
        text: Encoder | None,
        inputs: Sequence[str],
        valid: Sequence[str],
        regions: str,
        *,
        weights: Mapping[str, float],
        ref: str | None,
        shape: str | None,
        region_start: str,
        text_only: bool,
        late_fusion: bool,
        dtype: str,
        gradient_checkpointing: bool,
        offline: bool,
        quiet: bool,
    ) -> None:
        self._weights = dict(weights)
        self._shape = shape
        self._seen = {
            "region_start": region_start,
            "text_only": text_only,
            "late_fusion": late_fusion,
        }
        self._quiet = quiet
        self._regions = open_regions(regions)
        self._backbone = backbone_of(self._regions)
        if text is None and Path(str(ref), "run.json").is_file() and not text_only:
            known = read_run(str(ref), self.kind)
            if "backbone" in known:
                what = "region features of the backbone"
                check_same(what, self._backbone, known["backbone"], regions)
        config = VisualBertConfig(self._regions.width, late_fusion)
        products = pick_dtype(dtype)
        if text is None:
            self._model, text = load_visualbert(str(ref), config, dtype=products, offline=offline)
        else:
            self._model = make_visualbert(text, config, products)
        self._text = text
        self._model.checkpointing = gradient_checkpointing
        shown = None if text_only else self._regions
        pairs = "sip" in weights
        self._captions = read_captions(inputs, text.tokenizer, shown, pairs)
        self._held = read_captions(valid, text.tokenizer, shown, pairs) if valid else None

    def config(self) -> dict[str, Any]:
        """Return what decides the weights, beside the flags that every system has."""
        return {
            "start": self._shape or fingerprint(self._model),
            "tokenizer": tokenizer_fingerprint(self._text.tokenizer),
            "weights": self._weights,
            "regions": self._regions.manifest["files"],
            **self._seen,
            "inputs": [_digest(self._captions)],
            "valid": [_digest(self._held)] if self._held else [],
        }

    def job(self, config: Mapping[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        model = self._model.to(device)
        captions = self._captions
        held = self._held
        regions = None if config["text_only"] else self._regions
        recipe = recipe_for(
            self._text,
            pairs="sip" in config["weights"],
            longest=config["block"],
            seed=config["seed"],
            rate=config["mask_rate"],
        )
        plan = plan_for(len(captions), config)

        def judge(batch_size: int) -> dict[str, float]:
            assert held is not None
            return evaluate(model, held, regions, recipe, batch_size, device)

        def finish() -> tuple[dict[str, Any], Encoder, dict[str, Tensor]]:
            facts = {
                "visualbert": dataclasses.asdict(model.config),
                "backbone": self._backbone,
                "captions": len(captions),
                "images": len(captions.images),
            }
            final = as_encoder(to_transformers(model), self._text.tokenizer, self._text.ref)
            return facts, final, {}

        def start() -> None:
            from vgtools.systems.visualbert.region_start import (
                STEPS,
                align,  # it imports this module
            )

            steps = align(model, captions, self._regions, config["seed"])
            what = "pretrain: start of the regions"
            with Progress(what, "steps", STEPS, quiet=self._quiet) as bar:
                for _ in steps:
                    bar.advance(1)

        return Job(
            model,
            make_batches(captions, regions, model.config.regions_width, recipe, plan, device),
            plan,
            halve,
            judge if held else None,
            finish,
            start if config["region_start"] == "words" else None,
        )

    def close(self) -> None:
        """Nothing is left over."""


def _digest(captions: Captions) -> str:
    """Return the sha256 of captions as the model reads them."""
    digest = hashlib.sha256("\0".join(captions.images).encode())
    for part in (captions.image, captions.ids, captions.starts):
        digest.update(part.tobytes())
    return digest.hexdigest()
