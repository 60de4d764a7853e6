"""Linear probes: can a linear map read the label of a task from vectors of its sentences?

Axes: S sentences, E examples, D dimensions, F features, C classes.

Source: Conneau et al. 2017 (InferSent), section 3.1, for the features of a pair.
Deviation: ridge regression to the classes, which has no seed, for logistic regression.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import islice

import numpy as np

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.measures.evaluation import LEAST, STATISTICS, GoldItems, Measure, content_of
from vgtools.measures.pairs import centred
from vgtools.measures.ridge import fit
from vgtools.measures.subject import Subject
from vgtools.tasks.dispatch import read_examples
from vgtools.tasks.examples import Example, ReadStats
from vgtools.tasks.table import Task, find_splits, find_task


class TaskProbe(Measure):
    """A task of classes, whose training examples teach the map.

    Args:
        name: the evaluation.
        statistic: the task's.
        labels: names of the classes.
        train: examples to learn from.
        dev: examples to measure on.
    """

    def __init__(
        self,
        name: str,
        statistic: str,
        labels: Sequence[str],
        train: Sequence[Example],
        dev: Sequence[Example],
    ) -> None:
        both = [*train, *dev]
        found = dict.fromkeys(text for each in both for text in (each.text, each.pair or each.text))
        row = {text: number for number, text in enumerate(found)}
        self.texts = list(found)
        places = np.array([[row[e.text], row[e.pair or e.text]] for e in both])
        self._train, self._dev = np.split(places, [len(train)])  # (E, 2)
        self._taught = np.array([each.label for each in train], int)
        self._paired = dev[0].pair is not None
        self.items = GoldItems(
            name=name,
            kind="sentence pairs" if self._paired else "sentences",
            statistic=statistic,
            keys=[each.id for each in dev],
            gold=np.array([each.label for each in dev], float),
            labels=labels,
            content=content_of(self.texts, places, self._taught),
        )

    def ask(self, subject: Subject) -> Array:
        """Return the vectors of all sentences, each once: (S, D)."""
        return subject.sentences(self.texts)

    def predict(self, answers: Array, known: Array) -> Array:
        """Return the class of each example of dev whose value is highest."""
        found = np.full(len(self._dev), np.nan)
        vectors = centred(answers, known)
        kept = known[self._train].all(1)
        asked = np.flatnonzero(known[self._dev].all(1))
        if kept.any() and len(asked):
            y = np.eye(len(self.items.labels))[self._taught[kept]]
            weights, intercept = fit(self._features(vectors, self._train[kept]), y)
            values = self._features(vectors, self._dev[asked]) @ weights + intercept
            found[asked] = values.argmax(1)
        return found

    def _features(self, vectors: Array, places: Array) -> Array:
        """Return (E, F) features: the vector; for a pair both, their distances and products."""
        one = vectors[places[:, 0]]
        two = vectors[places[:, 1]]
        return np.hstack([one, two, abs(one - two), one * two]) if self._paired else one


def probe_files(given: str) -> tuple[Task, dict[str, str]]:
    """Return the task that TASK=FOLDER names, and its official files of train and dev.

    Raises:
        DataError: no such task, or not one of classes of texts (usage); a file is missing (66).
    """
    name, _, folder = given.partition("=")
    if not folder:
        raise DataError(f"--probe: expected TASK=FOLDER, got {given!r:.60}", code=Exit.USAGE)
    task = find_task(name)
    if task.kind != "classify" or task.images:
        why = f"--probe: {task.name} has no classes of texts; sst-2, rte and snli have"
        raise DataError(why, code=Exit.USAGE)
    return task, find_splits(task, folder, no_test=True)


def title_of(task: Task, files: Mapping[str, str]) -> str:
    """Return the name of a probe, by its task and its file of dev."""
    return f"{task.name} {os.path.basename(files['dev'])}"


def read_probe(task: Task, files: Mapping[str, str], limit: int) -> TaskProbe:
    """Read the official files of a task.

    Args:
        task: the task.
        files: its files of train and dev.
        limit: training examples, the first ones.

    Raises:
        DataError: a file is of another form, a row to learn from is of a split to evaluate on (65),
            or there are fewer than three examples to measure on.
    """
    learned = ReadStats(learn=True)
    train = list(islice(read_examples(task, files["train"], stats=learned), limit))
    dev = list(read_examples(task, files["dev"]))
    if len(dev) < LEAST:
        raise DataError(f"has {len(dev)} examples; {LEAST} are needed", files["dev"])
    statistic = next(metric for metric in task.metrics if metric in STATISTICS)
    return TaskProbe(title_of(task, files), statistic, task.labels, train, dev)
