"""`vg finetune`: an encoder and a downstream task become scores, over several seeds."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import Device, Offline, Quiet, Restart, choice, run_folder

if TYPE_CHECKING:
    from vgtools.checkpoint import Encoder
    from vgtools.finetuning import FineTuner
    from vgtools.tasks.table import Task

Flag = typer.Option


def finetune(
    name: Annotated[str | None, typer.Argument(metavar="TASK", help="sst-2, rte, squad-1.1 …; --list shows them.")] = None,
    data: Annotated[str | None, typer.Argument(metavar="DATA", help="Folder with the task's official files.")] = None,
    encoder: Annotated[
        str | None, Flag("--encoder", "-e", help="Hub name, directory, vg run (of vg pretrain) or builtin:NAME.")
    ] = None,
    output: Annotated[str | None, Flag("--output", "-o", help="Run directory; the same command again resumes it.")] = None,
    listed: Annotated[bool, Flag("--list", help="Print the tasks: files, columns, metrics, the papers' settings.")] = False,
    regions: Annotated[
        str | None, Flag(metavar="X.npy", help="Tasks with pictures: of vg extract-image-feats --regions or --detector.")
    ] = None,
    boxes: Annotated[int | None, Flag(min=1, help="Tasks with pictures: the most confident regions of each [all].")] = None,
    answers: Annotated[
        str | None, Flag(metavar="FILE|N", help="VQA: the answers, one a line; or those that N training questions have [9].")
    ] = None,
    score: Annotated[str | None, Flag(metavar="FILE", hidden=True, help="Deprecated: vg score TASK FILE.")] = None,
    joint: Annotated[str | None, Flag(metavar="FILE", hidden=True, help="Deprecated: vg score --joint.")] = None,
    submission: Annotated[str | None, Flag(metavar="FILE", hidden=True, help="Deprecated: vg score --submission.")] = None,
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
    seed: Annotated[int | None, Flag(min=0, help="First seed: of the head, the order and the dropout [9595].")] = None,
    seeds: Annotated[int, Flag(min=1, help="So many seeds, counted up from --seed.")] = 1,
    keep: Annotated[
        str | None,
        Flag(help="Epoch whose weights are kept: last (the paper chooses none) or best [last; with --patience best]."),
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
    official metrics on the dev set, in percent; "headline" is their mean, "best" says that the weights are kept so far. The
    median, mean and spread over the seeds and the score of the most frequent class go to stderr.

    The run directory holds run.json, metrics.jsonl, and for each seed model/, which transformers opens, predictions.jsonl, and
    for MNLI's second dev set and test files predictions.SPLIT.jsonl. vg score scores saved predictions without the model.

    Tasks with pictures (nlvr2, vqa, vcr-qa, vcr-qar, flickr30k-grounding) learn on a VisualBERT of vg pretrain --system
    visualbert, or on a BERT that never saw a picture, and on region features of the same backbone as its own: --regions.
    Regions name pictures as their files are called. VCR's begin with the boxes of vg prepare vcr.

    Batches hold neighbours in length, so that little is padding. Where memory does not suffice they are cut into halves,
    whose gradients add up to the same step.

    Examples:

        vg finetune --list

        vg finetune sst-2 glue/SST-2 --encoder run.vokens --seeds 5 -o sst-2.vokens

        vg finetune squad-2.0 squad --encoder google-bert/bert-base-uncased --dtype bfloat16 -o squad.bert

        vg finetune vqa vqa/ -e run.visualbert --regions coco.npy --boxes 36 -o vqa.visualbert

        vg finetune nlvr2 nlvr2/data -e run.visualbert --regions nlvr2.npy --boxes 36 -o nlvr2.visualbert
    """
    from vgtools import io
    from vgtools.commands.score import score_saved
    from vgtools.tasks.table import find_task, table

    if listed:
        _print_tasks(table())
        return
    if name is None:
        raise typer.BadParameter("name a task, for example sst-2; --list shows them", param_hint="TASK")
    task = find_task(name)
    if joint is not None and (score is None or task.name != "vcr-qar"):
        raise typer.BadParameter("joins vcr-qa's predictions to those of vcr-qar that --score names", param_hint="--joint")
    if submission is not None and joint is None:
        raise typer.BadParameter("needs --score and --joint, the predictions of both test files", param_hint="--submission")
    if score is not None:
        gold = dev or (None if data is None else str(Path(data) / task.files["dev"]))
        score_saved(task, score, gold, null_threshold, joint, submission)
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
    if task.images and regions is None:
        raise typer.BadParameter(f"{task.name} looks at pictures: X.npy of vg extract-image-feats", param_hint="--regions")
    for given, flag in ((regions, "--regions"), (boxes, "--boxes")):
        if given is not None and not task.images:
            raise typer.BadParameter(f"is about tasks with pictures; {task.name} has none", param_hint=flag)
    if boxes is not None and task.kind == "choice":
        raise typer.BadParameter(
            f"{task.name} sees the regions that its texts name, and the whole picture", param_hint="--boxes"
        )
    if answers is not None and task.kind != "answer":
        raise typer.BadParameter(f"is about vqa; {task.name} has its own labels", param_hint="--answers")
    choice(dtype, ("float32", "bfloat16"), "--dtype")
    choice(keep or "last", ("last", "best"), "--keep")
    if patience and keep == "last":
        raise typer.BadParameter("keeps the best epoch; --keep last is the other way", param_hint="--patience")
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
    system, sight = _system(task, encoder, regions, boxes, answers, files["train"], settings)
    _run(system, sight, task, files, settings, encoder, output, device, offline, restart, quiet)


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


