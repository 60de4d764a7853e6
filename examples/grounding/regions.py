"""Measure what a run that learns images (t2i, both) predicts of unseen ones, next to the median.

    python regions.py RUN dev.jsonl --train train.jsonl --feats feats.npy

prints a record: mean L1 distance per number of the feature, of the run and of the median feature of
the training images, and their difference with its 95 % interval over images, paired.

Source: Sileo 2021, section 2.2, equation 2, divided by the feature's width.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import torch

from vgtools.io.files import dumps
from vgtools.io.streams import read_jsonl
from vgtools.systems.grounding.inputs import GroundedExamples, GroundedMasking
from vgtools.systems.grounding.model import open_grounding
from vgtools.systems.grounding.pictures import open_pictures
from vgtools.systems.grounding.texts import read_texts
from vgtools.tasks.metrics import paired_bootstrap
from vgtools.tasks.perplexity import groups_of, mean_nll


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("captions")
    parser.add_argument("--train", required=True)
    parser.add_argument("--feats", required=True)
    parser.add_argument("--block", type=int, default=32)
    args = parser.parse_args()
    found = open_grounding(args.run)
    text = found.text
    pictures = open_pictures(args.feats, None, 36)
    assert pictures is not None
    trained = {row["image"] for _, row in read_jsonl(args.train)}
    rows = np.array([pictures.row(image) for image in sorted(trained)])
    median = np.median(pictures.gather(rows[:, None])[0][:, 0], axis=0)

    longest = args.block - len(text.prefix) - len(text.suffix)
    texts = read_texts([args.captions], text.tokenizer, longest, pictures=pictures)
    recipe = GroundedMasking.of(text.tokenizer, strategy="t2i", longest=longest)
    examples = GroundedExamples(texts, recipe, pictures)
    ours = list[float]()
    theirs = list[float]()
    for numbers in np.array_split(np.arange(len(texts)), -(-len(texts) // 64)):
        (batch,) = examples.collate(numbers, None)
        states = found.model.states(batch)
        chosen = states[batch.regions[:, 0], batch.ids.shape[1] + batch.regions[:, 1]]
        ours += (found.model.jmrm(chosen) - batch.targets).abs().mean(1).tolist()
        theirs += np.abs(batch.targets.numpy() - median).mean(1).tolist()
    groups = groups_of(texts.image)
    counts, run, baseline = (np.bincount(groups, x) for x in (np.ones(len(groups)), ours, theirs))
    change = paired_bootstrap(mean_nll, counts, baseline, run)
    record = {
        "run": args.run,
        "images": len(counts),
        "l1": run.sum() / counts.sum(),
        "median": baseline.sum() / counts.sum(),
        "difference": {"l1": change.value, "low": change.low, "high": change.high, "p": change.p},
    }
    sys.stdout.buffer.write(dumps(record))


if __name__ == "__main__":
    main()
