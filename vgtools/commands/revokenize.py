"""`vg revokenize`: voken rows on another tokenizer's tokens."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vgtools.commands.options import (
    Limit,
    Offline,
    Quiet,
    Target,
    Value,
    flags,
    help_at_terminal,
    note,
)
from vgtools.io.errors import amount

_WINDOW = 2048  # rows per step: what a kill can cost, and what is held in memory


@flags
def revokenize(
    context: typer.Context,
    tokenizer: Annotated[
        str,
        Value(
            "REF",
            "Tokenizer to carry the vokens to: hub name, directory, vg run or builtin:NAME.",
            "--tokenizer",
            "-t",
        ),
    ],
    target: Target,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Voken rows: .jsonl, .gz, .zst, or - for stdin.")
    ] = "-",
    limit: Limit = None,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Carry vokens to another tokenizer's tokens, by the largest overlap (IoU) of their spans.

    Reads the rows that `vg vokenize` writes and writes the same rows, in order, one per line, with
    spans, vokens and scores for the tokens of --tokenizer. A token that overlaps nothing, for
    example a lone space of a byte-level tokenizer, gets voken -1 and score 0. Needs no GPU.

    With -o X.npy the packed form is written: X.npy holds (tokens, 2) int32 [token id, voken] and
    X.rows.npy where each row ends.

    Examples:

        vg vokenize wiki.txt --index vg.faiss | vg revokenize -t roberta-base > roberta.jsonl

        vg revokenize vokens.jsonl.gz --tokenizer ./my-tokenizer -o packed.npy
    """
    help_at_terminal(context, file)
    from vgtools.io import Inputs, Progress, read_windows
    from vgtools.models.references import load_tokenizer
    from vgtools.systems.vokenization import revokenize as system
    from vgtools.text.tokens import tokenizer_fingerprint
    from vgtools.text.vokens import VokenWriter, no_collection, parse_rows

    loaded = load_tokenizer(tokenizer, offline=offline)
    fingerprint = tokenizer_fingerprint(loaded)
    inputs = Inputs([file])
    origin, facts = _origin(file, inputs.sha256(file))
    config = {"command": "revokenize", "tokenizer_sha256": fingerprint, "limit": limit, **origin}
    with (
        VokenWriter(target.output, config, inputs=inputs, restart=target.restart) as out,
        Progress("revokenize", "tokens", quiet=quiet) as bar,
        no_collection(),
    ):
        if out.complete:
            note("revokenize", f"{target.output} is up to date", quiet)
            return
        for window in read_windows(file, _WINDOW, out.state, limit):
            done = system.revokenize(parse_rows(window.lines, file, window.first), loaded)
            out.write(done.rows, done.tokens.ids, none=done.none, replaced=window.replaced)
            out.commit(window.digest)
            bar.advance(len(done.tokens.ids))
        out.finish(tokenizer={"ref": tokenizer, "sha256": fingerprint}, **facts)
    counts = out.counts
    message = f"{amount(counts['rows'], 'row')}, {amount(counts['tokens'], 'token')}"
    message += f", {counts.get('none', 0):,} of them overlap no token of the source"
    if counts.get("replaced"):
        message += f"; {amount(counts['replaced'], 'line')} had bytes that are not UTF-8, replaced"
    note("revokenize", message, quiet)


def _origin(file: str, sha256: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the vokens' manifest says of their bank, for the configuration and the facts."""
    from vgtools.io import manifest_beside
    from vgtools.text.vokens import bank_of

    body = manifest_beside(file, sha256)
    origin = {"index_sha256": body["config"]["index_sha256"]} if bank_of(body) else {}
    return origin, {"count": body["count"]} if isinstance(body.get("count"), int) else {}
