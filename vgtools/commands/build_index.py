"""`vg build-index`: an image bank that `vg vokenize` searches."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from vgtools.commands.options import Flag, Limit, Restart, Runtime, flags, note, refuse_if
from vgtools.io.errors import amount


@flags
def build_index(
    feats: Annotated[
        str, typer.Argument(metavar="FEATS", help="Features of vg extract-image-feats: X.npy.")
    ],
    matcher: Annotated[
        str,
        Flag("--matcher", "-m", metavar="RUN", help="Run of vg train-matcher that embeds them."),
    ],
    output: Annotated[
        str,
        Flag("--output", "-o", metavar="X.faiss", help="Index to write, with X.ids and X.json."),
    ],
    runtime: Runtime,
    factory: Annotated[
        str, Flag("--factory", metavar="NAME", help="faiss factory string; Flat is exact.")
    ] = "Flat",
    limit: Limit = None,
    restart: Restart = False,
) -> None:
    """Embed image features with a matcher into the index of an image bank.

    The index names its matcher, so that vg vokenize needs nothing else. Row i of the bank, a
    voken's number, is line i + 1 of X.ids. By default the search is exact; any other --factory
    prints its recall@1 against exact search, measured on words of the tokenizer's vocabulary. The
    paper takes 50,000 images: --limit 50000.

    Examples:

        vg build-index feats.npy --matcher runs/matcher -o vg.faiss

        vg build-index feats.npy --matcher runs/matcher -o vg.faiss --limit 50000 --factory HNSW32
    """
    refuse_if(not output.endswith(".faiss"), "-o", f"must end in .faiss, got {output!r}")
    from vgtools import io, retrieval
    from vgtools.io.output import Output
    from vgtools.models.references import check_same
    from vgtools.systems.vokenization.vokenize import embed_bank, open_matcher, vocabulary_queries

    inputs = io.Inputs([feats])
    features = io.open_features(feats)
    loaded = open_matcher(matcher, device=runtime.device, offline=runtime.offline)
    check_same("backbone", features.manifest.get("backbone"), loaded.info.get("backbone"), feats)
    config = {
        "command": "build-index",
        "features": features.manifest["files"],
        "matcher": loaded.fingerprint,
        "factory": factory,
        "limit": limit,
    }
    files = [output, str(Path(output).with_suffix(".ids"))]
    with Output(files, config, inputs=inputs, restart=restart) as out:
        if out.complete:
            note("build-index", f"{output} is up to date", runtime.quiet)
            return
        ids = features.ids[:limit]
        with io.Progress("build-index", "images", len(ids), runtime.quiet) as bar:
            emb = embed_bank(loaded, features.array[:limit], ids, bar.advance, feats)
        bank = retrieval.make_index(emb, factory)
        recall = None
        if factory != retrieval.FLAT:
            recall = retrieval.recall_at_1(bank, emb, vocabulary_queries(loaded))
        data = retrieval.serialize(bank)
        for start in range(0, len(data), 1 << 24):
            out.write(data[start : start + (1 << 24)])
        out.write("".join(f"{name}\n" for name in ids).encode(), file=1)
        folder = os.path.dirname(os.path.realpath(output))
        run = os.path.relpath(os.path.realpath(matcher), folder)
        out.finish(
            kind="index",
            count=len(ids),
            dim=emb.shape[1],
            metric=retrieval.METRIC,
            factory=factory,
            recall_at_1=recall,
            matcher={"run": run, "fingerprint": loaded.fingerprint},
            backbone=features.manifest["backbone"],
        )
    if recall is not None:
        words = f"{recall:.1%} of the vocabulary's words"
        note("build-index", f"{factory} finds the right image for {words}")
    size = f"{amount(len(ids), 'image')} of {emb.shape[1]} dimensions"
    note("build-index", f"{size} in {output}", runtime.quiet)
