"""`vg build-index`: an image bank that `vg vokenize` and `vg retrieve` search."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vgtools.commands.options import (
    Argument,
    Limit,
    Restart,
    Runtime,
    Value,
    help_at_terminal,
    note,
    refuse_if,
)
from vgtools.commands.signature import flags
from vgtools.io.errors import DataError, amount
from vgtools.io.inputs import Inputs
from vgtools.io.output import Output
from vgtools.io.process import Progress
from vgtools.io.settings import count, file, value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vgtools.io.arrays import Array


@dataclass(frozen=True, kw_only=True)
class Lists:
    """The part of a bank that is searched, beyond some 10 million images."""

    factory: str = value(
        "Flat",
        "Flat is exact. IVF4096,SQ8 and IVF4096,Flat look into a part of 4096 lists of like"
        " images, of a byte or of a float per dimension. Any other faiss factory string is"
        " also taken.",
        metavar="NAME",
    )
    nprobe: int | None = count(
        None, "Lists that a search looks into; also the default of vg vokenize. [default: 32]"
    )


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The keys that images are found by."""

    matcher: str | None = value(
        None,
        "Run of vg train-matcher that embeds them; or, without training, the CLIP or its kin that "
        "made FEATS.",
        "--matcher",
        "-m",
        metavar="REF",
    )
    vectors: str | None = value(
        None,
        "Word vectors of vg prepare vectors, or builtin:glove-50d: by the mean of their"
        " captions' words, or of their nouns and definition.",
        metavar="X.npy",
    )
    keywords: int | None = count(None, "By the N words per caption of the highest TF-IDF.")
    context_weight: float | None = value(
        None,
        "With --matcher: weight of the sentence next to the word wherever the index is used.",
        "--context",
        metavar="W",
        min=0,
        max=1000,
        show_default="the run's",
    )
    emb: str | None = value(
        None, "With --matcher: also write the embeddings, (N, E) float32.", metavar="X.npy"
    )
    stop_words: str | None = file(
        None, "Words that do not count, one per line, instead of our list; nltk: NLTK's list."
    )

    def check(self, output: str, lists: Lists) -> None:
        """Refuse flags that do not go together.

        Raises:
            typer.BadParameter: more or fewer than one of --matcher, --vectors and --keywords, or a
                flag or an output of another kind.
        """
        one = [self.matcher, self.vectors, self.keywords].count(None) == 2
        refuse_if(not one, None, "exactly one of --matcher, --vectors and --keywords is required")
        suffix = ".faiss" if self.keywords is None else ".jsonl"
        refuse_if(not output.endswith(suffix), "-o", f"must end in {suffix}, got {output!r}")
        wrong = self.stop_words is not None and self.matcher is not None
        refuse_if(wrong, "--stop-words", "belongs to --vectors and --keywords")
        refuse_if(self.matcher is None and self.emb, "--emb", "belongs to --matcher")
        wrong = self.matcher is None and lists.factory != "Flat"
        refuse_if(wrong, "--factory", "belongs to --matcher")
        wrong = lists.nprobe is not None and not lists.factory.startswith("IVF")
        refuse_if(wrong, "--nprobe", "belongs to --factory IVF…")
        weighed = self.matcher is None and self.context_weight is not None
        refuse_if(weighed, "--context", "belongs to --matcher")


@flags
def build_index(
    context: typer.Context,
    source: Annotated[
        str,
        Argument(
            "FEATS",
            "Features of vg extract-image-feats: X.npy. With --vectors or --keywords, rows"
            ' with "image" and "text": X.jsonl.',
        ),
    ],
    keys: Keys,
    output: Annotated[
        str,
        Value("X.faiss", "Index to write, with X.ids and X.json; X.jsonl with --keywords."),
    ],
    runtime: Runtime,
    lists: Lists = Lists(),
    limit: Limit = None,
    restart: Restart = False,
) -> None:
    """Write the index of an image bank: its images, and their keys.

    --matcher embeds image features: pooled ones for a token-image matcher, feature maps for a
    retriever (vg train-matcher visual-awareness). Without training it takes the hub name or folder
    of the CLIP, SigLIP, AltCLIP or ChineseCLIP that made FEATS, whose rows it leaves as they are,
    or a run of vg pretrain clip with the features of its backbone. The index names its run, so that
    vg vokenize and vg retrieve need nothing else. Row i of the bank, a voken's number, is line i +
    1 of X.ids. By default the search is exact. Any other --factory prints how often it finds the
    image of the exact search, and the mean relevance lost, measured on words of the tokenizer's
    vocabulary; the manifest keeps both. Lists (IVF) are trained on a sample and filled block by
    block: memory does not grow with the bank. The paper takes 50,000 images: --limit 50000.

    --vectors and --keywords index captions for vg retrieve and vg pretrain grounding: rows of any
    vg prepare, one image per row of the bank in the order in which they first appear. Rows with
    "nouns" (of vg prepare imagenet) are found by their nouns and definition. An image without a
    known word is left out.

    Examples:

        vg build-index feats.npy --matcher runs/matcher -o vg.faiss

        vg build-index own.npy --matcher openai/clip-vit-base-patch32 -o vg.faiss

        vg build-index feats.npy --matcher runs/matcher -o vg.faiss --factory IVF4096,SQ8

        vg build-index grid.npy --matcher runs/retriever -o coco.faiss --emb images.npy

        vg build-index captions.jsonl --vectors builtin:glove-50d -o scene.faiss

        vg build-index captions.jsonl --keywords 8 -o keyword.jsonl
    """
    keys.check(output, lists)
    if keys.matcher is not None:
        from vgtools.retrieval import check_factory

        check_factory(lists.factory)
        _embed(source, keys, output, runtime, lists, limit, restart)
        return
    help_at_terminal(context, source)
    _find_by_words(source, keys, output, runtime, limit, restart)


