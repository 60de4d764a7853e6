"""`vg retrieve`: the images of whole texts."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import (
    Flag,
    Limit,
    Runtime,
    Target,
    flags,
    help_at_terminal,
    note,
    refuse_if,
)
from vgtools.io.errors import DataError, amount

if TYPE_CHECKING:
    from vgtools.io.arrays import Array
    from vgtools.retrieval import Ranking, Retriever

_WINDOW = 4096  # lines per step
_NOT_ROWS = r"\.(npy|npz|faiss|ids|json|safetensors)(\.(gz|zst))?$"


@dataclass(frozen=True, kw_only=True)
class Search:
    """How images are searched."""

    k: Annotated[int, Flag("-k", metavar="N", min=1, max=1000, help="Images per text.")] = 16
    not_own: Annotated[
        bool, Flag("--not-own", help='Never return the "image" that a row names as its own.')
    ] = False
    score: Annotated[
        bool, Flag("--score", help="Print how well rows find their own images, and the reverse.")
    ] = False
    folds: Annotated[
        int,
        Flag(metavar="N", min=1, help="With --score: also the mean over N parts of the images."),
    ] = 1
    emb: Annotated[
        str | None,
        Flag(metavar="X.npy", help="Index of a matcher: also write the texts' embeddings, (N, E)."),
    ] = None
    clusters: Annotated[
        int | None,
        Flag(
            metavar="N", min=1, show_default="8", help="Index of nouns: groups of a text's nouns."
        ),
    ] = None
    tagger: Annotated[
        str | None,
        Flag(
            metavar="NAME",
            show_default="builtin:spacy-sm",
            help="Index of nouns: spaCy pipeline that tags them.",
        ),
    ] = None
    matcher: Annotated[
        str | None,
        Flag(metavar="RUN", help="The matcher's run, if it is not where the index says."),
    ] = None


@dataclass(frozen=True)
class Opened:
    """A retriever that is ready, and what manifests say about it."""

    retriever: Retriever
    ids: list[str]
    config: dict[str, Any]  # what decides the rows
    dim: int = 0  # of the texts' embeddings, where they have one
    keep: Callable[[deque[Any]], None] = lambda kept: None  # leave the embeddings of windows there


@flags
def retrieve(
    context: typer.Context,
    index: Annotated[
        str, Flag("--index", metavar="FILE", help="The image bank: index of vg build-index.")
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
    is exact.

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
    refuse_if(re.search(_NOT_ROWS, target.output), "-o", "expected .jsonl, .jsonl.gz or .jsonl.zst")
    opened = _open(index, search, runtime)
    if search.score:
        _score(opened, text, limit, index, search.folds, target, runtime.quiet)
    else:
        _write(opened, text, limit, index, search, target, runtime.quiet)


def _write(
    opened: Opened,
    text: str,
    limit: int | None,
    index: str,
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
        place = os.path.relpath(os.path.realpath(index), folder)
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


def _score(
    opened: Opened,
    text: str,
    limit: int | None,
    index: str,
    folds: int,
    target: Target,
    quiet: bool,
) -> None:
    """Write one record of how well rows find their own images, and the reverse."""
    import numpy as np

    from vgtools import io
    from vgtools.analysis.recall import both_ways, mean_of_folds
    from vgtools.io.output import Output
    from vgtools.retrieval import rank
    from vgtools.text.retrieved import input_rows

    row_of = {name: row for row, name in enumerate(opened.ids)}
    config = {**opened.config, "score": True, "limit": limit}
    config |= {"folds": folds} if folds > 1 else {}
    with Output([target.output], config, inputs=[text], restart=target.restart) as out:
        if out.complete:
            note("retrieve", f"{target.output} is up to date", quiet)
            return
        windows = io.read_windows(text, _WINDOW, limit=limit)
        rows = [row for window in windows for row in input_rows(window)]
        used = [row for row in rows if row.get("image") in row_of]
        if not used:
            size = len(opened.ids)
            why = f'has no row with an "image" of the {size} in {index}; nothing to score'
            raise DataError(why, text)
        images, own = np.unique([row_of[row["image"]] for row in used], return_inverse=True)
        if folds > len(images):
            why = f"--folds {folds}: expected at most {len(images)}, one image in each"
            raise DataError(why, text, code=io.Exit.USAGE)
        texts = [row["text"] for row in used]
        record = {
            "index": index,
            "texts": len(used),
            "images": len(images),
            "left_out": len(rows) - len(used),
            **both_ways(_counted(rank(texts, images, opened.retriever), len(used), quiet), own),
        }
        if folds > 1:

            def ranked(texts_of: Array, fold: Array) -> Iterator[Ranking]:
                return rank([texts[i] for i in texts_of], images[fold], opened.retriever)

            record["folds"] = mean_of_folds(own, folds, ranked)
        out.write(io.dumps(record))
        out.finish(kind="retrieval-score")


def _counted(blocks: Iterable[Ranking], total: int, quiet: bool) -> Iterator[Ranking]:
    """Yield blocks of texts, and show how many of all are done."""
    from vgtools import io

    with io.Progress("retrieve", "texts", total, quiet) as bar:
        for block in blocks:
            yield block
            bar.advance(len(block.order))


# ------------------------------------------------------------------------------------- retrievers


def _open(index: str, search: Search, runtime: Runtime) -> Opened:
    """Return what finds images by an index; its manifest says how.

    Raises:
        DataError: an index of another version, or flags that do not fit it (usage).
    """
    from vgtools import io

    keys = io.manifest_beside(index).get("keys", "matcher")
    if keys not in RETRIEVERS:
        why = f'has keys "{keys}", expected one of {", ".join(RETRIEVERS)}; build it again'
        raise DataError(why, index)
    for flag, fits in (
        ("clusters", "nouns"),
        ("tagger", "nouns"),
        ("matcher", "matcher"),
        ("emb", "matcher"),
    ):
        why = f"belongs to an index of {fits}, {index} has keys of kind {keys}"
        refuse_if(getattr(search, flag) is not None and keys != fits, f"--{flag}", why)
    return RETRIEVERS[keys](index, search, runtime)


def _by_matcher(index: str, search: Search, runtime: Runtime) -> Opened:
    """Return the search by an index that a run of vg train-matcher embedded."""
    from vgtools.retrieval import NearestImages, matcher_path, open_index
    from vgtools.systems import matcher_system

    bank = open_index(index)
    run = matcher_path(bank, search.matcher)
    opened = matcher_system(run).open_search(bank, run, runtime.device, runtime.offline)
    retriever: NearestImages[Any] = opened
    config = {
        "command": "retrieve",
        "index_sha256": bank.manifest["files"],
        "matcher": retriever.fingerprint,
        "device": retriever.device.type,
    }
    return Opened(retriever, bank.ids, config, bank.manifest["dim"], retriever.keep)


def _by_words(index: str, search: Search, runtime: Runtime) -> Opened:
    """Return the search by scene, object or keyword: an index of captions, nouns or keywords."""
    from vgtools import io
    from vgtools.systems.grounding.association import open_associator
    from vgtools.systems.grounding.retrieve import AssociativeRetriever

    nouns = io.manifest_beside(index)["keys"] == "nouns"
    how: dict[str, Any] = {}
    if nouns:
        how = {"clusters": search.clusters or 8, "tagger": search.tagger or "builtin:spacy-sm"}
        refuse_if(
            how["clusters"] > search.k and search.clusters is not None,
            "--clusters",
            f"{search.clusters} clusters need as many images; raise -k ({search.k})",
        )
    associator = open_associator(index, **how)
    files = io.manifest_beside(index)["files"]
    config = {"command": "retrieve", "index_sha256": files, **how}
    return Opened(AssociativeRetriever(associator), associator.ids, config)


# By what the images of an index are found: the "keys" of its manifest.
RETRIEVERS: dict[str, Callable[[str, Search, Runtime], Opened]] = {
    "matcher": _by_matcher,
    "captions": _by_words,
    "nouns": _by_words,
    "keywords": _by_words,
}
