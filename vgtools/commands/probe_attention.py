"""`vg probe-attention`: what attention heads ground, and what they look at."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vgtools import io
from vgtools.commands.options import (
    BatchSize,
    Dtype,
    Errors,
    Flag,
    Limit,
    Runtime,
    Seed,
    flags,
    help_at_terminal,
    note,
    run_folder,
)
from vgtools.io.errors import amount

if TYPE_CHECKING:
    from vgtools.systems.attention_probes.probing import Findings


# What the manifest of the results names, in its order.
_CONFIG = (
    "encoder", "parser", "split", "select_on", "phrase", "entity_word", "samples", "seed", "limit",
    "classifier", "train_on", "epochs", "vectors", "dtype",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What is probed on what."""

    path: str  # of captions or texts
    encoder: str
    dtype: str
    seed: int
    limit: int | None
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Which rows are for what."""

    split: Annotated[str | None, Flag(metavar="NAME", help="Report on the rows of this split.")] = (
        None
    )
    select_on: Annotated[
        str | None, Flag(metavar="NAME", help="Choose the best heads on this split instead.")
    ] = None
    train_on: Annotated[
        str | None,
        Flag(
            metavar="NAME",
            help="Split that the classifier learns from; without it: four of five texts, and all "
            "that is reported is of the fifth.",
        ),
    ] = None

    def sides(self) -> dict[str, str] | None:
        """Return what each split is for; None if all rows are reported on."""
        if self.split is None:
            return None
        named = ((self.split, "report"), (self.select_on, "select"), (self.train_on, "train"))
        return {name: side for name, side in named if name is not None}


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A classifier over all heads of a text encoder."""

    classifier: Annotated[
        Literal["attention", "words"] | None,
        Flag(
            help="Of text: learn heads of words from attention alone, or from attention and words."
        ),
    ] = None
    epochs: Annotated[
        int, Flag(metavar="N", min=1, help="Passes of the classifier over what it learns from.")
    ] = 2
    vectors: Annotated[
        str | None,
        Flag(
            metavar="FILE",
            show_default="the encoder's own embeddings",
            help="Word vectors for the classifier, in GloVe's text form.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What the heads are asked."""

    phrase: Annotated[
        Literal["last", "mean"],
        Flag(help="A phrase asks with its last sub-word, or with the mean of all."),
    ] = "last"
    entity_word: Annotated[
        Literal["head", "any"],
        Flag(help="In relations a phrase is represented by its head, or by any of its words."),
    ] = "head"
    relations: Annotated[
        str,
        Flag(
            metavar="N|all|NAMES",
            help="How many of the most frequent relations, all, or names (det,pobj).",
        ),
    ] = "10"
    samples: Annotated[
        int,
        Flag(metavar="N", min=20, help="Resamplings of photos or sentences for the intervals."),
    ] = 1000
    distances: Annotated[
        int,
        Flag(
            metavar="N",
            min=0,
            help="Texts that the distances of heads are averaged over (no --regions).",
        ),
    ] = 100

    def names(self) -> Sequence[str] | int | None:
        """Return the relations to report: names, how many, or None for all."""
        if self.relations == "all":
            return None
        return int(self.relations) if self.relations.isdecimal() else self.relations.split(",")


@dataclass(frozen=True, kw_only=True)
class Page:
    """The folder of results."""

    images: Annotated[
        str | None,
        Flag(
            metavar="FILE", help="Where the photos are, for the page: image jsonl or a directory."
        ),
    ] = None
    examples: Annotated[int, Flag(metavar="N", min=0, help="Captions on the page.")] = 8
    output: Annotated[
        str | None,
        Flag("--output", "-o", metavar="DIR", help="Folder for results, tables, figures, page."),
    ] = None


@flags
def probe_attention(
    context: typer.Context,
    splits: Splits,
    learning: Classifier,
    questions: Questions,
    page: Page,
    errors: Errors,
    runtime: Runtime,
    captions: Annotated[
        str,
        typer.Argument(
            metavar="CAPTIONS",
            help="Captions with phrase boxes (vg prepare flickr30k-entities); any text without "
            "--regions.",
        ),
    ] = "-",
    encoder: Annotated[
        str | None,
        Flag(
            metavar="REF",
            help="VisualBertAttention model or text encoder: hub name, directory, vg run, builtin:NAME.",
        ),
    ] = None,
    regions: Annotated[
        str | None,
        Flag(metavar="X.npy", help="Region features of the photos; without: text-side probes."),
    ] = None,
    parser: Annotated[
        str | None,
        Flag(
            metavar="REF",
            help="Gold syntax: a spaCy model, builtin:spacy-sm, or a .conllu file in order.",
        ),
    ] = None,
    batch_size: BatchSize = 32,
    limit: Limit = None,
    dtype: Dtype = "float32",
    seed: Seed = 0,
) -> None:
    """Measure what each attention head grounds in image regions, or looks at in a text.

    With --regions: for each entity with gold boxes, the region that a head attends to most is its
    answer, right from an IoU of 0.5 on. The baseline is the most confident region; a head is active
    if over 20 % of the attention goes to regions. With --parser, for each relation: how often a
    word attends to the region of the entity that it is joined to. Intervals come from resampling
    photos; p-values are corrected over all heads; --select-on chooses heads on other photos.

    Without --regions: attention to [CLS], [SEP], punctuation and neighbours, entropies, distances
    of heads; with --parser how often a head finds a word's head or dependent, beside the best
    offset, with intervals over sentences. --classifier learns from all heads together which word is
    whose head, and reports how often it is right on other sentences.

    One JSON record per head, layer and relation goes to stdout, shares in percent; a terminal gets
    tables. Captions longer than the encoder and photos without regions are left out and counted.
    Any transformers VisualBERT can be probed. What stops it in the middle, Ctrl-C too, leaves the
    results up to there.

    Examples:

        vg probe-attention phrases.jsonl --encoder run --regions feats.npy --images photos -o probe

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --split test | jq -c .

        vg probe-attention wiki.txt --encoder builtin:minilm --parser en_core_web_sm -o probe
    """
    if encoder is None:
        raise typer.BadParameter("is missing: the model to probe", param_hint="--encoder")
    help_at_terminal(context, captions)
    _check(splits, learning, page, regions, parser, captions)
    from vgtools.text.parses import open_parser

    folder = None if page.output is None else run_folder(page.output)
    parse = None if parser is None else open_parser(parser)
    work = Settings(captions, encoder, dtype, seed, limit, batch_size)
    if regions is None:
        found = _probe_texts(work, parser, parse, splits, learning, questions, runtime)
    else:
        found = _probe_captions(
            work, regions, parse, splits, errors, questions, page.examples, runtime
        )
    if not found.count:
        left_out = f"no usable captions or texts; {_left_out(found.skipped)}"
        raise found.failure or io.DataError(left_out, captions)
    records = found.records(questions.names(), splits.select_on)
    fault: io.DataError | None = None
    if folder is not None:
        values = asdict(splits) | asdict(learning) | asdict(questions)
        values |= asdict(work) | {"parser": parser}
        config = {name: values[name] for name in _CONFIG}
        read = [f for f in (captions, regions, learning.vectors) if f is not None]
        inputs = [f for f in read if not io.arrives_once(f)]
        try:
            _save(folder, found, records, config, inputs, page.images, runtime.quiet)
        except io.DataError as error:  # of a full disk: the results still go to stdout
            fault = error
    _print(records)
    if +found.skipped:
        note("probe-attention", _left_out(found.skipped), runtime.quiet)
    if folder is not None and fault is None:
        size = amount(found.count, "text" if regions is None else "caption")
        made = f"{size}; tables, figures and page.html are in {folder}"
        note("probe-attention", made, runtime.quiet)
    for failure in (fault, found.failure):
        if failure is not None:
            raise failure


def _check(
    splits: Splits,
    learning: Classifier,
    page: Page,
    regions: str | None,
    parser: str | None,
    captions: str,
) -> None:
    """Refuse flags that contradict one another."""
    classifier = learning.classifier
    report, select, train = splits.split, splits.select_on, splits.train_on
    shared = bool(train) and train in (report, select)
    for wrong, why in (
        (regions is None and page.images, "--images is about photos; give --regions"),
        (
            page.images and page.output is None,
            "--images is for the page; -o names the folder of the page",
        ),
        (
            select is not None and report in (None, select),
            "--select-on names the split to choose heads on, --split another one to report on; "
            "give both",
        ),
        (
            regions is not None and classifier,
            "--classifier is about text and cannot be combined with --regions",
        ),
        (
            classifier is None and (train or learning.vectors),
            "--train-on and --vectors are about --classifier; give it",
        ),
        (
            classifier and (parser is None or io.arrives_once(captions)),
            "--classifier needs --parser, which says what is right, and a file: it is read more "
            "than once",
        ),
        (
            learning.vectors is not None and classifier != "words",
            "--vectors is for --classifier words",
        ),
        (
            (classifier and (report is None) != (train is None)) or shared,
            "--train-on names the split to learn from, --split another one to report on; give both",
        ),
    ):
        if wrong:
            raise typer.BadParameter(why)


def _open_model(encoder: str, dtype: str, runtime: Runtime) -> Any:
    """Return the model to probe, a joint one or a text encoder."""
    from vgtools.models.attention import open_encoder
    from vgtools.models.encoder import read_config
    from vgtools.models.references import pick_device

    device, offline = runtime.device, runtime.offline
    if not read_config(encoder, offline=offline).get("bypass_transformer"):
        return open_encoder(encoder, device=device, dtype=dtype, offline=offline)
    # transformers does not return the attention of its last layer, the one that regions enter
    from vgtools.systems.visualbert.model import open_attention

    return open_attention(encoder, device=pick_device(device), dtype=dtype, offline=offline)


def _probe_captions(
    work: Settings,
    regions: str,
    parse: Any,
    splits: Splits,
    errors: Errors,
    questions: Questions,
    examples: int,
    runtime: Runtime,
) -> Findings:
    """Probe a joint model; a bad row is reported before an hour's work, not after."""
    from vgtools.images.regions import open_regions
    from vgtools.systems.attention_probes import grounding as probes
    from vgtools.systems.attention_probes import probing

    opened = open_regions(regions)
    probes.check_backbone(work.encoder, opened)
    if work.path != "-" and errors.on_error == "fail":
        probes.check_captions(work.path, opened, splits.sides(), work.limit)
    model = _open_model(work.encoder, work.dtype, runtime)
    tally = errors.tally()
    rows = probes.read_captions(work.path, opened, splits.sides(), tally, work.limit)
    with io.Progress("probe-attention", "captions", quiet=runtime.quiet) as bar, io.Stop() as stop:
        probe = probes.GroundingProbe(
            model,
            opened,
            parse,
            questions.phrase,
            questions.entity_word,
            questions.samples,
            work.seed,
            work.batch_size,
            bar,
        )
        found = probing.probe_captions(probe, rows, stop, examples)
    for error in tally.errors[:3]:
        note("probe-attention", str(error), runtime.quiet)
    found.skipped = found.skipped + tally.left_out
    return found


def _probe_texts(
    work: Settings,
    parser: str | None,
    parse: Any,
    splits: Splits,
    classifier: Classifier,
    questions: Questions,
    runtime: Runtime,
) -> Findings:
    """Probe a text encoder; what is wrong with a text is reported before the model is loaded."""
    from vgtools.systems.attention_probes import probing
    from vgtools.systems.attention_probes.head_classifier import open_vectors
    from vgtools.systems.attention_probes.text import TextProbe, Texts
    from vgtools.text.parses import open_parser

    drawn = classifier.classifier is not None and splits.split is None
    texts = Texts(work.path, splits.sides(), work.limit, work.seed if drawn else None)
    counts = texts.check() if work.path != "-" else Counter[str]()
    learning = None
    if classifier.classifier is not None:
        vectors = None if classifier.vectors is None else open_vectors(classifier.vectors)
        kind = classifier.classifier
        learning = probing.Learning(kind, vectors, counts["train"], classifier.epochs)
    if drawn:
        rest = f"all that is reported is of the other {counts['report']:,}"
        size = amount(counts["train"], "text")
        note("probe-attention", f"{size} to learn from; {rest}", runtime.quiet)
    model = _open_model(work.encoder, work.dtype, runtime)
    with io.Progress("probe-attention", "texts", quiet=runtime.quiet) as bar, io.Stop() as stop:
        probe = TextProbe(
            model,
            parse,
            questions.distances,
            questions.samples,
            work.seed,
            work.batch_size,
            bar,
        )
        return probing.probe_texts(probe, texts, stop, lambda: open_parser(str(parser)), learning)


def _save(
    folder: Path,
    found: Findings,
    records: list[dict[str, Any]],
    config: dict[str, Any],
    inputs: Sequence[Any],
    images: str | None,
    quiet: bool,
) -> None:
    """Write results, tables, figures and page."""
    from vgtools.reports import page
    from vgtools.reports import probes as probe_report

    shown: list[Any] = []
    if found.kept:
        choose = config["select_on"] is not None
        shown = list(found.probe.examples(found.kept, choose=choose))
    if images is not None:
        shown, faults = probe_report.with_pictures(shown, images)
        for fault in faults:
            note("probe-attention", f"{fault}; the page shows the boxes alone", quiet)
    credit = page.credit(images) if images else ""
    files = probe_report.save(folder, records, shown, config["encoder"], credit)
    io.write_manifest(files[0], files, inputs, kind="attention-probe", config=config)


def _print(records: Sequence[dict[str, Any]]) -> None:
    """Print tables to a terminal, records into a pipe."""
    if sys.stdout is not None and sys.stdout.isatty():
        from vgtools.reports import probes as probe_report

        print(io.plain(probe_report.tables(records)))
        return
    stream = io.open_stream("-")
    stream.writelines(map(io.dumps, records))
    stream.flush()


def _left_out(skipped: Counter[str]) -> str:
    """Return what was left out, in words."""
    parts = [f"{what}: {count:,}" for what, count in skipped.items() if count]
    return f"skipped: {'; '.join(parts)}"
