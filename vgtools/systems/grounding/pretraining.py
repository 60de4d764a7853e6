"""Pretraining of a grounded language model: texts, captions and images become a `Job`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit, amount, plain
from vgtools.io.inputs import Inputs
from vgtools.io.process import Progress
from vgtools.models.encoder import Encoder, max_positions
from vgtools.models.references import fingerprint, pick_dtype
from vgtools.systems.grounding.inputs import GroundedExamples, GroundedMasking, Sources
from vgtools.systems.grounding.model import (
    KIND,
    TRANSFERRED,
    GroundedBatch,
    GroundedMaskedLM,
    GroundingConfig,
    halve,
)
from vgtools.systems.grounding.texts import GroundingTexts, read_texts
from vgtools.tasks.perplexity import perplexity
from vgtools.text.tokens import tokenizer_fingerprint
from vgtools.training.session import Job, mean_losses
from vgtools.training.steps import plan_for, step_batches

_FIRST = 256  # number of first texts whose states give images their scale
_ASKED = 20_000  # texts that are examined for the share without a query


class GroundedPretraining:
    """One pretraining of a grounded language model on texts and captions.

    Args:
        text: the encoder to start from, with the head of a masked language model.
        inputs: files of texts and captions to train on.
        valid: files to evaluate on.
        sources: files of the images.
        weights: weights of the losses.
        cross_layers: layers of the cross-modal encoder; None for as many as the text encoder has.
        drop_images: probability that a text is shown with the placeholder instead of images.
        dropout: dropout of the cross-modal encoder; None for the text encoder's dropout.
        block: tokens of a text, special ones counted.
        dtype: type of the matrix products.
        gradient_checkpointing: use less memory and more time.
        folder: folder of temporary files.
        quiet: no progress.
        say: prints a message.

    Raises:
        DataError: the encoder takes no such texts (78), or as `Sources.open` and `read_texts`.

    Source: Sileo 2021, sections 2.3 and 3.3.
    """

    kind = KIND

    def __init__(
        self,
        text: Encoder,
        inputs: Sequence[str],
        valid: Sequence[str],
        sources: Sources,
        *,
        weights: Mapping[str, float],
        cross_layers: int | None,
        drop_images: float,
        dropout: float | None,
        block: int,
        dtype: str,
        gradient_checkpointing: bool,
        folder: Path,
        quiet: bool,
        say: Callable[[str], None],
    ) -> None:
        most = max_positions(text.model.config)
        if block > most:
            why = f"--block {block}: the encoder takes {most} tokens"
            raise DataError(why, text.ref, code=Exit.CONFIG)
        self._text = text
        self._start = fingerprint(text.model)
        self._sources = sources
        self._weights = dict(weights)
        self._drop_images = drop_images
        self._dropout = dropout
        self._gradient_checkpointing = gradient_checkpointing
        self._quiet = quiet
        self._say = say
        shown = [path for path in (sources.feats, sources.regions, sources.index) if path]
        # The files are hashed before a text is read: a file that changes while it is read then does
        # not match its hash.
        self.files = Inputs([*inputs, *valid, *shown])
        self._pictures, self._bank = sources.open()
        pictures = self._pictures
        shape = GroundingConfig(
            sources.strategy,
            images=sources.images if pictures else 0,
            regions=pictures.regions if pictures else 0,
            width=pictures.width if pictures else 0,
            layers=cross_layers or text.layers,
        )
        self._model = GroundedMaskedLM(text.model, shape, pick_dtype(dtype))
        self._longest = block - len(text.prefix) - len(text.suffix)
        self._texts = self._read(inputs, folder, train=True)
        self._held = self._read(valid, folder, train=False) if valid else None

    def _read(self, paths: Sequence[str], folder: Path, train: bool) -> GroundingTexts:
        own = self._pictures if self._sources.strategy in TRANSFERRED else None
        with Progress("pretrain: reading", "texts", quiet=self._quiet) as bar:
            texts = read_texts(
                paths,
                self._text.tokenizer,
                self._longest,
                pictures=own,
                raw=self._bank is not None,
                train=train,
                folder=folder,
                progress=bar,
            )
        if texts.empty:
            self._say(f"{plain(texts.name)}: {amount(texts.empty, 'empty text')} left out")
        if texts.replaced:
            lines = amount(texts.replaced, "line")
            self._say(f"{plain(texts.name)}: {lines} had bytes that are not UTF-8, replaced")
        return texts

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, in addition to the flags that every system
        has.
        """
        pictures = self._pictures
        return {
            "strategy": self._sources.strategy,
            "start": self._start,
            "tokenizer": tokenizer_fingerprint(self._text.tokenizer),
            "weights": self._weights,
            "grounding": dataclasses.asdict(self._model.config),
            "features": pictures and pictures.manifest["files"],
            "index": self._bank and self._bank.mark,
            "drop_images": self._drop_images,
            "dropout": self._dropout,
            "inputs": [self._texts.digest],
            "valid": [self._held.digest] if self._held else [],
        }

    def job(self, config: Mapping[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        model = self._model.to(device)
        model.cross.layers.checkpointing = self._gradient_checkpointing
        if self._dropout is not None:
            model.cross.layers.set_dropout(self._dropout)
        recipe = GroundedMasking.of(
            self._text.tokenizer,
            strategy=self._sources.strategy,
            longest=self._longest,
            seed=config["seed"],
            rate=config["mask_rate"],
            drop_images=self._drop_images,
        )
        examples = GroundedExamples(self._texts, recipe, self._pictures, self._bank)
        held = None
        if self._held is not None:
            held = GroundedExamples(self._held, recipe, self._pictures, self._bank)
        plan = plan_for(len(examples), config)
        facts: dict[str, Any] = {}
        if self._bank is not None:
            facts["without_query"] = share = round(share_without_query(examples), 6)
            self._say(f"{share:.2%} of the texts have no word to find images by: placeholder")

        def build(numbers: Array, epoch: int, parts: int) -> list[GroundedBatch]:
            return examples.collate(numbers, epoch, parts, device)

        def judge(batch_size: int) -> dict[str, float]:
            assert held is not None
            return evaluate(model, held, batch_size, device)

        def start() -> None:
            first = np.arange(min(_FIRST, len(examples)))
            # The scale is the words' alone, so no images are looked for.
            (batch,) = examples.collate(first, None, 1, device, rows=np.full((len(first), 0), -1))
            model.calibrate(batch.ids, batch.text_mask)

        def finish() -> tuple[dict[str, Any], Encoder, dict[str, Tensor]]:
            info = {
                "grounding": dataclasses.asdict(model.config),
                "backbone": self._pictures and self._pictures.backbone,
                "index": self._bank and self._bank.mark,
                "texts": len(examples),
                "captions": int((self._texts.image >= 0).sum()),
                **facts,
            }
            return info, self._text, model.state_dict()

        counts = {"token_count": lambda b: len(b.tokens), "region_count": lambda b: len(b.regions)}
        batches = step_batches(len(examples), recipe.seed, plan, build, counts)
        return Job(model, batches, plan, halve, judge if held else None, finish, start)

    def close(self) -> None:
        """Nothing is left over."""


def share_without_query(examples: GroundedExamples) -> float:
    """Return the share of the texts without a visible word that can find images.

    It is measured on the first texts, with the masks of the first epoch.
    """
    bank = examples.bank
    assert bank is not None
    numbers = np.arange(min(_ASKED, len(examples)))
    chosen = [examples.example(n, 0).chosen for n in numbers.tolist()]
    words = bank.words(examples.texts, numbers, chosen)
    text = np.repeat(numbers, np.diff(words.starts))
    if bank.associator.keys == "nouns":
        text = text[words.noun]
    return 1 - len(np.unique(text)) / len(numbers)


def evaluate(
    model: GroundedMaskedLM,
    held: GroundedExamples,
    batch_size: int,
    device: torch.device | str = "cpu",
) -> dict[str, float]:
    """Measure the losses with fixed masks, which no seed and no epoch changes.

    Returns:
        jmlm, perplexity = exp(jmlm), and with t2i jmrm.
    """
    parts = np.array_split(np.arange(len(held)), -(-len(held) // batch_size))
    batches = (batch for part in parts for batch in held.collate(part, None, 1, device))
    means = mean_losses(
        model, batches, lambda batch, name: len(batch.tokens if name == "jmlm" else batch.regions)
    )
    return means | {"perplexity": perplexity(means["jmlm"])}
