"""The answers of the server: each kind of question reads rows and computes the rows of a command.

The same rows give the same bytes as `vg vokenize`, `vg retrieve` and `vg locate`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from vgtools.images.decoding import decode
from vgtools.images.featurizer import Featurizer, describe
from vgtools.images.maps import Grids, Locator, Query, Step, locate, open_grids, read_queries
from vgtools.images.regions import Regions, RegionSet, open_regions
from vgtools.images.sources import ImageError
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps
from vgtools.io.streams import Window
from vgtools.io.written import manifest_beside
from vgtools.models.attention import JointEncoder
from vgtools.models.backbone import load_backbone
from vgtools.models.dual import is_dual
from vgtools.models.references import check_same
from vgtools.models.sealed import read_run
from vgtools.reports.page import own_images
from vgtools.retrieval.duplicates import rows_by_name
from vgtools.retrieval.index import Index, matcher_path, open_indexes
from vgtools.retrieval.texts import TextRetriever
from vgtools.systems import open_joint
from vgtools.systems.attention_probes.examples import attention_rows
from vgtools.systems.attention_probes.region_heads import (
    RegionAttention,
    check_backbone,
    check_width,
    region_attention,
    word_attention,
)
from vgtools.systems.grounding.association import open_associator
from vgtools.systems.grounding.retrieve import AssociativeRetriever
from vgtools.systems.visual_awareness.concepts import ConceptLocator
from vgtools.systems.visual_awareness.localisation import judge
from vgtools.systems.visual_awareness.retrieve import RetrieverSearch, open_retriever
from vgtools.systems.vokenization.dual import Reading
from vgtools.systems.vokenization.locate import RelevanceLocator
from vgtools.systems.vokenization.retrieve import SentenceRetriever
from vgtools.systems.vokenization.vokenize import Matcher, Vokenizer, load_for
from vgtools.text.retrieved import input_rows, output_row
from vgtools.text.tokens import WORD, tokenize

REQUEST = "request"  # its name in messages, where a command has a file's
_SETTINGS = 8  # weights of the sentence that are kept ready
_WORDS = 4096  # words that a new picture is compared with
_DIMS = 180  # `vg locate`'s own
_ATTENDED = 4  # texts whose attention is kept, 10 to 30 MB each: words of a text are asked in turn


@dataclass(frozen=True)
class Setting:
    """A number that a question may have, in the query of its address.

    Args:
        about: its meaning.
        default: its value where it is not given.
        least: the smallest.
        most: the largest.
        whole: it is an integer.
    """

    about: str
    default: float | None
    least: float = -math.inf
    most: float = math.inf
    whole: bool = False

    def read(self, name: str, text: str, where: str | None = REQUEST) -> float:
        """Return its value; `where` is the name of the question in messages.

        Raises:
            DataError: it is not such a number (usage).
        """
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most or math.isinf(value):
            kind = "an integer" if self.whole else "a number"
            bounds = "" if math.isinf(self.most) else f" from {self.least:g} to {self.most:g}"
            why = f'"{name}" must be {kind}{bounds}, got {text!r:.60}'
            raise DataError(why, where, code=Exit.USAGE)
        return value


def _images(default: int) -> Setting:
    return Setting("Images of each.", default, 1, 1000, whole=True)


class Answerer(ABC):
    """Answers one kind of question.

    Attributes:
        about: its purpose.
        settings: numbers that a question may have.
    """

    about: str
    settings: ClassVar[Mapping[str, Setting]]

    @abstractmethod
    def read(self, window: Window) -> list[Any]:
        """Return the items of the rows of a request.

        Raises:
            DataError: a row that is not as expected; its line is named.
        """

    @abstractmethod
    def compute(self, items: Sequence[Any], settings: tuple[Any, ...]) -> list[bytes]:
        """Return a row of JSON for each item; `settings` are in their order."""

    def size(self, item: Any, settings: tuple[Any, ...]) -> int:
        """Return how much work an item is, in characters of texts."""
        return len(item["text"])


class VokenAnswer(Answerer):
    """A picture for every token, as `vg vokenize`."""

    about = "A picture for every token of a text, as vg vokenize writes it."
    settings: ClassVar[Mapping[str, Setting]] = {
        "k": _images(1),
        "min_score": Setting("Score below which a token gets no voken, -1.", None),
        "context": Setting(
            "Weight of the sentence next to the word; the index's or the run's.", None, 0, 1000
        ),
    }

    def __init__(self, vokenizer: Vokenizer) -> None:
        self._at = lru_cache(_SETTINGS)(vokenizer.at)

    def read(self, window: Window) -> list[Any]:
        """Return the rows, of which the text and the "split" count."""
        return window.rows()

    def compute(self, items: Sequence[Any], settings: tuple[Any, ...]) -> list[bytes]:
        """Return the rows of vokens."""
        vokens = self._at(*settings)([row["text"] for row in items])
        return [dumps(row) for row in vokens.rows(items)]

    def size(self, item: Any, settings: tuple[Any, ...]) -> int:
        """Return the characters of a text, more if every token has many images."""
        k, *_ = settings
        return int(len(item["text"]) * max(4, k) // 4)


class ImageAnswer(Answerer):
    """The pictures of whole texts, as `vg retrieve`."""

    about = "The pictures of a whole text, as vg retrieve writes them."
    settings: ClassVar[Mapping[str, Setting]] = {
        "k": _images(16),
        "not_own": Setting('1: never the "image" that a row names.', 0, 0, 1, whole=True),
    }

    def __init__(
        self, retriever: TextRetriever, ids: Sequence[str], indexes: Sequence[str]
    ) -> None:
        self._retriever = retriever
        self._row_of = rows_by_name(ids, indexes)

    def read(self, window: Window) -> list[Any]:
        """Return the rows with the keys that are kept."""
        return input_rows(window)

    def compute(self, items: Sequence[Any], settings: tuple[Any, ...]) -> list[bytes]:
        """Return the rows of images."""
        k, not_own = settings
        names = [row.get("image", "") if not_own else "" for row in items]
        own = np.array([self._row_of.get(name, -1) for name in names], np.int32)
        prepared = self._retriever.prepare([row["text"] for row in items])
        images, scores = self._retriever.search(prepared, k, own)
        parts = zip(items, images, np.round(scores, 4), strict=True)
        return [dumps(output_row(*part)) for part in parts]

    def size(self, item: Any, settings: tuple[Any, ...]) -> int:
        """Return the characters of a text, or its images if there are more."""
        k, _ = settings
        return int(max(len(item["text"]), k))


class HeatAnswer(Answerer):
    """Where in a picture a text is, as `vg locate`."""

    about = 'Where in the picture "image" a text is, as vg locate writes it.'
    settings: ClassVar[Mapping[str, Setting]] = {}

    def __init__(self, locator: Locator, grids: Grids, name: str = REQUEST) -> None:
        self._locator = locator
        self._grids = grids
        self._name = name

    def read(self, window: Window) -> list[Any]:
        """Return the queries of the rows."""
        return read_queries(window)

    def compute(self, items: Sequence[Query], settings: tuple[Any, ...]) -> list[bytes]:
        """Return the rows of heat."""
        found = locate([Step(list(items), {})], self._locator, self._grids, self._name)
        rows = list[bytes]()
        for _, maps in found:
            for each in maps:
                verdict = judge(each)
                rows.append(dumps(each.row(**({} if verdict is None else verdict.marks))))
        return rows

    def size(self, item: Query, settings: tuple[Any, ...]) -> int:
        """Return the characters of a query."""
        return len(item.text)


class NeighbourAnswer(Answerer):
    """The pictures and words that are nearest to a new picture."""

    about = "The pictures of the bank, and words, that are nearest to a picture."
    settings: ClassVar[Mapping[str, Setting]] = {"k": _images(16)}

    def __init__(self, featurizer: Featurizer, matcher: Matcher, index: Index) -> None:
        self._featurizer = featurizer
        self._matcher = matcher
        self._index = index

    @cached_property
    def _words(self) -> tuple[list[str], Array]:
        """The frequent words of the matcher's vocabulary, and their embeddings (W, E)."""
        vocabulary = self._matcher.encoder.tokenizer.get_vocab()
        # Vocabularies list frequent entries first.
        listed = sorted(vocabulary, key=vocabulary.__getitem__)
        bare = dict.fromkeys(word.removesuffix("</w>").lstrip("Ġ▁") for word in listed)
        words = [word for word in bare if word.isalpha() and len(word) > 2][:_WORDS]
        retriever = SentenceRetriever(self._matcher, self._index)
        queries, asking = retriever.embed(retriever.prepare(words))
        return [words[i] for i in asking], queries.float().cpu().numpy()

    def read(self, window: Window) -> list[Any]:
        """Return the pixels of one encoded picture.

        Raises:
            DataError: it cannot be decoded.
        """
        (data,) = window.lines
        try:
            return [self._featurizer.pixels(decode(data))]  # type: ignore[arg-type]
        except ImageError as error:
            raise DataError(str(error), REQUEST) from None

    @torch.inference_mode()
    def compute(self, items: Sequence[Array], settings: tuple[Any, ...]) -> list[bytes]:
        """Return the images and the words of pictures."""
        (k,) = settings
        feats = torch.from_numpy(self._featurizer.features(np.stack(items)))
        net = self._matcher.matcher
        queries = net.embed_images(feats.to(next(net.parameters()).device)).cpu().numpy()
        images, scores = self._index.search(queries, k)
        words, vectors = self._words
        said = queries @ vectors.T
        best = np.argsort(-said, axis=1, kind="stable")[:, :k]
        return [
            dumps(
                {
                    **output_row({"text": ""}, *found),
                    "words": [words[i] for i in near],
                    "word_scores": np.round(values[near], 4),
                }
            )
            for *found, near, values in zip(images, np.round(scores, 4), best, said, strict=True)
        ]

    def size(self, item: Array, settings: tuple[Any, ...]) -> int:
        """Return the weight of a picture: a few go together."""
        return 1 << 13


