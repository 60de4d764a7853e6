"""`vg stats`: the words of corpora, how visually grounded they are; how diverse vokens are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from vgtools.commands.options import (
    Argument,
    Count,
    File,
    Flag,
    Language,
    Limit,
    Offline,
    Quiet,
    Value,
    help_at_terminal,
    is_given,
    open_vocabulary,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import TextStats, amount
from vgtools.io.files import dumps, page_path, refuse_inputs
from vgtools.io.names import is_stream
from vgtools.io.own import open_stream, write_page
from vgtools.io.process import Progress, note
from vgtools.io.settings import count, file, value
from vgtools.io.streams import read_so_far

if TYPE_CHECKING:
    from vgtools.analysis.corpora import CorpusStats
    from vgtools.reports.tables import Table


@dataclass(frozen=True, kw_only=True)
class LabelVectorFlags:
    """Words as the labels of their tokens.

    Attributes:
        vectors: With one --vokens: also write words as vectors of their tokens' vokens, for vg
            measure.
        least: With --vectors: leave out words with fewer tokens.
    """

    vectors: str | None = value(None, metavar="X.npy")
    least: int = count(1)


_Show = Callable[[Sequence[dict[str, Any]]], "Table"]


@dataclass(frozen=True, kw_only=True)
class GroundedTypeFlags:
    """Which types are visually grounded, and of which tokens the ratio is.

    Attributes:
        captions: Captions that define the grounded types.
        grounded_above: A type is grounded if captions contain it more than N times.
        without_stop_words: Grounding ratio of the tokens that are neither stop words nor
            punctuation (XDBERT), not of all tokens.
        punctuation: Punctuation marks can be grounded types, as the paper's figures suggest.
        stop_words: Stop words, one per line; nltk: NLTK's list.
        grounded_types: Print the grounded types with their counts instead.
    """

    captions: str | None = file(None, "--captions", "-c")
    grounded_above: int = count(100, least=0)
    without_stop_words: bool = value(False)
    punctuation: bool = value(False)
    stop_words: str | None = file(None, show_default="the language's")
    language: Language = "en"
    grounded_types: bool = value(False)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How the corpora are shown.

    Attributes:
        reported: Add the rows of the paper's Table 1, marked as such.
        table: Print the table of corpora as markdown, also into a pipe.
        plot: Draw the table of corpora.
    """

    reported: bool = value(False)
    table: bool = value(False)
    plot: str | None = value(None, metavar="FILE.svg")


