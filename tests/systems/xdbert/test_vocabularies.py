"""Vocabularies side by side: which words are compared, and with what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tiny import WORDS, save_encoder
from vgtools.analysis.cca import Space, compare_spaces
from vgtools.io.errors import DataError
from vgtools.io.files import write_manifest
from vgtools.models.embeddings import open_words
from vgtools.systems.xdbert.vocabularies import compare_words

LETTERS = [word for word in WORDS if word.isalpha()]


def save_vectors(path: Path, words: list[str], width: int = 10, seed: int = 1) -> str:
    array = np.random.default_rng(seed).standard_normal((len(words), width)).astype(np.float32)
    array[:, 0] = 1  # says nothing
    np.save(path, array)
    path.with_suffix(".ids").write_text("".join(f"{word}\n" for word in words))
    write_manifest(path, [path, path.with_suffix(".ids")], kind="word-vectors")
    return str(path)


def test_pairs_and_random_vectors(tmp_path: Path) -> None:
    encoder = str(save_encoder(tmp_path / "encoder"))
    some = save_vectors(tmp_path / "some.npy", ["unknown", *LETTERS[20:]])
    others = save_vectors(tmp_path / "others.npy", LETTERS[:100], seed=2)
    found = list(compare_words([encoder, some, others], None, 5))
    assert [(r["first"], r["second"], r["n"]) for r in found] == [
        (encoder, some, len(LETTERS) - 20),
        (encoder, others, 100),
        (some, others, 80),
        (encoder, "RANDOM", len(LETTERS) - 20),
    ]
    assert [r["dropped"] for r in found] == [[0, 1], [0, 1], [1, 1], [0, 0]]
    common = sorted(LETTERS[20:])
    spaces = [Space(open_words(ref).vectors(common)) for ref in (encoder, some)]
    own = compare_spaces(spaces[0], spaces[1], 5)
    assert {key: found[0][key] for key in own} == own
    assert found[3]["ranks"] == [16, 16]
    assert found[3]["pwcca"] == pytest.approx(found[3]["shuffled"]["pwcca"], abs=0.12)


def test_an_encoder_and_itself(tmp_path: Path) -> None:
    encoder = str(save_encoder(tmp_path / "encoder"))
    (alone,) = compare_words([encoder], None, 0)
    assert (alone["second"], alone["n"]) == ("RANDOM", len(LETTERS))
    same, _ = compare_words([encoder, encoder], None, 0)
    assert (same["pwcca"], same["mean_cca"]) == (pytest.approx(1), pytest.approx(1))
    assert same["shuffled"]["pwcca"] < 0.6


def test_a_list_chooses_the_words(tmp_path: Path) -> None:
    encoder = str(save_encoder(tmp_path / "encoder"))
    some = save_vectors(tmp_path / "some.npy", LETTERS[:60])
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in LETTERS[40:120]))
    with pytest.raises(DataError, match="20 common words, but 16 and 9 dimensions") as caught:
        list(compare_words([encoder, some], str(tmp_path / "words.txt"), 0))
    assert str(caught.value).startswith(f"{encoder} and {some}: ")
    (tmp_path / "words.txt").write_text("".join(f"{word}\n" for word in LETTERS[10:62]))
    first, _ = compare_words([encoder, some], str(tmp_path / "words.txt"), 0)
    assert (first["n"], first["not_common"]) == (50, 2)
    (tmp_path / "words.txt").write_text("zebra\n")
    with pytest.raises(DataError, match="have no word in common"):
        list(compare_words([encoder, some], str(tmp_path / "words.txt"), 0))
