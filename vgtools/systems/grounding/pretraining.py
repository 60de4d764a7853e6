"""Pretraining of a grounded language model: texts, captions and images become a `Job`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit, amount, plain
from vgtools.io.inputs import Inputs
from vgtools.io.process import Progress
from vgtools.models.encoder import Encoder, max_positions
from vgtools.models.references import fingerprint, identity_of, pick_dtype
from vgtools.systems.grounding.inputs import GroundedExamples, GroundedMasking, open_sources
from vgtools.systems.grounding.model import (
    KIND,
    GroundedBatch,
    GroundedMaskedLM,
    GroundingConfig,
    halve,
)
from vgtools.systems.grounding.recipe import TRANSFERRED, CrossModalSettings, Sources
from vgtools.systems.grounding.texts import GroundingTexts, read_texts
from vgtools.tasks.perplexity import perplexity
from vgtools.text.tokens import tokenizer_fingerprint
from vgtools.training.session import Job, Pretraining, mean_losses
from vgtools.training.splits import refuse_shared
from vgtools.training.steps import plan_for, step_batches

_FIRST = 256  # number of first texts whose states give images their scale
_ASKED = 20_000  # texts that are examined for the share without a query


@dataclass
class GroundedPretraining(Pretraining):
    """One pretraining of a grounded language model on texts and captions.

    Raises:
        DataError: the encoder takes no such texts (78), or as `open_sources` and `read_texts`.

    Source: Sileo 2021, sections 2.3 and 3.3.
    """

    kind = KIND

    text: Encoder  # to start from, with the head of a masked language model
    sources: Sources
    settings: CrossModalSettings
    block: int  # tokens of a text, special ones counted

    def __post_init__(self) -> None:
        text = self.text
        sources = self.sources
        most = max_positions(text.model.config)
        if self.block > most:
            why = f"--block {self.block}: the encoder takes {most} tokens"
            raise DataError(why, text.ref, code=Exit.CONFIG)
        self._start = identity_of(fingerprint(text.model), text.settings)
        shown = [path for path in (sources.feats, sources.regions, sources.index) if path]
        # The files are hashed before a text is read: a file that changes while it is read then does
        # not match its hash.
        self.files = Inputs([*self.inputs, *self.valid, *shown])
        self._pictures, self._bank = open_sources(sources)
        pictures = self._pictures
        shape = GroundingConfig(
            sources.strategy,
            images=sources.per_text if pictures else 0,
            regions=pictures.regions if pictures else 0,
            width=pictures.width if pictures else 0,
            layers=self.settings.cross_layers or text.layers,
        )
        self._model = GroundedMaskedLM(text.model, shape, pick_dtype(self.dtype))
        self._longest = self.block - len(text.prefix) - len(text.suffix)
        self._texts = self._read(self.inputs, train=True)
        self._held = self._read(self.valid, train=False) if self.valid else None
        if self._held is not None:
            refuse_shared(self._texts.images, self._held.images, self._held.name)

    def _read(self, paths: Sequence[str], train: bool) -> GroundingTexts:
        own = self._pictures if self.sources.strategy in TRANSFERRED else None
        note = self.session.note
        with Progress("pretrain: reading", "texts", quiet=self.session.quiet) as bar:
            texts = read_texts(
                paths,
                self.text.tokenizer,
                self._longest,
                pictures=own,
                raw=self._bank is not None,
                train=train,
                folder=self.session.folder.parent,
                progress=bar,
            )
        if texts.empty:
            note(f"{plain(texts.name)}: {amount(texts.empty, 'empty text')} left out")
        if texts.replaced:
            lines = amount(texts.replaced, "line")
            note(f"{plain(texts.name)}: {lines} had bytes that are not UTF-8, replaced")
        return texts

    def config(self) -> dict[str, Any]:
        """Return the settings that decide the weights, in addition to the flags that every system
        has.
        """
        pictures = self._pictures
        return {
            "strategy": self.sources.strategy,
            "start": self._start,
            "tokenizer": tokenizer_fingerprint(self.text.tokenizer),
            "weights": dict(self.weights),
            "grounding": dataclasses.asdict(self._model.config),
            "features": pictures and pictures.manifest["files"],
            "index": self._bank and self._bank.mark,
            "drop_images": self.settings.drop_images,
            "dropout": self.settings.dropout,
            "inputs": [self._texts.digest],
            "valid": [self._held.digest] if self._held else [],
        }

    def job(self, config: Mapping[str, Any], device: torch.device) -> Job:
        """Return the model with its batches."""
        model = self._model.to(device)
        model.cross.layers.checkpointing = self.gradient_checkpointing
        if self.settings.dropout is not None:
            model.cross.layers.set_dropout(self.settings.dropout)
        recipe = GroundedMasking.of(
            self.text.tokenizer,
            strategy=self.sources.strategy,
            longest=self._longest,
            seed=config["seed"],
            rate=config["mask_rate"],
            drop_images=self.settings.drop_images,
        )
        examples = GroundedExamples(self._texts, recipe, self._pictures, self._bank)
        held = None
        if self._held is not None:
            held = GroundedExamples(self._held, recipe, self._pictures, self._bank)
        for each in (examples, held):
            if each is not None and each.remark is not None:
                self.session.note(each.remark)
        plan = plan_for(len(examples), config)
        facts: dict[str, Any] = {}
        if self._bank is not None:
            facts["without_query"] = share = round(share_without_query(examples), 6)
            self.session.note(
                f"{share:.2%} of the texts have no word to find images by: placeholder"
            )

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
            return info, self.text, model.state_dict()

        counts = {"token_count": lambda b: len(b.tokens), "region_count": lambda b: len(b.regions)}
        batches = step_batches(len(examples), recipe.seed, plan, build, counts)
        return Job(model, batches, plan, halve, judge if held else None, finish, start)


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
    return means | ({"perplexity": perplexity(means["jmlm"])} if "jmlm" in means else {})
