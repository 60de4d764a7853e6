"""Captioned photos: looks, shared neighbours and CKA against loops, their controls, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands.test_measure import write_vectors
from tests.tiny import save_feats
from vgtools.analysis.alignment import linear_cka, shared_neighbours
from vgtools.analysis.looks import whiten
from vgtools.cli import run
from vgtools.io.errors import DataError
from vgtools.measures import photos as module
from vgtools.measures.photos import Alignment, CaptionedPhotos, Looks, read_photos
from vgtools.measures.ridge import cross_validated

RNG = np.random.default_rng(0)
WORDS = [f"{a}{b}" for a in "bdfgk" for b in ("ab", "ec", "ix")]
CAPTIONS = {
    f"image{n:03}": [f"The {' '.join(RNG.choice(WORDS, 7))}.", f"a {RNG.choice(WORDS)}"]
    for n in range(40)
}


@pytest.fixture
def photos() -> CaptionedPhotos:
    return CaptionedPhotos("c.jsonl", CAPTIONS, RNG.normal(size=(40, 5)))


def test_words_of_a_photo_without_stop_words(photos: CaptionedPhotos) -> None:
    expected = [w for text in CAPTIONS["image003"] for w in text.strip(".").split()]
    assert photos.words[3] == [w for w in expected if w not in ("The", "a")]


def test_looks_are_predicted_from_the_words_of_the_other_folds(photos: CaptionedPhotos) -> None:
    looks = Looks(photos, [np.arange(40)], "x", "words")
    words = [word for (word,) in looks.words]
    vectors = RNG.normal(size=(len(words), 3))
    known = np.arange(len(words)) > 1
    white = whiten(photos.features)[0]
    gold = [
        np.mean([white[n] for n in range(40) if word in photos.words[n]], axis=0) for word in words
    ]
    predicted = cross_validated(vectors[2:], np.array(gold)[2:])
    expected = [
        p @ g / np.linalg.norm(p) / np.linalg.norm(g)
        for p, g in zip(predicted, gold[2:], strict=True)
    ]
    found = looks.predict(vectors, known)
    assert np.isnan(found).tolist() == (~known).tolist()
    assert found[2:] == pytest.approx(expected)


@pytest.mark.parametrize("neighbours", [True, False])
def test_alignment_is_that_of_known_photos(photos: CaptionedPhotos, neighbours: bool) -> None:
    vectors = RNG.normal(size=(40, 3))
    known = np.arange(40) != 7
    measure = Alignment(photos, photos.features, "x", "photos", neighbours)
    found = measure.predict(vectors, known)
    pair = vectors[known], photos.features[known]
    _, expected = shared_neighbours(*pair) if neighbours else linear_cka(*pair)
    assert np.isnan(found[7])
    assert found[known] == pytest.approx(expected)


def test_a_permutation_leaves_no_photo_its_features(photos: CaptionedPhotos) -> None:
    rows = photos.permuted(3)
    assert sorted(rows.tolist()) == list(range(40))
    assert (rows != np.arange(40)).all()


def test_looks_of_permuted_photos_are_the_mean_over_permutations(photos: CaptionedPhotos) -> None:
    orders = [photos.permuted(seed) for seed in range(3)]
    vectors, known = RNG.normal(size=(len(WORDS), 3)), np.ones(len(WORDS), bool)
    alone = [Looks(photos, [order], "x", "words").predict(vectors, known) for order in orders]
    together = Looks(photos, orders, "x", "words").predict(vectors, known)
    mean = np.mean(alone, 0)
    assert together.mean() == pytest.approx(mean.mean())
    # The luck of an order moves all words together, and is added to the spread of their means.
    luck = np.mean(alone, 1).var(ddof=1) / 3
    own = mean.var() / len(mean) * (1 + 10 / 9)
    assert together - together.mean() == pytest.approx(
        (mean - mean.mean()) * (1 + luck / own) ** 0.5
    )
    assert luck > 0


def save(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, str]:
    """Write captions, the features of their photos, and vectors of their words."""
    monkeypatch.setattr(module, "LEAST_PHOTOS", 3)
    rows = [{"image": image, "text": text} for image, own in CAPTIONS.items() for text in own]
    captions = folder / "captions.jsonl"
    captions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    save_feats(folder / "feats.npy")
    vectors = {word: RNG.normal(size=2).tolist() for word in WORDS}
    return str(captions), str(folder / "feats.npy"), write_vectors(folder, "words", vectors)


def test_every_evaluation_is_next_to_its_control(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    captions, feats, words = save(tmp_path, monkeypatch)
    capfd.readouterr()

    def records(*args: str) -> list[dict[str, Any]]:
        assert run(["measure", *args, "--samples", "100", "-q"]) == 0
        return [json.loads(line) for line in capfd.readouterr().out.splitlines()]

    items = str(tmp_path / "items.jsonl")
    found = records(words, words, "--on", captions, "--feats", feats, "-o", items)
    names = [r["evaluation"].removeprefix("captions.jsonl ") for r in found[::2]]
    three = ["looks", "shared neighbours", "CKA"]
    controlled = [name + end for name in three for end in ("", ", photos permuted")]
    assert names == [*controlled, *(f"{name} beyond permuted" for name in three)]
    compared = [False, True, False, False] * 3 + [False, True] * 3
    assert ["difference" in record for record in found] == compared
    assert [record["items"] for record in found[4:12] + found[14:]] == [40] * 12
    for own, control, beyond in zip(found[:12:4], found[2:12:4], found[12::2], strict=True):
        assert beyond["value"] == pytest.approx(own["value"] - control["value"], abs=1e-12)
    assert records(items) == found
    save_feats(tmp_path / "feats.npy", RNG.normal(size=(40, 5)))
    other = str(tmp_path / "other.jsonl")
    records(words, "--on", captions, "--feats", feats, "-o", other)
    assert run(["measure", items, other]) == 65
    assert "captions.jsonl looks is of other items than in" in capfd.readouterr().err
    records(words, "--on", captions, "--feats", feats, "-o", items, "--seed", "1")
    assert run(["measure", items, other]) == 65
    why = "captions.jsonl looks, photos permuted is of other items than in"  # in another order
    assert why in capfd.readouterr().err


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    captions, feats, words = save(tmp_path, monkeypatch)
    assert run(["measure", words, "--on", captions]) == 65
    assert "image, text with --feats" in capfd.readouterr().err
    (tmp_path / "pairs.tsv").write_text("a\tb\t1\n" * 3)
    assert run(["measure", words, "--on", f"{tmp_path}/pairs.tsv", "--feats", feats]) == 2
    assert "--feats: no file of --on has captions of photos" in capfd.readouterr().err
    lines = Path(captions).read_text().splitlines(keepends=True)
    other = tmp_path / "other.jsonl"
    other.write_text(lines[0] + '{"image": "x.jpg", "text": "a dog"}\n')
    with pytest.raises(DataError, match=r"other\.jsonl:2: .*feats\.npy holds no features of the i"):
        read_photos(str(other), feats)
    other.write_text("".join(lines[:6]))
    with pytest.raises(DataError, match="has 3 photos; 10 neighbours need 12 or more"):
        read_photos(str(other), feats)
    monkeypatch.setattr(module, "LEAST_PHOTOS", 39)
    with pytest.raises(DataError, match="words with 39 photos or more; looks need 10 words"):
        read_photos(captions, feats)
