"""Texts and their images become batches for the grounded model.

A row is one example. Its masks, and with them the images found for it, are pure functions of (seed,
epoch, number of the row): neither the batch nor the process that a row falls to changes them, so
that a resumed run sees the same examples as an unbroken run.

Axes: B texts, T tokens, K images of a text, N regions of an image, S = K · N slots, D image
feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from vgtools.io.arrays import Array
from vgtools.io.artifact import read_manifest
from vgtools.io.errors import DataError, Exit, amount, plain
from vgtools.systems.grounding.association import Associator, open_associator
from vgtools.systems.grounding.model import GroundedBatch
from vgtools.systems.grounding.pictures import PictureFeatures, open_pictures
from vgtools.systems.grounding.recipe import ASSOCIATIVE, Sources
from vgtools.systems.grounding.texts import GroundingTexts
from vgtools.text.masking import Masking, mask_tokens
from vgtools.text.parses import tagger_facts
from vgtools.text.word_vectors import ContentWords

# The purpose of a random generator, as the first of its seeds; 0 is the order of the texts.
_MASK = 1
_FIXED = 2

_AT_ONCE = 4096  # texts that are searched for at a time


# ---------------------------------------------------------------------------------------- retrieval


@dataclass(frozen=True)
class WordBank:
    """Images that are found for texts by their words.

    Attributes:
        associator: scene, object or keyword.
        rows: (images of its index,) their rows of the features.
        images: K, per text.
        whole: look for images with the whole text; otherwise with the words that are shown.
        mark: entry of `run.json` that identifies the index and its search.
        path: file of the index, for messages.
    """

    associator: Associator
    rows: Array
    images: int
    whole: bool
    mark: dict[str, Any]
    path: str = "the index"

    def words(self, texts: GroundingTexts, numbers: Array, chosen: Sequence[Array]) -> ContentWords:
        """Return the words of the masked texts, by which images are looked for.

        Words are found, and their nouns tagged, in the spelling of the visible tokens. All tokens
        to be predicted are hidden, also those that the model is shown unchanged or as another word:
        the images that they find would give away the answer.

        Args:
            texts: the texts, with their spelling.
            numbers: (B,) numbers of the texts.
            chosen: B times (tokens,) bool, to be predicted.

        Source: Sileo 2021, section 2.4, footnote 3.
        """
        hidden = [part & (not self.whole) for part in chosen]
        pairs = zip(numbers.tolist(), hidden, strict=True)
        return self.associator.words([texts.shown(number, part) for number, part in pairs])

    def find(self, words: ContentWords, own: Array) -> Array:
        """Return the rows of the features found for texts, (B, K), best first, -1 for none.

        Args:
            words: words of B texts.
            own: (B,) image of the index that is never found for a text, -1 for none.
        """
        found = self.associator.search(words, self.images, own=own)
        return np.where(found.rows >= 0, self.rows[found.rows], -1)


def check_words(bank: WordBank, trained: Mapping[str, Any], index: str) -> None:
    """Refuse an index whose word vectors or stop words differ from the run's.

    Args:
        bank: the images of the index.
        trained: "index" of the run's `run.json`.
        index: its file, for messages.

    Raises:
        DataError: the fingerprints differ (65); both are printed.
    """
    for name in ("fingerprint", "stop_words"):
        made, needed = ((mark.get("words") or {}).get(name) for mark in (bank.mark, trained))
        if made != needed:
            why = f"was made with the words {made}; the run has {needed} ({name})"
            raise DataError(f"{why}; build the index as for the run", index)


def open_sources(sources: Sources) -> tuple[PictureFeatures | None, WordBank | None]:
    """Open features and index.

    Raises:
        DataError: the index is for another strategy (usage), an image of it has no features (65),
            or as `open_pictures` and `open_associator`.
    """
    pictures = open_pictures(sources.feats, sources.regions, sources.boxes or 36)
    if sources.strategy not in ASSOCIATIVE:
        return pictures, None
    assert pictures is not None
    return pictures, _bank(sources, pictures)


def _bank(sources: Sources, pictures: PictureFeatures) -> WordBank:
    index = str(sources.index)
    clusters = sources.groups
    tagger = sources.tagger or "builtin:spacy-sm"
    associator = open_associator(index, clusters=clusters, tagger=tagger)
    expected = ASSOCIATIVE[sources.strategy]
    if associator.keys != expected:
        why = f"its images are found by {associator.keys}; {sources.strategy} needs {expected}"
        raise DataError(why, index, code=Exit.USAGE)
    rows = np.array([pictures.row(image) for image in associator.ids], np.int64)
    missing = np.flatnonzero(rows < 0)
    if len(missing):
        first = associator.ids[int(missing[0])]
        why = f"{pictures.path} holds no features of its image {first!r:.80}"
        raise DataError(f"{why} ({len(missing)} are missing); extract them", index)
    manifest = read_manifest(index, verify=False)
    mark = {
        "keys": associator.keys,
        "words": manifest.get("words"),
        "files": manifest.get("files"),
        "query": sources.query,
    }
    if sources.strategy == "object":
        mark |= {"clusters": clusters, "tagger": tagger, **tagger_facts(tagger)}
    return WordBank(associator, rows, sources.per_text, sources.query == "whole", mark, index)


# ------------------------------------------------------------------------------------------ batches


@dataclass(frozen=True)
class GroundedMasking(Masking):
    """How texts become inputs and labels; the special ids of `suffix` follow each text.

    Attributes:
        strategy: none, i2t, t2i, both, scene, object or keyword.
        longest: tokens of a text at most, special tokens not counted.
        seed: decides the order, the masks and all other draws.
        rate: share of the tokens that are masked.
        drop_images: probability that a text that has images is shown with the placeholder.

    Deviation: the paper drops no image. A model that always saw one has not learned to do without.
    """

    strategy: str = "none"
    longest: int = 62
    seed: int = 0
    rate: float = 0.15
    drop_images: float = 0.0

    @property
    def jmrm_share(self) -> float:
        """How many of the captions learn their image, not their words."""
        return {"t2i": 1.0, "both": 0.5}.get(self.strategy, 0.0)


class GroundedExample(NamedTuple):
    """One text before it is padded."""

    read: Array  # (n,) int64 masked tokens, no special ones
    chosen: Array  # (n,) bool, to be predicted
    hidden: Array  # the tokens at those places
    regions: bool  # its image is to be predicted, not its words
    dropped: bool  # its images are not shown
    rng: np.random.Generator  # for its regions


@dataclass(frozen=True)
class GroundedExamples:
    """Texts with the images that they are shown with: their own, found images, or none.

    Attributes:
        texts: tokenised.
        recipe: how they become inputs and labels.
        pictures: features of images; None for no image at all.
        bank: finds images by words, for associative strategies.
    """

    texts: GroundingTexts
    recipe: GroundedMasking
    pictures: PictureFeatures | None = None
    bank: WordBank | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def example(self, number: int, epoch: int | None) -> GroundedExample:
        """Draw the masks of a text: a pure function of (seed, epoch, number).

        Args:
            number: number of the text.
            epoch: epoch of the training; None gives the fixed draws of evaluation, the same
                whatever the seed.

        Source: Sileo 2021, sections 2.2 and 3.3 (15 % of the tokens, as in LXMERT).
        """
        recipe = self.recipe
        rng = np.random.default_rng(
            [_FIXED, number] if epoch is None else [_MASK, recipe.seed, epoch, number]
        )
        # Both numbers are drawn for every text, whatever the strategy and `drop_images` are: runs
        # that differ only in these mask the same tokens.
        side, drop = rng.random(2)
        tokens = self.texts.of(number).astype(np.int64)
        if self.texts.image[number] >= 0 and side < recipe.jmrm_share:
            nothing = np.zeros(len(tokens), bool)
            return GroundedExample(tokens, nothing, tokens[:0], True, False, rng)
        read, chosen = mask_tokens(tokens, rng, recipe.mask, recipe.vocabulary, recipe.rate)
        dropped = epoch is not None and drop < recipe.drop_images
        return GroundedExample(read, chosen, tokens[chosen], False, bool(dropped), rng)

    def images(self, numbers: Array, examples: Sequence[GroundedExample]) -> Array:
        """Return the rows of the features that texts are shown with, (B, K), -1 for none."""
        if self.pictures is None:
            return np.zeros((len(numbers), 0), np.int64)
        if self.bank is not None:
            words = self.bank.words(self.texts, numbers, [e.chosen for e in examples])
            rows = self.bank.find(words, self._own_of_bank[numbers])
        else:
            rows = self.own[numbers][:, None]
        # Indexing by numbers has copied the rows, so that the cached `own` does not change.
        rows[np.array([e.dropped for e in examples], bool)] = -1
        return rows

    @cached_property
    def own(self) -> Array:
        """The row of the features of each text's own image, (N,), -1 for none."""
        pictures = self.pictures
        assert pictures is not None
        rows = [pictures.row(image) for image in self.texts.images]
        # A text without an image has the number -1, which reads the -1 at the end.
        return np.array([*rows, -1], np.int64)[self.texts.image]

    @cached_property
    def remark(self) -> str | None:
        """A message about texts whose own image the index may have by another name, or None."""
        named = self.texts.image >= 0
        if self.bank is None or not (unknown := int((self._own_of_bank[named] < 0).sum())):
            return None
        why = f"that {plain(self.bank.path)} does not have by this name"
        texts = f'{plain(self.texts.name)}: {amount(unknown, "text")} with an "image"'
        return f"{texts} {why}; if it has it by another, they may be shown it"

    @cached_property
    def found(self) -> Array:
        """The rows of the features that texts find with the masks of evaluation, (N, K)."""
        parts = np.array_split(np.arange(len(self)), -(-len(self) // _AT_ONCE))
        return np.concatenate(
            [self.images(part, [self.example(n, None) for n in part.tolist()]) for part in parts]
        )

    @cached_property
    def _own_of_bank(self) -> Array:
        assert self.bank is not None
        known = {image: row for row, image in enumerate(self.bank.associator.ids)}
        rows = [known.get(image, -1) for image in self.texts.images]
        return np.array([*rows, -1], np.int32)[self.texts.image]

    def collate(
        self,
        numbers: Array,
        epoch: int | None,
        parts: int = 1,
        device: torch.device | str = "cpu",
        rows: Array | None = None,
    ) -> list[GroundedBatch]:
        """Build the batches of one step.

        Args:
            numbers: (B,) texts of the step.
            epoch: decides what is masked; None gives the fixed masks of evaluation.
            parts: batches to cut the step into; at most B.
            device: where they go.
            rows: (B, K) rows of the features to show instead of the recipe's.

        Returns:
            The batches, whose losses add up to `parts` times the mean over the step.
        """
        examples = [self.example(number, epoch) for number in numbers.tolist()]
        rows = self.images(numbers, examples) if rows is None else rows
        order = np.arange(len(examples))
        if parts > 1:  # Texts of similar length share a batch, which needs less padding.
            order = np.argsort([len(e.read) for e in examples], kind="stable")
        batches = [
            self._pad([examples[i] for i in part], rows[part])
            for part in np.array_split(order, parts)
        ]
        # With the counts of the whole step as divisors, the cut into parts does not weigh a text
        # differently.
        tokens = max(1, sum(len(b.tokens) for b in batches)) / parts
        regions = max(1, sum(len(b.regions) for b in batches)) / parts
        return [b._replace(token_count=tokens, region_count=regions).to(device) for b in batches]

    def _pad(self, examples: Sequence[GroundedExample], rows: Array) -> GroundedBatch:
        """Return examples as one batch, whose counts are not yet the counts of a step."""
        recipe = self.recipe
        start = len(recipe.prefix)
        frame = start + len(recipe.suffix)
        shape = (len(examples), max(len(e.read) for e in examples) + frame)
        ids = np.full(shape, recipe.pad, np.int64)
        text_mask = np.zeros(shape, bool)
        chosen = np.zeros(shape, bool)
        for i, e in enumerate(examples):
            end = start + len(e.read)
            ids[i, :end] = [*recipe.prefix, *e.read]
            ids[i, end : end + len(recipe.suffix)] = recipe.suffix
            text_mask[i, : end + len(recipe.suffix)] = True
            chosen[i, start:end] = e.chosen
        slots, slot_mask, regions, targets = self._show(examples, rows)
        return GroundedBatch(
            ids=torch.from_numpy(ids),
            text_mask=torch.from_numpy(text_mask),
            slots=torch.from_numpy(slots),
            slot_mask=torch.from_numpy(slot_mask),
            masked=torch.from_numpy(np.flatnonzero(chosen)),
            tokens=torch.from_numpy(np.concatenate([e.hidden for e in examples])),
            regions=torch.from_numpy(regions),
            targets=torch.from_numpy(targets),
            token_count=1.0,
            region_count=1.0,
        )

    def _show(
        self, examples: Sequence[GroundedExample], rows: Array
    ) -> tuple[Array, Array, Array, Array]:
        """Return slots, their mask, the regions to predict and their features: `GroundedBatch`."""
        pictures = self.pictures
        width = pictures.width if pictures is not None else 0
        slots = np.zeros((len(examples), 0, width), np.float32)
        slot_mask = np.zeros((len(examples), 0), bool)
        places = [np.zeros((0, 2), np.int64)]
        targets = [np.zeros((0, width), np.float32)]
        # A batch without any image has no slots at all: the model shows it the placeholder.
        if pictures is not None and (rows >= 0).any():
            slots, slot_mask = pictures.gather(rows)
            for i, e in enumerate(examples):
                if e.regions:
                    regions, true = mask_regions(slots[i], slot_mask[i], e.rng, pictures)
                    places.append(np.column_stack([np.full(len(regions), i), regions]))
                    targets.append(true)
        return slots, slot_mask, np.concatenate(places), np.concatenate(targets)


def mask_regions(
    features: Array, mask: Array, rng: np.random.Generator, pictures: PictureFeatures
) -> tuple[Array, Array]:
    """Mask regions of an image: 80 % of the chosen regions become 0, 10 % another, 10 % stay.

    A whole image is always chosen, and becomes 0; 15 % of several regions are chosen, at least one.

    Args:
        features: (N, D); changed in place.
        mask: (N,) bool, which are regions.
        rng: generator of the text.
        pictures: pictures of the run, from which another region comes.

    Returns:
        (R,) the regions chosen, and (R, D) their features as they were.

    Source: Sileo 2021, section 2.2; LXMERT (Tan & Bansal 2019), section 3.1.
    Deviation: the other region comes from any image, not from the batch, because the features shown
        with a text must not depend on its batch. A whole image (N = 1) is always masked, where
        LXMERT masks 15 % of 36 regions and the paper says nothing: else 85 % of captions would
        teach nothing of images.
    """
    present = np.flatnonzero(mask)
    if pictures.regions == 1 or not len(present):
        true = features[present].copy()
        features[present] = 0
        return present, true
    share, kind = rng.random((2, len(present)))
    chosen = share < 0.15
    # At least one region is masked, because the caption would teach nothing otherwise.
    chosen[share.argmin()] = True
    places = present[chosen]
    true = features[places].copy()
    for place, drawn in zip(places.tolist(), kind[chosen].tolist(), strict=True):
        if drawn < 0.8:
            features[place] = 0
        elif drawn < 0.9:
            others, there = pictures.gather(np.array([[rng.integers(len(pictures.ids))]]))
            # The other image may have no region; the masked region then stays as it is.
            known = np.flatnonzero(there[0])
            if len(known):
                features[place] = others[0, known[rng.integers(len(known))]]
    return places, true
