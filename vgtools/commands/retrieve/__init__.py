"""`vg retrieve`: the images of whole texts."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import (
    NOT_TEXT,
    File,
    Limit,
    Runtime,
    Target,
    flags,
    help_at_terminal,
    note,
    refuse_if,
)
from vgtools.commands.retrieve.retrievers import Opened, Search, open_retriever
from vgtools.commands.retrieve.score import score
from vgtools.io.errors import amount

if TYPE_CHECKING:
    from vgtools.io.arrays import Array

_WINDOW = 4096  # lines per step


@flags
def retrieve(
    context: typer.Context,
    index: Annotated[
        list[str],
        File("The image bank: index of vg build-index; of a matcher repeatable, rows in order."),
    ],
    search: Search,
    target: Target,
    runtime: Runtime,
    text: Annotated[
        str,
        typer.Argument(metavar="TEXT", help='.txt, .jsonl with "text", .gz, .zst, or - for stdin.'),
    ] = "-",
    limit: Limit = None,
) -> None:
    """Find for every text the images of a bank that are most relevant to it.

    One row per line of TEXT, in order, empty lines included: {"text", "images": [row, ...],
    "scores": [relevance, ...]}, best first. Rows are lines of the index's .ids file, counted from
    0; "image", "id", "split" and "target" of JSON rows are kept. A text that asks for nothing has
    empty lists. With -o FILE the same command resumes after a kill and ends byte-identical.

    What is done follows from the index. Of a matcher: the images nearest to the mean of the text's
    tokens in the shared space (a matcher of sentences or a retriever: nearest to the sentence). Of
    captions: the images whose captions are nearest in their mean word vector. Of nouns: images of
    the nouns that represent the text, --clusters of them in turn. Of keywords: the images that
    share most words with it. What a text gets depends only on the text, up to rounding; the search
    is exact unless the index has lists (vg build-index --factory IVF…).

    --score prints one record in place of rows, of the rows whose "image" is in the bank: R@1, 5, 10
    in percent and the median rank, text to image among the images that the rows name, and image to
    text among all those texts, with 95 % intervals of a bootstrap over images. --folds N adds the
    mean over N parts of the images, in the order of the bank, each with its own texts alone.

    Examples:

        vg retrieve wiki.txt --index vg.faiss -k 8 -o wiki.images.jsonl

        vg retrieve captions.jsonl --index vg.faiss --not-own | head -3

        vg retrieve captions.jsonl --index vg.faiss --score

        echo 'a dog runs' | vg retrieve - --index vg.faiss -k 4 | vg show - --ids vg.ids
    """
    help_at_terminal(context, text)
    refuse_if(search.score and search.not_own, "--score", "ranks own images; drop --not-own")
    refuse_if(search.folds > 1 and not search.score, "--folds", "belongs to --score")
    refuse_if(search.emb and search.score, "--emb", "is written beside rows; drop --score")
    refuse_if(re.search(NOT_TEXT, target.output), "-o", "expected .jsonl, .jsonl.gz or .jsonl.zst")
    opened = open_retriever(index, search, runtime)
    if search.score:
        score(opened, text, limit, " ".join(index), search.folds, target, runtime.quiet)
    else:
        _write(opened, text, limit, index, search, target, runtime.quiet)


def _write(
    opened: Opened,
    text: str,
    limit: int | None,
    index: Sequence[str],
    search: Search,
    target: Target,
    quiet: bool,
) -> None:
    """Write the rows of all texts."""
    import numpy as np

    from vgtools import io
    from vgtools.io.output import Output
    from vgtools.io.windows import growing_windows
    from vgtools.retrieval import retrieve
    from vgtools.text.retrieved import input_rows, output_row

    row_of = {name: row for row, name in enumerate(opened.ids)} if search.not_own else {}

    def own(rows: Sequence[Mapping[str, Any]]) -> Array:
        return np.array([row_of.get(row.get("image", ""), -1) for row in rows], np.int32)

    config = {**opened.config, "k": search.k, "not_own": search.not_own, "limit": limit}
    files = [target.output]
    npy: dict[int, Any] = {}
    kept = deque[Any]()
    if search.emb is not None:
        config["emb"] = True
        files.append(search.emb)
        npy[1] = ("float32", opened.dim)
        opened.keep(kept)
    with (
        Output(files, config, npy=npy, inputs=[text], restart=target.restart) as out,
        io.Progress("retrieve", "texts", quiet=quiet) as bar,
    ):
        if out.complete:
            note("retrieve", f"{target.output} is up to date", quiet)
            return
        counts = Counter[str](out.state.get("counts", {}))
        lines = io.read_windows(text, 64, out.state, limit)
        windows = growing_windows(lines, _WINDOW)
        found = retrieve(windows, input_rows, opened.retriever, own, search.k)
        with contextlib.closing(found) as steps:  # its threads end here, whatever happens
            for window, (rows, (images, scores)) in steps:
                parts = zip(rows, images, np.round(scores, 4), strict=True)
                out.write(b"".join(io.dumps(output_row(*part)) for part in parts))
                if search.emb is not None:
                    out.write(kept.popleft().data, 1)
                counts.update(
                    rows=len(rows),
                    without=int((images[:, 0] < 0).sum()),
                    own_left_out=int((own(rows) >= 0).sum()),
                    replaced=window.replaced,
                )
                state = {"rows": counts["rows"], "digest": window.digest, "counts": counts}
                out.commit(state)
                bar.advance(len(rows))
        folder = os.path.dirname(os.path.realpath(target.output))
        places = [os.path.relpath(os.path.realpath(part), folder) for part in index]
        place = places[0] if len(places) == 1 else places
        out.finish(kind="retrieved", index=place, count=len(opened.ids), k=search.k, **counts)
    _summary(counts, search.not_own, quiet)


def _summary(counts: Mapping[str, int], not_own: bool, quiet: bool) -> None:
    """Print what was written."""
    message = amount(counts["rows"], "row")
    if counts["without"]:
        message += f", {counts['without']:,} without images"
    if counts["replaced"]:
        message += f"; {amount(counts['replaced'], 'line')} had bytes that are not UTF-8, replaced"
    note("retrieve", message, quiet)
    if not_own and not counts["own_left_out"]:
        note("retrieve", 'no row has an "image" of the bank; --not-own left nothing out')
