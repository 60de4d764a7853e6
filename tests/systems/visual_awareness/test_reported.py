"""The numbers of the paper's retriever."""

from __future__ import annotations

from vgtools.systems.visual_awareness.reported import retrieval


def test_recall_of_section_4_1() -> None:
    folds = retrieval()["folds"]
    assert (folds["count"], folds["images"]) == (5, 1000)
    assert folds["text_to_image"] == {"r10": 94.0}
