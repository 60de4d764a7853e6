"""The numbers that the paper prints, to compare ours with."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def retrieval() -> Record:
    """Return the retriever's recall as `vg retrieve --score` would give it, marked as reported.

    Source: Zhang et al. 2019, section 4.1: "94.0 % R@10 rate on the MS-COCO" with the settings of
        Engilberge et al. 2018, whose evaluation is the mean of 5 folds of 1,000 test photos. Which
        direction is meant is not said; it is taken to be text to image, the one that is used.
    """
    return {
        "source": "reported in the paper, section 4.1",
        "folds": {"count": 5, "images": 1000, "text_to_image": {"r10": 94.0}},
    }
