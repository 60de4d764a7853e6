"""The retrievers that find images, by the kind of keys in an index."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vgtools.commands.options import NProbe, Runtime, refuse_if
from vgtools.io.errors import DataError
from vgtools.io.settings import count, value

if TYPE_CHECKING:
    from vgtools.retrieval.texts import TextRetriever


@dataclass(frozen=True, kw_only=True)
class ImageSearchFlags:
    """How images are searched.

    Attributes:
        k: Images per text.
        not_own: Never return the "image" that a row names as its own.
        score: Print how well rows find their own images, and the reverse.
        folds: With --score: also the mean over N parts of the images.
        emb: Index of a matcher: also write the texts' embeddings, (N, E).
        clusters: Index of nouns: groups of a text's nouns.
        tagger: Index of nouns: spaCy pipeline that tags them.
        matcher: The matcher's run, if not at the index's path to it.
    """

    k: int = value(16, names=("-k",), metavar="N", min=1, max=1000)
    not_own: bool = value(False)
    score: bool = value(False)
    folds: int = count(1)
    emb: str | None = value(None, metavar="X.npy")
    clusters: int | None = count(None, show_default="8")
    tagger: str | None = value(None, metavar="NAME", show_default="builtin:spacy-sm")
    nprobe: NProbe = None
    matcher: str | None = value(None, metavar="RUN")


@dataclass(frozen=True)
class OpenedRetriever:
    """A retriever that is ready, and its entries in manifests."""

    retriever: TextRetriever
    ids: Sequence[str]
    config: dict[str, Any]  # all that decides the rows
    dim: int = 0  # width of the texts' embeddings, where they have one
    keep: Callable[[deque[Any]], None] = lambda kept: None  # leave the embeddings of windows there
    indexes: Sequence[str] = ()  # its files


def open_retriever(
    indexes: Sequence[str], search: ImageSearchFlags, runtime: Runtime
) -> OpenedRetriever:
    """Return the retriever of an index, or of the parts of a bank; the manifest decides its kind.

    Raises:
        DataError: an index of another version, or flags that do not fit it (usage).
    """
    from vgtools.io.written import manifest_beside

    index = indexes[0]
    keys = manifest_beside(index).get("keys", "matcher")
    if keys not in RETRIEVERS:
        why = f'has keys "{keys}", expected one of {", ".join(RETRIEVERS)}; build it again'
        raise DataError(why, index)
    for flag, fits in (
        ("clusters", "nouns"),
        ("tagger", "nouns"),
        ("matcher", "matcher"),
        ("nprobe", "matcher"),
        ("emb", "matcher"),
    ):
        why = f"belongs to an index of {fits}, {index} has keys of kind {keys}"
        refuse_if(getattr(search, flag) is not None and keys != fits, f"--{flag}", why)
    several = len(indexes) > 1 and keys != "matcher"
    refuse_if(several, "--index", "several are the parts of a bank of a matcher")
    return replace(RETRIEVERS[keys](indexes, search, runtime), indexes=indexes)


def _by_matcher(
    indexes: Sequence[str], search: ImageSearchFlags, runtime: Runtime
) -> OpenedRetriever:
    """Return the search by an index that a run of vg train-matcher embedded."""
    from vgtools.retrieval.index import matcher_path, open_indexes
    from vgtools.retrieval.texts import NearestImages
    from vgtools.systems import matcher_system

    bank = open_indexes(indexes, search.nprobe)
    refuse_if("clusters" in bank.manifest, "--index", "holds clusters of tokens, not images")
    run = matcher_path(bank, search.matcher)
    opened = matcher_system(run).open_search(bank, run, runtime.device)
    retriever: NearestImages[Any] = opened
    config = {
        "command": "retrieve",
        "index_sha256": bank.manifest["files"],
        "matcher": retriever.fingerprint,
        **retriever.settings,
        "device": retriever.device.type,
        **({"search": bank.approximate} if bank.approximate else {}),
    }
    return OpenedRetriever(retriever, bank.ids, config, bank.manifest["dim"], retriever.keep)


def _by_words(
    indexes: Sequence[str], search: ImageSearchFlags, runtime: Runtime
) -> OpenedRetriever:
    """Return the search by scene, object or keyword: an index of captions, nouns or keywords."""
    from vgtools.io.written import manifest_beside
    from vgtools.systems.grounding.association import open_associator
    from vgtools.systems.grounding.retrieve import AssociativeRetriever
    from vgtools.text.parses import tagger_facts

    (index,) = indexes
    nouns = manifest_beside(index)["keys"] == "nouns"
    how: dict[str, Any] = {}
    if nouns:
        how = {"clusters": search.clusters or 8, "tagger": search.tagger or "builtin:spacy-sm"}
        refuse_if(
            how["clusters"] > search.k and search.clusters is not None,
            "--clusters",
            f"{search.clusters} clusters need as many images; raise -k ({search.k})",
        )
    associator = open_associator(index, **how)
    made = manifest_beside(index)
    config = {"command": "retrieve", "index_sha256": made["files"], **how}
    # Words that no caption has are in the texts: the files of the index do not show theirs.
    config["words"] = {k: v for k, v in (made.get("words") or {}).items() if k != "vectors"}
    if nouns:
        config |= tagger_facts(how["tagger"])
    return OpenedRetriever(AssociativeRetriever(associator), associator.ids, config)


# The openers of retrievers, by the "keys" of an index's manifest.
RETRIEVERS: dict[str, Callable[[Sequence[str], ImageSearchFlags, Runtime], OpenedRetriever]] = {
    "matcher": _by_matcher,
    "captions": _by_words,
    "nouns": _by_words,
    "keywords": _by_words,
}
