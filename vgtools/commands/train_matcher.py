"""`vg train-matcher`: captions and image features become a token-image matcher."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from vgtools.commands.options import Device, Offline, Quiet, Restart, Seed, choice, run_folder
from vgtools.errors import amount

if TYPE_CHECKING:
    import torch

    from vgtools.checkpoint import Encoder
    from vgtools.io import Features, Stop
    from vgtools.train import TrainingRun

_SECONDS = 60  # between checkpoints inside an epoch

Rows = dict[str, list[tuple[int, str]]]  # "train" and "valid": (feature row, caption)

Flag = typer.Option


def train_matcher(
    captions: Annotated[str, typer.Argument(metavar="CAPTIONS", help='Rows {"image": ID, "text": …}: .jsonl, .gz, .zst, -.')],
    feats: Annotated[str, typer.Argument(metavar="FEATS", help="X.npy of vg extract-image-feats, with X.ids and X.json.")],
    output: Annotated[str, Flag("--output", "-o", help="Run directory; the same command again resumes it.")],
    encoder: Annotated[str, Flag("--encoder", "-e", help="Hub name, directory or builtin:NAME.")] = "builtin:minilm",
    preset: Annotated[str, Flag(help="default: the recipe that measured best. paper: that of the paper.")] = "default",
    level: Annotated[str, Flag(help="token, or sentence: [CLS] against the image (appendix A.4).")] = "token",
    valid: Annotated[str | None, Flag(help="Captions to validate on; their images must be in FEATS, too.")] = None,
    hold_out: Annotated[int, Flag(min=0, help="Keep so many images out of training and validate on them.")] = 0,
    split: Annotated[str, Flag(help='Of rows that have a "split", train on this one.')] = "train",
    valid_split: Annotated[str | None, Flag(help='Of rows that have a "split", validate on this one.')] = None,
    epochs: Annotated[int | None, Flag(min=1, help="Passes over the captions [default: 6; paper: 20].")] = None,
    batch_size: Annotated[int | None, Flag(min=2, help="Captions a step [default: 384; paper: 256].")] = None,
    lr: Annotated[float | None, Flag(min=0, help="Highest learning rate of Adam [default: 0.0015; paper: 0.001].")] = None,
    schedule: Annotated[str | None, Flag(help="constant, linear or cosine [default: cosine; paper: constant].")] = None,
    loss: Annotated[str | None, Flag(help="info_nce or hinge [default: info_nce; paper: hinge].")] = None,
    margin: Annotated[float | None, Flag(help="Margin of the hinge [0.5].")] = None,
    share: Annotated[
        float | None,
        Flag(
            min=0,
            max=1,
            help=("InfoNCE: part of a content word's target shared by all photos whose captions hold its stem [0.7]."),
        ),
    ] = None,
    stop_share: Annotated[
        float | None, Flag(min=0, max=1, help=("Part of stop words and punctuation to learn from [default: 0.3; paper: 1]."))
    ] = None,
    sentence: Annotated[
        bool | None,
        Flag(
            "--sentence/--no-sentence", help=("Add the sentence's mean hidden state to each token [default: yes; paper: no].")
        ),
    ] = None,
    root: Annotated[
        bool | None, Flag("--root/--no-root", help=("Take the square root of image features [default: yes; paper: no]."))
    ] = None,
    layers: Annotated[int, Flag(min=1, help="Last layers of the encoder, concatenated (paper: 4).")] = 4,
    hidden: Annotated[int | None, Flag(min=1, help="Hidden width of the MLPs [default: 512; paper: 256].")] = None,
    dim: Annotated[int | None, Flag(min=1, help="Width of the shared space [default: 256; paper: 64].")] = None,
    dropout: Annotated[float | None, Flag(min=0, max=0.99, help="Behind the hidden layer [0.3].")] = None,
    stop_words: Annotated[str | None, Flag(help="File of words that are no content words, one a line.")] = None,
    cache_gb: Annotated[
        float,
        Flag(min=0, help="GiB for hidden states: computed once if they fit, else in every epoch; same result up to rounding."),
    ] = 4.0,
    seed: Seed = 0,
    device: Device = "auto",
    offline: Offline = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Train the contextual token-image matching model on captions and image features.

    Text encoder and image backbone stay as they are; small networks project the hidden states of tokens and the features of
    images into one space. Prints one record an epoch: losses and, with --valid, --valid-split or --hold-out, the true recall
    over all validation images in per cent (R@1, 5, 10 of words, content words and captions), chance beside it, and `concept`,
    how often a content word's best image has a caption with that word's stem. The best epoch is kept; without validation it
    is the last.

    The run directory holds matcher.safetensors, the encoder, run.json and metrics.jsonl.

    Examples:

        vg train-matcher captions.jsonl feats.npy --hold-out 400 -o matcher

        vg train-matcher captions.jsonl feats.npy --preset paper --valid dev.jsonl -o matcher.paper
    """
    choice(preset, ("default", "paper"), "--preset")
    choice(level, ("token", "sentence"), "--level")
    from vgtools import io
    from vgtools.checkpoint import load_encoder, pick_device
    from vgtools.systems import vokenization as system
    from vgtools.text import load_stop_words
    from vgtools.train import TrainingRun

    settings = system.preset(
        preset,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        schedule=schedule,
        loss=loss,
        margin=margin,
        share=share,
        stop_share=stop_share,
        sentence=sentence,
        root=root,
        hidden=hidden,
        dim=dim,
        dropout=dropout,
    )
    choice(settings["schedule"], ("constant", "linear", "cosine"), "--schedule")
    choice(settings["loss"], ("info_nce", "hinge"), "--loss")
    if "-" in (feats, output) or (valid == "-" == captions):
        raise io.DataError("only CAPTIONS or --valid can come from a pipe", "-", code=io.Exit.USAGE)
    bank = io.open_features(feats)
    rows = _read(captions, bank, split, valid_split, quiet)
    if valid is not None:
        rows["valid"] += [row for part in _read(valid, bank, None, None, quiet).values() for row in part]
    _hold_out(rows, hold_out, captions)
    where = pick_device(device)
    folder = run_folder(output)
    with io.Stop() as stop, contextlib.ExitStack() as stack:
        stack.callback(io.Lock(folder).release)
        text = load_encoder(encoder, device=device, offline=offline)
        words = load_stop_words(stop_words)
        config = {
            "preset": preset,
            "level": level,
            "layers": layers,
            **settings,
            "seed": seed,
            "hold_out": hold_out,
            "captions": _digest(rows),
            "feats": bank.manifest["files"],
            "encoder": text.fingerprint,
            "stop_words": _digest(sorted(words)),
            "device": where.type,
        }
        run = TrainingRun(folder, "matcher", config, restart)
        if not run.complete:
            _fit(run, text, bank, rows, words, where, int(cache_gb * 2**30), stop, quiet)
    for record in run.records:
        sys.stdout.buffer.write(io.dumps(record))


