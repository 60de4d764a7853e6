"""`vg build-index`: an image bank that `vg vokenize` and `vg retrieve` search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vgtools.commands.build_index.embedded import embed, named_files, write_ids
from vgtools.commands.build_index.flags import Keys, Lists
from vgtools.commands.options import Argument, Limit, Restart, Runtime, Value, help_at_terminal
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, amount
from vgtools.io.files import refuse_inputs
from vgtools.io.inputs import Inputs
from vgtools.io.names import beside
from vgtools.io.output import Output
from vgtools.io.process import note


@flags
def build_index(
    context: typer.Context,
    keys: Keys,
    output: Annotated[
        str,
        Value("X.faiss", "Index to write, with X.ids and X.json; X.jsonl with --keywords."),
    ],
    runtime: Runtime,
    lists: Lists,
    source: Annotated[
        str | None,
        Argument(
            "FEATS",
            "Features of vg extract-image-feats: X.npy. With --vectors or --keywords, rows"
            ' with "image" and "text": X.jsonl.',
        ),
    ] = None,
    limit: Limit = None,
    restart: Restart = False,
) -> None:
    """Write the index of an image bank: its images, and their keys.

    --matcher embeds image features: pooled ones for a token-image matcher, feature maps for a
    retriever (vg train-matcher visual-awareness). Without training it takes the hub name or folder
    of the CLIP, MetaCLIP, SigLIP, AltCLIP or ChineseCLIP that made FEATS, whose rows it leaves as
    they are, or a run of vg pretrain clip with the features of its backbone. The index names its
    run, so that vg vokenize and vg retrieve need nothing else. Row i of the bank, a voken's number,
    is line i + 1 of X.ids. A --factory that is not exact prints how often it finds the image of the
    exact search, and the mean relevance lost, on words of the tokenizer's vocabulary; the manifest
    keeps both. Lists (IVF) are trained on a sample and filled block by block, in flat memory. The
    paper takes 50,000 images: --limit 50000.

    --vectors and --keywords index captions for vg retrieve and vg pretrain grounding: rows of any
    vg prepare, one image per row of the bank in the order in which they first appear. Rows with
    "nouns" (of vg prepare imagenet) are found by their nouns and definition. An image without a
    known word is left out.

    Examples:

        vg build-index feats.npy --matcher runs/matcher -o vg.faiss

        vg build-index own.npy --matcher openai/clip-vit-base-patch32 -o vg.faiss

        vg build-index feats.npy --matcher runs/matcher -o vg.faiss --factory auto

        vg build-index --emb clip.npy --ids clip.txt -m openai/clip-vit-base-patch32 -o vg.faiss

        vg build-index grid.npy --matcher runs/retriever -o coco.faiss --emb images.npy

        vg build-index captions.jsonl --vectors builtin:glove-50d -o scene.faiss

        vg build-index captions.jsonl --keywords 8 -o keyword.jsonl
    """
    keys.check(source, output, lists)
    if keys.matcher is not None:
        from vgtools.retrieval.build import check_factory
        from vgtools.retrieval.choice import AUTO

        if lists.factory != AUTO:
            check_factory(lists.factory)
        embed(source, keys, output, runtime, lists, limit, restart)
        return
    assert source is not None
    help_at_terminal(context, source)
    _find_by_words(source, keys, output, limit, restart)


def _find_by_words(source: str, by: Keys, output: str, limit: int | None, restart: bool) -> None:
    """Write the index of images that are found by vectors or keywords of their captions."""
    from vgtools.systems.grounding import keys
    from vgtools.text.word_vectors import open_word_vectors

    inputs = Inputs([source])
    refuse_inputs(map(Path, named_files(output)), filter(None, (by.vectors, by.stop_words)))
    words = keys.word_facts(by.stop_words, by.language)
    stop_words = keys.stop_words_of(words, output)
    vectors = None if by.vectors is None else open_word_vectors(by.vectors)
    if vectors is not None:
        named = vectors.ref
        if not named.startswith("builtin:"):
            named = beside(named, output)
        words |= {"vectors": named, "fingerprint": vectors.fingerprint}
    config = {
        "command": "build-index",
        "vectors": vectors and vectors.fingerprint,
        "vectors_at": words.get("vectors"),
        "keywords": by.keywords,
        "stop_words": words["stop_words"],
        "limit": limit,
    }
    with Output(named_files(output), config, inputs=inputs, restart=restart) as out:
        if out.complete:
            note("build-index", f"{output} is up to date")
            return
        rows = keys.caption_rows(source, limit)
        if vectors is None:
            index = keys.keyword_index(rows, stop_words, by.keywords or 1, source)
        else:
            index = keys.vector_index(rows, vectors, stop_words, source)
        if not index.ids:
            raise DataError("has no image with a known word", source)
        out.write(index.data)
        write_ids(out, index.ids)
        left_out = len(index.left_out)
        out.finish(
            kind="index", count=len(index.ids), words=words, left_out=left_out, **index.facts
        )
    what = f"{amount(len(index.ids), 'image')} by {index.facts['keys']} in {output}"
    note("build-index", what)
    if left_out:
        what = f"{amount(left_out, 'image')} without a known word, first {index.left_out[0]!r:.80}"
        note("build-index", f"left out: {what}")