@flags
def stats(
    context: typer.Context,
    grounding: GroundedTypeFlags,
    layout: Layout,
    label_vectors: LabelVectorFlags,
    corpora: Annotated[list[str] | None, Argument("CORPUS")] = None,
    reference: Annotated[str | None, File("--reference", "-r")] = None,
    tokenizer: Annotated[str, Value("REF")] = "words",
    base: Annotated[Literal["2", "e", "10"], Flag()] = "2",
    vokens: Annotated[list[str] | None, File()] = None,
    memory: Annotated[int, Count()] = 1024,
    limit: Limit = None,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Count corpora: size, divergence from a reference, and the share of visually grounded tokens.

    Table 1 of the Vokenization paper for any text: tokens, sentences (lines with a token),
    vocabulary (types seen more than 5 times), tokens per sentence; with --reference the
    Jensen-Shannon divergence of the 1-grams and 2-grams, in bits; with --captions the grounding
    ratio. One JSON record per corpus goes into a pipe, a table to a terminal.

    The paper names neither the base of its divergences nor whether punctuation counts. Our
    measurements come near its figures with word-pieces (--tokenizer of a BERT), --base 10 and
    --punctuation.

    Texts stream, in about 300 MiB. 2-grams take 16 bytes each within --memory, and room in TMPDIR
    beyond it; the counts are exact either way. Words take about 120 bytes for each different one;
    with --tokenizer that is also bounded.

    With --vokens: distinct and effective number of images (e to the entropy), and the images a
    token type got. --vectors X.npy measures in seconds how much vokens alone show of words: row i
    is word i of X.ids by its positive pointwise mutual information with each voken, max(0, log(n(w,
    v) n / (n(w) n(v)))). vg measure and vg compare words read it as word vectors.

    Examples:

        vg stats captions.jsonl wiki.txt --reference wiki.txt --captions captions.jsonl

        vg stats --captions captions.jsonl --grounded-types | jq -r .type

        vg vokenize wiki.txt --index vg.faiss | vg stats --vokens -

        vg stats --vokens v.jsonl --vectors words.npy && vg measure words.npy --on simlex.txt

    Args:
        corpora: Text, one sentence per line, or .jsonl with "text"; TABLE#COLUMN; .gz, .zst, -.
        reference: Corpus to measure the divergence from.
        tokenizer: Definition of a token. words: lower-case words and punctuation marks. Or a
            tokenizer (hub name, directory, vg run, builtin:NAME): the paper counts word-pieces.
        base: Base of the logarithm in the divergence: bits (0 to 1), nats or bans.
        vokens: Voken rows or packed .npy: how many images their tokens got; repeatable.
        memory: MiB for the 2-gram counts of a corpus; beyond it they go to temporary files in
            TMPDIR.
    """
    names = list(corpora or [])
    voken_files = list(vokens or [])
    if not names and not voken_files and not grounding.grounded_types:
        names = ["-"]
        help_at_terminal(context, *names)
    _check(names, voken_files, reference, grounding, layout)
    _check_vectors(context, voken_files, label_vectors)
    from vgtools.analysis import corpora as s
    from vgtools.io.output import check_place
    from vgtools.reports import tables
    from vgtools.text.tokens import load_stop_words

    read = (*names, *voken_files, reference, grounding.captions, grounding.stop_words)
    sources = [str(name) for name in read if name not in (None, "-")]
    target = None if layout.plot is None else page_path(layout.plot, sources)
    if label_vectors.vectors is not None:  # refused before it is counted for hours
        check_place(label_vectors.vectors, sources)
        refuse_inputs([Path(label_vectors.vectors).with_suffix(".ids")], sources)
    types = open_vocabulary(tokenizer)
    met = TextStats()

    def growth() -> float | None:
        found = read_so_far([*names, *voken_files])
        return 1 / found[0] if found and found[0] else None

    with Progress("stats", "tokens", growth=growth) as bar:
        counts = s.CorpusStats(
            types,
            load_stop_words(grounding.stop_words, grounding.language),
            reference,
            grounding.captions,
            base=base,
            above=grounding.grounded_above,
            content_only=grounding.without_stop_words,
            punctuation=grounding.punctuation,
            memory=memory << 20,
            limit=limit,
            keep=names,
            stats=met,
            progress=bar,
        )
        diversity = (s.diversity(name, bar, memory << 20, limit) for name in voken_files)
        rows = _rows(counts, names, grounding.grounded_types, layout.reported)
        form = tables.types_table if grounding.grounded_types else tables.corpora_table
        printed = _print([(form, rows), (tables.diversity_table, diversity)], layout.table)
        if label_vectors.vectors is not None:
            _write_vectors(voken_files[0], label_vectors, memory << 20, limit, bar)
    if layout.table:
        open_stream("-").write(tables.markdown(tables.corpora_table(printed)).encode())
    if target is not None:
        from vgtools.reports.figures import corpora_figure

        write_page(target, corpora_figure(printed).svg())
    if met.replaced:
        lines = amount(met.replaced, "line")
        note("stats", f"{lines} had bytes that are not UTF-8, replaced")


def _check(
    names: Sequence[str],
    vokens: Sequence[str],
    reference: str | None,
    grounding: GroundedTypeFlags,
    layout: Layout,
) -> None:
    """Refuse flags that contradict one another."""
    types = grounding.grounded_types
    plot = layout.plot
    bare = grounding.captions is None
    refuse_if(bare and types, None, "--grounded-types needs --captions, which define them")
    why = "--without-stop-words and --punctuation are about the grounding ratio, which needs "
    unused = bare and (grounding.without_stop_words or grounding.punctuation)
    refuse_if(unused, None, f"{why}--captions")
    piped = "-" in vokens and "-" in (reference, grounding.captions)
    twice = [*names, *vokens].count("-") > 1 or piped
    refuse_if(twice, None, "- can be read only once")
    other = plot is not None and not plot.endswith(".svg")
    refuse_if(other, "--plot", f"must end in .svg, got {plot!r}")
    unused = (plot is not None or layout.table) and (types or not names)
    why = "--plot and --table are about corpora; name a CORPUS, without --grounded-types"
    refuse_if(unused, None, why)
    why = "is the table of corpora; ask for --vokens by itself"
    refuse_if(layout.table and vokens, "--table", why)


def _check_vectors(context: typer.Context, vokens: Sequence[str], by: LabelVectorFlags) -> None:
    """Refuse flags of word vectors that do not go together."""
    if by.vectors is None:
        refuse_if(is_given(context, "least"), "--least", "belongs to --vectors")
        return
    refuse_if(len(vokens) != 1, "--vectors", "needs one --vokens")
    refuse_if(is_stream(vokens[0]), "--vokens", "is read twice with --vectors; name a file")
    refuse_if(not by.vectors.endswith(".npy"), "--vectors", f"must end in .npy, got {by.vectors!r}")


def _write_vectors(
    vokens: str, by: LabelVectorFlags, memory: int, limit: int | None, bar: Progress
) -> None:
    """Write words as vectors of their vokens."""
    from vgtools.analysis.label_vectors import write_label_vectors

    output = str(by.vectors)
    words, labels = write_label_vectors(vokens, output, by.least, bar, memory, limit)
    note("stats", f"{amount(words, 'word')} by {amount(labels, 'voken')} in {output}")


def _rows(
    counts: CorpusStats, names: Sequence[str], grounded_types: bool, reported: bool
) -> Iterable[dict[str, Any]]:
    """Return the grounded types, or a record per corpus and per corpus of the paper."""
    from vgtools.reports import tables

    if grounded_types:
        return counts.grounded_types(names)
    printed = tables.reported("vokenization:1", "corpora") if reported and names else []
    return chain(map(counts.record, names), printed)


def _print(
    parts: Sequence[tuple[_Show, Iterable[dict[str, Any]]]], table: bool
) -> list[dict[str, Any]]:
    """Print records into a pipe, each when it is ready, or tables to a terminal.

    Args:
        parts: how records are shown on a terminal, and the records.
        table: neither: the first part is printed as markdown later.

    Returns:
        The records of the first part.
    """
    from vgtools.reports.tables import print_table

    terminal = sys.stdout is not None and sys.stdout.isatty()
    out = open_stream("-")
    printed: list[tuple[_Show, list[dict[str, Any]]]] = []
    for show, records in parts:
        shown: list[dict[str, Any]] = []
        for record in records:
            shown.append(record)
            if not terminal and not table:
                out.write(dumps(record))
                out.flush()
        printed.append((show, shown))
    if terminal and not table:
        for show, shown in printed:
            if shown:
                print_table(show(shown))
    return printed[0][1]
