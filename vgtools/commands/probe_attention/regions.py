"""`vg probe-attention`: which image regions attention heads ground words in."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Literal

import typer

from vgtools.commands.options import (
    Argument,
    Count,
    Errors,
    File,
    Flag,
    Runtime,
    Value,
    help_at_terminal,
    refuse_if,
    run_folder,
)
from vgtools.commands.probe_attention.flags import Output, Probed, Splits, open_model, report, say
from vgtools.commands.signature import flags
from vgtools.io.inputs import Inputs


@flags
def regions(
    context: typer.Context,
    *,
    captions: Annotated[str, Argument("CAPTIONS")] = "-",
    regions: Annotated[str, Value("X.npy")],
    probed: Probed,
    splits: Splits,
    phrase: Annotated[Literal["last", "mean"], Flag()] = "last",
    entity_word: Annotated[Literal["head", "any"], Flag()] = "head",
    images: Annotated[str | None, File()] = None,
    examples: Annotated[int, Count(least=0)] = 8,
    output: Output = None,
    reported: Annotated[bool, Flag("--reported")] = False,
    errors: Errors,
    runtime: Runtime,
) -> None:
    """Measure what each attention head grounds in image regions.

    For each entity with gold boxes, the region that a head attends to most is its answer, right
    from an IoU of 0.5 on; ties are broken at random, by seed and photo. The headline is the best
    head minus the same head asked by a caption of another photo, paired over photos. Beside it: the
    head asked by another entity of the caption, which draws it to a wrong region and so inflates
    the difference, the most confident region, and rules that see no word (random, first, largest
    region; random, largest gold box). Where boxes of the annotation are among the regions, their
    share is printed. A head is active if over 20 % of the attention goes to regions. With --parser,
    for each relation: how often a word attends to the region of the entity that it is joined to.
    Intervals come from resampling photos; p-values are corrected over all heads, and absent below
    30 photos, where they would be too small; --select-on chooses heads on other photos.

    One JSON record per head, layer and relation goes to stdout, shares in percent; a terminal gets
    tables. Captions longer than the encoder and photos without regions are left out and counted.
    Any transformers VisualBERT can be probed. If it is interrupted, the results so far are kept.

    Examples:

        vg probe-attention phrases.jsonl --encoder run --regions feats.npy --images photos -o probe

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --split test | jq -c .

    Args:
        captions: Captions with phrase boxes (vg prepare flickr30k-entities).
        regions: Region features of the photos.
        phrase: A phrase asks with its last sub-word, or with the mean of all.
        entity_word: In relations a phrase is represented by its head, or by any of its words.
        images: Where the photos are, for the page: image jsonl or a directory.
        examples: Captions on the page.
        reported: Add the paper's best heads (figure 3, table 2), marked as such.
    """
    help_at_terminal(context, captions)
    splits.check()
    why = "is for the page; -o names the folder of the page"
    refuse_if(images and output is None, "--images", why)
    from vgtools.systems.attention_probes import probing
    from vgtools.text.parses import open_parser

    settings = probing.ProbeSettings(
        path=captions,
        phrase=phrase,
        entity_word=entity_word,
        examples=examples,
        **asdict(probed),
        **asdict(splits),
    )
    folder = None if output is None else run_folder(output, False, images)
    inputs = Inputs((captions, regions) if folder is not None else ())
    parse = None if probed.parser is None else open_parser(probed.parser)
    tally = errors.tally()
    model = partial(open_model, settings, runtime)
    found = probing.probe_caption_file(settings, regions, parse, tally, model)
    for error in tally.errors[:3]:
        say(str(error))
    report(found, settings, folder, inputs, "caption", images=images, reported=reported)
