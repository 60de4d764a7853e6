"""Associators of `vg retrieve`: the same images in any cut, and the order of all images."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tiny import grounding as tiny
from vgtools.systems.grounding import retrieve as system
from vgtools.systems.grounding.association import Associator
from vgtools.systems.grounding.keys import keywords
from vgtools.systems.grounding.retrieve import AssociativeRetriever

CAPTIONS = ["the dog chases a cat", "a red car", "a puppy and a fish", "a truck", "a white shark"]
TEXTS = ["a puppy", "the", "", "car and truck", "dog dog fish", "unknown words", "white cat"]


def associators() -> list[Associator]:
    found = keywords(tiny.rows(*CAPTIONS), tiny.STOP, 8)
    return [tiny.scene(CAPTIONS), tiny.keyword_finder(found)]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("size", [1, 3, 256])
def test_what_is_found_is_the_associators_in_any_cut(
    number: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_TEXTS", size)
    associator = associators()[number]
    retriever = AssociativeRetriever(associator)
    none = np.full(len(TEXTS), -1, np.int32)
    words = associator.words(TEXTS)
    found = retriever.search(retriever.prepare(TEXTS), 3, none)
    assert found.rows.tolist() == associator.search(words, 3).rows.tolist()
    own = found.rows[:, 0].copy()
    rest = retriever.search(retriever.prepare(TEXTS), 3, own)
    expected = associator.search(words, 3, own=own)
    assert rest.rows.tolist() == expected.rows.tolist()
    assert rest.scores.tolist() == expected.scores.tolist()
    assert not ((rest.rows == own[:, None]) & (rest.rows >= 0)).any()


@pytest.mark.parametrize("number", [0, 1])
def test_ranking_some_images_keeps_the_order_in_which_they_are_found(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_PAIRS", 11)
    associator = associators()[number]
    retriever = AssociativeRetriever(associator)
    images = np.array([4, 0, 2])
    ranking = retriever.relevance(retriever.prepare(TEXTS), images)
    found = associator.search(associator.words(TEXTS), len(CAPTIONS))
    for i in range(len(TEXTS)):
        kept = [(r, s) for r, s in zip(found.rows[i], found.scores[i], strict=True) if r in images]
        ranked = np.argsort(-ranking.order[i], kind="stable")[: len(kept)]
        assert images[ranked].tolist() == [row for row, _ in kept]
        assert ranking.relevance[i][ranked].tolist() == [score for _, score in kept]
        assert np.isfinite(ranking.order[i]).sum() == len(kept)


def test_a_cancelled_search_ends() -> None:
    retriever = AssociativeRetriever(associators()[0])
    words = retriever.prepare(TEXTS)
    retriever.cancel()
    with pytest.raises(InterruptedError):
        retriever.search(words, 3, np.full(len(TEXTS), -1, np.int32))
