"""`vg pretrain lm`: text and vokens become a language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from vgtools.commands.options import (
    Argument,
    Checkpoints,
    Count,
    File,
    Flag,
    Optimizer,
    RunFolder,
    Runtime,
    Seed,
    Value,
)
from vgtools.commands.pretrain.flags import (
    TRAINING,
    Cache,
    GradientCheckpointing,
    MaskingFlags,
    PretrainFlags,
    StartFlags,
    StopEpoch,
    Valid,
    Weight,
    parse_weights,
    settle,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import Topic, page
from vgtools.systems.vokenization import objectives

VOKENS = Topic("vokens", page("pretrain.vokens"))


def _losses() -> tuple[str, ...]:
    return ("mlm", *objectives.names())


@dataclass(frozen=True, kw_only=True)
class LmOptimizer(Optimizer):
    """How the language model learns.

    Source: Tan & Bansal 2020 (Vokenization), section 4.2; epochs and batch of the published code
        for Wiki103.
    Deviation: its warm-up of 10,000 steps would be all of a small corpus's training; here it is a
        share. `--warmup 10000` is the published code's.
    """

    epochs: int | None = 40
    stop_epoch: StopEpoch = None
    batch_size: int = 256
    lr: float = 2e-4
    warmup: float = 0.05


@flags
def lm(
    context: typer.Context,
    *,
    inputs: Annotated[list[str], Argument("INPUT")],
    target: RunFolder,
    start: StartFlags,
    weight: Annotated[
        list[str] | None,
        Weight(
            f"{', '.join(_losses())}; repeatable, others are off",
            "mlm=1, with vokens voken_cls=1, with --also also=1",
        ),
    ] = None,
    vokens: Annotated[objectives.VokenSettings, VOKENS],
    feats: Annotated[
        str | None,
        Value("X.npy", f"Features of the bank, for {' and '.join(objectives.names(feats=True))}."),
        VOKENS,
    ] = None,
    also: Annotated[str | None, File(), VOKENS] = None,
    valid: Valid = None,
    masking: MaskingFlags,
    optimizer: Annotated[LmOptimizer, TRAINING],
    gradient_checkpointing: GradientCheckpointing = False,
    compiled: Annotated[bool, Flag("--compile"), TRAINING] = False,
    checkpoints: Annotated[Checkpoints, TRAINING],
    keep_every: Annotated[int | None, Count(), TRAINING] = None,
    cache: Cache = None,
    seed: Seed = 0,
    runtime: Runtime,
) -> None:
    """Pretrain a masked language model on text, with vokens as further labels of its tokens.

    Reads voken rows (of vg vokenize or vg revokenize, for the encoder's tokenizer) or plain text,
    cut into blocks. Prints one record per --log-every steps: losses, and with --valid those on it
    and the perplexity. Sentences follow one another in a block; an empty row ends a document.

    The run directory holds encoder/ (a BertForMaskedLM or RobertaForMaskedLM with its tokenizer, as
    transformers saves it), voken_lm.safetensors (the voken head), run.json and metrics.jsonl.

    Other systems are sub-commands: vg pretrain visualbert --help.

    Examples:

        vg pretrain vokens.jsonl --shape bert-small --tokenizer google-bert/bert-base-uncased -o run

        vg pretrain wiki.txt --shape bert-small -t google-bert/bert-base-uncased -o run.plain

        vg pretrain vokens.npy --encoder run --weight voken_cls=1 --dtype bfloat16 -o run.vokens

        vg pretrain visualbert captions.jsonl --regions regions.npy --encoder run -o run.visualbert

    Args:
        inputs: Voken rows or text: .jsonl, .npy, .txt, .gz, .zst, -.
        also: Further labels of the inputs' tokens, learned by a head of their own: voken rows or
            .npy of the same text, for example of vg prepare clusters.
        compiled: Compile the encoder first.
        keep_every: Keep the encoder of every N-th step as RUN/step-N, a model like any.
    """
    read = [*inputs, *([also] if also else []), *(valid or ())]
    optimizer = settle(context, start, optimizer, read, target.output)
    weights = parse_weights(weight, _losses())
    from vgtools.systems.vokenization.pretraining import VokenPretraining

    run = PretrainFlags(target, inputs, valid, masking, optimizer, checkpoints, seed, runtime)
    run.train(
        start.open,
        lambda encoder, **common: VokenPretraining(
            encoder,
            vokens,
            feats=feats,
            also=also,
            shape=start.shape_mark(),
            compiled=compiled,
            cache=cache,
            **common,
        ),
        weights,
        start.encoder,
        gradient_checkpointing=gradient_checkpointing,
        keep_every=keep_every,
    )
