"""Training of the token-image matcher: captions are read, split, and trained on."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from vgtools.checkpoint import Encoder
from vgtools.errors import amount
from vgtools.io import DataError, Features, Progress, dumps, read_jsonl
from vgtools.nn import PackedEncoder
from vgtools.systems.vokenization import (
    Captions,
    HiddenStates,
    TokenImageMatcher,
    evaluate_matcher,
    make_batches,
    matcher_config,
    read_captions,
    score,
)
from vgtools.training.session import Session
from vgtools.training.steps import plan_for, train_config

Rows = list[tuple[int, str]]  # (feature row, caption)


@dataclass
class Splits:
    """The captions of a training."""

    train: Rows = field(default_factory=list)
    valid: Rows = field(default_factory=list)
    unsplit: int = 0  # captions without a split, left out as others have one

    def digest(self) -> str:
        """Return the sha256 of what is read."""
        return digest({"train": self.train, "valid": self.valid})


def digest(value: object) -> str:
    """Return the sha256 of a JSON value."""
    return hashlib.sha256(dumps(value)).hexdigest()


def read_splits(path: str, bank: Features, split: str | None, valid_split: str | None) -> Splits:
    """Return the captions to train and to validate on; in a file without splits all train.

    Args:
        path: of the rows {"image", "text"}, some with a "split".
        bank: features of their images.
        split: to train on; None for all.
        valid_split: to validate on.

    Raises:
        DataError: a row is not of this form, or its image has no features.
    """
    row_of = {name: i for i, name in enumerate(bank.ids)}
    splits = Splits()
    unsplit = Rows()
    others = 0
    for line, row in read_jsonl(path, {"image": str, "text": str}):
        own = row.get("split")
        if own is not None and not isinstance(own, str):
            raise DataError(f'"split" must be a string, got {own!r:.60}', path, line)
        if split is not None and own is not None and own not in (split, valid_split):
            others += 1
            continue
        if row["image"] not in row_of:
            raise DataError(
                f"the image {row['image']!r:.80} has no features among the {len(row_of)} of FEATS; "
                "extract them, or leave the caption out",
                path,
                line,
            )
        if own is not None and own == valid_split:
            part = splits.valid
        elif split is not None and own is None:
            part = unsplit
        else:
            part = splits.train
        part.append((row_of[row["image"]], row["text"]))
    if unsplit and not others and not splits.train and not splits.valid:
        return Splits(train=unsplit)
    splits.unsplit = len(unsplit)
    return splits


def hold_out(splits: Splits, number: int, path: str) -> Splits:
    """Move the captions of some training images to validation: the same images for every seed.

    Raises:
        DataError: fewer than 2 images are left to train on, or images are in both parts.
    """
    images = sorted(
        {image for image, _ in splits.train},
        key=lambda image: hashlib.sha256(str(image).encode()).digest(),
    )
    if len(images) - number < 2:
        raise DataError(
            f"captions of {amount(len(images), 'image')} to train on, less {number} held out: at "
            "least 2 must stay, one to match and one to distinguish; check --split and the "
            '"split" of the rows',
            path,
        )
    held = set(images[:number])
    train = [row for row in splits.train if row[0] not in held]
    valid = splits.valid + [row for row in splits.train if row[0] in held]
    both = {image for image, _ in train} & {image for image, _ in valid}
    if both:
        raise DataError(
            f"{len(both)} images are in both training and validation; split by image", path
        )
    return Splits(train, valid, splits.unsplit)


def fit(
    session: Session,
    encoder: Encoder,
    bank: Features,
    splits: Splits,
    stop_words: frozenset[str],
    budget: int,
) -> None:
    """Train a matcher to its last epoch, and write the run with the best.

    Args:
        session: its run holds the settings.
        encoder: of the captions.
        bank: features of the images.
        splits: the captions.
        stop_words: words that are no content words.
        budget: bytes of memory for hidden states.

    Raises:
        DataError: fewer than 2 images to train on, or as `Session.fit`.
    """
    run = session.run
    config = run.config
    packed = PackedEncoder(encoder, config["layers"])
    data: dict[str, tuple[Captions, HiddenStates]] = {}
    left_out: dict[str, dict[str, int]] = {}
    what = "train-matcher: hidden states"
    with Progress(what, "tokens", quiet=session.quiet) as bar:

        def watch(tokens: int) -> None:
            bar.advance(tokens)
            session.stop.check()

        for name, rows in (("train", splits.train), ("valid", splits.valid)):
            if rows:
                images, texts = zip(*rows, strict=True)
                captions, left_out[name] = read_captions(
                    texts, images, encoder.tokenizer, encoder.max_tokens, stop_words
                )
                states = HiddenStates(packed, captions.tokens, budget, watch)
                data[name] = captions, states
                budget -= states.held
    for name, counts in left_out.items():
        if any(counts.values()):
            session.note(
                f"{name}: {counts['empty']} captions without a token left out, {counts['cut']} cut "
                f"to {encoder.max_tokens} tokens"
            )
    captions, states = data["train"]
    if len(set(captions.images.tolist())) < 2:
        raise DataError(
            "captions of fewer than 2 images hold a token; there is nothing to distinguish"
        )
    shape = matcher_config(
        config, text_width=packed.layers * encoder.width, image_width=bank.array.shape[1]
    )
    torch.manual_seed(config["seed"])
    matcher = TokenImageMatcher(shape).to(session.device)
    size = config["batch_size"]
    batches = make_batches(
        captions, states, bank.array, shape, size, config["seed"], session.device
    )
    plan = plan_for(len(captions.images), {**config, "steps": None})
    settings = train_config({**config, "weight_decay": 0.0, "clip": 5.0}, plan, log_every=10)
    for record in session.fit(matcher, batches, settings, weights={shape.loss: 1.0}):
        if record.pop("end"):
            measured: Mapping[str, Any] | None = None
            if "valid" in data:
                measured = evaluate_matcher(matcher, *data["valid"], bank.array)
                record["valid"] = measured
            run.end_epoch(matcher, record, score(measured))
    facts = {
        "matcher": dataclasses.asdict(shape),
        "backbone": bank.manifest.get("backbone"),
        "left_out": left_out,
    }
    session.finish(lambda: (facts, encoder))
