"""`vg pretrain lm`: text and vokens become a language model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import typer

from vgtools.commands.options import (
    Checkpoints,
    Count,
    Flag,
    Optimizer,
    RunFolder,
    Runtime,
    Seed,
    Value,
)
from vgtools.commands.pretrain.flags import (
    TRAINING,
    GradientCheckpointing,
    MaskingFlags,
    PretrainFlags,
    StartFlags,
    StopEpoch,
    Valid,
    parse_weights,
    settle,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import Topic
from vgtools.io.settings import count, value
from vgtools.systems.vokenization import objectives

VOKENS = Topic(
    "vokens", "Which vokens are learned, their controls, and how rows are packed into blocks."
)


def _losses() -> tuple[str, ...]:
    return ("mlm", *objectives.names())


@dataclass(frozen=True, kw_only=True)
class VokenFlags:
    """The objectives learned from vokens; an entry of `run.json` each."""

    voken_tokens: Literal["all", "masked", "unmasked"] = value(
        "all", "Tokens whose voken is learned."
    )
    label: Literal["all", "first"] = value(
        "all", "first: only the voken of each sentence's first token (table 5)."
    )
    control: Literal["random", "shuffle", "reverse", "tokens"] | None = value(
        None, "Replacement of the vokens (table 6)."
    )
    vokens: int | None = count(
        None, "Images of the bank.", show_default="from the manifest, else the largest voken"
    )
    shared_head: bool = value(
        False, "Vokens share the hidden layer of the masked language model's head."
    )
    pack: Literal["stream", "document", "row", "best-fit"] = value(
        "stream",
        "Boundary that no block crosses: none (stream), an empty row (document), the end of a "
        "row (row); best-fit: document, whose short ends share blocks.",
    )


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
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT", help="Voken rows or text: .jsonl, .npy, .txt, .gz, .zst, -."
        ),
    ],
    target: RunFolder,
    start: StartFlags,
    weight: Annotated[
        list[str] | None,
        Value(
            "NAME=N",
            f"Weight of a loss: {', '.join(_losses())}; repeatable, others are off.",
            show_default="mlm=1, with vokens voken_cls=1",
        ),
    ] = None,
    vokens: Annotated[VokenFlags, VOKENS],
    feats: Annotated[
        str | None,
        Value("X.npy", f"Features of the bank, for {' and '.join(objectives.names(feats=True))}."),
        VOKENS,
    ] = None,
    valid: Valid = None,
    masking: MaskingFlags,
    optimizer: Annotated[LmOptimizer, TRAINING],
    gradient_checkpointing: GradientCheckpointing = False,
    compiled: Annotated[
        bool, Flag("--compile", help="Compile the encoder first."), TRAINING
    ] = False,
    checkpoints: Annotated[Checkpoints, TRAINING],
    keep_every: Annotated[
        int | None,
        Count("Keep the encoder of every N-th step as RUN/step-N, a model like any."),
        TRAINING,
    ] = None,
    cache: Annotated[
        str | None,
        Value(
            "DIR", "Keep packed inputs in DIR, for other runs.", show_default="RUN.packed, removed"
        ),
        TRAINING,
    ] = None,
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
    """
    optimizer = settle(context, start, optimizer, [*inputs, *(valid or ())], target.output)
    weights = parse_weights(weight, _losses())
    from vgtools.systems.vokenization.pretraining import VokenPretraining

    run = PretrainFlags(target, masking, optimizer, checkpoints, seed, runtime)
    run.train(
        partial(start.open, runtime.offline),
        lambda encoder, session, folder: VokenPretraining(
            encoder,
            inputs,
            valid or [],
            dataclasses.asdict(vokens),
            weights=weights,
            feats=feats,
            shape=start.shape_mark(),
            packed=cache or folder.with_name(f"{folder.name}.packed"),
            keep_packed=cache is not None,
            gradient_checkpointing=gradient_checkpointing,
            compiled=compiled,
            quiet=session.quiet,
            say=session.note,
        ),
        start.encoder,
        keep_every=keep_every,
    )
