"""Concept activation maps: where in a picture a retriever sees what a text says (figure 4).

    heat_p = sum_k |c_k| (fc_k . A_p)

over the n largest dimensions k of the text embedding c. A is the feature map behind the 1x1
convolution, fc_k the row of the projection that makes dimension k of an image's embedding; its bias
is the same everywhere and left out.

Axes: B texts, E width of the shared space and of A, P positions of a feature map, D its channels.
"""

from __future__ import annotations

import torch
from torch import Tensor


def concept_weights(texts: Tensor, fc: Tensor, dims: int) -> Tensor:
    """Return what the channels of A are weighted with for some texts.

    Args:
        texts: (B, E) embeddings c.
        fc: (E, E) weight of the projection, a row for each dimension of the embedding.
        dims: n, dimensions with the largest c_k that count; more than E are all.

    Returns:
        (B, E).

    Source: Zhang et al. 2020 (Visual awareness), section 5.1; Engilberge et al. 2018, section 3.3,
        and its code: the largest by value, not by magnitude.
    """
    order = texts.argsort(dim=1, descending=True, stable=True)[:, :dims]
    strength = torch.zeros_like(texts).scatter(1, order, texts.gather(1, order).abs())
    return strength @ fc


def concept_maps(texts: Tensor, fc: Tensor, maps: Tensor, dims: int) -> Tensor:
    """Return the heat of texts in one picture, (B, P).

    Args:
        texts: (B, E) embeddings.
        fc: (E, E) weight of the projection.
        maps: (P, E), A.
        dims: n.
    """
    return concept_weights(texts, fc, dims) @ maps.T


def relevance_maps(texts: Tensor, fc: Tensor, maps: Tensor) -> Tensor:
    """Return the plain inner product of texts with each position's projection, (B, P).

    Deviation: not in Zhang et al. 2020. It is the part of the score that a position adds: dimensions
        that the text has not (c_k < 0) count against it.
    """
    return texts @ fc @ maps.T
