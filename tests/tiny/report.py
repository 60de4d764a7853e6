"""Records of a small probe, and a caption under the microscope."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
from PIL import Image

from vgtools.images.regions import RegionSet
from vgtools.reports.drawing import Figure
from vgtools.systems.attention_probes.examples import AttentionExample, make_groups

EVIL = "<script>window.pwned=1</script>"


BOXES = np.array(
    [[0, 0, 40, 40], [2, 2, 40, 40], [60, 60, 100, 100], [0, 60, 30, 90], [50, 0, 90, 30]],
    np.float64,
)


def regions(labels: list[str] | None = None) -> RegionSet:
    return RegionSet(np.zeros((5, 2), np.float32), BOXES, np.ones(5, np.float32), labels, 100, 100)


def example(text: str = "A dog bites a cat .", image: str = "a.jpg") -> AttentionExample:
    words = [m.span() for m in re.finditer(r"\w+|\.", text)]
    weights = np.zeros((3, len(words), 5))
    weights[:, :, 0] = 0.1
    weights[2, 1] = [0.5, 0.2, 0.05, 0.125, 0]  # "dog" in the last layer
    weights[0, 1] = [0, 0, 0.9, 0, 0]
    golds = [np.array([[0.0, 0, 40, 41]]), np.array([[58.0, 60, 100, 100]])]
    found = regions(["dog", "dog", EVIL, EVIL, "sky"])
    groups = make_groups(text, [(0, 5), (12, 17)], golds, found, weights)
    picture = Image.new("RGB", (100, 100), "#8a4")
    return AttentionExample(
        image, text, words, found, groups, ["1-1", "2-2", "3-1"], [0, 2], weights, picture
    )


def head(layer: int, number: int, accuracy: float, active: bool = True) -> dict[str, Any]:
    return {
        "kind": "head",
        "name": f"{layer}-{number}",
        "layer": layer,
        "head": number,
        "accuracy": accuracy,
        "active": active,
    }


RECORDS: list[dict[str, Any]] = [
    head(1, 1, 10.0, False), head(1, 2, 20.0), head(2, 1, 40.0), head(2, 2, 5.0, False),
    {"kind": "layer", "layer": 1, "best": 20.0, "best_head": "1-2", "best_active": 20.0,
     "chosen_head": "1-1",
     "chosen": 11.0, "mean": 15.0,
     "active_heads": 1, "attention": 30.0},
    {"kind": "layer", "layer": 2, "best": 40.0, "best_head": "2-1", "best_active": None,
     "chosen_head": "2-1",
     "chosen": 41.0, "mean": 22.5,
     "active_heads": 0, "attention": 9.0},
    {"kind": "relation", "relation": "acl", "stanford": "partmod", "entity": "either",
     "pairs": 1234, "baseline": 12.0,
     "head": "2-1", "accuracy": 30.0, "low": 25.0, "high": 35.0, "p": 0.001,
     "accuracies": [[10.0, 20.0], [30.0, 5.0]], "attentions": [[10.0, 25.0], [30.0, 5.0]]},
    {"kind": "relation", "relation": EVIL + "|", "stanford": EVIL + "|", "entity": "head",
     "pairs": 3, "baseline": 0.0,
     "head": None, "accuracy": None, "accuracies": [[0.0, 0.0]] * 2,
     "attentions": [[0.0, 0.0]] * 2},
    {"kind": "summary", "layers": 2, "heads": 2, "baseline": 17.33, "baseline_low": 15.0,
     "baseline_high": 19.0,
     "upper_bound": 87.0,
     "head": "2-1", "accuracy": 40.0, "low": 36.0, "high": 44.0, "difference": 22.67,
     "difference_low": 20.0,
     "difference_high": 25.0, "p": 0.001, "selected_on": "val",
     "entities": 4321, "captions": 2000, "photos": 400, "active_heads": 2, "level": 0.95},
]  # fmt: skip


TEXT_RECORDS: list[dict[str, Any]] = [
    *({"kind": "text-head", "name": f"{layer}-{n}", "layer": layer, "head": n, "entropy": 1.0,
      "x": 0.01 * n, "y": 0.0,
       **dict.fromkeys(("cls", "sep", "punctuation", "previous", "next", "self"), 10.0)}
      for layer in (1, 2) for n in range(1, 13)),
    {"kind": "dependency", "relation": "det", "stanford": "det", "direction": "to head",
     "words": 900, "head": "2-11",
     "accuracy": 80.0, "low": 75.0, "high": 84.0, "offset": 1, "baseline": 50.0,
     "baseline_low": 45.0, "baseline_high": 55.0,
     "difference": 30.0, "difference_low": 25.0, "difference_high": 35.0, "p": 0.001},
    {"kind": "dependency", "relation": EVIL, "stanford": EVIL, "direction": "to head", "words": 9,
     "head": None,
     "accuracy": None, "offset": None, "baseline": None},
    {"kind": "classifier", "classifier": "words", "relation": "det", "stanford": "det",
     "words": 900, "accuracy": 95.0,
     "low": 94.0, "high": 96.0, "offset": 1, "baseline": 50.0, "baseline_low": 45.0,
     "baseline_high": 55.0, "p": 0.001,
     "trained_on": 4321},
    {"kind": "text-summary", "texts": 400, "tokens": 5643, "layers": 2, "heads": 12,
     "selected_on": "val"},
]  # fmt: skip


def svg(figure: Figure | None) -> ElementTree.Element:
    assert figure is not None
    return ElementTree.fromstring(figure.svg())


def named(root: ElementTree.Element, tag: str) -> list[ElementTree.Element]:
    return root.findall(f".//{{http://www.w3.org/2000/svg}}{tag}")


def check_policy(page: str, *names: str) -> None:
    """Check that a page allows exactly its styles and scripts, and outside only these names."""
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy[1]).split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"

    def digests(tag: str) -> list[str]:
        bodies = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        return [
            f"'sha256-{base64.b64encode(hashlib.sha256(b.encode()).digest()).decode()}'"
            for b in bodies
        ]

    assert rules["style-src"].split() == digests("style")
    assert rules["script-src"].split() == digests("script")
    assert not re.search(r'(src|href)="(?!#|data:)|@import|url\((?!data:)', page)
    assert set(re.findall(r'https?://[^"<> ]*', page)) == set(names)
