"""Captions and the regions of their images become batches for VisualBERT.

An example is a caption; with `sip` a second caption follows it. The second caption, the masks and
the order of the examples are pure functions of (seed, epoch, number of the caption), so that a
resumed run sees the same examples as an unbroken run.

Axes: B batch, T tokens, R regions, D region feature.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vgtools.images.regions import Regions, backbone_of, open_regions
from vgtools.io.arrays import Array, padded
from vgtools.io.errors import DataError, Exit
from vgtools.io.inputs import Inputs
from vgtools.io.process import Progress
from vgtools.models.encoder import Encoder, as_encoder
from vgtools.models.references import fingerprint, identity_of, pick_dtype
from vgtools.models.runs import start_facts
from vgtools.systems.visualbert.captions import (
    Scene,
    VisualBertCaptions,
    check_backbone,
    read_captions,
    regions_of,
)
from vgtools.systems.visualbert.model import (
    VisualBert,
    VisualBertBatch,
    VisualBertConfig,
    halve,
    load_visualbert,
    make_visualbert,
    to_transformers,
)
from vgtools.systems.visualbert.recipe import SeenRegions
from vgtools.systems.visualbert.region_start import STEPS, align
from vgtools.text.masking import Masking, mask_tokens
from vgtools.text.tokens import tokenizer_fingerprint
from vgtools.training.loop import Batches
from vgtools.training.session import Job, Pretraining, mean_losses
from vgtools.training.splits import refuse_shared
from vgtools.training.steps import StepPlan, plan_for, step_batches

# The purpose of a random generator, as the first of its seeds; 0 is the order of captions, 3
# `region_start`.
_MASK = 1
_FIXED = 2


@dataclass(frozen=True)
class VisualBertMasking(Masking):
    """How captions become inputs and labels; the special ids of `suffix` follow each caption."""

    pairs: bool = True  # a second caption follows, right with p = 0.5
    longest: int = (
        128  # with special tokens; longer examples lose their end, the longer caption first
    )
    seed: int = 0  # decides order, masks and pairs
    rate: float = 0.15  # share of the tokens that are masked


def recipe_for(text: Encoder, **settings: Any) -> VisualBertMasking:
    """Return the recipe of an encoder: its special tokens, and the settings given.

    Raises:
        DataError: the encoder does not take so long a text, or has one segment only.
    """
    config = text.model.config
    most = int(config.max_position_embeddings)
    if settings["longest"] > most:
        why = f"--block {settings['longest']}: the encoder takes {most} tokens"
        raise DataError(why, code=Exit.CONFIG)
    if config.type_vocab_size < 2:
        why = "the encoder knows one segment, VisualBERT needs two; take another encoder"
        raise DataError(why, text.ref, code=Exit.CONFIG)
    return VisualBertMasking.of(text.tokenizer, **settings)


def partner(
    captions: VisualBertCaptions, number: int, rng: np.random.Generator
) -> tuple[int, bool]:
    """Return the caption that follows another, and whether both have the same image.

    With p = 0.5 they do. The caption is drawn evenly, from the other captions of the same image or
    from all captions of other images.

    Source: Li et al. 2020, section A.3.
    """
    image = int(captions.image[number])
    mine = captions.of_image(image)
    if rng.random() < 0.5:
        others = mine[mine != number]
        return int(others[rng.integers(len(others))]), True
    # The image's own captions are a run of `order`; skipping it gives every other caption the same
    # probability with a single draw.
    place = int(rng.integers(len(captions) - len(mine)))  # among the captions of all other images
    return int(captions.order[place if place < captions.first[image] else place + len(mine)]), False


class _Example(NamedTuple):
    """One example before it is padded."""

    read: list[int]  # masked, special tokens included
    types: list[int]
    chosen: list[bool]  # tokens to be predicted
    words: Array  # the tokens at those places
    scene: Scene
    right: bool  # the second caption is one of the image's


def _example(
    captions: VisualBertCaptions, number: int, recipe: VisualBertMasking, epoch: int | None
) -> _Example:
    """Return the example that starts with a caption; see `collate`."""
    seeds = [_FIXED, number] if epoch is None else [_MASK, recipe.seed, epoch, number]
    rng = np.random.default_rng(seeds)
    texts = [captions.of(number)]
    right = True
    if recipe.pairs:
        other, right = partner(captions, number, rng)
        texts.append(captions.of(other))
    texts = _fit(texts, recipe.longest - len(recipe.prefix) - len(texts) * len(recipe.suffix))
    read = list(recipe.prefix)
    chosen = [False] * len(recipe.prefix)
    types = [0] * len(recipe.prefix)
    words = list[Array]()
    for segment, tokens in enumerate(texts):
        masked, picked = mask_tokens(
            tokens.astype(np.int64), rng, recipe.mask, recipe.vocabulary, recipe.rate
        )
        read += [*masked.tolist(), *recipe.suffix]
        chosen += [*picked.tolist(), *[False] * len(recipe.suffix)]
        types += [segment] * (len(tokens) + len(recipe.suffix))
        words.append(tokens[picked])
    scene = captions.images[captions.image[number]]
    return _Example(read, types, chosen, np.concatenate(words), scene, right)


def collate(
    captions: VisualBertCaptions,
    regions: Regions | None,
    width: int,
    numbers: Array,
    recipe: VisualBertMasking,
    epoch: int | None,
    parts: int = 1,
    device: torch.device | str = "cpu",
) -> list[VisualBertBatch]:
    """Build the batches of one step.

    Args:
        regions: regions of their images; None gives no region at all ("w/o Grounded Pre-training",
            appendix C).
        numbers: (B,) captions of the step.
        epoch: decides masks and pairs; None gives the fixed draws of evaluation, the same whatever
            the seed.
        parts: batches to cut the step into; at most B.

    Returns:
        The batches, whose losses add up to `parts` times the mean over the step.
    """
    examples = [_example(captions, number, recipe, epoch) for number in numbers.tolist()]
    if parts > 1:  # Texts of similar length share a batch, which needs less padding.
        examples.sort(key=lambda e: len(e.read))
    token_count = max(1, sum(len(e.words) for e in examples)) / parts
    batches = list[VisualBertBatch]()
    for part in np.array_split(np.arange(len(examples)), parts):
        mine = [examples[i] for i in part.tolist()]
        ids = padded([e.read for e in mine], recipe.pad, np.int64)
        types = padded([e.types for e in mine], 0, np.int64)
        text_mask = padded([[True] * len(e.read) for e in mine], False, bool)
        chosen = padded([e.chosen for e in mine], False, bool)
        features, region_mask, segments = regions_of(regions, [e.scene for e in mine], width)
        words = np.concatenate([e.words for e in mine]).astype(np.int64)
        batch = VisualBertBatch(
            ids=torch.from_numpy(ids),
            types=torch.from_numpy(types),
            text_mask=torch.from_numpy(text_mask),
            regions=features,
            region_mask=region_mask,
            segments=segments,
            masked=torch.from_numpy(np.flatnonzero(chosen)),
            tokens=torch.from_numpy(words),
            match=torch.tensor([int(e.right) for e in mine]) if recipe.pairs else None,
            token_count=token_count,
            pair_count=len(examples) / parts,
        )
        batches.append(batch.to(device))
    return batches


def _fit(texts: list[Array], longest: int) -> list[Array]:
    """Cut the ends off until all texts together fit, always of the longest."""
    sizes = [len(text) for text in texts]
    while sum(sizes) > longest:
        sizes[int(np.argmax(sizes))] -= 1
    return [text[:size] for text, size in zip(texts, sizes, strict=True)]


def make_batches(
    captions: VisualBertCaptions,
    regions: Regions | None,
    width: int,
    recipe: VisualBertMasking,
    plan: StepPlan,
    device: torch.device | str = "cpu",
) -> Batches:
    """Return the batches of an epoch as `train` expects them; see `step_batches`."""

    def build(numbers: Array, epoch: int, parts: int) -> list[VisualBertBatch]:
        return collate(captions, regions, width, numbers, recipe, epoch, parts, device)

    counts = {"token_count": lambda b: len(b.tokens), "pair_count": lambda b: len(b.ids)}
    return step_batches(len(captions), recipe.seed, plan, build, counts)


def evaluate(
    model: VisualBert,
    captions: VisualBertCaptions,
    regions: Regions | None,
    recipe: VisualBertMasking,
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


@dataclass
class VisualBertPretraining(Pretraining):
    """One pretraining of a VisualBERT on captions and the regions of their images.

    Raises:
        DataError: the regions come from another backbone than the model's training regions, or as
            `read_captions` and `load_visualbert`.
    """

    kind = "visualbert"

    text: Encoder | None  # encoder to start from; None if `ref` is a VisualBERT
    regions: str  # X.npy with regions of the images of all captions
    seen: SeenRegions
    _: KW_ONLY
    ref: str | None
    shape: str | None  # shape that the encoder was made from, if it is new

    def __post_init__(self) -> None:
        self._regions = open_regions(self.regions, self.seen.boxes)
        # The files are hashed before a caption is read: a file that changes while it is read then
        # does not match its hash.
        self.files = Inputs([*self.inputs, *self.valid, self.regions])
        self._backbone = backbone_of(self._regions)
        text = self.text
        if text is None and not self.seen.text_only:
            check_backbone(str(self.ref), self._regions, self.regions)
        config = VisualBertConfig(self._regions.width, self.seen.late_fusion)
        products = pick_dtype(self.dtype)
        if text is None:
            ref = str(self.ref)
            self._model, text = load_visualbert(ref, config, dtype=products)
        else:
            self._model = make_visualbert(text, config, products)
        self._text = text
        self._model.checkpointing = self.gradient_checkpointing
        shown = None if self.seen.text_only else self._regions
        pairs = "sip" in self.weights
        self._captions = read_captions(self.inputs, text.tokenizer, shown, pairs, train=True)
        self._held = None
        if self.valid:
            self._held = read_captions(self.valid, text.tokenizer, shown, pairs)
            known, held = (set().union(*part.images) for part in (self._captions, self._held))
            refuse_shared(known, held, self._held.name)

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, in addition to the flags that every system
        has.
        """
        # `sip` reads the pooler, which the fingerprint of an encoder would leave out by its name.
        parts = {f"model.{name}": part for name, part in self._model.state_dict().items()}
        return {
            "start": self.shape or identity_of(fingerprint(parts), self._text.settings),
            "tokenizer": tokenizer_fingerprint(self._text.tokenizer),
            "weights": dict(self.weights),
            "regions": self._regions.manifest["files"],
            **dataclasses.asdict(self.seen),
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
                **start_facts(self._text),
            }
            final = as_encoder(to_transformers(model), self._text.tokenizer, self._text.ref)
            return facts, final, {}

        def start() -> None:
            steps = align(model, captions, self._regions, config["seed"])
            what = "pretrain: start of the regions"
            with Progress(what, "steps", STEPS, quiet=self.session.quiet) as bar:
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


def _digest(captions: VisualBertCaptions) -> str:
    """Return the sha256 of captions as the model reads them."""
    digest = hashlib.sha256("\0".join(map("\1".join, captions.images)).encode())
    for part in (captions.image, captions.ids, captions.starts):
        digest.update(part.tobytes())
    return digest.hexdigest()
