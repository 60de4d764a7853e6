"""Vokenization (Tan & Bansal 2020): the contextual token-image matching model, its training and its evaluation.

    r(w_i, x; s) = f(w_i; s) . g(x)        section 3.2

f projects the frozen text encoder's hidden state of a token, g the frozen backbone's feature of an image, into one space of
unit vectors, where the most relevant image of a token, its voken, is the nearest one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.checkpoint import Run, as_config, open_run
from vgtools.nn import TILE, PackedEncoder
from vgtools.text import Tokens, content_mask, stem_key, tokenize, word_spans
from vgtools.training.loop import Batches

Array = np.ndarray[Any, Any]

# --------------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class MatcherConfig:
    """What a matcher is and what it learns from; stands in `run.json`.

    The defaults are the recipe that measured best (examples/vokenization/NOTES.md); `--preset paper`
    is the paper's.

    Attributes:
        text_width: `layers` times the width of the text encoder.
        image_width: D, channels of the image features.
        level: `token`, or `sentence`: [CLS] against the image (appendix A.4).
        layers: last layers of the text encoder, concatenated.
        hidden: width of the hidden layer of the MLPs.
        dim: E, width of the shared space.
        dropout: behind the hidden layer, in training.
        sentence: add a projection of the sentence's mean hidden state to each of its tokens.
        root: take the square root of the image features (sign kept), which tames their few large channels.
        loss: `info_nce`, every other photo of the batch a negative; or `hinge`, one random other photo.
        margin: M of the hinge.
        share: InfoNCE: part of a content word's target that all photos of the batch share whose captions hold its stem.
        stop_share: part of the tokens outside content words that a step learns from, drawn anew each time.
    """

    text_width: int
    image_width: int
    level: str = "token"
    layers: int = 4
    hidden: int = 512
    dim: int = 256
    dropout: float = 0.3
    sentence: bool = True
    root: bool = True
    loss: str = "info_nce"
    margin: float = 0.5
    share: float = 0.7
    stop_share: float = 0.3


class TokenImageMatcher(nn.Module):
    """Score tokens of a sentence against images: MLPs over frozen features, into one space of unit vectors.

    Source: Tan & Bansal 2020 (Vokenization), section 3.2, appendix A.1; appendix A.4 for `level="sentence"`.
    Deviation: with `config.sentence` a token also sees the mean hidden state of its sentence; `--preset paper` does not.
    """

    def __init__(self, config: MatcherConfig) -> None:
        super().__init__()
        self.config = config
        self.text = _mlp(config.text_width, config)
        self.image = _mlp(config.image_width, config)
        self.context = _mlp(config.text_width, config) if config.sentence and config.level == "token" else None
        if config.loss == "info_nce":
            self.log_scale = nn.Parameter(torch.tensor(math.log(14.0)))  # of the logits; learned

    def embed_tokens(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return f(w; s) of packed tokens; a sentence's embeddings do not depend on its neighbours.

        Args:
            hidden: (T, text_width) the concatenated hidden states of S sentences behind one another, no special tokens.
            lengths: (S,) int64 tokens of each sentence, summing to T; 0 is allowed.

        Returns:
            (T, E) unit vectors, float32.
        """
        kept = lengths[lengths > 0]
        means = sentence_means(hidden, kept) if self.context is not None else hidden[:0]
        return self.project_tokens(hidden, means, torch.repeat_interleave(kept))

    def project_tokens(self, hidden: Tensor, means: Tensor, rows: Tensor) -> Tensor:
        """Return f(w; s) of tokens whose sentences' means are known.

        Args:
            hidden: (T, text_width) hidden states of any tokens.
            means: (S, text_width) mean hidden state of each sentence; unused without `config.sentence`.
            rows: (T,) int64 the sentence of each token.

        Returns:
            (T, E) unit vectors, float32.
        """
        found = _project(self.text, hidden)
        if self.context is not None:
            found = found + F.embedding(rows, _project(self.context, means))
        return F.normalize(found, dim=1)

    def embed_sentences(self, first: Tensor) -> Tensor:
        """Return f(s) of sentences from the hidden states of their [CLS], (S, text_width) -> (S, E) unit vectors."""
        return F.normalize(_project(self.text, first), dim=1)

    def embed_images(self, feats: Tensor) -> Tensor:
        """Return g(x) of image features, (N, image_width) -> (N, E) unit vectors, float32."""
        feats = feats.float()
        return F.normalize(_project(self.image, feats.sign() * feats.abs().sqrt() if self.config.root else feats), dim=1)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of a batch under its name."""
        if self.config.level == "sentence":
            text = self.embed_sentences(batch.hidden)
        else:
            text = self.project_tokens(batch.hidden, batch.means, batch.rows)
        images = self.embed_images(batch.feats)
        if self.config.loss == "hinge":
            return {"hinge": hinge_loss(text, images[batch.own], images[batch.other], self.config.margin)}
        scale = self.log_scale.clamp(max=math.log(100.0)).exp()
        return {"info_nce": info_nce(text, batch.own, images, scale, batch.keys, batch.holders, self.config.share)}


def _mlp(width: int, config: MatcherConfig) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, config.hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(config.hidden, config.dim)
    )


def _project(mlp: nn.Sequential, rows: Tensor) -> Tensor:
    """Run an MLP over rows in float32; whole tiles of rows, so that no row depends on how many others there are."""
    size = len(rows)
    tiled = rows.float() if mlp.training else F.pad(rows.float(), (0, 0, 0, -size % TILE))
    return mlp(tiled)[:size]  # type: ignore[no-any-return]


def sentence_means(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean hidden state of each sentence, (T, D) and (S,) lengths of at least 1 -> (S, D) float32."""
    return torch.segment_reduce(hidden.float(), "mean", lengths=lengths, axis=0, unsafe=True)


