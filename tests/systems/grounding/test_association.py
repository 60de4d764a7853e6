"""Images by scene, object and keyword: examples worked by hand, oracles, and what must not leak."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.mixture import GaussianMixture

from tests.tiny import grounding as t
from vgtools.io.arrays import Array
from vgtools.io.errors import DataError, Exit
from vgtools.io.files import dumps, write_manifest
from vgtools.systems.grounding import association
from vgtools.systems.grounding.association import (
    Associator,
    Objects,
    cluster_nouns,
    open_associator,
    open_keywords,
)
from vgtools.systems.grounding.keys import (
    KEYWORDS,
    InvertedFile,
    KeyedImages,
    caption_keys,
    keyword_index,
    keywords,
    noun_keys,
)
from vgtools.text.word_vectors import open_word_vectors

# ------------------------------------------------------------------------------------------- scene

IMAGES = ("dog puppy", "red car", "cat", "truck")


@pytest.mark.parametrize(
    ("text", "scores", "images"),
    [
        (
            "the red dog chases a cat",
            (0.707107, 0.316228, 0.983870, 0.447214),
            (2, 0, 3, 1),
        ),
        (
            "the red _ chases a cat",
            (0.250962, 0.753569, 0.757333, 0.838961),
            (3, 2, 1, 0),
        ),
        ("dog dog truck", (0.980581, -0.263117, 0.917857, -0.124035), (0, 2, 3, 1)),
    ],
)
def test_a_scene_worked_by_hand(
    text: str, scores: tuple[float, ...], images: tuple[int, ...]
) -> None:
    scene = t.scene(IMAGES)
    found = scene.search(scene.words([text]), 4)
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


def test_a_lemma_or_a_definition_without_a_known_word_takes_no_part_in_a_key() -> None:
    # white shark (.8, .4), large fish (.4, .8)
    both = (0.5**0.5, 0.5**0.5)
    lemmas = (0.8 / 0.8**0.5, 0.4 / 0.8**0.5)
    definition = lemmas[::-1]
    for nouns, text, key in (
        (["selachian", "white shark"], "large fish", both),
        (["white shark"], "selachian", lemmas),
        (["selachian"], "large fish", definition),
    ):
        bank = noun_keys(
            [(1, {"image": "0", "nouns": nouns, "text": text})], t.vectors(), t.STOP, "x"
        )
        assert bank.keys[0] == pytest.approx(key, abs=1e-6)
    nothing = noun_keys(
        [(1, {"image": "0", "nouns": ["selachian"], "text": ""})], t.vectors(), t.STOP, "x"
    )
    assert (nothing.ids, nothing.left_out) == ([], ["0"])


def test_images_of_clusters_come_in_turn_and_once() -> None:
    keys = np.array([(1, 0), (0.8, 0.6), (0.6, 0.8), (0, 1), (-0.6, 0.8)], np.float32)
    index = t.index(KeyedImages([str(i) for i in range(len(keys))], keys, []))
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


def test_nouns_are_among_the_keywords() -> None:
    rows: Any = [
        (1, {"image": "a", "text": "a fish", "nouns": ["goldfish", "Carassius auratus"]}),
        (2, {"image": "b", "text": "", "nouns": ["tench"]}),
    ]
    index = keyword_index(rows, t.STOP, 8, "n.jsonl")
    found = {row["word"]: row["rows"] for row in map(json.loads, index.data.splitlines())}
    assert found == {"auratus": [0], "carassius": [0], "fish": [0], "goldfish": [0], "tench": [1]}
    assert (index.ids, index.left_out) == (["a", "b"], [])
    with pytest.raises(DataError, match=r'n\.jsonl:3: "nouns" must be strings'):
        keyword_index([(3, rows[0][1] | {"nouns": [1]})], t.STOP, 8, "n.jsonl")


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


# -------------------------------------------------------------------------------- for each of them

NAMES = list(t.VECTORS)
TEXTS = st.lists(
    st.lists(st.sampled_from([*NAMES, "the", "zebra"]), max_size=9).map(" ".join),
    min_size=1,
    max_size=7,
)


@cache
def finders() -> dict[str, Associator]:
    """Return one finder of each kind, over banks of several images."""
    pairs = [f"{a} {b}" for a, b in zip(NAMES, NAMES[3:] + NAMES[:3], strict=True)]
    rows = t.rows(*pairs)
    nouns = [
        (i + 1, {"image": str(i), "nouns": [a], "text": b})
        for i, (a, b) in enumerate(zip(NAMES, NAMES[4:] + NAMES[:4], strict=True))
    ]
    objects = noun_keys(nouns, t.vectors(), t.STOP, "x.jsonl")
    known = t.tagger(frozenset(NAMES[:9]))
    return {
        "captions": t.scene(pairs),
        "nouns": Objects(t.index(objects), t.vectors(), t.STOP, known, 3),
        "keywords": t.keyword_finder(keywords(rows, t.STOP, 2)),
    }


KINDS = ["captions", "nouns", "keywords"]


@pytest.mark.parametrize("kind", KINDS)
@given(texts=TEXTS, k=st.integers(1, 14))
@settings(deadline=None, max_examples=50)
def test_what_is_found_for_a_text_depends_on_nothing_beside_it(
    kind: str, texts: list[str], k: int
) -> None:
    finder = finders()[kind]
    words = finder.words(texts)
    own = np.arange(len(texts)) - 1
    whole = finder.search(words, k, own=own)
    assert whole.rows.shape == (len(texts), k)
    for i in range(len(texts)):
        one = finder.search(words.take([i]), k, own=own[i : i + 1])
        assert (one.rows[0] == whole.rows[i]).all()
        assert (one.scores[0] == whole.scores[i]).all()
        here = whole.rows[i][whole.rows[i] >= 0]
        assert len(set(here.tolist())) == len(here), "an image is there once"
        assert own[i] not in here, "the own image is left out"
        if kind != "nouns":  # of which the clusters depend on k
            best = finder.search(words.take([i]), k + 1).rows[0].tolist()
            assert here.tolist() == [row for row in best if row not in (-1, own[i])][:k]


@given(data=st.data(), k=st.integers(1, 6))
@settings(deadline=None, max_examples=50)
def test_what_the_own_image_shows_changes_nothing_that_is_found(
    data: st.DataObject, k: int
) -> None:
    """Its caption may be that of another image, or the very text."""
    captions = data.draw(st.lists(st.sampled_from(NAMES[:4]), min_size=2, max_size=6))
    own = data.draw(st.integers(0, len(captions) - 1))
    text = data.draw(st.sampled_from(NAMES[:4]))
    found = []
    for shown in (captions[own], text, NAMES[4]):
        finder = t.scene([*captions[:own], shown, *captions[own + 1 :]])
        found.append(finder.search(finder.words([text]), k, own=np.array([own])))
    for other in found[1:]:
        assert other.rows.tolist() == found[0].rows.tolist()
        assert other.scores.tolist() == found[0].scores.tolist()
    assert len([row for row in found[0].rows[0] if row >= 0]) == min(k, len(captions) - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_without_a_word_finds_nothing_and_a_bank_may_be_small(kind: str) -> None:
    finder = finders()[kind]
    found = finder.search(finder.words(["", "the zebra", "dog"]), 40)
    assert (found.rows[:2] == -1).all()
    assert (found.scores[:2] == 0).all()
    rows = found.rows[2]
    assert rows[0] >= 0
    assert rows[-1] == -1
    assert (found.scores[2][rows < 0] == 0).all()
    assert finder.search(finder.words([]), 3).rows.shape == (0, 3)


# ----------------------------------------------------------------------------------------- oracles


def gaussians(vectors: Array, count: int) -> list[int]:
    """Return the representatives by loops and scikit-learn's mixture, for one text."""

    def far(a: Array, b: Array) -> float:
        return round(float(((a - b) ** 2).sum()), 9)

    chosen = [min(range(len(vectors)), key=lambda i: far(vectors[i], vectors.mean(0)))]
    while len(chosen) < count:
        left = [i for i in range(len(vectors)) if i not in chosen]
        chosen.append(
            max(left, key=lambda i: (min(far(vectors[i], vectors[j]) for j in chosen), -i))
        )
    chosen.sort()
    shares = np.zeros((len(vectors), count))
    for i, x in enumerate(vectors):
        shares[i, min(range(count), key=lambda c: far(x, vectors[chosen[c]]))] = 1
    sizes = shares.sum(0) + 10 * np.finfo(float).eps
    means = shares.T @ vectors / sizes[:, None]
    variances = (shares.T @ vectors**2 / sizes[:, None] - means**2).mean(1) + 1e-6
    mixture = GaussianMixture(
        count,
        covariance_type="spherical",
        reg_covar=1e-6,
        max_iter=100,
        tol=1e-3,
        weights_init=sizes / sizes.sum(),
        means_init=means,
        precisions_init=1 / variances,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one that has not converged after 100 iterations
        mixture.fit(vectors)
    central = [min(range(len(vectors)), key=lambda i: far(vectors[i], m)) for m in mixture.means_]
    order = sorted(range(count), key=lambda c: (-round(mixture.weights_[c], 9), central[c]))
    return [central[c] for c in order]


@pytest.mark.parametrize(("size", "count", "width"), [(4, 2, 3), (9, 4, 10), (20, 8, 50)])
def test_clusters_are_those_of_scikit_learn(size: int, count: int, width: int) -> None:
    nouns = np.random.default_rng(size).standard_normal((12, size, width))
    nouns /= np.linalg.norm(nouns, axis=2, keepdims=True)
    found = cluster_nouns(nouns, count).nouns
    assert found.tolist() == [gaussians(vectors, count) for vectors in nouns]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_nouns_that_are_all_alike_are_one_cluster(count: int) -> None:
    nouns = np.broadcast_to([0.6, 0.8], (2, 4, 2)).astype(np.float64)
    found = cluster_nouns(nouns, count)
    assert found.nouns[:, 0].tolist() == [0, 0]
    assert found.weights[:, 0].tolist() == [1, 1]
    assert (found.weights[:, 1:] == 0).all()


@given(st.lists(TEXTS, min_size=1, max_size=5), st.integers(1, 3))
@settings(deadline=None, max_examples=50)
def test_keywords_are_those_of_loops(captions: list[list[str]], most: int) -> None:
    rows = [
        (0, {"image": f"i{number}", "text": text})
        for number, texts in enumerate(captions)
        for text in texts
    ]
    lists = [[w for w in str(row["text"]).split() if w not in t.STOP] for _, row in rows]
    df = Counter(word for words in lists for word in set(words))
    expected: dict[str, set[str]] = {}
    for words, (_, row) in zip(lists, rows, strict=True):
        weights = {
            w: n * (math.log((1 + len(lists)) / (1 + df[w])) + 1) for w, n in Counter(words).items()
        }
        for word in sorted(weights, key=lambda w: (-weights[w], w))[:most]:
            expected.setdefault(word, set()).add(str(row["image"]))
    file = keywords(rows, t.STOP, most)
    assert file.words == sorted(expected)
    for i, word in enumerate(file.words):
        images = [file.ids[row] for row in file.rows[file.starts[i] : file.starts[i + 1]]]
        assert set(images) == expected[word]
        assert len(images) == len(expected[word])
    assert set(file.ids) | set(file.left_out) == {str(row["image"]) for _, row in rows}


@given(
    banks=st.lists(st.sets(st.integers(0, 30), min_size=1), min_size=1, max_size=6),
    k=st.integers(1, 34),
    data=st.data(),
)
@settings(deadline=None, max_examples=100)
def test_images_by_keywords_are_those_of_loops(
    banks: list[set[int]], k: int, data: st.DataObject
) -> None:
    """Of the images met most often, the first met; many tie."""
    names = [f"w{i}" for i in range(len(banks))]
    rows = np.concatenate([sorted(images) for images in banks]).astype(np.int32)
    starts = np.cumsum([0, *map(len, banks)])
    finder = t.keyword_finder(InvertedFile([str(i) for i in range(31)], names, rows, starts, []))
    texts = data.draw(st.lists(st.lists(st.sampled_from(names), max_size=8), max_size=3))
    words = finder.words([" ".join(text) for text in texts])
    own = data.draw(st.lists(st.integers(-1, 30), min_size=len(texts), max_size=len(texts)))
    found = finder.search(words, k, own=np.array(own, np.int32))
    for i, left_out in enumerate(own):
        shown = words.rows[words.starts[i] : words.starts[i + 1]].tolist()
        met = Counter[int]()  # in the order in which images are met
        for word in dict.fromkeys(shown):
            met.update(row for row in sorted(banks[word]) if row != left_out)
        best = met.most_common(k)  # of equal counts the first met
        missing = k - len(best)
        assert found.rows[i].tolist() == [row for row, _ in best] + [-1] * missing
        assert found.scores[i].tolist() == [n for _, n in best] + [0] * missing


def test_many_images_are_found_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bits are read one by one or all at once, and sets are kept or made again."""
    rng = np.random.default_rng(0)
    lists = [np.flatnonzero(rng.random(300) < share) for share in (0.9, 0.4, 0.4, 0.1, 0.01)]
    rows = np.concatenate(lists).astype(np.int32)
    starts = np.cumsum([0, *map(len, lists)])
    names = ["dog", "cat", "red", "ball", "tree"]
    bank = InvertedFile([str(i) for i in range(300)], names, rows, starts, [])
    texts = ["dog cat red ball tree", "tree ball", "red dog", ""]
    found = []
    for few, bits in ((64, 1 << 31), (1 << 20, 1 << 31), (0, 0)):
        monkeypatch.setattr(association, "_FEW", few)
        monkeypatch.setattr(association, "_BITS", bits)
        finder = t.keyword_finder(bank)
        found.append(finder.search(finder.words(texts), 200, own=np.array([3, -1, 299, 0])))
    assert (found[0].rows[0] >= 0).all()
    assert 3 not in found[0].rows[0]
    for other in found[1:]:
        assert np.array_equal(other.rows, found[0].rows)
        assert np.array_equal(other.scores, found[0].scores)


def test_weights_of_keywords_are_those_of_scikit_learn() -> None:
    vectorizer = TfidfVectorizer(stop_words=sorted(t.STOP))
    weights = vectorizer.fit_transform(CAPTIONS).toarray()
    names = vectorizer.get_feature_names_out()
    for most in (1, 2, 3):
        file = keywords(t.rows(*CAPTIONS), t.STOP, most)
        expected = {
            (names[word], image)
            for image, row in enumerate(weights)
            for word in sorted(range(len(row)), key=lambda w: (-round(row[w], 9), names[w]))[:most]
        }
        found = {
            (word, int(row))
            for i, word in enumerate(file.words)
            for row in file.rows[file.starts[i] : file.starts[i + 1]]
        }
        assert found == expected


# ------------------------------------------------------------------------------------------- files


def test_an_index_is_opened_with_its_vectors_and_stop_words(tmp_path: Path) -> None:
    vectors = t.save_vectors(tmp_path / "v.npy")
    bank = caption_keys(t.rows(*IMAGES), t.vectors(), t.STOP)
    finder = open_associator(str(t.save_index(tmp_path / "s.faiss", bank, "captions", vectors)))
    assert finder.keys == "captions"
    assert list(finder.ids) == ["0", "1", "2", "3"]
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


@pytest.mark.parametrize(
    "rows", [[], [-1], [2], [1, 0], [True], [0.5], [2**63], [None], [[0]], [0, [1]], [[0, 1]] * 2]
)
def test_rows_of_keywords_that_are_not_of_the_bank_are_refused(
    tmp_path: Path, rows: list[Any]
) -> None:
    path, ids = tmp_path / "kw.jsonl", tmp_path / "kw.ids"
    path.write_bytes(dumps({"word": "dog", "rows": rows}))
    ids.write_text("a.jpg\nb.jpg\n")
    write_manifest(path, [path, ids], kind="index", keys=KEYWORDS)
    with pytest.raises(DataError, match=r"kw\.jsonl:1: .* ascending rows below 2") as caught:
        open_keywords(str(path))
    assert caught.value.code == Exit.DATA
