"""Probes from start to end: rows in, records out; a probe that is stopped keeps its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from vgtools.images.regions import open_regions
from vgtools.io.errors import DataError, Tally, amount
from vgtools.io.names import is_stream
from vgtools.io.process import Progress, Stop
from vgtools.systems.attention_probes import head_classifier, region_heads
from vgtools.systems.attention_probes.head_classifier import ClassifierProbe
from vgtools.systems.attention_probes.region_heads import Caption, GroundingProbe
from vgtools.systems.attention_probes.scores import Relations
from vgtools.systems.attention_probes.text import SHARED, ProbeText, ProbeTexts, TextProbe
from vgtools.text.parses import Parser

_CONFIG = (
    "encoder", "parser", "split", "select_on", "phrase", "entity_word", "samples", "seed", "limit",
    "classifier", "train_on", "epochs", "vectors", "dtype",
)  # fmt: skip


def probe_all(
    work: Callable[[Iterator[Any]], None], rows: Iterator[Any], stop: Stop
) -> Exception | None:
    """Probe rows until one cannot be read, a signal asks to stop, or the probe fails.

    Args:
        work: takes the rows, as the `run` of a probe does.

    Returns:
        The exception that ended it early, to be raised once the results so far are written; None at
        the end.
    """
    faults: list[DataError] = []

    def readable() -> Iterator[Any]:
        try:
            # The signal is looked for between rows, so that a batch at work is finished and
            # counted.
            yield from takewhile(lambda _: stop.signal is None, rows)
        except DataError as error:
            faults.append(error)

    try:
        work(readable())
        stop.check()
    except DataError as error:
        if stop.signal is None:
            return error
        why = "stopped: the results cover the rows read up to there"
        return DataError(why, code=error.code)
    except Exception as error:  # No fault may cost the results of hours of work.
        return error
    return faults[0] if faults else None


def keep_examples(captions: Iterator[Caption], kept: list[Caption], most: int) -> Iterator[Caption]:
    """Pass captions on, and keep the first ones of different photos with several entities.

    Args:
        kept: takes captions of the side `report` that have two entities or more.
    """
    for caption in captions:
        usable = len(kept) < most and caption.side == "report" and len(caption.spans) > 1
        if usable and all(caption.image != other.image for other in kept):
            kept.append(caption)
        yield caption


@dataclass
class Findings:
    """The results of a probe, up to where it was stopped."""

    probe: Any  # has the scores
    count: int  # captions or texts
    skipped: Counter[str]  # captions or texts left out, by reason
    failure: Exception | None  # the exception that stopped it early, if any
    kept: list[Caption] = field(default_factory=list)  # captions to be shown
    classifier: Any = None  # learned from all heads together; None: not asked for, or stopped

    def records(self, relations: Relations, select_on: str | None) -> list[dict[str, Any]]:
        """Return the records of the probe and of the classifier; the last record sums up.

        Args:
            select_on: split that heads were chosen on; None if it is the reported split.
        """
        rows = list(self.probe.records(relations, choose=select_on is not None))
        if self.classifier is not None:
            # The summary has to stay the last record.
            rows[-1:-1] = self.classifier.records(relations)
        rows[-1]["skipped"] = dict(+self.skipped)
        if self.failure is not None:
            rows[-1]["stopped"] = str(self.failure) or type(self.failure).__name__
        of = "captions" if isinstance(self.probe, GroundingProbe) else "texts"
        rows[-1]["selected_on"] = select_on or f"the same {of}"
        return rows


@dataclass(frozen=True, kw_only=True)
class ProbeSettings:
    """The settings of a probe; their names are the flags of `vg probe-attention`."""

    path: str  # file of captions or texts
    encoder: str
    parser: str | None
    relations: str  # how many of the most frequent, all, or names
    split: str | None
    select_on: str | None
    train_on: str | None = None
    limit: int | None
    seed: int
    batch_size: int
    samples: int
    dtype: Any
    phrase: Any = "last"
    entity_word: Any = "head"
    examples: int = 0
    distances: int = 0
    classifier: Any = None
    vectors: str | None = None
    epochs: int = 2

    def config(self) -> dict[str, Any]:
        """Return the settings that the manifest of the results names, in its order."""
        return {name: getattr(self, name) for name in _CONFIG}

    @property
    def sides(self) -> dict[str, str] | None:
        """The use of each split; None if all rows are reported on."""
        if self.split is None:
            return None
        named = ((self.split, "report"), (self.select_on, "select"), (self.train_on, "train"))
        return {name: side for name, side in named if name is not None}

    def names(self) -> Relations:
        """Return the relations to report: names, how many, or None for all."""
        if self.relations == "all":
            return None
        return int(self.relations) if self.relations.isdecimal() else self.relations.split(",")

    def common(self, bar: Progress) -> dict[str, Any]:
        """Return the fields of `region_heads.Probe`."""
        names = ("samples", "seed", "batch_size")
        return {name: getattr(self, name) for name in names} | {"progress": bar}


def probe_caption_file(
    settings: ProbeSettings,
    regions: str,
    parser: Parser | None,
    tally: Tally,
    open_model: Callable[[], Any],
) -> Findings:
    """Probe a joint model on captions (Li et al. 2020, section 3.1).

    Bad rows are reported before the model is loaded, not after an hour's work.
    """
    opened = open_regions(regions)
    region_heads.check_backbone(settings.encoder, opened)
    if not tally.skip and not is_stream(settings.path):
        region_heads.check_captions(settings.path, opened, settings.sides, settings.limit)
    model = open_model()
    rows = region_heads.read_captions(settings.path, opened, settings.sides, tally, settings.limit)
    kept = list[Caption]()
    with Progress("probe-attention", "captions") as bar, Stop() as stop:
        how = (settings.phrase, settings.entity_word)
        probe = GroundingProbe(model, opened, parser, *how, **settings.common(bar))
        failure = probe_all(probe.run, keep_examples(rows, kept, settings.examples), stop)
    count = probe.scores["report"].captions if "report" in probe.scores else 0
    return Findings(probe, count, probe.skipped + tally.left_out, failure, kept)


def _count_shared(texts: Iterator[ProbeText], skipped: Counter[str]) -> Iterator[ProbeText]:
    """Pass on the texts of one split, and count the others."""
    for text in texts:
        if text.side == SHARED:
            skipped["text of an earlier split"] += 1
        else:
            yield text


def probe_text_file(
    settings: ProbeSettings,
    parser: Parser | None,
    open_parser: Callable[[], Parser],
    open_model: Callable[[], Any],
    note: Callable[[str], None],
) -> Findings:
    """Probe a text encoder, then learn from all its heads together if a classifier is asked for.

    Faults of a text are reported before the model is loaded.

    Args:
        note: is called with how many texts the classifier learns from, where they are drawn.
    """
    kind = settings.classifier
    drawn = kind is not None and settings.sides is None
    texts = ProbeTexts(
        settings.path, settings.sides, settings.limit, settings.seed if drawn else None
    )
    counts = Counter[str]() if is_stream(settings.path) else texts.check()
    vectors = head_classifier.open_vectors(settings.vectors) if settings.vectors else None
    if drawn:
        rest = f"all that is reported is of the other {counts['report']:,}"
        note(f"{amount(counts['train'], 'text')} to learn from; {rest}")
    model = open_model()
    with Progress("probe-attention", "texts") as bar, Stop() as stop:
        common = settings.common(bar)
        probe = TextProbe(model, parser, settings.distances, **common)
        read = _count_shared(texts.of("report", "select", SHARED), probe.skipped)
        failure = probe_all(probe.run, read, stop)
        found = Findings(probe, probe.texts, probe.skipped, failure)
        if kind is None or failure is not None:
            return found
        if kind == "words" and vectors is None:
            table = model.encoder.model.get_input_embeddings().weight
            vectors = head_classifier.own_vectors(model, table)

        def sentences(side: str) -> Iterator[str]:
            running = takewhile(lambda _: stop.signal is None, texts.of(side))
            return (text.text for text in running)

        learning = (kind, vectors, counts["train"], settings.epochs)
        classifier = ClassifierProbe(model, sentences, open_parser, *learning, **common)
        found.failure = probe_all(lambda _: classifier.run(), iter(()), stop)
        if found.failure is None:
            found.classifier = classifier
        return found
