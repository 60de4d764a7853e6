"""`vg vokenize`: a picture for every token of a text."""

from __future__ import annotations

import contextlib
import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from vgtools.commands.options import Device, Dtype, Limit, Offline, OutputFile, Quiet, Restart, Seed, choice
from vgtools.errors import amount

if TYPE_CHECKING:
    from vgtools.retrieval import Index

_SAMPLE = 128  # sentences on which the agreement of a low-precision encoder is measured


def vokenize(
    context: typer.Context,
    index: Annotated[str, typer.Option("--index", help="The image bank: .faiss file of vg build-index.")],
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help='.txt, .jsonl with "text", .gz, .zst, or - for stdin.')] = "-",
    output: OutputFile = "-",
    level: Annotated[
        str | None, typer.Option("--level", help="token or sentence; refused where the matcher has another.")
    ] = None,
    k: Annotated[
        int, typer.Option("-k", min=1, max=1000, help="Images a token; above 1, vokens and scores are lists of k.")
    ] = 1,
    min_score: Annotated[
        float | None, typer.Option("--min-score", help="Relevance below which a token gets no voken, -1.")
    ] = None,
    matcher: Annotated[
        str | None, typer.Option("--matcher", help="The matcher's run, if it is not where the index says.")
    ] = None,
    control: Annotated[
        str | None,
        typer.Option("--control", help="term-frequency: vokens drawn by how often captions of an image hold the token."),
    ] = None,
    captions: Annotated[
        list[str] | None, typer.Option("--captions", help="For it: captions of the bank's images; repeatable.")
    ] = None,
    gamma: Annotated[float, typer.Option("--gamma", min=1e-3, help="For it: temperature.")] = 0.01,
    seed: Seed = 0,
    window: Annotated[int, typer.Option("--window", min=1, help="Lines per step; changes results by rounding only.")] = 4096,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Tokens per encoder step; changes results by rounding only."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
    limit: Limit = None,
    offline: Offline = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Assign to every token of a text the most relevant image of a bank (its voken).

    One row a line of the text, in order, empty lines included: {"text", "spans": [[start, end], ...], "vokens": [row, ...],
    "scores": [relevance, ...]}. Spans are code points of the line, rows are lines of the index's .ids file, -1 is none.
    Sentences longer than the encoder takes are windowed with context on both sides. The search is exact; a sentence's
    vokens depend only on the sentence, up to rounding: some CPU libraries sum in another order when other sentences
    share the batch. With MKL_CBWR=AUTO,STRICT in the environment, Intel's MKL does not.

    With -o FILE the same command goes on after a kill and ends byte-identical. -o X.npy writes the packed form.

    Examples:

        vg vokenize wiki.txt --index vg.faiss > vokens.jsonl

        zcat wiki.txt.gz | vg vokenize - --index vg.faiss | head -3

        vg vokenize wiki.txt --index vg.faiss --device cuda --dtype bfloat16 -o vokens.npy

        vg vokenize wiki.txt --index vg.faiss --control term-frequency --captions captions.jsonl -o control.jsonl
    """
    if text == "-" and sys.stdin is not None and sys.stdin.isatty():
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(2)
    if level is not None:
        choice(level, ("token", "sentence"), "--level")
    if min_score is not None and not math.isfinite(min_score):
        raise typer.BadParameter(f"{min_score} is no relevance; a number from -1 to 1 was wanted", param_hint="--min-score")
    if output.endswith(".npy") and k > 1:
        raise typer.BadParameter("the packed form holds one voken a token; write .jsonl", param_hint="-k")
    from vgtools import io
    from vgtools.checkpoint import pick_device, tokenizer_fingerprint
    from vgtools.retrieval import open_index
    from vgtools.systems import vokenizer as system
    from vgtools.vokens import VokenWriter

    bank = open_index(index)
    if control is not None:
        choice(control, ("term-frequency",), "--control")
        if k > 1 or min_score is not None or not captions:
            raise typer.BadParameter("term-frequency wants --captions, and neither -k nor --min-score", param_hint="--control")
        _term_frequency(bank, matcher, captions, gamma, seed, text, output, window, limit, offline, restart, quiet)
        return
    if captions:
        raise typer.BadParameter("belongs to --control term-frequency", param_hint="--captions")
    if dtype == "float16" and pick_device(device).type == "cpu":
        raise typer.BadParameter("float16 is emulated on a CPU; take float32 or bfloat16", param_hint="--dtype")
    loaded = system.load_for(bank, matcher, device=device, dtype=dtype, offline=offline, level=level)
    worker = system.Vokenizer(loaded, bank, k=k, min_score=min_score, pack=batch_size)
    config = {"command": "vokenize", "index_sha256": bank.manifest["files"], "matcher": loaded.fingerprint, "k": k,
              "min_score": min_score, "dtype": dtype, "device": worker.encoder.device.type, "limit": limit}  # fmt: skip
    with (
        VokenWriter(output, config, inputs=[text], restart=restart) as out,
        io.Progress("vokenize", "tokens", quiet=quiet) as bar,
    ):
        if out.complete:
            if not quiet:
                print(f"vg vokenize: {output} is up to date", file=sys.stderr)
            return
        lines = io.read_windows(text, min(64, window), out.state, limit)
        agreed: float | None = None
        found = system.vokenize(system.grow(lines, max(1, window // k)), worker, system.sentences_of(text))  # flat memory
        with contextlib.closing(found) as steps:  # its threads end here, whatever happens
            for step, done in steps:
                if dtype != "float32" and agreed is None:
                    agreed = system.agreement(worker, done.texts[:_SAMPLE])
                out.write(done.rows(), done.tokens.ids, replaced=step.replaced)
                out.commit(step.digest)
                bar.advance(len(done.tokens.ids))
        out.finish(
            index=index, matcher=bank.manifest["matcher"], count=len(bank.ids), level=loaded.matcher.config.level, k=k,
            pack=worker.encoder.pack, agreement_with_float32=agreed,
            tokenizer={"ref": loaded.ref, "sha256": tokenizer_fingerprint(loaded.encoder.tokenizer)},
        )  # fmt: skip
    if agreed is not None:
        print(f"vg vokenize: {agreed:.1%} of a sample's vokens equal those of --dtype float32", file=sys.stderr)
    if worker.encoder.halved:
        print(f"vg vokenize: memory ran out; --batch-size {worker.encoder.pack} would have done", file=sys.stderr)
    if not quiet:
        counts = out.counts
        bad = f"; {amount(counts['replaced'], 'line')} had bytes that are not UTF-8, replaced" if counts.get("replaced") else ""
        print(f"vg vokenize: {amount(counts['rows'], 'row')}, {amount(counts['tokens'], 'token')}{bad}", file=sys.stderr)


def _term_frequency(
    bank: Index,
    matcher: str | None,
    captions: list[str],
    gamma: float,
    seed: int,
    text: str,
    output: str,
    window: int,
    limit: int | None,
    offline: bool,
    restart: bool,
    quiet: bool,
) -> None:
    """Write vokens drawn by term frequency, the control of the paper's table 5; of the matcher only the tokenizer is used."""
    from vgtools import io
    from vgtools.checkpoint import load_tokenizer, tokenizer_fingerprint
    from vgtools.systems import vokenizer as system
    from vgtools.systems.term_frequency import TermFrequency
    from vgtools.vokens import VokenWriter

    ref = matcher or system.run_of(bank)
    tokenizer = load_tokenizer(ref, offline=offline)
    mark = tokenizer_fingerprint(tokenizer)
    digests = [io.sha256_file(path) for path in captions]
    config = {"command": "vokenize", "control": "term-frequency", "index_sha256": bank.manifest["files"], "tokenizer": mark,
              "captions": digests, "gamma": gamma, "seed": seed, "limit": limit}  # fmt: skip
    with (
        VokenWriter(output, config, inputs=[text, *captions], restart=restart) as out,
        io.Progress("vokenize", "tokens", quiet=quiet) as bar,
    ):
        if out.complete:
            return
        worker = TermFrequency(tokenizer, bank.ids, captions, gamma, seed)
        lines = io.read_windows(text, window, out.state, limit)
        for step, done in system.vokenize(lines, worker, system.sentences_of(text)):
            out.write(done.rows(), done.tokens.ids)
            out.commit(step.digest)
            bar.advance(len(done.tokens.ids))
        out.finish(count=len(bank.ids), k=1, tokenizer={"ref": ref, "sha256": mark}, captions=worker.captions)
    if not quiet:
        known = f"{worker.images:,} of {amount(len(bank.ids), 'image')}"
        print(f"vg vokenize: {amount(worker.captions, 'caption')} of {known}", file=sys.stderr)
