"""`vg finetune`: an encoder and a downstream task become scores, over several seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from vgtools.commands.options import (
    Count,
    File,
    Flag,
    Restart,
    Runtime,
    TaskFiles,
    Value,
    check_streams,
    flags,
    refuse_if,
    run_folder,
)
from vgtools.tasks.table import Hyper, settings_of, start_of

if TYPE_CHECKING:
    import torch

    from vgtools.tasks.finetune import Learner
    from vgtools.tasks.table import Task

_PAPER = "the task's paper"
_FUSED = ("classify", "regress", "tag", "translate")  # kinds that images are fused for
_ANSWERED = 9  # training questions that have an answer, for it to be predicted


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What tasks with pictures need beside their files."""

    regions: Annotated[
        str | None,
        Value("X.npy", "Tasks with pictures: of vg extract-image-feats --regions or --detector."),
    ] = None
    boxes: Annotated[
        int | None,
        Count("Tasks with pictures: the N most confident regions of each.", show_default="all"),
    ] = None
    answers: Annotated[
        str | None,
        Value(
            "FILE|N",
            "VQA: the answers, one per line; or those that N training questions have.",
            show_default=str(_ANSWERED),
        ),
    ] = None

    def check(self, task: Task) -> None:
        """Refuse what the task has no use for, or what it lacks."""
        name = task.name
        missing = task.images and self.regions is None
        refuse_if(
            missing, "--regions", f"{name} looks at pictures: X.npy of vg extract-image-feats"
        )
        for value, flag in ((self.regions, "--regions"), (self.boxes, "--boxes")):
            unused = value is not None and not task.images
            refuse_if(unused, flag, f"is for tasks with pictures; {name} has none")
        unused = self.boxes is not None and task.kind == "choice"
        why = f"{name} sees the regions that its texts name, and the whole picture"
        refuse_if(unused, "--boxes", why)
        unused = self.answers is not None and task.kind != "answer"
        refuse_if(unused, "--answers", f"is for vqa; {name} has its own labels")


