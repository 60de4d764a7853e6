"""`vg pretrain xdbert`: a text encoder is adapted together with a CLIP text tower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vgtools.commands.options import (
    Argument,
    Checkpoints,
    Optimizer,
    RunFolder,
    Runtime,
    Seed,
    refuse_if,
)
from vgtools.commands.pretrain.flags import (
    TRAINING,
    Cache,
    GradientCheckpointing,
    MaskingFlags,
    PretrainFlags,
    StopEpoch,
    Valid,
    Weight,
    parse_weights,
    settle,
)
from vgtools.commands.signature import flags
from vgtools.io.settings import count, value

if TYPE_CHECKING:
    from vgtools.models.encoder import Encoder

_LOSSES = ("mlm", "match", "clip_token")


@dataclass(frozen=True, kw_only=True)
class Models:
    """The encoder that is adapted, and its teacher.

    Attributes:
        encoder: BERT, RoBERTa or ELECTRA: hub name, directory, vg run.
        teacher: CLIP or its text tower: hub name, directory, run of vg pretrain clip.
        cross_layers: Layers over both.
        freeze_teacher: The teacher does not learn (a control).
    """

    encoder: str = value(..., metavar="NAME")
    teacher: str = value(..., metavar="NAME")
    cross_layers: int = count(2, max=256)
    freeze_teacher: bool = value(False)

    def open(self) -> tuple[Encoder, Encoder]:
        """Return the student, with its head of masked words, and the teacher."""
        from vgtools.models.clip import is_tower, load_teacher
        from vgtools.models.encoder import load_masked_lm

        tower = is_tower(self.encoder)
        why = f"{self.encoder} is a CLIP: name it with --teacher, and here the encoder to adapt"
        refuse_if(tower, "--encoder", why)
        teacher = load_teacher(self.teacher)
        return load_masked_lm(self.encoder), teacher


@dataclass(frozen=True, kw_only=True)
class TextBlocks(MaskingFlags):
    """The part of a text that is read, and the part that is masked.

    Source: Hsu et al. 2022, appendix B: 512 tokens.

    Attributes:
        pack: Boundary that no block crosses: none (stream), an empty row (document), the end of a
            row (row); best-fit: document, whose short ends share blocks.
    """

    block: int = 512
    pack: Literal["stream", "document", "row", "best-fit"] = value("stream")


@dataclass(frozen=True, kw_only=True)
class XDBertOptimizer(Optimizer):
    """How student and teacher learn.

    Source: Hsu et al. 2022, appendix C.1: rate and warm-up; 16k steps are 20 epochs, so that 256
        blocks are a step. `--epochs 40 --stop-epoch 1` is its schedule.

    Attributes:
        cross_lr: Highest rate of the new layers and heads; examples/xdbert in small has 1e-3, with
            a weight of match of 20.
    """

    epochs: int | None = 1
    stop_epoch: StopEpoch = None
    batch_size: int = 256
    lr: float = 1e-4
    cross_lr: float | None = value(None, metavar="RATE", min=0, show_default="--lr")
    warmup: float = 0.05


@flags
def xdbert(
    context: typer.Context,
    *,
    inputs: Annotated[list[str], Argument("INPUT")],
    target: RunFolder,
    models: Models,
    weight: Annotated[
        list[str] | None,
        Weight(f"{', '.join(_LOSSES)}; repeatable, others are off", "1 each"),
    ] = None,
    valid: Valid = None,
    masking: TextBlocks,
    optimizer: Annotated[XDBertOptimizer, TRAINING],
    gradient_checkpointing: GradientCheckpointing = False,
    checkpoints: Annotated[Checkpoints, TRAINING],
    cache: Cache = None,
    seed: Seed = 0,
    runtime: Runtime,
) -> None:
    """Adapt a text encoder together with a CLIP text tower, with layers over both (XDBERT).

    Both read a block of text, the tower in its own tokens, unmasked; half of the time it reads
    another block. Three losses: masked words (mlm), whether both read the same block (match), and
    some of the tower's tokens (clip_token). With --valid each loss on it, mlm with the same and
    with another block, and the accuracy of match with its interval. All weights learn.

    The run directory holds encoder/ (the bare encoder, as transformers saves it: use the run where
    an encoder is asked for), teacher/ (the tower), xdbert.safetensors (layers and heads), run.json
    and metrics.jsonl. vg finetune --full learns on all of it. The fair baseline is vg pretrain lm
    with the same text, blocks and schedule.

    Examples:

        vg pretrain xdbert wiki103.txt -e google-bert/bert-base-uncased --epochs 40 \\
          --teacher openai/clip-vit-base-patch32 --stop-epoch 1 --micro-batch 8 -o xdbert

        vg pretrain lm wiki103.txt -e google-bert/bert-base-uncased --block 512 --lr 1e-4 \\
          --epochs 40 --stop-epoch 1 -o baseline

        vg pretrain xdbert captions.jsonl --pack row --block 64 -e builtin:minilm --teacher clip \\
          --valid dev.jsonl -o xdbert

    Args:
        inputs: Text: .txt, .jsonl, .npy, .gz, .zst, -.
    """
    optimizer = settle(context, None, optimizer, [*inputs, *(valid or ())], target.output)
    weights = parse_weights(weight, _LOSSES) or dict.fromkeys(_LOSSES, 1.0)
    why = "is a multiple of --lr, which is 0"
    refuse_if(optimizer.cross_lr is not None and not optimizer.lr, "--cross-lr", why)
    from vgtools.systems.xdbert.model import XDBertConfig
    from vgtools.systems.xdbert.pretraining import XDBertPretraining

    run = PretrainFlags(target, inputs, valid, masking, optimizer, checkpoints, seed, runtime)
    run.train(
        models.open,
        lambda opened, **common: XDBertPretraining(
            *opened,
            shape=XDBertConfig(models.cross_layers),
            freeze_teacher=models.freeze_teacher,
            cache=cache,
            **common,
        ),
        weights,
        models.encoder,
        models.teacher,
        gradient_checkpointing=gradient_checkpointing,
    )