def _fit(
    run: TrainingRun,
    text: Encoder,
    bank: Features,
    rows: Rows,
    stop_words: frozenset[str],
    device: torch.device,
    budget: int,
    stop: Stop,
    quiet: bool,
) -> None:
    """Train until the last epoch, or to the checkpoint at which a signal asks to stop."""
    import torch

    from vgtools import io
    from vgtools.nn import PackedEncoder
    from vgtools.systems import vokenization as system
    from vgtools.train import TrainConfig, train

    config = run.config
    encoder = PackedEncoder(text, config["layers"])
    data: dict[str, tuple[system.Captions, system.HiddenStates]] = {}
    left_out: dict[str, dict[str, int]] = {}
    with io.Progress("train-matcher: hidden states", "tokens", quiet=quiet) as bar:

        def watch(tokens: int) -> None:
            bar.advance(tokens)
            stop.check()

        for part in ("train", "valid"):
            if rows[part]:
                images, texts = zip(*rows[part], strict=True)
                captions, left_out[part] = system.read_captions(texts, images, text.tokenizer, text.max_tokens, stop_words)
                data[part] = captions, system.HiddenStates(encoder, captions.tokens, budget, watch)
                budget -= data[part][1].held
    for part, counts in left_out.items():
        if any(counts.values()) and not quiet:
            print(
                f"vg train-matcher: {part}: {counts['empty']} captions without a token left out, {counts['cut']} cut to "
                f"{text.max_tokens} tokens",
                file=sys.stderr,
            )
    captions, states = data["train"]
    if len(set(captions.images.tolist())) < 2:
        raise io.DataError("captions of fewer than 2 images hold a token; there is nothing to tell apart")
    shape = system.matcher_config(config, text_width=encoder.layers * text.width, image_width=bank.array.shape[1])
    torch.manual_seed(config["seed"])
    matcher = system.TokenImageMatcher(shape).to(device)
    per_epoch = system.steps_per_epoch(captions, config["batch_size"])
    steps = config["epochs"] * per_epoch
    plan = TrainConfig(
        epochs=config["epochs"],
        steps=steps,
        lr=config["lr"],
        schedule=config["schedule"],
        warmup=round(config["warmup"] * steps),
        seed=config["seed"],
        log_every=10,
    )
    batches = system.make_batches(captions, states, bank.array, shape, config["batch_size"], config["seed"], device)
    saved = time.monotonic()
    with io.Progress("train-matcher", "steps", steps, quiet=quiet) as bar:
        bar.advance(run.state.step)
        for record in train(matcher, batches, plan, weights={shape.loss: 1.0}, state=run.state):
            bar.advance(record["step"] - bar.done)
            if record.pop("end"):
                found = system.evaluate_matcher(matcher, *data["valid"], bank.array) if "valid" in data else None
                run.end_epoch(matcher, record | ({"valid": found} if found else {}), system.score(found))
                saved = time.monotonic()
            elif stop.signal is not None or time.monotonic() - saved > _SECONDS:
                run.save()
                saved = time.monotonic()
            stop.check()
    info = {"matcher": dataclasses.asdict(shape), "backbone": bank.manifest.get("backbone"), "left_out": left_out}
    run.finish(info, text)


