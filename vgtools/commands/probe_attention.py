"""`vg probe-attention`: what attention heads ground, and what they look at."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
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
from vgtools.errors import amount

if TYPE_CHECKING:
    from vgtools.prepare import Tally
    from vgtools.regions import Regions
    from vgtools.systems.attention_probes import Caption
    from vgtools.systems.text_probes import Texts


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
            help="Split that the classifier learns from; without it: four of five texts, and all that "
            "is reported is of the fifth.",
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


@dataclass
class Findings:
    """What a probe found, up to where it was stopped."""

    probe: Any
    count: int  # captions or texts
    skipped: Counter[str]
    failure: Exception | None
    kept: list[Caption] = field(default_factory=list)  # captions for the page
    classifier: Any = None


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
            help="Joint model or text encoder: hub name, directory, vg run, builtin:NAME.",
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
    if over 20 % of the attention goes to regions. With --parser, for each relation: how often a word
    attends to the region of the entity that it is joined to. Intervals come from resampling photos;
    p-values are corrected over all heads; --select-on chooses heads on other photos.

    Without --regions: attention to [CLS], [SEP], punctuation and neighbours, entropies, distances of
    heads; with --parser how often a head finds a word's head or dependent, beside the best offset,
    with intervals over sentences. --classifier learns from all heads together which word is whose
    head, and reports how often it is right on other sentences.

    One JSON record per head, layer and relation goes to stdout, shares in percent; a terminal gets
    tables. Captions longer than the encoder and photos without regions are left out and counted. Any
    transformers VisualBERT can be probed. What stops it in the middle, Ctrl-C too, leaves the results
    up to there.

    Examples:

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --images photos -o probe

        vg probe-attention phrases.jsonl --encoder run --regions regions.npy --split test | jq -c .

        vg probe-attention wiki.txt --encoder builtin:minilm --parser en_core_web_sm -o probe
    """
    if encoder is None:
        raise typer.BadParameter("is missing: the model to probe", param_hint="--encoder")
    help_at_terminal(context, captions)
    _check(splits, learning, page, regions, parser, captions)
    from vgtools.parses import open_parser
    from vgtools.systems.attention_probes import read_captions

    folder = None if page.output is None else run_folder(page.output)
    parse = None if parser is None else open_parser(parser)
    settings = {"samples": questions.samples, "seed": seed, "batch_size": batch_size}
    if regions is None:
        texts = _Texts(captions, splits, learning, limit, seed, runtime.quiet)
        model = _open_model(encoder, dtype, runtime)
        found = texts.probe(model, parser, parse, questions, settings, runtime.quiet)
    else:
        opened = _open_regions(encoder, regions, captions, splits, errors, limit)
        model = _open_model(encoder, dtype, runtime)
        tally = errors.tally()
        rows = read_captions(captions, opened, splits.sides(), tally, limit)
        found = _probe_regions(
            model, opened, rows, tally, parse, questions, settings, page.examples, runtime.quiet
        )
    if not found.count:
        left_out = f"no usable captions or texts; {_left_out(found.skipped)}"
        raise found.failure or io.DataError(left_out, captions)
    records = _records(found, questions, splits, of="texts" if regions is None else "captions")
    fault: io.DataError | None = None
    if folder is not None:
        config = {
            "encoder": encoder,
            "parser": parser,
            "split": splits.split,
            "select_on": splits.select_on,
            "phrase": questions.phrase,
            "entity_word": questions.entity_word,
            "samples": questions.samples,
            "seed": seed,
            "limit": limit,
            "classifier": learning.classifier,
            "train_on": splits.train_on,
            "epochs": learning.epochs,
            "vectors": learning.vectors,
            "dtype": dtype,
        }
        inputs = [f for f in (captions, regions, learning.vectors) if f not in (None, "-")]
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
            classifier and (parser is None or captions == "-"),
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
    from vgtools.checkpoint import pick_device, read_config
    from vgtools.systems.attention_probes import open_encoder

    device, offline = runtime.device, runtime.offline
    if not read_config(encoder, offline=offline).get("bypass_transformer"):
        return open_encoder(encoder, device=device, dtype=dtype, offline=offline)
    # transformers does not return the attention of its last layer, the one that regions enter
    from vgtools.systems.visualbert import open_joint

    return open_joint(encoder, device=pick_device(device), dtype=dtype, offline=offline)


def _open_regions(
    encoder: str,
    path: str,
    captions: str,
    splits: Splits,
    errors: Errors,
    limit: int | None,
) -> Regions:
    """Return the regions; a bad row is reported before an hour's work, not after."""
    from vgtools.regions import open_regions
    from vgtools.systems import attention_probes as probes

    opened = open_regions(path)
    probes.check_backbone(encoder, opened)
    if captions != "-" and errors.on_error == "fail":
        probes.check_captions(captions, opened, splits.sides(), limit)
    return opened


