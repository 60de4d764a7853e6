"""The losses of masked words in texts under grounded and plain masked language models.

Every model sees the same masks, which a text's number decides, so that differences are paired.

Axes: N texts, K images of a text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.process import Progress
from vgtools.models.encoder import Encoder, load_masked_lm, max_positions
from vgtools.models.masked_lm import mlm_hidden, token_losses
from vgtools.systems.grounding.inputs import (
    GroundedExamples,
    GroundedMasking,
    WordBank,
    check_words,
    open_sources,
)
from vgtools.systems.grounding.model import (
    GroundedBatch,
    GroundedMaskedLM,
    GroundingConfig,
    is_grounded,
    open_grounding,
)
from vgtools.systems.grounding.pictures import PictureFeatures, check_trained
from vgtools.systems.grounding.recipe import ASSOCIATIVE, Sources
from vgtools.systems.grounding.texts import GroundingTexts, read_texts
from vgtools.tasks.image_controls import choose_images
from vgtools.tasks.perplexity import TextScores, groups_of, records
from vgtools.text.tokens import tokenizer_fingerprint

_SPLIT = "perplexity"  # part of the seed of the draws for `other` and `random`


@dataclass(frozen=True)
class ScoredLM:
    """A masked language model to be scored.

    Attributes:
        ref: the user's name for it.
        text: its encoder, for the tokenizer.
        config: its shape; a plain language model has the strategy none.
        info: run.json; empty for a plain language model.
        losses: negative log likelihoods of the masked words of a batch, (M,).
    """

    ref: str
    text: Encoder
    config: GroundingConfig
    info: dict[str, Any]
    losses: Callable[[GroundedBatch], Tensor]


def open_model(ref: str, *, device: torch.device | str) -> ScoredLM:
    """Open a run of `vg pretrain grounding`, or a plain masked language model.

    Raises:
        DataError: as `open_grounding` and `load_masked_lm`; the model has no masked language
            model's head (78).
    """
    if is_grounded(ref):
        found = open_grounding(ref)
        model = found.model.to(device)
        return ScoredLM(ref, found.text, found.config, found.run.info, _grounded(model))
    text = load_masked_lm(ref, new_head=False)
    lm = text.model.eval().to(device)
    return ScoredLM(ref, text, GroundingConfig("none", 0, 0, 0, 0), {}, _plain(lm))


def _grounded(model: GroundedMaskedLM) -> Callable[[GroundedBatch], Tensor]:
    @torch.no_grad()
    def losses(batch: GroundedBatch) -> Tensor:
        head = model.jmlm
        return token_losses(model.hidden(batch), head.table, head.bias, batch.tokens)

    return losses


def _plain(lm: Any) -> Callable[[GroundedBatch], Tensor]:
    head = mlm_hidden(lm)
    decoder = lm.get_output_embeddings()

    @torch.no_grad()
    def losses(batch: GroundedBatch) -> Tensor:
        mask = batch.text_mask.long()
        states = lm.base_model(input_ids=batch.ids, attention_mask=mask).last_hidden_state
        rows = head(states.flatten(0, 1)[batch.masked])
        return token_losses(rows, decoder.weight, decoder.bias, batch.tokens)

    return losses


@dataclass(frozen=True)
class Offer:
    """The images that models may be shown with.

    Attributes:
        kinds: own, found, other, random, none, in turn, without `found` for a run that has no
            index; empty for the kind that a run was trained with: found images, own images, or the
            placeholder where no text names an image.
        feats: files of features; a run takes the first of its backbone.
        regions: file of regions; runs with several regions per image try it first, others last.
        index: indices by words; a run takes the first of its strategy.
        query: look for images with the `masked` or the `whole` text; None for as the run did.
        tagger: finds nouns; None for the run's tagger.
    """

    kinds: Sequence[str] = ()
    feats: Sequence[str] = ()
    regions: str | None = None
    index: Sequence[str] = ()
    query: Literal["masked", "whole"] | None = None
    tagger: str | None = None

    def kinds_of(self, model: ScoredLM) -> list[str]:
        """Return the kinds of images that a model is shown with, in turn; empty where the texts
        decide.
        """
        if model.config.strategy == "none":
            return ["none"]
        if model.config.strategy in ASSOCIATIVE:
            return list(dict.fromkeys(self.kinds)) or ["found"]
        return [kind for kind in dict.fromkeys(self.kinds) if kind != "found"]

    def open(self, model: ScoredLM) -> tuple[PictureFeatures | None, WordBank | None]:
        """Open the images for a model; none are needed where it is shown with none.

        Raises:
            DataError: none fits; the message gives the reason of the last file tried.
        """
        config = model.config
        kinds = self.kinds_of(model)
        files: list[tuple[str | None, str | None]] = [(feats, None) for feats in self.feats]
        if self.regions:
            files.insert(0 if config.regions > 1 else len(files), (None, self.regions))
        if kinds == ["none"] or not (kinds or files):
            return None, None
        problem = lacking(model)
        for index in self.index if config.strategy in ASSOCIATIVE else [None]:
            for feats, regions in files:
                try:
                    return self._open(model, feats, regions, index)
                except DataError as error:
                    problem = error
        raise problem

    def _open(
        self, model: ScoredLM, feats: str | None, regions: str | None, index: str | None
    ) -> tuple[PictureFeatures | None, WordBank | None]:
        config = model.config
        known = model.info.get("index") or {}
        sources = Sources(
            config.strategy,
            feats,
            regions,
            config.regions,
            index,
            config.images,
            known.get("clusters"),
            self.query or known.get("query", "masked"),
            self.tagger or known.get("tagger"),
        )
        pictures, bank = open_sources(sources)
        assert pictures is not None
        check_trained(pictures, model.info.get("backbone"), config.width)
        if bank is not None:
            check_words(bank, known, str(index))
        return pictures, bank


def lacking(model: ScoredLM) -> DataError:
    """Return the error of a model whose images were not given."""
    strategy = model.config.strategy
    why = f"was trained with {strategy}: name its --feats"
    return DataError(why + " and --index" * (strategy in ASSOCIATIVE), model.ref, code=Exit.USAGE)


def read_examples(
    paths: Sequence[str],
    model: ScoredLM,
    pictures: PictureFeatures | None,
    bank: WordBank | None,
    block: int,
    rate: float,
    own: bool,
) -> GroundedExamples:
    """Read texts as a model sees them; every line is a text, also an empty line.

    Args:
        paths: files of texts.
        model: the model that the texts are tokenised for.
        pictures: features of the images that the model is shown.
        bank: finds them, for an associative model.
        block: tokens of a text, special ones counted.
        rate: share of the tokens that are masked.
        own: the images that rows name must have features.

    Raises:
        DataError: the encoder takes no such texts (78), or as `read_texts`.
    """
    text = model.text
    most = max_positions(text.model.config)
    if block > most:
        why = f"--block {block}: the encoder takes {most} tokens"
        raise DataError(why, model.ref, code=Exit.CONFIG)
    longest = block - len(text.prefix) - len(text.suffix)
    texts = read_texts(
        paths,
        text.tokenizer,
        longest,
        pictures=pictures if own else None,
        raw=bank is not None,
        keep_empty=True,
    )
    recipe = GroundedMasking.of(text.tokenizer, longest=longest, rate=rate)
    return GroundedExamples(texts, recipe, pictures, bank)


def shown(examples: GroundedExamples, kind: str) -> Array:
    """Return the rows of the features that each text is shown with, (N, K), -1 for none.

    Args:
        examples: the texts, and where images come from.
        kind: `own`, the images that rows name; `found`, by their visible words; `other`, the images
            of another text; `random`, drawn from the images; `none`. Texts that name one image
            count as one for `other` and `random` (see `choose_images`), and equal texts for
            `other`: hidden words decide which are, and that alone changes its images. An image of
            the text's own that comes up among others' is not shown.

    Raises:
        DataError: no row names an image, or there is no other text of another image.
    """
    pictures = examples.pictures
    if kind == "none" or pictures is None:
        return np.full((len(examples), 0), -1, np.int64)
    if examples.bank is not None and kind != "own":
        rows = examples.found
        bank = examples.bank.rows
    else:
        if examples.texts.image.max() < 0:
            raise DataError("no row names an image", examples.texts.name)
        rows = examples.own[:, None]
        bank = np.arange(len(pictures.ids))
    if kind in ("own", "found"):
        return rows
    if kind == "random":
        # Not by equal texts, which hidden words decide.
        same = groups_of(examples.texts.image).tolist()
        rows = choose_images(rows, same, "random", bank, _SPLIT)
    elif max(same := _as_one(examples.texts)) > 0:
        rows = choose_images(rows, same, "shuffle", bank, _SPLIT)
    else:
        raise DataError("has no other text of another image to compare with", examples.texts.name)
    # The text's own image, met by chance, would make a control look useful.
    return np.where(rows == examples.own[:, None], -1, rows)


def _as_one(texts: GroundingTexts) -> list[int]:
    """Return a number per text, the same for equal texts and for texts of one image."""
    numbers = dict[bytes, int]()
    words = [numbers.setdefault(texts.of(n).tobytes(), len(numbers)) for n in range(len(texts))]
    same = np.arange(len(texts))
    before = np.full_like(same, -1)
    # Equal texts may name different images, and an image may have different texts: the least number
    # spreads along both relations until nothing changes.
    while (same != before).any():
        before = same
        for by in (np.array(words), groups_of(texts.image)):
            least = np.full(len(texts), len(texts))
            np.minimum.at(least, by, same)
            same = least[by]
    return same.tolist()


def score(
    model: ScoredLM,
    examples: GroundedExamples,
    rows: Array,
    batch_size: int,
    device: torch.device | str,
    advance: Callable[[int], None] = lambda count: None,
) -> tuple[TextScores, TextScores]:
    """Score the masked words of texts, all of them and the content words alone.

    Args:
        model: to be scored.
        examples: the texts.
        rows: (N, K) rows of the features that they are shown with.
        batch_size: texts at a time.
        device: device of the model.
        advance: called with the number of texts done.

    Raises:
        DataError: a loss is not a finite number (65).

    Source: Sileo 2021, section 4.1 and table 2: the mean over masked words.
    """
    texts = examples.texts
    count = len(texts)
    sums = np.zeros((2, count))
    tokens = np.zeros((2, count), np.int64)
    lead = len(examples.recipe.prefix)
    order = np.argsort(np.diff(texts.starts), kind="stable")  # Similar lengths need less padding.
    for numbers in np.array_split(order, -(-count // batch_size)):
        (batch,) = examples.collate(numbers, None, 1, device, rows=rows[numbers])
        losses = model.losses(batch).double().cpu().numpy()
        if not np.isfinite(losses).all():
            why = "computes a loss that is not a number: its weights or its config.json are damaged"
            raise DataError(why, model.ref)
        places = batch.masked.cpu().numpy()
        length = batch.ids.shape[1]
        text = numbers[places // length]
        # `masked` counts places in the padded batch, `content` tokens of the texts without the
        # prefix.
        content = texts.content[texts.starts[text] + places % length - lead]
        for i, kept in enumerate((np.ones(len(text), bool), content)):
            # A text has several masked words in the batch; `sums[i][text] += losses` would add one
            # of them.
            np.add.at(sums[i], text[kept], losses[kept])
            np.add.at(tokens[i], text[kept], 1)
        advance(len(numbers))
    return TextScores(tokens[0], sums[0]), TextScores(tokens[1], sums[1])


@dataclass
class Comparison:
    """Models that are asked for the same masked words of the same texts.

    Args:
        inputs: files of texts.
        offer: the images that they may be shown with.
        rate: share of the tokens that are masked.
        block: tokens of a text, special ones counted.
        batch_size: texts at a time.
        device: where models run.

    Attributes:
        names: for each record, the model and the kind of images it is shown with, in order.
    """

    inputs: Sequence[str]
    offer: Offer
    rate: float
    block: int
    batch_size: int
    device: torch.device
    names: list[dict[str, Any]] = field(init=False, default_factory=list)
    _remarks: list[str] = field(init=False, default_factory=list)
    _first: tuple[str, str] | None = field(init=False, default=None)  # model and its tokenizer
    _image: Array = field(init=False, default_factory=lambda: np.zeros(0, np.int32))
    _scores: list[tuple[TextScores, TextScores]] = field(init=False, default_factory=list)

    def add(self, ref: str) -> None:
        """Score a model with each kind of images.

        Raises:
            DataError: another tokenizer than the first model's (78), no word is masked (65), or as
                `open_model`, `Offer.open` and `read_examples`.
        """
        model = open_model(ref, device=self.device)
        self._check_tokens(model)
        pictures, bank = self.offer.open(model)
        kinds = self.offer.kinds_of(model)
        own = bank is None or "own" in kinds
        examples = read_examples(self.inputs, model, pictures, bank, self.block, self.rate, own)
        self._image = examples.texts.image
        if examples.remark is not None and examples.remark not in self._remarks:
            self._remarks.append(examples.remark)
        if not kinds:
            kinds = ["own" if (self._image >= 0).any() else "none"]
            if pictures is None and kinds == ["own"]:
                raise lacking(model)
        for kind in kinds:
            rows = shown(examples, kind)
            what = f"perplexity: {ref}, {kind}"
            with Progress(what, "texts", len(examples)) as bar:
                scores = score(model, examples, rows, self.batch_size, self.device, bar.advance)
            if not scores[0].tokens.sum():
                why = "no word of it is masked; raise --mask-rate, or take more text"
                raise DataError(why, examples.texts.name)
            facts = {"encoder": ref, "strategy": model.config.strategy, "pictures": kind}
            # Several files may fit; the first is taken, and the record shows which one that was.
            if pictures is not None and kind != "none":
                facts["feats"] = pictures.path
            if kind in ("found", "other", "random") and bank is not None:
                facts["index"] = bank.path
            if kind in ("found", "other") and bank is not None:
                facts["query"] = bank.mark["query"]
            self.names.append(facts | {"mask_rate": self.rate})
            self._scores.append(scores)

    def _check_tokens(self, model: ScoredLM) -> None:
        """Refuse a model with other tokens: its perplexity is of different words."""
        sha256 = tokenizer_fingerprint(model.text.tokenizer)
        self._first = self._first or (model.ref, sha256)
        first, expected = self._first
        if sha256 != expected:
            why = f"has the tokenizer {sha256}, {first} has {expected}"
            raise DataError(f"{why}; compare models of one tokenizer", model.ref, code=Exit.CONFIG)

    @property
    def remarks(self) -> list[str]:
        """About texts that may be shown their own image, and images that no model reads."""
        offer = self.offer
        offered = {*offer.kinds} - {"none"} or offer.feats or offer.regions or offer.index
        if not offered or any(name["strategy"] != "none" for name in self.names):
            return self._remarks
        why = "no model reads images with its text"
        unused = f"{why}: --pictures, --feats, --regions, --index change nothing"
        return [*self._remarks, unused]

    def records(self, samples: int, seed: int) -> list[dict[str, Any]]:
        """Return a record per model and kind of images, each compared with the first."""
        whole, content = zip(*self._scores, strict=True)
        return records(self.names, whole, content, groups_of(self._image), samples, seed)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the summed losses of each text, one number per record."""
        whole, content = zip(*self._scores, strict=True)
        for number in range(len(self._image)):
            yield {
                "tokens": int(whole[0].tokens[number]),
                "nll": [float(scores.nll[number]) for scores in whole],
                "content_tokens": int(content[0].tokens[number]),
                "content_nll": [float(scores.nll[number]) for scores in content],
            }
