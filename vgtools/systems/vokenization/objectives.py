"""The losses on vokens (section 2.2), by name, and the settings of a pretraining with them.

Without torch, so that `--help` reads them fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from vgtools.io.settings import count, value


class Objective(NamedTuple):
    """A loss of `VisuallySupervisedLM`, which computes it in its method of this name after a `_`.

    Source: Tan & Bansal 2020, section 2.2, for `voken_cls`; the published code for the others.
    """

    outputs: str  # field of `VokenLMConfig` with the width of its head's output
    feats: bool = False  # compares with the images' features


ALSO = "also"  # the objective that reads the labels of --also; the others read the inputs' vokens
OBJECTIVES = {
    "voken_cls": Objective("vokens"),
    "voken_reg": Objective("feats_width", feats=True),
    "voken_ctr": Objective("joint", feats=True),
    ALSO: Objective(ALSO),
}


def names(feats: bool = False) -> list[str]:
    """Return the names of the objectives, or of those that compare with the images' features."""
    return [name for name, objective in OBJECTIVES.items() if objective.feats or not feats]


@dataclass(frozen=True, kw_only=True)
class VokenSettings:
    """The objectives learned from vokens; an entry of `run.json` each.

    Attributes:
        voken_tokens: Tokens whose voken is learned.
        label: first: only the voken of each sentence's first token (table 5).
        control: Replacement of the vokens (table 6).
        vokens: Images of the bank.
        shared_head: Vokens share the hidden layer of the masked language model's head.
        pack: Boundary that no block crosses: none (stream), an empty row (document), the end of a
            row (row); best-fit: document, whose short ends share blocks.
    """

    voken_tokens: Literal["all", "masked", "unmasked"] = value("all")
    label: Literal["all", "first"] = value("all")
    control: Literal["random", "shuffle", "reverse", "tokens"] | None = value(None)
    vokens: int | None = count(None, show_default="from the manifest, else the largest voken")
    shared_head: bool = value(False)
    pack: Literal["stream", "document", "row", "best-fit"] = value("stream")