def load_matcher(path: str | Path, *, device: str = "cpu") -> tuple[TokenImageMatcher, Run]:
    """Open a run of `vg train-matcher`: the matcher in eval mode, and the run (`run.info`, `run.fingerprint`).

    The encoder it was trained with is `checkpoint.load_encoder(path)`.

    Raises:
        DataError: no finished run (66), of another kind or damaged (65), or from a later version (78).
    """
    from vgtools.checkpoint import pick_device

    run = open_run(path, "matcher")
    matcher = TokenImageMatcher(as_config(MatcherConfig, run.info["matcher"], run.path / "run.json"))
    matcher.load_state_dict(run.weights)
    return matcher.eval().requires_grad_(False).to(pick_device(device)), run


# ------------------------------------------------------------------------------------------------------------------ losses


def hinge_loss(tokens: Tensor, images: Tensor, negatives: Tensor, margin: float = 0.5) -> Tensor:
    """Return the margin by which true images fail to beat random ones, per token.

    Every token of a caption is weakly aligned with the caption's image.

    Args:
        tokens: (T, E) token embeddings f(w; s), unit norm.
        images: (T, E) embedding g(x) of each token's own image.
        negatives: (T, E) embedding of another image for each token.
        margin: M, on the cosine scale (relevance lies in [-1, 1]).

    Returns:
        Scalar >= 0. Gradient reaches all three embeddings.

    Raises:
        ValueError: shapes disagree.

    Source: Tan & Bansal 2020 (Vokenization), section 3.2, "Training"; appendix A.4 for sentences.
    Deviation: mean over tokens; the paper sums. Multiply by T for its value.
    """
    if not tokens.shape == images.shape == negatives.shape:
        raise ValueError(
            f"one image and one negative a token are wanted, (T, E) each; given {tuple(tokens.shape)}, "
            f"{tuple(images.shape)}, {tuple(negatives.shape)}"
        )
    return F.relu(margin - (tokens * images).sum(1) + (tokens * negatives).sum(1)).mean()


def info_nce(
    tokens: Tensor, own: Tensor, images: Tensor, scale: Tensor, keys: Tensor, holders: Tensor, share: float = 0.7
) -> Tensor:
    """Return the cross entropy of choosing a token's images among all of the batch.

    A token's target is its own image; for a token with a key, the part `share` of the target is spread over all images that
    hold the key, so that a photo of another dog is no negative for "dog".

    Args:
        tokens: (T, E) token embeddings, unit norm.
        own: (T,) row of each token's own image.
        images: (C, E) embeddings of distinct images.
        scale: scalar, what cosines are multiplied by.
        keys: (T,) row of `holders`, or -1 for none.
        holders: (K, C) how a key's share is spread over the images; rows sum to 1.
        share: 0 is plain InfoNCE.

    Returns:
        Scalar, mean over tokens.

    Raises:
        ValueError: shapes disagree.

    Deviation: not in Tan & Bansal 2020, which takes `hinge_loss`.
    """
    if len(own) != len(tokens) or len(keys) != len(tokens) or holders.shape[1] != len(images):
        raise ValueError(
            f"wanted own (T,), keys (T,), holders (K, C) for tokens {tuple(tokens.shape)}, images "
            f"{tuple(images.shape)}; given {tuple(own.shape)}, {tuple(keys.shape)}, {tuple(holders.shape)}"
        )
    logits = scale * tokens @ images.T  # (T, C)
    target = logits.gather(1, own[:, None])[:, 0]
    if share and len(holders):
        # The mean logit over a key's images is the logit of their mean embedding: no (T, C) target is built.
        part = share * (keys >= 0)
        shared = scale * (tokens * F.embedding(keys.clamp(min=0), holders @ images)).sum(1)
        target = (1 - part) * target + part * shared
    return (logits.logsumexp(1) - target).mean()