class AttentionAnswer(Answerer):
    """The regions that words attend to, by head, as the examples of `vg probe-attention`."""

    about = (
        'How much each word of a text, or its "span", attends to each region of the picture '
        '"image", by layer and head, as vg probe-attention writes its examples.'
    )
    settings: ClassVar[Mapping[str, Setting]] = {}

    def __init__(self, encoder: JointEncoder, regions: Regions) -> None:
        self._encoder = encoder
        self._regions = regions
        counts = zip(regions.images, regions.counts.tolist(), strict=True)
        self._images = frozenset(image for image, count in counts if count)
        self._of = lru_cache(_ATTENDED)(self._attention)

    def read(self, window: Window) -> list[Query]:
        """Return a query per word of the rows; a row with "span" or "phrases" names its own.

        Raises:
            DataError: as `maps.read_queries`; a picture without regions, or a text that is too
                long for the model.
        """
        found = list[Query]()
        lengths = dict[str, int]()  # a text with many phrases is tokenised once
        for query in read_queries(window):
            image = query.image
            if image not in self._images:
                why = f"{self._regions.path} holds no regions of the image {image!r:.80}"
                raise DataError(why, REQUEST, query.line)
            length = lengths.get(query.text)
            if length is None:
                length = len(tokenize(self._encoder.tokenizer, [query.text]).ids)
                lengths[query.text] = length
            if length > self._encoder.max_tokens:
                why = f"has {length} tokens, the model takes {self._encoder.max_tokens}"
                raise DataError(why, REQUEST, query.line)
            words = WORD.finditer(query.text)
            spans = [word.span() for word in words] if query.span is None else [query.span]
            found += [replace(query, span=span) for span in spans]
        return found

    def _attention(self, text: str, image: str) -> tuple[RegionSet, RegionAttention]:
        # One text at a time, as in the command: padding would change the last digits.
        regions = self._regions.of(image)
        return regions, region_attention(self._encoder, text, regions)

    def compute(self, items: Sequence[Query], settings: tuple[Any, ...]) -> list[bytes]:
        """Return the rows of attention."""
        rows = list[bytes]()
        for query in items:
            assert query.span is not None
            regions, found = self._of(query.text, query.image)
            words = [query.span]
            weights = word_attention(found, words)
            about = (query.text, query.image, words, regions, weights, found.length)
            rows += (dumps(row | query.split) for row in attention_rows(*about))
        return rows

    def size(self, item: Query, settings: tuple[Any, ...]) -> int:
        """Return the weight of a word: a few texts of usual length go together."""
        return (1 << 12) + 8 * len(item.text)


