"""Vokenization (Tan & Bansal 2020): the contextual token-image matching model.

    r(w_i, x; s) = f(w_i; s) . g(x)        section 3.2

f projects the frozen text encoder's hidden state of a token, g the frozen backbone's feature of an
image, into one space of unit vectors, where the most relevant image of a token, its voken, is the
nearest image.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vgtools.models.packed import TILE
from vgtools.models.precision import autocast
from vgtools.models.runs import Run, load_network
from vgtools.systems.vokenization.recipe import MatcherConfig


class TokenImageMatcher(nn.Module):
    """Scores tokens of a sentence against images.

    MLPs over frozen features lead into one space of unit vectors.

    Source: Tan & Bansal 2020 (Vokenization), section 3.2, appendix A.1; appendix A.4 for
        `level="sentence"`.
    Deviation: with `config.sentence` a token also sees the mean hidden state of its sentence, with
        `config.context_weight` when matching; `--preset paper` does not. The paper also lacks
        `config.word_loss` and `config.rarity`.
    """

    def __init__(self, config: MatcherConfig) -> None:
        super().__init__()
        self.config = config
        self.dtype = torch.float32  # that training computes products in; weights stay float32
        self.text = _mlp(config.text_width, config)
        self.image = _mlp(config.image_width, config)
        self.context = (
            _mlp(config.text_width, config) if config.sentence and config.level == "token" else None
        )
        if config.loss == "info_nce":
            # The scale is learned as its logarithm, so that it stays positive.
            self.log_scale = nn.Parameter(torch.tensor(math.log(14.0)))
            if config.word_loss:
                self.log_word_scale = nn.Parameter(torch.tensor(math.log(14.0)))

    def embed_tokens(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return f(w; s) of packed tokens; a sentence's embeddings do not depend on its neighbours.

        Args:
            hidden: (T, text_width) the hidden states of S sentences, concatenated,
                without special tokens.
            lengths: (S,) int64 tokens of each sentence, summing to T; 0 is allowed.

        Returns:
            (T, E) unit vectors, float32.
        """
        # An empty sentence has no mean, and no token that would read one.
        kept = lengths[lengths > 0]
        means = sentence_means(hidden, kept) if self.context is not None else hidden[:0]
        return self.project_tokens(hidden, means, torch.repeat_interleave(kept))

    def project_tokens(self, hidden: Tensor, means: Tensor, rows: Tensor) -> Tensor:
        """Return f(w; s) of tokens whose sentences' means are known.

        Args:
            hidden: (T, text_width) hidden states of any tokens.
            means: (S, text_width) mean of each sentence; unused without `config.sentence`.
            rows: (T,) int64 the sentence of each token.

        Returns:
            (T, E) unit vectors, float32.
        """
        return F.normalize(self._in_context(_project(self.text, hidden), means, rows), dim=1)

    def _in_context(self, words: Tensor, means: Tensor, rows: Tensor) -> Tensor:
        """Return projected words (T, E) with the sentence term, if there is one."""
        if self.context is None:
            return words
        weight = 1.0 if self.training else self.config.context_weight
        return words + weight * F.embedding(rows, _project(self.context, means))

    def embed_sentences(self, first: Tensor) -> Tensor:
        """Return f(s) of sentences, (S, text_width) states of [CLS] -> (S, E) unit vectors."""
        return F.normalize(_project(self.text, first), dim=1)

    def embed_images(self, feats: Tensor) -> Tensor:
        """Return g(x) of image features, (N, image_width) -> (N, E) unit vectors, float32."""
        feats = feats.float()
        if self.config.root:
            feats = feats.sign() * feats.abs().sqrt()
        return F.normalize(_project(self.image, feats), dim=1)

    def forward(self, batch: MatcherBatch) -> dict[str, Tensor]:
        """Return the losses of a batch under their names."""
        with autocast(batch.hidden.device, self.dtype):
            words = _project(self.text, batch.hidden)
            text = words
            if self.config.level == "token":
                text = self._in_context(words, batch.means, batch.rows)
            images = self.embed_images(batch.feats)
        loss = {"hinge": self._hinge, "info_nce": self._info_nce}[self.config.loss]
        losses: dict[str, Tensor] = {
            self.config.loss: loss(batch, F.normalize(text, dim=1), images)
        }
        if "word" in self.losses:
            losses["word"] = self._word(batch, words, images)
        return losses

    @property
    def losses(self) -> dict[str, float]:
        """The names of the losses, and the weight of each."""
        by_word = self.config.loss == "info_nce" and self.config.level == "token"
        more = {"word": self.config.word_loss} if by_word and self.config.word_loss else {}
        return {self.config.loss: 1.0, **more}

    def _hinge(self, batch: MatcherBatch, text: Tensor, images: Tensor) -> Tensor:
        return hinge_loss(text, images[batch.own], images[batch.other], self.config.margin)

    def _info_nce(self, batch: MatcherBatch, text: Tensor, images: Tensor) -> Tensor:
        keyed = (batch.keys, batch.holders, self.config.share, batch.weights)
        return info_nce(text, batch.own, images, _scale(self.log_scale), *keyed)

    def _word(self, batch: MatcherBatch, words: Tensor, images: Tensor) -> Tensor:
        """Return the loss of content words without their sentence.

        The whole target is shared by the photos of the word's stem: alone, a word cannot know which
        of them its caption describes.
        """
        known = batch.keys >= 0
        text = F.normalize(words[known], dim=1)
        weights = None if batch.weights is None else batch.weights[known]
        keyed = (batch.keys[known], batch.holders, 1.0, weights)
        # A mean over no words would be NaN; this 0 still reaches the weights.
        if not len(text):
            return words.sum() * 0
        return info_nce(text, batch.own[known], images, _scale(self.log_word_scale), *keyed)


