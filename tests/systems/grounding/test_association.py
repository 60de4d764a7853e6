"""Images by scene, object and keyword: examples worked by hand, oracles, and what must not leak."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny import grounding as t
from vgtools.io import DataError, Exit
from vgtools.systems.grounding.association import Objects, cluster_nouns, open_associator
from vgtools.systems.grounding.keys import Bank, caption_keys, keywords, noun_keys
from vgtools.text.word_vectors import open_word_vectors

# ------------------------------------------------------------------------------------------- scene

IMAGES = ("dog puppy", "red car", "cat", "truck")


@pytest.mark.parametrize(
    ("text", "hidden", "scores", "images"),
    [
        (
            "the red dog chases a cat",
            (),
            (0.707107, 0.316228, 0.983870, 0.447214),
            (2, 0, 3, 1),
        ),
        (
            "the red dog chases a cat",
            ("dog",),
            (0.250962, 0.753569, 0.757333, 0.838961),
            (3, 2, 1, 0),
        ),
        ("dog dog truck", (), (0.980581, -0.263117, 0.917857, -0.124035), (0, 2, 3, 1)),
    ],
)
def test_a_scene_worked_by_hand(
    text: str, hidden: tuple[str, ...], scores: tuple[float, ...], images: tuple[int, ...]
) -> None:
    scene = t.scene(IMAGES)
    words = scene.words([text])
    spelt = [text[a:b] for a, b in zip(words.begin, words.end, strict=True)]
    found = scene.search(words, 4, visible=np.array([w not in hidden for w in spelt]))
    assert tuple(found.rows[0]) == images
    assert found.scores[0] == pytest.approx([scores[i] for i in images], abs=1e-6)


# ------------------------------------------------------------------------------------------ object


@pytest.mark.parametrize(
    ("nouns", "count", "chosen"),
    [
        ("dog cat puppy truck car", 2, "cat truck"),
        ("dog cat puppy truck car", 3, "cat truck dog"),
        ("dog puppy", 1, "dog"),
        ("puppy dog", 1, "puppy"),
        ("dog puppy", 8, "dog puppy"),
    ],
)
def test_clusters_worked_by_hand(nouns: str, count: int, chosen: str) -> None:
    names = nouns.split()
    vectors = np.array([[t.VECTORS[name] for name in names]], np.float64)
    found = cluster_nouns(vectors, min(count, len(names)))
    assert [names[i] for i in found.nouns[0]] == chosen.split()


def test_the_key_of_a_noun_worked_by_hand() -> None:
    row = {
        "image": "0",
        "nouns": ["great white shark", "white shark"],
        "text": "large fish",
    }
    bank = noun_keys([(1, row)], t.vectors(), t.STOP, "x.jsonl")
    assert bank.keys[0] == pytest.approx((0.634317, 0.773073), abs=1e-6)


def test_images_of_clusters_come_in_turn_and_once() -> None:
    keys = np.array([(1, 0), (0.8, 0.6), (0.6, 0.8), (0, 1), (-0.6, 0.8)], np.float32)
    index = t.index(Bank([str(i) for i in range(len(keys))], keys, []))
    finder = Objects(index, t.vectors(), t.STOP, t.tagger(frozenset({"dog", "car"})), 8)
    words = finder.words(["a car chases a dog"])
    assert words.noun.tolist() == [True, False, True]
    # By car 3, then 2 and 4 (.8 each), 1, 0; by dog 0, 1, 2, 3, 4.
    found = finder.search(words, 5)
    assert found.rows.tolist() == [[3, 0, 2, 1, 4]]
    assert found.scores[0] == pytest.approx([1, 1, 0.8, 0.8, 0.8])
    assert finder.search(words, 3, own=np.array([0])).rows.tolist() == [[3, 2, 1]]


# ----------------------------------------------------------------------------------------- keyword

CAPTIONS = (
    "a boy kicks a ball on the grass",
    "two girls play with a ball in the sand",
    "a brown horse eats grass",
    "a boy rides a brown horse",
    "the girls ride a bus",
    "a bus on a wet street",
)


def test_keywords_worked_by_hand() -> None:
    file = keywords(t.rows(*CAPTIONS), t.STOP, 2)
    lists = {
        word: file.rows[file.starts[i] : file.starts[i + 1]].tolist()
        for i, word in enumerate(file.words)
    }
    assert lists == {
        "ball": [0],
        "boy": [3],
        "brown": [2],
        "bus": [4],
        "eats": [2],
        "kicks": [0],
        "play": [1],
        "ride": [4],
        "rides": [3],
        "sand": [1],
        "street": [5],
        "wet": [5],
    }


@pytest.mark.parametrize(
    ("text", "most", "images", "scores"),
    [
        ("the boy and the brown horse near a bus", 2, [3, 2, 4], [1, 1, 1]),
        ("the boy and the brown horse near a bus", 8, [3, 2, 0, 4, 5], [3, 2, 1, 1, 1]),
        ("girls kick a ball ball", 8, [1, 4, 0], [2, 1, 1]),
    ],
)
def test_images_by_keywords_worked_by_hand(
    text: str, most: int, images: list[int], scores: list[int]
) -> None:
    finder = t.keyword_finder(keywords(t.rows(*CAPTIONS), t.STOP, most))
    found = finder.search(finder.words([text]), len(images) + 1)
    assert found.rows.tolist() == [[*images, -1]]
    assert found.scores.tolist() == [[*scores, 0]]


# ------------------------------------------------------------------------------------------- files


def test_an_index_is_opened_with_its_vectors_and_stop_words(tmp_path: Path) -> None:
    vectors = t.save_vectors(tmp_path / "v.npy")
    bank = caption_keys(t.rows(*IMAGES), t.vectors(), t.STOP)
    finder = open_associator(str(t.save_index(tmp_path / "s.faiss", bank, "captions", vectors)))
    assert finder.keys == "captions"
    assert finder.ids == ["0", "1", "2", "3"]
    found = finder.search(finder.words(["the red dog chases a cat", "unknown"]), 2)
    assert found.rows.tolist() == [[2, 0], [-1, -1]]
    assert found.scores[1].tolist() == [0, 0]


def test_an_index_of_other_vectors_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    vectors = t.save_vectors(tmp_path / "v.npy")
    bank = caption_keys(t.rows(*IMAGES), t.vectors(), t.STOP)
    path = t.save_index(tmp_path / "s.faiss", bank, "captions", vectors)
    before = open_word_vectors(str(vectors)).fingerprint
    t.save_vectors(vectors, t.VECTORS | {"dog": (0, 1)})
    after = open_word_vectors(str(vectors)).fingerprint
    with pytest.raises(DataError, match=f"{before}.*{after}") as caught:
        open_associator(str(path))
    assert caught.value.code == Exit.DATA