# ---------------------------------------------------------------------------------------- opening


@dataclass(frozen=True)
class ServedModels:
    """The files and models that the user names."""

    index: Sequence[str]
    matcher: str | None = None
    feats: str | None = None  # grids of the pictures, to locate in
    backbone: str | None = None  # the bank's, to embed new pictures
    regions: str | None = None  # region features of pictures, for the heads of `encoder`
    encoder: str | None = None  # a VisualBERT
    nprobe: int | None = None
    device: str = "cpu"
    dtype: str = "float32"
    level: str | None = None  # for `load_for`
    reading: Reading | None = None
    neighbours: bool = True  # also of new pictures, where the bank names its backbone


@dataclass(frozen=True)
class Opened:
    """The answers that a bank allows, by name, and facts about it."""

    ids: Sequence[str]
    manifest: Mapping[str, Any]
    answers: dict[str, Answerer]
    facts: dict[str, Any] = field(default_factory=dict)
    regions: Regions | None = None  # their pictures need not be the bank's


def open_answers(models: ServedModels) -> Opened:
    """Open an index with all that is to be asked of it.

    Raises:
        DataError: as the commands that answer alone; or a file that the index cannot use (usage).
    """
    for given, other in (("regions", "encoder"), ("encoder", "regions")):
        if getattr(models, given) is not None and getattr(models, other) is None:
            raise DataError(f"--{given}: give --{other} as well", code=Exit.USAGE)
    opened = _open_bank(models)
    return opened if models.regions is None else _with_heads(opened, models)


