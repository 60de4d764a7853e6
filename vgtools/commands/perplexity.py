"""`vg perplexity`: how well models know the masked words of texts, with and without images."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from vgtools.commands.options import (
    Argument,
    BatchSize,
    Count,
    File,
    Flag,
    Runtime,
    Seed,
    Value,
    help_at_terminal,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.process import note
from vgtools.io.settings import file, value

_KINDS = ("own", "found", "other", "random", "none")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """The images that grounded models are shown.

    Attributes:
        pictures: Images that grounded runs see: own (that a row names), found (by its words), other
            (another text's), random, none; repeatable.
        feats: Features of images; repeatable, a run takes the first that fits it.
        regions: Regions of images, for runs that were trained with them.
        index: Index by words; repeatable, a run takes the first that fits it.
        query: Words that images are found by: those shown, or all (a control).
        tagger: Finds nouns, for object.
    """

    pictures: list[str] | None = value(
        None, metavar="KIND", show_default="the kind that the run was trained with"
    )
    feats: list[str] | None = value(None, metavar="X.npy")
    regions: str | None = value(None, metavar="X.npy")
    index: list[str] | None = file(None)
    query: Literal["masked", "whole"] | None = value(None, show_default="as the run was trained")
    tagger: str | None = value(None, metavar="NAME", show_default="the run's")


@flags
def perplexity(
    context: typer.Context,
    *,
    inputs: Annotated[list[str], Argument("TEXT")],
    encoder: Annotated[list[str], Value("NAME")],
    shown: Shown,
    mask_rate: Annotated[float, Value("RATE", min=0.01, max=0.9)] = 0.15,
    block: Annotated[int, Count(least=8)] = 64,
    samples: Annotated[int, Count(max=1_000_000)] = 10_000,
    seed: Seed = 0,
    batch_size: BatchSize = 64,
    output: Annotated[str | None, File()] = None,
    table: Annotated[bool, Flag("--table")] = False,
    reported: Annotated[str | None, Value("PAPER:N")] = None,
    runtime: Runtime,
) -> None:
    """Measure the perplexity of the masked words of texts, for one or more models.

    Every model is asked for the same masked words, fixed by a text's number. As in BERT's training
    80 % of them are shown as a mask, 10 % as another word and 10 % as they are. Prints one record
    per model and --pictures: masked tokens, nll (nats per token), perplexity with its 95 %
    interval, and the paired difference from the first record with interval and p (of these very
    models: other training seeds are not counted); the same for content words. Texts of one image
    are drawn together where rows name images; a single text has no interval and no p.

    Examples:

        vg perplexity wiki.test.txt -e run.none -e run.both

        vg perplexity dev.jsonl -e run.none -e run.i2t --feats feats.npy --pictures own
        --pictures other --pictures none --mask-rate 0.5

        vg perplexity wiki.test.txt -e run.none -e run.scene --index scene.faiss --feats cc.npy
        --table --reported grounding:2

        vg perplexity wiki.test.txt -e google-bert/bert-base-uncased -o nll.jsonl

    Args:
        inputs: Text, or rows {"text": …} and {"image": ID, "text": …}.
        encoder: Run of vg pretrain, hub name, directory or builtin:NAME; repeatable.
        mask_rate: Share of the tokens that are masked.
        block: Tokens per text, special tokens included.
        samples: Bootstrap samples.
        output: Also write each text's losses (jsonl).
        table: Print markdown instead of records.
        reported: Add the rows of a paper's table, marked as reported: grounding:1, grounding:2.
    """
    help_at_terminal(context, *inputs)
    for kind in shown.pictures or ():
        known = kind in _KINDS
        refuse_if(not known, "--pictures", f"{kind!r} is not one of {', '.join(_KINDS)}")
    from vgtools.io.files import dumps, refuse_inputs
    from vgtools.io.names import is_stream

    again = len(encoder) > 1 and any(map(is_stream, inputs))
    several = again or inputs.count("-") > 1
    refuse_if(several, "TEXT", "is read once per model, and a pipe only once; write a file first")
    from vgtools.io.output import Output
    from vgtools.models.references import pick_device
    from vgtools.reports import tables
    from vgtools.systems.grounding.scoring import Comparison, Offer
    from vgtools.tasks.perplexity import uncertain

    known_values = tables.reported(reported, "perplexities") if reported else []

    offer = Offer(
        shown.pictures or [],
        shown.feats or [],
        shown.regions,
        shown.index or [],
        shown.query,
        shown.tagger,
    )
    device = pick_device(runtime.device)
    comparison = Comparison(inputs, offer, mask_rate, block, batch_size, device)
    with contextlib.ExitStack() as stack:
        out = None
        if output is not None:  # refused now, if it cannot be written
            read = [*offer.feats, *([offer.regions] if offer.regions else []), *offer.index]
            refuse_inputs([Path(os.path.realpath(output))], read)
            config = {"command": "perplexity", "encoder": encoder}
            out = stack.enter_context(Output([output], config, inputs=inputs, restart=True))
        for ref in encoder:
            comparison.add(ref)
        found = comparison.records(samples, seed)
        for remark in [*comparison.remarks, *uncertain(found)]:
            note("perplexity", remark)
        records = [*found, *known_values]
        if table:
            sys.stdout.buffer.write(tables.markdown(tables.perplexity_table(records)).encode())
        else:
            sys.stdout.buffer.writelines(map(dumps, records))
        sys.stdout.buffer.flush()
        if out is not None:
            for row in comparison.rows():
                out.write(dumps(row))
            out.finish(kind="perplexities", records=comparison.names)
