"""Flags of `vg finetune`, and which of them a task has a use for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from vgtools.commands.finetune.topics import CLIP, CLUSTER, RETRIEVAL, TRAINING
from vgtools.commands.options import (
    LogTo,
    Restart,
    Runtime,
    TaskFiles,
    check_streams,
    refuse_if,
)
from vgtools.commands.topics import FIRST
from vgtools.io.settings import count, file, value
from vgtools.tasks.table import Hyper

if TYPE_CHECKING:
    from vgtools.tasks.table import Task

_PAPER = "as in the paper"
_FUSED = ("classify", "regress", "tag", "translate")  # kinds that images are fused for
ANSWERED = 9  # training questions that have an answer, for it to be predicted


@dataclass(frozen=True, kw_only=True)
class Files(TaskFiles):
    """The files of a task.

    Attributes:
        hold_out: Where there is no dev file: evaluate on this share of the training file, chosen by
            the hash of the id.
    """

    hold_out: float | None = value(None, metavar="SHARE", min=0, max=1)


@dataclass(frozen=True, kw_only=True)
class Start:
    """The encoder that learns, and the run that becomes of it.

    Attributes:
        encoder: Hub name, directory, vg run (of vg pretrain) or builtin:NAME.
        output: Run folder; the same command resumes it.
        listed: Print the examples and labels of the files; without TASK all tasks: files, columns,
            metrics, papers' settings.
        full: Run of vg pretrain xdbert: learn on all of it, also the teacher.
    """

    encoder: str | None = value(None, metavar="NAME")
    output: str | None = value(None, metavar="DIR")
    listed: bool = value(False, "--list")
    full: bool = value(False, topic=CLIP)
    restart: Restart = False
    log_to: Annotated[LogTo, TRAINING] = None

    def check(self, task: Task) -> str:
        """Return the run folder; refuse flags that the task has no use for."""
        why = f"is for tasks of texts; {task.name} has pictures"
        refuse_if(self.full and task.images, "--full", why)
        refuse_if(self.output is None, "--output", "is required")
        return str(self.output)


@dataclass(frozen=True, kw_only=True)
class PictureTaskFlags:
    """The regions that tasks with pictures need in addition to their files.

    Attributes:
        regions: Tasks with pictures: output of vg extract-image-feats --regions or --detector.
        boxes: Tasks with pictures: the N most confident regions of each.
    """

    regions: str | None = value(None, metavar="X.npy")
    boxes: int | None = count(None, show_default="all")

    def check(self, task: Task) -> None:
        """Refuse flags that the task has no use for, and the lack of one that it needs."""
        name = task.name
        missing = task.images and self.regions is None
        refuse_if(
            missing, "--regions", f"{name} looks at pictures: X.npy of vg extract-image-feats"
        )
        for given, flag in ((self.regions, "--regions"), (self.boxes, "--boxes")):
            unused = given is not None and not task.images
            refuse_if(unused, flag, f"is for tasks with pictures; {name} has none")
        unused = self.boxes is not None and task.kind == "choice" and not task.own
        why = f"{name} sees the regions that its texts name, and the whole picture"
        refuse_if(unused, "--boxes", why)


@dataclass(frozen=True, kw_only=True)
class AnswerTaskFlags(PictureTaskFlags):
    """The regions of tasks with pictures, and the answers to questions about these.

    Attributes:
        answers: VQA: the answers, one per line; or those that N training questions have.
    """

    answers: str | None = value(None, metavar="FILE|N", show_default=str(ANSWERED))

    def check(self, task: Task) -> None:
        """Refuse flags that the task has no use for, and the lack of one that it needs."""
        super().check(task)
        unused = self.answers is not None and task.kind != "answer"
        refuse_if(unused, "--answers", f"is for vqa; {task.name} has its own labels")


@dataclass(frozen=True, kw_only=True)
class FoundImages:
    """Images for texts: retrieved before, or found by a grounded encoder while it learns.

    Attributes:
        retrieved: Images of the texts, rows of vg retrieve, to fuse into any encoder; repeatable.
        index: Encoder of --strategy scene, object, keyword: finds images. With --retrieved: the
            index of rows that do not name one.
        feats: With --retrieved or --index: features of the images.
        images: With --feats: images found for a text; controls: any, another text's, none through
            the same layers.
        fusion: With --retrieved: how images are fused.
        fusion_start: Weights of a new fusion; identity lets the text through at first.
        image_dropout: Share of texts that lose all images in a step.
        image_weight: Weight of the images in a new fusion that is a sum.
    """

    retrieved: list[str] | None = file(None)
    index: str | None = file(None)
    feats: str | None = value(None, metavar="X.npy")
    images: Literal["found", "random", "shuffle", "none"] = value("found")
    fusion: Literal["paper", "gate", "scalar-gate", "sum", "attention", "bi-attention"] | None = (
        value(None, show_default="paper's, or the model's")
    )
    fusion_start: Literal["drawn", "identity"] = value("drawn")
    image_dropout: float = value(0.0, metavar="SHARE", min=0, max=1)
    image_weight: float = value(1.0, metavar="W", min=0)

    def check(self, task: Task) -> None:
        """Refuse flags that need one another, or that the task has no use for."""
        flags = {"--retrieved": self.retrieved, "--index": self.index, "--feats": self.feats}
        given = next((flag for flag, value in flags.items() if value), None)
        refuse_if(given and task.images, given, f"{task.name} has its own pictures")
        alone = self.images != "found" and not given
        refuse_if(alone, "--images", "chooses among images of --retrieved or --index")
        why = f"fuses images for tasks of kind {', '.join(_FUSED)}; {task.name} is {task.kind}"
        refuse_if(self.retrieved and task.kind not in _FUSED, "--retrieved", why)
        why = "needs --feats, features of the images"
        refuse_if(self.retrieved and not self.feats, "--retrieved", why)
        fusing = (self.fusion, self.fusion_start, self.image_dropout) != (None, "drawn", 0.0)
        why = "needs --retrieved, the images to fuse"
        refuse_if(fusing and not self.retrieved, "--fusion/--fusion-start/--image-dropout", why)
        unused = self.image_weight != 1 and self.fusion != "sum"
        refuse_if(unused, "--image-weight", "belongs to --fusion sum")
        alone = self.fusion in ("attention", "bi-attention") and self.fusion_start == "identity"
        why = f"--fusion {self.fusion} shows the head vectors read from images, not the text's "
        refuse_if(alone, "--fusion-start identity", f"{why}states; use drawn")


@dataclass(frozen=True, kw_only=True)
class Scratch:
    """The shape and tokenizer of a translation model that does not start from another model.

    Attributes:
        shape: translation: train from scratch in this shape; --encoder continues instead.
        tokenizer: With --shape: folder of vg prepare tokenizer.
    """

    shape: Literal["transformer-base", "transformer-small"] | None = value(None)
    tokenizer: str | None = value(None, metavar="DIR")


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How a task is learned; most values are the task's own unless given.

    Attributes:
        epochs: Passes over the training set.
        steps: Steps in total, instead of --epochs.
        lr: Highest learning rate of AdamW.
        batch_size: Items per step, over all processes; SQuAD: windows; translation: source tokens.
        max_length: Highest number of tokens in a sequence, special tokens included.
        warmup: Share of the steps in which the learning rate rises; from 1 on, their number.
        weight_decay: On matrices.
        seed: First seed, for the head, the order and the dropout.
        seeds: Number of seeds: SEED, SEED+1, …
        keep: Epoch whose weights are kept; the paper chooses none.
        patience: Stop a seed after N epochs that were not its best.
        window: Batches sorted by length together; 1 leaves the order to chance.
        dtype: bfloat16: matrix products only, weights stay float32.
        limit: For a quick try: the first N examples of every file.
        no_models: Keep scores and predictions, not the models.
    """

    epochs: int | None = count(None, show_default=_PAPER, topic=FIRST)
    steps: int | None = count(None, show_default="none", topic=FIRST)
    lr: float | None = value(None, metavar="RATE", min=0, show_default=_PAPER, topic=FIRST)
    batch_size: int | None = count(None, show_default=_PAPER, topic=FIRST)
    max_length: int | None = count(None, least=3, show_default=_PAPER, topic=FIRST)
    warmup: float | None = value(None, metavar="SHARE", min=0, show_default=_PAPER)
    weight_decay: float | None = value(None, metavar="RATE", min=0, show_default=_PAPER)
    seed: int | None = count(None, least=0, show_default=str(Hyper.seed), topic=FIRST)
    seeds: int = count(1, topic=FIRST)
    keep: Literal["last", "best"] | None = value(
        None, show_default="last; translation, and with --patience: best"
    )
    patience: int | None = count(None)
    window: int = count(50)
    dtype: Literal["float32", "bfloat16"] = value("float32", topic=FIRST)
    limit: int | None = count(None, topic=FIRST)
    no_models: bool = value(False, topic=FIRST)

    def check(self, task: Task) -> None:
        """Refuse flags that the task has no use for, or that contradict one another."""
        refuse_if(self.steps and self.epochs, "--steps", "cannot be combined with --epochs")
        clash = self.patience and self.keep == "last"
        refuse_if(clash, "--patience", "implies --keep best and conflicts with --keep last")