def _with_heads(opened: Opened, models: ServedModels) -> Opened:
    """Add the answers of a VisualBERT."""
    assert models.regions is not None
    assert models.encoder is not None
    regions = open_regions(models.regions)
    check_backbone(models.encoder, regions)
    encoder = open_joint(models.encoder, device=models.device)
    check_width(encoder, regions)
    answers = opened.answers | {"attention": AttentionAnswer(encoder, regions)}
    heads = {"encoder": models.encoder, "layers": encoder.layers, "heads": encoder.heads}
    facts = opened.facts | {"attention": {**heads, "images": int((regions.counts > 0).sum())}}
    return replace(opened, answers=answers, facts=facts, regions=regions)


def _open_bank(models: ServedModels) -> Opened:
    """Open an index with the answers of its own models."""
    keys = manifest_beside(models.index[0]).get("keys", "matcher")
    if keys != "matcher":
        _refuse(models, ("feats", "backbone", "matcher", "nprobe"), f"keys of kind {keys}")
        how = {"clusters": 8, "tagger": "builtin:spacy-sm"} if keys == "nouns" else {}
        if len(models.index) > 1:
            why = "--index: several are the parts of a bank of a matcher"
            raise DataError(why, code=Exit.USAGE)
        found = open_associator(models.index[0], **how)  # type: ignore[arg-type]
        manifest = manifest_beside(models.index[0])
        answer = ImageAnswer(AssociativeRetriever(found), found.ids, models.index)
        return Opened(found.ids, manifest, {"retrieve": answer}, {"keys": keys})
    bank = open_indexes(models.index, models.nprobe)
    run = matcher_path(bank, models.matcher)
    clusters = "clusters" in bank.manifest
    if not clusters and not is_dual(run) and read_run(run).get("kind") == "retriever":
        return _of_retriever(bank, run, models)
    return _of_matcher(bank, models, clusters)


