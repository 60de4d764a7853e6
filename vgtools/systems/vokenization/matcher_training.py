"""Training and evaluation of the token-image matcher (section 3.2)."""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vgtools.analysis.recall import KS, at_k
from vgtools.io.arrays import Array, ranges
from vgtools.io.artifact import Features, read_manifest
from vgtools.io.errors import DataError, file_errors
from vgtools.io.files import open_npy
from vgtools.io.output import Output
from vgtools.io.process import Progress
from vgtools.io.settings import configured, entries
from vgtools.models.devices import to_device
from vgtools.models.encoder import Encoder
from vgtools.models.packed import PackedEncoder
from vgtools.models.references import pick_dtype
from vgtools.systems.vokenization.calibration import Calibration, fit_calibration
from vgtools.systems.vokenization.matcher import MatcherBatch, TokenImageMatcher, sentence_means
from vgtools.systems.vokenization.recipe import MatcherConfig
from vgtools.text.tokens import Tokens, content_mask, stem_key, tokenize, word_spans, written_words
from vgtools.training.loop import Batches
from vgtools.training.session import Session, epoch_means
from vgtools.training.splits import CaptionSplits, other_images, photo_marks
from vgtools.training.steps import plan_for, prefetch, train_config

_RAREST = 8.0  # nats, for a stem in one caption of 3,000; rarer stems count no more
_HALF = 50.0  # percent of captions: a judgement, far above chance for any bank worth learning
_LEARNED = 2000  # captions of training on which its own pairs are ranked
_PLAIN = 2.5  # nats, for words that show nothing: the rarity of a common noun


class MatcherCaptions(NamedTuple):
    """Captions of images, tokenised; S captions, T tokens, special tokens left out."""

    images: Array  # (S,) int64 feature row of each caption's image
    tokens: Tokens
    content: Array  # (T,) bool, part of a content word
    keys: Array  # (T,) int64 number of the word's stem, -1 outside content words
    holds: Holds
    rows: Array  # (S,) int64 number of each caption among the given texts, some without a token
    stems: Array  # (K,) str as objects, the stem of each number in `keys`, sorted


class Holds(NamedTuple):
    """Which image's captions hold which stem, sorted by image."""

    first: Array  # (largest image row + 2,) where each image starts in the next two
    keys: Array  # (P,)
    counts: Array  # (P,) captions of the image that hold it


def tokenize_captions(
    texts: Sequence[str],
    images: Sequence[int],
    tokenizer: Any,
    longest: int,
    stop_words: frozenset[str] | None = None,
    language: str = "en",
) -> tuple[MatcherCaptions, dict[str, int]]:
    """Tokenise captions and find their content words.

    The image of a caption is its feature row; tokens after the `longest`-th are cut off. Lower-case
    `stop_words` are not content words; by default our own list. Stems follow the language.

    Returns:
        The captions that hold a token, and counts of captions: `empty`, which are left out, and
        `cut`.
    """
    tokens = tokenize(tokenizer, texts)
    lengths = np.diff(tokens.starts)
    words = word_spans(texts, tokens.spans, tokens.starts)
    content = content_mask(texts, tokens.spans, tokens.starts, stop_words)
    written, word = written_words(texts, words, tokens.starts)
    found = {number: stem_key(written[number], language) for number in {*word[content].tolist()}}
    numbered = sorted({*found.values()})
    place = {stem: number for number, stem in enumerate(numbered)}
    keys = np.array([place[found[n]] if n in found else -1 for n in range(len(written))], np.int64)
    keys = np.where(content, keys[word], -1)
    kept = np.minimum(lengths, longest)
    places = ranges(tokens.starts[:-1], kept)
    some = kept > 0
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept[some])])
    image = np.asarray(images, np.int64)[some]
    cut = Tokens(tokens.ids[places], tokens.spans[places], starts)
    holds = _holds(np.repeat(image, kept[some]), keys[places], starts)
    numbers = np.flatnonzero(some)
    # As objects: in an array of strings each takes as much memory as the longest.
    stems = np.array(numbered, object)
    captions = MatcherCaptions(image, cut, content[places], keys[places], holds, numbers, stems)
    return captions, {"empty": int((~some).sum()), "cut": int((lengths > longest).sum())}


