"""Clusters of a text encoder's states as a bank: labels of tokens without any picture.

A matcher reads the states of a pretrained text encoder, so that vokens also carry its knowledge. A
model that learns clusters of the same states learns that knowledge alone: the gain of vokens over
them is the gain of the pictures. The controls of Tan & Bansal 2020, table 6, all lose both.

Axes: T tokens, E width of their embedding (`states.py`), K clusters.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from vgtools.io.arrays import Array
from vgtools.io.errors import DataError
from vgtools.io.process import Progress
from vgtools.io.splits import refuse_held_out
from vgtools.models.encoder import Encoder
from vgtools.retrieval.index import bare_index
from vgtools.systems.vokenization.states import StateEmbedding, config_of, fingerprint_of
from vgtools.systems.vokenization.vokenize import Matcher, Vokenizer
from vgtools.text.tokens import Tokens, tokenize, word_spans, written_words

_PER_CLUSTER = 256  # tokens per cluster to fit on, by default; faiss takes no more
_MEMORY = 1 << 32  # bytes of states to fit on, by default
_ROUNDS = 25  # as in faiss
_NAMED = 3  # words in the name of a cluster
_STILL = 1e-6  # share of the largest deviation below which a channel does not count
_BLOCK = 1 << 14  # rows that are standardised at a time


class TokenClusters(NamedTuple):
    """Clusters of the states of tokens."""

    centroids: Array  # (K, E) float32 unit vectors
    names: list[str]  # K, `17: dog puppy dogs`, by their most frequent words
    table: Array  # (2, E) float32, see `states.StateEmbedding`
    fingerprint: str  # the embedding's
    tokens: int  # tokens that they were fitted on
    cosine: float  # mean cosine of these with their centroid


@dataclass(frozen=True)
class ClusterPlan:
    """How states are clustered."""

    count: int  # K
    layers: int  # last ones of the encoder, concatenated
    context_weight: float  # weight of the sentence's mean state next to the token's own; 0: without
    tokens: int  # least tokens to draw from the text
    seed: int


def tokens_of(count: int, width: int) -> int:
    """Return how many tokens to fit `count` clusters of a width on, by default."""
    return min(_PER_CLUSTER * count, max(count, _MEMORY // (4 * width)))


def draw_lines(windows: Iterable[Any], tokenizer: Any, least: int, seed: int) -> list[str]:
    """Draw lines of a text that together have at least `least` tokens, or all that there are.

    Every line has the same probability. The text is read once, and only the drawn lines are held.

    Args:
        windows: windows of its lines.
        tokenizer: counts their tokens.
        least: tokens to draw.
        seed: decides which lines.

    Raises:
        DataError: a row is of a split to evaluate on (65).
    """
    rng = np.random.default_rng(seed)
    kept = list[tuple[float, int, int, str]]()  # a heap: minus the drawn number, line, tokens, text
    held = line = 0
    for window in windows:
        rows = window.rows()
        for number, row in enumerate(rows, window.first):
            refuse_held_out(row, window.path, number)
        texts = [row["text"] for row in rows]
        sizes = np.diff(tokenize(tokenizer, texts).starts).tolist()
        drawn = rng.random(len(texts)).tolist()
        for text, size, number in zip(texts, sizes, drawn, strict=True):
            line += 1
            if size and (held < least or -number > kept[0][0]):
                heapq.heappush(kept, (-number, line, size, text))
                held += size
            while kept and held - kept[0][2] >= least:
                held -= heapq.heappop(kept)[2]
    return [text for _, _, _, text in sorted(kept, key=lambda item: item[1])]


def fit_clusters(encoder: Encoder, texts: list[str], plan: ClusterPlan) -> TokenClusters:
    """Cluster the states of the tokens of texts by spherical k-means.

    Raises:
        DataError: fewer tokens than clusters (65).
    """
    import faiss

    tokens = tokenize(encoder.tokenizer, texts)
    if len(tokens.ids) < plan.count:
        why = f"has {len(tokens.ids)} tokens, expected at least one per cluster, {plan.count}"
        raise DataError(f"{why}; give more text or a smaller -k")
    config = config_of(encoder, plan.layers, plan.context_weight)
    raw = Matcher(StateEmbedding(config).eval(), encoder, {}, encoder.ref, "")
    worker = Vokenizer(raw, bare_index(config.dim))
    states = np.empty((len(tokens.ids), config.dim), np.float32)
    with Progress("prepare: states", "tokens", len(states)) as bar, torch.inference_mode():
        for part in worker.embed(tokens):
            states[part.places] = part.vectors.float().cpu().numpy()[part.owner]
            bar.advance(len(part.places))
    weights = np.ones(config.dim, np.float32)
    weights[config.text_width :] = plan.context_weight
    table = _standardise(states, weights)
    # All tokens are taken, however few per cluster: they have been drawn already.
    how = {"min_points_per_centroid": 1, "max_points_per_centroid": len(states)}
    k_means = faiss.Kmeans(
        config.dim, plan.count, niter=_ROUNDS, spherical=True, seed=plan.seed & 0x7FFFFFFF, **how
    )
    k_means.train(states)
    cosine, nearest = k_means.assign(states)
    names = _names(texts, tokens, nearest, plan.count)
    fingerprint = fingerprint_of(encoder, config, table)
    mean = float(cosine.mean())
    assert k_means.centroids is not None
    return TokenClusters(k_means.centroids, names, table, fingerprint, len(states), mean)


def _standardise(states: Array, weights: Array) -> Array:
    """Make rows unit vectors of standardised, weighted channels, in place; return the table."""
    blocks = [states[start : start + _BLOCK] for start in range(0, len(states), _BLOCK)]
    mean = sum(block.sum(0, dtype=np.float64) for block in blocks) / len(states)
    center = np.asarray(mean, np.float32)
    squares = np.zeros(len(center))
    for block in blocks:
        block -= center
        squares += np.square(block, dtype=np.float64).sum(0)
    deviation = np.sqrt(squares / len(states))
    # A channel that changes by rounding alone distinguishes nothing; MiniLM has one.
    live = deviation > _STILL * deviation.max()
    scale = np.divide(weights, deviation, np.zeros_like(deviation), where=live)
    factor = scale.astype(np.float32)
    for block in blocks:
        block *= factor
        block /= np.maximum(np.linalg.norm(block, axis=1, keepdims=True), 1e-12)
    return np.stack([center, factor])


def _names(texts: list[str], tokens: Tokens, nearest: Array, count: int) -> list[str]:
    """Return the names of clusters: their number, and the most frequent words of their tokens."""
    spans = word_spans(texts, tokens.spans, tokens.starts)
    # Outside words, for example in punctuation, a token names a cluster by itself.
    spans = np.where(spans[:, :1] < spans[:, 1:], spans, tokens.spans)
    written, number = written_words(texts, spans, tokens.starts)
    words = ["".join(word.lower().split()) for word in written]
    known = sorted({*words})
    place = {name: at for at, name in enumerate(known)}
    word = np.array([place[name] for name in words], np.int64)[number]
    pairs, times = np.unique(nearest.astype(np.int64) * len(known) + word, return_counts=True)
    owner = pairs // len(known)
    order = np.lexsort((pairs, -times, owner))
    edges = np.searchsorted(owner[order], np.arange(count + 1))
    chosen = (order[a : min(b, a + _NAMED)] for a, b in pairwise(edges.tolist()))
    listed = (" ".join(known[n] for n in (pairs[rows] % len(known)).tolist()) for rows in chosen)
    return [f"{number}: {named}".strip() for number, named in enumerate(listed)]