# ---------------------------------------------------------------------------------------------------------------- captions


class Captions(NamedTuple):
    """Captions of images, tokenised; S captions, T tokens, special tokens left out."""

    images: Array  # (S,) int64 feature row of each caption's image
    tokens: Tokens
    content: Array  # (T,) bool, part of a content word
    keys: Array  # (T,) int64 number of the word's stem, -1 outside content words
    holds: Holds


class Holds(NamedTuple):
    """Which image's captions hold which stem, sorted by image."""

    first: Array  # (largest image row + 2,) where each image starts in the next two
    keys: Array  # (P,)
    counts: Array  # (P,) captions of the image that hold it


def read_captions(
    texts: Sequence[str], images: Sequence[int], tokenizer: Any, longest: int, stop_words: frozenset[str] | None = None
) -> tuple[Captions, dict[str, int]]:
    """Tokenise captions and find their content words.

    Args:
        texts: S captions.
        images: feature row of each.
        tokenizer: of the text encoder.
        longest: tokens a caption may have; more are cut off.
        stop_words: lower-case words that are no content words; our own list if None.

    Returns:
        The captions that hold a token, and counts of what was left out: `empty` captions, `cut` ones.
    """
    tokens = tokenize(tokenizer, texts)
    lengths = np.diff(tokens.starts)
    words = word_spans(texts, tokens.spans, tokens.starts)
    content = content_mask(texts, tokens.spans, tokens.starts, stop_words)
    rows = np.repeat(np.arange(len(texts)), lengths)
    keys = np.full(len(rows), -1, np.int64)
    if content.any():
        found, inverse = np.unique(np.column_stack([rows, words])[content], axis=0, return_inverse=True)
        stems = np.array([stem_key(texts[r][a:b]) for r, a, b in found.tolist()], object)
        keys[content] = np.unique(stems.astype(str), return_inverse=True)[1][inverse.reshape(-1)]
    kept = np.minimum(lengths, longest)
    where = _ranges(tokens.starts[:-1], kept)
    some = kept > 0
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept[some])])
    image = np.asarray(images, np.int64)[some]
    cut = Tokens(tokens.ids[where], tokens.spans[where], starts)
    captions = Captions(image, cut, content[where], keys[where], _holds(np.repeat(image, kept[some]), keys[where], starts))
    return captions, {"empty": int((~some).sum()), "cut": int((lengths > longest).sum())}


def _holds(images: Array, keys: Array, starts: Array) -> Holds:
    """Count for each image its captions that hold each stem, from the tokens' images and keys."""
    rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    once = np.unique(np.column_stack([images, keys, rows])[keys >= 0], axis=0)  # a caption counts once
    pairs, counts = np.unique(once[:, :2], axis=0, return_counts=True)
    top = int(images.max(initial=-1)) + 1
    return Holds(np.searchsorted(pairs[:, 0], np.arange(top + 1)), pairs[:, 1], counts)


def _ranges(starts: Array, lengths: Array) -> Array:
    """Return start, start + 1, … (length of them) for each pair, behind one another."""
    ends = np.cumsum(lengths)
    found: Array = np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)
    return found


class States(NamedTuple):
    """Hidden states of some sentences."""

    hidden: Tensor  # (T, D) their tokens behind one another, float16
    means: Tensor  # (S, D)
    first: Tensor  # (S, D) [CLS]


