"""`vg prepare clusters`: clusters of a text encoder's states, a bank without pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vgtools.commands.options import (
    TEXT,
    Count,
    File,
    Limit,
    Restart,
    Runtime,
    Seed,
    Value,
    help_at_terminal,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, about, amount
from vgtools.io.process import note

if TYPE_CHECKING:
    from vgtools.systems.vokenization.clusters import TokenClusters


@flags
def clusters(
    context: typer.Context,
    output: Annotated[str, Value("X.faiss")],
    runtime: Runtime,
    text: Annotated[list[str] | None, TEXT] = None,
    like: Annotated[str | None, File()] = None,
    encoder: Annotated[
        str | None, Value("NAME", show_default="--like's, else builtin:minilm")
    ] = None,
    k: Annotated[int | None, Value("N", "-k", min=2, show_default="images of --like")] = None,
    layers: Annotated[int | None, Count(show_default="--like's, else 4")] = None,
    context_weight: Annotated[
        float | None, Value("W", "--context", min=0, max=1000, show_default="--like's, else 0")
    ] = None,
    tokens: Annotated[
        int | None, Count(show_default="256 per cluster, at most 4 GB of states")
    ] = None,
    seed: Seed = 0,
    limit: Limit = None,
    restart: Restart = False,
) -> None:
    """Cluster the states of a text encoder: labels of tokens without any picture.

    A control for vokens. Those carry knowledge of the matcher's text encoder and of photos;
    clusters of the encoder's states carry the first alone, so that a gain of vokens over clusters
    is the pictures'. vg vokenize --index X.faiss gives every token its nearest cluster, and vg
    revokenize, pretrain, stats and show read these labels as any vokens.

    Lines are drawn from the text at random. The channels of their tokens' states are standardised,
    states and centroids have unit length (spherical k-means, 25 rounds), and a score is their
    cosine. With --context the sentence's mean state counts as well, as for a matcher that sees it.
    X.ids names a cluster by its most frequent words.

    Examples:

        vg prepare clusters wiki.txt --like vg.faiss -o clusters.faiss

        vg prepare clusters wiki.txt -e builtin:minilm -k 1000 --context 1 -o clusters.faiss

        vg vokenize wiki.txt --index clusters.faiss -o labels.npy

    Args:
        output: Bank to write, with X.ids, X.states.npy, X.json.
        like: Image bank to be compared with: as many clusters as it has images, and the encoder,
            the layers and the weight of the sentence of its matcher.
        encoder: Hub name, directory, vg run or builtin:NAME.
        k: Clusters.
        layers: Last layers of the encoder, concatenated.
        context_weight: Weight of the sentence's mean state next to the token's own; 0: the token
            alone.
        tokens: Tokens to draw from the text.
    """
    from vgtools.io.remote import all_of

    texts = all_of(text)
    help_at_terminal(context, *texts)
    refuse_if(not output.endswith(".faiss"), "-o", f"must end in .faiss, got {output!r}")
    refuse_if(k is None and like is None, "-k", "is needed without --like: how many clusters")
    from vgtools.io.inputs import Inputs
    from vgtools.io.names import place_of
    from vgtools.io.output import Output
    from vgtools.io.streams import Piece, read_windows
    from vgtools.models.encoder import load_encoder
    from vgtools.systems.vokenization import clusters as system
    from vgtools.systems.vokenization.states import TABLE, config_of

    inputs = Inputs([*texts, *([like] if like else [])])
    facts = {} if like is None else _like(like)
    ref = encoder or facts.get("encoder", "builtin:minilm")
    loaded = load_encoder(ref, device=runtime.device, states=True)
    count = k or facts["count"]
    depth = layers or facts.get("layers", 4)
    weight = facts.get("weight", 0.0) if context_weight is None else context_weight
    width = config_of(loaded, depth, weight).dim
    drawn = tokens or system.tokens_of(count, width)
    plan = system.ClusterPlan(count, depth, weight, drawn, seed)
    config = {"command": "clusters", "encoder": loaded.identity, **vars(plan), "limit": limit}
    config["encoder_at"] = place_of(ref, output)
    files = [str(Path(output).with_suffix(end)) for end in (".faiss", ".ids", TABLE)]
    with Output(files, config, npy={2: ("float32", width)}, inputs=inputs, restart=restart) as out:
        if out.complete:
            note("prepare", f"{output} is up to date")
            return
        windows = read_windows([Piece(path) for path in texts], 4096, None, limit)
        lines = system.draw_lines(windows, loaded.tokenizer, plan.tokens, seed)
        with about(texts[0]):
            made = system.fit_clusters(loaded, lines, plan)
        _write(out, made, plan, ref, output)
    size = f"{amount(count, 'cluster')} of {amount(made.tokens, 'token')}, mean cosine"
    note("prepare", f"{size} {made.cosine:.3f}, in {output}")


def _like(index: str) -> dict[str, Any]:
    """Return the number of images of a bank, and how its matcher reads a text."""
    from vgtools.models.dual import is_dual
    from vgtools.models.sealed import read_run
    from vgtools.retrieval.index import matcher_path, open_index

    bank = open_index(index)
    run = matcher_path(bank)
    if "clusters" in bank.manifest or is_dual(run):
        why = f"was made with {run}, not a run of vg train-matcher; give -e, -k, --layers and"
        raise DataError(f"{why} --context instead of --like", index)
    form = read_run(run, "matcher")["matcher"]
    chosen = bank.manifest["matcher"].get("context_weight", form["context_weight"])
    weight = chosen if form["sentence"] and form["level"] == "token" else 0.0
    return {"count": bank.count, "encoder": run, "layers": form["layers"], "weight": weight}


def _write(out: Any, made: TokenClusters, plan: Any, ref: str, output: str) -> None:
    """Write the bank: index, names, table and manifest."""
    from vgtools.io.names import place_of
    from vgtools.retrieval.build import IndexPlan, write_index
    from vgtools.retrieval.index import METRIC

    emb = made.centroids
    rows = IndexPlan(lambda chosen: emb[chosen], *emb.shape)
    search = write_index(rows, out.write)
    out.write("".join(f"{name}\n" for name in made.names).encode(), file=1)
    out.write(made.table.data.cast("B"), file=2)
    out.finish(
        kind="index",
        count=len(emb),
        dim=emb.shape[1],
        metric=METRIC,
        matcher={**place_of(ref, output), "fingerprint": made.fingerprint},
        clusters={
            "layers": plan.layers,
            "context_weight": plan.context_weight,
            "tokens": made.tokens,
            "mean_cosine": made.cosine,
        },
        **search,
    )
