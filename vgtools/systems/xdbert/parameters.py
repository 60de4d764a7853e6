"""How many parameters a language encoder has when it is joined to a CLIP text tower.

Counted by hand from the widths, so that no network is built.

Source: XDBERT (Hsu et al. 2022), section 2.1 and Table 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vgtools.models.describe import CLIP, describe

_LOGIT_SCALE = 1  # CLIP's; it plays no part here, but Table 6 counts it


def cross_layer(width: int, other: int, inner: int) -> int:
    """Return the parameters of one side of a cross-modal layer.

    Cross attention (keys and values from the other side's width), self attention, and a
    feed-forward layer, each followed by a normalisation.

    Args:
        width: width of the side.
        other: width of the other side.
        inner: width of the feed-forward layer.
    """

    def linear(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    norm = 2 * width
    cross = 2 * linear(width, width) + 2 * linear(other, width) + norm
    own = 4 * linear(width, width) + norm
    feed_forward = linear(width, inner) + linear(inner, width) + norm
    return cross + own + feed_forward


def full_model(student: Mapping[str, Any], tower: Mapping[str, Any], layers: int) -> int:
    """Return the parameters of Table 6's X models: both encoders and the cross-modal layers.

    Heads and the pooler of adaptation are not counted.

    Args:
        student: record of `describe`; the feed-forward layers of both sides are as wide as its own.
        tower: likewise, of a CLIP.
        layers: number of cross-modal layers; the paper has 2.

    Source: Table 6: 202,059,009 with BERT-base and 442,671,617 with ELECTRA-large.
    Deviation: the paper also prints the count of BERT-base for ELECTRA-base, which has 590,592
        fewer because it has no pooler.
    """
    inner = student["inner"]
    language = cross_layer(student["width"], tower["projection"], inner)
    vision = cross_layer(tower["projection"], student["width"], inner)
    layer = language + vision
    return int(student["parameters"] + layers * layer + tower["parameters"] + _LOGIT_SCALE)


def describe_all(refs: Iterable[str], layers: int | None) -> Iterator[dict[str, Any]]:
    """Yield the sizes of each encoder, then of each language encoder joined to each tower.

    Args:
        refs: as `describe` takes them.
        layers: number of cross-modal layers; None leaves the joined models out.

    Raises:
        DataError: as `describe`.
    """
    found = [describe(ref) for ref in refs]
    yield from found
    towers = [record for record in found if record["type"] in CLIP]
    for student in (record for record in found if record["type"] not in CLIP):
        for tower in towers if layers is not None else ():
            yield {
                "model": f"{student['model']} + {tower['model']}",
                "type": "xdbert",
                "cross_layers": layers,
                "parameters": full_model(student, tower, int(layers or 0)),
            }
