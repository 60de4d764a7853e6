"""`vg revokenize`: voken rows on another tokenizer's tokens."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from vgtools.commands.options import Limit, Offline, OutputFile, Quiet, Restart
from vgtools.errors import amount

_WINDOW = 2048  # rows a step: what a kill can cost, and what is held in memory


def revokenize(
    context: typer.Context,
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            "-t",
            metavar="REF",
            help=("Tokenizer to carry the vokens to: hub name, directory, vg run or builtin:NAME."),
        ),
    ],
    file: Annotated[str, typer.Argument(metavar="[FILE]", help="Voken rows: .jsonl, .gz, .zst, or - for stdin.")] = "-",
    output: OutputFile = "-",
    limit: Limit = None,
    offline: Offline = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Carry vokens to another tokenizer's tokens, by the largest overlap (IoU) of their spans.

    Reads the rows that `vg vokenize` writes and writes the same rows, in order, one a line, with spans, vokens and scores
    for the tokens of --tokenizer. A token that overlaps nothing, for example a lone space of a byte-level tokenizer, gets
    voken -1 and score 0. Needs no GPU.

    With -o X.npy the packed form is written: X.npy holds (tokens, 2) int32 [token id, voken] and X.rows.npy where each
    row ends.

    Examples:

        vg vokenize wiki.txt --index vg.faiss | vg revokenize --tokenizer roberta-base > vokens.roberta.jsonl

        vg revokenize vokens.jsonl.gz --tokenizer ./my-tokenizer -o packed.npy
    """
    if file == "-" and sys.stdin is not None and sys.stdin.isatty():
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)
    from vgtools.checkpoint import load_tokenizer, tokenizer_fingerprint
    from vgtools.io import Progress, read_windows
    from vgtools.systems.revokenization import revokenize_batch
    from vgtools.vokens import VokenWriter, no_collection, parse_rows

    target = load_tokenizer(tokenizer, offline=offline)
    made, facts = _origin(file)
    config = {"command": "revokenize", "tokenizer_sha256": tokenizer_fingerprint(target), "limit": limit, **made}
    with (
        VokenWriter(output, config, inputs=[file], restart=restart) as out,
        Progress("revokenize", "tokens", quiet=quiet) as bar,
        no_collection(),
    ):
        if out.complete:
            if not quiet:
                print(f"vg revokenize: {output} is up to date", file=sys.stderr)
            return
        for window in read_windows(file, _WINDOW, out.state, limit):
            done = revokenize_batch(parse_rows(window.lines, file, window.first), target)
            out.write(done.rows, done.tokens.ids, none=done.none, replaced=window.replaced)
            out.commit(window.digest)
            bar.advance(len(done.tokens.ids))
        out.finish(tokenizer={"ref": tokenizer, "sha256": config["tokenizer_sha256"]}, **facts)
    if not quiet:
        counts = out.counts
        bad = counts.get("replaced", 0)
        replaced = f"; {amount(bad, 'line')} had bytes that are not UTF-8, replaced" if bad else ""
        overlap = f"{counts.get('none', 0):,} of them overlap no token of the source"
        sizes = f"{amount(counts['rows'], 'row')}, {amount(counts['tokens'], 'token')}"
        print(f"vg revokenize: {sizes}, {overlap}{replaced}", file=sys.stderr)


def _origin(file: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the vokens' manifest says of their bank, for the configuration and for the facts: it is not to be lost."""
    from vgtools.io import manifest_beside
    from vgtools.vokens import bank_of

    body = manifest_beside(file)
    made = {"index_sha256": body["config"]["index_sha256"]} if bank_of(body) else {}
    return made, {"count": body["count"]} if isinstance(body.get("count"), int) else {}