def _probe_regions(
    model: Any,
    regions: Regions,
    captions: Iterator[Caption],
    tally: Tally,
    parse: Any,
    questions: Questions,
    settings: dict[str, Any],
    examples: int,
    quiet: bool,
) -> Findings:
    """Probe a joint model on captions with regions."""
    from vgtools.systems import attention_probes as probes

    kept: list[Caption] = []
    with io.Progress("probe-attention", "captions", quiet=quiet) as bar, io.Stop() as stop:
        probe = probes.GroundingProbe(
            model,
            regions,
            parse,
            questions.phrase,
            questions.entity_word,
            **settings,
            progress=bar,
        )
        watched = probes.keep_examples(captions, kept, examples)
        failure = probes.probe_all(probe.run, watched, stop)
    for error in tally.errors[:3]:
        note("probe-attention", str(error), quiet)
    count = probe.scores["report"].captions if "report" in probe.scores else 0
    return Findings(probe, count, probe.skipped + tally.left_out, failure, kept)


class _Texts:
    """The texts that an encoder is probed on, read and checked before it is loaded."""

    def __init__(
        self,
        path: str,
        splits: Splits,
        learning: Classifier,
        limit: int | None,
        seed: int,
        quiet: bool,
    ) -> None:
        from vgtools.systems import dependency_probes, text_probes

        drawn = learning.classifier is not None and splits.split is None
        self._texts: Texts = text_probes.Texts(path, splits.sides(), limit, seed if drawn else None)
        self._learning = learning
        self._counts = self._texts.check() if path != "-" else Counter[str]()
        self._vectors = None
        if learning.vectors is not None:
            self._vectors = dependency_probes.open_vectors(learning.vectors)
        if drawn:
            size = amount(self._counts["train"], "text")
            rest = f"all that is reported is of the other {self._counts['report']:,}"
            note("probe-attention", f"{size} to learn from; {rest}", quiet)

    def probe(
        self,
        model: Any,
        parser: str | None,
        parse: Any,
        questions: Questions,
        settings: dict[str, Any],
        quiet: bool,
    ) -> Findings:
        """Probe a text encoder, then learn from all its heads together."""
        from vgtools.systems import attention_probes as probes
        from vgtools.systems.text_probes import TextProbe

        with io.Progress("probe-attention", "texts", quiet=quiet) as bar, io.Stop() as stop:
            probe = TextProbe(model, parse, questions.distances, **settings, progress=bar)
            failure = probes.probe_all(probe.run, self._texts.of("report", "select"), stop)
            found = Findings(probe, probe.texts, probe.skipped, failure)
            if self._learning.classifier is None or parser is None or failure is not None:
                return found
            classifier = self._classifier(model, parser, settings, bar, stop)
            found.failure = probes.probe_all(lambda _: classifier.run(), iter(()), stop)
            if found.failure is None:
                found.classifier = classifier
        return found

    def _classifier(
        self, model: Any, parser: str, settings: dict[str, Any], bar: io.Progress, stop: io.Stop
    ) -> Any:
        from vgtools.parses import open_parser
        from vgtools.systems import dependency_probes

        kind = self._learning.classifier
        if kind == "words" and self._vectors is None:
            table = model.encoder.model.get_input_embeddings().weight
            self._vectors = dependency_probes.own_vectors(model, table)

        def sentences(side: str) -> Any:
            running = takewhile(lambda _: stop.signal is None, self._texts.of(side))
            return (text.text for text in running)

        return dependency_probes.ClassifierProbe(
            model,
            sentences,
            lambda: open_parser(parser),
            str(kind),
            self._vectors,
            self._counts["train"],
            self._learning.epochs,
            **settings,
            progress=bar,
        )


def _records(
    found: Findings, questions: Questions, splits: Splits, of: str
) -> list[dict[str, Any]]:
    """Return the records of all probes; the last one sums up."""
    choose = splits.select_on is not None
    records = list(found.probe.records(questions.names(), choose=choose))
    if found.classifier is not None:
        records[-1:-1] = found.classifier.records(questions.names())
    records[-1]["skipped"] = dict(+found.skipped)
    if found.failure is not None:
        records[-1]["stopped"] = str(found.failure) or type(found.failure).__name__
    records[-1]["selected_on"] = splits.select_on or f"the same {of}"
    return records


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
    from vgtools import probe_report, report

    shown: list[Any] = []
    if found.kept:
        choose = config["select_on"] is not None
        shown = list(found.probe.look_closely(found.kept, choose=choose))
    if images is not None:
        shown, faults = probe_report.with_pictures(shown, images)
        for fault in faults:
            note("probe-attention", f"{fault}; the page shows the boxes alone", quiet)
    credit = report.credit(images) if images else ""
    files = probe_report.save(folder, records, shown, config["encoder"], credit)
    io.write_manifest(files[0], files, inputs, kind="attention-probe", config=config)


def _print(records: Sequence[dict[str, Any]]) -> None:
    """Print tables to a terminal, records into a pipe."""
    if sys.stdout is not None and sys.stdout.isatty():
        from vgtools import probe_report

        print(io.plain(probe_report.tables(records)))
        return
    stream = io.open_stream("-")
    stream.writelines(map(io.dumps, records))
    stream.flush()


def _left_out(skipped: Counter[str]) -> str:
    """Return what was left out, in words."""
    parts = [f"{what}: {count:,}" for what, count in skipped.items() if count]
    return f"skipped: {'; '.join(parts)}"
