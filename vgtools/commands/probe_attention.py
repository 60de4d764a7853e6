"""`vg probe-attention`: what attention heads ground, and what they look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vgtools.commands.options import (
    BatchSize,
    Count,
    Dtype,
    Errors,
    File,
    Flag,
    Limit,
    Runtime,
    Seed,
    Value,
    flags,
    help_at_terminal,
    note,
    refuse_if,
    run_folder,
)
from vgtools.io.errors import DataError, amount
from vgtools.io.inputs import Inputs
from vgtools.io.names import is_stream
from vgtools.io.process import Progress

if TYPE_CHECKING:
    pass


# What the manifest of the results names, in its order.
_CONFIG = (
    "encoder", "parser", "split", "select_on", "phrase", "entity_word", "samples", "seed", "limit",
    "classifier", "train_on", "epochs", "vectors", "dtype",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Which rows are for what."""

    split: Annotated[str | None, Value("NAME", "Report on the rows of this split.")] = None
    select_on: Annotated[
        str | None, Value("NAME", "Choose the best heads on this split instead.")
    ] = None
    train_on: Annotated[
        str | None,
        Value(
            "NAME",
            "Split that the classifier learns from; without it: four of five texts, and all "
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
    epochs: Annotated[int, Count("Passes of the classifier over what it learns from.")] = 2
    vectors: Annotated[
        str | None,
        File(
            "Word vectors for the classifier, in GloVe's text form.",
            show_default="the encoder's own embeddings",
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
        Value("N|all|NAMES", "How many of the most frequent relations, all, or names (det,pobj)."),
    ] = "10"
    samples: Annotated[int, Count("Resamplings of photos or sentences for the intervals.", 20)] = (
        1000
    )
    distances: Annotated[
        int, Count("Texts that the distances of heads are averaged over (no --regions).", 0)
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
        str | None, File("Where the photos are, for the page: image jsonl or a directory.")
    ] = None
    examples: Annotated[int, Count("Captions on the page.", 0)] = 8
    output: Annotated[
        str | None, Value("DIR", "Folder for results, tables, figures, page.", "--output", "-o")
    ] = None
    reported: Annotated[
        bool,
        Flag("--reported", help="Add the paper's best heads (figure 3, table 2), marked as such."),
    ] = False


@flags
def probe_attention(
    context: typer.Context,
    *,
    encoder: Annotated[
        str,
        Value(
            "REF",
            "Joint model or text encoder: hub name, directory, vg run, builtin:NAME.",
            "--encoder",
            "-e",
        ),
    ],
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
            "--regions; with --cross also TASK=FILE, the texts of a task.",
        ),
    ] = "-",
    cross: Annotated[
        bool,
        Flag(
            "--cross",
            help="Run of vg pretrain xdbert, or seed-N/model of vg finetune --full: attention "
            "between encoder and teacher.",
        ),
    ] = False,
    regions: Annotated[
        str | None, Value("X.npy", "Region features of the photos; without: text-side probes.")
    ] = None,
    parser: Annotated[
        str | None,
        Value("REF", "Gold syntax: a spaCy model, builtin:spacy-sm, or a .conllu file in order."),
    ] = None,
    batch_size: BatchSize = 32,
    limit: Limit = None,
    dtype: Dtype = "float32",
    seed: Seed = 0,
) -> None:
    """Measure what each attention head grounds in image regions, or looks at in a text.

    With --regions: for each entity with gold boxes, the region that a head attends to most is its
    answer, right from an IoU of 0.5 on; ties are broken at random, by seed and photo. The headline
    is the best head minus the same head asked by a caption of another photo, paired over photos.
    Beside it: the head asked by another entity of the caption, which draws it to a wrong region and
    so inflates the difference, the most confident region, and rules that see no word (random,
    first, largest region; random, largest gold box). Where boxes of the
    annotation are among the regions, their share is printed. A head is active if over 20 % of the
    attention goes to regions. With --parser, for each relation: how often a word attends to the
    region of the entity that it is joined to. Intervals come from resampling photos; p-values are
    corrected over all heads; --select-on chooses heads on other photos.

    Without --regions: attention to [CLS], [SEP], punctuation and neighbours, entropies, distances
    of heads; with --parser how often a head finds a word's head or dependent, beside the best
    offset, with intervals over sentences. --classifier learns from all heads together which word is
    whose head, and reports how often it is right on other sentences.

    With --cross: what encoder and CLIP text tower of a run of vg pretrain xdbert look at in one
    another, per layer and head, with intervals over texts: entropy, diversity (Jensen-Shannon
    divergence of a text's rows; 0 if every token looks alike), shares on start and end,
    punctuation, stop words, and the same characters; beside what even attention gives. -o also
    draws maps.

    One JSON record per head, layer and relation goes to stdout, shares in percent; a terminal gets
    tables. Captions longer than the encoder and photos without regions are left out and counted.
    Any transformers VisualBERT can be probed. If it is interrupted, the results so far are kept.

    Examples:

        vg probe-attention phrases.jsonl --encoder run --regions feats.npy --images photos -o probe

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --split test | jq -c .

        vg probe-attention wiki.txt --encoder builtin:minilm --parser en_core_web_sm -o probe

        vg probe-attention rte=glue/RTE/dev.tsv --encoder run.xdbert --cross --limit 200 -o maps
    """
    help_at_terminal(context, captions)
    _check(splits, learning, page, regions, parser, captions)
    if cross:
        needless = regions or parser or splits.split or learning.classifier or page.images
        refuse_if(needless, "--cross", "reads texts alone, without regions, parser or split")
        refuse_if(dtype != "float32", "--cross", f"computes in float32, not in {dtype}")
        _cross(captions, encoder, questions.samples, page, batch_size, limit, seed, runtime)
        return
    from vgtools.reports import probes
    from vgtools.systems.attention_probes import probing
    from vgtools.systems.visualbert import reported
    from vgtools.text.parses import open_parser

    folder = None if page.output is None else run_folder(page.output)
    inputs = Inputs(f for f in (captions, regions, learning.vectors) if f and folder is not None)
    parse = None if parser is None else open_parser(parser)
    values = asdict(splits) | asdict(learning) | asdict(questions)
    values |= {"encoder": encoder, "parser": parser, "dtype": dtype, "seed": seed, "limit": limit}
    values |= {"path": captions, "sides": splits.sides(), "batch_size": batch_size}
    values |= {"examples": page.examples, "quiet": runtime.quiet}
    settings = probing.Settings(**{f.name: values[f.name] for f in fields(probing.Settings)})
    open_model = partial(_open_model, encoder, dtype, runtime)
    say = partial(note, "probe-attention", quiet=runtime.quiet)
    if regions is None:
        again = partial(open_parser, str(parser))
        found = probing.probe_text_file(settings, parse, again, open_model, say)
    else:
        tally = errors.tally()
        found = probing.probe_caption_file(settings, regions, parse, tally, open_model)
        for error in tally.errors[:3]:
            say(str(error))
    if not found.count:
        left_out = f"no usable captions or texts; {_left_out(found.skipped)}"
        raise found.failure or DataError(left_out, captions)
    records = found.records(questions.names(), splits.select_on)
    records[-1:-1] = reported.heads() if page.reported else []  # the last record sums up
    fault: DataError | None = None
    if folder is not None:
        config = {name: values[name] for name in _CONFIG}
        try:
            probes.save_findings(folder, found, records, config, inputs, page.images, say)
        except DataError as error:  # of a full disk: the results still go to stdout
            fault = error
    probes.print_records(records)
    if +found.skipped:
        say(_left_out(found.skipped))
    if folder is not None and fault is None:
        size = amount(found.count, "text" if regions is None else "caption")
        say(f"{size}; tables, figures and page.html are in {folder}")
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
    refuse_if(regions is None and page.images, None, "--images is about photos; give --regions")
    why = "--images is for the page; -o names the folder of the page"
    refuse_if(page.images and page.output is None, None, why)
    why = "--reported is about regions of images; give --regions"
    refuse_if(regions is None and page.reported, None, why)
    why = "--select-on names the split to choose heads on, --split another one to report on"
    refuse_if(select is not None and report in (None, select), None, f"{why}; give both")
    why = "--classifier is about text and cannot be combined with --regions"
    refuse_if(classifier and regions is not None, None, why)
    why = "--train-on and --vectors are about --classifier; give it"
    refuse_if(classifier is None and (train or learning.vectors), None, why)
    why = "--classifier needs --parser, which says what is right, and a file: it is read more"
    refuse_if(classifier and (parser is None or is_stream(captions)), None, f"{why} than once")
    unused = learning.vectors is not None and classifier != "words"
    refuse_if(unused, None, "--vectors is for --classifier words")
    uneven = classifier and (report is None) != (train is None)
    shared = train and train in (report, select)
    why = "--train-on names the split to learn from, --split another one to report on; give both"
    refuse_if(uneven or shared, None, why)


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


def _cross(
    source: str,
    encoder: str,
    samples: int,
    page: Page,
    batch_size: int,
    limit: int | None,
    seed: int,
    runtime: Runtime,
) -> None:
    """Measure what the streams of a run look at in one another (table 9)."""
    from itertools import islice

    from vgtools.models.references import pick_device
    from vgtools.reports import cross_maps
    from vgtools.systems.xdbert.maps import CrossProbe, read_sequences
    from vgtools.systems.xdbert.model import open_xdbert

    folder = None if page.output is None else run_folder(page.output)
    inputs = Inputs([source.partition("=")[2] or source] if folder else [])
    run = open_xdbert(encoder, offline=runtime.offline).to(pick_device(runtime.device))
    with Progress("probe-attention", "texts", quiet=runtime.quiet) as bar:
        probe = CrossProbe(run, samples, seed, batch_size, progress=bar)
        probe.run_on(islice(read_sequences(source), limit), page.examples if folder else 0)
    if not probe.texts:
        raise DataError("holds no text", source)
    records = list(probe.records())
    if folder is not None:
        config = {"encoder": encoder, "samples": samples, "seed": seed, "limit": limit}
        cross_maps.save(folder, records, probe, config, inputs)
    cross_maps.print_records(records)


def _left_out(skipped: Counter[str]) -> str:
    """Return what was left out, in words."""
    parts = [f"{what}: {count:,}" for what, count in skipped.items() if count]
    return f"skipped: {'; '.join(parts)}"
