"""The losses on vokens (section 2.2), by name; without torch, so that `--help` reads them fast."""

from __future__ import annotations

from typing import NamedTuple


class Objective(NamedTuple):
    """A loss of `VisuallySupervisedLM`, which computes it in its method of this name after a `_`.

    Source: Tan & Bansal 2020, section 2.2, for `voken_cls`; the published code for the others.
    """

    outputs: str  # field of `VokenLMConfig` with the width of its head's output
    feats: bool = False  # compares with the images' features


OBJECTIVES = {
    "voken_cls": Objective("vokens"),
    "voken_reg": Objective("feats_width", feats=True),
    "voken_ctr": Objective("joint", feats=True),
}


def names(feats: bool = False) -> list[str]:
    """Return the names of the objectives, or of those that compare with the images' features."""
    return [name for name, objective in OBJECTIVES.items() if objective.feats or not feats]
