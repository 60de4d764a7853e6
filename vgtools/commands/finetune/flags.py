"""Flags of `vg finetune`, and which of them a task has a use for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from vgtools.commands.options import Count, File, Flag, TaskFiles, Value, refuse_if
from vgtools.commands.topics import FIRST
from vgtools.tasks.table import Hyper

if TYPE_CHECKING:
    from vgtools.tasks.table import Task

_PAPER = "the task's paper"
_FUSED = ("classify", "regress", "tag", "translate")  # kinds that images are fused for
ANSWERED = 9  # training questions that have an answer, for it to be predicted


@dataclass(frozen=True, kw_only=True)
class Files(TaskFiles):
    """The files of a task."""

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
            show_default=str(ANSWERED),
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
        str | None,
        File(
            "Encoder of --strategy scene, object, keyword: finds images. With --retrieved: the "
            "index of rows that do not say which."
        ),
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
        Literal["paper", "gate", "scalar-gate", "sum", "attention", "bi-attention"] | None,
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
    image_weight: Annotated[
        float, Value("W", "Of the images in a new fusion that is a sum.", min=0)
    ] = 1.0

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
        why = f"--fusion {self.fusion} shows the head what was read from images, not the text's "
        refuse_if(alone, "--fusion-start identity", f"{why}states; use drawn")


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

    epochs: Annotated[
        int | None, Count("Passes over the training set.", show_default=_PAPER), FIRST
    ] = None
    steps: Annotated[
        int | None, Count("Steps in total, in place of --epochs.", show_default="none"), FIRST
    ] = None
    lr: Annotated[
        float | None,
        Value("RATE", "Highest learning rate of AdamW.", min=0, show_default=_PAPER),
        FIRST,
    ] = None
    batch_size: Annotated[
        int | None,
        Count(
            "Items per step, over all processes; SQuAD: windows; translation: source tokens.",
            show_default=_PAPER,
        ),
        FIRST,
    ] = None
    max_length: Annotated[
        int | None,
        Count(
            "Highest number of tokens in a sequence, special tokens included.",
            3,
            show_default=_PAPER,
        ),
        FIRST,
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
        FIRST,
    ] = None
    seeds: Annotated[int, Count("Number of seeds: SEED, SEED+1, …"), FIRST] = 1
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
        FIRST,
    ] = "float32"
    limit: Annotated[
        int | None, Count("For a quick try: the first N examples of every file."), FIRST
    ] = None
    no_models: Annotated[
        bool, Flag("--no-models", help="Keep scores and predictions, not what was learned."), FIRST
    ] = False

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
class Spread:
    """Where the seeds are learned, if not here."""

    ray: Annotated[
        str | None,
        Value("ADDRESS", "Learn each seed on a worker of a Ray cluster: auto, local or HOST:PORT."),
    ] = None
    workers: Annotated[
        int | None,
        Count("With --ray: the most workers.", show_default="one per GPU or core"),
    ] = None

    def check(self, inputs: Sequence[str | None]) -> None:
        """Refuse what does not go with a cluster."""
        from vgtools.io.names import is_stream
        from vgtools.training import processes

        refuse_if(self.workers and self.ray is None, "--workers", "belongs to --ray")
        if self.ray is None:
            return
        piped = any(is_stream(name) for name in inputs if name)
        refuse_if(piped, "--ray", "workers cannot read a pipe; write a file first")
        why = "learns each seed in one process; leave out torchrun, or --ray"
        refuse_if(processes.world() > 1, "--ray", why)
