"""`vg finetune`: an encoder and a downstream task become scores, over several seeds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from vgtools.commands.finetune.flags import (
    Files,
    FoundImages,
    Learning,
    PictureTaskFlags,
    Scratch,
    Spread,
)
from vgtools.commands.finetune.learners import LearnerJob, open_tuning
from vgtools.commands.finetune.topics import (
    CLIP,
    CLUSTER,
    FILES,
    PICTURES,
    RETRIEVAL,
    TRAINING,
    TRANSLATION,
)
from vgtools.commands.options import (
    Argument,
    Flag,
    LogTo,
    Restart,
    Runtime,
    Value,
    check_streams,
    refuse_if,
    run_folder,
)
from vgtools.commands.signature import flags
from vgtools.tasks.table import settings_of, start_of


@flags
def finetune(
    name: Annotated[str | None, Argument("TASK")] = None,
    data: Annotated[str | None, Argument("DATA")] = None,
    *,
    encoder: Annotated[str | None, Value("NAME")] = None,
    output: Annotated[str | None, Value("DIR")] = None,
    listed: Annotated[bool, Flag("--list")] = False,
    learning: Annotated[Learning, TRAINING],
    files: Annotated[Files, FILES],
    pictures: Annotated[PictureTaskFlags, PICTURES],
    shown: Annotated[FoundImages, RETRIEVAL],
    scratch: Annotated[Scratch, TRANSLATION],
    full: Annotated[bool, Flag("--full"), CLIP] = False,
    spread: Annotated[Spread, CLUSTER],
    restart: Restart = False,
    log_to: Annotated[LogTo, TRAINING] = None,
    runtime: Runtime,
) -> None:
    """Fine-tune an encoder on a downstream task with the papers' settings, and score it.

    DATA holds the task's official files (see --list). Prints one record per seed and epoch: losses
    and the official metrics on the dev set, in percent; "headline" is their mean, "best" marks the
    weights that are kept so far. The median, mean and spread over the seeds and the score of the
    most frequent class go to stderr.

    The run directory holds run.json, metrics.jsonl, and for each seed model/, which transformers
    opens, predictions.jsonl, and for MNLI's second dev set and test files predictions.SPLIT.jsonl.
    --no-models leaves out model/, the large part: many small runs are compared by predictions. vg
    score scores saved predictions again, without the model.

    More options: tasks with pictures, images found for texts, translation, CLIPs, clusters.

    Examples:

        vg finetune --list

        vg finetune sick SICK --list | jq '{split, examples}'

        vg finetune sst-2 glue/SST-2 --encoder run.vokens --seeds 5 -o sst-2.vokens

        vg finetune squad-2.0 squad -e google-bert/bert-base-uncased --dtype bfloat16 -o squad.bert

    Args:
        name: sst-2, rte, squad-1.1 …; --list shows them.
        data: Folder with the task's official files.
        encoder: Hub name, directory, vg run (of vg pretrain) or builtin:NAME.
        output: Run folder; the same command resumes it.
        listed: Print the tasks: files, columns, metrics, papers' settings; with TASK and DATA the
            examples and labels of its files.
        full: Run of vg pretrain xdbert: learn on all of it, also the teacher.
    """
    from vgtools.tasks.table import find_splits, find_task, table

    if listed:
        from vgtools.reports.tables import print_splits, print_tasks
        from vgtools.tasks.dispatch import count_splits

        if name is None:
            print_tasks(table())
            return
        task = find_task(name)
        found = find_splits(task, data, **vars(files))
        print_splits(count_splits(task, found, files.hold_out))
        return
    refuse_if(name is None, "TASK", "name a task, for example sst-2; --list shows them")
    task = find_task(str(name))
    start = start_of(task, encoder, scratch.shape, scratch.tokenizer)
    if output is None:
        raise typer.BadParameter("is required", param_hint="--output")
    learning.check(task)
    pictures.check(task)
    shown.check(task)
    refuse_if(full and task.images, "--full", f"is for tasks of texts; {task.name} has pictures")
    read = [files.train, files.dev, files.test, *(shown.retrieved or ())]
    check_streams(read, output)
    spread.check(read)
    found = find_splits(task, data, **vars(files))
    settings = settings_of(task, asdict(learning), scratch.shape)
    settings |= {"full": True} if full else {}
    settings |= {} if files.hold_out is None else {"hold_out": files.hold_out}
    work = LearnerJob(task, found, settings, start)
    _run(work, pictures, shown, output, spread, restart, runtime)


def _run(
    work: LearnerJob,
    pictures: PictureTaskFlags,
    shown: FoundImages,
    output: str,
    spread: Spread,
    restart: bool,
    runtime: Runtime,
) -> None:
    """Fine-tune with every seed that is not done, and print the records of a finished run."""
    import torch

    from vgtools.commands.finetune.spread import Make, fit_spread
    from vgtools.io.files import read_json
    from vgtools.models.references import device_type
    from vgtools.training import processes
    from vgtools.training.session import Session, process_device

    # The driver of a cluster only reads the files; its GPU, if it has one, is a worker's.
    kind = device_type(runtime.device)
    device = process_device("cpu" if spread.ray else runtime.device)
    folder = run_folder(output, restart, work.ref)  # before anything is loaded
    with processes.joined(device.type == "cuda"):
        with processes.after_first():
            tuning, inputs = open_tuning(work, pictures, shown, device, runtime)
        with Session("finetune", folder, device, quiet=runtime.quiet) as session:
            for line in tuning.notes():
                session.note(line)
            config = tuning.config(torch.device(kind))
            run = session.open("finetune", config, restart, parts=("seed-[0-9]*",), inputs=inputs)
            if not run.complete and spread.ray:
                make = Make(work, pictures, shown, runtime, folder.resolve(), config)
                fit_spread(tuning, session, make, spread, kind == "cuda")
            else:
                session.print(*run.records)
                if not run.complete:
                    tuning.fit(session)
            info = read_json(folder / "run.json")
    if not session.quiet:
        from vgtools.reports.tables import print_seeds

        print_seeds(work.task, info)
