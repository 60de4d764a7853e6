"""`vg pretrain visualbert`: captions and the regions of their images become a VisualBERT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from vgtools.commands.options import (
    Argument,
    Checkpoints,
    Optimizer,
    RunFolder,
    Runtime,
    Seed,
    Value,
    refuse_if,
)
from vgtools.commands.pretrain.flags import (
    TRAINING,
    GradientCheckpointing,
    MaskingFlags,
    PretrainFlags,
    StartFlags,
    Valid,
    Weight,
    parse_weights,
    settle,
)
from vgtools.commands.signature import flags
from vgtools.systems.visualbert.recipe import SeenRegions

if TYPE_CHECKING:
    from vgtools.models.encoder import Encoder


_WEIGHTS = {"mlm": 1.0, "sip": 1.0}  # weight of every loss, where none is given


@dataclass(frozen=True, kw_only=True)
class VisualBertOptimizer(Optimizer):
    """How VisualBERT learns.

    Source: Li et al. 2020, appendix B (warm-up of 10 %, texts capped at 128); the rest is from the
        published code for COCO.
    """

    epochs: int | None = 10
    batch_size: int = 64
    lr: float = 5e-5
    warmup: float = 0.1


@flags
def visualbert(
    context: typer.Context,
    *,
    inputs: Annotated[list[str], Argument("CAPTIONS")],
    regions: Annotated[str, Value("X.npy")],
    target: RunFolder,
    start: StartFlags,
    weight: Annotated[
        list[str] | None,
        Weight(
            f"{', '.join(_WEIGHTS)}; repeatable",
            ", ".join(f"{name}={value:g}" for name, value in _WEIGHTS.items()),
        ),
    ] = None,
    seen: SeenRegions,
    valid: Valid = None,
    masking: MaskingFlags,
    optimizer: Annotated[VisualBertOptimizer, TRAINING],
    gradient_checkpointing: GradientCheckpointing = False,
    checkpoints: Annotated[Checkpoints, TRAINING],
    seed: Seed = 0,
    runtime: Runtime,
) -> None:
    """Pretrain a VisualBERT on captions and the regions of their images.

    It learns masked words with the regions in view, and whether a second caption belongs to the
    image (sip). Prints one record per --log-every steps: losses, and with --valid those on it and
    the perplexity. Task-specific pretraining is the same command with --encoder RUN and
    --weight mlm=1, on rows of vg prepare task; NLVR2's name two images, a segment each.

    The run directory holds encoder/ (a VisualBertForPreTraining with its tokenizer, as transformers
    saves it), run.json and metrics.jsonl.

    Examples:

        vg pretrain visualbert captions.jsonl --regions regions.npy --encoder run.mlm -o run

        vg prepare task nlvr2 nlvr2/data --split train -o nlvr2.jsonl

        vg pretrain visualbert nlvr2.jsonl --regions nlvr2.npy --encoder run --weight mlm=1 \\
          --boxes 144 -o run.nlvr2

    Args:
        inputs: Rows {"image": ID, "text": …}, or "images": [ID, ID]: .jsonl, .gz, .zst, -.
        regions: Regions of the captions' images, of vg extract-image-feats --regions.
    """
    optimizer = settle(context, start, optimizer, [*inputs, *(valid or ())], target.output)
    weights = parse_weights(weight, tuple(_WEIGHTS))
    always = "visualbert always learns mlm; its weight cannot be 0"
    refuse_if(weights and "mlm" not in weights, "--weight", always)
    words = seen.region_start == "words"
    refuse_if(words and seen.text_only, "--region-start", "words: no region is shown")
    from vgtools.models.encoder import is_visualbert
    from vgtools.systems.visualbert.pretraining import VisualBertPretraining

    def open_text() -> Encoder | None:
        continued = start.encoder and is_visualbert(start.encoder)
        learned = "words: the VisualBERT of --encoder has learned its own"
        refuse_if(words and continued, "--region-start", learned)
        return None if continued else start.open()

    run = PretrainFlags(target, inputs, valid, masking, optimizer, checkpoints, seed, runtime)
    run.train(
        open_text,
        lambda text, **common: VisualBertPretraining(
            text, regions, seen, ref=start.encoder, shape=start.shape_mark(), **common
        ),
        weights or _WEIGHTS,
        start.encoder,
        gradient_checkpointing=gradient_checkpointing,
    )
