"""`vg revokenize`: voken rows on another tokenizer's tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import (
    SHARDS,
    Argument,
    Limit,
    Offline,
    Quiet,
    TextTarget,
    Value,
    help_at_terminal,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, amount
from vgtools.io.process import note
from vgtools.io.remote import all_of

if TYPE_CHECKING:
    from vgtools.systems.vokenization.revokenize import RevokenizeTask

_SHARD = 64 << 20  # bytes of rows, which are the vokens of 10 MB of text


@flags
def revokenize(
    context: typer.Context,
    tokenizer: Annotated[str, Value("REF")],
    target: Annotated[TextTarget, SHARDS],
    file: Annotated[list[str] | None, Argument("FILE")] = None,
    draw: Annotated[int | None, Value("SEED", min=0)] = None,
    limit: Limit = None,
    offline: Offline = False,
    quiet: Quiet = False,
) -> None:
    """Carry vokens to another tokenizer's tokens, by the largest overlap (IoU) of their spans.

    Reads the rows that `vg vokenize` writes and writes the same rows, in order, one per line, with
    spans, vokens and scores for the tokens of --tokenizer. A token that overlaps nothing, for
    example a lone space of a byte-level tokenizer, gets voken -1 and score 0. Needs no GPU; a long
    input takes all cores, or OMP_NUM_THREADS of them.

    With -o X.npy the packed form is written: X.npy holds (tokens, 2) int32 [token id, voken] and
    X.rows.npy where each row ends. With -o X.parquet the rows are a table. With -o X.jsonl/,
    X.parquet/ or X.npy/ the output is a folder of shards; see vg vokenize.

    Examples:

        vg vokenize wiki.txt --index vg.faiss | vg revokenize -t roberta-base > roberta.jsonl

        vg revokenize vokens.jsonl.gz --tokenizer ./my-tokenizer -o packed.npy

        vg vokenize wiki.txt --index vg.faiss -k 5 | vg revokenize -t run --draw 0 -o soft.npy

        vg revokenize vokens.jsonl/ --tokenizer roberta-base -o packed.npy/

    Args:
        tokenizer: Tokenizer to carry the vokens to: hub name, directory, vg run or builtin:NAME.
        file: Voken rows: .jsonl, .gz, .zst, .parquet, or - for stdin.
        draw: Keep one of the vokens of -k, drawn in proportion to their scores.
    """
    files = all_of(file)
    help_at_terminal(context, *files)
    from vgtools.batch import run
    from vgtools.io.inputs import Inputs
    from vgtools.io.written import manifest_beside
    from vgtools.text.vokens import no_collection, refuse_packed

    for path in files:
        refuse_packed(path)
    forms = (*run.ROWS, ".npy")
    run.check_target(files, target, target.workers, forms=forms, limit=limit is not None)
    shards = target.output.endswith("/")  # may be larger than one can hash
    inputs = Inputs([] if shards else files)
    hashes = [None if shards else inputs.sha256(path) for path in files]
    made = [manifest_beside(*pair) for pair in zip(files, hashes, strict=True)]
    # Who makes some of the shards shares the cores out.
    helpers = None if target.shard is None and target.ray is None else 1
    make = partial(_work, tokenizer, *_origin(files, made), limit, draw, helpers)
    with no_collection():
        counts = run.write(
            make(),
            files,
            target,
            name="revokenize",
            unit="tokens",
            inputs=inputs,
            default_size=_SHARD,
            workers=target.workers,
            make=make,
        )
    if counts is None:
        return
    message = f"{amount(counts['rows'], 'row')}, {amount(counts['tokens'], 'token')}"
    message += f", {counts.get('none', 0):,} of them overlap no token of the source"
    if counts.get("replaced"):
        message += f"; {amount(counts['replaced'], 'line')} had bytes that are not UTF-8, replaced"
    note("revokenize", message)


def _work(
    tokenizer: str,
    origin: dict[str, Any],
    facts: dict[str, Any],
    limit: int | None,
    draw: int | None,
    helpers: int | None,
) -> RevokenizeTask:
    """Return the task that carries vokens over, with its tokenizer loaded."""
    from vgtools.models.references import load_tokenizer
    from vgtools.systems.vokenization import revokenize as system

    loaded = load_tokenizer(tokenizer)
    return system.RevokenizeTask(loaded, tokenizer, origin, facts, limit, draw, helpers)


def _origin(
    files: Sequence[str], made: Sequence[Mapping[str, Any]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the entries about the bank in the vokens' manifests, for the configuration and the
    facts.
    """
    from vgtools.io.splits import inherited
    from vgtools.text.vokens import bank_of

    body = made[0]
    for path, other in zip(files, made, strict=True):
        own, first = (", ".join(bank_of(bank).values()) or "not known" for bank in (other, body))
        if own != first:
            why = f"has vokens of another image bank than {files[0]}: sha256 {own}, not {first}"
            raise DataError(why, path)
    origin = {"index_sha256": body["config"]["index_sha256"]} if bank_of(body) else {}
    facts = {"count": body["count"]} if isinstance(body.get("count"), int) else {}
    # Who writes the published form needs to know whether vokens are of sentences.
    levels = {path: other.get("level") for path, other in zip(files, made, strict=True)}
    if len({*levels.values()}) == 1 and isinstance(body.get("level"), str):
        facts["level"] = body["level"]
    elif len({*levels.values()} - {None}) > 1:
        path = next(path for path in files if levels[path] != levels[files[0]])
        why = f"has vokens of each {levels[path]}, {files[0]} of each {levels[files[0]]}"
        raise DataError(f"{why}; carry them over apart", path)
    if all(other.get("score") == "probability" for other in made):
        facts["score"] = "probability"
    return origin, facts | inherited(files)