def stem_counts(captions: MatcherCaptions) -> Array:
    """Return how many captions hold each stem: (K,)."""
    holds = captions.holds
    return np.bincount(holds.keys, holds.counts, minlength=len(captions.stems))


def _holds(images: Array, keys: Array, starts: Array) -> Holds:
    """Count for each image the captions that hold each stem, from the tokens' images and keys."""
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    # A caption counts once, however often it holds a stem.
    once = np.unique(np.column_stack([images, keys, rows])[keys >= 0], axis=0)
    pairs, counts = np.unique(once[:, :2], axis=0, return_counts=True)
    top = int(images.max(initial=-1)) + 1
    return Holds(np.searchsorted(pairs[:, 0], np.arange(top + 1)), pairs[:, 1], counts)


class States(NamedTuple):
    """Hidden states of some sentences."""

    hidden: Tensor  # (T, D) their tokens, concatenated, float16
    means: Tensor  # (S, D)
    first: Tensor  # (S, D) [CLS]


class HiddenStates:
    """The frozen encoder's output for captions.

    It is computed once if it fits a memory budget, else whenever it is asked for; or once for all
    trainings with the same encoder and captions, in files that are mapped. All ways give the same
    numbers: float16, which halves the memory. They are held on the encoder's GPU if they take at
    most half of its free memory.

    `budget` is bytes that may be held; `watch` is called with the number of tokens done; `folder`
    is where files are kept.
    """

    def __init__(
        self,
        encoder: PackedEncoder,
        tokens: Tokens,
        budget: int,
        watch: Any = None,
        folder: str | None = None,
    ) -> None:
        self._encoder = encoder
        self._tokens = tokens
        self._lengths = np.diff(tokens.starts)
        self._width = encoder.layers * encoder.encoder.width
        sentences = len(self._lengths)
        size = 2 * self._width * (len(tokens.ids) + 2 * sentences)
        self.held = size if size <= budget and folder is None else 0  # bytes in memory
        self._kept: States | None = None
        if folder is not None:
            self._kept = self._in_files(Path(folder), watch)
        elif self.held or not size:
            kept = self._empty(len(tokens.ids), sentences, self._place(size))
            for part, states in self._blocks(watch):
                # A slice takes tensors of another device; rows given by their numbers do not.
                whole = slice(int(part[0]), int(part[-1]) + 1)
                span = slice(int(tokens.starts[whole.start]), int(tokens.starts[whole.stop]))
                kept.hidden[span] = states.hidden
                kept.means[whole] = states.means
                kept.first[whole] = states.first
            self._kept = kept

    def _blocks(self, watch: Any) -> Iterator[tuple[Array, States]]:
        """Yield the states of some sentences after the others, with the sentences' numbers."""
        for start in range(0, len(self._lengths), 4096):
            part = np.arange(start, min(start + 4096, len(self._lengths)))
            states = self._compute(part)
            yield part, states
            if watch is not None:
                watch(len(states.hidden))

    def _in_files(self, folder: Path, watch: Any) -> States:
        """Return the states in the files of a folder, written first unless they are there."""
        encoder = self._encoder.encoder
        marks = (encoder.prefix, encoder.suffix)
        made_by = (encoder.fingerprint, encoder.settings, *marks, self._encoder.layers)
        key = hashlib.sha256(repr((*made_by, self._encoder.device.type)).encode())
        key.update(self._tokens.ids.astype("<i8").tobytes())
        key.update(self._tokens.starts.astype("<i8").tobytes())
        with file_errors(folder, reading=False):
            folder.mkdir(parents=True, exist_ok=True)
        stem = key.hexdigest()[:16]
        files = [folder / f"{stem}{end}.npy" for end in ("", ".means", ".first")]
        config = {"command": "hidden-states", "key": key.hexdigest()}
        npy = dict.fromkeys(range(3), ("<f2", self._width))
        with Output(files, config, npy=npy, disposable=True) as out:
            for _, states in () if out.complete else self._blocks(watch):
                for number, array in enumerate(states):
                    out.write(array.numpy().data.cast("B"), file=number)
            if not out.complete:
                out.finish(kind="hidden-states", encoder=encoder.fingerprint)
        read_manifest(files[0], "hidden-states")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The maps are read-only, and nothing writes to them.
            return States(*(torch.from_numpy(open_npy(file, 2)) for file in files))

    def _place(self, size: int) -> torch.device:
        """Return the device that holds states of this size, in bytes."""
        device: torch.device = self._encoder.device
        if device.type == "cuda" and 2 * size < torch.cuda.mem_get_info(device)[0]:
            return device
        return torch.device("cpu")

    def _empty(self, tokens: int, sentences: int, place: torch.device | str = "cpu") -> States:
        return States(
            *(
                torch.empty(n, self._width, dtype=torch.float16, device=place)
                for n in (tokens, sentences, sentences)
            )
        )

    def take(self, sentences: Array, chosen: Array | None = None) -> States:
        """Return the states of sentences, in the order given, on the device that holds them.

        Args:
            sentences: their numbers.
            chosen: which of their tokens are asked for, (T,) bool; by default all.
        """
        if self._kept is None:
            states = self._compute(sentences)
            if chosen is None:
                return states
            return states._replace(hidden=states.hidden[torch.from_numpy(chosen)])
        place = self._kept.hidden.device
        rows = to_device(sentences, place)
        places = ranges(self._tokens.starts[sentences], self._lengths[sentences])
        if chosen is not None:
            places = places[chosen]
        hidden = self._kept.hidden[to_device(places, place)]
        return States(hidden, self._kept.means[rows], self._kept.first[rows])

    def _compute(self, sentences: Array) -> States:
        lengths = self._lengths[sentences]
        begin = np.cumsum(lengths) - lengths
        states = self._empty(int(lengths.sum()), len(lengths))
        for pack in self._encoder(self._tokens.ids, self._tokens.starts[sentences], lengths):
            hidden = pack.tokens.float().cpu()
            sizes = lengths[pack.segments]
            places = torch.from_numpy(ranges(begin[pack.segments], sizes))
            states.hidden[places] = hidden.half()
            rows = torch.from_numpy(pack.segments)
            # Means are taken before the states are rounded to half precision.
            states.means[rows] = sentence_means(hidden, torch.from_numpy(sizes)).half()
            states.first[rows] = pack.first.half().cpu()
        return states


