"""Where in a picture a matcher finds the content of a text, for `vg locate`.

A matcher (Tan & Bansal 2020) has no projection after its pooling that could be opened up. It
embeds each position of a feature map as it would a picture with that mean feature, and the heat is
the relevance of the text to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from vgtools.images.maps import OpenedMaps
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.retrieval.index import bare_index
from vgtools.systems.vokenization.retrieve import SentenceRetriever
from vgtools.systems.vokenization.vokenize import Matcher, open_matcher


class Asked(NamedTuple):
    """Texts that are looked for."""

    queries: torch.Tensor  # (Q, E) unit vectors
    place: Array  # (B,) the query of each text, -1 for a text without a token


class RelevanceLocator:
    """Makes maps of relevance; an `images.maps.Locator`.

    Deviation: not in Tan & Bansal 2020, whose matcher (section 3.2) sees mean features.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher.matcher
        self._sentences = SentenceRetriever(matcher, bare_index(matcher.matcher.config.dim))
        self.settings = self._sentences.settings  # decide the maps, as the run does

    @torch.inference_mode()
    def prepare(self, texts: Sequence[str]) -> Asked:
        """Return the queries of texts."""
        queries, asking = self._sentences.embed(self._sentences.prepare(texts))
        place = np.full(len(texts), -1)
        place[asking] = np.arange(len(asking))
        return Asked(queries, place)

    @torch.inference_mode()
    def maps(self, prepared: Asked, numbers: Array, grid: Array) -> Array:
        """Return (q, P) relevance of some of the texts to each position of a (P, D) grid."""
        device = prepared.queries.device
        cells = self._matcher.embed_images(torch.tensor(grid, device=device))
        heat = np.full((len(numbers), len(grid)), np.nan)
        place = prepared.place[numbers]
        chosen = prepared.queries[torch.from_numpy(place[place >= 0]).to(device)]
        heat[place >= 0] = (chosen.double() @ cells.double().T).cpu().numpy()
        return heat


def open_locator(
    run: str, heat: str | None, dims: int | None, usual_dims: int, device: str
) -> OpenedMaps:
    """Open a matcher of vokens, or a dual encoder; see `systems.open_maps`.

    Raises:
        DataError: as `open_matcher`; or maps that only a retriever has (usage).
    """
    for flag, given in (("--dims", dims is not None), ("--heat", heat in ("concepts", "gradient"))):
        if given:
            why = "belongs to a retriever: a matcher of vokens has maps of relevance alone"
            raise DataError(why, flag, code=Exit.USAGE)
    loaded = open_matcher(run, device=device)
    used = loaded.encoder.model.device.type
    locator = RelevanceLocator(loaded)
    config = {"matcher": loaded.fingerprint, **locator.settings, "heat": "relevance"}
    config["device"] = used
    width = loaded.matcher.config.image_width
    return OpenedMaps(locator, width, loaded.info.get("backbone"), config)
