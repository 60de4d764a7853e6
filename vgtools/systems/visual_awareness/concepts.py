"""Concept activation maps: where in a picture a retriever sees the content of a text (figure 4).

    heat_p = sum_k |c_k| (fc_k . A_p)

over the n largest dimensions k of the text embedding c. A is the feature map after the 1x1
convolution, fc_k the row of the projection that makes dimension k of an image's embedding; its bias
is the same at every position and left out.

Axes: B texts, E width of the shared space and of A, P positions of a feature map, D its channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vgtools.images.maps import OpenedMaps
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.systems.visual_awareness.retrieve import RetrieverRun, embed_texts, open_retriever
from vgtools.systems.visual_awareness.retriever import ImagePath


def concept_weights(texts: Tensor, fc: Tensor, dims: int) -> Tensor:
    """Return the weights that concept activation maps give to the channels of A.

    Args:
        texts: (B, E) embeddings c.
        fc: (E, E) weight of the projection, a row for each dimension of an embedding.
        dims: n, dimensions with the largest c_k that count; more than E are all.

    Returns:
        (B, E): the map of a text is its product with A_p.

    Source: Zhang et al. 2019 (Visual awareness), section 5.1; Engilberge et al. 2018, section 3.3,
        and its code: the largest by value, not by magnitude.
    """
    # A stable sort makes the choice among equal values the same on every device.
    order = texts.argsort(dim=1, descending=True, stable=True)[:, :dims]
    strength = torch.zeros_like(texts).scatter(1, order, texts.gather(1, order).abs())
    return strength @ fc


def relevance_weights(texts: Tensor, fc: Tensor) -> Tensor:
    """Return weights for the inner product of texts with the projection of each position.

    Deviation: not in Zhang et al. 2019. All dimensions count; dimensions with c_k < 0 count against
        a position.
    """
    return texts @ fc


class Weights(NamedTuple):
    """The weights that make maps of B texts, of which Q have a known word."""

    texts: Tensor  # (Q, E)
    channels: Tensor  # (Q, D)
    offset: Tensor  # (Q,)
    place: Array  # (B,) which of them a text is, -1 for none


def weigh(image: ImagePath, texts: Tensor, asking: Array, count: int, dims: int | None) -> Weights:
    """Return the weights of texts.

    The convolution is a linear map of each position, so it is applied to a text's weights once, and
    not to every position: A itself is never made.

    Args:
        image: the image path of a retriever, in eval mode.
        texts: (Q, E) embeddings.
        asking: (Q,) number of each among all texts.
        count: B, all texts.
        dims: n of concept activation maps; None makes plain relevance.
    """
    place = np.full(count, -1)
    place[asking] = np.arange(len(asking))
    if dims is None:
        weights = relevance_weights(texts, image.fc.weight)
    else:
        weights = concept_weights(texts, image.fc.weight, dims)
    return Weights(texts, weights @ image.conv.weight, weights @ image.conv.bias, place)


class ConceptLocator:
    """Makes maps of the content that a retriever sees; an `images.maps.Locator`.

    Args:
        opened: the retriever.
        dims: n of concept activation maps; None makes plain relevance.
        gradient: makes GradCAM of the relevance; `dims` is then None.
    """

    def __init__(self, opened: RetrieverRun, dims: int | None, gradient: bool = False) -> None:
        self._opened = opened
        self._dims = dims
        self._gradient = gradient

    @torch.inference_mode()
    def prepare(self, texts: Sequence[str]) -> Weights:
        """Return the weights of texts."""
        retriever = self._opened.retriever
        reader = self._opened.reader
        vectors, asking = embed_texts(retriever, reader, reader.read(texts))
        return weigh(retriever.image, vectors, asking, len(texts), self._dims)

    @torch.inference_mode()
    def maps(self, prepared: Weights, numbers: Array, grid: Array) -> Array:
        """Return (q, P) heat of some of the texts over a (P, D) grid."""
        if self._gradient:
            return gradient_maps(self._opened.retriever.image, prepared, numbers, grid)
        return map_cells(prepared, numbers, grid)


def gradient_maps(image: ImagePath, weights: Weights, numbers: Array, grid: Array) -> Array:
    """Return GradCAM of the cosine of text and picture over A, up to a positive factor.

    Weldon pooling gives every channel of A the same sum of gradients, so the mean of d cos(c, e) /
    dA over positions is 2 / (P |x|) (c - cos(c, e) e) fc, where x is the picture's projection and
    e = x / |x|: the relevance of each position to the text, less that to the whole picture times
    the cosine of the two.

    Args:
        image: the image path of a retriever, in eval mode.
        weights: weights of B texts of unit length, with `dims` None.
        numbers: (q,) which of them.
        grid: (P, D) float32.

    Returns:
        (q, P) float64, NaN for texts without a known word.

    Raises:
        DataError: fewer positions than the pooling averages, so that no whole picture is embedded.

    Source: Selvaraju et al. 2017 (Grad-CAM), equations 1 and 2.
    Deviation: negative heat is kept, because a map without any heat would have no hottest cell.
    """
    if len(grid) < image.regions:
        why = f"--heat gradient: the grid has {len(grid)} positions, the retriever pools over"
        raise DataError(f"{why} {image.regions}; extract a larger --picture")
    picture = F.normalize(image(torch.from_numpy(grid).to(weights.texts.device)[None]), dim=1)  # e
    whole = map_cells(weigh(image, picture, np.zeros(1, np.intp), 1, None), np.zeros(1, int), grid)
    cosines = (weights.texts @ picture[0]).double().cpu().numpy()[weights.place[numbers]]
    heat: Array = map_cells(weights, numbers, grid) - cosines[:, None] * whole
    return heat


def map_cells(weights: Weights, numbers: Array, grid: Array) -> Array:
    """Return the heat of some texts at every position of a picture.

    Args:
        weights: weights of B texts.
        numbers: (q,) which of them.
        grid: (P, D) float32.

    Returns:
        (q, P) float64, NaN for texts without a known word.
    """
    device = weights.channels.device
    heat = np.full((len(numbers), len(grid)), np.nan)
    place = weights.place[numbers]
    chosen = torch.from_numpy(place[place >= 0]).to(device)
    products = weights.channels[chosen] @ torch.from_numpy(grid).to(device).T
    heat[place >= 0] = (products + weights.offset[chosen, None]).double().cpu().numpy()
    return heat


def open_locator(
    run: str, heat: str | None, dims: int | None, usual_dims: int, device: str
) -> OpenedMaps:
    """Open a retriever, which by default makes concept activation maps; see `systems.open_maps`.

    Raises:
        DataError: as `open_retriever`; or dimensions for maps that have none (usage).
    """
    plain = heat in ("relevance", "gradient")
    if plain and dims is not None:
        raise DataError("belongs to --heat concepts", "--dims", code=Exit.USAGE)
    used = None if plain else dims or usual_dims
    loaded = open_retriever(run, device=device)
    made = {"heat": heat} if plain else {"heat": "concepts", "dims": used}
    where = next(loaded.retriever.parameters()).device.type
    config = {"matcher": loaded.fingerprint, **made, "device": where}
    locator = ConceptLocator(loaded, used, heat == "gradient")
    width = loaded.retriever.config.image_width
    return OpenedMaps(locator, width, loaded.run.info.get("backbone"), config)
