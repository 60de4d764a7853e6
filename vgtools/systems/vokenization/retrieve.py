"""Images of whole sentences by a matcher (Tan & Bansal 2020), for `vg retrieve`.

A matcher of level `token` ranks images by the mean relevance of the sentence's tokens, which is the
inner product with the mean of their embeddings: one query per sentence instead of one per token,
and the quantity that `vg train-matcher` measures as the recall of captions. Its first token ([CLS])
was never trained against an image, so it is not used. A matcher of level `sentence` was trained on
[CLS] (appendix A.4), and that is the query. A dual encoder's query is its own embedding of the
text; a text longer than it reads is cut, and the query is the mean over its tokens. Queries have
unit length: it changes no order within a text, and relevance then lies in [-1, 1] and can be
compared across texts of any length.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from vgtools.io.arrays import Array
from vgtools.io.artifact import open_features
from vgtools.retrieval.foreign import Embeddings
from vgtools.retrieval.index import Index
from vgtools.retrieval.texts import EmbeddedBank, NearestImages
from vgtools.systems.vokenization.dual import check_own
from vgtools.systems.vokenization.matcher import sentence_means
from vgtools.systems.vokenization.vokenize import (
    Matcher,
    Vokenizer,
    at_level,
    embed_bank,
    load_for,
    open_matcher,
    vocabulary_queries,
)
from vgtools.text.tokens import Tokens

_TOKENS = 1 << 15  # tokens whose embeddings are held at a time; a longer sentence is held whole


class SentenceRetriever(NearestImages[Tokens]):
    """Finds the images of sentences; a `retrieval.Retriever`.

    Args:
        matcher: as `open_matcher` returns it.
        index: the image bank, embedded by this very matcher.

    Raises:
        DataError: the index was not embedded by this matcher.

    Source: Tan & Bansal 2020 (Vokenization), appendix A.4 for level `sentence`.
    """

    def __init__(self, matcher: Matcher, index: Index) -> None:
        super().__init__(index, matcher.fingerprint)
        if matcher.reading is not None:
            matcher = at_level(matcher, "sentence")
        self._vokenizer = Vokenizer(matcher, index)

    @property
    def settings(self) -> dict[str, Any]:
        """The weight of the sentence next to the word, which the index may give."""
        return {"context_weight": self._vokenizer.matcher.matcher.config.context_weight}

    @property
    def device(self) -> torch.device:
        """Where texts are embedded."""
        device: torch.device = self._vokenizer.encoder.device
        return device

    def prepare(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of texts."""
        return self._vokenizer.tokenize(texts)

    @torch.inference_mode()
    def embed(self, tokens: Tokens) -> tuple[torch.Tensor, Array]:
        """Return the queries of the texts that have a token, and which texts these are.

        Returns:
            (Q, E) unit vectors on the encoder's device, and (Q,) int64.
        """
        queries = list[torch.Tensor]()
        for part in _parts(tokens):
            lengths = np.diff(part.starts)
            if len(part.ids):
                vectors = self._token_queries(part)
                sizes = torch.from_numpy(lengths[lengths > 0]).to(vectors.device)
                queries.append(F.normalize(sentence_means(vectors, sizes), dim=1))
        asking = np.flatnonzero(np.diff(tokens.starts))
        dim = self._vokenizer.matcher.matcher.config.dim
        return torch.cat(queries) if queries else torch.zeros(0, dim), asking

    def _token_queries(self, tokens: Tokens) -> torch.Tensor:
        """Return the query of each token, (T, E)."""
        parts = list(self._vokenizer.embed(tokens))
        # The encoder returns its packs by length; the tokens go back to the order of the texts.
        order = np.argsort(np.concatenate([part.places for part in parts]))
        flat = torch.cat([part.vectors[torch.from_numpy(part.owner)] for part in parts])
        return flat[torch.from_numpy(order)]

    def cancel(self) -> None:
        """Make work in another thread end soon."""
        self._vokenizer.cancel()


def open_search(index: Index, run: str, device: str) -> SentenceRetriever:
    """Open a run of `vg train-matcher`, or a dual encoder, for the index that it embedded.

    Raises:
        DataError: as `load_for`.
    """
    return SentenceRetriever(load_for(index, run, device=device), index)


def open_bank(run: str, feats: str | Embeddings, device: str) -> EmbeddedBank:
    """Open pooled features and the run that embeds them, or embeddings and the run of their space.

    Raises:
        DataError: as `open_features` and `open_matcher`; they are not a dual encoder's own (65), or
            embeddings of another width (65).
    """
    features = open_features(feats) if isinstance(feats, str) else feats
    matcher = open_matcher(run, device=device)
    dim = matcher.matcher.config.dim
    if isinstance(features, Embeddings):
        embed = features.fitting(dim, run)
    else:
        check_own(matcher.matcher, features, matcher.info.get("backbone"), str(feats))
        embed = embed_bank(matcher, features.array, features.ids, str(feats))
    return EmbeddedBank(
        features,
        matcher.fingerprint,
        dim,
        embed,
        lambda: vocabulary_queries(matcher),
    )


def _parts(tokens: Tokens) -> list[Tokens]:
    """Cut the tokens of many sentences between sentences, into parts of about `_TOKENS`."""
    starts = tokens.starts
    edges = [0]
    while edges[-1] < len(starts) - 1:
        first = edges[-1]
        end = int(np.searchsorted(starts, starts[first] + _TOKENS, "right")) - 1
        edges.append(max(first + 1, end))
    return [
        Tokens(
            tokens.ids[starts[a] : starts[b]],
            tokens.spans[starts[a] : starts[b]],
            starts[a : b + 1] - starts[a],
        )
        for a, b in pairwise(edges)
    ]
