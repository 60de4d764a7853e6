"""`vg probe-attention`: what attention heads ground, and what they look at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

from vgtools import io
from vgtools.commands.options import (
    BatchSize,
    Device,
    Dtype,
    Limit,
    MaxErrors,
    Offline,
    OnError,
    Quiet,
    Seed,
    choice,
    run_folder,
)


def probe_attention(
    context: typer.Context,
    captions: Annotated[
        str, typer.Argument(help="Captions with phrase boxes (vg prepare flickr30k-entities); any text without --regions.")
    ] = "-",
    encoder: Annotated[
        str | None, typer.Option("--encoder", help="Joint model or text encoder: hub name, directory, vg run, builtin:NAME.")
    ] = None,
    regions: Annotated[
        str | None, typer.Option("--regions", metavar="X.npy", help="Region features of the photos; without: text-side probes.")
    ] = None,
    parser: Annotated[
        str | None,
        typer.Option("--parser", help="Gold syntax: a spaCy model, builtin:spacy-sm, or a .conllu file in order."),
    ] = None,
    split: Annotated[str | None, typer.Option("--split", help="Report on the rows of this split.")] = None,
    select_on: Annotated[
        str | None, typer.Option("--select-on", metavar="SPLIT", help="Choose the best heads on this split instead.")
    ] = None,
    phrase: Annotated[
        str, typer.Option("--phrase", help="last: a phrase asks with its last sub-word; mean: with the mean of them.")
    ] = "last",
    entity_word: Annotated[
        str,
        typer.Option("--entity-word", help="head: a phrase's head stands for it in relations; any: each of its words does."),
    ] = "head",
    relations: Annotated[
        str, typer.Option("--relations", help="How many of the most frequent relations, all, or names (det,pobj).")
    ] = "10",
    samples: Annotated[int, typer.Option("--samples", min=20, help="Resamplings of the photos behind the intervals.")] = 1000,
    distances: Annotated[
        int, typer.Option("--distances", min=0, help="Texts that the distances of heads are taken over (no --regions).")
    ] = 100,
    images: Annotated[
        str | None, typer.Option("--images", help="Where the photos are, for the page: image jsonl or directory.")
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=0, help="Captions on the page.")] = 8,
    output: Annotated[str | None, typer.Option("--output", "-o", help="Folder for results, tables, figures, page.")] = None,
    batch_size: BatchSize = 32,
    limit: Limit = None,
    on_error: OnError = "fail",
    max_errors: MaxErrors = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    seed: Seed = 0,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Measure what each attention head grounds in image regions, or looks at in a text.

    With --regions: for each entity with gold boxes, the region that a head attends to most is its answer, right from an IoU
    of 0.5 on. The baseline is the most confident region; a head is active if over 20 % of the attention goes to regions.
    With --parser, for each relation: how often a word attends to the region of the entity that it is joined to. Intervals
    come from resampling photos; p-values are corrected over all heads; --select-on chooses heads on other photos.

    Without --regions: attention to [CLS], [SEP], punctuation and neighbours, entropies, distances of heads; with --parser
    how often a head finds a word's head or dependent.

    One JSON record a head, layer and relation goes to stdout, shares in percent; a terminal gets tables. Captions longer than
    the encoder and photos without regions are left out and counted. Any transformers VisualBERT can be probed.

    Examples:

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --parser builtin:spacy-sm --images photos -o probe

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --split test --select-on val | jq -c .

        vg probe-attention wiki.txt --encoder builtin:minilm --parser en_core_web_sm -o probe
    """
    if encoder is None or (captions == "-" and sys.stdin is not None and sys.stdin.isatty()):
        print(context.get_help() if encoder is not None else "vg: --encoder is missing: the model to probe", file=sys.stderr)
        raise typer.Exit(io.Exit.USAGE)
    choice(phrase, ("last", "mean"), "--phrase")
    choice(entity_word, ("head", "any"), "--entity-word")
    choice(on_error, ("fail", "skip"), "--on-error")
    if regions is None and (split or select_on or images):
        raise typer.BadParameter("--split, --select-on and --images are about photos; give --regions")
    if select_on is not None and split in (None, select_on):
        raise typer.BadParameter("--select-on names the split to choose heads on, --split another one to report on; give both")
    if images is not None and output is None:
        raise typer.BadParameter("--images is for the page; -o names the folder that it goes into")
    wanted = None if relations == "all" else int(relations) if relations.isdecimal() else relations.split(",")
    from vgtools import probe_report, report
    from vgtools.checkpoint import pick_device, read_config
    from vgtools.parses import open_parser
    from vgtools.systems import attention_probes as probes

    def note(message: str) -> None:
        if not quiet:
            print(f"vg probe-attention: {io.plain(message)}", file=sys.stderr)

    folder = None if output is None else run_folder(output)
    parse = None if parser is None else open_parser(parser)
    opened, sides = None, None
    if regions is not None:
        from vgtools.regions import open_regions

        opened = open_regions(regions)
        probes.check_backbone(encoder, opened)
        sides = None if split is None else {split: "report"} | ({} if select_on is None else {select_on: "select"})
        if captions != "-" and on_error == "fail":  # what is wrong with a row is said before an hour's work, not after
            probes.check_captions(captions, opened, sides, limit)
    model: Any
    if read_config(encoder, offline=offline).get("bypass_transformer"):  # its last layer, where regions come in, is ours alone
        from vgtools.systems.visualbert import open_joint

        model = open_joint(encoder, device=pick_device(device), offline=offline)
    else:
        model = probes.open_encoder(encoder, device=device, dtype=dtype, offline=offline)
    stopped, shown = None, list[Any]()
    with io.Progress("probe-attention", "texts" if opened is None else "captions", quiet=quiet) as bar:
        if opened is None:
            from vgtools.stats import read_sentences
            from vgtools.systems.text_probes import TextProbe

            words = TextProbe(model, parse, distances, batch_size, bar)
            stopped = _run(words, islice(read_sentences(captions), limit))
            skipped, counted = words.skipped, words.texts
        else:
            from vgtools.prepare import Tally

            tally, kept = Tally(on_error == "skip", max_errors), list[Any]()
            probe = probes.GroundingProbe(model, opened, parse, phrase, entity_word, samples, seed, batch_size, bar)
            stopped = _run(probe, _keeping(probes.read_captions(captions, opened, sides, tally, limit), kept, examples))
            for error in tally.errors[:3]:
                note(str(error))
            skipped = probe.skipped + tally.left_out
            counted = probe.scores["report"].captions if "report" in probe.scores else 0
    if not counted:
        raise stopped or io.DataError("has nothing that could be probed: " + _counts(skipped), captions)
    ending = {"skipped": dict(+skipped)} | ({} if stopped is None else {"stopped": str(stopped)})
    if opened is None:
        records = list(words.records(wanted))
    else:
        records = list(probe.records(wanted, choose=select_on is not None))
        ending["selected_on"] = select_on or "the same captions"
        if folder is not None:
            shown = list(probe.look_closely(kept, choose=select_on is not None))
        if images is not None:
            shown, faults = probe_report.with_pictures(shown, images)
            for fault in faults:
                note(f"{fault}; the page shows the boxes alone")
    records[-1] |= ending
    if folder is not None:
        files = probe_report.save(folder, records, shown, encoder, report.credit(images) if images else "")
        config = {"encoder": encoder, "parser": parser, "split": split, "select_on": select_on, "phrase": phrase,
                  "entity_word": entity_word, "samples": samples, "seed": seed, "limit": limit}  # fmt: skip
        inputs = [f for f in (captions, regions) if f not in (None, "-")]
        io.write_manifest(files[0], files, inputs, kind="attention-probe", config=config)
    if sys.stdout is not None and sys.stdout.isatty():
        print(io.plain(probe_report.tables(records)))
    else:
        stream = io.open_stream("-")
        stream.writelines(map(io.dumps, records))
        stream.flush()
    if +skipped:
        note(_counts(skipped))
    if stopped is not None:
        raise stopped


def _run(probe: Any, rows: Iterator[Any]) -> io.DataError | None:
    """Run a probe; what stops it in the middle is returned, and said once the results up to there are written."""
    try:
        probe.run(rows)
    except io.DataError as error:
        return error
    return None


def _keeping(captions: Iterator[Any], kept: list[Any], most: int) -> Iterator[Any]:
    """Pass captions on; keep the first ones of different photos with two entities or more, for the page."""
    for caption in captions:
        wanted = len(kept) < most and caption.side == "report" and len(caption.spans) > 1
        if wanted and all(caption.image != other.image for other in kept):
            kept.append(caption)
        yield caption


def _counts(skipped: Any) -> str:
    """Return what was left out, in words."""
    return "left out: " + "; ".join(f"{what}: {count:,}" for what, count in skipped.items() if count)
