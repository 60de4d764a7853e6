"""One module per kind of task.

A new kind is a module here, a line in `KINDS`, and rows of `vgtools.tasks.table`. Scoring
saved predictions must not import torch: kinds import it inside `loss`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vgtools.tasks.examples import Example, ReadStats
from vgtools.tasks.kinds import answer, choice, classify, ground, regress, span, tag, translate
from vgtools.tasks.predictions import Items, Joined, NetworkOutputs
from vgtools.tasks.sequences import Encoding, TaskInputs
from vgtools.tasks.table import Task

if TYPE_CHECKING:
    from torch import Tensor


class Kind(Protocol):
    """The functions that a module of this package offers."""

    def read(
        self, task: Task, path: str | Path, unlabelled: bool, stats: ReadStats
    ) -> Iterator[tuple[int | None, Example]]:
        """Yield (line, example) of an official file; count rows that are left out in `stats`."""

    def gold(self, task: Task, example: Example) -> Any:
        """Return the label of an example as rows of predictions hold it, or None."""

    def encode(self, task: Task, examples: Sequence[Example], how: Encoding) -> TaskInputs:
        """Turn examples into token ids; see `vgtools.tasks.dispatch.encode`."""

    def head(self, task: Task) -> tuple[str, dict[str, Any]] | None:
        """Return the transformers class after `AutoModelFor`, and settings of its configuration.

        None where text alone cannot be learned from.
        """

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        """Return the loss, summed over the units of a batch with `labels` and `mask`."""

    def rows(
        self, task: Task, examples: Sequence[Example], made: NetworkOutputs
    ) -> Iterable[dict[str, Any]]:
        """Return a row of predictions per example, from the outputs of a network."""

    def parse(
        self, task: Task, key: str, value: Any, file: str | Path | None, line: int | None
    ) -> Any:
        """Return a row's `prediction` or `label` as `score` takes it, or raise DataError."""

    def score(self, task: Task, joined: Joined, threshold: float | None = None) -> Items:
        """Score predictions with the official metrics."""

    def majority(self, task: Task, learnt: Sequence[Example]) -> Any:
        """Return the most frequent prediction of the training set, or None if there is none."""


KINDS: dict[str, Kind] = {
    "classify": classify,
    "regress": regress,
    "span": span,
    "choice": choice,
    "answer": answer,
    "ground": ground,
    "tag": tag,
    "translate": translate,
}
