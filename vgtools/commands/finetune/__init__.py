"""`vg finetune`: an encoder and a downstream task become scores, over several seeds."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from vgtools.commands.finetune.flags import (
    Files,
    FoundImages,
    Learning,
    Pictures,
    Scratch,
    Spread,
)
from vgtools.commands.finetune.learners import Work, open_tuning
from vgtools.commands.options import (
    Flag,
    Restart,
    Runtime,
    Value,
    check_streams,
    flags,
    refuse_if,
    run_folder,
)
from vgtools.tasks.table import settings_of, start_of


@flags
def finetune(
    name: Annotated[
        str | None,
        typer.Argument(metavar="TASK", help="sst-2, rte, squad-1.1 …; --list shows them."),
    ] = None,
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Folder with the task's official files.")
    ] = None,
    *,
    encoder: Annotated[
        str | None,
        Value(
            "NAME",
            "Hub name, directory, vg run (of vg pretrain) or builtin:NAME.",
            "--encoder",
            "-e",
        ),
    ] = None,
    output: Annotated[
        str | None, Value("DIR", "Run folder; the same command resumes it.", "--output", "-o")
    ] = None,
    listed: Annotated[
        bool,
        Flag(
            "--list",
            help="Print the tasks: files, columns, metrics, papers' settings; with TASK and DATA "
            "the examples and labels of its files.",
        ),
    ] = False,
    scratch: Scratch,
    full: Annotated[
        bool,
        Flag("--full", help="Run of vg pretrain xdbert: learn on all of it, the teacher, too."),
    ] = False,
    pictures: Pictures,
    shown: FoundImages,
    files: Files,
    learning: Learning,
    spread: Spread,
    restart: Restart = False,
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

    READ (commonlit) is scored by its RMSE: lower is better, --keep best keeps the lowest. Its files
    have no dev set: --hold-out 0.1.

    Tasks with pictures (nlvr2, vqa, vcr-qa, vcr-qar, flickr30k-grounding) learn on a VisualBERT of
    vg pretrain visualbert, or on a BERT that never saw a picture, and on region features of the
    same backbone as its own: --regions. Regions name pictures as their files are called. VCR's
    begin with the boxes of vg prepare vcr.

    --retrieved fuses images into the states of any text encoder, before the head reads them: rows
    of vg retrieve, found by a text's own words (a pair's joined by a blank), so that their order
    does not matter. vg prepare task writes the texts. The model is saved as transformers opens it,
    without images, and its fusion beside it; as --encoder with --retrieved it learns on with both.

    translation learns rows of vg prepare pairs, in a --shape from scratch or from a model, with
    retrieved images or without. A batch is a number of source tokens. Records have the perplexity
    per token and greedy BLEU; the kept epoch is translated with beams, as vg translate does.

    An encoder of vg pretrain grounding learns whole: text encoder, cross-modal encoder, images. One
    that finds images (--strategy scene, object, keyword) needs --index and --feats, and finds those
    of a text by all of its words; others see the placeholder.

    --images random, shuffle and none are the controls: a gain over an encoder without images may be
    that of more parameters, and a gain over none says little if random images gain as much.

    A run of vg pretrain xdbert is an encoder; with --full it learns whole: encoder, CLIP's text
    tower and the layers over both (XBERT). Its seed-N/model is such a run, too: an encoder, and
    with --full it learns on, its linear layer drawn again.

    A CLIP, or a tower of vg pretrain clip, learns by its text tower alone, which reads both texts
    of a pair as one sequence: --max-length 77 or less.

    Batches hold neighbours in length, so that little is padding. If memory runs out they are cut
    into halves, whose gradients add up to the same step.

    torchrun and accelerate launch start it on several GPUs or machines: a step is the same however
    many processes share it, and after one is lost any number of them resumes the run.

    --ray learns each seed on a worker of a Ray cluster, on its GPU or on one core; all nodes need
    one file system with the run. The run is that of one process with as many threads, but for the
    argv and versions in run.json. The same command resumes it, with --ray or without, and learns no
    seed twice; a worker that is lost costs its seed the steps since its checkpoint.

    Examples:

        vg finetune --list

        vg finetune sick SICK --list | jq '{split, examples}'

        vg finetune sst-2 glue/SST-2 --encoder run.vokens --seeds 5 -o sst-2.vokens

        vg finetune commonlit --train clear.csv --hold-out 0.1 -e builtin:minilm --seeds 5 -o read

        vg finetune squad-2.0 squad -e google-bert/bert-base-uncased --dtype bfloat16 -o squad.bert

        torchrun --nproc-per-node 4 -m vgtools finetune mnli glue/MNLI -e run.vokens -o run.mnli

        vg finetune rte glue/RTE -e run.vokens --seeds 5 --ray local --workers 2 -o rte

        vg finetune vqa vqa/ -e run.visualbert --regions coco.npy --boxes 36 -o vqa.visualbert

        vg finetune rte RTE -e run.scene --index scene.faiss --feats cc.npy --seeds 8 -o rte.scene

        vg finetune snli snli_1.0 -e google-bert/bert-base-uncased --retrieved snli.images.jsonl \\
          --feats coco.npy -o snli.va

        vg finetune translation wmt --shape transformer-base -t bpe --retrieved wmt.images.jsonl \\
          --feats coco.npy -o ende.va

        vg finetune rte glue/RTE -e openai/clip-vit-base-patch32 --max-length 77 -o rte.clip

        vg finetune rte glue/RTE -e run.xdbert --full --lr 1e-4 -o rte.xbert

        vg finetune mrpc glue/MRPC -e rte.xbert/seed-9595/model --full --lr 1e-4 -o mrpc.xbert

        vg finetune nlvr2 nlvr2/data -e run.visualbert --regions nlvr2.npy --boxes 36 -o run.nlvr2
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
    work = Work(task, found, settings, start)
    _run(work, pictures, shown, output, spread, restart, runtime)


def _run(
    work: Work,
    pictures: Pictures,
    shown: FoundImages,
    output: str,
    spread: Spread,
    restart: bool,
    runtime: Runtime,
) -> None:
    """Fine-tune with every seed that is not done, and print what a finished run says."""
    import torch

    from vgtools.commands.finetune.spread import Make, fit_spread
    from vgtools.io.files import read_json
    from vgtools.models.references import device_type
    from vgtools.training import processes
    from vgtools.training.session import Session, process_device

    # The driver of a cluster only reads the files; its GPU, if it has one, is a worker's.
    kind = device_type(runtime.device)
    device = process_device("cpu" if spread.ray else runtime.device)
    with processes.joined(device.type == "cuda"):
        with processes.after_first():
            tuning, inputs = open_tuning(work, pictures, shown, device, runtime)
        folder = run_folder(output, restart, work.ref)
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