@dataclass(frozen=True, kw_only=True)
class SpanLearning(Learning):
    """How a task is learned, answers in a context among them.

    Attributes:
        stride: SQuAD: tokens from one window to the next.
        null_threshold: SQuAD 2.0: answer nothing if that scores this much higher than the answer.
    """

    stride: int | None = count(None, show_default=_PAPER)
    null_threshold: float = value(0.0, metavar="SCORE")

    def check(self, task: Task) -> None:
        """Refuse flags that the task has no use for, or that contradict one another."""
        super().check(task)
        unused = self.stride is not None and task.kind != "span"
        refuse_if(unused, "--stride", f"is for SQuAD; {task.name} has no windows")
        unused = bool(self.null_threshold) and not task.unanswerable
        why = "is for squad-2.0, where questions may have no answer"
        refuse_if(unused, "--null-threshold", why)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Where the seeds are learned, if not here.

    Attributes:
        ray: Learn each seed on a worker of a Ray cluster: auto, local or HOST:PORT.
        workers: With --ray: the most workers.
    """

    ray: str | None = value(None, metavar="ADDRESS")
    workers: int | None = count(None, show_default="one per GPU or core")

    def check(self, inputs: Sequence[str | None]) -> None:
        """Refuse inputs and flags that do not go with a cluster."""
        from vgtools.io.names import is_stream
        from vgtools.training import processes

        refuse_if(self.workers and self.ray is None, "--workers", "belongs to --ray")
        if self.ray is None:
            return
        piped = any(is_stream(name) for name in inputs if name)
        refuse_if(piped, "--ray", "workers cannot read a pipe; write a file first")
        why = "learns each seed in one process; leave out torchrun, or --ray"
        refuse_if(processes.world() > 1, "--ray", why)


@dataclass(frozen=True, kw_only=True)
class Given:
    """The flags that all tasks have."""

    start: Start
    learning: Annotated[Learning, TRAINING]
    shown: Annotated[FoundImages, RETRIEVAL]
    spread: Annotated[Spread, CLUSTER]
    runtime: Runtime
    pictures = PictureTaskFlags()  # none

    def check(self, task: Task, *files: str | None) -> None:
        """Refuse flags that the task has no use for, and files that cannot be read."""
        output = self.start.check(task)
        for group in (self.learning, self.pictures, self.shown):
            group.check(task)
        read = [*files, *(self.shown.retrieved or ())]
        check_streams(read, output)
        self.spread.check(read)
