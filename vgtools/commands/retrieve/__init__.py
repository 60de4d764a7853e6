"""`vg retrieve`: the images of whole texts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vgtools.commands.options import (
    NOT_TEXT,
    SHARDS,
    TEXT,
    File,
    Limit,
    Runtime,
    TextTarget,
    help_at_terminal,
    refuse_if,
)
from vgtools.commands.retrieve.retrievers import ImageSearchFlags, open_retriever
from vgtools.commands.retrieve.rows import RetrieveTask
from vgtools.commands.retrieve.score import score
from vgtools.commands.signature import flags
from vgtools.io.errors import amount
from vgtools.io.files import refuse_inputs
from vgtools.io.process import note, warn
from vgtools.io.remote import all_of, local


@flags
def retrieve(
    context: typer.Context,
    index: Annotated[list[str], File()],
    search: ImageSearchFlags,
    target: Annotated[TextTarget, SHARDS],
    runtime: Runtime,
    text: Annotated[list[str] | None, TEXT] = None,
    limit: Limit = None,
) -> None:
    """Find for every text the images of a bank that are most relevant to it.

    One row per line of TEXT, in order, empty lines included: {"text", "images": [row, ...],
    "scores": [relevance, ...]}, best first. Rows are lines of the index's .ids file, counted from
    0; "image", "id", "split" and "target" of JSON rows are kept. A text that asks for nothing has
    empty lists. With -o FILE the same command resumes after a kill and ends byte-identical; several
    texts are one, in their order. -o X.parquet writes a table; with -o X.jsonl/ or X.parquet/ the
    output is a folder of shards: see --help shards.

    The kind of index decides the search. A matcher's: the images nearest to the mean of the text's
    tokens in the shared space (a matcher of sentences, a retriever or a CLIP: nearest to the
    sentence). Captions: the images whose captions are nearest in their mean word vector. Nouns:
    images of the nouns that represent the text, --clusters of them in turn. Keywords: the images
    that share most words with it. A text's images depend only on the text, up to rounding; the
    search is exact unless the index has lists (vg build-index --factory IVF…).

    --score prints one record instead of rows, of the rows whose "image" is in the bank: R@1, 5, 10
    in percent and the median rank, text to image among the images that the rows name, and image to
    text among all those texts, with 95 % intervals of a bootstrap over images. --folds N adds the
    mean over N parts of the images, in the order of the bank, each with its own texts alone.

    Examples:

        vg retrieve wiki.txt --index vg.faiss -k 8 -o wiki.images.jsonl

        vg retrieve captions.jsonl --index vg.faiss --not-own | head -3

        vg retrieve captions.jsonl --index vg.faiss --score

        echo 'a dog runs' | vg retrieve - --index vg.faiss -k 4 | vg show - --ids vg.ids

    Args:
        index: The image bank: index of vg build-index; repeatable with a matcher's, rows in order.
    """
    texts = all_of(text)
    help_at_terminal(context, *texts)
    refuse_if(search.score and search.not_own, "--score", "ranks own images; drop --not-own")
    refuse_if(search.folds > 1 and not search.score, "--folds", "belongs to --score")
    refuse_if(search.emb and search.score, "--emb", "is written next to rows; drop --score")
    name = target.output.rstrip("/")
    refuse_if(re.search(NOT_TEXT, name), "-o", "expected .jsonl, .jsonl.gz, .jsonl.zst or .parquet")
    refuse_if(search.score and len(texts) > 1, "--score", "takes one text")
    from vgtools.batch import run
    from vgtools.models.references import device_type

    others: Any = {"emb": search.emb is not None, "score": search.score}
    run.check_target(texts, target, target.workers, limit=limit is not None, **others)
    refuse_inputs([Path(os.path.realpath(name))], index)
    # The driver of a cluster needs only the settings; its GPU, if it has one, is a worker's.
    here = replace(runtime, device="cpu") if target.ray else runtime
    opened = open_retriever([*map(local, index)], search, here)
    if search.score:
        score(opened, texts[0], limit, " ".join(index), search.folds, target)
        return
    gpu = "device" in opened.config and device_type(runtime.device) == "cuda"
    counts = run.write(
        RetrieveTask(opened, search, index, limit),
        texts,
        target,
        name="retrieve",
        unit="texts",
        inputs=texts,
        default_size=run.GPU_SHARD if gpu else run.CPU_SHARD,
        gpu=gpu,
        workers=target.workers,
        make=partial(_rows, index, search, runtime, limit),
    )
    if counts is not None:
        _summary(counts, search.not_own)


def _rows(
    index: Sequence[str], search: ImageSearchFlags, runtime: Runtime, limit: int | None
) -> RetrieveTask:
    """Return the task that finds the rows, opened in this process."""
    return RetrieveTask(open_retriever([*map(local, index)], search, runtime), search, index, limit)


def _summary(counts: Mapping[str, int], not_own: bool) -> None:
    """Print the number of rows that were written."""
    message = amount(counts["rows"], "row")
    if counts["without"]:
        message += f", {counts['without']:,} without images"
    if counts["replaced"]:
        message += f"; {amount(counts['replaced'], 'line')} had bytes that are not UTF-8, replaced"
    note("retrieve", message)
    if not_own and not counts["own_left_out"]:
        warn("retrieve", 'no row has an "image" of the bank; --not-own left nothing out')
    elif unknown := counts.get("own_unknown"):
        why = f'{amount(unknown, "row")} with an "image" that the bank does not have by this name'
        warn("retrieve", f"{why}; --not-own did not apply to them")
