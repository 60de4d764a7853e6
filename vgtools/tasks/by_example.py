"""Examples that a second model answers better or worse than a first, and how grounded they are.

Reads the runs of `vg finetune`, their saved predictions and the files that they are about; no model
and no torch is needed.

Axes: N examples.

Source: XDBERT (Hsu et al. 2022), section 4, Figure 4, appendix D.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vgtools.analysis.grounded_words import GroundedWords, permutation_p, spread
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.tasks.compare import Row, TaskRun, aligned, check_examples, data_of, in_order
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.examples import hash_of
from vgtools.tasks.kinds.classify import class_name
from vgtools.tasks.predictions import Items
from vgtools.tasks.table import Task

Record = dict[str, Any]
GROUPS = ("improved", "on par", "worsened")


@dataclass(frozen=True)
class Answers:
    """The answers of two models to the examples of a task, and the words of the examples."""

    task: Task
    models: tuple[str, str]
    seeds: tuple[int, int]  # number of seeds of each model
    ids: list[str]
    labels: list[Any]  # class numbers
    right: Array = field(repr=False)  # (2, N) seeds of each model that are right
    texts: list[list[str]] = field(repr=False)  # N, one or two each
    counts: Array | None = field(repr=False)  # (N, 2) tokens: grounded, content; None: not asked

    @property
    def change(self) -> Array:
        """Return the gain of each example: (N,) share of seeds that are right, second less first.

        It is exactly 0 where the shares are equal, whatever the numbers of seeds.
        """
        # Whole numbers are subtracted before the division, which could round two equal shares
        # to different numbers.
        first, second = self.seeds
        gain = self.right[1] * first - self.right[0] * second
        return np.asarray(gain / (first * second))

    def group(self, name: str) -> Array:
        """Return which examples are improved, on par or worsened: (N,) bool."""
        sign = 1 - GROUPS.index(name)
        chosen: Array = np.sign(self.change) == sign
        return chosen

    @property
    def ratios(self) -> Array:
        """Return the share of each example's content tokens that is grounded, NaN without any."""
        assert self.counts is not None, "needs captions"
        grounded, content = self.counts.T.astype(np.float64)
        ratios: Array = np.full(len(content), np.nan)
        np.divide(grounded, content, out=ratios, where=content > 0)
        return ratios

    def ratios_of(self, group: str) -> Array:
        """Return the ratios of a group, without examples that have no content token."""
        chosen = self.ratios[self.group(group)]
        kept: Array = chosen[~np.isnan(chosen)]
        return kept

    def record(self, samples: int, seed: int) -> Record:
        """Return counts, the accumulated difference, and the ratios of both groups.

        Args:
            samples: samples of the permutation test of the difference of the means.
            seed: seed of the samples.

        Source: section 4: +38 right answers over 5 runs are 38 / 5 / 277 = 2.74 %. Models with
            different numbers of seeds have no accumulated difference.
        """
        alike = self.seeds[0] == self.seeds[1]
        found: Record = {
            "task": self.task.name,
            "models": list(self.models),
            "seeds": list(self.seeds),
            "examples": len(self.ids),
            **{name.replace(" ", "_"): int(self.group(name).sum()) for name in GROUPS},
            "accumulated": int(self.right[1].sum() - self.right[0].sum()) if alike else None,
            "percent": 100 * float(self.change.mean()),
        }
        if self.counts is None:
            return found
        improved, worsened = (self.ratios_of(name) for name in ("improved", "worsened"))
        both = len(improved) and len(worsened)
        return found | {
            "without_content": int(np.isnan(self.ratios).sum()),
            "ratio": {
                "improved": spread(improved),
                "worsened": spread(worsened),
                "difference": float(improved.mean() - worsened.mean()) if both else None,
                "p": permutation_p(improved, worsened, samples, seed),
            },
        }

    def examples(self, count: int, words: GroundedWords) -> Iterator[Record]:
        """Yield the most extreme examples of each group, as appendix D prints them.

        The largest change comes first; equal changes are ordered by how far the seeds of each model
        agree, then as in the file.

        Args:
            count: examples of each group.
            words: marks the texts.
        """
        assert self.counts is not None, "needs captions"
        shares = self.right / np.array(self.seeds)[:, None]
        agreed = np.abs(shares - 0.5).sum(0)
        order = np.lexsort((-agreed, -np.abs(self.change)))
        for name in GROUPS:
            chosen = order[self.group(name)[order] & (self.counts[order, 1] > 0)]
            for number in chosen[:count].tolist():
                grounded, content = self.counts[number].tolist()
                yield {
                    "task": self.task.name,
                    "group": name,
                    "id": self.ids[number],
                    "label": class_name(self.task, self.labels[number]),
                    "models": list(self.models),
                    "right": self.right[:, number].tolist(),
                    "seeds": list(self.seeds),
                    "grounded": grounded,
                    "content": content,
                    "ratio": grounded / content,
                    "texts": [words.marked(text) for text in self.texts[number]],
                }


