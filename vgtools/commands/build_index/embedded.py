"""The index of images that a matcher embeds, or whose embeddings are given."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vgtools.commands.build_index.flags import Keys, Lists
from vgtools.commands.build_index.messages import say
from vgtools.commands.options import Runtime, refuse_if
from vgtools.images.rights import count_licenses, read_rights, rights_file
from vgtools.io.errors import DataError, amount, file_errors
from vgtools.io.files import digest_of, dumps
from vgtools.io.inputs import Inputs
from vgtools.io.names import is_jsonl, is_table, is_url, place_of
from vgtools.io.output import Output
from vgtools.io.process import Progress, note
from vgtools.io.remote import fetched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from vgtools.images.rights import Rights
    from vgtools.io.arrays import Array
    from vgtools.retrieval.texts import EmbeddedBank


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
    from vgtools.retrieval.choice import AUTO
    from vgtools.retrieval.foreign import Embeddings
    from vgtools.retrieval.index import METRIC

    run = str(keys.matcher)
    bank, inputs, rights = _open_bank(feats, keys, runtime.device)
    context = _context(run, keys.context_weight)
    features = bank.features
    foreign = features if isinstance(features, Embeddings) else None
    whole = foreign is not None and foreign.is_whole
    changed = limit or lists.factory != "Flat" or keys.drop_duplicates is not None
    why = f"{keys.emb} holds no exact vectors to choose from"
    refuse_if(whole and changed, "--limit/--factory/--drop-duplicates", why)
    emb = None if foreign else keys.emb
    config = {
        "command": "build-index",
        "features": features.manifest["files"],
        "matcher": bank.fingerprint,
        "matcher_at": place_of(run, output),
        "factory": lists.factory,
        **({"goal": lists.goal} if lists.factory == AUTO else {}),
        **({"nprobe": lists.nprobe} if lists.nprobe else {}),
        "limit": limit,
        **({} if keys.drop_duplicates is None else {"drop_duplicates": keys.drop_duplicates}),
        **({"emb": True} if emb else {}),
        **({"rights": True} if rights else {}),
        **context,
    }
    files = [*named_files(output), *([emb] if emb else [])]
    if rights:
        files.append(str(rights_file(output)))
    if keys.drop_duplicates is not None:
        files.append(str(Path(output).with_suffix(".duplicates.jsonl")))
    npy = {2: ("float32", bank.dim)} if emb else None
    with Output(files, config, npy=npy, inputs=inputs, restart=restart) as out:
        if out.complete:
            note("build-index", f"{output} is up to date")
            return
        copy = foreign.copy if foreign is not None and whole else None
        ids, facts = _write(bank, features.ids[:limit], keys, lists, out, output, copy)
        if rights:
            place = files.index(str(rights_file(output)))
            for image in ids:
                out.write(dumps({"image": image, **rights.get(image, {})}), file=place)
            facts["licenses"] = count_licenses(rights, ids)
        out.finish(
            kind="index",
            count=len(ids),
            dim=bank.dim,
            metric=METRIC,
            matcher={**place_of(run, output), "fingerprint": bank.fingerprint, **context},
            backbone=features.manifest["backbone"],
            **({} if foreign is None else {"embeddings": foreign.facts}),
            **facts,
        )
    if foreign is not None:
        note("build-index", str(foreign))
    say(facts, files[-1])
    size = f"{amount(len(ids), 'image')} of {bank.dim} dimensions"
    note("build-index", f"{size} in {output}")


def _write(
    bank: EmbeddedBank,
    ids: list[str],
    keys: Keys,
    lists: Lists,
    out: Output,
    output: str,
    copy: Callable[..., dict[str, Any]] | None,
) -> tuple[list[str], dict[str, Any]]:
    """Write the index and the files next to it; return its ids and the facts.

    A `copy` writes the index as it is.
    """
    from vgtools.retrieval.build import IndexPlan, write_index
    from vgtools.retrieval.choice import AUTO, choose
    from vgtools.retrieval.duplicates import distinct

    sizes = (len(ids), bank.dim)
    plan = IndexPlan(bank.embed, *sizes, lists.factory, lists.nprobe, bank.queries)
    folder = Path(output).parent
    facts: dict[str, Any] = {}
    with ExitStack() as opened:
        bar = opened.enter_context(Progress("build-index", "images", len(ids)))
        if keys.drop_duplicates is not None:
            with file_errors(folder, reading=False):
                file = opened.enter_context(tempfile.TemporaryFile(dir=folder))
                found = distinct(plan, keys.drop_duplicates, file, lambda _: None)
            plan = found.plan
            for row, kept, cosine in found.twins:
                twin = {"image": ids[row], "kept": ids[kept], "cosine": cosine}
                out.write(dumps(twin), file=-1)
            facts["duplicates"] = {"cosine": keys.drop_duplicates, "left_out": len(found.twins)}
            ids = [ids[row] for row in found.rows.tolist()]
        if lists.factory == AUTO:
            plan, facts["auto"] = choose(plan, *lists.goal)

        def each(block: Array) -> None:
            if "emb" in out.config:
                out.write(block.data.cast("B"), file=2)
            bar.advance(len(block))

        if copy is None:
            facts |= write_index(plan, out.write, folder, each)
        else:
            facts |= copy(out.write, lists.nprobe)
    write_ids(out, ids)
    return ids, facts


def _open_bank(
    feats: str | None, keys: Keys, device: str
) -> tuple[EmbeddedBank, Inputs, dict[str, Rights]]:
    """Return the bank, the files that it is read from, and the rights of its images."""
    from vgtools.models.references import check_same
    from vgtools.retrieval.foreign import Embeddings, foreign_files, open_embeddings
    from vgtools.systems import matcher_system

    source: Any = feats
    listed = [keys.images] if keys.images else []
    if feats is None:
        files = foreign_files(str(keys.emb), keys.ids)
        inputs = Inputs([*files.embeddings, *files.ids, *listed])
        # The entries of inputs at URLs have no hash.
        hashed = [*files.embeddings, *filter(is_url, files.ids)]
        hashes = {Path(name).name: inputs.sha256(name) or _hash(name) for name in hashed}
        source = open_embeddings(files, {"backbone": None, "files": hashes})
        listed = listed or [name for name in files.ids if is_table(name) or is_jsonl(name)]
    else:
        inputs = Inputs([feats, *listed])
    rights = read_rights(listed)
    if keys.images and not rights:
        raise DataError('has no row with "license" or "url"', keys.images)
    system = matcher_system(str(keys.matcher))
    bank: EmbeddedBank = system.open_bank(keys.matcher, source, device)
    if isinstance(source, Embeddings) and source.matcher:
        run = {"run": keys.matcher, "fingerprint": bank.fingerprint}
        check_same("matcher", source.matcher, run, source.files[0][0])
    return bank, inputs, rights


def _hash(url: str) -> str:
    with fetched(url) as place:
        return digest_of(place)


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


def write_ids(out: Output, ids: Sequence[str]) -> None:
    """Write the ids next to an index, one per line."""
    for start in range(0, len(ids), 1 << 16):
        out.write("".join(f"{name}\n" for name in ids[start : start + (1 << 16)]).encode(), file=1)
