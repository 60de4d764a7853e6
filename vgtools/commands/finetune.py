"""`vg finetune`: an encoder and a downstream task become scores, over several seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vgtools.commands.options import (
    Count,
    File,
    Flag,
    Restart,
    Runtime,
    Value,
    check_streams,
    flags,
    refuse_if,
    run_folder,
)
from vgtools.tasks.table import Hyper

if TYPE_CHECKING:
    from vgtools.tasks.finetune import Learner
    from vgtools.tasks.table import Task

_PAPER = "the task's paper"
_ANSWERED = 9  # training questions that have an answer, for it to be predicted


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of a task."""

    train: Annotated[str | None, File("Train on FILE instead of DATA's.")] = None
    dev: Annotated[str | None, File("Evaluate on FILE instead of DATA's.")] = None
    test: Annotated[str | None, File("Also predict FILE, labelled or not.")] = None
    no_test: Annotated[bool, Flag("--no-test", help="Ignore DATA's test files.")] = False
    hold_out: Annotated[
        float | None,
        Value(
            "SHARE",
            "Where there is no dev file: evaluate on this share of the training file, chosen by "
            "the hash of the id.",
            min=0,
            max=1,
        ),
    ] = None

    def find(self, task: Task, data: str | None) -> dict[str, str]:
        """Return the file of every split; that of dev is the training file with --hold-out."""
        from vgtools.tasks.table import find_files

        given = {"train": self.train, "dev": self.dev, "test": self.test}
        return find_files(task, data, given, test=not self.no_test, hold_out=self.hold_out)


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

    def known_answers(self, task: Task, train: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the answers that can be predicted; empty where the task has its own."""
        from vgtools.tasks.dispatch import known_answers

        return known_answers(task, train, self.answers or str(_ANSWERED), settings)


@dataclass(frozen=True, kw_only=True)
class FoundImages:
    """What a grounded encoder that finds images needs beside the files."""

    index: Annotated[
        str | None, File("Encoder of --strategy scene, object, keyword: finds images.")
    ] = None
    feats: Annotated[
        str | None, Flag(metavar="X.npy", help="With --index: features of its images.")
    ] = None
    images: Annotated[
        Literal["found", "random", "shuffle", "none"],
        Flag(
            help="With --index: images found for a text; controls: any, those of another text, "
            "the placeholder."
        ),
    ] = "found"

    def check(self, task: Task) -> None:
        """Refuse flags that need one another, or that the task has no use for."""
        given = self.index is not None or self.feats is not None
        refuse_if(given and bool(task.images), "--index", f"{task.name} has its own pictures")
        alone = self.images != "found" and not given
        refuse_if(alone, "--images", "chooses among images that --index and --feats find")


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How a task is learned; most values are the task's own unless given."""

    epochs: Annotated[int | None, Count("Passes over the training set.", show_default=_PAPER)] = (
        None
    )
    steps: Annotated[int | None, Count("Steps in total, in place of --epochs.")] = None
    lr: Annotated[
        float | None, Value("RATE", "Highest learning rate of AdamW.", min=0, show_default=_PAPER)
    ] = None
    batch_size: Annotated[
        int | None,
        Count("Items per step, over all processes; SQuAD: windows.", show_default=_PAPER),
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
            "Share of the steps in which the learning rate rises.",
            min=0,
            max=1,
            show_default=_PAPER,
        ),
    ] = None
    weight_decay: Annotated[float, Value("RATE", "On matrices; the paper has none.", min=0)] = 0.0
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
            show_default="last; with --patience best",
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
        both = self.steps is not None and self.epochs is not None
        refuse_if(both, "--steps", "cannot be combined with --epochs")
        unused = self.stride is not None and task.kind != "span"
        refuse_if(unused, "--stride", f"is for SQuAD; {task.name} has no windows")
        unused = bool(self.null_threshold) and not task.unanswerable
        why = "is for squad-2.0, where questions may have no answer"
        refuse_if(unused, "--null-threshold", why)
        clash = self.patience and self.keep == "last"
        refuse_if(clash, "--patience", "implies --keep best and conflicts with --keep last")

    def settings(self, task: Task) -> dict[str, Any]:
        """Return what decides the weights, as `run.json` names it."""
        paper = asdict(task.hyper) | {"lr": task.hyper.learning_rate}
        values = asdict(self)
        values |= {name: paper.get(name) for name, value in values.items() if value is None}
        first = values.pop("seed")
        values["epochs"] = None if self.steps else values["epochs"]
        values["seeds"] = list(range(first, first + self.seeds))
        values["keep"] = self.keep or ("best" if self.patience else "last")
        return {"task": task.name, **values}


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
    pictures: Pictures,
    shown: FoundImages,
    saved: Saved,
    files: Files,
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

    READ (commonlit) is scored by its RMSE: lower is better, --keep best keeps the lowest. Its files
    have no dev set: --hold-out 0.1.

    Tasks with pictures (nlvr2, vqa, vcr-qa, vcr-qar, flickr30k-grounding) learn on a VisualBERT of
    vg pretrain visualbert, or on a BERT that never saw a picture, and on region features of the
    same backbone as its own: --regions. Regions name pictures as their files are called. VCR's
    begin with the boxes of vg prepare vcr.

    An encoder of vg pretrain grounding learns whole: text encoder, cross-modal encoder, images. One
    that finds images (--strategy scene, object, keyword) needs --index and --feats, and finds those
    of a text by all of its words; others see the placeholder. --images random, shuffle and none are
    the controls: a gain of found images over none says little if random ones gain as much.

    Batches hold neighbours in length, so that little is padding. If memory runs out they are cut
    into halves, whose gradients add up to the same step.

    torchrun and accelerate launch start it on several GPUs or machines: a step is the same however
    many processes share it.

    Examples:

        vg finetune --list

        vg finetune sick SICK --list | jq '{split, examples}'

        vg finetune sst-2 glue/SST-2 --encoder run.vokens --seeds 5 -o sst-2.vokens

        vg finetune commonlit --train clear.csv --hold-out 0.1 -e builtin:minilm --seeds 5 -o read

        vg finetune squad-2.0 squad -e google-bert/bert-base-uncased --dtype bfloat16 -o squad.bert

        torchrun --nproc-per-node 4 -m vgtools finetune mnli glue/MNLI -e run.vokens -o run.mnli

        vg finetune vqa vqa/ -e run.visualbert --regions coco.npy --boxes 36 -o vqa.visualbert

        vg finetune rte RTE -e run.scene --index scene.faiss --feats cc.npy --seeds 8 -o rte.scene

        vg finetune nlvr2 nlvr2/data -e run.visualbert --regions nlvr2.npy --boxes 36 -o run.nlvr2
    """
    from vgtools.tasks.saved import score_saved
    from vgtools.tasks.table import find_task, table

    if listed:
        from vgtools.reports.tables import print_splits, print_tasks
        from vgtools.tasks.dispatch import count_splits

        if name is None:
            print_tasks(table())
            return
        task = find_task(name)
        print_splits(count_splits(task, files.find(task, data), files.hold_out))
        return
    refuse_if(name is None, "TASK", "name a task, for example sst-2; --list shows them")
    task = find_task(str(name))
    saved.check(task)
    if saved.score is not None:
        gold = files.dev or (None if data is None else str(Path(data) / task.files["dev"]))
        score_saved(task, saved.score, gold, learning.null_threshold, saved.joint, saved.submission)
        return
    for value, flag in ((encoder, "--encoder"), (output, "--output")):
        refuse_if(value is None, flag, "is required")
    assert encoder is not None
    assert output is not None
    learning.check(task)
    pictures.check(task)
    shown.check(task)
    check_streams([files.train, files.dev, files.test], output)
    found = files.find(task, data)
    settings = learning.settings(task)
    if files.hold_out is not None:
        settings["hold_out"] = files.hold_out
    _run(task, found, settings, encoder, pictures, shown, output, restart, runtime)


def _run(
    task: Task,
    files: Mapping[str, str],
    settings: dict[str, Any],
    ref: str,
    pictures: Pictures,
    shown: FoundImages,
    output: str,
    restart: bool,
    runtime: Runtime,
) -> None:
    """Fine-tune with every seed that is not done, and print what a finished run says."""
    from vgtools.io import Inputs, read_json
    from vgtools.systems.grounding import tasks as grounding
    from vgtools.systems.grounding.model import is_grounded
    from vgtools.tasks.finetune import FineTuning, text_learner
    from vgtools.training.session import Session, process_device

    inputs = Inputs([*files.values(), *([pictures.regions] if pictures.regions else [])])
    device = process_device(runtime.device)
    learner: Learner
    if task.images:
        from vgtools.systems.visualbert.tasks import learner as visual_learner
        from vgtools.systems.visualbert.tasks import open_regions_of

        assert pictures.regions is not None
        known = pictures.known_answers(task, files["train"], settings)
        regions = open_regions_of(ref, pictures.regions, pictures.boxes, known)
        settings = settings | regions.config()
        learner = visual_learner(task, ref, settings, device, regions, offline=runtime.offline)
    elif is_grounded(ref):
        images = grounding.open_images(ref, shown.feats, shown.index, shown.images)
        settings = settings | images.config()
        learner = grounding.learner(task, ref, settings, device, images, offline=runtime.offline)
    else:
        refuse_if(shown.index or shown.feats, "--index", "is for runs of vg pretrain grounding")
        learner = text_learner(task, ref, settings, device, offline=runtime.offline)
    tuning = FineTuning(task, learner, files, settings, ref)
    folder = run_folder(output, restart, ref)
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

        print_seeds(task, info)
