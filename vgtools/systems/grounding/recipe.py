"""The settings of a grounded pretraining, without torch, so that `--help` reads the defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vgtools.io.settings import FIRST, count, file, value

TRANSFERRED = ("i2t", "t2i", "both")
ASSOCIATIVE = {"scene": "captions", "object": "nouns", "keyword": "keywords"}  # keys of the index
_CLUSTERS = 8


@dataclass(frozen=True)
class Sources:
    """The images that a text is shown with.

    Source: Sileo 2021, section 2.4.

    Attributes:
        strategy: none; i2t, t2i, both (captions with their image); scene, object, keyword (images
            found by words).
        feats: Features of images, of vg extract-image-feats.
        regions: Regions of images, instead of --feats (table 1).
        boxes: With --regions: the N most confident of each image.
        index: Index by captions, nouns or keywords, of vg build-index, for scene, object or
            keyword.
        images: Images per text, for scene, object and keyword.
        clusters: Clusters of a text's nouns, for object.
        query: Words that images are found by: those shown, or all (a control: images then give
            masked words away).
        tagger: Finds nouns, for object: builtin:spacy-sm or a package.
    """

    strategy: str = value(..., metavar="NAME", topic=FIRST)
    feats: str | None = value(None, metavar="X.npy", topic=FIRST)
    regions: str | None = value(None, metavar="X.npy")
    boxes: int | None = count(None, show_default="36")
    index: str | None = file(None, topic=FIRST)
    images: int | None = value(
        None,
        "--images",
        "-k",
        metavar="N",
        min=1,
        show_default="16",
        topic=FIRST,
    )
    clusters: int | None = count(None, show_default="8, at most -k")
    query: Literal["masked", "whole"] = value("masked")
    tagger: str | None = value(None, metavar="NAME", show_default="builtin:spacy-sm")

    @property
    def per_text(self) -> int:
        """K, images per text."""
        return (self.images or 16) if self.strategy in ASSOCIATIVE else 1

    @property
    def groups(self) -> int:
        """The clusters of a text's nouns."""
        return self.clusters or min(_CLUSTERS, self.per_text)


@dataclass(frozen=True, kw_only=True)
class CrossModalSettings:
    """The cross-modal encoder, and how often it sees no image.

    Attributes:
        cross_layers: The cross-modal encoder starts as the last N layers of the text encoder.
        drop_images: Show a text with the placeholder instead of its images, with probability P.
        dropout: Dropout of the cross-modal encoder; 0 suits a few hundred steps.
    """

    cross_layers: int | None = count(None, show_default="all")
    drop_images: float = value(0.0, metavar="P", min=0, max=1)
    dropout: float | None = value(
        None, metavar="P", min=0, max=0.9, show_default="the text encoder's"
    )
