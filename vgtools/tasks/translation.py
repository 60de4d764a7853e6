"""Translation: an encoder-decoder learns pairs of sentences, and translates after every epoch.

Axes: B pairs of a batch, T source tokens, S target tokens, V entries of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.models.encoder import Encoder, as_encoder, load_seq2seq
from vgtools.models.memory import in_batches
from vgtools.models.precision import autocast
from vgtools.models.references import load_tokenizer
from vgtools.models.seq2seq import GREEDY, Decoding, new_seq2seq, shift_right, translate
from vgtools.tasks.dispatch import predictions
from vgtools.tasks.finetune import (
    FineTuner,
    Learner,
    Split,
    TaskBatch,
    collate,
)
from vgtools.tasks.kinds.translate import IGNORED, PairInputs, signature
from vgtools.tasks.sequences import InputsWithImages
from vgtools.training.steps import in_drawn_order, steps_by_tokens

_SENTENCES = 64  # sentences that are decoded together


@dataclass(frozen=True)
class TranslationStart:
    """The start of a translation model: a shape with a tokenizer, or a model.

    Attributes:
        ref: hub name, directory or model of a finished run; with `shape` the tokenizer's reference.
        shape: a key of `vgtools.models.seq2seq.SHAPES`; None continues from `ref`.
    """

    ref: str
    shape: str | None = None

    def open(self, seed: int) -> Encoder:
        """Return the model with its tokenizer, in float32 on the CPU.

        Raises:
            DataError: as `load_seq2seq`, `load_tokenizer` and `new_seq2seq`.
        """
        torch.manual_seed(seed)
        if self.shape is None:
            return load_seq2seq(self.ref)
        tokenizer = load_tokenizer(self.ref)
        return as_encoder(new_seq2seq(self.shape, tokenizer, self.ref), tokenizer, self.ref)


class Translator(FineTuner):
    """A transformers encoder-decoder and its loss.

    Args:
        encoder: the network with its tokenizer.
        kind: kind of the task.
        dtype: numbers that the products are computed with (autocast); weights stay float32.
    """

    def __init__(self, encoder: Encoder, kind: str, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(encoder.model, kind, dtype)
        self.tokenizer = encoder.tokenizer

    def outputs(self, batch: TaskBatch) -> Tensor:
        """Return (B, S, V) logits of the tokens of (B, S) labels, each after those before it."""
        assert batch.labels is not None
        with autocast(batch.ids.device, self.dtype):
            made = self.net(
                input_ids=batch.ids,
                attention_mask=batch.mask,
                decoder_input_ids=shift_right(batch.labels, self.net.config),
                use_cache=False,
            )
        return made.logits.float()  # type: ignore[no-any-return]

    def nats(self, batch: TaskBatch) -> Tensor:
        """Return (B,) summed negative log probabilities of the labels, nothing smoothed."""
        assert batch.labels is not None
        each = F.cross_entropy(
            self.outputs(batch).transpose(1, 2),
            batch.labels,
            ignore_index=IGNORED,
            reduction="none",
        )
        return each.sum(1)


def config() -> dict[str, Any]:
    """Return the facts that decide scores in addition to the settings, for `run.json`."""
    return {"sacrebleu": signature()}


class TranslationLearner(Learner):
    """Learner of translation, which decodes greedily each epoch and with beams at the end.

    With a `shape` in the settings the reference to start from names a tokenizer.

    Source: Zhang et al. 2019, section 4.2.
    """

    searches = True

    @property
    def start(self) -> TranslationStart:
        """The model that training starts from."""
        return TranslationStart(self.ref, self.settings.get("shape"))

    def new(self, seed: int) -> tuple[Translator, Encoder]:
        """Return the model and its tokenizer."""
        encoder = self.start.open(seed)
        return Translator(encoder, self.task.kind, self.dtype), encoder

    def collate(self, tuner: Any, inputs: Any, units: Array, part: int = 0, parts: int = 1) -> Any:
        """Return a part of the batch of a step; the texts of a pair are not numbered."""
        return collate(inputs, units, tuner.pad, False, self.device, part, parts)

    def shown(self, tuner: Any, inputs: Any, units: Array) -> AbstractContextManager[Any]:
        """Return a context in which units are decoded."""
        return nullcontext()

    def translate(self, tuner: Any, split: Split, how: Decoding) -> list[dict[str, Any]]:
        """Return a row of predictions per pair, with the nats of its translation where that is
        known.
        """
        given = split.inputs
        inputs = given.text if isinstance(given, InputsWithImages) else given
        assert isinstance(inputs, PairInputs)
        shown = partial(self.shown, tuner, given)
        lengths = inputs.lengths
        sources = np.split(inputs.ids, inputs.starts[1:-1])
        found = translate(tuner.net, sources, how, _SENTENCES, shown=shown, dtype=tuner.dtype)
        texts = tuner.tokenizer.decode_batch(found)
        nats = np.zeros(len(inputs))
        tokens = np.zeros(len(inputs), np.int64)
        if inputs.target_starts is not None:
            tokens = np.diff(inputs.target_starts)

            @torch.no_grad()
            def work(units: Array) -> Array:
                batch = self.collate(tuner, given, units)
                return np.asarray(tuner.nats(batch).cpu().numpy())

            def hint(unit: int) -> str:
                return f"one pair of {lengths[unit] + tokens[unit]} tokens"

            was_training = tuner.training
            tuner.eval()
            # Source and target both take memory, so that the largest pair comes first.
            order = np.argsort(-lengths - tokens, kind="stable")
            for units, part in in_batches(order, _SENTENCES, work, hint):
                nats[units] = part
            tuner.train(was_training)
        outputs = zip(texts, nats.tolist(), tokens.tolist(), strict=True)
        return predictions(self.task, split.examples, inputs, list(outputs))

    def predict(self, tuner: Any, split: Split) -> list[dict[str, Any]]:
        """Return greedy translations."""
        return self.translate(tuner, split, GREEDY)

    def predict_kept(self, tuner: Any, split: Split) -> list[dict[str, Any]]:
        """Return translations by beams."""
        return self.translate(tuner, split, Decoding())

    def cut(self, inputs: Any, seed: int, epoch: int) -> Sequence[Array]:
        """Return the units of each step of an epoch: `batch_size` source tokens, neighbours in
        length.
        """
        steps = steps_by_tokens(inputs.lengths, self.settings["batch_size"])
        return in_drawn_order(steps, seed, epoch)