def make_batches(
    captions: MatcherCaptions,
    states: HiddenStates,
    feats: Array,
    config: MatcherConfig,
    batch_size: int,
    seed: int,
    device: torch.device,
) -> Batches:
    """Return the batches of an epoch, a pure function of (seed, epoch), as `train` expects them.

    Captions are shuffled and cut into batches of equal size, at most `batch_size`.
    """
    size = len(captions.images)
    number = -(-size // batch_size)

    def batches(epoch: int, first: int) -> Iterator[MatcherBatch]:
        order = np.random.default_rng([seed, epoch]).permutation(size)
        for index, part in enumerate(np.array_split(order, number)):
            if index >= first:
                # Each batch has a generator of its own, so that a resumed epoch can start at any
                # batch.
                rng = np.random.default_rng([seed, epoch, index])
                yield collate(captions, states, feats, config, np.sort(part), rng, device)

    return lambda epoch, first: prefetch(batches(epoch, first))


def collate(
    captions: MatcherCaptions,
    states: HiddenStates,
    feats: Array,
    config: MatcherConfig,
    sentences: Array,
    rng: np.random.Generator,
    device: torch.device | str = "cpu",
) -> MatcherBatch:
    """Build the batch of some captions.

    It has the tokens to learn from, their images, and the images that hold a token's stem.

    The captions are those with the (S,) numbers `sentences`; `rng` draws the tokens outside content
    words that are kept, and the negatives.
    """
    lengths = np.diff(captions.tokens.starts)[sentences]
    places = ranges(captions.tokens.starts[sentences], lengths)
    # Every token draws a number, whatever `stop_share` is, so that the negatives drawn afterwards
    # do not depend on it.
    draw = rng.random(len(places))
    if config.level == "sentence":
        taken = states.take(sentences, np.zeros(len(places), bool))
        hidden = taken.first
        rows = np.arange(len(sentences))
        keys = np.full(len(sentences), -1)
    else:
        kept = captions.content[places] | (draw < config.stop_share)
        if not kept.any():  # A batch of stop words alone would have no loss.
            kept[:] = True
        taken = states.take(sentences, kept)
        hidden = taken.hidden
        rows = np.repeat(np.arange(len(sentences)), lengths)[kept]
        keys = captions.keys[places][kept]
    image = captions.images[sentences]
    if config.loss == "hinge":
        # Counting on from the caption's own image, around the circle of all images, draws every
        # other image with the same probability.
        bank = np.unique(captions.images)
        place = np.searchsorted(bank, image)
        negative = bank[(place + rng.integers(1, len(bank), len(image))) % len(bank)]
    else:
        negative = image
    distinct = np.unique(np.concatenate([image, negative]))
    own = np.searchsorted(distinct, image)
    other = np.searchsorted(distinct, negative)
    numbers, compact = np.unique(keys, return_inverse=True)
    # -1, if it occurs, is the first of the sorted numbers.
    compact = np.where(keys >= 0, compact - int(numbers[0] < 0), -1)
    holders = _holders(captions.holds, distinct, numbers[numbers >= 0])

    def indices(array: Array) -> Tensor:
        return to_device(np.ascontiguousarray(array, np.int64), device)

    weights = None
    if config.rarity:
        weights = to_device(_rarities(captions, keys) ** config.rarity, device).float()
    return MatcherBatch(
        hidden=to_device(hidden, device).float(),
        rows=indices(rows),
        means=to_device(taken.means, device).float(),
        feats=to_device(np.asarray(feats[distinct], np.float32), device),
        own=indices(own[rows]),
        other=indices(other[rows]),
        keys=indices(compact),
        holders=to_device(holders, device),
        weights=weights,
    )


def _rarities(captions: MatcherCaptions, keys: Array) -> Array:
    """Return how rare the stems of tokens are: (T,) nats, of the share of captions that hold it."""
    share = np.maximum(stem_counts(captions), 1) / len(captions.images)
    known = np.minimum(-np.log(share), _RAREST)
    return np.where(keys >= 0, np.append(known, 0.0)[keys], _PLAIN)


def _holders(holds: Holds, images: Array, keys: Array) -> Array:
    """Return (K, C) shares of the images in each key, by how many of their captions hold it."""
    begin = holds.first[images]
    counts = holds.first[images + 1] - begin
    places = ranges(begin, counts)
    column = np.repeat(np.arange(len(images)), counts)
    row = np.searchsorted(keys, holds.keys[places])
    known = row < len(keys)
    known[known] = keys[row[known]] == holds.keys[places][known]
    table = np.zeros((len(keys), len(images)), np.float32)
    table[row[known], column[known]] = holds.counts[places][known]
    table /= np.maximum(table.sum(1, keepdims=True), 1e-9)
    return table


class Ranked(NamedTuple):
    """The ranks of the own images among all images, for a block of captions."""

    sentences: Array  # (S,)
    ranks: Array  # (T,) rank of each token's own image, 0 is best; T is 0 with `level="sentence"`
    top: Array  # (T,) feature row of the most relevant image
    scores: Array  # (T,) float32, the relevance of `top`
    others: Array  # (T,) feature row of the most relevant image other than the own
    caption_ranks: Array  # (S,) rank of the caption's own image


@torch.inference_mode()
def rank_captions(
    matcher: TokenImageMatcher,
    captions: MatcherCaptions,
    states: HiddenStates,
    feats: Array,
    bank: Array | None = None,
) -> Iterator[Ranked]:
    """Rank the own image of every token and caption among a bank of images, block by block.

    A caption's embedding is the normalised mean of its tokens' (`level="sentence"`: the embedding
    of [CLS]). Among images of the same relevance the lower row comes first, as in retrieval: a
    matcher that cannot tell images apart gets no credit.

    The features are (N, D), of all images; `bank` are the rows of them to search, by default the
    captions' own images. The ranks of a caption whose image is not among them mean nothing.

    Yields:
        Blocks in caption order; memory does not grow with the number of captions.
    """
    device = next(matcher.parameters()).device
    bank = np.unique(captions.images) if bank is None else np.unique(bank)
    images = _embed_all(matcher, feats, bank, device)
    lengths = np.diff(captions.tokens.starts)
    for start in range(0, len(captions.images), 256):
        sentences = np.arange(start, min(start + 256, len(captions.images)))
        taken = states.take(sentences)
        own = np.minimum(np.searchsorted(bank, captions.images[sentences]), len(bank) - 1)
        if matcher.config.level == "sentence":
            whole = matcher.embed_sentences(taken.first.to(device))
            ranks = top = others = np.empty(0, np.int64)
            scores = np.empty(0, np.float32)
        else:
            owner = np.repeat(np.arange(len(sentences)), lengths[sentences])
            rows = torch.from_numpy(owner).to(device)
            tokens = matcher.project_tokens(taken.hidden.to(device), taken.means.to(device), rows)
            # The sum has the direction of the mean.
            sums = tokens.new_zeros(len(sentences), tokens.shape[1]).index_add_(0, rows, tokens)
            whole = F.normalize(sums, dim=1)
            ranks, top, scores, others = _ranks(tokens, images, own[owner])
        whole_ranks = _ranks(whole, images, own)[0]
        yield Ranked(sentences, ranks, bank[top], scores, bank[others], whole_ranks)


def _embed_all(
    matcher: TokenImageMatcher, feats: Array, bank: Array, device: torch.device
) -> Tensor:
    """Return the embeddings of some rows of the features, (len(bank), E)."""
    parts = [
        matcher.embed_images(torch.from_numpy(np.asarray(feats[part], np.float32)).to(device))
        for part in np.array_split(bank, -(-len(bank) // 4096))
    ]
    return torch.cat(parts)


def rank_all(
    matcher: TokenImageMatcher,
    captions: MatcherCaptions,
    states: HiddenStates,
    feats: Array,
    bank: Array | None = None,
) -> Ranked:
    """Return the blocks of `rank_captions` as one, with dropout off."""
    was_training = matcher.training
    matcher.eval()
    blocks = list(rank_captions(matcher, captions, states, feats, bank))
    matcher.train(was_training)
    return Ranked(*(np.concatenate(part) for part in zip(*blocks, strict=True)))


def _ranks(queries: Tensor, images: Tensor, own: Array) -> tuple[Array, Array, Array, Array]:
    """Return the rank of each query's own image, its best image, the best image's relevance, and
    the best of the other images.
    """
    ranks = np.empty(len(own), np.int64)
    top = np.empty(len(own), np.int64)
    best = np.empty(len(own), np.float32)
    others = np.empty(len(own), np.int64)
    order = torch.arange(len(images), device=queries.device)
    size = max(1, (1 << 24) // len(images))  # blocks of about 64 MB of scores
    for start in range(0, len(own), size):
        block = slice(start, start + size)
        scores = queries[block] @ images.T
        mine = torch.from_numpy(own[block]).to(queries.device)[:, None]
        true = scores.gather(1, mine)
        # Ties go to the lower row, so that a matcher that gives all images one score is not
        # credited.
        better = (scores > true) | ((scores == true) & (order < mine))
        ranks[block] = better.sum(1).cpu().numpy()
        first = scores.argmax(1)
        best[block] = scores.gather(1, first[:, None])[:, 0].float().cpu().numpy()
        top[block] = first.cpu().numpy()
        others[block] = scores.scatter(1, mine, -torch.inf).argmax(1).cpu().numpy()
    return ranks, top, best, others


def recall(ranks: Array) -> dict[str, float]:
    """Return R@1, R@5 and R@10 in percent from ranks that start at 0."""
    return at_k(ranks + 1)


def evaluate_matcher(
    matcher: TokenImageMatcher,
    captions: MatcherCaptions,
    states: HiddenStates,
    feats: Array,
    bank: Array | None = None,
    used: bool = False,
) -> dict[str, Any]:
    """Measure true recall: the own image among the first k of the whole bank.

    Returns:
        Percent under `chance` (a random order), `word` (all tokens), `content` (tokens of content
        words) and `caption`, each `r1`, `r5`, `r10`; `concept`, how often the first image of a
        content token has a caption that holds its stem; and `images`, the size of the bank. With
        `used` also that: the number of images that a token finds first.

    Source: recall against the whole image set is in the published code; its recall within
        validation batches is not true recall, and off by one.
    """
    size = len(np.unique(captions.images if bank is None else bank))
    ranked = rank_all(matcher, captions, states, feats, bank)
    more = {"used": len(np.unique(ranked.top))} if used else {}
    return {"images": size, **more, "chance": chance(size), **recalls(captions, ranked)}


def learned_pairs(
    matcher: TokenImageMatcher, captions: MatcherCaptions, states: HiddenStates, feats: Array
) -> dict[str, Any]:
    """Measure the recall of the pairs that were learned from, on the first captions of training.

    Returns:
        As `evaluate_matcher`, among all images of training; and of these captions `captions` and
        `tokens`, their numbers, and `used`, the number of images that a token finds first.
    """
    count = min(_LEARNED, len(captions.images))
    end = int(captions.tokens.starts[count])
    tokens = Tokens(
        captions.tokens.ids[:end], captions.tokens.spans[:end], captions.tokens.starts[: count + 1]
    )
    first = captions._replace(
        images=captions.images[:count],
        tokens=tokens,
        content=captions.content[:end],
        keys=captions.keys[:end],
        rows=captions.rows[:count],
    )
    ranked = rank_all(matcher, first, states, feats, captions.images)
    size = len(np.unique(captions.images))
    used = {
        "captions": count,
        "tokens": len(ranked.top),
        "used": len(np.unique(ranked.top)),
    }
    return {"images": size, **used, "chance": chance(size), **recalls(first, ranked)}


def collapsed(learned: Mapping[str, Any]) -> str:
    """Return why a matcher has not learned its own pairs, empty if it has.

    It has not if less than half of its captions find their image among the first 10, or if its
    tokens use less than a tenth of the images that as many random ones would.
    """
    size = learned["images"]
    found = learned["caption"]["r10"]
    random = size * (1 - (1 - 1 / size) ** learned["tokens"])
    if found >= _HALF and learned["used"] >= random / 10:
        return ""
    why = f"its tokens use {learned['used']} of {size} images, and {found:.1f} % of its captions"
    return f"the matcher has not learned its permuted pairs: {why} find theirs among 10"


def chance(size: int) -> dict[str, float]:
    """Return the recall of a random order of `size` images, in percent."""
    return {f"r{k}": round(100 * min(1.0, k / size), 2) for k in KS}


def recalls(captions: MatcherCaptions, ranked: Ranked) -> dict[str, Any]:
    """Return the recalls of `evaluate_matcher`, of words only where they were ranked."""
    result: dict[str, Any] = {}
    if len(ranked.ranks):
        hits = concept_hits(captions, ranked)
        result["word"] = recall(ranked.ranks)
        result["content"] = recall(ranked.ranks[captions.content])
        result["concept"] = round(100 * float(hits.mean()), 2) if len(hits) else 0.0
    result["caption"] = recall(ranked.caption_ranks)
    return result


def concept_hits(captions: MatcherCaptions, ranked: Ranked) -> Array:
    """Return for each token of a content word whether its best image has a caption with it."""
    content = captions.content
    return holds_stem(captions.holds, ranked.top[content], captions.keys[content])


def score(measured: Mapping[str, Any] | None) -> float:
    """Return the score by which the best epoch is chosen, 0 if not measured.

    It is R@10 of content words plus concept hit; with `level="sentence"` R@10 of captions.
    """
    if not measured:
        return 0.0
    if "content" in measured:
        return float(measured["content"]["r10"] + measured["concept"])
    return float(measured["caption"]["r10"])


def holds_stem(holds: Holds, images: Array, keys: Array) -> Array:
    """Return for each pair whether a caption of the image holds the stem."""
    if not len(holds.keys):
        return np.zeros(len(keys), bool)
    # A pair becomes one number, so that a single test of membership answers all pairs.
    base = int(holds.keys.max()) + 1
    owner = np.repeat(np.arange(len(holds.first) - 1), np.diff(holds.first))
    inside = images < len(holds.first) - 1
    return np.isin(np.where(inside, images * base + keys, -1), owner * base + holds.keys)


def fit(
    session: Session,
    encoder: Encoder,
    bank: Features,
    splits: CaptionSplits,
    stop_words: frozenset[str],
    budget: int,
    cache: str | None = None,
) -> None:
    """Train a matcher to its last epoch, and write the run with that or the best.

    The run of the session holds the settings; `budget` is bytes of memory for hidden states, which
    `cache`, a folder, keeps for other trainings.

    Raises:
        DataError: fewer than 2 images to train on, or as `Session.fit`.
    """
    run = session.run
    config = run.config
    permuted = config.get("permute_images") is not None
    packed = PackedEncoder(encoder, config["layers"])
    data: dict[str, tuple[MatcherCaptions, HiddenStates]] = {}
    left_out: dict[str, dict[str, int]] = {}
    what = "train-matcher: hidden states"
    with Progress(what, "tokens", quiet=session.quiet) as bar:

        def watch(tokens: int) -> None:
            bar.advance(tokens)
            session.stop.check()

        for name, rows in (("train", splits.train), ("valid", splits.valid)):
            if rows:
                images, texts = zip(*rows, strict=True)
                if permuted:
                    images = other_images(images, config["permute_images"]).tolist()
                captions, left_out[name] = tokenize_captions(
                    texts,
                    images,
                    encoder.tokenizer,
                    encoder.max_tokens,
                    stop_words,
                    config.get("language", "en"),
                )
                states = HiddenStates(packed, captions.tokens, budget, watch, cache)
                data[name] = captions, states
                # Memory that the states for training hold is not left for those for validation.
                budget -= states.held
    for name, counts in left_out.items():
        if any(counts.values()):
            session.note(
                f"{name}: {counts['empty']} captions without a token left out, {counts['cut']} cut "
                f"to {encoder.max_tokens} tokens"
            )
    captions, states = data["train"]
    if len(set(captions.images.tolist())) < 2:
        why = "captions of fewer than 2 images hold a token; there is nothing to distinguish"
        raise DataError(why)
    widths = {"text_width": packed.layers * encoder.width, "image_width": bank.array.shape[1]}
    shape = configured(MatcherConfig, config, **widths)
    torch.manual_seed(config["seed"])
    matcher = TokenImageMatcher(shape).to(session.device)
    matcher.dtype = pick_dtype(config.get("dtype", "float32"))
    size = config["batch_size"]
    batches = make_batches(
        captions, states, bank.array, shape, size, config["seed"], session.device
    )
    plan = plan_for(len(captions.images), {**config, "steps": None})
    settings = train_config({**config, "weight_decay": 0.0, "clip": 5.0}, plan)
    records = session.fit(matcher, batches, settings, weights=matcher.losses)
    for record in epoch_means(records, run.state.notes, plan.per_epoch):
        measured: Mapping[str, Any] | None = None
        if permuted:
            record["learned"] = learned_pairs(matcher, captions, states, bank.array)
        if "valid" in data:
            measured = evaluate_matcher(matcher, *data["valid"], bank.array, used=permuted)
            record["valid"] = measured
        # Nothing that permuted pairs teach holds for other images.
        last = permuted or config.get("keep") == "last"
        run.end_epoch(matcher, record, record["epoch"] if last else score(measured))
    why = collapsed(learned_pairs(matcher, captions, states, bank.array)) if permuted else ""
    if why:
        session.note(f"warning: {why}; train for more --epochs, or with a lower --dropout")
    facts = {
        "matcher": entries(shape),
        "backbone": bank.made_by,
        "left_out": left_out,
        "learned_photos": photo_marks(bank.ids[image] for image, _ in splits.train),
    }
    if "valid" in data and shape.level == "token":
        # The probabilities have to belong to the weights that the run keeps.
        matcher.load_state_dict(run.best_weights())
        model = calibrate(matcher, data["train"], data["valid"], bank.array)
        facts["calibration"] = dataclasses.asdict(model)
    session.finish(lambda: (facts, encoder))


def calibrate(
    matcher: TokenImageMatcher,
    train: tuple[MatcherCaptions, HiddenStates],
    valid: tuple[MatcherCaptions, HiddenStates],
    feats: Array,
) -> Calibration:
    """Fit the probability that a voken is right, on captions held out of training.

    Their content words search the images of the training captions; a voken is right if one of its
    image's captions holds the word's stem.
    """
    known, _ = train
    captions, states = valid
    ranked = rank_all(matcher, captions, states, feats, known.images)
    content = captions.content
    stems = captions.stems[captions.keys[content]]
    place = np.minimum(np.searchsorted(known.stems, stems), max(0, len(known.stems) - 1))
    # The two sets of captions number their stems separately; a stem that training never met has no
    # photo and cannot be right.
    same = known.stems[place] == stems
    right = same & holds_stem(known.holds, ranked.top[content], np.where(same, place, 0))
    counts = dict(zip(known.stems.tolist(), stem_counts(known).astype(int).tolist(), strict=True))
    return fit_calibration(ranked.scores[content], stems.tolist(), right, counts)
