"""`vg probe-attention cross`: the tokens that each side of an adapted encoder looks at in the
other.
"""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from vgtools.commands.options import (
    Argument,
    BatchSize,
    Count,
    Limit,
    Runtime,
    Seed,
    help_at_terminal,
    run_folder,
)
from vgtools.commands.probe_attention.flags import Encoder, Output, Samples
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError
from vgtools.io.inputs import Inputs
from vgtools.io.process import Progress


@flags
def cross(
    context: typer.Context,
    *,
    texts: Annotated[str, Argument("TEXT")] = "-",
    encoder: Encoder,
    samples: Samples = 1000,
    examples: Annotated[int, Count(least=0)] = 8,
    output: Output = None,
    batch_size: BatchSize = 32,
    limit: Limit = None,
    seed: Seed = 0,
    runtime: Runtime,
) -> None:
    """Measure what an encoder and its CLIP text tower look at in one another.

    The encoder is a run of vg pretrain xdbert, or seed-N/model of vg finetune --full. Per layer and
    head, with intervals over texts: entropy, diversity (Jensen-Shannon divergence of a text's rows;
    0 if every token looks alike), shares on start and end, punctuation, stop words, and the same
    characters; next to the shares that even attention gives. -o also draws maps.

    Examples:

        vg probe-attention cross rte=glue/RTE/dev.tsv --encoder run.xdbert --limit 200 -o maps

    Args:
        texts: Any text, or TASK=FILE: the texts of a task.
        examples: Texts whose attention is drawn.
    """
    help_at_terminal(context, texts)
    from vgtools.models.references import pick_device
    from vgtools.reports import cross_maps
    from vgtools.reports.tables import show
    from vgtools.systems.xdbert.maps import CrossProbe, read_sequences
    from vgtools.systems.xdbert.model import open_xdbert

    folder = None if output is None else run_folder(output)
    inputs = Inputs([texts.partition("=")[2] or texts] if folder else [])
    run = open_xdbert(encoder).to(pick_device(runtime.device))
    with Progress("probe-attention", "texts") as bar:
        probe = CrossProbe(run, samples, seed, batch_size, progress=bar)
        probe.run_on(islice(read_sequences(texts), limit), examples if folder else 0)
    if not probe.texts:
        raise DataError("holds no text", texts)
    records = list(probe.records())
    if folder is not None:
        config = {"encoder": encoder, "samples": samples, "seed": seed, "limit": limit}
        cross_maps.save(folder, records, probe, config, inputs)
    show(records, [cross_maps.table(records)], as_markdown=False)
