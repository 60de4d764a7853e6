"""`vg probe-attention`: what attention heads ground, and what they look at."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import takewhile
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
    classifier: Annotated[
        str | None,
        typer.Option("--classifier", help="Of text: learn heads of words from attention alone, or from attention and words."),
    ] = None,
    train_on: Annotated[
        str | None,
        typer.Option(
            "--train-on",
            metavar="SPLIT",
            help="What it learns from; without: four of five texts, and all that is reported is of the fifth.",
        ),
    ] = None,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="Passes of the classifier over what it learns from.")] = 2,
    vectors: Annotated[
        str | None,
        typer.Option("--vectors", help="Word vectors for it, in GloVe's text form; without: the encoder's own embeddings."),
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
    samples: Annotated[
        int, typer.Option("--samples", min=20, help="Resamplings of photos or sentences behind the intervals.")
    ] = 1000,
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
    how often a head finds a word's head or dependent, beside the best offset, with intervals over sentences. --classifier
    learns from all heads together which word is whose head, and says how often it is right on other sentences.

    One JSON record a head, layer and relation goes to stdout, shares in percent; a terminal gets tables. Captions longer than
    the encoder and photos without regions are left out and counted. Any transformers VisualBERT can be probed. What stops it
    in the middle, Ctrl-C too, leaves the results up to there.

    Examples:

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --parser builtin:spacy-sm --images photos -o probe

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --split test --select-on val | jq -c .

        vg probe-attention wiki.txt --encoder builtin:minilm --parser en_core_web_sm --classifier attention -o probe
    """
    if encoder is None or (captions == "-" and sys.stdin is not None and sys.stdin.isatty()):
        print(context.get_help() if encoder is not None else "vg: --encoder is missing: the model to probe", file=sys.stderr)
        raise typer.Exit(io.Exit.USAGE)
    choice(phrase, ("last", "mean"), "--phrase")
    choice(entity_word, ("head", "any"), "--entity-word")
    choice(on_error, ("fail", "skip"), "--on-error")
    if classifier is not None:
        choice(classifier, ("attention", "words"), "--classifier")
    for wrong, why in (
        (regions is None and images, "--images is about photos; give --regions"),
        (images and output is None, "--images is for the page; -o names the folder that it goes into"),
        (select_on is not None and split in (None, select_on),
         "--select-on names the split to choose heads on, --split another one to report on; give both"),
        (regions is not None and classifier, "--classifier is about text; leave --regions out"),
        (classifier is None and (train_on or vectors), "--train-on and --vectors are about --classifier; give it"),
        (classifier and (parser is None or captions == "-"),
         "--classifier needs --parser, which says what is right, and a file: it is read more than once"),
        (vectors is not None and classifier != "words", "--vectors is for --classifier words"),
        ((bool(classifier) and (split is None) != (train_on is None)) or (train_on and train_on in (split, select_on)),
         "--train-on names the split to learn from, --split another one to report on; give both"),
    ):  # fmt: skip
        if wrong:
            raise typer.BadParameter(why)
    wanted = None if relations == "all" else int(relations) if relations.isdecimal() else relations.split(",")
    from vgtools.checkpoint import pick_device, read_config
    from vgtools.errors import amount
    from vgtools.parses import open_parser
    from vgtools.reports import page
    from vgtools.reports import probes as probe_report
    from vgtools.systems import attention_probes as probes

    def note(message: str) -> None:
        if not quiet:
            print(f"vg probe-attention: {io.plain(message)}", file=sys.stderr)

    folder = None if output is None else run_folder(output)
    parse = None if parser is None else open_parser(parser)
    named = ((split, "report"), (select_on, "select"), (train_on, "train"))
    sides = None if split is None else {name: side for name, side in named if name is not None}
    opened, words = None, None
    if regions is not None:
        from vgtools.regions import open_regions

        opened = open_regions(regions)
        probes.check_backbone(encoder, opened)
        if captions != "-" and on_error == "fail":  # what is wrong with a row is said before an hour's work, not after
            probes.check_captions(captions, opened, sides, limit)
    else:
        from vgtools.systems import dependency_probes, text_probes

        texts = text_probes.Texts(captions, sides, limit, seed if classifier and split is None else None)
        counts = texts.check() if captions != "-" else None
        words = None if vectors is None else dependency_probes.open_vectors(vectors)
        if classifier and split is None and counts:
            note(f"{amount(counts['train'], 'text')} to learn from; all that is reported is of the other {counts['report']:,}")
    model: Any
    if read_config(encoder, offline=offline).get("bypass_transformer"):  # its last layer, where regions come in, is ours alone
        from vgtools.systems.visualbert import open_joint

        model = open_joint(encoder, device=pick_device(device), dtype=dtype, offline=offline)
    else:
        model = probes.open_encoder(encoder, device=device, dtype=dtype, offline=offline)
    shown, learnt, fault = list[Any](), None, None
    with io.Progress("probe-attention", "texts" if opened is None else "captions", quiet=quiet) as bar, io.Stop() as stop:
        if opened is None:
            probe: Any = text_probes.TextProbe(model, parse, distances, samples, seed, batch_size, bar)
            stopped = _run(probe.run, stop, texts.of("report", "select"))
            skipped, counted = probe.skipped, probe.texts
            if classifier is not None and stopped is None and parser is not None and counts is not None:
                if classifier == "words" and words is None:
                    words = dependency_probes.own_vectors(model, model.encoder.model.get_input_embeddings().weight)
                learnt = dependency_probes.ClassifierProbe(
                    model, lambda side: (t.text for t in takewhile(lambda _: stop.signal is None, texts.of(side))),
                    lambda: open_parser(parser), classifier, words, counts["train"], epochs, samples=samples, seed=seed,
                    batch_size=batch_size, progress=bar,
                )  # fmt: skip
                stopped = _run(lambda _: learnt.run(), stop, iter(()))
        else:
            from vgtools.prepare import Tally

            tally, kept = Tally(on_error == "skip", max_errors), list[Any]()
            probe = probes.GroundingProbe(model, opened, parse, phrase, entity_word, samples, seed, batch_size, bar)
            rows = probes.read_captions(captions, opened, sides, tally, limit)
            stopped = _run(probe.run, stop, _keeping(rows, kept, examples))
            for error in tally.errors[:3]:
                note(str(error))
            skipped = probe.skipped + tally.left_out
            counted = probe.scores["report"].captions if "report" in probe.scores else 0
    if not counted:
        raise stopped or io.DataError("has nothing that could be probed: " + _counts(skipped), captions)
    ending = {"skipped": dict(+skipped)} | ({} if stopped is None else {"stopped": str(stopped) or type(stopped).__name__})
    ending["selected_on"] = select_on or ("the same captions" if opened is not None else "the same texts")
    records = list(probe.records(wanted, choose=select_on is not None))
    if learnt is not None and stopped is None:
        records[-1:-1] = learnt.records(wanted)
    records[-1] |= ending
    if folder is not None:
        try:
            if opened is not None:
                shown = list(probe.look_closely(kept, choose=select_on is not None))
            if images is not None:
                shown, faults = probe_report.with_pictures(shown, images)
                for fault_of in faults:
                    note(f"{fault_of}; the page shows the boxes alone")
            files = probe_report.save(folder, records, shown, encoder, page.credit(images) if images else "")
            config = {"encoder": encoder, "parser": parser, "split": split, "select_on": select_on, "phrase": phrase,
                      "entity_word": entity_word, "samples": samples, "seed": seed, "limit": limit, "classifier": classifier,
                      "train_on": train_on, "epochs": epochs, "vectors": vectors, "dtype": dtype}  # fmt: skip
            inputs = [f for f in (captions, regions, vectors) if f not in (None, "-")]
            io.write_manifest(files[0], files, inputs, kind="attention-probe", config=config)
        except io.DataError as error:  # a full disk: what was found still goes to stdout
            fault = error
    if sys.stdout is not None and sys.stdout.isatty():
        print(io.plain(probe_report.tables(records)))
    else:
        stream = io.open_stream("-")
        stream.writelines(map(io.dumps, records))
        stream.flush()
    if +skipped:
        note(_counts(skipped))
    if folder is not None and fault is None:
        note(f"{amount(counted, 'text' if opened is None else 'caption')}; tables, figures and page.html are in {folder}")
    for failure in (fault, stopped):
        if failure is not None:
            raise failure


def _run(work: Callable[[Iterator[Any]], None], stop: io.Stop, rows: Iterator[Any]) -> Exception | None:
    """Probe; what stops it in the middle is returned, and said once the results up to there are written."""
    faults = list[Exception]()
    try:
        work(_until(stop, rows, faults))
        stop.check()
    except io.DataError as error:
        asked = stop.signal is not None
        return io.DataError("stopped: the results are of what was read up to there", code=error.code) if asked else error
    except Exception as error:  # whatever it is, hours of work are behind it
        return error
    return faults[0] if faults else None


def _until(stop: io.Stop, rows: Iterator[Any], faults: list[Exception]) -> Iterator[Any]:
    """Pass rows on until a stop is asked for, or one cannot be read: what was read before it still counts."""
    try:
        yield from takewhile(lambda _: stop.signal is None, rows)
    except io.DataError as error:
        faults.append(error)


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