def _system(
    task: Task, ref: str, regions: str | None, boxes: int | None, answers: str | None, train: str, settings: dict[str, Any]
) -> tuple[Any, Any]:
    """Return the module that learns a task, and for tasks with pictures what it sees, which then stands in the settings."""
    if not task.images:
        from vgtools import finetuning

        return finetuning, {}
    from itertools import islice

    from vgtools.systems import visualbert_tasks
    from vgtools.tasks.dispatch import read_examples
    from vgtools.tasks.kinds.answer import common_answers, read_answers

    assert regions is not None
    known: tuple[str, ...] = ()
    if task.kind == "answer":
        by_count = answers is None or answers.isdecimal()
        learnt = islice(read_examples(task, train), settings["limit"]) if by_count else ()
        known = common_answers(learnt, int(answers or 9)) if by_count else read_answers(str(answers))
    sight = visualbert_tasks.open_sight(ref, regions, boxes, known)
    settings |= sight.config()
    return visualbert_tasks, {"sight": sight}


def _run(
    system: Any,
    sight: Mapping[str, Any],
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
    from vgtools.checkpoint import pick_device, pick_dtype, tokenizer_fingerprint
    from vgtools.train import TrainingRun

    where, kind = pick_device(device), pick_dtype(settings["dtype"])
    seeds = settings["seeds"]
    tuner, encoder = system.new_tuner(task, ref, seeds[0], dtype=kind, offline=offline, **sight)
    room = encoder.max_tokens + len(encoder.prefix) + len(encoder.suffix)
    if settings["max_length"] > room:
        raise io.DataError(
            f"takes {room} tokens, {settings['max_length']} were wanted; --max-length {room} is the most",
            ref,
            code=io.Exit.CONFIG,
        )
    splits = {name: system.read_split(task, name, path, tuner, encoder, settings, **sight) for name, path in files.items()}
    for name, part in splits.items() if not quiet else ():
        for line in (*part.stats.report(), *part.inputs.report(settings["max_length"])):
            print(f"vg finetune: {name}: {line}", file=sys.stderr)
    words = {"ref": ref, "fingerprint": encoder.fingerprint, "tokenizer": tokenizer_fingerprint(encoder.tokenizer)}
    config = settings | {
        "encoder": words["fingerprint"],
        "tokenizer": words["tokenizer"],
        "files": {name: part.digest for name, part in splits.items()},
        "device": where.type,
    }
    folder = run_folder(output)
    with io.Stop() as stop, contextlib.ExitStack() as stack:
        stack.callback(io.Lock(folder).release)
        if restart and any((folder / name).exists() for name in ("run.json", "checkpoint.safetensors")):
            for old in folder.glob("seed-[0-9]*/"):  # first, so that a kill here leaves a run that can be restarted
                shutil.rmtree(old)
        run = TrainingRun(folder, "finetune", config, restart)
        for record in run.records:
            sys.stdout.buffer.write(io.dumps(record))
        if not run.complete:
            kept = [(tuner, encoder)]

            def new(seed: int) -> tuple[FineTuner, Encoder]:
                """Return the network of a seed; that of the first is there already."""
                first = kept.pop() if kept else None
                if first and seed == seeds[0]:
                    return first
                made: tuple[FineTuner, Encoder] = system.new_tuner(task, ref, seed, dtype=kind, offline=offline, **sight)
                return made

            del tuner, encoder
            pieces = run.state.notes.get("pieces", 1)
            with io.Progress("finetune", "steps", quiet=quiet) as bar:
                for record in system.FineTuning(run, task, splits, words, new, where, stop, bar, **sight):
                    sys.stdout.buffer.write(io.dumps(record))
                    sys.stdout.buffer.flush()
                    if pieces != run.state.notes.get("pieces", 1):
                        pieces = run.state.notes["pieces"]
                        said = f"vg finetune: memory was short; batches are cut into {pieces} from here on"
                        print(said, file=sys.stderr)
        info = io.read_json(folder / "run.json")
    if not quiet:
        _print_summary(task, info)


def _print_summary(task: Task, info: Mapping[str, Any]) -> None:
    """Print the scores over the seeds beside those of the most frequent class.

    What a single seed has no spread of, and a headline that is the one metric, are left out.
    """
    base, count = info["majority"] or {}, len(info["seeds"])
    titles = ("median", "mean", "std", "min", "max") if count > 1 else ("mean",)
    left = ("headline",) if len(task.metrics) == 1 else ()
    rows = {
        name: values for name, values in info["summary"].items() if not name.endswith("_thresh") and not name.startswith(left)
    }
    heading = f"{task.title}, {count} seed{'s' * (count > 1)}"
    width = max(map(len, (heading, *rows)))
    print(
        f"{heading:{width}}",
        *(f"{t if count > 1 else 'score':>7}" for t in titles),
        " majority" if base else "",
        file=sys.stderr,
    )
    for name, values in rows.items():
        cells = [f"{values[t]:7.2f}" for t in titles] + ([f"{base[name]:9.2f}"] if name in base else [])
        print(f"{name:{width}}", *cells, file=sys.stderr)
