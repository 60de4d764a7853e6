"""`vg stats`: what corpora are made of, how far from another one, how visually grounded; how diverse vokens are."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Annotated, Any

import typer

from vgtools import io
from vgtools.commands.options import Limit, Offline, Quiet, choice
from vgtools.errors import amount

_Show = Callable[[Sequence[dict[str, Any]]], Any]


def stats(
    context: typer.Context,
    corpora: Annotated[
        list[str] | None,
        typer.Argument(metavar="CORPUS...", help='Text, one sentence a line, or .jsonl with "text"; .gz, .zst; - is stdin.'),
    ] = None,
    reference: Annotated[str | None, typer.Option("--reference", "-r", help="Corpus to measure the divergence from.")] = None,
    captions: Annotated[
        str | None, typer.Option("--captions", "-c", help="Captions that say which types are grounded.")
    ] = None,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            "-t",
            metavar="REF",
            help=(
                "What a token is. words: lower-case words and punctuation marks. Or a tokenizer (hub name, directory, vg run, "
                "builtin:NAME), whose word-pieces are what the paper counts."
            ),
        ),
    ] = "words",
    base: Annotated[
        str, typer.Option("--base", help="Of the logarithm in the divergence: 2 (bits, 0 to 1), e (nats) or 10.")
    ] = "2",
    grounded_above: Annotated[
        int,
        typer.Option("--grounded-above", min=0, help=("A type is grounded if it occurs in the captions more often than this.")),
    ] = 100,
    without_stop_words: Annotated[
        bool,
        typer.Option(
            "--without-stop-words",
            help=("Grounding ratio of the tokens that are neither stop words nor punctuation (XDBERT), not of all tokens."),
        ),
    ] = False,
    punctuation: Annotated[
        bool,
        typer.Option(
            "--punctuation", help="Punctuation marks can be grounded types, too; the paper's figures look as if they were."
        ),
    ] = False,
    stop_words: Annotated[
        str | None,
        typer.Option("--stop-words", metavar="FILE", help=("Stop words, one a line. [default: a list of English ones]")),
    ] = None,
    grounded_types: Annotated[
        bool, typer.Option("--grounded-types", help=("Print the grounded types with their counts instead of the table."))
    ] = False,
    vokens: Annotated[
        list[str] | None,
        typer.Option(
            "--vokens", help=("Voken rows or packed .npy: how many different images their tokens got. May be repeated.")
        ),
    ] = None,
    reported: Annotated[bool, typer.Option("--reported", help="Add the rows of the paper's Table 1, marked as such.")] = False,
    table: Annotated[bool, typer.Option("--table", help="Print the table of corpora as markdown, also into a pipe.")] = False,
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE.svg", help="Draw the table into this file.")] = None,
    memory: Annotated[
        int,
        typer.Option(
            "--memory", min=1, help=("MiB for the 2-gram counts of a corpus; beyond it they go to temporary files in TMPDIR.")
        ),
    ] = 1024,
    limit: Limit = None,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Count corpora: size, divergence from a reference, and the share of tokens that are visually grounded.

    Table 1 of the Vokenization paper for any text: tokens, sentences (lines with a token), vocabulary (types seen more than
    5 times), tokens a sentence; with --reference the Jensen-Shannon divergence of the 1-grams and 2-grams, in bits; with
    --captions the grounding ratio. One JSON record a corpus goes into a pipe, a table to a terminal.

    The paper names neither the base of its divergences nor whether punctuation counts. What we measure comes near its
    figures with word-pieces (--tokenizer of a BERT), --base 10 and --punctuation.

    Texts stream, in about 300 MiB. 2-grams take 16 bytes each within --memory, and room in TMPDIR beyond it; the counts are
    exact either way. Words take about 120 bytes for each different one; with --tokenizer that, too, is bounded.

    With --vokens: distinct and effective number of images (e to the entropy), and the images a token type got.

    Examples:

        vg stats captions.jsonl wiki.txt --reference wiki.txt --captions captions.jsonl --plot table1.svg

        vg stats --captions captions.jsonl --grounded-types | jq -r .type

        vg vokenize wiki.txt --index vg.faiss | vg stats --vokens -
    """
    names, voken_files = list(corpora or []), list(vokens or [])
    if not names and not voken_files and not grounded_types:
        if sys.stdin is not None and sys.stdin.isatty():
            print(context.get_help(), file=sys.stderr)
            raise typer.Exit(io.Exit.USAGE)
        names = ["-"]
    choice(base, ("2", "e", "10"), "--base")
    if grounded_types and captions is None:
        raise typer.BadParameter("--grounded-types needs --captions, which say what is grounded")
    if (without_stop_words or punctuation) and captions is None:
        raise typer.BadParameter("--without-stop-words and --punctuation are about the grounding ratio; it needs --captions")
    if [*names, *voken_files].count("-") > 1 or ("-" in voken_files and "-" in (reference, captions)):
        raise typer.BadParameter("- can be read only once")
    if plot is not None and not plot.endswith(".svg"):
        raise typer.BadParameter(f"draws an .svg, not {plot!r}", param_hint="--plot")
    if (plot is not None or table) and (grounded_types or not names):
        raise typer.BadParameter("--plot and --table are about corpora; name a CORPUS, without --grounded-types")
    if table and voken_files:
        raise typer.BadParameter("is the table of corpora; ask for --vokens by itself", param_hint="--table")
    from vgtools import ngrams
    from vgtools.analysis import corpora as s
    from vgtools.reports import tables
    from vgtools.systems import vokenization_reported
    from vgtools.text import load_stop_words

    sources = [str(n) for n in (*names, *voken_files, reference, captions, stop_words) if n not in (None, "-")]
    target = None if plot is None else io.final_path(plot, sources)
    terminal = sys.stdout is not None and sys.stdout.isatty()
    out = io.open_stream("-")
    if tokenizer == "words":
        types: ngrams.Vocabulary = ngrams.Words()
    else:
        from vgtools.checkpoint import load_tokenizer

        types = ngrams.Pieces(load_tokenizer(tokenizer, offline=offline), tokenizer)
    met, printed = io.TextStats(), list[tuple[_Show, list[dict[str, Any]]]]()
    with io.Progress("stats", "tokens", quiet=quiet) as bar:
        survey = s.CorpusStats(
            types,
            load_stop_words(stop_words),
            reference,
            captions,
            base=base,
            above=grounded_above,
            content_only=without_stop_words,
            punctuation=punctuation,
            memory=memory << 20,
            limit=limit,
            keep=names,
            stats=met,
            progress=bar,
        )
        rows = chain(map(survey.record, names), vokenization_reported.corpora() if reported and names else [])
        parts: list[tuple[_Show, Iterable[dict[str, Any]]]] = [
            (tables.types_table, survey.grounded_types(names)) if grounded_types else (tables.corpora_table, rows),
            (tables.diversity_table, (s.diversity(name, bar, memory << 20, limit) for name in voken_files)),
        ]
        for show, records in parts:
            printed.append((show, []))
            for record in records:
                printed[-1][1].append(record)
                if not terminal and not table:  # in a pipe each when it is ready
                    out.write(io.dumps(record))
                    out.flush()
    if table:
        out.write(tables.markdown(tables.corpora_table(printed[0][1])).encode())
    for show, shown in printed if terminal and not table else ():
        if shown:
            tables.print_table(show(shown))
    if target is not None:
        from vgtools.reports.figures import corpora_figure

        io.atomic_write(target, corpora_figure(printed[0][1]).svg())
    if met.replaced and not quiet:
        print(f"vg stats: {amount(met.replaced, 'line')} had bytes that are not UTF-8, replaced", file=sys.stderr)