class HiddenStates:
    """The frozen encoder's output for captions: computed once if it fits a memory budget, else whenever it is asked for.

    Both ways give the same numbers: float16, which halves the memory.

    Args:
        encoder: the text encoder.
        tokens: the captions' tokens.
        budget: bytes that may be held.
        watch: called with the number of tokens done.
    """

    def __init__(self, encoder: PackedEncoder, tokens: Tokens, budget: int, watch: Any = None) -> None:
        self._encoder, self._tokens = encoder, tokens
        self._lengths = np.diff(tokens.starts)
        width = encoder.layers * encoder.encoder.width
        wanted = 2 * width * (len(tokens.ids) + 2 * len(self._lengths))
        self.held = 0  # bytes in memory
        self._kept: States | None = None
        if wanted <= budget:
            self.held = wanted
            kept = States(
                *(torch.empty(n, width, dtype=torch.float16) for n in (len(tokens.ids), len(self._lengths), len(self._lengths)))
            )
            for start in range(0, len(self._lengths), 4096):
                part = np.arange(start, min(start + 4096, len(self._lengths)))
                found = self._compute(part)
                at = slice(int(tokens.starts[part[0]]), int(tokens.starts[part[-1] + 1]))
                kept.hidden[at], kept.means[part], kept.first[part] = found.hidden, found.means, found.first
                if watch is not None:
                    watch(len(found.hidden))
            self._kept = kept

    def take(self, sentences: Array) -> States:
        """Return the states of sentences, in the order given, on the CPU."""
        if self._kept is None:
            return self._compute(sentences)
        where = _ranges(self._tokens.starts[sentences], self._lengths[sentences])
        rows = torch.from_numpy(sentences)
        return States(self._kept.hidden[torch.from_numpy(where)], self._kept.means[rows], self._kept.first[rows])

    def _compute(self, sentences: Array) -> States:
        lengths = self._lengths[sentences]
        begin = np.cumsum(lengths) - lengths
        width = self._encoder.layers * self._encoder.encoder.width
        found = States(*(torch.empty(n, width, dtype=torch.float16) for n in (int(lengths.sum()), len(lengths), len(lengths))))
        for pack in self._encoder(self._tokens.ids, self._tokens.starts[sentences], lengths):
            hidden = pack.tokens.float().cpu()
            sizes = lengths[pack.segments]
            found.hidden[torch.from_numpy(_ranges(begin[pack.segments], sizes))] = hidden.half()
            rows = torch.from_numpy(pack.segments)
            found.means[rows] = sentence_means(hidden, torch.from_numpy(sizes)).half()
            found.first[rows] = pack.first.half().cpu()
        return found


# ----------------------------------------------------------------------------------------------------------------- batches


class Batch(NamedTuple):
    """One step's data; T tokens (sentences with `level="sentence"`) of S sentences, C distinct images."""

    hidden: Tensor  # (T, text_width)
    rows: Tensor  # (T,) sentence of each token
    means: Tensor  # (S, text_width)
    feats: Tensor  # (C, image_width)
    own: Tensor  # (T,) image of each token
    other: Tensor  # (T,) another image, random, the same for all tokens of a sentence
    keys: Tensor  # (T,) row of `holders`, or -1
    holders: Tensor  # (K, C) rows sum to 1