def _scale(log_scale: Tensor) -> Tensor:
    # As in CLIP: a scale above 100 makes the training unstable.
    return log_scale.clamp(max=math.log(100.0)).exp()


def _mlp(width: int, config: MatcherConfig) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, config.hidden),
        nn.ReLU(),
        nn.Dropout(config.dropout),
        nn.Linear(config.hidden, config.dim),
    )


def _project(mlp: nn.Sequential, rows: Tensor) -> Tensor:
    """Run an MLP in float32 over whole tiles of rows, so that no row depends on the number of
    rows.
    """
    size = len(rows)
    # Products of a few rows use other kernels, which round differently; see `TILE`.
    tiled = rows.float() if mlp.training else F.pad(rows.float(), (0, 0, 0, -size % TILE))
    return mlp(tiled)[:size].float()  # type: ignore[no-any-return]


def sentence_means(hidden: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean hidden state of each sentence.

    (T, D) and (S,) lengths of at least 1 -> (S, D) float32.
    """
    return torch.segment_reduce(hidden.float(), "mean", lengths=lengths, axis=0, unsafe=True)


def load_matcher(path: str | Path, *, device: str = "cpu") -> tuple[TokenImageMatcher, Run]:
    """Open a run of `vg train-matcher`: the matcher in eval mode, and the run.

    The encoder it was trained with is `load_encoder(path)`.

    Raises:
        DataError: no finished run (66), of another kind or damaged (65), or from a later version
            (78).
    """
    return load_network(path, "matcher", MatcherConfig, TokenImageMatcher, device)


def at_context(matcher: TokenImageMatcher, weight: float) -> TokenImageMatcher:
    """Return the same networks with another weight of the sentence term.

    0 matches the word alone, as its own hidden state shows it; 1 is the weight in training.

    Raises:
        ValueError: the matcher has no sentence term.
    """
    if matcher.context is None:
        raise ValueError("has no sentence term whose weight could change")
    other = copy.copy(matcher)  # A shallow copy shares the weights.
    other.config = dataclasses.replace(matcher.config, context_weight=weight)
    return other


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
            "expected one image and one negative per token, (T, E) each; got "
            f"{tuple(tokens.shape)}, {tuple(images.shape)}, {tuple(negatives.shape)}"
        )
    return F.relu(margin - (tokens * images).sum(1) + (tokens * negatives).sum(1)).mean()


def info_nce(
    tokens: Tensor,
    own: Tensor,
    images: Tensor,
    scale: Tensor,
    keys: Tensor,
    holders: Tensor,
    share: float = 0.7,
    weights: Tensor | None = None,
) -> Tensor:
    """Return the cross entropy of choosing a token's images among all of the batch.

    A token's target is its own image; for a token with a key, the part `share` of the target is
    spread over all images that hold the key, so that a photo of another dog is not a negative for
    "dog".

    Args:
        tokens: (T, E) token embeddings, unit norm.
        own: (T,) row of each token's own image.
        images: (C, E) embeddings of distinct images.
        scale: scalar, factor of the cosines.
        keys: (T,) row of `holders`, or -1 for none.
        holders: (K, C) how a key's share is spread over the images; rows sum to 1.
        share: 0 is plain InfoNCE.
        weights: (T,) how much each token counts; None: all the same.

    Returns:
        Scalar, mean over tokens.

    Raises:
        ValueError: shapes disagree.

    Deviation: not in Tan & Bansal 2020, which takes `hinge_loss`.
    """
    if len(own) != len(tokens) or len(keys) != len(tokens) or holders.shape[1] != len(images):
        raise ValueError(
            f"expected own (T,), keys (T,), holders (K, C) for tokens {tuple(tokens.shape)}, "
            f"images {tuple(images.shape)}; got {tuple(own.shape)}, {tuple(keys.shape)}, "
            f"{tuple(holders.shape)}"
        )
    logits = scale * tokens @ images.T  # (T, C)
    target = logits.gather(1, own[:, None])[:, 0]
    if share and len(holders):
        # The mean logit over a key's images is the logit of their mean embedding: no (T, C) target
        # is built.
        part = share * (keys >= 0)
        # A token without a key reads row 0 of the holders, which does not count: its part is 0.
        shared = scale * (tokens * F.embedding(keys.clamp(min=0), holders @ images)).sum(1)
        target = (1 - part) * target + part * shared
    losses = logits.logsumexp(1) - target
    return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()


class MatcherBatch(NamedTuple):
    """Data of a step: T tokens of S sentences, C distinct images.

    With `level="sentence"` the sentences take the place of the tokens.
    """

    hidden: Tensor  # (T, text_width)
    rows: Tensor  # (T,) sentence of each token
    means: Tensor  # (S, text_width)
    feats: Tensor  # (C, image_width)
    own: Tensor  # (T,) image of each token
    other: Tensor  # (T,) another image, random, the same for all tokens of a sentence
    keys: Tensor  # (T,) row of `holders`, or -1
    holders: Tensor  # (K, C) rows sum to 1
    weights: Tensor | None = None  # (T,) how much each token counts in the loss