def _embed(
    feats: str,
    keys: Keys,
    output: str,
    runtime: Runtime,
    lists: Lists,
    limit: int | None,
    restart: bool,
) -> None:
    """Write the index of image features, embedded by a matcher or a retriever."""
    from vgtools import retrieval
    from vgtools.models.references import check_same
    from vgtools.systems import matcher_system

    run = str(keys.matcher)
    inputs = Inputs([feats])
    system = matcher_system(run)
    context = _context(run, keys.context_weight)
    bank: retrieval.EmbeddedBank = system.open_bank(run, feats, runtime.device, runtime.offline)
    features = bank.features
    check_same("backbone", features.manifest.get("backbone"), bank.backbone, feats)
    config = {
        "command": "build-index",
        "features": features.manifest["files"],
        "matcher": bank.fingerprint,
        "factory": lists.factory,
        **({"nprobe": lists.nprobe} if lists.nprobe else {}),
        "limit": limit,
        **({"emb": True} if keys.emb else {}),
        **context,
    }
    files = _files(output) + ([keys.emb] if keys.emb else [])
    npy = {2: ("float32", bank.dim)} if keys.emb else None
    ids = features.ids[:limit]
    sizes = (len(ids), bank.dim)
    plan = retrieval.IndexPlan(bank.embed, *sizes, lists.factory, lists.nprobe, bank.queries)
    with Output(files, config, npy=npy, inputs=inputs, restart=restart) as out:
        if out.complete:
            note("build-index", f"{output} is up to date", runtime.quiet)
            return
        with Progress("build-index", "images", len(ids), runtime.quiet) as bar:

            def each(emb: Array) -> None:
                if keys.emb:
                    out.write(emb.data.cast("B"), file=2)
                bar.advance(len(emb))

            search = retrieval.write_index(plan, out.write, Path(output).parent, each)
        _write_ids(out, ids)
        out.finish(
            kind="index",
            count=len(ids),
            dim=bank.dim,
            metric=retrieval.METRIC,
            matcher={**_named(run, output), "fingerprint": bank.fingerprint, **context},
            backbone=features.manifest["backbone"],
            **search,
        )
    if search["recall_at_1"] is not None:
        words = f"{search['recall_at_1']:.1%} of the vocabulary's words"
        lost = f"its images are {search['relevance_lost']:.4f} less relevant in the mean"
        probed = f" with --nprobe {search['nprobe']}" if search["nprobe"] else ""
        note("build-index", f"{lists.factory}{probed} finds the right image for {words}; {lost}")
    size = f"{amount(len(ids), 'image')} of {bank.dim} dimensions"
    note("build-index", f"{size} in {output}", runtime.quiet)


def _find_by_words(
    source: str, by: Keys, output: str, runtime: Runtime, limit: int | None, restart: bool
) -> None:
    """Write the index of images that are found by vectors or keywords of their captions."""
    from vgtools.systems.grounding import keys
    from vgtools.text.word_vectors import open_word_vectors

    inputs = Inputs([source])
    words = keys.word_facts(by.stop_words)
    stop_words = keys.stop_words_of(words, output)
    vectors = None if by.vectors is None else open_word_vectors(by.vectors)
    if vectors is not None:
        named = vectors.ref
        if not named.startswith("builtin:"):
            named = _beside(named, output)
        words |= {"vectors": named, "fingerprint": vectors.fingerprint}
    config = {
        "command": "build-index",
        "vectors": vectors and vectors.fingerprint,
        "keywords": by.keywords,
        "stop_words": words["stop_words"],
        "limit": limit,
    }
    with Output(_files(output), config, inputs=inputs, restart=restart) as out:
        if out.complete:
            note("build-index", f"{output} is up to date", runtime.quiet)
            return
        rows = keys.caption_rows(source, limit)
        if vectors is None:
            index = keys.keyword_index(rows, stop_words, by.keywords or 1)
        else:
            index = keys.vector_index(rows, vectors, stop_words, source)
        if not index.ids:
            raise DataError("has no image with a known word", source)
        out.write(index.data)
        _write_ids(out, index.ids)
        left_out = len(index.left_out)
        out.finish(
            kind="index", count=len(index.ids), words=words, left_out=left_out, **index.facts
        )
    what = f"{amount(len(index.ids), 'image')} by {index.facts['keys']} in {output}"
    note("build-index", what, runtime.quiet)
    if left_out:
        what = f"{amount(left_out, 'image')} without a known word, first {index.left_out[0]!r:.80}"
        note("build-index", f"left out: {what}", runtime.quiet)


def _files(output: str) -> list[str]:
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
    return {"run": _beside(run, output)} if os.path.isdir(run) else {"encoder": run}


def _beside(path: str, output: str) -> str:
    """Return a path as seen from the folder of the output."""
    return os.path.relpath(os.path.realpath(path), os.path.dirname(os.path.realpath(output)))


def _write_ids(out: Output, ids: Sequence[str]) -> None:
    for start in range(0, len(ids), 1 << 16):
        out.write("".join(f"{name}\n" for name in ids[start : start + (1 << 16)]).encode(), file=1)
