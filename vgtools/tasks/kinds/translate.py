"""Translations of sentences, scored by BLEU and chrF.

Source: Papineni et al. 2002 and Popović 2015, as sacrebleu computes them (Post 2018).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.streams import read_jsonl, require
from vgtools.tasks.examples import Example, ReadStats
from vgtools.tasks.predictions import (
    Items,
    Joined,
    NetworkOutputs,
    check_number,
    count_items,
    make_row,
)
from vgtools.tasks.sequences import Encoding, TaskInputs
from vgtools.tasks.table import Task
from vgtools.text.subwords import encode_all

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100  # label of a place after the end of a translation
SMOOTHING = 0.1  # smoothing of labels: section 4.2
_ORDERS = 4  # n-grams of 1 to 4 words


@dataclass(frozen=True, slots=True)
class PairExample(Example):
    """A sentence and its translation, None if the file has none."""

    target: str | None = None


@dataclass(frozen=True)
class PairInputs(TaskInputs):
    """Sentences as token ids, and their translations likewise."""

    target_ids: Array | None = None  # (S,) int32 tokens of all translations, ends included
    target_starts: Array | None = None  # (U + 1,) where each starts

    def weight(self, units: Array) -> float:
        """Return the tokens of these units' translations."""
        assert self.target_starts is not None
        return float(np.diff(self.target_starts)[units].sum())

    def targets(self, units: Array) -> Array | None:
        """Return (B, S) int64 translations, `IGNORED` after their ends."""
        if self.target_ids is None or self.target_starts is None:
            return None
        lengths = np.diff(self.target_starts)[units]
        place = np.arange(lengths.max())
        mask = place < lengths[:, None]
        labels = np.full(mask.shape, IGNORED, np.int64)
        labels[mask] = self.target_ids[(self.target_starts[units][:, None] + place)[mask]]
        return labels


# ----------------------------------------------------------------------------------------- reading


def read(
    task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
) -> Iterator[tuple[int, Example]]:
    """Yield (line, example) of rows `text`, `target`, as vg prepare pairs writes them."""
    for line, row in read_jsonl(path, {"text": str}):
        stats.check(row, path, line)
        target = row.get("target")
        if target is not None or not unlabelled:
            require(row, {"target": str}, path, line)
        yield line, PairExample(str(row.get("id", line - 1)), row["text"], target=target)


def gold(task: Task, example: Example) -> str | None:
    """Return the translation."""
    return example.target if isinstance(example, PairExample) else None


def encode(task: Task, examples: Sequence[Example], how: Encoding) -> PairInputs:
    """Turn sentences and their translations into token ids, each cut to `max_length`."""
    sources, cut = encode_all(how.tokenizer, [e.text for e in examples], how.max_length)
    translations = [gold(task, e) for e in examples]
    ids = starts = None
    known = [text for text in translations if text is not None]
    if len(known) == len(translations):
        targets, shortened = encode_all(how.tokenizer, known, how.max_length)
        ids, starts = _flat(targets)
        cut += shortened
    flat, places = _flat(sources)
    units = np.arange(len(examples))
    return PairInputs(
        flat, places, np.diff(places), 1, units, None, cut=cut, target_ids=ids, target_starts=starts
    )


def _flat(rows: Sequence[Array]) -> tuple[Array, Array]:
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)])
    return np.concatenate(rows), starts


# ---------------------------------------------------------------------------------------- learning


def head(task: Task) -> None:
    """Return nothing: an encoder and its head do not translate."""


def loss(outputs: Tensor, batch: Any) -> Tensor:
    """Return the cross entropy of (B, S, V) logits with smoothed labels, in nats.

    Source: Szegedy et al. 2016, section 7; the paper's section 4.2 (0.1).
    """
    from torch.nn import functional as F

    return F.cross_entropy(
        outputs.flatten(0, 1),
        batch.labels.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=SMOOTHING,
    )


def rows(task: Task, examples: Sequence[Example], made: NetworkOutputs) -> Iterator[dict[str, Any]]:
    """Yield rows with the translation and, where the gold is known, its nats and its tokens.

    Args: as `vgtools.tasks.kinds.Kind`; outputs: (translation, nats, tokens) of each example.
    """
    for example, (text, nats, tokens) in zip(examples, made.outputs, strict=True):
        row = make_row(example.id, text, gold(task, example))
        yield row | ({"nats": nats, "tokens": tokens} if tokens else {})


# ----------------------------------------------------------------------------------------- scoring


def parse(task: Task, key: str, value: Any, file: str | Path | None, line: int | None) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise DataError(f'"{key}" must be a string, got {value!r:.60}', file, line)
    return value


def score(task: Task, joined: Joined, threshold: float | None = None) -> Items:
    """Score translations of a corpus; perplexity is per token, where rows have its nats."""
    from sacrebleu.metrics.chrf import CHRF

    counts = bleu_counts(joined.predicted, joined.gold)
    scores = {
        "bleu": float(bleu(counts.sum(0))),
        "chrf": CHRF().corpus_score(joined.predicted, [joined.gold]).score / 100,
    }
    if all("nats" in row and "tokens" in row for row in joined.rows):
        totals = [
            sum(_amount(key, row, joined.file) for row in joined.rows) for key in ("nats", "tokens")
        ]
        scores["perplexity"] = float(np.exp(totals[0] / max(1, totals[1])))
    return count_items(joined, counts, bleu, scores)


def _amount(key: str, row: Mapping[str, Any], file: str | Path | None) -> float:
    value = check_number(key, row[key], file, None)
    if value < 0:
        why = f'"{key}" of the id {row["id"]!r:.60} must be 0 or more, got {value:g}'
        raise DataError(why, file)
    return value


def bleu_counts(predicted: Sequence[str], gold: Sequence[str]) -> Array:
    """Return (N, 10): words predicted and gold, n-grams right and predicted, n from 1 to 4."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU(effective_order=True)  # otherwise sacrebleu warns about single sentences
    counts = np.zeros((len(predicted), 2 + 2 * _ORDERS))
    for row, said, real in zip(counts, predicted, gold, strict=True):
        found = metric.sentence_score(said, [real])
        row[:] = [found.sys_len, found.ref_len, *found.counts, *found.totals]
    return counts


def bleu(counts: Array) -> Array:
    """Return BLEU of (..., 10) summed counts, in 0…1.

    Source: sacrebleu's `exp` smoothing: the k-th order without a hit counts 2**-k hits.
    """
    said = counts[..., 0]
    real = counts[..., 1]
    right = counts[..., 2 : 2 + _ORDERS]
    total = counts[..., 2 + _ORDERS :]
    missed = np.cumsum(right == 0, -1)
    hits = np.where(right > 0, right, 0.5**missed)
    precision = np.divide(hits, total, out=np.zeros_like(hits), where=total > 0)
    longer = np.divide(real, said, out=np.ones_like(said), where=said > 0)
    brevity = np.exp(np.minimum(0, 1 - longer))
    with np.errstate(divide="ignore"):  # log(0) is minus infinity, which makes the BLEU 0, as meant
        found = brevity * np.exp(np.log(precision).mean(-1))
    # Without a single hit the score is 0, where smoothing alone would give more.
    return np.where((right > 0).any(-1), found, 0.0)


def signature() -> str:
    """Return sacrebleu's signature of the BLEU that is printed."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    metric.corpus_score(["a"], [["a"]])
    return str(metric.get_signature())


def majority(task: Task, learnt: Sequence[Example]) -> None:
    """Translations have no classes."""