def _of_retriever(bank: Index, run: str, models: ServedModels) -> Opened:
    """Return the answers of a retriever: pictures of texts, and heat."""
    _refuse(models, ("backbone",), "a retriever, whose pictures are feature maps")
    opened = open_retriever(run, device=models.device)
    answers: dict[str, Answerer] = {}
    answers["retrieve"] = ImageAnswer(RetrieverSearch(opened, bank), bank.ids, models.index)
    if models.feats is not None:
        width = opened.retriever.config.image_width
        grids = _grids(models.feats, opened.run.info.get("backbone"), width, run, bank)
        answers["locate"] = HeatAnswer(ConceptLocator(opened, _DIMS, False), grids)
    return Opened(bank.ids, bank.manifest, answers, {"keys": "matcher"})


def _of_matcher(bank: Index, models: ServedModels, clusters: bool) -> Opened:
    """Return the answers of a matcher of vokens, or of clusters, which find no picture."""
    loaded = load_for(
        bank,
        models.matcher,
        device=models.device,
        dtype=models.dtype,
        level=models.level,
        reading=models.reading,
    )
    vokenizer = Vokenizer(loaded, bank)
    answers: dict[str, Answerer] = {"vokenize": VokenAnswer(vokenizer)}
    facts: dict[str, Any] = {
        "keys": "clusters" if clusters else "matcher",
        "level": loaded.matcher.config.level,
        "calibrated": vokenizer.calibration is not None,
        "context": vokenizer.matcher.matcher.config.context_weight,
        "sentence": loaded.matcher.context is not None,
    }
    if clusters:
        _refuse(models, ("feats", "backbone"), "clusters of tokens, not images")
        return Opened(bank.ids, bank.manifest, answers, facts)
    answers["retrieve"] = ImageAnswer(SentenceRetriever(loaded, bank), bank.ids, models.index)
    if models.feats is not None:
        width = loaded.matcher.config.image_width
        grids = _grids(models.feats, loaded.info.get("backbone"), width, loaded.ref, bank)
        answers["locate"] = HeatAnswer(RelevanceLocator(loaded), grids)
    ref = models.backbone
    if (
        ref is None and models.neighbours and own_images(bank.manifest)
    ):  # their package comes with the backbone's
        ref = loaded.info["backbone"]["ref"]
    if ref is not None:
        answers["neighbours"] = _neighbours(loaded, bank, ref, models)
    return Opened(bank.ids, bank.manifest, answers, facts)


def _grids(
    path: str, backbone: Mapping[str, Any] | None, width: int, run: str, bank: Index
) -> Grids:
    """Open the grids of pictures; they have to be of a run's backbone, and of its width.

    A grid of some of the bank's pictures is served, one of none of them is of another bank.
    """
    grids = open_grids(path)
    if set(grids.ids).isdisjoint(bank.ids):
        raise DataError(f"has no picture of {bank.path}; give the grid of its pictures", path)
    check_same("backbone", grids.manifest.get("backbone"), backbone, grids.path)
    grids.check_width(width, run)
    return grids


def _neighbours(loaded: Matcher, bank: Index, ref: str, models: ServedModels) -> NeighbourAnswer:
    """Return the search by a new picture, which the bank's own backbone embeds."""
    net = load_backbone(ref, device=models.device)
    made = loaded.info.get("backbone") or {}
    given = {"ref": ref, "fingerprint": net.fingerprint}
    check_same("backbone", made, given, Path(loaded.ref) / "run.json")
    seen = describe(net.preprocessing)
    stored = made.get("preprocessing")
    if stored not in (None, seen):
        why = f"saw pictures prepared as {stored}, the backbone prepares them as {seen}"
        raise DataError(why, loaded.ref)
    pooling = made.get("pooling")
    if pooling not in ("own", "mean", "max"):  # not recorded, or a mean over its grid
        pooling = "own" if hasattr(net.model, "pooled") else "mean"
    featurizer = Featurizer(net.model, net.preprocessing, pooling, batch_size=1)
    return NeighbourAnswer(featurizer, loaded, bank)


def _refuse(models: ServedModels, names: Sequence[str], kind: str) -> None:
    """Refuse flags that an index has no use for."""
    for name in names:
        if getattr(models, name) is not None:
            why = f"--{name}: {models.index[0]} has {kind}"
            raise DataError(why, code=Exit.USAGE)
