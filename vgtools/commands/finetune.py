"""`vg finetune`: an encoder and a downstream task become scores, over several seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import Device, Offline, Quiet, Restart, choice, run_folder

if TYPE_CHECKING:
    import torch

    from vgtools.finetuning import FineTuner, Inputs, Schedule
    from vgtools.io import Progress, Stop
    from vgtools.tasks import Example, ReadStats, Task
    from vgtools.train import TrainingRun

Flag = typer.Option
_SECONDS = 600  # between checkpoints inside an epoch


def finetune(
    name: Annotated[str | None, typer.Argument(metavar="TASK", help="sst-2, rte, squad-1.1 …; --list shows them.")] = None,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="Folder with the task's official files.")] = None,
    encoder: Annotated[
        str | None, Flag("--encoder", "-e", help="Hub name, directory, vg run (of vg pretrain) or builtin:NAME.")
    ] = None,
    output: Annotated[str | None, Flag("--output", "-o", help="Run directory; the same command again resumes it.")] = None,
    listed: Annotated[bool, Flag("--list", help="Print the tasks: files, columns, metrics, the papers' settings.")] = False,
    score: Annotated[
        str | None, Flag(metavar="FILE", help="Score this predictions.jsonl again, without a model; gold by --dev or DATA.")
    ] = None,
    train: Annotated[str | None, Flag(metavar="FILE", help="Train on this file, not on DATA's.")] = None,
    dev: Annotated[str | None, Flag(metavar="FILE", help="Evaluate on this file, not on DATA's.")] = None,
    test: Annotated[str | None, Flag(metavar="FILE", help="Predict this file, too, labelled or not.")] = None,
    no_test: Annotated[bool, Flag("--no-test", help="Leave DATA's test files alone.")] = False,
    epochs: Annotated[int | None, Flag(min=1, help="Passes over the training set [as the task's paper].")] = None,
    steps: Annotated[int | None, Flag(min=1, help="Steps in all, in place of --epochs.")] = None,
    lr: Annotated[float | None, Flag(min=0, help="Highest learning rate of AdamW [as the paper].")] = None,
    batch_size: Annotated[int | None, Flag(min=1, help="Items a step; SQuAD: windows [as the paper].")] = None,
    max_length: Annotated[int | None, Flag(min=3, help="Most tokens of a sequence, special ones counted [paper].")] = None,
    stride: Annotated[int | None, Flag(min=1, help="SQuAD: tokens from one window to the next [paper].")] = None,
    warmup: Annotated[float | None, Flag(min=0, max=1, help="Share of the steps in which the rate rises [paper].")] = None,
    weight_decay: Annotated[float, Flag(min=0, help="On matrices; the paper has none.")] = 0.0,
    seed: Annotated[int | None, Flag(help="First seed: of the head, the order and the dropout [9595].")] = None,
    seeds: Annotated[int, Flag(min=1, help="So many seeds, counted up from --seed.")] = 1,
    keep: Annotated[
        str | None, Flag(help="last (as the paper) or best: the epoch whose weights are kept [last; with --patience best].")
    ] = None,
    patience: Annotated[int | None, Flag(min=1, help="Stop a seed after so many epochs that were not its best.")] = None,
    null_threshold: Annotated[
        float, Flag(help="SQuAD 2.0: answer nothing if that scores this much higher than the answer.")
    ] = 0.0,
    window: Annotated[int, Flag(min=1, help="Batches sorted by length together; 1 leaves the order to chance.")] = 50,
    dtype: Annotated[str, Flag(help="float32, or bfloat16: products only, weights stay float32.")] = "float32",
    limit: Annotated[int | None, Flag(min=1, help="For a quick try: the first so many examples of every file.")] = None,
    device: Device = "auto",
    offline: Offline = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Fine-tune an encoder on a downstream task with the papers' settings, over one or more seeds, and score it.

    TASK's official files lie in DATA under the names that --list shows. Prints one record an epoch and seed: losses and the
    official metrics on the dev set, in percent; "headline" is their mean. The median, mean and spread over the seeds and the
    score of the most frequent class go to stderr.

    The run directory holds run.json, metrics.jsonl, and for each seed predictions.jsonl (MNLI and test files: predictions.
    SPLIT.jsonl) and model/, which transformers opens. Scores of saved predictions need no model: --score.

    Batches hold neighbours in length, so that little is padding. Where memory does not suffice they are cut into halves,
    whose gradients add up to the same step.

    Examples:

        vg finetune --list

        vg finetune sst-2 glue/SST-2 --encoder run.vokens --seeds 5 -o sst-2.vokens

        vg finetune squad-2.0 squad --encoder google-bert/bert-base-uncased --dtype bfloat16 -o squad.bert

        vg finetune rte --score rte.bert/seed-9595/predictions.jsonl
    """
    from vgtools import io
    from vgtools.tasks import find_task, table

    if listed:
        _print_tasks(table())
        return
    if name is None:
        raise typer.BadParameter("name a task, for example sst-2; --list shows them", param_hint="TASK")
    task = find_task(name)
    if score is not None:
        _score(task, score, dev or (None if data is None else str(Path(data) / task.files["dev"])), null_threshold)
        return
    for value, flag in ((encoder, "--encoder"), (output, "--output")):
        if value is None:
            raise typer.BadParameter("is needed", param_hint=flag)
    assert encoder is not None
    assert output is not None
    if steps is not None and epochs is not None:
        raise typer.BadParameter("give --epochs or --steps, not both", param_hint="--steps")
    if stride is not None and task.kind != "span":
        raise typer.BadParameter(f"is about SQuAD; {task.name} has no windows", param_hint="--stride")
    if null_threshold and task.name != "squad-2.0":
        raise typer.BadParameter("is about squad-2.0, where questions may have no answer", param_hint="--null-threshold")
    choice(dtype, ("float32", "bfloat16"), "--dtype")
    choice(keep or "last", ("last", "best"), "--keep")
    if output == "-":
        raise typer.BadParameter("a run is a directory", param_hint="-o")
    files = _files(task, data, {"train": train, "dev": dev, "test": test}, no_test)
    hyper = task.hyper
    first = hyper.seed if seed is None else seed
    settings = {
        "task": task.name,
        "epochs": None if steps else epochs or hyper.epochs,
        "steps": steps,
        "lr": hyper.learning_rate if lr is None else lr,
        "batch_size": batch_size or hyper.batch_size,
        "max_length": max_length or hyper.max_length,
        "stride": stride or hyper.stride,
        "warmup": hyper.warmup if warmup is None else warmup,
        "weight_decay": weight_decay,
        "seeds": list(range(first, first + seeds)),
        "keep": keep or ("best" if patience else "last"),
        "patience": patience,
        "null_threshold": null_threshold,
        "window": window,
        "dtype": dtype,
        "limit": limit,
    }
    from vgtools import parallel

    if parallel.world() > 1:
        raise io.DataError(
            "fine-tuning runs in one process; start one a GPU, each with its own --seed, --device cuda:N and -o",
            code=io.Exit.USAGE,
        )
    _run(task, files, settings, encoder, output, device, offline, restart, quiet)