def read_answers(
    first: Row, second: Row, words: GroundedWords | None, files: Mapping[str, str]
) -> Iterator[Answers]:
    """Yield the answers of two models, one task with classes after another.

    Args:
        first: the baseline.
        second: the other model.
        words: counts the tokens of the texts; None does not read the texts.
        files: task -> file of its examples, instead of the file that the run names.

    Raises:
        DataError: they have no such task in common; predictions are missing, damaged, or of other
            examples; the file of the examples is gone, or is another file.
    """
    both = [name for name in in_order(first.tasks) if name in second.tasks]
    tasks = [name for name in both if first.tasks[name].task.kind == "classify"]
    if not tasks:
        why = f"{first.name} and {second.name} have no task with classes in common"
        raise DataError(f"{why}; in common: {', '.join(both) or 'nothing'}")
    for name in tasks:
        runs = (first.tasks[name], second.tasks[name])
        check_examples(runs[1], runs[0])
        base = runs[0].items()
        other = [aligned(items, base[0], runs[1].path) for items in runs[1].items()]
        right = [np.sum([each.predicted == each.gold for each in run], 0) for run in (base, other)]
        texts = list[list[str]]()
        if words is not None:
            texts = _texts(runs[0], base[0], files.get(name))
        yield Answers(
            task=runs[0].task,
            models=(first.name, second.name),
            seeds=(len(base), len(other)),
            ids=base[0].ids,
            labels=list(base[0].labels),
            right=np.stack(right),
            texts=texts,
            counts=None if words is None else words.counts(texts),
        )


def _texts(run: TaskRun, items: Items, file: str | None) -> list[list[str]]:
    """Return the texts of the examples that a run answered, in the order of its predictions.

    Raises:
        DataError: the file is gone (66), lacks some of them, or labels them otherwise (65).
    """
    path = file or data_of(run, run.split)
    known = {e.id: e for e in read_examples(run.task, path, unlabelled=True)}
    pairs = zip(items.ids, items.labels, strict=True)
    odd = [
        name for name, label in pairs if name not in known or known[name].label not in (None, label)
    ]
    if odd:
        why = f"{len(odd)} of the {len(items.ids)} examples that {run.path} answered are not in it"
        way_out = f"--text {run.task.name}=FILE names the file that was predicted"
        raise DataError(f"{why} with their label, the first {odd[0]!r:.80}; {way_out}", path)
    chosen = [known[name] for name in items.ids]
    facts = run.info.get("data", {}).get(run.split, {})
    whole = facts.get("examples") == len(chosen) and all(e.label is not None for e in chosen)
    made = facts.get("sha256")
    if whole and made not in (None, hash_of(chosen)):
        why = f"its examples have sha256 {hash_of(chosen)}, those that {run.path} answered {made}"
        raise DataError(f"{why}; --text {run.task.name}=FILE names the file", path)
    return [[e.text] if e.pair is None else [e.text, e.pair] for e in chosen]
