"""`vg vokenize`: a picture for every token of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vgtools.commands.options import (
    SHARDS,
    TEXT,
    Count,
    Dtype,
    File,
    Limit,
    NProbe,
    Runtime,
    Seed,
    TextTarget,
    help_at_terminal,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.commands.topics import FIRST, Topic, page
from vgtools.io.errors import amount
from vgtools.io.process import note, warn
from vgtools.io.remote import all_of, local
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from vgtools.retrieval.index import Index
    from vgtools.systems.vokenization.vokenize import Vokenizer, VokenizeTask


@dataclass(frozen=True, kw_only=True)
class VokenSearchFlags:
    """How vokens are searched.

    Attributes:
        level: Unit that is searched with; refused if the matcher was trained for the other.
        k: Images per token; above 1, vokens and scores are lists of N.
        min_score: Score below which a token gets no voken, -1.
        context_weight: Weight of the sentence next to the word: 1, as in training, suits captions;
            0, the word alone, other texts.
        reading: A CLIP's token: own state, or word in 'a photo of a'.
        matcher: The matcher's run, if not at the index's path to it.
        batch_size: Tokens per encoder step; affects rounding only.
    """

    level: Literal["token", "sentence"] | None = value(None)
    k: int = value(1, "-k", metavar="N", min=1, max=1000)
    min_score: float | None = value(None, metavar="SCORE")
    context_weight: float | None = value(
        None,
        "--context",
        metavar="W",
        min=0,
        max=1000,
        show_default="the index's or the run's",
    )
    reading: Literal["state", "word"] | None = value(None, show_default="word")
    matcher: str | None = value(None, metavar="RUN")
    nprobe: NProbe = None
    batch_size: int | None = count(None)
    dtype: Dtype = "float32"


@dataclass(frozen=True, kw_only=True)
class Control:
    """How vokens are made instead.

    Attributes:
        control: Give tokens labels without the matcher.
        captions: With --control: captions of the bank's images; with frequent, a text whose tokens
            are counted; repeatable.
        feats: With --control centroid: features of the bank's images.
        permute_images: With --control centroid: give every photo the captions of another, by this
            seed.
        gamma: With --control term-frequency: temperature.
    """

    control: Literal["term-frequency", "centroid", "frequent", "random"] | None = value(None)
    captions: list[str] | None = file(None)
    feats: str | None = value(None, metavar="X.npy")
    permute_images: int | None = count(None, least=0)
    gamma: float = value(0.01, metavar="NUMBER", min=2e-3)
    seed: Annotated[Seed, FIRST] = 0


CONTROL = Topic("control", page("vokenize.control"))


@flags
def vokenize(
    context: typer.Context,
    index: Annotated[list[str], File()],
    search: VokenSearchFlags,
    control: Annotated[Control, CONTROL],
    target: Annotated[TextTarget, SHARDS],
    runtime: Runtime,
    text: Annotated[list[str] | None, TEXT] = None,
    window: Annotated[int, Count()] = 4096,
    limit: Limit = None,
) -> None:
    """Assign to every token of a text the most relevant image of a bank (its voken).

    TEXT is JSON lines if its name ends in .jsonl (.gz, .zst); a pipe is, compressed or not, if its
    first line is an object with the keys that the command needs. All commands share this rule.

    One row per line of the text, in order, empty lines included: {"text", "spans": [[start, end],
    ...], "vokens": [row, ...], "scores": [score, ...]}. Spans are code points of the line, rows are
    lines of the index's .ids file, -1 means no image. A score is the relevance, or, if the matcher
    was validated in training, the probability that a caption of the image holds the word; with a
    SigLIP, that it fits. Sentences longer than the encoder accepts are windowed with context on
    both sides. The search is exact unless the index has lists (vg build-index --factory IVF…); the
    manifest then states how often it is right. A sentence's vokens depend only on the sentence, up
    to rounding: some CPU libraries sum in another order when other sentences share the batch;
    Intel's MKL does not with MKL_CBWR=AUTO,STRICT.

    With -o FILE the same command resumes after a kill and ends byte-identical. -o X.parquet writes
    a table, -o X.npy the packed form, -o X.jsonl/ (X.parquet/, X.npy/) shards: see --help shards.
    Several texts are one, in their order; a quoted pattern ('wiki/*.txt', or at a URL) is all that
    it matches, sorted.

    Examples:

        vg vokenize wiki.txt --index vg.faiss > vokens.jsonl

        zcat wiki.txt.gz | vg vokenize - --index vg.faiss | head -3

        vg vokenize wiki.txt --index vg.faiss --device cuda --dtype bfloat16 -o vokens.npy

        vg vokenize wiki.txt --index a.faiss --index b.faiss -o vokens.npy

    Args:
        index: The image bank: .faiss file of vg build-index; repeatable, rows in this order.
        window: Lines per step; affects rounding only.
    """
    texts = all_of(text)
    help_at_terminal(context, *texts)
    several = target.output.rstrip("/").endswith(".npy") and search.k > 1
    refuse_if(several, "-k", "the packed form holds one voken per token; write .jsonl")
    from vgtools.batch import run
    from vgtools.models.references import device_type

    forms = (*run.ROWS, ".npy")
    run.check_target(texts, target, target.workers, forms=forms, limit=limit is not None)
    device = device_type(runtime.device)
    slow = search.dtype == "float16" and device == "cpu"
    refuse_if(slow, "--dtype", "float16 is emulated on a CPU; take float32 or bfloat16")
    gpu = device == "cuda" and control.control is None
    # The driver of a cluster needs only the settings; its GPU, if it has one, is a worker's.
    here = replace(runtime, device="cpu") if target.ray else runtime
    work = _work(index, search, control, here, window, limit)
    counts = run.write(
        work,
        texts,
        target,
        name="vokenize",
        unit="tokens",
        inputs=[*texts, *work.inputs],
        default_size=run.GPU_SHARD if gpu else run.CPU_SHARD,
        gpu=gpu,
        workers=target.workers,
        make=partial(_work, index, search, control, runtime, window, limit),
    )
    if counts is not None:
        _summary(work, counts)


def _work(
    index: Sequence[str],
    search: VokenSearchFlags,
    control: Control,
    runtime: Runtime,
    window: int,
    limit: int | None,
) -> VokenizeTask:
    """Return the task that gives texts their vokens, with the models loaded; its arguments
    pickle.
    """
    from vgtools.retrieval.index import open_indexes
    from vgtools.systems.vokenization import vokenize as system

    bank = open_indexes([*map(local, index)], search.nprobe)
    if control.control is None:
        worker = _matcher(bank, search, control, runtime)
        return system.SearchWork(worker, index, window, limit, search.dtype)
    return _drawn(bank, search, control, window, limit)


def _matcher(
    bank: Index, search: VokenSearchFlags, control: Control, runtime: Runtime
) -> Vokenizer:
    """Return the search by the matcher of an index."""
    from vgtools.systems.vokenization import vokenize as system

    other = control.captions or control.feats or control.permute_images is not None
    refuse_if(other, None, "--captions, --feats and --permute-images belong to --control")
    loaded = system.load_for(
        bank,
        search.matcher and local(search.matcher),
        device=runtime.device,
        dtype=search.dtype,
        level=search.level,
        reading=search.reading,
    )
    return system.Vokenizer(
        loaded,
        bank,
        k=search.k,
        min_score=search.min_score,
        pack=search.batch_size,
        context_weight=search.context_weight,
    )


def _drawn(
    bank: Index, search: VokenSearchFlags, control: Control, window: int, limit: int | None
) -> VokenizeTask:
    """Return the labels of a control; the matcher's tokenizer alone is used."""
    from vgtools.systems.vokenization.controls import Draw, DrawWork

    name = str(control.control)
    given = search.k > 1 or search.min_score is not None or search.context_weight is not None
    given = given or search.reading is not None
    refuse_if(given, "--control", "excludes -k, --min-score, --context and --reading")
    reads = name != "random"
    why = "needs --captions" if reads else "reads no --captions"
    refuse_if(bool(control.captions) != reads, "--control", f"{name} {why}")
    centroid = name == "centroid"
    why = "needs --feats" if centroid else "reads no --feats"
    refuse_if((control.feats is not None) != centroid, "--control", f"{name} {why}")
    alone = control.permute_images is not None and not centroid
    refuse_if(alone, "--permute-images", "belongs to --control centroid")
    draw = Draw(
        control=name,
        captions=control.captions or [],
        feats=control.feats,
        permute=control.permute_images,
        gamma=control.gamma,
        seed=control.seed,
    )
    return DrawWork(bank, search.matcher, draw, window, limit)


def _summary(work: VokenizeTask, counts: Mapping[str, int]) -> None:
    """Print the number of rows that were written."""
    worker = work.worker
    if work.agreed is not None:
        same = f"{work.agreed:.1%} of a sample's vokens equal the vokens of --dtype float32"
        warn("vokenize", same)
    if not work.searched:
        images = f"{worker.images:,} of {amount(worker.bank, 'label')}"
        captions = f", from {amount(worker.captions, 'caption')}" if worker.captions else ""
        note("vokenize", f"{images}{captions}")
        return
    if worker.encoder.halved:
        warn("vokenize", f"out of memory; --batch-size {worker.encoder.pack} would have fit")
    message = f"{amount(counts['rows'], 'row')}, {amount(counts['tokens'], 'token')}"
    if counts.get("replaced"):
        message += f"; {amount(counts['replaced'], 'line')} had bytes that are not UTF-8, replaced"
    note("vokenize", message)