def _print_tasks(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the tasks: a table on a terminal, else one record a line."""
    from vgtools import io

    out = io.open_stream("-")
    if not sys.stdout.isatty():
        for row in rows:
            out.write(io.dumps(row))
        return
    for row in rows:
        files = ", ".join(f"{split} {file}" for split, file in row["files"].items())
        paper = f"{row['epochs']} epochs, lr {row['learning_rate']:g}, batch {row['batch_size']}, length {row['max_length']}"
        lines = {"metrics": ", ".join(row["metrics"]), "files": files, "columns": row["columns"], "labels": row["labels"]}
        lines |= {"settings": f"{paper} ({row['source']})"} | ({"note": row["note"]} if row["note"] else {})
        print(f"{row['task']}  {row['title']}, {row['kind']}", *(f"    {k:9}{v}" for k, v in lines.items()), sep="\n")


def _score(task: Task, path: str, gold: str | None, threshold: float) -> None:
    """Print the scores of saved predictions; imports no torch."""
    from vgtools import io
    from vgtools.predictions import read_predictions, score_predictions, with_answers
    from vgtools.tasks import read_examples

    rows = with_answers(read_predictions(task, path))
    at = threshold if task.name == "squad-2.0" and all("no_answer" in row for row in rows) else None
    examples = None if gold is None else read_examples(task, gold)
    found = score_predictions(task, rows, examples, threshold=at, file=path)
    io.open_stream("-").write(io.dumps({"task": task.name, **found}))


def _files(task: Task, data: str | None, given: Mapping[str, str | None], no_test: bool) -> dict[str, str]:
    """Return the file of every split; those to train and evaluate on are there."""
    from vgtools.io import DataError, Exit

    found = {split: file for split, file in given.items() if file is not None}
    folder = None if data is None else Path(data)
    if folder is not None and not folder.is_dir():
        raise DataError("is not a directory; the folder with the task's files was wanted", folder, code=Exit.NO_INPUT)
    for split, file in task.files.items():
        if folder is None or split in found or split == "all" or (no_test and split.startswith("test")):
            continue
        if (folder / file).exists():
            found[split] = str(folder / file)
    for split in ("train", "dev"):
        if split not in found:
            where = "" if folder is None else f"{folder} has no {task.files[split]}; "
            raise DataError(f"{where}name the file to {split} on: --{split} FILE, or DATA", code=Exit.NO_INPUT)
    if list(found.values()).count("-") > 1:
        raise typer.BadParameter("only one file can come from a pipe", param_hint="-")
    return found


@dataclass
class _Split:
    """The examples of one file."""

    path: str
    examples: list[Example]
    stats: ReadStats
    digest: str  # sha256 of the examples
    inputs: Inputs | None = None

    def facts(self) -> dict[str, Any]:
        """Return what run.json says about it."""
        known: dict[str, Any] = {"file": self.path, "examples": len(self.examples), "balance": self.stats.balance()}
        if self.inputs is not None:
            known |= {"units": len(self.inputs), "tokens": len(self.inputs.ids), "cut": self.inputs.cut}
            known |= {"unlearnable": self.inputs.unlearnable}
        return known


def _read(task: Task, split: str, path: str, limit: int | None, quiet: bool) -> _Split:
    from itertools import islice

    from vgtools.tasks import ReadStats, read_examples

    stats = ReadStats()
    found = list(islice(read_examples(task, path, unlabelled=split.startswith("test"), stats=stats), limit))
    for line in () if quiet else stats.report():
        print(f"vg finetune: {split}: {line}", file=sys.stderr)
    digest = hashlib.sha256()
    for example in found:
        digest.update(repr(example).encode())
    return _Split(path, found, stats, digest.hexdigest())


def _run(
    task: Task,
    files: Mapping[str, str],
    settings: dict[str, Any],
    ref: str,
    output: str,
    device: str,
    offline: bool,
    restart: bool,
    quiet: bool,
) -> None:
    """Fine-tune with every seed that is not done, and print what a finished run says."""
    import shutil

    from vgtools import io
    from vgtools.checkpoint import pick_device, tokenizer_fingerprint
    from vgtools.finetuning import encode, new_tuner
    from vgtools.train import TrainingRun

    where = pick_device(device)
    splits = {split: _read(task, split, path, settings["limit"], quiet) for split, path in files.items()}
    tuner, encoder = new_tuner(task, ref, settings["seeds"][0], offline=offline)
    room = encoder.max_tokens + len(encoder.prefix) + len(encoder.suffix)
    if settings["max_length"] > room:
        raise io.DataError(
            f"takes {room} tokens, {settings['max_length']} were wanted; --max-length {room} is the most",
            ref,
            code=io.Exit.CONFIG,
        )
    words = {"ref": ref, "fingerprint": encoder.fingerprint, "tokenizer": tokenizer_fingerprint(encoder.tokenizer)}
    config = settings | {
        "encoder": words["fingerprint"],
        "tokenizer": words["tokenizer"],
        "files": {split: part.digest for split, part in splits.items()},
        "device": where.type,
    }
    folder = run_folder(output)
    with io.Stop() as stop, contextlib.ExitStack() as stack:
        stack.callback(io.Lock(folder).release)
        run = TrainingRun(folder, "finetune", config, restart)
        if restart:
            for old in folder.glob("seed-*"):
                shutil.rmtree(old)
        for record in run.records:
            sys.stdout.buffer.write(io.dumps(record))
        sys.stdout.buffer.flush()
        if not run.complete:
            for split, part in splits.items():
                part.inputs = encode(
                    task, part.examples, encoder.tokenizer, max_length=settings["max_length"], stride=settings["stride"],
                    learn=split == "train", segments=tuner.segments,
                )  # fmt: skip
                _say_left_out(split, part.inputs, settings["max_length"], quiet)
            del tuner
            _fit(run, task, splits, words, ref, offline, where, stop, quiet)
        info = io.read_json(folder / "run.json")
    if not quiet:
        _print_summary(task, info)


def _fit(
    run: TrainingRun,
    task: Task,
    splits: Mapping[str, _Split],
    words: dict[str, Any],
    ref: str,
    offline: bool,
    device: torch.device,
    stop: Stop,
    quiet: bool,
) -> None:
    """Train the seeds that are left, or to the step in which a signal asks to stop; write the run."""
    from vgtools import finetuning as f
    from vgtools import io
    from vgtools.checkpoint import fingerprint, pick_dtype, save_pretrained
    from vgtools.train import TrainState

    config = run.config
    learnt = splits["train"].inputs
    assert learnt is not None
    plan = f.schedule(len(learnt), config["batch_size"], config["epochs"], config["steps"])
    run.state.notes.setdefault("seeds", {})
    with io.Progress("finetune", "steps", plan.steps * len(config["seeds"]), quiet=quiet) as bar:
        for number, seed in enumerate(config["seeds"]):
            if str(seed) in run.state.notes["seeds"]:
                continue
            if run.state.notes.get("seed") != seed:
                before, run.state = run.state, TrainState()
                run.state.saved = before.saved
                run.state.notes = before.notes | {"seed": seed, "score": None, "sum": 0.0, "count": 0}
            bar.advance(number * plan.steps + run.state.step - bar.done)
            tuner, encoder = f.new_tuner(task, ref, seed, dtype=pick_dtype(config["dtype"]), offline=offline)
            tuner.to(device)
            answers = _train(run, task, tuner, splits, plan, seed, device, stop, bar)
            tuner.load_state_dict(run.best_weights())
            folder = run.path / f"seed-{seed}"
            folder.mkdir(exist_ok=True)
            scores: dict[str, float] = {}
            for split, part in splits.items():
                if split != "train":
                    rows = answers if split == "dev" and answers else _ask(task, tuner, part, config, device)
                    scores |= _score_split(task, split, part, rows, config)
                    name = "predictions.jsonl" if split == "dev" else f"predictions.{split}.jsonl"
                    io.atomic_write(folder / name, b"".join(map(io.dumps, rows)))
                    stop.check()
            save_pretrained(folder / "model", dataclasses.replace(encoder, fingerprint=fingerprint(tuner.net)))
            run.state.notes["seeds"][str(seed)] = scores
            run.save()
            stop.check()
    notes = run.state.notes
    info = {
        "task": task.name,
        "encoder": words,
        "seeds": notes["seeds"],
        "summary": f.summarise(notes["seeds"]),
        "majority": f.majority(task, splits["train"].examples, splits["dev"].examples),
        "data": {split: part.facts() for split, part in splits.items()},
        "steps": plan.steps,
        "pieces": notes.get("pieces", 1),  # that a lack of memory cut each batch into
        "predictions": {
            str(path.relative_to(run.path)): io.sha256_file(path) for path in sorted(run.path.glob("seed-*/predictions*.jsonl"))
        },
    }
    run.finish(info, weights={})


def _train(
    run: TrainingRun,
    task: Task,
    tuner: FineTuner,
    splits: Mapping[str, _Split],
    plan: Schedule,
    seed: int,
    device: torch.device,
    stop: Stop,
    bar: Progress,
) -> list[dict[str, Any]]:
    """Train one seed to its end; return the answers of the epoch that is kept, if it was in this process."""
    from vgtools import finetuning as f
    from vgtools import io
    from vgtools.train import train

    config, state, answers = run.config, run.state, list[dict[str, Any]]()
    learnt, pieces = splits["train"].inputs, state.notes.get("pieces", 1)
    assert learnt is not None

    def stale() -> bool:
        best = [record["best"] for record in run.records if record["seed"] == seed]
        return bool(config["patience"] and best and not any(best[-config["patience"] :]))

    settings = f.train_config(config, plan, seed, state.epoch if stale() else plan.epochs)
    batches = f.make_batches(tuner, learnt, config["batch_size"], seed, config["window"], plan.steps, device)
    saved = time.monotonic()
    for record in train(tuner, batches, settings, weights={f.LOSS: 1.0}, state=state, halve=f.halve):
        if pieces != state.notes.get("pieces", 1):
            pieces = state.notes["pieces"]
            print(f"vg finetune: memory was short; batches are cut into {pieces} from here on", file=sys.stderr)
        if not record["end"]:
            state.notes["sum"] += record["loss"]
            state.notes["count"] += 1
            bar.advance(1)
            if stop.signal is not None or time.monotonic() - saved > _SECONDS:
                run.save()
                saved = time.monotonic()
            stop.check()
            continue
        rows = _ask(task, tuner, splits["dev"], config, device)
        scores = _score_split(task, "dev", splits["dev"], rows, config)
        place = {"seed": seed, "epoch": record["epoch"], "step": record["step"], "lr": record["lr"]}
        loss = state.notes["sum"] / max(1, state.notes["count"])
        state.notes |= {"sum": 0.0, "count": 0}
        noted = run.end_epoch(
            tuner, place | {"loss": loss} | scores, scores["headline"] if config["keep"] == "best" else record["epoch"]
        )
        sys.stdout.buffer.write(io.dumps(noted))
        sys.stdout.buffer.flush()
        answers, saved = rows if noted["best"] else answers, time.monotonic()
        stop.check()
        if stale():
            break
    return answers


def _ask(task: Task, tuner: FineTuner, part: _Split, config: Mapping[str, Any], device: torch.device) -> list[dict[str, Any]]:
    """Return the predictions of a split."""
    from vgtools.finetuning import predict, predictions

    assert part.inputs is not None
    outputs = predict(tuner, part.inputs, 4 * config["batch_size"], device)
    return predictions(task, part.examples, part.inputs, outputs, config["null_threshold"])


def _score_split(
    task: Task, split: str, part: _Split, rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> dict[str, float]:
    """Return the scores of a split, none where it has no labels; beside dev's they carry its name."""
    from vgtools.predictions import score_predictions, with_answers

    if any("label" not in row for row in rows):
        return {}
    threshold = config["null_threshold"] if task.name == "squad-2.0" else None
    scores = score_predictions(task, with_answers(rows), threshold=threshold)
    return scores if split == "dev" else {f"{name}_{split.removeprefix('dev_')}": x for name, x in scores.items()}


def _say_left_out(split: str, inputs: Inputs, longest: int, quiet: bool) -> None:
    for count, what in (
        (inputs.cut, f"examples are longer than {longest} tokens and are cut"),
        (inputs.unlearnable, "questions are left out: their answer stands nowhere in the context"),
    ):
        if count and not quiet:
            print(f"vg finetune: {split}: {count} {what}", file=sys.stderr)


def _print_summary(task: Task, info: Mapping[str, Any]) -> None:
    """Print the scores over the seeds beside those of the most frequent class."""
    titles = ("median", "mean", "std", "min", "max")
    base = info["majority"] or {}
    print(
        f"{task.title}, {len(info['seeds'])} seeds", *(f"{t:>8}" for t in titles), " majority" if base else "", file=sys.stderr
    )
    for name, values in info["summary"].items():
        if name.endswith("_thresh"):
            continue
        cells = [f"{values[t]:8.2f}" for t in titles] + ([f"{base[name]:9.2f}"] if name in base else [])
        print(f"{name:{len(task.title) + 9}}", *cells, file=sys.stderr)
