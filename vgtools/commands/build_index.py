"""`vg build-index`: an image bank that `vg vokenize` searches."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from vgtools.commands.options import Device, Limit, Offline, Quiet, Restart
from vgtools.errors import amount


def build_index(
    feats: Annotated[str, typer.Argument(metavar="FEATS", help="Features of vg extract-image-feats: X.npy.")],
    matcher: Annotated[str, typer.Option("--matcher", "-m", help="The run of vg train-matcher that embeds them.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Index to write: X.faiss, with X.ids and X.json.")],
    factory: Annotated[str, typer.Option("--factory", help="faiss factory string; Flat is exact.")] = "Flat",
    limit: Limit = None,
    device: Device = "auto",
    offline: Offline = False,
    restart: Restart = False,
    quiet: Quiet = False,
) -> None:
    """Embed image features with a matcher into the index of an image bank.

    The index names its matcher, so that vg vokenize needs nothing else. Row i of the bank, a voken's number, is line i + 1
    of X.ids. By default the search is exact; any other --factory prints its recall@1 against exact search, measured on
    words of the tokenizer's vocabulary. The paper takes 50,000 images: --limit 50000.

    Examples:

        vg build-index feats.npy --matcher runs/matcher -o vg.faiss

        vg build-index feats.npy --matcher runs/matcher -o vg.faiss --limit 50000 --factory HNSW32
    """
    if not output.endswith(".faiss"):
        raise typer.BadParameter(f"{output!r} must end in .faiss", param_hint="-o")
    from vgtools import io
    from vgtools.checkpoint import check_same
    from vgtools.output import Output
    from vgtools.retrieval import FLAT, METRIC, make_index, recall_at_1, serialize
    from vgtools.systems.vokenizer import embed_bank, open_matcher, vocabulary_queries

    features = io.open_features(feats)
    loaded = open_matcher(matcher, device=device, offline=offline)
    check_same("backbone", features.manifest.get("backbone"), loaded.info.get("backbone"), feats)
    config = {"command": "build-index", "features": features.manifest["files"], "matcher": loaded.fingerprint,
              "factory": factory, "limit": limit}  # fmt: skip
    ids_file = str(Path(output).with_suffix(".ids"))
    with Output([output, ids_file], config, inputs=[feats], restart=restart) as out:
        if out.complete:
            if not quiet:
                print(f"vg build-index: {output} is up to date", file=sys.stderr)
            return
        ids = features.ids[:limit]
        with io.Progress("build-index", "images", len(ids), quiet) as bar:
            emb = embed_bank(loaded, features.array[:limit], ids, bar.advance)
        bank = make_index(emb, factory)
        recall = None if factory == FLAT else recall_at_1(bank, emb, vocabulary_queries(loaded))
        whole = serialize(bank)
        for start in range(0, len(whole), 1 << 24):
            out.write(whole[start : start + (1 << 24)])
        out.write("".join(f"{name}\n" for name in ids).encode(), file=1)
        out.finish(
            kind="index", count=len(ids), dim=emb.shape[1], metric=METRIC, factory=factory, recall_at_1=recall,
            matcher={"run": os.path.relpath(os.path.realpath(matcher), os.path.dirname(os.path.realpath(output))),
                     "fingerprint": loaded.fingerprint},
            backbone=features.manifest["backbone"],
        )  # fmt: skip
    if recall is not None:
        print(f"vg build-index: {factory} finds the right image for {recall:.1%} of the vocabulary's words", file=sys.stderr)
    if not quiet:
        print(f"vg build-index: {amount(len(ids), 'image')} of {emb.shape[1]} dimensions in {output}", file=sys.stderr)
