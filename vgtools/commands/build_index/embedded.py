"""The index of images that a matcher embeds, or whose embeddings are given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.commands.build_index.flags import Keys, Lists
from vgtools.commands.options import Runtime, note, refuse_if
from vgtools.io.errors import amount
from vgtools.io.inputs import Inputs
from vgtools.io.output import Output
from vgtools.io.process import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vgtools.io.arrays import Array
    from vgtools.retrieval import EmbeddedBank


def embed(
    feats: str | None,
    keys: Keys,
    output: str,
    runtime: Runtime,
    lists: Lists,
    limit: int | None,
    restart: bool,
) -> None:
    """Write the index of image features, embedded by a matcher or a retriever, or of embeddings."""
    from vgtools import retrieval
    from vgtools.models.references import check_same

    run = str(keys.matcher)
    bank, inputs = _open_bank(feats, keys, runtime)
    context = _context(run, keys.context_weight)
    features = bank.features
    foreign = features if isinstance(features, retrieval.Embeddings) else None
    if foreign is None:
        check_same("backbone", features.manifest.get("backbone"), bank.backbone, str(feats))
    whole = foreign is not None and foreign.is_whole
    wrong = whole and (limit or lists.factory != "Flat")
    refuse_if(wrong, "--limit/--factory", f"{keys.emb} holds no exact vectors to choose from")
    emb = None if foreign else keys.emb
    config = {
        "command": "build-index",
        "features": features.manifest["files"],
        "matcher": bank.fingerprint,
        "factory": lists.factory,
        **({"nprobe": lists.nprobe} if lists.nprobe else {}),
        "limit": limit,
        **({"emb": True} if emb else {}),
        **context,
    }
    files = named_files(output) + ([emb] if emb else [])
    npy = {2: ("float32", bank.dim)} if emb else None
    ids = features.ids[:limit]
    sizes = (len(ids), bank.dim)
    plan = retrieval.IndexPlan(bank.embed, *sizes, lists.factory, lists.nprobe, bank.queries)
    with Output(files, config, npy=npy, inputs=inputs, restart=restart) as out:
        if out.complete:
            note("build-index", f"{output} is up to date", runtime.quiet)
            return
        with Progress("build-index", "images", len(ids), runtime.quiet) as bar:

            def each(block: Array) -> None:
                if emb:
                    out.write(block.data.cast("B"), file=2)
                bar.advance(len(block))

            if foreign is not None and whole:
                search = foreign.copy(out.write, lists.nprobe)
            else:
                search = retrieval.write_index(plan, out.write, Path(output).parent, each)
        write_ids(out, ids)
        out.finish(
            kind="index",
            count=len(ids),
            dim=bank.dim,
            metric=retrieval.METRIC,
            matcher={**_named(run, output), "fingerprint": bank.fingerprint, **context},
            backbone=features.manifest["backbone"],
            **({} if foreign is None else {"embeddings": foreign.facts}),
            **search,
        )
    if foreign is not None:
        note("build-index", str(foreign), runtime.quiet)
    _say_recall(lists.factory, search)
    size = f"{amount(len(ids), 'image')} of {bank.dim} dimensions"
    note("build-index", f"{size} in {output}", runtime.quiet)


def _open_bank(feats: str | None, keys: Keys, runtime: Runtime) -> tuple[EmbeddedBank, Inputs]:
    """Return the bank, and the files that it is read from."""
    from vgtools import retrieval
    from vgtools.systems import matcher_system

    source: Any = feats
    if feats is None:
        files = retrieval.foreign_files(str(keys.emb), keys.ids)
        inputs = Inputs([*files.embeddings, *files.ids])
        hashes = {Path(name).name: inputs.sha256(name) for name in files.embeddings}
        source = retrieval.open_embeddings(files, {"backbone": None, "files": hashes})
    else:
        inputs = Inputs([feats])
    system = matcher_system(str(keys.matcher))
    bank: EmbeddedBank = system.open_bank(keys.matcher, source, runtime.device, runtime.offline)
    return bank, inputs


def _say_recall(factory: str, search: dict[str, Any]) -> None:
    if search["recall_at_1"] is None:
        return
    words = f"{search['recall_at_1']:.1%} of the vocabulary's words"
    lost = f"its images are {search['relevance_lost']:.4f} less relevant in the mean"
    probed = f" with --nprobe {search['nprobe']}" if search["nprobe"] else ""
    note("build-index", f"{factory}{probed} finds the right image for {words}; {lost}")


def named_files(output: str) -> list[str]:
    """Return the index and its ids."""
    return [output, str(Path(output).with_suffix(".ids"))]


def _context(run: str, weight: float | None) -> dict[str, float]:
    """Return the weight of the sentence for the manifest, where one is given."""
    from vgtools.models.dual import is_dual
    from vgtools.models.sealed import read_run

    if weight is None:
        return {}
    has_term = is_dual(run) or read_run(run, "matcher")["matcher"]["sentence"]
    refuse_if(not has_term, "--context", f"{run} has no sentence term")
    return {"context_weight": weight}


def _named(run: str, output: str) -> dict[str, str]:
    """Return where a matcher is: a hub's name, or its folder as seen from the output's."""
    return {"run": beside(run, output)} if os.path.isdir(run) else {"encoder": run}


def beside(path: str, output: str) -> str:
    """Return a path as seen from the folder of the output."""
    return os.path.relpath(os.path.realpath(path), os.path.dirname(os.path.realpath(output)))


def write_ids(out: Output, ids: Sequence[str]) -> None:
    """Write the ids next to an index, one per line."""
    for start in range(0, len(ids), 1 << 16):
        out.write("".join(f"{name}\n" for name in ids[start : start + (1 << 16)]).encode(), file=1)