def _digest(value: object) -> str:
    from vgtools.io import dumps

    return hashlib.sha256(dumps(value)).hexdigest()


def _read(path: str, bank: Features, split: str | None, valid_split: str | None, quiet: bool) -> Rows:
    """Return the (feature row, caption) pairs to train and to validate on; in a file without splits all train."""
    from vgtools.io import DataError, read_jsonl

    row_of = {name: i for i, name in enumerate(bank.ids)}
    found: Rows = {"train": [], "valid": []}
    unsplit, other = list[tuple[int, str]](), 0
    for line, row in read_jsonl(path, {"image": str, "text": str}):
        own = row.get("split")
        if own is not None and not isinstance(own, str):
            raise DataError(f'"split" must be a string, found {own!r:.60}', path, line)
        known = split is None or own is None or own in (split, valid_split)
        if known and row["image"] not in row_of:
            raise DataError(
                f"the image {row['image']!r:.80} has no features among the {len(row_of)} of FEATS; extract them, "
                "or leave the caption out",
                path,
                line,
            )
        if not known:
            other += 1
            continue
        part = "valid" if own is not None and own == valid_split else "train"
        (unsplit if split is not None and own is None else found[part]).append((row_of[row["image"]], row["text"]))
    if unsplit and not other and not any(found.values()):
        return {"train": unsplit, "valid": []}  # a file without splits: all of it
    if unsplit and not quiet:
        print(f"vg train-matcher: {amount(len(unsplit), 'caption')} without a split left out, others have one", file=sys.stderr)
    return found


def _hold_out(rows: Rows, number: int, path: str) -> None:
    """Move the captions of some training images to validation: always the same images, whatever the seed."""
    from vgtools.io import DataError

    images = sorted({i for i, _ in rows["train"]}, key=lambda i: hashlib.sha256(str(i).encode()).digest())
    if len(images) - number < 2:
        raise DataError(
            f"captions of {amount(len(images), 'image')} to train on, less {number} held out: at least 2 must stay, one to "
            'match and one to tell apart; look at --split and the "split" of the rows',
            path,
        )
    held = set(images[:number])
    rows["valid"] += [row for row in rows["train"] if row[0] in held]
    rows["train"] = [row for row in rows["train"] if row[0] not in held]
    both = {i for i, _ in rows["train"]} & {i for i, _ in rows["valid"]}
    if both:
        raise DataError(
            f"{len(both)} images stand in training and in validation; recall would measure memory. Split by image", path
        )