@dataclass(frozen=True, kw_only=True)
class FoundImages:
    """Images for texts: retrieved before, or found by a grounded encoder while it learns."""

    retrieved: Annotated[
        list[str] | None,
        File("Images of the texts, rows of vg retrieve, to fuse into any encoder; repeatable."),
    ] = None
    index: Annotated[
        str | None, File("Encoder of --strategy scene, object, keyword: finds images.")
    ] = None
    feats: Annotated[
        str | None,
        Flag(metavar="X.npy", help="With --retrieved or --index: features of the images."),
    ] = None
    images: Annotated[
        Literal["found", "random", "shuffle", "none"],
        Flag(
            help="With --feats: images found for a text; controls: any, those of another text, "
            "none through the same layers."
        ),
    ] = "found"
    fusion: Annotated[
        Literal["paper", "gate", "scalar-gate", "sum"] | None,
        Flag(
            help="With --retrieved: how images are fused.",
            show_default="paper, or that of the model",
        ),
    ] = None
    fusion_start: Annotated[
        Literal["drawn", "identity"],
        Flag(help="Weights of a new fusion; identity lets the text through at first."),
    ] = "drawn"
    image_dropout: Annotated[
        float, Value("SHARE", "Of texts that lose all images in a step.", min=0, max=1)
    ] = 0.0

    def check(self, task: Task) -> None:
        """Refuse flags that need one another, or that the task has no use for."""
        given = self.retrieved or self.index or self.feats
        refuse_if(given and task.images, "--index", f"{task.name} has its own pictures")
        alone = self.images != "found" and not given
        refuse_if(alone, "--images", "chooses among images of --retrieved or --index")
        why = f"fuses images for tasks of kind {', '.join(_FUSED)}; {task.name} is {task.kind}"
        refuse_if(self.retrieved and task.kind not in _FUSED, "--retrieved", why)
        why = "needs --feats, features of the images"
        refuse_if(self.retrieved and not self.feats, "--retrieved", why)
        fusing = (self.fusion, self.fusion_start, self.image_dropout) != (None, "drawn", 0.0)
        why = "needs --retrieved, the images to fuse"
        refuse_if(fusing and not self.retrieved, "--fusion/--fusion-start/--image-dropout", why)


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """What a translation model begins as, where it is not another one."""

    shape: Annotated[
        Literal["transformer-base", "transformer-small"] | None,
        Flag(help="translation: train from scratch in this shape; --encoder continues instead."),
    ] = None
    tokenizer: Annotated[
        str | None,
        Value("DIR", "With --shape: of vg prepare tokenizer.", "--tokenizer", "-t"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How a task is learned; most values are the task's own unless given."""

    epochs: Annotated[int | None, Count("Passes over the training set.", show_default=_PAPER)] = (
        None
    )
    steps: Annotated[
        int | None, Count("Steps in total, in place of --epochs.", show_default="none")
    ] = None
    lr: Annotated[
        float | None, Value("RATE", "Highest learning rate of AdamW.", min=0, show_default=_PAPER)
    ] = None
    batch_size: Annotated[
        int | None,
        Count(
            "Items per step, over all processes; SQuAD: windows; translation: source tokens.",
            show_default=_PAPER,
        ),
    ] = None
    max_length: Annotated[
        int | None,
        Count(
            "Highest number of tokens in a sequence, special tokens included.",
            3,
            show_default=_PAPER,
        ),
    ] = None
    stride: Annotated[
        int | None, Count("SQuAD: tokens from one window to the next.", show_default=_PAPER)
    ] = None
    warmup: Annotated[
        float | None,
        Value(
            "SHARE",
            "Share of the steps in which the learning rate rises; from 1 on, their number.",
            min=0,
            show_default=_PAPER,
        ),
    ] = None
    weight_decay: Annotated[
        float | None, Value("RATE", "On matrices.", min=0, show_default=_PAPER)
    ] = None
    seed: Annotated[
        int | None,
        Count(
            "First seed: of the head, the order and the dropout.", 0, show_default=str(Hyper.seed)
        ),
    ] = None
    seeds: Annotated[int, Count("Number of seeds: SEED, SEED+1, …")] = 1
    keep: Annotated[
        Literal["last", "best"] | None,
        Flag(
            show_default="last; translation, and with --patience: best",
            help="Epoch whose weights are kept; the paper chooses none.",
        ),
    ] = None
    patience: Annotated[int | None, Count("Stop a seed after N epochs that were not its best.")] = (
        None
    )
    null_threshold: Annotated[
        float,
        Value(
            "SCORE", "SQuAD 2.0: answer nothing if that scores this much higher than the answer."
        ),
    ] = 0.0
    window: Annotated[
        int, Count("Batches sorted by length together; 1 leaves the order to chance.")
    ] = 50
    dtype: Annotated[
        Literal["float32", "bfloat16"],
        Flag(help="bfloat16: matrix products only, weights stay float32."),
    ] = "float32"
    limit: Annotated[int | None, Count("For a quick try: the first N examples of every file.")] = (
        None
    )

    def check(self, task: Task) -> None:
        """Refuse flags that the task has no use for, or that contradict one another."""
        refuse_if(self.steps and self.epochs, "--steps", "cannot be combined with --epochs")
        unused = self.stride is not None and task.kind != "span"
        refuse_if(unused, "--stride", f"is for SQuAD; {task.name} has no windows")
        unused = bool(self.null_threshold) and not task.unanswerable
        why = "is for squad-2.0, where questions may have no answer"
        refuse_if(unused, "--null-threshold", why)
        clash = self.patience and self.keep == "last"
        refuse_if(clash, "--patience", "implies --keep best and conflicts with --keep last")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """Flags of vg score under their former names, kept for one version."""

    score: Annotated[str | None, File("Use vg score.", hidden=True)] = None
    joint: Annotated[str | None, File("Use vg score.", hidden=True)] = None
    submission: Annotated[str | None, File("Use vg score.", hidden=True)] = None

    def check(self, task: Task) -> None:
        """Refuse flags that need one another."""
        alone = self.joint is not None and (self.score is None or task.name != "vcr-qar")
        why = "joins vcr-qa's predictions to those of vcr-qar that --score names"
        refuse_if(alone, "--joint", why)
        alone = self.submission is not None and self.joint is None
        why = "needs --score and --joint, the predictions of both test files"
        refuse_if(alone, "--submission", why)


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
    pictures: Pictures,
    shown: FoundImages,
    saved: Saved,
    files: TaskFiles,
    learning: Learning,
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
    vg score scores saved predictions again, without the model.

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

    Batches hold neighbours in length, so that little is padding. If memory runs out they are cut
    into halves, whose gradients add up to the same step.

    torchrun and accelerate launch start it on several GPUs or machines: a step is the same however
    many processes share it.

    Examples:

        vg finetune --list

        vg finetune sick SICK --list | jq '{split, examples}'

        vg finetune sst-2 glue/SST-2 --encoder run.vokens --seeds 5 -o sst-2.vokens

        vg finetune squad-2.0 squad -e google-bert/bert-base-uncased --dtype bfloat16 -o squad.bert

        torchrun --nproc-per-node 4 -m vgtools finetune mnli glue/MNLI -e run.vokens -o run.mnli

        vg finetune vqa vqa/ -e run.visualbert --regions coco.npy --boxes 36 -o vqa.visualbert

        vg finetune rte RTE -e run.scene --index scene.faiss --feats cc.npy --seeds 8 -o rte.scene

        vg finetune snli snli_1.0 -e google-bert/bert-base-uncased --retrieved snli.images.jsonl
        --feats coco.npy -o snli.va

        vg finetune translation wmt --shape transformer-base -t bpe --retrieved wmt.images.jsonl
        --feats coco.npy -o ende.va

        vg finetune nlvr2 nlvr2/data -e run.visualbert --regions nlvr2.npy --boxes 36 -o run.nlvr2
    """
    from vgtools.tasks.saved import score_saved
    from vgtools.tasks.table import find_splits, find_task, table

    if listed:
        from vgtools.reports.tables import print_splits, print_tasks
        from vgtools.tasks.dispatch import count_splits

        if name is None:
            print_tasks(table())
            return
        task = find_task(name)
        print_splits(count_splits(task, find_splits(task, data, **vars(files))))
        return
    refuse_if(name is None, "TASK", "name a task, for example sst-2; --list shows them")
    task = find_task(str(name))
    saved.check(task)
    if saved.score is not None:
        gold = files.dev or (data and str(Path(data) / task.files["dev"]))
        score_saved(task, saved.score, gold, learning.null_threshold, saved.joint, saved.submission)
        return
    start = start_of(task, encoder, scratch.shape, scratch.tokenizer)
    if output is None:
        raise typer.BadParameter("is required", param_hint="--output")
    learning.check(task)
    pictures.check(task)
    shown.check(task)
    check_streams([files.train, files.dev, files.test, *(shown.retrieved or ())], output)
    found = find_splits(task, data, **vars(files))
    work = _Work(task, found, settings_of(task, asdict(learning), scratch.shape), start)
    _run(work, pictures, shown, output, restart, runtime)


class _Work(NamedTuple):
    """What is learned, from what, and how."""

    task: Task
    files: Mapping[str, str]
    settings: dict[str, Any]
    ref: str  # of the encoder


def _run(
    work: _Work,
    pictures: Pictures,
    shown: FoundImages,
    output: str,
    restart: bool,
    runtime: Runtime,
) -> None:
    """Fine-tune with every seed that is not done, and print what a finished run says."""
    from vgtools.io import Inputs, read_json
    from vgtools.tasks.finetune import FineTuning
    from vgtools.training.session import Session, process_device

    read = [*work.files.values(), *(shown.retrieved or ())]
    inputs = Inputs([*read, *([pictures.regions] if pictures.regions else [])])
    device = process_device(runtime.device)
    learner, settings = _learner(work, pictures, shown, device, runtime)
    tuning = FineTuning(work.task, learner, work.files, work.settings | settings, work.ref)
    folder = run_folder(output, restart, work.ref)
    with Session("finetune", folder, device, quiet=runtime.quiet) as session:
        for line in tuning.notes():
            session.note(line)
        config = tuning.config(device)
        run = session.open("finetune", config, restart, parts="seed-[0-9]*", inputs=inputs)
        session.print(*run.records)
        if not run.complete:
            tuning.fit(session)
        info = read_json(folder / "run.json")
    if not session.quiet:
        from vgtools.reports.tables import print_seeds

        print_seeds(work.task, info)


def _learner(
    work: _Work, pictures: Pictures, shown: FoundImages, device: torch.device, runtime: Runtime
) -> tuple[Learner, dict[str, Any]]:
    """Return what learns the task with its images, and the settings that these add."""
    from vgtools.systems.grounding import tasks as grounding
    from vgtools.systems.grounding.model import is_grounded
    from vgtools.systems.visual_awareness.slots import open_images
    from vgtools.systems.visual_awareness.tasks import Fusing
    from vgtools.systems.visual_awareness.tasks import learner as fused_learner
    from vgtools.systems.visual_awareness.translation import learner as translation_learner
    from vgtools.tasks.finetune import text_learner
    from vgtools.tasks.translation import config as translation_config

    common = (work.task, work.ref, work.settings, device)
    offline = runtime.offline
    if pictures.regions is not None:
        from vgtools.systems.visualbert.tasks import known_answers, open_regions_of
        from vgtools.systems.visualbert.tasks import learner as visual_learner

        answers = pictures.answers or str(_ANSWERED)
        known = known_answers(work.task, answers, work.files["train"], work.settings["limit"])
        regions = open_regions_of(work.ref, pictures.regions, pictures.boxes, known)
        return visual_learner(*common, regions, offline=offline), regions.config()
    if is_grounded(work.ref) and work.task.kind != "translate":
        refuse_if(shown.retrieved, "--retrieved", "a grounded encoder finds images by --index")
        found = grounding.open_images(work.ref, shown.feats, shown.index, shown.images)
        return grounding.learner(*common, found, offline=offline), found.config()
    seen = None
    added = dict[str, Any]()
    if shown.retrieved and shown.feats:
        images = open_images(shown.retrieved, shown.feats, shown.images, shown.index)
        fusing = Fusing(shown.fusion, shown.fusion_start, shown.image_dropout)
        added = images.config() | fusing.config(work.ref)
        seen = images, fusing
    why = "is for runs of vg pretrain grounding, or with --retrieved"
    refuse_if(not seen and (shown.index or shown.feats), "--index/--feats", why)
    if work.task.kind == "translate":
        return translation_learner(*common, seen, offline=offline), added | translation_config()
    if seen:
        return fused_learner(*common, *seen, offline=offline), added
    return text_learner(*common, offline=offline), added
