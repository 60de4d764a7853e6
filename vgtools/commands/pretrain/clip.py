"""`vg pretrain clip`: captions and image features become a text tower of CLIP's form."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vgtools.commands.options import (
    Captions,
    Checkpoints,
    File,
    Optimizer,
    RunFolder,
    Runtime,
    Seed,
    Value,
    refuse_if,
)
from vgtools.commands.pretrain.flags import PretrainFlags, StartFlags, settle
from vgtools.commands.signature import flags
from vgtools.commands.topics import Topic
from vgtools.io.settings import count, value

if TYPE_CHECKING:
    from vgtools.models.encoder import Encoder

_NAMES = "clip-text, clip-text-small"
TRAINING = Topic("training", "How the tower learns: rates, numbers, and when it is saved.")


@dataclass(frozen=True, kw_only=True)
class TowerStart(StartFlags):
    """The text tower that training starts from.

    Attributes:
        tokenizer: With --shape: builtin:clip-bpe, or another CLIP's.
        encoder: Continue training this text tower: hub name, directory, vg run.
    """

    shape: str | None = value(
        None,
        f"From scratch: {_NAMES}, or the config.json of a CLIPTextModelWithProjection.",
        metavar="NAME|FILE",
    )
    tokenizer: str | None = value(None, metavar="NAME")
    encoder: str | None = value(None, metavar="NAME")

    def open(self) -> Encoder:
        """Return the tower to start from, with its tokenizer."""
        from vgtools.io.files import read_json
        from vgtools.models.clip import SHAPES, load_teacher, new_teacher
        from vgtools.models.references import load_tokenizer

        if self.encoder is not None:
            return load_teacher(self.encoder)
        assert self.shape is not None
        assert self.tokenizer is not None
        shape = SHAPES.get(self.shape)
        if shape is None:
            unknown = not Path(self.shape).is_file()
            why = f"{self.shape!r} is neither one of {_NAMES} nor a file"
            refuse_if(unknown, "--shape", why)
            shape = read_json(self.shape, "a transformers configuration")
        tokenizer = load_tokenizer(self.tokenizer)
        return new_teacher(shape, tokenizer, self.tokenizer, self.shape)


@dataclass(frozen=True, kw_only=True)
class ClipOptimizer(Optimizer):
    """How the tower learns: the recipe that measured best (examples/xdbert/LOG.md).

    Deviation: CLIP's is for 400 million captions (Radford et al. 2021, table 18).

    Attributes:
        micro_batch: Not of a tower.
    """

    epochs: int | None = 8
    batch_size: int = 256
    micro_batch: int | None = count(None, hidden=True)
    lr: float = 2e-3
    warmup: float = 0.1
    schedule: Literal["linear", "cosine", "constant"] = "cosine"
    weight_decay: float = 0.1


@flags
def clip(
    context: typer.Context,
    *,
    captions: Captions,
    target: RunFolder,
    feats: Annotated[str, Value("X.npy")],
    start: TowerStart,
    valid: Annotated[str | None, File()] = None,
    optimizer: Annotated[ClipOptimizer, TRAINING],
    checkpoints: Annotated[Checkpoints, TRAINING],
    seed: Seed = 0,
    runtime: Runtime,
) -> None:
    """Pretrain a text tower of CLIP's form on captions: a teacher where no CLIP is at hand.

    The tower learns to find the photo of a caption among the photos of a step, and the captions of
    a photo likewise (InfoNCE), together with a small network that reads the features of the photos.
    Prints one record per --log-every steps: the loss, and with --valid R@1, 5 and 10 in percent
    among all photos and captions of that file, both ways, with 95 % intervals and chance.

    The run directory holds encoder/ (a CLIPTextModelWithProjection with its tokenizer, as
    transformers saves it), clip.safetensors (the network over image features), run.json and
    metrics.jsonl. vg pretrain xdbert --teacher, vg finetune and vg build-index --matcher take it.

    Examples:

        vg pretrain clip train.jsonl --feats feats.npy --shape clip-text-small \\
          --tokenizer builtin:clip-bpe --valid dev.jsonl -o teacher

    Args:
        feats: Features of the photos, of vg extract-image-feats.
        valid: Measure recall on these captions, of other photos; theirs are in FEATS.
    """
    why = "the photos of a step are one another's negatives; lower --batch-size instead"
    refuse_if(optimizer.micro_batch is not None, "--micro-batch", why)
    optimizer = settle(context, start, optimizer, [captions, valid or ""], target.output)
    from vgtools.systems.clip.training import LOSS, ClipPretraining

    held = [valid] if valid else None
    run = PretrainFlags(target, [captions], held, None, optimizer, checkpoints, seed, runtime)
    run.train(
        start.open,
        lambda tower, **common: ClipPretraining(tower, feats, **common),
        {LOSS: 1.0},
        start.encoder,
    )