def make_batches(
    captions: Captions,
    states: HiddenStates,
    feats: Array,
    config: MatcherConfig,
    batch_size: int,
    seed: int,
    device: torch.device,
) -> Batches:
    """Return the batches of an epoch as a pure function of (seed, epoch), as `train` wants them.

    Captions are shuffled and cut into batches of equal size, at most `batch_size`.
    """
    size = len(captions.images)
    number = -(-size // batch_size)

    def batches(epoch: int, first: int) -> Iterator[Batch]:
        order = np.random.default_rng([seed, epoch]).permutation(size)
        for index, part in enumerate(np.array_split(order, number)):
            if index >= first:
                rng = np.random.default_rng([seed, epoch, index])
                yield collate(captions, states, feats, config, np.sort(part), rng, device)

    return batches


def collate(
    captions: Captions,
    states: HiddenStates,
    feats: Array,
    config: MatcherConfig,
    sentences: Array,
    rng: np.random.Generator,
    device: torch.device | str = "cpu",
) -> Batch:
    """Build the batch of some captions: the tokens to learn from, the images, and who else holds a token's stem.

    Args:
        captions: all captions.
        states: their hidden states.
        feats: (N, image_width) features of all images.
        config: decides which tokens are learned from, and what they are compared with.
        sentences: (S,) the captions of this batch.
        rng: draws the tokens outside content words that are kept, and the negatives.
        device: where the batch goes.
    """
    found = states.take(sentences)
    starts, lengths = captions.tokens.starts[sentences], np.diff(captions.tokens.starts)[sentences]
    where = _ranges(starts, lengths)
    rows = np.repeat(np.arange(len(sentences)), lengths)
    draw = rng.random(len(where))
    if config.level == "sentence":
        hidden, rows, keys = found.first, np.arange(len(sentences)), np.full(len(sentences), -1)
    else:
        kept = captions.content[where] | (draw < config.stop_share)
        if not kept.any():  # a batch of nothing but stop words
            kept[:] = True
        hidden, rows, keys = found.hidden[torch.from_numpy(kept)], rows[kept], captions.keys[where][kept]
    image = captions.images[sentences]
    if config.loss == "hinge":
        # Any image of the bank but the caption's own: count on from it, around the circle of all images.
        bank = np.unique(captions.images)
        place = np.searchsorted(bank, image)
        negative = bank[(place + rng.integers(1, len(bank), len(image))) % len(bank)]
    else:
        negative = image
    distinct = np.unique(np.concatenate([image, negative]))
    own, other = np.searchsorted(distinct, image), np.searchsorted(distinct, negative)
    numbers, compact = np.unique(keys, return_inverse=True)
    compact = np.where(keys >= 0, compact - int(numbers[0] < 0), -1)  # -1, if there, is the first number
    holders = _holders(captions.holds, distinct, numbers[numbers >= 0])
    arrays = (rows, own[rows], other[rows], compact)
    at = [torch.from_numpy(np.ascontiguousarray(a, np.int64)).to(device) for a in arrays]
    bank_feats = torch.from_numpy(np.asarray(feats[distinct], np.float32)).to(device)
    return Batch(
        hidden.to(device).float(),
        at[0],
        found.means.to(device).float(),
        bank_feats,
        at[1],
        at[2],
        at[3],
        torch.from_numpy(holders).to(device),
    )


def _holders(holds: Holds, images: Array, keys: Array) -> Array:
    """Return (K, C): for each key the share of each image, by how many of the image's captions hold the key."""
    begin, end = holds.first[images], holds.first[images + 1]
    where = _ranges(begin, end - begin)
    column = np.repeat(np.arange(len(images)), end - begin)
    row = np.searchsorted(keys, holds.keys[where])
    wanted = row < len(keys)
    wanted[wanted] = keys[row[wanted]] == holds.keys[where][wanted]
    table = np.zeros((len(keys), len(images)), np.float32)
    table[row[wanted], column[wanted]] = holds.counts[where][wanted]
    table /= np.maximum(table.sum(1, keepdims=True), 1e-9)
    return table


# -------------------------------------------------------------------------------------------------------------- evaluation


class Ranked(NamedTuple):
    """Where the own image stands among all images, for a block of captions."""

    sentences: Array  # (S,)
    ranks: Array  # (T,) of each token's own image, 0 is best; T is 0 with `level="sentence"`
    top: Array  # (T,) feature row of the most relevant image
    caption_ranks: Array  # (S,) of the caption's own image


@torch.inference_mode()
def rank_captions(
    matcher: TokenImageMatcher, captions: Captions, states: HiddenStates, feats: Array, bank: Array | None = None
) -> Iterator[Ranked]:
    """Rank the own image of every token and caption among a bank of images, block by block.

    A caption's embedding is the normalised mean of its tokens' (`level="sentence"`: that of [CLS]). Among images of the same
    relevance the lower row comes first, as in retrieval: a matcher that cannot tell images apart gets no credit.

    Args:
        matcher: in eval mode.
        captions: the captions.
        states: their hidden states.
        feats: (N, D) features of all images.
        bank: rows of `feats` to search; the captions' own images if None. It must hold those.

    Yields:
        Blocks in caption order; memory does not grow with the number of captions.
    """
    device = next(matcher.parameters()).device
    bank = np.unique(captions.images) if bank is None else np.unique(bank)
    images = torch.cat(
        [
            matcher.embed_images(torch.from_numpy(np.asarray(feats[part], np.float32)).to(device))
            for part in np.array_split(bank, -(-len(bank) // 4096))
        ]
    )
    lengths = np.diff(captions.tokens.starts)
    for start in range(0, len(captions.images), 256):
        sentences = np.arange(start, min(start + 256, len(captions.images)))
        found = states.take(sentences)
        own = np.searchsorted(bank, captions.images[sentences])
        rows = np.repeat(np.arange(len(sentences)), lengths[sentences])
        if matcher.config.level == "sentence":
            whole = matcher.embed_sentences(found.first.to(device))
            ranks, top = np.empty(0, np.int64), np.empty(0, np.int64)
        else:
            at = torch.from_numpy(rows).to(device)
            tokens = matcher.project_tokens(found.hidden.to(device), found.means.to(device), at)
            whole = F.normalize(tokens.new_zeros(len(sentences), tokens.shape[1]).index_add_(0, at, tokens), dim=1)
            ranks, top = _ranks(tokens, images, own[rows])
        yield Ranked(sentences, ranks, bank[top], _ranks(whole, images, own)[0])


def _ranks(queries: Tensor, images: Tensor, own: Array) -> tuple[Array, Array]:
    """Return the rank of each query's own image and its best image, in blocks of about 64 MB of scores."""
    ranks, top = list[Tensor](), list[Tensor]()
    target = torch.from_numpy(own).to(queries.device)
    order = torch.arange(len(images), device=queries.device)
    for part, mine in zip(*(x.split(max(1, (1 << 24) // len(images))) for x in (queries, target)), strict=True):
        scores = part @ images.T
        true = scores.gather(1, mine[:, None])
        ranks.append(((scores > true) | ((scores == true) & (order < mine[:, None]))).sum(1))
        top.append(scores.argmax(1))
    return tuple(torch.cat(x).cpu().numpy() if x else np.empty(0, np.int64) for x in (ranks, top))  # type: ignore[return-value]


def recall(ranks: Array) -> dict[str, float]:
    """Return R@1, R@5 and R@10 in per cent from ranks that start at 0."""
    return {f"r{k}": round(100 * float((ranks < k).mean()), 2) if len(ranks) else 0.0 for k in (1, 5, 10)}


def evaluate_matcher(
    matcher: TokenImageMatcher, captions: Captions, states: HiddenStates, feats: Array, bank: Array | None = None
) -> dict[str, Any]:
    """Measure true recall: the own image among the first k of the whole bank.

    Returns:
        Per cent under `chance` (a random order), `word` (all tokens), `content` (those of content words) and `caption`, each
        `r1`, `r5`, `r10`; `concept`, how often the first image of a content token has a caption that holds its stem; and
        `images`, the size of the bank.

    Source: recall against the whole image set is in the published code; its recall within validation batches is not true
        recall, and off by one.
    """
    was_training = matcher.training
    matcher.eval()
    blocks = list(rank_captions(matcher, captions, states, feats, bank))
    matcher.train(was_training)
    size = len(np.unique(captions.images if bank is None else bank))
    result: dict[str, Any] = {"images": size, "chance": {f"r{k}": round(100 * min(1.0, k / size), 2) for k in (1, 5, 10)}}
    if matcher.config.level == "token":
        ranks, top = np.concatenate([b.ranks for b in blocks]), np.concatenate([b.top for b in blocks])
        result |= {"word": recall(ranks), "content": recall(ranks[captions.content])}
        hits = holds_stem(captions.holds, top[captions.content], captions.keys[captions.content])
        result["concept"] = round(100 * float(hits.mean()), 2) if len(hits) else 0.0
    result["caption"] = recall(np.concatenate([b.caption_ranks for b in blocks]))
    return result


def score(found: Mapping[str, Any] | None) -> float:
    """Return what the best epoch is chosen by: content words' R@10 plus concept hit; of sentences, R@10; 0 if not measured."""
    if not found:
        return 0.0
    return float(found["content"]["r10"] + found["concept"] if "content" in found else found["caption"]["r10"])


def holds_stem(holds: Holds, images: Array, keys: Array) -> Array:
    """Say for each pair whether a caption of the image holds the stem."""
    if not len(holds.keys):
        return np.zeros(len(keys), bool)
    base = int(holds.keys.max()) + 1
    owner = np.repeat(np.arange(len(holds.first) - 1), np.diff(holds.first))
    inside = images < len(holds.first) - 1
    return np.isin(np.where(inside, images * base + keys, -1), owner * base + holds.keys)


def matcher_config(settings: Mapping[str, Any], **shape: Any) -> MatcherConfig:
    """Return the part of the settings that the matcher has; the rest is the training's."""
    known = {key: value for key, value in settings.items() if key in MatcherConfig.__dataclass_fields__}
    return replace(MatcherConfig(**shape), **known)
